//! `gpuslice demo`: three tenants on a simulated node, one of them cheating in every way there is a wall against.
//!
//! Needs no GPU and no root. It takes the way that users take: every program runs in a slice that `gpuslice run` has
//! made, so what is shown is the guard at work, against programs that make the driver's calls themselves.

mod checks;
mod shares;
mod show;

use std::collections::VecDeque;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guard::tenant::Walls;
use serde::Serialize;
use testkit::outside::{Finding, Line, Neighbour, Observer, Program, Told};
use testkit::raw;

use crate::args::DemoOptions;
use crate::{Failure, embed, say, sim};
use checks::{CHECKS, Check};
use shares::SHARES;

/// The node of the demo.
const NODE: &str = "2xH200";
const GIB: u64 = testkit::GIB;
const ALICE: u64 = 6 * GIB;
const BOB: u64 = 20 * GIB;
const MALLORY: u64 = 10 * GIB;
/// A program that takes longer is ended, and its wall has not held.
const LIMIT: Duration = Duration::from_secs(20);
/// Programs at once. Most of the time goes into starting them, one after another, on whatever processors there are.
const AT_ONCE: usize = 3;
/// Nodes at once on which a card's time is divided: there each program waits most of the time.
const NODES_AT_ONCE: usize = 5;

/// One tenant, as the demo reports it.
#[derive(Debug, Serialize)]
struct Tenant {
    name: &'static str,
    /// Bytes on a card.
    quota: u64,
    honest: bool,
    /// An honest tenant got all that it was given.
    served: bool,
    note: String,
}

/// What the demo found.
#[derive(Debug, Serialize)]
struct Outcome {
    device: String,
    tenants: Vec<Tenant>,
    checks: Vec<Finding>,
}

/// The tenants' node and what they share.
struct Stage {
    node: sim::Node,
    observer: Observer,
    attacker: String,
    without: Option<String>,
    /// Walls to look at; none: all.
    only: Vec<String>,
    bob: Mutex<Option<Neighbour>>,
}

/// Says that the demo is over when it is dropped, also where a panic passes: Bob's thread would be waited for for ever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the demo; returns its exit status.
///
/// # Errors
/// One line: the wall does not exist, or the node could not be started.
pub fn run(options: &DemoOptions) -> Result<u8, Failure> {
    let without = options.without.iter().map(|name| ("--without", name));
    let only = options.only.iter().map(|name| ("--only", name));
    for (flag, name) in without.chain(only) {
        if Walls::without(name).is_none() {
            return Err(format!(
                "{flag} {name}: no such wall; there are {}",
                Walls::names().join(", ")
            )
            .into());
        }
    }
    say::note(format_args!(
        "gpuslice demo: starting a simulated node with two NVIDIA H200"
    ));
    let node = sim::Node::start(NODE)?;
    // Into the node's folder: the node's process removes it, also where this one is killed.
    let attacker = embed::unpack_attacker(node.folder())?
        .to_string_lossy()
        .into_owned();
    let observer = Observer::open(&raw::Node::simulated(node.socket()))
        .map_err(|fault| format!("the simulated node does not answer: {fault}"))?;
    let stage = Stage {
        node,
        observer,
        attacker,
        without: options.without.clone(),
        only: options.only.clone(),
        bob: Mutex::new(None),
    };
    stage.try_a_slice()?;
    let outcome = stage.play()?;
    let closing = show::closing(&outcome, options.without.as_deref());
    if options.json {
        say::print((serde_json::to_string_pretty(&outcome)? + "\n").as_bytes())?;
        say::note(format_args!("{closing}"));
    } else {
        say::print(format!("{}{closing}\n", show::table(&outcome)).as_bytes())?;
    }
    Ok(u8::from(!outcome.all_well()))
}

/// A slice and the program in it.
struct Slice<'a> {
    name: &'a str,
    /// Bytes on each card.
    quota: u64,
    gpus: &'a [&'a str],
    weight: Option<u32>,
    without: Option<&'a str>,
    program: &'a [&'a str],
}

/// `gpuslice run` of a tenant's program on a node.
fn slice_on(node: &sim::Node, slice: &Slice<'_>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("run").arg("--sim").arg(node.socket());
    command.args(["--name", slice.name, "--memory", &slice.quota.to_string()]);
    for gpu in slice.gpus {
        command.args(["--gpu", gpu]);
    }
    if let Some(weight) = slice.weight {
        command.args(["--weight", &weight.to_string()]);
    }
    if let Some(wall) = slice.without {
        command.args(["--without", wall]);
    }
    let (program, words) = slice
        .program
        .split_first()
        .map_or(("", [].as_slice()), |(p, w)| (*p, w));
    command
        .args([
            "--",
            "/proc/self/exe",
            "__tenant",
            program,
            &slice.quota.to_string(),
        ])
        .args(words);
    command
}

impl Outcome {
    fn all_well(&self) -> bool {
        self.checks.iter().all(|check| check.held)
            && self.tenants.iter().all(|tenant| tenant.served)
    }
}

impl Stage {
    /// Where no slice can be made nothing can be shown, and no wall has fallen.
    fn try_a_slice(&self) -> Result<(), Failure> {
        let mut run = Command::new("/proc/self/exe");
        run.arg("run").arg("--sim").arg(self.node.socket());
        let tried = run.args(["--memory", "1GiB", "--", "true"]).output()?;
        if tried.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&tried.stderr);
        let why = said.lines().last().unwrap_or("gpuslice run failed");
        let why = why.strip_prefix("gpuslice: ").unwrap_or(why);
        Err(format!("no slice can be made here: {why}").into())
    }

    /// Bob computes from the beginning to the end, Mallory's attempts run beside him. Alice comes before Mallory: what a
    /// context takes is measured by what is free before and after, so a neighbour who allocates in that moment would
    /// make it look larger.
    fn play(&self) -> Result<Outcome, Failure> {
        let over = AtomicBool::new(false);
        let bob = Program::start(self.slice("bob", BOB, &["0"], None, &["spinner"]))?;
        std::thread::scope(|scope| {
            let bob = scope.spawn(|| self.watch(bob, &over));
            let until_here = Over(&over);
            let alice = self.honest();
            let found = self.attempts();
            drop(until_here);
            let last_words = bob.join().unwrap_or_default();
            Ok(Outcome {
                device: format!("{NODE} (simulated, driver {})", simgpu::DRIVER_VERSION),
                tenants: vec![
                    alice_said(alice),
                    self.bob_did(&last_words),
                    mallory_tried(&found),
                ],
                checks: found,
            })
        })
    }

    /// `gpuslice run` of a tenant's program on this node.
    fn slice(
        &self,
        name: &str,
        quota: u64,
        gpus: &[&str],
        without: Option<&str>,
        program: &[&str],
    ) -> Command {
        let slice = Slice {
            name,
            quota,
            gpus,
            weight: None,
            without,
            program,
        };
        slice_on(&self.node, &slice)
    }

    fn bob(&self) -> MutexGuard<'_, Option<Neighbour>> {
        self.bob.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what Bob tells, to the end of the demo; returns what his program wrote about errors.
    fn watch(&self, program: Program, over: &AtomicBool) -> String {
        const LOOK: Duration = Duration::from_millis(20);
        while !over.load(Ordering::Relaxed) {
            let Some(line) = program.line(Instant::now() + LOOK) else {
                continue;
            };
            if let Ok(Line::Progress(here)) = serde_json::from_str(&line) {
                *self.bob() = Some(here);
            }
        }
        program.stop()
    }

    fn honest(&self) -> Result<Finding, String> {
        self.perform(Program::start(self.slice(
            "alice",
            ALICE,
            &["0"],
            None,
            &["honest"],
        )))
    }

    /// Serves a program to its end; its one finding, or why there is none.
    fn perform(&self, program: std::io::Result<Program>) -> Result<Finding, String> {
        let answer = |line: &Line| match line {
            Line::AskMemory(helper) => self.observer.memory_of(*helper).ok().map(Told::Memory),
            Line::AskNeighbour => self.neighbour().map(Told::Neighbour),
            Line::Progress(_) | Line::Worked(_) | Line::Finding(_) => None,
        };
        let played = program
            .and_then(|program| program.play(LIMIT, answer))
            .map_err(|e| e.to_string())?;
        played.finding().cloned()
    }

    /// Where Bob is, once his first kernel runs.
    fn neighbour(&self) -> Option<Neighbour> {
        let until = Instant::now() + LIMIT / 2;
        loop {
            let here = *self.bob();
            if here.is_some_and(|bob| bob.finished > 0) || Instant::now() > until {
                return here;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All of Mallory's attempts, in the order of the table.
    fn attempts(&self) -> Vec<Finding> {
        let asked = |wall: &str| self.only.is_empty() || self.only.iter().any(|w| w == wall);
        let checks: Vec<&Check> = CHECKS.iter().filter(|c| asked(c.wall)).collect();
        let shares: Vec<_> = SHARES.iter().filter(|s| asked(s.wall)).collect();
        let mut found = side_by_side(&checks, AT_ONCE, |check| self.attempt(check));
        let without = self.without.as_deref();
        found.extend(side_by_side(&shares, NODES_AT_ONCE, |shares| {
            shares.attempt(without)
        }));
        found
    }

    fn attempt(&self, check: &Check) -> Finding {
        let mut words = vec![check.wall];
        if check.takes_attacker {
            words.push(&self.attacker);
        }
        let name = format!("mallory-{}", check.wall);
        let command = self.slice(
            &name,
            check.quota,
            check.gpus,
            self.without.as_deref(),
            &words,
        );
        self.perform(Program::start(command))
            .unwrap_or_else(|why| Finding {
                name: check.wall.into(),
                held: false,
                measured: serde_json::Value::Null,
                expected: serde_json::Value::Null,
                note: why,
            })
    }

    fn bob_did(&self, last_words: &str) -> Tenant {
        let finished = self.bob().map_or(0, |bob| bob.finished);
        let note = match finished {
            0 => format!(
                "finished no kernel: {}",
                last_words.lines().last().unwrap_or("it said nothing")
            ),
            n => format!("computed all the while beside the others: {n} kernels of 5 ms"),
        };
        Tenant {
            name: "bob",
            quota: BOB,
            honest: true,
            served: finished > 0,
            note,
        }
    }
}

/// Tries walls, so many at once. What was found is in their order.
fn side_by_side<C: Sync>(
    checks: &[C],
    at_once: usize,
    attempt: impl Fn(&C) -> Finding + Sync,
) -> Vec<Finding> {
    let waiting: Mutex<VecDeque<(usize, &C)>> = Mutex::new(checks.iter().enumerate().collect());
    let found: Mutex<Vec<(usize, Finding)>> = Mutex::default();
    let next = || {
        waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some((at, check)) = next() {
                    let finding = attempt(check);
                    say::note(format_args!(
                        "gpuslice demo: {} {}",
                        if finding.held { "held:" } else { "FELL:" },
                        finding.name
                    ));
                    found
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((at, finding));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|&(at, _)| at);
    found.into_iter().map(|(_, finding)| finding).collect()
}

fn alice_said(finding: Result<Finding, String>) -> Tenant {
    let (served, note) = match finding {
        Ok(finding) => (finding.held, finding.note),
        Err(why) => (false, why),
    };
    Tenant {
        name: "alice",
        quota: ALICE,
        honest: true,
        served,
        note,
    }
}

fn mallory_tried(found: &[Finding]) -> Tenant {
    let note = format!(
        "tries to get more than that, or at the others, in {} ways",
        found.len()
    );
    Tenant {
        name: "mallory",
        quota: MALLORY,
        honest: false,
        served: true,
        note,
    }
}
