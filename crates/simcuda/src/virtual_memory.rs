//! Virtual memory management: physical memory, address ranges and mappings, each made and ended by itself.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use cuda::status::CuResult;
use simgpu::client::Node as DeviceFile;

use crate::block::Block;
use crate::driver::{Driver, driver};
use crate::gateway;
use crate::hardware::{ATTR_MAPPED, alloc_device_memory};
use crate::registry::{Registry, lock};
use crate::va::{PAGE, Range};

/// Physical memory; freed when neither its handle nor a mapping is left.
pub struct Physical {
    /// The memory object.
    memory: u32,
    /// Bytes.
    pub size: u64,
    /// Index of its GPU.
    pub gpu: usize,
    /// What kinds of handle it can be shared by (`requestedHandleTypes`).
    pub shareable: u32,
}

impl Drop for Physical {
    fn drop(&mut self) {
        // Without a driver (a child after fork) there is nothing of this process's to free.
        let Ok(driver) = driver() else { return };
        if let Ok(gpu) = driver.gpu(self.gpu) {
            let _ = driver.node.client.free(gpu.device, self.memory);
        }
    }
}

/// One mapping of physical memory into a reserved range.
struct Mapping {
    length: u64,
    offset: u64,
    physical: Arc<Physical>,
    /// Whether access was given, which is when the GPU gets to know the mapping.
    mapped: bool,
}

/// All of it.
pub struct VirtualMemory {
    /// Physical memory by its handle.
    pub physical: Registry<Physical>,
    reserved: Mutex<BTreeMap<u64, Range>>,
    mappings: Mutex<BTreeMap<u64, Mapping>>,
}

/// Size of what the driver keeps with exported memory.
const METADATA: usize = 64;

impl VirtualMemory {
    /// Nothing yet; handles start at `first`.
    pub fn new(first: usize) -> VirtualMemory {
        VirtualMemory {
            physical: Registry::new(first),
            reserved: Mutex::default(),
            mappings: Mutex::default(),
        }
    }

    /// Whether `[address, address + length)` is mapped for the GPU, maybe by several mappings side by side.
    pub fn covers(&self, address: u64, length: u64) -> bool {
        let mappings = lock(&self.mappings);
        let Some(end) = address.checked_add(length) else {
            return false;
        };
        let mut at = address;
        while at < end {
            let Some((base, mapping)) = mappings.range(..=at).next_back() else {
                return false;
            };
            if !mapping.mapped || base + mapping.length <= at {
                return false;
            }
            at = base + mapping.length;
        }
        true
    }

    /// The range that an address was reserved with: base and length.
    pub fn reserved_at(&self, address: u64) -> Option<(u64, u64)> {
        let reserved = lock(&self.reserved);
        let (base, range) = reserved.range(..=address).next_back()?;
        (address < base + range.length()).then(|| (*base, range.length()))
    }
}

impl Driver {
    /// `cuMemCreate`.
    pub fn create_physical(
        &self,
        index: usize,
        size: u64,
        shareable: u32,
    ) -> Result<usize, CuResult> {
        if size == 0 || !size.is_multiple_of(PAGE) {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        let memory = alloc_device_memory(&self.node, self.gpu(index)?, ATTR_MAPPED, size)?;
        Ok(self
            .virtual_memory
            .physical
            .add(|_| Physical {
                memory,
                size,
                gpu: index,
                shareable,
            })
            .0)
    }

    /// `cuMemAddressReserve`.
    pub fn reserve(&self, size: u64, alignment: u64) -> Result<u64, CuResult> {
        if size == 0
            || !size.is_multiple_of(PAGE)
            || (alignment != 0 && !alignment.is_power_of_two())
        {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        let range = Range::reserve(size, alignment.max(PAGE))?;
        let base = range.base();
        lock(&self.virtual_memory.reserved).insert(base, range);
        Ok(base)
    }

    /// `cuMemAddressFree`.
    pub fn unreserve(&self, base: u64, size: u64) -> Result<(), CuResult> {
        let mappings = lock(&self.virtual_memory.mappings);
        let mut reserved = lock(&self.virtual_memory.reserved);
        let whole = reserved
            .get(&base)
            .is_some_and(|range| range.length() == size);
        if !whole || mappings.range(base..base + size).next().is_some() {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        reserved.remove(&base);
        Ok(())
    }

    /// `cuMemMap`.
    pub fn map_physical(
        &self,
        base: u64,
        length: u64,
        offset: u64,
        handle: usize,
    ) -> Result<(), CuResult> {
        let physical = self
            .virtual_memory
            .physical
            .get(handle)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let end = base
            .checked_add(length)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let inside = offset
            .checked_add(length)
            .is_some_and(|last| last <= physical.size);
        let free_range = self
            .virtual_memory
            .reserved_at(base)
            .is_some_and(|(start, size)| end <= start + size);
        let mut mappings = lock(&self.virtual_memory.mappings);
        let overlaps = mappings
            .range(..end)
            .next_back()
            .is_some_and(|(at, mapping)| at + mapping.length > base);
        if length == 0 || !length.is_multiple_of(PAGE) || !inside || !free_range || overlaps {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        mappings.insert(
            base,
            Mapping {
                length,
                offset,
                physical,
                mapped: false,
            },
        );
        Ok(())
    }

    /// `cuMemSetAccess`: the GPU gets the mappings of the range that it does not have yet.
    pub fn give_access(&self, base: u64, length: u64) -> Result<(), CuResult> {
        let end = base
            .checked_add(length)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let mut mappings = lock(&self.virtual_memory.mappings);
        if length == 0 || mappings.range(base..end).next().is_none() {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        for (at, mapping) in mappings
            .range_mut(base..end)
            .filter(|(_, mapping)| !mapping.mapped)
        {
            let gpu = self.gpu(mapping.physical.gpu)?;
            self.node.uvm.create_external_range(*at, mapping.length)?;
            let memory = mapping.physical.memory;
            let (length, offset) = (mapping.length, mapping.offset);
            if let Err(error) = self.node.uvm.map_external(
                &self.node.client,
                memory,
                &gpu.uuid,
                *at,
                length,
                offset,
            ) {
                let _ = self.node.uvm.free(*at, length);
                return Err(error.into());
            }
            mapping.mapped = true;
        }
        Ok(())
    }

    /// `cuMemUnmap`: whole mappings only.
    pub fn unmap_physical(&self, base: u64, length: u64) -> Result<(), CuResult> {
        let end = base
            .checked_add(length)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let ended: Vec<(u64, Mapping)> = {
            let mut mappings = lock(&self.virtual_memory.mappings);
            let at: Vec<u64> = mappings.range(base..end).map(|(at, _)| *at).collect();
            let covered: u64 = at
                .iter()
                .filter_map(|at| mappings.get(at))
                .map(|mapping| mapping.length)
                .sum();
            if length == 0 || covered != length {
                return Err(CuResult::ERROR_INVALID_VALUE);
            }
            at.iter()
                .filter_map(|at| mappings.remove_entry(at))
                .collect()
        };
        for (at, mapping) in &ended {
            if mapping.mapped {
                self.node.uvm.free(*at, mapping.length)?;
            }
        }
        Ok(())
    }

    /// `cuMemExportToShareableHandle`: a file that stands for the memory.
    pub fn export_physical(&self, handle: usize) -> Result<i32, CuResult> {
        const POSIX_FILE: u32 = 1;
        let physical = self
            .virtual_memory
            .physical
            .get(handle)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        if physical.shareable & POSIX_FILE == 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        let gpu = self.gpu(physical.gpu)?;
        let file =
            gateway::open(DeviceFile::Control).map_err(|_| CuResult::ERROR_OPERATING_SYSTEM)?;
        // EXPORT_OBJECTS_TO_FD: fd@0 hDevice@4 maxObjects@8:2 metadata@10 objects@76[512] numObjects@2124:2 index@2126:2
        let mut metadata = [0; METADATA];
        metadata[..8].copy_from_slice(&physical.size.to_ne_bytes());
        metadata[8..24].copy_from_slice(&gpu.uuid);
        let mut block = Block::new(2128)
            .with32(0, file.as_raw_fd() as u32)
            .with32(4, gpu.device)
            .with(8, &1_u16.to_ne_bytes())
            .with(10, &metadata)
            .with32(76, physical.memory)
            .with(2124, &1_u16.to_ne_bytes());
        self.node
            .client
            .control(self.node.client.root(), 0x3d0b, &mut block)?;
        Ok(file.into_raw_fd())
    }

    /// `cuMemImportFromShareableHandle`.
    pub fn import_physical(&self, file: i32) -> Result<usize, CuResult> {
        if file < 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        // A copy of our own, closed at the end: the caller's number stays the caller's.
        // SAFETY: `dup` of any number is harmless; a new descriptor belongs to nobody else.
        let own = unsafe {
            let copy = libc::fcntl(file, libc::F_DUPFD_CLOEXEC, 0);
            (copy >= 0)
                .then(|| OwnedFd::from_raw_fd(copy))
                .ok_or(CuResult::ERROR_INVALID_VALUE)?
        };
        let number = own.as_fd().as_raw_fd() as u32;
        let root = self.node.client.root();
        // GET_EXPORT_OBJECT_INFO: fd@0 deviceInstance@4 gpuInstanceId@8 maxObjects@12:2 metadata@14; branch 535 has no
        // gpuInstanceId.
        let mut info = Block::new(80).with32(0, number);
        self.node
            .client
            .control(root, 0x3d08, &mut info)
            .map_err(|_| CuResult::ERROR_INVALID_VALUE)?;
        let at = if info.len() == 80 { 14 } else { 10 };
        let metadata = info.get(at, METADATA);
        let size = metadata[..8].try_into().map_or(0, u64::from_ne_bytes);
        let index = self
            .node
            .gpus
            .iter()
            .position(|gpu| gpu.uuid[..] == metadata[8..24]);
        let index = index
            .filter(|_| size > 0)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let gpu = self.gpu(index)?;
        let memory = self.node.client.fresh();
        // IMPORT_OBJECTS_FROM_FD: fd@0 hParent@4 objects@8[128] objectTypes@520[128] numObjects@648:2 index@650:2
        let mut block = Block::new(652)
            .with32(0, number)
            .with32(4, gpu.device)
            .with32(8, memory)
            .with(648, &1_u16.to_ne_bytes());
        self.node.client.control(root, 0x3d0c, &mut block)?;
        Ok(self
            .virtual_memory
            .physical
            .add(|_| Physical {
                memory,
                size,
                gpu: index,
                shareable: 1,
            })
            .0)
    }
}
