//! Tenants that are to be served soon.

use crate::runlist::{ALWAYS, Work, World};
use crate::told::{MS, SECOND};

const SOON: Work = Work {
    burst: 130,
    pause: 5_000,
};

#[test]
fn explore() {
    for n in [1usize, 2, 4, 8] {
        for latency in [None, Some(500)] {
            for jitter in [0, 2_000] {
                let mut world = World::with(&vec![100; n + 1], Default::default(), 25_000);
                world.hurry(0, latency);
                world.jitter = jitter;
                world.fork(0, SOON);
                for place in 1..=n {
                    world.fork(place, ALWAYS);
                }
                world.run(SECOND);
                world.measure();
                world.run(20 * SECOND);
                let parts: Vec<f64> = world
                    .had
                    .iter()
                    .map(|h| (h.useful as f64 / 2e5 * 100.).round() / 100.)
                    .collect();
                eprintln!(
                    "{n} {latency:?} {jitter}: p50 {} p99 {} max {} calls/s {} parts {parts:?} sum {} credits {:?}",
                    world.took(0, 50),
                    world.took(0, 99),
                    world.took(0, 100),
                    world.calls / 20,
                    world.aggregate(20 * SECOND),
                    world
                        .planner
                        .standings()
                        .iter()
                        .map(|s| (s.credit_us, s.served_soon))
                        .collect::<Vec<_>>()
                );
            }
        }
    }
    let _ = MS;
}
