//! The exact block top-k of sparse attention: block scores, and the kernels that select from them.

#[cfg(any(feature = "sm_90", not(target_arch = "nvptx64")))]
pub mod cluster;
pub mod digits;
pub mod histogram;
pub mod original;
pub mod register;
pub mod rule;
pub mod scores;
pub mod select;
pub mod sieve;
pub mod split;
pub mod wide;
