//! The recurrence and the out norm against vectors that public software made.

mod common;

use ::simt::Order;
use common::{Golden, assert_bf16, assert_close, assert_f16, files, reorder};
use half::{bf16, f16};
use keyhead::Backend;
use keyhead::check::simt;
use keyhead::gdn::{
    HEAD_DIM, HeadMap, Heads, NormAct, NormOut, OutNorm, Recurrence, RecurrenceInputs, Rows, StateLayout,
    Variant,
};

/// The f32 noise of the recurrence, relative to the largest value; the libraries' own f32 is within 9e-7.
const NOISE: f64 = 2e-6;
const STATE: usize = HEAD_DIM * HEAD_DIM;

struct Inputs {
    heads: Heads,
    tokens: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
}

impl Inputs {
    /// The file's inputs as they are stored, for the grouped map, or re-ordered for the tiled one.
    fn new(golden: &Golden, map: HeadMap) -> Inputs {
        let (tokens, key, value) = golden.sizes("q");
        let perm = match map {
            HeadMap::Grouped => (0..value).collect(),
            HeadMap::Tiled => golden.indices("tiled_perm"),
        };
        Inputs {
            heads: Heads::new(key, value, map).unwrap(),
            tokens,
            q: golden.f32("q"),
            k: golden.f32("k"),
            v: reorder(&golden.f32("v"), &perm, HEAD_DIM),
            gate: reorder(&golden.f32("g"), &perm, 1),
            beta: reorder(&golden.f32("beta"), &perm, 1),
            state: reorder(&golden.initial_state(value), &perm, STATE),
        }
    }

    /// Runs `run` on the inputs; y and state in the file's order of heads.
    fn run(&self, golden: &Golden, run: impl FnOnce(Recurrence<'_>)) -> (Vec<f32>, Vec<f32>) {
        let value = self.heads.value();
        let (mut y, mut state) = (vec![f32::NAN; self.tokens * value * HEAD_DIM], self.state.clone());
        let inputs = RecurrenceInputs {
            q: Rows::packed(&self.q, self.heads.key()),
            k: Rows::packed(&self.k, self.heads.key()),
            v: Rows::packed(&self.v, value),
            gate: &self.gate,
            beta: &self.beta,
        };
        let layout = StateLayout::HeadMajor;
        run(Recurrence::new(self.heads, layout, self.tokens, inputs, &mut state, &mut y).unwrap());
        if self.heads.map() == HeadMap::Grouped {
            return (y, state);
        }
        let mut back = vec![0; value];
        golden.indices("tiled_perm").into_iter().enumerate().for_each(|(tiled, stored)| back[stored] = tiled);
        (reorder(&y, &back, HEAD_DIM), reorder(&state, &back, STATE))
    }
}

#[test]
fn recurrence_on_the_cpu() {
    let backend = Backend::cpu().unwrap();
    for golden in files("gdn_rec_") {
        for map in [HeadMap::Grouped, HeadMap::Tiled] {
            let inputs = Inputs::new(&golden, map);
            let (y, state) = inputs
                .run(&golden, |call| assert!(backend.recurrence(call, None).is_ok(), "{}", golden.name));
            assert_close(&format!("{} {map:?} y", golden.name), &y, &golden.f32("y"), NOISE);
            golden.assert_state(&state, NOISE);
        }
    }
}

#[test]
fn recurrence_by_the_kernels_source() {
    for golden in files("gdn_rec_") {
        let inputs = Inputs::new(&golden, HeadMap::Grouped);
        if inputs.tokens * inputs.heads.value() > 64 {
            continue;
        }
        for variant in Variant::ALL {
            let (y, state) = inputs.run(&golden, |call| {
                simt::recurrence(variant, Order::Seeded(3), call).unwrap();
            });
            assert_close(&format!("{} {variant} y", golden.name), &y, &golden.f32("y"), NOISE);
            golden.assert_state(&state, NOISE);
        }
    }
}

/// Rows of y, z and one weight, with what they must become.
struct NormCase {
    name: String,
    value_heads: usize,
    y: Vec<f32>,
    z: Vec<f32>,
    weight: Vec<f32>,
    eps: f32,
    /// For sigmoid and silu.
    expected: [NormExpected; 2],
}

struct NormExpected {
    act: NormAct,
    f32s: Vec<f32>,
    /// The f16 and bf16 forms, widened, where the file has them.
    halves: Option<(Vec<f32>, Vec<f32>)>,
}

impl NormCase {
    fn new(golden: &Golden, prefix: &str, weight: &str, value_heads: usize) -> NormCase {
        let tensor = |name: &str| golden.f32(&format!("{prefix}{name}"));
        let expected = |act, name: &str| {
            let halves = golden
                .has(&format!("{prefix}{name}_f16"))
                .then(|| (tensor(&format!("{name}_f16")), tensor(&format!("{name}_bf16"))));
            NormExpected { act, f32s: tensor(name), halves }
        };
        NormCase {
            name: golden.name.clone(),
            value_heads,
            y: tensor("y"),
            z: tensor("z"),
            weight: golden.f32(weight),
            eps: golden.metadata()["eps"].parse().unwrap(),
            expected: [expected(NormAct::Sigmoid, "out_sigmoid"), expected(NormAct::Silu, "out_silu")],
        }
    }

    fn run(&self, backend: &Backend, act: NormAct, out: NormOut<'_>) {
        let (heads, tokens) = (self.value_heads, self.y.len() / (self.value_heads * HEAD_DIM));
        let stride = heads * HEAD_DIM;
        let call =
            OutNorm::new(heads, tokens, &self.y, &self.z[..], &self.weight, act, self.eps, out, stride);
        backend.out_norm(call.unwrap()).unwrap();
    }

    /// The f32 output within the noise, row by row; the 16-bit outputs exact, except where the exact value is within that noise of a
    /// rounding boundary, when they may be the neighbour.
    fn check(&self) {
        let backend = Backend::cpu().unwrap();
        for NormExpected { act, f32s: expected, halves } in &self.expected {
            let mut out = vec![f32::NAN; self.y.len()];
            self.run(&backend, *act, NormOut::F32(&mut out));
            for (row, (out, expected)) in out.chunks(HEAD_DIM).zip(expected.chunks(HEAD_DIM)).enumerate() {
                assert_close(&format!("{} {act:?} row {row}", self.name), out, expected, NOISE);
            }
            let Some((f16s, bf16s)) = halves else { continue };
            let mut found = vec![f16::NAN; self.y.len()];
            self.run(&backend, *act, NormOut::F16(&mut found));
            assert_f16(&self.name, &found, f16s, expected, NOISE);
            let mut found = vec![bf16::NAN; self.y.len()];
            self.run(&backend, *act, NormOut::Bf16(&mut found));
            assert_bf16(&self.name, &found, bf16s, expected, NOISE);
        }
    }
}

#[test]
fn out_norm_of_the_extreme_rows() {
    for golden in files("gdn_pieces") {
        NormCase::new(&golden, "norm.", "norm.weight", 1).check();
    }
}

#[test]
fn out_norm_of_whole_layers() {
    for golden in files("gdn_mix_") {
        let value_heads = golden.shape("y")[1];
        NormCase::new(&golden, "", "norm_weight", value_heads).check();
    }
}
