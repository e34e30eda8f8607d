//! `gpuslice run`: grants a slice, starts its helper, waits for the command, ends the tenant if it must.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::cgroup;
use crate::control::{self, Answer, Control, Wish};
use crate::helper::{HelperConfig, Report};
use crate::live::Live;
use crate::peer;
use crate::registry::Lease;
use crate::rmcall::Gpu;
use crate::share::start;
use crate::sys::{self, Tid};

/// Our own failure, as env(1) numbers it.
pub const OWN_FAILURE: i32 = 125;
/// The command was found but could not be executed.
const CANNOT_EXECUTE: i32 = 126;
/// The command was not found.
const NOT_FOUND: i32 = 127;

/// Starts the helper and stays until the command has ended. Returns the exit status of `run`. `divided`: the slice needs
/// a scheduler. `gpus`: the node's.
///
/// # Errors
/// One line for the user; the command did not run.
pub fn run(config: &HelperConfig, lease: Lease, divided: bool, gpus: Vec<Gpu>) -> io::Result<i32> {
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0)?;
    // A tenant may be our user: with our end of the helper's socket it could give itself memory.
    sys::prctl(libc::PR_SET_DUMPABLE, 0, 0)?;
    let signals = sys::signal_fd(&[
        libc::SIGCHLD,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
    ])?;
    let mut live = Live::new(config, lease, gpus)?;
    if divided {
        live.divide()?;
    }
    let mut control = Control::listen(&config.registry, &config.name)?;
    let (ours, theirs) = sys::socket_pair()?;
    // A simulated node, say: below us, and no part of the tenant.
    let me = std::process::id() as Tid;
    let others = processes()
        .iter()
        .filter(|p| p.parent == me)
        .map(|p| p.pid)
        .collect();
    let helper = start_helper(config, live.lease(), &theirs)?;
    drop(theirs);
    sys::close_inherited()?;
    let group = config.cgroup.as_deref().map(|folder| {
        let killer = cgroup::killer(folder)?;
        Ok::<_, io::Error>((folder.to_owned(), killer))
    });
    let mut run = Run {
        group: group.transpose()?,
        helper,
        others,
        command: None,
        early: Vec::new(),
        condemned: false,
        stopping: None,
        left: None,
    };
    let ended = run.serve(config, &ours, &signals, &mut control, &mut live);
    // What was stopped before it had begun has failed, and is over as well.
    let stopped = Answer::Stopped(*ended.as_ref().unwrap_or(&OWN_FAILURE));
    for &client in run.stopping.iter().flat_map(|stopping| &stopping.clients) {
        control.answer(client, &stopped);
    }
    ended
}

/// Killed processes end as soon as the kernel comes to them; one that does not hangs in a driver.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who is asked to end has so long for it.
pub const TIME_TO_END: Duration = Duration::from_secs(10);

/// Somebody has asked for the end of the slice.
struct Stopping {
    /// When everything is killed.
    due: Option<Instant>,
    /// Who waits for it.
    clients: Vec<u64>,
}

struct Run {
    /// The tenant's control group, and what kills it.
    group: Option<(PathBuf, File)>,
    helper: Tid,
    /// Children that were there before the helper.
    others: Vec<Tid>,
    command: Option<Tid>,
    /// Signals that came before the command was there.
    early: Vec<i32>,
    /// The tenant was told to end, and the user why.
    condemned: bool,
    stopping: Option<Stopping>,
    /// The command has ended, with this status, and what it left behind is being ended.
    left: Option<i32>,
}

impl Run {
    /// Serves helper, signals and whoever controls the slice, until `run` is over.
    fn serve(
        &mut self,
        config: &HelperConfig,
        helper: &OwnedFd,
        signals: &OwnedFd,
        control: &mut Control,
        live: &mut Live,
    ) -> io::Result<i32> {
        const OWN: usize = 2;
        loop {
            let mut watched = [(-1, 0); OWN + control::WATCHED];
            watched[0] = (helper.as_raw_fd(), libc::POLLIN);
            watched[1] = (signals.as_raw_fd(), libc::POLLIN);
            let busy = live.is_busy();
            watched[OWN..].copy_from_slice(&control.watched(busy));
            let killed_at = self.stopping.as_ref().and_then(|stopping| stopping.due);
            let due = [live.due(), control.due(), killed_at];
            let events = sys::poll(watched, until(due.into_iter().flatten().min()))?;
            if events[0] != 0 {
                match Report::receive(helper.as_fd())? {
                    Some(Report::Memory(number, has)) => {
                        if let Some((client, answer)) = live.carried_out(number, &has) {
                            control.answer(client, &answer);
                        }
                    }
                    Some(report) => {
                        if let Some(code) = self.reported(report, config)? {
                            return Ok(code);
                        }
                    }
                    None => return Ok(self.helper_gone()),
                }
            }
            if events[1] != 0 {
                while let Some((number, sender)) = sys::read_signal(signals.as_fd()) {
                    self.signalled(number, sender);
                }
            }
            if let Some((client, answer)) = live.give_up() {
                control.answer(client, &answer);
            }
            match control.serve(&events[OWN..], busy)? {
                Some((client, Wish::Stop { now })) => self.stop(client, now),
                Some((client, wish)) => {
                    if let Some(answer) = live.change(client, &wish, helper.as_fd()) {
                        control.answer(client, &answer);
                    }
                }
                None => {}
            }
            self.kill_if_due();
        }
    }

    /// Asks the command to end, and sees to it that it does.
    fn stop(&mut self, client: u64, now: bool) {
        let due = Instant::now() + if now { Duration::ZERO } else { TIME_TO_END };
        match &mut self.stopping {
            Some(stopping) => {
                stopping.clients.push(client);
                if now {
                    stopping.due = Some(due);
                }
            }
            None => {
                self.stopping = Some(Stopping {
                    due: Some(due),
                    clients: vec![client],
                });
                if !now {
                    self.hand_on_or_keep(libc::SIGTERM);
                }
            }
        }
    }

    fn kill_if_due(&mut self) {
        let due = self.stopping.as_mut().and_then(|stopping| {
            let due = stopping.due.filter(|due| *due <= Instant::now());
            due.map(|_| stopping.due = None)
        });
        if due.is_some() {
            self.kill_tenant();
        }
    }

    /// What the helper tells. `Some`: `run` is over with this status.
    fn reported(&mut self, report: Report, config: &HelperConfig) -> io::Result<Option<i32>> {
        match report {
            Report::Started(pid) => {
                self.command = Some(pid);
                for number in std::mem::take(&mut self.early) {
                    self.hand_on(number);
                }
                if let Some(Stopping {
                    due: due @ None, ..
                }) = &mut self.stopping
                {
                    // All was killed before there was anything.
                    *due = Some(Instant::now());
                }
            }
            Report::Ended(status) if self.stopping.is_some() => {
                // What it has left behind ends too, and has as long for it.
                self.left = Some(status);
                for pid in descendants(self.helper, &[]) {
                    // It may have ended in this moment.
                    let _sent = sys::kill(pid, libc::SIGTERM);
                }
            }
            Report::Ended(status) => {
                if config.trace.is_some() {
                    // It writes the last lines when the last program of the command has ended.
                    let _ended = sys::wait_for(self.helper);
                }
                return Ok(Some(sys::exit_code(status)));
            }
            Report::Finished(status) => {
                // As natively, the memory is free when the command has ended: the helper's end frees it.
                let _ended = sys::wait_for(self.helper);
                return Ok(Some(sys::exit_code(status)));
            }
            Report::Failed(why) => return Err(io::Error::other(why)),
            Report::CannotExecute(number) => {
                let name = String::from_utf8_lossy(&config.command[0]);
                eprintln!(
                    "gpuslice: cannot execute '{name}': {}",
                    io::Error::from_raw_os_error(number)
                );
                return Ok(Some(if number == libc::ENOENT {
                    NOT_FOUND
                } else {
                    CANNOT_EXECUTE
                }));
            }
            Report::Condemned(why) => {
                if !self.condemned {
                    eprintln!("gpuslice: ending the tenant '{}': {why}", config.name);
                }
                self.condemned = true;
                self.kill_tenant();
            }
            // For whoever changes the slice.
            Report::Memory(..) => {}
        }
        Ok(None)
    }

    /// Ends every program of the tenant; the helper sees the last one go.
    fn kill_tenant(&self) {
        if !self.kill_group() {
            kill_below(self.helper, &[]);
        }
    }

    /// Kills the tenant's group at once, whatever forks in it; false where it has none.
    fn kill_group(&self) -> bool {
        let Some((folder, killer)) = &self.group else {
            return false;
        };
        cgroup::kill_all(killer).is_ok() && cgroup::wait_until_empty(folder, PATIENCE)
    }

    /// The helper is the tenant's identity with the driver: without it the tenant ends.
    fn helper_gone(&self) -> i32 {
        // Its children are ours once all of its threads have ended. It may have been waited for already.
        let _ended = sys::wait_for(self.helper);
        self.kill_group();
        // What else is there, and the dead of the group, which are ours to wait for.
        kill_below(std::process::id() as Tid, &self.others);
        if let Some(status) = self.left {
            // It had nothing more to tell.
            return sys::exit_code(status);
        }
        if !self.condemned {
            eprintln!("gpuslice: the tenant's helper died; its programs were ended");
        }
        OWN_FAILURE
    }

    /// Signals meant for the command are handed on; those of the terminal have reached it already.
    fn signalled(&mut self, number: i32, sender: Tid) {
        let from_terminal = sender == 0;
        if number == libc::SIGCHLD || from_terminal {
            return;
        }
        self.hand_on_or_keep(number);
    }

    fn hand_on_or_keep(&mut self, number: i32) {
        if self.command.is_some() {
            self.hand_on(number);
        } else {
            // The command is not there yet.
            self.early.push(number);
        }
    }

    fn hand_on(&self, number: i32) {
        if let Some(command) = self.command {
            // It may have ended in this moment.
            let _sent = sys::kill(command, number);
        }
    }
}

/// Milliseconds until then, for poll(2).
fn until(due: Option<Instant>) -> i32 {
    let Some(due) = due else { return -1 };
    let left = due.saturating_duration_since(Instant::now());
    // Not before: it would be looked at again and again until then.
    i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
}

fn start_helper(config: &HelperConfig, lease: &Lease, socket: &OwnedFd) -> io::Result<Tid> {
    let text = memory_file(&serde_json::to_vec(config)?)?;
    let keep: Vec<i32> = vec![
        text.as_raw_fd(),
        socket.as_raw_fd(),
        lease.descriptor().as_raw_fd(),
    ];
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(peer::HELPER[0])
        .arg(peer::HELPER[1])
        .arg(text.as_raw_fd().to_string())
        .arg(socket.as_raw_fd().to_string())
        .arg(lease.descriptor().as_raw_fd().to_string())
        .stdin(Stdio::inherit());
    // SAFETY: the closure runs between fork and exec and calls only fcntl(2) and sigprocmask(2), which are
    // async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            for &fd in &keep {
                if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            sys::unblock_signals();
            Ok(())
        });
    }
    Ok(command.spawn()?.id() as Tid)
}

/// A file in memory with these contents, read from its start.
fn memory_file(contents: &[u8]) -> io::Result<OwnedFd> {
    use std::io::Write;
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a terminated string; the call returns a new descriptor or -1.
    let fd = unsafe { libc::memfd_create(c"gpuslice-config".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut file = std::fs::File::from(fd);
    file.write_all(contents)?;
    Ok(file.into())
}

/// Kills every process below `root` but those of `spare` and what is below them, until none is left: a tenant may fork
/// while it is killed.
fn kill_below(root: Tid, spare: &[Tid]) {
    const ROUNDS: usize = 1000;
    for _ in 0..ROUNDS {
        let victims = descendants(root, spare);
        if victims.is_empty() {
            return;
        }
        for pid in victims {
            // It may have ended in this moment.
            let _sent = sys::kill(pid, libc::SIGKILL);
        }
        while sys::reap_any().is_some() {}
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// A process as `/proc` lists it.
struct Listed {
    pid: Tid,
    parent: Tid,
    /// Ended and not waited for. Its children may still name it as their parent.
    zombie: bool,
}

/// Every process of this machine that can be seen.
fn processes() -> Vec<Listed> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<Tid>().ok());
    pids.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything; the state and the parent follow the last one.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut words = rest.split_whitespace();
        let (state, parent) = (words.next()?, words.next()?.parse().ok()?);
        Some(Listed {
            pid,
            parent,
            zombie: state == "Z",
        })
    })
    .collect()
}

/// The processes below `root` that still run, without those of `spare` and what is below them.
fn descendants(root: Tid, spare: &[Tid]) -> Vec<Tid> {
    let scheduler = start::started();
    let all: Vec<Listed> = processes()
        .into_iter()
        .filter(|p| Some(p.pid) != scheduler)
        .collect();
    let mut below = vec![root];
    let mut victims = Vec::new();
    let mut i = 0;
    while let Some(&parent) = below.get(i) {
        for child in all
            .iter()
            .filter(|p| p.parent == parent && !spare.contains(&p.pid))
        {
            below.push(child.pid);
            if !child.zombie {
                victims.push(child.pid);
            }
        }
        i += 1;
    }
    victims
}
