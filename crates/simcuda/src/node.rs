//! What `cuInit` sets up: the client, the UVM file and the objects of each GPU.
//!
//! The calls and their order are those of the real library (recorded on an H200, driver 580.159). Most answers matter
//! to nobody here; the calls are made so that a guard and the simulated resource manager meet what they would meet on
//! the card, with blocks of the right size and handles that exist.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use cuda::status::CuResult;
use rm::{layout, nr, uvm};
use simgpu::client::Node as DeviceFile;

use crate::block::Block;
use crate::gateway;
use crate::resource_manager::{Answer, RmClient, Uvm, escape};

/// First handle of the driver API's objects; the next ones count up.
const FIRST_HANDLE: u32 = 0x5c00_0001;

/// The node as this process has opened it.
pub struct Node {
    /// The process's client.
    pub client: RmClient,
    /// The UVM file.
    pub uvm: Uvm,
    /// All GPUs of the node that this process may use.
    pub gpus: Vec<Gpu>,
}

/// One GPU and this process's objects on it.
pub struct Gpu {
    /// What the control file says about it.
    pub card: Card,
    /// Product name.
    pub name: String,
    /// Unique id.
    pub uuid: [u8; 16],
    /// Device object.
    pub device: u32,
    /// Subdevice object, below the device.
    pub subdevice: u32,
    /// Address space of the contexts.
    pub vaspace: u32,
    /// The object that remembers memory for other devices' use (third-party peer to peer).
    pub third_party: u32,
    /// A file of the device.
    pub file: OwnedFd,
    /// Files that only have to stay open: the subdevice's, and that of an event.
    _kept: Vec<OwnedFd>,
    /// Memory that can be given out in all, KiB, as the driver said at the start.
    pub heap_kib: u64,
    /// Whether the UVM file knows the address space, which the first context brings about.
    pub vaspace_registered: Mutex<bool>,
}

/// One entry of the list of cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// The driver's id.
    pub gpu_id: u32,
    /// Number of its device file.
    pub minor: u32,
    /// PCI domain.
    pub domain: u32,
    /// PCI bus.
    pub bus: u8,
    /// PCI slot.
    pub slot: u8,
    /// PCI vendor.
    pub vendor: u16,
    /// PCI device.
    pub device: u16,
}

/// Asks for the cards of the node, in the order of the driver.
pub fn cards(file: &impl AsFd) -> Answer<Vec<Card>> {
    use layout::card_info as l;
    const MOST: usize = 32;
    let mut block = Block::new(MOST * l::SIZE);
    escape(file.as_fd(), nr::CARD_INFO, &mut block)?;
    let entry = |index: usize| {
        let at = index * l::SIZE;
        let ids = block.get32(at + l::VENDOR_ID);
        (block.get(at + l::VALID, 1)[0] != 0).then(|| Card {
            gpu_id: block.get32(at + l::GPU_ID),
            minor: block.get32(at + l::MINOR_NUMBER),
            domain: block.get32(at + l::DOMAIN),
            bus: block.get(at + l::BUS, 1)[0],
            slot: block.get(at + l::SLOT, 1)[0],
            vendor: ids as u16,
            device: (ids >> 16) as u16,
        })
    };
    Ok((0..MOST).filter_map(entry).collect())
}

/// The ids in an answer to one of the controls that list GPUs.
fn listed(block: &Block) -> Vec<u32> {
    (0..32)
        .map(|index| block.get32(index * 4))
        .take_while(|id| *id != u32::MAX)
        .collect()
}

/// Opens a control file and makes the two calls that every client starts with.
fn control_file() -> Answer<(OwnedFd, Vec<Card>)> {
    let file = gateway::open(DeviceFile::Control)?;
    escape(
        file.as_fd(),
        nr::SYS_PARAMS,
        &mut Block::new(layout::sys_params::SIZE),
    )?;
    let cards = cards(&file)?;
    Ok((file, cards))
}

/// Asks for the driver's version, with a client made for that alone.
fn ask_version() -> Answer<()> {
    let (file, _) = control_file()?;
    let client = RmClient::new(file, FIRST_HANDLE, 1)?;
    let mut texts: Vec<Block> = (0..3).map(|_| Block::new(256)).collect();
    let mut block = Block::new(40).with32(0, 256);
    for (index, text) in texts.iter_mut().enumerate() {
        block.put(8 + 8 * index, &text.address().to_ne_bytes());
    }
    let _ = client.control(client.root(), 0x101, &mut block);
    client.free(client.root(), client.root())
}

impl Node {
    /// Opens everything.
    pub fn open() -> Result<Node, CuResult> {
        ask_version()?;
        let (file, cards) = control_file()?;
        let client = RmClient::new(file, FIRST_HANDLE, 1)?;
        let root = client.root();
        // Who else may have this client's objects: its own user's processes (sharing by IPC handles).
        for policy in [
            SharePolicy {
                action: REVOKE,
                kind: 1,
            },
            SharePolicy {
                action: 0,
                kind: OS_SECURITY_TOKEN,
            },
        ] {
            let mut block = Block::new(12)
                .with32(4, 1)
                .with(8, &policy.kind.to_ne_bytes())
                .with(10, &[policy.action]);
            let _ = client.control(root, 0xd04, &mut block);
        }
        let session = client.alloc(
            root,
            0xcb33,
            Some(Block::new(16).with32(0, root).with32(4, u32::MAX)),
        );
        client.tell(root, 0x1f0, 4)?;
        let uvm = Uvm::open()?;
        let block = Block::new(layout::uvm_pageable_mem_access::SIZE);
        uvm.call(
            uvm::PAGEABLE_MEM_ACCESS,
            block,
            layout::uvm_pageable_mem_access::RM_STATUS,
        )?;
        let mut probed = Block::new(384).with(0, &[0xff; 384]);
        client.control(root, 0x214, &mut probed)?;
        let probed = listed(&probed);
        client.tell(root, 0xa04, 2244)?;
        let mut attach = Block::new(132).with(0, &[0xff; 128]);
        for (index, id) in probed.iter().take(32).enumerate() {
            attach.put(index * 4, &id.to_ne_bytes());
        }
        let _ = client.control(root, 0x215, &mut attach);
        if let Ok(session) = session {
            client.tell(session, 0xcb33_0101, 6)?;
        }
        client.tell(root, 0x288, 3076)?;
        let mut node = Node {
            client,
            uvm,
            gpus: Vec::new(),
        };
        let present: Vec<Card> = probed
            .iter()
            .filter_map(|id| cards.iter().find(|card| card.gpu_id == *id))
            .copied()
            .collect();
        for card in present {
            let gpu = node.open_gpu(card)?;
            node.gpus.push(gpu);
        }
        node.uvm.create_range_group()?;
        for gpu in &mut node.gpus {
            gpu.finish(&node.client)?;
        }
        Ok(node)
    }

    fn open_gpu(&self, card: Card) -> Answer<Gpu> {
        let client = &self.client;
        let root = client.root();
        let ask_id = |command, size| -> Answer<()> {
            let mut block = Block::new(size).with32(0, card.gpu_id);
            client.control(root, command, &mut block).or(Ok(()))
        };
        ask_id(0x205, 32)?;
        // The real library frees the handle that it is about to use; nothing has it yet.
        let _ = client.free(root, client.upcoming());
        client.tell(root, 0x201, 128)?;
        ask_id(0x202, 40)?;
        let file = client.open_device(card.minor)?;
        let _ = escape(
            file.as_fd(),
            nr::NUMA_INFO,
            &mut Block::new(layout::numa_info::SIZE),
        );
        // GET_ID_INFO_V2: gpuId@0 flags@4 deviceInstance@8
        let mut identity = Block::new(32).with32(0, card.gpu_id);
        client.control(root, 0x205, &mut identity)?;
        let parameters = Block::new(layout::device_alloc::SIZE)
            .with32(layout::device_alloc::DEVICE_ID, identity.get32(8))
            .with32(layout::device_alloc::H_CLIENT_SHARE, root);
        let device = client.alloc(root, 0x80, Some(parameters))?;
        for (command, size) in [(0x80_1402, 3), (0x80_0292, 804), (0x80_0280, 4)] {
            client.tell(device, command, size)?;
        }
        ask_id(0x202, 40)?;
        client.tell(root, 0x201, 128)?;
        ask_id(0x202, 40)?;
        let second = client.open_device(card.minor)?;
        let subdevice = client.alloc(
            device,
            0x2080,
            Some(Block::new(layout::subdevice_alloc::SIZE)),
        )?;
        let diagnostic = client.alloc(subdevice, 0x2081, Some(Block::new(4)));
        self.ask_about_memory(subdevice)?;
        self.ask_about_memory(subdevice)?;
        let mut gid = Block::new(268).with32(4, GID_BINARY);
        client.control(subdevice, 0x2080_014a, &mut gid)?;
        let uuid = gid.get(12, 16).try_into().unwrap_or_default();
        client.tell(device, 0x80_0289, 8)?;
        if let Ok(diagnostic) = diagnostic {
            client.tell(diagnostic, 0x2081_0108, 992)?;
        }
        self.ask_about_memory(subdevice)?;
        for (command, size) in [
            (0x2080_0102, 564),
            (0x2080_1701, 16),
            (0x2080_1823, 420),
            (0x2080_1801, 16),
            (0x2080_1823, 420),
            (0x2080_1803, 200),
            (0x2080_182a, 112),
            (0x2080_012f, 1464),
        ] {
            client.tell(subdevice, command, size)?;
        }
        self.ask_about_memory(subdevice)?;
        for (command, size) in [(0x2080_0170, 340), (0x2080_0119, 4)] {
            client.tell(subdevice, command, size)?;
        }
        client.tell(root, 0x27b, 4)?;
        client.tell(subdevice, 0x2080_01a3, 56)?;
        let event_file = client.open_device(card.minor)?;
        let _ = client.alloc_os_event(event_file.as_fd(), subdevice);
        self.ask_about_graphics(subdevice)?;
        client.tell(device, 0x80_1307, 3)?;
        let heap_kib = self.ask_about_memory(subdevice)?;
        self.map_doorbells(subdevice, card.minor)?;
        client.tell(subdevice, 0x2080_3601, 72)?;
        let vaspace = |flags| {
            Block::new(layout::vaspace_alloc::VA_BASE + 8)
                .with32(layout::vaspace_alloc::FLAGS, flags)
        };
        let contexts = client.alloc(device, 0x90f1, Some(vaspace(0x48)))?;
        client.alloc(device, 0x90f1, Some(vaspace(0)))?;
        self.register(Gpu {
            card,
            name: String::new(),
            uuid,
            device,
            subdevice,
            vaspace: contexts,
            third_party: 0,
            file,
            _kept: vec![second, event_file],
            heap_kib,
            vaspace_registered: Mutex::new(false),
        })
    }

    /// What the library asks of the graphics engine; `0x20801201` carries a list behind a pointer.
    fn ask_about_graphics(&self, subdevice: u32) -> Answer<()> {
        let client = &self.client;
        let mut list = Block::new(8);
        let mut block = Block::new(32).with32(0, 1).with64(8, list.address());
        let _ = client.control(subdevice, 0x2080_1201, &mut block);
        client.tell(subdevice, 0x2080_122a, 24)?;
        for _ in 0..8 {
            client.tell(subdevice, 0x2080_122b, 24)?;
        }
        for (command, size) in [
            (0x2080_1227, 48),
            (0x2080_2a0a, 136),
            (0x2080_1230, 32),
            (0x2080_0195, 260),
            (0x2080_121b, 9240),
            (0x2080_3801, 1928),
        ] {
            client.tell(subdevice, command, size)?;
        }
        Ok(())
    }

    /// The pages that work is announced on, and those of the timer.
    fn map_doorbells(&self, subdevice: u32, minor: u32) -> Answer<()> {
        const DOORBELLS: u32 = 0xc661;
        let client = &self.client;
        let plain = client.alloc(subdevice, DOORBELLS, None)?;
        client.map(subdevice, plain, 0x10000, DeviceFile::Gpu(minor))?;
        let in_bar1 = client.alloc(subdevice, DOORBELLS, Some(Block::new(4).with32(0, 1)))?;
        let mapping = client.map(subdevice, in_bar1, 0x10000, DeviceFile::Gpu(minor))?;
        let _ = client.moved(subdevice, in_bar1, &mapping, mapping.address());
        let faults = client.alloc(subdevice, 0x90e6, None)?;
        client.tell(faults, 0x90e6_0102, 8)?;
        let timer = client.alloc(subdevice, 0xde, Some(Block::new(8)))?;
        client.map(subdevice, timer, 0xa30, DeviceFile::Gpu(minor))?;
        Ok(())
    }

    /// Tells UVM of the GPU and asks for its name.
    fn register(&self, mut gpu: Gpu) -> Answer<Gpu> {
        let client = &self.client;
        client.tell(gpu.subdevice, 0x2080_0111, 64)?;
        let mut name = Block::new(132);
        client.control(gpu.subdevice, 0x2080_0110, &mut name)?;
        let text = name.get(4, 128);
        gpu.name = String::from_utf8_lossy(text.split(|byte| *byte == 0).next().unwrap_or(&[]))
            .into_owned();
        let _ = client.control(
            gpu.subdevice,
            0x2080_014a,
            &mut Block::new(268).with32(4, GID_BINARY),
        );
        for (command, size) in [
            (0x2080_0131, 4),
            (0x2080_8159, 332),
            (0x2080_220c, 0),
            (0x2080_2210, 0),
        ] {
            client.tell(gpu.subdevice, command, size)?;
        }
        client.tell(client.root(), 0x13a, 1352)?;
        for (command, size) in [(0x2080_8162, 1), (0x2080_182b, 28), (0x2080_3002, 13344)] {
            client.tell(gpu.subdevice, command, size)?;
        }
        use layout::uvm_register_gpu as l;
        let block = Block::new(l::SIZE)
            .with(l::GPU_UUID, &gpu.uuid)
            .with32(l::NUMA_NODE_ID, u32::MAX)
            .with32(l::RM_CTRL_FD, u32::MAX);
        self.uvm.call(uvm::REGISTER_GPU, block, l::RM_STATUS)?;
        Ok(gpu)
    }

    /// Reads frame-buffer information of a subdevice: the values (KiB) of `indices`.
    pub fn memory_info<const N: usize>(
        &self,
        subdevice: u32,
        indices: [u32; N],
    ) -> Answer<[u64; N]> {
        memory_info(&self.client, subdevice, indices)
    }

    fn ask_about_memory(&self, subdevice: u32) -> Answer<u64> {
        self.memory_info(subdevice, [fb::RAM_SIZE, fb::HEAP_SIZE, fb::HEAP_FREE])
            .map(|[_, heap, _]| heap)
    }
}

/// Reads frame-buffer information of a subdevice of any client: the values (KiB) of `indices`.
pub fn memory_info<const N: usize>(
    client: &RmClient,
    subdevice: u32,
    indices: [u32; N],
) -> Answer<[u64; N]> {
    use layout::{fb_info, fb_info_entry};
    let at = |index: usize| fb_info::FB_INFO_LIST + index * fb_info_entry::SIZE;
    let mut block = Block::new(at(N)).with32(fb_info::FB_INFO_LIST_SIZE, N as u32);
    for (index, wanted) in indices.iter().enumerate() {
        block.put(at(index) + fb_info_entry::INDEX, &wanted.to_ne_bytes());
    }
    client.control(subdevice, 0x2080_1303, &mut block)?;
    let mut values = [0; N];
    for (index, value) in values.iter_mut().enumerate() {
        *value = u64::from(block.get32(at(index) + fb_info_entry::DATA));
    }
    Ok(values)
}

/// Indices of frame-buffer information; the values are KiB.
pub mod fb {
    /// The whole memory, reserved parts included.
    pub const RAM_SIZE: u32 = 0x07;
    /// What can be allocated when nothing is.
    pub const HEAP_SIZE: u32 = 0x09;
    /// What can be allocated now.
    pub const HEAP_FREE: u32 = 0x16;
}

impl Gpu {
    fn finish(&mut self, client: &RmClient) -> Answer<()> {
        let parameters = Block::new(layout::memory_allocation::TAG + 4)
            .with32(layout::memory_allocation::OWNER, client.root())
            .with32(layout::memory_allocation::FLAGS, 0x8c415)
            .with64(layout::memory_allocation::SIZE_FIELD, 1 << 40);
        client.alloc(self.device, 0x50a0, Some(parameters))?;
        self.third_party =
            client.alloc(self.subdevice, 0x503c, Some(Block::new(4).with32(0, 1)))?;
        let mut link = Block::new(16).with32(0, self.vaspace);
        let _ = client.control(self.third_party, 0x503c_0102, &mut link);
        Ok(())
    }
}

/// Who may duplicate a client's objects (control `0xd04`).
struct SharePolicy {
    action: u8,
    kind: u16,
}

/// Take the right away from that kind of caller.
const REVOKE: u8 = 1;
/// Callers with the same user as the client's.
const OS_SECURITY_TOKEN: u16 = 2;
/// Asks for the id as bytes, not as text.
const GID_BINARY: u32 = 2;
