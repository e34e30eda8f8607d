//! Sizes and field offsets of the driver's parameter blocks that are the same on every branch known.
//!
//! One module per structure, constants in bytes. `SIZE` is the size of the whole block; a field that the header
//! calls `size` is `SIZE_FIELD`. Every other name is the header's, in upper case. A size that is not the same
//! everywhere stands in the tables of [`Abi`](crate::Abi), an offset that is not in [`varying`](crate::varying): there is
//! no constant for either. `layouts/` holds the numbers of each branch as taken from its public headers by a C
//! compiler, and a test compares them with these.

/// One structure as the tests see it: path in the headers, block size, `(name, offset)` of each field.
#[cfg(test)]
pub(crate) type Listed = (
    &'static str,
    Option<usize>,
    &'static [(&'static str, usize)],
);

/// The constant of a block's size; `-`: not the same on every branch.
macro_rules! size {
    (-) => {};
    ($size:literal) => {
        /// Bytes of the whole block.
        pub const SIZE: usize = $size;
    };
}

macro_rules! layouts {
    ($( $(#[$doc:meta])* $module:ident: $path:literal, $size:tt, { $($field:ident = $offset:literal),* $(,)? } )*) => {
        $(
            $(#[$doc])*
            #[doc = concat!("\n\nThe headers call it `", $path, "`.")]
            pub mod $module {
                size! { $size }
                $(
                    #[doc = concat!("Byte offset of `", stringify!($field), "`.")]
                    pub const $field: usize = $offset;
                )*
            }
        )*

        /// Every structure of this file.
        #[cfg(test)]
        pub(crate) const ALL: &[Listed] = &[$(($path, at!($size), &[$((stringify!($field), $offset)),*])),*];
    };
}

layouts! {
    // Frontend ioctls.
    /// Parameters of `RM_FREE`.
    nvos00: "NVOS00_PARAMETERS", 16, { H_ROOT = 0, H_OBJECT_PARENT = 4, H_OBJECT_OLD = 8, STATUS = 12 }
    /// Parameters of `RM_ALLOC_MEMORY`, without the descriptor behind them.
    nvos02: "NVOS02_PARAMETERS", 48, {
        H_ROOT = 0, H_OBJECT_PARENT = 4, H_OBJECT_NEW = 8, H_CLASS = 12, FLAGS = 16, P_MEMORY = 24,
        LIMIT = 32, STATUS = 40
    }
    /// `RM_ALLOC_MEMORY` as the ioctl takes it: [`nvos02`] and a descriptor.
    nvos02_with_fd: "nv_ioctl_nvos02_parameters_with_fd", 56, { FD = 48 }
    /// Parameters of `RM_ALLOC_OBJECT`.
    nvos05: "NVOS05_PARAMETERS", 20, {
        H_ROOT = 0, H_OBJECT_PARENT = 4, H_OBJECT_NEW = 8, H_CLASS = 12, STATUS = 16
    }
    /// Parameters of `RM_ALLOC`, the short form.
    nvos21: "NVOS21_PARAMETERS", 32, {
        H_ROOT = 0, H_OBJECT_PARENT = 4, H_OBJECT_NEW = 8, H_CLASS = 12, P_ALLOC_PARMS = 16,
        PARAMS_SIZE = 24, STATUS = 28
    }
    /// Parameters of `RM_IDLE_CHANNELS`.
    nvos30: "NVOS30_PARAMETERS", 56, {
        H_CLIENT = 0, H_DEVICE = 4, H_CHANNEL = 8, NUM_CHANNELS = 12, PH_CLIENTS = 16, PH_DEVICES = 24,
        PH_CHANNELS = 32, FLAGS = 40, TIMEOUT = 44, STATUS = 48
    }
    /// Parameters of `RM_VID_HEAP_CONTROL`: the part in front of what depends on `FUNCTION`.
    nvos32: "NVOS32_PARAMETERS", 184, {
        H_ROOT = 0, H_OBJECT_PARENT = 4, FUNCTION = 8, H_VA_SPACE = 12, IVC_HEAP_NUMBER = 16, STATUS = 20,
        TOTAL = 24, FREE = 32, DATA = 40
    }
    /// `RM_VID_HEAP_CONTROL` with function 2 (allocate), offsets from the start of [`nvos32`].
    nvos32_alloc_size: "NVOS32_PARAMETERS.data.AllocSize", 184, {
        OWNER = 40, H_MEMORY = 44, TYPE = 48, FLAGS = 52, ATTR = 56, FORMAT = 60, COMPR_COVG = 64,
        ZCULL_COVG = 68, PARTITION_STRIDE = 72, WIDTH = 76, HEIGHT = 80, SIZE_FIELD = 88, ALIGNMENT = 96,
        OFFSET = 104, LIMIT = 112, ADDRESS = 120, RANGE_BEGIN = 128, RANGE_END = 136, ATTR2 = 144,
        CTAG_OFFSET = 148
    }
    /// `RM_VID_HEAP_CONTROL` with function 6 (allocate by pitch and height), offsets from the start of [`nvos32`].
    nvos32_alloc_tiled: "NVOS32_PARAMETERS.data.AllocTiledPitchHeight", 184, {
        OWNER = 40, H_MEMORY = 44, TYPE = 48, FLAGS = 52, HEIGHT = 56, PITCH = 60, ATTR = 64, WIDTH = 68,
        FORMAT = 72, COMPR_COVG = 76, ZCULL_COVG = 80, PARTITION_STRIDE = 84, SIZE_FIELD = 88,
        ALIGNMENT = 96, OFFSET = 104, LIMIT = 112, ADDRESS = 120, RANGE_BEGIN = 128, RANGE_END = 136,
        ATTR2 = 144, CTAG_OFFSET = 148
    }
    /// `RM_VID_HEAP_CONTROL` with function 14 (allocate in a range), offsets from the start of [`nvos32`].
    nvos32_alloc_range: "NVOS32_PARAMETERS.data.AllocSizeRange", 184, {
        OWNER = 40, H_MEMORY = 44, TYPE = 48, FLAGS = 52, ATTR = 56, FORMAT = 60, COMPR_COVG = 64,
        ZCULL_COVG = 68, PARTITION_STRIDE = 72, SIZE_FIELD = 80, ALIGNMENT = 88, OFFSET = 96, LIMIT = 104,
        RANGE_BEGIN = 112, RANGE_END = 120, ADDRESS = 128, ATTR2 = 136, CTAG_OFFSET = 140
    }
    /// `RM_VID_HEAP_CONTROL` with function 3 (free), offsets from the start of [`nvos32`].
    nvos32_free: "NVOS32_PARAMETERS.data.Free", 184, { OWNER = 40, H_MEMORY = 44, FLAGS = 48 }
    /// `RM_VID_HEAP_CONTROL` with function 5 (information), offsets from the start of [`nvos32`].
    nvos32_info: "NVOS32_PARAMETERS.data.Info", 184, { ATTR = 40, OFFSET = 48, SIZE_FIELD = 56, BASE = 64 }
    /// `RM_VID_HEAP_CONTROL` with function 27 (pin pages of the caller), offsets from the start of [`nvos32`].
    nvos32_os_descriptor: "NVOS32_PARAMETERS.data.AllocOsDesc", 184, {
        H_MEMORY = 40, TYPE = 44, FLAGS = 48, ATTR = 52, ATTR2 = 56, DESCRIPTOR = 64, LIMIT = 72,
        DESCRIPTOR_TYPE = 80
    }
    /// Parameters of `RM_MAP_MEMORY`, without the descriptor behind them.
    nvos33: "NVOS33_PARAMETERS", 48, {
        H_CLIENT = 0, H_DEVICE = 4, H_MEMORY = 8, OFFSET = 16, LENGTH = 24, P_LINEAR_ADDRESS = 32,
        STATUS = 40, FLAGS = 44
    }
    /// `RM_MAP_MEMORY` as the ioctl takes it: [`nvos33`] and a descriptor.
    nvos33_with_fd: "nv_ioctl_nvos33_parameters_with_fd", 56, { FD = 48 }
    /// Parameters of `RM_UNMAP_MEMORY`.
    nvos34: "NVOS34_PARAMETERS", 32, {
        H_CLIENT = 0, H_DEVICE = 4, H_MEMORY = 8, P_LINEAR_ADDRESS = 16, STATUS = 24, FLAGS = 28
    }
    /// Parameters of `RM_ACCESS_REGISTRY`.
    nvos38: "NVOS38_PARAMETERS", 72, {
        H_CLIENT = 0, H_OBJECT = 4, ACCESS_TYPE = 8, DEV_NODE_LENGTH = 12, P_DEV_NODE = 16,
        PARM_STR_LENGTH = 24, P_PARM_STR = 32, BINARY_DATA_LENGTH = 40, P_BINARY_DATA = 48, DATA = 56,
        ENTRY = 60, STATUS = 64
    }
    /// Parameters of `RM_ALLOC_CONTEXT_DMA2`.
    nvos39: "NVOS39_PARAMETERS", 56, {
        H_OBJECT_PARENT = 0, H_SUB_DEVICE = 4, H_OBJECT_NEW = 8, H_CLASS = 12, FLAGS = 16, SELECTOR = 20,
        H_MEMORY = 24, OFFSET = 32, LIMIT = 40, STATUS = 48
    }
    /// Parameters of `RM_GET_EVENT_DATA`.
    nvos41: "NVOS41_PARAMETERS", 16, { P_EVENT = 0, MORE_EVENTS = 8, STATUS = 12 }
    /// Parameters of `RM_MAP_MEMORY_DMA`.
    nvos46: "NVOS46_PARAMETERS", -, {
        H_CLIENT = 0, H_DEVICE = 4, H_DMA = 8, H_MEMORY = 12, OFFSET = 16, LENGTH = 24, FLAGS = 32
    }
    /// Parameters of `RM_UNMAP_MEMORY_DMA`.
    nvos47: "NVOS47_PARAMETERS", -, {
        H_CLIENT = 0, H_DEVICE = 4, H_DMA = 8, H_MEMORY = 12, FLAGS = 16, DMA_OFFSET = 24
    }
    /// Parameters of `RM_BIND_CONTEXT_DMA`.
    nvos49: "NVOS49_PARAMETERS", 16, { H_CLIENT = 0, H_CHANNEL = 4, H_CTX_DMA = 8, STATUS = 12 }
    /// Parameters of `RM_CONTROL`.
    nvos54: "NVOS54_PARAMETERS", 32, {
        H_CLIENT = 0, H_OBJECT = 4, CMD = 8, FLAGS = 12, PARAMS = 16, PARAMS_SIZE = 24, STATUS = 28
    }
    /// Parameters of `RM_DUP_OBJECT`.
    nvos55: "NVOS55_PARAMETERS", 28, {
        H_CLIENT = 0, H_PARENT = 4, H_OBJECT = 8, H_CLIENT_SRC = 12, H_OBJECT_SRC = 16, FLAGS = 20,
        STATUS = 24
    }
    /// Parameters of `RM_UPDATE_DEVICE_MAPPING_INFO`.
    nvos56: "NVOS56_PARAMETERS", 40, {
        H_CLIENT = 0, H_DEVICE = 4, H_MEMORY = 8, P_OLD_CPU_ADDRESS = 16, P_NEW_CPU_ADDRESS = 24,
        STATUS = 32
    }
    /// Parameters of `RM_SHARE`.
    nvos57: "NVOS57_PARAMETERS", 24, {
        H_CLIENT = 0, H_OBJECT = 4, SHARE_POLICY = 8, TARGET = 8, ACCESS_MASK = 12, TYPE = 16, ACTION = 18,
        STATUS = 20
    }
    /// Parameters of `RM_ALLOC`, the long form.
    nvos64: "NVOS64_PARAMETERS", 48, {
        H_ROOT = 0, H_OBJECT_PARENT = 4, H_OBJECT_NEW = 8, H_CLASS = 12, P_ALLOC_PARMS = 16,
        P_RIGHTS_REQUESTED = 24, PARAMS_SIZE = 32, FLAGS = 36, STATUS = 40
    }
    /// Parameters of `RM_I2C_ACCESS`.
    i2c_access: "NVOS_I2C_ACCESS_PARAMS", 32, {
        H_CLIENT = 0, H_DEVICE = 4, PARAM_SIZE = 8, PARAM_STRUCT_PTR = 16, STATUS = 24
    }
    /// One element of what `CARD_INFO` answers (an array, as many as the block has room for).
    card_info: "nv_ioctl_card_info_t", 72, {
        VALID = 0, DOMAIN = 4, BUS = 8, SLOT = 9, FUNCTION = 10, VENDOR_ID = 12, DEVICE_ID = 14,
        GPU_ID = 16, INTERRUPT_LINE = 20, REG_ADDRESS = 24, REG_SIZE = 32, FB_ADDRESS = 40, FB_SIZE = 48,
        MINOR_NUMBER = 56, DEV_NAME = 60
    }
    /// Parameters of `REGISTER_FD`.
    register_fd: "nv_ioctl_register_fd_t", 4, { CTL_FD = 0 }
    /// Parameters of `ALLOC_OS_EVENT`.
    alloc_os_event: "nv_ioctl_alloc_os_event_t", 16, { H_CLIENT = 0, H_DEVICE = 4, FD = 8, STATUS = 12 }
    /// Parameters of `FREE_OS_EVENT`.
    free_os_event: "nv_ioctl_free_os_event_t", 16, { H_CLIENT = 0, H_DEVICE = 4, FD = 8, STATUS = 12 }
    /// Parameters of `STATUS_CODE`.
    status_code: "nv_ioctl_status_code_t", 12, { DOMAIN = 0, BUS = 4, SLOT = 5, STATUS = 8 }
    /// Parameters of `CHECK_VERSION_STR`.
    check_version: "nv_ioctl_rm_api_version_t", 72, { CMD = 0, REPLY = 4, VERSION_STRING = 8 }
    /// Parameters of `XFER_CMD`.
    xfer: "nv_ioctl_xfer_t", 16, { CMD = 0, SIZE_FIELD = 4, PTR = 8 }
    /// Parameters of `QUERY_DEVICE_INTR`.
    query_device_intr: "nv_ioctl_query_device_intr", 8, { INTR_STATUS = 0, STATUS = 4 }
    /// Parameters of `SYS_PARAMS`.
    sys_params: "nv_ioctl_sys_params_t", 8, { MEMBLOCK_SIZE = 0 }
    /// Parameters of `NUMA_INFO`.
    numa_info: "nv_ioctl_numa_info_t", 560, {
        NID = 0, STATUS = 4, MEMBLOCK_SIZE = 8, NUMA_MEM_ADDR = 16, NUMA_MEM_SIZE = 24,
        USE_AUTO_ONLINE = 32, OFFLINE_ADDRESSES = 40
    }
    /// Parameters of `SET_NUMA_STATUS`.
    set_numa_status: "nv_ioctl_set_numa_status_t", 4, { STATUS = 0 }
    /// Parameters of `EXPORT_TO_DMABUF_FD`.
    export_to_dmabuf_fd: "nv_ioctl_export_to_dma_buf_fd_t", -, {
        FD = 0, H_CLIENT = 4, TOTAL_OBJECTS = 8, NUM_OBJECTS = 12, INDEX = 16, TOTAL_SIZE = 24
    }
    /// Parameters of `WAIT_OPEN_COMPLETE`.
    wait_open_complete: "nv_ioctl_wait_open_complete_t", 8, { RC = 0, ADAPTER_STATUS = 4 }

    // Allocation parameters.
    /// Allocation parameters of the memory classes.
    memory_allocation: "NV_MEMORY_ALLOCATION_PARAMS", -, {
        OWNER = 0, TYPE = 4, FLAGS = 8, WIDTH = 12, HEIGHT = 16, PITCH = 20, ATTR = 24, ATTR2 = 28,
        FORMAT = 32, COMPR_COVG = 36, ZCULL_COVG = 40, RANGE_LO = 48, RANGE_HI = 56, SIZE_FIELD = 64,
        ALIGNMENT = 72, OFFSET = 80, LIMIT = 88, ADDRESS = 96, CTAG_OFFSET = 104, H_VA_SPACE = 108,
        INTERNALFLAGS = 112, TAG = 116
    }
    /// Allocation parameters of a device.
    device_alloc: "NV0080_ALLOC_PARAMETERS", 56, {
        DEVICE_ID = 0, H_CLIENT_SHARE = 4, H_TARGET_CLIENT = 8, H_TARGET_DEVICE = 12, FLAGS = 16,
        VA_SPACE_SIZE = 24, VA_START_INTERNAL = 32, VA_LIMIT_INTERNAL = 40, VA_MODE = 48
    }
    /// Allocation parameters of a subdevice.
    subdevice_alloc: "NV2080_ALLOC_PARAMETERS", 4, { SUB_DEVICE_ID = 0 }
    /// Allocation parameters of a channel group.
    channel_group_alloc: "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", 20, {
        H_OBJECT_ERROR = 0, H_OBJECT_ECC_ERROR = 4, H_VA_SPACE = 8, ENGINE_TYPE = 12,
        B_IS_CALLING_CONTEXT_VGPU_PLUGIN = 16
    }
    /// Allocation parameters of a channel: the part a caller fills in.
    channel_alloc: "NV_CHANNEL_ALLOC_PARAMS", -, {
        H_OBJECT_ERROR = 0, H_OBJECT_BUFFER = 4, GP_FIFO_OFFSET = 8, GP_FIFO_ENTRIES = 16, FLAGS = 20,
        H_CONTEXT_SHARE = 24, H_VA_SPACE = 28, H_USERD_MEMORY = 32, USERD_OFFSET = 64, ENGINE_TYPE = 128,
        CID = 132, SUB_DEVICE_ID = 136, H_OBJECT_ECC_ERROR = 140, INTERNAL_FLAGS = 244, PROCESS_ID = 296,
        SUB_PROCESS_ID = 300
    }
    /// Allocation parameters of a context share (subcontext).
    ctxshare_alloc: "NV_CTXSHARE_ALLOCATION_PARAMETERS", 12, { H_VA_SPACE = 0, FLAGS = 4, SUBCTX_ID = 8 }
    /// Allocation parameters of an address space.
    vaspace_alloc: "NV_VASPACE_ALLOCATION_PARAMETERS", -, {
        INDEX = 0, FLAGS = 4, VA_SIZE = 8, VA_START_INTERNAL = 16, VA_LIMIT_INTERNAL = 24,
        BIG_PAGE_SIZE = 32, VA_BASE = 40
    }
    /// Allocation parameters of an event.
    event_alloc: "NV0005_ALLOC_PARAMETERS", 24, {
        H_PARENT_CLIENT = 0, H_SRC_RESOURCE = 4, H_CLASS = 8, NOTIFY_INDEX = 12, DATA = 16
    }
    /// Allocation parameters of a debugger.
    debugger_alloc: "NV83DE_ALLOC_PARAMETERS", 12, {
        H_DEBUGGER_CLIENT_OBSOLETE = 0, H_APP_CLIENT = 4, H_CLASS3D_OBJECT = 8
    }
    /// Allocation parameters of an event buffer (the context-switch timeline).
    event_buffer_alloc: "NV_EVENT_BUFFER_ALLOC_PARAMETERS", 72, {
        BUFFER_HEADER = 0, RECORD_BUFFER = 8, RECORD_SIZE = 16, RECORD_COUNT = 20, VARDATA_BUFFER = 24,
        VARDATA_BUFFER_SIZE = 32, RECORDS_FREE_THRESHOLD = 36, NOTIFICATION_HANDLE = 40,
        VARDATA_FREE_THRESHOLD = 48, H_SUB_DEVICE = 52, FLAGS = 56, H_BUFFER_HEADER = 60,
        H_RECORD_BUFFER = 64, H_VARDATA_BUFFER = 68
    }
    /// What an event buffer (class `0x90cd`) shows its reader: where it writes next, and what it dropped.
    event_buffer_header: "NV_EVENT_BUFFER_HEADER", 32, {
        RECORD_GET = 0, RECORD_PUT = 4, RECORD_COUNT = 8, RECORD_DROPCOUNT = 16, VARDATA_DROPCOUNT = 24
    }
    /// What stands before the payload of each record in an event buffer.
    event_record: "NV_EVENT_BUFFER_RECORD", 16, { TYPE = 0, SUBTYPE = 2, VAR_DATA = 4, INLINE_PAYLOAD = 8 }
    /// Payload of a record of the context-switch timeline.
    fecs_record: "NV_EVENT_BUFFER_FECS_RECORD_V2", 24, {
        TAG = 0, VMID = 1, SEQNO = 2, CONTEXT_ID = 4, PID = 8, MIG_GPU_INSTANCE_ID = 14,
        MIG_COMPUTE_INSTANCE_ID = 15, TIMESTAMP = 16
    }

    // Controls.
    /// Frame-buffer information behind a pointer (`0x20801301`).
    fb_info_v1: "NV2080_CTRL_FB_GET_INFO_PARAMS", 16, { FB_INFO_LIST_SIZE = 0, FB_INFO_LIST = 8 }
    /// Frame-buffer information, entries in the block (`0x20801303`).
    fb_info: "NV2080_CTRL_FB_GET_INFO_V2_PARAMS", -, { FB_INFO_LIST_SIZE = 0, FB_INFO_LIST = 4 }
    /// One entry of frame-buffer information.
    fb_info_entry: "NV2080_CTRL_FB_INFO", 8, { INDEX = 0, DATA = 4 }
    /// Process ids on a device (`0x2080018d`).
    pids: "NV2080_CTRL_GPU_GET_PIDS_PARAMS", 3812, { ID_TYPE = 0, ID = 4, PID_TBL_COUNT = 8, PID_TBL = 12 }
    /// Memory of processes (`0x2080018e`).
    pid_info: "NV2080_CTRL_GPU_GET_PID_INFO_PARAMS", 14408, { PID_INFO_LIST_COUNT = 0, PID_INFO_LIST = 8 }
    /// One entry of [`pid_info`].
    pid_info_entry: "NV2080_CTRL_GPU_PID_INFO", 72, {
        PID = 0, INDEX = 4, RESULT = 8, MEM_PRIVATE = 16, MEM_SHARED_OWNED = 24, MEM_SHARED_DUPED = 32,
        PROTECTED_MEM_PRIVATE = 40, PROTECTED_MEM_SHARED_OWNED = 48, PROTECTED_MEM_SHARED_DUPED = 56,
        SMC_SUBSCRIPTION = 64
    }
    /// Detach or attach channels (`0x2080110b`).
    disable_channels: "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS", 536, {
        B_DISABLE = 0, NUM_CHANNELS = 4, B_ONLY_DISABLE_SCHEDULING = 8, B_REWIND_GP_PUT = 9,
        P_RUNLIST_PREEMPT_EVENT = 16, H_CLIENT_LIST = 24, H_CHANNEL_LIST = 280
    }
    /// Timeslice of a channel group (`0xa06c0103`).
    timeslice: "NVA06C_CTRL_TIMESLICE_PARAMS", 8, { TIMESLICE_US = 0 }
    /// Preempt a channel group (`0xa06c0105`).
    preempt: "NVA06C_CTRL_PREEMPT_PARAMS", 8, { B_WAIT = 0, B_MANUAL_TIMEOUT = 1, TIMEOUT_US = 4 }
    /// Schedule a channel group or a channel (`0xa06c0101`, `0xa06f0103`).
    gpfifo_schedule: "NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS", -, {
        B_ENABLE = 0, B_SKIP_SUBMIT = 1
    }
    /// State of a channel (`0x208f0403`).
    channel_state: "NV208F_CTRL_FIFO_GET_CHANNEL_STATE_PARAMS", 16, {
        H_CHANNEL = 0, H_CLIENT = 4, B_BOUND = 8, B_ENABLED = 9, B_SCHEDULED = 10, B_CPU_MAP = 11,
        B_CONTENTION = 12, B_RUNLIST_SET = 13, B_DEFER_RC = 14
    }
    /// Preemption mode of a context (`0x20801210`).
    preemption_mode: "NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS", 32, {
        FLAGS = 0, H_CHANNEL = 4, GFXP_PREEMPT_MODE = 8, CILP_PREEMPT_MODE = 12, GR_ROUTE_INFO = 16
    }
    /// The channel that is on the compute engine (`0x2080121c`).
    resident_channel: "NV2080_CTRL_GR_GET_CURRENT_RESIDENT_CHANNEL_PARAMS", 24, { CH_ID = 0, GR_ROUTE_INFO = 8 }
    /// Hardware's numbers of channels (`0x0080170d`).
    channel_list: "NV0080_CTRL_FIFO_GET_CHANNELLIST_PARAMS", 24, {
        NUM_CHANNELS = 0, P_CHANNEL_HANDLE_LIST = 8, P_CHANNEL_LIST = 16
    }
    /// What a handle is (`0x00000d02`).
    handle_info: "NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS", 16, { H_OBJECT = 0, INDEX = 4, DATA = 8 }
    /// Bind the context-switch timeline to an event buffer (`0x20801238`).
    fecs_bind: "NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS", 24, {
        H_EVENT_BUFFER = 0, RECORD_SIZE = 4, LEVEL_OF_DETAIL = 8, EVENT_FILTER = 12, B_ALL_USERS = 16,
        REASON_CODE = 20
    }
    /// Switch an event buffer on or off (`0x90cd0101`).
    event_buffer_enable: "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS", 8, { ENABLE = 0, FLAGS = 4 }
    /// How far the reader of an event buffer has come (`0x90cd0102`).
    event_buffer_update_get: "NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS", 8, {
        RECORD_BUFFER_GET = 0, VAR_DATA_BUFFER_GET = 4
    }
    /// The GPU's own time (`0x20800403`).
    timer_time: "NV2080_CTRL_TIMER_GET_TIME_PARAMS", 8, { TIME_NSEC = 0 }

    // UVM calls.
    /// Parameters of `UVM_INITIALIZE`.
    uvm_initialize: "UVM_INITIALIZE_PARAMS", 16, { FLAGS = 0, RM_STATUS = 8 }
    /// Parameters of `UVM_MM_INITIALIZE`.
    uvm_mm_initialize: "UVM_MM_INITIALIZE_PARAMS", 8, { UVM_FD = 0, RM_STATUS = 4 }
    /// Parameters of `UVM_CREATE_RANGE_GROUP`.
    uvm_create_range_group: "UVM_CREATE_RANGE_GROUP_PARAMS", 16, { RANGE_GROUP_ID = 0, RM_STATUS = 8 }
    /// Parameters of `UVM_DESTROY_RANGE_GROUP`.
    uvm_destroy_range_group: "UVM_DESTROY_RANGE_GROUP_PARAMS", 16, { RANGE_GROUP_ID = 0, RM_STATUS = 8 }
    /// Parameters of `UVM_REGISTER_GPU`.
    uvm_register_gpu: "UVM_REGISTER_GPU_PARAMS", 40, {
        GPU_UUID = 0, NUMA_ENABLED = 16, NUMA_NODE_ID = 20, RM_CTRL_FD = 24, H_CLIENT = 28,
        H_SMC_PART_REF = 32, RM_STATUS = 36
    }
    /// Parameters of `UVM_UNREGISTER_GPU`.
    uvm_unregister_gpu: "UVM_UNREGISTER_GPU_PARAMS", 20, { GPU_UUID = 0, RM_STATUS = 16 }
    /// Parameters of `UVM_REGISTER_GPU_VASPACE`.
    uvm_register_gpu_vaspace: "UVM_REGISTER_GPU_VASPACE_PARAMS", 32, {
        GPU_UUID = 0, RM_CTRL_FD = 16, H_CLIENT = 20, H_VA_SPACE = 24, RM_STATUS = 28
    }
    /// Parameters of `UVM_UNREGISTER_GPU_VASPACE`.
    uvm_unregister_gpu_vaspace: "UVM_UNREGISTER_GPU_VASPACE_PARAMS", 20, { GPU_UUID = 0, RM_STATUS = 16 }
    /// Parameters of `UVM_REGISTER_CHANNEL`.
    uvm_register_channel: "UVM_REGISTER_CHANNEL_PARAMS", 56, {
        GPU_UUID = 0, RM_CTRL_FD = 16, H_CLIENT = 20, H_CHANNEL = 24, BASE = 32, LENGTH = 40,
        RM_STATUS = 48
    }
    /// Parameters of `UVM_ENABLE_PEER_ACCESS`.
    uvm_enable_peer_access: "UVM_ENABLE_PEER_ACCESS_PARAMS", 36, {
        GPU_UUID_A = 0, GPU_UUID_B = 16, RM_STATUS = 32
    }
    /// Parameters of `UVM_DISABLE_PEER_ACCESS`.
    uvm_disable_peer_access: "UVM_DISABLE_PEER_ACCESS_PARAMS", 36, {
        GPU_UUID_A = 0, GPU_UUID_B = 16, RM_STATUS = 32
    }
    /// Parameters of `UVM_SET_RANGE_GROUP`.
    uvm_set_range_group: "UVM_SET_RANGE_GROUP_PARAMS", 32, {
        RANGE_GROUP_ID = 0, REQUESTED_BASE = 8, LENGTH = 16, RM_STATUS = 24
    }
    /// Parameters of `UVM_CREATE_EXTERNAL_RANGE`.
    uvm_create_external_range: "UVM_CREATE_EXTERNAL_RANGE_PARAMS", 24, {
        BASE = 0, LENGTH = 8, RM_STATUS = 16
    }
    /// Parameters of `UVM_MAP_EXTERNAL_ALLOCATION`.
    uvm_map_external: "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", -, {
        BASE = 0, LENGTH = 8, OFFSET = 16, PER_GPU_ATTRIBUTES = 24
    }
    /// Parameters of `UVM_UNMAP_EXTERNAL`.
    uvm_unmap_external: "UVM_UNMAP_EXTERNAL_PARAMS", 40, {
        BASE = 0, LENGTH = 8, GPU_UUID = 16, RM_STATUS = 32
    }
    /// Parameters of `UVM_FREE`.
    uvm_free: "UVM_FREE_PARAMS", -, { BASE = 0 }
    /// Parameters of `UVM_PAGEABLE_MEM_ACCESS`.
    uvm_pageable_mem_access: "UVM_PAGEABLE_MEM_ACCESS_PARAMS", 8, { PAGEABLE_MEM_ACCESS = 0, RM_STATUS = 4 }
    /// Parameters of `UVM_PAGEABLE_MEM_ACCESS_ON_GPU`.
    uvm_pageable_mem_access_on_gpu: "UVM_PAGEABLE_MEM_ACCESS_ON_GPU_PARAMS", 24, {
        GPU_UUID = 0, PAGEABLE_MEM_ACCESS = 16, RM_STATUS = 20
    }
    /// Parameters of `UVM_SET_PREFERRED_LOCATION`.
    uvm_set_preferred_location: "UVM_SET_PREFERRED_LOCATION_PARAMS", 40, {
        REQUESTED_BASE = 0, LENGTH = 8, PREFERRED_LOCATION = 16
    }
    /// Parameters of `UVM_UNSET_PREFERRED_LOCATION`.
    uvm_unset_preferred_location: "UVM_UNSET_PREFERRED_LOCATION_PARAMS", 24, {
        REQUESTED_BASE = 0, LENGTH = 8, RM_STATUS = 16
    }
    /// Parameters of `UVM_ENABLE_READ_DUPLICATION`.
    uvm_enable_read_duplication: "UVM_ENABLE_READ_DUPLICATION_PARAMS", 24, {
        REQUESTED_BASE = 0, LENGTH = 8, RM_STATUS = 16
    }
    /// Parameters of `UVM_DISABLE_READ_DUPLICATION`.
    uvm_disable_read_duplication: "UVM_DISABLE_READ_DUPLICATION_PARAMS", 24, {
        REQUESTED_BASE = 0, LENGTH = 8, RM_STATUS = 16
    }
    /// Parameters of `UVM_SET_ACCESSED_BY`.
    uvm_set_accessed_by: "UVM_SET_ACCESSED_BY_PARAMS", 40, {
        REQUESTED_BASE = 0, LENGTH = 8, ACCESSED_BY_UUID = 16, RM_STATUS = 32
    }
    /// Parameters of `UVM_UNSET_ACCESSED_BY`.
    uvm_unset_accessed_by: "UVM_UNSET_ACCESSED_BY_PARAMS", 40, {
        REQUESTED_BASE = 0, LENGTH = 8, ACCESSED_BY_UUID = 16, RM_STATUS = 32
    }
    /// Parameters of `UVM_MIGRATE`.
    uvm_migrate: "UVM_MIGRATE_PARAMS", 80, {
        BASE = 0, LENGTH = 8, DESTINATION_UUID = 16, FLAGS = 32, SEMAPHORE_ADDRESS = 40,
        SEMAPHORE_PAYLOAD = 48, CPU_NUMA_NODE = 52, USER_SPACE_START = 56, USER_SPACE_LENGTH = 64,
        RM_STATUS = 72
    }
    /// Parameters of `UVM_MIGRATE_RANGE_GROUP`.
    uvm_migrate_range_group: "UVM_MIGRATE_RANGE_GROUP_PARAMS", 32, {
        RANGE_GROUP_ID = 0, DESTINATION_UUID = 8, RM_STATUS = 24
    }
    /// Parameters of `UVM_MAP_DYNAMIC_PARALLELISM_REGION`.
    uvm_map_dynamic_parallelism_region: "UVM_MAP_DYNAMIC_PARALLELISM_REGION_PARAMS", 40, {
        BASE = 0, LENGTH = 8, GPU_UUID = 16, RM_STATUS = 32
    }
    /// Parameters of `UVM_ALLOC_SEMAPHORE_POOL`.
    uvm_alloc_semaphore_pool: "UVM_ALLOC_SEMAPHORE_POOL_PARAMS", -, {
        BASE = 0, LENGTH = 8, PER_GPU_ATTRIBUTES = 16
    }
    /// Parameters of `UVM_VALIDATE_VA_RANGE`.
    uvm_validate_va_range: "UVM_VALIDATE_VA_RANGE_PARAMS", 24, { BASE = 0, LENGTH = 8, RM_STATUS = 16 }
    /// Parameters of `UVM_ALLOC_DEVICE_P2P`.
    uvm_alloc_device_p2p: "UVM_ALLOC_DEVICE_P2P_PARAMS", 56, {
        BASE = 0, LENGTH = 8, OFFSET = 16, GPU_UUID = 24, RM_CTRL_FD = 40, H_CLIENT = 44, H_MEMORY = 48,
        RM_STATUS = 52
    }
}

#[cfg(test)]
mod tests {
    use super::ALL;
    use crate::branches::{BRANCHES, Branch};

    /// Blocks that a branch does not have.
    const NOT_EVERYWHERE: [(&str, &str); 5] = [
        ("535", "nv_ioctl_wait_open_complete_t"),
        ("535", "UVM_ALLOC_DEVICE_P2P_PARAMS"),
        ("550", "UVM_ALLOC_DEVICE_P2P_PARAMS"),
        ("590", "nv_ioctl_query_device_intr"),
        ("595", "nv_ioctl_query_device_intr"),
    ];

    /// The name a header field has here.
    fn upper(field: &str) -> String {
        let letters: Vec<char> = field.rsplit('.').next().unwrap_or(field).chars().collect();
        let mut name = String::new();
        for (i, &letter) in letters.iter().enumerate() {
            let after = i.checked_sub(1).map(|before| letters[before]);
            let word_starts = after.is_some_and(|before| {
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || (before.is_ascii_uppercase()
                        && letters.get(i + 1).is_some_and(char::is_ascii_lowercase))
            });
            if letter.is_ascii_uppercase() && word_starts {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        if name == "SIZE" {
            "SIZE_FIELD".to_owned()
        } else {
            name
        }
    }

    /// The lines of a branch's table, word by word.
    fn table(branch: &Branch) -> Vec<Vec<&'static str>> {
        let lines = branch.facts.lines();
        lines
            .map(|line| line.split_whitespace().collect())
            .collect()
    }

    #[test]
    fn every_constant_is_the_same_in_the_headers_of_every_branch() {
        for branch in BRANCHES {
            let (name, table) = (branch.name, table(branch));
            let mut checked = 0;
            for (path, size, fields) in ALL {
                let (structure, part) = path.split_once('.').unwrap_or((path, ""));
                let of = |kind, line: &&Vec<&str>| line.starts_with(&[kind, structure]);
                if !table.iter().any(|line| of("field", &line)) {
                    // Nobody can use a block that this branch does not have; each is one of the oldest or newest.
                    assert!(
                        NOT_EVERYWHERE.contains(&(name, structure)),
                        "branch {name} has no {structure}"
                    );
                    continue;
                }
                let stated = table.iter().find(|line| of("size", line));
                assert_eq!(
                    stated.map(|line| line[2].to_owned()),
                    size.map(|size| size.to_string()),
                    "branch {name}: size of {structure}"
                );
                for (field, offset) in *fields {
                    let line = table.iter().find(|line| {
                        of("field", line) && line[2].starts_with(part) && upper(line[2]) == *field
                    });
                    let line =
                        line.unwrap_or_else(|| panic!("branch {name}: {structure} has no {field}"));
                    assert_eq!(
                        line[3],
                        offset.to_string(),
                        "branch {name}: {structure} {field}"
                    );
                    if let Some(size) = size {
                        let end = offset + line[4].parse::<usize>().expect("bytes of a field");
                        assert!(end <= *size, "{structure} {field} ends behind the block");
                    }
                    checked += 1;
                }
            }
            for (structure, field, offset) in branch.layout.listed() {
                let line = table
                    .iter()
                    .find(|line| line.starts_with(&["field", structure, field]));
                assert_eq!(
                    line.map(|line| line[3].to_owned()),
                    offset.map(|offset| offset.to_string()),
                    "branch {name}: {structure} {field}"
                );
                checked += usize::from(offset.is_some());
            }
            let listed = table
                .iter()
                .filter(|line| line.first() == Some(&"field"))
                .count();
            assert_eq!(
                checked, listed,
                "branch {name}: every field of the table is a constant or in the branch's layout"
            );
        }
    }

    #[test]
    fn what_the_layout_of_a_branch_says_is_not_the_same_everywhere() {
        let all: Vec<_> = BRANCHES
            .iter()
            .map(|branch| branch.layout.listed())
            .collect();
        for (i, (structure, field, offset)) in all[0].iter().enumerate() {
            assert!(
                all.iter().any(|listed| listed[i].2 != *offset),
                "{structure} {field} is a constant"
            );
        }
    }
}
