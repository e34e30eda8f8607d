//! What all processes and threads of the fuzzer share.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::random::Random;

const SEEN: usize = 256;

/// One mapping that children made by fork share.
#[repr(C)]
pub struct Shared {
    /// Calls, and how many of them the ioctl itself answered well.
    calls: AtomicU64,
    answered: AtomicU64,
    /// Objects made, and memory mapped by UVM.
    made: AtomicU64,
    mapped: AtomicU64,
    /// Children that had to be ended.
    hung: AtomicU64,
    next: AtomicU32,
    /// Handles that were given to somebody lately: others name them, too.
    seen: [AtomicU32; SEEN],
}

impl Shared {
    /// # Errors
    /// As mmap(2).
    pub fn new() -> io::Result<&'static Shared> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let pages = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if pages == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is zeroed, aligned to a page, large enough, never unmapped, and every field is an atomic,
        // for which zero is a value.
        Ok(unsafe { &*pages.cast::<Shared>() })
    }

    pub fn count(&self, answered: bool) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.answered
            .fetch_add(u64::from(answered), Ordering::Relaxed);
    }

    pub fn count_made(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_mapped(&self) {
        self.mapped.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_hung(&self) {
        self.hung.fetch_add(1, Ordering::Relaxed);
    }

    /// (calls, answered, objects made, memory mapped, children that hung) so far.
    pub fn counts(&self) -> [u64; 5] {
        [
            &self.calls,
            &self.answered,
            &self.made,
            &self.mapped,
            &self.hung,
        ]
        .map(|count| count.load(Ordering::Relaxed))
    }

    /// A handle was given to somebody.
    pub fn saw(&self, handle: u32) {
        let at = self.next.fetch_add(1, Ordering::Relaxed) as usize % SEEN;
        self.seen[at].store(handle, Ordering::Relaxed);
    }

    /// One of the handles that somebody was given.
    pub fn seen(&self, random: &mut Random) -> u32 {
        self.seen[random.below(SEEN)].load(Ordering::Relaxed)
    }
}
