//! Sockets of a folder that keep message boundaries (unix(7), `SOCK_SEQPACKET`), and who is at their other end.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use crate::sys::{self, Beside, Tid};

/// Who connected, as the kernel noted it then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its process; zero: one that cannot be seen from here.
    pub pid: Tid,
    /// Its effective user.
    pub uid: u32,
}

/// Connections that wait to be taken.
const BACKLOG: i32 = 16;

/// A name in a folder, however long the folder's own name is: the address of a socket has room for 107 bytes.
struct Address {
    address: libc::sockaddr_un,
    _folder: File,
}

impl Address {
    fn of(folder: &Path, name: &str) -> io::Result<Address> {
        let folder = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(folder)?;
        let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
        // SAFETY: all zeroes is a valid `sockaddr_un`.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        if path.len() >= address.sun_path.len() {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (to, byte) in address.sun_path.iter_mut().zip(path.bytes()) {
            *to = byte as libc::c_char;
        }
        Ok(Address {
            address,
            _folder: folder,
        })
    }

    fn raw(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        let size = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        ((&raw const self.address).cast(), size)
    }
}

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

fn socket(flags: i32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    // SAFETY: the call takes integers and returns a new descriptor or -1.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Listens under this name in a folder, to everybody who can reach the folder. What was there is replaced.
///
/// # Errors
/// As bind(2) and listen(2).
pub fn listen(folder: &Path, name: &str) -> io::Result<OwnedFd> {
    match fs::remove_file(folder.join(name)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let (socket, address) = (socket(libc::SOCK_NONBLOCK)?, Address::of(folder, name)?);
    let (at, size) = address.raw();
    // SAFETY: the address is live and as large as is said.
    check(unsafe { libc::bind(socket.as_raw_fd(), at, size) })?;
    fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o666))?;
    // SAFETY: integers only.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

/// Connects to a name in a folder; neither this nor any message takes longer than `patience`.
///
/// # Errors
/// As connect(2).
pub fn connect(folder: &Path, name: &str, patience: Duration) -> io::Result<OwnedFd> {
    let (socket, address) = (socket(0)?, Address::of(folder, name)?);
    let time = libc::timeval {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_usec: patience.subsec_micros().into(),
    };
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        set_option(&socket, option, &time)?;
    }
    let (at, size) = address.raw();
    // SAFETY: the address is live and as large as is said.
    check(unsafe { libc::connect(socket.as_raw_fd(), at, size) })?;
    Ok(socket)
}

fn set_option<T>(socket: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    let value = (&raw const *value).cast();
    // SAFETY: the value is live and as large as is said; the kernel copies it.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, size) };
    check(rc).map(drop)
}

/// A connection that waits to be taken, and who made it. Its messages say who sent them.
///
/// # Errors
/// As accept(2); `WouldBlock`: nobody waits.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, Peer)> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for; the call returns a new descriptor or -1.
    let fd = check(unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            flags,
        )
    })?;
    // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    set_option(&socket, libc::SO_PASSCRED, &1i32)?;
    // SAFETY: all zeroes is a valid `ucred`.
    let mut who: libc::ucred = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `who` is live, writable and as large as `size` says.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &mut size,
        )
    })?;
    let (pid, uid) = (who.pid, who.uid);
    Ok((socket, Peer { pid, uid }))
}

/// A message that has come, and which process sent it; nothing is waited for. Descriptors that come with it are not
/// taken.
///
/// # Errors
/// As recvmsg(2); `WouldBlock`: none has come.
pub fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<(usize, Option<Tid>)> {
    let (n, beside) = sys::receive_with(socket, into, libc::MSG_DONTWAIT)?;
    let sender = match beside {
        Some(Beside::Sender(pid)) => Some(pid),
        Some(Beside::Descriptor(_)) | None => None,
    };
    Ok((n, sender))
}

/// Sends a message to whoever reads; nobody is waited for.
///
/// # Errors
/// As send(2); `WouldBlock`: what was sent before has not been read.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the buffer is live and as long as is said.
    let n = unsafe {
        libc::send(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            flags,
        )
    };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn messages_tell_who_sent_them_and_carry_no_descriptor() {
        let folder = std::env::temp_dir().join(format!(
            "gpuslice-seqpacket-{}-{}",
            std::process::id(),
            // Longer than an address has room for.
            "x".repeat(120)
        ));
        fs::create_dir(&folder).unwrap();
        let listener = listen(&folder, "a.sock").unwrap();
        // Again: whoever listened there before has died.
        drop(listener);
        let listener = listen(&folder, "a.sock").unwrap();
        let refused = accept(listener.as_fd()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let client = connect(&folder, "a.sock", Duration::from_secs(5)).unwrap();
        let (server, peer) = accept(listener.as_fd()).unwrap();
        let me = std::process::id() as Tid;
        // SAFETY: the call takes nothing and cannot fail.
        let uid = unsafe { libc::geteuid() };
        assert_eq!(peer, Peer { pid: me, uid });
        let mut text = [0u8; 16];
        let none = receive(server.as_fd(), &mut text).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        let before = fs::read_dir("/proc/self/fd").unwrap().count();
        sys::send_message(client.as_fd(), b"hello", Some(client.as_fd())).unwrap();
        let received = receive(server.as_fd(), &mut text).unwrap();
        assert_eq!((received, &text[..5]), ((5, Some(me)), &b"hello"[..]));
        let after = fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(after <= before, "a descriptor came along");
        drop(client);
        assert_eq!(receive(server.as_fd(), &mut text).unwrap().0, 0);
        fs::remove_dir_all(&folder).unwrap();
    }
}
