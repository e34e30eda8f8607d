//! Managed memory: pages of the UVM file that the GPU pulls onto the card.

mod common;

use std::os::fd::{AsFd as _, AsRawFd as _};

use common::*;
use rm::{layout, uvm};
use simgpu::client::Client;
use simgpu::work::{Op, WorkStatus};

const MEMORY: u32 = 0x5c00_0010;

/// The largest allocation that fits into so much: from 2 MiB on, sizes are whole multiples of it.
fn largest(free: u64) -> u64 {
    free / (2 * MIB) * (2 * MIB)
}

#[test]
fn a_uvm_file_serves_the_process_that_set_it_up() {
    use layout::uvm_validate_va_range as at;
    let node = node("1xH200");
    let mut tenant = Tenant::new(&node);
    let file = tenant.uvm.try_clone().unwrap();
    // A helper that calls INITIALIZE before the tenant has done so takes the file for itself.
    let child = in_child(|| {
        let mut helper = Client::connect(&node.socket).unwrap();
        let mut block = [0; layout::uvm_initialize::SIZE];
        i32::from(uvm_call(&mut helper, file.as_fd(), uvm::INITIALIZE, &mut block, 8) != OK)
    });
    assert_eq!(child.wait(), 0);
    let base = 0x4_0000_0000;
    map_managed(&tenant, base, 2 * MIB);
    let mut block = [0; at::SIZE];
    put64(&mut block, at::BASE, base);
    put64(&mut block, at::LENGTH, 2 * MIB);
    assert_eq!(
        tenant.uvm(uvm::VALIDATE_VA_RANGE, &mut block, at::RM_STATUS),
        0x1e
    );
}

#[test]
fn managed_memory_takes_the_card_when_the_gpu_touches_it_and_until_it_is_unmapped() {
    let node = node("1xH200");
    let mut watcher = Tenant::new(&node);
    let mut tenant = Tenant::new(&node);
    tenant.uvm_space();
    let channel = tenant.channel(0x5c00_0020);
    let all = watcher.free_bytes();
    let (base, length) = (0x2_0000_0000_u64, 64 * MIB);
    let pages = map_managed(&tenant, base, length);
    assert_eq!(watcher.free_bytes(), all, "reserved, not touched");
    // What the CPU wrote the device sees, and the other way round.
    // SAFETY: the mapping is live, writable and 64 MiB long.
    unsafe { pages.write(41) };
    assert_eq!(tenant.read(channel, base, 1), [41]);
    assert_eq!(watcher.free_bytes(), all - 2 * MIB, "one block");
    let done = tenant.submit(
        channel,
        Op::Fill {
            dst: base,
            value: 7,
            width: 1,
            count: length,
        },
    );
    assert_eq!(done.status, WorkStatus::Done);
    assert_eq!(watcher.free_bytes(), all - length);
    // SAFETY: as above.
    assert_eq!(unsafe { pages.add(length as usize - 1).read() }, 7);

    // An allocation that needs the room pushes managed memory out.
    assert_eq!(watcher.memory(MEMORY, largest(all)).0, OK);
    watcher.free(MEMORY);
    let left = watcher.free_bytes();
    assert!(left > all - 4 * MIB, "only what was in the way: {left}");
    // SAFETY: as above.
    assert_eq!(unsafe { pages.read() }, 7, "pushed out, not lost");
    tenant.submit(
        channel,
        Op::Fill {
            dst: base,
            value: 8,
            width: 1,
            count: length,
        },
    );
    assert_eq!(watcher.free_bytes(), all - length);

    // SAFETY: nothing refers to the mapping.
    unsafe { libc::munmap(pages.cast(), length as usize) };
    assert_eq!(watcher.free_bytes(), all, "unmapped");
    let gone = tenant.submit(
        channel,
        Op::Fill {
            dst: base,
            value: 1,
            width: 1,
            count: 16,
        },
    );
    assert_eq!(gone.status, WorkStatus::Fault { address: base });
}

fn map_managed(tenant: &Tenant, base: u64, length: u64) -> *mut u8 {
    // SAFETY: the address range is free in this process: low addresses are used by nothing else.
    let pages = unsafe {
        libc::mmap(
            base as *mut libc::c_void,
            length as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
            tenant.uvm.as_raw_fd(),
            base as i64,
        )
    };
    assert_eq!(pages as u64, base);
    pages.cast()
}

#[test]
fn managed_memory_goes_with_its_process() {
    let node = node("1xH200");
    let mut watcher = Tenant::new(&node);
    let all = watcher.free_bytes();
    let child = in_child(|| {
        let mut tenant = Tenant::new(&node);
        tenant.uvm_space();
        let channel = tenant.channel(0x5c00_0020);
        let (base, length) = (0x3_0000_0000_u64, 16 * MIB);
        map_managed(&tenant, base, length);
        let before = tenant.free_bytes();
        tenant.submit(
            channel,
            Op::Fill {
                dst: base,
                value: 7,
                width: 1,
                count: length,
            },
        );
        assert_eq!(tenant.free_bytes(), before - length);
        0
    });
    assert_eq!(child.wait(), 0);
    eventually("the process is gone", || watcher.free_bytes() == all);
}
