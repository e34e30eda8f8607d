//! Signals in the middle of calls.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::fill::human;
use super::{Context, Outcome, bytes};
use crate::KIB;
use crate::raw::{Client, Pages};

static ALARMS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_signal: libc::c_int) {
    ALARMS.fetch_add(1, Ordering::Relaxed);
}

/// SIGALRM at 1 kHz while this lives. Interrupted calls are restarted, as most programs ask for.
struct Alarms;

impl Alarms {
    fn start() -> io::Result<Alarms> {
        // SAFETY: the action is zeroed but for its handler, which only adds to an atomic, and its flags.
        let set = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut())
        };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        timer(Duration::from_millis(1))?;
        Ok(Alarms)
    }
}

impl Drop for Alarms {
    fn drop(&mut self) {
        // Alarms that go on only cost time.
        let _stopped = timer(Duration::ZERO);
    }
}

fn timer(every: Duration) -> io::Result<()> {
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: every.as_micros() as libc::suseconds_t,
    };
    let value = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: `value` is live; the old one is not asked for.
    if unsafe { libc::setitimer(libc::ITIMER_REAL, &value, std::ptr::null_mut()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Allocates thousands of objects under SIGALRM at 1 kHz, then frees what it was given: nothing was allocated twice, and
/// nothing stays charged.
pub(super) fn signals_no_double_charge(context: &Context) -> Outcome {
    const OBJECTS: u64 = 4000;
    const SIZE: u64 = 64 * KIB;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let before = device.free_bytes(&client)?;
    let alarms = Alarms::start()?;
    // The driver chooses the handles: a call that ran twice leaves an object that the program never hears of.
    let made = (0..OBJECTS).map(|_| device.alloc_as(&client, 0, SIZE, Pages::Default));
    // One that ran twice with the handle already written back finds the handle taken.
    let handles: Vec<u32> = made.filter_map(Result::ok).collect();
    drop(alarms);
    let held = before.saturating_sub(device.free_bytes(&client)?);
    let driver = context.driver_memory().map_or(held, |on| on[0]);
    let alarms = Alarms::start()?;
    for &handle in &handles {
        client.free(handle)?;
    }
    drop(alarms);
    let left = before.saturating_sub(device.free_bytes(&client)?);
    let driver_left = context.driver_memory().map_or(left, |on| on[0]);
    let alarms = ALARMS.load(Ordering::Relaxed);
    let note = format!(
        "{alarms} alarms during {} calls, {} of {OBJECTS} allocations answered well: {} charged for {} asked, {} left after all was freed",
        2 * OBJECTS,
        handles.len(),
        human(held.max(driver)),
        human(OBJECTS * SIZE),
        human(left.max(driver_left))
    );
    let exact = held.max(driver) == OBJECTS * SIZE && handles.len() as u64 == OBJECTS && alarms > 0;
    Ok(bytes(left.max(driver_left), 0, exact, note))
}
