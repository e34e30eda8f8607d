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

use policy::share::Walls;

use super::shared::{self, Shareable, Shared};

/// Channel groups of one tenant: more than a card has channels for (2048, five for each group).
pub const SLOTS: usize = 2048;
/// Cards of one slice.
pub const CARDS: usize = 32;

/// Numbers that hardware has for the channels of a card's compute engine; a number above is nobody's.
pub const NUMBERS: usize = 4096;

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
    /// Nonzero: it tries what slices alone do (`doctor --shares`). While all tenants of a card do, nobody there is stopped
    /// for what he overdrew; a single other one, and this says nothing.
    pub slices_alone: AtomicU32,
    /// How many slots have ever been used.
    pub used: AtomicU32,
    /// Counts what the scheduler has written: the helper sleeps on it.
    pub plans: AtomicU32,
    /// Counts groups that came and went.
    pub changes: AtomicU32,
    /// Lever calls that the helper has made.
    pub pulls: AtomicU32,
    /// Rules that a slice of a simulated card goes without, as [`ShareWalls::word`] has them; zero: all stand.
    pub without: AtomicU32,
    /// What the scheduler says, by card.
    pub cards: [CardState; CARDS],
    /// The groups.
    pub slots: [Slot; SLOTS],
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shareable for Board {}

/// The scheduler's rules for one tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareWalls {
    /// The planner's.
    pub planner: Walls,
    /// Each card is divided for itself.
    pub pool_per_device: bool,
}

impl ShareWalls {
    const PACKING: u32 = 1;
    const DEBT: u32 = 2;
    const POOL: u32 = 4;

    /// Those that do not stand.
    pub fn word(&self) -> u32 {
        let bit = |stands: bool, bit: u32| if stands { 0 } else { bit };
        bit(self.planner.packing_held, ShareWalls::PACKING)
            | bit(self.planner.debt_survives_restart, ShareWalls::DEBT)
            | bit(self.pool_per_device, ShareWalls::POOL)
    }

    /// The rules by the word on a board.
    pub fn from_word(word: u32) -> ShareWalls {
        ShareWalls {
            planner: Walls {
                packing_held: word & ShareWalls::PACKING == 0,
                debt_survives_restart: word & ShareWalls::DEBT == 0,
            },
            pool_per_device: word & ShareWalls::POOL == 0,
        }
    }
}

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
    /// Nonzero from a scheduler's start until it has ended by itself.
    pub working: AtomicU32,
    /// Standard error of what the sensor said of the last second, in millionths of the card; zero: it counts exactly.
    pub error_ppm: AtomicU32,
    /// Whose channel it is, by the card's minor number and hardware's number of the channel: the helper. Zero: nobody's.
    owners: [[AtomicU32; NUMBERS]; CARDS],
}

// SAFETY: `repr(C)`, atomics only.
unsafe impl Shareable for Node {}

/// Names of the sensors by [`Node::sensor`].
pub const SENSORS: [&str; 3] = ["none", "timeline", "sampled"];

impl Node {
    fn slot_of(&self, minor: u32, number: u32) -> Option<&AtomicU32> {
        self.owners.get(minor as usize)?.get(number as usize)
    }

    /// A channel of this number is the helper's from now on, whoever had the number before.
    pub fn own(&self, minor: u32, number: u32, helper: u32) {
        if let Some(owner) = self.slot_of(minor, number) {
            owner.store(helper, Ordering::Release);
        }
    }

    /// The helper has no channel of this number any more. If it is another's already, it stays so.
    pub fn disown(&self, minor: u32, number: u32, helper: u32) {
        if let Some(owner) = self.slot_of(minor, number)
            && owner.load(Ordering::Acquire) == helper
        {
            let _was = owner.compare_exchange(helper, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// A helper has no channels at all on a card: it is gone, or has just begun.
    pub fn disown_all(&self, minor: u32, helper: u32) {
        (0..NUMBERS as u32).for_each(|number| self.disown(minor, number, helper));
    }

    /// The helper whose channel it is; zero: nobody's that is known.
    pub fn owner(&self, minor: u32, number: u32) -> u32 {
        self.slot_of(minor, number)
            .map_or(0, |owner| owner.load(Ordering::Acquire))
    }

    /// Which sensor is in use and how far it is to be trusted, for people.
    pub fn sensor_text(&self) -> String {
        let sensor = self.sensor.load(Ordering::Acquire) as usize;
        let name = SENSORS.get(sensor).copied().unwrap_or("unknown");
        match name {
            "sampled" => {
                let points = f64::from(self.error_ppm.load(Ordering::Acquire)) / 1e4;
                format!("sampled (standard error {points:.1} points over one second)")
            }
            name => name.to_owned(),
        }
    }

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
    fn a_number_that_another_has_got_is_not_taken_from_it() {
        let folder = std::env::temp_dir().join(format!("gpuslice-node-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let node = map_node(&node_file(&folder).unwrap()).unwrap();
        node.own(1, 7, 100);
        assert_eq!((node.owner(1, 7), node.owner(0, 7)), (100, 0));
        node.own(1, 7, 200);
        node.disown(1, 7, 100);
        assert_eq!(node.owner(1, 7), 200);
        node.own(1, 8, 100);
        node.own(2, 7, 200);
        node.disown_all(1, 200);
        assert_eq!((node.owner(1, 7), node.owner(1, 8)), (0, 100));
        assert_eq!(node.owner(2, 7), 200, "another card");
        // Numbers that no card has are nobody's.
        node.own(CARDS as u32, 0, 100);
        node.own(0, u32::MAX, 100);
        assert_eq!(node.owner(0, u32::MAX), 0);
        std::fs::remove_dir_all(&folder).unwrap();
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
