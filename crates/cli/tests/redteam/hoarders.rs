//! Tenants that take what is everybody's, and a neighbour who starts meanwhile. A test is named by the threat's number in
//! SECURITY.md.

use std::process::Command;
use std::time::{Duration, Instant};

use policy::objects::{
    CHANNELS_A_GROUP, CLIENTS, EVENTS_A_CARD, OBJECTS_A_CARD, bar1_for, channels_for, groups_for,
};
use policy::units::Bytes;
use testkit::outside::{Line, Played, Program, Told};

use crate::stage::{QUOTA, Stage, assert_held};

const BINARY: &str = env!("CARGO_BIN_EXE_gpuslice");
/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// Starts a program in a slice of so much memory that may make so many calls a second.
fn start(stage: &Stage, memory: u64, rate: u64, words: &[&str]) -> Program {
    let mut command = Command::new(BINARY);
    command.args(["run", "--sim"]).arg(&stage.socket);
    command.args(["--gpu", "0", "--memory", &memory.to_string()]);
    command.args(["--name", words[0], "--call-rate", &rate.to_string()]);
    command.args(["--", BINARY, "__tenant", words[0], &memory.to_string()]);
    command.args(&words[1..]);
    Program::start(command).unwrap()
}

/// Serves a program; when it asks for its neighbour, `meanwhile` happens.
fn play(program: Program, mut meanwhile: impl FnMut()) -> Played {
    let answer = |line: &Line| match line {
        Line::AskNeighbour => {
            meanwhile();
            Some(Told::Neighbour(Default::default()))
        }
        _ => None,
    };
    program.play(LIMIT, answer).unwrap()
}

/// A hoarder gets `least` to `most` of a kind and no more; while it has them, a neighbour starts CUDA and uses its whole
/// slice. The helper says so once.
fn hoard(kind: &str, least: u64, most: u64, told: &str) {
    hoard_in(QUOTA, kind, least, most, told);
}

/// As [`hoard`], in a slice of so much memory.
fn hoard_in(memory: u64, kind: &str, least: u64, most: u64, told: &str) {
    let stage = Stage::new();
    // Objects are made in great numbers, and this is not about calls.
    let words = ["hoarder", kind, &least.to_string(), &most.to_string()];
    let hoarder = start(&stage, memory, 10_000_000, &words);
    let mut neighbour = None;
    let played = play(hoarder, || neighbour = Some(stage.play(&["honest"])));
    assert_held(&neighbour.expect("the hoarder asked for it"));
    assert_held(&played);
    let said = played
        .errors
        .matches("refused as if the card had no more")
        .count();
    assert_eq!(said, 1, "{}", played.errors);
    assert!(played.errors.contains(told), "{}", played.errors);
}

fn card() -> Bytes {
    Bytes::from_kib(simgpu::spec::DeviceSpec::h200(0).heap_kib)
}

fn channels() -> u64 {
    channels_for(Bytes(QUOTA), card()).into()
}

// `Tenant::claim` in `Worker::alloc`, before the driver is asked.
#[test]
fn threat_28_a_hoarder_of_channels_leaves_the_neighbour_his() {
    hoard("channels", channels(), channels(), "channels asked for");
}

// `policy::objects::LEAST_CHANNELS`.
#[test]
fn threat_28_the_smallest_slice_holds_three_contexts() {
    hoard_in(512 << 20, "contexts", 3, 3, "channel groups asked for");
}

// `Worker::alloc_os_event`: every event is some client's.
#[test]
fn redteam_no_event_is_registered_for_nobody() {
    assert_held(&Stage::new().play(&["events_of_nobody"]));
}

#[test]
fn threat_28_a_group_holds_no_more_channels_than_the_driver_says() {
    let most = u64::from(CHANNELS_A_GROUP);
    hoard("one_group", most, most, "channels in one group asked for");
}

#[test]
fn threat_28_a_hoarder_of_groups_gets_those_of_its_contexts() {
    let groups = u64::from(groups_for(channels() as u32));
    hoard("groups", groups, groups, "channel groups asked for");
}

#[test]
fn threat_28_a_hoarder_of_clients_gets_his_share() {
    hoard("clients", CLIENTS - 1, CLIENTS - 1, "clients asked for");
}

// Its own client, device and the like are among them.
#[test]
fn threat_28_a_hoarder_of_objects_gets_his_share() {
    let most = OBJECTS_A_CARD;
    hoard("objects", most - 10, most, "objects asked for");
}

// `Worker::alloc_memory`: made in the tenant, counted by their request.
#[test]
fn threat_28_objects_that_the_kernel_makes_in_the_tenant_count() {
    let most = OBJECTS_A_CARD;
    hoard("pinned", most - 10, most, "objects asked for");
}

#[test]
fn threat_28_a_hoarder_of_events_gets_his_share() {
    hoard("events", EVENTS_A_CARD, EVENTS_A_CARD, "events asked for");
    hoard(
        "os_events",
        EVENTS_A_CARD,
        EVENTS_A_CARD,
        "events asked for",
    );
}

// `Worker::alloc_host_memory`; 64 MiB at once.
#[test]
fn threat_28_memory_of_the_host_has_a_quota() {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let words = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = words.unwrap().split_whitespace().next().unwrap().parse();
    let all = Bytes(2 * card().0);
    let host = policy::objects::host_for(Bytes::from_kib(kib.unwrap()), Bytes(QUOTA), all);
    let parts = host.0 / (64 << 20);
    hoard("host", parts, parts, "bytes of host memory asked for");
}

// `Worker::map_memory`; 1 GiB at once.
#[test]
fn threat_28_the_window_of_the_card_has_a_quota() {
    let parts = bar1_for(Bytes(1 << 38), Bytes(QUOTA), card()).0 >> 30;
    hoard("bar1", parts, parts, "bytes of BAR1 asked for");
}

// `Tenant::pace` in `Pool::run`: who is over its budget waits, and nobody else does.
#[test]
fn threat_27_a_flood_of_calls_waits_and_the_neighbour_does_not() {
    const RATE: u64 = 500;
    const FLOOD: Duration = Duration::from_secs(4);
    let stage = Stage::new();
    let start_of_flood = Instant::now();
    let flooder = start(&stage, QUOTA, RATE, &["flooder", &RATE.to_string()]);
    let mut contexts = 0;
    let played = play(flooder, || {
        while contexts == 0 || start_of_flood.elapsed() < FLOOD {
            assert_held(&stage.play(&["honest"]));
            contexts += 1;
        }
    });
    assert_held(&played);
    assert!(contexts > 0);
    let said = played.errors.matches("more than its budget allows").count();
    assert_eq!(said, 1, "{}", played.errors);
}

// `Pool::watch`: a thread whose caller's memory faults for ever is made up for by another.
#[test]
fn threat_26_parameters_that_fault_for_ever_hold_up_nobody_else() {
    if guard::sys::uids().1 != 0 || !std::fs::exists("/dev/userfaultfd").unwrap_or(false) {
        eprintln!("skipped: only root can make the kernel's own accesses fault for ever");
        return;
    }
    assert_held(&Stage::new().play(&["stalled", "12", "1"]));
}

// `Pool::give_up_one`: more threads hang than the helper has; the tenant can still free what it has. A second time too,
// as the threads that were given up have come back.
#[test]
fn threat_26_who_makes_every_thread_hang_can_still_free() {
    if guard::sys::uids().1 != 0 || !std::fs::exists("/dev/userfaultfd").unwrap_or(false) {
        eprintln!("skipped: only root can make the kernel's own accesses fault for ever");
        return;
    }
    assert_held(&Stage::new().play(&["stalled", "26", "2"]));
}

// `Pool::give_up_one`: threads that were given up are not had without end.
#[test]
fn threat_26_who_makes_more_threads_hang_than_are_given_up_is_ended() {
    if guard::sys::uids().1 != 0 || !std::fs::exists("/dev/userfaultfd").unwrap_or(false) {
        eprintln!("skipped: only root can make the kernel's own accesses fault for ever");
        return;
    }
    let played = Stage::new().play(&["stalled", "40", "1"]);
    assert!(played.findings.is_empty(), "{:?}", played.findings);
    let why = "30 calls at once have parameters in memory that is never given";
    assert!(played.errors.contains(why), "{}", played.errors);
}

// `Worker::parent_stays` in the order of the client's calls: what an object counts for, and on which card, is decided
// before.
#[test]
fn redteam_a_parent_that_changes_while_its_child_is_made_is_looked_at_again() {
    if guard::sys::uids().1 != 0 || !std::fs::exists("/dev/userfaultfd").unwrap_or(false) {
        eprintln!("skipped: only root can make the kernel's own accesses fault for ever");
        return;
    }
    let stage = Stage::new();
    let mut command = Command::new(BINARY);
    command.args(["run", "--sim"]).arg(&stage.socket);
    command.args(["--gpu", "0,1", "--memory", "1GiB", "--", BINARY]);
    command.args(["__tenant", "changing_parent", "1073741824"]);
    assert_held(&play(Program::start(command).unwrap(), || {}));
}

// `Worker::alloc` and `Worker::control` look at the clients that are named when nothing of the tenant's memory is left to
// be read.
#[test]
fn redteam_a_client_that_goes_while_it_is_named_is_looked_at_again() {
    if guard::sys::uids().1 != 0 || !std::fs::exists("/dev/userfaultfd").unwrap_or(false) {
        eprintln!("skipped: only root can make the kernel's own accesses fault for ever");
        return;
    }
    assert_held(&Stage::new().play(&["changing_client"]));
}

// Refused in the table of crate rm (0x41), by `Worker::is_attached` (0x290), by the table's size.
#[test]
fn threat_26_calls_that_wait_are_refused() {
    assert_held(&Stage::new().play(&["blocking"]));
}
