//! Status numbers of the two libraries, with their names and a short text.

/// What a function of the driver API returns (`CUresult`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CuResult(pub u32);

/// What a function of NVML returns (`nvmlReturn_t`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct NvmlReturn(pub u32);

/// One status: its number, its name as `stringify!` gives it, and a text for people.
struct Entry {
    number: u32,
    name: &'static core::ffi::CStr,
    text: &'static core::ffi::CStr,
}

/// Declares a constant per status and the table that names them.
macro_rules! statuses {
    ($type:ident, $table:ident, $prefix:literal, $($number:literal $name:ident $text:literal)*) => {
        impl $type {
            $(
                #[doc = concat!("`", $prefix, stringify!($name), "`: ", $text, ".")]
                pub const $name: $type = $type($number);
            )*

            /// The name in the library's interface; none for a number that it does not have.
            pub fn name(self) -> Option<&'static core::ffi::CStr> {
                entry($table, self.0).map(|entry| entry.name)
            }

            /// A text for people; none for a number that the library does not have.
            pub fn text(self) -> Option<&'static core::ffi::CStr> {
                entry($table, self.0).map(|entry| entry.text)
            }
        }

        impl core::fmt::Debug for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(&name.to_string_lossy()),
                    None => write!(f, concat!(stringify!($type), "({})"), self.0),
                }
            }
        }

        static $table: &[Entry] = &[$(Entry {
            number: $number,
            name: c_str(concat!($prefix, stringify!($name), "\0")),
            text: c_str(concat!($text, "\0")),
        }),*];
    };
}

/// Checked while compiling: a literal with an inner NUL does not build.
const fn c_str(bytes: &'static str) -> &'static core::ffi::CStr {
    match core::ffi::CStr::from_bytes_with_nul(bytes.as_bytes()) {
        Ok(string) => string,
        Err(_) => panic!("a status text contains a NUL"),
    }
}

fn entry(table: &'static [Entry], number: u32) -> Option<&'static Entry> {
    table
        .binary_search_by_key(&number, |entry| entry.number)
        .ok()
        .map(|at| &table[at])
}

statuses! {
    CuResult, CU, "CUDA_",
    0 SUCCESS "no error"
    1 ERROR_INVALID_VALUE "invalid argument"
    2 ERROR_OUT_OF_MEMORY "out of memory"
    3 ERROR_NOT_INITIALIZED "initialization error"
    4 ERROR_DEINITIALIZED "driver shutting down"
    5 ERROR_PROFILER_DISABLED "profiler disabled"
    6 ERROR_PROFILER_NOT_INITIALIZED "profiler not initialized"
    7 ERROR_PROFILER_ALREADY_STARTED "profiler already started"
    8 ERROR_PROFILER_ALREADY_STOPPED "profiler already stopped"
    34 ERROR_STUB_LIBRARY "stub library"
    36 ERROR_CALL_REQUIRES_NEWER_DRIVER "call requires newer driver"
    46 ERROR_DEVICE_UNAVAILABLE "device busy or unavailable"
    100 ERROR_NO_DEVICE "no CUDA-capable device is detected"
    101 ERROR_INVALID_DEVICE "invalid device ordinal"
    102 ERROR_DEVICE_NOT_LICENSED "device not licensed"
    200 ERROR_INVALID_IMAGE "device kernel image is invalid"
    201 ERROR_INVALID_CONTEXT "invalid device context"
    202 ERROR_CONTEXT_ALREADY_CURRENT "context already current"
    205 ERROR_MAP_FAILED "mapping of buffer object failed"
    206 ERROR_UNMAP_FAILED "unmap failed"
    207 ERROR_ARRAY_IS_MAPPED "array is mapped"
    208 ERROR_ALREADY_MAPPED "resource already mapped"
    209 ERROR_NO_BINARY_FOR_GPU "no kernel image is available for execution on the device"
    210 ERROR_ALREADY_ACQUIRED "already acquired"
    211 ERROR_NOT_MAPPED "resource not mapped"
    212 ERROR_NOT_MAPPED_AS_ARRAY "not mapped as array"
    213 ERROR_NOT_MAPPED_AS_POINTER "not mapped as pointer"
    214 ERROR_ECC_UNCORRECTABLE "ecc uncorrectable"
    215 ERROR_UNSUPPORTED_LIMIT "limit is not supported on this architecture"
    216 ERROR_CONTEXT_ALREADY_IN_USE "context already in use"
    217 ERROR_PEER_ACCESS_UNSUPPORTED "peer access unsupported"
    218 ERROR_INVALID_PTX "a PTX JIT compilation failed"
    219 ERROR_INVALID_GRAPHICS_CONTEXT "invalid graphics context"
    220 ERROR_NVLINK_UNCORRECTABLE "nvlink uncorrectable"
    221 ERROR_JIT_COMPILER_NOT_FOUND "jit compiler not found"
    222 ERROR_UNSUPPORTED_PTX_VERSION "unsupported ptx version"
    223 ERROR_JIT_COMPILATION_DISABLED "jit compilation disabled"
    224 ERROR_UNSUPPORTED_EXEC_AFFINITY "unsupported exec affinity"
    225 ERROR_UNSUPPORTED_DEVSIDE_SYNC "unsupported devside sync"
    226 ERROR_CONTAINED "contained"
    300 ERROR_INVALID_SOURCE "invalid source"
    301 ERROR_FILE_NOT_FOUND "file not found"
    302 ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND "shared object symbol not found"
    303 ERROR_SHARED_OBJECT_INIT_FAILED "shared object init failed"
    304 ERROR_OPERATING_SYSTEM "OS call failed or operation not supported on this OS"
    400 ERROR_INVALID_HANDLE "invalid resource handle"
    401 ERROR_ILLEGAL_STATE "the operation cannot be performed in the present state"
    402 ERROR_LOSSY_QUERY "lossy query"
    500 ERROR_NOT_FOUND "named symbol not found"
    600 ERROR_NOT_READY "device not ready"
    700 ERROR_ILLEGAL_ADDRESS "an illegal memory access was encountered"
    701 ERROR_LAUNCH_OUT_OF_RESOURCES "too many resources requested for launch"
    702 ERROR_LAUNCH_TIMEOUT "launch timeout"
    703 ERROR_LAUNCH_INCOMPATIBLE_TEXTURING "launch incompatible texturing"
    704 ERROR_PEER_ACCESS_ALREADY_ENABLED "peer access is already enabled"
    705 ERROR_PEER_ACCESS_NOT_ENABLED "peer access has not been enabled"
    708 ERROR_PRIMARY_CONTEXT_ACTIVE "cannot set while device is active in this process"
    709 ERROR_CONTEXT_IS_DESTROYED "context is destroyed"
    710 ERROR_ASSERT "assert"
    711 ERROR_TOO_MANY_PEERS "too many peers"
    712 ERROR_HOST_MEMORY_ALREADY_REGISTERED "part or all of the requested memory range is already mapped"
    713 ERROR_HOST_MEMORY_NOT_REGISTERED "pointer does not correspond to a registered memory region"
    714 ERROR_HARDWARE_STACK_ERROR "hardware stack error"
    715 ERROR_ILLEGAL_INSTRUCTION "illegal instruction"
    716 ERROR_MISALIGNED_ADDRESS "misaligned address"
    717 ERROR_INVALID_ADDRESS_SPACE "invalid address space"
    718 ERROR_INVALID_PC "invalid pc"
    719 ERROR_LAUNCH_FAILED "unspecified launch failure"
    720 ERROR_COOPERATIVE_LAUNCH_TOO_LARGE "cooperative launch too large"
    721 ERROR_TENSOR_MEMORY_LEAK "tensor memory leak"
    800 ERROR_NOT_PERMITTED "operation not permitted"
    801 ERROR_NOT_SUPPORTED "operation not supported"
    802 ERROR_SYSTEM_NOT_READY "system not ready"
    803 ERROR_SYSTEM_DRIVER_MISMATCH "system driver mismatch"
    804 ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE "compat not supported on device"
    805 ERROR_MPS_CONNECTION_FAILED "mps connection failed"
    806 ERROR_MPS_RPC_FAILURE "mps rpc failure"
    807 ERROR_MPS_SERVER_NOT_READY "mps server not ready"
    808 ERROR_MPS_MAX_CLIENTS_REACHED "mps max clients reached"
    809 ERROR_MPS_MAX_CONNECTIONS_REACHED "mps max connections reached"
    810 ERROR_MPS_CLIENT_TERMINATED "mps client terminated"
    811 ERROR_CDP_NOT_SUPPORTED "cdp not supported"
    812 ERROR_CDP_VERSION_MISMATCH "cdp version mismatch"
    900 ERROR_STREAM_CAPTURE_UNSUPPORTED "operation not permitted when stream is capturing"
    901 ERROR_STREAM_CAPTURE_INVALIDATED "operation failed due to a previous error during capture"
    902 ERROR_STREAM_CAPTURE_MERGE "stream capture merge"
    903 ERROR_STREAM_CAPTURE_UNMATCHED "stream capture unmatched"
    904 ERROR_STREAM_CAPTURE_UNJOINED "stream capture unjoined"
    905 ERROR_STREAM_CAPTURE_ISOLATION "stream capture isolation"
    906 ERROR_STREAM_CAPTURE_IMPLICIT "stream capture implicit"
    907 ERROR_CAPTURED_EVENT "captured event"
    908 ERROR_STREAM_CAPTURE_WRONG_THREAD "stream capture wrong thread"
    909 ERROR_TIMEOUT "timeout"
    910 ERROR_GRAPH_EXEC_UPDATE_FAILURE "graph exec update failure"
    911 ERROR_EXTERNAL_DEVICE "external device"
    912 ERROR_INVALID_CLUSTER_SIZE "invalid cluster size"
    913 ERROR_FUNCTION_NOT_LOADED "function not loaded"
    914 ERROR_INVALID_RESOURCE_TYPE "invalid resource type"
    915 ERROR_INVALID_RESOURCE_CONFIGURATION "invalid resource configuration"
    916 ERROR_KEY_ROTATION "key rotation"
    999 ERROR_UNKNOWN "unknown error"
}

statuses! {
    NvmlReturn, NVML, "NVML_",
    0 SUCCESS "Success"
    1 ERROR_UNINITIALIZED "Uninitialized"
    2 ERROR_INVALID_ARGUMENT "Invalid Argument"
    3 ERROR_NOT_SUPPORTED "Not Supported"
    4 ERROR_NO_PERMISSION "Insufficient Permissions"
    5 ERROR_ALREADY_INITIALIZED "Already Initialized"
    6 ERROR_NOT_FOUND "Not Found"
    7 ERROR_INSUFFICIENT_SIZE "Insufficient Size"
    8 ERROR_INSUFFICIENT_POWER "Insufficient External Power"
    9 ERROR_DRIVER_NOT_LOADED "Driver Not Loaded"
    10 ERROR_TIMEOUT "Timeout"
    11 ERROR_IRQ_ISSUE "Interrupt Request Issue"
    12 ERROR_LIBRARY_NOT_FOUND "NVML Shared Library Not Found"
    13 ERROR_FUNCTION_NOT_FOUND "Function Not Found"
    14 ERROR_CORRUPTED_INFOROM "Corrupted infoROM"
    15 ERROR_GPU_IS_LOST "GPU is lost"
    16 ERROR_RESET_REQUIRED "GPU requires restart"
    17 ERROR_OPERATING_SYSTEM "Operating system call failed"
    18 ERROR_LIB_RM_VERSION_MISMATCH "Driver and library version mismatch"
    19 ERROR_IN_USE "In use by another client"
    20 ERROR_MEMORY "Insufficient memory"
    21 ERROR_NO_DATA "No data"
    22 ERROR_VGPU_ECC_NOT_SUPPORTED "Not supported while ECC is on"
    23 ERROR_INSUFFICIENT_RESOURCES "Insufficient resources"
    24 ERROR_FREQ_NOT_SUPPORTED "Frequency not supported"
    25 ERROR_ARGUMENT_VERSION_MISMATCH "Argument version mismatch"
    26 ERROR_DEPRECATED "Deprecated"
    27 ERROR_NOT_READY "Not ready"
    28 ERROR_GPU_NOT_FOUND "GPU not found"
    29 ERROR_INVALID_STATE "Invalid state"
    30 ERROR_RESET_TYPE_NOT_SUPPORTED "Reset type not supported"
    999 ERROR_UNKNOWN "Unknown Error"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted() {
        for table in [CU, NVML] {
            assert!(table.windows(2).all(|pair| pair[0].number < pair[1].number));
        }
    }

    #[test]
    fn numbers_and_names_agree() {
        assert_eq!(CuResult::ERROR_OUT_OF_MEMORY.0, 2);
        assert_eq!(
            CuResult::ERROR_OUT_OF_MEMORY.name(),
            Some(c"CUDA_ERROR_OUT_OF_MEMORY")
        );
        assert_eq!(CuResult(2).text(), Some(c"out of memory"));
        assert_eq!(CuResult::ERROR_NOT_SUPPORTED, CuResult(801));
        assert_eq!(
            NvmlReturn::ERROR_NOT_SUPPORTED.name(),
            Some(c"NVML_ERROR_NOT_SUPPORTED")
        );
        assert_eq!(NvmlReturn::ERROR_NOT_SUPPORTED, NvmlReturn(3));
    }

    #[test]
    fn unknown_numbers_have_no_name() {
        assert_eq!(CuResult(12345).name(), None);
        assert_eq!(NvmlReturn(998).text(), None);
        assert_eq!(format!("{:?}", CuResult(12345)), "CuResult(12345)");
    }
}
