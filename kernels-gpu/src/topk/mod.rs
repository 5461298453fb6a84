//! The exact block top-k of sparse attention: block scores, and the kernels that select from them.

pub mod histogram;
pub mod original;
pub mod register;
pub mod rule;
pub mod scores;
pub mod select;
pub mod sieve;
pub mod split;
pub mod wide;
