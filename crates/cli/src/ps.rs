//! `gpuslice ps`: the slices that live on this node.

use std::ffi::CStr;

use guard::registry::{Entry, Registry};
use guard::share::board;
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
    gpus: Vec<Quota>,
    /// By what the node's scheduler tells who ran, and how far that is right; null where nothing is divided, or this user
    /// may not ask.
    sensor: Option<String>,
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
    let slices: Vec<Slice> = registry.tenants()?.into_iter().map(slice).collect();
    let sensor = board::sensor_in_use(registry.folder());
    let slices: Vec<Slice> = slices
        .into_iter()
        .map(|slice| Slice {
            sensor: sensor.clone(),
            ..slice
        })
        .collect();
    let text = if json {
        serde_json::to_string(&slices)? + "\n"
    } else {
        table(&slices)
    };
    say::print(text.as_bytes())?;
    Ok(0)
}

fn slice(e: Entry) -> Slice {
    let channels = |uuid: &str| {
        let found = e.channels.iter().find(|(on, _)| on == uuid);
        found.map_or(0, |(_, channels)| *channels)
    };
    Slice {
        name: e.name,
        pid: e.pid,
        user: user_name(e.uid),
        uid: e.uid,
        gpus: e
            .memory
            .into_iter()
            .map(|(uuid, memory_bytes)| Quota {
                channels: channels(&uuid),
                uuid,
                memory_bytes,
            })
            .collect(),
        sensor: None,
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
    let mut rows =
        vec![["NAME", "PID", "USER", "GPU", "MEMORY", "UNKNOWN", "COMMAND"].map(String::from)];
    for s in slices {
        let unknown: u64 = s.unknown_calls.iter().map(|u| u.count).sum();
        for (i, q) in s.gpus.iter().enumerate() {
            let first = |text: String| if i == 0 { text } else { String::new() };
            rows.push([
                first(s.name.clone()),
                first(s.pid.to_string()),
                first(s.user.clone()),
                q.uuid.clone(),
                human(Bytes(q.memory_bytes)),
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
    let widths: Vec<usize> = (0..6).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        for (cell, &w) in row.iter().zip(&widths) {
            text += &format!("{cell:w$}  ");
        }
        text += &row[6];
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
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
        };
        let text = table(&[Slice {
            name: "a".into(),
            pid: 7,
            user: "u".into(),
            uid: 1,
            gpus: vec![quota("GPU-1"), quota("GPU-2")],
            sensor: None,
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
        assert!(lines[1].ends_with(" GiB  3        sh -c ?[2J"), "{text}");
        assert_eq!(
            lines[2].split_whitespace().collect::<Vec<_>>(),
            ["GPU-2", "1.50", "GiB"]
        );
    }
}
