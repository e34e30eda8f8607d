//! What the planner remembers of tenants and groups.

use std::collections::BTreeMap;

use super::cap::Cap;
use super::{Config, Kind, LATENCY_US, TenantId, Terms, Walls};

/// A millionth: shares are counted in these.
pub(super) const PPM: u64 = 1_000_000;

/// Credit that outlives the scheduler: plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// Whose it is.
    pub tenant: TenantId,
    /// [`Standing::credit_us`].
    pub credit_us: i64,
    /// What is left of the tenant's cap; 0 without one.
    pub cap_credit_us: i64,
}

/// Why a tenant runs or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not run in the last three cycles. It may at any time.
    Idle,
    /// It takes its turns.
    Running,
    /// It overdrew and is detached until it has recovered.
    Debt,
    /// It reached its cap and is detached until it may run again.
    Capped,
    /// It is detached until it is resumed.
    Paused,
}

/// How a tenant stands, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Who.
    pub tenant: TenantId,
    /// What it was promised.
    pub terms: Terms,
    /// Its compute groups.
    pub groups: usize,
    /// Its contexts that ran in the last three cycles.
    pub contexts: usize,
    /// What it is entitled to now, in millionths of the device.
    pub share_ppm: u64,
    /// What it got over the last second, in millionths of the device.
    pub measured_ppm: u64,
    /// Microseconds that it is owed, or below zero owes.
    pub credit_us: i64,
    /// Whether it runs.
    pub state: State,
    /// A latency tenant for whom the neighbours' slices are bounded now.
    pub served_soon: bool,
}

/// A channel group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) tenant: TenantId,
    pub(super) kind: Kind,
    pub(super) born_us: u64,
    /// The slice it was born with: it gets no more while it is young.
    pub(super) birth_us: u64,
    /// What the lever was told last.
    pub(super) slice_us: u64,
    pub(super) attached: bool,
    /// The lever has to be told again.
    pub(super) dirty: bool,
}

/// A context of a tenant, as a sensor numbers it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Context {
    pub(super) start_us: u64,
    pub(super) end_us: u64,
    /// Its slice ended before its work did: it waits for its next turn.
    pub(super) waits: bool,
}

/// What a tenant that may have been waiting would claim of another that ran meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) from: TenantId,
    /// Its part of that time.
    pub(super) claim_us: u64,
    /// That time.
    pub(super) taken_us: u64,
}

/// A tenant. Restarts of its processes change nothing here but its groups.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub(super) id: TenantId,
    pub(super) terms: Terms,
    pub(super) walls: Walls,
    pub(super) paused: bool,
    /// Detached for debt.
    pub(super) in_debt: bool,
    /// Since when it has been detached as a whole or attached again.
    pub(super) changed_us: u64,
    pub(super) detached: bool,
    /// Its compute groups are detached while another has its turn beside a latency tenant: it may want to run.
    pub(super) held: bool,
    pub(super) latency: super::latency::Stand,
    pub(super) credit_us: i64,
    pub(super) cap: Option<Cap>,
    pub(super) contexts: BTreeMap<u16, Context>,
    /// Claims since its last run, kept while it is not known to wait.
    pub(super) claims: Vec<Claim>,
    /// It was not seen to wait, but the others ran for so long that it must be.
    pub(super) presumed: bool,
    /// When it last ran, for a sensor without contexts too.
    pub(super) last_ran_us: Option<u64>,
    /// It was measured without contexts last.
    pub(super) sampled: bool,
    /// Its compute groups.
    pub(super) compute_groups: usize,
    /// Contexts active; stays while it is idle.
    pub(super) active: usize,
    /// Its share now.
    pub(super) share_ppm: u64,
    /// The slices of its compute groups now and before the last plan, which may not have been carried out.
    pub(super) slices: Slices,
    pub(super) slices_before: Slices,
    /// Its groups take turns: see `rotate`.
    pub(super) turns: super::rotate::Turns,
    /// What a full run is charged above its slice, measured.
    pub(super) over_us: u64,
    /// What it is owed all the time, in nanoseconds; below zero what it owes.
    pub(super) owed_nanos: i64,
    /// For `measured_ppm`.
    pub(super) meter: Meter,
}

/// The shortest and the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slices {
    pub(super) least_us: u64,
    pub(super) most_us: u64,
}

impl Slices {
    pub(super) fn of(us: u64) -> Slices {
        Slices {
            least_us: us,
            most_us: us,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter {
    pub(super) from_us: u64,
    pub(super) used_us: u64,
    pub(super) ppm: u64,
}

impl Tenant {
    pub(super) fn new(id: TenantId, terms: Terms, config: &Config) -> Tenant {
        let mut tenant = Tenant {
            id,
            terms,
            walls: Walls::default(),
            paused: false,
            in_debt: false,
            changed_us: 0,
            detached: false,
            held: false,
            latency: super::latency::Stand::default(),
            credit_us: 0,
            cap: None,
            contexts: BTreeMap::new(),
            claims: Vec::new(),
            presumed: false,
            last_ran_us: None,
            sampled: false,
            compute_groups: 0,
            active: 0,
            share_ppm: PPM,
            slices: Slices::of(config.floor_us),
            slices_before: Slices::of(config.floor_us),
            turns: super::rotate::Turns::default(),
            over_us: config.switch_us,
            owed_nanos: 0,
            meter: Meter::default(),
        };
        tenant.set_terms(terms, config);
        tenant
    }

    pub(super) fn set_terms(&mut self, terms: Terms, config: &Config) {
        self.terms = Terms {
            weight: terms.weight.clamp(1, 10_000),
            cap: terms.cap,
            latency: terms
                .latency
                .map(|us| us.clamp(*LATENCY_US.start(), *LATENCY_US.end())),
        };
        self.cap = match (terms.cap, self.cap.take()) {
            (Some(cap), _) if cap >= 10_000 => None,
            (Some(cap), Some(mut held)) => {
                held.set(cap);
                Some(held)
            }
            (Some(cap), None) => Some(Cap::new(cap, config)),
            (None, _) => None,
        };
    }

    pub(super) fn weight(&self) -> u64 {
        u64::from(self.terms.weight)
    }

    /// Its cap in millionths, the whole device without one.
    pub(super) fn cap_ppm(&self) -> u64 {
        self.terms
            .cap
            .map_or(PPM, |cap| u64::from(cap).clamp(1, 10_000) * (PPM / 10_000))
    }

    /// Whether a context of it is known to wait for its turn.
    pub(super) fn waits(&self) -> bool {
        self.presumed || self.contexts.values().any(|context| context.waits)
    }

    /// What of it has not run since has nothing to do.
    pub(super) fn has_nothing(&mut self, since_us: u64) {
        self.presumed = false;
        for context in self.contexts.values_mut() {
            context.waits &= context.end_us > since_us;
        }
    }

    /// Kept from running as a whole, so that its silence says nothing.
    pub(super) fn kept_off(&self) -> bool {
        self.detached || self.held
    }

    /// It ran lately, or was kept from running: it counts among those who want to.
    pub(super) fn ran_since(&self, since_us: u64) -> bool {
        self.last_ran_us.is_some_and(|ran| ran >= since_us)
    }

    /// The part of a cycle that a claim may raise its credit to: what it can be owed by waiting for its turn.
    pub(super) fn claim_ceiling_us(&self, config: &Config) -> i64 {
        swing(self.share_ppm, config)
    }

    /// How far it may overdraw before it is detached: twice what taking turns alone makes of its
    /// credit, so that a tenant that gets exactly its share is never near it.
    pub(super) fn dead_band_us(&self, config: &Config) -> i64 {
        band_us(self.share_ppm, config)
    }

    /// The most that it can be owed. With the dead band that is at most a cycle and four of the least slices: what a
    /// tenant can gain over any window, beside what happens between two ticks.
    pub(super) fn ceiling_us(&self, config: &Config) -> i64 {
        swing(self.share_ppm, config) * 3 / 2 + 2 * config.floor_us as i64
    }

    /// What it has to recover, being in debt, before it is attached again.
    pub(super) fn missing_us(&self, config: &Config) -> i64 {
        -self.dead_band_us(config) / 3 - self.credit_us
    }

    pub(super) fn add_credit(&mut self, us: i64, config: &Config) {
        // What it is owed already stays, when its share changes.
        let ceiling = self.ceiling_us(config).max(self.credit_us);
        let floor = -DEBT_CYCLES * config.cycle_us as i64;
        self.credit_us = self.credit_us.saturating_add(us).clamp(floor, ceiling);
    }
}

/// Debt beyond so many cycles is forgiven: 2 s at the default.
const DEBT_CYCLES: i64 = 50;

fn band_us(share_ppm: u64, config: &Config) -> i64 {
    2 * swing(share_ppm, config) + 2 * config.floor_us as i64
}

/// The dead band of one that has half of the device: nobody's is wider.
pub(super) fn widest_band_us(config: &Config) -> i64 {
    band_us(PPM / 2, config)
}

/// How far the credit of a tenant with this share swings while everyone takes turns: it gains its share while the
/// others have theirs, `cycle x share x (1 - share)`.
pub(super) fn swing(share_ppm: u64, config: &Config) -> i64 {
    let share = share_ppm.min(PPM);
    // cycle < 2^40 by `Planner::new`, so the product is below 2^60.
    (config.cycle_us * share / PPM * (PPM - share) / PPM) as i64
}
