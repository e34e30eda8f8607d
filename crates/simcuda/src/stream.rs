//! Streams and events.
//!
//! A stream is a queue with a thread of its own, started with the first piece of work. The thread passes work on to
//! the GPU as it comes, without waiting for each piece, so that the GPU has a next one when one ends; it waits where
//! somebody has to know that it is done: at an event, at a copy to the host, at a host function, and when the queue
//! has run dry.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use cuda::status::CuResult;
use simgpu::work::{Op, Work, WorkResult, WorkStatus};

use crate::gateway;
use crate::registry::lock;

/// Most bytes of one piece of a copy: bounds the memory that a copy needs beside its ends.
pub const PIECE: usize = 8 << 20;
/// Pieces of work that a stream takes before its caller has to wait, as a channel's queue does.
const DEPTH: usize = 1024;

/// Something for a stream to do.
pub enum Job {
    /// Work for a channel.
    Work(u32, Op),
    /// Copy from host memory, which is read when the copy runs.
    FromHost {
        channel: u32,
        dst: u64,
        src: usize,
        len: usize,
    },
    /// Copy to host memory.
    ToHost {
        channel: u32,
        dst: usize,
        src: u64,
        len: usize,
    },
    /// Note that an event has been reached.
    Record(Arc<Event>, u64),
    /// Go on when these points of other streams are reached.
    After(Vec<Point>),
    /// Call a function of the program.
    Host(extern "C" fn(*mut c_void), usize),
}

impl Job {
    /// The same again, for a graph that is launched more than once; none for what a graph does not hold.
    pub fn again(&self) -> Option<Job> {
        Some(match self {
            Job::Work(channel, op) => Job::Work(*channel, op.clone()),
            Job::FromHost {
                channel,
                dst,
                src,
                len,
            } => Job::FromHost {
                channel: *channel,
                dst: *dst,
                src: *src,
                len: *len,
            },
            Job::ToHost {
                channel,
                dst,
                src,
                len,
            } => Job::ToHost {
                channel: *channel,
                dst: *dst,
                src: *src,
                len: *len,
            },
            Job::Host(function, data) => Job::Host(*function, *data),
            Job::Record(..) | Job::After(..) => return None,
        })
    }
}

/// A point in a stream: reached when its job number `ticket` is done.
#[derive(Clone)]
pub struct Point {
    queue: Arc<Queue>,
    ticket: u64,
}

impl Point {
    /// Whether it has been reached.
    pub fn reached(&self) -> bool {
        self.queue.lock().done >= self.ticket
    }

    /// Waits until it is reached; gives the error that the stream has met, if any.
    pub fn wait(&self) -> Result<(), CuResult> {
        self.queue.wait(self.ticket)
    }

    /// Whether the point lies in this queue.
    pub fn is_in(&self, queue: &Arc<Queue>) -> bool {
        Arc::ptr_eq(&self.queue, queue)
    }
}

/// The queue of a stream.
pub struct Queue {
    client: u32,
    /// A channel to wait on when nothing else says which.
    channel: u32,
    /// The context's first error; 0 while there is none.
    failure: Arc<AtomicU32>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    issued: u64,
    done: u64,
    running: bool,
    closed: bool,
}

impl Queue {
    /// An empty queue of a client's stream.
    pub fn new(client: u32, channel: u32, failure: Arc<AtomicU32>) -> Arc<Queue> {
        Arc::new(Queue {
            client,
            channel,
            failure,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Adds a job; gives the point at which it is done.
    pub fn add(self: &Arc<Queue>, job: Job) -> Result<Point, CuResult> {
        self.check()?;
        let mut state = self.lock();
        while state.jobs.len() >= DEPTH {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if !state.running {
            start(Arc::clone(self))?;
            state.running = true;
        }
        state.jobs.push_back(job);
        state.issued += 1;
        let ticket = state.issued;
        drop(state);
        self.changed.notify_all();
        Ok(Point {
            queue: Arc::clone(self),
            ticket,
        })
    }

    /// The point behind everything that has been added.
    pub fn last(self: &Arc<Queue>) -> Point {
        Point {
            queue: Arc::clone(self),
            ticket: self.lock().issued,
        }
    }

    /// Whether all is done.
    pub fn idle(&self) -> bool {
        let state = self.lock();
        state.done == state.issued
    }

    /// Lets the thread end when everything is done.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// The error that the context has met, if any.
    pub fn check(&self) -> Result<(), CuResult> {
        match self.failure.load(Ordering::Acquire) {
            0 => Ok(()),
            error => Err(CuResult(error)),
        }
    }

    fn wait(&self, ticket: u64) -> Result<(), CuResult> {
        let mut state = self.lock();
        while state.done < ticket {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.check()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn fail(&self, error: CuResult) {
        let _ = self
            .failure
            .compare_exchange(0, error.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The thread's life: take a job, run it, say when all so far is done.
    fn run(&self) {
        // Works passed on and not waited for: how many, and on which channel the last went.
        let (mut loose, mut channel) = (0, self.channel);
        loop {
            let mut state = self.lock();
            let job = loop {
                if let Some(job) = state.jobs.pop_front() {
                    break job;
                }
                if loose > 0 {
                    drop(state);
                    let end = self.settle(channel);
                    self.finish(&mut loose, end.map(|_| ()));
                    state = self.lock();
                } else if state.closed {
                    return;
                } else {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            };
            drop(state);
            self.changed.notify_all();
            loose += 1;
            if self.check().is_err() {
                self.finish(&mut loose, Ok(()));
                continue;
            }
            if let Job::Work(to, op) = job {
                // Channels run side by side: order between two of them has to be made by waiting.
                let moved = if to != channel && loose > 1 {
                    self.settle(channel).map(|_| ())
                } else {
                    Ok(())
                };
                channel = to;
                let passed = moved
                    .and_then(|()| submit(self.client, to, op, false))
                    .map(|_| ());
                if passed.is_err() {
                    self.finish(&mut loose, passed);
                }
                continue;
            }
            let clock = if loose > 1 || matches!(job, Job::Record(..)) {
                self.settle(channel)
            } else {
                Ok(0)
            };
            let end = clock.and_then(|clock| self.run_here(job, clock));
            self.finish(&mut loose, end);
        }
    }

    /// Runs what needs the work before it to be done, which has happened at `end`.
    fn run_here(&self, job: Job, end: u64) -> Result<(), CuResult> {
        match job {
            Job::Work(channel, op) => submit(self.client, channel, op, true).map(|_| ()),
            Job::FromHost {
                channel,
                dst,
                src,
                len,
            } => write(self.client, channel, dst, src, len),
            Job::ToHost {
                channel,
                dst,
                src,
                len,
            } => read(self.client, channel, dst, src, len),
            Job::Record(event, generation) => {
                event.reached(generation, end);
                Ok(())
            }
            Job::After(points) => points.iter().try_for_each(Point::wait),
            Job::Host(function, data) => {
                function(data as *mut c_void);
                Ok(())
            }
        }
    }

    /// Waits until the GPU has done what was passed on; gives its clock.
    fn settle(&self, channel: u32) -> Result<u64, CuResult> {
        submit(self.client, channel, Op::Wait, true).map(|result| result.end_ns)
    }

    fn finish(&self, count: &mut u64, result: Result<(), CuResult>) {
        if let Err(error) = result {
            self.fail(error);
        }
        self.lock().done += *count;
        *count = 0;
        self.changed.notify_all();
    }
}

/// Starts the queue's thread, with all signals blocked: they are the program's, not ours to take.
fn start(queue: Arc<Queue>) -> Result<(), CuResult> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are places of our own; `sigfillset` initialises the first before it is used.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let started = std::thread::Builder::new()
        .name("cuda-stream".into())
        .spawn(move || queue.run());
    if blocked {
        // SAFETY: `pthread_sigmask` has succeeded and so has filled `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    started
        .map(|_| ())
        .map_err(|_| CuResult::ERROR_OPERATING_SYSTEM)
}

/// Gives one piece of work to the GPU.
pub fn submit(client: u32, channel: u32, op: Op, wait: bool) -> Result<WorkResult, CuResult> {
    let work = Work {
        client,
        channel,
        wait,
        op,
    };
    let result = gateway::with_client(|link| link.submit(&work))
        .map_err(|_| CuResult::ERROR_LAUNCH_FAILED)?;
    match result.status {
        WorkStatus::Queued | WorkStatus::Done => Ok(result),
        WorkStatus::Fault { .. } => Err(CuResult::ERROR_ILLEGAL_ADDRESS),
        WorkStatus::Invalid => Err(CuResult::ERROR_INVALID_VALUE),
        WorkStatus::NoChannel => Err(CuResult::ERROR_LAUNCH_FAILED),
    }
}

/// Copies host memory to the GPU and waits for it.
pub fn write(client: u32, channel: u32, dst: u64, src: usize, len: usize) -> Result<(), CuResult> {
    for at in (0..len).step_by(PIECE) {
        let count = PIECE.min(len - at);
        // SAFETY: the contract of the C interface: `src` is readable for `len` bytes until the copy is done.
        let bytes = unsafe { std::slice::from_raw_parts((src + at) as *const u8, count) }.to_vec();
        submit(
            client,
            channel,
            Op::Write {
                dst: dst + at as u64,
                bytes,
            },
            true,
        )?;
    }
    Ok(())
}

/// Copies from the GPU to host memory.
pub fn read(client: u32, channel: u32, dst: usize, src: u64, len: usize) -> Result<(), CuResult> {
    for at in (0..len).step_by(PIECE) {
        let count = PIECE.min(len - at);
        let result = submit(
            client,
            channel,
            Op::Read {
                src: src + at as u64,
                len: count as u64,
            },
            true,
        )?;
        let data = result.data.get(..count).ok_or(CuResult::ERROR_UNKNOWN)?;
        // SAFETY: the contract of the C interface: `dst` is writable for `len` bytes until the copy is done; the data
        // lies in a vector of our own and can't overlap.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), (dst + at) as *mut u8, count) };
    }
    Ok(())
}

/// An event: a point in a stream, and when it was reached.
#[derive(Default)]
pub struct Event {
    /// Whether it keeps no time.
    pub without_time: bool,
    state: Mutex<EventState>,
}

#[derive(Default)]
struct EventState {
    generation: u64,
    point: Option<Point>,
    /// Clock of the device, ns.
    reached_at: u64,
}

impl Event {
    /// An event; `flags` as `cuEventCreate` takes them.
    pub fn new(flags: u32) -> Event {
        const DISABLE_TIMING: u32 = 2;
        Event {
            without_time: flags & DISABLE_TIMING != 0,
            state: Mutex::default(),
        }
    }

    /// Records it behind everything in the queue.
    pub fn record(self: &Arc<Event>, queue: &Arc<Queue>) -> Result<(), CuResult> {
        let generation = {
            let mut state = lock(&self.state);
            state.generation += 1;
            state.generation
        };
        // Not under the lock: adding may have to wait for the queue, which may have to report this very event.
        let point = queue.add(Job::Record(Arc::clone(self), generation))?;
        let mut state = lock(&self.state);
        if state.generation == generation {
            state.point = Some(point);
        }
        Ok(())
    }

    /// The point it was last recorded at; none if it never was.
    pub fn point(&self) -> Option<Point> {
        lock(&self.state).point.clone()
    }

    /// Clock of the device (ns) when it was reached.
    pub fn reached_at(&self) -> u64 {
        lock(&self.state).reached_at
    }

    fn reached(&self, generation: u64, at: u64) {
        let mut state = lock(&self.state);
        if state.generation == generation {
            state.reached_at = at;
        }
    }
}

/// A stream of a context.
pub struct Stream {
    /// Its handle; 0 for the default streams.
    pub handle: usize,
    /// Handle of its context.
    pub context: usize,
    /// Number that tells streams apart (`cuStreamGetId`).
    pub id: u64,
    /// Its jobs.
    pub queue: Arc<Queue>,
    /// As given to `cuStreamCreate`.
    pub flags: u32,
    /// As given to `cuStreamCreateWithPriority`.
    pub priority: i32,
    /// Channel of its kernels and fills.
    pub compute: u32,
    /// Channels of its copies: from the host, to the host, within the device.
    pub copy: [u32; 3],
    /// Its range group of the UVM file.
    pub range_group: Option<u64>,
    /// What has been captured, while it is capturing.
    pub capture: Mutex<Option<Vec<Job>>>,
}

impl Stream {
    /// Whether it keeps no order with the default stream.
    pub fn non_blocking(&self) -> bool {
        self.flags & 1 != 0
    }
}
