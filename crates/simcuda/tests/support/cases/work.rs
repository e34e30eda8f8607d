//! Kernels, streams, events, graphs, and work that goes wrong or is disturbed.

use std::ffi::{c_char, c_void};

use super::{ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_VALUE, MIB, NOT_FOUND, NOT_READY};
use crate::api::{Gpu, PTX, call, ok};

pub fn kernels(gpu: Gpu) {
    let library = gpu.library;
    let (words, out) = (gpu.alloc(4 * MIB), gpu.alloc(8));
    let stream = gpu.stream();
    let (fill, sum) = (
        gpu.function(c"gpuslice_fill"),
        gpu.function(c"gpuslice_sum"),
    );
    let count = MIB as u64;
    gpu.launch(fill, stream, &[words, 7, count]);
    gpu.launch(sum, stream, &[words, count, out]);
    gpu.wait(stream);
    assert_eq!(gpu.read(out, 8), (7 * count).to_ne_bytes());

    // y = 2 x + y, once with pointers to the arguments and once with them packed.
    let (x, y) = (gpu.alloc(4096), gpu.alloc(4096));
    for (address, value) in [(x, 3.0_f32), (y, 1.0)] {
        ok!(library, cuMemsetD32_v2(address => u64, value.to_bits() => u32, 1024 => usize));
    }
    let saxpy = gpu.function(c"gpuslice_saxpy");
    gpu.launch(saxpy, 0, &[u64::from(2.0_f32.to_bits()), x, y, 1024]);
    let mut packed = [0_u8; 32];
    packed[..4].copy_from_slice(&2.0_f32.to_ne_bytes());
    packed[8..16].copy_from_slice(&x.to_ne_bytes());
    packed[16..24].copy_from_slice(&y.to_ne_bytes());
    packed[24..].copy_from_slice(&1024_u64.to_ne_bytes());
    let length = packed.len();
    let extra = [
        1,
        packed.as_ptr() as usize,
        2,
        std::ptr::from_ref(&length) as usize,
        0,
    ];
    ok!(library, cuLaunchKernel(saxpy => usize, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32,
        0 => u32, 0 => usize, std::ptr::null() => *const usize, extra.as_ptr() => *const usize));
    assert!(
        gpu.read(y, 4096)
            .chunks(4)
            .all(|word| word == 13.0_f32.to_ne_bytes())
    );

    let (mut module, mut function) = (0_usize, 0_usize);
    ok!(library, cuModuleLoadDataEx(&mut module => *mut usize, PTX.as_ptr() => *const c_char, 0 => u32,
        0 => usize, 0 => usize));
    for name in [c"unknown_kernel", c"no_kernel"] {
        let got = call!(library, cuModuleGetFunction(&mut function => *mut usize, module => usize,
            name.as_ptr() => *const c_char));
        assert_eq!(got, NOT_FOUND);
    }
    ok!(library, cuModuleGetFunction(&mut function => *mut usize, module => usize,
        c"gpuslice_spin".as_ptr() => *const c_char));
    ok!(library, cuModuleUnload(module => usize));
    assert_eq!(
        gpu.try_launch(function, 0, &[1]),
        INVALID_HANDLE,
        "its module is gone"
    );
    let got = call!(library, cuModuleLoadData(&mut module => *mut usize, c"no ptx".as_ptr() => *const c_char));
    assert_eq!(got, 200);

    let (mut whole, mut kernel) = (0_usize, 0_usize);
    ok!(library, cuLibraryLoadData(&mut whole => *mut usize, PTX.as_ptr() => *const c_char, 0 => usize,
        0 => usize, 0 => u32, 0 => usize, 0 => usize, 0 => u32));
    ok!(library, cuLibraryGetKernel(&mut kernel => *mut usize, whole => usize,
        c"gpuslice_spin".as_ptr() => *const c_char));
    ok!(library, cuKernelGetFunction(&mut function => *mut usize, kernel => usize));
    gpu.launch(function, stream, &[1000]);
    gpu.wait(stream);
    let bad = call!(library, cuLaunchKernel(function => usize, 1 => u32, 1 => u32, 1 => u32, 2048 => u32, 1 => u32,
        1 => u32, 0 => u32, 0 => usize, &std::ptr::from_ref(&1_u64) => *const *const u64, 0 => usize));
    assert_eq!(bad, INVALID_VALUE, "a block of 2048 threads");
}

/// Appends its argument's number to the list it points to.
extern "C" fn note(order: *mut c_void) {
    // SAFETY: the case passes a list that it reads only after waiting for this call.
    let (list, number) = unsafe { *order.cast::<(*const std::sync::Mutex<Vec<u32>>, u32)>() };
    // SAFETY: as above.
    unsafe { &*list }
        .lock()
        .expect("no holder panics")
        .push(number);
}

pub fn streams(gpu: Gpu) {
    let library = gpu.library;
    let spin = gpu.function(c"gpuslice_spin");
    let stream = gpu.stream();
    let event = |flags| {
        let mut event = 0_usize;
        ok!(library, cuEventCreate(&mut event => *mut usize, flags => u32));
        event
    };
    let (before, after) = (event(0), event(0));
    ok!(library, cuEventRecord(before => usize, stream => usize));
    gpu.launch(spin, stream, &[300_000_000]);
    ok!(library, cuEventRecord(after => usize, stream => usize));
    assert_eq!(call!(library, cuStreamQuery(stream => usize)), NOT_READY);
    assert_eq!(call!(library, cuEventQuery(after => usize)), NOT_READY);
    ok!(library, cuEventSynchronize(after => usize));
    ok!(library, cuStreamQuery(stream => usize));
    let mut elapsed = 0.0_f32;
    ok!(library, cuEventElapsedTime(&mut elapsed => *mut f32, before => usize, after => usize));
    assert!(
        elapsed >= 300.0,
        "{elapsed} ms of device time for a kernel of 300"
    );
    let untimed = event(2);
    ok!(library, cuEventRecord(untimed => usize, stream => usize));
    let got = call!(library, cuEventElapsedTime(&mut elapsed => *mut f32, before => usize, untimed => usize));
    assert_eq!(got, INVALID_HANDLE, "an event without time");

    // One stream waits for the other's event; a blocking stream waits for the default one.
    let (words, out) = (gpu.alloc(MIB), gpu.alloc(8));
    let (fill, sum) = (
        gpu.function(c"gpuslice_fill"),
        gpu.function(c"gpuslice_sum"),
    );
    let other = gpu.stream();
    for round in 1..=20_u64 {
        gpu.launch(spin, stream, &[200_000]);
        gpu.launch(fill, stream, &[words, round, 1024]);
        ok!(library, cuEventRecord(after => usize, stream => usize));
        ok!(library, cuStreamWaitEvent(other => usize, after => usize, 0 => u32));
        gpu.launch(sum, other, &[words, 1024, out]);
        gpu.wait(other);
        assert_eq!(gpu.read(out, 8), (1024 * round).to_ne_bytes());
    }
    let mut blocking = 0_usize;
    ok!(library, cuStreamCreate(&mut blocking => *mut usize, 0 => u32));
    for round in 1..=20_u64 {
        gpu.launch(spin, blocking, &[200_000]);
        gpu.launch(fill, blocking, &[words, round, 1024]);
        gpu.launch(sum, 0, &[words, 1024, out]);
        assert_eq!(gpu.read(out, 8), (1024 * round).to_ne_bytes());
    }

    let order = std::sync::Mutex::new(Vec::new());
    let numbers: Vec<_> = (0..3)
        .map(|number| (std::ptr::from_ref(&order), number))
        .collect();
    for number in &numbers {
        gpu.launch(spin, stream, &[1_000_000]);
        ok!(library, cuLaunchHostFunc(stream => usize, note => extern "C" fn(*mut c_void),
            std::ptr::from_ref(number) => *const (*const std::sync::Mutex<Vec<u32>>, u32)));
    }
    gpu.wait(stream);
    assert_eq!(*order.lock().expect("no holder panics"), [0, 1, 2]);
    ok!(library, cuStreamDestroy_v2(other => usize));
    assert_eq!(
        call!(library, cuStreamSynchronize(other => usize)),
        INVALID_HANDLE
    );
}

pub fn graphs(gpu: Gpu) {
    let library = gpu.library;
    let stream = gpu.stream();
    let (words, out) = (gpu.alloc(MIB), gpu.alloc(8));
    let (fill, sum) = (
        gpu.function(c"gpuslice_fill"),
        gpu.function(c"gpuslice_sum"),
    );
    let (mut graph, mut ready, mut state) = (0_usize, 0_usize, 9_u32);
    ok!(library, cuStreamBeginCapture_v2(stream => usize, 0 => u32));
    ok!(library, cuStreamIsCapturing(stream => usize, &mut state => *mut u32));
    assert_eq!(state, 1);
    gpu.launch(fill, stream, &[words, 5, 1000]);
    gpu.launch(sum, stream, &[words, 1000, out]);
    ok!(library, cuStreamEndCapture(stream => usize, &mut graph => *mut usize));
    ok!(library, cuMemsetD8_v2(out => u64, 0 => u8, 8 => usize));
    gpu.wait(stream);
    assert_eq!(gpu.read(out, 8), [0; 8], "captured work does not run");
    let mut count = 0_usize;
    ok!(library, cuGraphGetNodes(graph => usize, std::ptr::null_mut() => *mut usize, &mut count => *mut usize));
    assert_eq!(count, 2);
    ok!(library, cuGraphInstantiateWithFlags(&mut ready => *mut usize, graph => usize, 0 => u64));
    ok!(library, cuGraphDestroy(graph => usize));
    for _ in 0..3 {
        ok!(library, cuMemsetD8_v2(out => u64, 0 => u8, 8 => usize));
        ok!(library, cuCtxSynchronize());
        ok!(library, cuGraphLaunch(ready => usize, stream => usize));
        gpu.wait(stream);
        assert_eq!(gpu.read(out, 8), 5000_u64.to_ne_bytes());
    }
    ok!(library, cuGraphExecDestroy(ready => usize));
    assert_eq!(
        call!(library, cuGraphLaunch(ready => usize, stream => usize)),
        INVALID_HANDLE
    );
    assert_eq!(
        call!(library, cuStreamBeginCapture_v2(0 => usize, 0 => u32)),
        906,
        "the default stream"
    );
    assert_eq!(
        call!(library, cuStreamEndCapture(stream => usize, &mut graph => *mut usize)),
        401
    );
}

pub fn threads(gpu: Gpu) {
    let start = gpu.free();
    std::thread::scope(|scope| {
        for number in 0..8_u64 {
            scope.spawn(move || {
                ok!(gpu.library, cuCtxSetCurrent(gpu.context => usize));
                let stream = gpu.stream();
                let (fill, sum) = (
                    gpu.function(c"gpuslice_fill"),
                    gpu.function(c"gpuslice_sum"),
                );
                for round in 0..10 {
                    let (words, out) = (gpu.alloc(4 * MIB), gpu.alloc(8));
                    gpu.launch(fill, stream, &[words, number + round, 1000]);
                    gpu.launch(sum, stream, &[words, 1000, out]);
                    gpu.wait(stream);
                    assert_eq!(gpu.read(out, 8), ((number + round) * 1000).to_ne_bytes());
                    gpu.release(words);
                    gpu.release(out);
                }
                ok!(gpu.library, cuStreamDestroy_v2(stream => usize));
            });
        }
    });
    assert!(start - gpu.free() <= 2 * MIB);
}

extern "C" fn ignore(_signal: i32) {}

/// Signals between and during calls break none and make none happen twice.
pub fn signals(gpu: Gpu) {
    let start = gpu.free();
    // SAFETY: the handler does nothing; without SA_RESTART every interrupted system call is seen.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
        assert_eq!(
            libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()),
            0
        );
    }
    let every = |microseconds| {
        let interval = libc::timeval {
            tv_sec: 0,
            tv_usec: microseconds,
        };
        let timer = libc::itimerval {
            it_interval: interval,
            it_value: interval,
        };
        // SAFETY: sets this process's own timer.
        unsafe { libc::syscall(libc::SYS_setitimer, libc::ITIMER_REAL, &timer, 0) };
    };
    every(500);
    let (out, spin) = (gpu.alloc(8), gpu.function(c"gpuslice_spin"));
    for _ in 0..300 {
        let address = gpu.alloc(4 * MIB);
        gpu.write(address, b"whole");
        gpu.launch(spin, 0, &[10_000]);
        assert_eq!(gpu.read(address, 5), b"whole");
        gpu.release(address);
    }
    gpu.release(out);
    every(0);
    assert_eq!(
        start - gpu.free(),
        2 * MIB,
        "the small allocation's chunk, and nothing else"
    );
}

/// Work that goes wrong ends the context, and every later call says so.
pub fn errors(gpu: Gpu) {
    let stream = gpu.stream();
    let address = gpu.alloc(4 * MIB);
    gpu.launch(
        gpu.function(c"gpuslice_fill"),
        stream,
        &[0x1234_0000, 1, 100],
    );
    assert_eq!(
        call!(gpu.library, cuStreamSynchronize(stream => usize)),
        ILLEGAL_ADDRESS
    );
    let mut more = 0_u64;
    assert_eq!(
        call!(gpu.library, cuMemAlloc_v2(&mut more => *mut u64, MIB => usize)),
        ILLEGAL_ADDRESS
    );
    assert_eq!(
        call!(gpu.library, cuMemsetD8_v2(address => u64, 1 => u8, 1 => usize)),
        ILLEGAL_ADDRESS
    );
    ok!(gpu.library, cuDevicePrimaryCtxReset_v2(0 => i32));
    let fresh = Gpu::new(gpu.library);
    let address = fresh.alloc(4 * MIB);
    fresh.write(address, b"works again");
}
