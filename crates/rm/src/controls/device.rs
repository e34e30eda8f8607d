//! Controls of memory, devices, fabric and multicast objects (classes 0x0041 to 0x00fd).

use crate::row::*;

controls! {
    pub(crate) DEVICE;
    0x0041_0110 "NV0041_CTRL_CMD_GET_SURFACE_INFO" 16 EXECUTE
        "properties of memory it has" { pointers: &[list(0, 8, 8, 4096)] };
    0x0080_0201 "NV0080_CTRL_CMD_GPU_GET_CLASSLIST" 16 EXECUTE READS { pointers: &[list(0, 8, 4, 4096)] };
    0x0080_0280 "NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES" 4 EXECUTE READS;
    0x0080_0288 "NV0080_CTRL_CMD_GPU_QUERY_SW_STATE_PERSISTENCE" 4 EXECUTE READS;
    0x0080_0289 "NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE" 8 EXECUTE READS;
    0x0080_0292 "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2" 804 EXECUTE READS;
    0x0080_1102 "NV0080_CTRL_CMD_GR_GET_CAPS" 16 EXECUTE READS { pointers: &[list(0, 8, 1, 256)] };
    0x0080_1104 "NV0080_CTRL_CMD_GR_GET_INFO" 16 EXECUTE READS { pointers: &[list(0, 8, 8, 4096)] };
    0x0080_1108 "NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE" 32 EXECUTE
        "how TPCs are divided inside its own channel group";
    0x0080_1301 "NV0080_CTRL_CMD_FB_GET_CAPS" 16 EXECUTE READS { pointers: &[list(0, 8, 1, 256)] };
    0x0080_1307 "NV0080_CTRL_CMD_FB_GET_CAPS_V2" 3 EXECUTE READS;
    0x0080_1402 "NV0080_CTRL_CMD_HOST_GET_CAPS_V2" 3 EXECUTE READS;
    0x0080_1701 "NV0080_CTRL_CMD_FIFO_GET_CAPS" 16 EXECUTE READS { pointers: &[list(0, 8, 1, 256)] };
    0x0080_170d "NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST" 24 EXECUTE
        "hardware numbers of its own channels" { pointers: &[list(0, 8, 4, 16384), list(0, 16, 4, 16384)] };
    0x0080_170f "NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES" 16 DENIED
        "sets timeslices behind the scheduler";
    0x0080_1714 "NV0080_CTRL_CMD_FIFO_IDLE_CHANNELS" 16396 UNSUPPORTED
        "idles channels; CUDA does not call it";
    0x0080_1806 "NV0080_CTRL_CMD_DMA_ADV_SCHED_GET_VA_CAPS" 192 EXECUTE READS;
    0x0080_180d "NV0080_CTRL_CMD_DMA_GET_CAPS" 12 EXECUTE READS;
    0x0080_1909 "NV0080_CTRL_CMD_PERF_CUDA_LIMIT_SET_CONTROL" 1 ABSORB "changes clocks for every tenant";
    0x0080_1b01 "NV0080_CTRL_CMD_MSENC_GET_CAPS" 16 EXECUTE READS { pointers: &[list(0, 8, 1, 256)] };
    0x00da_0002 "NV_SEMAPHORE_SURFACE_CTRL_CMD_BIND_CHANNEL" 40 UNSUPPORTED
        "binds channels to a semaphore surface (graphics)";
    0x00da_0006 "NV_SEMAPHORE_SURFACE_CTRL_CMD_UNBIND_CHANNEL" 40 UNSUPPORTED
        "binds channels to a semaphore surface (graphics)";
    0x00de_0001 "NV00DE_CTRL_CMD_REQUEST_DATA_POLL" 8 EXECUTE "which device state the shared page shows";
    0x00f1_0001 "NV00F1_CTRL_CMD_GET_FABRIC_EVENTS" 10248 DENIED
        "events of the import/export service of the node";
    0x00f8_0103 "NV00F8_CTRL_CMD_ATTACH_MEM" 2064 EXECUTE
        "attaches memory it has to a fabric address, which keeps it alive" { account: SHARES };
    0x00fd_0101 "NV00FD_CTRL_CMD_GET_INFO" 32 EXECUTE READS;
    0x00fd_0102 "NV00FD_CTRL_CMD_ATTACH_MEM" 40 EXECUTE
        "attaches memory it has to a multicast object, which keeps it alive" { account: SHARES };
    0x00fd_0104 "NV00FD_CTRL_CMD_ATTACH_GPU" 16 EXECUTE
        "adds a device, given as a descriptor, to a multicast object" { fd: Some(8) };
    0x00fd_0105 "NV00FD_CTRL_CMD_DETACH_MEM" 24 EXECUTE
        "detaches memory from a multicast object" { account: RELEASES };
}
