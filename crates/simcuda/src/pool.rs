//! Memory pools: stream-ordered allocation out of blocks that are mapped and unmapped as they are needed.
//!
//! A pool reserves a range twice as long as the device's memory and fills it from the start with blocks of 32 MiB
//! (measured on an H200, driver 580.159). What is freed stays with the pool until the program next waits for its
//! work; then whole blocks above the release threshold go back to the device.

use std::collections::BTreeMap;
use std::sync::Mutex;

use cuda::status::CuResult;

use crate::driver::{Context, Driver};
use crate::hardware::{ATTR_HOST, ATTR_MAPPED, alloc_device_memory, alloc_host_memory};
use crate::heap::Heap;
use crate::memory::{Kind, Mapped};
use crate::node::Gpu;
use crate::registry::lock;
use crate::resource_manager::Mapping;
use crate::stream::{Point, Stream};
use crate::va::{PAGE, Range, round_up};

/// Length of a block.
const BLOCK: u64 = 32 << 20;

/// A memory pool.
pub struct Pool {
    /// Index of its GPU.
    pub gpu: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Made with the first allocation.
    range: Option<Range>,
    /// Host memory for the pool's bookkeeping, and where it is mapped for the CPU.
    shared: Option<(Mapped, Mapping)>,
    heap: Heap,
    /// Allocations: address to length.
    taken: BTreeMap<u64, u64>,
    /// Blocks that have memory: start to memory object.
    blocks: BTreeMap<u64, u32>,
    /// Freed in stream order: usable by others when the point is reached.
    leaving: Vec<(u64, Point)>,
    /// Bytes to keep when the program waits.
    threshold: u64,
    /// Highest totals seen: in blocks, in allocations.
    high: (u64, u64),
    /// Whether memory freed in one stream may be reused in another (three switches of the API).
    reuse: [u32; 3],
}

impl State {
    fn used(&self) -> u64 {
        self.taken.values().sum()
    }

    fn reserved(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// Gives back what may be given back: everything reached, and what was freed in `stream` itself.
    fn settle(&mut self, stream: Option<&Stream>) {
        let (ready, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(|(_, point)| {
                point.reached() || stream.is_some_and(|stream| point.is_in(&stream.queue))
            });
        self.leaving = waiting;
        for (address, _) in ready {
            self.give(address);
        }
    }

    fn give(&mut self, address: u64) {
        if self.taken.remove(&address).is_some() {
            self.heap.give(address);
        }
    }

    /// Starts of the blocks that `[address, address + length)` lies in.
    fn blocks_of(&self, address: u64, length: u64) -> impl Iterator<Item = u64> + use<> {
        let start = self.range.as_ref().map_or(0, Range::base);
        let first = start + (address - start) / BLOCK * BLOCK;
        (first..address + length).step_by(BLOCK as usize)
    }
}

/// Attributes of a pool (`CUmemPool_attribute`).
mod attribute {
    pub const RELEASE_THRESHOLD: u32 = 4;
    pub const RESERVED_CURRENT: u32 = 5;
    pub const RESERVED_HIGH: u32 = 6;
    pub const USED_CURRENT: u32 = 7;
    pub const USED_HIGH: u32 = 8;
}

impl Pool {
    /// An empty pool.
    pub fn new(gpu: usize) -> Pool {
        Pool {
            gpu,
            state: Mutex::new(State {
                reuse: [1; 3],
                ..State::default()
            }),
        }
    }

    /// Frees an allocation at once.
    pub fn give_now(&self, address: u64) {
        lock(&self.state).give(address);
    }

    /// Reads an attribute.
    pub fn attribute(&self, which: u32) -> Result<u64, CuResult> {
        let state = lock(&self.state);
        Ok(match which {
            1..=3 => u64::from(state.reuse[which as usize - 1]),
            attribute::RELEASE_THRESHOLD => state.threshold,
            attribute::RESERVED_CURRENT => state.reserved(),
            attribute::RESERVED_HIGH => state.high.0,
            attribute::USED_CURRENT => state.used(),
            attribute::USED_HIGH => state.high.1,
            _ => return Err(CuResult::ERROR_INVALID_VALUE),
        })
    }

    /// Whether an attribute is an `int` (else 64 bits).
    pub fn is_switch(which: u32) -> bool {
        (1..=3).contains(&which)
    }

    /// Sets an attribute; the high-water marks can only be set to 0.
    pub fn set_attribute(&self, which: u32, value: u64) -> Result<(), CuResult> {
        let mut state = lock(&self.state);
        match (which, value) {
            (1..=3, _) => state.reuse[which as usize - 1] = value as u32,
            (attribute::RELEASE_THRESHOLD, _) => state.threshold = value,
            (attribute::RESERVED_HIGH, 0) => state.high.0 = state.reserved(),
            (attribute::USED_HIGH, 0) => state.high.1 = state.used(),
            _ => return Err(CuResult::ERROR_INVALID_VALUE),
        }
        Ok(())
    }
}

impl Driver {
    /// The pool a GPU has without anybody making one; `set`: the one that was put in its place.
    pub fn default_pool(&self, gpu: usize, set: bool) -> usize {
        let mut pools = lock(&self.default_pools);
        let (own, current) = *pools.entry(gpu).or_insert_with(|| {
            let (handle, _) = self.pools.add(|_| Pool::new(gpu));
            (handle, handle)
        });
        if set { current } else { own }
    }

    /// `cuDeviceSetMemPool`.
    pub fn set_default_pool(&self, gpu: usize, handle: usize) -> Result<(), CuResult> {
        self.pools.find(handle)?;
        self.default_pool(gpu, true);
        if let Some((_, current)) = lock(&self.default_pools).get_mut(&gpu) {
            *current = handle;
        }
        Ok(())
    }

    /// `cuMemAllocFromPoolAsync`.
    pub fn alloc_from_pool(
        &self,
        context: &Context,
        stream: &Stream,
        handle: usize,
        size: u64,
    ) -> Result<u64, CuResult> {
        if size == 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        stream.queue.check()?;
        let pool = self.pools.find(handle)?;
        let gpu = self.gpu(pool.gpu)?;
        let length = size
            .checked_next_multiple_of(crate::heap::UNIT)
            .ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        let base = {
            let mut state = lock(&pool.state);
            state.settle(Some(stream));
            if state.range.is_none() {
                self.start_pool(gpu, &mut state)?;
            }
            let base = state
                .heap
                .take(length)
                .ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
            state.taken.insert(base, length);
            if let Err(error) = self.fill_blocks(gpu, &mut state, base, length) {
                state.give(base);
                self.trim(gpu, &mut state, 0);
                return Err(error);
            }
            state.high = (
                state.high.0.max(state.reserved()),
                state.high.1.max(state.used()),
            );
            base
        };
        Ok(self.keep(context, base, size, Kind::Pool(handle)))
    }

    /// The first allocation reserves the range and sets up host memory for the pool's bookkeeping.
    fn start_pool(&self, gpu: &Gpu, state: &mut State) -> Result<(), CuResult> {
        let length = gpu
            .heap_kib
            .checked_mul(2048)
            .and_then(|bytes| round_up(bytes, BLOCK));
        let range = Range::reserve(
            length.ok_or(CuResult::ERROR_OUT_OF_MEMORY)?.max(BLOCK),
            BLOCK,
        )?;
        self.node
            .uvm
            .create_external_range(range.base(), range.length())?;
        state.heap.add(range.base(), range.length());
        state.range = Some(range);
        let shared = Range::reserve(PAGE, PAGE)?;
        let memory = alloc_host_memory(&self.node, gpu, ATTR_HOST, 0, PAGE)?;
        let file = simgpu::client::Node::Control;
        let mapping = self.node.client.map(gpu.device, memory, PAGE, file)?;
        let shared = Mapped {
            memory,
            range: shared,
        };
        self.map(gpu, &shared)?;
        state.shared = Some((shared, mapping));
        Ok(())
    }

    /// Gives memory to the blocks of an allocation that have none.
    fn fill_blocks(
        &self,
        gpu: &Gpu,
        state: &mut State,
        base: u64,
        length: u64,
    ) -> Result<(), CuResult> {
        let missing: Vec<u64> = state
            .blocks_of(base, length)
            .filter(|start| !state.blocks.contains_key(start))
            .collect();
        let mut made = Vec::new();
        let mut failure = None;
        for start in &missing {
            match alloc_device_memory(&self.node, gpu, ATTR_MAPPED, BLOCK) {
                Ok(memory) => made.push((*start, memory)),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        for (start, memory) in made {
            let mapped = match failure {
                None => self.node.uvm.map_external(
                    &self.node.client,
                    memory,
                    &gpu.uuid,
                    start,
                    BLOCK,
                    0,
                ),
                Some(error) => Err(error),
            };
            match mapped {
                Ok(()) => {
                    state.blocks.insert(start, memory);
                }
                Err(error) => {
                    let _ = self.node.client.free(gpu.device, memory);
                    failure = failure.or(Some(error));
                }
            }
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// `cuMemFreeAsync`.
    pub fn free_async(&self, stream: &Stream, address: u64) -> Result<(), CuResult> {
        let pool = {
            let mut allocations = lock(&self.allocations);
            let pool = match allocations.get(&address).map(|allocation| &allocation.kind) {
                Some(Kind::Pool(pool)) => *pool,
                Some(Kind::Own(_) | Kind::Part | Kind::Managed(_)) => {
                    drop(allocations);
                    stream.queue.last().wait()?;
                    return self.free(address);
                }
                _ => return Err(CuResult::ERROR_INVALID_VALUE),
            };
            allocations.remove(&address);
            pool
        };
        if let Some(pool) = self.pools.get(pool) {
            lock(&pool.state)
                .leaving
                .push((address, stream.queue.last()));
        }
        Ok(())
    }

    /// Whenever the program waits for work, pools give back what they need not keep.
    pub fn trim_pools(&self) {
        for pool in self.pools.all() {
            let Ok(gpu) = self.gpu(pool.gpu) else {
                continue;
            };
            let mut state = lock(&pool.state);
            state.settle(None);
            let keep = state.threshold;
            self.trim(gpu, &mut state, keep);
        }
    }

    /// `cuMemPoolTrimTo`.
    pub fn trim_pool(&self, handle: usize, keep: u64) -> Result<(), CuResult> {
        let pool = self.pools.find(handle)?;
        let mut state = lock(&pool.state);
        state.settle(None);
        self.trim(self.gpu(pool.gpu)?, &mut state, keep);
        Ok(())
    }

    /// Unmaps and frees blocks that no allocation touches, the last ones first, while more than `keep` bytes are held.
    fn trim(&self, gpu: &Gpu, state: &mut State, keep: u64) {
        let busy: Vec<u64> = state
            .taken
            .iter()
            .flat_map(|(address, length)| state.blocks_of(*address, *length))
            .collect();
        let idle: Vec<u64> = state
            .blocks
            .keys()
            .rev()
            .filter(|start| !busy.contains(start))
            .copied()
            .collect();
        for start in idle {
            if state.reserved() <= keep {
                break;
            }
            let _ = self.node.uvm.unmap_external(&gpu.uuid, start, BLOCK);
            if let Some(memory) = state.blocks.remove(&start) {
                let _ = self.node.client.free(gpu.device, memory);
            }
        }
    }

    /// `cuMemPoolDestroy`.
    pub fn end_pool(&self, handle: usize) -> Result<(), CuResult> {
        if lock(&self.default_pools)
            .values()
            .any(|(own, _)| *own == handle)
        {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        let pool = self.pools.remove(handle)?;
        for (own, current) in lock(&self.default_pools).values_mut() {
            if *current == handle {
                *current = *own;
            }
        }
        let gpu = self.gpu(pool.gpu)?;
        let mut state = lock(&pool.state);
        let points: Vec<Point> = state
            .leaving
            .iter()
            .map(|(_, point)| point.clone())
            .collect();
        for point in points {
            let _ = point.wait();
        }
        state.settle(None);
        state.taken.clear();
        self.trim(gpu, &mut state, 0);
        if let Some((shared, mapping)) = state.shared.take() {
            self.node
                .uvm
                .free(shared.range.base(), shared.range.length())?;
            self.node
                .client
                .unmap(gpu.device, shared.memory, &mapping)?;
            self.node.client.free(gpu.device, shared.memory)?;
        }
        if let Some(range) = state.range.take() {
            self.node.uvm.free(range.base(), range.length())?;
        }
        Ok(())
    }
}
