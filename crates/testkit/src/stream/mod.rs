//! A program's driver calls as text: made by `gpuslice trace --stream`.
//!
//! One line a call, in the order in which the calls were answered:
//!
//! ```text
//! p1 f1:ctl 0x2b/48 0=c1 4=o2 8=+o3 12=0x40 32=0x80 +128 24=0x18000000 64q=0x200000 -> 0
//! p1 f4:uvm 33 0q=a1+0x200000 8q=0x200000 24=uuid1 9244=f1 9252=c1 9256=o3 -> 0
//! p1 f4:uvm map 0q=a2+0 8q=0x400000 -> native
//! unmapped p1 a2+0 0x400000
//! closed f1
//! ended p1
//! ```
//!
//! Process and file; which ioctl, and the size of its block; the fields of the block by their offset in bytes (`q`: eight
//! bytes wide, else four), those of its parameters behind `+SIZE`, and those of what the pointer at an offset of the
//! parameters leads to behind `@OFFSET`; the answer; `xN` where N such calls came in a row. A
//! field that is not named held nothing, or something that is not told: a stream holds no handle, no address, no
//! descriptor's or process's number and no data of the program, but names for them ([`Value`]) and small numbers.

pub mod fields;
mod names;

use std::fmt;

pub use names::{Names, Value};

use crate::raw::File;

/// First word of a stream, with the version of its form.
const HEAD: &str = "gpuslice-stream 1";

/// What a stream begins with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Version of the driver.
    pub driver: String,
    /// Cards of the slice.
    pub gpus: u32,
}

/// One line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A call, so many times in a row.
    Call(Call, u32),
    /// A process has unmapped so many bytes of managed memory at an address.
    Unmapped(u32, Value, u64),
    /// No process has this file any more.
    Closed(u32),
    /// A process has ended.
    Ended(u32),
}

/// One call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Which process made it.
    pub process: u32,
    /// On which open file.
    pub file: u32,
    /// Of which device; cards count from 0 in the order of the slice.
    pub on: File,
    /// Which call.
    pub what: What,
    /// Its block.
    pub block: Vec<Item>,
    /// Its parameters: their size in bytes and what they hold.
    pub params: Option<(u32, Vec<Item>)>,
    /// What pointers in the parameters lead to, by the offset of the pointer.
    pub behind: Vec<(u16, Vec<Item>)>,
    /// How it was answered.
    pub answer: Answer,
}

/// Which call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A frontend ioctl: number, and bytes of its block.
    Escape(u8, u32),
    /// An ioctl of the UVM file: the whole request.
    Uvm(u32),
    /// A mapping of the UVM file: its address and its length are the block.
    Map,
}

/// A field of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// Offset in bytes.
    pub at: u16,
    /// Eight bytes, not four.
    pub wide: bool,
    /// What it holds.
    pub value: Value,
}

/// How a call was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// With this status in its block.
    Status(u32),
    /// With this value; its block has no status.
    Value(i64),
    /// With this error number.
    Errno(i32),
    /// It ran in the program: how it was answered is not known.
    Native,
    /// The caller was killed meanwhile.
    Gone,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HEAD} driver {} gpus {}", self.driver, self.gpus)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Call(call, 1) => call.fmt(f),
            Event::Call(call, times) => write!(f, "{call} x{times}"),
            Event::Unmapped(process, at, length) => {
                write!(f, "unmapped p{process} {at} {}", Short(*length))
            }
            Event::Closed(file) => write!(f, "closed f{file}"),
            Event::Ended(process) => write!(f, "ended p{process}"),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{} f{}:{} ", self.process, self.file, Device(self.on))?;
        match self.what {
            What::Escape(number, size) => write!(f, "{number:#04x}/{size}")?,
            // As the headers write them: small ones decimal.
            What::Uvm(request @ ..0x1000) => write!(f, "{request}")?,
            What::Uvm(request) => write!(f, "{request:#x}")?,
            What::Map => f.write_str("map")?,
        }
        for item in &self.block {
            write!(f, " {item}")?;
        }
        if let Some((size, items)) = &self.params {
            write!(f, " +{size}")?;
            for item in items {
                write!(f, " {item}")?;
            }
        }
        for (at, items) in &self.behind {
            write!(f, " @{at}")?;
            for item in items {
                write!(f, " {item}")?;
            }
        }
        write!(f, " -> {}", self.answer)
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wide = if self.wide { "q" } else { "" };
        write!(f, "{}{wide}={}", self.at, self.value)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Status(status) => write!(f, "{}", Short((*status).into())),
            Answer::Value(value) => write!(f, "={value}"),
            Answer::Errno(number) => write!(f, "!{number}"),
            Answer::Native => f.write_str("native"),
            Answer::Gone => f.write_str("gone"),
        }
    }
}

/// A device file in a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Device(File);

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            File::Control => f.write_str("ctl"),
            File::Gpu(index) => write!(f, "gpu{index}"),
            File::Uvm => f.write_str("uvm"),
        }
    }
}

impl Device {
    fn parse(word: &str) -> Option<File> {
        match word {
            "ctl" => Some(File::Control),
            "uvm" => Some(File::Uvm),
            _ => Some(File::Gpu(word.strip_prefix("gpu")?.parse().ok()?)),
        }
    }
}

/// A number as it reads best: small ones decimal, others hexadecimal.
struct Short(u64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 10 {
            write!(f, "{}", self.0)
        } else {
            write!(f, "{:#x}", self.0)
        }
    }
}

/// A number as [`Short`] writes it.
fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Reads a stream: its head, and its lines with their numbers. Empty lines and those that begin with `#` are for people.
///
/// # Errors
/// Which line is not one of a stream, and what it says.
pub fn parse(text: &str) -> Result<(Head, Vec<(usize, Event)>), String> {
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let head = lines.next().and_then(|(_, line)| {
        let mut words = line.strip_prefix(HEAD)?.split_whitespace();
        let (driver, version) = (words.next()?, words.next()?);
        let (gpus, count) = (words.next()?, words.next()?.parse().ok()?);
        (driver == "driver" && gpus == "gpus").then(|| Head {
            driver: version.to_owned(),
            gpus: count,
        })
    });
    let head = head.ok_or(format!(
        "no stream: it begins with \"{HEAD} driver VERSION gpus COUNT\""
    ))?;
    let events = lines.map(|(at, line)| match event(line) {
        Some(event) => Ok((at, event)),
        None => Err(format!("line {at} is none of a stream: {line:?}")),
    });
    Ok((head, events.collect::<Result<_, _>>()?))
}

fn event(line: &str) -> Option<Event> {
    if let Some(file) = line.strip_prefix("closed f") {
        return Some(Event::Closed(file.parse().ok()?));
    }
    if let Some(process) = line.strip_prefix("ended p") {
        return Some(Event::Ended(process.parse().ok()?));
    }
    if let Some(rest) = line.strip_prefix("unmapped p") {
        let mut words = rest.split(' ');
        let process = words.next()?.parse().ok()?;
        let at = words.next()?.parse().ok()?;
        return Some(Event::Unmapped(process, at, number(words.next()?)?));
    }
    let (call, answer) = line.split_once(" -> ")?;
    let (answer, times) = match answer.split_once(" x") {
        Some((answer, times)) => (answer, times.parse().ok()?),
        None => (answer, 1),
    };
    let mut words = call.split(' ');
    let process = words.next()?.strip_prefix('p')?.parse().ok()?;
    let (file, on) = words.next()?.strip_prefix('f')?.split_once(':')?;
    let on = Device::parse(on)?;
    let what = words.next()?;
    let what = match (what.split_once('/'), on) {
        (Some((nr, size)), _) => What::Escape(number(nr)?.try_into().ok()?, size.parse().ok()?),
        (None, File::Uvm) if what == "map" => What::Map,
        (None, _) => What::Uvm(number(what)?.try_into().ok()?),
    };
    let (mut block, mut params) = (Vec::new(), None);
    let mut behind: Vec<(u16, Vec<Item>)> = Vec::new();
    for word in words {
        if let Some(at) = word.strip_prefix('@') {
            behind.push((at.parse().ok()?, Vec::new()));
            continue;
        }
        if let Some(size) = word.strip_prefix('+') {
            params = Some((size.parse().ok()?, Vec::new()));
            continue;
        }
        let item = item(word)?;
        match (behind.last_mut(), &mut params) {
            (Some((_, items)), _) | (None, Some((_, items))) => items.push(item),
            (None, None) => block.push(item),
        }
    }
    let call = Call {
        process,
        file: file.parse().ok()?,
        on,
        what,
        block,
        params,
        behind,
        answer: parse_answer(answer)?,
    };
    Some(Event::Call(call, times))
}

fn item(word: &str) -> Option<Item> {
    let (at, value) = word.split_once('=')?;
    let (at, wide) = match at.strip_suffix('q') {
        Some(at) => (at, true),
        None => (at, false),
    };
    Some(Item {
        at: at.parse().ok()?,
        wide,
        value: value.parse().ok()?,
    })
}

fn parse_answer(word: &str) -> Option<Answer> {
    Some(match word {
        "native" => Answer::Native,
        "gone" => Answer::Gone,
        _ => {
            if let Some(value) = word.strip_prefix('=') {
                Answer::Value(value.parse().ok()?)
            } else if let Some(errno) = word.strip_prefix('!') {
                Answer::Errno(errno.parse().ok()?)
            } else {
                Answer::Status(number(word)?.try_into().ok()?)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# what people read
gpuslice-stream 1 driver 580.159.04 gpus 2

p1 f1:ctl 0x2b/48 8=*c1 12=0x41 -> 0
p1 f1:ctl 0x2b/48 0=c1 4=o2 8=+o3 12=0x40 32=0x80 +128 24=0x18000000 64q=0x200000 -> 0x51
p1 f1:ctl 0x2a/32 0=c1 4=? 8=0x20801303 16q=ptr +1028 0=3 4=g1 @8 0=o3 4=o2 @16 0=c1 -> 0 x7
p2 f4:uvm 33 0q=a1+0x200000 8q=a2-0x10 24=uuid1 9244=f1 9252=c1 9256=o3 -> 0
p2 f4:uvm map 0q=a2+0 8q=0x400000 -> native
p2 f5:gpu1 0xc9/4 0=ctl -> =0
p2 f5:gpu1 0x4e/56 0=inst2 4=none 8=other 12=x1 32q=*m1 40q=+m2 44q=m1 48=gpu0 52=+? 56=p2 60q=host 64=version -> !22
p2 f5:gpu1 0x4e/56 -> gone
unmapped p2 a1-0x10 0x400000
closed f1
ended p1
";

    #[test]
    fn what_is_read_is_written_the_same() {
        let (head, events) = parse(TEXT).unwrap();
        let mut written = format!("{head}\n");
        for (_, event) in &events {
            written += &format!("{event}\n");
        }
        let read: Vec<&str> = TEXT
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
            .collect();
        assert_eq!(written.lines().collect::<Vec<_>>(), read);
        assert_eq!((head.gpus, events[0].0), (2, 4));
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        assert!(
            parse("p1 f1:ctl 0xd6/8 -> 0\n")
                .unwrap_err()
                .contains("gpuslice-stream 1")
        );
        for line in [
            "p1 f1:ctl 0xd6/8",
            "p1 f1:tty 0xd6/8 -> 0",
            "p1 f1:ctl 0x1d6/8 -> 0",
            "p1 f1:ctl 0xd6/8 0=o -> 0",
            "p1 f1:ctl 0xd6/8 -> yes",
        ] {
            let text = format!("{HEAD} driver 1.2 gpus 1\n\n{line}\n");
            assert!(parse(&text).unwrap_err().starts_with("line 3 "), "{line}");
        }
    }
}
