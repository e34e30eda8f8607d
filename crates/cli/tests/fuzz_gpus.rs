//! Lists of cards, as a person writes them after `--gpu` or in `CUDA_VISIBLE_DEVICES`.
//!
//! `PROPTEST_CASES` says how many cases are tried. The binary has no library, so the module is built in here.

#[path = "../src/gpus.rs"]
mod gpus;

use guard::rmcall::Gpu;
use policy::units::Bytes;
use proptest::prelude::*;

fn node() -> Vec<Gpu> {
    (0..3u8)
        .map(|i| Gpu {
            index: i.into(),
            // The first two share their first digits.
            uuid: format!(
                "GPU-{:02x}00000{i}-0000-0000-0000-000000000000",
                0xa0 + i / 2
            ),
            uuid_bytes: [i; 16],
            name: "NVIDIA H200".into(),
            gpu_id: i.into(),
            instance: i.into(),
            minor: i.into(),
            memory: Bytes::from_gib(140),
        })
        .collect()
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9]{1,2}",
        "(GPU|gpu)-[a0-9]{0,9}",
        "[ ,-]{0,3}",
        ".{0,12}"
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn asked_cards_are_cards_of_the_node_each_once_or_a_line(
        asked in proptest::collection::vec(word(), 0..4),
        visible in proptest::option::of(word()),
    ) {
        let node = node();
        match gpus::choose(&asked, visible.as_deref(), &node) {
            Ok(chosen) => {
                prop_assert!(!chosen.is_empty());
                prop_assert!(chosen.windows(2).all(|pair| pair[0].index < pair[1].index), "{:?}", chosen);
            }
            Err(line) => prop_assert!(!line.is_empty()),
        }
    }

    #[test]
    fn the_variable_names_each_card_once(list in proptest::collection::vec(word(), 0..5)) {
        let node = node();
        let list = list.join(",");
        let chosen = gpus::visible_devices(&list, &node);
        prop_assert!((1..chosen.len()).all(|i| !chosen[..i].contains(&chosen[i])), "{:?}: {:?}", list, chosen);
    }
}
