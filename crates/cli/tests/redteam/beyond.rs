//! Attacks beyond the threat list.

use std::time::{Duration, Instant};

use crate::stage::{Stage, assert_held, children_of, helper_of};

fn number(name: &str, otherwise: u64) -> String {
    let said = std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    said.unwrap_or(otherwise).to_string()
}

fn attack(words: &[&str]) {
    assert_held(&Stage::new().play(words));
}

// `Block::load`: parameters are copied once, decided and executed on the copy.
#[test]
fn redteam_parameters_that_others_change_are_charged_as_they_are_executed() {
    let time = number("GPUSLICE_RACE_MILLISECONDS", 2000);
    attack(&["beyond_shared_parameters", &time]);
}

// Policy: `Ledger::place`; the driver's answer comes before the ledger's entry.
#[test]
fn redteam_taken_handles_and_freed_sources_change_no_account() {
    attack(&["beyond_handles"]);
}

// `Files::enter` tells open files apart, not paths.
#[test]
fn redteam_a_file_opened_again_or_closed_by_range_is_counted() {
    attack(&["beyond_reopened"]);
}

// `filter::mmap_rules`: both types of a shared mapping.
#[test]
fn redteam_map_shared_validate_is_charged() {
    attack(&["beyond_validated"]);
}

// The filter goes with every process and thread, and the newest filter does not weaken it (seccomp(2)).
#[test]
fn redteam_no_namespace_root_or_filter_of_ones_own_leads_out() {
    attack(&["beyond_elsewhere"]);
}

// `Run::helper_gone`; what the helper ignores it goes on serving through.
#[test]
fn redteam_a_signal_to_the_helper_ends_the_tenant_or_nothing() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGSEGV] {
        let played = Stage::new().play(&["beyond_signal_helper", &signal.to_string()]);
        if played.findings.is_empty() {
            let code = played.status.and_then(|status| status.code());
            assert_eq!(code, Some(125), "signal {signal}: {}", played.errors);
        } else {
            assert_held(&played);
        }
    }
}

// No entry of the ledger, no descriptor and no buffer outlives what it was made for.
#[test]
fn redteam_alloc_and_free_leave_no_drift() {
    let rounds = number("GPUSLICE_CYCLES", 5000);
    let played = Stage::new().play_for(Duration::from_secs(3600), &["beyond_cycles", &rounds]);
    println!("{}", assert_held(&played).note);
}

// The driver clears memory before it is another's; nothing in between keeps any of it (`Block`, `Worker`).
#[test]
fn redteam_fresh_memory_holds_nothing_of_a_neighbour_who_ended_or_was_killed() {
    for kill in [false, true] {
        let stage = Stage::new();
        let program = stage.start("writer", &["beyond_writer"]);
        let until = Instant::now() + Duration::from_secs(20);
        assert_eq!(program.line(until).as_deref(), Some("held"));
        if kill {
            let command = children_of(helper_of(program.pid()).unwrap())[0];
            guard::sys::kill(command as i32, libc::SIGKILL).unwrap();
        }
        program.stop();
        assert_held(&stage.play(&["beyond_residue"]));
    }
}
