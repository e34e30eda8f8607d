//! The planner: from what is there and what was measured to what the lever has to change.

use std::collections::BTreeMap;

use super::account::{self, Tail};
use super::state::{Credits, Group, PPM, Standing, State, Tenant, widest_band_us};
use super::{Birth, Config, GroupId, Kind, Measured, Plan, TenantId, Terms, Walls};

/// Credit is followed as its mean over about so many cycles.
const FOLLOW_CYCLES: u64 = 4;
/// What a tenant is owed is to be made good within so many cycles: slower than it is followed, so that it does not swing.
const MEND_CYCLES: i64 = 16;
/// A group is young for so many cycles: it gets no more than the slice that it was born with.
pub(super) const YOUNG_CYCLES: u64 = 3;

/// Divides one device. See the module.
#[derive(Clone, Debug)]
pub struct Planner {
    pub(super) config: Config,
    /// By id.
    pub(super) tenants: Vec<Tenant>,
    /// By id, which is the order of birth as far as rotation is concerned.
    pub(super) groups: BTreeMap<GroupId, Group>,
    tail: Tail,
    /// Whose turn it is beside a latency tenant.
    pub(super) turn: Option<super::latency::Turn>,
    ticked_us: Option<u64>,
    /// Time of the lever that slices may take now.
    pub(super) lever_us: u64,
    pub(super) told_us: u64,
    pub(super) tell_all: bool,
}

impl Planner {
    /// A planner of a device that nobody uses yet.
    pub fn new(config: Config) -> Planner {
        // Bounds that keep every product below within 64 bits.
        let config = Config {
            cycle_us: config.cycle_us.clamp(4_000, 10_000_000),
            floor_us: config.floor_us.clamp(1, 1_000_000),
            switch_us: config.switch_us.clamp(1, 100_000),
            reassert_us: config.reassert_us.max(1),
            cap_window_us: config.cap_window_us.clamp(1_000, 60_000_000),
            horizon_us: config.horizon_us.min(60_000_000),
        };
        Planner {
            config,
            tenants: Vec::new(),
            groups: BTreeMap::new(),
            tail: Tail::default(),
            turn: None,
            ticked_us: None,
            lever_us: 20_000,
            told_us: 0,
            tell_all: false,
        }
    }

    /// A new tenant, or new terms for one that is known: its credit stays.
    pub fn admit(&mut self, tenant: TenantId, terms: Terms) {
        match self.place(tenant) {
            Ok(place) => self.tenants[place].set_terms(terms, &self.config),
            Err(place) => {
                let new = Tenant::new(tenant, terms, &self.config);
                self.tenants.insert(place, new);
            }
        }
    }

    /// The tenant goes without some rule: see [`Walls`].
    pub fn go_without(&mut self, tenant: TenantId, walls: Walls) {
        if let Ok(place) = self.place(tenant) {
            self.tenants[place].walls = walls;
        }
    }

    /// The tenant itself is over, not only its processes: its credit and groups are forgotten.
    pub fn dismiss(&mut self, tenant: TenantId) {
        if let Ok(place) = self.place(tenant) {
            self.tenants.remove(place);
            self.groups.retain(|_, group| group.tenant != tenant);
        }
    }

    /// A group is about to be made: how it has to be born. It counts from now on. `None` for a tenant that nobody
    /// admitted: refuse the group.
    ///
    /// Its slice is what one more active context of the tenant would get, counting those born just now that have not
    /// run yet. A group of a tenant that is capped, paused, in debt or whose groups take turns is born detached.
    pub fn birth(
        &mut self,
        tenant: TenantId,
        group: GroupId,
        kind: Kind,
        now_us: u64,
    ) -> Option<Birth> {
        let place = self.place(tenant).ok()?;
        let young_from = now_us.saturating_sub(YOUNG_CYCLES * self.config.cycle_us);
        let siblings = self
            .groups
            .values()
            .filter(|group| group.tenant == tenant && group.kind == Kind::Compute);
        let young = siblings.filter(|group| group.born_us >= young_from).count();
        let holder = &self.tenants[place];
        let more = usize::from(kind == Kind::Compute);
        let contexts = (holder.active + young + more).max(1);
        // Whoever has a new group is about to want something.
        let starting = |place: &usize| {
            let id = self.tenants[*place].id;
            let mut own = self.groups.values().filter(|group| group.tenant == id);
            own.any(|group| group.born_us >= young_from)
        };
        let mut rivals = self.wanting(now_us);
        rivals.extend((0..self.tenants.len()).filter(starting));
        rivals.sort_unstable();
        rivals.dedup();
        let birth = Birth {
            slice_us: self
                .slice(holder, self.share_of(place, &rivals), contexts)
                .min(
                    self.bound(place, &self.served_soon(now_us))
                        .unwrap_or(u64::MAX),
                ),
            attached: holder.cap.is_none()
                && (kind == Kind::Copy || !holder.held)
                && !holder.paused
                && !holder.in_debt
                && (kind == Kind::Copy || holder.turns.at_once == 0),
        };
        let new = Group {
            tenant,
            kind,
            born_us: now_us,
            birth_us: birth.slice_us,
            slice_us: birth.slice_us,
            attached: birth.attached,
            dirty: false,
        };
        self.count(&new, true);
        if let Some(before) = self.groups.insert(group, new) {
            self.count(&before, false);
        }
        let holder = &mut self.tenants[place];
        holder.latency.born_us = Some(now_us);
        holder.slices.least_us = holder.slices.least_us.min(birth.slice_us);
        holder.slices.most_us = holder.slices.most_us.max(birth.slice_us);
        Some(birth)
    }

    /// A group is gone. What its tenant is owed or owes stays.
    pub fn gone(&mut self, group: GroupId) {
        let Some(gone) = self.groups.remove(&group) else {
            return;
        };
        self.count(&gone, false);
        let left = self.compute_groups(gone.tenant);
        let Ok(place) = self.place(gone.tenant) else {
            return;
        };
        let tenant = &mut self.tenants[place];
        if !tenant.walls.debt_survives_restart && gone.kind == Kind::Compute {
            tenant.credit_us -= tenant.credit_us / (left as i64 + 1);
        }
        if left == 0 {
            tenant.contexts.clear();
            tenant.claims.clear();
            tenant.presumed = false;
        }
    }

    /// From the next plan on all groups of the tenant are detached.
    pub fn pause(&mut self, tenant: TenantId) {
        if let Ok(place) = self.place(tenant) {
            self.tenants[place].paused = true;
        }
    }

    /// The tenant may run again, as far as debt and cap allow.
    pub fn resume(&mut self, tenant: TenantId) {
        if let Ok(place) = self.place(tenant) {
            self.tenants[place].paused = false;
        }
    }

    /// The tenant cost the others so much time beside its runs: it owes that.
    pub fn charge(&mut self, tenant: TenantId, us: u64) {
        if let Ok(place) = self.place(tenant) {
            let us = i64::try_from(us).unwrap_or(i64::MAX);
            let tenant = &mut self.tenants[place];
            tenant.add_credit(-us, &self.config);
            if let Some(cap) = &mut tenant.cap {
                cap.add(-us);
            }
        }
    }

    /// What the lever was told about this group may not have happened: the next plan says it again.
    pub fn failed(&mut self, group: GroupId) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.dirty = true;
        }
    }

    /// The next plan says everything again.
    pub fn reassert(&mut self) {
        self.tell_all = true;
    }

    /// What to save, so that a debt outlives the scheduler.
    pub fn credits(&self) -> Vec<Credits> {
        let saved = self.tenants.iter().map(|tenant| Credits {
            tenant: tenant.id,
            credit_us: tenant.credit_us,
            cap_credit_us: tenant.cap.as_ref().map_or(0, |cap| cap.credit_us),
        });
        saved.collect()
    }

    /// Takes over what was saved, for the tenants that are admitted. Values out of bounds are taken as the nearest.
    pub fn restore(&mut self, saved: &[Credits]) {
        for credits in saved {
            if let Ok(place) = self.place(credits.tenant) {
                let tenant = &mut self.tenants[place];
                tenant.credit_us = 0;
                tenant.add_credit(credits.credit_us, &self.config);
                // Its share is not known yet: no dead band is wider than this.
                tenant.in_debt = tenant.credit_us < -widest_band_us(&self.config);
                if let Some(cap) = &mut tenant.cap {
                    cap.credit_us = 0;
                    cap.add(credits.cap_credit_us);
                }
            }
        }
    }

    /// What holds where no scheduler is left: everything attached but what is paused, and slices in proportion to weights, or to
    /// caps where those are lower.
    pub fn fallback(&self) -> Plan {
        let everyone: Vec<usize> = (0..self.tenants.len())
            .filter(|place| self.compute_groups(self.tenants[*place].id) > 0)
            .collect();
        let mut plan = Plan {
            reasserted: true,
            ..Plan::default()
        };
        for (id, group) in &self.groups {
            let Ok(place) = self.place(group.tenant) else {
                continue;
            };
            let tenant = &self.tenants[place];
            if tenant.paused {
                plan.detach.push(*id);
                continue;
            }
            let share = self.lasting_share_of(place, &everyone);
            let groups = self.compute_groups(group.tenant).max(1);
            plan.slices.push((*id, self.slice(tenant, share, groups)));
            plan.attach.push(*id);
        }
        plan
    }

    /// How everyone stands.
    pub fn standings(&self) -> Vec<Standing> {
        let now_us = self.ticked_us.unwrap_or(0);
        let wanting = self.wanting(now_us);
        let soon = self.served_soon(now_us);
        let standing = |(place, tenant): (usize, &Tenant)| Standing {
            tenant: tenant.id,
            terms: tenant.terms,
            groups: self.compute_groups(tenant.id),
            contexts: tenant.active,
            share_ppm: self.lasting_share_of(place, &wanting),
            measured_ppm: tenant.meter.ppm,
            credit_us: tenant.credit_us,
            state: match () {
                () if tenant.paused => State::Paused,
                () if tenant.cap.as_ref().is_some_and(|cap| cap.off) => State::Capped,
                () if tenant.in_debt => State::Debt,
                () if wanting.contains(&place) => State::Running,
                () => State::Idle,
            },
            served_soon: soon.contains(&place),
        };
        self.tenants.iter().enumerate().map(standing).collect()
    }

    /// Time went by. Books what was measured and says what to change. A `now_us` before the last one is taken as the
    /// last one.
    pub fn tick(&mut self, now_us: u64, measured: &Measured) -> Plan {
        if self.ticked_us.is_none() {
            self.tail = Tail::from(now_us);
        }
        let before_us = self.ticked_us.unwrap_or(now_us);
        let now_us = now_us.max(before_us);
        self.ticked_us = Some(now_us);
        let config = self.config;
        account::book(
            &mut self.tenants,
            &mut self.tail,
            measured,
            &config,
            before_us,
            now_us,
        );
        self.count_contexts(now_us);
        let wanting = self.wanting(now_us);
        let shares: Vec<u64> = (0..self.tenants.len())
            .map(|place| self.share_of(place, &wanting))
            .collect();
        for (tenant, share) in self.tenants.iter_mut().zip(shares) {
            tenant.share_ppm = share;
        }
        let caps_wake = self.hold_caps(now_us);
        let debts_wake = self.hold_debts(now_us, &wanting);
        let turns_wake = self.serve_soon(now_us, &wanting);
        self.follow(now_us, now_us - before_us, &wanting);
        let mut plan = self.changes(now_us, now_us - before_us, &wanting);
        plan.wake_us = [caps_wake, debts_wake, turns_wake]
            .into_iter()
            .flatten()
            .min();
        plan
    }

    pub(super) fn place(&self, tenant: TenantId) -> Result<usize, usize> {
        self.tenants.binary_search_by_key(&tenant, |held| held.id)
    }

    pub(super) fn compute_groups(&self, tenant: TenantId) -> usize {
        let place = self.place(tenant);
        place.map_or(0, |place| self.tenants[place].compute_groups)
    }

    /// A group comes or goes: its tenant counts.
    fn count(&mut self, group: &Group, comes: bool) {
        if let (Kind::Compute, Ok(place)) = (group.kind, self.place(group.tenant)) {
            let counted = &mut self.tenants[place].compute_groups;
            *counted = if comes {
                *counted + 1
            } else {
                counted.saturating_sub(1)
            };
        }
    }

    /// Contexts that ran lately; of a tenant that did not run at all lately as many as before.
    fn count_contexts(&mut self, now_us: u64) {
        let cycle = self.config.cycle_us;
        for place in 0..self.tenants.len() {
            let groups = self.compute_groups(self.tenants[place].id);
            let tenant = &mut self.tenants[place];
            let patience = 3 * cycle + tenant.turns.patience_us(groups, cycle);
            let from = now_us.saturating_sub(patience);
            tenant
                .contexts
                .retain(|_, context| tenant.detached || context.waits || context.end_us >= from);
            if tenant.sampled {
                tenant.active = groups;
            } else if !tenant.contexts.is_empty() {
                tenant.active = tenant.contexts.len();
            }
            tenant.active = tenant.active.min(groups.max(1));
        }
    }

    /// Who wants to run: ran in the last three cycles, or is kept from running.
    fn wanting(&self, now_us: u64) -> Vec<usize> {
        let recent = now_us.saturating_sub(3 * self.config.cycle_us);
        let wants = |place: &usize| {
            let tenant = &self.tenants[*place];
            !tenant.paused
                && self.compute_groups(tenant.id) > 0
                && (tenant.in_debt || tenant.waits() || tenant.ran_since(recent))
        };
        (0..self.tenants.len()).filter(wants).collect()
    }

    /// A tenant's share among those who want to run (itself, if it wanted to) by weight, in millionths. Caps don't
    /// count here: a capped tenant has its weight's share until its cap is reached, and then nothing for a while.
    fn share_of(&self, place: usize, wanting: &[usize]) -> u64 {
        let others = wanting.iter().filter(|other| **other != place);
        let others: u64 = others.map(|other| self.tenants[*other].weight()).sum();
        let own = self.tenants[place].weight();
        (PPM * own / (own + others)).max(1)
    }

    /// The share that is left to a tenant over a long time: nobody above its cap, and what caps leave goes to the
    /// others by weight.
    fn lasting_share_of(&self, place: usize, wanting: &[usize]) -> u64 {
        let mut open: Vec<usize> = wanting.to_vec();
        if !open.contains(&place) {
            open.push(place);
        }
        let mut left = PPM;
        loop {
            let weights: u64 = open.iter().map(|place| self.tenants[*place].weight()).sum();
            let part = |place: usize| left * self.tenants[place].weight() / weights.max(1);
            let (capped, rest): (Vec<usize>, Vec<usize>) = open
                .iter()
                .partition(|place| self.tenants[**place].cap_ppm() < part(**place));
            if capped.contains(&place) {
                return self.tenants[place].cap_ppm();
            }
            if capped.is_empty() {
                return part(place).max(1);
            }
            let taken: u64 = capped
                .iter()
                .map(|place| self.tenants[*place].cap_ppm())
                .sum();
            left = left.saturating_sub(taken);
            open = rest;
        }
    }

    /// A tenant's part of a cycle, switches included.
    fn turn_us(&self, share_ppm: u64) -> u64 {
        self.config.cycle_us * share_ppm / PPM
    }

    /// How many contexts of a tenant fit into its part of a cycle.
    pub(super) fn fits(&self, tenant: &Tenant, share_ppm: u64) -> usize {
        let each = self.config.floor_us + tenant.over_us;
        ((self.turn_us(share_ppm) / each.max(1)) as usize).max(1)
    }

    /// The slice of each group of a tenant of which so many contexts are active.
    pub(super) fn slice(&self, tenant: &Tenant, share_ppm: u64, contexts: usize) -> u64 {
        let at_once = if tenant.walls.packing_held {
            contexts.clamp(1, self.fits(tenant, share_ppm)) as i64
        } else {
            1
        };
        let turn = self.turn_us(share_ppm) as i64;
        let mend = (tenant.owed_nanos / 1_000 / MEND_CYCLES).clamp(-turn / 4, turn / 4);
        let slice = (turn + mend) / at_once - tenant.over_us as i64;
        slice.max(self.config.floor_us as i64) as u64
    }

    /// Lets caps run out and begin anew; says when the next one does, of tenants that want to run.
    fn hold_caps(&mut self, now_us: u64) -> Option<u64> {
        let recent = now_us.saturating_sub(3 * self.config.cycle_us);
        let mut wake = None;
        for tenant in &mut self.tenants {
            let wants = tenant.ran_since(recent) || tenant.waits();
            if let Some(cap) = &mut tenant.cap {
                let at = cap.tick(now_us);
                wake = [wake, wants.then_some(at)].into_iter().flatten().min();
            }
        }
        wake
    }

    /// Decides who is detached for debt: who overdrew beyond the dead band, while another wants the device and may
    /// have it. Says when the next debt will be paid.
    fn hold_debts(&mut self, now_us: u64, wanting: &[usize]) -> Option<u64> {
        let may_run =
            |tenant: &Tenant| !tenant.paused && tenant.cap.as_ref().is_none_or(|cap| !cap.off);
        let mut free: Vec<usize> = wanting
            .iter()
            .copied()
            .filter(|place| may_run(&self.tenants[*place]) && !self.tenants[*place].in_debt)
            .collect();
        let mut order: Vec<usize> = (0..self.tenants.len()).collect();
        // Who owes least is let in first, and who owes most is sent out first: one always stays.
        order.sort_by_key(|place| std::cmp::Reverse(self.tenants[*place].credit_us));
        for place in &order {
            let others = free.iter().any(|other| other != place);
            let tenant = &mut self.tenants[*place];
            let missing = tenant.missing_us(&self.config);
            if tenant.in_debt && (missing <= 0 || !others) {
                tenant.in_debt = false;
                if may_run(tenant) {
                    free.push(*place);
                }
            }
        }
        for place in order.iter().rev() {
            let others = free.iter().any(|other| other != place);
            let tenant = &mut self.tenants[*place];
            let over = tenant.credit_us < -tenant.dead_band_us(&self.config);
            let over = over && tenant.walls.packing_held;
            if over && others && free.contains(place) {
                tenant.in_debt = true;
                free.retain(|other| other != place);
            }
        }
        let owing = self.tenants.iter().filter(|tenant| tenant.in_debt);
        owing
            .map(|tenant| {
                let missing = tenant.missing_us(&self.config).max(0) as u64;
                now_us.saturating_add(missing * PPM / tenant.share_ppm.max(1))
            })
            .min()
    }

    /// Follows everyone's credit at leisure, and measures for people.
    ///
    /// Slices are corrected by it (`slice`): a tenant that is owed something all the time gets a little more in each
    /// cycle, until nobody is. The device's slices are not quite what they are set to, and not changed for a trifle.
    fn follow(&mut self, now_us: u64, elapsed_us: u64, wanting: &[usize]) {
        let over_us = FOLLOW_CYCLES * self.config.cycle_us;
        for (place, tenant) in self.tenants.iter_mut().enumerate() {
            // What taking turns explains is nobody's loss.
            let explained = tenant.claim_ceiling_us(&self.config) / 2;
            let most = tenant.ceiling_us(&self.config);
            let credit = tenant.credit_us.clamp(-most, most);
            let owed = credit - credit.clamp(-explained, explained);
            if wanting.len() < 2 || !wanting.contains(&place) {
                tenant.owed_nanos = 0;
            } else {
                let part = elapsed_us.min(over_us) as i64;
                tenant.owed_nanos += (owed * 1_000 - tenant.owed_nanos) * part / over_us as i64;
            }
            let metered = now_us.saturating_sub(tenant.meter.from_us);
            if metered >= PPM {
                tenant.meter.ppm = (tenant.meter.used_us.min(metered)) * PPM / metered;
                tenant.meter.from_us = now_us;
                tenant.meter.used_us = 0;
            }
        }
    }
}
