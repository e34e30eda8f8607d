//! Where the addresses of a stream lie when it is made again, and which ranges must be there.

use std::collections::HashMap;

use rm::{Abi, uvm};

use crate::stream::{Answer, Call, Event, Item, Value, What};

/// Far below where programs and their libraries lie, and far above where static ones do.
const FIRST: u64 = 0x2000_0000_0000;
const GIB: u64 = 1 << 30;

/// A range for external mappings, whose creation the filter lets through unseen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Its base.
    pub base: u64,
    /// Its bytes.
    pub length: u64,
}

/// Where the addresses of a stream lie.
pub struct Places {
    /// Where the address of distance 0 lies, by name.
    starts: HashMap<u32, u64>,
    /// Ranges that must be made before an event, by its place in the stream.
    before: HashMap<usize, Vec<Range>>,
}

/// The address and the length that a call is about.
pub fn interval(call: &Call) -> Option<(Value, u64)> {
    let at = call
        .block
        .iter()
        .position(|item| matches!(item.value, Value::Address(..)))?;
    let behind = call.block.iter().find(|i| i.at == call.block[at].at + 8);
    let length = match behind {
        Some(Item {
            value: Value::Number(length),
            ..
        }) => *length,
        _ => 0,
    };
    Some((call.block[at].value, length))
}

impl Places {
    /// Looks at a whole stream.
    pub fn of(abi: &Abi, events: &[(usize, Event)]) -> Places {
        let calls = || {
            events
                .iter()
                .enumerate()
                .filter_map(|(i, (_, event))| match event {
                    Event::Call(call, _) => Some((i, call)),
                    _ => None,
                })
        };
        let mut extents: HashMap<u32, (i64, i64)> = HashMap::new();
        for (value, length) in calls().filter_map(|(_, call)| interval(call)) {
            if let Value::Address(name, off) = value {
                let extent = extents.entry(name).or_insert((off, off));
                extent.0 = extent.0.min(off);
                extent.1 = extent.1.max(off.saturating_add_unsigned(length));
            }
        }
        let mut names: Vec<(u32, (i64, i64))> = extents.into_iter().collect();
        names.sort_unstable();
        let (mut starts, mut next) = (HashMap::new(), FIRST);
        for (name, (low, high)) in names {
            let start = next + low.min(0).unsigned_abs().next_multiple_of(GIB);
            starts.insert(name, start);
            next = (start + high.max(0) as u64).next_multiple_of(GIB) + GIB;
        }
        let mut places = Places {
            starts,
            before: HashMap::new(),
        };
        places.find_ranges(abi, calls().collect());
        places
    }

    /// Where an address lies.
    pub fn at(&self, name: u32, off: i64) -> u64 {
        let start = self.starts.get(&name).copied().unwrap_or(FIRST);
        start.wrapping_add_signed(off)
    }

    /// Ranges that must be made before this event.
    pub fn ranges_before(&self, event: usize) -> &[Range] {
        self.before.get(&event).map_or(&[], Vec::as_slice)
    }

    /// A range is what is freed as one. What is never freed is taken to be as large as what was mapped.
    fn find_ranges(&mut self, abi: &Abi, calls: Vec<(usize, &Call)>) {
        let with_length = abi.layout().uvm_free.length.is_some();
        // Uses of ranges that nobody has freed yet: file, interval, and which call it was.
        let mut open: Vec<(u32, Range, usize)> = Vec::new();
        // Ranges that a call made which is seen.
        let mut seen: Vec<(u32, u64)> = Vec::new();
        for (i, call) in calls {
            let (What::Uvm(request), Answer::Status(0)) = (call.what, call.answer) else {
                continue;
            };
            let Some((Value::Address(name, off), length)) = interval(call) else {
                continue;
            };
            let base = self.at(name, off);
            match request {
                uvm::MAP_EXTERNAL_ALLOCATION | uvm::UNMAP_EXTERNAL => {
                    open.push((call.file, Range { base, length }, i));
                }
                uvm::ALLOC_SEMAPHORE_POOL
                | uvm::MAP_DYNAMIC_PARALLELISM_REGION
                | uvm::ALLOC_DEVICE_P2P => seen.push((call.file, base)),
                uvm::FREE => {
                    if let Some(at) = seen.iter().position(|&s| s == (call.file, base)) {
                        seen.swap_remove(at);
                        continue;
                    }
                    let length = if with_length {
                        length
                    } else {
                        reach(&open, call.file, base)
                    };
                    let inside = |&(file, range, _): &(u32, Range, usize)| {
                        file == call.file && range.base >= base && range.base - base < length
                    };
                    let first = open.iter().filter(|u| inside(u)).map(|u| u.2).min();
                    open.retain(|used| !inside(used));
                    let made = self.before.entry(first.unwrap_or(i)).or_default();
                    made.push(Range { base, length });
                }
                _ => {}
            }
        }
        // Joined where they overlap; made when the first of them is used.
        open.sort_by_key(|&(file, range, _)| (file, range.base));
        let mut joined: Vec<(u32, Range, usize)> = Vec::new();
        for (file, range, i) in open {
            match joined.last_mut() {
                Some((of, last, first)) if *of == file && range.base < last.base + last.length => {
                    last.length = last.length.max(range.base + range.length - last.base);
                    *first = i.min(*first);
                }
                _ => joined.push((file, range, i)),
            }
        }
        for (_, range, first) in joined {
            self.before.entry(first).or_default().push(range);
        }
    }
}

/// How far the uses of a range go that begins at `base`, one behind the other.
fn reach(open: &[(u32, Range, usize)], file: u32, base: u64) -> u64 {
    let mut end = base;
    while let Some((_, range, _)) = open.iter().find(|(of, range, _)| {
        *of == file && range.base <= end && range.base >= base && range.base + range.length > end
    }) {
        end = range.base + range.length;
    }
    end - base
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream;

    #[test]
    fn ranges_are_made_before_their_first_use_and_as_large_as_what_is_freed() {
        let text = "gpuslice-stream 1 driver 580.159.04 gpus 1\n\
            p1 f1:uvm 68 0q=a1+0 8q=0x1000 -> 0\n\
            p1 f1:uvm 33 0q=a1+0x200000 8q=0x1000 -> 0\n\
            p1 f1:uvm 33 0q=a1+0x201000 8q=0x1000 -> 0\n\
            p1 f1:uvm 34 0q=a1+0x200000 8q=0x200000 -> 0\n\
            p1 f1:uvm 34 0q=a1+0 8q=0x1000 -> 0\n\
            p1 f1:uvm 33 0q=a1-0x400000 8q=0x2000 -> 0\n\
            p1 f1:uvm 66 0q=a1-0x3ff000 8q=0x3000 -> 0\n\
            p1 f1:uvm 33 0q=a1-0x3fc000 8q=0x2000 -> 0\n\
            p1 f1:uvm 33 0q=a1+0x200000 8q=0x5000 -> 0x51\n";
        let abi = rm::for_driver("580.159.04").unwrap().abi;
        let (_, events) = stream::parse(text).unwrap();
        let places = Places::of(abi, &events);
        let zero = places.at(1, 0);
        assert!(zero > FIRST && zero.is_multiple_of(GIB));
        let range = |from: u64, length| Range { base: from, length };
        assert_eq!(
            places.ranges_before(1),
            [range(zero + 0x20_0000, 0x20_0000)]
        );
        assert_eq!(places.ranges_before(5), [range(zero - 0x40_0000, 0x4000)]);
        assert_eq!(places.ranges_before(7), [range(zero - 0x3f_c000, 0x2000)]);
        assert_eq!(
            places.before.len(),
            3,
            "not for a pool, nor for what failed"
        );
    }
}
