//! Modules, libraries, functions and launches.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda::status::CuResult;
use simgpu::work::Kernel;

use crate::block::Block;
use crate::driver::{Driver, driver};
use crate::ffi::{In, Out, Text, status};
use crate::module::{Function, Module, names};
use crate::stream::{Job, Stream};

/// Makes a module (or a library, which is the same thing here) of an image.
fn load(driver: &Driver, image: &[u8]) -> Result<usize, CuResult> {
    let names = names(image)?;
    let (handle, _) = driver.modules.add(|handle| {
        let known = |name: &str| {
            let parameters = Kernel::parameters(name)?;
            Some(
                driver
                    .functions
                    .add(|_| Function {
                        module: handle,
                        name: name.to_owned(),
                        parameters,
                    })
                    .0,
            )
        };
        Module {
            functions: names
                .into_iter()
                .map(|name| (name.clone(), known(&name)))
                .collect(),
        }
    });
    Ok(handle)
}

fn load_in_context(module: Out<usize>, image: Option<Vec<u8>>) -> Result<(), CuResult> {
    let driver = driver()?;
    driver.current()?;
    let module = module.required()?;
    module.set(load(driver, &image.ok_or(CuResult::ERROR_INVALID_VALUE)?)?);
    Ok(())
}

pub extern "C" fn load_data(module: Out<usize>, image: Text) -> u32 {
    status(load_in_context(module, image.bytes()))
}

pub extern "C" fn load_data_ex(
    module: Out<usize>,
    image: Text,
    _count: u32,
    _options: usize,
    _values: usize,
) -> u32 {
    status(load_in_context(module, image.bytes()))
}

pub extern "C" fn load_file(module: Out<usize>, path: Text) -> u32 {
    status(read_file(path).and_then(|image| load_in_context(module, Some(image))))
}

fn read_file(path: Text) -> Result<Vec<u8>, CuResult> {
    let path = path.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
    std::fs::read(path).map_err(|_| CuResult::ERROR_FILE_NOT_FOUND)
}

pub extern "C" fn unload(module: usize) -> u32 {
    status((|| {
        let driver = driver()?;
        for (_, function) in &driver.modules.remove(module)?.functions {
            if let Some(handle) = function {
                let _ = driver.functions.remove(*handle);
            }
        }
        Ok(())
    })())
}

pub extern "C" fn get_function(function: Out<usize>, module: usize, name: Text) -> u32 {
    status((|| {
        let module = driver()?.modules.find(module)?;
        let function = function.required()?;
        let name = name.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let found = module
            .functions
            .iter()
            .find(|(known, _)| *known == name)
            .and_then(|(_, handle)| *handle);
        function.set(found.ok_or(CuResult::ERROR_NOT_FOUND)?);
        Ok(())
    })())
}

/// The kernels of this GPU use no variables.
pub extern "C" fn get_global(_address: usize, _size: usize, module: usize, name: Text) -> u32 {
    status((|| {
        driver()?.modules.find(module)?;
        let known = if name.get().is_some() {
            CuResult::ERROR_NOT_FOUND
        } else {
            CuResult::ERROR_INVALID_VALUE
        };
        Err(known)
    })())
}

pub extern "C" fn get_function_count(count: Out<u32>, module: usize) -> u32 {
    status((|| {
        let module = driver()?.modules.find(module)?;
        count.required()?.set(runnable(&module).count() as u32);
        Ok(())
    })())
}

pub extern "C" fn enumerate_functions(functions: Out<usize>, room: u32, module: usize) -> u32 {
    status((|| {
        let module = driver()?.modules.find(module)?;
        let functions = functions.required()?;
        for (index, handle) in runnable(&module).take(room as usize).enumerate() {
            functions.set_at(index, handle);
        }
        Ok(())
    })())
}

fn runnable(module: &Module) -> impl Iterator<Item = usize> {
    module.functions.iter().filter_map(|(_, handle)| *handle)
}

/// Lazy loading has nothing to load.
pub extern "C" fn get_loading_mode(mode: Out<u32>) -> u32 {
    const LAZY: u32 = 2;
    status(
        driver()
            .and_then(|_| mode.required())
            .map(|mode| mode.set(LAZY)),
    )
}

/// The arguments of `cuLibraryLoadData` after the image: options of the compiler and of the library.
pub extern "C" fn library_load_data(library: Out<usize>, image: Text) -> u32 {
    status((|| {
        let driver = driver()?;
        let library = library.required()?;
        library.set(load(
            driver,
            &image.bytes().ok_or(CuResult::ERROR_INVALID_VALUE)?,
        )?);
        Ok(())
    })())
}

pub extern "C" fn library_load_file(library: Out<usize>, path: Text) -> u32 {
    status((|| {
        let driver = driver()?;
        let library = library.required()?;
        library.set(load(driver, &read_file(path)?)?);
        Ok(())
    })())
}

pub extern "C" fn library_get_module(module: Out<usize>, library: usize) -> u32 {
    status((|| {
        driver()?.modules.find(library)?;
        module.required()?.set(library);
        Ok(())
    })())
}

/// A kernel of a library is the same thing as a function of a module here.
pub extern "C" fn kernel_get_function(function: Out<usize>, kernel: usize) -> u32 {
    status((|| {
        driver()?.functions.find(kernel)?;
        function.required()?.set(kernel);
        Ok(())
    })())
}

pub extern "C" fn function_get_module(module: Out<usize>, function: usize) -> u32 {
    status((|| {
        let function = driver()?.functions.find(function)?;
        module.required()?.set(function.module);
        Ok(())
    })())
}

/// Names live as long as the process: a table of the kernels there are.
pub extern "C" fn function_get_name(name: Out<*const c_char>, function: usize) -> u32 {
    const NAMES: [&std::ffi::CStr; 4] = [
        c"gpuslice_spin",
        c"gpuslice_fill",
        c"gpuslice_saxpy",
        c"gpuslice_sum",
    ];
    status((|| {
        let function = driver()?.functions.find(function)?;
        let name = name.required()?;
        let known = NAMES
            .iter()
            .find(|known| known.to_bytes() == function.name.as_bytes());
        name.set(known.ok_or(CuResult::ERROR_NOT_FOUND)?.as_ptr());
        Ok(())
    })())
}

/// Attributes of a function (`CUfunction_attribute`).
pub extern "C" fn function_get_attribute(value: Out<i32>, which: u32, function: usize) -> u32 {
    const MAX_THREADS: u32 = 0;
    const REGISTERS: u32 = 4;
    const PTX_VERSION: u32 = 5;
    const BINARY_VERSION: u32 = 6;
    status((|| {
        driver()?.functions.find(function)?;
        let value = value.required()?;
        value.set(match which {
            MAX_THREADS => 1024,
            REGISTERS => 16,
            PTX_VERSION | BINARY_VERSION => 90,
            1..=15 => 0,
            _ => return Err(CuResult::ERROR_INVALID_VALUE),
        });
        Ok(())
    })())
}

/// Nothing that can be set changes how the built-in kernels run.
pub extern "C" fn function_set(function: usize) -> u32 {
    status(driver().and_then(|driver| driver.functions.find(function).map(|_| ())))
}

pub extern "C" fn max_active_blocks(
    blocks: Out<i32>,
    function: usize,
    block: i32,
    _shared: usize,
) -> u32 {
    status((|| {
        driver()?.functions.find(function)?;
        if !(1..=1024).contains(&block) {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        blocks.required()?.set((2048 / block).min(32));
        Ok(())
    })())
}

/// Finds the function and reads its arguments: the work of a launch.
pub fn launch_job(
    driver: &Driver,
    stream: &Stream,
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    each: *const *const c_void,
    extra: *const *const c_void,
) -> Result<Job, CuResult> {
    let function = driver.functions.find(function)?;
    check_shape(grid, block)?;
    Ok(Job::Work(
        stream.compute,
        function.work(&function.arguments(each, extra)?)?,
    ))
}

/// Whether a launch has blocks and threads, and not more than the GPU takes.
pub fn check_shape(grid: [u32; 3], block: [u32; 3]) -> Result<(), CuResult> {
    let threads = block
        .iter()
        .try_fold(1_u32, |product, length| product.checked_mul(*length))
        .unwrap_or(u32::MAX);
    let fits = block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64;
    let grid_fits = grid[0] <= i32::MAX as u32 && grid[1] <= 65535 && grid[2] <= 65535;
    if grid.contains(&0) || threads == 0 || threads > 1024 || !fits || !grid_fits {
        return Err(CuResult::ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// The first launch of a context asks for the GPU's name, as the real library does.
fn first_launch(driver: &Driver, stream: &Stream) -> Result<(), CuResult> {
    let Some(context) = driver.contexts.get(stream.context) else {
        return Ok(());
    };
    if !context.launched.swap(true, Ordering::Relaxed) {
        let _ = driver.node.client.control(
            driver.gpu(context.gpu)?.subdevice,
            0x2080_0110,
            &mut Block::new(132),
        );
    }
    Ok(())
}

fn launch_in(
    driver: &Driver,
    stream: &Arc<Stream>,
    function: usize,
    shape: [[u32; 3]; 2],
    each: *const *const c_void,
    extra: *const *const c_void,
) -> Result<(), CuResult> {
    let job = launch_job(driver, stream, function, shape[0], shape[1], each, extra)?;
    first_launch(driver, stream)?;
    driver.enqueue(stream, job).map(|_| ())
}

pub extern "C" fn launch<const PER_THREAD: bool>(
    function: usize,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared: u32,
    stream: usize,
    each: *const *const c_void,
    extra: *const *const c_void,
) -> u32 {
    status((|| {
        let driver = driver()?;
        let stream = driver.stream(stream, PER_THREAD)?;
        let shape = [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]];
        launch_in(driver, &stream, function, shape, each, extra)
    })())
}

/// Cooperative launches have no extra options.
pub extern "C" fn launch_cooperative<const PER_THREAD: bool>(
    function: usize,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: usize,
    each: *const *const c_void,
) -> u32 {
    let none = std::ptr::null();
    launch::<PER_THREAD>(
        function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, each, none,
    )
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: usize,
    attributes: usize,
    attribute_count: u32,
}

pub extern "C" fn launch_ex<const PER_THREAD: bool>(
    config: In<LaunchConfig>,
    function: usize,
    each: *const *const c_void,
    extra: *const *const c_void,
) -> u32 {
    status((|| {
        let driver = driver()?;
        let config = config.get().ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let stream = driver.stream(config.stream, PER_THREAD)?;
        launch_in(
            driver,
            &stream,
            function,
            [config.grid, config.block],
            each,
            extra,
        )
    })())
}
