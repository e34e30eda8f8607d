//! Programs that a limit inside the process would never see.

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::fill::{fill, human, refusal};
use super::{Context, Outcome, bytes};
use crate::raw::{Client, Fault, Node};

/// Enough to see that nothing holds.
const ENOUGH: u64 = 2;

/// Unsets every variable and executes itself anew: nothing of the environment is left to hang a limit on.
pub(super) fn env_unset_still_limited(context: &Context) -> Outcome {
    const AGAIN: &str = "again";
    if context.word(0) != Ok(AGAIN) {
        let socket = context
            .node
            .socket()
            .map(|s| s.to_string_lossy().into_owned())
            .unwrap_or_default();
        let quota = context.quota.to_string();
        let failed = Command::new("/proc/self/exe")
            .args([
                "__tenant",
                "env_unset_still_limited",
                &quota,
                AGAIN,
                &socket,
            ])
            .env_clear()
            .exec();
        return Err(failed.into());
    }
    let node = match context.word(1)? {
        "" => Node::from_environment(),
        socket => Node::simulated(socket.as_ref()),
    };
    let left = std::env::vars_os().count();
    let client = Client::open(&node)?;
    let device = client.first_device()?;
    let filled = fill(&client, &device, context.quota * ENOUGH);
    let driver = context.driver_memory().map(|on| on[0]);
    let note = format!(
        "with {left} variables in its environment the program allocated {}, then {}",
        human(filled.bytes),
        refusal(filled.refused)
    );
    let held = left == 0 && filled.refused == Some(Fault::NO_MEMORY);
    Ok(bytes(
        driver.unwrap_or(filled.bytes).max(filled.bytes),
        context.quota,
        held,
        note,
    ))
}

/// Hands open device files to a program without a dynamic linker, which no preloaded library reaches. The words are its
/// path.
pub(super) fn static_binary_limited(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let before = device.free_bytes(&client)?;
    let control = context.node.open(crate::raw::File::Control)?;
    keep_over_exec(&control)?;
    let output = Command::new(context.word(0)?)
        .args([
            control.as_raw_fd().to_string(),
            device.instance.to_string(),
            (context.quota * ENOUGH).to_string(),
        ])
        .stderr(Stdio::inherit())
        .output()?;
    // The static program has ended, but its client hangs on the file, which is still open here.
    let driver = context.driver_memory().map(|on| on[0]);
    let told = before.saturating_sub(device.free_bytes(&client)?);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace();
    let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
    let (Some(reached), Some(status)) = (number(), number()) else {
        return Err(format!(
            "the static program ended with {} and said {text:?}",
            output.status
        )
        .into());
    };
    let note = format!(
        "a static program with inherited device files allocated {}, then status {status:#x}; the slice counts {}",
        human(reached),
        human(told)
    );
    let held = status == u64::from(rm::Status::NO_MEMORY.0) && told == reached;
    Ok(bytes(
        driver.unwrap_or(reached).max(reached),
        context.quota,
        held,
        note,
    ))
}

fn keep_over_exec(file: &std::os::fd::OwnedFd) -> std::io::Result<()> {
    // SAFETY: changes a flag of a descriptor that we own.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}
