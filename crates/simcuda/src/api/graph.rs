//! Stream capture and graphs.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use cuda::status::CuResult;

use crate::api::module::launch_job;
use crate::driver::{Driver, driver};
use crate::ffi::{In, Out, status};
use crate::graph::Graph;
use crate::registry::lock;
use crate::stream::Stream;

const NOT_CAPTURING: u32 = 0;
const CAPTURING: u32 = 1;

pub extern "C" fn begin_capture<const PER_THREAD: bool>(stream: usize, mode: u32) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        // The context's own default stream can't be captured.
        if stream.handle == 0 && Arc::ptr_eq(&stream, &driver.current()?.legacy) {
            return Err(CuResult::ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let mut capture = lock(&stream.capture);
        if capture.is_some() || mode > 2 {
            return Err(CuResult::ERROR_ILLEGAL_STATE);
        }
        *capture = Some(Vec::new());
        Ok(())
    })())
}

pub extern "C" fn begin_capture_v1<const PER_THREAD: bool>(stream: usize) -> u32 {
    begin_capture::<PER_THREAD>(stream, 0)
}

pub extern "C" fn end_capture<const PER_THREAD: bool>(stream: usize, graph: Out<usize>) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        let graph = graph.required()?;
        let jobs = lock(&stream.capture)
            .take()
            .ok_or(CuResult::ERROR_ILLEGAL_STATE)?;
        graph.set(driver.graphs.add(|_| Graph::of(driver, jobs)).0);
        Ok(())
    })())
}

fn capture_state(
    driver: &Driver,
    stream: usize,
    per_thread: bool,
) -> Result<(Arc<Stream>, u32), CuResult> {
    let stream = driver.stream(stream, per_thread)?;
    let state = if lock(&stream.capture).is_some() {
        CAPTURING
    } else {
        NOT_CAPTURING
    };
    Ok((stream, state))
}

pub extern "C" fn is_capturing<const PER_THREAD: bool>(stream: usize, state: Out<u32>) -> u32 {
    status((|| {
        let state = state.required()?;
        state.set(capture_state(driver()?, stream, PER_THREAD)?.1);
        Ok(())
    })())
}

/// What a capture is made of can't be read before its end here, only whether there is one and its number.
pub extern "C" fn get_capture_info<const PER_THREAD: bool>(
    stream: usize,
    state: Out<u32>,
    id: Out<u64>,
) -> u32 {
    status((|| {
        let state_to = state.required()?;
        let (stream, state) = capture_state(driver()?, stream, PER_THREAD)?;
        state_to.set(state);
        if state == CAPTURING {
            id.set(stream.id);
        }
        Ok(())
    })())
}

/// How strictly a thread's captures forbid other calls is not enforced; the modes are exchanged.
pub extern "C" fn exchange_capture_mode(mode: Out<u32>) -> u32 {
    thread_local! {
        static MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    status((|| {
        let wanted = mode
            .required()?
            .get()
            .filter(|mode| *mode <= 2)
            .ok_or(CuResult::ERROR_INVALID_VALUE)?;
        mode.set(MODE.replace(wanted));
        Ok(())
    })())
}

pub extern "C" fn create(graph: Out<usize>, flags: u32) -> u32 {
    status((|| {
        let driver = driver()?;
        let graph = graph.required()?;
        if flags != 0 {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        graph.set(driver.graphs.add(|_| Graph::default()).0);
        Ok(())
    })())
}

pub extern "C" fn destroy(graph: usize) -> u32 {
    status(driver().and_then(|driver| driver.graphs.remove(graph).map(|_| ())))
}

/// The part that both versions of `CUDA_KERNEL_NODE_PARAMS` have.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KernelNode {
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    each: *const *const c_void,
    extra: *const *const c_void,
}

pub extern "C" fn add_kernel_node(
    node: Out<usize>,
    graph: usize,
    after: In<usize>,
    count: usize,
    params: In<KernelNode>,
) -> u32 {
    status((|| {
        let driver = driver()?;
        let node = node.required()?;
        let graph = driver.graphs.find(graph)?;
        let params = params.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let stream = driver.stream(0, false)?;
        let job = launch_job(
            driver,
            &stream,
            params.function,
            params.grid,
            params.block,
            params.each,
            params.extra,
        )?;
        node.set(graph.add(driver, job, after.list(count))?);
        Ok(())
    })())
}

pub extern "C" fn get_nodes(graph: usize, nodes: Out<usize>, count: Out<usize>) -> u32 {
    status((|| {
        let graph = driver()?.graphs.find(graph)?;
        let count = count.required()?;
        let all: Vec<usize> = lock(&graph.nodes).keys().copied().collect();
        list(nodes, count, &all);
        Ok(())
    })())
}

/// Writes as much of a list as the caller has room for, and how much there is.
fn list(to: Out<usize>, count: Out<usize>, all: &[usize]) {
    if to.is_null() {
        count.set(all.len());
        return;
    }
    let room = count.get().unwrap_or(0);
    for index in 0..room {
        to.set_at(index, all.get(index).copied().unwrap_or(0));
    }
    count.set(room.min(all.len()));
}

pub extern "C" fn get_root_nodes(graph: usize, nodes: Out<usize>, count: Out<usize>) -> u32 {
    status((|| {
        let graph = driver()?.graphs.find(graph)?;
        let count = count.required()?;
        let roots: Vec<usize> = lock(&graph.nodes)
            .iter()
            .filter(|(_, node)| node.after.is_empty())
            .map(|(number, _)| *number)
            .collect();
        list(nodes, count, &roots);
        Ok(())
    })())
}

pub extern "C" fn node_get_type(node: usize, kind: Out<u32>) -> u32 {
    status((|| {
        let kind = kind.required()?;
        let found = driver()?
            .graphs
            .all()
            .iter()
            .find_map(|graph| lock(&graph.nodes).get(&node).map(|node| node.kind));
        kind.set(found.ok_or(CuResult::ERROR_INVALID_VALUE)?);
        Ok(())
    })())
}

fn make_executable(executable: Out<usize>, graph: usize) -> Result<(), CuResult> {
    let driver = driver()?;
    let executable = executable.required()?;
    let graph = driver.graphs.find(graph)?;
    executable.set(driver.executables.add(|_| graph.executable()).0);
    Ok(())
}

pub extern "C" fn instantiate(executable: Out<usize>, graph: usize, _flags: u64) -> u32 {
    status(make_executable(executable, graph))
}

/// The older form: with places for the node at fault and a text about it.
pub extern "C" fn instantiate_v2(
    executable: Out<usize>,
    graph: usize,
    node: Out<usize>,
    log: Out<c_char>,
    room: usize,
) -> u32 {
    node.set(0);
    if room > 0 {
        log.set(0);
    }
    status(make_executable(executable, graph))
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct InstantiateParams {
    flags: u64,
    upload_stream: usize,
    node: usize,
    result: u32,
}

pub extern "C" fn instantiate_with_params<const PER_THREAD: bool>(
    executable: Out<usize>,
    graph: usize,
    params: Out<InstantiateParams>,
) -> u32 {
    status((|| {
        let given = params.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
        make_executable(executable, graph)?;
        params.set(InstantiateParams {
            node: 0,
            result: 0,
            ..given
        });
        Ok(())
    })())
}

pub extern "C" fn executable_destroy(executable: usize) -> u32 {
    status(driver().and_then(|driver| driver.executables.remove(executable).map(|_| ())))
}

pub extern "C" fn launch<const PER_THREAD: bool>(executable: usize, stream: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        driver.executables.find(executable)?.launch(driver, &stream)
    })())
}

/// Nothing has to be brought to the GPU before a launch.
pub extern "C" fn upload<const PER_THREAD: bool>(executable: usize, stream: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        driver.stream(stream, PER_THREAD)?;
        driver.executables.find(executable).map(|_| ())
    })())
}
