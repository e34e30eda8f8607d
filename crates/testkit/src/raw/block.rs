//! A parameter block: zeroed bytes at an address that stays, aligned for any field.

/// Bytes that an ioctl reads and writes.
#[derive(Clone, Debug)]
pub struct Block {
    words: Vec<u64>,
    len: usize,
}

impl Block {
    /// A block of `len` zero bytes.
    pub fn new(len: usize) -> Block {
        Block {
            words: vec![0; len.div_ceil(8)],
            len,
        }
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it lies.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    /// Where it lies, as a pointer field of another block holds it; 0 for an empty block.
    pub fn address(&mut self) -> u64 {
        if self.len == 0 {
            0
        } else {
            self.as_mut_ptr() as u64
        }
    }

    /// The bytes from `at` on.
    ///
    /// # Panics
    /// The field lies outside the block: a mistake in the program.
    pub fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        assert!(
            at + N <= self.len,
            "{N} bytes at {at} lie outside a block of {}",
            self.len
        );
        std::array::from_fn(|i| {
            let at = at + i;
            (self.words[at / 8] >> (8 * (at % 8))) as u8
        })
    }

    /// Writes bytes at `at`.
    ///
    /// # Panics
    /// The field lies outside the block: a mistake in the program.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        assert!(
            at + bytes.len() <= self.len,
            "{} bytes at {at} lie outside a block of {}",
            bytes.len(),
            self.len
        );
        for (i, &byte) in bytes.iter().enumerate() {
            let (word, shift) = ((at + i) / 8, 8 * ((at + i) % 8));
            self.words[word] = self.words[word] & !(0xff << shift) | u64::from(byte) << shift;
        }
    }

    /// A 32-bit field.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    /// A 64-bit field.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }

    /// The block with a 32-bit field set.
    pub fn with32(mut self, at: usize, value: u32) -> Block {
        self.put(at, &value.to_le_bytes());
        self
    }

    /// The block with a 64-bit field set.
    pub fn with64(mut self, at: usize, value: u64) -> Block {
        self.put(at, &value.to_le_bytes());
        self
    }

    /// The block with bytes set.
    pub fn with(mut self, at: usize, bytes: &[u8]) -> Block {
        self.put(at, bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_little_endian_and_leave_their_neighbours_alone() {
        let block = Block::new(12)
            .with64(0, u64::MAX)
            .with32(4, 0x1122_3344)
            .with(2, &[0xaa]);
        assert_eq!(
            block.bytes::<12>(0),
            [0xff, 0xff, 0xaa, 0xff, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0]
        );
        assert_eq!((block.u32(4), block.u64(4)), (0x1122_3344, 0x1122_3344));
        assert_eq!(Block::new(0).address(), 0);
    }

    #[test]
    #[should_panic(expected = "outside a block")]
    fn a_field_outside_is_a_mistake() {
        Block::new(6).u32(4);
    }
}
