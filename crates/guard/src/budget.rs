//! How often a tenant may call, and how long it may be inside the driver: over that its calls wait.
//!
//! The driver's locks are the whole node's, so who calls without a pause holds up everybody. The budget is the tenant's,
//! as its helper is: a thread that would serve the next call waits first, and with it the tenant alone. It waits where it
//! would wait for a call, so no more threads sleep than would have waited (`workers.rs`), and none is held from calls that
//! are in service.
//!
//! What a call that is within the budget pays: one addition and three loads, and a look at the clock on both sides of the
//! driver.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use policy::budget::Bucket;

use crate::tenant::{Tenant, lock};

/// Calls a second. An allocation storm of one process makes 8,000 (measured on an H200, driver 580.159).
pub const CALLS_A_SECOND: u64 = 20_000;
/// Microseconds in the driver a second, for each card of the slice: two threads that are always inside. Who waits for a
/// lock that a neighbour holds is inside too, so a program with one thread must never come near.
const DRIVER_US_A_SECOND: u64 = 2_000_000;
/// So many seconds' worth may be spent at once: a program that starts makes thousands of calls.
const BURST_SECONDS: u64 = 2;
/// No call counts for more: what takes longer waits for the card.
const MOST_OF_ONE_CALL: Duration = Duration::from_millis(100);
/// Taken from the bucket at once, so that most calls need no lock.
const CALLS_AT_ONCE: u64 = 64;
const DRIVER_US_AT_ONCE: u64 = 10_000;
/// Whether the tenant must end is asked this often while a call waits.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What was spent, and how far it may go before the bucket is looked at again.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Meter {
    spent: AtomicU64,
    allowed: AtomicU64,
}

impl Meter {
    /// Takes what was spent out of the bucket, there or not, and something for the next. Nanoseconds until it is made up
    /// for.
    fn settle(&self, bucket: &mut Bucket, now: u64, spent: u64, at_once: u64) -> u64 {
        let allowed = self.allowed.load(Ordering::Relaxed);
        let Some(missing) = spent.checked_sub(allowed).filter(|&missing| missing > 0) else {
            return 0;
        };
        let taken = missing.max(bucket.spare(now).min(at_once));
        bucket.spend(now, taken);
        self.allowed.store(allowed + taken, Ordering::Relaxed);
        bucket.wait(now, 0)
    }
}

/// The budget of one tenant.
#[derive(Debug)]
pub struct Budget {
    calls: Meter,
    driver: Meter,
    /// Calls, and microseconds in the driver.
    buckets: Mutex<(Bucket, Bucket)>,
    start: Instant,
    has_waited: AtomicBool,
}

impl Budget {
    /// A full budget of so many calls a second, for a slice of so many cards.
    pub fn new(calls_a_second: u64, cards: usize) -> Budget {
        let driver = DRIVER_US_A_SECOND.saturating_mul(cards.max(1) as u64);
        let full = |rate: u64| Bucket::new(rate, rate.saturating_mul(BURST_SECONDS), 0);
        Budget {
            calls: Meter::default(),
            driver: Meter::default(),
            buckets: Mutex::new((full(calls_a_second), full(driver))),
            start: Instant::now(),
            has_waited: AtomicBool::new(false),
        }
    }

    /// Counts a call. How long it has to wait; nearly always not at all.
    #[inline]
    fn call(&self) -> Option<Duration> {
        let calls = self.calls.spent.fetch_add(1, Ordering::Relaxed) + 1;
        let driver = self.driver.spent.load(Ordering::Relaxed);
        let within = calls <= self.calls.allowed.load(Ordering::Relaxed)
            && driver <= self.driver.allowed.load(Ordering::Relaxed);
        if within {
            return None;
        }
        self.settle(self.now(), calls, driver)
    }

    #[cold]
    fn settle(&self, now: u64, calls: u64, driver: u64) -> Option<Duration> {
        let (of_calls, of_driver) = &mut *lock(&self.buckets);
        let wait = self.calls.settle(of_calls, now, calls, CALLS_AT_ONCE);
        let wait = wait.max(
            self.driver
                .settle(of_driver, now, driver, DRIVER_US_AT_ONCE),
        );
        (wait > 0).then(|| Duration::from_nanos(wait))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn was_in_driver(&self, time: Duration) {
        let us = time.min(MOST_OF_ONE_CALL).as_micros() as u64;
        self.driver.spent.fetch_add(us, Ordering::Relaxed);
    }
}

impl Tenant {
    /// Counts a call that was received, and waits where the tenant is over its budget.
    #[inline]
    pub fn pace(&self) {
        if let Some(wait) = self.budget.call() {
            self.wait_out(wait);
        }
    }

    #[cold]
    fn wait_out(&self, wait: Duration) {
        if !self.budget.has_waited.swap(true, Ordering::Relaxed) {
            self.say(
                "it calls the driver more than its budget allows (`run --call-rate`): its calls wait, so that other tenants' do not",
            );
        }
        let until = Instant::now() + wait;
        while !self.is_condemned() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }

    /// A call of the tenant's to the driver.
    ///
    /// # Errors
    /// As ioctl(2).
    pub fn in_driver(
        &self,
        file: BorrowedFd<'_>,
        request: u32,
        block: &mut [u8],
    ) -> io::Result<i32> {
        let start = Instant::now();
        let answer = self.backend.ioctl(file, request, block);
        self.budget.was_in_driver(start.elapsed());
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Calls at a time that the test says: how long each has to wait.
    fn call_at(budget: &Budget, now: u64) -> u64 {
        let calls = budget.calls.spent.fetch_add(1, Ordering::Relaxed) + 1;
        let driver = budget.driver.spent.load(Ordering::Relaxed);
        let wait = budget.settle(now, calls, driver);
        wait.map_or(0, |wait| wait.as_nanos() as u64)
    }

    #[test]
    fn two_seconds_worth_of_calls_go_at_once_and_the_next_wait_in_turn() {
        let budget = Budget::new(1000, 1);
        for call in 0..2000 {
            assert_eq!(call_at(&budget, 0), 0, "call {call}");
        }
        // Each thread that comes has a turn of its own.
        assert_eq!(call_at(&budget, 0), MS);
        assert_eq!(call_at(&budget, 0), 2 * MS);
        assert_eq!(call_at(&budget, 2 * MS), MS);
        // After three idle seconds the whole burst is there again.
        for call in 0..2000 {
            assert_eq!(call_at(&budget, 5000 * MS), 0, "call {call}");
        }
        assert!(call_at(&budget, 5000 * MS) > 0);
    }

    #[test]
    fn no_order_of_calls_is_served_more_than_a_burst_and_the_rate() {
        let budget = Budget::new(1000, 1);
        let mut now = 0;
        for _ in 0..20_000 {
            now += call_at(&budget, now);
        }
        // The burst, then one each millisecond.
        assert_eq!(now, 18_000 * MS);
    }

    #[test]
    fn one_thread_that_never_leaves_the_driver_never_waits_and_many_do() {
        let one = Budget::new(u64::MAX, 1);
        for call in 0..1000 {
            assert_eq!(call_at(&one, call * 50 * MS), 0);
            one.was_in_driver(Duration::from_millis(50));
        }
        let many = Budget::new(u64::MAX, 1);
        let mut now = 0;
        for _ in 0..1000 {
            // Sixteen threads inside for 50 ms at once.
            for _ in 0..16 {
                many.was_in_driver(Duration::from_millis(50));
            }
            now += 50 * MS;
            now += call_at(&many, now);
        }
        // 800 seconds inside, less the burst of 4, at 2 a second; the first 50 ms found the bucket full.
        assert_eq!(now, 398_050 * MS);
        // A slice of two cards may be inside twice as long.
        let two = Budget::new(u64::MAX, 2);
        (0..80).for_each(|_| two.was_in_driver(Duration::from_millis(100)));
        assert_eq!(call_at(&two, 0), 0);
    }

    #[test]
    fn a_call_that_waits_for_the_card_does_not_stop_the_tenant() {
        let budget = Budget::new(CALLS_A_SECOND, 1);
        budget.was_in_driver(Duration::from_secs(3600));
        assert_eq!(call_at(&budget, 0), 0);
    }
}
