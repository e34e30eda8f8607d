//! Frames and descriptors over a stream socket.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::proto::MAX_FRAME;

/// Descriptors that one `recvmsg` takes; the kernel closes what does not fit.
const MAX_DESCRIPTORS: usize = 4;

/// Room for the control message of [`MAX_DESCRIPTORS`] descriptors, aligned as `cmsghdr` asks.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends a whole frame (length in front); the descriptor rides with its first byte.
pub fn send(
    stream: &UnixStream,
    frame: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    if frame.len() > MAX_FRAME + 4 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "frame too long",
        ));
    }
    let mut sent = 0;
    while sent < frame.len() {
        match send_part(stream, &frame[sent..], descriptor.filter(|_| sent == 0)) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn send_part(
    stream: &UnixStream,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<usize> {
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = Control([0; 64]);
    // SAFETY: all-zero is a valid `msghdr`: null pointers and zero lengths.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute; CMSG_FIRSTHDR points into `control`, which is aligned for
        // `cmsghdr` and larger than CMSG_SPACE(4), so header and data writes stay inside it.
        unsafe {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as _;
            libc::CMSG_DATA(header)
                .cast::<libc::c_int>()
                .write_unaligned(descriptor.as_raw_fd());
        }
    }
    // SAFETY: `message` points at `part`, `bytes` and `control`, all alive; the kernel only reads through it.
    let count =
        unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Receives frames.
#[derive(Default)]
pub struct Receiver {
    bytes: Vec<u8>,
    start: usize,
    descriptors: VecDeque<OwnedFd>,
}

impl Receiver {
    /// The next frame (without its length) and the descriptor that came with it.
    ///
    /// The two sides take turns, so whatever arrives until the frame is whole belongs to it; descriptors beyond the
    /// first are closed.
    pub fn receive(&mut self, stream: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        loop {
            if let Some(head) = self.bytes[self.start..].first_chunk::<4>() {
                let length = u32::from_le_bytes(*head) as usize;
                if length > MAX_FRAME {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "frame too long"));
                }
                let from = self.start + 4;
                if let Some(frame) = self.bytes.get(from..from + length) {
                    let frame = frame.to_vec();
                    self.start = from + length;
                    if self.start == self.bytes.len() {
                        self.bytes.clear();
                        self.start = 0;
                    }
                    let descriptor = self.descriptors.pop_front();
                    self.descriptors.clear();
                    return Ok((frame, descriptor));
                }
            }
            self.bytes.drain(..self.start);
            self.start = 0;
            self.fill(stream)?;
        }
    }

    fn fill(&mut self, stream: &UnixStream) -> io::Result<()> {
        let mut buffer = [0_u8; 16384];
        let mut control = Control([0; 64]);
        let mut part = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        // SAFETY: all-zero is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        // SAFETY: CMSG_SPACE only computes; its result for four descriptors (32) is less than `control`'s 64 bytes.
        message.msg_controllen =
            unsafe { libc::CMSG_SPACE((MAX_DESCRIPTORS * size_of::<libc::c_int>()) as u32) } as _;
        let count = loop {
            // SAFETY: `message` points at `buffer` and `control`, both alive and of the lengths given.
            let count = unsafe {
                libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC)
            };
            match usize::try_from(count) {
                Ok(count) => break count,
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        };
        // SAFETY: the kernel filled `control` with well-formed headers up to msg_controllen; the CMSG macros stay
        // inside it. Every number in an SCM_RIGHTS message is a new descriptor of this process that nobody else owns.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&raw const message);
            while !header.is_null() {
                if (*header).cmsg_level == libc::SOL_SOCKET
                    && (*header).cmsg_type == libc::SCM_RIGHTS
                {
                    let length = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let numbers = libc::CMSG_DATA(header).cast::<libc::c_int>();
                    for at in 0..length / size_of::<libc::c_int>() {
                        self.descriptors
                            .push_back(OwnedFd::from_raw_fd(numbers.add(at).read_unaligned()));
                    }
                }
                header = libc::CMSG_NXTHDR(&raw const message, header);
            }
        }
        if count == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the other side closed the connection",
            ));
        }
        self.bytes.extend_from_slice(&buffer[..count]);
        Ok(())
    }
}

/// Device and inode of a descriptor's file.
pub fn file_id(descriptor: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat writes a whole `stat` to the pointer when it returns 0.
    let status = unsafe {
        if libc::fstat(descriptor.as_raw_fd(), status.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        status.assume_init()
    };
    Ok((status.st_dev, status.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    #[test]
    fn a_frame_longer_than_the_socket_buffer_arrives_with_its_descriptor() {
        let (left, right) = UnixStream::pair().unwrap();
        let body = vec![7_u8; MAX_FRAME];
        let mut frame = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
        frame.extend_from_slice(&body);
        let file = File::open("/dev/null").unwrap();
        let expected = file_id(file.as_fd()).unwrap();
        let sender =
            std::thread::spawn(move || send(&left, &frame, Some(file.as_fd())).map(|()| left));
        let mut receiver = Receiver::default();
        let (got, descriptor) = receiver.receive(&right).unwrap();
        assert!(got == body);
        assert_eq!(file_id(descriptor.unwrap().as_fd()).unwrap(), expected);
        sender.join().unwrap().unwrap();
    }

    #[test]
    fn a_length_beyond_the_limit_ends_the_connection_before_anything_is_reserved() {
        let (mut left, right) = UnixStream::pair().unwrap();
        left.write_all(&u32::MAX.to_le_bytes()).unwrap();
        let error = Receiver::default().receive(&right).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn surplus_descriptors_are_closed() {
        let (left, right) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let mut receiver = Receiver::default();
        for byte in [1_u8, 0, 0, 0, 9] {
            send_part(&left, &[byte], Some(file.as_fd())).unwrap();
        }
        let (body, first) = receiver.receive(&right).unwrap();
        assert_eq!(
            (body, first.is_some(), receiver.descriptors.len()),
            (vec![9], true, 0)
        );
    }
}
