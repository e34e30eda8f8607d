//! Attacks beyond the threat list.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rm::{class, layout, nr, uvm};
use simgpu::work::{Op, Work, WorkStatus};

use super::fill::human;
use super::shapes::{Watch, forked, wait_for};
use super::threats::words;
use super::{Context, Outcome, bytes};
use crate::raw::{Answer, Block, Channel, Client, Device, Fault, File, Pages, Uvm, request};
use crate::{GIB, KIB, MIB};

/// Where programs map memory.
const BASE: u64 = 0x2000_0000_0000;
const PATTERN: u32 = 0x0bad_5eed;

/// A page that children made by fork share, all of it atomics.
fn shared_page() -> io::Result<&'static [AtomicU32; 1024]> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is zeroed, as large as the array, never unmapped, and an atomic has no invalid value.
    Ok(unsafe { &*page.cast::<[AtomicU32; 1024]>() })
}

/// Parameters in memory that a sibling thread and another process change all the time: what is allocated is what was
/// charged, whatever was read. Words: milliseconds.
pub(super) fn shared_parameters(context: &Context) -> Outcome {
    use layout::{memory_allocation as m, nvos64 as l};
    const PARAMS: usize = 256;
    let time = Duration::from_millis(context.word(0)?.parse()?);
    let watch = Watch::new(context)?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let page = shared_page()?;
    let put = |at: usize, value: u32| page[at / 4].store(value, Ordering::Relaxed);
    // Small and huge, on the device and in host memory, small pages and large ones, under one handle and another.
    let change = |round: u32| {
        put(
            PARAMS + m::SIZE_FIELD,
            if round & 1 == 0 { 1 } else { 1 << 30 },
        );
        put(
            PARAMS + m::SIZE_FIELD + 4,
            u32::from(round.is_multiple_of(61)),
        );
        put(PARAMS + m::ATTR, [0, 3 << 23, 1 << 25][round as usize % 3]);
        put(PARAMS + m::ATTR2, (round / 7 % 3) << 20);
        put(l::H_OBJECT_NEW, 0x5d00_0000 + round / 5 % 4);
    };
    let racer = forked(|| {
        // SAFETY: integers: it ends with the program, and leaves the processor to whoever it races.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::nice(10);
        }
        let mut round = 0u32;
        loop {
            change(round);
            round = round.wrapping_add(1);
        }
    })?;
    let until = Instant::now() + time;
    let (mut calls, mut made, mut worst) = (0u64, 0u64, (0, 0));
    let over = std::sync::atomic::AtomicBool::new(false);
    let at = page.as_ptr() as u64;
    std::thread::scope(|scope| -> Answer {
        scope.spawn(|| {
            let mut round = 1u32;
            while !over.load(Ordering::Relaxed) {
                change(round);
                round = round.wrapping_mul(5).wrapping_add(1);
                std::thread::yield_now();
            }
        });
        let mut race = || -> Answer {
            while Instant::now() < until {
                put(l::H_ROOT, client.root());
                put(l::H_OBJECT_PARENT, device.device);
                put(l::H_CLASS, class::NV01_MEMORY_LOCAL_USER);
                put(l::P_ALLOC_PARMS, (at + PARAMS as u64) as u32);
                put(l::P_ALLOC_PARMS + 4, ((at + PARAMS as u64) >> 32) as u32);
                context
                    .node
                    .ioctl_at(client.file(), request(nr::RM_ALLOC, l::SIZE), at)?;
                calls += 1;
                made += u64::from(page[l::STATUS / 4].load(Ordering::Relaxed) == 0);
                let used = watch.used()?;
                let driver = context.driver_memory().map_or(used, |on| on[0]);
                if driver != used {
                    worst = (driver, used);
                }
                // What it was called is anybody's guess.
                for handle in 0x5d00_0000..0x5d00_0004 {
                    client.free(handle)?;
                }
            }
            Ok(())
        };
        let raced = race();
        over.store(true, Ordering::Relaxed);
        raced
    })?;
    // SAFETY: a child of ours that has not been waited for.
    unsafe { libc::kill(racer, libc::SIGKILL) };
    wait_for(racer);
    let (driver, used) = worst;
    client.free(client.root())?;
    let left = watch.settles(0)?;
    let note = format!(
        "{calls} calls, {made} said made; where they differed the slice counted {}, the driver {}; {} left",
        human(used),
        human(driver),
        human(left)
    );
    Ok(bytes(driver, used, left == 0 && made > 10, note))
}

/// Objects under handles that are taken: of memory, of the device, of the client itself, and of another client's; and a
/// source that is freed after it was duplicated.
pub(super) fn handles(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let (client, other) = (Client::open(&context.node)?, Client::open(&context.node)?);
    let (device, others) = (client.first_device()?, other.first_device()?);
    let memory = device.alloc(&client, GIB, Pages::Default)?;
    let taken = [memory, device.device, device.subdevice, client.root()].map(|handle| {
        device
            .alloc_as(&client, handle, GIB, Pages::Default)
            .is_err()
    });
    // The same number in another client is another object.
    let same = others.alloc_as(&other, memory, GIB, Pages::Default);
    let again = client.duplicate(device.device, other.root(), memory)?;
    other.free(memory)?;
    let with_alias = watch.used()?;
    client.free(memory)?;
    let one = watch.used()?;
    // A client under the number of an object, and under one of another client.
    let file = context.node.open(File::Control)?;
    let clash = Client::on_file_as(&context.node, file, other.root());
    let third = Client::on_file_as(&context.node, context.node.open(File::Control)?, again);
    let driver = context.driver_memory().map_or(one, |on| on[0]);
    client.free(again)?;
    let left = watch.settles(0)?;
    let note = format!(
        "taken handles refused: {taken:?}; in another client: {same:?}; a client's number: {}; an object's: {}",
        clash.is_err(),
        third.is_ok()
    );
    let held = taken.iter().all(|&refused| refused)
        && same.is_ok()
        && with_alias == 2 * GIB
        && clash.is_err()
        && driver == one
        && left == 0;
    Ok(bytes(one, GIB, held, note))
}

/// A file that is opened again through `/proc/self/fd`, and files that close_range(2) closes.
pub(super) fn reopened(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    device.alloc(&client, GIB, Pages::Default)?;
    let path = format!("/proc/self/fd/{}", client.file().as_raw_fd());
    let again = fs::File::options().read(true).write(true).open(path);
    // What the new file may do is the driver's to say; what it makes is charged.
    let mut made = 0;
    if let Ok(again) = &again
        && let Ok(second) = Client::on_file(&context.node, again.try_clone()?.into())
        && let Ok(its) = second.first_device()
        && its.alloc(&second, GIB, Pages::Default).is_ok()
    {
        made = GIB;
    }
    let used = watch.used()?;
    let driver = context.driver_memory().map_or(used, |on| on[0]);
    let kept = used >= GIB && used <= GIB + made && driver <= used;
    // Everything but the watch's files, the standard three and the sockets is closed by number at once.
    let first = client.file().as_raw_fd() as libc::c_uint;
    drop(again);
    let child = forked(|| {
        // SAFETY: the child uses none of its descriptors afterwards.
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
        0
    })?;
    let status = wait_for(child);
    let still = watch.used()?;
    // SAFETY: the client's own number; it is forgotten below and not closed twice.
    unsafe { libc::syscall(libc::SYS_close_range, first, first, 0) };
    std::mem::forget(client);
    let left = watch.settles(0)?;
    let note = format!(
        "{} used with the second file, {} after a child closed all, {} after close_range; the child: {status}",
        human(used),
        human(still),
        human(left)
    );
    Ok(bytes(left, 0, kept && still >= GIB && status == 0, note))
}

/// `MAP_SHARED_VALIDATE` makes managed memory as `MAP_SHARED` does.
pub(super) fn validated(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let file = Uvm::open(&context.node)?;
    let map = |length: u64| {
        // SAFETY: a new mapping where nothing lies: far from what the kernel gives to others.
        unsafe {
            libc::mmap(
                BASE as *mut libc::c_void,
                length as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED_VALIDATE | libc::MAP_FIXED,
                file.file().as_raw_fd(),
                BASE as libc::off_t,
            )
        }
    };
    let over = map(context.quota + GIB) == libc::MAP_FAILED;
    let fits = map(GIB) != libc::MAP_FAILED;
    let used = watch.used()?;
    // SAFETY: the mapping is ours and nobody has a reference into it.
    unsafe { libc::munmap(BASE as *mut libc::c_void, GIB as usize) };
    let left = watch.settles(0)?;
    Ok(bytes(used, GIB, over && fits && left == 0, human(left)))
}

/// Over the quota, from a place where the rules might be others: a user namespace, another root folder, under filters
/// of the program's own.
pub(super) fn elsewhere(context: &Context) -> Outcome {
    let mut answers = Vec::new();
    let mut held = true;
    let mut try_in = |place: &str, enter: &dyn Fn() -> bool| -> io::Result<()> {
        let child = forked(|| {
            if !enter() {
                return 3;
            }
            let over = || -> Answer {
                let client = Client::open(&context.node)?;
                let device = client.first_device()?;
                let over = device.alloc(&client, context.quota + MIB, Pages::Default);
                let fits = device.alloc(&client, MIB, Pages::Default);
                match (over, fits) {
                    (Err(Fault::NO_MEMORY), Ok(_)) => Ok(()),
                    _ => Err(Fault::Os(libc::EPROTO)),
                }
            };
            match over() {
                Ok(()) => 0,
                // What cannot be looked into is refused.
                Err(Fault::Os(libc::EPERM | libc::EACCES | libc::ENOSYS)) => 2,
                Err(_) => 1,
            }
        })?;
        let status = wait_for(child);
        let code = libc::WEXITSTATUS(status);
        held &= libc::WIFEXITED(status) && code != 1;
        let word = match code {
            0 => "charged",
            2 => "refused",
            3 => "not to be entered",
            _ => "WRONG",
        };
        answers.push(format!("{place}: {word}"));
        Ok(())
    };
    // SAFETY: in a child of its own; unshare(2) and chroot(2) change the child alone.
    let unshared = |flags| unsafe { libc::unshare(flags) } == 0;
    try_in("user namespace", &|| unshared(libc::CLONE_NEWUSER))?;
    try_in("user and mount namespaces", &|| {
        unshared(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)
    })?;
    try_in("another descriptor table and file system", &|| {
        unshared(libc::CLONE_FILES | libc::CLONE_FS)
    })?;
    try_in("another root", &|| {
        // The node's socket is below it; what `/proc` told is not.
        let folder = context.node.socket().and_then(|socket| socket.parent());
        let _connected = Client::open(&context.node);
        folder.is_some_and(|folder| std::os::unix::fs::chroot(folder).is_ok())
    })?;
    const ALLOW: u32 = 0x7fff_0000;
    const LOG: u32 = 0x7ffc_0000;
    const TRACE: u32 = 0x7ff0_0000;
    for (name, verdict) in [("ALLOW", ALLOW), ("LOG", LOG), ("TRACE", TRACE)] {
        try_in(&format!("a filter that says {name} to ioctl"), &|| {
            own_filter(verdict)
        })?;
    }
    let charged = answers.iter().filter(|a| a.ends_with("charged")).count();
    Ok(words(
        held && charged >= 3,
        answers.join(", "),
        "charged or refused everywhere",
        "",
    ))
}

/// Installs a filter with a verdict of its own for ioctl(2).
fn own_filter(verdict: u32) -> bool {
    const LOAD_NUMBER: [u32; 2] = [0x20, 0];
    /// `jeq #ioctl, 0, 1`: code 0x15, no jump if it is, one further if not.
    const IS_IOCTL: [u32; 2] = [0x0100_0015, libc::SYS_ioctl as u32];
    #[repr(C)]
    struct Program {
        len: u16,
        code: *const [u32; 2],
    }
    let code = [LOAD_NUMBER, IS_IOCTL, [6, verdict], [6, 0x7fff_0000]];
    let program = Program {
        len: code.len() as u16,
        code: code.as_ptr(),
    };
    // SAFETY: the program and its instructions outlive the call, in which the kernel copies them.
    unsafe { libc::syscall(libc::SYS_seccomp, 1, 0, &program) == 0 }
}

/// Words: a signal's number. Sends it to the helper; printed only if the program outlives that.
pub(super) fn signal_helper(context: &Context) -> Outcome {
    let number: i32 = context.word(0)?.parse()?;
    // SAFETY: getppid takes nothing and cannot fail.
    let helper = unsafe { libc::getppid() };
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    // SAFETY: kill(2) with numbers.
    let sent = unsafe { libc::kill(helper, number) } == 0;
    std::thread::sleep(Duration::from_millis(300));
    let over = device.alloc(&client, context.quota + MIB, Pages::Default);
    let fits = device.alloc(&client, MIB, Pages::Default);
    Ok(words(
        over == Err(Fault::NO_MEMORY) && fits.is_ok(),
        format!("{over:?} {fits:?}"),
        "the helper serves, or the tenant is ended",
        format!("signal {number} sent: {sent}"),
    ))
}

/// Allocates, names, maps, unmaps and frees, over and over: nothing is left, and the helper has not grown. Words: how
/// often.
pub(super) fn cycles(context: &Context) -> Outcome {
    let rounds: u64 = context.word(0)?.parse()?;
    let watch = Watch::new(context)?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    let space = uvm.add_device(&client, &device)?;
    let start = watch.used()?;
    // SAFETY: getppid takes nothing and cannot fail.
    let helper = unsafe { libc::getppid() };
    let files = || fs::read_dir(format!("/proc/{helper}/fd")).map_or(0, Iterator::count);
    let resident = || -> u64 {
        let text = fs::read_to_string(format!("/proc/{helper}/statm")).unwrap_or_default();
        let pages = text.split_whitespace().nth(1).and_then(|w| w.parse().ok());
        pages.unwrap_or(0) * 4096
    };
    let mut early = None;
    for round in 0..rounds {
        let memory = device.alloc(&client, (64 * KIB) << (round % 5), Pages::Default)?;
        if round % 16 == 0 {
            let alias = client.duplicate(device.device, client.root(), memory)?;
            uvm.create_range(BASE, 64 * KIB)?;
            uvm.map(&space, &client, memory, BASE, 64 * KIB)?;
            client.free(alias)?;
            client.free(memory)?;
            uvm.free(BASE, 64 * KIB)?;
        } else {
            client.free(memory)?;
        }
        if round % 64 == 0 {
            drop(context.node.open(File::Control)?);
        }
        if round == rounds / 10 {
            early = Some((resident(), files()));
        }
    }
    let left = watch.settles(start)? - start;
    let driver = context.driver_memory().map_or(left, |on| on[0]);
    let (before, had) = early.unwrap_or_default();
    let grown = resident().saturating_sub(before);
    let more = files().saturating_sub(had);
    let note = format!(
        "{rounds} rounds; the helper has grown by {} and {more} descriptors since the first tenth",
        human(grown)
    );
    Ok(bytes(
        left.max(driver),
        0,
        grown < 4 * MIB && more < 16,
        note,
    ))
}

/// A channel, and device memory that is mapped for it.
fn mapped(context: &Context, length: u64) -> Result<(Client, Device, Uvm, Channel), Fault> {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    let space = uvm.add_device(&client, &device)?;
    let memory = device.alloc(&client, length, Pages::Default)?;
    uvm.create_range(BASE, length)?;
    uvm.map(&space, &client, memory, BASE, length)?;
    let channel = Channel::open(&client, &device, space.vaspace)?;
    Ok((client, device, uvm, channel))
}

fn work(client: &Client, channel: &Channel, op: Op) -> Result<Vec<u8>, String> {
    let done = client.node().submit(&Work {
        client: client.root(),
        channel: channel.channel,
        wait: true,
        op,
    });
    match done {
        Ok(done) if done.status == WorkStatus::Done => Ok(done.data),
        Ok(done) => Err(format!("work ended with {:?}", done.status)),
        Err(e) => Err(e.to_string()),
    }
}

/// What the two programs below hold of the card.
const RESIDUE: u64 = 256 * MIB;

/// Writes to its memory, says so, and holds it until it is killed or its input closes.
pub(super) fn writer(context: &Context) -> Outcome {
    let (client, _device, _uvm, channel) = mapped(context, RESIDUE)?;
    work(
        &client,
        &channel,
        Op::Fill {
            dst: BASE,
            value: PATTERN,
            width: 4,
            count: RESIDUE / 4,
        },
    )?;
    println!("held");
    io::Read::read_to_end(&mut io::stdin(), &mut Vec::new())?;
    std::process::exit(0)
}

/// Reads fresh memory: nothing of what was there before.
pub(super) fn residue(context: &Context) -> Outcome {
    const PIECE: u64 = MIB;
    let (client, _device, _uvm, channel) = mapped(context, RESIDUE)?;
    let mut found = 0u64;
    for piece in 0..RESIDUE / PIECE {
        let read = work(
            &client,
            &channel,
            Op::Read {
                src: BASE + piece * PIECE,
                len: PIECE,
            },
        )?;
        found += read.iter().filter(|&&byte| byte != 0).count() as u64;
    }
    // Beyond its end, and where nothing of it is mapped, there is nothing to read.
    let beyond = work(
        &client,
        &channel,
        Op::Read {
            src: BASE + RESIDUE,
            len: PIECE,
        },
    );
    // A file that was not initialised knows no addresses at all.
    let closed = Uvm::open_only(&context.node)?;
    let question = closed.call(
        uvm::VALIDATE_VA_RANGE,
        Block::new(24).with64(0, BASE).with64(8, PIECE),
        16,
    );
    Ok(bytes(
        found,
        0,
        beyond.is_err() && question.is_err(),
        format!("beyond the end: {}", beyond.is_err()),
    ))
}
