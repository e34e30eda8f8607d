//! Controls of everything else: firmware queries, debugger, channels, channel groups, confidential computing.

use crate::row::*;

controls! {
    pub(crate) ENGINE;
    0x208f_0401 "NV208F_CTRL_CMD_FIFO_CHECK_ENGINE_CONTEXT" 12 UNSUPPORTED
        "asks about an engine context; CUDA does not";
    0x208f_0403 "NV208F_CTRL_CMD_FIFO_GET_CHANNEL_STATE" 16 UNSUPPORTED
        "state of a channel of a client it names" { foreign: &[client(4)] };
    0x208f_1105 "NV208F_CTRL_CMD_GPU_VERIFY_INFOROM" 8 EXECUTE READS;
    0x503c_0102 "NV503C_CTRL_CMD_REGISTER_VA_SPACE" 16 EXECUTE
        "links its own address space to the third-party object";
    0x503c_0104 "NV503C_CTRL_CMD_REGISTER_VIDMEM" 32 ABSORB
        "for modules that look memory up by the calling process, where they would find the helper: of no use in a slice";
    0x503c_0105 "NV503C_CTRL_CMD_UNREGISTER_VIDMEM" 4 ABSORB
        "nothing was registered";
    0x503c_0106 "NV503C_CTRL_CMD_REGISTER_PID" 4 UNSUPPORTED
        "registers a client it names" { foreign: &[client(0)] };
    0x506f_0105 "NV506F_CTRL_CMD_RESET_ISOLATED_CHANNEL" 8 DENIED
        "resets a channel that was taken out of its client";
    0x5080_0101 "NV5080_CTRL_CMD_DEFERRED_API" 584 DENIED
        "runs a call later under the client it names" { foreign: &[client(12)] };
    0x5080_0103 "NV5080_CTRL_CMD_DEFERRED_API_V2" 584 DENIED
        "runs a call later under the client it names" { foreign: &[client(12)] };
    0x83de_0307 "NV83DE_CTRL_CMD_DEBUG_SET_MODE_MMU_DEBUG" 4 EXECUTE
        "debugger settings of its own application";
    0x83de_0309 "NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK" 4 EXECUTE
        "debugger settings of its own application";
    0x83de_030c "NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES" 4824 EXECUTE
        "error state of its own application";
    0x83de_0310 "NV83DE_CTRL_CMD_DEBUG_CLEAR_ALL_SM_ERROR_STATES" 8 EXECUTE
        "debugger settings of its own application";
    0x83de_0315 "NV83DE_CTRL_CMD_DEBUG_READ_MEMORY" 24 EXECUTE
        "reads an object of the debugger's client, if guard knows it as memory" { pointers: &[list(4, 16, 1, 1 << 18)] };
    0x83de_0316 "NV83DE_CTRL_CMD_DEBUG_WRITE_MEMORY" 24 EXECUTE
        "writes an object of the debugger's client, if guard knows it as memory" { pointers: &[list(4, 16, 1, 1 << 18)] };
    0x83de_0317 "NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT" 8 EXECUTE "suspends or resumes its own application";
    0x83de_0318 "NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT" 0 EXECUTE "suspends or resumes its own application";
    0x83de_031d "NV83DE_CTRL_CMD_DEBUG_EXEC_REG_OPS" 3208 DENIED
        "register operations reach hardware shared by every tenant";
    0x83de_031f "NV83DE_CTRL_CMD_DEBUG_SET_MODE_ERRBAR_DEBUG" 4 EXECUTE
        "debugger settings of its own application";
    0x83de_0326 "NV83DE_CTRL_CMD_DEBUG_READ_BATCH_MEMORY" 3616 DENIED
        "reads or writes memory past the checks of a mapping";
    0x83de_0327 "NV83DE_CTRL_CMD_DEBUG_WRITE_BATCH_MEMORY" 3616 DENIED
        "reads or writes memory past the checks of a mapping";
    0x9067_0102 "NV9067_CTRL_CMD_SET_TPC_PARTITION_TABLE" 1026 DENIED "kernel only";
    0x906f_0101 "NV906F_CTRL_GET_CLASS_ENGINEID" 16 EXECUTE READS;
    0x906f_0102 "NV906F_CTRL_CMD_RESET_CHANNEL" 16 EXECUTE "resets its own channel";
    0x90cd_0101 "NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS" 8 DENIED "the context-switch timeline";
    0x90cd_0102 "NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET" 8 DENIED "the context-switch timeline";
    0x90cd_0104 "NV_EVENT_BUFFER_CTRL_CMD_FLUSH" 0 DENIED "the context-switch timeline";
    0x90e6_0102 "NV90E6_CTRL_CMD_MASTER_GET_VIRTUAL_FUNCTION_ERROR_CONT_INTR_MASK" 8 EXECUTE READS;
    0xa06c_0101 "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE" 3 EXECUTE "CUDA schedules its own channel group";
    0xa06c_0103 "NVA06C_CTRL_CMD_SET_TIMESLICE" 8 ABSORB "the slice of a group is the scheduler's to say";
    0xa06c_0105 "NVA06C_CTRL_CMD_PREEMPT" 8 ABSORB "every preemption is a switch that somebody else would pay for";
    0xa06c_0107 "NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL" 4 DENIED
        "priority among channel groups: the scheduler's";
    0xa06f_0103 "NVA06F_CTRL_CMD_GPFIFO_SCHEDULE" 3 EXECUTE "CUDA schedules its own channel";
    0xa06f_0112 "NVA06F_CTRL_CMD_STOP_CHANNEL" 1 UNSUPPORTED "stops a channel for good";
    0xc36f_0108 "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN" 4 EXECUTE
        "the doorbell token of its own channel";
    0xc56f_010b "NVC56F_CTRL_CMD_GET_KMB" 144 EXECUTE "confidential computing: keys of its own channel";
    0xcb33_0101 "NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES" 6 EXECUTE READS;
    0xcb33_0104 "NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_GPUS_STATE" 1 EXECUTE READS;
    0xcb33_010b "NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_NUM_SECURE_CHANNELS" 12 EXECUTE READS;
    0xcb33_010c "NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_KEY_ROTATION_STATE" 8 EXECUTE READS;
}
