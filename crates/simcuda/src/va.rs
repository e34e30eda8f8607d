//! Address ranges for device memory. They are reserved in the process, as the real library does, so that no host
//! mapping and no other allocation can have the same address.

use cuda::status::CuResult;

/// Device memory is mapped in pages of this size.
pub const PAGE: u64 = 2 << 20;

/// `size` rounded up to a multiple of `unit`; none if that does not fit.
pub fn round_up(size: u64, unit: u64) -> Option<u64> {
    size.div_ceil(unit).checked_mul(unit)
}

/// A reserved range; given back when dropped.
#[derive(Debug)]
pub struct Range {
    base: u64,
    length: u64,
}

impl Range {
    /// Reserves `length` bytes, their start a multiple of `alignment` (a power of two, at least a page).
    pub fn reserve(length: u64, alignment: u64) -> Result<Range, CuResult> {
        Range::map(length, alignment, libc::PROT_NONE, libc::MAP_NORESERVE)
    }

    /// The same with memory behind it that the program can read and write.
    pub fn host_memory(length: u64, alignment: u64) -> Result<Range, CuResult> {
        Range::map(length, alignment, libc::PROT_READ | libc::PROT_WRITE, 0)
    }

    fn map(length: u64, alignment: u64, protection: i32, flags: i32) -> Result<Range, CuResult> {
        let length = round_up(length.max(1), 4096).ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        let span = length
            .checked_add(alignment)
            .ok_or(CuResult::ERROR_OUT_OF_MEMORY)?;
        let span_bytes = usize::try_from(span).map_err(|_| CuResult::ERROR_OUT_OF_MEMORY)?;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                span_bytes,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(CuResult::ERROR_OUT_OF_MEMORY);
        }
        let start = start as u64;
        let base = start.next_multiple_of(alignment);
        unmap(start, base - start);
        unmap(base + length, start + span - (base + length));
        Ok(Range { base, length })
    }

    /// First address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        unmap(self.base, self.length);
    }
}

fn unmap(base: u64, length: u64) {
    if length > 0 {
        // SAFETY: only called with parts of a mapping that `Range::map` made and that nobody uses any more.
        unsafe { libc::munmap(base as *mut libc::c_void, length as usize) };
    }
}
