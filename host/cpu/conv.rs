//! The convolution over four tokens, with silu; on the way, the l2 norm of the rows that get one. A piece of work is 128
//! channels, a head's row, through some tokens: their weights and the last four tokens stay in the first-level cache.

use super::element::{Element, Row};
use super::isa::{Isa, Work};
use super::l2norm;
use super::lanes::Lanes;
use super::shared::Shared;
use crate::gdn::{CONV_HISTORY, CONV_TAPS, Conv, Floats, HEAD_DIM};
use kernels_gpu::math::{canonical, fma, silu};
use rayon::prelude::*;
use std::ops::Range;

/// Tokens of a piece of work.
const TOKENS: usize = 64;

/// How many tokens ahead qkv is asked for: a stride between tokens is longer than a page, which the hardware's own prefetching
/// does not cross.
const PREFETCH: usize = 4;

/// The rows of a token that are normed, from the first on.
#[derive(Clone, Copy)]
pub(super) struct Normed {
    pub rows: usize,
    pub eps: f32,
}

impl Normed {
    pub const NONE: Normed = Normed { rows: 0, eps: 0.0 };
}

/// Runs the convolution with `isa`, which this CPU has, and norms the rows that `normed` says.
pub(super) fn run(isa: Isa, call: Conv<'_>, normed: Normed) {
    match call.qkv {
        Floats::F32(qkv) => for_pieces(isa, qkv, call, normed),
        Floats::F16(qkv) => for_pieces(isa, qkv, call, normed),
        Floats::Bf16(qkv) => for_pieces(isa, qkv, call, normed),
    }
}

fn for_pieces<T: Element>(isa: Isa, qkv: &[T], call: Conv<'_>, normed: Normed) {
    let Conv { channels, tokens, weight, bias, state, h, .. } = call;
    if tokens == 0 {
        return;
    }
    let blocks = tokens.div_ceil(TOKENS);
    let h = Shared::new(h);
    (0..channels / HEAD_DIM * blocks).into_par_iter().for_each(|index| {
        let (row, block) = (index / blocks, index % blocks);
        let channel = row * HEAD_DIM;
        isa.run(Piece {
            qkv,
            channels,
            channel,
            tokens: block * TOKENS..tokens.min((block + 1) * TOKENS),
            weight: &weight[channel * CONV_TAPS..][..HEAD_DIM * CONV_TAPS],
            bias: bias.map(|bias| &bias[channel..][..HEAD_DIM]),
            state: &state[channel * CONV_HISTORY..][..HEAD_DIM * CONV_HISTORY],
            eps: (row < normed.rows).then_some(normed.eps),
            h,
        });
    });

    // Now that nobody reads the old state: the last three tokens. With fewer, the older ones move up.
    state.par_chunks_mut(CONV_HISTORY).with_min_len(HEAD_DIM).enumerate().for_each(|(channel, state)| {
        let at = |t: usize| qkv[t * channels + channel].wide();
        let old = tokens.min(CONV_HISTORY);
        state.rotate_left(old);
        for (i, x) in state[CONV_HISTORY - old..].iter_mut().enumerate() {
            *x = at(tokens - old + i);
        }
    });
}

/// A head's row of channels, from `channel` on, through some tokens.
struct Piece<'a, T> {
    qkv: &'a [T],
    channels: usize,
    channel: usize,
    tokens: Range<usize>,
    /// Of these channels, as bias and state.
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    state: &'a [f32],
    /// Of the l2 norm, where there is one.
    eps: Option<f32>,
    h: Shared,
}

impl<T: Element> Work for Piece<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let mut weight = [[0.0; HEAD_DIM]; CONV_TAPS];
        for (c, taps) in self.weight.as_chunks::<CONV_TAPS>().0.iter().enumerate() {
            for tap in 0..CONV_TAPS {
                weight[tap][c] = taps[tap];
            }
        }
        // Without a bias the first product is alone. An fma with -0 gives just that, with its sign where it is zero.
        let mut bias = [-0.0; HEAD_DIM];
        if let Some(given) = self.bias {
            bias.copy_from_slice(given);
        }
        // Token t is in x[t % 4].
        let mut x = [[0.0; HEAD_DIM]; CONV_TAPS];
        let first = self.tokens.start;
        for back in 1..=CONV_HISTORY {
            let row = &mut x[(first + CONV_TAPS - back) % CONV_TAPS];
            if first >= back {
                // SAFETY: the caller's promise.
                unsafe { T::widen::<L>(self.row(first - back), row) };
            } else {
                for c in 0..HEAD_DIM {
                    row[c] = self.state[c * CONV_HISTORY + CONV_HISTORY + first - back];
                }
            }
        }

        for t in self.tokens.clone() {
            // SAFETY: the caller's promise.
            unsafe { T::widen::<L>(self.row(t), &mut x[t % CONV_TAPS]) };
            // SAFETY: as above.
            unsafe { self.prefetch::<L>(t + PREFETCH) };
            let [x3, x2, x1, x0] = [1, 2, 3, 4].map(|ahead| &x[(t + ahead) % CONV_TAPS]);
            let mut row: Row = [0.0; HEAD_DIM];
            for c in 0..HEAD_DIM {
                let sum = fma(x3[c], weight[0][c], bias[c]);
                let sum = fma(x2[c], weight[1][c], sum);
                let sum = fma(x1[c], weight[2][c], sum);
                let sum = fma(x0[c], weight[3][c], sum);
                row[c] = canonical(silu(sum));
            }
            // SAFETY: the caller's promise; the row is in h, and this piece's alone.
            unsafe {
                if let Some(eps) = self.eps {
                    l2norm::row::<L>(&mut row, eps);
                }
                self.h.at(t * self.channels + self.channel).cast::<Row>().write(row);
            }
        }
    }
}

impl<'a, T> Piece<'a, T> {
    /// Asks for a token's channels; there need not be such a token.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn prefetch<L: Lanes>(&self, token: usize) {
        let row = self.qkv.as_ptr().wrapping_add(token * self.channels + self.channel).cast::<u8>();
        for line in (0..HEAD_DIM * size_of::<T>()).step_by(64) {
            // SAFETY: the caller's promise; a prefetch of any address is fine.
            unsafe { L::prefetch(row.wrapping_add(line).cast()) };
        }
    }

    /// The piece's channels of a token.
    #[inline(always)]
    fn row(&self, token: usize) -> &'a [T] {
        &self.qkv[token * self.channels + self.channel..][..HEAD_DIM]
    }
}
