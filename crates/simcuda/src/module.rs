//! Modules and their functions: the kernels that are built into the simulated GPU, found by the names in PTX.

use std::ffi::c_void;

use cuda::status::CuResult;
use simgpu::work::{Kernel, Op};

use crate::ptx;

/// A loaded module (or library).
pub struct Module {
    /// Names of its kernels, and the handle of each that this GPU can run.
    pub functions: Vec<(String, Option<usize>)>,
}

/// A kernel.
pub struct Function {
    /// Handle of its module.
    pub module: usize,
    /// Name of the entry.
    pub name: String,
    /// Size of each parameter, bytes.
    pub parameters: &'static [u8],
}

/// What an image is, as far as this GPU can tell.
pub fn names(image: &[u8]) -> Result<Vec<String>, CuResult> {
    let text = std::str::from_utf8(image).map_err(|_| CuResult::ERROR_INVALID_IMAGE)?;
    if ptx::is_ptx(text) {
        Ok(ptx::entries(text))
    } else {
        Err(CuResult::ERROR_INVALID_IMAGE)
    }
}

impl Function {
    /// The work that a launch of this function makes.
    pub fn work(&self, arguments: &[u64]) -> Result<Op, CuResult> {
        Kernel::from_entry(&self.name, arguments)
            .map(Op::Launch)
            .ok_or(CuResult::ERROR_INVALID_VALUE)
    }

    /// Reads the arguments where a launch says they are: pointers to each, or one packed buffer.
    pub fn arguments(
        &self,
        each: *const *const c_void,
        extra: *const *const c_void,
    ) -> Result<Vec<u64>, CuResult> {
        if self.parameters.is_empty() {
            return Ok(Vec::new());
        }
        if !each.is_null() {
            // SAFETY: the contract of the C interface: as many pointers as the kernel has parameters, each to a value
            // of the parameter's size.
            return Ok(unsafe {
                self.parameters
                    .iter()
                    .enumerate()
                    .map(|(index, size)| value(each.add(index).read_unaligned().cast(), *size))
                    .collect()
            });
        }
        let (buffer, length) = packed(extra).ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let mut at = 0_usize;
        let mut arguments = Vec::new();
        for size in self.parameters {
            at = at.next_multiple_of(usize::from(*size));
            if at + usize::from(*size) > length {
                return Err(CuResult::ERROR_INVALID_VALUE);
            }
            // SAFETY: the contract of the C interface: the buffer has `length` bytes, and the value ends before.
            arguments.push(unsafe { value(buffer.add(at), *size) });
            at += usize::from(*size);
        }
        Ok(arguments)
    }
}

/// A value of `size` bytes, zero-extended.
///
/// # Safety
/// `from` points to that many readable bytes.
unsafe fn value(from: *const u8, size: u8) -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: as the caller promises; no kernel has a parameter of more than 8 bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), usize::from(size).min(8)) };
    u64::from_ne_bytes(bytes)
}

/// The buffer in a launch's extra options: a list of keys and values that ends with key 0.
fn packed(extra: *const *const c_void) -> Option<(*const u8, usize)> {
    const BUFFER_POINTER: usize = 1;
    const BUFFER_SIZE: usize = 2;
    if extra.is_null() {
        return None;
    }
    let (mut buffer, mut length) = (std::ptr::null::<u8>(), 0);
    // The interface has two keys, so a list that is longer than both with their end is none.
    for pair in 0..3 {
        // SAFETY: the contract of the C interface: the list goes on until its key 0, where this loop stops.
        let key = unsafe { extra.add(2 * pair).read_unaligned() } as usize;
        if key == 0 {
            break;
        }
        // SAFETY: as above; a key is followed by its value.
        let value = unsafe { extra.add(2 * pair + 1).read_unaligned() };
        match key {
            BUFFER_POINTER => buffer = value.cast(),
            // SAFETY: the value of this key points to the buffer's size.
            BUFFER_SIZE => length = unsafe { value.cast::<usize>().read_unaligned() },
            _ => return None,
        }
    }
    (!buffer.is_null()).then_some((buffer, length))
}
