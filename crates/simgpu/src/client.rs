//! A program's side of the socket: opening nodes, executing ioctls, submitting work.

use std::collections::HashSet;
use std::ffi::c_void;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rm::Abi;

use crate::proto::{FileId, Malformed, Reply, Request};
use crate::usage::Usage;
use crate::wire::{self, Receiver};
use crate::work::{CHUNK, Op, Work, WorkResult, WorkStatus};

/// A device node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Node {
    /// `/dev/nvidiactl`
    Control,
    /// `/dev/nvidiaN`, N the minor number.
    Gpu(u32),
    /// `/dev/nvidia-uvm`
    Uvm,
}

/// A connection to the server, for one thread at a time.
///
/// The process that connects is who the driver sees: its pid and its effective user at that moment. After a fork the
/// child connects anew at its first call; a process that changes its user makes a new client.
pub struct Client {
    socket: PathBuf,
    /// The kernel interface of the driver, once it has been asked for.
    abi: Option<&'static Abi>,
    connection: Connection,
}

struct Connection {
    pid: u32,
    stream: UnixStream,
    receiver: Receiver,
}

impl Connection {
    fn open(socket: &Path) -> io::Result<Connection> {
        let stream = UnixStream::connect(socket)?;
        let_server_reach_pinned_pages(&stream);
        Ok(Connection {
            pid: std::process::id(),
            stream,
            receiver: Receiver::default(),
        })
    }

    fn send(&self, request: &Request, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        wire::send(&self.stream, &request.encode(), descriptor)
    }

    /// The final answer: callbacks are served on the way.
    fn answer(&mut self) -> io::Result<(Reply, Option<OwnedFd>)> {
        loop {
            let (frame, descriptor) = self.receiver.receive(&self.stream)?;
            match Reply::decode(&frame).map_err(protocol)? {
                Reply::CopyIn { ptr, len } => {
                    let mut bytes = vec![0; len as usize];
                    let copied = read_self(ptr, &mut bytes).map(|()| bytes).map_err(errno);
                    self.send(&Request::Copied(copied), None)?;
                }
                Reply::CopyOut { ptr, bytes } => {
                    let copied = write_self(ptr, &bytes).map(|()| Vec::new()).map_err(errno);
                    self.send(&Request::Copied(copied), None)?;
                }
                Reply::ResolveFd(number) => self.send_own(duplicate(number))?,
                Reply::FindFile(files) => {
                    let wanted: HashSet<FileId> = files.into_iter().collect();
                    let own = own_descriptors()?;
                    let found = own.into_iter().find(|(_, id)| wanted.contains(id));
                    self.send_own(found.and_then(|(number, _)| duplicate(number)))?;
                }
                Reply::Failed(errno) => return Err(io::Error::from_raw_os_error(errno)),
                last => return Ok((last, descriptor)),
            }
        }
    }

    /// Sends a duplicate of one of the process's descriptors: a duplicate, so that another thread's close can't put a
    /// different file under the number meanwhile.
    fn send_own(&self, file: Option<OwnedFd>) -> io::Result<()> {
        let found = Request::Resolved(file.is_some());
        self.send(&found, file.as_ref().map(|file| file.as_fd()))
    }
}

impl Client {
    /// Connects to the server behind `socket`.
    ///
    /// # Errors
    /// What `connect(2)` says.
    pub fn connect(socket: &Path) -> io::Result<Client> {
        Ok(Client {
            socket: socket.to_owned(),
            abi: None,
            connection: Connection::open(socket)?,
        })
    }

    fn ask(
        &mut self,
        request: &Request,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<(Reply, Option<OwnedFd>)> {
        if self.connection.pid != std::process::id() {
            // A fork shares the parent's connection: speaking on it would mix two conversations and the parent's pid.
            self.connection = Connection::open(&self.socket)?;
        }
        self.connection.send(request, descriptor)?;
        self.connection.answer()
    }

    /// Opens a node. The descriptor is close-on-exec.
    ///
    /// # Errors
    /// `ENODEV` where the node has no such GPU; what the socket says.
    pub fn open(&mut self, node: Node) -> io::Result<OwnedFd> {
        match self.ask(&Request::Open(node), None)? {
            (Reply::Opened, Some(file)) => Ok(file),
            _ => Err(protocol(Malformed)),
        }
    }

    /// Executes an ioctl as the kernel would for the calling process: `arg` is an address in it, everything the block
    /// points to is read and written there.
    ///
    /// # Errors
    /// The errno the kernel would give: `EFAULT` for a bad pointer, `ENOTTY` on a descriptor of no node.
    pub fn ioctl(&mut self, fd: BorrowedFd<'_>, request: u32, arg: *mut u8) -> io::Result<i32> {
        let arg = arg as u64;
        let mut block = vec![0; block_size(self.abi()?, request)];
        read_self(arg, &mut block)?;
        let ask = Request::Ioctl {
            request,
            arg,
            block,
        };
        let (result, mut changed, installed_at, installed) = match self.ask(&ask, Some(fd))? {
            (
                Reply::Done {
                    result,
                    block,
                    installed_at,
                },
                installed,
            ) => (result, block, installed_at, installed),
            _ => return Err(protocol(Malformed)),
        };
        if let (Some(at), Some(file)) = (installed_at, installed) {
            let number = file.as_raw_fd().to_ne_bytes();
            changed
                .get_mut(at as usize..at as usize + 4)
                .ok_or_else(|| protocol(Malformed))?
                .copy_from_slice(&number);
            write_self(arg, &changed)?;
            // From here on the number in the caller's block is the only owner, as after a real ioctl.
            std::mem::forget(file);
        } else if matches!(&ask, Request::Ioctl { block, .. } if *block != changed) {
            write_self(arg, &changed)?;
        }
        if result < 0 {
            Err(io::Error::from_raw_os_error(-result))
        } else {
            Ok(result)
        }
    }

    /// Which node this file is open on; `None` if it is no stand-in of this server or has been released.
    ///
    /// # Errors
    /// What the socket says.
    pub fn classify(&mut self, dev: u64, ino: u64) -> io::Result<Option<Node>> {
        match self.ask(&Request::Classify((dev, ino)), None)? {
            (Reply::Classified(node), _) => Ok(node),
            _ => Err(protocol(Malformed)),
        }
    }

    /// For each file: has its last descriptor and mapping gone (so that the driver has freed what hung on it)?
    ///
    /// # Errors
    /// What the socket says.
    pub fn released(&mut self, files: &[(u64, u64)]) -> io::Result<Vec<bool>> {
        match self.ask(&Request::Released(files.to_vec()), None)? {
            (Reply::Released(states), _) if states.len() == files.len() => Ok(states),
            _ => Err(protocol(Malformed)),
        }
    }

    /// Version of the driver, such as `580.159.04`.
    ///
    /// # Errors
    /// What the socket says.
    pub fn driver_version(&mut self) -> io::Result<String> {
        match self.ask(&Request::DriverVersion, None)? {
            (Reply::Version(version), _) => Ok(version),
            _ => Err(protocol(Malformed)),
        }
    }

    /// Who has had the engines of a GPU, and what their clocks show.
    ///
    /// # Errors
    /// `ENODEV` where the node has no such GPU; `EPERM` under a guard's filter; what the socket says.
    pub fn usage(&mut self, gpu: u32) -> io::Result<Usage> {
        match self.ask(&Request::Usage(gpu), None)? {
            (Reply::Used(usage), _) => Ok(usage),
            _ => Err(protocol(Malformed)),
        }
    }

    /// The kernel interface of the driver.
    ///
    /// # Errors
    /// What the socket says.
    pub fn abi(&mut self) -> io::Result<&'static Abi> {
        if let Some(abi) = self.abi {
            return Ok(abi);
        }
        let abi = crate::abi_of(&self.driver_version()?);
        self.abi = Some(abi);
        Ok(abi)
    }

    /// Submits work. Transfers longer than [`CHUNK`] are split; their result is that of the last part, with the first
    /// part's start and the sum of the engine's time.
    ///
    /// # Errors
    /// What the socket says. How the work itself ended is in the result.
    pub fn submit(&mut self, work: &Work) -> io::Result<WorkResult> {
        match &work.op {
            Op::Write { dst, bytes } if bytes.len() > CHUNK => {
                let parts = bytes
                    .chunks(CHUNK)
                    .enumerate()
                    .map(|(index, part)| Op::Write {
                        dst: dst.wrapping_add((index * CHUNK) as u64),
                        bytes: part.to_vec(),
                    });
                self.submit_parts(work, parts)
            }
            Op::Read { src, len } if *len > CHUNK as u64 => {
                let parts = (0..len.div_ceil(CHUNK as u64)).map(|index| {
                    let done = index * CHUNK as u64;
                    Op::Read {
                        src: src.wrapping_add(done),
                        len: (len - done).min(CHUNK as u64),
                    }
                });
                self.submit_parts(work, parts)
            }
            _ => self.submit_one(work),
        }
    }

    fn submit_parts(
        &mut self,
        work: &Work,
        parts: impl Iterator<Item = Op>,
    ) -> io::Result<WorkResult> {
        let mut total: Option<WorkResult> = None;
        for op in parts {
            let part = self.submit_one(&Work { op, ..*work })?;
            let so_far = total.get_or_insert_with(|| WorkResult {
                busy_ns: 0,
                data: Vec::new(),
                ..part
            });
            so_far.status = part.status;
            so_far.ticket = part.ticket;
            so_far.end_ns = part.end_ns;
            so_far.busy_ns += part.busy_ns;
            so_far.data.extend_from_slice(&part.data);
            if !matches!(part.status, WorkStatus::Done | WorkStatus::Queued) {
                break;
            }
        }
        total.ok_or_else(|| protocol(Malformed))
    }

    fn submit_one(&mut self, work: &Work) -> io::Result<WorkResult> {
        match self.ask(&Request::Submit(work.clone()), None)? {
            (Reply::Worked(result), _) => Ok(result),
            _ => Err(protocol(Malformed)),
        }
    }
}

/// Bytes at `arg` that a request means: what the request word encodes, or the table's size for a UVM call (whose
/// words encode nothing).
fn block_size(abi: &Abi, request: u32) -> usize {
    let uvm = abi.uvm(request).map(|entry| entry.size.into());
    uvm.unwrap_or((request >> 16) as usize & 0x3fff)
}

fn protocol(error: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// The process's descriptors and their files.
fn own_descriptors() -> io::Result<Vec<(i32, FileId)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let Ok(entry) = entry else { continue };
        let (Some(number), Ok(status)) = (
            entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok()),
            fs::metadata(entry.path()),
        ) else {
            continue;
        };
        found.push((number, (status.dev(), status.ino())));
    }
    Ok(found)
}

fn duplicate(number: i32) -> Option<OwnedFd> {
    if number < 0 {
        return None;
    }
    // SAFETY: the number is not -1, and it is borrowed only for the call that duplicates it; if it is not open the
    // call fails with EBADF.
    unsafe { BorrowedFd::borrow_raw(number) }
        .try_clone_to_owned()
        .ok()
}

/// Copies from this process's memory by address, so that a bad address is an error and not a crash.
fn read_self(address: u64, into: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    copy_self(address, local, libc::process_vm_readv)
}

/// Copies into this process's memory by address. The caller of the ioctl gave that address to be written.
fn write_self(address: u64, from: &[u8]) -> io::Result<()> {
    let local = libc::iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: from.len(),
    };
    copy_self(address, local, libc::process_vm_writev)
}

type ProcessVm = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

fn copy_self(address: u64, local: libc::iovec, call: ProcessVm) -> io::Result<()> {
    if local.iov_len == 0 {
        return Ok(());
    }
    let remote = libc::iovec {
        iov_base: address as *mut c_void,
        iov_len: local.iov_len,
    };
    // SAFETY: `local` describes a live slice; the kernel checks every byte of `remote` against the address space. A
    // write goes only where the ioctl's caller pointed, which is memory it means to be written.
    // By thread: the first one, whose number is the process's, may have ended, and with it its way to the memory.
    let copied = unsafe { call(libc::gettid(), &raw const local, 1, &raw const remote, 1, 0) };
    match usize::try_from(copied) {
        Ok(count) if count == local.iov_len => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// A GPU reaches pinned host pages by DMA; the server reaches them as a debugger would, which Yama (ptrace_scope 1)
/// allows only to a process named here. Elsewhere the call fails with EINVAL and is not needed.
fn let_server_reach_pinned_pages(stream: &UnixStream) {
    if let Ok(server) = peer(stream) {
        // SAFETY: PR_SET_PTRACER takes a pid and touches no memory.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_long::from(server.pid)) };
    }
}

/// Credentials of the process at the other end, as they were when it connected or listened.
pub(crate) fn peer(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `credentials`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(credentials)
    } else {
        Err(io::Error::last_os_error())
    }
}
