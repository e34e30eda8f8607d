//! Who starts the node's scheduler: the supervisor of every slice that needs one waits for the scheduler's lock, and
//! whoever gets it starts the next one and hands the lock on. So there is one at a time, and when it dies the kernel
//! wakes those who wait.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::board;
use crate::sys::{self, Tid};

const STACK: usize = 64 << 10;
/// A scheduler that dies is replaced at once; those that die one after another are not started faster than this.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Who has lived for so long has not died at once.
const LIVED: Duration = Duration::from_secs(5);

/// Sees to it that the node has a scheduler as long as this process lives.
///
/// # Errors
/// The node's file cannot be opened, or no thread started.
pub fn keep_one(folder: &Path, sim: Option<&Path>) -> io::Result<()> {
    let (folder, sim) = (folder.to_owned(), sim.map(Path::to_owned));
    // New groups wait for a scheduler from now on: that it is not there yet makes no difference.
    let node = board::map_node(&board::node_file(&folder)?)?;
    node.require();
    thread::Builder::new()
        .name("scheduler's".into())
        .stack_size(STACK)
        .spawn(move || wait(&folder, sim.as_deref()))?;
    Ok(())
}

fn wait(folder: &Path, sim: Option<&Path>) {
    let mut pause = PAUSE;
    loop {
        // An open file of our own: the lock is its, and goes where its descriptor goes.
        let Ok(file) = board::node_file(folder) else {
            return;
        };
        // SAFETY: the call takes two integers.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } < 0 {
            thread::sleep(PAUSE);
            continue;
        }
        let began = Instant::now();
        if let Err(e) = start(folder, sim, file) {
            eprintln!("gpuslice: the node's scheduler cannot be started: {e}");
        }
        thread::sleep(pause);
        pause = if began.elapsed() < LIVED {
            (2 * pause).min(LONGEST_PAUSE)
        } else {
            PAUSE
        };
    }
}

/// Starts a scheduler that holds the lock. It outlives the slice that starts it.
fn start(folder: &Path, sim: Option<&Path>, lock: File) -> io::Result<()> {
    let fd = lock.as_raw_fd();
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("gpuslice-scheduler")
        .arg("__scheduler")
        .arg(folder)
        .arg(fd.to_string())
        .args(sim.map(PathBuf::from))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(board::log_file(folder).map_or_else(|_| Stdio::null(), Stdio::from));
    // SAFETY: the closure runs between fork and exec and calls only fcntl(2), setsid(2) and sigprocmask(2), which are
    // async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::fcntl(fd, libc::F_SETFD, 0) < 0 || libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            sys::unblock_signals();
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    // It has the lock now, and its end lets go of it.
    drop(lock);
    STARTED.store(child.id() as Tid, Ordering::Release);
    // It ends of itself when it is not needed; whoever else waits for children of this process may have got it first.
    let _ended = child.wait();
    STARTED.store(0, Ordering::Release);
    Ok(())
}

/// The scheduler that this process has started, if it runs: no part of any tenant.
pub fn started() -> Option<Tid> {
    Some(STARTED.load(Ordering::Acquire)).filter(|&pid| pid != 0)
}

static STARTED: AtomicI32 = AtomicI32::new(0);
