//! A program without a dynamic linker: nothing that is preloaded can reach it. It makes its calls itself, on a device
//! file it has inherited: `attacker CONTROL_FD DEVICE_INSTANCE LIMIT`. It allocates device memory until it is refused
//! or has LIMIT bytes, and prints how far it came and the status of the refusal. Compiled by the binary's build script,
//! with no crates.

use std::ffi::{c_int, c_ulong};

unsafe extern "C" {
    fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
}

/// `RM_ALLOC`, the long form (NVOS64, 48 bytes): read and write, type `F`, number 0x2b.
const RM_ALLOC: c_ulong = 0xc030_462b;
/// Classes: a root client, a device, device memory.
const ROOT: u32 = 0x41;
const DEVICE: u32 = 0x80;
const MEMORY: u32 = 0x40;

const DEVICE_HANDLE: u32 = 0xa77a_0001;
const FIRST_MEMORY: u32 = 0xa77a_1000;
/// From large to the driver's smallest page.
const STEPS: [u64; 4] = [1 << 30, 64 << 20, 2 << 20, 64 << 10];

/// NVOS64: hRoot@0 hObjectParent@4 hObjectNew@8 hClass@12 pAllocParms@16 pRightsRequested@24 paramsSize@32 flags@36
/// status@40.
#[repr(C)]
#[derive(Default)]
struct Alloc {
    root: u32,
    parent: u32,
    new: u32,
    class: u32,
    params: u64,
    rights: u64,
    params_size: u32,
    flags: u32,
    status: u32,
    pad: u32,
}

/// An object's handle, or the status of the refusal.
fn alloc(
    file: c_int,
    [root, parent, new, class]: [u32; 4],
    params: &mut [u64],
) -> Result<u32, u32> {
    let mut block = Alloc {
        root,
        parent,
        new,
        class,
        ..Alloc::default()
    };
    if !params.is_empty() {
        block.params = params.as_mut_ptr() as u64;
        block.params_size = size_of_val(params) as u32;
    }
    // SAFETY: the block is live and has the 48 bytes that the request encodes; its parameters outlive the call.
    let rc = unsafe { ioctl(file, RM_ALLOC, &mut block) };
    if rc < 0 {
        eprintln!("class {class:#x}: {}", std::io::Error::last_os_error());
        std::process::exit(1);
    }
    if block.status == 0 {
        Ok(block.new)
    } else {
        Err(block.status)
    }
}

fn main() {
    let words: Vec<u64> = std::env::args()
        .skip(1)
        .filter_map(|w| w.parse().ok())
        .collect();
    let [file, instance, limit] = words[..] else {
        eprintln!("attacker CONTROL_FD DEVICE_INSTANCE LIMIT");
        std::process::exit(2);
    };
    let file = file as c_int;
    let fail = |status: u32| -> u32 {
        println!("0 {status}");
        std::process::exit(0);
    };
    let root = alloc(file, [0, 0, 0, ROOT], &mut []).unwrap_or_else(fail);
    // NV0080_ALLOC_PARAMETERS, 56 bytes: deviceId@0 hClientShare@4 vaMode@48 (2: several address spaces).
    let mut device = [instance | u64::from(root) << 32, 0, 0, 0, 0, 0, 2];
    alloc(file, [root, root, DEVICE_HANDLE, DEVICE], &mut device).unwrap_or_else(fail);
    let (mut reached, mut next, mut status) = (0, FIRST_MEMORY, 0);
    for step in STEPS {
        status = 0;
        while reached + step <= limit {
            // NV_MEMORY_ALLOCATION_PARAMS, 128 bytes: owner@0 size@64.
            let mut memory = [0u64; 16];
            memory[0] = u64::from(root);
            memory[8] = step;
            next += 1;
            match alloc(file, [root, DEVICE_HANDLE, next, MEMORY], &mut memory) {
                Ok(_) => reached += step,
                Err(refused) => {
                    status = refused;
                    break;
                }
            }
        }
    }
    println!("{reached} {status}");
}
