//! `scores`: the block scores, in the order of sums that [`rule`](super::rule) fixes. A block takes 64 blocks of cells for eight queries, a
//! warp a query, a lane two blocks of cells for all heads.
//!
//! A lane computes all 32 lane sums of a dot product itself and adds them up as the butterfly would, which is a tree over the leaves: 16
//! apart first, then 8, 4, 2 and 1. So nothing is shuffled, and one read of a key serves eight queries. Leaves are visited so that few partial
//! sums live at a time: four quarters of eight leaves, leaf `l` in quarter `l % 4`; a quarter is unrolled, the quarters are a loop.
//!
//! Cost: 4 products, 3 sums and a sum of the tree for each (query, head, block, leaf), of which nothing may be fused; a lane reads 6 x 16 bytes
//! of shared memory and L1 for 64 of them. 256 queries x 65,538 blocks are 17.2 billion, or 1.0 ms on 132 SMs at 2 GHz.
//!
//! Keys are staged `[leaf][block]`, a row of 64 padded to 65, so that neither the writes (a warp writes the leaves of a key) nor the reads (a warp
//! reads a leaf of 32 keys) meet in a bank.
//!
//! Race argument. The tile is written before the one barrier, each element by one thread, and only read behind it. A score is written by the
//! thread that sums it; block `n_bid` by lane 0 of its query's warp alone. A chunk lies within a tile, so its maximum is one warp's.

use super::rule::{INDEX_DIM, INDEX_HEADS, Step, TAIL_BONUS, key};
use super::sieve::chunk_shift;
use crate::mutation::{self, Mutation};
use crate::params::ScoresArgs;
use cuda_std::prelude::*;
use warp::{FULL, WarpReductionOp, warp_reduce, warp_shuffle_xor};

/// Threads of a block.
pub const THREADS: usize = 256;
/// Queries of a block, a warp each.
pub const QUERIES: usize = THREADS / 32;
/// Blocks of cells of a block.
pub const BLOCKS: usize = 64;

/// The largest chunk that maxima are written of, as a power of two: those of longer rows lie in several tiles.
pub const LARGEST_CHUNK: u32 = 6;

/// Blocks of cells of a lane.
const OWN: usize = BLOCKS / 32;
/// Leaves of a dot product's tree, of four dimensions each.
const LEAVES: usize = INDEX_DIM / 4;
/// From one leaf to the next in the tile.
const PITCH: usize = BLOCKS + 1;

/// A number for each head and each of the lane's blocks.
type Sums = [[f32; OWN]; INDEX_HEADS];

/// What a sum starts from: `-0.0 + x` is `x` for every `x`.
const NOTHING: Sums = [[-0.0; OWN]; INDEX_HEADS];

#[inline(always)]
fn add(a: Sums, b: Sums) -> Sums {
    let mut sum = NOTHING;
    for head in 0..INDEX_HEADS {
        for own in 0..OWN {
            sum[head][own] = a[head][own] + b[head][own];
        }
    }
    sum
}

/// Four products, summed up from the left.
#[inline(always)]
fn dot4(x: F32x4, y: F32x4) -> f32 {
    let (x, y) = (x.0, y.0);
    ((x[0] * y[0] + x[1] * y[1]) + x[2] * y[2]) + x[3] * y[3]
}

/// The sum over the heads of what is positive of their dot products.
#[inline(always)]
fn score(dots: [f32; INDEX_HEADS]) -> f32 {
    let mut score = 0.0;
    for head in 0..INDEX_HEADS {
        // A comparison, not a maximum: NaN counts as 0.
        score += if dots[head] > 0.0 { dots[head] } else { 0.0 };
    }
    score
}

/// A warp's query, and the keys of its lane's blocks.
#[derive(Clone, Copy)]
struct Operands {
    query: Global<f32>,
    /// From the lane's first block on.
    tile: Shared<F32x4>,
}

impl Operands {
    #[inline(always)]
    unsafe fn leaf(self, leaf: usize) -> Sums {
        let mut sums = NOTHING;
        // SAFETY: the tile was written before the barrier; the query has as many leaves.
        unsafe {
            let mut keys = [F32x4([0.0; 4]); OWN];
            for own in 0..OWN {
                keys[own] = self.tile.read(leaf * PITCH + 32 * own);
            }
            for head in 0..INDEX_HEADS {
                let query = self.query.read_as::<F32x4>(head * INDEX_DIM + 4 * leaf);
                for own in 0..OWN {
                    sums[head][own] = dot4(query, keys[own]);
                }
            }
        }
        sums
    }

    /// Leaves `leaf`, `leaf + 16`, `leaf + 8` and `leaf + 24`.
    #[inline(always)]
    unsafe fn four(self, leaf: usize) -> Sums {
        // SAFETY: the caller's promise.
        unsafe {
            add(add(self.leaf(leaf), self.leaf(leaf + 16)), add(self.leaf(leaf + 8), self.leaf(leaf + 24)))
        }
    }

    /// All leaves `l` with `l % 4 == quarter`.
    #[inline(always)]
    unsafe fn quarter(self, quarter: usize) -> Sums {
        // SAFETY: the caller's promise.
        unsafe { add(self.four(quarter), self.four(quarter + 4)) }
    }

    /// All leaves.
    #[inline(always)]
    unsafe fn dots(self) -> Sums {
        // Hidden, so that the quarters stay a loop: unrolled they would not fit the instruction cache.
        let two = hint::opaque(2u32) as usize;
        let mut dots = NOTHING;
        let mut half = 0;
        while half < two {
            let mut sums = NOTHING;
            let mut quarter = half;
            while quarter < 2 * two {
                // SAFETY: the caller's promise.
                sums = add(sums, unsafe { self.quarter(quarter) });
                quarter += two;
            }
            dots = add(dots, sums);
            half += 1;
        }
        dots
    }
}

/// Grid: the queries in groups of 8 (rounded up) times `reach` in tiles of 64 (rounded up), the groups of a tile side by side. Block: 256.
///
/// # Safety
/// `args` describes live buffers that do not overlap; pooled, tail and q_idx are 16-byte aligned; no query has more blocks than `reach`, its
/// tail included, and pooled has its complete ones; where maxima are wanted, `chunk_shift(reach)` is at most [`LARGEST_CHUNK`].
#[kernel(threads = 256, min_blocks = 2, barriers = 1)]
pub unsafe fn scores(args: ScoresArgs) {
    let tile = shared_array![F32x4; LEAVES * PITCH];

    let groups = args.queries.div_ceil(QUERIES as u32);
    let first_query = (thread::block_idx_x() % groups) as usize * QUERIES;
    let first_block = thread::block_idx_x() / groups * BLOCKS as u32;
    let (warp, lane) = (thread::thread_idx_x() as usize / 32, warp::lane_id());
    let queries = args.queries as usize;
    // SAFETY: the caller's promise about the buffers; the race argument above.
    unsafe {
        let of_lane = Step::read(args.steps, (first_query + lane as usize % QUERIES).min(queries - 1));
        // Blocks from here on are complete for none of the queries: their keys may not be there.
        let complete = warp_reduce(FULL, of_lane.n_bid, WarpReductionOp::Max);
        if first_block > complete {
            return;
        }
        let first_key = first_block as usize + warp;
        let leaf = args.pooled.at(first_key * INDEX_DIM + 4 * lane as usize);
        let mut keys = [F32x4([0.0; 4]); BLOCKS / QUERIES];
        for i in 0..BLOCKS / QUERIES {
            if first_key + i * QUERIES < complete as usize {
                keys[i] = leaf.read_as(i * QUERIES * INDEX_DIM);
            }
        }
        for i in 0..BLOCKS / QUERIES {
            tile.write(lane as usize * PITCH + i * QUERIES + warp, keys[i]);
        }
        if !mutation::is(Mutation::ScoresDropsTileBarrier) {
            thread::sync_threads();
        }

        let query = first_query + warp;
        if query >= queries {
            return;
        }
        let step = Step::read(args.steps, query);
        if step.n_bid < first_block {
            return;
        }
        let q_idx = args.q_idx.at(query * INDEX_HEADS * INDEX_DIM);
        let row = args.scores.at(query * args.stride as usize);
        // The keys of the lane's blocks, for the maxima: 0, the lowest, where there are no cells.
        let mut keys = [0; OWN];
        if step.n_bid > first_block {
            let dots = Operands { query: q_idx, tile: tile.at(lane as usize) }.dots();
            for own in 0..OWN {
                let block = first_block + lane + 32 * own as u32;
                let mut of_block = [0.0; INDEX_HEADS];
                for head in 0..INDEX_HEADS {
                    of_block[head] = dots[head][own];
                }
                let score = score(of_block);
                if block < step.n_bid {
                    row.write(block as usize, score);
                    keys[own] = key(score.to_bits());
                }
            }
        }
        if step.n_bid < first_block + BLOCKS as u32 {
            let tail = args.tail.at(query * args.tail_stride as usize);
            let mut score = score(tail_dots(q_idx, tail));
            let has_cells = step.tail_cells() > 0 || mutation::is(Mutation::ScoresTakesEmptyTail);
            if has_cells {
                score += TAIL_BONUS;
            }
            if lane == 0 {
                row.write(step.n_bid as usize, score);
            }
            for own in 0..OWN {
                if has_cells && first_block + lane + 32 * own as u32 == step.n_bid {
                    keys[own] = key(score.to_bits());
                }
            }
        }
        let shift = chunk_shift(args.reach);
        if args.maxima.address() != 0 && shift > 0 {
            let maxima = args.maxima.at(query * args.maxima_stride as usize);
            write_maxima(maxima, shift, first_block + lane, step.candidates(), keys);
        }
    }
}

/// Writes the largest key of each chunk of `1 << shift` blocks, 8 to 64 of them; `keys` are those of `block` and of each 32nd one behind it.
/// Chunks without a candidate are left out.
///
/// # Safety
/// All lanes of the warp come here, with neighbouring blocks; the words of its chunks are the warp's.
#[inline(always)]
unsafe fn write_maxima(
    maxima: GlobalMut<u32>,
    shift: u32,
    block: u32,
    candidates: u32,
    mut keys: [u32; OWN],
) {
    for level in 0..5 {
        if level < shift {
            for own in 0..OWN {
                keys[own] = keys[own].max(warp_shuffle_xor(FULL, keys[own], 1 << level));
            }
        }
    }
    if shift > 5 {
        keys[0] = keys[0].max(keys[1]);
    }
    for own in 0..OWN {
        let block = block + 32 * own as u32;
        if block.is_multiple_of(1 << shift) && block < candidates {
            // SAFETY: the caller's promise.
            unsafe { maxima.write((block >> shift) as usize, keys[own]) };
        }
    }
}

const _: () =
    assert!(OWN == 2 && BLOCKS == 1 << LARGEST_CHUNK, "a chunk is one tile's, and a lane has two blocks");

/// The dot products with the tail's key, the lanes of the warp the leaves of the tree.
#[inline(always)]
unsafe fn tail_dots(q_idx: Global<f32>, tail: Global<f32>) -> [f32; INDEX_HEADS] {
    let leaf = 4 * warp::lane_id() as usize;
    let mut dots = [0.0; INDEX_HEADS];
    for head in 0..INDEX_HEADS {
        // SAFETY: the caller's promise.
        let mut dot = unsafe { dot4(q_idx.read_as(head * INDEX_DIM + leaf), tail.read_as(leaf)) };
        for level in 0..5 {
            dot += warp_shuffle_xor(FULL, dot, 16 >> level);
        }
        dots[head] = dot;
    }
    dots
}
