//! The walls, and the slice in which each is tried.

use super::MALLORY;

/// One wall and its cheat.
pub struct Check {
    /// The wall, which is the program's name, too.
    pub wall: &'static str,
    /// Bytes on each card.
    pub quota: u64,
    /// The cards.
    pub gpus: &'static [&'static str],
    /// The program needs the path of the static attacker.
    pub takes_attacker: bool,
}

const fn on_one_card(wall: &'static str) -> Check {
    Check {
        wall,
        quota: MALLORY,
        gpus: &["0"],
        takes_attacker: false,
    }
}

/// All walls. The programs that take long come first, so that none is left alone at the end; the table has this order.
pub const CHECKS: &[Check] = &[
    on_one_card("signals_no_double_charge"),
    on_one_card("race_no_overshoot"),
    on_one_card("quota_exact"),
    on_one_card("visible_limit"),
    on_one_card("alias_counted_once"),
    on_one_card("managed_charged"),
    on_one_card("mapping_outlives_free"),
    on_one_card("size_rounding"),
    on_one_card("release_by_ancestor"),
    Check {
        wall: "per_device_quota",
        quota: 50_000 << 20,
        gpus: &["0", "1"],
        takes_attacker: false,
    },
    on_one_card("foreign_detach_refused"),
    on_one_card("env_unset_still_limited"),
    Check {
        wall: "static_binary_limited",
        quota: MALLORY,
        gpus: &["0"],
        takes_attacker: true,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wall_has_its_cheat() {
        let mut checked: Vec<&str> = CHECKS.iter().map(|check| check.wall).collect();
        checked.extend(
            super::super::shares::SHARES
                .iter()
                .map(|shares| shares.wall),
        );
        let mut walls = guard::tenant::Walls::names();
        checked.sort_unstable();
        walls.sort_unstable();
        assert_eq!(checked, walls);
    }
}
