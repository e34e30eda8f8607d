//! A node whose card's time is divided, with what its scheduler and helpers share.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use guard::share::board::{self, Board, Slot};
use guard::share::scheduler::STATES;
use guard::sys;
use simgpu::client::Client;

use crate::common::{GPUSLICE, Node, command, wait_until};

/// Bytes of each slice here.
pub const QUOTA: &str = "17179869184";

/// A node with the memory that its scheduler and helpers share.
pub struct Shares {
    pub node: Node,
    pub folder: PathBuf,
}

/// A slice that computes until it is dropped.
pub struct Spinner {
    pub run: Child,
    pub board: BoardOf,
}

pub struct BoardOf(Box<dyn std::ops::Deref<Target = Board>>);

impl std::ops::Deref for BoardOf {
    type Target = Board;

    fn deref(&self) -> &Board {
        &self.0
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _stopped = sys::kill(self.run.id() as i32, libc::SIGTERM);
        let _ended = self.run.wait();
    }
}

pub fn board_of(folder: &Path, name: &str) -> BoardOf {
    let file = board::board_file(folder, name).unwrap();
    BoardOf(Box::new(board::map_board(&file).unwrap()))
}

impl Shares {
    pub fn start() -> Shares {
        let node = Node::start("1xH200");
        let folder = Path::new(&node.socket).with_file_name("registry");
        Shares { node, folder }
    }

    /// A slice of this weight that computes, once it does.
    pub fn spinner(&self, name: &str, weight: &str) -> Spinner {
        self.program(name, weight, &["spin", "ms=2"])
    }

    /// A slice of this weight in which a program computes.
    pub fn program(&self, name: &str, weight: &str, words: &[&str]) -> Spinner {
        let options = ["--memory", QUOTA, "--weight", weight, "--name", name];
        let program = [GPUSLICE, "__tenant", words[0], QUOTA, "seconds=120"];
        let program = [&program[..], &words[1..]].concat();
        let mut run = command(&self.node.run(&options, &program));
        let run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let run = run.unwrap();
        let board = board_of(&self.folder, name);
        let spinner = Spinner { run, board };
        wait_until("it computes", || self.ran(&spinner) > 0);
        spinner
    }

    /// Nanoseconds that a slice has computed.
    pub fn ran(&self, of: &Spinner) -> u64 {
        let mut client = Client::connect(self.node.socket.as_ref()).unwrap();
        let helper = of.board.helper.load(Ordering::Acquire);
        client.usage(0).unwrap().computed_ns(helper)
    }

    /// What of the time that these have computed is the first one's, in percent, and what of the card's.
    pub fn part(&self, of: &Spinner, with: &Spinner) -> (f64, f64) {
        std::thread::sleep(Duration::from_millis(800));
        let mut client = Client::connect(self.node.socket.as_ref()).unwrap();
        let mut look = || {
            let usage = client.usage(0).unwrap();
            let ran = |s: &Spinner| usage.computed_ns(s.board.helper.load(Ordering::Acquire));
            (ran(of), ran(with), usage.clock_ns[0])
        };
        let before = look();
        wait_until("it is measured", || look().2 > before.2 + 1_500_000_000);
        let after = look();
        let (own, other) = ((after.0 - before.0) as f64, (after.1 - before.1) as f64);
        (
            own * 100.0 / (own + other),
            own * 100.0 / (after.2 - before.2) as f64,
        )
    }

    /// It goes on computing.
    #[track_caller]
    pub fn runs(&self, spinner: &Spinner) {
        let before = self.ran(spinner);
        wait_until("it goes on", || self.ran(spinner) > before);
    }

    pub fn words(&self) -> impl std::ops::Deref<Target = board::Node> {
        board::map_node(&board::node_file(&self.folder).unwrap()).unwrap()
    }

    /// The scheduler, once it is at work.
    pub fn scheduler(&self) -> u32 {
        let words = self.words();
        wait_until("there is a scheduler", || {
            let pid = words.scheduler.load(Ordering::Acquire);
            pid != 0 && fs::exists(format!("/proc/{pid}/exe")).unwrap()
        });
        words.scheduler.load(Ordering::Acquire)
    }

    /// Waits for another scheduler than that.
    #[track_caller]
    pub fn next_after(&self, scheduler: u32) -> u32 {
        let words = self.words();
        wait_until("another takes over", || {
            words.scheduler.load(Ordering::Acquire) != scheduler
        });
        words.scheduler.load(Ordering::Acquire)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("scheduler.log")).unwrap_or_default()
    }
}

/// The groups that a board has.
pub fn groups(board: &Board) -> Vec<(u32, &Slot)> {
    let all = board
        .slots
        .iter()
        .map(|s| (s.serial.load(Ordering::Acquire), s));
    all.filter(|&(serial, _)| serial != 0).collect()
}

pub fn all_are(board: &Board, attached: bool) -> bool {
    let all = groups(board);
    let has =
        |(serial, slot): &(u32, &Slot)| slot.has(*serial).is_some_and(|h| h.attached == attached);
    !all.is_empty() && all.iter().all(has)
}

pub fn state(board: &Board) -> &'static str {
    STATES[board.cards[0].state.load(Ordering::Acquire) as usize]
}

pub fn signal(pid: u32, number: i32) {
    sys::kill(pid as i32, number).unwrap();
}

/// Stops a slice as its user does who wants it to pause.
pub fn pause(shares: &Shares, board: &Board, paused: u32) {
    board.paused.store(paused, Ordering::Release);
    shares.words().tell();
}
