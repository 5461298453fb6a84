//! The exact block top-k of sparse attention: shapes checked once, and the plan (which kernel, and why).
//!
//! What is selected, and how a block's score is summed, heads [`kernels_gpu::topk::rule`].

mod plan;
mod shape;

pub use kernels_gpu::topk::rule::{BLOCK_CELLS, INDEX_DIM, INDEX_HEADS, Step};
pub use plan::{Device, Kernel, Plan, Request, Switches};
pub use shape::{Scores, Topk, TopkShape};

/// The width of the engine that the rule comes from: 512 blocks, and what a tail can have.
pub const WIDTH: usize = 2048 + BLOCK_CELLS as usize - 1;
