//! Pointers as the callers of the C interface hand them over.
//!
//! The functions of the API take these types instead of raw pointers, so that every access stands here once. A NULL
//! pointer is an ordinary value: nothing is read from it and nothing is written to it.

use std::ffi::{CStr, c_char};

use cuda::status::CuResult;

/// Where a result goes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Whether the caller gave no place.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The pointer itself, if the function can't do without it.
    pub fn required(self) -> Result<Out<T>, CuResult> {
        if self.0.is_null() {
            Err(CuResult::ERROR_INVALID_VALUE)
        } else {
            Ok(self)
        }
    }

    /// Writes the value, or nothing if the caller gave no place.
    pub fn set(self, value: T) {
        self.set_at(0, value);
    }

    /// Writes element `index` of an array.
    pub fn set_at(self, index: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: the contract of the C interface: a pointer that is not NULL points to room for the results
            // (for arrays: as many as the caller said). `write_unaligned` asks for no more than that.
            unsafe { self.0.add(index).write_unaligned(value) }
        }
    }

    /// Reads what the caller had put there (in-out parameters).
    pub fn get(self) -> Option<T> {
        // SAFETY: as for `set_at`; an in-out parameter is initialised by the caller.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}

/// Something the caller lets the function read.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value; none if the caller gave NULL.
    pub fn get(self) -> Option<T> {
        self.at(0)
    }

    /// Element `index` of an array; none if the caller gave NULL.
    pub fn at(self, index: usize) -> Option<T> {
        // SAFETY: the contract of the C interface: a pointer that is not NULL points to that many values.
        (!self.0.is_null()).then(|| unsafe { self.0.add(index).read_unaligned() })
    }

    /// `count` values; empty if the caller gave NULL.
    pub fn list(self, count: usize) -> Vec<T> {
        (0..count).map_while(|index| self.at(index)).collect()
    }
}

/// A string of the caller.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// The string, or none if the caller gave NULL or something that is not UTF-8.
    pub fn get(self) -> Option<String> {
        self.bytes().and_then(|bytes| String::from_utf8(bytes).ok())
    }

    /// The bytes before the NUL, or none if the caller gave NULL.
    pub fn bytes(self) -> Option<Vec<u8>> {
        // SAFETY: the contract of the C interface: a string that is not NULL ends with a NUL byte.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) }.to_bytes().to_vec())
    }
}

/// Writes `text` and a NUL into the caller's array of `room` bytes, cut to fit.
pub fn write_text(to: Out<c_char>, room: usize, text: &[u8]) {
    let Some(last) = room.checked_sub(1) else {
        return;
    };
    let cut = text.len().min(last);
    for (index, byte) in text[..cut].iter().enumerate() {
        to.set_at(index, c_char::from_ne_bytes([*byte]));
    }
    to.set_at(cut, 0);
}

/// What a function of the driver API returns: the number of the status.
pub fn status(result: Result<(), CuResult>) -> u32 {
    match result {
        Ok(()) => CuResult::SUCCESS.0,
        Err(error) => error.0,
    }
}
