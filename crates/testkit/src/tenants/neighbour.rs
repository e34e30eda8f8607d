//! Reaching for another tenant's channels.

use std::time::Duration;

use rm::{ctrl, layout};
use serde_json::Value;
use simgpu::work::{Op, Work, WorkStatus};

use super::{Context, Outcome};
use crate::MIB;
use crate::outside::{Finding, Line, Neighbour, Told, ask, print};
use crate::raw::{Answer, Block, Channel, Client, Device, Fault, Pages, Share, Uvm};

/// Device time of one kernel of the neighbour.
const KERNEL_NS: u64 = 5_000_000;
/// How long the neighbour's progress is watched after the attempt: many kernels.
const WATCH: Duration = Duration::from_millis(250);

/// A tenant whose kernels run, one after another; tells where its channel is and how far it is. Never ends by itself.
pub(super) fn spinner(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let memory = device.alloc(&client, 2 * MIB, Pages::Default)?;
    // He offers it to everybody and to everybody of his user.
    client.share(memory, Share::All)?;
    client.share(memory, Share::User)?;
    let uvm = Uvm::open(&context.node)?;
    let space = uvm.add_device(&client, &device)?;
    let channel = Channel::open(&client, &device, space.vaspace)?;
    let mut here = at_the_start(&client, &channel, memory);
    loop {
        print(&Line::Progress(here));
        channel.spin(&client, KERNEL_NS)?;
        here.finished += 1;
    }
}

/// What others may try to reach, before anything is finished.
fn at_the_start(client: &Client, channel: &Channel, memory: u32) -> Neighbour {
    Neighbour {
        client: client.root(),
        channel: channel.channel,
        memory,
        finished: 0,
    }
}

/// A tenant that looks after what it has: its memory holds what it wrote, its objects answer, nothing is missing of its
/// slice. Tells how often it has looked; ends when something is not as it was. Never ends by itself.
pub(super) fn sentinel(context: &Context) -> Outcome {
    const BASE: u64 = 0x3000_0000_0000;
    const SIZE: u64 = 64 * MIB;
    const PIECE: u64 = 64 << 10;
    const PATTERN: u32 = 0x5e47_1e15;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let memory = device.alloc(&client, SIZE, Pages::Default)?;
    client.share(memory, Share::All)?;
    let uvm = Uvm::open(&context.node)?;
    let space = uvm.add_device(&client, &device)?;
    uvm.create_range(BASE, SIZE)?;
    uvm.map(&space, &client, memory, BASE, SIZE)?;
    let channel = Channel::open(&client, &device, space.vaspace)?;
    let work = |op: Op| -> Result<Vec<u8>, String> {
        let done = client.node().submit(&Work {
            client: client.root(),
            channel: channel.channel,
            wait: true,
            op,
        });
        let done = done.map_err(|e| e.to_string())?;
        if done.status == WorkStatus::Done {
            Ok(done.data)
        } else {
            Err(format!("work ended with {:?}", done.status))
        }
    };
    work(Op::Fill {
        dst: BASE,
        value: PATTERN,
        width: 4,
        count: SIZE / 4,
    })?;
    let free = device.free_bytes(&client)?;
    let mut here = at_the_start(&client, &channel, memory);
    loop {
        print(&Line::Progress(here));
        let piece = here.finished * 7 % (SIZE / PIECE);
        let read = work(Op::Read {
            src: BASE + piece * PIECE,
            len: PIECE,
        })?;
        if read != PATTERN.to_le_bytes().repeat(PIECE as usize / 4) {
            return Err(format!("the memory at piece {piece} is not what was written").into());
        }
        let now = device.free_bytes(&client)?;
        if now != free {
            return Err(format!("{now} bytes of the slice are free, {free} before").into());
        }
        // A handle of its own is as good as it was.
        let again = client.duplicate(device.device, client.root(), memory)?;
        client.free(again)?;
        here.finished += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(super) fn ask_neighbour() -> Result<Neighbour, String> {
    match ask(&Line::AskNeighbour) {
        Some(Told::Neighbour(neighbour)) => Ok(neighbour),
        _ => {
            Err("there is no neighbour: whoever starts this program has to say where he is".into())
        }
    }
}

/// Takes channels off the runlist, or puts them back (`0x2080110b`).
pub(super) fn set_detached(
    client: &Client,
    device: &Device,
    of: &Neighbour,
    detached: bool,
) -> Answer {
    use layout::disable_channels as l;
    let mut params = Block::new(l::SIZE)
        .with(l::B_DISABLE, &[u8::from(detached)])
        .with32(l::NUM_CHANNELS, 1)
        .with(l::B_ONLY_DISABLE_SCHEDULING, &[0])
        .with32(l::H_CLIENT_LIST, of.client)
        .with32(l::H_CHANNEL_LIST, of.channel);
    client.control(
        device.subdevice,
        ctrl::NV2080_FIFO_DISABLE_CHANNELS,
        &mut params,
    )
}

/// Detaches the neighbour's channel: the driver asks nobody whose it is.
pub(super) fn foreign_detach_refused(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let attempt = set_detached(&client, &device, &ask_neighbour()?, true);
    // A kernel that is running now may end; from then on only a scheduled neighbour gets further.
    std::thread::sleep(Duration::from_nanos(4 * KERNEL_NS));
    let before = ask_neighbour()?;
    std::thread::sleep(WATCH);
    let finished = ask_neighbour()?.finished - before.finished;
    if attempt.is_ok() {
        set_detached(&client, &device, &before, false)?;
    }
    let answer = attempt
        .err()
        .map_or_else(|| "granted".to_owned(), |fault| fault.to_string());
    Ok(Finding {
        name: String::new(),
        held: attempt == Err(Fault::NOT_PERMITTED) && finished > 0,
        measured: Value::from(format!(
            "{answer}, neighbour {}",
            if finished > 0 { "runs" } else { "stopped" }
        )),
        expected: Value::from(format!("{}, neighbour runs", Fault::NOT_PERMITTED)),
        note: format!(
            "asked the driver to detach the neighbour's channel: {answer}; he then finished {finished} kernels in {} ms",
            WATCH.as_millis()
        ),
    })
}
