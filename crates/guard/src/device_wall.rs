//! The wall round the driver's device files: on a locked node only the control groups of slices can open them.
//!
//! On a usual node everybody may open `/dev/nvidia*`, and a program that is started outside of any slice (by cron, a
//! service manager, ssh) is under no filter of ours. So root can lock the node: a device program (cgroup v2, a dozen
//! instructions) at the *root* of the hierarchy, where it is asked whatever group the opener is in, answers no for the
//! driver's majors, unless the opener's own group is in a set that `gpuslice run` fills. A program at the root cannot be
//! answered back by one further down, as every program on the way must agree; and no group that is made later can be
//! forgotten, as with a program for each group beside ours.
//!
//! That leaves what a slice opens and hands on: over a socket (SCM_RIGHTS), or taken by pidfd_getfd(2). Where the kernel
//! can (BTF, trampolines), a second program stands before the function that the kernel asks when a process is to receive
//! an open file (`security_file_receive`) and answers by the same two sets. Where it cannot, the wall says so.
//!
//! Why not by owner and mode: they name users and not slices, so that a user's program outside would have what the same
//! user's slice has, and the driver sets them anew (NVreg_ModifyDeviceFiles).
//!
//! Program and sets are pinned in the BPF file system and so live without us, until they are unpinned or the node is
//! restarted. Making nodes (mknod) is left alone: a node that cannot be opened is of no use, and the driver's own tools
//! must be able to make them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::bpf::{self, Kind, Set};
use crate::btf::Types;
use crate::cgroup::{self, SliceGroup};
use crate::wall_program::{FileFields, program, receive_program};
use crate::{procfs, sys};

/// Where the BPF file system is mounted by convention.
const BPF_FILES: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS_MAGIC: libc::c_long = 0xcafe_4a11;
/// The cgroup namespace of the machine itself (`PROC_CGROUP_INIT_INO`, linux/proc_ns.h): only there the root is the root.
const FIRST_CGROUP_NAMESPACE: u64 = 0xEFFF_FFFB;
/// More slices than one node ever has at once, two groups each.
const MOST_GROUPS: u32 = 65_536;
const MOST_MAJORS: u32 = 64;
/// The pin of the program against handing on.
const RECEIVE: &str = "receive";

/// The majors as `struct bpf_cgroup_dev_ctx` has them, and the groups as `bpf_get_current_cgroup_id` gives them.
type Majors = Set<4>;
type Groups = Set<8>;

/// Which wall: the machine's, or one round a single device, for tests.
#[derive(Clone, Debug)]
pub struct Site {
    folder: PathBuf,
    /// The device of a test.
    device: Option<PathBuf>,
}

/// What [`Site::find`] found.
#[derive(Debug)]
pub enum Found {
    /// There is no wall.
    Open,
    /// There is one, and this process may let slices in.
    Locked(Wall),
    /// There is one, and it is not ours to open: this process is not root's.
    LockedToUs,
}

impl Site {
    /// The driver's device files on this machine; or, for tests, the one device that is named.
    pub fn new(device: Option<&Path>) -> Site {
        let name = match device {
            None => "gpuslice".into(),
            Some(path) => format!("gpuslice-test-{}", path.display()).replace(['/', '.'], "-"),
        };
        Site {
            folder: Path::new(BPF_FILES).join(name),
            device: device.map(Path::to_owned),
        }
    }

    /// The device file that shows whether the wall stands.
    pub fn sample(&self) -> &Path {
        self.device
            .as_deref()
            .unwrap_or(Path::new("/dev/nvidiactl"))
    }

    /// The majors that are to be locked now: name and number.
    ///
    /// # Errors
    /// The driver is not loaded: a lock would leave its UVM device open.
    pub fn majors(&self) -> io::Result<Vec<(String, u32)>> {
        if let Some(path) = &self.device {
            let meta = fs::metadata(path)?;
            if !meta.file_type().is_char_device() {
                return Err(io::Error::other(format!(
                    "{} is no character device",
                    path.display()
                )));
            }
            let name = path.display().to_string();
            return Ok(vec![(name, libc::major(meta.rdev()))]);
        }
        let majors = procfs::parse_majors(&fs::read_to_string("/proc/devices")?, "nvidia");
        if !majors.iter().any(|(name, _)| name == "nvidia-uvm") {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the kernel lists no nvidia-uvm device, whose number is not known before the module is loaded: load it (nvidia-modprobe -u) and lock then",
            ));
        }
        Ok(majors)
    }

    /// Whether the wall locks what is to be locked now: the numbers of the driver's modules change when they are loaded
    /// again.
    ///
    /// # Errors
    /// As [`Site::majors`] and bpf(2).
    pub fn is_current(&self, wall: &Wall) -> io::Result<bool> {
        let mut wanted: Vec<u32> = self.majors()?.into_iter().map(|(_, m)| m).collect();
        wanted.sort_unstable();
        wanted.dedup();
        Ok(wanted == wall.majors()?)
    }

    fn link(&self) -> PathBuf {
        self.folder.join("link")
    }

    /// Whether the wall stands.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn find(&self) -> io::Result<Found> {
        match fs::metadata(self.link()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Open),
            // The whole file system may be closed to this user: systemd mounts it so.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(if self.is_shut() {
                    Found::LockedToUs
                } else {
                    Found::Open
                });
            }
            Err(e) => return Err(e),
            Ok(_) => {}
        }
        let owner = fs::metadata(&self.folder)?.uid();
        if owner != 0 {
            return Err(io::Error::other(format!(
                "{} belongs to user {owner} and is no wall of root's: remove it",
                self.folder.display()
            )));
        }
        let open = |name: &str| bpf::pinned(&self.folder.join(name)).map_err(|e| why(&e, name));
        open("link")?;
        Ok(Found::Locked(Wall {
            majors: Set(open("majors")?),
            groups: Set(open("groups")?),
            handing_on: fs::exists(self.folder.join(RECEIVE))?,
        }))
    }

    /// Whether a device is kept from this process by a control group, and not by its owner and mode: that is `EACCES`.
    fn is_shut(&self) -> bool {
        let opened = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.sample());
        opened.is_err_and(|e| e.raw_os_error() == Some(libc::EPERM))
    }

    /// Why this machine cannot be locked by this process now, if it cannot.
    pub fn obstacle(&self) -> Option<String> {
        if sys::uids().1 != 0 {
            return Some("only root can lock a node".into());
        }
        let namespace = fs::metadata("/proc/self/ns/cgroup").map(|m| m.ino());
        if !matches!(namespace, Ok(FIRST_CGROUP_NAMESPACE)) {
            return Some(
                "this is a container with a cgroup namespace of its own: lock the node from outside of it".into(),
            );
        }
        if cgroup::mount_point().is_none() {
            return Some("no cgroup v2 is mounted with its root".into());
        }
        self.majors().err().map(|e| e.to_string())
    }

    /// Builds the wall, or brings its majors up to date where it stands; and, where the kernel can, its second half,
    /// against handing on: [`Wall::handing_on`] says whether, and the second value why not.
    ///
    /// # Errors
    /// One line: why this machine cannot be locked. Nothing is left half built.
    pub fn lock(&self) -> io::Result<(Wall, Option<io::Error>)> {
        let mut wall = self.lock_opening()?;
        let refused = match wall.handing_on {
            true => None,
            false => self.lock_receiving(&wall).err(),
        };
        wall.handing_on = refused.is_none();
        Ok((wall, refused))
    }

    fn lock_receiving(&self, wall: &Wall) -> io::Result<()> {
        let types = Types::of_kernel().map_err(|e| why(&e, "the kernel's types (BTF)"))?;
        let missing = || io::Error::other("the kernel's types do not tell how it keeps files");
        let function = types.function("security_file_receive");
        let field = |of, name| types.field(of, name).ok_or_else(missing);
        let fields = FileFields {
            inode: field("file", "f_inode")? as i16,
            mode: field("inode", "i_mode")? as i16,
            device: field("inode", "i_rdev")? as i16,
        };
        let code = receive_program(wall.majors.0.as_raw_fd(), wall.groups.0.as_raw_fd(), fields);
        let kind = Kind::Before(function.ok_or_else(missing)?);
        let program = bpf::load(kind, "gpuslice_receive", &code)?;
        let link = bpf::link_to_function(program.as_fd())
            .map_err(|e| why(&e, "the program cannot be put before security_file_receive"))?;
        bpf::pin(link.as_fd(), &self.folder.join(RECEIVE))
    }

    fn lock_opening(&self) -> io::Result<Wall> {
        if let Some(why) = self.obstacle() {
            return Err(io::Error::other(why));
        }
        let wanted = self.majors()?;
        mount_bpf_files()?;
        if let Found::Locked(wall) = self.find()? {
            wall.set_majors(&wanted)?;
            return Ok(wall);
        }
        // What an attempt that was cut short left.
        self.unlock()?;
        let wall = Wall {
            majors: Set::new("gpuslice_majors", MOST_MAJORS)?,
            groups: Set::new("gpuslice_groups", MOST_GROUPS)?,
            handing_on: false,
        };
        wall.set_majors(&wanted)?;
        let code = program(wall.majors.0.as_raw_fd(), wall.groups.0.as_raw_fd());
        let program = bpf::load(Kind::Device, "gpuslice_wall", &code)?;
        let root = cgroup::mount_point().ok_or_else(|| io::Error::other("no cgroup v2"))?;
        let root = fs::File::open(root)?;
        let link = bpf::link_to_cgroup(program.as_fd(), root.as_fd())
            .map_err(|e| why(&e, "the root of the control groups"))?;
        let built = self.pin(&wall, link.as_fd());
        if built.is_err() {
            self.unlock()?;
        }
        built.map(|()| wall)
    }

    fn pin(&self, wall: &Wall, link: BorrowedFd<'_>) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(&self.folder)?;
        bpf::pin(wall.majors.0.as_fd(), &self.folder.join("majors"))?;
        bpf::pin(wall.groups.0.as_fd(), &self.folder.join("groups"))?;
        bpf::pin(link, &self.link())
    }

    /// Takes the wall away; where there is none, nothing happens.
    ///
    /// # Errors
    /// It cannot be taken away.
    pub fn unlock(&self) -> io::Result<()> {
        let gone = |r: io::Result<()>| match r {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        };
        for name in ["link", RECEIVE, "groups", "majors"] {
            gone(fs::remove_file(self.folder.join(name)))?;
        }
        gone(fs::remove_dir(&self.folder))
    }

    /// Processes that have a locked device open or mapped and are in no slice's group: what they opened before the lock
    /// they keep.
    ///
    /// # Errors
    /// The majors or the processes cannot be read.
    pub fn holders(&self, wall: &Wall) -> io::Result<Vec<Holder>> {
        let majors = wall.majors()?;
        let groups = wall.groups.keys()?;
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|n| n.parse::<i32>().ok()) else {
                continue;
            };
            // It may end meanwhile.
            if pid == std::process::id() as i32
                || !holds(&entry.path(), &majors)
                || in_groups(&entry.path(), &groups)
            {
                continue;
            }
            let command = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push(Holder {
                pid,
                command: command
                    .trim_end()
                    .chars()
                    .map(|c| if c.is_control() { '?' } else { c })
                    .collect(),
            });
        }
        Ok(found)
    }
}

/// A process that keeps an open device from before the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: i32,
    /// Its name, fit to be shown.
    pub command: String,
}

/// Whether a process has a character device of these majors open or mapped.
fn holds(process: &Path, majors: &[u32]) -> bool {
    let is_locked = |path: &Path| {
        fs::metadata(path).is_ok_and(|m| {
            m.file_type().is_char_device() && majors.contains(&libc::major(m.rdev()))
        })
    };
    // `map_files` names what is mapped whose descriptor was closed.
    ["fd", "map_files"].iter().any(|folder| {
        fs::read_dir(process.join(folder))
            .is_ok_and(|entries| entries.flatten().any(|e| is_locked(&e.path())))
    })
}

fn in_groups(process: &Path, groups: &[[u8; 8]]) -> bool {
    let folder = fs::read_to_string(process.join("cgroup"))
        .ok()
        .and_then(|text| cgroup::of_process(&text));
    folder
        .and_then(|f| cgroup::id(&f).ok())
        .is_some_and(|id| groups.contains(&id.to_ne_bytes()))
}

fn why(e: &io::Error, what: &str) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

/// The wall of a locked machine.
#[derive(Debug)]
pub struct Wall {
    majors: Majors,
    groups: Groups,
    handing_on: bool,
}

impl Wall {
    /// Whether it also holds against an open device that a slice hands to a program outside.
    pub fn handing_on(&self) -> bool {
        self.handing_on
    }

    /// The locked majors.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn majors(&self) -> io::Result<Vec<u32>> {
        let keys = self.majors.keys()?;
        let mut majors: Vec<u32> = keys.into_iter().map(u32::from_ne_bytes).collect();
        majors.sort_unstable();
        Ok(majors)
    }

    /// Locks these majors and no others: those of the driver's modules change when they are loaded again.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn set_majors(&self, wanted: &[(String, u32)]) -> io::Result<()> {
        for (_, major) in wanted {
            self.majors.insert(major.to_ne_bytes())?;
        }
        for key in self.majors.keys()? {
            if !wanted.iter().any(|(_, m)| m.to_ne_bytes() == key) {
                self.majors.remove(key)?;
            }
        }
        Ok(())
    }
}

/// The groups of one slice, let in where there is a wall.
#[derive(Debug)]
pub struct Place {
    group: SliceGroup,
    /// The set of the wall, and what stands in it for this slice.
    admitted: Option<(Groups, [u64; 2])>,
}

impl Place {
    /// Groups where no wall is.
    ///
    /// # Errors
    /// There is no cgroup v2, or this user may make no groups.
    pub fn without_wall() -> io::Result<Place> {
        Ok(Place {
            group: SliceGroup::new()?,
            admitted: None,
        })
    }

    /// Groups that may open the devices; this process moves into the slice's.
    ///
    /// # Errors
    /// The groups cannot be made or entered, or the set is full.
    pub fn within(wall: Wall) -> io::Result<Place> {
        let mut group = SliceGroup::new()?;
        let ids = group.ids()?;
        for id in ids {
            wall.groups.insert(id.to_ne_bytes())?;
        }
        let admitted = Some((wall.groups, ids));
        group.enter()?;
        Ok(Place { group, admitted })
    }

    /// The group of the tenant's programs.
    pub fn tenant(&self) -> &Path {
        self.group.tenant()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Programs that are left behind keep what they had: they are under the filter.
        if self.group.leave()
            && let Some((groups, ids)) = &self.admitted
        {
            for id in ids {
                // A number is never given again, so what stays in the set lets nobody in.
                let _removed = groups.remove(id.to_ne_bytes());
            }
        }
    }
}

/// Mounts the BPF file system where it is missing; systemd mounts it at boot.
fn mount_bpf_files() -> io::Result<()> {
    // SAFETY: `statfs` is plain data for which all zeroes is a valid value.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a terminated string and `found` a live, writable `struct statfs`.
    let rc = unsafe { libc::statfs(c"/sys/fs/bpf".as_ptr(), &mut found) };
    if rc == 0 && found.f_type == BPF_FS_MAGIC {
        return Ok(());
    }
    let (name, at) = (c"bpf", c"/sys/fs/bpf");
    // SAFETY: all strings are terminated and outlive the call; the options may be null (mount(2)).
    let rc = unsafe {
        libc::mount(
            name.as_ptr(),
            at.as_ptr(),
            name.as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    if rc < 0 {
        return Err(why(
            &io::Error::last_os_error(),
            "cannot mount the BPF file system at /sys/fs/bpf",
        ));
    }
    Ok(())
}
