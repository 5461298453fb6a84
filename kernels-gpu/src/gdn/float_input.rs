//! Reading an input whose type is an argument.

use crate::params::OutNormArgs;
use cuda_std::float::{bf16_bits_to_f32, f16_bits_to_f32};
use cuda_std::prelude::*;

/// Element `index` of `words`, whose elements are of `dtype`.
///
/// # Safety
/// The element lies in a live buffer that nobody writes.
#[inline(always)]
#[track_caller]
pub(super) unsafe fn read_float(words: Global<u16>, dtype: u32, index: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            OutNormArgs::F32 => words.cast::<f32>().read(index),
            OutNormArgs::BF16 => bf16_bits_to_f32(words.read(index)),
            _ => f16_bits_to_f32(words.read(index)),
        }
    }
}
