//! `libcuda.so.1`, opened at run time: on a card NVIDIA's, on a simulated node the simulated GPU's.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// A result of the driver API; 0 is success.
pub type Status = c_int;
/// An opaque handle: context, module, function, stream, event, graph.
pub type Handle = *mut c_void;
/// An address on the device.
pub type DevicePtr = u64;

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions that the probe calls.
        pub struct Library {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Library {
            /// Looks every function up.
            fn resolve(handle: *mut c_void) -> Result<Library, String> {
                Ok(Library { $($name: {
                    let symbol = find(handle, $symbol)?;
                    // SAFETY: the symbol is exported by the CUDA driver library under a versioned name whose signature
                    // is fixed (cuda.h): the one that this table's row repeats.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Status>(symbol) }
                },)* })
            }
        }
    };
}

functions! {
    init = c"cuInit" (c_uint);
    driver_get_version = c"cuDriverGetVersion" (*mut c_int);
    get_error_name = c"cuGetErrorName" (Status, *mut *const c_char);
    device_get_count = c"cuDeviceGetCount" (*mut c_int);
    device_get = c"cuDeviceGet" (*mut c_int, c_int);
    device_get_name = c"cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_get_uuid = c"cuDeviceGetUuid_v2" (*mut [u8; 16], c_int);
    device_get_attribute = c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    primary_ctx_retain = c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    primary_ctx_release = c"cuDevicePrimaryCtxRelease_v2" (c_int);
    ctx_set_current = c"cuCtxSetCurrent" (Handle);
    mem_get_info = c"cuMemGetInfo_v2" (*mut usize, *mut usize);
    mem_alloc = c"cuMemAlloc_v2" (*mut DevicePtr, usize);
    mem_free = c"cuMemFree_v2" (DevicePtr);
    module_load_data = c"cuModuleLoadData" (*mut Handle, *const c_void);
    module_get_function = c"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    stream_create = c"cuStreamCreate" (*mut Handle, c_uint);
    stream_synchronize = c"cuStreamSynchronize" (Handle);
    event_create = c"cuEventCreate" (*mut Handle, c_uint);
    event_record = c"cuEventRecord" (Handle, Handle);
    event_synchronize = c"cuEventSynchronize" (Handle);
    launch_kernel = c"cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
    stream_begin_capture = c"cuStreamBeginCapture_v2" (Handle, c_uint);
    stream_end_capture = c"cuStreamEndCapture" (Handle, *mut Handle);
    graph_instantiate = c"cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    graph_launch = c"cuGraphLaunch" (Handle, Handle);
}

fn find(handle: *mut c_void, symbol: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the handle is of an open library and the name is terminated.
    let address = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
    if address.is_null() {
        let symbol = symbol.to_string_lossy();
        return Err(format!(
            "libcuda.so.1 has no {symbol}: the driver is older than CUDA 12.0; update it"
        ));
    }
    Ok(address)
}

impl Library {
    /// Opens the library; it stays open.
    ///
    /// # Errors
    /// One line: what is missing and what to do.
    pub fn open() -> Result<Library, String> {
        // SAFETY: the name is terminated; what the library's constructors do is its vendor's affair, as for every
        // program that uses the GPU.
        let handle =
            unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failed dlopen, dlerror gives a terminated string that lasts until the next call.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) }
                .to_string_lossy()
                .into_owned();
            return Err(format!(
                "cannot open the CUDA driver library ({why}): install the NVIDIA driver, or try `gpuslice sim 1xH200 -- gpuslice probe`"
            ));
        }
        Library::resolve(handle)
    }

    /// The name of a result, as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn name(&self, status: Status) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: `name` is a live pointer that the call sets to a static string, or to null.
        let known = unsafe { (self.get_error_name)(status, &mut name) } == 0 && !name.is_null();
        if known {
            // SAFETY: the library's error names are static terminated strings.
            unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned()
        } else {
            format!("error {status}")
        }
    }
}
