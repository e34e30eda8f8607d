//! Allocations: device memory, managed memory, pinned host memory, arrays; and what lies at an address.
//!
//! Locks: a context's chunks before the list of allocations; the list is never held over a call to the node.

use std::os::fd::AsFd;
use std::sync::Arc;

use cuda::status::CuResult;
use rm::{layout, uvm};

use crate::block::Block;
use crate::driver::{Context, Driver};
use crate::hardware::{ATTR_ARRAY, ATTR_DEVICE, alloc_device_memory, map_uvm};
use crate::heap::Heap;
use crate::node::Gpu;
use crate::registry::lock;
use crate::va::{PAGE, Range, round_up};

/// Allocations below this come out of a chunk, as the real library does it.
const SMALL: u64 = 1 << 20;
/// Length of a chunk: one page of device memory.
const CHUNK: u64 = PAGE;
/// The id that UVM has for the CPU.
const CPU_UUID: [u8; 16] = [
    0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2, 0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73,
];
/// Flags with which the real library pins host memory.
const PIN_FLAGS: u32 = 0x4000_1010;

/// Something that has an address.
pub struct Allocation {
    /// First address.
    pub base: u64,
    /// Bytes that the program asked for.
    pub size: u64,
    /// Handle of the context it belongs to.
    pub context: usize,
    /// Index of its GPU.
    pub gpu: usize,
    /// Number that no other allocation has.
    pub id: u64,
    /// Where it comes from.
    pub kind: Kind,
}

/// Where an allocation comes from, and so what ends it.
pub enum Kind {
    /// A part of a chunk.
    Part,
    /// A memory object of its own, mapped for the GPU.
    Own(Mapped),
    /// The memory of an array: no program sees its address, and it is not announced for other devices' use.
    Array(Mapped),
    /// Managed memory.
    Managed(Range),
    /// Pinned host memory that was allocated for the program.
    Host(Mapped),
    /// Host memory of the program that was pinned.
    Registered {
        /// The memory object.
        memory: u32,
        /// Length of the pinned pages.
        length: u64,
    },
    /// A part of a pool (its handle).
    Pool(usize),
    /// Memory of another process.
    Imported(Mapped),
}

/// A memory object and the range it is mapped at.
pub struct Mapped {
    /// The memory object.
    pub memory: u32,
    /// The range.
    pub range: Range,
}

impl Allocation {
    /// Whether the memory is the host's.
    pub fn on_host(&self) -> bool {
        matches!(self.kind, Kind::Host(_) | Kind::Registered { .. })
    }

    /// Whether `[address, address + length)` lies in it.
    pub fn covers(&self, address: u64, length: u64) -> bool {
        address >= self.base
            && address
                .checked_add(length)
                .is_some_and(|end| end <= self.base + self.size)
    }
}

/// The chunks of a context.
#[derive(Default)]
pub struct SmallMemory {
    heap: Heap,
    chunks: Vec<Mapped>,
}

/// An array.
pub struct Array {
    /// Address of its memory.
    pub base: u64,
    /// Width, height and depth in elements, as it was made.
    pub extent: [usize; 3],
    /// Element format, channels per element, flags.
    pub format: [u32; 3],
}

impl Driver {
    /// `cuMemAlloc`.
    pub fn alloc(&self, context: &Context, size: u64) -> Result<u64, CuResult> {
        if size == 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        context.legacy.queue.check()?;
        let gpu = self.gpu(context.gpu)?;
        if size >= SMALL {
            let mapped = self.alloc_mapped(gpu, ATTR_DEVICE, size, true)?;
            return Ok(self.keep(context, mapped.range.base(), size, Kind::Own(mapped)));
        }
        let mut small = lock(&context.small);
        let base = match small.heap.take(size) {
            Some(base) => base,
            None => {
                let chunk = self.alloc_mapped(gpu, ATTR_DEVICE, CHUNK, true)?;
                small.heap.add(chunk.range.base(), CHUNK);
                small.chunks.push(chunk);
                small.heap.take(size).ok_or(CuResult::ERROR_OUT_OF_MEMORY)?
            }
        };
        Ok(self.keep(context, base, size, Kind::Part))
    }

    /// Makes a memory object and maps it; `announced`: also for third-party devices.
    fn alloc_mapped(
        &self,
        gpu: &Gpu,
        attributes: u32,
        size: u64,
        announced: bool,
    ) -> Result<Mapped, CuResult> {
        let length = round_up(size, PAGE).ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        let range = Range::reserve(length, PAGE)?;
        let memory = alloc_device_memory(&self.node, gpu, attributes, length)?;
        if announced {
            let mut block = Block::new(32)
                .with32(0, memory)
                .with64(8, range.base())
                .with64(16, range.length());
            let _ = self
                .node
                .client
                .control(gpu.third_party, 0x503c_0104, &mut block);
        }
        let mapped = Mapped { memory, range };
        match self.map(gpu, &mapped) {
            Ok(()) => Ok(mapped),
            Err(error) => {
                let _ = self.node.client.free(gpu.device, mapped.memory);
                Err(error)
            }
        }
    }

    /// Maps a memory object at its range.
    pub fn map(&self, gpu: &Gpu, mapped: &Mapped) -> Result<(), CuResult> {
        let (base, length) = (mapped.range.base(), mapped.range.length());
        self.node.uvm.create_external_range(base, length)?;
        let done = self.node.uvm.map_external(
            &self.node.client,
            mapped.memory,
            &gpu.uuid,
            base,
            length,
            0,
        );
        if done.is_err() {
            let _ = self.node.uvm.free(base, length);
        }
        Ok(done?)
    }

    fn free_mapped(&self, gpu: &Gpu, mapped: &Mapped, announced: bool) -> Result<(), CuResult> {
        if announced {
            let mut block = Block::new(4).with32(0, mapped.memory);
            let _ = self
                .node
                .client
                .control(gpu.third_party, 0x503c_0105, &mut block);
        }
        self.node
            .uvm
            .free(mapped.range.base(), mapped.range.length())?;
        Ok(self.node.client.free(gpu.device, mapped.memory)?)
    }

    /// Notes an allocation; gives its address.
    pub fn keep(&self, context: &Context, base: u64, size: u64, kind: Kind) -> u64 {
        let allocation = Allocation {
            base,
            size,
            context: context.handle,
            gpu: context.gpu,
            id: self.number(),
            kind,
        };
        lock(&self.allocations).insert(base, Arc::new(allocation));
        base
    }

    /// What lies at an address; none if it is no address of the library's.
    pub fn at(&self, address: u64) -> Option<Arc<Allocation>> {
        let allocations = lock(&self.allocations);
        let (_, allocation) = allocations.range(..=address).next_back()?;
        allocation
            .covers(address, 1)
            .then(|| Arc::clone(allocation))
    }

    /// Whether the GPU can reach all of `[address, address + length)`.
    pub fn reachable(&self, address: u64, length: u64) -> bool {
        self.at(address)
            .is_some_and(|allocation| allocation.covers(address, length))
            || self.virtual_memory.covers(address, length)
    }

    /// Takes an allocation that starts at `address` out of the list, if it is of the wanted sort.
    fn take(
        &self,
        address: u64,
        wanted: impl Fn(&Kind) -> bool,
    ) -> Result<Arc<Allocation>, CuResult> {
        let mut allocations = lock(&self.allocations);
        match allocations.get(&address) {
            Some(allocation) if wanted(&allocation.kind) => {}
            _ => return Err(CuResult::ERROR_INVALID_VALUE),
        }
        allocations
            .remove(&address)
            .ok_or(CuResult::ERROR_INVALID_VALUE)
    }

    /// `cuMemFree`: waits for the context's work, as the real one does.
    pub fn free(&self, address: u64) -> Result<(), CuResult> {
        if address == 0 {
            return Ok(());
        }
        let allocation = self.take(address, |kind| {
            matches!(
                kind,
                Kind::Part | Kind::Own(_) | Kind::Managed(_) | Kind::Pool(_)
            )
        })?;
        if let Some(context) = self.contexts.get(allocation.context) {
            self.wait_for(&context);
        }
        self.end(&allocation)
    }

    /// Waits for the streams of a context; errors of its work are told elsewhere.
    fn wait_for(&self, context: &Context) {
        for stream in self.streams_of(context) {
            let _ = stream.queue.last().wait();
        }
    }

    /// `cuMemFreeHost`.
    pub fn free_host(&self, address: u64) -> Result<(), CuResult> {
        let allocation = self.take(address, |kind| matches!(kind, Kind::Host(_)))?;
        self.end(&allocation)
    }

    /// `cuMemHostUnregister`.
    pub fn unregister(&self, address: u64) -> Result<(), CuResult> {
        let allocation = self
            .take(address, |kind| matches!(kind, Kind::Registered { .. }))
            .map_err(|_| CuResult::ERROR_HOST_MEMORY_NOT_REGISTERED)?;
        self.end(&allocation)
    }

    /// `cuIpcCloseMemHandle`.
    pub fn close_imported(&self, address: u64) -> Result<(), CuResult> {
        let allocation = self.take(address, |kind| matches!(kind, Kind::Imported(_)))?;
        self.end(&allocation)
    }

    fn end(&self, allocation: &Allocation) -> Result<(), CuResult> {
        let gpu = self.gpu(allocation.gpu)?;
        match &allocation.kind {
            Kind::Part => self.end_part(allocation, gpu),
            Kind::Own(mapped) => self.free_mapped(gpu, mapped, true),
            Kind::Array(mapped) | Kind::Imported(mapped) | Kind::Host(mapped) => {
                self.free_mapped(gpu, mapped, false)
            }
            Kind::Managed(range) => self.end_managed(gpu, range),
            Kind::Registered { memory, length } => {
                self.node.uvm.free(allocation.base, *length)?;
                Ok(self.node.client.free(gpu.device, *memory)?)
            }
            Kind::Pool(pool) => {
                if let Some(pool) = self.pools.get(*pool) {
                    pool.give_now(allocation.base);
                }
                self.trim_pools();
                Ok(())
            }
        }
    }

    /// Gives a part back to its chunk. One empty chunk is kept for the next small allocation.
    fn end_part(&self, allocation: &Allocation, gpu: &Gpu) -> Result<(), CuResult> {
        let Some(context) = self.contexts.get(allocation.context) else {
            return Ok(());
        };
        let mut small = lock(&context.small);
        small.heap.give(allocation.base);
        for base in small.heap.drain_empty(1) {
            if let Some(at) = small
                .chunks
                .iter()
                .position(|chunk| chunk.range.base() == base)
            {
                let chunk = small.chunks.swap_remove(at);
                self.free_mapped(gpu, &chunk, true)?;
            }
        }
        Ok(())
    }

    /// Frees all memory of a context that has been taken out of the registry.
    pub fn free_all_of(&self, context: &Context) {
        let mine: Vec<Arc<Allocation>> = {
            let mut allocations = lock(&self.allocations);
            let bases: Vec<u64> = allocations
                .values()
                .filter(|a| a.context == context.handle)
                .map(|a| a.base)
                .collect();
            bases
                .iter()
                .filter_map(|base| allocations.remove(base))
                .collect()
        };
        for allocation in mine {
            let _ = self.end(&allocation);
        }
        let Ok(gpu) = self.gpu(context.gpu) else {
            return;
        };
        for chunk in std::mem::take(&mut *lock(&context.small)).chunks {
            let _ = self.free_mapped(gpu, &chunk, true);
        }
    }

    /// `cuMemAllocManaged`: a mapping of the UVM file and no memory yet.
    pub fn alloc_managed(&self, context: &Context, size: u64) -> Result<u64, CuResult> {
        use layout::{uvm_disable_read_duplication as no_copies, uvm_validate_va_range as check};
        if size == 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        let length = round_up(size, PAGE).ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        let range = Range::reserve(length, PAGE)?;
        map_uvm(&self.node, &range)?;
        let base = range.base();
        let uvm = &self.node.uvm;
        uvm.on_range(
            uvm::VALIDATE_VA_RANGE,
            base,
            length,
            check::SIZE,
            check::RM_STATUS,
        )?;
        uvm.on_range(
            uvm::DISABLE_READ_DUPLICATION,
            base,
            length,
            no_copies::SIZE,
            no_copies::RM_STATUS,
        )?;
        Ok(self.keep(context, base, size, Kind::Managed(range)))
    }

    fn end_managed(&self, gpu: &Gpu, range: &Range) -> Result<(), CuResult> {
        use layout::{
            uvm_disable_read_duplication as no_copies, uvm_set_range_group as group,
            uvm_unset_accessed_by as not_accessed, uvm_unset_preferred_location as anywhere,
        };
        let (base, length) = (range.base(), range.length());
        let uvm = &self.node.uvm;
        let block = Block::new(group::SIZE)
            .with64(group::REQUESTED_BASE, base)
            .with64(group::LENGTH, length);
        let _ = uvm.call(uvm::SET_RANGE_GROUP, block, group::RM_STATUS);
        let _ = uvm.on_range(
            uvm::DISABLE_READ_DUPLICATION,
            base,
            length,
            no_copies::SIZE,
            no_copies::RM_STATUS,
        );
        for uuid in [&gpu.uuid, &CPU_UUID] {
            let block = Block::new(not_accessed::SIZE)
                .with64(not_accessed::REQUESTED_BASE, base)
                .with64(not_accessed::LENGTH, length)
                .with(not_accessed::ACCESSED_BY_UUID, uuid);
            let _ = uvm.call(uvm::UNSET_ACCESSED_BY, block, not_accessed::RM_STATUS);
        }
        let _ = uvm.on_range(
            uvm::UNSET_PREFERRED_LOCATION,
            base,
            length,
            anywhere::SIZE,
            anywhere::RM_STATUS,
        );
        Ok(())
    }

    /// `cuMemAllocHost`.
    pub fn alloc_host(&self, context: &Context, size: u64) -> Result<u64, CuResult> {
        if size == 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        let gpu = self.gpu(context.gpu)?;
        let range = Range::host_memory(size, PAGE)?;
        let memory = self.pin(gpu, range.base(), range.length())?;
        let mapped = Mapped { memory, range };
        Ok(self.keep(context, mapped.range.base(), size, Kind::Host(mapped)))
    }

    /// `cuMemHostRegister`.
    pub fn register(&self, context: &Context, address: u64, size: u64) -> Result<(), CuResult> {
        if address == 0 || size == 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        if self.at(address).is_some() {
            return Err(CuResult::ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        let gpu = self.gpu(context.gpu)?;
        let end = address
            .checked_add(size)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let (first, last) = (
            address & !4095,
            round_up(end, 4096).ok_or(CuResult::ERROR_INVALID_VALUE)?,
        );
        let memory = self.pin(gpu, first, last - first)?;
        let allocation = Allocation {
            base: first,
            size: last - first,
            context: context.handle,
            gpu: context.gpu,
            id: self.number(),
            kind: Kind::Registered {
                memory,
                length: last - first,
            },
        };
        lock(&self.allocations).insert(first, Arc::new(allocation));
        Ok(())
    }

    /// Pins host pages and maps them for the GPU at their own address.
    fn pin(&self, gpu: &Gpu, base: u64, length: u64) -> Result<u32, CuResult> {
        let memory = self
            .node
            .client
            .pin(gpu.file.as_fd(), gpu.device, base, length, PIN_FLAGS)?;
        let mapped = self
            .node
            .uvm
            .create_external_range(base, length)
            .and_then(|()| {
                self.node
                    .uvm
                    .map_external(&self.node.client, memory, &gpu.uuid, base, length, 0)
            });
        if mapped.is_err() {
            let _ = self.node.client.free(gpu.device, memory);
        }
        mapped?;
        Ok(memory)
    }

    /// `cuArrayCreate`: memory without an address that the program sees.
    pub fn make_array(
        &self,
        context: &Context,
        extent: [usize; 3],
        format: [u32; 3],
    ) -> Result<usize, CuResult> {
        let element = element_bytes(format[0]).ok_or(CuResult::ERROR_INVALID_VALUE)?;
        if extent[0] == 0 || !matches!(format[1], 1 | 2 | 4) {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        let size = extent
            .iter()
            .try_fold(element * u64::from(format[1]), |size, length| {
                size.checked_mul((*length).max(1) as u64)
            })
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let mapped = self.alloc_mapped(self.gpu(context.gpu)?, ATTR_ARRAY, size, false)?;
        let base = self.keep(context, mapped.range.base(), size, Kind::Array(mapped));
        Ok(self
            .arrays
            .add(|_| Array {
                base,
                extent,
                format,
            })
            .0)
    }

    /// `cuArrayDestroy`.
    pub fn end_array(&self, handle: usize) -> Result<(), CuResult> {
        let array = self.arrays.remove(handle)?;
        let allocation = self.take(array.base, |kind| matches!(kind, Kind::Array(_)))?;
        self.end(&allocation)
    }

    /// The memory object behind an address and the offset in it, for sharing with another process.
    pub fn shareable(&self, address: u64) -> Option<(u32, u64, u64)> {
        let allocation = self.at(address)?;
        match &allocation.kind {
            Kind::Own(mapped) => Some((
                mapped.memory,
                address - allocation.base,
                mapped.range.length(),
            )),
            Kind::Part => {
                let context = self.contexts.get(allocation.context)?;
                let small = lock(&context.small);
                let chunk = small.chunks.iter().find(|chunk| {
                    address >= chunk.range.base()
                        && address < chunk.range.base() + chunk.range.length()
                })?;
                Some((
                    chunk.memory,
                    address - chunk.range.base(),
                    chunk.range.length(),
                ))
            }
            _ => None,
        }
    }

    /// `cuIpcOpenMemHandle`: duplicates another client's memory and maps it; gives the address of its start.
    pub fn import(
        &self,
        context: &Context,
        client: u32,
        memory: u32,
        length: u64,
    ) -> Result<u64, CuResult> {
        let gpu = self.gpu(context.gpu)?;
        let range = Range::reserve(length, PAGE)?;
        let memory = self.node.client.duplicate(gpu.device, client, memory)?;
        let mapped = Mapped { memory, range };
        if let Err(error) = self.map(gpu, &mapped) {
            let _ = self.node.client.free(gpu.device, memory);
            return Err(error);
        }
        Ok(self.keep(context, mapped.range.base(), length, Kind::Imported(mapped)))
    }
}

/// Bytes of one channel of an array's element (`CUarray_format`).
fn element_bytes(format: u32) -> Option<u64> {
    match format {
        0x01 | 0x08 => Some(1),
        0x02 | 0x09 | 0x10 => Some(2),
        0x03 | 0x0a | 0x20 => Some(4),
        _ => None,
    }
}
