//! `RM_CONTROL`: questions and commands to an object.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use policy::ledger::{Claim, ClientHandle, ObjectHandle};
use policy::objects::Need;
use rm::{Control, Count, Decision, Status, class, ctrl, layout};

use super::escapes::limit_share_type;
use super::{Call, Outcome, Stop, Worker};
use crate::backend::Node;
use crate::sys::TenantPtr;
use crate::tenant::Unknown;

use layout::nvos54 as l;

/// The parameters have not the command's size (`NV_ERR_INVALID_PARAM_STRUCT`).
const INVALID_PARAM_STRUCT: Status = Status(0x3a);

/// What a debugger copies goes through a buffer of ours, so much at a time.
const DEBUG_PIECE: u32 = 1 << 18;

/// `NV83DE_CTRL_DEBUG_READ_MEMORY_PARAMS`, and that of writing (ctrl83dedebug.h of driver 580).
mod debugged {
    pub const SIZE: usize = 24;
    pub const H_MEMORY: usize = 0;
    pub const LENGTH: usize = 4;
    pub const OFFSET: usize = 8;
    pub const BUFFER: usize = 16;
}

/// Where `NV0000_CLIENT_SET_INHERITED_SHARE_POLICY` has its type.
const SHARE_POLICY_TYPE: usize = 8;

// Blocks of the exports and imports, as the code below reads them (ctrl0000unix.h of driver 580):
// - one object out: type@0 hDevice@4 hParent@8 hObject@12 fd@16
// - one object in: fd@0 type@4 hDevice@8 hParent@12 hObject@16
// - several out: fd@0 hDevice@4 maxObjects@8:2 metadata@10[64] objects@76[512] numObjects@2124:2 index@2126:2
// - several in: fd@0 hParent@4 objects@8[128] objectTypes@520[128] numObjects@648:2 index@650:2

impl Worker<'_> {
    pub(super) fn control(&mut self, call: &Call) -> Outcome {
        let cmd = self.arg.u32(l::CMD);
        let Some(entry) = self.tenant.abi.control(cmd) else {
            self.unknown(Unknown::Control(cmd));
            return self.finish_with_status(call, Some(l::STATUS), Status::NOT_SUPPORTED);
        };
        match entry.decision {
            Decision::Refuse(_)
                if cmd == ctrl::NV2080_FIFO_DISABLE_CHANNELS
                    && !self.tenant.walls.foreign_detach_refused => {}
            Decision::Refuse(status) => {
                return self.finish_with_status(call, Some(l::STATUS), status);
            }
            Decision::Absorb => return self.finish_with_status(call, Some(l::STATUS), Status::OK),
            Decision::Execute | Decision::Pass | Decision::InTenant => {}
        }
        let (params_at, size) = (self.arg.u64(l::PARAMS), self.arg.u32(l::PARAMS_SIZE));
        // The driver takes no other size than its own; more is not even copied.
        if size > entry.size {
            return self.finish_with_status(call, Some(l::STATUS), INVALID_PARAM_STRUCT);
        }
        if params_at != 0 && size > 0 {
            self.load_params(call, TenantPtr(params_at), size as usize)?;
        } else {
            self.params.clear();
        }
        if cmd == ctrl::NV0000_GPU_WAIT_ATTACH_ID && !self.is_attached() {
            return self.finish_with_status(call, Some(l::STATUS), Status::INVALID_ARGUMENT);
        }
        if cmd == ctrl::NV0000_CLIENT_SET_INHERITED_SHARE_POLICY {
            limit_share_type(&mut self.params.bytes, SHARE_POLICY_TYPE);
        }
        if matches!(
            cmd,
            ctrl::NV83DE_DEBUG_READ_MEMORY | ctrl::NV83DE_DEBUG_WRITE_MEMORY
        ) {
            return self.debug_memory(call);
        }
        if !self.load_embedded(call, entry)? {
            return self.finish_with_status(call, Some(l::STATUS), Status::INVALID_ARGUMENT);
        }
        let file = self.translate_descriptor(call, entry)?;
        // Nothing of the tenant's memory is read from here on: it may fault for as long as another thread needs to free a
        // client that is named, and a neighbour to be given its handle.
        let foreign = if entry.decision == Decision::Execute {
            entry.foreign
        } else {
            &[]
        };
        if !self.acts_for_own_client() || !self.names_only_own(&self.params, foreign) {
            return self.finish_with_status(
                call,
                Some(l::STATUS),
                Status::INSUFFICIENT_PERMISSIONS,
            );
        }
        if params_at != 0 && size > 0 {
            let address = self.params.address();
            self.arg.set_u64(l::PARAMS, address);
        }
        self.still_waiting(call)?;
        let value = self.execute_control(call, cmd, file.as_ref())?;
        self.change_answer(call, entry);
        self.undo_translation(entry, cmd);
        self.finish(call, value)
    }

    fn execute_control(
        &mut self,
        call: &Call,
        cmd: u32,
        file: Option<&OwnedFd>,
    ) -> Result<i32, Stop> {
        match cmd {
            ctrl::NV0000_OS_UNIX_EXPORT_OBJECT_TO_FD
            | ctrl::NV0000_OS_UNIX_EXPORT_OBJECTS_TO_FD => self.export(call, cmd, file),
            ctrl::NV0000_OS_UNIX_IMPORT_OBJECT_FROM_FD
            | ctrl::NV0000_OS_UNIX_IMPORT_OBJECTS_FROM_FD => self.import(call, cmd, file),
            ctrl::NVA06C_GPFIFO_SCHEDULE | ctrl::NVA06F_GPFIFO_SCHEDULE => self.schedule(call, cmd),
            _ => Ok(self.execute(call)?),
        }
    }

    /// Copies what embedded pointers point to and leads the copy's pointers to it. False: a length is out of range.
    fn load_embedded(&mut self, call: &Call, entry: &Control) -> Result<bool, Stop> {
        for pointer in entry.pointers {
            let at = usize::from(pointer.offset);
            if at + 8 > self.params.len() {
                return Ok(true);
            }
            if pointer.max == 0 {
                // Nothing is to be had through it: the driver sees none.
                self.params.set_u64(at, 0);
                continue;
            }
            let count = match pointer.count {
                Count::Fixed(n) => u64::from(n),
                Count::Field(at) => u64::from(self.params.u32(usize::from(at))),
                Count::Square(at) => u64::from(self.params.u32(usize::from(at))).pow(2),
            };
            let bytes = count.saturating_mul(u64::from(pointer.element));
            if bytes > u64::from(pointer.max) {
                return Ok(false);
            }
            let from = self.params.u64(at);
            self.load_extra(call, from, bytes as usize)?;
            let last = self.extra.last_mut().expect("pushed just now");
            let address = if from == 0 { 0 } else { last.address() };
            self.params.set_u64(at, address);
        }
        Ok(true)
    }

    /// The descriptor inside the parameters, resolved in the calling thread's table.
    fn translate_descriptor(
        &mut self,
        call: &Call,
        entry: &Control,
    ) -> Result<Option<OwnedFd>, Stop> {
        let Some(at) = entry.fd.map(usize::from) else {
            return Ok(None);
        };
        if at + 4 > self.params.len() {
            return Ok(None);
        }
        let number = self.params.u32(at) as i32;
        if number < 0 {
            return Ok(None);
        }
        let file = call.caller.descriptor(number)?;
        self.params.set_u32(at, file.as_raw_fd() as u32);
        Ok(Some(file))
    }

    fn undo_translation(&mut self, entry: &Control, cmd: u32) {
        self.arg.restore(l::PARAMS, 8);
        let len = self.params.len();
        for pointer in entry.pointers {
            let at = usize::from(pointer.offset);
            if at + 8 <= len {
                self.params.restore(at, 8);
            }
        }
        if let Some(at) = entry.fd.map(usize::from)
            && at + 4 <= len
        {
            self.params.restore(at, 4);
        }
        if cmd == ctrl::NV0000_CLIENT_SET_INHERITED_SHARE_POLICY && SHARE_POLICY_TYPE + 2 <= len {
            self.params.restore(SHARE_POLICY_TYPE, 2);
        }
    }

    /// Whether the card whose end of attaching is waited for is one of the slice's: those are attached, so nobody waits.
    fn is_attached(&self) -> bool {
        let gpu_id = (self.params.len() >= 4).then(|| self.params.u32(0));
        let devices = &self.tenant.devices;
        gpu_id.is_some_and(|id| devices.iter().any(|d| d.gpu.gpu_id == id))
    }

    /// A group or a channel goes on its runlist. While its group is detached it does so when it is attached: nobody lets
    /// himself in.
    fn schedule(&mut self, call: &Call, cmd: u32) -> Result<i32, Stop> {
        let client = ClientHandle(self.arg.u32(l::H_CLIENT));
        let object = ObjectHandle(self.arg.u32(l::H_OBJECT));
        let _order = self.tenant.in_order(client.0);
        let group = match cmd {
            ctrl::NVA06C_GPFIFO_SCHEDULE => Some(object),
            _ => self.tenant.ledger().parent_of(client, object),
        };
        if let (Some(levers), Some(group)) = (&self.tenant.levers, group) {
            let params = &self.params.bytes[..self.params.len()];
            let enables = params.first().is_some_and(|&enable| enable != 0);
            if enables && levers.postpones(self.tenant, (client, group), object, cmd, params) {
                return self.refuse(Status::OK);
            }
        }
        Ok(self.execute(call)?)
    }

    /// A debugger reads or writes memory of its client by handle, piece by piece: cuda-gdb copies whole allocations, and the
    /// driver has no limit for it (embedded_param_copy.c of driver 580).
    fn debug_memory(&mut self, call: &Call) -> Outcome {
        use debugged as d;
        if self.params.len() < d::SIZE {
            return self.finish_with_status(call, Some(l::STATUS), INVALID_PARAM_STRUCT);
        }
        let (length, offset) = (self.params.u32(d::LENGTH), self.params.u64(d::OFFSET));
        let buffer = self.params.u64(d::BUFFER);
        let mut done = 0;
        loop {
            let piece = (length - done).min(DEBUG_PIECE);
            let from = match buffer {
                0 => 0,
                buffer => buffer.wrapping_add(done.into()),
            };
            self.extra.clear();
            self.load_extra(call, from, piece as usize)?;
            let copy = if from == 0 {
                0
            } else {
                self.extra[0].address()
            };
            self.params.set_u32(d::LENGTH, piece);
            self.params
                .set_u64(d::OFFSET, offset.wrapping_add(done.into()));
            self.params.set_u64(d::BUFFER, copy);
            let address = self.params.address();
            self.arg.set_u64(l::PARAMS, address);
            self.still_waiting(call)?;
            let value = self.debug_piece(call)?;
            done += piece;
            if value == 0 && self.ok() && done < length {
                self.extra[0].store(&call.caller)?;
                continue;
            }
            self.params.restore(d::LENGTH, d::SIZE - d::LENGTH);
            self.arg.restore(l::PARAMS, 8);
            return self.finish(call, value);
        }
    }

    /// The object is looked at as a mapping's is: what a racing thread made past the guard is not known as memory.
    fn debug_piece(&mut self, call: &Call) -> Result<i32, Stop> {
        let client = self.arg.u32(l::H_CLIENT);
        let memory = self.params.u32(debugged::H_MEMORY);
        if !self.acts_for_own_client() || !self.memory_is_known(call, client, memory)? {
            return self.refuse(Status::INSUFFICIENT_PERMISSIONS);
        }
        let _order = self.tenant.in_order(client);
        if !self.still_known(client, memory) {
            return self.refuse(Status::INSUFFICIENT_PERMISSIONS);
        }
        Ok(self.execute(call)?)
    }

    fn ok(&self) -> bool {
        self.arg.u32(l::STATUS) == Status::OK.0
    }

    fn refuse(&mut self, status: Status) -> Result<i32, Stop> {
        self.arg.set_u32(l::STATUS, status.0);
        Ok(0)
    }

    /// Exported memory stays charged while its descriptor lives.
    fn export(&mut self, call: &Call, cmd: u32, file: Option<&OwnedFd>) -> Result<i32, Stop> {
        let client = self.arg.u32(l::H_CLIENT);
        let needed = if cmd == ctrl::NV0000_OS_UNIX_EXPORT_OBJECT_TO_FD {
            24
        } else {
            2128
        };
        let (Some(file), true) = (file, self.params.len() >= needed) else {
            return self.refuse(Status::INVALID_ARGUMENT);
        };
        let objects: Vec<u32> = if cmd == ctrl::NV0000_OS_UNIX_EXPORT_OBJECT_TO_FD {
            vec![self.params.u32(12)]
        } else {
            let count = usize::from(self.params.u32(2124) as u16).min(512);
            (0..count).map(|i| self.params.u32(76 + 4 * i)).collect()
        };
        // The driver exports to control files alone.
        if self.tenant.backend.classify(file.as_fd())? != Some(Node::Control) {
            return self.refuse(Status::INVALID_ARGUMENT);
        }
        let export = self.tenant.files().add_export(file.as_fd())?;
        let exported = || {
            let some = objects.iter().filter(|&&o| o != 0);
            some.map(|&o| (ClientHandle(client), ObjectHandle(o)))
        };
        let _order = self.tenant.in_order(client);
        if !exported().all(|(client, object)| self.tenant.ledger().knows(client, object)) {
            return self.refuse(Status::OBJECT_NOT_FOUND);
        }
        let value = self.execute(call)?;
        if self.ok() {
            for (client, object) in exported() {
                let held = self.tenant.ledger().hold_export(client, object, export);
                if held.is_err() {
                    self.tenant.condemn(format!(
                        "client {:#x} exported an object that the ledger lost",
                        client.0
                    ));
                }
            }
        }
        Ok(value)
    }

    /// Only what this tenant exported may be imported by it.
    fn import(&mut self, call: &Call, cmd: u32, file: Option<&OwnedFd>) -> Result<i32, Stop> {
        let client = self.arg.u32(l::H_CLIENT);
        let needed = if cmd == ctrl::NV0000_OS_UNIX_IMPORT_OBJECT_FROM_FD {
            20
        } else {
            652
        };
        let (Some(file), true) = (file, self.params.len() >= needed) else {
            return self.refuse(Status::INVALID_ARGUMENT);
        };
        if self.tenant.backend.classify(file.as_fd())? != Some(Node::Control) {
            return self.refuse(Status::INVALID_ARGUMENT);
        }
        let Some(export) = self.tenant.files().export(file.as_fd())? else {
            return self.refuse(Status::INSUFFICIENT_PERMISSIONS);
        };
        let count = if cmd == ctrl::NV0000_OS_UNIX_IMPORT_OBJECT_FROM_FD {
            1
        } else {
            usize::from(self.params.u32(648) as u16).min(128)
        };
        let Some(mut claims) = self.claim_objects(count) else {
            return self.refuse(Status::NO_MEMORY);
        };
        let _order = self.tenant.in_order(client);
        let executed = self.execute(call);
        if executed.is_ok() && self.ok() {
            let (parent, objects): (u32, Vec<u32>) =
                if cmd == ctrl::NV0000_OS_UNIX_IMPORT_OBJECT_FROM_FD {
                    (self.params.u32(12), vec![self.params.u32(16)])
                } else {
                    let count = usize::from(self.params.u32(648) as u16).min(128);
                    (
                        self.params.u32(4),
                        (0..count).map(|i| self.params.u32(8 + 4 * i)).collect(),
                    )
                };
            for object in objects.into_iter().filter(|&o| o != 0) {
                self.tenant.ledger().add_alias_of_export(
                    ClientHandle(client),
                    ObjectHandle(parent),
                    ObjectHandle(object),
                    class::NV01_MEMORY_LOCAL_USER,
                    export,
                );
                if let Some(claim) = claims.pop() {
                    let (client, object) = (ClientHandle(client), ObjectHandle(object));
                    self.tenant.ledger().attach(claim, client, object);
                }
            }
        }
        self.give_up(claims);
        Ok(executed?)
    }

    /// So many objects, each to be attached by itself, or none.
    fn claim_objects(&self, count: usize) -> Option<Vec<Claim>> {
        let mut claims = Vec::with_capacity(count);
        for _ in 0..count {
            match self.tenant.claim(Need::objects(1)) {
                Some(claim) => claims.push(claim),
                None => {
                    self.give_up(claims);
                    return None;
                }
            }
        }
        Some(claims)
    }

    fn give_up(&self, claims: Vec<Claim>) {
        for claim in claims {
            self.tenant.ledger().give_up(claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use rm::Decision;

    use crate::workers::{MOST_GIVEN_UP, MOST_THREADS};

    /// What a tenant can make its helper hold: the block of a call, its parameters and what those point to, each twice
    /// (as it was, and as the driver left it), for each of the helper's threads, those that were given up too.
    #[test]
    fn threat_26_all_copies_of_all_threads_fit_in_16_mib() {
        const THREADS: usize = MOST_THREADS + MOST_GIVEN_UP;
        const LARGEST_BLOCK: usize = 1 << 14;
        let abi = rm::for_driver("580.159.04").unwrap().abi;
        let reaches = |decision| matches!(decision, Decision::Execute | Decision::Pass);
        let of_control = |control: &rm::Control| {
            let pointed: usize = control.pointers.iter().map(|p| p.max as usize).sum();
            control.size as usize + pointed
        };
        let controls = abi.controls().filter(|c| reaches(c.decision));
        let most = controls.map(of_control).max().unwrap();
        assert!(most > 0);
        let all = THREADS * 2 * (LARGEST_BLOCK + most);
        assert!(all <= 16 << 20, "{all} bytes");
    }
}
