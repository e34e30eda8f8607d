//! `RM_ALLOC`: every object a tenant makes.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use policy::ledger::{Claim, ClientHandle, DeviceIndex, ObjectHandle, Pid, Reservation};
use policy::objects::Need;
use policy::rounding;
use policy::units::Bytes;
use rm::{Account, Charge, Class, Decision, Kind, Status, class, layout};

use super::{Call, Outcome, Stop, Worker};
use crate::rmcall;
use crate::share::levers::Newborn;
use crate::sys::TenantPtr;
use crate::tenant::Unknown;

/// Hidden memory of one object: never taken for less than the first, nor for more than the second. What lies outside is
/// a neighbour's allocation, or a neighbour's release, in the same instant.
///
/// Measured on an H200, driver 580.159: 4,416 KiB a compute group, 64 KiB a channel, nothing for copy groups and engine
/// objects. Other cards may take more, so the upper bounds are many times that.
fn hidden_bounds(kind: Kind, engine: Option<u32>) -> (Bytes, Bytes) {
    const COMPUTE: u32 = 1;
    match (kind, engine) {
        (Kind::ChannelGroup, Some(COMPUTE)) => (Bytes::from_kib(4416), Bytes::from_mib(128)),
        (Kind::ChannelGroup, _) => (Bytes(0), Bytes::from_mib(16)),
        (Kind::Channel, _) => (Bytes::from_kib(64), Bytes::from_mib(4)),
        (Kind::Engine, _) => (Bytes(0), Bytes::from_mib(32)),
        _ => (Bytes(0), Bytes::from_mib(4)),
    }
}

/// Where the long and the short form of the call have their fields.
struct Form {
    status: usize,
    rights: Option<usize>,
}

/// An object about to be made.
struct Request {
    client: u32,
    parent: u32,
    class: &'static Class,
    device: Option<DeviceIndex>,
    /// What it counts for.
    need: Need,
}

impl Worker<'_> {
    pub(super) fn alloc(&mut self, call: &Call, size: usize) -> Outcome {
        use layout::nvos64 as l;
        let form = if size == l::SIZE {
            Form {
                status: l::STATUS,
                rights: Some(l::P_RIGHTS_REQUESTED),
            }
        } else {
            Form {
                status: layout::nvos21::STATUS,
                rights: None,
            }
        };
        let id = self.arg.u32(l::H_CLASS);
        let Some(class) = self.tenant.abi.class(id) else {
            self.unknown(Unknown::Class(id));
            return self.finish_with_status(call, Some(form.status), Status::INVALID_CLASS);
        };
        match class.decision {
            Decision::Refuse(status) => {
                return self.finish_with_status(call, Some(form.status), status);
            }
            Decision::Absorb => {
                return self.finish_with_status(call, Some(form.status), Status::OK);
            }
            Decision::Execute | Decision::Pass | Decision::InTenant => {}
        }
        let params_at = self.arg.u64(l::P_ALLOC_PARMS);
        if params_at != 0 && class.size > 0 {
            self.load_params(call, TenantPtr(params_at), usize::from(class.size))?;
        } else {
            self.params.clear();
        }
        if !self.names_only_own(&self.params, class.foreign) {
            return self.finish_with_status(
                call,
                Some(form.status),
                Status::INSUFFICIENT_PERMISSIONS,
            );
        }
        if class.kind == Kind::Event && !self.names_an_allowed_event() {
            let refused = Status::INSUFFICIENT_PERMISSIONS;
            return self.finish_with_status(call, Some(form.status), refused);
        }
        let (client, parent) = (self.arg.u32(l::H_ROOT), self.arg.u32(l::H_OBJECT_PARENT));
        let device = match self.device_of(class, client, parent) {
            Ok(device) => device,
            Err(status) => return self.finish_with_status(call, Some(form.status), status),
        };
        let capability = self.translate_capability(call, class)?;
        self.point_to_copies(call, &form, params_at)?;
        self.still_waiting(call)?;
        let request = Request {
            client,
            parent,
            class,
            device,
            need: self.need_of(class, device, client, parent),
        };
        if class.kind == Kind::Channel && request.need.group.is_none() {
            // The driver would make it a group that has no handle, and so no slice.
            self.undo_pointers(&form, capability.is_some());
            return self.finish_with_status(call, Some(form.status), Status::NOT_SUPPORTED);
        }
        let Some(claim) = self.tenant.claim(request.need) else {
            self.undo_pointers(&form, capability.is_some());
            return self.finish_with_status(call, Some(form.status), Status::NO_MEMORY);
        };
        // The tenant's memory may have faulted for as long as another thread needed to free a client that is named, and
        // a neighbour to be given its handle.
        if !self.acts_for_own_client() || !self.names_only_own(&self.params, class.foreign) {
            self.tenant.ledger().give_up(claim);
            self.undo_pointers(&form, capability.is_some());
            let refused = Status::INSUFFICIENT_PERMISSIONS;
            return self.finish_with_status(call, Some(form.status), refused);
        }
        let executed = match class.account {
            Account::Charges(Charge::MemoryAllocation) if self.takes_device_memory(class) => {
                self.alloc_memory_object(call, &form, &request)
            }
            _ if class.id == class::NV01_MEMORY_SYSTEM => {
                self.alloc_host_memory(call, &form, &request)
            }
            Account::Charges(Charge::Measured) => match device {
                Some(device) => self.alloc_measured(call, &form, &request, device),
                None => {
                    // As with memory: what takes some hangs below a device of the slice.
                    self.set_status(&form, Status::OBJECT_NOT_FOUND);
                    Ok(0)
                }
            },
            _ => self.alloc_plain(call, &form, &request),
        };
        self.settle(claim, executed.is_ok(), &form, &request);
        self.undo_pointers(&form, capability.is_some());
        let value = executed?;
        self.finish(call, value)
    }

    /// Pointers and descriptor of the copy become the tenant's again.
    fn undo_pointers(&mut self, form: &Form, capability: bool) {
        self.arg.restore(layout::nvos64::P_ALLOC_PARMS, 8);
        if let Some(rights) = form.rights {
            self.arg.restore(rights, 8);
        }
        if capability {
            self.params.restore(0, 8);
        }
    }

    /// What a new object counts for, beside memory.
    fn need_of(
        &self,
        class: &Class,
        device: Option<DeviceIndex>,
        client: u32,
        parent: u32,
    ) -> Need {
        let mut need = Need {
            device,
            ..Need::objects(1)
        };
        let parent = (ClientHandle(client), ObjectHandle(parent));
        match class.kind {
            Kind::Client => need.clients = 1,
            Kind::Event => need.events = 1,
            Kind::ChannelGroup => need.groups = 1,
            Kind::Channel => {
                need.channels = 1;
                let below = self.tenant.ledger().class_of(parent.0, parent.1);
                let kind = below
                    .and_then(|id| self.tenant.abi.class(id))
                    .map(|c| c.kind);
                need.group = (kind == Some(Kind::ChannelGroup)).then_some(parent);
            }
            _ => {}
        }
        need
    }

    /// Whether the parent is still what it was when it was decided what the object counts for and on which card. Asked
    /// in the order of the client's calls: another thread may have freed it since, and made another under its handle.
    /// Otherwise the call is answered as where there is no such parent.
    fn parent_stays(&mut self, form: &Form, request: &Request) -> bool {
        let (class, client, parent) = (request.class, request.client, request.parent);
        let stays = self.device_of(class, client, parent) == Ok(request.device)
            && self.need_of(class, request.device, client, parent) == request.need;
        if !stays {
            self.set_status(form, Status::OBJECT_NOT_FOUND);
        }
        stays
    }

    /// The claim becomes the new object's, if there is one.
    fn settle(&self, claim: Claim, executed: bool, form: &Form, request: &Request) {
        let mut ledger = self.tenant.ledger();
        if !executed || self.status(form) != Status::OK {
            ledger.give_up(claim);
            return;
        }
        let handle = self.new_handle();
        let client = match request.class.kind {
            Kind::Client => handle,
            _ => request.client,
        };
        ledger.attach(claim, ClientHandle(client), ObjectHandle(handle));
    }

    /// The driver makes an event of the class that its parameters name, not of the one that was asked for.
    fn names_an_allowed_event(&self) -> bool {
        use layout::event_alloc as e;
        if self.params.len() < e::SIZE {
            return true;
        }
        let real = self.params.u32(e::H_CLASS);
        let entry = self.tenant.abi.class(real);
        real == 0 || entry.is_some_and(|c| c.kind == Kind::Event && c.decision == Decision::Execute)
    }

    /// MIG monitor and configuration objects name a capability descriptor (u64@0), which the driver resolves in the
    /// table of whoever calls.
    fn translate_capability(
        &mut self,
        call: &Call,
        class: &Class,
    ) -> Result<Option<OwnedFd>, Stop> {
        const WITH_CAPABILITY: [u32; 2] = [0xc639, 0xc640];
        if !WITH_CAPABILITY.contains(&class.id) || self.params.len() < 8 {
            return Ok(None);
        }
        let Ok(number) = i32::try_from(self.params.u64(0)) else {
            return Ok(None);
        };
        let file = call.caller.descriptor(number)?;
        self.params.set_u64(0, file.as_raw_fd() as u64);
        Ok(Some(file))
    }

    /// The device that the new object belongs to; a card outside the slice is refused.
    fn device_of(
        &self,
        class: &Class,
        client: u32,
        parent: u32,
    ) -> Result<Option<DeviceIndex>, Status> {
        if class.kind == Kind::Device {
            let instance = if self.params.len() > 0 {
                self.params.u32(layout::device_alloc::DEVICE_ID)
            } else {
                0
            };
            return match self.tenant.device_by_instance(instance) {
                Some(device) => Ok(Some(device)),
                None => Err(Status::INVALID_ARGUMENT),
            };
        }
        Ok(self
            .tenant
            .ledger()
            .device_of(ClientHandle(client), ObjectHandle(parent)))
    }

    /// The pointers of the copy lead to copies of ours.
    fn point_to_copies(&mut self, call: &Call, form: &Form, params_at: u64) -> Result<(), Stop> {
        use layout::nvos64 as l;
        let copy = if params_at != 0 && self.params.len() > 0 {
            self.params.address()
        } else {
            0
        };
        self.arg.set_u64(l::P_ALLOC_PARMS, copy);
        if let Some(at) = form.rights {
            let rights_at = self.arg.u64(at);
            if rights_at != 0 {
                // A mask of access rights, one 32-bit word (RS_ACCESS_MASK).
                self.load_extra(call, rights_at, 4)?;
                let address = self.extra[0].address();
                self.arg.set_u64(at, address);
            }
        }
        Ok(())
    }

    fn takes_device_memory(&self, class: &Class) -> bool {
        use layout::memory_allocation as m;
        class.id == class::NV01_MEMORY_LOCAL_USER
            || (self.params.len() >= usize::from(class.size)
                && rounding::in_vidmem(self.params.u32(m::ATTR)))
    }

    fn status(&self, form: &Form) -> Status {
        Status(self.arg.u32(form.status))
    }

    fn set_status(&mut self, form: &Form, status: Status) {
        self.arg.set_u32(form.status, status.0);
    }

    fn new_handle(&self) -> u32 {
        self.arg.u32(layout::nvos64::H_OBJECT_NEW)
    }

    /// An object without device memory of its own.
    fn alloc_plain(&mut self, call: &Call, form: &Form, request: &Request) -> Result<i32, Stop> {
        // A new client gets the handle that the first word asks for, if it does. Another thread may just be freeing the
        // client that has it still.
        let of = match request.class.kind {
            Kind::Client => self.new_handle(),
            _ => request.client,
        };
        let _order = self.tenant.in_order_two(request.client, of);
        if !self.parent_stays(form, request) {
            return Ok(0);
        }
        let value = self.execute(call)?;
        if self.status(form) == Status::OK {
            self.enter(call, form, request)?;
        }
        Ok(value)
    }

    /// Enters a new object; a new client also binds its file.
    fn enter(&mut self, call: &Call, form: &Form, request: &Request) -> Result<(), Stop> {
        let handle = self.new_handle();
        if request.class.kind != Kind::Client {
            self.tenant.ledger().add_object(
                ClientHandle(request.client),
                ObjectHandle(request.parent),
                ObjectHandle(handle),
                request.class.id,
                request.device,
            );
            return Ok(());
        }
        let number = call.n.args[0] as i32;
        let watched = self
            .tenant
            .files()
            .add_client(call.file.fd(), number, handle);
        if let Err(e) = watched {
            // A client whose close would not be noticed may not live.
            self.take_back(call, (handle, handle, handle));
            self.set_status(form, Status::NO_MEMORY);
            return Err(e.into());
        }
        self.tenant
            .ledger()
            .add_client(ClientHandle(handle), Pid(call.caller.process));
        Ok(())
    }

    /// Device memory of a stated size: charged before the driver is asked.
    fn alloc_memory_object(
        &mut self,
        call: &Call,
        form: &Form,
        request: &Request,
    ) -> Result<i32, Stop> {
        use layout::memory_allocation as m;
        let Some(device) = request.device else {
            // Memory hangs below a device of the slice; the driver would refuse it too.
            self.set_status(form, Status::OBJECT_NOT_FOUND);
            return Ok(0);
        };
        if self.params.len() < usize::from(request.class.size) {
            self.set_status(form, Status::INVALID_ARGUMENT);
            return Ok(0);
        }
        let (size, attr) = (self.params.u64(m::SIZE_FIELD), self.params.u32(m::ATTR));
        let (attr2, flags) = (self.params.u32(m::ATTR2), self.params.u32(m::FLAGS));
        let Some(amount) = self.amount(size, attr, attr2, flags) else {
            self.set_status(form, Status::INVALID_ARGUMENT);
            return Ok(0);
        };
        let _memory = self.tenant.device_memory.read();
        let _order = self.tenant.in_order(request.client);
        if !self.parent_stays(form, request) {
            return Ok(0);
        }
        let Some(reservation) = self.reserve_for_call(call, device, amount) else {
            self.set_status(form, Status::NO_MEMORY);
            return Ok(0);
        };
        let executed = self.execute(call);
        let reservation = match reservation {
            Some(r) => Some(r),
            None => self.tenant.ledger().reserve(device, amount).ok(),
        };
        if let Some(reservation) = reservation {
            self.settle_memory(reservation, executed.is_ok(), form, request);
        }
        Ok(executed?)
    }

    /// The reservation becomes the new object's memory, if there is one.
    fn settle_memory(
        &self,
        reservation: Reservation,
        executed: bool,
        form: &Form,
        request: &Request,
    ) {
        let mut ledger = self.tenant.ledger();
        if !executed || self.status(form) != Status::OK {
            ledger.cancel(reservation);
            return;
        }
        let handle = ObjectHandle(self.new_handle());
        let (client, parent) = (ClientHandle(request.client), ObjectHandle(request.parent));
        ledger.commit_memory(reservation, client, parent, handle, request.class.id);
    }

    /// Memory of the host that the driver allocates: in nobody's cgroup, so the slice has a quota of it.
    fn alloc_host_memory(
        &mut self,
        call: &Call,
        form: &Form,
        request: &Request,
    ) -> Result<i32, Stop> {
        use layout::memory_allocation as m;
        if self.params.len() < usize::from(request.class.size) {
            self.set_status(form, Status::INVALID_ARGUMENT);
            return Ok(0);
        }
        let (size, attr) = (self.params.u64(m::SIZE_FIELD), self.params.u32(m::ATTR));
        let Some(amount) = host_amount(size, attr, self.params.u32(m::ATTR2)) else {
            self.set_status(form, Status::NO_MEMORY);
            return Ok(0);
        };
        let Some(reservation) = self.tenant.reserve_host(amount, call.caller.tid) else {
            self.set_status(form, Status::NO_MEMORY);
            return Ok(0);
        };
        let _order = self.tenant.in_order(request.client);
        if !self.parent_stays(form, request) {
            self.tenant.ledger().cancel(reservation);
            return Ok(0);
        }
        let executed = self.execute(call);
        self.settle_memory(reservation, executed.is_ok(), form, request);
        Ok(executed?)
    }

    /// Charges before the call. `None`: over quota. `Some(None)`: the demo has taken that wall away, so that the charge
    /// comes after the call, as where check and allocation are two steps.
    fn reserve_for_call(
        &self,
        call: &Call,
        device: DeviceIndex,
        amount: Bytes,
    ) -> Option<Option<Reservation>> {
        if self.tenant.walls.race_no_overshoot {
            return self
                .tenant
                .reserve(device, amount, call.caller.tid)
                .map(Some);
        }
        (self.tenant.ledger().free_bytes(device) >= amount).then_some(None)
    }

    /// An object that takes memory nobody states (context buffers, instance memory): the memory that is free before and
    /// after tells how much. What it took last time is charged beforehand; once that is the least it can be, no
    /// measurement can change the charge, and none is made.
    fn alloc_measured(
        &mut self,
        call: &Call,
        form: &Form,
        request: &Request,
        device: DeviceIndex,
    ) -> Result<i32, Stop> {
        let gpu = &self.tenant.device(device).gpu;
        let engine = self.engine_of(request);
        let key = (device.0, request.class.id, engine);
        let expected = crate::tenant::lock(&self.tenant.implicit)
            .get(&key)
            .copied();
        let (least, most) = hidden_bounds(request.class.kind, engine);
        if expected == Some(least) {
            return self.alloc_with_hidden(call, form, request, (device, least));
        }
        let _memory = self.tenant.device_memory.write();
        let _order = self.tenant.in_order(request.client);
        if !self.parent_stays(form, request) {
            return Ok(0);
        }
        let Ok(reservation) = self
            .tenant
            .ledger()
            .reserve(device, expected.unwrap_or_default())
        else {
            self.set_status(form, Status::NO_MEMORY);
            return Ok(0);
        };
        let before = self.tenant.own.free_memory(gpu);
        let executed = self.execute(call);
        let ok = executed.is_ok() && self.status(form) == Status::OK;
        if !ok {
            self.tenant.ledger().cancel(reservation);
            return Ok(executed?);
        }
        let after = self.tenant.own.free_memory(gpu);
        let measured = match (before, after) {
            (Ok(before), Ok(after)) => before.saturating_sub(after),
            _ => expected.unwrap_or(most),
        };
        // A neighbour's allocation in the same instant makes a difference larger: the least seen is nearest to the truth.
        let charge = expected
            .map_or(measured, |e| e.min(measured))
            .clamp(least, most);
        self.tenant.ledger().cancel(reservation);
        let charged = self.tenant.ledger().reserve(device, charge);
        let Ok(reservation) = charged else {
            let handle = self.new_handle();
            self.take_back(call, (request.client, request.parent, handle));
            self.set_status(form, Status::NO_MEMORY);
            return Ok(executed?);
        };
        crate::tenant::lock(&self.tenant.implicit).insert(key, charge);
        self.enter_with_hidden(call, form, request, reservation)?;
        Ok(executed?)
    }

    /// A new group, channel or context is under the scheduler's rule before its tenant learns of it.
    fn pull_levers(
        &self,
        call: &Call,
        request: &Request,
        (client, handle): (ClientHandle, ObjectHandle),
    ) -> io::Result<()> {
        let Some(levers) = &self.tenant.levers else {
            return Ok(());
        };
        let parent = ObjectHandle(request.parent);
        match (request.class.kind, request.device) {
            (Kind::ChannelGroup, Some(device)) => levers.born(
                self.tenant,
                &Newborn {
                    name: (client, handle),
                    device,
                    engine: self.engine_of(request).unwrap_or_default(),
                    file: &call.file,
                },
            ),
            (Kind::Channel, _) => levers.channel_born(self.tenant, (client, parent), handle),
            (Kind::Engine, _) if computes(request.class.id) => {
                let group = self.tenant.ledger().parent_of(client, parent);
                let group = group.ok_or_else(|| io::Error::other("its channel has no group"))?;
                levers.computes(self.tenant, &call.file, (client, group))
            }
            _ => Ok(()),
        }
    }

    /// Frees an object (client, parent, handle) that the tenant may not have after all. One that stays would be charged to
    /// nobody.
    fn take_back(&self, call: &Call, (client, parent, handle): (u32, u32, u32)) {
        let backend = self.tenant.backend.as_ref();
        let freed = rmcall::free(backend, call.file.fd(), client, parent, handle);
        if !matches!(freed, Ok(Status::OK)) {
            self.tenant.condemn(format!(
                "object {handle:#x} of client {client:#x} could neither be charged nor freed"
            ));
        }
    }

    /// The engine of the group that comes with an object, if one does: its context buffers are the most of what is hidden.
    fn engine_of(&self, request: &Request) -> Option<u32> {
        if request.need.groups == 0 {
            return None;
        }
        let at = layout::channel_group_alloc::ENGINE_TYPE;
        Some(if at + 4 <= self.params.len() {
            self.params.u32(at)
        } else {
            0
        })
    }

    /// An object whose hidden memory is known.
    fn alloc_with_hidden(
        &mut self,
        call: &Call,
        form: &Form,
        request: &Request,
        (device, hidden): (DeviceIndex, Bytes),
    ) -> Result<i32, Stop> {
        let _memory = self.tenant.device_memory.read();
        let _order = self.tenant.in_order(request.client);
        if !self.parent_stays(form, request) {
            return Ok(0);
        }
        let Ok(reservation) = self.tenant.ledger().reserve(device, hidden) else {
            self.set_status(form, Status::NO_MEMORY);
            return Ok(0);
        };
        let executed = self.execute(call);
        if executed.is_ok() && self.status(form) == Status::OK {
            self.enter_with_hidden(call, form, request, reservation)?;
        } else {
            self.tenant.ledger().cancel(reservation);
        }
        Ok(executed?)
    }

    fn enter_with_hidden(
        &mut self,
        call: &Call,
        form: &Form,
        request: &Request,
        reservation: Reservation,
    ) -> Result<(), Stop> {
        self.enter(call, form, request)?;
        let handle = ObjectHandle(self.new_handle());
        let client = ClientHandle(request.client);
        if let Err(why) = self.pull_levers(call, request, (client, handle)) {
            self.tenant.ledger().cancel(reservation);
            self.tenant.ledger().free(client, handle);
            self.take_back(call, (request.client, request.parent, handle.0));
            self.set_status(form, Status::NOT_SUPPORTED);
            self.tenant.say(&format!("refused a context: {why}"));
            return Ok(());
        }
        let attached = self
            .tenant
            .ledger()
            .charge_object(reservation, client, handle);
        debug_assert!(attached.is_ok(), "the object was entered just now");
        Ok(())
    }
}

/// Whether a class computes: NVIDIA numbers a class by its generation and, in the low byte, by its purpose.
fn computes(class: u32) -> bool {
    class & 0xff == 0xc0
}

/// What the driver takes of the host's memory at most: pages of the size that the attributes ask for. `None`: nobody has
/// so much.
pub(super) fn host_amount(size: u64, attr: u32, attr2: u32) -> Option<Bytes> {
    Bytes(size).checked_round_up(rounding::page_size(size, attr, attr2))
}
