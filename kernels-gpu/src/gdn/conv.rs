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
use super::ahead::Ahead;
use super::gates::gates_of_tile;
use super::l2norm::l2norm_scale;
use super::row::{Floats, WIDTH, sum_of_squares};
use crate::math::{fma, gated4};
use crate::mutation::{self, Mutation};
use crate::params::PrepareArgs;
use cuda_std::prelude::*;

/// Threads of a block.
pub const THREADS: usize = 256;
/// Heads (of q, k or v) that a block does.
pub const HEADS_PER_BLOCK: usize = THREADS / 32;
/// Tokens that a block does.
pub const TILE: usize = 16;

/// Tokens before the current one that it needs.
const PAST: usize = 3;

type Channels = [f32; WIDTH];

#[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
type Best = super::ahead::Ring;
#[cfg(not(any(feature = "sm_80", not(target_arch = "nvptx64"))))]
type Best = super::ahead::Registers;

/// Grid: (tokens / 16, heads of q, k and v / 8), both rounded up. Block: 256.
///
/// # Safety
/// `args` describes live buffers that do not overlap; qkv rows are aligned to four of their values, conv_weight, conv_state and h
/// to 16 bytes.
#[kernel(threads = 256, min_blocks = 4, barriers = 0)]
pub unsafe fn conv(args: PrepareArgs) {
    // SAFETY: the caller's promise.
    unsafe { convolve::<Best, false>(&args) }
}

/// Grid: (tokens / 16 rounded up, heads of q, k and v / 8 rounded up, and one more). Block: 256.
///
/// # Safety
/// As [`conv`].
#[kernel(threads = 256, min_blocks = 4, barriers = 0)]
pub unsafe fn prepare(args: PrepareArgs) {
    // SAFETY: the caller's promise.
    unsafe { prepare_by::<Best>(&args) }
}

/// [`prepare`] as it is where there is no `cp.async`, for the executor.
///
/// # Safety
/// As [`conv`].
#[cfg(not(target_arch = "nvptx64"))]
pub unsafe fn prepare_without_async_copies(args: PrepareArgs) {
    // SAFETY: the caller's promise.
    unsafe { prepare_by::<super::ahead::Registers>(&args) }
}

#[inline(always)]
unsafe fn prepare_by<A: Ahead>(args: &PrepareArgs) {
    // SAFETY: the caller's promise.
    unsafe {
        if thread::block_idx_y() == thread::grid_dim_y() - 1 {
            gates_of_tile(args, thread::block_idx_x() as usize);
        } else {
            convolve::<A, true>(args);
        }
    }
}

#[inline(always)]
unsafe fn convolve<A: Ahead, const NORMALISE: bool>(args: &PrepareArgs) {
    let thread = thread::thread_idx_x() as usize;
    let head = thread::block_idx_y() as usize * HEADS_PER_BLOCK + thread / 32;
    let (key_heads, value_heads) = (args.key_heads as usize, args.value_heads as usize);
    let heads = 2 * key_heads + value_heads;
    let tokens = args.tokens as usize;
    let first = thread::block_idx_x() as usize * TILE;
    if head >= heads || first >= tokens {
        return;
    }
    let channel = head * HEAD_DIM + thread % 32 * WIDTH;
    let stride = args.qkv_stride as usize;
    let qkv = Floats::new(args.qkv, args.qkv_dtype);
    let at = first * stride + channel;
    let count = (tokens - first).min(TILE);

    // SAFETY: the caller's promise; the race argument above.
    unsafe {
        let ahead = A::new(qkv, at, stride, count);
        let past = if first == 0 || mutation::is(Mutation::ConvTakesHistoryInEveryTile) {
            history(args, channel)
        } else {
            [3, 2, 1].map(|back| qkv.read_row(at - back * stride))
        };
        let mut taps = [[0.0; 4]; WIDTH];
        for c in 0..WIDTH {
            taps[c] = args.conv_weight.read_as::<F32x4>(4 * (channel + c)).0;
        }
        let row = heads * HEAD_DIM;
        let mut walk = Walk {
            ahead,
            past,
            taps,
            bias: args.conv_bias,
            channel,
            l2_eps: args.l2_eps,
            h: args.h.at(first * row + channel),
            row,
        };
        let normalise =
            NORMALISE && (head < 2 * key_heads || mutation::is(Mutation::PrepareNormalisesValues));
        // Not unrolled: more warps a multiprocessor are worth more here than fewer moves between registers.
        for _ in 0..count {
            walk.step(normalise);
        }
        if mutation::is(Mutation::ConvStoresPastTheEnd) {
            walk.store([0.0; WIDTH]);
        }
        if first == 0 {
            store_history(args, channel);
        }
    }
}

/// A warp on its way through a tile.
struct Walk<A> {
    ahead: A,
    past: [Channels; PAST],
    taps: [[f32; 4]; WIDTH],
    /// `[C]`, or null. Read anew for each token: a bias is rare, and registers are dear.
    bias: Global<f32>,
    channel: usize,
    l2_eps: f32,
    /// The current token's output.
    h: GlobalMut<f32>,
    row: usize,
}

impl<A: Ahead> Walk<A> {
    /// Does a token.
    #[inline(always)]
    unsafe fn step(&mut self, normalise: bool) {
        // SAFETY: the caller counts the tokens.
        let x = unsafe { self.ahead.next() };
        let mut out = activated([self.past[0], self.past[1], self.past[2], x], &self.taps, self.bias());
        self.past = [self.past[1], self.past[2], x];
        if normalise {
            let scale = l2norm_scale(sum_of_squares(out), self.l2_eps);
            out = out.map(|value| value * scale);
        }
        // SAFETY: as above.
        unsafe { self.store(out) };
    }

    #[inline(always)]
    fn bias(&self) -> Channels {
        if self.bias.address() == 0 {
            // Minus zero changes no product that it is added to.
            return [-0.0; WIDTH];
        }
        // SAFETY: the record's bias has an element for each channel.
        let F32x4(bias) = unsafe { self.bias.read_as(hint::opaque(self.channel as u64) as usize) };
        if mutation::is(Mutation::ConvTakesTheNextBias) {
            return [bias[1], bias[2], bias[3], bias[0]];
        }
        bias
    }

    #[inline(always)]
    unsafe fn store(&mut self, out: Channels) {
        // SAFETY: the row is this warp's.
        unsafe { self.h.write_as(0, F32x4(out)) };
        self.h = self.h.at(self.row);
    }
}

/// `silu` of the convolution at four neighbouring channels, from x of the tokens t-3 to t.
#[inline(always)]
fn activated(x: [Channels; 4], taps: &[[f32; 4]; WIDTH], bias: Channels) -> Channels {
    let mut sum = bias;
    for c in 0..WIDTH {
        for tap in 0..4 {
            let token = if mutation::is(Mutation::ConvReversesTaps) { 3 - tap } else { tap };
            sum[c] = fma(x[token][c], taps[c][tap], sum[c]);
        }
    }
    gated4(sum, sum, float::reciprocal_approx)
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
                at => qkv.read_row((at - PAST) * args.qkv_stride as usize + channel),
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
