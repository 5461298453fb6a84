//! The element types of activations: widened as they are read, rounded as they are stored.

use super::lanes::Lanes;
use crate::gdn::HEAD_DIM;
use half::{bf16, f16};
use kernels_gpu::float::{bf16_bits_to_f32, f16_bits_to_f32, f32_to_bf16_bits};
use kernels_gpu::math::canonical;

/// A head's row in f32.
pub(super) type Row = [f32; HEAD_DIM];

/// An element type.
pub(super) trait Element: Copy + Send + Sync {
    /// Widened, without loss.
    fn wide(self) -> f32;

    /// Widens `from` to `to`, which is as long.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn widen<L: Lanes>(from: &[Self], to: &mut [f32]);

    /// Rounds `values` to `out`; every NaN becomes the canonical one.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn store<L: Lanes>(values: &Row, out: &mut [Self; HEAD_DIM]);
}

impl Element for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn widen<L: Lanes>(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    unsafe fn store<L: Lanes>(values: &Row, out: &mut [Self; HEAD_DIM]) {
        for i in 0..HEAD_DIM {
            out[i] = canonical(values[i]);
        }
    }
}

impl Element for f16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f16_bits_to_f32(self.to_bits())
    }

    #[inline(always)]
    unsafe fn widen<L: Lanes>(from: &[Self], to: &mut [f32]) {
        let (mut from, mut to) = (from.chunks_exact(L::LANES), to.chunks_exact_mut(L::LANES));
        for (from, to) in from.by_ref().zip(to.by_ref()) {
            // SAFETY: the caller's promise; both hold LANES elements, and an f16 is its bits.
            unsafe { L::load_f16(from.as_ptr().cast()).store(to.as_mut_ptr()) };
        }
        for (from, to) in from.remainder().iter().zip(to.into_remainder()) {
            *to = from.wide();
        }
    }

    #[inline(always)]
    unsafe fn store<L: Lanes>(values: &Row, out: &mut [Self; HEAD_DIM]) {
        let (from, to) = (values.as_ptr(), out.as_mut_ptr().cast::<u16>());
        for i in (0..HEAD_DIM).step_by(L::LANES) {
            // SAFETY: as in `widen`.
            unsafe { L::load(from.add(i)).canonical().store_f16(to.add(i)) };
        }
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        bf16_bits_to_f32(self.to_bits())
    }

    #[inline(always)]
    unsafe fn widen<L: Lanes>(from: &[Self], to: &mut [f32]) {
        for (from, to) in from.iter().zip(to) {
            *to = from.wide();
        }
    }

    #[inline(always)]
    unsafe fn store<L: Lanes>(values: &Row, out: &mut [Self; HEAD_DIM]) {
        for i in 0..HEAD_DIM {
            out[i] = bf16::from_bits(f32_to_bf16_bits(values[i]));
        }
    }
}
