//! Calling a loaded library through the C interface.

use std::ffi::{CString, c_void};
use std::path::Path;

/// A loaded library.
#[derive(Clone, Copy)]
pub struct Library(*mut c_void);

// SAFETY: the handle of a loaded library may be used by any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads it.
    pub fn load(path: &Path) -> Library {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path has no NUL");
        // SAFETY: a path that ends with a NUL; the library runs nothing when it is loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{path:?} does not load");
        Library(handle)
    }

    /// The address of a symbol; NULL if there is none.
    pub fn symbol(self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("a symbol has no NUL");
        // SAFETY: the handle is of a loaded library and the name ends with a NUL.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}

/// Calls a function of the library: `call!(library, cuMemFree_v2(address: u64))`; gives the status.
macro_rules! call {
    ($library:expr, $name:ident($($value:expr => $type:ty),* $(,)?)) => {{
        let address = $library.symbol(stringify!($name));
        assert!(!address.is_null(), concat!("no ", stringify!($name)));
        // SAFETY: the types are those of the C interface's declaration of this function.
        unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn($($type),*) -> u32>(address)($($value),*)
        }
    }};
}

/// The same, and the call has to succeed.
macro_rules! ok {
    ($library:expr, $name:ident($($value:expr => $type:ty),* $(,)?)) => {
        assert_eq!(crate::api::call!($library, $name($($value => $type),*)), 0, stringify!($name))
    };
}

pub(crate) use {call, ok};

/// A program in PTX with the built-in kernels and one that is unknown.
pub const PTX: &std::ffi::CStr = c".version 8.0
.target sm_90
.address_size 64
.visible .entry gpuslice_spin(.param .u64 ns) { ret; }
.visible .entry gpuslice_fill(.param .u64 p, .param .u32 value, .param .u64 n) { ret; }
.visible .entry gpuslice_saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u64 n) { ret; }
.visible .entry gpuslice_sum(.param .u64 p, .param .u64 n, .param .u64 out) { ret; }
.visible .entry unknown_kernel() { ret; }
";

/// A library with a current context on the first GPU.
#[derive(Clone, Copy)]
pub struct Gpu {
    /// The library.
    pub library: Library,
    /// The primary context.
    pub context: usize,
}

impl Gpu {
    /// Initialises and makes the primary context current.
    pub fn new(library: Library) -> Gpu {
        ok!(library, cuInit(0 => u32));
        let mut context = 0_usize;
        ok!(library, cuDevicePrimaryCtxRetain(&mut context => *mut usize, 0 => i32));
        ok!(library, cuCtxSetCurrent(context => usize));
        Gpu { library, context }
    }

    /// Free memory, bytes.
    pub fn free(self) -> usize {
        let (mut free, mut total) = (0, 0);
        ok!(self.library, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize));
        assert!(free <= total);
        free
    }

    /// Allocates; gives the address.
    pub fn alloc(self, size: usize) -> u64 {
        let mut address = 0;
        ok!(self.library, cuMemAlloc_v2(&mut address => *mut u64, size => usize));
        assert_ne!(address, 0);
        address
    }

    /// Frees.
    pub fn release(self, address: u64) {
        ok!(self.library, cuMemFree_v2(address => u64));
    }

    /// A new stream that keeps no order with the default one.
    pub fn stream(self) -> usize {
        let mut stream = 0;
        ok!(self.library, cuStreamCreate(&mut stream => *mut usize, 1 => u32));
        stream
    }

    /// Waits for a stream.
    pub fn wait(self, stream: usize) {
        ok!(self.library, cuStreamSynchronize(stream => usize));
    }

    /// Loads [`PTX`]; gives the function of that name.
    pub fn function(self, name: &std::ffi::CStr) -> usize {
        let (mut module, mut function) = (0, 0);
        ok!(self.library, cuModuleLoadData(&mut module => *mut usize, PTX.as_ptr() => *const std::ffi::c_char));
        let got = call!(self.library, cuModuleGetFunction(
            &mut function => *mut usize, module => usize, name.as_ptr() => *const std::ffi::c_char));
        assert_eq!(got, 0, "{name:?}");
        function
    }

    /// Launches with arguments of up to 8 bytes each; gives the status.
    pub fn try_launch(self, function: usize, stream: usize, arguments: &[u64]) -> u32 {
        let pointers: Vec<*const u64> = arguments.iter().map(std::ptr::from_ref).collect();
        call!(self.library, cuLaunchKernel(
            function => usize, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32,
            stream => usize, pointers.as_ptr() => *const *const u64, std::ptr::null() => *const *const u64))
    }

    /// The same, and it has to succeed.
    pub fn launch(self, function: usize, stream: usize, arguments: &[u64]) {
        assert_eq!(self.try_launch(function, stream, arguments), 0);
    }

    /// Copies to the device.
    pub fn write(self, address: u64, bytes: &[u8]) {
        ok!(self.library, cuMemcpyHtoD_v2(address => u64, bytes.as_ptr() => *const u8, bytes.len() => usize));
    }

    /// Copies from the device.
    pub fn read(self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        ok!(self.library, cuMemcpyDtoH_v2(bytes.as_mut_ptr() => *mut u8, address => u64, len => usize));
        bytes
    }
}
