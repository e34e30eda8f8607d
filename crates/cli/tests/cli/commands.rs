//! The commands beside `run`: sim, probe, doctor, ps, trace, completions, man.

use std::fs;

use crate::common::{self, Folder, GPUSLICE, Node, command, finish, gpuslice};

#[test]
fn sim_runs_a_command_with_the_whole_card() {
    let probe = gpuslice(&["sim", "2xH200", "--", GPUSLICE, "probe", "--json"])
        .ended(0)
        .json();
    assert_eq!(probe["devices"].as_array().unwrap().len(), 2);
    assert_eq!(probe["devices"][0]["name"], "NVIDIA H200");
    gpuslice(&["sim", "1xH200", "--", "sh", "-c", "exit 7"]).ended(7);
    gpuslice(&["sim", "1xH200", "--", "/nonexistent/program"]).ended(127);
    gpuslice(&["sim", "nothing", "--", "true"]).refused(&["nothing", "2xH200"]);
}

#[test]
fn run_takes_the_node_of_its_environment() {
    let script = format!("{GPUSLICE} run --memory 1GiB -- {GPUSLICE} probe --json");
    let probe = gpuslice(&["sim", "1xH200", "--", "sh", "-c", &script])
        .ended(0)
        .json();
    assert_eq!(common::total(&probe), common::GIB);
}

#[test]
fn a_probe_without_a_driver_says_what_to_do() {
    let mut probe = command(&["probe"]);
    // A folder with a library that is none comes before the system's.
    let folder = Folder::new("nolib");
    fs::write(folder.path().join("libcuda.so.1"), "no library").unwrap();
    probe.env("LD_LIBRARY_PATH", folder.path());
    finish(probe).refused(&["CUDA driver library", "gpuslice sim"]);
}

#[test]
fn a_probe_refuses_what_makes_no_sense() {
    gpuslice(&["sim", "1xH200", "--", GPUSLICE, "probe", "--alloc", "1"]).refused(&["--alloc 1"]);
    gpuslice(&["sim", "1xH200", "--", GPUSLICE, "probe", "--seconds", "-1"]).ended(125);
    gpuslice(&["probe", "--graph"]).ended(125);
}

#[test]
fn doctor_says_whether_run_works_and_what_is_granted() {
    let node = Node::start("2xH200");
    let _slice = node.slice(&["--memory", "10GiB", "--name", "ten", "--gpu", "1"]);
    let report = gpuslice(&["doctor", "--json", "--sim", &node.socket])
        .ended(0)
        .json();
    assert_eq!(report["run_works"], true);
    let state = |name: &str| {
        let checks = report["checks"].as_array().unwrap();
        let check = checks
            .iter()
            .find(|c| c["name"] == name)
            .unwrap_or_else(|| panic!("{name} in {report}"));
        check["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state("driver"), "fine");
    assert_eq!(state("kernel: seccomp notification"), "fine");
    assert_eq!(state("isolation shim, mps, mig"), "absent");
    let seen = if common::is_root() { "fine" } else { "weak" };
    assert_eq!(state("sensor of time (weight, cap)"), seen);
    assert_eq!(state("scheduler of time"), "fine");
    assert_eq!(report["gpus"][0]["granted_bytes"], 0);
    assert_eq!(report["gpus"][1]["granted_bytes"], 10 * common::GIB);
    assert_eq!(report["gpus"][1]["slices"][0], "ten");
}

#[test]
fn doctor_inside_a_slice_says_that_run_does_not_work_there() {
    let done = gpuslice(&[
        "run", "--sim", "1xH200", "--memory", "1GiB", "--", GPUSLICE, "doctor",
    ])
    .ended(1);
    assert!(
        done.out.contains("MISSING  kernel: seccomp notification"),
        "{}",
        done.out
    );
    assert!(
        done.out.ends_with("`gpuslice run` does not work here\n"),
        "{}",
        done.out
    );
}

#[test]
fn ps_lists_live_slices() {
    let node = Node::start("1xH200");
    assert!(node.names().is_empty());
    let slice = node.slice(&["--memory", "3GiB", "--name", "three"]);
    let listed = gpuslice(&["ps", "--json", "--sim", &node.socket])
        .ended(0)
        .json();
    assert_eq!(listed[0]["pid"], slice.0.id());
    assert_eq!(listed[0]["gpus"][0]["memory_bytes"], 3 * common::GIB);
    assert_eq!(listed[0]["gpus"][0]["channels"], 60);
    let table = gpuslice(&["ps", "--sim", &node.socket]).ended(0).out;
    assert!(
        table.lines().nth(1).unwrap().starts_with("three "),
        "{table}"
    );
    // It is alone: nobody divides the card's time.
    assert_eq!(listed[0]["weight"], 100);
    assert_eq!(listed[0]["gpus"][0]["time"], serde_json::Value::Null);
    gpuslice(&["ps", "--sim", "1xH200"]).refused(&["--sim 1xH200", "socket"]);
}

#[test]
fn a_trace_shows_every_call_and_no_values() {
    let folder = Folder::new("trace");
    let file = folder.path().join("lines");
    let words = [
        "trace",
        "--sim",
        "1xH200",
        "--output",
        file.to_str().unwrap(),
        "--",
        GPUSLICE,
        "probe",
        "--json",
    ];
    let probe = gpuslice(&words).ended(0).json();
    assert!(
        common::total(&probe) > 100 * common::GIB,
        "the whole card: {probe}"
    );
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.lines().all(|l| l.starts_with("trace: ")), "{text}");
    assert!(
        text.contains("NV01_DEVICE_0 (0x80), 48 + 56 bytes, status 0x0"),
        "{text}"
    );
    assert!(text.contains("nvidia-uvm 37 UVM_REGISTER_GPU"), "{text}");
    assert!(
        text.trim_end()
            .ends_with("no call that this version does not know"),
        "{text}"
    );
    gpuslice(&[
        "trace",
        "--output",
        "/nonexistent/file",
        "--sim",
        "1xH200",
        "--",
        "true",
    ])
    .refused(&["/nonexistent/file"]);
    let nowhere = ["--stream", "/nonexistent/file", "--sim", "1xH200"];
    gpuslice(&[&["trace"], &nowhere[..], &["--", "true"]].concat())
        .refused(&["--stream", "/nonexistent/file"]);
    gpuslice(&["trace", "--sim", "1xH200", "--", "sh", "-c", "exit 4"]).ended(4);
}

#[test]
fn a_reader_that_is_gone_is_no_failure_and_a_full_disk_is_told() {
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let node = Node::start("1xH200");
    let socket = node.socket.as_str();
    let probe = ["sim", socket, "--", GPUSLICE, "probe"];
    for words in [
        &["ps", "--sim", socket][..],
        &["doctor", "--json", "--sim", socket],
        &["completions", "bash"],
        &["man"],
        &probe,
        &["run", "--sim", socket, "--memory", "1GiB", "--", "true"],
        &["sim", socket, "--", "true"],
    ] {
        let mut gone = command(words);
        gone.stdout(closed()).stderr(closed());
        let status = gone.status().unwrap();
        assert_eq!(status.code(), Some(0), "{words:?}");
    }
    let mut full = command(&["man"]);
    let disk = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = full.stdout(disk).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "gpuslice: cannot write the output: No space left on device (os error 28)\n"
    );
}

#[test]
fn sim_on_a_socket_where_no_node_answers_runs_nothing() {
    gpuslice(&["sim", "/nonexistent/socket", "--", "true"])
        .refused(&["/nonexistent/socket", "gpuslice sim"]);
    let folder = Folder::new("long");
    let long = folder.path().join("a".repeat(120));
    fs::create_dir(&long).unwrap();
    let mut sim = command(&["sim", "1xH200", "--", "true"]);
    sim.env("TMPDIR", &long);
    finish(sim).refused(&["socket", "TMPDIR"]);
    assert_eq!(fs::read_dir(&long).unwrap().count(), 0);
}

#[test]
fn a_trace_that_cannot_be_written_says_so_once() {
    let done = gpuslice(&[
        "trace",
        "--sim",
        "1xH200",
        "--output",
        "/dev/full",
        "--",
        GPUSLICE,
        "probe",
    ])
    .ended(0);
    assert_eq!(
        done.err.matches("lines are missing").count(),
        1,
        "{}",
        done.err
    );
}

#[test]
fn completions_and_manual_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let text = gpuslice(&["completions", shell]).ended(0).out;
        assert!(text.contains("overcommit"), "{shell}");
        assert!(
            !text.contains("__helper") && !text.contains("__tenant"),
            "{shell}"
        );
    }
    let page = gpuslice(&["man"]).ended(0).out;
    assert!(
        page.starts_with(".ie")
            && page.contains(".SH \"GPUSLICE RUN\"")
            && page.contains("overcommit"),
        "{page}"
    );
    assert!(!page.contains("__helper"));
    assert!(page.contains("\\-\\- <\\fICMD\\fR>...\n"), "{page}");
}
