//! The node's scheduler: one process that reads who ran on each card and tells the tenants' helpers what their channel
//! groups are to have.
//!
//! It knows tenants by their boards in the registry's folder and holds nothing that is not there too: it may die at any
//! instruction, and whoever comes next reads the groups, what they have, and the credit from the boards. Where one tenant
//! alone has contexts on a card, there is nothing to divide: it sleeps, and no lever is pulled.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use policy::share::{
    Config, Credits, GroupId, Kind, Measured, Plan, Planner, Run, State, TenantId, Terms,
};

use super::board::{self, BOARD, Board, Node, Setting, ShareWalls};
use super::sampled::Sampler;
use super::shared::{self, Shared};
use super::timeline::Timeline;
use crate::backend::Backend;
use crate::registry::Registry;
use crate::rmcall::{Gpu, OwnClient};
use crate::sys;

/// A contended card is looked at so often.
const TICK: Duration = Duration::from_millis(25);
/// Otherwise it is looked so often whether anything has changed unsaid (a tenant that was killed).
const IDLE: Duration = Duration::from_millis(250);
/// Microseconds for which a card is looked at on when there is nothing more to divide: who is left is let in, and gets long
/// slices again.
const SETTLES: u64 = 1_000_000;
/// With nothing to divide for so long the scheduler ends.
const NOTHING_TO_DO: u64 = 5_000_000;
/// Who is no tenant: programs without a slice.
const FOREIGN: TenantId = TenantId(0);
/// Weight of a tenant that was given none.
pub const WEIGHT: u32 = 100;

/// A tenant as its board tells.
struct Tenant {
    id: TenantId,
    board: Shared<Board>,
    helper: u32,
    /// Ends when the helper does.
    pidfd: OwnedFd,
    /// Its cards, as positions among the node's, in the slice's order.
    cards: Vec<usize>,
    /// What was read of the board last.
    changes: Option<u32>,
    said: Said,
    /// By slot: number and name in the planner.
    groups: HashMap<usize, (u32, GroupId, usize)>,
}

/// What a board says of how its tenant is to be served.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Said {
    terms: Terms,
    paused: bool,
}

impl Said {
    fn of(board: &Board) -> Said {
        let word = |word: &AtomicU32| Some(word.load(Ordering::Acquire)).filter(|&w| w != 0);
        let cap = word(&board.cap).map(|cap| u16::try_from(cap).unwrap_or(10_000));
        Said {
            terms: Terms {
                weight: word(&board.weight).unwrap_or(WEIGHT),
                cap,
                latency: word(&board.latency),
            },
            paused: word(&board.paused).is_some(),
        }
    }

    /// Whether the tenant is held back even where it is alone.
    fn is_limited(&self) -> bool {
        self.terms.cap.is_some() || self.paused
    }
}

/// A card with its plan.
struct Card {
    gpu: Gpu,
    planner: Planner,
    sensor: Sensor,
    /// Where each group's words are: tenant's file, slot, number.
    places: HashMap<GroupId, (String, usize, u32)>,
    /// When there was last something to divide on it.
    divided_us: u64,
}

enum Sensor {
    /// Not asked for yet.
    Off,
    Timeline(Box<Timeline>),
    /// There is no timeline; the driver is asked again and again who is on the card.
    Sampled(Sampler),
    /// The driver does not tell who ran: everybody who has contexts is taken to want all that he is entitled to, and
    /// nothing corrects what he gets. Since when, in microseconds of the card's clock.
    None(u64),
}

/// The scheduler of a node.
struct Scheduler {
    folder: PathBuf,
    registry: Registry,
    node: Arc<Shared<Node>>,
    own: Arc<OwnClient>,
    cards: Vec<Card>,
    tenants: HashMap<String, Tenant>,
    last_id: u64,
    needed_us: u64,
    /// The first card's planner divides all: some tenant goes without the wall `pool_per_device`.
    one_pool: bool,
}

/// Schedules the node with this registry until there is nothing to divide. Whoever calls holds the lock of the node's
/// file.
///
/// # Errors
/// The driver or the registry cannot be used: nobody is scheduled then, and no new group is made.
pub fn run(folder: &Path, backend: Arc<dyn Backend>) -> io::Result<()> {
    let node = Arc::new(board::map_node(&board::node_file(folder)?)?);
    if node.working.swap(1, Ordering::AcqRel) != 0 {
        let before = node.scheduler.load(Ordering::Acquire);
        let silent = node.silent_us().unwrap_or(0) / 1000;
        say(&format!(
            "scheduler {before} was killed or has failed, and was last at work {silent} ms ago: this one goes on"
        ));
    }
    node.scheduler.store(std::process::id(), Ordering::Release);
    node.started.fetch_add(1, Ordering::AcqRel);
    node.beat_us.store(shared::now_us(), Ordering::Release);
    let own = Arc::new(OwnClient::open(backend)?);
    let card = |gpu: &Gpu| Card {
        gpu: gpu.clone(),
        planner: Planner::new(Config::default()),
        sensor: Sensor::Off,
        places: HashMap::new(),
        divided_us: 0,
    };
    let mut scheduler = Scheduler {
        folder: folder.to_owned(),
        registry: Registry::in_folder(folder)?,
        node,
        cards: own.gpus().iter().map(card).collect(),
        own,
        tenants: HashMap::new(),
        last_id: 0,
        needed_us: shared::now_us(),
        one_pool: false,
    };
    scheduler.serve()
}

impl Scheduler {
    fn serve(&mut self) -> io::Result<()> {
        let mut looked = None;
        let mut look_again_us = 0;
        loop {
            let news = self.node.news.load(Ordering::Acquire);
            let now = shared::now_us();
            self.node.beat_us.store(now, Ordering::Release);
            if looked != Some(news) || now >= look_again_us {
                self.look_for_tenants()?;
                looked = Some(news);
                look_again_us = now + IDLE.as_micros() as u64;
            }
            self.look_at_groups()?;
            let mut wait = IDLE;
            for card in 0..self.cards.len() {
                if self.is_divided(card) {
                    self.cards[card].divided_us = now;
                }
                if now < self.cards[card].divided_us + SETTLES {
                    wait = wait.min(self.tick(card)?);
                }
            }
            if self.has_nothing_to_do(now)? {
                return Ok(());
            }
            shared::sleep_on(&self.node.news, news, Some(wait));
        }
    }

    /// Whether there is anything to divide on a card: several tenants with contexts, or one that is held to a cap.
    fn is_divided(&self, card: usize) -> bool {
        let mut tenants = 0;
        for tenant in self.tenants.values() {
            let here = tenant.groups.values().any(|&(_, _, on)| on == card);
            if here && tenant.said.is_limited() {
                return true;
            }
            tenants += usize::from(here);
        }
        tenants > 1
    }

    /// Tenants that came, changed and went.
    fn look_for_tenants(&mut self) -> io::Result<()> {
        let dead: Vec<String> = self
            .tenants
            .iter()
            .filter(|(_, t)| has_ended(&t.pidfd))
            .map(|(name, _)| name.clone())
            .collect();
        for name in dead {
            if let Some(tenant) = self.tenants.remove(&name) {
                for &card in &tenant.cards {
                    self.cards[card].planner.dismiss(tenant.id);
                    self.cards[card].places.retain(|_, place| place.0 != name);
                    let minor = self.cards[card].gpu.minor;
                    self.node.disown_all(minor, tenant.helper);
                }
            }
        }
        for entry in self.registry.tenants()? {
            if self.tenants.contains_key(&entry.name) {
                continue;
            }
            let path = self.folder.join(format!("{}.{BOARD}", entry.name));
            let Ok(file) = fs::OpenOptions::new().read(true).write(true).open(path) else {
                continue;
            };
            let board = board::map_board(&file)?;
            let helper = board.helper.load(Ordering::Acquire);
            if helper == 0 {
                continue;
            }
            let Ok(pidfd) = sys::pidfd_open(helper as i32, 0) else {
                continue;
            };
            let on = |uuid: &String| self.cards.iter().position(|c| c.gpu.uuid == *uuid);
            let mut cards: Vec<usize> = entry.memory.iter().filter_map(|(u, _)| on(u)).collect();
            if !walls_of(&board).pool_per_device {
                cards.fill(0);
                self.one_pool = true;
            }
            let said = Said::of(&board);
            self.last_id += 1;
            let tenant = Tenant {
                id: TenantId(self.last_id),
                board,
                helper,
                pidfd,
                cards,
                changes: None,
                said,
                groups: HashMap::new(),
            };
            self.tenants.insert(entry.name, tenant);
        }
        for tenant in self.tenants.values_mut() {
            let board = &tenant.board;
            let said = Said::of(board);
            if said == tenant.said && tenant.changes.is_some() {
                continue;
            }
            for (position, &card) in tenant.cards.iter().enumerate() {
                let planner = &mut self.cards[card].planner;
                planner.admit(tenant.id, said.terms);
                planner.go_without(tenant.id, walls_of(board).planner);
                if said.paused {
                    planner.pause(tenant.id);
                } else {
                    planner.resume(tenant.id);
                }
                if tenant.changes.is_none() {
                    // What another scheduler had in its books.
                    let said = &board.cards[position];
                    planner.restore(&[Credits {
                        tenant: tenant.id,
                        credit_us: said.credit_us.load(Ordering::Acquire),
                        cap_credit_us: said.cap_credit_us.load(Ordering::Acquire),
                    }]);
                }
            }
            tenant.said = said;
        }
        Ok(())
    }

    /// Groups that came and went.
    fn look_at_groups(&mut self) -> io::Result<()> {
        let mut last_id = self.last_id;
        for (name, tenant) in &mut self.tenants {
            let changes = tenant.board.changes.load(Ordering::Acquire);
            if tenant.changes == Some(changes) {
                continue;
            }
            tenant.changes = Some(changes);
            let mut told = false;
            let used = (tenant.board.used.load(Ordering::Acquire) as usize).min(board::SLOTS);
            for (number, slot) in tenant.board.slots[..used].iter().enumerate() {
                let serial = slot.serial.load(Ordering::Acquire);
                let known = tenant.groups.get(&number).copied();
                if known.is_some_and(|(of, ..)| of == serial) {
                    continue;
                }
                if let Some((_, group, card)) = known {
                    self.cards[card].planner.gone(group);
                    self.cards[card].places.remove(&group);
                    tenant.groups.remove(&number);
                }
                let position = slot.card.load(Ordering::Acquire) as usize;
                let Some(&card) = tenant.cards.get(position).filter(|_| serial != 0) else {
                    continue;
                };
                let kind = match slot.copies.load(Ordering::Acquire) {
                    0 => Kind::Compute,
                    _ => Kind::Copy,
                };
                last_id += 1;
                let group = GroupId(last_id);
                let here = &mut self.cards[card];
                let now = here.now_us(&self.own)?;
                let Some(birth) = here.planner.birth(tenant.id, group, kind, now) else {
                    continue;
                };
                let setting = Setting {
                    slice_us: u32::try_from(birth.slice_us).unwrap_or(u32::MAX),
                    attached: birth.attached,
                };
                slot.want(serial, setting);
                here.places.insert(group, (name.clone(), number, serial));
                tenant.groups.insert(number, (serial, group, card));
                // A group that is there already, under another scheduler or none, has what it has.
                here.planner.failed(group);
                told = true;
            }
            if told {
                tell(&tenant.board);
            }
        }
        self.last_id = last_id;
        Ok(())
    }

    /// Reads who ran on a card, plans, and writes the plan. How long it may wait until the next time.
    fn tick(&mut self, card: usize) -> io::Result<Duration> {
        let (now_us, mut measured) =
            self.cards[card].measure(&self.own, &self.node, &self.tenants)?;
        if self.one_pool {
            for other in &mut self.cards[1..] {
                let (_, more) = other.measure(&self.own, &self.node, &self.tenants)?;
                measured.runs.extend(more.runs);
                measured.sampled.extend(more.sampled);
            }
            let of_each = measured.runs.drain(..);
            let of_each = of_each.map(|(tenant, run)| (tenant, run.end_us - run.start_us));
            measured.sampled.extend(of_each);
        }
        let here = &mut self.cards[card];
        let plan = here.planner.tick(now_us, &measured);
        let mut to_tell: Vec<&str> = Vec::new();
        for (group, change) in changes(&plan, slices_alone(&self.tenants, card)) {
            let Some((name, slot, serial)) = here.places.get(&group) else {
                continue;
            };
            let Some(tenant) = self.tenants.get(name) else {
                continue;
            };
            let at = &tenant.board.slots[*slot];
            let now = at.wanted(*serial).unwrap_or(Setting {
                slice_us: 0,
                attached: true,
            });
            at.want(*serial, change.of(now));
            if !to_tell.contains(&name.as_str()) {
                to_tell.push(name);
            }
        }
        for name in to_tell {
            tell(&self.tenants[name].board);
        }
        self.show(card, &measured);
        let wake = plan.wake_us.map(|at| at.saturating_sub(now_us));
        let wake = wake.map(|us| Duration::from_micros(us.max(1000)));
        Ok(wake.map_or(TICK, |wake| wake.min(TICK)))
    }

    /// Writes on the boards what people ask for, and what the next scheduler goes on with.
    fn show(&self, card: usize, measured: &Measured) {
        let planner = &self.cards[card].planner;
        let (standings, credits) = (planner.standings(), planner.credits());
        let fallback = planner.fallback();
        for tenant in self.tenants.values() {
            let Some(position) = tenant.cards.iter().position(|&on| on == card) else {
                continue;
            };
            let said = &tenant.board.cards[position];
            let order = Ordering::Release;
            if let Some(standing) = standings.iter().find(|s| s.tenant == tenant.id) {
                said.granted_ppm.store(standing.share_ppm as u32, order);
                said.measured_ppm.store(standing.measured_ppm as u32, order);
                said.contexts.store(standing.contexts as u32, order);
                said.state.store(state_number(standing.state), order);
            }
            if let Some(credit) = credits.iter().find(|c| c.tenant == tenant.id) {
                said.credit_us.store(credit.credit_us, order);
                said.cap_credit_us.store(credit.cap_credit_us, order);
            }
            let own = |group: &GroupId| {
                let mut groups = tenant.groups.values();
                groups.any(|&(_, id, on)| on == card && id == *group)
            };
            if let Some((_, us)) = fallback.slices.iter().find(|(group, _)| own(group)) {
                said.fallback_us
                    .store(u32::try_from(*us).unwrap_or(u32::MAX), order);
            }
            let runs = measured.runs.iter();
            let runs = runs.map(|(of, run)| (*of, run.end_us.saturating_sub(run.start_us)));
            let ran: u64 = runs
                .chain(measured.sampled.iter().copied())
                .filter(|(of, _)| *of == tenant.id)
                .map(|(_, us)| us)
                .sum();
            said.ran_us.fetch_add(ran, Ordering::AcqRel);
        }
    }

    /// Whether nothing had to be divided for a while. Then nobody has to schedule, until somebody says so.
    fn has_nothing_to_do(&mut self, now: u64) -> io::Result<bool> {
        let needed = |s: &Scheduler| {
            let limited = s.tenants.values().any(|t| t.said.is_limited());
            limited || s.registry.tenants().map_or(true, |all| all.len() > 1)
        };
        if now < self.needed_us + NOTHING_TO_DO {
            return Ok(false);
        }
        if needed(self) {
            self.needed_us = now;
            return Ok(false);
        }
        self.node.beat_us.store(0, Ordering::Release);
        // Whoever asks for a scheduler from here on starts one; who asked before is in the registry.
        if needed(self) {
            self.node.beat_us.store(now, Ordering::Release);
            self.needed_us = now;
            return Ok(false);
        }
        for tenant in self.tenants.values() {
            for (&slot, &(serial, ..)) in &tenant.groups {
                let at = &tenant.board.slots[slot];
                if let Some(wanted) = at.wanted(serial) {
                    let attached = true;
                    at.want(serial, Setting { attached, ..wanted });
                }
            }
            tell(&tenant.board);
        }
        self.node.working.store(0, Ordering::Release);
        Ok(true)
    }
}

impl Card {
    /// The card's time in microseconds: that of its records.
    fn now_us(&self, own: &OwnClient) -> io::Result<u64> {
        Ok(own.gpu_time(&self.gpu)? / 1000)
    }

    fn measure(
        &mut self,
        own: &Arc<OwnClient>,
        node: &Arc<Shared<Node>>,
        tenants: &HashMap<String, Tenant>,
    ) -> io::Result<(u64, Measured)> {
        if let Sensor::Off = self.sensor {
            self.sensor = match Timeline::open(own.clone(), &self.gpu) {
                Ok(timeline) => Sensor::Timeline(Box::new(timeline)),
                Err(e) => self.without_timeline(own, node, &e)?,
            };
        }
        let (sensor, error_ppm) = match &self.sensor {
            Sensor::Timeline(_) => (1, 0),
            Sensor::Sampled(sampler) => (2, sampler.error_ppm()),
            Sensor::Off | Sensor::None(_) => (0, 0),
        };
        node.error_ppm.store(error_ppm, Ordering::Release);
        node.sensor.store(sensor, Ordering::Release);
        let who: HashMap<u32, TenantId> = tenants.values().map(|t| (t.helper, t.id)).collect();
        // Who is no tenant had the card all the same.
        let of = |pid| who.get(&pid).copied().unwrap_or(FOREIGN);
        let read = match &mut self.sensor {
            Sensor::Timeline(timeline) => timeline.read(),
            Sensor::Sampled(sampler) => {
                let now = own.gpu_time(&self.gpu)? / 1000;
                match sampler.read(now) {
                    Ok(seen) => {
                        let sampled = seen.into_iter().map(|(pid, us)| (of(pid), us)).collect();
                        let measured = Measured {
                            sampled,
                            ..Measured::default()
                        };
                        return Ok((now, measured));
                    }
                    Err(e) => {
                        self.sensor = self.without(own, &e)?;
                        return self.presume(own, tenants);
                    }
                }
            }
            Sensor::Off | Sensor::None(_) => return self.presume(own, tenants),
        };
        let (now, news) = match read {
            Ok(read) => read,
            Err(e) => {
                // The next look is the first of the sensor that is left.
                self.sensor = self.without_timeline(own, node, &e)?;
                return Ok((self.now_us(own)?, Measured::default()));
            }
        };
        let runs = news.stretches.iter().map(|stretch| {
            let run = Run {
                ctx: stretch.context as u16,
                start_us: stretch.from / 1000,
                end_us: stretch.to / 1000,
                open: stretch.open,
                continued: stretch.continued,
            };
            (of(stretch.pid), run)
        });
        let measured = Measured {
            runs: runs.collect(),
            sampled: Vec::new(),
            lost_us: news.lost / 1000,
        };
        Ok((now / 1000, measured))
    }

    /// The sensor where switches are not recorded.
    fn without_timeline(
        &self,
        own: &Arc<OwnClient>,
        node: &Arc<Shared<Node>>,
        why: &io::Error,
    ) -> io::Result<Sensor> {
        match Sampler::open(own.clone(), &self.gpu, node.clone()) {
            Ok(sampler) => {
                say(&format!(
                    "GPU {}: there is no record of who ran ({why}): the driver is asked again and again",
                    self.gpu.index
                ));
                Ok(Sensor::Sampled(sampler))
            }
            Err(e) => self.without(own, &io::Error::other(format!("{why}; {e}"))),
        }
    }

    fn without(&self, own: &OwnClient, why: &io::Error) -> io::Result<Sensor> {
        say(&format!(
            "GPU {}: the driver does not tell who ran ({why}): slices are set, and nothing corrects them",
            self.gpu.index
        ));
        Ok(Sensor::None(self.now_us(own)?))
    }

    /// Where nobody tells who ran: as if each had run as long as it was entitled to.
    fn presume(
        &mut self,
        own: &OwnClient,
        tenants: &HashMap<String, Tenant>,
    ) -> io::Result<(u64, Measured)> {
        let now = self.now_us(own)?;
        let Sensor::None(since) = &mut self.sensor else {
            return Ok((now, Measured::default()));
        };
        let passed = now.saturating_sub(std::mem::replace(since, now));
        let here = |t: &&Tenant| {
            let mut places = self.places.values();
            places.any(|(name, ..)| tenants.get(name).is_some_and(|of| of.id == t.id))
        };
        let weight = |t: &Tenant| u64::from(t.said.terms.weight);
        let all: u64 = tenants.values().filter(here).map(weight).sum();
        let share = |t: &Tenant| (t.id, passed * weight(t) / all.max(1));
        let measured = Measured {
            sampled: tenants.values().filter(here).map(share).collect(),
            ..Measured::default()
        };
        Ok((now, measured))
    }
}

/// What a plan changes of a group's setting.
#[derive(Clone, Copy)]
enum Change {
    Attached(bool),
    Slice(u64),
}

impl Change {
    fn of(self, now: Setting) -> Setting {
        match self {
            Change::Attached(attached) => Setting { attached, ..now },
            Change::Slice(us) => Setting {
                slice_us: u32::try_from(us).unwrap_or(u32::MAX),
                ..now
            },
        }
    }
}

/// Whether all tenants of a card want to see what slices do when nobody is stopped.
fn slices_alone(tenants: &HashMap<String, Tenant>, card: usize) -> bool {
    let mut here = tenants.values().filter(|t| t.cards.contains(&card));
    here.all(|t| t.board.slices_alone.load(Ordering::Acquire) != 0)
}

/// What a plan says of each group, in its order.
fn changes(plan: &Plan, slices_alone: bool) -> impl Iterator<Item = (GroupId, Change)> + '_ {
    let detach = if slices_alone {
        &[]
    } else {
        plan.detach.as_slice()
    };
    let off = detach.iter().map(|&group| (group, Change::Attached(false)));
    let on = plan
        .attach
        .iter()
        .map(|&group| (group, Change::Attached(true)));
    let slices = plan
        .slices
        .iter()
        .map(|&(group, us)| (group, Change::Slice(us)));
    off.chain(on).chain(slices)
}

/// One line for the log.
fn say(line: &str) {
    // Nobody may read it; the node goes on.
    let _said = writeln!(io::stderr(), "{}: {line}", std::process::id());
}

/// The helper looks at its board.
fn tell(board: &Board) {
    board.plans.fetch_add(1, Ordering::AcqRel);
    shared::wake(&board.plans);
}

/// Names of [`State`] by the number on the board.
pub const STATES: [&str; 6] = ["", "idle", "running", "debt", "capped", "paused"];

fn state_number(state: State) -> u32 {
    match state {
        State::Idle => 1,
        State::Running => 2,
        State::Debt => 3,
        State::Capped => 4,
        State::Paused => 5,
    }
}

fn walls_of(board: &Board) -> ShareWalls {
    ShareWalls::from_word(board.without.load(Ordering::Acquire))
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    matches!(sys::poll([(pidfd.as_raw_fd(), libc::POLLIN)], 0), Ok([e]) if e != 0)
}
