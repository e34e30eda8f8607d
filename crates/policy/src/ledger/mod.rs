//! The ledger of one tenant: which device memory it holds, by which names, and how much of its
//! quota is left.
//!
//! The ledger belongs to the tenant and not to its processes: they come and go, fork and exec, and
//! change nothing by it. It is plain data; the guard keeps it behind a lock.
//!
//! # How memory is charged and returned
//!
//! Memory is charged with [`Ledger::reserve`] **before** the driver is asked for it, so that no two
//! threads can both find room for the last byte. What the driver refuses is given back with
//! [`Ledger::cancel`]; what it grants becomes an object with [`Ledger::commit_memory`].
//!
//! A piece of memory is counted once however many names it has, and its charge returns when the
//! last of these is gone:
//! - an object, here or as an alias in any client of the tenant: freed by itself, with an ancestor,
//!   or with its client;
//! - an interval of a UVM file: the driver's UVM keeps a reference of its own for every mapping, so
//!   memory outlives the free of its handle for as long as any part of it is mapped;
//! - an export descriptor.
//!
//! # What else is counted
//!
//! Objects, channels, events and the like ([`crate::objects`]) are claimed with [`Ledger::claim`]
//! before the driver is asked, and given back with whatever they came with. Memory of the host is an
//! account like a device's ([`DeviceIndex::HOST`]).
//!
//! # Where the ledger and the driver disagree
//!
//! What the driver has accepted exists, so the ledger never refuses to record it. A handle that is
//! in use by the ledger's account is freed and taken anew (the driver refuses a handle that is in
//! use, so the old object is gone); an unknown parent stands for the client, an unknown client is
//! created with owner `Pid(0)`. Each errs towards charging too long, never too short.
//!
//! # The order the guard must keep
//!
//! The driver call and its record here must be one step for calls that make, free, alias or map
//! objects of one tenant: hold one lock across both. Otherwise a thread that has freed handle X in
//! the driver, and comes here late, returns the charge of a new X that another thread has allocated
//! meanwhile; or a free slips between a mapping in the driver and its record, which then finds no
//! memory to hold. A reservation may be taken at any time before.

mod audit;
mod claims;
mod mapped;
mod objects;
mod spans;

use std::collections::BTreeMap;
use std::fmt;

use crate::objects::{Counts, Limits, Need};
use crate::units::Bytes;
pub use claims::Claim;
use mapped::UvmState;
use objects::{Client, Memory};
use spans::Spans;

/// A device of the tenant's slice, in the slice's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u8);

impl DeviceIndex {
    /// Memory of the host that the driver allocates for the tenant: an account beside the devices',
    /// with a quota of its own ([`Limits::host`]). It is no device of any object.
    pub const HOST: DeviceIndex = DeviceIndex(u8::MAX);
}

/// A client of the driver's resource manager (`hRoot`, `hClient`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientHandle(pub u32);

/// An object of a client; a client is an object of itself under its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectHandle(pub u32);

/// The identity of an open UVM file: two descriptors of one open share it, two opens never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UvmFile(pub u64);

/// A process of the tenant, as the guard sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub i32);

/// A piece of physical memory. Never used twice, so a stale number can't name another piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MemId(u64);

/// Rules of the ledger that `gpuslice demo --without` switches off on simgpu, to show that its
/// checks would notice. A guard of a real card uses [`LedgerWalls::default`], with every rule on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerWalls {
    /// simgpu only. Off: every alias is charged as if it were memory of its own.
    pub alias_counted_once: bool,
    /// simgpu only. Off: a UVM mapping does not hold its memory, whose charge returns with the
    /// handle.
    pub mapping_outlives_free: bool,
    /// simgpu only. Off: only an object freed by its own handle returns its charge; what goes with
    /// an ancestor or the client stays charged for ever.
    pub release_by_ancestor: bool,
    /// simgpu only. Off: the quotas of all devices are one pool.
    pub per_device_quota: bool,
}

impl Default for LedgerWalls {
    fn default() -> LedgerWalls {
        LedgerWalls {
            alias_counted_once: true,
            mapping_outlives_free: true,
            release_by_ancestor: true,
            per_device_quota: true,
        }
    }
}

/// A request that does not fit the tenant's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverQuota {
    /// The device asked for.
    pub device: DeviceIndex,
    /// What was asked.
    pub asked: Bytes,
    /// What is charged already.
    pub used: Bytes,
    /// The limit; zero for a device that is not in the slice.
    pub quota: Bytes,
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverQuota {
            device,
            asked,
            used,
            quota,
        } = self;
        let free = quota.saturating_sub(*used);
        write!(
            f,
            "device {}: asked for {asked}, but {used} of the quota of {quota} is used and {free} is free",
            device.0
        )?;
        f.write_str("; free memory or raise the quota")
    }
}

impl std::error::Error for OverQuota {}

/// An object that the ledger has no record of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownObject {
    /// The client asked for.
    pub client: ClientHandle,
    /// The object asked for.
    pub handle: ObjectHandle,
}

impl fmt::Display for UnknownObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "client {:#x} has no object {:#x}",
            self.client.0, self.handle.0
        )
    }
}

impl std::error::Error for UnknownObject {}

/// Memory that is charged and not yet allocated. It must go back to the ledger that gave it: into
/// [`Ledger::commit_memory`], [`Ledger::charge_object`] or [`Ledger::map_managed`] when the driver
/// has granted it, into [`Ledger::cancel`] when it has not. One that is dropped instead keeps its
/// charge (and fails a debug build).
#[must_use = "a reservation stays charged until it is committed or cancelled"]
#[derive(Debug)]
pub struct Reservation {
    ticket: u64,
    device: DeviceIndex,
    amount: Bytes,
    settled: bool,
}

impl Reservation {
    /// The device that is charged.
    pub fn device(&self) -> DeviceIndex {
        self.device
    }

    /// What is charged.
    pub fn amount(&self) -> Bytes {
        self.amount
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        debug_assert!(
            self.settled || std::thread::panicking(),
            "a reservation was dropped and stays charged: {self:?}"
        );
    }
}

/// An object that went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedObject {
    /// Its client.
    pub client: ClientHandle,
    /// Its handle.
    pub handle: ObjectHandle,
    /// Its class, 0 for a client.
    pub class: u32,
}

/// Memory whose charge was returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The device.
    pub device: DeviceIndex,
    /// The amount.
    pub size: Bytes,
}

/// What a call took out of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Objects that are gone, an ancestor before its descendants.
    pub objects: Vec<FreedObject>,
    /// Charges that were returned.
    pub memory: Vec<Released>,
}

impl Freed {
    /// What was returned on one device.
    pub fn bytes(&self, device: DeviceIndex) -> Bytes {
        self.memory
            .iter()
            .filter(|released| released.device == device)
            .map(|released| released.size)
            .sum()
    }

    /// Whether nothing went.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.memory.is_empty()
    }

    fn append(&mut self, mut other: Freed) {
        self.objects.append(&mut other.objects);
        self.memory.append(&mut other.memory);
    }
}

/// The account of one device.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    quota: Bytes,
    used: Bytes,
    peak: Bytes,
}

/// The ledger of one tenant; see the module for its rules.
#[derive(Debug)]
pub struct Ledger {
    walls: LedgerWalls,
    accounts: Vec<Account>,
    host: Account,
    counts: Counts,
    claims: BTreeMap<u64, Need>,
    outstanding: BTreeMap<u64, Released>,
    clients: BTreeMap<ClientHandle, Client>,
    memories: BTreeMap<MemId, Memory>,
    exports: BTreeMap<u64, Vec<MemId>>,
    uvm: BTreeMap<UvmFile, UvmState>,
    managed: BTreeMap<Pid, Spans<DeviceIndex>>,
    /// The last number given to a reservation, a memory or an object; 2^64 of them are never
    /// reached.
    last_number: u64,
}

impl Ledger {
    /// The empty ledger of a slice with one quota for each of its devices.
    pub fn new(quotas: &[Bytes]) -> Ledger {
        Ledger::with_walls(quotas, LedgerWalls::default())
    }

    /// As [`Ledger::new`], with rules switched off. For simgpu only.
    pub fn with_walls(quotas: &[Bytes], walls: LedgerWalls) -> Ledger {
        Ledger {
            walls,
            accounts: quotas
                .iter()
                .map(|quota| Account {
                    quota: *quota,
                    ..Account::default()
                })
                .collect(),
            host: Account {
                quota: Bytes(u64::MAX),
                ..Account::default()
            },
            counts: Counts::new(Limits::none(quotas.len())),
            claims: BTreeMap::new(),
            outstanding: BTreeMap::new(),
            clients: BTreeMap::new(),
            memories: BTreeMap::new(),
            exports: BTreeMap::new(),
            uvm: BTreeMap::new(),
            managed: BTreeMap::new(),
            last_number: 0,
        }
    }

    /// Charges `amount` (as the driver will round it, see [`crate::rounding`]) before the driver is
    /// asked.
    ///
    /// # Errors
    /// [`OverQuota`] where it does not fit, or the slice has no such device; nothing is charged
    /// then.
    pub fn reserve(
        &mut self,
        device: DeviceIndex,
        amount: Bytes,
    ) -> Result<Reservation, OverQuota> {
        let (used, quota) = self.limit(device);
        // A sum that does not fit 64 bits is over every quota: hostile sizes end here and never
        // wrap.
        let fits = used.checked_add(amount).is_some_and(|total| total <= quota);
        if !fits || !self.charge(device, amount) {
            return Err(OverQuota {
                device,
                asked: amount,
                used,
                quota,
            });
        }
        let ticket = self.number();
        self.outstanding.insert(
            ticket,
            Released {
                device,
                size: amount,
            },
        );
        Ok(Reservation {
            ticket,
            device,
            amount,
            settled: false,
        })
    }

    /// Returns the charge of a reservation that the driver did not use.
    pub fn cancel(&mut self, reservation: Reservation) {
        let Released { device, size } = self.settle(reservation);
        self.uncharge(device, size);
    }

    /// Reservations that are neither committed nor cancelled.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// What is charged on a device, reservations included; zero for a device that is not in the
    /// slice.
    pub fn used(&self, device: DeviceIndex) -> Bytes {
        self.account(device).used
    }

    /// The quota of a device; zero for a device that is not in the slice.
    pub fn quota(&self, device: DeviceIndex) -> Bytes {
        self.account(device).quota
    }

    /// What a reservation on a device can still get.
    pub fn free_bytes(&self, device: DeviceIndex) -> Bytes {
        let (used, quota) = self.limit(device);
        quota.saturating_sub(used)
    }

    /// The most that was ever charged on a device.
    pub fn peak(&self, device: DeviceIndex) -> Bytes {
        self.account(device).peak
    }

    /// Changes the quota of a device of the slice. Below what is used it takes nothing away:
    /// requests are refused until enough is freed.
    pub fn set_quota(&mut self, device: DeviceIndex, quota: Bytes) {
        if let Some(account) = self.accounts.get_mut(usize::from(device.0)) {
            account.quota = quota;
        }
    }

    /// What one process holds on a device: memory whose oldest name is in one of its clients (or,
    /// where only mappings and exports are left, that it had allocated) and its managed memory.
    /// Every charge is some process's, once, but for reservations.
    pub fn used_by(&self, pid: Pid, device: DeviceIndex) -> Bytes {
        let memory = self
            .memories
            .values()
            .filter(|memory| memory.device == device && self.payer(memory) == pid);
        let managed = self.managed.get(&pid).into_iter().flat_map(Spans::iter);
        let managed = managed
            .filter(|(_, on)| *on == device)
            .map(|(span, _)| Bytes(span.length()));
        memory.map(|memory| memory.size).chain(managed).sum()
    }

    /// What is used and the limit that a request on `device` is held to.
    fn limit(&self, device: DeviceIndex) -> (Bytes, Bytes) {
        if self.walls.per_device_quota || self.accounts.get(usize::from(device.0)).is_none() {
            (self.used(device), self.quota(device))
        } else {
            let used = self.accounts.iter().map(|account| account.used).sum();
            (
                used,
                self.accounts.iter().map(|account| account.quota).sum(),
            )
        }
    }

    fn account(&self, device: DeviceIndex) -> Account {
        if device == DeviceIndex::HOST {
            return self.host;
        }
        self.accounts
            .get(usize::from(device.0))
            .copied()
            .unwrap_or_default()
    }

    fn account_mut(&mut self, device: DeviceIndex) -> Option<&mut Account> {
        if device == DeviceIndex::HOST {
            return Some(&mut self.host);
        }
        self.accounts.get_mut(usize::from(device.0))
    }

    /// Adds to what is used, whatever the quota; false where there is no such device.
    /// [`Ledger::reserve`] has checked that the sum is within a quota, so it does not saturate;
    /// only aliases charged twice (a wall switched off on simgpu) come unchecked.
    fn charge(&mut self, device: DeviceIndex, amount: Bytes) -> bool {
        let Some(account) = self.account_mut(device) else {
            return false;
        };
        account.used = account.used.saturating_add(amount);
        account.peak = account.peak.max(account.used);
        true
    }

    /// Takes from what is used. Only what was charged is ever returned, so it does not go below
    /// zero.
    fn uncharge(&mut self, device: DeviceIndex, amount: Bytes) {
        let Some(account) = self.account_mut(device) else {
            return;
        };
        debug_assert!(
            account.used >= amount,
            "device {}: {amount} returned of {}",
            device.0,
            account.used
        );
        account.used = account.used.saturating_sub(amount);
    }

    /// Ends a reservation; its charge is then the caller's to keep or return.
    fn settle(&mut self, mut reservation: Reservation) -> Released {
        reservation.settled = true;
        let known = self.outstanding.remove(&reservation.ticket);
        debug_assert!(
            known.is_some(),
            "a reservation of another ledger: {reservation:?}"
        );
        // A reservation of another ledger (a bug of the caller) charges nothing here, so there is
        // nothing to return.
        known.unwrap_or(Released {
            device: reservation.device,
            size: Bytes::ZERO,
        })
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}
