//! The out norm on device memory.

use kernels_gpu::gdn::out_norm;
use kernels_gpu::params::{Global, GlobalMut, OutNormArgs};

use super::{Gdn, check_address};
use crate::cuda::Stream;
use crate::error::Result;
use crate::gdn::{self, Dtype, NormAct};

/// An out norm on device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOutNorm {
    /// 1 to 1024.
    pub value_heads: usize,
    pub tokens: usize,
    /// `[T][HV][128]` f32, 16-byte aligned, read only.
    pub y: u64,
    /// `[T][HV][128]` of `z_dtype`, aligned to 4 elements.
    pub z: u64,
    pub z_dtype: Dtype,
    /// `[128]` f32, 16-byte aligned.
    pub weight: u64,
    pub act: NormAct,
    /// Added to the mean of the squares; finite and not negative.
    pub eps: f32,
    /// `[T][out_stride]` of `out_dtype`, aligned to its elements; the `HV * 128` elements of a row are written.
    pub out: u64,
    /// In elements; at least `HV * 128`.
    pub out_stride: usize,
    pub out_dtype: Dtype,
}

impl DeviceOutNorm {
    /// Errors: `Argument` (eps, tokens, value heads), `Stride`, `Alignment`.
    pub(super) fn check(&self) -> Result<()> {
        gdn::check_eps("eps", self.eps)?;
        gdn::check_value_heads(self.value_heads)?;
        gdn::check_stride("out", self.out_stride, self.value_heads)?;
        gdn::check_tokens(self.tokens)?;
        if self.tokens == 0 {
            return Ok(());
        }
        check_address("y", self.y, 16)?;
        check_address("z", self.z, 4 * self.z_dtype.size())?;
        check_address("norm_weight", self.weight, 16)?;
        check_address("out", self.out, self.out_dtype.size())
    }

    /// The record that `out_norm` takes.
    pub(crate) fn args(&self) -> OutNormArgs {
        OutNormArgs {
            y: GlobalMut::from_address(self.y),
            z: Global::from_address(self.z),
            weight: Global::from_address(self.weight),
            out: GlobalMut::from_address(self.out),
            tokens: self.tokens as u64,
            out_stride: self.out_stride as u64,
            value_heads: self.value_heads as u32,
            eps: self.eps,
            act: match self.act {
                NormAct::Sigmoid => OutNormArgs::SIGMOID,
                NormAct::Silu => OutNormArgs::SILU,
            },
            out_dtype: self.out_dtype.code(),
            z_dtype: self.z_dtype.code(),
        }
    }

    /// The blocks of a launch.
    pub(crate) fn grid(&self) -> [u32; 3] {
        [self.tokens as u32, self.value_heads.div_ceil(out_norm::HEADS_PER_BLOCK) as u32, 1]
    }
}

impl Gdn {
    /// Queues the out norm on the stream. No tokens: no launch.
    ///
    /// Errors: `Stride`, `Alignment`, `Argument` (eps, tokens, value heads), or the driver's own.
    ///
    /// # Safety
    /// The addresses are of live device memory of the sizes that [`DeviceOutNorm`] states, on this device; `out` overlaps
    /// nothing, and nobody else touches it until the kernel has run.
    pub unsafe fn out_norm(&self, stream: &Stream, call: &DeviceOutNorm) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.out_norm_entry(stream, call, "out_norm") }
    }

    /// The variant before, which also stores the f32 result over y; kept for A/B.
    ///
    /// # Safety
    /// As [`out_norm`](Self::out_norm), and y is written too.
    pub unsafe fn out_norm_before(&self, stream: &Stream, call: &DeviceOutNorm) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.out_norm_entry(stream, call, "out_norm_before") }
    }

    unsafe fn out_norm_entry(&self, stream: &Stream, call: &DeviceOutNorm, entry: &str) -> Result<()> {
        call.check()?;
        if call.tokens == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.launch_out_norm(stream, call, entry) }
    }

    /// # Safety
    /// As [`out_norm`](Self::out_norm); the call is checked and has tokens.
    pub(super) unsafe fn launch_out_norm(
        &self,
        stream: &Stream,
        call: &DeviceOutNorm,
        entry: &str,
    ) -> Result<()> {
        let kernel = self.kernel(entry)?;
        // SAFETY: the record is the entry's; the caller's promise about the memory.
        unsafe { kernel.launch_with(stream, call.grid(), [out_norm::THREADS as u32, 1, 1], 0, &call.args()) }
    }
}
