//! What runs inside slices: one program for each wall, each trying to get more than its tenant was given.
//!
//! Each measures what it got and says what a standing wall gives. With the wall taken away it measures a failure.

mod attacks;
mod attacks_races;
mod beyond;
mod bursts;
mod card;
mod compute;
mod cuda;
mod fill;
mod fuzz;
mod hoarders;
mod honest;
mod kernels;
mod killer;
mod memory;
mod neighbour;
mod outsiders;
mod race;
mod replay;
mod shapes;
mod signals;
mod soon;
mod spaces;
mod threats;
mod threats_foreign;
mod threats_helper;
mod threats_programs;
mod visible;

use std::fmt::Display;

use serde_json::Value;

use crate::outside::{Finding, Line, Told, ask, print};
use crate::raw::Node;

/// What a program is started with.
pub struct Context {
    /// The node, as the environment names it.
    pub node: Node,
    /// The tenant's quota on each device, in bytes.
    pub quota: u64,
    /// Further words.
    pub words: Vec<String>,
}

impl Context {
    /// What the driver itself says that this tenant holds, by device, in bytes; `None`: nobody is there to ask it.
    pub fn driver_memory(&self) -> Option<Vec<u64>> {
        // The helper makes this tenant's calls, so it is who the driver sees; the helper is the command's parent.
        // SAFETY: getppid takes nothing and cannot fail.
        let helper = unsafe { libc::getppid() };
        self.driver_memory_of(helper as u32)
    }

    /// As [`Context::driver_memory`] in a process that is not the slice's first.
    pub fn driver_memory_of(&self, helper: u32) -> Option<Vec<u64>> {
        match ask(&Line::AskMemory(helper)) {
            Some(Told::Memory(bytes)) => Some(bytes),
            _ => None,
        }
    }

    fn word(&self, at: usize) -> Result<&str, String> {
        self.words
            .get(at)
            .map(String::as_str)
            .ok_or_else(|| format!("word {} is missing", at + 1))
    }
}

/// What a program ends with.
type Outcome = Result<Finding, Box<dyn std::error::Error>>;

/// A finding of one number of bytes, equal to what is expected where the wall held, and a further condition.
fn bytes(measured: u64, expected: u64, and: bool, note: impl Display) -> Finding {
    Finding {
        name: String::new(),
        held: measured == expected && and,
        measured: Value::from(measured),
        expected: Value::from(expected),
        note: note.to_string(),
    }
}

type Entry = (&'static str, fn(&Context) -> Outcome);

/// The programs of the walls, under the walls' names; the others by what they are.
const PROGRAMS: &[Entry] = &[
    ("honest", honest::honest),
    ("quota_exact", memory::quota_exact),
    ("visible_limit", visible::visible_limit),
    ("visible_regions", visible::regions),
    ("race_no_overshoot", race::race_no_overshoot),
    ("alias_counted_once", memory::alias_counted_once),
    ("managed_charged", memory::managed_charged),
    ("mapping_outlives_free", memory::mapping_outlives_free),
    ("size_rounding", memory::size_rounding),
    ("release_by_ancestor", memory::release_by_ancestor),
    ("per_device_quota", memory::per_device_quota),
    ("foreign_detach_refused", neighbour::foreign_detach_refused),
    (
        "env_unset_still_limited",
        outsiders::env_unset_still_limited,
    ),
    ("static_binary_limited", outsiders::static_binary_limited),
    (
        "signals_no_double_charge",
        signals::signals_no_double_charge,
    ),
    ("spinner", neighbour::spinner),
    ("threat_01", threats::threat_01),
    ("threat_02", threats::threat_02),
    ("threat_03", threats::threat_03),
    ("threat_04", threats_foreign::threat_04),
    ("threat_05", threats::threat_05),
    ("threat_06", threats::threat_06),
    ("threat_08", threats::threat_08),
    ("threat_09", threats::threat_09),
    ("threat_11", threats::threat_11),
    ("threat_12", threats_foreign::threat_12),
    ("threat_14", threats_foreign::threat_14),
    ("threat_15", threats_foreign::threat_15),
    ("threat_10", threats_helper::threat_10),
    ("threat_21", threats_helper::threat_21),
    ("threat_22", threats_helper::threat_22),
    ("threat_23", threats_helper::threat_23),
    ("threat_24", threats_helper::threat_24),
    ("threat_25", threats_helper::threat_25),
    ("threat_29", threats_helper::threat_29),
    ("threat_30", threats_helper::threat_30),
    ("threat_44", threats_helper::threat_44),
    ("threat_13", threats_programs::threat_13),
    ("threat_16", threats_programs::threat_16),
    ("threat_17", threats_programs::threat_17),
    ("threat_18", threats_programs::threat_18),
    ("threat_19", threats_programs::threat_19),
    ("threat_20", threats_programs::threat_20),
    ("threat_42", threats_programs::threat_42),
    ("threat_43", threats_programs::threat_43),
    ("threat_45", threats_programs::threat_45),
    ("threat_46", threats_programs::threat_46),
    ("threat_47", threats_programs::threat_47),
    ("shape_fork", shapes::fork),
    ("shape_vfork_exec", shapes::vfork_exec),
    ("shape_exec", shapes::exec),
    ("shape_threads", shapes::threads),
    ("shape_own_table", shapes::own_table),
    ("shape_exit", shapes::exit),
    ("shape_kill", shapes::kill),
    ("shape_dup", shapes::dup),
    ("shape_scm_rights", shapes::scm_rights),
    ("shape_leader_exit", shapes::leader_exit),
    ("attack_hidden_holder", attacks::hidden_holder),
    ("attack_leader_exit_managed", attacks::leader_exit_managed),
    ("attack_pool_covers_nothing", attacks::pool_covers_nothing),
    ("attack_client_handle_again", attacks::client_handle_again),
    ("attack_numbers_without_size", attacks::numbers_without_size),
    ("attack_no_descriptors_left", attacks::no_descriptors_left),
    ("attack_refused_export", attacks::refused_export),
    ("attack_freed_range", attacks::freed_range),
    ("hoarder", hoarders::hoarder),
    ("events_of_nobody", hoarders::events_of_nobody),
    ("changing_parent", hoarders::changing_parent),
    ("changing_client", hoarders::changing_client),
    ("attack_shared_space", spaces::outlives_exit),
    ("attack_shared_space_exec", spaces::outlives_exec),
    ("attack_shared_space_more", spaces::outlives_more),
    ("maps_again", spaces::maps_again),
    ("flooder", hoarders::flooder),
    ("stalled", hoarders::stalled),
    ("blocking", hoarders::blocking),
    ("attack_fork_managed", attacks_races::fork_managed),
    (
        "attack_fork_replaces_managed",
        attacks_races::fork_replaces_managed,
    ),
    (
        "attack_killed_while_mapping",
        attacks_races::killed_while_mapping,
    ),
    ("attack_handle_changes", attacks_races::handle_changes),
    ("beyond_shared_parameters", beyond::shared_parameters),
    ("beyond_handles", beyond::handles),
    ("beyond_reopened", beyond::reopened),
    ("beyond_validated", beyond::validated),
    ("beyond_elsewhere", beyond::elsewhere),
    ("beyond_signal_helper", beyond::signal_helper),
    ("beyond_cycles", beyond::cycles),
    ("beyond_writer", beyond::writer),
    ("beyond_residue", beyond::residue),
    ("card_observer", card::observer),
    ("card_exporter", card::exporter),
    ("card_flags", card::flags),
    ("card_class", card::class_race),
    ("card_facts", card::facts),
    ("killer", killer::killer),
    ("step_target", killer::step_target),
    ("hold", shapes::hold),
    ("sentinel", neighbour::sentinel),
    ("fuzz", fuzz::fuzz),
    ("replay", replay::replay),
    ("spin", compute::spin),
    ("copier", compute::copier),
    ("rotate", compute::rotate),
    ("wfi", compute::wfi),
    ("restarter", compute::restarter),
    ("slice_thief", compute::slice_thief),
    ("soon", soon::soon),
    ("device_channel", compute::device_channel),
    ("newborn", bursts::newborn),
    ("burster", bursts::burster),
];

/// Runs a program: its name, the quota in bytes, further words. Returns the exit status.
pub fn run(name: &str, words: &[String]) -> u8 {
    let Some((_, program)) = PROGRAMS.iter().find(|(n, _)| *n == name) else {
        eprintln!("no such program: {name}");
        return 1;
    };
    let Some(quota) = words.first().and_then(|w| w.parse().ok()) else {
        eprintln!("{name}: the quota in bytes is missing");
        return 1;
    };
    let context = Context {
        node: Node::from_environment(),
        quota,
        words: words[1..].to_vec(),
    };
    match program(&context) {
        Ok(finding) => {
            print(&Line::Finding(Finding {
                name: name.into(),
                ..finding
            }));
            0
        }
        Err(e) => {
            eprintln!("{name}: {e}");
            1
        }
    }
}
