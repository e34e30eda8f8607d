//! How a driver version finds its branch, and what is said when it finds none.

use rm::for_driver;

#[test]
fn drivers_are_found_by_branch() {
    for listed in [
        "580.65.06",
        "580.105.08",
        "580.142",
        "580.159.03",
        "580.159.04",
    ] {
        let found = for_driver(listed).expect(listed);
        assert!(found.listed && found.abi.branch() == "580", "{listed}");
    }
    for (listed, branch) in [
        ("535.288.01", "535"),
        ("550.54.15", "550"),
        ("565.77", "565"),
        ("570.133.20", "570"),
        ("590.48.01", "590"),
        ("595.45.04", "595"),
    ] {
        let found = for_driver(listed).expect(listed);
        assert!(found.listed && found.abi.branch() == branch, "{listed}");
    }
    for (release, branch) in [
        ("580.200.01", "580"),
        ("535.309.01", "535"),
        ("590.99", "590"),
    ] {
        let found = for_driver(release).expect("a patch release of a known branch");
        assert!(!found.listed && found.abi.branch() == branch, "{release}");
    }
    for unknown in [
        "999.1",
        "58.0",
        "580",
        "580.",
        "580.x",
        ".580",
        "",
        "580.1.2.3",
        "580.159.04\n",
        "5800.1",
        "545.23.06",
        "575.64",
        "610.43.02",
    ] {
        for_driver(unknown).expect_err(unknown);
    }
}

#[test]
fn an_unknown_branch_is_one_line_that_says_what_to_do() {
    let line = for_driver("999.1\nrm -rf")
        .expect_err("no such branch")
        .to_string();
    assert_eq!(
        line,
        "driver version \"999.1\\nrm -rf\" is of no known branch (known: 535, 550, 565, 570, 580, 590, 595); \
         install a driver of a known branch, \
         or a gpuslice that knows this one"
    );
}

#[test]
fn a_release_that_is_not_like_its_branch_is_refused() {
    for (release, branch) in [
        ("535.54.03", "535"),
        ("535.43.02", "535"),
        ("550.40.07", "550"),
    ] {
        let line = for_driver(release).expect_err("other blocks").to_string();
        assert_eq!(
            line,
            format!(
                "driver version \"{release}\" has other parameter blocks than the rest of branch {branch}; install \
                 another release of the branch"
            )
        );
    }
}

#[test]
fn no_release_is_of_two_minds() {
    let mut seen = std::collections::HashSet::new();
    for abi in rm::branches() {
        assert!(seen.insert(abi.branch()), "{abi:?} twice");
    }
    let numbers = rm::branches().map(|abi| abi.branch().parse::<u32>().expect("a number"));
    assert!(numbers.is_sorted(), "the oldest first");
}
