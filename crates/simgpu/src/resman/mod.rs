//! The simulated resource manager: what an ioctl does.
//!
//! [`Rm`] is the whole state of the node. It is a plain data structure: the server locks it, hands it a [`Call`] whose
//! inputs have all been copied in, and copies out what changed. Work runs beside it ([`runlist`], one thread an engine
//! and device) under the same lock, except for moving bytes.
//!
//! | module | what it holds |
//! |---|---|
//! | `files` | open nodes, and what goes when the last descriptor of one goes |
//! | `clients` | clients, handles, the object tree, sharing |
//! | `memory` | allocation, rounding, the finite card, RM's own mappings |
//! | `channels` | channel groups, channels, the controls that act on them |
//! | `uvm`, `managed` | the UVM file: external mappings, managed memory |
//! | `export` | memory held by descriptors |
//! | `controls`, `info` | other controls; what the node says about itself |
//! | `runlist`, `exec`, `store` | work, address translation, contents |
//! | `timeline` | the context-switch timeline: the hardware's log and the buffers that it is copied to |

mod block;
mod channels;
mod clients;
mod controls;
mod exec;
mod export;
mod files;
mod info;
mod managed;
mod memory;
pub mod runlist;
mod store;
#[cfg(test)]
mod tests;
mod timeline;
mod uvm;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rm::{Abi, Status, layout, nr};

pub use block::Block;
pub use files::File;

use crate::client::Node;
use crate::proto::FileId;
use crate::spec::NodeSpec;

/// Status words of the driver beyond those the guard names.
pub mod status {
    use rm::Status;

    /// The file is in no state for this call (`NV_ERR_ILLEGAL_ACTION`).
    pub const ILLEGAL_ACTION: Status = Status(0x16);
    /// The handle is in use (`NV_ERR_INSERT_DUPLICATE_NAME`).
    pub const INSERT_DUPLICATE_NAME: Status = Status(0x19);
    /// Nothing is mapped there (`NV_ERR_INVALID_ADDRESS`).
    pub const INVALID_ADDRESS: Status = Status(0x1e);
    /// No such channel (`NV_ERR_INVALID_CHANNEL`).
    pub const INVALID_CHANNEL: Status = Status(0x21);
    /// No such device (`NV_ERR_INVALID_DEVICE`).
    pub const INVALID_DEVICE: Status = Status(0x26);
    /// The call, or the object it names, has other flags than it needs (`NV_ERR_INVALID_FLAGS`).
    pub const INVALID_FLAGS: Status = Status(0x29);
    /// No such function of a call (`NV_ERR_INVALID_FUNCTION`).
    pub const INVALID_FUNCTION: Status = Status(0x2a);
    /// The handle names no object of the kind that is needed (`NV_ERR_INVALID_OBJECT_HANDLE`).
    pub const INVALID_OBJECT_HANDLE: Status = Status(0x33);
    /// The object cannot be a parent of this class (`NV_ERR_INVALID_OBJECT_PARENT`).
    pub const INVALID_OBJECT_PARENT: Status = Status(0x36);
    /// Beyond the end of the memory (`NV_ERR_INVALID_OFFSET`).
    pub const INVALID_OFFSET: Status = Status(0x37);
    /// The parameter block has not the size of the control's (`NV_ERR_INVALID_PARAM_STRUCT`).
    pub const INVALID_PARAM_STRUCT: Status = Status(0x3a);
    /// Set up already, differently (`NV_ERR_INVALID_STATE`).
    pub const INVALID_STATE: Status = Status(0x40);
    /// In use already (`NV_ERR_STATE_IN_USE`).
    pub const STATE_IN_USE: Status = Status(0x63);
    /// There is none (`NV_ERR_OPERATING_SYSTEM`).
    pub const OPERATING_SYSTEM: Status = Status(0x59);
    /// Not needed, and no error (`NV_WARN_NOTHING_TO_DO`).
    pub const NOTHING_TO_DO: Status = Status(0x10006);
    /// The address space that a UVM file is bound to is not kept, or is gone (`NV_ERR_PAGE_TABLE_NOT_AVAIL`).
    pub const PAGE_TABLE_NOT_AVAIL: Status = Status(0x5d);
    /// Part of the range is taken (`NV_ERR_UVM_ADDRESS_IN_USE`).
    pub const UVM_ADDRESS_IN_USE: Status = Status(0x67);
}

/// What the driver answers to the part of a call that has a status word.
pub type Answer<T = ()> = Result<T, Status>;

/// The process that makes a call, as it was when it connected.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub pid: u32,
    pub euid: u32,
}

/// An array that a control's parameters point to.
pub struct Array {
    /// Byte offset of the pointer in the parameters.
    pub at: usize,
    /// The elements, copied in and out.
    pub bytes: Block,
}

/// One ioctl with everything it refers to.
pub struct Call {
    pub caller: Caller,
    /// The file it is made on.
    pub file: FileId,
    /// The ioctl's own block.
    pub block: Block,
    /// What the block points to: allocation or control parameters.
    pub params: Option<Block>,
    /// What the parameters point to.
    pub arrays: Vec<Array>,
    /// The file behind the descriptor that the block or the parameters carry.
    pub descriptor: Option<FileId>,
    /// Device files in the caller's table, gathered for `NV01_DEVICE_0` only.
    pub device_files: Vec<FileId>,
    /// Whether the first and last byte of pages to be pinned can be read.
    pub pages_present: bool,
    /// A new descriptor for the caller, and where its number goes in the block.
    pub install: Option<(OwnedFd, usize)>,
}

impl Call {
    /// A call without parameters, descriptors or pages.
    pub fn new(caller: Caller, file: FileId, block: Block) -> Call {
        Call {
            caller,
            file,
            block,
            params: None,
            arrays: Vec::new(),
            descriptor: None,
            device_files: Vec::new(),
            pages_present: true,
            install: None,
        }
    }

    /// The nested parameters, or an empty block.
    fn params(&mut self) -> &mut Block {
        self.params.get_or_insert_default()
    }
}

/// One GPU.
pub struct Device {
    /// Bytes of allocations: what `GET_PID_INFO` can see.
    allocated: u64,
    /// Bytes of context buffers and instance memory.
    hidden: u64,
    /// Bytes of managed memory that is on the device.
    resident: u64,
    engines: [runlist::Engine; 2],
    /// What the compute engine has logged and the driver not copied out yet.
    switches: timeline::Log,
    /// Time that contexts which are gone had on the engines, by process: computing, copying.
    past: BTreeMap<u32, [u64; 2]>,
}

/// The whole node.
pub struct Rm {
    node: NodeSpec,
    /// The kernel interface of the simulated driver.
    abi: &'static Abi,
    files: HashMap<FileId, File>,
    clients: BTreeMap<u32, clients::Client>,
    memories: HashMap<u64, memory::Memory>,
    groups: HashMap<u64, channels::Group>,
    channels: HashMap<u64, channels::Channel>,
    /// Memory held for third-party devices: object and handle it was registered by.
    registered: BTreeMap<(u64, u32), u64>,
    /// Bytes of memory that belongs to no device.
    deviceless: timeline::Memories,
    event_buffers: BTreeMap<u64, timeline::EventBuffer>,
    /// Events of the system that clients have registered: client and descriptor number.
    os_events: HashSet<(u32, u32)>,
    devices: Vec<Device>,
    next_id: u64,
    next_client: u32,
    next_physical: u64,
    /// Wall clock when the engines' clocks showed 0, ns since 1970.
    started_ns: u64,
    /// State of the noise in what an ordinary user sees of others.
    noise: u64,
    /// Something happened that a runlist wants to know.
    stirred: bool,
}

/// The node's state behind its lock, and who is woken when it changes.
pub struct Shared {
    abi: &'static Abi,
    rm: Mutex<Rm>,
    /// Each engine of each device: work was queued, a channel was attached, detached or freed.
    engines: Vec<[Condvar; 2]>,
}

impl Shared {
    /// A node with nothing open.
    pub fn new(node: NodeSpec) -> Shared {
        Shared {
            abi: crate::abi_of(&node.driver),
            engines: node.devices.iter().map(|_| Default::default()).collect(),
            rm: Mutex::new(Rm::new(node)),
        }
    }

    /// The kernel interface of the simulated driver.
    pub fn abi(&self) -> &'static Abi {
        self.abi
    }

    /// Takes the lock. A thread that panicked under it has lost its own connection, not the node.
    pub fn lock(&self) -> MutexGuard<'_, Rm> {
        self.rm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes every engine.
    pub fn wake(&self) {
        for engine in self.engines.iter().flatten() {
            engine.notify_all();
        }
    }

    /// Gives the lock back and wakes the engines if what was done under it concerns them.
    pub fn unlock(&self, mut rm: MutexGuard<'_, Rm>) {
        let stirred = std::mem::take(&mut rm.stirred);
        drop(rm);
        if stirred {
            self.wake();
        }
    }
}

impl Rm {
    fn new(node: NodeSpec) -> Rm {
        let started_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(0));
        let devices = node
            .devices
            .iter()
            .map(|_| Device {
                allocated: 0,
                hidden: 0,
                resident: 0,
                engines: Default::default(),
                switches: timeline::Log::new(),
                past: BTreeMap::new(),
            })
            .collect();
        Rm {
            abi: crate::abi_of(&node.driver),
            node,
            files: HashMap::new(),
            clients: BTreeMap::new(),
            memories: HashMap::new(),
            groups: HashMap::new(),
            channels: HashMap::new(),
            registered: BTreeMap::new(),
            deviceless: HashMap::new(),
            event_buffers: BTreeMap::new(),
            os_events: HashSet::new(),
            devices,
            next_id: 1,
            next_client: 1,
            next_physical: 0,
            started_ns,
            noise: started_ns | 1,
            stirred: false,
        }
    }

    /// What the driver says its version is.
    pub fn driver_version(&self) -> &str {
        &self.node.driver
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// How many GPUs the node has.
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// Executes a frontend ioctl. The size of the block has been checked.
    ///
    /// # Errors
    /// An errno, for what has no status word or is no call of this driver.
    pub fn frontend(&mut self, number: u8, call: &mut Call) -> Result<(), i32> {
        let varying = self.abi.layout();
        let (at, answer) = match number {
            nr::RM_FREE => (layout::nvos00::STATUS, self.rm_free(call)),
            nr::RM_CONTROL => (layout::nvos54::STATUS, self.rm_control(call)),
            nr::RM_ALLOC if call.block.0.len() == layout::nvos21::SIZE => {
                (layout::nvos21::STATUS, self.rm_alloc(call))
            }
            nr::RM_ALLOC => (layout::nvos64::STATUS, self.rm_alloc(call)),
            // The driver wants the file of a device here.
            nr::RM_ALLOC_MEMORY if !self.is_device_file(call.file) => return Err(libc::EINVAL),
            nr::RM_ALLOC_MEMORY => (layout::nvos02::STATUS, self.rm_alloc_memory(call)),
            nr::RM_DUP_OBJECT => (layout::nvos55::STATUS, self.rm_dup_object(call)),
            nr::RM_SHARE => (layout::nvos57::STATUS, self.rm_share(call)),
            nr::RM_IDLE_CHANNELS => (layout::nvos30::STATUS, self.rm_idle_channels(call)),
            nr::RM_VID_HEAP_CONTROL => (layout::nvos32::STATUS, self.rm_vid_heap(call)),
            nr::RM_MAP_MEMORY => (layout::nvos33::STATUS, self.rm_map_memory(call)),
            nr::RM_UNMAP_MEMORY => (layout::nvos34::STATUS, self.rm_unmap_memory(call)),
            nr::RM_ALLOC_CONTEXT_DMA2 => (layout::nvos39::STATUS, self.rm_alloc_context_dma(call)),
            nr::RM_MAP_MEMORY_DMA => (varying.nvos46.status, self.rm_map_memory_dma(call)),
            nr::RM_UNMAP_MEMORY_DMA => (varying.nvos47.status, self.rm_unmap_memory_dma(call)),
            nr::RM_UPDATE_DEVICE_MAPPING_INFO => {
                (layout::nvos56::STATUS, self.rm_update_mapping(call))
            }
            // Nothing here ever queues an event.
            nr::RM_GET_EVENT_DATA => (layout::nvos41::STATUS, Err(status::OPERATING_SYSTEM)),
            nr::ALLOC_OS_EVENT => (layout::alloc_os_event::STATUS, self.os_event(call, true)),
            nr::FREE_OS_EVENT => (layout::free_os_event::STATUS, self.os_event(call, false)),
            nr::EXPORT_TO_DMABUF_FD => (
                varying.export_to_dmabuf_fd.status,
                self.export_to_dmabuf(call)?,
            ),
            _ => return self.node_call(number, call),
        };
        let status = answer.err().unwrap_or(Status::OK);
        call.block.put_u32(at, status.0);
        Ok(())
    }

    /// The node a file is open on; `None` for a file that is no node (an exported buffer, a stranger).
    pub fn node_of(&self, file: FileId) -> Option<Node> {
        self.files.get(&file).and_then(|file| file.node)
    }

    /// Whether this file is known at all.
    pub fn is_open(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Every open device file, for a caller who must hold one.
    pub fn device_file_ids(&self) -> Vec<FileId> {
        let is_device =
            |(&id, file): (&FileId, &File)| matches!(file.node, Some(Node::Gpu(_))).then_some(id);
        self.files.iter().filter_map(is_device).collect()
    }

    /// The control file that a client hangs on.
    pub fn client_file(&self, client: u32) -> Option<FileId> {
        self.clients.get(&client).map(|client| client.file)
    }
}
