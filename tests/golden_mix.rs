//! The whole path and its steps against vectors that public software made. Tolerances are twice the error of that software's own
//! f32, relative to the largest value: what tests/golden/README.md states.

mod common;

use common::{Golden, assert_bf16, assert_close, assert_f16, files, reorder};
use half::{bf16, f16};
use keyhead::Backend;
use keyhead::cpu::{self, Workspace};
use keyhead::gdn::{
    Carried, Conv, Floats, Forward, ForwardInputs, ForwardOptions, ForwardOutputs, Gates, HEAD_DIM, HeadMap,
    Heads, L2Norm, NormAct, NormOut, PerHead, StateLayout, Weights, a_coef,
};
use safetensors::Dtype;

const CONV: f64 = 2.4e-7;
const L2: f64 = 3.6e-7;
const GATE: f64 = 2.6e-7;
const BETA: f64 = 1.8e-7;
const Y: f64 = 1.4e-6;
const STATE: f64 = 1.8e-6;
const OUT: f64 = 1.6e-6;
const EPS: f32 = 1e-6;

/// Numbers in the type that the file holds them in.
enum Held {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

impl Held {
    /// `values` are those of a tensor, widened and re-ordered.
    fn new(golden: &Golden, tensor: &str, values: Vec<f32>) -> Held {
        match golden.dtype(tensor) {
            Dtype::BF16 => Held::Bf16(values.into_iter().map(bf16::from_f32).collect()),
            _ => Held::F32(values),
        }
    }

    fn floats(&self) -> Floats<'_> {
        match self {
            Held::F32(data) => data[..].into(),
            Held::Bf16(data) => data[..].into(),
        }
    }
}

/// A layer's inputs in an order of value heads.
struct Layer {
    heads: Heads,
    tokens: usize,
    /// Stored head of each head.
    perm: Vec<usize>,
    qkv: Held,
    a: Held,
    b: Held,
    z: Held,
    conv_weight: Vec<f32>,
    dt_bias: Vec<f32>,
    a_coef: Vec<f32>,
    norm_weight: Vec<f32>,
    conv_state: Vec<f32>,
    state: Vec<f32>,
}

/// What a run leaves, in the file's order of heads.
struct Done {
    y: Vec<f32>,
    state: Vec<f32>,
    conv_state: Vec<f32>,
}

/// Re-orders the blocks of the v channels; a channel is `width` elements.
fn reorder_channels(data: &[f32], heads: Heads, perm: &[usize], width: usize) -> Vec<f32> {
    let [_, _, v] = heads.qkv_offsets();
    let token = |token: &[f32]| {
        let (qk, v) = token.split_at(v * width);
        [qk.to_vec(), reorder(v, perm, HEAD_DIM * width)].concat()
    };
    data.chunks_exact(heads.channels() * width).flat_map(token).collect()
}

fn inverse(perm: &[usize]) -> Vec<usize> {
    let mut back = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(ours, &stored)| back[stored] = ours);
    back
}

impl Layer {
    /// As stored, for the grouped map, or re-ordered for the tiled one.
    fn new(golden: &Golden, map: HeadMap) -> Layer {
        let (tokens, key, value) = golden.sizes("q_norm");
        let heads = Heads::new(key, value, map).unwrap();
        let perm = match map {
            HeadMap::Grouped => (0..value).collect(),
            HeadMap::Tiled => golden.indices("tiled_perm"),
        };
        let per_head = |name: &str| reorder(&golden.f32(name), &perm, 1);
        let channels = |name: &str, width| reorder_channels(&golden.f32(name), heads, &perm, width);
        let held = |name: &str, values| Held::new(golden, name, values);
        Layer {
            heads,
            tokens,
            qkv: held("qkv", channels("qkv", 1)),
            a: held("a", per_head("a")),
            b: held("b", per_head("b")),
            z: held("z", reorder(&golden.f32("z"), &perm, HEAD_DIM)),
            conv_weight: channels("conv_weight", 4),
            dt_bias: per_head("dt_bias"),
            a_coef: per_head("A_log").into_iter().map(a_coef).collect(),
            norm_weight: golden.f32("norm_weight"),
            conv_state: match golden.has("conv_state_in") {
                true => channels("conv_state_in", 3),
                false => vec![0.0; heads.channels() * 3],
            },
            state: reorder(&golden.initial_state(value), &perm, HEAD_DIM * HEAD_DIM),
            perm,
        }
    }

    /// Runs calls of so many tokens each; `after` sees how many are done, the state and the conv state.
    fn run(
        &self,
        act: NormAct,
        mut out: NormOut<'_>,
        calls: &[usize],
        mut after: impl FnMut(usize, &[f32], &[f32]),
    ) -> Done {
        let (backend, mut workspace) = (Backend::cpu().unwrap(), Workspace::new());
        let (value, width) = (self.heads.value(), self.heads.value() * HEAD_DIM);
        let (mut conv_state, mut state) = (self.conv_state.clone(), self.state.clone());
        let mut y = vec![f32::NAN; self.tokens * width];
        let back = inverse(&self.perm);
        let (mut from, mut carried) = (0, [vec![], vec![]]);
        for tokens in calls {
            // The same call each time, on the states that the last one left.
            let mut call = Forward::new(
                self.heads,
                self.tokens,
                ForwardInputs {
                    qkv: self.qkv.floats(),
                    a: PerHead::packed(self.a.floats(), value),
                    b: PerHead::packed(self.b.floats(), value),
                    z: self.z.floats(),
                },
                Weights {
                    conv_weight: &self.conv_weight,
                    conv_bias: None,
                    dt_bias: &self.dt_bias,
                    a_coef: &self.a_coef,
                    norm_weight: &self.norm_weight,
                },
                ForwardOptions { act, eps: EPS, l2_eps: EPS },
                Carried { conv_state: &mut conv_state, state: &mut state, layout: StateLayout::HeadMajor },
                ForwardOutputs { y: &mut y, out: reborrow(&mut out), out_stride: width },
            )
            .unwrap();
            backend.forward(call.chunk(from..from + tokens).unwrap(), &mut workspace, None).unwrap();
            from += tokens;
            carried = [
                reorder(&state, &back, HEAD_DIM * HEAD_DIM),
                reorder_channels(&conv_state, self.heads, &back, 3),
            ];
            after(from, &carried[0], &carried[1]);
        }
        assert_eq!(from, self.tokens);
        let [state, conv_state] = carried;
        Done { y: reorder(&y, &back, HEAD_DIM), state, conv_state }
    }
}

fn reborrow<'a>(out: &'a mut NormOut<'_>) -> NormOut<'a> {
    match out {
        NormOut::F16(out) => NormOut::F16(out),
        NormOut::Bf16(out) => NormOut::Bf16(out),
        NormOut::F32(out) => NormOut::F32(out),
    }
}

#[test]
fn the_whole_path() {
    for golden in files("gdn_mix_") {
        let metadata = golden.metadata();
        assert_eq!((&*metadata["eps"], &*metadata["l2_eps"]), ("1e-06", "1e-06"));
        for map in [HeadMap::Grouped, HeadMap::Tiled] {
            let layer = Layer::new(&golden, map);
            let back = inverse(&layer.perm);
            let split = metadata.get("T1").map_or(layer.tokens / 2, |t1| t1.parse().unwrap());
            for (act, name) in [(NormAct::Silu, "out_silu"), (NormAct::Sigmoid, "out_sigmoid")] {
                let what = format!("{} {map:?} {act:?}", golden.name);
                let len = layer.tokens * layer.heads.value() * HEAD_DIM;
                let mut out = vec![f32::NAN; len];
                let after = |tokens: usize, state: &[f32], conv_state: &[f32]| {
                    if tokens == split && golden.has("mid_state") {
                        golden.assert_heads("mid_state", state, STATE);
                        assert_eq!(conv_state, golden.f32("mid_conv_state"), "{what}");
                    }
                };
                let calls = [split, layer.tokens - split];
                let done = layer.run(act, NormOut::F32(&mut out), &calls, after);
                assert_close(&what, &done.y, &golden.f32("y"), Y);
                golden.assert_state(&done.state, STATE);
                assert_eq!(done.conv_state, golden.f32("conv_state_out"), "{what}");
                let exact = golden.f32(name);
                assert_close(&what, &reorder(&out, &back, HEAD_DIM), &exact, OUT);

                if !golden.has(&format!("{name}_f16")) {
                    continue;
                }
                let whole = [layer.tokens];
                let mut out = vec![f16::NAN; len];
                layer.run(act, NormOut::F16(&mut out), &whole, |_, _, _| ());
                let out = reorder_halves(&out, &back);
                assert_f16(&what, &out, &golden.f32(&format!("{name}_f16")), &exact, OUT);
                let mut out = vec![bf16::NAN; len];
                layer.run(act, NormOut::Bf16(&mut out), &whole, |_, _, _| ());
                let out = reorder_halves(&out, &back);
                assert_bf16(&what, &out, &golden.f32(&format!("{name}_bf16")), &exact, OUT);
            }
        }
    }
}

fn reorder_halves<T: Copy>(data: &[T], perm: &[usize]) -> Vec<T> {
    let token = |token: &[T]| -> Vec<T> {
        perm.iter().flat_map(|&p| token[p * HEAD_DIM..][..HEAD_DIM].to_vec()).collect()
    };
    data.chunks_exact(perm.len() * HEAD_DIM).flat_map(token).collect()
}

#[test]
fn the_steps_before_the_recurrence() {
    for golden in files("gdn_mix_") {
        let layer = Layer::new(&golden, HeadMap::Grouped);
        let (heads, tokens, value) = (layer.heads, layer.tokens, layer.heads.value());
        let (mut gate, mut beta) = (vec![f32::NAN; tokens * value], vec![f32::NAN; tokens * value]);
        let (a, b) = (PerHead::packed(layer.a.floats(), value), PerHead::packed(layer.b.floats(), value));
        let gates = Gates::new(value, tokens, a, b, &layer.dt_bias, &layer.a_coef, &mut gate, &mut beta);
        cpu::gates(gates.unwrap());
        assert_close(&golden.name, &layer.a_coef, &golden.f32("ssm_a"), GATE);
        assert_close(&golden.name, &gate, &golden.f32("g"), GATE);
        assert_close(&golden.name, &beta, &golden.f32("beta"), BETA);

        let (mut state, mut h) = (layer.conv_state.clone(), vec![f32::NAN; tokens * heads.channels()]);
        let (qkv, weight) = (layer.qkv.floats(), &layer.conv_weight);
        cpu::conv(Conv::new(heads, tokens, qkv, weight, None, &mut state, &mut h).unwrap());
        assert_close(&golden.name, &h, &golden.f32("conv_out"), CONV);
        assert_eq!(state, golden.f32("conv_state_out"), "{}", golden.name);

        cpu::l2norm(L2Norm::new(2 * heads.key(), tokens, &mut h, heads.channels(), EPS).unwrap());
        let [q, k, v] = heads.qkv_offsets();
        for (name, range) in [("q_norm", q..k), ("k_norm", k..v)] {
            let rows: Vec<f32> =
                h.chunks_exact(heads.channels()).flat_map(|token| token[range.clone()].to_vec()).collect();
            assert_close(&format!("{} {name}", golden.name), &rows, &golden.f32(name), L2);
        }
    }
}

/// Row by row: the rows differ by many orders of magnitude.
#[test]
fn extreme_rows() {
    for golden in files("gdn_pieces") {
        let [tokens, value] = golden.shape("gates.a")[..] else { panic!("{}", golden.name) };
        let tensor = |name: &str| golden.f32(&format!("gates.{name}"));
        let (a, b, dt_bias) = (tensor("a"), tensor("b"), tensor("dt_bias"));
        let a_coef: Vec<f32> = tensor("A_log").into_iter().map(a_coef).collect();
        let (mut gate, mut beta) = (vec![f32::NAN; tokens * value], vec![f32::NAN; tokens * value]);
        let (a, b) = (PerHead::packed(&a[..], value), PerHead::packed(&b[..], value));
        let call = Gates::new(value, tokens, a, b, &dt_bias, &a_coef, &mut gate, &mut beta);
        cpu::gates(call.unwrap());
        let head = |all: &[f32], h: usize| all.iter().skip(h).step_by(value).copied().collect::<Vec<_>>();
        for h in 0..value {
            assert_close(&format!("a_coef {h}"), &a_coef[h..=h], &tensor("ssm_a")[h..=h], GATE);
            assert_close(&format!("gate of head {h}"), &head(&gate, h), &head(&tensor("g"), h), GATE);
            assert_close(&format!("beta of head {h}"), &head(&beta, h), &head(&tensor("beta"), h), BETA);
        }

        let mut rows = golden.f32("l2.x");
        cpu::l2norm(L2Norm::new(1, rows.len() / HEAD_DIM, &mut rows, HEAD_DIM, EPS).unwrap());
        let expected = golden.f32("l2.y");
        for (row, (found, expected)) in rows.chunks(HEAD_DIM).zip(expected.chunks(HEAD_DIM)).enumerate() {
            assert_close(&format!("l2 row {row}"), found, expected, L2);
        }
    }
}
