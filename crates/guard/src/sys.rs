//! The one place where guard talks to the kernel: thin, checked wrappers over the system calls it needs.
//!
//! Each wrapper says which manual page or header its contract comes from. Everything above this module is safe code.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A process or thread id as this process sees it.
pub type Tid = i32;

fn check(rc: libc::c_long) -> io::Result<libc::c_long> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

/// `PIDFD_THREAD` (pidfd_open(2), Linux 6.9): a descriptor of one thread, so that its own descriptor table is used.
pub const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;

/// pidfd_open(2).
pub fn pidfd_open(pid: Tid, flags: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two integers and returns a new descriptor or -1.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) })?;
    // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// pidfd_getfd(2): a duplicate of descriptor `fd` of the thread or process behind `pidfd`.
pub fn pidfd_getfd(pidfd: BorrowedFd<'_>, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes three integers and returns a new descriptor or -1.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) })?;
    // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// pidfd_send_signal(2).
pub fn pidfd_kill(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null siginfo is allowed by the manual page; the rest are integers.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<u8>(),
            0,
        )
    })
    .map(drop)
}

/// kcmp(2) with `KCMP_FILE`: do descriptor `a` of `pid_a` and `b` of `pid_b` share one open file description?
pub fn same_file(pid_a: Tid, a: RawFd, pid_b: Tid, b: RawFd) -> io::Result<bool> {
    const KCMP_FILE: libc::c_int = 0;
    // SAFETY: the call takes integers only.
    let rc = check(unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            pid_a,
            pid_b,
            KCMP_FILE,
            a as libc::c_ulong,
            b as libc::c_ulong,
        )
    })?;
    Ok(rc == 0)
}

/// kcmp(2) with `KCMP_FILES`: do the two tasks share one descriptor table?
pub fn same_file_table(a: Tid, b: Tid) -> io::Result<bool> {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: the call takes integers only.
    let rc = check(unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_FILES, 0, 0) })?;
    Ok(rc == 0)
}

/// A pointer in a tenant's address space. It is only a number here: it can be copied from once, and written to, but
/// never dereferenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TenantPtr(pub u64);

impl TenantPtr {
    /// The pointer `bytes` further on; a wrap gives an address that cannot be read.
    pub fn offset(self, bytes: u64) -> TenantPtr {
        TenantPtr(self.0.saturating_add(bytes))
    }

    /// Whether the tenant passed no pointer.
    pub fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// process_vm_readv(2): fills `into` from `from` of thread `tid`. A short read is `EFAULT`, as copy_from_user gives.
pub fn read_tenant(tid: Tid, from: TenantPtr, into: &mut [u8]) -> io::Result<()> {
    read_tenant_parts(tid, &mut [(from, into)])
}

/// As [`read_tenant`], for up to eight pieces with one system call.
pub fn read_tenant_parts(tid: Tid, parts: &mut [(TenantPtr, &mut [u8])]) -> io::Result<()> {
    const MAX: usize = 8;
    assert!(parts.len() <= MAX, "at most {MAX} pieces a call");
    let empty = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    let (mut local, mut remote) = ([empty; MAX], [empty; MAX]);
    let mut want = 0;
    for (i, (from, into)) in parts.iter_mut().enumerate() {
        local[i] = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        remote[i] = libc::iovec {
            iov_base: from.0 as *mut libc::c_void,
            iov_len: into.len(),
        };
        want += into.len();
    }
    let n = parts.len() as libc::c_ulong;
    // SAFETY: every local iovec covers a distinct live `&mut [u8]`; remote addresses are checked by the kernel.
    let got = unsafe { libc::process_vm_readv(tid, local.as_ptr(), n, remote.as_ptr(), n, 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    if got as usize != want {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    Ok(())
}

/// process_vm_writev(2) by thread id; only for tenants whose `/proc/TID/mem` cannot be opened.
pub fn write_tenant(tid: Tid, to: TenantPtr, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: bytes.as_ptr() as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: to.0 as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    // SAFETY: the local iovec covers a live slice that the kernel only reads; the remote address is the kernel's to check.
    let put = unsafe { libc::process_vm_writev(tid, &local, 1, &remote, 1, 0) };
    if put < 0 {
        return Err(io::Error::last_os_error());
    }
    if put as usize != bytes.len() {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    Ok(())
}

/// ioctl(2) with a parameter block in our own memory.
///
/// The block must be at least as long as the driver will read and write for `request`; callers size it by the table
/// of crate `rm`. Pointers inside the block must point into live buffers of ours.
///
/// # Errors
/// As ioctl(2).
pub fn ioctl(fd: BorrowedFd<'_>, request: u32, block: &mut [u8]) -> io::Result<i32> {
    // SAFETY: `block` is live and exclusively ours; its length is the caller's contract above.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request as libc::c_ulong, block.as_mut_ptr()) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

/// What fstat(2) says of a descriptor: (st_dev, st_ino, st_rdev, is a character device).
pub fn stat_fd(fd: BorrowedFd<'_>) -> io::Result<(u64, u64, u64, bool)> {
    // SAFETY: `stat` is plain data for which all zeroes is a valid value.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is a live, writable `struct stat`.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut st) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((
        st.st_dev,
        st.st_ino,
        st.st_rdev,
        st.st_mode & libc::S_IFMT == libc::S_IFCHR,
    ))
}

/// Closes a descriptor at the next execve(2) of this process.
///
/// # Errors
/// As fcntl(2).
pub fn close_on_exec(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call takes integers.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Closes what an execve(2) would keep, but for the standard three: files that whoever started this program has left to
/// the command. Everything of our own is close-on-exec.
///
/// # Errors
/// `/proc` is not there.
pub fn close_inherited() -> io::Result<()> {
    let numbers: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&number| number > libc::STDERR_FILENO)
        .collect();
    for number in numbers {
        // SAFETY: the call takes integers; a number that is closed already is an error.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            // SAFETY: nothing in this process owns it: it was open when the program began.
            unsafe { libc::close(number) };
        }
    }
    Ok(())
}

/// prctl(2) with integer arguments.
pub fn prctl(option: libc::c_int, a: libc::c_ulong, b: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: only options that take integers are passed by this crate.
    let rc = unsafe { libc::prctl(option, a, b, 0 as libc::c_ulong, 0 as libc::c_ulong) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

/// Capability numbers (linux/capability.h) that this crate names.
pub mod cap {
    /// Bypass file permission checks.
    pub const DAC_READ_SEARCH: u32 = 2;
    /// Send signals to anyone.
    pub const KILL: u32 = 5;
    /// Raw port and memory access.
    pub const SYS_RAWIO: u32 = 17;
    /// Load kernel modules.
    pub const SYS_MODULE: u32 = 16;
    /// Trace any process.
    pub const SYS_PTRACE: u32 = 19;
    /// The driver's privilege.
    pub const SYS_ADMIN: u32 = 21;
    /// Raise priorities; the driver takes it for privilege too.
    pub const SYS_NICE: u32 = 23;
    /// Make device nodes.
    pub const MKNOD: u32 = 27;
    /// Performance counters; the driver takes it for privilege too.
    pub const PERFMON: u32 = 38;
    /// Load BPF programs.
    pub const BPF: u32 = 39;
}

/// The three capability sets of this thread, one bit a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// In force now.
    pub effective: u64,
    /// May be put in force.
    pub permitted: u64,
    /// Kept over execve(2).
    pub inheritable: u64,
}

const CAP_VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// capget(2) of this thread.
pub fn capabilities() -> io::Result<Caps> {
    let mut header = CapHeader {
        version: CAP_VERSION_3,
        pid: 0,
    };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 takes one header and two data blocks, as given (capget(2)).
    check(unsafe { libc::syscall(libc::SYS_capget, &mut header, data.as_mut_ptr()) })?;
    let join = |lo: u32, hi: u32| u64::from(lo) | (u64::from(hi) << 32);
    Ok(Caps {
        effective: join(data[0].effective, data[1].effective),
        permitted: join(data[0].permitted, data[1].permitted),
        inheritable: join(data[0].inheritable, data[1].inheritable),
    })
}

/// capset(2) of this thread.
pub fn set_capabilities(caps: Caps) -> io::Result<()> {
    let mut header = CapHeader {
        version: CAP_VERSION_3,
        pid: 0,
    };
    let half = |i: u32| CapData {
        effective: (caps.effective >> (32 * i)) as u32,
        permitted: (caps.permitted >> (32 * i)) as u32,
        inheritable: (caps.inheritable >> (32 * i)) as u32,
    };
    let data = [half(0), half(1)];
    // SAFETY: version 3 takes one header and two data blocks, as given (capset(2)).
    check(unsafe { libc::syscall(libc::SYS_capset, &mut header, data.as_ptr()) }).map(drop)
}

/// setresuid(2) of this thread alone (the raw call; glibc's would change every thread).
pub fn set_thread_uids(real: u32, effective: u32, saved: u32) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::syscall(libc::SYS_setresuid, real, effective, saved) }).map(drop)
}

/// setresgid(2) of this thread alone.
pub fn set_thread_gids(real: u32, effective: u32, saved: u32) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::syscall(libc::SYS_setresgid, real, effective, saved) }).map(drop)
}

/// setgroups(2) of this thread alone.
pub fn set_thread_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer and length describe a live slice of gid_t.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(drop)
}

/// setfsuid(2): whose files this thread may open. Returns whether it took effect.
pub fn set_fs_uid(uid: u32) -> bool {
    // SAFETY: integers only; the second call reads back without changing (an invalid id changes nothing).
    unsafe {
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::syscall(libc::SYS_setfsuid, u32::MAX) as u32 == uid
    }
}

/// fork(2). The caller must not have started threads that the child needs.
///
/// # Errors
/// As fork(2).
pub fn fork() -> io::Result<Option<Tid>> {
    // SAFETY: callers fork only while single-threaded (helper start-up), so the child may run any code.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// execvpe(3): never returns on success.
pub fn exec(program: &CStr, args: &[CString], env: &[CString]) -> io::Error {
    let pointers = |v: &[CString]| -> Vec<*const libc::c_char> {
        v.iter()
            .map(|s| s.as_ptr())
            .chain(std::iter::once(std::ptr::null()))
            .collect()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: both arrays are null-terminated and outlive the call; the strings outlive the arrays.
    unsafe { libc::execvpe(program.as_ptr(), args.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// A close-on-exec pair of connected unix sockets that keep message boundaries.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: `fds` has room for the two descriptors.
    let rc = unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
            0,
            fds.as_mut_ptr(),
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us both descriptors and nobody else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Sends `bytes` and, if given, one descriptor (unix(7), SCM_RIGHTS).
pub fn send_message(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut iov = libc::iovec {
        iov_base: bytes.as_ptr() as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    let mut control = [0u64; 4];
    // SAFETY: all zeroes is a valid `msghdr`.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    if let Some(fd) = fd {
        msg.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_* only compute with the lengths; `control` has room for one descriptor and is aligned for cmsghdr.
        unsafe {
            msg.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let c = libc::CMSG_FIRSTHDR(&msg);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(c)
                .cast::<i32>()
                .write_unaligned(fd.as_raw_fd());
        }
    }
    loop {
        // SAFETY: `msg` points to live buffers only.
        let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &msg, libc::MSG_NOSIGNAL) };
        if n >= 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

/// What came with a message.
pub(crate) enum Beside {
    /// A descriptor.
    Descriptor(OwnedFd),
    /// Which process sent it.
    Sender(Tid),
}

/// Receives one message: its bytes (0 at end of file) and the descriptor that came with it, if any.
pub fn receive_message(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let (n, beside) = receive_with(socket, into, 0)?;
    let descriptor = match beside {
        Some(Beside::Descriptor(fd)) => Some(fd),
        Some(Beside::Sender(_)) | None => None,
    };
    Ok((n, descriptor))
}

/// Receives one message and the first thing that came with it. There is room for one only.
pub(crate) fn receive_with(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    flags: libc::c_int,
) -> io::Result<(usize, Option<Beside>)> {
    let mut iov = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let mut control = [0u64; 4];
    // SAFETY: all zeroes is a valid `msghdr`.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control);
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    let n = loop {
        // SAFETY: `msg` points to live, writable buffers only.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut msg, flags) };
        if n >= 0 {
            break n as usize;
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    };
    // SAFETY: the kernel filled `control`; CMSG_FIRSTHDR returns null or a header inside it, whose type is checked before
    // its data is read: as one descriptor that is ours alone, or as who sent the message.
    let beside = unsafe {
        let c = libc::CMSG_FIRSTHDR(&msg);
        if c.is_null() || (*c).cmsg_level != libc::SOL_SOCKET {
            None
        } else if (*c).cmsg_type == libc::SCM_RIGHTS {
            let fd = libc::CMSG_DATA(c).cast::<i32>().read_unaligned();
            Some(Beside::Descriptor(OwnedFd::from_raw_fd(fd)))
        } else if (*c).cmsg_type == libc::SCM_CREDENTIALS {
            let who = libc::CMSG_DATA(c).cast::<libc::ucred>().read_unaligned();
            Some(Beside::Sender(who.pid))
        } else {
            None
        }
    };
    Ok((n, beside))
}

/// Waits with poll(2); `timeout_ms` -1 waits for ever. Returns the events of each descriptor.
pub fn poll<const N: usize>(fds: [(RawFd, i16); N], timeout_ms: i32) -> io::Result<[i16; N]> {
    let mut p = fds.map(|(fd, events)| libc::pollfd {
        fd,
        events,
        revents: 0,
    });
    // SAFETY: `p` is a live array of N entries.
    let rc = unsafe { libc::poll(p.as_mut_ptr(), N as libc::nfds_t, timeout_ms) };
    if rc < 0 {
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
    Ok(p.map(|p| p.revents))
}

/// waitpid(2) without blocking: the status of one ended child, if there is one.
pub fn reap_any() -> Option<(Tid, i32)> {
    let mut status = 0;
    // SAFETY: `status` is a live int.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

/// waitpid(2) for one child.
///
/// # Errors
/// It is no child of ours.
pub fn wait_for(pid: Tid) -> io::Result<i32> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is a live int.
        if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
            return Ok(status);
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

/// Exit status as env(1) and the shells report it: the code, or 128 + signal.
pub fn exit_code(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) {
        128 + libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    }
}

/// kill(2).
pub fn kill(pid: Tid, signal: i32) -> io::Result<()> {
    // SAFETY: integers only.
    if unsafe { libc::kill(pid, signal) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Blocks the signals for this thread (and those it starts) and gives a descriptor that reads them (signalfd(2)).
pub fn signal_fd(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: `sigset_t` is plain data initialised by sigemptyset before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &s in signals {
            libc::sigaddset(&mut set, s);
        }
        if libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Reads one signal number from a [`signal_fd`], with the sending process's id.
pub fn read_signal(fd: BorrowedFd<'_>) -> Option<(i32, i32)> {
    // SAFETY: `signalfd_siginfo` is plain data; the read is bounded by its size and its result checked.
    unsafe {
        let mut info: libc::signalfd_siginfo = std::mem::zeroed();
        let n = libc::read(
            fd.as_raw_fd(),
            (&raw mut info).cast(),
            size_of::<libc::signalfd_siginfo>(),
        );
        (n as usize == size_of::<libc::signalfd_siginfo>())
            .then_some((info.ssi_signo as i32, info.ssi_pid as i32))
    }
}

/// Lets every signal of this thread come again, and gives back the default handling of SIGPIPE, which Rust's start-up
/// code ignores.
pub fn unblock_signals() {
    // SAFETY: `sigset_t` is plain data initialised by sigemptyset; SIG_SETMASK with it blocks nothing.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
    default_signal(libc::SIGPIPE);
}

/// Leaves a signal without effect on this process. Returns whether it had one: what was ignored before (nohup(1)) is to
/// be ignored by the command too.
pub fn ignore_signal(signal: i32) -> bool {
    // SAFETY: SIG_IGN is a valid disposition for every signal this crate passes.
    unsafe { libc::signal(signal, libc::SIG_IGN) != libc::SIG_IGN }
}

/// Gives a signal its default effect back.
pub fn default_signal(signal: i32) {
    // SAFETY: SIG_DFL is a valid disposition for every signal.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Puts `/dev/null` in the place of a descriptor, so that whoever waits for its other end to close need not wait for us.
///
/// # Errors
/// As open(2) and dup3(2).
pub fn to_null(fd: RawFd) -> io::Result<()> {
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    // SAFETY: only standard descriptors are passed, which no owner in this process closes.
    if unsafe { libc::dup3(null.as_raw_fd(), fd, 0) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Real and effective user id of this thread.
pub fn uids() -> (u32, u32) {
    // SAFETY: the calls take nothing and cannot fail.
    unsafe { (libc::getuid(), libc::geteuid()) }
}

/// Processor time that the calling thread has used.
pub fn thread_time() -> std::time::Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a live timespec; the clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The parent process.
pub fn parent() -> Tid {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::getppid() }
}

/// Raises the limit on open descriptors to what is allowed.
pub fn raise_descriptor_limit() {
    // SAFETY: `limit` is a live `struct rlimit` for both calls.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max.min(1 << 20);
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// How many descriptors this process may have (getrlimit(2)).
pub fn descriptor_limit() -> usize {
    // SAFETY: `limit` is a live `struct rlimit`; the call fills it or leaves it zeroed.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit
    };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Keeps the heap of a many-threaded helper small: one malloc arena, freed memory given back (mallopt(3)).
pub fn small_heap() {
    // SAFETY: mallopt takes two integers and is called before any other thread exists.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 10);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10);
    }
}

/// Does a task with this id exist? (kill(2) with signal 0; `EPERM` means that it does.)
pub fn kill_probe(tid: Tid) -> bool {
    match kill(tid, 0) {
        Ok(()) => true,
        Err(e) => e.raw_os_error() == Some(libc::EPERM),
    }
}
