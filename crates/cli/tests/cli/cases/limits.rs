//! Cases about what limits are, where they come from and who sees them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Talker, within};
use crate::common::{Done, GIB, GPUSLICE, Node, command, finish, gpuslice, total, wait_until};

#[test]
fn the_conformance_suite_agrees_natively_and_in_a_slice() {
    let agrees = |done: Done| {
        let report = done.ended(0).json();
        assert_eq!(report["agrees"], true, "{report}");
        assert!(report["rows"].as_array().expect("rows").len() > 40);
        report["slice"].clone()
    };
    let suite = [GPUSLICE, "__tenant", "conformance"];
    let native = gpuslice(&[&["sim", "1xH200", "--"], &suite[..]].concat());
    assert!(agrees(native).is_null());
    let node = Node::start("1xH200");
    // Somebody else's process is on the card too: it is not to be seen (B53).
    let other = within(
        &node,
        &["--memory", "2GiB"],
        "memory::b08_full_slices_leave_each_other_their_own",
        "fill",
    );
    let mut other = Talker::start(other);
    other.says("filled");
    let options = ["--memory", "4GiB", "--name", "suite"];
    assert_eq!(agrees(gpuslice(&node.run(&options, &suite))), "suite");
    other.ends();
}

#[test]
fn b25_a_unit_is_never_guessed() {
    for size in [
        "4G",
        "4Gi",
        "4GB",
        "4gb",
        "4096M",
        "4096Mi",
        "1.5G",
        "08G",
        "0x10",
        "4e9",
        "-1",
        "0",
        "0m",
        "",
        " 4G ",
        "0%",
        "150%",
        "99999999999999999999",
        "4GiB4",
    ] {
        let flag = format!("--memory={size}");
        let done = gpuslice(&["run", "--sim", "1xH200", &flag, "--", "true"]).ended(125);
        assert!(done.err.contains(size.trim()), "{size:?}: {}", done.err);
        assert!(done.err.contains("write "), "{size:?}: {}", done.err);
    }
    for (size, bytes) in [
        ("4GiB", 4 * GIB),
        ("4gib", 4 * GIB),
        ("4096MiB", 4 * GIB),
        ("4294967296", 4 * GIB),
        ("1.5GiB", 3 * GIB / 2),
    ] {
        let words = ["run", "--sim", "1xH200", "--memory", size, "--"];
        let probe = gpuslice(&[&words[..], &[GPUSLICE, "probe", "--json"]].concat());
        assert_eq!(total(&probe.ended(0).json()), bytes, "{size}");
    }
}

#[test]
fn b26_an_unlisted_release_is_told_once_and_an_unknown_branch_refused() {
    let probe = |spec: &str| {
        gpuslice(&[
            "run", "--sim", spec, "--memory", "2GiB", "--", GPUSLICE, "probe", "--json",
        ])
    };
    let told = |done: &Done| {
        let lines = done.err.lines();
        lines
            .filter(|l| l.contains("not among the releases"))
            .count()
    };
    let listed = probe("1xH200").ended(0);
    assert_eq!(told(&listed), 0, "{}", listed.err);
    let unlisted = probe("1xH200@580.200.01").ended(0);
    assert_eq!(told(&unlisted), 1, "{}", unlisted.err);
    assert!(unlisted.err.contains("580.200.01"), "{}", unlisted.err);
    assert_eq!(total(&unlisted.json()), 2 * GIB);
    let known = "known: 535, 550, 565, 570, 580, 590, 595";
    for unknown in ["999.1", "575.64", "580", "5.5.5.5"] {
        let spec = format!("1xH200@{unknown}");
        let words = [unknown, "no known branch", known, "install"];
        probe(&spec).refused(&words);
        gpuslice(&["trace", "--sim", &spec, "--", "true"]).refused(&words);
        let report = gpuslice(&["doctor", "--sim", &spec]).ended(1).out;
        assert!(report.contains("MISSING  driver"), "{report}");
    }
    let report = gpuslice(&["doctor", "--sim", "1xH200@580.200.01"])
        .ended(0)
        .out;
    assert!(report.contains("weak     driver"), "{report}");
}

#[test]
fn b26_every_branch_serves_a_program_of_its_own_library() {
    for (release, listed) in [
        ("535.183.01", true),
        ("550.54.15", true),
        ("565.77", true),
        ("570.133.20", true),
        ("590.48.01", true),
        ("595.45.04", true),
        ("535.999.01", false),
        ("595.999.01", false),
    ] {
        let spec = format!("1xH200@{release}");
        let words = ["run", "--sim", &spec, "--memory", "2GiB", "--", GPUSLICE];
        let probe = [&words[..], &["probe", "--alloc", "64MiB", "--json"]].concat();
        let done = gpuslice(&probe).ended(0);
        assert_eq!(total(&done.json()), 2 * GIB, "{release}");
        let told = done.err.matches("not among the releases").count();
        assert_eq!(told, usize::from(!listed), "{release}: {}", done.err);
    }
    let unlike = [
        "run",
        "--sim",
        "1xH200@535.54.03",
        "--memory",
        "2GiB",
        "--",
        "true",
    ];
    gpuslice(&unlike).refused(&[
        "535.54.03",
        "other parameter blocks",
        "branch 535",
        "install",
    ]);
}

#[test]
fn b32_nothing_in_the_environment_loosens_the_limit() {
    let probe = format!("{GPUSLICE} probe --json");
    let lost = format!(
        "exec env -i GPUSLICE_SIM=$GPUSLICE_SIM LD_LIBRARY_PATH=$LD_LIBRARY_PATH \
         CUDA_DISABLE_CONTROL=true NVIDIA_VISIBLE_DEVICES=all GPUSLICE_NAME=other {probe}"
    );
    // A user namespace of the tenant's own, where it is root of, if this machine lets it make one.
    let new_root =
        format!("unshare -Ur true 2>/dev/null || exec {probe}; exec unshare -Ur {probe}");
    let new_session = format!("exec setsid {probe}");
    for script in [lost, new_root, new_session] {
        let options = ["run", "--sim", "2xH200", "--gpu", "1", "--memory", "2GiB"];
        let words = [&options[..], &["--", "sh", "-c", &script]].concat();
        let probe = gpuslice(&words).ended(0).json();
        assert_eq!(total(&probe), 2 * GIB, "{script}");
        let cards = probe["devices"].as_array().expect("devices").len();
        assert_eq!(cards, 1, "{script}");
    }
}

#[test]
fn b37_the_slice_and_the_program_read_the_variable_alike() {
    const SECOND: &str = "GPU-53494d00-4832-4000-8000-677075736c01";
    let mig = format!("MIG-{SECOND}/1/0");
    let upper = format!("GPU-{}", SECOND[4..].to_uppercase());
    let lower = SECOND.to_lowercase();
    let mixed = format!("0,{mig}");
    let cards = |words: &[&str], visible: &str| -> BTreeSet<String> {
        let mut probe = command(&[words, &["--", GPUSLICE, "probe", "--json"]].concat());
        probe.env("CUDA_VISIBLE_DEVICES", visible);
        let done = finish(probe);
        if done.code != Some(0) {
            return BTreeSet::new();
        }
        let probe = done.json();
        let devices = probe["devices"].as_array().expect("devices").iter();
        devices
            .map(|d| d["uuid"].as_str().expect("text").to_owned())
            .collect()
    };
    let node = Node::start("2xH200");
    for visible in [
        "0",
        "1",
        "1,0",
        "0,0",
        "1,x,0",
        "0,",
        ",0",
        " 1 , 0",
        "",
        "-1",
        "GPU-5",
        "GPU-",
        SECOND,
        &upper,
        &lower,
        &mig,
        &mixed,
        "+1",
        "01",
        "1x",
        "0x1",
        "4294967296",
        "all",
    ] {
        let native = cards(&["sim", &node.socket], visible);
        let slice = cards(&["run", "--sim", &node.socket, "--memory", "1GiB"], visible);
        assert_eq!(slice, native, "{visible:?}");
    }
}

#[test]
fn b62_what_an_earlier_run_left_in_the_registry_grants_nothing() {
    let node = Node::start("1xH200");
    let registry = Path::new(&node.socket).with_file_name("registry");
    let slice = node.slice(&["--memory", "1GiB", "--name", "first"]);
    // What a run of another version, a full disk or a crash may leave: nobody holds its lock.
    for (name, text) in [
        ("first-of-two", ""),
        ("old", "\u{0}\u{1}not JSON"),
        (
            "future",
            "{\"version\":99,\"name\":\"future\",\"memory\":[[\"GPU-x\",1]]}",
        ),
    ] {
        fs::write(registry.join(format!("{name}.tenant")), text).expect("written");
    }
    assert_eq!(node.names(), ["first"]);
    for name in ["first-of-two", "old", "future"] {
        let probe = [GPUSLICE, "probe", "--json"];
        let options = ["--memory", "2GiB", "--name", name];
        let probe = gpuslice(&node.run(&options, &probe)).ended(0).json();
        assert_eq!(total(&probe), 2 * GIB);
    }
    drop(slice);
    wait_until("the slice has ended", || node.names().is_empty());
}

#[test]
fn only_the_owner_of_a_registry_can_lock_what_is_in_it() {
    // A lock is what makes a slice live, and flock(2) asks for no more than an open file.
    let node = Node::start("1xH200");
    let _slice = node.slice(&["--memory", "1GiB", "--name", "first"]);
    let registry = Path::new(&node.socket).with_file_name("registry");
    let mut files = 0;
    for entry in fs::read_dir(registry).expect("a folder") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?} {mode:o}", entry.path());
        files += 1;
    }
    assert_eq!(
        files, 4,
        "the registry's lock, the slice and its board, and the scheduler's file"
    );
}
