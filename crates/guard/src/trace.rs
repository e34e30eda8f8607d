//! A look at every call of a tenant after it was answered, for `gpuslice trace`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::backend::Node;
use crate::listener::Reply;

/// A call of a tenant and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    /// The thread that made it.
    pub thread: u32,
    /// What it is.
    pub call: TracedCall<'a>,
    /// The answer; `None`: the caller was killed meanwhile.
    pub answer: Option<Reply>,
}

/// What a traced call is.
#[derive(Clone, Copy, Debug)]
pub enum TracedCall<'a> {
    /// An ioctl on a file of the driver.
    Ioctl {
        /// Which file.
        node: Node,
        /// The request word.
        request: u32,
        /// The parameter block after the call; empty where it was not read.
        block: &'a [u8],
        /// Bytes of the parameters that the block points to, as they were read.
        params: usize,
    },
    /// A mapping of the UVM file.
    Map {
        /// Its length in bytes.
        length: u64,
    },
    /// A call that only looked like one for the driver.
    Other,
}

/// Takes note of calls. Called by several threads, before the caller goes on.
pub trait Trace: Send + Sync {
    /// A call was answered.
    fn note(&self, call: &Traced<'_>);

    /// The tenant has ended.
    fn end(&self);
}

/// How a tenant is traced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceConfig {
    /// Where to; none: standard error.
    pub output: Option<PathBuf>,
    /// Show what parameter blocks hold.
    pub values: bool,
}
