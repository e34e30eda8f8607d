//! What a tenant has besides memory, counted: claimed before the driver is asked, and given back with the object that it
//! came with, its ancestor or its client.

use std::collections::BTreeMap;

use super::objects::Client;
use super::{ClientHandle, DeviceIndex, Ledger, ObjectHandle};
use crate::objects::{Counts, Limits, Need, OverLimit};

/// Where an object is mapped for the processor: by address, and a number where several are at one.
pub(super) type Mappings = BTreeMap<(u64, u64), Need>;

/// The handle that leaves the choice to the driver: what comes of it is known by no name.
const UNNAMED: ObjectHandle = ObjectHandle(0);

/// Objects of pinned pages that the kernel made in the tenant, so that only their request was seen. Not objects of the
/// ledger: whoever uses one has to ask the driver what it is.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    parents: BTreeMap<ObjectHandle, ObjectHandle>,
    below: BTreeMap<(ObjectHandle, ObjectHandle), Need>,
}

impl Pinned {
    fn add(&mut self, parent: ObjectHandle, handle: ObjectHandle, need: Need) {
        if handle == UNNAMED {
            self.below.entry((parent, handle)).or_default().objects += need.objects;
        } else {
            self.parents.insert(handle, parent);
            self.below.insert((parent, handle), need);
        }
    }

    fn remove(&mut self, handle: ObjectHandle) -> Option<Need> {
        let parent = self.parents.remove(&handle)?;
        self.below.remove(&(parent, handle))
    }

    /// Takes all that hang below `parent`.
    fn remove_below(&mut self, parent: ObjectHandle) -> Vec<Need> {
        let all = (parent, UNNAMED)..=(parent, ObjectHandle(u32::MAX));
        let handles: Vec<ObjectHandle> = self.below.range(all).map(|((_, h), _)| *h).collect();
        let mut needs = Vec::new();
        for handle in handles {
            self.parents.remove(&handle);
            needs.extend(self.below.remove(&(parent, handle)));
        }
        needs
    }

    pub(super) fn needs(&self) -> impl Iterator<Item = &Need> {
        self.below.values()
    }
}

/// What is counted and not made yet. It must go back to the ledger that gave it: into [`Ledger::attach`],
/// [`Ledger::map_for_processor`], [`Ledger::open_event`] or [`Ledger::pin`] when the driver has made it, into
/// [`Ledger::give_up`] when it has not. One that is dropped instead stays counted (and fails a debug build).
#[must_use = "a claim stays counted until it is attached or given up"]
#[derive(Debug)]
pub struct Claim {
    ticket: u64,
    settled: bool,
}

impl Drop for Claim {
    fn drop(&mut self) {
        debug_assert!(
            self.settled || std::thread::panicking(),
            "a claim was dropped and stays counted: {self:?}"
        );
    }
}

/// A descriptor registered for events.
const OS_EVENT: Need = Need {
    events: 1,
    clients: 0,
    objects: 0,
    channels: 0,
    groups: 0,
    bar1: crate::units::Bytes::ZERO,
    device: None,
    group: None,
};

impl Ledger {
    /// Says what the tenant may have; without it only memory is limited. Before anything is counted.
    pub fn set_limits(&mut self, limits: Limits) {
        self.host.quota = limits.host;
        self.counts = Counts::new(limits);
    }

    /// What is counted, and the limits.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts what a call is about to make.
    ///
    /// # Errors
    /// [`OverLimit`]; nothing is counted then.
    pub fn claim(&mut self, need: Need) -> Result<Claim, OverLimit> {
        self.counts.add(&need)?;
        let ticket = self.number();
        self.claims.insert(ticket, need);
        Ok(Claim {
            ticket,
            settled: false,
        })
    }

    /// The driver has refused.
    pub fn give_up(&mut self, claim: Claim) {
        let need = self.settle_claim(claim);
        self.counts.take(&need);
    }

    /// The driver has made the object, and it was recorded. Where it is gone already, so is the claim.
    pub fn attach(&mut self, claim: Claim, client: ClientHandle, handle: ObjectHandle) {
        let need = self.settle_claim(claim);
        let object = self
            .clients
            .get_mut(&client)
            .and_then(|tree| tree.objects.get_mut(&handle));
        match object {
            Some(object) => object.needs.push(need),
            None => self.counts.take(&need),
        }
    }

    /// The driver has mapped an object for the processor.
    pub fn map_for_processor(
        &mut self,
        claim: Claim,
        client: ClientHandle,
        handle: ObjectHandle,
        address: u64,
    ) {
        let need = self.settle_claim(claim);
        let number = self.number();
        let object = self
            .clients
            .get_mut(&client)
            .and_then(|tree| tree.objects.get_mut(&handle));
        match object {
            Some(object) => {
                object.mappings.insert((address, number), need);
            }
            None => self.counts.take(&need),
        }
    }

    /// The driver has undone one mapping at this address. One that is not recorded gives nothing back.
    pub fn unmap_for_processor(
        &mut self,
        client: ClientHandle,
        handle: ObjectHandle,
        address: u64,
    ) {
        if let Some(need) = self.take_mapping(client, handle, address) {
            self.counts.take(&need);
        }
    }

    /// The driver knows a mapping by another address from now on. Where several of different sizes are at the first, it
    /// does not say which: addresses tell nothing of this object's mappings any more.
    pub fn move_mapping(&mut self, client: ClientHandle, handle: ObjectHandle, from: u64, to: u64) {
        let number = self.number();
        let object = self
            .clients
            .get_mut(&client)
            .and_then(|tree| tree.objects.get_mut(&handle));
        let Some(object) = object.filter(|object| !object.mixed_up) else {
            return;
        };
        let here = object.mappings.range((from, 0)..=(from, u64::MAX));
        let mut needs: Vec<Need> = here.clone().map(|(_, need)| *need).collect();
        needs.dedup();
        object.mixed_up = needs.len() > 1;
        if let (Some((&at, _)), [need]) = (here.clone().next(), needs.as_slice()) {
            let need = *need;
            object.mappings.remove(&at);
            object.mappings.insert((to, number), need);
        }
    }

    /// Of several mappings that may have been undone, the smallest: what is left is never more than what is counted.
    fn take_mapping(
        &mut self,
        client: ClientHandle,
        handle: ObjectHandle,
        address: u64,
    ) -> Option<Need> {
        let tree = self.clients.get_mut(&client)?;
        let object = tree.objects.get_mut(&handle)?;
        let may_be = if object.mixed_up {
            (0, 0)..=(u64::MAX, u64::MAX)
        } else {
            (address, 0)..=(address, u64::MAX)
        };
        let smallest = object.mappings.range(may_be);
        let at = *smallest.min_by_key(|(_, need)| need.bar1)?.0;
        let taken = object.mappings.remove(&at);
        object.mixed_up &= !object.mappings.is_empty();
        taken
    }

    /// What a descriptor that is registered for events counts for.
    pub fn os_event() -> Need {
        OS_EVENT
    }

    /// The driver has registered a descriptor for events of a client.
    pub fn open_event(&mut self, claim: Claim, client: ClientHandle, descriptor: u32) {
        let need = self.settle_claim(claim);
        match self.clients.get_mut(&client) {
            Some(tree) => *tree.events.entry(descriptor).or_insert(0) += 1,
            None => self.counts.take(&need),
        }
    }

    /// The driver has forgotten one registration of this descriptor.
    pub fn close_event(&mut self, client: ClientHandle, descriptor: u32) {
        let Some(tree) = self.clients.get_mut(&client) else {
            return;
        };
        let Some(times) = tree.events.get_mut(&descriptor) else {
            return;
        };
        *times -= 1;
        if *times == 0 {
            tree.events.remove(&descriptor);
        }
        self.counts.take(&OS_EVENT);
    }

    /// The kernel is about to make an object of pinned pages in the tenant; how that ends is not seen. It counts until its
    /// handle is freed, or what it hangs below. A handle that counts already counts once: the driver takes none twice. With
    /// handle 0 the driver chooses one, and it counts until what it hangs below is freed.
    pub fn pin(
        &mut self,
        claim: Claim,
        client: ClientHandle,
        parent: ObjectHandle,
        handle: ObjectHandle,
    ) {
        let need = self.settle_claim(claim);
        self.unpin(client, handle);
        match self.clients.get_mut(&client) {
            Some(tree) => tree.pinned.add(parent, handle, need),
            None => self.counts.take(&need),
        }
    }

    /// The driver says that pinned pages are behind this handle: an object from now on, which counts as before.
    pub fn add_pinned(&mut self, client: ClientHandle, handle: ObjectHandle, class: u32) {
        let tree = self.clients.get_mut(&client);
        let asked = tree.and_then(|tree| {
            let parent = tree.pinned.parents.get(&handle).copied()?;
            Some((parent, tree.pinned.remove(handle)?))
        });
        let (parent, need) = match asked {
            Some((parent, need)) => (parent, Some(need)),
            // Made under another handle than was asked for: counted where that is possible.
            None => {
                let need = Need::objects(1);
                (
                    ObjectHandle(client.0),
                    self.counts.add(&need).ok().map(|()| need),
                )
            }
        };
        self.add_object(client, parent, handle, class, None);
        let object = self
            .clients
            .get_mut(&client)
            .and_then(|tree| tree.objects.get_mut(&handle));
        match (object, need) {
            (Some(object), Some(need)) => object.needs.push(need),
            (None, Some(need)) => self.counts.take(&need),
            (_, None) => {}
        }
    }

    pub(super) fn unpin(&mut self, client: ClientHandle, handle: ObjectHandle) {
        let tree = self.clients.get_mut(&client);
        if let Some(need) = tree.and_then(|tree| tree.pinned.remove(handle)) {
            self.counts.take(&need);
        }
    }

    pub(super) fn unpin_below(
        &mut self,
        client: ClientHandle,
        parents: impl Iterator<Item = ObjectHandle>,
    ) {
        for parent in parents {
            let tree = self.clients.get_mut(&client);
            let needs = tree.map(|tree| tree.pinned.remove_below(parent));
            for need in needs.unwrap_or_default() {
                self.counts.take(&need);
            }
        }
    }

    /// A client has gone with all that was counted for it beside its objects.
    pub(super) fn count_client_gone(&mut self, client: &Client) {
        for need in needs_of(client) {
            self.counts.take(&need);
        }
    }

    /// The device whose memory an object is, if it is memory of a device.
    pub fn memory_device(&self, client: ClientHandle, handle: ObjectHandle) -> Option<DeviceIndex> {
        let memory = self.object(client, handle)?.memory?;
        let device = self.memories.get(&memory)?.device;
        (device != DeviceIndex::HOST).then_some(device)
    }

    fn settle_claim(&mut self, mut claim: Claim) -> Need {
        claim.settled = true;
        let need = self.claims.remove(&claim.ticket);
        debug_assert!(need.is_some(), "a claim of another ledger: {claim:?}");
        // A claim of another ledger (a bug of the caller) counts for nothing here.
        need.unwrap_or_default()
    }

    /// Counts everything again and compares.
    pub(super) fn audit_counts(&self) -> Result<(), String> {
        let mut again = self.counts.emptied();
        let objects = self.clients.values().flat_map(|tree| tree.objects.values());
        let of_objects =
            objects.flat_map(|object| object.needs.iter().chain(object.mappings.values()).copied());
        let of_clients = self.clients.values().flat_map(needs_of);
        let all = of_objects
            .chain(of_clients)
            .chain(self.claims.values().copied());
        for need in all {
            again
                .add(&need)
                .map_err(|over| format!("counted again: {over}"))?;
        }
        if again == self.counts {
            Ok(())
        } else {
            Err(format!("{:?} is counted, {again:?} is there", self.counts))
        }
    }
}

/// What a client counts for beside its objects.
fn needs_of(client: &Client) -> impl Iterator<Item = Need> {
    let events = client.events.values().map(|&times| times as usize).sum();
    let pinned = client.pinned.needs().copied();
    std::iter::repeat_n(OS_EVENT, events).chain(pinned)
}
