//! Tells UVM of the slice's cards while a program still initialises.
//!
//! The first UVM file of a node that registers a card pays for setting the card up: 93 of the 215 ms that `cuInit` and
//! the first context take on an idle H200 (driver 580.159). A program asks for it last. The helper asks for it on a file
//! of its own as soon as the program initialises its UVM file, so that the two overlap, and lets go when the program
//! has registered the cards itself. It is for speed only: if it fails, the program's own call says why.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rm::{Status, layout, uvm};

use crate::backend::{Backend, Node};
use crate::mediator::DISABLE_HMM;
use crate::rmcall;
use crate::tenant::{Tenant, lock};

/// A program that initialises UVM and then registers no card is not waited for longer.
const HOLD: Duration = Duration::from_secs(10);
/// Its work is shallow.
const STACK: usize = 128 << 10;

/// Whether a file is held for a program that is about to register its cards.
#[derive(Debug, Default)]
pub struct Ahead {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Cards that the program has yet to register.
    missing: usize,
    /// A file is being made ready or held. A program that registers faster than that gets no second one meanwhile.
    busy: bool,
}

/// A program of the tenant has initialised its UVM file.
pub fn begin(tenant: &Arc<Tenant>) {
    if !tenant.ahead.want(tenant.devices.len()) {
        return;
    }
    let own = tenant.clone();
    let spawned = thread::Builder::new()
        .name("ahead".into())
        .stack_size(STACK)
        .spawn(move || {
            let held = {
                // What is measured meanwhile must not see the memory that UVM takes for the card.
                let _memory = own.device_memory.read();
                let cards = own.devices.iter().map(|d| d.gpu.uuid_bytes);
                register(own.backend.as_ref(), cards, |file, request, block| {
                    // Its time in the driver is the tenant's.
                    own.in_driver(file, request, block)
                })
            };
            own.ahead.hold(Instant::now() + HOLD);
            drop(held);
            own.ahead.let_go();
        });
    if spawned.is_err() {
        tenant.ahead.let_go();
    }
}

impl Ahead {
    /// True: nothing is held yet, and now something should be.
    fn want(&self, cards: usize) -> bool {
        let mut state = lock(&self.state);
        if state.busy {
            return false;
        }
        *state = State {
            missing: cards,
            busy: true,
        };
        true
    }

    /// Nothing is held any more.
    fn let_go(&self) {
        *lock(&self.state) = State::default();
    }

    /// The program has registered a card.
    pub fn registered(&self) {
        let mut state = lock(&self.state);
        state.missing = state.missing.saturating_sub(1);
        self.changed.notify_all();
    }

    /// Waits until the program has registered every card, or until then.
    fn hold(&self, until: Instant) {
        let mut state = lock(&self.state);
        while state.missing > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// A UVM file of ours on which the cards are registered.
fn register(
    backend: &dyn Backend,
    cards: impl IntoIterator<Item = [u8; 16]>,
    in_driver: impl Fn(BorrowedFd<'_>, u32, &mut [u8]) -> io::Result<i32>,
) -> io::Result<OwnedFd> {
    use layout::{uvm_initialize as init, uvm_register_gpu as card};
    let file = backend.open(Node::Uvm)?;
    let mut block = [0u8; init::SIZE + 64];
    rmcall::put_u64(&mut block, init::FLAGS, DISABLE_HMM);
    in_driver(file.as_fd(), uvm::INITIALIZE, &mut block)?;
    for uuid in cards {
        let mut block = [0u8; card::SIZE + 64];
        block[card::GPU_UUID..][..16].copy_from_slice(&uuid);
        rmcall::put_u32(&mut block, card::RM_CTRL_FD, u32::MAX);
        in_driver(file.as_fd(), uvm::REGISTER_GPU, &mut block)?;
        if rmcall::u32_at(&block, card::RM_STATUS) != Status::OK.0 {
            return Err(io::Error::other("UVM does not take the card"));
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::FileWatch;

    /// Notes the calls; refuses to register cards whose UUID begins with 9.
    #[derive(Default)]
    struct Noted(Mutex<Vec<(u32, u64)>>);

    impl Backend for Noted {
        fn classify(&self, _: BorrowedFd<'_>) -> io::Result<Option<Node>> {
            Ok(None)
        }
        fn maps_uvm(&self, _: &str, _: u64, _: &str) -> bool {
            false
        }
        fn ioctl(&self, _: BorrowedFd<'_>, request: u32, block: &mut [u8]) -> io::Result<i32> {
            lock(&self.0).push((request, rmcall::u64_at(block, 0)));
            if request == uvm::REGISTER_GPU && block[0] == 9 {
                rmcall::put_u32(block, layout::uvm_register_gpu::RM_STATUS, 0x1f);
            }
            Ok(0)
        }
        fn open(&self, _: Node) -> io::Result<OwnedFd> {
            Ok(std::fs::File::open("/dev/null")?.into())
        }
        fn driver_version(&self) -> io::Result<String> {
            Err(io::Error::other("none"))
        }
        fn watch(&self) -> io::Result<Box<dyn FileWatch>> {
            Err(io::Error::other("none"))
        }
    }

    #[test]
    fn every_card_is_registered_on_a_file_without_hmm() {
        let backend = Noted::default();
        let (mut a, mut b) = ([0; 16], [0; 16]);
        (a[0], b[0]) = (1, 2);
        let ask =
            |file: BorrowedFd<'_>, request, block: &mut [u8]| backend.ioctl(file, request, block);
        register(&backend, [a, b], ask).unwrap();
        assert_eq!(
            *lock(&backend.0),
            [
                (uvm::INITIALIZE, DISABLE_HMM),
                (uvm::REGISTER_GPU, 1),
                (uvm::REGISTER_GPU, 2)
            ]
        );
        register(&backend, [[9; 16]], ask).unwrap_err();
    }

    #[test]
    fn what_is_held_is_let_go_when_every_card_is_registered_or_the_time_is_over() {
        let ahead = Ahead::default();
        assert!(ahead.want(2));
        assert!(!ahead.want(2), "one file is enough");
        ahead.registered();
        assert!(!ahead.want(2), "a card is missing");
        ahead.registered();
        ahead.hold(Instant::now() + Duration::from_secs(3600));
        assert!(!ahead.want(1), "the file is not closed yet");
        ahead.let_go();
        assert!(ahead.want(1));
        ahead.hold(Instant::now());
        ahead.let_go();
        assert!(ahead.want(1), "the time is over");
        ahead.registered();
        ahead.registered();
        ahead.hold(Instant::now() + Duration::from_secs(3600));
        ahead.let_go();
        assert!(ahead.want(1), "more than were missing");
    }
}
