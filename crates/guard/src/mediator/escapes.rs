//! Frontend ioctls: `/dev/nvidiactl` and `/dev/nvidiaN`.

use std::os::fd::AsFd;

use policy::ledger::{ClientHandle, DeviceIndex, ObjectHandle};
use policy::objects::Need;
use policy::rounding;
use policy::units::Bytes;
use rm::{Decision, Escape, Status, class, ctrl, layout, nr};

use super::alloc::host_amount;
use super::{Call, Outcome, Stop, Worker};
use crate::backend::Node;
use crate::listener::Reply;
use crate::rmcall;
use crate::tenant::Unknown;

/// What `NV0000_CLIENT_GET_HANDLE_INFO` is asked for: the class of an object.
const HANDLE_INFO_CLASS: u32 = 2;

/// `NVOS32_FUNCTION_*` that allocate memory.
const ALLOC_SIZE: u32 = 2;
const FREE: u32 = 3;
const ALLOC_TILED: u32 = 6;
const ALLOC_RANGE: u32 = 14;
/// Functions that may reach the driver: allocate, free, and those that only ask. Others carry pointers, or pin pages of
/// the caller, which is the helper (27: `RM_ALLOC_MEMORY` does the same in the tenant).
const VID_HEAP_FUNCTIONS: [u32; 8] = [ALLOC_SIZE, FREE, 5, ALLOC_TILED, ALLOC_RANGE, 15, 16, 18];

/// Calls that act for the client at the start of their block. The driver asks whether the caller's process or user may,
/// and to it the caller is the helper, which has a client of its own.
const ACTS_FOR_A_CLIENT: [u8; 12] = [
    nr::RM_FREE,
    nr::RM_CONTROL,
    nr::RM_ALLOC,
    nr::RM_DUP_OBJECT,
    nr::RM_SHARE,
    nr::RM_VID_HEAP_CONTROL,
    nr::RM_MAP_MEMORY,
    nr::RM_UNMAP_MEMORY,
    nr::RM_ALLOC_CONTEXT_DMA2,
    nr::RM_MAP_MEMORY_DMA,
    nr::RM_UNMAP_MEMORY_DMA,
    nr::RM_UPDATE_DEVICE_MAPPING_INFO,
];

impl Worker<'_> {
    /// Whether the client at the start of the block is this tenant's. Nobody is named where a client is made.
    pub(super) fn acts_for_own_client(&self) -> bool {
        let client = self.arg.u32(0);
        client == 0 || self.tenant.owns_client(client)
    }

    pub(super) fn escape(&mut self, call: &Call) -> Outcome {
        let number = call.request as u8;
        let size = (call.request >> 16 & 0x3fff) as usize;
        let Some(entry) = self.tenant.abi.escape(number) else {
            self.unknown(Unknown::Escape(number));
            return Err(Stop::Errno(libc::EINVAL));
        };
        // The filter takes a bare number for a UVM word, and here it has no size: the driver refuses it too.
        let sized = entry.sizes.iter().any(|&s| usize::from(s) == size);
        if !sized && !rm::UNSIZED_ESCAPES.contains(&number) {
            return Err(Stop::Errno(libc::EINVAL));
        }
        self.extra.clear();
        if matches!(number, nr::RM_CONTROL | nr::RM_ALLOC) {
            self.load_arg(call, size)?;
        } else {
            self.arg.load(&call.caller, call.arg, size)?;
        }
        let status_at = status_offset(entry, size);
        match entry.decision {
            Decision::Refuse(status) => return self.finish_with_status(call, status_at, status),
            Decision::Absorb => return self.finish_with_status(call, status_at, Status::OK),
            Decision::InTenant => return self.alloc_memory(call),
            Decision::Pass | Decision::Execute => {}
        }
        if !self.names_only_own(&self.arg, entry.foreign) {
            return self.finish_with_status(call, status_at, Status::INSUFFICIENT_PERMISSIONS);
        }
        if ACTS_FOR_A_CLIENT.contains(&number) && !self.acts_for_own_client() {
            return self.finish_with_status(call, status_at, Status::INVALID_CLIENT);
        }
        match number {
            nr::RM_ALLOC => self.alloc(call, size),
            nr::RM_CONTROL => self.control(call),
            nr::RM_FREE => self.free(call),
            nr::RM_DUP_OBJECT => self.dup_object(call),
            nr::RM_SHARE => self.share(call),
            nr::RM_VID_HEAP_CONTROL => self.vid_heap(call),
            nr::RM_MAP_MEMORY => self.map_memory(call),
            nr::RM_UNMAP_MEMORY => self.unmap_memory(call),
            nr::RM_UPDATE_DEVICE_MAPPING_INFO => self.move_mapping(call),
            nr::RM_ALLOC_CONTEXT_DMA2 => self.alloc_context_dma(call),
            nr::ALLOC_OS_EVENT => self.alloc_os_event(call),
            nr::FREE_OS_EVENT => self.free_os_event(call),
            nr::RM_GET_EVENT_DATA => self.event_data(call),
            nr::RM_MAP_MEMORY_DMA => self.map_memory_dma(call),
            nr::REGISTER_FD => self.with_descriptor(call, layout::register_fd::CTL_FD),
            nr::CARD_INFO => self.card_info(call),
            nr::ATTACH_GPUS_TO_FD => self.attach_cards(call),
            nr::EXPORT_TO_DMABUF_FD => self.export_to_dmabuf(call),
            _ => self.plain(call),
        }
    }

    /// Executes a block that holds nothing to translate.
    pub(super) fn plain(&mut self, call: &Call) -> Outcome {
        self.still_waiting(call)?;
        let value = self.execute(call)?;
        self.finish(call, value)
    }

    /// `RM_ALLOC_MEMORY` pins pages of the caller, so it runs in the tenant. Whatever a racing thread makes of its
    /// parameters, the object it leaves is usable only through calls that ask the driver for its class first
    /// ([`Worker::memory_is_known`]).
    fn alloc_memory(&mut self, call: &Call) -> Outcome {
        if self.arg.u32(layout::nvos02::H_CLASS) != class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR {
            return self.finish_with_status(
                call,
                Some(layout::nvos02::STATUS),
                Status::INVALID_CLASS,
            );
        }
        use layout::nvos02 as l;
        let client = self.arg.u32(l::H_ROOT);
        let Some(claim) = self.tenant.claim(Need::objects(1)) else {
            return self.finish_with_status(call, Some(l::STATUS), Status::NO_MEMORY);
        };
        self.tenant.ledger().pin(
            claim,
            ClientHandle(client),
            ObjectHandle(self.arg.u32(l::H_OBJECT_PARENT)),
            ObjectHandle(self.arg.u32(l::H_OBJECT_NEW)),
        );
        self.still_waiting(call)?;
        Ok(Reply::Continue)
    }

    /// Memory may be used only if the guard saw it made, or if the driver says that it is pinned pages of the caller.
    pub(super) fn memory_is_known(
        &self,
        call: &Call,
        client: u32,
        memory: u32,
    ) -> Result<bool, Stop> {
        if self
            .tenant
            .ledger()
            .knows(ClientHandle(client), ObjectHandle(memory))
        {
            return Ok(true);
        }
        let Some(number) = self.tenant.files().client_number(client) else {
            return Ok(false);
        };
        let file = call.caller.descriptor(number)?;
        // Another thread may free the object now and allocate memory under its handle: what the driver says and its
        // entry are one step.
        let _order = self.tenant.in_order(client);
        if self
            .tenant
            .ledger()
            .knows(ClientHandle(client), ObjectHandle(memory))
        {
            return Ok(true);
        }
        if self.tenant.backend.classify(file.as_fd())? != Some(Node::Control) {
            return Ok(false);
        }
        use layout::handle_info as l;
        let mut info = [0u8; l::SIZE];
        rmcall::put_u32(&mut info, l::H_OBJECT, memory);
        rmcall::put_u32(&mut info, l::INDEX, HANDLE_INFO_CLASS);
        let backend = self.tenant.backend.as_ref();
        let status = rmcall::control(
            backend,
            file.as_fd(),
            client,
            client,
            ctrl::NV0000_CLIENT_GET_HANDLE_INFO,
            &mut info,
        )?;
        if status != Status::OK {
            return Ok(false);
        }
        let class = rmcall::u32_at(&info, l::DATA);
        if class != class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR {
            self.tenant.condemn(format!(
                "object {memory:#x} of client {client:#x} has class {class:#x}, made past the guard by swapping parameters"
            ));
            return Ok(false);
        }
        self.tenant.ledger().add_pinned(
            ClientHandle(client),
            ObjectHandle(memory),
            class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
        );
        Ok(true)
    }

    /// Whether memory that was known is known still. Asked again in the order of its client's calls: another thread may
    /// have freed it since, and made an object under its handle whose class nobody has looked at.
    pub(super) fn still_known(&self, client: u32, memory: u32) -> bool {
        self.tenant
            .ledger()
            .knows(ClientHandle(client), ObjectHandle(memory))
    }

    /// The driver writes the event through a pointer in the block.
    fn event_data(&mut self, call: &Call) -> Outcome {
        use layout::nvos41 as l;
        /// `NvUnixEvent` (nvos.h): object, index, 32 and 16 bits of information.
        const EVENT: usize = 16;
        let to = self.arg.u64(l::P_EVENT);
        if to == 0 {
            return self.finish_with_status(call, Some(l::STATUS), Status::INVALID_ARGUMENT);
        }
        self.load_extra(call, to, EVENT)?;
        let copy = self.extra[0].address();
        self.arg.set_u64(l::P_EVENT, copy);
        self.still_waiting(call)?;
        let value = self.execute(call)?;
        self.arg.restore(l::P_EVENT, 8);
        self.finish(call, value)
    }

    fn free(&mut self, call: &Call) -> Outcome {
        use layout::nvos00 as l;
        self.still_waiting(call)?;
        let (client, handle) = (self.arg.u32(l::H_ROOT), self.arg.u32(l::H_OBJECT_OLD));
        let memory = self.tenant.device_memory.read();
        let order = self.tenant.in_order(client);
        let value = self.execute(call)?;
        if self.arg.u32(l::STATUS) == Status::OK.0 {
            if client == handle {
                self.tenant.files().forget_client(client);
                self.tenant.ledger().free_client(ClientHandle(client));
            } else {
                self.tenant
                    .ledger()
                    .free(ClientHandle(client), ObjectHandle(handle));
            }
        }
        // The tenant's memory may fault for as long as it likes: nobody else waits for that.
        drop((order, memory));
        self.finish(call, value)
    }

    fn dup_object(&mut self, call: &Call) -> Outcome {
        use layout::nvos55 as l;
        let (client, source) = (self.arg.u32(l::H_CLIENT), self.arg.u32(l::H_CLIENT_SRC));
        let object = self.arg.u32(l::H_OBJECT_SRC);
        if !self.memory_is_known(call, source, object)? {
            return self.finish_with_status(call, Some(l::STATUS), Status::OBJECT_NOT_FOUND);
        }
        let need = self.need_of_alias(source, object);
        let Some(claim) = self.tenant.claim(need) else {
            return self.finish_with_status(call, Some(l::STATUS), Status::NO_MEMORY);
        };
        let waiting = self.still_waiting(call);
        let order = self.tenant.in_order_two(client, source);
        let stays = self.tenant.named_clients_stay();
        // What another thread has made under its handle meanwhile may count for more.
        if !self.still_known(source, object) || self.need_of_alias(source, object) != need {
            self.tenant.ledger().give_up(claim);
            drop((order, stays));
            return self.finish_with_status(call, Some(l::STATUS), Status::OBJECT_NOT_FOUND);
        }
        let executed = waiting.and_then(|()| Ok(self.execute(call)?));
        if executed.is_err() || self.arg.u32(l::STATUS) != Status::OK.0 {
            self.tenant.ledger().give_up(claim);
        } else {
            let added = self.tenant.ledger().add_alias(
                ClientHandle(client),
                ObjectHandle(self.arg.u32(l::H_PARENT)),
                ObjectHandle(self.arg.u32(l::H_OBJECT)),
                ClientHandle(source),
                ObjectHandle(object),
            );
            if added.is_err() {
                self.tenant.condemn(format!(
                    "client {client:#x} duplicated an object that the ledger lost"
                ));
            }
            let handle = ObjectHandle(self.arg.u32(l::H_OBJECT));
            self.tenant
                .ledger()
                .attach(claim, ClientHandle(client), handle);
        }
        drop((order, stays));
        let value = executed?;
        self.finish(call, value)
    }

    /// A second name for a group may outlive the first, and keeps the group.
    fn need_of_alias(&self, client: u32, object: u32) -> Need {
        let (client, object) = (ClientHandle(client), ObjectHandle(object));
        let ledger = self.tenant.ledger();
        let group = ledger.class_of(client, object) == Some(class::KEPLER_CHANNEL_GROUP_A);
        Need {
            groups: u32::from(group),
            device: ledger.device_of(client, object),
            ..Need::objects(1)
        }
    }

    /// Share with one's own process, never with the user or everybody: helpers of several tenants can have one user.
    fn share(&mut self, call: &Call) -> Outcome {
        use layout::nvos57 as l;
        const CLIENT: u32 = 3;
        let target = self.arg.u32(l::TARGET);
        if self.arg.u32(l::TYPE) & 0xffff == CLIENT && !self.tenant.owns_client(target) {
            return self.finish_with_status(
                call,
                Some(l::STATUS),
                Status::INSUFFICIENT_PERMISSIONS,
            );
        }
        limit_share_type(&mut self.arg.bytes, l::TYPE);
        self.still_waiting(call)?;
        let value = self.execute(call)?;
        self.arg.restore(l::TYPE, 2);
        self.finish(call, value)
    }

    fn vid_heap(&mut self, call: &Call) -> Outcome {
        use layout::nvos32 as l;
        let function = self.arg.u32(l::FUNCTION);
        if !VID_HEAP_FUNCTIONS.contains(&function) {
            return self.finish_with_status(call, Some(l::STATUS), Status::NOT_SUPPORTED);
        }
        let client = self.arg.u32(l::H_ROOT);
        let parent = self.arg.u32(l::H_OBJECT_PARENT);
        let device = self
            .tenant
            .ledger()
            .device_of(ClientHandle(client), ObjectHandle(parent));
        let asked = vid_heap_request(function, &self.arg.bytes);
        let amount = match asked {
            None => Bytes(0),
            Some((size, attr, attr2, flags)) => match self.amount(size, attr, attr2, flags) {
                Some(amount) => amount,
                None => {
                    return self.finish_with_status(
                        call,
                        Some(l::STATUS),
                        Status::INVALID_ARGUMENT,
                    );
                }
            },
        };
        let (Some(device), Some(_)) = (device, asked) else {
            if asked.is_some() {
                return self.finish_with_status(call, Some(l::STATUS), Status::OBJECT_NOT_FOUND);
            }
            return match vid_heap_fields(function, &self.arg.bytes) {
                Some(fields) => self.vid_heap_of_host(call, function, device, fields),
                None => self.vid_heap_without_memory(call, function, device),
            };
        };
        self.still_waiting(call)?;
        let Some(claim) = self.tenant.claim(Need::objects(1)) else {
            return self.finish_with_status(call, Some(l::STATUS), Status::NO_MEMORY);
        };
        let memory = self.tenant.device_memory.read();
        let order = self.tenant.in_order(client);
        // Another thread may have freed the parent since, and made one of another card under its handle.
        let (on, below) = (ClientHandle(client), ObjectHandle(parent));
        if self.tenant.ledger().device_of(on, below) != Some(device) {
            drop((order, memory));
            self.tenant.ledger().give_up(claim);
            return self.finish_with_status(call, Some(l::STATUS), Status::OBJECT_NOT_FOUND);
        }
        let Some(reservation) = self.tenant.reserve(device, amount, call.caller.tid) else {
            drop((order, memory));
            self.tenant.ledger().give_up(claim);
            return self.finish_with_status(call, Some(l::STATUS), Status::NO_MEMORY);
        };
        let executed = self.execute_vid_heap(call, function);
        let ok = executed.is_ok() && self.arg.u32(l::STATUS) == Status::OK.0;
        if ok {
            let handle = ObjectHandle(self.arg.u32(layout::nvos32_alloc_size::H_MEMORY));
            let client = ClientHandle(client);
            let mut ledger = self.tenant.ledger();
            ledger.commit_memory(
                reservation,
                client,
                ObjectHandle(parent),
                handle,
                class::NV01_MEMORY_LOCAL_USER,
            );
            ledger.attach(claim, client, handle);
        } else {
            let mut ledger = self.tenant.ledger();
            ledger.cancel(reservation);
            ledger.give_up(claim);
        }
        drop((order, memory));
        let value = executed?;
        self.show_slice_in_vid_heap(device);
        self.finish(call, value)
    }

    /// Memory of the host, or addresses only.
    fn vid_heap_of_host(
        &mut self,
        call: &Call,
        function: u32,
        device: Option<DeviceIndex>,
        (size, attr, attr2, flags): (u64, u32, u32, u32),
    ) -> Outcome {
        use layout::nvos32 as l;
        self.still_waiting(call)?;
        let amount = if rounding::is_virtual(flags) {
            Some(Bytes::ZERO)
        } else {
            host_amount(size, attr, attr2)
        };
        let thread = call.caller.tid;
        let Some(reservation) = amount.and_then(|a| self.tenant.reserve_host(a, thread)) else {
            return self.finish_with_status(call, Some(l::STATUS), Status::NO_MEMORY);
        };
        let Some(claim) = self.tenant.claim(Need::objects(1)) else {
            self.tenant.ledger().cancel(reservation);
            return self.finish_with_status(call, Some(l::STATUS), Status::NO_MEMORY);
        };
        let client = ClientHandle(self.arg.u32(l::H_ROOT));
        let order = self.tenant.in_order(client.0);
        let executed = self.execute_vid_heap(call, function);
        let mut ledger = self.tenant.ledger();
        if executed.is_ok() && self.arg.u32(l::STATUS) == Status::OK.0 {
            let parent = ObjectHandle(self.arg.u32(l::H_OBJECT_PARENT));
            let handle = ObjectHandle(self.arg.u32(layout::nvos32_alloc_size::H_MEMORY));
            ledger.commit_memory(
                reservation,
                client,
                parent,
                handle,
                class::NV01_MEMORY_SYSTEM,
            );
            ledger.attach(claim, client, handle);
        } else {
            ledger.cancel(reservation);
            ledger.give_up(claim);
        }
        drop((ledger, order));
        let value = executed?;
        if let Some(device) = device {
            self.show_slice_in_vid_heap(device);
        }
        self.finish(call, value)
    }

    /// What allocates nothing: questions, and the end of memory.
    fn vid_heap_without_memory(
        &mut self,
        call: &Call,
        function: u32,
        device: Option<DeviceIndex>,
    ) -> Outcome {
        use layout::nvos32 as l;
        self.still_waiting(call)?;
        let client = self.arg.u32(l::H_ROOT);
        // What goes meanwhile would be missing from a measurement.
        let memory = self.tenant.device_memory.read();
        let order = self.tenant.in_order(client);
        let value = self.execute_vid_heap(call, function)?;
        if function == FREE && self.arg.u32(l::STATUS) == Status::OK.0 {
            let handle = self.arg.u32(layout::nvos32_free::H_MEMORY);
            let mut ledger = self.tenant.ledger();
            ledger.free(ClientHandle(client), ObjectHandle(handle));
        }
        drop((order, memory));
        if let Some(device) = device {
            self.show_slice_in_vid_heap(device);
        }
        self.finish(call, value)
    }

    /// The field `address` is the tenant's pointer and means nothing in the helper: the driver is shown none. What it
    /// puts there itself is handed on.
    fn execute_vid_heap(&mut self, call: &Call, function: u32) -> std::io::Result<i32> {
        use layout::{nvos32_alloc_range as r, nvos32_alloc_size as s, nvos32_alloc_tiled as t};
        let at = match function {
            ALLOC_SIZE => s::ADDRESS,
            ALLOC_TILED => t::ADDRESS,
            ALLOC_RANGE => r::ADDRESS,
            _ => return self.execute(call),
        };
        self.arg.set_u64(at, 0);
        let value = self.execute(call);
        if self.arg.u64(at) == 0 {
            self.arg.restore(at, 8);
        }
        value
    }

    /// Memory that an allocation will take: the driver's rounded size. `None`: no allocation can have this size.
    pub(super) fn amount(&self, size: u64, attr: u32, attr2: u32, flags: u32) -> Option<Bytes> {
        if !self.tenant.walls.quota_exact || self.uncharged {
            return Some(Bytes(0));
        }
        if !self.tenant.walls.size_rounding {
            return Some(Bytes(size));
        }
        rounding::rounded(size, attr, attr2, flags)
    }

    fn map_memory_dma(&mut self, call: &Call) -> Outcome {
        use layout::nvos46 as l;
        let status_at = Some(self.tenant.abi.layout().nvos46.status);
        let (client, memory) = (self.arg.u32(l::H_CLIENT), self.arg.u32(l::H_MEMORY));
        if !self.memory_is_known(call, client, memory)? {
            return self.finish_with_status(call, status_at, Status::OBJECT_NOT_FOUND);
        }
        self.still_waiting(call)?;
        let order = self.tenant.in_order(client);
        if !self.still_known(client, memory) {
            drop(order);
            return self.finish_with_status(call, status_at, Status::OBJECT_NOT_FOUND);
        }
        let value = self.execute(call)?;
        drop(order);
        self.finish(call, value)
    }

    /// Executes a block with a descriptor number at `at`, resolved in the calling thread's table.
    pub(super) fn with_descriptor(&mut self, call: &Call, at: usize) -> Outcome {
        let value = self.execute_with_descriptor(call, at)?;
        self.finish(call, value)
    }

    pub(super) fn execute_with_descriptor(&mut self, call: &Call, at: usize) -> Result<i32, Stop> {
        use std::os::fd::AsRawFd;
        let number = self.arg.u32(at) as i32;
        let file = if number >= 0 {
            Some(call.caller.descriptor(number)?)
        } else {
            None
        };
        if let Some(file) = &file {
            self.arg.set_u32(at, file.as_raw_fd() as u32);
        }
        self.still_waiting(call)?;
        let value = self.execute(call)?;
        self.arg.restore(at, 4);
        Ok(value)
    }

    /// Copies what an embedded pointer points to; a null pointer gives an empty block.
    pub(super) fn load_extra(&mut self, call: &Call, from: u64, len: usize) -> Result<(), Stop> {
        let mut block = crate::block::Block::default();
        if from != 0 {
            block.load(&call.caller, crate::sys::TenantPtr(from), len)?;
        } else {
            block.bytes.resize(len, 0);
        }
        self.extra.push(block);
        Ok(())
    }

    /// A card that is tied to a file is kept awake by it: only those of the slice.
    fn attach_cards(&mut self, call: &Call) -> Outcome {
        let ids = self.arg.bytes[..self.arg.len()].chunks_exact(4);
        let devices = &self.tenant.devices;
        let own = |id: u32| id == 0 || devices.iter().any(|d| d.gpu.gpu_id == id);
        if !ids.map(|id| rmcall::u32_at(id, 0)).all(own) {
            return Err(Stop::Errno(libc::EINVAL));
        }
        self.plain(call)
    }

    /// Cards outside the slice are not there.
    fn card_info(&mut self, call: &Call) -> Outcome {
        use layout::card_info as l;
        self.still_waiting(call)?;
        let value = self.execute(call)?;
        let len = self.arg.len();
        for card in self.arg.bytes[..len].chunks_exact_mut(l::SIZE) {
            let id = rmcall::u32_at(card, l::GPU_ID);
            if card[l::VALID] != 0 && !self.tenant.devices.iter().any(|d| d.gpu.gpu_id == id) {
                card.fill(0);
            }
        }
        self.finish(call, value)
    }

    /// The driver installs a new descriptor in the caller, which is the helper: it is handed on.
    fn export_to_dmabuf(&mut self, call: &Call) -> Outcome {
        use layout::export_to_dmabuf_fd as l;
        use std::os::fd::{FromRawFd, OwnedFd};
        let at = self.tenant.abi.layout().export_to_dmabuf_fd;
        let client = self.arg.u32(l::H_CLIENT);
        if !self.tenant.owns_client(client) {
            return self.finish_with_status(call, Some(at.status), Status::INVALID_CLIENT);
        }
        let count = (self.arg.u32(l::NUM_OBJECTS) as usize).min(128);
        let objects: Vec<u32> = (0..count)
            .map(|i| self.arg.u32(at.handles + 4 * i))
            .collect();
        for &object in &objects {
            if !self.memory_is_known(call, client, object)? {
                return self.finish_with_status(call, Some(at.status), Status::OBJECT_NOT_FOUND);
            }
        }
        let number = self.arg.u32(l::FD) as i32;
        let old = if number >= 0 {
            Some(call.caller.descriptor(number)?)
        } else {
            None
        };
        self.still_waiting(call)?;
        let order = self.tenant.in_order(client);
        if !objects.iter().all(|&o| self.still_known(client, o)) {
            drop(order);
            return self.finish_with_status(call, Some(at.status), Status::OBJECT_NOT_FOUND);
        }
        if let Some(old) = &old {
            use std::os::fd::AsRawFd;
            self.arg.set_u32(l::FD, old.as_raw_fd() as u32);
        }
        let value = self.execute(call)?;
        let status = self.arg.u32(at.status);
        let new = self.arg.u32(l::FD) as i32;
        self.arg.restore(l::FD, 4);
        if status == Status::OK.0 {
            // Exported memory stays charged until the tenant is done: a dmabuf pins it until its inode is gone, and
            // nothing tells when that is.
            for &object in &objects {
                let held = self.tenant.ledger().hold_export(
                    ClientHandle(client),
                    ObjectHandle(object),
                    u64::MAX,
                );
                if held.is_err() {
                    self.tenant.condemn(format!(
                        "client {client:#x} exported an object that the ledger does not know"
                    ));
                }
            }
            if old.is_none() && new >= 0 {
                // SAFETY: the driver has just installed this descriptor in our table for this call, and nobody else
                // knows of it.
                let dmabuf = unsafe { OwnedFd::from_raw_fd(new) };
                let there = self.listener.add_descriptor(call.n.id, dmabuf.as_fd())?;
                self.arg.set_u32(l::FD, there as u32);
            }
        }
        drop(order);
        self.finish(call, value)
    }
}

/// Share types 1 (everybody) and 2 (same user) become 4 (same process): helpers of several tenants may have one user.
pub(super) fn limit_share_type(block: &mut [u8], at: usize) {
    const EVERYBODY: u16 = 1;
    const SAME_USER: u16 = 2;
    const SAME_PROCESS: u16 = 4;
    let Some(field) = block.get_mut(at..at + 2) else {
        return;
    };
    let kind = u16::from_le_bytes([field[0], field[1]]);
    if kind == EVERYBODY || kind == SAME_USER {
        field.copy_from_slice(&SAME_PROCESS.to_le_bytes());
    }
}

fn status_offset(entry: &Escape, size: usize) -> Option<usize> {
    let i = entry
        .sizes
        .iter()
        .position(|&s| usize::from(s) == size)
        .unwrap_or(0);
    entry.status.get(i).copied().flatten().map(usize::from)
}

/// (size, attr, attr2, flags) of a function that allocates device memory; `None` for the others.
fn vid_heap_request(function: u32, block: &[u8]) -> Option<(u64, u32, u32, u32)> {
    let fields = vid_heap_fields(function, block)?;
    let (_, attr, _, flags) = fields;
    // Memory of the host, and a mere range of addresses, take no device memory.
    (rounding::in_vidmem(attr) && !rounding::is_virtual(flags)).then_some(fields)
}

/// (size, attr, attr2, flags) of a function that allocates anything.
fn vid_heap_fields(function: u32, block: &[u8]) -> Option<(u64, u32, u32, u32)> {
    use layout::{nvos32_alloc_range as r, nvos32_alloc_size as s, nvos32_alloc_tiled as t};
    let (size, attr, attr2, flags) = match function {
        ALLOC_SIZE => (s::SIZE_FIELD, s::ATTR, s::ATTR2, s::FLAGS),
        ALLOC_TILED => (t::SIZE_FIELD, t::ATTR, t::ATTR2, t::FLAGS),
        ALLOC_RANGE => (r::SIZE_FIELD, r::ATTR, r::ATTR2, r::FLAGS),
        _ => return None,
    };
    let u32 = |at| rmcall::u32_at(block, at);
    Some((
        rmcall::u64_at(block, size),
        u32(attr),
        u32(attr2),
        u32(flags),
    ))
}
