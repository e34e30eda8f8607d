//! The rules of slices, births and debts one by one: each fails where its rule is missing.

use policy::share::{Config, GroupId, Kind, Measured, Planner, Run, State, TenantId, Terms};
use proptest::prelude::*;

use crate::runlist::{ALWAYS, NEVER, World, tenant};
use crate::told::{MS, SECOND, credit, crowd_out, pair, run, runs, state, weight};

#[test]
fn idle_groups_do_not_dilute_the_active_one() {
    let mut world = World::new(&[75, 25]);
    world.fork(0, ALWAYS);
    for _ in 0..60 {
        world.fork(1, NEVER);
    }
    let active = world.fork(1, ALWAYS);
    world.run(SECOND);
    assert!(world.slice_of(active) > 9_000, "{}", world.slice_of(active));
    world.measure();
    world.run(20 * SECOND);
    assert!(
        (24.0..26.0).contains(&world.percent(1)),
        "{}",
        world.percent(1)
    );
}

#[test]
fn a_slice_is_the_turn_by_the_active_groups() {
    let mut world = World::new(&[50, 50]);
    world.fork(0, ALWAYS);
    let four: Vec<GroupId> = (0..4).map(|_| world.fork(1, ALWAYS)).collect();
    world.run(2 * SECOND);
    for group in four {
        // 20 ms by four, less the switch.
        let slice = world.slice_of(group);
        assert!((4_400..=5_000).contains(&slice), "{slice}");
    }
    // Where all but one stop, that one has it all again within three cycles and a few ticks.
    let one = world.fork(1, ALWAYS);
    world.planner.standings();
    for id in 1..5 {
        world.set(GroupId(id), NEVER);
    }
    world.run(200 * MS);
    assert!(world.slice_of(one) > 18_000, "{}", world.slice_of(one));
}

#[test]
fn groups_that_do_not_fit_take_turns_and_none_starves() {
    let mut world = World::new(&[75, 25]);
    world.fork(0, ALWAYS);
    let groups: Vec<GroupId> = (0..16).map(|_| world.fork(1, ALWAYS)).collect();
    world.run(2 * SECOND);
    let attached = groups.iter().filter(|id| world.attached(**id)).count();
    assert!((5..=9).contains(&attached), "{attached} of 16 are attached");
    world.used.clear();
    world.run(20 * SECOND);
    let used: Vec<u64> = groups
        .iter()
        .map(|id| world.used.get(id).copied().unwrap_or(0))
        .collect();
    let mean = used.iter().sum::<u64>() / 16;
    for one in &used {
        assert!(one.abs_diff(mean) < mean / 5, "{used:?}");
    }
    for id in &groups {
        assert!(world.now - world.ran[id] < SECOND / 2, "{id:?} starves");
    }
}

/// A tenant of eight contexts pays for its switches with its own time.
#[test]
fn threat_38_switches_are_the_incoming_tenants() {
    let mut world = World::new(&[50, 50]);
    world.fork(0, ALWAYS);
    for _ in 0..16 {
        world.fork(1, ALWAYS);
    }
    world.run(2 * SECOND);
    world.measure();
    world.run(20 * SECOND);
    let us = 20 * SECOND as i64;
    // Half of the device with one switch each 20 ms, and half of it with sixteen.
    let (one, many) = (world.had[0].useful as i64, world.had[1].useful as i64);
    assert!(one > us * 49 / 100, "{one}");
    assert!(many < us * 43 / 100, "{many}");
}

#[test]
fn slices_are_never_below_the_floor() {
    for weights in [[10_000, 1], [1, 1]] {
        let mut world = World::new(&weights);
        world.fork(0, ALWAYS);
        let mut all: Vec<GroupId> = (0..40).map(|_| world.fork(1, ALWAYS)).collect();
        for _ in 0..20 {
            world.run(100 * MS);
            all.iter().for_each(|id| assert!(world.slice_of(*id) >= MS));
            all.push(world.fork(1, ALWAYS));
        }
    }
}

#[test]
fn birth_window_a_group_is_born_with_its_slice() {
    let mut planner = pair([75, 25]);
    // Both are about to run: 10 ms for the second tenant's group, and half of it for its next.
    let next = planner
        .birth(tenant(1), GroupId(10), Kind::Compute, 0)
        .expect("known");
    assert_eq!((next.slice_us, next.attached), (5_000 - 270, true));
    let third = planner
        .birth(tenant(1), GroupId(11), Kind::Compute, 0)
        .expect("known");
    assert_eq!(third.slice_us, 10_000 / 3 - 270);
    let copies = planner
        .birth(tenant(1), GroupId(12), Kind::Copy, 0)
        .expect("known");
    assert_eq!(copies.slice_us, 10_000 / 3 - 270, "copies too");
    // Never below the floor.
    for id in 20..84 {
        let birth = planner
            .birth(tenant(1), GroupId(id), Kind::Compute, 0)
            .expect("known");
        assert!(birth.slice_us >= MS);
    }
    assert_eq!(
        planner.birth(TenantId(99), GroupId(99), Kind::Compute, 0),
        None
    );
}

/// What was born among many is not made longer by the first plan that comes.
#[test]
fn birth_window_a_young_group_keeps_its_slice() {
    let mut world = World::new(&[75, 25]);
    world.fork(0, ALWAYS);
    let all: Vec<GroupId> = (0..6).map(|_| world.fork(1, NEVER)).collect();
    world.set(all[0], ALWAYS);
    let born = world.slice_of(all[5]);
    world.run(100 * MS);
    assert!(
        world.slice_of(all[5]) <= born,
        "{born} {}",
        world.slice_of(all[5])
    );
    world.run(200 * MS);
    assert!(world.slice_of(all[5]) > 9_000, "{}", world.slice_of(all[5]));
}

/// Sixteen processes at once take no more in their first round than one would.
#[test]
fn birth_window_many_at_once_share_a_turn() {
    for processes in [4, 8, 16] {
        let mut world = World::with(&[75, 25], Config::default(), 30 * MS);
        world.fork(0, ALWAYS);
        world.run(5 * MS);
        world.measure();
        world.claims_all = Some(1);
        for _ in 0..processes {
            world.fork(1, ALWAYS);
        }
        world.run(60 * MS);
        let used = world.had[1].charged;
        // The first is born as if it were alone; each next one with its part. A round is a harmonic sum of turns.
        assert!(used < 36 * MS, "{processes} processes: {used}");
    }
}

#[test]
fn birth_is_detached_where_its_tenant_may_not_run() {
    let mut planner = pair([75, 25]);
    let capped = Terms {
        weight: 25,
        cap: Some(5_000),
        latency: None,
    };
    let attached = |planner: &mut Planner, id: u64| {
        let birth = planner.birth(tenant(1), GroupId(id), Kind::Compute, 0);
        birth.expect("known").attached
    };
    assert!(attached(&mut planner, 10));
    planner.pause(tenant(1));
    assert!(!attached(&mut planner, 11), "paused");
    planner.resume(tenant(1));
    planner.admit(tenant(1), capped);
    assert!(!attached(&mut planner, 12), "capped");
    planner.admit(tenant(1), weight(25));
    assert!(attached(&mut planner, 13));
    let plan = crowd_out(&mut planner, 0, 60 * MS);
    assert_eq!(state(&planner, 1), State::Debt);
    assert!(plan.detach.contains(&GroupId(1)));
    assert!(!attached(&mut planner, 14), "in debt");
}

#[test]
fn an_overdraft_is_detached_until_it_is_paid() {
    let mut planner = pair([75, 25]);
    let plan = crowd_out(&mut planner, 0, 60 * MS);
    assert_eq!(plan.detach, [GroupId(1)]);
    let debt = credit(&planner, 1);
    assert!(
        (-46 * MS as i64..=-44 * MS as i64).contains(&debt),
        "{debt}: three quarters of 60 ms"
    );
    // While the other has the device to itself, a quarter of that time is paid back.
    let plan = planner.tick(140 * MS, &runs(vec![run(0, 0, 100 * MS + 80, 140 * MS)]));
    assert!(plan.attach.is_empty());
    assert!(
        (credit(&planner, 1) - debt - 10_000).abs() < 100,
        "{}",
        credit(&planner, 1)
    );
    assert!(plan.wake_us.is_some());
    // It counts among those who want to run all the while.
    assert_eq!(planner.standings()[0].share_ppm, 750_000);
    let plan = planner.tick(300 * MS, &runs(vec![run(0, 0, 140 * MS, 300 * MS)]));
    assert_eq!(plan.attach, [GroupId(1)]);
}

#[test]
fn one_that_nobody_is_waiting_for_is_never_detached() {
    let mut planner = pair([75, 25]);
    planner.tick(0, &Measured::default());
    planner.charge(tenant(1), 500 * MS);
    for nth in 0..20 {
        let (from, to) = (nth * 20 * MS, (nth + 1) * 20 * MS);
        let open = Run {
            ctx: 0,
            start_us: from,
            end_us: to,
            open: true,
            continued: nth > 0,
        };
        let plan = planner.tick(to, &runs(vec![(tenant(1), open)]));
        assert_eq!(plan.detach, []);
    }
}

#[test]
fn a_fault_is_charged_as_time() {
    let mut planner = pair([75, 25]);
    planner.tick(0, &Measured::default());
    let both = runs(vec![
        run(0, 0, 0, 30 * MS),
        run(1, 0, 30 * MS + 80, 40 * MS),
    ]);
    assert_eq!(planner.tick(40 * MS, &both).detach, []);
    planner.charge(tenant(1), 100 * MS);
    let both = runs(vec![
        run(0, 0, 40 * MS, 70 * MS),
        run(1, 0, 70 * MS + 80, 80 * MS),
    ]);
    assert_eq!(planner.tick(80 * MS, &both).detach, [GroupId(1)]);
}

#[test]
fn debt_survives_restart_of_processes_and_of_the_scheduler() {
    let mut planner = pair([75, 25]);
    crowd_out(&mut planner, 0, 60 * MS);
    let debt = credit(&planner, 1);
    planner.gone(GroupId(1));
    let birth = planner
        .birth(tenant(1), GroupId(2), Kind::Compute, 100 * MS)
        .expect("known");
    assert!(!birth.attached);
    assert_eq!(credit(&planner, 1), debt);
    // Another scheduler takes over.
    let mut next = pair([75, 25]);
    next.restore(&planner.credits());
    assert_eq!(credit(&next, 1), debt);
    let birth = next
        .birth(tenant(1), GroupId(3), Kind::Compute, 100 * MS)
        .expect("known");
    assert!(!birth.attached);
    // A debt that any dead band would bear is no reason to detach.
    let mut small = planner.credits();
    small[1].credit_us = -10_000;
    let mut after = pair([75, 25]);
    after.restore(&small);
    let birth = after.birth(tenant(1), GroupId(3), Kind::Compute, 100 * MS);
    assert!(birth.expect("known").attached);
    // What was saved is not believed beyond the bounds.
    let mut forged = planner.credits();
    forged[1].credit_us = i64::MAX;
    next.restore(&forged);
    assert!(credit(&next, 1) < 20_000, "{}", credit(&next, 1));
    // Only the end of the tenant itself ends its debt.
    planner.dismiss(tenant(1));
    planner.admit(tenant(1), weight(25));
    assert_eq!(credit(&planner, 1), 0);
}

/// An hour of idling is worth no more than a moment of it.
#[test]
fn idle_tenants_neither_save_up_nor_lose_their_claim() {
    let after = |idle_us: u64| {
        let mut world = World::new(&[75, 25]);
        world.fork(0, ALWAYS);
        let other = world.fork(1, ALWAYS);
        world.run(SECOND);
        world.set(other, NEVER);
        world.run(idle_us);
        let before = credit(&world.planner, 1);
        world.measure();
        world.set(other, ALWAYS);
        world.run(400 * MS);
        (before, world.had[1].charged)
    };
    let (short, used_short) = after(200 * MS);
    let (long, used_long) = after(60 * SECOND);
    assert_eq!(short, long);
    assert!(
        used_long.abs_diff(used_short) < 11 * MS,
        "{used_short} {used_long}"
    );
    assert!((90 * MS..=115 * MS).contains(&used_long), "{used_long}");
}

#[test]
fn pause_detaches_everything_and_resume_lets_it_in() {
    let mut planner = pair([75, 25]);
    planner.birth(tenant(1), GroupId(7), Kind::Copy, 0);
    planner.tick(0, &Measured::default());
    planner.pause(tenant(1));
    let plan = planner.tick(20 * MS, &Measured::default());
    assert_eq!(plan.detach, [GroupId(1), GroupId(7)], "copies too");
    assert_eq!(state(&planner, 1), State::Paused);
    let before = credit(&planner, 1);
    for nth in 1..100 {
        let at = nth * 20 * MS;
        planner.tick(at + 20 * MS, &runs(vec![run(0, 0, at, at + 20 * MS)]));
    }
    assert_eq!(credit(&planner, 1), before, "a pause earns nothing");
    planner.resume(tenant(1));
    let plan = planner.tick(3 * SECOND, &Measured::default());
    assert!(plan.attach.contains(&GroupId(1)) && plan.attach.contains(&GroupId(7)));
}

#[test]
fn everything_is_told_again_each_two_seconds_and_after_a_failure() {
    let mut planner = pair([75, 25]);
    let both = |at: u64| {
        runs(vec![
            run(0, 0, at, at + 30 * MS),
            run(1, 0, at + 30 * MS + 80, at + 40 * MS),
        ])
    };
    let mut told = Vec::new();
    for nth in 0..200 {
        let at = nth * 40 * MS;
        let plan = planner.tick(at + 40 * MS, &both(at));
        if plan.reasserted {
            assert_eq!((plan.slices.len(), plan.attach.len()), (2, 2));
            told.push(at);
        }
    }
    assert!(
        told.windows(2).all(|pair| pair[1] - pair[0] <= 2 * SECOND),
        "{told:?}"
    );
    assert!(told.len() >= 3);
    planner.failed(GroupId(1));
    let plan = planner.tick(8_040 * MS, &both(8_000 * MS));
    assert_eq!(plan.attach, [GroupId(1)]);
    assert_eq!(plan.slices.len(), 1);
    planner.reassert();
    assert_eq!(planner.tick(8_080 * MS, &both(8_040 * MS)).attach.len(), 2);
}

#[test]
fn the_fallback_attaches_everyone_at_the_lower_of_weight_and_cap() {
    let mut planner = pair([75, 25]);
    let cap = Terms {
        weight: 75,
        cap: Some(1_000),
        latency: None,
    };
    planner.admit(tenant(0), cap);
    planner.birth(tenant(1), GroupId(2), Kind::Compute, 0);
    crowd_out(&mut planner, 0, 60 * MS);
    let plan = planner.fallback();
    assert_eq!(plan.attach, [GroupId(0), GroupId(1), GroupId(2)]);
    let expected = [
        (GroupId(0), 4_000),
        (GroupId(1), 18_000),
        (GroupId(2), 18_000),
    ];
    for ((group, slice), (expected_group, turn)) in plan.slices.iter().zip(expected) {
        assert_eq!(*group, expected_group);
        assert!(slice.abs_diff(turn) <= 300, "{group:?}: {slice} of {turn}");
    }
    planner.pause(tenant(1));
    let plan = planner.fallback();
    assert_eq!(
        (plan.attach.len(), plan.detach.len()),
        (1, 2),
        "who is paused stays so"
    );
}

/// Any input at all.
fn nonsense() -> impl Strategy<Value = (u8, u64, u64, u64, bool)> {
    let number = || prop_oneof![0..5u64, 0..200_000u64, any::<u64>()];
    (any::<u8>(), number(), number(), number(), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Nothing that a caller or sensor says makes it stumble; the same calls give the same plans, credit is bounded and
    /// slices are not below the floor.
    #[test]
    fn whatever_it_is_told_it_plans_alike(steps in prop::collection::vec(nonsense(), 1..60)) {
        let mut planners = [Planner::new(Config::default()), Planner::new(Config::default())];
        for (what, a, b, c, flag) in steps {
            let who = TenantId(a % 5);
            let terms = Terms {
                weight: b as u32,
                cap: flag.then_some(c as u16),
                latency: (c % 2 == 0).then_some(a as u32),
            };
            let run = Run { ctx: a as u16, start_us: b, end_us: c, open: flag, continued: a % 2 == 0 };
            let measured = Measured {
                runs: vec![(who, run), (TenantId(b % 5), Run { open: false, ..run })],
                sampled: if a % 3 == 0 { vec![(who, b)] } else { Vec::new() },
                lost_us: if a % 4 == 0 { c } else { 0 },
            };
            let plans = planners.each_mut().map(|planner| {
                match what % 10 {
                    0 | 1 => planner.admit(who, terms),
                    2 | 3 => {
                        let kind = if flag { Kind::Copy } else { Kind::Compute };
                        planner.birth(who, GroupId(b % 20), kind, c);
                    }
                    4 => planner.gone(GroupId(b % 20)),
                    5 => planner.charge(who, c),
                    6 => if flag { planner.pause(who) } else { planner.resume(who) },
                    7 => if flag { planner.failed(GroupId(b % 20)) } else { planner.reassert() },
                    8 if flag => planner.dismiss(who),
                    _ => {}
                }
                let plan = planner.tick(c, &measured);
                (plan, planner.fallback(), planner.standings(), planner.credits())
            });
            prop_assert_eq!(&plans[0], &plans[1]);
            let (plan, fallback, standings, _) = &plans[0];
            prop_assert!(plan.slices.iter().all(|(_, slice)| *slice >= 200));
            prop_assert!(fallback.slices.iter().all(|(_, slice)| *slice >= 1_000));
            for standing in standings {
                prop_assert!((-2_000_000..=40_000).contains(&standing.credit_us));
            }
        }
    }

    /// A division (switches included) is as the weights are, whatever the ticks.
    #[test]
    fn weights_are_kept(weights in prop::collection::vec(1..=20u32, 2..=5), tick in 5_000..=30_000u64) {
        let mut world = World::with(&weights, Config::default(), tick);
        for place in 0..weights.len() {
            world.fork(place, ALWAYS);
        }
        world.run(SECOND);
        world.measure();
        world.run(5 * SECOND);
        let all: u32 = weights.iter().sum();
        for (place, weight) in weights.iter().enumerate() {
            let wanted = f64::from(*weight) * 100.0 / f64::from(all);
            let got = world.had[place].charged as f64 * 100.0 / (5 * SECOND) as f64;
            prop_assert!((got - wanted).abs() < 1.0, "{}: {} and not {}", place, got, wanted);
        }
    }
}
