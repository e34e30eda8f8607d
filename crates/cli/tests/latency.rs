//! `run --latency` on a simulated node, from the command line to the engine: a tenant with a short kernel now and then
//! beside one that computes all the time. All is measured on the engine's own clock.

#[path = "cli/common.rs"]
#[expect(
    dead_code,
    reason = "these tests need a part of what those of the commands need"
)]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{GPUSLICE, Node, command, gpuslice, wait_until};
use simgpu::client::Client;
use testkit::outside::Line;

const QUOTA: &str = "17179869184";
const SLICE: [&str; 4] = ["--memory", "16GiB", "--gpu", "0"];

#[derive(Debug)]
struct Measured {
    kernels: u64,
    p50_us: u64,
    /// What each hog had of the time that all had.
    of_had: Vec<f64>,
    /// What they had together of all time.
    of_all: f64,
}

/// A slice that computes, until it is dropped.
struct Hog(Child);

impl Hog {
    fn start(node: &Node) -> Hog {
        let words = [GPUSLICE, "__tenant", "spin", QUOTA, "seconds=25"];
        let mut hog = command(&node.run(&SLICE, &words));
        hog.stdout(Stdio::null()).stderr(Stdio::null());
        Hog(hog.spawn().expect("start"))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// The tenant with these options beside so many hogs. One node at a time: they want the machine for themselves.
fn beside(hogs: usize, options: &[&str]) -> Measured {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let node = Node::start("1xH200");
    let mut usage = Client::connect(node.socket.as_ref()).expect("the node");
    let mut ran = || {
        let usage = usage.usage(0).expect("usage");
        let pids: BTreeSet<u32> = usage.groups.iter().map(|group| group.pid).collect();
        let ran = pids.iter().map(|&pid| (pid, usage.computed_ns(pid)));
        let ran: BTreeMap<u32, u64> = ran.filter(|(_, ns)| *ns > 0).collect();
        (usage.clock_ns[0], ran)
    };
    let _hogs: Vec<Hog> = (0..hogs).map(|_| Hog::start(&node)).collect();
    wait_until("all hogs run", || ran().1.len() == hogs);
    let hogs: Vec<u32> = ran().1.into_keys().collect();
    let words = [GPUSLICE, "__tenant", "soon", QUOTA, "seconds=6", "after=2"];
    let options = [&SLICE, options].concat();
    let mut soon = command(&node.run(&options, &words));
    soon.stdout(Stdio::piped()).stderr(Stdio::piped());
    let soon = soon.spawn().expect("start");
    std::thread::sleep(Duration::from_secs(2));
    let (from, before) = ran();
    std::thread::sleep(Duration::from_secs(3));
    let (to, after) = ran();
    let done = soon.wait_with_output().expect("an end");
    let out = String::from_utf8_lossy(&done.stdout);
    let found = out
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let mut findings = found.filter_map(|line| match line {
        Line::Finding(finding) => Some(finding.measured),
        _ => None,
    });
    let told = findings.next();
    let told = told.unwrap_or_else(|| panic!("{out} {}", String::from_utf8_lossy(&done.stderr)));
    let had = |pid: &u32| after[pid] - before.get(pid).unwrap_or(&0);
    let all: u64 = after.keys().map(had).sum();
    let hogs: Vec<u64> = hogs.iter().map(had).collect();
    let number = |name: &str| told[name].as_u64().expect("a number");
    let measured = Measured {
        kernels: number("kernels"),
        p50_us: number("p50_us"),
        of_had: hogs.iter().map(|&ns| ns as f64 / all as f64).collect(),
        of_all: hogs.iter().sum::<u64>() as f64 / (to - from) as f64,
    };
    eprintln!("{options:?}: {measured:?}");
    measured
}

#[test]
fn with_latency_it_waits_for_less_and_the_hog_keeps_its_share() {
    let without = beside(1, &[]);
    let with = beside(1, &["--latency"]);
    assert!(without.kernels > 20, "{without:?}");
    // Alone it takes 0.13 ms; beside half of a cycle 10 ms and more; beside a slice of 0.5 ms less than 2, if nobody
    // wakes up late.
    assert!(without.p50_us > 5_000, "{without:?}");
    assert!(with.p50_us < 3_000, "{with:?}");
    assert!(with.kernels > 2 * without.kernels, "{with:?} {without:?}");
    assert!(with.of_had[0] > 0.85 && with.of_all > 0.70, "{with:?}");
}

/// Two hogs take turns, by being detached: it waits for one of them, and they have the same.
#[test]
fn beside_two_hogs_it_waits_for_one() {
    let with = beside(2, &["--latency=400"]);
    assert!(with.p50_us < 3_000, "{with:?}");
    let hogs: f64 = with.of_had.iter().sum();
    assert!(hogs > 0.85 && with.of_all > 0.65, "{with:?}");
    let part = with.of_had[0] / hogs;
    assert!((0.44..0.56).contains(&part), "{with:?}");
}

#[test]
fn a_bound_that_is_none_is_refused_in_one_line() {
    let asked = |latency: &str| {
        let latency = format!("--latency={latency}");
        gpuslice(&["run", "--sim", "1xH200", &latency, "--", "true"])
    };
    for latency in ["199", "10001", "soon", "-5", "0", "0.5", ""] {
        asked(latency).refused(&["--latency", "200 to 10000"]);
    }
}

#[test]
fn a_cap_beside_it_is_explained() {
    let both = [
        "run",
        "--sim",
        "1xH200",
        "--memory",
        "1GiB",
        "--latency",
        "300",
    ];
    let done = gpuslice(&[&both[..], &["--cap", "10", "--", "true"]].concat()).ended(0);
    assert!(
        done.err
            .contains("--latency holds until --cap 10 % is reached"),
        "{}",
        done.err
    );
    let done = gpuslice(&[&both[..], &["--", "true"]].concat()).ended(0);
    assert!(!done.err.contains("--latency"), "{}", done.err);
}
