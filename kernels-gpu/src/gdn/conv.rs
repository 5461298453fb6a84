//! `conv`: the causal depthwise convolution over four tokens, its SiLU, and the new history. `prepare`: the same with q and k rows
//! normalised as they pass, and the gates of the chunk, in one launch.
//!
//! ```text
//! s(t) = fma(x(t), w3, fma(x(t-1), w2, fma(x(t-2), w1, x(t-3) * w0)))      x(t < 0) from the history; a bias starts the chain
//! h(t) = silu(s(t));  q and k rows of `prepare`: l2norm(silu(s(t)))
//! new history = the last three x
//! ```
//!
//! A warp walks a tile of tokens of one head's 128 channels and keeps the last three x in registers, so an x is read once, but for the three
//! tokens before a tile. Only the first tile looks at the history, and only where it starts: no token is treated otherwise.
//!
//! Race argument: an output row belongs to one warp. The history of a head is read and written by the warp of its first tile
//! only, and a lane writes what it has read itself. qkv is never written.

use super::HEAD_DIM;
use super::gates::gates_of_tile;
use super::l2norm::l2norm_scale;
use super::row::{Floats, WIDTH, sum_of_squares};
use crate::math::{fma, silu};
use crate::mutation::{self, Mutation};
use crate::params::PrepareArgs;
use cuda_std::prelude::*;

/// Threads of a block.
pub const THREADS: usize = 256;
/// Heads (of q, k or v) that a block does.
pub const HEADS_PER_BLOCK: usize = THREADS / 32;
/// Tokens that a block does.
pub const TILE: usize = 16;

/// Tokens whose loads are on their way together.
const BATCH: usize = 4;
/// Tokens before the current one that it needs.
const PAST: usize = 3;

type Channels = [f32; WIDTH];

/// Grid: (tokens / 16, heads of q, k and v / 8), both rounded up. Block: 256.
///
/// # Safety
/// `args` describes live buffers that do not overlap; qkv rows are aligned to four of their values, conv_weight, conv_state and h
/// to 16 bytes.
#[kernel(threads = 256, barriers = 0)]
pub unsafe fn conv(args: PrepareArgs) {
    // SAFETY: the caller's promise.
    unsafe { convolve::<false>(&args) }
}

/// Grid: (tokens / 16 rounded up, heads of q, k and v / 8 rounded up, and one more). Block: 256.
///
/// # Safety
/// As [`conv`].
#[kernel(threads = 256, barriers = 0)]
pub unsafe fn prepare(args: PrepareArgs) {
    // SAFETY: the caller's promise.
    unsafe {
        if thread::block_idx_y() == thread::grid_dim_y() - 1 {
            gates_of_tile(&args, thread::block_idx_x() as usize);
        } else {
            convolve::<true>(&args);
        }
    }
}

#[inline(always)]
unsafe fn convolve<const NORMALISE: bool>(args: &PrepareArgs) {
    let thread = thread::thread_idx_x() as usize;
    let head = thread::block_idx_y() as usize * HEADS_PER_BLOCK + thread / 32;
    let (key_heads, value_heads) = (args.key_heads as usize, args.value_heads as usize);
    let heads = 2 * key_heads + value_heads;
    let tokens = args.tokens as usize;
    let mut t = thread::block_idx_x() as usize * TILE;
    if head >= heads || t >= tokens {
        return;
    }
    let end = tokens.min(t + TILE);
    let row = heads * HEAD_DIM;
    let channel = head * HEAD_DIM + thread % 32 * WIDTH;
    let stride = args.qkv_stride as usize;
    let qkv = Floats::new(args.qkv, args.qkv_dtype);

    // SAFETY: the caller's promise; the race argument above.
    unsafe {
        let mut past = if t == 0 {
            history(args, channel)
        } else {
            qkv.read_rows::<PAST>((t - PAST) * stride + channel, stride, PAST)
        };
        let mut taps = [[0.0; 4]; WIDTH];
        for c in 0..WIDTH {
            taps[c] = args.conv_weight.read_as::<F32x4>(4 * (channel + c)).0;
        }
        // Minus zero changes no product that it is added to.
        let mut bias = [-0.0; WIDTH];
        if args.conv_bias.address() != 0 {
            bias = args.conv_bias.read_as::<F32x4>(channel).0;
        }
        let first = t == 0;
        let mut h = args.h.at(t * row + channel);
        while t < end {
            let left = end - t;
            let x = if left >= BATCH {
                qkv.read_rows::<BATCH>(t * stride + channel, stride, BATCH)
            } else {
                qkv.read_rows::<BATCH>(t * stride + channel, stride, left)
            };
            for i in 0..BATCH {
                let before = [past[0], past[1], past[2], x[i]];
                let mut out = activated(before, &taps, &bias);
                past = [past[1], past[2], x[i]];
                if NORMALISE && head < 2 * key_heads {
                    let scale = l2norm_scale(sum_of_squares(out), args.l2_eps);
                    out = out.map(|value| value * scale);
                }
                if i < left || mutation::is(Mutation::ConvStoresPastTheEnd) {
                    h.write_as(0, F32x4(out));
                }
                h = h.at(row);
            }
            t += BATCH;
        }
        if first {
            store_history(args, channel);
        }
    }
}

/// `silu` of the convolution at four neighbouring channels, from x of the tokens t-3 to t.
#[inline(always)]
fn activated(x: [Channels; 4], taps: &[[f32; 4]; WIDTH], bias: &Channels) -> Channels {
    let mut out = [0.0; WIDTH];
    for c in 0..WIDTH {
        let mut sum = bias[c];
        for tap in 0..4 {
            let token = if mutation::is(Mutation::ConvReversesTaps) { 3 - tap } else { tap };
            sum = fma(x[token][c], taps[c][tap], sum);
        }
        out[c] = silu(sum);
    }
    out
}

/// x of the three tokens before the call.
///
/// # Safety
/// As [`conv`].
#[inline(always)]
unsafe fn history(args: &PrepareArgs, channel: usize) -> [Channels; PAST] {
    let mut words = [0.0; PAST * WIDTH];
    for i in 0..PAST {
        // SAFETY: the caller's promise.
        let F32x4(four) = unsafe { args.conv_state.read_as(PAST * channel + 4 * i) };
        for j in 0..4 {
            words[4 * i + j] = four[j];
        }
    }
    let mut past = [[0.0; WIDTH]; PAST];
    for i in 0..PAST {
        for c in 0..WIDTH {
            past[i][c] = words[PAST * c + i];
        }
    }
    past
}

/// Leaves x of the last three tokens, of which the history gives those that lie before the call.
///
/// # Safety
/// As [`conv`]; the lane has read the history already.
#[inline(always)]
unsafe fn store_history(args: &PrepareArgs, channel: usize) {
    let tokens = args.tokens as usize;
    let qkv = Floats::new(args.qkv, args.qkv_dtype);
    // SAFETY: the caller's promise.
    unsafe {
        let old = history(args, channel);
        let mut new = [[0.0; WIDTH]; PAST];
        for i in 0..PAST {
            // The token at place i is T - 3 + i; with T >= 1 the history's first entry is never kept.
            new[i] = match tokens + i {
                1 => old[1],
                2 => old[if mutation::is(Mutation::ConvKeepsHistoryInPlace) { i } else { 2 }],
                at => qkv.read_rows::<1>((at - PAST) * args.qkv_stride as usize + channel, 0, 1)[0],
            };
        }
        for i in 0..PAST {
            let mut four = [0.0; 4];
            for j in 0..4 {
                let word = 4 * i + j;
                four[j] = new[word % PAST][word / PAST];
            }
            args.conv_state.write_as(PAST * channel + 4 * i, F32x4(four));
        }
    }
}
