//! What a context has on the GPU: its channel groups, channels and the memory that belongs to them.
//!
//! Calls and order as recorded of the real library on an H200, driver 580.159: one compute group of eight channels and
//! three copy groups of four, about 480 MiB of device memory of its own. Everything made is written into a list and
//! undone from its end, also when making the context fails half-way.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use cuda::status::CuResult;
use rm::{layout, uvm};
use simgpu::client::Node as DeviceFile;

use crate::block::Block;
use crate::gateway;
use crate::node::{Gpu, Node};
use crate::resource_manager::{Answer, Fault, Mapping, block_of};
use crate::va::{PAGE, Range, round_up};

/// Memory of the device that the driver places (class `NV01_MEMORY_LOCAL_USER`).
pub const LOCAL_USER: u32 = 0x40;
/// Memory of the host that the driver allocates (class `NV01_MEMORY_SYSTEM`).
pub const SYSTEM: u32 = 0x3e;
/// Attributes of ordinary device memory.
pub const ATTR_DEVICE: u32 = 0x1800_0000;
/// Attributes of device memory that is mapped piece by piece (pools, virtual memory management).
pub const ATTR_MAPPED: u32 = 0x3800_0000;
/// Attributes of an array.
pub const ATTR_ARRAY: u32 = 0x1802_0004;
/// Attributes of host memory that both sides cache.
pub const ATTR_HOST: u32 = 0x3a00_0000;

const ATTR_HOST_UNCACHED: u32 = 0x5a00_0000;
const ATTR_DEVICE_COMPRESSED: u32 = 0x1980_0000;
const PIN_FLAGS: u32 = 0x4000_1010;
const PIN_FLAGS_WRITE_COMBINED: u32 = 0x4004_1010;
const COMPUTE_CHANNELS: usize = 8;
const COPY_CHANNELS: usize = 4;
const CHANNEL_CLASS: u32 = 0xc86f;
const COPY_CLASS: u32 = 0xc8b5;
const COMPUTE_CLASS: u32 = 0xcbc0;
const EVENT_CLASS: u32 = 0x79;

/// Allocation parameters of memory.
pub fn memory_parameters(owner: u32, kind: u32, flags: u32, attributes: u32, size: u64) -> Block {
    use layout::memory_allocation as l;
    // Cut to what the branch has when it is sent.
    Block::new(l::TAG + 4)
        .with32(l::OWNER, owner)
        .with32(l::TYPE, kind)
        .with32(l::FLAGS, flags)
        .with32(l::ATTR, attributes)
        .with64(l::SIZE_FIELD, size)
}

/// Allocates device memory as the driver API does.
pub fn alloc_device_memory(node: &Node, gpu: &Gpu, attributes: u32, size: u64) -> Answer<u32> {
    let block = memory_parameters(node.client.root(), 0, 0x1_c101, attributes, size)
        .with64(layout::memory_allocation::ALIGNMENT, PAGE);
    node.client.alloc(gpu.device, LOCAL_USER, Some(block))
}

/// Allocates host memory through the driver.
pub fn alloc_host_memory(
    node: &Node,
    gpu: &Gpu,
    attributes: u32,
    attributes2: u32,
    size: u64,
) -> Answer<u32> {
    let block = memory_parameters(node.client.root(), 0, 0xc001, attributes, size)
        .with32(layout::memory_allocation::ATTR2, attributes2);
    node.client.alloc(gpu.device, SYSTEM, Some(block))
}

/// One thing that a context holds, with what ends it.
enum Held {
    Object {
        parent: u32,
        handle: u32,
    },
    Mapped {
        parent: u32,
        handle: u32,
        mapping: Mapping,
    },
    UvmRange {
        range: Range,
    },
    Pages {
        _memory: Range,
    },
    Channel {
        handle: u32,
    },
    Event {
        file: OwnedFd,
    },
    RangeGroup {
        group: u64,
    },
    Semaphores {
        range: Range,
    },
}

/// A context's objects on one GPU.
pub struct Hardware {
    held: Vec<Held>,
    /// The compute channel group.
    group: u32,
    /// Channels that run kernels.
    pub compute: Vec<u32>,
    /// Channels of the copy groups: from the host, to the host, within the device.
    pub copy: [Vec<u32>; 3],
}

/// Makes the objects one after the other.
struct Builder<'a> {
    node: &'a Node,
    gpu: &'a Gpu,
    hardware: Hardware,
}

impl Hardware {
    /// Makes everything a new context needs on `gpu`.
    pub fn new(node: &Node, gpu: &Gpu) -> Result<Hardware, CuResult> {
        let hardware = Hardware {
            held: Vec::new(),
            group: 0,
            compute: Vec::new(),
            copy: [Vec::new(), Vec::new(), Vec::new()],
        };
        let mut builder = Builder {
            node,
            gpu,
            hardware,
        };
        match builder.build() {
            Ok(()) => Ok(builder.hardware),
            Err(error) => {
                builder.hardware.release(node, gpu);
                Err(error)
            }
        }
    }

    /// Ends everything, the newest first. What can't be ended is the driver's to clean up.
    pub fn release(self, node: &Node, gpu: &Gpu) {
        let client = &node.client;
        if self.group != 0 {
            for _ in 0..2 {
                let mut block =
                    Block::new(layout::preempt::SIZE).with(layout::preempt::B_WAIT, &[1]);
                let _ = client.control(self.group, 0xa06c_0105, &mut block);
            }
            let _ = client.tell(gpu.device, 0x80_1909, 1);
        }
        for held in self.held.into_iter().rev() {
            let _ = held.release(node, gpu);
        }
        let _ = client.tell(gpu.subdevice, 0x2080_0146, 0);
    }
}

impl Held {
    fn release(self, node: &Node, gpu: &Gpu) -> Answer<()> {
        match self {
            Held::Object { parent, handle } => node.client.free(parent, handle),
            Held::Mapped {
                parent,
                handle,
                mapping,
            } => node.client.unmap(parent, handle, &mapping),
            Held::UvmRange { range } | Held::Semaphores { range } => {
                node.uvm.free(range.base(), range.length())
            }
            Held::Pages { .. } => Ok(()),
            Held::Channel { handle } => {
                let at = gateway::abi()?.layout().uvm_unregister_channel;
                let mut block = block_of(uvm::UNREGISTER_CHANNEL)?
                    .with32(at.h_client, node.client.root())
                    .with32(at.h_channel, handle);
                if let Some(at) = at.gpu_uuid {
                    block.put(at, &gpu.uuid);
                }
                node.uvm
                    .call(uvm::UNREGISTER_CHANNEL, block, at.rm_status)
                    .map(|_| ())
            }
            Held::Event { file } => node.client.free_os_event(file.as_fd(), gpu.subdevice),
            Held::RangeGroup { group } => node.uvm.destroy_range_group(group),
        }
    }
}

impl Builder<'_> {
    fn build(&mut self) -> Result<(), CuResult> {
        let (device, subdevice) = (self.gpu.device, self.gpu.subdevice);
        self.tell(subdevice, 0x2080_3601, 72)?;
        self.register_vaspace()?;
        self.device_memory(0x42_0000, 0x60_0000)?;
        for _ in 0..3 {
            self.device_memory(PAGE, PAGE)?;
        }

        let group = self.group(0, 1)?;
        self.hardware.group = group;
        let share = Block::new(layout::ctxshare_alloc::SIZE)
            .with32(layout::ctxshare_alloc::H_VA_SPACE, self.gpu.vaspace)
            .with32(layout::ctxshare_alloc::FLAGS, 1);
        let share = self.object(group, 0x9067, Some(share))?;
        let (fifos, fifo_base) = self.fifo_memory()?;
        self.host_memory(ATTR_HOST_UNCACHED, 0, 0x380_0000)?;
        for index in 0..COMPUTE_CHANNELS {
            let flags = if index % 2 == 0 { 0 } else { 0x10 };
            let channel = self.channel(group, fifos, fifo_base, flags, share)?;
            self.engine(channel, COMPUTE_CLASS, 0)?;
            self.engine(channel, COPY_CLASS, 1)?;
            self.tell(channel, 0xc36f_0108, 4)?;
            self.tell(subdevice, 0x2080_1218, 16)?;
            self.hardware.compute.push(channel);
            if index == 0 {
                self.host_memory(ATTR_HOST, 4, PAGE)?;
            }
        }
        self.start(group, self.hardware.compute.clone(), true)?;
        for copy in 0..3 {
            let group = self.group(self.gpu.vaspace, 11 + copy)?;
            for _ in 0..COPY_CHANNELS {
                let channel = self.channel(group, fifos, fifo_base, 0, 0)?;
                self.engine(channel, COPY_CLASS, 2 + copy)?;
                self.tell(channel, 0xc36f_0108, 4)?;
                self.hardware.copy[copy as usize].push(channel);
            }
            self.start(group, self.hardware.copy[copy as usize].clone(), false)?;
        }

        self.host_memory(ATTR_HOST, 0, PAGE)?;
        self.tell(subdevice, 0x2080_012f, 1464)?;
        self.tell(subdevice, 0x2080_012f, 1464)?;
        self.device_memory(PAGE, PAGE)?;
        self.semaphores()?;
        self.range_groups(4)?;
        self.device_memory(PAGE, PAGE)?;
        self.range_groups(3)?;
        self.host_memory(ATTR_HOST_UNCACHED, 0, PAGE)?;
        self.pinned(PIN_FLAGS)?;
        self.device_memory(PAGE, PAGE)?;
        self.device_memory(PAGE, PAGE)?;
        self.pinned(PIN_FLAGS)?;
        self.device_memory(PAGE, PAGE)?;
        self.dynamic_parallelism()?;
        self.pinned(PIN_FLAGS)?;
        self.device_memory(PAGE, PAGE)?;
        self.memory(ATTR_DEVICE_COMPRESSED, PAGE, PAGE)?;
        self.device_memory(PAGE, PAGE)?;
        self.host_memory(ATTR_HOST, 0, PAGE)?;
        self.device_memory(PAGE, PAGE)?;
        self.pinned(PIN_FLAGS_WRITE_COMBINED)?;
        let debugger = Block::new(layout::debugger_alloc::SIZE)
            .with32(
                layout::debugger_alloc::H_APP_CLIENT,
                self.node.client.root(),
            )
            .with32(
                layout::debugger_alloc::H_CLASS3D_OBJECT,
                self.first_compute_engine(),
            );
        let debugger = self.object(device, 0x83de, Some(debugger))?;
        self.host_memory(ATTR_HOST, 0, 0x5e_a410)?;
        self.device_memory(0x44c_6880, 0x460_0000)?;
        self.device_memory(PAGE, PAGE)?;
        let engine = self.first_compute_engine();
        for notification in [0x3000_0001, 0x3000_0003, 0x3000_0004, 0x3000_0002] {
            self.event(engine, notification)?;
        }
        self.tell(debugger, 0x83de_0309, 4)?;
        self.preemption()?;
        self.control(
            group,
            0xa06c_0103,
            Block::new(layout::timeslice::SIZE).with64(0, 2048),
        )?;
        self.device_memory(0x19c8_0000, 0x19e0_0000)?;
        self.tell(device, 0x80_1909, 1)?;
        self.tell(subdevice, 0x2080_9038, 4)?;
        Ok(())
    }

    fn tell(&self, object: u32, command: u32, size: usize) -> Answer<()> {
        self.node.client.tell(object, command, size)
    }

    /// A control whose refusal is no reason to give up.
    fn control(&self, object: u32, command: u32, mut block: Block) -> Answer<()> {
        match self.node.client.control(object, command, &mut block) {
            Err(Fault::Status(_)) | Ok(()) => Ok(()),
            Err(other) => Err(other),
        }
    }

    fn object(&mut self, parent: u32, class: u32, parameters: Option<Block>) -> Answer<u32> {
        let handle = self.node.client.alloc(parent, class, parameters)?;
        self.hardware.held.push(Held::Object { parent, handle });
        Ok(handle)
    }

    /// The first context on a GPU makes its address space known to UVM.
    fn register_vaspace(&self) -> Answer<()> {
        let Ok(mut registered) = self.gpu.vaspace_registered.lock() else {
            return Ok(());
        };
        if *registered {
            return self.tell(self.gpu.subdevice, 0x2080_0145, 0);
        }
        self.tell(self.gpu.subdevice, 0x2080_200a, 8)?;
        self.tell(self.gpu.subdevice, 0x2080_0145, 0)?;
        use layout::uvm_register_gpu_vaspace as l;
        let block = Block::new(l::SIZE)
            .with(l::GPU_UUID, &self.gpu.uuid)
            .with32(l::RM_CTRL_FD, self.node.client.file_number())
            .with32(l::H_CLIENT, self.node.client.root())
            .with32(l::H_VA_SPACE, self.gpu.vaspace);
        self.node
            .uvm
            .call(uvm::REGISTER_GPU_VASPACE, block, l::RM_STATUS)?;
        *registered = true;
        Ok(())
    }

    /// Maps an object for the GPU at a range of its own.
    fn map_for_gpu(&mut self, memory: u32, length: u64) -> Result<u64, CuResult> {
        let range = Range::reserve(length, PAGE)?;
        let base = range.base();
        self.map_range(memory, range, length)?;
        Ok(base)
    }

    fn map_range(&mut self, memory: u32, range: Range, length: u64) -> Result<(), CuResult> {
        let base = range.base();
        self.node.uvm.create_external_range(base, range.length())?;
        self.hardware.held.push(Held::UvmRange { range });
        self.node
            .uvm
            .map_external(&self.node.client, memory, &self.gpu.uuid, base, length, 0)?;
        Ok(())
    }

    fn device_memory(&mut self, size: u64, mapped: u64) -> Result<(), CuResult> {
        self.memory(ATTR_DEVICE, size, mapped)
    }

    fn memory(&mut self, attributes: u32, size: u64, mapped: u64) -> Result<(), CuResult> {
        let handle = alloc_device_memory(self.node, self.gpu, attributes, size)?;
        self.hardware.held.push(Held::Object {
            parent: self.gpu.device,
            handle,
        });
        self.map_for_gpu(handle, mapped)?;
        Ok(())
    }

    fn host_memory(
        &mut self,
        attributes: u32,
        attributes2: u32,
        size: u64,
    ) -> Result<(), CuResult> {
        let handle = alloc_host_memory(self.node, self.gpu, attributes, attributes2, size)?;
        self.hardware.held.push(Held::Object {
            parent: self.gpu.device,
            handle,
        });
        self.map_for_cpu(self.gpu.device, handle, size, DeviceFile::Control)?;
        let mapped = round_up(size, 4096).ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        self.map_for_gpu(handle, mapped)?;
        Ok(())
    }

    fn map_for_cpu(&mut self, parent: u32, handle: u32, size: u64, file: DeviceFile) -> Answer<()> {
        let mapping = self.node.client.map(parent, handle, size, file)?;
        self.hardware.held.push(Held::Mapped {
            parent,
            handle,
            mapping,
        });
        Ok(())
    }

    /// The memory of the channels' queues: device memory that the CPU writes, too.
    fn fifo_memory(&mut self) -> Result<(u32, u64), CuResult> {
        let (node, gpu) = (self.node, self.gpu);
        let handle = alloc_device_memory(node, gpu, ATTR_DEVICE, PAGE)?;
        self.hardware.held.push(Held::Object {
            parent: gpu.device,
            handle,
        });
        let mapping =
            node.client
                .map(gpu.subdevice, handle, PAGE, DeviceFile::Gpu(gpu.card.minor))?;
        let range = Range::reserve(PAGE, PAGE)?;
        let base = range.base();
        let _ = node.client.moved(gpu.subdevice, handle, &mapping, base);
        self.hardware.held.push(Held::Mapped {
            parent: gpu.subdevice,
            handle,
            mapping,
        });
        self.map_range(handle, range, PAGE)?;
        Ok((handle, base))
    }

    fn group(&mut self, vaspace: u32, engine: u32) -> Answer<u32> {
        use layout::channel_group_alloc as l;
        let block = Block::new(l::SIZE)
            .with32(l::H_VA_SPACE, vaspace)
            .with32(l::ENGINE_TYPE, engine);
        self.object(self.gpu.device, 0xa06c, Some(block))
    }

    fn channel(
        &mut self,
        group: u32,
        fifos: u32,
        base: u64,
        flags: u32,
        share: u32,
    ) -> Answer<u32> {
        use layout::channel_alloc as l;
        let gpu = self.gpu;
        let notifier = memory_parameters(gpu.device, 0xd, 0xc001, ATTR_HOST, 4096);
        let notifier = self.object(gpu.device, SYSTEM, Some(notifier))?;
        self.map_for_cpu(gpu.device, notifier, 4096, DeviceFile::Control)?;
        let index = (self.hardware.compute.len()
            + self.hardware.copy.iter().map(Vec::len).sum::<usize>()) as u64;
        let block = Block::new(l::SUB_PROCESS_ID + 4)
            .with32(l::H_OBJECT_ERROR, notifier)
            .with32(l::H_OBJECT_BUFFER, fifos)
            .with64(l::GP_FIFO_OFFSET, base + index * 0x3000)
            .with32(l::GP_FIFO_ENTRIES, 0x400)
            .with32(l::FLAGS, flags)
            .with32(l::H_CONTEXT_SHARE, share)
            .with32(l::H_USERD_MEMORY, fifos);
        let channel = self.object(group, CHANNEL_CLASS, Some(block))?;
        let (mut handles, mut ids) = (Block::new(4).with32(0, channel), Block::new(4));
        let block = Block::new(24)
            .with32(0, 1)
            .with64(8, handles.address())
            .with64(16, ids.address());
        self.control(gpu.device, 0x80_170d, block)?;
        Ok(channel)
    }

    fn engine(&mut self, channel: u32, class: u32, engine: u32) -> Answer<()> {
        let parameters = if class == COMPUTE_CLASS {
            Block::new(16)
        } else {
            Block::new(8).with32(4, engine)
        };
        self.object(channel, class, Some(parameters))?;
        self.tell(channel, 0x906f_0101, 16)
    }

    /// Makes the channels of a group known to UVM, lets the group run and opens an event for it.
    fn start(&mut self, group: u32, channels: Vec<u32>, compute: bool) -> Result<(), CuResult> {
        use layout::uvm_register_channel as l;
        // The compute engine keeps its state in memory of the address space; copy engines have none.
        let state = if compute {
            Some(Range::reserve(0x53_0000, PAGE)?)
        } else {
            None
        };
        for channel in channels {
            let block = Block::new(l::SIZE)
                .with(l::GPU_UUID, &self.gpu.uuid)
                .with32(l::RM_CTRL_FD, self.node.client.file_number())
                .with32(l::H_CLIENT, self.node.client.root())
                .with32(l::H_CHANNEL, channel)
                .with64(l::BASE, state.as_ref().map_or(0, Range::base))
                .with64(l::LENGTH, state.as_ref().map_or(0, |_| 0x52_f000));
            self.node
                .uvm
                .call(uvm::REGISTER_CHANNEL, block, l::RM_STATUS)?;
            self.hardware.held.push(Held::Channel { handle: channel });
        }
        if let Some(memory) = state {
            self.hardware.held.push(Held::Pages { _memory: memory });
        }
        let run = Block::new(2).with(layout::gpfifo_schedule::B_ENABLE, &[1]);
        self.control(group, 0xa06c_0101, run)?;
        self.event(self.gpu.subdevice, 0x3800_000c)?;
        Ok(())
    }

    fn event(&mut self, parent: u32, notification: u32) -> Answer<()> {
        use layout::event_alloc as l;
        let client = &self.node.client;
        let file = client.open_device(self.gpu.card.minor)?;
        client.alloc_os_event(file.as_fd(), self.gpu.subdevice)?;
        let block = Block::new(l::SIZE)
            .with32(l::H_PARENT_CLIENT, client.root())
            .with32(l::H_CLASS, EVENT_CLASS)
            .with32(l::NOTIFY_INDEX, notification)
            .with64(l::DATA, file.as_raw_fd() as u64);
        let handle = client.alloc_on(file.as_fd(), parent, EVENT_CLASS, Some(block));
        self.hardware.held.push(Held::Event { file });
        self.hardware.held.push(Held::Object {
            parent,
            handle: handle?,
        });
        Ok(())
    }

    /// Semaphores live in a range of the UVM file that both sides map.
    fn semaphores(&mut self) -> Result<(), CuResult> {
        use layout::{uvm_alloc_semaphore_pool as l, uvm_validate_va_range as check};
        let range = Range::reserve(PAGE, PAGE)?;
        let behind = gateway::abi().map_err(Fault::from)?;
        let behind = behind.layout().uvm_alloc_semaphore_pool;
        let block = block_of(uvm::ALLOC_SEMAPHORE_POOL)?
            .with64(l::BASE, range.base())
            .with64(l::LENGTH, PAGE)
            .with(l::PER_GPU_ATTRIBUTES, &self.gpu.uuid)
            .with32(l::PER_GPU_ATTRIBUTES + 16, 1)
            .with32(l::PER_GPU_ATTRIBUTES + 20, 1)
            .with64(behind.gpu_attributes_count, 1);
        self.node
            .uvm
            .call(uvm::ALLOC_SEMAPHORE_POOL, block, behind.rm_status)?;
        map_uvm(self.node, &range)?;
        let (base, length) = (range.base(), range.length());
        self.hardware.held.push(Held::Semaphores { range });
        self.node.uvm.on_range(
            uvm::VALIDATE_VA_RANGE,
            base,
            length,
            check::SIZE,
            check::RM_STATUS,
        )?;
        Ok(())
    }

    fn range_groups(&mut self, count: usize) -> Answer<()> {
        for _ in 0..count {
            let group = self.node.uvm.create_range_group()?;
            self.hardware.held.push(Held::RangeGroup { group });
        }
        Ok(())
    }

    /// Host pages of the process that the GPU reaches.
    fn pinned(&mut self, flags: u32) -> Result<(), CuResult> {
        let (node, gpu) = (self.node, self.gpu);
        let memory = Range::host_memory(PAGE, PAGE)?;
        let base = memory.base();
        self.hardware.held.push(Held::Pages { _memory: memory });
        let handle = node
            .client
            .pin(gpu.file.as_fd(), gpu.device, base, PAGE, flags)?;
        self.hardware.held.push(Held::Object {
            parent: gpu.device,
            handle,
        });
        self.map_for_gpu(handle, PAGE)?;
        Ok(())
    }

    fn dynamic_parallelism(&mut self) -> Result<(), CuResult> {
        use layout::uvm_map_dynamic_parallelism_region as l;
        let range = Range::reserve(4096, PAGE)?;
        let block = Block::new(l::SIZE)
            .with64(l::BASE, range.base())
            .with64(l::LENGTH, range.length())
            .with(l::GPU_UUID, &self.gpu.uuid);
        self.node
            .uvm
            .call(uvm::MAP_DYNAMIC_PARALLELISM_REGION, block, l::RM_STATUS)?;
        self.hardware.held.push(Held::UvmRange { range });
        Ok(())
    }

    fn preemption(&self) -> Answer<()> {
        use layout::preemption_mode as l;
        let channel = self.hardware.compute.first().copied().unwrap_or(0);
        let block = Block::new(l::SIZE)
            .with32(l::FLAGS, 1)
            .with32(l::H_CHANNEL, channel)
            .with32(l::CILP_PREEMPT_MODE, 2);
        self.control(self.gpu.subdevice, 0x2080_1210, block)
    }

    /// The first engine object below the first compute channel: allocated right after it.
    fn first_compute_engine(&self) -> u32 {
        let channel = self.hardware.compute.first().copied().unwrap_or(0);
        self.hardware
            .held
            .iter()
            .find_map(|held| match held {
                Held::Object { parent, handle } if *parent == channel => Some(*handle),
                _ => None,
            })
            .unwrap_or(0)
    }
}

/// Maps a range of the UVM file over a reserved range: offset and address are equal, as UVM demands.
pub fn map_uvm(node: &Node, range: &Range) -> Result<(), CuResult> {
    loop {
        // SAFETY: MAP_FIXED replaces only the range that the caller has reserved and holds.
        let at = unsafe {
            libc::mmap(
                range.base() as *mut libc::c_void,
                range.length() as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                node.uvm.file().as_raw_fd(),
                range.base() as libc::off_t,
            )
        };
        if at != libc::MAP_FAILED {
            return Ok(());
        }
        // A guard is asked about this mapping, too, and a signal may come before it has taken the question.
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return Err(CuResult::ERROR_OUT_OF_MEMORY);
        }
    }
}
