//! Work for the simulated GPU: what a program would write into a channel's push buffer.
//!
//! Submitting work is no ioctl (measured on an H200, driver 580.159: a thousand launches make none), so a guard never
//! sees it. It goes to the server over the same socket. Addresses are GPU virtual addresses of the address space that
//! the channel runs in: device memory mapped by a UVM call, managed memory made by `mmap` of the UVM file, or pinned
//! host pages of the submitting process.

use crate::proto::{Malformed, Reader, Writer};

/// Most bytes that one [`Op::Write`] or [`Op::Read`] frame carries; [`crate::client::Client::submit`] splits longer ones.
pub const CHUNK: usize = 1 << 20;

/// One piece of work for one channel. Work of a channel runs in the order of submission.
#[derive(Clone, PartialEq, Debug)]
pub struct Work {
    /// Handle of the client that owns the channel.
    pub client: u32,
    /// Handle of the channel.
    pub channel: u32,
    /// Whether the answer comes when the work is done (else as soon as it is queued). [`Op::Read`] and [`Op::Wait`]
    /// always wait. A channel that is detached or not scheduled makes its submitters wait.
    pub wait: bool,
    /// What to do.
    pub op: Op,
}

/// What the GPU is to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// Copy these bytes from the host to `dst`.
    Write {
        /// GPU address.
        dst: u64,
        /// The data.
        bytes: Vec<u8>,
    },
    /// Copy `len` bytes at `src` to the host ([`WorkResult::data`]).
    Read {
        /// GPU address.
        src: u64,
        /// Bytes.
        len: u64,
    },
    /// Copy between two GPU addresses (ranges may overlap as in `memmove`).
    Copy {
        /// GPU address written.
        dst: u64,
        /// GPU address read.
        src: u64,
        /// Bytes.
        len: u64,
    },
    /// Write `count` elements of `width` bytes (1, 2 or 4), each the low bytes of `value`.
    Fill {
        /// GPU address, a multiple of `width`.
        dst: u64,
        /// The element.
        value: u32,
        /// Bytes of an element.
        width: u8,
        /// Elements.
        count: u64,
    },
    /// Run one of the built-in kernels.
    Launch(Kernel),
    /// Nothing: done when everything submitted to the channel before is done.
    Wait,
}

/// The kernels built into the simulated GPU, with their arguments.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kernel {
    /// `gpuslice_spin(u64 ns)`: keeps the compute engine busy for `ns` of device time.
    Spin {
        /// Nanoseconds of device time.
        ns: u64,
    },
    /// `gpuslice_fill(u32 *p, u32 value, u64 n)`
    Fill {
        /// GPU address of `n` words.
        p: u64,
        /// The word written.
        value: u32,
        /// Words.
        n: u64,
    },
    /// `gpuslice_saxpy(f32 a, const f32 *x, f32 *y, u64 n)`: `y[i] += a * x[i]`.
    Saxpy {
        /// The factor.
        a: f32,
        /// GPU address of `n` floats, read.
        x: u64,
        /// GPU address of `n` floats, read and written.
        y: u64,
        /// Elements.
        n: u64,
    },
    /// `gpuslice_sum(const u32 *p, u64 n, u64 *out)`: `*out` = the sum of the words.
    Sum {
        /// GPU address of `n` words.
        p: u64,
        /// Words.
        n: u64,
        /// GPU address of a 64-bit result.
        out: u64,
    },
}

impl Kernel {
    /// Bytes of each parameter of the entry in order, or `None` where there is no such kernel.
    #[must_use]
    pub fn parameters(entry: &str) -> Option<&'static [u8]> {
        Some(match entry {
            "gpuslice_spin" => &[8],
            "gpuslice_fill" => &[8, 4, 8],
            "gpuslice_saxpy" => &[4, 8, 8, 8],
            "gpuslice_sum" => &[8, 8, 8],
            _ => return None,
        })
    }

    /// The kernel `entry` with these arguments, each zero-extended to 8 bytes in the order of the signature
    /// (a float by its bits). `None`: no such kernel, or not its number of arguments.
    #[must_use]
    pub fn from_entry(entry: &str, args: &[u64]) -> Option<Kernel> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a 32-bit parameter is the low half of its 8 bytes"
        )]
        Some(match (entry, args) {
            ("gpuslice_spin", &[ns]) => Kernel::Spin { ns },
            ("gpuslice_fill", &[p, value, n]) => Kernel::Fill {
                p,
                value: value as u32,
                n,
            },
            ("gpuslice_saxpy", &[a, x, y, n]) => Kernel::Saxpy {
                a: f32::from_bits(a as u32),
                x,
                y,
                n,
            },
            ("gpuslice_sum", &[p, n, out]) => Kernel::Sum { p, n, out },
            _ => return None,
        })
    }
}

/// How a piece of work ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkStatus {
    /// Queued; it was submitted with `wait: false`.
    Queued,
    /// Done.
    Done,
    /// The GPU touched an address that nothing is mapped at (`CUDA_ERROR_ILLEGAL_ADDRESS`). The channel is dead:
    /// everything queued after ends the same way.
    Fault {
        /// The address.
        address: u64,
    },
    /// There is no such channel, or it was freed before the work was done.
    NoChannel,
    /// The work itself makes no sense (width of an element, unaligned address, length that wraps).
    Invalid,
}

/// The answer to a submission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkResult {
    /// How it ended.
    pub status: WorkStatus,
    /// Number of this work in its channel, counting from 1.
    pub ticket: u64,
    /// Device clock when its first part ran, ns. The clock never runs faster than the wall's, but may run slower.
    pub start_ns: u64,
    /// Device clock when it was done, ns.
    pub end_ns: u64,
    /// Time of the engine it used, ns.
    pub busy_ns: u64,
    /// What [`Op::Read`] read.
    pub data: Vec<u8>,
}

impl WorkResult {
    /// A result that carries only a status.
    pub(crate) fn only(status: WorkStatus) -> WorkResult {
        WorkResult {
            status,
            ticket: 0,
            start_ns: 0,
            end_ns: 0,
            busy_ns: 0,
            data: Vec::new(),
        }
    }
}

impl Work {
    pub(crate) fn encode(&self, to: &mut Writer) {
        to.u32(self.client);
        to.u32(self.channel);
        to.u8(u8::from(self.wait));
        match &self.op {
            Op::Write { dst, bytes } => {
                to.u8(0);
                to.u64(*dst);
                to.bytes(bytes);
            }
            Op::Read { src, len } => {
                to.u8(1);
                to.u64(*src);
                to.u64(*len);
            }
            Op::Copy { dst, src, len } => {
                to.u8(2);
                to.u64(*dst);
                to.u64(*src);
                to.u64(*len);
            }
            Op::Fill {
                dst,
                value,
                width,
                count,
            } => {
                to.u8(3);
                to.u64(*dst);
                to.u32(*value);
                to.u8(*width);
                to.u64(*count);
            }
            Op::Wait => to.u8(4),
            Op::Launch(Kernel::Spin { ns }) => {
                to.u8(5);
                to.u64(*ns);
            }
            Op::Launch(Kernel::Fill { p, value, n }) => {
                to.u8(6);
                to.u64(*p);
                to.u32(*value);
                to.u64(*n);
            }
            Op::Launch(Kernel::Saxpy { a, x, y, n }) => {
                to.u8(7);
                to.u32(a.to_bits());
                to.u64(*x);
                to.u64(*y);
                to.u64(*n);
            }
            Op::Launch(Kernel::Sum { p, n, out }) => {
                to.u8(8);
                to.u64(*p);
                to.u64(*n);
                to.u64(*out);
            }
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Work, Malformed> {
        let (client, channel, wait) = (from.u32()?, from.u32()?, from.u8()? != 0);
        let op = match from.u8()? {
            0 => Op::Write {
                dst: from.u64()?,
                bytes: from.bytes()?.to_vec(),
            },
            1 => Op::Read {
                src: from.u64()?,
                len: from.u64()?,
            },
            2 => Op::Copy {
                dst: from.u64()?,
                src: from.u64()?,
                len: from.u64()?,
            },
            3 => Op::Fill {
                dst: from.u64()?,
                value: from.u32()?,
                width: from.u8()?,
                count: from.u64()?,
            },
            4 => Op::Wait,
            5 => Op::Launch(Kernel::Spin { ns: from.u64()? }),
            6 => Op::Launch(Kernel::Fill {
                p: from.u64()?,
                value: from.u32()?,
                n: from.u64()?,
            }),
            7 => Op::Launch(Kernel::Saxpy {
                a: f32::from_bits(from.u32()?),
                x: from.u64()?,
                y: from.u64()?,
                n: from.u64()?,
            }),
            8 => Op::Launch(Kernel::Sum {
                p: from.u64()?,
                n: from.u64()?,
                out: from.u64()?,
            }),
            _ => return Err(Malformed),
        };
        Ok(Work {
            client,
            channel,
            wait,
            op,
        })
    }
}

impl WorkResult {
    pub(crate) fn encode(&self, to: &mut Writer) {
        let (code, address) = match self.status {
            WorkStatus::Queued => (0, 0),
            WorkStatus::Done => (1, 0),
            WorkStatus::Fault { address } => (2, address),
            WorkStatus::NoChannel => (3, 0),
            WorkStatus::Invalid => (4, 0),
        };
        to.u8(code);
        to.u64(address);
        to.u64(self.ticket);
        to.u64(self.start_ns);
        to.u64(self.end_ns);
        to.u64(self.busy_ns);
        to.bytes(&self.data);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<WorkResult, Malformed> {
        let (code, address) = (from.u8()?, from.u64()?);
        let status = match code {
            0 => WorkStatus::Queued,
            1 => WorkStatus::Done,
            2 => WorkStatus::Fault { address },
            3 => WorkStatus::NoChannel,
            4 => WorkStatus::Invalid,
            _ => return Err(Malformed),
        };
        Ok(WorkResult {
            status,
            ticket: from.u64()?,
            start_ns: from.u64()?,
            end_ns: from.u64()?,
            busy_ns: from.u64()?,
            data: from.bytes()?.to_vec(),
        })
    }
}
