//! `wide`: the selection in one launch, for rows of any length: `register`'s layout with the keys read from memory each time, four passes
//! for the threshold and two for the output. No scratch.
//!
//! Race argument: that of `select`. A row belongs to one block.

use super::histogram::THREADS;
use super::rule::key;
use super::select::{self, Reread};
use crate::params::TopkArgs;
use cuda_std::prelude::*;

/// Grid: queries. Block: 1024.
///
/// # Safety
/// `args` describes live buffers that do not overlap; no query has more blocks than the stride, nor a larger width than `cap`.
#[kernel(threads = 1024, min_blocks = 2, barriers = 4)]
pub unsafe fn wide(args: TopkArgs) {
    let query = thread::block_idx_x() as usize;
    // SAFETY: the caller's promise.
    unsafe {
        let Some((step, ids)) = select::begin(&args, query, THREADS) else { return };
        let scores = args.scores.at(query * args.stride as usize);
        let read = |block: u32| key(scores.read(block as usize).to_bits());
        let last_key = read(step.candidates() - 1);
        select::write_ids(Reread(read), step, last_key, ids);
    }
}
