//! `setup`: the wall round the device files; and what a slice's control group is for.

use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::raw;

use crate::common::{Folder, GPUSLICE, Node, command, command_of, finish, gpuslice, is_root};

const PART: &str = "GPUSLICE_SETUP_PART";

/// A node of a device that everybody may open and nobody here needs: the processor's identification (major 203 in the
/// kernel's list of devices). It is locked in the driver's stead.
struct Device {
    folder: Folder,
    path: PathBuf,
    _alone: fs::File,
}

/// All tests lock one number, those of another run on this machine as well.
fn alone() -> fs::File {
    let path = std::env::temp_dir().join("gpuslice-tests-lock-devices");
    let file = fs::File::create(path).expect("a file");
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
    file
}

impl Device {
    /// `None`, and said so: this machine cannot try it.
    fn new(name: &str) -> Option<Device> {
        let skip = |why: &str| eprintln!("NOT RUN: {why}");
        if !is_root() {
            skip("only root can lock devices");
            return None;
        }
        let folder = Folder::new(name);
        let path = folder.path().join("device");
        let c_path = CString::new(path.as_os_str().as_bytes()).expect("a path");
        let kind = libc::S_IFCHR | 0o666;
        // SAFETY: the path is a terminated string; the rest are integers.
        if unsafe { libc::mknod(c_path.as_ptr(), kind, libc::makedev(203, 0)) } < 0 {
            skip("no right to make device nodes");
            return None;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("a mode");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
        let device = Device {
            folder,
            path,
            _alone: alone(),
        };
        if !device.opens() {
            skip("no driver of the processor's identification (module cpuid)");
            return None;
        }
        let state = device.setup(&["--json"]).ended(0).json();
        if let Some(why) = state["obstacle"].as_str() {
            skip(why);
            return None;
        }
        Some(device)
    }

    fn name(&self) -> &str {
        self.path.to_str().expect("a path in UTF-8")
    }

    fn setup(&self, words: &[&str]) -> crate::common::Done {
        gpuslice(&[&["setup", "--device", self.name()], words].concat())
    }

    /// `gpuslice` by an ordinary user, who may not be able to enter the folder that it was built in.
    fn by_a_user(&self, words: &[&str]) -> Command {
        let copy = self.folder.path().join("gpuslice");
        if !copy.exists() {
            // By a process of its own: a program that another thread's child still has open for writing cannot be started.
            let copied = Command::new("cp").arg(GPUSLICE).arg(&copy).status();
            assert!(copied.expect("cp").success());
        }
        let mut run = command_of(&copy, words);
        run.uid(65534).gid(65534).env_remove("XDG_RUNTIME_DIR");
        run
    }

    fn opens(&self) -> bool {
        fs::File::open(&self.path).is_ok()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.setup(&["--unlock-devices"]);
    }
}

#[test]
fn threat_10_a_locked_device_opens_in_slices_only() {
    let Some(device) = Device::new("wall") else {
        return;
    };
    assert!(device.opens());
    device.setup(&["--check"]).refused(&["not locked"]);
    let held = fs::File::open(&device.path).expect("open to all");
    // Whoever locks ends at once; the wall stays.
    let report = device.setup(&["--lock-devices", "--check", "--json"]);
    let report = report.ended(0).json();
    assert_eq!(report["device_files"], "locked");
    assert_eq!(report["majors"], serde_json::json!([203]));
    assert_eq!(
        (&report["check"]["outside"], &report["check"]["inside"]),
        (&"refused".into(), &"opened".into())
    );
    let handed_out = &report["check"]["handed_out"];
    if report["handing_on_locked"] == true {
        assert_eq!(handed_out, "refused");
    } else {
        let why = &report["handing_on_obstacle"];
        eprintln!("NOT RUN: open devices that are handed out: {why}");
        // Else the wall would say less than is so.
        assert_eq!(handed_out, "arrived");
    }
    let holders = report["holders"].as_array().expect("a list");
    let me = std::process::id();
    assert!(holders.iter().any(|h| h["pid"] == me), "{report}");
    drop(held);
    assert!(!device.opens());
    let read = format!("exec <{} && echo opened", device.name());
    let node = Node::start("1xH200");
    for user in [&[][..], &["--user", "nobody"]] {
        let options = [&["--memory", "1GiB", "--device", device.name()], user].concat();
        let slice = gpuslice(&node.run(&options, &["sh", "-c", &read])).ended(0);
        assert_eq!(slice.out, "opened\n");
    }
    // In a slice that was not let in, as outside of all.
    let stranger = gpuslice(&node.run(&["--memory", "1GiB"], &["sh", "-c", &read]));
    assert_ne!(stranger.code, Some(0), "{}", stranger.out);
    // Once more changes nothing.
    device.setup(&["--lock-devices", "--check"]).ended(0);
    device.setup(&["--unlock-devices"]).ended(0);
    assert!(device.opens());
}

#[test]
fn doctor_says_whether_devices_are_locked_and_who_holds_them_still() {
    let Some(device) = Device::new("doctor") else {
        return;
    };
    let node = Node::start("1xH200");
    let words = [
        "doctor",
        "--json",
        "--sim",
        &node.socket,
        "--device",
        device.name(),
    ];
    let check = || {
        let report = gpuslice(&words).json();
        let checks = report["checks"].as_array().expect("a list").clone();
        let found = checks.into_iter().find(|c| c["name"] == "device files");
        found.expect("a check")
    };
    let said = |check: &serde_json::Value, word: &str| {
        let found = check["found"].as_str().expect("a text");
        assert!(found.contains(word), "{word} in {check}");
    };
    let held = fs::File::open(&device.path).expect("open to all");
    device.setup(&["--lock-devices"]).ended(0);
    let seen = check();
    assert_eq!(seen["state"], "weak");
    said(&seen, &format!("{} (", std::process::id()));
    // Mapped or open: the descriptor is what this device has.
    drop(held);
    let seen = check();
    said(&seen, "only the slices that root starts");
    let whole = device.setup(&["--json"]).json()["handing_on_locked"] == true;
    assert_eq!(seen["state"], if whole { "fine" } else { "weak" });
    let users = finish(device.by_a_user(&words)).ended(1).json();
    assert!(
        users["checks"]
            .to_string()
            .contains("locked to the slices that root starts")
    );
    device.setup(&["--unlock-devices"]).ended(0);
    assert_ne!(check()["state"], "fine");
}

#[test]
fn on_a_locked_node_an_ordinary_users_run_says_whose_it_is() {
    let Some(device) = Device::new("users") else {
        return;
    };
    let as_user = |words: &[&str]| finish(device.by_a_user(words));
    // Whatever the mode of the BPF file system is: an open device is told from a locked one.
    let words = ["setup", "--json", "--device", device.name()];
    assert_eq!(as_user(&words).ended(0).json()["device_files"], "open");
    device.setup(&["--lock-devices"]).ended(0);
    let files = Path::new("/sys/fs/bpf");
    let mode = fs::metadata(files).expect("mounted").permissions();
    for bits in [0o700, 0o755] {
        fs::set_permissions(files, fs::Permissions::from_mode(bits)).expect("a mode");
        let seen = as_user(&words).ended(0).json();
        assert_eq!(seen["device_files"], "locked_to_us", "{bits:o}");
    }
    device.setup(&["--unlock-devices"]).ended(0);
    fs::set_permissions(files, fs::Permissions::from_mode(0o700)).expect("a mode");
    assert_eq!(as_user(&words).ended(0).json()["device_files"], "open");
    fs::set_permissions(files, mode).expect("a mode");
    device.setup(&["--lock-devices"]).ended(0);
    let run = [
        "run",
        "--sim",
        "1xH200",
        "--device",
        device.name(),
        "--",
        "true",
    ];
    as_user(&run).refused(&["locked", "sudo gpuslice run"]);
    let words = ["setup", "--device", device.name()];
    let state = as_user(&words).ended(0);
    assert!(state.out.contains("locked to the slices that root starts"));
    as_user(&[&words[..], &["--lock-devices"]].concat()).refused(&["only root"]);
    as_user(&[&words[..], &["--unlock-devices"]].concat()).refused(&["needs root"]);
}

#[test]
fn threat_10_a_file_of_the_driver_that_is_open_already_is_refused() {
    let node = Node::start("1xH200");
    let file = raw::Node::simulated(Path::new(&node.socket))
        .open(raw::File::Control)
        .expect("a file");
    let number = file.as_raw_fd();
    let mut run = command(&node.run(&["--memory", "1GiB"], &["true"]));
    // SAFETY: fcntl(2) is async-signal-safe and takes integers.
    unsafe {
        run.pre_exec(move || match libc::fcntl(number, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    finish(run).refused(&[&format!("descriptor {number}"), "Control", "close it"]);
    gpuslice(&node.run(&["--memory", "1GiB"], &["true"])).ended(0);
}

/// So long a chain of forks goes on by itself.
const CHAIN: Duration = Duration::from_secs(20);

#[test]
fn threat_08_a_chain_of_forks_ends_with_its_helper() {
    const TEST: &str = "setup::threat_08_a_chain_of_forks_ends_with_its_helper";
    if std::env::var_os(PART).is_some() {
        // SAFETY: takes nothing and cannot fail.
        println!("\nhelper {}", unsafe { libc::getppid() });
        fork_in_a_chain();
    }
    if guard::device_wall::Place::without_wall().is_err() {
        eprintln!("NOT RUN: this user can make no control group here");
        return;
    }
    let node = Node::start("1xH200");
    let program = std::env::current_exe().expect("this program");
    let program = program.to_str().expect("a path in UTF-8");
    let words = [program, "--exact", TEST, "--nocapture", "-q"];
    let mut run = command(&node.run(&["--memory", "1GiB"], &words));
    let mut run = run
        .env(PART, "chain")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("start");
    let mut lines = BufReader::new(run.stdout.take().expect("piped"));
    let mut line = String::new();
    while !line.starts_with("helper ") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).expect("a pipe"), 0);
    }
    let helper = line[7..].trim().parse().expect("a pid");
    let start = Instant::now();
    guard::sys::kill(helper, libc::SIGKILL).expect("a helper");
    assert_eq!(run.wait().expect("a child").code(), Some(125));
    // Every process of the chain holds the pipe open.
    lines.read_to_end(&mut Vec::new()).expect("a pipe");
    assert!(start.elapsed() < CHAIN / 2, "{:?}", start.elapsed());
}

/// Each process makes the next and ends at once, so that none is there for long enough to be found.
fn fork_in_a_chain() -> ! {
    let start = Instant::now();
    // The command itself stays.
    // SAFETY: as below.
    if unsafe { libc::fork() } != 0 {
        std::thread::sleep(CHAIN);
    }
    while start.elapsed() < CHAIN {
        // SAFETY: the child goes on with what needs no other thread: the clock, fork(2) and _exit(2).
        match unsafe { libc::fork() } {
            0 => {}
            // SAFETY: ends this process at once.
            _ => unsafe { libc::_exit(0) },
        }
    }
    // SAFETY: as above.
    unsafe { libc::_exit(0) }
}
