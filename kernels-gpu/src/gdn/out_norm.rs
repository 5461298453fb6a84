//! `out_norm`: the gated RMS norm behind the recurrence, to the input of the output projection.
//!
//! ```text
//! ss  = Sum4 over the 32-column groups of Tree32(y * y)
//! out = y * (1 / sqrt(ss / 128 + eps)) * weight * act(z)       act = sigmoid or silu
//! ```
//!
//! A warp does a (token, head) row, a lane four neighbouring columns.
//!
//! Race argument: rows are independent; a warp reads and writes its own row only, without shared memory.

use super::HEAD_DIM;
use super::row::{Floats, WIDTH, sum_of_squares};
use crate::math::{gated4, sqrt};
use crate::mutation::{self, Mutation};
use crate::params::{OutNormArgs, dtype};
use cuda_std::prelude::*;
use float::{f32_to_bf16_bits, f32_to_f16_bits};

/// Threads of a block.
pub const THREADS: usize = 256;
/// Heads of a token that a block does.
pub const HEADS_PER_BLOCK: usize = THREADS / 32;

/// The factor of a row's columns.
#[inline(always)]
pub(super) fn scale(sum_of_squares: f32, eps: f32) -> f32 {
    1.0 / sqrt(sum_of_squares / HEAD_DIM as f32 + eps)
}

/// What is divided by `1 + exp(-z)`: sigmoid and silu differ in it only.
#[inline(always)]
pub(super) fn numerator(z: f32, act: u32) -> f32 {
    if act == OutNormArgs::SILU { z } else { 1.0 }
}

#[inline(always)]
unsafe fn norm_row<const STORE_F32: bool>(args: OutNormArgs) {
    let thread = thread::thread_idx_x() as usize;
    let column = thread % 32 * WIDTH;
    let token = thread::block_idx_x() as usize;
    let head = thread::block_idx_y() as usize * HEADS_PER_BLOCK + thread / 32;
    let value_heads = args.value_heads as usize;
    if head >= value_heads + usize::from(mutation::is(Mutation::OutNormOneHeadMore)) {
        return;
    }
    let index = (token * value_heads + head) * HEAD_DIM + column;

    // SAFETY: the caller's promise about the buffers; rows are independent.
    unsafe {
        let F32x4(y) = args.y.read_as(index);
        let z = Floats::new(args.z, args.z_dtype).read_row(index);
        let F32x4(weight) = args.weight.read_as(column);
        let scale = scale(sum_of_squares(y), args.eps);
        let gate = gated4(z.map(|z| numerator(z, args.act)), z, float::reciprocal_approx);
        let mut out = [0.0; WIDTH];
        for i in 0..WIDTH {
            out[i] = y[i] * scale * weight[i] * gate[i];
        }
        if STORE_F32 {
            args.y.write_as(index, F32x4(out));
        }
        store(&args, token * args.out_stride as usize + head * HEAD_DIM + column, out);
    }
}

/// Stores four neighbouring outputs, in one access where the rows are aligned for it.
///
/// # Safety
/// They lie in the output and are this thread's.
#[inline(always)]
unsafe fn store(args: &OutNormArgs, index: usize, out: [f32; WIDTH]) {
    // SAFETY: the caller's promise.
    unsafe {
        if args.out_dtype == dtype::F32 {
            let words = args.out.cast::<f32>();
            for i in 0..WIDTH {
                words.write(index + i, out[i]);
            }
            return;
        }
        let bits =
            if args.out_dtype == dtype::BF16 { out.map(f32_to_bf16_bits) } else { out.map(f32_to_f16_bits) };
        let aligned = (args.out.address() | (args.out_stride * 2)).is_multiple_of(8);
        if aligned || mutation::is(Mutation::OutNormStoresUnaligned) {
            args.out.write_as(index, U16x4(bits));
        } else {
            for i in 0..WIDTH {
                args.out.write(index + i, bits[i]);
            }
        }
    }
}

/// Grid: (tokens, value heads / 8, rounded up). Block: 256.
///
/// # Safety
/// `args` describes live buffers that do not overlap.
#[kernel(threads = 256, barriers = 0)]
pub unsafe fn out_norm(args: OutNormArgs) {
    // SAFETY: the caller's promise.
    unsafe { norm_row::<false>(args) }
}

/// The variant before it, kept for A/B: also stores the f32 result over y. The same output, 512 more bytes of traffic a row.
///
/// # Safety
/// As [`out_norm`].
#[kernel(threads = 256, barriers = 0)]
pub unsafe fn out_norm_before(args: OutNormArgs) {
    // SAFETY: the caller's promise.
    unsafe { norm_row::<true>(args) }
}
