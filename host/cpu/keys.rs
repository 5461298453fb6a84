//! The keys of a chunk of scores at once, for each instruction set.

use kernels_gpu::topk::rule::key;

/// Scores of a chunk: a vector at its widest.
pub(super) const CHUNK: usize = 16;

/// The bits of a chunk's scores.
pub(super) type Chunk = [u32; CHUNK];

/// Of the keys that [`key`] gives to the scores of a chunk.
///
/// # Safety
/// As [`Lanes`](super::lanes::Lanes); and denormals must be kept.
pub(super) trait Keys {
    /// The largest.
    unsafe fn max_key(scores: &Chunk) -> u32;
    /// A bit for each that is larger than `threshold`, and a bit for each that is equal.
    unsafe fn compare(scores: &Chunk, threshold: u32) -> (u32, u32);
}

impl<const N: usize> Keys for [f32; N] {
    #[inline(always)]
    unsafe fn max_key(scores: &Chunk) -> u32 {
        let mut keys = [0; CHUNK];
        for i in 0..CHUNK {
            keys[i] = key(scores[i]);
        }
        for distance in [8, 4, 2, 1] {
            for i in 0..distance {
                keys[i] = keys[i].max(keys[i + distance]);
            }
        }
        keys[0]
    }

    #[inline(always)]
    unsafe fn compare(scores: &Chunk, threshold: u32) -> (u32, u32) {
        let (mut higher, mut equal) = (0, 0);
        for i in 0..CHUNK {
            let key = key(scores[i]);
            higher |= u32::from(key > threshold) << i;
            equal |= u32::from(key == threshold) << i;
        }
        (higher, equal)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHUNK, Chunk, Keys};
    use std::arch::x86_64::*;

    const SIGN: i32 = i32::MIN;

    /// # Safety
    /// As [`Keys`].
    #[inline(always)]
    unsafe fn keys512(scores: &Chunk) -> __m512i {
        // SAFETY: the caller's promise; the vector is the chunk.
        unsafe {
            // The sum is +0 for -0, and any other number itself.
            let score = _mm512_add_ps(_mm512_loadu_ps(scores.as_ptr().cast()), _mm512_setzero_ps());
            let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(score, score);
            let bits = _mm512_castps_si512(score);
            let flip = _mm512_or_si512(_mm512_srai_epi32::<31>(bits), _mm512_set1_epi32(SIGN));
            _mm512_maskz_xor_epi32(number, bits, flip)
        }
    }

    impl Keys for __m512 {
        #[inline(always)]
        unsafe fn max_key(scores: &Chunk) -> u32 {
            // SAFETY: the caller's promise.
            unsafe {
                let keys = keys512(scores);
                let (low, high) = (_mm512_castsi512_si256(keys), _mm512_extracti64x4_epi64::<1>(keys));
                largest(_mm256_max_epu32(low, high))
            }
        }

        #[inline(always)]
        unsafe fn compare(scores: &Chunk, threshold: u32) -> (u32, u32) {
            // SAFETY: the caller's promise.
            unsafe {
                let (keys, threshold) = (keys512(scores), _mm512_set1_epi32(threshold as i32));
                let higher = _mm512_cmpgt_epu32_mask(keys, threshold);
                (higher.into(), _mm512_cmpeq_epu32_mask(keys, threshold).into())
            }
        }
    }

    /// The keys of half `half` of the chunk.
    ///
    /// # Safety
    /// As [`Keys`].
    #[inline(always)]
    unsafe fn keys256(scores: &Chunk, half: usize) -> __m256i {
        // SAFETY: the caller's promise; the vector is half the chunk.
        unsafe {
            // As above.
            let score = _mm256_loadu_ps(scores.as_ptr().add(half * CHUNK / 2).cast());
            let score = _mm256_add_ps(score, _mm256_setzero_ps());
            let number = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_ORD_Q>(score, score));
            let bits = _mm256_castps_si256(score);
            let flip = _mm256_or_si256(_mm256_srai_epi32::<31>(bits), _mm256_set1_epi32(SIGN));
            _mm256_and_si256(number, _mm256_xor_si256(bits, flip))
        }
    }

    impl Keys for __m256 {
        #[inline(always)]
        unsafe fn max_key(scores: &Chunk) -> u32 {
            // SAFETY: the caller's promise.
            unsafe { largest(_mm256_max_epu32(keys256(scores, 0), keys256(scores, 1))) }
        }

        #[inline(always)]
        unsafe fn compare(scores: &Chunk, threshold: u32) -> (u32, u32) {
            // SAFETY: the caller's promise.
            unsafe {
                let threshold = _mm256_set1_epi32(threshold as i32);
                // The comparison is of signed words.
                let sign = _mm256_set1_epi32(SIGN);
                let bits = |mask: __m256i| _mm256_movemask_ps(_mm256_castsi256_ps(mask)) as u32;
                let (mut higher, mut equal) = (0, 0);
                for half in 0..2 {
                    let keys = keys256(scores, half);
                    let above =
                        _mm256_cmpgt_epi32(_mm256_xor_si256(keys, sign), _mm256_xor_si256(threshold, sign));
                    higher |= bits(above) << (half * CHUNK / 2);
                    equal |= bits(_mm256_cmpeq_epi32(keys, threshold)) << (half * CHUNK / 2);
                }
                (higher, equal)
            }
        }
    }

    /// # Safety
    /// As [`Keys`].
    #[inline(always)]
    unsafe fn largest(keys: __m256i) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            let four = _mm_max_epu32(_mm256_castsi256_si128(keys), _mm256_extracti128_si256::<1>(keys));
            let two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
            let one = _mm_max_epu32(two, _mm_shuffle_epi32::<1>(two));
            _mm_cvtsi128_si32(one) as u32
        }
    }
}
