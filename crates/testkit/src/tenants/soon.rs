//! A tenant that has little to do and wants it done soon, and says for how long it waits.

use std::time::Instant;

use serde_json::{Value, json};

use super::compute::Raw;
use super::{Context, Outcome};
use crate::outside::Finding;
use crate::raw::Channel;

/// A short kernel from time to time; measures from when it comes until it is done, on the clock of the simulated engine:
/// that of the last one's end and the pause since.
/// Words: `ms` (the kernel), `each` (the pause after it), `seconds`, `after` (seconds that do not count).
pub(super) fn soon(context: &Context) -> Outcome {
    let kernel_ns = context.milliseconds("ms", 0.13)?.as_nanos() as u64;
    let each = context.milliseconds("each", 5.0)?;
    let counts = Instant::now() + context.milliseconds("after", 0.0)? * 1000;
    let until = Instant::now() + context.seconds()?;
    let raw = Raw::open(context, Channel::open)?;
    let mut took_us = Vec::new();
    let mut before = raw.channel.spin(&raw.client, kernel_ns)?;
    while Instant::now() < until {
        let pause = Instant::now();
        std::thread::sleep(each);
        // The engine's clock does not run faster than the wall's.
        let came_ns = before.end_ns + pause.elapsed().as_nanos() as u64;
        let done = raw.channel.spin(&raw.client, kernel_ns)?;
        if Instant::now() >= counts {
            took_us.push(done.end_ns.saturating_sub(came_ns) / 1000);
        }
        before = done;
    }
    took_us.sort_unstable();
    let of = |percent: usize| took_us.get(took_us.len() * percent / 100).copied();
    Ok(Finding {
        name: String::new(),
        held: true,
        measured: json!({ "kernels": took_us.len(), "p50_us": of(50), "p99_us": of(99) }),
        expected: Value::Null,
        note: String::new(),
    })
}
