//! What the driver really takes for an allocation in video memory.
//!
//! It allocates whole pages and chooses their size by the attributes of the request: one byte with
//! 512 MiB pages pins 512 MiB. The rules are those of NVIDIA's public kernel module of driver
//! 580.105 (the choice of a page size in the memory manager, the alignment of sizes, the page
//! allocator of video memory); bit positions are those of nvos.h. The amounts are never below what
//! it takes, and equal to it for what CUDA asks.

use crate::units::Bytes;

/// The smallest page of the page allocator, also for requests of 4 KiB pages.
pub const PAGE_64K: u64 = 64 << 10;
/// The page of requests of at least this size, and of the huge page attribute.
pub const PAGE_2M: u64 = 2 << 20;
/// The page of the huge page attribute with 512 MiB named in the second attribute word.
pub const PAGE_512M: u64 = 512 << 20;
/// As [`PAGE_512M`] with 256 GiB: no device of today has it, and the charge is beyond any quota.
pub const PAGE_256G: u64 = 256 << 30;

/// Compressible memory is aligned to a page of compression tags; 256 KiB is the largest that the
/// driver names.
const PAGE_COMPRESSION: u64 = 256 << 10;

/// Allocation flag: the request is for addresses and not for memory.
const FLAG_VIRTUAL: u32 = 0x0008_0000;
/// Allocation flag: at the offset that the caller names.
const FLAG_FIXED_ADDRESS: u32 = 0x0000_0010;
/// Allocation flags (hint and force): the alignment that the caller names counts.
const FLAGS_ALIGNMENT: u32 = 0x0000_0080 | 0x0000_0100;

/// Whether attributes place memory on the device: the location in bits 26:25 is 0. (1 is host
/// memory; "any" is host memory too in this driver.) Class 0x40 accepts no other.
pub fn in_vidmem(attr: u32) -> bool {
    field(attr, 25, 2) == 0
}

/// Whether the flags of an allocation ask for addresses only (page tables, no memory), whatever the
/// attributes say.
pub fn is_virtual(flags: u32) -> bool {
    flags & FLAG_VIRTUAL != 0
}

/// The size of the pages that the driver takes for `size` bytes in video memory.
pub fn page_size(size: u64, attr: u32, attr2: u32) -> u64 {
    match field(attr, 23, 2) {
        // Left to the driver: huge where it is worth it, else big (64 KiB from Pascal on).
        0 if size >= PAGE_2M => PAGE_2M,
        3 => match field(attr2, 20, 2) {
            2 => PAGE_512M,
            3 => PAGE_256G,
            _ => PAGE_2M,
        },
        _ => PAGE_64K,
    }
}

/// What the driver takes for a request of `size` bytes in video memory with these attribute words
/// and flags.
///
/// `None` where the driver grants no such request, or what it takes can't be told from these words,
/// and the caller must refuse: no bytes at all; a size that does not fit 64 bits when rounded, or
/// 2^32 pages and more; a fixed address together with an alignment of the caller's choice (the size
/// is then rounded to that alignment as well).
pub fn rounded(size: u64, attr: u32, attr2: u32, flags: u32) -> Option<Bytes> {
    if size == 0 || (flags & FLAG_FIXED_ADDRESS != 0 && flags & FLAGS_ALIGNMENT != 0) {
        return None;
    }
    let page = page_size(size, attr, attr2);
    let compressible = field(attr, 12, 2) != 0;
    let step = if compressible {
        page.max(PAGE_COMPRESSION)
    } else {
        page
    };
    let total = Bytes(size).checked_round_up(step)?;
    (total.0 / page <= u64::from(u32::MAX)).then_some(total)
}

/// The field of `bits` bits from bit `low`.
fn field(word: u32, low: u32, bits: u32) -> u32 {
    (word >> low) & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    const SMALL_PAGE: u32 = 1 << 23;
    const BIG_PAGE: u32 = 2 << 23;
    const HUGE_PAGE: u32 = 3 << 23;
    const HUGE_2M: u32 = 1 << 20;
    const HUGE_512M: u32 = 2 << 20;
    const HUGE_256G: u32 = 3 << 20;
    const COMPRESSIBLE: u32 = 2 << 12;

    /// Every shape of request that CUDA made in a trace of an H200 on driver 580.159 (attribute
    /// words, flags and sizes are measured), with the amount that follows from the driver's source.
    #[test]
    fn what_cuda_asks() {
        const FLAGS: u32 = 0x0001_c101;
        for (size, attr, amount) in [
            (0x20_0000, 0x1800_0000, 2 * MIB),
            (0x20_0000, 0x1980_0000, 2 * MIB),
            (0x42_0000, 0x1800_0000, 6 * MIB),
            (0x200_0000, 0x3800_0000, 32 * MIB),
            (0x400_0000, 0x1800_0000, 64 * MIB),
            (0x400_0000, 0x1802_0004, 64 * MIB),
            (0x400_0000, 0x3800_0000, 64 * MIB),
            (0x44c_6880, 0x1800_0000, 70 * MIB),
            (0x19c8_0000, 0x1800_0000, 414 * MIB),
            (0xc000_0000, 0x1800_0000, 3 * GIB),
        ] {
            assert!(in_vidmem(attr));
            assert_eq!(
                rounded(size, attr, 0, FLAGS),
                Some(Bytes(amount)),
                "{size:#x} {attr:#x}"
            );
        }
    }

    #[test]
    fn the_edges_of_every_page_size() {
        for (size, attr, attr2, amount) in [
            (1, 0, 0, 64 * KIB),
            (64 * KIB, 0, 0, 64 * KIB),
            (64 * KIB + 1, 0, 0, 128 * KIB),
            (2 * MIB - 1, 0, 0, 2 * MIB),
            (2 * MIB, 0, 0, 2 * MIB),
            (2 * MIB + 1, 0, 0, 4 * MIB),
            // Named pages count whatever the size; 4 KiB pages are taken in 64 KiB.
            (1, SMALL_PAGE, 0, 64 * KIB),
            (2 * MIB + 1, SMALL_PAGE, 0, 2 * MIB + 64 * KIB),
            (2 * MIB + 1, BIG_PAGE, 0, 2 * MIB + 64 * KIB),
            (1, HUGE_PAGE, 0, 2 * MIB),
            (1, HUGE_PAGE, HUGE_2M, 2 * MIB),
            (2 * MIB + 1, HUGE_PAGE, HUGE_2M, 4 * MIB),
            (1, HUGE_PAGE, HUGE_512M, 512 * MIB),
            (512 * MIB + 1, HUGE_PAGE, HUGE_512M, GIB),
            (1, HUGE_PAGE, HUGE_256G, 256 * GIB),
            // The second word counts only with the huge attribute.
            (1, 0, HUGE_512M, 64 * KIB),
            (1, BIG_PAGE, HUGE_512M, 64 * KIB),
            (1, COMPRESSIBLE, 0, 256 * KIB),
            (2 * MIB, COMPRESSIBLE, 0, 2 * MIB),
        ] {
            assert_eq!(
                rounded(size, attr, attr2, 0),
                Some(Bytes(amount)),
                "{size:#x} {attr:#x} {attr2:#x}"
            );
        }
    }

    #[test]
    fn two_mebibytes_are_a_huge_page() {
        assert_eq!(page_size(2 * MIB - 1, 0, 0), PAGE_64K);
        assert_eq!(page_size(2 * MIB, 0, 0), PAGE_2M);
    }

    #[test]
    fn what_is_never_granted() {
        assert_eq!(rounded(0, 0, 0, 0), None);
        assert_eq!(rounded(u64::MAX, 0, 0, 0), None);
        assert_eq!(rounded(u64::MAX - PAGE_2M, 0, 0, 0), None);
        // 2^32 pages of 64 KiB are one too many.
        assert_eq!(rounded(PAGE_64K << 32, BIG_PAGE, 0, 0), None);
        assert_eq!(
            rounded((PAGE_64K << 32) - PAGE_64K, BIG_PAGE, 0, 0),
            Some(Bytes((PAGE_64K << 32) - PAGE_64K))
        );
        // A fixed address is rounded to the caller's alignment too, which is not among these words.
        assert_eq!(rounded(1, 0, 0, 0x10 | 0x100), None);
        assert_eq!(rounded(1, 0, 0, 0x10 | 0x80), None);
        assert_eq!(rounded(1, 0, 0, 0x10), Some(Bytes(PAGE_64K)));
    }

    #[test]
    fn where_memory_is() {
        assert!(in_vidmem(0));
        assert!(in_vidmem(!(3 << 25)));
        for host in 1..=3 {
            assert!(!in_vidmem(host << 25));
        }
        assert!(is_virtual(0x0008_0000));
        assert!(!is_virtual(0x0001_c101));
    }

    proptest! {
        #[test]
        fn never_below_the_request_and_never_a_page_too_much(
            size in prop_oneof![1..=8 * MIB, 1..=u64::MAX],
            attr: u32,
            attr2: u32,
        ) {
            if let Some(amount) = rounded(size, attr, attr2, 0) {
                let page = page_size(size, attr, attr2);
                prop_assert!(amount.0 >= size);
                prop_assert!(amount.0 - size < page.max(PAGE_COMPRESSION));
                prop_assert_eq!(amount.0 % page, 0);
            }
        }

        #[test]
        fn more_is_never_cheaper(
            one in 1..=1u64 << 50,
            other in prop_oneof![1..=4 * MIB, 1..=1u64 << 50],
            attr: u32,
            attr2: u32,
        ) {
            let (less, more) = (one.min(other), one.max(other));
            if let Some(amount) = rounded(more, attr, attr2, 0) {
                prop_assert!(rounded(less, attr, attr2, 0).is_some_and(|smaller| smaller <= amount));
            }
        }
    }
}
