//! The programs that want the compute engine: each does what it is for, in a slice.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::{Duration, Instant};

use simgpu::client::Client;
use testkit::outside::{Finding, Line, Worked};

use crate::common::{Done, GPUSLICE, Node, command, finish};

/// As many bytes as each slice here has: with them come the channel groups of six contexts.
const QUOTA: &str = "17179869184";

/// What a program printed: how far each of its processes came, and its finding.
fn told(done: &Done) -> (BTreeMap<u32, Worked>, Finding) {
    let mut worked = BTreeMap::new();
    let mut finding = None;
    for line in done.out.lines() {
        match serde_json::from_str(line) {
            Ok(Line::Worked(newest)) => {
                worked.insert(newest.pid, newest);
            }
            Ok(Line::Finding(found)) => assert!(finding.replace(found).is_none(), "{}", done.out),
            other => panic!("{other:?}: {line}"),
        }
    }
    (
        worked,
        finding.unwrap_or_else(|| panic!("{} {}", done.out, done.err)),
    )
}

fn in_slice(node: &Node, options: &[&str], program: &[&str]) -> Done {
    let words = [&[GPUSLICE, "__tenant", program[0], QUOTA], &program[1..]].concat();
    let options = [&["--memory", "16GiB", "--gpu", "0"], options].concat();
    finish(command(&node.run(&options, &words))).ended(0)
}

#[test]
fn programs_that_want_the_engine_get_work_done_in_a_slice() {
    let node = Node::start("1xH200");
    for (program, processes) in [
        (&["spin", "seconds=0.4", "processes=3", "contexts=2"][..], 3),
        (&["spin", "seconds=0.4", "on=20", "off=20"], 1),
        (&["rotate", "seconds=0.4", "contexts=3", "each=10"], 1),
        (&["wfi", "seconds=0.2", "ms=20"], 1),
        (&["restarter", "seconds=3", "each=1500"], 2),
    ] {
        let (worked, finding) = told(&in_slice(&node, &[], program));
        assert!(finding.held, "{program:?} {finding:?}");
        assert_eq!(worked.len(), processes, "{program:?} {worked:?}");
        let all_worked = worked.values().all(|worked| worked.kernels > 0);
        assert!(all_worked, "{program:?} {worked:?}");
    }
}

#[test]
fn a_program_that_pauses_does_less() {
    let node = Node::start("1xH200");
    let (_, whole) = told(&in_slice(&node, &[], &["spin", "seconds=1"]));
    let half = in_slice(&node, &[], &["spin", "seconds=1", "on=40", "off=40"]);
    let (_, half) = told(&half);
    let (whole, half) = (
        whole.measured.as_u64().unwrap(),
        half.measured.as_u64().unwrap(),
    );
    // What is queued at the end of a turn is still done: half a turn.
    assert!(half > 0 && half < whole * 85 / 100, "{half} of {whole}");
}

#[test]
fn a_word_that_is_no_number_is_refused() {
    let mut wrong = command(&["__tenant", "spin", QUOTA, "seconds=soon"]);
    wrong.env("GPUSLICE_SIM", "/nonexistent");
    let done = finish(wrong).ended(1);
    assert_eq!(done.err, "spin: seconds=soon: no number of 0 or more\n");
}

/// Without the wall the thief attaches itself and detaches his neighbour, which nobody can miss.
#[test]
fn a_thief_of_slices_reaches_others_only_without_the_wall() {
    const THIEF: [&str; 2] = ["slice_thief", "seconds=0.1"];
    let node = Node::start("1xH200");
    let (_, held) = told(&in_slice(&node, &[], &THIEF));
    assert!(held.held, "{held:?}");
    let without = ["--without", "foreign_detach_refused"];
    let (_, taken) = told(&in_slice(&node, &without, &THIEF));
    assert!(
        !taken.held && taken.note.contains("attach itself: taken"),
        "{taken:?}"
    );
}

/// Shares are measured on the engine's own clock: what the machine does besides moves both parts alike.
#[test]
fn two_slices_that_spin_have_equal_time_on_the_engine() {
    let node = Node::start("1xH200");
    let mut usage = Client::connect(node.socket.as_ref()).unwrap();
    let words = [GPUSLICE, "__tenant", "spin", QUOTA, "seconds=3"];
    let options = ["--memory", "16GiB", "--gpu", "0"];
    let mut slices: Vec<_> = (0..2)
        .map(|_| {
            let mut slice = command(&node.run(&options, &words));
            slice.stdout(Stdio::null()).stderr(Stdio::null());
            slice.spawn().unwrap()
        })
        .collect();
    let mut times = || -> Vec<u64> {
        let usage = usage.usage(0).unwrap();
        let helpers: BTreeSet<u32> = usage.groups.iter().map(|group| group.pid).collect();
        let ran = helpers.iter().map(|&pid| usage.computed_ns(pid));
        ran.filter(|&ns| ns > 0).collect()
    };
    let until = Instant::now() + Duration::from_secs(20);
    while times().len() < 2 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(200));
    let before = times();
    std::thread::sleep(Duration::from_secs(1));
    let after = times();
    for slice in &mut slices {
        slice.wait().unwrap();
    }
    assert_eq!((before.len(), after.len()), (2, 2), "{before:?} {after:?}");
    let (a, b) = (after[0] - before[0], after[1] - before[1]);
    let share = a as f64 / (a + b) as f64;
    assert!(
        (0.48..0.52).contains(&share),
        "{share} {before:?} {after:?}"
    );
}
