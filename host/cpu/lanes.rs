//! A vector of neighbouring columns, for each instruction set.

use super::keys::Keys;
use kernels_gpu::{float, math};

/// Columns that the out norm sums in one tree.
pub(super) const GROUP: usize = 32;

/// Neighbouring f32 columns. An operation works on each of them as the scalar one does, and rounds once.
///
/// # Safety
/// Every function but those of plain arrays needs its instruction set, so all are unsafe: call them only from code that
/// is inlined into a function with the `target_feature`s of the type. Pointers must be good for [`LANES`](Self::LANES)
/// elements, at any alignment.
pub(super) trait Lanes: Copy + Keys {
    const LANES: usize;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// [`math::canonical`].
    unsafe fn canonical(self) -> Self;
    /// `Tree32` of the squares of a group. All lanes of the butterfly end with the same sum, so following the first
    /// is enough: the lower half plus the upper half, down to one.
    unsafe fn tree32_of_squares(group: &[f32; GROUP]) -> f32;
    /// Widens neighbouring f16; every NaN becomes the canonical one.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Stores the f16 of each, rounded to nearest even; overflow is infinity, and a NaN must be the canonical one.
    unsafe fn store_f16(self, to: *mut u16);
    /// A hint to bring the cache line of any address into the second-level cache; it never faults. Not into the first:
    /// token strides tend to be multiples of 4 KiB, so the lines would compete with the state for few sets.
    unsafe fn prefetch(from: *const f32);
}

/// Plain arrays, which the compiler turns into what vectors the target has.
impl<const N: usize> Lanes for [f32; N] {
    const LANES: usize = N;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; N]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<Self>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] + b[i])
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] * b[i])
    }

    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        std::array::from_fn(|i| math::fma(self[i], b[i], c[i]))
    }

    #[inline(always)]
    unsafe fn canonical(self) -> Self {
        self.map(math::canonical)
    }

    #[inline(always)]
    unsafe fn tree32_of_squares(group: &[f32; GROUP]) -> f32 {
        let mut sums = group.map(|x| x * x);
        for distance in [16, 8, 4, 2, 1] {
            for i in 0..distance {
                sums[i] += sums[i + distance];
            }
        }
        sums[0]
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u16; N]>().read_unaligned() }.map(float::f16_bits_to_f32)
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // The conversion keeps the top of a canonical NaN: 0x7fff.
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u16; N]>().write_unaligned(self.map(|x| half::f16::from_f32(x).to_bits())) }
    }

    #[inline(always)]
    unsafe fn prefetch(_from: *const f32) {}
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{GROUP, Lanes, math};
    use std::arch::x86_64::*;

    /// Of the conversions to f16: to nearest even, whatever the control register says.
    const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT;

    /// The lower half plus the upper half, down to one.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn fold(x: __m256) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    impl Lanes for __m256 {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller's promise, here and below.
            unsafe { _mm256_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { _mm256_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm256_storeu_ps(to, self) }
        }

        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            unsafe { _mm256_add_ps(self, b) }
        }

        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            unsafe { _mm256_mul_ps(self, b) }
        }

        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            unsafe { _mm256_fmadd_ps(self, b, c) }
        }

        #[inline(always)]
        unsafe fn canonical(self) -> Self {
            unsafe {
                let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self, self);
                _mm256_blendv_ps(self, _mm256_set1_ps(math::CANONICAL_NAN), nan)
            }
        }

        #[inline(always)]
        unsafe fn tree32_of_squares(group: &[f32; GROUP]) -> f32 {
            // SAFETY: the vectors are the group's, in order.
            unsafe {
                let square = |i: usize| {
                    let x = Self::load(group.as_ptr().add(i * Self::LANES));
                    x.mul(x)
                };
                fold(square(0).add(square(2)).add(square(1).add(square(3))))
            }
        }

        #[inline(always)]
        unsafe fn load_f16(from: *const u16) -> Self {
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())).canonical() }
        }

        #[inline(always)]
        unsafe fn store_f16(self, to: *mut u16) {
            unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<ROUND>(self)) }
        }

        #[inline(always)]
        unsafe fn prefetch(from: *const f32) {
            unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
        }
    }

    impl Lanes for __m512 {
        const LANES: usize = 16;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller's promise, here and below.
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self) }
        }

        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            unsafe { _mm512_add_ps(self, b) }
        }

        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            unsafe { _mm512_mul_ps(self, b) }
        }

        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            unsafe { _mm512_fmadd_ps(self, b, c) }
        }

        #[inline(always)]
        unsafe fn canonical(self) -> Self {
            unsafe {
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self, self);
                _mm512_mask_blend_ps(nan, self, _mm512_set1_ps(math::CANONICAL_NAN))
            }
        }

        #[inline(always)]
        unsafe fn tree32_of_squares(group: &[f32; GROUP]) -> f32 {
            // SAFETY: both vectors are the group's.
            unsafe {
                let (low, high) = (Self::load(group.as_ptr()), Self::load(group.as_ptr().add(Self::LANES)));
                let sums = low.mul(low).add(high.mul(high));
                fold(_mm512_castps512_ps256(sums).add(_mm512_extractf32x8_ps::<1>(sums)))
            }
        }

        #[inline(always)]
        unsafe fn load_f16(from: *const u16) -> Self {
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())).canonical() }
        }

        #[inline(always)]
        unsafe fn store_f16(self, to: *mut u16) {
            unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<ROUND>(self)) }
        }

        #[inline(always)]
        unsafe fn prefetch(from: *const f32) {
            unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
        }
    }
}
