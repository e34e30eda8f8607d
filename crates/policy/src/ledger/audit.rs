//! The ledger counted again from nothing.

use std::collections::BTreeMap;

use super::spans::Spans;
use super::{ClientHandle, DeviceIndex, Ledger, MemId};
use crate::units::Bytes;

/// What holds a memory, counted from the objects, files and exports themselves.
#[derive(Default)]
struct Held {
    names: BTreeMap<u64, ClientHandle>,
    intervals: u64,
    exports: u64,
}

impl Ledger {
    /// Counts everything again from the objects, intervals, exports, managed ranges and
    /// reservations, and compares. For tests and debug builds: it visits the whole ledger.
    ///
    /// # Errors
    /// One line naming the first difference.
    pub fn audit(&self) -> Result<(), String> {
        let mut held: BTreeMap<MemId, Held> = BTreeMap::new();
        self.audit_trees(&mut held)?;
        for spans in self.uvm.values().flat_map(|state| state.maps.values()) {
            for id in spans.iter().filter_map(|(_, memory)| memory) {
                held.entry(id).or_default().intervals += 1;
            }
        }
        for id in self.exports.values().flatten() {
            held.entry(*id).or_default().exports += 1;
        }
        // 128 bits: the sum of what is counted again may be wrong, but must not wrap.
        let mut totals: BTreeMap<DeviceIndex, u128> = BTreeMap::new();
        let mut count =
            |device, size: Bytes| *totals.entry(device).or_default() += u128::from(size.0);
        for (id, memory) in &self.memories {
            let found = held.remove(id).unwrap_or_default();
            if found.names != memory.names
                || found.intervals != memory.intervals
                || found.exports != memory.exports
            {
                return Err(format!(
                    "{id:?} is held otherwise than recorded: {memory:?}"
                ));
            }
            if !memory.is_held() {
                return Err(format!("{id:?} is charged and nothing holds it"));
            }
            count(memory.device, memory.size);
        }
        if let Some(id) = held.keys().next() {
            return Err(format!("{id:?} is held and not charged"));
        }
        for (span, device) in self.managed.values().flat_map(Spans::iter) {
            count(device, Bytes(span.length()));
        }
        for reserved in self.outstanding.values() {
            count(reserved.device, reserved.size);
        }
        self.audit_counts()?;
        let host = (DeviceIndex::HOST.0, &self.host);
        for (index, account) in (0u8..DeviceIndex::HOST.0).zip(&self.accounts).chain([host]) {
            let total = totals.remove(&DeviceIndex(index)).unwrap_or_default();
            if total != u128::from(account.used.0) {
                return Err(format!(
                    "device {index}: {} is charged, {total} B is held",
                    account.used
                ));
            }
            if account.peak < account.used {
                return Err(format!(
                    "device {index}: the peak of {} is below the {} used",
                    account.peak, account.used
                ));
            }
        }
        match totals.into_iter().find(|(_, total)| *total > 0) {
            Some((device, total)) => Err(format!(
                "{total} B on device {}, which is not in the slice",
                device.0
            )),
            None => Ok(()),
        }
    }

    /// Every object is reached once from its client, by links that agree; collects what each holds.
    fn audit_trees(&self, held: &mut BTreeMap<MemId, Held>) -> Result<(), String> {
        for (client, tree) in &self.clients {
            let mut children = 0;
            for (handle, object) in &tree.objects {
                for child in &object.children {
                    let back = tree.objects.get(child).and_then(|child| child.parent);
                    if back != Some(*handle) {
                        return Err(format!(
                            "client {:#x}: {child:?} is a child of {handle:?} and not of it",
                            client.0
                        ));
                    }
                    children += 1;
                }
                for id in object.holds() {
                    if held
                        .entry(id)
                        .or_default()
                        .names
                        .insert(object.serial, *client)
                        .is_some()
                    {
                        return Err(format!(
                            "client {:#x}: {handle:?} names {id:?} twice",
                            client.0
                        ));
                    }
                }
            }
            // Each but the root has one parent that lists it; nothing hangs free.
            if children + 1 != tree.objects.len() {
                return Err(format!(
                    "client {:#x}: {children} children of {} objects",
                    client.0,
                    tree.objects.len()
                ));
            }
        }
        Ok(())
    }
}
