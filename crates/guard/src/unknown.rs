//! Calls that the tables do not know: refused, told to the user once, counted, and shown to whoever looks after the node,
//! so that a program that needs one is a bug report and not a riddle.
//!
//! The helper writes its counts behind the tenant's entry in the registry's file, in place. A reader may come between
//! two halves of a write, so the counts carry a check sum, and what does not add up is read again.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

/// A call that the table does not know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Unknown {
    /// A frontend ioctl by number.
    Escape(u8),
    /// A UVM request.
    Uvm(u32),
    /// A class.
    Class(u32),
    /// A control.
    Control(u32),
}

impl Unknown {
    /// What kind of call it is, as programs read it.
    pub fn kind(self) -> &'static str {
        match self {
            Unknown::Escape(_) => "ioctl",
            Unknown::Uvm(_) => "uvm",
            Unknown::Class(_) => "class",
            Unknown::Control(_) => "control",
        }
    }

    /// Its number among those of its kind.
    pub fn number(self) -> u32 {
        match self {
            Unknown::Escape(n) => n.into(),
            Unknown::Uvm(n) | Unknown::Class(n) | Unknown::Control(n) => n,
        }
    }

    /// What the class is for, if it is one of those that no slice of this version has. NVIDIA numbers a class by its
    /// generation and, in the low byte, by its purpose; from 0x9000 on (Fermi) that holds for all engines.
    pub fn engine(self) -> Option<&'static str> {
        let Unknown::Class(0x9000..=0xffff) = self else {
            return None;
        };
        match self.number() & 0xff {
            0x97 => Some("3D graphics"),
            0x2d => Some("2D graphics"),
            0xb0 => Some("the video decoder"),
            0xb7 => Some("the video encoder"),
            0xd1 => Some("the JPEG decoder"),
            0xfa => Some("optical flow"),
            _ => None,
        }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Unknown::Escape(_) => "ioctl",
            Unknown::Uvm(_) => "UVM call",
            Unknown::Class(_) => "class",
            Unknown::Control(_) => "control",
        };
        write!(f, "{name} {:#x}", self.number())
    }
}

/// How often each was made, in the order of kind and number.
pub type Counts = Vec<(Unknown, u64)>;

/// Adds counts to counts; at most `most` kinds are kept.
pub fn add(to: &mut Counts, more: &Counts, most: usize) {
    for &(what, count) in more {
        match to.binary_search_by_key(&what, |&(w, _)| w) {
            Ok(at) => to[at].1 = to[at].1.saturating_add(count),
            Err(at) if to.len() < most => to.insert(at, (what, count)),
            Err(_) => {}
        }
    }
}

/// Where a helper writes its counts: behind what stands in the tenant's file already.
#[derive(Debug)]
pub struct Board {
    file: File,
    at: u64,
    written: u64,
}

impl Board {
    /// The rest of the tenant's file.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn behind(file: File) -> io::Result<Board> {
        let at = file.metadata()?.len();
        Ok(Board {
            file,
            at,
            written: 0,
        })
    }

    /// Writes the counts if they have changed. They only ever grow, so what is written covers what was.
    ///
    /// # Errors
    /// As pwrite(2).
    pub fn write(&mut self, counts: &Counts) -> io::Result<()> {
        let sum = counts.iter().map(|(_, n)| n).sum();
        if sum == self.written {
            return Ok(());
        }
        self.file.write_all_at(&text(counts)?, self.at)?;
        self.written = sum;
        Ok(())
    }
}

fn text(counts: &Counts) -> io::Result<Vec<u8>> {
    let json = serde_json::to_string(counts)?;
    Ok(format!("\n{:016x} {json}\n", sum(json.as_bytes())).into_bytes())
}

/// Reads what a [`Board`] wrote, behind the first line of a tenant's file. `None`: it is being written just now.
pub fn parse(file: &str) -> Option<Counts> {
    let Some((_, rest)) = file.split_once('\n') else {
        return Some(Counts::new());
    };
    let (wanted, json) = rest.lines().next()?.split_once(' ')?;
    (u64::from_str_radix(wanted, 16).ok()? == sum(json.as_bytes())).then_some(())?;
    serde_json::from_str(json).ok()
}

/// FNV-1a: it must find a half-written line, not an attacker.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &b| {
        (sum ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_whole_or_not_at_all() {
        let old = vec![(Unknown::Class(0xdead), 9), (Unknown::Control(7), 9)];
        let new = vec![(Unknown::Class(0xdead), 10), (Unknown::Control(7), 10)];
        let file = |bytes: &[u8]| format!("{{}}{}", String::from_utf8_lossy(bytes));
        let (before, whole) = (text(&old).unwrap(), text(&new).unwrap());
        assert_eq!(parse("{}"), Some(Counts::new()));
        assert_eq!(parse(&file(&before)), Some(old));
        assert_eq!(parse(&file(&whole)), Some(new));
        // From the first changed byte to the last.
        let differs = |&i: &usize| before[i] != whole[i];
        let first = (0..before.len()).find(differs).unwrap();
        for cut in first + 1..before.len() {
            let torn = [&whole[..cut], &before[cut..]].concat();
            assert_eq!(parse(&file(&torn)), None, "{}", file(&torn));
        }
    }

    #[test]
    fn counts_of_several_slices_are_added_and_bounded() {
        let mut all = vec![(Unknown::Class(3), 1)];
        add(
            &mut all,
            &vec![(Unknown::Escape(1), 2), (Unknown::Class(3), 4)],
            2,
        );
        add(&mut all, &vec![(Unknown::Uvm(1), 2)], 2);
        assert_eq!(all, [(Unknown::Escape(1), 2), (Unknown::Class(3), 5)]);
    }

    #[test]
    fn engines_are_known_by_the_purpose_of_their_classes() {
        for (class, engine) in [
            (0xcb97, "3D graphics"),
            (0xb8b0, "the video decoder"),
            (0xc9b7, "the video encoder"),
            (0xb8d1, "the JPEG decoder"),
            (0xb8fa, "optical flow"),
        ] {
            assert_eq!(Unknown::Class(class).engine(), Some(engine));
        }
        assert_eq!(Unknown::Class(0xcbc0).engine(), None);
        assert_eq!(Unknown::Class(0x0097).engine(), None);
        assert_eq!(Unknown::Control(0xcb97).engine(), None);
    }
}
