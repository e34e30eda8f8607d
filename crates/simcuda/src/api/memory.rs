//! Allocating and freeing; what an address is.

use std::ffi::c_void;

use cuda::status::CuResult;

use crate::driver::{Driver, driver};
use crate::ffi::{In, Out, status};
use crate::memory::{Allocation, Kind};

pub extern "C" fn get_info(free: Out<usize>, total: Out<usize>) -> u32 {
    status((|| {
        let driver = driver()?;
        let context = driver.current()?;
        let (now_free, size) = driver.memory_of(driver.gpu(context.gpu)?)?;
        free.set(now_free as usize);
        total.set(size as usize);
        Ok(())
    })())
}

/// Allocates with the current context and writes the address down.
fn alloc_with(
    to: Out<u64>,
    make: impl FnOnce(&Driver, &crate::driver::Context) -> Result<u64, CuResult>,
) -> u32 {
    status((|| {
        let driver = driver()?;
        let context = driver.current()?;
        let to = to.required()?;
        to.set(make(driver, &context)?);
        Ok(())
    })())
}

pub extern "C" fn alloc(address: Out<u64>, size: usize) -> u32 {
    alloc_with(address, |driver, context| {
        driver.alloc(context, size as u64)
    })
}

/// Rows of an allocation with a pitch start at multiples of this.
const PITCH: usize = 512;

pub extern "C" fn alloc_pitch(
    address: Out<u64>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> u32 {
    let Some(row) = width
        .checked_next_multiple_of(PITCH)
        .filter(|_| matches!(element, 4 | 8 | 16))
    else {
        return CuResult::ERROR_INVALID_VALUE.0;
    };
    let Some(size) = row.checked_mul(height) else {
        return CuResult::ERROR_OUT_OF_MEMORY.0;
    };
    let done = alloc(address, size);
    if done == CuResult::SUCCESS.0 {
        pitch.set(row);
    }
    done
}

pub extern "C" fn alloc_managed(address: Out<u64>, size: usize, flags: u32) -> u32 {
    if !matches!(flags, 1 | 2) {
        return CuResult::ERROR_INVALID_VALUE.0;
    }
    alloc_with(address, |driver, context| {
        driver.alloc_managed(context, size as u64)
    })
}

pub extern "C" fn free(address: u64) -> u32 {
    status(driver().and_then(|driver| driver.free(address)))
}

pub extern "C" fn alloc_host(address: Out<u64>, size: usize) -> u32 {
    alloc_with(address, |driver, context| {
        driver.alloc_host(context, size as u64)
    })
}

pub extern "C" fn host_alloc(address: Out<u64>, size: usize, flags: u32) -> u32 {
    if flags & !7 != 0 {
        return CuResult::ERROR_INVALID_VALUE.0;
    }
    alloc_host(address, size)
}

pub extern "C" fn free_host(address: u64) -> u32 {
    status(driver().and_then(|driver| driver.free_host(address)))
}

pub extern "C" fn host_register(address: u64, size: usize, _flags: u32) -> u32 {
    status((|| {
        let driver = driver()?;
        let context = driver.current()?;
        driver.register(&context, address, size as u64)
    })())
}

pub extern "C" fn host_unregister(address: u64) -> u32 {
    status(driver().and_then(|driver| driver.unregister(address & !4095)))
}

/// Host and device use one address space.
pub extern "C" fn host_get_device_pointer(device: Out<u64>, host: u64, _flags: u32) -> u32 {
    status((|| {
        let driver = driver()?;
        driver
            .at(host)
            .filter(|allocation| allocation.on_host())
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        device.required()?.set(host);
        Ok(())
    })())
}

pub extern "C" fn host_get_flags(flags: Out<u32>, host: u64) -> u32 {
    status((|| {
        let driver = driver()?;
        driver
            .at(host)
            .filter(|allocation| allocation.on_host())
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        flags.required()?.set(0);
        Ok(())
    })())
}

pub extern "C" fn get_address_range(base: Out<u64>, size: Out<usize>, address: u64) -> u32 {
    status((|| {
        let driver = driver()?;
        let allocation = driver.at(address).ok_or(CuResult::ERROR_NOT_FOUND)?;
        base.set(allocation.base);
        size.set(allocation.size as usize);
        Ok(())
    })())
}

/// Advice and prefetching change where managed memory lies, which nobody can tell here.
pub extern "C" fn advise(address: u64, size: usize, _advice: u32, _device: i32) -> u32 {
    hint(address, size)
}

/// See [`advise`]; the location is two numbers.
pub extern "C" fn advise_v2(address: u64, size: usize, _advice: u32, _location: u64) -> u32 {
    hint(address, size)
}

/// See [`advise`].
pub extern "C" fn prefetch(address: u64, size: usize, _device: i32, _stream: usize) -> u32 {
    hint(address, size)
}

/// See [`advise`]; the location is two numbers.
pub extern "C" fn prefetch_v2(
    address: u64,
    size: usize,
    _location: u64,
    _flags: u32,
    _stream: usize,
) -> u32 {
    hint(address, size)
}

fn hint(address: u64, size: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        match driver.at(address) {
            Some(allocation)
                if matches!(allocation.kind, Kind::Managed(_))
                    && allocation.covers(address, size as u64) =>
            {
                Ok(())
            }
            _ => Err(CuResult::ERROR_INVALID_VALUE),
        }
    })())
}

/// Attributes of a pointer (`CUpointer_attribute`).
mod attribute {
    pub const CONTEXT: u32 = 1;
    pub const MEMORY_TYPE: u32 = 2;
    pub const DEVICE_POINTER: u32 = 3;
    pub const HOST_POINTER: u32 = 4;
    pub const SYNC_MEMOPS: u32 = 6;
    pub const BUFFER_ID: u32 = 7;
    pub const IS_MANAGED: u32 = 8;
    pub const DEVICE_ORDINAL: u32 = 9;
    pub const IS_IPC_CAPABLE: u32 = 10;
    pub const RANGE_START: u32 = 11;
    pub const RANGE_SIZE: u32 = 12;
    pub const MAPPED: u32 = 13;
    pub const ALLOWED_HANDLES: u32 = 14;
    pub const ACCESS_FLAGS: u32 = 16;
    pub const POOL: u32 = 17;
}

/// A value of the size that its attribute has.
enum Value {
    Bool(bool),
    Word(u32),
    Long(u64),
}

impl Value {
    fn write(self, to: *mut c_void) {
        // SAFETY: the contract of the C interface: the place has room for a value of the attribute's type.
        unsafe {
            match self {
                Value::Bool(value) => to.cast::<u8>().write(u8::from(value)),
                Value::Word(value) => to.cast::<u32>().write_unaligned(value),
                Value::Long(value) => to.cast::<u64>().write_unaligned(value),
            }
        }
    }
}

/// What an attribute is for an address.
fn attribute_of(driver: &Driver, which: u32, address: u64) -> Result<Value, CuResult> {
    let allocation = driver.at(address);
    let Some(allocation) = allocation else {
        return attribute_of_mapping(driver, which, address);
    };
    let managed = matches!(allocation.kind, Kind::Managed(_));
    Ok(match which {
        attribute::CONTEXT => Value::Long(allocation.context as u64),
        attribute::MEMORY_TYPE => Value::Word(if allocation.on_host() { 1 } else { 2 }),
        attribute::DEVICE_POINTER => Value::Long(address),
        attribute::HOST_POINTER if managed || allocation.on_host() => Value::Long(address),
        attribute::SYNC_MEMOPS => Value::Bool(false),
        attribute::BUFFER_ID => Value::Long(allocation.id),
        attribute::IS_MANAGED => Value::Bool(managed),
        attribute::DEVICE_ORDINAL => Value::Word(driver.ordinal(allocation.gpu) as u32),
        attribute::IS_IPC_CAPABLE => Value::Bool(ipc_capable(&allocation)),
        attribute::RANGE_START => Value::Long(allocation.base),
        attribute::RANGE_SIZE => Value::Long(allocation.size),
        attribute::MAPPED => Value::Bool(true),
        attribute::ALLOWED_HANDLES => Value::Word(0),
        attribute::ACCESS_FLAGS => Value::Word(3),
        attribute::POOL => Value::Long(match allocation.kind {
            Kind::Pool(handle) => handle as u64,
            _ => 0,
        }),
        _ => return Err(CuResult::ERROR_INVALID_VALUE),
    })
}

/// Memory that is mapped by itself has no allocation; only its range tells something.
fn attribute_of_mapping(driver: &Driver, which: u32, address: u64) -> Result<Value, CuResult> {
    let (start, size) = driver
        .virtual_memory
        .reserved_at(address)
        .ok_or(CuResult::ERROR_INVALID_VALUE)?;
    Ok(match which {
        attribute::MEMORY_TYPE => Value::Word(2),
        attribute::DEVICE_POINTER => Value::Long(address),
        attribute::SYNC_MEMOPS | attribute::IS_MANAGED | attribute::IS_IPC_CAPABLE => {
            Value::Bool(false)
        }
        attribute::RANGE_START => Value::Long(start),
        attribute::RANGE_SIZE => Value::Long(size),
        attribute::MAPPED => Value::Bool(driver.virtual_memory.covers(address, 1)),
        attribute::ALLOWED_HANDLES => Value::Word(1),
        _ => return Err(CuResult::ERROR_INVALID_VALUE),
    })
}

fn ipc_capable(allocation: &Allocation) -> bool {
    matches!(allocation.kind, Kind::Own(_) | Kind::Part)
}

pub extern "C" fn pointer_get_attribute(to: *mut c_void, which: u32, address: u64) -> u32 {
    status((|| {
        let driver = driver()?;
        if to.is_null() {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        attribute_of(driver, which, address)?.write(to);
        Ok(())
    })())
}

/// The plural form has an answer for unknown addresses, too: zeroes.
pub extern "C" fn pointer_get_attributes(
    count: u32,
    which: In<u32>,
    to: In<*mut c_void>,
    address: u64,
) -> u32 {
    status((|| {
        let driver = driver()?;
        for index in 0..count as usize {
            let (Some(which), Some(to)) = (which.at(index), to.at(index)) else {
                return Err(CuResult::ERROR_INVALID_VALUE);
            };
            if to.is_null() {
                return Err(CuResult::ERROR_INVALID_VALUE);
            }
            attribute_of(driver, which, address)
                .unwrap_or_else(|_| nothing(which))
                .write(to);
        }
        Ok(())
    })())
}

fn nothing(which: u32) -> Value {
    match which {
        attribute::SYNC_MEMOPS
        | attribute::IS_MANAGED
        | attribute::IS_IPC_CAPABLE
        | attribute::MAPPED => Value::Bool(false),
        attribute::DEVICE_ORDINAL => Value::Word(u32::MAX - 1),
        attribute::MEMORY_TYPE | attribute::ALLOWED_HANDLES | attribute::ACCESS_FLAGS => {
            Value::Word(0)
        }
        _ => Value::Long(0),
    }
}

/// The one attribute that can be set changes when copies return, which is always late enough here.
pub extern "C" fn pointer_set_attribute(_value: *const c_void, which: u32, address: u64) -> u32 {
    status((|| {
        let driver = driver()?;
        let known = driver.at(address).is_some() && which == attribute::SYNC_MEMOPS;
        if known {
            Ok(())
        } else {
            Err(CuResult::ERROR_INVALID_VALUE)
        }
    })())
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ArrayDescriptor {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Array3dDescriptor {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

fn make_array(array: Out<usize>, extent: [usize; 3], format: [u32; 3]) -> Result<(), CuResult> {
    let driver = driver()?;
    let context = driver.current()?;
    let array = array.required()?;
    array.set(driver.make_array(&context, extent, format)?);
    Ok(())
}

pub extern "C" fn array_create(array: Out<usize>, descriptor: In<ArrayDescriptor>) -> u32 {
    let Some(d) = descriptor.get() else {
        return CuResult::ERROR_INVALID_VALUE.0;
    };
    status(make_array(
        array,
        [d.width, d.height, 0],
        [d.format, d.channels, 0],
    ))
}

pub extern "C" fn array_3d_create(array: Out<usize>, descriptor: In<Array3dDescriptor>) -> u32 {
    let Some(d) = descriptor.get() else {
        return CuResult::ERROR_INVALID_VALUE.0;
    };
    status(make_array(
        array,
        [d.width, d.height, d.depth],
        [d.format, d.channels, d.flags],
    ))
}

pub extern "C" fn array_get_descriptor(descriptor: Out<ArrayDescriptor>, array: usize) -> u32 {
    status((|| {
        let array = driver()?.arrays.find(array)?;
        let ([width, height, _], [format, channels, _]) = (array.extent, array.format);
        descriptor.required()?.set(ArrayDescriptor {
            width,
            height,
            format,
            channels,
        });
        Ok(())
    })())
}

pub extern "C" fn array_3d_get_descriptor(descriptor: Out<Array3dDescriptor>, array: usize) -> u32 {
    status((|| {
        let array = driver()?.arrays.find(array)?;
        let ([width, height, depth], [format, channels, flags]) = (array.extent, array.format);
        descriptor.required()?.set(Array3dDescriptor {
            width,
            height,
            depth,
            format,
            channels,
            flags,
        });
        Ok(())
    })())
}

pub extern "C" fn array_destroy(array: usize) -> u32 {
    status(driver().and_then(|driver| driver.end_array(array)))
}
