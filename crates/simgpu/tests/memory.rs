//! The finite card, what keeps memory alive, and what a freed piece leaves behind.

mod common;

use std::os::fd::{AsFd as _, AsRawFd as _};

use common::*;
use rm::{class, ctrl, layout, nr, uvm};
use simgpu::client::{Client, Node};
use simgpu::work::{Op, WorkStatus};

const MEMORY: u32 = 0x5c00_0010;
const BASE: u64 = 0x7f00_0000_0000;

/// The largest allocation that fits into so much: from 2 MiB on, sizes are whole multiples of it.
fn largest(free: u64) -> u64 {
    free / (2 * MIB) * (2 * MIB)
}

#[test]
fn an_h200_says_what_an_h200_says() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    assert_eq!(tenant.fb(0x07), 147_221_504);
    assert_eq!(tenant.fb(0x08), 147_221_504);
    assert_eq!(tenant.fb(0x09), 146_591_680);
    assert_eq!(tenant.fb(0x20), 146_941_632);
    assert_eq!(tenant.fb(0x12), 146_591_680);
    assert_eq!(tenant.fb(0x16), 146_591_680);
    // The older control answers the same through a pointer.
    let mut list = [0_u8; 16];
    put32(&mut list, 0, 0x07);
    put32(&mut list, 8, 0x16);
    let mut params = [0; layout::fb_info_v1::SIZE];
    put32(&mut params, 0, 2);
    put64(&mut params, 8, list.as_mut_ptr() as u64);
    assert_eq!(
        tenant.control(SUBDEVICE, ctrl::NV2080_FB_GET_INFO, &mut params),
        OK
    );
    assert_eq!(
        (get32(&list, 4), get32(&list, 12)),
        (147_221_504, 146_591_680)
    );
    assert_eq!(get64(&params, 8), list.as_ptr() as u64);
}

#[test]
fn sizes_come_back_rounded_and_take_that_much() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let all = tenant.free_bytes();
    let huge = 3 << 23;
    for (size, attr, attr2, rounded) in [
        (1, 0, 0, 64 * KIB),
        (3 * MIB, 0, 0, 4 * MIB),
        (1, huge, 1 << 20, 2 * MIB),
        (1, huge, 2 << 20, 512 * MIB),
    ] {
        assert_eq!(tenant.memory_with(MEMORY, size, attr, attr2), (OK, rounded));
        assert_eq!(tenant.free_bytes(), all - rounded);
        assert_eq!(tenant.free(MEMORY), OK);
    }
    assert_eq!(tenant.memory(MEMORY, 0).0, 0x1f);
    assert_eq!(
        tenant.memory_with(MEMORY, MIB, 1 << 25, 0).0,
        0x1f,
        "0x40 is device memory or nothing"
    );
    let mut params = tenant.of_class(class::NV01_MEMORY_LOCAL_USER);
    put64(&mut params, layout::memory_allocation::SIZE_FIELD, MIB);
    assert_eq!(
        tenant.alloc(DEVICE, MEMORY, class::NV01_MEMORY_SYSTEM, &mut params),
        0x1f,
        "0x3e is host memory"
    );
    put32(&mut params, layout::memory_allocation::ATTR, 1 << 25);
    assert_eq!(
        tenant.alloc(DEVICE, MEMORY, class::NV01_MEMORY_SYSTEM, &mut params),
        OK
    );
    assert_eq!(
        tenant.free_bytes(),
        all,
        "host memory costs nothing on the card"
    );
}

#[test]
fn the_card_is_finite_for_all_its_users_together() {
    let node = node("2xH200");
    let mut first = Tenant::new(&node);
    let mut second = Tenant::new(&node);
    let mut other_card = Tenant::on(&node, 1);
    let all = first.free_bytes();
    assert_eq!(first.memory(MEMORY, largest(all) - GIB).0, OK);
    assert_eq!(second.memory(MEMORY, GIB + 1).0, NO_MEMORY);
    assert_eq!(second.memory(MEMORY, GIB).0, OK);
    let rest = second.free_bytes();
    assert!(rest < 2 * MIB);
    assert_eq!(
        first
            .memory(MEMORY + 1, rest / (64 * KIB) * (64 * KIB) + 1)
            .0,
        NO_MEMORY
    );
    assert_eq!(other_card.memory(MEMORY, largest(all)).0, OK);
    first.free(MEMORY);
    assert_eq!(second.free_bytes(), all - GIB);
}

#[test]
fn vid_heap_allocates_frees_and_tells_what_is_left() {
    use layout::{nvos32 as at, nvos32_alloc_size as data};
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let all = tenant.free_bytes();
    let mut block = [0; at::SIZE];
    put32(&mut block, at::H_ROOT, tenant.root);
    put32(&mut block, at::H_OBJECT_PARENT, DEVICE);
    put32(&mut block, at::FUNCTION, 2);
    put64(&mut block, data::SIZE_FIELD, 5 * MIB);
    tenant.escape(nr::RM_VID_HEAP_CONTROL, &mut block).unwrap();
    assert_eq!(get32(&block, at::STATUS), OK);
    assert_eq!(get64(&block, data::SIZE_FIELD), 6 * MIB);
    assert_eq!(
        (get64(&block, at::TOTAL), get64(&block, at::FREE)),
        (146_591_680 * KIB, all - 6 * MIB)
    );
    let handle = get32(&block, data::H_MEMORY);
    assert_ne!(handle, 0);
    put32(&mut block, at::FUNCTION, 3);
    put32(&mut block, layout::nvos32_free::H_MEMORY, handle);
    tenant.escape(nr::RM_VID_HEAP_CONTROL, &mut block).unwrap();
    assert_eq!(
        (get32(&block, at::STATUS), get64(&block, at::FREE)),
        (OK, all)
    );
}

#[test]
fn a_mapping_outlives_the_handle_until_it_is_freed_unmapped_overwritten_or_closed() {
    let node = node("1xH200");
    let mut watcher = Tenant::new(&node);
    let all = watcher.free_bytes();
    let mut tenant = Tenant::new(&node);
    tenant.uvm_space();

    tenant.mapped(MEMORY, BASE, GIB);
    assert_eq!(tenant.free(MEMORY), OK);
    assert_eq!(watcher.free_bytes(), all - GIB, "the mapping holds it");
    assert_eq!(tenant.uvm_free(BASE), OK);
    assert_eq!(watcher.free_bytes(), all, "UVM_FREE");

    tenant.mapped(MEMORY, BASE, GIB);
    tenant.free(MEMORY);
    assert_eq!(tenant.unmap(BASE, GIB / 2), OK);
    assert_eq!(
        watcher.free_bytes(),
        all - GIB,
        "half of it is still mapped"
    );
    assert_eq!(tenant.unmap(BASE + GIB / 2, GIB / 2), OK);
    assert_eq!(watcher.free_bytes(), all, "UNMAP_EXTERNAL");
    assert_eq!(tenant.uvm_free(BASE), OK);

    tenant.mapped(MEMORY, BASE, 8 * MIB);
    tenant.free(MEMORY);
    assert_eq!(tenant.memory(MEMORY, 2 * MIB).0, OK);
    assert_eq!(tenant.map(BASE + 2 * MIB, 2 * MIB, MEMORY, 0), OK);
    assert_eq!(
        watcher.free_bytes(),
        all - 10 * MIB,
        "the middle is overwritten, both sides stay"
    );
    assert_eq!(tenant.map(BASE, 2 * MIB, MEMORY, 0), OK);
    assert_eq!(tenant.unmap(BASE + 4 * MIB, 4 * MIB), OK);
    assert_eq!(
        watcher.free_bytes(),
        all - 2 * MIB,
        "the last piece is gone"
    );
    tenant.free(MEMORY);
    assert_eq!(watcher.free_bytes(), all - 2 * MIB);
    drop(tenant);
    eventually("the UVM file is gone", || watcher.free_bytes() == all);
}

#[test]
fn unregistering_releases_nothing_and_mappings_need_a_range_and_an_end() {
    use layout::uvm_unregister_gpu_vaspace as at;
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    tenant.uvm_space();
    let all = tenant.free_bytes();
    assert_eq!(tenant.memory(MEMORY, 4 * MIB).0, OK);
    assert_eq!(tenant.map(BASE, 4 * MIB, MEMORY, 0), 0x1e, "no range");
    assert_eq!(tenant.range(BASE, 4 * MIB), OK);
    assert_eq!(tenant.range(BASE + MIB, MIB), 0x67, "taken");
    assert_eq!(
        tenant.map(BASE + 2 * MIB, 4 * MIB, MEMORY, 0),
        0x1e,
        "beyond the range"
    );
    assert_eq!(
        tenant.map(BASE, 4 * MIB, MEMORY, MIB),
        0x37,
        "beyond the memory"
    );
    assert_eq!(tenant.map(BASE, 4 * MIB, MEMORY + 1, 0), OBJECT_NOT_FOUND);
    assert_eq!(tenant.map(BASE, 4 * MIB, MEMORY, 0), OK);
    tenant.free(MEMORY);
    let mut block = [0; at::SIZE];
    let uuid = tenant.uuid();
    put(&mut block, 0, &uuid);
    assert_eq!(
        tenant.uvm(uvm::UNREGISTER_GPU_VASPACE, &mut block, at::RM_STATUS),
        OK
    );
    assert_eq!(tenant.free_bytes(), all - 4 * MIB);
}

#[test]
fn uvm_flags_are_immutable_and_a_file_that_is_not_set_up_says_so() {
    use layout::{uvm_initialize as at, uvm_pageable_mem_access as ask};
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let mut block = [0; ask::SIZE];
    assert_eq!(
        tenant.uvm(uvm::PAGEABLE_MEM_ACCESS, &mut block, ask::RM_STATUS),
        0x16
    );
    let mut flags = [0; at::SIZE];
    put64(&mut flags, at::FLAGS, 1);
    assert_eq!(tenant.uvm(uvm::INITIALIZE, &mut flags, at::RM_STATUS), OK);
    assert_eq!(tenant.uvm(uvm::INITIALIZE, &mut flags, at::RM_STATUS), OK);
    put64(&mut flags, at::FLAGS, 3);
    assert_eq!(tenant.uvm(uvm::INITIALIZE, &mut flags, at::RM_STATUS), 0x1f);
    assert_eq!(
        tenant.uvm(uvm::PAGEABLE_MEM_ACCESS, &mut block, ask::RM_STATUS),
        OK
    );
}

#[test]
fn an_exported_object_lives_in_its_file() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let all = tenant.free_bytes();
    assert_eq!(tenant.memory(MEMORY, GIB).0, OK);
    let holder = tenant.client.open(Node::Control).unwrap();
    let mut export = [0; 24];
    put32(&mut export, 0, 1);
    put32(&mut export, 4, DEVICE);
    put32(&mut export, 8, DEVICE);
    put32(&mut export, 12, MEMORY);
    put32(&mut export, 16, holder.as_raw_fd() as u32);
    let root = tenant.root;
    assert_eq!(
        tenant.control(root, ctrl::NV0000_OS_UNIX_EXPORT_OBJECT_TO_FD, &mut export),
        OK
    );
    tenant.free(MEMORY);
    assert_eq!(tenant.free_bytes(), all - GIB);

    // Another process's client imports it from the descriptor it was sent.
    let mut other = Tenant::new(&node);
    let mut import = [0; 20];
    put32(&mut import, 0, holder.as_raw_fd() as u32);
    put32(&mut import, 12, DEVICE);
    put32(&mut import, 16, MEMORY + 5);
    let root = other.root;
    assert_eq!(
        other.control(
            root,
            ctrl::NV0000_OS_UNIX_IMPORT_OBJECT_FROM_FD,
            &mut import
        ),
        OK
    );
    assert_eq!(get32(&import, 16), MEMORY + 5);
    drop(holder);
    assert_eq!(
        other.free_bytes(),
        all - GIB,
        "counted once, and still held by the import"
    );
    other.free(MEMORY + 5);
    eventually("nobody holds it", || other.free_bytes() == all);
}

#[test]
fn a_third_party_object_holds_what_is_registered_with_it() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let all = tenant.free_bytes();
    for freed_by_object in [false, true] {
        assert_eq!(
            tenant.alloc(SUBDEVICE, 0x106, class::NV50_THIRD_PARTY_P2P, &mut [0; 4]),
            OK
        );
        assert_eq!(tenant.memory(MEMORY, GIB).0, OK);
        let mut register = [0; 32];
        put32(&mut register, 0, MEMORY);
        assert_eq!(
            tenant.control(0x106, ctrl::NV503C_REGISTER_VIDMEM, &mut register),
            OK
        );
        tenant.free(MEMORY);
        assert_eq!(tenant.free_bytes(), all - GIB);
        if !freed_by_object {
            let unregister = &mut register[..4];
            assert_eq!(
                tenant.control(0x106, ctrl::NV503C_UNREGISTER_VIDMEM, unregister),
                OK
            );
            assert_eq!(tenant.free_bytes(), all);
        }
        tenant.free(0x106);
        assert_eq!(tenant.free_bytes(), all);
    }
}

#[test]
fn a_dmabuf_is_a_descriptor_that_holds_memory() {
    use layout::export_to_dmabuf_fd as at;
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let all = tenant.free_bytes();
    assert_eq!(tenant.memory(MEMORY, GIB).0, OK);
    let behind = tenant.abi.layout().export_to_dmabuf_fd;
    let sizes = tenant.abi.escape(nr::EXPORT_TO_DMABUF_FD).unwrap().sizes;
    let mut block = vec![0; sizes[0].into()];
    put32(&mut block, at::FD, u32::MAX);
    put32(&mut block, at::H_CLIENT, tenant.root);
    put32(&mut block, at::TOTAL_OBJECTS, 1);
    put32(&mut block, at::NUM_OBJECTS, 1);
    put32(&mut block, behind.handles, MEMORY);
    tenant.escape(nr::EXPORT_TO_DMABUF_FD, &mut block).unwrap();
    assert_eq!(get32(&block, behind.status), OK);
    let number = get32(&block, at::FD) as i32;
    tenant.free(MEMORY);
    assert_eq!(tenant.free_bytes(), all - GIB);
    // SAFETY: the ioctl has made this descriptor for us; nothing else owns it.
    assert_eq!(unsafe { libc::close(number) }, 0);
    eventually("the dmabuf is closed", || tenant.free_bytes() == all);
}

#[test]
fn memory_starts_as_zero_whoever_had_it_before() {
    let node = node("1xH200");
    let mut first = Tenant::new(&node);
    first.uvm_space();
    let channel = first.channel(0x5c00_0020);
    // All that is left, so that the next owner must get the same.
    let size = largest(first.free_bytes());
    first.mapped(MEMORY, BASE, size);
    let done = first.submit(
        channel,
        Op::Fill {
            dst: BASE,
            value: 0xdead_beef,
            width: 4,
            count: size / 4,
        },
    );
    assert_eq!(done.status, WorkStatus::Done);
    assert_eq!(
        first.read(channel, BASE + size - 8, 8),
        0xdead_beef_dead_beef_u64.to_le_bytes()
    );
    first.free(MEMORY);
    first.uvm_free(BASE);

    let mut second = Tenant::new(&node);
    second.uvm_space();
    let channel = second.channel(0x5c00_0020);
    let size = largest(second.free_bytes());
    second.mapped(MEMORY, BASE, size);
    for offset in [0, size / 2, size - 4096] {
        assert_eq!(second.read(channel, BASE + offset, 4096), vec![0; 4096]);
    }
}

#[test]
fn pinned_pages_are_the_processs_own() {
    use layout::{nvos02 as at, nvos02_with_fd};
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    tenant.uvm_space();
    let channel = tenant.channel(0x5c00_0020);
    let mut pages = vec![3_u8; 3 << 12];
    let start = (pages.as_mut_ptr() as u64).next_multiple_of(4096);
    let mut block = [0; nvos02_with_fd::SIZE];
    put32(&mut block, at::H_ROOT, tenant.root);
    put32(&mut block, at::H_OBJECT_PARENT, DEVICE);
    put32(&mut block, at::H_OBJECT_NEW, MEMORY);
    put32(
        &mut block,
        at::H_CLASS,
        class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
    );
    put32(&mut block, at::FLAGS, 0x4000_1010);
    put64(&mut block, at::P_MEMORY, start);
    put64(&mut block, at::LIMIT, 8191);
    put32(&mut block, nvos02_with_fd::FD, u32::MAX);
    tenant
        .escape_on_device(nr::RM_ALLOC_MEMORY, &mut block)
        .unwrap();
    assert_eq!(get32(&block, at::STATUS), OK);
    assert_eq!(class_of(&mut tenant, MEMORY), 0x71);
    assert_eq!(tenant.range(start, 8192), OK);
    assert_eq!(tenant.map(start, 8192, MEMORY, 0), OK);
    let done = tenant.submit(
        channel,
        Op::Fill {
            dst: start + 4092,
            value: 0x0605_0403,
            width: 4,
            count: 2,
        },
    );
    assert_eq!(done.status, WorkStatus::Done);
    let at_fill = (start - pages.as_ptr() as u64) as usize + 4092;
    assert_eq!(
        pages[at_fill - 1..at_fill + 9],
        [3, 3, 4, 5, 6, 3, 4, 5, 6, 3]
    );
    // As the driver refuses it: with a mapping, and on a control file.
    put32(&mut block, at::H_OBJECT_NEW, MEMORY + 1);
    put32(&mut block, at::FLAGS, 0x1010);
    tenant
        .escape_on_device(nr::RM_ALLOC_MEMORY, &mut block)
        .unwrap();
    assert_eq!(get32(&block, at::STATUS), 0x29);
    put32(&mut block, at::FLAGS, 0x4000_1010);
    let refused = tenant.escape(nr::RM_ALLOC_MEMORY, &mut block).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    put64(&mut block, at::P_MEMORY, 0x1000);
    tenant
        .escape_on_device(nr::RM_ALLOC_MEMORY, &mut block)
        .unwrap();
    assert_eq!(
        get32(&block, at::STATUS),
        0x1e,
        "nothing is there to be pinned"
    );
}

/// Control 0xd02: the class behind a handle, by which a guard finds out what was really allocated.
fn class_of(tenant: &mut Tenant, handle: u32) -> u64 {
    let mut params = [0; layout::handle_info::SIZE];
    put32(&mut params, layout::handle_info::H_OBJECT, handle);
    put32(&mut params, layout::handle_info::INDEX, 2);
    let root = tenant.root;
    assert_eq!(
        tenant.control(root, ctrl::NV0000_CLIENT_GET_HANDLE_INFO, &mut params),
        OK
    );
    get64(&params, layout::handle_info::DATA)
}

#[test]
fn a_swapped_class_is_allocated_and_its_handle_says_so() {
    use layout::{nvos02 as at, nvos02_with_fd};
    let node = node("1xH200");
    let mut victim = Tenant::new(&node);
    victim.uvm_space();
    let victims_channel = victim.channel(0x5c00_0020);
    victim.mapped(MEMORY, BASE, 2 * MIB);
    victim.submit(
        victims_channel,
        Op::Write {
            dst: BASE,
            bytes: b"secret".to_vec(),
        },
    );

    let mut tenant = Tenant::new(&node);
    tenant.uvm_space();
    let channel = tenant.channel(0x5c00_0020);
    let all = tenant.free_bytes();
    let start_of_the_card = [0_u8; 56];
    let mut block = [0; nvos02_with_fd::SIZE];
    for (handle, class) in [(MEMORY, 0x3e), (MEMORY + 1, 0x40), (MEMORY + 2, 0xf3)] {
        put32(&mut block, at::H_ROOT, tenant.root);
        put32(&mut block, at::H_OBJECT_PARENT, DEVICE);
        put32(&mut block, at::H_OBJECT_NEW, handle);
        put32(&mut block, at::H_CLASS, class);
        put64(&mut block, at::P_MEMORY, start_of_the_card.as_ptr() as u64);
        put64(&mut block, at::LIMIT, 2 * MIB - 1);
        tenant
            .escape_on_device(nr::RM_ALLOC_MEMORY, &mut block)
            .unwrap();
        assert_eq!(
            (get32(&block, at::STATUS), class_of(&mut tenant, handle)),
            (OK, class.into())
        );
        if class == 0x40 {
            assert_eq!(
                get64(&block, at::LIMIT),
                146_591_680 * KIB - 1,
                "only an answer about the card's size"
            );
        }
    }
    assert_eq!(tenant.free_bytes(), all);
    // The hole a guard has to close: 0xf3 reaches whatever lies at the address.
    assert_eq!(tenant.range(BASE, 2 * MIB), OK);
    assert_eq!(tenant.map(BASE, 2 * MIB, MEMORY + 2, 0), OK);
    assert_eq!(tenant.read(channel, BASE, 6), b"secret");
}

#[test]
fn processes_are_told_apart_by_who_executed_the_allocation() {
    use layout::{pid_info as at, pid_info_entry as entry, pids};
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    assert_eq!(tenant.memory(MEMORY, GIB).0, OK);
    tenant.uvm_space();
    tenant.channel(0x5c00_0020);
    let mut list = vec![0; pids::SIZE];
    put32(&mut list, pids::ID, class::KEPLER_CHANNEL_GROUP_A);
    assert_eq!(
        tenant.control(SUBDEVICE, ctrl::NV2080_GPU_GET_PIDS, &mut list),
        OK
    );
    assert_eq!(
        (
            get32(&list, pids::PID_TBL_COUNT),
            get32(&list, pids::PID_TBL)
        ),
        (1, std::process::id())
    );

    let mut info = vec![0; at::SIZE];
    put32(&mut info, at::PID_INFO_LIST_COUNT, 2);
    put32(&mut info, at::PID_INFO_LIST, std::process::id());
    put32(&mut info, at::PID_INFO_LIST + entry::SIZE, 1);
    assert_eq!(
        tenant.control(SUBDEVICE, ctrl::NV2080_GPU_GET_PID_INFO, &mut info),
        OK
    );
    let field =
        |index: usize, field: usize| get64(&info, at::PID_INFO_LIST + index * entry::SIZE + field);
    assert_eq!(
        field(0, entry::MEM_PRIVATE),
        GIB,
        "context buffers are not seen"
    );
    assert_eq!(field(1, entry::MEM_PRIVATE), 0);
    assert_eq!(
        get32(&info, at::PID_INFO_LIST + entry::SIZE + entry::RESULT),
        OBJECT_NOT_FOUND
    );
}

#[test]
fn contexts_take_memory_that_nobody_asked_for_by_size() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    tenant.uvm_space();
    let all = tenant.free_bytes();
    let channel = tenant.channel(0x5c00_0020);
    let with_channel = tenant.free_bytes();
    assert!(with_channel < all);
    assert_eq!(
        tenant.alloc(channel, 0x5c00_0030, class::HOPPER_COMPUTE_A, &mut [0; 16]),
        OK
    );
    assert!(tenant.free_bytes() < with_channel);
    tenant.free(0x5c00_0020);
    assert_eq!(tenant.free_bytes(), all, "and goes with the group");
    let rest = tenant.free_bytes();
    assert_eq!(tenant.memory(MEMORY, largest(rest)).0, OK);
    let group = tenant.alloc(
        DEVICE,
        0x5c00_0040,
        class::KEPLER_CHANNEL_GROUP_A,
        &mut [0; 20],
    );
    assert_eq!(group, NO_MEMORY);
}

#[test]
fn a_client_on_another_connection_sees_the_same_node() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let mut other = Client::connect(&node.socket).unwrap();
    assert_eq!(other.driver_version().unwrap(), "580.159.04");
    let root = tenant.root;
    let mut params = params_of(ctrl::NV2080_FB_GET_INFO_V2);
    let words = [root, SUBDEVICE, ctrl::NV2080_FB_GET_INFO_V2];
    assert_eq!(
        control(&mut other, tenant.control.as_fd(), words, &mut params),
        OK
    );
    assert_eq!(tenant.free(root), OK);
    assert_eq!(
        control(&mut other, tenant.control.as_fd(), words, &mut params),
        INVALID_CLIENT
    );
}

#[test]
fn racing_allocations_never_take_more_than_the_card_and_leave_nothing() {
    let node = node("1xH200");
    let mut watcher = Tenant::new(&node);
    let all = watcher.free_bytes();
    let piece = largest(all / 10);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let mut tenant = Tenant::new(&node);
            std::thread::spawn(move || {
                let mut refused = 0;
                for round in 0..100 {
                    for handle in MEMORY..MEMORY + 3 {
                        let (status, _) = tenant.memory(handle, piece);
                        assert!(matches!(status, OK | NO_MEMORY), "{status:#x}");
                        refused += u32::from(status == NO_MEMORY);
                    }
                    if round < 99 {
                        (MEMORY..MEMORY + 3).for_each(|handle| assert_eq!(tenant.free(handle), OK));
                    }
                }
                (tenant, refused)
            })
        })
        .collect();
    let ended: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    let taken = (all - watcher.free_bytes()) / piece;
    assert!((1..=10).contains(&taken), "{taken} pieces of a tenth");
    assert!(
        ended.iter().any(|(_, refused)| *refused > 0),
        "24 pieces cannot all have fitted all the time"
    );
    drop(ended);
    eventually("everything is back", || watcher.free_bytes() == all);
}

#[test]
fn a_size_near_the_end_of_all_numbers_is_mapped_or_refused() {
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    tenant.uvm_space();
    let mut params = tenant.of_class(class::NV01_MEMORY_LOCAL_USER);
    put32(&mut params, layout::memory_allocation::FLAGS, 0x0008_0000);
    put64(
        &mut params,
        layout::memory_allocation::SIZE_FIELD,
        u64::MAX - 5,
    );
    // Addresses alone: the size is nobody's memory.
    let made = tenant.alloc(DEVICE, MEMORY, class::NV50_MEMORY_VIRTUAL, &mut params);
    assert_eq!(made, OK);
    assert_eq!(tenant.range(BASE, MIB), OK);
    assert_eq!(tenant.map(BASE, MIB, MEMORY, 0), OK);
    assert_ne!(tenant.map(BASE, MIB, MEMORY, u64::MAX - MIB + 1), OK);
    assert_eq!(tenant.unmap(BASE, MIB), OK);
}
