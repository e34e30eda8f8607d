//! Cards that lack a timeline, or slices that hold, and what `doctor` says of them. One test at a time: each measures what
//! programs get that must always have work queued.

#[path = "cli/common.rs"]
#[expect(dead_code, reason = "shared with the other tests of the commands")]
mod common;
#[path = "cli/doctor.rs"]
mod doctor;
#[path = "cli/sampled.rs"]
mod sampled;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by a test as long as it runs.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
