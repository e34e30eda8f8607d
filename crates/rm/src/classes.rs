//! The classes of branch 580, sorted by number: what `RM_ALLOC` may make, and what that costs.
//!
//! Sizes: the structure that the driver's resource list names for the class. A class that is not here is refused.

use crate::row::*;

classes! {
    pub(crate) CLASSES;
    0x0000 "NV01_ROOT" 4 Client EXECUTE FREE []
        "a client of its own; the driver turns every root class into 0x41";
    0x0001 "NV01_ROOT_NON_PRIV" 4 Client EXECUTE FREE []
        "a client of its own; the driver turns every root class into 0x41";
    0x0005 "NV01_EVENT" 24 Event EXECUTE FREE [client(0)]
        "an event of its own client; the driver takes the real class from the block";
    0x000f "FABRIC_MANAGER_SESSION" 16 Other DENIED FREE []
        "configures the NVLink fabric for every tenant";
    0x003e "NV01_MEMORY_SYSTEM" 128 Memory EXECUTE FREE []
        "host memory only: the driver refuses it with the location bits of device memory";
    0x003f "NV01_MEMORY_LOCAL_PRIVILEGED" 0 Memory DENIED FREE []
        "maps registers of the device";
    0x0040 "NV01_MEMORY_LOCAL_USER" 128 Memory EXECUTE BY_BLOCK []
        "device memory: the one class applications allocate it with";
    0x0041 "NV01_ROOT_CLIENT" 4 Client EXECUTE FREE []
        "a client of its own; the driver turns every root class into 0x41";
    0x0042 "NV_MEMORY_EXTENDED_USER" 128 Memory EXECUTE FREE []
        "host memory of a self-hosted GPU; the driver refuses it on any other";
    0x0050 "NV_CE_UTILS" 24 Other DENIED FREE []
        "kernel-side copy helper: privileged";
    0x0071 "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR" 40 Memory UNSUPPORTED FREE []
        "pins pages of the caller, here the helper: programs use RM_ALLOC_MEMORY, which runs in the tenant";
    0x0073 "NV04_DISPLAY_COMMON" 0 Other EXECUTE FREE []
        "asks whether a display is attached (nvidia-smi)";
    0x0076 "NV01_MEMORY_FRAMEBUFFER_CONSOLE" 0 Memory DENIED FREE []
        "the console of the host";
    0x0078 "NV01_EVENT_KERNEL_CALLBACK" 24 Event DENIED FREE [client(0)]
        "calls a kernel address";
    0x0079 "NV01_EVENT_OS_EVENT" 24 Event EXECUTE FREE [client(0)]
        "an event of its own client, keyed by the tenant's descriptor number";
    0x007e "NV01_EVENT_KERNEL_CALLBACK_EX" 24 Event DENIED FREE [client(0)]
        "calls a kernel address";
    0x0080 "NV01_DEVICE_0" 56 Device EXECUTE FREE [client(4), client(8)]
        "a device; hClientShare joins another client's address space without a rights check";
    0x0081 "NV01_MEMORY_LIST_SYSTEM" 152 Memory DENIED FREE [client(0), client(12)]
        "names physical pages";
    0x0082 "NV01_MEMORY_LIST_FBMEM" 152 Memory DENIED FREE [client(0), client(12)]
        "names physical pages";
    0x0083 "NV01_MEMORY_LIST_OBJECT" 152 Memory DENIED FREE [client(0), client(12)]
        "names physical pages";
    0x00b1 "NV01_MEMORY_HW_RESOURCES" 120 Memory DENIED FREE []
        "compression resources without memory: no compute program needs them";
    0x00c2 "NV01_MEMORY_LOCAL_PHYSICAL" 24 Memory DENIED FREE []
        "the whole frame buffer";
    0x00da "NV_SEMAPHORE_SURFACE" 16 Other UNSUPPORTED FREE []
        "graphics; its controls name channels";
    0x00de "RM_USER_SHARED_DATA" 8 Other EXECUTE FREE []
        "a read-only page of device state (nvidia-smi)";
    0x00e0 "NV_MEMORY_EXPORT" 244 Memory UNSUPPORTED FREE []
        "exports memory to other nodes, beyond what the ledger sees";
    0x00f1 "NV_IMEX_SESSION" 32 Other DENIED FREE []
        "the import/export service of the node";
    0x00f3 "NV01_MEMORY_FLA" 56 Memory DENIED FREE [client(48)]
        "takes base and size from the caller and does not check its right to them";
    0x00f8 "NV_MEMORY_FABRIC" 48 Memory EXECUTE SHARES []
        "a fabric address; memory attached to it is charged already and stays so";
    0x00f9 "NV_MEMORY_FABRIC_IMPORT_V2" 64 Memory UNSUPPORTED FREE []
        "imports memory whose exporter cannot be told to be this tenant";
    0x00fb "NV_MEMORY_FABRIC_IMPORTED_REF" 32 Memory UNSUPPORTED FREE []
        "imports memory whose exporter cannot be told to be this tenant";
    0x00fd "NV_MEMORY_MULTICAST_FABRIC" 80 Memory EXECUTE SHARES []
        "a multicast object (NCCL); memory attached to it is charged already and stays so";
    0x2080 "NV20_SUBDEVICE_0" 4 Subdevice EXECUTE FREE []
        "the object most controls address";
    0x2081 "NV2081_BINAPI" 4 Other EXECUTE FREE []
        "queries answered by the firmware";
    0x2082 "NV2082_BINAPI_PRIVILEGED" 4 Other DENIED FREE []
        "firmware controls for root";
    0x208f "NV20_SUBDEVICE_DIAG" 0 Other EXECUTE FREE []
        "diagnostics; every control of it is decided on its own";
    0x503b "NV50_P2P" 72 Other EXECUTE FREE []
        "peer access between two subdevices of its own client";
    0x503c "NV50_THIRD_PARTY_P2P" 4 Other EXECUTE FREE []
        "GPUDirect RDMA; no memory is ever registered with it (control 0x503c0104)";
    0x5080 "NV50_DEFERRED_API_CLASS" 1 Other DENIED FREE []
        "runs calls later, under names checked by nobody";
    0x50a0 "NV50_MEMORY_VIRTUAL" 128 Memory EXECUTE FREE []
        "address space only (the driver insists on that flag); page tables come with class 0x90f1";
    0x83de "GT200_DEBUGGER" 12 Other EXECUTE FREE [client(0), client(4)]
        "CUDA makes one to read its own errors; the application must be its own";
    0x900e "MPS_COMPUTE" 0 Other DENIED FREE []
        "MPS merges tenants into one context";
    0x9067 "FERMI_CONTEXT_SHARE_A" 12 Other EXECUTE FREE []
        "a subcontext of its own channel group";
    0x90cc "GF100_PROFILER" 0 Other DENIED FREE []
        "reserves profiling hardware shared by every tenant";
    0x90cd "NV_EVENT_BUFFER" 72 Other DENIED FREE []
        "the context-switch timeline; its notification handle is kept as a kernel pointer";
    0x90ce "NV01_MEMORY_DEVICELESS" 128 Memory UNSUPPORTED FREE []
        "only feeds an event buffer";
    0x90e6 "GF100_SUBDEVICE_MASTER" 0 Other EXECUTE FREE []
        "reads error containment of the device";
    0x90f1 "FERMI_VASPACE_A" 56 VaSpace EXECUTE MEASURED []
        "page tables grow with what is mapped";
    0xa06c "KEPLER_CHANNEL_GROUP_A" 20 ChannelGroup EXECUTE MEASURED []
        "context buffers of the engine";
    0xb0cc "MAXWELL_PROFILER" 0 Other DENIED FREE []
        "reserves profiling hardware shared by every tenant";
    0xb1cc "MAXWELL_PROFILER_CONTEXT" 4 Other DENIED FREE []
        "reserves profiling hardware shared by every tenant";
    0xb2cc "MAXWELL_PROFILER_DEVICE" 8 Other DENIED FREE [client(0)]
        "reserves profiling hardware shared by every tenant";
    0xc361 "VOLTA_USERMODE_A" 0 Other EXECUTE FREE []
        "the doorbell page";
    0xc369 "MMU_FAULT_BUFFER" 0 Other DENIED FREE []
        "one buffer a device, owned by the UVM driver";
    0xc36f "VOLTA_CHANNEL_GPFIFO_A" 368 Channel EXECUTE MEASURED []
        "instance memory, and context buffers if its group has none yet; its parent must be a group";
    0xc3b5 "VOLTA_DMA_COPY_A" 8 Engine EXECUTE MEASURED []
        "copy engine object on its own channel";
    0xc3c0 "VOLTA_COMPUTE_A" 16 Engine EXECUTE MEASURED []
        "compute object on its own channel; the driver may allocate context buffers for it";
    0xc461 "TURING_USERMODE_A" 0 Other EXECUTE FREE []
        "the doorbell page";
    0xc46f "TURING_CHANNEL_GPFIFO_A" 368 Channel EXECUTE MEASURED []
        "instance memory, and context buffers if its group has none yet; its parent must be a group";
    0xc561 "AMPERE_USERMODE_A" 0 Other EXECUTE FREE []
        "the doorbell page";
    0xc56f "AMPERE_CHANNEL_GPFIFO_A" 368 Channel EXECUTE MEASURED []
        "instance memory, and context buffers if its group has none yet; its parent must be a group";
    0xc574 "UVM_CHANNEL_RETAINER" 8 Other DENIED FREE [client(0)]
        "for the UVM driver; names a channel of any client";
    0xc5b5 "TURING_DMA_COPY_A" 8 Engine EXECUTE MEASURED []
        "copy engine object on its own channel";
    0xc5c0 "TURING_COMPUTE_A" 16 Engine EXECUTE MEASURED []
        "compute object on its own channel; the driver may allocate context buffers for it";
    0xc637 "AMPERE_SMC_PARTITION_REF" 16 Other UNSUPPORTED FREE []
        "joins a MIG instance by a capability descriptor: slices are not cut from MIG instances yet";
    0xc638 "AMPERE_SMC_EXEC_PARTITION_REF" 16 Other UNSUPPORTED FREE []
        "joins a MIG instance by a capability descriptor: slices are not cut from MIG instances yet";
    0xc639 "AMPERE_SMC_CONFIG_SESSION" 8 Other EXECUTE FREE []
        "a MIG session (nvidia-smi); capDescriptor is a descriptor number and must be translated";
    0xc640 "AMPERE_SMC_MONITOR_SESSION" 8 Other EXECUTE FREE []
        "a MIG session (nvidia-smi); capDescriptor is a descriptor number and must be translated";
    0xc661 "HOPPER_USERMODE_A" 2 Other EXECUTE FREE []
        "the doorbell page";
    0xc6b5 "AMPERE_DMA_COPY_A" 8 Engine EXECUTE MEASURED []
        "copy engine object on its own channel";
    0xc6c0 "AMPERE_COMPUTE_A" 16 Engine EXECUTE MEASURED []
        "compute object on its own channel; the driver may allocate context buffers for it";
    0xc761 "BLACKWELL_USERMODE_A" 2 Other EXECUTE FREE []
        "the doorbell page";
    0xc7b5 "AMPERE_DMA_COPY_B" 8 Engine EXECUTE MEASURED []
        "copy engine object on its own channel";
    0xc7c0 "AMPERE_COMPUTE_B" 16 Engine EXECUTE MEASURED []
        "compute object on its own channel; the driver may allocate context buffers for it";
    0xc86f "HOPPER_CHANNEL_GPFIFO_A" 368 Channel EXECUTE MEASURED []
        "instance memory, and context buffers if its group has none yet; its parent must be a group";
    0xc8b5 "HOPPER_DMA_COPY_A" 8 Engine EXECUTE MEASURED []
        "copy engine object on its own channel";
    0xc96f "BLACKWELL_CHANNEL_GPFIFO_A" 368 Channel EXECUTE MEASURED []
        "instance memory, and context buffers if its group has none yet; its parent must be a group";
    0xc9b5 "BLACKWELL_DMA_COPY_A" 8 Engine EXECUTE MEASURED []
        "copy engine object on its own channel";
    0xc9c0 "ADA_COMPUTE_A" 16 Engine EXECUTE MEASURED []
        "compute object on its own channel; the driver may allocate context buffers for it";
    0xca6f "BLACKWELL_CHANNEL_GPFIFO_B" 368 Channel EXECUTE MEASURED []
        "instance memory, and context buffers if its group has none yet; its parent must be a group";
    0xcab5 "BLACKWELL_DMA_COPY_B" 8 Engine EXECUTE MEASURED []
        "copy engine object on its own channel";
    0xcb33 "NV_CONFIDENTIAL_COMPUTE" 4 Other EXECUTE FREE [client(0)]
        "asks whether confidential computing is on";
    0xcba2 "HOPPER_SEC2_WORK_LAUNCH_A" 0 Engine EXECUTE MEASURED []
        "confidential computing: work launch on its own channel";
    0xcbc0 "HOPPER_COMPUTE_A" 16 Engine EXECUTE MEASURED []
        "compute object on its own channel; the driver may allocate context buffers for it";
    0xcbca "NV_COUNTER_COLLECTION_UNIT" 0 Other DENIED FREE []
        "counters of the whole device";
    0xcdc0 "BLACKWELL_COMPUTE_A" 16 Engine EXECUTE MEASURED []
        "compute object on its own channel; the driver may allocate context buffers for it";
    0xcec0 "BLACKWELL_COMPUTE_B" 16 Engine EXECUTE MEASURED []
        "compute object on its own channel; the driver may allocate context buffers for it";
}
