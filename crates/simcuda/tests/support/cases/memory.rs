//! Every way to allocate, and what it takes.

use super::{INVALID_HANDLE, INVALID_VALUE, MIB, OUT_OF_MEMORY, props};
use crate::api::{Gpu, call, ok};

pub fn memory(gpu: Gpu) {
    let start = gpu.free();
    let addresses: Vec<u64> = [MIB, 2 * MIB, 64 * MIB + 1, 3 << 30]
        .into_iter()
        .map(|size| gpu.alloc(size))
        .collect();
    let used = start - gpu.free();
    assert!(used >= (67 << 20) + (3 << 30), "{used}");
    for address in addresses {
        gpu.release(address);
    }
    assert_eq!(gpu.free(), start, "everything came back");
    assert_eq!(call!(gpu.library, cuMemFree_v2(0 => u64)), 0);

    let address = gpu.alloc(5 * MIB);
    assert_eq!(
        call!(gpu.library, cuMemFree_v2(address + 512 => u64)),
        INVALID_VALUE
    );
    let (mut base, mut size) = (0, 0);
    ok!(gpu.library, cuMemGetAddressRange_v2(&mut base => *mut u64, &mut size => *mut usize, address + 12345 => u64));
    assert_eq!((base, size), (address, 5 * MIB));
    ok!(gpu.library, cuMemGetAddressRange_v2(std::ptr::null_mut() => *mut u64, &mut size => *mut usize, address => u64));
    let pattern: Vec<u8> = (0..5 * MIB).map(|index| (index * 7 / 3) as u8).collect();
    gpu.write(address, &pattern);
    assert!(gpu.read(address, 5 * MIB) == pattern);
    let copy = gpu.alloc(5 * MIB);
    ok!(gpu.library, cuMemcpyDtoD_v2(copy => u64, address => u64, 5 * MIB => usize));
    ok!(gpu.library, cuMemsetD32_v2(copy + 4096 => u64, 0x0403_0201 => u32, 1024 => usize));
    ok!(gpu.library, cuMemsetD8_v2(copy => u64, 9 => u8, 100 => usize));
    let read = gpu.read(copy, 5 * MIB);
    assert!(read[..100].iter().all(|byte| *byte == 9));
    assert!(read[4096..8192].chunks(4).all(|word| word == [1, 2, 3, 4]));
    assert!(read[100..4096] == pattern[100..4096] && read[8192..] == pattern[8192..]);

    // Rows of 100 bytes, 512 apart.
    let (mut rows, mut pitch) = (0, 0);
    ok!(gpu.library, cuMemAllocPitch_v2(&mut rows => *mut u64, &mut pitch => *mut usize, 100 => usize, 8 => usize, 4 => u32));
    assert!(pitch >= 100 && pitch % 256 == 0);
    ok!(gpu.library, cuMemsetD2D8_v2(rows => u64, pitch => usize, 5 => u8, 100 => usize, 8 => usize));
    assert!(
        gpu.read(rows + 7 * pitch as u64, 100)
            .iter()
            .all(|byte| *byte == 5)
    );

    // A copy that leaves its allocation, and one from nowhere.
    let byte = [0_u8; 16];
    let end = address + 5 * MIB as u64 - 8;
    assert_eq!(
        call!(gpu.library, cuMemcpyHtoD_v2(end => u64, byte.as_ptr() => *const u8, 16 => usize)),
        INVALID_VALUE
    );
    assert_eq!(
        call!(gpu.library, cuMemsetD8_v2(64 => u64, 0 => u8, 1 => usize)),
        INVALID_VALUE
    );
    let mut kind = 0_u32;
    ok!(gpu.library, cuPointerGetAttribute(&mut kind => *mut u32, 2 => u32, address => u64));
    assert_eq!(kind, 2, "device memory");
    assert_eq!(
        call!(gpu.library, cuPointerGetAttribute(&mut kind => *mut u32, 2 => u32, &kind => *const u32)),
        INVALID_VALUE
    );
}

/// Small allocations share a chunk of two mebibytes.
pub fn small_memory(gpu: Gpu) {
    let start = gpu.free();
    let first = gpu.alloc(64 << 10);
    assert_eq!(start - gpu.free(), 2 * MIB);
    let more: Vec<u64> = (0..16).map(|_| gpu.alloc(100)).collect();
    assert_eq!(start - gpu.free(), 2 * MIB);
    assert!(more.iter().all(|address| address % 256 == 0));
    let many: Vec<u64> = (0..8).map(|_| gpu.alloc(900 << 10)).collect();
    assert_eq!(
        start - gpu.free(),
        8 * MIB,
        "two of 900 KiB to a chunk, and two beside the small ones"
    );
    for address in more.into_iter().chain(many).chain([first]) {
        gpu.release(address);
    }
    assert_eq!(start - gpu.free(), 2 * MIB, "one empty chunk is kept");
    for _ in 0..1000 {
        let address = gpu.alloc(256);
        gpu.release(address);
    }
    assert_eq!(start - gpu.free(), 2 * MIB);
}

/// The card is finite, and says so in the ordinary way.
pub fn limits(gpu: Gpu) {
    let free = gpu.free();
    let mut address = 0;
    let got =
        call!(gpu.library, cuMemAlloc_v2(&mut address => *mut u64, free + (1 << 30) => usize));
    assert_eq!(got, OUT_OF_MEMORY);
    assert_eq!(
        call!(gpu.library, cuMemAlloc_v2(&mut address => *mut u64, usize::MAX => usize)),
        OUT_OF_MEMORY
    );
    assert_eq!(
        call!(gpu.library, cuMemAlloc_v2(&mut address => *mut u64, 0 => usize)),
        INVALID_VALUE
    );
    assert_eq!(gpu.free(), free, "what was refused takes nothing");
    let mut held = Vec::new();
    loop {
        match call!(gpu.library, cuMemAlloc_v2(&mut address => *mut u64, 8 << 30 => usize)) {
            0 => held.push(address),
            error => break assert_eq!(error, OUT_OF_MEMORY),
        }
    }
    assert_eq!(held.len(), free >> 33);
    // Less than a context takes is left: making one fails half-way and takes nothing.
    let rest = gpu.alloc(gpu.free() - 300 * MIB);
    let left = gpu.free();
    let mut context = 0_usize;
    let got = call!(gpu.library, cuCtxCreate_v2(&mut context => *mut usize, 0 => u32, 0 => i32));
    assert_eq!((got, gpu.free()), (OUT_OF_MEMORY, left));
    gpu.release(rest);
    let stream = gpu.stream();
    let got = call!(gpu.library, cuMemAllocAsync(&mut address => *mut u64, 8 << 30 => usize, stream => usize));
    assert_eq!(got, OUT_OF_MEMORY, "the pool finds no memory either");
    for address in held {
        gpu.release(address);
    }
    assert!(free - gpu.free() <= 2 * MIB);
    let address = gpu.alloc(1 << 30);
    gpu.release(address);
}

pub fn pools(gpu: Gpu) {
    let library = gpu.library;
    let stream = gpu.stream();
    let start = gpu.free();
    let alloc = |size: usize| {
        let mut address = 0_u64;
        ok!(library, cuMemAllocAsync(&mut address => *mut u64, size => usize, stream => usize));
        address
    };
    let free = |address: u64| ok!(library, cuMemFreeAsync(address => u64, stream => usize));
    let first = alloc(64 * MIB);
    assert_eq!(start - gpu.free(), 64 * MIB);
    let second = alloc(1000);
    assert_eq!(start - gpu.free(), 96 * MIB, "blocks of 32 MiB");
    free(first);
    let third = alloc(64 * MIB);
    assert_eq!(third, first, "the same stream has it again at once");
    gpu.write(third, &[1; 1000]);
    free(third);
    free(second);
    gpu.wait(stream);
    assert_eq!(gpu.free(), start, "nothing is kept after waiting");

    let mut pool = 0_usize;
    ok!(library, cuDeviceGetDefaultMemPool(&mut pool => *mut usize, 0 => i32));
    ok!(library, cuMemPoolSetAttribute(pool => usize, 4 => u32, &u64::MAX => *const u64));
    free(alloc(10 * MIB));
    gpu.wait(stream);
    assert_eq!(
        start - gpu.free(),
        32 * MIB,
        "kept, for the threshold says so"
    );
    let mut value = 0_u64;
    ok!(library, cuMemPoolGetAttribute(pool => usize, 5 => u32, &mut value => *mut u64));
    assert_eq!(value, 32 << 20);
    ok!(library, cuMemPoolTrimTo(pool => usize, 0 => usize));
    assert_eq!(gpu.free(), start);

    let (mut own, props) = (0_usize, [[1_u32, 0, 1, 0].as_slice(), &[0; 18]].concat());
    ok!(library, cuMemPoolCreate(&mut own => *mut usize, props.as_ptr() => *const u32));
    let mut address = 0_u64;
    ok!(library, cuMemAllocFromPoolAsync(&mut address => *mut u64, MIB => usize, own => usize, stream => usize));
    ok!(library, cuMemFree_v2(address => u64));
    ok!(library, cuMemPoolDestroy(own => usize));
    assert_eq!(gpu.free(), start);
    assert_eq!(
        call!(library, cuMemPoolDestroy(pool => usize)),
        INVALID_VALUE,
        "the default pool stays"
    );
}

pub fn virtual_memory(gpu: Gpu) {
    let library = gpu.library;
    let start = gpu.free();
    let (size, props) = (64 * MIB, props());
    let (mut physical, mut address, mut unit) = (0_usize, 0_u64, 0_usize);
    ok!(library, cuMemGetAllocationGranularity(&mut unit => *mut usize, &props => *const [u32; 8], 0 => u32));
    assert_eq!(unit, 2 * MIB);
    ok!(library, cuMemCreate(&mut physical => *mut usize, size => usize, &props => *const [u32; 8], 0 => u64));
    assert_eq!(start - gpu.free(), size);
    ok!(library, cuMemAddressReserve(&mut address => *mut u64, 2 * size => usize, 0 => usize, 0 => u64, 0 => u64));
    ok!(library, cuMemMap(address => u64, size => usize, 0 => usize, physical => usize, 0 => u64));
    let map_again = call!(library, cuMemMap(address => u64, size => usize, 0 => usize, physical => usize, 0 => u64));
    assert_eq!(map_again, INVALID_VALUE);
    assert_eq!(
        call!(library, cuMemsetD8_v2(address => u64, 1 => u8, 1 => usize)),
        INVALID_VALUE,
        "no access yet"
    );
    let access = [1_u32, 0, 3];
    ok!(library, cuMemSetAccess(address => u64, size => usize, &access => *const [u32; 3], 1 => usize));
    // The same memory once more, from its middle: both addresses see the same bytes, and it is charged once.
    let alias = address + size as u64;
    ok!(library, cuMemMap(alias => u64, size / 2 => usize, size / 2 => usize, physical => usize, 0 => u64));
    ok!(library, cuMemSetAccess(alias => u64, size / 2 => usize, &access => *const [u32; 3], 1 => usize));
    assert_eq!(start - gpu.free(), size);
    gpu.write(address + size as u64 / 2, b"the same bytes");
    assert_eq!(gpu.read(alias, 14), b"the same bytes");
    ok!(library, cuMemRelease(physical => usize));
    assert_eq!(start - gpu.free(), size, "mappings keep the memory");
    ok!(library, cuMemUnmap(address => u64, size => usize));
    assert_eq!(
        call!(library, cuMemsetD8_v2(address => u64, 1 => u8, 1 => usize)),
        INVALID_VALUE
    );
    let busy = call!(library, cuMemAddressFree(address => u64, 2 * size => usize));
    assert_eq!(busy, INVALID_VALUE, "a mapping is left");
    ok!(library, cuMemUnmap(alias => u64, size / 2 => usize));
    assert_eq!(gpu.free(), start);
    ok!(library, cuMemAddressFree(address => u64, 2 * size => usize));
    let odd = call!(library, cuMemCreate(&mut physical => *mut usize, 4096 => usize, &props => *const [u32; 8], 0 => u64));
    assert_eq!(odd, INVALID_VALUE, "not a multiple of the granularity");
}

pub fn managed(gpu: Gpu) {
    let library = gpu.library;
    let start = gpu.free();
    let size = 16 * MIB;
    let mut address = 0_u64;
    ok!(library, cuMemAllocManaged(&mut address => *mut u64, size => usize, 1 => u32));
    ok!(library, cuMemsetD8_v2(address => u64, 7 => u8, size => usize));
    ok!(library, cuCtxSynchronize());
    // SAFETY: managed memory of this length, which nothing else touches.
    let bytes = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, size) };
    assert!(
        bytes.iter().all(|byte| *byte == 7),
        "the program sees what the GPU wrote"
    );
    bytes.fill(1);
    let out = gpu.alloc(8);
    gpu.launch(
        gpu.function(c"gpuslice_sum"),
        0,
        &[address, size as u64 / 4, out],
    );
    assert_eq!(
        gpu.read(out, 8),
        (0x0101_0101 * size as u64 / 4).to_ne_bytes(),
        "and the GPU what it wrote"
    );
    let mut is_managed = false;
    ok!(library, cuPointerGetAttribute(&mut is_managed => *mut bool, 8 => u32, address => u64));
    assert!(is_managed);
    ok!(library, cuMemFree_v2(address => u64));
    gpu.release(out);
    assert!(
        start - gpu.free() <= 2 * MIB,
        "all but the small allocation's chunk is back"
    );
}

pub fn host_memory(gpu: Gpu) {
    let library = gpu.library;
    let start = gpu.free();
    let mut address = 0_u64;
    ok!(library, cuMemAllocHost_v2(&mut address => *mut u64, 8 * MIB => usize));
    assert_eq!(gpu.free(), start, "host memory is no device memory");
    // SAFETY: host memory of this length, which nothing else touches.
    let bytes = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, 8 * MIB) };
    bytes.fill(3);
    let device = gpu.alloc(8 * MIB);
    let stream = gpu.stream();
    ok!(library, cuMemcpyHtoDAsync_v2(device => u64, address => u64, 8 * MIB => usize, stream => usize));
    gpu.wait(stream);
    bytes.fill(0);
    ok!(library, cuMemcpyDtoHAsync_v2(address => u64, device => u64, 8 * MIB => usize, stream => usize));
    gpu.wait(stream);
    assert!(bytes.iter().all(|byte| *byte == 3));
    // The GPU reaches pinned memory itself.
    bytes.fill(2);
    let out = gpu.alloc(8);
    gpu.launch(gpu.function(c"gpuslice_sum"), 0, &[address, 1024, out]);
    assert_eq!(gpu.read(out, 8), (0x0202_0202_u64 * 1024).to_ne_bytes());
    ok!(library, cuMemFreeHost(address => u64));

    let mut own = vec![4_u8; 3 * MIB];
    let at = own.as_mut_ptr() as u64;
    ok!(library, cuMemHostRegister_v2(at => u64, own.len() => usize, 0 => u32));
    let again = call!(library, cuMemHostRegister_v2(at => u64, own.len() => usize, 0 => u32));
    assert_eq!(again, 712, "registered twice");
    let mut same = 0_u64;
    ok!(library, cuMemHostGetDevicePointer_v2(&mut same => *mut u64, at => u64, 0 => u32));
    assert_eq!(same, at);
    ok!(library, cuMemHostUnregister(at => u64));
    assert_eq!(call!(library, cuMemHostUnregister(at => u64)), 713);
}

pub fn arrays(gpu: Gpu) {
    let library = gpu.library;
    let start = gpu.free();
    let (mut array, descriptor) = (0_usize, [4096_u64, 4096, 1 << 32 | 0x20]);
    ok!(library, cuArrayCreate_v2(&mut array => *mut usize, &descriptor => *const [u64; 3]));
    assert_eq!(start - gpu.free(), 64 * MIB);
    let mut read = [0_u64; 3];
    ok!(library, cuArrayGetDescriptor_v2(&mut read => *mut [u64; 3], array => usize));
    assert_eq!(read, descriptor);
    ok!(library, cuArrayDestroy(array => usize));
    assert_eq!(gpu.free(), start);
    assert_eq!(
        call!(library, cuArrayDestroy(array => usize)),
        INVALID_HANDLE
    );
}
