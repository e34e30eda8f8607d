//! Memory for hostile blocks: some of it may be written, some only read, and some is not there.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use super::random::Random;
use crate::raw::Block;

const PAGE: u64 = 4096;
/// Pages that may be written; after them one that is not there, one that may only be read, and another that is not there.
const WRITABLE: u64 = 16 * PAGE;
const READ_ONLY: u64 = WRITABLE + PAGE;
const END: u64 = READ_ONLY + 2 * PAGE;

/// Pages of blocks. Never unmapped: a call may still be on its way to them. Everything reaches them by atomics and raw
/// pointers alone, since the driver and other threads write there at any time.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    start: u64,
}

impl Arena {
    /// New pages, shared with children made by fork or each process's own.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn new(shared: bool) -> io::Result<Arena> {
        let sharing = if shared {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                END as usize,
                libc::PROT_NONE,
                sharing | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let arena = Arena {
            start: start as u64,
        };
        arena.protect(0, WRITABLE, libc::PROT_READ | libc::PROT_WRITE)?;
        arena.protect(READ_ONLY, PAGE, libc::PROT_READ)?;
        Ok(arena)
    }

    fn protect(&self, from: u64, length: u64, protection: i32) -> io::Result<()> {
        // SAFETY: changes pages of our own mapping, which nobody has a reference into.
        let done = unsafe {
            libc::mprotect(
                (self.start + from) as *mut libc::c_void,
                length as usize,
                protection,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn word(&self, at: u64) -> Option<&AtomicU32> {
        let inside = at >= self.start && at.is_multiple_of(4) && at - self.start + 4 <= WRITABLE;
        // SAFETY: the word lies in the writable pages, which are never unmapped; an atomic has no invalid value.
        inside.then(|| unsafe { AtomicU32::from_ptr(at as *mut u32) })
    }

    /// Writes a word, where one may be written.
    pub fn store(&self, at: u64, value: u32) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Reads a word; all ones, which is no status of success, where there is none.
    pub fn load(&self, at: u64) -> u32 {
        self.word(at)
            .map_or(u32::MAX, |word| word.load(Ordering::Relaxed))
    }

    /// Lays a block out where it lies well, as far as it can be written there.
    pub fn lay(&self, at: u64, block: &Block) {
        for i in 0..block.len() / 4 {
            self.store(at.wrapping_add(4 * i as u64), block.u32(4 * i));
        }
    }

    /// Where a block of this length may lie: nearly always where it can be.
    pub fn place(&self, random: &mut Random, length: usize) -> u64 {
        let length = length as u64;
        match random.below(48) {
            // Its end is on the page that is not there.
            0 => {
                let over = 4 + 4 * random.below((length / 4).max(1) as usize) as u64;
                self.start + WRITABLE - length.min(WRITABLE) + over.min(length.min(WRITABLE))
            }
            1 => self.start + READ_ONLY,
            2 => self.start + WRITABLE,
            _ => {
                let room = WRITABLE.saturating_sub(length) / 16;
                self.start + 16 * random.below(room.max(1) as usize) as u64
            }
        }
    }

    /// Where a pointer may lead: half of the time to where `length` bytes are.
    pub fn pointer(&self, random: &mut Random, length: usize) -> u64 {
        match random.below(16) {
            0 => 0,
            1 => random.edge(),
            2 => self.start + READ_ONLY,
            3 => self.start + WRITABLE - 8 - random.below(64) as u64,
            4 => self.start + random.below(END as usize) as u64,
            5 => self.start + WRITABLE - (length as u64).min(WRITABLE),
            _ => self.place(random, length),
        }
    }

    /// What a racing thread does: another word somewhere.
    pub fn disturb(&self, random: &mut Random, value: u32) {
        self.store(
            self.start + 4 * random.below((WRITABLE / 4) as usize) as u64,
            value,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_where_there_is_memory_only() {
        let arena = Arena::new(false).unwrap();
        arena.store(arena.start + 8, 7);
        arena.store(arena.start + WRITABLE, 7);
        arena.store(arena.start + 2, 7);
        arena.store(0, 7);
        assert_eq!(arena.load(arena.start + 8), 7);
        assert_eq!(arena.load(arena.start + WRITABLE), u32::MAX);
        assert_eq!(arena.load(arena.start), 0);
        let mut random = Random::new(1, 1);
        arena.lay(arena.start + WRITABLE - 8, &Block::new(64).with32(4, 9));
        assert_eq!(arena.load(arena.start + WRITABLE - 4), 9);
        for _ in 0..10_000 {
            arena.disturb(&mut random, 1);
            let at = arena.place(&mut random, 9264);
            assert!(at >= arena.start && at <= arena.start + END, "{at:#x}");
        }
    }
}
