//! More of the threat list's attacks: on the helper, on what an answer tells, and on what real programs need.

use std::fs::File as OsFile;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::Command;
use std::time::Duration;

use testkit::raw::{Client, File, Node, Pages};

use crate::stage::{BINARY, Stage, assert_held, children_of, helper_of};

/// Where a program finds a file that was left to it.
const LEFT: i32 = 9;

/// A `gpuslice` that starts with this file at [`LEFT`].
fn leaving(file: BorrowedFd<'_>) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(BINARY);
    let number = file.as_raw_fd();
    // SAFETY: dup2(2) is async-signal-safe; the number is open until the child has started.
    unsafe {
        command.pre_exec(move || {
            if libc::dup2(number, LEFT) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    command
}

/// A `gpuslice` that starts with a socket at [`LEFT`] in which this file waits: a slice does not start with an open file
/// of the driver.
fn sending(file: BorrowedFd<'_>) -> Command {
    let (ours, theirs) = guard::sys::socket_pair().unwrap();
    guard::sys::send_message(ours.as_fd(), b"f", Some(file)).unwrap();
    let command = leaving(theirs.as_fd());
    // The command's closure names it by number.
    std::mem::forget(theirs);
    command
}

/// Memory of a client outside any slice.
fn outside(stage: &Stage) -> (Client, u32, u32) {
    let client = Client::open(&Node::simulated(&stage.socket)).unwrap();
    let device = client.first_device().unwrap();
    let memory = device.alloc(&client, 1 << 20, Pages::Default).unwrap();
    (client, device.device, memory)
}

// `Worker::acts_for_own_client`, `Worker::names_only_own`; what is made on any file of the driver is mediated.
#[test]
fn threat_10_a_file_opened_outside_gives_nothing_of_the_outside() {
    let stage = Stage::new();
    let (client, _, memory) = outside(&stage);
    let words = [
        "threat_10",
        &LEFT.to_string(),
        &client.root().to_string(),
        &memory.to_string(),
    ];
    assert_held(&stage.play_by(sending(client.file()), &words));
}

// `Worker::names_only_own` on `NV0005_ALLOC_PARAMETERS`; the call-back classes are refused in the table.
#[test]
fn threat_13_events_of_the_own_client_only() {
    assert_held(&Stage::new().play_beside(&["threat_13"]));
}

// `Answer::Pids`, `PidInfo`, `UtilSamples` and `ForeignZeroed` in guard's `answers.rs`.
#[test]
fn threat_16_no_answer_tells_of_another_tenants_processes() {
    assert_held(&Stage::new().play_beside(&["threat_16"]));
}

// `foreign` of class 0x83de, and its commands in the table.
#[test]
fn threat_17_a_debugger_reaches_its_own_application_only() {
    assert_held(&Stage::new().play_beside(&["threat_17"]));
}

// Refused in the table of crate rm.
#[test]
fn threat_18_profilers_and_the_timeline_are_out_of_reach() {
    assert_held(&Stage::new().play(&["threat_18"]));
}

// `Worker::import` takes what `Files::export` knows.
#[test]
fn threat_19_another_tenants_export_cannot_be_imported() {
    let stage = Stage::new();
    let (client, device, memory) = outside(&stage);
    let target = Node::simulated(&stage.socket).open(File::Control).unwrap();
    client.export(device, memory, target.as_fd()).unwrap();
    let words = ["threat_19", &LEFT.to_string()];
    assert_held(&stage.play_by(sending(target.as_fd()), &words));
}

// Refused in the table of crate rm.
#[test]
fn threat_20_no_mps_in_a_slice() {
    assert_held(&Stage::new().play(&["threat_20"]));
}

// `Worker::answer_pids`.
#[test]
fn threat_21_the_helpers_number_is_never_shown() {
    assert_held(&Stage::new().play(&["threat_21"]));
}

// `Run::helper_gone` waits for the helper only to end `run`: until then nobody else can have its number, which is the
// tenant's name with the driver. The tenant's programs do not survive it.
#[test]
fn threat_21_nobody_survives_the_helper() {
    let stage = Stage::new();
    let program = stage.start("orphan", &["hold"]);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    assert_eq!(program.line(until).as_deref(), Some("held"));
    let helper = helper_of(program.pid()).unwrap();
    let tenants = children_of(helper);
    guard::sys::kill(helper as i32, libc::SIGKILL).unwrap();
    let played = program.play(Duration::from_secs(10), |_| None).unwrap();
    assert_eq!(played.status.and_then(|s| s.code()), Some(125));
    assert!(!tenants.is_empty());
    for pid in tenants {
        assert!(!std::fs::exists(format!("/proc/{pid}/exe")).unwrap_or(false));
    }
    assert_eq!(stage.observer.memory_of(helper).unwrap()[0], 0);
}

// `Files::sweep`: the duplicate that the helper holds goes with the tenant's last descriptor.
#[test]
fn threat_22_the_last_close_gives_everything_back() {
    assert_held(&Stage::new().play(&["threat_22"]));
}

// What was executed stays in the ledger even if the caller was killed meanwhile (guard: `mediator`).
#[test]
fn threat_23_a_caller_killed_in_the_middle_leaves_nothing() {
    assert_held(&Stage::new().play(&["threat_23"]));
}

// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV` in guard's `listener.rs`.
#[test]
fn threat_24_a_call_is_made_once_or_not_begun() {
    assert_held(&Stage::new().play(&["threat_24"]));
}

// `Callers` keep a pidfd of the thread, not of the process.
#[test]
fn threat_25_the_calling_threads_own_table_counts_when_the_first_has_ended() {
    assert_held(&Stage::new().play(&["threat_25"]));
}

// `filter::tenant_filter`: another ABI is refused; io_uring has no path to the driver.
#[test]
fn threat_29_no_other_way_into_the_kernel() {
    assert_held(&Stage::new().play(&["threat_29"]));
}

// `privilege::become_helper`: not dumpable, and as root a user of its own; `privilege::become_tenant` takes the rights.
#[test]
fn threat_30_the_helper_cannot_be_looked_into() {
    assert_held(&Stage::new().play(&["threat_30"]));
}

// `sys::close_inherited` in the helper, after the command was forked.
#[test]
fn threat_30_the_helper_keeps_no_file_of_whoever_started_it() {
    if guard::sys::uids().1 != 0 {
        // Nobody else may look into a helper's table.
        eprintln!("NOT RUN: needs root");
        return;
    }
    let stage = Stage::new();
    let secret = OsFile::open("/etc/hostname").unwrap();
    let program = stage.start_leaving(leaving(secret.as_fd()), "hold", &["hold"]);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    assert_eq!(program.line(until).as_deref(), Some("held"));
    let helper = helper_of(program.pid()).unwrap();
    let files = |pid: u32| -> Vec<String> {
        std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .map(|target| target.to_string_lossy().into_owned())
            .collect()
    };
    let (helpers, tenants) = (files(helper), files(children_of(helper)[0]));
    program.stop();
    // The command has it, as natively.
    assert!(tenants.iter().any(|f| f == "/etc/hostname"), "{tenants:?}");
    assert!(!helpers.iter().any(|f| f == "/etc/hostname"), "{helpers:?}");
}

// The pass list of guard's filter, from `Decision::Pass` in the table.
#[test]
fn threat_42_advice_and_prefetch_run_in_the_tenant() {
    assert_held(&Stage::new().play(&["threat_42"]));
}

// `Worker::map_memory`, `Worker::with_descriptor`.
#[test]
fn threat_43_map_and_unmap_are_the_helpers_with_the_threads_own_descriptor() {
    assert_held(&Stage::new().play(&["threat_43"]));
}

// `Worker::translate_descriptor` and `Worker::with_descriptor`: a number means what the calling thread has there.
#[test]
fn threat_44_a_descriptors_number_is_the_tenants() {
    assert_held(&Stage::new().play(&["threat_44"]));
}

// `Worker::third_party`, `Ledger::register_memory`; `Ledger::hold_export` of a dmabuf.
#[test]
fn threat_45_no_third_party_keeps_uncharged_memory() {
    assert_held(&Stage::new().play(&["threat_45"]));
}

// `Worker::device_of`, `Tenant::device_by_uuid` at UVM_REGISTER_GPU, `Tenant::has_minor`.
#[test]
fn threat_46_peers_are_cards_of_the_slice() {
    let stage = Stage::new();
    let node = Node::simulated(&stage.socket);
    let client = Client::open(&node).unwrap();
    let second = client.devices().unwrap().remove(1);
    let id: String = second.uuid.iter().map(|b| format!("{b:02x}")).collect();
    assert_held(&stage.play(&["threat_46", &id]));
}

// The ledger goes by what the kernel says is gone, not by who closes it.
#[test]
fn threat_47_a_childs_close_frees_nothing_of_the_parents() {
    assert_held(&Stage::new().play(&["threat_47"]));
}
