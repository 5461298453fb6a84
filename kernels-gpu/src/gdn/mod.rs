//! The Gated DeltaNet layer's kernels.

mod float_input;
pub mod out_norm;
pub mod recurrence;

/// Rows (key dim) and columns (value dim) of a head's state.
pub const HEAD_DIM: usize = 128;
