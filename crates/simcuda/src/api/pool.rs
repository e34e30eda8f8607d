//! Memory pools and stream-ordered allocation.

use std::ffi::c_void;

use cuda::status::CuResult;

use crate::driver::driver;
use crate::ffi::{In, Out, status};
use crate::pool::Pool;
use crate::registry::lock;

/// The head of `CUmemPoolProps`; the rest is reserved or Windows'.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PoolProps {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
}

const PINNED: u32 = 1;
const ON_DEVICE: u32 = 1;

pub extern "C" fn alloc_async<const PER_THREAD: bool>(
    address: Out<u64>,
    size: usize,
    stream: usize,
) -> u32 {
    alloc_from::<PER_THREAD>(address, size, None, stream)
}

pub extern "C" fn alloc_from_pool<const PER_THREAD: bool>(
    address: Out<u64>,
    size: usize,
    pool: usize,
    stream: usize,
) -> u32 {
    alloc_from::<PER_THREAD>(address, size, Some(pool), stream)
}

fn alloc_from<const PER_THREAD: bool>(
    address: Out<u64>,
    size: usize,
    pool: Option<usize>,
    stream: usize,
) -> u32 {
    status((|| {
        let driver = driver()?;
        let address = address.required()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        if lock(&stream.capture).is_some() {
            return Err(CuResult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let context = driver
            .contexts
            .get(stream.context)
            .ok_or(CuResult::ERROR_INVALID_CONTEXT)?;
        let pool = pool.unwrap_or_else(|| driver.default_pool(context.gpu, true));
        address.set(driver.alloc_from_pool(&context, &stream, pool, size as u64)?);
        Ok(())
    })())
}

pub extern "C" fn free_async<const PER_THREAD: bool>(address: u64, stream: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        if lock(&stream.capture).is_some() {
            return Err(CuResult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        driver.free_async(&stream, address)
    })())
}

pub extern "C" fn create(pool: Out<usize>, props: In<PoolProps>) -> u32 {
    status((|| {
        let driver = driver()?;
        let pool = pool.required()?;
        let props = props.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
        if props.kind != PINNED || props.location_kind != ON_DEVICE {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        if props.handle_types != 0 {
            // Sharing a whole pool with another process is not simulated.
            return Err(CuResult::ERROR_NOT_SUPPORTED);
        }
        let (index, _) = driver.gpu_of(props.location)?;
        pool.set(driver.pools.add(|_| Pool::new(index)).0);
        Ok(())
    })())
}

pub extern "C" fn destroy(pool: usize) -> u32 {
    status(driver().and_then(|driver| driver.end_pool(pool)))
}

pub extern "C" fn trim(pool: usize, keep: usize) -> u32 {
    status(driver().and_then(|driver| driver.trim_pool(pool, keep as u64)))
}

pub extern "C" fn get_attribute(pool: usize, which: u32, to: *mut c_void) -> u32 {
    status((|| {
        let pool = driver()?.pools.find(pool)?;
        if to.is_null() {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        let value = pool.attribute(which)?;
        // SAFETY: the contract of the C interface: the place has room for a value of the attribute's type.
        unsafe {
            if Pool::is_switch(which) {
                to.cast::<u32>().write_unaligned(value as u32);
            } else {
                to.cast::<u64>().write_unaligned(value);
            }
        }
        Ok(())
    })())
}

pub extern "C" fn set_attribute(pool: usize, which: u32, from: *const c_void) -> u32 {
    status((|| {
        let pool = driver()?.pools.find(pool)?;
        if from.is_null() {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the contract of the C interface: a value of the attribute's type lies there.
        let value = unsafe {
            if Pool::is_switch(which) {
                u64::from(from.cast::<u32>().read_unaligned())
            } else {
                from.cast::<u64>().read_unaligned()
            }
        };
        pool.set_attribute(which, value)
    })())
}

/// A pool's memory is reached by its own GPU, and by no other here.
pub extern "C" fn set_access(pool: usize, _descriptors: usize, _count: usize) -> u32 {
    status(driver().and_then(|driver| driver.pools.find(pool).map(|_| ())))
}

pub extern "C" fn get_default(pool: Out<usize>, device: i32) -> u32 {
    of_device(pool, device, false)
}

pub extern "C" fn get_current(pool: Out<usize>, device: i32) -> u32 {
    of_device(pool, device, true)
}

fn of_device(pool: Out<usize>, device: i32, set: bool) -> u32 {
    status((|| {
        let driver = driver()?;
        let (index, _) = driver.gpu_of(device)?;
        pool.required()?.set(driver.default_pool(index, set));
        Ok(())
    })())
}

pub extern "C" fn set_current(device: i32, pool: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let (index, _) = driver.gpu_of(device)?;
        driver.set_default_pool(index, pool)
    })())
}
