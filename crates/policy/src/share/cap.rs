//! A ceiling over a window: what a capped tenant may still run.

use super::Config;

/// A tenant's cap. Time is cut into windows; each grants its part, what is left of it at the end is lost, and what was
/// overdrawn (a detach takes time) is taken from the next. So no window holds more, on average to the microsecond, and
/// nothing can be saved up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cap {
    /// Hundredths of a percent.
    cap: u64,
    window_us: u64,
    /// When this window ends. The first begins with the first tick.
    ends_us: u64,
    /// What is left of this window's part.
    pub(super) credit_us: i64,
    /// Detached for it. So it begins.
    pub(super) off: bool,
}

/// An overdraft of more than so many windows is forgiven.
const WINDOWS_OWED: i64 = 20;

/// Less than this is not worth another run: a detach takes longer.
const LEAST_US: i64 = 200;

impl Cap {
    pub(super) fn new(cap: u16, config: &Config) -> Cap {
        let mut new = Cap {
            cap: 1,
            window_us: config.cap_window_us,
            ends_us: 0,
            credit_us: 0,
            off: true,
        };
        new.set(cap);
        new
    }

    pub(super) fn set(&mut self, cap: u16) {
        self.cap = u64::from(cap.clamp(1, 10_000));
        self.add(0);
    }

    /// A window's part.
    fn part_us(&self) -> i64 {
        // A window is at most a minute.
        ((self.window_us * self.cap / 10_000) as i64).max(1)
    }

    pub(super) fn add(&mut self, us: i64) {
        let floor = -WINDOWS_OWED * self.part_us();
        self.credit_us = self
            .credit_us
            .saturating_add(us)
            .clamp(floor, self.part_us());
    }

    /// Time went by: decides whether it may run, and when that has to be looked at again.
    pub(super) fn tick(&mut self, now_us: u64) -> u64 {
        if now_us >= self.ends_us {
            let late = (now_us - self.ends_us) / self.window_us;
            let windows = if self.ends_us == 0 { 1 } else { 1 + late };
            self.ends_us = if self.ends_us == 0 {
                now_us.saturating_add(self.window_us)
            } else {
                self.ends_us
                    .saturating_add(windows.saturating_mul(self.window_us))
            };
            let granted = self
                .part_us()
                .saturating_mul(i64::try_from(windows).unwrap_or(i64::MAX));
            self.add(granted);
        }
        self.off = self.credit_us <= LEAST_US.min(self.part_us() / 2);
        if self.off {
            self.ends_us
        } else {
            self.ends_us
                .min(now_us.saturating_add(self.credit_us as u64))
        }
    }
}
