//! The program whose ioctls were recorded.

use std::ffi::{CStr, c_char};

use super::{MIB, props};
use crate::api::{Gpu, Library, ok};

/// The program whose ioctls were recorded.
pub fn parity(library: Library) {
    // SAFETY: looks a name up among the loaded libraries.
    let mark = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"counter_mark".as_ptr()) };
    assert!(!mark.is_null(), "the counting library is not loaded");
    // SAFETY: that library's function, of this type.
    let mark: extern "C" fn(*const c_char) = unsafe { std::mem::transmute(mark) };
    let section = |name: &'static CStr| mark(name.as_ptr());
    section(c"init");
    ok!(library, cuInit(0 => u32));
    section(c"ctx");
    let gpu = Gpu::new(library);
    section(c"meminfo");
    gpu.free();
    section(c"stream");
    let stream = gpu.stream();
    section(c"alloc 64K");
    gpu.alloc(64 << 10);
    section(c"alloc 64MiB");
    let middle = gpu.alloc(64 * MIB);
    section(c"alloc 3GiB");
    let large = gpu.alloc(3 << 30);
    section(c"free 3GiB");
    gpu.release(large);
    section(c"free 64MiB");
    gpu.release(middle);
    section(c"alloc async 64MiB");
    let mut address = 0_u64;
    ok!(library, cuMemAllocAsync(&mut address => *mut u64, 64 * MIB => usize, stream => usize));
    gpu.wait(stream);
    section(c"free async");
    ok!(library, cuMemFreeAsync(address => u64, stream => usize));
    gpu.wait(stream);
    section(c"cuMemCreate 64MiB");
    let (mut physical, props, access, size) = (0_usize, props(), [1_u32, 0, 3], 64 * MIB);
    ok!(library, cuMemCreate(&mut physical => *mut usize, size => usize, &props => *const [u32; 8], 0 => u64));
    section(c"reserve");
    ok!(library, cuMemAddressReserve(&mut address => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => u64));
    section(c"map");
    ok!(library, cuMemMap(address => u64, size => usize, 0 => usize, physical => usize, 0 => u64));
    section(c"setaccess");
    ok!(library, cuMemSetAccess(address => u64, size => usize, &access => *const [u32; 3], 1 => usize));
    section(c"unmap");
    ok!(library, cuMemUnmap(address => u64, size => usize));
    section(c"release");
    ok!(library, cuMemRelease(physical => usize));
    section(c"managed 64MiB");
    ok!(library, cuMemAllocManaged(&mut address => *mut u64, size => usize, 1 => u32));
    section(c"managed memset");
    ok!(library, cuMemsetD8_v2(address => u64, 1 => u8, size => usize));
    ok!(library, cuCtxSynchronize());
    section(c"managed free");
    gpu.release(address);
    section(c"host 64MiB");
    ok!(library, cuMemAllocHost_v2(&mut address => *mut u64, size => usize));
    section(c"host free");
    ok!(library, cuMemFreeHost(address => u64));
    section(c"array");
    let (mut array, descriptor) = (0_usize, [4096_u64, 4096, 1 << 32 | 0x20]);
    ok!(library, cuArrayCreate_v2(&mut array => *mut usize, &descriptor => *const [u64; 3]));
    section(c"array free");
    ok!(library, cuArrayDestroy(array => usize));
    let spin = gpu.function(c"gpuslice_spin");
    section(c"launch x1");
    gpu.launch(spin, stream, &[1000]);
    gpu.wait(stream);
    section(c"launch x1000");
    for _ in 0..1000 {
        gpu.launch(spin, stream, &[1000]);
    }
    gpu.wait(stream);
    section(c"launch end");
    section(c"ctx2");
    let mut second = 0_usize;
    ok!(library, cuCtxCreate_v2(&mut second => *mut usize, 0 => u32, 0 => i32));
    section(c"ctx2 destroy");
    ok!(library, cuCtxDestroy_v2(second => usize));
    section(c"exit");
}
