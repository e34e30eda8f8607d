//! What people write as a size: it is read exactly, or refused in one line that says what to write.
//!
//! `PROPTEST_CASES` says how many cases are tried.

use policy::units::{Bytes, Size};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_looks_like_a_size_is_read_exactly_or_refused(
        text in "[ ]?[0-9]{0,22}(\\.[0-9]{0,20})? ?([KMGTkmgt]?[iI]?[bB]?|%)",
    ) {
        match text.parse::<Size>() {
            Ok(size) => {
                prop_assert_eq!(size.to_string().parse(), Ok(size), "{:?} was read as {}", text, size);
                prop_assert!(size.of(Bytes(u64::MAX)) > Bytes(0));
            }
            Err(refused) => {
                let line = refused.to_string();
                prop_assert_eq!(line.lines().count(), 1, "{}", line);
                prop_assert!(line.contains("write "), "{}", line);
            }
        }
    }

    #[test]
    fn a_share_never_exceeds_the_card(hundredths in 0u16..=10_000, card in any::<u64>()) {
        let share = Size::Percent { hundredths }.of(Bytes(card));
        prop_assert!(share <= Bytes(card), "{}", share);
    }
}
