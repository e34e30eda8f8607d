//! Tenants that take what is everybody's: channels, objects, the driver's time.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rm::{class, ctrl, layout, nr};

use super::threats::words;
use super::{Context, Outcome, bytes};
use crate::outside::{Line, ask};
use crate::raw::{
    Answer, Block, Channel, Client, Device, Fault, File, Pages, checked, params_of, request,
    system_call,
};
use crate::{GIB, MIB};

/// Channels that a hoarder puts into one group: fewer than a group may hold.
const IN_A_GROUP: u64 = 100;
/// What a hoarder of host memory takes at once.
const HOST_PART: u64 = 64 * MIB;
/// What a hoarder of BAR1 maps at once.
const BAR1_PART: u64 = 1024 * MIB;
/// The kernel's page.
const PAGE: usize = 4096;
/// Attributes of memory of the host (`NVOS32_ATTR_LOCATION_PCI`).
const IN_HOST: u32 = 1 << 25;

/// One who makes things until he is refused.
struct Hoarder {
    client: Client,
    device: Device,
    vaspace: u32,
    group: u32,
    memory: u32,
    /// Where channels of a card are told things; 0 on a simulated node, which wants none.
    userd: u32,
    gpu: OwnedFd,
}

impl Hoarder {
    fn new(context: &Context) -> Answer<Hoarder> {
        let client = Client::open(&context.node)?;
        let device = client.first_device()?;
        let vaspace = client.alloc(
            device.device,
            class::FERMI_VASPACE_A,
            params_of(class::FERMI_VASPACE_A),
        )?;
        let userd = match context.node.socket() {
            Some(_) => 0,
            None => device.alloc(&client, MIB, Pages::Default)?,
        };
        Ok(Hoarder {
            gpu: context.node.open(File::Gpu(0))?,
            userd,
            client,
            device,
            vaspace,
            group: 0,
            memory: 0,
        })
    }

    /// Makes the `number`-th thing of a kind.
    fn make(&mut self, kind: &str, number: u64) -> Answer {
        let (client, device) = (&self.client, &self.device);
        match kind {
            "channels" | "one_group" => {
                let new_group = kind == "channels" && number.is_multiple_of(IN_A_GROUP);
                if new_group || number == 0 {
                    self.group = Channel::group(client, device, self.vaspace)?;
                }
                client.alloc(
                    self.group,
                    class::HOPPER_CHANNEL_GPFIFO_A,
                    self.channel_params(0, number),
                )?;
            }
            "contexts" => {
                // As many groups and channels as CUDA makes for a context (measured on an H200, driver 580.159).
                for channels in [8, 4, 4, 4] {
                    let group = Channel::group(client, device, self.vaspace)?;
                    for _ in 0..channels {
                        let params = self.channel_params(0, number);
                        client.alloc(group, class::HOPPER_CHANNEL_GPFIFO_A, params)?;
                    }
                }
            }
            "groups" => {
                Channel::group(client, device, self.vaspace)?;
            }
            "clients" => {
                client.one_more()?;
            }
            "objects" => {
                client.alloc(device.device, class::NV04_DISPLAY_COMMON, Block::new(0))?;
            }
            "names" => {
                if number == 0 {
                    self.memory = device.alloc(client, MIB, Pages::Default)?;
                }
                client.duplicate(device.device, client.root(), self.memory)?;
            }
            "pinned" => self.pin(0x7000_0000 + number as u32)?,
            "events" => {
                let params = Block::new(layout::event_alloc::SIZE)
                    .with32(layout::event_alloc::H_PARENT_CLIENT, client.root());
                client.alloc(device.subdevice, class::NV01_EVENT_OS_EVENT, params)?;
            }
            "os_events" | "events_of_nobody" => {
                use layout::alloc_os_event as l;
                let of = if kind == "os_events" {
                    client.root()
                } else {
                    0
                };
                let mut block = Block::new(l::SIZE)
                    .with32(l::H_CLIENT, of)
                    .with32(l::FD, number as u32);
                client.escape(nr::ALLOC_OS_EVENT, &mut block)?;
                checked(block.u32(l::STATUS))?;
            }
            "host" => {
                use layout::memory_allocation as l;
                let params = params_of(class::NV01_MEMORY_SYSTEM)
                    .with32(l::OWNER, client.root())
                    .with32(l::ATTR, IN_HOST)
                    .with64(l::SIZE_FIELD, HOST_PART);
                client.alloc(device.device, class::NV01_MEMORY_SYSTEM, params)?;
            }
            "bar1" => {
                if number == 0 {
                    self.memory = device.alloc(client, BAR1_PART, Pages::Default)?;
                }
                self.map()?;
            }
            _ => return Err(Fault::Os(libc::EINVAL)),
        }
        Ok(())
    }

    /// In a group, which has an address space; 0 as `vaspace`.
    fn channel_params(&self, vaspace: u32, number: u64) -> Block {
        /// Of a channel's place for what it is told.
        const PLACE: u64 = 512;
        if self.userd == 0 {
            return Channel::params(vaspace);
        }
        Channel::params_with(vaspace, self.userd, number * PLACE % MIB)
    }

    /// Pins a page of its own, each time the same.
    fn pin(&self, handle: u32) -> Answer {
        // Any page of ours: that of the program's first instructions is always there.
        let page = Hoarder::pin as *const () as u64 & !0xfff;
        self.device.pin(&self.client, handle, page, PAGE as u64)
    }

    fn map(&self) -> Answer {
        use layout::{nvos33 as l, nvos33_with_fd as f};
        let mut block = Block::new(f::SIZE)
            .with32(l::H_CLIENT, self.client.root())
            .with32(l::H_DEVICE, self.device.device)
            .with32(l::H_MEMORY, self.memory)
            .with64(l::LENGTH, BAR1_PART)
            .with32(f::FD, self.gpu.as_raw_fd() as u32);
        self.client.escape(nr::RM_MAP_MEMORY, &mut block)?;
        checked(block.u32(l::STATUS))
    }

    /// Makes things until it is refused or has made `most`: how many, and what it was told.
    fn fill(&mut self, kind: &str, most: u64) -> (u64, Answer) {
        for number in 0..most {
            if let Err(fault) = self.make(kind, number) {
                return (number, Err(fault));
            }
        }
        (most, Ok(()))
    }
}

/// Takes all it can get of a kind, lets a neighbour start meanwhile, and gives all back. Words: the kind, the fewest that it
/// must get, and the most that it may get.
pub(super) fn hoarder(context: &Context) -> Outcome {
    let kind = context.word(0)?;
    let (least, most): (u64, u64) = (context.word(1)?.parse()?, context.word(2)?.parse()?);
    let mut hoarder = Hoarder::new(context)?;
    // Far above what it may get, and above what a whole card has.
    let (count, told) = hoarder.fill(kind, 2 * most + 3000);
    // Nobody may watch: then there is no neighbour.
    let _neighbour = ask(&Line::AskNeighbour);
    hoarder.client.free(hoarder.client.root())?;
    drop(hoarder);
    // What went with the client can be had again.
    let again = Hoarder::new(context)?.fill(kind, count.min(200)).0;
    let held =
        (least..=most).contains(&count) && told == Err(Fault::NO_MEMORY) && again == count.min(200);
    let end = told.map_or_else(|fault| fault.to_string(), |()| "never refused".into());
    Ok(words(
        held,
        format!("{count}, then {end}; {again} after all was given back"),
        &format!("{least} to {most}, then {}", Fault::NO_MEMORY),
        format!("took all {kind} that it could get"),
    ))
}

/// Registers a descriptor for events of no client: nobody would give it back.
pub(super) fn events_of_nobody(context: &Context) -> Outcome {
    let wanted = Fault::Status(rm::Status::INVALID_CLIENT.0);
    let refused = Hoarder::new(context)?.make("events_of_nobody", 0);
    Ok(words(
        refused == Err(wanted),
        refused.map_or_else(|fault| fault.to_string(), |()| "registered".into()),
        &wanted.to_string(),
        "a descriptor for events of client 0",
    ))
}

/// Calls the driver from 64 threads without a pause, until whoever watches has seen enough. Words: the calls a second that
/// its slice has.
pub(super) fn flooder(context: &Context) -> Outcome {
    const THREADS: usize = 64;
    /// Calls that the helper's threads may hold at once.
    const IN_FLIGHT: u64 = 16;
    let rate: u64 = context.word(0)?.parse()?;
    let client = Client::open(&context.node)?;
    let (served, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let mut ids = Block::new(128);
                    let answer =
                        client.control(client.root(), ctrl::NV0000_GPU_GET_ATTACHED_IDS, &mut ids);
                    served.fetch_add(u64::from(answer.is_ok()), Ordering::Relaxed);
                }
            });
        }
        // Nobody may watch: then it ends at once.
        let _neighbour = ask(&Line::AskNeighbour);
        over.store(true, Ordering::Relaxed);
    });
    let elapsed = start.elapsed();
    let served = served.into_inner();
    let most = (rate as f64 * (elapsed.as_secs_f64() + 2.0)) as u64 + IN_FLIGHT;
    Ok(words(
        served <= most && served >= rate,
        served.to_string(),
        &format!("{rate} to {most}"),
        format!("calls in {} ms from {THREADS} threads", elapsed.as_millis()),
    ))
}

/// Has threads call with parameters on pages that fault and are never given, and meanwhile frees what it has and goes on
/// calling; then the pages are given after all, and it calls again. Words: how many threads, and how often all of it.
pub(super) fn stalled(context: &Context) -> Outcome {
    const CALLS: usize = 100;
    let (stalled, rounds): (usize, usize) = (context.word(0)?.parse()?, context.word(1)?.parse()?);
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let calls = || -> Answer {
        for _ in 0..CALLS {
            let memory = device.alloc(&client, MIB, Pages::Default)?;
            client.free(memory)?;
        }
        Ok(())
    };
    let (mut back, mut waited) = (0, Vec::new());
    for _ in 0..rounds {
        let held = device.alloc(&client, GIB, Pages::Default)?;
        let before = device.free_bytes(&client)?;
        let faults = NeverGiven::new()?;
        let pages: Vec<u64> = (0..stalled)
            .map(|_| faults.page())
            .collect::<io::Result<_>>()?;
        for &page in &pages {
            let file = client.file().as_raw_fd();
            std::thread::spawn(move || {
                let number = request(nr::RM_CONTROL, layout::nvos54::SIZE);
                // SAFETY: the kernel checks the address; nobody in this process reads or writes the page.
                unsafe { libc::ioctl(file, number.into(), page) };
            });
        }
        // Each has called by then, and nothing happens for longer than an audit takes.
        std::thread::sleep(std::time::Duration::from_secs(3));
        let begun = Instant::now();
        client.free(held)?;
        waited.push(begun.elapsed().as_millis());
        calls()?;
        for page in pages {
            faults.give(page)?;
        }
        calls()?;
        back += device.free_bytes(&client)? - before;
    }
    let all = rounds as u64 * GIB;
    Ok(bytes(
        back,
        all,
        true,
        format!(
            "given back beside {stalled} threads whose parameters fault for ever, after {waited:?} ms"
        ),
    ))
}

/// Pages of this process whose first access never ends (userfaultfd(2)).
struct NeverGiven(OwnedFd);

impl NeverGiven {
    /// By the device file, which says who may: the system call wants CAP_SYS_PTRACE, which no tenant has.
    fn new() -> io::Result<NeverGiven> {
        const NEW: libc::c_ulong = 0xaa00;
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/userfaultfd")?;
        // SAFETY: the request takes flags by value and gives a new descriptor or -1.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), NEW, libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor and nobody else owns it.
        let faults = NeverGiven(unsafe { OwnedFd::from_raw_fd(fd) });
        const API: u32 = 0xc018_aa3f;
        let mut api = Block::new(24).with64(0, 0xaa);
        system_call(faults.0.as_fd(), API, &mut api)?;
        Ok(faults)
    }

    fn page(&self) -> io::Result<u64> {
        const REGISTER: u32 = 0xc020_aa00;
        const MISSING: u64 = 1;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut range = Block::new(32)
            .with64(0, page as u64)
            .with64(8, PAGE as u64)
            .with64(16, MISSING);
        system_call(self.0.as_fd(), REGISTER, &mut range)?;
        Ok(page as u64)
    }

    /// Gives a page after all, full of zeros.
    fn give(&self, page: u64) -> io::Result<()> {
        const ZEROS: u32 = 0xc020_aa04;
        let mut range = Block::new(32).with64(0, page).with64(8, PAGE as u64);
        system_call(self.0.as_fd(), ZEROS, &mut range).map(drop)
    }
}

/// Makes an object; while the helper reads a page of the call that faults, `meanwhile` happens. What the call was told.
fn alloc_around(
    client: &Client,
    (parent, class): (u32, u32),
    mut params: Block,
    meanwhile: impl FnOnce() -> Answer,
) -> Result<Answer, Fault> {
    use layout::nvos64 as l;
    /// Longer than the helper takes to put another thread to work.
    const A_WHILE: std::time::Duration = std::time::Duration::from_millis(300);
    let faults = NeverGiven::new()?;
    let page = faults.page()?;
    let mut block = Block::new(l::SIZE)
        .with32(l::H_ROOT, client.root())
        .with32(l::H_OBJECT_PARENT, parent)
        .with32(l::H_OBJECT_NEW, client.fresh())
        .with32(l::H_CLASS, class)
        .with64(l::P_ALLOC_PARMS, params.address())
        .with64(l::P_RIGHTS_REQUESTED, page)
        .with32(l::PARAMS_SIZE, params.len() as u32);
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            client.escape(nr::RM_ALLOC, &mut block)?;
            checked(block.u32(l::STATUS))
        });
        std::thread::sleep(A_WHILE);
        let done = meanwhile();
        faults.give(page)?;
        let made = maker.join().unwrap_or(Err(Fault::Os(libc::EIO)));
        done.map(|()| made)
    })
}

/// An event that names another client of the tenant's when its call is looked at, and nobody's, or a neighbour's, when the
/// call is made.
pub(super) fn changing_client(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let other = client.one_more()?;
    let params =
        Block::new(layout::event_alloc::SIZE).with32(layout::event_alloc::H_PARENT_CLIENT, other);
    let free = || {
        use layout::nvos00 as l;
        let mut block = Block::new(l::SIZE)
            .with32(l::H_ROOT, other)
            .with32(l::H_OBJECT_OLD, other);
        client.escape(nr::RM_FREE, &mut block)?;
        checked(block.u32(l::STATUS))
    };
    let event = (device.subdevice, class::NV01_EVENT_OS_EVENT);
    let made = alloc_around(&client, event, params, free)?;
    let wanted = Fault::Status(rm::Status::INSUFFICIENT_PERMISSIONS.0);
    Ok(words(
        made == Err(wanted),
        made.map_or_else(|fault| fault.to_string(), |()| "made".into()),
        &wanted.to_string(),
        "an event that names a client which has gone meanwhile",
    ))
}

/// Memory whose parent is a device of one card when its call is looked at, and of another when the call is made: a page of
/// its parameters faults in between.
pub(super) fn changing_parent(context: &Context) -> Outcome {
    use layout::memory_allocation as m;
    let client = Client::open(&context.node)?;
    let parent = client.fresh();
    let card = |instance: u32| {
        let params =
            params_of(class::NV01_DEVICE_0).with32(layout::device_alloc::DEVICE_ID, instance);
        client.alloc_as(client.root(), parent, class::NV01_DEVICE_0, params)
    };
    card(0)?;
    let params = params_of(class::NV01_MEMORY_LOCAL_USER)
        .with32(m::OWNER, client.root())
        .with64(m::SIZE_FIELD, MIB);
    let made = alloc_around(
        &client,
        (parent, class::NV01_MEMORY_LOCAL_USER),
        params,
        || client.free(parent).and_then(|()| card(1)).map(drop),
    )?;
    let wanted = Fault::Status(rm::Status::OBJECT_NOT_FOUND.0);
    Ok(words(
        made == Err(wanted),
        made.map_or_else(|fault| fault.to_string(), |()| "made".into()),
        &wanted.to_string(),
        "memory below a device that has become another card's",
    ))
}

/// Calls that wait for something: none may hold up its caller, let alone the helper.
pub(super) fn blocking(context: &Context) -> Outcome {
    use layout::nvos30 as l;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let mut idle = Block::new(l::SIZE)
        .with32(l::H_CLIENT, client.root())
        .with32(l::H_DEVICE, device.device)
        .with32(l::NUM_CHANNELS, 1)
        .with32(l::TIMEOUT, u32::MAX);
    client.escape(nr::RM_IDLE_CHANNELS, &mut idle)?;
    let idle = checked(idle.u32(l::STATUS));
    let attach = |gpu_id| {
        let mut params = Block::new(4).with32(0, gpu_id);
        client.control(client.root(), ctrl::NV0000_GPU_WAIT_ATTACH_ID, &mut params)
    };
    let mut ids = Block::new(128);
    client.control(client.root(), ctrl::NV0000_GPU_GET_ATTACHED_IDS, &mut ids)?;
    let (own, nobodys) = (attach(ids.u32(0)), attach(0x00ff_ff00));
    // A block larger than the command's is not copied: nobody finds out that nothing is there.
    let mut large = Block::new(layout::nvos54::SIZE)
        .with32(layout::nvos54::H_CLIENT, client.root())
        .with32(layout::nvos54::H_OBJECT, client.root())
        .with32(layout::nvos54::CMD, ctrl::NV0000_GPU_GET_ATTACHED_IDS)
        .with64(layout::nvos54::PARAMS, 0x1000)
        .with32(layout::nvos54::PARAMS_SIZE, 1 << 20);
    client.escape(nr::RM_CONTROL, &mut large)?;
    let large = checked(large.u32(layout::nvos54::STATUS));
    let held = idle == Err(Fault::Status(rm::Status::NOT_SUPPORTED.0))
        && own.is_ok()
        && nobodys == Err(Fault::Status(rm::Status::INVALID_ARGUMENT.0))
        && large == Err(Fault::Status(0x3a));
    Ok(words(
        held,
        format!("{idle:?}, {own:?}, {nobodys:?}, {large:?}"),
        "refused, done, refused, refused",
        "RM_IDLE_CHANNELS, waiting for an own card and for one that is not there, a block of 1 MiB",
    ))
}
