//! Channel groups and channels: what an engine runs, and who may stop it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar};

use rm::{Kind, Status, layout};

use super::clients::Body;
use super::runlist::Item;
use super::{Answer, Call, Rm, status};
use crate::work::{WorkResult, WorkStatus};

/// Device memory behind a compute group's context buffers. A figure of the model, not a measurement: it only has to
/// be there, unseen by `GET_PID_INFO`.
pub const GROUP_HIDDEN_COMPUTE: u64 = 24 << 20;
/// The same for a copy group.
pub const GROUP_HIDDEN_COPY: u64 = 2 << 20;
/// The same for a compute object.
pub const OBJECT_HIDDEN_COMPUTE: u64 = 1 << 20;
/// Instance memory of a channel, in the model.
const CHANNEL_HIDDEN: u64 = 256 << 10;

/// Channels of one device, all engines together, whoever has them (driver 580: the firmware's heap is sized for so many).
const CHANNELS: usize = 2048;
/// Channels of one group (the driver's limit).
const CHANNELS_A_GROUP: usize = 128;

/// Number of what is no channel.
const NO_NUMBER: u32 = u32::MAX;

/// Slice that a group starts with: what CUDA asks for its compute group (measured on an H200, driver 580.159).
const COMPUTE_SLICE_US: u64 = 2048;
/// The same for copy groups.
const COPY_SLICE_US: u64 = 1024;

/// Engine types of `NV2080_ENGINE_TYPE` that are copy engines: COPY0 to COPY9.
const COPY_ENGINES: std::ops::RangeInclusive<u32> = 9..=18;

/// Channels of one group take turns on the engine together.
pub struct Group {
    pub gpu: usize,
    /// The client that made it, and its process.
    pub client: u32,
    pub pid: u32,
    engine_type: u32,
    /// Handle of the address space of channels that name none.
    vaspace: u32,
    pub slice_us: u64,
    pub scheduled: bool,
    pub preemption: Preemption,
    /// Time of the engine that its work has had, ns.
    pub ran_ns: u64,
}

/// How a context is taken off the engine (`0x20801210`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Preemption {
    /// When the running kernel is done: what a context starts with.
    #[default]
    WaitForIdle,
    /// At the next instruction: what CUDA asks for.
    Instruction,
}

/// A queue of work.
pub struct Channel {
    pub client: u32,
    pub group: u64,
    /// The number by which hardware knows it: the lowest that no other channel of the engine has.
    pub number: u32,
    /// Whether the group was made for this channel alone, because its parent is a device.
    own_group: bool,
    /// Handle of the context share it runs in, and of the address space it names itself.
    context_share: u32,
    vaspace: u32,
    pub scheduled: bool,
    /// Taken off the runlist by `FIFO_DISABLE_CHANNELS`.
    pub detached: bool,
    /// Detached without a preemption: what runs, runs to the end of its slice.
    pub lingers: bool,
    /// Disabled by its own schedule control, which cannot be undone (measured on an H200, driver 580.159).
    stopped: bool,
    /// Address of the fault that killed it.
    pub fault: Option<u64>,
    pub queue: VecDeque<Item>,
    /// An item is being executed, out of the queue.
    pub busy: bool,
    pub submitted: u64,
    pub outcomes: HashMap<u64, WorkResult>,
    /// Whoever waits for its work, or for room in its queue.
    pub changed: Arc<Condvar>,
}

impl Group {
    pub fn is_copy(&self) -> bool {
        COPY_ENGINES.contains(&self.engine_type)
    }
}

impl Channel {
    /// Whether the engine may run it, as far as the channel itself decides.
    pub fn attached(&self) -> bool {
        !self.detached && !self.stopped
    }

    /// The context is dead: what is queued ends as if it had touched this address.
    pub fn kill(&mut self, address: u64) {
        let status = WorkStatus::Fault {
            address: *self.fault.get_or_insert(address),
        };
        for dropped in std::mem::take(&mut self.queue) {
            if dropped.wanted {
                let result = WorkResult {
                    ticket: dropped.ticket,
                    ..WorkResult::only(status)
                };
                self.outcomes.insert(dropped.ticket, result);
            }
        }
        self.changed.notify_all();
    }
}

impl Rm {
    pub(super) fn new_group(&mut self, call: &mut Call, client: u32, gpu: usize) -> Group {
        use layout::channel_group_alloc as at;
        let params = call.params();
        let (engine, vaspace) = (params.u32(at::ENGINE_TYPE), params.u32(at::H_VA_SPACE));
        self.group_of(client, gpu, engine, vaspace)
    }

    /// Device memory that a new channel takes: context buffers too, if no group has them yet.
    pub(super) fn channel_hidden(&self, call: &mut Call, parent: Kind) -> u64 {
        if parent != Kind::Device {
            return CHANNEL_HIDDEN;
        }
        let engine = call.params().u32(layout::channel_alloc::ENGINE_TYPE);
        CHANNEL_HIDDEN
            + if COPY_ENGINES.contains(&engine) {
                GROUP_HIDDEN_COPY
            } else {
                GROUP_HIDDEN_COMPUTE
            }
    }

    /// Whether one more channel can be had: of the device's pool, and of its group. Which status the driver has for that
    /// is the model's choice.
    pub(super) fn room_for_channel(&self, client: u32, parent: u32, gpu: usize) -> Answer {
        let on_gpu = |channel: &&Channel| {
            let group = self.groups.get(&channel.group);
            group.is_some_and(|group| group.gpu == gpu)
        };
        let of_group = match self.body_of(client, parent) {
            Some(Body::Group(group)) => self.channels.values().filter(|c| c.group == group).count(),
            _ => 0,
        };
        if self.channels.values().filter(on_gpu).count() < CHANNELS && of_group < CHANNELS_A_GROUP {
            Ok(())
        } else {
            Err(Status::NO_MEMORY)
        }
    }

    pub(super) fn new_channel(
        &mut self,
        call: &mut Call,
        client: u32,
        parent: u32,
        gpu: usize,
    ) -> u64 {
        use layout::channel_alloc as at;
        let params = call.params();
        let (engine, vaspace) = (params.u32(at::ENGINE_TYPE), params.u32(at::H_VA_SPACE));
        let context_share = params.u32(at::H_CONTEXT_SHARE);
        let id = self.id();
        let (group, own_group) = match self.body_of(client, parent) {
            Some(Body::Group(group)) => (group, false),
            _ => {
                let group = self.id();
                let made = self.group_of(client, gpu, engine, vaspace);
                self.groups.insert(group, made);
                (group, true)
            }
        };
        let number = self.free_number(gpu, group);
        let channel = Channel {
            client,
            group,
            number,
            own_group,
            context_share,
            vaspace,
            scheduled: false,
            detached: false,
            lingers: false,
            stopped: false,
            fault: None,
            queue: VecDeque::new(),
            busy: false,
            submitted: 0,
            outcomes: HashMap::new(),
            changed: Arc::default(),
        };
        self.channels.insert(id, channel);
        id
    }

    pub(super) fn free_channel(&mut self, id: u64) {
        if let Some(channel) = self.channels.remove(&id) {
            channel.changed.notify_all();
            if channel.own_group {
                self.free_group(channel.group);
            }
        }
        self.stirred = true;
    }

    /// A group is gone; the time it had is its process's.
    pub(super) fn free_group(&mut self, id: u64) {
        if let Some(group) = self.groups.remove(&id)
            && group.ran_ns > 0
        {
            let past = self.devices[group.gpu].past.entry(group.pid).or_default();
            past[usize::from(group.is_copy())] += group.ran_ns;
        }
    }

    fn group_of(&self, client: u32, gpu: usize, engine_type: u32, vaspace: u32) -> Group {
        let pid = self.clients.get(&client).map_or(0, |client| client.pid);
        Group::new(gpu, client, pid, engine_type, vaspace)
    }

    /// The lowest number that no channel of the group's engine has.
    fn free_number(&self, gpu: usize, group: u64) -> u32 {
        let engine = |id: u64| {
            let group = self.groups.get(&id)?;
            Some((group.gpu, group.is_copy()))
        };
        let mine = engine(group).unwrap_or((gpu, false));
        let taken: HashSet<u32> = (self.channels.values())
            .filter(|channel| engine(channel.group) == Some(mine))
            .map(|channel| channel.number)
            .collect();
        (0..).find(|number| !taken.contains(number)).unwrap_or(0)
    }

    pub(super) fn body_of(&self, client: u32, handle: u32) -> Option<Body> {
        self.clients
            .get(&client)?
            .objects
            .get(&handle)
            .map(|object| object.body)
    }

    /// The channel of these handles, whoever asks.
    pub fn channel_id(&self, client: u32, handle: u32) -> Option<u64> {
        match self.body_of(client, handle) {
            Some(Body::Channel(id)) => Some(id),
            _ => None,
        }
    }

    /// Handle of the address space a channel runs in: its context share's, its own, its group's; 0: it names none.
    pub(super) fn channel_vaspace(&self, channel: &Channel) -> u32 {
        let shared = match self.body_of(channel.client, channel.context_share) {
            Some(Body::ContextShare(vaspace)) => vaspace,
            _ => 0,
        };
        let group = self
            .groups
            .get(&channel.group)
            .map_or(0, |group| group.vaspace);
        [shared, channel.vaspace, group]
            .into_iter()
            .find(|&handle| handle != 0)
            .unwrap_or(0)
    }

    /// `RM_IDLE_CHANNELS`: the channels named must exist; work is not waited for.
    pub(super) fn rm_idle_channels(&mut self, call: &mut Call) -> Answer {
        self.client(call, call.block.u32(layout::nvos30::H_CLIENT))
            .map(|_| ())
    }

    /// `0xa06c0101`. Switching a group off answers OK and does nothing (measured on an H200, driver 580.159).
    pub(super) fn schedule_group(&mut self, group: u64, enable: bool) -> Answer {
        let group = self
            .groups
            .get_mut(&group)
            .ok_or(Status::OBJECT_NOT_FOUND)?;
        group.scheduled |= enable;
        self.stirred = true;
        Ok(())
    }

    /// `0xa06f0103`. Switching a channel off stops it for good (measured on an H200, driver 580.159).
    pub(super) fn schedule_channel(&mut self, channel: u64, enable: bool) -> Answer {
        let channel = self
            .channels
            .get_mut(&channel)
            .ok_or(Status::OBJECT_NOT_FOUND)?;
        if enable {
            channel.scheduled = true;
        } else {
            channel.stopped = true;
        }
        self.stirred = true;
        Ok(())
    }

    /// `0xa06f0112`: kills the context.
    pub(super) fn stop_channel(&mut self, channel: u64) -> Answer {
        self.channels
            .get_mut(&channel)
            .ok_or(Status::OBJECT_NOT_FOUND)?
            .kill(0);
        self.stirred = true;
        Ok(())
    }

    pub(super) fn set_slice(&mut self, group: u64, us: u64) -> Answer {
        if us == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        if self.node.lacks.slices && self.groups.contains_key(&group) {
            return Ok(());
        }
        let set = self
            .groups
            .get_mut(&group)
            .ok_or(Status::OBJECT_NOT_FOUND)?;
        set.slice_us = us;
        // The slice that is running is as long as the new one says (measured on an H200: no restart is needed).
        let engine = usize::from(set.is_copy());
        self.devices[set.gpu].engines[engine].slice_changed(group, us);
        self.stirred = true;
        Ok(())
    }

    /// `0x2080110b`: takes channels off the runlist or puts them back. The driver looks them up by the handles alone:
    /// whose they are it does not ask (measured on an H200, driver 580.159, as an ordinary user).
    pub(super) fn disable_channels(&mut self, call: &mut Call) -> Answer {
        use layout::disable_channels as at;
        const MOST: u32 = 64;
        let params = call.params();
        let (count, disable) = (params.u32(at::NUM_CHANNELS), params.u8(at::B_DISABLE) != 0);
        let lingers = params.u8(at::B_ONLY_DISABLE_SCHEDULING) != 0;
        if count > MOST || params.u64(at::P_RUNLIST_PREEMPT_EVENT) != 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let named: Vec<(u32, u32)> = (0..count as usize)
            .map(|index| {
                (
                    params.u32(at::H_CLIENT_LIST + 4 * index),
                    params.u32(at::H_CHANNEL_LIST + 4 * index),
                )
            })
            .collect();
        let found: Option<Vec<u64>> = named
            .iter()
            .map(|&(client, handle)| self.channel_id(client, handle))
            .collect();
        for id in found.ok_or(status::INVALID_CHANNEL)? {
            if let Some(channel) = self.channels.get_mut(&id) {
                channel.detached = disable;
                channel.lingers = disable && lingers;
            }
        }
        self.stirred = true;
        Ok(())
    }

    /// `0x208f0403`: bound, enabled, scheduled.
    pub(super) fn channel_state(&mut self, call: &mut Call) -> Answer {
        use layout::channel_state as at;
        let params = call.params.get_or_insert_default();
        let id = self.channel_id(params.u32(at::H_CLIENT), params.u32(at::H_CHANNEL));
        let channel = id
            .and_then(|id| self.channels.get(&id))
            .ok_or(status::INVALID_CHANNEL)?;
        let scheduled = channel.scheduled
            || self
                .groups
                .get(&channel.group)
                .is_some_and(|group| group.scheduled);
        params.put_u8(at::B_BOUND, 1);
        params.put_u8(at::B_ENABLED, u8::from(channel.attached()));
        params.put_u8(at::B_SCHEDULED, u8::from(scheduled && channel.attached()));
        Ok(())
    }

    /// `0x20801210`: bit 0 of the flags says that the compute mode is set, 2 asks for instruction level.
    pub(super) fn set_preemption_mode(&mut self, call: &mut Call, client: u32) -> Answer {
        use layout::preemption_mode as at;
        let params = call.params();
        let (flags, mode, handle) = (
            params.u32(at::FLAGS),
            params.u32(at::CILP_PREEMPT_MODE),
            params.u32(at::H_CHANNEL),
        );
        let group = match self
            .body_of(client, handle)
            .ok_or(Status::OBJECT_NOT_FOUND)?
        {
            Body::Channel(id) => self.channels.get(&id).map(|channel| channel.group),
            Body::Group(id) => Some(id),
            _ => None,
        };
        let group = group
            .and_then(|id| self.groups.get_mut(&id))
            .ok_or(status::INVALID_CHANNEL)?;
        if flags & 1 != 0 {
            group.preemption = if mode == 2 {
                Preemption::Instruction
            } else {
                Preemption::WaitForIdle
            };
        }
        Ok(())
    }

    /// `0x2080121c`: the number of the channel whose context is on the compute engine, at work or not.
    pub(super) fn resident_channel(&mut self, call: &mut Call, gpu: usize) -> Answer {
        if self.node.lacks.residency {
            return Err(Status::NOT_SUPPORTED);
        }
        let loaded = self.devices[gpu].engines[0].resident();
        let channel = loaded.and_then(|id| self.channels.get(&id));
        let number = channel.map_or(NO_NUMBER, |channel| channel.number);
        let params = call.params();
        params.put_u32(layout::resident_channel::CH_ID, number);
        Ok(())
    }

    /// `0x0080170d`: hardware numbers of channels, the list of handles before the list of numbers. What is no channel of
    /// the client has none (by the driver's source).
    pub(super) fn channel_list(&mut self, call: &mut Call, client: u32) -> Answer {
        let [handles, numbers] = call.arrays.as_mut_slice() else {
            return Err(Status::INVALID_ARGUMENT);
        };
        for at in (0..handles.bytes.0.len()).step_by(4) {
            let handle = handles.bytes.u32(at);
            let id = self.channel_id(client, handle);
            let channel = id.and_then(|id| self.channels.get(&id));
            let number = channel.map_or(NO_NUMBER, |channel| channel.number);
            numbers.bytes.put_u32(at, number);
        }
        Ok(())
    }
}

impl Group {
    fn new(gpu: usize, client: u32, pid: u32, engine_type: u32, vaspace: u32) -> Group {
        let mut group = Group {
            gpu,
            client,
            pid,
            engine_type,
            vaspace,
            slice_us: COMPUTE_SLICE_US,
            scheduled: false,
            preemption: Preemption::default(),
            ran_ns: 0,
        };
        if group.is_copy() {
            group.slice_us = COPY_SLICE_US;
        }
        group
    }
}
