//! A tenant's file in the registry, whatever is in it: another version wrote it, or a writer was cut off.
//!
//! `PROPTEST_CASES` says how many cases are tried.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use guard::registry::{Entry, Registry};
use proptest::prelude::*;

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "gpuslice-registry-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Folder(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What a failed test leaves behind is no reason to fail again.
        let _removed = fs::remove_dir_all(&self.0);
    }
}

/// Takes the lock that says that the tenant lives, as its supervisor does.
fn hold(file: &File) {
    // SAFETY: flock(2) takes a descriptor that is open and a number.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
}

fn entry() -> impl Strategy<Value = Entry> + Clone {
    let memory = proptest::collection::vec(("[a-zA-Z0-9-]{0,8}", any::<u64>()), 0..3);
    let channels = proptest::collection::vec(("[a-zA-Z0-9-]{0,8}", any::<u32>()), 0..3);
    (
        any::<(i32, u32, Option<u32>)>(),
        (memory, channels),
        "[a-z]{1,6}",
        ".{0,12}",
    )
        .prop_map(
            |((pid, uid, helper_uid), (memory, channels), name, command)| Entry {
                version: 2,
                name,
                pid,
                uid,
                memory,
                channels,
                helper_uid,
                command,
                unknown: Vec::new(),
            },
        )
}

/// An entry as it is written, and what can become of it.
fn contents() -> impl Strategy<Value = Vec<u8>> {
    let written = entry().prop_map(|entry| serde_json::to_vec(&entry).expect("an entry is JSON"));
    let spoiled = (
        written.clone(),
        any::<prop::sample::Index>(),
        any::<u8>(),
        any::<bool>(),
    )
        .prop_map(|(mut bytes, at, byte, cut)| {
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] = byte;
            }
            bytes
        });
    prop_oneof![
        written,
        spoiled,
        proptest::collection::vec(any::<u8>(), 0..48)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_live_tenants_file_is_read_or_named_in_one_line(bytes in contents()) {
        let folder = Folder::new();
        let registry = Registry::in_folder(&folder.0).expect("a registry");
        let path = folder.0.join("some.tenant");
        fs::write(&path, &bytes).expect("written");
        let file = File::open(&path).expect("there");
        hold(&file);
        match registry.tenants() {
            Ok(tenants) => {
                let read: Entry = serde_json::from_slice(&bytes).expect("what was listed is an entry");
                prop_assert_eq!(tenants, vec![read]);
            }
            Err(refused) => prop_assert_eq!(refused.to_string().lines().count(), 1, "{}", refused),
        }
        prop_assert!(path.exists(), "a live tenant's file stays");
    }

    #[test]
    fn a_dead_tenants_file_is_removed_whatever_it_holds(bytes in contents()) {
        let folder = Folder::new();
        let registry = Registry::in_folder(&folder.0).expect("a registry");
        let path = folder.0.join("some.tenant");
        fs::write(&path, &bytes).expect("written");
        prop_assert_eq!(registry.tenants().expect("nobody lives"), vec![]);
        prop_assert!(!path.exists());
    }
}
