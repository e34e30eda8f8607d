//! `gpuslice probe`: what a program gets here. A small client of the CUDA driver API that runs on a card and on a
//! simulated node alike.

mod cuda;
mod library;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use policy::units::Bytes;
use serde::Serialize;

use crate::args::ProbeOptions;
use crate::{Failure, human, say};
use cuda::{Cuda, Device, Event, Memory, Refused, Stream};

/// What a probe found. The names are stable: programs read them.
#[derive(Debug, Serialize)]
struct Report {
    /// Version of the CUDA driver API: `1000 * major + 10 * minor`.
    cuda_version: i32,
    /// Position of the device that allocation and work ran on.
    device: usize,
    devices: Vec<DeviceReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alloc: Option<AllocReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    work: Option<WorkReport>,
}

#[derive(Debug, Serialize)]
struct DeviceReport {
    index: usize,
    uuid: String,
    name: String,
    total_bytes: u64,
    /// Free with a context made.
    free_bytes: u64,
}

#[derive(Debug, Serialize)]
struct AllocReport {
    step_bytes: u64,
    steps: u64,
    reached_bytes: u64,
    refused_with: String,
}

#[derive(Debug, Serialize)]
struct WorkReport {
    seconds: f64,
    /// Device time that one kernel asks for.
    kernel_ns: u64,
    kernels: u64,
    kernels_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    graph: Option<GraphReport>,
}

#[derive(Debug, Serialize)]
struct GraphReport {
    seconds: f64,
    kernels_per_replay: u32,
    replays: u64,
    replays_per_second: f64,
}

/// Device time of one kernel: short beside a slice of the scheduler's, long beside a launch.
const KERNEL_NS: u64 = 200_000;
const KERNELS_PER_GRAPH: u32 = 10;
/// Submissions in flight, so that the device never waits for us.
const IN_FLIGHT: usize = 4;
/// What a program says that waits for the others.
pub const READY: &str = "ready";
/// Words of each step that are written: whether the memory is there, not how fast it is.
const TOUCHED_WORDS: u64 = 16;
/// More steps say nothing that fewer would not.
const MOST_STEPS: u64 = 1 << 20;

/// Runs the probe.
///
/// # Errors
/// One line: what was missing or refused.
pub fn run(options: &ProbeOptions) -> Result<u8, Failure> {
    let length = options.seconds.map(seconds).transpose()?;
    let cuda = Cuda::new()?;
    let devices = cuda.devices()?;
    let [device, ..] = &devices[..] else {
        return Err("the driver shows this program no device".into());
    };
    let mut progress = Progress::new();
    let mut report = Report {
        cuda_version: cuda.version()?,
        device: 0,
        devices: devices
            .iter()
            .enumerate()
            .map(describe)
            .collect::<Result<_, Refused>>()?,
        alloc: None,
        work: None,
    };
    if let Some(step) = options.alloc {
        let step = step.of(Bytes(report.devices[0].total_bytes)).0;
        report.alloc = Some(allocate(device, step, &mut progress)?);
    }
    if let Some(length) = length {
        let load = if options.together {
            Load::OF_MANY
        } else {
            Load::ALONE
        };
        let streams: Vec<Stream<'_, '_>> = (0..load.streams)
            .map(|_| device.stream())
            .collect::<Result<_, _>>()?;
        report.work = Some(work(&streams, length, load, options.graph, &mut progress)?);
    }
    progress.clear();
    let text = if options.json {
        serde_json::to_string(&report)? + "\n"
    } else {
        table(&report)
    };
    say::print(text.as_bytes())?;
    Ok(0)
}

fn seconds(s: f64) -> Result<Duration, Failure> {
    match Duration::try_from_secs_f64(s) {
        Ok(length) if !length.is_zero() => Ok(length),
        _ => Err(format!("--seconds {s:?}: give a time above zero, such as 2.5").into()),
    }
}

fn describe((index, device): (usize, &Device<'_>)) -> Result<DeviceReport, Refused> {
    let (free_bytes, total_bytes) = device.memory()?;
    Ok(DeviceReport {
        index,
        uuid: device.uuid()?,
        name: device.name()?,
        total_bytes,
        free_bytes,
    })
}

/// Allocates until it is refused, touches every step, and frees everything.
fn allocate(
    device: &Device<'_>,
    step: u64,
    progress: &mut Progress,
) -> Result<AllocReport, Failure> {
    if step < 4 * TOUCHED_WORDS {
        return Err(format!(
            "--alloc {step}: a step is at least {} bytes",
            4 * TOUCHED_WORDS
        )
        .into());
    }
    let stream = device.stream()?;
    let mut held: Vec<Memory<'_, '_>> = Vec::new();
    let refused_with = loop {
        if held.len() as u64 == MOST_STEPS {
            return Err(format!(
                "--alloc {step}: {MOST_STEPS} steps were all granted; use larger steps"
            )
            .into());
        }
        match device.allocate(step) {
            Ok(memory) => {
                stream.fill(&memory, held.len() as u32, TOUCHED_WORDS)?;
                held.push(memory);
            }
            Err(refused) => break refused.with,
        }
        progress.say(|| format!("allocated {}", human(Bytes(step * held.len() as u64))));
    };
    stream.wait()?;
    let steps = held.len() as u64;
    Ok(AllocReport {
        step_bytes: step,
        steps,
        reached_bytes: steps * step,
        refused_with,
    })
}

/// What is submitted, and how much of it is in flight.
#[derive(Clone, Copy)]
struct Load {
    kernel_ns: u64,
    /// Kernels of one submission.
    batch: u64,
    in_flight: usize,
    /// Streams that take turns: where one has run dry the other has not.
    streams: usize,
    /// Whether others are to begin at the same time.
    together: bool,
}

impl Load {
    const ALONE: Load = Load {
        kernel_ns: KERNEL_NS,
        batch: 1,
        in_flight: IN_FLIGHT,
        streams: 1,
        together: false,
    };
    /// Where several programs are compared: never without work, or the others would get what is left of its slice.
    const OF_MANY: Load = Load {
        kernel_ns: 2_000_000,
        batch: 16,
        in_flight: 8,
        streams: 2,
        together: true,
    };

    /// Waits for the others.
    fn meet(self) -> Result<(), Failure> {
        if self.together {
            say::print(format!("{READY}\n").as_bytes())?;
            std::io::stdin().read_line(&mut String::new())?;
        }
        Ok(())
    }
}

fn work(
    streams: &[Stream<'_, '_>],
    length: Duration,
    load: Load,
    graph: bool,
    progress: &mut Progress,
) -> Result<WorkReport, Failure> {
    let spin =
        |stream: &Stream<'_, '_>, times| (0..times).try_for_each(|_| stream.spin(load.kernel_ns));
    let (batches, seconds) = count(streams, length, load, progress, "kernels", spin)?;
    let kernels = batches * load.batch;
    let graph = match graph {
        false => None,
        true => {
            let (first, alone) = (&streams[..1], Load::ALONE);
            let graph = first[0].graph(KERNELS_PER_GRAPH, load.kernel_ns)?;
            let replay =
                |stream: &Stream<'_, '_>, times| (0..times).try_for_each(|_| stream.replay(&graph));
            let (replays, seconds) =
                count(first, length, alone, progress, "graph replays", replay)?;
            Some(GraphReport {
                seconds,
                kernels_per_replay: KERNELS_PER_GRAPH,
                replays,
                replays_per_second: replays as f64 / seconds,
            })
        }
    };
    Ok(WorkReport {
        seconds,
        kernel_ns: load.kernel_ns,
        kernels,
        kernels_per_second: kernels as f64 / seconds,
        graph,
    })
}

/// Submits with a few in flight; returns how many were done and in how many seconds. The first is not counted: it waits
/// for what was loaded to reach the device.
fn count(
    streams: &[Stream<'_, '_>],
    length: Duration,
    load: Load,
    progress: &mut Progress,
    what: &str,
    submit: impl Fn(&Stream<'_, '_>, u64) -> Result<(), Refused>,
) -> Result<(u64, f64), Failure> {
    for stream in streams {
        submit(stream, load.batch)?;
        stream.wait()?;
    }
    let turns = streams.iter().cycle().take(load.in_flight);
    let flying: Vec<(&Stream<'_, '_>, Event)> = turns
        .map(|stream| Ok((stream, stream.event()?)))
        .collect::<Result<_, Refused>>()?;
    load.meet()?;
    let start = Instant::now();
    // Not counted: so that streams that take turns do not run dry at the same time.
    submit(&streams[0], load.batch / 2)?;
    for (stream, event) in &flying {
        submit(stream, load.batch)?;
        stream.record(event)?;
    }
    let mut done = 0;
    for (stream, event) in flying.iter().cycle() {
        stream.wait_for(event)?;
        done += 1;
        let elapsed = start.elapsed();
        if elapsed >= length {
            streams.iter().try_for_each(Stream::wait)?;
            return Ok((done, elapsed.as_secs_f64()));
        }
        submit(stream, load.batch)?;
        stream.record(event)?;
        progress.say(|| {
            format!(
                "{} {what} in {:.1} s",
                done * load.batch,
                elapsed.as_secs_f64()
            )
        });
    }
    unreachable!("a cycle over a few events does not end")
}

fn table(report: &Report) -> String {
    let mut text = String::new();
    for d in &report.devices {
        text += &format!("device {}   {}  {}\n", d.index, d.name, d.uuid);
        text += &format!(
            "  memory   {} in all, {} free\n",
            human(Bytes(d.total_bytes)),
            human(Bytes(d.free_bytes))
        );
    }
    if let Some(a) = &report.alloc {
        text += &format!(
            "allocated  {} in {} step{} of {}, then {}\n",
            human(Bytes(a.reached_bytes)),
            a.steps,
            if a.steps == 1 { "" } else { "s" },
            human(Bytes(a.step_bytes)),
            a.refused_with
        );
    }
    if let Some(w) = &report.work {
        let us = w.kernel_ns / 1000;
        text += &format!(
            "kernels    {:.0} a second, each asking for {us} us\n",
            w.kernels_per_second
        );
        if let Some(g) = &w.graph {
            text += &format!(
                "graphs     {:.0} replays a second, {} kernels each\n",
                g.replays_per_second, g.kernels_per_replay
            );
        }
    }
    text
}

/// One line on a terminal that is written over.
struct Progress {
    terminal: bool,
    last: Option<Instant>,
}

const SAY_EVERY: Duration = Duration::from_millis(100);

impl Progress {
    fn new() -> Progress {
        Progress {
            terminal: std::io::stderr().is_terminal(),
            last: None,
        }
    }

    fn say(&mut self, line: impl FnOnce() -> String) {
        if self.terminal && self.last.is_none_or(|t| t.elapsed() >= SAY_EVERY) {
            self.last = Some(Instant::now());
            self.write(&line());
        }
    }

    fn clear(&mut self) {
        if self.last.is_some() {
            self.write("");
        }
    }

    fn write(&self, line: &str) {
        let mut err = std::io::stderr().lock();
        // A terminal that cannot be written to needs no progress.
        let _written = write!(err, "\r\x1b[K{line}").and_then(|()| err.flush());
    }
}
