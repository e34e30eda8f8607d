//! The tenant's clients and their trees of objects, the memory they name, and the exports of it.

use std::collections::{BTreeMap, BTreeSet};

use super::claims::{Mappings, Pinned};
use super::{
    ClientHandle, DeviceIndex, Freed, FreedObject, Ledger, MemId, ObjectHandle, Pid, Released,
    Reservation, UnknownObject,
};
use crate::objects::Need;
use crate::units::Bytes;

/// A client with its tree of objects. The client itself is the root, under its own number.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) owner: Pid,
    pub(super) objects: BTreeMap<ObjectHandle, Object>,
    /// Descriptors registered for events, and how often.
    pub(super) events: BTreeMap<u32, u32>,
    pub(super) pinned: Pinned,
}

/// One object of a client.
#[derive(Debug)]
pub(super) struct Object {
    /// Increases with every object of the ledger; the name under which the object holds its memory.
    pub(super) serial: u64,
    /// `None` for the client.
    pub(super) parent: Option<ObjectHandle>,
    pub(super) children: BTreeSet<ObjectHandle>,
    pub(super) class: u32,
    pub(super) device: Option<DeviceIndex>,
    /// The memory that the object is.
    pub(super) memory: Option<MemId>,
    /// Memory that the driver made for the object.
    pub(super) charges: Vec<MemId>,
    /// What the object counts for.
    pub(super) needs: Vec<Need>,
    /// What it counts for where it is mapped for the processor.
    pub(super) mappings: Mappings,
    /// Which of them is at which address is not known any more.
    pub(super) mixed_up: bool,
}

impl Object {
    /// Everything that the object holds.
    pub(super) fn holds(&self) -> impl Iterator<Item = MemId> + '_ {
        self.memory.into_iter().chain(self.charges.iter().copied())
    }
}

/// A piece of physical memory and all that keeps it.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) device: DeviceIndex,
    pub(super) size: Bytes,
    /// The process that allocated it.
    pub(super) origin: Pid,
    /// The objects that name it, by serial number: the first is the oldest.
    pub(super) names: BTreeMap<u64, ClientHandle>,
    /// UVM intervals that map it.
    pub(super) intervals: u64,
    /// Exports that hold it.
    pub(super) exports: u64,
    /// Names that went with an ancestor while `release_by_ancestor` was off: they are never given
    /// up.
    pub(super) stuck: u64,
}

impl Memory {
    pub(super) fn is_held(&self) -> bool {
        !self.names.is_empty() || self.intervals > 0 || self.exports > 0 || self.stuck > 0
    }
}

/// What a new object is to hold.
#[derive(Default)]
struct Holds {
    memory: Option<MemId>,
    charges: Vec<MemId>,
}

/// The handle under which a client is an object of itself.
fn root_of(client: ClientHandle) -> ObjectHandle {
    ObjectHandle(client.0)
}

/// The device of an object that is memory there; what lies in the host's memory has its parent's.
fn a_device(device: DeviceIndex) -> Option<DeviceIndex> {
    (device != DeviceIndex::HOST).then_some(device)
}

impl Ledger {
    /// Records a client. Returns what a client of the same handle still held, as the driver gives a
    /// handle only when it is free.
    pub fn add_client(&mut self, client: ClientHandle, owner: Pid) -> Freed {
        let freed = self.free_client(client);
        let serial = self.number();
        let root = Object {
            serial,
            parent: None,
            children: BTreeSet::new(),
            class: 0,
            device: None,
            memory: None,
            charges: Vec::new(),
            needs: Vec::new(),
            mappings: Mappings::default(),
            mixed_up: false,
        };
        self.clients.insert(
            client,
            Client {
                owner,
                objects: BTreeMap::from([(root_of(client), root)]),
                events: BTreeMap::new(),
                pinned: Pinned::default(),
            },
        );
        freed
    }

    /// Records an object without memory of its own. `device` is for a device object (and whatever
    /// else says which device it is of). Returns what an object of the same handle still held.
    pub fn add_object(
        &mut self,
        client: ClientHandle,
        parent: ObjectHandle,
        handle: ObjectHandle,
        class: u32,
        device: Option<DeviceIndex>,
    ) -> Freed {
        let serial = self.number();
        self.place(
            serial,
            client,
            parent,
            handle,
            class,
            device,
            Holds::default(),
        )
    }

    /// Records memory that the driver has granted, as an object. Returns what an object of the same
    /// handle still held.
    pub fn commit_memory(
        &mut self,
        reservation: Reservation,
        client: ClientHandle,
        parent: ObjectHandle,
        handle: ObjectHandle,
        class: u32,
    ) -> Freed {
        let charged = self.settle(reservation);
        let serial = self.number();
        let memory = self.remember(charged, client, serial);
        let holds = Holds {
            memory: Some(memory),
            charges: Vec::new(),
        };
        self.place(
            serial,
            client,
            parent,
            handle,
            class,
            a_device(charged.device),
            holds,
        )
    }

    /// Charges an object with memory that the driver made for it (the buffers of a context, say);
    /// it goes when the last alias of the object goes.
    ///
    /// # Errors
    /// [`UnknownObject`]; the reservation is then cancelled.
    pub fn charge_object(
        &mut self,
        reservation: Reservation,
        client: ClientHandle,
        handle: ObjectHandle,
    ) -> Result<(), UnknownObject> {
        let Some(serial) = self.object(client, handle).map(|object| object.serial) else {
            self.cancel(reservation);
            return Err(UnknownObject { client, handle });
        };
        let charged = self.settle(reservation);
        let memory = self.remember(charged, client, serial);
        if let Some(object) = self
            .clients
            .get_mut(&client)
            .and_then(|client| client.objects.get_mut(&handle))
        {
            object.charges.push(memory);
        }
        Ok(())
    }

    /// Whether there is such an object. Ask before forwarding a call that makes an alias.
    pub fn knows(&self, client: ClientHandle, handle: ObjectHandle) -> bool {
        self.object(client, handle).is_some()
    }

    /// The class that an object was recorded with, 0 for a client.
    pub fn class_of(&self, client: ClientHandle, handle: ObjectHandle) -> Option<u32> {
        self.object(client, handle).map(|object| object.class)
    }

    /// The number of an object: no other object of the ledger ever has it.
    pub fn serial_of(&self, client: ClientHandle, handle: ObjectHandle) -> Option<u64> {
        self.object(client, handle).map(|object| object.serial)
    }

    /// The parent of an object that is no client.
    pub fn parent_of(&self, client: ClientHandle, handle: ObjectHandle) -> Option<ObjectHandle> {
        self.object(client, handle)?.parent
    }

    /// The objects right below another, with their classes.
    pub fn below(
        &self,
        client: ClientHandle,
        handle: ObjectHandle,
    ) -> impl Iterator<Item = (ObjectHandle, u32)> + '_ {
        let children = self.object(client, handle).map(|object| &object.children);
        children
            .into_iter()
            .flatten()
            .filter_map(move |&child| self.class_of(client, child).map(|class| (child, class)))
    }

    /// The charged size of the memory that an object is, without what the driver made for it.
    pub fn memory_size(&self, client: ClientHandle, handle: ObjectHandle) -> Option<Bytes> {
        let memory = self.object(client, handle)?.memory?;
        self.memories.get(&memory).map(|memory| memory.size)
    }

    /// The device of an object: its own, or that of its nearest ancestor that has one.
    pub fn device_of(&self, client: ClientHandle, handle: ObjectHandle) -> Option<DeviceIndex> {
        let objects = &self.clients.get(&client)?.objects;
        // A parent is recorded before its child and a replaced parent takes its children along, so
        // this ends.
        let mut object = objects.get(&handle)?;
        loop {
            if object.device.is_some() {
                return object.device;
            }
            object = objects.get(&object.parent?)?;
        }
    }

    /// Records another name for an object (a duplicate, or an import from a client of this tenant).
    /// What it holds is counted once and stays until both are gone. Returns what an object of the
    /// new handle still held.
    ///
    /// # Errors
    /// [`UnknownObject`] where there is no such source; nothing is recorded.
    pub fn add_alias(
        &mut self,
        dst_client: ClientHandle,
        dst_parent: ObjectHandle,
        dst_handle: ObjectHandle,
        src_client: ClientHandle,
        src_handle: ObjectHandle,
    ) -> Result<Freed, UnknownObject> {
        let unknown = UnknownObject {
            client: src_client,
            handle: src_handle,
        };
        let source = self.object(src_client, src_handle).ok_or(unknown)?;
        let (class, memory, charges) = (source.class, source.memory, source.charges.clone());
        let device = self.device_of(src_client, src_handle);
        // Held under its new name first: the new handle may replace the very object that it is an
        // alias of.
        let serial = self.number();
        let holds = self.name_again(Holds { memory, charges }, dst_client, serial);
        Ok(self.place(
            serial, dst_client, dst_parent, dst_handle, class, device, holds,
        ))
    }

    /// Keeps what an object holds charged for as long as an export of it lives. `export` is the
    /// caller's number for it; a descriptor that carries several objects needs one number for each
    /// if they are imported one by one.
    ///
    /// # Errors
    /// [`UnknownObject`]; nothing is recorded.
    pub fn hold_export(
        &mut self,
        client: ClientHandle,
        handle: ObjectHandle,
        export: u64,
    ) -> Result<(), UnknownObject> {
        let object = self
            .object(client, handle)
            .ok_or(UnknownObject { client, handle })?;
        let holds: Vec<MemId> = object.holds().collect();
        for memory in &holds {
            if let Some(memory) = self.memories.get_mut(memory) {
                memory.exports += 1;
            }
        }
        self.exports.entry(export).or_default().extend(holds);
        Ok(())
    }

    /// Records an import from an export of this tenant, whose own handle may be gone by now.
    /// Returns what an object of the same handle still held. An export that is not recorded gives
    /// an object without memory.
    pub fn add_alias_of_export(
        &mut self,
        dst_client: ClientHandle,
        dst_parent: ObjectHandle,
        dst_handle: ObjectHandle,
        class: u32,
        export: u64,
    ) -> Freed {
        let mut exported = self.exports.get(&export).into_iter().flatten().copied();
        // One object may have been exported twice under one number, but can name a memory only
        // once.
        let memory = exported.next();
        let charges: BTreeSet<MemId> = exported.filter(|other| Some(*other) != memory).collect();
        let device = memory
            .and_then(|memory| self.memories.get(&memory))
            .and_then(|memory| a_device(memory.device));
        let serial = self.number();
        let holds = Holds {
            memory,
            charges: charges.into_iter().collect(),
        };
        let holds = self.name_again(holds, dst_client, serial);
        self.place(
            serial, dst_client, dst_parent, dst_handle, class, device, holds,
        )
    }

    /// The last descriptor of an export is gone.
    pub fn drop_export(&mut self, export: u64) -> Freed {
        let mut freed = Freed::default();
        for memory in self.exports.remove(&export).unwrap_or_default() {
            self.drop_hold(memory, &mut freed, |memory| memory.exports -= 1);
        }
        freed
    }

    /// Frees an object with everything under it; the handle of a client frees the client. A handle
    /// that is not recorded frees nothing.
    pub fn free(&mut self, client: ClientHandle, handle: ObjectHandle) -> Freed {
        let mut freed = Freed::default();
        self.unpin(client, handle);
        let Some(tree) = self.clients.get_mut(&client) else {
            return freed;
        };
        let Some(parent) = tree.objects.get(&handle).map(|object| object.parent) else {
            return freed;
        };
        if let Some(parent) = parent.and_then(|parent| tree.objects.get_mut(&parent)) {
            parent.children.remove(&handle);
        }
        let mut gone = Vec::new();
        // Not recursive: the tenant chooses the depth of the tree.
        let mut pending = vec![handle];
        while let Some(handle) = pending.pop() {
            if let Some(object) = tree.objects.remove(&handle) {
                pending.extend(object.children.iter().copied());
                gone.push((handle, object));
            }
        }
        for (_, object) in &gone {
            let counted = object.needs.iter().chain(object.mappings.values());
            counted.for_each(|need| self.counts.take(need));
        }
        if handle == root_of(client) {
            if let Some(gone) = self.clients.remove(&client) {
                self.count_client_gone(&gone);
            }
        } else {
            self.unpin_below(client, gone.iter().map(|(handle, _)| *handle));
        }
        for (index, (handle, object)) in gone.into_iter().enumerate() {
            freed.objects.push(FreedObject {
                client,
                handle,
                class: object.class,
            });
            let stuck = index > 0 && !self.walls.release_by_ancestor;
            for memory in object.holds() {
                self.drop_hold(memory, &mut freed, |memory| {
                    memory.names.remove(&object.serial);
                    memory.stuck += u64::from(stuck);
                });
            }
        }
        freed
    }

    /// Frees a client with all its objects: by its handle, or because the last descriptor of its
    /// file was closed.
    pub fn free_client(&mut self, client: ClientHandle) -> Freed {
        self.free(client, root_of(client))
    }

    /// The clients of the tenant.
    pub fn clients(&self) -> impl Iterator<Item = ClientHandle> + '_ {
        self.clients.keys().copied()
    }

    /// The process that a client was recorded for.
    pub fn client_owner(&self, client: ClientHandle) -> Option<Pid> {
        self.clients.get(&client).map(|client| client.owner)
    }

    /// The objects of all clients, the clients included.
    pub fn object_count(&self) -> usize {
        self.clients
            .values()
            .map(|client| client.objects.len())
            .sum()
    }

    pub(super) fn object(&self, client: ClientHandle, handle: ObjectHandle) -> Option<&Object> {
        self.clients.get(&client)?.objects.get(&handle)
    }

    /// The process that a memory counts for.
    pub(super) fn payer(&self, memory: &Memory) -> Pid {
        let oldest = memory.names.values().next();
        oldest
            .and_then(|client| self.client_owner(*client))
            .unwrap_or(memory.origin)
    }

    /// Takes one hold off a memory and returns its charge if that was the last.
    pub(super) fn drop_hold(
        &mut self,
        id: MemId,
        freed: &mut Freed,
        drop: impl FnOnce(&mut Memory),
    ) {
        let Some(memory) = self.memories.get_mut(&id) else {
            return;
        };
        drop(memory);
        if memory.is_held() {
            return;
        }
        let released = Released {
            device: memory.device,
            size: memory.size,
        };
        self.memories.remove(&id);
        self.uncharge(released.device, released.size);
        freed.memory.push(released);
    }

    /// A new piece of memory of what is charged already, named by the object `serial`.
    fn remember(&mut self, charged: Released, client: ClientHandle, serial: u64) -> MemId {
        let id = MemId(self.number());
        let memory = Memory {
            device: charged.device,
            size: charged.size,
            origin: self.client_owner(client).unwrap_or(Pid(0)),
            names: BTreeMap::from([(serial, client)]),
            intervals: 0,
            exports: 0,
            stuck: 0,
        };
        self.memories.insert(id, memory);
        id
    }

    /// Lets the object `serial` name memory that has names already.
    fn name_again(&mut self, holds: Holds, client: ClientHandle, serial: u64) -> Holds {
        let mut again = |id: MemId| {
            let memory = self.memories.get_mut(&id)?;
            if self.walls.alias_counted_once {
                memory.names.insert(serial, client);
                return Some(id);
            }
            let charged = Released {
                device: memory.device,
                size: memory.size,
            };
            self.charge(charged.device, charged.size);
            Some(self.remember(charged, client, serial))
        };
        let memory = holds.memory.and_then(&mut again);
        Holds {
            memory,
            charges: holds.charges.into_iter().filter_map(again).collect(),
        }
    }

    /// Puts an object into the tree. What it holds is named by `serial` already, so that it can't
    /// be released with the object that it replaces.
    #[expect(
        clippy::too_many_arguments,
        reason = "private, and each is a field of the object"
    )]
    fn place(
        &mut self,
        serial: u64,
        client: ClientHandle,
        parent: ObjectHandle,
        handle: ObjectHandle,
        class: u32,
        device: Option<DeviceIndex>,
        holds: Holds,
    ) -> Freed {
        let mut freed = Freed::default();
        if !self.clients.contains_key(&client) {
            freed.append(self.add_client(client, Pid(0)));
        }
        let root = root_of(client);
        if handle != root {
            freed.append(self.free(client, handle));
        }
        let Some(tree) = self.clients.get_mut(&client) else {
            return freed;
        };
        if handle == root {
            // The driver never grants the client's own handle; if it did, the client would hold
            // what comes with it.
            if let Some(object) = tree.objects.get_mut(&root) {
                for memory in holds.memory.into_iter().chain(holds.charges) {
                    if let Some(record) = self.memories.get_mut(&memory) {
                        record.names.remove(&serial);
                        record.names.insert(object.serial, client);
                    }
                    if !object.charges.contains(&memory) {
                        object.charges.push(memory);
                    }
                }
            }
            return freed;
        }
        let parent = if tree.objects.contains_key(&parent) {
            parent
        } else {
            root
        };
        if let Some(parent) = tree.objects.get_mut(&parent) {
            parent.children.insert(handle);
        }
        let object = Object {
            serial,
            parent: Some(parent),
            children: BTreeSet::new(),
            class,
            device,
            memory: holds.memory,
            charges: holds.charges,
            needs: Vec::new(),
            mappings: Mappings::default(),
            mixed_up: false,
        };
        tree.objects.insert(handle, object);
        freed
    }
}
