//! Who can open the driver's device files: whoever can has the whole card without us.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use guard::device_wall::{Found, Place, Site, Wall};
use guard::sys;

use super::Check;

/// Name of the check.
pub const NAME: &str = "device files";

/// Looks whether they are locked to slices, and if so enters the group of one, for what else is to be looked at.
pub fn check(device: Option<&Path>) -> (Check, Option<Place>) {
    let site = Site::new(device);
    match site.find() {
        Ok(Found::Open) => (open(&site), None),
        Ok(Found::LockedToUs) => (
            Check::missing(
                NAME,
                "locked to the slices that root starts",
                "use sudo gpuslice run",
            ),
            None,
        ),
        Ok(Found::Locked(wall)) => {
            let check = locked(&site, &wall);
            match Place::within(wall) {
                Ok(place) => (check, Some(place)),
                Err(e) => (
                    Check::missing(
                        NAME,
                        &format!("locked to slices, and no control group for one can be had: {e}"),
                        "start gpuslice where root can make control groups (cgroup v2)",
                    ),
                    None,
                ),
            }
        }
        Err(e) => (
            Check::missing(
                NAME,
                &format!("whether they are locked cannot be told: {e}"),
                "see the message",
            ),
            None,
        ),
    }
}

fn locked(site: &Site, wall: &Wall) -> Check {
    match site.is_current(wall) {
        Ok(true) => {}
        Ok(false) => {
            return Check::weak(
                NAME,
                "locked to slices by numbers that the driver's modules no longer have",
                "sudo gpuslice setup --lock-devices (the next run as root does it too)",
            );
        }
        Err(e) => return Check::missing(NAME, &e.to_string(), "see the message"),
    }
    match site.holders(wall) {
        Ok(holders) if holders.is_empty() && !wall.handing_on() => Check::weak(
            NAME,
            "locked: only the slices that root starts can open them; but a slice can hand an open one to a program outside",
            "gpuslice setup --lock-devices says why this kernel does not stop that",
        ),
        Ok(holders) if holders.is_empty() => Check::fine(
            NAME,
            "locked: only the slices that root starts can open them",
        ),
        Ok(holders) => {
            let names: Vec<String> = holders
                .iter()
                .map(|h| format!("{} ({})", h.pid, h.command))
                .collect();
            Check::weak(
                NAME,
                &format!(
                    "locked to slices, but held by processes outside of them: {}",
                    names.join(", ")
                ),
                "end them: what they opened before the lock, or were handed, they keep",
            )
        }
        Err(e) => Check::weak(
            NAME,
            &format!("locked to slices; who else holds them cannot be told: {e}"),
            "see the message",
        ),
    }
}

/// No wall: owner and mode say who can open them.
fn open(site: &Site) -> Check {
    let advice = match site.obstacle() {
        _ if sys::uids().1 != 0 => {
            "sudo gpuslice setup --lock-devices lets only slices open them".into()
        }
        None => "gpuslice setup --lock-devices lets only slices open them".into(),
        Some(why) => format!(
            "they cannot be locked here ({why}): let only people you trust log in, and give the others containers without the device files"
        ),
    };
    let modes = match modes() {
        Ok(modes) => modes,
        Err(e) => return Check::missing(NAME, &format!("/dev cannot be read: {e}"), "mount it"),
    };
    if modes.is_empty() {
        return Check::missing(
            NAME,
            "there are none in /dev",
            "make them (nvidia-modprobe), or give them to this container",
        );
    }
    let found: Vec<String> = modes
        .iter()
        .map(|(mode, names)| format!("{} {mode:04o}", names.join(" ")))
        .collect();
    let found = found.join(", ");
    let who = if modes.keys().any(|mode| mode & 0o006 == 0o006) {
        "anyone can bypass this node by starting a program without gpuslice"
    } else {
        "whom their mode lets in can bypass this node by starting a program without gpuslice"
    };
    Check::weak(NAME, &format!("not locked: {found}: {who}"), &advice)
}

/// The device files by their mode.
fn modes() -> std::io::Result<BTreeMap<u32, Vec<String>>> {
    let mut modes: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir("/dev")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let card = name
            .strip_prefix("nvidia")
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        if (card || name == "nvidiactl" || name == "nvidia-uvm")
            && let Ok(meta) = entry.metadata()
        {
            let mode = meta.permissions().mode() & 0o777;
            modes.entry(mode).or_default().push(name);
        }
    }
    modes.values_mut().for_each(|names| names.sort());
    Ok(modes)
}
