//! From keys on chip to ids: the threshold among the keys, the list of what is kept, and the next keys from that.
//!
//! The keys of a round belong to nodes: chunks of `1 << shift` blocks, in the last round blocks. A node is named by its index in
//! the row, so its first place is `node << shift`.
//!
//! * Threshold: digit by digit, from the top. A histogram of the digit over the keys in the range that the digits before have left; the
//!   first warp finds the digit at which the cells from the top reach the goal. Every addition is of the constant 1 and its result is
//!   unused: the hardware counts lanes with the same address in one step, so equal keys are little slower. The first digit is counted
//!   where the keys are made. It divides the numbers from 2^-16 to 2^15 finely, an eighth of an octave each, and lumps what lies below
//!   (but for NaN) and above: of most scores a digit of 8 bits is left then. After it digits are of 8 bits.
//! * List: each warp owns a run of elements, its lanes a row of 32 each, as one bit mask of the elements above the threshold and one
//!   of those at it. A scan of their sizes gives each row its first position, and the number of ties before it.
//!
//! Race argument, with A and B the barriers of the threshold's loop, C and D those of the list. Shared arrays:
//! * `keys` and the first digit's histogram are made before A and read from A to C; the next keys are made behind D.
//! * `digits`, two histograms, each with a word for every lane's keys out of range: one is counted before A and read between A and B, where the other one is cleared, whose last read was before
//!   the last B. Counting goes on in the other one behind B, in the next round too.
//! * `found` is written by one lane between A and B and read behind B; its next write is behind the next A. `CUT` is written between C and D
//!   and read behind D. `TAIL` is written where the keys are made, before A, and read between A and B.
//! * The step record in `found` is written before the first barrier.
//! * `slots`: written before C, read behind C; A and B lie before the next write.
//! * `list`, two lists: one is written between C and D while the other is read; read behind D. They change places behind D.

use super::chip::{CUT, Chip, TAIL};
use super::threshold::{Goal, Threshold};
use super::{KEPT, KEYS, Query, Row, SECTOR, THREADS, rank};
use crate::mutation::{self, Mutation};
use crate::topk::digits::{highest_bit, inclusive_sum};
use crate::topk::rule::BLOCK_CELLS;
use cuda_std::prelude::*;
use warp::{FULL, WarpReductionOp};

/// Quads of words that a thread reads again at a time: all of 514 chunks of 8, and half of the most there are.
const BATCH: usize = (KEYS / 8).div_ceil(THREADS);

impl Chip {
    /// Writes the ids of a query that does not select every cell. The keys of chunks of `1 << shift` blocks are put; with `shift` 0 none
    /// are, and the blocks' keys are read here. All threads of the block call it.
    #[inline(always)]
    pub unsafe fn select(self, query: Query, row: Row, shift: u32) {
        let (mut digits, mut list) = (0, 0);
        let mut shift = shift;
        // Element e is child e of node 0: as if a list were made of the row.
        let mut fan = 31;
        let mut elements = if shift == 0 { row.end } else { row.chunks(shift) };
        let mut places = if shift == 0 { row.end } else { 0 };
        // SAFETY: the caller's promise; the race argument above.
        unsafe {
            loop {
                let step = self.step();
                if places > 0 {
                    let has_tail = shift == 0 && step.tail_cells() > 0;
                    let tail = if has_tail { row.end - 1 } else { u32::MAX };
                    self.gather(row, tail, list, fan + shift, shift, places, digits);
                }
                let goal = if shift == 0 { Goal::cells(step) } else { Goal::chunks(step) };
                let threshold = self.threshold(elements, goal, &mut digits);
                self.keep(elements, threshold, list, fan);
                list ^= 1;
                if shift == 0 {
                    return self.emit(query, row.head, list, threshold);
                }
                let kept = goal.cells - threshold.budget + threshold.ties;
                places = kept << shift;
                fan = if shift > SECTOR + 1 { shift - SECTOR } else { shift };
                shift -= fan;
                elements = kept << fan;
            }
        }
    }

    /// Reads the `1 << whole` places of each node of the list, and puts the ranks of their parts: blocks, with `shift` 0, or sectors.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    unsafe fn gather(
        self,
        row: Row,
        tail: u32,
        list: usize,
        whole: u32,
        shift: u32,
        places: u32,
        digits: usize,
    ) {
        // The first of four neighbouring places of one node.
        // SAFETY: the caller's promise about the row; the race argument above.
        let place_of = |quad: u32| unsafe {
            let node = self.list.at(list * KEPT + (quad >> (whole - 2)) as usize).read(0);
            (node << whole) + 4 * (quad & ((1 << (whole - 2)) - 1))
        };
        let quads = places.div_ceil(4);
        let mut first = thread::thread_idx_x();
        while first - thread::thread_idx_x() < quads {
            let mut scores = [[f32::NAN; 4]; BATCH];
            // SAFETY: as above.
            unsafe {
                for i in 0..BATCH {
                    let quad = first + (i * THREADS) as u32;
                    if quad < quads {
                        scores[i] = row.quad(place_of(quad));
                    }
                }
                for i in 0..BATCH {
                    let quad = hint::opaque(first) + (i * THREADS) as u32;
                    let [a, b, c, d] = scores[i];
                    let top = a.max(b).max(c.max(d));
                    // A part that is not a block is a sector, read by two lanes.
                    let top = top.max(warp::warp_shuffle_xor(FULL, top, 1));
                    if quad >= quads {
                        continue;
                    }
                    let place = place_of(quad);
                    if shift > 0 {
                        if quad.is_multiple_of(2) {
                            let is_there = place + (1 << SECTOR) > row.head && place < row.end;
                            self.put(digits, quad / 2, if is_there { rank(top) } else { 0 });
                        }
                        continue;
                    }
                    for j in 0..4 {
                        let (index, place) = (4 * quad + j as u32, place + j as u32);
                        if index < places {
                            let rank = if row.has(place) { rank(scores[i][j]) } else { 0 };
                            self.put(digits, index, rank);
                            if place == tail {
                                self.found.at(TAIL).write(0, rank);
                            }
                        }
                    }
                }
            }
            first += (BATCH * THREADS) as u32;
        }
    }

    /// Lists the nodes that the threshold keeps of `elements`, in their order: of children `1 << fan` each of the nodes in `list`, in the
    /// other list.
    #[inline(always)]
    unsafe fn keep(self, elements: u32, threshold: Threshold, list: usize, fan: u32) {
        let Threshold { base, span, ties, .. } = threshold;
        let (lane, warp) = (warp::lane_id(), thread::thread_idx_x() / 32);
        let rows = elements.div_ceil(THREADS as u32);
        let first = warp * rows * 32;
        let end = elements.min(first + rows * 32);
        let (mut above, mut at) = (0, 0);
        // SAFETY: the race argument above.
        unsafe {
            let mut row = 0;
            while row < rows {
                let mut ranks = [0; 4];
                for i in 0..4 {
                    let element = first + 32 * (row + i as u32) + lane;
                    if element < end {
                        ranks[i] = self.keys.at(element as usize).read(0);
                    }
                }
                for i in 0..4 {
                    let row_above = warp::warp_vote_ballot(FULL, ranks[i] > base + span);
                    let row_at = warp::warp_vote_ballot(FULL, ranks[i].wrapping_sub(base) <= span);
                    if lane == row + i as u32 {
                        (above, at) = (row_above, row_at);
                    }
                }
                row += 4;
            }
            let sizes = above.count_ones() << 16 | at.count_ones();
            let through = inclusive_sum(sizes);
            if lane == 31 {
                self.slots.at(warp as usize).write(0, through);
            }
            thread::sync_threads();
            let of_warp = if lane < warp { self.slots.at(lane as usize).read(0) } else { 0 };
            let before = warp::warp_reduce(FULL, of_warp, WarpReductionOp::Add) + through - sizes;
            let (above_before, at_before) = (before >> 16, before & 0xffff);

            // The lowest ties are kept.
            let left = ties.saturating_sub(at_before);
            while at.count_ones() > left {
                at &= if mutation::is(Mutation::SieveKeepsHighTies) { at - 1 } else { !highest_bit(at) };
            }
            let mut kept = above | at;
            let mut position = above_before + at_before.min(ties);
            if at_before < ties && ties == at_before + at.count_ones() {
                let below = highest_bit(at) - 1;
                self.found.at(CUT).write(0, position + (kept & below).count_ones());
            }
            while kept > 0 {
                let element = first + 32 * lane + kept.trailing_zeros();
                let parent = self.list.at(list * KEPT + (element >> fan) as usize).read(0);
                let node = (parent << fan) + (element & ((1 << fan) - 1));
                self.list.at((list ^ 1) * KEPT + position as usize).write(0, node);
                position += 1;
                kept &= kept - 1;
            }
            if !mutation::is(Mutation::SieveDropsListBarrier) {
                thread::sync_threads();
            }
        }
    }

    /// Writes the ids of the blocks at the places in `list`, of which the last tie gives only what is left of the budget.
    #[inline(always)]
    unsafe fn emit(self, query: Query, head: u32, list: usize, threshold: Threshold) {
        // A tail that is cut, or has not all cells, is the last block: nothing moves up behind it.
        let cut = (BLOCK_CELLS * threshold.ties).saturating_sub(threshold.budget);
        let mut index = thread::thread_idx_x();
        // SAFETY: the caller's promise about the ids; the race argument above.
        unsafe {
            let behind_cut = BLOCK_CELLS * (self.found.at(CUT).read(0) + 1) - cut;
            let width = self.step().width;
            while index < width {
                let cell = if index < behind_cut { index } else { index + cut };
                let place = self.list.at(list * KEPT + (cell / BLOCK_CELLS) as usize).read(0);
                query.write(index, BLOCK_CELLS * (place - head) + cell % BLOCK_CELLS);
                index += THREADS as u32;
            }
        }
    }
}
