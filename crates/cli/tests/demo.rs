//! `gpuslice demo`: every wall holds, and each check fails when its wall is taken away.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_gpuslice");
/// Where the demo runs as an ordinary user, who may not be let into the build folder.
const NOBODY: &str = "65534";

const WALLS: [&str; 18] = [
    "quota_exact",
    "visible_limit",
    "race_no_overshoot",
    "alias_counted_once",
    "managed_charged",
    "mapping_outlives_free",
    "size_rounding",
    "release_by_ancestor",
    "per_device_quota",
    "foreign_detach_refused",
    "env_unset_still_limited",
    "static_binary_limited",
    "signals_no_double_charge",
    "share_3_to_1",
    "packing_held",
    "debt_survives_restart",
    "pool_per_device",
    "birth_window",
];

/// What these measure is a part of a card's time, which is never the same twice.
const SHARES: [&str; 5] = [
    "share_3_to_1",
    "packing_held",
    "debt_survives_restart",
    "pool_per_device",
    "birth_window",
];

/// One demo at a time: each uses all processors, and a fork of one test must not hold the binary that another copies.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_root() -> bool {
    guard::sys::uids().1 == 0
}

/// A copy of the binary that everybody may execute.
struct ForAll(PathBuf);

impl ForAll {
    fn new() -> ForAll {
        let folder =
            std::env::temp_dir().join(format!("gpuslice-demo-test-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(BINARY, folder.join("gpuslice")).unwrap();
        ForAll(folder)
    }

    /// The demo as an ordinary user.
    fn demo(&self, words: &[&str]) -> Output {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
            .arg(self.0.join("gpuslice"));
        command
            .arg("demo")
            .args(words)
            .env_remove("XDG_RUNTIME_DIR")
            .env("HOME", "/")
            .output()
            .unwrap()
    }
}

impl Drop for ForAll {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn demo(words: &[&str]) -> Output {
    Command::new(BINARY)
        .arg("demo")
        .args(words)
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(output)))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// The checks that fell, with what they said.
fn fallen(result: &Value) -> Vec<(String, String)> {
    let checks = result["checks"].as_array().unwrap();
    let fell = checks.iter().filter(|check| check["held"] == false);
    fell.map(|check| {
        (
            check["name"].as_str().unwrap().to_owned(),
            check.to_string(),
        )
    })
    .collect()
}

fn assert_all_hold(output: &Output) {
    let result = json(output);
    assert_eq!(fallen(&result), [], "{}", text(output));
    assert_eq!(output.status.code(), Some(0), "{}", text(output));
    let mut names: Vec<&str> = result["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    let mut walls = WALLS;
    names.sort_unstable();
    walls.sort_unstable();
    assert_eq!(names, walls);
    let checks = result["checks"].as_array().unwrap().iter();
    for check in checks.filter(|check| !SHARES.contains(&check["name"].as_str().unwrap())) {
        assert_eq!(check["measured"], check["expected"], "{check}");
    }
    let tenants = result["tenants"].as_array().unwrap();
    let quotas: Vec<u64> = tenants
        .iter()
        .map(|tenant| tenant["quota"].as_u64().unwrap())
        .collect();
    assert_eq!(quotas, [6 << 30, 20 << 30, 10 << 30]);
    assert!(result["device"].as_str().unwrap().contains("2xH200"));
}

fn assert_falls(wall: &str, output: &Output) {
    let result = json(output);
    assert_eq!(output.status.code(), Some(1), "{wall}: {}", text(output));
    let fell = fallen(&result);
    let own = fell.iter().find(|(name, _)| name == wall);
    let (_, said) =
        own.unwrap_or_else(|| panic!("without {wall} its check still held: {}", text(output)));
    // A program that could not run at all proves nothing about the wall.
    assert!(!said.contains("\"measured\":null"), "{wall}: {said}");
}

#[test]
fn every_wall_holds() {
    let _alone = alone();
    assert_all_hold(&demo(&["--json"]));
}

#[test]
fn every_wall_holds_for_an_ordinary_user() {
    let _alone = alone();
    if is_root() {
        assert_all_hold(&ForAll::new().demo(&["--json"]));
    }
}

#[test]
fn each_check_fails_when_its_wall_is_taken_away() {
    let _alone = alone();
    for wall in WALLS {
        assert_falls(wall, &demo(&["--json", "--without", wall, "--only", wall]));
    }
}

#[test]
fn each_check_fails_when_its_wall_is_taken_away_for_an_ordinary_user() {
    let _alone = alone();
    if is_root() {
        let binary = ForAll::new();
        for wall in WALLS {
            let words = ["--json", "--without", wall, "--only", wall];
            assert_falls(wall, &binary.demo(&words));
        }
    }
}

#[test]
fn without_a_wall_the_others_are_looked_at_too() {
    let _alone = alone();
    let output = demo(&["--json", "--without", "visible_limit"]);
    assert_falls("visible_limit", &output);
    let result = json(&output);
    assert_eq!(result["checks"].as_array().unwrap().len(), WALLS.len());
}

#[test]
fn people_get_a_table_and_one_closing_line() {
    let _alone = alone();
    let output = demo(&[]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for word in WALLS.iter().chain(&["alice", "bob", "mallory"]) {
        assert!(shown.contains(word), "{word} is missing: {shown}");
    }
    assert_eq!(shown.lines().last(), Some("all 18 walls held"));
}

#[test]
fn a_wall_that_does_not_exist_is_one_line_that_lists_them() {
    let _alone = alone();
    let output = demo(&["--without", "the_fourth"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(output.stdout.is_empty());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("the_fourth") && WALLS.iter().all(|wall| said.contains(wall)),
        "{said}"
    );
}
