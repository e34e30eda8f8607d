//! Attacks on what the guard infers: who holds a file, what a process maps, whose client a handle is.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rm::{layout, uvm};

use super::fill::human;
use super::shapes::{Watch, close_here, forked, wait_for, without_the_first_thread};
use super::threats::words;
use super::{Context, Outcome, bytes};
use crate::raw::{Block, Client, Fault, Pages, Uvm, system_call};
use crate::{GIB, MIB};

/// Far from what the kernel gives to others.
const BASE: u64 = 0x2000_0000_0000;
/// Longer than an audit and the grace of a mapping together.
const A_WHILE: Duration = Duration::from_millis(2500);

/// A UVM file that only a process holds which never makes a call keeps its mappings in the driver: the guard, which
/// sees no holder, may give their charge back only if they are gone.
pub(super) fn hidden_holder(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let (ours, theirs) = UnixStream::pair()?;
    let maker = forked(|| {
        close_here(&ours);
        let made = || -> Result<(), Fault> {
            let client = Client::open(&context.node)?;
            let device = client.first_device()?;
            let uvm = Uvm::open(&context.node)?;
            let space = uvm.add_device(&client, &device)?;
            let memory = device.alloc(&client, GIB, Pages::Default)?;
            uvm.create_range(BASE, GIB)?;
            uvm.map(&space, &client, memory, BASE, GIB)?;
            client.free(memory)?;
            // Holds what it inherited, and makes no call.
            forked(|| {
                let _waited = (&theirs).read(&mut [0]);
                0
            })?;
            Ok(())
        };
        i32::from(made().is_err())
    })?;
    drop(theirs);
    if wait_for(maker) != 0 {
        return Err("the maker did not get its memory".into());
    }
    std::thread::sleep(A_WHILE);
    let used = watch.used()?;
    let driver = context.driver_memory().map_or(used, |on| on[0]);
    drop(ours);
    let after = watch.settles(0)?;
    Ok(bytes(
        used.max(driver),
        used,
        after == 0,
        format!(
            "the slice counts {}, the driver {}; {} when the holder had ended",
            human(used),
            human(driver),
            human(after)
        ),
    ))
}

/// The first thread ends; `/proc/PID/maps` is empty from then on, and the managed memory is still there.
pub(super) fn leader_exit_managed(context: &Context) -> Outcome {
    without_the_first_thread(context, "attack_leader_exit_managed", move |context| {
        std::thread::sleep(Duration::from_millis(50));
        let used = || -> Result<(u64, u64), Fault> {
            let watch = Watch::new(&context)?;
            let uvm = Uvm::open(&context.node)?;
            let managed = uvm.managed(GIB)?;
            std::thread::sleep(A_WHILE);
            let used = watch.used()?;
            drop(managed);
            Ok((used, watch.settles(0)?))
        };
        match used() {
            Ok((used, after)) => bytes(
                used,
                GIB,
                after == 0,
                format!(
                    "managed memory of a process whose first thread has ended; {} when unmapped",
                    human(after)
                ),
            ),
            Err(fault) => words(
                false,
                fault.to_string(),
                "1 GiB",
                "the first thread has ended",
            ),
        }
    })
}

/// A semaphore pool of one UVM file covers no managed memory of another, and no pool is as large as a slice.
pub(super) fn pool_covers_nothing(context: &Context) -> Outcome {
    use layout::uvm_alloc_semaphore_pool as l;
    let watch = Watch::new(context)?;
    let (first, second) = (Uvm::open(&context.node)?, Uvm::open(&context.node)?);
    let pool = |base: u64, length: u64| {
        let status_at = context
            .node
            .abi()?
            .layout()
            .uvm_alloc_semaphore_pool
            .rm_status;
        let block = context
            .node
            .uvm_block(uvm::ALLOC_SEMAPHORE_POOL)?
            .with64(l::BASE, base)
            .with64(l::LENGTH, length);
        first
            .call(uvm::ALLOC_SEMAPHORE_POOL, block, status_at)
            .map(|_| ())
    };
    // What CUDA asks for works.
    pool(BASE, 2 * MIB)?;
    let honest = first.managed_at(BASE, 2 * MIB).map(|_mapped| ());
    let (before, large) = (watch.used()?, pool(BASE + GIB, GIB));
    // Where the first file has its pool, the second has none.
    let managed = second.managed_at(BASE, 2 * MIB)?;
    let used = watch.used()?;
    drop(managed);
    Ok(bytes(
        used - before,
        2 * MIB,
        honest.is_ok() && large.is_err(),
        format!("a pool of 2 MiB mapped: {honest:?}; one of 1 GiB: {large:?}"),
    ))
}

/// A client is freed, its handle taken again on another file, and then the first file closed: the new client's memory
/// is still charged.
pub(super) fn client_handle_again(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let old = Client::open(&context.node)?;
    old.free(old.root())?;
    let new = Client::on_file_as(
        &context.node,
        context.node.open(crate::raw::File::Control)?,
        old.root(),
    )?;
    let device = new.first_device()?;
    device.alloc(&new, GIB, Pages::Default)?;
    let before = watch.used()?;
    drop(old);
    std::thread::sleep(A_WHILE);
    let used = watch.used()?;
    new.free(new.root())?;
    let after = watch.settles(0)?;
    let note = format!(
        "{} before the first file was closed, {} after the client was freed",
        human(before),
        human(after)
    );
    Ok(bytes(used, GIB, before == GIB && after == 0, note))
}

/// Bare numbers, which the filter takes for UVM words, on the control file: blocks of no size.
pub(super) fn numbers_without_size(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let mut answers = Vec::new();
    // The first three are the file system's own.
    for number in 3..=0xffu32 {
        // Zeroes: a root client of class 0, where a size is not asked for.
        let answer = system_call(client.file(), number, &mut Block::new(16384));
        if answer.is_ok() && !rm::UNSIZED_ESCAPES.contains(&(number as u8)) {
            answers.push(format!("{number:#x}"));
        }
    }
    let works = device.alloc(&client, MIB, Pages::Default).is_ok();
    Ok(words(
        works && answers.is_empty(),
        format!("{} granted", answers.len()),
        "0 granted",
        answers.join(" "),
    ))
}

/// Takes every descriptor that the helper may have, then makes managed memory that must be charged all the same.
pub(super) fn no_descriptors_left(context: &Context) -> Outcome {
    const PROCESSES: usize = 4;
    let watch = Watch::new(context)?;
    let uvm = Uvm::open(&context.node)?;
    let (ours, theirs) = UnixStream::pair()?;
    let mut children = Vec::new();
    for _ in 0..PROCESSES {
        children.push(forked(|| {
            close_here(&ours);
            let mut clients = Vec::new();
            while let Ok(client) = Client::open(&context.node) {
                clients.push(client);
                if clients.len() > 2000 {
                    break;
                }
            }
            let said = (&theirs).write_all(&[1]);
            let waited = (&theirs).read(&mut [0]);
            i32::from(said.is_err() || waited.is_err())
        })?);
    }
    drop(theirs);
    (&ours).read_exact(&mut [0; PROCESSES])?;
    let mut made = 0;
    let mut reserved = Vec::new();
    while made < 2 * context.quota {
        let Ok(memory) = uvm.managed(GIB) else { break };
        reserved.push(memory);
        made += GIB;
    }
    drop(ours);
    children.into_iter().for_each(|child| {
        wait_for(child);
    });
    let until = Instant::now() + A_WHILE;
    while watch.used().is_err() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    let used = watch.used()?;
    Ok(bytes(
        made.max(used),
        used,
        made <= context.quota,
        format!(
            "{} of managed memory made while the helper was full",
            human(made)
        ),
    ))
}

/// An export that is refused holds nothing: the memory's charge goes with its handle.
pub(super) fn refused_export(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let memory = device.alloc(&client, GIB, Pages::Default)?;
    // A file, and one that can be watched, but none of the driver's.
    let (socket, _other) = UnixStream::pair()?;
    let answer = client.export(device.device, memory, socket.as_fd());
    client.free(memory)?;
    let left = watch.settles(0)?;
    Ok(bytes(
        left,
        0,
        answer.is_err(),
        format!("exported to a socket: {answer:?}"),
    ))
}

/// A range is freed with all that is mapped in it, wherever in it that lies, and nothing behind it is. A driver that takes
/// no length tells nobody where the range ended.
pub(super) fn freed_range(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    let space = uvm.add_device(&client, &device)?;
    let room = device.free_bytes(&client)?;
    // Two mappings apart from the range's begin and from each other; the next range begins where this one ends.
    uvm.create_range(BASE, 16 * MIB)?;
    uvm.create_range(BASE + 16 * MIB, 2 * MIB)?;
    for at in [2, 8, 16] {
        let memory = device.alloc(&client, 2 * MIB, Pages::Default)?;
        uvm.map(&space, &client, memory, BASE + at * MIB, 2 * MIB)?;
        client.free(memory)?;
    }
    let before = room - device.free_bytes(&client)?;
    uvm.free(BASE, 16 * MIB)?;
    let after = room - device.free_bytes(&client)?;
    let driver = context.driver_memory().map_or(after, |on| on[0]);
    uvm.free(BASE + 16 * MIB, 2 * MIB)?;
    let end = room - device.free_bytes(&client)?;
    Ok(bytes(
        after,
        2 * MIB,
        (before, driver, end) == (6 * MIB, 2 * MIB, 0),
        format!(
            "charged {before} with all three mapped, {end} with none; the driver counts {driver} between"
        ),
    ))
}
