//! The parts of the library that need no simulated node: a cdylib has no tests of its own, so they are built in here.

#[path = "../src/heap.rs"]
mod heap;
#[path = "../src/ptx.rs"]
mod ptx;
#[path = "../src/visible.rs"]
mod visible;

use heap::{Heap, UNIT};
use visible::{uuid_text, visible};

/// Two GPUs whose UUIDs share their first ten digits, and one of another kind.
const UUIDS: [[u8; 16]; 3] = [
    [
        0x53, 0x49, 0x4d, 0, 0x48, 0x32, 0x40, 0, 0x80, 0, 1, 2, 3, 4, 5, 0,
    ],
    [
        0x53, 0x49, 0x4d, 0, 0x48, 0x99, 0x40, 0, 0x80, 0, 1, 2, 3, 4, 5, 1,
    ],
    [
        0xab, 0x49, 0x4d, 0, 0x48, 0x32, 0x40, 0, 0x80, 0, 1, 2, 3, 4, 5, 2,
    ],
];

#[test]
fn visible_devices_are_what_the_driver_makes_of_the_variable() {
    let whole = uuid_text(&UUIDS[1]);
    let cases: &[(Option<&str>, &[usize])] = &[
        (None, &[0, 1, 2]),
        (Some(""), &[]),
        (Some("1"), &[1]),
        (Some("2,0"), &[2, 0]),
        (Some(" 2 , 0 "), &[2, 0]),
        (Some("0,7,1"), &[0]),
        (Some("-1"), &[]),
        (Some("0,-1,1"), &[0]),
        (Some("NoDevFiles"), &[]),
        (Some("0,none,1"), &[0]),
        (Some("1,1"), &[]),
        (Some("0,1,0"), &[]),
        (Some("GPU-ab"), &[2]),
        (Some("GPU-AB"), &[2]),
        (Some(&whole), &[1]),
        (Some("GPU-53494d00-48"), &[]),
        (Some("GPU-53494d00-4899,GPU-ab,0"), &[1, 2, 0]),
        (Some("GPU-ab,2"), &[]),
        (Some("GPU-"), &[]),
        (Some("GPU-ffff"), &[]),
        (Some("ab494d00"), &[]),
        (Some("MIG-0"), &[]),
    ];
    for (value, expected) in cases {
        assert_eq!(visible(*value, &UUIDS), *expected, "{value:?}");
    }
}

#[test]
fn a_uuid_is_written_as_tools_write_it() {
    assert_eq!(
        uuid_text(&UUIDS[0]),
        "GPU-53494d00-4832-4000-8000-010203040500"
    );
}

#[test]
fn kernels_are_found_by_their_entry_names() {
    let text = "// .version 1.0\n.version 8.0 .target sm_90\n/* .entry hidden( */\n\
                .visible .entry first(.param .u64 p) { ret; } .func (.reg .u32 r) helper() { ret; }\n\
                .entry second{ret;}\n// .entry third\n.weak .entry\n\tfourth (\n)";
    assert!(ptx::is_ptx(text));
    assert_eq!(ptx::entries(text), ["first", "second", "fourth"]);
}

#[test]
fn what_is_no_ptx_has_no_kernels() {
    assert!(!ptx::is_ptx(""));
    assert!(!ptx::is_ptx("\u{7f}ELF"));
    assert!(!ptx::is_ptx("/* .version 8.0"));
    assert!(ptx::entries(".entry").is_empty());
    assert_eq!(ptx::entries("a / b .entry c"), ["c"]);
}

#[test]
fn the_heap_hands_out_disjoint_aligned_pieces() {
    let mut heap = Heap::default();
    assert_eq!(heap.take(1), None);
    heap.add(1 << 20, 8 * UNIT);
    let pieces: Vec<u64> = (0..8).filter_map(|_| heap.take(1)).collect();
    let expected: Vec<u64> = (0..8).map(|index| (1 << 20) + index * UNIT).collect();
    assert_eq!(pieces, expected);
    assert_eq!(heap.take(1), None);
    assert!(!heap.give(12345));
    for piece in pieces.iter().rev() {
        assert!(heap.give(*piece));
        assert!(!heap.give(*piece), "given twice");
    }
    assert_eq!(
        heap.take(8 * UNIT),
        Some(1 << 20),
        "neighbouring gaps are one again"
    );
}

#[test]
fn only_chunks_without_pieces_are_drained() {
    let mut heap = Heap::default();
    heap.add(0x1000_0000, 4 * UNIT);
    heap.add(0x2000_0000, 4 * UNIT);
    heap.add(0x3000_0000, 4 * UNIT);
    let piece = heap.take(4 * UNIT).expect("a chunk has room");
    assert_eq!(piece, 0x1000_0000);
    assert_eq!(heap.drain_empty(1), [0x3000_0000]);
    assert!(heap.give(piece));
    assert_eq!(heap.drain_empty(0), [0x2000_0000, 0x1000_0000]);
    assert_eq!(heap.take(1), None);
}
