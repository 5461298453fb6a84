//! The whole path, some tokens at a time: what one step leaves for the next is still in the cache, and the memory that it takes
//! does not grow with the prompt. Chunks give the bits of the whole.

use super::conv::{self, Normed};
use super::isa::Isa;
use super::{gates, out_norm, recurrence};
use crate::error::{Error, Result};
use crate::gdn::{
    Carried, Conv, Forward, ForwardInputs, ForwardOptions, ForwardOutputs, Gates, OutNorm, Recurrence,
    RecurrenceInputs, Rows, Weights,
};

/// Tokens that go through all steps before the next ones do. Fewer, and the state travels more often.
const CHUNK: usize = 128;

/// Memory between the steps of [`forward`](super::forward). Keep it from call to call: it grows when a call needs more, to what
/// 128 tokens take, and that is allocated once.
#[derive(Debug, Default)]
pub struct Workspace {
    /// `[tokens][C]` behind the conv; the rows of q and k l2-normed.
    h: Vec<f32>,
    /// `[tokens][HV]`.
    gate: Vec<f32>,
    beta: Vec<f32>,
}

impl Workspace {
    pub fn new() -> Self {
        Self::default()
    }
}

/// The first `len` elements, of a vector that grows to have them.
fn first<'a>(vec: &'a mut Vec<f32>, len: usize, what: &str) -> Result<&'a mut [f32]> {
    let missing = len.saturating_sub(vec.len());
    vec.try_reserve_exact(missing)
        .map_err(|_| Error::HostMemory { what: what.into(), bytes: len.saturating_mul(size_of::<f32>()) })?;
    vec.resize(vec.len() + missing, 0.0);
    Ok(&mut vec[..len])
}

/// Runs the whole path with `isa`, which this CPU has. On an error nothing has been written.
pub(super) fn run(isa: Isa, mut call: Forward<'_>, workspace: &mut Workspace) -> Result<()> {
    let (heads, tokens) = (call.heads(), call.tokens());
    let most = tokens.min(CHUNK);
    let h = first(&mut workspace.h, most * heads.channels(), "the convolution's output")?;
    let gate = first(&mut workspace.gate, most * heads.value(), "the gates")?;
    let beta = first(&mut workspace.beta, most * heads.value(), "the gates")?;
    for from in (0..tokens).step_by(CHUNK) {
        let to = tokens.min(from + CHUNK);
        let (channels, values) = ((to - from) * heads.channels(), (to - from) * heads.value());
        let chunk = call.chunk(from..to)?;
        steps(isa, chunk, &mut h[..channels], &mut gate[..values], &mut beta[..values]);
    }
    Ok(())
}

/// All steps, on buffers that are as long as the call needs.
fn steps(isa: Isa, call: Forward<'_>, h: &mut [f32], gate: &mut [f32], beta: &mut [f32]) {
    let Forward { heads, tokens, inputs, weights, options, carried, outputs } = call;
    let ForwardInputs { qkv, a, b, z } = inputs;
    let Weights { conv_weight, conv_bias, dt_bias, a_coef, norm_weight } = weights;
    let ForwardOptions { act, eps, l2_eps } = options;
    let Carried { conv_state, state, layout } = carried;
    let ForwardOutputs { y, out, out_stride } = outputs;
    let (channels, value_heads) = (heads.channels(), heads.value());

    gates::run(isa, Gates { value_heads, tokens, a, b, dt_bias, a_coef, gate, beta });
    let conv = Conv { channels, tokens, qkv, weight: conv_weight, bias: conv_bias, state: conv_state, h };
    conv::run(isa, conv, Normed { rows: 2 * heads.key(), eps: l2_eps });

    let [q, k, v] = heads.qkv_offsets().map(|offset| Rows::strided(&h[offset..], channels));
    let inputs = RecurrenceInputs { q, k, v, gate, beta };
    recurrence::run(isa, Recurrence { heads, layout, tokens, inputs, state, y });
    out_norm::run(isa, OutNorm { value_heads, tokens, y, z, weight: norm_weight, act, eps, out, out_stride });
}
