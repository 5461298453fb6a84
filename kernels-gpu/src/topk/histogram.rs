//! The threshold of a selection, eight bits of it a pass: how many cells each digit of the keys has, and at which digit they reach
//! the width. Blocks of 1024 threads.
//!
//! Every warp counts in a histogram of its own; lanes with the same digit count together, so that no content makes atomics
//! collide. Which candidates a lane counts, and in which order, does not matter: the threshold depends on the keys alone.
//!
//! Race argument. Two barriers a pass, A behind the counting and B behind the fold.
//! * A histogram is counted in with atomics between B of the pass before and A, read and set to zero by one thread a bin between A
//!   and B. The zeros before the first pass are parted from it by the barrier of [`Histograms::zeroed`].
//! * `folded` is written between A and B, and read between B and the next pass's A.

use super::rule::BLOCK_CELLS;
use crate::mutation::{self, Mutation};
use cuda_std::prelude::*;

/// Warps of a block.
pub const WARPS: usize = 32;
/// Threads of a block.
pub const THREADS: usize = 32 * WARPS;
/// Digits of a pass.
pub const BINS: usize = 256;
/// Bins of a lane in the search for the digit.
const LANE_BINS: usize = BINS / 32;

/// What the passes so far say of the threshold.
#[derive(Clone, Copy)]
pub struct Prefix {
    /// Its bits above the current digit.
    pub bits: u32,
    /// Where the current digit begins.
    pub shift: u32,
    /// Cells with keys above all that begin with `bits`.
    pub above: u32,
}

impl Prefix {
    /// Before the first pass.
    #[inline(always)]
    pub fn empty() -> Self {
        // Hidden, so that the passes stay a loop: unrolled they would not fit the instruction cache.
        Self { bits: 0, shift: hint::opaque(24u32), above: 0 }
    }

    /// Whether `key` begins as the threshold does.
    #[inline(always)]
    pub fn begins(self, key: u32) -> bool {
        // Two shifts: one by 32 is none.
        key & (u32::MAX << self.shift << 8) == self.bits
    }

    #[inline(always)]
    fn digit(self, key: u32) -> u32 {
        key >> self.shift & (BINS as u32 - 1)
    }
}

/// A histogram a warp, and their sum.
#[derive(Clone, Copy)]
pub struct Histograms {
    /// `[WARPS][BINS]` cells.
    warps: Shared<u32>,
    /// `[LANE_BINS][32]`: bin `8 * lane + i` at `[i][lane]`, so that the lanes of the search read without bank conflicts.
    folded: Shared<u32>,
}

impl Histograms {
    /// All zero.
    ///
    /// # Safety
    /// All threads of the block come here; the arrays are `[WARPS * BINS]` and `[BINS]`, and nothing else uses them.
    #[inline(always)]
    pub unsafe fn zeroed(warps: Shared<u32>, folded: Shared<u32>) -> Self {
        let thread = thread::thread_idx_x() as usize;
        for i in 0..WARPS * BINS / THREADS {
            // SAFETY: the caller's promise; the race argument above.
            unsafe { warps.write(i * THREADS + thread, 0) };
        }
        thread::sync_threads();
        Self { warps, folded }
    }

    /// Counts the candidates of the lanes for which `candidate` holds and whose keys begin as the threshold does, four cells each.
    ///
    /// # Safety
    /// All lanes of the warp come here.
    #[inline(always)]
    pub unsafe fn count(self, prefix: Prefix, key: u32, candidate: bool) {
        let counts = candidate && prefix.begins(key);
        if !warp::warp_vote_any(warp::FULL, counts) {
            return;
        }
        let lane = warp::lane_id();
        let bin = if counts { prefix.digit(key) } else { BINS as u32 };
        let peers = warp::warp_match_any(warp::FULL, bin);
        if counts && peers & ((1 << lane) - 1) == 0 {
            // SAFETY: the bin is one of the warp's, written before.
            unsafe { self.add(bin, BLOCK_CELLS * peers.count_ones()) };
        }
    }

    /// Counts `cells` more, or with wrapping fewer, for one key.
    ///
    /// # Safety
    /// Between the passes' barriers, as [`count`](Self::count).
    #[inline(always)]
    pub unsafe fn correct(self, prefix: Prefix, key: u32, cells: u32) {
        if prefix.begins(key) {
            // SAFETY: as in `count`.
            unsafe { self.add(prefix.digit(key), cells) };
        }
    }

    #[inline(always)]
    unsafe fn add(self, bin: u32, cells: u32) {
        let warp = thread::thread_idx_x() as usize / 32;
        // SAFETY: the caller's promise.
        unsafe { atomic::shared_fetch_add(self.warps, warp * BINS + bin as usize, cells) };
    }

    /// Ends a pass: the prefix with the next digit, the largest at which the cells from the top reach `width`.
    ///
    /// # Safety
    /// All threads of the block come here with the same prefix; the candidates have at least `width` cells, and `width > prefix.above`.
    #[inline(always)]
    pub unsafe fn next(self, prefix: Prefix, width: u32) -> Prefix {
        let thread = thread::thread_idx_x() as usize;
        let lane = warp::lane_id();
        thread::sync_threads(); // A
        // SAFETY: the race argument above; the indices are below the arrays' lengths.
        let bins = unsafe {
            if thread < BINS {
                // A correction may have made one of them negative.
                let mut cells = 0u32;
                for warp in 0..WARPS {
                    cells = cells.wrapping_add(self.warps.read(warp * BINS + thread));
                    self.warps.write(warp * BINS + thread, 0);
                }
                self.folded.write(thread % LANE_BINS * 32 + thread / LANE_BINS, cells);
            }
            if !mutation::is(Mutation::HistogramDropsFoldBarrier) {
                thread::sync_threads(); // B
            }
            let mut bins = [0; LANE_BINS];
            for i in 0..LANE_BINS {
                bins[i] = self.folded.read(i * 32 + lane as usize);
            }
            bins
        };

        let mut own = 0;
        for i in 0..LANE_BINS {
            own += bins[i];
        }
        // Cells of this lane's bins and all above.
        let mut from_here = own;
        for level in 0..5 {
            let above = warp::warp_shuffle_down(warp::FULL, from_here, 1 << level);
            if lane + (1 << level) < 32 {
                from_here += above;
            }
        }
        let mut above = prefix.above + from_here - own;
        let reaches = above < width && above + own >= width;
        let mut skipped = 0;
        let mut found = false;
        for i in (0..LANE_BINS).rev() {
            found = found || above + bins[i] >= width;
            if !found {
                above += bins[i];
                skipped += 1;
            }
        }
        // Of use where the cells reach only, and there at most seven bins are skipped.
        let digit = (LANE_BINS as u32 * (lane + 1) - 1).wrapping_sub(skipped);
        let source = warp::warp_vote_ballot(warp::FULL, reaches).trailing_zeros();
        let digit = warp::warp_shuffle_idx(warp::FULL, digit, source, 32);
        let above = warp::warp_shuffle_idx(warp::FULL, above, source, 32);
        Prefix { bits: prefix.bits | digit << prefix.shift, shift: prefix.shift.wrapping_sub(8), above }
    }
}
