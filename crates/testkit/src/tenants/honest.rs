//! A program that only uses what it is given.

use serde_json::Value;

use super::fill::human;
use super::{Context, Outcome, cuda};
use crate::MIB;
use crate::outside::Finding;

/// Sees its slice, allocates to its end through CUDA, is refused as on a full card, frees, and can go on.
pub(super) fn honest(context: &Context) -> Outcome {
    const STEP: u64 = 256 * MIB;
    let gpu = cuda::Cuda::open()?;
    let (free, total) = gpu.info()?;
    let mut held = Vec::new();
    let code = loop {
        match gpu.alloc(STEP) {
            Ok(address) => held.push(address),
            Err(code) => break code,
        }
        if held.len() as u64 * STEP > context.quota {
            break 0;
        }
    };
    let reached = held.len() as u64 * STEP;
    for address in held {
        gpu.free(address)?;
    }
    let again = gpu.alloc(STEP).is_ok();
    // A context takes its part, and the last step may not fit.
    let fair = reached <= free && reached + STEP > free;
    Ok(Finding {
        name: String::new(),
        held: total == context.quota && fair && code == cuda::OUT_OF_MEMORY && again,
        measured: Value::from(total),
        expected: Value::from(context.quota),
        note: format!(
            "sees a card of {}, {} free; allocated {}, then CUDA error {code} as on a full card",
            human(total),
            human(free),
            human(reached)
        ),
    })
}
