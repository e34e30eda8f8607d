//! The same walls on drivers of every branch. Only branch 580 has run on a card: these are simulated drivers, with the
//! blocks that the public headers of each branch declare.

use crate::stage::{Stage, assert_held};

/// A release of each branch, the oldest branch first. A branch without one fails the first test here.
const RELEASES: [&str; 7] = [
    "535.183.01",
    "550.90.07",
    "565.57.01",
    "570.133.20",
    "580.105.08",
    "590.48.01",
    "595.45.04",
];

fn on(release: &str) -> Stage {
    Stage::on(&format!("1xH200@{release}"))
}

fn on_every_branch(programs: &[&str]) {
    for release in RELEASES {
        let stage = on(release);
        for program in programs {
            println!("{program} on {release}");
            assert_held(&stage.play(&[program]));
        }
    }
}

#[test]
fn every_branch_has_a_release_here() {
    let branches = rm::branches().map(rm::Abi::branch);
    let here = RELEASES.map(|release| rm::for_driver(release).expect(release));
    assert!(branches.eq(here.iter().map(|found| found.abi.branch())));
    assert!(here.iter().all(|found| found.listed));
}

#[test]
fn the_quota_is_exact_and_shown_on_every_branch() {
    on_every_branch(&["quota_exact", "visible_limit", "visible_regions"]);
}

#[test]
fn mappings_hold_memory_and_ancestors_release_it_on_every_branch() {
    on_every_branch(&[
        "mapping_outlives_free",
        "release_by_ancestor",
        "managed_charged",
    ]);
}

// `Worker::freed_with`: where UVM_FREE has no length, the driver is asked which mappings have lost their range.
#[test]
fn a_freed_range_ends_where_it_ended_on_every_branch() {
    on_every_branch(&["attack_freed_range", "attack_pool_covers_nothing"]);
}

// `Worker::names_only_own` with the offsets of the branch: they are not the same everywhere.
#[test]
fn no_block_of_any_branch_names_another_tenant() {
    for release in RELEASES {
        println!("on {release}");
        let stage = on(release);
        assert_held(&stage.play_beside(&["threat_14"]));
        assert_held(&stage.play_beside(&["threat_15"]));
    }
}
