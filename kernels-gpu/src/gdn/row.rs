//! A row of 128 channels in a warp: a lane holds four neighbouring ones, so that rows move in 16-byte accesses (8 bytes of 16-bit
//! values).

use crate::math::sum4;
use crate::mutation::{self, Mutation};
use crate::params::dtype;
use cuda_std::prelude::*;
use float::{bf16_bits_to_f32, f16_bits_to_f32};

/// Channels of a lane.
pub const WIDTH: usize = 4;

/// `Sum4` over the row's four groups of 32 channels of `Tree32(x * x)`, in every lane.
///
/// `Tree32` is a xor butterfly over a group's channels with distances 16, 8, 4, 2, 1: channel c is lane c/4, word c%4, so distances 16, 8
/// and 4 are lanes 4, 2 and 1 apart, and the last two levels stay in the lane.
#[inline(always)]
pub fn sum_of_squares(x: [f32; WIDTH]) -> f32 {
    let mut square = x.map(|value| value * value);
    for level in 0..3 {
        let lanes = if mutation::is(Mutation::RowRisingDistances) { 1 << level } else { 4 >> level };
        for i in 0..WIDTH {
            square[i] += warp::warp_shuffle_xor(warp::FULL, square[i], lanes);
        }
    }
    let group = (square[0] + square[2]) + (square[1] + square[3]);
    let groups = if mutation::is(Mutation::RowReversesGroups) { [24, 16, 8, 0] } else { [0, 8, 16, 24] };
    sum4(groups.map(|lane| warp::warp_shuffle_idx(warp::FULL, group, lane, 32)))
}

/// Values of one of the types of [`dtype`], widened as they are read.
#[derive(Clone, Copy)]
pub struct Floats {
    base: Global<u16>,
    dtype: u32,
}

impl Floats {
    #[inline(always)]
    pub fn new(base: Global<u16>, dtype: u32) -> Self {
        Self { base, dtype }
    }

    /// Value `index`.
    ///
    /// # Safety
    /// It lies in a live buffer that nobody writes.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn read(self, index: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                dtype::F32 => self.base.cast::<f32>().read(index),
                dtype::BF16 => bf16_bits_to_f32(self.base.read(index)),
                _ => f16_bits_to_f32(self.base.read(index)),
            }
        }
    }

    /// The lane's channels of `N` rows that start at value `index` and lie `stride` values apart, as far as there are `rows` of
    /// them; zeros behind that. One choice of the type for all, then loads that do not wait for each other.
    ///
    /// # Safety
    /// As [`read`](Self::read); four values at `index` are aligned to their size.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn read_rows<const N: usize>(
        self,
        index: usize,
        stride: usize,
        rows: usize,
    ) -> [[f32; WIDTH]; N] {
        let mut out = [[0.0; WIDTH]; N];
        // SAFETY: the caller's promise.
        unsafe {
            if self.dtype == dtype::F32 {
                let base = self.base.cast::<f32>().at(index);
                for i in 0..N {
                    if i < rows {
                        out[i] = base.read_as::<F32x4>(i * stride).0;
                    }
                }
                return out;
            }
            let base = self.base.at(index);
            let mut bits = [[0; WIDTH]; N];
            for i in 0..N {
                if i < rows {
                    bits[i] = base.read_as::<U16x4>(i * stride).0;
                }
            }
            if self.dtype == dtype::BF16 {
                for i in 0..N {
                    out[i] = bits[i].map(bf16_bits_to_f32);
                }
            } else {
                for i in 0..N {
                    out[i] = bits[i].map(f16_bits_to_f32);
                }
            }
        }
        out
    }
}
