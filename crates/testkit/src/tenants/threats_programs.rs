//! What real programs need, and what reaches beyond a program, numbered as SECURITY.md numbers the threats.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rm::{class, ctrl, layout, nr, uvm};

use super::fill::human;
use super::neighbour::ask_neighbour;
use super::shapes::{Watch, close_here, forked, wait_for};
use super::threats::words;
use super::threats_helper::{handed_in, processes};
use super::{Context, Outcome, bytes};
use crate::raw::{
    Answer, Block, Client, Device, Fault, File, Pages, SIZES, Uvm, checked, export_layout, request,
    system_call,
};
use crate::{GIB, MIB};

/// Answers that are not as expected, by name.
struct Wrong(Vec<String>);

impl Wrong {
    fn new() -> Wrong {
        Wrong(Vec::new())
    }

    fn expect<T: std::fmt::Debug>(&mut self, what: &str, answer: T, as_expected: bool) {
        if !as_expected {
            self.0.push(format!("{what}: {answer:?}"));
        }
    }

    fn finding(self, expected: &str) -> Outcome {
        let measured = if self.0.is_empty() {
            expected.to_owned()
        } else {
            self.0.join("; ")
        };
        Ok(words(self.0.is_empty(), measured, expected, ""))
    }
}

const NOT_PERMITTED: Answer<u32> = Err(Fault::NOT_PERMITTED);

/// Events: of the own client they work; of the neighbour's, or calling into the kernel, they are refused.
pub(super) fn threat_13(context: &Context) -> Outcome {
    use layout::event_alloc as l;
    let neighbour = ask_neighbour()?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    // The driver keeps events by the number of a descriptor that was registered for them.
    let number = client.file().as_raw_fd() as u32;
    use layout::alloc_os_event as r;
    let mut register = Block::new(r::SIZE)
        .with32(r::H_CLIENT, client.root())
        .with32(r::H_DEVICE, device.device)
        .with32(r::FD, number);
    client.escape(nr::ALLOC_OS_EVENT, &mut register)?;
    checked(register.u32(r::STATUS))?;
    let event = |of: u32, id: u32, real: u32| {
        let params = Block::new(l::SIZE)
            .with32(l::H_PARENT_CLIENT, of)
            .with32(l::H_SRC_RESOURCE, device.subdevice)
            .with32(l::H_CLASS, real)
            .with64(l::DATA, number.into());
        client.alloc(device.subdevice, id, params)
    };
    let mut wrong = Wrong::new();
    let own = event(
        client.root(),
        class::NV01_EVENT_OS_EVENT,
        class::NV01_EVENT_OS_EVENT,
    );
    wrong.expect("own", own, own.is_ok());
    for id in [class::NV01_EVENT, class::NV01_EVENT_OS_EVENT] {
        let answer = event(neighbour.client, id, class::NV01_EVENT_OS_EVENT);
        wrong.expect("the neighbour's", answer, answer == NOT_PERMITTED);
    }
    for id in [
        class::NV01_EVENT_KERNEL_CALLBACK,
        class::NV01_EVENT_KERNEL_CALLBACK_EX,
    ] {
        let answer = event(client.root(), id, id);
        wrong.expect("a kernel call-back", answer, answer == NOT_PERMITTED);
        // The driver takes the real class from the block.
        let hidden = event(client.root(), class::NV01_EVENT, id);
        wrong.expect("one that is hidden in the block", hidden, hidden.is_err());
    }
    wrong.finding("own events only")
}

/// Answers about processes: none tells of the neighbour's.
pub(super) fn threat_16(context: &Context) -> Outcome {
    use layout::{pid_info as l, pid_info_entry as e};
    let (abi, _neighbour) = (context.node.abi()?, ask_neighbour()?);
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    device.alloc(&client, MIB, Pages::Default)?;
    let mut wrong = Wrong::new();
    let shown = processes(&client, &device)?;
    wrong.expect("GET_PIDS", &shown, shown == [std::process::id()]);
    // Whoever else is on this machine, by every number there can be of its processes.
    let others: Vec<u32> = std::fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != std::process::id())
        .collect();
    for pid in others {
        let at = |field: usize| l::PID_INFO_LIST + field;
        let mut block = Block::new(l::SIZE)
            .with32(l::PID_INFO_LIST_COUNT, 1)
            .with32(at(e::PID), pid);
        client.control(device.subdevice, ctrl::NV2080_GPU_GET_PID_INFO, &mut block)?;
        let told = block.u64(at(e::MEM_PRIVATE)) + block.u64(at(e::MEM_SHARED_OWNED));
        let known = block.u32(at(e::RESULT)) == 0;
        wrong.expect("GET_PID_INFO", (pid, told), told == 0 && !known);
    }
    for (object, command) in [
        (
            device.subdevice,
            ctrl::NV2080_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2,
        ),
        (client.root(), ctrl::NV0000_GPUACCT_GET_ACCOUNTING_PIDS),
    ] {
        let size = abi.control(command).map_or(0, |entry| entry.size as usize);
        let mut block = Block::new(size);
        let answer = client.control(object, command, &mut block);
        let silent = (0..size / 4).all(|i| block.u32(4 * i) == 0);
        wrong.expect("a list", (command, answer), answer.is_err() || silent);
    }
    wrong.finding("nobody else")
}

/// A debugger names its own application; through it memory that nobody made, memory by address and registers are out of
/// reach.
pub(super) fn threat_17(context: &Context) -> Outcome {
    use layout::debugger_alloc as l;
    let (abi, neighbour) = (context.node.abi()?, ask_neighbour()?);
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let debugger = |of: u32| {
        let params = Block::new(l::SIZE).with32(l::H_APP_CLIENT, of);
        client.alloc(device.device, class::GT200_DEBUGGER, params)
    };
    let mut wrong = Wrong::new();
    let foreign = debugger(neighbour.client);
    wrong.expect("the neighbour's", foreign, foreign == NOT_PERMITTED);
    let own = debugger(client.root());
    // A card's driver wants a program that computes, which this one is not there.
    let without = context.node.socket().is_none() && own.is_err();
    let by_guard = own == NOT_PERMITTED;
    wrong.expect("own", own, own.is_ok() || without && !by_guard);
    for command in [
        ctrl::NV83DE_DEBUG_READ_MEMORY,
        ctrl::NV83DE_DEBUG_WRITE_MEMORY,
        ctrl::NV83DE_DEBUG_EXEC_REG_OPS,
        ctrl::NV83DE_DEBUG_READ_BATCH_MEMORY,
        ctrl::NV83DE_DEBUG_WRITE_BATCH_MEMORY,
    ] {
        let size = abi.control(command).map_or(0, |entry| entry.size as usize);
        let answer = client.control(own.unwrap_or_default(), command, &mut Block::new(size));
        wrong.expect(
            "a command",
            (command, answer),
            answer == Err(Fault::NOT_PERMITTED),
        );
    }
    if without {
        return wrong.finding("own errors and own memory only");
    }
    // By handle it reads what guard has seen made, and nothing else.
    let memory = device.alloc(&client, MIB, Pages::Default)?;
    let mut place = [0u8; 4];
    let mut read = |handle: u32| {
        let mut params = Block::new(24)
            .with32(0, handle)
            .with32(4, place.len() as u32)
            .with64(16, place.as_mut_ptr() as u64);
        client.control(
            own.unwrap_or_default(),
            ctrl::NV83DE_DEBUG_READ_MEMORY,
            &mut params,
        )
    };
    let known = read(memory);
    wrong.expect("known memory", known, known != Err(Fault::NOT_PERMITTED));
    let unknown = read(client.fresh());
    wrong.expect(
        "unknown memory",
        unknown,
        unknown == Err(Fault::NOT_PERMITTED),
    );
    wrong.finding("own errors and own memory only")
}

/// Profilers, the context-switch timeline, the fabric's manager.
pub(super) fn threat_18(context: &Context) -> Outcome {
    let abi = context.node.abi()?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let mut wrong = Wrong::new();
    for id in [
        class::GF100_PROFILER,
        class::MAXWELL_PROFILER,
        class::MAXWELL_PROFILER_CONTEXT,
        class::MAXWELL_PROFILER_DEVICE,
        class::NV_EVENT_BUFFER,
        class::NV_COUNTER_COLLECTION_UNIT,
        class::FABRIC_MANAGER_SESSION,
        class::NV_IMEX_SESSION,
    ] {
        let size = abi.class(id).map_or(0, |entry| usize::from(entry.size));
        let answers = [client.root(), device.device, device.subdevice]
            .map(|parent| client.alloc(parent, id, Block::new(size)));
        let refused = answers.iter().all(|answer| *answer == NOT_PERMITTED);
        wrong.expect("a class", (id, answers), refused);
    }
    let size = abi
        .control(ctrl::NV2080_GR_FECS_BIND_EVTBUF_FOR_UID_V2)
        .map_or(0, |entry| entry.size as usize);
    let timeline = client.control(
        device.subdevice,
        ctrl::NV2080_GR_FECS_BIND_EVTBUF_FOR_UID_V2,
        &mut Block::new(size),
    );
    wrong.expect(
        "the timeline",
        timeline,
        timeline == Err(Fault::NOT_PERMITTED),
    );
    wrong.finding("all refused")
}

/// Words: the number of a socket with a control file to which somebody outside exported memory. It cannot be imported here; an export
/// of this tenant's can.
pub(super) fn threat_19(context: &Context) -> Outcome {
    let foreign = handed_in(context, 0)?;
    let number = foreign.as_raw_fd();
    let watch = Watch::new(context)?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let mut wrong = Wrong::new();
    let taken = client.import(device.device, foreign.as_fd());
    wrong.expect("a foreign export", taken, taken == NOT_PERMITTED);
    let mut several = Block::new(652)
        .with32(0, number as u32)
        .with32(4, device.device)
        .with32(8, client.fresh())
        .with(648, &1u16.to_le_bytes());
    let taken = client.control(
        client.root(),
        ctrl::NV0000_OS_UNIX_IMPORT_OBJECTS_FROM_FD,
        &mut several,
    );
    wrong.expect("several of them", taken, taken == Err(Fault::NOT_PERMITTED));
    for id in [
        class::NV_MEMORY_EXPORT,
        class::NV_MEMORY_FABRIC_IMPORT_V2,
        class::NV_MEMORY_FABRIC_IMPORTED_REF,
    ] {
        let size = context
            .node
            .abi()?
            .class(id)
            .map_or(0, |entry| usize::from(entry.size));
        let answer = client.alloc(device.device, id, Block::new(size));
        wrong.expect("a class", (id, answer), answer.is_err());
    }
    let memory = device.alloc(&client, GIB, Pages::Default)?;
    let target = context.node.open(File::Control)?;
    client.export(device.device, memory, target.as_fd())?;
    let own = client.import(device.device, target.as_fd());
    wrong.expect("an export of its own", own, own.is_ok());
    let used = watch.used()?;
    wrong.expect("what is charged", used, used == GIB);
    wrong.finding("own exports only")
}

/// MPS: neither its class nor its calls.
pub(super) fn threat_20(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    let mut wrong = Wrong::new();
    let answers = [device.device, device.subdevice]
        .map(|parent| client.alloc(parent, class::MPS_COMPUTE, Block::new(0)));
    let refused = answers.iter().all(|answer| *answer == NOT_PERMITTED);
    wrong.expect("its class", answers, refused);
    for (request, size) in [(18u32, 536), (19, 16)] {
        let answer = uvm.call(request, Block::new(size), size - 8).map(|_| ());
        wrong.expect("a call", (request, answer), answer.is_err());
    }
    wrong.finding("all refused")
}

/// Advice and prefetch on plain memory run in the tenant: nobody else takes them, and they work.
pub(super) fn threat_42(context: &Context) -> Outcome {
    /// Preferred location, read duplication, accessed by, migration, range groups, questions about addresses.
    const NATIVE: [u32; 13] = [23, 24, 31, 42, 43, 44, 45, 46, 47, 51, 53, 72, 73];
    let (file, abi) = (Uvm::open(&context.node)?, context.node.abi()?);
    let mut wrong = Wrong::new();
    for entry in NATIVE.iter().filter_map(|&request| abi.uvm(request)) {
        // On a simulated node the kernel knows no such call of a stand-in: so nobody has taken it.
        let answer = system_call(
            file.file(),
            entry.request,
            &mut Block::new(entry.size.into()),
        );
        let number = answer.as_ref().err().and_then(std::io::Error::raw_os_error);
        wrong.expect(
            "a call",
            (entry.name, &answer),
            number == Some(libc::ENOTTY),
        );
    }
    let memory = file.managed(2 * MIB)?;
    let advice = file.call(
        uvm::UNSET_PREFERRED_LOCATION,
        Block::new(24)
            .with64(0, memory.address)
            .with64(8, memory.length),
        16,
    );
    wrong.expect("advice", &advice, advice.is_ok());
    wrong.finding("all run in the tenant")
}

/// `RM_MAP_MEMORY` and `RM_UNMAP_MEMORY` are both the helper's, which made the client; the descriptor is the calling
/// thread's.
pub(super) fn threat_43(context: &Context) -> Outcome {
    use layout::{nvos33 as m, nvos33_with_fd as f, nvos34 as u};
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let memory = device.alloc(&client, MIB, Pages::Default)?;
    let map = |number: u32| -> Answer<u64> {
        let mut block = Block::new(f::SIZE)
            .with32(m::H_CLIENT, client.root())
            .with32(m::H_DEVICE, device.device)
            .with32(m::H_MEMORY, memory)
            .with64(m::LENGTH, MIB)
            .with32(f::FD, number);
        client.escape(nr::RM_MAP_MEMORY, &mut block)?;
        checked(block.u32(m::STATUS))?;
        if block.u32(f::FD) != number {
            return Err(Fault::Os(libc::EBADF));
        }
        Ok(block.u64(m::P_LINEAR_ADDRESS))
    };
    let unmap = |address: u64| -> Answer {
        let mut block = Block::new(u::SIZE)
            .with32(u::H_CLIENT, client.root())
            .with32(u::H_DEVICE, device.device)
            .with32(u::H_MEMORY, memory)
            .with64(u::P_LINEAR_ADDRESS, address);
        client.escape(nr::RM_UNMAP_MEMORY, &mut block)?;
        checked(block.u32(u::STATUS))
    };
    let mut wrong = Wrong::new();
    // In a thread whose table alone has the file.
    let through = std::thread::scope(|scope| {
        let own = scope.spawn(|| -> Answer {
            // SAFETY: gives this thread a table of its own; the others' files stay as they are.
            if unsafe { libc::unshare(libc::CLONE_FILES) } < 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            let gpu = context.node.open(File::Gpu(0))?;
            unmap(map(std::os::fd::AsRawFd::as_raw_fd(&gpu) as u32)?)
        });
        own.join().unwrap_or(Err(Fault::Os(libc::EFAULT)))
    });
    wrong.expect("mapped and unmapped", through, through.is_ok());
    let nowhere = map(777);
    wrong.expect("a number of nobody's", nowhere, nowhere.is_err());
    wrong.finding("both in the helper")
}

/// Memory that a third-party object has (GPUDirect RDMA) is charged until it lets go, whatever becomes of the handle.
pub(super) fn threat_45(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let third = client.alloc(device.subdevice, class::NV50_THIRD_PARTY_P2P, Block::new(4))?;
    let mut steps = Vec::new();
    for by_free in [false, true] {
        let memory = device.alloc(&client, GIB, Pages::Default)?;
        let mut register = Block::new(32).with32(0, memory).with64(16, GIB);
        client.control(third, ctrl::NV503C_REGISTER_VIDMEM, &mut register)?;
        client.free(memory)?;
        steps.push(watch.settles(0)?);
        if by_free {
            client.free(third)?;
        } else {
            client.control(
                third,
                ctrl::NV503C_UNREGISTER_VIDMEM,
                &mut Block::new(4).with32(0, memory),
            )?;
        }
        steps.push(watch.settles(0)?);
    }
    // A dmabuf pins what it was made of, and nothing tells when it is gone.
    let memory = device.alloc(&client, GIB, Pages::Default)?;
    let dmabuf = dmabuf(context, &client, memory)?;
    client.free(memory)?;
    steps.push(watch.used()?);
    drop(dmabuf);
    let told: Vec<String> = steps.iter().map(|&step| human(step)).collect();
    let held = steps == [0, 0, 0, 0, GIB];
    Ok(words(
        held,
        told.join(", "),
        "0 B, 0 B, 0 B, 0 B, 1 GiB",
        "registered and freed, let go of; registered and freed, freed; exported and freed",
    ))
}

fn dmabuf(context: &Context, client: &Client, memory: u32) -> Answer<OwnedFd> {
    use layout::export_to_dmabuf_fd as l;
    let (at, size) = export_layout(context.node.abi()?);
    let mut block = Block::new(size)
        .with32(l::FD, u32::MAX)
        .with32(l::H_CLIENT, client.root())
        .with32(l::TOTAL_OBJECTS, 1)
        .with32(l::NUM_OBJECTS, 1)
        .with64(l::TOTAL_SIZE, GIB)
        .with32(at.handles, memory)
        .with64(at.status - SIZES, GIB);
    context.node.ioctl(
        client.file(),
        request(nr::EXPORT_TO_DMABUF_FD, size),
        &mut block,
    )?;
    checked(block.u32(at.status))?;
    // SAFETY: the driver has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(block.u32(l::FD) as RawFd) })
}

/// Words: the id of a card that is not of the slice. It is not there for peers either; what NCCL makes of its own cards
/// is.
pub(super) fn threat_46(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    uvm.register_gpu(&device)?;
    let mut other = Vec::new();
    for pair in context.word(0)?.as_bytes().chunks_exact(2) {
        other.push(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?);
    }
    let mut wrong = Wrong::new();
    let instance = client.alloc(
        client.root(),
        class::NV01_DEVICE_0,
        Device::params(&client, device.instance + 1),
    );
    wrong.expect("its device", instance, instance.is_err());
    use layout::uvm_enable_peer_access as p;
    let register = uvm
        .call(
            uvm::REGISTER_GPU,
            Block::new(layout::uvm_register_gpu::SIZE)
                .with(0, &other)
                .with32(layout::uvm_register_gpu::RM_CTRL_FD, u32::MAX),
            layout::uvm_register_gpu::RM_STATUS,
        )
        .map(|_| ());
    wrong.expect("registered", register, register.is_err());
    let peers = uvm
        .call(
            uvm::ENABLE_PEER_ACCESS,
            Block::new(p::SIZE)
                .with(p::GPU_UUID_A, &device.uuid)
                .with(p::GPU_UUID_B, &other),
            p::RM_STATUS,
        )
        .map(|_| ());
    wrong.expect("peer access", peers, peers.is_err());
    let mut ids = Block::new(128);
    client.control(client.root(), ctrl::NV0000_GPU_GET_ATTACHED_IDS, &mut ids)?;
    let first = ids.u32(0);
    let control = context.node.open(File::Control)?;
    let attach = |id: u32| {
        let mut ids = Block::new(128).with32(0, id);
        context.node.ioctl(
            control.as_fd(),
            request(nr::ATTACH_GPUS_TO_FD, 128),
            &mut ids,
        )
    };
    let own = attach(first);
    wrong.expect("its own card attached", own, own.is_ok());
    // A simulated node numbers its cards one after another.
    let attached = attach(first + 1);
    wrong.expect("attached", attached, attached.is_err());
    let minor = context.node.open(File::Gpu(1)).map(|gpu| {
        context.node.ioctl(
            gpu.as_fd(),
            request(nr::RM_FREE, layout::nvos00::SIZE),
            &mut Block::new(layout::nvos00::SIZE),
        )
    });
    let refused = matches!(minor, Ok(Err(Fault::Os(libc::EPERM))) | Err(_));
    wrong.expect("its file", minor, refused);
    for id in [class::NV_MEMORY_FABRIC, class::NV_MEMORY_MULTICAST_FABRIC] {
        let size = context
            .node
            .abi()?
            .class(id)
            .map_or(0, |entry| usize::from(entry.size));
        let made = client.alloc(device.device, id, Block::new(size));
        // Made by the driver or refused by it; not by who stands between.
        let by_guard = [
            Fault::NOT_PERMITTED,
            Fault::Status(0x22),
            Fault::Status(0x56),
        ];
        let refused = by_guard.iter().any(|&fault| made == Err(fault));
        wrong.expect("a class of NCCL's", (id, made), !refused);
    }
    wrong.finding("own cards only")
}

/// A child made by fork closes what it inherited, and one executes another program with it: the parent's client lives,
/// and its charge.
pub(super) fn threat_47(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let memory = device.alloc(&client, GIB, Pages::Default)?;
    let uvm = Uvm::open(&context.node)?;
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(wait_for(forked(|| {
            // It has called before it ends: the guard knows of it.
            if Client::open(&context.node).is_err() {
                return 1;
            }
            close_here(&client.file());
            close_here(&uvm.file());
            0
        })?));
    }
    let status = std::process::Command::new("/proc/self/exe")
        .arg("--version")
        .stdout(std::process::Stdio::null())
        .status()?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    let used = watch.used()?;
    let works = client
        .duplicate(device.device, client.root(), memory)
        .and_then(|other| client.free(other));
    client.free(memory)?;
    let after = watch.settles(0)?;
    let ended = statuses.iter().all(|&status| status == 0) && status.success();
    Ok(bytes(
        used,
        GIB,
        ended && works.is_ok() && after == 0,
        format!("the client works: {works:?}; {} left", human(after)),
    ))
}
