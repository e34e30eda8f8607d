//! Quotas of what is not device memory: channels, groups, clients, objects, events, the window of the card (BAR1) and
//! memory of the host. A card has one pool of channels for everybody, and the driver's own tables are everybody's: who
//! takes them all keeps his neighbours from starting.
//!
//! What is counted is counted in [`crate::ledger`], so that it goes with its object, an ancestor, the client or the file.

use std::collections::BTreeMap;
use std::fmt;

use crate::ledger::{ClientHandle, DeviceIndex, ObjectHandle};
use crate::units::Bytes;

/// Channels of one card, all engines together (the firmware's heap is sized for so many: gsp_fw_heap.h of driver 580).
pub const POOL_CHANNELS: u32 = 2048;
/// Those that slices share. The rest is for the driver's own and for programs outside of slices.
pub const SLICED_CHANNELS: u32 = 1920;
/// Channels of a CUDA context (measured on an H200, driver 580.159: 8 for compute, 12 for copies).
pub const CONTEXT_CHANNELS: u32 = 20;
/// Groups of a CUDA context (measured there: one for compute, three for copies).
pub const CONTEXT_GROUPS: u32 = 4;
/// Every slice has at least three contexts' channels, however small it is: a program, a second process of it, and one
/// that is being replaced.
pub const LEAST_CHANNELS: u32 = 3 * CONTEXT_CHANNELS;
/// Channels of one group (the driver's own limit).
pub const CHANNELS_A_GROUP: u32 = 128;
/// Channels for one group, as in a CUDA context.
const CHANNELS_FOR_A_GROUP: u32 = CONTEXT_CHANNELS / CONTEXT_GROUPS;

/// Clients of one slice. A CUDA process has one, and one more for a moment when it starts.
pub const CLIENTS: u64 = 1024;
/// Objects of one slice, for each of its cards. A CUDA context has 105 and 27 mappings (measured on an H200, driver
/// 580.159), and one more for each piece of memory.
pub const OBJECTS_A_CARD: u64 = 65_536;
/// Events of one slice, for each of its cards, objects and descriptors. A CUDA context has 16 (measured there).
pub const EVENTS_A_CARD: u64 = 8192;

/// BAR1 that every slice has: a CUDA context maps 2 MiB (measured on an H200, driver 580.159).
pub const LEAST_BAR1: Bytes = Bytes::from_mib(8);
/// Memory of the host that every slice has: a CUDA context takes 70 MiB (measured there).
pub const LEAST_HOST: Bytes = Bytes::from_gib(1);
/// Of BAR1 and of the host's memory, this many eighths are for slices.
const SLICED_EIGHTHS: u64 = 7;

/// `part / whole` of a pool, rounded down, so that shares never sum above it; nothing where there is no whole, and never
/// more than the pool.
pub fn share_of(pool: u64, part: Bytes, whole: Bytes) -> u64 {
    if whole == Bytes::ZERO {
        return 0;
    }
    let share = u128::from(pool) * u128::from(part.0) / u128::from(whole.0);
    u64::try_from(share).unwrap_or(pool).min(pool)
}

/// Channels that a slice with `memory` of a card's `total` is to have: its share, and at least [`LEAST_CHANNELS`].
pub fn channels_for(memory: Bytes, total: Bytes) -> u32 {
    // A share is at most the pool, which fits.
    let share = share_of(u64::from(SLICED_CHANNELS), memory, total) as u32;
    share.max(LEAST_CHANNELS)
}

/// Groups that go with so many channels.
pub fn groups_for(channels: u32) -> u32 {
    channels / CHANNELS_FOR_A_GROUP
}

/// BAR1 for a slice with `memory` of a card's `total`. A card that names no BAR1 has none to run out of.
pub fn bar1_for(bar1: Bytes, memory: Bytes, total: Bytes) -> Bytes {
    if bar1 == Bytes::ZERO {
        return Bytes(u64::MAX);
    }
    Bytes(share_of(bar1.0 / 8 * SLICED_EIGHTHS, memory, total)).max(LEAST_BAR1)
}

/// Host memory for a slice with `memory` of all cards' `total`.
pub fn host_for(ram: Bytes, memory: Bytes, total: Bytes) -> Bytes {
    Bytes(share_of(ram.0 / 8 * SLICED_EIGHTHS, memory, total)).max(LEAST_HOST)
}

/// What a slice may have of one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Channels.
    pub channels: u32,
    /// Channel groups.
    pub groups: u32,
    /// Bytes mapped through BAR1.
    pub bar1: Bytes,
}

/// What a slice may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients.
    pub clients: u64,
    /// Objects, the clients and mappings included.
    pub objects: u64,
    /// Events: objects of that kind, and descriptors registered for them.
    pub events: u64,
    /// Memory of the host that the driver allocates.
    pub host: Bytes,
    /// By device, in the slice's order.
    pub devices: Vec<DeviceLimits>,
}

impl Limits {
    /// No limit at all, for a ledger that counts memory only.
    pub fn none(devices: usize) -> Limits {
        let device = DeviceLimits {
            channels: u32::MAX,
            groups: u32::MAX,
            bar1: Bytes(u64::MAX),
        };
        Limits {
            clients: u64::MAX,
            objects: u64::MAX,
            events: u64::MAX,
            host: Bytes(u64::MAX),
            devices: vec![device; devices],
        }
    }
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// [`Limits::clients`].
    Clients,
    /// [`Limits::objects`].
    Objects,
    /// [`Limits::events`].
    Events,
    /// [`Limits::host`].
    Host,
    /// [`DeviceLimits::channels`].
    Channels,
    /// [`DeviceLimits::groups`].
    Groups,
    /// [`CHANNELS_A_GROUP`].
    ChannelsOfAGroup,
    /// [`DeviceLimits::bar1`].
    Bar1,
}

impl What {
    /// All limits, in the order of their numbers (`as usize`).
    pub const ALL: [What; 8] = [
        What::Clients,
        What::Objects,
        What::Events,
        What::Host,
        What::Channels,
        What::Groups,
        What::ChannelsOfAGroup,
        What::Bar1,
    ];
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            What::Clients => "clients",
            What::Objects => "objects",
            What::Events => "events",
            What::Host => "bytes of host memory",
            What::Channels => "channels",
            What::Groups => "channel groups",
            What::ChannelsOfAGroup => "channels in one group",
            What::Bar1 => "bytes of BAR1",
        })
    }
}

/// A request above a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// Which.
    pub what: What,
    /// What was asked for.
    pub asked: u64,
    /// What there is already.
    pub used: u64,
    /// The limit; zero for a device that is not in the slice.
    pub limit: u64,
}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverLimit {
            what,
            asked,
            used,
            limit,
        } = self;
        write!(
            f,
            "{asked} more of {limit} {what} asked for, and {used} are in use"
        )
    }
}

impl std::error::Error for OverLimit {}

/// What one call is about to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Clients.
    pub clients: u32,
    /// Objects.
    pub objects: u32,
    /// Events.
    pub events: u32,
    /// Channels, on `device`.
    pub channels: u32,
    /// Groups, on `device`.
    pub groups: u32,
    /// Bytes of BAR1, on `device`.
    pub bar1: Bytes,
    /// The device that channels, groups and BAR1 are of.
    pub device: Option<DeviceIndex>,
    /// The group that the channels are in.
    pub group: Option<(ClientHandle, ObjectHandle)>,
}

impl Need {
    /// So many objects and nothing else.
    pub fn objects(objects: u32) -> Need {
        Need {
            objects,
            ..Need::default()
        }
    }
}

/// What there is of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DeviceCounts {
    channels: u64,
    groups: u64,
    bar1: u64,
}

/// What a tenant has, and what it may have.
#[derive(Clone, Debug)]
pub struct Counts {
    limits: Limits,
    clients: u64,
    objects: u64,
    events: u64,
    devices: Vec<DeviceCounts>,
    in_group: BTreeMap<(ClientHandle, ObjectHandle), u64>,
}

impl PartialEq for Counts {
    /// Whether the same is there; limits are no part of it.
    fn eq(&self, other: &Counts) -> bool {
        (self.clients, self.objects, self.events) == (other.clients, other.objects, other.events)
            && self.devices == other.devices
            && self.in_group == other.in_group
    }
}

impl Counts {
    /// Nothing yet.
    pub fn new(limits: Limits) -> Counts {
        Counts {
            clients: 0,
            objects: 0,
            events: 0,
            devices: vec![DeviceCounts::default(); limits.devices.len()],
            in_group: BTreeMap::new(),
            limits,
        }
    }

    /// Nothing, of a tenant with the same limits.
    pub fn emptied(&self) -> Counts {
        Counts::new(self.limits.clone())
    }

    /// What may be had.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How much there is, on a device where the limit is a device's.
    pub fn used(&self, what: What, device: DeviceIndex) -> u64 {
        let of_device = self
            .devices
            .get(usize::from(device.0))
            .copied()
            .unwrap_or_default();
        match what {
            What::Clients => self.clients,
            What::Objects => self.objects,
            What::Events => self.events,
            What::Channels => of_device.channels,
            What::Groups => of_device.groups,
            What::Bar1 => of_device.bar1,
            What::ChannelsOfAGroup => self.in_group.values().copied().max().unwrap_or(0),
            What::Host => 0,
        }
    }

    /// Counts all that a call needs, or nothing.
    ///
    /// # Errors
    /// The first [`OverLimit`].
    pub fn add(&mut self, need: &Need) -> Result<(), OverLimit> {
        let within = |what, asked: u64, used: u64, limit: u64| {
            let fits = asked == 0 || used.checked_add(asked).is_some_and(|sum| sum <= limit);
            let over = OverLimit {
                what,
                asked,
                used,
                limit,
            };
            if fits { Ok(()) } else { Err(over) }
        };
        let at = need.device.map(|device| usize::from(device.0));
        let have = at
            .and_then(|at| self.devices.get(at))
            .copied()
            .unwrap_or_default();
        let limit = at.and_then(|at| self.limits.devices.get(at));
        let of_device = |limit_of: fn(&DeviceLimits) -> u64| limit.map_or(0, limit_of);
        within(
            What::Channels,
            need.channels.into(),
            have.channels,
            of_device(|l| l.channels.into()),
        )?;
        within(
            What::Groups,
            need.groups.into(),
            have.groups,
            of_device(|l| l.groups.into()),
        )?;
        within(What::Bar1, need.bar1.0, have.bar1, of_device(|l| l.bar1.0))?;
        if let Some(group) = need.group {
            let used = self.in_group.get(&group).copied().unwrap_or(0);
            let most = u64::from(CHANNELS_A_GROUP);
            within(What::ChannelsOfAGroup, need.channels.into(), used, most)?;
        }
        let (clients, objects, events) =
            (need.clients.into(), need.objects.into(), need.events.into());
        within(What::Clients, clients, self.clients, self.limits.clients)?;
        within(What::Events, events, self.events, self.limits.events)?;
        within(What::Objects, objects, self.objects, self.limits.objects)?;
        self.clients += clients;
        self.objects += objects;
        self.events += events;
        if let Some(device) = at.and_then(|at| self.devices.get_mut(at)) {
            device.channels += u64::from(need.channels);
            device.groups += u64::from(need.groups);
            device.bar1 += need.bar1.0;
        }
        if let Some(group) = need.group
            && need.channels > 0
        {
            *self.in_group.entry(group).or_insert(0) += u64::from(need.channels);
        }
        Ok(())
    }

    /// Takes what was counted away again. Only what was added is ever taken, so nothing goes below zero.
    pub fn take(&mut self, need: &Need) {
        let less = |from: &mut u64, by: u64| {
            debug_assert!(*from >= by, "{by} taken of {from}");
            *from = from.saturating_sub(by);
        };
        less(&mut self.clients, need.clients.into());
        less(&mut self.objects, need.objects.into());
        less(&mut self.events, need.events.into());
        let at = need.device.map(|device| usize::from(device.0));
        if let Some(device) = at.and_then(|at| self.devices.get_mut(at)) {
            less(&mut device.channels, need.channels.into());
            less(&mut device.groups, need.groups.into());
            less(&mut device.bar1, need.bar1.0);
        }
        if let Some(group) = need.group
            && let Some(channels) = self.in_group.get_mut(&group)
        {
            less(channels, need.channels.into());
            if *channels == 0 {
                self.in_group.remove(&group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CARD: Bytes = Bytes::from_gib(140);

    #[test]
    fn a_slice_has_its_share_of_the_channels_and_never_less_than_three_contexts() {
        assert_eq!(channels_for(CARD, CARD), 1920);
        assert_eq!(channels_for(Bytes::from_gib(70), CARD), 960);
        assert_eq!(channels_for(Bytes::from_gib(1), CARD), LEAST_CHANNELS);
        assert_eq!(channels_for(Bytes::ZERO, Bytes::ZERO), LEAST_CHANNELS);
        // More than the card, as with overcommit, is the card.
        assert_eq!(channels_for(Bytes(u64::MAX), CARD), 1920);
        // As many groups as the contexts that fit have.
        assert_eq!(groups_for(LEAST_CHANNELS), 3 * CONTEXT_GROUPS);
        assert_eq!(groups_for(1920), 384);
    }

    #[test]
    fn windows_and_host_memory_leave_an_eighth_to_others() {
        let bar1 = Bytes::from_mib(256);
        assert_eq!(bar1_for(bar1, CARD, CARD), Bytes::from_mib(224));
        assert_eq!(bar1_for(bar1, Bytes::from_gib(1), CARD), LEAST_BAR1);
        assert_eq!(bar1_for(Bytes::ZERO, CARD, CARD), Bytes(u64::MAX));
        let ram = Bytes::from_gib(512);
        assert_eq!(host_for(ram, CARD, CARD), Bytes::from_gib(448));
        assert_eq!(host_for(ram, Bytes::from_mib(1), CARD), LEAST_HOST);
    }

    #[test]
    fn a_refusal_counts_nothing() {
        let mut limits = Limits::none(1);
        limits.devices[0].groups = 2;
        limits.objects = 3;
        let mut counts = Counts::new(limits);
        let group = Need {
            objects: 1,
            groups: 1,
            device: Some(DeviceIndex(0)),
            ..Need::default()
        };
        assert_eq!(counts.add(&group), Ok(()));
        assert_eq!(counts.add(&group), Ok(()));
        let before = counts.clone();
        let over = counts.add(&group).expect_err("the limit is two");
        assert_eq!(
            over.to_string(),
            "1 more of 2 channel groups asked for, and 2 are in use"
        );
        assert_eq!(
            counts.add(&Need::objects(2)).map_err(|over| over.what),
            Err(What::Objects)
        );
        // A device that is not in the slice has nothing.
        let elsewhere = Need {
            device: Some(DeviceIndex(7)),
            ..group
        };
        assert_eq!(counts.add(&elsewhere).map_err(|over| over.limit), Err(0));
        assert!(counts == before);
        counts.take(&group);
        assert_eq!(counts.add(&group), Ok(()));
    }

    #[test]
    fn a_group_holds_128_channels() {
        let mut counts = Counts::new(Limits::none(1));
        let channel = |group| Need {
            objects: 1,
            channels: 1,
            device: Some(DeviceIndex(0)),
            group: Some((ClientHandle(1), ObjectHandle(group))),
            ..Need::default()
        };
        for _ in 0..CHANNELS_A_GROUP {
            assert_eq!(counts.add(&channel(5)), Ok(()));
        }
        assert_eq!(
            counts.add(&channel(5)).map_err(|over| over.what),
            Err(What::ChannelsOfAGroup)
        );
        assert_eq!(counts.add(&channel(6)), Ok(()));
        counts.take(&channel(5));
        assert_eq!(counts.add(&channel(5)), Ok(()));
    }

    #[test]
    fn every_limit_has_its_number() {
        for (number, what) in What::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, number);
        }
    }

    proptest! {
        /// However a card is cut, the shares of a pool sum to no more than the pool.
        #[test]
        fn shares_never_sum_above_the_pool(
            pool in 0..u64::MAX,
            cuts in prop::collection::vec(0..1000u64, 1..40),
        ) {
            let whole = Bytes(cuts.iter().sum());
            let sum: u128 = cuts
                .iter()
                .map(|&part| u128::from(share_of(pool, Bytes(part), whole)))
                .sum();
            prop_assert!(sum <= u128::from(pool));
        }
    }
}
