//! Hostile calls with structure, over every entry of crate rm's tables, from several processes and threads.
//!
//! Time is cut into generations. A generation has a seed of its own: its processes make the same calls for the same
//! seed (what they are answered, and how they interleave, may differ). Between two generations nobody but the first
//! process is left, and the slice must be as empty as it was at the start. The last generation exports dmabufs as well,
//! which stay charged until the tenant ends: whoever started the program looks what the card has then.

mod arena;
mod blocks;
mod files;
mod random;
mod shared;
mod thread;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rm::Abi;

use self::arena::Arena;
use self::random::Random;
use self::shared::Shared;
use self::thread::Thread;
use super::fill::human;
use super::neighbour::ask_neighbour;
use super::shapes::Watch;
use super::{Context, Outcome, bytes};
use crate::outside::Neighbour;
use crate::raw::Node;

const PROCESSES: u64 = 2;
const THREADS: u64 = 3;
/// Of each thread in a generation.
const CALLS: usize = 400;
/// A generation takes a second or two; one that takes so long hangs.
const LONGEST: Duration = Duration::from_secs(40);
/// No honest call beside the hostile ones takes so long.
const LONGEST_CALL: Duration = Duration::from_secs(10);
/// How often the first process makes an honest call.
const LOOK: Duration = Duration::from_millis(20);

/// What the processes of one generation start with.
struct Generation<'c> {
    node: &'c Node,
    abi: &'static Abi,
    seed: u64,
    shared: &'static Shared,
    neighbour: Neighbour,
    /// Nothing comes after it but the tenant's end.
    last: bool,
    /// One for each thread of each process.
    arenas: &'c [Arena],
}

/// Words: the first seed, seconds.
pub(super) fn fuzz(context: &Context) -> Outcome {
    let (seed, seconds): (u64, u64) = (context.word(0)?.parse()?, context.word(1)?.parse()?);
    let abi = rm::for_driver(simgpu::DRIVER_VERSION)
        .map_err(|e| e.to_string())?
        .abi;
    let neighbour = ask_neighbour()?;
    let watch = Watch::new(context)?;
    let shared = Shared::new()?;
    let arenas: Vec<Arena> = (0..PROCESSES * THREADS)
        .map(|_| Arena::new(true))
        .collect::<io::Result<_>>()?;
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut most, mut generations, mut slowest) = (0, 0, Duration::ZERO);
    loop {
        let last = Instant::now() >= until;
        let generation = Generation {
            node: &context.node,
            abi,
            seed: seed.wrapping_add(generations),
            shared,
            neighbour,
            last,
            arenas: &arenas,
        };
        // What fails from here on is found again with this seed.
        println!("seed {}", generation.seed);
        let went = generation.live(&watch)?;
        (most, slowest) = (most.max(went.most), slowest.max(went.slowest));
        generations += 1;
        if last {
            break;
        }
        let left = watch.settles(0)?;
        if left != 0 {
            let note = format!("left by seed {}: {}", generation.seed, human(left));
            return Ok(bytes(left, 0, false, note));
        }
    }
    let [calls, answered, made, mapped, hung] = shared.counts();
    let note = format!(
        "{generations} generations, {calls} calls ({answered} answered), {made} objects made, {mapped} mappings, {hung} children hung; at most {} held, the slowest honest call took {} ms",
        human(most),
        slowest.as_millis()
    );
    // Calls that nobody takes show nothing.
    let far = made > calls / 100 && answered > calls / 4 && mapped > generations;
    let held = hung == 0 && far && most <= context.quota && slowest < LONGEST_CALL;
    Ok(bytes(0, 0, held, note))
}

/// What the first process saw of a generation.
struct Went {
    most: u64,
    slowest: Duration,
}

impl Generation<'_> {
    /// Starts the processes, makes honest calls beside them, and waits for their end.
    fn live(&self, watch: &Watch) -> Result<Went, Box<dyn std::error::Error>> {
        let mut random = Random::new(self.seed, u64::MAX);
        // One of them is killed in the middle of what it does, every third time.
        let doomed = random
            .once_in(3)
            .then(|| Duration::from_millis(random.below(700) as u64));
        let mut children = Vec::new();
        for process in 0..PROCESSES {
            children.push(super::shapes::forked(|| self.process(process))?);
        }
        let (start, mut killed) = (Instant::now(), false);
        let mut went = Went {
            most: 0,
            slowest: Duration::ZERO,
        };
        while !children.is_empty() {
            let asked = Instant::now();
            went.most = went.most.max(watch.used()?);
            went.slowest = went.slowest.max(asked.elapsed());
            if doomed.is_some_and(|at| start.elapsed() > at) && !killed {
                // SAFETY: a child of ours that has not been waited for.
                unsafe { libc::kill(children[0], libc::SIGKILL) };
                killed = true;
            }
            if start.elapsed() > LONGEST {
                return Err(format!("seed {} hangs", self.seed).into());
            }
            std::thread::sleep(LOOK);
            let mut failed = None;
            children.retain(|&child| {
                let mut status = 0;
                // SAFETY: a child of ours; `status` is live.
                match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
                    0 => true,
                    _ => {
                        let by_us = killed && libc::WIFSIGNALED(status);
                        if status != 0 && !by_us {
                            failed = Some(status);
                        }
                        false
                    }
                }
            });
            if let Some(status) = failed {
                let why = format!(
                    "a process of seed {} ended with status {status:#x}",
                    self.seed
                );
                return Err(why.into());
            }
        }
        Ok(went)
    }

    fn process(&self, process: u64) -> i32 {
        // SAFETY: prctl(2) with integers: with the first process everybody ends.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let done = AtomicBool::new(false);
        let failed = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|i| {
                    let stream = process * THREADS + i;
                    let arena = self.arenas[stream as usize];
                    scope.spawn(move || {
                        let random = Random::new(self.seed, stream);
                        Thread::new(
                            self.node,
                            self.abi,
                            random,
                            arena,
                            self.shared,
                            self.neighbour,
                            self.last,
                        )
                        .map(|mut thread| thread.run(CALLS))
                    })
                })
                .collect();
            scope.spawn(|| self.disturb(process, &done));
            let failed = threads
                .into_iter()
                .any(|thread| !matches!(thread.join(), Ok(Ok(()))));
            done.store(true, Ordering::Relaxed);
            failed
        });
        i32::from(failed)
    }

    /// Changes the blocks of all threads, of the other process too, while they are looked at.
    fn disturb(&self, process: u64, done: &AtomicBool) {
        let mut random = Random::new(self.seed, 1000 + process);
        while !done.load(Ordering::Relaxed) {
            for _ in 0..256 {
                let arena = random.pick(self.arenas);
                let value = match random.below(4) {
                    0 => random.next() as u32,
                    1 => self.neighbour.client,
                    2 => self.shared.seen(&mut random),
                    _ => random.below(64) as u32,
                };
                arena.disturb(&mut random, value);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
