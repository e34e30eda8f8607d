//! The driver behind a slice: this machine's, or a simulated node's.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guard::backend::{Backend, FileId, FileWatch, KernelBackend, Node};
use guard::sys;
use simgpu::client::{self, Client};

/// Opens the simulated node at a socket, or this machine's driver.
///
/// # Errors
/// One line: what was looked for and what to do.
pub fn open(sim: Option<&Path>) -> io::Result<Arc<dyn Backend>> {
    match sim {
        None => Ok(Arc::new(KernelBackend::new()?)),
        Some(socket) => Ok(Arc::new(SimBackend::new(socket)?)),
    }
}

/// A simulated node.
///
/// A connection serves one thread at a time and speaks for the identity (process, user) that its process had when it
/// connected, so connections are made when they are needed and dropped when the identity changes.
struct SimBackend {
    socket: PathBuf,
    idle: Mutex<Vec<Client>>,
    stand_ins: Mutex<HashMap<Inode, Node>>,
}

/// (st_dev, st_ino): the name of a stand-in descriptor's file.
type Inode = (u64, u64);

/// Connections that are kept for the next call: enough for all threads of a helper.
const MOST_IDLE: usize = 32;
/// Known stand-ins from which on all are forgotten and asked for again.
const MOST_KNOWN: usize = 4096;

impl SimBackend {
    fn new(socket: &Path) -> io::Result<SimBackend> {
        let first = connect(socket)?;
        Ok(SimBackend {
            socket: socket.to_owned(),
            idle: Mutex::new(vec![first]),
            stand_ins: Mutex::default(),
        })
    }

    fn with_client<T>(&self, ask: impl FnOnce(&mut Client) -> io::Result<T>) -> io::Result<T> {
        let idle = lock(&self.idle).pop();
        let mut client = match idle {
            Some(client) => client,
            None => connect(&self.socket)?,
        };
        let answer = ask(&mut client);
        let usable = answer.as_ref().err().is_none_or(|e| !is_broken(e));
        let mut idle = lock(&self.idle);
        if usable && idle.len() < MOST_IDLE {
            idle.push(client);
        }
        drop(idle);
        answer
    }

    fn node_of(&self, (dev, ino): Inode) -> io::Result<Option<Node>> {
        if let Some(&node) = lock(&self.stand_ins).get(&(dev, ino)) {
            return Ok(Some(node));
        }
        let node = self.with_client(|c| c.classify(dev, ino))?.map(from_sim);
        // Only what is a stand-in is remembered: a file that is none can end, and its number be a stand-in's next.
        if let Some(node) = node {
            let mut known = lock(&self.stand_ins);
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            known.insert((dev, ino), node);
        }
        Ok(node)
    }
}

/// Whether the connection itself failed, and not the call made over it.
fn is_broken(e: &io::Error) -> bool {
    use io::ErrorKind as K;
    e.raw_os_error().is_none()
        || matches!(
            e.kind(),
            K::BrokenPipe | K::ConnectionReset | K::UnexpectedEof | K::NotConnected
        )
}

fn connect(socket: &Path) -> io::Result<Client> {
    Client::connect(socket).map_err(|e| {
        let why = format!(
            "no simulated node answers at {} ({e}); start one with `gpuslice sim 1xH200 -- CMD`",
            socket.display()
        );
        io::Error::new(e.kind(), why)
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn from_sim(node: client::Node) -> Node {
    match node {
        client::Node::Control => Node::Control,
        client::Node::Gpu(minor) => Node::Gpu(minor),
        client::Node::Uvm => Node::Uvm,
    }
}

fn to_sim(node: Node) -> client::Node {
    match node {
        Node::Control => client::Node::Control,
        Node::Gpu(minor) => client::Node::Gpu(minor),
        Node::Uvm => client::Node::Uvm,
    }
}

fn inode(fd: BorrowedFd<'_>) -> io::Result<Inode> {
    let (dev, ino, _, _) = sys::stat_fd(fd)?;
    Ok((dev, ino))
}

impl Backend for SimBackend {
    fn classify(&self, fd: BorrowedFd<'_>) -> io::Result<Option<Node>> {
        let (dev, ino, _, is_char) = sys::stat_fd(fd)?;
        if is_char {
            Ok(None)
        } else {
            self.node_of((dev, ino))
        }
    }

    fn maps_uvm(&self, device: &str, inode: u64, path: &str) -> bool {
        // Stand-ins are files in memory; asking about every library would be slow.
        if !path.starts_with("/memfd:") {
            return false;
        }
        match device_number(device) {
            // What cannot be asked counts as mapped: nobody is let off by a server that does not answer.
            Some(dev) => self
                .node_of((dev, inode))
                .map_or(true, |node| node == Some(Node::Uvm)),
            None => false,
        }
    }

    fn ioctl(&self, fd: BorrowedFd<'_>, request: u32, block: &mut [u8]) -> io::Result<i32> {
        self.with_client(|c| c.ioctl(fd, request, block.as_mut_ptr()))
    }

    fn open(&self, node: Node) -> io::Result<OwnedFd> {
        self.with_client(|c| c.open(to_sim(node)))
    }

    fn driver_version(&self) -> io::Result<String> {
        self.with_client(Client::driver_version)
    }

    fn watch(&self) -> io::Result<Box<dyn FileWatch>> {
        Ok(Box::new(SimWatch {
            client: connect(&self.socket)?,
            known: HashMap::new(),
            next: 1,
        }))
    }

    fn settle(&self) -> io::Result<()> {
        // The server keeps the identity that a connection was made with.
        lock(&self.idle).clear();
        Ok(())
    }
}

/// `major:minor` in hexadecimal, as proc_pid_maps(5) prints a device.
fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(libc::makedev(
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
    ))
}

/// Files by inode: every open of a simulated node is an inode of its own, and the server tells when it is gone.
struct SimWatch {
    client: Client,
    known: HashMap<Inode, FileId>,
    next: u64,
}

impl FileWatch for SimWatch {
    fn identify(&mut self, fd: BorrowedFd<'_>) -> io::Result<FileId> {
        let next = &mut self.next;
        let id = self.known.entry(inode(fd)?).or_insert_with(|| {
            *next += 1;
            FileId(*next - 1)
        });
        Ok(*id)
    }

    fn gone(&mut self) -> io::Result<Vec<FileId>> {
        if self.known.is_empty() {
            return Ok(Vec::new());
        }
        let files: Vec<Inode> = self.known.keys().copied().collect();
        let released = self.client.released(&files)?;
        let gone = files.iter().zip(released).filter(|&(_, released)| released);
        Ok(gone
            .filter_map(|(file, _)| self.known.remove(file))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_in_proc_maps_is_the_number_that_fstat_gives() {
        assert_eq!(device_number("00:01"), Some(1));
        assert_eq!(device_number("fe:10"), Some(libc::makedev(0xfe, 0x10)));
        assert_eq!(device_number("fe"), None);
    }

    #[test]
    fn where_no_node_listens_the_error_says_what_to_do() {
        let e = open(Some(Path::new("/nonexistent/socket")))
            .err()
            .unwrap()
            .to_string();
        assert!(
            e.contains("/nonexistent/socket") && e.contains("gpuslice sim"),
            "{e}"
        );
    }
}
