//! Address spaces that are more than one process's: managed memory lies in the address space, whoever mapped it.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use super::fill::human;
use super::shapes::{Watch, close_here, forked, wait_for};
use super::{Context, Outcome, bytes};
use crate::raw::{Fault, Uvm};
use crate::{GIB, MIB};

/// Longer than an audit and the grace of a mapping together.
const A_WHILE: Duration = Duration::from_millis(2500);
/// Stack of a process that only waits.
const STACK: usize = 64 << 10;
/// Where no program has anything.
const PLACE: u64 = 0x2000_0000_0000;

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

/// When it is looked at what is charged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// A while after the memory was made.
    Soon,
    /// When the process that made it has ended, and was content.
    AtItsEnd,
}

/// Maps managed memory in a process that goes, by `go`, while another one stays in its address space.
fn outlives(context: &Context, how: &str, look: Look, go: impl FnOnce() -> i32) -> Outcome {
    let watch = Watch::new(context)?;
    let (ours, theirs) = UnixStream::pair()?;
    let (said, say) = UnixStream::pair()?;
    let maker = forked(|| {
        close_here(&ours);
        close_here(&said);
        let made = || -> Result<(), Fault> {
            let uvm = Uvm::open(&context.node)?;
            std::mem::forget(uvm.managed_at(PLACE, GIB)?);
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
    let early = (look == Look::AtItsEnd).then(|| wait_for(maker));
    std::thread::sleep(A_WHILE);
    let used = watch.used()?;
    drop(ours);
    let status = early.unwrap_or_else(|| wait_for(maker));
    let content = look == Look::Soon || status == 0;
    let after = watch.settles(0)?;
    Ok(bytes(
        used,
        GIB,
        after == 0 && content,
        format!(
            "managed memory of an address space whose process {how}: {} charged, {} when all had ended, its status {status}",
            human(used),
            human(after)
        ),
    ))
}

/// A process maps managed memory and ends; another one in its address space stays.
pub(super) fn outlives_exit(context: &Context) -> Outcome {
    outlives(context, "has ended", Look::Soon, || 0)
}

/// A process maps managed memory and executes another program; another one in its address space stays.
pub(super) fn outlives_exec(context: &Context) -> Outcome {
    outlives(context, "has executed another program", Look::Soon, || {
        execute(Command::new("sleep").arg("3"))
    })
}

/// A process maps managed memory and executes a program that maps more, again and again; then that ends, while another
/// process stays in the first address space.
pub(super) fn outlives_more(context: &Context) -> Outcome {
    let how = "has mapped elsewhere, and ended";
    outlives(context, how, Look::AtItsEnd, || {
        let again = ["__tenant", "maps_again", &context.quota.to_string()];
        execute(Command::new("/proc/self/exe").args(again))
    })
}

/// Maps managed memory as often as makes guard let go of address spaces; where it is charged in another one, none.
pub(super) fn maps_again(context: &Context) -> Outcome {
    const OFTEN: usize = 10;
    let often = || -> Result<Result<(), Fault>, Fault> {
        let uvm = Uvm::open(&context.node)?;
        for _ in 0..OFTEN {
            drop(uvm.managed(MIB)?);
        }
        Ok(uvm.managed_at(PLACE, GIB).map(drop))
    };
    // By a thread that guard does not know from before.
    let there = std::thread::scope(|scope| scope.spawn(often).join());
    let there = there.unwrap_or(Err(Fault::Os(libc::EIO)))?;
    // Until audits have given back what was unmapped.
    std::thread::sleep(A_WHILE);
    if there != Err(Fault::Os(libc::ENOMEM)) {
        return Err(format!("where it is charged already: {there:?}").into());
    }
    // The finding is that of whoever waits for this.
    std::process::exit(0)
}

fn execute(program: &mut Command) -> i32 {
    let failed = program.exec();
    eprintln!("{program:?}: {failed}");
    1
}
