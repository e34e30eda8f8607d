//! The UVM file: an address space, what is mapped in it, and what that keeps alive.

use std::collections::{BTreeMap, BTreeSet};

use rm::{Status, layout, uvm};

use super::clients::Body;
use super::managed::Residents;
use super::{Answer, Call, Rm, status};
use crate::proto::FileId;

/// Bytes of the attributes of one GPU in a mapping call: its UUID first.
const PER_GPU: usize = 36;
/// Ranges and mappings are whole pages.
const PAGE: u64 = 4096;

/// What hangs on one open UVM file.
#[derive(Default)]
pub struct Uvm {
    /// Flags it was set up with, and the process whose address space it is bound to.
    initialised: Option<(u64, u32)>,
    kept: Kept,
    gpus: BTreeSet<usize>,
    pub spaces: Vec<Space>,
    channels: BTreeSet<(u32, u32)>,
    /// Reserved addresses: base -> length and use.
    ranges: BTreeMap<u64, (u64, Use)>,
    /// External mappings: GPU and base.
    maps: BTreeMap<(usize, u64), Map>,
    groups: BTreeSet<u64>,
    next_group: u64,
    pub resident: Residents,
}

/// Whether a second file keeps the address space that a UVM file is bound to (`MM_INITIALIZE`, uvm.c). Without it the
/// driver makes nothing that works on that address space.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Kept {
    #[default]
    NotYet,
    By(FileId),
    /// The second file was closed: for good.
    NoMore,
}

/// A registered GPU address space.
pub struct Space {
    pub gpu: usize,
    pub client: u32,
    pub handle: u32,
}

/// What a reserved range is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// Memory of RM is mapped into it.
    External,
    /// Semaphores in host memory.
    Semaphores,
    /// A region the hardware wants mapped.
    Region,
}

/// Memory mapped at an address. It holds a reference: the memory outlives its handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Map {
    pub length: u64,
    pub memory: u64,
    pub offset: u64,
}

/// `UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE`: the file acts on the address space of whoever calls.
const MULTI_PROCESS_SHARING: u64 = 2;

impl Uvm {
    /// Whether managed memory of this process belongs to the file: the one that set it up, unless it is shared.
    pub fn serves(&self, pid: u32) -> bool {
        self.initialised
            .is_some_and(|(flags, bound)| bound == pid || flags & MULTI_PROCESS_SHARING != 0)
    }

    /// The mapping that holds an address, and its base.
    pub fn map_at(&self, gpu: usize, address: u64) -> Option<(u64, Map)> {
        let (&(_, base), &map) = self.maps.range((gpu, 0)..=(gpu, address)).next_back()?;
        (address - base < map.length).then_some((base, map))
    }

    /// Where the semaphore pool that holds an address ends.
    pub fn semaphores_at(&self, address: u64) -> Option<u64> {
        let (&base, &(length, kind)) = self.ranges.range(..=address).next_back()?;
        (kind == Use::Semaphores && address - base < length).then_some(base + length)
    }

    /// A file was closed: was it the one that keeps this one's address space?
    pub fn closed(&mut self, other: FileId) {
        if self.kept == Kept::By(other) {
            self.kept = Kept::NoMore;
        }
    }

    /// Calls that need the address space are refused unless it is kept, or is the caller's whoever calls.
    fn needs_address_space(&self) -> Answer {
        match self.kept {
            Kept::By(_) => Ok(()),
            _ if self.is_shared() => Ok(()),
            _ => Err(status::PAGE_TABLE_NOT_AVAIL),
        }
    }

    fn is_shared(&self) -> bool {
        self.initialised
            .is_some_and(|(flags, _)| flags & MULTI_PROCESS_SHARING != 0)
    }

    /// Whether a range overlaps one that is reserved.
    fn taken(&self, base: u64, length: u64) -> bool {
        self.ranges
            .range(..base + length)
            .next_back()
            .is_some_and(|(&start, &(size, _))| start + size > base)
    }

    /// Whether one external range covers these addresses.
    fn external(&self, base: u64, length: u64) -> Answer {
        let end = base.checked_add(length).ok_or(status::INVALID_ADDRESS)?;
        let range = self.ranges.range(..=base).next_back();
        match range {
            Some((&start, &(size, Use::External))) if length > 0 && end <= start + size => Ok(()),
            _ => Err(status::INVALID_ADDRESS),
        }
    }

    fn reserve(&mut self, base: u64, length: u64, kind: Use) -> Answer {
        if length == 0
            || !(base | length).is_multiple_of(PAGE)
            || base.checked_add(length).is_none()
        {
            return Err(status::INVALID_ADDRESS);
        }
        if self.taken(base, length) {
            return Err(status::UVM_ADDRESS_IN_USE);
        }
        self.ranges.insert(base, (length, kind));
        Ok(())
    }

    /// Takes mappings of a GPU out of a range; what sticks out on either side stays. Returns how the number of
    /// mappings of each memory changes: -1 for one that went, +1 for one that was split in two.
    fn carve(&mut self, gpu: usize, base: u64, length: u64) -> Vec<(u64, i32)> {
        let end = base + length;
        let overlapping: Vec<(u64, Map)> = self
            .maps
            .range((gpu, 0)..(gpu, end))
            .rev()
            .take_while(|&(&(_, start), map)| start + map.length > base)
            .map(|(&(_, start), &map)| (start, map))
            .collect();
        let mut changes = Vec::new();
        for (start, map) in overlapping {
            self.maps.remove(&(gpu, start));
            let mut change = -1;
            if start < base {
                self.maps.insert(
                    (gpu, start),
                    Map {
                        length: base - start,
                        ..map
                    },
                );
                change += 1;
            }
            let stop = start + map.length;
            if stop > end {
                let rest = Map {
                    length: stop - end,
                    offset: map.offset + (end - start),
                    ..map
                };
                self.maps.insert((gpu, end), rest);
                change += 1;
            }
            changes.push((map.memory, change));
        }
        changes
    }
}

impl Rm {
    /// Executes a UVM call. The block has the size the table gives for the request.
    pub fn uvm(&mut self, request: u32, call: &mut Call) {
        let answer = self.uvm_call(request, call);
        if let Some(at) = self.abi.uvm(request).and_then(|entry| entry.status) {
            call.block
                .put_u32(usize::from(at), answer.err().unwrap_or(Status::OK).0);
        }
    }

    fn space(&mut self, file: FileId) -> Answer<&mut Uvm> {
        self.files
            .get_mut(&file)
            .and_then(|file| file.uvm.as_deref_mut())
            .ok_or(status::ILLEGAL_ACTION)
    }

    fn gpu_of_uuid(&self, uuid: [u8; 16]) -> Answer<usize> {
        self.node
            .devices
            .iter()
            .position(|device| device.uuid == uuid)
            .ok_or(status::INVALID_DEVICE)
    }

    fn uvm_call(&mut self, request: u32, call: &mut Call) -> Answer {
        let file = call.file;
        match request {
            uvm::INITIALIZE => return self.uvm_initialize(call),
            uvm::DEINITIALIZE => return Ok(()),
            uvm::MM_INITIALIZE => return self.uvm_mm_initialize(call),
            _ => {}
        }
        if self.space(file)?.initialised.is_none() {
            return Err(status::ILLEGAL_ACTION);
        }
        match request {
            uvm::REGISTER_GPU => self.uvm_register_gpu(call),
            uvm::UNREGISTER_GPU => {
                let gpu =
                    self.gpu_of_uuid(call.block.uuid(layout::uvm_unregister_gpu::GPU_UUID))?;
                let known = self.space(file)?.gpus.remove(&gpu);
                if known {
                    Ok(())
                } else {
                    Err(status::INVALID_DEVICE)
                }
            }
            uvm::REGISTER_GPU_VASPACE => self.uvm_register_space(call),
            uvm::UNREGISTER_GPU_VASPACE => {
                let gpu = self.gpu_of_uuid(
                    call.block
                        .uuid(layout::uvm_unregister_gpu_vaspace::GPU_UUID),
                )?;
                self.space(file)?.spaces.retain(|space| space.gpu != gpu);
                Ok(())
            }
            uvm::REGISTER_CHANNEL => self.uvm_register_channel(call),
            uvm::UNREGISTER_CHANNEL => {
                let at = self.abi.layout().uvm_unregister_channel;
                let named = (call.block.u32(at.h_client), call.block.u32(at.h_channel));
                let known = self.space(file)?.channels.remove(&named);
                if known {
                    Ok(())
                } else {
                    Err(status::INVALID_CHANNEL)
                }
            }
            uvm::CREATE_EXTERNAL_RANGE => {
                use layout::uvm_create_external_range as at;
                let (base, length) = (call.block.u64(at::BASE), call.block.u64(at::LENGTH));
                self.space(file)?.reserve(base, length, Use::External)
            }
            uvm::ALLOC_SEMAPHORE_POOL => {
                use layout::uvm_alloc_semaphore_pool as at;
                let (base, length) = (call.block.u64(at::BASE), call.block.u64(at::LENGTH));
                self.space(file)?.reserve(base, length, Use::Semaphores)
            }
            uvm::MAP_DYNAMIC_PARALLELISM_REGION => {
                use layout::uvm_map_dynamic_parallelism_region as at;
                self.gpu_of_uuid(call.block.uuid(at::GPU_UUID))?;
                let (base, length) = (call.block.u64(at::BASE), call.block.u64(at::LENGTH));
                self.space(file)?.reserve(base, length, Use::Region)
            }
            uvm::MAP_EXTERNAL_ALLOCATION => self.uvm_map_external(call),
            uvm::UNMAP_EXTERNAL => {
                use layout::uvm_unmap_external as at;
                let (base, length) = (call.block.u64(at::BASE), call.block.u64(at::LENGTH));
                // The range first, then the GPU: as the driver looks.
                self.space(file)?.external(base, length)?;
                let gpu = self.gpu_of_uuid(call.block.uuid(at::GPU_UUID))?;
                self.uvm_unmap(file, &[gpu], base, length)
            }
            uvm::FREE => self.uvm_free(call),
            uvm::VALIDATE_VA_RANGE => {
                use layout::uvm_validate_va_range as at;
                self.uvm_validate(call, call.block.u64(at::BASE), call.block.u64(at::LENGTH))
            }
            uvm::CREATE_RANGE_GROUP => {
                let space = self.space(file)?;
                space.next_group += 1;
                let id = space.next_group;
                space.groups.insert(id);
                call.block
                    .put_u64(layout::uvm_create_range_group::RANGE_GROUP_ID, id);
                Ok(())
            }
            uvm::DESTROY_RANGE_GROUP => {
                let id = call
                    .block
                    .u64(layout::uvm_destroy_range_group::RANGE_GROUP_ID);
                let known = self.space(file)?.groups.remove(&id);
                if known {
                    Ok(())
                } else {
                    Err(Status::OBJECT_NOT_FOUND)
                }
            }
            uvm::SET_RANGE_GROUP => {
                let id = call.block.u64(layout::uvm_set_range_group::RANGE_GROUP_ID);
                let known = id == 0 || self.space(file)?.groups.contains(&id);
                if known {
                    Ok(())
                } else {
                    Err(Status::OBJECT_NOT_FOUND)
                }
            }
            uvm::MIGRATE => self.uvm_migrate(call),
            uvm::PAGEABLE_MEM_ACCESS => {
                call.block
                    .put_u8(layout::uvm_pageable_mem_access::PAGEABLE_MEM_ACCESS, 0);
                Ok(())
            }
            uvm::PAGEABLE_MEM_ACCESS_ON_GPU => {
                use layout::uvm_pageable_mem_access_on_gpu as at;
                self.gpu_of_uuid(call.block.uuid(at::GPU_UUID))?;
                call.block.put_u8(at::PAGEABLE_MEM_ACCESS, 0);
                Ok(())
            }
            // Hints, and peer access between cards that here always reach each other.
            uvm::ENABLE_PEER_ACCESS
            | uvm::DISABLE_PEER_ACCESS
            | uvm::SET_PREFERRED_LOCATION
            | uvm::UNSET_PREFERRED_LOCATION
            | uvm::ENABLE_READ_DUPLICATION
            | uvm::DISABLE_READ_DUPLICATION
            | uvm::SET_ACCESSED_BY
            | uvm::UNSET_ACCESSED_BY
            | uvm::MIGRATE_RANGE_GROUP => Ok(()),
            _ => Err(Status::NOT_SUPPORTED),
        }
    }

    /// The flags are immutable: a second call must ask for the same. The first one binds the caller's address space.
    fn uvm_initialize(&mut self, call: &mut Call) -> Answer {
        let flags = call.block.u64(layout::uvm_initialize::FLAGS);
        let pid = call.caller.pid;
        let space = self.space(call.file)?;
        match space.initialised {
            None => {
                space.initialised = Some((flags, pid));
                Ok(())
            }
            Some((set, _)) if set == flags => Ok(()),
            Some(_) => Err(Status::INVALID_ARGUMENT),
        }
    }

    /// A second UVM file keeps the first one's address space; the first must be set up.
    fn uvm_mm_initialize(&mut self, call: &mut Call) -> Answer {
        let other = call.descriptor.ok_or(Status::INVALID_ARGUMENT)?;
        let keeper = call.file;
        let space = self.space(other)?;
        if space.initialised.is_none() {
            return Err(status::ILLEGAL_ACTION);
        }
        if space.is_shared() {
            return Err(status::NOTHING_TO_DO);
        }
        match space.kept {
            Kept::NotYet => {
                space.kept = Kept::By(keeper);
                Ok(())
            }
            Kept::By(_) => Err(status::INVALID_STATE),
            Kept::NoMore => Err(status::PAGE_TABLE_NOT_AVAIL),
        }
    }

    fn uvm_register_gpu(&mut self, call: &mut Call) -> Answer {
        use layout::uvm_register_gpu as at;
        let gpu = self.gpu_of_uuid(call.block.uuid(at::GPU_UUID))?;
        // A client is named only for a MIG instance; then its owner must call.
        let client = call.block.u32(at::H_CLIENT);
        if self.clients.contains_key(&client) {
            self.uvm_owner(call, client)?;
        }
        self.space(call.file)?.gpus.insert(gpu);
        call.block.put_u8(at::NUMA_ENABLED, 0);
        call.block.put_u32(at::NUMA_NODE_ID, u32::MAX);
        Ok(())
    }

    /// UVM looks clients up in RM by handle and wants the process that made them.
    fn uvm_owner(&self, call: &Call, client: u32) -> Answer {
        match self.clients.get(&client) {
            None => Err(Status::INVALID_CLIENT),
            Some(owner) if owner.pid == call.caller.pid => Ok(()),
            Some(_) => Err(Status::INSUFFICIENT_PERMISSIONS),
        }
    }

    fn uvm_register_space(&mut self, call: &mut Call) -> Answer {
        use layout::uvm_register_gpu_vaspace as at;
        let gpu = self.gpu_of_uuid(call.block.uuid(at::GPU_UUID))?;
        let (client, handle) = (call.block.u32(at::H_CLIENT), call.block.u32(at::H_VA_SPACE));
        self.uvm_owner(call, client)?;
        match self.body_of(client, handle) {
            Some(Body::VaSpace { external: true, .. }) => {}
            Some(Body::VaSpace { .. }) => return Err(status::INVALID_FLAGS),
            _ => return Err(Status::OBJECT_NOT_FOUND),
        }
        let space = self.space(call.file)?;
        space.needs_address_space()?;
        if !space.gpus.contains(&gpu) {
            return Err(status::INVALID_DEVICE);
        }
        if space.spaces.iter().any(|space| space.gpu == gpu) {
            return Err(status::INVALID_STATE);
        }
        space.spaces.push(Space {
            gpu,
            client,
            handle,
        });
        Ok(())
    }

    fn uvm_register_channel(&mut self, call: &mut Call) -> Answer {
        use layout::uvm_register_channel as at;
        self.gpu_of_uuid(call.block.uuid(at::GPU_UUID))?;
        let (client, handle) = (call.block.u32(at::H_CLIENT), call.block.u32(at::H_CHANNEL));
        self.uvm_owner(call, client)?;
        self.channel_id(client, handle)
            .ok_or(status::INVALID_CHANNEL)?;
        self.space(call.file)?.needs_address_space()?;
        self.space(call.file)?.channels.insert((client, handle));
        Ok(())
    }

    /// Maps memory of RM at an address of each GPU named. The mapping is a reference of its own.
    fn uvm_map_external(&mut self, call: &mut Call) -> Answer {
        use layout::uvm_map_external as at;
        let behind = self.abi.layout().uvm_map_external;
        let (base, length) = (call.block.u64(at::BASE), call.block.u64(at::LENGTH));
        let (offset, count) = (
            call.block.u64(at::OFFSET),
            call.block.u64(behind.gpu_attributes_count),
        );
        let (client, handle) = (
            call.block.u32(behind.h_client),
            call.block.u32(behind.h_memory),
        );
        let room = (behind.gpu_attributes_count - at::PER_GPU_ATTRIBUTES) / PER_GPU;
        if count == 0 || count > room as u64 {
            return Err(Status::INVALID_ARGUMENT);
        }
        if length == 0 || !(base | length | offset).is_multiple_of(PAGE) {
            return Err(status::INVALID_ADDRESS);
        }
        let mut gpus = Vec::new();
        for index in 0..count as usize {
            gpus.push(self.gpu_of_uuid(call.block.uuid(at::PER_GPU_ATTRIBUTES + index * PER_GPU))?);
        }
        self.uvm_owner(call, client)?;
        let memory = self.memory_of(client, handle)?;
        let space = self.space(call.file)?;
        space.needs_address_space()?;
        space.external(base, length)?;
        if !gpus
            .iter()
            .all(|gpu| space.spaces.iter().any(|space| space.gpu == *gpu))
        {
            return Err(status::INVALID_DEVICE);
        }
        let size = self.memories.get(&memory).map_or(0, |memory| memory.size);
        if offset
            .checked_add(length)
            .is_none_or(|end| end > size.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX))
        {
            return Err(status::INVALID_OFFSET);
        }
        for gpu in gpus {
            self.pin_memory(memory);
            self.uvm_unmap(call.file, &[gpu], base, length)?;
            self.space(call.file)?.maps.insert(
                (gpu, base),
                Map {
                    length,
                    memory,
                    offset,
                },
            );
        }
        Ok(())
    }

    /// Unmaps a range for some GPUs; what sticks out stays.
    fn uvm_unmap(&mut self, file: FileId, gpus: &[usize], base: u64, length: u64) -> Answer {
        base.checked_add(length).ok_or(status::INVALID_ADDRESS)?;
        for &gpu in gpus {
            for (memory, change) in self.space(file)?.carve(gpu, base, length) {
                match change {
                    -1 => self.unpin_memory(memory),
                    1 => self.pin_memory(memory),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Frees the range that starts there, with all that is mapped in it.
    fn uvm_free(&mut self, call: &mut Call) -> Answer {
        let base = call.block.u64(layout::uvm_free::BASE);
        let asked = self.abi.layout().uvm_free.length;
        let asked = asked.map(|at| call.block.u64(at));
        let space = self.space(call.file)?;
        let &(length, _) = space.ranges.get(&base).ok_or(status::INVALID_ADDRESS)?;
        if asked.is_some_and(|asked| asked != length) {
            return Err(status::INVALID_ADDRESS);
        }
        space.ranges.remove(&base);
        let every: Vec<usize> = (0..self.devices.len()).collect();
        self.uvm_unmap(call.file, &every, base, length)
    }

    fn uvm_validate(&mut self, call: &Call, base: u64, length: u64) -> Answer {
        let end = base.checked_add(length).ok_or(status::INVALID_ADDRESS)?;
        let reserved = self.space(call.file)?.ranges.range(..=base).next_back();
        if reserved.is_some_and(|(&start, &(size, _))| end <= start + size) {
            return Ok(());
        }
        if self.maps_managed(call.file, call.caller.pid, base, end) {
            Ok(())
        } else {
            Err(status::INVALID_ADDRESS)
        }
    }

    /// Moves managed memory to a GPU, or to the host where the UUID is of no GPU.
    fn uvm_migrate(&mut self, call: &mut Call) -> Answer {
        use layout::uvm_migrate as at;
        let (base, length) = (call.block.u64(at::BASE), call.block.u64(at::LENGTH));
        let end = base.checked_add(length).ok_or(status::INVALID_ADDRESS)?;
        let pid = call.caller.pid;
        if !self.maps_managed(call.file, pid, base, end) {
            return Err(status::INVALID_ADDRESS);
        }
        match self.gpu_of_uuid(call.block.uuid(at::DESTINATION_UUID)) {
            Ok(gpu) => {
                let mut from = base;
                while from < end {
                    from = self
                        .touch_managed(call.file, gpu, pid, from, end)
                        .ok_or(status::INVALID_ADDRESS)?;
                }
            }
            Err(_) => self.move_to_host(call.file, base, length),
        }
        Ok(())
    }

    /// The file is gone: every mapping lets go of its memory.
    pub(super) fn release_uvm(&mut self, space: Uvm) {
        for map in space.maps.into_values() {
            self.unpin_memory(map.memory);
        }
        self.release_residents(space.resident);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(uvm: &Uvm) -> Vec<(u64, Map)> {
        uvm.maps
            .iter()
            .map(|(&(_, base), &map)| (base, map))
            .collect()
    }

    #[test]
    fn carving_the_middle_splits_a_mapping_and_counts_both_halves() {
        let mut uvm = Uvm::default();
        uvm.maps.insert(
            (0, 0x1000),
            Map {
                length: 0x5000,
                memory: 7,
                offset: 0x10_0000,
            },
        );
        uvm.maps.insert(
            (1, 0x1000),
            Map {
                length: 0x5000,
                memory: 7,
                offset: 0x10_0000,
            },
        );
        assert_eq!(uvm.carve(0, 0x2000, 0x2000), vec![(7, 1)]);
        let halves = [
            (
                0x1000,
                Map {
                    length: 0x1000,
                    memory: 7,
                    offset: 0x10_0000,
                },
            ),
            (
                0x4000,
                Map {
                    length: 0x2000,
                    memory: 7,
                    offset: 0x10_3000,
                },
            ),
        ];
        assert_eq!(mapped(&uvm)[..2], halves);
        assert_eq!(uvm.map_at(0, 0x3fff), None);
        assert_eq!(uvm.map_at(1, 0x3fff).map(|found| found.0), Some(0x1000));
        assert_eq!(uvm.carve(0, 0, 0x10_0000), vec![(7, -1), (7, -1)]);
    }

    #[test]
    fn ranges_do_not_overlap() {
        let mut uvm = Uvm::default();
        assert_eq!(uvm.reserve(0x10_0000, 0x2000, Use::External), Ok(()));
        assert_eq!(
            uvm.reserve(0x10_1000, 0x1000, Use::External),
            Err(status::UVM_ADDRESS_IN_USE)
        );
        assert_eq!(
            uvm.reserve(0xf_f000, 0x2000, Use::Semaphores),
            Err(status::UVM_ADDRESS_IN_USE)
        );
        assert_eq!(uvm.reserve(0x10_2000, 0x1000, Use::Semaphores), Ok(()));
        assert_eq!(
            uvm.reserve(0x123, 0x1000, Use::External),
            Err(status::INVALID_ADDRESS)
        );
        assert_eq!(
            uvm.reserve(u64::MAX - 0xfff, 0x2000, Use::External),
            Err(status::INVALID_ADDRESS)
        );
    }
}
