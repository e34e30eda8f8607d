//! The same node with drivers of every branch: the blocks have the branch's sizes, and mean the same.

mod common;

use common::*;
use rm::{ctrl, layout, nr, uvm};

const MEMORY: u32 = 0x5c00_0010;
const BASE: u64 = 0x2_0000_0000;
const INVALID_ADDRESS: u32 = 0x1e;
const INVALID_DEVICE: u32 = 0x26;

/// A tenant of a node with a release of each branch that no list names.
fn on_every_branch(mut test: impl FnMut(&mut Tenant)) {
    for abi in rm::branches() {
        let node = node(&format!("1xH200@{}.999.01", abi.branch()));
        let mut tenant = Tenant::new(&node);
        assert_eq!(tenant.abi.branch(), abi.branch());
        test(&mut tenant);
    }
}

#[test]
fn memory_lives_as_long_as_its_mapping() {
    on_every_branch(|tenant| {
        let branch = tenant.abi.branch();
        let all = tenant.free_bytes();
        tenant.uvm_space();
        tenant.mapped(MEMORY, BASE, GIB);
        tenant.mapped(MEMORY + 1, BASE + GIB, 2 * MIB);
        assert_eq!(tenant.free(MEMORY), OK);
        assert_eq!(tenant.free_bytes(), all - GIB - 2 * MIB, "branch {branch}");
        assert_eq!(tenant.uvm_free(BASE), OK, "branch {branch}");
        assert_eq!(tenant.free_bytes(), all - 2 * MIB, "branch {branch}");
        assert_eq!(tenant.uvm_free(BASE), INVALID_ADDRESS, "branch {branch}");
    });
}

#[test]
fn a_range_is_freed_by_its_own_length_or_by_none() {
    on_every_branch(|tenant| {
        tenant.uvm_space();
        assert_eq!(tenant.range(BASE, 4 * MIB), OK);
        let at = tenant.abi.layout().uvm_free;
        let mut block = tenant.of_uvm(uvm::FREE);
        put64(&mut block, layout::uvm_free::BASE, BASE);
        if let Some(length) = at.length {
            put64(&mut block, length, 2 * MIB);
            let refused = tenant.uvm(uvm::FREE, &mut block, at.rm_status);
            assert_eq!(refused, INVALID_ADDRESS);
            put64(&mut block, length, 4 * MIB);
        }
        assert_eq!(tenant.uvm(uvm::FREE, &mut block, at.rm_status), OK);
    });
}

#[test]
fn unmapping_looks_for_the_range_before_the_gpu() {
    on_every_branch(|tenant| {
        use layout::uvm_unmap_external as at;
        tenant.uvm_space();
        assert_eq!(tenant.range(BASE, 4 * MIB), OK);
        for (base, length, answer) in [
            (BASE, 4 * MIB, INVALID_DEVICE),
            (BASE + 2 * MIB, 2 * MIB, INVALID_DEVICE),
            (BASE + 2 * MIB, 4 * MIB, INVALID_ADDRESS),
            (BASE + 4 * MIB, 2 * MIB, INVALID_ADDRESS),
        ] {
            let mut block = [0; at::SIZE];
            put64(&mut block, at::BASE, base);
            put64(&mut block, at::LENGTH, length);
            put(&mut block, at::GPU_UUID, &[0xff; 16]);
            assert_eq!(
                tenant.uvm(uvm::UNMAP_EXTERNAL, &mut block, at::RM_STATUS),
                answer
            );
        }
    });
}

#[test]
fn a_dmabuf_holds_the_memory_that_the_block_names() {
    on_every_branch(|tenant| {
        use layout::export_to_dmabuf_fd as at;
        let behind = tenant.abi.layout().export_to_dmabuf_fd;
        let all = tenant.free_bytes();
        assert_eq!(tenant.memory(MEMORY, GIB).0, OK);
        let sizes = tenant.abi.escape(nr::EXPORT_TO_DMABUF_FD).unwrap().sizes;
        let mut block = vec![0; sizes[0].into()];
        put32(&mut block, at::FD, u32::MAX);
        put32(&mut block, at::H_CLIENT, tenant.root);
        put32(&mut block, at::NUM_OBJECTS, 1);
        put32(&mut block, behind.handles, MEMORY);
        tenant.escape(nr::EXPORT_TO_DMABUF_FD, &mut block).unwrap();
        assert_eq!(get32(&block, behind.status), OK);
        assert_eq!(tenant.free(MEMORY), OK);
        assert_eq!(tenant.free_bytes(), all - GIB);
    });
}

#[test]
fn blocks_of_another_size_are_refused() {
    on_every_branch(|tenant| {
        let size = usize::from(tenant.abi.escape(nr::RM_MAP_MEMORY_DMA).unwrap().sizes[0]);
        for wrong in [size - 8, size + 8] {
            let refused = tenant.escape(nr::RM_MAP_MEMORY_DMA, &mut vec![0; wrong]);
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
        let command = ctrl::NV2080_FB_GET_INFO_V2;
        let mut params = tenant.of_control(command);
        assert_eq!(tenant.control(SUBDEVICE, command, &mut params), OK);
        params.push(0);
        assert_eq!(tenant.control(SUBDEVICE, command, &mut params), 0x3a);
    });
}

#[test]
fn what_a_branch_does_not_have_is_not_there() {
    on_every_branch(|tenant| {
        let branch: u32 = tenant.abi.branch().parse().unwrap();
        let known = tenant.control(
            SUBDEVICE,
            ctrl::NV2080_FB_QUERY_DRAM_ENCRYPTION_STATUS,
            &mut [0; 4],
        );
        // Branch 570 has another question under this number, the oldest have none.
        let answer = if branch < 570 { NOT_SUPPORTED } else { OK };
        assert_eq!(known, answer, "branch {branch}");
        let wait = tenant.escape(nr::WAIT_OPEN_COMPLETE, &mut [0; 8]);
        assert_eq!(wait.is_ok(), branch > 535, "branch {branch}");
    });
}
