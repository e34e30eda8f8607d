//! `gpuslice run`.

use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use guard::backend::Backend;
use guard::device_wall::{Found, Place, Site};
use guard::helper::{self, HelperConfig};
use guard::privilege::User;
use guard::registry::{Ask, Entry, Registry, valid_name};
use guard::rmcall::{Gpu, OwnClient};
use guard::share::scheduler::WEIGHT;
use guard::tenant::Walls;
use guard::trace::TraceConfig;
use guard::{rmcall, supervisor, sys};
use policy::units::Bytes;

use crate::args::{Isolation, RunOptions};
use crate::{Failure, backend, gpus, say, sim};

/// Runs the command in its slice; returns its exit status.
pub fn run(options: &RunOptions) -> Result<u8, Failure> {
    run_traced(options, None)
}

/// As [`run`], with every driver call shown.
pub fn run_traced(options: &RunOptions, trace: Option<TraceConfig>) -> Result<u8, Failure> {
    require_guard(options.isolation)?;
    let walls = walls(options)?;
    let (_, uid) = sys::uids();
    let inherited = open_descriptors()?;
    let user = user(options, uid)?;
    let node = sim::asked(options.sim.as_deref())
        .map(|asked| sim::Node::get(&asked))
        .transpose()?;
    let sim: Option<PathBuf> = node.as_ref().map(|n| n.socket().to_owned());
    let place = place(options.device.as_deref(), sim.is_none(), uid)?;
    let driver = backend::open(sim.as_deref())?;
    refuse_inherited(&inherited, driver.as_ref())?;
    rmcall::branch_of(driver.as_ref())?;
    // Our own client lives only as long as the question: the helper becomes one of its own.
    let cards: Vec<Gpu> = OwnClient::open(driver).map_err(not_served)?.gpus().to_vec();
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let chosen = gpus::choose(&options.gpu, visible.as_deref(), &cards)?;
    // Inside the slice numbers count the slice's cards only, so they are named by UUID, in the order that was asked for.
    let shown = match &visible {
        _ if !options.gpu.is_empty() => Some(uuids(&chosen)),
        Some(list) => Some(uuids(&gpus::visible_devices(list, &cards))),
        None => None,
    };
    let registry = match &node {
        Some(node) => node.registry()?,
        None => Registry::of_machine()?,
    };
    let memory = quotas(options, &chosen, &registry)?;
    let name = name(options)?;
    let ask = Ask {
        name: name.clone(),
        uid: user.as_ref().map_or(uid, |u| u.uid),
        memory: memory.clone(),
        command: words_for_people(&options.command),
        overcommit: options.overcommit,
        helper_user: uid == 0,
        weight: options.weight.unwrap_or(WEIGHT),
        cap: options.cap,
        latency: options.latency,
    };
    let lease = registry.grant(&ask, &cards)?;
    let divided = options.weight.is_some()
        || options.cap.is_some()
        || options.latency.is_some()
        || shares_a_card(&registry, &lease.entry)?;
    if let (Some(_), Some(cap)) = (options.latency, options.cap) {
        let percent = f64::from(cap) / 100.0;
        say::note(format_args!(
            "gpuslice: --latency holds until --cap {percent} % is reached: the slice waits for the next window then, a tenth of a second at most"
        ));
    }
    say_how_strong(uid, user.as_ref());
    let config = HelperConfig {
        name: name.clone(),
        quotas: memory.iter().map(|(u, b)| (u.clone(), b.0)).collect(),
        channels: lease.entry.channels.clone(),
        call_rate: options.call_rate,
        sim,
        environment: environment(&name, user.as_ref(), shown, node.as_ref()),
        user,
        helper_uid: lease.entry.helper_uid,
        command: helper::words(&options.command),
        walls,
        report_only: options.audit_report_only,
        trace,
        cgroup: place.as_ref().map(|p| p.tenant().to_owned()),
        registry: registry.folder().to_owned(),
    };
    let code = supervisor::run(&config, lease, divided, cards)?;
    Ok(u8::try_from(code).unwrap_or(crate::OWN_FAILURE))
}

/// Whether another slice has one of this one's cards: then somebody must divide its time.
fn shares_a_card(registry: &Registry, own: &Entry) -> io::Result<bool> {
    let shared = |other: &Entry| {
        let mut cards = other.memory.iter();
        cards.any(|(uuid, _)| own.memory.iter().any(|(own, _)| own == uuid))
    };
    let others = registry.tenants()?;
    Ok(others.iter().any(|e| e.name != own.name && shared(e)))
}

/// The slice's control groups. On a locked node they are what may open the device files, so there is no slice without;
/// elsewhere they end a tenant at once, and where they cannot be had its processes are found one by one.
fn place(device: Option<&Path>, real_cards: bool, uid: u32) -> Result<Option<Place>, Failure> {
    if real_cards || device.is_some() {
        let site = Site::new(device);
        match site.find()? {
            Found::Locked(wall) => {
                // The driver's modules may have been loaded again, under other numbers.
                wall.set_majors(&site.majors()?)?;
                let place = Place::within(wall).map_err(|e| {
                    format!("the device files of this node are locked to all but slices, and no control group for this slice can be had: {e}")
                })?;
                return Ok(Some(place));
            }
            Found::LockedToUs => {
                return Err("the device files of this node are locked to the slices that root starts: use `sudo gpuslice run`, or have root say `gpuslice setup --unlock-devices`".into());
            }
            Found::Open if uid == 0 => say::note(format_args!(
                "gpuslice: the device files are not locked: programs that are started without gpuslice are outside of this wall (`gpuslice setup --lock-devices`)"
            )),
            Found::Open => {}
        }
    }
    Ok(Place::without_wall().ok())
}

/// A control group of the scheduler's own where only slices' may open the cards; elsewhere it needs none.
///
/// # Errors
/// The group cannot be had.
pub fn place_of_scheduler(real_cards: bool) -> Result<Option<Place>, Failure> {
    if !real_cards {
        return Ok(None);
    }
    match Site::new(None).find()? {
        Found::Locked(wall) => Ok(Some(Place::within(wall)?)),
        Found::LockedToUs | Found::Open => Ok(None),
    }
}

/// Numbers of the descriptors that this process has. Asked before it opens any, they are those that it was started with.
fn open_descriptors() -> io::Result<Vec<i32>> {
    let entries = std::fs::read_dir("/proc/self/fd")?;
    let number = |e: std::fs::DirEntry| e.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(number).collect())
}

/// A file of the driver that was opened outside of the slice would come into it uncharged.
fn refuse_inherited(numbers: &[i32], driver: &dyn Backend) -> Result<(), Failure> {
    let own = sys::pidfd_open(std::process::id() as i32, 0)?;
    for &number in numbers {
        // That of the question itself is closed again.
        let Ok(fd) = sys::pidfd_getfd(own.as_fd(), number) else {
            continue;
        };
        if let Some(node) = driver.classify(fd.as_fd())? {
            return Err(format!(
                "gpuslice was started with descriptor {number}, an open file of the driver ({node:?}), and what is open already is outside of the slice: close it (in a shell: {number}>&-)"
            )
            .into());
        }
    }
    Ok(())
}

/// Why the driver does not serve us: most often since a slice is round us, which only its own programs' calls leave.
fn not_served(e: io::Error) -> Failure {
    let refused = e.kind() == io::ErrorKind::PermissionDenied;
    match std::env::var("GPUSLICE_NAME") {
        Ok(name) if refused => {
            format!("this process is already inside a slice ({name:?}), and a slice holds no other: start gpuslice outside of it").into()
        }
        _ => format!("the driver does not tell its GPUs: {e}; see `gpuslice doctor`").into(),
    }
}

/// What is asked for and cannot be enforced here is refused, never made weaker.
fn require_guard(isolation: Isolation) -> Result<(), Failure> {
    let name = match isolation {
        Isolation::Guard => return Ok(()),
        Isolation::Shim => "shim",
        Isolation::Mps => "mps",
        Isolation::Mig => "mig",
    };
    Err(format!("--isolation {name} is not in this version; use --isolation guard, which is stronger than shim and mps").into())
}

fn walls(options: &RunOptions) -> Result<Walls, Failure> {
    let Some(name) = &options.without else {
        return Ok(Walls::default());
    };
    if options.sim.is_none() {
        return Err(
            "--without takes a wall away and works on simulated GPUs only; add --sim 1xH200".into(),
        );
    }
    Walls::without(name).ok_or_else(|| {
        format!(
            "--without {name}: no such wall; there are {}",
            Walls::names().join(", ")
        )
        .into()
    })
}

/// As root: the named user, else who called sudo; else root itself with fewer rights.
fn user(options: &RunOptions, uid: u32) -> Result<Option<User>, Failure> {
    if uid != 0 {
        return match &options.user {
            Some(name) => Err(format!(
                "--user {name} needs root; run with sudo, or leave it out to run as yourself"
            )
            .into()),
            None => Ok(None),
        };
    }
    let name = options
        .user
        .clone()
        .or_else(|| std::env::var("SUDO_USER").ok().filter(|n| n != "root"));
    match name {
        None => Ok(None),
        Some(name) => Ok(Some(look_up(&name)?)),
    }
}

fn look_up(name: &str) -> Result<User, Failure> {
    let c_name = CString::new(name)?;
    let by_name = |name: &CStr| {
        // SAFETY: getpwnam reads a terminated string; its result is copied out before any other call of the library.
        unsafe { libc::getpwnam(name.as_ptr()).as_ref() }.map(|p| {
            // SAFETY: pw_dir of a found entry is a terminated string.
            let home = unsafe { CStr::from_ptr(p.pw_dir) }
                .to_string_lossy()
                .into_owned();
            (p.pw_uid, p.pw_gid, home)
        })
    };
    let Some((uid, gid, home)) = by_name(&c_name) else {
        return Err(format!(
            "--user {name:?}: this system has no such user; give a name that `getent passwd` lists"
        )
        .into());
    };
    let mut groups = vec![0; 256];
    let mut count = groups.len() as i32;
    // SAFETY: `groups` has room for `count` entries.
    let n = unsafe { libc::getgrouplist(c_name.as_ptr(), gid, groups.as_mut_ptr(), &mut count) };
    if n < 0 {
        return Err(format!("--user {name} is in more than 256 groups").into());
    }
    groups.truncate(count as usize);
    Ok(User {
        uid,
        gid,
        groups,
        name: name.into(),
        home,
    })
}

fn uuids(gpus: &[&Gpu]) -> String {
    gpus.iter()
        .map(|g| g.uuid.as_str())
        .collect::<Vec<_>>()
        .join(",")
}

/// Quota on each card: what was asked, or what nobody else has been granted.
fn quotas(
    options: &RunOptions,
    chosen: &[&Gpu],
    registry: &Registry,
) -> Result<Vec<(String, Bytes)>, Failure> {
    let tenants = registry.tenants()?;
    let granted = |gpu: &Gpu| -> Bytes {
        tenants
            .iter()
            .flat_map(|t| &t.memory)
            .filter(|(uuid, _)| *uuid == gpu.uuid)
            .map(|(_, b)| Bytes(*b))
            .sum()
    };
    let quota = |gpu: &&Gpu| -> Result<(String, Bytes), Failure> {
        let bytes = match options.memory {
            Some(size) => size.of(gpu.memory),
            None => gpu.memory.saturating_sub(granted(gpu)),
        };
        if options.memory.is_none() && bytes == Bytes(0) {
            return Err(format!(
                "all that is free is asked for on GPU {:?}, and all its memory is granted to others (`gpuslice ps`): stop one of them, use another --gpu, or give --memory with --overcommit",
                gpu.uuid
            )
            .into());
        }
        Ok((gpu.uuid.clone(), bytes))
    };
    chosen.iter().map(quota).collect()
}

fn name(options: &RunOptions) -> Result<String, Failure> {
    match &options.name {
        Some(name) if valid_name(name) => Ok(name.clone()),
        Some(name) => Err(format!(
            "--name {name:?}: use letters, digits, '-', '_' and '.', at most 64"
        )
        .into()),
        None => {
            let program = PathBuf::from(&options.command[0]);
            let stem = program
                .file_name()
                .map(|n| n.to_string_lossy().into_owned())
                .unwrap_or_default();
            let stem: String = stem
                .chars()
                .filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c))
                .take(40)
                .collect();
            Ok(format!(
                "{}-{}",
                if stem.is_empty() { "slice" } else { &stem },
                std::process::id()
            ))
        }
    }
}

fn words_for_people(command: &[OsString]) -> String {
    command
        .iter()
        .map(|w| w.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

fn say_how_strong(uid: u32, user: Option<&User>) {
    if uid != 0 {
        say::note(format_args!(
            "gpuslice: running as an ordinary user: the slice holds this command, but another program of yours could get round it"
        ));
    } else if user.is_none() {
        say::note(format_args!(
            "gpuslice: the command keeps user id 0, without the capabilities that could leave a slice; --user NAME runs it as somebody"
        ));
    }
}

/// The command's environment: ours, with the user's identity and the slice's name.
fn environment(
    name: &str,
    user: Option<&User>,
    shown: Option<String>,
    node: Option<&sim::Node>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let mut set = |key: &str, value: OsString| {
        variables.retain(|(k, _)| k != key);
        variables.push((key.into(), value));
    };
    if let Some(user) = user {
        set("HOME", user.home.clone().into());
        set("USER", user.name.clone().into());
        set("LOGNAME", user.name.clone().into());
    }
    set("GPUSLICE_NAME", name.into());
    if let Some(shown) = shown {
        set("CUDA_VISIBLE_DEVICES", shown.into());
    }
    if let Some(node) = node {
        for (key, value) in node.environment(std::env::var_os("LD_LIBRARY_PATH").as_deref()) {
            set(key, value);
        }
    }
    variables
        .into_iter()
        .map(|(k, v)| helper::variable(k, v))
        .collect()
}
