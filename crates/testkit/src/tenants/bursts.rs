//! Tenants that take the compute engine in the moments in which nobody has looked at them yet: right after a context's
//! birth, and right before a process ends. Words as in `compute`.

use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use super::compute::{Meter, Part, Raw, looked_after};
use super::{Context, Outcome};
use crate::raw::{Answer, Channel, Client, Fault, Uvm};

/// Makes a context, has one kernel run in it, frees it, and begins anew. Words: `ms`, `seconds`, `at_once`.
pub(super) fn newborn(context: &Context) -> Outcome {
    let (kernel_ns, at_once) = (context.kernel_ns()?, context.count("at_once")?);
    let until = Instant::now() + context.seconds()?;
    let mut meter = Meter::new(kernel_ns);
    let (sender, finished) = mpsc::channel();
    let one = |done: &mpsc::Sender<()>| -> Answer {
        let client = Client::open(&context.node)?;
        let device = client.first_device()?;
        let uvm = Uvm::open(&context.node)?;
        let space = uvm.add_device(&client, &device)?;
        while Instant::now() < until {
            let channel = Channel::open(&client, &device, space.vaspace)?;
            channel.spin(&client, kernel_ns)?;
            client.free(channel.group)?;
            // Nobody listens once another thread has failed.
            let _sent = done.send(());
        }
        Ok(())
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..at_once)
            .map(|_| {
                let sender = sender.clone();
                scope.spawn(move || one(&sender))
            })
            .collect();
        drop(sender);
        for () in finished {
            meter.done(1);
        }
        let mut ended = running.into_iter().map(thread::ScopedJoinHandle::join);
        ended.try_for_each(|ended| ended.unwrap_or(Err(Fault::Os(libc::EIO))))
    })?;
    meter.end(format!("{at_once} contexts at a time, each for one kernel"))
}

/// Processes of many contexts each. One context of them runs alone, until its slice is that of the whole tenant; then all
/// run, and the process ends before it has to pay for that. Words: `ms`, `seconds`, `contexts`, `alone`, `together`.
pub(super) fn burster(context: &Context) -> Outcome {
    let until = Instant::now() + context.seconds()?;
    let mut lives = 0;
    while Instant::now() < until {
        if !Part::that(|| life(context))?.wait() {
            return Err("a life has failed".into());
        }
        lives += 1;
    }
    looked_after(format!("{lives} lives"))
}

fn life(context: &Context) -> Result<(), Box<dyn std::error::Error>> {
    let (kernel_ns, contexts) = (context.kernel_ns()?, context.count("contexts")?);
    let (alone, together) = (
        context.milliseconds("alone", 160.0)?,
        context.milliseconds("together", 40.0)?,
    );
    // It ends with its process, whatever runs: what waits for its turn is not waited for.
    let begin = |raw: Raw| {
        thread::spawn(move || while raw.run(kernel_ns).is_ok() {});
    };
    begin(Raw::open(context, Channel::open)?);
    let others: Answer<Vec<Raw>> = (1..contexts)
        .map(|_| Raw::open(context, Channel::open))
        .collect();
    let others = others?;
    thread::sleep(alone);
    others.into_iter().for_each(begin);
    thread::sleep(together);
    Ok(())
}
