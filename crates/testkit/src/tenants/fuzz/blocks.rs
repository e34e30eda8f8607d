//! Blocks with structure: what the tables say a field is decides what is put there.

use rm::{Class, Control, Count, Foreign, Kind, Names, class, layout};

use super::thread::Thread;
use crate::raw::Block;

/// Words of a block that chance touches at most, so that a large one costs no more than a small one.
const TOUCHED: usize = 48;

impl Thread {
    /// A word that means something somewhere.
    pub(super) fn word(&mut self) -> u32 {
        match self.random.below(12) {
            0 => self.random.next() as u32,
            1 => self.random.edge() as u32,
            2 | 3 => self.client(),
            4..=6 => self.object(),
            7 => self.foreign(),
            8 => self.number(),
            9 => self.page(),
            _ => self.random.below(20) as u32,
        }
    }

    /// A client: of this thread most of the time, else of a neighbour, or nobody.
    pub(super) fn client(&mut self) -> u32 {
        match self.random.below(16) {
            0 => 0,
            1 => self.foreign(),
            2 => self.random.next() as u32,
            3 => self.shared.seen(&mut self.random),
            _ => self
                .random
                .any(&self.clients)
                .map_or(0, |client| client.handle),
        }
    }

    /// An object of this thread, or what could be taken for one.
    pub(super) fn object(&mut self) -> u32 {
        match self.random.below(16) {
            0 => 0,
            1 => self.client(),
            2 => self.foreign(),
            3 => self.shared.seen(&mut self.random),
            _ => self
                .random
                .any(&self.objects)
                .map_or(0, |object| object.handle),
        }
    }

    /// A client, an object of it, and the file it hangs on: a call that gets far.
    pub(super) fn pair(&mut self) -> (u32, u32) {
        match self.random.any(&self.objects) {
            Some(object) if !self.random.once_in(8) => (object.client, object.handle),
            _ => (self.client(), self.object()),
        }
    }

    /// As [`Thread::pair`] of a sort.
    pub(super) fn pair_of(&mut self, kind: Kind) -> (u32, u32) {
        let fitting: Vec<(u32, u32)> = self
            .objects
            .iter()
            .filter(|object| object.kind == kind)
            .map(|object| (object.client, object.handle))
            .collect();
        match self.random.any(&fitting) {
            Some(&pair) if !self.random.once_in(8) => pair,
            _ => self.pair(),
        }
    }

    fn foreign(&mut self) -> u32 {
        let n = self.neighbour;
        let near = self.random.below(4) as u32;
        self.random
            .pick(&[n.client, n.channel, n.memory, n.client.wrapping_add(near)])
    }

    /// A descriptor's number.
    pub(super) fn number(&mut self) -> u32 {
        use std::os::fd::AsRawFd;
        match self.random.below(8) {
            0 => u32::MAX,
            1 => self.random.below(64) as u32,
            2 => self.random.next() as u32,
            _ => self
                .random
                .any(&self.files)
                .map_or(0, |file| file.fd.as_raw_fd() as u32),
        }
    }

    /// A length in bytes.
    pub(super) fn length(&mut self) -> u64 {
        const USUAL: [u64; 6] = [1 << 12, 1 << 16, 1 << 20, 1 << 21, 3 << 20, 1 << 26];
        match self.random.below(8) {
            0 => self.random.edge(),
            1 => self.random.next() >> self.random.below(64),
            _ => self.random.pick(&USUAL) * (1 + self.random.below(4) as u64),
        }
    }

    /// A half of an address, so that two in a row may make one.
    fn page(&mut self) -> u32 {
        self.arena.pointer(&mut self.random, 64) as u32
    }

    /// Zeroes with some words in them: none, few, or many.
    pub(super) fn wild(&mut self, len: usize) -> Block {
        let mut block = Block::new(len);
        let words = len / 4;
        let touched = match self.random.below(4) {
            0 | 1 => 0,
            2 => words.min(3),
            _ => words.min(TOUCHED),
        };
        for _ in 0..touched {
            let near = if self.random.once_in(4) {
                words
            } else {
                touched
            };
            let at = 4 * self.random.below(near);
            let word = self.word();
            block.put(at, &word.to_le_bytes());
        }
        block
    }

    /// Fields that can name others, with names in them.
    pub(super) fn name(&mut self, mut block: Block, foreign: &[Foreign]) -> Block {
        for field in foreign {
            let at = usize::from(field.offset);
            if at + 4 > block.len() || self.random.once_in(8) {
                continue;
            }
            let client = self.client();
            block.put(at, &client.to_le_bytes());
            match field.names {
                Names::Client => {}
                Names::ClientArray { count, .. } if usize::from(count) + 4 > block.len() => {}
                Names::ClientArray { count, .. } => {
                    let many = self.random.pick(&[0, 1, 2, 63, 64, 65, 128, u32::MAX]);
                    block.put(usize::from(count), &many.to_le_bytes());
                }
                // SAFETY: getpid takes nothing and cannot fail.
                Names::Process => block.put(at, &unsafe { libc::getpid() }.to_le_bytes()),
            }
        }
        block
    }

    /// Parameters of an object of this class.
    pub(super) fn class_params(&mut self, entry: &Class) -> Block {
        use layout::{
            channel_alloc as c, channel_group_alloc as g, device_alloc as d, memory_allocation as m,
        };
        let block = self.wild(usize::from(entry.size));
        let block = self.name(block, entry.foreign);
        let space = self.pair_of(Kind::VaSpace).1;
        let engine = self.random.pick(&[1, 1, 1, 9, 10, 0, 0x30]);
        match entry.kind {
            Kind::Memory if block.len() > m::SIZE_FIELD + 8 => self.memory_params(block),
            Kind::Device if block.len() >= d::SIZE => {
                let instance = u32::from(self.random.once_in(16));
                block.with32(d::DEVICE_ID, instance)
            }
            Kind::Subdevice if block.len() >= 4 => block.with32(0, 0),
            Kind::ChannelGroup if block.len() >= g::SIZE => block
                .with32(g::H_VA_SPACE, space)
                .with32(g::ENGINE_TYPE, engine),
            Kind::Channel if block.len() > c::ENGINE_TYPE + 4 => block
                // In a group the driver wants none.
                .with32(
                    c::H_VA_SPACE,
                    if self.random.once_in(2) { space } else { 0 },
                )
                .with32(c::ENGINE_TYPE, engine),
            _ => block,
        }
    }

    fn memory_params(&mut self, block: Block) -> Block {
        use layout::memory_allocation as m;
        let (size, owner) = (self.length(), self.client());
        // Page size, location; alone and together.
        let attr = self.random.pick(&[0, 0, 0, 3 << 23, 1 << 25, 3 << 25]);
        let attr2 = self.random.pick(&[0, 0, 0, 1 << 20, 2 << 20, 3 << 20]);
        let flags = self
            .random
            .pick(&[0, 0, 0, 0x0008_0000, 0x0001_c101, u32::MAX]);
        let block = block.with32(m::OWNER, owner).with64(m::SIZE_FIELD, size);
        if self.random.once_in(6) {
            return block;
        }
        block
            .with32(m::ATTR, attr)
            .with32(m::ATTR2, attr2)
            .with32(m::FLAGS, flags)
    }

    /// Parameters of a control.
    pub(super) fn control_params(&mut self, entry: &Control, len: usize) -> Block {
        let block = self.wild(len);
        let mut block = self.name(block, entry.foreign);
        if let Some(at) = entry.fd.map(usize::from)
            && at + 4 <= len
            && !self.random.once_in(6)
        {
            let number = self.number();
            block.put(at, &number.to_le_bytes());
        }
        for pointer in entry.pointers {
            let at = usize::from(pointer.offset);
            if at + 8 > len || self.random.once_in(6) {
                continue;
            }
            let most = pointer.max / u32::from(pointer.element).max(1);
            let count = self
                .random
                .pick(&[0, 1, 2, 7, most, most.wrapping_add(1), u32::MAX]);
            if let Count::Field(field) | Count::Square(field) = pointer.count
                && usize::from(field) + 4 <= len
            {
                block.put(usize::from(field), &count.to_le_bytes());
            }
            let bytes = (count as usize).min(4096) * usize::from(pointer.element);
            let to = self.arena.pointer(&mut self.random, bytes.min(1 << 15));
            block.put(at, &to.to_le_bytes());
        }
        if entry.cmd == rm::ctrl::NV0000_CLIENT_GET_HANDLE_INFO && len >= layout::handle_info::SIZE
        {
            let object = self.object();
            block.put(layout::handle_info::H_OBJECT, &object.to_le_bytes());
        }
        block
    }

    /// An escape's own block: what its first words are, by number.
    pub(super) fn escape_block(&mut self, nr: u8, len: usize) -> Block {
        let mut block = self.wild(len);
        if let Some(entry) = self.abi.escape(nr) {
            block = self.name(block, entry.foreign);
            if let Some(at) = entry.fd.map(usize::from).filter(|at| at + 4 <= len) {
                let number = self.number();
                block.put(at, &number.to_le_bytes());
            }
        }
        // Nearly every block starts with a client and what it is about.
        if len >= 12 && !self.random.once_in(4) {
            let (client, object) = self.pair();
            let (device, memory) = (self.pair_of(Kind::Device).1, self.pair_of(Kind::Memory).1);
            block.put(0, &client.to_le_bytes());
            block.put(4, &self.random.pick(&[device, object]).to_le_bytes());
            block.put(8, &self.random.pick(&[memory, object]).to_le_bytes());
        }
        for at in (16..len.saturating_sub(7)).step_by(8).take(6) {
            match self.random.below(6) {
                0 => block.put(at, &self.length().to_le_bytes()),
                1 => {
                    let to = self.arena.pointer(&mut self.random, 64);
                    block.put(at, &to.to_le_bytes());
                }
                _ => {}
            }
        }
        block
    }

    /// A heap call: functions that allocate, free and ask, and some that must not get through.
    pub(super) fn heap_block(&mut self) -> Block {
        use layout::{nvos32 as l, nvos32_alloc_size as a, nvos32_free as f};
        const FUNCTIONS: [u32; 12] = [2, 2, 2, 3, 3, 5, 6, 14, 15, 16, 18, 27];
        let block = self.wild(l::SIZE);
        let (client, device) = self.pair_of(Kind::Device);
        let function = self.random.pick(&FUNCTIONS);
        let block = block
            .with32(l::H_ROOT, client)
            .with32(l::H_OBJECT_PARENT, device)
            .with32(l::FUNCTION, function);
        let (memory, size) = (self.pair_of(Kind::Memory).1, self.length());
        let handle = self.handle();
        if function == 3 {
            return block.with32(f::H_MEMORY, memory);
        }
        block
            .with32(a::OWNER, client)
            .with32(a::H_MEMORY, handle)
            .with64(a::SIZE_FIELD, size)
    }

    /// A UVM call's block: addresses and lengths of this thread's ranges, the card, a client and its memory.
    pub(super) fn uvm_block(&mut self, entry: &rm::UvmCall) -> Block {
        let len = usize::from(entry.size);
        let mut block = self.wild(len);
        if len >= 24 {
            let (base, length) = self.range();
            block.put(0, &base.to_le_bytes());
            block.put(8, &length.to_le_bytes());
        }
        // The card's name stands at one of these places in every call that has one.
        const UUID_AT: [usize; 4] = [0, 8, 16, 24];
        let at = self.random.pick(&UUID_AT);
        if at + 16 <= len && !self.random.once_in(3) {
            block.put(at, &self.uuid);
        }
        block = self.name(block, entry.foreign);
        self.known_uvm(entry.request, block)
    }

    /// What a call that takes or gives back memory needs to get far.
    fn known_uvm(&mut self, request: u32, block: Block) -> Block {
        use layout::{uvm_map_external as m, uvm_register_gpu as g, uvm_register_gpu_vaspace as v};
        if self.random.once_in(5) {
            return block;
        }
        let number = self.number();
        match request {
            rm::uvm::INITIALIZE => {
                let flags = self.random.pick(&[0, 0, 1, 1, 2, 3, u64::MAX]);
                block.with64(0, flags)
            }
            rm::uvm::REGISTER_GPU => block
                .with(g::GPU_UUID, &self.uuid)
                .with32(g::RM_CTRL_FD, u32::MAX),
            rm::uvm::REGISTER_GPU_VASPACE => {
                let (client, space) = self.pair_of(Kind::VaSpace);
                block
                    .with(v::GPU_UUID, &self.uuid)
                    .with32(v::RM_CTRL_FD, number)
                    .with32(v::H_CLIENT, client)
                    .with32(v::H_VA_SPACE, space)
            }
            rm::uvm::MAP_EXTERNAL_ALLOCATION => {
                let (client, memory) = self.pair_of(Kind::Memory);
                let count = self
                    .random
                    .pick(&[1, 1, 1, 1, 0, 2, 255, 256, 257, u64::MAX]);
                let behind = self.abi.layout().uvm_map_external;
                block
                    .with(m::PER_GPU_ATTRIBUTES, &self.uuid)
                    .with32(m::PER_GPU_ATTRIBUTES + 16, 1)
                    .with64(behind.gpu_attributes_count, count)
                    .with32(behind.rm_ctrl_fd, number)
                    .with32(behind.h_client, client)
                    .with32(behind.h_memory, memory)
            }
            rm::uvm::UNMAP_EXTERNAL => block.with(layout::uvm_unmap_external::GPU_UUID, &self.uuid),
            _ => block,
        }
    }

    /// The class that a new object is most often of: those that take memory or hold others.
    pub(super) fn any_class(&mut self) -> &'static Class {
        const OFTEN: [u32; 10] = [
            class::NV01_MEMORY_LOCAL_USER,
            class::NV01_MEMORY_LOCAL_USER,
            class::NV01_MEMORY_LOCAL_USER,
            class::NV01_MEMORY_SYSTEM,
            class::NV50_MEMORY_VIRTUAL,
            class::NV01_DEVICE_0,
            class::NV20_SUBDEVICE_0,
            class::FERMI_VASPACE_A,
            class::KEPLER_CHANNEL_GROUP_A,
            class::HOPPER_CHANNEL_GPFIFO_A,
        ];
        if !self.random.once_in(3)
            && let Some(entry) = self.abi.class(self.random.pick(&OFTEN))
        {
            return entry;
        }
        let count = self.abi.classes().count();
        let at = self.random.below(count);
        self.abi.classes().nth(at).expect("below the count")
    }
}
