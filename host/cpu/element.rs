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

#[cfg(test)]
mod tests {
    use super::super::isa::{Isa, Work};
    use super::*;

    struct Widen<'a, T>(&'a [T], &'a mut [f32]);

    impl<T: Element> Work for Widen<'_, T> {
        #[inline(always)]
        unsafe fn run<L: Lanes>(self) {
            // SAFETY: the caller's promise.
            unsafe { T::widen::<L>(self.0, self.1) };
        }
    }

    /// All words, and some behind the last whole vector.
    fn check<T: Element>(from_bits: fn(u16) -> T) {
        let words: Vec<T> = (0..=u16::MAX).chain(0x7bfb..0x7c06).map(from_bits).collect();
        let one_by_one: Vec<u32> = words.iter().map(|word| word.wide().to_bits()).collect();
        for isa in Isa::available() {
            let mut wide = vec![0.0; words.len()];
            isa.run(Widen(&words, &mut wide));
            let wide: Vec<u32> = wide.iter().map(|x| x.to_bits()).collect();
            assert!(wide == one_by_one, "{isa}");
        }
    }

    #[test]
    fn vectors_widen_as_single_elements_do() {
        check(f16::from_bits);
        check(bf16::from_bits);
        assert_eq!(f16::from_bits(0xfd01).wide().to_bits(), 0x7fff_ffff);
        assert_eq!(bf16::from_bits(0xff81).wide().to_bits(), 0xff81_0000);
        assert_eq!(f16::from_bits(1).wide(), 2f32.powi(-24));
    }
}
