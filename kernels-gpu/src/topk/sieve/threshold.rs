//! The threshold among keys on chip, digit by digit. The race argument is that of [`narrow`](super::narrow).

use super::chip::{Chip, TAIL};
use super::{KEPT, THREADS, most_blocks};
use crate::mutation::{self, Mutation};
use crate::topk::digits::{self, DIGIT_BITS, DIGITS, Tail};
use crate::topk::rule::{BLOCK_CELLS, Step};
use cuda_std::prelude::*;

/// The rank from which on first digits are fine, that of 2^-16.
const FINE: u32 = 0xb780_0001;
/// Bits of a rank below its first digit, in the finely divided range.
const FINE_BITS: u32 = 20;

/// The first digit of a rank: 0 of NaN's, 1 of those below the fine ones.
#[inline(always)]
pub(super) fn first_digit(rank: u32) -> u32 {
    let fine = rank.saturating_sub(FINE - (1 << FINE_BITS)) >> FINE_BITS;
    (fine + u32::from(rank > 1)).min(DIGITS as u32 - 1)
}

/// The lowest rank with a first digit, how far the largest lies above it, and in how many low bits they differ.
#[inline(always)]
fn first_range(digit: u32) -> (u32, u32, u32) {
    const LAST: u32 = DIGITS as u32 - 1;
    let base = FINE.wrapping_add(digit.wrapping_sub(2) << FINE_BITS);
    match digit {
        0 => (1, 0, 0),
        1 => (2, FINE - 1 - 2, u32::BITS),
        LAST => (base, u32::MAX - base, u32::BITS),
        _ => (base, (1 << FINE_BITS) - 1, FINE_BITS),
    }
}

/// What a round looks for.
#[derive(Clone, Copy)]
pub(super) struct Goal {
    /// Cells, or nodes that count as one.
    pub(super) cells: u32,
    /// Cells of a node, as a power of two.
    unit: u32,
    /// Cells that the tail lacks.
    lacking: u32,
    /// Nodes that may be kept beyond the goal.
    spare: u32,
}

impl Goal {
    #[inline(always)]
    pub(super) fn cells(step: Step) -> Self {
        let tail_cells = step.tail_cells();
        let is_whole = tail_cells == 0 || mutation::is(Mutation::SieveTakesTailForWhole);
        let lacking = if is_whole { 0 } else { BLOCK_CELLS - tail_cells };
        Self { cells: step.width, unit: BLOCK_CELLS.ilog2(), lacking, spare: 0 }
    }

    #[inline(always)]
    pub(super) fn chunks(step: Step) -> Self {
        let most = most_blocks(step.width) - u32::from(mutation::is(Mutation::SieveKeepsOneChunkLess));
        Self { cells: most, unit: 0, lacking: 0, spare: (KEPT as u32).saturating_sub(most) }
    }
}

/// Where a round cuts: nodes whose rank is larger than `base + span` are kept, and of those from `base` on the first `ties`.
#[derive(Clone, Copy)]
pub(super) struct Threshold {
    pub(super) base: u32,
    pub(super) span: u32,
    pub(super) ties: u32,
    /// Cells of the ties.
    pub(super) budget: u32,
}

impl Chip {
    /// Finds the threshold of `elements` keys, whose first digits are counted in `histogram`. Another one, empty, is `histogram` then.
    #[inline(always)]
    pub(super) unsafe fn threshold(self, elements: u32, goal: Goal, histogram: &mut usize) -> Threshold {
        let thread = thread::thread_idx_x();
        let (mut base, mut span, mut need) = (0, 0, goal.cells);
        // Low bits that the digits before have left open; none has been looked at while they are more than a word's.
        let mut bits = hint::opaque(u32::BITS + 1);
        // SAFETY: the race argument above.
        unsafe {
            // The keys are read by four.
            if thread < 4 && elements + thread < elements.next_multiple_of(4) {
                self.keys.at((elements + thread) as usize).write(0, 0);
            }
            loop {
                thread::sync_threads();
                if thread < DIGITS as u32 {
                    self.histogram(*histogram ^ 1).at(thread as usize).write(0, 0);
                }
                let is_first = bits > u32::BITS;
                if thread < 32 {
                    let counts = self.histogram(*histogram);
                    let tail = self.found.at(TAIL).read(0);
                    let digit = if is_first {
                        if tail > 0 { first_digit(tail) } else { u32::MAX }
                    } else if tail.wrapping_sub(base) <= span {
                        (tail - base) >> bits
                    } else {
                        u32::MAX
                    };
                    let tail = Tail { digit, lacking: goal.lacking };
                    digits::find(counts, self.found, goal.unit, need, tail);
                }
                thread::sync_threads();
                let digit = self.found.at(digits::DIGIT).read(0);
                if is_first {
                    (base, span, bits) = first_range(digit);
                } else {
                    base += digit << bits;
                    span = (span - (digit << bits)).min((1 << bits) - 1);
                }
                need -= self.found.at(digits::ABOVE).read(0);
                let held = self.found.at(digits::HELD).read(0);
                *histogram ^= 1;
                // The lower digits do not matter where all that have this one are kept, and none of several is cut.
                let mut all_fit = held <= (need >> goal.unit) + goal.spare || held == 1;
                if mutation::is(Mutation::SieveCutsEarly) {
                    all_fit |= held == need.div_ceil(BLOCK_CELLS);
                }
                if all_fit || bits == 0 {
                    let ties = if all_fit { held } else { (need + (1 << goal.unit) - 1) >> goal.unit };
                    return Threshold { base, span, ties, budget: need };
                }
                bits = bits.saturating_sub(DIGIT_BITS);
                let mut first = 4 * thread;
                while first < elements {
                    let U32x4(keys) = self.keys.at(first as usize).read_as(0);
                    for i in 0..4 {
                        // Counted in any case, so that no branch keeps the four from overlapping: keys outside of the range in a word
                        // of the lane's own.
                        let offset = keys[i].wrapping_sub(base);
                        let aside = DIGITS as u32 + thread % 32;
                        self.count(*histogram, if offset <= span { offset >> bits } else { aside });
                    }
                    first += 4 * THREADS as u32;
                }
            }
        }
    }
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    use super::*;
    use crate::topk::sieve::rank;

    #[test]
    fn first_digits_divide_the_ranks() {
        for digit in 0..DIGITS as u32 {
            let (base, span, bits) = first_range(digit);
            assert_eq!((first_digit(base), first_digit(base + span)), (digit, digit));
            assert!(bits == u32::BITS || span >> bits == 0);
            if base + span < u32::MAX {
                assert_eq!(first_range(digit + 1).0, base + span + 1);
            }
        }
        assert_eq!((first_range(0).0, first_digit(u32::MAX)), (1, DIGITS as u32 - 1));
        assert_eq!(FINE, rank(2.0f32.powi(-16)));
    }
}
