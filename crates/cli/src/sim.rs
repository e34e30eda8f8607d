//! Simulated nodes: starting one, finding one, and running a command on one without a slice.
//!
//! The node's process is told by end of file on its standard input that its starter is gone; it stays as long as a
//! slice on it lives, since programs that a command left running keep their slice. It is made an orphan at once, so
//! that a supervisor that ends everything below it does not end the GPU too.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use guard::registry::Registry;
use guard::sys;
use simgpu::SOCKET_VARIABLE;
use simgpu::spec::NodeSpec;

use crate::embed::{self, PrivateFolder};
use crate::{Failure, OWN_FAILURE, backend, say};

const SOCKET: &str = "socket";
const LIBRARIES: &str = "lib";
const REGISTRY: &str = "registry";
/// Where the dynamic linker looks first.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// How often a node without its starter looks whether a slice is left.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// `sun_path` of unix(7), less the zero at its end.
const MOST_OF_A_SOCKETS_PATH: usize = 107;
/// What the node's process says once it listens.
const READY: &str = "ready";

/// A simulated node that we use.
pub struct Node {
    socket: PathBuf,
    libraries: PathBuf,
    /// Held for a node that we started: it ends with us.
    _lifeline: Option<ChildStdin>,
    /// Held where the libraries are ours and the node is another's.
    _unpacked: Option<PrivateFolder>,
}

/// What is asked for: the flag, else the variable that a command on a simulated node has in its environment.
pub fn asked(flag: Option<&str>) -> Option<String> {
    flag.map(str::to_owned).or_else(|| {
        std::env::var(SOCKET_VARIABLE)
            .ok()
            .filter(|v| !v.is_empty())
    })
}

impl Node {
    /// Starts the node that a word like `2xH200` describes, or uses the running one whose socket it names.
    ///
    /// # Errors
    /// One line: what was asked and what is wrong with it.
    pub fn get(asked: &str) -> Result<Node, Failure> {
        if asked.contains('/') {
            Node::running(Path::new(asked))
        } else {
            Node::start(asked)
        }
    }

    /// Uses the node behind a socket.
    fn running(socket: &Path) -> Result<Node, Failure> {
        let socket = std::path::absolute(socket)?;
        // Somebody has to answer there, or the command would run on no GPU at all.
        backend::open(Some(&socket))?;
        let beside = socket.with_file_name(LIBRARIES);
        if embed::has_libraries(&beside) {
            return Ok(Node {
                socket,
                libraries: beside,
                _lifeline: None,
                _unpacked: None,
            });
        }
        // A node of another version of this program, or of another user.
        let unpacked = PrivateFolder::new("lib")?;
        embed::unpack_libraries(unpacked.path())?;
        Ok(Node {
            socket,
            libraries: unpacked.path().to_owned(),
            _lifeline: None,
            _unpacked: Some(unpacked),
        })
    }

    /// Starts a node.
    ///
    /// # Errors
    /// The description names no node, or the node's process could not be started.
    pub fn start(spec: &str) -> Result<Node, Failure> {
        spec.parse::<NodeSpec>()?;
        let folder = PrivateFolder::new("sim")?;
        let longest = folder.path().join(SOCKET);
        if longest.as_os_str().len() > MOST_OF_A_SOCKETS_PATH {
            return Err(format!(
                "cannot make a socket at {}: a socket's path has at most {MOST_OF_A_SOCKETS_PATH} bytes; set TMPDIR to a shorter one",
                longest.display()
            )
            .into());
        }
        let libraries = folder.path().join(LIBRARIES);
        embed::make_folder(&libraries, 0o755)?;
        embed::unpack_libraries(&libraries)?;
        let mut child = Command::new("/proc/self/exe")
            .args(["__sim", spec])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        // This is the process that makes the node's process an orphan; it ends at once.
        child.wait()?;
        let mut said = String::new();
        BufReader::new(stdout.ok_or("no pipe")?).read_line(&mut said)?;
        if said.trim_end() != READY {
            return Err(format!("the simulated node {spec} did not start").into());
        }
        // From here on the node's process removes it.
        let folder = folder.keep();
        Ok(Node {
            socket: folder.join(SOCKET),
            libraries,
            _lifeline: stdin,
            _unpacked: None,
        })
    }

    /// The folder of a node that we started: it goes when the node's process ends.
    pub fn folder(&self) -> &Path {
        self.socket.parent().unwrap_or(&self.socket)
    }

    /// Where the node listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The node's registry of slices, beside its socket.
    ///
    /// # Errors
    /// The folder is not ours to use.
    pub fn registry(&self) -> io::Result<Registry> {
        Registry::in_folder(&self.socket.with_file_name(REGISTRY))
    }

    /// What a program needs in its environment to run on the node, given what is there.
    pub fn environment(&self, library_path: Option<&OsStr>) -> [(&'static str, OsString); 2] {
        let mut path = OsString::from(&self.libraries);
        if let Some(more) = library_path.filter(|p| !p.is_empty()) {
            path.push(":");
            path.push(more);
        }
        [
            (SOCKET_VARIABLE, self.socket.clone().into()),
            (LIBRARY_PATH, path),
        ]
    }
}

/// The registry of a running node.
///
/// # Errors
/// What is asked for is no socket, or the node is another user's.
pub fn registry_of(asked: &str) -> Result<Registry, Failure> {
    Ok(Registry::in_folder(&registry_folder(asked)?)?)
}

/// Where a running node has its registry, whoever it belongs to.
///
/// # Errors
/// What is asked for is no socket.
pub fn registry_folder(asked: &str) -> Result<PathBuf, Failure> {
    let socket = Path::new(asked);
    if !asked.contains('/') || !socket.exists() {
        return Err(format!("--sim {asked}: there is no such socket; a running simulated node has it in {SOCKET_VARIABLE}").into());
    }
    Ok(socket.with_file_name(REGISTRY))
}

/// `gpuslice sim SPEC -- CMD`: the command on a simulated node, with no slice round it. Returns its exit status.
///
/// # Errors
/// The node could not be started.
pub fn run(spec: &str, command: &[OsString]) -> Result<u8, Failure> {
    let node = Node::get(spec)?;
    let signals = sys::signal_fd(&[
        libc::SIGCHLD,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGHUP,
    ])?;
    let mut child = Command::new(&command[0]);
    child
        .args(&command[1..])
        .envs(node.environment(std::env::var_os(LIBRARY_PATH).as_deref()));
    // SAFETY: the closure runs between fork and exec and calls only sigprocmask(2) and signal(2), which are
    // async-signal-safe.
    unsafe {
        use std::os::unix::process::CommandExt;
        child.pre_exec(|| {
            sys::unblock_signals();
            Ok(())
        });
    }
    let mut child = match child.spawn() {
        Ok(child) => child,
        Err(e) => {
            say::note(format_args!(
                "gpuslice: cannot execute '{}': {e}",
                command[0].to_string_lossy()
            ));
            return Ok(if e.kind() == io::ErrorKind::NotFound {
                127
            } else {
                126
            });
        }
    };
    loop {
        sys::poll([(signals.as_raw_fd(), libc::POLLIN)], -1)?;
        while let Some((number, sender)) = sys::read_signal(signals.as_fd()) {
            // What the terminal sends has reached the command already.
            if number != libc::SIGCHLD && sender != 0 {
                // It may have ended in this moment.
                let _sent = sys::kill(child.id() as i32, number);
            }
        }
        if let Some(status) = child.try_wait()? {
            return Ok(exit_code(status));
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    u8::try_from(sys::exit_code(status.into_raw())).unwrap_or(OWN_FAILURE)
}

/// The hidden side of [`Node::start`]: this process becomes the node.
///
/// # Errors
/// The node could not be set up.
pub fn serve(spec: &str, folder: &Path) -> Result<u8, Failure> {
    if sys::fork()?.is_some() {
        return Ok(0);
    }
    // SAFETY: setsid(2) takes nothing and fails only for a group's leader, which a forked child is not.
    unsafe { libc::setsid() };
    let spec: NodeSpec = spec.parse()?;
    let registry = Registry::in_folder(&folder.join(REGISTRY))?;
    let node = simgpu::server::start(&spec, &folder.join(SOCKET))?;
    say_ready()?;
    // Nobody writes; what ends the reading is the end of the starter.
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    // Whoever reads the starter's errors to their end need not wait for us.
    sys::to_null(libc::STDERR_FILENO)?;
    while !registry.tenants()?.is_empty() {
        std::thread::sleep(LOOK_EVERY);
    }
    drop(node);
    fs::remove_dir_all(folder)?;
    Ok(0)
}

/// Tells the starter, and lets go of the pipe.
fn say_ready() -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{READY}")?;
    out.flush()?;
    sys::to_null(libc::STDOUT_FILENO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_libraries_come_before_what_the_user_has() {
        let node = Node {
            socket: "/x/socket".into(),
            libraries: "/x/lib".into(),
            _lifeline: None,
            _unpacked: None,
        };
        let with = node.environment(Some(OsStr::new("/opt/lib")));
        assert_eq!(with[0], ("GPUSLICE_SIM", "/x/socket".into()));
        assert_eq!(with[1], ("LD_LIBRARY_PATH", "/x/lib:/opt/lib".into()));
        assert_eq!(node.environment(None)[1].1, "/x/lib");
        assert_eq!(
            node.environment(Some(OsStr::new("")))[1].1,
            "/x/lib",
            "an empty entry would mean the current folder"
        );
    }
}
