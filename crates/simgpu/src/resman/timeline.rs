//! The context-switch timeline: what the compute engine's front end writes down, and the event buffers it is copied to.
//!
//! The hardware logs each switch in a buffer of its own. The driver copies it out thirty times a second, when it is full
//! and when a reader flushes, and only then looks up whose context it was: a channel that has been freed meanwhile is
//! nobody's. Each event buffer that is bound gets a record for the context that left and one for the context that came;
//! one that is not an administrator's gets those of other users without process, context and exact time.
//!
//! The memory of an event buffer is mapped by its reader, through the file that `RM_MAP_MEMORY` names.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Instant;

use rm::{Status, layout, timeline};

use super::clients::Body;
use super::memory::Backing;
use super::{Answer, Call, Rm, status};
use crate::proto::FileId;

const PAGE: usize = 4096;
/// Largest memory of class `0x90ce`, in the model: a reader needs a few hundred KiB.
const MOST_MEMORY: u64 = 64 << 20;
/// Attribute bit of memory that its user may only read; an event buffer of a user takes no other.
const USER_READ_ONLY: u32 = 1 << 22;
/// Switches that the hardware's buffer holds, in the model. Full, it has the driver copy it out.
const HARDWARE_LOG: usize = 1024;
/// The timer of the GPU ticks in steps of this (`NV2080_CTRL_CMD_TIMER_GET_TIME`).
const TICK_NS: u64 = 32;
/// GPU and compute instance of a record where no MIG is in use.
const NO_INSTANCE: u8 = 0xff;

/// One switch as the hardware logs it; times of the engine's clock.
pub struct Switch {
    /// Channel of the context that left, and when that was asked for and done.
    pub left: Option<(u64, u64, u64)>,
    /// Channel of the context that came, and when its restore began and ended.
    pub came: Option<(u64, u64, u64)>,
}

impl Switch {
    /// When the last of it was done.
    fn done_ns(&self) -> u64 {
        let end = |part: Option<(u64, u64, u64)>| part.map_or(0, |(_, _, end)| end);
        end(self.left).max(end(self.came))
    }
}

/// Whose context a record is about; `None` for what cannot be told.
#[derive(Clone, Copy, Default)]
struct Owner {
    pid: u32,
    euid: Option<u32>,
    context: u32,
}

/// One record, before it is told whose eyes it is for.
#[derive(Clone, Copy)]
struct Record {
    tag: u8,
    time_ns: u64,
    /// What is shown of the time to those who may not see it.
    noisy_ns: u64,
    owner: Owner,
}

/// Which records of a GPU a buffer gets.
struct Binding {
    gpu: usize,
    /// Only those of this user; `None`: all.
    only: Option<u32>,
    /// Whose the buffer is.
    euid: u32,
    /// Whether it was bound by an administrator.
    admin: bool,
}

/// A ring of records and the header that goes with it.
pub struct EventBuffer {
    header: u64,
    records: u64,
    record_size: usize,
    count: u32,
    enabled: bool,
    keep_newest: bool,
    get: u32,
    put: u32,
    /// Records there were when the reader last said how far it is.
    waiting: u64,
    dropped: u64,
    sequence: u16,
    bindings: Vec<Binding>,
}

/// Host memory that belongs to no device and that programs read through a mapping.
pub struct Deviceless {
    bytes: Vec<u8>,
    read_only: bool,
    views: Vec<View>,
}

/// The server's own mapping of a stand-in through which a reader sees the memory.
struct View {
    file: FileId,
    start: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to the view alone, is unmapped by its end only, and is written under the lock of `Rm`.
unsafe impl Send for View {}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: made by `View::of` with this length; no reference into it is ever given away.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

impl View {
    /// Maps the start of a stand-in. Nobody can shorten it: the server has sealed it, so writes do not fault.
    fn of(file: FileId, pages: &OwnedFd, length: usize) -> Option<View> {
        let length = length.checked_next_multiple_of(PAGE)?;
        // SAFETY: a new mapping of a file, at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                pages.as_raw_fd(),
                0,
            )
        };
        (start != libc::MAP_FAILED).then_some(View {
            file,
            start: start.cast(),
            length,
        })
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        if at
            .checked_add(bytes.len())
            .is_none_or(|end| end > self.length)
        {
            return;
        }
        // SAFETY: inside the mapping, as just checked. Its other users are processes that may read it meanwhile, as on a
        // card; they look at a record only after `put` has passed it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len());
        }
    }

    /// Stores a word whole, after all that was written before.
    fn store(&self, at: usize, value: u32) {
        if at.is_multiple_of(4) && at + 4 <= self.length {
            fence(Ordering::Release);
            // SAFETY: inside the mapping and aligned, as just checked, and alive as long as `self`.
            let word = unsafe { AtomicU32::from_ptr(self.start.add(at).cast()) };
            word.store(value, Ordering::Release);
        }
    }
}

impl Deviceless {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        if let Some(room) = self
            .bytes
            .get_mut(at..)
            .and_then(|rest| rest.get_mut(..bytes.len()))
        {
            room.copy_from_slice(bytes);
            for view in &self.views {
                view.write(at, bytes);
            }
        }
    }

    fn store(&mut self, at: usize, value: u32) {
        if let Some(room) = self.bytes.get_mut(at..at + 4) {
            room.copy_from_slice(&value.to_le_bytes());
            for view in &self.views {
                view.store(at, value);
            }
        }
    }
}

impl EventBuffer {
    /// One record more, where it is enabled and has room. The number goes up either way.
    fn add(&mut self, memories: &mut Memories, record: &[u8; timeline::RECORD_SIZE]) {
        use layout::{event_buffer_header as header, event_record, fecs_record};
        const NUMBER: usize = event_record::INLINE_PAYLOAD + fecs_record::SEQNO;
        let mut record = *record;
        record[NUMBER..NUMBER + 2].copy_from_slice(&self.sequence.to_le_bytes());
        self.sequence = self.sequence.wrapping_add(1);
        if !self.enabled {
            return;
        }
        let next = (self.put + 1) % self.count;
        if !self.keep_newest && next == self.get {
            self.dropped += 1;
            if let Some(memory) = memories.get_mut(&self.header) {
                memory.write(header::RECORD_DROPCOUNT, &self.dropped.to_le_bytes());
            }
            return;
        }
        if let Some(memory) = memories.get_mut(&self.records) {
            let bytes = &record[..self.record_size.min(record.len())];
            memory.write(self.put as usize * self.record_size, bytes);
        }
        self.put = next;
        if let Some(memory) = memories.get_mut(&self.header) {
            memory.store(header::RECORD_PUT, self.put);
        }
    }
}

/// Memory of class `0x90ce`, by the number of the memory.
pub type Memories = std::collections::HashMap<u64, Deviceless>;

/// A record as it stands in a buffer, but for its number.
fn encode(tag: u8, pid: u32, context: u32, time_ns: u64) -> [u8; timeline::RECORD_SIZE] {
    use layout::{event_record, fecs_record as at};
    const BASE: usize = event_record::INLINE_PAYLOAD;
    let mut block = super::Block(vec![0; timeline::RECORD_SIZE]);
    block.put_u16(event_record::TYPE, timeline::RECORD_TYPE);
    block.put_u8(BASE + at::TAG, tag);
    block.put_u32(BASE + at::CONTEXT_ID, context);
    block.put_u32(BASE + at::PID, pid);
    block.put_u8(BASE + at::MIG_GPU_INSTANCE_ID, NO_INSTANCE);
    block.put_u8(BASE + at::MIG_COMPUTE_INSTANCE_ID, NO_INSTANCE);
    block.put_u64(BASE + at::TIMESTAMP, time_ns);
    block.0.try_into().unwrap_or([0; timeline::RECORD_SIZE])
}

impl Rm {
    /// Memory that belongs to no device (class `0x90ce`). Where it lies its attributes do not say: in the host.
    pub(super) fn new_deviceless(&mut self, call: &mut Call) -> Answer<Body> {
        use layout::memory_allocation as at;
        let params = call.params.as_ref().ok_or(Status::INVALID_ARGUMENT)?;
        let (size, attr2) = (params.u64(at::SIZE_FIELD), params.u32(at::ATTR2));
        if size == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let length = usize::try_from(size)
            .ok()
            .filter(|_| size <= MOST_MEMORY)
            .ok_or(Status::NO_MEMORY)?;
        let class = rm::class::NV01_MEMORY_DEVICELESS;
        let id = self.new_memory(call.caller.pid, class, None, size, Backing::Nothing)?;
        let memory = Deviceless {
            bytes: vec![0; length],
            read_only: attr2 & USER_READ_ONLY != 0,
            views: Vec::new(),
        };
        self.deviceless.insert(id, memory);
        Ok(Body::Memory(id))
    }

    /// Lets a control file show a memory, if it shows none yet: such a file is good for one mapping.
    pub(super) fn show_deviceless(
        &mut self,
        memory: u64,
        file: FileId,
        offset: u64,
        length: u64,
    ) -> Answer {
        let open = self
            .files
            .get_mut(&file)
            .filter(|file| file.node == Some(crate::client::Node::Control))
            .ok_or(Status::INVALID_ARGUMENT)?;
        let shown = self
            .deviceless
            .get_mut(&memory)
            .ok_or(Status::INVALID_ARGUMENT)?;
        let whole = shown.bytes.len().next_multiple_of(PAGE) as u64;
        // The model shows memory from its start.
        if offset != 0 || length == 0 || length > whole {
            return Err(status::INVALID_OFFSET);
        }
        if open.shows {
            return Err(status::STATE_IN_USE);
        }
        let view = View::of(file, &open.pages, shown.bytes.len()).ok_or(Status::NO_MEMORY)?;
        view.write(0, &shown.bytes);
        shown.views.push(view);
        open.shows = true;
        Ok(())
    }

    /// A file is gone: nobody sees memory through it any more.
    pub(super) fn hide_deviceless(&mut self, file: FileId) {
        for memory in self.deviceless.values_mut() {
            memory.views.retain(|view| view.file != file);
        }
    }

    /// An event buffer (class `0x90cd`).
    ///
    /// The driver takes any notification handle and keeps it as a kernel's pointer if it is no event of the client; it
    /// takes none without harm. And it looks into the subdevice whether or not there is one. The model refuses both.
    pub(super) fn new_event_buffer(&mut self, call: &mut Call, client: u32) -> Answer<Body> {
        use layout::event_buffer_alloc as at;
        let params = call
            .params
            .as_ref()
            .ok_or(Status::INVALID_ARGUMENT)?
            .clone();
        let (size, count) = (params.u32(at::RECORD_SIZE), params.u32(at::RECORD_COUNT));
        let bytes = u64::from(size) * u64::from(count);
        let fits = bytes > 0 && bytes <= u64::from(u32::MAX);
        if !fits || params.u32(at::RECORDS_FREE_THRESHOLD) > count {
            return Err(Status::INVALID_ARGUMENT);
        }
        if (
            params.u32(at::VARDATA_BUFFER_SIZE),
            params.u32(at::H_VARDATA_BUFFER),
        ) != (0, 0)
        {
            return Err(Status::INVALID_ARGUMENT);
        }
        let subdevice = self.object(call, client, params.u32(at::H_SUB_DEVICE));
        if subdevice.map_or(true, |found| found.class != rm::class::NV20_SUBDEVICE_0) {
            return Err(status::INVALID_OBJECT_HANDLE);
        }
        let notification = params.u64(at::NOTIFICATION_HANDLE);
        let registered = |fd| self.os_events.contains(&(client, fd));
        if notification != 0 && !u32::try_from(notification).is_ok_and(registered) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let mut found = [0; 2];
        let least = [layout::event_buffer_header::SIZE as u64, bytes];
        for (index, field) in [at::H_BUFFER_HEADER, at::H_RECORD_BUFFER]
            .into_iter()
            .enumerate()
        {
            let memory = self.memory_of(client, params.u32(field))?;
            let known = self
                .deviceless
                .get(&memory)
                .filter(|memory| memory.read_only);
            if known.is_none_or(|memory| (memory.bytes.len() as u64) < least[index]) {
                return Err(Status::INVALID_ARGUMENT);
            }
            found[index] = memory;
        }
        for memory in found {
            self.pin_memory(memory);
        }
        let id = self.id();
        let buffer = EventBuffer {
            header: found[0],
            records: found[1],
            record_size: size as usize,
            count,
            enabled: false,
            keep_newest: false,
            get: 0,
            put: 0,
            waiting: 0,
            dropped: 0,
            sequence: 0,
            bindings: Vec::new(),
        };
        self.event_buffers.insert(id, buffer);
        Ok(Body::EventBuffer(id))
    }

    pub(super) fn free_event_buffer(&mut self, id: u64) {
        if let Some(buffer) = self.event_buffers.remove(&id) {
            self.unpin_memory(buffer.header);
            self.unpin_memory(buffer.records);
        }
    }

    /// `0x20801238`. Anybody may bind a buffer, to its own user's contexts or to all: what it then gets to see of others
    /// depends on whether an administrator bound it.
    pub(super) fn bind_timeline(&mut self, call: &mut Call, client: u32, gpu: usize) -> Answer {
        use layout::fecs_bind as at;
        if self.node.lacks.timeline {
            return Err(Status::NOT_SUPPORTED);
        }
        let admin = call.caller.euid == 0;
        let params = call.params();
        params.put_u32(at::REASON_CODE, 0);
        let (handle, all) = (
            params.u32(at::H_EVENT_BUFFER),
            params.u8(at::B_ALL_USERS) != 0,
        );
        let euid = self.client(call, client)?.euid;
        let Some(Body::EventBuffer(id)) = self.body_of(client, handle) else {
            return Err(Status::OBJECT_NOT_FOUND);
        };
        let first = !self.watched(gpu);
        let buffer = self
            .event_buffers
            .get_mut(&id)
            .ok_or(Status::OBJECT_NOT_FOUND)?;
        let only = (!all).then_some(euid);
        let same = |binding: &Binding| binding.gpu == gpu && binding.only == only;
        if !buffer.bindings.iter().any(same) {
            buffer.bindings.push(Binding {
                gpu,
                only,
                euid,
                admin,
            });
        }
        if first {
            self.devices[gpu].switches.clear();
        }
        Ok(())
    }

    /// Controls of an event buffer.
    pub(super) fn event_buffer_control(
        &mut self,
        call: &mut Call,
        command: u32,
        id: u64,
    ) -> Option<Answer> {
        use layout::{event_buffer_enable, event_buffer_header as header, event_buffer_update_get};
        use rm::ctrl;
        if command == ctrl::NV_EVENT_BUFFER_FLUSH {
            for gpu in 0..self.devices.len() {
                self.copy_timeline(gpu);
            }
            return Some(Ok(()));
        }
        let params = call.params();
        let buffer = self.event_buffers.get_mut(&id)?;
        Some(match command {
            ctrl::NV_EVENT_BUFFER_ENABLE_EVENTS => {
                let flags = params.u32(event_buffer_enable::FLAGS);
                if flags & !(timeline::KEEP_OLDEST | timeline::KEEP_NEWEST) != 0 {
                    return Some(Err(Status::INVALID_ARGUMENT));
                }
                buffer.enabled = params.u8(event_buffer_enable::ENABLE) != 0;
                if flags != 0 {
                    buffer.keep_newest = flags & timeline::KEEP_NEWEST != 0;
                }
                Ok(())
            }
            ctrl::NV_EVENT_BUFFER_UPDATE_GET => {
                let get = params.u32(event_buffer_update_get::RECORD_BUFFER_GET);
                let variable = params.u32(event_buffer_update_get::VAR_DATA_BUFFER_GET);
                if get >= buffer.count || variable != 0 {
                    return Some(Err(Status::INVALID_ARGUMENT));
                }
                buffer.get = get;
                buffer.dropped = 0;
                buffer.waiting = u64::from((buffer.put + buffer.count - get) % buffer.count);
                if let Some(memory) = self.deviceless.get_mut(&buffer.header) {
                    memory.store(header::RECORD_GET, get);
                    memory.write(header::RECORD_COUNT, &buffer.waiting.to_le_bytes());
                    memory.write(header::RECORD_DROPCOUNT, &[0; 8]);
                }
                Ok(())
            }
            _ => return None,
        })
    }

    /// Whether anybody reads the timeline of a GPU: else the hardware logs nothing.
    pub(super) fn watched(&self, gpu: usize) -> bool {
        let mut buffers = self.event_buffers.values();
        buffers.any(|buffer| buffer.bindings.iter().any(|binding| binding.gpu == gpu))
    }

    /// The hardware logs a switch.
    pub(super) fn log_switch(&mut self, gpu: usize, switch: Switch) {
        if !self.watched(gpu) {
            return;
        }
        if self.devices[gpu].switches.len() >= HARDWARE_LOG {
            self.copy_until(gpu, u64::MAX);
        }
        self.devices[gpu].switches.push_back(switch);
    }

    /// What the driver's timer does: copies out all that has been logged.
    pub fn copy_timelines(&mut self) {
        for gpu in 0..self.devices.len() {
            self.copy_timeline(gpu);
        }
    }

    fn copy_timeline(&mut self, gpu: usize) {
        let now = self.devices[gpu].engines[0].now(Instant::now());
        self.copy_until(gpu, now);
    }

    /// Copies out what was logged up to a time of the engine: its clock runs ahead while it waits for the wall's.
    fn copy_until(&mut self, gpu: usize, now: u64) {
        loop {
            let log = &mut self.devices[gpu].switches;
            let Some(switch) = log.pop_front() else { break };
            if switch.done_ns() > now {
                log.push_front(switch);
                break;
            }
            self.copy_switch(gpu, &switch);
        }
    }

    /// Two records of one switch. As in the driver, fields that a channel which is gone does not fill keep what they had:
    /// the context that came may be shown under the one that left.
    fn copy_switch(&mut self, gpu: usize, switch: &Switch) {
        let owner = |part: Option<(u64, u64, u64)>| part.and_then(|(id, ..)| self.owner(id));
        let (left, came) = (owner(switch.left), owner(switch.came));
        if left.is_none() && came.is_none() {
            return;
        }
        let mut shown = Owner::default();
        let mut noise = (0, 0);
        let parts = [
            (timeline::END, left, switch.left),
            (timeline::START, came, switch.came),
        ];
        for (tag, owner, part) in parts {
            let Some((_, from, to)) = part else { continue };
            if let Some(owner) = owner {
                shown = owner;
                noise = (from, to - from);
            }
            let random = self.random();
            let noisy_ns = match noise.1 {
                0 => 0,
                range => self.gpu_time(noise.0 + random % range),
            };
            let record = Record {
                tag,
                time_ns: self.gpu_time(to),
                noisy_ns,
                owner: shown,
            };
            self.deliver(gpu, record);
        }
    }

    fn deliver(&mut self, gpu: usize, record: Record) {
        let owner = record.owner;
        for buffer in self.event_buffers.values_mut() {
            let wants = |binding: &&Binding| {
                binding.gpu == gpu && (binding.only.is_none() || binding.only == owner.euid)
            };
            let shown: Vec<[u8; timeline::RECORD_SIZE]> = (buffer.bindings.iter().filter(wants))
                .map(|binding| match owner.euid {
                    None => encode(
                        record.tag,
                        timeline::UNKNOWN,
                        timeline::UNKNOWN,
                        record.noisy_ns,
                    ),
                    Some(euid) if !binding.admin && euid != binding.euid => encode(
                        record.tag,
                        timeline::HIDDEN,
                        timeline::HIDDEN,
                        record.noisy_ns,
                    ),
                    Some(_) => encode(record.tag, owner.pid, owner.context, record.time_ns),
                })
                .collect();
            for record in &shown {
                buffer.add(&mut self.deviceless, record);
            }
        }
    }

    /// Whose a channel is, if it is still there.
    fn owner(&self, channel: u64) -> Option<Owner> {
        let channel = self.channels.get(&channel)?;
        let client = self.clients.get(&channel.client)?;
        Some(Owner {
            pid: client.pid,
            euid: Some(client.euid),
            context: channel.number,
        })
    }

    /// Time of the GPU's own timer when an engine's clock shows this.
    pub(super) fn gpu_time(&self, clock_ns: u64) -> u64 {
        (self.started_ns + clock_ns) & !(TICK_NS - 1)
    }

    /// `0x20800403`: the GPU's own time, which the records are in.
    pub(super) fn timer_time(&self, gpu: usize) -> u64 {
        self.gpu_time(self.devices[gpu].engines[0].now(Instant::now()))
    }

    /// Noise for the times that a user sees of another's contexts.
    fn random(&mut self) -> u64 {
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        self.noise
    }
}

/// The hardware's log of a GPU.
pub type Log = VecDeque<Switch>;
