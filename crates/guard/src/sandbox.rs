//! What a helper locks itself into: it reads hostile input, so it may do little.
//!
//! An allow-list of system calls. landlock(7) would be the natural second lock, but a landlocked process may not trace
//! a process outside its own domain (the kernel's landlock ptrace hook), and copying a tenant's memory and descriptors
//! is a trace right: a landlocked helper can serve nobody. So the file system is shut by what is missing from the list
//! (no execve, no rename, no unlink, no mount) and by the helper's user, which owns nothing.

use std::io;

use crate::filter::{self, Program};
use crate::{listener, sys};

/// System calls of a helper, by purpose. Everything else fails with `EPERM`.
const ALLOWED: &[libc::c_long] = &[
    // The tenant's calls: take, look, execute, answer.
    libc::SYS_ioctl,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    // Descriptors.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    // /proc of the tenant.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    // Waiting.
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_ctl,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_wait4,
    // The supervisor, and a simulated node's socket.
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_getsockopt,
    libc::SYS_shutdown,
    // Memory and threads of its own.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_membarrier,
    libc::SYS_getrandom,
    libc::SYS_prctl,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The helper's own filter.
pub fn helper_filter() -> Program {
    filter::allow_list(ALLOWED)
}

/// Locks the helper in. Threads started afterwards are locked in too.
///
/// # Errors
/// The kernel refuses: the helper must not go on.
pub fn enter_helper() -> io::Result<()> {
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    listener::confine(&helper_filter())
}
