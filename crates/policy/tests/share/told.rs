//! A planner that is told what ran, without a device.

use policy::share::{Config, GroupId, Kind, Measured, Plan, Planner, Run, State, TenantId, Terms};

use crate::runlist::tenant;

pub const SECOND: u64 = 1_000_000;
pub const MS: u64 = 1_000;

pub fn weight(weight: u32) -> Terms {
    Terms {
        weight,
        cap: None,
        latency: None,
    }
}

/// A planner of two tenants with one compute group each.
pub fn pair(weights: [u32; 2]) -> Planner {
    let mut planner = Planner::new(Config::default());
    for (place, of) in weights.into_iter().enumerate() {
        planner.admit(tenant(place), weight(of));
        let group = GroupId(place as u64);
        planner.birth(tenant(place), group, Kind::Compute, 0);
    }
    planner
}

pub fn run(place: usize, ctx: u16, start_us: u64, end_us: u64) -> (TenantId, Run) {
    let run = Run {
        ctx,
        start_us,
        end_us,
        open: false,
        continued: false,
    };
    (tenant(place), run)
}

pub fn runs(runs: Vec<(TenantId, Run)>) -> Measured {
    Measured {
        runs,
        ..Measured::default()
    }
}

pub fn credit(planner: &Planner, place: usize) -> i64 {
    planner.standings()[place].credit_us
}

pub fn state(planner: &Planner, place: usize) -> State {
    planner.standings()[place].state
}

/// The second tenant runs on and on while the first, taken off in the middle of its work, waits.
pub fn crowd_out(planner: &mut Planner, from_us: u64, us: u64) -> Plan {
    planner.tick(from_us, &Measured::default());
    let first = from_us + 40 * MS;
    planner.tick(first, &runs(vec![run(0, 0, from_us, first)]));
    let second = (0..us / (5 * MS)).map(|nth| {
        let start = first + nth * 5 * MS;
        run(1, nth as u16, start + 80, start + 5 * MS)
    });
    planner.tick(first + us, &runs(second.collect()))
}
