//! Attacks on memory and on the filter, numbered as SECURITY.md numbers the threats.

use std::io;

use rm::{Status, class, layout, nr, uvm};
use serde_json::Value;

use super::fill::human;
use super::neighbour::ask_neighbour;
use super::{Context, Outcome, bytes};
use crate::outside::Finding;
use crate::raw::{Answer, Block, Client, Device, Fault, Pages, Uvm, checked, request, system_call};
use crate::{GIB, KIB, MIB};

/// A finding of words.
pub(super) fn words(
    held: bool,
    measured: String,
    expected: &str,
    note: impl Into<String>,
) -> Finding {
    Finding {
        name: String::new(),
        held,
        measured: Value::from(measured),
        expected: Value::from(expected),
        note: note.into(),
    }
}

fn said(answer: &Answer) -> String {
    answer.map_or_else(|fault| fault.to_string(), |()| "granted".into())
}

/// Allocates, maps, frees the handle and unmaps, a thousand times, every third time by mapping over another mapping.
pub(super) fn threat_01(context: &Context) -> Outcome {
    const ROUNDS: u64 = 1000;
    const BASE: u64 = 0x2000_0000_0000;
    const SIZE: u64 = 2 * MIB;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    let space = uvm.add_device(&client, &device)?;
    let before = device.free_bytes(&client)?;
    let driver_before = context.driver_memory().map_or(0, |on| on[0]);
    let mut lowest = u64::MAX;
    for round in 0..ROUNDS {
        uvm.create_range(BASE, SIZE)?;
        let memory = device.alloc(&client, SIZE, Pages::Default)?;
        uvm.map(&space, &client, memory, BASE, SIZE)?;
        client.free(memory)?;
        lowest = lowest.min(before - device.free_bytes(&client)?);
        if round % 3 == 0 {
            let other = device.alloc(&client, SIZE, Pages::Default)?;
            uvm.map(&space, &client, other, BASE, SIZE)?;
            client.free(other)?;
            lowest = lowest.min(before - device.free_bytes(&client)?);
        }
        if round % 2 == 0 {
            uvm.unmap(&space, BASE, SIZE)?;
        }
        uvm.free(BASE, SIZE)?;
    }
    let left = before - device.free_bytes(&client)?;
    let driver = context
        .driver_memory()
        .map_or(left, |on| on[0].saturating_sub(driver_before));
    let note = format!(
        "{ROUNDS} rounds: {} charged while only a mapping held it, {} left at the end, {} by the driver's count",
        human(lowest),
        human(left),
        human(driver)
    );
    Ok(bytes(lowest, SIZE, left == 0 && driver == 0, note))
}

/// Lets a racing thread swap the flags of `UVM_INITIALIZE` after they were looked at.
pub(super) fn threat_02(context: &Context) -> Outcome {
    const DISABLE_HMM: u64 = 1;
    const MULTI_PROCESS_SHARING: u64 = 2;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let mut used = Vec::new();
    for flags in [
        0,
        MULTI_PROCESS_SHARING,
        DISABLE_HMM | MULTI_PROCESS_SHARING,
    ] {
        let file = Uvm::open_only(&context.node)?;
        file.initialize_swapped(DISABLE_HMM, flags)?;
        used.push(said(&file.register_gpu(&device)));
    }
    // A file that is not initialised yet must not be bound to somebody else's address space by asking.
    let late = Uvm::open_only(&context.node)?;
    let early = late.register_gpu(&device);
    late.initialize(0)?;
    let after = late.register_gpu(&device);
    let refused = used
        .iter()
        .all(|answer| *answer == Fault::Os(libc::EPERM).to_string());
    let note = format!(
        "uninitialised: {}; initialised as looked at: {}",
        said(&early),
        said(&after)
    );
    Ok(words(
        refused && early.is_err() && after.is_ok(),
        used.join(", "),
        "a file with swapped flags is of no use",
        note,
    ))
}

/// Asks for the flag under which UVM acts on the caller's address space, and for the call that always does.
pub(super) fn threat_03(context: &Context) -> Outcome {
    const MULTI_PROCESS_SHARING: u64 = 2;
    /// `UVM_POPULATE_PAGEABLE`: base@0 length@8 flags@16 rmStatus@20.
    const POPULATE_STATUS: usize = 20;
    let file = Uvm::open_only(&context.node)?;
    let sharing = file.initialize(MULTI_PROCESS_SHARING);
    file.initialize(0)?;
    let populate = file
        .call(
            uvm::POPULATE_PAGEABLE,
            Block::new(24).with64(8, 4 * KIB),
            POPULATE_STATUS,
        )
        .map(|_| ());
    let held = sharing == Err(Fault::Status(Status::NOT_SUPPORTED.0)) && populate.is_err();
    Ok(words(
        held,
        format!("{}, {}", said(&sharing), said(&populate)),
        "both refused",
        "MULTI_PROCESS_SHARING, UVM 71",
    ))
}

/// Lets a racing thread swap the class of `RM_ALLOC_MEMORY` from pinned pages to memory of others, then uses the handle.
/// A tenant that does this is ended, so the finding is printed only if it was not.
pub(super) fn threat_05(context: &Context) -> Outcome {
    use layout::{nvos02 as l, nvos02_with_fd as with_fd};
    const BASE: u64 = 0x2100_0000_0000;
    let class: u32 = context.word(0)?.parse()?;
    // From here on the start of the card holds somebody's memory.
    ask_neighbour()?;
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let uvm = Uvm::open(&context.node)?;
    let space = uvm.add_device(&client, &device)?;
    let page = vec![0u8; 8 * KIB as usize];
    let handle = client.fresh();
    let block = |class: u32, address: u64| {
        device
            .pin_block(&client, address, 4 * KIB)
            .with32(l::H_OBJECT_NEW, handle)
            .with32(l::H_CLASS, class)
    };
    let number = request(nr::RM_ALLOC_MEMORY, with_fd::SIZE);
    let page_start = (page.as_ptr() as u64).next_multiple_of(4 * KIB);
    let mut looked_at = block(class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR, page_start);
    if let Ok(answered) = system_call(device.file(), number, &mut looked_at) {
        return Err(format!("answered with {answered} and not run here").into());
    }
    // With 0xf3 the page holds parameters, and zeros mean the framebuffer from its start on: whoever allocated first has
    // his memory there.
    let mut used = block(class, page_start);
    context.node.natively(device.file(), number, &mut used)?;
    checked(used.u32(l::STATUS))?;
    uvm.create_range(BASE, 4 * KIB)?;
    let mapped = uvm.map(&space, &client, handle, BASE, 4 * KIB);
    std::thread::sleep(std::time::Duration::from_secs(1));
    Ok(words(
        class == class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR && mapped.is_ok(),
        said(&mapped),
        "the tenant is ended",
        "",
    ))
}

/// Thousands of allocations of one byte at each page size: the driver's own count is the slice's.
pub(super) fn threat_06(context: &Context) -> Outcome {
    const MANY: [(Pages, u64); 3] = [
        (Pages::Default, 10_000),
        (Pages::Huge, 500),
        (Pages::Huge512M, 10),
    ];
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let before = device.free_bytes(&client)?;
    let driver_before = context.driver_memory().map_or(0, |on| on[0]);
    let (mut expected, mut refused) = (0, String::new());
    for (pages, count) in MANY {
        for number in 0..count {
            match device.alloc(&client, 1, pages) {
                Ok(_) => expected += pages.size(),
                // A card need not have any of the largest.
                Err(fault) if pages == Pages::Huge512M && context.node.socket().is_none() => {
                    refused = format!("; page {} of 512 MiB: {fault}", number + 1);
                    break;
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    }
    let told = before - device.free_bytes(&client)?;
    let driver = context
        .driver_memory()
        .map_or(told, |on| on[0].saturating_sub(driver_before));
    client.free(client.root())?;
    let left = context
        .driver_memory()
        .map_or(0, |on| on[0].saturating_sub(driver_before));
    let note = format!(
        "the driver counts {}, {} after the client was freed{refused}",
        human(driver),
        human(left)
    );
    Ok(bytes(told, expected, driver == told && left == 0, note))
}

/// Installs a listener of its own, which as the newest filter would answer in the guard's place.
pub(super) fn threat_08(_context: &Context) -> Outcome {
    #[repr(C)]
    struct Program {
        len: u16,
        code: *const [u32; 2],
    }
    const SET_MODE_FILTER: libc::c_ulong = 1;
    const NEW_LISTENER: libc::c_ulong = 1 << 3;
    const TSYNC_ESRCH: libc::c_ulong = 1 << 4;
    /// One instruction, `return ALLOW`: code 6 in the low half of the first word, the verdict in the second.
    const ALLOW: [u32; 2] = [6, 0x7fff_0000];
    let program = Program {
        len: 1,
        code: &ALLOW,
    };
    let install = |flags: libc::c_ulong, program: *const Program| -> String {
        // SAFETY: the program and its one instruction outlive the call, in which the kernel copies them; for a null
        // pointer it says EFAULT.
        let fd = unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, program) };
        if fd < 0 {
            io::Error::last_os_error().to_string()
        } else {
            "granted".into()
        }
    };
    // The kernel itself refuses a second listener while the first lives, but looks at the program before: with none it
    // is the slice's filter that answers, and it answers the same when the first listener has died.
    let answers = [
        install(NEW_LISTENER, &program),
        install(NEW_LISTENER | TSYNC_ESRCH, std::ptr::null()),
        install(NEW_LISTENER, std::ptr::null()),
        install(0, &program),
    ];
    let busy = io::Error::from_raw_os_error(libc::EBUSY).to_string();
    let [listeners @ .., own_filter] = &answers;
    let held = listeners.iter().all(|answer| *answer == busy) && own_filter == "granted";
    Ok(words(
        held,
        answers.join(", "),
        "no listener; a filter of one's own is allowed",
        "seccomp(2)",
    ))
}

/// Calls whose number looks like another's: RM calls under a foreign type byte and with a high half, UVM words that end
/// in an RM number, and the call that wraps any other.
pub(super) fn threat_09(context: &Context) -> Outcome {
    let client = Client::open(&context.node)?;
    let device = client.first_device()?;
    let plain = request(nr::RM_ALLOC, layout::nvos64::SIZE);
    let odd = [
        plain & 0x3fff_00ff,
        plain & 0x3fff_00ff | 0x5a00,
        plain & 0x7fff_ffff,
    ];
    let mut answers = Vec::new();
    for number in odd {
        use layout::nvos64 as l;
        let mut params = Device::memory(&client, context.quota + GIB);
        let mut block = Block::new(l::SIZE)
            .with32(l::H_ROOT, client.root())
            .with32(l::H_OBJECT_PARENT, device.device)
            .with32(l::H_OBJECT_NEW, client.fresh())
            .with32(l::H_CLASS, class::NV01_MEMORY_LOCAL_USER)
            .with64(l::P_ALLOC_PARMS, params.address())
            .with32(l::PARAMS_SIZE, params.len() as u32);
        let answer = context
            .node
            .ioctl(client.file(), number, &mut block)
            .and_then(|_| checked(block.u32(l::STATUS)));
        answers.push(said(&answer));
    }
    let mut inner = Block::new(layout::nvos00::SIZE);
    let mut wrapped = Block::new(layout::xfer::SIZE)
        .with32(layout::xfer::CMD, u32::from(nr::RM_FREE))
        .with32(layout::xfer::SIZE_FIELD, inner.len() as u32)
        .with64(layout::xfer::PTR, inner.address());
    let xfer = system_call(
        client.file(),
        request(nr::XFER_CMD, wrapped.len()),
        &mut wrapped,
    );
    let xfer = xfer.map_err(|e| e.raw_os_error());
    // The passed words run in the tenant and work.
    let uvm = Uvm::open(&context.node)?;
    let group = layout::uvm_create_range_group::RM_STATUS;
    let passed = uvm.call(
        uvm::CREATE_RANGE_GROUP,
        Block::new(layout::uvm_create_range_group::SIZE),
        group,
    );
    let refused = answers
        .iter()
        .all(|answer| *answer == Fault::NO_MEMORY.to_string());
    let held = refused && xfer == Err(Some(libc::EINVAL)) && passed.is_ok();
    Ok(words(
        held,
        answers.join(", "),
        "each is charged as RM_ALLOC is",
        format!("XFER_CMD: {xfer:?}"),
    ))
}

/// What a tenant may still do, as root too.
pub(super) fn threat_11(_context: &Context) -> Outcome {
    /// SYS_ADMIN, SYS_PTRACE, SYS_RAWIO, SYS_MODULE, MKNOD, PERFMON, SYS_NICE, BPF, DAC_READ_SEARCH.
    const DANGEROUS: [u32; 9] = [21, 19, 17, 16, 27, 38, 23, 39, 2];
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| -> Result<u64, String> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let value =
            line.and_then(|line| u64::from_str_radix(line.trim_start_matches(':').trim(), 16).ok());
        value.ok_or_else(|| format!("no {name} in /proc/self/status"))
    };
    let mask = DANGEROUS.iter().fold(0, |mask, bit| mask | 1u64 << bit);
    let has = field("CapEff")? | field("CapPrm")? | field("CapInh")? | field("CapAmb")?;
    // What an ordinary user's bounding set holds, no_new_privs keeps out of reach.
    // SAFETY: geteuid takes nothing and cannot fail.
    let bounding = if unsafe { libc::geteuid() } == 0 {
        field("CapBnd")?
    } else {
        0
    };
    let no_new = field("NoNewPrivs")?;
    let held = (has | bounding) & mask == 0 && no_new == 1;
    let measured = format!(
        "{:#x} of them, no_new_privs {no_new}",
        (has | bounding) & mask
    );
    Ok(words(
        held,
        measured,
        "0x0 of them, no_new_privs 1",
        "capabilities that could leave a slice",
    ))
}
