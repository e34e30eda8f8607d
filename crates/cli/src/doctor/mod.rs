//! `gpuslice doctor`: which isolation this node has, and why not.

mod devices;
mod kernel;
mod shares;
mod slices;

use std::fs;

use guard::backend::Backend;
use guard::registry::{Entry, Registry};
use guard::rmcall::{Gpu, OwnClient};
use guard::sys;
use guard::unknown::Counts;
use policy::units::Bytes;
use serde::Serialize;

use crate::args::NodeOptions;
use crate::ps::UnknownCall;
use crate::{Failure, backend, human, say, sim};

/// What one check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Fine,
    /// Works, but not as well as it could.
    Weak,
    /// `run` does not work without it.
    Missing,
    /// Not in this version.
    Absent,
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    name: String,
    state: State,
    found: String,
    /// What to do about it; empty where nothing is to be done.
    advice: String,
}

impl Check {
    fn new(state: State, name: &str, found: &str, advice: &str) -> Check {
        Check {
            name: name.into(),
            state,
            found: found.into(),
            advice: advice.into(),
        }
    }

    fn fine(name: &str, found: &str) -> Check {
        Check::new(State::Fine, name, found, "")
    }

    fn weak(name: &str, found: &str, advice: &str) -> Check {
        Check::new(State::Weak, name, found, advice)
    }

    fn missing(name: &str, found: &str, advice: &str) -> Check {
        Check::new(State::Missing, name, found, advice)
    }

    fn absent(name: &str, found: &str) -> Check {
        Check::new(State::Absent, name, found, "")
    }
}

/// A card and who has how much of it.
#[derive(Debug, Serialize)]
struct Card {
    index: u32,
    uuid: String,
    name: String,
    memory_bytes: u64,
    granted_bytes: u64,
    slices: Vec<String>,
}

/// The names are stable: programs read them.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether `gpuslice run` would work here, as whoever asks.
    run_works: bool,
    /// Whether slices are walls between users here, or only between a user's own programs.
    root: bool,
    checks: Vec<Check>,
    gpus: Vec<Card>,
    /// Whether the time of each card can be divided by slices; only where that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    shares: Option<Vec<slices::Tried>>,
    /// Calls that this version does not know and refused, in slices that live or have ended.
    unknown_calls: Vec<UnknownCall>,
}

/// Prints the report; 0 if `run` would work, and shares hold if that was asked.
///
/// # Errors
/// The simulated node that was asked for cannot be had.
pub fn run(options: &NodeOptions) -> Result<u8, Failure> {
    let (asked_sim, device) = (options.sim.as_deref(), options.device.as_deref());
    // Where the devices are locked to slices, this process is in the group of one from here on.
    let mut _place = None;
    // Before anything else: these fork, and a fork wants one thread and nothing open.
    let mut checks = kernel::checks();
    let node = sim::asked(asked_sim)
        .map(|asked| sim::Node::get(&asked))
        .transpose()?;
    let mut gpus = Vec::new();
    let mut driver_version = "unknown".to_owned();
    match backend::open(node.as_ref().map(sim::Node::socket)) {
        Ok(driver) => {
            let branch = branch(driver.as_ref());
            let known = branch.state != State::Missing;
            checks.push(branch);
            if let Ok(version) = driver.driver_version() {
                driver_version = version;
            }
            if node.is_none() || device.is_some() {
                let (check, place) = devices::check(device);
                checks.push(check);
                _place = place;
            }
            if node.is_none() {
                checks.extend(fs::read_to_string(DRIVER_VERSION_FILE).map(|text| module(&text)));
                checks.extend(heterogeneous_memory());
            }
            match OwnClient::open(driver) {
                // How to ask it is not known.
                _ if !known => {}
                Ok(own) => {
                    checks.push(cards(own.gpus()));
                    gpus = own.gpus().to_vec();
                    checks.push(shares::sensor(own, sys::uids().1 == 0));
                }
                Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {
                    let advice = "use another card, or another release of the driver";
                    checks.push(Check::missing("GPUs", &e.to_string(), advice));
                }
                Err(e) => checks.push(Check::missing(
                    "GPUs",
                    &format!("the driver refuses us: {e}"),
                    "may this user open the device files?",
                )),
            }
        }
        Err(e) => {
            let advice = "install NVIDIA's driver; without a GPU, try --sim 1xH200";
            checks.push(Check::missing("driver", &e.to_string(), advice));
        }
    }
    let registry = match &node {
        Some(node) => node.registry(),
        None => Registry::of_machine(),
    };
    let folder = registry.as_ref().ok().map(|r| r.folder().to_owned());
    if let Ok(registry) = &registry {
        checks.push(shares::scheduler(registry));
    }
    let asked = registry.and_then(|r| Ok((r.tenants()?, r.unknown_calls()?)));
    let (tenants, unknown) = match asked {
        Ok(answers) => answers,
        Err(e) => {
            checks.push(Check::missing(
                "registry",
                &e.to_string(),
                "see the message",
            ));
            Default::default()
        }
    };
    checks.push(unknown_calls(&unknown, &driver_version));
    let root = sys::uids().1 == 0;
    checks.extend(isolation(root, &checks));
    let run_works = checks.iter().all(|c| c.state != State::Missing);
    let mut tried = None;
    match folder {
        Some(folder) if options.shares && run_works => {
            let socket = node.as_ref().map(sim::Node::socket);
            let on = |gpu: &Gpu| slices::try_on(gpu, &folder, socket, &tenants);
            let all: Vec<slices::Tried> = gpus.iter().map(on).collect();
            checks.extend(all.iter().map(slices::Tried::check));
            tried = Some(all);
        }
        _ => checks.push(slices::not_tried(options.shares)),
    }
    let gpus = gpus.iter().map(|g| granted(g, &tenants)).collect();
    let report = Report {
        run_works,
        root,
        checks,
        gpus,
        shares: tried,
        unknown_calls: UnknownCall::list(&unknown),
    };
    let text = if options.json {
        serde_json::to_string(&report)? + "\n"
    } else {
        table(&report)
    };
    say::print(text.as_bytes())?;
    let shares_hold = match &report.shares {
        Some(tried) => tried.iter().all(slices::Tried::holds),
        None => true,
    };
    Ok(u8::from(!(report.run_works && shares_hold)))
}

fn branch(driver: &dyn Backend) -> Check {
    let version = match driver.driver_version() {
        Ok(version) => version,
        Err(e) => return Check::missing("driver", &e.to_string(), "load NVIDIA's kernel modules"),
    };
    match rm::for_driver(&version) {
        Ok(found) if found.listed => {
            Check::fine("driver", &format!("{version}, checked with this gpuslice"))
        }
        Ok(found) => Check::weak(
            "driver",
            &format!(
                "{version}, a release of branch {} that this gpuslice was not checked with",
                found.abi.branch()
            ),
            "works as its branch does; tell us if a program fails",
        ),
        Err(e) => Check::missing(
            "driver",
            &e.to_string(),
            "use a driver of a known branch, or a newer gpuslice",
        ),
    }
}

/// Where the driver says what it is.
const DRIVER_VERSION_FILE: &str = "/proc/driver/nvidia/version";

/// Which of NVIDIA's two sets of kernel modules is loaded. Their calls are the same; what was measured was the open one.
fn module(version: &str) -> Check {
    const NAME: &str = "kernel module";
    if guard::procfs::is_open_module(version) {
        Check::fine(NAME, "open")
    } else {
        Check::weak(
            NAME,
            "closed: it takes the same calls, and gpuslice has run on the open one only",
            "install the open kernel modules where the card allows it",
        )
    }
}

/// Whether programs that are started without gpuslice can open the driver's files, and so run past any tool.
fn open_to_all(report: &Report) -> bool {
    report
        .checks
        .iter()
        .any(|c| c.name == devices::NAME && c.state == State::Weak)
}

/// With HMM ordinary host memory can move to the card. Every file is opened with it off; the parameter is the second lock.
fn heterogeneous_memory() -> Option<Check> {
    let value = fs::read_to_string("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm").ok()?;
    let found = match value.trim() {
        "Y" => "off for the whole node (uvm_disable_hmm=Y)",
        _ => "off in every slice; the node's parameter uvm_disable_hmm leaves it on outside",
    };
    Some(Check::fine("HMM", found))
}

/// What slices were refused since the tables do not know it, and what to report.
fn unknown_calls(counts: &Counts, driver_version: &str) -> Check {
    const NAME: &str = "unknown calls";
    const SHOWN: usize = 8;
    if counts.is_empty() {
        return Check::fine(NAME, "none refused");
    }
    let mut most = counts.clone();
    most.sort_by_key(|&(what, count)| (std::cmp::Reverse(count), what));
    let mut found: Vec<String> = most
        .iter()
        .take(SHOWN)
        .map(|(what, count)| match what.engine() {
            Some(engine) => format!("{what} ({engine}) x {count}"),
            None => format!("{what} x {count}"),
        })
        .collect();
    if most.len() > SHOWN {
        found.push(format!("{} more (--json)", most.len() - SHOWN));
    }
    Check::weak(
        NAME,
        &format!("refused, driver {driver_version}: {}", found.join(", ")),
        "if a program fails by it, report this line with `gpuslice trace --output FILE -- PROGRAM`, which leaves out addresses, handles and data",
    )
}

fn cards(gpus: &[Gpu]) -> Check {
    match gpus.len() {
        0 => Check::missing(
            "GPUs",
            "the driver shows none",
            "is a card in this node, and given to this container?",
        ),
        1 => Check::fine("GPUs", "1"),
        n => Check::fine("GPUs", &n.to_string()),
    }
}

/// What `--isolation` can be here.
fn isolation(root: bool, found: &[Check]) -> Vec<Check> {
    let guard = match found.iter().find(|c| c.state == State::Missing) {
        Some(first) => Check::missing(
            "isolation guard",
            &format!("does not work without: {}", first.name),
            "see that line",
        ),
        None if root => Check::fine("isolation guard", "memory quotas between users"),
        None => Check::weak(
            "isolation guard",
            "memory quotas for this user's own programs: another program of the user could get round them",
            "as root (sudo) they hold between users",
        ),
    };
    vec![
        guard,
        Check::absent("isolation shim, mps, mig", "not in this version"),
    ]
}

fn granted(gpu: &Gpu, tenants: &[Entry]) -> Card {
    let of = |t: &Entry| {
        t.memory
            .iter()
            .filter(|(uuid, _)| *uuid == gpu.uuid)
            .map(|(_, b)| b)
            .sum::<u64>()
    };
    let here: Vec<&Entry> = tenants.iter().filter(|t| of(t) > 0).collect();
    Card {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        name: gpu.name.clone(),
        memory_bytes: gpu.memory.0,
        granted_bytes: here.iter().map(|t| of(t)).sum(),
        slices: here.iter().map(|t| t.name.clone()).collect(),
    }
}

fn table(report: &Report) -> String {
    let width = report
        .checks
        .iter()
        .map(|c| c.name.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for c in &report.checks {
        let mark = match c.state {
            State::Fine => "ok     ",
            State::Weak => "weak   ",
            State::Missing => "MISSING",
            State::Absent => "-      ",
        };
        text += &format!("{mark}  {:width$}  {}", c.name, c.found);
        if !c.advice.is_empty() {
            text += &format!(" -> {}", c.advice);
        }
        text += "\n";
    }
    for g in &report.gpus {
        text += &format!(
            "GPU {}: {} {}, {}, {} granted",
            g.index,
            g.name,
            g.uuid,
            human(Bytes(g.memory_bytes)),
            human(Bytes(g.granted_bytes))
        );
        text += &if g.slices.is_empty() {
            "\n".into()
        } else {
            format!(" to {}\n", g.slices.join(", "))
        };
    }
    text += match (report.run_works, report.root) {
        (true, true) if open_to_all(report) => {
            "`gpuslice run` works here for what it starts; it is no wall against what is started without it: see \"device files\"\n"
        }
        (true, true) => "`gpuslice run` works here, as a wall between users\n",
        (true, false) => "`gpuslice run` works here, for this user's own programs\n",
        (false, _) => "`gpuslice run` does not work here\n",
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closed_module_is_told_from_the_open_one() {
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n";
        assert_eq!(module(open).state, State::Fine);
        assert_eq!(module(closed).state, State::Weak);
        assert!(module(closed).found.starts_with("closed"));
    }
}
