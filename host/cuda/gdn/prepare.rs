//! What stands before the recurrence, on device memory: gates, conv and l2norm.

use kernels_gpu::gdn::conv;
use kernels_gpu::params::{Global, GlobalMut, PrepareArgs};

use super::{Gdn, check_address};
use crate::cuda::Stream;
use crate::error::{Error, Result};
use crate::gdn::{self, Dtype, HEAD_DIM, Heads};

/// Rows of f32, f16 or bf16 in device memory, tokens `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFloats {
    /// Device address of token 0.
    pub address: u64,
    pub dtype: Dtype,
    /// In elements.
    pub stride: usize,
}

/// Gates, conv and l2norm of a chunk on device memory. Addresses without a type are of f32.
#[derive(Clone, Copy, Debug)]
pub struct DevicePrepare {
    pub heads: Heads,
    pub tokens: usize,
    /// `[T][C]`, rows aligned to 4 elements: all q heads, all k heads, all v heads.
    pub qkv: DeviceFloats,
    /// `[C][4]`, 16-byte aligned; tap 3 multiplies the current token.
    pub conv_weight: u64,
    /// `[C]`, 16-byte aligned.
    pub conv_bias: Option<u64>,
    /// `[C][3]`, 16-byte aligned, oldest first; read and written.
    pub conv_state: u64,
    /// `[T][HV]`.
    pub a: DeviceFloats,
    /// `[T][HV]`.
    pub b: DeviceFloats,
    /// `[HV]`.
    pub dt_bias: u64,
    /// `[HV]`: `-exp(A_log)`.
    pub a_coef: u64,
    /// Added to the sum of the squares of a q or k row; finite and not negative.
    pub l2_eps: f32,
    /// `[T][C]`, 16-byte aligned, written.
    pub h: u64,
    /// `[T][HV]`, written.
    pub gate: u64,
    /// `[T][HV]`, written.
    pub beta: u64,
}

/// A kernel of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrepareStep {
    /// Everything in one launch: what the plan takes.
    All,
    Conv,
    L2Norm,
    Gates,
}

impl PrepareStep {
    /// The PTX entry.
    pub fn entry(self) -> &'static str {
        match self {
            PrepareStep::All => "prepare",
            PrepareStep::Conv => "conv",
            PrepareStep::L2Norm => "l2norm",
            PrepareStep::Gates => "gates",
        }
    }
}

impl DevicePrepare {
    /// Errors: `Argument` (l2_eps, tokens), `Stride`, `Alignment`.
    pub(super) fn check(&self) -> Result<()> {
        gdn::check_tokens(self.tokens)?;
        gdn::check_eps("l2_eps", self.l2_eps)?;
        gdn::check_stride("qkv", self.qkv.stride, self.heads.channels() / HEAD_DIM)?;
        if !self.qkv.stride.is_multiple_of(4) {
            let accepted = "a multiple of 4".into();
            return Err(Error::Stride { tensor: "qkv".into(), found: self.qkv.stride, accepted });
        }
        for (tensor, floats) in [("a", self.a), ("b", self.b)] {
            if floats.stride < self.heads.value() {
                let accepted = format!("{} or more, a token's value heads", self.heads.value());
                return Err(Error::Stride { tensor: tensor.into(), found: floats.stride, accepted });
            }
        }
        if self.tokens == 0 {
            return Ok(());
        }
        for (tensor, address, bytes) in [
            ("qkv", self.qkv.address, 4 * self.qkv.dtype.size()),
            ("conv_weight", self.conv_weight, 16),
            ("conv_bias", self.conv_bias.unwrap_or(16), 16),
            ("conv_state", self.conv_state, 16),
            ("h", self.h, 16),
            ("a", self.a.address, self.a.dtype.size()),
            ("b", self.b.address, self.b.dtype.size()),
            ("dt_bias", self.dt_bias, 4),
            ("a_coef", self.a_coef, 4),
            ("gate", self.gate, 4),
            ("beta", self.beta, 4),
        ] {
            check_address(tensor, address, bytes)?;
        }
        Ok(())
    }

    /// The record that the kernels take.
    pub(crate) fn args(&self) -> PrepareArgs {
        PrepareArgs {
            qkv: Global::from_address(self.qkv.address),
            conv_weight: Global::from_address(self.conv_weight),
            conv_bias: Global::from_address(self.conv_bias.unwrap_or(0)),
            conv_state: GlobalMut::from_address(self.conv_state),
            h: GlobalMut::from_address(self.h),
            a: Global::from_address(self.a.address),
            b: Global::from_address(self.b.address),
            dt_bias: Global::from_address(self.dt_bias),
            a_coef: Global::from_address(self.a_coef),
            gate: GlobalMut::from_address(self.gate),
            beta: GlobalMut::from_address(self.beta),
            tokens: self.tokens as u64,
            qkv_stride: self.qkv.stride as u64,
            a_stride: self.a.stride as u64,
            b_stride: self.b.stride as u64,
            key_heads: self.heads.key() as u32,
            value_heads: self.heads.value() as u32,
            l2_eps: self.l2_eps,
            qkv_dtype: self.qkv.dtype.code(),
            a_dtype: self.a.dtype.code(),
            b_dtype: self.b.dtype.code(),
        }
    }

    /// The blocks of a launch.
    pub(crate) fn grid(&self, step: PrepareStep) -> [u32; 3] {
        let tiles = self.tokens.div_ceil(conv::TILE) as u32;
        let blocks = |heads: usize| heads.div_ceil(conv::HEADS_PER_BLOCK) as u32;
        let (key, value) = (self.heads.key(), self.heads.value());
        match step {
            PrepareStep::All => [tiles, blocks(2 * key + value) + 1, 1],
            PrepareStep::Conv => [tiles, blocks(2 * key + value), 1],
            PrepareStep::L2Norm => [self.tokens as u32, blocks(2 * key), 1],
            PrepareStep::Gates => [tiles, 1, 1],
        }
    }
}

impl Gdn {
    /// Queues gates, conv and l2norm on the stream. No tokens: no launch, the history stays.
    ///
    /// Errors: `Stride`, `Alignment`, `Argument` (l2_eps), or the driver's own.
    ///
    /// # Safety
    /// The addresses are of live device memory of the sizes that [`DevicePrepare`] states, on this device; h, gate, beta and conv_state
    /// overlap nothing; and nobody else touches them until the kernel has run.
    pub unsafe fn prepare(&self, stream: &Stream, call: &DevicePrepare) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.prepare_step(stream, call, PrepareStep::All) }
    }

    /// One step of it, as a kernel of its own: the same bits. l2norm reads and writes the q and k rows of h.
    ///
    /// # Safety
    /// As [`prepare`](Self::prepare).
    pub unsafe fn prepare_step(
        &self,
        stream: &Stream,
        call: &DevicePrepare,
        step: PrepareStep,
    ) -> Result<()> {
        call.check()?;
        if call.tokens == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.launch_prepare(stream, call, step) }
    }

    /// # Safety
    /// As [`prepare`](Self::prepare); the call is checked and has tokens.
    pub(super) unsafe fn launch_prepare(
        &self,
        stream: &Stream,
        call: &DevicePrepare,
        step: PrepareStep,
    ) -> Result<()> {
        let kernel = self.kernel(step.entry())?;
        let block = [conv::THREADS as u32, 1, 1];
        // SAFETY: the record is the entry's; the caller's promise about the memory.
        unsafe { kernel.launch_with(stream, call.grid(step), block, 0, &call.args()) }
    }
}
