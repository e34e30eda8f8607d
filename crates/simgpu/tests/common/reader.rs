//! Who reads the context-switch timeline, call by call.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rm::{class, ctrl, layout, nr, timeline};
use simgpu::client::Node;

use super::*;

pub const HEADER: u32 = 0x5c00_0100;
pub const RECORDS: u32 = 0x5c00_0101;
pub const BUFFER: u32 = 0x5c00_0102;
/// Attributes of the memory of an event buffer: of the host, cached; its user may only read it.
const ATTR: u32 = 1 << 25 | 5 << 29;
pub const READ_ONLY: u32 = 1 << 22;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub tag: u8,
    pub number: u16,
    pub context: u32,
    pub pid: u32,
    pub ns: u64,
}

/// A mapping of a control file.
pub struct Mapped {
    start: *const u8,
    length: usize,
    _file: OwnedFd,
}

impl Mapped {
    pub fn word(&self, at: usize) -> u32 {
        assert!(at + 4 <= self.length && at.is_multiple_of(4));
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
pub struct Reader {
    pub tenant: Tenant,
    pub header: Mapped,
    pub records: Mapped,
    count: u32,
    get: u32,
}

pub fn memory_of_no_device(tenant: &mut Tenant, handle: u32, size: u64, attr2: u32) -> u32 {
    use layout::memory_allocation as at;
    let mut params = tenant.of_class(class::NV01_MEMORY_DEVICELESS);
    put64(&mut params, at::SIZE_FIELD, size);
    put32(&mut params, at::ATTR, ATTR);
    put32(&mut params, at::ATTR2, attr2);
    let root = tenant.root;
    tenant.alloc(root, handle, class::NV01_MEMORY_DEVICELESS, &mut params)
}

pub fn map_on(tenant: &mut Tenant, handle: u32, length: usize, file: &OwnedFd) -> u32 {
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

pub fn event_buffer(tenant: &mut Tenant, count: u32, notification: u64) -> u32 {
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

/// Asks for the switches of all users or of one's own: status and reason.
pub fn bind(tenant: &mut Tenant, all: bool) -> (u32, u32) {
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
    let status = tenant.control(SUBDEVICE, bind, &mut params);
    (status, get32(&params, at::REASON_CODE))
}

impl Reader {
    pub fn open(node: &TestNode, count: u32, flags: u32, all: bool) -> Reader {
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
        assert_eq!(bind(&mut self.tenant, all), (OK, 0));
    }

    /// All that is new, flushed first.
    pub fn flushed(&mut self) -> Vec<Record> {
        assert_eq!(
            self.tenant
                .control(BUFFER, ctrl::NV_EVENT_BUFFER_FLUSH, &mut []),
            OK
        );
        self.seen()
    }

    /// All that is new in the buffer.
    pub fn seen(&mut self) -> Vec<Record> {
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

    pub fn dropped(&self) -> u64 {
        self.header
            .long(layout::event_buffer_header::RECORD_DROPCOUNT)
    }

    /// Tells how far it has read.
    pub fn update_get(&mut self) {
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
    pub fn now(&mut self) -> u64 {
        let mut params = [0; layout::timer_time::SIZE];
        assert_eq!(
            self.tenant
                .control(SUBDEVICE, ctrl::NV2080_TIMER_GET_TIME, &mut params),
            OK
        );
        get64(&params, 0)
    }
}
