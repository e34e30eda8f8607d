//! `gpuslice`: slices NVIDIA GPUs between tenants who don't trust each other.

mod args;
mod backend;
mod control;
mod demo;
mod doctor;
mod embed;
mod gpus;
mod manual;
mod probe;
mod ps;
mod run;
mod say;
mod setup;
mod sim;
mod stream;
mod trace;

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use args::{Arguments, Command};
use clap::Parser;
use clap::error::ErrorKind;
use policy::units::Bytes;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(e) => {
            let asked_for = matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let without_words = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            if asked_for || e.kind() == without_words {
                // Nothing can be done where even this cannot be written.
                let _printed = e.print();
            } else {
                say::note(format_args!("gpuslice: {}", one_line(&e.to_string())));
            }
            return if asked_for {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(OWN_FAILURE)
            };
        }
    };
    match dispatch(arguments.command) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            say::note(format_args!("gpuslice: {e}"));
            ExitCode::from(OWN_FAILURE)
        }
    }
}

/// What is wrong with the words of a command, without the usage that clap prints below it.
fn one_line(rendered: &str) -> String {
    let lines = rendered.lines().map(str::trim);
    let said: Vec<&str> = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .filter(|line| !line.is_empty() && !line.starts_with("tip:"))
        .collect();
    let said = said.join(" ");
    let said = said.strip_prefix("error: ").unwrap_or(&said);
    format!("{said}; --help says what there is")
}

/// Our own failure, as env(1) numbers it.
pub const OWN_FAILURE: u8 = 125;

/// A size for people; programs read exact bytes.
pub fn human(bytes: Bytes) -> String {
    const MIB: f64 = (1 << 20) as f64;
    const GIB: f64 = (1 << 30) as f64;
    match bytes.0 as f64 {
        b if b >= GIB => format!("{:.2} GiB", b / GIB),
        b if b >= MIB => format!("{:.1} MiB", b / MIB),
        _ => bytes.to_string(),
    }
}

/// What went wrong, as one line for the user.
pub type Failure = Box<dyn std::error::Error>;

fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(options) => run::run(&options),
        Command::Sim { spec, command } => sim::run(&spec, &command),
        Command::Probe(options) => probe::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Setup(options) => setup::run(&options),
        Command::Ps(options) => ps::run(options.sim.as_deref(), options.json),
        Command::Set(options) => control::set(&options),
        Command::Pause(options) => control::pause(&options, true),
        Command::Resume(options) => control::pause(&options, false),
        Command::Stop(options) => control::stop(&options),
        Command::Trace(options) => trace::run(&options),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man => manual::man(),
        Command::Demo(options) => demo::run(&options),
        Command::Tenant { name, .. } if name == "conformance" => Ok(testkit::conformance::run()?),
        Command::Tenant { name, words } => Ok(testkit::tenants::run(&name, &words)),
        Command::SimServer { spec, folder } => sim::serve(&spec, &folder),
        Command::Scheduler { folder, lock, sim } => scheduler(&folder, lock, sim.as_deref()),
        Command::Helper {
            config,
            socket,
            lease,
        } => helper(config, socket, lease),
    }
}

/// The hidden side of `run`: this process schedules the node.
fn scheduler(folder: &Path, lock: i32, sim: Option<&Path>) -> Result<u8, Failure> {
    // SAFETY: the supervisor opened this descriptor for this process alone and passed its number; nothing else in this
    // process knows it. A person who calls the hidden command by hand closes a descriptor of his own.
    let lock = unsafe { OwnedFd::from_raw_fd(lock) };
    guard::sys::close_on_exec(lock.as_fd())?;
    // It outlives the slice that started it, and on a locked node its group too.
    let _place = run::place_of_scheduler(sim.is_none())?;
    guard::share::scheduler::run(folder, backend::open(sim)?)?;
    Ok(0)
}

/// The hidden side of `run`: this process is a tenant's helper.
fn helper(config: i32, socket: i32, lease: i32) -> Result<u8, Failure> {
    let mine = |number| {
        // SAFETY: the supervisor opened these descriptors for this process alone and passed their numbers; nothing else
        // in this process knows them. A person who calls the hidden command by hand gets an error from the next call.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        // The tenant is a child of this process: with them it could speak for its helper, or give its quota up.
        guard::sys::close_on_exec(fd.as_fd()).map(|()| fd)
    };
    let (config, socket, lease) = (mine(config)?, mine(socket)?, mine(lease)?);
    let config = guard::helper::read_config(config)?;
    let backend = backend::open(config.sim.as_deref())?;
    let trace = match &config.trace {
        Some(to) => Some(trace::open(to, &backend.driver_version()?)?),
        None => None,
    };
    let code = guard::helper::run(config, backend, socket, lease, trace);
    Ok(u8::try_from(code).unwrap_or(OWN_FAILURE))
}
