//! The built binary, simulated nodes, and what a run said.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The binary under test.
pub const GPUSLICE: &str = env!("CARGO_BIN_EXE_gpuslice");
pub const GIB: u64 = 1 << 30;
pub const MIB: u64 = 1 << 20;
/// Nothing here takes long; what does is stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a program did.
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    fn from(output: &Output) -> Done {
        Done {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|e| panic!("{e}: out {:?}, err {:?}", self.out, self.err))
    }

    /// Asserts our own failure, told in one line that holds all of these.
    #[track_caller]
    pub fn refused(&self, words: &[&str]) {
        let last = self.err.lines().last().unwrap_or_default();
        assert_eq!(self.code, Some(125), "{}", self.err);
        assert!(
            last.starts_with("gpuslice: ") && words.iter().all(|w| last.contains(w)),
            "{words:?} in {:?}",
            self.err
        );
    }

    /// Asserts an exit status.
    #[track_caller]
    pub fn ended(self, code: i32) -> Done {
        assert_eq!(
            self.code,
            Some(code),
            "out {:?}, err {:?}",
            self.out,
            self.err
        );
        self
    }
}

/// `gpuslice` with these words, in an environment that names no cards.
pub fn command(words: &[&str]) -> Command {
    command_of(Path::new(GPUSLICE), words)
}

/// The same by a copy of the program.
pub fn command_of(program: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(words)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("GPUSLICE_SIM")
        .stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn gpuslice(words: &[&str]) -> Done {
    finish(command(words))
}

/// Runs a command to its end.
pub fn finish(mut command: Command) -> Done {
    Done::from(&command.output().expect("start"))
}

/// The total that a probe's first device shows.
pub fn total(probe: &Value) -> u64 {
    probe["devices"][0]["total_bytes"]
        .as_u64()
        .expect("a total")
}

/// A simulated node for several slices.
pub struct Node {
    keeper: Child,
    pub socket: String,
}

impl Node {
    pub fn start(spec: &str) -> Node {
        Node::kept_by(command(&Node::words(spec)))
    }

    /// The words of a program that keeps a node as long as it has input.
    pub fn words(spec: &str) -> [&str; 6] {
        let keep = "echo $GPUSLICE_SIM; exec cat";
        ["sim", spec, "--", "sh", "-c", keep]
    }

    /// The node of a program with these words.
    pub fn kept_by(mut keeper: Command) -> Node {
        let mut keeper = keeper
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start");
        let mut socket = String::new();
        BufReader::new(keeper.stdout.take().expect("piped"))
            .read_line(&mut socket)
            .expect("a socket");
        Node {
            keeper,
            socket: socket.trim().to_owned(),
        }
    }

    /// The words of a run on this node, before the command.
    pub fn run<'a>(&'a self, options: &[&'a str], program: &[&'a str]) -> Vec<&'a str> {
        [&["run", "--sim", &self.socket], options, &["--"], program].concat()
    }

    /// A slice that lives until it is dropped.
    pub fn slice(&self, options: &[&str]) -> Slice {
        let program = ["sh", "-c", "echo up; exec cat"];
        let mut run = command(&self.run(options, &program));
        let mut child = run
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        assert_eq!(line, "up\n", "the slice did not start");
        Slice(child)
    }

    /// Names of the live slices.
    pub fn names(&self) -> Vec<String> {
        let listed = gpuslice(&["ps", "--json", "--sim", &self.socket])
            .ended(0)
            .json();
        listed
            .as_array()
            .expect("a list")
            .iter()
            .map(|s| s["name"].as_str().expect("a name").to_owned())
            .collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // `cat` ends with its input, and the node with `cat`.
        drop(self.keeper.stdin.take());
        let _ended = self.keeper.wait();
    }
}

/// A running slice.
pub struct Slice(pub Child);

impl Drop for Slice {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

/// Waits until it is so.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A folder of this test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("gpuslice-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a new folder");
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

pub fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
