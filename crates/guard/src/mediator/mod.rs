//! The mediator: executes a tenant's calls in its stead.
//!
//! The order of every call: receive; open the caller; take a duplicate of the descriptor and one copy of the
//! parameters; is the caller still waiting? decide; charge; execute on the copy; still waiting? write back what
//! changed; answer. What was executed stays in the ledger even if the caller was killed meanwhile.

mod alloc;
mod answers;
mod control;
mod counted;
mod escapes;
mod mapping;
mod uvm_calls;

pub(crate) use uvm_calls::DISABLE_HMM;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rm::{Foreign, Names, Status};

use crate::backend::Node;
use crate::block::Block;
use crate::caller::{Caller, Guess};
use crate::files::OpenFile;
use crate::listener::{Listener, Notification, Reply};
use crate::sys::{self, TenantPtr};
use crate::tenant::{Tenant, Unknown};
use crate::trace::{Named, Trace, Traced, TracedCall};

/// Why a call ends early.
#[derive(Debug)]
enum Stop {
    /// The caller was killed; there is nobody to answer.
    Gone,
    /// The call fails with this error number.
    Errno(i32),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Stop {
        Stop::Errno(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

type Outcome = Result<Reply, Stop>;

/// One thread that serves the tenant's calls, with its buffers.
pub struct Worker<'t> {
    tenant: &'t Arc<Tenant>,
    listener: Listener<'t>,
    /// The driver's file that the call being served is on.
    node: Option<Node>,
    /// Which open file that is.
    file: u64,
    /// The demo has taken away the wall that would charge this caller.
    uncharged: bool,
    arg: Block,
    params: Block,
    extra: Vec<Block>,
    /// The block of `UVM_MAP_EXTERNAL_ALLOCATION`: large, nearly all of it unused, and zero between calls.
    map_block: Vec<u8>,
}

/// One call being served.
struct Call {
    n: Notification,
    caller: Arc<Caller>,
    file: Arc<OpenFile>,
    request: u32,
    arg: TenantPtr,
}

impl<'t> Worker<'t> {
    /// A worker with empty buffers.
    pub fn new(tenant: &'t Arc<Tenant>, listener: Listener<'t>) -> Worker<'t> {
        Worker {
            tenant,
            listener,
            node: None,
            file: 0,
            uncharged: false,
            arg: Block::default(),
            params: Block::default(),
            extra: Vec::new(),
            map_block: Vec::new(),
        }
    }

    /// Serves one call.
    pub fn serve(&mut self, n: &Notification) {
        self.tenant.mark_active();
        let reply = match self.mediate(n) {
            Ok(reply) => Some(reply),
            Err(Stop::Gone) => None,
            Err(Stop::Errno(e)) => Some(Reply::Errno(e)),
        };
        if let Some(trace) = &self.tenant.trace {
            self.show(trace.as_ref(), n, reply);
        }
        if let Some(reply) = reply {
            self.listener.answer(n.id, reply);
        }
    }

    fn show(&self, trace: &dyn Trace, n: &Notification, answer: Option<Reply>) {
        let mapping = i64::from(n.syscall) == libc::SYS_mmap;
        let behind: Vec<&[u8]> = self.extra.iter().map(Block::before).collect();
        let call = match self.node {
            Some(_) if mapping => TracedCall::Map {
                file: self.file,
                address: n.args[5],
                length: n.args[1],
            },
            Some(node) => TracedCall::Ioctl {
                node,
                file: self.file,
                request: n.args[1] as u32,
                before: self.arg.before(),
                block: &self.arg.bytes[..self.arg.len()],
                params_before: self.params.before(),
                params: &self.params.bytes[..self.params.len()],
                behind: &behind,
            },
            None => TracedCall::Other,
        };
        let caller = self.tenant.callers.get(n.thread()).ok().map(|(c, _)| c);
        let named = |number: i32| {
            let caller = caller.as_deref();
            caller.map_or(Named::Other, |caller| self.named(caller, number))
        };
        trace.note(&Traced {
            thread: n.tid,
            process: caller.as_ref().map(|c| c.process),
            call,
            answer,
            descriptor: &named,
        });
    }

    /// What a descriptor of the caller is, for a trace.
    fn named(&self, caller: &Caller, number: i32) -> Named {
        let Ok(fd) = caller.descriptor(number) else {
            return Named::Other;
        };
        let Ok(Some(node)) = self.tenant.backend.classify(fd.as_fd()) else {
            return Named::Other;
        };
        let mut files = self.tenant.files();
        if let Some(file) = files.find(fd.as_fd(), node, self.tenant.helper) {
            return Named::File(file.uvm.0);
        }
        match files.known_export(fd.as_fd()) {
            Some(export) => Named::Export(export),
            None => Named::Unused(node),
        }
    }

    fn mediate(&mut self, n: &Notification) -> Outcome {
        self.node = None;
        self.arg.clear();
        self.params.clear();
        self.extra.clear();
        if self.tenant.is_condemned() {
            return Err(Stop::Errno(libc::EPERM));
        }
        let caller = self.caller(n)?;
        match i64::from(n.syscall) {
            libc::SYS_ioctl => self.ioctl(n, caller),
            libc::SYS_mmap => self.mmap(n, &caller),
            _ => Err(Stop::Errno(libc::ENOSYS)),
        }
    }

    fn caller(&self, n: &Notification) -> Result<Arc<Caller>, Stop> {
        let (caller, fresh) = match self.tenant.callers.get(n.thread()) {
            Ok(found) => found,
            Err(e) => return Err(self.cannot_look(n, &e)),
        };
        if fresh {
            self.check_opened(n, &caller)?;
        }
        Ok(caller)
    }

    /// What was opened by number is the caller's only if the caller is still waiting.
    fn check_opened(&self, n: &Notification, caller: &Caller) -> Result<(), Stop> {
        if !self.listener.still_waiting(n.id) {
            self.tenant.callers.forget_process(caller.process);
            return Err(Stop::Gone);
        }
        if self.tenant.processes().note(caller.process)? {
            crate::audit::note_inherited(self.tenant, caller.process);
        }
        Ok(())
    }

    fn cannot_look(&self, n: &Notification, e: &io::Error) -> Stop {
        if !self.listener.still_waiting(n.id) {
            return Stop::Gone;
        }
        if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
            self.tenant.say(&format!(
                "a program of the tenant (thread {}) may not be looked into ({e}): its GPU calls are refused; it must not be set-uid or undumpable",
                n.tid
            ));
        }
        Stop::Errno(libc::EPERM)
    }

    /// A duplicate of the descriptor the caller names, from the caller's own table.
    fn descriptor(
        &self,
        n: &Notification,
        caller: &mut Arc<Caller>,
        fd: i32,
    ) -> Result<OwnedFd, Stop> {
        match caller.descriptor(fd) {
            Ok(file) => Ok(file),
            // The task behind the cached pidfd has ended: its number belongs to another now.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                *caller = self
                    .tenant
                    .callers
                    .reopen(n.thread())
                    .map_err(|e| self.cannot_look(n, &e))?;
                self.check_opened(n, caller)?;
                Ok(caller.descriptor(fd)?)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// The driver's file that the caller has under a number; `None`: it is not the driver's.
    fn open_file(
        &self,
        n: &Notification,
        caller: &mut Arc<Caller>,
        number: i32,
    ) -> Result<Option<Arc<OpenFile>>, Stop> {
        let tenant = self.tenant;
        if let Some(file) = tenant.numbers.get(caller.process, number)
            && sys::same_file(n.thread(), number, tenant.helper, file.fd().as_raw_fd())
                .unwrap_or(false)
        {
            return Ok(Some(file));
        }
        let fd = self.descriptor(n, caller, number)?;
        let Some(node) = tenant.backend.classify(fd.as_fd())? else {
            return Ok(None);
        };
        let entered = tenant.files().enter(
            &tenant.numbers,
            (caller.process, number),
            fd,
            node,
            tenant.helper,
        )?;
        Ok(Some(entered))
    }

    fn ioctl(&mut self, n: &Notification, mut caller: Arc<Caller>) -> Outcome {
        let request = n.args[1] as u32;
        let arg = TenantPtr(n.args[2]);
        let Some(file) = self.open_file(n, &mut caller, n.args[0] as i32)? else {
            return self.not_the_drivers(request);
        };
        self.node = Some(file.node);
        self.file = file.uvm.0;
        self.uncharged = self.demo_bypass(&caller);
        let call = Call {
            n: *n,
            caller,
            file,
            request,
            arg,
        };
        match call.file.node {
            Node::Uvm => self.uvm_call(&call),
            Node::Gpu(minor) if !self.tenant.has_minor(minor) => Err(Stop::Errno(libc::EPERM)),
            Node::Gpu(_) | Node::Control => self.escape(&call),
        }
    }

    /// An ioctl on a file that is not the driver's, with a number and size that the driver would take.
    ///
    /// It is never continued: between this look and the kernel's the tenant could put a file of the driver there. Only
    /// numbers whose worst case is harmless whatever they meet (information about the cards) run natively.
    fn not_the_drivers(&self, request: u32) -> Outcome {
        let nr = request as u8;
        let typed_f = (request >> 8) as u8 == b'F';
        if !typed_f && rm::UNSIZED_ESCAPES.contains(&nr) {
            return Ok(Reply::Continue);
        }
        Err(Stop::Errno(libc::ENOTTY))
    }

    /// Where memory is reached by the thread's number: go on only if the number is still the caller's.
    ///
    /// Where it is reached through a file that is bound to the address space, a caller that was killed meanwhile is no
    /// danger: its call is finished as the kernel would have finished it.
    fn still_waiting(&self, call: &Call) -> Result<(), Stop> {
        if !call.caller.writes_by_number() {
            return Ok(());
        }
        if self.listener.still_waiting(call.n.id) {
            Ok(())
        } else {
            Err(Stop::Gone)
        }
    }

    /// Copies the call's block, with the parameters that it led to last time.
    fn load_arg(&mut self, call: &Call, len: usize) -> Result<(), Stop> {
        let guess = call.caller.guess();
        if guess.arg == call.arg.0 && guess.len > 0 {
            let behind = (TenantPtr(guess.params), guess.len);
            self.arg
                .load_with(&call.caller, call.arg, len, &mut self.params, behind)?;
        } else {
            self.arg.load(&call.caller, call.arg, len)?;
        }
        Ok(())
    }

    /// Copies the parameters that the block leads to, unless they came with it.
    fn load_params(&mut self, call: &Call, from: TenantPtr, len: usize) -> Result<(), Stop> {
        if !self.params.is_of(from, len) {
            self.params.load(&call.caller, from, len)?;
        }
        call.caller.set_guess(Guess {
            arg: call.arg.0,
            params: from.0,
            len,
        });
        Ok(())
    }

    /// Executes on the copy in `self.arg`.
    fn execute(&mut self, call: &Call) -> io::Result<i32> {
        self.tenant
            .in_driver(call.file.fd(), call.request, self.arg.driver_view())
    }

    /// Writes the changed words of `self.arg` and `self.params` back and gives the call's answer.
    fn finish(&mut self, call: &Call, value: i32) -> Outcome {
        self.still_waiting(call)?;
        for extra in &self.extra {
            extra.store(&call.caller)?;
        }
        self.params.store(&call.caller)?;
        self.arg.store(&call.caller)?;
        Ok(Reply::Value(i64::from(value)))
    }

    /// Answers with an RM status, the driver never having seen the call.
    fn finish_with_status(
        &mut self,
        call: &Call,
        status_at: Option<usize>,
        status: Status,
    ) -> Outcome {
        let Some(at) = status_at.filter(|at| at + 4 <= self.arg.len()) else {
            return Err(Stop::Errno(libc::EINVAL));
        };
        self.arg.set_u32(at, status.0);
        self.params.clear();
        self.extra.clear();
        self.finish(call, 0)
    }

    /// May a block name these clients? Only itself, nobody, or another client of this tenant.
    fn names_only_own(&self, block: &Block, foreign: &[Foreign]) -> bool {
        let own = |handle: u32| handle == 0 || self.tenant.owns_client(handle);
        foreign.iter().all(|f| {
            let at = usize::from(f.offset);
            if at + 4 > block.len() {
                return true;
            }
            match f.names {
                Names::Client => own(block.u32(at)),
                Names::ClientArray { count, max } => {
                    let count = block.u32(usize::from(count));
                    count <= u32::from(max)
                        && (0..count as usize)
                            .all(|i| at + 4 * i + 4 <= block.len() && own(block.u32(at + 4 * i)))
                }
                Names::Process => {
                    let pid = block.u32(at);
                    pid == 0 || self.tenant.processes().alive().contains(&(pid as i32))
                }
            }
        })
    }

    fn unknown(&self, what: Unknown) {
        self.tenant.count_unknown(what);
    }

    /// Two walls of the demo cannot be taken away inside the ledger: what a limit that hangs on the environment, or on
    /// the dynamic linker, does not see. With the wall away, nothing is charged to such a caller.
    fn demo_bypass(&self, caller: &Caller) -> bool {
        let walls = &self.tenant.walls;
        if walls.env_unset_still_limited && walls.static_binary_limited {
            return false;
        }
        let read = |file: &str| {
            std::fs::read(format!("/proc/{}/{file}", caller.process)).unwrap_or_default()
        };
        let has = |text: &[u8], what: &[u8]| text.windows(what.len()).any(|w| w == what);
        (!walls.env_unset_still_limited && !has(&read("environ"), b"GPUSLICE_NAME="))
            || (!walls.static_binary_limited && !has(&read("maps"), b"ld-linux"))
    }
}
