//! `cluster`: a cluster of 8 blocks a query, for few queries on sm_90. Each block keeps an eighth of the keys in registers; the histograms go
//! through the cluster's shared memory.
//!
//! A pass over a digit: each block counts its own keys and writes the counts into a slot of its own in every block; behind a cluster barrier each
//! sums the eight slots, and its first warp finds the digit, so that all go on alike. At the end the blocks tell each other how many keys
//! they have above the threshold and at it, from which each knows its positions. Blocks and warps own consecutive keys, so ids ascend.
//!
//! Grid 8 x queries along x. Rows where all cells are selected return before anything is shared, all blocks of a cluster alike.
//!
//! Race argument, with cluster barriers X (at the start), Y (a pass), Z (the end), which are block barriers too, and block barriers A, B, C (a
//! pass), D.
//! * `own` is cleared before X and between Y and B, counted between the pass's start, which is behind X or C, and A, read between A and Y.
//! * `slots`, two sets by the parity of the pass, a row for each writing block: written between A and Y, read between Y and B. The next write of a set is
//!   two passes later, behind the Y between, to which a block comes behind its reads.
//! * `sums`: written between Y and B, read by the first warp between B and C. `found`: written between B and C, read behind C; the next write is
//!   behind the next B.
//! * `warps`: written before D, read behind it. `totals`: written by all blocks between D and Z, read behind Z. The first writes come
//!   behind X, when all blocks run; nothing is written to another block behind Z, so any may return.

use super::digits::{self, DIGIT_BITS, DIGITS, FOUND, Tail, inclusive_sum};
use super::rule::{BLOCK_CELLS, Step, key};
use crate::mutation::{self, Mutation};
use crate::params::TopkArgs;
use cuda_std::prelude::*;
use warp::{FULL, WarpReductionOp, warp_reduce};

pub const THREADS: usize = 1024;
/// Blocks of a cluster.
pub const BLOCKS: u32 = 8;
/// Keys of a thread.
const KEYS: usize = 17;
/// Blocks of cells that a row may have.
pub const REACH: usize = BLOCKS as usize * THREADS * KEYS;

const WARPS: usize = THREADS / 32;
/// Words of a set of slots.
const SET: usize = BLOCKS as usize * DIGITS;

/// Selects for one query a cluster.
///
/// # Safety
/// The record describes live buffers of its kernel's launch; every step has `width <= cap`, `n_bid < REACH`, `n_bid < stride`.
#[kernel(threads = 1024, cluster = 8, barriers = 7)]
pub unsafe fn cluster(args: TopkArgs) {
    let own: Shared<u32> = shared_array![u32; DIGITS];
    let slots: Shared<u32> = shared_array![u32; 2 * SET];
    let sums: Shared<u32> = shared_array![u32; DIGITS];
    let warps: Shared<u32> = shared_array![u32; WARPS];
    let totals: Shared<u32> = shared_array![u32; 2 * BLOCKS as usize];
    let found: Shared<u32> = shared_array![u32; FOUND];

    let rank = cluster::block_rank();
    let query = (thread::block_idx_x() / BLOCKS) as usize;
    let thread = thread::thread_idx_x();
    let (lane, warp) = (warp::lane_id(), thread / 32);
    let ids = args.ids.at(query * args.cap as usize);
    // SAFETY: the caller's promise about the buffers; the race argument above.
    unsafe {
        let step = Step::read(args.steps, query);
        if step.is_identity() || step.width == 0 {
            let mut cell = BLOCKS * thread + rank;
            while cell < step.width.min(step.n_kv) {
                ids.at(cell as usize).write(0, cell as i32);
                cell += BLOCKS * THREADS as u32;
            }
            return;
        }
        let scores = args.scores.at(query * args.stride as usize);
        let candidates = step.candidates();
        let share = candidates.div_ceil(BLOCKS);
        let end = candidates.min((rank + 1) * share);
        let rows = share.div_ceil(THREADS as u32);
        // The warp's first block of cells; its row i are the 32 from 32 * i on.
        let first = rank * share + warp * rows * 32;
        // One more than a key; 0 where there is no block.
        let mut ranks = [0; KEYS];
        for i in 0..KEYS {
            let block = first + 32 * i as u32 + lane;
            if (i as u32) < rows && block < end {
                ranks[i] = key(scores.at(block as usize).read(0).to_bits()) + 1;
            }
        }
        let tail_cells = step.tail_cells();
        let lacking = if tail_cells > 0 { BLOCK_CELLS - tail_cells } else { 0 };
        let tail = if lacking > 0 { key(scores.at(step.n_bid as usize).read(0).to_bits()) + 1 } else { 0 };

        if thread < DIGITS as u32 {
            own.at(thread as usize).write(0, 0);
        }
        cluster::sync_cluster();

        let (mut prefix, mut need) = (0, step.width);
        let mut bits = hint::opaque(32 - DIGIT_BITS);
        let mut set = 0;
        loop {
            for i in 0..KEYS {
                let digit = (ranks[i] ^ prefix) >> bits;
                if ranks[i] > 0 && digit < DIGITS as u32 {
                    atomic::shared_fetch_add(own.at(digit as usize), 0, 1);
                }
            }
            thread::sync_threads();
            // A thread tells two blocks of a digit.
            let digit = thread as usize % DIGITS;
            let count = own.at(digit).read(0);
            for i in 0..2 {
                let to = 2 * (thread / DIGITS as u32) + i;
                cluster::write(slots, to, set + rank as usize * DIGITS + digit, count);
            }
            if mutation::is(Mutation::ClusterDropsSlotBarrier) {
                thread::sync_threads();
            } else {
                cluster::sync_cluster();
            }
            if thread < DIGITS as u32 {
                let mut sum = 0;
                for from in 0..BLOCKS as usize {
                    sum += slots.at(set + from * DIGITS + digit).read(0);
                }
                sums.at(digit).write(0, sum);
                own.at(digit).write(0, 0);
            }
            thread::sync_threads();
            if thread < 32 {
                let digit = if tail > 0 { (tail ^ prefix) >> bits } else { u32::MAX };
                digits::find(sums, found, BLOCK_CELLS.ilog2(), need, Tail { digit, lacking });
            }
            thread::sync_threads();
            prefix |= found.at(digits::DIGIT).read(0) << bits;
            need -= found.at(digits::ABOVE).read(0);
            let held = found.at(digits::HELD).read(0);
            // The lower digits do not matter where all that have this one are kept, and none of several is cut.
            if bits == 0 || held == 1 || BLOCK_CELLS * held <= need {
                break;
            }
            bits -= DIGIT_BITS;
            set ^= SET;
        }

        // A lane takes a row of 32 keys, as one bit each.
        let (mut above, mut at) = (0, 0);
        for i in 0..KEYS {
            let (key, threshold) = (ranks[i] >> bits, prefix >> bits);
            let row_above = warp::warp_vote_ballot(FULL, key > threshold);
            let row_at = warp::warp_vote_ballot(FULL, ranks[i] > 0 && key == threshold);
            if lane == i as u32 {
                (above, at) = (row_above, row_at);
            }
        }
        let sizes = above.count_ones() << 16 | at.count_ones();
        let through = inclusive_sum(sizes);
        if lane == 31 {
            warps.at(warp as usize).write(0, through);
        }
        thread::sync_threads();
        let of_warp = warps.at(lane as usize).read(0);
        let before =
            warp_reduce(FULL, if lane < warp { of_warp } else { 0 }, WarpReductionOp::Add) + through - sizes;
        let total = warp_reduce(FULL, of_warp, WarpReductionOp::Add);
        if thread < BLOCKS {
            cluster::write(totals, thread, 2 * rank as usize, total >> 16);
            cluster::write(totals, thread, 2 * rank as usize + 1, total & 0xffff);
        }
        cluster::sync_cluster();
        let (mut above_before, mut at_before) = (before >> 16, before & 0xffff);
        for from in 0..BLOCKS as usize {
            if (from as u32) < rank && !mutation::is(Mutation::ClusterForgetsOtherBlocks) {
                above_before += totals.at(2 * from).read(0);
                at_before += totals.at(2 * from + 1).read(0);
            }
        }

        let mut left = above | at;
        while left > 0 {
            let bit = left & left.wrapping_neg();
            left ^= bit;
            let block = first + 32 * lane + bit.trailing_zeros();
            let position = BLOCK_CELLS * above_before + need.min(BLOCK_CELLS * at_before);
            let mut cells = step.cells(block);
            if at & bit != 0 {
                cells = cells.min(need.saturating_sub(BLOCK_CELLS * at_before));
                at_before += 1;
            } else {
                above_before += 1;
            }
            if mutation::is(Mutation::ClusterDoesNotCut) {
                cells = step.cells(block);
            }
            for cell in 0..BLOCK_CELLS {
                if cell < cells {
                    ids.at((position + cell) as usize).write(0, (BLOCK_CELLS * block + cell) as i32);
                }
            }
        }
    }
}

const _: () = assert!(THREADS == 4 * DIGITS && KEYS <= 32 && KEYS * THREADS < 1 << 16);
