//! Attacks on what lies between two looks: a mapping that comes with a fork, a client that goes while it is named.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::fill::human;
use super::shapes::{Watch, forked, wait_for};
use super::threats::words;
use super::{Context, Outcome, bytes};
use crate::raw::{Answer, Client, Fault, Pages, Uvm};
use crate::{GIB, MIB};

/// Longer than two audits.
const AUDITS: Duration = Duration::from_millis(3500);

/// A child made by fork inherits the managed mappings of its parent, which the driver disables in it. It makes calls of
/// its own, for longer than two audits: nobody may take what it inherited for memory that was not charged.
pub(super) fn fork_managed(context: &Context) -> Outcome {
    let watch = Watch::new(context)?;
    let uvm = Uvm::open(&context.node)?;
    let managed = uvm.managed(GIB)?;
    let child = forked(|| {
        let works = || -> Answer {
            let client = Client::open(&context.node)?;
            let device = client.first_device()?;
            let until = Instant::now() + AUDITS;
            while Instant::now() < until {
                let memory = device.alloc(&client, MIB, Pages::Default)?;
                client.free(memory)?;
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        };
        i32::from(works().is_err())
    })?;
    let status = wait_for(child);
    let used = watch.used()?;
    drop(managed);
    let after = watch.settles(0)?;
    Ok(bytes(
        used,
        GIB,
        status == 0 && after == 0,
        format!("the child ended with {status}; {} left", human(after)),
    ))
}

/// What a child inherited covers nothing that it maps there afterwards. As a racing thread would, it first asks for a
/// mapping of another file at that address, and then has the UVM file there, by a call that is not looked at (which only
/// a stand-in takes). A tenant that does this is ended, so the finding is printed only if it was not.
pub(super) fn fork_replaces_managed(context: &Context) -> Outcome {
    let uvm = Uvm::open(&context.node)?;
    let managed = uvm.managed(GIB)?;
    let child = forked(|| {
        let replaced = || -> Result<(), Box<dyn std::error::Error>> {
            let client = Client::open(&context.node)?;
            client.first_device()?;
            let own = Uvm::open(&context.node)?;
            let other = std::fs::File::open("/proc/self/exe")?;
            let read_write = libc::PROT_READ | libc::PROT_WRITE;
            for (file, protection) in [(other.as_fd(), read_write), (own.file(), libc::PROT_READ)] {
                // SAFETY: in the place of the mapping that was inherited, which nobody has a reference into.
                unsafe {
                    libc::mmap(
                        managed.address as *mut libc::c_void,
                        managed.length as usize,
                        protection,
                        libc::MAP_SHARED | libc::MAP_FIXED,
                        file.as_raw_fd(),
                        managed.address as libc::off_t,
                    )
                };
            }
            let until = Instant::now() + AUDITS;
            while Instant::now() < until {
                Client::open(&context.node)?;
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        };
        i32::from(replaced().is_err())
    })?;
    let status = wait_for(child);
    Ok(words(
        false,
        format!("the child ended with {status}"),
        "the tenant is ended",
        "a mapping in the place of an inherited one",
    ))
}

/// Processes are killed while they map managed memory: no charge is entered for one whose end was entered before.
pub(super) fn killed_while_mapping(context: &Context) -> Outcome {
    const ROUNDS: u64 = 400;
    let watch = Watch::new(context)?;
    for round in 0..ROUNDS {
        let child = forked(|| {
            let map = || -> Answer {
                let uvm = Uvm::open(&context.node)?;
                // Each fits only when the one before is given back: the guard looks who has ended while it serves the call.
                loop {
                    drop(uvm.managed(context.quota / 5 * 3)?);
                }
            };
            i32::from(map().is_err())
        })?;
        std::thread::sleep(Duration::from_micros(1500 + 13 * round));
        // SAFETY: a child of ours that has not been waited for.
        unsafe { libc::kill(child, libc::SIGKILL) };
        wait_for(child);
    }
    let left = watch.settles(0)?;
    Ok(bytes(left, 0, true, format!("{ROUNDS} processes killed")))
}

/// A handle is device memory, then nothing, then pinned pages that were made past the guard, over and over, while another
/// thread gives it names and maps it: whatever it is in that moment, its class was looked at.
pub(super) fn handle_changes(context: &Context) -> Outcome {
    const ROUNDS: u64 = 1500;
    const BASE: u64 = 0x2000_0000_0000;
    let watch = Watch::new(context)?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    let space = uvm.add_device(&client, &device)?;
    uvm.create_range(BASE, MIB)?;
    let (handle, over) = (client.fresh(), AtomicBool::new(false));
    let page = vec![1u8; 8192];
    let page = (page.as_ptr() as u64).next_multiple_of(4096);
    let [changed, named] = std::thread::scope(|scope| -> Result<[u64; 2], Fault> {
        let namer = scope.spawn(|| {
            let mut named = 0;
            while !over.load(Ordering::Relaxed) {
                if let Ok(other) = client.duplicate(device.device, client.root(), handle) {
                    let _freed = client.free(other);
                    named += 1;
                }
                named += u64::from(uvm.map(&space, &client, handle, BASE, 4096).is_ok());
            }
            named
        });
        let change = || -> Answer {
            device.alloc_as(&client, handle, MIB, Pages::Default)?;
            client.free(handle)?;
            device.pin(&client, handle, page, 4096)?;
            client.free(handle)
        };
        let changed = (0..ROUNDS).try_for_each(|_| change());
        over.store(true, Ordering::Relaxed);
        let named = namer.join().unwrap_or_default();
        changed.map(|()| [ROUNDS, named])
    })?;
    uvm.free(BASE, MIB)?;
    let left = watch.settles(0)?;
    let driver = context.driver_memory().map_or(left, |on| on[0]);
    let note = format!("{changed} changes, named {named} times");
    Ok(bytes(left.max(driver), 0, named > 0, note))
}
