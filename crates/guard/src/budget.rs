//! How often a tenant may call, and how long the driver may work for it: over that its calls wait.
//!
//! The driver's locks are the whole node's, so who calls without a pause holds up everybody. The budget is the tenant's,
//! as its helper is: a thread that would serve the next call waits first, and with it the tenant alone. It waits where it
//! would wait for a call, so no more threads sleep than would have waited (`workers.rs`), and none is held from calls that
//! are in service.
//!
//! What a call that is within the budget pays: one addition and a few loads, and one in eight the clock on both sides of the
//! driver.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use policy::budget::Bucket;

use crate::sys;
use crate::tenant::{Tenant, lock};

/// Calls a second. An allocation storm of sixteen processes makes 55,000, as many as the driver serves; one process makes
/// 8,000 (measured on an H200, driver 580.159).
pub const CALLS_A_SECOND: u64 = 64_000;
/// Microseconds of processor time in the driver a second, for each card of the slice: four processors. Time asleep there
/// costs nobody anything, and is mostly spent waiting for a lock that another of the tenant's own threads holds: when it
/// was counted, an allocation storm of sixteen processes was slowed down to half (measured on an H200, driver 580.159).
const DRIVER_US_A_SECOND: u64 = 4_000_000;
/// So many seconds' worth may be spent at once: a program that starts makes thousands of calls.
const BURST_SECONDS: u64 = 2;
/// One call in so many is timed, and counts for so many: the clock costs more than all the rest.
const TIMED_ONE_IN: u64 = 8;
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
    /// Which calls are timed nobody outside can tell, or only the others would be slow.
    secret: u64,
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
            secret: RandomState::new().build_hasher().finish(),
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

    /// Whether the call that was counted last is timed.
    #[inline]
    fn times(&self) -> bool {
        let number = self.calls.spent.load(Ordering::Relaxed);
        mixed(number.wrapping_add(self.secret)) < u64::MAX / TIMED_ONE_IN
    }

    /// Does what is to be done in the driver, and notes how long that took.
    #[inline]
    fn timed<T>(&self, in_driver: impl FnOnce() -> T) -> T {
        if !self.times() {
            return in_driver();
        }
        let start = sys::thread_time();
        let answer = in_driver();
        self.was_in_driver(sys::thread_time().saturating_sub(start));
        answer
    }

    /// A timed call has been in the driver so long.
    fn was_in_driver(&self, time: Duration) {
        let us = time.min(MOST_OF_ONE_CALL).as_micros() as u64;
        self.driver
            .spent
            .fetch_add(us * TIMED_ONE_IN, Ordering::Relaxed);
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
        let driver = &self.backend;
        self.budget.timed(|| driver.ioctl(file, request, block))
    }
}

/// A number that tells nothing of the next one: the last step of the generator SplitMix64.
fn mixed(mut number: u64) -> u64 {
    number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
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
            // Eight calls of 10 ms, one after another, of which one is timed.
            assert_eq!(call_at(&one, call * 80 * MS), 0);
            one.was_in_driver(Duration::from_millis(10));
        }
        let many = Budget::new(u64::MAX, 1);
        let mut now = 0;
        for _ in 0..1000 {
            // Sixteen threads inside for 50 ms at once; two are timed.
            for _ in 0..2 {
                many.was_in_driver(Duration::from_millis(50));
            }
            now += 50 * MS;
            now += call_at(&many, now);
        }
        // 800 seconds inside, less the burst of 8, at 4 a second; the first 50 ms found the bucket full.
        assert_eq!(now, 198_050 * MS);
        // A slice of two cards may be inside twice as long.
        let two = Budget::new(u64::MAX, 2);
        (0..20).for_each(|_| two.was_in_driver(Duration::from_millis(100)));
        assert_eq!(call_at(&two, 0), 0);
    }

    #[test]
    fn one_call_in_eight_is_timed_and_nobody_can_tell_which() {
        let budgets = [Budget::new(1, 1), Budget::new(1, 1)];
        let timed = budgets.each_ref().map(|budget| {
            let which = (0..80_000u64).filter(|&call| {
                budget.calls.spent.store(call, Ordering::Relaxed);
                budget.times()
            });
            which.collect::<Vec<u64>>()
        });
        // 10,000 are expected; ten standard deviations are 935.
        assert!(timed.iter().all(|calls| calls.len().abs_diff(10_000) < 935));
        assert_ne!(timed[0], timed[1]);
    }

    #[test]
    fn what_calls_spend_in_the_driver_is_noted() {
        const CALLS: u64 = 200;
        let budget = Budget::new(u64::MAX, 1);
        for _ in 0..CALLS {
            budget.calls.spent.fetch_add(1, Ordering::Relaxed);
            budget.timed(|| {
                let start = sys::thread_time();
                while sys::thread_time() - start < Duration::from_millis(1) {}
            });
        }
        // Chance decides which are timed: 25 are expected, and six are four standard deviations fewer.
        assert!(budget.driver.spent.load(Ordering::Relaxed) >= 6 * TIMED_ONE_IN * 1000);
    }

    #[test]
    fn a_call_that_sleeps_in_the_driver_spends_nothing() {
        let budget = Budget::new(u64::MAX, 1);
        for _ in 0..200 {
            budget.calls.spent.fetch_add(1, Ordering::Relaxed);
            budget.timed(|| std::thread::sleep(Duration::from_millis(1)));
        }
        // Of 200 ms asleep 25 would be noted as 200; going to sleep takes some microseconds of the processor.
        assert!(budget.driver.spent.load(Ordering::Relaxed) < 100_000);
    }

    #[test]
    fn a_call_that_waits_for_the_card_does_not_stop_the_tenant() {
        let budget = Budget::new(CALLS_A_SECOND, 1);
        budget.was_in_driver(Duration::from_secs(3600));
        assert_eq!(call_at(&budget, 0), 0);
    }
}
