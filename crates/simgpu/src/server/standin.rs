//! Stand-ins for open device files, and how the server learns that the last descriptor of one is gone.
//!
//! A stand-in is a large sparse memfd, opened again through `/proc/self/fd` and handed out: that second open file is
//! the driver's `struct file`, (device, inode) its name. The server takes an exclusive `flock` on it before it gives it
//! away. The lock belongs to the open file, so it is held exactly as long as any descriptor (dup, fork, in flight by
//! SCM_RIGHTS) or mapping of it exists; trying for the lock through the first open file answers whether that is over.
//! inotify says when to try. Its events could not be counted instead: equal ones in a row are merged.

use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::proto::FileId;
use crate::wire::file_id;

/// A mapping's offset is its address, so a stand-in is as long as a user address space.
const LENGTH: i64 = 1 << 47;

/// A fresh stand-in.
pub struct StandIn {
    pub id: FileId,
    /// The server's way to the pages and to the lock.
    pub pages: OwnedFd,
    /// What the caller gets; the server must drop its copy.
    pub handed_out: OwnedFd,
}

/// Watches stand-ins for the end of their open file.
pub struct Watch {
    inotify: OwnedFd,
    by_descriptor: HashMap<i32, FileId>,
    by_file: HashMap<FileId, i32>,
    /// Files of which some descriptor has been closed since they were last found held.
    suspects: BTreeSet<FileId>,
}

fn owned(descriptor: libc::c_int) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call that returned it has just made this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn lock(file: &OwnedFd, operation: libc::c_int) -> bool {
    // SAFETY: flock touches no memory.
    unsafe { libc::flock(file.as_raw_fd(), operation) == 0 }
}

/// Whether the open file that was handed out is gone, asked through the server's own.
pub fn is_over(pages: &OwnedFd) -> bool {
    let over = lock(pages, libc::LOCK_EX | libc::LOCK_NB);
    if over {
        lock(pages, libc::LOCK_UN);
    }
    over
}

impl Watch {
    pub fn new() -> io::Result<Watch> {
        // SAFETY: inotify_init1 touches no memory.
        let inotify = owned(unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) })?;
        Ok(Watch {
            inotify,
            by_descriptor: HashMap::new(),
            by_file: HashMap::new(),
            suspects: BTreeSet::new(),
        })
    }

    /// Makes a stand-in and watches it.
    pub fn open(&mut self, name: &str) -> io::Result<StandIn> {
        let name = CString::new(name)?;
        // SAFETY: the name is a live C string.
        let pages = owned(unsafe {
            libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        })?;
        // SAFETY: ftruncate touches no memory of this process.
        if unsafe { libc::ftruncate(pages.as_raw_fd(), LENGTH) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Whoever has it may write to it, but not cut off what the server has mapped.
        // SAFETY: F_ADD_SEALS takes a number and touches no memory.
        if unsafe { libc::fcntl(pages.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let path = format!("/proc/self/fd/{}", pages.as_raw_fd());
        let watched = CString::new(path.as_str())?;
        let mask = libc::IN_CLOSE_WRITE | libc::IN_CLOSE_NOWRITE;
        // SAFETY: the path is a live C string.
        let watch =
            unsafe { libc::inotify_add_watch(self.inotify.as_raw_fd(), watched.as_ptr(), mask) };
        if watch < 0 {
            return Err(io::Error::last_os_error());
        }
        let id = file_id(pages.as_fd())?;
        self.by_descriptor.insert(watch, id);
        self.by_file.insert(id, watch);
        let handed_out = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) if lock(&OwnedFd::from(file.try_clone()?), libc::LOCK_EX) => {
                OwnedFd::from(file)
            }
            failed => {
                self.forget(id);
                return Err(failed.err().unwrap_or_else(io::Error::last_os_error));
            }
        };
        Ok(StandIn {
            id,
            pages,
            handed_out,
        })
    }

    /// A file is over: the watch would keep its inode.
    pub fn forget(&mut self, id: FileId) {
        if let Some(watch) = self.by_file.remove(&id) {
            self.by_descriptor.remove(&watch);
            // SAFETY: inotify_rm_watch touches no memory.
            unsafe { libc::inotify_rm_watch(self.inotify.as_raw_fd(), watch) };
        }
        self.suspects.remove(&id);
    }

    /// Files of which a descriptor has been closed since the last call. The lock of a file that is over is let go of
    /// just after its event, so whoever finds a suspect held says so ([`Watch::look_again`]).
    pub fn suspects(&mut self) -> BTreeSet<FileId> {
        const HEADER: usize = size_of::<libc::inotify_event>();
        let mut buffer = [0_u8; 4096];
        loop {
            // SAFETY: the buffer is live and as long as the call is told.
            let count = unsafe {
                libc::read(
                    self.inotify.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                )
            };
            let Ok(count @ 1..) = usize::try_from(count) else {
                break;
            };
            let mut rest = &buffer[..count];
            // An event: watch i32, mask u32, cookie u32, length u32, and as many bytes of a name (a file has none).
            while let Some((header, after)) = rest.split_at_checked(HEADER) {
                let word = |at: usize| {
                    u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
                };
                if let Some(&id) = self.by_descriptor.get(&word(0).cast_signed()) {
                    self.suspects.insert(id);
                }
                if word(4) & libc::IN_Q_OVERFLOW != 0 {
                    self.suspects.extend(self.by_file.keys());
                }
                rest = after.get(word(12) as usize..).unwrap_or_default();
            }
        }
        std::mem::take(&mut self.suspects)
    }

    /// A suspect is still held; it stays one for the next time.
    pub fn look_again(&mut self, id: FileId) {
        self.suspects.insert(id);
    }

    /// Descriptor to poll for readiness.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.inotify.try_clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_over_when_its_last_descriptor_or_mapping_goes_and_not_before() {
        let mut watch = Watch::new().unwrap();
        let StandIn {
            id,
            pages,
            handed_out,
        } = watch.open("test").unwrap();
        assert!(!is_over(&pages));
        let copy = handed_out.try_clone().unwrap();
        drop(handed_out);
        assert!(watch.suspects().is_empty());
        assert!(!is_over(&pages));
        // SAFETY: a new mapping of a page nobody else uses.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                copy.as_raw_fd(),
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        drop(copy);
        assert!(!is_over(&pages), "a mapping holds the file");
        // SAFETY: unmaps the page mapped above, to which no reference was made.
        unsafe { libc::munmap(page, 4096) };
        assert_eq!(watch.suspects(), BTreeSet::from([id]));
        assert!(is_over(&pages));
        watch.forget(id);
        assert!(watch.suspects().is_empty());
    }

    #[test]
    fn opening_a_stand_in_again_neither_prolongs_nor_ends_it() {
        let mut watch = Watch::new().unwrap();
        let StandIn {
            id,
            pages,
            handed_out,
        } = watch.open("test").unwrap();
        let again = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(format!("/proc/self/fd/{}", pages.as_raw_fd()))
        };
        let (first, second) = (again().unwrap(), again().unwrap());
        drop(first);
        assert_eq!(watch.suspects(), BTreeSet::from([id]));
        assert!(!is_over(&pages));
        drop(handed_out);
        assert!(is_over(&pages));
        drop(second);
    }
}
