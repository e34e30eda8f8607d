//! A parameter block: bytes with fields at the offsets of `rm::layout`.

/// The bytes. A field beyond the end reads as zero and is not written: a block's size is checked before it is used,
/// and a hostile one must not end the server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Block(pub Vec<u8>);

impl Block {
    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0
            .get(at..)
            .and_then(|rest| rest.first_chunk::<N>())
            .copied()
            .unwrap_or([0; N])
    }

    pub fn u8(&self, at: usize) -> u8 {
        self.field::<1>(at)[0]
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.field(at))
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.field(at))
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.field(at))
    }

    pub fn uuid(&self, at: usize) -> [u8; 16] {
        self.field(at)
    }

    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(room) = self
            .0
            .get_mut(at..)
            .and_then(|rest| rest.get_mut(..bytes.len()))
        {
            room.copy_from_slice(bytes);
        }
    }

    pub fn put_u8(&mut self, at: usize, value: u8) {
        self.put(at, &[value]);
    }

    pub fn put_u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    pub fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    pub fn put_u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    /// A text with its terminating zero, cut to `room` bytes.
    pub fn put_text(&mut self, at: usize, room: usize, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.truncate(room.saturating_sub(1));
        bytes.push(0);
        self.put(at, &bytes);
    }
}
