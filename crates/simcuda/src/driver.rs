//! The state of the library in one process: what `cuInit` opened, and everything made since.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;

use cuda::status::CuResult;

use crate::graph::{Executable, Graph};
use crate::hardware::Hardware;
use crate::memory::{Allocation, SmallMemory};
use crate::module::{Function, Module};
use crate::node::{Gpu, Node, fb};
use crate::pool::Pool;
use crate::registry::{Registry, lock};
use crate::stream::{Event, Job, Point, Queue, Stream};
use crate::virtual_memory::VirtualMemory;
use crate::visible::visible;

/// The process's state; made by the first successful `cuInit`.
static DRIVER: OnceLock<Driver> = OnceLock::new();
/// Held while `cuInit` runs.
static STARTING: Mutex<()> = Mutex::new(());

thread_local! {
    /// Handles of this thread's contexts; the last is the current one. 0 stands for "none" set on purpose.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Everything the library knows in this process.
pub struct Driver {
    process: u32,
    /// The node, opened.
    pub node: Node,
    /// Indices of the visible GPUs, by ordinal.
    pub visible: Vec<usize>,
    /// Contexts.
    pub contexts: Registry<Context>,
    /// The primary context of each GPU.
    pub primaries: Vec<Mutex<Primary>>,
    /// Streams, except the default ones.
    pub streams: Registry<Stream>,
    /// Events.
    pub events: Registry<Event>,
    /// Modules and libraries.
    pub modules: Registry<Module>,
    /// Functions and kernels.
    pub functions: Registry<Function>,
    /// Graphs.
    pub graphs: Registry<Graph>,
    /// Executable graphs.
    pub executables: Registry<Executable>,
    /// Memory pools.
    pub pools: Registry<Pool>,
    /// The default pool of each GPU, and the one that is set.
    pub default_pools: Mutex<HashMap<usize, (usize, usize)>>,
    /// Arrays: the base address of their memory.
    pub arrays: Registry<crate::memory::Array>,
    /// All allocations by their address.
    pub allocations: Mutex<BTreeMap<u64, Arc<Allocation>>>,
    /// Virtual memory management.
    pub virtual_memory: VirtualMemory,
    counter: AtomicU64,
}

/// A GPU's primary context.
#[derive(Default)]
pub struct Primary {
    /// How often it has been retained and not released.
    pub count: u32,
    /// Its handle while it exists.
    pub handle: Option<usize>,
    /// Flags for the next time it is made.
    pub flags: u32,
}

/// A context.
pub struct Context {
    /// Its handle.
    pub handle: usize,
    /// Index of its GPU.
    pub gpu: usize,
    /// Number that no other context has.
    pub id: u64,
    /// Whether it is its GPU's primary context.
    pub primary: bool,
    /// Flags it was made with.
    pub flags: AtomicU32,
    /// Limits that were set.
    pub limits: Mutex<HashMap<u32, usize>>,
    /// Small allocations.
    pub small: Mutex<SmallMemory>,
    /// The first error that its work has met.
    pub failure: Arc<AtomicU32>,
    /// The default stream of the whole context.
    pub legacy: Arc<Stream>,
    /// The default streams of threads.
    pub per_thread: Mutex<HashMap<ThreadId, Arc<Stream>>>,
    /// Whether a kernel has been launched.
    pub launched: AtomicBool,
    channels: (Vec<u32>, [Vec<u32>; 3]),
    hardware: Mutex<Option<Hardware>>,
}

/// The driver's state, if `cuInit` has succeeded in this process.
pub fn driver() -> Result<&'static Driver, CuResult> {
    let driver = DRIVER.get().ok_or(CuResult::ERROR_NOT_INITIALIZED)?;
    // A child made by fork has its parent's memory, but none of its objects.
    if driver.process == std::process::id() {
        Ok(driver)
    } else {
        Err(CuResult::ERROR_NOT_INITIALIZED)
    }
}

/// `cuInit`.
pub fn initialise(flags: u32) -> Result<(), CuResult> {
    if flags != 0 {
        return Err(CuResult::ERROR_INVALID_VALUE);
    }
    if DRIVER.get().is_some() {
        return driver().map(|_| ());
    }
    let _starting = lock(&STARTING);
    if DRIVER.get().is_some() {
        return driver().map(|_| ());
    }
    let node = Node::open().map_err(|error| match error {
        CuResult::ERROR_OPERATING_SYSTEM => CuResult::ERROR_NO_DEVICE,
        other => other,
    })?;
    let uuids: Vec<[u8; 16]> = node.gpus.iter().map(|gpu| gpu.uuid).collect();
    let named = std::env::var_os("CUDA_VISIBLE_DEVICES");
    let visible = visible(
        named
            .as_ref()
            .map(|value| value.to_string_lossy())
            .as_deref(),
        &uuids,
    );
    if visible.is_empty() {
        return Err(CuResult::ERROR_NO_DEVICE);
    }
    let primaries = node.gpus.iter().map(|_| Mutex::default()).collect();
    let _ = DRIVER.set(Driver {
        process: std::process::id(),
        node,
        visible,
        contexts: Registry::new(0x1000_0010),
        primaries,
        streams: Registry::new(0x2000_0010),
        events: Registry::new(0x3000_0010),
        modules: Registry::new(0x4000_0010),
        functions: Registry::new(0x5000_0010),
        graphs: Registry::new(0x6000_0010),
        executables: Registry::new(0x7000_0010),
        pools: Registry::new(0x8000_0010),
        default_pools: Mutex::default(),
        arrays: Registry::new(0x9000_0010),
        allocations: Mutex::default(),
        virtual_memory: VirtualMemory::new(0xa000_0010),
        counter: AtomicU64::new(1),
    });
    Ok(())
}

impl Driver {
    /// The GPU of an ordinal.
    pub fn gpu_of(&self, ordinal: i32) -> Result<(usize, &Gpu), CuResult> {
        let index = usize::try_from(ordinal)
            .ok()
            .and_then(|at| self.visible.get(at))
            .copied();
        let index = index.ok_or(CuResult::ERROR_INVALID_DEVICE)?;
        Ok((index, self.gpu(index)?))
    }

    /// A GPU by its index.
    pub fn gpu(&self, index: usize) -> Result<&Gpu, CuResult> {
        self.node
            .gpus
            .get(index)
            .ok_or(CuResult::ERROR_INVALID_DEVICE)
    }

    /// The ordinal of a GPU.
    pub fn ordinal(&self, index: usize) -> i32 {
        self.visible
            .iter()
            .position(|gpu| *gpu == index)
            .map_or(-1, |at| at as i32)
    }

    /// A number that was not given out before.
    pub fn number(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// Free and total memory of a GPU, bytes, as the driver says now.
    pub fn memory_of(&self, gpu: &Gpu) -> Result<(u64, u64), CuResult> {
        let [free, total] = self
            .node
            .memory_info(gpu.subdevice, [fb::HEAP_FREE, fb::HEAP_SIZE])?;
        Ok((free * 1024, total * 1024))
    }

    /// Makes a context.
    pub fn make_context(
        &self,
        index: usize,
        flags: u32,
        primary: bool,
    ) -> Result<Arc<Context>, CuResult> {
        let gpu = self.gpu(index)?;
        let hardware = Hardware::new(&self.node, gpu)?;
        let channels = (hardware.compute.clone(), hardware.copy.clone());
        let failure = Arc::new(AtomicU32::new(0));
        let (_, context) = self.contexts.add(|handle| {
            let legacy = self.plan_stream(handle, &channels, &failure, 0, 0, 0, None);
            Context {
                handle,
                gpu: index,
                id: self.number(),
                primary,
                flags: AtomicU32::new(flags),
                limits: Mutex::default(),
                small: Mutex::default(),
                failure,
                legacy: Arc::new(legacy),
                per_thread: Mutex::default(),
                launched: AtomicBool::new(false),
                channels,
                hardware: Mutex::new(Some(hardware)),
            }
        });
        Ok(context)
    }

    /// Ends a context and all that was made in it.
    pub fn end_context(&self, handle: usize) -> Result<(), CuResult> {
        let context = self
            .contexts
            .remove(handle)
            .map_err(|_| CuResult::ERROR_INVALID_CONTEXT)?;
        for stream in self
            .streams
            .all()
            .into_iter()
            .filter(|stream| stream.context == handle)
        {
            let _ = stream.queue.last().wait();
            let _ = self.end_stream(stream.handle);
        }
        for stream in std::iter::once(Arc::clone(&context.legacy))
            .chain(lock(&context.per_thread).drain().map(|(_, s)| s))
        {
            let _ = stream.queue.last().wait();
            stream.queue.close();
        }
        self.free_all_of(&context);
        if let Some(hardware) = lock(&context.hardware).take() {
            hardware.release(&self.node, self.gpu(context.gpu)?);
        }
        Ok(())
    }

    /// Makes a stream of a context.
    pub fn make_stream(
        &self,
        context: &Context,
        flags: u32,
        priority: i32,
    ) -> Result<usize, CuResult> {
        let group = self.node.uvm.create_range_group()?;
        let (handle, _) = self.streams.add(|handle| {
            self.plan_stream(
                context.handle,
                &context.channels,
                &context.failure,
                flags,
                priority,
                handle,
                Some(group),
            )
        });
        Ok(handle)
    }

    /// Ends a stream when its work is done.
    pub fn end_stream(&self, handle: usize) -> Result<(), CuResult> {
        let stream = self.streams.remove(handle)?;
        stream.queue.close();
        if let Some(group) = stream.range_group {
            self.node.uvm.destroy_range_group(group)?;
        }
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a stream, each from another place"
    )]
    fn plan_stream(
        &self,
        context: usize,
        channels: &(Vec<u32>, [Vec<u32>; 3]),
        failure: &Arc<AtomicU32>,
        flags: u32,
        priority: i32,
        handle: usize,
        range_group: Option<u64>,
    ) -> Stream {
        let id = self.number();
        let of = |list: &[u32]| {
            list.get(id as usize % list.len().max(1))
                .copied()
                .unwrap_or(0)
        };
        let compute = of(&channels.0);
        Stream {
            handle,
            context,
            id,
            queue: Queue::new(self.node.client.root(), compute, Arc::clone(failure)),
            flags,
            priority,
            compute,
            copy: [of(&channels.1[0]), of(&channels.1[1]), of(&channels.1[2])],
            range_group,
            capture: Mutex::default(),
        }
    }

    /// The stream that a handle means in the current context. `per_thread`: what the default stream is.
    pub fn stream(&self, handle: usize, per_thread: bool) -> Result<Arc<Stream>, CuResult> {
        const LEGACY: usize = 1;
        const PER_THREAD: usize = 2;
        match (handle, per_thread) {
            (LEGACY, _) | (0, false) => Ok(Arc::clone(&self.current()?.legacy)),
            (PER_THREAD, _) | (0, true) => {
                let context = self.current()?;
                let mut streams = lock(&context.per_thread);
                let stream = streams
                    .entry(std::thread::current().id())
                    .or_insert_with(|| {
                        Arc::new(self.plan_stream(
                            context.handle,
                            &context.channels,
                            &context.failure,
                            0,
                            0,
                            0,
                            None,
                        ))
                    });
                Ok(Arc::clone(stream))
            }
            _ => self.streams.find(handle),
        }
    }

    /// Adds a job to a stream, or to what it captures; keeps the order between the default stream and the others.
    pub fn enqueue(&self, stream: &Stream, job: Job) -> Result<Option<Point>, CuResult> {
        if let Some(captured) = lock(&stream.capture).as_mut() {
            captured.push(job);
            return Ok(None);
        }
        let before = self.points_before(stream);
        if !before.is_empty() {
            stream.queue.add(Job::After(before))?;
        }
        stream.queue.add(job).map(Some)
    }

    /// What has to be done before the next job of a stream: the default stream waits for the blocking ones, and they
    /// for it.
    pub fn points_before(&self, stream: &Stream) -> Vec<Point> {
        let Some(context) = self.contexts.get(stream.context) else {
            return Vec::new();
        };
        let legacy = &context.legacy.queue;
        let mut points = Vec::new();
        if Arc::ptr_eq(&stream.queue, legacy) {
            points.extend(
                self.blocking_streams(&context)
                    .iter()
                    .map(|other| other.queue.last()),
            );
        } else if !stream.non_blocking() {
            points.push(legacy.last());
        }
        points.retain(|point| !point.reached());
        points
    }

    fn blocking_streams(&self, context: &Context) -> Vec<Arc<Stream>> {
        let made = self
            .streams
            .all()
            .into_iter()
            .filter(|s| s.context == context.handle && !s.non_blocking());
        made.chain(lock(&context.per_thread).values().cloned())
            .collect()
    }

    /// All streams of a context, the default ones included.
    pub fn streams_of(&self, context: &Context) -> Vec<Arc<Stream>> {
        let mut streams = self.streams.all();
        streams.retain(|stream| stream.context == context.handle);
        streams.push(Arc::clone(&context.legacy));
        streams.extend(lock(&context.per_thread).values().cloned());
        streams
    }

    /// Waits for all streams of a context.
    pub fn synchronise(&self, context: &Context) -> Result<(), CuResult> {
        for stream in self.streams_of(context) {
            stream.queue.last().wait()?;
        }
        self.trim_pools();
        context.legacy.queue.check()
    }

    /// The context that is current in this thread.
    pub fn current(&self) -> Result<Arc<Context>, CuResult> {
        let handle = CURRENT
            .with_borrow(|stack| stack.last().copied())
            .unwrap_or(0);
        self.contexts
            .get(handle)
            .ok_or(CuResult::ERROR_INVALID_CONTEXT)
    }
}

/// Handle of this thread's current context; 0 if there is none.
pub fn current_handle() -> usize {
    CURRENT
        .with_borrow(|stack| stack.last().copied())
        .unwrap_or(0)
}

/// Puts a context on top of this thread's stack.
pub fn push_current(handle: usize) {
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
}

/// Takes the top off this thread's stack.
pub fn pop_current() -> Option<usize> {
    CURRENT.with_borrow_mut(Vec::pop)
}

/// Replaces the top of this thread's stack; 0 only takes it off.
pub fn set_current(handle: usize) {
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}
