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

    /// The lane's channels of the row at value `index`, as they lie in memory: what reads ahead keeps them so, because to widen
    /// them is to wait for them.
    ///
    /// # Safety
    /// As [`read`](Self::read); four values at `index` are aligned to their size.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn load(self, index: usize) -> Loaded {
        // SAFETY: the caller's promise.
        unsafe {
            if self.dtype == dtype::F32 {
                let F32x4(words) = self.base.cast::<f32>().read_as(index);
                Loaded(words.map(f32::to_bits))
            } else {
                let U16x4([a, b, c, d]) = self.base.read_as(index);
                let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
                Loaded([pair(a, b), pair(c, d), 0, 0])
            }
        }
    }

    /// Starts the copy of the lane's channels of the row at value `index` to shared memory, from where [`copied`](Self::copied)
    /// reads them.
    ///
    /// # Safety
    /// As [`load`](Self::load); `to` is 16-byte aligned and this lane's.
    #[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy(self, index: usize, to: Shared<f32>) {
        let to = async_copy::SharedAddress::of(to);
        // SAFETY: the caller's promise.
        unsafe {
            if self.dtype == dtype::F32 {
                async_copy::copy::<16>(to, self.base.cast::<f32>().at(index));
            } else {
                async_copy::copy::<8>(to, self.base.at(index).cast());
            }
        }
    }

    /// What [`copy`](Self::copy) brought.
    ///
    /// # Safety
    /// This lane has waited for the copy.
    #[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copied(self, from: Shared<f32>) -> Loaded {
        // SAFETY: the caller's promise.
        unsafe {
            if self.dtype == dtype::F32 {
                let F32x4(words) = from.read_as(0);
                Loaded(words.map(f32::to_bits))
            } else {
                let F32x2([low, high]) = from.read_as(0);
                Loaded([low.to_bits(), high.to_bits(), 0, 0])
            }
        }
    }

    #[inline(always)]
    pub fn widen(self, Loaded(words): Loaded) -> [f32; WIDTH] {
        let [a, b, ..] = words;
        match self.dtype {
            dtype::F32 => words.map(f32::from_bits),
            dtype::BF16 => [a << 16, a & 0xffff_0000, b << 16, b & 0xffff_0000].map(f32::from_bits),
            _ => [a as u16, (a >> 16) as u16, b as u16, (b >> 16) as u16].map(f16_bits_to_f32),
        }
    }

    /// The lane's channels of the row at value `index`.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn read_row(self, index: usize) -> [f32; WIDTH] {
        // SAFETY: the caller's promise.
        self.widen(unsafe { self.load(index) })
    }
}

/// Four values in registers, not widened yet.
#[derive(Clone, Copy)]
pub struct Loaded([u32; WIDTH]);
