//! The CUDA driver API for the parts that the cases play.

use std::ffi::{CStr, c_void};

/// The primary context of the first GPU.
pub struct Cuda(*mut c_void);

macro_rules! call {
    ($cuda:expr, $name:literal ($($value:expr => $type:ty),*)) => {{
        let address = $cuda.symbol($name);
        // SAFETY: the types are those of the header's declaration of this function; what pointers lead to is live.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn($($type),*) -> u32>(address)($($value),*)
        }
    }};
}

/// `CUipcMemHandle`, passed by value.
#[repr(C)]
struct Handle([u8; 64]);

impl Cuda {
    pub fn open() -> Cuda {
        // SAFETY: the name is terminated; what a driver's library does when it is loaded is trusted.
        let cuda = Cuda(unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) });
        assert!(!cuda.0.is_null(), "no libcuda.so.1");
        let (mut device, mut context) = (0, 0_usize);
        let init = call!(cuda, c"cuInit" (0 => u32));
        let got = call!(cuda, c"cuDeviceGet" (&mut device => *mut i32, 0 => i32));
        let retained =
            call!(cuda, c"cuDevicePrimaryCtxRetain" (&mut context => *mut usize, device => i32));
        let set = call!(cuda, c"cuCtxSetCurrent" (context => usize));
        assert_eq!([init, got, retained, set], [0; 4]);
        cuda
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is of a loaded library and the name is terminated.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "no {name:?}");
        address
    }

    pub fn free(&self) -> u64 {
        let (mut free, mut total) = (0, 0_usize);
        let done =
            call!(self, c"cuMemGetInfo_v2" (&mut free => *mut usize, &mut total => *mut usize));
        assert_eq!(done, 0);
        free as u64
    }

    /// The address, or CUDA's error number.
    pub fn alloc(&self, size: u64) -> Result<u64, u32> {
        let mut address = 0;
        match call!(self, c"cuMemAlloc_v2" (&mut address => *mut u64, size as usize => usize)) {
            0 => Ok(address),
            error => Err(error),
        }
    }

    pub fn set(&self, at: u64, word: u32, count: usize) {
        let done = call!(self, c"cuMemsetD32_v2" (at => u64, word => u32, count => usize));
        assert_eq!(done, 0);
    }

    pub fn get(&self, at: u64) -> u32 {
        let mut word = 0;
        let done = call!(self, c"cuMemcpyDtoH_v2" (&mut word => *mut u32, at => u64, 4 => usize));
        assert_eq!(done, 0);
        word
    }

    pub fn export(&self, at: u64) -> [u8; 64] {
        let mut handle = [0; 64];
        let done = call!(self, c"cuIpcGetMemHandle" (&mut handle => *mut [u8; 64], at => u64));
        assert_eq!(done, 0);
        handle
    }

    pub fn import(&self, handle: [u8; 64]) -> u64 {
        let mut address = 0;
        let handle = Handle(handle);
        let done = call!(self, c"cuIpcOpenMemHandle_v2" (&mut address => *mut u64, handle => Handle, 1 => u32));
        assert_eq!(done, 0);
        address
    }
}
