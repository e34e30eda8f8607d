//! Control groups (cgroup v2): one for the programs of each slice, so that they can be ended all at once, however fast
//! they fork, and so that the device wall knows them.
//!
//! A slice's group lies below the one from which `gpuslice run` was started, so whatever limits hold there (a service's,
//! a batch job's) hold for the slice too. No controller is switched on.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the cgroup v2 hierarchy is mounted, if its root is to be seen.
pub fn mount_point() -> Option<PathBuf> {
    parse_mount(&fs::read_to_string("/proc/self/mountinfo").ok()?)
}

/// Finds it in proc_pid_mountinfo(5): the file system's type follows the word `-`.
fn parse_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut words = mount.split(' ').skip(3);
        let (root, point) = (words.next()?, words.next()?);
        (kind.starts_with("cgroup2 ") && root == "/").then(|| PathBuf::from(point))
    })
}

/// The group of this process.
///
/// # Errors
/// There is no cgroup v2 here, or this process's group is not to be seen.
pub fn own() -> io::Result<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    of_process(&text)
        .ok_or_else(|| io::Error::other("this process is in no cgroup v2 that can be seen"))
}

/// The group that a process's proc_pid_cgroup(5) names, if it can be seen.
pub fn of_process(text: &str) -> Option<PathBuf> {
    Some(mount_point()?.join(parse_own(text)?))
}

/// The v2 line of proc_pid_cgroup(5), without the first slash. A path that begins with `..` is outside of what can be
/// seen.
fn parse_own(text: &str) -> Option<&str> {
    let path = text.lines().find_map(|l| l.strip_prefix("0::/"))?;
    (!path.split('/').any(|part| part == "..") && !path.ends_with(" (deleted)")).then_some(path)
}

/// What the kernel calls a group (`bpf_get_current_cgroup_id`): the inode number of its folder. It is never given again.
///
/// # Errors
/// As stat(2).
pub fn id(folder: &Path) -> io::Result<u64> {
    Ok(fs::metadata(folder)?.ino())
}

/// Moves this process into a group.
///
/// # Errors
/// As write(2); `EACCES`: this user may not.
pub fn join(folder: &Path) -> io::Result<()> {
    fs::write(folder.join(PROCESSES), "0")
}

/// Opens the file by which all processes of a group are killed (Linux 5.14): [`kill_all`].
///
/// # Errors
/// As open(2).
pub fn killer(folder: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new()
        .write(true)
        .open(folder.join("cgroup.kill"))
}

/// Kills all processes of a group and all that they fork meanwhile.
///
/// # Errors
/// As write(2).
pub fn kill_all(mut killer: &fs::File) -> io::Result<()> {
    io::Write::write_all(&mut killer, b"1")
}

/// Whether a process lives in the group or below.
///
/// # Errors
/// As open(2).
pub fn is_populated(folder: &Path) -> io::Result<bool> {
    let events = fs::read_to_string(folder.join("cgroup.events"))?;
    Ok(events.lines().any(|l| l == "populated 1"))
}

const PROCESSES: &str = "cgroup.procs";
/// What the groups of slices begin with.
const PREFIX: &str = "gpuslice-";
/// Attempts to make a group: another `run` may take an empty one for a dead one's.
const ATTEMPTS: u32 = 16;

/// The groups of one slice: one for its supervisor and helper, and in it one for the tenant's programs.
#[derive(Debug)]
pub struct SliceGroup {
    parent: PathBuf,
    folder: PathBuf,
    tenant: PathBuf,
    /// This process is in it and must go before it can be removed.
    entered: bool,
}

impl SliceGroup {
    /// Makes the groups of a slice below this process's own.
    ///
    /// # Errors
    /// There is no cgroup v2, or this user may make none.
    pub fn new() -> io::Result<SliceGroup> {
        let parent = own()?;
        sweep(&parent);
        let mut failed = None;
        for attempt in 0..ATTEMPTS {
            let folder = parent.join(format!("{PREFIX}{}-{attempt}", std::process::id()));
            let tenant = folder.join("tenant");
            match fs::create_dir(&folder).and_then(|()| fs::create_dir(&tenant)) {
                Ok(()) => {
                    let group = SliceGroup {
                        parent,
                        folder,
                        tenant,
                        entered: false,
                    };
                    // Where these cannot be written the group is of no use.
                    killer(&group.tenant)?;
                    can_move(&group.parent, &group.tenant)?;
                    return Ok(group);
                }
                // Programs that an earlier slice left running, under the number of its process; or swept by another.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
                    ) =>
                {
                    failed = Some(e);
                }
                Err(e) => return Err(e),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EEXIST)))
    }

    /// The group of the tenant's programs.
    pub fn tenant(&self) -> &Path {
        &self.tenant
    }

    /// What the kernel calls both groups.
    ///
    /// # Errors
    /// As stat(2).
    pub fn ids(&self) -> io::Result<[u64; 2]> {
        Ok([id(&self.folder)?, id(&self.tenant)?])
    }

    /// Moves this process into the slice's group, where it is not bound to the tenant's end.
    ///
    /// # Errors
    /// As [`join`].
    pub fn enter(&mut self) -> io::Result<()> {
        join(&self.folder)?;
        self.entered = true;
        Ok(())
    }

    /// Leaves and removes the groups. False: programs are left in them.
    pub fn leave(&mut self) -> bool {
        if self.entered {
            self.entered = join(&self.parent).is_err();
        }
        remove(&self.folder)
    }
}

impl Drop for SliceGroup {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Whether this user may move processes from one group to one below it: both files must be writable (the kernel's
/// cgroup-v2 document, "Delegation"), and below a group of threads there are none of processes.
fn can_move(from: &Path, to: &Path) -> io::Result<()> {
    for folder in [from, to] {
        let file = folder.join(PROCESSES);
        fs::OpenOptions::new().write(true).open(file)?;
    }
    match fs::read_to_string(to.join("cgroup.type"))?.trim_end() {
        "domain" => Ok(()),
        other => Err(io::Error::other(format!(
            "a control group of type '{other}'"
        ))),
    }
}

/// Removes a slice's groups if no process is in them; whether they are gone.
fn remove(folder: &Path) -> bool {
    // What runs in a slice may make groups of its own below it (another gpuslice, a tenant that is root).
    remove_below(folder, DEEPEST) && gone(fs::remove_dir(folder))
}

/// Nobody needs groups so deep; whoever makes them keeps them.
const DEEPEST: usize = 32;

fn remove_below(folder: &Path, deep: usize) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        return true;
    };
    let folders = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut all = true;
    for entry in folders {
        all &=
            deep > 0 && remove_below(&entry.path(), deep - 1) && gone(fs::remove_dir(entry.path()));
    }
    all
}

fn gone(removed: io::Result<()>) -> bool {
    match removed {
        Ok(()) => true,
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes what dead slices left: their processes could not.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(pid_of) else {
            continue;
        };
        // One that is being made now is empty too.
        if !crate::sys::kill_probe(pid) {
            remove(&entry.path());
        }
    }
}

/// The process that made the groups of this name.
fn pid_of(name: &str) -> Option<i32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Waits until no process is left in a group that was killed; whether it is so.
pub fn wait_until_empty(folder: &Path, patience: Duration) -> bool {
    const PAUSE: Duration = Duration::from_millis(2);
    let start = std::time::Instant::now();
    while is_populated(folder).unwrap_or(false) {
        if start.elapsed() > patience {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_slice_made_below_its_groups_goes_with_them() {
        // Folders behave as empty groups do.
        let parent = std::env::temp_dir().join(format!("gpuslice-groups-{}", std::process::id()));
        let slice = parent.join("gpuslice-2147483000-0");
        fs::create_dir_all(slice.join("tenant/gpuslice-1-0/tenant")).unwrap();
        fs::create_dir_all(slice.join("tenant/own")).unwrap();
        sweep(&parent);
        assert!(!slice.exists());
        let deep = (0..=DEEPEST).fold(slice.clone(), |path, _| path.join("d"));
        fs::create_dir_all(&deep).unwrap();
        assert!(!remove(&slice), "too deep to be an honest program's");
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn the_hierarchy_is_found_only_with_its_root() {
        let mounts = "31 24 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            parse_mount(mounts),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        let part = "41 31 0:38 /docker/1 /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(parse_mount(part), None);
    }

    #[test]
    fn a_group_outside_of_what_can_be_seen_is_none() {
        assert_eq!(
            parse_own("9:pids:/x\n0::/user.slice/a\n"),
            Some("user.slice/a")
        );
        assert_eq!(parse_own("0::/\n"), Some(""));
        assert_eq!(parse_own("0::/../other\n"), None);
        assert_eq!(parse_own("0::/gone (deleted)\n"), None);
        assert_eq!(parse_own("9:pids:/x\n"), None);
    }

    #[test]
    fn groups_are_known_by_their_maker() {
        assert_eq!(pid_of("gpuslice-71-0"), Some(71));
        assert_eq!(pid_of("gpuslice.service"), None);
        assert_eq!(pid_of("user.slice"), None);
    }
}
