//! What must be true of every table: sorted, complete, consistent with the public headers and with what real programs
//! call.

use std::collections::HashMap;

use rm::{Abi, Account, Answer, Charge, Count, Decision, Foreign, Kind, Names, Status, for_driver};

const LAYOUT: &str = include_str!("../layouts/580.txt");
const PROGRAMS: &str = include_str!("data/cuda-and-nvidia-smi.txt");

/// UVM calls that need no notification: they act on the caller's own addresses and take no memory that is not charged
/// already. Adding one here needs such a reason in its row.
const PASSED: [u32; 13] = [23, 24, 31, 42, 43, 44, 45, 46, 47, 51, 53, 72, 73];

fn abi() -> &'static Abi {
    for_driver("580.159.04").expect("branch 580").abi
}

fn number(text: &str) -> u32 {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).expect("hexadecimal"),
        None => text.parse().expect("decimal"),
    }
}

/// The words of every line of `text` that starts with `kind`.
fn lines<'a>(
    text: &'static str,
    kind: &'a str,
) -> impl Iterator<Item = Vec<&'static str>> + use<'a> {
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<&'static str>>())
        .filter(move |words| words.first().is_some_and(|first| *first == kind))
}

/// The header's `(structure, bytes)` of every number of `kind`.
fn blocks(kind: &str) -> HashMap<u32, Vec<(&'static str, u32)>> {
    let mut found = HashMap::<u32, Vec<_>>::new();
    for words in lines(LAYOUT, kind) {
        found
            .entry(number(words[1]))
            .or_default()
            .push((words[2], number(words[3])));
    }
    found
}

/// Offsets of the fields of `kind` (client, pointer, fd) in a structure.
fn fields(kind: &str, structure: &str) -> Vec<u16> {
    let mut offsets: Vec<u16> = lines(LAYOUT, kind)
        .filter(|words| words[1] == structure)
        .map(|words| words[3].parse().expect("offset"))
        .collect();
    offsets.sort_unstable();
    offsets
}

fn reaches_the_driver(decision: Decision) -> bool {
    matches!(
        decision,
        Decision::Execute | Decision::InTenant | Decision::Pass
    )
}

#[test]
fn tables_are_sorted_and_every_number_stands_once() {
    let abi = abi();
    assert!(abi.escapes().is_sorted_by(|a, b| a.nr < b.nr));
    assert!(abi.uvm_calls().is_sorted_by(|a, b| a.request < b.request));
    assert!(abi.classes().is_sorted_by(|a, b| a.id < b.id));
    assert!(abi.controls().is_sorted_by(|a, b| a.cmd < b.cmd));
}

#[test]
fn look_ups_find_every_entry_and_nothing_else() {
    let abi = abi();
    for entry in abi.escapes() {
        assert_eq!(abi.escape(entry.nr).unwrap().name, entry.name);
    }
    for entry in abi.uvm_calls() {
        assert_eq!(abi.uvm(entry.request).unwrap().name, entry.name);
    }
    for entry in abi.classes() {
        assert_eq!(abi.class(entry.id).unwrap().name, entry.name);
    }
    for entry in abi.controls() {
        assert_eq!(abi.control(entry.cmd).unwrap().name, entry.name);
    }
    assert!(abi.escape(0).is_none() && abi.uvm(8).is_none());
    assert!(abi.class(0xffff_ffff).is_none() && abi.control(0x2080_1304).is_none());
}

#[test]
fn every_entry_says_its_name_and_why() {
    let abi = abi();
    let whys = (abi.escapes().map(|entry| (entry.name, entry.why)))
        .chain(abi.uvm_calls().map(|entry| (entry.name, entry.why)))
        .chain(abi.classes().map(|entry| (entry.name, entry.why)))
        .chain(abi.controls().map(|entry| (entry.name, entry.why)));
    let mut names = std::collections::HashSet::new();
    for (name, why) in whys {
        assert!(names.insert(name), "{name} twice");
        assert!(
            why.len() >= 8 && why.is_ascii() && !why.ends_with('.'),
            "{name}: {why}"
        );
    }
}

#[test]
fn what_is_not_done_charges_nothing() {
    let abi = abi();
    let entries = (abi
        .escapes()
        .map(|entry| (entry.name, entry.decision, entry.account)))
    .chain(
        abi.uvm_calls()
            .map(|entry| (entry.name, entry.decision, entry.account)),
    )
    .chain(
        abi.classes()
            .map(|entry| (entry.name, entry.decision, entry.account)),
    )
    .chain(
        abi.controls()
            .map(|entry| (entry.name, entry.decision, entry.account)),
    );
    for (name, decision, account) in entries {
        if decision != Decision::Execute {
            assert_eq!(
                account,
                Account::Free,
                "{name}: only what the helper executes can be charged"
            );
        }
    }
}

#[test]
fn device_memory_is_charged() {
    let abi = abi();
    for entry in abi
        .classes()
        .filter(|entry| reaches_the_driver(entry.decision))
    {
        let charged = match entry.kind {
            Kind::ChannelGroup | Kind::Channel | Kind::VaSpace | Kind::Engine => {
                Account::Charges(Charge::Measured)
            }
            Kind::Memory => match entry.id {
                0x40 => Account::Charges(Charge::MemoryAllocation),
                0xf8 | 0xfd => Account::Shares,
                // Host memory, and address space.
                0x3e | 0x42 | 0x50a0 => Account::Free,
                other => panic!("memory class {other:#x} has no accounting decision in this test"),
            },
            Kind::Client | Kind::Device | Kind::Subdevice | Kind::Event | Kind::Other => {
                Account::Free
            }
        };
        assert_eq!(entry.account, charged, "{}", entry.name);
    }
    assert_eq!(
        abi.escape(0x4a).unwrap().account,
        Account::Charges(Charge::VidHeap)
    );
    assert_eq!(abi.escape(0x34).unwrap().account, Account::Shares);
    assert_eq!(abi.escape(0x29).unwrap().account, Account::Releases);
    assert_eq!(abi.uvm(33).unwrap().account, Account::Shares);
    assert_eq!(abi.uvm(34).unwrap().account, Account::Releases);
    assert_eq!(abi.uvm(66).unwrap().account, Account::Releases);
    for request in [26, 30, 38] {
        assert_eq!(
            abi.uvm(request).unwrap().account,
            Account::Free,
            "UVM {request} gives nothing back"
        );
    }
}

#[test]
fn only_listed_calls_pass_without_a_notification() {
    let abi = abi();
    let passed: Vec<u32> = abi
        .uvm_calls()
        .filter(|entry| entry.decision == Decision::Pass)
        .map(|entry| entry.request)
        .collect();
    assert_eq!(passed, PASSED);
    assert!(abi.escapes().all(|entry| entry.decision != Decision::Pass));
    assert!(
        abi.classes()
            .all(|entry| entry.decision == Decision::Execute
                || matches!(entry.decision, Decision::Refuse(_)))
    );
    assert!(
        abi.controls()
            .all(|entry| !matches!(entry.decision, Decision::Pass | Decision::InTenant))
    );
    let in_tenant: Vec<u8> = abi
        .escapes()
        .filter(|entry| entry.decision == Decision::InTenant)
        .map(|entry| entry.nr)
        .collect();
    assert_eq!(in_tenant, [0x27]);
    let in_tenant: Vec<u32> = abi
        .uvm_calls()
        .filter(|entry| entry.decision == Decision::InTenant)
        .map(|entry| entry.request)
        .collect();
    assert_eq!(in_tenant, [75, 0x3000_0001]);
}

#[test]
fn uvm_requests_are_told_from_frontend_numbers_by_the_whole_word() {
    let abi = abi();
    // Low bytes that mean one thing to the frontend and another to UVM.
    for nr in [39, 42, 43, 53, 65, 78, 79_u8] {
        let escape = abi.escape(nr).expect("a frontend number");
        let uvm = abi.uvm(nr.into()).expect("a UVM request");
        assert_ne!(escape.name, uvm.name);
        // The frontend's request as programs write it: direction, size, type byte 'F', number.
        for size in escape.sizes {
            let request = 3 << 30 | u32::from(*size) << 16 | 0x46 << 8 | u32::from(nr);
            assert!(
                abi.uvm(request).is_none(),
                "{} is no UVM request",
                escape.name
            );
        }
    }
    for request in PASSED {
        assert!(abi.uvm(request | 0x4600).is_none());
    }
}

#[test]
fn sizes_are_the_headers() {
    let abi = abi();
    let header = blocks("escape");
    for entry in abi
        .escapes()
        .filter(|entry| !rm::UNSIZED_ESCAPES.contains(&entry.nr) && !entry.sizes.is_empty())
    {
        let sizes: Vec<u32> = header[&entry.nr.into()]
            .iter()
            .map(|(_, size)| *size)
            .collect();
        assert_eq!(
            entry
                .sizes
                .iter()
                .map(|size| u32::from(*size))
                .collect::<Vec<_>>(),
            sizes,
            "{}",
            entry.name
        );
    }
    for nr in rm::UNSIZED_ESCAPES {
        assert!(!abi.escape(*nr).unwrap().sizes.is_empty());
    }
    let header = blocks("uvm");
    for entry in abi.uvm_calls() {
        assert_eq!(
            u32::from(entry.size),
            header[&entry.request][0].1,
            "{}",
            entry.name
        );
    }
    let header = blocks("class");
    for entry in abi.classes() {
        assert_eq!(
            u32::from(entry.size),
            header[&entry.id][0].1,
            "{}",
            entry.name
        );
    }
    let header = blocks("control");
    let seen: HashMap<u32, u32> = lines(PROGRAMS, "control")
        .map(|words| (number(words[1]), number(words[2])))
        .collect();
    for entry in abi.controls() {
        // The firmware's own controls are in no header: there the size is what nvidia-smi sent.
        let size = header
            .get(&entry.cmd)
            .map_or_else(|| seen.get(&entry.cmd).copied(), |block| Some(block[0].1));
        assert_eq!(Some(entry.size), size, "{}", entry.name);
        assert_eq!(
            header.contains_key(&entry.cmd),
            !entry.name.starts_with("undocumented"),
            "{}",
            entry.name
        );
    }
}

#[test]
fn what_cuda_and_nvidia_smi_call_is_there_and_not_refused() {
    let abi = abi();
    let mut seen = 0;
    for words in lines(PROGRAMS, "escape") {
        let entry = abi
            .escape(number(words[1]).try_into().unwrap())
            .unwrap_or_else(|| panic!("{words:?}"));
        assert!(
            entry.sizes.contains(&words[2].parse().unwrap()),
            "{words:?}"
        );
        assert!(!matches!(entry.decision, Decision::Refuse(_)), "{words:?}");
        seen += 1;
    }
    for words in lines(PROGRAMS, "uvm") {
        let entry = abi
            .uvm(number(words[1]))
            .unwrap_or_else(|| panic!("{words:?}"));
        assert!(!matches!(entry.decision, Decision::Refuse(_)), "{words:?}");
        seen += 1;
    }
    for words in lines(PROGRAMS, "class") {
        let entry = abi
            .class(number(words[1]))
            .unwrap_or_else(|| panic!("{words:?}"));
        assert!(!matches!(entry.decision, Decision::Refuse(_)), "{words:?}");
        seen += 1;
    }
    for words in lines(PROGRAMS, "control") {
        let entry = abi
            .control(number(words[1]))
            .unwrap_or_else(|| panic!("{words:?}"));
        assert_eq!(entry.size, number(words[2]), "{words:?}");
        assert!(!matches!(entry.decision, Decision::Refuse(_)), "{words:?}");
        seen += 1;
    }
    assert_eq!(
        seen,
        PROGRAMS
            .lines()
            .filter(|line| !line.starts_with('#'))
            .count()
    );
}

/// Whether `foreign` lies in a block of `size` bytes, its length field too.
fn inside(foreign: &Foreign, size: u32) -> bool {
    let (offset, size) = (u32::from(foreign.offset), size);
    match foreign.names {
        Names::Client | Names::Process => offset + 4 <= size,
        Names::ClientArray { count, max } => {
            max > 0 && offset + 4 * u32::from(max) <= size && u32::from(count) + 4 <= size
        }
    }
}

#[test]
fn fields_lie_inside_their_blocks() {
    let abi = abi();
    for entry in abi.escapes() {
        assert_eq!(entry.sizes.len(), entry.status.len(), "{}", entry.name);
        for (size, status) in entry.sizes.iter().zip(entry.status) {
            assert!(
                status.is_none_or(|status| status + 4 <= *size),
                "{}",
                entry.name
            );
            assert!(entry.fd.is_none_or(|fd| fd + 4 <= *size), "{}", entry.name);
            assert!(
                entry
                    .foreign
                    .iter()
                    .all(|foreign| inside(foreign, (*size).into())),
                "{}",
                entry.name
            );
        }
    }
    for entry in abi.uvm_calls() {
        assert!(
            entry.status.is_none_or(|status| status + 4 <= entry.size),
            "{}",
            entry.name
        );
        assert!(
            entry
                .foreign
                .iter()
                .all(|foreign| inside(foreign, entry.size.into())),
            "{}",
            entry.name
        );
    }
    for entry in abi.classes() {
        assert!(
            entry
                .foreign
                .iter()
                .all(|foreign| inside(foreign, entry.size.into())),
            "{}",
            entry.name
        );
    }
    for entry in abi.controls() {
        assert!(
            entry
                .foreign
                .iter()
                .all(|foreign| inside(foreign, entry.size)),
            "{}",
            entry.name
        );
        assert!(
            entry.fd.is_none_or(|fd| u32::from(fd) + 4 <= entry.size),
            "{}",
            entry.name
        );
        for pointer in entry.pointers {
            assert!(
                u32::from(pointer.offset) + 8 <= entry.size && pointer.offset % 8 == 0,
                "{}",
                entry.name
            );
            assert!(
                pointer.element > 0 && pointer.max <= 1 << 20,
                "{}",
                entry.name
            );
            match pointer.count {
                Count::Field(at) | Count::Square(at) => {
                    assert!(u32::from(at) + 4 <= entry.size, "{}", entry.name);
                    assert!(pointer.max >= pointer.element.into(), "{}", entry.name);
                }
                Count::Fixed(count) => assert!(
                    count * u32::from(pointer.element) <= pointer.max,
                    "{}",
                    entry.name
                ),
            }
        }
    }
}

/// Offsets that `foreign` covers.
fn offsets(foreign: &[Foreign]) -> Vec<u16> {
    foreign.iter().map(|foreign| foreign.offset).collect()
}

#[test]
fn every_client_handle_in_a_block_that_reaches_the_driver_is_checked() {
    let abi = abi();
    let header = blocks("escape");
    for entry in abi
        .escapes()
        .filter(|entry| reaches_the_driver(entry.decision))
    {
        for (structure, _) in header.get(&entry.nr.into()).into_iter().flatten() {
            for offset in fields("client", structure) {
                // The driver itself compares the leading client with the file, except in these three.
                let compared = offset == 0 && !matches!(entry.nr, 0x5e | 206 | 207);
                assert!(
                    compared || offsets(entry.foreign).contains(&offset),
                    "{} @{offset}",
                    entry.name
                );
            }
        }
    }
    let header = blocks("uvm");
    for entry in abi
        .uvm_calls()
        .filter(|entry| reaches_the_driver(entry.decision))
    {
        assert_eq!(
            offsets(entry.foreign),
            fields("client", header[&entry.request][0].0),
            "{}",
            entry.name
        );
    }
    let header = blocks("class");
    for entry in abi
        .classes()
        .filter(|entry| reaches_the_driver(entry.decision))
    {
        assert_eq!(
            offsets(entry.foreign),
            fields("client", header[&entry.id][0].0),
            "{}",
            entry.name
        );
    }
    let header = blocks("control");
    for entry in abi
        .controls()
        .filter(|entry| reaches_the_driver(entry.decision))
    {
        let Some(block) = header.get(&entry.cmd) else {
            continue;
        };
        for offset in fields("client", block[0].0) {
            assert!(
                offsets(entry.foreign).contains(&offset),
                "{} @{offset}",
                entry.name
            );
        }
    }
}

#[test]
fn every_pointer_and_descriptor_in_a_control_that_reaches_the_driver_is_translated() {
    let header = blocks("control");
    let mut seen = 0;
    for entry in abi()
        .controls()
        .filter(|entry| reaches_the_driver(entry.decision))
    {
        let Some(block) = header.get(&entry.cmd) else {
            continue;
        };
        let pointers = fields("pointer", block[0].0);
        assert_eq!(
            entry
                .pointers
                .iter()
                .map(|pointer| pointer.offset)
                .collect::<Vec<_>>(),
            pointers,
            "{}",
            entry.name
        );
        assert_eq!(
            entry.fd.into_iter().collect::<Vec<_>>(),
            fields("fd", block[0].0),
            "{}",
            entry.name
        );
        seen += pointers.len();
    }
    assert!(seen > 15, "the table has pointer facts");
}

#[test]
fn levers_and_device_wide_calls_are_out_of_reach() {
    let abi = abi();
    let denied = Decision::Refuse(Status::INSUFFICIENT_PERMISSIONS);
    for cmd in [
        0x2080_110b,
        0x2080_111a,
        0x2080_1238,
        0x90cd_0101,
        0x90cd_0104,
        0xa06c_0107,
        0x80_170f,
        0x2080_01a9,
        0x2080_01ad,
        0x2080_0112,
        0x2080_205b,
        0x2080_206f,
        0x2080_0174,
        0x506f_0105,
        0x83de_0315,
        0x83de_0327,
    ] {
        assert_eq!(abi.control(cmd).unwrap().decision, denied, "{cmd:#x}");
    }
    for cmd in [
        0x2080_0145,
        0x2080_0146,
        0x2080_220c,
        0x2080_2210,
        0x80_1909,
        0x2080_0407,
        0x2080_1702,
        0x2080_0513,
    ] {
        assert_eq!(
            abi.control(cmd).unwrap().decision,
            Decision::Absorb,
            "{cmd:#x}"
        );
    }
    // Absorbed, it left a short matrix product at a fifth of the native rate (H200, driver 580.159).
    assert_eq!(
        abi.control(0x2080_200a).unwrap().decision,
        Decision::Execute
    );
    // CUDA's own schedule, timeslice and preempt calls keep working.
    for cmd in [0xa06c_0101, 0xa06c_0103, 0xa06c_0105, 0xa06f_0103] {
        assert_eq!(
            abi.control(cmd).unwrap().decision,
            Decision::Execute,
            "{cmd:#x}"
        );
    }
    for id in [
        0x0f, 0x78, 0x7e, 0x81, 0x82, 0x83, 0xc2, 0xf3, 0x900e, 0x90cc, 0x90cd, 0xb0cc, 0xb1cc,
        0xb2cc,
    ] {
        assert_eq!(abi.class(id).unwrap().decision, denied, "{id:#x}");
    }
    for nr in [
        0x28, 0x32, 0x33, 0x37, 0x38, 0x39, 0x4d, 0x52, 0x56, 0x59, 0x5c, 0x5d, 0x5f, 209, 211,
        213, 216,
    ] {
        assert_eq!(
            abi.escape(nr).unwrap().decision,
            Decision::Refuse(Status::NOT_SUPPORTED),
            "{nr:#x}"
        );
    }
    for request in (54..=64).chain([67, 69, 71, 74, 76, 77, 79, 80, 2047]) {
        assert_eq!(
            abi.uvm(request).unwrap().decision,
            Decision::Refuse(Status::NOT_SUPPORTED),
            "UVM {request}"
        );
    }
}

#[test]
fn answers_about_memory_and_processes_are_changed() {
    let abi = abi();
    for (cmd, answer) in [
        (0x2080_1301, Answer::FbInfoPointer),
        (0x2080_1303, Answer::FbInfoInline),
        (0x2080_1320, Answer::FbRegions),
        (0x2080_018d, Answer::Pids),
        (0x2080_018e, Answer::PidInfo),
        (0x2080_2096, Answer::UtilSamples),
        (0x201, Answer::GpuIds),
        (0x214, Answer::GpuIds),
        (0x288, Answer::GpuIds),
        (0xb04, Answer::ForeignZeroed),
    ] {
        assert_eq!(abi.control(cmd).unwrap().answer, answer, "{cmd:#x}");
    }
}

#[test]
fn names_and_numbers_agree() {
    let abi = abi();
    assert_eq!(
        abi.escape(rm::nr::RM_ALLOC).unwrap().name,
        "NV_ESC_RM_ALLOC"
    );
    assert_eq!(
        abi.escape(rm::nr::EXPORT_TO_DMABUF_FD).unwrap().name,
        "NV_ESC_EXPORT_TO_DMABUF_FD"
    );
    assert_eq!(
        abi.uvm(rm::uvm::MAP_EXTERNAL_ALLOCATION).unwrap().name,
        "UVM_MAP_EXTERNAL_ALLOCATION"
    );
    assert_eq!(abi.uvm(rm::uvm::INITIALIZE).unwrap().name, "UVM_INITIALIZE");
    assert_eq!(
        abi.class(rm::class::NV01_DEVICE_0).unwrap().name,
        "NV01_DEVICE_0"
    );
    assert_eq!(
        abi.control(rm::ctrl::NV2080_FB_GET_INFO_V2).unwrap().name,
        "NV2080_CTRL_CMD_FB_GET_INFO_V2"
    );
}
