//! Calls that make something besides objects which the tenant may have so much of: mappings for the processor, events, and
//! windows on memory.

use policy::ledger::{ClientHandle, Ledger, ObjectHandle};
use policy::objects::Need;
use policy::rounding;
use policy::units::Bytes;
use rm::{Status, layout};

use super::{Call, Outcome, Worker};

impl Worker<'_> {
    pub(super) fn map_memory(&mut self, call: &Call) -> Outcome {
        use layout::nvos33 as l;
        let (client, memory) = (self.arg.u32(l::H_CLIENT), self.arg.u32(l::H_MEMORY));
        if !self.memory_is_known(call, client, memory)? {
            return self.finish_with_status(call, Some(l::STATUS), Status::OBJECT_NOT_FOUND);
        }
        let need = self.need_of_mapping(client, memory);
        let Some(claim) = need.and_then(|need| self.tenant.claim(need)) else {
            return self.finish_with_status(call, Some(l::STATUS), Status::NO_MEMORY);
        };
        let order = self.tenant.in_order(client);
        // What another thread has made under its handle meanwhile may count for more, or on another card.
        if !self.still_known(client, memory) || self.need_of_mapping(client, memory) != need {
            self.tenant.ledger().give_up(claim);
            drop(order);
            return self.finish_with_status(call, Some(l::STATUS), Status::OBJECT_NOT_FOUND);
        }
        let executed = self.execute_with_descriptor(call, layout::nvos33_with_fd::FD);
        let mut ledger = self.tenant.ledger();
        if executed.is_ok() && self.arg.u32(l::STATUS) == Status::OK.0 {
            let address = self.arg.u64(l::P_LINEAR_ADDRESS);
            ledger.map_for_processor(claim, ClientHandle(client), ObjectHandle(memory), address);
        } else {
            ledger.give_up(claim);
        }
        drop((ledger, order));
        let value = executed?;
        self.finish(call, value)
    }

    /// Memory of the card is reached through its window, in the pages that the driver maps it with. `None`: no window is
    /// so large.
    fn need_of_mapping(&self, client: u32, memory: u32) -> Option<Need> {
        use layout::nvos33 as l;
        let mut need = Need::objects(1);
        let on = (ClientHandle(client), ObjectHandle(memory));
        let device = self.tenant.ledger().memory_device(on.0, on.1);
        if device.is_some() {
            let (offset, length) = (self.arg.u64(l::OFFSET), self.arg.u64(l::LENGTH));
            let page = rounding::PAGE_64K;
            let end = offset.checked_add(length)?;
            let end = end.checked_next_multiple_of(page)?;
            need.bar1 = Bytes(end - offset / page * page);
            need.device = device;
        }
        Some(need)
    }

    pub(super) fn unmap_memory(&mut self, call: &Call) -> Outcome {
        use layout::nvos34 as l;
        self.still_waiting(call)?;
        let (client, memory) = (self.arg.u32(l::H_CLIENT), self.arg.u32(l::H_MEMORY));
        let address = self.arg.u64(l::P_LINEAR_ADDRESS);
        let order = self.tenant.in_order(client);
        let value = self.execute(call)?;
        if self.arg.u32(l::STATUS) == Status::OK.0 {
            let mut ledger = self.tenant.ledger();
            ledger.unmap_for_processor(ClientHandle(client), ObjectHandle(memory), address);
        }
        drop(order);
        self.finish(call, value)
    }

    pub(super) fn move_mapping(&mut self, call: &Call) -> Outcome {
        use layout::nvos56 as l;
        self.still_waiting(call)?;
        let (client, memory) = (self.arg.u32(l::H_CLIENT), self.arg.u32(l::H_MEMORY));
        let from = self.arg.u64(l::P_OLD_CPU_ADDRESS);
        let to = self.arg.u64(l::P_NEW_CPU_ADDRESS);
        let order = self.tenant.in_order(client);
        let value = self.execute(call)?;
        if self.arg.u32(l::STATUS) == Status::OK.0 {
            let mut ledger = self.tenant.ledger();
            ledger.move_mapping(ClientHandle(client), ObjectHandle(memory), from, to);
        }
        drop(order);
        self.finish(call, value)
    }

    /// The block has no client of its own: the parent is the client.
    pub(super) fn alloc_context_dma(&mut self, call: &Call) -> Outcome {
        use layout::nvos39 as l;
        self.still_waiting(call)?;
        let Some(claim) = self.tenant.claim(Need::objects(1)) else {
            return self.finish_with_status(call, Some(l::STATUS), Status::NO_MEMORY);
        };
        let client = self.arg.u32(l::H_OBJECT_PARENT);
        let order = self.tenant.in_order(client);
        let executed = self.execute(call);
        let mut ledger = self.tenant.ledger();
        if executed.is_ok() && self.arg.u32(l::STATUS) == Status::OK.0 {
            let handle = ObjectHandle(self.arg.u32(l::H_OBJECT_NEW));
            let (parent, class) = (ObjectHandle(client), self.arg.u32(l::H_CLASS));
            ledger.add_object(ClientHandle(client), parent, handle, class, None);
            ledger.attach(claim, ClientHandle(client), handle);
        } else {
            ledger.give_up(claim);
        }
        drop((ledger, order));
        let value = executed?;
        self.finish(call, value)
    }

    pub(super) fn alloc_os_event(&mut self, call: &Call) -> Outcome {
        use layout::alloc_os_event as l;
        self.still_waiting(call)?;
        // The driver keeps what it is given under whatever number, and an event of nobody's would count for nobody.
        if !self.tenant.owns_client(self.arg.u32(l::H_CLIENT)) {
            return self.finish_with_status(call, Some(l::STATUS), Status::INVALID_CLIENT);
        }
        let Some(claim) = self.tenant.claim(Ledger::os_event()) else {
            return self.finish_with_status(call, Some(l::STATUS), Status::NO_MEMORY);
        };
        let (client, descriptor) = (self.arg.u32(l::H_CLIENT), self.arg.u32(l::FD));
        let order = self.tenant.in_order(client);
        let executed = self.execute(call);
        let mut ledger = self.tenant.ledger();
        if executed.is_ok() && self.arg.u32(l::STATUS) == Status::OK.0 {
            ledger.open_event(claim, ClientHandle(client), descriptor);
        } else {
            ledger.give_up(claim);
        }
        drop((ledger, order));
        let value = executed?;
        self.finish(call, value)
    }

    pub(super) fn free_os_event(&mut self, call: &Call) -> Outcome {
        use layout::free_os_event as l;
        self.still_waiting(call)?;
        let (client, descriptor) = (self.arg.u32(l::H_CLIENT), self.arg.u32(l::FD));
        let order = self.tenant.in_order(client);
        let value = self.execute(call)?;
        if self.arg.u32(l::STATUS) == Status::OK.0 {
            let mut ledger = self.tenant.ledger();
            ledger.close_event(ClientHandle(client), descriptor);
        }
        drop(order);
        self.finish(call, value)
    }
}
