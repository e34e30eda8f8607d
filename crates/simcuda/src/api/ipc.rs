//! Memory shared with another process by a handle that is only bytes.

use cuda::status::CuResult;

use crate::driver::driver;
use crate::ffi::{Out, status};
use crate::memory::Kind;

/// A handle: what the other process needs to duplicate the memory and find the address in it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Handle {
    /// Tells a handle from other bytes.
    magic: u32,
    /// The exporting process's client.
    client: u32,
    /// Its memory object.
    memory: u32,
    /// The process.
    process: u32,
    /// Offset of the allocation in the memory object.
    offset: u64,
    /// Length of the memory object.
    length: u64,
    uuid: [u8; 16],
    reserved: [u64; 2],
}

const MAGIC: u32 = 0x4943_5053;

pub extern "C" fn get_handle(handle: Out<Handle>, address: u64) -> u32 {
    status((|| {
        let driver = driver()?;
        let handle = handle.required()?;
        let allocation = driver.at(address).ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let (memory, offset, length) = driver
            .shareable(allocation.base)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        handle.set(Handle {
            magic: MAGIC,
            client: driver.node.client.root(),
            memory,
            process: std::process::id(),
            offset,
            length,
            uuid: driver.gpu(allocation.gpu)?.uuid,
            reserved: [0; 2],
        });
        Ok(())
    })())
}

pub extern "C" fn open(address: Out<u64>, handle: Handle, _flags: u32) -> u32 {
    status((|| {
        let driver = driver()?;
        let address = address.required()?;
        let context = driver.current()?;
        if handle.magic != MAGIC || handle.offset >= handle.length {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        if handle.process == std::process::id() || driver.gpu(context.gpu)?.uuid != handle.uuid {
            return Err(CuResult::ERROR_INVALID_CONTEXT);
        }
        let base = driver.import(&context, handle.client, handle.memory, handle.length)?;
        address.set(base + handle.offset);
        Ok(())
    })())
}

pub extern "C" fn close(address: u64) -> u32 {
    status((|| {
        let driver = driver()?;
        let allocation = driver.at(address).ok_or(CuResult::ERROR_INVALID_VALUE)?;
        match allocation.kind {
            Kind::Imported(_) => driver.close_imported(allocation.base),
            _ => Err(CuResult::ERROR_INVALID_VALUE),
        }
    })())
}
