//! What went wrong in other systems that share GPUs, by the number of the case: each became a test.
//!
//! Many tests run themselves inside slices: there `PART` says what the process plays.

mod calls;
mod limits;
mod memory;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use testkit::raw::{Client, Device};

use crate::common::{Node, command};

const PART: &str = "GPUSLICE_CASE_PART";

pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// This test as a program that plays a part.
pub fn playing(test: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", &format!("cases::{test}"), "--nocapture", "-q"])
        .env(PART, part)
        .stdin(Stdio::null());
    command
}

/// The same inside a slice.
pub fn within(node: &Node, options: &[&str], test: &str, part: &str) -> Command {
    let program = std::env::current_exe().expect("this program");
    let name = format!("cases::{test}");
    let program = [
        program.to_str().expect("a path in UTF-8"),
        "--exact",
        &name,
        "--nocapture",
        "-q",
    ];
    let mut run = command(&node.run(options, &program));
    run.env(PART, part);
    run
}

/// A program that says lines and waits for its input to end.
pub struct Talker {
    pub child: Child,
    lines: BufReader<ChildStdout>,
    input: Option<ChildStdin>,
}

impl Talker {
    pub fn start(mut command: Command) -> Talker {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start");
        Talker {
            lines: BufReader::new(child.stdout.take().expect("piped")),
            input: child.stdin.take(),
            child,
        }
    }

    /// What follows the word in the next line that begins with it.
    #[track_caller]
    pub fn says(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).expect("a pipe") > 0 {
            if let Some(rest) = line.trim_end().strip_prefix(word) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("it ended without saying {word:?}");
    }

    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("not closed");
        writeln!(input, "{line}").expect("it reads");
    }

    /// Lets it end.
    #[track_caller]
    pub fn ends(mut self) {
        drop(self.input.take());
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("a pipe");
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}: {rest}");
    }
}

/// The next line of the input.
pub fn line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("input");
    line
}

/// Waits until whoever started this program lets it end.
pub fn until_told() {
    std::io::stdin()
        .read_to_end(&mut Vec::new())
        .expect("input");
}

pub fn raw() -> (Client, Device) {
    let client = Client::open(&testkit::raw::Node::from_environment()).expect("a client");
    let device = client.first_device().expect("a device");
    (client, device)
}
