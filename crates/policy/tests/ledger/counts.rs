//! Random operations on what the ledger counts beside memory, and on a naive model that finds what is there by looking at
//! every object that was ever made. Both must agree after every step.

use std::collections::BTreeMap;

use policy::ledger::{ClientHandle, DeviceIndex, Ledger, ObjectHandle, Pid};
use policy::objects::{DeviceLimits, Limits, Need, What};
use policy::units::Bytes;
use proptest::prelude::*;

const DEVICE: DeviceIndex = DeviceIndex(0);

/// One step. Handles are drawn from a few numbers, so that most steps meet what earlier ones left; 0 stands for the client.
#[derive(Clone, Copy, Debug)]
enum Step {
    Client(u32),
    Group(u32, u32, u32),
    Channel(u32, u32, u32),
    Refused,
    Map(u32, u32, u64, u64),
    Move(u32, u32, u64, u64),
    Unmap(u32, u32, u64),
    OpenEvent(u32, u32),
    CloseEvent(u32, u32),
    Pin(u32, u32, u32),
    Free(u32, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 1..4u32;
    let handle = || 0..6u32;
    let address = || 1..4u64;
    let step = prop_oneof![
        3 => client().prop_map(Step::Client),
        4 => (client(), handle(), handle()).prop_map(|(c, p, h)| Step::Group(c, p, h)),
        8 => (client(), handle(), handle()).prop_map(|(c, p, h)| Step::Channel(c, p, h)),
        1 => Just(Step::Refused),
        6 => (client(), handle(), address(), 1..5u64).prop_map(|(c, h, a, n)| Step::Map(c, h, a, n)),
        3 => (client(), handle(), address(), address()).prop_map(|(c, h, a, b)| Step::Move(c, h, a, b)),
        3 => (client(), handle(), address()).prop_map(|(c, h, a)| Step::Unmap(c, h, a)),
        4 => (client(), 0..3u32).prop_map(|(c, fd)| Step::OpenEvent(c, fd)),
        3 => (client(), 0..3u32).prop_map(|(c, fd)| Step::CloseEvent(c, fd)),
        5 => (client(), handle(), handle()).prop_map(|(c, p, h)| Step::Pin(c, p, h)),
        6 => (client(), handle()).prop_map(|(c, h)| Step::Free(c, h)),
    ];
    prop::collection::vec(step, 1..120)
}

/// What something counts for: clients, objects, events, channels, groups, BAR1; and the group that its channels are in.
#[derive(Clone, Copy, Default, Debug)]
struct Row {
    sums: [u64; 6],
    group: Option<(u32, u32)>,
}

#[derive(Clone, Debug)]
struct Made {
    parent: u32,
    row: Row,
    mappings: Vec<(u64, u64)>,
    /// Addresses tell nothing of them any more.
    mixed_up: bool,
}

impl Made {
    fn new(parent: u32, row: Row) -> Made {
        Made {
            parent,
            row,
            mappings: Vec::new(),
            mixed_up: false,
        }
    }

    fn sizes_at(&self, address: u64) -> Vec<u64> {
        let at = self.mappings.iter().filter(|(a, _)| *a == address);
        at.map(|(_, bytes)| *bytes).collect()
    }

    fn take(&mut self, address: u64) -> Option<u64> {
        let may_be = |a: u64| self.mixed_up || a == address;
        let may_be = (0..self.mappings.len()).filter(|&i| may_be(self.mappings[i].0));
        let smallest = may_be.min_by_key(|&i| self.mappings[i].1)?;
        let (_, bytes) = self.mappings.remove(smallest);
        self.mixed_up &= !self.mappings.is_empty();
        Some(bytes)
    }
}

#[derive(Default)]
struct Model {
    /// By client and handle; a client is an object of itself under its own number, with parent 0.
    made: BTreeMap<(u32, u32), Made>,
    pinned: BTreeMap<(u32, u32), u32>,
    events: BTreeMap<(u32, u32), u64>,
}

impl Model {
    fn rows(&self) -> Vec<Row> {
        let objects = self.made.values().map(|made| made.row);
        let mappings = self.made.values().flat_map(|made| &made.mappings);
        let mapped = mappings.map(|(_, bytes)| Row {
            sums: [0, 1, 0, 0, 0, *bytes],
            group: None,
        });
        let events = self.events.values().map(|times| Row {
            sums: [0, 0, *times, 0, 0, 0],
            group: None,
        });
        let pinned = self.pinned.values().map(|_| Row {
            sums: [0, 1, 0, 0, 0, 0],
            group: None,
        });
        objects.chain(mapped).chain(events).chain(pinned).collect()
    }

    fn sums(&self) -> [u64; 6] {
        let mut sums = [0; 6];
        for row in self.rows() {
            for (sum, n) in sums.iter_mut().zip(row.sums) {
                *sum += n;
            }
        }
        sums
    }

    fn fits(&self, more: Row, limits: [u64; 6]) -> bool {
        let sums = self.sums();
        let in_group: u64 = self
            .rows()
            .iter()
            .filter(|row| row.group.is_some() && row.group == more.group)
            .map(|row| row.sums[3])
            .sum();
        (0..6).all(|i| more.sums[i] == 0 || sums[i] + more.sums[i] <= limits[i])
            && (more.group.is_none() || in_group + more.sums[3] <= 128)
    }

    fn free(&mut self, client: u32, handle: u32) {
        self.pinned.remove(&(client, handle));
        if !self.made.contains_key(&(client, handle)) {
            return;
        }
        let mut gone = vec![handle];
        let mut at = 0;
        while at < gone.len() {
            let below = self
                .made
                .iter()
                .filter(|((c, h), made)| *c == client && made.parent == gone[at] && *h != client);
            gone.extend(below.map(|((_, h), _)| *h).collect::<Vec<_>>());
            at += 1;
        }
        self.made
            .retain(|(c, h), _| *c != client || !gone.contains(h));
        if handle == client {
            self.pinned.retain(|(c, _), _| *c != client);
            self.events.retain(|(c, _), _| *c != client);
        } else {
            self.pinned
                .retain(|(c, _), parent| *c != client || !gone.contains(parent));
        }
    }

    fn put(&mut self, client: u32, parent: u32, handle: u32, row: Row) {
        self.free(client, handle);
        let known = self.made.contains_key(&(client, parent));
        let made = Made::new(if known { parent } else { client }, row);
        self.made.insert((client, handle), made);
    }
}

fn number(client: u32) -> u32 {
    100 + client
}

proptest! {
    #[test]
    fn what_is_counted_is_what_is_there(
        steps in steps(),
        limits in prop::array::uniform6(2..12u64),
    ) {
        let [clients, objects, events, channels, groups, bar1] = limits;
        let mut ledger = Ledger::new(&[Bytes(0)]);
        ledger.set_limits(Limits {
            clients,
            objects,
            events,
            host: Bytes(0),
            devices: vec![DeviceLimits {
                channels: channels as u32,
                groups: groups as u32,
                bar1: Bytes(bar1),
            }],
        });
        let mut model = Model::default();
        for step in steps {
            let on = |c: u32, h: u32| {
                let client = number(c);
                (client, if h == 0 { client } else { h })
            };
            match step {
                Step::Client(c) => {
                    let client = number(c);
                    let row = Row { sums: [1, 1, 0, 0, 0, 0], group: None };
                    let claim = ledger.claim(Need { clients: 1, ..Need::objects(1) });
                    prop_assert_eq!(claim.is_ok(), model.fits(row, limits));
                    if let Ok(claim) = claim {
                        ledger.add_client(ClientHandle(client), Pid(1));
                        ledger.attach(claim, ClientHandle(client), ObjectHandle(client));
                        model.free(client, client);
                        model.made.insert((client, client), Made::new(0, row));
                    }
                }
                Step::Group(c, p, h) | Step::Channel(c, p, h) => {
                    let ((client, parent), (_, handle)) = (on(c, p), on(c, h));
                    if handle == client || !model.made.contains_key(&(client, client)) {
                        continue;
                    }
                    let is_group = matches!(step, Step::Group(..));
                    let need = Need {
                        channels: u32::from(!is_group),
                        groups: u32::from(is_group),
                        device: Some(DEVICE),
                        group: (!is_group).then_some((ClientHandle(client), ObjectHandle(parent))),
                        ..Need::objects(1)
                    };
                    let row = Row {
                        sums: [0, 1, 0, u64::from(!is_group), u64::from(is_group), 0],
                        group: (!is_group).then_some((client, parent)),
                    };
                    let claim = ledger.claim(need);
                    prop_assert_eq!(claim.is_ok(), model.fits(row, limits));
                    if let Ok(claim) = claim {
                        ledger.add_object(ClientHandle(client), ObjectHandle(parent), ObjectHandle(handle), 1, None);
                        ledger.attach(claim, ClientHandle(client), ObjectHandle(handle));
                        model.put(client, parent, handle, row);
                    }
                }
                Step::Refused => {
                    if let Ok(claim) = ledger.claim(Need::objects(1)) {
                        ledger.give_up(claim);
                    }
                }
                Step::Map(c, h, address, bytes) => {
                    let (client, handle) = on(c, h);
                    let row = Row { sums: [0, 1, 0, 0, 0, bytes], group: None };
                    let need = Need { bar1: Bytes(bytes), device: Some(DEVICE), ..Need::objects(1) };
                    let claim = ledger.claim(need);
                    prop_assert_eq!(claim.is_ok(), model.fits(row, limits));
                    if let Ok(claim) = claim {
                        ledger.map_for_processor(claim, ClientHandle(client), ObjectHandle(handle), address);
                        if let Some(made) = model.made.get_mut(&(client, handle)) {
                            made.mappings.push((address, bytes));
                        }
                    }
                }
                Step::Move(c, h, from, to) => {
                    let (client, handle) = on(c, h);
                    ledger.move_mapping(ClientHandle(client), ObjectHandle(handle), from, to);
                    if let Some(made) = model.made.get_mut(&(client, handle)) {
                        let mut sizes = made.sizes_at(from);
                        sizes.dedup();
                        made.mixed_up |= sizes.len() > 1;
                        if !made.mixed_up && let Some(bytes) = made.take(from) {
                            made.mappings.push((to, bytes));
                        }
                    }
                }
                Step::Unmap(c, h, address) => {
                    let (client, handle) = on(c, h);
                    ledger.unmap_for_processor(ClientHandle(client), ObjectHandle(handle), address);
                    if let Some(made) = model.made.get_mut(&(client, handle)) {
                        made.take(address);
                    }
                }
                Step::OpenEvent(c, fd) => {
                    let row = Row { sums: [0, 0, 1, 0, 0, 0], group: None };
                    let claim = ledger.claim(Ledger::os_event());
                    prop_assert_eq!(claim.is_ok(), model.fits(row, limits));
                    if let Ok(claim) = claim {
                        let client = number(c);
                        ledger.open_event(claim, ClientHandle(client), fd);
                        if model.made.contains_key(&(client, client)) {
                            *model.events.entry((client, fd)).or_default() += 1;
                        }
                    }
                }
                Step::CloseEvent(c, fd) => {
                    let client = number(c);
                    ledger.close_event(ClientHandle(client), fd);
                    if let Some(times) = model.events.get_mut(&(client, fd)) {
                        *times = times.saturating_sub(1);
                    }
                }
                Step::Pin(c, p, h) => {
                    let ((client, parent), (_, handle)) = (on(c, p), on(c, h));
                    let row = Row { sums: [0, 1, 0, 0, 0, 0], group: None };
                    let claim = ledger.claim(Need::objects(1));
                    prop_assert_eq!(claim.is_ok(), model.fits(row, limits));
                    if let Ok(claim) = claim {
                        ledger.pin(claim, ClientHandle(client), ObjectHandle(parent), ObjectHandle(handle));
                        if model.made.contains_key(&(client, client)) {
                            model.pinned.insert((client, handle), parent);
                        }
                    }
                }
                Step::Free(c, h) => {
                    let (client, handle) = on(c, h);
                    ledger.free(ClientHandle(client), ObjectHandle(handle));
                    model.free(client, handle);
                }
            }
            prop_assert_eq!(ledger.audit(), Ok(()));
            let whats = [What::Clients, What::Objects, What::Events, What::Channels, What::Groups, What::Bar1];
            let counted = whats.map(|what| ledger.counts().used(what, DEVICE));
            prop_assert_eq!(counted, model.sums());
        }
    }
}

#[test]
fn pinned_pages_under_a_handle_of_the_drivers_choice_all_count_until_their_parent_goes() {
    let mut ledger = Ledger::new(&[Bytes(0)]);
    let (client, device) = (ClientHandle(1), ObjectHandle(2));
    ledger.add_client(client, Pid(1));
    ledger.add_object(client, ObjectHandle(1), device, 0x80, Some(DEVICE));
    for handle in [0, 0, 0, 7, 7] {
        let claim = ledger.claim(Need::objects(1)).expect("no limit");
        ledger.pin(claim, client, device, ObjectHandle(handle));
    }
    assert_eq!(ledger.counts().used(What::Objects, DEVICE), 4);
    ledger.free(client, ObjectHandle(0));
    assert_eq!(ledger.counts().used(What::Objects, DEVICE), 4);
    assert_eq!(ledger.audit(), Ok(()));
    ledger.free(client, device);
    assert_eq!(ledger.counts().used(What::Objects, DEVICE), 0);
    assert_eq!(ledger.audit(), Ok(()));
}

#[test]
fn host_memory_has_a_quota_of_its_own_and_is_no_device() {
    let mut ledger = Ledger::new(&[Bytes(10)]);
    let mut limits = Limits::none(1);
    limits.host = Bytes(100);
    ledger.set_limits(limits);
    let (client, device) = (ClientHandle(1), ObjectHandle(2));
    ledger.add_client(client, Pid(1));
    ledger.add_object(client, ObjectHandle(1), device, 0x80, Some(DEVICE));
    let reservation = ledger.reserve(DeviceIndex::HOST, Bytes(60)).expect("fits");
    ledger.commit_memory(reservation, client, device, ObjectHandle(3), 0x3e);
    assert_eq!(ledger.used(DEVICE), Bytes(0));
    assert_eq!(ledger.device_of(client, ObjectHandle(3)), Some(DEVICE));
    assert_eq!(ledger.memory_device(client, ObjectHandle(3)), None);
    assert!(ledger.reserve(DeviceIndex::HOST, Bytes(41)).is_err());
    // Counted once for two names, until both are gone; what it is of is its device's all the same.
    let alias = ledger.add_alias(
        client,
        ObjectHandle(1),
        ObjectHandle(4),
        client,
        ObjectHandle(3),
    );
    assert!(alias.is_ok());
    assert_eq!(ledger.device_of(client, ObjectHandle(4)), Some(DEVICE));
    ledger.free(client, ObjectHandle(3));
    assert_eq!(ledger.used(DeviceIndex::HOST), Bytes(60));
    assert_eq!(ledger.audit(), Ok(()));
    ledger.free_client(client);
    assert_eq!(ledger.used(DeviceIndex::HOST), Bytes(0));
    assert_eq!(ledger.audit(), Ok(()));
}
