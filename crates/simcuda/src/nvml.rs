//! NVML: a client of its own, with the calls of the real library (recorded from `nvidia-smi` on an H200, driver
//! 580.159) as far as their answers are used here.

use std::ffi::c_char;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use cuda::status::NvmlReturn;
use rm::{layout, nr};
use simgpu::client::Node as DeviceFile;

use crate::block::Block;
use crate::ffi::{In, Out, Text, write_text};
use crate::gateway;
use crate::node::{Card, cards, fb, memory_info};
use crate::registry::lock;
use crate::resource_manager::{Fault, RmClient, escape};
use crate::visible::uuid_text;

/// Handles of NVML's objects, and the distance between two.
const FIRST_HANDLE: u32 = 0xa55a_0000;
const HANDLE_STEP: u32 = 0x10;
/// The class whose objects make a process a compute process on this generation of GPUs.
const COMPUTE_CLASS: u32 = 0xcbc0;

type Nvml<T> = Result<T, NvmlReturn>;

/// What `nvmlInit` opened.
struct State {
    /// How often `nvmlInit` was called and not undone.
    count: u32,
    client: RmClient,
    version: String,
    gpus: Vec<Gpu>,
}

struct Gpu {
    card: Card,
    subdevice: u32,
    name: String,
    uuid: [u8; 16],
    _files: [OwnedFd; 2],
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

impl From<Fault> for NvmlReturn {
    fn from(fault: Fault) -> NvmlReturn {
        match fault {
            Fault::Status(status) if status == rm::Status::NOT_SUPPORTED.0 => {
                NvmlReturn::ERROR_NOT_SUPPORTED
            }
            Fault::Status(status) if status == rm::Status::INSUFFICIENT_PERMISSIONS.0 => {
                NvmlReturn::ERROR_NO_PERMISSION
            }
            Fault::Status(_) => NvmlReturn::ERROR_UNKNOWN,
            Fault::Os(_) => NvmlReturn::ERROR_OPERATING_SYSTEM,
        }
    }
}

fn status(result: Nvml<()>) -> u32 {
    match result {
        Ok(()) => NvmlReturn::SUCCESS.0,
        Err(error) => error.0,
    }
}

fn open() -> Result<State, Fault> {
    let file = gateway::open(DeviceFile::Control)?;
    // Command '2': say the version, whatever the caller's is.
    let mut version =
        Block::new(layout::check_version::SIZE).with32(layout::check_version::CMD, u32::from(b'2'));
    escape(file.as_fd(), nr::CHECK_VERSION_STR, &mut version)?;
    escape(
        file.as_fd(),
        nr::SYS_PARAMS,
        &mut Block::new(layout::sys_params::SIZE),
    )?;
    let cards = cards(&file)?;
    let client = RmClient::new(file, FIRST_HANDLE, HANDLE_STEP)?;
    let root = client.root();
    let mut probed = Block::new(384).with(0, &[0xff; 384]);
    client.control(root, 0x214, &mut probed)?;
    let ids: Vec<u32> = (0..32).map(|index| probed.get32(index * 4)).collect();
    let mut state = State {
        count: 1,
        client,
        version: text(&version, layout::check_version::VERSION_STRING),
        gpus: Vec::new(),
    };
    for card in cards.into_iter().filter(|card| ids.contains(&card.gpu_id)) {
        let gpu = open_gpu(&state.client, card)?;
        state.gpus.push(gpu);
    }
    Ok(state)
}

fn open_gpu(client: &RmClient, card: Card) -> Result<Gpu, Fault> {
    let root = client.root();
    client.tell(root, 0x201, 128)?;
    let first = client.open_device(card.minor)?;
    let _ = escape(
        first.as_fd(),
        nr::NUMA_INFO,
        &mut Block::new(layout::numa_info::SIZE),
    );
    let mut id = Block::new(32).with32(0, card.gpu_id);
    client.control(root, 0x205, &mut id)?;
    let parameters =
        Block::new(layout::device_alloc::SIZE).with32(layout::device_alloc::DEVICE_ID, id.get32(8));
    let device = client.alloc(root, 0x80, Some(parameters))?;
    client.tell(device, 0x80_0289, 8)?;
    let second = client.open_device(card.minor)?;
    let subdevice = client.alloc(
        device,
        0x2080,
        Some(Block::new(layout::subdevice_alloc::SIZE)),
    )?;
    client.tell(subdevice, 0x2080_1701, 16)?;
    let mut gid = Block::new(268).with32(4, 2);
    client.control(subdevice, 0x2080_014a, &mut gid)?;
    let mut name = Block::new(132);
    client.control(subdevice, 0x2080_0110, &mut name)?;
    client.tell(subdevice, 0x2080_1801, 16)?;
    let uuid = gid.get(12, 16).try_into().unwrap_or_default();
    Ok(Gpu {
        card,
        subdevice,
        name: text(&name, 4),
        uuid,
        _files: [first, second],
    })
}

/// The text at an offset of a block.
fn text(block: &Block, at: usize) -> String {
    let bytes = block.get(at, block.len().saturating_sub(at));
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or(&[])).into_owned()
}

pub extern "C" fn init() -> u32 {
    let mut state = lock(&STATE);
    if let Some(state) = state.as_mut() {
        state.count += 1;
        return NvmlReturn::SUCCESS.0;
    }
    match open() {
        Ok(opened) => {
            *state = Some(opened);
            NvmlReturn::SUCCESS.0
        }
        Err(Fault::Os(_)) => NvmlReturn::ERROR_DRIVER_NOT_LOADED.0,
        Err(fault) => NvmlReturn::from(fault).0,
    }
}

pub extern "C" fn init_with_flags(_flags: u32) -> u32 {
    init()
}

pub extern "C" fn shutdown() -> u32 {
    let mut state = lock(&STATE);
    let Some(opened) = state.as_mut() else {
        return NvmlReturn::ERROR_UNINITIALIZED.0;
    };
    opened.count -= 1;
    if opened.count == 0 {
        let _ = opened
            .client
            .free(opened.client.root(), opened.client.root());
        *state = None;
    }
    NvmlReturn::SUCCESS.0
}

pub extern "C" fn error_string(error: u32) -> *const c_char {
    NvmlReturn(error)
        .text()
        .or(NvmlReturn::ERROR_UNKNOWN.text())
        .map_or(std::ptr::null(), std::ffi::CStr::as_ptr)
}

/// Runs `use_it` with what `nvmlInit` opened.
fn with<T>(use_it: impl FnOnce(&State) -> Nvml<T>) -> Nvml<T> {
    lock(&STATE)
        .as_ref()
        .ok_or(NvmlReturn::ERROR_UNINITIALIZED)
        .and_then(use_it)
}

fn place<T: Copy>(to: Out<T>) -> Nvml<Out<T>> {
    to.required()
        .map_err(|_| NvmlReturn::ERROR_INVALID_ARGUMENT)
}

/// The handle of the GPU with this index.
fn handle_of(index: usize) -> usize {
    (index + 1) << 12
}

/// Runs `use_it` with the GPU of a handle and writes down what it gives.
fn ask<T: Copy>(device: usize, to: Out<T>, use_it: impl FnOnce(&State, &Gpu) -> Nvml<T>) -> u32 {
    status(with(|state| {
        let to = place(to)?;
        to.set(use_it(state, gpu_of(state, device)?.1)?);
        Ok(())
    }))
}

fn gpu_of(state: &State, device: usize) -> Nvml<(usize, &Gpu)> {
    let gpus = state.gpus.iter().enumerate();
    gpus.into_iter()
        .find(|(index, _)| handle_of(*index) == device)
        .ok_or(NvmlReturn::ERROR_INVALID_ARGUMENT)
}

/// Writes a text into the caller's room; too little room is an error here.
fn fit(to: Out<c_char>, room: u32, text: &str) -> Nvml<()> {
    let to = place(to)?;
    if text.len() >= room as usize {
        return Err(NvmlReturn::ERROR_INSUFFICIENT_SIZE);
    }
    write_text(to, room as usize, text.as_bytes());
    Ok(())
}

pub extern "C" fn system_get_driver_version(to: Out<c_char>, room: u32) -> u32 {
    status(with(|state| fit(to, room, &state.version)))
}

pub extern "C" fn system_get_nvml_version(to: Out<c_char>, room: u32) -> u32 {
    status(with(|state| {
        fit(to, room, &format!("13.{}", state.version))
    }))
}

pub extern "C" fn system_get_cuda_version(version: Out<i32>) -> u32 {
    status(place(version).map(|version| version.set(cuda::driver::VERSION as i32)))
}

pub extern "C" fn device_get_count(count: Out<u32>) -> u32 {
    status(with(|state| {
        place(count)?.set(state.gpus.len() as u32);
        Ok(())
    }))
}

fn find(to: Out<usize>, error: NvmlReturn, wanted: impl Fn(usize, &Gpu) -> bool) -> u32 {
    status(with(|state| {
        let to = place(to)?;
        let found = state
            .gpus
            .iter()
            .enumerate()
            .position(|(index, gpu)| wanted(index, gpu));
        to.set(handle_of(found.ok_or(error)?));
        Ok(())
    }))
}

pub extern "C" fn device_by_index(wanted: u32, to: Out<usize>) -> u32 {
    find(to, NvmlReturn::ERROR_INVALID_ARGUMENT, |index, _| {
        index == wanted as usize
    })
}

pub extern "C" fn device_by_uuid(wanted: Text, to: Out<usize>) -> u32 {
    let Some(wanted) = wanted.get() else {
        return NvmlReturn::ERROR_INVALID_ARGUMENT.0;
    };
    find(to, NvmlReturn::ERROR_NOT_FOUND, |_, gpu| {
        uuid_text(&gpu.uuid).eq_ignore_ascii_case(&wanted)
    })
}

pub extern "C" fn device_by_pci(wanted: Text, to: Out<usize>) -> u32 {
    let Some(wanted) = wanted.get() else {
        return NvmlReturn::ERROR_INVALID_ARGUMENT.0;
    };
    let wanted = wanted.to_ascii_uppercase();
    find(to, NvmlReturn::ERROR_NOT_FOUND, |_, gpu| {
        let (long, short) = pci_texts(&gpu.card);
        wanted == long
            || wanted == short
            || long.split_once(':').is_some_and(|(_, rest)| wanted == rest)
    })
}

/// A card's place on the PCI bus, with a domain of eight digits and of four.
fn pci_texts(card: &Card) -> (String, String) {
    let rest = format!("{:02X}:{:02X}.0", card.bus, card.slot);
    (
        format!("{:08X}:{rest}", card.domain),
        format!("{:04X}:{rest}", card.domain),
    )
}

pub extern "C" fn device_get_name(device: usize, to: Out<c_char>, room: u32) -> u32 {
    status(with(|state| fit(to, room, &gpu_of(state, device)?.1.name)))
}

pub extern "C" fn device_get_uuid(device: usize, to: Out<c_char>, room: u32) -> u32 {
    status(with(|state| {
        fit(to, room, &uuid_text(&gpu_of(state, device)?.1.uuid))
    }))
}

pub extern "C" fn device_get_index(device: usize, index: Out<u32>) -> u32 {
    status(with(|state| {
        let (found, _) = gpu_of(state, device)?;
        place(index)?.set(found as u32);
        Ok(())
    }))
}

pub extern "C" fn device_get_minor(device: usize, minor: Out<u32>) -> u32 {
    ask(device, minor, |_, gpu| Ok(gpu.card.minor))
}

/// `nvmlPciInfo_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PciInfo {
    legacy: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    device_id: u32,
    subsystem_id: u32,
    bus_id: [u8; 32],
}

pub extern "C" fn device_get_pci_info(device: usize, info: Out<PciInfo>) -> u32 {
    ask(device, info, |_, gpu| {
        let card = &gpu.card;
        let (long, short) = pci_texts(card);
        Ok(PciInfo {
            legacy: padded(&short),
            domain: card.domain,
            bus: card.bus.into(),
            device: card.slot.into(),
            device_id: (u32::from(card.device) << 16) | u32::from(card.vendor),
            subsystem_id: 0,
            bus_id: padded(&long),
        })
    })
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().zip(text.bytes()).take(N.saturating_sub(1)) {
        *to = from;
    }
    bytes
}

/// `nvmlMemory_t`: total, free, used; bytes.
pub extern "C" fn device_get_memory(device: usize, memory: Out<[u64; 3]>) -> u32 {
    ask(device, memory, |state, gpu| {
        let [total, _, free] = sizes(state, gpu)?;
        Ok([total, free, total.saturating_sub(free)])
    })
}

/// Whole memory, what can be given out in all, what is free now; bytes.
fn sizes(state: &State, gpu: &Gpu) -> Nvml<[u64; 3]> {
    let kib = memory_info(
        &state.client,
        gpu.subdevice,
        [fb::RAM_SIZE, fb::HEAP_SIZE, fb::HEAP_FREE],
    )?;
    Ok(kib.map(|value| value * 1024))
}

/// `nvmlMemory_v2_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2`: the structure's size and, in the upper byte, its version.
const MEMORY_V2: u32 = size_of::<MemoryV2>() as u32 | 2 << 24;

pub extern "C" fn device_get_memory_v2(device: usize, memory: Out<MemoryV2>) -> u32 {
    if memory.get().is_some_and(|given| given.version != MEMORY_V2) {
        return NvmlReturn::ERROR_ARGUMENT_VERSION_MISMATCH.0;
    }
    ask(device, memory, |state, gpu| {
        let [total, heap, free] = sizes(state, gpu)?;
        let reserved = total.saturating_sub(heap);
        Ok(MemoryV2 {
            version: MEMORY_V2,
            total,
            reserved,
            free,
            used: heap.saturating_sub(free),
        })
    })
}

/// `nvmlUtilization_t`: the simulated GPU keeps no such statistics.
pub extern "C" fn device_get_utilization(device: usize, to: Out<[u32; 2]>) -> u32 {
    ask(device, to, |_, _| Ok([0, 0]))
}

pub extern "C" fn device_get_compute_capability(
    device: usize,
    major: Out<i32>,
    minor: Out<i32>,
) -> u32 {
    status(with(|state| {
        gpu_of(state, device)?;
        place(major)?.set(9);
        place(minor)?.set(0);
        Ok(())
    }))
}

/// Processes with compute work, as `{pid, bytes}`.
fn running(state: &State, gpu: &Gpu) -> Nvml<Vec<(u32, u64)>> {
    use layout::{pid_info, pid_info_entry as entry, pids};
    let mut block = Block::new(pids::SIZE).with32(pids::ID, COMPUTE_CLASS);
    state
        .client
        .control(gpu.subdevice, 0x2080_018d, &mut block)?;
    let most = (pids::SIZE - pids::PID_TBL) / 4;
    let count = (block.get32(pids::PID_TBL_COUNT) as usize).min(most);
    let found: Vec<u32> = (0..count)
        .map(|index| block.get32(pids::PID_TBL + 4 * index))
        .collect();
    let mut processes = Vec::new();
    for group in found.chunks((pid_info::SIZE - pid_info::PID_INFO_LIST) / entry::SIZE) {
        let at = |index: usize| pid_info::PID_INFO_LIST + index * entry::SIZE;
        let mut block =
            Block::new(pid_info::SIZE).with32(pid_info::PID_INFO_LIST_COUNT, group.len() as u32);
        for (index, pid) in group.iter().enumerate() {
            block.put(at(index) + entry::PID, &pid.to_ne_bytes());
        }
        state
            .client
            .control(gpu.subdevice, 0x2080_018e, &mut block)?;
        for (index, pid) in group.iter().enumerate() {
            if block.get32(at(index) + entry::RESULT) == 0 {
                let part = |offset| block.get64(at(index) + offset);
                processes.push((
                    *pid,
                    part(entry::MEM_PRIVATE) + part(entry::MEM_SHARED_OWNED),
                ));
            }
        }
    }
    Ok(processes)
}

/// `nvmlProcessInfo_t` in its first form, of two fields, and (`FORM` 2) with the two MIG instances behind.
pub extern "C" fn processes<const FORM: usize>(
    device: usize,
    count: Out<u32>,
    to: Out<u64>,
) -> u32 {
    const NO_INSTANCE: u64 = u64::MAX;
    let words = FORM + 1;
    status(with(|state| {
        let count = place(count)?;
        let found = running(state, gpu_of(state, device)?.1)?;
        let room = if to.is_null() {
            0
        } else {
            count.get().unwrap_or(0) as usize
        };
        count.set(found.len() as u32);
        if found.len() > room {
            return Err(NvmlReturn::ERROR_INSUFFICIENT_SIZE);
        }
        for (index, (pid, bytes)) in found.into_iter().enumerate() {
            for (at, word) in [u64::from(pid), bytes, NO_INSTANCE]
                .into_iter()
                .take(words)
                .enumerate()
            {
                to.set_at(index * words + at, word);
            }
        }
        Ok(())
    }))
}

/// The simulated GPU draws nothing.
pub extern "C" fn no_processes(device: usize, count: Out<u32>, _to: In<u64>) -> u32 {
    ask(device, count, |_, _| Ok(0))
}
