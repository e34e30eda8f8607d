//! Managed memory: made by mapping the UVM file, with no ioctl to see.
//!
//! A mapping is charged when it is asked for. It runs in the tenant, so the tenant may swap the descriptor between the
//! look and the call; therefore the mappings that exist are compared with the ledger afterwards
//! ([`crate::audit`]), and a mapping nobody charged ends the tenant.

use std::sync::Arc;
use std::time::Instant;

use policy::ledger::{DeviceIndex, Pid};
use policy::units::Bytes;

use super::{Outcome, Stop, Worker};
use crate::audit;
use crate::backend::Node;
use crate::caller::Caller;
use crate::listener::{Notification, Reply};
use crate::spaces::Space;
use crate::sys::Tid;

impl Worker<'_> {
    pub(super) fn mmap(&mut self, n: &Notification, caller: &Arc<Caller>) -> Outcome {
        let mut caller = caller.clone();
        // Whatever the descriptor is, or is swapped for: from here on a mapping there is no inherited one. A mapping of
        // the UVM file stands at its offset, and the numbers of a call cannot be changed.
        let asked = (n.args[5], n.args[1].saturating_add(PAGE));
        self.tenant.files().cut_inherited(caller.process, &[asked]);
        let file = match self.open_file(n, &mut caller, n.args[4] as i32) {
            // No such descriptor: the kernel gives the right error.
            Err(Stop::Errno(libc::EBADF)) => return Ok(Reply::Continue),
            // What could not be looked at may be the UVM file.
            Err(e) => return Err(e),
            Ok(file) => file,
        };
        let Some(file) = file.filter(|f| f.node == Node::Uvm) else {
            return Ok(Reply::Continue);
        };
        self.node = Some(Node::Uvm);
        self.file = file.uvm.0;
        if !self.tenant.walls.managed_charged {
            return Ok(Reply::Continue);
        }
        self.tenant.files().mapping_done(caller.tid);
        // The driver takes no mapping whose offset is not its address, so the offset says where it will be.
        let (base, length) = (n.args[5], page_rounded(n.args[1])?);
        if !self.listener.still_waiting(n.id) {
            return Err(Stop::Gone);
        }
        if self.tenant.files().in_pool(file.uvm, base, length) {
            return Ok(Reply::Continue);
        }
        // Whoever else is in this address space keeps what is mapped there.
        let space = Space::open(caller.process, caller.tid);
        if !self.listener.still_waiting(n.id) {
            return Err(Stop::Gone);
        }
        let held =
            space.and_then(|space| self.tenant.spaces.hold(self.tenant, caller.process, space));
        let elsewhere = |space: &Space| {
            audit::is_mapped_elsewhere(self.tenant, caller.process, space, (base, length))
        };
        if held.map_or(true, |space| elsewhere(&space)) {
            return Err(Stop::Errno(libc::ENOMEM));
        }
        // Managed memory can move to any device of the slice; it is charged to the first, where it is made.
        let device = DeviceIndex(0);
        let Some(reservation) = self.tenant.reserve(device, Bytes(length), caller.tid) else {
            return Err(Stop::Errno(libc::ENOMEM));
        };
        // Expected first: whoever gives charges back looks at what is expected before he takes one away.
        self.tenant.files().expect_mapping(
            (caller.process, caller.tid),
            base,
            length,
            Instant::now(),
        );
        self.tenant
            .ledger()
            .map_managed(reservation, Pid(caller.process), base, length);
        if !self.tenant.processes().knows(caller.process) {
            // It was killed meanwhile, and its end is entered already: nobody else would give this back.
            self.tenant
                .spaces
                .process_ended(self.tenant, caller.process);
        }
        Ok(Reply::Continue)
    }

    /// Before memory is reported: managed memory that was unmapped is free again.
    pub(super) fn refresh_managed(&self, thread: Tid) {
        self.tenant.files().mapping_done(thread);
        audit::refresh_managed(self.tenant);
    }
}

const PAGE: u64 = 4096;

fn page_rounded(length: u64) -> Result<u64, Stop> {
    length
        .checked_next_multiple_of(PAGE)
        .ok_or(Stop::Errno(libc::ENOMEM))
}
