//! The command line, as one table: parser, help, man page and completions come from here.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use policy::share::LATENCY_US;
use policy::units::Size;

/// Slices NVIDIA GPUs between tenants who don't trust each other.
#[derive(Debug, Parser)]
#[command(name = "gpuslice", version, about, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command inside a slice of a GPU
    Run(RunOptions),
    /// Run a command on simulated GPUs, with no slice round it
    Sim {
        /// 1xH200, 2xH200, or the socket of a running simulated node
        #[arg(value_name = "SPEC")]
        spec: String,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Show the GPU memory and the work that a program gets here: run it inside a slice
    Probe(ProbeOptions),
    /// Say which isolation this node has, and why not
    Doctor(NodeOptions),
    /// Lock the driver's device files to all but slices, and say whether they are
    Setup(SetupOptions),
    /// List the slices that live on this node
    Ps(PsOptions),
    /// Change the memory or the part of the GPU's time of a slice that runs
    Set(SetOptions),
    /// Take a slice off its GPUs: its programs stay and wait, its memory stays its own
    Pause(PauseOptions),
    /// Let a paused slice run again
    Resume(PauseOptions),
    /// End a slice
    Stop(StopOptions),
    /// Run a command with a line for every driver call, to send with a bug report
    Trace(TraceOptions),
    /// Print the completions of a shell
    Completions {
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
    /// Show a slice's walls: three tenants on simulated GPUs, one of them cheating
    Demo(DemoOptions),
    /// A tenant's program (started by `demo` and the tests)
    #[command(name = "__tenant", hide = true)]
    Tenant {
        name: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// A simulated node (started by `run` and `sim`)
    #[command(name = "__sim", hide = true)]
    SimServer { spec: String, folder: PathBuf },
    /// The node's scheduler (started by `run`)
    #[command(name = "__scheduler", hide = true)]
    Scheduler {
        folder: PathBuf,
        lock: i32,
        sim: Option<PathBuf>,
    },
    /// A tenant's helper (started by `run`)
    #[command(name = "__helper", hide = true)]
    Helper {
        config: i32,
        socket: i32,
        lease: i32,
    },
}

/// Percents with at most two decimals, as hundredths.
fn percent(text: &str) -> Result<u16, String> {
    let wrong = || format!("{text:?} is no percentage from 1 to 100, such as 25 or 12.5");
    let number = text.strip_suffix('%').unwrap_or(text);
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || whole.len() > 3 || part.len() > 2 {
        return Err(wrong());
    }
    let hundredths = format!("{whole}{part:0<2}").parse().map_err(|_| wrong())?;
    if (100..=10_000).contains(&hundredths) {
        Ok(hundredths)
    } else {
        Err(wrong())
    }
}

/// A cap that can be lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(pub Option<u16>);

fn cap(text: &str) -> Result<Cap, String> {
    match text {
        "none" => Ok(Cap(None)),
        text => match percent(text) {
            Ok(hundredths) => Ok(Cap(Some(hundredths))),
            Err(wrong) => Err(format!("{wrong}, and not none")),
        },
    }
}

/// Microseconds of a neighbour's slice.
fn latency(text: &str) -> Result<u32, String> {
    let us = text.parse().ok().filter(|us| LATENCY_US.contains(us));
    us.ok_or_else(|| {
        format!("{text:?} is no number of microseconds from 200 to 10000; leave it out for 500")
    })
}

/// How strongly a slice is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Isolation {
    /// Outside the tenant: for tenants who don't trust each other
    Guard,
    /// Inside the tenant's processes: for tenants who trust each other
    Shim,
    /// NVIDIA MPS: for trusted replicas
    Mps,
    /// NVIDIA MIG: in hardware
    Mig,
}

#[derive(Debug, Args)]
pub struct DemoOptions {
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// Take one wall away, to see what it is for: the check of that name must then fail
    #[arg(long, value_name = "WALL")]
    pub without: Option<String>,
    /// Look at this wall only; repeat for several [default: all]
    #[arg(long, value_name = "WALL")]
    pub only: Vec<String>,
}

#[derive(Debug, Args)]
pub struct RunOptions {
    /// Device memory on each GPU: bytes, or 512MiB, 20GiB, 25% [default: all that is not granted to others]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<Size>,
    /// Part of a GPU's time against the other slices' weights, while they want it too: 1 to 10000 [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub weight: Option<u32>,
    /// Most of a GPU's time, also when nobody else wants it: 1 to 100 percent, as 25, 12.5 or 25%
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub cap: Option<u16>,
    /// Serve this slice soon: while it is awake, its neighbours run for so many microseconds at a time, 200 to 10000
    /// [when given without a number: 500]
    #[arg(long, value_name = "US", num_args = 0..=1, default_missing_value = "500", value_parser = latency)]
    pub latency: Option<u32>,
    /// GPU by index or UUID (as nvidia-smi shows them); repeat for several [default: CUDA_VISIBLE_DEVICES, else all]
    #[arg(long, value_name = "INDEX|UUID", allow_negative_numbers = true)]
    pub gpu: Vec<String>,
    /// Name of the slice [default: the command's name and a number]
    #[arg(long)]
    pub name: Option<String>,
    /// As root: the user as whom the command runs [default: the caller of sudo]
    #[arg(long)]
    pub user: Option<String>,
    /// How the slice is enforced
    #[arg(long, value_enum, default_value = "guard")]
    pub isolation: Isolation,
    /// Quotas on a card may sum above its memory
    #[arg(long)]
    pub overcommit: bool,
    /// Driver calls a second: after twice as many at once, further calls of the slice wait
    #[arg(long, value_name = "CALLS", default_value_t = guard::budget::CALLS_A_SECOND, value_parser = clap::value_parser!(u64).range(1..))]
    pub call_rate: u64,
    /// When an audit finds memory that was never charged, say so and do not end the tenant
    #[arg(long)]
    pub audit_report_only: bool,
    /// Run on simulated GPUs: 1xH200, 2xH200, or the socket of a running simulated node
    #[arg(long, value_name = "SPEC")]
    pub sim: Option<String>,
    /// Take one wall away (simulated GPUs only), to see what it is for
    #[arg(long, value_name = "WALL", hide = true)]
    pub without: Option<String>,
    /// The device of a wall for tests
    #[arg(long, value_name = "PATH", hide = true)]
    pub device: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct SetupOptions {
    /// Let nothing but slices open the driver's device files, until the node is restarted (as root)
    #[arg(long, conflicts_with = "unlock_devices")]
    pub lock_devices: bool,
    /// Let everybody open them again, as far as their owner and mode do (as root)
    #[arg(long, conflicts_with = "check")]
    pub unlock_devices: bool,
    /// Try it: open a device file outside of any slice and inside of one (as root)
    #[arg(long)]
    pub check: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Lock another device, for tests
    #[arg(long, value_name = "PATH", hide = true)]
    pub device: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ProbeOptions {
    /// Allocate device memory in steps of this size until it is refused, then free it: bytes, or 64MiB, 1GiB, 1%
    #[arg(long, value_name = "STEP", allow_hyphen_values = true)]
    pub alloc: Option<Size>,
    /// Run short kernels for this long and count them
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub seconds: Option<f64>,
    /// With --seconds: say `ready` and begin when a line comes, with more work queued
    #[arg(long, requires = "seconds", hide = true)]
    pub together: bool,
    /// With --seconds: count replays of a graph of kernels too
    #[arg(long, requires = "seconds")]
    pub graph: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct NodeOptions {
    /// Try whether the cards' time can be divided by slices: two kernels run at 3 : 1 on each card, for about 5 seconds
    #[arg(long)]
    pub shares: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Look at simulated GPUs: 1xH200, 2xH200, or the socket of a running simulated node
    #[arg(long, value_name = "SPEC")]
    pub sim: Option<String>,
    /// The device of a wall for tests
    #[arg(long, value_name = "PATH", hide = true)]
    pub device: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct PsOptions {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// List the slices of a running simulated node, by its socket
    #[arg(long, value_name = "SOCKET")]
    pub sim: Option<String>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("terms").args(["weight", "cap", "memory"]).required(true).multiple(true))]
pub struct SetOptions {
    /// Name of the slice
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Part of a GPU's time against the other slices' weights, while they want it too: 1 to 10000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub weight: Option<u32>,
    /// Most of a GPU's time, also when nobody else wants it: 1 to 100 percent, as 25, 12.5 or 25%, or none
    #[arg(long, value_name = "PERCENT|none", value_parser = cap)]
    pub cap: Option<Cap>,
    /// Device memory on each of its GPUs: bytes, or 512MiB, 20GiB, 25%; not less than it holds
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<Size>,
    /// Quotas on a card may sum above its memory
    #[arg(long, requires = "memory")]
    pub overcommit: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// A slice of a running simulated node, by its socket
    #[arg(long, value_name = "SOCKET")]
    pub sim: Option<String>,
}

#[derive(Debug, Args)]
pub struct PauseOptions {
    /// Name of the slice
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// A slice of a running simulated node, by its socket
    #[arg(long, value_name = "SOCKET")]
    pub sim: Option<String>,
}

#[derive(Debug, Args)]
pub struct StopOptions {
    /// Name of the slice
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Kill it, and do not ask it to end and wait for ten seconds
    #[arg(long)]
    pub now: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// A slice of a running simulated node, by its socket
    #[arg(long, value_name = "SOCKET")]
    pub sim: Option<String>,
}

#[derive(Debug, Args)]
pub struct TraceOptions {
    /// Write the lines to a file [default: standard error]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write the calls to a file so that they can be made again without a GPU: names stand for handles, addresses and
    /// processes; no other lines then, but with --output
    #[arg(long, value_name = "FILE")]
    pub stream: Option<PathBuf>,
    /// Show handles, addresses and all other values: not for a bug report
    #[arg(long)]
    pub values: bool,
    /// As root: the user as whom the command runs [default: the caller of sudo]
    #[arg(long)]
    pub user: Option<String>,
    /// Run on simulated GPUs: 1xH200, 2xH200, or the socket of a running simulated node
    #[arg(long, value_name = "SPEC")]
    pub sim: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_read_to_the_hundredth_and_nothing_else_is() {
        for (text, hundredths) in [
            ("25", 2500),
            ("12.5", 1250),
            ("1", 100),
            ("99.99%", 9999),
            ("100", 10_000),
        ] {
            assert_eq!(percent(text), Ok(hundredths), "{text}");
        }
        for text in [
            "", "0", "0.99", "100.01", "101", "-5", "5.", ".5", "1.234", "a", "1e2", "+5", "5 %",
        ] {
            let told = percent(text).unwrap_err();
            assert!(told.contains("1 to 100"), "{text} {told}");
            assert!(cap(text).is_err(), "{text}");
        }
        assert_eq!(cap("none"), Ok(Cap(None)));
        assert_eq!(cap("12.5"), Ok(Cap(Some(1250))));
    }
}
