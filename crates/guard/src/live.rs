//! The terms of a slice that runs, in its supervisor: what is asked is checked, entered in the registry, and written on the
//! tenant's board, where the node's scheduler reads it, or told the helper.
//!
//! Memory takes two steps, in an order in which whoever dies in between leaves the registry with no less than the slice
//! can hold: what grows is granted before the helper is told, what shrinks is free for others after the helper has done it.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use policy::units::{Bytes, Size};

use crate::control::{Answer, Standing, Terms, Wish};
use crate::helper::{HelperConfig, Order};
use crate::registry::{Lease, Registry};
use crate::rmcall::Gpu;
use crate::share::board::{self, Board, Node};
use crate::share::shared::Shared;
use crate::share::start;

/// A helper changes the memory within a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(4);

/// The terms of one slice.
pub struct Live {
    registry: Registry,
    sim: Option<PathBuf>,
    lease: Lease,
    gpus: Vec<Gpu>,
    board: Shared<Board>,
    node: Shared<Node>,
    /// This process sees to it that the node has a scheduler.
    divided: bool,
    last_order: u32,
    pending: Option<Pending>,
}

/// A change of memory that the helper has not made yet.
struct Pending {
    client: u64,
    asked: Vec<(String, Bytes)>,
    until: Instant,
}

impl Live {
    /// Those of a slice that is about to start.
    ///
    /// # Errors
    /// The registry's files cannot be used.
    pub fn new(config: &HelperConfig, lease: Lease, gpus: Vec<Gpu>) -> io::Result<Live> {
        let folder = &config.registry;
        Ok(Live {
            registry: Registry::in_folder(folder)?,
            sim: config.sim.clone(),
            board: board::map_board(&board::board_file(folder, &config.name)?)?,
            node: board::map_node(&board::node_file(folder)?)?,
            lease,
            gpus,
            divided: false,
            last_order: 0,
            pending: None,
        })
    }

    /// The slice's place in the registry.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Sees to it that the node has a scheduler from now on.
    ///
    /// # Errors
    /// As [`start::keep_one`].
    pub fn divide(&mut self) -> io::Result<()> {
        if !self.divided {
            start::keep_one(self.registry.folder(), self.sim.as_deref())?;
            self.divided = true;
        }
        // One that has just found nothing to do may end: who is born meanwhile waits for the next.
        self.node.require();
        Ok(())
    }

    /// Whether a change is under way.
    pub fn is_busy(&self) -> bool {
        self.pending.is_some()
    }

    /// When [`Live::give_up`] is to be called.
    pub fn due(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.until)
    }

    /// Begins a change for a client; `None`: the answer comes later.
    pub fn change(&mut self, client: u64, wish: &Wish, helper: BorrowedFd<'_>) -> Option<Answer> {
        let changed = match wish {
            Wish::Set(terms) => self.set(client, terms, helper),
            Wish::Pause => self.pause(true),
            Wish::Resume => self.pause(false),
            Wish::Stop { .. } => Err(io::Error::other("the supervisor stops a slice")),
        };
        match changed {
            Ok(()) if self.is_busy() => None,
            Ok(()) => Some(Answer::Done(self.standing(&[]))),
            Err(e) => Some(Answer::Refused(e.to_string())),
        }
    }

    fn pause(&mut self, paused: bool) -> io::Result<()> {
        self.divide()?;
        self.board.paused.store(paused.into(), Ordering::Release);
        self.node.tell();
        Ok(())
    }

    fn set(&mut self, client: u64, terms: &Terms, helper: BorrowedFd<'_>) -> io::Result<()> {
        let in_bounds = terms
            .weight
            .is_none_or(|weight| (1..=10_000).contains(&weight))
            && terms.cap.is_none_or(|cap| cap <= 10_000);
        if !in_bounds {
            return Err(io::Error::other(
                "a weight is 1 to 10000, a cap at most 100 %",
            ));
        }
        let size = terms.memory.as_deref().map(str::parse::<Size>).transpose();
        let size = size.map_err(|e| io::Error::other(e.to_string()))?;
        let divided = terms.weight.is_some() || terms.cap.is_some();
        if divided {
            self.divide()?;
        }
        if let Some(size) = size {
            self.set_memory(client, size, terms.overcommit, helper)?;
        }
        // From here on nothing is refused.
        if let Some(weight) = terms.weight {
            self.board.weight.store(weight, Ordering::Release);
        }
        if let Some(cap) = terms.cap {
            self.board.cap.store(cap.into(), Ordering::Release);
        }
        if divided {
            self.node.tell();
        }
        Ok(())
    }

    fn set_memory(
        &mut self,
        client: u64,
        size: Size,
        overcommit: bool,
        helper: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let total = |uuid: &str| {
            let gpu = self.gpus.iter().find(|gpu| gpu.uuid == uuid);
            gpu.map_or(Bytes(0), |gpu| gpu.memory)
        };
        let memory = self.lease.entry.memory.iter();
        let asked: Vec<(String, Bytes)> = memory
            .map(|(uuid, _)| (uuid.clone(), size.of(total(uuid))))
            .collect();
        self.registry
            .grant_more(&mut self.lease, &asked, &self.gpus, overcommit)?;
        self.last_order = self.last_order.wrapping_add(1);
        let order = Order {
            number: self.last_order,
            memory: asked.iter().map(|(_, bytes)| bytes.0).collect(),
        };
        order
            .send(helper)
            .map_err(|e| io::Error::other(format!("its helper does not answer ({e})")))?;
        self.pending = Some(Pending {
            client,
            asked,
            until: Instant::now() + PATIENCE,
        });
        Ok(())
    }

    /// The helper has carried an order out. Whose it was, and the answer; `None`: nobody waits for it any more.
    ///
    /// The registry has what the helper says also where it says so late.
    pub fn carried_out(&mut self, number: u32, has: &[u64]) -> Option<(u64, Answer)> {
        if number != self.last_order {
            return None;
        }
        let memory = self.lease.entry.memory.iter().zip(has);
        let has: Vec<(String, u64)> = memory
            .map(|((uuid, _), has)| (uuid.clone(), *has))
            .collect();
        let settled = self.registry.settle(&mut self.lease, &has);
        let pending = self.pending.take()?;
        let answer = match settled {
            Ok(()) => Answer::Done(self.standing(&pending.asked)),
            Err(e) => Answer::Refused(format!("the registry cannot be written: {e}")),
        };
        Some((pending.client, answer))
    }

    /// What to tell a client for whom the helper has taken too long.
    pub fn give_up(&mut self) -> Option<(u64, Answer)> {
        let late = self
            .pending
            .take_if(|pending| pending.until <= Instant::now())?;
        let why = format!(
            "its helper has not answered for {} s: its memory changes when it does, and nobody else is granted what is to become free until then",
            PATIENCE.as_secs()
        );
        Some((late.client, Answer::Refused(why)))
    }

    fn standing(&self, asked: &[(String, Bytes)]) -> Standing {
        let memory = self.lease.entry.memory.clone();
        let holds_more = |(uuid, bytes): &&(String, Bytes)| {
            let mut has = memory.iter();
            has.any(|(on, has)| on == uuid && *has > bytes.0)
        };
        let asked = asked.iter().filter(holds_more);
        let asked = asked.map(|(uuid, bytes)| (uuid.clone(), bytes.0)).collect();
        let cap = self.board.cap.load(Ordering::Acquire);
        Standing {
            weight: self.board.weight.load(Ordering::Acquire),
            cap: u16::try_from(cap).ok().filter(|cap| *cap != 0),
            paused: self.board.paused.load(Ordering::Acquire) != 0,
            memory,
            asked,
        }
    }
}
