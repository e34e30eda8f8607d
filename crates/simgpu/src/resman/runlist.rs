//! What the engines run, and in which order: a runlist of groups, each with its slice, on a clock of its own.
//!
//! One thread an engine. The engine stays on a group until its slice is over or its queues are empty, then takes the
//! next group that has work; taking another group costs a switch. Detached channels stop at once, also inside a kernel,
//! and go on where they were; a group that has not asked for instruction-level preemption first ends its kernel.
//!
//! The engine's clock advances by what work costs on the modelled hardware, never faster than the wall's: where the
//! machine is too slow, the clock waits for it.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::channels::{Channel, Preemption};
use super::exec::{Plan, Touch};
use super::{Rm, Shared, exec};
use crate::work::{CHUNK, Kernel, Op, Work, WorkResult, WorkStatus};

/// Taking another group costs this (measured on an H200, driver 580.159).
const SWITCH_NS: u64 = 270_000;
/// A launch on the device, in the model.
const LAUNCH_NS: u64 = 2_000;
/// Device memory moves this many bytes a nanosecond, in the model.
const MEMORY_BYTES_PER_NS: u64 = 4_000;
/// The host link moves this many bytes a nanosecond, in the model.
const LINK_BYTES_PER_NS: u64 = 50;
/// Pieces of time shorter than this are not slept: they are waited for together.
const SLEEP_FLOOR: Duration = Duration::from_micros(200);
/// Most work that one channel holds; beyond it submitters wait.
const QUEUE_LIMIT: usize = 1024;
/// How often a submitter that waits looks whether its caller is still there.
const LOOK: Duration = Duration::from_millis(50);

/// A piece of work in a queue.
pub struct Item {
    pub ticket: u64,
    op: Op,
    /// Who submitted it, for addresses of its own memory.
    pid: u32,
    /// Whether somebody waits for the result.
    pub wanted: bool,
    cost_ns: u64,
    remaining_ns: u64,
    started_ns: Option<u64>,
}

/// An engine of a device: 0 computes, 1 copies.
#[derive(Default)]
pub struct Engine {
    clock_ns: u64,
    /// When the clock showed `anchor_ns`.
    anchor: Option<(Instant, u64)>,
    /// The group whose context is loaded.
    loaded: Option<u64>,
    /// Where the slice of the loaded group ends.
    slice_end_ns: u64,
    /// The channel that ran last, so that channels of a group take turns.
    last_channel: u64,
}

impl Engine {
    /// How far the clock is ahead of the wall. A clock that is behind is set to go on from now.
    fn ahead(&mut self, now: Instant) -> Duration {
        let (then, at) = *self.anchor.get_or_insert((now, self.clock_ns));
        let due = then + Duration::from_nanos(self.clock_ns.saturating_sub(at));
        if due < now {
            self.anchor = Some((now, self.clock_ns));
        }
        due.saturating_duration_since(now)
    }

    /// Time in which there was nothing to do passes on the clock as on the wall.
    fn idle_until(&mut self, now: Instant) {
        let (then, at) = *self.anchor.get_or_insert((now, self.clock_ns));
        let wall = at + u64::try_from(now.saturating_duration_since(then).as_nanos()).unwrap_or(0);
        // A clock that is ahead of the wall stays so: short pieces are not slept for one by one, and must not be free.
        if wall > self.clock_ns {
            self.clock_ns = wall;
            self.anchor = Some((now, wall));
        }
    }
}

/// What the work costs, ns; `None` if it makes no sense.
fn cost(op: &Op) -> Option<u64> {
    let memory = |bytes: u64| bytes / MEMORY_BYTES_PER_NS;
    let spans = |address: u64, count: u64, size: u64| {
        let length = count.checked_mul(size)?;
        address.checked_add(length).map(|_| length)
    };
    Some(match op {
        Op::Write { dst, bytes } => {
            spans(*dst, bytes.len() as u64, 1)?;
            LAUNCH_NS + bytes.len() as u64 / LINK_BYTES_PER_NS
        }
        Op::Read { src, len } => {
            spans(*src, *len, 1)?;
            if *len > CHUNK as u64 {
                return None;
            }
            LAUNCH_NS + len / LINK_BYTES_PER_NS
        }
        Op::Copy { dst, src, len } => {
            spans(*src, *len, 1)?;
            LAUNCH_NS + memory(2 * spans(*dst, *len, 1)?)
        }
        Op::Fill {
            dst, width, count, ..
        } => {
            if !matches!(width, 1 | 2 | 4) || dst % u64::from(*width) != 0 {
                return None;
            }
            LAUNCH_NS + memory(spans(*dst, *count, u64::from(*width))?)
        }
        Op::Launch(Kernel::Spin { ns }) => LAUNCH_NS.saturating_add(*ns),
        Op::Launch(Kernel::Fill { p, n, .. }) => {
            aligned(&[*p], 4)?;
            LAUNCH_NS + memory(spans(*p, *n, 4)?)
        }
        Op::Launch(Kernel::Saxpy { x, y, n, .. }) => {
            aligned(&[*x, *y], 4)?;
            spans(*x, *n, 4)?;
            LAUNCH_NS + memory(3 * spans(*y, *n, 4)?)
        }
        Op::Launch(Kernel::Sum { p, n, out }) => {
            aligned(&[*p], 4)?;
            aligned(&[*out], 8)?;
            spans(*out, 1, 8)?;
            LAUNCH_NS + memory(spans(*p, *n, 4)?)
        }
        Op::Wait => 0,
    })
}

fn aligned(addresses: &[u64], to: u64) -> Option<()> {
    addresses
        .iter()
        .all(|address| address % to == 0)
        .then_some(())
}

impl Rm {
    /// Channels of an engine that could run now, by group.
    fn runnable(&self, gpu: usize, copies: bool) -> Vec<(u64, u64)> {
        let mut found: Vec<(u64, u64)> = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.attached() && !channel.busy && !channel.queue.is_empty())
            .filter_map(|(&id, channel)| {
                let group = self.groups.get(&channel.group)?;
                let here = group.gpu == gpu && group.is_copy() == copies;
                (here && (group.scheduled || channel.scheduled)).then_some((channel.group, id))
            })
            .collect();
        found.sort_unstable();
        found
    }

    /// The channel to run next: the loaded group's while its slice lasts or nobody else waits, else the next group's.
    fn pick(&mut self, gpu: usize, copies: bool) -> Option<u64> {
        let runnable = self.runnable(gpu, copies);
        let engine = &mut self.devices[gpu].engines[usize::from(copies)];
        let mine = |group: u64| runnable.iter().filter(move |entry| entry.0 == group);
        let loaded = engine.loaded.filter(|&group| mine(group).next().is_some());
        let next = match loaded {
            Some(group) if engine.clock_ns < engine.slice_end_ns => group,
            _ => {
                let after = engine.loaded.unwrap_or(0);
                runnable
                    .iter()
                    .find(|entry| entry.0 > after)
                    .or(runnable.first())?
                    .0
            }
        };
        if engine.loaded != Some(next) {
            if engine.loaded.is_some() {
                engine.clock_ns += SWITCH_NS;
            }
            engine.loaded = Some(next);
            engine.slice_end_ns = 0;
        }
        if engine.clock_ns >= engine.slice_end_ns {
            let slice = self
                .groups
                .get(&next)
                .map_or(0, |group| group.slice_us.saturating_mul(1000));
            engine.slice_end_ns = engine.clock_ns.saturating_add(slice);
        }
        let last = engine.last_channel;
        let channel = mine(next)
            .find(|entry| entry.1 > last)
            .or(mine(next).next())?
            .1;
        // A kernel that was cut short goes on before another channel's starts.
        let begun = |id: u64| {
            self.channels
                .get(&id)
                .and_then(|ch| ch.queue.front())
                .is_some_and(|i| i.started_ns.is_some())
        };
        let channel = mine(next)
            .map(|entry| entry.1)
            .find(|&id| begun(id))
            .unwrap_or(channel);
        engine.last_channel = channel;
        Some(channel)
    }
}

/// Runs one engine of one device until `stop`.
pub fn run(shared: &Shared, gpu: usize, copies: bool, stop: &AtomicBool) {
    let engine = usize::from(copies);
    let mut rm = shared.lock();
    while !stop.load(Ordering::Relaxed) {
        let Some(id) = rm.pick(gpu, copies) else {
            rm = shared
                .changed
                .wait(rm)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            rm.devices[gpu].engines[engine].idle_until(Instant::now());
            continue;
        };
        rm = spend(shared, rm, gpu, engine, id, stop);
        let finished = |item: &Item| item.remaining_ns == 0 && item.started_ns.is_some();
        let done = rm
            .channels
            .get_mut(&id)
            .filter(|channel| channel.queue.front().is_some_and(finished));
        let Some(channel) = done else { continue };
        let Some(item) = channel.queue.pop_front() else {
            continue;
        };
        channel.busy = true;
        rm = perform(shared, rm, gpu, engine, id, item);
    }
}

/// Lets the front item of a channel use the engine until it is done, its slice is over, or it may not run any more.
fn spend<'a>(
    shared: &'a Shared,
    mut rm: MutexGuard<'a, Rm>,
    gpu: usize,
    engine: usize,
    id: u64,
    stop: &AtomicBool,
) -> MutexGuard<'a, Rm> {
    let clock = rm.devices[gpu].engines[engine].clock_ns;
    let left = rm.devices[gpu].engines[engine]
        .slice_end_ns
        .saturating_sub(clock);
    let group = rm
        .channels
        .get(&id)
        .and_then(|channel| rm.groups.get(&channel.group));
    let stoppable = group.is_some_and(|group| group.preemption == Preemption::Instruction);
    let Some(item) = rm
        .channels
        .get_mut(&id)
        .and_then(|channel| channel.queue.front_mut())
    else {
        return rm;
    };
    item.started_ns.get_or_insert(clock);
    let ticket = item.ticket;
    let piece = if stoppable {
        item.remaining_ns.min(left)
    } else {
        item.remaining_ns
    };
    rm.devices[gpu].engines[engine].clock_ns = clock + piece;
    let mut spent = piece;
    loop {
        let now = Instant::now();
        let ahead = rm.devices[gpu].engines[engine].ahead(now);
        if ahead < SLEEP_FLOOR || stop.load(Ordering::Relaxed) {
            break;
        }
        rm = shared
            .changed
            .wait_timeout(rm, ahead)
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .0;
        let runs =
            |channel: &Channel| (channel.attached() || !stoppable) && channel.fault.is_none();
        if !rm.channels.get(&id).is_some_and(runs) {
            // Cut short: the part that has not passed on the wall has not been used.
            let unused = rm.devices[gpu].engines[engine].ahead(Instant::now());
            let unused = u64::try_from(unused.as_nanos())
                .unwrap_or(u64::MAX)
                .min(piece);
            rm.devices[gpu].engines[engine].clock_ns -= unused;
            spent = piece - unused;
            break;
        }
    }
    if let Some(item) = rm
        .channels
        .get_mut(&id)
        .and_then(|channel| channel.queue.front_mut())
        && item.ticket == ticket
    {
        item.remaining_ns -= spent;
    }
    rm
}

/// Does what an item whose time has been spent does, and records how it ended.
fn perform<'a>(
    shared: &'a Shared,
    mut rm: MutexGuard<'a, Rm>,
    gpu: usize,
    engine: usize,
    id: u64,
    item: Item,
) -> MutexGuard<'a, Rm> {
    let mut data = Vec::new();
    let mut fault = rm.channels.get(&id).and_then(|channel| channel.fault);
    if fault.is_none() {
        let touched: Vec<Touch> = exec::touches(&item.op);
        let plan: Result<Plan, u64> = rm.translate(id, item.pid, &touched);
        match plan {
            Ok(plan) => {
                // Bytes move without the lock; the plan keeps what it reaches alive.
                drop(rm);
                match exec::perform(&item.op, &plan) {
                    Ok(read) => data = read,
                    Err(address) => fault = Some(address),
                }
                rm = shared.lock();
            }
            Err(address) => fault = Some(address),
        }
    }
    let end_ns = rm.devices[gpu].engines[engine].clock_ns;
    if let Some(channel) = rm.channels.get_mut(&id) {
        channel.busy = false;
        if let Some(address) = fault {
            channel.kill(address);
        }
        let status = channel
            .fault
            .map_or(WorkStatus::Done, |address| WorkStatus::Fault { address });
        if item.wanted {
            let start_ns = item.started_ns.unwrap_or(end_ns);
            let result = WorkResult {
                status,
                ticket: item.ticket,
                start_ns,
                end_ns,
                busy_ns: item.cost_ns,
                data,
            };
            channel.outcomes.insert(item.ticket, result);
        }
    }
    shared.changed.notify_all();
    rm
}

/// Queues work and, where it is to be waited for, waits. `None`: the caller has gone, says `still_there`.
pub fn submit(
    shared: &Shared,
    pid: u32,
    work: Work,
    still_there: impl Fn() -> bool,
) -> Option<WorkResult> {
    let Some(cost_ns) = cost(&work.op) else {
        return Some(WorkResult::only(WorkStatus::Invalid));
    };
    let wanted = work.wait || matches!(work.op, Op::Read { .. } | Op::Wait);
    let mut rm = shared.lock();
    let Some(id) = rm.channel_id(work.client, work.channel) else {
        return Some(WorkResult::only(WorkStatus::NoChannel));
    };
    let ticket = loop {
        let Some(channel) = rm.channels.get_mut(&id) else {
            return Some(WorkResult::only(WorkStatus::NoChannel));
        };
        if let Some(address) = channel.fault {
            return Some(WorkResult::only(WorkStatus::Fault { address }));
        }
        if channel.queue.len() < QUEUE_LIMIT {
            channel.submitted += 1;
            let ticket = channel.submitted;
            channel.queue.push_back(Item {
                ticket,
                op: work.op,
                pid,
                wanted,
                cost_ns,
                remaining_ns: cost_ns,
                started_ns: None,
            });
            break ticket;
        }
        rm = shared
            .changed
            .wait_timeout(rm, LOOK)
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .0;
        if !still_there() {
            return None;
        }
    };
    shared.changed.notify_all();
    if !wanted {
        return Some(WorkResult {
            ticket,
            ..WorkResult::only(WorkStatus::Queued)
        });
    }
    loop {
        match rm.channels.get_mut(&id) {
            None => return Some(WorkResult::only(WorkStatus::NoChannel)),
            Some(channel) => {
                if let Some(result) = channel.outcomes.remove(&ticket) {
                    return Some(result);
                }
            }
        }
        rm = shared
            .changed
            .wait_timeout(rm, LOOK)
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .0;
        if !still_there() {
            return None;
        }
    }
}
