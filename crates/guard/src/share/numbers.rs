//! Hardware's numbers of a tenant's channels, on the node's board: by them the sensor `sampled` tells whose context is on a
//! card.
//!
//! A number is entered when its channel is born, before the tenant learns of the channel, and goes with it; it may be
//! another's by then, in this slice or elsewhere.

use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;

use policy::ledger::{ClientHandle, ObjectHandle};

use super::board::Node;
use super::shared::Shared;
use crate::rmcall;
use crate::tenant::{Tenant, lock};

/// A channel that has a number.
struct Channel {
    name: (ClientHandle, ObjectHandle),
    /// The object's number in the ledger: another object may get its handle.
    object: u64,
    minor: u32,
    number: u32,
}

/// The numbers of one tenant.
#[derive(Default)]
pub struct Numbers {
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    channels: Vec<Channel>,
    /// Cards on which this helper has entered anything.
    minors: BTreeSet<u32>,
}

impl Numbers {
    /// Enters a new channel of a group on a card. The client's order is held.
    ///
    /// # Errors
    /// The driver does not tell its number.
    pub fn born(
        &self,
        tenant: &Tenant,
        node: &Shared<Node>,
        file: &crate::files::OpenFile,
        (client, group, channel): (ClientHandle, ObjectHandle, ObjectHandle),
        minor: u32,
    ) -> io::Result<()> {
        let (device, object) = {
            let ledger = tenant.ledger();
            let device = ledger.parent_of(client, group);
            (device, ledger.serial_of(client, channel))
        };
        let (Some(device), Some(object)) = (device, object) else {
            return Err(io::Error::other("it is gone"));
        };
        let names = (client.0, device.0, channel.0);
        let number = rmcall::number_of_channel(tenant.backend.as_ref(), file.fd(), names)?;
        let Some(number) = number else {
            return Err(io::Error::other("it has none"));
        };
        self.sweep(tenant, node);
        let mut held = lock(&self.held);
        if held.minors.insert(minor) {
            // Another helper may have had this process's number.
            node.disown_all(minor, std::process::id());
        }
        held.channels.push(Channel {
            name: (client, channel),
            object,
            minor,
            number,
        });
        // While the lock is held: whoever sweeps sees the new owner of a number before it lets go of it.
        node.own(minor, number, std::process::id());
        Ok(())
    }

    /// Lets go of the numbers of channels that the ledger does not know any more.
    pub fn sweep(&self, tenant: &Tenant, node: &Shared<Node>) {
        let channels = &mut lock(&self.held).channels;
        let gone: Vec<(u32, u32)> = {
            let ledger = tenant.ledger();
            let lives = |c: &Channel| ledger.serial_of(c.name.0, c.name.1) == Some(c.object);
            let dead = channels.extract_if(.., |channel| !lives(channel));
            dead.map(|channel| (channel.minor, channel.number))
                .collect()
        };
        for (minor, number) in gone {
            let mut others = channels.iter();
            if !others.any(|other| (other.minor, other.number) == (minor, number)) {
                node.disown(minor, number, std::process::id());
            }
        }
    }
}
