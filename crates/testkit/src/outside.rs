//! Outside the slice: starts a tenant's program, answers its questions, asks the driver for the truth.
//!
//! A program prints lines of JSON ([`Line`]) on standard output and reads answers ([`Told`]) on standard input. With
//! nobody at the other end (standard input at its end) a program goes on without the answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use simgpu::usage::Usage;

use crate::raw::{Answer, Block, Client, Device, Node};

/// What a tenant's program has found out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The wall or attack.
    pub name: String,
    /// Whether the wall held.
    pub held: bool,
    /// What was measured; bytes where it is a plain number.
    pub measured: Value,
    /// What a standing wall gives.
    pub expected: Value,
    /// For people: what was tried, and how it ended.
    pub note: String,
}

/// A line that a program prints.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// How much does this process (the one that makes its calls) hold, by device, as the driver counts?
    AskMemory(u32),
    /// Where is the neighbour, and how far has he come?
    AskNeighbour,
    /// Where this program's channel is, and how many kernels it has finished.
    Progress(Neighbour),
    /// How much a program that computes has done so far.
    Worked(Worked),
    /// The result.
    Finding(Finding),
}

/// What a program is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// Bytes by device.
    Memory(Vec<u64>),
    /// The other tenant.
    Neighbour(Neighbour),
}

/// Work of one process, from its first kernel on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Worked {
    /// The process that did it. Who makes its calls is another in a slice: the helper.
    pub pid: u32,
    /// Kernels that are done.
    pub kernels: u64,
    /// What they cost on the engine's own clock, ns; launches and switches not counted.
    pub virtual_ns: u64,
    /// Time that has passed on the wall, ns.
    pub wall_ns: u64,
}

/// A tenant whose kernels run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Neighbour {
    /// Handle of its client.
    pub client: u32,
    /// Handle of its channel.
    pub channel: u32,
    /// Handle of device memory it holds.
    pub memory: u32,
    /// Kernels finished so far.
    pub finished: u64,
}

/// A client of the node outside any slice.
pub struct Observer {
    client: Client,
    devices: Vec<Device>,
}

impl Observer {
    /// Becomes a client of the node.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn open(node: &Node) -> Answer<Observer> {
        let client = Client::open(node)?;
        let devices = client.devices()?;
        Ok(Observer { client, devices })
    }

    /// Bytes of each device that nobody has.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn free_bytes(&self) -> Answer<Vec<u64>> {
        self.devices
            .iter()
            .map(|device| device.free_bytes(&self.client))
            .collect()
    }

    /// Whether a process has an object on some device.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn has_objects(&self, pid: u32) -> Answer<bool> {
        use rm::{ctrl, layout::pids as l};
        for device in &self.devices {
            let mut block = Block::new(l::SIZE);
            self.client
                .control(device.subdevice, ctrl::NV2080_GPU_GET_PIDS, &mut block)?;
            let count = block.u32(l::PID_TBL_COUNT) as usize;
            if (0..count).any(|i| block.u32(l::PID_TBL + 4 * i) == pid) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Who has had the engines of a simulated GPU, by its own clock.
    ///
    /// # Errors
    /// `ENODEV` on a real driver, which has no such question, and for a GPU that is not there.
    pub fn usage(&self, gpu: u32) -> io::Result<Usage> {
        self.client.node().usage(gpu)
    }

    /// What the driver itself says a process holds, in bytes by device.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn memory_of(&self, pid: u32) -> Answer<Vec<u64>> {
        self.devices
            .iter()
            .map(|device| device.memory_of(&self.client, pid))
            .collect()
    }
}

/// How a program went.
#[derive(Debug)]
pub struct Played {
    /// What it found out, in order.
    pub findings: Vec<Finding>,
    /// How it ended; `None`: it took too long and was killed.
    pub status: Option<ExitStatus>,
    /// Lines that were no [`Line`].
    pub other: Vec<String>,
    /// What was printed on standard error.
    pub errors: String,
}

impl Played {
    /// The one finding, or why there is none.
    ///
    /// # Errors
    /// One line.
    pub fn finding(&self) -> Result<&Finding, String> {
        match (self.findings.as_slice(), self.status) {
            ([finding], Some(status)) if status.success() => Ok(finding),
            (_, None) => Err(format!(
                "the program took too long and was ended: {}",
                self.last_words()
            )),
            (_, Some(status)) => Err(format!(
                "the program ended with {status}: {}",
                self.last_words()
            )),
        }
    }

    fn last_words(&self) -> String {
        self.errors
            .lines()
            .last()
            .unwrap_or("it said nothing")
            .to_owned()
    }
}

/// A running program of a tenant.
pub struct Program {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    errors: std::thread::JoinHandle<String>,
}

impl Program {
    /// Starts it with its three standard streams in our hands.
    ///
    /// # Errors
    /// As execve(2).
    pub fn start(mut command: Command) -> io::Result<Program> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let stdin = child.stdin.take().ok_or_else(gone)?;
        let stdout = child.stdout.take().ok_or_else(gone)?;
        let mut stderr = child.stderr.take().ok_or_else(gone)?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            // What was read before an error is all there is to show.
            let _read = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Program {
            child,
            stdin,
            lines,
            errors,
        })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line; `None`: it has closed its output, or `until` has come.
    pub fn line(&self, until: Instant) -> Option<String> {
        self.lines
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .ok()
    }

    /// The newest of the lines that are there.
    pub fn newest(&self) -> Option<String> {
        self.lines.try_iter().last()
    }

    /// Answers a question.
    pub fn tell(&mut self, told: &Told) {
        if let Ok(text) = serde_json::to_string(told) {
            // A program that has ended meanwhile needs no answer.
            let _written = writeln!(self.stdin, "{text}").and_then(|()| self.stdin.flush());
        }
    }

    /// Asks it to end, and ends it if it does not; returns what it wrote on standard error.
    pub fn stop(mut self) -> String {
        // It may have ended by itself.
        let _ended = self.terminate();
        self.errors.join().unwrap_or_default()
    }

    /// Serves it to its end.
    ///
    /// # Errors
    /// As waitpid(2).
    pub fn play(
        mut self,
        limit: Duration,
        mut answer: impl FnMut(&Line) -> Option<Told>,
    ) -> io::Result<Played> {
        let until = Instant::now() + limit;
        let (mut findings, mut other) = (Vec::new(), Vec::new());
        let in_time = loop {
            match self
                .lines
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(text) => match serde_json::from_str(&text) {
                    Ok(Line::Finding(finding)) => findings.push(finding),
                    Ok(line) => {
                        if let Some(told) = answer(&line) {
                            self.tell(&told);
                        }
                    }
                    Err(_) => other.push(text),
                },
                Err(RecvTimeoutError::Disconnected) => break true,
                Err(RecvTimeoutError::Timeout) => break false,
            }
        };
        let status = self.end(in_time.then_some(until))?;
        Ok(Played {
            findings,
            status,
            other,
            errors: self.errors.join().unwrap_or_default(),
        })
    }

    /// Waits for the end of a program that has closed its output; `None`: it is too late.
    fn end(&mut self, until: Option<Instant>) -> io::Result<Option<ExitStatus>> {
        if let Some(until) = until
            && let Some(status) = self.wait(until)?
        {
            return Ok(Some(status));
        }
        self.terminate()?;
        Ok(None)
    }

    fn wait(&mut self, until: Instant) -> io::Result<Option<ExitStatus>> {
        const LOOK: Duration = Duration::from_millis(2);
        loop {
            match self.child.try_wait()? {
                None if Instant::now() < until => std::thread::sleep(LOOK),
                ended => return Ok(ended),
            }
        }
    }

    fn terminate(&mut self) -> io::Result<()> {
        const GRACE: Duration = Duration::from_secs(2);
        // SAFETY: kill(2) takes two numbers; the child has not been waited for, so the first is still its own.
        unsafe { libc::kill(self.pid() as libc::pid_t, libc::SIGTERM) };
        if self.wait(Instant::now() + GRACE)?.is_none() {
            self.child.kill()?;
            self.child.wait()?;
        }
        Ok(())
    }
}

/// Prints a line for whoever watches.
///
/// # Panics
/// Nobody reads standard output any more.
pub fn print(line: &Line) {
    let text = serde_json::to_string(line).unwrap_or_default();
    println!("{text}");
}

/// Asks whoever watches; `None`: nobody does.
pub fn ask(line: &Line) -> Option<Told> {
    print(line);
    let mut text = String::new();
    io::stdin().read_line(&mut text).ok().filter(|&n| n > 0)?;
    serde_json::from_str(&text).ok()
}
