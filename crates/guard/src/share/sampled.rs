//! The sensor `sampled`: where the driver keeps no timeline, it is asked again and again whose context is on the compute
//! engine.
//!
//! The instants are nobody's to foresee: the time to the next is drawn from the kernel's random numbers, and as likely to be
//! short after a poll as at any other time, so that whoever notices one (it takes the driver's locks) learns nothing of
//! the next. The time since the last plan is divided by what the polls since then have seen: right on average, and over a
//! second within [`Tally::error_ppm`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::board::Node;
use super::shared::Shared;
use crate::rmcall::{Gpu, OwnClient};
use crate::tenant::lock;

/// Mean time between two polls: ten in the scheduler's tick of 25 ms.
const GAP: Duration = Duration::from_micros(2500);
/// So much longer than a poll takes it is at least (0.3 ms on an H200): no more than a tenth of a core.
const COSTS: u32 = 10;
/// No time between two polls is longer than so many of the mean; one in three thousand would be.
const LONGEST: f64 = 8.0;
/// Whoever does not read for so long does not want polls.
const WANTED: Duration = Duration::from_millis(100);
const SECOND_US: u64 = 1_000_000;
const STACK: usize = 64 << 10;

/// What some polls have seen: by helper, how often. Zero is a context of nobody that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    polls: u32,
    seen: BTreeMap<u32, u32>,
}

impl Tally {
    /// One poll; `None`: no context was on the engine.
    pub fn add(&mut self, owner: Option<u32>) {
        self.polls += 1;
        if let Some(owner) = owner {
            *self.seen.entry(owner).or_default() += 1;
        }
    }

    /// Divides time by what was seen: each has it in proportion. Never more than there was, and less by no more than a
    /// microsecond each. `None`: no poll says anything of it.
    pub fn divide(&self, us: u64) -> Option<Vec<(u32, u64)>> {
        let polls = u64::from(self.polls);
        let part = |seen: u32| {
            let part = u128::from(us) * u128::from(seen) / u128::from(polls);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let all = || self.seen.iter().map(|(&owner, &seen)| (owner, part(seen)));
        (polls > 0).then(|| all().collect())
    }

    /// Standard error of these parts, in millionths of the time: that of the one that is known worst.
    pub fn error_ppm(&self) -> u32 {
        let polls = f64::from(self.polls.max(1));
        let error = |&seen: &u32| {
            let part = f64::from(seen) / polls;
            (part * (1.0 - part) / polls).sqrt()
        };
        let worst = self.seen.values().map(error).fold(0.0, f64::max);
        // One that was never seen, or always, may still have had what a single poll stands for.
        (worst.max(1.0 / polls) * 1e6).ceil() as u32
    }

    fn join(&mut self, other: &Tally) {
        self.polls += other.polls;
        for (&owner, &seen) in &other.seen {
            *self.seen.entry(owner).or_default() += seen;
        }
    }
}

/// A time as long as to the next event of those that come at random with this mean time between them; `random` is any
/// number.
fn gap(mean: Duration, random: u64) -> Duration {
    // Above zero and at most one.
    let part = ((random >> 11) + 1) as f64 / (1u64 << 53) as f64;
    mean.mul_f64((-part.ln()).min(LONGEST))
}

/// What the thread that polls and the one that reads have in common.
struct Common {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    tally: Tally,
    /// Polls are made until then.
    until: Instant,
    failed: Option<io::Error>,
    ended: bool,
}

impl Common {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits until polls are wanted; false: never again.
    fn wait(&self) -> bool {
        let mut state = self.state();
        loop {
            if state.ended {
                return false;
            }
            if Instant::now() < state.until {
                return true;
            }
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

/// Polls of one card.
pub struct Sampler {
    common: Arc<Common>,
    /// Up to when time has been divided; microseconds of the card's clock.
    since_us: u64,
    /// Polls of the second that goes on, and when it began.
    second: Tally,
    second_us: u64,
    error_ppm: u32,
}

impl Sampler {
    /// Starts to poll, for the first time at once.
    ///
    /// # Errors
    /// The driver does not tell which channel is resident, or there is no random number.
    pub fn open(own: Arc<OwnClient>, gpu: &Gpu, node: Arc<Shared<Node>>) -> io::Result<Sampler> {
        own.resident_channel(gpu)?;
        let since_us = own.gpu_time(gpu)? / 1000;
        let mut random = File::open("/dev/urandom")?;
        let common = Arc::new(Common {
            state: Mutex::new(State {
                tally: Tally::default(),
                until: Instant::now() + WANTED,
                failed: None,
                ended: false,
            }),
            changed: Condvar::new(),
        });
        let (with, gpu) = (common.clone(), gpu.clone());
        let builder = thread::Builder::new().name("sampler".into());
        builder.stack_size(STACK).spawn(move || {
            let mut cost = Duration::ZERO;
            while with.wait() {
                let polled = pause(&mut random, cost).and_then(|()| {
                    let began = Instant::now();
                    let resident = own.resident_channel(&gpu)?;
                    cost = (7 * cost + began.elapsed()) / 8;
                    Ok(resident.map(|number| node.owner(gpu.minor, number)))
                });
                let mut state = with.state();
                match polled {
                    Ok(owner) => state.tally.add(owner),
                    Err(e) => {
                        state.failed = Some(e);
                        return;
                    }
                }
            }
        })?;
        Ok(Sampler {
            common,
            since_us,
            second: Tally::default(),
            second_us: since_us,
            // Until a second has passed nothing is known.
            error_ppm: SECOND_US as u32 / 2,
        })
    }

    /// Time of each helper's contexts since the last time, up to now (of the card's clock); empty where no poll was made
    /// since then, and that time is divided the next time.
    ///
    /// # Errors
    /// The driver has refused a poll.
    pub fn read(&mut self, now_us: u64) -> io::Result<Vec<(u32, u64)>> {
        let now = Instant::now();
        let mut state = self.common.state();
        if let Some(e) = state.failed.take() {
            return Err(e);
        }
        let lapsed = now >= state.until;
        state.until = now + WANTED;
        if lapsed {
            // Nobody was asked about this time.
            state.tally = Tally::default();
            self.common.changed.notify_one();
            drop(state);
            (self.since_us, self.second_us) = (now_us, now_us);
            self.second = Tally::default();
            return Ok(Vec::new());
        }
        let Some(divided) = state.tally.divide(now_us.saturating_sub(self.since_us)) else {
            return Ok(Vec::new());
        };
        let tally = std::mem::take(&mut state.tally);
        drop(state);
        self.since_us = now_us;
        self.second.join(&tally);
        if now_us >= self.second_us + SECOND_US {
            self.error_ppm = self.second.error_ppm();
            self.second = Tally::default();
            self.second_us = now_us;
        }
        Ok(divided)
    }

    /// Standard error of what it said of the last second, in millionths of the card.
    pub fn error_ppm(&self) -> u32 {
        self.error_ppm
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.common.state().ended = true;
        self.common.changed.notify_one();
    }
}

/// Sleeps until the next poll.
fn pause(random: &mut File, cost: Duration) -> io::Result<()> {
    let mut number = [0; 8];
    random.read_exact(&mut number)?;
    thread::sleep(gap(GAP.max(COSTS * cost), u64::from_ne_bytes(number)));
    Ok(())
}

#[cfg(test)]
mod tests;
