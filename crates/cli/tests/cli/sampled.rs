//! Shares on cards that lack something: without a timeline the scheduler asks who is on the card, again and again.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;

use guard::share::board::{self, Board, SENSORS};
use simgpu::client::Client;

use crate::alone;
use crate::common::{GPUSLICE, Node, command, gpuslice, wait_until};

const QUOTA: &str = "17179869184";
/// The virtual clock decides how much is measured: a busy machine takes longer.
const MEASURED_NS: u64 = 4_000_000_000;

struct Slice {
    name: &'static str,
    run: Child,
}

impl Slice {
    fn start(node: &Node, name: &'static str, part: [&str; 2], program: &[&str]) -> Slice {
        let words = [&[GPUSLICE, "__tenant", program[0], QUOTA], &program[1..]].concat();
        Slice::run(node, name, part, &words)
    }

    fn run(node: &Node, name: &'static str, part: [&str; 2], words: &[&str]) -> Slice {
        let options = ["--memory", "16GiB", "--name", name, part[0], part[1]];
        let mut run = command(&node.run(&options, words));
        run.stdout(Stdio::null()).stderr(Stdio::null());
        Slice {
            name,
            run: run.spawn().unwrap(),
        }
    }

    fn with_board<T>(&self, node: &Node, look: impl FnOnce(&Board) -> T) -> T {
        let file = board::board_file(&folder(node), self.name).unwrap();
        look(&board::map_board(&file).unwrap())
    }

    /// The process that the driver knows its contexts by.
    fn helper(&self, node: &Node) -> u32 {
        self.with_board(node, |board| board.helper.load(Ordering::Acquire))
    }

    fn ran_us(&self, node: &Node) -> u64 {
        self.with_board(node, |board| board.cards[0].ran_us.load(Ordering::Acquire))
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        // SAFETY: a signal to a child of ours that has not been waited for.
        unsafe { libc::kill(self.run.id() as i32, libc::SIGTERM) };
        let _ended = self.run.wait();
    }
}

fn folder(node: &Node) -> PathBuf {
    Path::new(&node.socket).with_file_name("registry")
}

fn sensor(node: &Node) -> (&'static str, u32) {
    let said = board::map_node(&board::node_file(&folder(node)).unwrap()).unwrap();
    let sensor = SENSORS[said.sensor.load(Ordering::Acquire) as usize];
    (sensor, said.error_ppm.load(Ordering::Acquire))
}

/// Parts of the first of two slices, in percent: what it had by the engine's own clock, and what the sensor says.
fn parts(node: &Node, slices: &[Slice; 2]) -> [f64; 2] {
    let mut usage = Client::connect(node.socket.as_ref()).unwrap();
    let mut times = || -> ([u64; 2], [u64; 2], u64) {
        let usage = usage.usage(0).unwrap();
        let ran = |slice: &Slice| usage.computed_ns(slice.helper(node));
        let seen = |slice: &Slice| slice.ran_us(node);
        (
            slices.each_ref().map(ran),
            slices.each_ref().map(seen),
            usage.clock_ns[0],
        )
    };
    wait_until("both run and are seen", || {
        let (ran, seen, _) = times();
        ran.into_iter().chain(seen).all(|time| time > 0)
    });
    let settled = times().2 + 500_000_000;
    wait_until("half a second has passed", || times().2 >= settled);
    let before = times();
    wait_until("it is measured", || times().2 >= before.2 + MEASURED_NS);
    let after = times();
    let part = |before: [u64; 2], after: [u64; 2]| {
        let [one, other] = [0, 1].map(|i| (after[i] - before[i]) as f64);
        100.0 * one / (one + other)
    };
    [part(before.0, after.0), part(before.1, after.1)]
}

/// The same until it is as it should be, three times at most: a program that gets no processor has no work queued.
fn parts_as(node: &Node, slices: &[Slice; 2], fits: impl Fn([f64; 2]) -> bool) -> [f64; 2] {
    let first = parts(node, slices);
    (0..2).fold(first, |found, _| {
        if fits(found) {
            found
        } else {
            parts(node, slices)
        }
    })
}

/// Two that always have work, at 3 : 1.
fn three_to_one(node: &Node) -> [Slice; 2] {
    [("most", "75"), ("rest", "25")].map(|(name, weight)| {
        Slice::start(
            node,
            name,
            ["--weight", weight],
            &["spin", "ms=2", "seconds=60"],
        )
    })
}

fn near(value: f64, due: f64, tolerance: f64) -> bool {
    (value - due).abs() < tolerance
}

#[test]
fn weights_divide_a_card_without_a_timeline() {
    let _alone = alone();
    let node = Node::start("1xH200-no-timeline");
    let slices = three_to_one(&node);
    // Over four seconds half of the error of one; three standard errors.
    let tolerance = || 3.0 * f64::from(sensor(&node).1) / 1e4 / 2.0;
    let fits = |[had, seen]: [f64; 2]| near(had, 75.0, tolerance()) && near(seen, had, tolerance());
    let found = parts_as(&node, &slices, fits);
    let (sensor, error_ppm) = sensor(&node);
    assert_eq!(sensor, "sampled");
    assert!(fits(found), "{found:?} +- {}", tolerance());
    let told = gpuslice(&["ps", "--json", "--sim", &node.socket]).json();
    let time = &told[0]["gpus"][0]["time"];
    assert_eq!(time["sensor"], "sampled", "{told}");
    let percent = time["standard_error_percent"].as_f64().unwrap();
    assert!((1.5..6.0).contains(&percent), "{told}");
    let doctor = gpuslice(&["doctor", "--sim", &node.socket]).ended(0).out;
    assert!(
        doctor.contains("sensor sampled (standard error ")
            && doctor.contains("sampled: GPU 0 does not record who computes"),
        "{doctor}"
    );
    // 400 polls a second, fewer where the machine is busy: the standard error of a quarter is 2.2 points.
    assert!((15_000..60_000).contains(&error_ppm), "{error_ppm}");
}

/// Bursts of 10 ms out of 40 would fit between polls at fixed times.
#[test]
fn bursts_are_seen_without_a_timeline() {
    let _alone = alone();
    let node = Node::start("1xH200-no-timeline");
    let slices = [
        Slice::start(
            &node,
            "steady",
            ["--weight", "50"],
            &["spin", "ms=2", "seconds=60"],
        ),
        Slice::start(
            &node,
            "bursts",
            ["--weight", "50"],
            &["spin", "ms=2", "seconds=60", "on=40", "off=40"],
        ),
    ];
    let fits = |[had, seen]: [f64; 2]| near(seen, had, 6.0);
    let found = parts_as(&node, &slices, fits);
    assert!(fits(found), "{found:?}");
}

/// Hardware's numbers go round: those of a process that has ended are another slice's, while the first slice lives on.
#[test]
fn numbers_that_go_round_are_known_without_a_timeline() {
    let _alone = alone();
    let node = Node::start("1xH200-no-timeline");
    let program = format!("{GPUSLICE} __tenant spin {QUOTA} seconds=0.3; sleep 60");
    let half = ["--weight", "50"];
    let first = Slice::run(&node, "first", half, &["sh", "-c", &program]);
    let mut usage = Client::connect(node.socket.as_ref()).unwrap();
    wait_until("the first has come and gone", || {
        let (usage, helper) = (usage.usage(0).unwrap(), first.helper(&node));
        let mut groups = usage.groups.iter();
        let lives = groups.any(|group| group.pid == helper && group.client != 0);
        usage.computed_ns(helper) > 0 && !lives
    });
    let slices = [
        Slice::start(&node, "next", half, &["spin", "ms=2", "seconds=60"]),
        Slice::start(&node, "last", half, &["spin", "ms=2", "seconds=60"]),
    ];
    let fits = |[had, seen]: [f64; 2]| near(seen, had, 6.0);
    let found = parts_as(&node, &slices, fits);
    assert!(fits(found), "{found:?}");
}

/// With neither, slices are set and nothing corrects them.
#[test]
fn without_any_sensor_slices_still_divide() {
    let _alone = alone();
    let node = Node::start("1xH200-no-timeline-no-residency");
    let slices = three_to_one(&node);
    let fits = |[had, _presumed]: [f64; 2]| near(had, 75.0, 3.0);
    let found = parts_as(&node, &slices, fits);
    assert_eq!(sensor(&node), ("none", 0));
    assert!(fits(found), "{found:?}");
}

/// Whoever is over his cap is stopped, unless all on the card want to see what slices do alone. One that wants it for itself
/// gains nothing.
#[test]
fn slices_alone_is_for_all_of_a_card_or_for_nobody() {
    let _alone = alone();
    let node = Node::start("1xH200");
    let program = ["spin", "ms=2", "seconds=60"];
    let slices = [
        Slice::start(&node, "capped", ["--cap", "25"], &program),
        Slice::start(&node, "other", ["--weight", "100"], &program),
    ];
    let alone = |slice: &Slice| {
        slice.with_board(&node, |board| {
            board.slices_alone.store(1, Ordering::Release);
        });
    };
    wait_until("the slices are there", || {
        slices.iter().all(|slice| slice.helper(&node) != 0)
    });
    alone(&slices[0]);
    let fits = |[had, _seen]: [f64; 2]| near(had, 25.0, 3.0);
    let found = parts_as(&node, &slices, fits);
    assert!(fits(found), "{found:?}");
    alone(&slices[1]);
    let [had, _seen] = parts(&node, &slices);
    assert!(had > 35.0, "{had}");
}
