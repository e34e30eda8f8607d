//! Copies and fills.

use cuda::status::CuResult;
use simgpu::work::Op;

use crate::driver::{Driver, driver};
use crate::ffi::{In, status};
use crate::memory::Kind;
use crate::registry::lock;
use crate::stream::{self, Job, Stream};

/// Whose memory an end of a copy is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Host,
    Device,
}

/// Copies of pageable memory up to this length are taken along when they are given to a stream.
const STAGED: usize = 64 << 10;

/// What an address is. Managed memory is the device's: both sides see the same bytes.
fn side(driver: &Driver, address: u64, length: u64) -> Result<Side, CuResult> {
    match driver.at(address) {
        Some(allocation) if allocation.on_host() => Ok(Side::Host),
        Some(allocation) if allocation.covers(address, length) => Ok(Side::Device),
        // An address of ours, but a longer range than ours.
        Some(_) => Err(CuResult::ERROR_INVALID_VALUE),
        None if driver.virtual_memory.reserved_at(address).is_some() => driver
            .virtual_memory
            .covers(address, length)
            .then_some(Side::Device)
            .ok_or(CuResult::ERROR_INVALID_VALUE),
        None if address == 0 => Err(CuResult::ERROR_INVALID_VALUE),
        None => Ok(Side::Host),
    }
}

/// One copy, with what the caller says about its ends.
#[derive(Clone, Copy)]
struct Copy {
    dst: u64,
    src: u64,
    length: usize,
    /// The function's name says that this end is the device's.
    device_dst: bool,
    device_src: bool,
}

impl Copy {
    fn any(dst: u64, src: u64, length: usize) -> Copy {
        Copy {
            dst,
            src,
            length,
            device_dst: false,
            device_src: false,
        }
    }

    fn sides(self, driver: &Driver) -> Result<(Side, Side), CuResult> {
        let dst = side(driver, self.dst, self.length as u64)?;
        let src = side(driver, self.src, self.length as u64)?;
        // Pinned host memory has a device address, too.
        let device = |side, address| side == Side::Device || driver.at(address).is_some();
        if (self.device_dst && !device(dst, self.dst))
            || (self.device_src && !device(src, self.src))
        {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        Ok((dst, src))
    }

    /// Runs it in a stream and waits for it.
    fn run(self, driver: &Driver, stream: &Stream) -> Result<(), CuResult> {
        if lock(&stream.capture).is_some() {
            return Err(CuResult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.length == 0 {
            return Ok(());
        }
        let sides = self.sides(driver)?;
        for point in driver.points_before(stream) {
            point.wait()?;
        }
        stream.queue.last().wait()?;
        let client = driver.node.client.root();
        match sides {
            (Side::Device, Side::Host) => stream::write(
                client,
                stream.copy[0],
                self.dst,
                self.src as usize,
                self.length,
            ),
            (Side::Host, Side::Device) => stream::read(
                client,
                stream.copy[1],
                self.dst as usize,
                self.src,
                self.length,
            ),
            (Side::Device, Side::Device) => {
                let op = Op::Copy {
                    dst: self.dst,
                    src: self.src,
                    len: self.length as u64,
                };
                stream::submit(client, stream.copy[2], op, true).map(|_| ())
            }
            (Side::Host, Side::Host) => {
                copy_host(self);
                Ok(())
            }
        }
    }

    /// Gives it to a stream.
    fn enqueue(self, driver: &Driver, stream: &Stream) -> Result<(), CuResult> {
        if self.length == 0 {
            return Ok(());
        }
        let capturing = lock(&stream.capture).is_some();
        let job = match self.sides(driver)? {
            (Side::Device, Side::Host) => {
                let pinned = driver.at(self.src).is_some();
                if !pinned && !capturing && self.length > STAGED {
                    return self.run(driver, stream);
                }
                if pinned || capturing {
                    let (channel, src) = (stream.copy[0], self.src as usize);
                    Job::FromHost {
                        channel,
                        dst: self.dst,
                        src,
                        len: self.length,
                    }
                } else {
                    // SAFETY: the contract of the C interface: the source is readable until the function returns.
                    let bytes =
                        unsafe { std::slice::from_raw_parts(self.src as *const u8, self.length) }
                            .to_vec();
                    Job::Work(
                        stream.copy[0],
                        Op::Write {
                            dst: self.dst,
                            bytes,
                        },
                    )
                }
            }
            (Side::Host, Side::Device) => Job::ToHost {
                channel: stream.copy[1],
                dst: self.dst as usize,
                src: self.src,
                len: self.length,
            },
            (Side::Device, Side::Device) => Job::Work(
                stream.copy[2],
                Op::Copy {
                    dst: self.dst,
                    src: self.src,
                    len: self.length as u64,
                },
            ),
            (Side::Host, Side::Host) if capturing => {
                return Err(CuResult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
            }
            (Side::Host, Side::Host) => return self.run(driver, stream),
        };
        driver.enqueue(stream, job).map(|_| ())
    }
}

fn copy_host(copy: Copy) {
    // SAFETY: the contract of the C interface: both ends are host memory of at least this length; they may overlap.
    unsafe { std::ptr::copy(copy.src as *const u8, copy.dst as *mut u8, copy.length) }
}

fn now<const PER_THREAD: bool>(copy: Copy) -> u32 {
    status((|| {
        let driver = driver()?;
        copy.run(driver, &*driver.stream(0, PER_THREAD)?)
    })())
}

fn later<const PER_THREAD: bool>(copy: Copy, stream: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        copy.enqueue(driver, &*driver.stream(stream, PER_THREAD)?)
    })())
}

pub extern "C" fn copy<const PER_THREAD: bool>(dst: u64, src: u64, length: usize) -> u32 {
    now::<PER_THREAD>(Copy::any(dst, src, length))
}

pub extern "C" fn copy_async<const PER_THREAD: bool>(
    dst: u64,
    src: u64,
    length: usize,
    stream: usize,
) -> u32 {
    later::<PER_THREAD>(Copy::any(dst, src, length), stream)
}

pub extern "C" fn host_to_device<const PER_THREAD: bool>(dst: u64, src: u64, length: usize) -> u32 {
    now::<PER_THREAD>(Copy {
        device_dst: true,
        ..Copy::any(dst, src, length)
    })
}

pub extern "C" fn host_to_device_async<const PER_THREAD: bool>(
    dst: u64,
    src: u64,
    len: usize,
    stream: usize,
) -> u32 {
    later::<PER_THREAD>(
        Copy {
            device_dst: true,
            ..Copy::any(dst, src, len)
        },
        stream,
    )
}

pub extern "C" fn device_to_host<const PER_THREAD: bool>(dst: u64, src: u64, length: usize) -> u32 {
    now::<PER_THREAD>(Copy {
        device_src: true,
        ..Copy::any(dst, src, length)
    })
}

pub extern "C" fn device_to_host_async<const PER_THREAD: bool>(
    dst: u64,
    src: u64,
    len: usize,
    stream: usize,
) -> u32 {
    later::<PER_THREAD>(
        Copy {
            device_src: true,
            ..Copy::any(dst, src, len)
        },
        stream,
    )
}

pub extern "C" fn device_to_device<const PER_THREAD: bool>(
    dst: u64,
    src: u64,
    length: usize,
) -> u32 {
    now::<PER_THREAD>(Copy {
        device_dst: true,
        device_src: true,
        ..Copy::any(dst, src, length)
    })
}

pub extern "C" fn device_to_device_async<const PER_THREAD: bool>(
    dst: u64,
    src: u64,
    len: usize,
    stream: usize,
) -> u32 {
    later::<PER_THREAD>(
        Copy {
            device_dst: true,
            device_src: true,
            ..Copy::any(dst, src, len)
        },
        stream,
    )
}

/// Fills `count` elements of `width` bytes.
fn fill<const PER_THREAD: bool>(
    dst: u64,
    value: u32,
    width: u8,
    count: usize,
    stream: usize,
) -> u32 {
    rows::<PER_THREAD>(dst, 0, value, width, count, 1, stream)
}

/// Fills `height` rows that start `pitch` bytes apart.
fn rows<const PER_THREAD: bool>(
    dst: u64,
    pitch: usize,
    value: u32,
    width: u8,
    count: usize,
    height: usize,
    stream: usize,
) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        if count == 0 || height == 0 {
            return Ok(());
        }
        let row = (count as u64)
            .checked_mul(u64::from(width))
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let length = (pitch as u64)
            .checked_mul(height as u64 - 1)
            .and_then(|before| before.checked_add(row));
        let length = length.ok_or(CuResult::ERROR_INVALID_VALUE)?;
        if !dst.is_multiple_of(u64::from(width)) || !driver.reachable(dst, length) {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        for at in 0..height as u64 {
            let op = Op::Fill {
                dst: dst + at * pitch as u64,
                value,
                width,
                count: count as u64,
            };
            driver.enqueue(&stream, Job::Work(stream.compute, op))?;
        }
        Ok(())
    })())
}

pub extern "C" fn fill_8<const PER_THREAD: bool>(dst: u64, value: u8, count: usize) -> u32 {
    fill::<PER_THREAD>(dst, value.into(), 1, count, 0)
}

pub extern "C" fn fill_16<const PER_THREAD: bool>(dst: u64, value: u16, count: usize) -> u32 {
    fill::<PER_THREAD>(dst, value.into(), 2, count, 0)
}

pub extern "C" fn fill_32<const PER_THREAD: bool>(dst: u64, value: u32, count: usize) -> u32 {
    fill::<PER_THREAD>(dst, value, 4, count, 0)
}

pub extern "C" fn fill_8_async<const PER_THREAD: bool>(
    dst: u64,
    value: u8,
    count: usize,
    stream: usize,
) -> u32 {
    fill::<PER_THREAD>(dst, value.into(), 1, count, stream)
}

pub extern "C" fn fill_16_async<const PER_THREAD: bool>(
    dst: u64,
    value: u16,
    count: usize,
    stream: usize,
) -> u32 {
    fill::<PER_THREAD>(dst, value.into(), 2, count, stream)
}

pub extern "C" fn fill_32_async<const PER_THREAD: bool>(
    dst: u64,
    value: u32,
    count: usize,
    stream: usize,
) -> u32 {
    fill::<PER_THREAD>(dst, value, 4, count, stream)
}

pub extern "C" fn fill_2d_8<const PER_THREAD: bool>(
    dst: u64,
    pitch: usize,
    value: u8,
    w: usize,
    h: usize,
) -> u32 {
    rows::<PER_THREAD>(dst, pitch, value.into(), 1, w, h, 0)
}

pub extern "C" fn fill_2d_16<const PER_THREAD: bool>(
    dst: u64,
    pitch: usize,
    value: u16,
    w: usize,
    h: usize,
) -> u32 {
    rows::<PER_THREAD>(dst, pitch, value.into(), 2, w, h, 0)
}

pub extern "C" fn fill_2d_32<const PER_THREAD: bool>(
    dst: u64,
    pitch: usize,
    value: u32,
    w: usize,
    h: usize,
) -> u32 {
    rows::<PER_THREAD>(dst, pitch, value, 4, w, h, 0)
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Copy2d {
    src_x: usize,
    src_y: usize,
    src_kind: u32,
    src_host: u64,
    src_device: u64,
    src_array: usize,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_kind: u32,
    dst_host: u64,
    dst_device: u64,
    dst_array: usize,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

/// Base and pitch of one end.
fn end_of(
    driver: &Driver,
    kind: u32,
    addresses: [u64; 2],
    array: usize,
    pitch: usize,
    width: usize,
) -> Result<(u64, usize), CuResult> {
    const HOST: u32 = 1;
    const DEVICE: u32 = 2;
    const ARRAY: u32 = 3;
    const UNIFIED: u32 = 4;
    let pitch = if pitch == 0 { width } else { pitch };
    match kind {
        HOST => Ok((addresses[0], pitch)),
        DEVICE | UNIFIED => Ok((addresses[1], pitch)),
        ARRAY => {
            let array = driver.arrays.find(array)?;
            let allocation = driver
                .at(array.base)
                .ok_or(CuResult::ERROR_INVALID_HANDLE)?;
            let rows = array.extent[1].max(1) * array.extent[2].max(1);
            match allocation.kind {
                Kind::Array(_) => Ok((array.base, allocation.size as usize / rows)),
                _ => Err(CuResult::ERROR_INVALID_HANDLE),
            }
        }
        _ => Err(CuResult::ERROR_INVALID_VALUE),
    }
}

fn copy_rows(
    driver: &Driver,
    what: &Copy2d,
    each: impl Fn(Copy) -> Result<(), CuResult>,
) -> Result<(), CuResult> {
    let w = what;
    let (src, src_pitch) = end_of(
        driver,
        w.src_kind,
        [w.src_host, w.src_device],
        w.src_array,
        w.src_pitch,
        w.width,
    )?;
    let (dst, dst_pitch) = end_of(
        driver,
        w.dst_kind,
        [w.dst_host, w.dst_device],
        w.dst_array,
        w.dst_pitch,
        w.width,
    )?;
    let at = |base: u64, x: usize, y: usize, pitch: usize, row: usize| {
        let offset = y.checked_add(row)?.checked_mul(pitch)?.checked_add(x)?;
        base.checked_add(offset as u64)
    };
    for row in 0..w.height {
        let src = at(src, w.src_x, w.src_y, src_pitch, row).ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let dst = at(dst, w.dst_x, w.dst_y, dst_pitch, row).ok_or(CuResult::ERROR_INVALID_VALUE)?;
        each(Copy::any(dst, src, w.width))?;
    }
    Ok(())
}

pub extern "C" fn copy_2d<const PER_THREAD: bool>(what: In<Copy2d>) -> u32 {
    status((|| {
        let driver = driver()?;
        let what = what.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let stream = driver.stream(0, PER_THREAD)?;
        copy_rows(driver, &what, |copy| copy.run(driver, &stream))
    })())
}

pub extern "C" fn copy_2d_async<const PER_THREAD: bool>(what: In<Copy2d>, stream: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let what = what.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let stream = driver.stream(stream, PER_THREAD)?;
        copy_rows(driver, &what, |copy| copy.enqueue(driver, &stream))
    })())
}
