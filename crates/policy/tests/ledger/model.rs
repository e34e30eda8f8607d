//! Random operations on the ledger and on a naive model: memories are a list, mappings are cells of
//! 64 KiB, and what is held is found by looking everywhere. Both must agree after every step.

use std::collections::BTreeMap;

use policy::ledger::{ClientHandle, DeviceIndex, Freed, Ledger, ObjectHandle, Pid, UvmFile};
use policy::units::Bytes;
use proptest::prelude::*;

const CELL: u64 = 64 << 10;
const CELLS: usize = 24;
const DEVICES: u8 = 2;
const PIDS: i32 = 3;

/// One step. Handles are drawn from a few numbers, so that most steps meet what earlier ones left.
#[derive(Clone, Copy, Debug)]
enum Step {
    AddClient(u32, i32),
    AddObject(u32, u32, u32, Option<u8>),
    Allocate(u32, u32, u32, u8, u64),
    Refused(u8, u64),
    Charge(u32, u32, u8, u64),
    Alias(u32, u32, u32, u32, u32),
    HoldExport(u32, u32, u64),
    AliasOfExport(u32, u32, u32, u64),
    DropExport(u64),
    Free(u32, u32),
    FreeClient(u32),
    CreateRange(u64, u64, u64),
    Map(u64, u8, u64, u64, u32, u32),
    Unmap(u64, u8, u64, u64),
    FreeRange(u64, u64),
    CloseUvm(u64),
    MapManaged(i32, u8, u64, u64),
    UnmapManaged(i32, u64, u64),
    Exit(i32),
    SetQuota(u8, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 1..4u32;
    // 0 stands for the client itself.
    let handle = || 0..7u32;
    let device = || 0..DEVICES;
    let cells = || 1..12u64;
    let file = || 0..2u64;
    let base = || 0..12u64;
    let pid = || 1..=PIDS;
    let export = || 1..4u64;
    // Short, so that neighbours are as common as overlaps.
    let length = || 1..7u64;
    // An object, and where a new one is put: client, parent, handle.
    let object = || (client(), handle());
    let place = || (client(), handle(), handle());
    let at = || (file(), device(), base(), length());
    let step = prop_oneof![
        3 => (client(), pid()).prop_map(|(c, p)| Step::AddClient(c, p)),
        4 => (place(), prop::option::of(device()))
            .prop_map(|((c, p, h), d)| Step::AddObject(c, p, h, d)),
        9 => (place(), device(), cells())
            .prop_map(|((c, p, h), d, n)| Step::Allocate(c, p, h, d, n)),
        1 => (device(), cells()).prop_map(|(d, n)| Step::Refused(d, n)),
        3 => (object(), device(), cells()).prop_map(|((c, h), d, n)| Step::Charge(c, h, d, n)),
        8 => (place(), object()).prop_map(|((c, p, h), (sc, sh))| Step::Alias(c, p, h, sc, sh)),
        4 => (object(), export()).prop_map(|((c, h), e)| Step::HoldExport(c, h, e)),
        3 => (place(), export()).prop_map(|((c, p, h), e)| Step::AliasOfExport(c, p, h, e)),
        3 => export().prop_map(Step::DropExport),
        6 => object().prop_map(|(c, h)| Step::Free(c, h)),
        1 => client().prop_map(Step::FreeClient),
        4 => (file(), base(), length()).prop_map(|(f, b, n)| Step::CreateRange(f, b, n)),
        9 => (at(), object()).prop_map(|((f, d, b, n), (c, h))| Step::Map(f, d, b, n, c, h)),
        5 => at().prop_map(|(f, d, b, n)| Step::Unmap(f, d, b, n)),
        2 => (file(), base()).prop_map(|(f, b)| Step::FreeRange(f, b)),
        1 => file().prop_map(Step::CloseUvm),
        4 => (pid(), device(), base(), length())
            .prop_map(|(p, d, b, n)| Step::MapManaged(p, d, b, n)),
        3 => (pid(), base(), length()).prop_map(|(p, b, n)| Step::UnmapManaged(p, b, n)),
        1 => pid().prop_map(Step::Exit),
        1 => (device(), 30..90u64).prop_map(|(d, n)| Step::SetQuota(d, n)),
    ];
    prop::collection::vec(step, 1..160)
}

#[derive(Clone, Debug)]
struct Object {
    age: usize,
    parent: Option<u32>,
    device: Option<u8>,
    memory: Option<usize>,
    charges: Vec<usize>,
}

/// (device, cells, allocating process) of every memory ever made.
type MemoryRow = (u8, u64, i32);

#[derive(Default)]
struct Model {
    quotas: BTreeMap<u8, u64>,
    memories: Vec<MemoryRow>,
    owners: BTreeMap<u32, i32>,
    objects: BTreeMap<(u32, u32), Object>,
    exports: BTreeMap<u64, Vec<usize>>,
    ranges: Vec<(u64, u64, u64)>,
    maps: BTreeMap<(u64, u8), [Option<usize>; CELLS]>,
    managed: BTreeMap<i32, [Option<u8>; CELLS]>,
    made: usize,
}

impl Model {
    fn holders(&self, memory: usize) -> impl Iterator<Item = (&(u32, u32), &Object)> {
        self.objects.iter().filter(move |(_, object)| {
            object.memory == Some(memory) || object.charges.contains(&memory)
        })
    }

    fn held(&self, memory: usize) -> bool {
        self.holders(memory).next().is_some()
            || self
                .maps
                .values()
                .flatten()
                .any(|cell| *cell == Some(memory))
            || self.exports.values().flatten().any(|held| *held == memory)
    }

    fn managed_cells(&self, device: u8, pid: Option<i32>) -> u64 {
        let processes = self
            .managed
            .iter()
            .filter(|(p, _)| pid.is_none_or(|pid| pid == **p));
        processes
            .flat_map(|(_, cells)| cells)
            .filter(|cell| **cell == Some(device))
            .count() as u64
    }

    fn used(&self, device: u8) -> u64 {
        let memories =
            (0..self.memories.len()).filter(|m| self.memories[*m].0 == device && self.held(*m));
        memories.map(|m| self.memories[m].1).sum::<u64>() + self.managed_cells(device, None)
    }

    fn used_by(&self, pid: i32, device: u8) -> u64 {
        let mut total = self.managed_cells(device, Some(pid));
        for (memory, (on, cells, origin)) in self.memories.iter().enumerate() {
            if *on == device && self.held(memory) {
                let oldest = self.holders(memory).min_by_key(|(_, object)| object.age);
                let payer = oldest.map_or(*origin, |((client, _), _)| self.owners[client]);
                total += if payer == pid { *cells } else { 0 };
            }
        }
        total
    }

    fn free(&mut self, client: u32, handle: u32) {
        let chain = |objects: &BTreeMap<(u32, u32), Object>, mut at: u32| {
            let mut found = at == handle;
            while let Some(parent) = objects.get(&(client, at)).and_then(|object| object.parent) {
                at = parent;
                found |= at == handle;
            }
            found
        };
        let doomed: Vec<u32> = self
            .objects
            .keys()
            .filter(|(c, _)| *c == client)
            .map(|(_, h)| *h)
            .collect();
        let doomed: Vec<u32> = doomed
            .into_iter()
            .filter(|h| chain(&self.objects, *h))
            .collect();
        for h in doomed {
            self.objects.remove(&(client, h));
        }
        if handle == client_root(client) {
            self.owners.remove(&client);
        }
    }

    fn add_client(&mut self, client: u32, pid: i32) {
        self.free(client, client_root(client));
        self.owners.insert(client, pid);
        self.made += 1;
        let root = Object {
            age: self.made,
            parent: None,
            device: None,
            memory: None,
            charges: Vec::new(),
        };
        self.objects.insert((client, client_root(client)), root);
    }

    fn place(&mut self, client: u32, parent: u32, handle: u32, mut object: Object) {
        if !self.owners.contains_key(&client) {
            self.add_client(client, 0);
        }
        let root = client_root(client);
        if handle == root {
            let holder = self.objects.get_mut(&(client, root)).expect("the client");
            holder
                .charges
                .extend(object.memory.into_iter().chain(object.charges));
            return;
        }
        self.free(client, handle);
        self.made += 1;
        object.age = self.made;
        object.parent = Some(if self.objects.contains_key(&(client, parent)) {
            parent
        } else {
            root
        });
        self.objects.insert((client, handle), object);
    }

    fn device_of(&self, client: u32, handle: u32) -> Option<u8> {
        let object = self.objects.get(&(client, handle))?;
        object
            .device
            .or_else(|| self.device_of(client, object.parent?))
    }

    fn unmap(&mut self, file: u64, base: u64, length: u64) {
        for ((_, _), cells) in self.maps.iter_mut().filter(|((f, _), _)| *f == file) {
            cells[base as usize..(base + length) as usize].fill(None);
        }
    }
}

fn client_root(client: u32) -> u32 {
    0xc1d0_0000 + client
}

fn client(number: u32) -> ClientHandle {
    ClientHandle(client_root(number))
}

/// The real number of a drawn handle.
fn real(client: u32, handle: u32) -> u32 {
    if handle == 0 {
        client_root(client)
    } else {
        handle
    }
}

/// Makes one step on both; says what was charged by it, in cells, and what the ledger says was
/// freed.
fn step(
    ledger: &mut Ledger,
    model: &mut Model,
    step: Step,
) -> Result<(Option<(u8, u64)>, Freed), TestCaseError> {
    let mut charged = None;
    let bare = |device| Object {
        age: 0,
        parent: None,
        device,
        memory: None,
        charges: Vec::new(),
    };
    // Reserves on the ledger exactly where the model has room.
    macro_rules! reserve {
        ($device:expr, $cells:expr) => {{
            let fits = model.used($device) + $cells <= model.quotas[&$device];
            let reserved = ledger.reserve(DeviceIndex($device), Bytes($cells * CELL));
            prop_assert_eq!(reserved.is_ok(), fits);
            reserved
        }};
    }
    let freed = match step {
        Step::AddClient(c, pid) => {
            model.add_client(c, pid);
            ledger.add_client(client(c), Pid(pid))
        }
        Step::AddObject(c, p, h, device) => {
            let (p, h) = (real(c, p), real(c, h));
            model.place(c, p, h, bare(device));
            ledger.add_object(
                client(c),
                ObjectHandle(p),
                ObjectHandle(h),
                0x80,
                device.map(DeviceIndex),
            )
        }
        Step::Allocate(c, p, h, device, cells) => match reserve!(device, cells) {
            Ok(reservation) => {
                let (p, h) = (real(c, p), real(c, h));
                charged = Some((device, cells));
                model
                    .memories
                    .push((device, cells, model.owners.get(&c).copied().unwrap_or(0)));
                let memory = Some(model.memories.len() - 1);
                model.place(
                    c,
                    p,
                    h,
                    Object {
                        memory,
                        ..bare(Some(device))
                    },
                );
                ledger.commit_memory(
                    reservation,
                    client(c),
                    ObjectHandle(p),
                    ObjectHandle(h),
                    0x40,
                )
            }
            Err(_) => Freed::default(),
        },
        Step::Refused(device, cells) => {
            if let Ok(reservation) = reserve!(device, cells) {
                prop_assert_eq!(
                    ledger.used(DeviceIndex(device)).0,
                    (model.used(device) + cells) * CELL
                );
                prop_assert_eq!(ledger.outstanding(), 1);
                prop_assert_eq!(ledger.audit(), Ok(()));
                ledger.cancel(reservation);
            }
            Freed::default()
        }
        Step::Charge(c, h, device, cells) => {
            let h = real(c, h);
            if let Ok(reservation) = reserve!(device, cells) {
                let known = ledger
                    .charge_object(reservation, client(c), ObjectHandle(h))
                    .is_ok();
                prop_assert_eq!(known, model.objects.contains_key(&(c, h)));
                if known {
                    charged = Some((device, cells));
                    model.memories.push((device, cells, model.owners[&c]));
                    let memory = model.memories.len() - 1;
                    model
                        .objects
                        .get_mut(&(c, h))
                        .expect("known")
                        .charges
                        .push(memory);
                }
            }
            Freed::default()
        }
        Step::Alias(c, p, h, sc, sh) => {
            let (p, h, sh) = (real(c, p), real(c, h), real(sc, sh));
            let alias = ledger.add_alias(
                client(c),
                ObjectHandle(p),
                ObjectHandle(h),
                client(sc),
                ObjectHandle(sh),
            );
            prop_assert_eq!(alias.is_ok(), model.objects.contains_key(&(sc, sh)));
            if let Some(source) = model.objects.get(&(sc, sh)).cloned() {
                let device = model.device_of(sc, sh);
                model.place(c, p, h, Object { device, ..source });
            }
            alias.unwrap_or_default()
        }
        Step::HoldExport(c, h, export) => {
            let h = real(c, h);
            let held = ledger.hold_export(client(c), ObjectHandle(h), export);
            prop_assert_eq!(held.is_ok(), model.objects.contains_key(&(c, h)));
            if let Some(object) = model.objects.get(&(c, h)) {
                let memories = object
                    .memory
                    .into_iter()
                    .chain(object.charges.iter().copied());
                model.exports.entry(export).or_default().extend(memories);
            }
            Freed::default()
        }
        Step::AliasOfExport(c, p, h, export) => {
            let (p, h) = (real(c, p), real(c, h));
            let mut memories = model
                .exports
                .get(&export)
                .cloned()
                .unwrap_or_default()
                .into_iter();
            let memory = memories.next();
            let device = memory.map(|memory| model.memories[memory].0);
            let charges = memories.filter(|other| Some(*other) != memory).collect();
            model.place(
                c,
                p,
                h,
                Object {
                    memory,
                    charges,
                    ..bare(device)
                },
            );
            ledger.add_alias_of_export(client(c), ObjectHandle(p), ObjectHandle(h), 0x40, export)
        }
        Step::DropExport(export) => {
            model.exports.remove(&export);
            ledger.drop_export(export)
        }
        Step::Free(c, h) => {
            let h = real(c, h);
            let before = model.objects.len();
            model.free(c, h);
            let freed = ledger.free(client(c), ObjectHandle(h));
            prop_assert_eq!(freed.objects.len(), before - model.objects.len());
            freed
        }
        Step::FreeClient(c) => {
            model.free(c, client_root(c));
            ledger.free_client(client(c))
        }
        Step::CreateRange(file, base, length) => {
            let (gone, kept): (Vec<_>, Vec<_>) = model
                .ranges
                .iter()
                .partition(|(f, start, end)| *f == file && *start < base + length && base < *end);
            model.ranges = kept;
            model.ranges.push((file, base, base + length));
            for (_, start, end) in gone {
                model.unmap(file, start, end - start);
            }
            ledger.create_range(UvmFile(file), base * CELL, length * CELL)
        }
        Step::Map(file, device, base, length, c, h) => {
            let h = real(c, h);
            let memory = model.objects.get(&(c, h)).and_then(|object| object.memory);
            let cells = model.maps.entry((file, device)).or_default();
            cells[base as usize..(base + length) as usize].fill(memory);
            ledger.map(
                UvmFile(file),
                DeviceIndex(device),
                base * CELL,
                length * CELL,
                client(c),
                ObjectHandle(h),
            )
        }
        Step::Unmap(file, device, base, length) => {
            let cells = model.maps.entry((file, device)).or_default();
            cells[base as usize..(base + length) as usize].fill(None);
            ledger.unmap(
                UvmFile(file),
                DeviceIndex(device),
                base * CELL,
                length * CELL,
            )
        }
        Step::FreeRange(file, base) => {
            if let Some(at) = model
                .ranges
                .iter()
                .position(|(f, start, _)| *f == file && *start == base)
            {
                let (_, start, end) = model.ranges.remove(at);
                model.unmap(file, start, end - start);
            }
            ledger.free_range(UvmFile(file), base * CELL)
        }
        Step::CloseUvm(file) => {
            model.ranges.retain(|(f, _, _)| *f != file);
            model.maps.retain(|(f, _), _| *f != file);
            ledger.close_uvm(UvmFile(file))
        }
        Step::MapManaged(pid, device, base, length) => match reserve!(device, length) {
            Ok(reservation) => {
                charged = Some((device, length));
                let cells = model.managed.entry(pid).or_default();
                cells[base as usize..(base + length) as usize].fill(Some(device));
                ledger.map_managed(reservation, Pid(pid), base * CELL, length * CELL)
            }
            Err(_) => Freed::default(),
        },
        Step::UnmapManaged(pid, base, length) => {
            let cells = model.managed.entry(pid).or_default();
            cells[base as usize..(base + length) as usize].fill(None);
            ledger.unmap_managed(Pid(pid), base * CELL, length * CELL)
        }
        Step::Exit(pid) => {
            model.managed.remove(&pid);
            ledger.exit_process(Pid(pid))
        }
        Step::SetQuota(device, cells) => {
            model.quotas.insert(device, cells);
            ledger.set_quota(DeviceIndex(device), Bytes(cells * CELL));
            Freed::default()
        }
    };
    Ok((charged, freed))
}

fn compare(ledger: &Ledger, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(ledger.audit(), Ok(()));
    prop_assert_eq!(ledger.outstanding(), 0);
    prop_assert_eq!(ledger.object_count(), model.objects.len());
    for device in 0..DEVICES {
        let used = model.used(device);
        prop_assert_eq!(ledger.used(DeviceIndex(device)).0, used * CELL);
        prop_assert_eq!(
            ledger.free_bytes(DeviceIndex(device)).0,
            model.quotas[&device].saturating_sub(used) * CELL
        );
        let mut by_process = 0;
        for pid in 0..=PIDS {
            let amount = ledger.used_by(Pid(pid), DeviceIndex(device)).0;
            prop_assert_eq!(amount, model.used_by(pid, device) * CELL);
            by_process += amount;
        }
        prop_assert_eq!(by_process, used * CELL);
    }
    for ((c, h), object) in &model.objects {
        let device = model.device_of(*c, *h).map(DeviceIndex);
        prop_assert_eq!(ledger.device_of(client(*c), ObjectHandle(*h)), device);
        let size = object
            .memory
            .map(|memory| Bytes(model.memories[memory].1 * CELL));
        prop_assert_eq!(ledger.memory_size(client(*c), ObjectHandle(*h)), size);
    }
    for (pid, cells) in &model.managed {
        let mut shown = [false; CELLS];
        for (base, length) in ledger.managed_of(Pid(*pid)) {
            shown[(base / CELL) as usize..((base + length) / CELL) as usize].fill(true);
        }
        prop_assert_eq!(shown, cells.map(|cell| cell.is_some()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_is_the_model(steps in steps()) {
        const QUOTAS: [u64; DEVICES as usize] = [60, 45];
        let mut ledger = Ledger::new(&QUOTAS.map(|cells| Bytes(cells * CELL)));
        let mut model = Model { quotas: (0..DEVICES).zip(QUOTAS).collect(), ..Model::default() };
        for one in steps {
            let before: Vec<u64> = (0..DEVICES).map(|device| model.used(device)).collect();
            let (charged, freed) = step(&mut ledger, &mut model, one)?;
            compare(&ledger, &model)?;
            for (device, before) in (0..DEVICES).zip(before) {
                let added = charged.filter(|(on, _)| *on == device).map_or(0, |(_, cells)| cells);
                // What is said to be freed is what is missing, and nothing grows beyond the quota.
                let after = model.used(device);
                prop_assert_eq!(freed.bytes(DeviceIndex(device)).0, (before + added - after) * CELL);
                prop_assert!(added == 0 || before + added <= model.quotas[&device]);
            }
        }
        // When everything is closed, nothing is left.
        for pid in 1..=PIDS {
            ledger.exit_process(Pid(pid));
        }
        for number in 0..4 {
            ledger.close_uvm(UvmFile(number));
            ledger.drop_export(number);
            ledger.free_client(client(number as u32));
        }
        for device in 0..DEVICES {
            prop_assert_eq!(ledger.used(DeviceIndex(device)), Bytes::ZERO);
        }
        prop_assert_eq!(ledger.object_count(), 0);
        prop_assert_eq!(ledger.audit(), Ok(()));
    }
}
