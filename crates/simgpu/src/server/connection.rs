//! One connection: whose calls these are, and how the server reaches into the caller.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::Inner;
use crate::client::{Node, peer};
use crate::proto::{FileId, Reply, Request};
use crate::resman::{Caller, Shared, runlist};
use crate::wire::{self, Receiver, file_id};
use crate::work::{Work, WorkResult, WorkStatus};

/// Why a request has no ordinary answer.
pub enum Stop {
    /// It failed with this errno.
    Errno(i32),
    /// The caller is gone, or speaks no sense: the connection ends.
    Gone,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Stop {
        Stop::Gone
    }
}

/// One connection and the process behind it.
pub struct Connection {
    server: Arc<Inner>,
    stream: UnixStream,
    receiver: Receiver,
    caller: Caller,
    /// Files the process has been seen to hold.
    held: HashSet<FileId>,
}

impl Connection {
    pub fn new(server: Arc<Inner>, stream: UnixStream) -> io::Result<Connection> {
        let credentials = peer(&stream)?;
        let caller = Caller {
            pid: credentials.pid.cast_unsigned(),
            euid: credentials.uid,
        };
        server.filters.connected(caller.pid);
        Ok(Connection {
            server,
            stream,
            receiver: Receiver::default(),
            caller,
            held: HashSet::new(),
        })
    }

    pub fn caller(&self) -> Caller {
        self.caller
    }

    pub fn shared(&self) -> &Shared {
        &self.server.shared
    }

    /// Serves requests until the caller goes.
    pub fn serve(mut self) {
        while self.serve_one().is_ok() {}
    }

    fn serve_one(&mut self) -> Result<(), Stop> {
        let (frame, descriptor) = self.receiver.receive(&self.stream)?;
        let request = Request::decode(&frame).map_err(|_| Stop::Gone)?;
        self.server.sweep();
        let (reply, install) = match self.answer(request, descriptor) {
            Ok(answered) => answered,
            Err(Stop::Errno(errno)) => (Reply::Failed(errno), None),
            Err(Stop::Gone) => return Err(Stop::Gone),
        };
        Ok(wire::send(
            &self.stream,
            &reply.encode(),
            install.as_ref().map(|descriptor| descriptor.as_fd()),
        )?)
    }

    fn answer(
        &mut self,
        request: Request,
        descriptor: Option<OwnedFd>,
    ) -> Result<(Reply, Option<OwnedFd>), Stop> {
        Ok(match request {
            Request::Open(node) => {
                let name = match node {
                    Node::Control => "nvidiactl".to_owned(),
                    Node::Uvm => "nvidia-uvm".to_owned(),
                    Node::Gpu(minor) if (minor as usize) < self.shared().lock().device_count() => {
                        format!("nvidia{minor}")
                    }
                    Node::Gpu(_) => return Err(Stop::Errno(libc::ENODEV)),
                };
                let (_, descriptor) = self.open_stand_in(&name, Some(node))?;
                (Reply::Opened, Some(descriptor))
            }
            Request::Ioctl { request, block, .. } => {
                let descriptor = descriptor.ok_or(Stop::Errno(libc::EBADF))?;
                let file = file_id(descriptor.as_fd()).map_err(|_| Stop::Errno(libc::EBADF))?;
                let executed = self.execute(file, request, block);
                // Before the answer: after it, a close of the caller's must be the last.
                drop(descriptor);
                let executed = executed?;
                let installed_at = executed
                    .install
                    .as_ref()
                    .and_then(|(_, at)| u32::try_from(*at).ok());
                let reply = Reply::Done {
                    result: 0,
                    block: executed.block,
                    installed_at,
                };
                (reply, executed.install.map(|(descriptor, _)| descriptor))
            }
            Request::Classify(file) => {
                (Reply::Classified(self.shared().lock().node_of(file)), None)
            }
            Request::Released(files) => {
                let rm = self.shared().lock();
                (
                    Reply::Released(files.into_iter().map(|file| !rm.is_open(file)).collect()),
                    None,
                )
            }
            Request::DriverVersion => {
                let version = self.shared().lock().driver_version().to_owned();
                (Reply::Version(version), None)
            }
            Request::Usage(gpu) => {
                if self.is_filtered()? {
                    return Err(Stop::Errno(libc::EPERM));
                }
                let usage = self.shared().lock().usage(gpu as usize);
                (Reply::Used(usage.ok_or(Stop::Errno(libc::ENODEV))?), None)
            }
            Request::Submit(work) => (Reply::Worked(self.submit(work)?), None),
            // An answer nobody asked for.
            Request::Copied(_) | Request::Resolved(_) => return Err(Stop::Gone),
        })
    }

    /// Work for a channel. Ringing its doorbell takes the mapping that the client's file gives, so the caller must
    /// hold that file.
    fn submit(&mut self, work: Work) -> Result<WorkResult, Stop> {
        let file = self.shared().lock().client_file(work.client);
        match file {
            Some(file) if self.holds(file)? => {}
            _ => return Ok(WorkResult::only(WorkStatus::NoChannel)),
        }
        let result = runlist::submit(self.shared(), self.caller.pid, work, || {
            still_there(&self.stream)
        });
        result.ok_or(Stop::Gone)
    }

    /// Opens a stand-in and makes it known.
    pub fn open_stand_in(
        &mut self,
        name: &str,
        node: Option<Node>,
    ) -> Result<(FileId, OwnedFd), Stop> {
        let made = self.server.open(name, node);
        made.map_err(|error| Stop::Errno(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn ask(&mut self, question: &Reply) -> Result<(Request, Option<OwnedFd>), Stop> {
        wire::send(&self.stream, &question.encode(), None)?;
        let (frame, descriptor) = self.receiver.receive(&self.stream)?;
        Ok((Request::decode(&frame).map_err(|_| Stop::Gone)?, descriptor))
    }

    /// `copy_from_user`
    pub fn copy_in(&mut self, ptr: u64, len: u32) -> Result<Vec<u8>, Stop> {
        if len == 0 {
            return Ok(Vec::new());
        }
        match self.ask(&Reply::CopyIn { ptr, len })? {
            (Request::Copied(Ok(bytes)), _) if bytes.len() == len as usize => Ok(bytes),
            (Request::Copied(Err(_)), _) => Err(Stop::Errno(libc::EFAULT)),
            _ => Err(Stop::Gone),
        }
    }

    /// `copy_to_user`
    pub fn copy_out(&mut self, ptr: u64, bytes: Vec<u8>) -> Result<(), Stop> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self.ask(&Reply::CopyOut { ptr, bytes })? {
            (Request::Copied(Ok(_)), _) => Ok(()),
            (Request::Copied(Err(_)), _) => Err(Stop::Errno(libc::EFAULT)),
            _ => Err(Stop::Gone),
        }
    }

    /// `fget`: the file behind a descriptor of the caller's.
    pub fn resolve(&mut self, descriptor: i32) -> Result<Option<FileId>, Stop> {
        if descriptor < 0 {
            return Ok(None);
        }
        match self.ask(&Reply::ResolveFd(descriptor))? {
            (Request::Resolved(true), Some(file)) => Ok(file_id(file.as_fd()).ok()),
            (Request::Resolved(_), _) => Ok(None),
            _ => Err(Stop::Gone),
        }
    }

    /// Open device files of a GPU in the caller's descriptor table.
    pub fn device_files(&mut self, gpu: u32) -> Result<Vec<FileId>, Stop> {
        let wanted: Vec<FileId> = {
            let rm = self.shared().lock();
            let is_of = |file: &FileId| rm.node_of(*file) == Some(Node::Gpu(gpu));
            rm.device_file_ids().into_iter().filter(is_of).collect()
        };
        Ok(self.find(wanted)?.into_iter().collect())
    }

    fn holds(&mut self, file: FileId) -> Result<bool, Stop> {
        if !self.held.contains(&file)
            && let Some(found) = self.find(vec![file])?
        {
            self.held.insert(found);
        }
        Ok(self.held.contains(&file))
    }

    /// One of these files that the caller holds. Its table is read from /proc; where that is not allowed, the caller
    /// is asked to show one.
    fn find(&mut self, wanted: Vec<FileId>) -> Result<Option<FileId>, Stop> {
        if wanted.is_empty() {
            return Ok(None);
        }
        if let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", self.caller.pid)) {
            let files = entries.filter_map(|entry| fs::metadata(entry.ok()?.path()).ok());
            let mut files = files.map(|status| (status.dev(), status.ino()));
            return Ok(files.find(|file| wanted.contains(file)));
        }
        match self.ask(&Reply::FindFile(wanted.clone()))? {
            (Request::Resolved(true), Some(file)) => Ok(file_id(file.as_fd())
                .ok()
                .filter(|file| wanted.contains(file))),
            (Request::Resolved(_), _) => Ok(None),
            _ => Err(Stop::Gone),
        }
    }

    /// Whether the caller is under a guard's filter.
    pub fn is_filtered(&self) -> Result<bool, Stop> {
        self.server
            .filters
            .is_filtered(self.caller.pid)
            .ok_or(Stop::Gone)
    }
}

fn still_there(stream: &UnixStream) -> bool {
    let mut poll = libc::pollfd {
        fd: stream.as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: `poll` is one live pollfd.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    poll.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) == 0
}
