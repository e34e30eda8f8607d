//! The names that stand in a stream for handles, addresses and descriptors.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::str::FromStr;

use super::{Device, Short, number};
use crate::raw::File;

/// What a field holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number: `5`, `0x40`.
    Number(u64),
    /// A client: `c1`.
    Client(u32),
    /// The client that this call made: `+c1` under a handle that the program chose, `*c1` under one that the driver did.
    NewClient(u32, bool),
    /// An object of a client: `o1`.
    Object(u32),
    /// The object that this call made: `+o1`, `*o1`.
    NewObject(u32, bool),
    /// A handle that names nothing: `?`.
    Unknown,
    /// A handle for an object that was not made after all: `+?`.
    Fresh,
    /// The driver's id of a card: `g1`.
    GpuId(u32),
    /// A card's UUID, sixteen bytes: `uuid1`.
    Uuid(u32),
    /// What a device's parameters name a card by: `inst1`.
    Instance(u32),
    /// The descriptor of a file on which calls were made: `f1`.
    File(u32),
    /// The descriptor of another file of the driver: `ctl`, `gpu0`, `uvm`.
    Unused(File),
    /// The descriptor of a file that an object was exported to: `x1`.
    Export(u32),
    /// A descriptor of something else: `other`.
    Other,
    /// No descriptor: `none`.
    NoFile,
    /// A process: `p1`.
    Process(u32),
    /// Where a buffer lies, whose size the call says: `ptr`.
    Pointer,
    /// Where memory of the program lies: `host`.
    Host,
    /// The driver's version as text: `version`.
    Version,
    /// An address on the card, by its distance from the first one near it: `a1+0x200000`.
    Address(u32, i64),
    /// A mapping for the processor: `m1`.
    Mapping(u32),
    /// One that this call made: `+m1`, `*m1`.
    NewMapping(u32, bool),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = |chosen| if chosen { '+' } else { '*' };
        match *self {
            Value::Number(n) => write!(f, "{}", Short(n)),
            Value::Client(n) => write!(f, "c{n}"),
            Value::NewClient(n, chosen) => write!(f, "{}c{n}", by(chosen)),
            Value::Object(n) => write!(f, "o{n}"),
            Value::NewObject(n, chosen) => write!(f, "{}o{n}", by(chosen)),
            Value::Unknown => f.write_str("?"),
            Value::Fresh => f.write_str("+?"),
            Value::GpuId(n) => write!(f, "g{n}"),
            Value::Uuid(n) => write!(f, "uuid{n}"),
            Value::Instance(n) => write!(f, "inst{n}"),
            Value::File(n) => write!(f, "f{n}"),
            Value::Unused(file) => write!(f, "{}", Device(file)),
            Value::Export(n) => write!(f, "x{n}"),
            Value::Other => f.write_str("other"),
            Value::NoFile => f.write_str("none"),
            Value::Process(n) => write!(f, "p{n}"),
            Value::Pointer => f.write_str("ptr"),
            Value::Host => f.write_str("host"),
            Value::Version => f.write_str("version"),
            Value::Address(n, off) if off < 0 => write!(f, "a{n}-{}", Short(off.unsigned_abs())),
            Value::Address(n, off) => write!(f, "a{n}+{}", Short(off.unsigned_abs())),
            Value::Mapping(n) => write!(f, "m{n}"),
            Value::NewMapping(n, chosen) => write!(f, "{}m{n}", by(chosen)),
        }
    }
}

impl FromStr for Value {
    type Err = ();

    fn from_str(word: &str) -> Result<Value, ()> {
        match word {
            "?" => return Ok(Value::Unknown),
            "+?" => return Ok(Value::Fresh),
            "other" => return Ok(Value::Other),
            "none" => return Ok(Value::NoFile),
            "ptr" => return Ok(Value::Pointer),
            "host" => return Ok(Value::Host),
            "version" => return Ok(Value::Version),
            _ => {}
        }
        if let Some(n) = number(word) {
            return Ok(Value::Number(n));
        }
        if let Some(file) = Device::parse(word) {
            return Ok(Value::Unused(file));
        }
        if let Some((n, off)) = address(word) {
            return Ok(Value::Address(n, off));
        }
        let (word, chosen) = match word.strip_prefix(['+', '*']) {
            Some(new) => (new, Some(word.starts_with('+'))),
            None => (word, None),
        };
        let kind = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let n = word[kind.len()..].parse().map_err(|_| ())?;
        Ok(match (kind, chosen) {
            ("c", None) => Value::Client(n),
            ("c", Some(chosen)) => Value::NewClient(n, chosen),
            ("o", None) => Value::Object(n),
            ("o", Some(chosen)) => Value::NewObject(n, chosen),
            ("m", None) => Value::Mapping(n),
            ("m", Some(chosen)) => Value::NewMapping(n, chosen),
            ("g", None) => Value::GpuId(n),
            ("uuid", None) => Value::Uuid(n),
            ("inst", None) => Value::Instance(n),
            ("f", None) => Value::File(n),
            ("x", None) => Value::Export(n),
            ("p", None) => Value::Process(n),
            _ => return Err(()),
        })
    }
}

fn address(word: &str) -> Option<(u32, i64)> {
    let word = word.strip_prefix('a')?;
    let at = word.find(['+', '-'])?;
    let off = i64::try_from(number(&word[at + 1..])?).ok()?;
    let off = if word[at..].starts_with('-') {
        -off
    } else {
        off
    };
    Some((word[..at].parse().ok()?, off))
}

/// Gives out names, from 1 on, in the order of their first use.
#[derive(Debug)]
pub struct Names<K>(HashMap<K, u32>, u32);

impl<K> Default for Names<K> {
    fn default() -> Names<K> {
        Names(HashMap::new(), 0)
    }
}

impl<K: Hash + Eq> Names<K> {
    /// The name of a thing, a new one if it has none.
    pub fn of(&mut self, key: K) -> u32 {
        let next = &mut self.1;
        *self.0.entry(key).or_insert_with(|| {
            *next += 1;
            *next
        })
    }

    /// The name of a thing that has one.
    pub fn get(&self, key: &K) -> Option<u32> {
        self.0.get(key).copied()
    }

    /// The thing is gone; what is called so later is another.
    pub fn forget(&mut self, key: &K) -> Option<u32> {
        self.0.remove(key)
    }
}
