//! Kernels of a known length through the CUDA driver library, in contexts of their own.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use super::cuda::{Library, ok};
use crate::conformance::KERNELS;

/// Streams of a context: while one is waited for, the others have work.
const STREAMS: usize = 4;
/// Most kernels of a batch, of which streams and channels hold some hundred without their submitter waiting.
const MOST: u64 = 256;

type Handle = *mut c_void;

/// The functions of cuda.h that are needed here.
struct Functions {
    set: unsafe extern "C" fn(Handle) -> c_int,
    launch: unsafe extern "C" fn(
        Handle,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        Handle,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> c_int,
    record: unsafe extern "C" fn(Handle, Handle) -> c_int,
    synchronize: unsafe extern "C" fn(Handle) -> c_int,
}

/// A stream, the event behind its batch, and how many kernels the batch has.
struct Stream {
    stream: Handle,
    event: Handle,
    batch: u64,
}

/// A context that keeps the compute engine busy.
pub struct Spinner {
    functions: Functions,
    context: Handle,
    spin: Handle,
    /// Those with work, in the order in which it was given to them.
    busy: VecDeque<Stream>,
    idle: VecDeque<Stream>,
    kernel_ns: u64,
    batch: u64,
}

impl Spinner {
    /// A context of its own on the first GPU, for kernels of this length, and for how long it has work queued: a process
    /// that is not scheduled for so long leaves the engine to others.
    ///
    /// # Errors
    /// One line: what failed, with CUDA's error number.
    pub fn open(kernel_ns: u64, ahead: Duration) -> Result<Spinner, String> {
        let library = Library::open(c"libcuda.so.1")?;
        let (mut device, mut context) = (0, null_mut());
        let (mut module, mut spin) = (null_mut(), null_mut());
        let mut idle = VecDeque::new();
        // SAFETY: each type is the signature in cuda.h of that name; every pointer passed is to a live variable of the
        // type that the function writes, or to a terminated string.
        unsafe {
            let init: unsafe extern "C" fn(c_uint) -> c_int = library.function(c"cuInit")?;
            let get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int =
                library.function(c"cuDeviceGet")?;
            let create: unsafe extern "C" fn(*mut Handle, c_uint, c_int) -> c_int =
                library.function(c"cuCtxCreate_v2")?;
            let load: unsafe extern "C" fn(*mut Handle, *const c_char) -> c_int =
                library.function(c"cuModuleLoadData")?;
            let entry: unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> c_int =
                library.function(c"cuModuleGetFunction")?;
            let stream: unsafe extern "C" fn(*mut Handle, c_uint) -> c_int =
                library.function(c"cuStreamCreate")?;
            let event: unsafe extern "C" fn(*mut Handle, c_uint) -> c_int =
                library.function(c"cuEventCreate")?;
            ok("cuInit", init(0))?;
            ok("cuDeviceGet", get(&mut device, 0))?;
            ok("cuCtxCreate", create(&mut context, 0, device))?;
            ok(
                "cuModuleLoadData",
                load(&mut module, KERNELS.as_ptr().cast()),
            )?;
            let name: &CStr = c"gpuslice_spin";
            ok(
                "cuModuleGetFunction",
                entry(&mut spin, module, name.as_ptr()),
            )?;
            for _ in 0..STREAMS {
                let mut made = Stream {
                    stream: null_mut(),
                    event: null_mut(),
                    batch: 0,
                };
                /// `CU_STREAM_NON_BLOCKING`.
                const APART: c_uint = 1;
                ok("cuStreamCreate", stream(&mut made.stream, APART))?;
                ok("cuEventCreate", event(&mut made.event, 0))?;
                idle.push_back(made);
            }
            Ok(Spinner {
                functions: Functions {
                    set: library.function(c"cuCtxSetCurrent")?,
                    launch: library.function(c"cuLaunchKernel")?,
                    record: library.function(c"cuEventRecord")?,
                    synchronize: library.function(c"cuEventSynchronize")?,
                },
                context,
                spin,
                busy: VecDeque::new(),
                idle,
                kernel_ns,
                batch: (ahead.as_nanos() as u64 / STREAMS as u64 / kernel_ns.max(1)).clamp(1, MOST),
            })
        }
    }

    /// Gives work to streams that have none, and waits for the oldest; returns how many kernels that was.
    ///
    /// # Errors
    /// One line: what failed, with CUDA's error number.
    pub fn turn(&mut self) -> Result<u64, String> {
        self.make_current()?;
        while let Some(stream) = self.idle.pop_front() {
            // The first batches are of different lengths, so that streams do not run dry together.
            let first = self.batch * (self.busy.len() as u64 + 1) / STREAMS as u64;
            let batch = if stream.batch == 0 { first } else { self.batch };
            self.give(stream, batch.max(1))?;
        }
        self.wait()
    }

    /// Waits for all that it has given; returns how many kernels that was.
    ///
    /// # Errors
    /// As [`Spinner::turn`].
    pub fn drain(&mut self) -> Result<u64, String> {
        self.make_current()?;
        let mut done = 0;
        while !self.busy.is_empty() {
            done += self.wait()?;
        }
        Ok(done)
    }

    fn make_current(&self) -> Result<(), String> {
        // SAFETY: the signature in cuda.h; the context is never destroyed.
        ok("cuCtxSetCurrent", unsafe {
            (self.functions.set)(self.context)
        })
    }

    fn give(&mut self, mut stream: Stream, batch: u64) -> Result<(), String> {
        let mut ns = self.kernel_ns;
        let mut parameters = [(&raw mut ns).cast::<c_void>()];
        for _ in 0..batch {
            // SAFETY: the signature in cuda.h; the function, the stream and the event are of the current context, and the
            // one parameter is read before the call returns.
            let code = unsafe {
                (self.functions.launch)(
                    self.spin,
                    1,
                    1,
                    1,
                    1,
                    1,
                    1,
                    0,
                    stream.stream,
                    parameters.as_mut_ptr(),
                    null_mut(),
                )
            };
            ok("cuLaunchKernel", code)?;
        }
        // SAFETY: as above.
        let code = unsafe { (self.functions.record)(stream.event, stream.stream) };
        ok("cuEventRecord", code)?;
        stream.batch = batch;
        self.busy.push_back(stream);
        Ok(())
    }

    fn wait(&mut self) -> Result<u64, String> {
        let Some(stream) = self.busy.pop_front() else {
            return Ok(0);
        };
        // SAFETY: the signature in cuda.h; the event is of the current context.
        let code = unsafe { (self.functions.synchronize)(stream.event) };
        ok("cuEventSynchronize", code)?;
        let batch = stream.batch;
        self.idle.push_back(stream);
        Ok(batch)
    }
}
