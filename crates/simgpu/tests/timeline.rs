//! The context-switch timeline: what a reader gets to see of who is on the engine, and when.

mod common;

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::*;
use rm::{class, ctrl, layout, nr, timeline};
use simgpu::client::Node;
use simgpu::work::{Kernel, Op, Work};

const GROUP: u32 = 0x5c00_0020;
const HEADER: u32 = 0x5c00_0100;
const RECORDS: u32 = 0x5c00_0101;
const BUFFER: u32 = 0x5c00_0102;
/// Attributes of the memory of an event buffer: of the host, cached; its user may only read it.
const ATTR: u32 = 1 << 25 | 5 << 29;
const READ_ONLY: u32 = 1 << 22;
/// Between the end of a context and the start of the next.
const RESTORE_NS: u64 = 82_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    tag: u8,
    number: u16,
    context: u32,
    pid: u32,
    ns: u64,
}

/// A mapping of a control file.
struct Mapped {
    start: *const u8,
    length: usize,
    _file: OwnedFd,
}

impl Mapped {
    fn word(&self, at: usize) -> u32 {
        assert!(at + 4 <= self.length && at % 4 == 0);
        // SAFETY: inside the mapping and aligned, as just checked; the server stores the word whole.
        unsafe { AtomicU32::from_ptr(self.start.add(at).cast_mut().cast()) }.load(Ordering::Acquire)
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at)) | u64::from(self.word(at + 4)) << 32
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing refers into it.
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.length) };
    }
}

/// Who reads the timeline.
struct Reader {
    tenant: Tenant,
    header: Mapped,
    records: Mapped,
    count: u32,
    get: u32,
}

fn memory_of_no_device(tenant: &mut Tenant, handle: u32, size: u64, attr2: u32) -> u32 {
    use layout::memory_allocation as at;
    let mut params = tenant.of_class(class::NV01_MEMORY_DEVICELESS);
    put64(&mut params, at::SIZE_FIELD, size);
    put32(&mut params, at::ATTR, ATTR);
    put32(&mut params, at::ATTR2, attr2);
    let root = tenant.root;
    tenant.alloc(root, handle, class::NV01_MEMORY_DEVICELESS, &mut params)
}

fn map_on(tenant: &mut Tenant, handle: u32, length: usize, file: &OwnedFd) -> u32 {
    use layout::nvos33 as at;
    let mut block = [0; layout::nvos33_with_fd::SIZE];
    put32(&mut block, at::H_CLIENT, tenant.root);
    put32(&mut block, at::H_DEVICE, tenant.root);
    put32(&mut block, at::H_MEMORY, handle);
    put64(&mut block, at::LENGTH, length as u64);
    put32(&mut block, at::FLAGS, 1);
    put32(
        &mut block,
        layout::nvos33_with_fd::FD,
        file.as_raw_fd() as u32,
    );
    tenant.escape(nr::RM_MAP_MEMORY, &mut block).unwrap();
    get32(&block, at::STATUS)
}

fn map(tenant: &mut Tenant, handle: u32, length: usize) -> Mapped {
    let file = tenant.client.open(Node::Control).unwrap();
    assert_eq!(map_on(tenant, handle, length, &file), OK);
    // SAFETY: a new mapping of a file, at an address of the kernel's choice.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    Mapped {
        start: start.cast(),
        length,
        _file: file,
    }
}

fn event_buffer(tenant: &mut Tenant, count: u32, notification: u64) -> u32 {
    use layout::event_buffer_alloc as at;
    let mut params = [0; at::SIZE];
    put32(&mut params, at::RECORD_SIZE, timeline::RECORD_SIZE as u32);
    put32(&mut params, at::RECORD_COUNT, count);
    put64(&mut params, at::NOTIFICATION_HANDLE, notification);
    put32(&mut params, at::H_SUB_DEVICE, SUBDEVICE);
    put32(&mut params, at::H_BUFFER_HEADER, HEADER);
    put32(&mut params, at::H_RECORD_BUFFER, RECORDS);
    let root = tenant.root;
    tenant.alloc(root, BUFFER, class::NV_EVENT_BUFFER, &mut params)
}

impl Reader {
    fn open(node: &TestNode, count: u32, flags: u32, all: bool) -> Reader {
        let mut tenant = Tenant::new(node);
        let bytes = count as usize * timeline::RECORD_SIZE;
        assert_eq!(
            memory_of_no_device(&mut tenant, HEADER, 4096, READ_ONLY),
            OK
        );
        assert_eq!(
            memory_of_no_device(&mut tenant, RECORDS, bytes as u64, READ_ONLY),
            OK
        );
        assert_eq!(event_buffer(&mut tenant, count, 0), OK);
        let (header, records) = (
            map(&mut tenant, HEADER, 4096),
            map(&mut tenant, RECORDS, bytes),
        );
        let mut reader = Reader {
            tenant,
            header,
            records,
            count,
            get: 0,
        };
        reader.bind(all);
        let mut params = [0; layout::event_buffer_enable::SIZE];
        params[layout::event_buffer_enable::ENABLE] = 1;
        put32(&mut params, layout::event_buffer_enable::FLAGS, flags);
        let enabled = ctrl::NV_EVENT_BUFFER_ENABLE_EVENTS;
        assert_eq!(reader.tenant.control(BUFFER, enabled, &mut params), OK);
        reader
    }

    fn bind(&mut self, all: bool) {
        use layout::fecs_bind as at;
        let mut params = [0; at::SIZE];
        put32(&mut params, at::H_EVENT_BUFFER, BUFFER);
        put32(
            &mut params,
            at::RECORD_SIZE,
            timeline::RECORD_SIZE as u32 - 8,
        );
        put32(&mut params, at::LEVEL_OF_DETAIL, 1);
        params[at::B_ALL_USERS] = all.into();
        let bind = ctrl::NV2080_GR_FECS_BIND_EVTBUF_FOR_UID_V2;
        assert_eq!(self.tenant.control(SUBDEVICE, bind, &mut params), OK);
        assert_eq!(get32(&params, at::REASON_CODE), 0);
    }

    /// All that is new, flushed first.
    fn flushed(&mut self) -> Vec<Record> {
        assert_eq!(
            self.tenant
                .control(BUFFER, ctrl::NV_EVENT_BUFFER_FLUSH, &mut []),
            OK
        );
        self.seen()
    }

    /// All that is new in the buffer.
    fn seen(&mut self) -> Vec<Record> {
        use layout::{event_buffer_header as header, event_record, fecs_record as at};
        let put = self.header.word(header::RECORD_PUT);
        let mut found = Vec::new();
        while self.get != put {
            let base = self.get as usize * timeline::RECORD_SIZE;
            assert_eq!(self.records.word(base), timeline::RECORD_TYPE.into());
            let base = base + event_record::INLINE_PAYLOAD;
            let first = self.records.word(base);
            found.push(Record {
                tag: first as u8,
                number: (first >> (8 * at::SEQNO)) as u16,
                context: self.records.word(base + at::CONTEXT_ID),
                pid: self.records.word(base + at::PID),
                ns: self.records.long(base + at::TIMESTAMP),
            });
            self.get = (self.get + 1) % self.count;
        }
        found
    }

    fn dropped(&self) -> u64 {
        self.header
            .long(layout::event_buffer_header::RECORD_DROPCOUNT)
    }

    /// Tells how far it has read.
    fn update_get(&mut self) {
        let mut params = [0; layout::event_buffer_update_get::SIZE];
        put32(
            &mut params,
            layout::event_buffer_update_get::RECORD_BUFFER_GET,
            self.get,
        );
        let update = ctrl::NV_EVENT_BUFFER_UPDATE_GET;
        assert_eq!(self.tenant.control(BUFFER, update, &mut params), OK);
    }

    /// Time of the GPU.
    fn now(&mut self) -> u64 {
        let mut params = [0; layout::timer_time::SIZE];
        assert_eq!(
            self.tenant
                .control(SUBDEVICE, ctrl::NV2080_TIMER_GET_TIME, &mut params),
            OK
        );
        get64(&params, 0)
    }
}

/// A tenant with one compute context of a slice.
fn context(node: &TestNode, slice_us: u64) -> (Tenant, u32) {
    let mut tenant = Tenant::new(node);
    tenant.uvm_space();
    let channel = tenant.channel(GROUP);
    tenant.preemption(channel, 2);
    slice(&mut tenant, slice_us);
    (tenant, channel)
}

fn slice(tenant: &mut Tenant, us: u64) {
    let mut params = us.to_le_bytes();
    assert_eq!(
        tenant.control(GROUP, ctrl::NVA06C_SET_TIMESLICE, &mut params),
        OK
    );
}

/// Queues a kernel.
fn spin(tenant: &mut Tenant, channel: u32, ms: u64) {
    let op = Op::Launch(Kernel::Spin { ns: ms * 1_000_000 });
    let work = Work {
        client: tenant.root,
        channel,
        wait: false,
        op,
    };
    tenant.client.submit(&work).unwrap();
}

fn number_of(tenant: &mut Tenant, channel: u32) -> u32 {
    let mut params = tenant.of_control(ctrl::NVC36F_GPFIFO_GET_WORK_SUBMIT_TOKEN);
    let token = ctrl::NVC36F_GPFIFO_GET_WORK_SUBMIT_TOKEN;
    assert_eq!(tenant.control(channel, token, &mut params), OK);
    get32(&params, 0)
}

/// Time between start and end, by context; the records are whole: in order, none missing, never two at once.
fn residency(records: &[Record]) -> std::collections::BTreeMap<u32, u64> {
    let mut sums = std::collections::BTreeMap::new();
    let mut on: Option<Record> = None;
    for (index, record) in records.iter().enumerate() {
        assert_eq!(record.number, records[0].number.wrapping_add(index as u16));
        assert!(
            index == 0 || record.ns >= records[index - 1].ns,
            "{records:?}"
        );
        match (record.tag, on.take()) {
            (timeline::START, None) => on = Some(*record),
            (timeline::END, Some(start)) => {
                assert_eq!(start.context, record.context);
                *sums.entry(record.context).or_default() += record.ns - start.ns;
            }
            // What was on the engine when the reader came.
            (timeline::END, None) if index == 0 => {}
            other => panic!("{other:?} in {records:?}"),
        }
    }
    sums
}

#[test]
fn residency_of_two_contexts_is_as_their_slices() {
    let node = node("1xH200");
    let (mut first, first_channel) = context(&node, 30_000);
    let (mut second, second_channel) = context(&node, 10_000);
    let mut reader = Reader::open(&node, 1024, timeline::KEEP_NEWEST, true);
    let numbers = [
        number_of(&mut first, first_channel),
        number_of(&mut second, second_channel),
    ];
    assert_ne!(numbers[0], numbers[1]);
    for _ in 0..4 {
        spin(&mut first, first_channel, 500);
        spin(&mut second, second_channel, 500);
    }
    // Whole cycles: from one start of the first to a later one.
    let mut records = Vec::new();
    let until = Instant::now() + Duration::from_secs(30);
    while records.len() < 41 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        records.extend(reader.flushed());
    }
    records.drain(..4);
    let last = records
        .iter()
        .rposition(|r| r.tag == timeline::START && r.context == numbers[0]);
    let first_start = records
        .iter()
        .position(|r| r.tag == timeline::START && r.context == numbers[0]);
    let sums = residency(&records[first_start.unwrap()..last.unwrap()]);
    let (a, b) = (sums[&numbers[0]] as f64, sums[&numbers[1]] as f64);
    let share = a / (a + b);
    // Saving a context counts as its own: 30.188 of 40.376 ms.
    assert!((0.745..0.7505).contains(&share), "{share} {records:?}");
    assert!(
        records
            .iter()
            .all(|record| record.pid == std::process::id())
    );
}

#[test]
fn the_gap_between_two_contexts_is_the_restore() {
    let node = node("1xH200");
    let (mut first, first_channel) = context(&node, 2000);
    let (mut second, second_channel) = context(&node, 2000);
    let mut reader = Reader::open(&node, 1024, timeline::KEEP_NEWEST, true);
    spin(&mut first, first_channel, 20);
    spin(&mut second, second_channel, 20);
    first.submit(first_channel, Op::Wait);
    let records = reader.flushed();
    assert!(records.len() > 8, "{records:?}");
    for pair in records
        .windows(2)
        .filter(|pair| pair[0].tag == timeline::END)
    {
        let gap = pair[1].ns - pair[0].ns;
        assert!(gap.abs_diff(RESTORE_NS) <= 32, "{gap}");
    }
}

#[test]
fn a_lone_context_has_no_end() {
    let node = node("1xH200");
    let (mut tenant, channel) = context(&node, 2000);
    let mut reader = Reader::open(&node, 1024, timeline::KEEP_NEWEST, true);
    for _ in 0..3 {
        tenant.submit(channel, Op::Launch(Kernel::Spin { ns: 10_000_000 }));
        std::thread::sleep(Duration::from_millis(5));
    }
    let records = reader.flushed();
    let tags: Vec<u8> = records.iter().map(|record| record.tag).collect();
    assert_eq!(tags, [timeline::START]);
    assert!(records[0].ns + 30_000_000 <= reader.now());
    // A reader that comes while it is there sees nothing of it at all.
    let mut late = Reader::open(&node, 1024, timeline::KEEP_NEWEST, true);
    tenant.submit(channel, Op::Launch(Kernel::Spin { ns: 10_000_000 }));
    assert_eq!(late.flushed(), []);
}
