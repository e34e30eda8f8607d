//! Contexts, child processes, and memory shared between processes.

use std::io::{BufRead, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use super::{INVALID_CONTEXT, INVALID_VALUE, MIB, NOT_INITIALIZED, props};
use crate::api::{Gpu, Library, call, ok};

pub fn contexts(gpu: Gpu) {
    let library = gpu.library;
    let start = gpu.free();
    let mut second = 0_usize;
    for _ in 0..3 {
        ok!(library, cuCtxCreate_v2(&mut second => *mut usize, 0 => u32, 0 => i32));
        let taken = start - gpu.free();
        assert!(
            taken > 400 * MIB,
            "a context of its own takes memory: {taken}"
        );
        gpu.alloc(100 * MIB);
        gpu.alloc(1000);
        let stream = gpu.stream();
        gpu.launch(gpu.function(c"gpuslice_spin"), stream, &[1000]);
        ok!(library, cuCtxDestroy_v2(second => usize));
        ok!(library, cuCtxSetCurrent(gpu.context => usize));
        assert_eq!(gpu.free(), start, "its end gives everything back");
    }
    assert_eq!(
        call!(library, cuCtxPushCurrent_v2(second => usize)),
        INVALID_CONTEXT
    );
    let mut current = 0_usize;
    ok!(library, cuCtxPopCurrent_v2(&mut current => *mut usize));
    assert_eq!(current, gpu.context);
    assert_eq!(
        call!(library, cuCtxPopCurrent_v2(std::ptr::null_mut() => *mut usize)),
        INVALID_CONTEXT
    );
    assert_eq!(call!(library, cuCtxSynchronize()), INVALID_CONTEXT);
    ok!(library, cuCtxPushCurrent_v2(gpu.context => usize));
    ok!(library, cuCtxPopCurrent_v2(std::ptr::null_mut() => *mut usize));
    ok!(library, cuCtxSetCurrent(gpu.context => usize));
    let mut value = 0_usize;
    ok!(library, cuCtxSetLimit(0 => u32, 4096 => usize));
    ok!(library, cuCtxGetLimit(&mut value => *mut usize, 0 => u32));
    assert_eq!(value, 4096);
    let (mut flags, mut active) = (0_u32, 0);
    ok!(library, cuDevicePrimaryCtxGetState(0 => i32, &mut flags => *mut u32, &mut active => *mut i32));
    assert_eq!(active, 1);
    ok!(library, cuDevicePrimaryCtxRelease_v2(0 => i32));
    ok!(library, cuDevicePrimaryCtxGetState(0 => i32, &mut flags => *mut u32, &mut active => *mut i32));
    assert_eq!(active, 0);
    assert_eq!(
        call!(library, cuCtxSynchronize()),
        INVALID_CONTEXT,
        "the primary context is gone"
    );
    let again = Gpu::new(library);
    assert_eq!(again.free(), start);
}

/// Runs `child` in a process made by fork; gives its exit status.
fn in_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: this process has one thread at each of the calls below, so the child can go on as usual.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for the child just made.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            libc::WEXITSTATUS(status)
        }
    }
}

pub fn fork(library: Library) {
    // Before anything is initialised, a child is a program like any other.
    let early = in_child(|| {
        let gpu = Gpu::new(library);
        let address = gpu.alloc(4 * MIB);
        gpu.write(address, b"child");
        0
    });
    assert_eq!(early, 0);
    let gpu = Gpu::new(library);
    let address = gpu.alloc(4 * MIB);
    gpu.write(address, b"parent");
    let start = gpu.free();
    let late = in_child(|| {
        let mut other = 0_u64;
        let results = [
            call!(library, cuInit(0 => u32)),
            call!(library, cuMemAlloc_v2(&mut other => *mut u64, MIB => usize)),
            call!(library, cuMemFree_v2(address => u64)),
        ];
        i32::from(results != [NOT_INITIALIZED; 3])
    });
    assert_eq!(late, 0, "a child of an initialised program has no GPU");
    assert_eq!(gpu.read(address, 6), b"parent", "and takes none away");
    assert_eq!(gpu.free(), start);
}

/// Starts the other half of a case as a program of its own.
fn other(case: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.arg(case).stdin(Stdio::piped());
    command
}

pub fn ipc(gpu: Gpu) {
    let big = gpu.alloc(64 * MIB);
    let address = gpu.alloc(100);
    gpu.write(address, b"from the first");
    let mut handle = [0_u8; 64];
    ok!(gpu.library, cuIpcGetMemHandle(&mut handle => *mut [u8; 64], address => u64));
    let (mut own, copy) = (0_u64, Handle(handle));
    let got =
        call!(gpu.library, cuIpcOpenMemHandle_v2(&mut own => *mut u64, copy => Handle, 1 => u32));
    assert_eq!(
        got, INVALID_CONTEXT,
        "a process does not import its own memory"
    );
    let free = gpu.free();
    let mut child = other("ipc_other").spawn().expect("the other half starts");
    child
        .stdin
        .take()
        .expect("it reads")
        .write_all(&handle)
        .expect("it takes the handle");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(gpu.read(address, 15), b"from the second");
    assert_eq!(gpu.free(), free);
    gpu.release(big);
}

/// `CUipcMemHandle`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct Handle([u8; 64]);

pub fn ipc_other(gpu: Gpu) {
    let mut handle = [0_u8; 64];
    std::io::stdin()
        .read_exact(&mut handle)
        .expect("the first half sends a handle");
    let free = gpu.free();
    let mut address = 0_u64;
    ok!(gpu.library, cuIpcOpenMemHandle_v2(&mut address => *mut u64, Handle(handle) => Handle, 1 => u32));
    assert_eq!(gpu.free(), free, "an import takes no memory");
    assert_eq!(gpu.read(address, 14), b"from the first");
    gpu.write(address, b"from the second");
    ok!(gpu.library, cuIpcCloseMemHandle(address => u64));
    assert_eq!(
        call!(gpu.library, cuIpcCloseMemHandle(address => u64)),
        INVALID_VALUE
    );
}

pub fn shared_file(gpu: Gpu) {
    let library = gpu.library;
    let (size, props) = (64 * MIB, props());
    let (mut physical, mut file) = (0_usize, -1);
    ok!(library, cuMemCreate(&mut physical => *mut usize, size => usize, &props => *const [u32; 8], 0 => u64));
    ok!(library, cuMemExportToShareableHandle(&mut file => *mut i32, physical => usize, 1 => u32, 0 => u64));
    let address = map_physical(gpu, physical, size);
    gpu.write(address, b"from the first");
    // SAFETY: the descriptor is this process's own; without the flag the other half inherits it.
    assert_eq!(unsafe { libc::fcntl(file, libc::F_SETFD, 0) }, 0);
    let mut child = other("shared_file_other")
        .stdout(Stdio::piped())
        .spawn()
        .expect("the other half starts");
    let mut to = child.stdin.take().expect("it reads");
    writeln!(to, "{file} {size}").expect("it takes the number");
    let mut said = String::new();
    let mut from = std::io::BufReader::new(child.stdout.take().expect("it writes"));
    from.read_line(&mut said).expect("it says when it is done");
    assert_eq!(said, "imported\n");
    // All of this process's hold goes; the other's stays.
    let free = gpu.free();
    ok!(library, cuMemUnmap(address => u64, size => usize));
    ok!(library, cuMemRelease(physical => usize));
    // SAFETY: the descriptor is this process's own and is not used again.
    unsafe { libc::close(file) };
    assert_eq!(gpu.free(), free, "the other half keeps the memory");
    writeln!(to, "go on").expect("it waits for a word");
    assert!(child.wait().expect("it ends").success());
}

/// Maps physical memory somewhere; gives the address.
fn map_physical(gpu: Gpu, physical: usize, size: usize) -> u64 {
    let (library, mut address) = (gpu.library, 0_u64);
    ok!(library, cuMemAddressReserve(&mut address => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => u64));
    ok!(library, cuMemMap(address => u64, size => usize, 0 => usize, physical => usize, 0 => u64));
    let access = [1_u32, 0, 3];
    ok!(library, cuMemSetAccess(address => u64, size => usize, &access => *const [u32; 3], 1 => usize));
    address
}

pub fn shared_file_other(gpu: Gpu) {
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .expect("the first half sends a number");
    let (file, size) = line.trim().split_once(' ').expect("a number and a size");
    let (file, size): (usize, usize) = (
        file.parse().expect("a number"),
        size.parse().expect("a size"),
    );
    let mut physical = 0_usize;
    ok!(gpu.library, cuMemImportFromShareableHandle(&mut physical => *mut usize, file => usize, 1 => u32));
    let address = map_physical(gpu, physical, size);
    assert_eq!(gpu.read(address, 14), b"from the first");
    println!("imported");
    std::io::stdin()
        .read_line(&mut line)
        .expect("the first half goes on");
    assert_eq!(
        gpu.read(address, 14),
        b"from the first",
        "the memory outlives its maker's hold"
    );
    let null = std::fs::File::open("/dev/null").expect("there is one");
    let number = null.as_raw_fd() as usize;
    let got = call!(gpu.library, cuMemImportFromShareableHandle(&mut physical => *mut usize, number => usize, 1 => u32));
    assert_eq!(got, INVALID_VALUE, "a file that stands for no memory");
}
