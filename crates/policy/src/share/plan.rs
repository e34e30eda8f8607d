//! What the lever has to be told.

use super::planner::{Planner, YOUNG_CYCLES};
use super::state::Slices;
use super::{GroupId, Kind, Plan};

/// What a change of a slice takes of the lever's time, reckoned at twice the mean: a tenant with very many groups can't
/// keep the lever from what matters. What does not fit follows in the next plans.
const SLICE_COST_US: u64 = 600;

/// The most that are changed in one plan.
const SLICES_A_PLAN: u64 = 24;

/// A slice that should be changed.
struct Change {
    group: GroupId,
    wanted_us: u64,
    /// Smaller is sooner.
    rank: (bool, u64),
}

impl Planner {
    /// What differs from what the lever was told last.
    pub(super) fn changes(&mut self, now_us: u64, elapsed_us: u64, wanting: &[usize]) -> Plan {
        let alone = wanting.len() <= 1
            && wanting
                .iter()
                .map(|place| &self.tenants[*place])
                .all(|tenant| tenant.cap.is_none() && tenant.latency.bound_us.is_none());
        let due = now_us.saturating_sub(self.told_us) >= self.config.reassert_us;
        let mut plan = Plan {
            reasserted: self.tell_all || (due && !alone),
            ..Plan::default()
        };
        if plan.reasserted {
            self.told_us = now_us;
            self.tell_all = false;
            self.groups
                .values_mut()
                .for_each(|group| group.dirty = true);
        }
        let mut own: Vec<Vec<GroupId>> = vec![Vec::new(); self.tenants.len()];
        for (id, group) in &self.groups {
            if let Ok(place) = self.place(group.tenant) {
                own[place].push(*id);
            }
        }
        let mut changes = Vec::new();
        for (place, own) in own.iter().enumerate() {
            let wants = wanting.contains(&place);
            self.changes_of(place, own, now_us, (wants, alone), &mut plan, &mut changes);
        }
        // What takes time from a tenant that has too much goes first, and of that what is furthest off.
        changes.sort_by_key(|change| change.rank);
        self.lever_us = self
            .lever_us
            .saturating_add(elapsed_us)
            .min(SLICES_A_PLAN * SLICE_COST_US);
        let most = (self.lever_us / SLICE_COST_US) as usize;
        for change in changes.iter().take(most) {
            self.lever_us -= SLICE_COST_US;
            if let Some(group) = self.groups.get_mut(&change.group) {
                group.slice_us = change.wanted_us;
                plan.slices.push((change.group, change.wanted_us));
                if group.dirty {
                    group.dirty = false;
                    let list = if group.attached {
                        &mut plan.attach
                    } else {
                        &mut plan.detach
                    };
                    if !list.contains(&change.group) {
                        list.push(change.group);
                    }
                }
            }
        }
        self.note_slices();
        plan
    }

    /// What the slices are now, and were.
    fn note_slices(&mut self) {
        let mut noted: Vec<Option<Slices>> = vec![None; self.tenants.len()];
        for group in self.groups.values() {
            if let (Kind::Compute, Ok(place)) = (group.kind, self.place(group.tenant)) {
                let slices = noted[place].get_or_insert(Slices::of(group.slice_us));
                slices.least_us = slices.least_us.min(group.slice_us);
                slices.most_us = slices.most_us.max(group.slice_us);
            }
        }
        for (tenant, noted) in self.tenants.iter_mut().zip(noted) {
            tenant.slices_before = tenant.slices;
            tenant.slices = noted.unwrap_or(tenant.slices);
        }
    }

    /// One tenant's: who is attached is put into the plan, slices are collected.
    fn changes_of(
        &mut self,
        place: usize,
        own: &[GroupId],
        now_us: u64,
        (wants, alone): (bool, bool),
        plan: &mut Plan,
        changes: &mut Vec<Change>,
    ) {
        let config = self.config;
        let groups = self.tenants[place].compute_groups;
        let share = self.tenants[place].share_ppm;
        let mut fits = self.fits(&self.tenants[place], share);
        let tenant = &mut self.tenants[place];
        if wants && tenant.latency.one_at_a_time {
            fits = 1;
        }
        if alone || !tenant.walls.packing_held {
            tenant.turns = super::rotate::Turns::default();
        } else {
            tenant
                .turns
                .go_on(fits, tenant.active, groups, now_us, config.cycle_us);
        }
        let turns = tenant.turns;
        let capped = tenant.cap.as_ref().is_some_and(|cap| cap.off);
        let off = tenant.paused || tenant.in_debt || capped;
        if off != tenant.detached {
            tenant.detached = off;
            tenant.changed_us = now_us;
            if off {
                tenant.claims.clear();
            }
        }
        let tenant = &self.tenants[place];
        let (held, bound) = (tenant.held, tenant.latency.bound_us);
        let slice = self.slice(tenant, share, tenant.active);
        let slice = slice.min(bound.unwrap_or(u64::MAX));
        let mut nth = 0;
        let mut let_in = false;
        for group_id in own {
            let Some(group) = self.groups.get_mut(group_id) else {
                continue;
            };
            let has_turn = match group.kind {
                Kind::Copy => true,
                Kind::Compute => {
                    nth += 1;
                    !held && turns.has_turn(nth - 1, groups)
                }
            };
            let attached = !off && has_turn;
            if group.attached != attached {
                let_in |= attached;
                group.attached = attached;
                let list = if attached {
                    &mut plan.attach
                } else {
                    &mut plan.detach
                };
                list.push(*group_id);
            }
            let age_us = now_us.saturating_sub(group.born_us);
            let wanted = if age_us < YOUNG_CYCLES * config.cycle_us {
                slice.min(group.birth_us)
            } else {
                slice
            };
            let told = group.slice_us;
            let too_long = bound.is_some_and(|bound| told > bound);
            if group.dirty || too_long || worth(told, wanted, wants, alone) {
                let off_by = told.abs_diff(wanted) * 1_000 / told.max(1);
                changes.push(Change {
                    group: *group_id,
                    wanted_us: wanted,
                    rank: (told <= wanted, u64::MAX - off_by),
                });
            }
        }
        if let_in {
            self.tenants[place].changed_us = now_us;
        }
    }
}

/// Whether a slice is so far from the wanted one that the lever should be moved.
fn worth(told_us: u64, wanted_us: u64, wants: bool, alone: bool) -> bool {
    if alone {
        // Nobody is wronged; only contexts of its own that chop up the device are worth it.
        return wants && told_us.saturating_mul(2) < wanted_us.min(4_000);
    }
    if !wants {
        // It should not come back with far more than its share.
        return told_us > wanted_us + wanted_us / 4;
    }
    told_us.abs_diff(wanted_us) > (told_us / 64).max(30)
}
