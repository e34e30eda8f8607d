//! The audit: memory that nobody charged ends the tenant, or is reported.
//!
//! The tests run themselves inside `gpuslice run`, on a simulated node; there they are the tenant.

use std::os::fd::AsRawFd;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use testkit::raw::{Node, Uvm};

const INSIDE: &str = "GPUSLICE_AUDIT_INSIDE";
/// Two audits in a row condemn a tenant; they are a second apart.
const AUDITS: Duration = Duration::from_secs(5);

fn slice(test: &str, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuslice"))
        .args(["run", "--sim", "1xH200", "--memory", "1GiB"])
        .args(options)
        .arg("--")
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("GPUSLICE_SIM")
        .stdin(Stdio::null())
        .output()
        .expect("start")
}

/// Maps the UVM file as a racing thread would that swaps the descriptor of an `mmap` after guard has looked: here at
/// offset 0, which the filter does not notify and only a stand-in takes.
fn map_uncharged() {
    const LENGTH: usize = 64 << 20;
    let uvm = Uvm::open(&Node::from_environment()).expect("the uvm file");
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice; nobody uses it.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            LENGTH,
            protection,
            flags,
            uvm.file().as_raw_fd(),
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    std::thread::sleep(AUDITS);
    println!("goes on");
}

fn texts(done: &Output) -> (String, String) {
    (
        String::from_utf8_lossy(&done.stdout).into_owned(),
        String::from_utf8_lossy(&done.stderr).into_owned(),
    )
}

#[test]
fn threat_07_a_mapping_that_nobody_charged_ends_the_tenant() {
    if std::env::var_os(INSIDE).is_some() {
        return map_uncharged();
    }
    let done = slice(
        "threat_07_a_mapping_that_nobody_charged_ends_the_tenant",
        &["--name", "racer"],
    );
    let (out, err) = texts(&done);
    assert!(!out.contains("goes on"), "{out}");
    assert_eq!(done.status.code(), Some(128 + libc::SIGKILL), "{err}");
    let why = err
        .lines()
        .find(|line| line.contains("ending the tenant 'racer'"));
    assert!(
        why.is_some_and(|why| why.contains("64 MiB") && why.contains("never charged")),
        "{err}"
    );
}

#[test]
fn where_it_only_reports_the_tenant_goes_on() {
    if std::env::var_os(INSIDE).is_some() {
        return map_uncharged();
    }
    let done = slice(
        "where_it_only_reports_the_tenant_goes_on",
        &["--audit-report-only"],
    );
    let (out, err) = texts(&done);
    assert!(
        done.status.success() && out.contains("goes on"),
        "{out}{err}"
    );
    let reports = err
        .lines()
        .filter(|line| line.contains("audit:") && line.contains("never charged"));
    assert_eq!(reports.count(), 1, "{err}");
}
