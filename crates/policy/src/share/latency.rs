//! Tenants that are to be served soon.
//!
//! When such a tenant has work can't be foreseen, and is seen only a tick later. So its neighbours' slices are bounded in
//! advance, as long as it ran within the horizon. And as the device takes turns over all that are attached, one
//! neighbour's context is attached at a time: the tenant waits for one bounded slice and two switches, however many
//! neighbours it has. The others have the device in turns of several milliseconds, by credit, so that they don't pay a
//! switch for each bounded slice.
//!
//! It is a privilege that is paid with what it is entitled to: who overdraws has it no more, until it has recovered.

use super::planner::Planner;
use super::state::{PPM, Tenant, swing};
use super::{Config, TenantId};

/// A neighbour's turn lasts so long at least: a change of turns takes the lever 1 ms.
const LEAST_TURN_US: u64 = 10_000;
/// A neighbour that has its turn and leaves the device alone for so long loses it to one that waits.
const UNUSED_US: u64 = 5_000;
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
    /// When its last turn began.
    turn_us: u64,
}

/// A neighbour's turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    whose: TenantId,
    since_us: u64,
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
        let holder = turn.and_then(|turn| self.place(turn.whose).ok());
        for place in 0..self.tenants.len() {
            let held = holder.is_some_and(|holder| holder != place) && rivals.contains(&place);
            let tenant = &mut self.tenants[place];
            if tenant.held != held {
                tenant.held = held;
                tenant.changed_us = now_us;
                if !held {
                    // With its turn comes that of the next among its own groups.
                    tenant.turns.since_us = 0;
                }
            }
        }
        self.turn = turn;
        let (turn, holder) = (turn?, &self.tenants[holder?]);
        Some(if holder.waits() || holder.sampled {
            turn.since_us.saturating_add(self.turn_of(holder))
        } else {
            now_us.saturating_add(UNUSED_US)
        })
    }

    /// How long a neighbour's turn lasts.
    fn turn_of(&self, tenant: &Tenant) -> u64 {
        let part = self.config.cycle_us * tenant.share_ppm / PPM;
        part.max(LEAST_TURN_US)
    }

    /// Whose turn it is among these: who had it as long as it lasts, then who is owed most, or has waited longest.
    fn next_turn(&mut self, now_us: u64, rivals: &[usize]) -> Option<Turn> {
        if rivals.len() < 2 {
            return None;
        }
        if let Some(turn) = self.turn
            && let Ok(place) = self.place(turn.whose)
            && rivals.contains(&place)
        {
            let holder = &self.tenants[place];
            let used_us = holder.last_ran_us.unwrap_or(0).max(turn.since_us);
            let unused = !holder.waits()
                && !holder.sampled
                && now_us.saturating_sub(used_us) >= UNUSED_US
                && rivals
                    .iter()
                    .any(|other| *other != place && self.tenants[*other].waits());
            let lasts = now_us.saturating_sub(turn.since_us) < self.turn_of(holder);
            if lasts && !unused {
                return Some(turn);
            }
            if unused {
                let others: Vec<usize> = rivals.iter().copied().filter(|p| *p != place).collect();
                return Some(self.begin_turn(now_us, &others));
            }
        }
        Some(self.begin_turn(now_us, rivals))
    }

    fn begin_turn(&mut self, now_us: u64, among: &[usize]) -> Turn {
        let owed = |place: &usize| {
            let tenant = &self.tenants[*place];
            (tenant.credit_us, std::cmp::Reverse(tenant.latency.turn_us))
        };
        let next = among.iter().copied().max_by_key(owed).unwrap_or(0);
        let tenant = &mut self.tenants[next];
        tenant.latency.turn_us = now_us;
        Turn {
            whose: tenant.id,
            since_us: now_us,
        }
    }
}
