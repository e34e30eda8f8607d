//! `gpuslice run` on simulated nodes: limits, exit statuses, which cards, who else is there.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Stdio;

use crate::common::{
    Done, Folder, GIB, GPUSLICE, MIB, Node, command, finish, gpuslice, is_root, total, wait_until,
};

fn run(options: &[&str], program: &[&str]) -> Done {
    gpuslice(&[&["run", "--sim", "1xH200"], options, &["--"], program].concat())
}

#[test]
fn a_program_sees_its_quota_and_is_refused_above_it() {
    let probe = run(
        &["--memory", "2GiB"],
        &[GPUSLICE, "probe", "--alloc", "64MiB", "--json"],
    )
    .ended(0)
    .json();
    assert_eq!(total(&probe), 2 * GIB);
    let free = probe["devices"][0]["free_bytes"].as_u64().unwrap();
    let reached = probe["alloc"]["reached_bytes"].as_u64().unwrap();
    assert_eq!(probe["alloc"]["refused_with"], "CUDA_ERROR_OUT_OF_MEMORY");
    assert!(reached <= free, "{probe}");
    assert!(
        reached + 128 * MIB > free,
        "what is free can be had: {probe}"
    );
}

#[test]
fn a_percentage_is_of_the_card() {
    let whole = total(
        &gpuslice(&["sim", "1xH200", "--", GPUSLICE, "probe", "--json"])
            .ended(0)
            .json(),
    );
    let half = total(
        &run(&["--memory", "50%"], &[GPUSLICE, "probe", "--json"])
            .ended(0)
            .json(),
    );
    assert!(
        half <= whole / 2 && half + 64 * 1024 > whole / 2,
        "{half} of {whole}"
    );
}

#[test]
fn work_runs_in_a_slice() {
    let words = [GPUSLICE, "probe", "--seconds", "0.1", "--graph", "--json"];
    let probe = run(&["--memory", "4GiB"], &words).ended(0).json();
    assert!(probe["work"]["kernels"].as_u64().unwrap() > 0, "{probe}");
    assert!(
        probe["work"]["graph"]["replays"].as_u64().unwrap() > 0,
        "{probe}"
    );
}

#[test]
fn the_exit_status_is_the_commands() {
    run(&[], &["true"]).ended(0);
    run(&[], &["sh", "-c", "exit 3"]).ended(3);
    run(&[], &["sh", "-c", "kill -TERM $$"]).ended(128 + libc::SIGTERM);
    run(&[], &["sh", "-c", "kill -SEGV $$"]).ended(128 + libc::SIGSEGV);
    let missing = run(&[], &["/nonexistent/program"]).ended(127);
    assert!(
        missing.err.contains("'/nonexistent/program'"),
        "{}",
        missing.err
    );
    run(&[], &["/dev/null"]).ended(126);
}

#[test]
fn a_signal_that_run_was_started_to_ignore_is_ignored_by_the_command() {
    let inner =
        format!("trap '' TERM; exec {GPUSLICE} run --sim 1xH200 -- sh -c 'kill -TERM $$; exit 5'");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &inner]);
    finish(shell).ended(5);
}

#[test]
fn a_signal_to_run_reaches_the_command() {
    let node = Node::start("1xH200");
    let mut slice = node.slice(&["--memory", "1GiB"]);
    // SAFETY: kill(2) of a child that has not been waited for.
    unsafe { libc::kill(slice.0.id() as i32, libc::SIGTERM) };
    // Not `wait`, which closes the command's input first, and so ends it before the signal does.
    wait_until("the signal has ended it", || {
        slice.0.try_wait().unwrap().is_some()
    });
    assert_eq!(slice.0.wait().unwrap().code(), Some(128 + libc::SIGTERM));
}

#[test]
fn our_own_failures_are_one_line_and_125() {
    run(&["--isolation", "mig"], &["true"]).refused(&["mig", "not in this version", "guard"]);
    run(&["--isolation", "shim"], &["true"]).refused(&["shim", "not in this version"]);
    run(&["--name", "a/b"], &["true"]).refused(&["--name \"a/b\""]);
    run(&["--memory", "2TiB"], &["true"]).refused(&["2 TiB"]);
    run(&["--user", "no-such-user"], &["true"]).refused(&["no-such-user"]);
    gpuslice(&["run", "--sim", "3xA100", "--", "true"]).refused(&["3xA100", "H200"]);
    gpuslice(&["run", "--sim", "/nonexistent/socket", "--", "true"])
        .refused(&["/nonexistent/socket", "gpuslice sim"]);
    gpuslice(&["run", "--without", "quota_exact", "--", "true"]).refused(&["--without", "--sim"]);
    run(&["--name", "a\nb"], &["true"]).refused(&["--name \"a\\nb\""]);
    // Usage errors are ours too.
    let usage = |words: &[&str], said: &[&str]| {
        let done = gpuslice(words);
        done.refused(said);
        assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    };
    usage(
        &["run", "--memory", "-5GiB", "--", "true"],
        &["size \"-5GiB\"", "--memory"],
    );
    usage(
        &["run", "--memory", "2GB", "--", "true"],
        &["2GB", "--help"],
    );
    usage(
        &["run", "--call-rate", "abc", "--", "true"],
        &["abc", "--call-rate"],
    );
    usage(&["run", "--call-rate", "-5", "--", "true"], &["-5"]);
    usage(&["run", "--sim", "1xH200"], &["<CMD>", "--help"]);
    usage(&["rum"], &["rum"]);
}

/// UUIDs of the cards that a program in the slice sees.
fn seen(options: &[&str], visible: Option<&str>) -> Done {
    let mut run = command(
        &[
            &["run", "--sim", "2xH200"],
            options,
            &["--", GPUSLICE, "probe", "--json"],
        ]
        .concat(),
    );
    if let Some(visible) = visible {
        run.env("CUDA_VISIBLE_DEVICES", visible);
    }
    finish(run)
}

fn uuids(done: Done) -> Vec<String> {
    let probe = done.ended(0).json();
    probe["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["uuid"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn gpu_names_a_card_by_index_uuid_or_prefix() {
    let all = uuids(seen(&[], None));
    assert_eq!(all.len(), 2);
    let second = &all[1..];
    assert_eq!(uuids(seen(&["--gpu", "1"], None)), second);
    assert_eq!(uuids(seen(&["--gpu", &all[1]], None)), second);
    assert_eq!(uuids(seen(&["--gpu", "0", "--gpu", "1"], None)), all);
    assert_eq!(
        uuids(seen(&["--gpu", "1"], Some("0"))),
        second,
        "the flag comes before the variable"
    );
    seen(&["--gpu", "2"], None).refused(&["--gpu 2", &all[0], &all[1]]);
    seen(&["--gpu", &all[0][..all[0].len() - 1]], None).refused(&["more than one"]);
}

#[test]
fn cuda_visible_devices_chooses_the_cards_of_the_slice() {
    let all = uuids(seen(&[], None));
    assert_eq!(uuids(seen(&[], Some("1"))), all[1..]);
    assert_eq!(uuids(seen(&[], Some(&all[1]))), all[1..]);
    assert_eq!(
        uuids(seen(&[], Some("1,0"))),
        [all[1].clone(), all[0].clone()],
        "the program's order is its own"
    );
    seen(&[], Some("")).refused(&["CUDA_VISIBLE_DEVICES"]);
    seen(&[], Some("5")).refused(&["CUDA_VISIBLE_DEVICES=5"]);
    // The variable is a wish; the slice is the limit.
    let words = [
        "run",
        "--sim",
        "2xH200",
        "--gpu",
        "1",
        "--",
        "env",
        "CUDA_VISIBLE_DEVICES=0,1",
        GPUSLICE,
        "probe",
        "--json",
    ];
    assert_eq!(uuids(gpuslice(&words)), all[1..]);
}

#[test]
fn quotas_on_a_card_never_sum_above_it() {
    let node = Node::start("1xH200");
    let first = node.slice(&["--memory", "100GiB", "--name", "first"]);
    assert_eq!(node.names(), ["first"]);
    let more = ["--memory", "100GiB", "--name", "second"];
    gpuslice(&node.run(&more, &["true"])).refused(&["100 GiB", "first"]);
    gpuslice(&node.run(&[&more[..], &["--overcommit"]].concat(), &["true"])).ended(0);
    gpuslice(&node.run(&["--name", "first", "--memory", "1GiB"], &["true"]))
        .refused(&["'first'", "--name"]);
    let rest = gpuslice(&node.run(&[], &[GPUSLICE, "probe", "--json"]))
        .ended(0)
        .json();
    assert!(
        total(&rest) < 40 * GIB,
        "what nobody else was granted: {rest}"
    );
    drop(first);
    wait_until("the first slice has ended", || node.names().is_empty());
    gpuslice(&node.run(&more, &["true"])).ended(0);
}

#[test]
fn a_slice_is_given_back_when_run_returns() {
    let node = Node::start("1xH200");
    let program = [GPUSLICE, "probe", "--alloc", "40GiB", "--json"];
    for _ in 0..3 {
        // The whole card, under one name: each needs what the one before it held.
        let done = gpuslice(&node.run(&["--name", "all"], &program)).ended(0);
        let reached = done.json()["alloc"]["reached_bytes"]
            .as_u64()
            .expect("a size");
        assert_eq!(reached, 120 * GIB, "{}", done.out);
    }
}

#[test]
fn a_killed_supervisor_frees_its_slice() {
    let node = Node::start("1xH200");
    let mut slice = node.slice(&["--memory", "100GiB", "--name", "killed"]);
    slice.0.kill().unwrap();
    slice.0.wait().unwrap();
    wait_until("its helper and its command have ended", || {
        node.names().is_empty()
    });
}

#[test]
fn a_program_left_running_keeps_its_slice() {
    let node = Node::start("1xH200");
    let script = "sleep 60 >/dev/null 2>&1 </dev/null & echo $!";
    let done = gpuslice(&node.run(
        &["--name", "left", "--memory", "1GiB"],
        &["sh", "-c", script],
    ))
    .ended(0);
    assert_eq!(node.names(), ["left"]);
    let pid: i32 = done.out.trim().parse().unwrap();
    // SAFETY: kill(2) of the program that the line above shows to be alive.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    wait_until("the slice has ended", || node.names().is_empty());
}

#[test]
fn a_node_outlives_its_starter_while_a_slice_on_it_lives() {
    let folder = Folder::new("outlive");
    let out = folder.path().join("probe");
    let script = format!(
        "(sleep 0.3; exec {GPUSLICE} probe --json) >{} 2>&1 </dev/null &",
        out.display()
    );
    let mut run = command(&[
        "run", "--sim", "1xH200", "--memory", "3GiB", "--", "sh", "-c", &script,
    ]);
    run.env("TMPDIR", folder.path());
    finish(run).ended(0);
    wait_until("the probe has written", || {
        fs::read_to_string(&out).is_ok_and(|text| text.ends_with('\n'))
    });
    let text = fs::read_to_string(&out).unwrap();
    assert!(
        text.contains(&format!("\"total_bytes\":{}", 3 * GIB)),
        "{text}"
    );
    wait_until("the node and its folder are gone", || {
        fs::read_dir(folder.path()).unwrap().count() == 1
    });
}

#[test]
fn the_tenant_inherits_nothing_of_ours() {
    let list = ["ls", "/proc/self/fd"];
    // What this process hands on to every child of its own.
    let without = String::from_utf8(
        std::process::Command::new(list[0])
            .arg(list[1])
            .output()
            .unwrap()
            .stdout,
    )
    .unwrap();
    let within = run(&["--memory", "1GiB"], &list).ended(0);
    assert_eq!(within.out, without);
}

#[test]
fn a_slice_inside_a_slice_is_refused_with_the_reason() {
    let inner = format!("{GPUSLICE} run --sim 1xH200 -- true");
    run(&["--memory", "1GiB"], &["sh", "-c", &inner]).refused(&["already inside a slice"]);
    // On the node of the outer one, whose driver answers only through the slice.
    let inner = format!("{GPUSLICE} run --memory 1GiB -- true");
    run(&["--memory", "1GiB"], &["sh", "-c", &inner]).refused(&["already inside a slice"]);
}

#[test]
fn the_limit_does_not_hang_on_what_the_tenant_can_change() {
    let unset = [
        "env",
        "-u",
        "GPUSLICE_NAME",
        "-u",
        "LD_PRELOAD",
        GPUSLICE,
        "probe",
        "--json",
    ];
    assert_eq!(
        total(&run(&["--memory", "2GiB"], &unset).ended(0).json()),
        2 * GIB
    );
    // A program without a dynamic linker, that makes the driver's calls itself.
    let quota = (2 * GIB).to_string();
    let words = [
        GPUSLICE,
        "__tenant",
        "static_binary_limited",
        &quota,
        env!("GPUSLICE_ATTACKER"),
    ];
    let done = run(&["--memory", "2GiB"], &words).ended(0);
    assert!(done.out.contains("\"held\":true"), "{}", done.out);
}

#[test]
fn as_root_each_slice_has_its_own_user() {
    if !is_root() {
        eprintln!("not run: only root can run commands as other users");
        return;
    }
    let folder = Folder::new("user");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = folder.path().join("gpuslice");
    fs::copy(GPUSLICE, &binary).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    let binary = binary.to_str().unwrap();
    let node = Node::start("1xH200");
    let _root = node.slice(&["--memory", "60GiB", "--name", "root"]);
    let probe = [binary, "probe", "--alloc", "1GiB", "--json"];
    let probe = gpuslice(&node.run(&["--memory", "8GiB", "--user", "nobody"], &probe))
        .ended(0)
        .json();
    assert_eq!(total(&probe), 8 * GIB);
    assert_eq!(probe["alloc"]["refused_with"], "CUDA_ERROR_OUT_OF_MEMORY");
    let who = gpuslice(&node.run(
        &["--memory", "1GiB", "--user", "nobody"],
        &[
            "sh",
            "-c",
            "id -un; echo $HOME; grep NoNewPrivs /proc/self/status",
        ],
    ));
    let lines: Vec<String> = who.ended(0).out.lines().map(str::to_owned).collect();
    assert_eq!(lines[0], "nobody");
    assert_ne!(lines[1], "/root");
    assert_eq!(lines[2], "NoNewPrivs:\t1");
}

#[test]
fn where_nothing_is_free_a_run_without_memory_says_so() {
    let node = Node::start("1xH200");
    let _all = node.slice(&["--name", "all"]);
    gpuslice(&node.run(&[], &["true"])).refused(&["granted to others", "--overcommit"]);
    gpuslice(&node.run(&["--memory", "1GiB"], &["true"])).refused(&["\"all\"", "--overcommit"]);
}

#[test]
fn where_no_slice_can_be_made_the_demo_says_so_and_no_wall_falls() {
    let done = run(&["--memory", "1GiB"], &[GPUSLICE, "demo"]);
    assert!(
        !done.out.contains("all 13") && !done.err.contains("FELL"),
        "{}",
        done.err
    );
    done.refused(&["no slice can be made here"]);
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing_behind() {
    let folder = Folder::new("interrupted");
    let entries = || fs::read_dir(folder.path()).unwrap().count();
    let mut demo = command(&["demo"]);
    demo.env("TMPDIR", folder.path())
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // A shell starts what runs in the background with this signal ignored, and so would these tests.
    // SAFETY: signal(2) is async-signal-safe.
    unsafe {
        demo.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        });
    }
    let mut demo = demo.spawn().unwrap();
    let mut said = BufReader::new(demo.stderr.take().unwrap()).lines();
    let first_held = said.find(|line| line.as_ref().unwrap().contains("held:"));
    assert!(first_held.is_some() && entries() > 0);
    // As a terminal does for Ctrl-C.
    // SAFETY: kill(2) of the group of a child that has not been waited for.
    unsafe { libc::kill(-(demo.id() as i32), libc::SIGINT) };
    assert_eq!(demo.wait().unwrap().signal(), Some(libc::SIGINT));
    wait_until("its folders are removed", || entries() == 0);
}

#[test]
fn a_simulated_node_leaves_nothing_behind() {
    let folder = Folder::new("behind");
    let mut run = command(&["run", "--sim", "1xH200", "--memory", "1GiB", "--", "true"]);
    run.env("TMPDIR", folder.path());
    finish(run).ended(0);
    wait_until("its folder is removed", || {
        fs::read_dir(folder.path()).unwrap().count() == 0
    });
}
