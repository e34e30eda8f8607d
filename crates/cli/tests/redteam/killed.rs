//! The helper, or the supervisor, is killed at a step of what it does: the tenant ends, nothing stays granted or on the
//! card, and the next slice starts.
//!
//! The steps are entries into the kernel and returns from it, counted by a tracer (`testkit`, `killer`): nothing in the
//! product knows of it. `GPUSLICE_KILL_EVERY` is the distance of the steps that are tried.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::outside::{Line, Told};

use crate::stage::{BINARY, Stage, children_of, helper_of};

/// What an ended tenant held must be back by then.
const BACK: Duration = Duration::from_secs(5);
/// A program that says nothing for so long hangs.
const LONG: Duration = Duration::from_secs(30);
/// No run of the programs here takes as many steps.
const MOST: u64 = 20_000;

fn every(otherwise: u64) -> usize {
    let said = std::env::var("GPUSLICE_KILL_EVERY").ok();
    let said = said.and_then(|v| v.parse().ok());
    said.unwrap_or(otherwise) as usize
}

/// A tracer that has begun.
struct Killer {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Killer {
    /// Waits for its end; what it said.
    fn end(mut self) -> String {
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        said
    }

    fn stop(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn killer(words: &[&str]) -> Killer {
    let mut child = Command::new(BINARY)
        .args(["__tenant", "killer", "0"])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "attached\n", "{words:?}");
    Killer { child, said }
}

/// Nothing is granted and nothing held, soon.
#[track_caller]
fn is_clean(stage: &Stage, base: u64, name: &str, step: u64) {
    let until = Instant::now() + BACK;
    loop {
        let (free, slices) = (stage.observer.free_bytes().unwrap()[0], stage.slices());
        if free == base && !slices.iter().any(|slice| slice == name) {
            return;
        }
        assert!(
            Instant::now() < until,
            "step {step}: {free} of {base} bytes free, slices {slices:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn redteam_the_helper_may_be_killed_at_any_step_of_a_call() {
    if guard::sys::uids().1 != 0 {
        // Nobody but root may trace a helper.
        eprintln!("NOT RUN: needs root");
        return;
    }
    let stage = Stage::new();
    let base = stage.observer.free_bytes().unwrap()[0];
    let mut tried = 0;
    for step in (1..MOST).step_by(every(61)) {
        let mut program = stage.start("steps", &["step_target"]);
        let line = |program: &testkit::outside::Program| program.line(Instant::now() + LONG);
        assert_eq!(line(&program).as_deref(), Some("ready"));
        let helper = helper_of(program.pid()).unwrap();
        let tenants = children_of(helper);
        let killer = killer(&["attach", &helper.to_string(), &step.to_string()]);
        program.tell(&Told::Memory(Vec::new()));
        if line(&program).as_deref() == Some("done") {
            // There are no more steps than these.
            killer.stop();
            program.stop();
            assert!(tried > 10, "{tried} steps");
            is_clean(&stage, base, "steps", step);
            println!("{tried} of {step} steps tried");
            return;
        }
        let played = program.play(LONG, |_| None).unwrap();
        assert_eq!(
            played.status.and_then(|status| status.code()),
            Some(125),
            "step {step}: {}",
            played.errors
        );
        for tenant in tenants {
            let gone = !std::fs::exists(format!("/proc/{tenant}/root/.")).unwrap_or(false);
            assert!(gone, "step {step}: the command goes on");
        }
        killer.end();
        is_clean(&stage, base, "steps", step);
        tried += 1;
    }
    panic!("no end after {tried} steps");
}

#[test]
fn redteam_the_supervisor_may_be_killed_at_any_step() {
    /// So many steps before the end are tried more closely: there the helper is, and then the command.
    const CLOSE: u64 = 150;
    let stage = Stage::new();
    let base = stage.observer.free_bytes().unwrap()[0];
    let socket = stage.socket.to_str().unwrap().to_owned();
    let run = |step: u64, command: &[&str]| -> u64 {
        let step = step.to_string();
        let run = [
            "spawn", &step, BINARY, "run", "--sim", &socket, "--gpu", "0", "--memory", "1GiB",
            "--name", "steps", "--",
        ];
        let said = killer(&[&run, command].concat()).end();
        let Ok(Line::Finding(finding)) = serde_json::from_str(&said) else {
            panic!("{said}")
        };
        finding.measured.as_u64().unwrap()
    };
    let steps = run(MOST, &["true"]);
    assert!(steps > CLOSE && steps < MOST, "{steps}");
    let far = (1..steps).step_by(every(211));
    let close = (steps - CLOSE..steps).step_by(every(211).min(7));
    let mut tried = 0;
    for step in far.chain(close) {
        if run(step, &["true"]) == step {
            tried += 1;
        }
        is_clean(&stage, base, "steps", step);
        // The next one starts, and ends by itself.
        assert!(run(MOST, &["true"]) > CLOSE, "after step {step}");
    }
    println!("{tried} of {steps} steps tried");
    assert!(tried > 10, "{tried} of {steps}");
    // And where it is most of the time: waiting, while the command holds what it was given.
    let program = stage.start("steps", &["hold"]);
    let held = program.line(Instant::now() + LONG);
    assert_eq!(held.as_deref(), Some("held"));
    guard::sys::kill(program.pid() as i32, libc::SIGKILL).unwrap();
    is_clean(&stage, base, "steps", MOST);
    program.stop();
}
