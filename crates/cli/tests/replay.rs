//! Every driver call of whole programs, made again in a slice on simulated cards (`streams/*.txt`, recorded by
//! `gpuslice trace --stream`).

#[path = "cli/common.rs"]
#[expect(dead_code, reason = "shared with the other tests of the commands")]
mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rm::{Abi, Decision, layout, nr};
use testkit::outside::{Line, Observer, Played, Program, Told};
use testkit::raw::Node;
use testkit::stream::{self, Answer, Call, Event, Value, What};

const BINARY: &str = env!("CARGO_BIN_EXE_gpuslice");
/// A replay that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(180);
/// So many nodes are there at once: most of a replay waits for audits.
const AT_ONCE: usize = 4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams")
}

/// Name and path of every stream.
fn streams() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder()).expect("the streams").flatten();
    let mut streams: Vec<(String, PathBuf)> = entries
        .map(|entry| entry.path())
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy();
            (name.into_owned(), path)
        })
        .filter(|(name, _)| name != "differs")
        .collect();
    streams.sort();
    assert!(!streams.is_empty());
    streams
}

/// Makes the calls of a stream on as many cards, of a driver of the same version, as large a slice as they are.
fn replay(path: &Path) -> Played {
    let text = fs::read_to_string(path).expect("a stream");
    let (head, _) = stream::parse(&text).expect("a stream");
    let node = common::Node::start(&format!("{}xH200@{}", head.gpus, head.driver));
    let observer = Observer::open(&Node::simulated(Path::new(&node.socket))).expect("a client");
    let mut command = Command::new(BINARY);
    command
        .args(["run", "--sim", &node.socket, "--memory", "100%", "--"])
        .args([BINARY, "__tenant", "replay", "0"])
        .arg(path)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("GPUSLICE_SIM");
    let program = Program::start(command).expect("start");
    let answer = |line: &Line| match line {
        Line::AskMemory(helper) => observer.memory_of(*helper).ok().map(Told::Memory),
        _ => None,
    };
    program.play(LIMIT, answer).expect("played")
}

/// Replays some streams at once, each on a node of its own.
fn replay_all(streams: &[(String, PathBuf)]) -> Vec<(String, Played)> {
    std::thread::scope(|scope| {
        let start = |(name, path): &(String, PathBuf)| {
            let (name, path) = (name.clone(), path.clone());
            scope.spawn(move || (name, replay(&path)))
        };
        let started: Vec<_> = streams.iter().map(start).collect();
        let ended = started.into_iter().map(|s| s.join().expect("a replay"));
        ended.collect()
    })
}

/// The lines of `differs.txt`, each `STREAM CALL: THERE here HERE`, without what is said about it.
fn listed() -> BTreeSet<String> {
    let text = fs::read_to_string(folder().join("differs.txt")).expect("differs.txt");
    let lines = text
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines
        .map(|line| line.split(", ").next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn every_recorded_call_is_answered_again_as_it_was() {
    let (mut faults, mut differ) = (Vec::new(), BTreeSet::new());
    for (name, played) in streams().chunks(AT_ONCE).flat_map(replay_all) {
        let finding = match played.finding() {
            Ok(finding) => finding.clone(),
            Err(why) => {
                faults.push(format!("{name}: {why}: {}", played.errors));
                continue;
            }
        };
        let (measured, expected) = (&finding.measured, &finding.expected);
        if measured["free"] != expected["free"] {
            faults.push(format!(
                "{name}: something is left: {measured}, not {expected}"
            ));
        }
        let driver = measured["driver"].as_array().into_iter().flatten();
        if !driver.clone().all(|bytes| bytes == 0) || driver.count() == 0 {
            faults.push(format!("{name}: the driver counts {measured}"));
        }
        let calls = expected["equal"].as_u64();
        if calls.is_none_or(|calls| calls < 10) {
            faults.push(format!("{name}: {expected} calls were made"));
        }
        // `differs LINE CALL: THERE here HERE`
        let differences = played
            .other
            .iter()
            .filter_map(|l| l.strip_prefix("differs "));
        for difference in differences {
            let (line, what) = difference.split_once(' ').expect("two words");
            let known = format!("{name} {what}");
            if !listed().contains(&known) {
                faults.push(format!("{known} (line {line})"));
            }
            differ.insert(known);
        }
    }
    let unused: Vec<String> = listed().difference(&differ).cloned().collect();
    faults.extend(
        unused
            .iter()
            .map(|line| format!("{line}: listed, and not so")),
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_recorded_now_is_answered_again() {
    let file = std::env::temp_dir().join(format!("gpuslice-stream-{}", std::process::id()));
    let programs: [(&[&str], &str); 3] = [
        (&["probe", "--json"], "inst1"),
        (&["__tenant", "shape_fork", "10737418240"], "ended p2"),
        (&["__tenant", "alias_counted_once", "10737418240"], "x1"),
    ];
    for (program, holds) in programs {
        let status = Command::new(BINARY)
            .args(["trace", "--sim", "1xH200", "--stream"])
            .arg(&file)
            .args(["--", BINARY])
            .args(program)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("GPUSLICE_SIM")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        assert!(status.expect("start").success(), "{program:?}");
        let text = fs::read_to_string(&file).expect("a stream");
        assert!(text.contains(holds), "{program:?}: {text}");
        let played = replay(&file);
        let finding = played.finding();
        let finding = finding.unwrap_or_else(|why| panic!("{program:?}: {why}\n{text}"));
        assert!(finding.held, "{program:?}: {finding:?}\n{text}");
    }
    fs::remove_file(&file).expect("the stream is removed");
}

#[test]
fn a_call_that_is_answered_otherwise_is_told() {
    let text = "gpuslice-stream 1 driver 580.159.04 gpus 1\n\
        p1 f1:ctl 0x2b/48 8=*c1 -> 0\n\
        p1 f1:ctl 0x2a/32 0=c1 4=c1 8=0x2080ffff 16q=ptr 24=8 +8 -> 0 x2\n\
        p1 f1:ctl 0x2b/48 0=c1 4=c1 8=+? 12=0x50a0 16q=ptr 32=0x80 +128 -> 0x36\n";
    let file = std::env::temp_dir().join(format!("gpuslice-differs-{}", std::process::id()));
    fs::write(&file, text).expect("a stream");
    let played = replay(&file);
    fs::remove_file(&file).expect("the stream is removed");
    let finding = played.finding().expect("a finding");
    assert!(!finding.held, "{finding:?}");
    let told = "differs 3 control 0x2080ffff: 0 here 0x56";
    let differences = played.other.iter().filter(|line| *line == told).count();
    assert_eq!(differences, 2, "{:?}", played.other);
    assert!(finding.note.contains("2080ffff"), "{finding:?}");
}

fn number_at(call: &Call, at: usize) -> u32 {
    let item = call.block.iter().find(|item| usize::from(item.at) == at);
    match item.map(|item| item.value) {
        Some(Value::Number(n)) => n as u32,
        _ => 0,
    }
}

/// What the tables decide about a call, and its name; `None`: it is not in them.
fn decision(abi: &Abi, call: &Call) -> Option<(Decision, &'static str)> {
    match call.what {
        What::Escape(number, _) => {
            let escape = abi.escape(number)?;
            let row = match number {
                nr::RM_CONTROL => {
                    let control = abi.control(number_at(call, layout::nvos54::CMD))?;
                    (control.decision, control.name)
                }
                nr::RM_ALLOC => {
                    let class = abi.class(number_at(call, layout::nvos64::H_CLASS))?;
                    (class.decision, class.name)
                }
                _ => (escape.decision, escape.name),
            };
            match escape.decision {
                Decision::Refuse(_) => Some((escape.decision, escape.name)),
                _ => Some(row),
            }
        }
        What::Uvm(request) => abi.uvm(request).map(|entry| (entry.decision, entry.name)),
        What::Map => Some((Decision::InTenant, "mmap")),
    }
}

#[test]
fn what_succeeded_on_a_card_is_not_refused_by_the_tables() {
    let mut refused = BTreeSet::new();
    for (name, path) in streams() {
        let text = fs::read_to_string(path).expect("a stream");
        let (head, events) = stream::parse(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
        let abi = rm::for_driver(&head.driver).expect("a known driver").abi;
        for (line, event) in events {
            let Event::Call(call, _) = event else {
                continue;
            };
            let succeeded = matches!(
                call.answer,
                Answer::Status(0) | Answer::Value(_) | Answer::Native
            );
            match decision(abi, &call) {
                Some((Decision::Refuse(_), row)) if succeeded => {
                    refused.insert(format!("{name}, line {line}: {row} is refused now"));
                }
                None if succeeded => {
                    refused.insert(format!("{name}, line {line}: in no table: {call}"));
                }
                _ => {}
            }
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
}
