//! Who had the engines of a simulated GPU, and for how long: by the clock that shares are measured on.
//!
//! The wall's clock cannot tell where the machine is busy: then the engines' clock stands still while the wall's goes on.
//! A real driver has no such question, and a tenant in a slice is not answered.

use crate::proto::{Malformed, Reader, Writer};

/// The engines of one GPU at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usage {
    /// What the clock of the compute engine shows, and of the copy engine, ns.
    pub clock_ns: [u64; 2],
    /// What the GPU's own timer (`0x20800403`) shows when the compute engine's clock shows 0.
    pub epoch_ns: u64,
    /// Each group, and each process for what its groups that are gone have had.
    pub groups: Vec<GroupTime>,
}

/// Time that a channel group's work has had on its engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupTime {
    /// The process that made the group's client: of a slice, its helper.
    pub pid: u32,
    /// Handle of the client; 0: all groups of the process that are gone.
    pub client: u32,
    /// The lowest number of its channels, as in the records of the timeline; `u32::MAX`: it has none.
    pub context: u32,
    /// Whether it is of a copy engine.
    pub copies: bool,
    /// Time of the engine's clock in which its work ran; switches are nobody's.
    pub ran_ns: u64,
}

impl Usage {
    /// Time that the work of a process has had on the compute engine.
    #[must_use]
    pub fn computed_ns(&self, pid: u32) -> u64 {
        let of = |group: &&GroupTime| group.pid == pid && !group.copies;
        self.groups
            .iter()
            .filter(of)
            .map(|group| group.ran_ns)
            .sum()
    }

    pub(crate) fn encode(&self, to: &mut Writer) {
        to.u64(self.clock_ns[0]);
        to.u64(self.clock_ns[1]);
        to.u64(self.epoch_ns);
        to.u32(u32::try_from(self.groups.len()).unwrap_or(u32::MAX));
        for group in &self.groups {
            to.u32(group.pid);
            to.u32(group.client);
            to.u32(group.context);
            to.u8(u8::from(group.copies));
            to.u64(group.ran_ns);
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Usage, Malformed> {
        let clock_ns = [from.u64()?, from.u64()?];
        let epoch_ns = from.u64()?;
        let count = from.u32()?;
        // Grown as the bytes are found, so that a count alone reserves nothing.
        let mut groups = Vec::new();
        for _ in 0..count {
            groups.push(GroupTime {
                pid: from.u32()?,
                client: from.u32()?,
                context: from.u32()?,
                copies: from.u8()? != 0,
                ran_ns: from.u64()?,
            });
        }
        Ok(Usage {
            clock_ns,
            epoch_ns,
            groups,
        })
    }
}
