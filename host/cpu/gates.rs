//! The gates: the log of the decay and beta, from what the projections made of each token.

use super::element::Element;
use super::isa::{Isa, Work};
use super::lanes::Lanes;
use crate::gdn::{Floats, Gates, PerHead};
use kernels_gpu::math::{canonical, sigmoid, softplus};
use rayon::prelude::*;

/// Numbers that make a piece of work worth handing to another thread.
const NUMBERS_AT_LEAST: usize = 4096;

/// Runs the gates with `isa`, which this CPU has.
pub(super) fn run(isa: Isa, call: Gates<'_>) {
    let Gates { value_heads, tokens, a, b, dt_bias, a_coef, gate, beta } = call;
    if tokens == 0 {
        return;
    }
    map(isa, a, value_heads, gate, Map::Gate { dt_bias, a_coef });
    map(isa, b, value_heads, beta, Map::Beta);
}

/// What becomes of a token's numbers.
#[derive(Clone, Copy)]
enum Map<'a> {
    Gate { dt_bias: &'a [f32], a_coef: &'a [f32] },
    Beta,
}

fn map(isa: Isa, from: PerHead<'_>, value_heads: usize, to: &mut [f32], map: Map<'_>) {
    match from.data {
        Floats::F32(data) => for_tokens(isa, data, from.stride, value_heads, to, map),
        Floats::F16(data) => for_tokens(isa, data, from.stride, value_heads, to, map),
        Floats::Bf16(data) => for_tokens(isa, data, from.stride, value_heads, to, map),
    }
}

fn for_tokens<T: Element>(
    isa: Isa,
    from: &[T],
    stride: usize,
    value_heads: usize,
    to: &mut [f32],
    map: Map<'_>,
) {
    let tokens = NUMBERS_AT_LEAST.div_ceil(value_heads);
    to.par_chunks_mut(tokens * value_heads)
        // The stride of a call of one token may be any number.
        .zip(from.par_chunks(tokens.saturating_mul(stride)))
        .for_each(|(to, from)| isa.run(Tokens { from, stride, value_heads, to, map }));
}

/// Some tokens.
struct Tokens<'a, T> {
    from: &'a [T],
    stride: usize,
    value_heads: usize,
    to: &'a mut [f32],
    map: Map<'a>,
}

impl<T: Element> Work for Tokens<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for (to, from) in self.to.chunks_exact_mut(self.value_heads).zip(self.from.chunks(self.stride)) {
            // SAFETY: the caller's promise.
            unsafe { T::widen::<L>(&from[..self.value_heads], to) };
            match self.map {
                Map::Gate { dt_bias, a_coef } => {
                    for ((x, &bias), &coef) in to.iter_mut().zip(dt_bias).zip(a_coef) {
                        *x = canonical(softplus(*x + bias) * coef);
                    }
                }
                Map::Beta => to.iter_mut().for_each(|x| *x = canonical(sigmoid(*x))),
            }
        }
    }
}
