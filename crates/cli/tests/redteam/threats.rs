//! The threat list's attacks. A test is named by the threat's number in SECURITY.md; a comment says what in the guard
//! makes it pass.

use std::fs;
use std::time::{Duration, Instant};

use crate::stage::{Stage, assert_held, children_of, helper_of};

// The ledger keeps mappings as intervals (guard: `mediator/uvm_calls.rs`, `Ledger::map` after a successful call 33;
// policy: a memory is released when names, intervals and exports are all gone).
#[test]
fn threat_01_a_mapping_outlives_the_handle_a_thousand_times() {
    assert_held(&Stage::new().play(&["threat_01"]));
}

// `Worker::require_flags`: before the first use of a UVM file the driver is asked for its flags; others poison it.
#[test]
fn threat_02_swapped_uvm_flags_make_the_file_useless() {
    assert_held(&Stage::new().play(&["threat_02"]));
}

// The same with a thread that changes them all the time, as `scripts/card_threats.py` runs it on a card.
#[test]
fn threat_02_flags_that_change_all_the_time_make_the_file_useless() {
    let played = Stage::new().play(&["card_flags", "3000"]);
    let finding = assert_held(&played);
    assert!(
        !finding.note.contains(" 0 of no use"),
        "the race was never won: {}",
        finding.note
    );
}

// `Worker::uvm_in_tenant` refuses the flag; call 71 is `Refuse` in the table of crate rm.
#[test]
fn threat_03_uvm_never_acts_on_the_helpers_address_space() {
    assert_held(&Stage::new().play(&["threat_03"]));
}

// `Worker::names_only_own` on `hClientSrc` of RM_DUP_OBJECT.
#[test]
fn threat_04_memory_of_another_tenant_cannot_be_duplicated() {
    assert_held(&Stage::new().play_beside(&["threat_04"]));
}

// `Registry::grant` gives each of root's helpers a user of its own, `privilege::become_helper` takes it: the driver
// lets a process duplicate what belongs to the same user.
#[test]
fn threat_04_no_two_helpers_of_root_have_one_user() {
    if guard::sys::uids().1 != 0 {
        eprintln!("NOT RUN: needs root");
        return;
    }
    let stage = Stage::new();
    let (mut a, mut b) = (stage.start("a", &["hold"]), stage.start("b", &["hold"]));
    let users: Vec<u32> = [&mut a, &mut b]
        .into_iter()
        .map(|program| {
            assert_eq!(
                program
                    .line(Instant::now() + Duration::from_secs(20))
                    .as_deref(),
                Some("held")
            );
            effective_user(helper_of(program.pid()).unwrap())
        })
        .collect();
    assert!(users[0] != users[1] && !users.contains(&0), "{users:?}");
    a.stop();
    b.stop();
}

// `Worker::share` and `Worker::control` (0xd04) rewrite "everybody" and "same user" to "same process". The neighbour
// has offered its memory to everybody; a client outside, of root or of the tenant's user, gets nothing by that.
#[test]
fn threat_04_memory_offered_to_everybody_stays_in_the_slice() {
    if guard::sys::uids().1 != 0 {
        // An ordinary user's helper and a program outside have one user: `run` says that such a program gets round it.
        eprintln!("NOT RUN: needs root");
        return;
    }
    let stage = Stage::new();
    let neighbour = stage.start("generous", &["spinner"]);
    let line = neighbour
        .line(Instant::now() + Duration::from_secs(20))
        .unwrap();
    let Ok(testkit::outside::Line::Progress(here)) = serde_json::from_str(&line) else {
        panic!("{line}")
    };
    let outside =
        testkit::raw::Client::open(&testkit::raw::Node::simulated(&stage.socket)).unwrap();
    let device = outside.first_device().unwrap();
    let taken = outside.duplicate(device.device, here.client, here.memory);
    neighbour.stop();
    assert_eq!(taken, Err(testkit::raw::Fault::NOT_PERMITTED));
}

// `Worker::memory_is_known` asks the driver for the class of a handle that the guard did not see made.
#[test]
fn threat_05_a_swapped_class_ends_the_tenant() {
    let stage = Stage::new();
    // 0xf3 reaches into whatever is at the address, 0x3e takes host memory outside the tenant's account.
    for class in ["243", "62"] {
        // The neighbour's memory is at the start of the card.
        let played = stage.play_beside(&["threat_05", class]);
        assert!(
            played.findings.is_empty(),
            "class {class}: {:?}",
            played.findings
        );
        assert!(
            played
                .errors
                .contains("made past the guard by swapping parameters"),
            "{}",
            played.errors
        );
    }
    // The honest class goes on working.
    assert_held(&stage.play_beside(&["threat_05", "113"]));
}

// The same with a thread that changes it all the time, as `scripts/card_threats.py` runs it on a card.
#[test]
fn threat_05_a_class_that_changes_all_the_time_ends_the_tenant() {
    let played = Stage::new().play(&["card_class", "62", "20000"]);
    assert!(played.findings.is_empty(), "{:?}", played.findings);
    assert!(
        played
            .errors
            .contains("made past the guard by swapping parameters"),
        "{}",
        played.errors
    );
}

// `policy::rounding::rounded` in `Worker::amount`: the driver's pages are charged, not the asked bytes.
#[test]
fn threat_06_one_byte_is_charged_as_the_page_it_takes() {
    assert_held(&Stage::new().play(&["threat_06"]));
}

// `filter::seccomp_rules`: a second listener gets EBUSY.
#[test]
fn threat_08_no_listener_of_the_tenants_own() {
    assert_held(&Stage::new().play(&["threat_08"]));
}

// `Run::helper_gone` in guard's supervisor, and PR_SET_PDEATHSIG of the command.
#[test]
fn threat_08_the_helpers_death_ends_the_tenant() {
    let stage = Stage::new();
    let program = stage.start("orphan", &["hold"]);
    assert_eq!(
        program
            .line(Instant::now() + Duration::from_secs(20))
            .as_deref(),
        Some("held")
    );
    let helper = helper_of(program.pid()).unwrap();
    let command = children_of(helper)[0];
    guard::sys::kill(helper as i32, libc::SIGKILL).unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while fs::exists(format!("/proc/{command}/exe")).unwrap_or(false)
        && fs::read_link(format!("/proc/{command}/exe")).is_ok()
    {
        assert!(
            Instant::now() < until,
            "the command goes on without its helper"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let played = program.play(Duration::from_secs(10), |_| None).unwrap();
    assert_eq!(
        played.status.and_then(|s| s.code()),
        Some(125),
        "{}",
        played.errors
    );
}

// `filter::ioctl_rules`: number and size decide whatever the type byte; UVM words are compared whole.
#[test]
fn threat_09_a_call_under_another_name_is_still_charged() {
    assert_held(&Stage::new().play(&["threat_09"]));
}

// `privilege::become_tenant` drops the capabilities and sets no_new_privs.
#[test]
fn threat_11_a_root_tenant_keeps_no_capability_that_leaves_the_slice() {
    assert_held(&Stage::new().play(&["threat_11"]));
}

// `Worker::names_only_own` on the parameters of class 0x80.
#[test]
fn threat_12_no_device_in_another_clients_address_space() {
    assert_held(&Stage::new().play_beside(&["threat_12"]));
}

// `Worker::names_only_own` with the `foreign` fields of crate rm's table, for every call, class and control.
#[test]
fn threat_14_no_field_can_name_another_tenant() {
    assert_held(&Stage::new().play_beside(&["threat_14"]));
}

// Refused in the table of crate rm (`0x2080110b`); the demo's check of the same name takes this away.
#[test]
fn threat_14_a_neighbours_channel_cannot_be_detached() {
    assert_held(&Stage::new().play_beside(&["foreign_detach_refused"]));
}

// `Decision::Absorb` and `Decision::Refuse` of the table in `Worker::control`.
#[test]
fn threat_15_commands_to_the_whole_device_do_nothing() {
    assert_held(&Stage::new().play(&["threat_15"]));
}

fn effective_user(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
