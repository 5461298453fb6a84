//! The gated RMS norm behind the recurrence. Tokens are parallel; the loops over a row's 128 columns are plain code that
//! the compiler vectorises for each instruction set.

use super::fp_env::IeeeDefaults;
use super::isa::Isa;
use super::lanes::{GROUP, Lanes};
use crate::gdn::{HEAD_DIM, NormAct, NormOut, OutNorm};
use kernels_gpu::math::{canonical, sigmoid, silu, sqrt, sum4};
use rayon::prelude::*;

/// A row of f32.
type Row = [f32; HEAD_DIM];

/// Rows that make a piece of work worth handing to another thread.
const ROWS_AT_LEAST: usize = 64;

/// What a row needs besides y and z.
#[derive(Clone, Copy)]
struct Norm<'a> {
    weight: &'a Row,
    act: NormAct,
    eps: f32,
}

/// An output type.
trait Output: Copy + Send {
    /// Rounds `values` to `out`.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn store<L: Lanes>(values: &Row, out: &mut [Self; HEAD_DIM]);
}

impl Output for f32 {
    #[inline(always)]
    unsafe fn store<L: Lanes>(values: &Row, out: &mut [Self; HEAD_DIM]) {
        for i in 0..HEAD_DIM {
            out[i] = canonical(values[i]);
        }
    }
}

impl Output for half::f16 {
    #[inline(always)]
    unsafe fn store<L: Lanes>(values: &Row, out: &mut [Self; HEAD_DIM]) {
        let (from, to) = (values.as_ptr(), out.as_mut_ptr().cast::<u16>());
        for i in (0..HEAD_DIM).step_by(L::LANES) {
            // SAFETY: the caller's promise; both hold HEAD_DIM elements, and an f16 is its bits.
            unsafe { L::load(from.add(i)).canonical().store_f16(to.add(i)) };
        }
    }
}

impl Output for half::bf16 {
    #[inline(always)]
    unsafe fn store<L: Lanes>(values: &Row, out: &mut [Self; HEAD_DIM]) {
        for i in 0..HEAD_DIM {
            let bits = values[i].to_bits();
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
            out[i] = half::bf16::from_bits(if values[i].is_nan() { 0x7fff } else { rounded as u16 });
        }
    }
}

/// Runs the out norm with `isa`, which this CPU has.
pub(super) fn run(isa: Isa, call: OutNorm<'_>) {
    let OutNorm { value_heads, tokens, y, z, weight, act, eps, out, out_stride } = call;
    let (Some(weight), true) = (weight.first_chunk(), tokens > 0 && value_heads > 0) else { return };
    let norm = Norm { weight, act, eps };
    match out {
        NormOut::F16(out) => for_tokens(isa, norm, value_heads, y, z, out, out_stride),
        NormOut::Bf16(out) => for_tokens(isa, norm, value_heads, y, z, out, out_stride),
        NormOut::F32(out) => for_tokens(isa, norm, value_heads, y, z, out, out_stride),
    }
}

fn for_tokens<T: Output>(
    isa: Isa,
    norm: Norm<'_>,
    value_heads: usize,
    y: &[f32],
    z: &[f32],
    out: &mut [T],
    out_stride: usize,
) {
    let width = value_heads * HEAD_DIM;
    out.par_chunks_mut(out_stride)
        .zip(y.par_chunks(width))
        .zip(z.par_chunks(width))
        .with_min_len(ROWS_AT_LEAST.div_ceil(value_heads))
        .for_each_init(IeeeDefaults::set, |_ieee, ((out, y), z)| match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this CPU has the instruction set.
            Isa::Avx512 => unsafe { x86::avx512(norm, y, z, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this CPU has the instruction set.
            Isa::Avx2 => unsafe { x86::avx2(norm, y, z, out) },
            // SAFETY: plain arrays need no instruction set.
            _ => unsafe { token::<[f32; 8], T>(norm, y, z, out) },
        });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Norm, Output, token};
    use std::arch::x86_64::{__m256, __m512};

    /// # Safety
    /// As [`token`].
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")]
    pub unsafe fn avx512<T: Output>(norm: Norm<'_>, y: &[f32], z: &[f32], out: &mut [T]) {
        // SAFETY: the caller's promise.
        unsafe { token::<__m512, T>(norm, y, z, out) }
    }

    /// # Safety
    /// As [`token`].
    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn avx2<T: Output>(norm: Norm<'_>, y: &[f32], z: &[f32], out: &mut [T]) {
        // SAFETY: the caller's promise.
        unsafe { token::<__m256, T>(norm, y, z, out) }
    }
}

/// All rows of a token.
///
/// # Safety
/// The CPU has L's instruction set, and the caller is compiled for it.
#[inline(always)]
unsafe fn token<L: Lanes, T: Output>(norm: Norm<'_>, y: &[f32], z: &[f32], out: &mut [T]) {
    // The zip ends with y, before the gap behind the output's rows.
    let (y, z) = (y.as_chunks::<HEAD_DIM>().0, z.as_chunks::<HEAD_DIM>().0);
    for ((y, z), out) in y.iter().zip(z).zip(out.as_chunks_mut::<HEAD_DIM>().0) {
        // SAFETY: the caller's promise.
        unsafe { T::store::<L>(&row::<L>(norm, y, z), out) };
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

/// `Sum4` over the groups of `Tree32` of the squares.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn sum_of_squares<L: Lanes>(y: &Row) -> f32 {
    let mut sums = [0.0; HEAD_DIM / GROUP];
    for (group, sum) in y.as_chunks().0.iter().zip(&mut sums) {
        // SAFETY: the caller's promise.
        *sum = unsafe { L::tree32_of_squares(group) };
    }
    sum4(sums)
}
