//! Streams and events.

use std::ffi::c_void;

use cuda::status::CuResult;

use crate::driver::{Driver, driver};
use crate::ffi::{Out, status};
use crate::registry::lock;
use crate::stream::{Event, Job};

pub extern "C" fn create(stream: Out<usize>, flags: u32) -> u32 {
    create_with_priority(stream, flags, 0)
}

pub extern "C" fn create_with_priority(stream: Out<usize>, flags: u32, priority: i32) -> u32 {
    status((|| {
        let driver = driver()?;
        let context = driver.current()?;
        let stream = stream.required()?;
        if flags > 1 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        stream.set(driver.make_stream(&context, flags, priority.clamp(-5, 0))?);
        Ok(())
    })())
}

pub extern "C" fn destroy(stream: usize) -> u32 {
    status(driver().and_then(|driver| driver.end_stream(stream)))
}

pub extern "C" fn synchronize<const PER_THREAD: bool>(stream: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        if lock(&stream.capture).is_some() {
            return Err(CuResult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        for point in driver.points_before(&stream) {
            point.wait()?;
        }
        let done = stream.queue.last().wait();
        driver.trim_pools();
        done
    })())
}

pub extern "C" fn query<const PER_THREAD: bool>(stream: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        stream.queue.check()?;
        let idle = stream.queue.idle() && driver.points_before(&stream).is_empty();
        if idle {
            Ok(())
        } else {
            Err(CuResult::ERROR_NOT_READY)
        }
    })())
}

/// Waits in the stream; what other streams were told to do before goes first.
pub extern "C" fn wait_event<const PER_THREAD: bool>(
    stream: usize,
    event: usize,
    _flags: u32,
) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        let event = driver.events.find(event)?;
        match event.point() {
            Some(point) if lock(&stream.capture).is_none() => {
                stream.queue.add(Job::After(vec![point])).map(|_| ())
            }
            _ => Ok(()),
        }
    })())
}

/// What can be asked of a stream.
fn property<T: Copy>(
    stream: usize,
    per_thread: bool,
    to: Out<T>,
    read: impl FnOnce(&'static Driver, &crate::stream::Stream) -> Result<T, CuResult>,
) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, per_thread)?;
        to.required()?.set(read(driver, &stream)?);
        Ok(())
    })())
}

pub extern "C" fn get_flags<const PER_THREAD: bool>(stream: usize, flags: Out<u32>) -> u32 {
    property(stream, PER_THREAD, flags, |_, stream| Ok(stream.flags))
}

pub extern "C" fn get_priority<const PER_THREAD: bool>(stream: usize, priority: Out<i32>) -> u32 {
    property(
        stream,
        PER_THREAD,
        priority,
        |_, stream| Ok(stream.priority),
    )
}

pub extern "C" fn get_id<const PER_THREAD: bool>(stream: usize, id: Out<u64>) -> u32 {
    property(stream, PER_THREAD, id, |_, stream| Ok(stream.id))
}

pub extern "C" fn get_context<const PER_THREAD: bool>(stream: usize, context: Out<usize>) -> u32 {
    property(stream, PER_THREAD, context, |_, stream| Ok(stream.context))
}

pub extern "C" fn get_device<const PER_THREAD: bool>(stream: usize, device: Out<i32>) -> u32 {
    property(stream, PER_THREAD, device, |driver, stream| {
        let context = driver
            .contexts
            .get(stream.context)
            .ok_or(CuResult::ERROR_INVALID_CONTEXT)?;
        Ok(driver.ordinal(context.gpu))
    })
}

pub extern "C" fn launch_host_function<const PER_THREAD: bool>(
    stream: usize,
    function: Option<extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        let function = function.ok_or(CuResult::ERROR_INVALID_VALUE)?;
        driver
            .enqueue(&stream, Job::Host(function, data as usize))
            .map(|_| ())
    })())
}

/// Managed memory is visible to all streams alike here.
pub extern "C" fn attach_memory<const PER_THREAD: bool>(
    stream: usize,
    address: u64,
    _len: usize,
    _flags: u32,
) -> u32 {
    status((|| {
        let driver = driver()?;
        driver.stream(stream, PER_THREAD)?;
        driver
            .at(address)
            .map(|_| ())
            .ok_or(CuResult::ERROR_INVALID_VALUE)
    })())
}

pub extern "C" fn event_create(event: Out<usize>, flags: u32) -> u32 {
    status((|| {
        let driver = driver()?;
        driver.current()?;
        let event = event.required()?;
        event.set(driver.events.add(|_| Event::new(flags)).0);
        Ok(())
    })())
}

pub extern "C" fn event_destroy(event: usize) -> u32 {
    status(driver().and_then(|driver| driver.events.remove(event).map(|_| ())))
}

pub extern "C" fn event_record<const PER_THREAD: bool>(event: usize, stream: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        let event = driver.events.find(event)?;
        if lock(&stream.capture).is_some() {
            return Ok(());
        }
        let before = driver.points_before(&stream);
        if !before.is_empty() {
            stream.queue.add(Job::After(before))?;
        }
        event.record(&stream.queue)
    })())
}

pub extern "C" fn event_record_with_flags<const PER_THREAD: bool>(
    event: usize,
    stream: usize,
    _flags: u32,
) -> u32 {
    event_record::<PER_THREAD>(event, stream)
}

pub extern "C" fn event_query(event: usize) -> u32 {
    status((|| match driver()?.events.find(event)?.point() {
        Some(point) if !point.reached() => Err(CuResult::ERROR_NOT_READY),
        _ => Ok(()),
    })())
}

pub extern "C" fn event_synchronize(event: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let waited = driver
            .events
            .find(event)?
            .point()
            .map_or(Ok(()), |point| point.wait());
        driver.trim_pools();
        waited
    })())
}

pub extern "C" fn event_elapsed_time(milliseconds: Out<f32>, start: usize, end: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let milliseconds = milliseconds.required()?;
        let (start, end) = (driver.events.find(start)?, driver.events.find(end)?);
        for event in [&start, &end] {
            let point = event
                .point()
                .filter(|_| !event.without_time)
                .ok_or(CuResult::ERROR_INVALID_HANDLE)?;
            if !point.reached() {
                return Err(CuResult::ERROR_NOT_READY);
            }
        }
        let (from, to) = (start.reached_at() as f64, end.reached_at() as f64);
        milliseconds.set(((to - from) / 1e6) as f32);
        Ok(())
    })())
}
