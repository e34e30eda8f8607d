//! `gpuslice ps`: the slices that live on this node.

use std::ffi::CStr;
use std::path::Path;
use std::sync::atomic::Ordering;

use guard::registry::{Entry, Registry};
use guard::share::board::{self, SENSORS};
use guard::share::scheduler::STATES;
use guard::unknown::{Counts, Unknown};
use policy::units::Bytes;
use serde::Serialize;

use crate::{Failure, human, say, sim};

/// The names are stable: programs read them.
#[derive(Debug, Serialize)]
struct Slice {
    name: String,
    /// The `gpuslice run` process.
    pid: i32,
    user: String,
    uid: u32,
    /// Its part of a card's time against the others' weights.
    weight: u32,
    /// The most it may have of a card's time, in percent.
    cap_percent: Option<f64>,
    gpus: Vec<Quota>,
    /// Calls that this version does not know and refused.
    unknown_calls: Vec<UnknownCall>,
    command: String,
}

/// A call that this version does not know.
#[derive(Debug, Serialize)]
pub struct UnknownCall {
    /// `ioctl`, `uvm`, `class` or `control`.
    kind: &'static str,
    /// In hexadecimal.
    number: String,
    count: u64,
}

impl UnknownCall {
    /// Those of some slices.
    pub fn list(counts: &Counts) -> Vec<UnknownCall> {
        let call = |&(what, count): &(Unknown, u64)| UnknownCall {
            kind: what.kind(),
            number: format!("{:#x}", what.number()),
            count,
        };
        counts.iter().map(call).collect()
    }
}

#[derive(Debug, Serialize)]
struct Quota {
    uuid: String,
    memory_bytes: u64,
    channels: u32,
    /// Where nobody divides the card's time there is none.
    time: Option<Time>,
}

/// A slice's part of a card's time, as the node's scheduler said last.
#[derive(Clone, Debug, Serialize)]
struct Time {
    /// What it is entitled to while the others want the card as they did lately, in percent.
    granted_percent: f64,
    /// What it had over the last second, in percent, switches to it counted.
    measured_percent: f64,
    /// `idle`, `running`, `debt` (it overdrew and waits), `capped`, `paused`.
    state: &'static str,
    /// How it was measured: `timeline`, `sampled`, or `none`.
    sensor: &'static str,
    /// Standard error of what was measured over one second, in percent of the card; null where it was not sampled.
    standard_error_percent: Option<f64>,
}

/// Prints the slices of this node (or of the simulated one).
///
/// # Errors
/// The registry cannot be read.
pub fn run(asked_sim: Option<&str>, json: bool) -> Result<u8, Failure> {
    let registry = match sim::asked(asked_sim) {
        Some(socket) => sim::registry_of(&socket)?,
        None => Registry::of_machine()?,
    };
    let shares = Shares::of(&registry);
    let tenants = registry.tenants()?.into_iter();
    let slices: Vec<Slice> = tenants.map(|entry| slice(entry, &shares)).collect();
    let text = if json {
        serde_json::to_string(&slices)? + "\n"
    } else {
        table(&slices)
    };
    say::print(text.as_bytes())?;
    Ok(0)
}

/// What the node's scheduler says.
struct Shares<'a> {
    folder: &'a Path,
    /// While somebody schedules: how who ran is measured.
    sensor: Option<&'static str>,
    /// Of a sensor that samples, over a second.
    error_ppm: u32,
}

impl Shares<'_> {
    fn of(registry: &Registry) -> Shares<'_> {
        let folder = registry.folder();
        let node = board::node_file(folder).and_then(|file| board::map_node(&file));
        // A registry without that file has no scheduler either.
        let node = node.ok().filter(|node| node.silent_us().is_some());
        let sensor = (node.as_ref()).map(|node| node.sensor.load(Ordering::Acquire) as usize);
        let error_ppm = node.map_or(0, |node| node.error_ppm.load(Ordering::Acquire));
        Shares {
            folder,
            error_ppm,
            sensor: sensor.map(|at| SENSORS.get(at).copied().unwrap_or("none")),
        }
    }

    /// Weight and cap of a slice, and its time on each of its cards.
    fn of_slice(&self, name: &str, cards: usize) -> (u32, Option<f64>, Vec<Option<Time>>) {
        let board = board::board_file(self.folder, name).and_then(|file| board::map_board(&file));
        let Ok(board) = board else {
            return (0, None, vec![None; cards]);
        };
        let cap = board.cap.load(Ordering::Acquire);
        let percent = |ppm: u32| f64::from(ppm / 1_000) / 10.0;
        let time = |said: &board::CardState| {
            let state = STATES.get(said.state.load(Ordering::Acquire) as usize)?;
            Some(Time {
                granted_percent: percent(said.granted_ppm.load(Ordering::Acquire)),
                measured_percent: percent(said.measured_ppm.load(Ordering::Acquire)),
                state,
                sensor: self.sensor?,
                standard_error_percent: (self.error_ppm != 0).then(|| percent(self.error_ppm)),
            })
            .filter(|time| !time.state.is_empty())
        };
        let times = board.cards.iter().take(cards).map(time).collect();
        let cap = (cap != 0).then(|| f64::from(cap) / 100.0);
        (board.weight.load(Ordering::Acquire), cap, times)
    }
}

fn slice(e: Entry, shares: &Shares<'_>) -> Slice {
    let (weight, cap_percent, times) = shares.of_slice(&e.name, e.memory.len());
    let channels = |uuid: &str| {
        let found = e.channels.iter().find(|(on, _)| on == uuid);
        found.map_or(0, |(_, channels)| *channels)
    };
    Slice {
        name: e.name,
        pid: e.pid,
        user: user_name(e.uid),
        uid: e.uid,
        weight,
        cap_percent,
        gpus: e
            .memory
            .into_iter()
            .zip(times)
            .map(|((uuid, memory_bytes), time)| Quota {
                channels: channels(&uuid),
                time,
                uuid,
                memory_bytes,
            })
            .collect(),
        unknown_calls: UnknownCall::list(&e.unknown),
        command: e.command,
    }
}

fn user_name(uid: u32) -> String {
    // SAFETY: getpwuid takes an integer; its result is copied out before any other call of the library.
    let found = unsafe { libc::getpwuid(uid).as_ref() };
    match found {
        // SAFETY: pw_name of a found entry is a terminated string.
        Some(p) => unsafe { CStr::from_ptr(p.pw_name) }
            .to_string_lossy()
            .into_owned(),
        None => uid.to_string(),
    }
}

fn table(slices: &[Slice]) -> String {
    let mut rows = vec![
        [
            "NAME", "PID", "USER", "GPU", "MEMORY", "WEIGHT", "GRANTED", "HAD", "STATE", "SENSOR",
            "UNKNOWN", "COMMAND",
        ]
        .map(String::from),
    ];
    for s in slices {
        let unknown: u64 = s.unknown_calls.iter().map(|u| u.count).sum();
        let weight = match s.cap_percent {
            Some(cap) => format!("{}, cap {cap}%", s.weight),
            None => s.weight.to_string(),
        };
        for (i, q) in s.gpus.iter().enumerate() {
            let first = |text: String| if i == 0 { text } else { String::new() };
            let of_time = |told: &dyn Fn(&Time) -> String| q.time.as_ref().map_or("-".into(), told);
            rows.push([
                first(s.name.clone()),
                first(s.pid.to_string()),
                first(s.user.clone()),
                short(&q.uuid),
                human(Bytes(q.memory_bytes)),
                first(weight.clone()),
                of_time(&|t| format!("{:.1}%", t.granted_percent)),
                of_time(&|t| format!("{:.1}%", t.measured_percent)),
                of_time(&|t| t.state.into()),
                of_time(&|t| t.sensor.into()),
                first(unknown.to_string()),
                first(printable(&s.command)),
            ]);
        }
    }
    let width = |column: usize| {
        rows.iter()
            .map(|r| r[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..11).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        for (cell, &w) in row.iter().zip(&widths) {
            text += &format!("{cell:w$}  ");
        }
        text += &row[11];
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// The beginning of a card's UUID tells it from the node's others.
fn short(uuid: &str) -> String {
    uuid.chars().take(12).collect()
}

/// A command line is another user's text: it may not steer a terminal.
fn printable(command: &str) -> String {
    command
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_on_two_gpus_is_two_lines_with_one_name() {
        let quota = |uuid: &str| Quota {
            uuid: uuid.into(),
            memory_bytes: 3 << 29,
            channels: 60,
            time: (uuid == "GPU-1").then_some(Time {
                granted_percent: 25.0,
                measured_percent: 24.9,
                state: "running",
                sensor: "timeline",
                standard_error_percent: None,
            }),
        };
        let text = table(&[Slice {
            name: "a".into(),
            pid: 7,
            user: "u".into(),
            uid: 1,
            weight: 25,
            cap_percent: Some(12.5),
            gpus: vec![quota("GPU-1"), quota("GPU-2")],
            unknown_calls: UnknownCall::list(&vec![
                (Unknown::Class(0xdead), 2),
                (Unknown::Control(1), 1),
            ]),
            command: "sh -c \x1b[2J".into(),
        }]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>()[..5],
            ["a", "7", "u", "GPU-1", "1.50"]
        );
        let behind = " GiB  25, cap 12.5%  25.0%    24.9%  running  timeline  3        sh -c ?[2J";
        assert!(lines[1].ends_with(behind), "{text}");
        assert_eq!(
            lines[2].split_whitespace().collect::<Vec<_>>(),
            ["GPU-2", "1.50", "GiB", "-", "-", "-", "-"]
        );
    }
}
