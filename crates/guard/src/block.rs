//! A parameter block of the tenant: copied in once, worked on here, and written back only where it changed.

use std::io;

use crate::caller::Caller;
use crate::rmcall::{put_u32, put_u64, u32_at, u64_at};
use crate::sys::TenantPtr;

/// A copy of a block in the tenant's memory.
#[derive(Debug, Default)]
pub struct Block {
    from: Option<TenantPtr>,
    /// What the driver works on; may be longer than what was copied, the rest zero.
    pub bytes: Vec<u8>,
    before: Vec<u8>,
}

/// Room behind every block: should a driver of another release read or write a little further than the table says, it
/// meets zeroes of ours.
const SLACK: usize = 64;

impl Block {
    /// Forgets what it held.
    pub fn clear(&mut self) {
        self.from = None;
        self.bytes.clear();
        self.before.clear();
    }

    /// Copies `len` bytes from the tenant.
    ///
    /// # Errors
    /// `EFAULT`: not readable there.
    pub fn load(&mut self, caller: &Caller, from: TenantPtr, len: usize) -> io::Result<()> {
        self.prepare(from, len);
        caller.read(from, &mut self.bytes[..len])?;
        self.loaded();
        Ok(())
    }

    /// Copies this block and, on the guess that it leads to where the last one led, the block behind it, with one call.
    /// A wrong guess costs nothing but the copy: [`Block::is_of`] tells.
    ///
    /// # Errors
    /// `EFAULT`: this block is not readable there.
    pub fn load_with(
        &mut self,
        caller: &Caller,
        from: TenantPtr,
        len: usize,
        behind: &mut Block,
        (behind_from, behind_len): (TenantPtr, usize),
    ) -> io::Result<()> {
        self.prepare(from, len);
        behind.prepare(behind_from, behind_len);
        let parts = &mut [
            (from, &mut self.bytes[..len]),
            (behind_from, &mut behind.bytes[..behind_len]),
        ];
        if caller.read_parts(parts).is_err() {
            behind.clear();
            return self.load(caller, from, len);
        }
        self.loaded();
        behind.loaded();
        Ok(())
    }

    /// Whether the block holds these bytes of the tenant.
    pub fn is_of(&self, from: TenantPtr, len: usize) -> bool {
        self.from == Some(from) && self.before.len() == len
    }

    /// Makes room for `len` bytes of the block at `from` without copying; [`Block::loaded`] must follow.
    pub fn prepare(&mut self, from: TenantPtr, len: usize) {
        self.from = Some(from);
        self.bytes.clear();
        self.bytes.resize(len + SLACK, 0);
        self.before.clear();
        self.before.resize(len, 0);
    }

    /// What the block holds now is what the tenant's memory holds.
    pub fn loaded(&mut self) {
        let len = self.before.len();
        self.before.copy_from_slice(&self.bytes[..len]);
    }

    /// What the tenant's block held.
    pub fn before(&self) -> &[u8] {
        &self.before
    }

    /// Bytes of the tenant's block.
    pub fn len(&self) -> usize {
        self.before.len()
    }

    /// The block as the driver is to see it.
    pub fn driver_view(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Address of the copy, for a pointer inside another block.
    pub fn address(&mut self) -> u64 {
        self.bytes.as_mut_ptr() as u64
    }

    /// Reads a `u32`.
    pub fn u32(&self, at: usize) -> u32 {
        u32_at(&self.bytes, at)
    }

    /// Reads a `u64`.
    pub fn u64(&self, at: usize) -> u64 {
        u64_at(&self.bytes, at)
    }

    /// Writes a `u32`.
    pub fn set_u32(&mut self, at: usize, value: u32) {
        put_u32(&mut self.bytes, at, value);
    }

    /// Writes a `u64`.
    pub fn set_u64(&mut self, at: usize, value: u64) {
        put_u64(&mut self.bytes, at, value);
    }

    /// Puts back what the tenant had in `len` bytes at `at` (a pointer or descriptor that was translated).
    pub fn restore(&mut self, at: usize, len: usize) {
        self.bytes[at..at + len].copy_from_slice(&self.before[at..at + len]);
    }

    /// Writes the words that changed back to the tenant.
    ///
    /// # Errors
    /// `EFAULT`: not writable there.
    pub fn store(&self, caller: &Caller) -> io::Result<()> {
        let Some(from) = self.from else {
            return Ok(());
        };
        for (start, end) in changed_runs(&self.before, &self.bytes[..self.before.len()]) {
            caller.write(from.offset(start as u64), &self.bytes[start..end])?;
        }
        Ok(())
    }
}

/// Runs of changed words this near each other are written as one. What lies between holds what the tenant had when it
/// called; the driver itself would write the whole block.
const NEAR: usize = 64;

/// The runs of 4-byte words in which two blocks of one length differ.
fn changed_runs(before: &[u8], after: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    if before == after {
        return runs;
    }
    let mut at = 0;
    for (b, a) in before.chunks(4).zip(after.chunks(4)) {
        let end = at + b.len();
        if b != a {
            match runs.last_mut() {
                Some(last) if at - last.1 <= NEAR => last.1 = end,
                _ => runs.push((at, end)),
            }
        }
        at = end;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_words_are_written_and_neighbours_are_joined() {
        let before = [0u8; 202];
        let mut after = before;
        assert_eq!(changed_runs(&before, &after), []);
        after[5] = 1;
        after[8] = 1;
        after[40] = 1;
        assert_eq!(changed_runs(&before, &after), [(4, 44)]);
        after[200] = 1;
        assert_eq!(changed_runs(&before, &after), [(4, 44), (200, 202)]);
    }
}
