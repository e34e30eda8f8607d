//! What exists, what there is, and what NVML says of it.

use std::ffi::{CStr, c_char, c_void};

use super::{INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_FOUND, NOT_INITIALIZED, NOT_SUPPORTED};
use crate::api::{Gpu, Library, call, ok};

/// Every symbol exists; what is not written says so.
pub fn exports(library: Library) {
    let missing: Vec<_> = cuda::driver::SYMBOLS
        .iter()
        .chain(cuda::nvml::SYMBOLS)
        .filter(|symbol| library.symbol(symbol).is_null())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(
        call!(library, cuGraphicsGLRegisterBuffer(0 => usize, 0 => u32, 0 => u32)),
        NOT_SUPPORTED
    );
    assert_eq!(
        call!(library, nvmlDeviceGetFanSpeed(0 => usize, 0 => usize)),
        3
    );
    let mut version = 0;
    ok!(library, cuDriverGetVersion(&mut version => *mut i32));
    assert_eq!(version, 13000);

    let mut found = std::ptr::null::<c_void>();
    let mut result = 9_u32;
    let name = |name: &'static CStr| name.as_ptr();
    ok!(library, cuGetProcAddress_v2(name(c"cuMemAlloc") => *const c_char, &mut found => *mut *const c_void,
        12000 => i32, 0 => u64, &mut result => *mut u32));
    assert!(!found.is_null() && result == 0);
    ok!(library, cuGetProcAddress_v2(name(c"cuMemCreate") => *const c_char, &mut found => *mut *const c_void,
        9000 => i32, 0 => u64, &mut result => *mut u32));
    assert!(found.is_null() && result == 2, "too old a version");
    ok!(library, cuGetProcAddress_v2(name(c"cuNothing") => *const c_char, &mut found => *mut *const c_void,
        12000 => i32, 0 => u64, &mut result => *mut u32));
    assert!(found.is_null() && result == 1, "no such function");
    let got = call!(library, cuGetProcAddress(name(c"cuNothing") => *const c_char,
        &mut found => *mut *const c_void, 12000 => i32, 0 => u64));
    assert_eq!(got, NOT_FOUND);
    assert_eq!(
        call!(library, cuGetExportTable(&mut found => *mut *const c_void, &[0_u8; 16] => *const [u8; 16])),
        NOT_FOUND
    );

    let mut text = std::ptr::null::<c_char>();
    ok!(library, cuGetErrorName(2 => u32, &mut text => *mut *const c_char));
    // SAFETY: a string of the library, which stays loaded.
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(
        call!(library, cuGetErrorName(12345 => u32, &mut text => *mut *const c_char)),
        INVALID_VALUE
    );
    assert!(text.is_null());
    assert_eq!(
        call!(library, cuDeviceGetCount(&mut version => *mut i32)),
        NOT_INITIALIZED
    );
    assert_eq!(
        call!(library, nvmlDeviceGetCount_v2(&mut result => *mut u32)),
        1
    );
}

/// Every function, with nothing for every argument: a status, never a crash; and what may be left out is.
pub fn nothing_given(gpu: Gpu) {
    type Any = extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> u32;
    let library = gpu.library;
    for symbol in cuda::driver::SYMBOLS {
        let address = library.symbol(symbol);
        assert!(!address.is_null(), "{symbol}");
        // SAFETY: registers and stack hold zeros for every argument of any type that these functions have, none has
        // more than these eight words for small values, and whatever it leaves on the stack is the caller's.
        let function = unsafe { std::mem::transmute::<*mut c_void, Any>(address) };
        function(0, 0, 0, 0, 0, 0, 0, 0);
        // Some of them took the context away, which is right.
        Gpu::new(library);
    }
    let gpu = Gpu::new(library);
    let (mut free, mut total) = (0_usize, 0_usize);
    let none = std::ptr::null_mut::<usize>();
    ok!(library, cuMemGetInfo_v2(none => *mut usize, &mut total => *mut usize));
    ok!(library, cuMemGetInfo_v2(&mut free => *mut usize, none => *mut usize));
    ok!(library, cuMemGetInfo_v2(none => *mut usize, none => *mut usize));
    assert!(free > 0 && free < total);
    // A list of attributes, of which one has no place, and one of an address that is nobody's.
    let memory = gpu.alloc(4 << 20);
    let (mut kind, mut managed) = (9_u32, 9_u32);
    let places = [
        std::ptr::from_mut(&mut kind).cast::<c_void>(),
        std::ptr::from_mut(&mut managed).cast(),
    ];
    let attributes = [2_u32, 8];
    ok!(library, cuPointerGetAttributes(2 => u32, attributes.as_ptr() => *const u32,
        places.as_ptr() => *const *mut c_void, memory => u64));
    assert_eq!((kind, managed & 0xff), (2, 0));
    (kind, managed) = (9, 9);
    let got = call!(library, cuPointerGetAttributes(2 => u32, attributes.as_ptr() => *const u32,
        places.as_ptr() => *const *mut c_void, 64 => u64));
    assert_eq!(
        got, 0,
        "an address of nobody has no attributes, which is no error"
    );
    assert_eq!((kind, managed & 0xff), (0, 0));
}

/// Whatever a program calls first, and from how many threads at once, it goes on.
pub fn first_calls(library: Library) {
    let unknown = [0x5a_u8; 16];
    let mut table = std::ptr::null::<c_void>();
    assert_eq!(
        call!(library, cuGetExportTable(&mut table => *mut *const c_void, &unknown => *const [u8; 16])),
        NOT_FOUND
    );
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                ok!(library, cuInit(0 => u32));
                let mut count = 0;
                ok!(library, cuDeviceGetCount(&mut count => *mut i32));
                assert_eq!(count, 1);
            });
        }
    });
    assert!(start.elapsed() < std::time::Duration::from_secs(5));
}

/// Each version of the process list has elements of its own size, and writes nothing behind them.
pub fn process_lists(gpu: Gpu) {
    let library = gpu.library;
    const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;
    const TOO_SMALL: u32 = 7;
    ok!(library, nvmlInit_v2());
    let mut device = 0_usize;
    ok!(library, nvmlDeviceGetHandleByIndex_v2(0 => u32, &mut device => *mut usize));
    for (symbol, words) in [
        ("nvmlDeviceGetComputeRunningProcesses", 2),
        ("nvmlDeviceGetComputeRunningProcesses_v2", 3),
        ("nvmlDeviceGetComputeRunningProcesses_v3", 3),
    ] {
        let address = library.symbol(symbol);
        assert!(!address.is_null(), "{symbol}");
        // SAFETY: the three versions have these arguments (nvml.h); the elements differ.
        let list = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(usize, *mut u32, *mut u64) -> u32>(
                address,
            )
        };
        let mut count = 0;
        assert_eq!(list(device, &mut count, std::ptr::null_mut()), TOO_SMALL);
        assert_eq!(count, 1, "{symbol}");
        let mut found = [UNTOUCHED; 12];
        for room in [1, 4] {
            count = room;
            assert_eq!(list(device, &mut count, found.as_mut_ptr()), 0, "{symbol}");
            assert_eq!(
                (count, found[0] as u32),
                (1, std::process::id()),
                "{symbol}"
            );
            assert!(found[1] > 100 << 20, "{symbol}: a context takes memory");
            assert!(found[words..].iter().all(|w| *w == UNTOUCHED), "{symbol}");
        }
    }
}

/// Without a node there is no device.
pub fn no_node(library: Library) {
    assert_eq!(call!(library, cuInit(0 => u32)), NO_DEVICE);
    assert_eq!(call!(library, nvmlInit_v2()), 9);
}

/// The devices that are left are those that `EXPECTED` names by the last byte of their UUID.
pub fn visible_devices(library: Library) {
    let expected = std::env::var("EXPECTED").expect("the case says what to expect");
    if expected == "none" {
        assert_eq!(call!(library, cuInit(0 => u32)), NO_DEVICE);
        return;
    }
    ok!(library, cuInit(0 => u32));
    let mut count = 0;
    ok!(library, cuDeviceGetCount(&mut count => *mut i32));
    let found: Vec<String> = (0..count)
        .map(|device| {
            let mut uuid = [0_u8; 16];
            ok!(library, cuDeviceGetUuid_v2(&mut uuid => *mut [u8; 16], device => i32));
            uuid[15].to_string()
        })
        .collect();
    assert_eq!(found.join(" "), expected);
    let mut device = 0;
    assert_eq!(
        call!(library, cuDeviceGet(&mut device => *mut i32, count => i32)),
        INVALID_DEVICE
    );
}

pub fn devices(library: Library) {
    assert_eq!(call!(library, cuInit(1 => u32)), INVALID_VALUE);
    ok!(library, cuInit(0 => u32));
    ok!(library, cuInit(0 => u32));
    let mut count = 0;
    ok!(library, cuDeviceGetCount(&mut count => *mut i32));
    assert_eq!(count, 2);
    let mut name = [0_u8; 64];
    ok!(library, cuDeviceGetName(&mut name => *mut [u8; 64], 64 => i32, 1 => i32));
    assert!(name.starts_with(b"NVIDIA H200\0"));
    ok!(library, cuDeviceGetName(&mut name => *mut [u8; 64], 4 => i32, 1 => i32));
    assert!(name.starts_with(b"NVI\0"), "cut to the room there is");
    let (mut bytes, mut value) = (0_usize, 0);
    ok!(library, cuDeviceTotalMem_v2(&mut bytes => *mut usize, 0 => i32));
    assert_eq!(bytes, 146_591_680 * 1024);
    for (attribute, expected) in [(75, 9), (76, 0), (16, 132), (10, 32), (34, 7), (102, 1)] {
        ok!(library, cuDeviceGetAttribute(&mut value => *mut i32, attribute => u32, 1 => i32));
        assert_eq!(value, expected, "attribute {attribute}");
    }
    assert_eq!(
        call!(library, cuDeviceGetAttribute(&mut value => *mut i32, 9999 => u32, 1 => i32)),
        INVALID_VALUE
    );
    let nowhere = std::ptr::null_mut();
    assert_eq!(
        call!(library, cuDeviceGetAttribute(nowhere => *mut i32, 16 => u32, 1 => i32)),
        INVALID_VALUE
    );

    let mut place = [0_u8; 32];
    ok!(library, cuDeviceGetPCIBusId(&mut place => *mut [u8; 32], 32 => i32, 1 => i32));
    assert!(place.starts_with(b"0000:00:07.0\0"));
    for (text, expected) in [
        (c"0000:00:07.0", Some(1)),
        (c"0000:00:06", Some(0)),
        (c"00:07.0", Some(1)),
        (c"7", None),
    ] {
        let mut device = -1;
        let got = call!(library, cuDeviceGetByPCIBusId(&mut device => *mut i32, text.as_ptr() => *const c_char));
        assert_eq!((got == 0).then_some(device), expected, "{text:?}");
    }
    // Two contexts on two GPUs: memory of the one is not memory of the other.
    let first = Gpu::new(library);
    let before = first.free();
    let mut context = 0_usize;
    ok!(library, cuCtxCreate_v4(&mut context => *mut usize, std::ptr::null() => *const u8, 0 => u32, 1 => i32));
    ok!(library, cuCtxGetDevice(&mut value => *mut i32));
    assert_eq!(value, 1);
    let address = first.alloc(1 << 30);
    ok!(library, cuPointerGetAttribute(&mut value => *mut i32, 9 => u32, address => u64));
    assert_eq!(value, 1, "device of the pointer");
    ok!(library, cuCtxSetCurrent(first.context => usize));
    assert_eq!(first.free(), before);
    ok!(library, cuCtxDestroy_v2(context => usize));
}

pub fn nvml(library: Library) {
    ok!(library, nvmlInit_v2());
    let (mut count, mut device) = (0_u32, 0_usize);
    ok!(library, nvmlDeviceGetCount_v2(&mut count => *mut u32));
    assert_eq!(count, 2);
    ok!(library, nvmlDeviceGetHandleByIndex_v2(1 => u32, &mut device => *mut usize));
    let mut text = [0_u8; 96];
    let said = |text: &[u8]| {
        CStr::from_bytes_until_nul(text)
            .expect("it ends")
            .to_string_lossy()
            .into_owned()
    };
    ok!(library, nvmlDeviceGetName(device => usize, &mut text => *mut [u8; 96], 96 => u32));
    assert_eq!(said(&text), "NVIDIA H200");
    assert_eq!(
        call!(library, nvmlDeviceGetName(device => usize, &mut text => *mut [u8; 96], 4 => u32)),
        7
    );
    ok!(library, nvmlSystemGetDriverVersion(&mut text => *mut [u8; 96], 80 => u32));
    assert_eq!(said(&text), "580.159.04");
    ok!(library, nvmlDeviceGetUUID(device => usize, &mut text => *mut [u8; 96], 96 => u32));
    let mut same = 0_usize;
    ok!(library, nvmlDeviceGetHandleByUUID(&text => *const [u8; 96], &mut same => *mut usize));
    assert_eq!(same, device);
    for place in [c"00000000:00:07.0", c"0000:00:07.0", c"00:07.0"] {
        ok!(library, nvmlDeviceGetHandleByPciBusId_v2(place.as_ptr() => *const c_char, &mut same => *mut usize));
        assert_eq!(same, device, "{place:?}");
    }
    let mut number = 9_u32;
    ok!(library, nvmlDeviceGetMinorNumber(device => usize, &mut number => *mut u32));
    assert_eq!(number, 1);
    ok!(library, nvmlDeviceGetIndex(device => usize, &mut number => *mut u32));
    assert_eq!(number, 1);
    assert_eq!(
        call!(library, nvmlDeviceGetIndex(0 => usize, &mut number => *mut u32)),
        2
    );

    ok!(library, nvmlDeviceGetHandleByIndex_v2(0 => u32, &mut device => *mut usize));
    let memory = || {
        let (mut first, mut second) = ([0_u64; 3], [0_u64; 5]);
        second[0] = 0x0200_0028;
        ok!(library, nvmlDeviceGetMemoryInfo(device => usize, &mut first => *mut [u64; 3]));
        ok!(library, nvmlDeviceGetMemoryInfo_v2(device => usize, &mut second => *mut [u64; 5]));
        assert_eq!(first[0], first[1] + first[2]);
        assert_eq!(second[1], second[2] + second[3] + second[4]);
        assert_eq!((second[1], second[3]), (first[0], first[1]));
        second
    };
    let before = memory();
    assert_eq!(
        (before[1], before[4]),
        (147_221_504 * 1024, 0),
        "an idle card uses nothing"
    );
    let mut wrong = [1_u64, 0, 0, 0, 0];
    assert_eq!(
        call!(library, nvmlDeviceGetMemoryInfo_v2(device => usize, &mut wrong => *mut [u64; 5])),
        25
    );
    ok!(library, nvmlDeviceGetComputeRunningProcesses_v3(device => usize, &mut count => *mut u32,
        std::ptr::null_mut() => *mut u64));
    assert_eq!(count, 0);

    let gpu = Gpu::new(library);
    let free = gpu.free();
    let address = gpu.alloc(1 << 30);
    assert_eq!(
        memory()[3] as usize,
        free - (1 << 30),
        "NVML and the driver API agree"
    );
    count = 0;
    let got = call!(library, nvmlDeviceGetComputeRunningProcesses_v3(device => usize, &mut count => *mut u32,
        std::ptr::null_mut() => *mut u64));
    assert_eq!((got, count), (7, 1), "no room, and how much it takes");
    let mut process = [0_u64; 3];
    ok!(library, nvmlDeviceGetComputeRunningProcesses_v3(device => usize, &mut count => *mut u32,
        &mut process => *mut [u64; 3]));
    assert_eq!(process[0] as u32, std::process::id());
    assert!(process[1] > 1 << 30, "{}", process[1]);
    gpu.release(address);
    ok!(library, nvmlShutdown());
    assert_eq!(call!(library, nvmlShutdown()), 1);
}
