//! The l2 norm of head rows, in place.

use super::element::Row;
use super::isa::{Isa, Work};
use super::lanes::Lanes;
use super::out_norm::sum_of_squares;
use crate::gdn::{HEAD_DIM, L2Norm};
use kernels_gpu::math::{canonical, sqrt};
use rayon::prelude::*;

/// Rows that make a piece of work worth handing to another thread.
const ROWS_AT_LEAST: usize = 64;

/// Runs the l2 norm with `isa`, which this CPU has.
pub(super) fn run(isa: Isa, call: L2Norm<'_>) {
    let L2Norm { rows, tokens, data, stride, eps } = call;
    if rows == 0 {
        return;
    }
    data.par_chunks_mut(stride).take(tokens).with_min_len(ROWS_AT_LEAST.div_ceil(rows)).for_each(|token| {
        let (token, _) = token.as_chunks_mut();
        isa.run(Rows { rows: &mut token[..rows], eps });
    });
}

struct Rows<'a> {
    rows: &'a mut [Row],
    eps: f32,
}

impl Work for Rows<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for values in self.rows {
            // SAFETY: the caller's promise.
            unsafe { row::<L>(values, self.eps) };
        }
    }
}

/// Norms one row.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(super) unsafe fn row<L: Lanes>(values: &mut Row, eps: f32) {
    // SAFETY: the caller's promise.
    let scale = 1.0 / sqrt(unsafe { sum_of_squares::<L>(values) } + eps);
    for i in 0..HEAD_DIM {
        values[i] = canonical(values[i] * scale);
    }
}
