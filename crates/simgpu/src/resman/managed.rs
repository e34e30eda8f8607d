//! Managed memory: made by `mmap` of the UVM file, with no ioctl, and on the device once the GPU has touched it.
//!
//! The bytes are the stand-in's own pages, so the process and the device see the same. What is modelled here is
//! residency: 2 MiB blocks that count against the card until the mapping goes or the card needs the room.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;

use super::Rm;
use crate::proto::FileId;

/// Managed memory moves in blocks of this size, as in the driver.
const BLOCK: u64 = 2 << 20;

/// A block that is on a device.
pub struct Resident {
    gpu: usize,
    /// Bytes of it that were mapped when it moved.
    bytes: u64,
    pid: u32,
}

/// Blocks on a device, by block number (address / 2 MiB).
pub type Residents = BTreeMap<u64, Resident>;

/// Where a process maps a UVM file at the file's own offsets, as managed memory is.
fn mappings(pid: u32, file: FileId) -> io::Result<Vec<(u64, u64)>> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    Ok(text
        .lines()
        .filter_map(|line| mapping(line, file))
        .collect())
}

/// One line of `/proc/PID/maps`: `start-end perms offset major:minor inode path`.
fn mapping(line: &str, (dev, ino): FileId) -> Option<(u64, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let shared = fields.next()?.as_bytes().get(3) == Some(&b's');
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let same =
        libc::makedev(number(major)?, number(minor)?) == dev && fields.next()?.parse() == Ok(ino);
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    (shared && same && start == offset).then_some((start, end))
}

impl Rm {
    /// Gives back what is mapped no more, for every process with managed memory.
    pub(super) fn refresh_managed(&mut self) {
        let mut owners: Vec<(FileId, u32)> = Vec::new();
        for (&id, file) in &self.files {
            if let Some(uvm) = &file.uvm {
                owners.extend(uvm.resident.values().map(|block| (id, block.pid)));
            }
        }
        owners.sort_unstable();
        owners.dedup();
        for (file, pid) in owners {
            self.refresh_managed_of(file, pid);
        }
    }

    /// Gives back what this process maps no more of a UVM file, and empties it: the next mapping there reads zero.
    pub(super) fn refresh_managed_of(&mut self, file: FileId, pid: u32) {
        let mapped = match mappings(pid, file) {
            Ok(mapped) => mapped,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            // Not ours to see: nothing is known, nothing changes.
            Err(_) => return,
        };
        let Some(open) = self.files.get_mut(&file) else {
            return;
        };
        let Some(uvm) = open.uvm.as_deref_mut() else {
            return;
        };
        let covered = |block: u64| {
            mapped
                .iter()
                .any(|&(start, end)| start < (block + 1) * BLOCK && block * BLOCK < end)
        };
        let gone: Vec<u64> = uvm
            .resident
            .iter()
            .filter(|&(&block, resident)| resident.pid == pid && !covered(block))
            .map(|(&block, _)| block)
            .collect();
        for block in gone {
            if let Some(resident) = uvm.resident.remove(&block) {
                self.devices[resident.gpu].resident -= resident.bytes;
            }
            let (offset, length) = ((block * BLOCK).cast_signed(), BLOCK.cast_signed());
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: fallocate touches no memory of this process. If it fails the old bytes stay, which are the
            // same process's own.
            unsafe { libc::fallocate(open.pages.as_raw_fd(), mode, offset, length) };
        }
    }

    /// The GPU touches managed memory from `address`: its blocks move onto the device, as far as there is room (the
    /// rest is reached over the host link). Returns where the mapping or the range ends; `None`: nothing is mapped.
    pub(super) fn touch_managed(
        &mut self,
        file: FileId,
        gpu: usize,
        pid: u32,
        address: u64,
        end: u64,
    ) -> Option<u64> {
        let mapped = self.managed_mappings(file, pid)?;
        let &(start, until) = mapped
            .iter()
            .find(|&&(start, until)| start <= address && address < until)?;
        let until = until.min(end);
        let whole = mapped
            .iter()
            .find(|&&(from, _)| from == start)
            .map_or(until, |&(_, to)| to);
        for block in address / BLOCK..until.div_ceil(BLOCK) {
            let bytes = whole.min((block + 1) * BLOCK) - start.max(block * BLOCK);
            self.move_block(file, gpu, pid, block, bytes);
        }
        Some(until)
    }

    /// Managed memory of a process, if the file serves it.
    fn managed_mappings(&self, file: FileId, pid: u32) -> Option<Vec<(u64, u64)>> {
        let serves = self.files.get(&file)?.uvm.as_deref()?.serves(pid);
        if serves {
            mappings(pid, file).ok()
        } else {
            None
        }
    }

    /// Whether managed memory covers a range without a gap.
    pub(super) fn maps_managed(&self, file: FileId, pid: u32, base: u64, end: u64) -> bool {
        let Some(mapped) = self.managed_mappings(file, pid) else {
            return false;
        };
        let mut at = base;
        for (start, until) in mapped {
            if start <= at && at < until {
                at = until;
            }
        }
        at >= end
    }

    fn move_block(&mut self, file: FileId, gpu: usize, pid: u32, block: u64, bytes: u64) {
        let room = self.free_bytes(gpu) >= bytes;
        let Some(uvm) = self
            .files
            .get_mut(&file)
            .and_then(|file| file.uvm.as_deref_mut())
        else {
            return;
        };
        if uvm
            .resident
            .get(&block)
            .is_some_and(|resident| resident.gpu == gpu)
            || !room
        {
            return;
        }
        if let Some(before) = uvm.resident.insert(block, Resident { gpu, bytes, pid }) {
            self.devices[before.gpu].resident -= before.bytes;
        }
        self.devices[gpu].resident += bytes;
    }

    /// Managed memory of a range goes back to the host.
    pub(super) fn move_to_host(&mut self, file: FileId, base: u64, length: u64) {
        let Some(uvm) = self
            .files
            .get_mut(&file)
            .and_then(|file| file.uvm.as_deref_mut())
        else {
            return;
        };
        let blocks: Vec<u64> = uvm
            .resident
            .range(base / BLOCK..base.saturating_add(length).div_ceil(BLOCK))
            .map(|(&block, _)| block)
            .collect();
        for block in blocks {
            if let Some(resident) = uvm.resident.remove(&block) {
                self.devices[resident.gpu].resident -= resident.bytes;
            }
        }
    }

    /// Moves at least `bytes` of managed memory off a card, as far as there is so much: an allocation needs the room.
    pub(super) fn evict(&mut self, gpu: usize, bytes: u64) {
        let mut missing = bytes;
        for file in self.files.values_mut() {
            let Some(uvm) = file.uvm.as_deref_mut() else {
                continue;
            };
            while missing > 0 {
                let Some(block) = uvm
                    .resident
                    .iter()
                    .find(|(_, resident)| resident.gpu == gpu)
                    .map(|(&at, _)| at)
                else {
                    break;
                };
                if let Some(resident) = uvm.resident.remove(&block) {
                    self.devices[gpu].resident -= resident.bytes;
                    missing = missing.saturating_sub(resident.bytes);
                }
            }
        }
    }

    /// A UVM file is gone and its managed memory with it.
    pub(super) fn release_residents(&mut self, residents: Residents) {
        for resident in residents.into_values() {
            self.devices[resident.gpu].resident -= resident.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_mappings_at_their_own_offset_are_managed_memory() {
        let line = "7f07ea000000-7f07ee000000 rw-s 7f07ea000000 00:01 1042                       /memfd:uvm (deleted)";
        let file = (libc::makedev(0, 1), 1042);
        assert_eq!(
            mapping(line, file),
            Some((0x7f07_ea00_0000, 0x7f07_ee00_0000))
        );
        assert_eq!(mapping(line, (libc::makedev(0, 1), 1043)), None);
        assert_eq!(mapping(line, (libc::makedev(0, 2), 1042)), None);
        assert_eq!(
            mapping(&line.replace("rw-s 7f07ea000000", "rw-s 00000000"), file),
            None
        );
        assert_eq!(mapping(&line.replace("rw-s", "rw-p"), file), None);
        assert_eq!(mapping("", file), None);
    }
}
