//! `gates`: the decay's log and beta of every token and value head.
//!
//! ```text
//! gate = softplus(a + dt_bias) * a_coef
//! beta = sigmoid(b)
//! ```
//!
//! A block does a tile of tokens, a thread every 256th value of it.
//!
//! Race argument: a value belongs to one thread, without shared memory.

use super::conv::{THREADS, TILE};
use super::row::Floats;
use crate::math::{sigmoid, softplus};
use crate::mutation::{self, Mutation};
use crate::params::PrepareArgs;
use cuda_std::prelude::*;

/// Grid: tokens / 16, rounded up. Block: 256.
///
/// # Safety
/// `args` describes live buffers that do not overlap.
#[kernel(threads = 256, barriers = 0)]
pub unsafe fn gates(args: PrepareArgs) {
    // SAFETY: the caller's promise.
    unsafe { gates_of_tile(&args, thread::block_idx_x() as usize) }
}

/// # Safety
/// As [`gates`]; this block alone has the tile.
#[inline(always)]
pub unsafe fn gates_of_tile(args: &PrepareArgs, tile: usize) {
    let value_heads = args.value_heads;
    let first = tile * TILE;
    let tokens = (args.tokens as usize).saturating_sub(first).min(TILE) as u32;
    let tokens = tokens + u32::from(mutation::is(Mutation::GatesOneTokenMore));
    let (a, b) = (Floats::new(args.a, args.a_dtype), Floats::new(args.b, args.b_dtype));
    let a = if mutation::is(Mutation::GatesTakeBForA) { b } else { a };
    let mut index = thread::thread_idx_x();
    while index < tokens * value_heads {
        let (token, head) = (first + (index / value_heads) as usize, (index % value_heads) as usize);
        let at = token * value_heads as usize + head;
        // SAFETY: the caller's promise.
        unsafe {
            let rate = a.read(token * args.a_stride as usize + head) + args.dt_bias.read(head);
            args.gate.write(at, softplus(rate) * args.a_coef.read(head));
            args.beta.write(at, sigmoid(b.read(token * args.b_stride as usize + head)));
        }
        index += THREADS as u32;
        if mutation::is(Mutation::GatesStopAfterABlock) {
            break;
        }
    }
}
