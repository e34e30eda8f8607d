//! One thread of hostile calls: what it knows, and what it does next.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rm::{Abi, Kind, class, layout, nr, uvm};

use super::arena::Arena;
use super::random::Random;
use super::shared::Shared;
use crate::outside::Neighbour;
use crate::raw::{Answer, Block, Client, File, Node, Pages, Uvm, params_of, request};

/// Addresses that a thread has for managed memory and for ranges of the UVM file.
pub(super) const ADDRESSES: u64 = 32 << 30;
/// More handles than that are forgotten, not freed: they go with their client.
pub(super) const MOST_OBJECTS: usize = 256;
pub(super) const MOST_FILES: usize = 24;
/// After so many calls a thread begins again with what an honest one has.
const AFRESH: usize = 80;

/// A client of this thread, and the file it hangs on.
pub struct Known {
    pub handle: u32,
    pub file: i32,
}

/// An object that the driver made for this thread.
pub struct Object {
    pub client: u32,
    pub handle: u32,
    pub kind: Kind,
}

/// A descriptor.
pub struct Opened {
    pub fd: OwnedFd,
    pub file: Option<File>,
}

/// One thread.
pub struct Thread {
    pub node: Node,
    pub abi: &'static Abi,
    pub random: Random,
    /// Blocks that another thread changes while they are looked at.
    pub arena: Arena,
    /// Blocks that nobody changes: of the call whose swapped parameters end the tenant, as they must.
    pub(super) calm: Arena,
    pub shared: &'static Shared,
    pub neighbour: Neighbour,
    pub uuid: [u8; 16],
    pub clients: Vec<Known>,
    pub objects: Vec<Object>,
    pub files: Vec<Opened>,
    /// Start of this thread's addresses.
    pub(super) addresses: u64,
    /// What was made there: base and length.
    pub(super) ranges: Vec<(u64, u64)>,
    next_handle: u32,
    /// An exported dmabuf stays charged until the tenant ends: nothing tells when it is gone.
    pub(super) may_export_for_good: bool,
}

impl Thread {
    /// A thread that has what an honest one starts with.
    ///
    /// # Errors
    /// There is no room for its addresses.
    pub fn new(
        node: &Node,
        abi: &'static Abi,
        random: Random,
        arena: Arena,
        shared: &'static Shared,
        neighbour: Neighbour,
        may_export_for_good: bool,
    ) -> io::Result<Thread> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let addresses = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                ADDRESSES as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if addresses == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut thread = Thread {
            node: node.clone(),
            abi,
            random,
            arena,
            calm: Arena::new(false)?,
            shared,
            neighbour,
            uuid: [0; 16],
            clients: Vec::new(),
            objects: Vec::new(),
            files: Vec::new(),
            addresses: addresses as u64,
            ranges: Vec::new(),
            next_handle: 0x5d00_0000,
            may_export_for_good,
        };
        // A slice that is full refuses some of it; the calls go on without.
        let _honest = thread.begin();
        Ok(thread)
    }

    /// What an honest program does first.
    pub(super) fn begin(&mut self) -> Answer {
        let client = Client::open(&self.node)?;
        let device = client.first_device()?;
        self.uuid = device.uuid;
        let uvm = Uvm::open(&self.node)?;
        let space = uvm.add_device(&client, &device)?;
        let root = client.root();
        self.made(root, device.device, Kind::Device);
        self.made(root, device.subdevice, Kind::Subdevice);
        self.made(root, space.vaspace, Kind::VaSpace);
        if let Ok(memory) = device.alloc(&client, 1 << 20, Pages::Default) {
            self.made(root, memory, Kind::Memory);
        }
        if let Ok(group) = crate::raw::Channel::group(&client, &device, space.vaspace) {
            self.made(root, group, Kind::ChannelGroup);
        }
        let control = client.file().try_clone_to_owned()?;
        self.clients.push(Known {
            handle: root,
            file: control.as_raw_fd(),
        });
        let files = [
            (control, Some(File::Control)),
            (uvm.file().try_clone_to_owned()?, Some(File::Uvm)),
            (device.file().try_clone_to_owned()?, Some(File::Gpu(0))),
            (self.node.open(File::Gpu(0))?, Some(File::Gpu(0))),
            (self.node.open(File::Control)?, Some(File::Control)),
            (std::fs::File::open("/dev/null")?.into(), None),
        ];
        self.files
            .extend(files.map(|(fd, file)| Opened { fd, file }));
        Ok(())
    }

    pub(super) fn made(&mut self, client: u32, handle: u32, kind: Kind) {
        if self.objects.len() == MOST_OBJECTS {
            let at = self.random.below(MOST_OBJECTS);
            self.objects.swap_remove(at);
        }
        self.shared.saw(handle);
        self.objects.push(Object {
            client,
            handle,
            kind,
        });
    }

    /// A handle for a new object: fresh, one that is taken, or the driver's choice.
    pub(super) fn handle(&mut self) -> u32 {
        match self.random.below(10) {
            0 => 0,
            1 => self.object(),
            2 => self.word(),
            _ => {
                self.next_handle += 1;
                self.next_handle
            }
        }
    }

    /// A range of addresses: one that was made, a part of one, over its end, or a new one.
    pub(super) fn range(&mut self) -> (u64, u64) {
        let length = self.length();
        match (self.random.below(8), self.random.any(&self.ranges).copied()) {
            (0, _) => (self.random.edge(), length),
            (1, Some((base, size))) => (base.wrapping_add(size / 2) & !0xfff, size),
            (2, Some((base, size))) => (base, (size / 2) & !0xfff),
            (3..=6, Some(range)) => range,
            _ => {
                let slot = self.random.below((ADDRESSES >> 28) as usize) as u64;
                let length = length.clamp(1 << 12, 1 << 28).next_multiple_of(1 << 12);
                (self.addresses + (slot << 28), length)
            }
        }
    }

    /// Makes so many calls.
    pub fn run(&mut self, calls: usize) {
        for call in 0..calls {
            if call % AFRESH == AFRESH - 1 {
                // What was closed and freed by then leads to nothing any more.
                let old = self.files.len().saturating_sub(MOST_FILES / 2);
                self.files.drain(..old);
                let _honest = self.begin();
            }
            self.step(true);
        }
    }

    pub(super) fn step(&mut self, may_fork: bool) {
        match self.random.below(100) {
            0..16 => self.control(),
            16..32 => self.alloc(),
            32..42 => self.escape(),
            42..54 => self.uvm(),
            54..58 => self.heap(),
            58..64 => self.duplicate(),
            64..68 => self.map(),
            68..76 => self.free(),
            76..80 => self.export_or_import(),
            80..85 => self.managed(),
            85..92 => self.chain(),
            92..95 => self.juggle_files(),
            95..98 => self.new_client(),
            _ if may_fork && self.random.once_in(4) => self.child(),
            _ => self.control(),
        }
    }

    /// Makes a call on a block in the arena and gives the block as it is afterwards: how it is answered does not matter.
    pub(super) fn call(
        &mut self,
        arena: Arena,
        file: i32,
        request: u32,
        block: &Block,
    ) -> Option<u64> {
        let at = arena.place(&mut self.random, block.len());
        arena.lay(at, block);
        // SAFETY: the number may be of any file, or of none: the call says so then. It is not kept.
        let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(file.max(0)) };
        let answer = self.node.ioctl_at(file, request, at);
        self.shared.count(answer.is_ok());
        answer.ok().map(|_| at)
    }

    /// The file of a client, most of the time; else any.
    pub(super) fn file_of(&mut self, client: u32) -> i32 {
        let its = self.clients.iter().find(|known| known.handle == client);
        let its = its.map(|known| known.file);
        match its {
            Some(file) if !self.random.once_in(16) => file,
            _ => self.any_file(),
        }
    }

    /// A file of a card, if it has one.
    fn device_file(&mut self) -> i32 {
        let mut files = self.files.iter();
        let its = files.find(|opened| matches!(opened.file, Some(File::Gpu(_))));
        its.map_or(0, |opened| opened.fd.as_raw_fd())
    }

    pub(super) fn any_file(&mut self) -> i32 {
        match self.random.any(&self.files) {
            Some(file) => file.fd.as_raw_fd(),
            None => 0,
        }
    }

    pub(super) fn file_on(&mut self, wanted: File) -> i32 {
        let fitting: Vec<i32> = self
            .files
            .iter()
            .filter(|opened| opened.file == Some(wanted))
            .map(|opened| opened.fd.as_raw_fd())
            .collect();
        match self.random.any(&fitting) {
            Some(&file) if !self.random.once_in(32) => file,
            _ => self.any_file(),
        }
    }

    pub(super) fn escape(&mut self) {
        let count = self.abi.escapes().len();
        let at = self.random.below(count);
        let entry = self.abi.escapes().nth(at).expect("below the count");
        let size = match entry.sizes {
            sizes if sizes.is_empty() || self.random.once_in(16) => 4 * self.random.below(256),
            sizes => usize::from(self.random.pick(sizes)),
        };
        if entry.nr == nr::EXPORT_TO_DMABUF_FD && !self.may_export_for_good {
            return;
        }
        let block = self.escape_block(entry.nr, size);
        let client = if size >= 4 { block.u32(0) } else { 0 };
        let file = self.file_of(client);
        // The type byte and the direction mean nothing to the driver.
        let number = if self.random.once_in(8) {
            request(entry.nr, size) ^ (self.random.next() as u32 & 0xc000_ff00)
        } else {
            request(entry.nr, size)
        };
        if entry.nr != nr::RM_ALLOC_MEMORY {
            self.call(self.arena, file, number, &block);
            return;
        }
        if size < layout::nvos02_with_fd::SIZE {
            self.call(self.calm, file, number, &block);
            return;
        }
        let (client, device) = self.pair_of(Kind::Device);
        let handle = self.handle();
        let file = if self.random.once_in(8) {
            self.file_of(client)
        } else {
            self.device_file()
        };
        let class = self.random.pick(&[0x71, 0x71, 0x71, 0x3e, 0x40, 0xf3]);
        let pages = self.calm.pointer(&mut self.random, 1 << 14);
        let limit = self.random.pick(&[0xfff, 0x3fff, 0, u64::MAX]);
        const PINNED: u32 = crate::raw::Device::PINNED;
        let flags = self.random.pick(&[PINNED, PINNED, 0]);
        use layout::nvos02 as l;
        let block = block
            .with32(l::H_ROOT, client)
            .with32(l::H_OBJECT_PARENT, device)
            .with32(l::H_OBJECT_NEW, handle)
            .with32(l::H_CLASS, class)
            .with32(l::FLAGS, flags)
            .with64(l::P_MEMORY, pages & !0xfff)
            .with64(l::LIMIT, limit);
        if let Some(at) = self.call(self.calm, file, number, &block)
            && self.calm.load(at + l::STATUS as u64) == 0
        {
            self.made(client, handle, Kind::Memory);
        }
    }

    pub(super) fn alloc(&mut self) {
        let entry = self.any_class();
        let params = self.class_params(entry);
        let params_at = self.arena.pointer(&mut self.random, params.len());
        self.arena.lay(params_at, &params);
        let (client, parent) = match entry.kind {
            Kind::Client => (0, 0),
            Kind::Device => {
                let client = self.client();
                (client, client)
            }
            Kind::Channel => self.pair_of(Kind::ChannelGroup),
            Kind::Engine => self.pair_of(Kind::Channel),
            _ => self.pair_of(Kind::Device),
        };
        let (handle, long) = (self.handle(), !self.random.once_in(3));
        let (size, status) = if long {
            (layout::nvos64::SIZE, layout::nvos64::STATUS)
        } else {
            (layout::nvos21::SIZE, layout::nvos21::STATUS)
        };
        use layout::nvos64 as l;
        let wild = self.wild(size);
        let mut block = wild
            .with32(l::H_ROOT, client)
            .with32(l::H_OBJECT_PARENT, parent)
            .with32(l::H_OBJECT_NEW, handle)
            .with32(l::H_CLASS, entry.id)
            .with64(l::P_ALLOC_PARMS, params_at);
        if long {
            let rights = match self.random.below(4) {
                0 => self.arena.pointer(&mut self.random, 4),
                _ => 0,
            };
            block = block
                .with64(l::P_RIGHTS_REQUESTED, rights)
                .with32(l::PARAMS_SIZE, params.len() as u32);
        }
        let file = if entry.kind == Kind::Client {
            self.file_on(File::Control)
        } else {
            self.file_of(client)
        };
        let Some(at) = self.call(self.arena, file, request(nr::RM_ALLOC, size), &block) else {
            return;
        };
        if self.arena.load(at + status as u64) != 0 {
            return;
        }
        self.shared.count_made();
        let handle = self.arena.load(at + l::H_OBJECT_NEW as u64);
        if entry.kind == Kind::Client {
            self.shared.saw(handle);
            self.clients.push(Known { handle, file });
        } else {
            self.made(client, handle, entry.kind);
        }
    }

    pub(super) fn control(&mut self) {
        let count = self.abi.controls().len();
        let at = self.random.below(count);
        let entry = self.abi.controls().nth(at).expect("below the count");
        let size = match self.random.below(10) {
            0 => self.random.below(512),
            _ => entry.size as usize,
        };
        let params = self.control_params(entry, size);
        self.send_control(entry.cmd, &params);
    }

    pub(super) fn send_control(&mut self, cmd: u32, params: &Block) -> bool {
        let (client, object) = match cmd >> 16 {
            0 => {
                let client = self.client();
                (client, client)
            }
            0x80 => self.pair_of(Kind::Device),
            0x2080 => self.pair_of(Kind::Subdevice),
            0xa06c => self.pair_of(Kind::ChannelGroup),
            _ => self.pair(),
        };
        let to = self.arena.pointer(&mut self.random, params.len());
        self.arena.lay(to, params);
        let said = match self.random.below(12) {
            0 => self.random.edge() as u32,
            _ => params.len() as u32,
        };
        use layout::nvos54 as l;
        let block = Block::new(l::SIZE)
            .with32(l::H_CLIENT, client)
            .with32(l::H_OBJECT, object)
            .with32(l::CMD, cmd)
            .with64(l::PARAMS, to)
            .with32(l::PARAMS_SIZE, said);
        let file = self.file_of(client);
        let at = self.call(self.arena, file, request(nr::RM_CONTROL, l::SIZE), &block);
        at.is_some_and(|at| self.arena.load(at + l::STATUS as u64) == 0)
    }

    pub(super) fn heap(&mut self) {
        use layout::{nvos32 as l, nvos32_alloc_size as a};
        let block = self.heap_block();
        let client = block.u32(l::H_ROOT);
        let file = self.file_of(client);
        let number = request(nr::RM_VID_HEAP_CONTROL, l::SIZE);
        if let Some(at) = self.call(self.arena, file, number, &block)
            && self.arena.load(at + l::STATUS as u64) == 0
            && [2, 6, 14].contains(&block.u32(l::FUNCTION))
        {
            self.shared.count_made();
            let handle = self.arena.load(at + a::H_MEMORY as u64);
            self.made(client, handle, Kind::Memory);
        }
    }

    pub(super) fn duplicate(&mut self) {
        use layout::nvos55 as l;
        let ((client, parent), (source, object)) =
            (self.pair_of(Kind::Device), self.pair_of(Kind::Memory));
        let handle = self.handle();
        let block = self
            .wild(l::SIZE)
            .with32(l::H_CLIENT, client)
            .with32(l::H_PARENT, parent)
            .with32(l::H_OBJECT, handle)
            .with32(l::H_CLIENT_SRC, source)
            .with32(l::H_OBJECT_SRC, object);
        let file = self.file_of(client);
        if let Some(at) = self.call(
            self.arena,
            file,
            request(nr::RM_DUP_OBJECT, l::SIZE),
            &block,
        ) && self.arena.load(at + l::STATUS as u64) == 0
        {
            self.shared.count_made();
            let handle = self.arena.load(at + l::H_OBJECT as u64);
            self.made(client, handle, Kind::Memory);
        }
    }

    /// Memory into a range of the UVM file, or out of it.
    pub(super) fn map(&mut self) {
        if self.random.once_in(3) {
            let back = self.random.pick(&[uvm::UNMAP_EXTERNAL, uvm::FREE]);
            return self.uvm_call(back);
        }
        let (base, length) = self.range();
        let file = self.file_on(File::Uvm);
        let range = Block::new(layout::uvm_create_external_range::SIZE)
            .with64(0, base)
            .with64(8, length);
        if self
            .call(self.arena, file, uvm::CREATE_EXTERNAL_RANGE, &range)
            .is_some()
            && self.ranges.len() < MOST_OBJECTS
        {
            self.ranges.push((base, length));
        }
        self.uvm_call(uvm::MAP_EXTERNAL_ALLOCATION);
    }

    /// Memory, another name for it, a mapping of it; then all that is taken back, in any order.
    pub(super) fn chain(&mut self) {
        use layout::{memory_allocation as m, nvos64 as l};
        let ((client, device), handle) = (self.pair_of(Kind::Device), self.handle());
        let length = (1 << 16) << self.random.below(10);
        let params = params_of(class::NV01_MEMORY_LOCAL_USER)
            .with32(m::OWNER, client)
            .with64(m::SIZE_FIELD, length);
        let to = self.calm.place(&mut self.random, params.len());
        self.calm.lay(to, &params);
        let block = Block::new(l::SIZE)
            .with32(l::H_ROOT, client)
            .with32(l::H_OBJECT_PARENT, device)
            .with32(l::H_OBJECT_NEW, handle)
            .with32(l::H_CLASS, class::NV01_MEMORY_LOCAL_USER)
            .with64(l::P_ALLOC_PARMS, to);
        let file = self.file_of(client);
        let Some(at) = self.call(self.calm, file, request(nr::RM_ALLOC, l::SIZE), &block) else {
            return;
        };
        if self.calm.load(at + l::STATUS as u64) != 0 {
            return;
        }
        self.shared.count_made();
        let memory = self.calm.load(at + l::H_OBJECT_NEW as u64);
        self.made(client, memory, Kind::Memory);
        let (file, base) = (self.file_on(File::Uvm), self.range().0);
        let control = self.file_of(client) as u32;
        let map = |this: &mut Thread, handle: u32| {
            use layout::uvm_map_external as u;
            let behind = this.abi.layout().uvm_map_external;
            let size = this.abi.uvm(uvm::MAP_EXTERNAL_ALLOCATION);
            let block = Block::new(size.map_or(0, |entry| usize::from(entry.size)))
                .with64(u::BASE, base)
                .with64(u::LENGTH, length)
                .with(u::PER_GPU_ATTRIBUTES, &this.uuid)
                .with32(u::PER_GPU_ATTRIBUTES + 16, 1)
                .with64(behind.gpu_attributes_count, 1)
                .with32(behind.rm_ctrl_fd, control)
                .with32(behind.h_client, client)
                .with32(behind.h_memory, handle);
            let request = uvm::MAP_EXTERNAL_ALLOCATION;
            if let Some(at) = this.call(this.calm, file, request, &block)
                && this.calm.load(at + behind.rm_status as u64) == 0
            {
                this.shared.count_mapped();
            }
        };
        let range = Block::new(layout::uvm_create_external_range::SIZE)
            .with64(0, base)
            .with64(8, length);
        self.call(self.calm, file, uvm::CREATE_EXTERNAL_RANGE, &range);
        let back = Block::new(layout::uvm_unmap_external::SIZE)
            .with64(0, base)
            .with64(8, length / (1 << self.random.below(2)))
            .with(layout::uvm_unmap_external::GPU_UUID, &self.uuid);
        for _ in 0..3 + self.random.below(8) {
            match self.random.below(6) {
                0 | 1 => map(self, memory),
                2 => self.duplicate(),
                3 => self.free_this(client, memory),
                4 => {
                    self.call(self.calm, file, uvm::UNMAP_EXTERNAL, &back);
                }
                _ => {
                    self.call(self.calm, file, uvm::FREE, &range);
                }
            }
        }
        if self.ranges.len() < MOST_OBJECTS {
            self.ranges.push((base, length));
        }
    }

    pub(super) fn uvm(&mut self) {
        let count = self.abi.uvm_calls().len();
        let at = self.random.below(count);
        let request = self
            .abi
            .uvm_calls()
            .nth(at)
            .expect("below the count")
            .request;
        self.uvm_call(request);
    }

    pub(super) fn uvm_call(&mut self, request: u32) {
        let Some(entry) = self.abi.uvm(request) else {
            return;
        };
        let block = self.uvm_block(entry);
        let file = self.file_on(File::Uvm);
        if let Some(at) = self.call(self.arena, file, request, &block)
            && request == uvm::MAP_EXTERNAL_ALLOCATION
            && self
                .arena
                .load(at + self.abi.layout().uvm_map_external.rm_status as u64)
                == 0
        {
            self.shared.count_mapped();
        }
    }

    /// Frees an object, a client, or what is not there; sometimes twice.
    pub(super) fn free(&mut self) {
        let (client, object) = match self.random.below(32) {
            0 => {
                let client = self.client();
                (client, client)
            }
            1 => self.pair_of(Kind::Device),
            2..6 => self.pair(),
            _ => self.pair_of(Kind::Memory),
        };
        self.free_this(client, object);
    }

    pub(super) fn free_this(&mut self, client: u32, object: u32) {
        use layout::nvos00 as l;
        let block = Block::new(l::SIZE)
            .with32(l::H_ROOT, client)
            .with32(l::H_OBJECT_PARENT, client)
            .with32(l::H_OBJECT_OLD, object);
        let file = self.file_of(client);
        self.call(self.arena, file, request(nr::RM_FREE, l::SIZE), &block);
        if !self.random.once_in(6) {
            self.objects
                .retain(|o| (o.client, o.handle) != (client, object));
            if client == object {
                self.clients.retain(|known| known.handle != client);
                self.objects.retain(|o| o.client != client);
            }
        }
    }
}
