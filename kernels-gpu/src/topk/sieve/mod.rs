//! `sieve`: the scores are read once, and of the row only the largest key of each chunk is kept on chip.
//!
//! Let M ([`most_blocks`]) be the most blocks that a selection can touch, and order chunks by their largest key, largest first, equal
//! ones lowest first. *The first M blocks in the rule's order lie in the first M chunks.* Take a block `b` of a chunk `C` with M
//! chunks in front of it. Each of those holds a block whose key is larger than C's largest key, so larger than b's; or it is equal to it
//! and the chunk has a lower index than C, so that block is not behind b by key and lies lower. So M blocks are in front of b.
//! * Any larger set of chunks will do as well, so the search for the M-th chunk stops as soon as at most [`KEPT`] are left.
//! * A tail with cells is a block like any other here; one without is no candidate, and never enters a maximum.
//! * M: the blocks in front of the last one that is touched have together less than `width` cells. Without the tail among them that
//!   makes at most `ceil(width / 4)` blocks; with it, where it has one cell, `1 + ceil((width - 1) / 4)`, which is the larger.
//!
//! So: read the row, keep the maxima, select M chunks among them, read those again (from the cache, mostly), select among their blocks.
//! Both selections are the same code, `narrow`, and both their sizes have a bound that no scores can break: nothing overflows, and
//! the work differs little between random, equal and adversarial scores. A row that fits on chip is read whole and selected from at
//! once; the chunks of a row that is too long for chunks of 8 are larger, and are narrowed to chunks of 8 in between.
//!
//! | entry | grid | the maxima |
//! |---|---|---|
//! | `sieve_rows` | queries | by the block that selects |
//! | `sieve_split` | parts x queries, for few queries | in scratch, each part by a block of its own; the last of them to come selects |
//! | `sieve_maxima` | queries | in scratch, by [`scores`](super::scores): only the chunks that are kept are read here |
//!
//! Chunks begin at multiples of 32 bytes of the address, whatever the row starts at, so that each is one sector (or more) and a
//! row is read by aligned 16-byte loads. The places of a row count from the last such boundary at or before block 0; block `b` is at place
//! `head + b`. The first and the last chunk may be partial. For `sieve_maxima` chunks begin at multiples of their size from block 0.
//!
//! Rows do not share a chunk: places outside of a row's candidates are never read.
//!
//! `sieve_split` between blocks: a block's maxima are written before its barrier, the barrier orders them before the fence of thread 0,
//! which adds 1 to the query's counter. The block that finds all others counted there has its thread 0 fence, then a barrier, then reads.
//! No block waits for another one. The last one also puts the counter back to 0, which no one else touches any more.

mod chip;
mod narrow;
mod row;
mod threshold;

use crate::params::TopkArgs;
use crate::topk::rule::{BLOCK_CELLS, Step, key};
use chip::Chip;
use cuda_std::prelude::*;
use row::Row;

pub const THREADS: usize = 384;
/// Keys that a block keeps on chip.
pub const KEYS: usize = 9216;
/// Chunks that a selection may keep: KEYS / 16, since a chunk is narrowed to at most 16 parts.
pub const KEPT: usize = 576;
/// Blocks of the chunks in which a refined row is read again, as a power of two.
const SECTOR: u32 = 3;
/// The largest chunk: half the lanes of a warp read one.
const LARGEST: u32 = 7;

/// Blocks that a row may have.
pub const REACH: usize = (KEYS - 1) << LARGEST;
/// The largest width.
pub const WIDTH: u32 = BLOCK_CELLS * (KEPT as u32 - 1) + 1;

const _: () = assert!(KEPT << (SECTOR + 1) == KEYS && KEPT << (LARGEST - SECTOR) == KEYS);
const _: () = assert!(KEYS <= THREADS * 32, "a warp's lanes hold a row of 32 keys each");
const _: () = assert!(most_blocks(WIDTH) as usize == KEPT && most_blocks(WIDTH + 1) as usize > KEPT);
const _: () = assert!(most_blocks(2051) == 514);

/// The most blocks that a selection of `width` cells can touch.
#[inline(always)]
pub const fn most_blocks(width: u32) -> u32 {
    (width + 2) / BLOCK_CELLS + 1
}

/// The chunks of a row of up to `blocks` blocks have `1 << chunk_shift(blocks)` of them, 0 if the row fits on chip.
#[inline(always)]
pub const fn chunk_shift(blocks: u32) -> u32 {
    if blocks as usize + (1 << SECTOR) <= KEYS {
        return 0;
    }
    let mut shift = SECTOR;
    while (blocks as usize >> shift) + 2 > KEYS && shift < LARGEST {
        shift += 1;
    }
    shift
}

/// Words from one query's maxima to the next for `sieve_maxima`, where no query has more than `reach` blocks, its tail included. Word `c` of a
/// query is the largest key of the blocks with cells from `c << chunk_shift(reach)` on; words of chunks without any are not read, nor is
/// any where the shift is 0.
#[inline(always)]
pub const fn maxima_stride(reach: u32) -> usize {
    let shift = chunk_shift(reach);
    if shift == 0 { 0 } else { (reach.div_ceil(1 << shift) as usize).next_multiple_of(4) }
}

/// Words of scratch for `sieve_split`, 16-byte aligned. The first `queries` of them are 0 at the start, and at the end again; the others may hold
/// anything.
pub const fn split_scratch(queries: usize) -> usize {
    queries.next_multiple_of(32) + queries * KEYS
}

/// Blocks of `sieve_split` for a query among `queries` with up to `reach` blocks each, on a device of `sms` multiprocessors: at most one for each.
pub const fn split_parts(queries: usize, reach: usize, sms: usize) -> usize {
    // A step each.
    let most = reach.div_ceil(THREADS << SECTOR);
    let fair = if queries < sms { sms / queries } else { 1 };
    if most == 0 {
        1
    } else if most < fair {
        most
    } else {
        fair
    }
}

/// A query of a launch.
#[derive(Clone, Copy)]
struct Query {
    args: TopkArgs,
    index: usize,
}

impl Query {
    #[inline(always)]
    #[track_caller]
    unsafe fn step(self) -> Step {
        // SAFETY: the caller's promise.
        unsafe { Step::read(self.args.steps, self.index) }
    }

    /// Id `position` of the selection.
    #[inline(always)]
    #[track_caller]
    unsafe fn write(self, position: u32, id: u32) {
        let ids = self.args.ids.at(self.index * self.args.cap as usize);
        // SAFETY: the caller's promise; a position of its own for each thread.
        unsafe { ids.at(position as usize).write(0, id as i32) };
    }

    /// The ids of a query that selects every cell, or none.
    #[inline(always)]
    unsafe fn write_all(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let step = self.step();
            let mut cell = thread::thread_idx_x();
            while cell < step.width.min(step.n_kv) {
                self.write(cell, cell);
                cell += THREADS as u32;
            }
        }
    }
}

/// A key among those of places that may hold no block: 0 is none, and a block's is one more than its key, which is never `u32::MAX`.
#[inline(always)]
fn rank(score: f32) -> u32 {
    key(score.to_bits()) + 1
}

/// Selects for one query a block.
///
/// # Safety
/// The record describes live buffers of its kernel's launch; every step has `width <= WIDTH`, `width <= cap` and `n_bid < REACH`,
/// `n_bid < stride`.
#[kernel(threads = 384, min_blocks = 2, barriers = 5)]
pub unsafe fn sieve_rows(args: TopkArgs) {
    let query = thread::block_idx_x();
    // SAFETY: the caller's promise.
    unsafe {
        let query = Query { args, index: query as usize };
        let step = query.step();
        if step.is_identity() || step.width == 0 {
            return query.write_all();
        }
        let row = Row::new(args.scores.at(query.index * args.stride as usize), step.candidates());
        let chip = Chip::new(step);
        let shift = row.chunk_shift();
        thread::sync_threads();
        if shift > 0 {
            row.maxima::<3>(shift, 0, 1, |chunk, key| chip.put(0, chunk, key + 1));
        }
        chip.select(query, row, shift);
    }
}

/// Selects for query y of the grid by its blocks along x. Scratch as [`split_scratch`] says.
///
/// # Safety
/// As [`sieve_rows`].
#[kernel(threads = 384, min_blocks = 1, barriers = 7)]
pub unsafe fn sieve_split(args: TopkArgs) {
    let (part, parts) = (thread::block_idx_x(), thread::grid_dim_x());
    let query = thread::block_idx_y();
    // SAFETY: the caller's promise; the argument above for scratch.
    unsafe {
        let query = Query { args, index: query as usize };
        let step = query.step();
        let row = Row::new(args.scores.at(query.index * args.stride as usize), step.candidates());
        let shift = row.chunk_shift();
        // One block does what is not shared.
        if part > 0 && (step.is_identity() || step.width == 0 || shift == 0) {
            return;
        }
        if step.is_identity() || step.width == 0 {
            return query.write_all();
        }
        let chip = Chip::new(step);
        thread::sync_threads();
        if shift > 0 {
            let queries = args.queries as usize;
            let maxima = args.scratch.at(queries.next_multiple_of(32) + query.index * KEYS);
            row.maxima::<1>(shift, part, parts, |chunk, key| {
                maxima.at(chunk as usize).write(0, key);
            });
            if !chip.is_last(args.scratch.at(query.index), parts) {
                return;
            }
            chip.put_maxima(maxima, row.chunks(shift));
        }
        chip.select(query, row, shift);
    }
}

/// Selects for one query a block, with the maxima of each row in scratch: see [`maxima_stride`].
///
/// # Safety
/// As [`sieve_rows`]; scratch is 16-byte aligned.
#[kernel(threads = 384, min_blocks = 2, barriers = 5)]
pub unsafe fn sieve_maxima(args: TopkArgs) {
    let query = thread::block_idx_x();
    // SAFETY: the caller's promise.
    unsafe {
        let query = Query { args, index: query as usize };
        let step = query.step();
        if step.is_identity() || step.width == 0 {
            return query.write_all();
        }
        let row = Row::from_block_0(args.scores.at(query.index * args.stride as usize), step.candidates());
        let chip = Chip::new(step);
        thread::sync_threads();
        let mut shift = row.chunk_shift();
        if shift > 0 {
            shift = chunk_shift(args.reach);
            chip.put_maxima(args.scratch.at(query.index * maxima_stride(args.reach)), row.chunks(shift));
        }
        chip.select(query, row, shift);
    }
}
