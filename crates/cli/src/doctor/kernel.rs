//! What the kernel can do, found by trying it.

use std::io;
use std::os::fd::AsFd;

use guard::listener::{self, Install, Listener};
use guard::{filter, privilege, sys};

use super::Check;

/// All checks of the kernel. None changes anything: what is irreversible happens in a child that ends at once.
pub fn checks() -> Vec<Check> {
    let mut checks = vec![version()];
    checks.extend(notification());
    checks.extend(looking_into());
    checks.push(thread_pidfd());
    checks.push(yama());
    checks
}

fn version() -> Check {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Check::fine("kernel", release.trim())
}

/// The filter of a real tenant, installed in a child.
fn notification() -> Vec<Check> {
    const SECCOMP: &str = "kernel: seccomp notification";
    const SYNC: &str = "kernel: synchronous wake-up";
    let tried = in_child(|| {
        let Some(found) = rm::for_driver(simgpu::DRIVER_VERSION).ok() else {
            return vec![libc::EINVAL as u8, 0];
        };
        let installed = privilege::become_tenant(None).and_then(|()| {
            listener::install(
                &filter::tenant_filter(found.abi),
                Install {
                    wait_killable: true,
                },
            )
        });
        match installed {
            Ok(fd) => vec![0, u8::from(Listener(fd.as_fd()).set_sync_wake_up(true))],
            Err(e) => vec![number(&e), 0],
        }
    });
    let (installed, sync) = match tried {
        Ok(answer) => (i32::from(answer[0]), answer[1] == 1),
        Err(e) => {
            return vec![Check::missing(
                SECCOMP,
                &format!("cannot be tried: {e}"),
                "see the error",
            )];
        }
    };
    match installed {
        0 => vec![
            Check::fine(SECCOMP, "works, with WAIT_KILLABLE_RECV"),
            if sync {
                Check::fine(SYNC, "works")
            } else {
                Check::weak(
                    SYNC,
                    "missing: a driver call costs about 45 us instead of 4",
                    "Linux 6.6 or newer has it",
                )
            },
        ],
        libc::EBUSY => vec![Check::missing(
            SECCOMP,
            "this process is inside a slice, or a container with a seccomp listener of its own",
            "run gpuslice outside of it",
        )],
        libc::EINVAL => vec![Check::missing(
            SECCOMP,
            "WAIT_KILLABLE_RECV is missing: a signal would make a driver call run twice",
            "needs Linux 5.19 or newer",
        )],
        e => {
            let why = io::Error::from_raw_os_error(e);
            vec![Check::missing(
                SECCOMP,
                &format!("refused: {why}"),
                "a container's or service's own filter may forbid it",
            )]
        }
    }
}

/// What a helper does with its tenant, done with a child: its descriptors, its memory, whether two files are one.
fn looking_into() -> Vec<Check> {
    let advice = "a container's or service's own filter, or a security module, may forbid it";
    let check = |name, result: io::Result<()>| match result {
        Ok(()) => Check::fine(name, "works on a child"),
        Err(e) => Check::missing(name, &format!("refused: {e}"), advice),
    };
    let secret = 0x5eed_u64;
    let (ours, theirs) = match sys::socket_pair() {
        Ok(pair) => pair,
        Err(e) => return vec![Check::missing("kernel: socketpair", &e.to_string(), advice)],
    };
    let child = match sys::fork() {
        Ok(Some(child)) => child,
        Ok(None) => {
            drop(ours);
            // Until the parent lets go of its end.
            let _ended = sys::receive_message(theirs.as_fd(), &mut [0; 1]);
            std::process::exit(0)
        }
        Err(e) => return vec![Check::missing("kernel: fork", &e.to_string(), advice)],
    };
    drop(theirs);
    let getfd = sys::pidfd_open(child, 0)
        .and_then(|pidfd| sys::pidfd_getfd(pidfd.as_fd(), 2))
        .map(drop);
    let mut copy = [0; 8];
    // A fork's memory has the same contents at the same addresses.
    let read = sys::read_tenant(child, sys::TenantPtr(&raw const secret as u64), &mut copy);
    let read = read.and_then(|()| {
        if u64::from_ne_bytes(copy) == secret {
            Ok(())
        } else {
            Err(io::Error::other("read something else"))
        }
    });
    let same = sys::same_file(std::process::id() as i32, 2, child, 2).map(drop);
    drop(ours);
    reap(child);
    vec![
        check("kernel: pidfd_getfd", getfd),
        check("kernel: process_vm_readv", read),
        check("kernel: kcmp", same),
    ]
}

fn thread_pidfd() -> Check {
    const NAME: &str = "kernel: PIDFD_THREAD";
    match sys::pidfd_open(std::process::id() as i32, sys::PIDFD_THREAD) {
        Ok(_) => Check::fine(NAME, "works"),
        Err(_) => Check::weak(
            NAME,
            "missing: driver calls of threads with descriptor tables of their own are refused",
            "Linux 6.9 or newer has it",
        ),
    }
}

fn yama() -> Check {
    const NAME: &str = "kernel: Yama ptrace_scope";
    let root = sys::uids().1 == 0;
    match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .ok()
        .and_then(|t| t.trim().parse().ok())
    {
        None => Check::fine(NAME, "Yama is off"),
        Some(0) => Check::fine(NAME, "0"),
        Some(1) => Check::fine(NAME, "1: enough, a slice's helper is its tenant's parent"),
        Some(2) if root => Check::fine(NAME, "2: enough for root"),
        Some(2) => Check::missing(
            NAME,
            "2: only root may look into a tenant",
            "run as root, or set it to 1",
        ),
        Some(n) => Check::missing(
            NAME,
            &format!("{n}: nobody may look into a tenant"),
            "set it to 1 (at boot: it cannot be lowered)",
        ),
    }
}

/// Runs `work` in a child and gives what it returns.
fn in_child(work: impl FnOnce() -> Vec<u8>) -> io::Result<Vec<u8>> {
    let (ours, theirs) = sys::socket_pair()?;
    let Some(child) = sys::fork()? else {
        drop(ours);
        let sent = sys::send_message(theirs.as_fd(), &work(), None);
        std::process::exit(i32::from(sent.is_err()))
    };
    drop(theirs);
    let mut answer = [0; 8];
    let received = sys::receive_message(ours.as_fd(), &mut answer);
    reap(child);
    match received?.0 {
        0 => Err(io::Error::other("the child died")),
        n => Ok(answer[..n].to_vec()),
    }
}

fn reap(child: i32) {
    // SAFETY: waitpid(2) of a child of ours, with no status asked for.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

fn number(e: &io::Error) -> u8 {
    e.raw_os_error()
        .and_then(|n| u8::try_from(n).ok())
        .unwrap_or(libc::EIO as u8)
}
