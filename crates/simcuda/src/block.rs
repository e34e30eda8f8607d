//! Parameter blocks of ioctls: bytes with fields at known offsets, aligned for the 8-byte ones.

/// A zeroed parameter block.
pub struct Block {
    words: Vec<u64>,
    size: usize,
}

impl Block {
    /// A block of `size` zero bytes.
    pub fn new(size: usize) -> Block {
        Block {
            words: vec![0; size.div_ceil(8)],
            size,
        }
    }

    /// With a 4-byte field set.
    pub fn with32(mut self, offset: usize, value: u32) -> Block {
        self.put(offset, &value.to_ne_bytes());
        self
    }

    /// With an 8-byte field set.
    pub fn with64(mut self, offset: usize, value: u64) -> Block {
        self.put(offset, &value.to_ne_bytes());
        self
    }

    /// With bytes set.
    pub fn with(mut self, offset: usize, bytes: &[u8]) -> Block {
        self.put(offset, bytes);
        self
    }

    /// Gives the block another size: what is cut off is gone, what is added is zero.
    pub fn resize(&mut self, size: usize) {
        self.words.resize(size.div_ceil(8), 0);
        self.size = size;
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.size
    }

    /// A 4-byte field; 0 outside the block.
    pub fn get32(&self, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        self.read(offset, &mut bytes);
        u32::from_ne_bytes(bytes)
    }

    /// An 8-byte field; 0 outside the block.
    pub fn get64(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// `len` bytes from `offset`; zeroes outside the block.
    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes);
        bytes
    }

    /// Sets bytes; outside the block nothing happens.
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        for (at, byte) in (offset..self.size).zip(bytes) {
            let mut word = self.words[at / 8].to_ne_bytes();
            word[at % 8] = *byte;
            self.words[at / 8] = u64::from_ne_bytes(word);
        }
    }

    /// The address to give to the kernel; valid as long as the block is borrowed.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    /// The address as a number, for a pointer inside another block.
    pub fn address(&mut self) -> u64 {
        self.as_mut_ptr() as u64
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) {
        for (at, byte) in (offset..self.size).zip(bytes) {
            *byte = self.words[at / 8].to_ne_bytes()[at % 8];
        }
    }
}
