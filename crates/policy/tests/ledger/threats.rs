//! Ways round a quota, one test each.

use std::sync::Mutex;

use policy::ledger::{
    ClientHandle, DeviceIndex, Freed, Ledger, ObjectHandle, OverQuota, Pid, UnknownObject, UvmFile,
};
use policy::objects::{Need, What};
use policy::rounding::rounded;
use policy::units::Bytes;

pub const GPU: DeviceIndex = DeviceIndex(0);
pub const CLIENT: ClientHandle = ClientHandle(0xc1d0_0001);
pub const OTHER: ClientHandle = ClientHandle(0xc1d0_0002);
pub const ROOT: ObjectHandle = ObjectHandle(CLIENT.0);
pub const DEVICE: ObjectHandle = ObjectHandle(0x5c00_0001);
pub const UVM: UvmFile = UvmFile(1);
pub const MIB: u64 = 1 << 20;

pub fn h(number: u32) -> ObjectHandle {
    ObjectHandle(0x5c00_0100 + number)
}

/// A tenant with two clients and a device object in each.
pub fn tenant_of(mut ledger: Ledger) -> Ledger {
    for (client, pid) in [(CLIENT, Pid(10)), (OTHER, Pid(20))] {
        ledger.add_client(client, pid);
        ledger.add_object(client, ObjectHandle(client.0), DEVICE, 0x80, Some(GPU));
    }
    ledger
}

fn tenant(quota: u64) -> Ledger {
    tenant_of(Ledger::new(&[Bytes(quota)]))
}

pub fn allocate(
    ledger: &mut Ledger,
    handle: ObjectHandle,
    amount: u64,
) -> Result<Freed, OverQuota> {
    let reservation = ledger.reserve(GPU, Bytes(amount))?;
    Ok(ledger.commit_memory(reservation, CLIENT, DEVICE, handle, 0x40))
}

fn used(ledger: &Ledger) -> u64 {
    assert_eq!(ledger.audit(), Ok(()));
    ledger.used(GPU).0
}

#[test]
fn threat_01_alloc_map_free_a_thousand_times_has_no_drift() {
    let mut ledger = tenant(64 * MIB);
    for round in 0..1000u64 {
        let base = 0x7000_0000_0000 + (round % 7) * 2 * MIB;
        ledger.create_range(UVM, base, 2 * MIB);
        allocate(&mut ledger, h(1), 2 * MIB).expect("fits");
        ledger.map(UVM, GPU, base, 2 * MIB, CLIENT, h(1));
        // The handle goes, the mapping keeps the memory.
        assert_eq!(ledger.free(CLIENT, h(1)).bytes(GPU), Bytes::ZERO);
        assert_eq!(used(&ledger), 2 * MIB);
        let freed = match round % 4 {
            0 => ledger.unmap(UVM, GPU, base, 2 * MIB),
            1 => ledger.free_range(UVM, base),
            2 => ledger.map(UVM, GPU, base, 2 * MIB, CLIENT, h(99)),
            _ => ledger.close_uvm(UVM),
        };
        assert_eq!(freed.bytes(GPU), Bytes(2 * MIB));
        assert_eq!(used(&ledger), 0);
    }
    assert_eq!(ledger.peak(GPU), Bytes(2 * MIB));
}

#[test]
fn threat_01_what_is_mapped_and_freed_still_fills_the_quota() {
    let mut ledger = tenant(10 * MIB);
    for round in 0..5u64 {
        allocate(&mut ledger, h(1), 2 * MIB).expect("fits");
        ledger.map(
            UVM,
            GPU,
            0x1000_0000 + round * 2 * MIB,
            2 * MIB,
            CLIENT,
            h(1),
        );
        ledger.free(CLIENT, h(1));
    }
    let refused = allocate(&mut ledger, h(1), 1).expect_err("is over the quota");
    assert_eq!(
        refused,
        OverQuota {
            device: GPU,
            asked: Bytes(1),
            used: Bytes(10 * MIB),
            quota: Bytes(10 * MIB)
        }
    );
    assert_eq!(
        refused.to_string(),
        "device 0: asked for 1 B, but 10 MiB of the quota of 10 MiB is used and 0 B is free; \
         free memory or raise the quota"
    );
}

#[test]
fn threat_01_a_split_mapping_holds_until_its_last_part_goes() {
    let mut ledger = tenant(64 * MIB);
    allocate(&mut ledger, h(1), 8 * MIB).expect("fits");
    allocate(&mut ledger, h(2), 2 * MIB).expect("fits");
    ledger.map(UVM, GPU, 0x1000_0000, 8 * MIB, CLIENT, h(1));
    // In the middle of the first: two parts of it are left.
    ledger.map(UVM, GPU, 0x1000_0000 + 2 * MIB, 2 * MIB, CLIENT, h(2));
    ledger.free(CLIENT, h(1));
    ledger.free(CLIENT, h(2));
    assert_eq!(used(&ledger), 10 * MIB);
    assert!(ledger.unmap(UVM, GPU, 0x1000_0000, 2 * MIB).is_empty());
    // Another GPU and another file have mappings of their own.
    assert!(
        ledger
            .unmap(UVM, DeviceIndex(1), 0x1000_0000, 8 * MIB)
            .is_empty()
    );
    assert!(
        ledger
            .unmap(UvmFile(2), GPU, 0x1000_0000, 8 * MIB)
            .is_empty()
    );
    assert_eq!(
        ledger
            .unmap(UVM, GPU, 0x1000_0000 + 4 * MIB, 4 * MIB)
            .bytes(GPU),
        Bytes(8 * MIB)
    );
    assert_eq!(ledger.close_uvm(UVM).bytes(GPU), Bytes(2 * MIB));
    assert_eq!(used(&ledger), 0);
}

#[test]
fn threat_01_mapping_memory_over_itself_keeps_it() {
    let mut ledger = tenant(64 * MIB);
    allocate(&mut ledger, h(1), 2 * MIB).expect("fits");
    ledger.map(UVM, GPU, 0x1000_0000, 2 * MIB, CLIENT, h(1));
    assert!(
        ledger
            .map(UVM, GPU, 0x1000_0000, 2 * MIB, CLIENT, h(1))
            .is_empty()
    );
    ledger.free(CLIENT, h(1));
    assert_eq!(used(&ledger), 2 * MIB);
    assert_eq!(
        ledger.unmap(UVM, GPU, 0, u64::MAX).bytes(GPU),
        Bytes(2 * MIB)
    );
}

#[test]
fn threat_01_only_the_range_that_begins_there_is_freed() {
    let mut ledger = tenant(64 * MIB);
    allocate(&mut ledger, h(1), 2 * MIB).expect("fits");
    ledger.create_range(UVM, 0x1000_0000, 4 * MIB);
    ledger.map(UVM, GPU, 0x1000_0000 + 2 * MIB, 2 * MIB, CLIENT, h(1));
    ledger.free(CLIENT, h(1));
    assert!(ledger.free_range(UVM, 0x1000_0000 + 2 * MIB).is_empty());
    assert_eq!(used(&ledger), 2 * MIB);
    assert_eq!(
        ledger.free_range(UVM, 0x1000_0000).bytes(GPU),
        Bytes(2 * MIB)
    );
    assert!(ledger.free_range(UVM, 0x1000_0000).is_empty());
}

#[test]
fn threat_01_mappings_are_found_in_order_from_an_address_on() {
    const OTHER_GPU: DeviceIndex = DeviceIndex(1);
    let mut ledger = tenant(64 * MIB);
    allocate(&mut ledger, h(1), 2 * MIB).expect("fits");
    let base = 0x1000_0000;
    assert_eq!(ledger.next_mapped(UVM, GPU, 0), None);
    ledger.map(UVM, GPU, base, 2 * MIB, CLIENT, h(1));
    ledger.map(UVM, GPU, base + 8 * MIB, 4 * MIB, CLIENT, h(1));
    // Host memory holds nothing here, and another card's mappings are its own.
    ledger.map(UVM, GPU, base + 4 * MIB, 2 * MIB, CLIENT, h(9));
    ledger.map(UVM, OTHER_GPU, base + 2 * MIB, MIB, CLIENT, h(1));
    let from = |at: u64| ledger.next_mapped(UVM, GPU, at);
    assert_eq!(from(0), Some((base, 2 * MIB)));
    assert_eq!(from(base), Some((base, 2 * MIB)));
    assert_eq!(from(base + 1), Some((base + 8 * MIB, 4 * MIB)));
    assert_eq!(from(base + 9 * MIB), None);
    assert_eq!(ledger.next_mapped(UvmFile(2), GPU, 0), None);
}

#[test]
fn threat_06_one_byte_is_charged_as_its_page() {
    for (attr, attr2, page) in [
        (0, 0, 64 << 10),
        (3 << 23, 0, 2 * MIB),
        (3 << 23, 2 << 20, 512 * MIB),
    ] {
        let mut ledger = tenant(10 * page + page / 2);
        let granted = (0..10_000u32).take_while(|n| {
            let amount = rounded(1, attr, attr2, 0).expect("is granted");
            allocate(&mut ledger, h(*n), amount.0).is_ok()
        });
        assert_eq!(granted.count(), 10);
        assert_eq!(used(&ledger), 10 * page);
    }
}

#[test]
fn threat_07_managed_memory_is_charged_by_what_is_mapped() {
    let mut ledger = tenant(64 * MIB);
    let pid = Pid(10);
    let map = |ledger: &mut Ledger, base, length| {
        let reservation = ledger.reserve(GPU, Bytes(length))?;
        Ok::<_, OverQuota>(ledger.map_managed(reservation, pid, base, length))
    };
    map(&mut ledger, 0x1000_0000, 40 * MIB).expect("fits");
    map(&mut ledger, 0x2000_0000, 30 * MIB).expect_err("is over the quota");
    // A hole, then a range over its edge.
    assert_eq!(
        ledger
            .unmap_managed(pid, 0x1000_0000 + 10 * MIB, 10 * MIB)
            .bytes(GPU),
        Bytes(10 * MIB)
    );
    assert_eq!(used(&ledger), 30 * MIB);
    assert_eq!(
        map(&mut ledger, 0x1000_0000 + 5 * MIB, 10 * MIB)
            .expect("fits")
            .bytes(GPU),
        Bytes(5 * MIB)
    );
    assert_eq!(
        ledger.managed_of(pid).collect::<Vec<_>>(),
        [
            (0x1000_0000, 5 * MIB),
            (0x1000_0000 + 5 * MIB, 10 * MIB),
            (0x1000_0000 + 20 * MIB, 20 * MIB)
        ]
    );
    assert_eq!(ledger.used_by(pid, GPU), Bytes(35 * MIB));
    // A child has none of it, and its exit returns nothing.
    assert!(ledger.exit_process(Pid(11)).is_empty());
    assert_eq!(ledger.exit_process(pid).bytes(GPU), Bytes(35 * MIB));
    assert_eq!(used(&ledger), 0);
}

#[test]
fn threat_22_the_charge_goes_with_the_last_name_and_not_before() {
    let mut ledger = tenant(64 * MIB);
    allocate(&mut ledger, h(1), 2 * MIB).expect("fits");
    ledger
        .add_alias(OTHER, DEVICE, h(7), CLIENT, h(1))
        .expect("is known");
    ledger
        .add_alias(OTHER, DEVICE, h(8), OTHER, h(7))
        .expect("is known");
    assert_eq!(used(&ledger), 2 * MIB);
    assert_eq!(ledger.used_by(Pid(10), GPU), Bytes(2 * MIB));
    assert!(ledger.free_client(CLIENT).memory.is_empty());
    // The process that is left pays.
    assert_eq!(ledger.used_by(Pid(10), GPU), Bytes::ZERO);
    assert_eq!(ledger.used_by(Pid(20), GPU), Bytes(2 * MIB));
    assert!(ledger.free(OTHER, h(7)).memory.is_empty());
    assert_eq!(ledger.free_client(OTHER).bytes(GPU), Bytes(2 * MIB));
    assert_eq!(ledger.object_count(), 0);
    let gone = UnknownObject {
        client: OTHER,
        handle: h(8),
    };
    assert_eq!(
        ledger.add_alias(CLIENT, DEVICE, h(1), OTHER, h(8)),
        Err(gone)
    );
    assert_eq!(
        gone.to_string(),
        "client 0xc1d00002 has no object 0x5c000108"
    );
}

#[test]
fn threat_47_a_fork_and_an_exec_change_nothing() {
    let mut ledger = tenant(64 * MIB);
    allocate(&mut ledger, h(1), 2 * MIB).expect("fits");
    // The parent is gone; a child still has the descriptor, so the client lives and its memory
    // stays charged.
    assert!(ledger.exit_process(Pid(10)).is_empty());
    assert_eq!(used(&ledger), 2 * MIB);
    assert_eq!(ledger.free_client(CLIENT).bytes(GPU), Bytes(2 * MIB));
}

#[test]
fn hostile_sizes_are_over_the_quota_and_never_wrap() {
    let mut ledger = Ledger::new(&[Bytes(u64::MAX)]);
    let reservation = ledger.reserve(GPU, Bytes(u64::MAX - 1)).expect("fits");
    assert_eq!(
        ledger.reserve(GPU, Bytes(2)).expect_err("wraps").used,
        Bytes(u64::MAX - 1)
    );
    assert_eq!(
        ledger
            .reserve(GPU, Bytes(u64::MAX))
            .expect_err("wraps")
            .asked,
        Bytes(u64::MAX)
    );
    assert_eq!(ledger.free_bytes(GPU), Bytes(1));
    ledger.cancel(reservation);
    assert_eq!(used(&ledger), 0);
    // A device that is not in the slice has no quota at all.
    let absent = ledger
        .reserve(DeviceIndex(1), Bytes::ZERO)
        .expect_err("is absent");
    assert_eq!(absent.quota, Bytes::ZERO);
}

#[test]
fn an_ancestor_takes_everything_along() {
    let mut ledger = tenant(64 * MIB);
    ledger.add_object(CLIENT, DEVICE, h(1), 0xa06c, None);
    let buffers = ledger.reserve(GPU, Bytes(4 * MIB)).expect("fits");
    ledger
        .charge_object(buffers, CLIENT, h(1))
        .expect("is known");
    let reservation = ledger.reserve(GPU, Bytes(2 * MIB)).expect("fits");
    ledger.commit_memory(reservation, CLIENT, h(1), h(2), 0x40);
    assert_eq!(ledger.device_of(CLIENT, h(1)), Some(GPU));
    assert_eq!(ledger.device_of(CLIENT, ROOT), None);
    let freed = ledger.free(CLIENT, DEVICE);
    assert_eq!(freed.bytes(GPU), Bytes(6 * MIB));
    assert_eq!(
        freed
            .objects
            .iter()
            .map(|object| object.class)
            .collect::<Vec<_>>(),
        [0x80, 0xa06c, 0x40]
    );
    assert!(!ledger.knows(CLIENT, h(2)));
    assert!(ledger.knows(CLIENT, ROOT));
    // A charge for what is gone is cancelled.
    let late = ledger.reserve(GPU, Bytes(MIB)).expect("fits");
    assert!(ledger.charge_object(late, CLIENT, h(1)).is_err());
    assert_eq!(used(&ledger), 0);
}

#[test]
fn a_handle_taken_anew_frees_what_it_named() {
    let mut ledger = tenant(64 * MIB);
    allocate(&mut ledger, h(1), 2 * MIB).expect("fits");
    assert_eq!(
        allocate(&mut ledger, h(1), 4 * MIB)
            .expect("fits")
            .bytes(GPU),
        Bytes(2 * MIB)
    );
    assert_eq!(used(&ledger), 4 * MIB);
    // An alias that takes the very handle of its source does not lose the memory in between.
    assert!(
        ledger
            .add_alias(CLIENT, DEVICE, h(1), CLIENT, h(1))
            .expect("is known")
            .memory
            .is_empty()
    );
    assert_eq!(used(&ledger), 4 * MIB);
    assert_eq!(
        ledger
            .add_object(CLIENT, DEVICE, h(1), 0x3e, None)
            .bytes(GPU),
        Bytes(4 * MIB)
    );
    allocate(&mut ledger, h(1), 2 * MIB).expect("fits");
    assert_eq!(
        ledger.add_client(CLIENT, Pid(30)).bytes(GPU),
        Bytes(2 * MIB)
    );
    assert_eq!(ledger.client_owner(CLIENT), Some(Pid(30)));
    assert_eq!(ledger.clients().collect::<Vec<_>>(), [CLIENT, OTHER]);
}

#[test]
fn an_export_holds_memory_and_gives_it_a_new_name() {
    let mut ledger = tenant(64 * MIB);
    allocate(&mut ledger, h(1), 2 * MIB).expect("fits");
    ledger.hold_export(CLIENT, h(1), 77).expect("is known");
    assert!(ledger.free_client(CLIENT).memory.is_empty());
    assert_eq!(ledger.used_by(Pid(10), GPU), Bytes(2 * MIB));
    ledger.add_alias_of_export(OTHER, DEVICE, h(1), 0x40, 77);
    assert!(ledger.drop_export(77).is_empty());
    assert_eq!(ledger.memory_size(OTHER, h(1)), Some(Bytes(2 * MIB)));
    assert_eq!(used(&ledger), 2 * MIB);
    assert_eq!(ledger.free(OTHER, h(1)).bytes(GPU), Bytes(2 * MIB));
    assert!(ledger.hold_export(OTHER, h(1), 78).is_err());
}

#[test]
fn what_the_ledger_does_not_know_is_charged_too_long_and_not_too_short() {
    let mut ledger = Ledger::new(&[Bytes(64 * MIB)]);
    // Neither the client nor the parent was ever recorded.
    allocate(&mut ledger, h(1), 2 * MIB).expect("fits");
    assert_eq!(used(&ledger), 2 * MIB);
    assert_eq!(ledger.client_owner(CLIENT), Some(Pid(0)));
    assert_eq!(ledger.free(CLIENT, DEVICE), Freed::default());
    assert_eq!(ledger.free_client(CLIENT).bytes(GPU), Bytes(2 * MIB));
}

#[test]
fn a_tree_as_deep_as_a_tenant_likes_is_freed() {
    let mut ledger = tenant(64 * MIB);
    let mut parent = DEVICE;
    for number in 0..100_000 {
        ledger.add_object(CLIENT, parent, h(number), 0x80, None);
        parent = h(number);
    }
    assert_eq!(ledger.device_of(CLIENT, parent), Some(GPU));
    assert_eq!(ledger.free(CLIENT, DEVICE).objects.len(), 100_001);
}

#[test]
fn racing_threads_never_overshoot() {
    const THREADS: u32 = 8;
    let ledger = Mutex::new(tenant(100 * MIB));
    let lock = || ledger.lock().expect("no thread panics");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for round in 0..500 {
                    // The driver is asked between the two locks.
                    let reserved = lock().reserve(GPU, Bytes(15 * MIB));
                    let Ok(reservation) = reserved else { continue };
                    std::thread::yield_now();
                    let mut ledger = lock();
                    assert!(ledger.used(GPU) <= ledger.quota(GPU));
                    if round % 3 == 0 {
                        ledger.cancel(reservation);
                    } else {
                        ledger.commit_memory(reservation, CLIENT, DEVICE, h(thread), 0x40);
                    }
                }
            });
        }
    });
    let ledger = lock();
    assert!(ledger.peak(GPU) <= Bytes(90 * MIB));
    assert_eq!(ledger.outstanding(), 0);
    assert_eq!(ledger.audit(), Ok(()));
}

#[test]
fn a_lower_quota_takes_nothing_away_and_grants_nothing() {
    let mut ledger = tenant(10 * MIB);
    allocate(&mut ledger, h(1), 8 * MIB).expect("fits");
    ledger.set_quota(GPU, Bytes(4 * MIB));
    assert_eq!(ledger.free_bytes(GPU), Bytes::ZERO);
    allocate(&mut ledger, h(2), 1).expect_err("is over the quota");
    ledger.free(CLIENT, h(1));
    allocate(&mut ledger, h(2), 4 * MIB).expect("fits");
    assert_eq!(ledger.peak(GPU), Bytes(8 * MIB));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "a reservation was dropped and stays charged")]
fn a_forgotten_reservation_is_noticed() {
    let mut ledger = tenant(10 * MIB);
    drop(ledger.reserve(GPU, Bytes(MIB)));
}

// `Ledger::take_mapping` and `Ledger::move_mapping`: the driver knows which of two mappings at one address it undoes or
// moves, and the ledger does not.
#[test]
fn redteam_mappings_that_share_an_address_are_never_counted_for_less_than_is_left() {
    let need = |bytes: u64| Need {
        bar1: Bytes(bytes),
        device: Some(GPU),
        ..Need::objects(1)
    };
    let map = |ledger: &mut Ledger, bytes: u64, at: u64| {
        let claim = ledger.claim(need(bytes)).expect("no limit");
        ledger.map_for_processor(claim, CLIENT, DEVICE, at);
    };
    let bar1 = |ledger: &Ledger| {
        assert_eq!(ledger.audit(), Ok(()));
        ledger.counts().used(What::Bar1, GPU)
    };
    // Both orders of making and of moving them to one address.
    for (first, second) in [(MIB, 64 * MIB), (64 * MIB, MIB)] {
        for moved in [[1, 2], [2, 1]] {
            let mut ledger = tenant(MIB);
            map(&mut ledger, first, 1);
            map(&mut ledger, second, 2);
            for from in moved {
                ledger.move_mapping(CLIENT, DEVICE, from, 3);
            }
            ledger.unmap_for_processor(CLIENT, DEVICE, 3);
            assert_eq!(bar1(&ledger), 64 * MIB);
            ledger.unmap_for_processor(CLIENT, DEVICE, 3);
            assert_eq!(bar1(&ledger), 0);
        }
    }
    // Which one of them is moved away is not known.
    for away in [4, 5] {
        let mut ledger = tenant(MIB);
        map(&mut ledger, MIB, 3);
        map(&mut ledger, 64 * MIB, 3);
        ledger.move_mapping(CLIENT, DEVICE, 3, 4);
        ledger.unmap_for_processor(CLIENT, DEVICE, if away == 4 { 3 } else { 4 });
        assert_eq!(bar1(&ledger), 64 * MIB);
        ledger.unmap_for_processor(CLIENT, DEVICE, if away == 4 { 4 } else { 3 });
        assert_eq!(bar1(&ledger), 0);
    }
}
