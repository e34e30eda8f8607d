use crate::cheats::{Cheat, cheat, play};
use crate::runlist::{ALWAYS, World};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn one(cheat: &Cheat, weights: &[u32], contexts: usize, tick: u64, trace: bool) -> i64 {
    let mut world = World::with(weights, Default::default(), tick);
    world.trace = trace;
    for place in 1..weights.len() {
        (0..contexts).for_each(|_| {
            world.fork(place, ALWAYS);
        });
    }
    world.run(100_000);
    world.measure();
    world.claims_all = Some(0);
    play(&mut world, 0, cheat, 4_000_000);
    world.had[0].gain - tick as i64
}
#[test]
fn sample() {
    let mut runner = TestRunner::deterministic();
    let all = (
        cheat(),
        prop::collection::vec(1..=100u32, 2..=4),
        1..=3usize,
        prop_oneof![Just(10_000u64), Just(20_000), Just(30_000)],
    );
    let mut got = Vec::new();
    for _ in 0..std::env::var("N")
        .unwrap_or("500".into())
        .parse::<u32>()
        .unwrap()
    {
        let (cheat, weights, contexts, tick) = all.new_tree(&mut runner).unwrap().current();
        let gain = one(&cheat, &weights, contexts, tick, false);
        got.push((gain, format!("{cheat:?} {weights:?} {contexts} {tick}")));
    }
    got.sort();
    for (gain, what) in got.iter().rev().take(25) {
        eprintln!("# {gain} {}", what.chars().take(200).collect::<String>());
    }
}
#[test]
fn debug() {
    one(
        &Cheat::Swell {
            processes: 60,
            alone: 339633,
            all: 102665,
        },
        &[90, 48, 8, 22],
        2,
        10_000,
        true,
    );
}
