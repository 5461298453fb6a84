//! keyhead's GPU kernels, and the arithmetic that the CPU backend shares with them.
//!
//! On `nvptx64` this crate becomes the PTX modules. On the host target the same source runs on the SIMT executor, and
//! [`math`], [`params`] and the shape constants are what host and device agree on.

#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, asm_experimental_arch, core_intrinsics),
    allow(internal_features, improper_ctypes_definitions)
)]
// Fixed arrays indexed by a constant range are how a kernel unrolls; iterators over several of them at once read worse.
#![allow(clippy::needless_range_loop)]

pub mod bench;
pub mod gdn;
pub mod math;
pub mod mutation;
pub mod params;
pub mod topk;

/// What 16-bit words mean, for the CPU backend as for the kernels.
pub use cuda_std::float;
