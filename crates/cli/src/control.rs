//! `gpuslice set`, `pause`, `resume` and `stop`: they ask the supervisor of a slice that runs.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guard::control::{self, Answer, Standing, Terms, Wish};
use guard::registry::{Entry, Registry, valid_name};
use guard::supervisor::TIME_TO_END;
use guard::sys;
use policy::units::Bytes;
use serde::Serialize;

use crate::args::{PauseOptions, SetOptions, StopOptions};
use crate::{Failure, human, say, sim};

/// A supervisor answers at once, or when a helper has.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where root's slices are.
const ROOTS: &str = "/run/gpuslice";

/// The names are stable: programs read them.
#[derive(Debug, Serialize)]
struct Changed<'a> {
    name: &'a str,
    weight: u32,
    cap_percent: Option<f64>,
    paused: bool,
    gpus: Vec<Quota>,
}

#[derive(Debug, Serialize)]
struct Quota {
    uuid: String,
    memory_bytes: u64,
    /// Where it holds more than was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Stopped<'a> {
    name: &'a str,
    exit_status: i32,
}

/// `gpuslice set`.
///
/// # Errors
/// One line: who may, what is free, or which slices there are.
pub fn set(options: &SetOptions) -> Result<u8, Failure> {
    let wish = Wish::Set(Terms {
        weight: options.weight,
        cap: options.cap.map(|cap| cap.0.unwrap_or(0)),
        memory: options.memory.map(|size| size.to_string()),
        overcommit: options.overcommit,
    });
    change(&options.name, options.sim.as_deref(), wish, options.json)
}

/// `gpuslice pause` and `gpuslice resume`.
///
/// # Errors
/// As [`set`].
pub fn pause(options: &PauseOptions, paused: bool) -> Result<u8, Failure> {
    let wish = if paused { Wish::Pause } else { Wish::Resume };
    change(&options.name, options.sim.as_deref(), wish, options.json)
}

/// `gpuslice stop`: returns when the slice has ended.
///
/// # Errors
/// As [`set`]; it has not ended.
pub fn stop(options: &StopOptions) -> Result<u8, Failure> {
    let slices = Slices::of(options.sim.as_deref())?;
    let name = &options.name;
    let patience = 2 * TIME_TO_END + PATIENCE;
    let Answer::Stopped(status) = slices.ask(name, Wish::Stop { now: options.now }, patience)?
    else {
        return Err(another_version(name));
    };
    // `run` has said its last word: when its process is gone the slice's memory is free.
    let until = Instant::now() + PATIENCE;
    while slices.lives(name)? {
        if Instant::now() > until {
            return Err(format!("slice '{name}' has ended, and its processes have not: what holds them up is in the kernel or its driver").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = if options.json {
        serde_json::to_string(&Stopped {
            name,
            exit_status: status,
        })?
    } else {
        format!("{name}: stopped, exit status {status}")
    };
    say::print(format!("{text}\n").as_bytes())?;
    Ok(0)
}

fn change(name: &str, sim: Option<&str>, wish: Wish, json: bool) -> Result<u8, Failure> {
    let Answer::Done(now) = Slices::of(sim)?.ask(name, wish, PATIENCE)? else {
        return Err(another_version(name));
    };
    let text = if json {
        serde_json::to_string(&changed(name, &now))?
    } else {
        line(name, &now)
    };
    say::print(format!("{text}\n").as_bytes())?;
    Ok(0)
}

fn another_version(name: &str) -> Failure {
    format!("the supervisor of slice '{name}' gave an answer of another version of gpuslice").into()
}

fn changed<'a>(name: &'a str, now: &Standing) -> Changed<'a> {
    let quota = |(uuid, bytes): &(String, u64)| Quota {
        uuid: uuid.clone(),
        memory_bytes: *bytes,
        asked_bytes: asked(now, uuid),
    };
    Changed {
        name,
        weight: now.weight,
        cap_percent: now.cap.map(|cap| f64::from(cap) / 100.0),
        paused: now.paused,
        gpus: now.memory.iter().map(quota).collect(),
    }
}

fn asked(now: &Standing, uuid: &str) -> Option<u64> {
    let found = now.asked.iter().find(|(on, _)| on == uuid);
    found.map(|(_, bytes)| *bytes)
}

fn line(name: &str, now: &Standing) -> String {
    let mut text = format!("{name}: ");
    if now.paused {
        text += "paused, ";
    }
    text += &format!("weight {}, ", now.weight);
    text += &match now.cap {
        Some(cap) => format!("cap {} %", f64::from(cap) / 100.0),
        None => "no cap".into(),
    };
    for (uuid, bytes) in &now.memory {
        text += &format!(", {} on {uuid}", human(Bytes(*bytes)));
        if let Some(asked) = asked(now, uuid) {
            text += &format!(" (it holds so much; {} was asked for)", human(Bytes(asked)));
        }
    }
    text
}

/// The slices that can be asked.
struct Slices {
    /// Those of this user, or of anybody for root.
    registry: Option<Registry>,
    /// Where another user's are, who says himself that they are his.
    others: Option<PathBuf>,
}

impl Slices {
    fn of(asked_sim: Option<&str>) -> Result<Slices, Failure> {
        let (_, uid) = sys::uids();
        let Some(socket) = sim::asked(asked_sim) else {
            return Ok(Slices {
                registry: Some(Registry::of_machine()?),
                others: (uid != 0).then(|| ROOTS.into()),
            });
        };
        let folder = sim::registry_folder(&socket)?;
        let is_others = |owner: u32| uid != 0 && owner != uid;
        if std::fs::metadata(&folder).is_ok_and(|meta| is_others(meta.uid())) {
            return Ok(Slices {
                registry: None,
                others: Some(folder),
            });
        }
        Ok(Slices {
            registry: Some(Registry::in_folder(&folder)?),
            others: None,
        })
    }

    fn live(&self) -> io::Result<Vec<Entry>> {
        let registry = self.registry.as_ref();
        registry.map_or(Ok(Vec::new()), Registry::tenants)
    }

    fn lives(&self, name: &str) -> io::Result<bool> {
        Ok(self.live()?.iter().any(|entry| entry.name == name))
    }

    /// Asks a slice; refusals are errors.
    fn ask(&self, name: &str, wish: Wish, patience: Duration) -> Result<Answer, Failure> {
        let folder = self.folder_of(name)?;
        let answer = control::ask(folder, name, wish, patience).map_err(|e| -> Failure {
            match e.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
                    "nobody answers for slice '{name}': its `gpuslice run` has ended, and programs that the command left running keep what it has; end those (`gpuslice ps` shows whose they are)"
                )
                .into(),
                _ => format!("slice '{name}' cannot be asked: {e}").into(),
            }
        })?;
        match answer {
            Answer::Refused(why) => Err(format!("slice '{name}': {why}").into()),
            answer => Ok(answer),
        }
    }

    fn folder_of(&self, name: &str) -> Result<&Path, Failure> {
        let live = self.live()?;
        if let Some(registry) = &self.registry
            && live.iter().any(|entry| entry.name == name)
        {
            return Ok(registry.folder());
        }
        let socket = format!("{name}.{}", control::SOCKET);
        let is_there = |others: &&PathBuf| valid_name(name) && others.join(&socket).exists();
        if let Some(others) = self.others.as_ref().filter(is_there) {
            return Ok(others);
        }
        let names: Vec<&str> = live.iter().map(|entry| entry.name.as_str()).collect();
        let there_are = match names.as_slice() {
            [] => "no slice of yours lives on this node".to_owned(),
            names => format!("there are: {}", names.join(", ")),
        };
        Err(format!("there is no slice {name:?}; {there_are}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_what_became_of_what_was_asked() {
        let now = Standing {
            weight: 200,
            cap: Some(1250),
            paused: true,
            memory: vec![("GPU-1".into(), 3 << 30), ("GPU-2".into(), 1 << 30)],
            asked: vec![("GPU-1".into(), 2 << 30)],
        };
        assert_eq!(
            line("a", &now),
            "a: paused, weight 200, cap 12.5 %, 3.00 GiB on GPU-1 (it holds so much; 2.00 GiB was asked for), 1.00 GiB on GPU-2"
        );
        let json = serde_json::to_string(&changed("a", &now)).unwrap();
        assert_eq!(
            json,
            r#"{"name":"a","weight":200,"cap_percent":12.5,"paused":true,"gpus":[{"uuid":"GPU-1","memory_bytes":3221225472,"asked_bytes":2147483648},{"uuid":"GPU-2","memory_bytes":1073741824}]}"#
        );
    }
}
