//! seccomp user notification (seccomp_unotify(2)): installing the filter, receiving a call, answering it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::filter::{Instruction, Program};
use crate::sys::Tid;

const SET_MODE_FILTER: libc::c_ulong = 1;
const FLAG_NEW_LISTENER: libc::c_ulong = 1 << 3;
/// Only a fatal signal ends the wait of a call that was received (Linux 5.19). Without it SIGALRM or SIGPROF restarts
/// the call and it is executed twice.
const FLAG_WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;

const NOTIF_RECV: libc::c_ulong = 0xc050_2100;
const NOTIF_SEND: libc::c_ulong = 0xc018_2101;
const NOTIF_ID_VALID: libc::c_ulong = 0x4008_2102;
const NOTIF_ADDFD: libc::c_ulong = 0x4018_2103;
const NOTIF_SET_FLAGS: libc::c_ulong = 0x4008_2104;
const RESPONSE_CONTINUE: u32 = 1;
const SYNC_WAKE_UP: u64 = 1;

/// `struct seccomp_notif` (linux/seccomp.h), 80 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Notification {
    /// Names this call until it is answered.
    pub id: u64,
    /// The calling thread, as this process sees it; 0 if it cannot.
    pub tid: u32,
    flags: u32,
    /// System call number.
    pub syscall: i32,
    /// `AUDIT_ARCH_*` of the call.
    pub arch: u32,
    /// Where the call was made.
    pub instruction_pointer: u64,
    /// Its six arguments.
    pub args: [u64; 6],
}

impl Notification {
    /// The calling thread.
    pub fn thread(&self) -> Tid {
        self.tid as Tid
    }
}

#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

#[repr(C)]
struct AddFd {
    id: u64,
    flags: u32,
    source: u32,
    target: u32,
    target_flags: u32,
}

/// What a tenant's call is answered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The call returns this.
    Value(i64),
    /// The call fails with this error number (positive).
    Errno(i32),
    /// The kernel executes the call in the tenant.
    Continue,
}

/// How [`install`] is to set the filter up.
#[derive(Clone, Copy, Debug)]
pub struct Install {
    /// Received calls wait for the answer through signals. Always true but where a demo shows what happens without.
    pub wait_killable: bool,
}

/// Installs the filter for the calling thread and everything it starts, and gives its listener.
///
/// # Errors
/// `EBUSY`: the process is already inside a filter with a listener (a slice, or a container with its own listener).
/// `EINVAL`: the kernel lacks a flag (WAIT_KILLABLE_RECV is Linux 5.19).
pub fn install(program: &Program, how: Install) -> io::Result<OwnedFd> {
    let mut flags = FLAG_NEW_LISTENER;
    if how.wait_killable {
        flags |= FLAG_WAIT_KILLABLE_RECV;
    }
    let fd = set_filter(program, flags)?;
    // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Installs a filter without a listener: what it does not allow, it answers itself.
///
/// # Errors
/// The kernel refuses it.
pub fn confine(program: &Program) -> io::Result<()> {
    set_filter(program, 0).map(drop)
}

/// seccomp(2) with `SECCOMP_SET_MODE_FILTER`.
fn set_filter(program: &Program, flags: libc::c_ulong) -> io::Result<libc::c_long> {
    #[repr(C)]
    struct FilterProgram {
        len: u16,
        filter: *const Instruction,
    }
    let code = program.instructions();
    let len = u16::try_from(code.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let prog = FilterProgram {
        len,
        filter: code.as_ptr(),
    };
    // SAFETY: `prog` and the instructions it points to outlive the call; the kernel copies them.
    let rc = unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &prog) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

/// The supervising end of a filter.
#[derive(Clone, Copy, Debug)]
pub struct Listener<'a>(pub BorrowedFd<'a>);

impl Listener<'_> {
    /// Waits for the next call. `Ok(None)`: the caller was killed meanwhile, or a signal came; try again.
    ///
    /// # Errors
    /// As ioctl(2): the listener is no longer usable.
    pub fn receive(self) -> io::Result<Option<Notification>> {
        let mut n = Notification::default();
        // SAFETY: `n` is a live, zeroed `struct seccomp_notif` of the size this request encodes (80 bytes).
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), NOTIF_RECV, &mut n) };
        if rc == 0 {
            return Ok(Some(n));
        }
        let e = io::Error::last_os_error();
        match e.raw_os_error() {
            Some(libc::EINTR | libc::ENOENT | libc::EAGAIN) => Ok(None),
            _ => Err(e),
        }
    }

    /// Is the caller still waiting in this very call? Only then do its thread id and memory mean what they meant.
    pub fn still_waiting(self, id: u64) -> bool {
        // SAFETY: the request reads one u64.
        unsafe { libc::ioctl(self.0.as_raw_fd(), NOTIF_ID_VALID, &id) == 0 }
    }

    /// Answers a call. False: the caller is gone (it was killed).
    pub fn answer(self, id: u64, reply: Reply) -> bool {
        let r = match reply {
            Reply::Value(value) => Response {
                id,
                value,
                error: 0,
                flags: 0,
            },
            Reply::Errno(e) => Response {
                id,
                value: 0,
                error: -e,
                flags: 0,
            },
            Reply::Continue => Response {
                id,
                value: 0,
                error: 0,
                flags: RESPONSE_CONTINUE,
            },
        };
        // SAFETY: `r` is a live `struct seccomp_notif_resp` of the size this request encodes (24 bytes).
        unsafe { libc::ioctl(self.0.as_raw_fd(), NOTIF_SEND, &r) == 0 }
    }

    /// Puts a descriptor of ours into the tenant without answering yet (for a number inside a parameter block).
    /// Returns the number it has there.
    ///
    /// # Errors
    /// As seccomp_unotify(2); `ENOENT`: the caller is gone.
    pub fn add_descriptor(self, id: u64, fd: BorrowedFd<'_>) -> io::Result<RawFd> {
        let a = AddFd {
            id,
            flags: 0,
            source: fd.as_raw_fd() as u32,
            target: 0,
            target_flags: libc::O_CLOEXEC as u32,
        };
        // SAFETY: `a` is a live `struct seccomp_notif_addfd` of the size this request encodes (24 bytes).
        let rc = unsafe { libc::ioctl(self.0.as_raw_fd(), NOTIF_ADDFD, &a) };
        if rc < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(rc)
        }
    }

    /// Hands the processor straight over on each wake-up (Linux 6.6). Returns whether the kernel can.
    pub fn set_sync_wake_up(self, on: bool) -> bool {
        let flags: u64 = if on { SYNC_WAKE_UP } else { 0 };
        // SAFETY: the request takes its flags by value.
        unsafe { libc::ioctl(self.0.as_raw_fd(), NOTIF_SET_FLAGS, flags) == 0 }
    }
}
