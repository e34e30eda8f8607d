//! The cases: each is a program of its own.

mod interface;
mod memory;
mod parity;
mod process;
mod work;

use std::path::Path;

use crate::api::{Gpu, Library};

/// Results of the driver API that the cases expect.
const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const NOT_INITIALIZED: u32 = 3;
const NO_DEVICE: u32 = 100;
const INVALID_DEVICE: u32 = 101;
const INVALID_CONTEXT: u32 = 201;
const INVALID_HANDLE: u32 = 400;
const NOT_FOUND: u32 = 500;
const NOT_READY: u32 = 600;
const ILLEGAL_ADDRESS: u32 = 700;
const NOT_SUPPORTED: u32 = 801;

const MIB: usize = 1 << 20;

/// Runs a case by its name; false if there is none of this name.
pub fn run(name: &str, path: &Path) -> bool {
    let library = || Library::load(path);
    match name {
        "exports" => interface::exports(library()),
        "b20_nothing_given" => interface::nothing_given(Gpu::new(library())),
        "b40_first_calls" => interface::first_calls(library()),
        "b56_process_lists" => interface::process_lists(Gpu::new(library())),
        "no_node" => interface::no_node(library()),
        "visible" => interface::visible_devices(library()),
        "devices" => interface::devices(library()),
        "nvml" => interface::nvml(library()),
        "memory" => memory::memory(Gpu::new(library())),
        "small_memory" => memory::small_memory(Gpu::new(library())),
        "limits" => memory::limits(Gpu::new(library())),
        "kernels" => work::kernels(Gpu::new(library())),
        "streams" => work::streams(Gpu::new(library())),
        "graphs" => work::graphs(Gpu::new(library())),
        "pools" => memory::pools(Gpu::new(library())),
        "virtual_memory" => memory::virtual_memory(Gpu::new(library())),
        "managed" => memory::managed(Gpu::new(library())),
        "host_memory" => memory::host_memory(Gpu::new(library())),
        "arrays" => memory::arrays(Gpu::new(library())),
        "contexts" => process::contexts(Gpu::new(library())),
        "threads" => work::threads(Gpu::new(library())),
        "signals" => work::signals(Gpu::new(library())),
        "errors" => work::errors(Gpu::new(library())),
        "fork" => process::fork(library()),
        "ipc" => process::ipc(Gpu::new(library())),
        "ipc_other" => process::ipc_other(Gpu::new(library())),
        "shared_file" => process::shared_file(Gpu::new(library())),
        "shared_file_other" => process::shared_file_other(Gpu::new(library())),
        "parity" => parity::parity(library()),
        _ => return false,
    }
    true
}

/// `CUmemAllocationProp` of pinned memory on a device, to be shared by file.
fn props() -> [u32; 8] {
    [1, 1, 1, 0, 0, 0, 0, 0]
}
