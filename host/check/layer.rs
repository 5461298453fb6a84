//! A whole layer's inputs for checks, tests and benchmarks: random, from a seed.

use super::data::Random;
use super::same_bits;
use crate::cpu;
use crate::gdn::{
    CONV_HISTORY, CONV_TAPS, Carried, Dtype, Floats, Forward, ForwardInputs, ForwardOptions, ForwardOutputs,
    HEAD_DIM, Heads, NormAct, NormOut, PerHead, StateLayout, Weights,
};
use half::{bf16, f16};

/// A shape to check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerShape {
    pub heads: Heads,
    pub layout: StateLayout,
    pub tokens: usize,
    /// Of qkv, a, b and z.
    pub dtype: Dtype,
    pub out_dtype: Dtype,
    pub act: NormAct,
    pub bias: bool,
}

impl std::fmt::Display for LayerShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LayerShape { heads, layout, tokens, dtype, out_dtype, act, bias } = self;
        let (from, to) = (dtype.name(), out_dtype.name());
        let bias = if *bias { " bias" } else { "" };
        let (key, value, map) = (heads.key(), heads.value(), heads.map());
        write!(f, "{key}x{value} {map:?} {layout:?} {from}->{to} {act:?}{bias} T={tokens}")
    }
}

/// Numbers of one of the types of [`Dtype`].
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Numbers {
    /// The numbers, rounded to `dtype`.
    pub fn new(dtype: Dtype, numbers: Vec<f32>) -> Numbers {
        match dtype {
            Dtype::F32 => Numbers::F32(numbers),
            Dtype::F16 => Numbers::F16(numbers.into_iter().map(f16::from_f32).collect()),
            Dtype::Bf16 => Numbers::Bf16(numbers.into_iter().map(bf16::from_f32).collect()),
        }
    }

    /// The numbers that lie in memory as these bytes.
    pub(super) fn from_bytes(dtype: Dtype, bytes: &[u8]) -> Numbers {
        match dtype {
            Dtype::F32 => Numbers::F32(bytemuck::allocation::pod_collect_to_vec(bytes)),
            Dtype::F16 => Numbers::F16(bytemuck::allocation::pod_collect_to_vec(bytes)),
            Dtype::Bf16 => Numbers::Bf16(bytemuck::allocation::pod_collect_to_vec(bytes)),
        }
    }

    pub fn floats(&self) -> Floats<'_> {
        match self {
            Numbers::F32(numbers) => Floats::F32(numbers),
            Numbers::F16(numbers) => Floats::F16(numbers),
            Numbers::Bf16(numbers) => Floats::Bf16(numbers),
        }
    }

    fn out(&mut self) -> NormOut<'_> {
        match self {
            Numbers::F32(numbers) => NormOut::F32(numbers),
            Numbers::F16(numbers) => NormOut::F16(numbers),
            Numbers::Bf16(numbers) => NormOut::Bf16(numbers),
        }
    }
}

/// The inputs of a layer of one shape. Change what a test needs changed.
#[derive(Clone, Debug)]
pub struct LayerData {
    pub shape: LayerShape,
    pub qkv: Numbers,
    /// `[T][2 * HV]`: of each token first a, then b.
    pub ab: Numbers,
    pub z: Numbers,
    pub conv_weight: Vec<f32>,
    pub conv_bias: Option<Vec<f32>>,
    pub dt_bias: Vec<f32>,
    pub a_coef: Vec<f32>,
    pub norm_weight: Vec<f32>,
    pub conv_state: Vec<f32>,
    pub state: Vec<f32>,
}

/// What a layer leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerOutput {
    pub y: Vec<f32>,
    pub out: Numbers,
    pub conv_state: Vec<f32>,
    pub state: Vec<f32>,
}

impl LayerOutput {
    /// Where it differs first from what is expected, if it does.
    pub fn same_bits(&self, expected: &LayerOutput) -> Result<(), String> {
        same_bits("conv_state", &self.conv_state, &expected.conv_state)?;
        same_bits("y", &self.y, &expected.y)?;
        same_bits("state", &self.state, &expected.state)?;
        same_bits("out, byte by byte,", self.out.floats().bytes(), expected.out.floats().bytes())
    }
}

/// What stands between conv and recurrence.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    pub h: Vec<f32>,
    pub gate: Vec<f32>,
    pub beta: Vec<f32>,
    pub conv_state: Vec<f32>,
}

impl Prepared {
    /// Where it differs first from what is expected, if it does.
    pub fn same_bits(&self, expected: &Prepared) -> Result<(), String> {
        same_bits("h", &self.h, &expected.h)?;
        same_bits("gate", &self.gate, &expected.gate)?;
        same_bits("beta", &self.beta, &expected.beta)?;
        same_bits("conv_state", &self.conv_state, &expected.conv_state)
    }
}

/// A word that no kernel writes.
const BLANK: f32 = f32::from_bits(0x7fa5_a5a5);

impl LayerData {
    /// Normal activations, weights of the size that trained layers have, a history and a state that are not zero.
    pub fn random(shape: LayerShape, seed: u64) -> LayerData {
        let LayerShape { heads, tokens, dtype, bias, .. } = shape;
        let (value, channels) = (heads.value(), heads.channels());
        let mut random = Random(seed);
        let mut normal =
            |len: usize, scale: f32| (0..len).map(|_| scale * random.normal()).collect::<Vec<_>>();
        LayerData {
            shape,
            qkv: Numbers::new(dtype, normal(tokens * channels, 1.0)),
            ab: Numbers::new(dtype, normal(tokens * 2 * value, 1.5)),
            z: Numbers::new(dtype, normal(tokens * value * HEAD_DIM, 1.0)),
            conv_weight: normal(channels * CONV_TAPS, 0.5),
            conv_bias: bias.then(|| normal(channels, 0.1)),
            dt_bias: normal(value, 1.0),
            a_coef: normal(value, 1.0).into_iter().map(|x| -(x.abs() + 1e-3)).collect(),
            norm_weight: normal(HEAD_DIM, 0.1).into_iter().map(|x| 1.0 + x).collect(),
            // What 16-bit qkv could have left there, too.
            conv_state: normal(channels * CONV_HISTORY, 1.0)
                .into_iter()
                .map(|x| bf16::from_f32(x).into())
                .collect(),
            state: normal(heads.state_len(), 0.05),
        }
    }

    /// The carried buffers as they are before the call, and outputs full of a value that no kernel writes.
    pub fn blank(&self) -> LayerOutput {
        let len = self.shape.tokens * self.shape.heads.value() * HEAD_DIM;
        LayerOutput {
            y: vec![BLANK; len],
            out: Numbers::new(self.shape.out_dtype, vec![BLANK; len]),
            conv_state: self.conv_state.clone(),
            state: self.state.clone(),
        }
    }

    pub fn inputs(&self) -> ForwardInputs<'_> {
        let (a, b) = PerHead::pair(self.ab.floats(), self.shape.heads.value());
        ForwardInputs { qkv: self.qkv.floats(), a, b, z: self.z.floats() }
    }

    pub fn weights(&self) -> Weights<'_> {
        Weights {
            conv_weight: &self.conv_weight,
            conv_bias: self.conv_bias.as_deref(),
            dt_bias: &self.dt_bias,
            a_coef: &self.a_coef,
            norm_weight: &self.norm_weight,
        }
    }

    pub fn options(&self) -> ForwardOptions {
        ForwardOptions { act: self.shape.act, eps: 1e-6, l2_eps: 1e-6 }
    }

    /// The call on `output`'s buffers.
    pub fn call<'a>(&'a self, output: &'a mut LayerOutput) -> Forward<'a> {
        let LayerShape { heads, layout, tokens, .. } = self.shape;
        let LayerOutput { y, out, conv_state, state } = output;
        let carried = Carried { conv_state, state, layout };
        let outputs = ForwardOutputs { y, out: out.out(), out_stride: heads.value() * HEAD_DIM };
        Forward::new(heads, tokens, self.inputs(), self.weights(), self.options(), carried, outputs)
            .expect("the buffers fit the shape they were made for")
    }

    /// What the CPU backend computes.
    pub fn expected(&self) -> LayerOutput {
        let mut output = self.blank();
        cpu::forward(self.call(&mut output), &mut cpu::Workspace::new()).expect("memory for 128 tokens");
        output
    }

    /// Blank buffers for what stands between conv and recurrence.
    pub fn unprepared(&self) -> Prepared {
        let LayerShape { heads, tokens, .. } = self.shape;
        let blank = |row: usize| vec![BLANK; tokens * row];
        Prepared {
            h: blank(heads.channels()),
            gate: blank(heads.value()),
            beta: blank(heads.value()),
            conv_state: self.conv_state.clone(),
        }
    }

    /// What the CPU backend's steps compute; q and k rows normalised if `l2norm`.
    pub fn prepared(&self, l2norm: bool) -> Prepared {
        use crate::gdn::{Conv, Gates, L2Norm};
        const FITS: &str = "the buffers fit the shape they were made for";
        let LayerShape { heads, tokens, .. } = self.shape;
        let Weights { conv_weight, conv_bias, dt_bias, a_coef, .. } = self.weights();
        let ForwardInputs { qkv, a, b, .. } = self.inputs();
        let mut prepared = self.unprepared();
        let Prepared { h, gate, beta, conv_state } = &mut prepared;
        cpu::gates(Gates::new(heads.value(), tokens, a, b, dt_bias, a_coef, gate, beta).expect(FITS));
        cpu::conv(Conv::new(heads, tokens, qkv, conv_weight, conv_bias, conv_state, h).expect(FITS));
        if l2norm {
            cpu::l2norm(L2Norm::new(2 * heads.key(), tokens, h, heads.channels(), 1e-6).expect(FITS));
        }
        prepared
    }
}
