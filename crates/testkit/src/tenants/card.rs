//! What only a card can answer (`scripts/card_threats.py`): races against the kernel itself, and what the driver says where
//! nobody has written it down. Each runs on a simulated node as well.

use std::io::BufRead;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rm::{class, ctrl, layout, nr, uvm};

use super::shapes::send_descriptor;
use super::threats::words;
use super::{Context, Outcome};
use crate::outside::{Observer, Told};
use crate::raw::{
    Answer, Block, Channel, Client, Device, Fault, File, Pages, Uvm, params_of, request,
};
use crate::{KIB, MIB};

/// Runs outside any slice and answers lines on standard input with [`Told::Memory`]: a process's number with what the
/// driver counts for it, by device; 0 with what is free.
pub(super) fn observer(context: &Context) -> Outcome {
    let observer = Observer::open(&context.node)?;
    for line in std::io::stdin().lock().lines() {
        let told = match line?.trim().parse()? {
            0 => observer.free_bytes()?,
            pid => observer.memory_of(pid)?,
        };
        println!("{}", serde_json::to_string(&Told::Memory(told))?);
    }
    Ok(words(true, "over".into(), "over", ""))
}

/// Exports memory, hands the export out, and holds it until its input ends. Words: the number of a socket.
pub(super) fn exporter(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let memory = device.alloc(&client, MIB, Pages::Default)?;
    let target = context.node.open(File::Control)?;
    client.export(device.device, memory, std::os::fd::AsFd::as_fd(&target))?;
    send_descriptor(context.word(0)?.parse()?, target.as_raw_fd())?;
    println!("exported");
    std::io::stdin().lock().lines().for_each(drop);
    Ok(words(true, "exported".into(), "exported", ""))
}

/// Words of memory that another thread changes while calls read them.
struct Raced<const N: usize>([AtomicU32; N]);

impl<const N: usize> Raced<N> {
    fn new(block: &Block) -> Raced<N> {
        Raced(std::array::from_fn(|i| block.u32(4 * i).into()))
    }

    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    fn set(&self, at: usize, value: u32) {
        self.0[at / 4].store(value, Ordering::Relaxed);
    }

    fn get(&self, at: usize) -> u32 {
        self.0[at / 4].load(Ordering::Relaxed)
    }

    /// Runs `body` while another thread writes one value and the other in turn at `at`.
    fn while_changing<T>(&self, at: usize, values: [u32; 2], body: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for value in values {
                        self.set(at, value);
                        // As long as a call may be on its way.
                        for _ in 0..200 {
                            std::hint::spin_loop();
                        }
                    }
                }
            });
            let done = body();
            over.store(true, Ordering::Relaxed);
            done
        })
    }
}

/// Another thread changes the flags of `UVM_INITIALIZE` all the time. A file that can be used has the flags that guard
/// requires, which is asked by initialising it again. Words: milliseconds.
pub(super) fn flags(context: &Context) -> Outcome {
    use layout::uvm_initialize as l;
    const MULTI_PROCESS_SHARING: u32 = 2;
    const MOST: usize = 300;
    let until = Instant::now() + Duration::from_millis(context.word(0)?.parse()?);
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let block = Raced::<{ l::SIZE / 4 }>::new(&Block::new(l::SIZE));
    let (mut refused, mut useless, mut good, mut wrong) = (0, 0, 0, Vec::new());
    block.while_changing(l::FLAGS, [0, MULTI_PROCESS_SHARING], || -> Answer {
        for _ in 0..MOST {
            if Instant::now() > until {
                break;
            }
            let file = Uvm::open_only(&context.node)?;
            block.set(l::RM_STATUS, 0);
            let answer = context
                .node
                .ioctl_at(file.file(), uvm::INITIALIZE, block.address());
            if answer.is_err() || block.get(l::RM_STATUS) != 0 {
                refused += 1;
                continue;
            }
            match file.register_gpu(&device) {
                Ok(()) => match file.initialize(0) {
                    Ok(()) => good += 1,
                    Err(fault) => wrong.push(format!("usable, and initialised again: {fault}")),
                },
                Err(Fault::Os(libc::EPERM)) => useless += 1,
                Err(fault) => wrong.push(format!("registered: {fault}")),
            }
        }
        Ok(())
    })?;
    wrong.dedup();
    let rounds = refused + useless + good;
    Ok(words(
        wrong.is_empty() && rounds > 0,
        if wrong.is_empty() {
            "none".into()
        } else {
            wrong.join("; ")
        },
        "none",
        format!(
            "files of use with other flags; of {rounds}: {refused} refused at the look, {useless} of no use \
             (the race was won), {good} with the right flags"
        ),
    ))
}

/// A page of this process's own.
#[repr(C, align(4096))]
struct Page([u64; 512]);

impl Page {
    fn new(words: [u64; 7]) -> Box<Page> {
        let mut page = Box::new(Page([0; 512]));
        page.0[..words.len()].copy_from_slice(&words);
        page
    }

    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
}

/// Parameters of memory by address of the fabric (class 0xf3): a page at its start, exported by this client's own card.
/// type@0 flags@4 attr@8 attr2@12 base@16 align@24 limit@32 hExportSubdevice@40 hExportHandle@44 hExportClient@48.
fn fabric_words(client: &Client, device: &Device) -> [u64; 7] {
    [
        0,
        0,
        0,
        0,
        64 * KIB - 1,
        device.subdevice.into(),
        client.root().into(),
    ]
}

/// Another thread changes the class of `RM_ALLOC_MEMORY` all the time; the handle is used if it is of the other class.
/// That ends the tenant, so the finding is printed only if it was not; before, it says on standard error that the race was
/// won. With class 0xf3 the driver takes parameters from where the pages to be pinned are. Words: the class, milliseconds.
pub(super) fn class_race(context: &Context) -> Outcome {
    use layout::{handle_info as h, nvos02 as l, nvos02_with_fd as with_fd};
    const PINNED: u32 = class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR;
    const BASE: u64 = 0x2100_0000_0000;
    const MOST: usize = 3000;
    let other: u32 = context.word(0)?.parse()?;
    let until = Instant::now() + Duration::from_millis(context.word(1)?.parse()?);
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    let space = uvm.add_device(&client, &device)?;
    let page = Page::new(fabric_words(&client, &device));
    let template = device.pin_block(&client, page.address(), 4 * KIB);
    let block = Raced::<{ with_fd::SIZE / 4 }>::new(&template);
    let number = request(nr::RM_ALLOC_MEMORY, with_fd::SIZE);
    let class_of = |handle: u32| -> Answer<u32> {
        let mut info = Block::new(h::SIZE)
            .with32(h::H_OBJECT, handle)
            .with32(h::INDEX, 2);
        client.control(
            client.root(),
            ctrl::NV0000_CLIENT_GET_HANDLE_INFO,
            &mut info,
        )?;
        Ok(info.u32(h::DATA))
    };
    let mut told = std::collections::BTreeMap::<String, u32>::new();
    let won = block.while_changing(l::H_CLASS, [PINNED, other], || -> Answer<Option<u32>> {
        for _ in 0..MOST {
            if Instant::now() > until {
                break;
            }
            let handle = client.fresh();
            block.set(l::H_OBJECT_NEW, handle);
            block.set(l::STATUS, 0);
            let answer = context
                .node
                .ioctl_at(device.file(), number, block.address());
            let status = block.get(l::STATUS);
            let (what, made) = match answer {
                Ok(_) if status == 0 => match class_of(handle) {
                    Ok(class) => (format!("class {class:#x}"), Some(class)),
                    Err(fault) => (format!("success, and no such object: {fault}"), None),
                },
                Ok(_) => (format!("status {status:#x}"), None),
                Err(fault) => (fault.to_string(), None),
            };
            *told.entry(what).or_default() += 1;
            match made {
                Some(PINNED) => client.free(handle)?,
                Some(_) => return Ok(Some(handle)),
                None => {}
            }
        }
        Ok(None)
    })?;
    let note = format!("{told:?}");
    let Some(handle) = won else {
        return Ok(words(
            true,
            "the race was not won".into(),
            "the tenant is ended, or no such handle",
            note,
        ));
    };
    eprintln!("the race was won: {note}");
    uvm.create_range(BASE, 4 * KIB)?;
    let mapped = uvm.map(&space, &client, handle, BASE, 4 * KIB);
    std::thread::sleep(Duration::from_secs(1));
    Ok(words(
        false,
        format!("{mapped:?}"),
        "the tenant is ended",
        note,
    ))
}

fn told<T: std::fmt::LowerHex>(answer: &Answer<T>) -> String {
    match answer {
        Ok(value) => format!("granted ({value:#x})"),
        Err(fault) => fault.to_string(),
    }
}

/// Says what the driver answers where nobody has written it down: the sizes of `CARD_INFO`, what a bare channel needs, what
/// a compute object on it costs, whether a channel can be duplicated, and memory by address of the fabric (class 0xf3).
pub(super) fn facts(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let mut card = Block::new(32 * layout::card_info::SIZE);
    client.escape(nr::CARD_INFO, &mut card)?;
    let mut said = vec![format!(
        "CARD_INFO: FB_SIZE {} MiB, REG_SIZE {} MiB",
        card.u64(layout::card_info::FB_SIZE) / MIB,
        card.u64(layout::card_info::REG_SIZE) / MIB
    )];
    said.extend(channel_facts(&client, &device).unwrap_or_else(|fault| vec![fault.to_string()]));
    let words_of = fabric_words(&client, &device);
    let mut fabric = params_of(class::NV01_MEMORY_FLA);
    for (i, word) in words_of.into_iter().enumerate() {
        fabric.put(8 * i, &word.to_le_bytes());
    }
    let made = client.alloc(device.device, class::NV01_MEMORY_FLA, fabric);
    said.push(format!("RM_ALLOC of class 0xf3: {}", told(&made)));
    if let Ok(handle) = made {
        client.free(handle)?;
    }
    Ok(words(true, said.join("; "), "", ""))
}

fn channel_facts(client: &Client, device: &Device) -> Answer<Vec<String>> {
    let vaspace = client.alloc(
        device.device,
        class::FERMI_VASPACE_A,
        params_of(class::FERMI_VASPACE_A),
    )?;
    let before = device.free_bytes(client)?;
    let taken = |before: u64| -> Answer<i64> {
        Ok((before as i64 - device.free_bytes(client)? as i64) / KIB as i64)
    };
    let group = Channel::group(client, device, vaspace)?;
    let mut said = vec![format!("a group takes {} KiB", taken(before)?)];
    let memory = device.alloc(client, MIB, Pages::Default)?;
    // As CUDA's channels that compute: in a group without an address space, whose channels share a context.
    let shared = Channel::group(client, device, 0)?;
    let space = Block::new(layout::ctxshare_alloc::SIZE)
        .with32(layout::ctxshare_alloc::H_VA_SPACE, vaspace)
        .with32(layout::ctxshare_alloc::FLAGS, 1);
    let share = client.alloc(shared, class::FERMI_CONTEXT_SHARE_A, space)?;
    let sharing =
        Channel::params_with(0, memory, 0).with32(layout::channel_alloc::H_CONTEXT_SHARE, share);
    let mut channel = None;
    for (name, group, params) in [
        (
            "a channel with a doorbell page",
            group,
            Channel::params_with(0, memory, 512),
        ),
        ("without one", group, Channel::params(0)),
        (
            "with an address space",
            group,
            Channel::params_with(vaspace, memory, 1024),
        ),
        ("in a shared context", shared, sharing),
    ] {
        let before = device.free_bytes(client)?;
        let made = client.alloc(group, class::HOPPER_CHANNEL_GPFIFO_A, params);
        said.push(format!(
            "{name}: {}, takes {} KiB",
            told(&made),
            taken(before)?
        ));
        channel = channel.or(made.ok());
    }
    let Some(channel) = channel else {
        return Ok(said);
    };
    let before = device.free_bytes(client)?;
    let compute = client.alloc(channel, class::HOPPER_COMPUTE_A, Block::new(16));
    said.push(format!(
        "a compute object on it: {}, takes {} KiB",
        told(&compute),
        taken(before)?
    ));
    for (name, parent) in [("its group", group), ("the device", device.device)] {
        let again = client.duplicate(parent, client.root(), channel);
        said.push(format!(
            "the channel duplicated below {name}: {}",
            told(&again)
        ));
    }
    // Of another client of the same program.
    let other = Client::open(client.node())?;
    let target = other.first_device()?;
    let again = other.duplicate(target.device, client.root(), channel);
    said.push(format!("by another client: {}", told(&again)));
    Ok(said)
}
