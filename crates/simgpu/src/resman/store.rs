//! Contents of simulated memory: as large as a GPU's, as small as what was written.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

const PAGE: u64 = 4096;

/// The bytes of one memory object. What was never written reads as zero, so nobody sees what an earlier owner left.
#[derive(Default)]
pub struct Store {
    contents: Mutex<Contents>,
}

/// Pages with bytes of their own, over runs of pages that repeat one word, over zero.
#[derive(Default)]
struct Contents {
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
    /// First page -> (page after the last, word).
    runs: BTreeMap<u64, (u64, u32)>,
}

impl Store {
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        for (page, within, part) in pieces(offset, into.len()) {
            let into = &mut into[part];
            match contents.pages.get(&page) {
                Some(bytes) => into.copy_from_slice(&bytes[within..within + into.len()]),
                None => repeat(into, within, contents.word(page)),
            }
        }
    }

    pub fn write(&self, offset: u64, from: &[u8]) {
        let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        for (page, within, part) in pieces(offset, from.len()) {
            let from = &from[part];
            match uniform(from) {
                Some(word) if from.len() == PAGE as usize => contents.set_run(page, page + 1, word),
                _ => contents.own_page(page)[within..within + from.len()].copy_from_slice(from),
            }
        }
    }

    /// Repeats `word`, whose first byte belongs to offsets that are multiples of four.
    pub fn fill(&self, offset: u64, length: u64, word: u32) {
        let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        let end = offset.saturating_add(length);
        let (first, last) = (offset.div_ceil(PAGE), end / PAGE);
        if first < last {
            contents.set_run(first, last, word);
        }
        let mut edge = |from: u64, to: u64| {
            if from < to {
                let within = (from % PAGE) as usize;
                repeat(
                    &mut contents.own_page(from / PAGE)[within..within + (to - from) as usize],
                    within,
                    word,
                );
            }
        };
        if first > last {
            edge(offset, end);
        } else {
            edge(offset, end.min(first * PAGE));
            edge((last * PAGE).max(offset), end);
        }
    }
}

impl Contents {
    /// The word that a page without bytes of its own repeats.
    fn word(&self, page: u64) -> u32 {
        match self.runs.range(..=page).next_back() {
            Some((_, &(end, word))) if page < end => word,
            _ => 0,
        }
    }

    fn own_page(&mut self, page: u64) -> &mut [u8; PAGE as usize] {
        let word = self.word(page);
        self.pages.entry(page).or_insert_with(|| {
            let mut bytes = Box::new([0; PAGE as usize]);
            repeat(&mut bytes[..], 0, word);
            bytes
        })
    }

    fn set_run(&mut self, first: u64, end: u64, word: u32) {
        let dropped: Vec<u64> = self
            .pages
            .range(first..end)
            .map(|(&page, _)| page)
            .collect();
        for page in dropped {
            self.pages.remove(&page);
        }
        let overlapping: Vec<(u64, (u64, u32))> = self
            .runs
            .range(..end)
            .rev()
            .take_while(|&(_, &(run_end, _))| run_end > first)
            .map(|(&start, &run)| (start, run))
            .collect();
        for (start, (run_end, run_word)) in overlapping {
            self.runs.remove(&start);
            if start < first {
                self.runs.insert(start, (first, run_word));
            }
            if run_end > end {
                self.runs.insert(end, (run_end, run_word));
            }
        }
        if word == 0 {
            return;
        }
        // A neighbour of the same word grows, so that a large pattern written page by page stays one run.
        match self.runs.range_mut(..first).next_back() {
            Some((_, before)) if before.0 == first && before.1 == word => before.0 = end,
            _ => {
                self.runs.insert(first, (end, word));
            }
        }
    }
}

/// Splits a range at page boundaries: page, offset in it, and the part of the caller's slice.
fn pieces(
    offset: u64,
    length: usize,
) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset.wrapping_add(done as u64);
        let within = (at % PAGE) as usize;
        let count = (PAGE as usize - within).min(length - done);
        let part = done..done + count;
        done += count;
        Some((at / PAGE, within, part))
    })
}

fn repeat(into: &mut [u8], phase: usize, word: u32) {
    let mut word = word.to_le_bytes();
    word.rotate_left(phase % 4);
    for part in into.chunks_mut(4) {
        part.copy_from_slice(&word[..part.len()]);
    }
}

/// The word that these bytes repeat, if they repeat one.
fn uniform(bytes: &[u8]) -> Option<u32> {
    let first = bytes.first_chunk::<4>()?;
    bytes
        .chunks_exact(4)
        .all(|part| part == first)
        .then(|| u32::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(store: &Store, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0xaa; length];
        store.read(offset, &mut bytes);
        bytes
    }

    #[test]
    fn fresh_memory_is_zero() {
        assert_eq!(read(&Store::default(), 4000, 300), vec![0; 300]);
    }

    #[test]
    fn whatever_is_written_and_filled_reads_like_a_flat_array() {
        let store = Store::default();
        let mut flat = vec![0_u8; 40_000];
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..600 {
            let start = random(30_000) & !3;
            let length = random(10_000);
            if random(2) == 0 {
                let length = length & !3;
                let word = random(3) as u32 * 0x0102_0304;
                store.fill(start, length, word);
                for at in start..start + length {
                    flat[at as usize] = word.to_le_bytes()[(at % 4) as usize];
                }
            } else {
                let bytes: Vec<u8> = (0..length)
                    .map(|at| if length > 9000 { 5 } else { at as u8 })
                    .collect();
                store.write(start, &bytes);
                flat[start as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
            assert!(read(&store, 0, flat.len()) == flat);
        }
    }

    #[test]
    fn a_pattern_over_gigabytes_costs_one_run() {
        let store = Store::default();
        store.fill(0, 8 << 30, 0x5555_5555);
        store.write(4096, &[0x55; 1 << 20]);
        let contents = store.contents.lock().unwrap();
        assert!(contents.pages.is_empty());
        assert!(contents.runs.len() <= 3, "{}", contents.runs.len());
    }
}
