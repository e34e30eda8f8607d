//! What a card and a simulated node must agree on, natively and in a slice: one suite that runs against each of them
//! (`gpuslice __tenant conformance`), so that the simulated GPU cannot drift from the real one.
//!
//! It goes through the CUDA driver library, opened at run time, through NVML and through the driver's own calls. It is
//! made for cards in use: it allocates some hundred MiB and no more, and only asks for what it knows to be refused.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use serde::Serialize;
use serde_json::Value;

use rm::{layout, nr};

use crate::raw::{Block, Client, Fault, Node, Pages, Uvm};
use crate::{GIB, KIB, MIB};

/// One thing that was tried.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What was tried.
    pub name: String,
    /// What came of it: bytes, a status, or a number of a kernel.
    pub found: Value,
    /// What must come of it wherever the suite runs; null: it is recorded to be compared, and no rule is known.
    pub expected: Value,
}

impl Row {
    /// Whether it is as expected, or nothing is expected.
    pub fn agrees(&self) -> bool {
        self.expected.is_null() || self.found == self.expected
    }
}

/// What the suite found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether every row agrees.
    pub agrees: bool,
    /// The slice's name, where it ran in one.
    pub slice: Option<String>,
    /// Version of the CUDA driver API.
    pub cuda_version: i32,
    /// The rows, in the order they were tried.
    pub rows: Vec<Row>,
}

/// Calls a function through the C interface; gives its status.
macro_rules! call {
    ($library:expr, $name:ident($($value:expr => $type:ty),* $(,)?)) => {{
        const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        };
        let address = $library.symbol(NAME)?;
        // SAFETY: the types are those of the header's declaration of this function; what pointers lead to is live.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn($($type),*) -> u32>(address)($($value),*)
        }
    }};
}

/// The same, and the suite cannot go on without it.
macro_rules! ok {
    ($library:expr, $name:ident($($value:expr => $type:ty),* $(,)?)) => {
        match call!($library, $name($($value => $type),*)) {
            0 => {}
            status => return Err(format!("{} failed with {status}", stringify!($name))),
        }
    };
}

/// Runs the suite and prints its report as JSON. Returns the exit status: 0 if every row agrees.
///
/// # Errors
/// One line: what the suite cannot do without.
pub fn run() -> Result<u8, String> {
    let library = Library::open(c"libcuda.so.1")?;
    let mut suite = Suite {
        library,
        rows: Vec::new(),
    };
    let slice = std::env::var("GPUSLICE_NAME").ok();
    suite.before_init()?;
    if let Err(fault) = raw_memory(&mut suite) {
        suite.row("RM: every call", Value::from(fault.to_string()), "answered");
    }
    let gpu = suite.init()?;
    suite.totals(slice.is_some())?;
    suite.allocations(gpu)?;
    suite.refusals(gpu)?;
    suite.virtual_memory(gpu)?;
    suite.other_families(gpu, slice.is_some())?;
    suite.work(gpu)?;
    let mut cuda_version = 0;
    ok!(suite.library, cuDriverGetVersion(&mut cuda_version => *mut i32));
    let report = Report {
        agrees: suite.rows.iter().all(Row::agrees),
        slice,
        cuda_version,
        rows: suite.rows,
    };
    println!(
        "{}",
        serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?
    );
    Ok(u8::from(!report.agrees))
}

/// A library that stays loaded.
#[derive(Clone, Copy)]
struct Library(*mut c_void);

impl Library {
    fn open(name: &CStr) -> Result<Library, String> {
        // SAFETY: the name is terminated; what a driver's library does when it is loaded is trusted.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            return Err(format!("{} cannot be loaded", name.to_string_lossy()));
        }
        Ok(Library(handle))
    }

    fn symbol(self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: the handle is of a loaded library and the name is terminated.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            return Err(format!("the library lacks {}", name.to_string_lossy()));
        }
        Ok(address)
    }
}

const OUT_OF_MEMORY: u32 = 2;
const NOT_READY: u32 = 600;

pub(crate) static KERNELS: &str = concat!(include_str!("conformance.ptx"), "\0");

struct Suite {
    library: Library,
    rows: Vec<Row>,
}

/// The first GPU's primary context, and a stream.
#[derive(Clone, Copy)]
struct Gpu {
    device: i32,
    stream: usize,
}

impl Suite {
    fn row(
        &mut self,
        name: impl Into<String>,
        found: impl Into<Value>,
        expected: impl Into<Value>,
    ) {
        self.rows.push(Row {
            name: name.into(),
            found: found.into(),
            expected: expected.into(),
        });
    }

    fn note(&mut self, name: impl Into<String>, found: impl Into<Value>) {
        self.row(name, found, Value::Null);
    }

    fn before_init(&mut self) -> Result<(), String> {
        let library = self.library;
        let (mut count, mut table) = (0, null::<c_void>());
        let status = call!(library, cuDeviceGetCount(&mut count => *mut i32));
        self.row("cuDeviceGetCount before cuInit", status, 3);
        let unknown = [0x5a_u8; 16];
        let status = call!(library, cuGetExportTable(&mut table => *mut *const c_void, &unknown => *const [u8; 16]));
        self.note("cuGetExportTable of an unknown table before cuInit", status);
        // The runtime asks for everything this way, for the asking function itself too.
        let (mut ask, mut found) = (null_mut::<c_void>(), 9_u32);
        ok!(library, cuGetProcAddress_v2(c"cuGetProcAddress".as_ptr() => *const c_char, &mut ask => *mut *mut c_void,
            11030 => i32, 0 => u64, &mut found => *mut u32));
        self.row("cuGetProcAddress asked for itself", found, 0);
        if !ask.is_null() {
            let mut alloc = null_mut::<c_void>();
            // SAFETY: at 11030 the function has the four arguments of CUDA 11.3 (cuda.h).
            let old = unsafe {
                std::mem::transmute::<
                    *mut c_void,
                    extern "C" fn(*const c_char, *mut *mut c_void, i32, u64) -> u32,
                >(ask)
            };
            let status = old(c"cuMemAlloc".as_ptr(), &mut alloc, 12020, 0);
            self.row(
                "what it gives, asked for cuMemAlloc",
                (status, alloc.is_null()) == (0, false),
                true,
            );
        }
        let status = call!(library, cuGetProcAddress_v2(c"cuMemAlloc".as_ptr() => *const c_char,
            &mut ask => *mut *mut c_void, 12000 => i32, 0 => u64, null_mut() => *mut u32));
        self.row(
            "cuGetProcAddress_v2 without a place for the result",
            status,
            0,
        );
        Ok(())
    }

    fn init(&mut self) -> Result<Gpu, String> {
        let library = self.library;
        let (mut device, mut context, mut stream) = (0, 0_usize, 0_usize);
        ok!(library, cuInit(0 => u32));
        ok!(library, cuDeviceGet(&mut device => *mut i32, 0 => i32));
        ok!(library, cuDevicePrimaryCtxRetain(&mut context => *mut usize, device => i32));
        ok!(library, cuCtxSetCurrent(context => usize));
        ok!(library, cuStreamCreate(&mut stream => *mut usize, 1 => u32));
        Ok(Gpu { device, stream })
    }

    fn memory(&self) -> Result<(u64, u64), String> {
        let (mut free, mut total) = (0_usize, 0_usize);
        ok!(self.library, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize));
        Ok((free as u64, total as u64))
    }

    fn free(&self) -> Result<u64, String> {
        Ok(self.memory()?.0)
    }

    /// Everybody who can be asked says the same.
    fn totals(&mut self, in_slice: bool) -> Result<(), String> {
        let library = self.library;
        let (free, total) = self.memory()?;
        let (mut of_device, mut t) = (0_usize, 0_usize);
        ok!(library, cuDeviceTotalMem_v2(&mut of_device => *mut usize, 0 => i32));
        self.row("cuDeviceTotalMem", of_device as u64, total);
        for (name, status) in [
            (
                "cuMemGetInfo without free",
                call!(library, cuMemGetInfo_v2(null_mut() => *mut usize, &mut t => *mut usize)),
            ),
            (
                "cuMemGetInfo without total",
                call!(library, cuMemGetInfo_v2(&mut t => *mut usize, null_mut() => *mut usize)),
            ),
            (
                "cuMemGetInfo without either",
                call!(library, cuMemGetInfo_v2(null_mut() => *mut usize, null_mut() => *mut usize)),
            ),
        ] {
            self.note(name, status);
        }
        let nvml = Library::open(c"libnvidia-ml.so.1")?;
        let (mut device, mut v1, mut v2) = (0_usize, [0_u64; 3], [0_u64; 5]);
        /// Size and version of `nvmlMemory_v2_t`.
        const MEMORY_V2: u64 = 0x0200_0028;
        v2[0] = MEMORY_V2;
        ok!(nvml, nvmlInit_v2());
        ok!(nvml, nvmlDeviceGetHandleByIndex_v2(0 => u32, &mut device => *mut usize));
        ok!(nvml, nvmlDeviceGetMemoryInfo(device => usize, &mut v1 => *mut [u64; 3]));
        ok!(nvml, nvmlDeviceGetMemoryInfo_v2(device => usize, &mut v2 => *mut [u64; 5]));
        self.row("NVML v2 total", v2[1], v1[0]);
        self.row("NVML v2 sums up", v2[2] + v2[3] + v2[4], v2[1]);
        self.row("NVML v1 sums up", v1[1] + v1[2], v1[0]);
        if in_slice {
            self.row("NVML total", v1[0], total);
            self.row("NVML free", v1[1], free);
        } else {
            // A card keeps some of its memory from CUDA.
            self.row("NVML total is no less than CUDA's", v1[0] >= total, true);
        }
        let (mut count, mut list) = (0_u32, [[0_u64; 3]; 2]);
        let asked = call!(nvml, nvmlDeviceGetComputeRunningProcesses_v3(device => usize, &mut count => *mut u32,
            null_mut() => *mut [u64; 3]));
        if in_slice {
            self.row("NVML: processes on the card, with no room", asked, 7);
            self.row("NVML: how many", count, 1);
            count = 1;
            ok!(nvml, nvmlDeviceGetComputeRunningProcesses_v3(device => usize, &mut count => *mut u32,
                list.as_mut_ptr() => *mut [u64; 3]));
            self.row("NVML: this process", list[0][0] as u32, std::process::id());
            self.row("NVML: nothing behind the list", list[1] == [0; 3], true);
        }
        Ok(())
    }

    /// Bytes that are free no more.
    fn taken(&self, before: u64) -> Result<i64, String> {
        Ok(taken(before, self.free()?))
    }

    fn alloc(&self, size: u64) -> Result<u64, String> {
        let mut address = 0;
        ok!(self.library, cuMemAlloc_v2(&mut address => *mut u64, size as usize => usize));
        Ok(address)
    }

    /// What allocations of some sizes take, and give back.
    fn allocations(&mut self, _: Gpu) -> Result<(), String> {
        let library = self.library;
        // Small ones share a chunk, of which one is kept.
        let first = self.alloc(256)?;
        let start = self.free()?;
        let second = self.alloc(256)?;
        self.row("a second small allocation takes", self.taken(start)?, 0);
        ok!(library, cuMemFree_v2(second => u64));
        for (size, taken) in [
            (2 * MIB, 2 * MIB),
            (2 * MIB + 1, 4 * MIB),
            (5 * MIB, 6 * MIB),
            (64 * MIB, 64 * MIB),
            (64 * MIB + 1, 66 * MIB),
        ] {
            let before = self.free()?;
            let address = self.alloc(size)?;
            self.row(
                format!("cuMemAlloc of {size} takes"),
                self.taken(before)?,
                taken,
            );
            ok!(library, cuMemFree_v2(address => u64));
            self.row(format!("and gives back, of {size}"), self.taken(before)?, 0);
        }
        let (mut base, mut size) = (0, 0_usize);
        let address = self.alloc(5 * MIB)?;
        ok!(library, cuMemGetAddressRange_v2(&mut base => *mut u64, &mut size => *mut usize, address + 4096 => u64));
        self.row("the range of 5 MiB", size as u64, 5 * MIB);
        let status = call!(library, cuMemFree_v2(address + 512 => u64));
        self.row("cuMemFree inside an allocation", status, 1);
        ok!(library, cuMemFree_v2(address => u64));
        let status = call!(library, cuMemFree_v2(0 => u64));
        self.note("cuMemFree of 0", status);
        let status = call!(library, cuMemFreeHost(null_mut() => *mut c_void));
        self.note("cuMemFreeHost of 0", status);
        ok!(library, cuMemFree_v2(first => u64));
        Ok(())
    }

    /// More than there is, in every family, is refused as on a full card and takes nothing.
    fn refusals(&mut self, gpu: Gpu) -> Result<(), String> {
        let library = self.library;
        let (free, total) = self.memory()?;
        let size = (total + GIB) as usize / (2 * MIB as usize) * (2 * MIB as usize);
        let (mut address, mut pitch, mut physical) = (0_u64, 0_usize, 0_u64);
        let props = pinned(gpu);
        let rows = size >> 16;
        let pitched = call!(library, cuMemAllocPitch_v2(&mut address => *mut u64, &mut pitch => *mut usize,
            1 << 16 => usize, rows => usize, 4 => u32));
        for (name, status) in [
            (
                "cuMemAlloc",
                call!(library, cuMemAlloc_v2(&mut address => *mut u64, size => usize)),
            ),
            ("cuMemAllocPitch", pitched),
            (
                "cuMemAllocAsync",
                call!(library, cuMemAllocAsync(&mut address => *mut u64, size => usize, gpu.stream => usize)),
            ),
            (
                "cuMemCreate",
                call!(library, cuMemCreate(&mut physical => *mut u64, size => usize, &props => *const [u32; 8], 0 => u64)),
            ),
        ] {
            self.row(
                format!("{name} of more than there is"),
                status,
                OUT_OF_MEMORY,
            );
        }
        self.row(
            "cuMemAlloc of nothing",
            call!(library, cuMemAlloc_v2(&mut address => *mut u64, 0 => usize)),
            1,
        );
        ok!(library, cuStreamSynchronize(gpu.stream => usize));
        self.row("what was refused takes", self.taken(free)?, 0);
        let mut text = null::<c_char>();
        ok!(library, cuGetErrorName(OUT_OF_MEMORY => u32, &mut text => *mut *const c_char));
        // SAFETY: the library's error names are static terminated strings.
        let said = unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned();
        self.row("its name", said, "CUDA_ERROR_OUT_OF_MEMORY");
        let small = self.alloc(4 * MIB)?;
        ok!(library, cuMemFree_v2(small => u64));
        Ok(())
    }

    /// Physical memory is held by its handle and by each mapping, and counted once.
    fn virtual_memory(&mut self, gpu: Gpu) -> Result<(), String> {
        let library = self.library;
        const SIZE: usize = 64 << 20;
        let start = self.free()?;
        let (props, access) = (pinned(gpu), [1_u32, gpu.device as u32, 3]);
        let (mut physical, mut address, mut unit) = (0_u64, 0_u64, 0_usize);
        ok!(library, cuMemGetAllocationGranularity(&mut unit => *mut usize, &props => *const [u32; 8], 0 => u32));
        self.row("granularity", unit as u64, 2 * MIB);
        ok!(library, cuMemCreate(&mut physical => *mut u64, SIZE => usize, &props => *const [u32; 8], 0 => u64));
        self.row(
            "cuMemCreate of 64 MiB takes",
            self.taken(start)?,
            SIZE as u64,
        );
        ok!(library, cuMemAddressReserve(&mut address => *mut u64, 2 * SIZE => usize, 0 => usize, 0 => u64, 0 => u64));
        for at in [address, address + SIZE as u64] {
            ok!(library, cuMemMap(at => u64, SIZE => usize, 0 => usize, physical => u64, 0 => u64));
        }
        ok!(library, cuMemSetAccess(address => u64, 2 * SIZE => usize, &access => *const [u32; 3], 1 => usize));
        self.row("with two mappings", self.taken(start)?, SIZE as u64);
        ok!(library, cuMemRelease(physical => u64));
        self.row("with the handle released", self.taken(start)?, SIZE as u64);
        let mut word = 0_u32;
        ok!(library, cuMemsetD32_v2(address => u64, 7 => u32, 16 => usize));
        ok!(library, cuMemcpyDtoH_v2(&mut word => *mut u32, address + SIZE as u64 => u64, 4 => usize));
        self.row("written by one mapping, read by the other", word, 7);
        ok!(library, cuMemUnmap(address => u64, SIZE => usize));
        self.row("with one mapping", self.taken(start)?, SIZE as u64);
        ok!(library, cuMemUnmap(address + SIZE as u64 => u64, SIZE => usize));
        self.row("with none", self.taken(start)?, 0);
        ok!(library, cuMemAddressFree(address => u64, 2 * SIZE => usize));
        let odd = call!(library, cuMemCreate(&mut physical => *mut u64, 4096 => usize, &props => *const [u32; 8], 0 => u64));
        self.row("cuMemCreate of 4 KiB", odd, 1);
        Ok(())
    }

    /// Pools, managed memory, memory for other processes.
    fn other_families(&mut self, gpu: Gpu, in_slice: bool) -> Result<(), String> {
        let library = self.library;
        const SIZE: usize = 64 << 20;
        let mut address = 0_u64;
        let start = self.free()?;
        ok!(library, cuMemAllocAsync(&mut address => *mut u64, SIZE => usize, gpu.stream => usize));
        ok!(library, cuStreamSynchronize(gpu.stream => usize));
        self.row(
            "cuMemAllocAsync of 64 MiB takes",
            self.taken(start)?,
            SIZE as u64,
        );
        ok!(library, cuMemFreeAsync(address => u64, gpu.stream => usize));
        ok!(library, cuStreamSynchronize(gpu.stream => usize));
        self.row("and gives back after waiting", self.taken(start)?, 0);

        let start = self.free()?;
        ok!(library, cuMemAllocManaged(&mut address => *mut u64, SIZE => usize, 1 => u32));
        ok!(library, cuMemsetD8_v2(address => u64, 7 => u8, SIZE => usize));
        ok!(library, cuCtxSynchronize());
        let taken = self.taken(start)?;
        // A slice charges the reservation. Natively the driver takes pages in its own time, and keeps some for the next
        // such memory (on an H200: 128 MiB taken, 64 left). Page tables come and go with it, so that only the larger
        // part is exact.
        let exact = |amount: i64| in_slice.then_some(amount);
        self.row(
            "64 MiB of managed memory that the GPU wrote take, in 64 MiB",
            taken / SIZE as i64,
            exact(1),
        );
        // SAFETY: managed memory of this length, which no work uses after the call above.
        let byte = unsafe { *(address as *const u8).add(SIZE - 1) };
        self.row("and the program reads", byte, 7);
        ok!(library, cuMemFree_v2(address => u64));
        self.row(
            "of which is left, in 64 MiB",
            self.taken(start)? / SIZE as i64,
            exact(0),
        );

        let memory = self.alloc(4 * MIB)?;
        let mut handle = [0_u8; 64];
        ok!(library, cuIpcGetMemHandle(&mut handle => *mut [u8; 64], memory => u64));
        /// `CUipcMemHandle`, passed by value.
        #[repr(C)]
        struct Handle([u8; 64]);
        let own = call!(library, cuIpcOpenMemHandle_v2(&mut address => *mut u64, Handle(handle) => Handle, 1 => u32));
        self.row("cuIpcOpenMemHandle of the process's own memory", own, 201);
        ok!(library, cuMemFree_v2(memory => u64));
        Ok(())
    }

    /// Kernels compute, streams keep their order, events tell the time.
    fn work(&mut self, gpu: Gpu) -> Result<(), String> {
        let library = self.library;
        let mut module = 0_usize;
        ok!(library, cuModuleLoadData(&mut module => *mut usize, KERNELS.as_ptr() => *const u8));
        let function = |name: &CStr| -> Result<usize, String> {
            let mut function = 0;
            ok!(library, cuModuleGetFunction(&mut function => *mut usize, module => usize, name.as_ptr() => *const c_char));
            Ok(function)
        };
        let (spin, fill, sum) = (
            function(c"gpuslice_spin")?,
            function(c"gpuslice_fill")?,
            function(c"gpuslice_sum")?,
        );
        let launch = |function: usize, arguments: &[u64]| -> Result<(), String> {
            let pointers: Vec<*const u64> = arguments.iter().map(std::ptr::from_ref).collect();
            ok!(library, cuLaunchKernel(function => usize, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32,
                1 => u32, 0 => u32, gpu.stream => usize, pointers.as_ptr() => *const *const u64,
                null() => *const *const u64));
            Ok(())
        };
        let (words, out) = (self.alloc(64 * KIB)?, self.alloc(8)?);
        let (mut before, mut after) = (0_usize, 0_usize);
        for event in [&mut before, &mut after] {
            ok!(library, cuEventCreate(event => *mut usize, 0 => u32));
        }
        const COUNT: u64 = 1000;
        const SPIN_NS: u64 = 100_000_000;
        launch(spin, &[1])?;
        ok!(library, cuStreamSynchronize(gpu.stream => usize));
        ok!(library, cuEventRecord(before => usize, gpu.stream => usize));
        launch(spin, &[SPIN_NS])?;
        launch(fill, &[words, 7, COUNT])?;
        launch(sum, &[words, COUNT, out])?;
        ok!(library, cuEventRecord(after => usize, gpu.stream => usize));
        let asked = call!(library, cuEventQuery(after => usize));
        self.row("an event behind a kernel that runs", asked, NOT_READY);
        let asked = call!(library, cuStreamQuery(gpu.stream => usize));
        self.row("its stream", asked, NOT_READY);
        ok!(library, cuEventSynchronize(after => usize));
        self.row(
            "the stream when it is done",
            call!(library, cuStreamQuery(gpu.stream => usize)),
            0,
        );
        let mut ms = 0_f32;
        ok!(library, cuEventElapsedTime(&mut ms => *mut f32, before => usize, after => usize));
        let long = f64::from(ms) * 1e6;
        self.row(
            "the time between is the kernel's",
            long >= SPIN_NS as f64 && long < 10.0 * SPIN_NS as f64,
            true,
        );
        let mut result = 0_u64;
        ok!(library, cuMemcpyDtoH_v2(&mut result => *mut u64, out => u64, 8 => usize));
        self.row("the kernels computed", result, 7 * COUNT);
        for memory in [words, out] {
            ok!(library, cuMemFree_v2(memory => u64));
        }
        ok!(library, cuModuleUnload(module => usize));
        Ok(())
    }
}

/// Bytes taken; less than zero where more is free than before.
fn taken(before: u64, after: u64) -> i64 {
    before as i64 - after as i64
}

/// `CUmemAllocationProp` of pinned memory on the device.
fn pinned(gpu: Gpu) -> [u32; 8] {
    [1, 0, 1, gpu.device as u32, 0, 0, 0, 0]
}

/// The driver's own calls: what memory takes at each page size, and what keeps it.
fn raw_memory(suite: &mut Suite) -> Result<(), Fault> {
    const BASE: u64 = 0x2000_0000_0000;
    const SIZE: u64 = 4 * MIB;
    let node = Node::from_environment();
    let client = Client::open(&node)?;
    let device = client.first_device()?;
    let free = || device.free_bytes(&client);
    let start = free()?;
    for pages in [Pages::Default, Pages::Huge] {
        let memory = device.alloc(&client, 1, pages)?;
        suite.row(
            format!("RM: one byte in {pages:?} pages takes"),
            taken(start, free()?),
            pages.size(),
        );
        client.free(memory)?;
    }
    use layout::nvos41 as event;
    // A debugger that waits asks nothing else.
    let mut place = Block::new(16);
    let mut none = Block::new(event::SIZE).with64(event::P_EVENT, place.address());
    client.escape(nr::RM_GET_EVENT_DATA, &mut none)?;
    suite.row(
        "RM: an event where none is queued",
        none.u32(event::STATUS),
        0x59,
    );

    let memory = device.alloc(&client, SIZE, Pages::Default)?;
    let name = client.duplicate(device.device, client.root(), memory)?;
    suite.row(
        "RM: 4 MiB under two names take",
        taken(start, free()?),
        SIZE,
    );
    client.free(memory)?;
    suite.row("RM: with one name left", taken(start, free()?), SIZE);
    client.free(name)?;
    suite.row("RM: with none", taken(start, free()?), 0);
    let total = device.heap_info(&client)?.total;
    let status = match device.alloc(&client, total + GIB, Pages::Default) {
        Err(Fault::Status(status)) => Value::from(status),
        other => Value::from(format!("{other:?}")),
    };
    suite.row("RM: more than there is", status, rm::Status::NO_MEMORY.0);

    let uvm = Uvm::open(&node)?;
    let space = uvm.add_device(&client, &device)?;
    let memory = device.alloc(&client, SIZE, Pages::Default)?;
    uvm.create_range(BASE, SIZE)?;
    uvm.map(&space, &client, memory, BASE, SIZE)?;
    let mapped = free()?;
    client.free(memory)?;
    suite.row(
        "UVM: a mapping whose handle is freed gives back",
        taken(mapped, free()?),
        0,
    );
    uvm.free(BASE, SIZE)?;
    // Page tables may go with it.
    suite.row(
        "UVM: and once it is unmapped, in 4 MiB",
        taken(free()?, mapped) / SIZE as i64,
        1,
    );
    Ok(())
}
