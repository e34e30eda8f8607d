//! Writes down what ioctls a program makes on files of the simulated node. Loaded before the library (LD_PRELOAD).
//!
//! A line is `alloc CLASS`, `control COMMAND SIZE`, `uvm REQUEST`, `frontend NUMBER SIZE` or `mmap uvm`; a line that
//! starts with `## ` comes from the program, which calls `counter_mark`. Only the first try of a call is seen: what the
//! kernel does not know goes to the node by another way.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::io::Write;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

const SYS_MMAP: c_long = 9;
const SYS_IOCTL: c_long = 16;

fn log(line: &str) {
    let Some(path) = std::env::var_os("CALL_LOG") else {
        return;
    };
    if let Ok(mut file) = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
    {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

fn node_of(fd: c_int) -> Option<String> {
    let target = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    let target = target.to_string_lossy();
    target.contains("nvidia").then(|| target.into_owned())
}

/// Starts a section.
#[unsafe(no_mangle)]
pub extern "C" fn counter_mark(name: *const c_char) {
    // SAFETY: the program passes a string.
    log(&format!(
        "## {}",
        unsafe { CStr::from_ptr(name) }.to_string_lossy()
    ));
}

/// The C library's `ioctl`, with the one argument that every driver takes.
#[unsafe(no_mangle)]
pub extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if let Some(node) = node_of(fd) {
        let (number, size) = (request & 0xff, (request >> 16) & 0x3fff);
        let word = |index: usize| -> u32 {
            // SAFETY: the block has the size that the request says; the callers below stay inside.
            unsafe { argument.cast::<u32>().add(index).read_unaligned() }
        };
        log(&if node.contains("uvm") {
            format!("uvm {request:x}")
        } else {
            match number {
                0x2b => format!("alloc {:x}", word(3)),
                0x2a => format!("control {:x} {}", word(2), word(6)),
                _ => format!("frontend {number:x} {size}"),
            }
        });
    }
    // SAFETY: the program's own call, passed on.
    let result = unsafe { syscall(SYS_IOCTL, c_long::from(fd), request, argument) };
    result as c_int
}

/// The C library's `mmap`.
#[unsafe(no_mangle)]
pub extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    if fd >= 0 && node_of(fd).is_some_and(|node| node.contains("uvm")) {
        log("mmap uvm");
    }
    // SAFETY: the program's own call, passed on.
    let result = unsafe {
        syscall(
            SYS_MMAP,
            address,
            length,
            c_long::from(protection),
            c_long::from(flags),
            c_long::from(fd),
            offset,
        )
    };
    result as *mut c_void
}
