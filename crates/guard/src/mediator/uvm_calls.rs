//! Calls on `/dev/nvidia-uvm`.

use policy::ledger::{ClientHandle, DeviceIndex, ObjectHandle, UvmFile};
use rm::{Decision, Status, UvmCall, layout, uvm};

use super::{Call, Outcome, Stop, Worker};
use crate::ahead;
use crate::files::Flags;
use crate::listener::Reply;
use crate::rmcall;
use crate::tenant::Unknown;

/// `UVM_INIT_FLAGS_DISABLE_HMM`: plain host memory must not move to the device, where nobody would have charged it.
pub(crate) const DISABLE_HMM: u64 = 1;
/// `UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE`: UVM would act on the caller's address space, which is the helper's.
const MULTI_PROCESS_SHARING: u64 = 2;
/// `NV_ERR_ILLEGAL_ACTION`: the file is not initialised.
const ILLEGAL_ACTION: u32 = 0x16;
/// `NV_ERR_INVALID_ADDRESS`: no range of the file covers these addresses.
const INVALID_ADDRESS: u32 = 0x1e;
/// Entries of `perGpuAttributes`, 36 bytes each, the UUID first.
const PER_GPU: usize = 36;
/// The UUID of no GPU.
const NO_GPU: [u8; 16] = [0xff; 16];
/// Semaphore pools of one process, in bytes: they are memory of the host that no limit of the tenant counts, and what a
/// racing thread maps in their place is not told apart from them.
const MOST_POOLS: u64 = 64 << 20;
/// The fixed part of a mapping's block and the attributes of one GPU: all that most mappings use.
const HEAD: usize = layout::uvm_map_external::PER_GPU_ATTRIBUTES + PER_GPU;

impl Worker<'_> {
    pub(super) fn uvm_call(&mut self, call: &Call) -> Outcome {
        let Some(entry) = self.tenant.abi.uvm(call.request) else {
            self.unknown(Unknown::Uvm(call.request));
            return Err(Stop::Errno(libc::EINVAL));
        };
        self.params.clear();
        self.extra.clear();
        match entry.decision {
            Decision::Pass => return Ok(Reply::Continue),
            Decision::InTenant => return self.uvm_in_tenant(call, entry),
            Decision::Refuse(status) => return self.uvm_refuse(call, entry, status),
            Decision::Absorb => return self.uvm_refuse(call, entry, Status::OK),
            Decision::Execute => {}
        }
        match call.request {
            uvm::MAP_EXTERNAL_ALLOCATION => self.map_external(call, usize::from(entry.size)),
            _ => {
                self.arg
                    .load(&call.caller, call.arg, usize::from(entry.size))?;
                self.uvm_loaded(call, entry)
            }
        }
    }

    fn uvm_refuse(&mut self, call: &Call, entry: &UvmCall, status: Status) -> Outcome {
        let Some(at) = entry.status else {
            return Err(Stop::Errno(libc::EINVAL));
        };
        self.arg
            .load(&call.caller, call.arg, usize::from(entry.size))?;
        self.finish_with_status(call, Some(usize::from(at)), status)
    }

    /// The address space must be the tenant's own, so these run there; what they were given is verified before the file
    /// is used ([`Worker::require_flags`]).
    fn uvm_in_tenant(&mut self, call: &Call, entry: &UvmCall) -> Outcome {
        if call.request == uvm::INITIALIZE {
            use layout::uvm_initialize as l;
            self.arg.load(&call.caller, call.arg, l::SIZE)?;
            let flags = self.arg.u64(l::FLAGS);
            if flags & MULTI_PROCESS_SHARING != 0 {
                return self.finish_with_status(
                    call,
                    entry.status.map(usize::from),
                    Status::NOT_SUPPORTED,
                );
            }
            self.still_waiting(call)?;
            if flags & DISABLE_HMM == 0 {
                self.arg.set_u64(l::FLAGS, flags | DISABLE_HMM);
                self.arg.store(&call.caller)?;
            }
        }
        if call.request == uvm::MM_INITIALIZE && self.tenant.trace.is_some() {
            // To be shown. Where it cannot be read the kernel says so.
            self.arg
                .load(&call.caller, call.arg, usize::from(entry.size))?;
        }
        self.still_waiting(call)?;
        if call.request == uvm::INITIALIZE {
            ahead::begin(self.tenant);
        }
        Ok(Reply::Continue)
    }

    /// The tenant's memory held the flags while the kernel read them, so another thread may have changed them. They
    /// are immutable once set, and initialising again succeeds only with the same ones: that is how they are asked.
    fn require_flags(&mut self, call: &Call) -> Result<UvmFile, Stop> {
        let id = call.file.uvm;
        match call.file.flags() {
            Flags::Verified => return Ok(id),
            Flags::Poisoned => return Err(Stop::Errno(libc::EPERM)),
            Flags::Unverified => {}
        }
        let backend = self.tenant.backend.as_ref();
        // An uninitialised file must not be initialised from here: it would bind to the helper's address space.
        use layout::uvm_pageable_mem_access as p;
        let mut question = [0u8; p::SIZE + 64];
        backend.ioctl(call.file.fd(), uvm::PAGEABLE_MEM_ACCESS, &mut question)?;
        if rmcall::u32_at(&question, p::RM_STATUS) == ILLEGAL_ACTION {
            return Ok(id);
        }
        use layout::uvm_initialize as l;
        let mut again = [0u8; l::SIZE + 64];
        rmcall::put_u64(&mut again, l::FLAGS, DISABLE_HMM);
        backend.ioctl(call.file.fd(), uvm::INITIALIZE, &mut again)?;
        let verified = rmcall::u32_at(&again, l::RM_STATUS) == Status::OK.0;
        call.file.set_flags(if verified {
            Flags::Verified
        } else {
            Flags::Poisoned
        });
        if verified {
            Ok(id)
        } else {
            Err(Stop::Errno(libc::EPERM))
        }
    }

    fn uvm_loaded(&mut self, call: &Call, entry: &UvmCall) -> Outcome {
        let status_at = entry.status.map(usize::from);
        if !self.names_only_own(&self.arg, entry.foreign) {
            return self.finish_with_status(call, status_at, Status::INSUFFICIENT_PERMISSIONS);
        }
        // Questions about an uninitialised file have their own answer; everything else needs verified flags.
        let id = match call.request {
            uvm::PAGEABLE_MEM_ACCESS | uvm::DEINITIALIZE => None,
            _ => Some(self.require_flags(call)?),
        };
        if call.request == uvm::REGISTER_GPU {
            let uuid: [u8; 16] = self.arg.bytes[..16].try_into().expect("sixteen bytes");
            if self.tenant.device_by_uuid(&uuid).is_none() {
                return self.finish_with_status(call, status_at, Status::INVALID_ARGUMENT);
            }
        }
        if call.request == uvm::ENABLE_PEER_ACCESS {
            use layout::uvm_enable_peer_access as l;
            let of_slice = [l::GPU_UUID_A, l::GPU_UUID_B].into_iter().all(|at| {
                self.tenant
                    .device_by_uuid(&self.arg.bytes[at..][..16])
                    .is_some()
            });
            if !of_slice {
                return self.finish_with_status(call, status_at, Status::INVALID_ARGUMENT);
            }
        }
        if call.request == uvm::ALLOC_DEVICE_P2P {
            return match id {
                Some(id) => self.alloc_device_p2p(call, id, status_at),
                None => Err(Stop::Errno(libc::EINVAL)),
            };
        }
        if call.request == uvm::ALLOC_SEMAPHORE_POOL {
            let length = self.arg.u64(layout::uvm_alloc_semaphore_pool::LENGTH);
            let had = self.tenant.files().pool_bytes(call.file.owner);
            if had.saturating_add(length) > MOST_POOLS {
                return self.finish_with_status(call, status_at, Status::NO_MEMORY);
            }
        }
        self.still_waiting(call)?;
        let order = id.map(|id| self.tenant.in_order(uvm_shard(id)));
        let value = self.execute(call)?;
        let ok = status_at.is_none_or(|at| self.arg.u32(at) == Status::OK.0);
        if let (true, Some(id)) = (ok, id) {
            self.note_uvm(call, id);
        }
        drop(order);
        self.finish(call, value)
    }

    /// A range through which a peer device reaches memory: it keeps the memory alive as a mapping does, and goes with
    /// `UVM_FREE`.
    fn alloc_device_p2p(&mut self, call: &Call, id: UvmFile, status_at: Option<usize>) -> Outcome {
        use layout::uvm_alloc_device_p2p as l;
        let (client, memory) = (self.arg.u32(l::H_CLIENT), self.arg.u32(l::H_MEMORY));
        let device = self
            .tenant
            .device_by_uuid(&self.arg.bytes[l::GPU_UUID..][..16]);
        let Some(device) = device else {
            return self.finish_with_status(call, status_at, Status::INVALID_ARGUMENT);
        };
        if !self.tenant.owns_client(client) || !self.memory_is_known(call, client, memory)? {
            return self.finish_with_status(call, status_at, Status::OBJECT_NOT_FOUND);
        }
        self.still_waiting(call)?;
        let order = self.tenant.in_order_two(client, uvm_shard(id));
        let stays = self.tenant.named_clients_stay();
        if !self.still_known(client, memory) {
            drop((order, stays));
            return self.finish_with_status(call, status_at, Status::OBJECT_NOT_FOUND);
        }
        let value = self.execute(call)?;
        if self.arg.u32(l::RM_STATUS) == Status::OK.0 {
            let (base, length) = (self.arg.u64(l::BASE), self.arg.u64(l::LENGTH));
            self.tenant.ledger().map(
                id,
                device,
                base,
                length,
                ClientHandle(client),
                ObjectHandle(memory),
            );
        }
        drop((order, stays));
        self.finish(call, value)
    }

    /// What a successful call means for the ledger.
    fn note_uvm(&mut self, call: &Call, id: UvmFile) {
        let (base, length) = (self.arg.u64(0), self.arg.u64(8));
        match call.request {
            uvm::FREE => {
                // The driver frees a range only if the base, and the length where it takes one, are exactly its own
                // (uvm_va_range.c), so this is the range with every mapping in it, on every device.
                for device in (0..self.tenant.devices.len()).map(|d| DeviceIndex(d as u8)) {
                    let length = match self.tenant.abi.layout().uvm_free.length {
                        Some(at) => self.arg.u64(at),
                        None => self.freed_with(call, id, device, base),
                    };
                    self.tenant.ledger().unmap(id, device, base, length);
                }
                self.tenant.files().remove_pool(id, base);
            }
            uvm::UNMAP_EXTERNAL => {
                use layout::uvm_unmap_external as l;
                let uuid: [u8; 16] = self.arg.bytes[l::GPU_UUID..][..16]
                    .try_into()
                    .expect("sixteen bytes");
                if let Some(device) = self.tenant.device_by_uuid(&uuid) {
                    self.tenant.ledger().unmap(id, device, base, length);
                }
            }
            uvm::ALLOC_SEMAPHORE_POOL => {
                self.tenant.files().add_pool(id, base, length);
            }
            uvm::REGISTER_GPU => self.tenant.ahead.registered(),
            _ => {}
        }
    }

    /// How far the mappings of a device reached in a range that has just been freed, where the driver is not told its
    /// length: the mapping that began with it, and every one behind that has no range any more. Called with the file's
    /// order held, so nothing is mapped meanwhile; a range that another thread makes there, or a question that fails,
    /// only keeps a charge that could have gone.
    fn freed_with(&self, call: &Call, id: UvmFile, device: DeviceIndex, base: u64) -> u64 {
        let mut end = base;
        loop {
            let next = self.tenant.ledger().next_mapped(id, device, end);
            match next {
                Some((at, length)) if at == base || self.has_no_range(call, at, length) => {
                    end = at.saturating_add(length);
                }
                _ => return end - base,
            }
        }
    }

    /// Whether no range of the file covers these addresses. It is asked to unmap them from no GPU: the driver looks for
    /// the range first and then for the GPU (uvm_map_external.c of 590 and 595). A driver that looked the other way
    /// round would never say so, and the charge would stay.
    fn has_no_range(&self, call: &Call, base: u64, length: u64) -> bool {
        use layout::uvm_unmap_external as l;
        let mut question = [0u8; l::SIZE + 64];
        rmcall::put_u64(&mut question, l::BASE, base);
        rmcall::put_u64(&mut question, l::LENGTH, length);
        question[l::GPU_UUID..][..16].copy_from_slice(&NO_GPU);
        let backend = self.tenant.backend.as_ref();
        let asked = backend.ioctl(call.file.fd(), uvm::UNMAP_EXTERNAL, &mut question);
        asked.is_ok() && rmcall::u32_at(&question, l::RM_STATUS) == INVALID_ADDRESS
    }

    /// `UVM_MAP_EXTERNAL_ALLOCATION`: up to 9,264 bytes of which a few dozen are in use. Only those are copied, and of
    /// the results there is the status alone.
    fn map_external(&mut self, call: &Call, size: usize) -> Outcome {
        let at = self.tenant.abi.layout().uvm_map_external;
        let mut block = std::mem::take(&mut self.map_block);
        block.resize(size + 64, 0);
        let mut used = HEAD;
        let outcome = self.map_external_in(call, size, &mut block, &mut used);
        if self.tenant.trace.is_some() {
            self.arg.prepare(call.arg, size);
            self.arg.bytes[..size].copy_from_slice(&block[..size]);
            self.arg.loaded();
            if let Ok(status) = outcome {
                self.arg.set_u32(at.rm_status, status.0);
            }
        }
        block[..used].fill(0);
        block[at.gpu_attributes_count..].fill(0);
        self.map_block = block;
        let status = outcome?;
        if status != Status::OK {
            self.still_waiting(call)?;
            call.caller.write(
                call.arg.offset(at.rm_status as u64),
                &status.0.to_le_bytes(),
            )?;
        }
        Ok(Reply::Value(0))
    }

    /// Works in `block`, of which the first `used` bytes and the tail are dirty afterwards.
    fn map_external_in(
        &mut self,
        call: &Call,
        size: usize,
        block: &mut [u8],
        used: &mut usize,
    ) -> Result<Status, Stop> {
        use layout::uvm_map_external as l;
        let behind = self.tenant.abi.layout().uvm_map_external;
        {
            let (head, rest) = block.split_at_mut(HEAD);
            let tail = &mut rest[behind.gpu_attributes_count - HEAD..size - HEAD];
            let tail_at = call.arg.offset(behind.gpu_attributes_count as u64);
            call.caller
                .read_parts(&mut [(call.arg, head), (tail_at, tail)])?;
        }
        let count = rmcall::u32_at(block, behind.gpu_attributes_count);
        let room = (behind.gpu_attributes_count - l::PER_GPU_ATTRIBUTES) / PER_GPU;
        if count as usize > room {
            return Ok(Status::INVALID_ARGUMENT);
        }
        if count > 1 {
            *used = l::PER_GPU_ATTRIBUTES + PER_GPU * count as usize;
            call.caller
                .read(call.arg.offset(HEAD as u64), &mut block[HEAD..*used])?;
        }
        let (client, memory) = (
            rmcall::u32_at(block, behind.h_client),
            rmcall::u32_at(block, behind.h_memory),
        );
        if !self.tenant.owns_client(client) {
            return Ok(Status::INVALID_CLIENT);
        }
        if !self.memory_is_known(call, client, memory)? {
            return Ok(Status::OBJECT_NOT_FOUND);
        }
        let id = self.require_flags(call)?;
        let (base, length) = (
            rmcall::u64_at(block, l::BASE),
            rmcall::u64_at(block, l::LENGTH),
        );
        let mut devices = Vec::with_capacity(count as usize);
        for i in 0..count as usize {
            let at = l::PER_GPU_ATTRIBUTES + PER_GPU * i;
            match self.tenant.device_by_uuid(&block[at..at + 16]) {
                Some(device) => devices.push(device),
                None => return Ok(Status::INVALID_ARGUMENT),
            }
        }
        self.still_waiting(call)?;
        let _order = self.tenant.in_order_two(client, uvm_shard(id));
        let _stays = self.tenant.named_clients_stay();
        if !self.still_known(client, memory) {
            return Ok(Status::OBJECT_NOT_FOUND);
        }
        self.tenant.in_driver(call.file.fd(), call.request, block)?;
        let status = Status(rmcall::u32_at(block, behind.rm_status));
        if status == Status::OK {
            let mut ledger = self.tenant.ledger();
            for device in devices {
                ledger.map(
                    id,
                    device,
                    base,
                    length,
                    ClientHandle(client),
                    ObjectHandle(memory),
                );
            }
        }
        Ok(status)
    }
}

/// The order shard of a UVM file; its numbers are small, client handles are not.
fn uvm_shard(id: UvmFile) -> u32 {
    id.0 as u32
}
