//! What the node and its devices say about themselves.

use std::collections::BTreeSet;

use rm::{Abi, Kind, Status, ctrl, layout, nr};

use super::{Answer, Block, Call, Rm};
use crate::client::Node;
use crate::spec::DeviceSpec;

/// "No such device" in a list of gpu ids.
const NO_GPU: u32 = u32::MAX;
/// Size of a block of memory that can be put on or off line, as the driver of the traced machine said.
const MEMBLOCK: u64 = 0x4000_0000;
/// Architecture and revision of GH100 as `MC_GET_ARCH_INFO` gives them.
const ARCH_GH100: u32 = 0x180;
const REVISION: u32 = 0xa1;
/// Engines by `NV2080_ENGINE_TYPE`: GR0, then the copy engines 0 to 9.
const ENGINES: [u32; 11] = [1, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18];

fn list_of(ids: impl Iterator<Item = u32>) -> impl Iterator<Item = u32> {
    ids.chain(std::iter::repeat(NO_GPU)).take(32)
}

impl Rm {
    fn spec_of(&self, gpu_id: u32) -> Answer<(usize, &DeviceSpec)> {
        let mut devices = self.node.devices.iter().enumerate();
        devices
            .find(|(_, device)| device.gpu_id() == gpu_id)
            .ok_or(Status::INVALID_ARGUMENT)
    }

    /// Frontend ioctls of the node itself, which have no client.
    pub(super) fn node_call(&mut self, number: u8, call: &mut Call) -> Result<(), i32> {
        let file = call.file;
        match number {
            nr::CARD_INFO => self.card_info(&mut call.block),
            nr::REGISTER_FD => {
                let control = call
                    .descriptor
                    .filter(|&other| self.node_of(other) == Some(Node::Control));
                let control = control.ok_or(libc::EINVAL)?;
                let open = self.files.get_mut(&file).ok_or(libc::EBADF)?;
                // Once tied, a device file stays so.
                if open.control.is_some_and(|before| before != control) {
                    return Err(libc::EINVAL);
                }
                open.control = Some(control);
                Ok(())
            }
            nr::CHECK_VERSION_STR => self.check_version(&mut call.block),
            nr::SYS_PARAMS => {
                call.block
                    .put_u64(layout::sys_params::MEMBLOCK_SIZE, MEMBLOCK);
                Ok(())
            }
            nr::NUMA_INFO => {
                use layout::numa_info as at;
                call.block.put_u32(at::NID, u32::MAX);
                call.block.put_u32(at::STATUS, 0);
                call.block.put_u64(at::MEMBLOCK_SIZE, MEMBLOCK);
                Ok(())
            }
            nr::ATTACH_GPUS_TO_FD => {
                // The list is of one length; what is zero names no card.
                let known = |id: &[u8; 4]| {
                    let id = u32::from_le_bytes(*id);
                    id == 0 || self.spec_of(id).is_ok()
                };
                let (ids, rest) = call.block.0.as_chunks::<4>();
                if !rest.is_empty() || ids.is_empty() || !ids.iter().all(known) {
                    return Err(libc::EINVAL);
                }
                Ok(())
            }
            nr::WAIT_OPEN_COMPLETE => {
                call.block.put_u32(layout::wait_open_complete::RC, 0);
                call.block
                    .put_u32(layout::wait_open_complete::ADAPTER_STATUS, 0);
                Ok(())
            }
            _ => Err(libc::EINVAL),
        }
    }

    fn card_info(&self, block: &mut Block) -> Result<(), i32> {
        use layout::card_info as at;
        if block.0.len() / at::SIZE < self.node.devices.len() {
            return Err(libc::EINVAL);
        }
        block.0.fill(0);
        for (minor, device) in self.node.devices.iter().enumerate() {
            let base = minor * at::SIZE;
            block.put_u8(base + at::VALID, 1);
            block.put_u8(base + at::SLOT, device.slot);
            block.put_u16(base + at::VENDOR_ID, (device.pci_device & 0xffff) as u16);
            block.put_u16(base + at::DEVICE_ID, (device.pci_device >> 16) as u16);
            block.put_u32(base + at::GPU_ID, device.gpu_id());
            block.put_u64(
                base + at::REG_ADDRESS,
                0x1040_0200_0000 + ((minor as u64) << 24),
            );
            block.put_u64(base + at::REG_SIZE, 1 << 24);
            block.put_u64(base + at::FB_ADDRESS, (minor as u64 + 1) << 44);
            block.put_u64(base + at::FB_SIZE, 1 << 38);
            block.put_u32(base + at::MINOR_NUMBER, u32::try_from(minor).unwrap_or(0));
        }
        Ok(())
    }

    /// The strict comparison (command 0) fails with EINVAL; relaxed ('1') and override ('2') only report.
    fn check_version(&self, block: &mut Block) -> Result<(), i32> {
        use layout::check_version as at;
        let asked = block.0.get(at::VERSION_STRING..).unwrap_or_default();
        let asked = asked.split(|&byte| byte == 0).next().unwrap_or_default();
        let same = asked == self.node.driver.as_bytes();
        let strict = block.u32(at::CMD) == 0;
        block.put_u32(at::REPLY, u32::from(same));
        block.put_text(at::VERSION_STRING, 64, &self.node.driver);
        if same || !strict {
            Ok(())
        } else {
            Err(libc::EINVAL)
        }
    }

    /// `ALLOC_OS_EVENT` and `FREE_OS_EVENT`: nothing here ever fires one. The client is a number to keep it under; that 0
    /// is taken is the model's choice, the worse of the two.
    pub(super) fn os_event(&mut self, call: &mut Call, made: bool) -> Answer {
        use layout::alloc_os_event as at;
        let client = call.block.u32(at::H_CLIENT);
        if client != 0 {
            self.client(call, client)?;
        }
        let event = (client, call.block.u32(at::FD));
        if made {
            self.os_events.insert(event);
        } else {
            self.os_events.remove(&event);
        }
        Ok(())
    }

    /// Controls of a client that ask about the node.
    pub(super) fn node_info(&self, call: &mut Call, command: u32) -> Option<Answer> {
        let ids = || list_of(self.node.devices.iter().map(DeviceSpec::gpu_id));
        let arrays = &mut call.arrays;
        let params = call.params.get_or_insert_default();
        Some(match command {
            ctrl::NV0000_SYSTEM_GET_BUILD_VERSION => {
                for (array, text) in arrays.iter_mut().zip([
                    self.node.driver.as_str(),
                    "simgpu",
                    "gpuslice simulated driver",
                ]) {
                    let room = array.bytes.0.len();
                    array.bytes.put_text(0, room, text);
                }
                Ok(())
            }
            ctrl::NV0000_GPU_GET_ATTACHED_IDS | ctrl::NV0000_GPU_GET_PROBED_IDS => {
                for (index, id) in ids().enumerate() {
                    params.put_u32(4 * index, id);
                }
                if command == ctrl::NV0000_GPU_GET_PROBED_IDS {
                    for index in 32..64 {
                        params.put_u32(4 * index, NO_GPU);
                    }
                }
                Ok(())
            }
            ctrl::NV0000_GPU_GET_ACTIVE_DEVICE_IDS => {
                params.put_u32(0, u32::try_from(self.node.devices.len()).unwrap_or(0));
                for (index, device) in self.node.devices.iter().enumerate() {
                    params.put_u32(4 + 12 * index, device.gpu_id());
                    params.put_u32(8 + 12 * index, u32::MAX);
                    params.put_u32(12 + 12 * index, u32::MAX);
                }
                Ok(())
            }
            // {gpuId, flags, deviceInstance, subdevice, ...}: the older block has a pointer in between.
            ctrl::NV0000_GPU_GET_ID_INFO => self.spec_of(params.u32(0)).map(|(index, device)| {
                id_info(params, index, device, [24, 28, 32, 36]);
            }),
            ctrl::NV0000_GPU_GET_ID_INFO_V2 => {
                self.spec_of(params.u32(0)).map(|(index, device)| {
                    id_info(params, index, device, [16, 20, 24, 28]);
                })
            }
            ctrl::NV0000_GPU_GET_DEVICE_IDS => {
                params.put_u32(0, (1 << self.node.devices.len()) - 1);
                Ok(())
            }
            ctrl::NV0000_GPU_GET_PCI_INFO => self.spec_of(params.u32(0)).map(|(_, device)| {
                params.put_u32(4, 0);
                params.put_u16(8, 0);
                params.put_u16(10, device.slot.into());
            }),
            ctrl::NV0000_GPU_GET_UUID_FROM_GPU_ID => {
                self.spec_of(params.u32(0)).map(|(_, device)| {
                    let binary = params.u32(4) & 2 != 0;
                    put_uuid(params, device, binary, 8, 264);
                })
            }
            ctrl::NV0000_GPU_ATTACH_IDS => {
                params.put_u32(128, NO_GPU);
                Ok(())
            }
            _ => return None,
        })
    }

    /// Controls of a device or subdevice that ask about it.
    pub(super) fn gpu_info(&mut self, call: &mut Call, command: u32, gpu: usize) -> Option<Answer> {
        if command == ctrl::NV0041_GET_SURFACE_INFO {
            let client = call.block.u32(layout::nvos54::H_CLIENT);
            let memory = self.memory_of(client, call.block.u32(layout::nvos54::H_OBJECT));
            return Some(memory.and_then(|memory| self.surface_info(call, memory)));
        }
        if matches!(
            command,
            ctrl::NV2080_FB_GET_INFO | ctrl::NV2080_FB_GET_INFO_V2
        ) {
            self.refresh_managed();
        }
        let device = &self.node.devices[gpu];
        let arrays = &mut call.arrays;
        let params = call.params.get_or_insert_default();
        Some(match command {
            ctrl::NV2080_FB_GET_INFO_V2 => {
                use layout::fb_info as at;
                let count = (params.u32(at::FB_INFO_LIST_SIZE) as usize)
                    .min((params.0.len() - at::FB_INFO_LIST) / 8);
                for entry in (0..count).map(|index| at::FB_INFO_LIST + 8 * index) {
                    params.put_u32(entry + 4, self.fb_info(gpu, params.u32(entry)));
                }
                Ok(())
            }
            ctrl::NV2080_FB_GET_INFO => {
                answer_list(arrays, |index| self.fb_info(gpu, index));
                Ok(())
            }
            // {count@0, 16 regions from @8: base@0:8, limit@8:8, ...}: what the driver gives out, and what it keeps.
            ctrl::NV2080_FB_GET_FB_REGION_INFO => {
                let stride = (params.0.len() - 8) / 16;
                let (heap, ram) = (device.heap_kib << 10, device.ram_kib << 10);
                params.put_u32(0, 2);
                for (at, base, end) in [(8, 0, heap), (8 + stride, heap, ram)] {
                    params.put_u64(at, base);
                    params.put_u64(at + 8, end - 1);
                }
                Ok(())
            }
            ctrl::NV2080_GR_GET_INFO | ctrl::NV0080_GR_GET_INFO => {
                answer_list(arrays, |index| gr_info(device, index));
                Ok(())
            }
            ctrl::NV2080_BUS_GET_INFO | ctrl::NV2080_BIOS_GET_INFO => {
                answer_list(arrays, |_| 0);
                Ok(())
            }
            ctrl::NV2080_GPU_GET_PIDS => self.pids(params, gpu),
            ctrl::NV2080_GPU_GET_PID_INFO => self.pid_info(params, gpu),
            ctrl::NV2080_GPU_GET_NAME_STRING => {
                // Flag 0 asks for ASCII, 1 for two-byte characters.
                if params.u32(0) == 0 {
                    params.put_text(4, 64, device.name);
                } else {
                    for (at, byte) in device.name.bytes().chain([0]).enumerate() {
                        params.put_u16(4 + 2 * at, byte.into());
                    }
                }
                Ok(())
            }
            ctrl::NV2080_GPU_GET_SHORT_NAME_STRING => {
                params.put_text(0, 64, "GH100-A");
                Ok(())
            }
            ctrl::NV2080_GPU_GET_GID_INFO => {
                let binary = params.u32(4) & 2 != 0;
                put_uuid(params, device, binary, 12, 8);
                Ok(())
            }
            // Objects of the board's information ROM by their three letters: this board has these.
            ctrl::NV2080_GPU_GET_INFOROM_OBJECT_VERSION => {
                if [&b"IMG"[..], b"OEM", b"ECC"].contains(&&params.0[..3]) {
                    Ok(())
                } else {
                    Err(Status::OBJECT_NOT_FOUND)
                }
            }
            ctrl::NV2080_GPU_GET_ID => {
                params.put_u32(0, device.gpu_id());
                Ok(())
            }
            ctrl::NV2080_GPU_GET_ENGINES_V2 => {
                params.put_u32(0, u32::try_from(ENGINES.len()).unwrap_or(0));
                for (index, engine) in ENGINES.iter().enumerate() {
                    params.put_u32(4 + 4 * index, *engine);
                }
                Ok(())
            }
            ctrl::NV2080_GPU_GET_ENGINES => {
                for array in arrays.iter_mut() {
                    for (index, engine) in ENGINES.iter().enumerate() {
                        array.bytes.put_u32(4 * index, *engine);
                    }
                }
                params.put_u32(0, u32::try_from(ENGINES.len()).unwrap_or(0));
                Ok(())
            }
            ctrl::NV2080_MC_GET_ARCH_INFO => {
                params.put_u32(0, ARCH_GH100);
                params.put_u32(4, 0);
                params.put_u32(8, REVISION);
                Ok(())
            }
            ctrl::NV2080_BUS_GET_PCI_INFO => {
                params.put_u32(0, device.pci_device);
                params.put_u32(8, REVISION);
                params.put_u32(12, device.pci_device >> 16);
                Ok(())
            }
            ctrl::NV2080_TIMER_GET_TIME => {
                params.put_u64(layout::timer_time::TIME_NSEC, self.timer_time(gpu));
                Ok(())
            }
            ctrl::NV0080_GPU_GET_NUM_SUBDEVICES => {
                params.put_u32(0, 1);
                Ok(())
            }
            ctrl::NV0080_GPU_GET_CLASSLIST_V2 => {
                let classes: Vec<u32> = hopper_classes(self.abi).collect();
                params.put_u32(0, u32::try_from(classes.len()).unwrap_or(0));
                for (index, class) in classes.into_iter().enumerate() {
                    params.put_u32(4 + 4 * index, class);
                }
                Ok(())
            }
            ctrl::NV0080_GPU_GET_CLASSLIST => {
                for array in arrays.iter_mut() {
                    for (index, class) in hopper_classes(self.abi).enumerate() {
                        array.bytes.put_u32(4 * index, class);
                    }
                }
                params.put_u32(
                    0,
                    u32::try_from(hopper_classes(self.abi).count()).unwrap_or(0),
                );
                Ok(())
            }
            // What an H200 answers to nvidia-smi: not supported (recorded from driver 580.159).
            ctrl::NV2080_FB_QUERY_DRAM_ENCRYPTION_INFOROM_SUPPORT | 0x2080_852f => {
                Err(Status::NOT_SUPPORTED)
            }
            _ => return None,
        })
    }

    /// Processes with an object of the class asked for on this device; 0 asks for any.
    fn pids(&self, params: &mut Block, gpu: usize) -> Answer {
        use layout::pids as at;
        const MOST: usize = (at::SIZE - at::PID_TBL) / 4;
        let class = params.u32(at::ID);
        let has =
            |object: &super::clients::Object| object.gpu == Some(gpu) && object.class == class;
        let pids: BTreeSet<u32> = self
            .clients
            .values()
            .filter(|client| client.objects.values().any(has))
            .map(|client| client.pid)
            .collect();
        params.put_u32(
            at::PID_TBL_COUNT,
            u32::try_from(pids.len().min(MOST)).unwrap_or(0),
        );
        for (index, pid) in pids.into_iter().take(MOST).enumerate() {
            params.put_u32(at::PID_TBL + 4 * index, pid);
        }
        Ok(())
    }

    fn pid_info(&self, params: &mut Block, gpu: usize) -> Answer {
        use layout::{pid_info as at, pid_info_entry as entry};
        let count = params.u32(at::PID_INFO_LIST_COUNT) as usize;
        if count > (at::SIZE - at::PID_INFO_LIST) / entry::SIZE {
            return Err(Status::INVALID_ARGUMENT);
        }
        for base in (0..count).map(|index| at::PID_INFO_LIST + index * entry::SIZE) {
            let pid = params.u32(base + entry::PID);
            let known = self.clients.values().any(|client| client.pid == pid);
            params.put_u32(
                base + entry::RESULT,
                if known { 0 } else { Status::OBJECT_NOT_FOUND.0 },
            );
            let [private, owned, duped] = self.memory_by_pid(gpu, pid);
            params.put_u64(base + entry::MEM_PRIVATE, private);
            params.put_u64(base + entry::MEM_SHARED_OWNED, owned);
            params.put_u64(base + entry::MEM_SHARED_DUPED, duped);
        }
        Ok(())
    }
}

fn id_info(
    params: &mut Block,
    index: usize,
    device: &DeviceSpec,
    [sli, board, instance, numa]: [usize; 4],
) {
    params.put_u32(4, 0);
    params.put_u32(8, u32::try_from(index).unwrap_or(0));
    params.put_u32(12, 0);
    params.put_u32(sli, 0);
    params.put_u32(board, device.gpu_id());
    params.put_u32(instance, u32::try_from(index).unwrap_or(0));
    params.put_u32(numa, u32::MAX);
}

/// A UUID as text or as its 16 bytes, and its length.
fn put_uuid(params: &mut Block, device: &DeviceSpec, binary: bool, at: usize, length_at: usize) {
    let length = if binary {
        params.put(at, &device.uuid);
        device.uuid.len()
    } else {
        let text = device.uuid_text();
        params.put_text(at, 256, &text);
        text.len() + 1
    };
    params.put_u32(length_at, u32::try_from(length).unwrap_or(0));
}

/// Answers a list of {index, value}.
fn answer_list(arrays: &mut [super::Array], value: impl Fn(u32) -> u32) {
    for array in arrays {
        for at in (0..array.bytes.0.len() / 8).map(|index| 8 * index) {
            let index = array.bytes.u32(at);
            array.bytes.put_u32(at + 4, value(index));
        }
    }
}

/// Properties of the graphics engine by `NV2080_CTRL_GR_INFO_INDEX`.
fn gr_info(device: &DeviceSpec, index: u32) -> u32 {
    let (major, minor) = device.compute_capability;
    match index {
        // SHADER_PIPE_SUB_COUNT
        0x09 => device.sm_count,
        // SM_VERSION
        0x0c => major << 8 | minor,
        // MAX_WARPS_PER_SM
        0x0d => 64,
        // MAX_THREADS_PER_WARP
        0x0e => 32,
        _ => 0,
    }
}

/// Classes that a Hopper GPU has: those of the table that are no engine or channel of another generation.
fn hopper_classes(abi: &Abi) -> impl Iterator<Item = u32> {
    const ITS_OWN: [u32; 4] = [0xc86f, 0xc8b5, 0xcbc0, 0xcba2];
    abi.classes()
        .filter(|entry| {
            !matches!(entry.kind, Kind::Channel | Kind::Engine) || ITS_OWN.contains(&entry.id)
        })
        .map(|entry| entry.id)
        .take(200)
}
