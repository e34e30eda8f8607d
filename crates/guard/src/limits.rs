//! What a slice may have besides device memory: the numbers, and who is told when one is used up.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use policy::ledger::{Claim, DeviceIndex, Reservation};
use policy::objects::{
    self, CLIENTS, DeviceLimits, EVENTS_A_CARD, LEAST_CHANNELS, Limits, Need, OBJECTS_A_CARD,
    OverLimit, What,
};
use policy::units::Bytes;

use crate::rmcall::OwnClient;
use crate::sys::Tid;
use crate::tenant::{SliceDevice, Tenant};

/// The limits of a slice: of each card what was granted of its channels (by UUID) and its share of the rest, of the host
/// its share of the memory.
///
/// # Errors
/// The kernel does not tell how much memory the host has.
pub fn of_slice(
    devices: &[SliceDevice],
    channels: &[(String, u32)],
    own: &OwnClient,
) -> io::Result<Limits> {
    let granted = |uuid: &str| {
        let found = channels.iter().find(|(on, _)| on == uuid);
        found.map_or(LEAST_CHANNELS, |(_, channels)| *channels)
    };
    let of_device = |device: &SliceDevice| {
        let channels = granted(&device.gpu.uuid);
        DeviceLimits {
            channels,
            groups: objects::groups_for(channels),
            bar1: objects::bar1_for(own.bar1(&device.gpu), device.granted, device.gpu.memory),
        }
    };
    let cards = devices.len().max(1) as u64;
    let quota = devices.iter().map(|device| device.granted).sum();
    let all = own.gpus().iter().map(|gpu| gpu.memory).sum();
    Ok(Limits {
        clients: CLIENTS,
        objects: OBJECTS_A_CARD * cards,
        events: EVENTS_A_CARD * cards,
        host: objects::host_for(host_memory()?, quota, all),
        devices: devices.iter().map(of_device).collect(),
    })
}

/// Memory of this machine.
fn host_memory() -> io::Result<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    kib.map(Bytes::from_kib)
        .ok_or_else(|| io::Error::other("/proc/meminfo has no MemTotal"))
}

/// What was refused, by [`What`].
#[derive(Debug, Default)]
pub struct Refusals([AtomicU64; What::ALL.len()]);

impl Refusals {
    /// Counts one. True: the first of its kind.
    fn note(&self, what: What) -> bool {
        self.0[what as usize].fetch_add(1, Ordering::Relaxed) == 0
    }
}

impl Tenant {
    /// Counts what a call is about to make, after another look at what was given back if it does not fit at once. `None`:
    /// the slice has no more; the user was told, once of each kind.
    pub fn claim(&self, need: Need) -> Option<Claim> {
        let first = self.ledger().claim(need);
        if let Ok(claim) = first {
            return Some(claim);
        }
        self.reclaim();
        let second = self.ledger().claim(need);
        second.map_err(|over| self.refused(over)).ok()
    }

    /// As [`Tenant::reserve`], of the host's memory.
    pub fn reserve_host(&self, amount: Bytes, thread: Tid) -> Option<Reservation> {
        let reserved = self.reserve(DeviceIndex::HOST, amount, thread);
        if reserved.is_none() {
            let ledger = self.ledger();
            let over = OverLimit {
                what: What::Host,
                asked: amount.0,
                used: ledger.used(DeviceIndex::HOST).0,
                limit: ledger.quota(DeviceIndex::HOST).0,
            };
            drop(ledger);
            self.refused(over);
        }
        reserved
    }

    fn refused(&self, over: OverLimit) {
        if self.refusals.note(over.what) {
            let more = match over.what {
                What::Channels | What::Groups | What::Bar1 | What::Host => {
                    "; a slice with a larger --memory has more"
                }
                What::Clients | What::Objects | What::Events | What::ChannelsOfAGroup => "",
            };
            self.say(&format!("refused as if the card had no more: {over}{more}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_of_each_kind_is_told() {
        let refusals = Refusals::default();
        for what in What::ALL {
            assert!(refusals.note(what));
            assert!(!refusals.note(what));
        }
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(host_memory().unwrap() > Bytes::from_mib(64));
    }
}
