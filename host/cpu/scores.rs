//! The block scores. Sixteen blocks side by side are the lanes of the vectors, so that each block's sums are taken in the order that
//! [`kernels_gpu::topk::rule`] fixes, and no lane needs another's.

use super::isa::{Isa, Work};
use super::lanes::Lanes;
use super::shared::Shared;
use crate::topk::{BLOCK_CELLS, INDEX_DIM, INDEX_HEADS, Scores, Step};
use kernels_gpu::topk::rule::TAIL_BONUS;
use rayon::prelude::*;

/// Blocks that are scored side by side.
const TILE: usize = 16;
/// Lanes of the dot product: each takes four dimensions.
const LANES: usize = 32;
const LANE_DIMS: usize = INDEX_DIM / LANES;

type Key = [f32; INDEX_DIM];
type Query = [Key; INDEX_HEADS];

/// What a piece of work needs of the call.
#[derive(Clone, Copy)]
struct Job<'a> {
    stride: usize,
    queries: &'a [Query],
    steps: &'a [Step],
    scores: Shared,
}

impl Job<'_> {
    /// Writes neighbouring scores of a query, from block `first` on.
    ///
    /// # Safety
    /// The row has room for them, and no one else accesses them.
    #[inline(always)]
    unsafe fn write(self, query: usize, first: usize, scores: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.scores.at(query * self.stride + first);
            to.copy_from_nonoverlapping(scores.as_ptr(), scores.len());
        }
    }
}

/// Scores with `isa`, which this CPU has.
pub(super) fn run(isa: Isa, call: Scores<'_>) {
    let tail_stride = call.tail_stride();
    let Scores { stride, pooled, q_idx, tail, steps, scores } = call;
    let (heads, _) = q_idx.as_chunks::<INDEX_DIM>();
    let (queries, _) = heads.as_chunks::<INDEX_HEADS>();
    let job = Job { stride, queries, steps: &steps, scores: Shared::new(scores) };

    let complete = steps.iter().map(|step| step.n_bid as usize).max().unwrap_or(0);
    let (keys, _) = pooled.as_chunks::<INDEX_DIM>();
    keys[..complete]
        .par_chunks(TILE)
        .enumerate()
        .for_each(|(index, keys)| isa.run(Tile { job, first: index * TILE, keys }));
    let tail = |query: usize| &tail[query * tail_stride..][..INDEX_DIM];
    (0..steps.len()).into_par_iter().for_each(|query| isa.run(Tail { job, query, key: tail(query) }));
}

/// Some neighbouring blocks, for all queries that see them.
struct Tile<'a> {
    job: Job<'a>,
    first: usize,
    keys: &'a [Key],
}

impl Work for Tile<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Tile { job, first, keys } = self;
        let tile = side_by_side(keys);
        for (query, (q, step)) in job.queries.iter().zip(job.steps).enumerate() {
            let blocks = (step.n_bid as usize).saturating_sub(first).min(keys.len());
            if blocks == 0 {
                continue;
            }
            // SAFETY: the caller's promise.
            let scores = unsafe { score::<L>(&tile, q) };
            // SAFETY: the row has room for all blocks of its query. Tiles differ in blocks, and none has a tail.
            unsafe { job.write(query, first, &scores[..blocks]) };
        }
    }
}

/// The block behind a query's complete ones.
struct Tail<'a> {
    job: Job<'a>,
    query: usize,
    key: &'a [f32],
}

impl Work for Tail<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Tail { job, query, key } = self;
        let step = job.steps[query];
        let (keys, _) = key.as_chunks::<INDEX_DIM>();
        // SAFETY: the caller's promise.
        let [mut score, ..] = unsafe { score::<L>(&side_by_side(keys), &job.queries[query]) };
        if step.n_kv > step.n_bid * BLOCK_CELLS {
            score += TAIL_BONUS;
        }
        // SAFETY: the row has room for it, and no tile writes it.
        unsafe { job.write(query, step.n_bid as usize, &[score]) };
    }
}

/// Keys with the blocks as the last index; zeros where there is no block.
type SideBySide = [[f32; TILE]; INDEX_DIM];

#[inline(always)]
fn side_by_side(keys: &[Key]) -> SideBySide {
    let mut tile = [[0.0; TILE]; INDEX_DIM];
    for (block, key) in keys.iter().enumerate() {
        for dim in 0..INDEX_DIM {
            tile[dim][block] = key[dim];
        }
    }
    tile
}

/// The scores of a tile's blocks for a query.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn score<L: Lanes>(tile: &SideBySide, query: &Query) -> [f32; TILE] {
    let mut scores = [0.0; TILE];
    for head in query {
        let mut dots = [0.0; TILE];
        for first in (0..TILE).step_by(L::LANES) {
            // SAFETY: the caller's promise; a vector from `first` on ends within the tile.
            unsafe { dot::<L>(tile, first, head).store(dots.as_mut_ptr().add(first)) };
        }
        for i in 0..TILE {
            // As a comparison, which makes a NaN 0.
            scores[i] += if dots[i] > 0.0 { dots[i] } else { 0.0 };
        }
    }
    scores
}

/// The dot products of a vector of blocks, from block `first` of the tile on.
///
/// # Safety
/// As [`Lanes`]; the vector ends within the tile.
#[inline(always)]
unsafe fn dot<L: Lanes>(tile: &SideBySide, first: usize, head: &Key) -> L {
    // SAFETY: the caller's promise.
    unsafe {
        let product = |dim: usize| L::load(tile[dim].as_ptr().add(first)).mul(L::splat(head[dim]));
        let lane = |lane: usize| {
            let dim = lane * LANE_DIMS;
            product(dim).add(product(dim + 1)).add(product(dim + 2)).add(product(dim + 3))
        };
        let mut sums = [L::splat(0.0); LANES / 2];
        for i in 0..LANES / 2 {
            sums[i] = lane(i).add(lane(i + LANES / 2));
        }
        for distance in [8, 4, 2, 1] {
            for i in 0..distance {
                sums[i] = sums[i].add(sums[i + distance]);
            }
        }
        sums[0]
    }
}
