//! Clients, handles and the object tree.

use std::collections::{BTreeMap, BTreeSet};

use rm::{Kind, Status, class, layout};

use super::channels::{GROUP_HIDDEN_COMPUTE, GROUP_HIDDEN_COPY, OBJECT_HIDDEN_COMPUTE};
use super::{Answer, Call, Rm, status};
use crate::client::Node;
use crate::proto::FileId;

/// Handles of clients, as the driver makes them: this and a counter.
const CLIENT_BASE: u32 = 0xc1d0_0000;

/// Handles the driver makes for objects whose caller left the choice to it.
const OBJECT_BASE: u32 = 0xcaf0_0000;

/// `NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED`
const EXTERNALLY_OWNED: u32 = 1 << 3;

/// What one file may use, made by `RM_ALLOC` of a root class.
pub struct Client {
    pub file: FileId,
    /// Who made it: the owner as the driver sees it.
    pub pid: u32,
    pub euid: u32,
    pub objects: BTreeMap<u32, Object>,
    /// Who else may duplicate its objects.
    grants: Vec<Grant>,
    /// What `RM_MAP_MEMORY` has prepared: handle and address.
    pub mappings: BTreeSet<(u32, u64)>,
    top: BTreeSet<u32>,
    next_handle: u32,
}

/// A node of the object tree.
pub struct Object {
    pub parent: u32,
    pub class: u32,
    /// The GPU it is on, inherited from its parent.
    pub gpu: Option<usize>,
    pub body: Body,
    /// Device memory that it takes besides what was asked for.
    hidden: u64,
    children: BTreeSet<u32>,
    grants: Option<Vec<Grant>>,
}

/// What an object stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// Only a handle.
    Plain,
    /// A reference to memory.
    Memory(u64),
    Group(u64),
    Channel(u64),
    EventBuffer(u64),
    /// The handle of the address space it runs in.
    ContextShare(u32),
    /// A third-party object, which holds memory registered with it (`0x503c0104`).
    ThirdParty(u64),
    VaSpace {
        /// The next address that `RM_MAP_MEMORY_DMA` hands out.
        next: u64,
        /// Made for somebody else to manage (UVM).
        external: bool,
    },
}

/// A rule by which an object may be duplicated by a client of somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Grant {
    Everyone,
    /// The owner's effective user or process (the driver's OS security token).
    Token,
    Client(u32),
    Process,
}

impl Grant {
    /// A share type of the driver; `None`: a type that grants nothing here.
    fn of(kind: u16, target: u32) -> Option<Grant> {
        match kind {
            1 => Some(Grant::Everyone),
            2 => Some(Grant::Token),
            3 => Some(Grant::Client(target)),
            4 => Some(Grant::Process),
            _ => None,
        }
    }

    /// Puts a share policy into effect: action bit 0 takes it away, bit 2 adds it; without either it replaces all.
    fn apply(list: &mut Vec<Grant>, kind: u16, target: u32, action: u8) {
        let grant = Grant::of(kind, target);
        match grant {
            Some(grant) if action & 1 != 0 => list.retain(|have| *have != grant),
            None if action & 1 != 0 => list.clear(),
            _ => {
                if action & 4 == 0 {
                    list.clear();
                }
                list.extend(grant);
            }
        }
    }
}

impl Rm {
    /// The client of this handle, if it hangs on the call's file.
    pub(super) fn client(&self, call: &Call, handle: u32) -> Answer<&Client> {
        let file = self.control_file(call.file);
        self.clients
            .get(&handle)
            .filter(|client| client.file == file)
            .ok_or(Status::INVALID_CLIENT)
    }

    /// An object of a client that hangs on the call's file.
    pub(super) fn object(&self, call: &Call, client: u32, handle: u32) -> Answer<&Object> {
        self.client(call, client)?
            .objects
            .get(&handle)
            .ok_or(Status::OBJECT_NOT_FOUND)
    }

    /// What holds for calls that use the caller's address space: the process that made the client makes them.
    pub(super) fn owner_calls(&self, call: &Call, client: u32, refusal: Status) -> Answer {
        if self.client(call, client)?.pid == call.caller.pid {
            Ok(())
        } else {
            Err(refusal)
        }
    }

    pub(super) fn rm_alloc(&mut self, call: &mut Call) -> Answer {
        use layout::nvos64 as at;
        let (root, parent) = (
            call.block.u32(at::H_ROOT),
            call.block.u32(at::H_OBJECT_PARENT),
        );
        let (handle, class) = (
            call.block.u32(at::H_OBJECT_NEW),
            call.block.u32(at::H_CLASS),
        );
        let entry = self.abi.class(class).ok_or(Status::INVALID_CLASS)?;
        if entry.kind == Kind::Client {
            // The driver takes a wanted handle from the first word, which for any other class is the client that acts.
            let wanted = if root == 0 { handle } else { root };
            let handle = self.new_client(call, wanted)?;
            call.block.put_u32(at::H_ROOT, handle);
            call.block.put_u32(at::H_OBJECT_NEW, handle);
            return Ok(());
        }
        let handle = self.choose_handle(call, root, handle)?;
        let gpu = self.parent_gpu(call, root, parent)?;
        let object = self.build(call, root, parent, entry, gpu)?;
        self.insert(root, handle, object);
        call.block.put_u32(at::H_OBJECT_NEW, handle);
        Ok(())
    }

    fn new_client(&mut self, call: &Call, asked: u32) -> Answer<u32> {
        let handle = if asked == 0 {
            loop {
                self.next_client = (self.next_client + 1) & 0xf_ffff;
                let handle = CLIENT_BASE | self.next_client;
                if !self.clients.contains_key(&handle) {
                    break handle;
                }
            }
        } else if asked & 0xfff0_0000 != CLIENT_BASE {
            return Err(Status::INVALID_CLIENT);
        } else if self.clients.contains_key(&asked) {
            return Err(status::INSERT_DUPLICATE_NAME);
        } else {
            asked
        };
        let client = Client {
            file: self.control_file(call.file),
            pid: call.caller.pid,
            euid: call.caller.euid,
            objects: BTreeMap::new(),
            grants: vec![Grant::Token],
            mappings: BTreeSet::new(),
            top: BTreeSet::new(),
            next_handle: 0,
        };
        self.clients.insert(handle, client);
        Ok(handle)
    }

    /// The handle for a new object: the caller's choice if it is free, else one of the driver's.
    pub(super) fn choose_handle(&mut self, call: &Call, client: u32, asked: u32) -> Answer<u32> {
        self.client(call, client)?;
        let Some(owner) = self.clients.get_mut(&client) else {
            return Err(Status::INVALID_CLIENT);
        };
        if asked == 0 {
            loop {
                owner.next_handle += 1;
                let handle = OBJECT_BASE | (owner.next_handle & 0xf_ffff);
                if !owner.objects.contains_key(&handle) {
                    return Ok(handle);
                }
            }
        }
        if asked == client || owner.objects.contains_key(&asked) {
            return Err(status::INSERT_DUPLICATE_NAME);
        }
        Ok(asked)
    }

    /// The GPU that a child of this object is on.
    pub(super) fn parent_gpu(
        &self,
        call: &Call,
        client: u32,
        parent: u32,
    ) -> Answer<Option<usize>> {
        if parent == client {
            return self.client(call, client).map(|_| None);
        }
        self.object(call, client, parent).map(|object| object.gpu)
    }

    /// Makes what an `RM_ALLOC` asks for, all but its place in the tree.
    fn build(
        &mut self,
        call: &mut Call,
        root: u32,
        parent: u32,
        entry: &rm::Class,
        gpu: Option<usize>,
    ) -> Answer<Object> {
        let parent_class = self
            .client(call, root)?
            .objects
            .get(&parent)
            .map_or(class::NV01_ROOT, |found| found.class);
        let parent_kind = self
            .abi
            .class(parent_class)
            .map_or(Kind::Other, |entry| entry.kind);
        let under = |kinds: &[Kind]| {
            if kinds.contains(&parent_kind) {
                Ok(())
            } else {
                Err(status::INVALID_OBJECT_PARENT)
            }
        };
        let mut object = Object::plain(parent, entry.id, gpu);
        match entry.kind {
            Kind::Client => return Err(Status::INVALID_CLASS),
            Kind::Device => {
                under(&[Kind::Client])?;
                object.gpu = Some(self.open_device(call)?);
            }
            Kind::Subdevice => under(&[Kind::Device])?,
            Kind::Memory if entry.id == class::NV01_MEMORY_DEVICELESS => {
                under(&[Kind::Client])?;
                object.body = self.new_deviceless(call)?;
            }
            Kind::Memory => {
                under(&[Kind::Device, Kind::Subdevice])?;
                object.body = self.alloc_memory_class(call, entry.id, gpu)?;
            }
            Kind::VaSpace => {
                under(&[Kind::Device])?;
                let flags = call.params().u32(layout::vaspace_alloc::FLAGS);
                object.body = Body::VaSpace {
                    next: super::memory::DMA_BASE,
                    external: flags & EXTERNALLY_OWNED != 0,
                };
            }
            Kind::ChannelGroup => {
                under(&[Kind::Device])?;
                let gpu = gpu.ok_or(status::INVALID_OBJECT_PARENT)?;
                let group = self.new_group(call, root, gpu);
                object.hidden = if group.is_copy() {
                    GROUP_HIDDEN_COPY
                } else {
                    GROUP_HIDDEN_COMPUTE
                };
                self.take_hidden(gpu, object.hidden)?;
                let id = self.id();
                self.groups.insert(id, group);
                object.body = Body::Group(id);
            }
            Kind::Channel => {
                under(&[Kind::ChannelGroup, Kind::Device])?;
                let gpu = gpu.ok_or(status::INVALID_OBJECT_PARENT)?;
                let vaspace = call.params().u32(layout::channel_alloc::H_VA_SPACE);
                if parent_kind == Kind::ChannelGroup && vaspace != 0 {
                    // It is the group's, or that of the context share.
                    return Err(Status::INVALID_ARGUMENT);
                }
                self.room_for_channel(root, parent, gpu)?;
                object.hidden = self.channel_hidden(call, parent_kind);
                self.take_hidden(gpu, object.hidden)?;
                object.body = Body::Channel(self.new_channel(call, root, parent, gpu));
            }
            Kind::Engine => {
                under(&[Kind::Channel])?;
                let gpu = gpu.ok_or(status::INVALID_OBJECT_PARENT)?;
                object.hidden = if entry.id & 0xff == 0xc0 {
                    OBJECT_HIDDEN_COMPUTE
                } else {
                    0
                };
                self.take_hidden(gpu, object.hidden)?;
            }
            Kind::Event => {
                if entry.id == class::NV01_EVENT {
                    object.class = call.params().u32(layout::event_alloc::H_CLASS);
                }
            }
            Kind::Other if entry.id == class::FERMI_CONTEXT_SHARE_A => {
                under(&[Kind::ChannelGroup])?;
                object.body =
                    Body::ContextShare(call.params().u32(layout::ctxshare_alloc::H_VA_SPACE));
            }
            Kind::Other if entry.id == class::NV_EVENT_BUFFER => {
                under(&[Kind::Client])?;
                object.body = self.new_event_buffer(call, root)?;
            }
            Kind::Other if entry.id == class::NV50_THIRD_PARTY_P2P => {
                object.body = Body::ThirdParty(self.id());
            }
            Kind::Other => {}
        }
        Ok(object)
    }

    /// The GPU of a new `NV01_DEVICE_0`. The driver walks the caller's descriptors for an open device file of it.
    fn open_device(&mut self, call: &mut Call) -> Answer<usize> {
        let gpu = call.params().u32(layout::device_alloc::DEVICE_ID) as usize;
        if gpu >= self.devices.len() {
            return Err(status::INVALID_DEVICE);
        }
        let holds = |file: &FileId| self.node_of(*file) == u32::try_from(gpu).ok().map(Node::Gpu);
        if call.device_files.iter().any(holds) {
            Ok(gpu)
        } else {
            Err(Status::INSUFFICIENT_PERMISSIONS)
        }
    }

    /// Puts an object into its client's tree. The parent has been checked.
    pub(super) fn insert(&mut self, client: u32, handle: u32, object: Object) {
        let Some(owner) = self.clients.get_mut(&client) else {
            return;
        };
        let siblings = match owner.objects.get_mut(&object.parent) {
            Some(parent) => &mut parent.children,
            None => &mut owner.top,
        };
        siblings.insert(handle);
        owner.objects.insert(handle, object);
        self.stirred = true;
    }

    pub(super) fn rm_free(&mut self, call: &mut Call) -> Answer {
        let client = call.block.u32(layout::nvos00::H_ROOT);
        let handle = call.block.u32(layout::nvos00::H_OBJECT_OLD);
        self.client(call, client)?;
        if handle == client {
            self.free_client(client);
        } else {
            // A handle that is gone already is no error: CUDA frees some twice (seen in a trace of driver 580.159).
            self.free_object(client, handle);
        }
        Ok(())
    }

    pub(super) fn free_client(&mut self, handle: u32) {
        let Some(top) = self.clients.get(&handle).map(|client| client.top.clone()) else {
            return;
        };
        for object in top {
            self.free_object(handle, object);
        }
        self.clients.remove(&handle);
        self.os_events.retain(|&(client, _)| client != handle);
        self.stirred = true;
    }

    /// Frees an object and all below it, children first.
    pub(super) fn free_object(&mut self, client: u32, handle: u32) {
        let mut order = vec![handle];
        let mut at = 0;
        while let Some(&next) = order.get(at) {
            if let Some(object) = self
                .clients
                .get(&client)
                .and_then(|client| client.objects.get(&next))
            {
                order.extend(&object.children);
            }
            at += 1;
        }
        for &next in order.iter().rev() {
            let Some(owner) = self.clients.get_mut(&client) else {
                return;
            };
            let Some(object) = owner.objects.remove(&next) else {
                continue;
            };
            match owner.objects.get_mut(&object.parent) {
                Some(parent) => parent.children.remove(&next),
                None => owner.top.remove(&next),
            };
            let mapped: Vec<_> = owner
                .mappings
                .range((next, 0)..=(next, u64::MAX))
                .copied()
                .collect();
            for mapping in mapped {
                owner.mappings.remove(&mapping);
            }
            if let Some(gpu) = object.gpu {
                self.give_hidden(gpu, object.hidden);
            }
            match object.body {
                Body::Memory(memory) => self.put_memory(memory),
                Body::Group(group) => self.free_group(group),
                Body::Channel(channel) => self.free_channel(channel),
                Body::EventBuffer(id) => self.free_event_buffer(id),
                Body::ThirdParty(id) => self.unregister_all(id),
                Body::Plain | Body::ContextShare(_) | Body::VaSpace { .. } => {}
            }
        }
        self.stirred = true;
    }

    pub(super) fn rm_dup_object(&mut self, call: &mut Call) -> Answer {
        use layout::nvos55 as at;
        let (client, parent) = (call.block.u32(at::H_CLIENT), call.block.u32(at::H_PARENT));
        let (source, object) = (
            call.block.u32(at::H_CLIENT_SRC),
            call.block.u32(at::H_OBJECT_SRC),
        );
        let handle = self.choose_handle(call, client, call.block.u32(at::H_OBJECT))?;
        let gpu = self.parent_gpu(call, client, parent)?;
        let owner = self.clients.get(&source).ok_or(Status::INVALID_CLIENT)?;
        let wanted = owner.objects.get(&object).ok_or(Status::OBJECT_NOT_FOUND)?;
        let taker = self.client(call, client)?;
        let granted = |grant: &Grant| match *grant {
            Grant::Everyone => true,
            Grant::Token => owner.pid == taker.pid || owner.euid == taker.euid,
            Grant::Client(only) => only == client,
            Grant::Process => owner.pid == taker.pid,
        };
        if source != client
            && !wanted
                .grants
                .as_ref()
                .unwrap_or(&owner.grants)
                .iter()
                .any(granted)
        {
            return Err(Status::INSUFFICIENT_PERMISSIONS);
        }
        let Body::Memory(memory) = wanted.body else {
            return Err(Status::NOT_SUPPORTED);
        };
        let mut copy = Object::plain(parent, wanted.class, wanted.gpu.or(gpu));
        copy.body = Body::Memory(memory);
        self.get_memory(memory);
        self.insert(client, handle, copy);
        call.block.put_u32(at::H_OBJECT, handle);
        Ok(())
    }

    pub(super) fn rm_share(&mut self, call: &mut Call) -> Answer {
        use layout::nvos57 as at;
        let (client, handle) = (call.block.u32(at::H_CLIENT), call.block.u32(at::H_OBJECT));
        let (kind, target) = (call.block.u16(at::TYPE), call.block.u32(at::TARGET));
        let action = call.block.u8(at::ACTION);
        self.client(call, client)?;
        let Some(owner) = self.clients.get_mut(&client) else {
            return Err(Status::INVALID_CLIENT);
        };
        if handle == client {
            Grant::apply(&mut owner.grants, kind, target, action);
            return Ok(());
        }
        let inherited = owner.grants.clone();
        let object = owner
            .objects
            .get_mut(&handle)
            .ok_or(Status::OBJECT_NOT_FOUND)?;
        Grant::apply(object.grants.get_or_insert(inherited), kind, target, action);
        Ok(())
    }

    /// Control 0xd04: the share policy that objects of the client start from.
    pub(super) fn set_inherited_share_policy(&mut self, call: &mut Call, client: u32) -> Answer {
        let params = call.params();
        let (target, kind, action) = (params.u32(0), params.u16(8), params.u8(10));
        let owner = self
            .clients
            .get_mut(&client)
            .ok_or(Status::INVALID_CLIENT)?;
        Grant::apply(&mut owner.grants, kind, target, action);
        Ok(())
    }
}

impl Object {
    /// An object that is only a handle.
    pub fn plain(parent: u32, class: u32, gpu: Option<usize>) -> Object {
        Object {
            parent,
            class,
            gpu,
            body: Body::Plain,
            hidden: 0,
            children: BTreeSet::new(),
            grants: None,
        }
    }
}
