//! The messages between a program and the server.
//!
//! A frame is a little-endian `u32` length, a tag byte and the fields of the message; a descriptor rides along by
//! `SCM_RIGHTS` where the message says so. The client asks and waits for the final answer; in between the server may
//! call back to copy memory or to take a descriptor, as the kernel does with `copy_from_user` and `fget`.
//! Decoding never panics and never allocates more than the frame's own length.

use std::fmt;

use crate::client::Node;
use crate::usage::Usage;
use crate::work::{Work, WorkResult};

/// Longest frame, bytes after the length: a megabyte of data and the fields beside it.
pub const MAX_FRAME: usize = (1 << 20) + 4096;

/// The bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed message")
    }
}

impl std::error::Error for Malformed {}

/// The kernel's name for an open file: device and inode of its stand-in.
pub type FileId = (u64, u64);

/// What a program asks, and what it answers when called back.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// Open a node; the answer is [`Reply::Opened`].
    Open(Node),
    /// An ioctl on the descriptor that comes with this frame.
    Ioctl {
        /// The request word.
        request: u32,
        /// The argument, an address in the caller.
        arg: u64,
        /// The block at `arg`.
        block: Vec<u8>,
    },
    /// Is this inode one of the node's stand-ins?
    Classify(FileId),
    /// Has the last descriptor and mapping of each of these gone?
    Released(Vec<FileId>),
    /// What driver is this?
    DriverVersion,
    /// Work for a channel.
    Submit(Work),
    /// Who has had the engines of this GPU?
    Usage(u32),
    /// Answer to [`Reply::CopyIn`] (the bytes) and [`Reply::CopyOut`] (no bytes), or an errno.
    Copied(Result<Vec<u8>, i32>),
    /// Answer to [`Reply::ResolveFd`] and [`Reply::FindFile`]: whether there is one, which comes with this frame.
    Resolved(bool),
}

/// What the server answers, and what it calls back for.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// Read `len` bytes of the caller at `ptr`.
    CopyIn {
        /// Address in the caller.
        ptr: u64,
        /// Bytes.
        len: u32,
    },
    /// Write these bytes into the caller at `ptr`.
    CopyOut {
        /// Address in the caller.
        ptr: u64,
        /// The data.
        bytes: Vec<u8>,
    },
    /// Send the caller's descriptor of this number.
    ResolveFd(i32),
    /// Send any descriptor of the caller whose file is one of these.
    FindFile(Vec<FileId>),
    /// The node is open; its descriptor comes with this frame.
    Opened,
    /// The ioctl has been executed.
    Done {
        /// What ioctl returns.
        result: i32,
        /// The block as it is now.
        block: Vec<u8>,
        /// Where the number of the descriptor that comes with this frame is to be written in the block.
        installed_at: Option<u32>,
    },
    /// The request failed with this errno.
    Failed(i32),
    /// Answer to [`Request::Classify`].
    Classified(Option<Node>),
    /// Answer to [`Request::Released`], in the same order.
    Released(Vec<bool>),
    /// Answer to [`Request::DriverVersion`].
    Version(String),
    /// Answer to [`Request::Submit`].
    Worked(WorkResult),
    /// Answer to [`Request::Usage`].
    Used(Usage),
}

/// Builds the bytes of one frame.
#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// A length and as many bytes. Longer than `u32::MAX` can't be: a frame's sender checks [`MAX_FRAME`].
    pub fn bytes(&mut self, value: &[u8]) {
        self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.bytes.extend_from_slice(value);
    }

    /// The frame, length in front.
    #[must_use]
    pub fn frame(self) -> Vec<u8> {
        let mut frame = u32::try_from(self.bytes.len())
            .unwrap_or(u32::MAX)
            .to_le_bytes()
            .to_vec();
        frame.extend_from_slice(&self.bytes);
        frame
    }
}

/// Takes fields from the front of a frame.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`Malformed`] at the end of the frame.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take::<1>()?[0])
    }

    /// Four bytes.
    ///
    /// # Errors
    /// [`Malformed`] at the end of the frame.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// [`Malformed`] at the end of the frame.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    /// A length and as many bytes.
    ///
    /// # Errors
    /// [`Malformed`] if the frame is shorter than it says.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        let (head, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(head)
    }

    /// Nothing may be left.
    ///
    /// # Errors
    /// [`Malformed`] if something is.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}

fn put_i32(to: &mut Writer, value: i32) {
    to.u32(value.cast_unsigned());
}

fn get_i32(from: &mut Reader<'_>) -> Result<i32, Malformed> {
    Ok(from.u32()?.cast_signed())
}

fn put_node(to: &mut Writer, node: Node) {
    match node {
        Node::Control => to.u32(u32::MAX),
        Node::Uvm => to.u32(u32::MAX - 1),
        Node::Gpu(minor) => to.u32(minor),
    }
}

fn get_node(from: &mut Reader<'_>) -> Result<Node, Malformed> {
    Ok(match from.u32()? {
        u32::MAX => Node::Control,
        0xffff_fffe => Node::Uvm,
        minor => Node::Gpu(minor),
    })
}

fn put_files(to: &mut Writer, files: &[FileId]) {
    to.u32(u32::try_from(files.len()).unwrap_or(u32::MAX));
    for &(dev, ino) in files {
        to.u64(dev);
        to.u64(ino);
    }
}

fn get_files(from: &mut Reader<'_>) -> Result<Vec<FileId>, Malformed> {
    let count = from.u32()?;
    // Grown as the bytes are found, so that a count alone reserves nothing.
    let mut files = Vec::new();
    for _ in 0..count {
        files.push((from.u64()?, from.u64()?));
    }
    Ok(files)
}

impl Request {
    /// The frame of this message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Request::Open(node) => {
                to.u8(1);
                put_node(&mut to, *node);
            }
            Request::Ioctl {
                request,
                arg,
                block,
            } => {
                to.u8(2);
                to.u32(*request);
                to.u64(*arg);
                to.bytes(block);
            }
            Request::Classify((dev, ino)) => {
                to.u8(3);
                to.u64(*dev);
                to.u64(*ino);
            }
            Request::Released(files) => {
                to.u8(4);
                put_files(&mut to, files);
            }
            Request::DriverVersion => to.u8(5),
            Request::Submit(work) => {
                to.u8(6);
                work.encode(&mut to);
            }
            Request::Copied(Ok(bytes)) => {
                to.u8(7);
                to.bytes(bytes);
            }
            Request::Copied(Err(errno)) => {
                to.u8(8);
                put_i32(&mut to, *errno);
            }
            Request::Resolved(found) => {
                to.u8(9);
                to.u8(u8::from(*found));
            }
            Request::Usage(gpu) => {
                to.u8(10);
                to.u32(*gpu);
            }
        }
        to.frame()
    }

    /// The message in a frame (without its length).
    ///
    /// # Errors
    /// [`Malformed`] if it is none.
    pub fn decode(frame: &[u8]) -> Result<Request, Malformed> {
        let mut from = Reader::new(frame);
        let message = match from.u8()? {
            1 => Request::Open(get_node(&mut from)?),
            2 => Request::Ioctl {
                request: from.u32()?,
                arg: from.u64()?,
                block: from.bytes()?.to_vec(),
            },
            3 => Request::Classify((from.u64()?, from.u64()?)),
            4 => Request::Released(get_files(&mut from)?),
            5 => Request::DriverVersion,
            6 => Request::Submit(Work::decode(&mut from)?),
            7 => Request::Copied(Ok(from.bytes()?.to_vec())),
            8 => Request::Copied(Err(get_i32(&mut from)?)),
            9 => Request::Resolved(from.u8()? != 0),
            10 => Request::Usage(from.u32()?),
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(message)
    }
}

impl Reply {
    /// The frame of this message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Reply::CopyIn { ptr, len } => {
                to.u8(1);
                to.u64(*ptr);
                to.u32(*len);
            }
            Reply::CopyOut { ptr, bytes } => {
                to.u8(2);
                to.u64(*ptr);
                to.bytes(bytes);
            }
            Reply::ResolveFd(fd) => {
                to.u8(3);
                put_i32(&mut to, *fd);
            }
            Reply::FindFile(files) => {
                to.u8(4);
                put_files(&mut to, files);
            }
            Reply::Opened => to.u8(5),
            Reply::Done {
                result,
                block,
                installed_at,
            } => {
                to.u8(6);
                put_i32(&mut to, *result);
                to.u32(installed_at.unwrap_or(u32::MAX));
                to.bytes(block);
            }
            Reply::Failed(errno) => {
                to.u8(7);
                put_i32(&mut to, *errno);
            }
            Reply::Classified(node) => {
                to.u8(8);
                to.u8(u8::from(node.is_some()));
                put_node(&mut to, node.unwrap_or(Node::Control));
            }
            Reply::Released(states) => {
                to.u8(9);
                to.bytes(
                    &states
                        .iter()
                        .map(|&gone| u8::from(gone))
                        .collect::<Vec<u8>>(),
                );
            }
            Reply::Version(text) => {
                to.u8(10);
                to.bytes(text.as_bytes());
            }
            Reply::Worked(result) => {
                to.u8(11);
                result.encode(&mut to);
            }
            Reply::Used(usage) => {
                to.u8(12);
                usage.encode(&mut to);
            }
        }
        to.frame()
    }

    /// The message in a frame (without its length).
    ///
    /// # Errors
    /// [`Malformed`] if it is none.
    pub fn decode(frame: &[u8]) -> Result<Reply, Malformed> {
        let mut from = Reader::new(frame);
        let message = match from.u8()? {
            1 => Reply::CopyIn {
                ptr: from.u64()?,
                len: from.u32()?,
            },
            2 => Reply::CopyOut {
                ptr: from.u64()?,
                bytes: from.bytes()?.to_vec(),
            },
            3 => Reply::ResolveFd(get_i32(&mut from)?),
            4 => Reply::FindFile(get_files(&mut from)?),
            5 => Reply::Opened,
            6 => {
                let result = get_i32(&mut from)?;
                let installed_at = Some(from.u32()?).filter(|&at| at != u32::MAX);
                Reply::Done {
                    result,
                    installed_at,
                    block: from.bytes()?.to_vec(),
                }
            }
            7 => Reply::Failed(get_i32(&mut from)?),
            8 => {
                let is_one = from.u8()? != 0;
                let node = get_node(&mut from)?;
                Reply::Classified(is_one.then_some(node))
            }
            9 => Reply::Released(from.bytes()?.iter().map(|&gone| gone != 0).collect()),
            10 => Reply::Version(String::from_utf8(from.bytes()?.to_vec()).map_err(|_| Malformed)?),
            11 => Reply::Worked(WorkResult::decode(&mut from)?),
            12 => Reply::Used(Usage::decode(&mut from)?),
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{Kernel, Op, WorkStatus};

    fn requests() -> Vec<Request> {
        let work = |op| {
            Request::Submit(Work {
                client: 0xc1d0_0001,
                channel: 7,
                wait: true,
                op,
            })
        };
        vec![
            Request::Open(Node::Control),
            Request::Open(Node::Uvm),
            Request::Open(Node::Gpu(3)),
            Request::Ioctl {
                request: 0xc030_462b,
                arg: 0x7fff_0000_1234,
                block: vec![1, 2, 3],
            },
            Request::Classify((4, 0x1_0000_0005)),
            Request::Released(vec![(1, 2), (3, 4)]),
            Request::DriverVersion,
            Request::Usage(3),
            work(Op::Write {
                dst: 5,
                bytes: vec![9; 40],
            }),
            work(Op::Read { src: 1, len: 2 }),
            work(Op::Copy {
                dst: 1,
                src: 2,
                len: 3,
            }),
            work(Op::Fill {
                dst: 1,
                value: 2,
                width: 4,
                count: 3,
            }),
            work(Op::Wait),
            work(Op::Launch(Kernel::Spin { ns: 77 })),
            work(Op::Launch(Kernel::Fill {
                p: 1,
                value: 2,
                n: 3,
            })),
            work(Op::Launch(Kernel::Saxpy {
                a: 2.5,
                x: 1,
                y: 2,
                n: 3,
            })),
            work(Op::Launch(Kernel::Sum { p: 1, n: 2, out: 3 })),
            Request::Copied(Ok(vec![1])),
            Request::Copied(Err(14)),
            Request::Resolved(true),
        ]
    }

    fn replies() -> Vec<Reply> {
        let result = |status| {
            Reply::Worked(WorkResult {
                status,
                ticket: 1,
                start_ns: 2,
                end_ns: 3,
                busy_ns: 1,
                data: vec![4, 5],
            })
        };
        vec![
            Reply::CopyIn { ptr: 1, len: 2 },
            Reply::CopyOut {
                ptr: 1,
                bytes: vec![2, 3],
            },
            Reply::ResolveFd(-1),
            Reply::FindFile(vec![(1, 2)]),
            Reply::Opened,
            Reply::Done {
                result: 0,
                block: vec![1],
                installed_at: None,
            },
            Reply::Done {
                result: -22,
                block: vec![],
                installed_at: Some(8),
            },
            Reply::Failed(25),
            Reply::Classified(None),
            Reply::Classified(Some(Node::Gpu(1))),
            Reply::Released(vec![true, false]),
            Reply::Version("580.159.04".into()),
            Reply::Used(Usage {
                clock_ns: [1, 2],
                epoch_ns: 3,
                groups: vec![crate::usage::GroupTime {
                    pid: 4,
                    client: 5,
                    context: 6,
                    copies: true,
                    ran_ns: 7,
                }],
            }),
            result(WorkStatus::Done),
            result(WorkStatus::Queued),
            result(WorkStatus::Fault { address: 0xdead }),
            result(WorkStatus::NoChannel),
            result(WorkStatus::Invalid),
        ]
    }

    #[test]
    fn every_message_survives_the_wire() {
        for request in requests() {
            assert_eq!(Request::decode(&request.encode()[4..]), Ok(request));
        }
        for reply in replies() {
            assert_eq!(Reply::decode(&reply.encode()[4..]), Ok(reply));
        }
    }

    #[test]
    fn a_cut_or_lengthened_frame_is_malformed() {
        for frame in requests().iter().map(Request::encode) {
            let body = &frame[4..];
            for end in 0..body.len() {
                assert_eq!(
                    Request::decode(&body[..end]),
                    Err(Malformed),
                    "{body:?} cut at {end}"
                );
            }
            assert_eq!(Request::decode(&[body, &[0]].concat()), Err(Malformed));
        }
        for frame in replies().iter().map(Reply::encode) {
            let body = &frame[4..];
            for end in 0..body.len() {
                assert_eq!(
                    Reply::decode(&body[..end]),
                    Err(Malformed),
                    "{body:?} cut at {end}"
                );
            }
        }
    }

    #[test]
    fn random_bytes_decode_to_something_or_nothing_but_never_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut understood = 0;
        for _ in 0..200_000 {
            let mut bytes = [0_u8; 48];
            for byte in &mut bytes {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 56) as u8;
            }
            // Small tags, so that the decoders behind them are reached.
            bytes[0] %= 16;
            let length = usize::from(bytes[47]) % 48;
            understood += usize::from(Request::decode(&bytes[..length]).is_ok());
            understood += usize::from(Reply::decode(&bytes[..length]).is_ok());
        }
        assert!(understood > 0);
    }
}
