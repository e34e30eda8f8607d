//! Graphs: work that is put together once and launched often.

use std::collections::BTreeMap;
use std::sync::Mutex;

use cuda::status::CuResult;

use crate::driver::Driver;
use crate::registry::lock;
use crate::stream::{Job, Stream};

/// A graph: its nodes in the order in which they were added, which is an order that their dependencies allow.
#[derive(Default)]
pub struct Graph {
    /// Nodes by the number that stands for each.
    pub nodes: Mutex<BTreeMap<usize, Node>>,
}

/// One node.
pub struct Node {
    /// What it does.
    pub job: Job,
    /// Numbers of the nodes it depends on.
    pub after: Vec<usize>,
    /// Its kind (`CUgraphNodeType`).
    pub kind: u32,
}

/// Kinds of node.
pub mod kind {
    /// A kernel.
    pub const KERNEL: u32 = 0;
    /// A copy.
    pub const COPY: u32 = 1;
    /// A fill.
    pub const FILL: u32 = 2;
    /// A function of the program.
    pub const HOST: u32 = 3;
}

/// A graph that is ready to run.
pub struct Executable {
    jobs: Vec<Job>,
}

impl Graph {
    /// The graph of what a stream has captured: each node after the one before.
    pub fn of(driver: &Driver, jobs: Vec<Job>) -> Graph {
        let mut nodes = BTreeMap::new();
        let mut last = Vec::new();
        for job in jobs {
            // Events inside one stream's capture say nothing that the order of its work does not say.
            let Some(kind) = kind_of(&job) else { continue };
            let number = node_number(driver);
            nodes.insert(
                number,
                Node {
                    job,
                    after: std::mem::replace(&mut last, vec![number]),
                    kind,
                },
            );
        }
        Graph {
            nodes: Mutex::new(nodes),
        }
    }

    /// Adds a node; gives its number.
    pub fn add(&self, driver: &Driver, job: Job, after: Vec<usize>) -> Result<usize, CuResult> {
        let kind = kind_of(&job).ok_or(CuResult::ERROR_INVALID_VALUE)?;
        let mut nodes = lock(&self.nodes);
        if after.iter().any(|number| !nodes.contains_key(number)) {
            return Err(CuResult::ERROR_INVALID_VALUE);
        }
        let number = node_number(driver);
        nodes.insert(number, Node { job, after, kind });
        Ok(number)
    }

    /// A copy that can be run.
    pub fn executable(&self) -> Executable {
        Executable {
            jobs: lock(&self.nodes)
                .values()
                .filter_map(|node| node.job.again())
                .collect(),
        }
    }
}

/// Nodes get even numbers that no other handle of the library has.
fn node_number(driver: &Driver) -> usize {
    0xb000_0000 + 16 * driver.number() as usize
}

fn kind_of(job: &Job) -> Option<u32> {
    use simgpu::work::Op;
    Some(match job {
        Job::Work(_, Op::Launch(_)) => kind::KERNEL,
        Job::Work(_, Op::Fill { .. }) => kind::FILL,
        Job::Work(..) | Job::FromHost { .. } | Job::ToHost { .. } => kind::COPY,
        Job::Host(..) => kind::HOST,
        Job::Record(..) | Job::After(..) => return None,
    })
}

impl Executable {
    /// Runs it in a stream; its kernels and fills go to the stream's own channel.
    pub fn launch(&self, driver: &Driver, stream: &Stream) -> Result<(), CuResult> {
        for job in &self.jobs {
            let job = match job.again() {
                Some(Job::Work(_, op)) => Job::Work(stream.compute, op),
                Some(other) => other,
                None => continue,
            };
            driver.enqueue(stream, job)?;
        }
        Ok(())
    }
}
