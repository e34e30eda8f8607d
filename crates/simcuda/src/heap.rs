//! A suballocator: cuts small allocations out of chunks. It hands out numbers only; whoever uses it owns the memory.

use std::collections::BTreeMap;

/// Free space of one or several chunks. Every chunk is a range of addresses.
#[derive(Default, Debug)]
pub struct Heap {
    /// Chunks by their base.
    chunks: BTreeMap<u64, Chunk>,
    /// What was handed out: address to length.
    taken: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Chunk {
    used: u64,
    /// Free gaps: start to length. Neighbours are merged.
    gaps: BTreeMap<u64, u64>,
}

/// The unit of a suballocation, bytes: what CUDA promises of the alignment of an allocation.
pub const UNIT: u64 = 512;

impl Heap {
    /// Adds a chunk.
    pub fn add(&mut self, base: u64, length: u64) {
        self.chunks.insert(
            base,
            Chunk {
                used: 0,
                gaps: BTreeMap::from([(base, length)]),
            },
        );
    }

    /// Takes `size` bytes from the first gap that has room.
    pub fn take(&mut self, size: u64) -> Option<u64> {
        let size = size.max(1).checked_next_multiple_of(UNIT)?;
        for chunk in self.chunks.values_mut() {
            let Some((&start, &length)) = chunk.gaps.iter().find(|(_, length)| **length >= size)
            else {
                continue;
            };
            chunk.gaps.remove(&start);
            if length > size {
                chunk.gaps.insert(start + size, length - size);
            }
            chunk.used += size;
            self.taken.insert(start, size);
            return Some(start);
        }
        None
    }

    /// Gives an allocation back; false if there is none at this address.
    pub fn give(&mut self, address: u64) -> bool {
        let Some(size) = self.taken.remove(&address) else {
            return false;
        };
        let Some((_, chunk)) = self.chunks.range_mut(..=address).next_back() else {
            return false;
        };
        chunk.used -= size;
        let (mut start, mut length) = (address, size);
        if let Some((&before, &gap)) = chunk.gaps.range(..address).next_back()
            && before + gap == address
        {
            chunk.gaps.remove(&before);
            start = before;
            length += gap;
        }
        if let Some(gap) = chunk.gaps.remove(&(address + size)) {
            length += gap;
        }
        chunk.gaps.insert(start, length);
        true
    }

    /// Removes the chunks that nothing is taken from, except the first `keep` of them; gives their bases, last first.
    pub fn drain_empty(&mut self, keep: usize) -> Vec<u64> {
        let empty: Vec<u64> = self
            .chunks
            .iter()
            .filter(|(_, chunk)| chunk.used == 0)
            .map(|(base, _)| *base)
            .skip(keep)
            .collect();
        for base in &empty {
            self.chunks.remove(base);
        }
        empty.into_iter().rev().collect()
    }
}
