//! Compute shares: who may run on a device, for how long at a time, and who has to wait.
//!
//! One [`Planner`] per device. It is told what is there (tenants, channel groups), what happened ([`Measured`]: the
//! runs that a sensor saw) and what time it is, and it answers with what to change ([`Plan`]). It does no I/O and reads
//! no clock: the same calls give the same plans. All times are microseconds of one monotonic clock.
//!
//! The device takes turns over its attached groups that have work and lets each run for its slice. The planner
//! - divides a *cycle* by weight: a tenant's slice is `cycle x its share / its active contexts`;
//! - books every microsecond that a tenant ran, its switches with it, against what it was entitled to at that time
//!   ([`Standing::credit_us`]), and detaches a tenant that overdrew by more than a dead band until it has recovered;
//! - lets the groups of a tenant with more of them than fit take turns;
//! - holds capped tenants to their ceiling by detaching them;
//! - bounds the slices of a latency tenant's neighbours while it is awake, and lets one of them run at a time.
//!
//! ARCHITECTURE.md tells the formulas and why they are so.

mod account;
mod cap;
mod latency;
mod plan;
mod planner;
mod rotate;
mod state;

pub use planner::Planner;
pub use state::{Credits, Standing, State};

/// A tenant, as the caller numbers it. It outlives the tenant's processes: credit and debt hang on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u64);

/// A channel group, as the caller numbers it. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

/// What a channel group's channels run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The compute engine, whose switches a timeline shows.
    Compute,
    /// A copy (or other) engine: it gets the tenant's slice too, and is detached with it.
    Copy,
}

/// What a tenant was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Its part against the others that want to run, 1 to 10000; what is outside is taken as the nearest.
    pub weight: u32,
    /// A hard ceiling in hundredths of a percent of the device (2500 is 25 %), also when it is alone.
    pub cap: Option<u16>,
    /// It is to be served soon: while it is awake, its neighbours run for so many microseconds at a time. What is outside
    /// [`LATENCY_US`] is taken as the nearest.
    pub latency: Option<u32>,
}

/// The slices that a latency tenant may bound its neighbours to. A switch costs 270 us: less would be mostly that.
pub const LATENCY_US: std::ops::RangeInclusive<u32> = 200..=10_000;

/// The rules that are not the same for every tenant: all stand, but a demo on a simulated card takes one away to show
/// what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walls {
    /// A tenant's part is the same however many contexts it has. Without: each has the slice of the whole tenant, and
    /// nobody is stopped for what he overdrew.
    pub packing_held: bool,
    /// What a tenant owes outlives its channel groups. Without: each takes its part with it.
    pub debt_survives_restart: bool,
}

impl Default for Walls {
    fn default() -> Walls {
        Walls {
            packing_held: true,
            debt_survives_restart: true,
        }
    }
}

/// How the planner works. The defaults suit a device whose context switch costs about 0.27 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The time in which every tenant that wants to run gets its turn: 40 ms. At least 4 ms is used.
    pub cycle_us: u64,
    /// No slice is shorter: 1 ms, since a switch costs a quarter of that. Only a latency tenant bounds them lower.
    pub floor_us: u64,
    /// What a switch is assumed to cost until it is measured: 0.27 ms.
    pub switch_us: u64,
    /// How often everything is told to the lever again: 2 s.
    pub reassert_us: u64,
    /// The window of a cap: 100 ms.
    pub cap_window_us: u64,
    /// For so long after it ran a latency tenant is taken to be awake: 1 s.
    pub horizon_us: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cycle_us: 40_000,
            floor_us: 1_000,
            switch_us: 270,
            reassert_us: 2_000_000,
            cap_window_us: 100_000,
            horizon_us: 1_000_000,
        }
    }
}

/// A stretch in which one context was on the device, from its START to its END.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which context, within its tenant. Which group that is, is not known.
    pub ctx: u16,
    /// Its START.
    pub start_us: u64,
    /// Its END, or for one that is still on the device the time of the measurement.
    pub end_us: u64,
    /// It is still on the device (a lone context has no END). The next measurement goes on where this one ended, with
    /// `continued`.
    pub open: bool,
    /// It was `open` in the last measurement, which ended at this `start_us`: no switch happened.
    pub continued: bool,
}

/// What a sensor saw since the last tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The runs of each tenant, in any order. Runs from before the last tick may come late; they are charged as well.
    /// Runs of programs that are no tenant's belong here too, under a number that nobody admitted: nobody is charged,
    /// but the device was not idle.
    pub runs: Vec<(TenantId, Run)>,
    /// For a sensor that sees no contexts: microseconds that each tenant ran.
    pub sampled: Vec<(TenantId, u64)>,
    /// Microseconds for which the records were lost. They are charged to those who ran, by time or by number of
    /// switches, whichever is more.
    pub lost_us: u64,
}

/// The slice with which a group has to be born.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    /// Its slice in microseconds.
    pub slice_us: u64,
    /// Whether it may run at once. If not, it must never be scheduled before a plan attaches it.
    pub attached: bool,
}

/// What the lever has to change, in this order. Empty where everything is as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Groups to stop.
    pub detach: Vec<GroupId>,
    /// Groups that may run.
    pub attach: Vec<GroupId>,
    /// New slices in microseconds, the most urgent first. After the others: they are many and take longer.
    pub slices: Vec<(GroupId, u64)>,
    /// With this plan and the next few everything is told again (also what should be so already), because
    /// [`Config::reassert_us`] went by or [`Planner::reassert`] asked for it.
    pub reasserted: bool,
    /// The next tick should not come later than this: a cap runs out or a debt is paid then. None: as usual.
    pub wake_us: Option<u64>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.detach.is_empty() && self.slices.is_empty() && self.attach.is_empty()
    }
}
