//! The Gated DeltaNet layer's kernels.

pub mod ahead;
pub mod conv;
pub mod gates;
pub mod l2norm;
pub mod out_norm;
pub mod recurrence;
pub mod row;

/// Rows (key dim) and columns (value dim) of a head's state.
pub const HEAD_DIM: usize = 128;
