//! A budget in time: so much at once, and so much a second from then on. Who is over it waits; nothing is refused.
//!
//! Whole numbers only, and no clock: the caller says how late it is, in nanoseconds since whenever it likes.

/// Nanoseconds of a second. A level is counted in this fraction of a unit, so that any rate is exact.
const SECOND: i128 = 1_000_000_000;

/// Units (calls, microseconds of the driver's time) that may be spent: full at the start, filled at a steady rate, never
/// above its size.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    rate: u64,
    burst: u64,
    /// In units of a [`SECOND`]th; below zero while what was spent is not made up for.
    level: i128,
    /// When the level was right.
    at: u64,
}

impl Bucket {
    /// A full bucket of `burst` units, filled with `rate` units a second. A rate of 0 counts as 1: a wait must end.
    pub fn new(rate: u64, burst: u64, now: u64) -> Bucket {
        Bucket {
            rate: rate.max(1),
            burst,
            level: i128::from(burst) * SECOND,
            at: now,
        }
    }

    /// Fills it up to now. A clock that goes back changes nothing.
    fn fill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let gained = i128::from(self.rate).saturating_mul(i128::from(passed));
        let full = i128::from(self.burst) * SECOND;
        self.level = self.level.saturating_add(gained).min(full);
    }

    /// Whole units that can be spent now.
    pub fn spare(&mut self, now: u64) -> u64 {
        self.fill(now);
        u64::try_from(self.level / SECOND).unwrap_or(0)
    }

    /// Spends `units`, there or not: what is missing has to be waited for ([`Bucket::wait`]).
    pub fn spend(&mut self, now: u64, units: u64) {
        self.fill(now);
        self.level = self.level.saturating_sub(i128::from(units) * SECOND);
    }

    /// Nanoseconds until `units` more can be spent; 0: now. More than fit the bucket are there when it is full.
    pub fn wait(&mut self, now: u64, units: u64) -> u64 {
        self.fill(now);
        let missing = i128::from(units.min(self.burst)) * SECOND - self.level;
        if missing <= 0 {
            return 0;
        }
        let rate = i128::from(self.rate);
        u64::try_from((missing + rate - 1) / rate).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_burst_is_there_at_once_and_then_the_rate() {
        let mut bucket = Bucket::new(20_000, 40_000, 0);
        assert_eq!(bucket.spare(0), 40_000);
        bucket.spend(0, 40_000);
        assert_eq!(bucket.wait(0, 1), 50_000);
        assert_eq!(bucket.spare(50_000), 1);
        bucket.spend(50_000, 1);
        assert_eq!(bucket.spare(1000 * MS), 19_999);
        // Idle for long: full, and no more than full.
        assert_eq!(bucket.spare(1_000_000 * MS), 40_000);
    }

    #[test]
    fn a_debt_is_waited_for() {
        let mut bucket = Bucket::new(1000, 100, 0);
        bucket.spend(0, 350);
        assert_eq!(bucket.spare(0), 0);
        assert_eq!(bucket.wait(0, 0), 250 * MS);
        assert_eq!(bucket.wait(250 * MS, 0), 0);
        assert_eq!(bucket.wait(250 * MS, 1), MS);
        // More than the bucket can ever hold is there when it is full: the wait ends.
        assert_eq!(bucket.wait(250 * MS, 1_000_000), 100 * MS);
        assert_eq!(bucket.wait(350 * MS, 1_000_000), 0);
    }

    #[test]
    fn numbers_at_their_ends_neither_wrap_nor_hang() {
        let mut bucket = Bucket::new(u64::MAX, u64::MAX, 0);
        bucket.spend(u64::MAX, u64::MAX);
        bucket.spend(u64::MAX, u64::MAX);
        assert_eq!(bucket.wait(u64::MAX, u64::MAX), 2 * SECOND as u64);
        // The clock went back: nothing is gained, nothing is lost.
        assert_eq!(bucket.spare(3), 0);
        let mut slow = Bucket::new(0, 1, 0);
        slow.spend(0, u64::MAX);
        assert_eq!(slow.wait(0, 1), u64::MAX);
    }

    /// What a bucket is for, told the long way: the level is a list of gains and losses, cut at its size after each.
    fn naive(rate: u64, burst: u64, steps: &[(u64, u64)]) -> i128 {
        let (mut level, mut before) = (i128::from(burst) * SECOND, 0);
        for &(at, spent) in steps {
            for _ in before..at {
                level = (level + i128::from(rate)).min(i128::from(burst) * SECOND);
            }
            before = at;
            level -= i128::from(spent) * SECOND;
        }
        level
    }

    proptest! {
        /// The same as filling it nanosecond by nanosecond.
        #[test]
        fn filling_at_once_is_filling_step_by_step(
            rate in 1..3_000_000_000u64,
            burst in 0..50u64,
            steps in prop::collection::vec((0..300u64, 0..20u64), 0..20),
        ) {
            let mut bucket = Bucket::new(rate, burst, 0);
            let mut now = 0;
            let mut told = Vec::new();
            for (later, spent) in steps {
                now += later;
                bucket.spend(now, spent);
                told.push((now, spent));
            }
            let level = naive(rate, burst, &told);
            prop_assert_eq!(bucket.level, level);
            prop_assert_eq!(i128::from(bucket.spare(now)), level.max(0) / SECOND);
        }

        /// Who heeds the wait gets at most a burst and the rate, in any stretch of time; and the wait is no longer than
        /// it has to be.
        #[test]
        fn no_stretch_holds_more_than_a_burst_and_the_rate(
            rate in 1..100_000u64,
            burst in 1..5000u64,
            asks in prop::collection::vec((0..50 * MS, 1..200u64), 1..60),
        ) {
            let mut bucket = Bucket::new(rate, burst, 0);
            let (mut now, mut served) = (0, Vec::new());
            for (later, units) in asks {
                let units = units.min(burst);
                now += later;
                let wait = bucket.wait(now, units);
                if wait > 0 {
                    prop_assert!(bucket.spare(now + wait - 1) < units, "waited too long");
                    now += wait;
                }
                prop_assert!(bucket.spare(now) >= units);
                bucket.spend(now, units);
                served.push((now, units));
            }
            for (from, &(start, _)) in served.iter().enumerate() {
                let mut sum = 0u128;
                for &(end, units) in &served[from..] {
                    sum += u128::from(units);
                    let most = u128::from(burst) * SECOND as u128
                        + u128::from(rate) * u128::from(end - start);
                    prop_assert!(sum * SECOND as u128 <= most);
                }
            }
        }
    }
}
