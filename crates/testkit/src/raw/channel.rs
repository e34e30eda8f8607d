//! A channel in a group of its own, and work on it.

use rm::{class, ctrl, layout};
use simgpu::work::{Kernel, Op, Work, WorkResult};

use super::{Answer, Block, Client, Device, params_of};

/// `NV2080_ENGINE_TYPE_GR0`: the compute engine.
const COMPUTE: u32 = 1;

/// A scheduled channel of the compute engine.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    /// Handle of its group.
    pub group: u32,
    /// Handle of the channel.
    pub channel: u32,
}

impl Channel {
    /// Makes a group with one channel and puts it on the runlist.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn open(client: &Client, device: &Device, vaspace: u32) -> Answer<Channel> {
        let group = Channel::group(client, device, vaspace)?;
        let channel = client.alloc(group, class::HOPPER_CHANNEL_GPFIFO_A, Channel::params(0))?;
        client.alloc(channel, class::HOPPER_COMPUTE_A, Block::new(16))?;
        let entry = client.node().abi()?.control(ctrl::NVA06C_GPFIFO_SCHEDULE);
        let mut schedule = Block::new(entry.map_or(0, |entry| entry.size as usize))
            .with(layout::gpfifo_schedule::B_ENABLE, &[1]);
        client.control(group, ctrl::NVA06C_GPFIFO_SCHEDULE, &mut schedule)?;
        Ok(Channel { group, channel })
    }

    /// Allocation parameters of a channel of the compute engine, with a ring where nothing is mapped: it is not used. In a
    /// group the address space is the group's, and a card's driver refuses a channel that names one (0: none).
    pub fn params(vaspace: u32) -> Block {
        use layout::channel_alloc as c;
        const RING: u64 = 0x1000_0000;
        const ENTRIES: u32 = 1024;
        params_of(class::HOPPER_CHANNEL_GPFIFO_A)
            .with64(c::GP_FIFO_OFFSET, RING)
            .with32(c::GP_FIFO_ENTRIES, ENTRIES)
            .with32(c::H_VA_SPACE, vaspace)
            .with32(c::ENGINE_TYPE, COMPUTE)
    }

    /// The same with a place in memory for what the program tells the channel (USERD), as a card's driver wants it.
    pub fn params_with(vaspace: u32, memory: u32, offset: u64) -> Block {
        use layout::channel_alloc as c;
        Channel::params(vaspace)
            .with32(c::H_USERD_MEMORY, memory)
            .with64(c::USERD_OFFSET, offset)
    }

    /// Makes a channel whose parent is the device, and puts it on the runlist: the driver makes a group for it that has no
    /// handle. [`Channel::group`] is the channel itself.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn on_device(client: &Client, device: &Device, vaspace: u32) -> Answer<Channel> {
        use layout::channel_alloc as c;
        let params = params_of(class::HOPPER_CHANNEL_GPFIFO_A)
            .with32(c::H_VA_SPACE, vaspace)
            .with32(c::ENGINE_TYPE, COMPUTE);
        let channel = client.alloc(device.device, class::HOPPER_CHANNEL_GPFIFO_A, params)?;
        client.alloc(channel, class::HOPPER_COMPUTE_A, Block::new(16))?;
        let entry = client.node().abi()?.control(ctrl::NVA06F_GPFIFO_SCHEDULE);
        let mut schedule = Block::new(entry.map_or(0, |entry| entry.size as usize))
            .with(layout::gpfifo_schedule::B_ENABLE, &[1]);
        client.control(channel, ctrl::NVA06F_GPFIFO_SCHEDULE, &mut schedule)?;
        Ok(Channel {
            group: channel,
            channel,
        })
    }

    /// Makes an empty group of the compute engine; its context buffers take device memory.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn group(client: &Client, device: &Device, vaspace: u32) -> Answer<u32> {
        use layout::channel_group_alloc as g;
        let params = Block::new(g::SIZE)
            .with32(g::H_VA_SPACE, vaspace)
            .with32(g::ENGINE_TYPE, COMPUTE);
        client.alloc(device.device, class::KEPLER_CHANNEL_GROUP_A, params)
    }

    /// Keeps the engine busy for `ns` of device time and waits for it (simulated nodes only).
    ///
    /// # Errors
    /// As [`super::Node::submit`].
    pub fn spin(&self, client: &Client, ns: u64) -> Answer<WorkResult> {
        let op = Op::Launch(Kernel::Spin { ns });
        Ok(client.node().submit(&Work {
            client: client.root(),
            channel: self.channel,
            wait: true,
            op,
        })?)
    }
}
