//! A simulated node, and tenants' programs played on it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use testkit::outside::{Finding, Line, Neighbour, Observer, Played, Program, Told};
use testkit::raw::Node;

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_gpuslice");
/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Quota of a program on each card.
pub const QUOTA: u64 = 10 << 30;

/// A simulated node of two cards; ends when dropped.
pub struct Stage {
    keeper: Child,
    /// The node has panicked somewhere.
    panicked: Arc<AtomicBool>,
    /// The node's socket.
    pub socket: PathBuf,
    /// A client outside any slice.
    pub observer: Observer,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::on("2xH200")
    }

    /// A node as `--sim` names it.
    pub fn on(spec: &str) -> Stage {
        // The node lives as long as the command on it, which lives as long as its input.
        let mut keeper = Command::new(BINARY)
            .args([
                "sim",
                spec,
                "--",
                "sh",
                "-c",
                "echo \"$GPUSLICE_SIM\"; exec cat",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (panicked, errors) = (Arc::<AtomicBool>::default(), keeper.stderr.take().unwrap());
        let seen = panicked.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                seen.fetch_or(line.contains("panicked at"), Ordering::Relaxed);
                eprintln!("{line}");
            }
        });
        let mut socket = String::new();
        BufReader::new(keeper.stdout.take().unwrap())
            .read_line(&mut socket)
            .unwrap();
        let socket = PathBuf::from(socket.trim_end());
        let observer = Observer::open(&Node::simulated(&socket)).unwrap();
        Stage {
            keeper,
            panicked,
            socket,
            observer,
        }
    }

    /// Starts a tenant's program in a slice of its own on the first card.
    pub fn start(&self, name: &str, words: &[&str]) -> Program {
        self.start_by(Command::new(BINARY), name, words, QUOTA)
    }

    /// As [`Stage::start`] with another quota.
    pub fn start_with(&self, quota: u64, name: &str, words: &[&str]) -> Program {
        self.start_by(Command::new(BINARY), name, words, quota)
    }

    /// Whether the simulated node has panicked: it goes on, without the connection in which that was.
    pub fn node_has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Relaxed)
    }

    /// Names of the slices that the node's registry knows.
    pub fn slices(&self) -> Vec<String> {
        let listed = Command::new(BINARY)
            .args(["ps", "--json", "--sim"])
            .arg(&self.socket)
            .output()
            .unwrap();
        let slices: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        let slices = slices.as_array().unwrap().iter();
        slices
            .map(|slice| slice["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Plays a program in a slice whose processes, the helper's too, may have so many descriptors each.
    pub fn play_with_descriptors(&self, most: u32, words: &[&str]) -> Played {
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(format!("ulimit -n {most}; exec \"$0\" \"$@\""))
            .arg(BINARY);
        self.serve(
            self.start_by(shell, words[0], words, QUOTA),
            &Neighbours::default(),
        )
    }

    fn start_by(&self, mut command: Command, name: &str, words: &[&str], quota: u64) -> Program {
        command.args(["run", "--sim"]).arg(&self.socket).args([
            "--gpu",
            "0",
            "--memory",
            &quota.to_string(),
        ]);
        command
            .args([
                "--name",
                name,
                "--",
                BINARY,
                "__tenant",
                words[0],
                &quota.to_string(),
            ])
            .args(&words[1..]);
        Program::start(command).unwrap()
    }

    /// As [`Stage::play`] with another limit on its time.
    pub fn play_for(&self, limit: Duration, words: &[&str]) -> Played {
        let program = self.start(words[0], words);
        self.serve_for(limit, program, &Neighbours::default())
    }

    /// As [`Stage::start`] by a command that sets up what the program is left.
    pub fn start_leaving(&self, command: Command, name: &str, words: &[&str]) -> Program {
        self.start_by(command, name, words, QUOTA)
    }

    /// Plays a program that needs nobody else, by such a command.
    pub fn play_by(&self, command: Command, words: &[&str]) -> Played {
        self.serve(
            self.start_leaving(command, words[0], words),
            &Neighbours::default(),
        )
    }

    /// Plays a program that needs nobody else.
    pub fn play(&self, words: &[&str]) -> Played {
        self.serve(self.start(words[0], words), &Neighbours::default())
    }

    /// Plays a program, beside a neighbour whose kernels run if it has to be.
    pub fn play_beside(&self, words: &[&str]) -> Played {
        let neighbour = self.start("neighbour", &["spinner"]);
        let seen = Neighbours::default();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| seen.watch(neighbour, &over));
            let played = self.serve(self.start(words[0], words), &seen);
            over.store(true, Ordering::Relaxed);
            played
        })
    }

    fn serve(&self, program: Program, seen: &Neighbours) -> Played {
        self.serve_for(LIMIT, program, seen)
    }

    fn serve_for(&self, limit: Duration, program: Program, seen: &Neighbours) -> Played {
        let answer = |line: &Line| match line {
            Line::AskMemory(helper) => {
                Some(Told::Memory(self.observer.memory_of(*helper).unwrap()))
            }
            Line::AskNeighbour => seen.wait().map(Told::Neighbour),
            Line::Progress(_) | Line::Worked(_) | Line::Finding(_) => None,
        };
        program.play(limit, answer).unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// The newest word of a neighbour.
#[derive(Default)]
struct Neighbours(Mutex<Option<Neighbour>>);

impl Neighbours {
    fn newest(&self) -> std::sync::MutexGuard<'_, Option<Neighbour>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, program: Program, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let Some(line) = program.line(Instant::now() + Duration::from_millis(20)) else {
                continue;
            };
            if let Ok(Line::Progress(here)) = serde_json::from_str(&line) {
                *self.newest() = Some(here);
            }
        }
        program.stop();
    }

    fn wait(&self) -> Option<Neighbour> {
        let until = Instant::now() + LIMIT / 2;
        loop {
            let newest = *self.newest();
            if newest.is_some_and(|n| n.finished > 0) || Instant::now() > until {
                return newest;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The program's finding, which must be that the wall held.
pub fn assert_held(played: &Played) -> &Finding {
    let finding = played
        .finding()
        .unwrap_or_else(|why| panic!("{why}; it wrote: {}", played.errors));
    assert!(
        finding.held,
        "measured {}, expected {}: {}",
        finding.measured, finding.expected, finding.note
    );
    finding
}

/// The helper below a `gpuslice run`, once it is there.
pub fn helper_of(run: u32) -> Option<u32> {
    let command_line = |pid: u32| {
        String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
            .into_owned()
    };
    let mut children = children_of(run).into_iter();
    children.find(|&pid| command_line(pid).contains("__helper"))
}

/// The processes that have this parent.
pub fn children_of(parent: u32) -> Vec<u32> {
    let parent_of = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
    };
    let pids = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| parent_of(pid) == Some(parent)).collect()
}
