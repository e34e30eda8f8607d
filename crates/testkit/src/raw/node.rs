//! Where the device files are, and how an ioctl reaches the driver.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rm::Abi;
use simgpu::client::{Client as Connection, Node as StandIn};
use simgpu::usage::Usage;
use simgpu::work::{Work, WorkResult};

use super::{Answer, Block};

/// A device file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum File {
    /// `/dev/nvidiactl`
    Control,
    /// `/dev/nvidiaN`
    Gpu(u32),
    /// `/dev/nvidia-uvm`
    Uvm,
}

/// The driver of this machine, or a simulated node's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    socket: Option<PathBuf>,
}

thread_local! {
    /// This thread's connection to a simulated node, so that nothing is locked over a call and a child made by fork
    /// inherits no lock.
    static CONNECTION: RefCell<Option<(PathBuf, Connection)>> = const { RefCell::new(None) };
}

impl Node {
    /// The simulated node that `GPUSLICE_SIM` names, else this machine's driver.
    pub fn from_environment() -> Node {
        Node {
            socket: std::env::var_os(simgpu::SOCKET_VARIABLE).map(PathBuf::from),
        }
    }

    /// The simulated node behind a socket.
    pub fn simulated(socket: &Path) -> Node {
        Node {
            socket: Some(socket.to_owned()),
        }
    }

    /// The simulated node's socket, if it is one.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    fn connected<T>(&self, use_it: impl FnOnce(&mut Connection) -> io::Result<T>) -> io::Result<T> {
        let Some(socket) = &self.socket else {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        };
        CONNECTION.with_borrow_mut(|slot| {
            if slot.as_ref().is_none_or(|(to, _)| to != socket) {
                *slot = Some((socket.clone(), Connection::connect(socket)?));
            }
            let Some((_, connection)) = slot else {
                return Err(io::Error::from_raw_os_error(libc::ENODEV));
            };
            use_it(connection)
        })
    }

    /// The kernel interface of the driver.
    ///
    /// # Errors
    /// No driver, or one of a branch that nobody knows.
    pub fn abi(&self) -> Answer<&'static Abi> {
        if self.socket.is_some() {
            return Ok(self.connected(Connection::abi)?);
        }
        let text = std::fs::read_to_string("/proc/driver/nvidia/version")?;
        let found = text
            .split_whitespace()
            .find_map(|word| rm::for_driver(word).ok());
        found
            .map(|found| found.abi)
            .ok_or(super::Fault::Os(libc::ENODEV))
    }

    /// An empty block of a UVM call, as large as this driver's.
    ///
    /// # Errors
    /// As [`Node::abi`]; `EINVAL` where the driver has no such call.
    pub fn uvm_block(&self, request: u32) -> Answer<Block> {
        let entry = self.abi()?.uvm(request);
        let entry = entry.ok_or(super::Fault::Os(libc::EINVAL))?;
        Ok(Block::new(entry.size.into()))
    }

    /// Opens a device file. The descriptor is close-on-exec.
    ///
    /// # Errors
    /// As open(2).
    pub fn open(&self, file: File) -> io::Result<OwnedFd> {
        if self.socket.is_some() {
            let stand_in = match file {
                File::Control => StandIn::Control,
                File::Gpu(minor) => StandIn::Gpu(minor),
                File::Uvm => StandIn::Uvm,
            };
            return self.connected(|connection| connection.open(stand_in));
        }
        let path = match file {
            File::Control => "/dev/nvidiactl".to_owned(),
            File::Gpu(minor) => format!("/dev/nvidia{minor}"),
            File::Uvm => "/dev/nvidia-uvm".to_owned(),
        };
        Ok(std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)?
            .into())
    }

    /// Makes an ioctl: the system call, and what the kernel would do with it where nobody took it.
    ///
    /// # Errors
    /// As ioctl(2).
    pub fn ioctl(&self, file: BorrowedFd<'_>, request: u32, block: &mut Block) -> Answer<i32> {
        match system_call(file, request, block) {
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => self.natively(file, request, block),
            answered => Ok(answered?),
        }
    }

    /// Only what the kernel does with an ioctl that was let through. On a simulated node this is what a racing thread
    /// makes of a call: other parameters than those that were looked at.
    ///
    /// # Errors
    /// As ioctl(2); `ENOTTY` where there is a real driver, whose calls all go through the kernel.
    pub fn natively(&self, file: BorrowedFd<'_>, request: u32, block: &mut Block) -> Answer<i32> {
        if self.socket.is_none() {
            return Err(super::Fault::Os(libc::ENOTTY));
        }
        Ok(self.connected(|connection| connection.ioctl(file, request, block.as_mut_ptr()))?)
    }

    /// As [`Node::ioctl`] with a block at an address, which may be one where nothing is, or of what must not be there.
    ///
    /// # Errors
    /// As ioctl(2): `EFAULT` for such an address.
    pub(crate) fn ioctl_at(&self, file: BorrowedFd<'_>, request: u32, address: u64) -> Answer<i32> {
        // SAFETY: the kernel and the driver check every address they are given. They write where a block points, which
        // for the programs of this crate is memory that they reach by raw pointers alone, or none of theirs.
        let answer = unsafe { libc::ioctl(file.as_raw_fd(), request.into(), address) };
        if answer >= 0 {
            return Ok(answer);
        }
        match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENOTTY) && self.socket.is_some() => {
                Ok(self
                    .connected(|connection| connection.ioctl(file, request, address as *mut u8))?)
            }
            e => Err(e.into()),
        }
    }

    /// Who has had the engines of a simulated GPU, by its own clock. Nobody in a slice is told.
    ///
    /// # Errors
    /// `ENODEV` on a real driver; what the socket says.
    pub fn usage(&self, gpu: u32) -> io::Result<Usage> {
        self.connected(|connection| connection.usage(gpu))
    }

    /// Submits work to a channel. On a card this would be a write to mapped memory, which this crate does not do.
    ///
    /// # Errors
    /// `ENODEV` on a real driver; what the socket says.
    pub fn submit(&self, work: &Work) -> io::Result<WorkResult> {
        self.connected(|connection| connection.submit(work))
    }
}

/// Only the system call.
///
/// # Errors
/// As ioctl(2).
pub(crate) fn system_call(
    file: BorrowedFd<'_>,
    request: u32,
    block: &mut Block,
) -> io::Result<i32> {
    // SAFETY: the block is live and at least as long as the size in the request, or, for a UVM word, as long as the
    // caller knows the call's block to be.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), request.into(), block.as_mut_ptr()) };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}
