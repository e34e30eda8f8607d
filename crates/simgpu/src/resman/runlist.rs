//! What the engines run, and in which order: a runlist of groups, each with its slice, on a clock of its own.
//!
//! One thread an engine. The engine stays on a group until its slice is over or its queues are empty, then takes the
//! next group that has work; taking another group costs a switch: the context that was there is saved, the other restored.
//! Where no other has work a context stays on the engine, working or not. Detached channels stop at once, also inside a
//! kernel, and go on where they were; a group that has not asked for instruction-level preemption first ends its kernel.
//!
//! The engine's clock advances by what work costs on the modelled hardware, never faster than the wall's: where the
//! machine is too slow, the clock waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::channels::Preemption;
use super::exec::{Plan, Touch};
use super::timeline::Switch;
use super::{Rm, Shared, exec};
use crate::usage::{GroupTime, Usage};
use crate::work::{CHUNK, Kernel, Op, Work, WorkResult, WorkStatus};

/// Taking another group costs 0.27 ms, 0.08 of them between the end of the one and the start of the other in the
/// timeline (measured on an H200, driver 580.159): the context that leaves is there until it is saved.
const SAVE_NS: u64 = 188_000;
/// The rest of it.
const RESTORE_NS: u64 = 82_000;
/// A launch on the device, in the model.
const LAUNCH_NS: u64 = 2_000;
/// Device memory moves this many bytes a nanosecond, in the model.
const MEMORY_BYTES_PER_NS: u64 = 4_000;
/// The host link moves this many bytes a nanosecond, in the model.
const LINK_BYTES_PER_NS: u64 = 50;
/// Pieces of time shorter than this are not slept: they are waited for together.
const SLEEP_FLOOR: Duration = Duration::from_micros(200);
/// So far behind the wall's a clock may be and still catch up.
const LAG: Duration = Duration::from_millis(5);
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
    /// Whether there is nothing to do: the clock goes with the wall's.
    idle: bool,
    /// The group whose context is loaded, and the channel that it was loaded for.
    loaded: Option<(u64, u64)>,
    /// The group that was loaded last: the next one's turn is after it.
    last_group: u64,
    /// Where the slice of the loaded group begins and ends.
    slice_start_ns: u64,
    slice_end_ns: u64,
    /// The channel that ran last, so that channels of a group take turns.
    last_channel: u64,
    /// The group whose work the clock is being advanced for, its process, and from when on.
    running: Option<(u64, u32, u64)>,
}

impl Engine {
    /// How far the clock is ahead of the wall. A clock that is behind makes up for it, as threads wake up late; one that
    /// is far behind is set to go on from now.
    fn ahead(&mut self, now: Instant) -> Duration {
        let (then, at) = *self.anchor.get_or_insert((now, self.clock_ns));
        let due = then + Duration::from_nanos(self.clock_ns.saturating_sub(at));
        if due + LAG < now {
            self.anchor = Some((now, self.clock_ns));
        }
        due.saturating_duration_since(now)
    }

    /// Time in which there was nothing to do passes on the clock as on the wall.
    fn idle_until(&mut self, now: Instant) {
        let (then, at) = *self.anchor.get_or_insert((now, self.clock_ns));
        let wall = at + nanoseconds(now.saturating_duration_since(then));
        // A clock that is ahead of the wall stays so: short pieces are not slept for one by one, and must not be free.
        if wall > self.clock_ns {
            self.clock_ns = wall;
            self.anchor = Some((now, wall));
        }
    }

    /// What the clock shows to somebody outside: it is advanced by a whole piece of work before that is waited for.
    pub fn now(&self, now: Instant) -> u64 {
        let Some((then, at)) = self.anchor else {
            return self.clock_ns;
        };
        let wall = at + nanoseconds(now.saturating_duration_since(then));
        if self.idle {
            wall
        } else {
            wall.min(self.clock_ns)
        }
    }

    /// The group that runs, its process, and for how long it has since that was last added up.
    fn running(&self, now: Instant) -> Option<(u64, u32, u64)> {
        let (group, pid, from) = self.running?;
        Some((group, pid, self.now(now).saturating_sub(from)))
    }

    /// The channel whose context is loaded.
    pub fn resident(&self) -> Option<u64> {
        self.loaded.map(|(_, channel)| channel)
    }

    /// A group has another slice: it holds for the one that is running.
    pub fn slice_changed(&mut self, group: u64, us: u64) {
        if self.loaded.is_some_and(|(loaded, _)| loaded == group) {
            let slice = us.saturating_mul(1000);
            self.slice_end_ns = self.slice_start_ns.saturating_add(slice);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
        self.leave(gpu, copies, runnable.is_empty());
        let engine = &self.devices[gpu].engines[usize::from(copies)];
        let mine = |group: u64| runnable.iter().filter(move |entry| entry.0 == group);
        let loaded = engine.loaded.map(|(group, _)| group);
        let stays = loaded.filter(|&group| mine(group).next().is_some());
        let next = match stays {
            Some(group) if engine.clock_ns < engine.slice_end_ns => group,
            _ => {
                let after = runnable.iter().find(|entry| entry.0 > engine.last_group);
                after.or(runnable.first())?.0
            }
        };
        let after = mine(next).find(|entry| entry.1 > engine.last_channel);
        let turn = after.or(mine(next).next())?.1;
        // A kernel that was cut short goes on before another channel's starts.
        let begun = |id: &u64| {
            let front = self.channels.get(id).and_then(|ch| ch.queue.front());
            front.is_some_and(|item| item.started_ns.is_some())
        };
        let channel = mine(next).map(|entry| entry.1).find(begun).unwrap_or(turn);
        if loaded != Some(next) {
            self.switch(gpu, copies, Some((next, channel)));
        }
        let slice = self.groups.get(&next).map_or(0, |group| group.slice_us);
        let engine = &mut self.devices[gpu].engines[usize::from(copies)];
        if engine.clock_ns >= engine.slice_end_ns {
            engine.slice_start_ns = engine.clock_ns;
            engine.slice_end_ns = engine.clock_ns.saturating_add(slice.saturating_mul(1000));
        }
        engine.last_channel = channel;
        Some(channel)
    }

    /// Takes a context off the engine whose channels are all detached. One that has been freed goes when another comes,
    /// or by itself if none waits.
    fn leave(&mut self, gpu: usize, copies: bool, none_waits: bool) {
        let Some((group, _)) = self.devices[gpu].engines[usize::from(copies)].loaded else {
            return;
        };
        let mut channels = (self.channels.values())
            .filter(|channel| channel.group == group)
            .peekable();
        let leaves = match channels.peek() {
            Some(_) => channels.all(|channel| !channel.attached()),
            None => none_waits,
        };
        if leaves {
            self.switch(gpu, copies, None);
        }
    }

    /// Saves the context that is loaded, and loads another.
    fn switch(&mut self, gpu: usize, copies: bool, next: Option<(u64, u64)>) {
        let engine = &mut self.devices[gpu].engines[usize::from(copies)];
        let mut step = |channel: u64, ns: u64| {
            let from = engine.clock_ns;
            engine.clock_ns += ns;
            (channel, from, engine.clock_ns)
        };
        let left = engine.loaded.map(|(_, channel)| step(channel, SAVE_NS));
        let came = next.map(|(_, channel)| step(channel, RESTORE_NS));
        engine.loaded = next;
        engine.slice_end_ns = 0;
        if let Some((group, _)) = next {
            engine.last_group = group;
        }
        if !copies {
            self.log_switch(gpu, Switch { left, came });
        }
    }

    /// Wakes the engine of a channel that has work, if it has none.
    fn new_work(&self, shared: &Shared, channel: u64) {
        let group =
            (self.channels.get(&channel)).and_then(|channel| self.groups.get(&channel.group));
        if let Some(group) = group {
            let engine = usize::from(group.is_copy());
            if self.devices[group.gpu].engines[engine].idle {
                shared.engines[group.gpu][engine].notify_one();
            }
        }
    }

    /// Until when the front item of a channel may run that has run since `start`; `None`: no longer.
    fn may_run_until(&self, gpu: usize, engine: usize, id: u64, start: u64) -> Option<u64> {
        let channel = self
            .channels
            .get(&id)
            .filter(|channel| channel.fault.is_none())?;
        let whole = start.saturating_add(channel.queue.front()?.remaining_ns);
        let group = self.groups.get(&channel.group);
        if group.is_none_or(|group| group.preemption != Preemption::Instruction) {
            return Some(whole);
        }
        let slice_end = self.devices[gpu].engines[engine].slice_end_ns;
        let runs = channel.attached() || channel.lingers;
        runs.then_some(whole.min(slice_end).max(start))
    }
}

impl Rm {
    /// Who has had the engines of a device; `None`: there is no such device.
    pub fn usage(&self, gpu: usize) -> Option<Usage> {
        let device = self.devices.get(gpu)?;
        let now = Instant::now();
        let mut groups: Vec<GroupTime> = (self.groups.iter())
            .filter(|(_, group)| group.gpu == gpu)
            .map(|(&id, group)| {
                let mine = self.channels.values().filter(|channel| channel.group == id);
                let running = device.engines[usize::from(group.is_copy())].running(now);
                let running = running.filter(|&(of, ..)| of == id);
                let running = running.map_or(0, |(_, _, ns)| ns);
                GroupTime {
                    pid: group.pid,
                    client: group.client,
                    context: mine.map(|channel| channel.number).min().unwrap_or(u32::MAX),
                    copies: group.is_copy(),
                    ran_ns: group.ran_ns + running,
                }
            })
            .collect();
        let mut past = device.past.clone();
        for (engine, on) in device.engines.iter().enumerate() {
            // It was freed, and its engine has not noticed yet.
            if let Some((_, pid, ns)) =
                (on.running(now)).filter(|(group, ..)| !self.groups.contains_key(group))
            {
                past.entry(pid).or_default()[engine] += ns;
            }
        }
        for (pid, past) in past {
            groups.extend([false, true].map(|copies| GroupTime {
                pid,
                client: 0,
                context: u32::MAX,
                copies,
                ran_ns: past[usize::from(copies)],
            }));
        }
        groups.sort_unstable_by_key(|group| (group.pid, group.client, group.context));
        Some(Usage {
            clock_ns: device.engines.each_ref().map(|engine| engine.now(now)),
            epoch_ns: self.gpu_time(0),
            groups,
        })
    }
}

/// Runs one engine of one device until `stop`.
pub fn run(shared: &Shared, gpu: usize, copies: bool, stop: &AtomicBool) {
    let engine = usize::from(copies);
    let mut rm = shared.lock();
    rm.devices[gpu].engines[engine].idle_until(Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let Some(id) = rm.pick(gpu, copies) else {
            rm.devices[gpu].engines[engine].idle = true;
            rm = shared.engines[gpu][engine]
                .wait(rm)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            rm.devices[gpu].engines[engine].idle_until(Instant::now());
            rm.devices[gpu].engines[engine].idle = false;
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
    let start = rm.devices[gpu].engines[engine].clock_ns;
    let Some(mut until) = rm.may_run_until(gpu, engine, id, start) else {
        return rm;
    };
    let Some(channel) = rm.channels.get_mut(&id) else {
        return rm;
    };
    let group = channel.group;
    let Some(item) = channel.queue.front_mut() else {
        return rm;
    };
    item.started_ns.get_or_insert(start);
    let ticket = item.ticket;
    let Some(pid) = rm.groups.get(&group).map(|group| group.pid) else {
        return rm;
    };
    rm.devices[gpu].engines[engine].running = Some((group, pid, start));
    loop {
        let on = &mut rm.devices[gpu].engines[engine];
        on.clock_ns = until;
        let ahead = on.ahead(Instant::now());
        if ahead < SLEEP_FLOOR || stop.load(Ordering::Relaxed) {
            break;
        }
        rm = shared.engines[gpu][engine]
            .wait_timeout(rm, ahead)
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .0;
        // The part that has not passed on the wall has not been used.
        let passed = rm.devices[gpu].engines[engine].now(Instant::now());
        let allowed = rm.may_run_until(gpu, engine, id, start);
        until = until.min(allowed.unwrap_or(start).max(passed));
    }
    let on = &mut rm.devices[gpu].engines[engine];
    on.running = None;
    let spent = until - start;
    match rm.groups.get_mut(&group) {
        Some(group) => group.ran_ns += spent,
        // It was freed while it ran.
        None => rm.devices[gpu].past.entry(pid).or_default()[engine] += spent,
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
            Ok(plan) if plan.is_empty() => {}
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
        channel.changed.notify_all();
    }
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
    let (ticket, changed) = loop {
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
            break (ticket, Arc::clone(&channel.changed));
        }
        let changed = Arc::clone(&channel.changed);
        rm = changed
            .wait_timeout(rm, LOOK)
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .0;
        if !still_there() {
            return None;
        }
    };
    rm.new_work(shared, id);
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
        rm = changed
            .wait_timeout(rm, LOOK)
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .0;
        if !still_there() {
            return None;
        }
    }
}
