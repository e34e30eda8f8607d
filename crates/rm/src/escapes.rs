//! The frontend ioctls of branch 580, sorted by number.
//!
//! The driver looks at the low 8 bits and at the size, which must be the one given here; it does not look at the type
//! byte or at the direction. No size at all: the number exists in the headers, but the driver answers `EINVAL`.

use crate::row::*;

/// Numbers whose size the driver does not compare with one value, so a filter has to notify them at every size:
/// `CARD_INFO` (as many elements of 72 bytes as fit, none below the number of devices), `ATTACH_GPUS_TO_FD` (any
/// multiple of 4 above 0) and `QUERY_DEVICE_INTR` (8 bytes or more). Their `sizes` give what is usual.
pub const UNSIZED_ESCAPES: &[u8] = &[200, 212, 213];

escapes! {
    pub(crate) ESCAPES;
    0x27 "NV_ESC_RM_ALLOC_MEMORY" [56] IN_TENANT FREE [] [40] 48
        "pins pages of the caller; its class is checked afterwards, as the block may change under the driver";
    0x28 "NV_ESC_RM_ALLOC_OBJECT" [20] UNSUPPORTED FREE [] [16] -
        "replaced by RM_ALLOC";
    0x29 "NV_ESC_RM_FREE" [16] EXECUTE RELEASES [] [12] -
        "frees an object and all below it";
    0x2a "NV_ESC_RM_CONTROL" [32] EXECUTE FREE [] [28] -
        "decided by its command word";
    0x2b "NV_ESC_RM_ALLOC" [32, 48] EXECUTE FREE [] [28, 40] -
        "decided and charged by its class";
    0x32 "NV_ESC_RM_CONFIG_GET" [] UNSUPPORTED FREE [] [] -
        "not implemented by this driver";
    0x33 "NV_ESC_RM_CONFIG_SET" [] UNSUPPORTED FREE [] [] -
        "not implemented by this driver";
    0x34 "NV_ESC_RM_DUP_OBJECT" [28] EXECUTE SHARES [client(12)] [24] -
        "another handle for one object, which lives until the last is freed";
    0x35 "NV_ESC_RM_SHARE" [24] EXECUTE FREE [client(8)] [20] -
        "who may duplicate an object: never everyone, never a user";
    0x37 "NV_ESC_RM_CONFIG_GET_EX" [] UNSUPPORTED FREE [] [] -
        "not implemented by this driver";
    0x38 "NV_ESC_RM_CONFIG_SET_EX" [] UNSUPPORTED FREE [] [] -
        "not implemented by this driver";
    0x39 "NV_ESC_RM_I2C_ACCESS" [32] UNSUPPORTED FREE [] [24] -
        "the I2C bus of the board";
    0x41 "NV_ESC_RM_IDLE_CHANNELS" [56] UNSUPPORTED FREE [] [48] -
        "names channels of any client in three arrays behind pointers; CUDA does not call it";
    0x4a "NV_ESC_RM_VID_HEAP_CONTROL" [184] EXECUTE VID_HEAP [] [20] -
        "allocates by function 2, 6, 14; only 2, 3, 5, 6, 14, 15, 16 and 18 may reach the driver";
    0x4d "NV_ESC_RM_ACCESS_REGISTRY" [72] UNSUPPORTED FREE [] [64] -
        "settings of the driver";
    0x4e "NV_ESC_RM_MAP_MEMORY" [56] EXECUTE FREE [] [40] 48
        "prepares an mmap of the descriptor it names; the driver wants the process that owns the client";
    0x4f "NV_ESC_RM_UNMAP_MEMORY" [32] EXECUTE FREE [] [24] -
        "undoes RM_MAP_MEMORY";
    0x52 "NV_ESC_RM_GET_EVENT_DATA" [16] EXECUTE FREE [] [12] -
        "takes an event from the queue of its own file; debuggers do nothing else while they wait";
    0x54 "NV_ESC_RM_ALLOC_CONTEXT_DMA2" [56] EXECUTE FREE [] [48] -
        "a window on memory it has (graphics)";
    0x56 "NV_ESC_RM_ADD_VBLANK_CALLBACK" [] UNSUPPORTED FREE [] [] -
        "not implemented by this driver";
    0x57 "NV_ESC_RM_MAP_MEMORY_DMA" [64] EXECUTE FREE [] [56] -
        "maps memory it has into its own address space";
    0x58 "NV_ESC_RM_UNMAP_MEMORY_DMA" [48] EXECUTE FREE [] [40] -
        "undoes RM_MAP_MEMORY_DMA; the memory stays";
    0x59 "NV_ESC_RM_BIND_CONTEXT_DMA" [16] UNSUPPORTED FREE [] [12] -
        "graphics";
    0x5c "NV_ESC_RM_EXPORT_OBJECT_TO_FD" [] UNSUPPORTED FREE [] [] -
        "not implemented by this driver: controls 0x3d05 and 0x3d06 do it";
    0x5d "NV_ESC_RM_IMPORT_OBJECT_FROM_FD" [] UNSUPPORTED FREE [] [] -
        "not implemented by this driver: controls 0x3d05 and 0x3d06 do it";
    0x5e "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO" [40] EXECUTE FREE [client(0)] [32] -
        "tells the driver that a mapping has moved; it does not compare the client with the file";
    0x5f "NV_ESC_RM_LOCKLESS_DIAGNOSTIC" [15412] UNSUPPORTED FREE [] [4] -
        "driver logs, for root";
    200 "NV_ESC_CARD_INFO" [2304] EXECUTE FREE [] [-] -
        "the devices of the node; takes any size, CUDA asks for 32 devices";
    201 "NV_ESC_REGISTER_FD" [4] EXECUTE FREE [] [-] 0
        "ties a device file to its control file, a descriptor of the caller";
    206 "NV_ESC_ALLOC_OS_EVENT" [16] EXECUTE FREE [client(0)] [12] -
        "the descriptor is only a key: the tenant's number stays; the client is not compared with the file";
    207 "NV_ESC_FREE_OS_EVENT" [16] EXECUTE FREE [client(0)] [12] -
        "finds an event by client and number alone, also one of another file";
    209 "NV_ESC_STATUS_CODE" [12] UNSUPPORTED FREE [] [8] -
        "no program needs it";
    210 "NV_ESC_CHECK_VERSION_STR" [72] EXECUTE FREE [] [-] -
        "compares version strings";
    211 "NV_ESC_IOCTL_XFER_CMD" [16] UNSUPPORTED FREE [] [-] -
        "wraps any other number";
    212 "NV_ESC_ATTACH_GPUS_TO_FD" [4] EXECUTE FREE [] [-] -
        "keeps devices initialised while the file is open; takes any multiple of 4 bytes";
    213 "NV_ESC_QUERY_DEVICE_INTR" [8] UNSUPPORTED FREE [] [4] -
        "reads a register; takes any size from 8";
    214 "NV_ESC_SYS_PARAMS" [8] EXECUTE FREE [] [-] -
        "tells the driver the memory block size, once a boot";
    215 "NV_ESC_NUMA_INFO" [560] EXECUTE FREE [] [-] -
        "asks where device memory is on line as host memory";
    216 "NV_ESC_SET_NUMA_STATUS" [4] UNSUPPORTED FREE [] [-] -
        "takes device memory on and off line, for root";
    217 "NV_ESC_EXPORT_TO_DMABUF_FD" [2608] EXECUTE SHARES [client(4)] [2600] 0
        "the descriptor keeps the memory alive after its handle is freed; -1 asks for a new one";
    218 "NV_ESC_WAIT_OPEN_COMPLETE" [8] EXECUTE FREE [] [-] -
        "result of an asynchronous open";
}
