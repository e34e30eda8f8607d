//! Chance that comes again: splitmix64.

/// The same numbers for the same seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers of one stream of a seed.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed ^ stream.wrapping_mul(0x9e6c_63d0_876a_68e5));
        // Neighbouring seeds differ in a few bits only.
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`, which is above 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of these; `None` of none.
    pub fn any<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() {
            None
        } else {
            Some(&of[self.below(of.len())])
        }
    }

    /// One of these, of which there is one at least.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A number that bounds are likely to stumble over.
    pub fn edge(&mut self) -> u64 {
        const NEAR: [u64; 12] = [
            0,
            1 << 12,
            1 << 16,
            1 << 21,
            1 << 29,
            1 << 31,
            1 << 32,
            1 << 47,
            1 << 62,
            1 << 63,
            0xffff_8000_0000_0000,
            u64::MAX - 3,
        ];
        self.pick(&NEAR)
            .wrapping_add(self.below(5) as u64)
            .wrapping_sub(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_a_stream_others() {
        let numbers = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.next(), random.next(), random.edge()]
        };
        assert_eq!(numbers(1, 0), numbers(1, 0));
        assert_ne!(numbers(1, 0), numbers(1, 1));
        assert_ne!(numbers(1, 0), numbers(2, 0));
    }
}
