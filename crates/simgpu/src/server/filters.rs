//! Which callers are under a guard's filter.

use std::collections::HashMap;
use std::fs;
use std::sync::{Mutex, PoisonError};

/// Tells callers under a filter that was put on them from callers that filter themselves.
///
/// A filter stays for ever, and a guard puts it on before the tenant's first instruction. So a process that has once
/// connected without one (a guard's helper, before it locks itself in) has put on its own whatever it wears later.
pub struct Filters {
    own: u32,
    /// Start time (clock ticks since boot) of each process that connected unfiltered.
    unfiltered: Mutex<HashMap<u32, u64>>,
}

/// Known processes from which on those that have ended are forgotten, at each doubling.
const PRUNE_AT: usize = 64;

impl Filters {
    /// `None`: the kernel does not tell (it does since Linux 5.9).
    pub fn new() -> Option<Filters> {
        Some(Filters {
            own: count(std::process::id())?,
            unfiltered: Mutex::default(),
        })
    }

    /// A process has connected.
    pub fn connected(&self, pid: u32) {
        let (Some(filters), Some(start)) = (count(pid), start_time(pid)) else {
            return;
        };
        if filters > self.own {
            return;
        }
        let mut unfiltered = self
            .unfiltered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if unfiltered.len() >= PRUNE_AT && unfiltered.len().is_power_of_two() {
            unfiltered.retain(|pid, start| start_time(*pid) == Some(*start));
        }
        unfiltered.insert(pid, start);
    }

    /// Whether the process is under a filter that somebody else put on it. `None`: it has ended.
    pub fn is_filtered(&self, pid: u32) -> Option<bool> {
        if count(pid)? <= self.own {
            return Some(false);
        }
        let start = start_time(pid)?;
        let unfiltered = self
            .unfiltered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Some(unfiltered.get(&pid) != Some(&start))
    }
}

/// How many seccomp filters a process runs under.
fn count(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp_filters:"))?
        .trim()
        .parse()
        .ok()
}

/// When a process began: with its number it names it, since numbers are used again.
fn start_time(pid: u32) -> Option<u64> {
    /// Field 22 of proc_pid_stat(5), counted from the state, which follows the name.
    const START_TIME: usize = 19;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(START_TIME)?.parse().ok()
}
