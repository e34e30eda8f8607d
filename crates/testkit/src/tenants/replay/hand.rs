//! A process that makes the calls it is told, at addresses that it shares with whoever tells it.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::raw::{Fault, Node};
use crate::tenants::shapes::{close_here, forked, receive_descriptor, send_descriptor, wait_for};

/// Memory that parent and children have at one address.
pub struct Shared {
    at: u64,
    length: usize,
    used: usize,
}

impl Shared {
    /// Makes it; pages that nobody touches take no memory.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn new(length: usize) -> io::Result<Shared> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Shared {
            at: at as u64,
            length,
            used: 0,
        })
    }

    /// Where it lies.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// All of it is free again.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// A piece of zeroes; its address.
    ///
    /// # Errors
    /// `ENOMEM`: there is not so much left.
    pub fn piece(&mut self, length: usize) -> io::Result<u64> {
        // Drivers of other branches may read a little further.
        let taken = (length + 64).next_multiple_of(64);
        if taken > self.length - self.used {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let at = self.at + self.used as u64;
        self.used += taken;
        // SAFETY: the piece lies inside the mapping, and no reference into it exists; the children touch it only while
        // they make a call, for which this process waits.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0, taken) };
        Ok(at)
    }

    fn check(&self, at: u64, length: usize) {
        let from = at.wrapping_sub(self.at);
        assert!(from < self.length as u64 && from + length as u64 <= self.length as u64);
    }

    /// Writes bytes at an address inside.
    ///
    /// # Panics
    /// It is not inside.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: inside the mapping, as checked just now; see `piece` for who else touches it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    }

    /// Reads eight bytes at an address inside.
    ///
    /// # Panics
    /// It is not inside.
    pub fn quad(&self, at: u64) -> u64 {
        self.check(at, 8);
        // SAFETY: inside the mapping, as checked just now; see `piece` for who else touches it.
        unsafe { (at as *const u64).read_unaligned() }
    }

    /// Reads four bytes at an address inside.
    ///
    /// # Panics
    /// It is not inside.
    pub fn word(&self, at: u64) -> u32 {
        self.check(at, 4);
        // SAFETY: inside the mapping, as checked just now; see `piece` for who else touches it.
        unsafe { (at as *const u32).read_unaligned() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody was given a reference into it.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.length) };
    }
}

const IOCTL: u64 = 0;
const MAP: u64 = 1;
const TAKE: u64 = 2;
const CLOSE: u64 = 3;
const UNMAP: u64 = 4;

/// A process made by fork. It ends when this is dropped.
pub struct Hand {
    /// Its process.
    pub pid: libc::pid_t,
    /// `None` once it was told to end.
    socket: Option<UnixStream>,
    /// Descriptor numbers of the stream's files there.
    pub numbers: HashMap<u32, RawFd>,
}

impl Hand {
    /// Starts one. Those that were started before are none of its business.
    ///
    /// # Errors
    /// As fork(2).
    pub fn start(node: &Node, before: &[Hand]) -> io::Result<Hand> {
        let (ours, theirs) = UnixStream::pair()?;
        let pid = forked(|| {
            close_here(&ours);
            before.iter().flat_map(|h| &h.socket).for_each(close_here);
            serve(node, &theirs);
            0
        })?;
        Ok(Hand {
            pid,
            socket: Some(ours),
            numbers: HashMap::new(),
        })
    }

    fn ask(&self, words: [u64; 4], file: Option<BorrowedFd<'_>>) -> io::Result<i64> {
        let Some(mut socket) = self.socket.as_ref() else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        socket.write_all(&bytes)?;
        if let Some(file) = file {
            send_descriptor(socket.as_raw_fd(), file.as_raw_fd())?;
        }
        let mut answer = [0; 8];
        socket.read_exact(&mut answer)?;
        let answer = i64::from_le_bytes(answer);
        if answer < 0 {
            return Err(io::Error::from_raw_os_error(-answer as i32));
        }
        Ok(answer)
    }

    /// Makes an ioctl with a block at an address.
    ///
    /// # Errors
    /// As ioctl(2).
    pub fn ioctl(&self, number: RawFd, request: u32, block: u64) -> io::Result<i64> {
        self.ask([IOCTL, number as u64, request.into(), block], None)
    }

    /// Maps a file where its offset is its address, in the place of what is there.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn map(&self, number: RawFd, address: u64, length: u64) -> io::Result<i64> {
        self.ask([MAP, number as u64, address, length], None)
    }

    /// Unmaps what was mapped at an address.
    ///
    /// # Errors
    /// As munmap(2).
    pub fn unmap(&self, address: u64, length: u64) -> io::Result<()> {
        self.ask([UNMAP, 0, address, length], None).map(|_| ())
    }

    /// Has it hold a file; its number there.
    ///
    /// # Errors
    /// As recvmsg(2).
    pub fn take(&self, file: BorrowedFd<'_>) -> io::Result<RawFd> {
        Ok(self.ask([TAKE, 0, 0, 0], Some(file))? as RawFd)
    }

    /// Has it close a number.
    ///
    /// # Errors
    /// The process is gone.
    pub fn close(&self, number: RawFd) -> io::Result<()> {
        self.ask([CLOSE, number as u64, 0, 0], None).map(|_| ())
    }

    /// Has it end, and waits for that.
    pub fn end(&mut self) {
        if self.socket.take().is_some() {
            wait_for(self.pid);
        }
        self.numbers.clear();
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.end();
    }
}

/// The process: makes calls until nobody tells it any more.
fn serve(node: &Node, mut socket: &UnixStream) {
    let mut bytes = [0; 32];
    while socket.read_exact(&mut bytes).is_ok() {
        let word = |i: usize| {
            let bytes = bytes[8 * i..8 * i + 8].try_into();
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        let answer = match act(node, socket, [0, 1, 2, 3].map(word)) {
            Ok(value) => value,
            Err(Fault::Os(number)) => -i64::from(number),
            Err(Fault::Status(_)) => -i64::from(libc::EIO),
        };
        if socket.write_all(&answer.to_le_bytes()).is_err() {
            return;
        }
    }
}

fn act(node: &Node, socket: &UnixStream, [what, a, b, c]: [u64; 4]) -> Result<i64, Fault> {
    let number = a as RawFd;
    match what {
        IOCTL => {
            // SAFETY: the number is one that this process was sent and has not closed.
            let file = unsafe { BorrowedFd::borrow_raw(number) };
            Ok(node.ioctl_at(file, b as u32, c)?.into())
        }
        MAP => {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
            unmap(b, c)?;
            // SAFETY: only mappings that were made here for the same purpose lie at the addresses of a stream, far from
            // everything else, and nobody was given a reference into them.
            let at = unsafe {
                libc::mmap(
                    b as *mut libc::c_void,
                    c as usize,
                    protection,
                    flags,
                    number,
                    b as i64,
                )
            };
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error().into());
            }
            Ok(0)
        }
        UNMAP => Ok(unmap(b, c).map(|()| 0)?),
        TAKE => {
            use std::os::fd::IntoRawFd;
            Ok(receive_descriptor(socket.as_raw_fd())?.into_raw_fd().into())
        }
        _ => {
            // SAFETY: a number that this process was sent; whoever tells it does not name it again.
            unsafe { libc::close(number) };
            Ok(0)
        }
    }
}

fn unmap(address: u64, length: u64) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    // SAFETY: only mappings that were made here for a stream lie at its addresses, far from everything else, and nobody was
    // given a reference into them.
    match unsafe { libc::munmap(address as *mut libc::c_void, length as usize) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
