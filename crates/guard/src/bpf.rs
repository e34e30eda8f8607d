//! bpf(2): the few commands that the device wall needs, and the instructions that its programs are made of.
//!
//! Numbers and layouts are those of linux/bpf.h and of the instruction set that the kernel documents.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const MAP_GET_NEXT_KEY: libc::c_int = 4;
const PROG_LOAD: libc::c_int = 5;
const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const LINK_CREATE: libc::c_int = 28;

const MAP_TYPE_HASH: u32 = 1;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const PROG_TYPE_TRACING: u32 = 26;
/// `BPF_CGROUP_DEVICE` of `enum bpf_attach_type`.
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// `BPF_MODIFY_RETURN`.
const ATTACH_MODIFY_RETURN: u32 = 26;

/// One instruction: operation, destination and source register, jump distance, immediate value.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// Class, width or operation, and source.
    pub code: u8,
    /// Destination register in the low half, source register in the high half.
    pub registers: u8,
    /// Jump distance in instructions, or displacement of a memory access.
    pub offset: i16,
    /// Immediate value.
    pub immediate: i32,
}

/// An instruction.
pub const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers: to | from << 4,
        offset,
        immediate,
    }
}

/// The argument of one bpf(2) command: `union bpf_attr`, as much of it as is used here.
struct Attributes([u8; 128]);

impl Attributes {
    fn new() -> Attributes {
        Attributes([0; 128])
    }

    fn u32(mut self, at: usize, value: u32) -> Attributes {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, at: usize, fd: RawFd) -> Attributes {
        self.u32(at, fd as u32)
    }

    fn pointer<T>(mut self, at: usize, to: *const T) -> Attributes {
        self.0[at..at + 8].copy_from_slice(&(to as u64).to_ne_bytes());
        self
    }

    /// At most fifteen bytes are a name.
    fn name(mut self, at: usize, name: &str) -> Attributes {
        let bytes = &name.as_bytes()[..name.len().min(15)];
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn call(&self, command: libc::c_int) -> io::Result<i32> {
        // SAFETY: the block is as long as is said, and every caller in this module keeps what its pointers name alive
        // and, where the kernel writes, writable over the call.
        let rc = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_ptr(), self.0.len()) };
        if rc < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(rc as i32)
        }
    }

    fn open(&self, command: libc::c_int) -> io::Result<OwnedFd> {
        let fd = self.call(command)?;
        // SAFETY: the commands that are called through here return a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// A new hash map with keys and values of these sizes in bytes.
///
/// # Errors
/// As bpf(2); `EPERM`: without CAP_BPF.
pub fn new_map(name: &str, key: u32, value: u32, most: u32) -> io::Result<OwnedFd> {
    Attributes::new()
        .u32(0, MAP_TYPE_HASH)
        .u32(4, key)
        .u32(8, value)
        .u32(12, most)
        .name(28, name)
        .open(MAP_CREATE)
}

/// A map whose keys are integers of `N` bytes and whose values are four bytes that say nothing: a set.
#[derive(Debug)]
pub struct Set<const N: usize>(pub OwnedFd);

impl<const N: usize> Set<N> {
    /// A new set.
    ///
    /// # Errors
    /// As [`new_map`].
    pub fn new(name: &str, most: u32) -> io::Result<Set<N>> {
        new_map(name, N as u32, 4, most).map(Set)
    }

    /// Puts a key in.
    ///
    /// # Errors
    /// As bpf(2); `E2BIG`: it is full.
    pub fn insert(&self, key: [u8; N]) -> io::Result<()> {
        let value = [1u8, 0, 0, 0];
        Attributes::new()
            .fd(0, self.0.as_raw_fd())
            .pointer(8, key.as_ptr())
            .pointer(16, value.as_ptr())
            .call(MAP_UPDATE_ELEM)
            .map(drop)
    }

    /// Takes a key out; one that is not there is no error.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn remove(&self, key: [u8; N]) -> io::Result<()> {
        let attributes = Attributes::new()
            .fd(0, self.0.as_raw_fd())
            .pointer(8, key.as_ptr());
        match attributes.call(MAP_DELETE_ELEM) {
            Err(e) if e.raw_os_error() != Some(libc::ENOENT) => Err(e),
            _ => Ok(()),
        }
    }

    /// All keys.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn keys(&self) -> io::Result<Vec<[u8; N]>> {
        let mut keys: Vec<[u8; N]> = Vec::new();
        loop {
            let mut next = [0u8; N];
            let after = keys.last().map_or(std::ptr::null(), |k| k.as_ptr());
            let attributes = Attributes::new()
                .fd(0, self.0.as_raw_fd())
                .pointer(8, after)
                .pointer(16, next.as_mut_ptr());
            match attributes.call(MAP_GET_NEXT_KEY) {
                Ok(_) => keys.push(next),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(keys),
                Err(e) => return Err(e),
            }
        }
    }
}

/// What a program is for.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Whether a device may be opened (`BPF_PROG_TYPE_CGROUP_DEVICE`).
    Device,
    /// Asked before a function of the kernel with this number in BTF; what it returns but 0 is the function's result
    /// (`BPF_PROG_TYPE_TRACING` with `BPF_MODIFY_RETURN`).
    Before(u32),
}

/// Has the kernel check and take a program.
///
/// # Errors
/// One line, with the last line of what the kernel's verifier said.
pub fn load(kind: Kind, name: &str, code: &[Instruction]) -> io::Result<OwnedFd> {
    // Only programs that call functions reserved for such must be under the GPL; these call none.
    const LICENSE: &std::ffi::CStr = c"Apache-2.0";
    let (program_type, attach_type, function) = match kind {
        Kind::Device => (PROG_TYPE_CGROUP_DEVICE, ATTACH_CGROUP_DEVICE, 0),
        Kind::Before(function) => (PROG_TYPE_TRACING, ATTACH_MODIFY_RETURN, function),
    };
    let attempt = |log: &mut [u8]| {
        let attributes = Attributes::new()
            .u32(0, program_type)
            .u32(4, code.len() as u32)
            .pointer(8, code.as_ptr())
            .pointer(16, LICENSE.as_ptr())
            .name(48, name)
            .u32(68, attach_type)
            .u32(108, function);
        let attributes = if log.is_empty() {
            attributes
        } else {
            attributes
                .u32(24, 1)
                .u32(28, log.len() as u32)
                .pointer(32, log.as_mut_ptr())
        };
        attributes.open(PROG_LOAD)
    };
    attempt(&mut []).or_else(|_| {
        let mut log = vec![0u8; 64 << 10];
        attempt(&mut log).map_err(|e| {
            let text = String::from_utf8_lossy(&log);
            let said = text.trim_end_matches('\0').trim_end();
            let last = said.lines().last().unwrap_or("no reason given");
            io::Error::new(
                e.kind(),
                format!("bpf(2) refuses the program: {e} ({last})"),
            )
        })
    })
}

/// Puts a program of [`Kind::Before`] in force, for as long as the link is open or pinned.
///
/// # Errors
/// As bpf(2).
pub fn link_to_function(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // Without a name: the function was named when the program was loaded.
    Attributes::new()
        .fd(8, program.as_raw_fd())
        .open(RAW_TRACEPOINT_OPEN)
}

/// Puts a device program in force for a cgroup and all below it, for as long as the link is open or pinned.
///
/// # Errors
/// As bpf(2).
pub fn link_to_cgroup(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Attributes::new()
        .fd(0, program.as_raw_fd())
        .fd(4, cgroup.as_raw_fd())
        .u32(8, ATTACH_CGROUP_DEVICE)
        .open(LINK_CREATE)
}

/// Gives a map or link a name in a BPF file system, under which it lives on without us.
///
/// # Errors
/// As bpf(2).
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    Attributes::new()
        .pointer(0, path.as_ptr())
        .fd(8, object.as_raw_fd())
        .call(OBJ_PIN)
        .map(drop)
}

/// Opens what was pinned.
///
/// # Errors
/// As bpf(2).
pub fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    Attributes::new().pointer(0, path.as_ptr()).open(OBJ_GET)
}
