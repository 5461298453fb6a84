//! The prompt path of hybrid LLMs: the Gated DeltaNet layer and the exact block top-k of sparse attention, on NVIDIA GPUs and on the
//! CPU, with one set of bits.

pub mod backend;
pub mod bench;
pub mod check;
pub mod cpu;
pub mod cuda;
pub mod error;
pub mod gdn;
pub mod io;
pub mod ptx;
pub mod topk;

pub use backend::Backend;
pub use error::{Error, Result};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
