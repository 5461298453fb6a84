//! The whole path, from what a layer's projections make.

use super::output::{Done, Out};
use super::state::State;
use super::{Args, Progress, contradiction};
use crate::zeroed;
use keyhead::cpu::Workspace;
use keyhead::gdn::{
    CONV_HISTORY, CONV_TAPS, Carried, Forward, ForwardInputs, ForwardOptions, ForwardOutputs, HEAD_DIM,
    Heads, PerHead, StateLayout, Weights, a_coef,
};
use keyhead::io::{Dim, FLOATS, File, Stored};
use keyhead::{Backend, Error, Result};
use std::time::Instant;

/// Where `--l2-eps` is not given: what every published model takes.
const L2_EPS: f32 = 1e-6;
/// `ssm_a` was computed by another program: it may differ from `-exp(A_log)` by its rounding, which some do in 16 bits.
const SAME: f32 = 1e-2;

/// The input, checked. What grows with the prompt stays as it is stored.
pub(super) struct Layer<'file> {
    heads: Heads,
    tokens: usize,
    qkv: Stored<'file>,
    a: Stored<'file>,
    b: Stored<'file>,
    z: Stored<'file>,
    conv_weight: Vec<f32>,
    conv_bias: Option<Vec<f32>>,
    dt_bias: Vec<f32>,
    a_coef: Vec<f32>,
    norm_weight: Vec<f32>,
    conv_state: Vec<f32>,
    state: Vec<f32>,
    options: ForwardOptions,
}

impl<'file> Layer<'file> {
    pub(super) fn read(file: &'file File, args: &Args) -> Result<Layer<'file>> {
        let head = Dim::Just(HEAD_DIM);
        // Shapes and dtypes of all tensors first, then their data.
        let qkv = file.tensor("qkv", [Dim::Any("T"), Dim::Any("C")], FLOATS)?;
        let [tokens, channels] = qkv.shape();
        let (t, c) = (Dim::Is("T", tokens), Dim::Is("C", channels));
        let z = file.tensor("z", [t, Dim::Any("HV"), head], FLOATS)?;
        let [_, value_heads, _] = z.shape();
        let hv = Dim::Is("HV", value_heads);
        let heads = Heads::new(key_heads(tokens, channels, value_heads)?, value_heads, args.head_map.into())?;
        let a = file.tensor("a", [t, hv], FLOATS)?;
        let b = file.tensor("b", [t, hv], FLOATS)?;
        let conv_weight = conv_weight(file, c)?;
        let optional = |name| file.has(name).then_some(name);
        let conv_bias = optional("conv_bias").map(|name| file.tensor(name, [c], FLOATS)).transpose()?;
        let history = [c, Dim::Just(CONV_HISTORY)];
        let conv_state =
            optional("conv_state_in").map(|name| file.tensor(name, history, FLOATS)).transpose()?;
        let dt_bias = file.tensor("dt_bias", [hv], FLOATS)?;
        let a_coef = read_a_coef(file, hv)?;
        let norm_weight = file.tensor("norm_weight", [head], FLOATS)?;
        let state = State::find(file, hv)?;
        let act = args.act()?;

        Ok(Layer {
            heads,
            tokens,
            qkv: qkv.stored()?,
            a: a.stored()?,
            b: b.stored()?,
            z: z.stored()?,
            conv_weight,
            conv_bias: conv_bias.map(|bias| bias.f32()).transpose()?,
            dt_bias: dt_bias.f32()?,
            a_coef,
            norm_weight: norm_weight.f32()?,
            conv_state: match conv_state {
                Some(stored) => stored.f32()?,
                None => zeroed("conv_state_out", channels * CONV_HISTORY, 0.0)?,
            },
            state: state.read(heads)?,
            options: ForwardOptions { act, eps: args.eps, l2_eps: args.l2_eps.unwrap_or(L2_EPS) },
        })
    }

    pub(super) fn run(self, backend: &Backend, args: &Args) -> Result<Done> {
        let Layer { heads, tokens, options, mut conv_state, mut state, .. } = self;
        let (value_heads, width) = (heads.value(), heads.value() * HEAD_DIM);
        let mut y = zeroed("y", self.z.floats().len(), 0.0)?;
        let mut out = Out::zeroed(args.out_dtype, y.len())?;
        let mut call = Forward::new(
            heads,
            tokens,
            ForwardInputs {
                qkv: self.qkv.floats(),
                a: PerHead::packed(self.a.floats(), value_heads),
                b: PerHead::packed(self.b.floats(), value_heads),
                z: self.z.floats(),
            },
            Weights {
                conv_weight: &self.conv_weight,
                conv_bias: self.conv_bias.as_deref(),
                dt_bias: &self.dt_bias,
                a_coef: &self.a_coef,
                norm_weight: &self.norm_weight,
            },
            options,
            Carried { conv_state: &mut conv_state, state: &mut state, layout: StateLayout::HeadMajor },
            ForwardOutputs { y: &mut y, out: out.target(), out_stride: width },
        )?;

        let start = Instant::now();
        let progress = Progress::new(tokens, args.chunk);
        let mut workspace = Workspace::new();
        let ran = progress.chunks(tokens, |from, to| {
            backend.forward(call.chunk(from..to)?, &mut workspace, args.variant.0)
        })?;
        let seconds = start.elapsed().as_secs_f64();
        progress.bar.finish_and_clear();
        let (conv_state, out, l2_eps) = (Some(conv_state), Some(out), Some(options.l2_eps));
        Ok(Done { heads, tokens, y, state, conv_state, out, l2_eps, ran, seconds })
    }
}

/// The key heads of a `qkv` with so many channels.
fn key_heads(tokens: usize, channels: usize, value_heads: usize) -> Result<usize> {
    let rows = channels / HEAD_DIM;
    match rows.checked_sub(value_heads) {
        Some(rest) if channels.is_multiple_of(HEAD_DIM) && rest.is_multiple_of(2) => Ok(rest / 2),
        _ => Err(Error::Shape {
            tensor: "qkv".into(),
            found: vec![tokens, channels],
            accepted: format!("`[T, C]`, with C = (2 * HK + HV) * 128, HV = {value_heads} as in `z`"),
        }),
    }
}

/// `[C, 4]`, or as a depthwise convolution's `[C, 1, 4]`.
fn conv_weight(file: &File, c: Dim) -> Result<Vec<f32>> {
    let taps = Dim::Just(CONV_TAPS);
    match file.tensor("conv_weight", [c, taps], FLOATS) {
        Err(Error::Shape { tensor, found, accepted }) => {
            match file.tensor("conv_weight", [c, Dim::Just(1), taps], FLOATS) {
                Ok(weight) => weight.f32(),
                Err(_) => {
                    let accepted = format!("{accepted}; or `[C, 1, 4]`");
                    Err(Error::Shape { tensor, found, accepted })
                }
            }
        }
        found => found?.f32(),
    }
}

/// `-exp(A_log)`, or `ssm_a`, which is that already; both only where they agree.
fn read_a_coef(file: &File, hv: Dim) -> Result<Vec<f32>> {
    let from_log = || -> Result<Vec<f32>> {
        let a_log = file.tensor("A_log", [hv], FLOATS)?.f32()?;
        Ok(a_log.into_iter().map(a_coef).collect())
    };
    if !file.has("ssm_a") {
        if !file.has("A_log") {
            return Err(file.missing("A_log", "`[HV]`, or `ssm_a` `[HV]`, which is -exp(A_log)"));
        }
        return from_log();
    }
    let ssm_a = file.tensor("ssm_a", [hv], FLOATS)?.f32()?;
    if file.has("A_log") {
        // Infinities agree, and have no difference.
        let agree = |(ours, &given): (f32, &f32)| ours == given || (ours - given).abs() <= SAME * ours.abs();
        if !from_log()?.into_iter().zip(&ssm_a).all(agree) {
            return Err(contradiction("A_log", "ssm_a", "one of them, or `ssm_a` that is -exp(A_log)"));
        }
    }
    Ok(ssm_a)
}
