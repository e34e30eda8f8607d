//! Address spaces that are more than one process's: managed memory lies in the address space, whoever mapped it.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::fill::human;
use super::shapes::{Watch, close_here, forked, wait_for};
use super::{Context, Outcome, bytes};
use crate::GIB;
use crate::raw::{Fault, Uvm};

/// Longer than an audit and the grace of a mapping together.
const A_WHILE: Duration = Duration::from_millis(2500);
/// Stack of a process that only waits.
const STACK: usize = 64 << 10;

/// Waits until nobody has the other end of the socket, and makes no call of the driver.
extern "C" fn wait_for_end(socket: *mut libc::c_void) -> libc::c_int {
    let mut byte = 0u8;
    // SAFETY: one byte of this stack is read into; the process shares all memory, so it ends without clean-up.
    unsafe {
        libc::read(socket as usize as i32, (&raw mut byte).cast(), 1);
        libc::_exit(0)
    }
}

/// Starts a process of its own in this address space.
fn sharer(socket: &UnixStream) -> io::Result<()> {
    let stack = vec![0u8; STACK].leak();
    let top = stack.as_mut_ptr_range().end.cast();
    let socket = socket.as_raw_fd() as usize as *mut libc::c_void;
    // SAFETY: the stack is its own and never freed; it runs one function, which touches no other memory.
    match unsafe { libc::clone(wait_for_end, top, libc::CLONE_VM, socket) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Maps managed memory in a process that goes, by `go`, while another one stays in its address space.
fn outlives(context: &Context, how: &str, go: impl FnOnce() -> i32) -> Outcome {
    let watch = Watch::new(context)?;
    let (ours, theirs) = UnixStream::pair()?;
    let (said, say) = UnixStream::pair()?;
    let maker = forked(|| {
        close_here(&ours);
        close_here(&said);
        let made = || -> Result<(), Fault> {
            let uvm = Uvm::open(&context.node)?;
            std::mem::forget(uvm.managed(GIB)?);
            sharer(&theirs)?;
            std::mem::forget(uvm);
            (&say).write_all(&[1])?;
            Ok(())
        };
        match made() {
            Ok(()) => go(),
            Err(_) => 1,
        }
    })?;
    drop((theirs, say));
    if (&said).read(&mut [0])? == 0 {
        return Err("the maker did not get its memory".into());
    }
    std::thread::sleep(A_WHILE);
    let used = watch.used()?;
    drop(ours);
    wait_for(maker);
    let after = watch.settles(0)?;
    Ok(bytes(
        used,
        GIB,
        after == 0,
        format!(
            "managed memory of an address space whose process {how}: {} charged, {} when all had ended",
            human(used),
            human(after)
        ),
    ))
}

/// A process maps managed memory and ends; another one in its address space stays.
pub(super) fn outlives_exit(context: &Context) -> Outcome {
    outlives(context, "has ended", || 0)
}

/// A process maps managed memory and executes another program; another one in its address space stays.
pub(super) fn outlives_exec(context: &Context) -> Outcome {
    outlives(context, "has executed another program", || {
        use std::os::unix::process::CommandExt;
        let failed = std::process::Command::new("sleep").arg("3").exec();
        eprintln!("sleep: {failed}");
        1
    })
}
