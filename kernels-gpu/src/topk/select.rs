//! What `register`, `wide` and `split` share: the selection among the candidates of a row, by a block of 1024 threads.
//!
//! Warp `w` owns `32 * rows` neighbouring candidates, as `rows` rows of 32, a lane a candidate: loads are coalesced, and the
//! warps own what they own in ascending order, so that a position in the output is a count of what is selected before it. Within a
//! row two ballots give the counts, without a scan: every candidate has four cells but the last, behind which nothing is counted.
//!
//! Race argument: that of the histograms, then one barrier. `totals` is written before it, a word a warp and kind, and read behind it.
//! Positions in the output do not overlap: a warp's begin where those of the warps before it end.

use super::histogram::{BINS, Histograms, Prefix, THREADS, WARPS};
use super::rule::{BLOCK_CELLS, Step};
use crate::mutation::{self, Mutation};
use crate::params::TopkArgs;
use cuda_std::prelude::*;
use warp::{FULL, WarpReductionOp, warp_reduce, warp_vote_ballot};

/// The candidates of the calling thread's warp.
#[derive(Clone, Copy)]
pub struct Share {
    /// The first one of the lane; the next are 32 further each.
    pub first: u32,
    /// Rows of the warp with a candidate in them.
    pub rows: u32,
    /// The warp's candidates end here.
    end: u32,
}

impl Share {
    /// The calling thread's share of `candidates`.
    #[inline(always)]
    pub fn of(candidates: u32) -> Self {
        let thread = thread::thread_idx_x();
        let of_warp = 32 * candidates.div_ceil(THREADS as u32);
        let start = thread / 32 * of_warp;
        let end = candidates.min(start + of_warp);
        Self { first: start + thread % 32, rows: end.saturating_sub(start).div_ceil(32), end }
    }

    /// `candidate`, or the warp's last one where it owns no such candidate, to have something to read.
    #[inline(always)]
    pub fn within(self, candidate: u32) -> u32 {
        candidate.min(self.end - 1)
    }

    /// Whether the warp owns `candidate`.
    #[inline(always)]
    fn has(self, candidate: u32) -> bool {
        candidate < self.end
    }
}

/// Where the keys of a thread's candidates come from.
pub trait Keys: Copy {
    /// Calls `visit(candidate, key)` for each row of the share, on all lanes alike; with any key where the lane has no candidate.
    ///
    /// # Safety
    /// The candidates' keys are there to be read.
    unsafe fn each(self, share: Share, visit: impl FnMut(u32, u32));
}

/// Keys that are read anew each time, by `.0(candidate)`.
#[derive(Clone, Copy)]
pub struct Reread<F>(pub F);

impl<F: Fn(u32) -> u32 + Copy> Keys for Reread<F> {
    #[inline(always)]
    unsafe fn each(self, share: Share, mut visit: impl FnMut(u32, u32)) {
        /// Reads in flight.
        const DEPTH: u32 = 4;
        let mut row = 0;
        while row < share.rows {
            let mut keys = [0; DEPTH as usize];
            for i in 0..DEPTH {
                keys[i as usize] = (self.0)(share.within(share.first + 32 * (row + i)));
            }
            for i in 0..DEPTH {
                visit(share.first + 32 * (row + i), keys[i as usize]);
            }
            row += DEPTH;
        }
    }
}

/// The last candidate, which alone may have fewer than four cells.
#[derive(Clone, Copy)]
pub struct Last {
    pub key: u32,
    pub cells: u32,
}

/// Where a selection is cut.
#[derive(Clone, Copy)]
pub struct Threshold {
    pub key: u32,
    /// Cells of the candidates above it.
    pub above: u32,
}

/// The key at which the candidates' cells, from the largest key on, reach `width`.
///
/// # Safety
/// All threads of a block of 1024 come here with their shares of the same candidates, which have at least `width > 0` cells.
#[inline(always)]
pub unsafe fn threshold(keys: impl Keys, share: Share, last: Last, width: u32) -> Threshold {
    let warps = shared_array![u32; WARPS * BINS];
    let folded = shared_array![u32; BINS];
    // SAFETY: the caller's promise.
    unsafe {
        let histograms = Histograms::zeroed(warps, folded);
        let corrects = thread::thread_idx_x() == 0
            && last.cells < BLOCK_CELLS
            && !mutation::is(Mutation::SelectCountsTailWhole);
        let mut prefix = Prefix::empty();
        loop {
            keys.each(share, |candidate, key| histograms.count(prefix, key, share.has(candidate)));
            if corrects {
                histograms.correct(prefix, last.key, last.cells.wrapping_sub(BLOCK_CELLS));
            }
            let is_last = prefix.shift == 0;
            prefix = histograms.next(prefix, width);
            if is_last {
                return Threshold { key: prefix.bits, above: prefix.above };
            }
        }
    }
}

/// Calls `take(position, candidate, key, most)` for every candidate above the threshold, and for those at it, lowest first, until
/// `ties` units are taken. A candidate is `unit` units, a position counts those taken before; `most` of its units are wanted.
///
/// # Safety
/// As [`threshold`], with the threshold's key.
#[inline(always)]
pub unsafe fn emit(
    keys: impl Keys,
    share: Share,
    threshold: u32,
    unit: u32,
    ties: u32,
    mut take: impl FnMut(u32, u32, u32, u32),
) {
    let totals = shared_array![u32; 2 * WARPS];
    let (lane, warp) = (warp::lane_id(), thread::thread_idx_x() / 32);
    let below = (1 << lane) - 1;
    // SAFETY: the caller's promise; the race argument above.
    unsafe {
        let (mut above, mut equal) = (0, 0);
        keys.each(share, |candidate, key| {
            above += u32::from(share.has(candidate) && key > threshold);
            equal += u32::from(share.has(candidate) && key == threshold);
        });
        let above = unit * warp_reduce(FULL, above, WarpReductionOp::Add);
        let equal = unit * warp_reduce(FULL, equal, WarpReductionOp::Add);
        if lane == 0 {
            totals.write(warp as usize, above);
            totals.write(WARPS + warp as usize, equal);
        }
        if !mutation::is(Mutation::SelectDropsTotalsBarrier) {
            thread::sync_threads();
        }
        let before = |kind: usize| {
            let total = totals.read(kind * WARPS + lane as usize);
            warp_reduce(FULL, if lane < warp { total } else { 0 }, WarpReductionOp::Add)
        };
        let (before_above, before_equal) = (before(0), before(1).min(ties));
        let mut position = before_above + before_equal;
        let mut left = ties - before_equal;

        keys.each(share, |candidate, key| {
            let is_above = share.has(candidate) && key > threshold;
            let is_equal = share.has(candidate) && key == threshold;
            let (above, equal) = (warp_vote_ballot(FULL, is_above), warp_vote_ballot(FULL, is_equal));
            if above == 0 && (equal == 0 || left == 0) {
                return;
            }
            let tied_before = if mutation::is(Mutation::SelectLosesTies) { 0 } else { equal & below };
            let ahead = left.min(unit * tied_before.count_ones());
            let at = position + unit * (above & below).count_ones() + ahead;
            let most = if is_above { unit } else { unit.min(left - ahead) };
            if is_above || is_equal && most > 0 {
                take(at, candidate, key, most);
            }
            let taken = left.min(unit * equal.count_ones());
            position += unit * above.count_ones() + taken;
            left -= taken;
        });
    }
}

/// Selects among the blocks of a row and writes its ids.
///
/// # Safety
/// As [`threshold`]; the candidates are the blocks of `step`, `ids` is the row, whose first `step.width` words are this block's.
#[inline(always)]
pub unsafe fn write_ids(keys: impl Keys, step: Step, last_key: u32, ids: GlobalMut<i32>) {
    let candidates = step.candidates();
    let share = Share::of(candidates);
    let last = Last { key: last_key, cells: step.cells(candidates - 1) };
    // SAFETY: the caller's promise; positions do not overlap.
    unsafe {
        let Threshold { key, above } = threshold(keys, share, last, step.width);
        emit(keys, share, key, BLOCK_CELLS, step.width - above, |at, block, _, most| {
            write_block(step, ids, at, block, most)
        });
    }
}

/// Writes the ids of at most `most` cells of a block.
///
/// # Safety
/// The words from `at` on are this thread's.
#[inline(always)]
pub unsafe fn write_block(step: Step, ids: GlobalMut<i32>, at: u32, block: u32, most: u32) {
    let cells = step.cells(block).min(most);
    for cell in 0..BLOCK_CELLS {
        if cell < cells {
            // SAFETY: the caller's promise.
            unsafe { ids.write((at + cell) as usize, (BLOCK_CELLS * block + cell) as i32) };
        }
    }
}

/// The query's step and its row of ids, if there is something to select; a row that takes every cell is written here.
///
/// # Safety
/// All `threads` threads of the query's block come here.
#[inline(always)]
pub unsafe fn begin(args: &TopkArgs, query: usize, threads: usize) -> Option<(Step, GlobalMut<i32>)> {
    // SAFETY: the caller's promise; a thread writes words of its own.
    unsafe {
        let step = Step::read(args.steps, query);
        let ids = args.ids.at(query * args.cap as usize);
        if !step.is_identity() {
            // A width of 0 is no selection either.
            return (step.width > 0).then_some((step, ids));
        }
        let mut id = thread::thread_idx_x() as usize;
        while id < step.n_kv as usize {
            ids.write(id, id as i32);
            id += threads;
        }
        None
    }
}
