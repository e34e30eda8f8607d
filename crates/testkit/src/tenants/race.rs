//! Many processes and threads ask at the same moment.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::fill::human;
use super::{Context, Outcome, bytes};
use crate::raw::{Client, Pages};

/// Processes, and threads in each.
const PROCESSES: usize = 4;
const THREADS: usize = 2;
const RACERS: u32 = (PROCESSES * THREADS) as u32;
/// Each asks for this part of the quota, so that half of the racers can win.
const PART: u64 = 4;
const ROUNDS: u32 = 100;

/// What the racers share.
#[repr(C)]
struct Track {
    arrived: AtomicU32,
    round: AtomicU32,
    over: AtomicU32,
    held: AtomicU64,
}

/// A page that children made by fork share.
fn track() -> io::Result<&'static Track> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Track>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is zeroed, aligned to a page, as large as a `Track`, never unmapped, and every field is an
    // atomic, for which zero is a value.
    Ok(unsafe { &*page.cast::<Track>() })
}

impl Track {
    /// Waits until all racers and the starter are here.
    fn barrier(&self) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) == RACERS {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.fetch_add(1, Ordering::Release);
            futex(&self.round, libc::FUTEX_WAKE, i32::MAX as u32);
            return;
        }
        while self.round.load(Ordering::Acquire) == round {
            futex(&self.round, libc::FUTEX_WAIT, round);
        }
    }
}

fn futex(word: &AtomicU32, operation: i32, value: u32) {
    // SAFETY: the word lives as long as the process; without a timeout the other arguments are not read. Every outcome
    // (woken, a changed value, a signal) is looked at by the caller's loop.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            value,
            std::ptr::null::<libc::timespec>(),
        )
    };
}

/// One racer: at each start it allocates its part, holds it while it is counted, and frees it.
fn race(context: &Context, track: &Track) {
    let part = context.quota / PART;
    let ready = Client::open(&context.node)
        .and_then(|client| client.first_device().map(|device| (client, device)));
    loop {
        track.barrier();
        if track.over.load(Ordering::Acquire) != 0 {
            return;
        }
        let held = ready.as_ref().ok().and_then(|(client, device)| {
            let memory = device.alloc(client, part, Pages::Default).ok()?;
            track.held.fetch_add(part, Ordering::AcqRel);
            Some((client, memory))
        });
        track.barrier();
        track.barrier();
        if let Some((client, memory)) = held {
            track.held.fetch_sub(part, Ordering::AcqRel);
            if client.free(memory).is_err() {
                std::process::abort();
            }
        }
    }
}

/// Starts a process of racers; returns in the parent only.
fn process(context: &Context, track: &'static Track) -> io::Result<libc::pid_t> {
    // SAFETY: this process has one thread, so the child may use everything it inherits.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // The others would wait at the barrier for ever if the first process were killed.
            // SAFETY: prctl(2) with integers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| race(context, track));
                }
            });
            // SAFETY: ends the child at once; nothing of the parent's is written twice.
            unsafe { libc::_exit(0) }
        }
        child => Ok(child),
    }
}

/// Racers behind a barrier, round after round: never more than the quota together, and never less than fits.
pub(super) fn race_no_overshoot(context: &Context) -> Outcome {
    let track = track()?;
    let children = (0..PROCESSES)
        .map(|_| process(context, track))
        .collect::<io::Result<Vec<_>>>()?;
    let (mut most, mut least) = (0, u64::MAX);
    let mut driver_most = 0;
    for _ in 0..ROUNDS {
        track.barrier();
        track.barrier();
        let held = track.held.load(Ordering::Acquire);
        if let Some(driver) = context.driver_memory() {
            driver_most = driver_most.max(driver[0]);
        }
        (most, least) = (most.max(held), least.min(held));
        track.barrier();
    }
    track.over.store(1, Ordering::Release);
    track.barrier();
    for child in children {
        // SAFETY: waits for a child of ours; its status is not asked for.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
    let note = format!(
        "{PROCESSES} processes of {THREADS} threads, {ROUNDS} starts: together they held {} to {}; the driver counted {} at most",
        human(least),
        human(most),
        human(driver_most)
    );
    // Half of the racers fit, and must get their part: a wall that refuses everybody would be no wall but a fence.
    Ok(bytes(
        most.max(driver_most),
        context.quota,
        least == context.quota,
        note,
    ))
}
