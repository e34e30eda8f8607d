//! A worker's stay in the tenant's memory, which may never end.
//!
//! A page of the tenant's can be one that faults for ever: userfaultfd(2), a file system of its own making. In a page of
//! userfaultfd no signal but SIGKILL, which would end the helper, ends process_vm_readv(2) (tried on Linux 6.18). So it is
//! not the stay that is ended: its thread is given up, its call answered, and another thread takes its place
//! (`crate::workers`).

use std::cell::OnceCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one worker does, for whoever watches it.
#[derive(Debug, Default)]
pub struct Stay {
    /// How often it has entered and left the tenant's memory: odd while it is in there. [`GIVEN_UP`], for good.
    turns: AtomicU64,
    /// The call that it serves.
    call: AtomicU64,
}

const GIVEN_UP: u64 = u64::MAX - 1;

thread_local! {
    static MINE: OnceCell<Arc<Stay>> = const { OnceCell::new() };
}

impl Stay {
    /// This thread's, for its life.
    pub fn of_this_thread() -> Arc<Stay> {
        MINE.with(|mine| mine.get_or_init(Arc::default).clone())
    }

    /// The thread serves this call from here on.
    pub fn begin(&self, call: u64) {
        self.call.store(call, Ordering::Relaxed);
    }

    /// The stay that goes on, as a number that no other has; `None`: the thread is not in the tenant's memory.
    pub fn present(&self) -> Option<u64> {
        Some(self.turns.load(Ordering::Acquire)).filter(|turns| turns % 2 == 1)
    }

    /// Gives the thread up if it is still in this stay: what it copies is of no use any more. Gives the call that it serves.
    pub fn give_up(&self, stay: u64) -> Option<u64> {
        let given_up =
            self.turns
                .compare_exchange(stay, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
        given_up.ok().map(|_| self.call.load(Ordering::Relaxed))
    }

    /// Whether somebody has given it up: its call has been answered.
    pub fn is_given_up(&self) -> bool {
        self.turns.load(Ordering::Acquire) == GIVEN_UP
    }

    fn within<T>(&self, copy: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let turns = self.turns.load(Ordering::Relaxed);
        if turns == GIVEN_UP {
            return Err(fault());
        }
        self.turns.store(turns + 1, Ordering::Release);
        let copied = copy();
        let left =
            self.turns
                .compare_exchange(turns + 1, turns + 2, Ordering::AcqRel, Ordering::Acquire);
        match left {
            Ok(_) => copied,
            Err(_) => Err(fault()),
        }
    }
}

fn fault() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

/// Copies from or to the tenant's memory.
///
/// # Errors
/// Those of `copy`; `EFAULT`: the thread was given up meanwhile.
pub fn within<T>(copy: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    MINE.with(|mine| match mine.get() {
        Some(stay) => stay.within(copy),
        None => copy(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stay_that_is_given_up_copies_nothing_and_one_that_has_ended_cannot_be() {
        let stay = Stay::default();
        stay.begin(7);
        assert_eq!(stay.present(), None);
        let seen = stay.within(|| Ok(stay.present())).unwrap();
        assert_eq!(stay.give_up(seen.unwrap()), None, "it has ended");
        let copied = stay.within(|| {
            let now = stay.present().unwrap();
            assert_ne!(Some(now), seen);
            assert_eq!(stay.give_up(now), Some(7));
            Ok(())
        });
        assert_eq!(copied.unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert!(stay.is_given_up() && stay.present().is_none());
        let again = stay.within(|| -> io::Result<()> { panic!("it copies again") });
        assert!(again.is_err());
    }
}
