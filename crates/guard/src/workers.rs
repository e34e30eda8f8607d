//! The helper's threads: each waits for a call and serves it; how many wait at once follows the load.
//!
//! Measured on an H200 machine: an arriving call wakes every waiting thread, and handing a call from one processor to
//! another costs more than most calls take. One caller is served fastest by one waiting thread that is woken
//! synchronously; many callers by four that are not (the more wait, the longer the tail). So there are two ways, and a
//! call that finds another one waiting behind it tells which is due. A thread that is held up (the driver's locks, memory
//! that faults for ever) must not hold up the others: the main thread looks after that ([`Pool::watch`]).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use crate::backend::lend;
use crate::listener::Listener;
use crate::mediator::Worker;
use crate::sys;
use crate::tenant::{Tenant, lock};

/// Most threads of one tenant's helper.
const MOST_THREADS: usize = 16;
/// Waiting threads while several callers call at once.
const MANY: usize = 4;
/// So many calls in a row must come alone before the way for one caller is taken again.
const ALONE: usize = 256;
/// So many calls after a change of the calling thread are looked behind: is another one waiting already? A single
/// caller that calls again at once is no load, and looking costs a system call.
const SUSPECT: usize = 16;
/// Buffers live on the heap; what is left on the stack is shallow.
const STACK: usize = 128 << 10;

/// The threads of one helper.
pub struct Pool {
    tenant: Arc<Tenant>,
    listener: OwnedFd,
    /// How many threads may wait for a call at once: 1 or [`MANY`].
    target: AtomicUsize,
    /// Threads that wait for a call.
    waiting: AtomicUsize,
    /// Calls in service.
    busy: AtomicUsize,
    /// Calls in a row that came alone.
    alone: AtomicUsize,
    /// Calls answered: what [`Pool::watch`] sees move.
    served: AtomicUsize,
    idle: Mutex<Idle>,
    wake: Condvar,
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
        alone: AtomicUsize::new(0),
        served: AtomicUsize::new(0),
        idle: Mutex::default(),
        wake: Condvar::new(),
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
        idle.threads += 1;
        drop(idle);
        let pool = self.clone();
        let spawned = thread::Builder::new()
            .name("mediator".into())
            .stack_size(STACK)
            .spawn(move || pool.run());
        if spawned.is_err() {
            lock(&self.idle).threads -= 1;
        }
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

    fn run(self: Arc<Pool>) {
        let mut worker = Worker::new(&self.tenant, self.listener());
        let (mut last_caller, mut suspect) = (0u32, 0usize);
        loop {
            if self.waiting.fetch_add(1, Ordering::AcqRel) >= self.target.load(Ordering::Relaxed) {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                self.park();
                continue;
            }
            let received = self.listener().receive();
            let waiting = self.waiting.fetch_sub(1, Ordering::AcqRel) - 1;
            match received {
                Ok(Some(call)) => {
                    let busy = self.busy.fetch_add(1, Ordering::Relaxed) + 1;
                    if self.target.load(Ordering::Relaxed) > 1 && waiting == 0 {
                        // Nobody is left to take the next one. Without a thread it waits until this call is done.
                        let _started = self.add_thread();
                    }
                    worker.serve(&call);
                    self.busy.fetch_sub(1, Ordering::Relaxed);
                    self.served.fetch_add(1, Ordering::Relaxed);
                    suspect = if call.tid == last_caller {
                        suspect.saturating_sub(1)
                    } else {
                        SUSPECT
                    };
                    last_caller = call.tid;
                    self.follow_load(busy, suspect > 0);
                }
                Ok(None) => {}
                // The listener is of no more use: the main thread sees the same and ends the helper.
                Err(_) => return,
            }
        }
    }

    /// Changes the way of waiting when the load asks for it.
    fn follow_load(self: &Arc<Pool>, busy: usize, suspect: bool) {
        if self.target.load(Ordering::Relaxed) == 1 {
            if suspect && self.call_is_pending() {
                self.alone.store(0, Ordering::Relaxed);
                self.target.store(MANY, Ordering::Relaxed);
                self.listener().set_sync_wake_up(false);
                for _ in 1..MANY {
                    // Fewer threads serve more slowly, and all the same.
                    let _started = self.add_thread();
                }
            }
        } else if busy > 1 {
            self.alone.store(0, Ordering::Relaxed);
        } else if self.alone.fetch_add(1, Ordering::Relaxed) == ALONE {
            self.target.store(1, Ordering::Relaxed);
            self.listener().set_sync_wake_up(true);
        }
    }

    fn call_is_pending(&self) -> bool {
        matches!(sys::poll([(self.listener.as_raw_fd(), libc::POLLIN)], 0), Ok([e]) if e & libc::POLLIN != 0)
    }

    /// Called by the main thread every few milliseconds while calls are served, with what it returned last: if a call is
    /// waiting and none was finished since, one more thread takes it.
    pub fn watch(self: &Arc<Pool>, before: usize) -> usize {
        let served = self.served.load(Ordering::Relaxed);
        if served == before && self.busy.load(Ordering::Relaxed) > 0 && self.call_is_pending() {
            // `waiting` cannot exceed the target, so a thread that is to wait beside those held up needs room.
            self.target.store(MANY, Ordering::Relaxed);
            self.alone.store(0, Ordering::Relaxed);
            // Without a thread the call waits until another is done.
            let _started = self.add_thread();
        }
        served
    }
}
