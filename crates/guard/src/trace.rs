//! A look at every call of a tenant after it was answered, for `gpuslice trace`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::backend::Node;
use crate::listener::Reply;
use crate::rmcall::Gpu;
use crate::sys::Tid;

/// A call of a tenant and its answer.
#[derive(Clone, Copy)]
pub struct Traced<'a> {
    /// The thread that made it.
    pub thread: u32,
    /// Its process; `None`: it is gone, or may not be looked into.
    pub process: Option<Tid>,
    /// What it is.
    pub call: TracedCall<'a>,
    /// The answer; `None`: the caller was killed meanwhile.
    pub answer: Option<Reply>,
    /// What its process has under a descriptor number.
    pub descriptor: &'a dyn Fn(i32) -> Named,
}

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// A file on which calls were made.
    File(u64),
    /// Another file of the driver.
    Unused(Node),
    /// A file to which an object was exported.
    Export(u64),
    /// No file of the driver, or none at all.
    Other,
}

/// What a traced call is.
#[derive(Clone, Copy, Debug)]
pub enum TracedCall<'a> {
    /// An ioctl on a file of the driver.
    Ioctl {
        /// Which device file.
        node: Node,
        /// Which open file; never given again.
        file: u64,
        /// The request word.
        request: u32,
        /// The parameter block before the call; empty where it was not read.
        before: &'a [u8],
        /// The same after the call.
        block: &'a [u8],
        /// The parameters that the block points to, before the call; empty where they were not read.
        params_before: &'a [u8],
        /// The same after the call.
        params: &'a [u8],
        /// What the pointers in the parameters of a control led to before the call, in the order of the table; empty
        /// where a pointer was null.
        behind: &'a [&'a [u8]],
    },
    /// A mapping of the UVM file.
    Map {
        /// Which open file.
        file: u64,
        /// Where it will lie.
        address: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// A call that only looked like one for the driver.
    Other,
}

/// Takes note of calls. Called by several threads, before the caller goes on.
pub trait Trace: Send + Sync {
    /// The slice has these cards, in its own order.
    fn begin(&self, _gpus: &[&Gpu]) {}

    /// A call was answered.
    fn note(&self, call: &Traced<'_>);

    /// Managed memory of a process is mapped no more. Noticed some time after it is so.
    fn unmapped(&self, _process: Tid, _address: u64, _length: u64) {}

    /// No process has this file any more. Noticed some time after it is so.
    fn closed(&self, _file: u64) {}

    /// A process has ended. Noticed some time after it is so.
    fn process_ended(&self, _process: Tid) {}

    /// The tenant has ended.
    fn end(&self);
}

/// How a tenant is traced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceConfig {
    /// Where to; none: standard error.
    pub output: Option<PathBuf>,
    /// Where the calls are written so that they can be made again; then lines for people only where an output is named.
    pub stream: Option<PathBuf>,
    /// Show what parameter blocks hold.
    pub values: bool,
}
