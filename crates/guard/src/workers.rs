//! The helper's threads: each waits for a call and serves it; how many wait at once, and how they are woken, follows
//! the load.
//!
//! Measured on H200 machines, driver 580.159: one caller is served fastest by one waiting thread that is woken
//! synchronously on the caller's processor (a control: 7 us over native, against 20 woken elsewhere). Several callers
//! are served fastest woken the ordinary way; up to about six by one thread still (the driver serialises most calls
//! itself, and a second thread only waits for its locks: 250 us a 4 MiB allocation at four callers with one thread, 340
//! with four), sixteen by three (700 us against 1,000 with one). A thread that is held up (the driver's locks, memory
//! that faults for ever) must not hold up the others: the main thread looks after that ([`Pool::watch`]).
//!
//! The driver's lock prefers a thread that comes running to one that sleeps for it, for up to 4 ms (the kernel's
//! rw_semaphore). Threads that serve call after call would overtake a sleeping one as often; `Turns` bounds that.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::backend::lend;
use crate::listener::{Listener, Reply};
use crate::mediator::Worker;
use crate::stay::Stay;
use crate::sys;
use crate::tenant::{Tenant, lock};

/// Most threads of one tenant's helper, but for those that were given up.
pub(crate) const MOST_THREADS: usize = 16;
/// Where every thread is in the tenant's memory and a call waits, one that has been there for so long is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);
/// Most threads that were given up and have not come back; a tenant that wants more is ended.
pub(crate) const MOST_GIVEN_UP: usize = 14;
/// Waiting threads when [`CROWD`] or more threads of the tenant call at once.
const WAITING_FOR_A_CROWD: usize = 3;
/// So many callers are a crowd; two fewer still are, once they were.
const CROWD: usize = 7;
/// Calls that a thread looks back on.
const RECENT: usize = 32;
/// The load is judged after so many calls.
const JUDGE_EVERY: usize = 8;
/// Whether a call leaves another one waiting behind it is looked at every so many calls: it costs a system call.
const LOOK_EVERY: usize = 4;
/// Looks that count.
const LOOKS: u32 = 8;
/// A call may be overtaken for so long by calls that came later.
const PATIENCE: Duration = Duration::from_micros(1500);
/// Buffers live on the heap; what is left on the stack is shallow.
const STACK: usize = 128 << 10;

/// The threads of one helper.
pub struct Pool {
    tenant: Arc<Tenant>,
    listener: OwnedFd,
    /// How many threads may wait for a call at once.
    target: AtomicUsize,
    /// Whether waiting threads are woken synchronously.
    synchronous: AtomicBool,
    /// Threads that wait for a call.
    waiting: AtomicUsize,
    /// Calls in service.
    busy: AtomicUsize,
    /// What was served lately.
    recent: Mutex<Recent>,
    /// Whether several threads call.
    several: AtomicBool,
    turns: Turns,
    /// Calls answered: what [`Pool::watch`] sees move.
    served: AtomicUsize,
    idle: Mutex<Idle>,
    wake: Condvar,
    /// The threads by number, and since when each has been seen in the same stay in the tenant's memory.
    stays: Mutex<[Seen; MOST_THREADS]>,
    /// Threads that were given up and have not come back.
    given_up: AtomicUsize,
}

#[derive(Default)]
struct Seen {
    thread: Arc<Stay>,
    stay: Option<(u64, Instant)>,
}

#[derive(Default)]
struct Idle {
    threads: usize,
    parked: usize,
    tickets: usize,
}

/// Starts serving the listener's calls.
///
/// # Errors
/// No thread could be started.
pub fn start(tenant: Arc<Tenant>, listener: OwnedFd) -> std::io::Result<Arc<Pool>> {
    let pool = Arc::new(Pool {
        tenant,
        listener,
        target: AtomicUsize::new(1),
        waiting: AtomicUsize::new(0),
        busy: AtomicUsize::new(0),
        synchronous: AtomicBool::new(true),
        recent: Mutex::default(),
        several: AtomicBool::new(false),
        turns: Turns::default(),
        served: AtomicUsize::new(0),
        idle: Mutex::default(),
        wake: Condvar::new(),
        stays: Mutex::default(),
        given_up: AtomicUsize::new(0),
    });
    // A kernel before 6.6 cannot, and wakes up the slower way.
    pool.listener().set_sync_wake_up(true);
    pool.add_thread()?;
    Ok(pool)
}

impl Pool {
    fn listener(&self) -> Listener<'_> {
        Listener(lend(&self.listener))
    }

    /// Puts one more thread to work: a parked one, or a new one.
    fn add_thread(self: &Arc<Pool>) -> std::io::Result<()> {
        let mut idle = lock(&self.idle);
        if idle.parked > idle.tickets {
            idle.tickets += 1;
            self.wake.notify_one();
            return Ok(());
        }
        if idle.threads == MOST_THREADS {
            return Ok(());
        }
        let number = idle.threads;
        idle.threads += 1;
        drop(idle);
        let spawned = self.spawn(number);
        if spawned.is_err() {
            lock(&self.idle).threads -= 1;
        }
        spawned
    }

    fn spawn(self: &Arc<Pool>, number: usize) -> std::io::Result<()> {
        let pool = self.clone();
        let spawned = thread::Builder::new()
            .name("mediator".into())
            .stack_size(STACK)
            .spawn(move || pool.run(number));
        spawned.map(drop)
    }

    fn park(&self) {
        let mut idle = lock(&self.idle);
        idle.parked += 1;
        while idle.tickets == 0 {
            idle = self.wake.wait(idle).unwrap_or_else(PoisonError::into_inner);
        }
        idle.tickets -= 1;
        idle.parked -= 1;
    }

    fn run(self: Arc<Pool>, number: usize) {
        let mut worker = Worker::new(&self.tenant, self.listener());
        let stay = Stay::of_this_thread();
        lock(&self.stays)[number].thread = stay.clone();
        loop {
            if self.waiting.fetch_add(1, Ordering::AcqRel) >= self.target.load(Ordering::Relaxed) {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                self.park();
                continue;
            }
            let received = self.listener().receive();
            if let Ok(Some(_)) = received {
                self.tenant.pace();
            }
            let waiting = self.waiting.fetch_sub(1, Ordering::AcqRel) - 1;
            match received {
                Ok(Some(call)) => {
                    self.busy.fetch_add(1, Ordering::Relaxed);
                    if waiting == 0 && self.target.load(Ordering::Relaxed) > 1 {
                        // Nobody is left to take the next one. Without a thread it waits until this call is done.
                        let _started = self.add_thread();
                    }
                    let crowd = self.target.load(Ordering::Relaxed) > 1;
                    if crowd {
                        self.turns.begin(number);
                    }
                    stay.begin(call.id);
                    worker.serve(&call);
                    if stay.is_given_up() {
                        // Another has its place and its number.
                        self.given_up.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                    if crowd {
                        self.turns.end(number);
                    }
                    self.busy.fetch_sub(1, Ordering::Relaxed);
                    self.served.fetch_add(1, Ordering::Relaxed);
                    let mut recent = lock(&self.recent);
                    let judge = recent.add(call.tid);
                    // A single caller that calls again at once is no load.
                    if recent.at.is_multiple_of(LOOK_EVERY) && self.several.load(Ordering::Relaxed)
                    {
                        recent.look(self.call_is_pending());
                    }
                    if judge {
                        self.follow_load(&recent);
                    }
                }
                Ok(None) => {}
                // The listener is of no more use: the main thread sees the same and ends the helper.
                Err(_) => return,
            }
        }
    }

    /// Changes the way of waiting when the load asks for it.
    fn follow_load(self: &Arc<Pool>, recent: &Recent) {
        self.several.store(recent.callers() > 1, Ordering::Relaxed);
        let synchronous = !recent.overlap();
        if self.synchronous.swap(synchronous, Ordering::Relaxed) != synchronous {
            self.listener().set_sync_wake_up(synchronous);
        }
        let before = self.target.load(Ordering::Relaxed);
        let crowd = if before == WAITING_FOR_A_CROWD {
            CROWD - 2
        } else {
            CROWD
        };
        let target = if recent.callers() >= crowd && !synchronous {
            WAITING_FOR_A_CROWD
        } else {
            1
        };
        self.target.store(target, Ordering::Relaxed);
        for _ in before..target {
            // Fewer threads serve more slowly, and all the same.
            let _started = self.add_thread();
        }
    }

    fn call_is_pending(&self) -> bool {
        matches!(sys::poll([(self.listener.as_raw_fd(), libc::POLLIN)], 0), Ok([e]) if e & libc::POLLIN != 0)
    }

    /// Whether calls are in service.
    pub fn is_serving(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Called by the main thread every few milliseconds while calls are served, with what it returned last: if a call is
    /// waiting and none was finished since, one more thread takes it.
    pub fn watch(self: &Arc<Pool>, before: usize) -> usize {
        let served = self.served.load(Ordering::Relaxed);
        if served == before && self.busy.load(Ordering::Relaxed) > 0 && self.call_is_pending() {
            // Without a thread the call waits until another is done.
            let _started = self.add_thread();
            self.give_up_one();
        }
        served
    }

    /// If all threads are in the tenant's memory, the one that has been there longest is given up once it has been there
    /// for [`GIVE_UP_AFTER`]: its call fails as if its memory could not be read, and a new thread takes its place. A program
    /// whose memory only is slow never has all threads wait for it that long, and one that makes them hang goes on
    /// being served, so that it can free what it has.
    fn give_up_one(self: &Arc<Pool>) {
        let mut stays = lock(&self.stays);
        let now = Instant::now();
        for seen in stays.iter_mut() {
            let present = seen.thread.present();
            if seen.stay.map(|(stay, _)| stay) != present {
                seen.stay = present.map(|stay| (stay, now));
            }
        }
        let there: Option<Vec<(Instant, u64, usize)>> = stays
            .iter()
            .enumerate()
            .map(|(number, seen)| seen.stay.map(|(stay, since)| (since, stay, number)))
            .collect();
        // Somebody is elsewhere, or has not begun: he takes the call, or will.
        let Some((since, stay, number)) = there.and_then(|all| all.into_iter().min()) else {
            return;
        };
        if now - since < GIVE_UP_AFTER {
            return;
        }
        if self.given_up.load(Ordering::Relaxed) == MOST_GIVEN_UP {
            self.tenant.condemn(format!(
                "{} calls at once have parameters in memory that is never given",
                MOST_THREADS + MOST_GIVEN_UP
            ));
            return;
        }
        // Before the thread can know.
        self.given_up.fetch_add(1, Ordering::Relaxed);
        let Some(call) = stays[number].thread.give_up(stay) else {
            self.given_up.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        stays[number] = Seen::default();
        drop(stays);
        self.listener().answer(call, Reply::Errno(libc::EFAULT));
        self.turns.end(number);
        self.busy.fetch_sub(1, Ordering::Relaxed);
        if self.spawn(number).is_err() {
            // The number is nobody's; the others serve.
            self.tenant
                .condemn("no thread can be started for its calls".into());
        }
    }
}

/// Keeps calls from being overtaken for long: a thread that is about to serve a call waits for one that was begun more
/// than [`PATIENCE`] ago, once.
struct Turns {
    start: Instant,
    /// When each thread began the call that it serves, in nanoseconds after `start`; [`NOTHING`], or [`WAITED_FOR`].
    begun: [AtomicU64; MOST_THREADS],
    /// Threads that wait.
    waiting: AtomicUsize,
    gate: Mutex<()>,
    ended: Condvar,
}

const NOTHING: u64 = 0;
/// It has been waited for in vain: what holds it up is not the others.
const WAITED_FOR: u64 = u64::MAX;

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            start: Instant::now(),
            begun: Default::default(),
            waiting: AtomicUsize::new(0),
            gate: Mutex::default(),
            ended: Condvar::new(),
        }
    }
}

impl Turns {
    fn begin(&self, thread: usize) {
        let now = self.start.elapsed();
        for other in (0..MOST_THREADS).filter(|&t| t != thread) {
            let begun = self.begun[other].load(Ordering::Acquire);
            let late = now.saturating_sub(Duration::from_nanos(begun)) > PATIENCE;
            if begun != NOTHING && begun != WAITED_FOR && late {
                self.wait_for(other, begun);
            }
        }
        let now = self.start.elapsed().as_nanos() as u64;
        self.begun[thread].store(now.max(1), Ordering::Release);
    }

    fn wait_for(&self, other: usize, begun: u64) {
        // Before the look at the thread: whoever ends after that look sees that somebody waits.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let gate = lock(&self.gate);
        let unchanged = |_: &mut ()| self.begun[other].load(Ordering::SeqCst) == begun;
        let waited = self.ended.wait_timeout_while(gate, PATIENCE, unchanged);
        let (_gate, result) = waited.unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if result.timed_out() {
            let order = Ordering::SeqCst;
            // It may have ended in this moment; then there is nothing to mark.
            let _marked = self.begun[other].compare_exchange(begun, WAITED_FOR, order, order);
        }
    }

    fn end(&self, thread: usize) {
        self.begun[thread].store(NOTHING, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.gate));
            self.ended.notify_all();
        }
    }
}

/// What was served lately, by any thread.
#[derive(Default)]
struct Recent {
    callers: [u32; RECENT],
    at: usize,
    /// One bit a look, the latest lowest: another call was waiting when one was done.
    looks: u32,
    /// How many different callers there were when it was counted last.
    different: usize,
}

impl Recent {
    /// Notes a call. True: it is time to judge the load.
    fn add(&mut self, caller: u32) -> bool {
        self.callers[self.at % RECENT] = caller;
        self.at = self.at.wrapping_add(1);
        if !self.at.is_multiple_of(JUDGE_EVERY) {
            return false;
        }
        let mut sorted = self.callers;
        sorted.sort_unstable();
        self.different = 1 + sorted
            .windows(2)
            .filter(|w| w[0] != w[1] && w[0] != 0)
            .count();
        true
    }

    /// Different callers among the recent ones.
    fn callers(&self) -> usize {
        self.different
    }

    /// Notes whether a call was waiting.
    fn look(&mut self, pending: bool) {
        self.looks = (self.looks << 1 | u32::from(pending)) & ((1 << LOOKS) - 1);
    }

    /// Whether calls waited behind others lately.
    fn overlap(&self) -> bool {
        self.looks != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_counted_among_the_recent_calls_only() {
        let mut recent = Recent::default();
        for i in 0..RECENT {
            recent.add(1 + i as u32 % 5);
        }
        assert_eq!(recent.callers(), 5);
        for _ in 0..RECENT {
            recent.add(7);
        }
        assert_eq!(recent.callers(), 1);
    }

    #[test]
    fn an_overlap_is_forgotten_after_as_many_looks_as_count() {
        let mut recent = Recent::default();
        recent.look(true);
        for _ in 1..LOOKS {
            recent.look(false);
            assert!(recent.overlap());
        }
        recent.look(false);
        assert!(!recent.overlap());
    }

    #[test]
    fn a_late_call_is_waited_for_and_one_that_never_ends_only_once() {
        let turns = Turns::default();
        turns.begin(0);
        thread::sleep(2 * PATIENCE);
        thread::scope(|s| {
            s.spawn(|| turns.begin(1));
            while turns.waiting.load(Ordering::SeqCst) == 0
                && turns.begun[0].load(Ordering::SeqCst) != WAITED_FOR
            {
                thread::yield_now();
            }
            turns.end(0);
        });
        assert_eq!(turns.begun[0].load(Ordering::SeqCst), NOTHING);
        assert_ne!(turns.begun[1].load(Ordering::SeqCst), NOTHING, "it began");
        thread::sleep(2 * PATIENCE);
        turns.begin(2);
        assert_eq!(turns.begun[1].load(Ordering::SeqCst), WAITED_FOR);
        turns.end(1);
        assert_eq!(turns.begun[1].load(Ordering::SeqCst), NOTHING);
    }
}
