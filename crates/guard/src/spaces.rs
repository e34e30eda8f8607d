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
use crate::sys::Tid;
use crate::tenant::{Tenant, lock};

/// Spaces held of one process before those are let go that have nothing more to say, and at most after that.
const MOST_OF_ONE: usize = 4;

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
        let maps = match maps.and_then(|maps| Ok((maps.read_at(&mut [0], 0)?, maps))) {
            Ok((1, maps)) => maps,
            _ => File::open(format!("/proc/{thread}/maps"))?,
        };
        Ok(Space {
            maps: Mutex::new(maps),
            memory: File::open(format!("/proc/{thread}/mem"))?,
        })
    }

    /// Where it maps the UVM file; nowhere, if nobody uses it any more. `None`: it cannot be told.
    fn mapped(&self, tenant: &Tenant) -> Option<Vec<(u64, u64)>> {
        let mut text = String::new();
        let mut maps = lock(&self.maps);
        maps.rewind().ok()?;
        maps.read_to_string(&mut text).ok()?;
        drop(maps);
        Some(parse(tenant, &text))
    }

    /// Whether somebody uses it: nobody can read, or fail to read, what is not there.
    fn is_used(&self) -> bool {
        !matches!(self.memory.read_at(&mut [0], 0), Ok(0))
    }
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

    /// Holds the space in which a process is about to map managed memory.
    ///
    /// # Errors
    /// `EMFILE`: the tenant has more of them than the helper can hold.
    pub fn hold(&self, tenant: &Tenant, process: Tid, space: Space) -> io::Result<()> {
        let mut held = self.of(process);
        if held.len() >= MOST_OF_ONE {
            // Nearly always the same space again and again.
            let now = space.mapped(tenant).unwrap_or_default();
            held.retain(|other| {
                other
                    .mapped(tenant)
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
        held.push(Arc::new(space));
        of.insert(process, held);
        Ok(())
    }

    /// Where a process maps the UVM file, in whatever address space it has had. `None`: it cannot be told.
    pub fn mapped(&self, tenant: &Tenant, process: Tid) -> Option<Vec<(u64, u64)>> {
        let mut all = Vec::new();
        for space in self.of(process) {
            all.extend(space.mapped(tenant)?);
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
