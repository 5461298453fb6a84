//! `l2norm`: q and k rows to length 1, in place.
//!
//! ```text
//! ss  = Sum4 over the 32-channel groups of Tree32(v * v)
//! out = v * (1 / sqrt(ss + eps))                      eps is added to the sum
//! ```
//!
//! A warp does a row.
//!
//! Race argument: a warp reads and writes its own row only, without shared memory.

use super::HEAD_DIM;
use super::conv::HEADS_PER_BLOCK;
use super::row::{WIDTH, sum_of_squares};
use crate::math::sqrt;
use crate::mutation::{self, Mutation};
use crate::params::PrepareArgs;
use cuda_std::prelude::*;

/// What a row with this sum of squares is multiplied by.
#[inline(always)]
pub fn l2norm_scale(sum_of_squares: f32, eps: f32) -> f32 {
    let sum = if mutation::is(Mutation::L2NormTakesTheMean) {
        sum_of_squares / HEAD_DIM as f32
    } else {
        sum_of_squares
    };
    1.0 / sqrt(sum + eps)
}

/// Grid: (tokens, key heads * 2 / 8, rounded up). Block: 256. Reads and writes the q and k rows of h.
///
/// # Safety
/// `args` describes live buffers that do not overlap, h 16-byte aligned.
#[kernel(threads = 256, barriers = 0)]
pub unsafe fn l2norm(args: PrepareArgs) {
    let thread = thread::thread_idx_x() as usize;
    let head = thread::block_idx_y() as usize * HEADS_PER_BLOCK + thread / 32;
    let (key_heads, value_heads) = (args.key_heads as usize, args.value_heads as usize);
    if head >= 2 * key_heads + usize::from(mutation::is(Mutation::L2NormOneHeadMore)) {
        return;
    }
    let row = (2 * key_heads + value_heads) * HEAD_DIM;
    let index = thread::block_idx_x() as usize * row + head * HEAD_DIM + thread % 32 * WIDTH;
    // SAFETY: the caller's promise; rows are independent.
    unsafe {
        let F32x4(x) = args.h.read_as(index);
        let scale = l2norm_scale(sum_of_squares(x), args.l2_eps);
        args.h.write_as(index, F32x4(x.map(|value| value * scale)));
    }
}
