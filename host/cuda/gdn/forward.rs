//! The whole path on device memory: gates, conv, l2norm, recurrence, out norm.

use kernels_gpu::params::{GlobalMut, HeadsNormArgs};

use super::{DeviceFloats, DeviceOutNorm, DevicePrepare, DeviceRecurrence, DeviceRows, Gdn, PrepareStep};
use crate::cuda::{Device, DeviceBuffer, Stream};
use crate::error::{Error, Result};
use crate::gdn::{Dtype, ForwardOptions, ForwardPlan, Heads, StateLayout, Variant};

/// A layer's own numbers, device addresses of f32.
#[derive(Clone, Copy, Debug)]
pub struct DeviceWeights {
    /// `[C][4]`, 16-byte aligned; tap 3 is the current token's.
    pub conv_weight: u64,
    /// `[C]`, 16-byte aligned.
    pub conv_bias: Option<u64>,
    /// `[HV]`.
    pub dt_bias: u64,
    /// `[HV]`: `-exp(A_log)`, not positive.
    pub a_coef: u64,
    /// `[128]`, 16-byte aligned.
    pub norm_weight: u64,
}

/// A call of the whole path on device memory. `C` is [`Heads::channels`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceForward {
    pub heads: Heads,
    pub tokens: usize,
    /// `[T][C]`, rows aligned to 4 elements: all q heads, all k heads, all v heads.
    pub qkv: DeviceFloats,
    /// `[T][HV]`: the decay, before softplus.
    pub a: DeviceFloats,
    /// `[T][HV]`: beta, before sigmoid.
    pub b: DeviceFloats,
    /// `[T][HV][128]` of `z_dtype`, aligned to 4 elements.
    pub z: u64,
    pub z_dtype: Dtype,
    pub weights: DeviceWeights,
    pub options: ForwardOptions,
    /// `[C][3]` f32, 16-byte aligned, oldest first: read, and replaced.
    pub conv_state: u64,
    /// `HV * 128 * 128` elements of f32: read, and replaced.
    pub state: u64,
    pub layout: StateLayout,
    /// `[T][HV][128]` f32, 16-byte aligned, written: what the recurrence gives, before the norm.
    pub y: u64,
    /// `[T][out_stride]` of `out_dtype`, written.
    pub out: u64,
    /// In elements; at least `HV * 128`.
    pub out_stride: usize,
    pub out_dtype: Dtype,
}

/// Device memory between the steps of [`Gdn::forward`], for calls of some number of tokens. Keep it: the calls allocate nothing. Two
/// calls at the same time need two.
pub struct Workspace {
    heads: Heads,
    tokens: usize,
    h: DeviceBuffer<f32>,
    gate: DeviceBuffer<f32>,
    beta: DeviceBuffer<f32>,
}

impl Workspace {
    /// For calls of `heads` and at most `tokens`. Errors: `DeviceMemory`, or the driver's own.
    pub fn new(device: &Device, heads: Heads, tokens: usize) -> Result<Workspace> {
        let alloc = |what: &str, row: usize| DeviceBuffer::alloc(device, what, tokens.saturating_mul(row));
        Ok(Workspace {
            heads,
            tokens,
            h: alloc("the convolution's output", heads.channels())?,
            gate: alloc("the gates", heads.value())?,
            beta: alloc("the betas", heads.value())?,
        })
    }

    /// Its device memory in bytes.
    pub fn bytes(&self) -> usize {
        self.h.bytes() + self.gate.bytes() + self.beta.bytes()
    }

    fn check(&self, device: &Device, call: &DeviceForward) -> Result<()> {
        device.check_own("workspace", self.h.device())?;
        if self.heads == call.heads && call.tokens <= self.tokens {
            return Ok(());
        }
        let made =
            |heads: Heads, tokens| format!("{}/{} heads and {tokens} tokens", heads.key(), heads.value());
        let accepted = format!("one for {} or more, by the call", made(call.heads, call.tokens));
        Err(Error::argument("workspace", format!("for {}", made(self.heads, self.tokens)), accepted))
    }
}

impl DeviceForward {
    pub(crate) fn prepare(&self, h: u64, gate: u64, beta: u64) -> DevicePrepare {
        let DeviceWeights { conv_weight, conv_bias, dt_bias, a_coef, .. } = self.weights;
        DevicePrepare {
            heads: self.heads,
            tokens: self.tokens,
            qkv: self.qkv,
            conv_weight,
            conv_bias,
            conv_state: self.conv_state,
            a: self.a,
            b: self.b,
            dt_bias,
            a_coef,
            l2_eps: self.options.l2_eps,
            h,
            gate,
            beta,
        }
    }

    pub(crate) fn recurrence(&self, h: u64, gate: u64, beta: u64) -> DeviceRecurrence {
        let [q, k, v] = self.heads.qkv_offsets().map(|offset| DeviceRows {
            address: h + (offset * size_of::<f32>()) as u64,
            stride: self.heads.channels(),
        });
        DeviceRecurrence {
            heads: self.heads,
            tokens: self.tokens,
            q,
            k,
            v,
            gate,
            beta,
            state: self.state,
            layout: self.layout,
            y: self.y,
        }
    }

    pub(crate) fn out_norm(&self) -> DeviceOutNorm {
        DeviceOutNorm {
            value_heads: self.heads.value(),
            tokens: self.tokens,
            y: self.y,
            z: self.z,
            z_dtype: self.z_dtype,
            weight: self.weights.norm_weight,
            act: self.options.act,
            eps: self.options.eps,
            out: self.out,
            out_stride: self.out_stride,
            out_dtype: self.out_dtype,
        }
    }
}

impl Gdn {
    /// Queues the whole path on the stream, and returns what it launched. No tokens: no launch, state and history stay. Chunk behind
    /// chunk, whatever their sizes, gives the bits of the whole. Nothing is allocated or read back, so the call may be captured
    /// into a graph once its plan is known.
    ///
    /// Errors, before the first launch: `Argument` (eps, l2_eps, tokens, workspace), `Stride`, `Alignment`, `Variant`, or the
    /// driver's own. A fault while a kernel runs is reported by a later call on the stream.
    ///
    /// # Safety
    /// The addresses are of live device memory of the sizes that [`DeviceForward`] states, on this device; what is written overlaps
    /// nothing; and nobody else touches that, or the workspace, until the kernels have run.
    pub unsafe fn forward(
        &self,
        stream: &Stream,
        call: &DeviceForward,
        workspace: &Workspace,
        variant: Option<Variant>,
    ) -> Result<ForwardPlan> {
        workspace.check(self.device(), call)?;
        let (h, gate, beta) = (workspace.h.as_ptr(), workspace.gate.as_ptr(), workspace.beta.as_ptr());
        let prepare = call.prepare(h, gate, beta);
        let recurrence = call.recurrence(h, gate, beta);
        let norm = call.out_norm();
        prepare.check()?;
        recurrence.check()?;
        norm.check()?;
        let plan = ForwardPlan::new(call.heads, self.plan(&recurrence.request(variant))?);
        for launch in &plan.launches {
            self.kernel(&launch.kernel)?;
        }
        if call.tokens == 0 {
            return Ok(plan);
        }
        // SAFETY: the caller's promise, and the workspace is large enough.
        unsafe {
            self.launch_prepare(stream, &prepare, PrepareStep::All)?;
            if plan.variant == Variant::Heads {
                self.launch_heads_norm(stream, &recurrence, &norm)?;
            } else {
                self.launch_recurrence(stream, &recurrence, plan.variant)?;
                self.launch_out_norm(stream, &norm, "out_norm")?;
            }
        }
        Ok(plan)
    }

    /// # Safety
    /// As [`forward`](Self::forward); both calls are checked and have tokens.
    unsafe fn launch_heads_norm(
        &self,
        stream: &Stream,
        recurrence: &DeviceRecurrence,
        norm: &DeviceOutNorm,
    ) -> Result<()> {
        let args = HeadsNormArgs::new(recurrence.args(), norm.args(), GlobalMut::from_address(0));
        let (heads, variant) = (recurrence.heads, Variant::Heads);
        let kernel = self.kernel("heads_norm")?;
        // SAFETY: the record is the entry's; the caller's promise about the memory.
        unsafe { kernel.launch_with(stream, [variant.blocks(heads) as u32, 1, 1], variant.block(), 0, &args) }
    }
}
