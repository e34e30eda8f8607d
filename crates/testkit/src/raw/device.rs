//! A device of a client: its memory, and what it says about it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rm::{class, ctrl, layout, nr};

use super::{Answer, Block, Client, File, checked, params_of, request};

/// `NV_DEVICE_ALLOCATION_VAMODE_MULTIPLE_VASPACES`.
const MULTIPLE_VASPACES: u32 = 2;

/// The page size that an allocation asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Left to the driver: 64 KiB, or 2 MiB from 2 MiB on.
    Default,
    /// 2 MiB.
    Huge,
    /// 512 MiB.
    Huge512M,
}

impl Pages {
    /// Bytes of a page, for a request smaller than 2 MiB.
    pub fn size(self) -> u64 {
        match self {
            Pages::Default => 64 << 10,
            Pages::Huge => 2 << 20,
            Pages::Huge512M => 512 << 20,
        }
    }

    /// The two attribute words (`NVOS32_ATTR_PAGE_SIZE_HUGE`, `NVOS32_ATTR2_PAGE_SIZE_HUGE_512MB`).
    fn attributes(self) -> (u32, u32) {
        match self {
            Pages::Default => (0, 0),
            Pages::Huge => (3 << 23, 0),
            Pages::Huge512M => (3 << 23, 2 << 20),
        }
    }
}

/// What `RM_VID_HEAP_CONTROL` says, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VidHeap {
    /// All memory.
    pub total: u64,
    /// Free memory.
    pub free: u64,
    /// The largest free block, where the function asks for it.
    pub largest: u64,
}

/// A device and its subdevice, as objects of one client.
#[derive(Debug)]
pub struct Device {
    /// Handle of the device.
    pub device: u32,
    /// Handle of the subdevice.
    pub subdevice: u32,
    /// What an `NV01_DEVICE_0` names it by.
    pub instance: u32,
    /// Its unique id.
    pub uuid: [u8; 16],
    file: OwnedFd,
}

impl Device {
    /// Flags of pinned pages, as CUDA has them on an H200 (driver 580.159): `NVOS02_FLAGS_PHYSICALITY_NONCONTIGUOUS`,
    /// `COHERENCY_CACHED` and `MAPPING_NO_MAP`, in the host's memory.
    pub const PINNED: u32 = 0x4000_1010;

    pub(super) fn open(client: &Client, gpu_id: u32) -> Answer<Device> {
        let file = client.node().open(File::Gpu(client.minor_of(gpu_id)?))?;
        let mut tie = Block::new(layout::register_fd::SIZE).with32(
            layout::register_fd::CTL_FD,
            client.file().as_raw_fd() as u32,
        );
        client
            .node()
            .ioctl(file.as_fd(), request(nr::REGISTER_FD, tie.len()), &mut tie)?;
        let mut info = Block::new(32).with32(0, gpu_id);
        client.control(client.root(), ctrl::NV0000_GPU_GET_ID_INFO_V2, &mut info)?;
        let instance = info.u32(8);
        let device = client.alloc(
            client.root(),
            class::NV01_DEVICE_0,
            Device::params(client, instance),
        )?;
        let params = Block::new(layout::subdevice_alloc::SIZE).with32(0, info.u32(12));
        let subdevice = client.alloc(device, class::NV20_SUBDEVICE_0, params)?;
        /// Ask for the id as bytes, not as text.
        const BINARY: u32 = 2;
        let mut id = Block::new(268).with32(4, BINARY);
        client.control(subdevice, ctrl::NV2080_GPU_GET_GID_INFO, &mut id)?;
        Ok(Device {
            device,
            subdevice,
            instance,
            uuid: id.bytes(12),
            file,
        })
    }

    /// Its device file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Pins pages of this process as memory of this device, under a handle of the caller's choice (`RM_ALLOC_MEMORY`).
    ///
    /// # Errors
    /// The driver refuses.
    pub fn pin(&self, client: &Client, handle: u32, address: u64, length: u64) -> Answer {
        let mut block = self.pin_block(client, address, length);
        block.put(layout::nvos02::H_OBJECT_NEW, &handle.to_le_bytes());
        let number = request(nr::RM_ALLOC_MEMORY, block.len());
        client.node().ioctl(self.file(), number, &mut block)?;
        checked(block.u32(layout::nvos02::STATUS))
    }

    /// The block of [`Device::pin`], without a handle. The driver takes it on a device file only, and with flags that ask for
    /// no mapping.
    pub fn pin_block(&self, client: &Client, address: u64, length: u64) -> Block {
        use layout::{nvos02 as l, nvos02_with_fd as with_fd};
        Block::new(with_fd::SIZE)
            .with32(l::H_ROOT, client.root())
            .with32(l::H_OBJECT_PARENT, self.device)
            .with32(l::H_CLASS, class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR)
            .with32(l::FLAGS, Device::PINNED)
            .with64(l::P_MEMORY, address)
            .with64(l::LIMIT, length - 1)
            .with32(with_fd::FD, u32::MAX)
    }

    /// Allocation parameters of a device that shares nobody's address space.
    pub fn params(client: &Client, instance: u32) -> Block {
        use layout::device_alloc as l;
        Block::new(l::SIZE)
            .with32(l::DEVICE_ID, instance)
            .with32(l::H_CLIENT_SHARE, client.root())
            .with32(l::VA_MODE, MULTIPLE_VASPACES)
    }

    /// Allocation parameters of device memory with the driver's choice of pages.
    pub fn memory(client: &Client, size: u64) -> Block {
        memory_params(client, size, Pages::Default)
    }

    /// Allocates device memory; gives its handle.
    ///
    /// # Errors
    /// [`super::Fault::NO_MEMORY`] where there is none left; the driver refuses.
    pub fn alloc(&self, client: &Client, size: u64, pages: Pages) -> Answer<u32> {
        self.alloc_as(client, client.fresh(), size, pages)
    }

    /// As [`Device::alloc`] with a handle of the caller's choice; 0: the driver chooses.
    ///
    /// # Errors
    /// As [`Device::alloc`].
    pub fn alloc_as(&self, client: &Client, handle: u32, size: u64, pages: Pages) -> Answer<u32> {
        client.alloc_as(
            self.device,
            handle,
            class::NV01_MEMORY_LOCAL_USER,
            memory_params(client, size, pages),
        )
    }

    /// Allocates device memory the older way, through `RM_VID_HEAP_CONTROL`.
    ///
    /// # Errors
    /// As [`Device::alloc`].
    pub fn heap_alloc(&self, client: &Client, size: u64) -> Answer<u32> {
        use layout::{nvos32 as l, nvos32_alloc_size as a};
        const ALLOC_SIZE: u32 = 2;
        let mut block = self
            .heap_block(client, ALLOC_SIZE)
            .with32(a::OWNER, client.root())
            .with32(a::H_MEMORY, client.fresh())
            .with64(a::SIZE_FIELD, size);
        client.escape(nr::RM_VID_HEAP_CONTROL, &mut block)?;
        checked(block.u32(l::STATUS))?;
        Ok(block.u32(a::H_MEMORY))
    }

    /// Asks `RM_VID_HEAP_CONTROL` about memory.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn heap_info(&self, client: &Client) -> Answer<VidHeap> {
        use layout::{nvos32 as l, nvos32_info as i};
        const INFO: u32 = 5;
        let mut block = self.heap_block(client, INFO);
        client.escape(nr::RM_VID_HEAP_CONTROL, &mut block)?;
        checked(block.u32(l::STATUS))?;
        Ok(VidHeap {
            total: block.u64(l::TOTAL),
            free: block.u64(l::FREE),
            largest: block.u64(i::SIZE_FIELD),
        })
    }

    fn heap_block(&self, client: &Client, function: u32) -> Block {
        use layout::nvos32 as l;
        Block::new(l::SIZE)
            .with32(l::H_ROOT, client.root())
            .with32(l::H_OBJECT_PARENT, self.device)
            .with32(l::FUNCTION, function)
    }

    /// Frame-buffer information in bytes, by index.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn fb_info(&self, client: &Client, indices: &[u32]) -> Answer<Vec<u64>> {
        use layout::{fb_info as l, fb_info_entry as e};
        let at = |i: usize| l::FB_INFO_LIST + i * e::SIZE;
        let entry = client.node().abi()?.control(ctrl::NV2080_FB_GET_INFO_V2);
        let mut block = Block::new(entry.map_or(0, |entry| entry.size as usize))
            .with32(l::FB_INFO_LIST_SIZE, indices.len() as u32);
        for (i, index) in indices.iter().enumerate() {
            block.put(at(i) + e::INDEX, &index.to_le_bytes());
        }
        client.control(self.subdevice, ctrl::NV2080_FB_GET_INFO_V2, &mut block)?;
        Ok((0..indices.len())
            .map(|i| u64::from(block.u32(at(i) + e::DATA)) << 10)
            .collect())
    }

    /// The same by the older control, whose list stands behind a pointer.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn fb_info_v1(&self, client: &Client, indices: &[u32]) -> Answer<Vec<u64>> {
        use layout::{fb_info_entry as e, fb_info_v1 as l};
        let mut list = Block::new(indices.len() * e::SIZE);
        for (i, index) in indices.iter().enumerate() {
            list.put(i * e::SIZE + e::INDEX, &index.to_le_bytes());
        }
        let mut block = Block::new(l::SIZE)
            .with32(l::FB_INFO_LIST_SIZE, indices.len() as u32)
            .with64(l::FB_INFO_LIST, list.address());
        client.control(self.subdevice, ctrl::NV2080_FB_GET_INFO, &mut block)?;
        Ok((0..indices.len())
            .map(|i| u64::from(list.u32(i * e::SIZE + e::DATA)) << 10)
            .collect())
    }

    /// Regions of the frame buffer: how many are told, and (base, limit) of each that the block has room for.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn fb_regions(&self, client: &Client) -> Answer<(u32, Vec<(u64, u64)>)> {
        /// count@0, then entries from here on, base@0 and limit@8 in each; their size goes with the branch.
        const FIRST: usize = 8;
        const ROOM: usize = 16;
        let entry = client
            .node()
            .abi()?
            .control(ctrl::NV2080_FB_GET_FB_REGION_INFO);
        let mut block = Block::new(entry.map_or(0, |entry| entry.size as usize));
        client.control(
            self.subdevice,
            ctrl::NV2080_FB_GET_FB_REGION_INFO,
            &mut block,
        )?;
        let size = (block.len() - FIRST) / ROOM;
        let regions = (0..ROOM).map(|i| FIRST + i * size);
        let regions = regions.map(|at| (block.u64(at), block.u64(at + 8)));
        Ok((block.u32(0), regions.collect()))
    }

    /// Bytes that the client is told are free.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn free_bytes(&self, client: &Client) -> Answer<u64> {
        const HEAP_FREE: u32 = 0x16;
        Ok(self.fb_info(client, &[HEAP_FREE])?[0])
    }

    /// What the driver says a process holds on this device through the resource manager, in bytes.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn memory_of(&self, client: &Client, pid: u32) -> Answer<u64> {
        use layout::{pid_info as l, pid_info_entry as e};
        let at = |field: usize| l::PID_INFO_LIST + field;
        let mut block = Block::new(l::SIZE)
            .with32(l::PID_INFO_LIST_COUNT, 1)
            .with32(at(e::PID), pid);
        client.control(self.subdevice, ctrl::NV2080_GPU_GET_PID_INFO, &mut block)?;
        if block.u32(at(e::RESULT)) != 0 {
            return Ok(0);
        }
        Ok(block.u64(at(e::MEM_PRIVATE)) + block.u64(at(e::MEM_SHARED_OWNED)))
    }
}

/// Parameters of an allocation of device memory.
fn memory_params(client: &Client, size: u64, pages: Pages) -> Block {
    use layout::memory_allocation as l;
    let (attr, attr2) = pages.attributes();
    params_of(class::NV01_MEMORY_LOCAL_USER)
        .with32(l::OWNER, client.root())
        .with32(l::ATTR, attr)
        .with32(l::ATTR2, attr2)
        .with64(l::SIZE_FIELD, size)
}
