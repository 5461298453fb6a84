//! The device side's standard library, with the API names of Rust-CUDA's `cuda_std`, on rustc's own
//! `nvptx64-nvidia-cuda` back end.
//!
//! On `nvptx64` everything convergent (barriers, shuffles, votes, match, redux) is an LLVM intrinsic: inline assembly is
//! never convergent for LLVM, which may clone it. On any other target the same names run on the `simt` executor, so that
//! a kernel's source is tested where there is no GPU.

#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(asm_experimental_arch, link_llvm_intrinsics, stdarch_nvptx),
    allow(internal_features)
)]

// A module for sm_70 that asks for these does not build.
#[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod async_copy;
pub mod atomic;
#[cfg(any(feature = "sm_90", not(target_arch = "nvptx64")))]
pub mod cluster;
pub mod fence;
pub mod float;
pub mod global;
pub mod hint;
pub mod shared;
pub mod thread;
pub mod warp;

pub use cuda_std_macros::kernel;

/// Four f32 that move as one 16-byte access.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct F32x4(pub [f32; 4]);

/// Four 32-bit words that move as one 16-byte access.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct U32x4(pub [u32; 4]);

/// Two f32 that move as one 8-byte access.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct F32x2(pub [f32; 2]);

/// Four 16-bit words that move as one 8-byte access.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct U16x4(pub [u16; 4]);

/// What a kernel's source needs in scope.
pub mod prelude {
    #[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
    pub use crate::async_copy;
    #[cfg(any(feature = "sm_90", not(target_arch = "nvptx64")))]
    pub use crate::cluster;
    pub use crate::global::{Global, GlobalMut};
    pub use crate::shared::Shared;
    pub use crate::{
        F32x2, F32x4, U16x4, U32x4, atomic, fence, float, hint, kernel, shared_array, thread, warp,
    };
}

/// A panic on the device is a trap: the launch fails with `CUDA_ERROR_LAUNCH_FAILED`.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: trap has no precondition.
    unsafe { core::arch::nvptx::trap() }
}
