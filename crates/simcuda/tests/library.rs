//! The library as programs meet it: a simulated node in this process, and each case in a program of its own that loads
//! the library by its path and calls it through the C interface.
//!
//! It has no test harness, because it is both sides: run by cargo it is the node and starts the programs, run
//! with the library's path in the environment it is a program.

#[path = "support/api.rs"]
mod api;
#[path = "support/cases/mod.rs"]
mod cases;
#[path = "support/parity.rs"]
mod parity;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use simgpu::server::{Running, start};

/// A node that lives as long as one case.
struct Node {
    _running: Running,
    socket: PathBuf,
    library: PathBuf,
}

impl Node {
    fn new(name: &str, spec: &str, library: &Path) -> Node {
        let socket =
            std::env::temp_dir().join(format!("simcuda-{}-{name}.sock", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let spec = spec.parse().expect("the case names a node");
        Node {
            _running: start(&spec, &socket).expect("the node starts"),
            socket,
            library: library.to_owned(),
        }
    }

    /// A program that runs a case against this node.
    fn program(&self, case: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command
            .arg(case)
            .env("GPUSLICE_SIM", &self.socket)
            .env(LIBRARY, &self.library)
            .env_remove("CUDA_VISIBLE_DEVICES");
        command
    }
}

/// Builds the library as the tests were built, into their target folder; gives its path. (Cargo builds no cdylib for
/// the tests of its own package.)
fn build() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    // .../TARGET/PROFILE/deps/library-HASH
    let profile_folder = program.parent()?.parent()?;
    let target = profile_folder.parent()?;
    let profile = match profile_folder.file_name()?.to_str()? {
        "debug" => "dev",
        other => other,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--package",
            env!("CARGO_PKG_NAME"),
            "--profile",
            profile,
        ])
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .status();
    let library = profile_folder.join("libsimcuda.so");
    (built.ok()?.success() && library.exists()).then_some(library)
}

/// Tells a program where the library is.
const LIBRARY: &str = "SIMCUDA_LIBRARY";

/// The cases, and the node that each runs against.
const CASES: &[(&str, &str)] = &[
    ("exports", "1xH200"),
    ("b20_nothing_given", "1xH200"),
    ("b40_first_calls", "1xH200"),
    ("b56_process_lists", "1xH200"),
    ("memory", "1xH200"),
    ("small_memory", "1xH200"),
    ("limits", "1xH200"),
    ("kernels", "1xH200"),
    ("streams", "1xH200"),
    ("graphs", "1xH200"),
    ("pools", "1xH200"),
    ("virtual_memory", "1xH200"),
    ("managed", "1xH200"),
    ("host_memory", "1xH200"),
    ("arrays", "1xH200"),
    ("contexts", "1xH200"),
    ("threads", "1xH200"),
    ("signals", "1xH200"),
    ("fork", "1xH200"),
    ("errors", "1xH200"),
    ("devices", "2xH200"),
    ("nvml", "2xH200"),
    ("ipc", "1xH200"),
    ("shared_file", "1xH200"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(library) = std::env::var_os(LIBRARY) {
        let case = arguments.first().map_or("", String::as_str);
        let known = cases::run(case, Path::new(&library));
        return if known {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    let Some(library) = build() else {
        println!("the library does not build");
        return ExitCode::FAILURE;
    };
    // A word selects cases by name, as with the usual harness; its options are not known here.
    let wanted = arguments
        .iter()
        .find(|argument| !argument.starts_with('-'))
        .map_or("", String::as_str);
    let mut failed = Vec::new();
    let mut passed = 0;
    let mut report = |name: &str, good: bool| {
        println!("test {name} ... {}", if good { "ok" } else { "FAILED" });
        if good {
            passed += 1
        } else {
            failed.push(name.to_owned())
        }
    };
    for (name, spec) in CASES.iter().filter(|(name, _)| name.contains(wanted)) {
        let node = Node::new(name, spec, &library);
        report(name, finishes(&mut node.program(name)));
    }
    for (value, expected) in VISIBLE
        .iter()
        .filter(|_| "visible_devices".contains(wanted))
    {
        let node = Node::new("visible", "2xH200", &library);
        let mut program = node.program("visible");
        program
            .env("CUDA_VISIBLE_DEVICES", value)
            .env("EXPECTED", expected);
        report(&format!("visible_devices={value}"), finishes(&mut program));
    }
    if "no_node".contains(wanted) {
        let node = Node::new("none", "1xH200", &library);
        report(
            "no_node",
            finishes(
                node.program("no_node")
                    .env("GPUSLICE_SIM", "/nonexistent/socket"),
            ),
        );
        report(
            "no_variable",
            finishes(node.program("no_node").env_remove("GPUSLICE_SIM")),
        );
    }
    if "parity".contains(wanted) {
        let node = Node::new("parity", "1xH200", &library);
        report("parity", parity::check(&mut node.program("parity")));
    }
    println!("\n{passed} passed, {} failed", failed.len());
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Values of `CUDA_VISIBLE_DEVICES` on a node of two GPUs, and the last byte of each visible GPU's UUID.
const VISIBLE: &[(&str, &str)] = &[
    ("0", "0"),
    ("1,0", "1 0"),
    ("1,5,0", "1"),
    ("GPU-53494d00-4832-4000-8000-677075736c01", "1"),
    ("", "none"),
    ("0,0", "none"),
    ("-1", "none"),
];

/// Whether a program ends well; one that hangs is ended.
fn finishes(program: &mut Command) -> bool {
    const PATIENCE_S: u64 = 120;
    let Ok(mut child) = program.stdin(Stdio::null()).spawn() else {
        return false;
    };
    for _ in 0..PATIENCE_S * 100 {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => std::thread::sleep(std::time::Duration::from_millis(10)),
            Err(_) => return false,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}
