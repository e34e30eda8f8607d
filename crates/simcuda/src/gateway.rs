//! The way to the simulated node: opens its device files and makes ioctls on them.
//!
//! Every ioctl is first the real `ioctl(2)` on the stand-in descriptor. With a guard it is notified and answered;
//! without one (or where the guard lets it run here) the kernel says ENOTTY, and the same request goes to the node's
//! own process: that is "the kernel executes it natively".
//!
//! Each thread has a connection of its own, so no lock is held over a call, and a child made by fork has none of its
//! parent's locks to wait for (the client itself connects anew in a new process).

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rm::Abi;
use simgpu::client::{Client, Node};

thread_local! {
    static CLIENT: RefCell<Option<Client>> = const { RefCell::new(None) };
}

/// Runs `use_it` with this thread's connection.
pub fn with_client<T>(use_it: impl FnOnce(&mut Client) -> io::Result<T>) -> io::Result<T> {
    let gone = || io::Error::from_raw_os_error(libc::ENODEV);
    CLIENT
        .try_with(|slot| {
            let mut slot = slot.try_borrow_mut().map_err(|_| gone())?;
            if slot.is_none() {
                let socket = std::env::var_os("GPUSLICE_SIM").ok_or_else(gone)?;
                *slot = Some(Client::connect(Path::new(&socket))?);
            }
            use_it(slot.as_mut().ok_or_else(gone)?)
        })
        .unwrap_or_else(|_| Err(gone()))
}

/// The kernel interface of the node's driver.
pub fn abi() -> io::Result<&'static Abi> {
    with_client(Client::abi)
}

/// Opens a device file of the node.
pub fn open(node: Node) -> io::Result<OwnedFd> {
    with_client(|client| client.open(node))
}

/// Makes an ioctl; `argument` points to the parameter block that `request` asks for.
pub fn ioctl(file: BorrowedFd<'_>, request: u32, argument: *mut u8) -> io::Result<()> {
    loop {
        // SAFETY: the callers pass the address of a live `Block` of the size that the request has.
        let answer = unsafe { libc::ioctl(file.as_raw_fd(), request.into(), argument) };
        if answer >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOTTY) => break,
            // A signal came before a guard had taken the call: it has not been executed, nor begun.
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
    with_client(|client| client.ioctl(file, request, argument)).map(|_| ())
}
