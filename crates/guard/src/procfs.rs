//! What the kernel and the driver say as text under `/proc`: parsers, and nothing else.
//!
//! A tenant names its files and processes, so every line may hold anything.

/// Reads proc_pid_maps(5): `start-end perms offset dev inode path`.
/// Gives (base, length) of the lines for which `is_uvm` says yes to (device, inode, path).
pub fn parse_maps(maps: &str, is_uvm: impl Fn(&str, u64, &str) -> bool) -> Vec<(u64, u64)> {
    maps.lines()
        .filter_map(|line| {
            let mut words = line.splitn(6, ' ').map(str::trim).filter(|w| !w.is_empty());
            let range = words.next()?;
            let _perms = words.next()?;
            let _offset = words.next()?;
            let device = words.next()?;
            let rest = words.next()?;
            let (inode, path) = match rest.split_once(' ') {
                Some((inode, path)) => (inode, path.trim()),
                None => (rest, words.next().unwrap_or("")),
            };
            if !is_uvm(device, inode.parse().ok()?, path) {
                return None;
            }
            let (start, end) = range.split_once('-')?;
            let (start, end) = (
                u64::from_str_radix(start, 16).ok()?,
                u64::from_str_radix(end, 16).ok()?,
            );
            Some((start, end.checked_sub(start)?))
        })
        .collect()
}

/// The major number of the device with this whole name in `/proc/devices`.
pub fn parse_major(devices: &str, name: &str) -> Option<u32> {
    devices.lines().find_map(|line| {
        let (major, device) = line.trim().split_once(' ')?;
        if device.trim() == name {
            major.parse().ok()
        } else {
            None
        }
    })
}

/// All character devices in `/proc/devices` whose name begins with this: name and major number.
pub fn parse_majors(devices: &str, prefix: &str) -> Vec<(String, u32)> {
    let characters = devices.split("Block devices").next().unwrap_or_default();
    let lines = characters.lines().filter_map(|line| {
        let (major, device) = line.trim().split_once(' ')?;
        let device = device.trim();
        device
            .starts_with(prefix)
            .then_some((device.to_owned(), major.parse().ok()?))
    });
    lines.collect()
}

/// The version in `/proc/driver/nvidia/version`: the first word of digits and dots after "Kernel Module".
pub fn parse_driver_version(text: &str) -> Option<String> {
    let line = text.lines().next()?;
    line.split_whitespace()
        .find(|w| {
            w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.') && w.len() >= 5
        })
        .map(str::to_owned)
}

/// Whether `/proc/driver/nvidia/version` names the open kernel modules.
pub fn is_open_module(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    first.contains("Open Kernel Module")
}

/// The user data of each `tfd:` line of an epoll descriptor's fdinfo (proc_pid_fdinfo(5)).
pub fn parse_epoll_entries(text: &str) -> Vec<u64> {
    text.lines()
        .filter(|l| l.starts_with("tfd:"))
        .filter_map(|l| l.split("data:").nth(1)?.split_whitespace().next())
        .filter_map(|hex| u64::from_str_radix(hex, 16).ok())
        .collect()
}

/// The parent in proc_pid_stat(5). The name in parentheses may hold anything; what follows the last one does not.
pub fn parse_parent(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// Whether a command line (words with a zero byte behind each) begins with these words.
pub fn begins_with_words(command_line: &[u8], words: &[&str]) -> bool {
    let mut rest = command_line.split(|&byte| byte == 0);
    words
        .iter()
        .all(|word| rest.next() == Some(word.as_bytes()))
}

/// What a process can't get rid of any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Confinement {
    /// It gets no right by executing a program.
    pub no_new_privileges: bool,
    /// So many seccomp filters are on it.
    pub filters: u32,
}

/// Reads it in proc_pid_status(5).
pub fn parse_confinement(status: &str) -> Option<Confinement> {
    // The name of the program comes first, with its line breaks escaped.
    let number = |key: &str| -> Option<u32> {
        let line = status.lines().find_map(|l| l.strip_prefix(key))?;
        line.trim().parse().ok()
    };
    Some(Confinement {
        no_new_privileges: number("NoNewPrivs:")? != 0,
        filters: number("Seccomp_filters:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_the_uvm_file_are_found_among_others() {
        let maps = "\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 1234                       /usr/bin/python3
7f0000000000-7f0004000000 rw-s 7f0000000000 00:06 571                    /dev/nvidia-uvm
7f0100000000-7f0100200000 rw-s 00000000 00:06 570                        /dev/nvidiactl
7f0200000000-7f0200001000 rw-p 00000000 00:00 0 
7f0300000000-7f0300200000 rw-s 7f0300000000 00:06 571                    /dev/nvidia-uvm (deleted)
";
        let found = parse_maps(maps, |_, _, path| path.starts_with("/dev/nvidia-uvm"));
        assert_eq!(
            found,
            [(0x7f00_0000_0000, 64 << 20), (0x7f03_0000_0000, 2 << 20)]
        );
        let by_inode = parse_maps(maps, |device, inode, _| device == "00:06" && inode == 570);
        assert_eq!(by_inode, [(0x7f01_0000_0000, 2 << 20)]);
    }

    #[test]
    fn majors_are_found_by_the_whole_name() {
        let text = "Character devices:\n195 nvidia\n195 nvidiactl\n236 nvidia-uvm\n237 nvidia-caps\n\nBlock devices:\n";
        assert_eq!(parse_major(text, "nvidia-uvm"), Some(236));
        assert_eq!(parse_major(text, "nvidia-u"), None);
        let text = "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  9 nvidia-x\n";
        assert_eq!(
            parse_majors(text, "nvidia"),
            [("nvidia".to_owned(), 195), ("nvidia-uvm".to_owned(), 511)]
        );
    }

    #[test]
    fn the_version_is_read_from_open_and_closed_modules() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\nGCC version: gcc 12.2.0\n";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n";
        assert_eq!(parse_driver_version(open).as_deref(), Some("580.159.04"));
        assert_eq!(parse_driver_version(closed).as_deref(), Some("550.54.15"));
        assert_eq!(parse_driver_version(""), None);
        assert!(is_open_module(open) && !is_open_module(closed) && !is_open_module(""));
    }

    #[test]
    fn a_process_is_named_by_what_it_cannot_write_itself() {
        let stat = "12 (a) b) S 7 12 12 0 -1";
        assert_eq!(parse_parent(stat), Some(7));
        assert_eq!(parse_parent("12 (a"), None);
        let words = ["gpuslice-helper", "__helper"];
        assert!(begins_with_words(
            b"gpuslice-helper\0__helper\x003\0",
            &words
        ));
        assert!(!begins_with_words(b"gpuslice-helper\0", &words));
        assert!(!begins_with_words(b"xgpuslice-helper\0__helper\0", &words));
        assert!(!begins_with_words(b"", &words));
        let status =
            "Name:\tNoNewPrivs: 0\nState:\tR\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n";
        let confined = parse_confinement(status).unwrap();
        assert!(confined.no_new_privileges);
        assert_eq!(confined.filters, 3);
        assert_eq!(parse_confinement("Name:\tx\n"), None);
    }
}
