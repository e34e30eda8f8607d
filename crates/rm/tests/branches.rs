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
    assert!(
        !for_driver("580.200.01")
            .expect("a patch release of a known branch")
            .listed
    );
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
        "driver version \"999.1\\nrm -rf\" is of no known branch (known: 580); install a driver of a known branch, \
         or a gpuslice that knows this one"
    );
}
