//! Whether slices divide a card's time: two kernels run beside each other at 3 : 1, in slices of their own, while the
//! scheduler sets slices and does nothing else. On some cards the driver takes a slice and keeps to its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use guard::registry::Entry;
use guard::rmcall::Gpu;
use guard::share::board::{self, Board, SENSORS};
use guard::sys;
use serde::Serialize;
use serde_json::Value;

use super::Check;
use crate::Failure;
use crate::probe::READY;

/// What is asked for, and by which weights.
const ASKED: f64 = 3.0;
const WEIGHTS: [(&str, &str); 2] = [("most", "75"), ("rest", "25")];
/// How long the kernels run, of that until they are looked at, and for how long.
const SECONDS: &str = "3";
const SETTLE: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_secs(2);
/// How often at most.
const TRIES: u32 = 3;
/// So much less or more is still 3 : 1, with the noise of a sensor that samples.
const HOLDS: std::ops::RangeInclusive<f64> = 2.4..=3.75;
/// From here on slices do something.
const INERT_BELOW: f64 = 1.25;

/// What slices do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// They divide the card as they are set.
    Hold,
    /// They divide it otherwise.
    Partly,
    /// They do nothing.
    Inert,
    /// It could not be tried.
    Unknown,
}

/// How it went on one card. The names are stable: programs read them.
#[derive(Debug, Serialize)]
pub struct Tried {
    /// Position of the card in the driver's order.
    gpu: u32,
    uuid: String,
    verdict: Verdict,
    /// Time of the one for each part of the other's.
    asked: f64,
    /// As the node's scheduler saw it; null where it saw nothing.
    by_sensor: Option<f64>,
    /// By how many kernels of equal length each has finished.
    by_kernels: Option<f64>,
    /// `timeline`, `sampled` or `none`.
    sensor: &'static str,
    /// In words.
    found: String,
}

/// What two kernels had.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    sensor: &'static str,
    by_sensor: Option<f64>,
    by_kernels: f64,
}

impl Ratio {
    /// The one to go by: a timeline is exact, and is of the time when both ran.
    fn best(&self) -> f64 {
        match self.by_sensor {
            Some(ratio) if self.sensor == "timeline" => ratio,
            _ => self.by_kernels,
        }
    }

    fn verdict(&self) -> Verdict {
        match self.best() {
            ratio if HOLDS.contains(&ratio) => Verdict::Hold,
            ratio if ratio < INERT_BELOW => Verdict::Inert,
            _ => Verdict::Partly,
        }
    }

    fn words(&self) -> String {
        let ratio = self.best();
        match self.verdict() {
            Verdict::Hold => format!("slices hold on this card: {ratio:.2} : 1"),
            Verdict::Inert => format!(
                "slices are inert on this card ({ratio:.2} : 1): weights cannot be enforced by slices here"
            ),
            Verdict::Partly | Verdict::Unknown => {
                format!("slices do not divide this card as they are set: {ratio:.2} : 1 for 3 : 1")
            }
        }
    }
}

impl Tried {
    /// Whether slices hold.
    pub fn holds(&self) -> bool {
        self.verdict == Verdict::Hold
    }

    /// The line of the report.
    pub fn check(&self) -> Check {
        let name = format!("compute shares, GPU {}", self.gpu);
        match self.verdict {
            Verdict::Hold => Check::fine(&name, &self.found),
            Verdict::Inert | Verdict::Partly => Check::weak(
                &name,
                &self.found,
                "do not count on --weight on this card: `gpuslice run` sets slices there all the same",
            ),
            Verdict::Unknown => {
                Check::weak(&name, &self.found, "ask again when nobody uses the card")
            }
        }
    }
}

/// What is said where the cards were not to be used, or cannot be.
pub fn not_tried(asked: bool) -> Check {
    const NAME: &str = "compute shares";
    if asked {
        Check::missing(NAME, "not tried: `gpuslice run` does not work", "see above")
    } else {
        let found = "whether slices divide these cards was not tried: `gpuslice doctor --shares` does, and uses each for 5 s";
        Check::fine(NAME, found)
    }
}

/// Tries it on a card that nobody has a slice of.
pub fn try_on(gpu: &Gpu, folder: &Path, sim: Option<&Path>, tenants: &[Entry]) -> Tried {
    let mut here = tenants
        .iter()
        .filter(|t| t.memory.iter().any(|(u, _)| *u == gpu.uuid));
    let ratio = match here.next() {
        Some(other) => Err(format!("slice {:?} is on it", other.name).into()),
        None => try_again(|| measure(gpu, folder, sim)),
    };
    let tried = Tried {
        gpu: gpu.index,
        uuid: gpu.uuid.clone(),
        verdict: Verdict::Unknown,
        asked: ASKED,
        by_sensor: None,
        by_kernels: None,
        sensor: SENSORS[0],
        found: String::new(),
    };
    match ratio {
        Ok(ratio) => Tried {
            verdict: ratio.verdict(),
            by_sensor: ratio.by_sensor,
            by_kernels: Some(ratio.by_kernels),
            sensor: ratio.sensor,
            found: format!(
                "{} (sensor {}: {}, kernels done: {:.2} : 1)",
                ratio.words(),
                ratio.sensor,
                ratio
                    .by_sensor
                    .map_or("-".into(), |r| format!("{r:.2} : 1")),
                ratio.by_kernels
            ),
            ..tried
        },
        Err(e) => Tried {
            found: format!("not tried: {e}"),
            ..tried
        },
    }
}

/// A machine that is busy keeps programs from queueing their work in time, and then slices end early: what is neither the
/// one nor the other is looked at again.
fn try_again(mut measure: impl FnMut() -> Result<Ratio, Failure>) -> Result<Ratio, Failure> {
    let mut ratio = measure()?;
    for _ in 1..TRIES {
        if ratio.verdict() != Verdict::Partly {
            break;
        }
        ratio = measure()?;
    }
    Ok(ratio)
}

fn measure(gpu: &Gpu, folder: &Path, sim: Option<&Path>) -> Result<Ratio, Failure> {
    let mut pair = Vec::new();
    for (name, weight) in WEIGHTS {
        pair.push(Spinner::start(gpu, sim, name, weight)?);
    }
    for spinner in &mut pair {
        spinner.is_ready()?;
    }
    let boards = pair
        .iter()
        .map(|spinner| board::map_board(&board::board_file(folder, &spinner.name)?))
        .collect::<Result<Vec<_>, _>>()?;
    for board in &boards {
        board.slices_alone.store(1, Ordering::Release);
    }
    for spinner in &mut pair {
        spinner.go()?;
    }
    let ran = |board: &Board| board.cards[0].ran_us.load(Ordering::Acquire);
    let all = || boards.iter().map(|board| ran(board)).collect::<Vec<_>>();
    thread::sleep(SETTLE);
    let before = all();
    thread::sleep(LOOK);
    let after = all();
    let node = board::map_node(&board::node_file(folder)?)?;
    let sensor = node.sensor.load(Ordering::Acquire) as usize;
    let sensor = SENSORS.get(sensor).copied().unwrap_or(SENSORS[0]);
    let mut kernels = Vec::new();
    for spinner in pair {
        kernels.push(spinner.kernels()?);
    }
    let ratio = |most: f64, rest: f64| most / rest.max(f64::MIN_POSITIVE);
    let by_sensor = ratio((after[0] - before[0]) as f64, (after[1] - before[1]) as f64);
    Ok(Ratio {
        sensor,
        // Where nobody saw anything the scheduler presumes, and that says nothing.
        by_sensor: (sensor != SENSORS[0] && by_sensor.is_normal()).then_some(by_sensor),
        by_kernels: ratio(kernels[0], kernels[1]),
    })
}

/// A program that keeps a card busy, in a slice of its own.
struct Spinner {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Spinner {
    fn start(gpu: &Gpu, sim: Option<&Path>, name: &str, weight: &str) -> Result<Spinner, Failure> {
        let program = std::env::current_exe()?;
        let name = format!("doctor-{}-{name}", std::process::id());
        let mut command = Command::new(&program);
        command.args([
            "run", "--name", &name, "--weight", weight, "--gpu", &gpu.uuid,
        ]);
        command.args(["--memory", "1GiB"]);
        if let Some(socket) = sim {
            command.arg("--sim").arg(socket);
        }
        command.arg("--").arg(&program);
        command.args(["probe", "--json", "--together", "--seconds", SECONDS]);
        let streams = [Stdio::piped(), Stdio::piped(), Stdio::piped()];
        let [stdin, stdout, stderr] = streams;
        let mut child = command.stdin(stdin).stdout(stdout).stderr(stderr).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Ok(Spinner {
            name,
            child,
            input,
            output: BufReader::new(output.ok_or("no pipe")?),
        })
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            let mut said = String::new();
            if let Some(errors) = &mut self.child.stderr {
                errors.read_to_string(&mut said)?;
            }
            let last = said.lines().last().unwrap_or("it said nothing");
            return Err(format!("the program on it ended: {last}").into());
        }
        Ok(line)
    }

    fn is_ready(&mut self) -> Result<(), Failure> {
        match self.line()?.trim_end() {
            READY => Ok(()),
            other => Err(format!("the program on it said {other:?}").into()),
        }
    }

    fn go(&mut self) -> Result<(), Failure> {
        let mut input = self.input.take().ok_or("it was told already")?;
        Ok(input.write_all(b"go\n")?)
    }

    /// What it has done in its time, when that is over.
    fn kernels(mut self) -> Result<f64, Failure> {
        let report: Value = serde_json::from_str(&self.line()?)?;
        let done = report["work"]["kernels"].as_f64();
        Ok(done.ok_or("the program on it did not count")?)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        drop(self.input.take());
        // It may have ended.
        let _sent = sys::kill(self.child.id() as i32, libc::SIGTERM);
        let _ended = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(sensor: &'static str, by_sensor: Option<f64>, by_kernels: f64) -> Ratio {
        Ratio {
            sensor,
            by_sensor,
            by_kernels,
        }
    }

    #[test]
    fn what_is_neither_is_looked_at_again_and_no_more_than_that() {
        let tried = |ratios: &[f64]| {
            let mut left = ratios.iter();
            let found = try_again(|| Ok(ratio("none", None, *left.next().unwrap())));
            (found.unwrap().verdict(), left.len())
        };
        assert_eq!(tried(&[3.0, 1.0]), (Verdict::Hold, 1));
        assert_eq!(tried(&[1.0, 3.0]), (Verdict::Inert, 1));
        assert_eq!(tried(&[1.8, 3.0, 1.0]), (Verdict::Hold, 1));
        assert_eq!(tried(&[1.8, 1.8, 1.8, 3.0]), (Verdict::Partly, 1));
    }

    #[test]
    fn a_timeline_decides_and_else_the_kernels() {
        let inert = ratio("timeline", Some(1.02), 1.1);
        assert_eq!(inert.verdict(), Verdict::Inert);
        assert_eq!(
            inert.words(),
            "slices are inert on this card (1.02 : 1): weights cannot be enforced by slices here"
        );
        let holds = ratio("timeline", Some(2.98), 2.7);
        assert_eq!(holds.words(), "slices hold on this card: 2.98 : 1");
        assert_eq!(ratio("sampled", Some(2.1), 2.9).verdict(), Verdict::Hold);
        assert_eq!(ratio("none", None, 1.0).verdict(), Verdict::Inert);
        assert_eq!(ratio("timeline", Some(1.9), 3.0).verdict(), Verdict::Partly);
        assert_eq!(ratio("timeline", Some(9.0), 9.0).verdict(), Verdict::Partly);
    }
}
