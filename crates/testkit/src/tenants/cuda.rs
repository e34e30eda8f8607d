//! The CUDA driver API and NVML as a program uses them: opened at run time.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Out of memory (`CUDA_ERROR_OUT_OF_MEMORY`).
pub const OUT_OF_MEMORY: c_int = 2;

/// An open library.
pub(super) struct Library(*mut c_void);

impl Library {
    pub(super) fn open(name: &CStr) -> Result<Library, String> {
        // SAFETY: the name is a terminated string; a library that runs code when it is loaded is trusted to.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            Err(format!("{} cannot be loaded", name.to_string_lossy()))
        } else {
            Ok(Library(handle))
        }
    }

    /// A function of the library.
    ///
    /// # Safety
    /// `F` is the type of a pointer to a function with the signature that the library's header gives `name`.
    pub(super) unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is of an open library; libraries stay open to the end of the program.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            return Err(format!("the library lacks {}", name.to_string_lossy()));
        }
        // SAFETY: of the size of a pointer (checked above), and the caller vouches for the type.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

type MemInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;

/// The first GPU with a context on it.
pub struct Cuda {
    total_mem: unsafe extern "C" fn(*mut usize, c_int) -> c_int,
    mem_info: MemInfo,
    alloc: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    free: unsafe extern "C" fn(u64) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    device: c_int,
}

pub(super) fn ok(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 {
        Ok(())
    } else {
        Err(format!("{what} failed with {code}"))
    }
}

impl Cuda {
    /// Initialises CUDA and makes the first GPU's context current.
    ///
    /// # Errors
    /// One line: what failed, with CUDA's error number.
    pub fn open() -> Result<Cuda, String> {
        let library = Library::open(c"libcuda.so.1")?;
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: each type is the signature in cuda.h of that name; every pointer passed is to a live variable of the
        // type that the function writes.
        unsafe {
            let init: unsafe extern "C" fn(c_uint) -> c_int = library.function(c"cuInit")?;
            let get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int =
                library.function(c"cuDeviceGet")?;
            let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int =
                library.function(c"cuDevicePrimaryCtxRetain")?;
            let set: unsafe extern "C" fn(*mut c_void) -> c_int =
                library.function(c"cuCtxSetCurrent")?;
            ok("cuInit", init(0))?;
            ok("cuDeviceGet", get(&mut device, 0))?;
            ok("cuDevicePrimaryCtxRetain", retain(&mut context, device))?;
            ok("cuCtxSetCurrent", set(context))?;
            Ok(Cuda {
                total_mem: library.function(c"cuDeviceTotalMem_v2")?,
                mem_info: library.function(c"cuMemGetInfo_v2")?,
                alloc: library.function(c"cuMemAlloc_v2")?,
                free: library.function(c"cuMemFree_v2")?,
                to_device: library.function(c"cuMemcpyHtoD_v2")?,
                device,
            })
        }
    }

    /// `cuDeviceTotalMem`, in bytes.
    ///
    /// # Errors
    /// CUDA's error number in a line.
    pub fn total(&self) -> Result<u64, String> {
        let mut bytes = 0;
        // SAFETY: the function is cuda.h's; it writes one size to a live variable.
        ok("cuDeviceTotalMem", unsafe {
            (self.total_mem)(&mut bytes, self.device)
        })?;
        Ok(bytes as u64)
    }

    /// `cuMemGetInfo`: free and total bytes.
    ///
    /// # Errors
    /// CUDA's error number in a line.
    pub fn info(&self) -> Result<(u64, u64), String> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the function is cuda.h's; it writes two sizes to live variables.
        ok("cuMemGetInfo", unsafe {
            (self.mem_info)(&mut free, &mut total)
        })?;
        Ok((free as u64, total as u64))
    }

    /// `cuMemAlloc`: the address, or CUDA's error number.
    ///
    /// # Errors
    /// CUDA's error number.
    pub fn alloc(&self, size: u64) -> Result<u64, c_int> {
        let mut address = 0;
        // SAFETY: the function is cuda.h's; it writes one address to a live variable.
        match unsafe { (self.alloc)(&mut address, size as usize) } {
            0 => Ok(address),
            code => Err(code),
        }
    }

    /// `cuMemcpyHtoD`: done when it returns.
    ///
    /// # Errors
    /// CUDA's error number in a line.
    pub fn copy_to(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: the function is cuda.h's; the bytes are live, and the device checks the address.
        ok("cuMemcpyHtoD", unsafe {
            (self.to_device)(address, bytes.as_ptr().cast(), bytes.len())
        })
    }

    /// `cuMemFree`.
    ///
    /// # Errors
    /// CUDA's error number in a line.
    pub fn free(&self, address: u64) -> Result<(), String> {
        // SAFETY: the function is cuda.h's; the address came from `alloc` and is not used again.
        ok("cuMemFree", unsafe { (self.free)(address) })
    }
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct MemoryV1 {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Default)]
struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// What NVML says of the first GPU: (total, free) bytes by its two functions.
///
/// # Errors
/// One line: what failed, with NVML's error number.
pub fn nvml_memory() -> Result<[(u64, u64); 2], String> {
    let library = Library::open(c"libnvidia-ml.so.1")?;
    let mut device: *mut c_char = std::ptr::null_mut();
    let (mut v1, mut v2) = (MemoryV1::default(), MemoryV2::default());
    // NVML_STRUCT_VERSION: the size in the low bits, the version in the high ones.
    v2.version = size_of::<MemoryV2>() as c_uint | 2 << 24;
    // SAFETY: each type is the signature in nvml.h of that name (a device is a pointer to something opaque); every
    // pointer passed is to a live variable of the type that the function writes.
    unsafe {
        let init: unsafe extern "C" fn() -> c_int = library.function(c"nvmlInit_v2")?;
        let get: unsafe extern "C" fn(c_uint, *mut *mut c_char) -> c_int =
            library.function(c"nvmlDeviceGetHandleByIndex_v2")?;
        let memory: unsafe extern "C" fn(*mut c_char, *mut MemoryV1) -> c_int =
            library.function(c"nvmlDeviceGetMemoryInfo")?;
        let memory_v2: unsafe extern "C" fn(*mut c_char, *mut MemoryV2) -> c_int =
            library.function(c"nvmlDeviceGetMemoryInfo_v2")?;
        ok("nvmlInit", init())?;
        ok("nvmlDeviceGetHandleByIndex", get(0, &mut device))?;
        ok("nvmlDeviceGetMemoryInfo", memory(device, &mut v1))?;
        ok("nvmlDeviceGetMemoryInfo_v2", memory_v2(device, &mut v2))?;
    }
    Ok([(v1.total, v1.free), (v2.total, v2.free)])
}
