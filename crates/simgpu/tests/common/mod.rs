//! A small raw client for the tests: the ioctls of a CUDA program, one by one.

#![expect(dead_code, reason = "each test file uses a part of it")]

pub mod reader;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rm::{Abi, class, ctrl, layout, nr, uvm};
use simgpu::client::{Client, Node};
use simgpu::server::{Running, start};
use simgpu::spec::NodeSpec;
use simgpu::work::{Op, Work, WorkResult};

pub const OK: u32 = 0;
pub const INSUFFICIENT_PERMISSIONS: u32 = 0x1b;
pub const INVALID_CLIENT: u32 = 0x23;
pub const NO_MEMORY: u32 = 0x51;
pub const NOT_SUPPORTED: u32 = 0x56;
pub const OBJECT_NOT_FOUND: u32 = 0x57;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// A server in this process, on a socket of its own.
pub struct TestNode {
    pub socket: PathBuf,
    _running: Running,
}

pub fn node(spec: &str) -> TestNode {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let socket =
        std::env::temp_dir().join(format!("simgpu-test-{}-{number}.sock", std::process::id()));
    let running = start(&spec.parse::<NodeSpec>().unwrap(), &socket).unwrap();
    TestNode {
        socket,
        _running: running,
    }
}

/// A request word as `_IOWR('F', number, size)` makes it.
pub fn request(number: u8, size: usize) -> u32 {
    3 << 30 | (size as u32) << 16 | u32::from(b'F') << 8 | u32::from(number)
}

pub fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

pub fn put32(block: &mut [u8], at: usize, value: u32) {
    put(block, at, &value.to_le_bytes());
}

pub fn put64(block: &mut [u8], at: usize, value: u64) {
    put(block, at, &value.to_le_bytes());
}

pub fn get32(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().unwrap())
}

pub fn get64(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().unwrap())
}

/// A process as the RM sees it: a connection, a control file, a device file, a UVM file, a client with device and
/// subdevice.
pub struct Tenant {
    pub client: Client,
    pub control: OwnedFd,
    pub device_file: OwnedFd,
    pub uvm: OwnedFd,
    keeper: Option<OwnedFd>,
    pub root: u32,
    pub abi: &'static Abi,
    /// Ranges it has made, for a driver that wants their length back.
    ranges: BTreeMap<u64, u64>,
}

/// Empty parameters of a control of the node whose version is not named.
pub fn params_of(command: u32) -> Vec<u8> {
    let entry = simgpu::abi_of(simgpu::DRIVER_VERSION).control(command);
    vec![0; entry.unwrap().size as usize]
}

pub const DEVICE: u32 = 0x5c00_0002;
pub const SUBDEVICE: u32 = 0x5c00_0003;
pub const VASPACE: u32 = 0x5c00_0009;

impl Tenant {
    pub fn new(node: &TestNode) -> Tenant {
        Tenant::on(node, 0)
    }

    pub fn on(node: &TestNode, gpu: u32) -> Tenant {
        let mut client = Client::connect(&node.socket).unwrap();
        let control = client.open(Node::Control).unwrap();
        let device_file = client.open(Node::Gpu(gpu)).unwrap();
        let uvm = client.open(Node::Uvm).unwrap();
        let root = new_root(&mut client, control.as_fd());
        let abi = client.abi().unwrap();
        let mut tenant = Tenant {
            abi,
            ranges: BTreeMap::new(),
            client,
            control,
            device_file,
            uvm,
            keeper: None,
            root,
        };
        let mut params = [0; layout::device_alloc::SIZE];
        put32(&mut params, layout::device_alloc::DEVICE_ID, gpu);
        assert_eq!(
            tenant.alloc(root, DEVICE, class::NV01_DEVICE_0, &mut params),
            OK
        );
        assert_eq!(
            tenant.alloc(DEVICE, SUBDEVICE, class::NV20_SUBDEVICE_0, &mut [0; 4]),
            OK
        );
        tenant
    }

    /// Empty parameters of a class.
    pub fn of_class(&self, class: u32) -> Vec<u8> {
        vec![0; self.abi.class(class).unwrap().size.into()]
    }

    /// Empty parameters of a control.
    pub fn of_control(&self, command: u32) -> Vec<u8> {
        vec![0; self.abi.control(command).unwrap().size as usize]
    }

    /// An empty block of a UVM call.
    pub fn of_uvm(&self, request: u32) -> Vec<u8> {
        vec![0; self.abi.uvm(request).unwrap().size.into()]
    }

    pub fn file(&self, fd: impl AsFd) -> (u64, u64) {
        file_id(fd.as_fd())
    }

    /// On the device's file, as `RM_ALLOC_MEMORY` is taken. It is tied to the client's.
    pub fn escape_on_device(&mut self, number: u8, block: &mut [u8]) -> std::io::Result<i32> {
        let mut tie = self.control.as_raw_fd().to_le_bytes();
        self.client.ioctl(
            self.device_file.as_fd(),
            request(nr::REGISTER_FD, tie.len()),
            tie.as_mut_ptr(),
        )?;
        self.client.ioctl(
            self.device_file.as_fd(),
            request(number, block.len()),
            block.as_mut_ptr(),
        )
    }

    pub fn escape(&mut self, number: u8, block: &mut [u8]) -> std::io::Result<i32> {
        self.client.ioctl(
            self.control.as_fd(),
            request(number, block.len()),
            block.as_mut_ptr(),
        )
    }

    pub fn alloc(&mut self, parent: u32, handle: u32, class: u32, params: &mut [u8]) -> u32 {
        alloc(
            &mut self.client,
            self.control.as_fd(),
            [self.root, parent, handle, class],
            params,
        )
    }

    /// Device memory; the size comes back rounded.
    pub fn memory(&mut self, handle: u32, size: u64) -> (u32, u64) {
        self.memory_with(handle, size, 0, 0)
    }

    pub fn memory_with(&mut self, handle: u32, size: u64, attr: u32, attr2: u32) -> (u32, u64) {
        use layout::memory_allocation as at;
        let mut params = self.of_class(class::NV01_MEMORY_LOCAL_USER);
        put64(&mut params, at::SIZE_FIELD, size);
        put32(&mut params, at::ATTR, attr);
        put32(&mut params, at::ATTR2, attr2);
        let status = self.alloc(DEVICE, handle, class::NV01_MEMORY_LOCAL_USER, &mut params);
        (status, get64(&params, at::SIZE_FIELD))
    }

    pub fn free(&mut self, handle: u32) -> u32 {
        use layout::nvos00 as at;
        let mut block = [0; at::SIZE];
        put32(&mut block, at::H_ROOT, self.root);
        put32(&mut block, at::H_OBJECT_OLD, handle);
        self.escape(nr::RM_FREE, &mut block).unwrap();
        get32(&block, at::STATUS)
    }

    pub fn control(&mut self, object: u32, command: u32, params: &mut [u8]) -> u32 {
        control(
            &mut self.client,
            self.control.as_fd(),
            [self.root, object, command],
            params,
        )
    }

    /// One number of frame-buffer information, KiB.
    pub fn fb(&mut self, index: u32) -> u64 {
        use layout::fb_info as at;
        let mut params = self.of_control(ctrl::NV2080_FB_GET_INFO_V2);
        put32(&mut params, at::FB_INFO_LIST_SIZE, 1);
        put32(&mut params, at::FB_INFO_LIST, index);
        assert_eq!(
            self.control(SUBDEVICE, ctrl::NV2080_FB_GET_INFO_V2, &mut params),
            OK
        );
        get32(&params, at::FB_INFO_LIST + 4).into()
    }

    /// Free device memory, bytes.
    pub fn free_bytes(&mut self) -> u64 {
        self.fb(0x16) * KIB
    }

    pub fn uuid(&mut self) -> [u8; 16] {
        let mut params = [0; 268];
        put32(&mut params, 4, 2);
        assert_eq!(
            self.control(SUBDEVICE, ctrl::NV2080_GPU_GET_GID_INFO, &mut params),
            OK
        );
        params[12..28].try_into().unwrap()
    }

    pub fn uvm(&mut self, request: u32, block: &mut [u8], status_at: usize) -> u32 {
        uvm_call(
            &mut self.client,
            self.uvm.as_fd(),
            request,
            block,
            status_at,
        )
    }

    /// Has a second file keep the address space that the UVM file is bound to.
    pub fn keep_address_space(&mut self) -> u32 {
        use layout::uvm_mm_initialize as at;
        let keeper = self.client.open(Node::Uvm).unwrap();
        let mut block = [0; at::SIZE];
        put32(&mut block, at::UVM_FD, self.uvm.as_raw_fd() as u32);
        let status = uvm_call(
            &mut self.client,
            keeper.as_fd(),
            uvm::MM_INITIALIZE,
            &mut block,
            at::RM_STATUS,
        );
        self.keeper = Some(keeper);
        status
    }

    /// Sets the UVM file up, with an address space on the GPU.
    pub fn uvm_space(&mut self) {
        use layout::{uvm_initialize, uvm_register_gpu, uvm_register_gpu_vaspace};
        let uuid = self.uuid();
        let mut block = [0; uvm_initialize::SIZE];
        assert_eq!(
            self.uvm(uvm::INITIALIZE, &mut block, uvm_initialize::RM_STATUS),
            OK
        );
        assert_eq!(self.keep_address_space(), OK);
        let mut block = [0; uvm_register_gpu::SIZE];
        put(&mut block, 0, &uuid);
        assert_eq!(
            self.uvm(uvm::REGISTER_GPU, &mut block, uvm_register_gpu::RM_STATUS),
            OK
        );
        let mut params = self.of_class(class::FERMI_VASPACE_A);
        put32(&mut params, layout::vaspace_alloc::FLAGS, 0x48);
        assert_eq!(
            self.alloc(DEVICE, VASPACE, class::FERMI_VASPACE_A, &mut params),
            OK
        );
        let mut block = [0; uvm_register_gpu_vaspace::SIZE];
        put(&mut block, 0, &uuid);
        put32(&mut block, uvm_register_gpu_vaspace::H_CLIENT, self.root);
        put32(&mut block, uvm_register_gpu_vaspace::H_VA_SPACE, VASPACE);
        assert_eq!(
            self.uvm(
                uvm::REGISTER_GPU_VASPACE,
                &mut block,
                uvm_register_gpu_vaspace::RM_STATUS
            ),
            OK
        );
    }

    pub fn range(&mut self, base: u64, length: u64) -> u32 {
        use layout::uvm_create_external_range as at;
        let mut block = [0; at::SIZE];
        put64(&mut block, at::BASE, base);
        put64(&mut block, at::LENGTH, length);
        let made = self.uvm(uvm::CREATE_EXTERNAL_RANGE, &mut block, at::RM_STATUS);
        if made == OK {
            self.ranges.insert(base, length);
        }
        made
    }

    pub fn map(&mut self, base: u64, length: u64, handle: u32, offset: u64) -> u32 {
        use layout::uvm_map_external as at;
        let uuid = self.uuid();
        let behind = self.abi.layout().uvm_map_external;
        let mut block = self.of_uvm(uvm::MAP_EXTERNAL_ALLOCATION);
        put64(&mut block, at::BASE, base);
        put64(&mut block, at::LENGTH, length);
        put64(&mut block, at::OFFSET, offset);
        put(&mut block, at::PER_GPU_ATTRIBUTES, &uuid);
        put64(&mut block, behind.gpu_attributes_count, 1);
        put32(&mut block, behind.h_client, self.root);
        put32(&mut block, behind.h_memory, handle);
        self.uvm(uvm::MAP_EXTERNAL_ALLOCATION, &mut block, behind.rm_status)
    }

    pub fn unmap(&mut self, base: u64, length: u64) -> u32 {
        use layout::uvm_unmap_external as at;
        let mut block = [0; at::SIZE];
        put64(&mut block, at::BASE, base);
        put64(&mut block, at::LENGTH, length);
        let uuid = self.uuid();
        put(&mut block, at::GPU_UUID, &uuid);
        self.uvm(uvm::UNMAP_EXTERNAL, &mut block, at::RM_STATUS)
    }

    pub fn uvm_free(&mut self, base: u64) -> u32 {
        let at = self.abi.layout().uvm_free;
        let mut block = self.of_uvm(uvm::FREE);
        put64(&mut block, layout::uvm_free::BASE, base);
        if let (Some(at), Some(length)) = (at.length, self.ranges.get(&base)) {
            put64(&mut block, at, *length);
        }
        self.uvm(uvm::FREE, &mut block, at.rm_status)
    }

    /// Device memory mapped at an address, as cuMemAlloc does it.
    pub fn mapped(&mut self, handle: u32, base: u64, size: u64) {
        let (status, size) = self.memory(handle, size);
        assert_eq!(status, OK);
        assert_eq!(self.range(base, size), OK);
        assert_eq!(self.map(base, size, handle, 0), OK);
    }

    /// Asks for a channel's kernels to be stopped at any instruction (2), as CUDA does, or only between them (0).
    pub fn preemption(&mut self, channel: u32, mode: u32) {
        use layout::preemption_mode as at;
        let mut params = [0; at::SIZE];
        put32(&mut params, at::FLAGS, 1);
        put32(&mut params, at::H_CHANNEL, channel);
        put32(&mut params, at::CILP_PREEMPT_MODE, mode);
        let answer = self.control(
            SUBDEVICE,
            ctrl::NV2080_GR_SET_CTXSW_PREEMPTION_MODE,
            &mut params,
        );
        assert_eq!(answer, OK);
    }

    /// A channel group with one channel, scheduled; `handle` names the group, `handle + 1` the channel.
    pub fn channel(&mut self, handle: u32) -> u32 {
        use layout::channel_group_alloc;
        let mut params = [0; channel_group_alloc::SIZE];
        put32(&mut params, channel_group_alloc::ENGINE_TYPE, 1);
        put32(&mut params, channel_group_alloc::H_VA_SPACE, VASPACE);
        assert_eq!(
            self.alloc(DEVICE, handle, class::KEPLER_CHANNEL_GROUP_A, &mut params),
            OK
        );
        let mut params = self.of_class(class::HOPPER_CHANNEL_GPFIFO_A);
        assert_eq!(
            self.alloc(
                handle,
                handle + 1,
                class::HOPPER_CHANNEL_GPFIFO_A,
                &mut params
            ),
            OK
        );
        let mut params = self.of_control(ctrl::NVA06C_GPFIFO_SCHEDULE);
        params.fill(1);
        assert_eq!(
            self.control(handle, ctrl::NVA06C_GPFIFO_SCHEDULE, &mut params),
            OK
        );
        handle + 1
    }

    pub fn submit(&mut self, channel: u32, op: Op) -> WorkResult {
        self.client
            .submit(&Work {
                client: self.root,
                channel,
                wait: true,
                op,
            })
            .unwrap()
    }

    pub fn read(&mut self, channel: u32, src: u64, len: u64) -> Vec<u8> {
        let result = self.submit(channel, Op::Read { src, len });
        assert_eq!(result.status, simgpu::work::WorkStatus::Done);
        result.data
    }
}

pub fn new_root(client: &mut Client, control: BorrowedFd<'_>) -> u32 {
    use layout::nvos64 as at;
    let mut block = [0; at::SIZE];
    client
        .ioctl(
            control,
            request(nr::RM_ALLOC, block.len()),
            block.as_mut_ptr(),
        )
        .unwrap();
    assert_eq!(get32(&block, at::STATUS), OK);
    get32(&block, at::H_OBJECT_NEW)
}

pub fn alloc(
    client: &mut Client,
    file: BorrowedFd<'_>,
    handles: [u32; 4],
    params: &mut [u8],
) -> u32 {
    use layout::nvos64 as at;
    let mut block = [0; at::SIZE];
    for (index, handle) in handles.into_iter().enumerate() {
        put32(&mut block, 4 * index, handle);
    }
    if !params.is_empty() {
        put64(&mut block, at::P_ALLOC_PARMS, params.as_mut_ptr() as u64);
    }
    client
        .ioctl(file, request(nr::RM_ALLOC, block.len()), block.as_mut_ptr())
        .unwrap();
    get32(&block, at::STATUS)
}

pub fn control(
    client: &mut Client,
    file: BorrowedFd<'_>,
    words: [u32; 3],
    params: &mut [u8],
) -> u32 {
    use layout::nvos54 as at;
    let mut block = [0; at::SIZE];
    for (index, word) in words.into_iter().enumerate() {
        put32(&mut block, 4 * index, word);
    }
    put64(&mut block, at::PARAMS, params.as_mut_ptr() as u64);
    put32(&mut block, at::PARAMS_SIZE, params.len() as u32);
    client
        .ioctl(
            file,
            request(nr::RM_CONTROL, block.len()),
            block.as_mut_ptr(),
        )
        .unwrap();
    get32(&block, at::STATUS)
}

pub fn uvm_call(
    client: &mut Client,
    file: BorrowedFd<'_>,
    request: u32,
    block: &mut [u8],
    status_at: usize,
) -> u32 {
    client.ioctl(file, request, block.as_mut_ptr()).unwrap();
    get32(block, status_at)
}

pub fn file_id(fd: BorrowedFd<'_>) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    let status = std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    (status.dev(), status.ino())
}

/// Waits until something holds, or fails: the server notices some things a moment later.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `body` in a forked child and returns its exit status; a panic in it is 101.
pub fn in_child(body: impl FnOnce() -> i32) -> Child {
    // SAFETY: the child runs only `body` and leaves by _exit; glibc's allocator is usable after fork.
    match unsafe { libc::fork() } {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
            // SAFETY: ends the child at once, running nothing of the test harness.
            unsafe { libc::_exit(code) }
        }
        pid => {
            assert!(pid > 0);
            Child(pid)
        }
    }
}

/// A forked child.
pub struct Child(libc::pid_t);

impl Child {
    pub fn wait(self) -> i32 {
        let mut status = 0;
        // SAFETY: `status` is a live int; the pid is a child of this process.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            128
        }
    }
}
