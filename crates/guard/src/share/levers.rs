//! The levers of one tenant, in its helper: how long its channel groups run at a time, and whether they run at all.
//!
//! A group is entered when it is born, before the tenant learns that it is there: by then it has the slice that the
//! scheduler wants for it, or is detached. From then on a thread of the helper carries out what the scheduler writes on
//! the board ([`super::board`]). It is the keeper, too: when the scheduler falls silent, what was detached comes back
//! with the slice that the scheduler left for that case, and no new group is made until there is one again.
//!
//! Levers and the tenant's own calls on the same client keep one order ([`Tenant::in_order`]): a group cannot be freed,
//! nor get a channel, while it is detached.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use policy::ledger::{ClientHandle, DeviceIndex, ObjectHandle};
use rm::{Kind, Status, class, ctrl, layout};

use super::board::{Board, Node, SLOTS, Setting};
use super::numbers::Numbers;
use super::shared::{self, Shared};
use crate::files::OpenFile;
use crate::rmcall::{self, MOST_CHANNELS, put_u32, put_u64};
use crate::tenant::{Tenant, lock};

/// A scheduler that has said nothing for so long is dead or hangs: it says something four times a second.
const SILENT: Duration = Duration::from_secs(1);
/// A group that is born waits so long for the scheduler's word, or for a scheduler.
const WAIT_FOR_WORD: Duration = Duration::from_secs(5);
/// What could not be done is tried again so often.
const AGAIN: Duration = Duration::from_millis(100);
/// While something is detached, the keeper looks so often whether there is a scheduler.
const LOOK: Duration = Duration::from_millis(250);
const STACK: usize = 128 << 10;

/// The levers of a tenant.
pub struct Levers {
    board: Shared<Board>,
    node: Shared<Node>,
    groups: Mutex<Groups>,
    numbers: Numbers,
    /// The scheduler has fallen silent, and the user was told.
    abandoned: AtomicBool,
    /// When groups were told of last, without the wall `birth_window`.
    told_us: AtomicU64,
}

#[derive(Default)]
struct Groups {
    last_serial: u32,
    by_name: HashMap<(ClientHandle, ObjectHandle), Group>,
}

#[derive(Clone)]
struct Group {
    slot: usize,
    serial: u32,
    /// The object's number in the ledger: another object may get its handle.
    object: u64,
    device: DeviceIndex,
    computes: bool,
    /// Whether its context is taken off at the next instruction.
    preempts: bool,
    /// Calls that put it or its channels on the runlist, made while it was detached.
    postponed: Vec<Postponed>,
    file: Weak<OpenFile>,
}

#[derive(Clone, PartialEq, Eq)]
struct Postponed {
    object: ObjectHandle,
    cmd: u32,
    params: Vec<u8>,
}

/// A channel group that is about to be shown to its tenant.
pub struct Newborn<'f> {
    /// Client and handle.
    pub name: (ClientHandle, ObjectHandle),
    /// Its card.
    pub device: DeviceIndex,
    /// `NV2080_ENGINE_TYPE`.
    pub engine: u32,
    /// The file of its client.
    pub file: &'f Arc<OpenFile>,
}

/// `NV2080_ENGINE_TYPE_GR0` to `GR7`: what computes.
const GRAPHICS_ENGINES: std::ops::RangeInclusive<u32> = 1..=8;
/// Flag of `0x20801210`: the compute mode that follows is meant; and the mode, at the next instruction.
const SET_CILP: u32 = 1;
const CILP: u32 = 2;

impl Levers {
    /// The levers of a tenant with this board.
    pub fn new(board: Shared<Board>, node: Shared<Node>) -> Levers {
        board.helper.store(std::process::id(), Ordering::Release);
        node.tell();
        Levers {
            board,
            node,
            groups: Mutex::default(),
            numbers: Numbers::default(),
            abandoned: AtomicBool::new(false),
            told_us: AtomicU64::new(0),
        }
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        lock(&self.groups)
    }

    /// Enters a new group and gives it what the scheduler wants for it. The client's order is held.
    ///
    /// # Errors
    /// The group may not stay: there is no scheduler where there should be one, or the lever failed.
    pub fn born(&self, tenant: &Tenant, new: &Newborn<'_>) -> io::Result<()> {
        let object = tenant.ledger().serial_of(new.name.0, new.name.1);
        let object = object.ok_or_else(|| io::Error::other("the group is gone"))?;
        let computes = GRAPHICS_ENGINES.contains(&new.engine);
        self.sweep(tenant);
        let (slot, serial) = {
            let mut groups = self.groups();
            let taken: Vec<usize> = groups.by_name.values().map(|g| g.slot).collect();
            let slot = (0..SLOTS).find(|slot| !taken.contains(slot));
            let slot = slot.ok_or_else(|| io::Error::other("more groups than a card has"))?;
            groups.last_serial = groups.last_serial.wrapping_add(1).max(1);
            let serial = groups.last_serial;
            let group = Group {
                slot,
                serial,
                object,
                device: new.device,
                computes,
                preempts: false,
                postponed: Vec::new(),
                file: Arc::downgrade(new.file),
            };
            groups.by_name.insert(new.name, group);
            (slot, serial)
        };
        let at = &self.board.slots[slot];
        at.card.store(new.device.0.into(), Ordering::Relaxed);
        at.copies.store((!computes).into(), Ordering::Relaxed);
        at.failed.store(0, Ordering::Relaxed);
        self.board.used.fetch_max(slot as u32 + 1, Ordering::AcqRel);
        if !tenant.walls.birth_window {
            return Ok(());
        }
        at.serial.store(serial, Ordering::Release);
        self.board.changes.fetch_add(1, Ordering::AcqRel);
        self.node.tell();
        match self.wait_for_word(tenant, slot, serial) {
            Ok(None) => Ok(()),
            Ok(Some(wanted)) => {
                self.set_slice(tenant, new.file, new.name, wanted.slice_us)?;
                // A group without channels has none to take off; each is taken off as it comes.
                at.set_has(serial, wanted);
                Ok(())
            }
            Err(e) => {
                self.gone(new.name);
                Err(e)
            }
        }
    }

    /// What the scheduler wants for a new group; `None`: nobody schedules, and nobody has to.
    fn wait_for_word(
        &self,
        tenant: &Tenant,
        slot: usize,
        serial: u32,
    ) -> io::Result<Option<Setting>> {
        let until = Instant::now() + WAIT_FOR_WORD;
        loop {
            let plans = self.board.plans.load(Ordering::Acquire);
            if let Some(wanted) = self.board.slots[slot].wanted(serial) {
                return Ok(Some(wanted));
            }
            if self.node.silent_us().is_none() {
                return Ok(None);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || tenant.is_condemned() {
                tenant.say("the node's scheduler does not answer: no new context is made without its share; see `gpuslice doctor`");
                return Err(io::Error::other("the scheduler does not answer"));
            }
            shared::sleep_on(&self.board.plans, plans, Some(left.min(AGAIN)));
        }
    }

    fn set_slice(
        &self,
        tenant: &Tenant,
        file: &OpenFile,
        (client, group): (ClientHandle, ObjectHandle),
        slice_us: u32,
    ) -> io::Result<()> {
        let mut params = [0u8; layout::timeslice::SIZE];
        put_u64(
            &mut params,
            layout::timeslice::TIMESLICE_US,
            slice_us.into(),
        );
        self.board.pulls.fetch_add(1, Ordering::Relaxed);
        let status = rmcall::control(
            tenant.backend.as_ref(),
            file.fd(),
            client.0,
            group.0,
            ctrl::NVA06C_SET_TIMESLICE,
            &mut params,
        )?;
        accepted(status, "a slice")
    }

    /// A channel of a known group was made, and its tenant does not know it yet. The client's order is held.
    ///
    /// # Errors
    /// Its group is detached and it could not be: it may not stay.
    pub fn channel_born(
        &self,
        tenant: &Tenant,
        (client, group): (ClientHandle, ObjectHandle),
        channel: ObjectHandle,
    ) -> io::Result<()> {
        let Some(of) = self.groups().by_name.get(&(client, group)).cloned() else {
            return Ok(());
        };
        if let Some(file) = of.file.upgrade().filter(|_| of.computes) {
            let names = (client, group, channel);
            let minor = tenant.device(of.device).gpu.minor;
            let numbered = self.numbers.born(tenant, &self.node, &file, names, minor);
            if let Err(why) = numbered {
                // Where switches are recorded it is not needed; elsewhere its time would be nobody's.
                tenant.say(&format!("hardware's number of a channel is not known ({why}): what it runs cannot be seen by the sensor `sampled`"));
            }
        }
        let has = self.board.slots[of.slot].has(of.serial);
        if has.is_none_or(|has| has.attached) {
            return Ok(());
        }
        self.board.pulls.fetch_add(1, Ordering::Relaxed);
        let gpu = &tenant.device(of.device).gpu;
        tenant.own.detach(gpu, &[(client.0, channel.0)], true)
    }

    /// Whether a group is detached, so that what would put it or one of its channels on the runlist has to wait until it is
    /// attached. The client's order is held.
    pub fn postpones(
        &self,
        tenant: &Tenant,
        name: (ClientHandle, ObjectHandle),
        object: ObjectHandle,
        cmd: u32,
        params: &[u8],
    ) -> bool {
        let ledger = tenant.ledger();
        let mut groups = self.groups();
        let Some(group) = groups.by_name.get_mut(&name) else {
            return false;
        };
        let has = self.board.slots[group.slot].has(group.serial);
        if has.is_none_or(|has| has.attached) {
            return false;
        }
        // Calls of channels that are gone are let go of, or they would gather.
        let waits = |p: &Postponed| ledger.knows(name.0, p.object);
        group
            .postponed
            .retain(|p| (p.object, p.cmd) != (object, cmd) && waits(p));
        group.postponed.push(Postponed {
            object,
            cmd,
            params: params.to_vec(),
        });
        true
    }

    /// Makes the calls that waited for groups to be attached. Their clients' order is held.
    fn make_up(&self, tenant: &Tenant, groups: &[((ClientHandle, ObjectHandle), Group)]) {
        for (name, group) in groups {
            let mut known = self.groups();
            let postponed = known
                .by_name
                .get_mut(name)
                .map(|group| std::mem::take(&mut group.postponed));
            drop(known);
            for mut call in postponed.unwrap_or_default() {
                let made = self.if_it_lives(tenant, *name, group, |file| {
                    let status = rmcall::control(
                        tenant.backend.as_ref(),
                        file.fd(),
                        name.0.0,
                        call.object.0,
                        call.cmd,
                        &mut call.params,
                    )?;
                    accepted(status, "a place on the runlist")
                });
                if made.is_err() {
                    self.board.slots[group.slot]
                        .failed
                        .fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// An object that computes was made on a channel: its context exists now. It is set to leave the engine at the next
    /// instruction, whatever its tenant asks for: one that first ends its kernel could stay as long as it likes. The
    /// client's order is held.
    ///
    /// # Errors
    /// The driver refuses: the object may not stay.
    pub fn computes(
        &self,
        tenant: &Tenant,
        file: &OpenFile,
        (client, group): (ClientHandle, ObjectHandle),
    ) -> io::Result<()> {
        let Some(of) = self.groups().by_name.get(&(client, group)).cloned() else {
            return Ok(());
        };
        if of.preempts || !of.computes {
            return Ok(());
        }
        let subdevice = {
            let ledger = tenant.ledger();
            let device = ledger.parent_of(client, group);
            device.and_then(|device| {
                let mut below = ledger.below(client, device);
                below.find(|(_, class)| *class == class::NV20_SUBDEVICE_0)
            })
        };
        let Some((subdevice, _)) = subdevice else {
            return Err(io::Error::other("its client has no subdevice"));
        };
        use layout::preemption_mode as p;
        let mut params = [0u8; p::SIZE];
        put_u32(&mut params, p::FLAGS, SET_CILP);
        put_u32(&mut params, p::H_CHANNEL, group.0);
        put_u32(&mut params, p::CILP_PREEMPT_MODE, CILP);
        let status = rmcall::control(
            tenant.backend.as_ref(),
            file.fd(),
            client.0,
            subdevice.0,
            ctrl::NV2080_GR_SET_CTXSW_PREEMPTION_MODE,
            &mut params,
        )?;
        accepted(status, "preemption at the next instruction")?;
        if let Some(group) = self.groups().by_name.get_mut(&(client, group)) {
            group.preempts = true;
        }
        Ok(())
    }

    /// Whether the group was entered when it was born.
    pub fn knows(&self, name: (ClientHandle, ObjectHandle)) -> bool {
        self.groups().by_name.contains_key(&name)
    }

    /// A group is gone.
    fn gone(&self, name: (ClientHandle, ObjectHandle)) {
        if let Some(group) = self.groups().by_name.remove(&name) {
            self.board.slots[group.slot]
                .serial
                .store(0, Ordering::Release);
            self.board.changes.fetch_add(1, Ordering::AcqRel);
            self.node.tell();
        }
    }

    /// Lets go of groups that the ledger does not know any more.
    pub fn sweep(&self, tenant: &Tenant) {
        self.numbers.sweep(tenant, &self.node);
        let gone: Vec<_> = {
            let ledger = tenant.ledger();
            let groups = self.groups();
            let lives = |name: &(ClientHandle, ObjectHandle), group: &Group| {
                ledger.serial_of(name.0, name.1) == Some(group.object)
            };
            let dead = groups.by_name.iter().filter(|(n, g)| !lives(n, g));
            dead.map(|(&name, _)| name).collect()
        };
        gone.into_iter().for_each(|name| self.gone(name));
    }

    /// Starts the thread that carries out what the scheduler writes.
    ///
    /// # Errors
    /// As pthread_create(3).
    pub fn start(tenant: &Arc<Tenant>) -> io::Result<()> {
        let tenant = Arc::downgrade(tenant);
        let builder = thread::Builder::new().name("levers".into());
        builder.stack_size(STACK).spawn(move || {
            while let Some(tenant) = tenant.upgrade() {
                let Some(levers) = &tenant.levers else { return };
                let plans = levers.board.plans.load(Ordering::Acquire);
                let next = levers.carry_out(&tenant);
                shared::sleep_on(&levers.board.plans, plans, next);
            }
        })?;
        Ok(())
    }

    /// Makes everything as the board wants it. How soon it is to be looked at again, whatever happens.
    fn carry_out(&self, tenant: &Arc<Tenant>) -> Option<Duration> {
        self.sweep(tenant);
        self.keep(tenant);
        if !tenant.walls.birth_window {
            self.tell_late();
        }
        let mut groups: Vec<_> = {
            let groups = self.groups();
            groups
                .by_name
                .iter()
                .map(|(&n, g)| (n, g.clone()))
                .collect()
        };
        groups.sort_unstable_by_key(|(_, group)| group.serial);
        let (mut off, mut on, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let mut detached = false;
        for (name, group) in groups {
            let at = &self.board.slots[group.slot];
            let Some(wanted) = at.wanted(group.serial) else {
                continue;
            };
            detached |= !wanted.attached;
            let has = at.has(group.serial);
            if has == Some(wanted) {
                continue;
            }
            match has.map(|has| has.attached) {
                Some(attached) if attached == wanted.attached => {}
                None if wanted.attached => {}
                _ if wanted.attached => on.push((name, group.clone())),
                _ => off.push((name, group.clone())),
            }
            if has.map(|has| has.slice_us) != Some(wanted.slice_us) {
                others.push((name, group, wanted));
            }
        }
        // Whoever waits to be let in again loses time that nobody gives back; slices can wait.
        let mut left = !self.turn(tenant, &off, true);
        left |= !self.turn(tenant, &on, false);
        for (name, group, wanted) in others {
            left |= self.reslice(tenant, name, &group, wanted).is_err();
        }
        match (left, detached) {
            (true, _) => Some(AGAIN),
            (false, true) => Some(LOOK),
            (false, false) if !tenant.walls.birth_window => Some(LOOK),
            (false, false) => None,
        }
    }

    /// Without the wall `birth_window` groups are told of from time to time, and have the driver's slice until then.
    fn tell_late(&self) {
        let now = shared::now_us();
        let last = self.told_us.load(Ordering::Relaxed);
        if now < last + LOOK.as_micros() as u64 {
            return;
        }
        self.told_us.store(now, Ordering::Relaxed);
        let mut any = false;
        for group in self.groups().by_name.values() {
            let at = &self.board.slots[group.slot];
            any |= at.serial.swap(group.serial, Ordering::AcqRel) != group.serial;
        }
        if any {
            self.board.changes.fetch_add(1, Ordering::AcqRel);
            self.node.tell();
        }
    }

    /// Where the scheduler is gone, what it left for that case is wanted: nothing stays detached for ever but who is
    /// paused.
    fn keep(&self, tenant: &Tenant) {
        if self.board.paused.load(Ordering::Acquire) != 0 {
            return;
        }
        let silent = self.node.silent_us();
        if silent.is_none_or(|us| us <= SILENT.as_micros() as u64) {
            self.abandoned.store(false, Ordering::Relaxed);
            return;
        }
        // That its user stopped it does not hang on a scheduler.
        if self.board.paused.load(Ordering::Acquire) != 0 {
            return;
        }
        let groups = self.groups();
        let mut any = false;
        for group in groups.by_name.values() {
            let at = &self.board.slots[group.slot];
            let Some(wanted) = at.wanted(group.serial).filter(|w| !w.attached) else {
                continue;
            };
            let card = &self.board.cards[usize::from(group.device.0)];
            let fallback = card.fallback_us.load(Ordering::Acquire);
            let slice_us = if fallback == 0 {
                wanted.slice_us
            } else {
                fallback
            };
            let attached = Setting {
                slice_us,
                attached: true,
            };
            at.want(group.serial, attached);
            any = true;
        }
        drop(groups);
        if any && !self.abandoned.swap(true, Ordering::Relaxed) {
            tenant.say("the node's scheduler has died: what it had stopped goes on, divided as far as slices alone can");
        }
    }

    fn reslice(
        &self,
        tenant: &Tenant,
        name: (ClientHandle, ObjectHandle),
        group: &Group,
        wanted: Setting,
    ) -> io::Result<()> {
        let _order = tenant.in_order(name.0.0);
        let at = &self.board.slots[group.slot];
        let done = self.if_it_lives(tenant, name, group, |file| {
            self.set_slice(tenant, file, name, wanted.slice_us)
        });
        match done {
            Ok(()) => {
                let attached = at.has(group.serial).is_none_or(|has| has.attached);
                at.set_has(
                    group.serial,
                    Setting {
                        slice_us: wanted.slice_us,
                        attached,
                    },
                );
            }
            Err(_) => {
                at.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        done
    }

    fn if_it_lives(
        &self,
        tenant: &Tenant,
        (client, handle): (ClientHandle, ObjectHandle),
        group: &Group,
        pull: impl FnOnce(&OpenFile) -> io::Result<()>,
    ) -> io::Result<()> {
        if tenant.ledger().serial_of(client, handle) != Some(group.object) {
            // The next sweep lets go of it.
            return Ok(());
        }
        match group.file.upgrade() {
            Some(file) => pull(&file),
            None => Ok(()),
        }
    }

    /// Detaches or attaches groups, as many as fit in each call. False: some could not be.
    fn turn(
        &self,
        tenant: &Tenant,
        groups: &[((ClientHandle, ObjectHandle), Group)],
        detach: bool,
    ) -> bool {
        let mut all = true;
        let mut rest = groups;
        while let Some((first, _)) = rest.split_first() {
            let device = first.1.device;
            // A group has at most as many channels as two calls hold; of several, as many as one call holds.
            let most = rest.iter().take_while(|(_, g)| g.device == device).count();
            let clients = rest[..most].iter().map(|(name, _)| name.0.0);
            let _order = tenant.in_order_of(clients);
            let (mut batch, mut channels) = (0, Vec::new());
            for (name, group) in &rest[..most] {
                let own = self.channels_of(tenant, *name, group);
                if batch > 0 && channels.len() + own.len() > MOST_CHANNELS {
                    break;
                }
                channels.extend(own);
                batch += 1;
            }
            let gpu = &tenant.device(device).gpu;
            let done = channels.chunks(MOST_CHANNELS).try_for_each(|channels| {
                self.board.pulls.fetch_add(1, Ordering::Relaxed);
                tenant.own.detach(gpu, channels, detach)
            });
            if done.is_ok() && !detach {
                self.make_up(tenant, &rest[..batch]);
            }
            for (_, group) in &rest[..batch] {
                let at = &self.board.slots[group.slot];
                let Some(wanted) = at.wanted(group.serial) else {
                    continue;
                };
                if done.is_ok() {
                    let slice_us = at.has(group.serial).map_or(wanted.slice_us, |h| h.slice_us);
                    let attached = !detach;
                    at.set_has(group.serial, Setting { slice_us, attached });
                } else {
                    at.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            all &= done.is_ok();
            rest = &rest[batch..];
        }
        all
    }

    fn channels_of(
        &self,
        tenant: &Tenant,
        (client, handle): (ClientHandle, ObjectHandle),
        group: &Group,
    ) -> Vec<(u32, u32)> {
        let ledger = tenant.ledger();
        if ledger.serial_of(client, handle) != Some(group.object) {
            return Vec::new();
        }
        let is_channel = |class: u32| {
            let entry = tenant.abi.class(class);
            entry.is_some_and(|entry| entry.kind == Kind::Channel)
        };
        let below = ledger.below(client, handle);
        let channels = below.filter(|&(_, class)| is_channel(class));
        channels.map(|(channel, _)| (client.0, channel.0)).collect()
    }
}

fn accepted(status: Status, what: &str) -> io::Result<()> {
    match status {
        Status::OK => Ok(()),
        status => Err(io::Error::other(format!(
            "the driver refuses {what}: {status:?}"
        ))),
    }
}
