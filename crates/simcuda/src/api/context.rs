//! Contexts: primary ones, made ones, the stack of current ones, limits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda::driver::VERSION;
use cuda::status::CuResult;

use crate::driver::{
    Context, Driver, current_handle, driver, pop_current, push_current, set_current,
};
use crate::ffi::{Out, status};
use crate::registry::lock;

/// Flags that a context can have: how to wait (3 bits), and the rest up to "sync memory operations".
const FLAGS: u32 = 0xff;

pub extern "C" fn primary_retain(context: Out<usize>, device: i32) -> u32 {
    status((|| {
        let driver = driver()?;
        let context = context.required()?;
        let (index, _) = driver.gpu_of(device)?;
        let mut primary = lock(&driver.primaries[index]);
        let handle = match primary.handle {
            Some(handle) => handle,
            None => driver.make_context(index, primary.flags, true)?.handle,
        };
        primary.handle = Some(handle);
        primary.count += 1;
        context.set(handle);
        Ok(())
    })())
}

pub extern "C" fn primary_release(device: i32) -> u32 {
    status((|| {
        let driver = driver()?;
        let (index, _) = driver.gpu_of(device)?;
        let mut primary = lock(&driver.primaries[index]);
        primary.count = primary
            .count
            .checked_sub(1)
            .ok_or(CuResult::ERROR_INVALID_CONTEXT)?;
        match primary.handle {
            Some(handle) if primary.count == 0 => {
                primary.handle = None;
                driver.end_context(handle)
            }
            _ => Ok(()),
        }
    })())
}

pub extern "C" fn primary_reset(device: i32) -> u32 {
    status((|| {
        let driver = driver()?;
        let (index, _) = driver.gpu_of(device)?;
        let handle = lock(&driver.primaries[index]).handle.take();
        handle.map_or(Ok(()), |handle| driver.end_context(handle))
    })())
}

pub extern "C" fn primary_set_flags(device: i32, flags: u32) -> u32 {
    status((|| {
        let driver = driver()?;
        let (index, _) = driver.gpu_of(device)?;
        if flags & !FLAGS != 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        let mut primary = lock(&driver.primaries[index]);
        primary.flags = flags;
        if let Some(context) = primary
            .handle
            .and_then(|handle| driver.contexts.get(handle))
        {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    })())
}

pub extern "C" fn primary_get_state(device: i32, flags: Out<u32>, active: Out<i32>) -> u32 {
    status((|| {
        let driver = driver()?;
        let (index, _) = driver.gpu_of(device)?;
        let primary = lock(&driver.primaries[index]);
        flags.set(primary.flags);
        active.set(i32::from(primary.handle.is_some()));
        Ok(())
    })())
}

fn make(context: Out<usize>, flags: u32, device: i32) -> Result<(), CuResult> {
    let driver = driver()?;
    let context = context.required()?;
    let (index, _) = driver.gpu_of(device)?;
    if flags & !FLAGS != 0 {
        return Err(CuResult::ERROR_INVALID_VALUE);
    }
    let handle = driver.make_context(index, flags, false)?.handle;
    push_current(handle);
    context.set(handle);
    Ok(())
}

pub extern "C" fn create(context: Out<usize>, flags: u32, device: i32) -> u32 {
    status(make(context, flags, device))
}

/// With execution affinity: a share of the multiprocessors, which only MPS can give.
pub extern "C" fn create_v3(
    context: Out<usize>,
    _affinities: usize,
    count: i32,
    flags: u32,
    device: i32,
) -> u32 {
    if count != 0 {
        return CuResult::ERROR_UNSUPPORTED_EXEC_AFFINITY.0;
    }
    status(make(context, flags, device))
}

/// What `cuCtxCreate_v4` takes beside flags and device.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CreateParams {
    affinities: usize,
    affinity_count: i32,
    graphics: usize,
}

pub extern "C" fn create_v4(
    context: Out<usize>,
    params: Out<CreateParams>,
    flags: u32,
    device: i32,
) -> u32 {
    match params.get() {
        Some(params) if params.affinity_count != 0 => CuResult::ERROR_UNSUPPORTED_EXEC_AFFINITY.0,
        Some(params) if params.graphics != 0 => CuResult::ERROR_NOT_SUPPORTED.0,
        _ => status(make(context, flags, device)),
    }
}

pub extern "C" fn destroy(context: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let found = driver
            .contexts
            .get(context)
            .ok_or(CuResult::ERROR_INVALID_CONTEXT)?;
        if found.primary {
            return Err(CuResult::ERROR_INVALID_CONTEXT);
        }
        if current_handle() == context {
            pop_current();
        }
        driver.end_context(context)
    })())
}

pub extern "C" fn push(context: usize) -> u32 {
    status((|| {
        driver()?
            .contexts
            .get(context)
            .ok_or(CuResult::ERROR_INVALID_CONTEXT)?;
        push_current(context);
        Ok(())
    })())
}

pub extern "C" fn pop(context: Out<usize>) -> u32 {
    status((|| {
        driver()?;
        context.set(pop_current().ok_or(CuResult::ERROR_INVALID_CONTEXT)?);
        Ok(())
    })())
}

pub extern "C" fn set(context: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        if context != 0 {
            driver
                .contexts
                .get(context)
                .ok_or(CuResult::ERROR_INVALID_CONTEXT)?;
        }
        set_current(context);
        Ok(())
    })())
}

pub extern "C" fn get_current(context: Out<usize>) -> u32 {
    status((|| {
        driver()?;
        context.required()?.set(current_handle());
        Ok(())
    })())
}

/// The context of a handle, or the current one for 0.
fn context_of(driver: &Driver, handle: usize) -> Result<Arc<Context>, CuResult> {
    if handle == 0 {
        return driver.current();
    }
    driver
        .contexts
        .get(handle)
        .ok_or(CuResult::ERROR_INVALID_CONTEXT)
}

pub extern "C" fn get_device(device: Out<i32>) -> u32 {
    get_device_of(device, 0)
}

pub extern "C" fn get_device_of(device: Out<i32>, context: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let context = context_of(driver, context)?;
        device.required()?.set(driver.ordinal(context.gpu));
        Ok(())
    })())
}

pub extern "C" fn get_flags(flags: Out<u32>) -> u32 {
    status((|| {
        let context = driver()?.current()?;
        flags.required()?.set(context.flags.load(Ordering::Relaxed));
        Ok(())
    })())
}

pub extern "C" fn set_flags(flags: u32) -> u32 {
    status((|| {
        let context = driver()?.current()?;
        if flags & !FLAGS != 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        context.flags.store(flags, Ordering::Relaxed);
        Ok(())
    })())
}

pub extern "C" fn get_id(context: usize, id: Out<u64>) -> u32 {
    status((|| {
        let context = context_of(driver()?, context)?;
        id.required()?.set(context.id);
        Ok(())
    })())
}

pub extern "C" fn get_api_version(context: usize, version: Out<u32>) -> u32 {
    status((|| {
        context_of(driver()?, context)?;
        version.required()?.set(VERSION);
        Ok(())
    })())
}

pub extern "C" fn synchronize() -> u32 {
    synchronize_v2(0)
}

pub extern "C" fn synchronize_v2(context: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        driver.synchronise(&*context_of(driver, context)?)
    })())
}

/// Limits (`CUlimit`) with the value that a new context has.
const LIMITS: &[(u32, usize)] = &[
    (0, 1024),    // stack of a thread
    (1, 1 << 20), // buffer of printf
    (2, 8 << 20), // heap of malloc
    (3, 2),       // depth of device-side waiting
    (4, 2048),    // device-side launches outstanding
    (5, 64),      // granularity of fetches into L2
    (6, 0),       // persisting part of L2
];

pub extern "C" fn get_limit(value: Out<usize>, limit: u32) -> u32 {
    status((|| {
        let context = driver()?.current()?;
        let (_, default) = LIMITS
            .iter()
            .find(|(number, _)| *number == limit)
            .ok_or(CuResult::ERROR_UNSUPPORTED_LIMIT)?;
        let current = lock(&context.limits)
            .get(&limit)
            .copied()
            .unwrap_or(*default);
        value.required()?.set(current);
        Ok(())
    })())
}

pub extern "C" fn set_limit(limit: u32, value: usize) -> u32 {
    status((|| {
        let context = driver()?.current()?;
        if !LIMITS.iter().any(|(number, _)| *number == limit) {
            return Err(CuResult::ERROR_UNSUPPORTED_LIMIT);
        }
        lock(&context.limits).insert(limit, value);
        Ok(())
    })())
}

pub extern "C" fn get_stream_priority_range(least: Out<i32>, greatest: Out<i32>) -> u32 {
    status((|| {
        driver()?.current()?;
        least.set(0);
        greatest.set(-5);
        Ok(())
    })())
}

/// Cache and shared-memory preferences have no effect on this generation of GPUs either.
pub extern "C" fn get_preference(value: Out<u32>) -> u32 {
    status((|| {
        driver()?.current()?;
        value.required()?.set(0);
        Ok(())
    })())
}

/// See [`get_preference`].
pub extern "C" fn set_preference(_value: u32) -> u32 {
    status(driver().and_then(Driver::current).map(|_| ()))
}

/// Peer mappings are not simulated.
pub extern "C" fn enable_peer_access(context: usize, _flags: u32) -> u32 {
    status(driver().and_then(|driver| {
        context_of(driver, context)?;
        Err(CuResult::ERROR_PEER_ACCESS_UNSUPPORTED)
    }))
}

/// See [`enable_peer_access`].
pub extern "C" fn disable_peer_access(context: usize) -> u32 {
    status(driver().and_then(|driver| {
        context_of(driver, context)?;
        Err(CuResult::ERROR_PEER_ACCESS_NOT_ENABLED)
    }))
}
