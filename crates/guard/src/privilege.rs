//! Who runs as whom, and with what.
//!
//! The driver takes privilege from the calling thread: CAP_SYS_ADMIN, CAP_SYS_NICE or CAP_PERFMON of the initial user
//! namespace would make a tenant's channels privileged and open physical memory classes. So neither the tenant nor the
//! helper that calls in its stead has them.

use std::io;

use serde::{Deserialize, Serialize};

use crate::sys::{self, Caps, cap};

/// A user as whom a command runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
    /// Login name.
    pub name: String,
    /// Home directory.
    pub home: String,
}

/// Capabilities with which a tenant, even as root, could leave its slice.
const NOT_FOR_TENANTS: [u32; 9] = [
    cap::SYS_ADMIN,
    cap::SYS_PTRACE,
    cap::SYS_RAWIO,
    cap::SYS_MODULE,
    cap::MKNOD,
    cap::PERFMON,
    cap::SYS_NICE,
    cap::BPF,
    cap::DAC_READ_SEARCH,
];

/// Makes the calling process a tenant: the user if one is given, no capability with which it could leave its slice ever again.
///
/// # Errors
/// A step failed; the process must not go on.
pub fn become_tenant(user: Option<&User>) -> io::Result<()> {
    let root = sys::uids().1 == 0;
    if root {
        for c in NOT_FOR_TENANTS {
            // EINVAL: a capability that this kernel does not have.
            match sys::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(c), 0) {
                Err(e) if e.raw_os_error() != Some(libc::EINVAL) => return Err(e),
                _ => {}
            }
        }
    }
    if let Some(user) = user {
        sys::set_thread_groups(&user.groups)?;
        sys::set_thread_gids(user.gid, user.gid, user.gid)?;
        sys::set_thread_uids(user.uid, user.uid, user.uid)?;
    }
    let caps = sys::capabilities()?;
    let keep = !NOT_FOR_TENANTS.iter().fold(0u64, |mask, c| mask | 1 << c);
    let permitted = caps.permitted & keep;
    sys::set_capabilities(Caps {
        effective: caps.effective & permitted,
        permitted,
        inheritable: 0,
    })?;
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    Ok(())
}

/// Makes the calling process (single-threaded still) a helper: as root, the user `uid` that nobody else has, with
/// CAP_SYS_PTRACE and CAP_KILL alone (the command is killed with its helper only if the dying helper may signal it,
/// prctl(2) PR_SET_PDEATHSIG); files are opened as the tenant's user, whose `/proc/TID/mem` it must open.
///
/// # Errors
/// A step failed; the process must not go on.
pub fn become_helper(uid: Option<u32>, tenant_uid: u32) -> io::Result<()> {
    if let Some(uid) = uid {
        sys::prctl(libc::PR_SET_KEEPCAPS, 1, 0)?;
        sys::set_thread_groups(&[])?;
        sys::set_thread_gids(uid, uid, uid)?;
        sys::set_thread_uids(uid, uid, uid)?;
        let setuid = 1 << CAP_SETUID;
        let stays = 1 << cap::SYS_PTRACE | 1 << cap::KILL;
        let both = setuid | stays;
        sys::set_capabilities(Caps {
            effective: both,
            permitted: both,
            inheritable: 0,
        })?;
        if !sys::set_fs_uid(tenant_uid) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        sys::set_capabilities(Caps {
            effective: stays,
            permitted: stays,
            inheritable: 0,
        })?;
    } else {
        sys::set_capabilities(Caps {
            effective: 0,
            permitted: 0,
            inheritable: 0,
        })?;
    }
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    sys::prctl(libc::PR_SET_DUMPABLE, 0, 0)?;
    Ok(())
}

const CAP_SETUID: u32 = 7;
