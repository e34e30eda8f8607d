//! Each rule that the demo can switch off makes a difference, and only its own.

use policy::ledger::{DeviceIndex, Ledger, LedgerWalls};
use policy::units::Bytes;

use crate::threats::{CLIENT, DEVICE, GPU, MIB, OTHER, UVM, allocate, h, tenant_of};

/// A tenant with 10 MiB on each of two devices.
fn tenant(walls: LedgerWalls) -> Ledger {
    tenant_of(Ledger::with_walls(
        &[Bytes(10 * MIB), Bytes(10 * MIB)],
        walls,
    ))
}

fn alias_counted_once(walls: LedgerWalls) -> bool {
    let mut ledger = tenant(walls);
    allocate(&mut ledger, h(1), 4 * MIB).expect("fits");
    ledger
        .add_alias(OTHER, DEVICE, h(1), CLIENT, h(1))
        .expect("is known");
    let once = ledger.used(GPU) == Bytes(4 * MIB);
    assert_eq!(ledger.audit(), Ok(()));
    ledger.free(CLIENT, h(1));
    ledger.free(OTHER, h(1));
    assert_eq!(ledger.used(GPU), Bytes::ZERO);
    once
}

fn mapping_outlives_free(walls: LedgerWalls) -> bool {
    let mut ledger = tenant(walls);
    allocate(&mut ledger, h(1), 4 * MIB).expect("fits");
    ledger.map(UVM, GPU, 0x1000_0000, 4 * MIB, CLIENT, h(1));
    ledger.free(CLIENT, h(1));
    let held = ledger.used(GPU) == Bytes(4 * MIB);
    ledger.close_uvm(UVM);
    assert_eq!(ledger.used(GPU), Bytes::ZERO);
    assert_eq!(ledger.audit(), Ok(()));
    held
}

fn release_by_ancestor(walls: LedgerWalls) -> bool {
    let mut ledger = tenant(walls);
    allocate(&mut ledger, h(1), 4 * MIB).expect("fits");
    allocate(&mut ledger, h(2), 4 * MIB).expect("fits");
    ledger.free(CLIENT, h(2));
    assert_eq!(ledger.used(GPU), Bytes(4 * MIB));
    ledger.free(CLIENT, DEVICE);
    assert_eq!(ledger.audit(), Ok(()));
    ledger.used(GPU) == Bytes::ZERO
}

fn per_device_quota(walls: LedgerWalls) -> bool {
    let mut ledger = tenant(walls);
    let more_than_one_device = ledger.reserve(GPU, Bytes(11 * MIB));
    let refused = more_than_one_device.is_err();
    if let Ok(reservation) = more_than_one_device {
        assert_eq!(ledger.free_bytes(DeviceIndex(1)), Bytes(9 * MIB));
        ledger
            .reserve(DeviceIndex(1), Bytes(10 * MIB))
            .expect_err("is over the pool");
        ledger
            .reserve(DeviceIndex(2), Bytes(1))
            .expect_err("is not in the slice");
        ledger.cancel(reservation);
    }
    assert_eq!(ledger.audit(), Ok(()));
    refused
}

#[test]
fn every_wall_stands_alone() {
    let checks = [
        alias_counted_once,
        mapping_outlives_free,
        release_by_ancestor,
        per_device_quota,
    ];
    assert_eq!(checks.map(|check| check(LedgerWalls::default())), [true; 4]);
    let all = LedgerWalls::default();
    let without = [
        LedgerWalls {
            alias_counted_once: false,
            ..all
        },
        LedgerWalls {
            mapping_outlives_free: false,
            ..all
        },
        LedgerWalls {
            release_by_ancestor: false,
            ..all
        },
        LedgerWalls {
            per_device_quota: false,
            ..all
        },
    ];
    for (index, walls) in without.into_iter().enumerate() {
        let mut expected = [true; 4];
        expected[index] = false;
        assert_eq!(checks.map(|check| check(walls)), expected, "{walls:?}");
    }
}
