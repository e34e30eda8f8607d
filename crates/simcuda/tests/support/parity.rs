//! The ioctls of the library against those of the real one.
//!
//! `parity.txt` holds, section by section, how often the real library made each call when it ran the same program on an
//! H200 (driver 580.159). The program here is the test's own; a small library that is loaded before ours counts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Calls by kind, with how often each was made.
type Calls = BTreeMap<String, u32>;

/// Runs the program under the counting library and compares; prints every difference.
pub fn check(program: &mut Command) -> bool {
    let folder = std::env::temp_dir().join(format!("simcuda-parity-{}", std::process::id()));
    let _ = std::fs::create_dir_all(&folder);
    let good = counted(program, &folder).is_some_and(|found| compare(&found));
    let _ = std::fs::remove_dir_all(&folder);
    good
}

fn counted(program: &mut Command, folder: &std::path::Path) -> Option<BTreeMap<String, Calls>> {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/support/counter.rs");
    let (counter, log) = (folder.join("libcounter.so"), folder.join("log"));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let built = Command::new(rustc)
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "cdylib",
            "-C",
            "panic=abort",
            "-O",
        ])
        .arg(&source)
        .arg("-o")
        .arg(&counter)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        println!("the counting library does not build");
        return None;
    }
    let ran = program
        .env("LD_PRELOAD", &counter)
        .env("CALL_LOG", &log)
        .status();
    if !ran.is_ok_and(|status| status.success()) {
        println!("the program fails");
        return None;
    }
    Some(parse(&std::fs::read_to_string(&log).ok()?, |line| {
        (line.to_owned(), 1)
    }))
}

/// Reads `## section` lines and the calls below each.
fn parse(text: &str, call: impl Fn(&str) -> (String, u32)) -> BTreeMap<String, Calls> {
    let mut sections: BTreeMap<String, Calls> = BTreeMap::new();
    let mut section = String::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix("## ") {
            section = name.to_owned();
            sections.entry(section.clone()).or_default();
        } else {
            let (kind, count) = call(line);
            *sections
                .entry(section.clone())
                .or_default()
                .entry(kind)
                .or_default() += count;
        }
    }
    sections
}

fn compare(found: &BTreeMap<String, Calls>) -> bool {
    let recorded = parse(include_str!("parity.txt"), |line| {
        match line.rsplit_once(" x") {
            Some((kind, count)) => (kind.to_owned(), count.parse().unwrap_or(0)),
            None => (line.to_owned(), 1),
        }
    });
    let none = Calls::new();
    let mut good = !recorded.is_empty();
    for (section, wanted) in &recorded {
        let made = found.get(section).unwrap_or(&none);
        for kind in wanted
            .keys()
            .chain(made.keys().filter(|kind| !wanted.contains_key(*kind)))
        {
            let (wanted, made) = (wanted.get(kind).unwrap_or(&0), made.get(kind).unwrap_or(&0));
            if wanted != made {
                println!("{section}: {kind}: recorded {wanted}, made {made}");
                good = false;
            }
        }
    }
    good
}
