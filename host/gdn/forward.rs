//! The whole prompt path of a DeltaNet layer in one call: gates, conv, l2norm, recurrence, out norm.

use super::dtype::Floats;
use super::shape::{
    HEAD_DIM, Heads, NormAct, NormOut, StateLayout, check_eps, check_len, check_norm_weight, check_stride,
    check_tokens,
};
use super::steps::{CONV_HISTORY, PerHead, check_a_coef, check_conv_weights};
use crate::error::{Error, Result};
use std::ops::Range;

/// What a layer's projections made of the tokens, in the types that they made it in. `C` is [`Heads::channels`].
#[derive(Clone, Copy, Debug)]
pub struct ForwardInputs<'a> {
    /// `[T][C]`: all q heads, all k heads, all v heads.
    pub qkv: Floats<'a>,
    /// `[T][HV]`: the decay, before softplus.
    pub a: PerHead<'a>,
    /// `[T][HV]`: beta, before sigmoid.
    pub b: PerHead<'a>,
    /// `[T][HV][128]`: the output's gate, before its activation.
    pub z: Floats<'a>,
}

/// A layer's own numbers.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// `[C][4]`; tap 3 is the current token's.
    pub conv_weight: &'a [f32],
    /// `[C]`.
    pub conv_bias: Option<&'a [f32]>,
    /// `[HV]`.
    pub dt_bias: &'a [f32],
    /// `[HV]`: `-exp(A_log)`, not positive.
    pub a_coef: &'a [f32],
    /// `[128]`, finite; the value heads share it.
    pub norm_weight: &'a [f32],
}

/// How a layer is computed, where models differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardOptions {
    pub act: NormAct,
    /// The out norm adds it to the mean of the squares; finite and not negative.
    pub eps: f32,
    /// The l2 norm adds it to the sum of the squares; finite and not negative.
    pub l2_eps: f32,
}

/// What a sequence carries from call to call: read, and replaced by what it is after the last token.
#[derive(Debug)]
pub struct Carried<'a> {
    /// `[C][3]`: the last three tokens of qkv, widened; oldest first.
    pub conv_state: &'a mut [f32],
    /// `[HV][128][128]`, or as `layout` says.
    pub state: &'a mut [f32],
    pub layout: StateLayout,
}

/// What a call writes.
#[derive(Debug)]
pub struct ForwardOutputs<'a> {
    /// `[T][HV][128]`: what the recurrence gives, before the norm.
    pub y: &'a mut [f32],
    /// `[T][out_stride]`; only the `HV * 128` elements of a row are written.
    pub out: NormOut<'a>,
    /// In elements; at least `HV * 128`.
    pub out_stride: usize,
}

/// A call of the whole path whose buffers fit its shape.
#[derive(Debug)]
pub struct Forward<'a> {
    pub(crate) heads: Heads,
    pub(crate) tokens: usize,
    pub(crate) inputs: ForwardInputs<'a>,
    pub(crate) weights: Weights<'a>,
    pub(crate) options: ForwardOptions,
    pub(crate) carried: Carried<'a>,
    pub(crate) outputs: ForwardOutputs<'a>,
}

impl<'a> Forward<'a> {
    /// Shapes are those that the fields state; no tokens are a valid call, which changes nothing.
    ///
    /// Errors: `Argument` (eps, l2_eps, a_coef, or 2^31 tokens or more), `Stride`, `Length`, `NonFinite`.
    pub fn new(
        heads: Heads,
        tokens: usize,
        inputs: ForwardInputs<'a>,
        weights: Weights<'a>,
        options: ForwardOptions,
        carried: Carried<'a>,
        outputs: ForwardOutputs<'a>,
    ) -> Result<Self> {
        let (value, channels) = (heads.value(), heads.channels());
        check_tokens(tokens)?;
        check_len("qkv", inputs.qkv.len(), &[tokens, channels])?;
        inputs.a.check("a", tokens, value)?;
        inputs.b.check("b", tokens, value)?;
        check_len("z", inputs.z.len(), &[tokens, value, HEAD_DIM])?;

        check_conv_weights(channels, weights.conv_weight, weights.conv_bias)?;
        check_len("dt_bias", weights.dt_bias.len(), &[value])?;
        check_len("a_coef", weights.a_coef.len(), &[value])?;
        check_a_coef(weights.a_coef)?;
        check_norm_weight(weights.norm_weight)?;
        check_eps("eps", options.eps)?;
        check_eps("l2_eps", options.l2_eps)?;

        check_len("conv_state", carried.conv_state.len(), &[channels, CONV_HISTORY])?;
        check_len("state", carried.state.len(), &[value, HEAD_DIM, HEAD_DIM])?;
        check_len("y", outputs.y.len(), &[tokens, value, HEAD_DIM])?;
        check_stride("out", outputs.out_stride, value)?;
        check_len("out", outputs.out.len(), &[tokens, outputs.out_stride])?;
        Ok(Self { heads, tokens, inputs, weights, options, carried, outputs })
    }

    pub fn heads(&self) -> Heads {
        self.heads
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The same call for some of its tokens. Chunk behind chunk, whatever their sizes, gives the bits of the whole.
    ///
    /// Errors: `Argument` for tokens that the call has not got.
    pub fn chunk(&mut self, tokens: Range<usize>) -> Result<Forward<'_>> {
        let Range { start: from, end: to } = tokens;
        if from > to || to > self.tokens {
            let accepted = format!("a part of 0..{}", self.tokens);
            return Err(Error::argument("tokens", format!("{from}..{to}"), accepted));
        }
        let (channels, width) = (self.heads.channels(), self.heads.value() * HEAD_DIM);
        let Self { inputs, carried, outputs, .. } = self;
        Ok(Forward {
            heads: self.heads,
            tokens: to - from,
            inputs: ForwardInputs {
                qkv: inputs.qkv.slice(from * channels..to * channels),
                a: inputs.a.tokens(from, to),
                b: inputs.b.tokens(from, to),
                z: inputs.z.slice(from * width..to * width),
            },
            weights: self.weights,
            options: self.options,
            carried: Carried { conv_state: carried.conv_state, state: carried.state, layout: carried.layout },
            outputs: ForwardOutputs {
                y: &mut outputs.y[from * width..to * width],
                out: outputs.out.slice(from * outputs.out_stride..to * outputs.out_stride),
                out_stride: outputs.out_stride,
            },
        })
    }
}
