//! Controls of a subdevice (class 0x2080). Those with bit 15 set go to the firmware with no check of the client.

use crate::Answer;
use crate::row::*;

controls! {
    pub(crate) SUBDEVICE;
    0x2080_0102 "NV2080_CTRL_CMD_GPU_GET_INFO_V2" 564 EXECUTE READS;
    0x2080_0110 "NV2080_CTRL_CMD_GPU_GET_NAME_STRING" 132 EXECUTE READS;
    0x2080_0111 "NV2080_CTRL_CMD_GPU_GET_SHORT_NAME_STRING" 64 EXECUTE READS;
    0x2080_0112 "NV2080_CTRL_CMD_GPU_SET_POWER" 12 DENIED "power of the whole device";
    0x2080_0119 "NV2080_CTRL_CMD_GPU_GET_SIMULATION_INFO" 4 EXECUTE READS;
    0x2080_0122 "NV2080_CTRL_CMD_GPU_EXEC_REG_OPS" 48 UNSUPPORTED
        "register operations reach hardware shared by every tenant; CUDA does not call it"
        { foreign: &[client(0)], pointers: &[list(20, 24, 32, 65536)] };
    0x2080_0123 "NV2080_CTRL_CMD_GPU_GET_ENGINES" 16 EXECUTE READS { pointers: &[list(0, 8, 4, 4096)] };
    0x2080_012f "NV2080_CTRL_CMD_GPU_QUERY_ECC_STATUS" 1464 EXECUTE READS;
    0x2080_0131 "NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES" 4 EXECUTE READS;
    0x2080_0133 "NV2080_CTRL_CMD_GPU_QUERY_ECC_CONFIGURATION" 8 EXECUTE READS;
    0x2080_013f "NV2080_CTRL_CMD_GPU_GET_OEM_BOARD_INFO" 136 EXECUTE READS;
    0x2080_0142 "NV2080_CTRL_CMD_GPU_GET_ID" 4 EXECUTE READS;
    0x2080_0145 "NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION" 0 ABSORB
        "reserves the compute mode of the whole device";
    0x2080_0146 "NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION" 0 ABSORB
        "reserves the compute mode of the whole device";
    0x2080_014a "NV2080_CTRL_CMD_GPU_GET_GID_INFO" 268 EXECUTE READS;
    0x2080_014b "NV2080_CTRL_CMD_GPU_GET_INFOROM_OBJECT_VERSION" 5 EXECUTE READS;
    0x2080_0156 "NV2080_CTRL_CMD_GPU_GET_INFOROM_IMAGE_VERSION" 16 EXECUTE READS;
    0x2080_0157 "NV2080_CTRL_CMD_GPU_QUERY_INFOROM_ECC_SUPPORT" 0 EXECUTE READS;
    0x2080_016d "NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_STATS" 12 ABSORB
        "sessions of every process on the device";
    0x2080_0170 "NV2080_CTRL_CMD_GPU_GET_ENGINES_V2" 340 EXECUTE READS;
    0x2080_0174 "NV2080_CTRL_CMD_GPU_SET_PARTITIONS" 392 DENIED "cuts the whole device into MIG instances";
    0x2080_017b "NV2080_CTRL_GPU_GET_NVFBC_SW_SESSION_STATS" 12 ABSORB
        "sessions of every process on the device";
    0x2080_018b "NV2080_CTRL_CMD_GPU_GET_ACTIVE_PARTITION_IDS" 40 EXECUTE READS;
    0x2080_018d "NV2080_CTRL_CMD_GPU_GET_PIDS" 3812 EXECUTE
        "processes on the device: only those of the tenant" { answer: Answer::Pids };
    0x2080_018e "NV2080_CTRL_CMD_GPU_GET_PID_INFO" 14408 EXECUTE
        "memory of processes: the ledger's numbers, for those of the tenant" { answer: Answer::PidInfo };
    0x2080_0195 "NV2080_CTRL_CMD_GPU_GET_COMPUTE_POLICY_CONFIG" 260 EXECUTE READS;
    0x2080_019f "NV2080_CTRL_CMD_GPU_GET_SKYLINE_INFO" 220 EXECUTE READS;
    0x2080_01a3 "NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO" 56 EXECUTE READS;
    0x2080_01a4 "NV2080_CTRL_CMD_GPU_GET_CHIP_DETAILS" 16 EXECUTE READS;
    0x2080_01a6 "NV2080_CTRL_CMD_GPU_MIGRATABLE_OPS" 1832 UNSUPPORTED
        "register operations on a client it names" { foreign: &[client(0)] };
    0x2080_01a9 "NV2080_CTRL_CMD_GPU_MARK_DEVICE_FOR_RESET" 0 DENIED "resets or drains the whole device";
    0x2080_01aa "NV2080_CTRL_CMD_GPU_UNMARK_DEVICE_FOR_RESET" 0 DENIED "resets or drains the whole device";
    0x2080_01ab "NV2080_CTRL_CMD_GPU_GET_RESET_STATUS" 1 DENIED
        "reset state of the whole device: the operator's";
    0x2080_01ac "NV2080_CTRL_CMD_GPU_MARK_DEVICE_FOR_DRAIN_AND_RESET" 0 DENIED
        "resets or drains the whole device";
    0x2080_01ad "NV2080_CTRL_CMD_GPU_UNMARK_DEVICE_FOR_DRAIN_AND_RESET" 0 DENIED
        "resets or drains the whole device";
    0x2080_01b2 "NV2080_CTRL_CMD_GPU_GET_RECOVERY_ACTION" 4 EXECUTE READS;
    0x2080_0301 "NV2080_CTRL_CMD_EVENT_SET_NOTIFICATION" 20 EXECUTE
        "switches an event of its own subdevice on or off";
    0x2080_0403 "NV2080_CTRL_CMD_TIMER_GET_TIME" 8 EXECUTE READS;
    0x2080_0406 "NV2080_CTRL_CMD_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO" 264 EXECUTE READS;
    0x2080_0407 "NV2080_CTRL_CMD_TIMER_SET_GR_TICK_FREQ" 1 ABSORB "timer frequency of the whole device";
    0x2080_0513 "NV2080_CTRL_CMD_THERMAL_SYSTEM_EXECUTE_V2" 1432 ABSORB "thermal policy of the whole device";
    0x2080_0802 "NV2080_CTRL_CMD_BIOS_GET_INFO" 16 EXECUTE READS { pointers: &[list(0, 8, 8, 4096)] };
    0x2080_110b "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS" 536 DENIED
        "detaches channels of any client: the scheduler's lever" { foreign: &[clients(24, 4, 64)] };
    0x2080_111a "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION" 520 DENIED
        "detaches channels of any client" { foreign: &[clients(4, 0, 64)] };
    0x2080_1123 "NV2080_CTRL_CMD_FIFO_GET_CHANNEL_GROUP_UNIQUE_ID_INFO" 1552 UNSUPPORTED
        "identity of a channel group of a client it names" { foreign: &[client(0)] };
    0x2080_1124 "NV2080_CTRL_CMD_FIFO_QUERY_CHANNEL_UNIQUE_ID" 1540 UNSUPPORTED
        "identity of channels of clients it names" { foreign: &[clients(0, 1024, 128)] };
    0x2080_1201 "NV2080_CTRL_CMD_GR_GET_INFO" 32 EXECUTE READS { pointers: &[list(0, 8, 8, 4096)] };
    0x2080_1205 "NV2080_CTRL_CMD_GR_CTXSW_ZCULL_MODE" 16 UNSUPPORTED
        "depth-buffer context (graphics); shares one with a client it names" { foreign: &[client(4)] };
    0x2080_1207 "NV2080_CTRL_CMD_GR_CTXSW_PM_MODE" 24 UNSUPPORTED "profiling mode of a context";
    0x2080_1208 "NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND" 24 UNSUPPORTED
        "binds a context buffer to a channel of a client it names" { foreign: &[client(0)] };
    0x2080_1209 "NV2080_CTRL_CMD_GR_CTXSW_PM_BIND" 40 UNSUPPORTED
        "binds a context buffer to a channel of a client it names" { foreign: &[client(0)] };
    0x2080_120e "NV2080_CTRL_CMD_GR_CTXSW_SMPC_MODE" 24 UNSUPPORTED "profiling mode of a context";
    0x2080_1210 "NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE" 32 EXECUTE
        "CUDA asks for instruction-level preemption of its own channel";
    0x2080_1211 "NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND" 112 UNSUPPORTED
        "binds preemption buffers to a channel of a client it names" { foreign: &[client(4)] };
    0x2080_1212 "NV2080_CTRL_CMD_GR_PC_SAMPLING_MODE" 24 UNSUPPORTED "profiling mode of a context";
    0x2080_1215 "NV2080_CTRL_CMD_GR_GET_CTXSW_STATS" 32 UNSUPPORTED
        "context-switch counters: the scheduler's sensor";
    0x2080_1218 "NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE" 16 EXECUTE
        "size of the context buffers of its own channel";
    0x2080_121b "NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER" 9240 EXECUTE READS;
    0x2080_121c "NV2080_CTRL_CMD_GR_GET_CURRENT_RESIDENT_CHANNEL" 24 DENIED
        "which channel is on the device: another tenant's as well";
    0x2080_1227 "NV2080_CTRL_CMD_GR_GET_CAPS_V2" 48 EXECUTE READS;
    0x2080_122a "NV2080_CTRL_CMD_GR_GET_GPC_MASK" 24 EXECUTE READS;
    0x2080_122b "NV2080_CTRL_CMD_GR_GET_TPC_MASK" 24 EXECUTE READS;
    0x2080_1230 "NV2080_CTRL_CMD_GR_GET_SM_ISSUE_RATE_MODIFIER" 32 EXECUTE READS;
    0x2080_1235 "NV2080_CTRL_CMD_GR_GET_CTXSW_MODES" 24 UNSUPPORTED "context-switch modes; CUDA does not ask";
    0x2080_1238 "NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2" 24 DENIED
        "binds the context-switch timeline of every process";
    0x2080_123a "NV2080_CTRL_CMD_GR_CTXSW_SETUP_BIND" 16 UNSUPPORTED
        "binds a context buffer to a channel of a client it names" { foreign: &[client(0)] };
    0x2080_123c "NV2080_CTRL_CMD_GR_GET_SM_ISSUE_RATE_MODIFIER_V2" 2044 EXECUTE READS;
    0x2080_1301 "NV2080_CTRL_CMD_FB_GET_INFO" 16 EXECUTE
        "the slice's numbers" { pointers: &[list(0, 8, 8, 1024)], answer: Answer::FbInfoPointer };
    0x2080_1303 "NV2080_CTRL_CMD_FB_GET_INFO_V2" 1028 EXECUTE
        "the slice's numbers" { answer: Answer::FbInfoInline };
    0x2080_1320 "NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO" 904 EXECUTE
        "regions, cut to the slice" { answer: Answer::FbRegions };
    0x2080_1322 "NV2080_CTRL_CMD_FB_GET_OFFLINED_PAGES" 2056 EXECUTE READS;
    0x2080_1357 "NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_INFOROM_SUPPORT" 4 EXECUTE READS;
    0x2080_1358 "NV2080_CTRL_CMD_FB_QUERY_DRAM_ENCRYPTION_STATUS" 4 EXECUTE READS;
    0x2080_1701 "NV2080_CTRL_CMD_MC_GET_ARCH_INFO" 16 EXECUTE READS;
    0x2080_1702 "NV2080_CTRL_CMD_MC_SERVICE_INTERRUPTS" 4 ABSORB "services interrupts of the whole device";
    0x2080_1801 "NV2080_CTRL_CMD_BUS_GET_PCI_INFO" 16 EXECUTE READS;
    0x2080_1802 "NV2080_CTRL_CMD_BUS_GET_INFO" 16 EXECUTE READS { pointers: &[list(0, 8, 8, 4096)] };
    0x2080_1803 "NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO" 200 EXECUTE READS;
    0x2080_1813 "NV2080_CTRL_CMD_BUS_GET_PEX_COUNTERS" 76 EXECUTE READS;
    0x2080_1819 "NV2080_CTRL_CMD_BUS_GET_PEX_UTIL_COUNTERS" 32 EXECUTE READS;
    0x2080_1823 "NV2080_CTRL_CMD_BUS_GET_INFO_V2" 420 EXECUTE READS;
    0x2080_1829 "NV2080_CTRL_CMD_BUS_GET_PCIE_REQ_ATOMICS_CAPS" 12 EXECUTE READS;
    0x2080_182a "NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS" 112 EXECUTE READS;
    0x2080_182b "NV2080_CTRL_CMD_BUS_GET_C2C_INFO" 28 EXECUTE READS;
    0x2080_1830 "NV2080_CTRL_CMD_BUS_GET_PCIE_CPL_ATOMICS_CAPS" 4 EXECUTE READS;
    0x2080_200a "NV2080_CTRL_CMD_PERF_BOOST" 8 EXECUTE
        "raises the clocks while the client computes, as for every CUDA program; without it a short job ran at a fifth of the native rate (H200, driver 580.159)";
    0x2080_205b "NV2080_CTRL_CMD_PERF_SET_POWERSTATE" 4 DENIED "changes clocks or power for every tenant";
    0x2080_2068 "NV2080_CTRL_CMD_PERF_GET_CURRENT_PSTATE" 4 EXECUTE READS;
    0x2080_206f "NV2080_CTRL_CMD_PERF_RATED_TDP_SET_CONTROL" 12 DENIED
        "changes clocks or power for every tenant";
    0x2080_2096 "NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2" 55888 EXECUTE
        "utilisation samples of every process: foreign ones zeroed" { answer: Answer::UtilSamples };
    0x2080_2209 "NV2080_CTRL_CMD_RC_GET_WATCHDOG_INFO" 4 EXECUTE READS;
    0x2080_220c "NV2080_CTRL_CMD_RC_RELEASE_WATCHDOG_REQUESTS" 0 ABSORB
        "switches the watchdog of the whole device";
    0x2080_2210 "NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG" 0 ABSORB
        "switches the watchdog of the whole device";
    0x2080_2a03 "NV2080_CTRL_CMD_CE_GET_CAPS_V2" 8 EXECUTE READS;
    0x2080_2a0a "NV2080_CTRL_CMD_CE_GET_ALL_CAPS" 136 EXECUTE READS;
    0x2080_3001 "NV2080_CTRL_CMD_NVLINK_GET_NVLINK_CAPS" 48 EXECUTE READS;
    0x2080_3002 "NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS" 13344 EXECUTE READS;
    0x2080_3083 "NV2080_CTRL_CMD_NVLINK_GET_PLATFORM_INFO" 39 EXECUTE READS;
    0x2080_3125 "NV2080_CTRL_CMD_FLCN_GET_CTX_BUFFER_SIZE" 16 EXECUTE
        "size of the context buffers of its own channel";
    0x2080_3404 "NV2080_CTRL_CMD_ECC_GET_REPAIR_STATUS" 2 EXECUTE READS;
    0x2080_3406 "undocumented 0x20803406" 1 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_3601 "NV2080_CTRL_CMD_GSP_GET_FEATURES" 72 EXECUTE READS;
    0x2080_3801 "NV2080_CTRL_CMD_GRMGR_GET_GR_FS_INFO" 1928 EXECUTE READS;
    0x2080_8159 "undocumented 0x20808159" 332 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_8162 "undocumented 0x20808162" 1 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_852a "undocumented 0x2080852a" 1784 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_852b "undocumented 0x2080852b" 2836 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_852e "undocumented 0x2080852e" 528 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_852f "undocumented 0x2080852f" 776 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_8536 "undocumented 0x20808536" 1812 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_853a "undocumented 0x2080853a" 1456 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_8542 "undocumented 0x20808542" 504 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_8546 "undocumented 0x20808546" 24 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_9001 "undocumented 0x20809001" 8 EXECUTE
        "a question of cuBLAS to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_9009 "undocumented 0x20809009" 8 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_9019 "undocumented 0x20809019" 10800 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_9038 "undocumented 0x20809038" 4 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_9064 "undocumented 0x20809064" 520 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a026 "undocumented 0x2080a026" 532 EXECUTE
        "a question of cuBLAS to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a060 "undocumented 0x2080a060" 28 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a06e "undocumented 0x2080a06e" 1 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a06f "undocumented 0x2080a06f" 4 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a080 "undocumented 0x2080a080" 52 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a084 "undocumented 0x2080a084" 4 EXECUTE
        "a question of cuBLAS to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a612 "undocumented 0x2080a612" 11680 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
    0x2080_a618 "undocumented 0x2080a618" 8620 EXECUTE
        "a question of nvidia-smi to the firmware, undocumented; size as seen from driver 580.159";
}
