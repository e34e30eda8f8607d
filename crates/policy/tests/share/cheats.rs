//! Tenants that want more than their share. Whatever they do, over no window do they get more than what they were
//! entitled to and one cycle, beside what the scheduler can't see before it looks: one tick and the levers' time.

use policy::share::{Config, GroupId};
use proptest::prelude::*;

use crate::runlist::{ALWAYS, NEVER, Work, World};

const SECOND: u64 = 1_000_000;
const CYCLE: u64 = 40_000;

/// What a cheat does with its processes, over and over.
#[derive(Clone, Debug)]
pub enum Cheat {
    /// So many processes, all at work.
    Fork { processes: usize },
    /// All at work, then all idle.
    Burst { processes: usize, on: u64, off: u64 },
    /// Each in turn, so many at a time.
    Rotate {
        processes: usize,
        at_once: usize,
        each: u64,
    },
    /// All end and new ones come.
    Restart { processes: usize, every: u64 },
    /// Many that never run, and a few that do.
    Hoard { idle: usize, active: usize },
    /// Stops by itself just before its slice ends.
    Stop {
        processes: usize,
        burst: u64,
        pause: u64,
    },
    /// One for a while, then all at once.
    Swell {
        processes: usize,
        alone: u64,
        all: u64,
    },
    /// Anything: which process does what, when.
    Script(Vec<(usize, u64, u64, u64)>),
}

pub fn cheat() -> impl Strategy<Value = Cheat> {
    let some = 1..=64usize;
    let ms = |from: u64, to: u64| (from * 1_000)..=(to * 1_000);
    prop_oneof![
        some.clone().prop_map(|processes| Cheat::Fork { processes }),
        (some.clone(), ms(1, 400), ms(1, 400)).prop_map(|(processes, on, off)| Cheat::Burst {
            processes,
            on,
            off
        }),
        (2..=64usize, 1..=4usize, ms(2, 60)).prop_map(|(processes, at_once, each)| Cheat::Rotate {
            processes,
            at_once,
            each
        }),
        (1..=16usize, ms(20, 1_000))
            .prop_map(|(processes, every)| Cheat::Restart { processes, every }),
        (1..=60usize, 1..=8usize).prop_map(|(idle, active)| Cheat::Hoard { idle, active }),
        (some.clone(), ms(1, 40), 1..=5_000u64).prop_map(|(processes, burst, pause)| Cheat::Stop {
            processes,
            burst,
            pause
        }),
        (some, ms(50, 500), ms(5, 200)).prop_map(|(processes, alone, all)| Cheat::Swell {
            processes,
            alone,
            all
        }),
        prop::collection::vec(
            (0..16usize, ms(1, 100), 0..=60_000u64, 0..=60_000u64),
            1..40
        )
        .prop_map(Cheat::Script),
    ]
}

/// Lets the cheat do its thing for a time.
pub fn play(world: &mut World, place: usize, cheat: &Cheat, for_us: u64) {
    let until = world.now + for_us;
    let fork = |world: &mut World, processes: usize, work: Work| -> Vec<GroupId> {
        (0..processes).map(|_| world.fork(place, work)).collect()
    };
    let set = |world: &mut World, groups: &[GroupId], work: Work| {
        groups.iter().for_each(|id| world.set(*id, work))
    };
    match cheat {
        Cheat::Fork { processes } => {
            fork(world, *processes, ALWAYS);
        }
        Cheat::Hoard { idle, active } => {
            fork(world, *idle, NEVER);
            fork(world, *active, ALWAYS);
        }
        Cheat::Stop {
            processes,
            burst,
            pause,
        } => {
            let work = Work {
                burst: *burst,
                pause: *pause,
            };
            fork(world, *processes, work);
        }
        Cheat::Burst { processes, on, off } => {
            let all = fork(world, *processes, NEVER);
            while world.now < until {
                set(world, &all, ALWAYS);
                world.run(*on);
                set(world, &all, NEVER);
                world.run(*off);
            }
        }
        Cheat::Rotate {
            processes,
            at_once,
            each,
        } => {
            let all = fork(world, *processes, NEVER);
            let mut first = 0;
            while world.now < until {
                let now: Vec<GroupId> = (0..*at_once)
                    .map(|nth| all[(first + nth) % all.len()])
                    .collect();
                set(world, &now, ALWAYS);
                world.run(*each);
                set(world, &now, NEVER);
                first += at_once;
            }
        }
        Cheat::Restart { processes, every } => {
            while world.now < until {
                let all = fork(world, *processes, ALWAYS);
                world.run(*every);
                all.iter().for_each(|id| world.exit(*id));
            }
        }
        Cheat::Swell {
            processes,
            alone,
            all,
        } => {
            let groups = fork(world, *processes, NEVER);
            while world.now < until {
                set(world, &groups[..1], ALWAYS);
                world.run(*alone);
                set(world, &groups, ALWAYS);
                world.run(*all);
                set(world, &groups, NEVER);
            }
        }
        Cheat::Script(steps) => {
            let all = fork(world, 16, NEVER);
            while world.now < until {
                for (which, after, burst, pause) in steps {
                    let work = match (*burst, *pause) {
                        (0, _) => NEVER,
                        (_, 0) => ALWAYS,
                        (burst, pause) => Work { burst, pause },
                    };
                    world.set(all[*which], work);
                    world.run(*after);
                }
            }
        }
    }
    if world.now < until {
        world.run(until - world.now);
    }
}

/// A cheat of weight 25 beside one that just wants its 75 %: the cheat's share of the device in percent.
fn share_of(cheat: &Cheat) -> (f64, World) {
    let mut world = World::new(&[75, 25]);
    world.fork(0, ALWAYS);
    world.run(100_000);
    world.measure();
    let from = world.now;
    play(&mut world, 1, cheat, 60 * SECOND);
    let share = world.had[1].charged as f64 * 100.0 / (world.now - from) as f64;
    (share, world)
}

#[test]
fn many_processes_get_no_more_than_one() {
    for processes in [1, 4, 8, 16, 64] {
        let (share, world) = share_of(&Cheat::Fork { processes });
        assert!(share <= 25.5, "{processes} processes: {share}");
        let victim = world.had[0].useful as f64 * 100.0 / (60 * SECOND) as f64;
        assert!(victim >= 72.0, "{processes} processes: {victim}");
    }
}

#[test]
fn threat_36_rotating_groups_gain_nothing() {
    for each in [10_000, 20_000, 40_000] {
        for at_once in [1, 4] {
            let (share, _) = share_of(&Cheat::Rotate {
                processes: 64,
                at_once,
                each,
            });
            assert!(share <= 25.5, "{at_once} for {each}: {share}");
        }
    }
}

#[test]
fn restarts_and_bursts_gain_nothing_over_a_minute() {
    let cheats = [
        Cheat::Restart {
            processes: 1,
            every: SECOND,
        },
        Cheat::Restart {
            processes: 8,
            every: SECOND,
        },
        Cheat::Restart {
            processes: 8,
            every: 50_000,
        },
        Cheat::Burst {
            processes: 1,
            on: 100_000,
            off: 200_000,
        },
        Cheat::Burst {
            processes: 64,
            on: 30_000,
            off: 130_000,
        },
        Cheat::Burst {
            processes: 64,
            on: 200_000,
            off: 200_000,
        },
        Cheat::Swell {
            processes: 64,
            alone: 130_000,
            all: 30_000,
        },
        Cheat::Stop {
            processes: 8,
            burst: 2_000,
            pause: 1,
        },
    ];
    for cheat in cheats {
        let (share, _) = share_of(&cheat);
        assert!(share <= 25.5, "{cheat:?}: {share}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_strategy_gains_more_than_a_cycle(
        cheat in cheat(),
        weights in prop::collection::vec(1..=100u32, 2..=4),
        contexts in 1..=3usize,
        tick in prop_oneof![Just(10_000u64), Just(20_000), Just(30_000)],
    ) {
        let mut world = World::with(&weights, Config::default(), tick);
        for place in 1..weights.len() {
            (0..contexts).for_each(|_| { world.fork(place, ALWAYS); });
        }
        world.run(100_000);
        world.measure();
        world.claims_all = Some(0);
        play(&mut world, 0, &cheat, 4 * SECOND);
        let slack = tick + 4 * 1_000 + 3_000;
        let gain = world.had[0].gain;
        prop_assert!(gain <= (CYCLE + slack) as i64, "gained {gain} us, {} allowed", CYCLE + slack);
    }
}
