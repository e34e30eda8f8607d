//! Attacks on the helper and on who asks, numbered as SECURITY.md numbers the threats.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rm::{class, ctrl, layout};

use super::fill::human;
use super::shapes::{Watch, forked, receive_descriptor, wait_for, without_the_first_thread};
use super::threats::words;
use super::{Context, Outcome, bytes};
use crate::raw::{Answer, Block, Client, Device, Fault, File, Pages, system_call};
use crate::{GIB, MIB};

/// Receives a descriptor from a socket that whoever started this program has left open; word: the socket's number.
pub(super) fn handed_in(
    context: &Context,
    at: usize,
) -> Result<OwnedFd, Box<dyn std::error::Error>> {
    Ok(receive_descriptor(context.word(at)?.parse()?)?)
}

/// Words: the number of a socket with a control file that was opened outside the slice, a client on it, memory of that client. Neither
/// is of use in here, and what is made on the file is charged.
pub(super) fn threat_10(context: &Context) -> Outcome {
    let file = handed_in(context, 0)?;
    let (foreign, memory): (u32, u32) = (context.word(1)?.parse()?, context.word(2)?.parse()?);
    let watch = Watch::new(context)?;
    let own = Client::on_file(&context.node, file)?;
    let device = own.first_device()?;
    let mut info = Block::new(layout::handle_info::SIZE)
        .with32(layout::handle_info::H_OBJECT, memory)
        .with32(layout::handle_info::INDEX, 2);
    use layout::nvos54 as l;
    let mut ask = Block::new(l::SIZE)
        .with32(l::H_CLIENT, foreign)
        .with32(l::H_OBJECT, foreign)
        .with32(l::CMD, ctrl::NV0000_CLIENT_GET_HANDLE_INFO)
        .with64(l::PARAMS, info.address())
        .with32(l::PARAMS_SIZE, info.len() as u32);
    own.escape(rm::nr::RM_CONTROL, &mut ask)?;
    let asked = ask.u32(l::STATUS);
    let taken = own.duplicate(device.device, foreign, memory);
    device.alloc(&own, GIB, Pages::Default)?;
    let used = watch.used()?;
    let refused = asked != 0 && taken.is_err();
    Ok(bytes(
        used,
        GIB,
        refused,
        format!("the outside client: {asked:#x}; its memory: {taken:?}"),
    ))
}

/// The tenant is shown its own processes, and never the helper's number.
pub(super) fn threat_21(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    device.alloc(&client, MIB, Pages::Default)?;
    let shown = processes(&client, &device)?;
    // SAFETY: getppid takes nothing and cannot fail.
    let helper = unsafe { libc::getppid() } as u32;
    let held = shown == [std::process::id()];
    Ok(words(
        held,
        format!("{shown:?}, the helper is {helper}"),
        "this process alone",
        "GET_PIDS",
    ))
}

/// Processes on a device, as the driver (or whoever changes its answer) lists them.
pub(super) fn processes(client: &Client, device: &Device) -> Answer<Vec<u32>> {
    use layout::pids as l;
    // Of whoever has an object of this class, as every program with a device has.
    let mut block = Block::new(l::SIZE).with32(l::ID, class::NV20_SUBDEVICE_0);
    client.control(device.subdevice, ctrl::NV2080_GPU_GET_PIDS, &mut block)?;
    let count = block.u32(l::PID_TBL_COUNT) as usize;
    Ok((0..count.min(900))
        .map(|i| block.u32(l::PID_TBL + 4 * i))
        .collect())
}

/// The last close of a file is the driver's to see: no duplicate stays behind, and what it gave back can be had at once.
pub(super) fn threat_22(context: &Context) -> Outcome {
    const ROUNDS: usize = 50;
    let watch = Watch::new(context)?;
    let mut refused = 0;
    for _ in 0..ROUNDS {
        let client = Client::open(&context.node)?;
        let device = client.first_device()?;
        // Twice of it does not fit: each proves that the one before has gone.
        let made = device.alloc(&client, context.quota / 2 + GIB, Pages::Default);
        refused += usize::from(made.is_err());
    }
    let left = watch.settles(0)?;
    let driver = context.driver_memory().map_or(left, |on| on[0]);
    Ok(bytes(
        left.max(driver),
        0,
        refused == 0,
        format!("{refused} of {ROUNDS} refused"),
    ))
}

/// Callers are killed in the middle of their calls, at any of their steps: what was made goes with them, and nothing else.
pub(super) fn threat_23(context: &Context) -> Outcome {
    const ROUNDS: u64 = 150;
    let watch = Watch::new(context)?;
    for round in 0..ROUNDS {
        let child = forked(|| {
            let call = || -> Answer {
                let client = Client::open(&context.node)?;
                let device = client.first_device()?;
                loop {
                    let memory = device.alloc(&client, MIB, Pages::Default)?;
                    let other = client.duplicate(device.device, client.root(), memory)?;
                    client.free(memory)?;
                    client.free(other)?;
                }
            };
            i32::from(call().is_err())
        })?;
        std::thread::sleep(Duration::from_micros(2000 + 67 * round));
        // SAFETY: a child of ours that has not been waited for.
        unsafe { libc::kill(child, libc::SIGKILL) };
        wait_for(child);
    }
    let left = watch.settles(0)?;
    let driver = context.driver_memory().map_or(left, |on| on[0]);
    let client = Client::open(&context.node)?;
    let works = client
        .first_device()?
        .alloc(&client, context.quota - 64 * MIB, Pages::Default)
        .is_ok();
    Ok(bytes(
        left.max(driver),
        0,
        works,
        format!("{ROUNDS} callers killed; the whole slice can be had afterwards: {works}"),
    ))
}

/// The first thread has ended, and the one that calls has a descriptor table of its own: its numbers count.
pub(super) fn threat_25(context: &Context) -> Outcome {
    without_the_first_thread(context, "threat_25", move |context| {
        std::thread::sleep(Duration::from_millis(50));
        let own_table = || -> Result<(u64, u64), Fault> {
            // SAFETY: gives this thread a table of its own; the others' files stay as they are.
            if unsafe { libc::unshare(libc::CLONE_FILES) } < 0 {
                return Err(io::Error::last_os_error().into());
            }
            let watch = Watch::new(&context)?;
            let client = Client::open(&context.node)?;
            let device = client.first_device()?;
            let memory = device.alloc(&client, GIB, Pages::Default)?;
            let used = watch.used()?;
            client.free(memory)?;
            Ok((used, watch.settles(0)?))
        };
        match own_table() {
            Ok((used, after)) => bytes(used, GIB, after == 0, human(after)),
            Err(fault) => words(false, fault.to_string(), "1 GiB", ""),
        }
    })
}

/// Other ways into the kernel: the two other ABIs of the processor, a personality, and io_uring, which has no path to
/// the driver.
pub(super) fn threat_29(context: &Context) -> Outcome {
    const X32: libc::c_long = 0x4000_0000;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let (file, request) = (
        client.file().as_raw_fd(),
        crate::raw::request(rm::nr::RM_FREE, layout::nvos00::SIZE),
    );
    // SAFETY: the kernel refuses the call before it looks at the arguments.
    let x32 = unsafe { libc::syscall(X32 | libc::SYS_ioctl, file, request, 0) };
    let x32 = (x32, io::Error::last_os_error().raw_os_error());
    // A kernel without that ABI ends the program, so a child asks.
    let i386 = forked(|| i32::from(i386_ioctl(file, request) != -i64::from(libc::ENOSYS)))?;
    let i386 = wait_for(i386);
    let gone = libc::WIFSIGNALED(i386) && libc::WTERMSIG(i386) == libc::SIGSEGV;
    // SAFETY: personality(2) takes a number; 0x0008 is PER_LINUX32, and 0 what programs have.
    unsafe { libc::personality(0x0008) };
    let over = device.alloc(&client, context.quota + MIB, Pages::Default);
    // SAFETY: as above.
    unsafe { libc::personality(0) };
    let ring = uring_command(file)?;
    let held = x32 == (-1, Some(libc::ENOSYS))
        && (i386 == 0 || gone)
        && over == Err(Fault::NO_MEMORY)
        && ring.is_none_or(|answer| answer < 0);
    Ok(words(
        held,
        format!(
            "x32 {x32:?}, i386 {i386:#x}, under PER_LINUX32 {over:?}, a command of io_uring {ring:?}"
        ),
        "all refused",
        "",
    ))
}

/// `ioctl` by the i386 gate: its answer as the kernel gives it.
fn i386_ioctl(file: RawFd, request: u32) -> i64 {
    const I386_IOCTL: i64 = 54;
    let answer: i64;
    // SAFETY: the gate takes its number in eax and its arguments in ebx, ecx and edx, and changes r8 to r11 besides; rbx
    // may not be named, so it is exchanged and put back. The argument is a null pointer.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {file}",
            "int 0x80",
            "xchg rbx, {file}",
            file = inout(reg) i64::from(file) => _,
            inlateout("rax") I386_IOCTL => answer,
            in("rcx") u64::from(request),
            in("rdx") 0u64,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    i64::from(answer as i32)
}

/// Gives a file a command by io_uring (IORING_OP_URING_CMD); `None`: this kernel has no io_uring for us.
fn uring_command(file: RawFd) -> io::Result<Option<i32>> {
    const URING_CMD: u8 = 46;
    const OFF_SQES: libc::off_t = 0x1000_0000;
    const ENTER_GETEVENTS: libc::c_uint = 1;
    let mut params = [0u32; 30];
    // SAFETY: `params` has the 120 bytes of struct io_uring_params.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if ring < 0 {
        return Ok(None);
    }
    // SAFETY: the kernel just gave us this descriptor and nobody else owns it.
    let ring = unsafe { OwnedFd::from_raw_fd(ring as RawFd) };
    // sq_off at word 10 (head, tail, mask, entries, flags, dropped, array), cq_off at word 20 (.., cqes at its sixth).
    let (tail, array) = (params[11] as usize, params[16] as usize);
    let (cq_tail, cqes) = (params[21] as usize, params[25] as usize);
    let map = |offset: libc::off_t| {
        // SAFETY: a new mapping of the ring, at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                ring.as_raw_fd(),
                offset,
            )
        };
        if at == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(at.cast::<u8>())
        }
    };
    let (queue, entries) = (map(0)?, map(OFF_SQES)?);
    // SAFETY: entry 0 has 64 bytes: opcode@0, fd@4. The offsets of the queue are the kernel's own, inside its pages.
    unsafe {
        entries.write(URING_CMD);
        entries.add(4).cast::<i32>().write(file);
        queue.add(array).cast::<u32>().write(0);
        queue.add(tail).cast::<u32>().write_volatile(1);
    }
    // SAFETY: integers and a null signal mask.
    let entered = unsafe {
        libc::syscall(
            libc::SYS_io_uring_enter,
            ring.as_raw_fd(),
            1,
            1,
            ENTER_GETEVENTS,
            std::ptr::null::<libc::sigset_t>(),
            0,
        )
    };
    if entered < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above; a completion is user_data@0, res@8.
    let (done, answer) = unsafe {
        (
            queue.add(cq_tail).cast::<u32>().read_volatile(),
            queue.add(cqes + 8).cast::<i32>().read_volatile(),
        )
    };
    Ok((done > 0).then_some(answer))
}

/// Looks into the helper, writes to it, traces it.
pub(super) fn threat_30(_context: &Context) -> Outcome {
    // SAFETY: getppid takes nothing and cannot fail.
    let helper = unsafe { libc::getppid() };
    let mut got = Vec::new();
    for file in ["mem", "maps", "environ", "auxv", "syscall", "stack"] {
        let read = fs::File::open(format!("/proc/{helper}/{file}"))
            .and_then(|mut open| io::Read::read(&mut open, &mut [0; 16]));
        if read.is_ok_and(|n| n > 0) {
            got.push(file);
        }
    }
    if fs::File::options()
        .write(true)
        .open(format!("/proc/{helper}/mem"))
        .is_ok()
    {
        got.push("mem to write");
    }
    // Root may list the numbers; what they are is another question.
    let files = fs::read_dir(format!("/proc/{helper}/fd"))
        .into_iter()
        .flatten();
    if files
        .flatten()
        .any(|file| fs::read_link(file.path()).is_ok())
    {
        got.push("fd");
    }
    for (name, number) in [
        ("PTRACE_ATTACH", libc::PTRACE_ATTACH),
        ("PTRACE_SEIZE", libc::PTRACE_SEIZE),
    ] {
        // SAFETY: ptrace(2) of another process with no memory of ours.
        if unsafe { libc::ptrace(number, helper, 0, 0) } >= 0 {
            got.push(name);
        }
    }
    let mut byte = [0u8; 8];
    let local = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: byte.len(),
    };
    let remote = libc::iovec {
        iov_base: 0x40_0000 as *mut libc::c_void,
        iov_len: byte.len(),
    };
    // SAFETY: `local` is live and as long as it says; the other address is the other process's.
    let read = unsafe { libc::process_vm_readv(helper, &local, 1, &remote, 1, 0) };
    // EFAULT would mean that only the address was wrong.
    if read >= 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) {
        got.push("process_vm_readv");
    }
    // SAFETY: pidfd_open(2) and pidfd_getfd(2) take numbers.
    let stolen = unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, helper, 0);
        let stolen = libc::syscall(libc::SYS_pidfd_getfd, pidfd, 3, 0);
        libc::close(pidfd as RawFd);
        stolen
    };
    if stolen >= 0 {
        got.push("pidfd_getfd");
    }
    Ok(words(
        got.is_empty(),
        got.join(", "),
        "nothing",
        format!("the helper is {helper}"),
    ))
}

/// A signal in the middle of a call that the program does not want restarted: the call is finished all the same, once, or
/// it has not begun.
pub(super) fn threat_24(context: &Context) -> Outcome {
    extern "C" fn nothing(_signal: libc::c_int) {}
    const OBJECTS: u64 = 2000;
    let watch = Watch::new(context)?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    // SAFETY: the action is zeroed but for its handler, which does nothing, and has no flags: calls are not restarted.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as libc::sighandler_t;
        libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut());
    }
    let (me, over) = (
        // SAFETY: gettid takes nothing and cannot fail.
        unsafe { libc::gettid() },
        std::sync::atomic::AtomicBool::new(false),
    );
    let (made, failed) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                // SAFETY: tgkill(2) with numbers of this process.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), me, libc::SIGURG) };
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let answers: Vec<Option<i32>> = (0..OBJECTS)
            .map(|_| {
                let mut params = Device::memory(&client, 64 << 10);
                use layout::nvos64 as l;
                let mut block = Block::new(l::SIZE)
                    .with32(l::H_ROOT, client.root())
                    .with32(l::H_OBJECT_PARENT, device.device)
                    .with32(l::H_CLASS, rm::class::NV01_MEMORY_LOCAL_USER)
                    .with64(l::P_ALLOC_PARMS, params.address());
                let request = crate::raw::request(rm::nr::RM_ALLOC, l::SIZE);
                match system_call(client.file(), request, &mut block) {
                    Ok(_) if block.u32(l::STATUS) == 0 => Some(0),
                    Ok(_) => None,
                    Err(e) => e.raw_os_error(),
                }
            })
            .collect();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        let count = |wanted| answers.iter().filter(|&&a| a == Some(wanted)).count() as u64;
        let (made, broken_off) = (count(0), count(libc::EINTR));
        (made, OBJECTS - made - broken_off)
    });
    let used = watch.used()?;
    Ok(bytes(
        used,
        made * (64 << 10),
        failed == 0,
        format!("{made} of {OBJECTS} made, {failed} went otherwise than made or not begun (EINTR)"),
    ))
}

/// A number of the helper's own is not the tenant's: a call that names it means what the tenant has there, or nothing.
pub(super) fn threat_44(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let memory = device.alloc(&client, MIB, Pages::Default)?;
    // Numbers at which the helper has files and this program none.
    let mut granted = Vec::new();
    let own: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for number in (3..64).filter(|number| !own.contains(number)) {
        let mut export = Block::new(24)
            .with32(0, 1)
            .with32(4, device.device)
            .with32(8, device.device)
            .with32(12, memory)
            .with32(16, number as u32);
        let exported = client.control(
            client.root(),
            ctrl::NV0000_OS_UNIX_EXPORT_OBJECT_TO_FD,
            &mut export,
        );
        let gpu = context.node.open(File::Gpu(0))?;
        let mut tie = Block::new(4).with32(0, number as u32);
        let tied = context.node.ioctl(
            std::os::fd::AsFd::as_fd(&gpu),
            crate::raw::request(rm::nr::REGISTER_FD, 4),
            &mut tie,
        );
        if number != gpu.as_raw_fd() && (exported.is_ok() || tied.is_ok()) {
            granted.push(format!("{number}: {exported:?} {tied:?}"));
        }
    }
    // A number that the helper has never had.
    const HIGH: RawFd = 900;
    let target = context.node.open(File::Control)?;
    // SAFETY: a number that nothing here uses; the duplicate is owned by what follows.
    let high = unsafe {
        libc::dup2(target.as_raw_fd(), HIGH);
        OwnedFd::from_raw_fd(HIGH)
    };
    let exported = client.export(device.device, memory, std::os::fd::AsFd::as_fd(&high));
    let imported = client.import(device.device, std::os::fd::AsFd::as_fd(&target));
    // The key of an event is the tenant's number, whatever it is.
    let mut event = Block::new(layout::alloc_os_event::SIZE)
        .with32(layout::alloc_os_event::H_CLIENT, client.root())
        .with32(layout::alloc_os_event::FD, HIGH as u32);
    client.escape(rm::nr::ALLOC_OS_EVENT, &mut event)?;
    let kept = event.u32(layout::alloc_os_event::FD) == HIGH as u32;
    let held = granted.is_empty() && exported.is_ok() && imported.is_ok() && kept;
    Ok(words(
        held,
        granted.join("; "),
        "none of the helper's",
        format!("own number {HIGH}: {exported:?} {imported:?}, event keeps it: {kept}"),
    ))
}
