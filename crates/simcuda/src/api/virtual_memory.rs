//! Virtual memory management.

use cuda::status::CuResult;

use crate::driver::driver;
use crate::ffi::{In, Out, status};
use crate::va::PAGE;

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Props {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
    windows: usize,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Access {
    location_kind: u32,
    location: i32,
    flags: u32,
}

const PINNED: u32 = 1;
const ON_DEVICE: u32 = 1;
const POSIX_FILE: u32 = 1;

pub extern "C" fn create(handle: Out<usize>, size: usize, props: In<Props>, flags: u64) -> u32 {
    status((|| {
        let driver = driver()?;
        let handle = handle.required()?;
        let props = props.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
        if flags != 0 || props.kind != PINNED || props.location_kind != ON_DEVICE {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        if props.handle_types & !POSIX_FILE != 0 {
            return Err(CuResult::ERROR_NOT_SUPPORTED);
        }
        let (index, _) = driver.gpu_of(props.location)?;
        handle.set(driver.create_physical(index, size as u64, props.handle_types)?);
        Ok(())
    })())
}

pub extern "C" fn release(handle: usize) -> u32 {
    status(driver().and_then(|driver| {
        driver
            .virtual_memory
            .physical
            .remove(handle)
            .map(|_| ())
            .map_err(|_| CuResult::ERROR_INVALID_VALUE)
    }))
}

pub extern "C" fn reserve(
    address: Out<u64>,
    size: usize,
    alignment: usize,
    _wish: u64,
    flags: u64,
) -> u32 {
    status((|| {
        let driver = driver()?;
        let address = address.required()?;
        if flags != 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        address.set(driver.reserve(size as u64, alignment as u64)?);
        Ok(())
    })())
}

pub extern "C" fn unreserve(address: u64, size: usize) -> u32 {
    status(driver().and_then(|driver| driver.unreserve(address, size as u64)))
}

pub extern "C" fn map(address: u64, size: usize, offset: usize, handle: usize, flags: u64) -> u32 {
    status((|| {
        let driver = driver()?;
        if flags != 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        driver.map_physical(address, size as u64, offset as u64, handle)
    })())
}

pub extern "C" fn unmap(address: u64, size: usize) -> u32 {
    status(driver().and_then(|driver| driver.unmap_physical(address, size as u64)))
}

pub extern "C" fn set_access(address: u64, size: usize, access: In<Access>, count: usize) -> u32 {
    const READ_WRITE: u32 = 3;
    status((|| {
        let driver = driver()?;
        let wanted = access.list(count);
        if wanted.is_empty() {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        for one in wanted {
            if one.location_kind != ON_DEVICE || one.flags > READ_WRITE {
                return Err(CuResult::ERROR_INVALID_VALUE);
            }
            driver.gpu_of(one.location)?;
        }
        driver.give_access(address, size as u64)
    })())
}

pub extern "C" fn get_access(flags: Out<u64>, _location: usize, address: u64) -> u32 {
    status((|| {
        let driver = driver()?;
        driver
            .virtual_memory
            .reserved_at(address)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        flags
            .required()?
            .set(if driver.virtual_memory.covers(address, 1) {
                3
            } else {
                0
            });
        Ok(())
    })())
}

pub extern "C" fn get_granularity(granularity: Out<usize>, props: In<Props>, _option: u32) -> u32 {
    status((|| {
        let driver = driver()?;
        let props = props.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
        driver.gpu_of(props.location)?;
        granularity.required()?.set(PAGE as usize);
        Ok(())
    })())
}

pub extern "C" fn get_properties(props: Out<Props>, handle: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let physical = driver
            .virtual_memory
            .physical
            .get(handle)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        props.required()?.set(Props {
            kind: PINNED,
            handle_types: physical.shareable,
            location_kind: ON_DEVICE,
            location: driver.ordinal(physical.gpu),
            windows: 0,
            flags: [0; 8],
        });
        Ok(())
    })())
}

pub extern "C" fn export(to: Out<i32>, handle: usize, kind: u32, flags: u64) -> u32 {
    status((|| {
        let driver = driver()?;
        let to = to.required()?;
        if kind != POSIX_FILE || flags != 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        to.set(driver.export_physical(handle)?);
        Ok(())
    })())
}

/// The descriptor's number is given in the place of a pointer.
pub extern "C" fn import(handle: Out<usize>, file: usize, kind: u32) -> u32 {
    status((|| {
        let driver = driver()?;
        let handle = handle.required()?;
        let file = i32::try_from(file).map_err(|_| CuResult::ERROR_INVALID_VALUE)?;
        if kind != POSIX_FILE {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        handle.set(driver.import_physical(file)?);
        Ok(())
    })())
}
