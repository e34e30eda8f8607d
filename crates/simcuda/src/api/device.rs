//! Devices and what they are like.

use std::ffi::c_char;

use cuda::status::CuResult;

use crate::driver::{Driver, driver};
use crate::ffi::{Out, Text, status, write_text};
use crate::node::{Card, Gpu};

pub extern "C" fn get(device: Out<i32>, ordinal: i32) -> u32 {
    status((|| {
        let device = device.required()?;
        driver()?.gpu_of(ordinal)?;
        device.set(ordinal);
        Ok(())
    })())
}

pub extern "C" fn get_count(count: Out<i32>) -> u32 {
    status((|| {
        count.required()?.set(driver()?.visible.len() as i32);
        Ok(())
    })())
}

/// Runs `use_it` with a device; a caller without a place for the answer gets an error.
fn with<T: Copy>(
    answer: Out<T>,
    device: i32,
    use_it: impl FnOnce(&'static Driver, &'static Gpu) -> Result<T, CuResult>,
) -> u32 {
    status((|| {
        let driver = driver()?;
        let answer = answer.required()?;
        let (_, gpu) = driver.gpu_of(device)?;
        answer.set(use_it(driver, gpu)?);
        Ok(())
    })())
}

pub extern "C" fn get_name(name: Out<c_char>, room: i32, device: i32) -> u32 {
    status((|| {
        let (_, gpu) = driver()?.gpu_of(device)?;
        let room = usize::try_from(room)
            .ok()
            .filter(|room| *room > 0)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        write_text(name.required()?, room, gpu.name.as_bytes());
        Ok(())
    })())
}

pub extern "C" fn get_uuid(uuid: Out<[u8; 16]>, device: i32) -> u32 {
    with(uuid, device, |_, gpu| Ok(gpu.uuid))
}

pub extern "C" fn total_mem(bytes: Out<usize>, device: i32) -> u32 {
    with(bytes, device, |_, gpu| Ok((gpu.heap_kib * 1024) as usize))
}

/// The first interface counted memory in 32 bits.
pub extern "C" fn total_mem_v1(bytes: Out<u32>, device: i32) -> u32 {
    with(bytes, device, |_, gpu| {
        Ok(u32::try_from(gpu.heap_kib * 1024).unwrap_or(u32::MAX))
    })
}

pub extern "C" fn compute_capability(major: Out<i32>, minor: Out<i32>, device: i32) -> u32 {
    status((|| {
        driver()?.gpu_of(device)?;
        major.required()?.set(9);
        minor.required()?.set(0);
        Ok(())
    })())
}

pub extern "C" fn get_pci_bus_id(text: Out<c_char>, room: i32, device: i32) -> u32 {
    status((|| {
        let (_, gpu) = driver()?.gpu_of(device)?;
        let room = usize::try_from(room)
            .ok()
            .filter(|room| *room > 0)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        write_text(text.required()?, room, pci_text(&gpu.card).as_bytes());
        Ok(())
    })())
}

/// A card's place on the PCI bus as the driver API writes it.
fn pci_text(card: &Card) -> String {
    format!("{:04x}:{:02x}:{:02x}.0", card.domain, card.bus, card.slot)
}

pub extern "C" fn get_by_pci_bus_id(device: Out<i32>, text: Text) -> u32 {
    status((|| {
        let driver = driver()?;
        let device = device.required()?;
        let text = text.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let (domain, bus, slot) = parse_pci(&text).ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let at = |gpu: &Gpu| {
            (
                gpu.card.domain,
                u32::from(gpu.card.bus),
                u32::from(gpu.card.slot),
            ) == (domain, bus, slot)
        };
        let ordinal = driver
            .visible
            .iter()
            .position(|index| driver.node.gpus.get(*index).is_some_and(at));
        device.set(ordinal.ok_or(CuResult::ERROR_INVALID_DEVICE)? as i32);
        Ok(())
    })())
}

/// `domain:bus:device.function`, `domain:bus:device` or `bus:device.function`, in hexadecimal.
fn parse_pci(text: &str) -> Option<(u32, u32, u32)> {
    let hex = |part: &str| u32::from_str_radix(part, 16).ok();
    let (place, function) = text
        .split_once('.')
        .map_or((text, None), |(place, f)| (place, Some(f)));
    if let Some(function) = function {
        hex(function)?;
    }
    match place.split(':').collect::<Vec<_>>()[..] {
        [domain, bus, slot] => Some((hex(domain)?, hex(bus)?, hex(slot)?)),
        [bus, slot] if function.is_some() => Some((0, hex(bus)?, hex(slot)?)),
        _ => None,
    }
}

pub extern "C" fn can_access_peer(can: Out<i32>, device: i32, peer: i32) -> u32 {
    // Peer mappings are not simulated.
    with(can, device, |driver, _| driver.gpu_of(peer).map(|_| 0))
}

pub extern "C" fn get_p2p_attribute(
    value: Out<i32>,
    attribute: i32,
    device: i32,
    peer: i32,
) -> u32 {
    with(value, device, |driver, _| {
        driver.gpu_of(peer)?;
        if (1..=5).contains(&attribute) && device != peer {
            Ok(0)
        } else {
            Err(CuResult::ERROR_INVALID_VALUE)
        }
    })
}

pub extern "C" fn get_exec_affinity_support(supported: Out<i32>, _kind: u32, device: i32) -> u32 {
    with(supported, device, |_, _| Ok(0))
}

pub extern "C" fn get_attribute(value: Out<i32>, attribute: u32, device: i32) -> u32 {
    with(value, device, |_, gpu| {
        let card = &gpu.card;
        Ok(match attribute {
            33 => i32::from(card.bus),
            34 => i32::from(card.slot),
            50 => card.domain as i32,
            139 => ((u32::from(card.device) << 16) | u32::from(card.vendor)) as i32,
            _ => ATTRIBUTES
                .iter()
                .find(|(number, _)| *number == attribute)
                .map(|(_, value)| *value)
                .or((1..=147).contains(&attribute).then_some(0))
                .ok_or(CuResult::ERROR_INVALID_VALUE)?,
        })
    })
}

/// Attributes (`CUdevice_attribute`) that are not 0 and do not depend on where the card is: NVIDIA's published numbers
/// of compute capability 9.0 and of the H200, and what this library can do.
const ATTRIBUTES: &[(u32, i32)] = &[
    (1, 1024),       // threads per block
    (2, 1024),       // block x
    (3, 1024),       // block y
    (4, 64),         // block z
    (5, i32::MAX),   // grid x
    (6, 65535),      // grid y
    (7, 65535),      // grid z
    (8, 48 << 10),   // shared memory per block
    (9, 64 << 10),   // constant memory
    (10, 32),        // warp
    (11, i32::MAX),  // pitch
    (12, 65536),     // registers per block
    (13, 1_980_000), // clock, kHz
    (14, 512),       // texture alignment
    (15, 1),         // copies and kernels overlap
    (16, 132),       // multiprocessors
    (19, 1),         // host memory can be mapped
    (30, 512),       // surface alignment
    (31, 1),         // concurrent kernels
    (32, 1),         // ECC
    (36, 3_201_000), // memory clock, kHz
    (37, 6144),      // memory bus, bits
    (38, 60 << 20),  // L2
    (39, 2048),      // threads per multiprocessor
    (40, 3),         // copy engines
    (41, 1),         // unified addressing
    (51, 32),        // texture pitch alignment
    (75, 9),         // compute capability, major
    (78, 1),         // stream priorities
    (79, 1),         // global memory in L1
    (80, 1),         // local memory in L1
    (81, 228 << 10), // shared memory per multiprocessor
    (82, 65536),     // registers per multiprocessor
    (83, 1),         // managed memory
    (89, 1),         // concurrent managed access
    (90, 1),         // compute preemption
    (91, 1),         // host pointers of registered memory
    (95, 1),         // cooperative launch
    (97, 227 << 10), // shared memory per block, on request
    (99, 1),         // host memory can be registered
    (102, 1),        // virtual memory management
    (103, 1),        // POSIX file descriptors as handles
    (106, 32),       // blocks per multiprocessor
    (111, 1 << 10),  // reserved shared memory per block
    (115, 1),        // memory pools
    (131, -1),       // NUMA node: none
    (134, -1),       // host NUMA node: none
];
