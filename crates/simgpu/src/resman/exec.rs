//! What work does to memory: address translation, then the bytes.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use super::Rm;
use super::memory::Backing;
use super::store::Store;
use crate::proto::FileId;
use crate::work::{Kernel, Op};

/// Bytes moved at a time.
const STEP: u64 = 1 << 20;

/// A range of GPU addresses that work reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    pub address: u64,
    pub length: u64,
}

/// What a range of addresses is.
pub struct Span {
    target: Target,
    length: u64,
}

enum Target {
    /// Memory kept by the server, from this offset.
    Store(Arc<Store>, u64),
    /// Pinned pages of a process.
    Pages { pid: u32, address: u64 },
    /// Pages of a UVM file, which the process maps at the same address.
    File(Arc<OwnedFd>, u64),
}

/// The ranges of a piece of work, translated, in the order of [`touches`].
pub type Plan = Vec<(Touch, Vec<Span>)>;

/// The ranges that a piece of work reaches. What is read comes before what is written.
pub fn touches(op: &Op) -> Vec<Touch> {
    let touch = |address: u64, count: u64, size: u64| Touch {
        address,
        length: count.saturating_mul(size),
    };
    match op {
        Op::Write { dst, bytes } => vec![touch(*dst, bytes.len() as u64, 1)],
        Op::Read { src, len } => vec![touch(*src, *len, 1)],
        Op::Copy { dst, src, len } => vec![touch(*src, *len, 1), touch(*dst, *len, 1)],
        Op::Fill {
            dst, width, count, ..
        } => vec![touch(*dst, *count, u64::from(*width))],
        Op::Launch(Kernel::Fill { p, n, .. }) => vec![touch(*p, *n, 4)],
        Op::Launch(Kernel::Saxpy { x, y, n, .. }) => vec![touch(*x, *n, 4), touch(*y, *n, 4)],
        Op::Launch(Kernel::Sum { p, n, out }) => vec![touch(*p, *n, 4), touch(*out, 1, 8)],
        Op::Launch(Kernel::Spin { .. }) | Op::Wait => Vec::new(),
    }
}

impl Rm {
    /// Translates the addresses of a channel's work; managed memory moves onto the device.
    ///
    /// # Errors
    /// The first address that nothing is mapped at.
    pub fn translate(&mut self, channel: u64, pid: u32, touches: &[Touch]) -> Result<Plan, u64> {
        let mut plan = Plan::new();
        let Some(first) = touches.first() else {
            return Ok(plan);
        };
        let (file, gpu) = self.address_space(channel).ok_or(first.address)?;
        for touch in touches {
            plan.push((*touch, self.translate_range(file, gpu, pid, *touch)?));
        }
        Ok(plan)
    }

    /// The UVM file and GPU behind a channel's address space.
    fn address_space(&self, channel: u64) -> Option<(FileId, usize)> {
        let channel = self.channels.get(&channel)?;
        let gpu = self.groups.get(&channel.group)?.gpu;
        let handle = self.channel_vaspace(channel);
        let registered = |uvm: &super::uvm::Uvm| {
            let same = |space: &super::uvm::Space| {
                space.gpu == gpu
                    && space.client == channel.client
                    && (handle == 0 || space.handle == handle)
            };
            uvm.spaces.iter().any(same)
        };
        let found = self
            .files
            .iter()
            .find(|(_, file)| file.uvm.as_deref().is_some_and(registered));
        found.map(|(&file, _)| (file, gpu))
    }

    fn translate_range(
        &mut self,
        file: FileId,
        gpu: usize,
        pid: u32,
        touch: Touch,
    ) -> Result<Vec<Span>, u64> {
        let mut spans = Vec::new();
        let end = touch
            .address
            .checked_add(touch.length)
            .ok_or(touch.address)?;
        let mut at = touch.address;
        let mut looked = false;
        while at < end {
            let (target, until) = match self.mapped(file, gpu, at) {
                Some(found) => found,
                None => {
                    // Once for a range: the caller's mappings are read from /proc.
                    if !looked {
                        self.refresh_managed_of(file, pid);
                        looked = true;
                    }
                    let until = self.touch_managed(file, gpu, pid, at, end).ok_or(at)?;
                    let pages = self
                        .files
                        .get(&file)
                        .map(|file| Arc::clone(&file.pages))
                        .ok_or(at)?;
                    (Target::File(pages, at), until)
                }
            };
            let length = until.min(end) - at;
            spans.push(Span { target, length });
            at += length;
        }
        Ok(spans)
    }

    /// What UVM has mapped at an address, and where that ends.
    fn mapped(&self, file: FileId, gpu: usize, address: u64) -> Option<(Target, u64)> {
        let open = self.files.get(&file)?;
        let uvm = open.uvm.as_deref()?;
        if let Some((base, map)) = uvm.map_at(gpu, address) {
            let offset = map.offset + (address - base);
            let target = match self.memories.get(&map.memory)?.backing.clone() {
                Backing::Store(store) => Target::Store(store, offset),
                Backing::Pages { pid, address } => Target::Pages {
                    pid,
                    address: address.checked_add(offset)?,
                },
                Backing::Nothing => return None,
            };
            return Some((target, base + map.length));
        }
        let end = uvm.semaphores_at(address)?;
        Some((Target::File(Arc::clone(&open.pages), address), end))
    }
}

/// Moves the bytes. Returns what was read for the host.
///
/// # Errors
/// The address of a page that turned out not to be there.
pub fn perform(op: &Op, plan: &Plan) -> Result<Vec<u8>, u64> {
    let range = |index: usize| Range {
        touch: plan[index].0,
        spans: &plan[index].1,
    };
    match op {
        Op::Write { bytes, .. } => range(0).write(0, bytes)?,
        Op::Read { len, .. } => {
            let mut bytes = vec![0; usize::try_from(*len).unwrap_or(0)];
            range(0).read(0, &mut bytes)?;
            return Ok(bytes);
        }
        Op::Copy { len, .. } => copy(&range(0), &range(1), *len)?,
        Op::Fill { value, width, .. } => range(0).fill(match width {
            1 => (value & 0xff) * 0x0101_0101,
            2 => (value & 0xffff) * 0x0001_0001,
            _ => *value,
        })?,
        Op::Launch(Kernel::Fill { value, .. }) => range(0).fill(*value)?,
        Op::Launch(Kernel::Saxpy { a, n, .. }) => {
            let (x, y) = (range(0), range(1));
            for (offset, length) in steps(n * 4) {
                let (mut xs, mut ys) = (vec![0; length], vec![0; length]);
                x.read(offset, &mut xs)?;
                y.read(offset, &mut ys)?;
                for (x, y) in xs.as_chunks::<4>().0.iter().zip(ys.as_chunks_mut::<4>().0) {
                    *y = (a * f32::from_le_bytes(*x) + f32::from_le_bytes(*y)).to_le_bytes();
                }
                y.write(offset, &ys)?;
            }
        }
        Op::Launch(Kernel::Sum { n, .. }) => {
            let mut sum = 0_u64;
            for (offset, length) in steps(n * 4) {
                let mut words = vec![0; length];
                range(0).read(offset, &mut words)?;
                let words = words
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|word| u64::from(u32::from_le_bytes(*word)));
                sum = sum.wrapping_add(words.sum());
            }
            range(1).write(0, &sum.to_le_bytes())?;
        }
        Op::Launch(Kernel::Spin { .. }) | Op::Wait => {}
    }
    Ok(Vec::new())
}

/// Offsets and lengths that cover a range in steps.
fn steps(length: u64) -> impl DoubleEndedIterator<Item = (u64, usize)> {
    (0..length.div_ceil(STEP))
        .map(move |index| (index * STEP, (length - index * STEP).min(STEP) as usize))
}

/// As `memmove`: where the ranges overlap and the target lies behind the source, the end goes first.
fn copy(source: &Range<'_>, target: &Range<'_>, length: u64) -> Result<(), u64> {
    let mut step = |(offset, count): (u64, usize)| {
        let mut bytes = vec![0; count];
        source.read(offset, &mut bytes)?;
        target.write(offset, &bytes)
    };
    if target.touch.address > source.touch.address {
        steps(length).rev().try_for_each(&mut step)
    } else {
        steps(length).try_for_each(&mut step)
    }
}

struct Range<'a> {
    touch: Touch,
    spans: &'a [Span],
}

impl Range<'_> {
    /// Calls `each` for every span under `length` bytes from `offset`: the span, the offset in it, the part's place
    /// in the caller's slice.
    fn over(
        &self,
        offset: u64,
        length: usize,
        mut each: impl FnMut(&Span, u64, std::ops::Range<usize>) -> io::Result<()>,
    ) -> Result<(), u64> {
        let mut skip = offset;
        let mut done = 0;
        for span in self.spans {
            if skip >= span.length {
                skip -= span.length;
                continue;
            }
            let count = usize::try_from(span.length - skip)
                .unwrap_or(usize::MAX)
                .min(length - done);
            each(span, skip, done..done + count)
                .map_err(|_| self.touch.address + offset + done as u64)?;
            done += count;
            skip = 0;
            if done == length {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), u64> {
        self.over(offset, into.len(), |span, at, part| {
            let into = &mut into[part];
            match &span.target {
                Target::Store(store, base) => {
                    store.read(base + at, into);
                    Ok(())
                }
                Target::Pages { pid, address } => {
                    let local = libc::iovec {
                        iov_base: into.as_mut_ptr().cast(),
                        iov_len: into.len(),
                    };
                    remote(*pid, address + at, local, false)
                }
                Target::File(pages, base) => read_at(pages, base + at, into),
            }
        })
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), u64> {
        self.over(offset, from.len(), |span, at, part| {
            let from = &from[part];
            match &span.target {
                Target::Store(store, base) => {
                    store.write(base + at, from);
                    Ok(())
                }
                Target::Pages { pid, address } => {
                    let local = libc::iovec {
                        iov_base: from.as_ptr().cast_mut().cast(),
                        iov_len: from.len(),
                    };
                    remote(*pid, address + at, local, true)
                }
                Target::File(pages, base) => write_at(pages, base + at, from),
            }
        })
    }

    /// Repeats a word; the range starts where its first byte belongs.
    fn fill(&self, word: u32) -> Result<(), u64> {
        let mut offset = 0;
        for span in self.spans {
            if let Target::Store(store, base) = &span.target {
                store.fill(*base, span.length, word);
            } else {
                let phase = usize::try_from((self.touch.address + offset) % 4).unwrap_or(0);
                let mut bytes = word.to_le_bytes();
                bytes.rotate_left(phase);
                let pattern: Vec<u8> = bytes.into_iter().cycle().take(STEP as usize).collect();
                for (at, count) in steps(span.length) {
                    self.write(offset + at, &pattern[..count])?;
                }
            }
            offset += span.length;
        }
        Ok(())
    }
}

/// Copies between this process and another, or the pages of the other's that are pinned for the device.
fn remote(pid: u32, address: u64, local: libc::iovec, write: bool) -> io::Result<()> {
    let there = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: local.iov_len,
    };
    let call = if write {
        libc::process_vm_writev
    } else {
        libc::process_vm_readv
    };
    // SAFETY: `local` describes a live slice of the caller, mutable where the call writes to it; the kernel checks
    // the other process's addresses.
    let moved = unsafe {
        call(
            pid.cast_signed(),
            &raw const local,
            1,
            &raw const there,
            1,
            0,
        )
    };
    if usize::try_from(moved).is_ok_and(|moved| moved == local.iov_len) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EFAULT))
    }
}

fn read_at(pages: &OwnedFd, offset: u64, into: &mut [u8]) -> io::Result<()> {
    // SAFETY: the slice is live and as long as the call is told.
    let count = unsafe {
        libc::pread(
            pages.as_raw_fd(),
            into.as_mut_ptr().cast(),
            into.len(),
            offset.cast_signed(),
        )
    };
    whole(count, into.len())
}

fn write_at(pages: &OwnedFd, offset: u64, from: &[u8]) -> io::Result<()> {
    // SAFETY: the slice is live and as long as the call is told.
    let count = unsafe {
        libc::pwrite(
            pages.as_raw_fd(),
            from.as_ptr().cast(),
            from.len(),
            offset.cast_signed(),
        )
    };
    whole(count, from.len())
}

fn whole(count: isize, expected: usize) -> io::Result<()> {
    if usize::try_from(count).is_ok_and(|count| count == expected) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EFAULT))
    }
}
