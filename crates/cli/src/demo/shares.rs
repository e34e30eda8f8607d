//! The walls round a card's time: who gets which part of it, measured on the card's own clock.
//!
//! Each is tried on a node of its own, where nobody else computes.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use guard::share::board;
use serde_json::Value;
use testkit::outside::{Finding, Observer, Program};
use testkit::raw;

use super::{LIMIT, Slice, slice_on};
use crate::{Failure, sim};

/// A tenant of such a check, with what it runs.
struct Runner {
    name: &'static str,
    gpu: &'static str,
    weight: u32,
    program: &'static [&'static str],
}

/// A wall, who tries it, and how the parts are told.
pub struct Shares {
    /// The wall.
    pub wall: &'static str,
    runners: &'static [Runner],
    parts: &'static [Part],
    note: &'static str,
    /// How long the parts are measured, by the card's clock.
    measured: Duration,
}

/// What a runner may have of its card, in percent of what all that are named with it have.
struct Part {
    of: &'static str,
    among: &'static [&'static str],
    at_least: f64,
    at_most: f64,
}

/// Every tenant here has so much of a card: enough contexts for all that it tries.
const QUOTA: u64 = 40 * super::GIB;
/// A lone context's card is never idle; a switch is nobody's time.
const PAIR: &[&str] = &["alice", "mallory"];
/// Of a tenant's debt, not of a card's time.
const OWED: &[&str] = &["what it owed"];
/// Who runs until it is stopped.
const SPIN: &[&str] = &["spin", "ms=2", "seconds=60"];
const HONEST: Runner = Runner {
    name: "alice",
    gpu: "0",
    weight: 75,
    program: SPIN,
};

const fn mallory(program: &'static [&'static str]) -> Runner {
    Runner {
        name: "mallory",
        gpu: "0",
        weight: 25,
        program,
    }
}

const fn no_more(at_most: f64) -> Part {
    Part {
        of: "mallory",
        among: PAIR,
        at_least: 0.0,
        at_most,
    }
}

const THREE_TO_ONE: Part = Part {
    of: "alice",
    among: PAIR,
    at_least: 72.0,
    at_most: 78.0,
};

/// All of them.
pub const SHARES: &[Shares] = &[
    Shares {
        wall: "debt_survives_restart",
        runners: &[
            HONEST,
            mallory(&[
                "burster",
                "ms=50",
                "seconds=60",
                "contexts=8",
                "alone=140",
                "together=40",
            ]),
        ],
        parts: &[Part {
            of: "mallory",
            among: OWED,
            at_least: 60.0,
            at_most: f64::INFINITY,
        }],
        note: "weight 25, whose processes overdraw with 8 contexts at once and end before they have paid, beside 75: what of its debt is left when a process has ended",
        measured: Duration::from_secs(3),
    },
    Shares {
        wall: "packing_held",
        runners: &[
            HONEST,
            mallory(&["spin", "ms=2", "seconds=60", "processes=4"]),
        ],
        parts: &[no_more(28.0)],
        note: "weight 25 in four processes beside weight 75 in one",
        measured: Duration::from_secs(2),
    },
    Shares {
        wall: "birth_window",
        runners: &[
            HONEST,
            mallory(&["newborn", "ms=2", "seconds=60", "at_once=16"]),
        ],
        parts: &[no_more(28.0)],
        note: "weight 25, each of whose contexts has one kernel and is freed, beside weight 75",
        measured: Duration::from_secs(2),
    },
    Shares {
        wall: "pool_per_device",
        runners: &[
            HONEST,
            mallory(SPIN),
            Runner {
                name: "bob",
                gpu: "1",
                weight: 25,
                program: SPIN,
            },
        ],
        parts: &[
            THREE_TO_ONE,
            Part {
                of: "bob",
                among: &[],
                at_least: 95.0,
                at_most: 100.0,
            },
        ],
        note: "weights 75 and 25 on one card, and a tenant that has the other for itself",
        measured: Duration::from_secs(2),
    },
    Shares {
        wall: "share_3_to_1",
        runners: &[HONEST, mallory(SPIN)],
        parts: &[THREE_TO_ONE],
        note: "weights 75 and 25, both of which compute all the time",
        measured: Duration::from_secs(2),
    },
];

impl Shares {
    /// Tries it.
    pub fn attempt(&self, without: Option<&str>) -> Finding {
        let measured = self.measure(without);
        let (held, measured, note) = match measured {
            Ok(had) => {
                let held = self
                    .parts
                    .iter()
                    .zip(&had)
                    .all(|(part, had)| part.holds(*had));
                (held, self.told(&had).into(), self.note.to_owned())
            }
            Err(why) => (false, Value::Null, why.to_string()),
        };
        Finding {
            name: self.wall.into(),
            held,
            measured,
            expected: self.expected().into(),
            note,
        }
    }

    fn told(&self, had: &[f64]) -> String {
        let each = self.parts.iter().zip(had);
        let each = each.map(|(part, had)| format!("{} {had:.1} %{}", part.of, part.unit()));
        each.collect::<Vec<_>>().join(", ")
    }

    fn expected(&self) -> String {
        let each = self.parts.iter().map(|part| {
            let (of, unit) = (part.of, part.unit());
            match (part.at_least, part.at_most) {
                (0.0, most) => format!("{of} at most {most} %{unit}"),
                (least, f64::INFINITY) => format!("{of} at least {least} %{unit}"),
                (least, most) => format!("{of} {least} to {most} %{unit}"),
            }
        });
        each.collect::<Vec<_>>().join(", ")
    }

    /// The parts in percent.
    fn measure(&self, without: Option<&str>) -> Result<Vec<f64>, Failure> {
        /// Until everybody's part has settled after the last one came.
        const SETTLING: Duration = Duration::from_millis(800);
        let cards = if self.runners.iter().any(|r| r.gpu != "0") {
            "2xH200"
        } else {
            "1xH200"
        };
        let node = sim::Node::start(cards)?;
        let observer = Observer::open(&raw::Node::simulated(node.socket()))
            .map_err(|fault| format!("the simulated node does not answer: {fault}"))?;
        let mut running = Running(Vec::new());
        for runner in self.runners {
            let command = slice_on(
                &node,
                &Slice {
                    name: runner.name,
                    quota: QUOTA,
                    gpus: &[runner.gpu],
                    weight: Some(runner.weight),
                    without,
                    program: runner.program,
                },
            );
            running.0.push(Program::start(command)?);
        }
        let folder = node.registry()?.folder().to_owned();
        let until = Instant::now() + LIMIT;
        let look = || -> Result<Vec<(u64, u64)>, Failure> {
            let each = self.runners.iter().map(|runner| {
                let board = board::map_board(&board::board_file(&folder, runner.name)?)?;
                let helper = board.helper.load(Ordering::Acquire);
                let usage = observer.usage(u32::from(runner.gpu != "0"))?;
                Ok((usage.computed_ns(helper), usage.clock_ns[0]))
            });
            each.collect()
        };
        while look()?.iter().any(|&(ran, _)| ran == 0) {
            if Instant::now() > until {
                return Err("a tenant computes nothing".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(SETTLING);
        if self.parts.iter().any(|part| part.among == OWED) {
            return Ok(vec![debt_left(&folder, self.measured)?]);
        }
        let before = look()?;
        // Where the machine is slow its clock is, too: what was measured by then is told.
        let enough = before[0].1 + self.measured.as_nanos() as u64;
        let after = loop {
            std::thread::sleep(Duration::from_millis(50));
            let now = look()?;
            if now[0].1 >= enough || Instant::now() > until {
                break now;
            }
        };
        let ran = |name: &str| {
            let at = self.runners.iter().position(|r| r.name == name);
            at.map_or(0, |at| after[at].0 - before[at].0)
        };
        let percent = |part: &Part| {
            let of = self.runners.iter().position(|r| r.name == part.of);
            let all = match part.among {
                [] => of.map_or(0, |at| after[at].1 - before[at].1),
                among => among.iter().map(|name| ran(name)).sum(),
            };
            ran(part.of) as f64 * 100.0 / all.max(1) as f64
        };
        Ok(self.parts.iter().map(percent).collect())
    }
}

/// What is left of Mallory's debt when one of her processes has ended, in percent, over all that end in this time.
fn debt_left(folder: &Path, time: Duration) -> Result<f64, Failure> {
    /// A process has this many contexts and more, until it ends.
    const MANY: usize = 6;
    /// Less is owed by chance.
    const LEAST_US: i64 = -6_000;
    let board = board::map_board(&board::board_file(folder, "mallory")?)?;
    let until = Instant::now() + time;
    let (mut owed, mut left) = (0, 0);
    let mut ended = None;
    let mut before = (0, 0);
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
        let credit_us = board.cards[0].credit_us.load(Ordering::Acquire);
        let groups = board.slots.iter().take(64);
        let groups = groups
            .filter(|slot| slot.serial.load(Ordering::Acquire) != 0)
            .count();
        if before.0 >= MANY && groups < MANY && before.1 < LEAST_US {
            ended = Some(before.1);
        }
        match ended {
            // The scheduler has looked since.
            Some(was) if credit_us != was => {
                owed += was;
                left += credit_us;
                ended = None;
            }
            _ => {}
        }
        before = (groups, credit_us);
    }
    if owed == 0 {
        return Err("nothing was owed".into());
    }
    Ok(left as f64 * 100.0 / owed as f64)
}

impl Part {
    fn unit(&self) -> &str {
        if self.among == OWED { " of debt" } else { "" }
    }

    fn holds(&self, had: f64) -> bool {
        had >= self.at_least && had <= self.at_most
    }
}

/// Programs that are stopped together, also where something fails.
struct Running(Vec<Program>);

impl Drop for Running {
    fn drop(&mut self) {
        std::thread::scope(|scope| {
            for program in self.0.drain(..) {
                scope.spawn(|| program.stop());
            }
        });
    }
}
