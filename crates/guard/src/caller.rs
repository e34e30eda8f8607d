//! The calling thread: its descriptors and its memory, taken once per call.
//!
//! A [`Caller`] keeps a pidfd of the *thread* (a thread may have a descriptor table of its own) and the memory file of
//! its process. Both stay bound to the task they were opened for, so a reused thread id is never taken for the old one;
//! whether they were opened for the right task is asked with `NOTIF_ID_VALID` after opening.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::stay;
use crate::sys::{self, TenantPtr, Tid};
use crate::tenant::lock;

/// Where a thread's last call had its parameters: a program that calls again calls from the same place more often than
/// not.
#[derive(Clone, Copy, Default, Debug)]
pub struct Guess {
    /// Address of the call's block.
    pub arg: u64,
    /// Address of the parameters that it led to.
    pub params: u64,
    /// Bytes of the parameters; 0: nothing is known.
    pub len: usize,
}

/// What guard holds of one thread of the tenant.
#[derive(Debug)]
pub struct Caller {
    /// Thread id.
    pub tid: Tid,
    /// Its process.
    pub process: Tid,
    pidfd: OwnedFd,
    /// The pidfd is of the whole process (before Linux 6.9), and so is the descriptor table that it gives.
    whole_process: bool,
    /// `/proc/TID/mem`: bound to the address space, not to the number. Absent where it may not be opened.
    memory: Mutex<Option<Arc<File>>>,
    guess: Mutex<Guess>,
}

impl Caller {
    fn open(tid: Tid) -> io::Result<Caller> {
        let process = process_of(tid)?;
        let (pidfd, whole_process) = match sys::pidfd_open(tid, sys::PIDFD_THREAD) {
            Ok(fd) => (fd, false),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                (sys::pidfd_open(process, 0)?, true)
            }
            Err(e) => return Err(e),
        };
        Ok(Caller {
            tid,
            process,
            pidfd,
            whole_process,
            memory: Mutex::new(open_memory(tid)),
            guess: Mutex::default(),
        })
    }

    /// Whether the task that was opened still runs: then its number is still its own.
    fn runs(&self) -> bool {
        match sys::pidfd_kill(self.pidfd.as_fd(), 0) {
            Ok(()) => true,
            // Root's helper may not signal, and learns all the same that there is somebody.
            Err(e) => e.raw_os_error() == Some(libc::EPERM),
        }
    }

    /// A duplicate of the thread's descriptor `fd`.
    ///
    /// # Errors
    /// `EBADF`: it has no such descriptor. `ESRCH`: the thread is gone.
    pub fn descriptor(&self, fd: RawFd) -> io::Result<OwnedFd> {
        // A thread may have left the table of its process at any time.
        if self.whole_process
            && self.tid != self.process
            && !sys::same_file_table(self.tid, self.process)?
        {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        sys::pidfd_getfd(self.pidfd.as_fd(), fd)
    }

    /// Where the thread's last call had its parameters.
    pub fn guess(&self) -> Guess {
        *lock(&self.guess)
    }

    /// Where this call has its parameters.
    pub fn set_guess(&self, guess: Guess) {
        *lock(&self.guess) = guess;
    }

    /// Copies from the tenant, once.
    ///
    /// # Errors
    /// `EFAULT`: not readable there.
    pub fn read(&self, from: TenantPtr, into: &mut [u8]) -> io::Result<()> {
        stay::within(|| sys::read_tenant(self.tid, from, into))
    }

    /// Copies several pieces from the tenant with one system call.
    ///
    /// # Errors
    /// `EFAULT`: not readable there.
    pub fn read_parts(&self, parts: &mut [(TenantPtr, &mut [u8])]) -> io::Result<()> {
        stay::within(|| sys::read_tenant_parts(self.tid, parts))
    }

    /// Whether [`Caller::write`] goes by the thread's number, which may be another's by now, and not by a file that is
    /// bound to the address space.
    pub fn writes_by_number(&self) -> bool {
        self.memory().is_none()
    }

    fn memory(&self) -> MutexGuard<'_, Option<Arc<File>>> {
        lock(&self.memory)
    }

    /// Copies to the tenant.
    ///
    /// # Errors
    /// `EFAULT`: not writable there. `ESRCH`: the thread is gone.
    pub fn write(&self, to: TenantPtr, bytes: &[u8]) -> io::Result<()> {
        stay::within(|| self.put(to, bytes))
    }

    fn put(&self, to: TenantPtr, bytes: &[u8]) -> io::Result<()> {
        let Some(memory) = self.memory().clone() else {
            return sys::write_tenant(self.tid, to, bytes);
        };
        match memory.write_all_at(bytes, to.0) {
            // The address space is gone: the thread has executed another program, or has ended.
            Err(e) if e.kind() == io::ErrorKind::WriteZero => self
                .reopened_memory()?
                .write_all_at(bytes, to.0)
                .map_err(|e| match e.kind() {
                    io::ErrorKind::WriteZero => io::Error::from_raw_os_error(libc::EFAULT),
                    _ => e,
                }),
            written => written,
        }
    }

    /// The address space that the thread has now. If the task of the pidfd still runs after the number was used to open
    /// it, the number was the task's.
    fn reopened_memory(&self) -> io::Result<Arc<File>> {
        let memory = open_memory(self.tid).filter(|_| self.runs());
        let memory = memory.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        *self.memory() = Some(memory.clone());
        Ok(memory)
    }
}

fn open_memory(tid: Tid) -> Option<Arc<File>> {
    let opened = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{tid}/mem"));
    opened.ok().map(Arc::new)
}

/// The process (thread group) of a thread.
fn process_of(tid: Tid) -> io::Result<Tid> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status"))?;
    status
        .lines()
        .find_map(|l| l.strip_prefix("Tgid:")?.trim().parse().ok())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

/// The callers seen lately.
#[derive(Debug)]
pub struct Callers {
    known: Mutex<HashMap<Tid, Arc<Caller>>>,
    most: usize,
}

/// Ended threads are looked for when this many callers are known, and at each doubling.
const PRUNE_AT: usize = 128;

impl Callers {
    /// Nobody yet, and at most `most` at once: each takes two descriptors.
    pub fn new(most: usize) -> Callers {
        Callers {
            known: Mutex::default(),
            most,
        }
    }

    /// The caller with this thread id; `fresh` tells that it was opened now, so that the caller must still be waiting
    /// for it to be the right one.
    ///
    /// # Errors
    /// The thread is gone, or may not be looked into.
    pub fn get(&self, tid: Tid) -> io::Result<(Arc<Caller>, bool)> {
        let known = self.known().get(&tid).cloned();
        if let Some(caller) = known.filter(|c| c.runs()) {
            return Ok((caller, false));
        }
        self.reopen(tid).map(|c| (c, true))
    }

    /// Opens the caller anew: what was known of it belongs to a task that has ended.
    ///
    /// # Errors
    /// The thread is gone, or may not be looked into.
    pub fn reopen(&self, tid: Tid) -> io::Result<Arc<Caller>> {
        let caller = Arc::new(Caller::open(tid)?);
        let mut known = self.known();
        if known.len() >= PRUNE_AT && known.len().is_power_of_two() {
            known.retain(|&tid, _| sys::kill_probe(tid));
        }
        if known.len() >= self.most {
            // They are opened again when they call.
            known.clear();
        }
        known.insert(tid, caller.clone());
        Ok(caller)
    }

    /// Drops what is held of a process that has ended.
    pub fn forget_process(&self, process: Tid) {
        self.known().retain(|_, c| c.process != process);
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Tid, Arc<Caller>>> {
        lock(&self.known)
    }
}
