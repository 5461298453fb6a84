//! Builds a kernel crate into PTX with rustc's own `nvptx64-nvidia-cuda` back end; the API names are those of Rust-CUDA's
//! `cuda_builder`. No linker, no CUDA toolkit and no nightly is needed: a compiler with `rust-src` is (see [`Compiler`]).
//!
//! ```no_run
//! use cuda_builder::{Compiler, CudaBuilder, NvvmArch};
//!
//! let compiler = Compiler::find().expect("a compiler with rust-src");
//! let module = CudaBuilder::new("kernels").arch(NvvmArch::Compute80).build(&compiler).unwrap();
//! std::fs::write("kernels.ptx", module.text()).unwrap();
//! ```

mod builder;
mod compiler;
pub mod ptx;

pub use builder::{CudaBuilder, CudaBuilderError, NvvmArch};
pub use compiler::Compiler;
