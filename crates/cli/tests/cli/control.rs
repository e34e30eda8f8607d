//! `set`, `pause`, `resume` and `stop`: what they do to a slice that runs, and who may.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use simgpu::client::Client;

use crate::common::{
    Done, Folder, GIB, GPUSLICE, Node, command, command_of, finish, gpuslice, is_root, total,
    wait_until,
};

/// Two cycles of the scheduler, and what a busy machine takes.
const SOON: Duration = Duration::from_millis(250);

/// A tenant's program in a slice of 16 GiB.
struct Running(Child);

impl Running {
    fn start(node: &Node, name: &str, options: &[&str], program: &[&str]) -> Running {
        let options = [&["--name", name, "--gpu", "0"], options].concat();
        let mut run = command(&node.run(&options, program));
        run.stdout(Stdio::null()).stderr(Stdio::null());
        Running(run.spawn().expect("start"))
    }

    fn tenant(node: &Node, name: &str, options: &[&str], words: &[&str]) -> Running {
        let quota = (16 * GIB).to_string();
        let program = [&[GPUSLICE, "__tenant", words[0], &quota], &words[1..]].concat();
        Running::start(
            node,
            name,
            &[&["--memory", "16GiB"], options].concat(),
            &program,
        )
    }

    fn code(mut self) -> Option<i32> {
        self.0.wait().expect("it runs").code()
    }

    /// The process that the driver sees.
    fn helper(&self) -> u32 {
        let found = || {
            children_of(self.0.id())
                .into_iter()
                .find(|&pid| is_helper(pid))
        };
        wait_until("there is a helper", || found().is_some());
        found().expect("a helper")
    }
}

fn words_of(pid: u32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into()
}

fn is_helper(pid: u32) -> bool {
    words_of(pid).contains("__helper")
}

fn children_of(parent: u32) -> Vec<u32> {
    let parent_of = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?
            .1
            .split_whitespace()
            .nth(1)?
            .parse()
            .ok()
    };
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| parent_of(pid) == Some(parent)).collect()
}

/// The process that schedules a node.
fn scheduler_of(node: &Node) -> i32 {
    let folder = Path::new(&node.socket).with_file_name("registry");
    let folder = folder.to_str().expect("a path in UTF-8");
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let found = pids.find(|&pid| {
        let words = words_of(pid);
        words.contains("__scheduler") && words.contains(folder)
    });
    found.expect("a scheduler") as i32
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: kill(2) takes two numbers; whoever is named is this test's.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

fn control(node: &Node, words: &[&str]) -> Done {
    gpuslice(&[words, &["--sim", &node.socket]].concat())
}

/// What of the first card each process has had of both engines, in ns.
fn ran(usage: &mut Client) -> BTreeMap<u32, [u64; 2]> {
    let mut ran = BTreeMap::<u32, [u64; 2]>::new();
    for group in usage.usage(0).expect("a usage").groups {
        ran.entry(group.pid).or_default()[usize::from(group.copies)] += group.ran_ns;
    }
    ran
}

/// How much one has had of an engine while it went on for so long.
fn had(usage: &mut Client, pid: u32, engine: usize, during: Duration) -> u64 {
    let mut now = || ran(usage).get(&pid).map_or(0, |engines| engines[engine]);
    let before = now();
    std::thread::sleep(during);
    now() - before
}

/// The part of the compute engine's own time that a process had meanwhile.
fn part(usage: &mut Client, pid: u32, during: Duration) -> f64 {
    let mut now = || {
        let usage = usage.usage(0).expect("a usage");
        (usage.computed_ns(pid), usage.clock_ns[0])
    };
    let before = now();
    std::thread::sleep(during);
    let after = now();
    (after.0 - before.0) as f64 / (after.1 - before.1) as f64
}

fn quota(node: &Node, name: &str) -> u64 {
    let listed = control(node, &["ps", "--json"]).ended(0).json();
    let mut slices = listed.as_array().expect("a list").iter();
    let slice = slices.find(|slice| slice["name"] == name);
    slice.map_or(0, |slice| {
        slice["gpus"][0]["memory_bytes"].as_u64().expect("bytes")
    })
}

fn half_a_second(usage: &mut Client, pid: u32, engine: usize) -> u64 {
    had(usage, pid, engine, Duration::from_millis(500))
}

#[test]
fn a_paused_slice_computes_and_copies_nothing_and_goes_on_where_it_was() {
    let node = Node::start("1xH200");
    let mut usage = Client::connect(node.socket.as_ref()).expect("the node");
    for (engine, words) in [
        (0, &["spin", "seconds=6", "contexts=2"][..]),
        (1, &["copier", "seconds=6"]),
    ] {
        let slice = Running::tenant(&node, "a", &[], words);
        let helper = slice.helper();
        wait_until("it works", || half_a_second(&mut usage, helper, engine) > 0);
        let paused = control(&node, &["pause", "a", "--json"]).ended(0).json();
        assert_eq!(
            (&paused["name"], &paused["paused"]),
            (&"a".into(), &true.into())
        );
        std::thread::sleep(SOON);
        let meanwhile = had(&mut usage, helper, engine, Duration::from_secs(2));
        assert_eq!(meanwhile, 0, "{words:?} went on");
        let listed = control(&node, &["ps", "--json"]).ended(0).json();
        assert_eq!(listed[0]["gpus"][0]["time"]["state"], "paused");
        // Who is paused stays so where nobody schedules.
        let scheduler = scheduler_of(&node);
        signal(scheduler, libc::SIGSTOP);
        let meanwhile = had(&mut usage, helper, engine, Duration::from_secs(2));
        signal(scheduler, libc::SIGCONT);
        assert_eq!(meanwhile, 0, "{words:?} went on without a scheduler");
        let told = control(&node, &["resume", "a"]).ended(0);
        assert!(
            told.out
                .starts_with("a: weight 100, no cap, 16.00 GiB on GPU-"),
            "{}",
            told.out
        );
        std::thread::sleep(SOON);
        assert!(
            half_a_second(&mut usage, helper, engine) > 0,
            "{words:?} did not go on"
        );
        assert_eq!(slice.code(), Some(0), "{words:?}");
    }
}

#[test]
fn a_program_that_starts_in_a_paused_slice_waits() {
    let node = Node::start("1xH200");
    let mut usage = Client::connect(node.socket.as_ref()).expect("the node");
    let quota = (16 * GIB).to_string();
    let script = format!("read x; {GPUSLICE} __tenant spin {quota} seconds=0.5; echo $?; cat");
    let options = ["--name", "a", "--gpu", "0", "--memory", "16GiB"];
    let mut run = command(&node.run(&options, &["sh", "-c", &script]));
    run.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    let mut slice = Running(run.spawn().expect("start"));
    let helper = slice.helper();
    wait_until("it can be paused", || {
        control(&node, &["pause", "a"]).code == Some(0)
    });
    let mut input = slice.0.stdin.take().expect("piped");
    writeln!(input, "go").expect("it reads");
    assert_eq!(
        had(&mut usage, helper, 0, Duration::from_secs(2)),
        0,
        "born attached"
    );
    assert!(slice.0.try_wait().expect("it runs").is_none());
    control(&node, &["resume", "a"]).ended(0);
    let mut said = String::new();
    let mut out = BufReader::new(slice.0.stdout.take().expect("piped"));
    while !said.ends_with("\n0\n") {
        assert_ne!(out.read_line(&mut said).expect("text"), 0, "{said}");
    }
    assert!(ran(&mut usage)[&helper][0] > 0);
    drop(input);
    assert_eq!(slice.code(), Some(0));
}

#[test]
fn weight_and_cap_change_while_it_runs() {
    let node = Node::start("1xH200");
    let mut usage = Client::connect(node.socket.as_ref()).expect("the node");
    let a = Running::tenant(&node, "a", &[], &["spin", "seconds=30"]);
    let b = Running::tenant(&node, "b", &[], &["spin", "seconds=30"]);
    let helper = a.helper();
    b.helper();
    wait_until("both work", || {
        ran(&mut usage).values().filter(|ran| ran[0] > 0).count() == 2
    });
    let heavy = control(&node, &["set", "a", "--weight", "300", "--json"])
        .ended(0)
        .json();
    assert_eq!(heavy["weight"], 300);
    std::thread::sleep(SOON);
    let part_of_a = part(&mut usage, helper, Duration::from_secs(1));
    assert!((0.65..0.85).contains(&part_of_a), "{part_of_a}");
    control(&node, &["stop", "b", "--now"]).ended(0);
    assert_eq!(b.code(), Some(137));
    let capped = control(&node, &["set", "a", "--cap", "25", "--json"])
        .ended(0)
        .json();
    assert_eq!(
        (&capped["weight"], &capped["cap_percent"]),
        (&300.into(), &25.0.into())
    );
    std::thread::sleep(SOON);
    let part_of_a = part(&mut usage, helper, Duration::from_secs(2));
    assert!((0.15..0.28).contains(&part_of_a), "{part_of_a}");
    let lifted = control(&node, &["set", "a", "--cap", "none", "--json"])
        .ended(0)
        .json();
    assert_eq!(lifted["cap_percent"], serde_json::Value::Null);
    std::thread::sleep(SOON);
    let part_of_a = part(&mut usage, helper, Duration::from_secs(1));
    assert!(part_of_a > 0.9, "{part_of_a}");
    control(&node, &["stop", "a"]).ended(0);
    assert_eq!(a.code(), Some(143));
}

#[test]
fn memory_grows_and_shrinks_and_what_is_given_up_is_free_for_others() {
    let node = Node::start("1xH200");
    let script = format!("while read size; do {GPUSLICE} probe --json; done");
    let options = ["--name", "a", "--memory", "100GiB"];
    let mut run = command(&node.run(&options, &["sh", "-c", &script]));
    run.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    let mut slice = Running(run.spawn().expect("start"));
    let (mut input, out) = (slice.0.stdin.take(), slice.0.stdout.take());
    let mut lines = BufReader::new(out.expect("piped")).lines();
    // Who has been there all the time and who starts now see the same.
    let mut seen = || -> u64 {
        writeln!(input.as_mut().expect("piped"), "look").expect("it reads");
        let line = lines.next().expect("a line").expect("text");
        total(&serde_json::from_str(&line).expect("a probe"))
    };
    assert_eq!(seen(), 100 * GIB);
    let taken = [
        "run",
        "--sim",
        &node.socket,
        "--name",
        "b",
        "--memory",
        "60GiB",
        "--",
        "true",
    ];
    gpuslice(&taken).refused(&["60 GiB", "39.80 GiB", "\"a\""]);
    let smaller = control(&node, &["set", "a", "--memory", "50GiB", "--json"])
        .ended(0)
        .json();
    assert_eq!(smaller["gpus"][0]["memory_bytes"], 50 * GIB);
    assert_eq!(smaller["gpus"][0].get("asked_bytes"), None);
    assert_eq!((seen(), quota(&node, "a")), (50 * GIB, 50 * GIB));
    gpuslice(&taken).ended(0);
    let _b = node.slice(&["--name", "b", "--memory", "60GiB"]);
    // As `run` refuses it.
    control(&node, &["set", "a", "--memory", "90GiB"]).refused(&["90 GiB", "79.80 GiB", "\"b\""]);
    control(&node, &["set", "a", "--memory", "900GiB"]).refused(&["139.80 GiB"]);
    assert_eq!(
        (seen(), quota(&node, "a")),
        (50 * GIB, 50 * GIB),
        "a refusal changes nothing"
    );
    control(&node, &["set", "a", "--memory", "90GiB", "--overcommit"]).ended(0);
    // What is less than it has needs nobody's leave.
    control(&node, &["set", "a", "--memory", "85GiB"]).ended(0);
    assert_eq!((seen(), quota(&node, "a")), (85 * GIB, 85 * GIB));
    // More digits than it began with, and less.
    control(&node, &["set", "a", "--memory", "1"]).ended(0);
    control(&node, &["set", "a", "--memory", "79GiB"]).ended(0);
    assert_eq!((seen(), quota(&node, "a")), (79 * GIB, 79 * GIB));
    drop(input);
    assert_eq!(slice.code(), Some(0));
}

#[test]
fn a_slice_keeps_the_memory_that_it_holds() {
    let node = Node::start("1xH200");
    let slice = Running::tenant(&node, "a", &[], &["spin", "seconds=30"]);
    let mut usage = Client::connect(node.socket.as_ref()).expect("the node");
    let helper = slice.helper();
    wait_until("it works", || half_a_second(&mut usage, helper, 0) > 0);
    let told = control(&node, &["set", "a", "--memory", "1MiB"]).ended(0);
    assert!(
        told.out
            .contains(" (it holds so much; 1.0 MiB was asked for)"),
        "{}",
        told.out
    );
    let held = quota(&node, "a");
    assert!((64 << 20..2 * GIB).contains(&held), "{held}");
    assert!(half_a_second(&mut usage, helper, 0) > 0, "it goes on");
    // What it holds is all that it has.
    let wanted = control(&node, &["set", "a", "--memory", "1MiB", "--json"])
        .ended(0)
        .json();
    assert_eq!(wanted["gpus"][0]["memory_bytes"], held);
    assert_eq!(wanted["gpus"][0]["asked_bytes"], 1 << 20);
    control(&node, &["stop", "a", "--now"]).ended(0);
    assert_eq!(slice.code(), Some(137));
}

/// A supervisor that dies between the two steps of a change leaves a registry that promises nobody else what the slice
/// may hold.
#[test]
fn a_supervisor_killed_in_the_middle_of_a_change_leaves_a_registry_that_adds_up() {
    for (from, to, meanwhile) in [("20GiB", "4GiB", 20 * GIB), ("4GiB", "20GiB", 20 * GIB)] {
        let node = Node::start("1xH200");
        let script = ["sh", "-c", "sleep 60"];
        let mut slice = Running::start(&node, "a", &["--memory", from], &script);
        let helper = slice.helper() as i32;
        wait_until("it runs", || !children_of(helper as u32).is_empty());
        std::thread::sleep(Duration::from_millis(300));
        signal(helper, libc::SIGSTOP);
        let change = ["set", "a", "--memory", to, "--sim", &node.socket];
        let change = command(&change)
            .stderr(Stdio::piped())
            .spawn()
            .expect("start");
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(
            quota(&node, "a"),
            meanwhile,
            "{from} to {to}, and the helper has not heard"
        );
        signal(slice.0.id() as i32, libc::SIGKILL);
        slice.0.wait().expect("it ends");
        let told = change.wait_with_output().expect("it ends");
        let told = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(told.contains("hung up"), "{told}");
        wait_until("nothing is left of it", || node.names().is_empty());
        let all = node.run(&["--memory", "100%"], &["true"]);
        finish(command(&all)).ended(0);
        let folder = Path::new(&node.socket).with_file_name("registry");
        assert!(!folder.join("a.sock").exists());
    }
}

#[test]
fn a_helper_that_does_not_answer_is_not_waited_for_long() {
    let node = Node::start("1xH200");
    let slice = Running::start(&node, "a", &["--memory", "20GiB"], &["sleep", "60"]);
    let helper = slice.helper() as i32;
    wait_until("it runs", || !children_of(helper as u32).is_empty());
    std::thread::sleep(Duration::from_millis(300));
    signal(helper, libc::SIGSTOP);
    control(&node, &["set", "a", "--memory", "4GiB"]).refused(&[
        "helper",
        "not answered",
        "changes when it does",
    ]);
    assert_eq!(quota(&node, "a"), 20 * GIB, "nobody else may have it");
    signal(helper, libc::SIGCONT);
    // It comes to it later.
    wait_until("it has given it up", || quota(&node, "a") == 4 * GIB);
    control(&node, &["set", "a", "--memory", "5GiB"]).ended(0);
    assert_eq!(quota(&node, "a"), 5 * GIB);
    control(&node, &["stop", "a"]).ended(0);
    assert_eq!(slice.code(), Some(143));
}

#[test]
fn who_is_stopped_has_ten_seconds_to_end_and_run_tells_how() {
    let node = Node::start("1xH200");
    let start = |name: &str, script: &str| {
        Running::start(&node, name, &["--memory", "1GiB"], &["sh", "-c", script])
    };
    let ends = start("ends", "trap 'exit 7' TERM; while :; do sleep 0.05; done");
    let leaves = start(
        "leaves",
        "sleep 77.7 & trap 'exit 8' TERM; while :; do sleep 0.05; done",
    );
    let stays = start("stays", "trap '' TERM; while :; do sleep 0.05; done");
    for slice in [&ends, &leaves, &stays] {
        let helper = slice.helper();
        wait_until("it runs", || !children_of(helper).is_empty());
    }
    std::thread::sleep(Duration::from_millis(500));
    let began = Instant::now();
    let told = control(&node, &["stop", "ends", "--json"]).ended(0).json();
    assert_eq!(
        (&told["name"], &told["exit_status"]),
        (&"ends".into(), &7.into())
    );
    assert_eq!(ends.code(), Some(7));
    // Its memory is free as soon as it is said to have ended.
    assert_eq!(node.names(), ["leaves", "stays"]);
    let told = control(&node, &["stop", "leaves"]).ended(0);
    assert_eq!(told.out, "leaves: stopped, exit status 8\n");
    assert_eq!(leaves.code(), Some(8));
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    let began = Instant::now();
    let told = control(&node, &["stop", "stays"]).ended(0);
    assert_eq!(told.out, "stays: stopped, exit status 137\n");
    assert!(
        (9..20).contains(&began.elapsed().as_secs()),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(stays.code(), Some(137));
    assert!(node.names().is_empty());
}

/// Whenever it comes: before the helper is there, before the command is, or after.
#[test]
fn a_slice_that_is_starting_can_be_stopped() {
    let node = Node::start("1xH200");
    for _ in 0..10 {
        let slice = Running::start(&node, "a", &["--memory", "1GiB"], &["sleep", "60"]);
        let began = Instant::now();
        // Until it can be asked, nobody answers for it.
        wait_until("it is stopped", || {
            control(&node, &["stop", "a", "--now"]).code == Some(0)
        });
        let code = slice.code().expect("an exit status");
        assert!([125, 137].contains(&code), "{code}");
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
        assert!(node.names().is_empty());
    }
}

#[test]
fn a_paused_slice_can_be_stopped() {
    let node = Node::start("1xH200");
    let slice = Running::tenant(&node, "a", &[], &["spin", "seconds=60"]);
    let mut usage = Client::connect(node.socket.as_ref()).expect("the node");
    let helper = slice.helper();
    wait_until("it works", || half_a_second(&mut usage, helper, 0) > 0);
    control(&node, &["pause", "a"]).ended(0);
    control(&node, &["stop", "a"]).ended(0);
    assert_eq!(slice.code(), Some(143));
}

#[test]
fn what_cannot_be_done_is_one_line() {
    let node = Node::start("1xH200");
    control(&node, &["pause", "a"]).refused(&["no slice \"a\"", "no slice of yours lives"]);
    let _a = node.slice(&["--name", "a", "--memory", "1GiB"]);
    let _b = node.slice(&["--name", "b", "--memory", "1GiB"]);
    control(&node, &["stop", "../a"]).refused(&["no slice \"../a\"", "there are: a, b"]);
    control(&node, &["set", "a"]).refused(&["--weight", "--cap", "--memory"]);
    control(&node, &["set", "a", "--cap", "200"]).refused(&["1 to 100", "none"]);
    control(&node, &["set", "a", "--memory", "0"]).refused(&["no memory"]);
    gpuslice(&["pause", "a", "--sim", "/nonexistent/socket"]).refused(&["no such socket"]);
}

/// A supervisor hears others while somebody says nothing.
#[test]
fn a_silent_client_holds_up_nobody_for_long() {
    let node = Node::start("1xH200");
    let slice = Running::start(&node, "a", &["--memory", "1GiB"], &["sleep", "60"]);
    wait_until("it listens", || {
        control(&node, &["set", "a", "--weight", "7"]).code == Some(0)
    });
    let path = Path::new(&node.socket)
        .with_file_name("registry")
        .join("a.sock");
    let silent: Vec<_> = (0..8).map(|_| connect(&path)).collect();
    let began = Instant::now();
    // It goes on as ever: a signal is handed on, what ends is seen.
    let changed = control(&node, &["set", "a", "--weight", "8", "--json"]);
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(changed.ended(0).json()["weight"], 8);
    drop(silent);
    control(&node, &["stop", "a"]).ended(0);
    assert_eq!(slice.code(), Some(143));
}

/// A connection that says nothing.
fn connect(path: &Path) -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: the calls take integers and a live address of the size that is said; the descriptor is new and ours.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        let fd = libc::socket(libc::AF_UNIX, kind, 0);
        assert!(fd >= 0);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let path = path.as_os_str().as_bytes();
        assert!(path.len() < address.sun_path.len());
        for (to, byte) in address.sun_path.iter_mut().zip(path) {
            *to = *byte as libc::c_char;
        }
        let size = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        assert_eq!(libc::connect(fd, (&raw const address).cast(), size), 0);
        std::os::fd::OwnedFd::from_raw_fd(fd)
    }
}

/// Every attempt of a tenant, from inside its slice, on itself and on its neighbour.
const ATTEMPTS: &str = r#"
# What the supervisor holds: its end of the helper's socket.
supervisor=$(awk '/^PPid:/ { print $2 }' "/proc/$PPID/status")
ls -l "/proc/$supervisor/fd" && echo "DONE: looked into $supervisor"
for wish in "set own --weight 9999" "set own --cap none" "set own --memory 20GiB" "resume own" "stop next --now" "pause next" "set next --weight 1"; do
    "$PROGRAM" $wish && echo "DONE: $wish"
    # By a program whose parents are gone.
    (setsid "$PROGRAM" $wish > "$OUT" 2>&1 && echo "DONE: $wish" >> "$OUT" &) ; sleep 0.3; cat "$OUT"
done 2>&1
"#;

fn tenants_are_refused(program: &Path, folder: &Path, user: Option<u32>) {
    let by = |words: &[&str]| {
        let mut run = command_of(program, words);
        if let Some(user) = user {
            run.uid(user)
                .gid(user)
                .env_remove("XDG_RUNTIME_DIR")
                .env("TMPDIR", folder);
        }
        run
    };
    let node = Node::kept_by(by(&Node::words("1xH200")));
    let socket = node.socket.as_str();
    let slice = |name: &str, options: &[&str], script: &str, input: Stdio| -> Child {
        let words = ["run", "--sim", socket, "--memory", "4GiB", "--name", name];
        let mut run = by(&[&words, options, &["--", "sh", "-c", script]].concat());
        run.env("PROGRAM", program).env("OUT", folder.join("out"));
        run.stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        run.spawn().expect("start")
    };
    let mut next = slice("next", &[], "echo up; exec cat", Stdio::piped());
    let mut up = [0u8; 3];
    next.stdout
        .as_mut()
        .expect("piped")
        .read_exact(&mut up)
        .expect("it is up");
    let script = format!("read go; {ATTEMPTS}");
    let mut own = slice(
        "own",
        &["--weight", "5", "--cap", "20"],
        &script,
        Stdio::piped(),
    );
    let ask = |words: &[&str]| finish(by(&[words, &["--sim", socket]].concat()));
    wait_until("it can be paused", || {
        ask(&["pause", "own"]).code == Some(0)
    });
    let mut input = own.stdin.take().expect("piped");
    writeln!(input, "go").expect("it reads");
    let mut said = String::new();
    own.stdout
        .take()
        .expect("piped")
        .read_to_string(&mut said)
        .expect("text");
    own.wait().expect("it ends");
    assert!(!said.contains("DONE"), "{said}");
    let refused = said
        .matches("a program in a slice may change no slice")
        .count();
    assert_eq!(refused, 14, "{said}");
    // The neighbour lives as before, and its user may what the tenant may not.
    let after = ask(&["set", "next", "--memory", "3GiB", "--json"])
        .ended(0)
        .json();
    assert_eq!(
        (&after["weight"], &after["paused"]),
        (&100.into(), &false.into())
    );
    drop(next.stdin.take());
    next.wait().expect("it ends");
}

#[test]
fn threat_48_a_tenant_changes_no_slice_whoever_its_user_is() {
    let folder = Folder::new("control");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("a mode");
    tenants_are_refused(Path::new(GPUSLICE), folder.path(), None);
    if is_root() {
        let copy = copied(&folder);
        fs::remove_file(folder.path().join("out")).expect("root's");
        tenants_are_refused(&copy, folder.path(), Some(65534));
    }
}

/// A copy of the program that everybody can reach.
fn copied(folder: &Folder) -> PathBuf {
    let copy = folder.path().join("gpuslice");
    // By a process of its own: a program that another thread's child still has open for writing cannot be started.
    let cp = Command::new("cp").arg(GPUSLICE).arg(&copy).status();
    assert!(cp.expect("cp").success());
    copy
}

#[test]
fn another_user_is_told_who_may() {
    if !is_root() {
        eprintln!("NOT RUN: only root can be somebody else");
        return;
    }
    let node = Node::start("1xH200");
    let _a = node.slice(&["--name", "a", "--memory", "1GiB"]);
    let folder = Folder::new("other");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let copy = copied(&folder);
    for words in [
        &["stop", "a"][..],
        &["set", "a", "--weight", "1"],
        &["resume", "a"],
    ] {
        let mut other = command_of(&copy, &[words, &["--sim", &node.socket]].concat());
        other.uid(65534).gid(65534).env_remove("XDG_RUNTIME_DIR");
        finish(other).refused(&["user 65534 may not change this slice", "root may"]);
    }
    let mut other = command_of(&copy, &["pause", "b", "--sim", &node.socket]);
    other.uid(65534).gid(65534);
    finish(other).refused(&["no slice \"b\""]);
}
