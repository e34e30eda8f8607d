//! Numbers of the frontend ioctls (`/dev/nvidiactl`, `/dev/nvidiaN`): the low 8 bits of a request.
//!
//! The driver looks at the number and the size only, never at the type byte or the direction.

constants! { u8, "Frontend ioctl";
    RM_ALLOC_MEMORY = 0x27;
    RM_ALLOC_OBJECT = 0x28;
    RM_FREE = 0x29;
    RM_CONTROL = 0x2a;
    RM_ALLOC = 0x2b;
    RM_CONFIG_GET = 0x32;
    RM_CONFIG_SET = 0x33;
    RM_DUP_OBJECT = 0x34;
    RM_SHARE = 0x35;
    RM_CONFIG_GET_EX = 0x37;
    RM_CONFIG_SET_EX = 0x38;
    RM_I2C_ACCESS = 0x39;
    RM_IDLE_CHANNELS = 0x41;
    RM_VID_HEAP_CONTROL = 0x4a;
    RM_ACCESS_REGISTRY = 0x4d;
    RM_MAP_MEMORY = 0x4e;
    RM_UNMAP_MEMORY = 0x4f;
    RM_GET_EVENT_DATA = 0x52;
    RM_ALLOC_CONTEXT_DMA2 = 0x54;
    RM_ADD_VBLANK_CALLBACK = 0x56;
    RM_MAP_MEMORY_DMA = 0x57;
    RM_UNMAP_MEMORY_DMA = 0x58;
    RM_BIND_CONTEXT_DMA = 0x59;
    RM_EXPORT_OBJECT_TO_FD = 0x5c;
    RM_IMPORT_OBJECT_FROM_FD = 0x5d;
    RM_UPDATE_DEVICE_MAPPING_INFO = 0x5e;
    RM_LOCKLESS_DIAGNOSTIC = 0x5f;
    CARD_INFO = 200;
    REGISTER_FD = 201;
    ALLOC_OS_EVENT = 206;
    FREE_OS_EVENT = 207;
    STATUS_CODE = 209;
    CHECK_VERSION_STR = 210;
    XFER_CMD = 211;
    ATTACH_GPUS_TO_FD = 212;
    QUERY_DEVICE_INTR = 213;
    SYS_PARAMS = 214;
    NUMA_INFO = 215;
    SET_NUMA_STATUS = 216;
    EXPORT_TO_DMABUF_FD = 217;
    WAIT_OPEN_COMPLETE = 218;
}
