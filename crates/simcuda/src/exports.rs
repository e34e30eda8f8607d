//! The symbols of both libraries.
//!
//! Every symbol that the table of crate `cuda` names is exported. Each export jumps through a table that is built
//! while compiling: a row holds the function that `overrides!` names for the symbol, or else the one that says "not
//! supported". A symbol named there that does not exist does not compile.

use std::arch::naked_asm;
use std::ffi::c_void;

use cuda::status::{CuResult, NvmlReturn};

use crate::api::{
    context, device, entry, graph, ipc, memory, module, pool, stream, transfer, virtual_memory,
};
use crate::nvml;

/// The address of a function, of whatever signature.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Row(*const c_void);

// SAFETY: the address of a function never changes and gives access to nothing.
unsafe impl Sync for Row {}

/// What every function of the driver API is that nobody has written.
extern "C" fn driver_default() -> u32 {
    CuResult::ERROR_NOT_SUPPORTED.0
}

/// What every function of NVML is that nobody has written.
extern "C" fn nvml_default() -> u32 {
    NvmlReturn::ERROR_NOT_SUPPORTED.0
}

/// Exports a stub for each symbol and numbers them, in the table's order.
macro_rules! stubs {
    ($table:ident, $rows:ident: $($symbol:ident)*) => {
        #[derive(Clone, Copy)]
        enum $rows { $($symbol),* }

        impl $rows {
            const COUNT: usize = [$($rows::$symbol),*].len();
        }

        $(
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $symbol() {
                naked_asm!(
                    "lea rax, [rip + {table}]",
                    "jmp [rax + {row} * 8]",
                    table = sym $table,
                    row = const $rows::$symbol as usize,
                )
            }
        )*
    };
}

macro_rules! driver_stubs {
    ($($symbol:ident)*) => { stubs!(DRIVER, DriverRow: $($symbol)*); };
}

macro_rules! nvml_stubs {
    ($($symbol:ident)*) => { stubs!(NVML, NvmlRow: $($symbol)*); };
}

cuda::for_each_driver_symbol!(driver_stubs);
cuda::for_each_nvml_symbol!(nvml_stubs);

/// Builds a table of rows from the default and the list of what is written.
macro_rules! overrides {
    ($table:ident: $rows:ident, $default:ident, { $($symbol:ident = $function:expr),* $(,)? }) => {
        static $table: [Row; $rows::COUNT] = {
            let mut table = [Row($default as *const c_void); $rows::COUNT];
            $(table[$rows::$symbol as usize] = Row($function as *const c_void);)*
            table
        };
    };
}

/// The function behind a symbol of the driver API, for `cuGetProcAddress`.
pub fn address(symbol: &str) -> Option<*const c_void> {
    let row = cuda::driver::SYMBOLS.binary_search(&symbol).ok()?;
    DRIVER.get(row).map(|row| row.0)
}

overrides!(DRIVER: DriverRow, driver_default, {
    // Starting up, versions, errors.
    cuInit = entry::init,
    cuDriverGetVersion = entry::driver_get_version,
    cuGetErrorName = entry::get_error_name,
    cuGetErrorString = entry::get_error_string,
    cuGetProcAddress = entry::get_proc_address,
    cuGetProcAddress_v2 = entry::get_proc_address_v2,
    cuGetExportTable = entry::get_export_table,
    cuProfilerStart = entry::profiler,
    cuProfilerStop = entry::profiler,
    // Devices.
    cuDeviceGet = device::get,
    cuDeviceGetCount = device::get_count,
    cuDeviceGetName = device::get_name,
    cuDeviceGetUuid = device::get_uuid,
    cuDeviceGetUuid_v2 = device::get_uuid,
    cuDeviceTotalMem = device::total_mem_v1,
    cuDeviceTotalMem_v2 = device::total_mem,
    cuDeviceComputeCapability = device::compute_capability,
    cuDeviceGetAttribute = device::get_attribute,
    cuDeviceGetPCIBusId = device::get_pci_bus_id,
    cuDeviceGetByPCIBusId = device::get_by_pci_bus_id,
    cuDeviceCanAccessPeer = device::can_access_peer,
    cuDeviceGetP2PAttribute = device::get_p2p_attribute,
    cuDeviceGetExecAffinitySupport = device::get_exec_affinity_support,
    cuDeviceGetDefaultMemPool = pool::get_default,
    cuDeviceGetMemPool = pool::get_current,
    cuDeviceSetMemPool = pool::set_current,
    // Contexts.
    cuDevicePrimaryCtxRetain = context::primary_retain,
    cuDevicePrimaryCtxRelease = context::primary_release,
    cuDevicePrimaryCtxRelease_v2 = context::primary_release,
    cuDevicePrimaryCtxReset = context::primary_reset,
    cuDevicePrimaryCtxReset_v2 = context::primary_reset,
    cuDevicePrimaryCtxSetFlags = context::primary_set_flags,
    cuDevicePrimaryCtxSetFlags_v2 = context::primary_set_flags,
    cuDevicePrimaryCtxGetState = context::primary_get_state,
    cuCtxCreate = context::create,
    cuCtxCreate_v2 = context::create,
    cuCtxCreate_v3 = context::create_v3,
    cuCtxCreate_v4 = context::create_v4,
    cuCtxDestroy = context::destroy,
    cuCtxDestroy_v2 = context::destroy,
    cuCtxPushCurrent = context::push,
    cuCtxPushCurrent_v2 = context::push,
    cuCtxPopCurrent = context::pop,
    cuCtxPopCurrent_v2 = context::pop,
    cuCtxSetCurrent = context::set,
    cuCtxGetCurrent = context::get_current,
    cuCtxGetDevice = context::get_device,
    cuCtxGetDevice_v2 = context::get_device_of,
    cuCtxGetFlags = context::get_flags,
    cuCtxSetFlags = context::set_flags,
    cuCtxGetId = context::get_id,
    cuCtxGetApiVersion = context::get_api_version,
    cuCtxSynchronize = context::synchronize,
    cuCtxSynchronize_v2 = context::synchronize_v2,
    cuCtxGetLimit = context::get_limit,
    cuCtxSetLimit = context::set_limit,
    cuCtxGetStreamPriorityRange = context::get_stream_priority_range,
    cuCtxGetCacheConfig = context::get_preference,
    cuCtxSetCacheConfig = context::set_preference,
    cuCtxGetSharedMemConfig = context::get_preference,
    cuCtxSetSharedMemConfig = context::set_preference,
    cuCtxEnablePeerAccess = context::enable_peer_access,
    cuCtxDisablePeerAccess = context::disable_peer_access,
    // Streams and events.
    cuStreamCreate = stream::create,
    cuStreamCreateWithPriority = stream::create_with_priority,
    cuStreamDestroy = stream::destroy,
    cuStreamDestroy_v2 = stream::destroy,
    cuStreamSynchronize = stream::synchronize::<false>,
    cuStreamSynchronize_ptsz = stream::synchronize::<true>,
    cuStreamQuery = stream::query::<false>,
    cuStreamQuery_ptsz = stream::query::<true>,
    cuStreamWaitEvent = stream::wait_event::<false>,
    cuStreamWaitEvent_ptsz = stream::wait_event::<true>,
    cuStreamGetFlags = stream::get_flags::<false>,
    cuStreamGetFlags_ptsz = stream::get_flags::<true>,
    cuStreamGetPriority = stream::get_priority::<false>,
    cuStreamGetPriority_ptsz = stream::get_priority::<true>,
    cuStreamGetId = stream::get_id::<false>,
    cuStreamGetId_ptsz = stream::get_id::<true>,
    cuStreamGetCtx = stream::get_context::<false>,
    cuStreamGetCtx_ptsz = stream::get_context::<true>,
    cuStreamGetDevice = stream::get_device::<false>,
    cuStreamGetDevice_ptsz = stream::get_device::<true>,
    cuStreamAttachMemAsync = stream::attach_memory::<false>,
    cuStreamAttachMemAsync_ptsz = stream::attach_memory::<true>,
    cuLaunchHostFunc = stream::launch_host_function::<false>,
    cuLaunchHostFunc_ptsz = stream::launch_host_function::<true>,
    cuEventCreate = stream::event_create,
    cuEventDestroy = stream::event_destroy,
    cuEventDestroy_v2 = stream::event_destroy,
    cuEventRecord = stream::event_record::<false>,
    cuEventRecord_ptsz = stream::event_record::<true>,
    cuEventRecordWithFlags = stream::event_record_with_flags::<false>,
    cuEventRecordWithFlags_ptsz = stream::event_record_with_flags::<true>,
    cuEventQuery = stream::event_query,
    cuEventSynchronize = stream::event_synchronize,
    cuEventElapsedTime = stream::event_elapsed_time,
    cuEventElapsedTime_v2 = stream::event_elapsed_time,
    // Modules, libraries, launches.
    cuModuleLoad = module::load_file,
    cuModuleLoadData = module::load_data,
    cuModuleLoadDataEx = module::load_data_ex,
    cuModuleUnload = module::unload,
    cuModuleGetFunction = module::get_function,
    cuModuleGetGlobal_v2 = module::get_global,
    cuModuleGetFunctionCount = module::get_function_count,
    cuModuleEnumerateFunctions = module::enumerate_functions,
    cuModuleGetLoadingMode = module::get_loading_mode,
    cuLibraryLoadData = module::library_load_data,
    cuLibraryLoadFromFile = module::library_load_file,
    cuLibraryUnload = module::unload,
    cuLibraryGetKernel = module::get_function,
    cuLibraryGetModule = module::library_get_module,
    cuLibraryGetKernelCount = module::get_function_count,
    cuLibraryEnumerateKernels = module::enumerate_functions,
    cuKernelGetFunction = module::kernel_get_function,
    cuKernelGetLibrary = module::function_get_module,
    cuKernelGetName = module::function_get_name,
    cuFuncGetModule = module::function_get_module,
    cuFuncGetName = module::function_get_name,
    cuFuncGetAttribute = module::function_get_attribute,
    cuFuncSetAttribute = module::function_set,
    cuFuncSetCacheConfig = module::function_set,
    cuFuncSetSharedMemConfig = module::function_set,
    cuFuncLoad = module::function_set,
    cuOccupancyMaxActiveBlocksPerMultiprocessor = module::max_active_blocks,
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = module::max_active_blocks,
    cuLaunchKernel = module::launch::<false>,
    cuLaunchKernel_ptsz = module::launch::<true>,
    cuLaunchKernelEx = module::launch_ex::<false>,
    cuLaunchKernelEx_ptsz = module::launch_ex::<true>,
    cuLaunchCooperativeKernel = module::launch_cooperative::<false>,
    cuLaunchCooperativeKernel_ptsz = module::launch_cooperative::<true>,
    // Graphs.
    cuStreamBeginCapture = graph::begin_capture_v1::<false>,
    cuStreamBeginCapture_ptsz = graph::begin_capture_v1::<true>,
    cuStreamBeginCapture_v2 = graph::begin_capture::<false>,
    cuStreamBeginCapture_v2_ptsz = graph::begin_capture::<true>,
    cuStreamEndCapture = graph::end_capture::<false>,
    cuStreamEndCapture_ptsz = graph::end_capture::<true>,
    cuStreamIsCapturing = graph::is_capturing::<false>,
    cuStreamIsCapturing_ptsz = graph::is_capturing::<true>,
    cuStreamGetCaptureInfo = graph::get_capture_info::<false>,
    cuStreamGetCaptureInfo_ptsz = graph::get_capture_info::<true>,
    cuStreamGetCaptureInfo_v2 = graph::get_capture_info::<false>,
    cuStreamGetCaptureInfo_v2_ptsz = graph::get_capture_info::<true>,
    cuStreamGetCaptureInfo_v3 = graph::get_capture_info::<false>,
    cuStreamGetCaptureInfo_v3_ptsz = graph::get_capture_info::<true>,
    cuThreadExchangeStreamCaptureMode = graph::exchange_capture_mode,
    cuGraphCreate = graph::create,
    cuGraphDestroy = graph::destroy,
    cuGraphAddKernelNode = graph::add_kernel_node,
    cuGraphAddKernelNode_v2 = graph::add_kernel_node,
    cuGraphGetNodes = graph::get_nodes,
    cuGraphGetRootNodes = graph::get_root_nodes,
    cuGraphNodeGetType = graph::node_get_type,
    cuGraphInstantiate = graph::instantiate_v2,
    cuGraphInstantiate_v2 = graph::instantiate_v2,
    cuGraphInstantiateWithFlags = graph::instantiate,
    cuGraphInstantiateWithParams = graph::instantiate_with_params::<false>,
    cuGraphInstantiateWithParams_ptsz = graph::instantiate_with_params::<true>,
    cuGraphExecDestroy = graph::executable_destroy,
    cuGraphLaunch = graph::launch::<false>,
    cuGraphLaunch_ptsz = graph::launch::<true>,
    cuGraphUpload = graph::upload::<false>,
    cuGraphUpload_ptsz = graph::upload::<true>,
    // Memory.
    cuMemGetInfo_v2 = memory::get_info,
    cuMemAlloc_v2 = memory::alloc,
    cuMemAllocPitch_v2 = memory::alloc_pitch,
    cuMemAllocManaged = memory::alloc_managed,
    cuMemFree_v2 = memory::free,
    cuMemAllocHost = memory::alloc_host,
    cuMemAllocHost_v2 = memory::alloc_host,
    cuMemHostAlloc = memory::host_alloc,
    cuMemFreeHost = memory::free_host,
    cuMemHostRegister = memory::host_register,
    cuMemHostRegister_v2 = memory::host_register,
    cuMemHostUnregister = memory::host_unregister,
    cuMemHostGetDevicePointer_v2 = memory::host_get_device_pointer,
    cuMemHostGetFlags = memory::host_get_flags,
    cuMemGetAddressRange_v2 = memory::get_address_range,
    cuMemAdvise = memory::advise,
    cuMemAdvise_v2 = memory::advise_v2,
    cuMemPrefetchAsync = memory::prefetch,
    cuMemPrefetchAsync_ptsz = memory::prefetch,
    cuMemPrefetchAsync_v2 = memory::prefetch_v2,
    cuMemPrefetchAsync_v2_ptsz = memory::prefetch_v2,
    cuPointerGetAttribute = memory::pointer_get_attribute,
    cuPointerGetAttributes = memory::pointer_get_attributes,
    cuPointerSetAttribute = memory::pointer_set_attribute,
    cuArrayCreate_v2 = memory::array_create,
    cuArray3DCreate_v2 = memory::array_3d_create,
    cuArrayGetDescriptor_v2 = memory::array_get_descriptor,
    cuArray3DGetDescriptor_v2 = memory::array_3d_get_descriptor,
    cuArrayDestroy = memory::array_destroy,
    cuIpcGetMemHandle = ipc::get_handle,
    cuIpcOpenMemHandle = ipc::open,
    cuIpcOpenMemHandle_v2 = ipc::open,
    cuIpcCloseMemHandle = ipc::close,
    // Memory pools.
    cuMemAllocAsync = pool::alloc_async::<false>,
    cuMemAllocAsync_ptsz = pool::alloc_async::<true>,
    cuMemAllocFromPoolAsync = pool::alloc_from_pool::<false>,
    cuMemAllocFromPoolAsync_ptsz = pool::alloc_from_pool::<true>,
    cuMemFreeAsync = pool::free_async::<false>,
    cuMemFreeAsync_ptsz = pool::free_async::<true>,
    cuMemPoolCreate = pool::create,
    cuMemPoolDestroy = pool::destroy,
    cuMemPoolTrimTo = pool::trim,
    cuMemPoolGetAttribute = pool::get_attribute,
    cuMemPoolSetAttribute = pool::set_attribute,
    cuMemPoolSetAccess = pool::set_access,
    // Virtual memory management.
    cuMemCreate = virtual_memory::create,
    cuMemRelease = virtual_memory::release,
    cuMemAddressReserve = virtual_memory::reserve,
    cuMemAddressFree = virtual_memory::unreserve,
    cuMemMap = virtual_memory::map,
    cuMemUnmap = virtual_memory::unmap,
    cuMemSetAccess = virtual_memory::set_access,
    cuMemGetAccess = virtual_memory::get_access,
    cuMemGetAllocationGranularity = virtual_memory::get_granularity,
    cuMemGetAllocationPropertiesFromHandle = virtual_memory::get_properties,
    cuMemExportToShareableHandle = virtual_memory::export,
    cuMemImportFromShareableHandle = virtual_memory::import,
    // Copies and fills.
    cuMemcpy = transfer::copy::<false>,
    cuMemcpy_ptds = transfer::copy::<true>,
    cuMemcpyAsync = transfer::copy_async::<false>,
    cuMemcpyAsync_ptsz = transfer::copy_async::<true>,
    cuMemcpyHtoD_v2 = transfer::host_to_device::<false>,
    cuMemcpyHtoD_v2_ptds = transfer::host_to_device::<true>,
    cuMemcpyHtoDAsync_v2 = transfer::host_to_device_async::<false>,
    cuMemcpyHtoDAsync_v2_ptsz = transfer::host_to_device_async::<true>,
    cuMemcpyDtoH_v2 = transfer::device_to_host::<false>,
    cuMemcpyDtoH_v2_ptds = transfer::device_to_host::<true>,
    cuMemcpyDtoHAsync_v2 = transfer::device_to_host_async::<false>,
    cuMemcpyDtoHAsync_v2_ptsz = transfer::device_to_host_async::<true>,
    cuMemcpyDtoD_v2 = transfer::device_to_device::<false>,
    cuMemcpyDtoD_v2_ptds = transfer::device_to_device::<true>,
    cuMemcpyDtoDAsync_v2 = transfer::device_to_device_async::<false>,
    cuMemcpyDtoDAsync_v2_ptsz = transfer::device_to_device_async::<true>,
    cuMemcpy2D_v2 = transfer::copy_2d::<false>,
    cuMemcpy2D_v2_ptds = transfer::copy_2d::<true>,
    cuMemcpy2DUnaligned_v2 = transfer::copy_2d::<false>,
    cuMemcpy2DUnaligned_v2_ptds = transfer::copy_2d::<true>,
    cuMemcpy2DAsync_v2 = transfer::copy_2d_async::<false>,
    cuMemcpy2DAsync_v2_ptsz = transfer::copy_2d_async::<true>,
    cuMemsetD8_v2 = transfer::fill_8::<false>,
    cuMemsetD8_v2_ptds = transfer::fill_8::<true>,
    cuMemsetD16_v2 = transfer::fill_16::<false>,
    cuMemsetD16_v2_ptds = transfer::fill_16::<true>,
    cuMemsetD32_v2 = transfer::fill_32::<false>,
    cuMemsetD32_v2_ptds = transfer::fill_32::<true>,
    cuMemsetD8Async = transfer::fill_8_async::<false>,
    cuMemsetD8Async_ptsz = transfer::fill_8_async::<true>,
    cuMemsetD16Async = transfer::fill_16_async::<false>,
    cuMemsetD16Async_ptsz = transfer::fill_16_async::<true>,
    cuMemsetD32Async = transfer::fill_32_async::<false>,
    cuMemsetD32Async_ptsz = transfer::fill_32_async::<true>,
    cuMemsetD2D8_v2 = transfer::fill_2d_8::<false>,
    cuMemsetD2D8_v2_ptds = transfer::fill_2d_8::<true>,
    cuMemsetD2D16_v2 = transfer::fill_2d_16::<false>,
    cuMemsetD2D16_v2_ptds = transfer::fill_2d_16::<true>,
    cuMemsetD2D32_v2 = transfer::fill_2d_32::<false>,
    cuMemsetD2D32_v2_ptds = transfer::fill_2d_32::<true>,
});

overrides!(NVML: NvmlRow, nvml_default, {
    nvmlInit = nvml::init,
    nvmlInit_v2 = nvml::init,
    nvmlInitWithFlags = nvml::init_with_flags,
    nvmlShutdown = nvml::shutdown,
    nvmlErrorString = nvml::error_string,
    nvmlSystemGetDriverVersion = nvml::system_get_driver_version,
    nvmlSystemGetNVMLVersion = nvml::system_get_nvml_version,
    nvmlSystemGetCudaDriverVersion = nvml::system_get_cuda_version,
    nvmlSystemGetCudaDriverVersion_v2 = nvml::system_get_cuda_version,
    nvmlDeviceGetCount = nvml::device_get_count,
    nvmlDeviceGetCount_v2 = nvml::device_get_count,
    nvmlDeviceGetHandleByIndex = nvml::device_by_index,
    nvmlDeviceGetHandleByIndex_v2 = nvml::device_by_index,
    nvmlDeviceGetHandleByUUID = nvml::device_by_uuid,
    nvmlDeviceGetHandleByPciBusId = nvml::device_by_pci,
    nvmlDeviceGetHandleByPciBusId_v2 = nvml::device_by_pci,
    nvmlDeviceGetName = nvml::device_get_name,
    nvmlDeviceGetUUID = nvml::device_get_uuid,
    nvmlDeviceGetIndex = nvml::device_get_index,
    nvmlDeviceGetMinorNumber = nvml::device_get_minor,
    nvmlDeviceGetPciInfo = nvml::device_get_pci_info,
    nvmlDeviceGetPciInfo_v2 = nvml::device_get_pci_info,
    nvmlDeviceGetPciInfo_v3 = nvml::device_get_pci_info,
    nvmlDeviceGetMemoryInfo = nvml::device_get_memory,
    nvmlDeviceGetMemoryInfo_v2 = nvml::device_get_memory_v2,
    nvmlDeviceGetUtilizationRates = nvml::device_get_utilization,
    nvmlDeviceGetCudaComputeCapability = nvml::device_get_compute_capability,
    nvmlDeviceGetComputeRunningProcesses = nvml::processes::<1>,
    nvmlDeviceGetComputeRunningProcesses_v2 = nvml::processes::<2>,
    nvmlDeviceGetComputeRunningProcesses_v3 = nvml::processes::<2>,
    nvmlDeviceGetGraphicsRunningProcesses = nvml::no_processes,
    nvmlDeviceGetGraphicsRunningProcesses_v2 = nvml::no_processes,
    nvmlDeviceGetGraphicsRunningProcesses_v3 = nvml::no_processes,
});
