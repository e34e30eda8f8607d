//! What must be true of every table of every branch: sorted, complete, consistent with the public headers of that branch
//! and, on the branch that ran on a card, with what real programs call.

use std::collections::HashMap;
use std::sync::LazyLock;

use rm::{Abi, Count, Decision, Foreign, Names, for_driver};

/// Every branch with what the public headers say of it.
const LAYOUTS: [(&str, &str); 7] = [
    ("535", include_str!("../layouts/535.txt")),
    ("550", include_str!("../layouts/550.txt")),
    ("565", include_str!("../layouts/565.txt")),
    ("570", include_str!("../layouts/570.txt")),
    ("580", include_str!("../layouts/580.txt")),
    ("590", include_str!("../layouts/590.txt")),
    ("595", include_str!("../layouts/595.txt")),
];
/// What programs call, as traced on a card.
const PROGRAMS: [(&str, &str); 6] = [
    ("CUDA, nvidia-smi", BASIC),
    ("PyTorch", include_str!("data/torch.txt")),
    ("JAX", include_str!("data/jax.txt")),
    ("transformers", include_str!("data/generate.txt")),
    ("checkpoint", include_str!("data/checkpoint.txt")),
    ("cuda-gdb", include_str!("data/debugger.txt")),
];
const BASIC: &str = include_str!("data/cuda-and-nvidia-smi.txt");

/// The branch that the programs were traced on.
fn traced() -> &'static Abi {
    for_driver("580.159.04").expect("branch 580").abi
}

/// Every branch and its headers.
fn branches() -> impl Iterator<Item = (&'static Abi, Headers)> {
    assert_eq!(rm::branches().len(), LAYOUTS.len());
    static FACTS: LazyLock<[Vec<Vec<&'static str>>; LAYOUTS.len()]> =
        LazyLock::new(|| LAYOUTS.map(|(_, text)| words(text)));
    let layouts = LAYOUTS.iter().zip(FACTS.iter());
    rm::branches()
        .zip(layouts)
        .map(|(abi, ((name, _), facts))| {
            assert_eq!(abi.branch(), *name, "every branch has its layout file");
            (abi, Headers(facts))
        })
}

fn number(text: &str) -> u32 {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).expect("hexadecimal"),
        None => text.parse().expect("decimal"),
    }
}

/// The words of every line of `text`.
fn words(text: &'static str) -> Vec<Vec<&'static str>> {
    let lines = text.lines();
    lines
        .map(|line| line.split_whitespace().collect())
        .collect()
}

/// The words of every line of `text` that starts with `kind`.
fn lines(text: &'static str, kind: &str) -> impl Iterator<Item = Vec<&'static str>> {
    let kind = kind.to_owned();
    let of = move |words: &Vec<&str>| words.first().is_some_and(|first| *first == kind);
    words(text).into_iter().filter(of)
}

/// What the public headers of a branch say: the words of every line.
#[derive(Clone, Copy)]
struct Headers(&'static [Vec<&'static str>]);

impl Headers {
    /// The lines that start with `kind`.
    fn lines(self, kind: &str) -> impl Iterator<Item = &'static Vec<&'static str>> {
        self.0
            .iter()
            .filter(move |words| words.first().is_some_and(|first| *first == kind))
    }

    /// The `(structure, bytes)` of every number of `kind`.
    fn blocks(self, kind: &str) -> HashMap<u32, Vec<(&'static str, u32)>> {
        let mut found = HashMap::<u32, Vec<_>>::new();
        for words in self.lines(kind) {
            found
                .entry(number(words[1]))
                .or_default()
                .push((words[2], number(words[3])));
        }
        found
    }

    /// Offsets of the fields of `kind` (client, pointer, fd) in a structure.
    fn fields(self, kind: &str, structure: &str) -> Vec<u16> {
        let mut offsets: Vec<u16> = self
            .lines(kind)
            .filter(|words| words[1] == structure)
            .map(|words| words[3].parse().expect("offset"))
            .collect();
        offsets.sort_unstable();
        offsets
    }

    /// Where the status stands in the block of an ioctl.
    fn status(self, structure: &str) -> Option<u16> {
        self.lines("status")
            .find(|words| words[1] == structure)
            .map(|words| words[2].parse().expect("offset"))
    }
}

fn reaches_the_driver(decision: Decision) -> bool {
    matches!(
        decision,
        Decision::Execute | Decision::InTenant | Decision::Pass
    )
}

#[test]
fn tables_are_sorted_and_every_number_stands_once() {
    for (abi, _) in branches() {
        assert!(abi.escapes().is_sorted_by(|a, b| a.nr < b.nr));
        assert!(abi.uvm_calls().is_sorted_by(|a, b| a.request < b.request));
        assert!(abi.classes().is_sorted_by(|a, b| a.id < b.id));
        assert!(abi.controls().is_sorted_by(|a, b| a.cmd < b.cmd));
    }
}

#[test]
fn look_ups_find_every_entry_and_nothing_else() {
    for (abi, _) in branches() {
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
}

#[test]
fn every_entry_says_its_name_and_why() {
    for (abi, _) in branches() {
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
}

#[test]
fn sizes_are_the_headers() {
    for (abi, headers) in branches() {
        let header = headers.blocks("escape");
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
            let entry = abi.escape(*nr);
            assert!(entry.is_none_or(|entry| !entry.sizes.is_empty()));
        }
        let header = headers.blocks("uvm");
        for entry in abi.uvm_calls() {
            assert_eq!(
                u32::from(entry.size),
                header[&entry.request][0].1,
                "{}",
                entry.name
            );
        }
        let header = headers.blocks("class");
        for entry in abi.classes() {
            assert_eq!(
                u32::from(entry.size),
                header[&entry.id][0].1,
                "{}",
                entry.name
            );
        }
        let header = headers.blocks("control");
        let seen: HashMap<u32, u32> = lines(BASIC, "control")
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
}

#[test]
fn answers_carry_their_status_where_the_headers_say() {
    for (abi, headers) in branches() {
        let mut seen = 0;
        let blocks = headers.blocks("escape");
        for entry in abi.escapes() {
            let known = blocks.get(&entry.nr.into()).into_iter().flatten();
            for ((structure, _), at) in known.zip(entry.status) {
                if let Some(status) = headers.status(structure) {
                    assert_eq!(Some(status), *at, "{abi:?} {}", entry.name);
                    seen += 1;
                }
            }
        }
        let blocks = headers.blocks("uvm");
        for entry in abi.uvm_calls().filter(|entry| entry.size > 0) {
            let status = headers.status(blocks[&entry.request][0].0);
            assert_eq!(status, entry.status, "{abi:?} {}", entry.name);
            seen += 1;
        }
        assert!(seen > 70, "{abi:?} has status facts");
    }
}

#[test]
fn what_programs_call_is_there_and_not_refused() {
    for (program, calls) in PROGRAMS {
        calls_are_there(program, calls);
    }
}

fn calls_are_there(program: &str, calls: &'static str) {
    let abi = traced();
    let mut seen = 0;
    for words in lines(calls, "escape") {
        let entry = abi
            .escape(number(words[1]).try_into().unwrap())
            .unwrap_or_else(|| panic!("{program}: {words:?}"));
        assert!(
            entry.sizes.contains(&words[2].parse().unwrap()),
            "{program}: {words:?}"
        );
        assert!(
            !matches!(entry.decision, Decision::Refuse(_)),
            "{program}: {words:?}"
        );
        seen += 1;
    }
    for words in lines(calls, "uvm") {
        let entry = abi
            .uvm(number(words[1]))
            .unwrap_or_else(|| panic!("{program}: {words:?}"));
        assert!(
            !matches!(entry.decision, Decision::Refuse(_)),
            "{program}: {words:?}"
        );
        seen += 1;
    }
    for words in lines(calls, "class") {
        let entry = abi
            .class(number(words[1]))
            .unwrap_or_else(|| panic!("{program}: {words:?}"));
        assert!(
            !matches!(entry.decision, Decision::Refuse(_)),
            "{program}: {words:?}"
        );
        seen += 1;
    }
    for words in lines(calls, "control") {
        let entry = abi
            .control(number(words[1]))
            .unwrap_or_else(|| panic!("{program}: {words:?}"));
        assert_eq!(entry.size, number(words[2]), "{program}: {words:?}");
        assert!(
            !matches!(entry.decision, Decision::Refuse(_)),
            "{program}: {words:?}"
        );
        seen += 1;
    }
    assert_eq!(
        seen,
        calls.lines().filter(|line| !line.starts_with('#')).count()
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
    for (abi, _) in branches() {
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
}

/// Offsets that `foreign` covers.
fn offsets(foreign: &[Foreign]) -> Vec<u16> {
    foreign.iter().map(|foreign| foreign.offset).collect()
}

#[test]
fn every_client_handle_in_a_block_that_reaches_the_driver_is_checked() {
    for (abi, headers) in branches() {
        let header = headers.blocks("escape");
        for entry in abi
            .escapes()
            .filter(|entry| reaches_the_driver(entry.decision))
        {
            for (structure, _) in header.get(&entry.nr.into()).into_iter().flatten() {
                for offset in headers.fields("client", structure) {
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
        let header = headers.blocks("uvm");
        for entry in abi
            .uvm_calls()
            .filter(|entry| reaches_the_driver(entry.decision))
        {
            assert_eq!(
                offsets(entry.foreign),
                headers.fields("client", header[&entry.request][0].0),
                "{}",
                entry.name
            );
        }
        let header = headers.blocks("class");
        for entry in abi
            .classes()
            .filter(|entry| reaches_the_driver(entry.decision))
        {
            assert_eq!(
                offsets(entry.foreign),
                headers.fields("client", header[&entry.id][0].0),
                "{}",
                entry.name
            );
        }
        let header = headers.blocks("control");
        for entry in abi
            .controls()
            .filter(|entry| reaches_the_driver(entry.decision))
        {
            let Some(block) = header.get(&entry.cmd) else {
                continue;
            };
            for offset in headers.fields("client", block[0].0) {
                assert!(
                    offsets(entry.foreign).contains(&offset),
                    "{} @{offset}",
                    entry.name
                );
            }
        }
    }
}

#[test]
fn every_pointer_and_descriptor_in_a_control_that_reaches_the_driver_is_translated() {
    for (abi, headers) in branches() {
        let header = headers.blocks("control");
        let mut seen = 0;
        for entry in abi
            .controls()
            .filter(|entry| reaches_the_driver(entry.decision))
        {
            let Some(block) = header.get(&entry.cmd) else {
                continue;
            };
            let pointers = headers.fields("pointer", block[0].0);
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
                headers.fields("fd", block[0].0),
                "{}",
                entry.name
            );
            seen += pointers.len();
        }
        assert!(seen > 15, "the table has pointer facts");
    }
}

#[test]
fn names_and_numbers_agree() {
    let abi = traced();
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
