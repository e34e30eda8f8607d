//! Compares the ledger with what the kernel and the driver say.
//!
//! Once a second while the tenant makes calls: managed mappings with `/proc/PID/maps`, and the driver's number for the
//! helper's process with the ledger's. Memory that nobody charged ends the tenant, or is reported only.

use std::time::{Duration, Instant};

use policy::ledger::{DeviceIndex, Pid};
use policy::units::Bytes;

use crate::procfs;
use crate::spaces::Space;
use crate::sys::Tid;
use crate::tenant::Tenant;

/// A mapping that was charged may take this long to appear: until then its absence means nothing.
pub const MAPPING_GRACE: Duration = Duration::from_secs(1);

/// What an audit found wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// A process maps the UVM file where nothing was charged.
    UnchargedMapping {
        /// The process.
        process: Tid,
        /// First address.
        base: u64,
        /// Bytes.
        length: u64,
    },
    /// The driver says that the tenant holds more than the ledger does.
    UnchargedMemory {
        /// UUID of the device.
        device: String,
        /// What the driver says.
        driver: Bytes,
        /// What the ledger says.
        ledger: Bytes,
    },
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Finding::UnchargedMapping {
                process,
                base,
                length,
            } => {
                write!(
                    f,
                    "process {process} has a managed mapping of {} at {base:#x} that was never charged",
                    Bytes(*length)
                )
            }
            Finding::UnchargedMemory {
                device,
                driver,
                ledger,
            } => {
                write!(
                    f,
                    "the driver says that the tenant holds {driver} on {device}, the ledger says {ledger}"
                )
            }
        }
    }
}

/// The mappings of a process as the kernel lists them. Where its first thread has ended they are another thread's to
/// show; an empty list is none, since no program runs without a mapping.
fn maps_of(process: Tid) -> Option<String> {
    let read = |file: &str| {
        let maps = std::fs::read_to_string(file).ok()?;
        (!maps.is_empty()).then_some(maps)
    };
    read(&format!("/proc/{process}/maps")).or_else(|| {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
        threads
            .flatten()
            .find_map(|t| read(&format!("{}/maps", t.path().display())))
    })
}

/// The parts of a process's address space that map the UVM file: (base, length), ascending.
fn uvm_mappings(tenant: &Tenant, process: Tid) -> Option<Vec<(u64, u64)>> {
    Some(parse(tenant, &maps_of(process)?))
}

/// The parts of an address space that map the UVM file, as the kernel lists its mappings.
pub(crate) fn parse(tenant: &Tenant, maps: &str) -> Vec<(u64, u64)> {
    procfs::parse_maps(maps, |device, inode, path| {
        tenant.backend.maps_uvm(device, inode, path)
    })
}

/// The parts of `of` that no interval of `minus` covers. Both are (base, length).
pub(crate) fn uncovered(of: (u64, u64), minus: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = vec![of];
    for &(base, length) in minus {
        let end = base.saturating_add(length);
        left = left
            .into_iter()
            .flat_map(|(b, l)| {
                let e = b.saturating_add(l);
                let before = (b, base.min(e).saturating_sub(b));
                let after_start = end.max(b);
                let after = (after_start, e.saturating_sub(after_start));
                [before, after].into_iter().filter(|&(_, l)| l > 0)
            })
            .collect();
    }
    left
}

/// Enters what a process maps that makes its first call: nothing of that can be its own, since managed memory is made
/// on a file that a call has initialised.
pub fn note_inherited(tenant: &Tenant, process: Tid) {
    if tenant.files().nothing_managed() {
        return;
    }
    if let Some(mapped) = uvm_mappings(tenant, process) {
        tenant.files().set_inherited(process, mapped);
    }
}

/// Gives back the charge of managed memory that is no longer mapped (unmapping makes no call to see).
pub fn refresh_managed(tenant: &Tenant) {
    if tenant.files().nothing_managed() {
        return;
    }
    tenant.spaces.sweep(tenant);
    let processes: Vec<Tid> = tenant.processes().alive();
    for process in processes {
        let charged: Vec<(u64, u64)> = tenant.ledger().managed_of(Pid(process)).collect();
        if charged.is_empty() {
            continue;
        }
        let look = tenant.files().begin_look(process, Instant::now());
        let mut mapped = uvm_mappings(tenant, process);
        let shown = |mapped: &Vec<(u64, u64)>| {
            let mut gaps = charged.iter().flat_map(|&i| uncovered(i, mapped));
            gaps.next().is_none()
        };
        if mapped.as_ref().is_some_and(|mapped| !shown(mapped)) {
            // Unmapped, or the process has executed another program: somebody may be left where it was mapped.
            let held = tenant.spaces.mapped(tenant, process, &charged);
            mapped = mapped.zip(held).map(|(now, held)| [now, held].concat());
        }
        // What is charged from the beginning of the look on is not judged by the maps: its mapping may be younger. A
        // mapping is expected before it is charged, so none slips between the next line and the last.
        let mut files = tenant.files();
        let (Some(unseen), Some(mapped)) = (files.end_look(look), mapped) else {
            continue;
        };
        let mut ledger = tenant.ledger();
        let mut gone = Vec::new();
        for interval in charged {
            for gap in uncovered(interval, &mapped) {
                for (base, length) in uncovered(gap, &unseen) {
                    ledger.unmap_managed(Pid(process), base, length);
                    gone.push((base, length));
                }
            }
        }
        // A trace asks for the files itself.
        drop((ledger, files));
        if let Some(trace) = &tenant.trace {
            let unmapped = |&(base, length): &(u64, u64)| trace.unmapped(process, base, length);
            gone.iter().for_each(unmapped);
        }
    }
}

/// Whether a process is charged for managed memory here that is mapped in an address space which it has left; `space` is
/// the one that it has.
pub fn is_mapped_elsewhere(
    tenant: &Tenant,
    process: Tid,
    space: &Space,
    asked: (u64, u64),
) -> bool {
    let charged: Vec<(u64, u64)> = tenant.ledger().managed_of(Pid(process)).collect();
    // The parts of both.
    let common = |a, b: &[(u64, u64)]| -> Vec<(u64, u64)> {
        let without = uncovered(a, b);
        uncovered(a, &without)
    };
    let charged = common(asked, &charged);
    if charged.is_empty() {
        return false;
    }
    let now = space.mapped(tenant, &[asked]).unwrap_or_default();
    let not_here: Vec<(u64, u64)> = charged
        .into_iter()
        .flat_map(|part| uncovered(part, &now))
        .collect();
    if not_here.is_empty() {
        return false;
    }
    match tenant.spaces.mapped(tenant, process, &[asked]) {
        Some(held) => not_here
            .into_iter()
            .any(|part| !common(part, &held).is_empty()),
        None => true,
    }
}

/// One audit. The findings are what an honest tenant never causes.
pub fn audit(tenant: &Tenant) -> Vec<Finding> {
    let mut findings = Vec::new();
    if tenant.walls.managed_charged {
        refresh_managed(tenant);
        for process in tenant.processes().alive() {
            let mut found = uncharged_mappings(tenant, process);
            if !found.is_empty() {
                // It may have been unmapped, and its charge given back, between the look at one and at the other.
                found = uncharged_mappings(tenant, process);
            }
            findings.extend(found);
        }
    }
    for (i, device) in tenant.devices.iter().enumerate() {
        // Nothing may be allocated or freed between the two numbers.
        let _still = tenant.device_memory.write();
        let Ok(driver) = tenant.own.memory_of(&device.gpu, tenant.helper as u32) else {
            continue;
        };
        let ledger = tenant.ledger().used(DeviceIndex(i as u8));
        if tenant.walls == crate::tenant::Walls::default() && driver > ledger {
            findings.push(Finding::UnchargedMemory {
                device: device.gpu.uuid.clone(),
                driver,
                ledger,
            });
        }
    }
    findings
}

fn uncharged_mappings(tenant: &Tenant, process: Tid) -> Vec<Finding> {
    let Some(mapped) = uvm_mappings(tenant, process) else {
        return Vec::new();
    };
    // Read after the maps: whatever they show was charged before it was mapped.
    let charged: Vec<(u64, u64)> = tenant.ledger().managed_of(Pid(process)).collect();
    let mut covered = charged;
    let mut files = tenant.files();
    covered.extend(files.pools_of(process));
    let unmapped: Vec<(u64, u64)> = files
        .inherited(process)
        .iter()
        .flat_map(|&interval| uncovered(interval, &mapped))
        .collect();
    files.cut_inherited(process, &unmapped);
    covered.extend(files.inherited(process));
    drop(files);
    mapped
        .into_iter()
        .flat_map(|interval| uncovered(interval, &covered))
        .map(|(base, length)| Finding::UnchargedMapping {
            process,
            base,
            length,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_covered_is_what_is_left_of_every_cut() {
        assert_eq!(uncovered((100, 50), &[]), [(100, 50)]);
        assert_eq!(uncovered((100, 50), &[(90, 100)]), []);
        assert_eq!(uncovered((100, 50), &[(110, 10)]), [(100, 10), (120, 30)]);
        assert_eq!(uncovered((100, 50), &[(0, 110), (140, 100)]), [(110, 30)]);
        assert_eq!(uncovered((100, 50), &[(200, 10)]), [(100, 50)]);
        assert_eq!(uncovered((100, 50), &[(150, 10), (0, 100)]), [(100, 50)]);
    }
}
