//! What a tenant is told about memory and processes: its slice and its own.

use policy::ledger::DeviceIndex;
use policy::ledger::{ClientHandle, ObjectHandle};
use policy::units::Bytes;
use rm::{Answer, Control, Status, ctrl, layout};

use super::{Call, Worker};
use crate::rmcall::{put_u32, put_u64, u32_at};
use crate::sys::Tid;

/// Indices of frame-buffer information that say how large the memory is, in KiB.
const TOTALS: [u32; 7] = [0x07, 0x08, 0x09, 0x0a, 0x20, 0x33, 0x34];
/// Indices that say how much is free, in KiB.
const FREES: [u32; 2] = [0x12, 0x16];
/// `NV2080_CTRL_GPU_PID_INFO_INDEX_VIDEO_MEMORY_USAGE`.
const VIDEO_MEMORY_USAGE: u32 = 0;

/// The slice's memory on one device, as an application is to see it.
#[derive(Clone, Copy)]
struct Slice {
    quota: Bytes,
    free: Bytes,
}

impl Slice {
    /// Quota where the card has more; what is left of the quota where the card has more left.
    fn rewrite(self, index: u32, kib: u32) -> u32 {
        let at_most = |b: Bytes| kib.min(u32::try_from(b.0 >> 10).unwrap_or(u32::MAX));
        if TOTALS.contains(&index) {
            at_most(self.quota)
        } else if FREES.contains(&index) {
            at_most(self.free)
        } else {
            kib
        }
    }

    fn rewrite_entries(self, entries: &mut [u8]) {
        use layout::fb_info_entry as e;
        for entry in entries.chunks_exact_mut(e::SIZE) {
            let value = self.rewrite(u32_at(entry, e::INDEX), u32_at(entry, e::DATA));
            put_u32(entry, e::DATA, value);
        }
    }
}

impl Worker<'_> {
    fn slice(&self, device: DeviceIndex) -> Slice {
        let ledger = self.tenant.ledger();
        Slice {
            quota: ledger.quota(device),
            free: ledger.free_bytes(device),
        }
    }

    /// The device that the object of this control belongs to.
    fn control_device(&self) -> Option<DeviceIndex> {
        use layout::nvos54 as l;
        let (client, object) = (self.arg.u32(l::H_CLIENT), self.arg.u32(l::H_OBJECT));
        self.tenant
            .ledger()
            .device_of(ClientHandle(client), ObjectHandle(object))
    }

    /// Changes the driver's answer in the copy, before it is written back.
    pub(super) fn change_answer(&mut self, call: &Call, entry: &Control) {
        let ok = self.arg.u32(layout::nvos54::STATUS) == Status::OK.0;
        // Which cards and processes there are is not what the demo's wall is about.
        let about_memory = matches!(
            entry.answer,
            Answer::FbInfoInline | Answer::FbInfoPointer | Answer::FbRegions | Answer::PidInfo
        );
        if about_memory && !self.tenant.walls.visible_limit {
            return;
        }
        match entry.answer {
            Answer::PidInfo => self.answer_pid_info(),
            _ if !ok => {}
            Answer::FbInfoInline => {
                if let Some(device) = self.control_device() {
                    self.refresh_managed(call.caller.tid);
                    self.rewrite_fb_inline(device);
                }
            }
            Answer::FbInfoPointer => {
                if let (Some(device), Some(list)) =
                    (self.control_device(), self.extra.len().checked_sub(1))
                {
                    self.refresh_managed(call.caller.tid);
                    let slice = self.slice(device);
                    let len = self.extra[list].len();
                    slice.rewrite_entries(&mut self.extra[list].bytes[..len]);
                }
            }
            Answer::Pids => self.answer_pids(call),
            Answer::GpuIds => self.answer_gpu_ids(entry.cmd),
            Answer::FbRegions => self.answer_regions(entry),
            Answer::UtilSamples | Answer::ForeignZeroed => self.zero_answer(),
            Answer::AsIs => {}
        }
    }

    fn rewrite_fb_inline(&mut self, device: DeviceIndex) {
        use layout::{fb_info, fb_info_entry as e};
        let slice = self.slice(device);
        let len = self.params.len();
        if len < fb_info::FB_INFO_LIST {
            return;
        }
        let count = self.params.u32(fb_info::FB_INFO_LIST_SIZE) as usize;
        let end = len.min(fb_info::FB_INFO_LIST.saturating_add(count.saturating_mul(e::SIZE)));
        slice.rewrite_entries(&mut self.params.bytes[fb_info::FB_INFO_LIST..end]);
    }

    /// `NVOS32` reports total and free memory in bytes with every answer.
    pub(super) fn show_slice_in_vid_heap(&mut self, device: DeviceIndex) {
        use layout::nvos32 as l;
        if !self.tenant.walls.visible_limit {
            return;
        }
        let slice = self.slice(device);
        let (total, free) = (self.arg.u64(l::TOTAL), self.arg.u64(l::FREE));
        self.arg.set_u64(l::TOTAL, total.min(slice.quota.0));
        self.arg.set_u64(l::FREE, free.min(slice.free.0));
        /// `NVOS32_FUNCTION_INFO`: the largest free block, too.
        const INFO: u32 = 5;
        if self.arg.u32(l::FUNCTION) == INFO {
            let largest = self.arg.u64(layout::nvos32_info::SIZE_FIELD);
            self.arg
                .set_u64(layout::nvos32_info::SIZE_FIELD, largest.min(slice.free.0));
        }
    }

    /// Where the driver names the helper, the tenant sees its own processes; the helper itself and every other process
    /// are not there.
    fn answer_pids(&mut self, call: &Call) {
        use layout::pids as l;
        let len = self.params.len();
        if len < l::SIZE {
            return;
        }
        let room = (l::SIZE - l::PID_TBL) / 4;
        let count = (self.params.u32(l::PID_TBL_COUNT) as usize).min(room);
        let listed =
            (0..count).any(|i| self.params.u32(l::PID_TBL + 4 * i) == self.tenant.helper as u32);
        let device = self.control_device();
        let processes: Vec<u32> = if listed {
            self.processes_on(device, call.caller.process)
        } else {
            Vec::new()
        };
        let processes = &processes[..processes.len().min(room)];
        self.params
            .set_u32(l::PID_TBL_COUNT, processes.len() as u32);
        for i in 0..room {
            self.params
                .set_u32(l::PID_TBL + 4 * i, processes.get(i).copied().unwrap_or(0));
        }
    }

    fn processes_on(&self, device: Option<DeviceIndex>, asking: Tid) -> Vec<u32> {
        let Some(device) = device else {
            return Vec::new();
        };
        self.tenant
            .gpu_processes()
            .into_iter()
            .filter(|&p| self.tenant.used_by(p, device) > Bytes(0))
            .map(|p| pid_as_seen_by(p, asking))
            .collect()
    }

    /// Memory of a process: the ledger knows it by process, the driver only as the helper's.
    fn answer_pid_info(&mut self) {
        use layout::{pid_info as l, pid_info_entry as e};
        if self.params.len() < l::PID_INFO_LIST {
            return;
        }
        let room = (self.params.len() - l::PID_INFO_LIST) / e::SIZE;
        let count = (self.params.u32(l::PID_INFO_LIST_COUNT) as usize).min(room);
        let Some(device) = self.control_device() else {
            return;
        };
        let processes = self.tenant.gpu_processes();
        for i in 0..count {
            let entry = &mut self.params.bytes[l::PID_INFO_LIST + i * e::SIZE..][..e::SIZE];
            let pid = u32_at(entry, e::PID);
            let own = processes
                .iter()
                .copied()
                .find(|&p| p as u32 == pid || innermost_pid(p) == Some(pid));
            let used = match own {
                Some(process) if u32_at(entry, e::INDEX) == VIDEO_MEMORY_USAGE => self
                    .tenant
                    .ledger()
                    .used_by(policy::ledger::Pid(process), device),
                _ => Bytes(0),
            };
            entry[e::MEM_PRIVATE..].fill(0);
            put_u64(entry, e::MEM_PRIVATE, used.0);
            put_u32(
                entry,
                e::RESULT,
                if own.is_some() {
                    0
                } else {
                    Status::OBJECT_NOT_FOUND.0
                },
            );
        }
        self.arg.set_u32(layout::nvos54::STATUS, Status::OK.0);
    }

    /// Lists of gpu ids: only those of the slice, moved up.
    fn answer_gpu_ids(&mut self, cmd: u32) {
        /// count@0, then {gpu id, GPU instance, compute instance} at 4.
        const ACTIVE: usize = 12;
        const LIST: usize = 32 * 4;
        let own: Vec<u32> = self.tenant.devices.iter().map(|d| d.gpu.gpu_id).collect();
        let len = self.params.len();
        if cmd == ctrl::NV0000_GPU_GET_ACTIVE_DEVICE_IDS {
            if len < 4 {
                return;
            }
            let count = self.params.u32(0) as usize;
            let end = len.min(4 + ACTIVE.saturating_mul(count));
            let end = end - (end - 4) % ACTIVE;
            let kept = keep_up(&mut self.params.bytes[4..end], ACTIVE, 0, |entry| {
                own.contains(&u32_at(entry, 0))
            });
            self.params.set_u32(0, kept as u32);
        } else {
            // gpu ids, then (GET_PROBED_IDS) the ids of excluded cards: both ended by 0xffffffff.
            for list in self.params.bytes[..len.min(2 * LIST)].chunks_exact_mut(LIST) {
                keep_up(list, 4, 0xff, |entry| own.contains(&u32_at(entry, 0)));
            }
        }
    }

    /// Regions of the frame buffer: count@0, then 16 entries of base@0 limit@8 reserved@16 ... from @8 on; their size goes
    /// with the branch. The slice has no regions of its own, so it sees one as large as its quota at most.
    fn answer_regions(&mut self, entry: &Control) {
        const FIRST: usize = 8;
        const REGIONS: usize = 16;
        let second = FIRST + (entry.size as usize - FIRST) / REGIONS;
        const LIMIT: usize = FIRST + 8;
        let Some(device) = self.control_device() else {
            return;
        };
        if self.params.len() < LIMIT + 8 {
            return;
        }
        let quota = self.slice(device).quota.0;
        let (base, limit) = (self.params.u64(FIRST), self.params.u64(LIMIT));
        self.params.set_u32(0, self.params.u32(0).min(1));
        self.params.set_u64(
            LIMIT,
            limit.min(base.saturating_add(quota).saturating_sub(1)),
        );
        let len = self.params.len();
        if len > second {
            self.params.bytes[second..len].fill(0);
        }
    }

    /// Nothing in the answer may tell of other tenants: it is empty.
    fn zero_answer(&mut self) {
        let len = self.params.len();
        self.params.bytes[..len].fill(0);
    }
}

/// Moves the entries that are to stay to the front and fills the rest; returns how many stay.
fn keep_up(list: &mut [u8], size: usize, fill: u8, stays: impl Fn(&[u8]) -> bool) -> usize {
    let kept: Vec<u8> = list
        .chunks_exact(size)
        .filter(|e| stays(e))
        .flatten()
        .copied()
        .collect();
    list[..kept.len()].copy_from_slice(&kept);
    list[kept.len()..].fill(fill);
    kept.len() / size
}

/// The id of a process in its own (innermost) pid namespace.
fn innermost_pid(process: Tid) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|l| {
        l.strip_prefix("NSpid:")?
            .split_whitespace()
            .last()?
            .parse()
            .ok()
    })
}

/// A process's id as another process of the tenant names it: with both in one pid namespace below ours, the innermost.
fn pid_as_seen_by(process: Tid, asking: Tid) -> u32 {
    let namespace = |p: Tid| std::fs::read_link(format!("/proc/{p}/ns/pid")).ok();
    match (namespace(process), namespace(asking)) {
        (Some(a), Some(b)) if a == b => innermost_pid(process).unwrap_or(process as u32),
        _ => process as u32,
    }
}
