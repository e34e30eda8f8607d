//! A ceiling over a window: what a capped tenant may still run.

use std::collections::VecDeque;

use super::Config;

/// A tenant's cap. Two rules at once: no window holds more than its part (as far as measured), and what was overdrawn
/// is paid back, so that the average is the cap and not a little above it.
#[derive(Clone, Debug)]
pub(super) struct Cap {
    /// Hundredths of a percent.
    cap: u64,
    window_us: u64,
    pub(super) credit_us: i64,
    /// Runs that touch the last window: start and end.
    runs: VecDeque<(u64, u64)>,
    /// Detached for it. So it begins.
    pub(super) off: bool,
}

/// An overdraft of more than so many windows is forgiven.
const WINDOWS_OWED: i64 = 20;

/// Less than this is not worth another run: a detach takes about as long.
const LEAST_US: i64 = 200;

impl Cap {
    pub(super) fn new(cap: u16, config: &Config) -> Cap {
        let mut new = Cap {
            cap: 1,
            window_us: config.cap_window_us,
            credit_us: 0,
            runs: VecDeque::new(),
            off: true,
        };
        new.set(cap, config);
        new
    }

    pub(super) fn set(&mut self, cap: u16, config: &Config) {
        self.cap = u64::from(cap.clamp(1, 10_000));
        self.window_us = config.cap_window_us;
    }

    fn part(&self, of_us: u64) -> u64 {
        (u128::from(of_us) * u128::from(self.cap) / 10_000) as u64
    }

    /// What it can have saved up, and what it needs to begin to run: half of a window's part.
    fn quantum_us(&self) -> i64 {
        (self.part(self.window_us) / 2).max(1) as i64
    }

    pub(super) fn add(&mut self, us: i64) {
        let floor = -WINDOWS_OWED * self.part(self.window_us) as i64;
        self.credit_us = self
            .credit_us
            .saturating_add(us)
            .clamp(floor, self.quantum_us());
    }

    pub(super) fn ran(&mut self, start_us: u64, end_us: u64, charged_us: u64) {
        self.add(-(charged_us.min(i64::MAX as u64) as i64));
        self.runs.push_back((start_us, end_us));
    }

    /// What it may run now. Below zero: it has run too much.
    fn budget_us(&self, now_us: u64) -> i64 {
        let from = now_us.saturating_sub(self.window_us);
        let inside = self.runs.iter().map(|(start, end)| {
            end.min(&now_us)
                .saturating_sub((*start.max(&from)).min(now_us))
        });
        let left = self.part(self.window_us) as i64 - inside.sum::<u64>() as i64;
        left.min(self.credit_us)
    }

    /// Time went by: decides whether it may run, and when that has to be looked at again.
    pub(super) fn tick(&mut self, now_us: u64, elapsed_us: u64, busy: bool) -> Option<u64> {
        self.add(self.part(elapsed_us) as i64);
        let from = now_us.saturating_sub(self.window_us);
        self.runs.retain(|(_, end)| *end > from);
        let budget = self.budget_us(now_us);
        if self.off {
            self.off = budget < self.quantum_us();
        } else {
            self.off = budget <= LEAST_US.min(self.quantum_us() / 2);
        }
        (!self.off && busy).then(|| now_us + budget.max(0) as u64)
    }
}
