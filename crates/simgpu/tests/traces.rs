//! Every call that two recorded runs on an H200 (driver 580.159: a CUDA memory exerciser and nvidia-smi) made, answered
//! with the status it had there.

mod common;

use std::os::fd::{AsFd as _, AsRawFd as _};

use common::*;
use rm::{class, ctrl, layout, nr, uvm};
use simgpu::client::Node;
use simgpu::work::{Op, WorkStatus};

/// Controls: command, size of the parameters, status.
const CONTROLS: &[(u32, usize, u32)] = &[
    (0x00000101, 40, 0),
    (0x0000013a, 1352, 0),
    (0x000001f0, 4, 0),
    (0x00000201, 128, 0),
    (0x00000202, 40, 0),
    (0x00000205, 32, 0),
    (0x00000214, 384, 0),
    (0x00000215, 132, 0),
    (0x00000216, 128, 0),
    (0x0000021b, 12, 0),
    (0x00000279, 12, 0),
    (0x0000027b, 4, 0),
    (0x00000288, 3076, 0),
    (0x00000289, 4, 0),
    (0x00000a04, 2244, 0),
    (0x00000d01, 12, 0),
    (0x00000d04, 12, 0),
    (0x00800280, 4, 0),
    (0x00800288, 4, 0),
    (0x00800289, 8, 0),
    (0x00800292, 804, 0),
    (0x00801307, 3, 0),
    (0x00801402, 3, 0),
    (0x0080170d, 24, 0),
    (0x00801909, 1, 0),
    (0x00de0001, 8, 0),
    (0x20800102, 564, 0),
    (0x20800110, 132, 0),
    (0x20800111, 64, 0),
    (0x20800119, 4, 0),
    (0x2080012f, 1464, 0),
    (0x20800131, 4, 0),
    (0x20800133, 8, 0),
    (0x20800145, 0, 0),
    (0x20800146, 0, 0),
    (0x2080014a, 268, 0),
    (0x20800157, 0, 0),
    (0x20800170, 340, 0),
    (0x2080018d, 3812, 0),
    (0x20800195, 260, 0),
    (0x208001a3, 56, 0),
    (0x20800406, 264, 0),
    (0x20801201, 32, 0),
    (0x20801210, 32, 0),
    (0x20801218, 16, 0),
    (0x2080121b, 9240, 0),
    (0x20801227, 48, 0),
    (0x2080122a, 24, 0),
    (0x2080122b, 24, 0),
    (0x20801230, 32, 0),
    (0x20801303, 1028, 0),
    (0x20801357, 4, 0x56),
    (0x20801701, 16, 0),
    (0x20801801, 16, 0),
    (0x20801802, 16, 0),
    (0x20801803, 200, 0),
    (0x20801823, 420, 0),
    (0x2080182a, 112, 0),
    (0x2080182b, 28, 0),
    (0x2080200a, 8, 0),
    (0x2080220c, 0, 0),
    (0x20802210, 0, 0),
    (0x20802a0a, 136, 0),
    (0x20803002, 13344, 0),
    (0x20803601, 72, 0),
    (0x20803801, 1928, 0),
    (0x20808159, 332, 0),
    (0x20808162, 1, 0),
    (0x2080852e, 528, 0),
    (0x2080852f, 776, 0x56),
    (0x20809009, 8, 0),
    (0x20809038, 4, 0),
    (0x20809064, 520, 0),
    (0x2080a612, 11680, 0),
    (0x2080a618, 8620, 0),
    (0x20810108, 992, 0),
    (0x20810110, 1, 0),
    (0x208f1105, 8, 0),
    (0x503c0102, 16, 0),
    (0x503c0104, 32, 0),
    (0x503c0105, 4, 0),
    (0x83de0309, 4, 0),
    (0x906f0101, 16, 0),
    (0x90e60102, 8, 0),
    (0xa06c0101, 3, 0),
    (0xa06c0103, 8, 0),
    (0xa06c0105, 8, 0),
    (0xc36f0108, 4, 0),
    (0xcb330101, 6, 0),
];

const GROUP: u32 = 0x5c00_0020;
const BASE: u64 = 0x7f00_0000_0000;

/// Classes under a device or a subdevice, with the size of their parameters and the handle the test gives them.
const OBJECTS: &[(u32, u32, usize, u32)] = &[
    (class::NV04_DISPLAY_COMMON, DEVICE, 0, 0x100),
    (class::NV2081_BINAPI, SUBDEVICE, 4, 0x101),
    (class::RM_USER_SHARED_DATA, SUBDEVICE, 8, 0x102),
    (class::NV20_SUBDEVICE_DIAG, SUBDEVICE, 0, 0x103),
    (class::HOPPER_USERMODE_A, SUBDEVICE, 2, 0x104),
    (class::GF100_SUBDEVICE_MASTER, SUBDEVICE, 0, 0x105),
    (class::NV50_THIRD_PARTY_P2P, SUBDEVICE, 4, 0x106),
    (class::GT200_DEBUGGER, DEVICE, 12, 0x107),
    (class::NV01_EVENT_OS_EVENT, SUBDEVICE, 24, 0x108),
    (class::NV50_MEMORY_VIRTUAL, DEVICE, 128, 0x109),
];

fn object_for(command: u32, root: u32) -> u32 {
    match command >> 16 {
        0x0000 => root,
        0x0080 => DEVICE,
        0x2080 => SUBDEVICE,
        0x2081 => 0x101,
        0x00de => 0x102,
        0x208f => 0x103,
        0x90e6 => 0x105,
        0x503c => 0x106,
        0x83de => 0x107,
        0xcb33 => 0x10a,
        0xa06c => GROUP,
        0x906f | 0xc36f => GROUP + 1,
        family => panic!("no object for family {family:#x}"),
    }
}

fn everything(tenant: &mut Tenant) {
    for &(class, parent, size, handle) in OBJECTS {
        let mut params = vec![0; size];
        if class == class::NV50_MEMORY_VIRTUAL {
            put64(&mut params, layout::memory_allocation::SIZE_FIELD, 1 << 30);
        }
        assert_eq!(
            tenant.alloc(parent, handle, class, &mut params),
            OK,
            "{class:#x}"
        );
    }
    let root = tenant.root;
    for (class, handle) in [(0xcb33, 0x10a), (0xc639, 0x10b), (0xc640, 0x10c)] {
        assert_eq!(
            tenant.alloc(root, handle, class, &mut [0; 8]),
            OK,
            "{class:#x}"
        );
    }
    tenant.uvm_space();
    tenant.channel(GROUP);
    let share = tenant.alloc(GROUP, 0x110, class::FERMI_CONTEXT_SHARE_A, &mut [0; 12]);
    assert_eq!(share, OK);
    assert_eq!(
        tenant.alloc(GROUP + 1, 0x111, class::HOPPER_COMPUTE_A, &mut [0; 16]),
        OK
    );
    assert_eq!(
        tenant.alloc(GROUP + 1, 0x112, class::HOPPER_DMA_COPY_A, &mut [0; 8]),
        OK
    );
}

#[test]
fn controls_answer_with_the_status_they_had() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    everything(&mut tenant);
    let memory = tenant.memory(0x200, 1 << 20);
    assert_eq!(memory.0, OK);
    for &(command, size, status) in CONTROLS {
        let mut params = vec![0; size];
        match command {
            ctrl::NV0000_CLIENT_GET_ADDR_SPACE_TYPE
            | ctrl::NV503C_REGISTER_VIDMEM
            | ctrl::NV503C_UNREGISTER_VIDMEM => put32(&mut params, 0, 0x200),
            ctrl::NV0000_GPU_GET_ID_INFO
            | ctrl::NV0000_GPU_GET_ID_INFO_V2
            | ctrl::NV0000_GPU_GET_PCI_INFO => {
                put32(&mut params, 0, 6);
            }
            ctrl::NV2080_GR_SET_CTXSW_PREEMPTION_MODE => {
                put32(&mut params, layout::preemption_mode::FLAGS, 1);
                put32(&mut params, layout::preemption_mode::H_CHANNEL, GROUP + 1);
                put32(&mut params, layout::preemption_mode::CILP_PREEMPT_MODE, 2);
            }
            ctrl::NVA06C_SET_TIMESLICE => put64(&mut params, 0, 2048),
            _ => {}
        }
        let object = object_for(command, tenant.root);
        assert_eq!(
            tenant.control(object, command, &mut params),
            status,
            "{command:#x}"
        );
    }
    for (name, status) in [(b"IMG", OK), (b"PWR", OBJECT_NOT_FOUND)] {
        let mut params = [name[0], name[1], name[2], 0, 0];
        assert_eq!(
            tenant.control(
                SUBDEVICE,
                ctrl::NV2080_GPU_GET_INFOROM_OBJECT_VERSION,
                &mut params
            ),
            status
        );
    }
}

#[test]
fn answers_that_programs_read_are_those_of_an_h200() {
    let node = node("2xH200");
    let mut tenant = Tenant::on(&node, 1);
    let root = tenant.root;
    let mut params = [0; 384];
    assert_eq!(
        tenant.control(root, ctrl::NV0000_GPU_GET_PROBED_IDS, &mut params),
        OK
    );
    assert_eq!([0, 4, 8].map(|at| get32(&params, at)), [6, 7, u32::MAX]);
    let mut params = [0; 132];
    assert_eq!(
        tenant.control(SUBDEVICE, ctrl::NV2080_GPU_GET_NAME_STRING, &mut params),
        OK
    );
    assert!(params[4..].starts_with(b"NVIDIA H200\0"));
    let mut params = [0; 268];
    assert_eq!(
        tenant.control(SUBDEVICE, ctrl::NV2080_GPU_GET_GID_INFO, &mut params),
        OK
    );
    assert_eq!(get32(&params, 8), 41);
    assert!(params[12..].starts_with(b"GPU-53494d00-4832-4000-8000-677075736c01\0"));

    let mut list = [0; 32];
    for (index, question) in [0x09, 0x0c, 0x0d, 0x0e].into_iter().enumerate() {
        put32(&mut list, 8 * index, question);
    }
    let mut params = [0; 32];
    put32(&mut params, 0, 4);
    put64(&mut params, 8, list.as_mut_ptr() as u64);
    assert_eq!(
        tenant.control(SUBDEVICE, ctrl::NV2080_GR_GET_INFO, &mut params),
        OK
    );
    assert_eq!(
        [4, 12, 20, 28].map(|at| get32(&list, at)),
        [132, 0x900, 64, 32]
    );

    let mut strings = [[0_u8; 64]; 3];
    let mut params = [0; 40];
    put32(&mut params, 0, 64);
    for (index, string) in strings.iter_mut().enumerate() {
        put64(&mut params, 8 + 8 * index, string.as_mut_ptr() as u64);
    }
    assert_eq!(
        tenant.control(root, ctrl::NV0000_SYSTEM_GET_BUILD_VERSION, &mut params),
        OK
    );
    assert!(strings[0].starts_with(b"580.159.04\0"));
}

#[test]
fn unknown_controls_and_wrong_sizes_are_refused() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    assert_eq!(
        tenant.control(SUBDEVICE, 0x2080_ffff, &mut [0; 8]),
        NOT_SUPPORTED
    );
    assert_eq!(
        tenant.control(DEVICE, ctrl::NV2080_FB_GET_INFO_V2, &mut [0; 1028]),
        NOT_SUPPORTED,
        "not its object"
    );
    assert_eq!(
        tenant.control(SUBDEVICE, ctrl::NV2080_FB_GET_INFO_V2, &mut [0; 1024]),
        0x3a
    );
    assert_eq!(
        tenant.control(0x777, ctrl::NV2080_FB_GET_INFO_V2, &mut [0; 1028]),
        OBJECT_NOT_FOUND
    );
    assert_eq!(tenant.alloc(DEVICE, 0x300, 0x1234, &mut [0; 8]), 0x22);
    assert_eq!(
        tenant.alloc(
            SUBDEVICE,
            0x300,
            class::KEPLER_CHANNEL_GROUP_A,
            &mut [0; 20]
        ),
        0x36
    );
}

#[test]
fn calls_on_the_node_itself() {
    let node = node("2xH200");
    let mut tenant = Tenant::new(&node);
    let mut cards = vec![0xff; 2304];
    tenant.escape(nr::CARD_INFO, &mut cards).unwrap();
    use layout::card_info as card;
    assert_eq!(
        (
            cards[card::VALID],
            get32(&cards, card::GPU_ID),
            get32(&cards, card::MINOR_NUMBER)
        ),
        (1, 6, 0)
    );
    assert_eq!(get32(&cards, card::VENDOR_ID), 0x2335_10de);
    let second = &cards[card::SIZE..];
    assert_eq!(
        (
            second[card::VALID],
            get32(second, card::GPU_ID),
            get32(second, card::MINOR_NUMBER)
        ),
        (1, 7, 1)
    );
    assert_eq!(cards[2 * card::SIZE + card::VALID], 0);
    assert!(
        tenant.escape(nr::CARD_INFO, &mut [0; 72]).is_err(),
        "no room for two"
    );

    let mut version = [0; layout::check_version::SIZE];
    put(
        &mut version,
        layout::check_version::VERSION_STRING,
        b"580.159.04",
    );
    tenant.escape(nr::CHECK_VERSION_STR, &mut version).unwrap();
    assert_eq!(get32(&version, layout::check_version::REPLY), 1);
    put(
        &mut version,
        layout::check_version::VERSION_STRING,
        b"570.1\0",
    );
    assert!(tenant.escape(nr::CHECK_VERSION_STR, &mut version).is_err());

    tenant.escape(nr::SYS_PARAMS, &mut [0; 8]).unwrap();
    let mut numa = vec![0; layout::numa_info::SIZE];
    tenant.escape(nr::NUMA_INFO, &mut numa).unwrap();
    assert_eq!(get32(&numa, layout::numa_info::NID), u32::MAX);
    tenant.escape(nr::WAIT_OPEN_COMPLETE, &mut [0; 8]).unwrap();
    tenant
        .escape(nr::ATTACH_GPUS_TO_FD, &mut 7_u32.to_le_bytes())
        .unwrap();
    assert!(
        tenant
            .escape(nr::ATTACH_GPUS_TO_FD, &mut 8_u32.to_le_bytes())
            .is_err()
    );

    for number in [nr::ALLOC_OS_EVENT, nr::FREE_OS_EVENT] {
        let mut event = [0; layout::alloc_os_event::SIZE];
        put32(&mut event, layout::alloc_os_event::H_CLIENT, tenant.root);
        tenant.escape(number, &mut event).unwrap();
        assert_eq!(get32(&event, layout::alloc_os_event::STATUS), OK);
    }
}

#[test]
fn rm_mappings_are_made_moved_and_undone() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    everything(&mut tenant);
    let mut map = [0; layout::nvos33_with_fd::SIZE];
    put32(&mut map, layout::nvos33::H_CLIENT, tenant.root);
    put32(&mut map, layout::nvos33::H_DEVICE, SUBDEVICE);
    put32(&mut map, layout::nvos33::H_MEMORY, 0x104);
    put64(&mut map, layout::nvos33::LENGTH, 0x10000);
    put32(
        &mut map,
        layout::nvos33_with_fd::FD,
        tenant.control.as_raw_fd() as u32,
    );
    tenant.escape(nr::RM_MAP_MEMORY, &mut map).unwrap();
    assert_eq!(get32(&map, layout::nvos33::STATUS), OK);
    let address = get64(&map, layout::nvos33::P_LINEAR_ADDRESS);

    let mut update = [0; layout::nvos56::SIZE];
    put32(&mut update, layout::nvos56::H_CLIENT, tenant.root);
    put32(&mut update, layout::nvos56::H_MEMORY, 0x104);
    put64(&mut update, layout::nvos56::P_OLD_CPU_ADDRESS, address);
    put64(&mut update, layout::nvos56::P_NEW_CPU_ADDRESS, 0x1234_5000);
    tenant
        .escape(nr::RM_UPDATE_DEVICE_MAPPING_INFO, &mut update)
        .unwrap();
    assert_eq!(get32(&update, layout::nvos56::STATUS), OK);

    let mut unmap = [0; layout::nvos34::SIZE];
    put32(&mut unmap, layout::nvos34::H_CLIENT, tenant.root);
    put32(&mut unmap, layout::nvos34::H_MEMORY, 0x104);
    for (at, status) in [(address, 0x1e), (0x1234_5000, OK), (0x1234_5000, 0x1e)] {
        put64(&mut unmap, layout::nvos34::P_LINEAR_ADDRESS, at);
        tenant.escape(nr::RM_UNMAP_MEMORY, &mut unmap).unwrap();
        assert_eq!(get32(&unmap, layout::nvos34::STATUS), status);
    }
}

#[test]
fn uvm_calls_of_the_traces() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let second = tenant.client.open(Node::Uvm).unwrap();
    let mut mm = [0; layout::uvm_mm_initialize::SIZE];
    put32(
        &mut mm,
        layout::uvm_mm_initialize::UVM_FD,
        tenant.uvm.as_raw_fd() as u32,
    );
    assert_eq!(
        uvm_call(
            &mut tenant.client,
            second.as_fd(),
            uvm::MM_INITIALIZE,
            &mut mm,
            4
        ),
        0x16
    );
    everything(&mut tenant);
    assert_eq!(
        uvm_call(
            &mut tenant.client,
            second.as_fd(),
            uvm::MM_INITIALIZE,
            &mut mm,
            4
        ),
        0x40,
        "another file keeps the address space by now"
    );

    let uuid = tenant.uuid();
    let mut group = [0; layout::uvm_create_range_group::SIZE];
    for id in 1..=2 {
        assert_eq!(tenant.uvm(uvm::CREATE_RANGE_GROUP, &mut group, 8), OK);
        assert_eq!(get64(&group, 0), id);
    }
    assert_eq!(tenant.uvm(uvm::DESTROY_RANGE_GROUP, &mut group, 8), OK);
    assert_eq!(
        tenant.uvm(uvm::DESTROY_RANGE_GROUP, &mut group, 8),
        OBJECT_NOT_FOUND
    );

    use layout::uvm_register_channel as register;
    let unregister = tenant.abi.layout().uvm_unregister_channel;
    let mut channel = [0; register::SIZE];
    put(&mut channel, 0, &uuid);
    put32(&mut channel, register::H_CLIENT, tenant.root);
    put32(&mut channel, register::H_CHANNEL, GROUP + 1);
    assert_eq!(
        tenant.uvm(uvm::REGISTER_CHANNEL, &mut channel, register::RM_STATUS),
        OK
    );
    let mut channel = tenant.of_uvm(uvm::UNREGISTER_CHANNEL);
    put(&mut channel, 0, &uuid);
    put32(&mut channel, unregister.h_client, tenant.root);
    put32(&mut channel, unregister.h_channel, GROUP + 1);
    assert_eq!(
        tenant.uvm(uvm::UNREGISTER_CHANNEL, &mut channel, unregister.rm_status),
        OK
    );

    use layout::uvm_alloc_semaphore_pool as pool;
    let mut semaphores = tenant.of_uvm(uvm::ALLOC_SEMAPHORE_POOL);
    let status_at = tenant.abi.layout().uvm_alloc_semaphore_pool.rm_status;
    put64(&mut semaphores, pool::BASE, BASE);
    put64(&mut semaphores, pool::LENGTH, 2 << 20);
    assert_eq!(
        tenant.uvm(uvm::ALLOC_SEMAPHORE_POOL, &mut semaphores, status_at),
        OK
    );
    assert_eq!(
        tenant
            .submit(
                GROUP + 1,
                Op::Write {
                    dst: BASE + 64,
                    bytes: vec![9]
                }
            )
            .status,
        WorkStatus::Done
    );
    assert_eq!(tenant.read(GROUP + 1, BASE + 63, 3), [0, 9, 0]);

    use layout::uvm_map_dynamic_parallelism_region as region;
    let mut dynamic = [0; region::SIZE];
    put64(&mut dynamic, region::BASE, BASE + (4 << 20));
    put64(&mut dynamic, region::LENGTH, 4096);
    put(&mut dynamic, region::GPU_UUID, &uuid);
    assert_eq!(
        tenant.uvm(
            uvm::MAP_DYNAMIC_PARALLELISM_REGION,
            &mut dynamic,
            region::RM_STATUS
        ),
        OK
    );

    use layout::uvm_validate_va_range as validate;
    let mut range = [0; validate::SIZE];
    put64(&mut range, validate::LENGTH, 4096);
    for (base, status) in [(BASE, OK), (BASE - 4096, 0x1e)] {
        put64(&mut range, validate::BASE, base);
        assert_eq!(
            tenant.uvm(uvm::VALIDATE_VA_RANGE, &mut range, validate::RM_STATUS),
            status
        );
    }
    for (call, size, status_at) in [
        (uvm::UNSET_PREFERRED_LOCATION, 24, 16),
        (uvm::DISABLE_READ_DUPLICATION, 24, 16),
        (uvm::UNSET_ACCESSED_BY, 40, 32),
        (uvm::SET_RANGE_GROUP, 32, 24),
    ] {
        assert_eq!(
            tenant.uvm(call, &mut vec![0; size], status_at),
            OK,
            "{call}"
        );
    }
    let mut none = [];
    tenant
        .client
        .ioctl(tenant.uvm.as_fd(), uvm::DEINITIALIZE, none.as_mut_ptr())
        .unwrap();
}
