//! Shapes of processes: each must work in a slice as it does natively, with charges that follow.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::fill::human;
use super::threats::words;
use super::{Context, Outcome, bytes};
use crate::outside::{Finding, Line, print};
use crate::raw::{Client, Device, Fault, File, Pages};
use crate::{GIB, MIB};

/// What ended processes held must be back by then.
const BACK: Duration = Duration::from_secs(2);
/// What each process allocates.
const PART: u64 = GIB;

/// A client that watches the slice.
pub(super) struct Watch {
    client: Client,
    device: Device,
    start: u64,
}

impl Watch {
    pub(super) fn new(context: &Context) -> Result<Watch, Fault> {
        let client = Client::open(&context.node)?;
        let device = client.first_device()?;
        let start = device.free_bytes(&client)?;
        Ok(Watch {
            client,
            device,
            start,
        })
    }

    /// Bytes that the slice has less than at the start.
    pub(super) fn used(&self) -> Result<u64, Fault> {
        Ok(self
            .start
            .saturating_sub(self.device.free_bytes(&self.client)?))
    }

    /// Waits until so much is used; what is used then, or when the time is over.
    pub(super) fn settles(&self, expected: u64) -> Result<u64, Fault> {
        let until = Instant::now() + BACK;
        loop {
            let used = self.used()?;
            if used == expected || Instant::now() > until {
                return Ok(used);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn two(used: u64, with: u64, after: u64, what: &str) -> Finding {
    let note = format!(
        "{what}: {} used, {} after it had ended",
        human(used),
        human(after)
    );
    bytes(used, with, after == 0, note)
}

/// Runs `body` in a child made by fork, which ends with it; the child's pid.
pub(super) fn forked(body: impl FnOnce() -> i32) -> io::Result<libc::pid_t> {
    // SAFETY: the programs of this module have one thread when they fork, so the child may use all it inherits.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = body();
            // SAFETY: ends the child at once; nothing of the parent's is written twice.
            unsafe { libc::_exit(code) }
        }
        child => Ok(child),
    }
}

/// Closes what a child made by fork has inherited, and leaves the parent's alone.
pub(super) fn close_here(file: &impl AsRawFd) {
    // SAFETY: the child ends without using or dropping what this number was.
    unsafe { libc::close(file.as_raw_fd()) };
}

pub(super) fn wait_for(child: libc::pid_t) -> i32 {
    let mut status = -1;
    // SAFETY: waits for a child of ours; `status` is live.
    unsafe { libc::waitpid(child, &mut status, 0) };
    status
}

/// A second client in this process, or a child: opens, allocates, gives both to hold.
fn allocate(context: &Context, size: u64) -> Result<(Client, Device, u32), Fault> {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let memory = device.alloc(&client, size, Pages::Default)?;
    Ok((client, device, memory))
}

/// Started by other programs: allocates, says so, holds until its input closes.
pub(super) fn hold(context: &Context) -> Outcome {
    let held = allocate(context, PART)?;
    println!("held");
    io::stdin().read_to_end(&mut Vec::new())?;
    drop(held);
    std::process::exit(0)
}

/// Starts [`hold`] by `posix_spawn`, which makes the child as vfork(2) does, and waits until it holds.
fn holder(context: &Context) -> Result<Child, Box<dyn std::error::Error>> {
    let quota = context.quota.to_string();
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["__tenant", "hold", &quota])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut said = String::new();
    BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut said)?;
    if said.trim() == "held" {
        Ok(child)
    } else {
        Err("the holder did not get its memory".into())
    }
}

/// A child made by fork has its own client; both are counted, and the parent's stays when the child has ended.
pub(super) fn fork(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let (ours, theirs) = UnixStream::pair()?;
    let inherited = allocate(context, PART)?;
    let child = forked(|| {
        close_here(&ours);
        let held = allocate(context, PART);
        let said = (&theirs).write_all(&[u8::from(held.is_ok())]);
        let waited = (&theirs).read(&mut [0]);
        i32::from(said.is_err() || waited.is_err() || held.is_err())
    })?;
    drop(theirs);
    let mut said = [0];
    (&ours).read_exact(&mut said)?;
    let used = watch.used()?;
    drop(ours);
    let status = wait_for(child);
    let after = watch.settles(PART)?;
    // The parent's client went through the fork unharmed.
    inherited.1.alloc(&inherited.0, MIB, Pages::Default)?;
    let ok = said == [1] && status == 0;
    Ok(bytes(
        used,
        2 * PART,
        after == PART && ok,
        format!("the child's end left {} of the parent's", human(after)),
    ))
}

/// A child made by vfork and exec.
pub(super) fn vfork_exec(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let mut child = holder(context)?;
    let used = watch.used()?;
    drop(child.stdin.take());
    child.wait()?;
    Ok(two(
        used,
        PART,
        watch.settles(0)?,
        "a child started by posix_spawn",
    ))
}

/// exec with an inherited control file keeps the client and the charge; the new program can free it.
pub(super) fn exec(context: &Context) -> Outcome {
    if context.words.is_empty() {
        let watch = Watch::new(context)?;
        let control = context.node.open(File::Control)?;
        // SAFETY: changes a flag of a descriptor that we own.
        unsafe { libc::fcntl(control.as_raw_fd(), libc::F_SETFD, 0) };
        let number = control.as_raw_fd().to_string();
        let client = Client::on_file(&context.node, control)?;
        let device = client.first_device()?;
        device.alloc(&client, PART, Pages::Default)?;
        let (quota, start) = (context.quota.to_string(), watch.start.to_string());
        let root = client.root().to_string();
        let failed = Command::new("/proc/self/exe")
            .args(["__tenant", "shape_exec", &quota, &number, &root, &start])
            .exec();
        return Err(failed.into());
    }
    let file: RawFd = context.word(0)?.parse()?;
    let (root, start): (u32, u64) = (context.word(1)?.parse()?, context.word(2)?.parse()?);
    let mut watch = Watch::new(context)?;
    watch.start = start;
    let used = watch.used()?;
    // SAFETY: the program before this one opened it for us and nothing else here owns it.
    let control = unsafe { OwnedFd::from_raw_fd(file) };
    use rm::{layout, nr};
    let mut block = crate::raw::Block::new(layout::nvos00::SIZE)
        .with32(layout::nvos00::H_ROOT, root)
        .with32(layout::nvos00::H_OBJECT_OLD, root);
    context.node.ioctl(
        control.as_fd(),
        crate::raw::request(nr::RM_FREE, block.len()),
        &mut block,
    )?;
    crate::raw::checked(block.u32(layout::nvos00::STATUS))?;
    Ok(two(
        used,
        PART,
        watch.settles(0)?,
        "memory of the program before exec",
    ))
}

/// Many threads, each with its own client, at the same time.
pub(super) fn threads(context: &Context) -> Outcome {
    const THREADS: usize = 8;
    const ROUNDS: usize = 200;
    let watch = Watch::new(context)?;
    let failed: Vec<Fault> = std::thread::scope(|scope| {
        let work = || -> Result<(), Fault> {
            let (client, device, memory) = allocate(context, 64 * MIB)?;
            for _ in 0..ROUNDS {
                let more = device.alloc(&client, MIB, Pages::Default)?;
                client.free(more)?;
            }
            client.free(memory)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .filter_map(|t| t.join().map_or(Some(Fault::Os(libc::EFAULT)), Result::err))
            .collect()
    });
    let after = watch.settles(0)?;
    Ok(bytes(
        after,
        0,
        failed.is_empty(),
        format!("{THREADS} threads, {ROUNDS} rounds each, failures: {failed:?}"),
    ))
}

/// A thread with its own descriptor table: a number means its file and not the leader's.
pub(super) fn own_table(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let (client, device, memory) = allocate(context, PART)?;
    let number = client.file().as_raw_fd();
    let in_thread = || -> Result<(bool, bool), Fault> {
        // SAFETY: gives this thread a table of its own; the other threads' files stay as they are.
        if unsafe { libc::unshare(libc::CLONE_FILES) } < 0 {
            return Err(io::Error::last_os_error().into());
        }
        let null: OwnedFd = std::fs::File::open("/dev/null")?.into();
        // SAFETY: puts another file at that number in this thread's table alone; the leader's descriptor is still the
        // leader's, and this thread never closes the number it has put there.
        unsafe { libc::dup2(null.as_raw_fd(), number) };
        // A file that only this thread has, at a number that means nothing to the leader.
        let own = Client::open(&context.node)?;
        let own_device = own.first_device()?;
        let works = own_device.alloc(&own, PART, Pages::Default).is_ok();
        let others = client.free(memory);
        Ok((works, others.is_err()))
    };
    let (works, refused) = std::thread::scope(|scope| {
        scope
            .spawn(in_thread)
            .join()
            .unwrap_or(Err(Fault::Os(libc::EFAULT)))
    })?;
    let still = device.alloc(&client, MIB, Pages::Default).is_ok();
    client.free(client.root())?;
    let after = watch.settles(0)?;
    let note = format!(
        "its own file works: {works}; the leader's number does not: {refused}; the leader goes on: {still}"
    );
    Ok(bytes(after, 0, works && refused && still, note))
}

/// A child that ends without freeing anything.
pub(super) fn exit(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let mut child = holder(context)?;
    let used = watch.used()?;
    drop(child.stdin.take());
    let status = child.wait()?;
    let finding = two(used, PART, watch.settles(0)?, "a child that only exits");
    Ok(Finding {
        held: finding.held && status.success(),
        ..finding
    })
}

/// A child that is killed while it holds memory.
pub(super) fn kill(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let mut child = holder(context)?;
    let used = watch.used()?;
    child.kill()?;
    child.wait()?;
    Ok(two(
        used,
        PART,
        watch.settles(0)?,
        "a child killed with SIGKILL",
    ))
}

/// A duplicated descriptor keeps the client; the last one to close ends it.
pub(super) fn dup(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let (client, device, _) = allocate(context, PART)?;
    let copy = client.file().try_clone_to_owned()?;
    drop(device);
    drop(client);
    // A moment in which a guard that took the first close for the last would give the charge back.
    std::thread::sleep(Duration::from_millis(300));
    let used = watch.used()?;
    drop(copy);
    Ok(two(
        used,
        PART,
        watch.settles(0)?,
        "a client whose descriptor was duplicated",
    ))
}

/// A descriptor handed to another process keeps the client when the first has closed it.
pub(super) fn scm_rights(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let (client, device, _) = allocate(context, PART)?;
    let (ours, theirs) = UnixStream::pair()?;
    let child = forked(|| {
        close_here(&ours);
        // What it inherited by the fork it closes: only the descriptor that it is sent is left.
        close_here(&client.file());
        let kept = receive_descriptor(theirs.as_raw_fd());
        let waited = (&theirs).read(&mut [0]);
        i32::from(kept.is_err() || waited.is_err())
    })?;
    drop(theirs);
    send_descriptor(ours.as_raw_fd(), client.file().as_raw_fd())?;
    drop(device);
    drop(client);
    std::thread::sleep(Duration::from_millis(300));
    let used = watch.used()?;
    drop(ours);
    let status = wait_for(child);
    let finding = two(
        used,
        PART,
        watch.settles(0)?,
        "a client whose descriptor another process has",
    );
    Ok(Finding {
        held: finding.held && status == 0,
        ..finding
    })
}

/// Room for one descriptor as ancillary data, aligned as the kernel wants it.
type Ancillary = [u64; 4];

fn message(byte: &mut libc::iovec, room: &mut Ancillary) -> libc::msghdr {
    // SAFETY: a zeroed msghdr is an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = byte;
    message.msg_iovlen = 1;
    message.msg_control = room.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE only computes.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
    message
}

pub(super) fn send_descriptor(socket: RawFd, file: RawFd) -> io::Result<()> {
    let (mut data, mut room) = ([0u8], Ancillary::default());
    let mut byte = libc::iovec {
        iov_base: data.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let message = message(&mut byte, &mut room);
    // SAFETY: the message's buffers are live and have room for one header with one descriptor, which is written first.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(header)
            .cast::<RawFd>()
            .write_unaligned(file);
        libc::sendmsg(socket, &message, 0)
    };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

pub(super) fn receive_descriptor(socket: RawFd) -> io::Result<OwnedFd> {
    let (mut data, mut room) = ([0u8], Ancillary::default());
    let mut byte = libc::iovec {
        iov_base: data.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut message = message(&mut byte, &mut room);
    // SAFETY: the message's buffers are live; the kernel writes at most their lengths. A header that is there with this
    // type carries a descriptor that the kernel has just made for this process.
    unsafe {
        if libc::recvmsg(socket, &mut message, 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = libc::CMSG_FIRSTHDR(&message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(OwnedFd::from_raw_fd(
            libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned(),
        ))
    }
}

/// Works in a second thread while the first one ends; the process ends with the finding.
pub(super) fn without_the_first_thread(
    context: &Context,
    name: &'static str,
    work: impl FnOnce(Context) -> Finding + Send + 'static,
) -> Outcome {
    let context = Context {
        node: context.node.clone(),
        quota: context.quota,
        words: Vec::new(),
    };
    std::thread::spawn(move || {
        let finding = work(context);
        print(&Line::Finding(Finding {
            name: name.into(),
            ..finding
        }));
        std::process::exit(0);
    });
    loop {
        // SAFETY: ends this thread alone; it holds nothing that another thread waits for.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// The first thread ends and the others go on: `/proc/PID` of the process is a zombie's from then on.
pub(super) fn leader_exit(context: &Context) -> Outcome {
    let leader = std::process::id();
    without_the_first_thread(context, "shape_leader_exit", move |context| {
        let state = || {
            std::fs::read_to_string(format!("/proc/self/task/{leader}/stat")).unwrap_or_default()
        };
        let until = Instant::now() + BACK;
        while !state().contains(") Z") && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let zombie = state().contains(") Z");
        let used = Watch::new(&context).and_then(|watch| {
            let (client, _device, memory) = allocate(&context, PART)?;
            let used = watch.used()?;
            client.free(memory)?;
            Ok((used, watch.settles(0)?))
        });
        match used {
            Ok((used, after)) => {
                let finding = two(
                    used,
                    PART,
                    after,
                    "memory of a process whose first thread has ended",
                );
                Finding {
                    held: finding.held && zombie,
                    ..finding
                }
            }
            Err(fault) => words(
                false,
                fault.to_string(),
                "1 GiB",
                "a process whose first thread has ended",
            ),
        }
    })
}
