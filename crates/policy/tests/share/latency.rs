//! Tenants that are to be served soon: for how long they wait at most, and what that costs the others.

use policy::share::{Config, Credits, GroupId, Kind, Measured, Planner, Terms};
use proptest::prelude::*;

use crate::cheats::{cheat, play};
use crate::runlist::{ALWAYS, NEVER, Work, World, tenant};
use crate::told::{MS, SECOND, credit, pair, run, runs, weight};

/// A short kernel each 5 ms.
const SOON: Work = Work {
    burst: 130,
    pause: 5 * MS,
};
const BOUND: u32 = 500;
const SWITCH: u64 = 270;
/// What the guard's scheduler uses.
const TICK: u64 = 25 * MS;

/// For how long the device can be others' before it is the tenant's, where so many contexts of others are attached: each
/// is switched to and has its slice, then the tenant is switched to.
const fn wait(attached: u64, slice: u64) -> u64 {
    attached * (slice + SWITCH) + SWITCH
}

/// A latency tenant, that comes at any moment of the others' slices, beside others.
fn beside(others: &[(u32, Work)], latency: Option<u32>) -> World {
    let weights: Vec<u32> = std::iter::once(100)
        .chain(others.iter().map(|(weight, _)| *weight))
        .collect();
    let mut world = World::with(&weights, Config::default(), TICK);
    world.hurry(0, latency);
    world.jitter = 2 * MS;
    world.fork(0, SOON);
    for (place, (_, work)) in others.iter().enumerate() {
        world.fork(1 + place, *work);
    }
    world.run(SECOND);
    world.measure();
    world
}

fn percent(us: u64, of: u64) -> f64 {
    us as f64 * 100.0 / of as f64
}

fn served(world: &World, place: usize) -> bool {
    world.planner.standings()[place].served_soon
}

#[test]
fn a_short_kernel_each_5_ms_beside_a_hog() {
    let mut world = beside(&[(100, ALWAYS)], Some(BOUND));
    world.jitter = 0;
    world.run(20 * SECOND);
    let p99 = world.took(0, 99);
    assert!(p99 <= SOON.burst + 600, "{p99}");
    let hog = percent(world.had[1].useful, 20 * SECOND);
    assert!(hog >= 85.0, "the hog keeps {hog}");
    // Without, the hog's slice is as long as its part of the cycle.
    let mut without = beside(&[(100, ALWAYS)], None);
    without.run(20 * SECOND);
    assert!(without.took(0, 50) > 10 * MS, "{}", without.took(0, 50));
}

/// With a bound of 330 us it is 0.6 ms at any moment of the hog's slice.
#[test]
fn the_bound_is_as_asked_for() {
    for (bound, p99) in [(330, 600), (500, 770), (2_000, 2_270)] {
        let mut world = beside(&[(100, ALWAYS)], Some(bound));
        world.run(20 * SECOND);
        let took = world.took(0, 99) - SOON.burst;
        assert!(took <= p99 && took + 150 > p99, "{bound}: {took}");
    }
}

#[test]
fn however_many_hogs_it_waits_for_one_slice() {
    for hogs in [1, 2, 4, 8] {
        let mut world = beside(&vec![(100, ALWAYS); hogs], Some(BOUND));
        world.run(20 * SECOND);
        let longest = world.took(0, 100) - SOON.burst;
        assert!(longest <= wait(1, BOUND.into()), "{hogs}: {longest}");
        let all: u64 = world.had[1..].iter().map(|had| had.useful).sum();
        assert!(percent(all, 20 * SECOND) >= 83.0, "{hogs}: {all}");
        for had in &world.had[1..] {
            let part = percent(had.charged, world.had[1..].iter().map(|h| h.charged).sum());
            assert!((part - 100.0 / hogs as f64).abs() < 0.5, "{hogs}: {part}");
        }
    }
}

#[test]
fn its_neighbours_divide_the_rest_by_weight() {
    for (weights, tolerance) in [([75, 25], 1.0), ([100, 1], 0.5)] {
        let mut world = beside(&weights.map(|weight| (weight, ALWAYS)), Some(BOUND));
        world.run(20 * SECOND);
        let part = percent(
            world.had[1].charged,
            world.had[1].charged + world.had[2].charged,
        );
        let wanted = percent(weights[0].into(), (weights[0] + weights[1]).into());
        assert!(
            (part - wanted).abs() < tolerance,
            "{part} and not {wanted} of {weights:?}"
        );
        assert!(world.took(0, 99) <= SOON.burst + wait(1, BOUND.into()));
    }
    let weights = [80, 40, 20, 20, 10];
    let mut world = beside(&weights.map(|weight| (weight, ALWAYS)), Some(BOUND));
    world.run(20 * SECOND);
    let all: u64 = world.had[1..].iter().map(|had| had.charged).sum();
    for (had, weight) in world.had[1..].iter().zip(weights) {
        let (part, wanted) = (percent(had.charged, all), percent(weight.into(), 170));
        assert!(
            (part - wanted).abs() < 1.0,
            "{part} and not {wanted} of {weights:?}"
        );
    }
}

/// Who is detached for its cap has no turn: the device would be left idle.
#[test]
fn a_capped_neighbour_has_no_turn() {
    let mut world = beside(&[(100, ALWAYS); 2], Some(BOUND));
    let capped = Terms {
        weight: 100,
        cap: Some(1_000),
        latency: None,
    };
    world.planner.admit(tenant(2), capped);
    world.run(SECOND);
    world.measure();
    world.run(20 * SECOND);
    assert!(percent(world.had[2].charged, 20 * SECOND) < 11.0);
    let hogs = percent(world.had[1].useful + world.had[2].useful, 20 * SECOND);
    assert!(hogs >= 85.0, "{hogs}");
}

#[test]
fn many_contexts_of_one_neighbour_are_one_at_a_time() {
    for contexts in [2, 4, 16] {
        let mut world = beside(&[(100, ALWAYS)], Some(BOUND));
        let all: Vec<GroupId> = (1..contexts).map(|_| world.fork(1, ALWAYS)).collect();
        world.run(2 * SECOND);
        world.measure();
        world.used.clear();
        world.run(20 * SECOND);
        let longest = world.took(0, 100) - SOON.burst;
        assert!(longest <= wait(1, BOUND.into()), "{contexts}: {longest}");
        let used: Vec<u64> = all.iter().map(|id| world.used[id]).collect();
        let mean = used.iter().sum::<u64>() / used.len() as u64;
        for one in &used {
            assert!(one.abs_diff(mean) < mean / 5, "{used:?}");
        }
    }
    // Also when it comes too seldom to count among those who want to run.
    let mut world = World::with(&[100, 100], Config::default(), TICK);
    world.hurry(0, Some(BOUND));
    world.jitter = 2 * MS;
    let pause = 400 * MS;
    world.fork(0, Work { burst: 130, pause });
    (0..4).for_each(|_| {
        world.fork(1, ALWAYS);
    });
    world.run(SECOND);
    world.measure();
    world.run(20 * SECOND);
    let longest = world.took(0, 100) - SOON.burst;
    assert!(longest <= wait(1, BOUND.into()), "{longest}");
    // A tenant's own turns go on with those of its neighbours: none of the contexts is always left out.
    let mut world = beside(&[(10, ALWAYS); 16], Some(BOUND));
    let all: Vec<GroupId> = (0..16).map(|nth| world.fork(1 + nth, ALWAYS)).collect();
    world.run(2 * SECOND);
    world.used.clear();
    world.run(20 * SECOND);
    let used = all.iter().map(|id| world.used.get(id).copied());
    let used: Vec<u64> = used.map(Option::unwrap_or_default).collect();
    assert!(used.iter().all(|us| *us > 20 * SECOND / 64), "{used:?}");
    // Of two such tenants, each context has its turn as well.
    let mut world = beside(&[(100, ALWAYS); 2], Some(BOUND));
    let all: Vec<GroupId> = (0..6).map(|nth| world.fork(1 + nth % 2, ALWAYS)).collect();
    world.run(2 * SECOND);
    world.used.clear();
    world.run(20 * SECOND);
    let used: Vec<u64> = all.iter().map(|id| world.used[id]).collect();
    assert!(used.iter().all(|us| *us > 20 * SECOND / 10), "{used:?}");
}

/// Two that leave the device alone half of the time fill each other's pauses: it waits for both of them then.
#[test]
fn neighbours_that_pause_run_two_at_a_time() {
    let half = Work {
        burst: 5 * MS,
        pause: 5 * MS,
    };
    let mut world = beside(&[(100, half); 2], Some(BOUND));
    world.run(20 * SECOND);
    let all = world.had[1].useful + world.had[2].useful;
    assert!(percent(all, 20 * SECOND) >= 75.0, "{all}");
    let longest = world.took(0, 100) - SOON.burst;
    assert!(longest <= wait(2, BOUND.into()), "{longest}");
    // Who does not pause any more has it for itself again.
    let all = [GroupId(1), GroupId(2)];
    all.iter().for_each(|id| world.set(*id, ALWAYS));
    world.run(SECOND);
    world.measure();
    world.run(20 * SECOND);
    let longest = world.took(0, 100) - SOON.burst;
    assert!(longest <= wait(1, BOUND.into()), "{longest}");
    // Of more, no more than two.
    let mut world = beside(&[(100, half); 4], Some(BOUND));
    world.run(20 * SECOND);
    let p99 = world.took(0, 99) - SOON.burst;
    assert!(p99 <= wait(2, BOUND.into()), "{p99}");
}

#[test]
fn two_latency_tenants_wait_for_each_other_and_one_neighbour() {
    for hogs in [0, 1, 2, 4] {
        let mut world = beside(
            &[vec![(100, SOON)], vec![(100, ALWAYS); hogs]].concat(),
            Some(BOUND),
        );
        world.hurry(1, Some(BOUND));
        world.run(SECOND);
        world.measure();
        world.run(20 * SECOND);
        for place in 0..2 {
            assert!(served(&world, place));
            let longest = world.took(place, 100) - SOON.burst;
            assert!(longest <= wait(2, BOUND.into()), "{hogs} hogs: {longest}");
        }
        if hogs > 0 {
            let all: u64 = world.had[2..].iter().map(|had| had.useful).sum();
            assert!(percent(all, 20 * SECOND) >= 75.0, "{hogs} hogs: {all}");
        }
    }
}

/// It asks for latency and computes all the time: it gets its share and no more, and its neighbours' slices are long again.
#[test]
fn who_computes_all_the_time_has_no_privilege() {
    for weights in [&[100, 100][..], &[25, 75], &[1, 100], &[25, 75, 75]] {
        let mut world = World::with(weights, Config::default(), TICK);
        world.hurry(0, Some(BOUND));
        for place in 0..weights.len() {
            world.fork(place, ALWAYS);
        }
        world.run(20 * SECOND);
        let all: u32 = weights.iter().sum();
        let share = percent(world.had[0].charged, 20 * SECOND);
        assert!(
            share <= percent(weights[0].into(), all.into()) + 0.5,
            "{weights:?}: {share}"
        );
        let slack = TICK + 7 * MS;
        assert!(
            world.had[0].gain <= (40 * MS + slack) as i64,
            "{weights:?}: {}",
            world.had[0].gain
        );
        // Slices are long most of the time: switches cost little.
        let aggregate = world.aggregate(20 * SECOND);
        assert!(aggregate >= 96.0, "{weights:?}: {aggregate}");
        assert!(world.calls / 20 < 20, "{weights:?}: {}", world.calls);
    }
}

/// Kernels of nothing, as often as it can: its neighbour is switched in each time, and keeps what it is entitled to.
#[test]
fn many_tiny_kernels_take_no_more_than_the_share() {
    let mut world = World::with(&[100, 100], Config::default(), TICK);
    world.hurry(0, Some(BOUND));
    let tiny = Work {
        burst: 10,
        pause: 500,
    };
    world.fork(0, tiny);
    world.fork(1, ALWAYS);
    world.run(20 * SECOND);
    let victim = percent(world.had[1].useful, 20 * SECOND);
    assert!(victim >= 47.0, "{victim}");
    // Where that is more than its share, it loses the privilege.
    let mut world = World::with(&[25, 75], Config::default(), TICK);
    world.hurry(0, Some(BOUND));
    world.fork(0, tiny);
    world.fork(1, ALWAYS);
    world.run(20 * SECOND);
    let victim = percent(world.had[1].useful, 20 * SECOND);
    assert!(victim >= 70.0, "{victim}");
}

#[test]
fn asleep_it_costs_nothing() {
    let mut world = World::with(&[100, 100, 100], Config::default(), TICK);
    world.hurry(0, Some(BOUND));
    let soon = world.fork(0, SOON);
    let hog = world.fork(1, ALWAYS);
    world.run(2 * SECOND);
    assert_eq!(world.slice_of(hog), BOUND.into());
    // Within the horizon it may wake at any time.
    world.set(soon, NEVER);
    world.run(900 * MS);
    assert_eq!(world.slice_of(hog), BOUND.into());
    world.run(200 * MS);
    assert!(world.slice_of(hog) > 10 * MS, "{}", world.slice_of(hog));
    world.measure();
    world.run(20 * SECOND);
    assert_eq!(world.calls, 0);
    assert!(world.aggregate(20 * SECOND) > 99.9);
    // With another neighbour: as if it were not there.
    world.fork(2, ALWAYS);
    world.run(SECOND);
    world.measure();
    world.run(20 * SECOND);
    assert_eq!(world.calls, 4 * world.reasserted);
    assert!(world.aggregate(20 * SECOND) > 98.0);
    // When it wakes, the first kernel waits for a slice as it was; a tick later they are short.
    world.set(soon, SOON);
    world.run(100 * MS);
    world.measure();
    world.run(SECOND);
    assert!(world.took(0, 100) <= SOON.burst + wait(1, BOUND.into()));
}

#[test]
fn waking_and_sleeping_moves_no_lever() {
    for pause in [5 * MS, 100 * MS, 500 * MS, 900 * MS] {
        let mut world = World::with(&[100, 100], Config::default(), TICK);
        world.hurry(0, Some(BOUND));
        world.fork(0, Work { burst: 130, pause });
        world.fork(1, ALWAYS);
        world.run(2 * SECOND);
        world.measure();
        world.run(20 * SECOND);
        // Each time that everything is told again: two slices, one batch to attach.
        assert_eq!(world.calls, 3 * world.reasserted, "{pause}");
        let longest = world.took(0, 100) - 130;
        assert!(longest <= wait(1, BOUND.into()), "{pause}: {longest}");
    }
    // It sleeps for longer than the horizon: two calls each time, and those who take turns take them by weight.
    let mut world = World::with(&[100, 100], Config::default(), TICK);
    world.hurry(0, Some(BOUND));
    let pause = 1_500 * MS;
    world.fork(0, Work { burst: 130, pause });
    world.fork(1, ALWAYS);
    world.run(60 * SECOND);
    assert!(world.calls <= 4 * 40, "{}", world.calls);
}

/// What has nothing to do is left as it is.
#[test]
fn idle_neighbours_take_no_turns() {
    let mut world = beside(&[(100, ALWAYS); 2], Some(BOUND));
    let mut idle = vec![GroupId(2)];
    idle.extend((0..3).map(|_| world.fork(2, ALWAYS)));
    world.run(SECOND);
    idle.iter().for_each(|id| world.set(*id, NEVER));
    world.run(SECOND);
    world.measure();
    world.run(10 * SECOND);
    // Each time that everything is told again: six slices, one batch to attach.
    assert_eq!(world.calls, 7 * world.reasserted);
}

/// Turns among neighbours are a hundred a second at most, two batches each.
#[test]
fn turns_move_the_lever_a_bounded_number_of_times() {
    for hogs in [2, 4, 8, 16] {
        let mut world = beside(&vec![(100, ALWAYS); hogs], Some(BOUND));
        world.run(10 * SECOND);
        let a_second = world.calls / 10;
        assert!(a_second <= 220, "{hogs}: {a_second}");
    }
}

#[test]
fn a_sensor_without_contexts_is_enough() {
    for hogs in [1, 4] {
        let mut world = World::with(&vec![100; 1 + hogs], Config::default(), TICK);
        world.sampled = true;
        world.hurry(0, Some(BOUND));
        world.jitter = 2 * MS;
        world.fork(0, SOON);
        for place in 1..=hogs {
            world.fork(place, ALWAYS);
        }
        world.run(SECOND);
        world.measure();
        world.run(10 * SECOND);
        let longest = world.took(0, 100) - SOON.burst;
        assert!(longest <= wait(1, BOUND.into()), "{hogs}: {longest}");
    }
}

#[test]
fn when_it_is_gone_everyone_is_attached() {
    let mut world = World::with(&[100, 100, 100], Config::default(), TICK);
    world.hurry(0, Some(BOUND));
    let soon = world.fork(0, SOON);
    let hogs: Vec<GroupId> = (1..3).map(|place| world.fork(place, ALWAYS)).collect();
    let attached = |world: &World| hogs.iter().filter(|id| world.attached(**id)).count();
    world.run(SECOND);
    assert_eq!(attached(&world), 1);
    world.exit(soon);
    world.run(100 * MS);
    assert_eq!(attached(&world), 2);
    assert!(hogs.iter().all(|id| world.slice_of(*id) > 10 * MS));
}

/// A planner of a latency tenant that ran and a hog that waits.
fn hurried(latency: u32) -> Planner {
    let mut planner = pair([100, 100]);
    let terms = Terms {
        weight: 100,
        cap: None,
        latency: Some(latency),
    };
    planner.admit(tenant(0), terms);
    planner.tick(0, &Measured::default());
    let both = runs(vec![run(0, 0, 0, 130), run(1, 0, 210, 25 * MS)]);
    planner.tick(25 * MS, &both);
    planner
}

#[test]
fn a_neighbours_group_is_born_bounded() {
    let mut planner = hurried(BOUND);
    let mut born = |place, id, kind| {
        let birth = planner.birth(tenant(place), GroupId(id), kind, 26 * MS);
        birth.expect("known")
    };
    assert_eq!(born(1, 10, Kind::Compute).slice_us, BOUND.into());
    assert_eq!(born(1, 11, Kind::Copy).slice_us, BOUND.into());
    assert!(
        born(0, 12, Kind::Compute).slice_us > 1_000,
        "its own is not"
    );
}

/// While it leaves the device to others a latency tenant pays back what it owes, to those who are owed.
#[test]
fn what_it_owes_is_paid_back_while_others_run() {
    let after = |latency: Option<u32>, owed: [i64; 2]| {
        let mut planner = hurried(BOUND);
        let terms = Terms {
            latency,
            ..weight(100)
        };
        planner.admit(tenant(0), terms);
        let credits = [0, 1].map(|place| Credits {
            tenant: tenant(place),
            credit_us: owed[place],
            cap_credit_us: 0,
        });
        planner.restore(&credits);
        let hog = run(1, 0, 25 * MS + 80, 30 * MS);
        planner.tick(30 * MS, &runs(vec![hog]));
        [credit(&planner, 0), credit(&planner, 1)]
    };
    // 4.92 ms and the switch, half of it.
    assert_eq!(after(Some(BOUND), [-5_000, 8_000]), [-2_500, 5_500]);
    assert_eq!(
        after(Some(BOUND), [-1_000, 8_000]),
        [0, 7_000],
        "no more than it owes"
    );
    assert_eq!(after(Some(BOUND), [5_000, 8_000]), [5_000, 8_000]);
    assert_eq!(
        after(None, [-5_000, 8_000]),
        [-5_000, 8_000],
        "others do not"
    );
}

/// Attaching that takes long is not taken for a pause of who is attached.
#[test]
fn a_slow_lever_makes_nobody_pause() {
    for (slow, tick) in [(2 * MS, TICK), (8 * MS, TICK), (6 * MS, 2 * MS)] {
        let mut world = beside(&[(100, ALWAYS); 3], Some(BOUND));
        (world.slow, world.tick) = (slow, tick);
        world.run(SECOND);
        world.measure();
        world.run(20 * SECOND);
        let longest = world.took(0, 100) - SOON.burst;
        assert!(longest <= wait(1, BOUND.into()), "{slow}: {longest}");
        let all: u64 = world.had[1..].iter().map(|had| had.charged).sum();
        for had in &world.had[1..] {
            let part = percent(had.charged, all);
            assert!((part - 33.3).abs() < 1.0, "{slow}: {part}");
        }
    }
}

/// Beside two hogs that take turns, one's new group does not run in the other's turn.
#[test]
fn birth_is_detached_where_another_has_the_turn() {
    let mut world = beside(&[(100, ALWAYS); 2], Some(BOUND));
    let mut born = Vec::new();
    for place in [1, 2] {
        let group = world.fork(place, NEVER);
        born.push(world.attached(group));
        // Copies are no compute: they go on.
        let copies = GroupId(1_000 + place as u64);
        let birth = world
            .planner
            .birth(tenant(place), copies, Kind::Copy, world.now);
        assert!(birth.expect("known").attached);
    }
    born.sort_unstable();
    assert_eq!(born, [false, true]);
}

#[test]
fn before_its_first_kernel_it_counts_as_awake() {
    let mut planner = pair([100, 100]);
    let terms = Terms {
        weight: 100,
        cap: None,
        latency: Some(BOUND),
    };
    planner.admit(tenant(0), terms);
    let plan = planner.tick(0, &Measured::default());
    assert_eq!(plan.slices, [(GroupId(1), BOUND.into())]);
}

#[test]
fn a_bound_out_of_bounds_is_taken_as_the_nearest() {
    for (asked, had) in [(0, 200), (u32::MAX, 10_000)] {
        let mut planner = hurried(asked);
        let birth = planner.birth(tenant(1), GroupId(10), Kind::Compute, 26 * MS);
        assert!(birth.expect("known").slice_us <= had);
        assert_eq!(planner.standings()[0].terms.latency, Some(had as u32));
    }
}

#[test]
fn who_overdraws_by_more_than_its_swing_is_as_any_other_until_it_has_recovered() {
    let mut planner = hurried(BOUND);
    let mut at = 25 * MS;
    let mut go_on = |planner: &mut Planner| {
        let short = run(0, 0, at + 20, at + 150);
        let hog = run(1, 0, at + 230, at + 5 * MS);
        at += 5 * MS;
        (at, planner.tick(at, &runs(vec![short, hog])))
    };
    let served = |planner: &Planner| planner.standings()[0].served_soon;
    // The swing of a half is 10 ms, and the least slice is borne beside it. While others run, half of that time is paid back.
    let owes = |planner: &mut Planner, us: i64| {
        let more = credit(planner, 0) + us + 2_500;
        planner.charge(tenant(0), more.try_into().unwrap_or(0));
    };
    owes(&mut planner, 9 * MS as i64);
    go_on(&mut planner);
    assert!(served(&planner), "{}", credit(&planner, 0));
    owes(&mut planner, 13 * MS as i64);
    let (_, plan) = go_on(&mut planner);
    assert!(!served(&planner), "{}", credit(&planner, 0));
    let long = |(id, us): &(GroupId, u64)| *id == GroupId(1) && *us > 5 * MS;
    assert!(plan.slices.iter().any(long), "{plan:?}");
    // As long as it owes something, it has no privilege.
    for _ in 0..300 {
        owes(&mut planner, 5 * MS as i64);
        go_on(&mut planner);
        assert!(!served(&planner), "{}", credit(&planner, 0));
    }
    owes(&mut planner, 9 * MS as i64);
    let (mut recovered, mut back) = (None, None);
    while back.is_none() {
        let (now, _) = go_on(&mut planner);
        if credit(&planner, 0) >= 0 {
            recovered = recovered.or(Some(now));
        }
        back = served(&planner).then_some(now);
        assert!(now < 5 * SECOND);
    }
    assert_eq!(recovered, back);
    // Not at once, so that slices don't go up and down.
    owes(&mut planner, 13 * MS as i64);
    let (lost, _) = go_on(&mut planner);
    assert!(!served(&planner));
    let mut at = lost;
    while at < lost + SECOND {
        assert!(!served(&planner), "after {} us", at - lost);
        at = go_on(&mut planner).0;
    }
    go_on(&mut planner);
    assert!(served(&planner), "{}", credit(&planner, 0));
}

#[test]
fn a_paused_tenant_is_not_served() {
    let mut planner = hurried(BOUND);
    planner.pause(tenant(0));
    let plan = planner.tick(50 * MS, &runs(vec![run(1, 0, 25 * MS, 50 * MS)]));
    assert!(!planner.standings()[0].served_soon);
    assert!(plan.slices.iter().all(|(_, us)| *us > 1_000), "{plan:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever a latency tenant does, it gains no more than any other could.
    #[test]
    fn no_strategy_turns_latency_into_throughput(
        cheat in cheat(),
        weights in prop::collection::vec(1..=100u32, 2..=4),
        bound in 200..=2_000u32,
        tick in prop_oneof![Just(10_000u64), Just(20_000), Just(25_000)],
    ) {
        let mut world = World::with(&weights, Config::default(), tick);
        world.hurry(0, Some(bound));
        for place in 1..weights.len() {
            world.fork(place, ALWAYS);
        }
        world.run(100_000);
        world.measure();
        world.claims_all = Some(0);
        play(&mut world, 0, &cheat, 4 * SECOND);
        let most = (40 * MS + tick + 7 * MS) as i64;
        prop_assert!(world.had[0].gain <= most, "gained {} us, {most} allowed", world.had[0].gain);
    }

    /// Whatever its neighbours' weights: one that stays within its share never waits for more than two slices, since two
    /// neighbours can be attached while the turns change.
    #[test]
    fn the_bound_holds_beside_any_hogs(
        weights in prop::collection::vec(1..=100u32, 1..=8),
        bound in 300..=2_000u32,
    ) {
        let hogs: Vec<(u32, Work)> = weights.into_iter().map(|weight| (weight, ALWAYS)).collect();
        let mut world = beside(&hogs, Some(bound));
        world.run(4 * SECOND);
        let longest = world.took(0, 100) - SOON.burst;
        prop_assert!(longest <= wait(2, bound.into()), "{longest}");
    }
}
