//! Kills a process at one of its steps: its n-th entry into the kernel, or return from it. Runs outside a slice.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;

use super::shapes::Watch;
use super::{Context, Outcome, bytes};
use crate::MIB;
use crate::raw::{Client, Pages, Uvm};

/// Set in the signal of a stop at a system call (PTRACE_O_TRACESYSGOOD).
const AT_SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;

fn trace(request: libc::c_uint, process: libc::pid_t, data: i64) -> io::Result<()> {
    // SAFETY: ptrace(2) with requests that read and write no memory of ours.
    if unsafe { libc::ptrace(request, process, 0, data) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Waits for the next stop of anything traced; `None`: nothing is left.
fn next_stop() -> Option<(libc::pid_t, i32)> {
    let mut status = 0;
    // SAFETY: `status` is live.
    let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL) };
    (thread > 0).then_some((thread, status))
}

/// Lets everything go on until the n-th step of any thread, and kills the process there; how many steps there were.
fn until_step(process: libc::pid_t, n: u64) -> u64 {
    let mut steps = 0;
    while let Some((thread, status)) = next_stop() {
        if !libc::WIFSTOPPED(status) {
            continue;
        }
        let signal = libc::WSTOPSIG(status);
        let event = status >> 16 != 0;
        if signal == AT_SYSTEM_CALL {
            steps += 1;
            if steps == n {
                // SAFETY: kill(2) with numbers.
                unsafe { libc::kill(process, libc::SIGKILL) };
                while next_stop().is_some() {}
                return steps;
            }
        }
        let deliver = if event || signal == AT_SYSTEM_CALL || signal == libc::SIGTRAP {
            0
        } else {
            signal
        };
        // It may have been killed in this moment.
        let _gone = trace(libc::PTRACE_SYSCALL, thread, i64::from(deliver));
    }
    steps
}

/// Words: `attach`, the process, the step; or `spawn`, the step, a command. Says `attached`, and at the end how many steps
/// there were: fewer, if the process has ended by itself.
pub(super) fn killer(context: &Context) -> Outcome {
    const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
    let (n, steps) = match context.word(0)? {
        "attach" => {
            let (process, n): (i32, u64) = (context.word(1)?.parse()?, context.word(2)?.parse()?);
            for entry in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
                let thread = entry.file_name().to_str().and_then(|n| n.parse().ok());
                let thread = thread.ok_or("a thread's number")?;
                trace(libc::PTRACE_SEIZE, thread, i64::from(OPTIONS))?;
                trace(libc::PTRACE_INTERRUPT, thread, 0)?;
            }
            println!("attached");
            (n, until_step(process, n))
        }
        "spawn" => {
            let n: u64 = context.word(1)?.parse()?;
            let command: Vec<CString> = context.words[2..]
                .iter()
                .map(|word| CString::new(std::ffi::OsStr::new(word).as_bytes()))
                .collect::<Result<_, _>>()?;
            let mut arguments: Vec<_> = command.iter().map(|word| word.as_ptr()).collect();
            arguments.push(std::ptr::null());
            // SAFETY: this process has one thread.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: traced by the parent from here on; the arguments are terminated strings that live, and the
                // list ends with null. What follows is reached only if nothing could be executed.
                unsafe {
                    libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                    libc::execvp(arguments[0], arguments.as_ptr());
                    libc::_exit(127)
                }
            }
            // The stop at execve.
            next_stop();
            trace(
                libc::PTRACE_SETOPTIONS,
                child,
                i64::from(libc::PTRACE_O_TRACESYSGOOD),
            )?;
            trace(libc::PTRACE_SYSCALL, child, 0)?;
            println!("attached");
            (n, until_step(child, n))
        }
        other => return Err(format!("killer: {other}?").into()),
    };
    Ok(bytes(steps, n, true, "steps"))
}

/// Makes one call of each sort that changes who holds memory. Waits for a line before, and for the end of its input
/// afterwards.
pub(super) fn step_target(context: &Context) -> Outcome {
    const BASE: u64 = 0x2000_0000_0000;
    println!("ready");
    io::stdin().read_line(&mut String::new())?;
    let watch = Watch::new(context)?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    let space = uvm.add_device(&client, &device)?;
    let memory = device.alloc(&client, MIB, Pages::Default)?;
    let alias = client.duplicate(device.device, client.root(), memory)?;
    uvm.create_range(BASE, MIB)?;
    uvm.map(&space, &client, memory, BASE, MIB)?;
    crate::raw::Channel::open(&client, &device, space.vaspace)?;
    let managed = uvm.managed(2 * MIB)?;
    device.heap_alloc(&client, MIB)?;
    let target = context.node.open(crate::raw::File::Control)?;
    let export = std::os::fd::AsFd::as_fd(&target);
    client.export(device.device, memory, export)?;
    client.import(device.device, export)?;
    client.free(memory)?;
    client.free(alias)?;
    uvm.free(BASE, MIB)?;
    drop(managed);
    watch.used()?;
    client.free(client.root())?;
    println!("done");
    io::Read::read_to_end(&mut io::stdin(), &mut Vec::new())?;
    std::process::exit(0)
}
