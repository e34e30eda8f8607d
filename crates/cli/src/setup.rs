//! `gpuslice setup`: locks the driver's device files to all but slices, and shows whether they are.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use guard::device_wall::{Found, Place, Site};
use guard::sys;
use serde::Serialize;

use crate::args::SetupOptions;
use crate::{Failure, say};

/// The names are stable: programs read them.
#[derive(Debug, Serialize)]
struct Report {
    device_files: State,
    /// Major numbers that are locked.
    majors: Vec<u32>,
    /// Whether an open device that a slice hands to a program outside is stopped too.
    handing_on_locked: bool,
    /// Why not, where `--lock-devices` tried.
    handing_on_obstacle: Option<String>,
    /// Why the node cannot be locked by whoever asks; null where it can, or is.
    obstacle: Option<String>,
    /// Processes outside of slices that opened a device before the lock.
    holders: Vec<Holder>,
    /// What `--check` tried.
    check: Option<Check>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Open,
    Locked,
    /// Locked, and this user may not look closer.
    LockedToUs,
}

#[derive(Debug, Serialize)]
struct Holder {
    pid: i32,
    command: String,
}

#[derive(Debug, Serialize)]
struct Check {
    device: String,
    /// How an open outside of slices ended: `refused`, `opened` or an error.
    outside: String,
    /// How an open inside a slice's control group ended.
    inside: String,
    /// What became of an open device that was sent out of the slice: `refused`, `arrived`, or `not sent`.
    handed_out: String,
    held: bool,
}

/// Locks, unlocks, tries, and prints what is so then. 1: a check failed.
///
/// # Errors
/// One line: why it could not be done.
pub fn run(options: &SetupOptions) -> Result<u8, Failure> {
    let site = Site::new(options.device.as_deref());
    let mut handing_on_obstacle = None;
    if options.lock_devices {
        let (_, refused) = site
            .lock()
            .map_err(|e| format!("--lock-devices: the device files cannot be locked: {e}"))?;
        handing_on_obstacle = refused.map(|e| e.to_string());
    }
    if options.unlock_devices {
        if sys::uids().1 != 0 {
            return Err("--unlock-devices needs root: run with sudo".into());
        }
        site.unlock()?;
    }
    let check = options.check.then(|| check(&site)).transpose()?;
    let failed = check.as_ref().is_some_and(|c| !c.held);
    let mut report = report(&site, check)?;
    report.handing_on_obstacle = handing_on_obstacle;
    let text = if options.json {
        serde_json::to_string(&report)? + "\n"
    } else {
        lines(&report)
    };
    say::print(text.as_bytes())?;
    Ok(u8::from(failed))
}

fn report(site: &Site, check: Option<Check>) -> Result<Report, Failure> {
    let mut report = Report {
        device_files: State::Open,
        majors: Vec::new(),
        handing_on_locked: false,
        handing_on_obstacle: None,
        obstacle: None,
        holders: Vec::new(),
        check,
    };
    match site.find()? {
        Found::Open => report.obstacle = site.obstacle(),
        Found::LockedToUs => report.device_files = State::LockedToUs,
        Found::Locked(wall) => {
            report.device_files = State::Locked;
            report.majors = wall.majors()?;
            report.handing_on_locked = wall.handing_on();
            report.holders = site
                .holders(&wall)?
                .into_iter()
                .map(|h| Holder {
                    pid: h.pid,
                    command: h.command,
                })
                .collect();
        }
    }
    Ok(report)
}

/// The wall's second half is missing.
const HANDED_ON: &str = "open device files: a slice can hand one to a program outside, since this kernel does not take the program against it";

fn lines(report: &Report) -> String {
    let mut text = match (report.device_files, &report.obstacle) {
        (State::Open, None) => {
            "device files: not locked: whoever may open them can bypass this node; `gpuslice setup --lock-devices` locks them\n".into()
        }
        (State::Open, Some(why)) => format!("device files: not locked, and cannot be: {why}\n"),
        (State::LockedToUs, _) => "device files: locked to the slices that root starts\n".into(),
        (State::Locked, _) => {
            let majors: Vec<String> = report.majors.iter().map(u32::to_string).collect();
            format!(
                "device files: locked to slices until the node is restarted (major numbers {})\n",
                majors.join(", ")
            )
        }
    };
    if report.device_files == State::Locked {
        text += &match (report.handing_on_locked, &report.handing_on_obstacle) {
            (true, _) => "open device files: no program outside of slices can receive one\n".into(),
            (false, None) => HANDED_ON.to_owned() + "\n",
            (false, Some(why)) => format!("{HANDED_ON}: {why}\n"),
        };
    }
    for h in &report.holders {
        text += &format!(
            "process {} ({}) opened a device before and is in no slice: end it\n",
            h.pid, h.command
        );
    }
    if let Some(check) = &report.check {
        text += &format!(
            "check: {} outside of slices: {}; inside of one: {}; handed out: {}: {}\n",
            check.device,
            check.outside,
            check.inside,
            check.handed_out,
            if check.held { "held" } else { "FAILED" }
        );
    }
    text
}

/// What an attempt to open a device came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opened {
    Yes,
    Refused,
    /// Another error, by its number.
    Failed(i32),
}

impl Opened {
    fn words(self) -> String {
        match self {
            Opened::Yes => "opened".into(),
            Opened::Refused => "refused".into(),
            Opened::Failed(e) => io::Error::from_raw_os_error(e).to_string(),
        }
    }

    fn code(self) -> i32 {
        match self {
            Opened::Yes => 0,
            Opened::Refused => libc::EPERM,
            Opened::Failed(e) => e,
        }
    }

    fn from_code(code: i32) -> Opened {
        match code {
            0 => Opened::Yes,
            libc::EPERM => Opened::Refused,
            e => Opened::Failed(e),
        }
    }
}

fn open(path: &Path) -> (Opened, Option<File>) {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => (Opened::Yes, Some(file)),
        Err(e) => (Opened::from_code(number(&e)), None),
    }
}

fn number(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

/// Opens a device file as this process, and in a child that enters the control group of a slice and hands it out.
fn check(site: &Site) -> Result<Check, Failure> {
    let Found::Locked(wall) = site.find()? else {
        return Err("--check: the device files are not locked to slices, or not by this user's authority: use `gpuslice setup --lock-devices --check` as root".into());
    };
    let path = site.sample();
    let handing_on = wall.handing_on();
    let (outside, _) = open(path);
    let (ours, theirs) = sys::socket_pair()?;
    let Some(child) = sys::fork()? else {
        drop(ours);
        // The place is left before this process ends.
        let told = match Place::within(wall) {
            Ok(_place) => {
                let (opened, file) = open(path);
                let told = tell(&theirs, opened.code(), None);
                told.and_then(|()| tell(&theirs, opened.code(), file.as_ref()))
            }
            Err(e) => tell(&theirs, number(&e), None),
        };
        std::process::exit(i32::from(told.is_err()))
    };
    drop(theirs);
    let mut answer = [0u8; 4];
    let heard = sys::receive_message(ours.as_fd(), &mut answer);
    let handed = sys::receive_message(ours.as_fd(), &mut [0u8; 4]);
    sys::wait_for(child)?;
    let inside = match heard?.0 {
        4 => Opened::from_code(i32::from_le_bytes(answer)),
        _ => return Err("--check: the child that was to open the device died".into()),
    };
    // A descriptor that may not be received is left out of the message.
    let arrived = matches!(handed, Ok((_, Some(_))));
    let handed_out = match inside {
        Opened::Yes if arrived => "arrived",
        Opened::Yes => "refused",
        _ => "not sent",
    };
    Ok(Check {
        device: path.display().to_string(),
        outside: outside.words(),
        inside: inside.words(),
        handed_out: handed_out.into(),
        held: outside == Opened::Refused && inside == Opened::Yes && !(handing_on && arrived),
    })
}

fn tell(to: &OwnedFd, code: i32, file: Option<&File>) -> io::Result<()> {
    sys::send_message(to.as_fd(), &code.to_le_bytes(), file.map(File::as_fd))
}
