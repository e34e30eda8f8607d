//! Cheats about memory.

use super::fill::{fill, human, refusal};
use super::{Context, Outcome, bytes};
use crate::raw::{Client, Fault, Pages, Uvm};
use crate::{GIB, KIB, MIB};

/// Without a wall a cheat would go on until the card is full; this much past the quota tells enough.
const ENOUGH: u64 = 2;

/// Allocates to the last byte; one byte more is refused as on a full card.
pub(super) fn quota_exact(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let mut filled = fill(&client, &device, context.quota * ENOUGH);
    let older = device.heap_alloc(&client, 1).err();
    let driver = context.driver_memory().map(|on| on[0]);
    if let Some(last) = filled.handles.pop() {
        client.free(last)?;
    }
    let again = device.alloc(&client, 64 * KIB, Pages::Default).is_ok();
    let as_full =
        filled.refused == Some(Fault::NO_MEMORY) && older == Some(Fault::NO_MEMORY) && again;
    let reached = driver.unwrap_or(filled.bytes).max(filled.bytes);
    let note = format!(
        "allocated {} in steps down to 64 KiB, then {}; RM_VID_HEAP_CONTROL {}",
        human(filled.bytes),
        refusal(filled.refused),
        refusal(older),
    );
    Ok(bytes(reached, context.quota, as_full, note))
}

/// Names the same memory many times: it is counted once, and as long as a name is left.
pub(super) fn alias_counted_once(context: &Context) -> Outcome {
    const NAMES: u64 = 20;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let other = Client::open(&context.node)?;
    let others = other.first_device()?;
    let before = device.free_bytes(&client)?;
    let memory = device.alloc(&client, GIB, Pages::Default)?;
    let mut names = Vec::new();
    for _ in 0..NAMES / 2 {
        names.push((
            &client,
            client.duplicate(device.device, client.root(), memory)?,
        ));
        names.push((
            &other,
            other.duplicate(others.device, client.root(), memory)?,
        ));
    }
    let used = before.saturating_sub(device.free_bytes(&client)?);
    client.free(memory)?;
    let kept = before.saturating_sub(device.free_bytes(&client)?);
    for (owner, name) in names {
        owner.free(name)?;
    }
    let after = before.saturating_sub(device.free_bytes(&client)?);
    let note = format!(
        "1 GiB under {} names counted as {}; the first name freed: {}; all freed: {}",
        NAMES + 1,
        human(used),
        human(kept),
        human(after)
    );
    Ok(bytes(used, GIB, kept == GIB && after == 0, note))
}

/// Reserves managed memory, which no ioctl makes.
pub(super) fn managed_charged(context: &Context) -> Outcome {
    const STEP: u64 = 512 * MIB;
    let uvm = Uvm::open(&context.node)?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let mut reserved = Vec::new();
    let mut total = 0;
    let mut refused = None;
    while total < context.quota * ENOUGH {
        match uvm.managed(STEP) {
            Ok(memory) => reserved.push(memory),
            Err(fault) => {
                refused = Some(fault);
                break;
            }
        }
        total += STEP;
    }
    // What is reserved is not to be had a second time as plain memory.
    let besides = device.alloc(&client, 64 * KIB, Pages::Default).err();
    let full = refused == Some(Fault::Os(libc::ENOMEM)) && besides == Some(Fault::NO_MEMORY);
    let note = format!(
        "reserved {} of managed memory, then {}; plain memory beside it: {}",
        human(total),
        refusal(refused),
        refusal(besides)
    );
    Ok(bytes(total, context.quota, full, note))
}

/// Allocates, maps, frees the handle: the mapping keeps the memory.
pub(super) fn mapping_outlives_free(context: &Context) -> Outcome {
    /// Far from what the kernel gives to others.
    const BASE: u64 = 0x2000_0000_0000;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    let space = uvm.add_device(&client, &device)?;
    // The address space has taken a little for its page tables.
    let room = device.free_bytes(&client)?;
    let (mut pinned, mut pieces) = (0, Vec::new());
    let mut refused = None;
    for step in [GIB, 64 * MIB, 2 * MIB, 64 * KIB] {
        refused = None;
        while pinned + step <= context.quota * ENOUGH {
            let memory = match device.alloc(&client, step, Pages::Default) {
                Ok(memory) => memory,
                Err(fault) => {
                    refused = Some(fault);
                    break;
                }
            };
            let base = BASE + pinned;
            uvm.create_range(base, step)?;
            uvm.map(&space, &client, memory, base, step)?;
            client.free(memory)?;
            pieces.push((base, step));
            pinned += step;
        }
    }
    let driver = context.driver_memory().map(|on| on[0]);
    for (base, step) in pieces {
        uvm.free(base, step)?;
    }
    let back = device.free_bytes(&client)? == room;
    let note = format!(
        "allocated, mapped and freed until {} was pinned by mappings alone, then {}; unmapped: {}",
        human(pinned),
        refusal(refused),
        if back {
            "all is free again"
        } else {
            "the charge stays"
        }
    );
    Ok(bytes(
        driver.unwrap_or(pinned).max(pinned),
        room,
        refused == Some(Fault::NO_MEMORY) && back,
        note,
    ))
}

/// One byte at a time, at each page size: the driver takes a whole page.
pub(super) fn size_rounding(context: &Context) -> Outcome {
    const SIZES: [Pages; 3] = [Pages::Huge512M, Pages::Huge, Pages::Default];
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let (mut taken, mut said) = (0, Vec::new());
    for pages in SIZES {
        // As many as fit, but for one that is left to the smaller pages.
        let fits = (context.quota - taken) / pages.size() - u64::from(pages != Pages::Default);
        let granted = (0..fits)
            .map_while(|_| device.alloc(&client, 1, pages).ok())
            .count() as u64;
        taken += granted * pages.size();
        said.push(format!("{granted} x {}", human(pages.size())));
    }
    let full = SIZES.map(|pages| device.alloc(&client, 1, pages).err());
    for (pages, refused) in SIZES.iter().zip(full) {
        taken += if refused.is_none() { pages.size() } else { 0 };
    }
    let driver = context.driver_memory().map(|on| on[0]);
    let told = context.quota.saturating_sub(device.free_bytes(&client)?);
    let refused = full
        .iter()
        .all(|&refused| refused == Some(Fault::NO_MEMORY));
    let note = format!(
        "one byte each on {}; then one more of each: {}; the slice counts {}",
        said.join(", "),
        if refused { "refused" } else { "granted" },
        human(told)
    );
    Ok(bytes(
        driver.unwrap_or(taken).max(taken),
        context.quota,
        refused && told == taken,
        note,
    ))
}

/// Frees the device that memory hangs on, then the client: the quota is whole again each time.
pub(super) fn release_by_ancestor(context: &Context) -> Outcome {
    let mut reached = Vec::new();
    let keeper = Client::open(&context.node)?;
    let watched = keeper.first_device()?;
    for by_client in [false, true, false] {
        let client = Client::open(&context.node)?;
        let device = client.first_device()?;
        reached.push(fill(&client, &device, context.quota * ENOUGH).bytes);
        client.free(if by_client {
            client.root()
        } else {
            device.device
        })?;
    }
    let left = context.quota.saturating_sub(watched.free_bytes(&keeper)?);
    let least = reached.iter().copied().min().unwrap_or(0);
    let note = format!(
        "filled the slice three times, each time freeing only an ancestor: {}; left charged: {}",
        reached
            .iter()
            .map(|&b| human(b))
            .collect::<Vec<_>>()
            .join(", "),
        human(left)
    );
    Ok(bytes(least, context.quota, left == 0, note))
}

/// Each card has a quota of its own: what is unused on one is not to be had on the other.
pub(super) fn per_device_quota(context: &Context) -> Outcome {
    let (first, more) = (45_000 * MIB, 10_000 * MIB);
    let client = Client::open(&context.node)?;
    let devices = client.devices()?;
    let mut granted = 0;
    for device in &devices {
        if device.alloc(&client, first, Pages::Default).is_ok() {
            granted += first;
        }
    }
    let mut refusals = Vec::new();
    for device in &devices {
        match device.alloc(&client, more, Pages::Default) {
            Ok(_) => granted += more,
            Err(fault) => refusals.push(fault),
        }
    }
    let driver: Option<u64> = context.driver_memory().map(|on| on.iter().sum());
    let refused =
        refusals.len() == devices.len() && refusals.iter().all(|&f| f == Fault::NO_MEMORY);
    let note = format!(
        "{} MiB on each of {} cards, then {} MiB more on each: {} of them refused",
        first / MIB,
        devices.len(),
        more / MIB,
        refusals.len()
    );
    Ok(bytes(
        driver.unwrap_or(granted).max(granted),
        first * devices.len() as u64,
        refused && devices.len() == 2,
        note,
    ))
}
