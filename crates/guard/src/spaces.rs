//! Address spaces with managed memory. It lies in the address space, whoever mapped it there: a process may end, or
//! execute another program, while a second one (clone(2) with `CLONE_VM`), or the UVM file that keeps an address space,
//! keeps what it mapped.
//!
//! Two files of `/proc` are held of each: `maps` shows its mappings for as long as the process that it was opened for
//! runs, whatever that executes meanwhile; `mem` tells for as long as it is open whether anybody uses the address space.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use policy::ledger::Pid;

use crate::audit::{parse, uncovered};
use crate::procmap::{self, Mapping};
use crate::sys::Tid;
use crate::tenant::{Tenant, lock};

/// Spaces held of one process before those are let go that have nothing more to say, and at most after that.
const MOST_OF_ONE: usize = 4;
/// So many intervals are not asked about one by one.
const MANY: usize = 64;
/// All addresses that there can be.
const EVERYWHERE: (u64, u64) = (0, u64::MAX);

/// One address space.
#[derive(Debug)]
pub struct Space {
    maps: Mutex<File>,
    memory: File,
}

impl Space {
    /// The address space that a thread has now, if it still runs.
    ///
    /// # Errors
    /// It may not be looked into, or there are no descriptors left.
    pub fn open(process: Tid, thread: Tid) -> io::Result<Space> {
        let maps = File::open(format!("/proc/{process}/maps"));
        // Where the first thread has ended, it shows nothing.
        let maps = match maps.and_then(|maps| Ok((shows(&maps)?, maps))) {
            Ok((true, maps)) => maps,
            _ => File::open(format!("/proc/{thread}/maps"))?,
        };
        Ok(Space {
            maps: Mutex::new(maps),
            memory: File::open(format!("/proc/{thread}/mem"))?,
        })
    }

    /// Its mappings of the UVM file that have a part in one of these intervals (base, length); none, if nobody uses it any
    /// more. `None`: it cannot be told.
    pub fn mapped(&self, tenant: &Tenant, within: &[(u64, u64)]) -> Option<Vec<(u64, u64)>> {
        let mut maps = lock(&self.maps);
        let found = match within.len() {
            ..MANY => (within.iter().copied())
                .map(|interval| queried(&maps, tenant, interval))
                .collect::<io::Result<Vec<_>>>()
                .map(|found| found.concat()),
            _ => queried(&maps, tenant, EVERYWHERE),
        };
        match found {
            Ok(found) => return Some(found),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Some(Vec::new()),
            // An older kernel, or a mapping that it does not name this way.
            Err(_) => {}
        }
        let mut text = String::new();
        maps.rewind().ok()?;
        maps.read_to_string(&mut text).ok()?;
        drop(maps);
        let mut found = parse(tenant, &text);
        found.retain(|&m| within.iter().any(|&w| m.0 < end(w) && w.0 < end(m)));
        Some(found)
    }

    /// Whether somebody uses it: nobody can read, or fail to read, what is not there.
    fn is_used(&self) -> bool {
        !matches!(self.memory.read_at(&mut [0], 0), Ok(0))
    }
}

fn end((base, length): (u64, u64)) -> u64 {
    base.saturating_add(length)
}

/// Whether the kernel shows any mapping here.
fn shows(maps: &File) -> io::Result<bool> {
    match procmap::at_or_behind(maps, 0, false) {
        Ok(first) => Ok(first.is_some()),
        Err(_) => Ok(maps.read_at(&mut [0], 0)? == 1),
    }
}

/// The mappings of the UVM file with a part in an interval, asked one by one. It is always shared.
fn queried(maps: &File, tenant: &Tenant, asked: (u64, u64)) -> io::Result<Vec<(u64, u64)>> {
    // The few in a short interval are asked whatever they are: else the kernel would look at all behind it.
    const SHORT: u64 = 1 << 30;
    let (mut at, mut found) = (asked.0, Vec::new());
    while at < end(asked) {
        let Some(mapping) = procmap::at_or_behind(maps, at, asked.1 > SHORT)? else {
            break;
        };
        if mapping.start >= end(asked) {
            break;
        }
        let is_uvm = |m: &Mapping| tenant.backend.maps_uvm(&m.device, m.inode, &m.path);
        if is_uvm(&mapping) {
            found.push((mapping.start, mapping.end - mapping.start));
        }
        at = mapping.end;
    }
    Ok(found)
}

/// The address spaces of one tenant that had managed memory when they were looked at last.
#[derive(Debug)]
pub struct Spaces {
    of: Mutex<HashMap<Tid, Vec<Arc<Space>>>>,
    /// Those whose process has ended, by the name under which the ledger keeps their charge.
    left: Mutex<Vec<(Pid, Vec<Arc<Space>>)>>,
    /// So many may be held at once: each takes two descriptors.
    most: usize,
}

impl Spaces {
    /// None yet.
    pub fn new(most: usize) -> Spaces {
        Spaces {
            of: Mutex::default(),
            left: Mutex::default(),
            most,
        }
    }

    fn of(&self, process: Tid) -> Vec<Arc<Space>> {
        lock(&self.of).get(&process).cloned().unwrap_or_default()
    }

    /// Holds the space in which a process is about to map managed memory, and gives it.
    ///
    /// # Errors
    /// `EMFILE`: the tenant has more of them than the helper can hold.
    pub fn hold(&self, tenant: &Tenant, process: Tid, space: Space) -> io::Result<Arc<Space>> {
        let mut held = self.of(process);
        if held.len() >= MOST_OF_ONE {
            // Nearly always the same space again and again: what is charged is mapped in the new one too.
            let charged: Vec<(u64, u64)> = tenant.ledger().managed_of(Pid(process)).collect();
            let now = space.mapped(tenant, &charged).unwrap_or_default();
            held.retain(|other| {
                other
                    .mapped(tenant, &charged)
                    .is_none_or(|mapped| mapped.into_iter().any(|m| !uncovered(m, &now).is_empty()))
            });
        }
        let mut of = lock(&self.of);
        // A process that was killed just before it was to map something is held for nothing.
        of.retain(|&p, _| p == process || tenant.processes().knows(p));
        let others: usize = of
            .iter()
            .filter(|(p, _)| **p != process)
            .map(|(_, s)| s.len())
            .sum();
        let left: usize = lock(&self.left).iter().map(|(_, s)| s.len()).sum();
        if held.len() >= MOST_OF_ONE || others + left + held.len() >= self.most {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let space = Arc::new(space);
        held.push(space.clone());
        of.insert(process, held);
        Ok(space)
    }

    /// As [`Space::mapped`], of whatever address space a process has had.
    pub fn mapped(
        &self,
        tenant: &Tenant,
        process: Tid,
        within: &[(u64, u64)],
    ) -> Option<Vec<(u64, u64)>> {
        let mut all = Vec::new();
        for space in self.of(process) {
            all.extend(space.mapped(tenant, within)?);
        }
        Some(all)
    }

    /// A process has ended: what it was charged for is its address spaces' until [`Spaces::sweep`] finds them gone. Looks
    /// into nothing.
    pub fn process_ended(&self, tenant: &Tenant, process: Tid) {
        let spaces = lock(&self.of).remove(&process).unwrap_or_default();
        let mut ledger = tenant.ledger();
        if spaces.is_empty() {
            ledger.exit_process(Pid(process));
        } else if let Some(left) = ledger.leave_managed(Pid(process)) {
            drop(ledger);
            lock(&self.left).push((left, spaces));
        }
    }

    /// Gives back what was charged for address spaces that nobody uses any more.
    pub fn sweep(&self, tenant: &Tenant) {
        let left = lock(&self.left).clone();
        let is_gone = |spaces: &[Arc<Space>]| !spaces.iter().any(|space| space.is_used());
        let gone: Vec<Pid> = left
            .into_iter()
            .filter(|(_, spaces)| is_gone(spaces))
            .map(|(pid, _)| pid)
            .collect();
        lock(&self.left).retain(|(pid, _)| !gone.contains(pid));
        for pid in gone {
            tenant.ledger().exit_process(pid);
        }
    }
}
