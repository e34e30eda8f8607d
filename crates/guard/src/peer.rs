//! Who may change a slice from outside: its user and root, and no program of any tenant, whoever its user is.
//!
//! A tenant may be root, or the user of the supervisor. What tells its programs from others are two things that they can't
//! get rid of: they are below a helper (which is the parent of whatever loses its own), and they are under guard's filter,
//! with "no new privileges". The second holds where the first does not, for a moment after a helper has died.

use std::fs;

use crate::procfs;
use crate::sys::{self, Tid};

/// Name of the helper's program and of its first word.
pub const HELPER: [&str; 2] = ["gpuslice-helper", "__helper"];
/// As deep as trees of processes are looked at.
const DEEPEST: usize = 4096;

/// Why this process may not change a slice of this one's; `None`: it may.
pub fn refusal(pid: Tid, uid: u32) -> Option<String> {
    let (_, own) = sys::uids();
    if uid != 0 && uid != own {
        let who = match own {
            0 => "root may".to_owned(),
            own => format!("root and user {own} may"),
        };
        return Some(format!("user {uid} may not change this slice: {who}"));
    }
    let is_tenants = is_below_a_helper(pid)
        .zip(is_more_confined(pid))
        .map(|(below, confined)| below || confined);
    match is_tenants {
        Some(false) => None,
        Some(true) => {
            Some("a program in a slice may change no slice: start gpuslice outside of it".into())
        }
        // What can't be seen is no proof that it is none of a tenant's.
        None => Some(format!(
            "process {pid} asks, and it cannot be seen whether it belongs to a slice: it has ended, or /proc hides it or those above it (hidepid); ask as root"
        )),
    }
}

/// Whether the process or one above it is a helper.
fn is_below_a_helper(pid: Tid) -> Option<bool> {
    let mut at = pid;
    for _ in 0..DEEPEST {
        let line = fs::read(format!("/proc/{at}/cmdline")).ok()?;
        if procfs::begins_with_words(&line, &HELPER) {
            return Some(true);
        }
        at = match procfs::parse_parent(&fs::read_to_string(format!("/proc/{at}/stat")).ok()?)? {
            // The first process of this namespace has none.
            0 => return Some(false),
            parent => parent,
        };
    }
    None
}

/// Whether the process is under more filters than this one and can't get out of them, as whatever runs in a slice.
fn is_more_confined(pid: Tid) -> Option<bool> {
    let of = |name: &str| fs::read_to_string(format!("/proc/{name}/status")).ok();
    let theirs = procfs::parse_confinement(&of(&pid.to_string())?)?;
    let own = procfs::parse_confinement(&of("self")?)?;
    Some(theirs.no_new_privileges && theirs.filters > own.filters)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn others_are_told_who_may() {
        let (_, own) = sys::uids();
        let me = std::process::id() as Tid;
        assert_eq!(refusal(me, own), None);
        assert_eq!(refusal(me, 0), None);
        let told = refusal(me, own + 1).unwrap();
        assert!(
            told.contains(&format!("user {} may not", own + 1)),
            "{told}"
        );
        for unseen in [0, Tid::MAX] {
            let told = refusal(unseen, own).unwrap();
            assert!(told.contains("cannot be seen"), "{told}");
        }
    }

    #[test]
    fn a_process_below_a_helper_is_a_tenants() {
        let folder = std::env::temp_dir().join(format!("gpuslice-peer-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        // A shell whose words are a helper's, and a program below it that says which it is.
        fs::write(folder.join(HELPER[1]), "sh -c 'echo $$; read x'; exit 0").unwrap();
        let mut shell = Command::new("sh")
            .arg0(HELPER[0])
            .arg(HELPER[1])
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(shell.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        let (below, helper) = (line.trim().parse().unwrap(), shell.id() as Tid);
        let (_, own) = sys::uids();
        let found = (is_below_a_helper(below), is_below_a_helper(helper));
        let told = refusal(below, own);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, (Some(true), Some(true)));
        assert!(told.unwrap().contains("a program in a slice"));
    }

    #[test]
    fn a_process_under_a_filter_is_a_tenants_wherever_it_is() {
        let Some(child) = sys::fork().unwrap() else {
            let confined = sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)
                .and_then(|_| crate::listener::confine(&crate::filter::allow_list(EVERYTHING)));
            if confined.is_ok() {
                // Stopped, so that it can be looked at.
                let _stopped = sys::kill(std::process::id() as Tid, libc::SIGSTOP);
            }
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        };
        let mut status = 0;
        // SAFETY: `status` is a live int.
        let stopped = unsafe { libc::waitpid(child, &mut status, libc::WUNTRACED) };
        assert_eq!(stopped, child);
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        let (below, confined) = (is_below_a_helper(child), is_more_confined(child));
        sys::kill(child, libc::SIGKILL).unwrap();
        sys::wait_for(child).unwrap();
        assert_eq!((below, confined), (Some(false), Some(true)));
    }

    /// What the child of the test needs.
    const EVERYTHING: &[libc::c_long] = &[
        libc::SYS_getpid,
        libc::SYS_kill,
        libc::SYS_exit_group,
        libc::SYS_rt_sigreturn,
    ];
}
