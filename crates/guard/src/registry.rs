//! The node's registry: every slice of a node knows of the others, so that quotas on a card never sum above its size.
//!
//! One file a tenant, in a folder of the node. A tenant lives as long as some process (its supervisor, its helper) holds
//! the lock on its file (flock(2)), so a slice whose processes were killed frees its quota by itself. Changes are made
//! under the lock of the folder's own lock file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use policy::admission::{self, Card, Grant};
use policy::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::control;
use crate::rmcall::Gpu;
use crate::share::board::{self, BOARD};
use crate::sys;
use crate::tenant::MOST_UNKNOWN;
use crate::unknown::{self, Counts};

/// Version of the tenants' files.
const VERSION: u32 = 2;
/// First user id of helpers started by root: far above what login tools hand out. One per live tenant.
const FIRST_HELPER_UID: u32 = 2_000_000_000;

/// The file with what slices that have ended met.
const REMEMBERED: &str = "unknown-calls";

/// What a tenant's file holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Version of this layout.
    pub version: u32,
    /// The tenant's name.
    pub name: String,
    /// Its supervisor.
    pub pid: i32,
    /// User as whom its command runs.
    pub uid: u32,
    /// Quota in bytes by device UUID.
    pub memory: Vec<(String, u64)>,
    /// Channels by device UUID.
    pub channels: Vec<(String, u32)>,
    /// The user its helper has, as root.
    pub helper_uid: Option<u32>,
    /// The command, for people.
    pub command: String,
    /// Calls that the tables do not know, as its helper counts them.
    #[serde(skip)]
    pub unknown: Counts,
}

/// The registry of a node.
#[derive(Clone, Debug)]
pub struct Registry {
    folder: PathBuf,
}

/// A granted slice: it lasts while this, or a copy of its descriptor in another process, is open.
#[derive(Debug)]
pub struct Lease {
    file: File,
    /// What was granted.
    pub entry: Entry,
    /// Length of the entry's line, with the room behind it for another grant: what comes next in the file stays there.
    line: usize,
}

/// A quota is written with so many digits at most.
const DIGITS: usize = 20;

impl Lease {
    /// The descriptor whose lock is the lease; a helper inherits it.
    pub fn descriptor(&self) -> &File {
        &self.file
    }

    /// Writes the entry with one system call. Whoever reads it holds the folder's lock, as does whoever writes.
    fn write(&self) -> io::Result<()> {
        let mut text = serde_json::to_vec(&self.entry)?;
        text.resize(self.line.max(text.len()), b' ');
        self.file.write_all_at(&text, 0)
    }
}

/// What a new slice asks for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The tenant's name.
    pub name: String,
    /// User as whom its command runs.
    pub uid: u32,
    /// Quota by device UUID.
    pub memory: Vec<(String, Bytes)>,
    /// The command, for people.
    pub command: String,
    /// Quotas may sum above the cards' sizes.
    pub overcommit: bool,
    /// Give the helper a user of its own.
    pub helper_user: bool,
    /// Its part of a card's time against others, 1 to 10000.
    pub weight: u32,
    /// A ceiling on its part of a card's time, in hundredths of a percent.
    pub cap: Option<u16>,
    /// It is to be served soon: its neighbours run for so many microseconds at a time while it is awake.
    pub latency: Option<u32>,
}

impl Registry {
    /// The registry of this machine's cards: root's for all users, or the user's own.
    ///
    /// # Errors
    /// The folder cannot be made, or is not ours alone to write.
    pub fn of_machine() -> io::Result<Registry> {
        let (_, uid) = sys::uids();
        let folder = if uid == 0 {
            PathBuf::from("/run/gpuslice")
        } else {
            let run = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
            match run.filter(|run| is_own_folder(run, uid)) {
                Some(run) => run.join("gpuslice"),
                None => PathBuf::from(format!("/tmp/gpuslice-{uid}")),
            }
        };
        Registry::in_folder(&folder)
    }

    /// The registry in a folder (a simulated node has its own).
    ///
    /// # Errors
    /// The folder cannot be made, or is not ours alone to write.
    pub fn in_folder(folder: &Path) -> io::Result<Registry> {
        match fs::DirBuilder::new().mode(0o755).create(folder) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(describe(&e, "cannot make the registry", folder)),
        }
        let meta = fs::symlink_metadata(folder)?;
        let (_, uid) = sys::uids();
        if !meta.is_dir()
            || (meta.uid() != uid && uid != 0)
            || meta.permissions().mode() & 0o022 != 0
        {
            return Err(io::Error::other(format!(
                "the registry {} must be a folder of user {uid} that nobody else can write; it belongs to user {} with mode {:03o}: remove it or mend its owner and mode",
                folder.display(),
                meta.uid(),
                meta.permissions().mode() & 0o777
            )));
        }
        Ok(Registry {
            folder: folder.to_owned(),
        })
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn lock(&self) -> io::Result<OwnedFd> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.folder.join("lock"))?;
        flock(&file, libc::LOCK_EX)?;
        Ok(file.into())
    }

    /// The tenants that live now.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn tenants(&self) -> io::Result<Vec<Entry>> {
        let _locked = self.lock()?;
        self.live()
    }

    /// Reads the live tenants and removes what the dead left. The folder is locked.
    fn live(&self) -> io::Result<Vec<Entry>> {
        let mut live = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "tenant") {
                continue;
            }
            let Ok(file) = File::open(&path) else {
                continue;
            };
            let dead = flock(&file, libc::LOCK_SH | libc::LOCK_NB).is_ok();
            if dead {
                // Nobody holds it: its processes have ended, however they did. What they met stays known.
                self.remember(&fs::read_to_string(&path).unwrap_or_default());
                fs::remove_file(&path)?;
                // It may never have had one.
                let _removed = fs::remove_file(path.with_extension(BOARD));
                let _removed = fs::remove_file(path.with_extension(control::SOCKET));
                continue;
            }
            let (text, unknown) = read_whole(&path)?;
            let entry = text.lines().next().unwrap_or_default();
            let mut parsed: Entry = serde_json::from_str(entry).map_err(|e| {
                io::Error::other(format!(
                    "the registry's file {} cannot be read ({e}): another version of gpuslice may have written it; end its slice first",
                    path.display()
                ))
            })?;
            if parsed.version != VERSION {
                return Err(io::Error::other(format!(
                    "the registry's file {} is of version {}, this gpuslice writes version {VERSION}: end its slice first",
                    path.display(),
                    parsed.version
                )));
            }
            parsed.unknown = unknown;
            live.push(parsed);
        }
        live.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(live)
    }

    /// Calls that the tables do not know, of all slices that live or have ended since the node started.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn unknown_calls(&self) -> io::Result<Counts> {
        let _locked = self.lock()?;
        let live = self.live()?;
        let mut all = self.remembered();
        for entry in &live {
            unknown::add(&mut all, &entry.unknown, MOST_UNKNOWN);
        }
        Ok(all)
    }

    fn remembered(&self) -> Counts {
        let text = fs::read_to_string(self.folder.join(REMEMBERED)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Adds the counts in the file of a slice that has ended. The folder is locked.
    fn remember(&self, file: &str) {
        let counts = unknown::parse(file).unwrap_or_default();
        if counts.is_empty() {
            return;
        }
        let mut all = self.remembered();
        unknown::add(&mut all, &counts, MOST_UNKNOWN);
        let write = || {
            let new = self.folder.join("unknown-calls.new");
            fs::write(&new, serde_json::to_vec(&all)?)?;
            fs::rename(new, self.folder.join(REMEMBERED))
        };
        // For people who wonder; no slice depends on it.
        let _written: io::Result<()> = write();
    }

    /// Grants a slice, or says what is free.
    ///
    /// # Errors
    /// One line: what was asked, what was found, what to do.
    pub fn grant(&self, ask: &Ask, gpus: &[Gpu]) -> io::Result<Lease> {
        let _locked = self.lock()?;
        let live = self.live()?;
        if live.iter().any(|e| e.name == ask.name) {
            return Err(io::Error::other(format!(
                "a slice named '{}' is running; choose another --name or stop that one first",
                ask.name
            )));
        }
        let cards = cards(gpus);
        let grants: Vec<Grant> = live.iter().map(grant).collect();
        let request = Grant {
            name: ask.name.clone(),
            memory: ask.memory.clone(),
            channels: Vec::new(),
        };
        admission::admit(&cards, &grants, &request, ask.overcommit)
            .map_err(|r| io::Error::other(r.to_string()))?;
        let channels = admission::channels(&cards, &grants, &request, ask.overcommit)
            .map_err(|r| io::Error::other(r.to_string()))?;
        let helper_uid = ask.helper_user.then(|| {
            let taken: Vec<u32> = live.iter().filter_map(|e| e.helper_uid).collect();
            (FIRST_HELPER_UID..)
                .find(|uid| !taken.contains(uid))
                .expect("fewer tenants than user ids")
        });
        let entry = Entry {
            version: VERSION,
            name: ask.name.clone(),
            pid: std::process::id() as i32,
            uid: ask.uid,
            memory: ask.memory.iter().map(|(u, b)| (u.clone(), b.0)).collect(),
            channels,
            helper_uid,
            command: ask.command.clone(),
            unknown: Counts::new(),
        };
        let board = board::map_board(&board::board_file(&self.folder, &ask.name)?)?;
        board.weight.store(ask.weight, Ordering::Release);
        board
            .cap
            .store(ask.cap.unwrap_or(0).into(), Ordering::Release);
        let latency = ask.latency.unwrap_or(0);
        board.latency.store(latency, Ordering::Release);
        let path = self.folder.join(format!("{}.tenant", ask.name));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            // Whoever can open it can lock it, and so keep the quota of a slice that has ended.
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)?;
        flock(&file, libc::LOCK_EX | libc::LOCK_NB)?;
        let line = serde_json::to_vec(&entry)?.len() + DIGITS * entry.memory.len();
        let lease = Lease { file, entry, line };
        lease.write()?;
        Ok(lease)
    }

    /// Grants a slice that lives as much memory on its cards as is asked for, or says what is free. Where it has more it
    /// keeps that for now: its helper has to give it up first ([`Registry::settle`]).
    ///
    /// # Errors
    /// As [`Registry::grant`]; nothing has changed.
    pub fn grant_more(
        &self,
        lease: &mut Lease,
        asked: &[(String, Bytes)],
        gpus: &[Gpu],
        overcommit: bool,
    ) -> io::Result<()> {
        let _locked = self.lock()?;
        let mut others = self.live()?;
        others.retain(|e| e.name != lease.entry.name);
        let has = |uuid: &str| {
            let mut memory = lease.entry.memory.iter();
            memory.find(|(on, _)| on == uuid).map(|(_, bytes)| *bytes)
        };
        // Who gives something back needs nobody's leave.
        let more = |(uuid, bytes): &&(String, Bytes)| {
            bytes.0 == 0 || has(uuid).is_none_or(|has| bytes.0 > has)
        };
        let request = Grant {
            name: lease.entry.name.clone(),
            memory: asked.iter().filter(more).cloned().collect(),
            channels: Vec::new(),
        };
        if !request.memory.is_empty() {
            let grants: Vec<Grant> = others.iter().map(grant).collect();
            admission::admit(&cards(gpus), &grants, &request, overcommit)
                .map_err(|r| io::Error::other(r.to_string()))?;
        }
        let before = lease.entry.memory.clone();
        for (uuid, bytes) in &mut lease.entry.memory {
            if let Some((_, more)) = asked.iter().find(|(on, _)| on == uuid) {
                *bytes = more.0.max(*bytes);
            }
        }
        let written = lease.write();
        if written.is_err() {
            lease.entry.memory = before;
        }
        written
    }

    /// What the helper of a slice has given up is free for others.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn settle(&self, lease: &mut Lease, has: &[(String, u64)]) -> io::Result<()> {
        let _locked = self.lock()?;
        lease.entry.memory = has.to_vec();
        lease.write()
    }
}

fn cards(gpus: &[Gpu]) -> Vec<Card> {
    let card = |gpu: &Gpu| Card {
        uuid: gpu.uuid.clone(),
        total: gpu.memory,
    };
    gpus.iter().map(card).collect()
}

fn grant(entry: &Entry) -> Grant {
    let memory = entry.memory.iter().map(|(u, b)| (u.clone(), Bytes(*b)));
    Grant {
        name: entry.name.clone(),
        memory: memory.collect(),
        channels: entry.channels.clone(),
    }
}

/// Reads a live tenant's file, again if its helper was writing it.
fn read_whole(path: &Path) -> io::Result<(String, Counts)> {
    const ATTEMPTS: u32 = 20;
    let mut text = String::new();
    for _ in 0..ATTEMPTS {
        text = fs::read_to_string(path)?;
        if let Some(unknown) = unknown::parse(&text) {
            return Ok((text, unknown));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok((text, Counts::new()))
}

/// Whether a runtime folder is what its variable promises: absolute and the user's own. After `su` it is another's.
fn is_own_folder(folder: &Path, uid: u32) -> bool {
    folder.is_absolute() && fs::metadata(folder).is_ok_and(|m| m.is_dir() && m.uid() == uid)
}

fn flock(file: &File, how: i32) -> io::Result<()> {
    // SAFETY: the call takes two integers.
    if unsafe { libc::flock(file.as_raw_fd(), how) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn describe(e: &io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(e.kind(), format!("{what} {}: {e}", path.display()))
}

/// A name that can be a file's: letters, digits, `-`, `_` and `.`, at most 64, not beginning with a dot.
pub fn valid_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && !name.starts_with('.')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_folder_counts_only_if_it_is_absolute_and_ones_own() {
        let (_, uid) = sys::uids();
        let own = std::env::temp_dir().join(format!("gpuslice-runtime-{}", std::process::id()));
        fs::create_dir(&own).unwrap();
        assert!(is_own_folder(&own, uid));
        assert!(!is_own_folder(&own, uid + 1));
        assert!(!is_own_folder(Path::new("."), uid));
        assert!(!is_own_folder(&own.join("missing"), uid));
        fs::remove_dir(&own).unwrap();
    }
}
