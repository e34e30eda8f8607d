//! The sensor `timeline`: the driver's record of which context was on the compute engine, and when.
//!
//! The driver keeps a ring of records in memory that we map (class `0x90cd`), and writes a START and an END for each
//! switch, with the card's own time and the process that made the context's client: for a tenant that is its helper. A
//! context that nobody else disturbs has a START and no END. What is said here of records is from the driver's source
//! (fecs_event_list.c, event_buffer.c of 580.142) and from records of an H200 with driver 580.159.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rm::timeline::{END, KEEP_NEWEST, RECORD_SIZE, RECORD_TYPE, START, UNKNOWN};
use rm::{Status, class, ctrl, layout, nr};

use crate::backend::Node;
use crate::rmcall::{self, Gpu, OwnClient, put_u32, put_u64, u32_at};

/// Records of the ring: 4 seconds of the fastest switching there is (a switch of 0.27 ms, two records each), and less than
/// half of what their 16-bit numbers can tell apart.
const RECORDS: u32 = 1 << 15;
/// Bytes of the ring's header, a page.
const HEADER: usize = 4096;
/// Memory of the host that its user may only read (the driver wants that of an event buffer's).
const IN_HOST_MEMORY: u32 = 1 << 25 | 5 << 29;
const READ_ONLY: u32 = 1 << 22;
/// How `RM_MAP_MEMORY` is asked for a mapping to read.
const TO_READ: u32 = 1;
/// Lists switches and nothing else.
const SIMPLE: u32 = 1;

/// A stretch of a context on the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The process that made the context's client.
    pub pid: u32,
    /// The hardware's number of the context's channel.
    pub context: u32,
    /// Nanoseconds of the card's clock.
    pub from: u64,
    /// When it ended, or now.
    pub to: u64,
    /// It goes on.
    pub open: bool,
    /// It was open when the timeline was read last.
    pub continued: bool,
}

/// What was new.
#[derive(Debug, Default)]
pub struct News {
    /// In order.
    pub stretches: Vec<Stretch>,
    /// Nanoseconds whose records were lost.
    pub lost: u64,
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    tag: u8,
    number: u16,
    context: u32,
    pid: u32,
    at: u64,
}

/// A mapping of a file of the driver, to read.
struct Window {
    at: *const u8,
    length: usize,
    _file: OwnedFd,
}

// SAFETY: the mapping is valid in every thread, and is read through atomics only.
unsafe impl Send for Window {}

impl Window {
    fn word(&self, at: usize) -> u32 {
        assert!(at + 4 <= self.length && at.is_multiple_of(4));
        // SAFETY: inside the mapping and aligned, as just checked; it is changed by the driver alone, word by word.
        unsafe { AtomicU32::from_ptr(self.at.add(at).cast_mut().cast()) }.load(Ordering::Acquire)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing refers into it.
        unsafe { libc::munmap(self.at.cast_mut().cast(), self.length) };
    }
}

/// The timeline of one card.
pub struct Timeline {
    own: Arc<OwnClient>,
    gpu: Gpu,
    buffer: u32,
    header: Window,
    records: Window,
    get: u32,
    expected: Option<u16>,
    /// Who is on the engine: process, context, since when, and whether that was told before.
    on: Option<(u32, u32, u64, bool)>,
    /// The card's time of what was read last.
    read_to: u64,
}

impl Timeline {
    /// Asks the driver to record the switches of a card.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn open(own: Arc<OwnClient>, gpu: &Gpu) -> io::Result<Timeline> {
        let backend = own.backend().clone();
        let length = RECORDS as usize * RECORD_SIZE;
        let client = own.client();
        let header = memory(&own, HEADER)?;
        let records = memory(&own, length)?;
        let event = event(&own)?;
        let mut params = [0u8; layout::event_buffer_alloc::SIZE];
        {
            use layout::event_buffer_alloc as at;
            put_u32(&mut params, at::RECORD_SIZE, RECORD_SIZE as u32);
            put_u32(&mut params, at::RECORD_COUNT, RECORDS);
            // A number that is no registered event's the driver would take for an address of its own.
            put_u64(&mut params, at::NOTIFICATION_HANDLE, event);
            put_u32(&mut params, at::H_SUB_DEVICE, OwnClient::subdevice(gpu));
            put_u32(&mut params, at::H_BUFFER_HEADER, header);
            put_u32(&mut params, at::H_RECORD_BUFFER, records);
        }
        let place = (client, client, 0);
        let buffer = rmcall::alloc(
            backend.as_ref(),
            own.file(),
            place,
            class::NV_EVENT_BUFFER,
            &mut params,
        )?;
        let header = window(&own, header, HEADER)?;
        let records = window(&own, records, length)?;
        bind(&own, gpu, buffer)?;
        let mut enable = [0u8; layout::event_buffer_enable::SIZE];
        enable[layout::event_buffer_enable::ENABLE] = 1;
        put_u32(&mut enable, layout::event_buffer_enable::FLAGS, KEEP_NEWEST);
        own.control(buffer, ctrl::NV_EVENT_BUFFER_ENABLE_EVENTS, &mut enable)?;
        let get = header.word(layout::event_buffer_header::RECORD_PUT);
        let read_to = own.gpu_time(gpu)?;
        Ok(Timeline {
            gpu: gpu.clone(),
            buffer,
            header,
            records,
            get,
            expected: None,
            on: None,
            read_to,
            own,
        })
    }

    /// The card's time in nanoseconds.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn now(&self) -> io::Result<u64> {
        self.own.gpu_time(&self.gpu)
    }

    /// What was recorded since the last time, up to now.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn read(&mut self) -> io::Result<(u64, News)> {
        self.own
            .control(self.buffer, ctrl::NV_EVENT_BUFFER_FLUSH, &mut [])?;
        let now = self.now()?;
        let mut news = News::default();
        let put = self.header.word(layout::event_buffer_header::RECORD_PUT) % RECORDS;
        while self.get != put {
            if let Some(record) = self.record(self.get) {
                self.take(record, &mut news);
            }
            self.get = (self.get + 1) % RECORDS;
        }
        if let Some((pid, context, from, continued)) = self.on
            && now > from
        {
            news.stretches.push(Stretch {
                pid,
                context,
                from,
                to: now,
                open: true,
                continued,
            });
            self.on = Some((pid, context, now, true));
        }
        self.read_to = self.read_to.max(now);
        Ok((now, news))
    }

    fn record(&self, index: u32) -> Option<Record> {
        use layout::{event_record, fecs_record as at};
        let start = index as usize * RECORD_SIZE;
        let mut bytes = [0u8; RECORD_SIZE];
        for (i, word) in bytes.chunks_exact_mut(4).enumerate() {
            word.copy_from_slice(&self.records.word(start + 4 * i).to_le_bytes());
        }
        if u32_at(&bytes, event_record::TYPE) as u16 != RECORD_TYPE {
            return None;
        }
        let payload = &bytes[event_record::INLINE_PAYLOAD..];
        Some(Record {
            tag: payload[at::TAG],
            number: u16::from_le_bytes([payload[at::SEQNO], payload[at::SEQNO + 1]]),
            context: u32_at(payload, at::CONTEXT_ID),
            pid: u32_at(payload, at::PID),
            at: rmcall::u64_at(payload, at::TIMESTAMP),
        })
    }

    fn take(&mut self, record: Record, news: &mut News) {
        let expected = self.expected.unwrap_or(record.number);
        self.expected = Some(record.number.wrapping_add(1));
        // A record of nothing: its context was gone when it was copied, and it has no time. Whoever was on is closed by the
        // next START.
        let nameless = record.pid == UNKNOWN || record.at == 0;
        if record.number != expected {
            // Since the last record that was read anybody may have been on.
            news.lost += if nameless {
                0
            } else {
                record.at.saturating_sub(self.read_to)
            };
            self.on = None;
        }
        if nameless {
            return;
        }
        match record.tag {
            START => {
                self.close(record.at, news);
                self.on = Some((record.pid, record.context, record.at, false));
            }
            END => match self.on {
                Some((pid, context, ..)) if (pid, context) == (record.pid, record.context) => {
                    self.close(record.at, news);
                }
                // It was on before we began to listen, or its START was lost with its channel.
                _ => {
                    self.on = Some((record.pid, record.context, self.read_to, false));
                    self.close(record.at, news);
                }
            },
            _ => return,
        }
        self.read_to = self.read_to.max(record.at);
    }

    fn close(&mut self, at: u64, news: &mut News) {
        if let Some((pid, context, from, continued)) = self.on.take()
            && at > from
        {
            news.stretches.push(Stretch {
                pid,
                context,
                from,
                to: at,
                open: false,
                continued,
            });
        }
    }
}

/// Memory of the host, tied to no card, that a user maps to read.
fn memory(own: &OwnClient, length: usize) -> io::Result<u32> {
    use layout::memory_allocation as m;
    let mut params = vec![0u8; own.size_of_class(class::NV01_MEMORY_DEVICELESS)?];
    put_u64(&mut params, m::SIZE_FIELD, length as u64);
    put_u32(&mut params, m::ATTR, IN_HOST_MEMORY);
    put_u32(&mut params, m::ATTR2, READ_ONLY);
    rmcall::alloc(
        own.backend().as_ref(),
        own.file(),
        (own.client(), own.client(), 0),
        class::NV01_MEMORY_DEVICELESS,
        &mut params,
    )
}

/// Registers our client's file for events of the client: the driver must know the one that a buffer names. Its number.
fn event(own: &OwnClient) -> io::Result<u64> {
    use layout::alloc_os_event as e;
    let number = own.file().as_raw_fd() as u32;
    let mut block = [0u8; e::SIZE];
    put_u32(&mut block, e::H_CLIENT, own.client());
    put_u32(&mut block, e::FD, number);
    let request = rmcall::request(nr::ALLOC_OS_EVENT, e::SIZE);
    own.backend().ioctl(own.file(), request, &mut block)?;
    match Status(u32_at(&block, e::STATUS)) {
        Status::OK => Ok(number.into()),
        status => Err(refused("a file for events", status)),
    }
}

/// Maps such memory. A file of the driver holds one mapping.
fn window(own: &OwnClient, handle: u32, length: usize) -> io::Result<Window> {
    use layout::nvos33 as l;
    let backend = own.backend();
    let file = backend.open(Node::Control)?;
    let mut block = [0u8; layout::nvos33_with_fd::SIZE];
    put_u32(&mut block, l::H_CLIENT, own.client());
    put_u32(&mut block, l::H_DEVICE, own.client());
    put_u32(&mut block, l::H_MEMORY, handle);
    put_u64(&mut block, l::LENGTH, length as u64);
    put_u32(&mut block, l::FLAGS, TO_READ);
    put_u32(
        &mut block,
        layout::nvos33_with_fd::FD,
        file.as_raw_fd() as u32,
    );
    let request = rmcall::request(nr::RM_MAP_MEMORY, block.len());
    backend.ioctl(own.file(), request, &mut block)?;
    match Status(u32_at(&block, l::STATUS)) {
        Status::OK => {}
        status => return Err(refused("a mapping of the timeline", status)),
    }
    // The call prepared this file; mmap(2) makes the mapping.
    let file = File::from(file);
    // SAFETY: a new mapping of a file of ours, at an address of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(Window {
        at: at.cast(),
        length,
        _file: file.into(),
    })
}

fn bind(own: &OwnClient, gpu: &Gpu, buffer: u32) -> io::Result<()> {
    use layout::fecs_bind as b;
    let mut params = [0u8; b::SIZE];
    put_u32(&mut params, b::H_EVENT_BUFFER, buffer);
    // Of a record's payload, as the prototype that was measured asked; the driver does not look.
    put_u32(&mut params, b::RECORD_SIZE, RECORD_SIZE as u32 - 8);
    put_u32(&mut params, b::LEVEL_OF_DETAIL, SIMPLE);
    params[b::B_ALL_USERS] = 1;
    let bind = ctrl::NV2080_GR_FECS_BIND_EVTBUF_FOR_UID_V2;
    own.control(OwnClient::subdevice(gpu), bind, &mut params)?;
    match u32_at(&params, b::REASON_CODE) {
        0 => Ok(()),
        reason => Err(io::Error::other(format!(
            "the driver does not record context switches (reason {reason})"
        ))),
    }
}

fn refused(what: &str, status: Status) -> io::Error {
    io::Error::other(format!("the driver refuses {what}: {status:?}"))
}
