//! The UVM calls of branch 580, sorted by request: whole 32-bit words, as the kernel compares them.
//!
//! The filter passes calls on the caller's own addresses that take no memory which is not charged already. A request
//! that is not here is refused.

use crate::row::*;

uvm_calls! {
    pub(crate) UVM_CALLS;
    1 "UVM_RESERVE_VA" 24 16 UNSUPPORTED FREE []
        "not implemented by this driver";
    2 "UVM_RELEASE_VA" 24 16 UNSUPPORTED FREE []
        "not implemented by this driver";
    3 "UVM_REGION_COMMIT" 48 40 UNSUPPORTED FREE []
        "not implemented by this driver";
    4 "UVM_REGION_DECOMMIT" 24 16 UNSUPPORTED FREE []
        "not implemented by this driver";
    5 "UVM_REGION_SET_STREAM" 48 40 UNSUPPORTED FREE []
        "not implemented by this driver";
    6 "UVM_SET_STREAM_RUNNING" 16 8 UNSUPPORTED FREE []
        "not implemented by this driver";
    7 "UVM_SET_STREAM_STOPPED" 272 264 UNSUPPORTED FREE []
        "not implemented by this driver";
    9 "UVM_RUN_TEST" 44 40 UNSUPPORTED FREE []
        "not implemented by this driver";
    10 "UVM_ADD_SESSION" 24 20 UNSUPPORTED FREE []
        "not implemented by this driver";
    11 "UVM_REMOVE_SESSION" 8 4 UNSUPPORTED FREE []
        "not implemented by this driver";
    12 "UVM_ENABLE_COUNTERS" 908 904 UNSUPPORTED FREE []
        "not implemented by this driver";
    13 "UVM_MAP_COUNTER" 48 40 UNSUPPORTED FREE []
        "not implemented by this driver";
    14 "UVM_CREATE_EVENT_QUEUE" 32 28 UNSUPPORTED FREE []
        "not implemented by this driver";
    15 "UVM_REMOVE_EVENT_QUEUE" 12 8 UNSUPPORTED FREE []
        "not implemented by this driver";
    16 "UVM_MAP_EVENT_QUEUE" 56 48 UNSUPPORTED FREE []
        "not implemented by this driver";
    17 "UVM_EVENT_CTRL" 20 16 UNSUPPORTED FREE []
        "not implemented by this driver";
    18 "UVM_REGISTER_MPS_SERVER" 536 528 UNSUPPORTED FREE []
        "not implemented by this driver";
    19 "UVM_REGISTER_MPS_CLIENT" 16 8 UNSUPPORTED FREE []
        "not implemented by this driver";
    20 "UVM_GET_GPU_UUID_TABLE" 520 516 UNSUPPORTED FREE []
        "not implemented by this driver";
    23 "UVM_CREATE_RANGE_GROUP" 16 8 PASS FREE []
        "names a group of ranges in its own address space";
    24 "UVM_DESTROY_RANGE_GROUP" 16 8 PASS FREE []
        "removes a group of ranges from its own address space";
    25 "UVM_REGISTER_GPU_VASPACE" 32 28 EXECUTE FREE [client(20)]
        "the driver wants the process that owns the client";
    26 "UVM_UNREGISTER_GPU_VASPACE" 20 16 EXECUTE FREE []
        "gives no memory back: ranges keep what they map";
    27 "UVM_REGISTER_CHANNEL" 56 48 EXECUTE FREE [client(20)]
        "the driver wants the process that owns the client";
    28 "UVM_UNREGISTER_CHANNEL" 28 24 EXECUTE FREE [client(16)]
        "names a channel of its own client";
    29 "UVM_ENABLE_PEER_ACCESS" 36 32 EXECUTE FREE []
        "peer access between GPUs it has registered";
    30 "UVM_DISABLE_PEER_ACCESS" 36 32 EXECUTE FREE []
        "gives no memory back: ranges keep what they map";
    31 "UVM_SET_RANGE_GROUP" 32 24 PASS FREE []
        "puts its own ranges into a group";
    33 "UVM_MAP_EXTERNAL_ALLOCATION" 9264 9260 EXECUTE SHARES [client(9252)]
        "keeps the memory alive after its handle is freed, until the last of its ranges is gone";
    34 "UVM_FREE" 24 16 EXECUTE RELEASES []
        "the range goes, and what it mapped";
    35 "UVM_MEM_MAP" 24 16 UNSUPPORTED FREE []
        "not implemented by this driver";
    37 "UVM_REGISTER_GPU" 40 36 EXECUTE FREE [client(28)]
        "the driver wants the process that owns the client";
    38 "UVM_UNREGISTER_GPU" 20 16 EXECUTE FREE []
        "gives no memory back: ranges keep what they map";
    39 "UVM_PAGEABLE_MEM_ACCESS" 8 4 EXECUTE FREE []
        "a question; also tells the guard whether the file is set up";
    40 "UVM_PREVENT_MIGRATION_RANGE_GROUPS" 272 264 UNSUPPORTED FREE []
        "pins managed memory on the device: no compute program needs it yet";
    41 "UVM_ALLOW_MIGRATION_RANGE_GROUPS" 272 264 UNSUPPORTED FREE []
        "pins managed memory on the device: no compute program needs it yet";
    42 "UVM_SET_PREFERRED_LOCATION" 40 36 PASS FREE []
        "advice on its own addresses; must see the caller's address space";
    43 "UVM_UNSET_PREFERRED_LOCATION" 24 16 PASS FREE []
        "advice on its own addresses; must see the caller's address space";
    44 "UVM_ENABLE_READ_DUPLICATION" 24 16 PASS FREE []
        "advice on its own addresses; must see the caller's address space";
    45 "UVM_DISABLE_READ_DUPLICATION" 24 16 PASS FREE []
        "advice on its own addresses; must see the caller's address space";
    46 "UVM_SET_ACCESSED_BY" 40 32 PASS FREE []
        "advice on its own addresses; must see the caller's address space";
    47 "UVM_UNSET_ACCESSED_BY" 40 32 PASS FREE []
        "advice on its own addresses; must see the caller's address space";
    51 "UVM_MIGRATE" 80 72 PASS FREE []
        "moves pages that are charged already; must see the caller's address space";
    53 "UVM_MIGRATE_RANGE_GROUP" 32 24 PASS FREE []
        "moves pages that are charged already; must see the caller's address space";
    54 "UVM_ENABLE_SYSTEM_WIDE_ATOMICS" 20 16 UNSUPPORTED FREE []
        "no compute program needs it yet";
    55 "UVM_DISABLE_SYSTEM_WIDE_ATOMICS" 20 16 UNSUPPORTED FREE []
        "no compute program needs it yet";
    56 "UVM_TOOLS_INIT_EVENT_TRACKER" 56 48 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    57 "UVM_TOOLS_SET_NOTIFICATION_THRESHOLD" 8 4 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    58 "UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS" 16 8 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    59 "UVM_TOOLS_EVENT_QUEUE_DISABLE_EVENTS" 16 8 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    60 "UVM_TOOLS_ENABLE_COUNTERS" 16 8 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    61 "UVM_TOOLS_DISABLE_COUNTERS" 16 8 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    62 "UVM_TOOLS_READ_PROCESS_MEMORY" 40 32 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    63 "UVM_TOOLS_WRITE_PROCESS_MEMORY" 40 32 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    64 "UVM_TOOLS_GET_PROCESSOR_UUID_TABLE" 16 8 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    65 "UVM_MAP_DYNAMIC_PARALLELISM_REGION" 40 32 EXECUTE FREE []
        "maps a reserved region of addresses";
    66 "UVM_UNMAP_EXTERNAL" 40 32 EXECUTE RELEASES []
        "the mapping goes, and what it mapped";
    67 "UVM_TOOLS_FLUSH_EVENTS" 4 0 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    68 "UVM_ALLOC_SEMAPHORE_POOL" 9248 9240 EXECUTE FREE []
        "semaphores in host memory";
    69 "UVM_CLEAN_UP_ZOMBIE_RESOURCES" 4 0 UNSUPPORTED FREE []
        "no program needs it";
    70 "UVM_PAGEABLE_MEM_ACCESS_ON_GPU" 24 20 EXECUTE FREE []
        "a question";
    71 "UVM_POPULATE_PAGEABLE" 24 20 UNSUPPORTED FREE []
        "works on the address space of whoever calls, here the helper";
    72 "UVM_VALIDATE_VA_RANGE" 24 16 PASS FREE []
        "asks about its own addresses";
    73 "UVM_CREATE_EXTERNAL_RANGE" 24 16 PASS FREE []
        "reserves addresses; memory comes with MAP_EXTERNAL_ALLOCATION";
    74 "UVM_MAP_EXTERNAL_SPARSE" 40 32 UNSUPPORTED FREE []
        "no compute program needs it yet";
    75 "UVM_MM_INITIALIZE" 8 4 IN_TENANT FREE []
        "binds the file to the caller's address space";
    76 "UVM_TOOLS_INIT_EVENT_TRACKER_V2" 56 48 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    77 "UVM_TOOLS_GET_PROCESSOR_UUID_TABLE_V2" 16 8 UNSUPPORTED FREE []
        "profiler interface: watches or writes other processes";
    78 "UVM_ALLOC_DEVICE_P2P" 56 52 EXECUTE SHARES [client(44)]
        "keeps the memory alive for a peer device";
    79 "UVM_CLEAR_ALL_ACCESS_COUNTERS" 4 0 UNSUPPORTED FREE []
        "clears counters of a whole GPU";
    80 "UVM_DISCARD" 32 24 UNSUPPORTED FREE []
        "new on this branch; the helper would act on its own address space";
    2047 "UVM_IS_8_SUPPORTED" 8 4 UNSUPPORTED FREE []
        "not implemented by this driver";
    0x3000_0001 "UVM_INITIALIZE" 16 8 IN_TENANT FREE []
        "binds the file to the caller's address space; flags are immutable and checked afterwards";
    0x3000_0002 "UVM_DEINITIALIZE" 0 - EXECUTE FREE []
        "the driver does nothing and answers yes";
}
