//! The shape of a DeltaNet call, checked once: what is made here cannot be wrong further in.

use super::dtype::{Dtype, Floats};
use crate::error::{Error, Result};
use std::ops::Range;

/// Rows (key dim) and columns (value dim) of a head's state; the only head size.
pub const HEAD_DIM: usize = kernels_gpu::gdn::HEAD_DIM;

/// Value heads of a layer at the most.
const MOST_VALUE_HEADS: usize = 1024;

/// Which key head a value head reads. Taking the wrong one gives plausible wrong numbers, so there is no default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadMap {
    /// Value head h reads key head `h % HK` (llama.cpp).
    Tiled,
    /// Value head h reads key head `h / (HV / HK)` (Hugging Face, vLLM, FLA).
    Grouped,
}

/// Where a state's cells lie; rows are the key dim, columns the value dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateLayout {
    /// `[HV][128 rows][128 columns]` (FLA, Hugging Face).
    HeadMajor,
    /// `[128 rows][HV][128 columns]` (llama.cpp's engine family).
    RowMajor,
}

/// Key and value heads of a layer, and how they go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    key: usize,
    value: usize,
    map: HeadMap,
}

impl Heads {
    /// `key` in 1..=64; `value` a multiple of it, at most 1024. Errors: `Heads`.
    pub fn new(key: usize, value: usize, map: HeadMap) -> Result<Self> {
        let accepted = |text: &str| Error::Heads { key, value, accepted: text.into() };
        if !(1..=64).contains(&key) {
            return Err(accepted("1 to 64 key heads"));
        }
        if value == 0 || !value.is_multiple_of(key) {
            return Err(accepted("a number of value heads that is a positive multiple of the key heads"));
        }
        if value > MOST_VALUE_HEADS {
            return Err(accepted("at most 1024 value heads"));
        }
        Ok(Self { key, value, map })
    }

    pub fn key(self) -> usize {
        self.key
    }

    pub fn value(self) -> usize {
        self.value
    }

    pub fn map(self) -> HeadMap {
        self.map
    }

    /// Value heads that share a key head.
    pub fn per_key(self) -> usize {
        self.value / self.key
    }

    /// The key head that value head `value` reads.
    pub fn key_of(self, value: usize) -> usize {
        match self.map {
            HeadMap::Tiled => value % self.key,
            HeadMap::Grouped => value / self.per_key(),
        }
    }

    /// `(a, b)` such that the value heads of key head `j` are `j * a + i * b` for `i` in `0..per_key`.
    pub(crate) fn strides(self) -> (usize, usize) {
        match self.map {
            HeadMap::Tiled => (1, self.key),
            HeadMap::Grouped => (self.per_key(), 1),
        }
    }

    /// Channels of the convolution: all q heads, all k heads, all v heads.
    pub fn channels(self) -> usize {
        (2 * self.key + self.value) * HEAD_DIM
    }

    /// Where q, k and v start in a token's channels.
    pub fn qkv_offsets(self) -> [usize; 3] {
        [0, self.key * HEAD_DIM, 2 * self.key * HEAD_DIM]
    }

    /// Elements of a state, in either layout.
    pub fn state_len(self) -> usize {
        self.value * HEAD_DIM * HEAD_DIM
    }
}

impl StateLayout {
    /// `(row stride, head stride)` in elements.
    pub(crate) fn strides(self, heads: Heads) -> (usize, usize) {
        match self {
            StateLayout::HeadMajor => (HEAD_DIM, HEAD_DIM * HEAD_DIM),
            StateLayout::RowMajor => (heads.value() * HEAD_DIM, HEAD_DIM),
        }
    }
}

/// Rows of `[tokens][heads][128]` f32 with a stride between tokens, so that q, k and v may lie in one packed buffer.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
}

impl<'a> Rows<'a> {
    /// Rows without gaps: the stride is `heads * 128`.
    pub fn packed(data: &'a [f32], heads: usize) -> Self {
        Self { data, stride: heads.saturating_mul(HEAD_DIM) }
    }

    /// Rows whose tokens lie `stride` elements apart; `data` starts at the first head of token 0.
    pub fn strided(data: &'a [f32], stride: usize) -> Self {
        Self { data, stride }
    }

    /// Whether all of `tokens * heads` rows are there.
    fn check(&self, tensor: &str, tokens: usize, heads: usize) -> Result<()> {
        let width = heads * HEAD_DIM;
        check_spaced(tensor, self.data.len(), tokens, self.stride, width, &format!("{heads} heads of 128"))
    }
}

/// The inputs of the recurrence, in f32 on the host. q and k are l2-normalised already and not scaled.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceInputs<'a> {
    /// `[T][HK][128]`.
    pub q: Rows<'a>,
    /// `[T][HK][128]`.
    pub k: Rows<'a>,
    /// `[T][HV][128]`.
    pub v: Rows<'a>,
    /// `[T][HV]`: the log of the decay, at most 0.
    pub gate: &'a [f32],
    /// `[T][HV]`.
    pub beta: &'a [f32],
}

/// A recurrence call whose buffers fit its shape.
#[derive(Debug)]
pub struct Recurrence<'a> {
    pub(crate) heads: Heads,
    pub(crate) layout: StateLayout,
    pub(crate) tokens: usize,
    pub(crate) inputs: RecurrenceInputs<'a>,
    pub(crate) state: &'a mut [f32],
    pub(crate) y: &'a mut [f32],
}

impl<'a> Recurrence<'a> {
    /// `state` `[HV][128][128]` or as `layout` says: read, and replaced by the state after the last token; `y`
    /// `[tokens][HV][128]`: written.
    ///
    /// Errors: `Argument` for 2^31 tokens or more, `Stride`, `Length`.
    pub fn new(
        heads: Heads,
        layout: StateLayout,
        tokens: usize,
        inputs: RecurrenceInputs<'a>,
        state: &'a mut [f32],
        y: &'a mut [f32],
    ) -> Result<Self> {
        check_tokens(tokens)?;
        inputs.q.check("q", tokens, heads.key())?;
        inputs.k.check("k", tokens, heads.key())?;
        inputs.v.check("v", tokens, heads.value())?;
        check_len("gate", inputs.gate.len(), &[tokens, heads.value()])?;
        check_len("beta", inputs.beta.len(), &[tokens, heads.value()])?;
        check_len("state", state.len(), &[heads.value(), HEAD_DIM, HEAD_DIM])?;
        check_len("y", y.len(), &[tokens, heads.value(), HEAD_DIM])?;
        Ok(Self { heads, layout, tokens, inputs, state, y })
    }
}

/// The activation of the output gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormAct {
    /// `sigmoid(z)`.
    Sigmoid,
    /// `silu(z)`: Hugging Face's Qwen3-Next and Qwen3.5.
    Silu,
}

/// The normed output, `[tokens][stride]` with head h, column c at `h * 128 + c`.
#[derive(Debug)]
pub enum NormOut<'a> {
    F16(&'a mut [half::f16]),
    Bf16(&'a mut [half::bf16]),
    F32(&'a mut [f32]),
}

impl NormOut<'_> {
    /// In elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            NormOut::F16(out) => out.len(),
            NormOut::Bf16(out) => out.len(),
            NormOut::F32(out) => out.len(),
        }
    }

    pub fn dtype(&self) -> Dtype {
        match self {
            NormOut::F16(_) => Dtype::F16,
            NormOut::Bf16(_) => Dtype::Bf16,
            NormOut::F32(_) => Dtype::F32,
        }
    }

    /// As they lie in memory.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            NormOut::F16(out) => bytemuck::cast_slice_mut(out),
            NormOut::Bf16(out) => bytemuck::cast_slice_mut(out),
            NormOut::F32(out) => bytemuck::cast_slice_mut(out),
        }
    }

    /// The elements of `range`, which are there.
    pub(crate) fn slice(&mut self, range: Range<usize>) -> NormOut<'_> {
        match self {
            NormOut::F16(out) => NormOut::F16(&mut out[range]),
            NormOut::Bf16(out) => NormOut::Bf16(&mut out[range]),
            NormOut::F32(out) => NormOut::F32(&mut out[range]),
        }
    }
}

/// An out norm call whose buffers fit its shape.
#[derive(Debug)]
pub struct OutNorm<'a> {
    pub(crate) value_heads: usize,
    pub(crate) tokens: usize,
    pub(crate) y: &'a [f32],
    pub(crate) z: Floats<'a>,
    pub(crate) weight: &'a [f32],
    pub(crate) act: NormAct,
    pub(crate) eps: f32,
    pub(crate) out: NormOut<'a>,
    pub(crate) out_stride: usize,
}

impl<'a> OutNorm<'a> {
    /// `y` and `z` `[tokens][HV][128]`, `weight` `[128]` and finite (it is shared by the heads), `eps` finite and not negative;
    /// `out` `[tokens][out_stride]` with `out_stride >= HV * 128`; only the `HV * 128` elements of a row are written.
    ///
    /// Errors: `Argument` (eps, or 2^31 tokens or more), `Length`, `NonFinite`, `Stride`.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        value_heads: usize,
        tokens: usize,
        y: &'a [f32],
        z: impl Into<Floats<'a>>,
        weight: &'a [f32],
        act: NormAct,
        eps: f32,
        out: NormOut<'a>,
        out_stride: usize,
    ) -> Result<Self> {
        let z = z.into();
        check_tokens(tokens)?;
        check_value_heads(value_heads)?;
        check_len("y", y.len(), &[tokens, value_heads, HEAD_DIM])?;
        check_len("z", z.len(), &[tokens, value_heads, HEAD_DIM])?;
        check_norm_weight(weight)?;
        check_eps("eps", eps)?;
        check_stride("out", out_stride, value_heads)?;
        check_len("out", out.len(), &[tokens, out_stride])?;
        Ok(Self { value_heads, tokens, y, z, weight, act, eps, out, out_stride })
    }
}

/// An epsilon must be a finite number that is not negative.
pub(crate) fn check_eps(argument: &str, eps: f32) -> Result<()> {
    if eps.is_finite() && eps >= 0.0 {
        return Ok(());
    }
    Err(Error::argument(argument, eps, "a finite number that is not negative"))
}

pub(crate) fn check_value_heads(value_heads: usize) -> Result<()> {
    if (1..=MOST_VALUE_HEADS).contains(&value_heads) {
        return Ok(());
    }
    Err(Error::argument("value_heads", value_heads, "1 to 1024"))
}

/// The norm's weight is shared by the heads, so that a NaN in it would reach them all.
pub(super) fn check_norm_weight(weight: &[f32]) -> Result<()> {
    check_len("norm_weight", weight.len(), &[HEAD_DIM])?;
    match weight.iter().position(|w| !w.is_finite()) {
        None => Ok(()),
        Some(index) => Err(Error::NonFinite { tensor: "norm_weight".into(), index, found: weight[index] }),
    }
}

/// A call takes fewer than 2^31 tokens: a CUDA grid has no more blocks.
pub(crate) fn check_tokens(tokens: usize) -> Result<()> {
    if tokens <= i32::MAX as usize {
        return Ok(());
    }
    Err(Error::argument("tokens", tokens, "at most 2147483647 in a call"))
}

/// Tokens must lie at least a row of heads apart.
pub(crate) fn check_stride(tensor: &str, stride: usize, heads: usize) -> Result<()> {
    check_width(tensor, stride, heads.saturating_mul(HEAD_DIM), &format!("{heads} heads of 128"))
}

/// Tokens must lie at least `width` elements apart; `what` says in words what these are.
fn check_width(tensor: &str, stride: usize, width: usize, what: &str) -> Result<()> {
    if stride >= width {
        return Ok(());
    }
    let accepted = format!("at least {width} ({what})");
    Err(Error::Stride { tensor: tensor.into(), found: stride, accepted })
}

/// Whether the `width` elements of each of `tokens` are there, tokens `stride` apart; `what` says in words what these are.
pub(super) fn check_spaced(
    tensor: &str,
    found: usize,
    tokens: usize,
    stride: usize,
    width: usize,
    what: &str,
) -> Result<()> {
    check_width(tensor, stride, width, what)?;
    let needed = match tokens {
        0 => Some(0),
        _ => (tokens - 1).checked_mul(stride).and_then(|n| n.checked_add(width)),
    };
    match needed {
        Some(needed) if needed <= found => Ok(()),
        _ => Err(Error::Length {
            tensor: tensor.into(),
            found,
            accepted: format!(
                "{} ({tokens} tokens, {stride} elements apart, {what})",
                needed.map_or("more than fit in memory".into(), |n| format!("{n} or more")),
            ),
        }),
    }
}

pub(super) fn check_len(tensor: &str, found: usize, shape: &[usize]) -> Result<()> {
    let needed = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    if needed == Some(found) {
        return Ok(());
    }
    let product = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" * ");
    Err(Error::Length { tensor: tensor.into(), found, accepted: format!("exactly {product} elements") })
}
