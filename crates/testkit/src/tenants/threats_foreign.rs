//! Attacks that name another tenant, numbered as SECURITY.md numbers the threats.

use rm::{Decision, Foreign, Names, Status, class, ctrl, layout};

use super::neighbour::ask_neighbour;
use super::threats::words;
use super::{Context, Outcome};
use crate::outside::Neighbour;
use crate::raw::{Block, Client, Device, Fault, Uvm, checked, request};

/// Duplicates the neighbour's memory, which he has offered to everybody.
pub(super) fn threat_04(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let neighbour = ask_neighbour()?;
    let taken = client.duplicate(device.device, neighbour.client, neighbour.memory);
    let answer = taken.map_or_else(|fault| fault.to_string(), |_| "granted".into());
    Ok(words(
        taken == Err(Fault::NOT_PERMITTED),
        answer,
        &Fault::NOT_PERMITTED.to_string(),
        "RM_DUP_OBJECT",
    ))
}

/// Joins the neighbour's address space by naming his client in a device's parameters.
pub(super) fn threat_12(context: &Context) -> Outcome {
    use layout::device_alloc as l;
    let client = Client::open(&context.node)?;
    let own = client.first_device()?;
    let neighbour = ask_neighbour()?;
    let attempt = |field: usize| {
        let params = Device::params(&client, own.instance).with32(field, neighbour.client);
        client.alloc(client.root(), class::NV01_DEVICE_0, params)
    };
    let answers = [attempt(l::H_CLIENT_SHARE), attempt(l::H_TARGET_CLIENT)];
    let plain = client.alloc(
        client.root(),
        class::NV01_DEVICE_0,
        Device::params(&client, own.instance),
    );
    let held = answers
        .iter()
        .all(|answer| *answer == Err(Fault::NOT_PERMITTED))
        && plain != Err(Fault::NOT_PERMITTED);
    Ok(words(
        held,
        format!("{answers:?}"),
        "both refused with status 0x1b, and none that names nobody",
        format!("{plain:?}"),
    ))
}

/// A block of `size` bytes in which every field that can name a client names the neighbour's.
fn naming(neighbour: Neighbour, size: usize, foreign: &[Foreign]) -> Block {
    let mut block = Block::new(size);
    for field in foreign {
        let at = usize::from(field.offset);
        match field.names {
            Names::Client => block = block.with32(at, neighbour.client),
            Names::ClientArray { count, .. } => {
                block = block
                    .with32(usize::from(count), 1)
                    .with32(at, neighbour.client);
            }
            Names::Process => {}
        }
    }
    block
}

fn names_clients(foreign: &[Foreign]) -> bool {
    foreign.iter().any(|field| field.names != Names::Process)
}

/// The object of this client that a command's family is for.
fn target(client: &Client, device: &Device, command: u32) -> u32 {
    match command >> 16 {
        0x0000 => client.root(),
        0x0080 => device.device,
        _ => device.subdevice,
    }
}

/// Every field of every call, class and control of the table that can name another client, with the neighbour's in it.
pub(super) fn threat_14(context: &Context) -> Outcome {
    let (abi, neighbour) = (context.node.abi()?, ask_neighbour()?);
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    let mut granted = Vec::new();
    let mut tried = 0;
    let mut note = |name: &str, answer: Result<(), Fault>, expected: Option<Fault>| {
        tried += 1;
        let refused = match (answer, expected) {
            (Err(fault), Some(expected)) => fault == expected,
            (Err(_), None) => true,
            (Ok(()), _) => false,
        };
        if !refused {
            granted.push(format!("{name}: {answer:?}"));
        }
    };
    // What the table executes must be refused for the name alone; what it refuses anyway has a status of its own, which
    // must be the table's and not the driver's.
    let for_the_name = |decision: Decision| match decision {
        Decision::Execute => Some(Fault::NOT_PERMITTED),
        Decision::Refuse(status) => Some(Fault::Status(status.0)),
        Decision::InTenant | Decision::Pass | Decision::Absorb => None,
    };
    for entry in abi.escapes().filter(|entry| names_clients(entry.foreign)) {
        let (Some(&size), Some(&Some(status))) = (entry.sizes.first(), entry.status.first()) else {
            continue;
        };
        let mut block = naming(neighbour, usize::from(size), entry.foreign);
        if entry.nr == rm::nr::RM_SHARE {
            // The target is a client only where the type says so.
            block = block
                .with(layout::nvos57::TYPE, &3u16.to_le_bytes())
                .with32(layout::nvos57::H_CLIENT, client.root());
        }
        let number = request(entry.nr, block.len());
        let answer = context.node.ioctl(client.file(), number, &mut block);
        note(
            entry.name,
            answer.and_then(|_| checked(block.u32(usize::from(status)))),
            for_the_name(entry.decision),
        );
    }
    for entry in abi.classes().filter(|entry| names_clients(entry.foreign)) {
        let parent = if entry.id == class::NV01_DEVICE_0 {
            client.root()
        } else {
            device.subdevice
        };
        let answer = client.alloc(
            parent,
            entry.id,
            naming(neighbour, usize::from(entry.size), entry.foreign),
        );
        note(entry.name, answer.map(|_| ()), for_the_name(entry.decision));
    }
    for entry in abi.controls().filter(|entry| names_clients(entry.foreign)) {
        let mut params = naming(neighbour, usize::try_from(entry.size)?, entry.foreign);
        let answer = client.control(target(&client, &device, entry.cmd), entry.cmd, &mut params);
        note(entry.name, answer, for_the_name(entry.decision));
    }
    for entry in abi.uvm_calls().filter(|entry| names_clients(entry.foreign)) {
        let Some(status) = entry.status else { continue };
        let block = naming(neighbour, usize::from(entry.size), entry.foreign);
        note(
            entry.name,
            uvm.call(entry.request, block, usize::from(status))
                .map(|_| ()),
            None,
        );
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    let goes_on = ask_neighbour()?.finished > neighbour.finished;
    let held = granted.is_empty() && tried > 30 && goes_on;
    let measured = if granted.is_empty() {
        "none granted".to_owned()
    } else {
        granted.join("; ")
    };
    Ok(words(
        held,
        measured,
        "none granted",
        format!("{tried} calls, classes and controls; the neighbour runs: {goes_on}"),
    ))
}

/// Commands to the whole device.
pub(super) fn threat_15(context: &Context) -> Outcome {
    // PERF_BOOST is executed: it lasts as long as the client computes, and every CUDA program asks for it.
    const ABSORBED: [u32; 8] = [
        ctrl::NV2080_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION,
        ctrl::NV2080_GPU_RELEASE_COMPUTE_MODE_RESERVATION,
        ctrl::NV2080_RC_RELEASE_WATCHDOG_REQUESTS,
        ctrl::NV2080_RC_SOFT_DISABLE_WATCHDOG,
        ctrl::NV0080_PERF_CUDA_LIMIT_SET_CONTROL,
        ctrl::NV2080_TIMER_SET_GR_TICK_FREQ,
        ctrl::NV2080_MC_SERVICE_INTERRUPTS,
        ctrl::NV2080_THERMAL_SYSTEM_EXECUTE_V2,
    ];
    const REFUSED: [u32; 10] = [
        ctrl::NV2080_GPU_MARK_DEVICE_FOR_RESET,
        ctrl::NV2080_GPU_UNMARK_DEVICE_FOR_RESET,
        ctrl::NV2080_GPU_GET_RESET_STATUS,
        ctrl::NV2080_GPU_MARK_DEVICE_FOR_DRAIN_AND_RESET,
        ctrl::NV2080_GPU_UNMARK_DEVICE_FOR_DRAIN_AND_RESET,
        ctrl::NV2080_GPU_SET_POWER,
        ctrl::NV2080_PERF_SET_POWERSTATE,
        ctrl::NV2080_PERF_RATED_TDP_SET_CONTROL,
        ctrl::NV2080_GPU_SET_PARTITIONS,
        ctrl::NV506F_RESET_ISOLATED_CHANNEL,
    ];
    let abi = context.node.abi()?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let mut wrong = Vec::new();
    // A branch that does not have a command refuses it, which the tables' own tests see to.
    let known = |command: &u32| abi.control(*command).is_some();
    for command in ABSORBED.into_iter().filter(known) {
        let size = abi.control(command).map_or(0, |entry| entry.size as usize);
        // With a size that the driver refuses: success can only come from whoever did not ask it.
        let answer = client.control(
            target(&client, &device, command),
            command,
            &mut Block::new(size + 4),
        );
        if answer.is_err() {
            wrong.push(format!("{command:#x}: {answer:?}"));
        }
    }
    for command in REFUSED {
        let size = abi.control(command).map_or(0, |entry| entry.size as usize);
        let answer = client.control(
            target(&client, &device, command),
            command,
            &mut Block::new(size + 4),
        );
        let refusals = [Fault::NOT_PERMITTED, Fault::Status(Status::NOT_SUPPORTED.0)];
        if !refusals.iter().any(|&refusal| answer == Err(refusal)) {
            wrong.push(format!("{command:#x}: {answer:?}"));
        }
    }
    let measured = if wrong.is_empty() {
        "all".to_owned()
    } else {
        wrong.join("; ")
    };
    Ok(words(
        wrong.is_empty(),
        measured,
        "all",
        format!(
            "{} answered with success and not executed, {} refused",
            ABSORBED.len(),
            REFUSED.len()
        ),
    ))
}
