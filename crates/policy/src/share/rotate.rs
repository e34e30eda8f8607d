//! Groups of one tenant taking turns, where more of them are active than fit into its part of a cycle.

/// How long a set of groups has its turn, in cycles.
pub(super) const DWELL_CYCLES: u64 = 2;

/// The turns of a tenant's groups, in the order of their birth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turns {
    /// So many are attached at once; 0: all are, nobody has to take turns.
    pub(super) at_once: usize,
    /// The first of them, counted from the oldest.
    pub(super) first: usize,
    /// Since when this set has its turn.
    pub(super) since_us: u64,
}

impl Turns {
    /// How long a context may stay away before it counts as idle, beyond the usual three cycles: until each group has
    /// had a turn.
    pub(super) fn patience_us(&self, groups: usize, cycle_us: u64) -> u64 {
        match self.at_once {
            0 => 0,
            at_once => groups.div_ceil(at_once) as u64 * DWELL_CYCLES * cycle_us,
        }
    }

    /// Goes on: `fits` contexts fit, `active` of them want to run, out of `groups`.
    ///
    /// Which of the groups are the active ones is not known, so as many are attached as will hold `fits` active ones on
    /// average. That is at least `fits`: should they all be active, they fit.
    pub(super) fn go_on(
        &mut self,
        fits: usize,
        active: usize,
        groups: usize,
        now_us: u64,
        cycle_us: u64,
    ) {
        if active <= fits || groups <= fits {
            *self = Turns::default();
            return;
        }
        let at_once = (fits * groups / active).clamp(fits.max(1), groups);
        if self.at_once == 0 {
            self.since_us = now_us;
        }
        self.at_once = at_once;
        if now_us.saturating_sub(self.since_us) >= DWELL_CYCLES * cycle_us {
            self.first += at_once;
            self.since_us = now_us;
        }
        self.first %= groups;
    }

    /// Whether the group at this place has its turn.
    pub(super) fn has_turn(&self, place: usize, groups: usize) -> bool {
        self.at_once == 0 || (place + groups - self.first % groups) % groups < self.at_once
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_as_many_turns_as_any_other() {
        for (groups, fits) in [(16, 7), (64, 1), (9, 8), (3, 2)] {
            let mut turns = Turns::default();
            let mut had = vec![0; groups];
            let dwell = DWELL_CYCLES * 40_000;
            for round in 0..groups as u64 {
                turns.go_on(fits, groups, groups, round * dwell, 40_000);
                let now = (0..groups).filter(|place| turns.has_turn(*place, groups));
                let before: usize = had.iter().sum();
                now.for_each(|place| had[place] += 1);
                assert_eq!(had.iter().sum::<usize>() - before, fits);
            }
            assert_eq!(had, vec![fits; groups], "{groups} groups, {fits} at once");
        }
    }
}
