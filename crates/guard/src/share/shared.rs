//! Memory of several processes: a file that each of them maps, and words to sleep on.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// What can lie in such memory.
///
/// # Safety
/// The type is `repr(C)`, any bytes are a value of it, and it is changed through atomics only.
pub unsafe trait Shareable: Sync {}

/// A mapping of a file that holds a `T`. A new file is all zero.
#[derive(Debug)]
pub struct Shared<T: Shareable> {
    at: NonNull<T>,
    owns: PhantomData<T>,
}

// SAFETY: the mapping is valid in every thread, and `Shareable` is `Sync`.
unsafe impl<T: Shareable> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Shareable> Sync for Shared<T> {}

impl<T: Shareable> Shared<T> {
    /// Maps the file, which is made as large as a `T` if it is smaller. Nobody may shrink it.
    ///
    /// # Errors
    /// As ftruncate(2) and mmap(2).
    pub fn map(file: &File) -> io::Result<Shared<T>> {
        let size = size_of::<T>();
        if file.metadata()?.len() < size as u64 {
            file.set_len(size as u64)?;
        }
        // SAFETY: a new mapping of a file of ours, at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Shared {
            at,
            owns: PhantomData,
        })
    }
}

impl<T: Shareable> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: page-aligned, as large as a `T`, mapped until drop; any bytes are a `T` that atomics alone change.
        unsafe { self.at.as_ref() }
    }
}

impl<T: Shareable> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and whoever borrowed from it is gone.
        unsafe { libc::munmap(self.at.as_ptr().cast(), size_of::<T>()) };
    }
}

/// Sleeps while the word has this value, for a time at most, and not if it has changed already. It may wake early.
pub fn sleep_on(word: &AtomicU32, value: u32, at_most: Option<Duration>) {
    let time = at_most.map(|t| libc::timespec {
        tv_sec: t.as_secs() as libc::time_t,
        tv_nsec: t.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word and the time are live for the call. Any result means: look again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            time,
        )
    };
}

/// Wakes everybody who sleeps on the word, in any process.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the word is live for the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Microseconds of the monotonic clock, the same in all processes.
pub fn now_us() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a live timespec; the clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
