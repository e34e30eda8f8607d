//! The tenant's view of the kernel interface, without any library.
//!
//! Opens `nvidiactl`, `nvidiaN` and `nvidia-uvm` (the device files, or the stand-ins of a simulated node) and makes the
//! real ioctl numbers with parameter blocks of its own. On a simulated node the kernel answers `ENOTTY` to a call that
//! nobody mediates; it then goes to the simulated resource manager, which stands for "the kernel executes it".

mod block;
mod channel;
mod client;
mod device;
mod node;
mod uvm;

use std::fmt;
use std::io;

pub use block::Block;
pub use channel::Channel;
pub use client::{Client, Share};
pub use device::{Device, Pages, VidHeap};
pub(crate) use node::system_call;
pub use node::{File, Node};
pub use uvm::{Managed, Uvm, UvmSpace};

/// Why a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The ioctl itself: an error number.
    Os(i32),
    /// The status word that the driver (or whoever answered for it) wrote into the block.
    Status(u32),
}

impl Fault {
    /// No memory left, as on a full card (`NV_ERR_NO_MEMORY`).
    pub const NO_MEMORY: Fault = Fault::Status(rm::Status::NO_MEMORY.0);
    /// The caller may not do this (`NV_ERR_INSUFFICIENT_PERMISSIONS`).
    pub const NOT_PERMITTED: Fault = Fault::Status(rm::Status::INSUFFICIENT_PERMISSIONS.0);
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Os(number) => write!(f, "{}", io::Error::from_raw_os_error(*number)),
            Fault::Status(status) => write!(f, "status {status:#x}"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Os(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// What a call gives.
pub type Answer<T = ()> = Result<T, Fault>;

/// The request word of a frontend ioctl: read and write, type `F`.
pub fn request(number: u8, size: usize) -> u32 {
    0xc000_0000 | (size as u32 & 0x3fff) << 16 | u32::from(b'F') << 8 | u32::from(number)
}

/// Empty parameters of a class, as large as the driver of any branch reads.
pub(crate) fn params_of(class: u32) -> Block {
    let sizes = rm::branches().filter_map(|abi| abi.class(class));
    Block::new(sizes.map(|entry| entry.size.into()).max().unwrap_or(0))
}

/// Before the status word of an export to a dmabuf stand the sizes of its 128 objects.
pub(crate) const SIZES: usize = 128 * 8;

/// Where a branch has the fields of an export to a dmabuf, and how large its block is.
pub(crate) fn export_layout(abi: &rm::Abi) -> (rm::varying::ExportToDmabufFd, usize) {
    let sizes = abi.escape(rm::nr::EXPORT_TO_DMABUF_FD).map(|e| e.sizes);
    let size = sizes.and_then(|sizes| sizes.first()).copied().unwrap_or(0);
    (abi.layout().export_to_dmabuf_fd, size.into())
}

/// A status word as an answer.
pub(crate) fn checked(status: u32) -> Answer {
    if status == 0 {
        Ok(())
    } else {
        Err(Fault::Status(status))
    }
}
