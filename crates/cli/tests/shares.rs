//! Faults of the scheduler: what it had stopped goes on, what is owed stays owed, nobody gets a context without its slice.

#[path = "cli/common.rs"]
#[expect(dead_code, reason = "shared with the other tests of the commands")]
mod common;
#[path = "cli/time.rs"]
#[expect(dead_code, reason = "shared with the attacks on a card's time")]
mod time;

use std::fs;
use std::sync::atomic::Ordering;

use common::{GPUSLICE, command, finish, gpuslice, wait_until};
use time::{QUOTA, Shares, all_are, pause, signal, state};

// `start::wait`: whoever gets the lock starts the next one. `Scheduler::look_for_tenants` restores what was owed.
#[test]
fn a_killed_scheduler_is_followed_by_one_that_knows_what_is_owed() {
    const OWED_US: i64 = 600_000;
    let shares = Shares::start();
    let (a, b) = (shares.spinner("a", "75"), shares.spinner("b", "25"));
    let first = shares.scheduler();
    // A debt as of one that overdrew, in the books that the scheduler leaves.
    signal(first, libc::SIGSTOP);
    b.board.cards[0]
        .credit_us
        .store(-OWED_US, Ordering::Release);
    let schedulers = shares.words().started.load(Ordering::Acquire);
    signal(first, libc::SIGKILL);
    let second = shares.next_after(first);
    wait_until("it pays", || {
        all_are(&b.board, false) && state(&b.board) == "debt"
    });
    assert!(b.board.cards[0].credit_us.load(Ordering::Acquire) < -OWED_US / 4);
    assert_eq!(
        shares.words().started.load(Ordering::Acquire),
        schedulers + 1
    );
    shares.runs(&a);
    // Again, while a tenant is detached: its debt is known to the third, and it comes back when it has paid.
    signal(second, libc::SIGKILL);
    shares.next_after(second);
    wait_until("it has paid", || {
        all_are(&b.board, true) && state(&b.board) == "running"
    });
    shares.runs(&b);
    shares.runs(&a);
    let log = shares.log();
    for killed in [first, second] {
        assert!(
            log.contains(&format!("scheduler {killed} was killed or has failed")),
            "{log}"
        );
    }
}

// `Levers::keep`: nothing stays stopped for a scheduler that says nothing; `Levers::wait_for_word`: no group without its word.
#[test]
fn while_the_scheduler_hangs_nothing_stays_stopped_and_no_context_is_made() {
    let shares = Shares::start();
    let (a, b) = (shares.spinner("a", "75"), shares.spinner("b", "25"));
    let scheduler = shares.scheduler();
    pause(&shares, &b.board, 1);
    wait_until("it is stopped", || all_are(&b.board, false));
    // Only who is stopped by the scheduler comes back, and not who is stopped by its user.
    signal(scheduler, libc::SIGSTOP);
    b.board.paused.store(0, Ordering::Release);
    wait_until("it comes back", || all_are(&b.board, true));
    shares.runs(&b);
    shares.runs(&a);
    let options = ["--memory", QUOTA, "--name", "c"];
    let program = [GPUSLICE, "__tenant", "spin", QUOTA, "seconds=0.1"];
    let refused = finish(command(&shares.node.run(&options, &program))).ended(1);
    assert!(
        refused.err.contains("the node's scheduler does not answer"),
        "{}",
        refused.err
    );
    signal(scheduler, libc::SIGCONT);
    finish(command(&shares.node.run(&options, &program))).ended(0);
    assert_eq!(shares.scheduler(), scheduler);
}

#[test]
fn who_is_paused_stays_so_without_a_scheduler() {
    let shares = Shares::start();
    let (a, b) = (shares.spinner("a", "75"), shares.spinner("b", "25"));
    let scheduler = shares.scheduler();
    pause(&shares, &b.board, 1);
    wait_until("it is stopped", || all_are(&b.board, false));
    signal(scheduler, libc::SIGSTOP);
    let words = shares.words();
    wait_until("the keeper is at work", || {
        words.silent_us().is_some_and(|us| us > 2_500_000)
    });
    assert!(all_are(&b.board, false));
    shares.runs(&a);
    signal(scheduler, libc::SIGKILL);
    shares.next_after(scheduler);
    assert!(all_are(&b.board, false));
    pause(&shares, &b.board, 0);
    wait_until("it goes on", || all_are(&b.board, true));
    shares.runs(&b);
}

// `start::start`: the lock is the scheduler's, who outlives the slice that started it.
#[test]
fn the_scheduler_outlives_the_slice_that_started_it_and_may_die_with_it() {
    let shares = Shares::start();
    let first = shares.spinner("a", "75");
    let scheduler = shares.scheduler();
    let (b, c) = (shares.spinner("b", "50"), shares.spinner("c", "50"));
    signal(first.run.id(), libc::SIGKILL);
    wait_until("the slice has ended", || {
        !shares.node.names().contains(&"a".to_owned())
    });
    assert_eq!(shares.scheduler(), scheduler);
    shares.runs(&b);
    // Now one of the others' supervisors starts the next one; it dies with its scheduler.
    signal(scheduler, libc::SIGKILL);
    let second = shares.next_after(scheduler);
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let behind = stat.rsplit_once(')').unwrap().1;
        behind
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u32>()
            .unwrap()
    };
    let starter = parent(second);
    assert!([b.run.id(), c.run.id()].contains(&starter), "{starter}");
    signal(starter, libc::SIGKILL);
    signal(second, libc::SIGKILL);
    shares.next_after(second);
    let left = if starter == b.run.id() { &c } else { &b };
    shares.runs(left);
}

// `SETTLES` of the scheduler: with nobody else there is nothing to divide, but somebody to let in.
#[test]
fn who_pays_comes_back_when_the_last_other_has_gone() {
    let shares = Shares::start();
    let (a, b) = (shares.spinner("a", "75"), shares.spinner("b", "25"));
    let first = shares.scheduler();
    signal(first, libc::SIGSTOP);
    b.board.cards[0]
        .credit_us
        .store(-1_500_000, Ordering::Release);
    signal(first, libc::SIGKILL);
    shares.next_after(first);
    wait_until("it pays", || {
        all_are(&b.board, false) && state(&b.board) == "debt"
    });
    drop(a);
    wait_until("it is let in", || all_are(&b.board, true));
    shares.runs(&b);
}

#[test]
fn ps_tells_what_each_was_granted_and_had() {
    let shares = Shares::start();
    let _both = (shares.spinner("a", "75"), shares.spinner("b", "25"));
    let list = |words: &[&str]| {
        gpuslice(&[&["ps", "--sim", &shares.node.socket], words].concat()).ended(0)
    };
    let near =
        |value: &serde_json::Value, to: f64| value.as_f64().is_some_and(|v| (v - to).abs() < 3.0);
    wait_until("it is measured", || {
        let listed = list(&["--json"]).json();
        [(0, 75.0), (1, 25.0)].iter().all(|&(at, percent)| {
            let (slice, time) = (&listed[at], &listed[at]["gpus"][0]["time"]);
            slice["weight"].as_f64() == Some(percent)
                && near(&time["granted_percent"], percent)
                && near(&time["measured_percent"], percent)
                && time["state"] == "running"
                && time["sensor"] == "timeline"
        })
    });
    let table = list(&[]).out;
    let row = table.lines().nth(2).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        (words[0], words[6], words[7]),
        ("b", "25", "25.0%"),
        "{table}"
    );
    assert_eq!(words[9..11], ["running", "timeline"], "{table}");
}

#[test]
fn doctor_says_whether_the_scheduler_answers() {
    let shares = Shares::start();
    let line = || {
        let report = gpuslice(&["doctor", "--sim", &shares.node.socket])
            .ended(0)
            .out;
        let mut lines = report.lines().filter(|l| l.contains("scheduler of time"));
        lines.next().unwrap().to_owned()
    };
    assert!(
        line().contains("none: no two slices share a card"),
        "{}",
        line()
    );
    let _both = (shares.spinner("a", "75"), shares.spinner("b", "25"));
    let scheduler = shares.scheduler();
    wait_until("it measures", || {
        line().contains(&format!("process {scheduler}, sensor timeline"))
    });
    signal(scheduler, libc::SIGSTOP);
    wait_until("it is missed", || {
        line().contains(&format!("process {scheduler} has not answered"))
    });
    signal(scheduler, libc::SIGCONT);
}
