//! `gpuslice trace`: a line for every driver call of a command, fit to be sent with a bug report.
//!
//! The command runs in a slice as large as the cards, and its helper writes the lines. They tell which calls were made,
//! how large they were and how they were answered; handles, addresses and all other values are left out unless asked
//! for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use guard::backend::Node;
use guard::listener::Reply;
use guard::rmcall::Gpu;
use guard::sys::Tid;
use guard::trace::{Trace, TraceConfig, Traced, TracedCall};
use rm::{Abi, Decision, layout, nr};

use crate::args::{Isolation, RunOptions, TraceOptions};
use crate::stream::Recorder;
use crate::{Failure, run, say};

/// Runs a command traced; returns its exit status.
///
/// # Errors
/// As [`run::run`], or the output cannot be written.
pub fn run(options: &TraceOptions) -> Result<u8, Failure> {
    if let Some(path) = &options.output {
        File::create(path).map_err(|e| format!("--output {}: {e}", path.display()))?;
    }
    if let Some(path) = &options.stream {
        File::create(path).map_err(|e| format!("--stream {}: {e}", path.display()))?;
    }
    let in_slice = RunOptions {
        memory: Some("100%".parse()?),
        weight: None,
        cap: None,
        latency: None,
        gpu: Vec::new(),
        name: None,
        user: options.user.clone(),
        isolation: Isolation::Guard,
        overcommit: true,
        call_rate: guard::budget::CALLS_A_SECOND,
        audit_report_only: true,
        sim: options.sim.clone(),
        without: None,
        device: None,
        command: options.command.clone(),
    };
    let output = options
        .output
        .as_ref()
        .map(std::path::absolute)
        .transpose()?;
    let stream = options
        .stream
        .as_ref()
        .map(std::path::absolute)
        .transpose()?;
    let status = run::run_traced(
        &in_slice,
        Some(TraceConfig {
            output,
            stream,
            values: options.values,
        }),
    )?;
    Ok(status)
}

/// What a helper is to write, opened: lines for people, a stream, or both.
///
/// # Errors
/// A file cannot be written, or the driver is of an unknown branch.
pub fn open(config: &TraceConfig, driver_version: &str) -> io::Result<Box<dyn Trace>> {
    let Some(path) = &config.stream else {
        return Ok(Box::new(Log::open(config, driver_version)?));
    };
    let stream = Recorder::open(path, driver_version)?;
    if config.output.is_none() {
        return Ok(Box::new(stream));
    }
    Ok(Box::new(Both(Log::open(config, driver_version)?, stream)))
}

struct Both(Log, Recorder);

impl Trace for Both {
    fn begin(&self, gpus: &[&Gpu]) {
        self.1.begin(gpus);
    }

    fn note(&self, call: &Traced<'_>) {
        self.0.note(call);
        self.1.note(call);
    }

    fn unmapped(&self, process: Tid, address: u64, length: u64) {
        self.1.unmapped(process, address, length);
    }

    fn closed(&self, file: u64) {
        self.1.closed(file);
    }

    fn process_ended(&self, process: Tid) {
        self.1.process_ended(process);
    }

    fn end(&self) {
        self.0.end();
        self.1.end();
    }
}

/// Writes the lines, in the helper.
pub struct Log {
    abi: &'static Abi,
    values: bool,
    state: Mutex<State>,
}

struct State {
    to: Box<dyn Write + Send>,
    /// Whether a line could not be written.
    incomplete: bool,
    counts: BTreeMap<String, u64>,
    unknown: BTreeMap<String, u64>,
}

impl Log {
    /// Opens the output.
    ///
    /// # Errors
    /// It cannot be written, or the driver is of an unknown branch.
    pub fn open(config: &TraceConfig, driver_version: &str) -> io::Result<Log> {
        let to: Box<dyn Write + Send> = match &config.output {
            Some(path) => Box::new(File::options().append(true).open(path)?),
            None => Box::new(io::stderr()),
        };
        let found = rm::for_driver(driver_version).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(Log::new(found.abi, config.values, to, driver_version))
    }

    fn new(abi: &'static Abi, values: bool, to: Box<dyn Write + Send>, version: &str) -> Log {
        let state = State {
            to,
            incomplete: false,
            counts: BTreeMap::new(),
            unknown: BTreeMap::new(),
        };
        let log = Log {
            abi,
            values,
            state: Mutex::new(state),
        };
        log.line(&format!(
            "driver {version}, branch {}, gpuslice {}",
            abi.branch(),
            env!("CARGO_PKG_VERSION")
        ));
        log
    }

    fn line(&self, text: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written ends nothing: the command is what matters. But nobody shall take it for whole.
        if let Err(e) = writeln!(state.to, "trace: {text}")
            && !std::mem::replace(&mut state.incomplete, true)
        {
            say::note(format_args!(
                "gpuslice: the trace cannot be written: {e}; lines are missing"
            ));
        }
    }

    fn ioctl(&self, node: Node, request: u32, block: &[u8], params: usize) -> Described {
        match node {
            Node::Uvm => self.uvm(request, block),
            Node::Control | Node::Gpu(_) => self.escape(node, request, block, params),
        }
    }

    fn uvm(&self, request: u32, block: &[u8]) -> Described {
        let entry = self.abi.uvm(request);
        let name = entry.map_or("unknown", |e| e.name);
        let status = entry
            .and_then(|e| e.status)
            .and_then(|at| word(block, usize::from(at)));
        Described {
            what: format!("nvidia-uvm {request} {name}"),
            size: format!("{} bytes", block.len()),
            status,
            known: entry.is_some(),
            decision: entry.map(|e| e.decision),
        }
    }

    fn escape(&self, node: Node, request: u32, block: &[u8], params: usize) -> Described {
        let (number, size) = (request as u8, request >> 16 & 0x3fff);
        let file = if node == Node::Control {
            "nvidiactl"
        } else {
            "nvidiaN"
        };
        let entry = self.abi.escape(number);
        let mut what = format!(
            "{file} {number:#04x} {}",
            entry.map_or("unknown", |e| e.name)
        );
        let (mut known, mut decision) = (entry.is_some(), entry.map(|e| e.decision));
        let mut detail = |id: Option<u32>, found: Option<(&'static str, Decision)>| {
            let Some(id) = id else { return };
            known = found.is_some();
            decision = found.map(|(_, d)| d);
            what += &format!(" {} ({id:#x})", found.map_or("unknown", |(name, _)| name));
        };
        match number {
            nr::RM_CONTROL => {
                let cmd = word(block, layout::nvos54::CMD);
                detail(
                    cmd,
                    cmd.and_then(|c| self.abi.control(c))
                        .map(|c| (c.name, c.decision)),
                );
            }
            nr::RM_ALLOC => {
                let class = word(block, layout::nvos64::H_CLASS);
                detail(
                    class,
                    class
                        .and_then(|c| self.abi.class(c))
                        .map(|c| (c.name, c.decision)),
                );
            }
            _ => {}
        }
        let status = entry.and_then(|e| {
            let i = e.sizes.iter().position(|&s| u32::from(s) == size)?;
            word(block, usize::from(e.status.get(i).copied().flatten()?))
        });
        let size = if params > 0 {
            format!("{size} + {params} bytes")
        } else {
            format!("{size} bytes")
        };
        Described {
            what,
            size,
            status,
            known,
            decision,
        }
    }
}

/// A call in words.
struct Described {
    what: String,
    size: String,
    status: Option<u32>,
    known: bool,
    decision: Option<Decision>,
}

fn word(block: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(block.get(at..at + 4)?.try_into().ok()?))
}

fn answer(answer: Option<Reply>, status: Option<u32>) -> String {
    match (answer, status) {
        (None, _) => "the caller was killed".into(),
        (Some(Reply::Errno(e)), _) => format!("error {}", io::Error::from_raw_os_error(e)),
        (Some(Reply::Continue), _) => "runs in the program".into(),
        (Some(Reply::Value(_)), Some(status)) => format!("status {status:#x}"),
        (Some(Reply::Value(v)), None) => format!("returns {v}"),
    }
}

impl Trace for Log {
    fn note(&self, traced: &Traced<'_>) {
        let (described, block) = match traced.call {
            TracedCall::Ioctl {
                node,
                request,
                block,
                params,
                ..
            } => (self.ioctl(node, request, block, params.len()), block),
            TracedCall::Map { length, .. } => {
                let what = "nvidia-uvm mmap managed memory".into();
                let size = format!("{length} bytes");
                (
                    Described {
                        what,
                        size,
                        status: None,
                        known: true,
                        decision: None,
                    },
                    &[][..],
                )
            }
            // A number that the driver would take, on a file of another.
            TracedCall::Other => return,
        };
        let mut line = format!(
            "{}, {}, {}",
            described.what,
            described.size,
            answer(traced.answer, described.status)
        );
        if let Some(Decision::Refuse(_)) = described.decision {
            line += ", refused by gpuslice";
        }
        if self.values {
            line += &format!(", thread {}", traced.thread);
            for bytes in block.chunks_exact(4) {
                line += &format!(" {:x}", word(bytes, 0).unwrap_or_default());
            }
        }
        self.line(&line);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !described.known {
            *state.unknown.entry(described.what.clone()).or_default() += 1;
        }
        *state.counts.entry(described.what).or_default() += 1;
    }

    fn end(&self) {
        let (counts, unknown) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (
                std::mem::take(&mut state.counts),
                std::mem::take(&mut state.unknown),
            )
        };
        let total: u64 = counts.values().sum();
        self.line(&format!(
            "{total} calls of {} kinds (UVM calls that are always let through are not seen):",
            counts.len()
        ));
        let mut by_count: Vec<(&String, &u64)> = counts.iter().collect();
        by_count.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        for (what, count) in by_count {
            self.line(&format!("{count:7} {what}"));
        }
        match unknown.len() {
            0 => self.line("no call that this version does not know"),
            n => self.line(&format!("{n} kinds that this version does not know:")),
        }
        for (what, count) in &unknown {
            self.line(&format!("{count:7} {what}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guard::trace::Named;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn traced(values: bool, block: &[u8], request: u32) -> String {
        let buffer = Buffer::default();
        let abi = rm::for_driver("580.159.04").unwrap().abi;
        let log = Log::new(abi, values, Box::new(buffer.clone()), "580.159.04");
        let call = TracedCall::Ioctl {
            node: Node::Control,
            file: 1,
            request,
            before: block,
            block,
            params_before: &[0; 1028],
            params: &[0; 1028],
            behind: &[],
        };
        log.note(&Traced {
            thread: 1,
            process: Some(1),
            call,
            answer: Some(Reply::Value(0)),
            descriptor: &|_| Named::Other,
        });
        log.end();
        let text = buffer.0.lock().unwrap().clone();
        String::from_utf8(text).unwrap()
    }

    fn control(cmd: u32) -> [u8; layout::nvos54::SIZE] {
        let mut block = [0; layout::nvos54::SIZE];
        block[layout::nvos54::H_CLIENT..][..4].copy_from_slice(&0xc1d0_1234_u32.to_le_bytes());
        block[layout::nvos54::CMD..][..4].copy_from_slice(&cmd.to_le_bytes());
        block[layout::nvos54::STATUS..][..4].copy_from_slice(&0x51_u32.to_le_bytes());
        block
    }

    const CONTROL: u32 = 0xc020_462a;

    #[test]
    fn a_line_names_the_call_and_its_answer_and_no_handle() {
        let text = traced(false, &control(0x2080_1303), CONTROL);
        let line = text.lines().nth(1).unwrap();
        assert!(
            line.contains("nvidiactl 0x2a ") && line.contains("FB_GET_INFO_V2 (0x20801303)"),
            "{line}"
        );
        assert!(line.ends_with("32 + 1028 bytes, status 0x51"), "{line}");
        assert!(!text.contains("c1d01234"));
        assert!(traced(true, &control(0x2080_1303), CONTROL).contains("c1d01234"));
    }

    #[test]
    fn the_last_lines_list_what_is_not_known() {
        let text = traced(false, &control(0x2080_ffff), CONTROL);
        assert!(
            text.contains("1 kinds that this version does not know"),
            "{text}"
        );
        assert!(text.trim_end().ends_with("unknown (0x2080ffff)"), "{text}");
    }
}
