//! Builds what travels inside the binary: the CUDA library of the simulated GPU (as a nested cargo build, since stable
//! cargo has no artifact dependencies) and a really static attacker program for the demo and the tests.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Package of the simulated GPU's CUDA library.
const SIMCUDA: &str = "gpuslice-simcuda";

/// Set for the outer build and wrong for the nested one: flags and wrappers meant for other targets or tools (clippy,
/// coverage), and folders whose lock the outer cargo holds.
const NOT_FOR_NESTED: &[&str] = &[
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CLIPPY_ARGS",
    "CARGO_BUILD_TARGET",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET_DIR",
];

fn main() {
    let workspace = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../..");
    let out = PathBuf::from(variable("OUT_DIR"));
    println!("cargo::rerun-if-changed=build.rs");
    // The library and the workspace's crates it is made of.
    for folder in ["simcuda", "simgpu", "cuda", "rm"] {
        watch(&workspace.join("crates").join(folder).join("src"));
        watch(&workspace.join("crates").join(folder).join("Cargo.toml"));
    }
    watch(&workspace.join("crates/simcuda/build.rs"));
    watch(&workspace.join("Cargo.toml"));
    watch(&workspace.join("Cargo.lock"));
    println!(
        "cargo::rustc-env=GPUSLICE_SIMCUDA={}",
        simcuda(&out).display()
    );

    let attacker = workspace.join("crates/testkit/static/attacker.rs");
    watch(&attacker);
    println!(
        "cargo::rustc-env=GPUSLICE_ATTACKER={}",
        static_program(&attacker, &out).display()
    );
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|e| panic!("cargo sets {name} for build scripts: {e}"))
}

fn watch(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}

fn simcuda(out: &Path) -> PathBuf {
    let (target, folder) = (variable("TARGET"), out.join("embed"));
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args([
            "build",
            "--locked",
            "--profile",
            "embed",
            "-p",
            SIMCUDA,
            "--target",
            &target,
            "--target-dir",
        ])
        .arg(&folder)
        // Where a configuration file names a build folder of its own, the outer cargo holds its lock.
        .env("CARGO_BUILD_BUILD_DIR", &folder);
    for name in NOT_FOR_NESTED {
        cargo.env_remove(name);
    }
    run(&mut cargo);
    folder.join(target).join("embed/libsimcuda.so")
}

/// Compiles one source file to a program with no dynamic linker at all, so that no preloaded library can reach it.
fn static_program(source: &Path, out: &Path) -> PathBuf {
    let program = out.join("attacker");
    run(Command::new(variable("RUSTC"))
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "bin",
            "--target",
            &variable("TARGET"),
        ])
        .args([
            "-C",
            "panic=abort",
            "-C",
            "target-feature=+crt-static",
            "-C",
            "relocation-model=static",
        ])
        .args(["-C", "opt-level=2", "-C", "strip=symbols"])
        .arg("-o")
        .args([&program, source]));
    program
}

fn run(command: &mut Command) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => {
            eprintln!(
                "gpuslice: the static attacker of the demo cannot be built ({status}); install the C library for static \
                 linking (Debian, Ubuntu: libc6-dev; Fedora, RHEL: glibc-static)\n{command:?}"
            );
            std::process::exit(1)
        }
        Err(e) => panic!("{command:?} cannot be started: {e}"),
    }
}
