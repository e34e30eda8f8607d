//! Tenants that just want their share.

use policy::share::{Config, Terms};

use crate::runlist::{ALWAYS, Work, World, tenant};

const SECOND: u64 = 1_000_000;

/// Everyone runs without a pause: the shares in percent and the aggregate.
fn shares(weights: &[u32]) -> (Vec<f64>, f64) {
    let mut world = World::new(weights);
    for place in 0..weights.len() {
        world.fork(place, ALWAYS);
    }
    world.run(SECOND);
    world.measure();
    world.run(60 * SECOND);
    let shares = (0..weights.len())
        .map(|place| world.percent(place))
        .collect();
    (shares, world.aggregate(60 * SECOND))
}

fn near(share: f64, wanted: f64, points: f64) {
    assert!(
        (share - wanted).abs() <= points,
        "{share} and not {wanted} +- {points}"
    );
}

#[test]
fn three_to_one() {
    let (shares, aggregate) = shares(&[75, 25]);
    near(shares[0], 75.0, 1.0);
    assert!(aggregate >= 97.0, "{aggregate}");
}

#[test]
fn sixteen_to_one_and_four_two_one() {
    let (sixteen, _) = shares(&[16, 1]);
    near(sixteen[0], 1600.0 / 17.0, 1.5);
    let (four, _) = shares(&[4, 2, 1]);
    for (share, weight) in four.iter().zip([4.0, 2.0, 1.0]) {
        near(*share, 100.0 * weight / 7.0, 1.5);
    }
}

#[test]
fn eight_equal_tenants_get_the_same() {
    let (shares, aggregate) = shares(&[10; 8]);
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let jain = sum * sum / (8.0 * squares);
    assert!(jain >= 0.999, "{jain}: {shares:?}");
    assert!(aggregate >= 93.0, "{aggregate}");
}

/// A share below the least slice is held by detaching.
#[test]
fn a_share_below_the_floor_is_held() {
    let (shares, aggregate) = shares(&[1_000, 1]);
    near(shares[1], 0.1, 0.05);
    assert!(aggregate >= 97.0, "{aggregate}");
}

#[test]
fn a_lone_tenant_gets_no_lever_calls() {
    for contexts in [1, 4, 64] {
        let mut world = World::new(&[25, 75]);
        for _ in 0..contexts {
            world.fork(0, ALWAYS);
        }
        // The other is there and idle.
        world.fork(1, crate::runlist::NEVER);
        world.run(SECOND);
        world.measure();
        world.run(20 * SECOND);
        assert_eq!(world.calls, 0, "{contexts} contexts");
        assert!(contexts > 1 || world.aggregate(20 * SECOND) > 99.9);
    }
}

#[test]
fn a_steady_division_needs_no_lever_calls_but_the_reassertion() {
    let mut world = World::new(&[75, 25]);
    world.fork(0, ALWAYS);
    world.fork(1, ALWAYS);
    world.run(2 * SECOND);
    world.measure();
    world.run(20 * SECOND);
    // Each time: two slices, one batch to attach.
    assert!((9..=10).contains(&world.reasserted), "{}", world.reasserted);
    assert_eq!(world.calls, 3 * world.reasserted);
}

/// Two tenants that leave the device alone half of the time fill each other's pauses.
#[test]
fn half_idle_tenants_lose_nothing() {
    for weights in [[50, 50], [75, 25]] {
        let bursts = [(5_000, 5_000), (2_000, 2_000), (12_000, 12_000), (500, 400)];
        for (burst, pause) in bursts {
            let mut aggregates = [false, true].map(|managed| {
                let mut world = World::new(&weights);
                world.managed = managed;
                for place in 0..2 {
                    world.fork(place, Work { burst, pause });
                }
                world.run(SECOND);
                world.measure();
                world.run(10 * SECOND);
                world.aggregate(10 * SECOND)
            });
            aggregates[0] -= 2.0;
            assert!(
                aggregates[1] >= aggregates[0],
                "{burst}/{pause}: {aggregates:?}"
            );
        }
    }
}

/// A tenant that pauses beside one that does not: the device is never left idle for it.
#[test]
fn what_a_pausing_tenant_leaves_is_used() {
    for (burst, pause) in [
        (5_000, 5_000),
        (5_000, 20_000),
        (130, 5_000),
        (30_000, 10_000),
    ] {
        let mut world = World::new(&[75, 25]);
        world.fork(0, Work { burst, pause });
        world.fork(1, ALWAYS);
        world.run(SECOND);
        world.measure();
        world.run(20 * SECOND);
        let aggregate = world.aggregate(20 * SECOND);
        // Each burst of the one costs two switches.
        assert!(
            aggregate >= if burst < 1_000 { 88.0 } else { 95.0 },
            "{burst}/{pause}: {aggregate}"
        );
    }
}

#[test]
fn a_cap_holds_alone_and_beside_others() {
    for cap in [50, 25, 10] {
        for beside in [false, true] {
            let mut world = World::new(&[75, 25]);
            let terms = Terms {
                weight: 75,
                cap: Some(cap * 100),
                latency: None,
            };
            world.planner.admit(tenant(0), terms);
            world.fork(0, ALWAYS);
            if beside {
                world.fork(1, ALWAYS);
            }
            world.run(SECOND);
            world.measure();
            world.run(10 * SECOND);
            let got = world.had[0].charged as f64 * 100.0 / (10 * SECOND) as f64;
            near(got, f64::from(cap), 1.0);
            if beside {
                let all = world.aggregate(10 * SECOND);
                assert!(all >= 96.0, "what a cap leaves is the other's: {all}");
            }
        }
    }
}

/// With a sensor that knows no contexts.
#[test]
fn a_sampling_sensor_is_enough_for_shares() {
    for contexts in [1, 4] {
        let mut world = World::with(&[75, 25], Config::default(), 50_000);
        world.sampled = true;
        world.fork(0, ALWAYS);
        for _ in 0..contexts {
            world.fork(1, ALWAYS);
        }
        world.run(2 * SECOND);
        world.measure();
        world.run(20 * SECOND);
        near(world.percent(0), 75.0, 2.0);
    }
}
