//! Tenants that are to be served soon.
//!
//! When such a tenant has work can't be foreseen, and is seen only a tick later. So its neighbours' slices are bounded in
//! advance, as long as it ran within the horizon. And as the device takes turns over all that are attached, one
//! neighbour's context is attached at a time (two where the one pauses and would leave the device idle): the tenant waits
//! for one bounded slice and two switches, however many neighbours it has. They have the device in turns of several
//! milliseconds, by credit, so that they don't pay a switch for each bounded slice.
//!
//! It is a privilege that is paid with what it is entitled to: who overdraws has it no more, until it has recovered.

use super::planner::Planner;
use super::state::{PPM, Tenant, swing};
use super::{Config, TenantId};

/// A neighbour's turn lasts so long at least: a change of turns takes the lever 1 ms.
const LEAST_TURN_US: u64 = 10_000;
/// A neighbour that has its turn and leaves the device alone for so long pauses.
const UNUSED_US: u64 = 1_000;
/// One that paused within so many cycles is taken to do so again.
const PAUSES_CYCLES: u64 = 8;
/// Who lost the privilege does not have it again before so long.
const LOST_US: u64 = 1_000_000;

/// How a tenant stands towards latency: its own, and that of the others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stand {
    /// Its slices are bounded by this, for another's sake.
    pub(super) bound_us: Option<u64>,
    /// Beside a latency tenant: of its contexts one is attached at a time.
    pub(super) one_at_a_time: bool,
    /// When its last group was made: it is about to run.
    pub(super) born_us: Option<u64>,
    /// Since when it has had no privilege.
    lost_us: Option<u64>,
    /// When it last had its turn.
    turn_us: u64,
    /// When it was last seen to leave its turn unused.
    paused_us: Option<u64>,
}

/// A neighbour's turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    whose: TenantId,
    /// Who runs beside it, if it pauses.
    partner: Option<TenantId>,
    ends_us: u64,
}

impl Turn {
    fn is_of(&self, tenant: TenantId) -> bool {
        self.whose == tenant || self.partner == Some(tenant)
    }
}

impl Tenant {
    /// Decides whether a latency tenant keeps its privilege. What taking turns makes of its credit is no overdraft.
    fn keep_privilege(&mut self, now_us: u64, config: &Config) {
        let bears = swing(self.share_ppm, config) + config.floor_us as i64;
        let lost = &mut self.latency.lost_us;
        match *lost {
            None if self.credit_us < -bears => *lost = Some(now_us),
            Some(since) if self.credit_us >= 0 && now_us.saturating_sub(since) >= LOST_US => {
                *lost = None;
            }
            _ => {}
        }
    }

    fn look_whether_it_pauses(&mut self, now_us: u64) {
        // Before it has run in its turn it may not be attached yet: that takes the lever a while.
        let ran_us = self.last_ran_us.filter(|ran| *ran > self.changed_us);
        let unused = ran_us.is_some_and(|ran| now_us.saturating_sub(ran) >= UNUSED_US);
        if unused && !self.waits() && !self.sampled {
            self.latency.paused_us = Some(now_us);
        }
    }

    fn pauses(&self, now_us: u64, config: &Config) -> bool {
        let recent_us = PAUSES_CYCLES * config.cycle_us;
        let paused = self.latency.paused_us;
        paused.is_some_and(|paused| now_us.saturating_sub(paused) < recent_us)
    }

    /// Whether it may have work at any moment: it ran within the horizon, or is about to run for the first time.
    fn is_awake(&self, now_us: u64, config: &Config) -> bool {
        let last = self.last_ran_us.max(self.latency.born_us);
        last.is_some_and(|last| now_us.saturating_sub(last) < config.horizon_us)
    }
}

impl Planner {
    /// The latency tenants that are served soon now.
    pub(super) fn served_soon(&self, now_us: u64) -> Vec<usize> {
        let soon = |place: &usize| {
            let tenant = &self.tenants[*place];
            tenant.terms.latency.is_some()
                && tenant.latency.lost_us.is_none()
                && !tenant.paused
                && tenant.compute_groups > 0
                && tenant.is_awake(now_us, &self.config)
        };
        (0..self.tenants.len()).filter(soon).collect()
    }

    /// What a tenant's slices are bounded by, for the sake of these others.
    pub(super) fn bound(&self, place: usize, soon: &[usize]) -> Option<u64> {
        let others = soon.iter().filter(|other| **other != place);
        others
            .filter_map(|other| self.tenants[*other].terms.latency)
            .min()
            .map(u64::from)
    }

    /// Bounds slices and gives turns for the sake of latency tenants that are awake. Says when the turn ends.
    pub(super) fn serve_soon(&mut self, now_us: u64, wanting: &[usize]) -> Option<u64> {
        for tenant in &mut self.tenants {
            tenant.keep_privilege(now_us, &self.config);
        }
        let soon = self.served_soon(now_us);
        for place in 0..self.tenants.len() {
            let bound = self.bound(place, &soon);
            let stand = &mut self.tenants[place].latency;
            stand.bound_us = bound;
            stand.one_at_a_time = bound.is_some() && !soon.contains(&place);
        }
        let may_run = |place: &usize| {
            let tenant = &self.tenants[*place];
            let capped = tenant.cap.as_ref().is_some_and(|cap| cap.off);
            tenant.latency.one_at_a_time && !tenant.paused && !tenant.in_debt && !capped
        };
        let rivals: Vec<usize> = wanting.iter().copied().filter(may_run).collect();
        let turn = self.next_turn(now_us, &rivals);
        for place in 0..self.tenants.len() {
            let tenant = &mut self.tenants[place];
            let held = turn.is_some_and(|turn| !turn.is_of(tenant.id)) && rivals.contains(&place);
            if tenant.held != held {
                tenant.held = held;
                tenant.changed_us = now_us;
            }
        }
        self.turn = turn;
        turn.map(|turn| turn.ends_us)
    }

    /// Whose turn it is among these: who had it as long as it lasts, then who is owed most, or has waited longest. If that
    /// one pauses, another one may run beside it, so that the device is not left idle.
    fn next_turn(&mut self, now_us: u64, rivals: &[usize]) -> Option<Turn> {
        for place in rivals {
            self.tenants[*place].look_whether_it_pauses(now_us);
        }
        if rivals.len() < 2 {
            return None;
        }
        let among = |id: TenantId| self.place(id).ok().filter(|place| rivals.contains(place));
        let goes_on = self
            .turn
            .filter(|turn| turn.ends_us > now_us)
            .and_then(|turn| Some((among(turn.whose)?, turn)));
        let (holder, before) = match goes_on {
            Some((holder, turn)) => (holder, Some(turn)),
            None => (self.most_owed(rivals, None)?, None),
        };
        let partner = if self.tenants[holder].pauses(now_us, &self.config) {
            self.most_owed(rivals, Some(holder))
        } else {
            None
        };
        for place in [Some(holder), partner].into_iter().flatten() {
            self.tenants[place].latency.turn_us = now_us;
        }
        let part = self.config.cycle_us * self.tenants[holder].share_ppm / PPM;
        let ends_us = now_us.saturating_add(part.max(LEAST_TURN_US));
        Some(Turn {
            whose: self.tenants[holder].id,
            partner: partner.map(|place| self.tenants[place].id),
            ends_us: before.map_or(ends_us, |turn| turn.ends_us),
        })
    }

    fn most_owed(&self, among: &[usize], but: Option<usize>) -> Option<usize> {
        let owed = |place: &usize| {
            let tenant = &self.tenants[*place];
            (tenant.credit_us, std::cmp::Reverse(tenant.latency.turn_us))
        };
        let others = among.iter().copied().filter(|place| Some(*place) != but);
        others.max_by_key(owed)
    }
}
