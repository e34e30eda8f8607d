//! Who divides a card's time here, and by what it is measured.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use guard::registry::Registry;
use guard::rmcall::OwnClient;
use guard::share::board::{self, Node};
use guard::share::timeline::Timeline;

use super::Check;

const SENSOR: &str = "sensor of time (weight, cap)";
const SCHEDULER: &str = "scheduler of time";
/// A scheduler says something four times a second.
const SILENT_US: u64 = 2_000_000;

/// Whether the driver tells who computes: each card is asked.
pub fn sensor(own: OwnClient, root: bool) -> Check {
    let own = Arc::new(own);
    let refused = own.gpus().iter().find_map(|gpu| {
        let why = Timeline::open(own.clone(), gpu).err()?;
        Some((gpu, why, own.resident_channel(gpu)))
    });
    match refused {
        Some((gpu, why, Ok(_))) => Check::weak(
            SENSOR,
            &format!(
                "sampled: GPU {} does not record who computes ({why}), and is asked again and again",
                gpu.index
            ),
            "shares hold within the error that `gpuslice ps --json` states",
        ),
        Some((gpu, why, Err(_))) => Check::weak(
            SENSOR,
            &format!("none: GPU {} does not tell who computes ({why})", gpu.index),
            "shares hold as far as the slices of channel groups alone divide; nothing corrects them",
        ),
        None if root => Check::fine(
            SENSOR,
            "timeline: the driver records each switch of contexts",
        ),
        None => Check::weak(
            SENSOR,
            "timeline, of this user's programs only: what others compute is told without their names",
            "as root (sudo) everybody is seen",
        ),
    }
}

/// Whether a scheduler is at work.
pub fn scheduler(registry: &Registry) -> Check {
    let node = board::node_file(registry.folder()).and_then(|file| board::map_node(&file));
    match node {
        Ok(node) => at_work(&node),
        Err(e) => Check::missing(
            SCHEDULER,
            &format!("its file cannot be used: {e}"),
            "see the message",
        ),
    }
}

fn at_work(node: &Node) -> Check {
    let pid = node.scheduler.load(Ordering::Acquire);
    match node.silent_us() {
        None => Check::fine(SCHEDULER, "none: no two slices share a card"),
        Some(silent) if silent > SILENT_US => Check::weak(
            SCHEDULER,
            &format!(
                "process {pid} has not answered for {} s",
                silent / 1_000_000
            ),
            &format!(
                "what it had stopped goes on, and no new context is made; `kill -9 {pid}`, and another takes over"
            ),
        ),
        Some(_) => {
            let sensor = node.sensor_text();
            Check::fine(SCHEDULER, &format!("process {pid}, sensor {sensor}"))
        }
    }
}
