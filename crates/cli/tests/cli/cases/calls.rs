//! Cases about calls: unknown ones, those of others, and a helper in need.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testkit::outside::Observer;
use testkit::raw::{Block, Client, Pages, Uvm};
use testkit::stream::{Call, Event, Item, Value};

use super::{PART, Talker, line, part, playing, raw, until_told, within};
use crate::common::{
    Done, Folder, GIB, GPUSLICE, MIB, Node, finish, gpuslice, is_root, wait_until,
};

#[test]
fn b11_what_is_unknown_is_refused_and_told_once() {
    const TEST: &str = "calls::b11_what_is_unknown_is_refused_and_told_once";
    if part().is_some() {
        let (client, device) = raw();
        let uvm = Uvm::open(client.node()).expect("the uvm file");
        for _ in 0..3 {
            let control = client.control(device.subdevice, 0x2080_1fff, &mut Block::new(8));
            let class = client.alloc(device.device, 0xdead, Block::new(8));
            let call = uvm.call(200, Block::new(64), 60);
            assert!(control.is_err() && class.is_err() && call.is_err());
        }
        // Nothing hangs, and what is known goes on.
        device.alloc(&client, MIB, Pages::Default).expect("memory");
        return;
    }
    let node = Node::start("1xH200");
    let done = finish(within(&node, &["--memory", "1GiB"], TEST, "slice")).ended(0);
    let told = |word: &str| {
        let lines = done.err.lines();
        lines
            .filter(|l| l.contains("does not know") && l.contains(word))
            .count()
    };
    for word in ["20801fff", "dead", "c8"] {
        assert_eq!(told(word), 1, "{word}: {}", done.err);
    }
}

#[test]
fn b11_what_is_unknown_is_counted_where_the_node_is_looked_after() {
    const TEST: &str = "calls::b11_what_is_unknown_is_counted_where_the_node_is_looked_after";
    if part().is_some() {
        let (client, device) = raw();
        for _ in 0..3 {
            let control = client.control(device.subdevice, 0x2080_1fff, &mut Block::new(8));
            control.expect_err("refused");
        }
        client
            .alloc(device.device, 0xdead, Block::new(8))
            .expect_err("refused");
        println!("\nmade");
        until_told();
        return;
    }
    let node = Node::start("1xH200");
    let doctor = || {
        gpuslice(&["doctor", "--json", "--sim", &node.socket])
            .ended(0)
            .json()
    };
    let calls = serde_json::json!([
        { "kind": "class", "number": "0xdead", "count": 1 },
        { "kind": "control", "number": "0x20801fff", "count": 3 }
    ]);
    assert_eq!(doctor()["unknown_calls"], serde_json::json!([]));
    let options = ["--memory", "1GiB", "--name", "odd"];
    let mut slice = Talker::start(within(&node, &options, TEST, "slice"));
    slice.says("made");
    let listed = || {
        gpuslice(&["ps", "--json", "--sim", &node.socket])
            .ended(0)
            .json()
    };
    wait_until("ps shows the calls of a slice that lives", || {
        listed()[0]["unknown_calls"] == calls
    });
    // They stand behind the grant, which may become longer and shorter.
    for (size, bytes) in [("100GiB", 100u64 << 30), ("900MiB", 900 << 20)] {
        let set = ["set", "odd", "--memory", size, "--sim", &node.socket];
        gpuslice(&set).ended(0);
        assert_eq!(listed()[0]["gpus"][0]["memory_bytes"], bytes);
        assert_eq!(listed()[0]["unknown_calls"], calls, "{size}");
    }
    assert_eq!(doctor()["unknown_calls"], calls);
    let table = gpuslice(&["ps", "--sim", &node.socket]).ended(0).out;
    assert!(
        table.contains("UNKNOWN") && table.contains("  4  "),
        "{table}"
    );
    slice.ends();
    // The slice has ended; who looks later still finds them, with what to report.
    assert_eq!(listed(), serde_json::json!([]));
    assert_eq!(doctor()["unknown_calls"], calls);
    let said = gpuslice(&["doctor", "--sim", &node.socket]).ended(0).out;
    let line = said.lines().find(|l| l.contains("unknown calls"));
    let line = line.expect("a line");
    for word in [
        "driver 580.159.04",
        "control 0x20801fff x 3",
        "class 0xdead x 1",
        "gpuslice trace --output FILE -- PROGRAM",
    ] {
        assert!(line.contains(word), "{word}: {line}");
    }
}

/// Whether every thread of a process is stopped.
fn stopped(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("a process");
    threads.flatten().all(|t| {
        let status = fs::read_to_string(t.path().join("status")).unwrap_or_default();
        status.contains("State:\tT")
    })
}

/// Allocates objects of these classes, each twice, and says how often that was not refused.
fn allocate_all(classes: &[u32]) {
    let (client, device) = raw();
    let mut allocated = 0;
    for &class in classes.iter().chain(classes) {
        // Engines hang below channels, whose place here is of no matter: the class alone is refused.
        for parent in [device.device, device.subdevice] {
            allocated += usize::from(client.alloc(parent, class, Block::new(64)).is_ok());
        }
    }
    println!("\nallocated {allocated}");
    // What any API takes from the card is an allocation of the driver's: 600 MiB of it, then too much.
    let first = device.alloc(&client, 600 * MIB, Pages::Default);
    let second = device.alloc(&client, 600 * MIB, Pages::Default);
    println!("memory {} {:?}", first.is_ok(), second.err());
    until_told();
}

/// Classes of an engine are refused, once in words, and counted; and nothing is charged past the quota beside them.
#[track_caller]
fn refused_in_a_slice(test: &str, classes: &[(u32, &str)]) {
    let node = Node::start("1xH200");
    let mut run = within(&node, &["--memory", "1GiB"], test, "slice");
    run.stderr(std::process::Stdio::piped());
    let mut slice = Talker::start(run);
    let mut errors = slice.child.stderr.take().expect("piped");
    assert_eq!(slice.says("allocated"), "0");
    let no_memory = testkit::raw::Fault::NO_MEMORY;
    assert_eq!(slice.says("memory"), format!("true Some({no_memory:?})"));
    slice.ends();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut errors, &mut said).expect("a pipe");
    for (class, engine) in classes {
        let line = format!("refused class {class:#x}: {engine} cannot be used in a slice");
        assert_eq!(said.matches(&line).count(), 1, "{line:?} in {said}");
    }
    let doctor = gpuslice(&["doctor", "--json", "--sim", &node.socket])
        .ended(0)
        .json();
    let counted = doctor["unknown_calls"].as_array().expect("a list");
    assert_eq!(counted.len(), classes.len(), "{doctor}");
    assert!(counted.iter().all(|c| c["count"] == 4), "{doctor}");
}

#[test]
fn b64_graphics_is_refused_and_what_it_would_allocate_is_charged() {
    const TEST: &str = "calls::b64_graphics_is_refused_and_what_it_would_allocate_is_charged";
    // 3D of Ampere, Ada, Hopper and Blackwell; 2D of all.
    let classes = [
        (0xc797, "3D graphics"),
        (0xc997, "3D graphics"),
        (0xcb97, "3D graphics"),
        (0xcd97, "3D graphics"),
        (0x902d, "2D graphics"),
    ];
    if part().is_some() {
        allocate_all(&classes.map(|(class, _)| class));
        return;
    }
    refused_in_a_slice(TEST, &classes);
}

#[test]
fn b76_video_engines_are_refused_and_counted() {
    const TEST: &str = "calls::b76_video_engines_are_refused_and_counted";
    let classes = [
        (0xb8b0, "the video decoder"),
        (0xc9b0, "the video decoder"),
        (0xc9b7, "the video encoder"),
        (0xb8d1, "the JPEG decoder"),
        (0xb8fa, "optical flow"),
    ];
    if part().is_some() {
        allocate_all(&classes.map(|(class, _)| class));
        return;
    }
    refused_in_a_slice(TEST, &classes);
}

/// What a trace could give away of a program, and how it is told apart from what belongs into one.
const SECRET: u32 = 0x5ec7_e701;

#[test]
fn b11_a_trace_for_a_report_tells_no_address_process_handle_or_data() {
    const TEST: &str = "calls::b11_a_trace_for_a_report_tells_no_address_process_handle_or_data";
    if part().is_some() {
        let (client, device) = raw();
        // Data, a handle of the program's own choice, and the address at which its parameters lie.
        let mut block = Block::new(1024);
        block.put(0, &SECRET.to_le_bytes());
        block.put(64, &SECRET.to_le_bytes());
        let address = block.as_mut_ptr() as u64;
        let unknown = client.control(device.subdevice, 0x2080_1fff, &mut block);
        unknown.expect_err("refused");
        let class = client.alloc_as(device.device, SECRET + 1, 0xdead, Block::new(8));
        class.expect_err("refused");
        let memory = device.alloc(&client, MIB, Pages::Default).expect("memory");
        let words = [
            SECRET.into(),
            u64::from(SECRET) + 1,
            client.root().into(),
            device.device.into(),
            device.subdevice.into(),
            memory.into(),
            address,
        ];
        println!("\nsecrets {:?} process {}", words, std::process::id());
        return;
    }
    let folder = Folder::new("redacted");
    let stream = folder.path().join("stream");
    let program = std::env::current_exe().expect("this program");
    let traced = |name: &str, more: &[&str]| {
        let file = folder.path().join(name);
        let path = file.to_str().expect("a path in UTF-8");
        let words = [
            &["trace", "--sim", "1xH200", "--output", path][..],
            &["--stream", stream.to_str().expect("a path in UTF-8")],
            more,
            &["--"],
        ]
        .concat();
        let mut trace = crate::common::command(&words);
        trace
            .arg(&program)
            .args(["--exact", &format!("cases::{TEST}"), "--nocapture", "-q"])
            .env(PART, "traced");
        let done = finish(trace).ended(0);
        let said = done.out.lines().find_map(|l| l.strip_prefix("secrets "));
        let (words, process) = said
            .expect("secrets")
            .split_once(" process ")
            .expect("both");
        let words: Vec<u64> = serde_json::from_str(words).expect("numbers");
        let process = process.to_owned();
        (fs::read_to_string(&file).expect("a trace"), words, process)
    };
    let (text, words, process) = traced("report", &[]);
    assert!(
        text.contains("unknown (0x20801fff)") && text.contains("unknown (0xdead)"),
        "{text}"
    );
    for word in &words {
        for shown in [format!("{word:x}"), format!("{word}")] {
            assert!(!has_word(&text, &shown), "{shown} in {text}");
        }
    }
    assert!(!has_word(&text, &process), "{process} in {text}");
    let user = std::env::var("USER").unwrap_or_else(|_| "root".into());
    for name in [user.as_str(), "deps", "--exact", "/"] {
        assert!(!text.contains(name), "{name} in {text}");
    }
    let stream = fs::read_to_string(&stream).expect("a stream");
    tells_only_names(&stream, &words, process.parse().expect("a number"));
    // With all values they are there, so that it is not this test that does not see them.
    let (text, words, _) = traced("values", &["--values"]);
    for word in &words[1..6] {
        assert!(has_word(&text, &format!("{word:x}")), "{word:x}");
    }
}

/// In a stream of calls, names stand for all that is not told.
fn tells_only_names(text: &str, words: &[u64], process: u64) {
    let (_, events) = testkit::stream::parse(text).expect("a stream");
    let calls = events.iter().filter_map(|(_, event)| match event {
        Event::Call(call, _) => Some(call),
        _ => None,
    });
    let in_params = |c: &Call| {
        c.params
            .iter()
            .flat_map(|(_, items)| items.clone())
            .collect()
    };
    let items: Vec<Item> = calls
        .clone()
        .flat_map(|call| [call.block.clone(), in_params(call)].concat())
        .collect();
    let numbers: Vec<u64> = items
        .iter()
        .filter_map(|item| match item.value {
            Value::Number(n) => Some(n),
            _ => None,
        })
        .collect();
    assert!(
        numbers.contains(&0x2080_1fff),
        "the unknown control: {text}"
    );
    assert!(numbers.contains(&MIB), "the size of the memory: {text}");
    for &told in &numbers {
        let parts = [told, told & 0xffff_ffff, told >> 32];
        assert!(
            parts.iter().all(|part| !words.contains(part)),
            "{told:#x} in {text}"
        );
        assert!(
            told != process && told != u64::from(SECRET),
            "{told:#x} in {text}"
        );
    }
    assert!(
        items
            .iter()
            .any(|i| matches!(i.value, Value::NewObject(..))),
        "{text}"
    );
}

/// Whether a text holds these letters or digits, alone or behind `0x`.
fn has_word(text: &str, word: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|w| w.trim_start_matches("0x") == word)
}

#[test]
fn b17_programs_and_their_children_name_their_threads() {
    // The driver opens these of its own threads, in grandchildren too; the versions behind /proc/driver it only reads.
    let script = "set -e; printf a >/proc/$$/task/$$/comm; \
        sh -c 'printf b >/proc/$$/task/$$/comm; sh -c \"printf c >/proc/\\$\\$/comm; read name </proc/\\$\\$/comm; echo \\$name\"; \
        read name </proc/$$/comm; echo $name'; read name </proc/$$/comm; echo $name; \
        for f in /proc/driver/nvidia/version /proc/driver/nvidia/params; do test ! -e $f || cat $f >/dev/null; done";
    let node = Node::start("1xH200");
    let users: &[&[&str]] = if is_root() {
        &[&[], &["--user", "nobody"]]
    } else {
        &[&[]]
    };
    for user in users {
        let options = [&["--memory", "1GiB"], *user].concat();
        let done = gpuslice(&node.run(&options, &["sh", "-c", script])).ended(0);
        assert_eq!(done.out, "c\nb\na\n", "{user:?}");
    }
}

#[test]
fn b31_a_helper_without_descriptors_or_time_lets_nothing_through() {
    const TEST: &str = "calls::b31_a_helper_without_descriptors_or_time_lets_nothing_through";
    match part().as_deref() {
        None => {
            let node = Node::start("1xH200");
            // Few descriptors for the supervisor and the helper; the tenant has as many.
            let run = within(&node, &["--memory", "1GiB"], TEST, "few");
            let mut shell = Command::new("sh");
            shell
                .args(["-c", "ulimit -n 48; exec \"$0\" \"$@\""])
                .arg(run.get_program())
                .args(run.get_args())
                .env(PART, "few");
            finish(shell).ended(0);
            // A helper that is stopped.
            let mut slice = Talker::start(within(&node, &["--memory", "1GiB"], TEST, "stopped"));
            let helper: u32 = slice.says("helper").parse().expect("a pid");
            let observer = Observer::open(&testkit::raw::Node::simulated(Path::new(&node.socket)))
                .expect("a client outside");
            let before = observer.memory_of(helper).expect("an answer");
            guard::sys::kill(helper as i32, libc::SIGSTOP).expect("stop");
            // The signal reaches one thread, and the others when that one has run.
            wait_until("all its threads are stopped", || stopped(helper));
            slice.tell("go on");
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(observer.memory_of(helper).expect("an answer"), before);
            guard::sys::kill(helper as i32, libc::SIGCONT).expect("continue");
            assert_eq!(slice.says("got"), "true false");
            slice.ends();
        }
        Some("few") => {
            let node = testkit::raw::Node::from_environment();
            let open = || Client::open(&node);
            let many: Vec<_> = (0..100).map_while(|_| open().ok()).collect();
            assert!(many.len() < 60, "the helper cannot hold so many files");
            drop(many);
            wait_until("the helper has let go of what was closed", || {
                open().is_ok()
            });
            let (client, device) = raw();
            let memory = device.alloc(&client, GIB, Pages::Default);
            memory.expect("the whole quota");
            let more = device.alloc(&client, 64 << 10, Pages::Default);
            assert_eq!(more, Err(testkit::raw::Fault::NO_MEMORY));
        }
        Some(_) => {
            let (client, device) = raw();
            // SAFETY: takes nothing and cannot fail.
            println!("\nhelper {}", unsafe { libc::getppid() });
            line();
            let first = device.alloc(&client, 600 * MIB, Pages::Default);
            let second = device.alloc(&client, 600 * MIB, Pages::Default);
            println!("got {} {}", first.is_ok(), second.is_ok());
            until_told();
        }
    }
}

#[test]
fn b43_b79_calls_that_are_not_the_drivers_answer_as_without_a_slice() {
    const TEST: &str = "calls::b43_b79_calls_that_are_not_the_drivers_answer_as_without_a_slice";
    if part().is_some() {
        let zero = 0_usize;
        // What a runtime needs before anybody listens, what is new, and what no kernel has.
        for (name, number) in [
            ("unknown", 1000),
            ("clone3", libc::SYS_clone3),
            ("openat2", libc::SYS_openat2),
            ("faccessat2", libc::SYS_faccessat2),
            ("sendmsg", libc::SYS_sendmsg),
            ("fcntl", libc::SYS_fcntl),
            ("write", libc::SYS_write),
            ("close", libc::SYS_close),
            ("ioctl", libc::SYS_ioctl),
            ("mmap", libc::SYS_mmap),
            ("seccomp", libc::SYS_seccomp),
            ("io_uring_setup", libc::SYS_io_uring_setup),
            ("userfaultfd", libc::SYS_userfaultfd),
        ] {
            // SAFETY: each of these calls fails with these arguments, before it does anything.
            let done = unsafe { libc::syscall(number, -1, zero, zero, zero, -1, 1) };
            let error = std::io::Error::last_os_error().raw_os_error();
            println!("\n{name} {done} {error:?}");
        }
        let null = fs::File::open("/dev/null").expect("there is one");
        for request in [libc::TCGETS, libc::FIONREAD, 0xc030_462b, 0xc020_462a, 39] {
            let file = std::os::fd::AsRawFd::as_raw_fd(&null);
            // SAFETY: whatever the call is, nothing is behind the address.
            let done = unsafe { libc::ioctl(file, request, zero) };
            let error = std::io::Error::last_os_error().raw_os_error();
            println!("\nioctl {request:#x} {done} {error:?}");
        }
        return;
    }
    let said = |done: Done| {
        let lines = done.out.lines().filter(|l| l.contains("Some("));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let native = said(finish(playing(TEST, "native")).ended(0));
    let node = Node::start("1xH200");
    let slice = said(finish(within(&node, &["--memory", "1GiB"], TEST, "slice")).ended(0));
    assert_eq!(native.len(), 18, "{native:?}");
    assert_eq!(slice, native);
}

#[test]
fn b49_programs_with_rights_of_their_own_are_limited_too() {
    if !is_root() {
        eprintln!("not run: only root can make a program that has rights of its own");
        return;
    }
    let folder = Folder::new("rights");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let node = Node::start("1xH200");
    // Set-user-id; a capability that a slice takes away, and one that it leaves.
    for (name, mode, capability) in [
        ("user", 0o4755, None),
        ("both", 0o6755, None),
        ("admin", 0o755, Some("cap_sys_admin=p")),
        ("bind", 0o755, Some("cap_net_bind_service=ep")),
    ] {
        let program = folder.path().join(name);
        fs::copy(GPUSLICE, &program).expect("a copy");
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("a mode");
        if let Some(capability) = capability {
            let set = Command::new("setcap")
                .arg(capability)
                .arg(&program)
                .status();
            if !set.is_ok_and(|s| s.success()) {
                eprintln!("not run: no setcap, or a file system without capabilities");
                continue;
            }
        }
        // These programs find no library where the environment says (AT_SECURE), so this one makes the calls itself.
        let path = program.to_str().expect("a path in UTF-8");
        let quota = (2 * GIB).to_string();
        let attack = [path, "__tenant", "quota_exact", &quota];
        for user in [&["--user", "nobody"][..], &[]] {
            let options = [&["--memory", &quota], user].concat();
            let done = gpuslice(&node.run(&options, &attack)).ended(0);
            let found = done.out.lines().last().expect("a line");
            let found: serde_json::Value = serde_json::from_str(found).expect("JSON");
            assert_eq!(found["finding"]["held"], true, "{name}: {found}");
            assert_eq!(found["finding"]["measured"], 2 * GIB, "{name}");
        }
    }
}
