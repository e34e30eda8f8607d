//! The server: the process that is the driver.
//!
//! One thread a connection, two a device (its engines), one that watches for files whose last descriptor has gone.
//! Lock order: the watch, then the RM.

mod connection;
mod filters;
mod ioctl;
mod standin;

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::client::Node;
use crate::proto::FileId;
use crate::resman::{Shared, runlist};
use crate::spec::NodeSpec;
use connection::Connection;
use filters::Filters;
use standin::{StandIn, Watch, is_over};

/// How often the watching thread looks, should an event and the end it tells of come apart.
const LOOK_MS: i32 = 20;

/// How often the driver copies the context-switch timeline out by itself, at most: it means 30 times a second.
const TIMELINE: Duration = Duration::from_micros(33_333);

/// What the threads share.
pub(crate) struct Inner {
    shared: Shared,
    watch: Mutex<Watch>,
    filters: Filters,
    stop: AtomicBool,
}

/// A server in this process; it ends when this is dropped (connections end when their callers go).
pub struct Running {
    inner: Arc<Inner>,
    socket: PathBuf,
    threads: Vec<JoinHandle<()>>,
}

/// Runs the server of a node behind `socket` until it is killed or its parent dies, and calls `ready` once it listens.
///
/// The parent is the thread that made this process: it has to live as long as the node (`PR_SET_PDEATHSIG`).
///
/// # Errors
/// What making the socket or the threads says; no path may be there yet.
pub fn serve(spec: &NodeSpec, socket: &Path, ready: impl FnOnce()) -> io::Result<()> {
    // SAFETY: getppid and prctl(PR_SET_PDEATHSIG) touch no memory.
    let orphaned = unsafe {
        let parent = libc::getppid();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid() != parent
    };
    if orphaned {
        return Err(io::Error::other("the parent of the simulated node is gone"));
    }
    let _running = start(spec, socket)?;
    ready();
    loop {
        thread::park();
    }
}

/// Starts the server of a node behind `socket` in this process.
///
/// # Errors
/// What making the socket or the threads says; no path may be there yet.
pub fn start(spec: &NodeSpec, socket: &Path) -> io::Result<Running> {
    raise_descriptor_limit();
    let filters = Filters::new().ok_or_else(|| {
        io::Error::other("/proc/self/status has no line Seccomp_filters (Linux 5.9 or later has)")
    })?;
    let listener = UnixListener::bind(socket)?;
    fs::set_permissions(socket, Permissions::from_mode(0o666))?;
    let inner = Arc::new(Inner {
        shared: Shared::new(spec.clone()),
        watch: Mutex::new(Watch::new()?),
        filters,
        stop: AtomicBool::new(false),
    });
    let mut running = Running {
        inner: Arc::clone(&inner),
        socket: socket.to_owned(),
        threads: Vec::new(),
    };
    for gpu in 0..spec.devices.len() {
        for copies in [false, true] {
            let name = format!("gpu{gpu}-{}", if copies { "copy" } else { "compute" });
            running.spawn(name, move |inner| {
                runlist::run(&inner.shared, gpu, copies, &inner.stop)
            })?;
        }
    }
    let events = inner.watch().descriptor()?;
    running.spawn("watch".into(), move |inner| inner.watch_files(&events))?;
    running.spawn("accept".into(), move |inner| accept(inner, &listener))?;
    Ok(running)
}

impl Running {
    fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce(&Arc<Inner>) + Send + 'static,
    ) -> io::Result<()> {
        let inner = Arc::clone(&self.inner);
        self.threads.push(
            thread::Builder::new()
                .name(name)
                .spawn(move || run(&inner))?,
        );
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::Relaxed);
        // The accepting thread wakes up by a connection.
        drop(UnixStream::connect(&self.socket));
        drop(fs::remove_file(&self.socket));
        for thread in self.threads.drain(..) {
            // Again and again: an engine may have been on its way to sleep.
            while !thread.is_finished() {
                self.inner.shared.wake();
                thread::sleep(Duration::from_millis(1));
            }
            drop(thread.join());
        }
    }
}

fn accept(inner: &Arc<Inner>, listener: &UnixListener) {
    while !inner.stop.load(Ordering::Relaxed) {
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors or memory: existing connections may end and free some.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Ok(connection) = Connection::new(Arc::clone(inner), stream) else {
            continue;
        };
        // Without a thread there is no service: the caller sees the connection end.
        drop(
            thread::Builder::new()
                .name("connection".into())
                .spawn(move || connection.serve()),
        );
    }
}

impl Inner {
    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a stand-in and makes it known to the RM.
    fn open(&self, name: &str, node: Option<Node>) -> io::Result<(FileId, OwnedFd)> {
        let StandIn {
            id,
            pages,
            handed_out,
        } = self.watch().open(name)?;
        self.shared.lock().add_file(id, node, pages);
        Ok((id, handed_out))
    }

    /// Releases files whose last descriptor has gone.
    fn sweep(&self) {
        let mut watch = self.watch();
        for id in watch.suspects() {
            let mut rm = self.shared.lock();
            match rm.pages_of(id) {
                Some(pages) if !is_over(&pages) => watch.look_again(id),
                Some(_) => {
                    rm.release_file(id);
                    watch.forget(id);
                }
                None => watch.forget(id),
            }
            self.shared.unlock(rm);
        }
    }

    /// Sweeps whenever something was closed, whether or not anybody asks. What the driver does by a timer happens here too.
    fn watch_files(&self, events: &OwnedFd) {
        let mut copied = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let mut poll = libc::pollfd {
                fd: events.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: `poll` is one live pollfd.
            unsafe { libc::poll(&raw mut poll, 1, LOOK_MS) };
            self.sweep();
            if copied.elapsed() >= TIMELINE {
                copied = Instant::now();
                self.shared.lock().copy_timelines();
            }
        }
    }
}

/// Every open file costs the server a descriptor.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls read or write one live rlimit. If they fail the limit stays as it is.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
