//! The verbs of the driver's kernel interface: allocate, free, control, map, and the calls of the UVM file.
//!
//! The blocks have the fields that every branch has (`rm::layout`) and the sizes of the node's branch; what is left zero is
//! what the real library left zero on branch 580, or does not matter to the answer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use cuda::status::CuResult;
use rm::{layout, nr, uvm};
use simgpu::client::Node;

use crate::block::Block;
use crate::gateway;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The ioctl itself: an error number.
    Os(i32),
    /// The resource manager's status word.
    Status(u32),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Os(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Fault> for CuResult {
    fn from(fault: Fault) -> CuResult {
        match fault {
            Fault::Status(status) if status == rm::Status::NO_MEMORY.0 => {
                CuResult::ERROR_OUT_OF_MEMORY
            }
            Fault::Status(status) if status == rm::Status::INSUFFICIENT_PERMISSIONS.0 => {
                CuResult::ERROR_NOT_PERMITTED
            }
            Fault::Status(status) if status == rm::Status::NOT_SUPPORTED.0 => {
                CuResult::ERROR_NOT_SUPPORTED
            }
            Fault::Status(_) => CuResult::ERROR_UNKNOWN,
            Fault::Os(libc::ENOMEM) => CuResult::ERROR_OUT_OF_MEMORY,
            Fault::Os(_) => CuResult::ERROR_OPERATING_SYSTEM,
        }
    }
}

/// What a call gives back.
pub type Answer<T> = Result<T, Fault>;

/// The request word of a frontend ioctl: `_IOWR('F', number, size)`.
pub fn frontend(number: u8, size: usize) -> u32 {
    0xc000_0000 | ((size as u32 & 0x3fff) << 16) | (u32::from(b'F') << 8) | u32::from(number)
}

/// Makes a frontend ioctl of the block's size.
pub fn escape(file: BorrowedFd<'_>, number: u8, block: &mut Block) -> Answer<()> {
    Ok(gateway::ioctl(
        file,
        frontend(number, block.len()),
        block.as_mut_ptr(),
    )?)
}

fn checked(status: u32) -> Answer<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(Fault::Status(status))
    }
}

/// A root client on an open control file.
pub struct RmClient {
    control_file: OwnedFd,
    root: u32,
    next: AtomicU32,
    step: u32,
}

impl RmClient {
    /// Allocates a root client; its objects get `first`, `first + step`, ... as handles.
    pub fn new(control_file: OwnedFd, first: u32, step: u32) -> Answer<RmClient> {
        let mut client = RmClient {
            control_file,
            root: 0,
            next: AtomicU32::new(first),
            step,
        };
        let mut block = Block::new(layout::nvos64::SIZE);
        escape(client.file(), nr::RM_ALLOC, &mut block)?;
        checked(block.get32(layout::nvos64::STATUS))?;
        client.root = block.get32(layout::nvos64::H_OBJECT_NEW);
        Ok(client)
    }

    /// The control file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.control_file.as_fd()
    }

    /// The control file's number, for blocks that name it.
    pub fn file_number(&self) -> u32 {
        self.control_file.as_raw_fd() as u32
    }

    /// Handle of the root client.
    pub fn root(&self) -> u32 {
        self.root
    }

    /// The handle that [`RmClient::fresh`] would give next.
    pub fn upcoming(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// A handle that no object of this client has had.
    pub fn fresh(&self) -> u32 {
        self.next.fetch_add(self.step, Ordering::Relaxed)
    }

    /// Allocates an object of `class` below `parent` through the control file; gives its handle.
    pub fn alloc(&self, parent: u32, class: u32, parameters: Option<Block>) -> Answer<u32> {
        self.alloc_on(self.file(), parent, class, parameters)
    }

    /// The same through another file.
    pub fn alloc_on(
        &self,
        file: BorrowedFd<'_>,
        parent: u32,
        class: u32,
        mut parameters: Option<Block>,
    ) -> Answer<u32> {
        let handle = self.fresh();
        // As large as the driver of this branch reads.
        if let (Some(block), Some(entry)) = (&mut parameters, gateway::abi()?.class(class)) {
            block.resize(entry.size.into());
        }
        let mut block = Block::new(layout::nvos64::SIZE)
            .with32(layout::nvos64::H_ROOT, self.root)
            .with32(layout::nvos64::H_OBJECT_PARENT, parent)
            .with32(layout::nvos64::H_OBJECT_NEW, handle)
            .with32(layout::nvos64::H_CLASS, class)
            .with64(
                layout::nvos64::P_ALLOC_PARMS,
                parameters.as_mut().map_or(0, Block::address),
            );
        escape(file, nr::RM_ALLOC, &mut block)?;
        checked(block.get32(layout::nvos64::STATUS))?;
        Ok(handle)
    }

    /// Frees an object and everything below it.
    pub fn free(&self, parent: u32, object: u32) -> Answer<()> {
        let mut block = Block::new(layout::nvos00::SIZE)
            .with32(layout::nvos00::H_ROOT, self.root)
            .with32(layout::nvos00::H_OBJECT_PARENT, parent)
            .with32(layout::nvos00::H_OBJECT_OLD, object);
        escape(self.file(), nr::RM_FREE, &mut block)?;
        checked(block.get32(layout::nvos00::STATUS))
    }

    /// Sends a control command; the block carries the parameters and takes the answer.
    pub fn control(&self, object: u32, command: u32, parameters: &mut Block) -> Answer<()> {
        // A library asks what its own branch knows, in the sizes of that branch.
        let entry = gateway::abi()?.control(command);
        let entry = entry.ok_or(Fault::Status(rm::Status::NOT_SUPPORTED.0))?;
        parameters.resize(entry.size as usize);
        let address = if parameters.len() == 0 {
            0
        } else {
            parameters.address()
        };
        let mut block = Block::new(layout::nvos54::SIZE)
            .with32(layout::nvos54::H_CLIENT, self.root)
            .with32(layout::nvos54::H_OBJECT, object)
            .with32(layout::nvos54::CMD, command)
            .with64(layout::nvos54::PARAMS, address)
            .with32(layout::nvos54::PARAMS_SIZE, parameters.len() as u32);
        escape(self.file(), nr::RM_CONTROL, &mut block)?;
        checked(block.get32(layout::nvos54::STATUS))
    }

    /// Sends a control command whose answer matters to nobody: zero parameters of `size` bytes. A status other than
    /// success is no failure of the caller's either; only a refused ioctl is.
    pub fn tell(&self, object: u32, command: u32, size: usize) -> Answer<()> {
        match self.control(object, command, &mut Block::new(size)) {
            Err(Fault::Status(_)) | Ok(()) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Makes another client's object known to this one; gives its handle here.
    pub fn duplicate(&self, parent: u32, source_client: u32, source: u32) -> Answer<u32> {
        let handle = self.fresh();
        let mut block = Block::new(layout::nvos55::SIZE)
            .with32(layout::nvos55::H_CLIENT, self.root)
            .with32(layout::nvos55::H_PARENT, parent)
            .with32(layout::nvos55::H_OBJECT, handle)
            .with32(layout::nvos55::H_CLIENT_SRC, source_client)
            .with32(layout::nvos55::H_OBJECT_SRC, source);
        escape(self.file(), nr::RM_DUP_OBJECT, &mut block)?;
        checked(block.get32(layout::nvos55::STATUS))?;
        Ok(handle)
    }

    /// Maps an object for the CPU: the mapping itself is made with `mmap` on a file opened for it.
    pub fn map(&self, parent: u32, memory: u32, length: u64, node: Node) -> Answer<Mapping> {
        self.tell(self.root, FLUSH_BEFORE_MAP, 12)?;
        let file = gateway::open(node)?;
        let mut block = Block::new(layout::nvos33_with_fd::SIZE)
            .with32(layout::nvos33::H_CLIENT, self.root)
            .with32(layout::nvos33::H_DEVICE, parent)
            .with32(layout::nvos33::H_MEMORY, memory)
            .with64(layout::nvos33::LENGTH, length)
            .with32(layout::nvos33_with_fd::FD, file.as_raw_fd() as u32);
        escape(self.file(), nr::RM_MAP_MEMORY, &mut block)?;
        checked(block.get32(layout::nvos33::STATUS))?;
        let linear = block.get64(layout::nvos33::P_LINEAR_ADDRESS);
        // SAFETY: a new shared mapping at an address that the kernel chooses touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let start = if start == libc::MAP_FAILED {
            0
        } else {
            start as u64
        };
        Ok(Mapping {
            linear,
            start,
            length,
        })
    }

    /// Undoes [`RmClient::map`].
    pub fn unmap(&self, parent: u32, memory: u32, mapping: &Mapping) -> Answer<()> {
        if mapping.start != 0 {
            // SAFETY: the mapping was made by `map` and nobody else knows its address.
            unsafe { libc::munmap(mapping.start as *mut libc::c_void, mapping.length as usize) };
        }
        let mut block = Block::new(layout::nvos34::SIZE)
            .with32(layout::nvos34::H_CLIENT, self.root)
            .with32(layout::nvos34::H_DEVICE, parent)
            .with32(layout::nvos34::H_MEMORY, memory)
            .with64(layout::nvos34::P_LINEAR_ADDRESS, mapping.linear);
        escape(self.file(), nr::RM_UNMAP_MEMORY, &mut block)?;
        checked(block.get32(layout::nvos34::STATUS))
    }

    /// Tells the driver where a mapping lies for the program.
    pub fn moved(&self, parent: u32, memory: u32, mapping: &Mapping, to: u64) -> Answer<()> {
        let mut block = Block::new(layout::nvos56::SIZE)
            .with32(layout::nvos56::H_CLIENT, self.root)
            .with32(layout::nvos56::H_DEVICE, parent)
            .with32(layout::nvos56::H_MEMORY, memory)
            .with64(layout::nvos56::P_OLD_CPU_ADDRESS, mapping.linear)
            .with64(layout::nvos56::P_NEW_CPU_ADDRESS, to);
        escape(self.file(), nr::RM_UPDATE_DEVICE_MAPPING_INFO, &mut block)?;
        checked(block.get32(layout::nvos56::STATUS))
    }

    /// Pins `length` bytes of the process's own memory at `address` as an object below `parent`.
    pub fn pin(
        &self,
        file: BorrowedFd<'_>,
        parent: u32,
        address: u64,
        length: u64,
        flags: u32,
    ) -> Answer<u32> {
        let handle = self.fresh();
        let mut block = Block::new(layout::nvos02_with_fd::SIZE)
            .with32(layout::nvos02::H_ROOT, self.root)
            .with32(layout::nvos02::H_OBJECT_PARENT, parent)
            .with32(layout::nvos02::H_OBJECT_NEW, handle)
            .with32(layout::nvos02::H_CLASS, NV01_MEMORY_SYSTEM_OS_DESCRIPTOR)
            .with32(layout::nvos02::FLAGS, flags)
            .with64(layout::nvos02::P_MEMORY, address)
            .with64(layout::nvos02::LIMIT, length.saturating_sub(1))
            .with32(layout::nvos02_with_fd::FD, u32::MAX);
        escape(file, nr::RM_ALLOC_MEMORY, &mut block)?;
        checked(block.get32(layout::nvos02::STATUS))?;
        Ok(handle)
    }

    /// Makes an OS event known under the number of `event_file`, an extra file of the device.
    pub fn alloc_os_event(&self, event_file: BorrowedFd<'_>, subdevice: u32) -> Answer<()> {
        let mut block = Block::new(layout::alloc_os_event::SIZE)
            .with32(layout::alloc_os_event::H_CLIENT, self.root)
            .with32(layout::alloc_os_event::H_DEVICE, subdevice)
            .with32(layout::alloc_os_event::FD, event_file.as_raw_fd() as u32);
        escape(event_file, nr::ALLOC_OS_EVENT, &mut block)?;
        checked(block.get32(layout::alloc_os_event::STATUS))
    }

    /// Undoes [`RmClient::alloc_os_event`].
    pub fn free_os_event(&self, event_file: BorrowedFd<'_>, subdevice: u32) -> Answer<()> {
        let mut block = Block::new(layout::free_os_event::SIZE)
            .with32(layout::free_os_event::H_CLIENT, self.root)
            .with32(layout::free_os_event::H_DEVICE, subdevice)
            .with32(layout::free_os_event::FD, event_file.as_raw_fd() as u32);
        escape(event_file, nr::FREE_OS_EVENT, &mut block)?;
        checked(block.get32(layout::free_os_event::STATUS))
    }

    /// Opens a device file and ties it to this client's control file.
    pub fn open_device(&self, minor: u32) -> Answer<OwnedFd> {
        let file = gateway::open(Node::Gpu(minor))?;
        let mut block = Block::new(layout::register_fd::SIZE)
            .with32(layout::register_fd::CTL_FD, self.file_number());
        escape(file.as_fd(), nr::REGISTER_FD, &mut block)?;
        Ok(file)
    }
}

/// Control sent before each mapping.
const FLUSH_BEFORE_MAP: u32 = 0xd01;
/// Class of pinned memory of the process.
const NV01_MEMORY_SYSTEM_OS_DESCRIPTOR: u32 = 0x71;

/// A CPU mapping of an object.
#[derive(Debug)]
pub struct Mapping {
    linear: u64,
    start: u64,
    length: u64,
}

impl Mapping {
    /// Where it lies in the process; 0 if the file could not be mapped.
    pub fn address(&self) -> u64 {
        self.start
    }
}

/// The open UVM file and the calls on it.
pub struct Uvm {
    file: OwnedFd,
    /// A second open of the device, which ties the first to this process's memory for as long as it is open.
    _memory_manager: OwnedFd,
}

impl Uvm {
    /// Opens and initialises the file.
    pub fn open() -> Answer<Uvm> {
        use layout::{uvm_initialize as init, uvm_mm_initialize as mm_init};
        let file = gateway::open(Node::Uvm)?;
        uvm_call(
            file.as_fd(),
            uvm::INITIALIZE,
            Block::new(init::SIZE),
            init::RM_STATUS,
        )?;
        let second = gateway::open(Node::Uvm)?;
        let block = Block::new(mm_init::SIZE).with32(mm_init::UVM_FD, file.as_raw_fd() as u32);
        uvm_call(
            second.as_fd(),
            uvm::MM_INITIALIZE,
            block,
            mm_init::RM_STATUS,
        )?;
        Ok(Uvm {
            file,
            _memory_manager: second,
        })
    }

    /// The file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Makes one call and gives the block back; `status_at` is where its status word stands.
    pub fn call(&self, request: u32, block: Block, status_at: usize) -> Answer<Block> {
        uvm_call(self.file(), request, block, status_at)
    }

    /// A call on a range whose answer is only a status.
    pub fn on_range(
        &self,
        request: u32,
        base: u64,
        length: u64,
        size: usize,
        status_at: usize,
    ) -> Answer<()> {
        self.call(
            request,
            Block::new(size).with64(0, base).with64(8, length),
            status_at,
        )
        .map(|_| ())
    }

    /// Makes a range that memory can be mapped into.
    pub fn create_external_range(&self, base: u64, length: u64) -> Answer<()> {
        use layout::uvm_create_external_range as l;
        self.on_range(
            uvm::CREATE_EXTERNAL_RANGE,
            base,
            length,
            l::SIZE,
            l::RM_STATUS,
        )
    }

    /// Maps `memory` of `client` for the GPU.
    pub fn map_external(
        &self,
        client: &RmClient,
        memory: u32,
        uuid: &[u8; 16],
        base: u64,
        length: u64,
        offset: u64,
    ) -> Answer<()> {
        use layout::uvm_map_external as l;
        let behind = gateway::abi()?.layout().uvm_map_external;
        let block = block_of(uvm::MAP_EXTERNAL_ALLOCATION)?
            .with64(l::BASE, base)
            .with64(l::LENGTH, length)
            .with64(l::OFFSET, offset)
            .with(l::PER_GPU_ATTRIBUTES, uuid)
            .with32(l::PER_GPU_ATTRIBUTES + 16, 1)
            .with64(behind.gpu_attributes_count, 1)
            .with32(behind.rm_ctrl_fd, client.file_number())
            .with32(behind.h_client, client.root())
            .with32(behind.h_memory, memory);
        self.call(uvm::MAP_EXTERNAL_ALLOCATION, block, behind.rm_status)
            .map(|_| ())
    }

    /// Takes a mapping out of a range; the range stays.
    pub fn unmap_external(&self, uuid: &[u8; 16], base: u64, length: u64) -> Answer<()> {
        use layout::uvm_unmap_external as l;
        let block = Block::new(l::SIZE)
            .with64(l::BASE, base)
            .with64(l::LENGTH, length)
            .with(l::GPU_UUID, uuid);
        self.call(uvm::UNMAP_EXTERNAL, block, l::RM_STATUS)
            .map(|_| ())
    }

    /// Ends a range and its mappings.
    pub fn free(&self, base: u64, length: u64) -> Answer<()> {
        let at = gateway::abi()?.layout().uvm_free;
        let mut block = block_of(uvm::FREE)?.with64(layout::uvm_free::BASE, base);
        if let Some(at) = at.length {
            block.put(at, &length.to_ne_bytes());
        }
        self.call(uvm::FREE, block, at.rm_status).map(|_| ())
    }

    /// Makes a range group; gives its number.
    pub fn create_range_group(&self) -> Answer<u64> {
        use layout::uvm_create_range_group as l;
        let block = self.call(uvm::CREATE_RANGE_GROUP, Block::new(l::SIZE), l::RM_STATUS)?;
        Ok(block.get64(l::RANGE_GROUP_ID))
    }

    /// Ends a range group.
    pub fn destroy_range_group(&self, group: u64) -> Answer<()> {
        use layout::uvm_destroy_range_group as l;
        let block = Block::new(l::SIZE).with64(l::RANGE_GROUP_ID, group);
        self.call(uvm::DESTROY_RANGE_GROUP, block, l::RM_STATUS)
            .map(|_| ())
    }
}

/// An empty block of a UVM call whose size goes with the branch.
pub fn block_of(request: u32) -> Answer<Block> {
    let entry = gateway::abi()?.uvm(request);
    let entry = entry.ok_or(Fault::Os(libc::EINVAL))?;
    Ok(Block::new(entry.size.into()))
}

fn uvm_call(
    file: BorrowedFd<'_>,
    request: u32,
    mut block: Block,
    status_at: usize,
) -> Answer<Block> {
    gateway::ioctl(file, request, block.as_mut_ptr())?;
    checked(block.get32(status_at))?;
    Ok(block)
}
