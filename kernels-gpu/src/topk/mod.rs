//! The exact block top-k of sparse attention: block scores, and the kernels that select from them.

pub mod rule;
pub mod sieve;
