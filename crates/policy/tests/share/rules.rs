use crate::cheats::{Cheat, play};
use crate::runlist::{ALWAYS, World};
#[test]
fn debug() {
    let mut world = World::with(&[25, 75], Default::default(), 20_000);
    world.trace = true;
    world.fork(1, ALWAYS);
    world.run(100_000);
    world.measure();
    world.claims_all = Some(0);
    play(
        &mut world,
        0,
        &Cheat::Rotate {
            processes: 64,
            at_once: 1,
            each: 20_000,
        },
        3_000_000,
    );
}
