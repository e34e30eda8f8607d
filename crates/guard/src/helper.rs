//! The helper: one process per tenant, the tenant's parent, which executes all of the tenant's calls.
//!
//! Its pid is the driver's identity for the tenant, so it never restarts: its death ends the tenant.

use std::ffi::{CString, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use policy::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::auditor::{Auditor, Look};
use crate::backend::Backend;
use crate::budget::Budget;
use crate::listener::{self, Install};
use crate::privilege::{self, User};
use crate::rmcall::{Gpu, OwnClient, OwnFiles, branch_of};
use crate::share::board;
use crate::share::levers::Levers;
use crate::sys::{self, Tid};
use crate::tenant::{SliceDevice, Tenant, Walls};
use crate::trace::{Trace, TraceConfig};
use crate::unknown::Board;
use crate::workers::{self, Pool};
use crate::{cgroup, filter, limits, sandbox};

/// What a helper is told by its supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HelperConfig {
    /// The tenant's name.
    pub name: String,
    /// Quota by device UUID.
    pub quotas: Vec<(String, u64)>,
    /// Channels by device UUID.
    pub channels: Vec<(String, u32)>,
    /// Calls a second that are served without a wait.
    pub call_rate: u64,
    /// Socket of a simulated node; none: this machine's driver.
    pub sim: Option<std::path::PathBuf>,
    /// As whom the command runs; none: as the supervisor.
    pub user: Option<User>,
    /// The helper's own user, as root.
    pub helper_uid: Option<u32>,
    /// The command, one byte string a word.
    pub command: Vec<Vec<u8>>,
    /// Environment of the command.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Which walls stand.
    pub walls: Walls,
    /// An audit that finds uncharged memory only reports it.
    pub report_only: bool,
    /// Every call is to be shown.
    pub trace: Option<TraceConfig>,
    /// The control group of the command and all that it starts.
    pub cgroup: Option<std::path::PathBuf>,
    /// Folder of the node's registry: the tenant's board and the node's words are there.
    pub registry: std::path::PathBuf,
}

/// What a helper tells its supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The command runs; its pid.
    Started(Tid),
    /// The command could not be executed: error number.
    CannotExecute(i32),
    /// The slice could not be set up.
    Failed(String),
    /// The command has ended and left other programs running; status as waitpid(2) gives it.
    Ended(i32),
    /// The command has ended and nobody is left: the helper ends now, and all that the tenant held goes with it.
    Finished(i32),
    /// The tenant must be killed, and why.
    Condemned(String),
}

impl Report {
    /// Sends it.
    ///
    /// # Errors
    /// The supervisor is gone.
    pub fn send(&self, to: BorrowedFd<'_>) -> io::Result<()> {
        sys::send_message(to, &serde_json::to_vec(self)?, None)
    }

    /// Receives one; `None`: the helper is gone.
    ///
    /// # Errors
    /// As recvmsg(2), or what came is no report.
    pub fn receive(from: BorrowedFd<'_>) -> io::Result<Option<Report>> {
        let mut buffer = [0u8; 4096];
        let (n, _) = sys::receive_message(from, &mut buffer)?;
        if n == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&buffer[..n])?))
    }
}

/// Audits run this often while the tenant makes calls.
const AUDIT_EVERY: Duration = Duration::from_secs(1);
/// While calls are served, somebody looks this often whether one holds up the others.
const WATCH_EVERY_MS: i32 = 50;

/// Runs a helper to its end; returns its exit status.
pub fn run(
    config: HelperConfig,
    backend: Arc<dyn Backend>,
    supervisor: OwnedFd,
    lease: OwnedFd,
    trace: Option<Box<dyn Trace>>,
) -> i32 {
    end_on_panic();
    match Helper::start(config, backend, &supervisor, lease, trace) {
        Ok(mut helper) => {
            let status = helper.serve(&supervisor);
            if let Some(trace) = &helper.tenant.trace {
                trace.end();
            }
            status
        }
        Err(e) => {
            let told = Report::Failed(e.to_string()).send(supervisor.as_fd());
            if told.is_err() {
                eprintln!("gpuslice: {e}");
            }
            125
        }
    }
}

/// What panics is a mistake of ours, and leaves the ledger half written: no thread goes on, and the tenant ends with its
/// helper.
fn end_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        usual(what);
        std::process::abort();
    }));
}

struct Helper {
    tenant: Arc<Tenant>,
    pool: Arc<Pool>,
    auditor: Arc<Auditor>,
    listener: OwnedFd,
    child: Tid,
    signals: OwnedFd,
    /// Kills the tenant's group.
    killer: Option<std::fs::File>,
    /// Where the calls that are not known are shown. It is the lease too.
    board: Board,
}

impl Helper {
    fn start(
        config: HelperConfig,
        backend: Arc<dyn Backend>,
        supervisor: &OwnedFd,
        lease: OwnedFd,
        trace: Option<Box<dyn Trace>>,
    ) -> io::Result<Helper> {
        let board = Board::behind(lease.into())?;
        let supervisor_pid = sys::parent();
        sys::small_heap();
        sys::raise_descriptor_limit();
        sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0)?;
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)?;
        // The command starts with these as `run` was started: what is ignored now stays ignored.
        let mut heeded = vec![
            libc::SIGINT,
            libc::SIGQUIT,
            libc::SIGTSTP,
            libc::SIGTTOU,
            libc::SIGHUP,
            libc::SIGTERM,
        ];
        heeded.retain(|&s| sys::ignore_signal(s));
        let (abi, note) = branch_of(backend.as_ref())?;
        if let Some(note) = note {
            eprintln!("gpuslice: {note}");
        }
        let files = OwnFiles::open(backend.as_ref())?;
        let shares = board::map_board(&board::board_file(&config.registry, &config.name)?)?;
        let node = board::map_node(&board::node_file(&config.registry)?)?;

        // The command's process is made while there is one thread and, as root, while its user can still be set.
        let (ours, theirs) = sys::socket_pair()?;
        let filter = filter::tenant_filter(abi);
        let install = Install {
            wait_killable: config.walls.signals_no_double_charge,
        };
        let Some(child) = sys::fork()? else {
            drop(ours);
            heeded.into_iter().for_each(sys::default_signal);
            tenant_process(&config, &filter, install, &theirs);
        };
        drop(theirs);
        let killer = config.cgroup.as_deref().map(cgroup::killer).transpose()?;
        // What was left to the command is its own: where it closes it, nobody may wait for us.
        sys::close_inherited()?;
        sys::to_null(libc::STDIN_FILENO)?;
        sys::to_null(libc::STDOUT_FILENO)?;
        // Before all else, since what stops the command (it is inside a slice already) is the clearest reason.
        let listener = receive_listener(&ours)?;
        let tenant_uid = config.user.as_ref().map_or(sys::uids().0, |u| u.uid);
        privilege::become_helper(config.helper_uid, tenant_uid)?;
        // Again: the kernel forgets it when the user changes (prctl(2)).
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)?;
        if sys::parent() != supervisor_pid {
            return Err(io::Error::other("the supervisor is gone"));
        }
        backend.settle()?;
        let own = OwnClient::new(backend.clone(), files)?;
        let devices = slice_devices(&own, &config.quotas)?;
        let limits = limits::of_slice(&devices, &config.channels, &own)?;
        let budget = Budget::new(config.call_rate, devices.len());
        let mut tenant = Tenant::new(
            config.name.clone(),
            abi,
            backend,
            config.walls,
            devices,
            own,
            limits,
        )?;
        tenant.budget = budget;
        shares.helper.store(std::process::id(), Ordering::Release);
        if config.walls.share_3_to_1 {
            shares
                .without
                .store(config.walls.shares().word(), Ordering::Release);
            tenant.levers = Some(Levers::new(shares, node));
        }
        if let Some(trace) = &trace {
            let gpus: Vec<&Gpu> = tenant.devices.iter().map(|d| &d.gpu).collect();
            trace.begin(&gpus);
        }
        tenant.trace = trace;
        let tenant = Arc::new(tenant);
        let signals = sys::signal_fd(&[libc::SIGCHLD])?;
        sandbox::enter_helper()?;
        Levers::start(&tenant)?;
        let auditor = Auditor::start(tenant.clone(), config.report_only)?;
        let pool = workers::start(tenant.clone(), listener.try_clone()?)?;
        sys::send_message(ours.as_fd(), b"go", None)?;
        let mut answer = [0u8; 4];
        let report = match sys::receive_message(ours.as_fd(), &mut answer)? {
            // The socket closes when the command is executed.
            (0, _) => Report::Started(child),
            _ => Report::CannotExecute(i32::from_le_bytes(answer)),
        };
        report.send(supervisor.as_fd())?;
        Ok(Helper {
            tenant,
            pool,
            auditor,
            listener,
            child,
            signals,
            killer,
            board,
        })
    }

    fn serve(&mut self, supervisor: &OwnedFd) -> i32 {
        let (mut status, mut told) = (None, false);
        let mut audit_due: Option<Instant> = None;
        let mut served = 0;
        loop {
            // An idle tenant costs nothing: no timer runs. A call that hangs is not idle: the next may come at any time.
            let timeout = if audit_due.is_some() || self.pool.is_serving() {
                WATCH_EVERY_MS
            } else {
                -1
            };
            let tenant = &self.tenant;
            let [wake, ended, listener, signals] = match sys::poll(
                [
                    (tenant.wake_fd().as_raw_fd(), libc::POLLIN),
                    (tenant.processes().ended_fd().as_raw_fd(), libc::POLLIN),
                    (self.listener.as_raw_fd(), 0),
                    (self.signals.as_raw_fd(), libc::POLLIN),
                ],
                timeout,
            ) {
                Ok(events) => events,
                Err(_) => return 125,
            };
            served = self.pool.watch(served);
            if wake != 0 {
                drain(tenant.wake_fd());
                if tenant.is_condemned() {
                    audit_due = Some(Instant::now());
                } else if audit_due.is_none() {
                    audit_due = Some(Instant::now() + AUDIT_EVERY);
                }
            }
            if ended != 0 {
                tenant.note_ended();
                self.auditor.ask(Look::Sweep);
            }
            if self.auditor.is_held_up() && !tenant.is_condemned() {
                tenant.condemn("it holds up the audit: its processes cannot be looked into".into());
            }
            if signals != 0
                && let Some(code) = self.reap()
            {
                status = Some(code);
            }
            // Nobody is left under the filter. The kernel lets go of it before the command can be waited for.
            if listener & (libc::POLLHUP | libc::POLLERR) != 0
                || (status.is_some() && self.nobody_is_left())
            {
                let code = match status {
                    Some(code) => code,
                    None => sys::wait_for(self.child).unwrap_or_default(),
                };
                self.show_unknown();
                if !told {
                    self.report(supervisor, &Report::Finished(code));
                }
                return sys::exit_code(code);
            }
            if let Some(code) = status
                && !told
            {
                // Programs that the command left running keep their slice, and the helper with it.
                told = true;
                if sys::prctl(libc::PR_SET_PDEATHSIG, 0, 0).is_ok() {
                    self.report(supervisor, &Report::Ended(code));
                }
                // Whoever reads the command's errors to their end need not wait for those programs; a trace goes on.
                if self.tenant.trace.is_none() && sys::to_null(libc::STDERR_FILENO).is_err() {
                    return 125;
                }
            }
            if wake != 0 || audit_due.is_some_and(|t| t <= Instant::now()) {
                self.show_unknown();
            }
            let due = audit_due.is_some_and(|t| t <= Instant::now());
            if due && let Some(why) = self.tenant.condemned() {
                // Until nobody is left: a program that forks faster than it is found may outlive one attempt.
                self.report(supervisor, &Report::Condemned(why));
                audit_due = Some(Instant::now() + AUDIT_EVERY);
            } else if due {
                // What the last audit found is looked at again, and one that is held up is looked after.
                let again = self.tenant.processes().was_active() || self.auditor.is_occupied();
                if again {
                    self.auditor.ask(Look::Audit);
                }
                audit_due = again.then(|| Instant::now() + AUDIT_EVERY);
            }
        }
    }

    fn show_unknown(&mut self) {
        // A full disk ends no tenant; the user was told each once.
        let _written = self.board.write(&self.tenant.unknown_calls());
    }

    fn report(&self, supervisor: &OwnedFd, report: &Report) {
        // Nobody may be left to tell: `run` has returned and the tenant's other programs go on.
        let told = report.send(supervisor.as_fd());
        if told.is_err()
            && let Report::Condemned(why) = report
        {
            self.tenant.say(&format!("ending the tenant: {why}"));
            let killed = self.killer.as_ref().map(cgroup::kill_all);
            if !matches!(killed, Some(Ok(()))) {
                for process in self.tenant.processes().alive() {
                    // It may have ended in this moment. Whoever is left has no listener any more: its GPU calls fail.
                    let _sent = sys::kill(process, libc::SIGKILL);
                }
            }
            std::process::exit(125);
        }
    }

    /// Whether no process is under the filter any more.
    fn nobody_is_left(&self) -> bool {
        matches!(sys::poll([(self.listener.as_raw_fd(), 0)], 0), Ok([e]) if e & libc::POLLHUP != 0)
    }

    /// The command's status, if it has ended; other orphans of the tenant are reaped on the way.
    fn reap(&self) -> Option<i32> {
        while sys::read_signal(self.signals.as_fd()).is_some() {}
        let mut status = None;
        while let Some((pid, s)) = sys::reap_any() {
            if pid == self.child {
                status = Some(s);
            }
        }
        status
    }
}

fn drain(fd: BorrowedFd<'_>) {
    let mut count = [0u8; 8];
    // SAFETY: `count` is a live buffer of the eight bytes that eventfd(2) gives.
    unsafe { libc::read(fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}

fn slice_devices(own: &OwnClient, quotas: &[(String, u64)]) -> io::Result<Vec<SliceDevice>> {
    quotas
        .iter()
        .map(|(uuid, bytes)| {
            let gpu = own.gpus().iter().find(|g| g.uuid == *uuid);
            let gpu = gpu.ok_or_else(|| {
                io::Error::other(format!("GPU {uuid} is not on this node any more"))
            })?;
            Ok(SliceDevice {
                gpu: gpu.clone(),
                quota: Bytes(*bytes),
            })
        })
        .collect()
}

fn receive_listener(from: &OwnedFd) -> io::Result<OwnedFd> {
    let mut text = [0u8; 512];
    let (n, fd) = sys::receive_message(from.as_fd(), &mut text)?;
    fd.ok_or_else(|| {
        let why = String::from_utf8_lossy(&text[..n]).into_owned();
        io::Error::other(if why.is_empty() {
            "the command's process died before its filter was set".into()
        } else {
            why
        })
    })
}

/// The command's process, from fork to exec. Never returns.
fn tenant_process(
    config: &HelperConfig,
    filter: &filter::Program,
    install: Install,
    helper: &OwnedFd,
) -> ! {
    let fail = |why: String| -> ! {
        // The helper says it to the user; if it is gone, nobody is left to ask.
        let _told = sys::send_message(helper.as_fd(), why.as_bytes(), None);
        std::process::exit(125)
    };
    if let Some(group) = &config.cgroup
        && let Err(e) = cgroup::join(group)
    {
        fail(format!(
            "the command cannot enter its control group {}: {e}",
            group.display()
        ));
    }
    if let Err(e) = privilege::become_tenant(config.user.as_ref()) {
        fail(format!("cannot become the tenant's user: {e}"));
    }
    if let Err(e) = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0) {
        fail(format!("cannot tie the command to its helper: {e}"));
    }
    sys::unblock_signals();
    let words = |w: &Vec<u8>| CString::new(w.clone());
    let args: Result<Vec<CString>, _> = config.command.iter().map(words).collect();
    let env: Result<Vec<CString>, _> = config
        .environment
        .iter()
        .map(|(k, v)| CString::new([k.as_slice(), b"=", v.as_slice()].concat()))
        .collect();
    let (Ok(args), Ok(env)) = (args, env) else {
        fail("a word of the command holds a zero byte".into())
    };
    let listener = match listener::install(filter, install) {
        Ok(listener) => listener,
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => fail(
            "this process is already inside a slice or a container with its own seccomp listener, and the kernel allows one: start `gpuslice run` outside of it"
                .into(),
        ),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => fail(
            "the kernel refuses the filter: seccomp with WAIT_KILLABLE_RECV needs Linux 5.19 or newer".into(),
        ),
        Err(e) => fail(format!("the kernel refuses the filter: {e}")),
    };
    if let Err(e) = sys::send_message(helper.as_fd(), b"", Some(listener.as_fd())).and_then(|()| {
        drop(listener);
        let mut go = [0u8; 8];
        match sys::receive_message(helper.as_fd(), &mut go)?.0 {
            0 => Err(io::Error::other("the helper is gone")),
            _ => Ok(()),
        }
    }) {
        fail(e.to_string());
    }
    let e = sys::exec(&args[0], &args, &env);
    let number = e.raw_os_error().unwrap_or(libc::EIO).to_le_bytes();
    let _told = sys::send_message(helper.as_fd(), &number, None);
    std::process::exit(if e.raw_os_error() == Some(libc::ENOENT) {
        127
    } else {
        126
    })
}

/// Reads a configuration that a supervisor left in a descriptor.
///
/// # Errors
/// It cannot be read or is none.
pub fn read_config(from: OwnedFd) -> io::Result<HelperConfig> {
    let mut text = Vec::new();
    let mut file = std::fs::File::from(from);
    io::Seek::seek(&mut file, io::SeekFrom::Start(0))?;
    file.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Words of a command as bytes.
pub fn words(command: &[OsString]) -> Vec<Vec<u8>> {
    command.iter().map(|w| w.as_bytes().to_vec()).collect()
}

/// A pair of an environment as bytes.
pub fn variable(name: OsString, value: OsString) -> (Vec<u8>, Vec<u8>) {
    (name.into_vec(), value.into_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_ends_the_process() {
        let Some(child) = sys::fork().unwrap() else {
            end_on_panic();
            let other = std::thread::spawn(|| panic!("meant to"));
            let _joined = other.join();
            // SAFETY: ends the child at once; it is reached only where the panic ended one thread alone.
            unsafe { libc::_exit(0) }
        };
        let status = sys::wait_for(child).unwrap();
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGABRT);
    }
}
