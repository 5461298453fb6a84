//! From keys on chip to ids: the threshold among the keys, the list of what is kept, and the next keys from that.
//!
//! The keys of a round belong to nodes: chunks of `1 << shift` blocks, in the last round blocks. A node is named by its index in
//! the row, so its first place is `node << shift`.
//!
//! * Threshold: digit by digit, from the top. A histogram of the digit over the keys in the range that the digits before have left; the
//!   first warp finds the digit at which the cells from the top reach the goal. Every addition is of the constant 1 and its result is
//!   unused: the hardware counts lanes with the same address in one step, so equal keys are no slower. The first digit is counted
//!   where the keys are made. It divides the numbers from 2^-16 to 2^15 finely, an eighth of an octave each, and lumps what lies below
//!   (but for NaN) and above: of most scores a digit of 8 bits is left then. After it digits are of 8 bits.
//! * List: each warp owns a run of elements, its lanes a row of 32 each, as one bit mask of the elements above the threshold and one
//!   of those at it. A scan of their sizes gives each row its first position, and the number of ties before it.
//!
//! Race argument, with A and B the barriers of the threshold's loop, C and D those of the list. Shared arrays:
//! * `keys` and the first digit's histogram are made before A and read from A to C; the next keys are made behind D.
//! * `digits`, two histograms: one is counted before A and read between A and B, where the other one is cleared, whose last read was before
//!   the last B. Counting goes on in the other one behind B, in the next round too.
//! * `found` is written by one lane between A and B and read behind B; its next write is behind the next A. `CUT` is written between C and D
//!   and read behind D. `TAIL` is written where the keys are made, before A, and read between A and B.
//! * `slots`: written before C, read behind C; A and B lie before the next write.
//! * `list`, two lists: one is written between C and D while the other is read; read behind D. They change places behind D.

use super::{KEPT, KEYS, Query, Row, SECTOR, THREADS, most_blocks, rank};
use crate::mutation::{self, Mutation};
use crate::topk::digits::{self, DIGIT_BITS, DIGITS, Tail, highest_bit, inclusive_sum};
use crate::topk::rule::{BLOCK_CELLS, Step};
use cuda_std::prelude::*;
use warp::{FULL, WarpReductionOp};

const WARPS: usize = THREADS / 32;
/// Quads of words that a thread reads again at a time: all of 514 chunks of 8, and half of the most there are.
const BATCH: usize = (KEYS / 8).div_ceil(THREADS);

// The words of `found` behind those of [`digits`].
/// The position in the list of the last node that is kept at the threshold.
const CUT: usize = digits::FOUND;
/// The rank of the tail where it has less than a block's cells, or 0.
const TAIL: usize = digits::FOUND + 1;
/// The step record: n_kv, n_bid, width.
const STEP: usize = digits::FOUND + 2;

/// The rank from which on first digits are fine, that of 2^-16.
const FINE: u32 = 0xb780_0001;
/// Bits of a rank below its first digit, in the finely divided range.
const FINE_BITS: u32 = 20;

/// The first digit of a rank: 0 of NaN's, 1 of those below the fine ones.
#[inline(always)]
fn first_digit(rank: u32) -> u32 {
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
struct Goal {
    /// Cells, or nodes that count as one.
    cells: u32,
    /// Cells of a node, as a power of two.
    unit: u32,
    /// Cells that the tail lacks.
    lacking: u32,
    /// Nodes that may be kept beyond the goal.
    spare: u32,
}

impl Goal {
    #[inline(always)]
    fn cells(step: Step) -> Self {
        let tail_cells = step.tail_cells();
        let is_whole = tail_cells == 0 || mutation::is(Mutation::SieveTakesTailForWhole);
        let lacking = if is_whole { 0 } else { BLOCK_CELLS - tail_cells };
        Self { cells: step.width, unit: BLOCK_CELLS.ilog2(), lacking, spare: 0 }
    }

    #[inline(always)]
    fn chunks(step: Step) -> Self {
        let most = most_blocks(step.width) - u32::from(mutation::is(Mutation::SieveKeepsOneChunkLess));
        Self { cells: most, unit: 0, lacking: 0, spare: (KEPT as u32).saturating_sub(most) }
    }
}

/// Where a round cuts: nodes whose rank is larger than `base + span` are kept, and of those from `base` on the first `ties`.
#[derive(Clone, Copy)]
struct Threshold {
    base: u32,
    span: u32,
    ties: u32,
    /// Cells of the ties.
    budget: u32,
}

/// A block's shared memory.
#[derive(Clone, Copy)]
pub(super) struct Chip {
    keys: Shared<u32>,
    list: Shared<u32>,
    digits: Shared<u32>,
    slots: Shared<u32>,
    found: Shared<u32>,
}

impl Chip {
    /// Declares the arrays and gives them their first values, for which a barrier must follow.
    #[inline(always)]
    pub unsafe fn new(step: Step) -> Self {
        let chip = Self {
            keys: shared_array![u32; KEYS],
            list: shared_array![u32; 2 * KEPT],
            digits: shared_array![u32; 2 * (DIGITS + 32)],
            slots: shared_array![u32; WARPS],
            found: shared_array![u32; STEP + 3],
        };
        let thread = thread::thread_idx_x() as usize;
        // SAFETY: no other thread touches these before the barrier.
        unsafe {
            // The first histogram, and the words aside of the second.
            if thread < DIGITS + 32 {
                chip.histogram(0).at(thread).write(0, 0);
            }
            if thread < 32 {
                chip.histogram(1).at(DIGITS + thread).write(0, 0);
            }
            if thread == 0 {
                chip.list.write(0, 0);
                chip.found.write(TAIL, 0);
                chip.found.write(STEP, step.n_kv);
                chip.found.write(STEP + 1, step.n_bid);
                chip.found.write(STEP + 2, step.width);
            }
        }
        chip
    }

    /// Histogram 0 or 1: a word for each digit, then one for each lane.
    #[inline(always)]
    fn histogram(self, index: usize) -> Shared<u32> {
        self.digits.at(index * (DIGITS + 32))
    }

    /// The step record, which takes no registers here.
    #[inline(always)]
    unsafe fn step(self) -> Step {
        // SAFETY: written before the first barrier, and never again.
        unsafe {
            let word = |index: usize| self.found.at(STEP).read(index);
            Step { n_kv: word(0), n_bid: word(1), width: word(2) }
        }
    }

    /// Makes `rank` the rank of element `index`, and counts its first digit in histogram `digits`.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn put(self, digits: usize, index: u32, rank: u32) {
        // SAFETY: the race argument; an index of its own for each thread.
        unsafe {
            self.keys.at(index as usize).write(0, rank);
            let aside = DIGITS as u32 + thread::thread_idx_x() % 32;
            self.count(digits, if rank > 0 { first_digit(rank) } else { aside });
        }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn count(self, digits: usize, digit: u32) {
        // SAFETY: the race argument.
        unsafe { atomic::shared_fetch_add(self.histogram(digits).at(digit as usize), 0, 1) };
    }

    /// Puts the keys of `chunks` chunks from memory.
    #[inline(always)]
    pub unsafe fn put_maxima(self, maxima: GlobalMut<u32>, chunks: u32) {
        const LOADS: usize = KEYS.div_ceil(4 * THREADS);
        let first = 4 * thread::thread_idx_x();
        let mut loaded = [U32x4([0; 4]); LOADS];
        let chunks = chunks - u32::from(mutation::is(Mutation::SieveMaximaLoseLast));
        // SAFETY: the caller's promise about the maxima; the race argument above.
        unsafe {
            for i in 0..LOADS {
                let chunk = first + (4 * i * THREADS) as u32;
                if chunk < chunks {
                    loaded[i] = maxima.at(chunk as usize).read_as(0);
                }
            }
            for i in 0..LOADS {
                for j in 0..4 {
                    let chunk = first + (4 * i * THREADS + j) as u32;
                    if chunk < chunks {
                        self.put(0, chunk, loaded[i].0[j] + 1);
                    }
                }
            }
        }
    }

    /// Whether this is the last block of `parts` that comes here. What they wrote before can be read then.
    #[inline(always)]
    pub unsafe fn is_last(self, counter: GlobalMut<u32>, parts: u32) -> bool {
        // SAFETY: the argument in the module's head; nobody else uses the slots before the threshold's barriers.
        unsafe {
            thread::sync_threads();
            if thread::thread_idx_x() == 0 {
                fence::device_acquire_release();
                let counted = atomic::global_fetch_add(counter, 0, 1);
                let mut is_last = counted + 1 == parts;
                fence::device_acquire_release();
                if is_last && !mutation::is(Mutation::SieveSplitLeavesCounter) {
                    counter.at(0).write(0, 0);
                }
                if mutation::is(Mutation::SieveSplitTakesFirst) {
                    is_last = counted == 0;
                }
                self.slots.write(0, u32::from(is_last));
            }
            thread::sync_threads();
            self.slots.at(0).read(0) == 1
        }
    }

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

    /// Finds the threshold of `elements` keys, whose first digits are counted in `histogram`. Another one, empty, is `histogram` then.
    #[inline(always)]
    unsafe fn threshold(self, elements: u32, goal: Goal, histogram: &mut usize) -> Threshold {
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

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    use super::*;

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
