//! Starting up, versions, error texts, finding functions.

use std::ffi::{c_char, c_void};

use cuda::driver::{Absent, Flags, VERSION};
use cuda::status::CuResult;

use crate::driver;
use crate::exports;
use crate::ffi::{Out, Text, status};

pub extern "C" fn init(flags: u32) -> u32 {
    status(driver::initialise(flags))
}

pub extern "C" fn driver_get_version(version: Out<i32>) -> u32 {
    status(
        version
            .required()
            .map(|version| version.set(VERSION as i32)),
    )
}

pub extern "C" fn get_error_name(error: u32, text: Out<*const c_char>) -> u32 {
    text_of(text, CuResult(error).name())
}

pub extern "C" fn get_error_string(error: u32, text: Out<*const c_char>) -> u32 {
    text_of(text, CuResult(error).text())
}

fn text_of(to: Out<*const c_char>, text: Option<&'static std::ffi::CStr>) -> u32 {
    to.set(text.map_or(std::ptr::null(), std::ffi::CStr::as_ptr));
    if to.is_null() || text.is_none() {
        CuResult::ERROR_INVALID_VALUE.0
    } else {
        CuResult::SUCCESS.0
    }
}

/// The form of CUDA 11.3: no word on why nothing was found.
pub extern "C" fn get_proc_address(
    symbol: Text,
    function: Out<*const c_void>,
    version: i32,
    flags: u64,
) -> u32 {
    status(
        look_up(symbol, function, version, flags).and_then(|found| match found {
            Found::Yes => Ok(()),
            Found::Unknown | Found::TooOld => Err(CuResult::ERROR_NOT_FOUND),
        }),
    )
}

/// The form of CUDA 12: the search's result is a value of its own, if the caller has a place for it.
pub extern "C" fn get_proc_address_v2(
    symbol: Text,
    function: Out<*const c_void>,
    version: i32,
    flags: u64,
    result: Out<u32>,
) -> u32 {
    status(look_up(symbol, function, version, flags).and_then(|found| {
        result.set(found as u32);
        if result.is_null() && !matches!(found, Found::Yes) {
            Err(CuResult::ERROR_NOT_FOUND)
        } else {
            Ok(())
        }
    }))
}

/// `CUdriverProcAddressQueryResult`.
#[derive(Clone, Copy)]
enum Found {
    Yes = 0,
    Unknown = 1,
    TooOld = 2,
}

fn look_up(
    symbol: Text,
    function: Out<*const c_void>,
    version: i32,
    flags: u64,
) -> Result<Found, CuResult> {
    let function = function.required()?;
    let name = symbol.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
    let version = u32::try_from(version).map_err(|_| CuResult::ERROR_INVALID_VALUE)?;
    if flags & !3 != 0 {
        return Err(CuResult::ERROR_INVALID_VALUE);
    }
    let found = cuda::find(&name, version, Flags(flags));
    function.set(
        found
            .ok()
            .and_then(exports::address)
            .unwrap_or(std::ptr::null()),
    );
    Ok(match found {
        Ok(_) => Found::Yes,
        Err(Absent::Unknown) => Found::Unknown,
        Err(Absent::TooOld) => Found::TooOld,
    })
}

/// The real library's tables for its own runtime are not documented, and none is here.
pub extern "C" fn get_export_table(table: Out<*const c_void>, _id: *const c_void) -> u32 {
    table.set(std::ptr::null());
    CuResult::ERROR_NOT_FOUND.0
}

/// Profiling on and off: nothing to do.
pub extern "C" fn profiler() -> u32 {
    status(driver::driver().map(|_| ()))
}
