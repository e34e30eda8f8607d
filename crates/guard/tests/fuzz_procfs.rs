//! Text of `/proc` that a tenant has a hand in: its file names and process names stand there.
//!
//! `PROPTEST_CASES` says how many cases are tried.

use guard::procfs::{parse_driver_version, parse_epoll_entries, parse_major, parse_maps};
use proptest::prelude::*;

/// A line of `/proc/PID/maps` with any path.
fn line() -> impl Strategy<Value = String> {
    (0..1u64 << 40, 0..1u64 << 20, "[^\n]{0,40}", any::<u32>()).prop_map(
        |(base, pages, path, inode)| {
            let (start, end) = (base * 4096, (base + pages) * 4096);
            format!("{start:012x}-{end:012x} rw-s {start:08x} 00:06 {inode} {path}\n")
        },
    )
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(text in "\\PC{0,200}", lines in prop::collection::vec("[0-9a-f: \t\n-]{0,80}", 0..8)) {
        for text in [text, lines.join("\n")] {
            for (base, length) in parse_maps(&text, |_, _, _| true) {
                prop_assert!(base.checked_add(length).is_some());
            }
            let _ = (parse_major(&text, "nvidia-uvm"), parse_driver_version(&text), parse_epoll_entries(&text));
        }
    }

    #[test]
    fn every_mapping_is_found_whatever_its_path(lines in prop::collection::vec(line(), 0..20)) {
        let found = parse_maps(&lines.concat(), |device, _, _| device == "00:06");
        prop_assert_eq!(found.len(), lines.len());
        for (line, (base, length)) in lines.iter().zip(found) {
            let range = format!("{base:012x}-{:012x} ", base + length);
            prop_assert!(line.starts_with(&range));
        }
    }

    #[test]
    fn every_watched_file_is_listed(ids in prop::collection::vec(any::<u64>(), 0..20)) {
        let text: String = ids.iter().map(|id| format!("tfd: 7 events: 1 data: {id:16x} pos:0 ino:1 sdev:2\n")).collect();
        prop_assert_eq!(parse_epoll_entries(&text), ids);
    }
}
