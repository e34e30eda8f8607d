use crate::runlist::{ALWAYS, NEVER, World};
#[test]
fn debug() {
    let mut world = World::with(&[25, 6], Default::default(), 10_000);
    let b = world.fork(1, ALWAYS);
    world.run(100_000);
    world.measure();
    world.claims_all = Some(0);
    let groups: Vec<_> = (0..53).map(|_| world.fork(0, NEVER)).collect();
    let show = |world: &mut World, us: u64| {
        for _ in 0..us / 5_000 {
            world.run(5_000);
            let s = world.planner.standings();
            let att = groups.iter().filter(|g| world.attached(**g)).count();
            eprintln!(
                "{} a {} {:?} cr {} att {} n {} slice {} ahead {} | b {} {:?} {} slice {}",
                world.now / 1000,
                world.had[0].charged,
                s[0].state,
                s[0].credit_us,
                att,
                s[0].contexts,
                world.slice_of(groups[0]),
                world.had[0].charged as i64 - world.had[0].entitled as i64,
                world.had[1].charged,
                s[1].state,
                s[1].credit_us,
                world.slice_of(b)
            );
        }
    };
    for _ in 0..4 {
        world.set(groups[0], ALWAYS);
        show(&mut world, 155_000);
        for g in &groups {
            world.set(*g, ALWAYS);
        }
        eprintln!("all");
        show(&mut world, 155_000);
        for g in &groups {
            world.set(*g, NEVER);
        }
        eprintln!("none");
    }
}
