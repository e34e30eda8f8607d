//! Mappings asked one by one of an open `/proc/PID/maps` (`PROCMAP_QUERY`, since Linux 6.11): the text has a line for each of
//! a program's hundreds, and the kernel writes all of them.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use crate::sys;

/// `_IOWR('f', 17, struct procmap_query)`, whose fields here are size@0 flags@8 address@16 start@24 end@32 inode@64
/// major@72 minor@76 name size@80 name@88, in 104 bytes.
const PROCMAP_QUERY: u32 = 0xc068_6611;
const SIZE: usize = 104;
/// The mapping at the address, or the next behind it.
const COVERING_OR_NEXT: u64 = 0x10;
/// Of a file, and shared whatever mprotect(2) has made of it since.
const SHARED_FILE: u64 = 0x20 | 0x08;
/// The longest name that the kernel gives this way.
const LONGEST_NAME: usize = 4096;

/// One mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// The address behind its last.
    pub end: u64,
    /// As in the text: `major:minor`, hexadecimal.
    pub device: String,
    /// Inode of its file.
    pub inode: u64,
    /// Its path, or what stands there instead.
    pub path: String,
}

/// The mapping at an address, or the first behind it; `shared_files`: those alone count. `None`: there is none.
///
/// # Errors
/// `ESRCH`: nobody uses the address space any more. `ENOTTY`: an older kernel. `ENAMETOOLONG`, and others: it cannot be told.
pub fn at_or_behind(maps: &File, address: u64, shared_files: bool) -> io::Result<Option<Mapping>> {
    let mut name = [0u8; LONGEST_NAME];
    let mut query = [0u8; SIZE];
    let mut put = |at: usize, value: u64| query[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(0, SIZE as u64);
    put(
        8,
        COVERING_OR_NEXT | if shared_files { SHARED_FILE } else { 0 },
    );
    put(16, address);
    put(80, LONGEST_NAME as u64);
    put(88, name.as_mut_ptr() as u64);
    match sys::ioctl(maps.as_fd(), PROCMAP_QUERY, &mut query) {
        Ok(_) => {}
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(e) => return Err(e),
    }
    let half = |at: usize| -> u32 { u32::from_le_bytes(std::array::from_fn(|i| query[at + i])) };
    let whole = |at: usize| -> u64 { u64::from_le_bytes(std::array::from_fn(|i| query[at + i])) };
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(Some(Mapping {
        start: whole(24),
        end: whole(32),
        device: format!("{:02x}:{:02x}", half(72), half(76)),
        inode: whole(64),
        path: name.to_string_lossy().into_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Where the kernel lacks it, there is nothing to compare.
    #[test]
    fn a_query_says_what_the_text_says() {
        let file = std::env::current_exe().unwrap();
        let shared = File::open(&file).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            use std::os::fd::AsRawFd;
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                shared.as_raw_fd(),
                0,
            )
        } as u64;
        // SAFETY: the page was mapped above and is used by nobody.
        let hidden = unsafe { libc::mprotect(at as *mut libc::c_void, 4096, libc::PROT_NONE) };
        assert_eq!(hidden, 0);
        let maps = File::open("/proc/self/maps").unwrap();
        let all = match at_or_behind(&maps, at, false) {
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => return,
            all => all.unwrap().unwrap(),
        };
        assert_eq!(at_or_behind(&maps, at, true).unwrap(), Some(all.clone()));
        assert_eq!((all.start, all.end), (at, at + 4096));
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = text
            .lines()
            .find(|l| l.starts_with(&format!("{at:x}-")))
            .unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1], "---s");
        assert_eq!(
            (words[3], words[4], words[5]),
            (
                all.device.as_str(),
                all.inode.to_string().as_str(),
                file.to_str().unwrap()
            )
        );
        // What is not shared is passed over, and behind the last there is nothing.
        let code = a_query_says_what_the_text_says as *const () as u64;
        let next = at_or_behind(&maps, code, true).unwrap();
        assert!(next.is_none_or(|m| m.start > code));
        assert_eq!(at_or_behind(&maps, u64::MAX - 4095, false).unwrap(), None);
    }
}
