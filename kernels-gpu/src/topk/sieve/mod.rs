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
//! Both selections are the same code, [`narrow`], and both their sizes have a bound that no scores can break: nothing overflows, and
//! the work differs little between random, equal and adversarial scores. A row that fits on chip is read whole and selected from at
//! once; the chunks of a row that is too long for chunks of 8 are larger, and are narrowed to chunks of 8 in between.
//!
//! | entry | grid | the maxima |
//! |---|---|---|
//! | `sieve_rows` | queries | by the block that selects |
//!
//! Chunks begin at multiples of 32 bytes of the address, whatever the row starts at, so that each is one sector (or more) and a
//! row is read by aligned 16-byte loads. The places of a row count from the last such boundary at or before block 0; block `b` is at place
//! `head + b`. The first and the last chunk may be partial.
//!
//! Rows of `[queries][stride]` scores do not share a chunk: a row's places outside of its candidates are never read.

mod narrow;
mod row;

use crate::params::TopkArgs;
use crate::topk::rule::{BLOCK_CELLS, Step, key};
use cuda_std::prelude::*;
use narrow::Chip;
use row::Row;

pub const THREADS: usize = 512;
/// Keys that a block keeps on chip.
pub const KEYS: usize = 9216;
/// Chunks that a selection may keep: KEYS / 16, since a chunk is narrowed to at most 16 parts.
pub const KEPT: usize = 576;
/// Blocks of the chunks in which a refined row is read again, as a power of two.
const SECTOR: u32 = 3;
/// The largest chunk: the lanes of a warp read one by 16-byte loads.
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
#[kernel(threads = 512, min_blocks = 2, barriers = 5)]
pub unsafe fn sieve_rows(args: TopkArgs) {
    let query = thread::block_idx_x() as usize;
    // SAFETY: the caller's promise.
    unsafe {
        let step = Step::read(args.steps, query);
        let ids = args.ids.at(query * args.cap as usize);
        if step.is_identity() {
            return all_cells(step, ids);
        }
        let row = Row::new(args.scores.at(query * args.stride as usize), step.candidates());
        let chip = Chip::new();
        let shift = row.chunk_shift();
        thread::sync_threads();
        if shift > 0 {
            row.maxima(shift, 0, row.quads(), |chunk, key| chip.put(0, chunk, key + 1));
        }
        chip.select(row, step, shift, ids);
    }
}

/// The ids of a query that selects every cell.
#[inline(always)]
unsafe fn all_cells(step: Step, ids: GlobalMut<i32>) {
    let mut cell = thread::thread_idx_x();
    while cell < step.width.min(step.n_kv) {
        // SAFETY: the row has room for `width` ids; a cell of its own for each thread.
        unsafe { ids.at(cell as usize).write(0, cell as i32) };
        cell += THREADS as u32;
    }
}
