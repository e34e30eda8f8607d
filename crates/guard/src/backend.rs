//! What lies behind the tenant's descriptors: the NVIDIA driver, or a simulated one.
//!
//! Guard classifies a descriptor and executes a call through [`Backend`] only, so that the path that runs on a card is
//! the path that the tests run without one.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use crate::tenant::lock;
use crate::{procfs, sys};

/// Which device file a descriptor belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Node {
    /// `/dev/nvidiactl`.
    Control,
    /// `/dev/nvidiaN`.
    Gpu(u32),
    /// `/dev/nvidia-uvm`.
    Uvm,
}

/// Names one open file description for as long as it is open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileId(pub u64);

/// Tells open file descriptions apart without keeping them open, and tells when they are gone.
pub trait FileWatch: Send {
    /// The name of the file behind `fd`; the same as last time if it is the same open file description.
    ///
    /// # Errors
    /// The kernel cannot watch it.
    fn identify(&mut self, fd: BorrowedFd<'_>) -> io::Result<FileId>;

    /// The files whose last descriptor and mapping has gone since the last call.
    ///
    /// # Errors
    /// The kernel cannot tell; nothing may be taken for gone.
    fn gone(&mut self) -> io::Result<Vec<FileId>>;
}

/// A driver: the real one or a simulated one.
pub trait Backend: Send + Sync {
    /// Which of the driver's files `fd` is, if any.
    ///
    /// # Errors
    /// The question could not be asked; the call that needs the answer is refused.
    fn classify(&self, fd: BorrowedFd<'_>) -> io::Result<Option<Node>>;

    /// Whether a line of `/proc/PID/maps` (device as `major:minor` in hexadecimal, inode, path) maps the UVM file.
    fn maps_uvm(&self, device: &str, inode: u64, path: &str) -> bool;

    /// Executes an ioctl on a file of the driver. `block` is what the request's argument points to; it is at least as
    /// long as the driver reads and writes, and pointers inside it point into live buffers of the caller.
    ///
    /// # Errors
    /// As ioctl(2).
    fn ioctl(&self, fd: BorrowedFd<'_>, request: u32, block: &mut [u8]) -> io::Result<i32>;

    /// Opens a file of the driver for ourselves.
    ///
    /// # Errors
    /// As open(2).
    fn open(&self, node: Node) -> io::Result<OwnedFd>;

    /// The driver's version, as `580.159.04`.
    ///
    /// # Errors
    /// No driver is loaded.
    fn driver_version(&self) -> io::Result<String>;

    /// A new watch over open files.
    ///
    /// # Errors
    /// The kernel lacks what it needs.
    fn watch(&self) -> io::Result<Box<dyn FileWatch>>;

    /// Called once when the process that holds it has taken its final identity (user, capabilities) and before it
    /// locks itself in.
    ///
    /// # Errors
    /// What the backend needs to prepare cannot be had.
    fn settle(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The NVIDIA driver of this machine.
#[derive(Debug)]
pub struct KernelBackend {
    uvm_major: u32,
    /// Where the UVM file was seen: major and minor of the file system's device, inode. Its path may be any: a file can
    /// be bound, linked or renamed.
    uvm_inodes: Mutex<HashSet<(u32, u32, u64)>>,
}

/// Major number of `/dev/nvidiactl` and `/dev/nvidiaN`.
const NVIDIA_MAJOR: u32 = 195;
/// Minor number of `/dev/nvidiactl`.
const CONTROL_MINOR: u32 = 255;
/// Minors from here on belong to other devices of the driver (modeset, vGPU), which no tenant needs.
const MAX_GPUS: u32 = 248;

impl KernelBackend {
    /// Finds the driver's devices.
    ///
    /// # Errors
    /// `/proc/devices` does not list `nvidia-uvm`: the driver, or its UVM module, is not loaded.
    pub fn new() -> io::Result<KernelBackend> {
        let devices = std::fs::read_to_string("/proc/devices")?;
        let uvm_major = procfs::parse_major(&devices, "nvidia-uvm").ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "the kernel lists no nvidia-uvm device: load the NVIDIA driver with its nvidia-uvm module")
        })?;
        Ok(KernelBackend {
            uvm_major,
            uvm_inodes: Mutex::default(),
        })
    }
}

impl Backend for KernelBackend {
    fn classify(&self, fd: BorrowedFd<'_>) -> io::Result<Option<Node>> {
        let (on, inode, device, is_char) = sys::stat_fd(fd)?;
        if !is_char {
            return Ok(None);
        }
        let (major, minor) = (libc::major(device), libc::minor(device));
        Ok(match (major, minor) {
            (NVIDIA_MAJOR, CONTROL_MINOR) => Some(Node::Control),
            (NVIDIA_MAJOR, n) if n < MAX_GPUS => Some(Node::Gpu(n)),
            (m, 0) if m == self.uvm_major => {
                lock(&self.uvm_inodes).insert((libc::major(on), libc::minor(on), inode));
                Some(Node::Uvm)
            }
            _ => None,
        })
    }

    fn maps_uvm(&self, device: &str, inode: u64, path: &str) -> bool {
        let number = |hex| u32::from_str_radix(hex, 16).ok();
        let on = device
            .split_once(':')
            .and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
        if on.is_some_and(|(m, n)| lock(&self.uvm_inodes).contains(&(m, n, inode))) {
            return true;
        }
        // On some file systems the two numbers are not those that stat(2) gives; there the name tells.
        path.rsplit('/')
            .next()
            .is_some_and(|name| name == "nvidia-uvm" || name == "nvidia-uvm (deleted)")
    }

    fn ioctl(&self, fd: BorrowedFd<'_>, request: u32, block: &mut [u8]) -> io::Result<i32> {
        sys::ioctl(fd, request, block)
    }

    fn open(&self, node: Node) -> io::Result<OwnedFd> {
        let path = match node {
            Node::Control => "/dev/nvidiactl".to_owned(),
            Node::Gpu(minor) => format!("/dev/nvidia{minor}"),
            Node::Uvm => "/dev/nvidia-uvm".to_owned(),
        };
        Ok(std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)?
            .into())
    }

    fn driver_version(&self) -> io::Result<String> {
        let text = std::fs::read_to_string("/proc/driver/nvidia/version")?;
        procfs::parse_driver_version(&text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "/proc/driver/nvidia/version names no version",
            )
        })
    }

    fn watch(&self) -> io::Result<Box<dyn FileWatch>> {
        Ok(Box::new(EpollWatch::new()?))
    }
}

/// Watches files through epoll(7): an epoll set names an open file description without keeping it open, and drops its
/// entry when the last descriptor and mapping has gone. `/proc/self/fdinfo` lists the entries that are left.
///
/// An entry is keyed by (open file description, descriptor number), so each watched file gets a number of its own,
/// held by a placeholder; a file is recognised by putting it at that number and asking epoll whether it knows it.
struct EpollWatch {
    epoll: OwnedFd,
    placeholder: OwnedFd,
    /// The number reserved for each watched file.
    slots: HashMap<FileId, OwnedFd>,
    next: u64,
}

impl EpollWatch {
    fn new() -> io::Result<EpollWatch> {
        // SAFETY: the call takes flags and returns a new descriptor or -1.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        let placeholder = std::fs::File::open("/dev/null")?.into();
        Ok(EpollWatch {
            epoll,
            placeholder,
            slots: HashMap::new(),
            next: 1,
        })
    }

    fn control(&self, op: i32, slot: RawFd, id: FileId) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: 0,
            u64: id.0,
        };
        // SAFETY: `event` is live; epoll and slot are descriptors of ours.
        if unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), op, slot, &mut event) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// dup3(2) onto a number that we hold.
fn place(file: RawFd, slot: RawFd) -> io::Result<()> {
    // SAFETY: `slot` is a descriptor number held by an `OwnedFd` of the caller, which keeps owning it.
    if unsafe { libc::dup3(file, slot, libc::O_CLOEXEC) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

impl FileWatch for EpollWatch {
    fn identify(&mut self, fd: BorrowedFd<'_>) -> io::Result<FileId> {
        for (&id, slot) in &self.slots {
            let slot = slot.as_raw_fd();
            place(fd.as_raw_fd(), slot)?;
            let known = self.control(libc::EPOLL_CTL_MOD, slot, id);
            place(self.placeholder.as_raw_fd(), slot)?;
            match known {
                Ok(()) => return Ok(id),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => return Err(e),
            }
        }
        let id = FileId(self.next);
        self.next += 1;
        let slot = self.placeholder.try_clone()?;
        place(fd.as_raw_fd(), slot.as_raw_fd())?;
        let added = self.control(libc::EPOLL_CTL_ADD, slot.as_raw_fd(), id);
        place(self.placeholder.as_raw_fd(), slot.as_raw_fd())?;
        added?;
        self.slots.insert(id, slot);
        Ok(id)
    }

    fn gone(&mut self) -> io::Result<Vec<FileId>> {
        let listing =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.epoll.as_raw_fd()))?;
        let alive = procfs::parse_epoll_entries(&listing);
        let gone: Vec<FileId> = self
            .slots
            .keys()
            .filter(|id| !alive.contains(&id.0))
            .copied()
            .collect();
        for id in &gone {
            self.slots.remove(id);
        }
        Ok(gone)
    }
}

/// A descriptor lent out as [`BorrowedFd`], for signatures that want one.
pub(crate) fn lend(fd: &OwnedFd) -> BorrowedFd<'_> {
    fd.as_fd()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redteam_the_uvm_file_is_recognised_in_a_mapping_under_any_path() {
        use std::os::unix::fs::OpenOptionsExt;
        // A character device with minor 0 stands for it.
        let stand_in: OwnedFd = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open("/dev/tty")
            .unwrap()
            .into();
        let (on, inode, device, _) = sys::stat_fd(stand_in.as_fd()).unwrap();
        let backend = KernelBackend {
            uvm_major: libc::major(device),
            uvm_inodes: Mutex::default(),
        };
        let shown = format!("{:02x}:{:02x}", libc::major(on), libc::minor(on));
        assert!(!backend.maps_uvm(&shown, inode, "/tmp/bound"));
        assert_eq!(backend.classify(stand_in.as_fd()).unwrap(), Some(Node::Uvm));
        assert!(backend.maps_uvm(&shown, inode, "/tmp/bound"));
        assert!(!backend.maps_uvm(&shown, inode + 1, "/tmp/bound"));
        assert!(backend.maps_uvm("00:00", 1, "/dev/nvidia-uvm (deleted)"));
    }

    #[test]
    fn a_watched_file_is_recognised_and_its_end_is_noticed_without_holding_it() {
        let mut watch = EpollWatch::new().unwrap();
        let (a, b) = sys::socket_pair().unwrap();
        let id = watch.identify(lend(&a)).unwrap();
        let other = watch.identify(lend(&b)).unwrap();
        assert_ne!(id, other);
        let copy = a.try_clone().unwrap();
        assert_eq!(
            watch.identify(lend(&copy)).unwrap(),
            id,
            "a duplicate is the same open file"
        );
        drop(a);
        assert_eq!(watch.gone().unwrap(), [], "the duplicate keeps it open");
        drop(copy);
        assert_eq!(watch.gone().unwrap(), [id]);
        drop(b);
        assert_eq!(watch.gone().unwrap(), [other]);
    }
}
