//! Booking what was measured: who ran, who waited meanwhile, who owes whom.
//!
//! While one tenant runs, everyone who waits for the device (the runner among them) is entitled to a part of that time
//! by weight. What the runner used above its part it owes to the others. So time that nobody else wanted is free, and
//! the sum of all credit stays what it was.
//!
//! Who waits is read from the runs: a context that was taken off at the end of its slice had more to do. One that
//! stopped before has nothing to do, until it comes again; whether it was late or kept waiting can't be seen, and is
//! settled when it comes (`settle`). That a context has nothing to do is proven when the device takes another's turn
//! twice and not its own, or idles.

use super::state::{Claim, Context, Tenant};
use super::{Config, Measured, Run, TenantId};

/// The device was idle if nobody was on it for so long. A switch takes 0.08 ms between an END and the next START.
const IDLE_US: u64 = 500;

/// A run may end so much before its slice and still count as taken off at its end.
const EARLY_US: u64 = 100;

/// A run that ends within this time of a detach was cut by it. The slowest detach measured took 0.83 ms.
const CUT_US: u64 = 3_000;

/// More than a minute at once is not booked.
const LONGEST_US: u64 = 60_000_000;

/// The last run that was booked, across all tenants.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tail {
    end_us: u64,
    open: bool,
    /// Idle time up to here is booked.
    idle_from_us: u64,
}

impl Tail {
    /// Nothing is known of what was before.
    pub(super) fn from(now_us: u64) -> Tail {
        Tail {
            idle_from_us: now_us,
            ..Tail::default()
        }
    }
}

/// Books a measurement that ends at `now_us`.
pub(super) fn book(
    tenants: &mut [Tenant],
    tail: &mut Tail,
    measured: &Measured,
    config: &Config,
    before_us: u64,
    now_us: u64,
) {
    let mut runs: Vec<(Option<usize>, Run)> = measured
        .runs
        .iter()
        .map(|(id, run)| (place(tenants, *id), sound(*run, now_us)))
        .filter(|(_, run)| run.end_us > run.start_us)
        .collect();
    runs.sort_by_key(|(place, run)| (run.start_us, run.end_us, *place));
    let mut seen = vec![(0u64, 0u64); tenants.len()];
    for (runner, run) in &runs {
        if let Some(runner) = *runner {
            let charged = one(tenants, tail, runner, *run, config);
            seen[runner].0 += charged;
            seen[runner].1 += u64::from(!run.continued);
        }
        // Of one that is no tenant nothing is known but that the device was not idle.
        if run.end_us >= tail.end_us {
            tail.end_us = run.end_us;
            tail.open = run.open;
        }
    }
    sampled(tenants, measured, config, now_us, &mut seen);
    lost(tenants, measured.lost_us, config, &seen);
    // Nobody has been on it for a while: nobody that could run wants to.
    let quiet_from = tail.end_us.max(tail.idle_from_us).max(before_us);
    if !tail.open && measured.sampled.is_empty() && now_us.saturating_sub(quiet_from) > 4 * IDLE_US
    {
        idle(tenants, quiet_from, now_us, config);
        tail.idle_from_us = now_us;
    }
}

/// No run ends in the future, and none is longer than can have gone unreported.
fn sound(run: Run, now_us: u64) -> Run {
    Run {
        start_us: run.start_us.max(now_us.saturating_sub(LONGEST_US)),
        end_us: run.end_us.min(now_us),
        ..run
    }
}

fn place(tenants: &[Tenant], id: TenantId) -> Option<usize> {
    tenants.binary_search_by_key(&id, |tenant| tenant.id).ok()
}

/// Books one run and returns what it was charged.
fn one(tenants: &mut [Tenant], tail: &Tail, runner: usize, run: Run, config: &Config) -> u64 {
    let quiet_from = tail.end_us.max(tail.idle_from_us);
    let gap = run.start_us.saturating_sub(quiet_from);
    let mut charged = run.end_us - run.start_us;
    if !run.continued {
        // The switch to it is its own.
        charged += gap.min(config.switch_us);
        if gap > IDLE_US {
            idle(tenants, quiet_from, run.start_us, config);
        } else {
            settle(tenants, runner, config);
        }
        passed_over(tenants, runner, run);
    }
    // It ran on when its slice was over: nobody else waited then.
    let begun_us = match tenants[runner].contexts.get(&run.ctx) {
        Some(context) if run.continued => context.start_us,
        _ => run.start_us,
    };
    let holder = &tenants[runner];
    let longest = holder.slices.most_us.max(holder.slices_before.most_us);
    let ran_us = run.end_us.saturating_sub(begun_us);
    let ran_on = ran_us > longest + config.floor_us;
    if ran_on {
        let since_us = run.end_us.saturating_sub(longest);
        let long = ran_us > 2 * longest + config.floor_us;
        for tenant in tenants
            .iter_mut()
            .filter(|tenant| tenant.changed_us < begun_us && !tenant.kept_off())
        {
            tenant.claims.clear();
            if long {
                tenant.has_nothing(since_us);
            }
        }
    }
    let claimed = Claimed {
        all_us: charged,
        most_us: if ran_on { longest } else { charged },
        begun_us,
        end_us: run.end_us,
    };
    divide(tenants, runner, charged, &claimed, config);

    let tenant = &mut tenants[runner];
    tenant.claims.clear();
    tenant.presumed = false;
    let kept_off = tenant.kept_off();
    let context = tenant.contexts.entry(run.ctx).or_default();
    if !run.continued || context.end_us == 0 {
        context.start_us = run.start_us;
    }
    context.end_us = run.end_us;
    let length = run.end_us.saturating_sub(context.start_us);
    let slice = tenant.slices.least_us.min(tenant.slices_before.least_us);
    let full = length + EARLY_US >= slice;
    let cut = kept_off
        && (tenant.changed_us..tenant.changed_us.saturating_add(CUT_US)).contains(&run.end_us);
    context.waits = full || cut;
    tenant.last_ran_us = Some(tenant.last_ran_us.unwrap_or(0).max(run.end_us));
    tenant.sampled = false;
    if !run.open {
        let steady = tenant.slices == tenant.slices_before
            && tenant.slices.least_us == tenant.slices.most_us;
        if full && !run.continued && steady {
            let over = (length + gap.min(config.switch_us)).saturating_sub(slice);
            if over <= 4 * config.switch_us + slice / 4 {
                tenant.over_us = (7 * tenant.over_us + over) / 8;
            }
        }
    }
    note_use(tenant, charged);
    charged
}

/// What it ran counts against its cap, and for people.
fn note_use(tenant: &mut Tenant, charged_us: u64) {
    if let Some(cap) = &mut tenant.cap {
        cap.add(-(charged_us.min(i64::MAX as u64) as i64));
    }
    tenant.meter.used_us += charged_us;
}

/// How much of a run others may claim.
struct Claimed {
    all_us: u64,
    /// By those that were attached all the time: of one that ran on, only the end.
    most_us: u64,
    begun_us: u64,
    end_us: u64,
}

impl Claimed {
    fn by(&self, tenant: &Tenant) -> u64 {
        if tenant.changed_us > self.begun_us {
            self.all_us
                .min(self.end_us.saturating_sub(tenant.changed_us))
        } else {
            self.most_us
        }
    }
}

/// The runner's time is divided among those who wait. Those who may have waited note what they would claim of it.
fn divide(tenants: &mut [Tenant], runner: usize, charged: u64, claimed: &Claimed, config: &Config) {
    let waits: Vec<bool> = tenants
        .iter()
        .enumerate()
        .map(|(place, tenant)| place == runner || (!tenant.detached && tenant.waits()))
        .collect();
    let weights = |picked: &dyn Fn(usize, &Tenant) -> bool| -> u64 {
        let chosen = tenants.iter().enumerate();
        chosen
            .filter(|(place, tenant)| picked(*place, tenant))
            .map(|(_, tenant)| tenant.weight())
            .sum()
    };
    let waiting = weights(&|place, _| waits[place]);
    let owing = weights(&|place, tenant| !waits[place] && tenant.in_debt);
    let from = tenants[runner].id;
    let (mut others, mut given) = (0, 0);
    for (place, tenant) in tenants.iter_mut().enumerate() {
        if place == runner {
            continue;
        }
        let weight = tenant.weight();
        if waits[place] {
            let part = charged * weight / waiting;
            tenant.add_credit(part as i64, config);
            others += part;
        } else if !tenant.detached && !tenant.contexts.is_empty() {
            let taken = claimed.by(tenant);
            let claim = taken * weight / (waiting + weight);
            let regained = regain(tenant, charged * weight / (waiting + weight), config);
            note_claim(tenant, from, claim.saturating_sub(regained), taken);
            given += regained;
        }
    }
    let own = &mut tenants[runner];
    own.add_credit(-(others as i64), config);
    take(tenants, given);
    // Nobody with something to do is passed over for more than a cycle, unless contexts wake up all at once.
    for place in 0..tenants.len() {
        let taken: u64 = tenants[place]
            .claims
            .iter()
            .map(|claim| claim.taken_us)
            .sum();
        if taken > config.cycle_us * 5 / 4 {
            settle(tenants, place, config);
            tenants[place].presumed = true;
        }
    }
    if owing > 0 {
        recover(tenants, charged, waiting + owing, runner, config);
    }
}

/// A latency tenant is served before its turn, and so owes for each of its bursts. While it leaves the device to others it
/// pays that back with its part of the time, up to what it owes: what counts is what it takes over time.
fn regain(tenant: &mut Tenant, part_us: u64, config: &Config) -> u64 {
    if tenant.terms.latency.is_none() {
        return 0;
    }
    let regained = part_us.min(tenant.credit_us.min(0).unsigned_abs());
    tenant.add_credit(regained as i64, config);
    regained
}

fn note_claim(tenant: &mut Tenant, from: TenantId, claim_us: u64, taken_us: u64) {
    match tenant.claims.iter_mut().find(|claim| claim.from == from) {
        Some(claim) => {
            claim.claim_us += claim_us;
            claim.taken_us += taken_us;
        }
        None => tenant.claims.push(Claim {
            from,
            claim_us,
            taken_us,
        }),
    }
}

/// Those detached for debt recover by their part of the time of the others, who are so paid what they are owed.
fn recover(tenants: &mut [Tenant], us: u64, weights: u64, runner: usize, config: &Config) {
    let mut paid = 0;
    for (place, tenant) in tenants.iter_mut().enumerate() {
        if tenant.in_debt && place != runner {
            let part = (us * tenant.weight() / weights.max(1)) as i64;
            let part = part.min(-tenant.credit_us).max(0);
            tenant.add_credit(part, config);
            paid += part as u64;
        }
    }
    take(tenants, paid);
}

/// Takes from those who are owed something, in proportion to that, and never more.
fn take(tenants: &mut [Tenant], us: u64) {
    let owed = |tenant: &Tenant| -> u64 {
        if tenant.in_debt {
            0
        } else {
            tenant.credit_us.max(0) as u64
        }
    };
    let all: u64 = tenants.iter().map(owed).sum();
    let us = us.min(all);
    for tenant in tenants {
        let part = us * owed(tenant) / all.max(1);
        tenant.credit_us -= part as i64;
    }
}

/// A tenant comes that stopped by itself before, right after another's turn: it has waited, nobody knows how long.
///
/// It is given the benefit of the doubt as far as waiting for a turn explains (`claim_ceiling_us`), paid by those who
/// ran meanwhile. One that took more than its turns add up to pays for what is above, ceiling or not: contexts that
/// wake up all at once are no way to crowd out a tenant that pauses between its kernels.
fn settle(tenants: &mut [Tenant], comer: usize, config: &Config) {
    let claims = std::mem::take(&mut tenants[comer].claims);
    let all: u64 = claims.iter().map(|claim| claim.claim_us).sum();
    if all == 0 || tenants[comer].waits() {
        return;
    }
    let room = tenants[comer].claim_ceiling_us(config) - tenants[comer].credit_us;
    let doubt = all.min(room.max(0) as u64);
    let mut granted = 0;
    for claim in claims {
        let Some(payer) = place(tenants, claim.from) else {
            continue;
        };
        let payer = &mut tenants[payer];
        let turn = config.cycle_us * payer.share_ppm / super::state::PPM;
        let above = claim
            .taken_us
            .saturating_sub(turn * 5 / 4 + config.floor_us);
        let beyond = claim.claim_us * above / claim.taken_us.max(1);
        let pays = beyond.max(doubt * claim.claim_us / all);
        payer.add_credit(-(pays as i64), config);
        granted += pays;
    }
    tenants[comer].add_credit(granted as i64, config);
}

/// The device takes turns. So when a context has its second turn since another's last, that other had nothing to do.
fn passed_over(tenants: &mut [Tenant], runner: usize, run: Run) {
    let previous = match tenants[runner].contexts.get(&run.ctx) {
        Some(Context { start_us, .. }) => *start_us,
        None => return,
    };
    // An attach changes the order.
    if tenants[runner].changed_us > previous {
        return;
    }
    for (place, tenant) in tenants.iter_mut().enumerate() {
        if tenant.kept_off() || tenant.changed_us > previous {
            continue;
        }
        let mut last = 0;
        for (ctx, context) in &mut tenant.contexts {
            last = last.max(context.end_us);
            if context.end_us <= previous && (place, *ctx) != (runner, run.ctx) {
                context.waits = false;
            }
        }
        if last <= previous {
            tenant.claims.clear();
            tenant.presumed = false;
        }
    }
}

/// Nobody was on the device: nobody that could run wanted to. The time is taken as that of those who owe.
fn idle(tenants: &mut [Tenant], from_us: u64, to_us: u64, config: &Config) {
    for tenant in tenants.iter_mut().filter(|tenant| !tenant.kept_off()) {
        tenant.claims.clear();
        if tenant.changed_us <= from_us {
            tenant.has_nothing(to_us);
        }
    }
    let owing = tenants.iter().filter(|tenant| tenant.in_debt);
    let weights: u64 = owing.map(Tenant::weight).sum();
    let free_us = to_us.saturating_sub(from_us).min(LONGEST_US);
    for tenant in tenants.iter_mut().filter(|tenant| tenant.in_debt) {
        let part = (free_us * tenant.weight() / weights.max(1)) as i64;
        let part = part.min(-tenant.credit_us).max(0);
        tenant.add_credit(part, config);
    }
}

/// Time that is known by tenant only: all who ran wanted to, and one that used less than its part wanted no more,
/// beyond what waiting for turns explains.
fn sampled(
    tenants: &mut [Tenant],
    measured: &Measured,
    config: &Config,
    now_us: u64,
    seen: &mut [(u64, u64)],
) {
    let mut used = vec![0u64; tenants.len()];
    for (id, us) in &measured.sampled {
        if let Some(place) = place(tenants, *id) {
            used[place] = used[place].saturating_add(*us).min(LONGEST_US);
        }
    }
    let mut left: u64 = used.iter().sum();
    if left == 0 {
        return;
    }
    let recent = now_us.saturating_sub(3 * config.cycle_us);
    let mut open: Vec<usize> = (0..tenants.len())
        .filter(|place| {
            used[*place] > 0
                || (!tenants[*place].detached
                    && tenants[*place].sampled
                    && tenants[*place].ran_since(recent))
        })
        .collect();
    let total = left;
    let mut entitled = vec![0u64; tenants.len()];
    // Water is poured by weight; who is full drops out and the rest is poured again.
    while !open.is_empty() {
        let weights: u64 = open.iter().map(|place| tenants[*place].weight()).sum();
        let wants = |place: usize| {
            let tenant = &tenants[place];
            let room = tenant.claim_ceiling_us(config) - tenant.credit_us;
            used[place] + room.max(0) as u64
        };
        let (full, rest): (Vec<usize>, Vec<usize>) = open
            .iter()
            .partition(|place| wants(**place) <= left * tenants[**place].weight() / weights);
        if full.is_empty() {
            for place in &rest {
                entitled[*place] = left * tenants[*place].weight() / weights;
            }
            break;
        }
        for place in &full {
            entitled[*place] = wants(*place);
            left -= entitled[*place];
        }
        open = rest;
    }
    let waiting: u64 = (0..tenants.len())
        .filter(|place| used[*place] > 0)
        .map(|place| tenants[place].weight())
        .sum();
    for (place, tenant) in tenants.iter_mut().enumerate() {
        tenant.add_credit(entitled[place] as i64 - used[place] as i64, config);
        if used[place] > 0 {
            tenant.sampled = true;
            tenant.last_ran_us = Some(now_us);
            note_use(tenant, used[place]);
            seen[place].0 += used[place];
        }
    }
    let owing = tenants.iter().filter(|tenant| tenant.in_debt);
    let owing: u64 = owing.map(Tenant::weight).sum();
    if owing > 0 {
        recover(tenants, total, waiting + owing, usize::MAX, config);
    }
}

/// Lost time is charged: to those who ran by their part of the time or of the switches, whichever is more (a tenant
/// that switches often enough to lose records should not be the one that wins by it), and where nothing at all was
/// seen by what each had over the last second.
fn lost(tenants: &mut [Tenant], lost_us: u64, config: &Config, seen: &[(u64, u64)]) {
    if lost_us == 0 {
        return;
    }
    let lost_us = lost_us.min(LONGEST_US);
    let time: u64 = seen.iter().map(|(time, _)| time).sum();
    let switches: u64 = seen.iter().map(|(_, switches)| switches).sum();
    let rates: u64 = tenants.iter().map(|tenant| tenant.meter.ppm).sum();
    let weights: u64 = tenants
        .iter()
        .zip(seen)
        .filter(|(tenant, seen)| {
            if time > 0 {
                seen.0 > 0
            } else {
                tenant.meter.ppm > 0
            }
        })
        .map(|(tenant, _)| tenant.weight())
        .sum();
    for (tenant, seen) in tenants.iter_mut().zip(seen) {
        let (part, of) = if time > 0 {
            let by_switches = seen.1 * time / switches.max(1);
            (seen.0.max(by_switches), time)
        } else {
            (tenant.meter.ppm, rates.max(1))
        };
        if part == 0 {
            continue;
        }
        let charged = lost_us * part / of;
        let entitled = lost_us * tenant.weight() / weights.max(1);
        tenant.add_credit(entitled as i64 - charged as i64, config);
        note_use(tenant, charged);
    }
}
