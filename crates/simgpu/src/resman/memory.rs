//! Memory: allocation and rounding, the finite card, mappings made by RM itself.

use std::sync::Arc;

use rm::{Status, class, layout};

use super::clients::{Body, Object};
use super::store::Store;
use super::{Answer, Block, Call, Rm, status};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Where `RM_MAP_MEMORY_DMA` starts to hand out addresses.
pub const DMA_BASE: u64 = 1 << 32;

/// Location of a memory allocation: these bits of its attributes, 0 for device memory.
const ATTR_LOCATION: u32 = 3 << 25;
/// Page size by the first attribute word: 3 asks for huge pages.
const ATTR_PAGE_SIZE_SHIFT: u32 = 23;
/// Size of huge pages by the second attribute word: 2 asks for 512 MiB.
const ATTR2_HUGE_SHIFT: u32 = 20;
/// Flag of a `VID_HEAP` allocation that takes addresses only.
const FLAG_VIRTUAL: u32 = 0x0008_0000;
/// Whether `RM_ALLOC_MEMORY` maps what it makes (`NVOS02_FLAGS_MAPPING`), and that it does not.
const MAPPING: u32 = 3 << 30;
const NO_MAPPING: u32 = 1 << 30;
/// Where the parameters of memory of the fabric (class 0xf3) say which.
const FABRIC_BASE: usize = 16;

/// A piece of memory, alive as long as anything refers to it.
pub struct Memory {
    references: u32,
    pub class: u32,
    /// The GPU whose memory it takes; `None`: host memory, or addresses only.
    pub gpu: Option<usize>,
    /// Bytes, rounded up as the driver does.
    pub size: u64,
    /// The process that executed the allocation.
    pub pid: u32,
    pub backing: Backing,
    /// Place on the card; what a physical address would be.
    physical: u64,
    /// How many references are handles and not mappings: a second one makes it shared.
    pub handles: u32,
}

/// Where the bytes are.
#[derive(Clone)]
pub enum Backing {
    /// Kept by the server.
    Store(Arc<Store>),
    /// Pinned pages of a process.
    Pages { pid: u32, address: u64 },
    /// Nowhere: a range of addresses.
    Nothing,
}

/// What the driver makes of an asked size of device memory: whole pages, as large as the attributes ask.
///
/// 64 KiB by default, 2 MiB for huge pages or from 2 MiB on, 512 MiB where asked for.
pub fn round_up(size: u64, attr: u32, attr2: u32) -> Option<u64> {
    let huge = attr >> ATTR_PAGE_SIZE_SHIFT & 3 == 3;
    let page = match attr2 >> ATTR2_HUGE_SHIFT & 3 {
        2 if huge => 512 * MIB,
        _ if huge || size >= 2 * MIB => 2 * MIB,
        _ => 64 * KIB,
    };
    size.checked_next_multiple_of(page)
}

impl Rm {
    /// Bytes of a card that can be given out at all.
    pub(super) fn capacity(&self, gpu: usize) -> u64 {
        self.node.devices[gpu].heap_kib * KIB
    }

    /// Bytes of a card that are free.
    pub(super) fn free_bytes(&self, gpu: usize) -> u64 {
        let device = &self.devices[gpu];
        self.capacity(gpu)
            .saturating_sub(device.allocated + device.hidden + device.resident)
    }

    /// Whether that much can be taken, moving managed memory off the card if it must.
    fn make_room(&mut self, gpu: usize, bytes: u64) -> Answer {
        if self.free_bytes(gpu) < bytes {
            self.refresh_managed();
            let missing = bytes.saturating_sub(self.free_bytes(gpu));
            self.evict(gpu, missing);
        }
        if self.free_bytes(gpu) < bytes {
            Err(Status::NO_MEMORY)
        } else {
            Ok(())
        }
    }

    pub(super) fn take_hidden(&mut self, gpu: usize, bytes: u64) -> Answer {
        self.make_room(gpu, bytes)?;
        self.devices[gpu].hidden += bytes;
        Ok(())
    }

    pub(super) fn give_hidden(&mut self, gpu: usize, bytes: u64) {
        self.devices[gpu].hidden = self.devices[gpu].hidden.saturating_sub(bytes);
    }

    /// Makes memory with one reference, which the caller takes over.
    pub(super) fn new_memory(
        &mut self,
        pid: u32,
        class: u32,
        gpu: Option<usize>,
        size: u64,
        backing: Backing,
    ) -> Answer<u64> {
        let mut physical = 0;
        if let Some(gpu) = gpu {
            self.make_room(gpu, size)?;
            self.devices[gpu].allocated += size;
            physical = self.next_physical;
            self.next_physical = self.next_physical.saturating_add(size);
        }
        let id = self.id();
        let memory = Memory {
            references: 1,
            class,
            gpu,
            size,
            pid,
            backing,
            physical,
            handles: 1,
        };
        self.memories.insert(id, memory);
        Ok(id)
    }

    /// One more handle.
    pub(super) fn get_memory(&mut self, id: u64) {
        if let Some(memory) = self.memories.get_mut(&id) {
            memory.references += 1;
            memory.handles += 1;
        }
    }

    /// One handle less.
    pub(super) fn put_memory(&mut self, id: u64) {
        if let Some(memory) = self.memories.get_mut(&id) {
            memory.handles -= 1;
        }
        self.unpin_memory(id);
    }

    /// One more mapping.
    pub(super) fn pin_memory(&mut self, id: u64) {
        if let Some(memory) = self.memories.get_mut(&id) {
            memory.references += 1;
        }
    }

    /// One mapping less.
    pub(super) fn unpin_memory(&mut self, id: u64) {
        let Some(memory) = self.memories.get_mut(&id) else {
            return;
        };
        memory.references -= 1;
        if memory.references > 0 {
            return;
        }
        self.deviceless.remove(&id);
        if let Some(memory) = self.memories.remove(&id)
            && let Some(gpu) = memory.gpu
        {
            self.devices[gpu].allocated -= memory.size;
        }
    }

    /// `RM_ALLOC` of a memory class: the block says how much and where, and learns what became of it.
    pub(super) fn alloc_memory_class(
        &mut self,
        call: &mut Call,
        class: u32,
        gpu: Option<usize>,
    ) -> Answer<Body> {
        use layout::memory_allocation as at;
        let pid = call.caller.pid;
        let params = call.params.as_mut().ok_or(Status::INVALID_ARGUMENT)?;
        let (size, attr) = (params.u64(at::SIZE_FIELD), params.u32(at::ATTR));
        let memory =
            self.alloc_by_attributes(pid, class, gpu, size, attr, params.u32(at::ATTR2))?;
        if let Some(made) = self.memories.get(&memory) {
            params.put_u64(at::SIZE_FIELD, made.size);
            params.put_u64(at::OFFSET, made.physical);
            params.put_u64(at::LIMIT, made.size - 1);
        }
        Ok(Body::Memory(memory))
    }

    fn alloc_by_attributes(
        &mut self,
        pid: u32,
        class: u32,
        gpu: Option<usize>,
        size: u64,
        attr: u32,
        attr2: u32,
    ) -> Answer<u64> {
        if size == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let on_device = attr & ATTR_LOCATION == 0;
        match class {
            class::NV01_MEMORY_LOCAL_USER if on_device => {
                let gpu = gpu.ok_or(status::INVALID_OBJECT_PARENT)?;
                let size = round_up(size, attr, attr2).ok_or(Status::INVALID_ARGUMENT)?;
                self.new_memory(pid, class, Some(gpu), size, Backing::Store(Arc::default()))
            }
            class::NV01_MEMORY_SYSTEM if !on_device => self.host_memory(pid, size),
            class::NV50_MEMORY_VIRTUAL => self.new_memory(pid, class, None, size, Backing::Nothing),
            class::NV01_MEMORY_LOCAL_USER | class::NV01_MEMORY_SYSTEM => {
                Err(Status::INVALID_ARGUMENT)
            }
            _ => Err(Status::NOT_SUPPORTED),
        }
    }

    fn host_memory(&mut self, pid: u32, size: u64) -> Answer<u64> {
        let size = size
            .checked_next_multiple_of(4 * KIB)
            .ok_or(Status::INVALID_ARGUMENT)?;
        self.new_memory(
            pid,
            class::NV01_MEMORY_SYSTEM,
            None,
            size,
            Backing::Store(Arc::default()),
        )
    }

    /// `RM_ALLOC_MEMORY`. Class 0x71 pins pages of the caller. The others are what a racer would put in its place:
    /// 0x3e takes host memory, 0x40 answers the size of the card, 0xf3 reaches into whatever is at the address that its
    /// parameters name, which lie where the pages would be.
    pub(super) fn rm_alloc_memory(&mut self, call: &mut Call) -> Answer {
        use layout::nvos02 as at;
        let (root, parent) = (
            call.block.u32(at::H_ROOT),
            call.block.u32(at::H_OBJECT_PARENT),
        );
        let class = call.block.u32(at::H_CLASS);
        let (base, limit) = (call.block.u64(at::P_MEMORY), call.block.u64(at::LIMIT));
        let handle = self.choose_handle(call, root, call.block.u32(at::H_OBJECT_NEW))?;
        let gpu = self
            .parent_gpu(call, root, parent)?
            .ok_or(status::INVALID_OBJECT_PARENT)?;
        let size = limit
            .checked_add(1)
            .filter(|size| base.checked_add(*size).is_some());
        let size = size.ok_or(Status::INVALID_ARGUMENT)?;
        let pid = call.caller.pid;
        let pinned = class == class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR;
        if pinned && call.block.u32(at::FLAGS) & MAPPING != NO_MAPPING {
            return Err(status::INVALID_FLAGS);
        }
        let mut object = Object::plain(parent, class, Some(gpu));
        object.body = match class {
            class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR => {
                if !call.pages_present {
                    return Err(status::INVALID_ADDRESS);
                }
                Body::Memory(self.new_memory(
                    pid,
                    class,
                    None,
                    size,
                    Backing::Pages { pid, address: base },
                )?)
            }
            class::NV01_MEMORY_SYSTEM => Body::Memory(self.host_memory(pid, size)?),
            class::NV01_MEMORY_LOCAL_USER => {
                call.block.put_u64(at::LIMIT, self.capacity(gpu) - 1);
                Body::Plain
            }
            class::NV01_MEMORY_FLA => {
                if !call.pages_present {
                    return Err(status::INVALID_ADDRESS);
                }
                let base = call.params().u64(FABRIC_BASE);
                let covers = |memory: &Memory| {
                    memory.gpu == Some(gpu)
                        && memory.physical <= base
                        && base - memory.physical < memory.size
                };
                let found = self
                    .memories
                    .iter()
                    .find(|(_, memory)| covers(memory))
                    .map(|(&id, _)| id);
                let found = found.ok_or(status::INVALID_ADDRESS)?;
                self.get_memory(found);
                Body::Memory(found)
            }
            _ => return Err(Status::INVALID_CLASS),
        };
        self.insert(root, handle, object);
        call.block.put_u32(at::H_OBJECT_NEW, handle);
        Ok(())
    }

    /// `RM_VID_HEAP_CONTROL`: the older way to allocate, and a question about free memory on every return.
    pub(super) fn rm_vid_heap(&mut self, call: &mut Call) -> Answer {
        use layout::nvos32 as at;
        let (root, parent) = (
            call.block.u32(at::H_ROOT),
            call.block.u32(at::H_OBJECT_PARENT),
        );
        let gpu = self
            .parent_gpu(call, root, parent)?
            .ok_or(status::INVALID_OBJECT_PARENT)?;
        let answer = match call.block.u32(at::FUNCTION) {
            2 => {
                use layout::nvos32_alloc_size as data;
                let attrs = [data::ATTR, data::ATTR2, data::FLAGS];
                self.heap_alloc(
                    call,
                    gpu,
                    data::H_MEMORY,
                    data::SIZE_FIELD,
                    data::OFFSET,
                    data::LIMIT,
                    attrs,
                )
            }
            6 => {
                use layout::nvos32_alloc_tiled as data;
                let attrs = [data::ATTR, data::ATTR2, data::FLAGS];
                self.heap_alloc(
                    call,
                    gpu,
                    data::H_MEMORY,
                    data::SIZE_FIELD,
                    data::OFFSET,
                    data::LIMIT,
                    attrs,
                )
            }
            14 => {
                use layout::nvos32_alloc_range as data;
                let attrs = [data::ATTR, data::ATTR2, data::FLAGS];
                self.heap_alloc(
                    call,
                    gpu,
                    data::H_MEMORY,
                    data::SIZE_FIELD,
                    data::OFFSET,
                    data::LIMIT,
                    attrs,
                )
            }
            3 => {
                let handle = call.block.u32(layout::nvos32_free::H_MEMORY);
                self.object(call, root, handle)
                    .map(|_| ())
                    .map(|()| self.free_object(root, handle))
            }
            5 => {
                call.block
                    .put_u64(layout::nvos32_info::SIZE_FIELD, self.free_bytes(gpu));
                Ok(())
            }
            27 => Err(Status::NOT_SUPPORTED),
            _ => Err(status::INVALID_FUNCTION),
        };
        call.block.put_u64(at::TOTAL, self.capacity(gpu));
        call.block.put_u64(at::FREE, self.free_bytes(gpu));
        answer
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the fields stand at other offsets in each function's block"
    )]
    fn heap_alloc(
        &mut self,
        call: &mut Call,
        gpu: usize,
        handle_at: usize,
        size_at: usize,
        offset_at: usize,
        limit_at: usize,
        [attr_at, attr2_at, flags_at]: [usize; 3],
    ) -> Answer {
        use layout::nvos32 as at;
        let (root, parent) = (
            call.block.u32(at::H_ROOT),
            call.block.u32(at::H_OBJECT_PARENT),
        );
        let handle = self.choose_handle(call, root, call.block.u32(handle_at))?;
        let (attr, attr2) = (call.block.u32(attr_at), call.block.u32(attr2_at));
        let class = if call.block.u32(flags_at) & FLAG_VIRTUAL != 0 {
            class::NV50_MEMORY_VIRTUAL
        } else if attr & ATTR_LOCATION == 0 {
            class::NV01_MEMORY_LOCAL_USER
        } else {
            class::NV01_MEMORY_SYSTEM
        };
        let pid = call.caller.pid;
        let memory =
            self.alloc_by_attributes(pid, class, Some(gpu), call.block.u64(size_at), attr, attr2)?;
        let mut object = Object::plain(parent, class, Some(gpu));
        object.body = Body::Memory(memory);
        self.insert(root, handle, object);
        call.block.put_u32(handle_at, handle);
        if let Some(made) = self.memories.get(&memory) {
            call.block.put_u64(size_at, made.size);
            call.block.put_u64(offset_at, made.physical);
            call.block.put_u64(limit_at, made.size - 1);
        }
        Ok(())
    }

    /// `RM_MAP_MEMORY`: prepares an `mmap` of the file it names. The process that made the client makes it.
    pub(super) fn rm_map_memory(&mut self, call: &mut Call) -> Answer {
        use layout::nvos33 as at;
        let (client, handle) = (call.block.u32(at::H_CLIENT), call.block.u32(at::H_MEMORY));
        let (offset, length) = (call.block.u64(at::OFFSET), call.block.u64(at::LENGTH));
        self.owner_calls(call, client, Status::INVALID_CLIENT)?;
        let object = self.object(call, client, handle)?;
        if call
            .descriptor
            .is_none_or(|file| self.node_of(file).is_none())
        {
            return Err(Status::INVALID_ARGUMENT);
        }
        let body = object.body;
        if let (Body::Memory(memory), Some(file)) = (body, call.descriptor)
            && self.deviceless.contains_key(&memory)
        {
            self.show_deviceless(memory, file, offset, length)?;
        } else if let Body::Memory(memory) = body
            && let Some(memory) = self.memories.get(&memory)
            && offset
                .checked_add(length)
                .is_none_or(|end| end > memory.size)
        {
            return Err(status::INVALID_OFFSET);
        }
        // An address that the driver's mmap would look up; every mapping has its own.
        let address = (1 << 44) + (self.id() << 12);
        if let Some(owner) = self.clients.get_mut(&client) {
            owner.mappings.insert((handle, address));
        }
        call.block.put_u64(at::P_LINEAR_ADDRESS, address);
        Ok(())
    }

    pub(super) fn rm_unmap_memory(&mut self, call: &mut Call) -> Answer {
        use layout::nvos34 as at;
        let (client, handle) = (call.block.u32(at::H_CLIENT), call.block.u32(at::H_MEMORY));
        self.owner_calls(call, client, Status::INVALID_CLIENT)?;
        self.object(call, client, handle)?;
        let mapping = (handle, call.block.u64(at::P_LINEAR_ADDRESS));
        let owner = self
            .clients
            .get_mut(&client)
            .ok_or(Status::INVALID_CLIENT)?;
        if owner.mappings.remove(&mapping) {
            Ok(())
        } else {
            Err(status::INVALID_ADDRESS)
        }
    }

    /// `RM_UPDATE_DEVICE_MAPPING_INFO`: the process has moved a mapping.
    pub(super) fn rm_update_mapping(&mut self, call: &mut Call) -> Answer {
        use layout::nvos56 as at;
        let (client, handle) = (call.block.u32(at::H_CLIENT), call.block.u32(at::H_MEMORY));
        self.object(call, client, handle)?;
        let (old, new) = (
            call.block.u64(at::P_OLD_CPU_ADDRESS),
            call.block.u64(at::P_NEW_CPU_ADDRESS),
        );
        let owner = self
            .clients
            .get_mut(&client)
            .ok_or(Status::INVALID_CLIENT)?;
        if !owner.mappings.remove(&(handle, old)) {
            return Err(Status::OBJECT_NOT_FOUND);
        }
        owner.mappings.insert((handle, new));
        Ok(())
    }

    /// `RM_ALLOC_CONTEXT_DMA2`: a window on memory, of which only the handle is modelled.
    pub(super) fn rm_alloc_context_dma(&mut self, call: &mut Call) -> Answer {
        use layout::nvos39 as at;
        // The block has no client of its own: the parent handle is the client.
        let client = call.block.u32(at::H_OBJECT_PARENT);
        let handle = self.choose_handle(call, client, call.block.u32(at::H_OBJECT_NEW))?;
        let gpu = self.object(call, client, call.block.u32(at::H_MEMORY))?.gpu;
        self.insert(
            client,
            handle,
            Object::plain(client, call.block.u32(at::H_CLASS), gpu),
        );
        call.block.put_u32(at::H_OBJECT_NEW, handle);
        Ok(())
    }

    /// `RM_MAP_MEMORY_DMA`: hands out addresses. Work does not reach memory through them: CUDA maps by UVM.
    pub(super) fn rm_map_memory_dma(&mut self, call: &mut Call) -> Answer {
        use layout::nvos46 as at;
        let (client, space) = (call.block.u32(at::H_CLIENT), call.block.u32(at::H_DMA));
        self.object(call, client, call.block.u32(at::H_MEMORY))?;
        self.object(call, client, space)?;
        let length = call
            .block
            .u64(at::LENGTH)
            .checked_next_multiple_of(2 * MIB)
            .ok_or(Status::INVALID_ARGUMENT)?;
        let owner = self
            .clients
            .get_mut(&client)
            .ok_or(Status::INVALID_CLIENT)?;
        let Some(Object {
            body: Body::VaSpace { next, .. },
            ..
        }) = owner.objects.get_mut(&space)
        else {
            return Err(Status::INVALID_ARGUMENT);
        };
        call.block
            .put_u64(self.abi.layout().nvos46.dma_offset, *next);
        *next = next.checked_add(length).ok_or(Status::NO_MEMORY)?;
        Ok(())
    }

    pub(super) fn rm_unmap_memory_dma(&mut self, call: &mut Call) -> Answer {
        use layout::nvos47 as at;
        let client = call.block.u32(at::H_CLIENT);
        self.object(call, client, call.block.u32(at::H_MEMORY))?;
        self.object(call, client, call.block.u32(at::H_DMA))
            .map(|_| ())
    }

    /// Memory behind a handle of a client.
    pub(super) fn memory_of(&self, client: u32, handle: u32) -> Answer<u64> {
        match self
            .clients
            .get(&client)
            .and_then(|client| client.objects.get(&handle))
            .map(|object| object.body)
        {
            Some(Body::Memory(memory)) => Ok(memory),
            Some(_) => Err(Status::INVALID_ARGUMENT),
            None => Err(Status::OBJECT_NOT_FOUND),
        }
    }

    /// `0x20801301` and `0x20801303`: one number about the card's memory, in KiB.
    pub(super) fn fb_info(&self, gpu: usize, index: u32) -> u32 {
        let spec = &self.node.devices[gpu];
        let kib = match index {
            // Memory chips: RAM and TOTAL_RAM.
            0x07 | 0x08 => spec.ram_kib,
            // HEAP_SIZE and MAPPABLE_HEAP_SIZE.
            0x09 | 0x0a => spec.heap_kib,
            // The one number here that is no amount of memory: the bus width in bits.
            0x0b => u64::from(spec.memory_bus_bits),
            // LARGEST_FREE and HEAP_FREE: the simulated card does not fragment.
            0x12 | 0x16 => self.free_bytes(gpu) / KIB,
            0x20 => spec.usable_kib,
            _ => 0,
        };
        u32::try_from(kib).unwrap_or(u32::MAX)
    }

    /// Device memory of a process: private, shared and its own, shared and duplicated from others.
    pub(super) fn memory_by_pid(&self, gpu: usize, pid: u32) -> [u64; 3] {
        let mut sums = [0; 3];
        for memory in self
            .memories
            .values()
            .filter(|memory| memory.gpu == Some(gpu) && memory.pid == pid)
        {
            sums[usize::from(memory.handles > 1)] += memory.size;
        }
        for client in self.clients.values().filter(|client| client.pid == pid) {
            for object in client.objects.values() {
                if let Body::Memory(memory) = object.body
                    && let Some(memory) = self.memories.get(&memory)
                    && memory.gpu == Some(gpu)
                    && memory.pid != pid
                {
                    sums[2] += memory.size;
                }
            }
        }
        sums
    }

    /// A question about surfaces (`0x00410110`): every answer is zero.
    pub(super) fn zero_entries(list: &mut Block) {
        for entry in list.0.chunks_exact_mut(8) {
            entry[4..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_whole_pages_as_the_attributes_ask() {
        let huge = 3 << ATTR_PAGE_SIZE_SHIFT;
        for (size, attr, attr2, rounded) in [
            (1, 0, 0, 64 * KIB),
            (64 * KIB, 0, 0, 64 * KIB),
            (64 * KIB + 1, 0, 0, 128 * KIB),
            (2 * MIB - 1, 0, 0, 2 * MIB),
            (2 * MIB, 0, 0, 2 * MIB),
            (2 * MIB + 1, 0, 0, 4 * MIB),
            (1, huge, 0, 2 * MIB),
            (1, huge, 1 << ATTR2_HUGE_SHIFT, 2 * MIB),
            (1, huge, 2 << ATTR2_HUGE_SHIFT, 512 * MIB),
            (512 * MIB + 1, huge, 2 << ATTR2_HUGE_SHIFT, 1024 * MIB),
        ] {
            assert_eq!(
                round_up(size, attr, attr2),
                Some(rounded),
                "{size} {attr:#x} {attr2:#x}"
            );
        }
        assert_eq!(round_up(u64::MAX, 0, 0), None);
    }
}
