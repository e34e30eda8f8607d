//! What the tenant holds by address: external mappings of UVM files, and managed memory of
//! processes.

use std::collections::BTreeMap;

use super::spans::{Cut, Span, Spans};
use super::{
    ClientHandle, DeviceIndex, Freed, Ledger, MemId, ObjectHandle, Pid, Released, Reservation,
    UvmFile,
};
use crate::units::Bytes;

/// What one UVM file maps.
#[derive(Debug, Default)]
pub(super) struct UvmState {
    /// External ranges: freed as a whole, with all mappings in them.
    ranges: Spans<()>,
    /// What is mapped on each GPU. `None`: nothing of this ledger (host memory, say).
    pub(super) maps: BTreeMap<DeviceIndex, Spans<Option<MemId>>>,
}

impl Ledger {
    /// Records an external range of a UVM file. Returns what ranges at the same addresses still
    /// held, as the driver refuses a range where one is.
    pub fn create_range(&mut self, file: UvmFile, base: u64, length: u64) -> Freed {
        let mut freed = Freed::default();
        let Some(span) = Span::new(base, length) else {
            return freed;
        };
        // Ranges can't be shortened, so what overlaps is gone as a whole.
        let ranges = &mut self.uvm.entry(file).or_default().ranges;
        let stale = ranges.overlapping(span);
        for range in &stale {
            ranges.cut(*range);
        }
        ranges.put(span, ());
        for range in stale {
            freed.append(self.cut_all(file, range));
        }
        freed
    }

    /// Records that an object is mapped on a GPU. It holds the object's memory until the interval
    /// is unmapped, mapped over, freed with its range or gone with the file; an interval that is
    /// mapped over in part is shortened or split, and each part holds. Call once for every GPU of
    /// the request. An object without memory, or an unknown one, still takes the place of what was
    /// mapped there.
    pub fn map(
        &mut self,
        file: UvmFile,
        device: DeviceIndex,
        base: u64,
        length: u64,
        client: ClientHandle,
        handle: ObjectHandle,
    ) -> Freed {
        let Some(span) = Span::new(base, length) else {
            return Freed::default();
        };
        let memory = self.object(client, handle).and_then(|object| object.memory);
        let memory = memory.filter(|_| self.walls.mapping_outlives_free);
        // Held first: what is mapped over may be the same memory.
        if let Some(memory) = memory.and_then(|id| self.memories.get_mut(&id)) {
            memory.intervals += 1;
        }
        let spans = self
            .uvm
            .entry(file)
            .or_default()
            .maps
            .entry(device)
            .or_default();
        let cuts = spans.cut(span);
        spans.put(span, memory);
        self.drop_intervals(cuts)
    }

    /// Records that addresses of one GPU are unmapped. They need not be whole intervals.
    pub fn unmap(&mut self, file: UvmFile, device: DeviceIndex, base: u64, length: u64) -> Freed {
        let spans = self
            .uvm
            .get_mut(&file)
            .and_then(|state| state.maps.get_mut(&device));
        match (spans, Span::new(base, length)) {
            (Some(spans), Some(span)) => {
                let cuts = spans.cut(span);
                self.drop_intervals(cuts)
            }
            _ => Freed::default(),
        }
    }

    /// Records that the external range which begins at `base` is freed, with all mappings in it on
    /// every GPU.
    pub fn free_range(&mut self, file: UvmFile, base: u64) -> Freed {
        let Some(state) = self.uvm.get_mut(&file) else {
            return Freed::default();
        };
        let Some(range) = state.ranges.starting_at(base) else {
            return Freed::default();
        };
        state.ranges.cut(range);
        self.cut_all(file, range)
    }

    /// What a UVM file maps of this ledger's memory, as (device, base, length).
    pub fn mapped_by(&self, file: UvmFile) -> impl Iterator<Item = (DeviceIndex, u64, u64)> + '_ {
        let maps = self.uvm.get(&file).into_iter();
        maps.flat_map(|state| &state.maps)
            .flat_map(|(&device, spans)| {
                let held = spans.iter().filter(|(_, memory)| memory.is_some());
                held.map(move |(span, _)| (device, span.start, span.length()))
            })
    }

    /// The first mapping of this ledger's memory that a UVM file has on a GPU at or behind `from`, as (base, length).
    pub fn next_mapped(&self, file: UvmFile, device: DeviceIndex, from: u64) -> Option<(u64, u64)> {
        let mut behind = self.uvm.get(&file)?.maps.get(&device)?.starting_from(from);
        let (span, _) = behind.find(|(_, memory)| memory.is_some())?;
        Some((span.start, span.length()))
    }

    /// Records that a UVM file is gone: its last descriptor and mapping.
    pub fn close_uvm(&mut self, file: UvmFile) -> Freed {
        let state = self.uvm.remove(&file).unwrap_or_default();
        let mut freed = Freed::default();
        for memory in state
            .maps
            .values()
            .flat_map(Spans::iter)
            .filter_map(|(_, memory)| memory)
        {
            self.drop_hold(memory, &mut freed, |memory| memory.intervals -= 1);
        }
        freed
    }

    /// Records managed memory of a process, reserved in full on one device, because it can move
    /// there at any access. The reservation's amount must be `length`. Returns what was mapped
    /// over.
    pub fn map_managed(
        &mut self,
        reservation: Reservation,
        pid: Pid,
        base: u64,
        length: u64,
    ) -> Freed {
        debug_assert_eq!(
            reservation.amount(),
            Bytes(length),
            "managed memory is charged by its length"
        );
        let Released { device, size } = self.settle(reservation);
        self.uncharge(device, size);
        let Some(span) = Span::new(base, length) else {
            return Freed::default();
        };
        self.charge(device, Bytes(span.length()));
        let spans = self.managed.entry(pid).or_default();
        let cuts = spans.cut(span);
        spans.put(span, device);
        self.return_managed(cuts)
    }

    /// Records that addresses of a process's managed memory are unmapped; they need not be whole
    /// ranges.
    pub fn unmap_managed(&mut self, pid: Pid, base: u64, length: u64) -> Freed {
        match (self.managed.get_mut(&pid), Span::new(base, length)) {
            (Some(spans), Some(span)) => {
                let cuts = spans.cut(span);
                if spans.is_empty() {
                    self.managed.remove(&pid);
                }
                self.return_managed(cuts)
            }
            _ => Freed::default(),
        }
    }

    /// The managed memory of a process as (base, length), in order of address.
    pub fn managed_of(&self, pid: Pid) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.managed
            .get(&pid)
            .into_iter()
            .flat_map(Spans::iter)
            .map(|(span, _)| (span.start, span.length()))
    }

    /// Records that a process is gone, with its address space: its managed memory returns. Its
    /// clients and UVM files may live on in a child and go by [`Ledger::free_client`] and
    /// [`Ledger::close_uvm`] at their last close.
    pub fn exit_process(&mut self, pid: Pid) -> Freed {
        self.unmap_managed(pid, 0, u64::MAX)
    }

    /// Records that a process is gone while somebody may still use its address space: its managed memory counts under the
    /// name that is returned, which is no process's, until [`Ledger::exit_process`] of that. `None`: it has none.
    pub fn leave_managed(&mut self, pid: Pid) -> Option<Pid> {
        let spans = self.managed.remove(&pid)?;
        let lowest = self.managed.keys().next().map_or(0, |pid| pid.0);
        let left = Pid(lowest.min(0) - 1);
        self.managed.insert(left, spans);
        Some(left)
    }

    /// Unmaps addresses of a file on every GPU.
    fn cut_all(&mut self, file: UvmFile, span: Span) -> Freed {
        let Some(state) = self.uvm.get_mut(&file) else {
            return Freed::default();
        };
        let cuts = state
            .maps
            .values_mut()
            .flat_map(|spans| spans.cut(span))
            .collect();
        self.drop_intervals(cuts)
    }

    /// An interval that is gone holds no longer; one that is split holds twice.
    fn drop_intervals(&mut self, cuts: Vec<Cut<Option<MemId>>>) -> Freed {
        let mut freed = Freed::default();
        for cut in cuts {
            if let Some(memory) = cut.value {
                // A cut interval was counted once, so this does not go below zero.
                self.drop_hold(memory, &mut freed, |memory| {
                    memory.intervals = memory.intervals - 1 + u64::from(cut.left)
                });
            }
        }
        freed
    }

    fn return_managed(&mut self, cuts: Vec<Cut<DeviceIndex>>) -> Freed {
        let mut freed = Freed::default();
        for cut in cuts {
            let released = Released {
                device: cut.value,
                size: Bytes(cut.bytes),
            };
            self.uncharge(released.device, released.size);
            freed.memory.push(released);
        }
        freed
    }
}
