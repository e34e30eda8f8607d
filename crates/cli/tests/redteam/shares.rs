//! Attacks on the division of a card's time. Shares are measured on the card's own clock, from outside.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::wait_until;
use crate::stage::{Stage, assert_held};
use crate::time::{Shares, Spinner, all_are, groups, pause};

/// The most that weight 25 may have beside 75, in percent, with what a machine that is busy adds.
const QUARTER: f64 = 28.0;

/// Stops a slice as its user does, and asserts that it computes nothing from the moment on in which it is stopped.
#[track_caller]
fn stops(shares: &Shares, slice: &Spinner) {
    pause(shares, &slice.board, 1);
    wait_until("it is stopped", || all_are(&slice.board, false));
    let before = shares.ran(slice);
    std::thread::sleep(Duration::from_millis(150));
    let more = shares.ran(slice) - before;
    // The word that it is stopped comes after the deed, so nothing ran meanwhile.
    assert_eq!(more, 0, "ns after it was stopped");
}

fn starts(shares: &Shares, slice: &Spinner) {
    pause(shares, &slice.board, 0);
    shares.runs(slice);
}

/// What a program gets with weight 25 beside an honest one with 75: it may not be more than a quarter.
#[track_caller]
fn is_held_to_a_quarter(words: &[&str]) {
    let shares = Shares::start();
    let honest = shares.spinner("honest", "75");
    let cheat = shares.program("cheat", "25", words);
    let (part, _) = shares.part(&cheat, &honest);
    assert!(part < QUARTER, "{words:?} {part} %");
}

// `Levers::computes`; class 0x20801210 is absorbed in the table of crate rm.
#[test]
fn threat_31_a_context_is_stopped_inside_a_kernel_whatever_it_asked_for() {
    for words in [&["wfi", "ms=20000"][..], &["slice_thief", "ms=20000"]] {
        let shares = Shares::start();
        let _honest = shares.spinner("honest", "75");
        let cheat = shares.program("cheat", "25", words);
        stops(&shares, &cheat);
        starts(&shares, &cheat);
    }
}

#[test]
fn threat_31_long_kernels_that_never_ask_to_be_stopped_get_no_more() {
    is_held_to_a_quarter(&["wfi", "ms=200"]);
}

// `Worker::need_of`: the parent of a channel is a group that guard knows.
#[test]
fn threat_32_a_channel_without_a_group_is_refused() {
    assert_held(&Stage::new().play(&["device_channel"]));
}

// `Levers::born`.
#[test]
fn threat_33_contexts_that_live_for_one_kernel_get_no_more() {
    is_held_to_a_quarter(&["newborn", "ms=2", "at_once=12"]);
}

// `Levers::turn` takes all channels of a tenant; `Levers::born` gives copy groups their slice.
#[test]
fn threat_34_groups_that_copy_have_a_slice_and_are_stopped_too() {
    let shares = Shares::start();
    let _honest = shares.spinner("honest", "75");
    let other = shares.spinner("other", "25");
    let copies = || {
        let all = groups(&other.board).into_iter();
        all.filter(|(_, slot)| slot.copies.load(Ordering::Acquire) != 0)
            .collect::<Vec<_>>()
    };
    assert!(!copies().is_empty());
    for (serial, slot) in copies() {
        wait_until("it has what it is to have", || {
            slot.has(serial).is_some() && slot.has(serial) == slot.wanted(serial)
        });
    }
    stops(&shares, &other);
    assert!(
        copies()
            .iter()
            .all(|(serial, slot)| slot.has(*serial).is_some_and(|h| !h.attached))
    );
}

// `Levers::channel_born`, and the order that levers and a client's calls keep.
#[test]
fn threat_35_what_is_born_while_its_tenant_is_stopped_does_not_run() {
    let shares = Shares::start();
    let _honest = shares.spinner("honest", "75");
    let cheat = shares.program("cheat", "25", &["newborn", "ms=1", "at_once=8"]);
    for _ in 0..5 {
        stops(&shares, &cheat);
        starts(&shares, &cheat);
    }
}

// `Planner::count_contexts`: who ran in the last three cycles is active; and debt is the tenant's.
#[test]
fn threat_36_groups_that_come_and_go_by_turns_get_no_more() {
    // Half of, once and twice the time between two looks of the scheduler.
    for (on, off) in [
        ("on=12", "off=12"),
        ("on=25", "off=25"),
        ("on=50", "off=50"),
    ] {
        is_held_to_a_quarter(&["spin", "ms=1", "processes=5", on, off]);
    }
}

// `account::one`: a switch is charged to who comes.
#[test]
fn threat_38_many_contexts_of_short_kernels_cost_the_neighbour_no_time() {
    let shares = Shares::start();
    let honest = shares.spinner("honest", "75");
    let cheat = shares.program(
        "cheat",
        "25",
        &["spin", "ms=0.5", "contexts=3", "processes=2"],
    );
    let (part, of_the_card) = shares.part(&honest, &cheat);
    assert!(part > 100.0 - QUARTER, "{part} %");
    assert!(of_the_card > 68.0, "{of_the_card} % of the card's time");
}

// Absorbed and refused in the table of crate rm.
#[test]
fn threat_38_nothing_that_a_tenant_sends_changes_its_slice() {
    is_held_to_a_quarter(&["slice_thief", "ms=2"]);
}
