//! Version strings, as a driver or anybody else may write them.
//!
//! `PROPTEST_CASES` says how many cases are tried.

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_version_is_of_a_known_branch_or_refused_in_one_line(
        version in prop_oneof!["(535|580|570|595|[0-9]{0,4})(\\.[0-9]{0,4}){0,3}", "580\\.[0-9]{1,3}\\.[0-9]{1,3}", ".{0,16}"],
    ) {
        match rm::for_driver(&version) {
            Ok(found) => {
                prop_assert_eq!(version.split('.').next(), Some(found.abi.branch()));
                prop_assert!(version.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
            }
            Err(unknown) => prop_assert_eq!(unknown.to_string().lines().count(), 1),
        }
    }
}
