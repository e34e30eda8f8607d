//! The thread that looks into the tenant's processes.
//!
//! What it reads can be held up by the tenant: `/proc/PID/maps` waits for a lock that a fault in a file of the tenant's
//! own making can hold for ever, and so can the status of an open file. So the main thread, which ends the tenant, asks
//! and does not wait, and takes an answer that does not come for a reason to end it.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::audit::audit;
use crate::tenant::{Tenant, lock};

/// A finding must be seen in this many audits in a row: one can fall between a call and its entry.
const AUDITS_TO_CONDEMN: u32 = 2;
/// No honest tenant holds an audit up for as long.
const LONGEST: Duration = Duration::from_secs(30);
/// Its work is shallow.
const STACK: usize = 128 << 10;

/// What the auditor is asked for; the later includes the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Look {
    /// Give back what ended processes and closed files held.
    Sweep,
    /// That, and compare the ledger with the kernel and the driver.
    Audit,
}

#[derive(Default)]
struct State {
    wanted: Option<Look>,
    busy_since: Option<Instant>,
    /// Audits in a row that found something.
    suspicious: u32,
}

/// The auditor of one tenant.
pub struct Auditor {
    tenant: Arc<Tenant>,
    report_only: bool,
    state: Mutex<State>,
    wake: Condvar,
}

impl Auditor {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread could be started: the tenant must not run unaudited.
    pub fn start(tenant: Arc<Tenant>, report_only: bool) -> io::Result<Arc<Auditor>> {
        let auditor = Arc::new(Auditor {
            tenant,
            report_only,
            state: Mutex::default(),
            wake: Condvar::new(),
        });
        let own = auditor.clone();
        thread::Builder::new()
            .name("auditor".into())
            .stack_size(STACK)
            .spawn(move || own.run())?;
        Ok(auditor)
    }

    /// Asks for a look; what is asked for already is not asked for again.
    pub fn ask(&self, look: Look) {
        let mut state = lock(&self.state);
        state.wanted = state.wanted.max(Some(look));
        self.wake.notify_one();
    }

    /// Whether it has work, or found something the last time.
    pub fn is_occupied(&self) -> bool {
        let state = lock(&self.state);
        state.wanted.is_some() || state.busy_since.is_some() || state.suspicious > 0
    }

    /// Whether the tenant has held it up for longer than any honest tenant does.
    pub fn is_held_up(&self) -> bool {
        lock(&self.state)
            .busy_since
            .is_some_and(|since| since.elapsed() > LONGEST)
    }

    fn run(&self) {
        loop {
            let look = {
                let mut state = lock(&self.state);
                while state.wanted.is_none() {
                    state = self
                        .wake
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                state.busy_since = Some(Instant::now());
                state.wanted.take()
            };
            self.tenant.reclaim();
            let found = match look {
                Some(Look::Audit) => Some(audit(&self.tenant)),
                _ => None,
            };
            let mut state = lock(&self.state);
            state.busy_since = None;
            if let Some(findings) = found {
                state.suspicious = if findings.is_empty() {
                    0
                } else {
                    state.suspicious + 1
                };
                if state.suspicious == AUDITS_TO_CONDEMN
                    && let Some(first) = findings.first()
                {
                    self.found(&first.to_string());
                }
            }
        }
    }

    fn found(&self, what: &str) {
        if self.report_only {
            self.tenant.say(&format!("audit: {what}"));
        } else {
            self.tenant.condemn(what.into());
        }
    }
}
