//! Controls of a client (class 0x0000): the node, handles, export by descriptor.

use crate::Answer;
use crate::row::*;

controls! {
    pub(crate) CLIENT;
    0x0000_0101 "NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION" 40 EXECUTE
        "version strings; three buffers of one length"
        { pointers: &[list(0, 8, 1, 256), list(0, 16, 1, 256), list(0, 24, 1, 256)] };
    0x0000_0102 "NV0000_CTRL_CMD_SYSTEM_GET_CPU_INFO" 108 EXECUTE READS;
    0x0000_0127 "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS" 176 EXECUTE
        "which devices reach which; two square arrays"
        { pointers: &[square(128, 160, 4, 4096), square(128, 168, 4, 4096)] };
    0x0000_012b "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2" 8348 EXECUTE "which devices reach which";
    0x0000_0136 "NV0000_CTRL_CMD_SYSTEM_GET_FABRIC_STATUS" 4 EXECUTE READS;
    0x0000_013a "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX" 1352 EXECUTE "which devices reach which";
    0x0000_01f0 "NV0000_CTRL_CMD_SYSTEM_GET_FEATURES" 4 EXECUTE READS;
    0x0000_0201 "NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS" 128 EXECUTE
        "the devices of the node: only those of the slice" { answer: Answer::GpuIds };
    0x0000_0202 "NV0000_CTRL_CMD_GPU_GET_ID_INFO" 40 EXECUTE
        "identity of a device; the name pointer is set to null" { pointers: &[null(16)] };
    0x0000_0204 "NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS" 4 EXECUTE READS;
    0x0000_0205 "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2" 32 EXECUTE READS;
    0x0000_0214 "NV0000_CTRL_CMD_GPU_GET_PROBED_IDS" 384 EXECUTE
        "the devices of the node: only those of the slice" { answer: Answer::GpuIds };
    0x0000_0215 "NV0000_CTRL_CMD_GPU_ATTACH_IDS" 132 EXECUTE
        "attaches or detaches a device for this client only";
    0x0000_0216 "NV0000_CTRL_CMD_GPU_DETACH_IDS" 128 EXECUTE
        "attaches or detaches a device for this client only";
    0x0000_021b "NV0000_CTRL_CMD_GPU_GET_PCI_INFO" 12 EXECUTE READS;
    0x0000_0275 "NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID" 268 EXECUTE READS;
    0x0000_0279 "NV0000_CTRL_CMD_GPU_QUERY_DRAIN_STATE" 12 EXECUTE READS;
    0x0000_027b "NV0000_CTRL_CMD_GPU_GET_MEMOP_ENABLE" 4 EXECUTE READS;
    0x0000_0283 "NV0000_CTRL_CMD_IDLE_CHANNELS" 48 UNSUPPORTED
        "names channels of any client behind pointers; CUDA does not call it";
    0x0000_0288 "NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS" 3076 EXECUTE
        "the devices of the node: only those of the slice" { answer: Answer::GpuIds };
    0x0000_0289 "NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID" 4 EXECUTE "attaches a device for this client only";
    0x0000_0290 "NV0000_CTRL_CMD_GPU_WAIT_ATTACH_ID" 4 EXECUTE "waits for an attach: may block";
    0x0000_0a04 "NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO" 2244 EXECUTE READS;
    0x0000_0b03 "NV0000_CTRL_CMD_GPUACCT_GET_PROC_ACCOUNTING_INFO" 48 EXECUTE
        "accounting of one process" { foreign: &[process(4)] };
    0x0000_0b04 "NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_PIDS" 16012 EXECUTE
        "lists processes that were accounted" { foreign: &[process(4)], answer: Answer::ForeignZeroed };
    0x0000_0d01 "NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE" 12 EXECUTE "asks about a handle of its own";
    0x0000_0d02 "NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO" 16 EXECUTE
        "asks about a handle of its own; the guard asks too, after RM_ALLOC_MEMORY";
    0x0000_0d03 "NV0000_CTRL_CMD_CLIENT_GET_ACCESS_RIGHTS" 12 EXECUTE
        "rights on an object of a client it names" { foreign: &[client(4)] };
    0x0000_0d04 "NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY" 12 EXECUTE
        "who may duplicate its objects: never everyone, never a user; the target is a client in type 3 only"
        { foreign: &[client(0)] };
    0x0000_3d05 "NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD" 24 EXECUTE
        "the descriptor keeps the object alive after its handle is freed" { account: SHARES, fd: Some(16) };
    0x0000_3d06 "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD" 20 EXECUTE
        "makes a handle for what a descriptor of this tenant holds" { account: SHARES, fd: Some(0) };
    0x0000_3d08 "NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO" 80 EXECUTE
        "asks what a descriptor holds" { fd: Some(0) };
    0x0000_3d0a "NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD" 76 EXECUTE
        "an empty descriptor to export into" { fd: Some(72) };
    0x0000_3d0b "NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD" 2128 EXECUTE
        "the descriptor keeps the objects alive after their handles are freed"
        { account: SHARES, fd: Some(0) };
    0x0000_3d0c "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD" 652 EXECUTE
        "makes handles for what a descriptor of this tenant holds" { account: SHARES, fd: Some(0) };
}
