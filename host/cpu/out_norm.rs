//! The gated RMS norm behind the recurrence. Tokens are parallel; the loops over a row's 128 columns are plain code that
//! the compiler vectorises for each instruction set.

use super::element::{Element, Row};
use super::isa::{Isa, Work};
use super::lanes::{GROUP, Lanes};
use crate::gdn::{Floats, HEAD_DIM, NormAct, NormOut, OutNorm};
use kernels_gpu::math::{sigmoid, silu, sqrt, sum4};
use rayon::prelude::*;

/// Rows that make a piece of work worth handing to another thread.
const ROWS_AT_LEAST: usize = 64;

/// What a row needs besides y and z.
#[derive(Clone, Copy)]
struct Norm<'a> {
    weight: &'a Row,
    act: NormAct,
    eps: f32,
}

/// Runs the out norm with `isa`, which this CPU has.
pub(super) fn run(isa: Isa, call: OutNorm<'_>) {
    match call.z {
        Floats::F32(z) => into_out(isa, z, call),
        Floats::F16(z) => into_out(isa, z, call),
        Floats::Bf16(z) => into_out(isa, z, call),
    }
}

fn into_out<Z: Element>(isa: Isa, z: &[Z], call: OutNorm<'_>) {
    let OutNorm { value_heads, y, weight, act, eps, out, out_stride, .. } = call;
    let Some(weight) = weight.first_chunk() else { return };
    let norm = Norm { weight, act, eps };
    match out {
        NormOut::F16(out) => for_tokens(isa, norm, value_heads, y, z, out, out_stride),
        NormOut::Bf16(out) => for_tokens(isa, norm, value_heads, y, z, out, out_stride),
        NormOut::F32(out) => for_tokens(isa, norm, value_heads, y, z, out, out_stride),
    }
}

fn for_tokens<Z: Element, T: Element>(
    isa: Isa,
    norm: Norm<'_>,
    value_heads: usize,
    y: &[f32],
    z: &[Z],
    out: &mut [T],
    out_stride: usize,
) {
    let width = value_heads * HEAD_DIM;
    out.par_chunks_mut(out_stride)
        .zip(y.par_chunks(width))
        .zip(z.par_chunks(width))
        .with_min_len(ROWS_AT_LEAST.div_ceil(value_heads))
        .for_each(|((out, y), z)| isa.run(Token { norm, y, z, out }));
}

/// All rows of a token.
struct Token<'a, Z, T> {
    norm: Norm<'a>,
    y: &'a [f32],
    z: &'a [Z],
    out: &'a mut [T],
}

impl<Z: Element, T: Element> Work for Token<'_, Z, T> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // The zip ends with y, before the gap behind the output's rows.
        let (y, z) = (self.y.as_chunks::<HEAD_DIM>().0, self.z.as_chunks::<HEAD_DIM>().0);
        let mut wide = [0.0; HEAD_DIM];
        for ((y, z), out) in y.iter().zip(z).zip(self.out.as_chunks_mut::<HEAD_DIM>().0) {
            // SAFETY: the caller's promise.
            unsafe {
                Z::widen::<L>(z, &mut wide);
                T::store::<L>(&row::<L>(self.norm, y, &wide), out);
            }
        }
    }
}

/// A row's values, not yet rounded to the output type.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn row<L: Lanes>(norm: Norm<'_>, y: &Row, z: &Row) -> Row {
    // SAFETY: the caller's promise.
    let squares = unsafe { sum_of_squares::<L>(y) };
    let scale = 1.0 / sqrt(squares / HEAD_DIM as f32 + norm.eps);
    let mut values = [0.0; HEAD_DIM];
    match norm.act {
        NormAct::Sigmoid => {
            for i in 0..HEAD_DIM {
                values[i] = y[i] * scale * norm.weight[i] * sigmoid(z[i]);
            }
        }
        NormAct::Silu => {
            for i in 0..HEAD_DIM {
                values[i] = y[i] * scale * norm.weight[i] * silu(z[i]);
            }
        }
    }
    values
}

/// `Sum4` over the groups of `Tree32` of a row's squares.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn sum_of_squares<L: Lanes>(y: &Row) -> f32 {
    let mut sums = [0.0; HEAD_DIM / GROUP];
    for (group, sum) in y.as_chunks().0.iter().zip(&mut sums) {
        // SAFETY: the caller's promise.
        *sum = unsafe { L::tree32_of_squares(group) };
    }
    sum4(sums)
}
