//! The driver API as the probe needs it: owned devices, memory, kernels and graphs over [`Library`].

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

use super::library::{DevicePtr, Handle, Library, Status};

/// What a call was refused with.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// The function.
    pub call: &'static str,
    /// Name of the result.
    pub with: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed with {}", self.call, self.with)
    }
}

impl std::error::Error for Refused {}

type Result<T> = std::result::Result<T, Refused>;

/// The driver, initialised.
pub struct Cuda {
    library: Library,
}

/// A device and its primary context, which lasts as long as this.
pub struct Device<'c> {
    cuda: &'c Cuda,
    ordinal: c_int,
    context: Handle,
}

/// Memory of a device.
pub struct Memory<'d, 'c> {
    device: &'d Device<'c>,
    at: DevicePtr,
}

/// A stream with the probe's kernels, for one device.
pub struct Stream<'d, 'c> {
    device: &'d Device<'c>,
    stream: Handle,
    spin: Handle,
    fill: Handle,
    blocks: u32,
}

/// A graph of spinning kernels.
pub struct Graph {
    executable: Handle,
}

/// An event that tells when what was submitted before it is done.
pub struct Event {
    event: Handle,
}

const MULTIPROCESSOR_COUNT: c_int = 16;
const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const CAPTURE_THREAD_LOCAL: u32 = 1;
const THREADS: u32 = 256;
static KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");

impl Cuda {
    /// Opens the library and initialises the driver.
    ///
    /// # Errors
    /// One line.
    pub fn new() -> std::result::Result<Cuda, Box<dyn std::error::Error>> {
        let cuda = Cuda {
            library: Library::open()?,
        };
        // SAFETY: takes flags only.
        cuda.check("cuInit", unsafe { (cuda.library.init)(0) })?;
        Ok(cuda)
    }

    fn check(&self, call: &'static str, status: Status) -> Result<()> {
        if status == 0 {
            Ok(())
        } else {
            Err(Refused {
                call,
                with: self.library.name(status),
            })
        }
    }

    /// The version of the API: `1000 * major + 10 * minor`.
    ///
    /// # Errors
    /// The driver's own.
    pub fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: `version` is a live int.
        self.check("cuDriverGetVersion", unsafe {
            (self.library.driver_get_version)(&mut version)
        })?;
        Ok(version)
    }

    /// All devices that this program may use.
    ///
    /// # Errors
    /// The driver's own.
    pub fn devices(&self) -> Result<Vec<Device<'_>>> {
        let mut count = 0;
        // SAFETY: `count` is a live int.
        self.check("cuDeviceGetCount", unsafe {
            (self.library.device_get_count)(&mut count)
        })?;
        (0..count).map(|index| Device::new(self, index)).collect()
    }
}

impl<'c> Device<'c> {
    fn new(cuda: &'c Cuda, index: c_int) -> Result<Device<'c>> {
        let (mut ordinal, mut context) = (0, null_mut());
        // SAFETY: both are live and of the types that the calls set.
        unsafe {
            cuda.check(
                "cuDeviceGet",
                (cuda.library.device_get)(&mut ordinal, index),
            )?;
            cuda.check(
                "cuDevicePrimaryCtxRetain",
                (cuda.library.primary_ctx_retain)(&mut context, ordinal),
            )?;
        }
        Ok(Device {
            cuda,
            ordinal,
            context,
        })
    }

    fn library(&self) -> &Library {
        &self.cuda.library
    }

    fn check(&self, call: &'static str, status: Status) -> Result<()> {
        self.cuda.check(call, status)
    }

    /// What the calls of this thread mean by "the device".
    fn select(&self) -> Result<()> {
        // SAFETY: the context is retained as long as this lives.
        self.check("cuCtxSetCurrent", unsafe {
            (self.library().ctx_set_current)(self.context)
        })
    }

    /// Product name.
    ///
    /// # Errors
    /// The driver's own.
    pub fn name(&self) -> Result<String> {
        let mut name = [0; 256];
        let room = name.len() as c_int;
        // SAFETY: `name` has the room that is given.
        self.check("cuDeviceGetName", unsafe {
            (self.library().device_get_name)(name.as_mut_ptr(), room, self.ordinal)
        })?;
        // SAFETY: the driver ends the name inside the room, and the last byte was zero before.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }
            .to_string_lossy()
            .into_owned())
    }

    /// `GPU-xxxxxxxx-...`.
    ///
    /// # Errors
    /// The driver's own.
    pub fn uuid(&self) -> Result<String> {
        let mut uuid = [0; 16];
        // SAFETY: `uuid` is the sixteen bytes that the call fills.
        self.check("cuDeviceGetUuid", unsafe {
            (self.library().device_get_uuid)(&mut uuid, self.ordinal)
        })?;
        Ok(guard::rmcall::format_uuid(&uuid))
    }

    fn multiprocessors(&self) -> Result<u32> {
        let mut count = 0;
        let (call, which) = (self.library().device_get_attribute, MULTIPROCESSOR_COUNT);
        // SAFETY: `count` is a live int.
        self.check("cuDeviceGetAttribute", unsafe {
            call(&mut count, which, self.ordinal)
        })?;
        Ok(u32::try_from(count).unwrap_or(1).max(1))
    }

    /// (free, total) bytes.
    ///
    /// # Errors
    /// The driver's own.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.select()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are live.
        self.check("cuMemGetInfo", unsafe {
            (self.library().mem_get_info)(&mut free, &mut total)
        })?;
        Ok((free as u64, total as u64))
    }

    /// Allocates memory.
    ///
    /// # Errors
    /// The driver's own.
    pub fn allocate(&self, bytes: u64) -> Result<Memory<'_, 'c>> {
        self.select()?;
        let mut at = 0;
        // SAFETY: `at` is live.
        self.check("cuMemAlloc", unsafe {
            (self.library().mem_alloc)(&mut at, bytes as usize)
        })?;
        Ok(Memory { device: self, at })
    }

    /// A stream and the kernels.
    ///
    /// # Errors
    /// The driver's own.
    pub fn stream(&self) -> Result<Stream<'_, 'c>> {
        self.select()?;
        let blocks = 4 * self.multiprocessors()?;
        let (mut module, mut stream, mut spin, mut fill) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        let library = self.library();
        // SAFETY: the PTX and the names are terminated; all results are live handles.
        unsafe {
            self.check(
                "cuModuleLoadData",
                (library.module_load_data)(&mut module, KERNELS.as_ptr().cast()),
            )?;
            self.check(
                "cuModuleGetFunction",
                (library.module_get_function)(&mut spin, module, c"gpuslice_spin".as_ptr()),
            )?;
            self.check(
                "cuModuleGetFunction",
                (library.module_get_function)(&mut fill, module, c"gpuslice_fill".as_ptr()),
            )?;
            self.check(
                "cuStreamCreate",
                (library.stream_create)(&mut stream, NON_BLOCKING),
            )?;
        }
        Ok(Stream {
            device: self,
            stream,
            spin,
            fill,
            blocks,
        })
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        // SAFETY: retained once in `new`. A refusal leaves it to the end of the process.
        unsafe { (self.library().primary_ctx_release)(self.ordinal) };
    }
}

impl Drop for Memory<'_, '_> {
    fn drop(&mut self) {
        // SAFETY: allocated by `allocate` and freed once. A refusal leaves it to the end of the process.
        unsafe { (self.device.library().mem_free)(self.at) };
    }
}

impl Stream<'_, '_> {
    fn launch(&self, function: Handle, blocks: u32, arguments: &mut [*mut c_void]) -> Result<()> {
        let call = self.device.library().launch_kernel;
        // SAFETY: the function is of a loaded module; the arguments point to live values of its parameters' types.
        let status = unsafe {
            call(
                function,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                self.stream,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        };
        self.device.check("cuLaunchKernel", status)
    }

    /// Submits a kernel that keeps the device busy for about `ns`.
    ///
    /// # Errors
    /// The driver's own.
    pub fn spin(&self, mut ns: u64) -> Result<()> {
        self.launch(self.spin, self.blocks, &mut [(&raw mut ns).cast()])
    }

    /// Submits a kernel that writes `words` words of the memory.
    ///
    /// # Errors
    /// The driver's own.
    pub fn fill(&self, memory: &Memory<'_, '_>, mut value: u32, mut words: u64) -> Result<()> {
        let mut at = memory.at;
        self.launch(
            self.fill,
            1,
            &mut [
                (&raw mut at).cast(),
                (&raw mut value).cast(),
                (&raw mut words).cast(),
            ],
        )
    }

    /// Waits until everything submitted is done.
    ///
    /// # Errors
    /// The driver's own, also of what was submitted before.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the stream is open.
        self.device.check("cuStreamSynchronize", unsafe {
            (self.device.library().stream_synchronize)(self.stream)
        })
    }

    /// Captures `count` spinning kernels as a graph.
    ///
    /// # Errors
    /// The driver's own.
    pub fn graph(&self, count: u32, ns: u64) -> Result<Graph> {
        let library = self.device.library();
        let (mut graph, mut executable) = (null_mut(), null_mut());
        // SAFETY: the stream is open and not capturing; results are live handles.
        unsafe {
            let begin = (library.stream_begin_capture)(self.stream, CAPTURE_THREAD_LOCAL);
            self.device.check("cuStreamBeginCapture", begin)?;
        }
        let captured: Result<()> = (0..count).try_for_each(|_| self.spin(ns));
        // SAFETY: as above.
        unsafe {
            self.device.check(
                "cuStreamEndCapture",
                (library.stream_end_capture)(self.stream, &mut graph),
            )?;
            captured?;
            self.device.check(
                "cuGraphInstantiate",
                (library.graph_instantiate)(&mut executable, graph, 0),
            )?;
        }
        Ok(Graph { executable })
    }

    /// Submits a graph.
    ///
    /// # Errors
    /// The driver's own.
    pub fn replay(&self, graph: &Graph) -> Result<()> {
        // SAFETY: graph and stream belong to this device's context.
        let status = unsafe { (self.device.library().graph_launch)(graph.executable, self.stream) };
        self.device.check("cuGraphLaunch", status)
    }

    /// An event of this device.
    ///
    /// # Errors
    /// The driver's own.
    pub fn event(&self) -> Result<Event> {
        let mut event = null_mut();
        // SAFETY: the result is a live handle.
        let status = unsafe { (self.device.library().event_create)(&mut event, DISABLE_TIMING) };
        self.device.check("cuEventCreate", status)?;
        Ok(Event { event })
    }

    /// Marks this point of the stream.
    ///
    /// # Errors
    /// The driver's own.
    pub fn record(&self, event: &Event) -> Result<()> {
        // SAFETY: event and stream belong to this device's context.
        self.device.check("cuEventRecord", unsafe {
            (self.device.library().event_record)(event.event, self.stream)
        })
    }

    /// Waits for the point that was last marked with the event.
    ///
    /// # Errors
    /// The driver's own, also of what was submitted before.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        // SAFETY: the event was made by `event`.
        self.device.check("cuEventSynchronize", unsafe {
            (self.device.library().event_synchronize)(event.event)
        })
    }
}
