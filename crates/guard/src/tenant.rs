//! One tenant: who is limited. Outlives its processes; everything the helper's threads share.
//!
//! Lock order: `device_memory` -> `order` (by client, ascending shard) -> `clients_stay` -> `files` -> `ledger`. The last
//! two are held for bookkeeping only, never across a driver call; the others are held across the driver call whose order
//! they keep.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use policy::ledger::{ClientHandle, DeviceIndex, Ledger, LedgerWalls, Pid, UvmFile};
use policy::objects::Limits;
use policy::units::Bytes;
use rm::Abi;
use serde::{Deserialize, Serialize};

use crate::ahead::Ahead;
use crate::backend::Backend;
use crate::budget::{self, Budget};
use crate::caller::Callers;
use crate::files::{Files, Numbers};
use crate::limits::Refusals;
use crate::rmcall::{self, Gpu, OwnClient};
use crate::share::board::ShareWalls;
use crate::share::levers::Levers;
use crate::spaces::Spaces;
use crate::sys::{self, Tid};
use crate::trace::Trace;
use crate::unknown::Counts;
pub use crate::unknown::Unknown;

/// The walls of a slice. All stand; on a simulated GPU one can be taken away to show what it is for
/// (`demo --without`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Walls {
    /// Device memory is charged before it is allocated.
    pub quota_exact: bool,
    /// The tenant is shown its slice and not the card.
    pub visible_limit: bool,
    /// The charge comes before the call, so that racers cannot pass together.
    pub race_no_overshoot: bool,
    /// Another name for the same memory is not charged again.
    pub alias_counted_once: bool,
    /// Managed memory is charged when it is reserved.
    pub managed_charged: bool,
    /// A mapping keeps memory charged when its handle is freed.
    pub mapping_outlives_free: bool,
    /// The driver's rounded size is charged, not the asked one.
    pub size_rounding: bool,
    /// Freeing an ancestor frees what is below it.
    pub release_by_ancestor: bool,
    /// Each card has a quota of its own.
    pub per_device_quota: bool,
    /// No tenant can detach another's channels.
    pub foreign_detach_refused: bool,
    /// The limit does not hang on the tenant's environment.
    pub env_unset_still_limited: bool,
    /// The limit does not hang on the dynamic linker.
    pub static_binary_limited: bool,
    /// A signal does not make a call run twice.
    pub signals_no_double_charge: bool,
    /// The card's time is divided by weight.
    pub share_3_to_1: bool,
    /// A tenant's part does not grow with its processes and contexts.
    pub packing_held: bool,
    /// What a tenant owes outlives its processes.
    pub debt_survives_restart: bool,
    /// Each card is divided for itself.
    pub pool_per_device: bool,
    /// A channel group has its slice when its tenant learns of it.
    pub birth_window: bool,
}

impl Default for Walls {
    fn default() -> Walls {
        Walls {
            quota_exact: true,
            visible_limit: true,
            race_no_overshoot: true,
            alias_counted_once: true,
            managed_charged: true,
            mapping_outlives_free: true,
            size_rounding: true,
            release_by_ancestor: true,
            per_device_quota: true,
            foreign_detach_refused: true,
            env_unset_still_limited: true,
            static_binary_limited: true,
            signals_no_double_charge: true,
            share_3_to_1: true,
            packing_held: true,
            debt_survives_restart: true,
            pool_per_device: true,
            birth_window: true,
        }
    }
}

impl Walls {
    /// All walls but the named one; `None` if there is no such wall.
    pub fn without(name: &str) -> Option<Walls> {
        let mut value = serde_json::to_value(Walls::default()).ok()?;
        let wall = value.as_object_mut()?.get_mut(name)?;
        *wall = serde_json::Value::Bool(false);
        serde_json::from_value(value).ok()
    }

    /// The names of all walls.
    pub fn names() -> Vec<String> {
        match serde_json::to_value(Walls::default()) {
            Ok(serde_json::Value::Object(map)) => map.keys().cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// Those of the node's scheduler.
    pub fn shares(&self) -> ShareWalls {
        ShareWalls {
            planner: policy::share::Walls {
                packing_held: self.packing_held,
                debt_survives_restart: self.debt_survives_restart,
            },
            pool_per_device: self.pool_per_device,
        }
    }

    fn ledger(&self) -> LedgerWalls {
        LedgerWalls {
            alias_counted_once: self.alias_counted_once,
            mapping_outlives_free: self.mapping_outlives_free,
            release_by_ancestor: self.release_by_ancestor,
            per_device_quota: self.per_device_quota,
        }
    }
}

/// A device of the slice.
#[derive(Clone, Debug)]
pub struct SliceDevice {
    /// The card.
    pub gpu: Gpu,
    /// The tenant's quota on it.
    pub quota: Bytes,
}

/// No program makes so many different calls that the table lacks; what makes more is not worth counting.
pub(crate) const MOST_UNKNOWN: usize = 1024;

const ORDER_SHARDS: usize = 64;

/// What memory that nobody states goes with: device, class, and the engine of the group that comes with the object.
pub type Hidden = (u8, u32, Option<u32>);

/// Everything the helper knows of its tenant.
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// The driver's branch.
    pub abi: &'static Abi,
    /// The driver.
    pub backend: Arc<dyn Backend>,
    /// Which walls stand.
    pub walls: Walls,
    /// The devices of the slice; their positions are the ledger's [`DeviceIndex`].
    pub devices: Vec<SliceDevice>,
    /// Guard's own client.
    pub own: OwnClient,
    /// Threads that called lately.
    pub callers: Callers,
    /// Files by where they were last seen.
    pub numbers: Numbers,
    /// This process: the driver's identity for the tenant.
    pub helper: Tid,
    /// The end of a client may be entered (write) only while no call on another file that names memory of a client is
    /// between the driver and the ledger (read). Taken after `order`.
    clients_stay: RwLock<()>,
    /// Memory of the device is being measured (write) or changed by a call whose size is known (read).
    pub device_memory: RwLock<()>,
    /// What context buffers cost, as measured.
    pub implicit: Mutex<HashMap<Hidden, Bytes>>,
    /// Address spaces with managed memory.
    pub(crate) spaces: Spaces,
    /// What is done for a program before it asks.
    pub ahead: Ahead,
    /// How often it may call.
    pub budget: Budget,
    /// What acts on the GPU's scheduler for it; none where nobody is there to schedule (a test, say).
    pub levers: Option<Levers>,
    /// What it was refused because a limit was reached.
    pub refusals: Refusals,
    /// Who looks at every call, if anybody does.
    pub trace: Option<Box<dyn Trace>>,
    order: Vec<Mutex<()>>,
    ledger: Mutex<Ledger>,
    files: Mutex<Files>,
    processes: Processes,
    unknown: Mutex<HashMap<Unknown, u64>>,
    condemned: Mutex<Option<String>>,
    is_condemned: AtomicBool,
    wake: OwnedFd,
}

impl Tenant {
    /// A tenant that holds nothing yet.
    ///
    /// # Errors
    /// The kernel lacks what guard needs.
    pub fn new(
        name: String,
        abi: &'static Abi,
        backend: Arc<dyn Backend>,
        walls: Walls,
        devices: Vec<SliceDevice>,
        own: OwnClient,
        limits: Limits,
    ) -> io::Result<Tenant> {
        let quotas: Vec<Bytes> = devices.iter().map(|d| d.quota).collect();
        let mut ledger = Ledger::with_walls(&quotas, walls.ledger());
        ledger.set_limits(limits);
        let budget = Budget::new(budget::CALLS_A_SECOND, devices.len());
        let limit = sys::descriptor_limit();
        // A quarter each for the tenant's open files, those watched, and its threads (two each); of the rest half for
        // its processes, and a quarter for address spaces with managed memory (two each).
        let files = Files::new(backend.watch()?, limit / 4);
        Ok(Tenant {
            name,
            abi,
            backend,
            walls,
            devices,
            own,
            callers: Callers::new(limit / 8),
            numbers: Numbers::default(),
            helper: std::process::id() as Tid,
            clients_stay: RwLock::new(()),
            device_memory: RwLock::new(()),
            implicit: Mutex::default(),
            spaces: Spaces::new(limit / 32),
            ahead: Ahead::default(),
            budget,
            levers: None,
            refusals: Refusals::default(),
            trace: None,
            order: (0..ORDER_SHARDS).map(|_| Mutex::new(())).collect(),
            ledger: Mutex::new(ledger),
            files: Mutex::new(files),
            processes: Processes::new(limit / 8)?,
            unknown: Mutex::default(),
            condemned: Mutex::default(),
            is_condemned: AtomicBool::new(false),
            wake: event_fd()?,
        })
    }

    /// The ledger.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// The tenant's open files of the driver.
    pub fn files(&self) -> MutexGuard<'_, Files> {
        lock(&self.files)
    }

    /// The tenant's processes.
    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Keeps the driver's calls on one client and the ledger's entries about them in one order.
    pub fn in_order(&self, client: u32) -> MutexGuard<'_, ()> {
        lock(&self.order[client as usize % ORDER_SHARDS])
    }

    /// As [`Tenant::in_order`] for any clients.
    pub fn in_order_of(&self, clients: impl Iterator<Item = u32>) -> Vec<MutexGuard<'_, ()>> {
        let shards: BTreeSet<usize> = clients.map(|c| c as usize % ORDER_SHARDS).collect();
        shards.into_iter().map(|s| lock(&self.order[s])).collect()
    }

    /// As [`Tenant::in_order`] for two clients (one, if they share a shard).
    pub fn in_order_two(&self, a: u32, b: u32) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let (a, b) = (a as usize % ORDER_SHARDS, b as usize % ORDER_SHARDS);
        let (low, high) = (a.min(b), a.max(b));
        let first = lock(&self.order[low]);
        let second = (low != high).then(|| lock(&self.order[high]));
        (first, second)
    }

    /// While this is held, no client goes from the ledger because its file was closed.
    pub fn named_clients_stay(&self) -> std::sync::RwLockReadGuard<'_, ()> {
        self.clients_stay
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The slice's device that an `NV01_DEVICE_0` with this instance names.
    pub fn device_by_instance(&self, instance: u32) -> Option<DeviceIndex> {
        self.device_where(|d| d.gpu.instance == instance)
    }

    /// The slice's device with this UUID.
    pub fn device_by_uuid(&self, uuid: &[u8]) -> Option<DeviceIndex> {
        self.device_where(|d| d.gpu.uuid_bytes == uuid)
    }

    fn device_where(&self, found: impl Fn(&SliceDevice) -> bool) -> Option<DeviceIndex> {
        self.devices
            .iter()
            .position(found)
            .map(|i| DeviceIndex(i as u8))
    }

    /// A device of the slice.
    pub fn device(&self, index: DeviceIndex) -> &SliceDevice {
        &self.devices[usize::from(index.0)]
    }

    /// Whether `/dev/nvidiaN` with this minor belongs to the slice.
    pub fn has_minor(&self, minor: u32) -> bool {
        self.devices.iter().any(|d| d.gpu.minor == minor)
    }

    /// Counts a call that the table does not know, and says so once.
    pub fn count_unknown(&self, what: Unknown) {
        let mut unknown = lock(&self.unknown);
        if unknown.len() >= MOST_UNKNOWN && !unknown.contains_key(&what) {
            return;
        }
        let n = unknown.entry(what).or_insert(0);
        *n += 1;
        if *n == 1 {
            drop(unknown);
            self.say(&match what.engine() {
                Some(engine) => format!(
                    "refused {what}: {engine} cannot be used in a slice of this version, which divides the memory of CUDA programs"
                ),
                None => format!(
                    "refused a call that this version does not know ({what}, branch {}); if a program needs it, send `gpuslice trace -- PROGRAM` with a bug report",
                    self.abi.branch()
                ),
            });
        }
    }

    /// The calls that the table does not know, and how often each was made.
    pub fn unknown_calls(&self) -> Counts {
        let mut counts: Counts = lock(&self.unknown).iter().map(|(&w, &n)| (w, n)).collect();
        counts.sort_unstable();
        counts
    }

    /// One line to the user.
    pub fn say(&self, line: &str) {
        // Who reads the errors may have gone: the tenant goes on.
        let _said = writeln!(io::stderr(), "gpuslice[{}]: {line}", self.name);
    }

    /// Ends the tenant: it did what only an attack does.
    pub fn condemn(&self, why: String) {
        let mut reason = lock(&self.condemned);
        if reason.is_none() {
            *reason = Some(why);
        }
        drop(reason);
        self.is_condemned.store(true, Ordering::Relaxed);
        wake(&self.wake);
    }

    /// Whether the tenant must end: none of its calls is served any more.
    pub fn is_condemned(&self) -> bool {
        self.is_condemned.load(Ordering::Relaxed)
    }

    /// Why the tenant must end, if it must.
    pub fn condemned(&self) -> Option<String> {
        lock(&self.condemned).clone()
    }

    /// A call was served: an audit is due within a second.
    pub fn mark_active(&self) {
        if self.processes.mark_active() {
            wake(&self.wake);
        }
    }

    /// Readable when [`Tenant::condemn`] was called or the helper's main thread has work.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        crate::backend::lend(&self.wake)
    }

    /// Enters what has happened without a call to see: processes that ended, files that were closed, managed memory that
    /// was unmapped.
    pub fn reclaim(&self) {
        self.note_ended();
        self.sweep();
        crate::audit::refresh_managed(self);
    }

    /// Enters the processes that have ended.
    pub fn note_ended(&self) {
        for process in self.processes.ended() {
            self.callers.forget_process(process);
            self.files().forget_process(process);
            self.spaces.process_ended(self, process);
            if let Some(trace) = &self.trace {
                trace.process_ended(process);
            }
        }
    }

    /// Gives up files that no process has any more.
    pub fn sweep(&self) {
        let alive = self.processes.alive();
        let none_named = self
            .clients_stay
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let mut files = self.files();
        let gone = files.sweep(&self.numbers, &alive, self.helper);
        let mut ledger = self.ledger();
        for client in gone.clients {
            ledger.free_client(ClientHandle(client));
        }
        for export in gone.exports {
            ledger.drop_export(export);
        }
        // Until here the handle of a client that has just gone cannot be entered again.
        drop((ledger, files, none_named));
        for (id, file) in gone.uvm {
            self.unmap_all(id, file.as_fd());
        }
        if let Some(trace) = &self.trace {
            gone.files.iter().for_each(|file| trace.closed(file.0));
        }
    }

    /// Takes what a UVM file maps out of it and gives the charge back. No process was seen to have the file.
    fn unmap_all(&self, id: UvmFile, file: BorrowedFd<'_>) {
        use rm::layout::uvm_unmap_external as l;
        let mapped: Vec<(DeviceIndex, u64, u64)> = self.ledger().mapped_by(id).collect();
        for (device, base, length) in mapped {
            // Room behind the block, as behind every other.
            let mut block = [0u8; l::SIZE + 64];
            rmcall::put_u64(&mut block, l::BASE, base);
            rmcall::put_u64(&mut block, l::LENGTH, length);
            block[l::GPU_UUID..][..16].copy_from_slice(&self.device(device).gpu.uuid_bytes);
            let unmapped = self
                .backend
                .ioctl(file, rm::uvm::UNMAP_EXTERNAL, &mut block);
            // Whatever its status says, nothing is mapped there now: UVM refuses only where there is no range, or no
            // address space of the GPU, to have a mapping in.
            if unmapped.is_err() {
                return;
            }
            self.ledger().unmap(id, device, base, length);
        }
        self.ledger().close_uvm(id);
    }

    /// Charges for a call of `thread`, after another look at what was given back if it does not fit at once.
    pub fn reserve(
        &self,
        device: DeviceIndex,
        amount: Bytes,
        thread: Tid,
    ) -> Option<policy::ledger::Reservation> {
        let first = self.ledger().reserve(device, amount).ok();
        first.or_else(|| {
            self.files().mapping_done(thread);
            self.reclaim();
            self.ledger().reserve(device, amount).ok()
        })
    }

    /// What a process of the tenant shows in the ledger on a device.
    pub fn used_by(&self, process: Tid, device: DeviceIndex) -> Bytes {
        self.ledger().used_by(Pid(process), device)
    }

    /// Whether a client handle is one of this tenant's.
    pub fn owns_client(&self, client: u32) -> bool {
        self.ledger().client_owner(ClientHandle(client)).is_some()
    }

    /// Processes of the tenant that have a client of the driver.
    pub fn gpu_processes(&self) -> Vec<Tid> {
        let ledger = self.ledger();
        let owners: HashSet<Tid> = ledger
            .clients()
            .filter_map(|c: ClientHandle| ledger.client_owner(c))
            .map(|p| p.0)
            .collect();
        let mut owners: Vec<Tid> = owners.into_iter().collect();
        owners.sort_unstable();
        owners
    }
}

/// A lock that goes on after a panic elsewhere: a helper thread that panicked has already ended the process.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn event_fd() -> io::Result<OwnedFd> {
    // SAFETY: the call takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn wake(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` is a live buffer of the eight bytes that eventfd(2) takes. A full counter wakes just as well.
    unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// The tenant's processes that were seen calling, and when they end.
pub struct Processes {
    epoll: OwnedFd,
    known: Mutex<HashMap<Tid, OwnedFd>>,
    /// Something changed since the last audit.
    active: AtomicBool,
    /// So many may be known at once: each takes a descriptor.
    most: usize,
}

impl Processes {
    fn new(most: usize) -> io::Result<Processes> {
        // SAFETY: the call takes flags and returns a new descriptor or -1.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Processes {
            epoll,
            known: Mutex::default(),
            active: AtomicBool::new(false),
            most,
        })
    }

    /// A call of this process is being served: its end will be noticed. True: it is the first.
    ///
    /// # Errors
    /// The process is gone. `EMFILE`: there are more than the helper can watch.
    pub fn note(&self, process: Tid) -> io::Result<bool> {
        let mut known = lock(&self.known);
        if known.contains_key(&process) {
            return Ok(false);
        }
        if known.len() >= self.most {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let pidfd = sys::pidfd_open(process, 0)?;
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: process as u64,
        };
        // SAFETY: `event` is live; both descriptors are ours.
        if unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                pidfd.as_raw_fd(),
                &mut event,
            )
        } < 0
        {
            return Err(io::Error::last_os_error());
        }
        known.insert(process, pidfd);
        Ok(true)
    }

    /// The processes that have ended since the last call.
    pub fn ended(&self) -> Vec<Tid> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        // SAFETY: `events` has room for as many entries as are asked for.
        let n = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                0,
            )
        };
        let mut known = lock(&self.known);
        let ended: Vec<Tid> = events
            .iter()
            .take(n.max(0) as usize)
            .map(|e| e.u64 as Tid)
            .collect();
        for process in &ended {
            // Closing the pidfd takes it out of the epoll set.
            known.remove(process);
        }
        ended
    }

    /// Whether a process has called and its end was not noticed yet.
    pub fn knows(&self, process: Tid) -> bool {
        lock(&self.known).contains_key(&process)
    }

    /// Processes that have called and still run.
    pub fn alive(&self) -> Vec<Tid> {
        lock(&self.known).keys().copied().collect()
    }

    /// Readable when a process has ended.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        crate::backend::lend(&self.epoll)
    }

    /// Marks that a call was served. True: the first since the last audit.
    pub fn mark_active(&self) -> bool {
        !self.active.load(Ordering::Relaxed) && !self.active.swap(true, Ordering::Relaxed)
    }

    /// Whether a call was served since the last time this was asked.
    pub fn was_active(&self) -> bool {
        self.active.swap(false, Ordering::Relaxed)
    }
}
