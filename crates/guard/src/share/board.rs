//! What a tenant's helper and the node's scheduler tell each other, in memory that both map.
//!
//! One [`Board`] a tenant, beside its entry in the registry; one [`Node`] a registry. A helper writes its channel groups and
//! what it has done about each; the scheduler writes what each group is to have. Words are changed whole and never wait for
//! anybody: whoever dies leaves a board that the other can go on with.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::shared::{self, Shareable, Shared};

/// Channel groups of one tenant: more than a card has channels for (2048, five for each group).
pub const SLOTS: usize = 2048;
/// Cards of one slice.
pub const CARDS: usize = 32;

/// What a channel group is to have: how long it runs at a time, and whether it runs at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Microseconds.
    pub slice_us: u32,
    /// Whether its channels are attached.
    pub attached: bool,
}

/// A [`Setting`] and the group that it is meant for, as one word.
const ATTACHED: u64 = 1 << 32;
const SAID: u64 = 1 << 33;

fn pack(serial: u32, setting: Setting) -> u64 {
    // The low bits of the serial number suffice: a slot is not given 2^30 times while a word is on its way.
    u64::from(serial & 0x3fff_ffff) << 34
        | SAID
        | if setting.attached { ATTACHED } else { 0 }
        | u64::from(setting.slice_us)
}

fn unpack(serial: u32, word: u64) -> Option<Setting> {
    (word & SAID != 0 && word >> 34 == u64::from(serial & 0x3fff_ffff)).then_some(Setting {
        slice_us: word as u32,
        attached: word & ATTACHED != 0,
    })
}

/// One channel group.
#[repr(C, align(64))]
pub struct Slot {
    /// Zero: free. Otherwise the number of the group, never given twice on this board.
    pub serial: AtomicU32,
    /// Position of its card among the slice's.
    pub card: AtomicU32,
    /// Zero: it computes; otherwise it copies.
    pub copies: AtomicU32,
    /// How often the lever failed.
    pub failed: AtomicU32,
    wanted: AtomicU64,
    has: AtomicU64,
}

impl Slot {
    /// What the scheduler wants for the group of this number.
    pub fn wanted(&self, serial: u32) -> Option<Setting> {
        unpack(serial, self.wanted.load(Ordering::Acquire))
    }

    /// The scheduler says what the group of this number is to have.
    pub fn want(&self, serial: u32, setting: Setting) {
        self.wanted.store(pack(serial, setting), Ordering::Release);
    }

    /// What the group of this number has.
    pub fn has(&self, serial: u32) -> Option<Setting> {
        unpack(serial, self.has.load(Ordering::Acquire))
    }

    /// The lever has been pulled.
    pub fn set_has(&self, serial: u32, setting: Setting) {
        self.has.store(pack(serial, setting), Ordering::Release);
    }
}

/// What the scheduler says of a tenant on one card, for people and for whoever takes over.
#[repr(C, align(64))]
pub struct CardState {
    /// What it was granted lately, in millionths of the card.
    pub granted_ppm: AtomicU32,
    /// What it was measured to have lately, in millionths of the card.
    pub measured_ppm: AtomicU32,
    /// Contexts that ran lately.
    pub contexts: AtomicU32,
    /// Its [`policy::share::State`] as a number; zero: not scheduled.
    pub state: AtomicU32,
    /// The slice that its groups are to have when there is no scheduler; zero: it has not said.
    pub fallback_us: AtomicU32,
    /// Credit (or debt) in microseconds.
    pub credit_us: AtomicI64,
    /// The same towards its cap.
    pub cap_credit_us: AtomicI64,
    /// Microseconds that it was measured to run, in all.
    pub ran_us: AtomicU64,
}

/// A tenant's board.
#[repr(C, align(64))]
pub struct Board {
    /// The helper: the driver's identity for the tenant. Zero until it is there.
    pub helper: AtomicU32,
    /// Its weight.
    pub weight: AtomicU32,
    /// Its cap in hundredths of a percent; zero: none.
    pub cap: AtomicU32,
    /// Nonzero: paused.
    pub paused: AtomicU32,
    /// Microseconds that its neighbours run at a time while it is awake; zero: as long as their part is.
    pub latency: AtomicU32,
    /// How many slots have ever been used.
    pub used: AtomicU32,
    /// Counts what the scheduler has written: the helper sleeps on it.
    pub plans: AtomicU32,
    /// Counts groups that came and went.
    pub changes: AtomicU32,
    /// Lever calls that the helper has made.
    pub pulls: AtomicU32,
    /// What the scheduler says, by card.
    pub cards: [CardState; CARDS],
    /// The groups.
    pub slots: [Slot; SLOTS],
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shareable for Board {}

/// What all boards of a node have in common.
#[repr(C, align(64))]
pub struct Node {
    /// When the scheduler was last at work, microseconds of the monotonic clock; zero: nobody schedules, and nobody has to.
    pub beat_us: AtomicU64,
    /// The scheduler's process.
    pub scheduler: AtomicU32,
    /// Counts whatever the scheduler should look at soon: it sleeps on it.
    pub news: AtomicU32,
    /// Which sensor is in use: see [`SENSORS`].
    pub sensor: AtomicU32,
    /// How many schedulers there have been.
    pub started: AtomicU32,
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shareable for Node {}

/// Names of the sensors by [`Node::sensor`].
pub const SENSORS: [&str; 3] = ["none", "timeline", "sampled"];

impl Node {
    /// Something happened that the scheduler should look at.
    pub fn tell(&self) {
        self.news.fetch_add(1, Ordering::AcqRel);
        shared::wake(&self.news);
    }

    /// From now on somebody has to schedule: who makes a group waits for his word.
    pub fn require(&self) {
        let now = shared::now_us();
        // A scheduler that is at work says when.
        let _was = self
            .beat_us
            .compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
    }

    /// How long ago the scheduler was at work; `None`: nobody schedules, and nobody has to.
    pub fn silent_us(&self) -> Option<u64> {
        match self.beat_us.load(Ordering::Acquire) {
            0 => None,
            beat => Some(shared::now_us().saturating_sub(beat)),
        }
    }
}

/// Ending of a board's file in the registry's folder.
pub const BOARD: &str = "share";
/// Name of the node's file there.
const NODE: &str = "scheduler";

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// The file of the node, whose lock (flock(2)) is the scheduler's.
///
/// # Errors
/// As open(2).
pub fn node_file(folder: &Path) -> io::Result<File> {
    open(&folder.join(NODE))
}

/// The file of a tenant's board.
///
/// # Errors
/// As open(2).
pub fn board_file(folder: &Path, tenant: &str) -> io::Result<File> {
    open(&folder.join(format!("{tenant}.{BOARD}")))
}

/// What the schedulers of a node say, one line each.
///
/// # Errors
/// As open(2).
pub fn log_file(folder: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(folder.join("scheduler.log"))
}

/// Maps the node's words.
///
/// # Errors
/// As mmap(2).
pub fn map_node(file: &File) -> io::Result<Shared<Node>> {
    Shared::map(file)
}

/// Maps a tenant's board.
///
/// # Errors
/// As mmap(2).
pub fn map_board(file: &File) -> io::Result<Shared<Board>> {
    Shared::map(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant_for_a_group_is_not_taken_by_the_next_in_its_slot() {
        let setting = Setting {
            slice_us: 30_000,
            attached: true,
        };
        for serial in [1, 2, 0x3fff_ffff, u32::MAX] {
            let word = pack(serial, setting);
            assert_eq!(unpack(serial, word), Some(setting));
            assert_eq!(unpack(serial ^ 1, word), None);
        }
        assert_eq!(unpack(0, 0), None, "nothing was said");
        let detached = Setting {
            slice_us: u32::MAX,
            attached: false,
        };
        assert_eq!(unpack(7, pack(7, detached)), Some(detached));
    }

    #[test]
    fn two_mappings_of_a_board_are_one() {
        let folder = std::env::temp_dir().join(format!("gpuslice-board-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let file = board_file(&folder, "a").unwrap();
        let (one, two) = (map_board(&file).unwrap(), map_board(&file).unwrap());
        one.slots[SLOTS - 1].serial.store(9, Ordering::Relaxed);
        assert_eq!(two.slots[SLOTS - 1].serial.load(Ordering::Relaxed), 9);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
