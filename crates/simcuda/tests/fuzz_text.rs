//! Text that a program hands to the library: PTX, and the variable that says which GPUs it sees.
//!
//! `PROPTEST_CASES` says how many cases are tried. The library has no tests of its own, so the parts are built in here.

#[path = "../src/ptx.rs"]
mod ptx;
#[path = "../src/visible.rs"]
mod visible;

use proptest::prelude::*;

/// Pieces from which PTX, and what looks like it, is made.
const PIECES: &[&str] = &[
    ".version 8.0",
    ".entry",
    "kernel",
    "(",
    ")",
    "{",
    "}",
    " ",
    "\n",
    "//",
    "/*",
    "*/",
    "/",
    "*",
    ";",
    ".param .u64 p",
    "\u{e9}",
];

fn text() -> impl Strategy<Value = String> {
    let pieces = proptest::collection::vec(prop::sample::select(PIECES), 0..24)
        .prop_map(|pieces| pieces.concat());
    prop_oneof![pieces, ".{0,64}"]
}

fn uuids() -> impl Strategy<Value = Vec<[u8; 16]>> {
    // Few different first bytes, so that shortened names are often ambiguous.
    let uuid = (0u8..3, any::<u8>()).prop_map(|(first, last)| {
        let mut uuid = [0x53; 16];
        (uuid[0], uuid[15]) = (first, last);
        uuid
    });
    proptest::collection::vec(uuid, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_kernel_found_stands_in_the_text_and_not_in_a_comment(text in text()) {
        let names = ptx::entries(&text);
        prop_assert!(names.len() <= text.matches(".entry").count());
        for name in &names {
            prop_assert!(!name.is_empty() && text.contains(name.as_str()), "{:?} in {:?}", name, text);
            prop_assert!(!name.contains("//") && !name.contains("/*"), "{:?} in {:?}", name, text);
        }
        let commented = format!("/* {} */", text.replace('*', ""));
        prop_assert!(ptx::entries(&commented).is_empty() && !ptx::is_ptx(&commented));
    }

    #[test]
    fn visible_gpus_are_gpus_of_the_node_each_once(
        list in prop_oneof!["([0-9]{1,2}|GPU-[0-9a-f]{0,4}|,| |-1){0,8}", ".{0,24}"],
        uuids in uuids(),
    ) {
        let seen = visible::visible(Some(&list), &uuids);
        prop_assert!(seen.iter().all(|&index| index < uuids.len()), "{:?}: {:?}", list, seen);
        prop_assert!((1..seen.len()).all(|i| !seen[..i].contains(&seen[i])), "{:?}: {:?}", list, seen);
    }
}
