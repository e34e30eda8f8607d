//! Address ranges without overlap, each with a value: what UVM keeps per file and GPU, and managed
//! memory per process.

use std::collections::BTreeMap;

/// The addresses `start..end`, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Span {
    /// The `length` bytes from `base`; `None` where there are none. A length that runs past the
    /// last address ends there: no GPU or CPU address space reaches that far, so the driver has
    /// refused such a call anyway.
    pub(super) fn new(base: u64, length: u64) -> Option<Span> {
        let end = base.saturating_add(length);
        (end > base).then_some(Span { start: base, end })
    }

    pub(super) fn length(self) -> u64 {
        self.end - self.start
    }
}

/// What [`Spans::cut`] did to one of the ranges it met.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut<T> {
    pub(super) value: T,
    /// Bytes taken out of the range.
    pub(super) bytes: u64,
    /// Ranges with this value that are left of it: 0 (all taken), 1, or 2 (split).
    pub(super) left: u8,
}

/// A map from address ranges to values. Ranges never overlap and are never merged: as in the
/// driver, two neighbours with the same memory are two mappings.
#[derive(Clone, Debug)]
pub(super) struct Spans<T> {
    /// start -> (end, value), with start < end <= the next start.
    spans: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Spans<T> {
    fn default() -> Spans<T> {
        Spans {
            spans: BTreeMap::new(),
        }
    }
}

impl<T: Copy> Spans<T> {
    /// Takes `span` out of whatever covers it.
    pub(super) fn cut(&mut self, span: Span) -> Vec<Cut<T>> {
        let mut cuts = Vec::new();
        for Span { start, end } in self.overlapping(span) {
            let Some((_, value)) = self.spans.remove(&start) else {
                continue;
            };
            let mut left = 0;
            if start < span.start {
                self.spans.insert(start, (span.start, value));
                left += 1;
            }
            if end > span.end {
                self.spans.insert(span.end, (end, value));
                left += 1;
            }
            cuts.push(Cut {
                value,
                bytes: end.min(span.end) - start.max(span.start),
                left,
            });
        }
        cuts
    }

    /// The ranges that share an address with `span`, in order.
    pub(super) fn overlapping(&self, span: Span) -> Vec<Span> {
        // One may begin before the span, the others begin inside.
        let before = self.spans.range(..span.start).next_back();
        let before = before.filter(|(_, (end, _))| *end > span.start);
        let inside = self.spans.range(span.start..span.end);
        before
            .into_iter()
            .chain(inside)
            .map(|(start, (end, _))| Span {
                start: *start,
                end: *end,
            })
            .collect()
    }

    /// Puts a range where nothing is: call [`Spans::cut`] first.
    pub(super) fn put(&mut self, span: Span, value: T) {
        debug_assert!(
            self.spans
                .range(..span.end)
                .next_back()
                .is_none_or(|(_, (end, _))| *end <= span.start)
        );
        self.spans.insert(span.start, (span.end, value));
    }

    /// All ranges in order of address.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Span, T)> + '_ {
        self.spans.iter().map(|(start, (end, value))| {
            (
                Span {
                    start: *start,
                    end: *end,
                },
                *value,
            )
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The ranges that begin at or behind `start`, in order of address.
    pub(super) fn starting_from(&self, start: u64) -> impl Iterator<Item = (Span, T)> + '_ {
        self.spans.range(start..).map(|(start, (end, value))| {
            (
                Span {
                    start: *start,
                    end: *end,
                },
                *value,
            )
        })
    }

    /// The range that begins at exactly `start`.
    pub(super) fn starting_at(&self, start: u64) -> Option<Span> {
        self.spans
            .get(&start)
            .map(|(end, _)| Span { start, end: *end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_address_does_not_wrap() {
        assert_eq!(Span::new(7, 0), None);
        assert_eq!(Span::new(u64::MAX, 1), None);
        assert_eq!(
            Span::new(u64::MAX - 1, u64::MAX),
            Some(Span {
                start: u64::MAX - 1,
                end: u64::MAX
            })
        );
        assert_eq!(Span::new(0, u64::MAX).map(Span::length), Some(u64::MAX));
    }

    #[test]
    fn a_cut_in_the_middle_splits() {
        let mut spans = Spans::default();
        spans.put(Span { start: 10, end: 40 }, 'a');
        assert_eq!(
            spans.cut(Span { start: 20, end: 30 }),
            [Cut {
                value: 'a',
                bytes: 10,
                left: 2
            }]
        );
        let ranges: Vec<_> = spans
            .iter()
            .map(|(span, _)| (span.start, span.end))
            .collect();
        assert_eq!(ranges, [(10, 20), (30, 40)]);
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let mut spans = Spans::default();
        spans.put(Span { start: 10, end: 20 }, ());
        spans.put(Span { start: 30, end: 40 }, ());
        assert_eq!(spans.overlapping(Span { start: 20, end: 30 }), []);
        let first = Span { start: 10, end: 20 };
        assert_eq!(spans.overlapping(Span { start: 19, end: 30 }), [first]);
        assert_eq!(spans.overlapping(Span { start: 19, end: 31 }).len(), 2);
    }

    proptest! {
        /// Against one cell per address: the same cells stay, and the pieces reported are the
        /// pieces kept.
        #[test]
        fn as_an_array_of_cells(steps in prop::collection::vec((0..48u64, 1..20u64, any::<bool>()), 1..60)) {
            let mut spans: Spans<u32> = Spans::default();
            let mut cells: Vec<Option<u32>> = vec![None; 80];
            let mut pieces = 0i64;
            for (value, (base, length, put)) in (0u32..).zip(steps) {
                let span = Span::new(base, length).expect("not empty");
                let cuts = spans.cut(span);
                let taken: u64 = cuts.iter().map(|cut| cut.bytes).sum();
                let cells = &mut cells[base as usize..(base + length) as usize];
                prop_assert_eq!(taken as usize, cells.iter().flatten().count());
                cells.fill(put.then_some(value));
                pieces += cuts.iter().map(|cut| i64::from(cut.left) - 1).sum::<i64>() + i64::from(put);
                if put {
                    spans.put(span, value);
                }
            }
            let mut shown = vec![None; 80];
            for (span, value) in spans.iter() {
                for cell in &mut shown[span.start as usize..span.end as usize] {
                    prop_assert_eq!(*cell, None);
                    *cell = Some(value);
                }
            }
            prop_assert_eq!(shown, cells);
            prop_assert_eq!(pieces, spans.iter().count() as i64);
        }
    }
}
