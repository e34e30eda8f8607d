//! Hostile calls with structure, for a while: no crash, no hang, nothing left, never too much, and a neighbour who
//! notices nothing.
//!
//! `GPUSLICE_FUZZ_SECONDS` says for how long, `GPUSLICE_FUZZ_SEED` with which calls the first second begins.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testkit::outside::{Line, Neighbour, Program, Told};

use crate::stage::{Stage, assert_held, helper_of};

const QUOTA: u64 = 2 << 30;
/// Context buffers, channels and the like, of which nobody states the size: a tenant can have them measured as smaller
/// than they are (SECURITY.md, hidden memory), so the card may miss more than the quota, but not much more.
const HIDDEN: u64 = QUOTA / 2;
/// In `cargo test`, where nothing else is said.
const SECONDS: u64 = 20;
/// What the program takes beyond its time before it counts as hung.
const GRACE: Duration = Duration::from_secs(60);
/// What an ended tenant held must be back by then.
const BACK: Duration = Duration::from_secs(5);
/// How often the card is asked what it has left.
const LOOK: Duration = Duration::from_millis(10);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn fuzz_hostile_calls_leave_nothing_and_disturb_nobody() {
    let seconds = number("GPUSLICE_FUZZ_SECONDS").unwrap_or(SECONDS);
    let seed = number("GPUSLICE_FUZZ_SEED").unwrap_or(1);
    let stage = Stage::new();
    let empty = stage.observer.free_bytes().unwrap()[0];
    let sentinel = Sentinel::start(&stage);
    let before = stage.observer.free_bytes().unwrap()[0];
    let words = ["fuzz", &seed.to_string(), &seconds.to_string()];
    let program = stage.start_with(QUOTA, "fuzz", &words);
    let run = program.pid();
    let over = AtomicBool::new(false);
    let (played, seen) = std::thread::scope(|scope| {
        let seen = scope.spawn(|| watch(&stage, run, before, &over));
        let played = program.play(Duration::from_secs(seconds) + GRACE, |line| match line {
            Line::AskNeighbour => Some(Told::Neighbour(sentinel.first)),
            _ => None,
        });
        over.store(true, Ordering::Relaxed);
        (played.unwrap(), seen.join().unwrap())
    });
    let last = played
        .other
        .iter()
        .rev()
        .find_map(|line| line.strip_prefix("seed "));
    let again = format!(
        "again with: GPUSLICE_FUZZ_SEED={} GPUSLICE_FUZZ_SECONDS=5 cargo test -p gpuslice --test redteam fuzz_hostile",
        last.unwrap_or("1")
    );
    println!("{}{again}", played.errors);
    let finding = assert_held(&played);
    println!("{}; {seen:?}", finding.note);
    assert!(!stage.node_has_panicked(), "{again}");
    assert!(seen.looks > 10, "{seen:?}: nobody watched; {again}");
    assert!(
        seen.process <= QUOTA && seen.card <= QUOTA + HIDDEN,
        "more than the quota of {QUOTA}: {seen:?}; {again}"
    );
    assert!(!stage.slices().contains(&"fuzz".to_owned()), "{again}");
    settles("what the tenant held", &again, || {
        stage.observer.free_bytes().unwrap()[0] == before
            && !stage.observer.has_objects(seen.helper).unwrap()
    });
    sentinel.stop(&again);
    settles("what the neighbour held", &again, || {
        stage.observer.free_bytes().unwrap()[0] == empty
    });
}

#[track_caller]
fn settles(what: &str, again: &str, mut is_back: impl FnMut() -> bool) {
    let until = Instant::now() + BACK;
    while !is_back() {
        assert!(Instant::now() < until, "{what} is not back; {again}");
        std::thread::sleep(LOOK);
    }
}

/// What the driver was seen to give the tenant.
#[derive(Default, Debug)]
struct Seen {
    helper: u32,
    looks: u64,
    /// Most that its process held.
    process: u64,
    /// Most that was missing on the card: context buffers, channels and managed memory as well.
    card: u64,
}

fn watch(stage: &Stage, run: u32, before: u64, over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !over.load(Ordering::Relaxed) {
        if seen.helper == 0 {
            seen.helper = helper_of(run).unwrap_or(0);
        } else if let Ok(process) = stage.observer.memory_of(seen.helper)
            && let Ok(free) = stage.observer.free_bytes()
        {
            seen.looks += 1;
            seen.process = seen.process.max(process[0]);
            seen.card = seen.card.max(before.saturating_sub(free[0]));
        }
        std::thread::sleep(LOOK);
    }
    seen
}

/// A neighbour that looks after what it has.
struct Sentinel {
    program: Program,
    first: Neighbour,
}

impl Sentinel {
    fn start(stage: &Stage) -> Sentinel {
        let program = stage.start("sentinel", &["sentinel"]);
        let first = progress(&program);
        let sentinel = Sentinel { program, first };
        // Its channel and all it maps are there once it has looked at them.
        while progress(&sentinel.program).finished < 3 {}
        sentinel
    }

    fn stop(self, again: &str) {
        let newest = self.program.newest();
        let finished = newest.and_then(|line| match serde_json::from_str(&line) {
            Ok(Line::Progress(here)) => Some(here.finished),
            _ => None,
        });
        let next = self
            .program
            .line(Instant::now() + Duration::from_secs(10))
            .is_some();
        let errors = self.program.stop();
        assert!(
            next && finished.is_some_and(|n| n > 50),
            "the neighbour looked {finished:?} times, then said: {errors}; {again}"
        );
    }
}

fn progress(program: &Program) -> Neighbour {
    let line = program
        .line(Instant::now() + Duration::from_secs(20))
        .unwrap();
    match serde_json::from_str(&line) {
        Ok(Line::Progress(here)) => here,
        other => panic!("{other:?}"),
    }
}
