//! The UVM file: external mappings of memory, and managed memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rm::{class, layout, uvm};

use super::{Answer, Block, Client, Device, Fault, File, Node, checked, params_of};

/// `NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED` and `..._ENABLE_PAGE_FAULTING`, as CUDA makes the address space that
/// UVM is to manage.
const FOR_UVM: u32 = 0x48;

/// An open UVM file.
#[derive(Debug)]
pub struct Uvm {
    node: Node,
    file: OwnedFd,
    /// A second open of the device that keeps the address space the first is bound to.
    keeper: OwnedFd,
}

impl Uvm {
    /// Opens a UVM file without initialising it.
    ///
    /// # Errors
    /// As open(2).
    pub fn open_only(node: &Node) -> Answer<Uvm> {
        Ok(Uvm {
            node: node.clone(),
            file: node.open(File::Uvm)?,
            keeper: node.open(File::Uvm)?,
        })
    }

    /// Opens and initialises a UVM file as CUDA does.
    ///
    /// # Errors
    /// As open(2); the driver refuses.
    pub fn open(node: &Node) -> Answer<Uvm> {
        let uvm = Uvm::open_only(node)?;
        uvm.initialize(0)?;
        Ok(uvm)
    }

    /// The file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Initialises the file for this address space.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn initialize(&self, flags: u64) -> Answer {
        self.call(
            uvm::INITIALIZE,
            initialize_block(flags),
            layout::uvm_initialize::RM_STATUS,
        )?;
        self.keep_address_space()
    }

    /// Binds the file to this address space for as long as the second file is open. Said again, or for a file that acts
    /// on whoever calls, it is no error.
    fn keep_address_space(&self) -> Answer {
        use layout::uvm_mm_initialize as l;
        /// `NV_ERR_INVALID_STATE`
        const KEPT_ALREADY: u32 = 0x40;
        /// `NV_WARN_NOTHING_TO_DO`
        const NOT_NEEDED: u32 = 0x10006;
        let mut block = Block::new(l::SIZE).with32(l::UVM_FD, self.file.as_raw_fd() as u32);
        self.node
            .ioctl(self.keeper.as_fd(), uvm::MM_INITIALIZE, &mut block)?;
        match block.u32(l::RM_STATUS) {
            KEPT_ALREADY | NOT_NEEDED => Ok(()),
            status => checked(status),
        }
    }

    /// What the kernel does if another thread changes the flags between the look at them and their use.
    ///
    /// # Errors
    /// The driver refuses; `ENOTTY` on a real one.
    pub fn initialize_swapped(&self, looked_at: u64, used: u64) -> Answer {
        let mut block = initialize_block(looked_at);
        match super::node::system_call(self.file(), uvm::INITIALIZE, &mut block) {
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => return checked(block.u32(layout::uvm_initialize::RM_STATUS)),
        }
        let mut block = initialize_block(used);
        self.node
            .natively(self.file(), uvm::INITIALIZE, &mut block)?;
        checked(block.u32(layout::uvm_initialize::RM_STATUS))
    }

    /// Makes a call and gives the block back; `status_at` is where its status stands.
    ///
    /// # Errors
    /// As ioctl(2); the driver refuses.
    pub fn call(&self, request: u32, mut block: Block, status_at: usize) -> Answer<Block> {
        self.node.ioctl(self.file(), request, &mut block)?;
        checked(block.u32(status_at))?;
        Ok(block)
    }

    /// Tells UVM of a GPU and makes an address space for it, so that memory can be mapped.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn add_device(&self, client: &Client, device: &Device) -> Answer<UvmSpace> {
        self.register_gpu(device)?;
        let vaspace = client.alloc(
            device.device,
            class::FERMI_VASPACE_A,
            params_of(class::FERMI_VASPACE_A).with32(layout::vaspace_alloc::FLAGS, FOR_UVM),
        )?;
        use layout::uvm_register_gpu_vaspace as l;
        let block = Block::new(l::SIZE)
            .with(l::GPU_UUID, &device.uuid)
            .with32(l::RM_CTRL_FD, client.file().as_raw_fd() as u32)
            .with32(l::H_CLIENT, client.root())
            .with32(l::H_VA_SPACE, vaspace);
        self.call(uvm::REGISTER_GPU_VASPACE, block, l::RM_STATUS)?;
        Ok(UvmSpace {
            vaspace,
            uuid: device.uuid,
        })
    }

    /// Tells UVM of a GPU.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn register_gpu(&self, device: &Device) -> Answer {
        use layout::uvm_register_gpu as l;
        let block = Block::new(l::SIZE)
            .with(l::GPU_UUID, &device.uuid)
            .with32(l::NUMA_NODE_ID, u32::MAX)
            .with32(l::RM_CTRL_FD, u32::MAX);
        self.call(uvm::REGISTER_GPU, block, l::RM_STATUS)
            .map(|_| ())
    }

    /// Makes a range that memory can be mapped into.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn create_range(&self, base: u64, length: u64) -> Answer {
        use layout::uvm_create_external_range as l;
        let block = Block::new(l::SIZE)
            .with64(l::BASE, base)
            .with64(l::LENGTH, length);
        self.call(uvm::CREATE_EXTERNAL_RANGE, block, l::RM_STATUS)
            .map(|_| ())
    }

    /// Maps memory of a client into a range (call 33). The mapping keeps the memory alive.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn map(
        &self,
        space: &UvmSpace,
        client: &Client,
        memory: u32,
        base: u64,
        length: u64,
    ) -> Answer {
        use layout::uvm_map_external as l;
        let behind = self.node.abi()?.layout().uvm_map_external;
        let block = self
            .node
            .uvm_block(uvm::MAP_EXTERNAL_ALLOCATION)?
            .with64(l::BASE, base)
            .with64(l::LENGTH, length)
            .with(l::PER_GPU_ATTRIBUTES, &space.uuid)
            .with32(l::PER_GPU_ATTRIBUTES + 16, 1)
            .with64(behind.gpu_attributes_count, 1)
            .with32(behind.rm_ctrl_fd, client.file().as_raw_fd() as u32)
            .with32(behind.h_client, client.root())
            .with32(behind.h_memory, memory);
        self.call(uvm::MAP_EXTERNAL_ALLOCATION, block, behind.rm_status)
            .map(|_| ())
    }

    /// Takes mappings out of a range; the range stays.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn unmap(&self, space: &UvmSpace, base: u64, length: u64) -> Answer {
        use layout::uvm_unmap_external as l;
        let block = Block::new(l::SIZE)
            .with64(l::BASE, base)
            .with64(l::LENGTH, length)
            .with(l::GPU_UUID, &space.uuid);
        self.call(uvm::UNMAP_EXTERNAL, block, l::RM_STATUS)
            .map(|_| ())
    }

    /// Ends a range with its mappings. The driver is told the length where it asks for one.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn free(&self, base: u64, length: u64) -> Answer {
        let at = self.node.abi()?.layout().uvm_free;
        let mut block = self.node.uvm_block(uvm::FREE)?;
        block.put(layout::uvm_free::BASE, &base.to_le_bytes());
        if let Some(at) = at.length {
            block.put(at, &length.to_le_bytes());
        }
        self.call(uvm::FREE, block, at.rm_status).map(|_| ())
    }

    /// Makes managed memory: a mapping of the file whose offset is its address.
    ///
    /// # Errors
    /// As mmap(2); `ENOMEM` where there is none left.
    pub fn managed(&self, length: u64) -> Answer<Managed> {
        // The address must be known before the offset, so a free one is reserved first.
        let reserved = map_at(
            std::ptr::null_mut(),
            length,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | ANONYMOUS,
            -1,
            0,
        )?;
        let address = reserved.address;
        // From here on the mapping that replaces it is the owner.
        std::mem::forget(reserved);
        let made = map_at(
            address as *mut libc::c_void,
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            self.file.as_raw_fd(),
            address,
        );
        if made.is_err() {
            drop(Managed { address, length });
        }
        made
    }
}

impl Uvm {
    /// As [`Uvm::managed`] at an address where nothing else lies: a semaphore pool is mapped the same way.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn managed_at(&self, address: u64, length: u64) -> Answer<Managed> {
        map_at(
            address as *mut libc::c_void,
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
            self.file.as_raw_fd(),
            address,
        )
    }
}

const ANONYMOUS: i32 = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

fn map_at(
    at: *mut libc::c_void,
    length: u64,
    prot: i32,
    flags: i32,
    file: i32,
    offset: u64,
) -> Answer<Managed> {
    // SAFETY: a new mapping at an address of the kernel's choice, or in the place of one that `managed` made just
    // before for it; nothing else lies there.
    let start = unsafe {
        libc::mmap(
            at,
            length as usize,
            prot,
            flags,
            file,
            offset as libc::off_t,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(Fault::from(io::Error::last_os_error()));
    }
    Ok(Managed {
        address: start as u64,
        length,
    })
}

fn initialize_block(flags: u64) -> Block {
    Block::new(layout::uvm_initialize::SIZE).with64(layout::uvm_initialize::FLAGS, flags)
}

/// An address space of a GPU, registered with a UVM file.
#[derive(Clone, Copy, Debug)]
pub struct UvmSpace {
    /// Its handle.
    pub vaspace: u32,
    /// The GPU.
    pub uuid: [u8; 16],
}

/// Managed memory; unmapped when dropped.
#[derive(Debug)]
pub struct Managed {
    /// Where it lies, for the processor and for the GPU.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody was given a reference into it.
        unsafe { libc::munmap(self.address as *mut libc::c_void, self.length as usize) };
    }
}
