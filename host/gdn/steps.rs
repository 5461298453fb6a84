//! The steps before the recurrence one by one, each as a call whose buffers fit its shape. [`Forward`](super::Forward) is all of
//! them in one.

use super::dtype::Floats;
use super::shape::{HEAD_DIM, Heads, check_eps, check_len, check_spaced, check_tokens, check_value_heads};
use crate::error::{Error, Result};
use kernels_gpu::math::exp;

/// Taps of the convolution: a token and the three before it.
pub const CONV_TAPS: usize = 4;
/// Earlier tokens that the convolution carries from call to call.
pub const CONV_HISTORY: usize = CONV_TAPS - 1;

/// A number for each token and value head, `[tokens][heads]` with a stride between tokens, so that a and b may lie in one packed
/// buffer.
#[derive(Clone, Copy, Debug)]
pub struct PerHead<'a> {
    pub(crate) data: Floats<'a>,
    pub(crate) stride: usize,
}

impl<'a> PerHead<'a> {
    /// Tokens without gaps: the stride is `value_heads`.
    pub fn packed(data: impl Into<Floats<'a>>, value_heads: usize) -> Self {
        Self { data: data.into(), stride: value_heads }
    }

    /// Tokens `stride` elements apart; `data` starts at the first head of token 0.
    pub fn strided(data: impl Into<Floats<'a>>, stride: usize) -> Self {
        Self { data: data.into(), stride }
    }

    /// a and b of one buffer `[tokens][2 * value_heads]`: of each token first a, then b.
    pub fn pair(ab: impl Into<Floats<'a>>, value_heads: usize) -> (Self, Self) {
        let ab = ab.into();
        let stride = value_heads.saturating_mul(2);
        let b = ab.slice(value_heads.min(ab.len())..ab.len());
        (Self { data: ab, stride }, Self { data: b, stride })
    }

    pub(super) fn check(&self, tensor: &str, tokens: usize, value_heads: usize) -> Result<()> {
        check_spaced(
            tensor,
            self.data.len(),
            tokens,
            self.stride,
            value_heads,
            &format!("{value_heads} heads"),
        )
    }

    /// Of the tokens `from..to`, which are there.
    pub(super) fn tokens(self, from: usize, to: usize) -> Self {
        let end = self.data.len();
        let range = if from == to { 0..0 } else { from * self.stride..end.min(to * self.stride) };
        Self { data: self.data.slice(range), stride: self.stride }
    }
}

/// `gate = softplus(a + dt_bias) * a_coef`, the log of the decay, and `beta = sigmoid(b)`.
#[derive(Debug)]
pub struct Gates<'a> {
    pub(crate) value_heads: usize,
    pub(crate) tokens: usize,
    pub(crate) a: PerHead<'a>,
    pub(crate) b: PerHead<'a>,
    pub(crate) dt_bias: &'a [f32],
    pub(crate) a_coef: &'a [f32],
    pub(crate) gate: &'a mut [f32],
    pub(crate) beta: &'a mut [f32],
}

impl<'a> Gates<'a> {
    /// `dt_bias` and `a_coef` `[value_heads]`, `a_coef = -exp(A_log)`, which is not positive; `gate` and `beta`
    /// `[tokens][value_heads]`: written.
    ///
    /// Errors: `Argument` (value heads, a_coef, or 2^31 tokens or more), `Stride`, `Length`.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        value_heads: usize,
        tokens: usize,
        a: PerHead<'a>,
        b: PerHead<'a>,
        dt_bias: &'a [f32],
        a_coef: &'a [f32],
        gate: &'a mut [f32],
        beta: &'a mut [f32],
    ) -> Result<Self> {
        check_tokens(tokens)?;
        check_value_heads(value_heads)?;
        a.check("a", tokens, value_heads)?;
        b.check("b", tokens, value_heads)?;
        check_len("dt_bias", dt_bias.len(), &[value_heads])?;
        check_len("a_coef", a_coef.len(), &[value_heads])?;
        check_a_coef(a_coef)?;
        check_len("gate", gate.len(), &[tokens, value_heads])?;
        check_len("beta", beta.len(), &[tokens, value_heads])?;
        Ok(Self { value_heads, tokens, a, b, dt_bias, a_coef, gate, beta })
    }
}

/// `-exp(A_log)`, with the same bits on every machine.
pub fn a_coef(a_log: f32) -> f32 {
    -exp(a_log)
}

/// A positive one would make the state grow instead of decay: A_log was given, or exp(A_log).
pub(super) fn check_a_coef(a_coef: &[f32]) -> Result<()> {
    match a_coef.iter().position(|&a| a > 0.0) {
        None => Ok(()),
        Some(index) => {
            let found = format!("{} at index {index}", a_coef[index]);
            Err(Error::argument(
                "a_coef",
                found,
                "numbers that are not positive: -exp(A_log), in some files `ssm_a`",
            ))
        }
    }
}

/// The depthwise causal convolution over four tokens, and silu: `h(t) = silu(bias + sum of weight[i] * x(t - 3 + i))`. Tokens before
/// the call's first come from the carried state, which then holds the call's last three.
#[derive(Debug)]
pub struct Conv<'a> {
    pub(crate) channels: usize,
    pub(crate) tokens: usize,
    pub(crate) qkv: Floats<'a>,
    pub(crate) weight: &'a [f32],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) state: &'a mut [f32],
    pub(crate) h: &'a mut [f32],
}

impl<'a> Conv<'a> {
    /// With `C = heads.channels()`: `qkv` `[tokens][C]`; `weight` `[C][4]`, whose tap 3 is the current token's; `bias` `[C]`; `state`
    /// `[C][3]`, oldest first: read and replaced; `h` `[tokens][C]`: written.
    ///
    /// Errors: `Argument` for 2^31 tokens or more, `Length`.
    pub fn new(
        heads: Heads,
        tokens: usize,
        qkv: impl Into<Floats<'a>>,
        weight: &'a [f32],
        bias: Option<&'a [f32]>,
        state: &'a mut [f32],
        h: &'a mut [f32],
    ) -> Result<Self> {
        let (qkv, channels) = (qkv.into(), heads.channels());
        check_tokens(tokens)?;
        check_len("qkv", qkv.len(), &[tokens, channels])?;
        check_conv_weights(channels, weight, bias)?;
        check_len("conv_state", state.len(), &[channels, CONV_HISTORY])?;
        check_len("h", h.len(), &[tokens, channels])?;
        Ok(Self { channels, tokens, qkv, weight, bias, state, h })
    }
}

pub(super) fn check_conv_weights(channels: usize, weight: &[f32], bias: Option<&[f32]>) -> Result<()> {
    check_len("conv_weight", weight.len(), &[channels, CONV_TAPS])?;
    bias.map_or(Ok(()), |bias| check_len("conv_bias", bias.len(), &[channels]))
}

/// The l2 norm of head rows in place: `x * (1 / sqrt(sum of x * x + eps))`. Other elements of a token stay: of `h[tokens][C]` behind the
/// conv, the first `2 * HK` rows of a token are those of q and k.
#[derive(Debug)]
pub struct L2Norm<'a> {
    pub(crate) rows: usize,
    pub(crate) tokens: usize,
    pub(crate) data: &'a mut [f32],
    pub(crate) stride: usize,
    pub(crate) eps: f32,
}

impl<'a> L2Norm<'a> {
    /// The first `rows` rows of 128 of each token; tokens lie `stride` elements apart. `eps` is finite and not negative.
    ///
    /// Errors: `Argument` (eps, or 2^31 tokens or more), `Stride`, `Length`.
    pub fn new(rows: usize, tokens: usize, data: &'a mut [f32], stride: usize, eps: f32) -> Result<Self> {
        check_tokens(tokens)?;
        check_eps("l2_eps", eps)?;
        let width = rows.saturating_mul(HEAD_DIM);
        check_spaced("h", data.len(), tokens, stride, width, &format!("{rows} rows of 128"))?;
        Ok(Self { rows, tokens, data, stride, eps })
    }
}
