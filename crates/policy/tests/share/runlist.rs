//! A device in virtual time: it takes turns over its attached groups that have work, lets each run for its slice and
//! takes it off at the end of it, also inside a kernel. Costs as measured on an H200: 0.27 ms for a switch (0.08 ms of
//! it between END and START), 0.65 ms for a detach of up to 64 groups, 0.33 ms for an attach, 0.3 ms for a slice.

use std::collections::BTreeMap;

use policy::share::{Config, GroupId, Kind, Measured, Plan, Planner, Run, TenantId, Terms};

/// Between END and START.
const GAP: u64 = 80;
/// The rest of a switch, while the context that comes is on the device already.
const SETUP: u64 = 190;
const DETACH: u64 = 650;
const ATTACH: u64 = 330;
const SLICE: u64 = 300;

/// What a group has to do: bursts of work with pauses in between.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub burst: u64,
    pub pause: u64,
}

/// Never stops: a kernel loop, a graph that is replayed, kernels of 200 ms.
pub const ALWAYS: Work = Work {
    burst: u64::MAX,
    pause: 0,
};

/// Nothing to do.
pub const NEVER: Work = Work {
    burst: 0,
    pause: u64::MAX,
};

#[derive(Debug)]
struct Group {
    id: GroupId,
    tenant: usize,
    ctx: u16,
    slice: u64,
    attached: bool,
    work: Work,
    left: u64,
    ready: u64,
}

/// What a tenant had, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Had {
    /// Time for its kernels.
    pub useful: u64,
    /// That and its switches.
    pub charged: u64,
    /// By weight, of the time in which it had work, or of all time: see `World::claims_all`.
    pub entitled: u64,
    /// The least that charged - entitled has been, and the most above that since.
    low: i64,
    pub gain: i64,
}

#[derive(Clone, Copy, Debug)]
enum Lever {
    Detach(GroupId),
    Slice(GroupId, u64),
    Attach(GroupId),
}

/// The device, its tenants and the scheduler that drives the planner.
pub struct World {
    pub planner: Planner,
    pub now: u64,
    /// What the scheduler's tick is; a plan may ask for an earlier one.
    pub tick: u64,
    pub weights: Vec<u64>,
    pub had: Vec<Had>,
    /// This tenant is entitled to its part of all time, also of that in which it had no work.
    pub claims_all: Option<usize>,
    /// Lever calls so far.
    pub calls: u64,
    /// Plans that told everything.
    pub reasserted: u64,
    /// Without a planner: slices stay as they are born.
    pub managed: bool,
    /// Nothing is seen but each tenant's time.
    pub sampled: bool,
    /// Slices of the first tenant's groups last so many hundredths longer than they are set to.
    pub longer: u64,
    /// Attaching takes so much longer.
    pub slow: u64,
    /// Of each this many records the sensor loses one.
    pub loses: Option<u64>,
    /// The most slices in one plan.
    pub most_slices: usize,
    /// When each group was last on the device.
    pub ran: BTreeMap<GroupId, u64>,
    /// For how long each was.
    pub used: BTreeMap<GroupId, u64>,
    /// From when it came until it was done, of each burst of each tenant.
    pub took: Vec<Vec<u64>>,
    /// The first tenant's pauses are longer by up to so much, never twice the same.
    pub jitter: u64,
    groups: Vec<Group>,
    next_id: u64,
    next_ctx: Vec<u16>,
    /// The group on the device, since when, and since when its slice runs.
    on: Option<(usize, u64, u64)>,
    /// Place in the groups after which the next turn is sought.
    turn: usize,
    /// Reported up to here, and whether it was reported already.
    reported: (u64, bool),
    records: Vec<(TenantId, Run)>,
    lost: u64,
    recorded: u64,
    levers: Vec<(u64, Lever)>,
    lever_free: u64,
    next_tick: u64,
}

pub fn tenant(place: usize) -> TenantId {
    TenantId(place as u64 + 1)
}

impl World {
    pub fn new(weights: &[u32]) -> World {
        World::with(weights, Config::default(), 20_000)
    }

    pub fn with(weights: &[u32], config: Config, tick: u64) -> World {
        let mut planner = Planner::new(config);
        for (place, weight) in weights.iter().enumerate() {
            let terms = Terms {
                weight: *weight,
                cap: None,
                latency: None,
            };
            planner.admit(tenant(place), terms);
        }
        World {
            planner,
            now: 0,
            tick,
            weights: weights.iter().map(|weight| u64::from(*weight)).collect(),
            had: vec![Had::default(); weights.len()],
            claims_all: None,
            calls: 0,
            reasserted: 0,
            managed: true,
            sampled: false,
            longer: 0,
            loses: None,
            slow: 0,
            most_slices: 0,
            ran: BTreeMap::new(),
            used: BTreeMap::new(),
            took: vec![Vec::new(); weights.len()],
            jitter: 0,
            groups: Vec::new(),
            next_id: 0,
            next_ctx: vec![0; weights.len()],
            on: None,
            turn: 0,
            reported: (0, false),
            records: Vec::new(),
            lost: 0,
            recorded: 0,
            levers: Vec::new(),
            lever_free: 0,
            next_tick: 0,
        }
    }

    /// A process of the tenant makes a context.
    pub fn fork(&mut self, place: usize, work: Work) -> GroupId {
        let id = GroupId(self.next_id);
        self.next_id += 1;
        let birth = self
            .planner
            .birth(tenant(place), id, Kind::Compute, self.now)
            .expect("the tenant is known");
        let ctx = self.next_ctx[place];
        self.next_ctx[place] = ctx.wrapping_add(1);
        self.groups.push(Group {
            id,
            tenant: place,
            ctx,
            slice: if self.managed { birth.slice_us } else { 2_048 },
            attached: !self.managed || birth.attached,
            work,
            left: work.burst,
            ready: if work.burst > 0 { self.now } else { u64::MAX },
        });
        id
    }

    /// The process ends.
    pub fn exit(&mut self, id: GroupId) {
        let Some(index) = self.groups.iter().position(|group| group.id == id) else {
            return;
        };
        if self.on.is_some_and(|(on, _, _)| on == index) {
            self.take_off();
        }
        self.groups.remove(index);
        if let Some((on, _, _)) = &mut self.on
            && *on > index
        {
            *on -= 1;
        }
        if self.turn > index {
            self.turn -= 1;
        }
        self.planner.gone(id);
    }

    /// The process does something else from now on.
    pub fn set(&mut self, id: GroupId, work: Work) {
        let now = self.now;
        let on = self.on.map(|(on, _, _)| on);
        let Some(index) = self.groups.iter().position(|group| group.id == id) else {
            return;
        };
        let group = &mut self.groups[index];
        group.work = work;
        group.left = work.burst;
        group.ready = if work.burst > 0 { now } else { u64::MAX };
        if on == Some(index) && work.burst == 0 {
            self.take_off();
        }
    }

    pub fn slice_of(&self, id: GroupId) -> u64 {
        let group = self.groups.iter().find(|group| group.id == id);
        group.expect("the group lives").slice
    }

    pub fn attached(&self, id: GroupId) -> bool {
        let group = self.groups.iter().find(|group| group.id == id);
        group.expect("the group lives").attached
    }

    /// Forgets what everyone had: measures from here.
    pub fn measure(&mut self) {
        self.had.iter_mut().for_each(|had| *had = Had::default());
        self.took.iter_mut().for_each(Vec::clear);
        self.calls = 0;
        self.reasserted = 0;
    }

    /// A tenant's part of what all had, in percent.
    pub fn percent(&self, place: usize) -> f64 {
        let all: u64 = self.had.iter().map(|had| had.useful).sum();
        self.had[place].useful as f64 * 100.0 / all as f64
    }

    /// This tenant is to be served soon from now on.
    pub fn hurry(&mut self, place: usize, latency: Option<u32>) {
        let terms = Terms {
            weight: self.weights[place] as u32,
            cap: None,
            latency,
        };
        self.planner.admit(tenant(place), terms);
    }

    /// How long a tenant's bursts took: of 100, how many were done in this time or less; 100 for the longest.
    pub fn took(&self, place: usize, percent: usize) -> u64 {
        let mut all = self.took[place].clone();
        all.sort_unstable();
        all[(all.len() * percent / 100).min(all.len() - 1)]
    }

    /// Useful time of all in percent of time.
    pub fn aggregate(&self, over: u64) -> f64 {
        let all: u64 = self.had.iter().map(|had| had.useful).sum();
        all as f64 * 100.0 / over as f64
    }

    /// Lets time go by.
    pub fn run(&mut self, us: u64) {
        let until = self.now + us;
        while self.now < until {
            self.due();
            self.choose();
            if self.now >= until {
                break;
            }
            let next = self.next_event().min(until);
            self.pass(next.max(self.now + 1).min(until));
        }
    }

    /// What is due now: levers, then the scheduler.
    fn due(&mut self) {
        while let Some((at, lever)) = self.levers.first().copied() {
            if at > self.now {
                break;
            }
            self.levers.remove(0);
            self.pull(lever);
        }
        if self.managed && self.now >= self.next_tick {
            self.schedule();
        }
    }

    fn pull(&mut self, lever: Lever) {
        let (Lever::Detach(id) | Lever::Slice(id, _) | Lever::Attach(id)) = lever;
        let Some(index) = self.groups.iter().position(|group| group.id == id) else {
            return;
        };
        match lever {
            Lever::Slice(_, slice) => self.groups[index].slice = slice,
            Lever::Attach(_) => self.groups[index].attached = true,
            Lever::Detach(_) => {
                self.groups[index].attached = false;
                if self.on.is_some_and(|(on, _, _)| on == index) {
                    self.take_off();
                }
            }
        }
    }

    fn schedule(&mut self) {
        if let Some((on, since, _)) = self.on {
            self.report(on, since, true);
        }
        let mut measured = Measured {
            lost_us: std::mem::take(&mut self.lost),
            ..Measured::default()
        };
        let records = std::mem::take(&mut self.records);
        if self.sampled {
            let mut by_tenant = BTreeMap::new();
            for (id, run) in records {
                *by_tenant.entry(id).or_insert(0) += run.end_us - run.start_us;
            }
            measured.sampled = by_tenant.into_iter().collect();
        } else {
            measured.runs = records;
        }
        let plan = self.planner.tick(self.now, &measured);
        self.apply(&plan);
        let usual = self.now + self.tick;
        let wake = plan.wake_us.unwrap_or(usual);
        self.next_tick = wake.clamp(self.now + 500, usual);
    }

    pub fn apply(&mut self, plan: &Plan) {
        self.reasserted += u64::from(plan.reasserted);
        self.most_slices = self.most_slices.max(plan.slices.len());
        let mut at = self.lever_free.max(self.now);
        for batch in plan.detach.chunks(64) {
            at += DETACH;
            self.calls += 1;
            let pulls = batch.iter().map(|id| (at, Lever::Detach(*id)));
            self.levers.extend(pulls);
        }
        for batch in plan.attach.chunks(64) {
            at += ATTACH + self.slow;
            self.calls += 1;
            let pulls = batch.iter().map(|id| (at, Lever::Attach(*id)));
            self.levers.extend(pulls);
        }
        for (id, slice) in &plan.slices {
            at += SLICE;
            self.calls += 1;
            self.levers.push((at, Lever::Slice(*id, *slice)));
        }
        self.lever_free = at;
    }

    fn lasts(&self, group: &Group) -> u64 {
        let longer = if group.tenant == 0 { self.longer } else { 0 };
        SETUP + group.slice * (100 + longer) / 100
    }

    fn runnable(&self, group: &Group) -> bool {
        group.attached && group.ready <= self.now
    }

    /// The next in turn that is not on the device.
    fn next_in_turn(&self) -> Option<usize> {
        let on = self.on.map(|(on, _, _)| on);
        let places = (0..self.groups.len()).map(|step| (self.turn + step) % self.groups.len());
        places
            .filter(|index| on != Some(*index))
            .find(|index| self.runnable(&self.groups[*index]))
    }

    fn choose(&mut self) {
        if let Some((on, _, slice_from)) = self.on {
            let group = &self.groups[on];
            if group.ready > self.now {
                self.take_off();
            } else if self.now >= slice_from + self.lasts(group) {
                if self.next_in_turn().is_some() {
                    self.take_off();
                } else if let Some((_, _, from)) = &mut self.on {
                    *from = self.now - SETUP;
                }
            }
        }
        if self.on.is_none()
            && let Some(next) = self.next_in_turn()
        {
            // The switch to it: nobody runs.
            self.had[self.groups[next].tenant].charged += GAP;
            self.divide(GAP);
            self.now += GAP;
            self.on = Some((next, self.now, self.now));
            self.turn = next + 1;
            self.reported = (self.now, false);
        }
    }

    fn take_off(&mut self) {
        if let Some((on, since, _)) = self.on.take() {
            self.report(on, since, false);
        }
    }

    /// A record of what is on the device.
    fn report(&mut self, on: usize, since: u64, open: bool) {
        let (from, continued) = self.reported;
        let from = if continued { from } else { since };
        let group = &self.groups[on];
        let run = Run {
            ctx: group.ctx,
            start_us: from,
            end_us: self.now,
            open,
            continued,
        };
        self.reported = (self.now, true);
        self.recorded += 1;
        if self
            .loses
            .is_some_and(|nth| self.recorded.is_multiple_of(nth))
        {
            self.lost += run.end_us - run.start_us + GAP;
        } else {
            self.records.push((tenant(group.tenant), run));
        }
    }

    fn next_event(&self) -> u64 {
        let mut next = u64::MAX;
        if self.managed {
            next = next.min(self.next_tick);
        }
        if let Some((at, _)) = self.levers.first() {
            next = next.min(*at);
        }
        if let Some((on, since, slice_from)) = self.on {
            let group = &self.groups[on];
            let begun = self.now.max(since + SETUP);
            next = next.min(begun.saturating_add(group.left));
            let slice_end = slice_from + self.lasts(group);
            next = next.min(slice_end.max(self.now + 1));
        }
        let arrivals = self
            .groups
            .iter()
            .filter(|group| group.attached && group.ready > self.now);
        next.min(arrivals.map(|group| group.ready).min().unwrap_or(u64::MAX))
    }

    /// Time goes by until `to`, with whoever is on the device.
    fn pass(&mut self, to: u64) {
        let us = to - self.now;
        if let Some((on, since, _)) = self.on {
            let worked = to.saturating_sub(self.now.max(since + SETUP));
            let group = &mut self.groups[on];
            group.left = group.left.saturating_sub(worked);
            if group.left == 0 {
                let took = &mut self.took[group.tenant];
                took.push(to - group.ready);
                let jitter = if group.tenant == 0 { self.jitter } else { 0 };
                let later = took.len() as u64 * 7_919 % (jitter + 1);
                group.left = group.work.burst;
                group.ready = to.saturating_add(group.work.pause + later);
            } else if group.work.burst == u64::MAX {
                group.left = u64::MAX;
            }
            self.ran.insert(group.id, to);
            *self.used.entry(group.id).or_insert(0) += us;
            let had = &mut self.had[group.tenant];
            had.useful += worked;
            had.charged += us;
        }
        self.divide(us);
        self.now = to;
    }

    /// Time is divided by weight among all that have work, whether they may run or not, and by that all that one had beyond it.
    fn divide(&mut self, us: u64) {
        let mut wants = vec![false; self.weights.len()];
        for group in &self.groups {
            wants[group.tenant] |= group.ready <= self.now;
        }
        if let Some(place) = self.claims_all {
            wants[place] = true;
        }
        let weights: u64 = (0..wants.len())
            .filter(|place| wants[*place])
            .map(|place| self.weights[place])
            .sum();
        for (place, had) in self.had.iter_mut().enumerate() {
            if wants[place] {
                had.entitled += us * self.weights[place] / weights;
            }
            let ahead = had.charged as i64 - had.entitled as i64;
            had.low = had.low.min(ahead);
            had.gain = had.gain.max(ahead - had.low);
        }
    }
}
