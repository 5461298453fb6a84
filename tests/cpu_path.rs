//! The whole path on the CPU and the steps before the recurrence, bit for bit, against a scalar reference written from the
//! specification's formulas: every instruction set of this machine, every element type, chunks, and the edges of the arithmetic.

use half::{bf16, f16};
use kernels_gpu::math::{exp, fma, log1p};
use keyhead::cpu::{self, Isa, Workspace};
use keyhead::gdn::{
    Carried, Conv, Dtype, Floats, Forward, ForwardInputs, ForwardOptions, ForwardOutputs, Gates, HEAD_DIM,
    HeadMap, Heads, L2Norm, NormAct, NormOut, PerHead, StateLayout, Weights,
};

/// A NaN that no arithmetic makes.
const ODD_NAN: f32 = f32::from_bits(0xFFC1_2345);
const CANONICAL: u32 = 0x7FFF_FFFF;
/// What no call writes, between and behind the rows of the output.
const SENTINEL: u16 = 0x1234;
/// Elements between the rows of the output.
const GAP: usize = 3;

fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(CANONICAL) } else { x }
}

/// Reproducible numbers in -1..1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn vec(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.next() * scale).collect()
    }
}

/// Numbers in the type that a call reads them in, and what they are in f32.
#[derive(Clone)]
struct Held {
    f16s: Vec<f16>,
    bf16s: Vec<bf16>,
    dtype: Dtype,
    wide: Vec<f32>,
}

impl Held {
    fn new(values: Vec<f32>, dtype: Dtype) -> Held {
        let f16s: Vec<_> = values.iter().map(|&x| f16::from_f32(x)).collect();
        let bf16s: Vec<_> = values.iter().map(|&x| bf16::from_f32(x)).collect();
        let wide = match dtype {
            Dtype::F32 => values,
            Dtype::F16 => f16s.iter().map(|x| canonical(x.to_f32())).collect(),
            Dtype::Bf16 => bf16s.iter().map(|x| f32::from_bits(u32::from(x.to_bits()) << 16)).collect(),
        };
        Held { f16s, bf16s, dtype, wide }
    }

    fn floats(&self) -> Floats<'_> {
        match self.dtype {
            Dtype::F32 => self.wide[..].into(),
            Dtype::F16 => self.f16s[..].into(),
            Dtype::Bf16 => self.bf16s[..].into(),
        }
    }

    fn edit(&mut self, index: usize, value: f32) {
        let mut values = self.wide.clone();
        values[index] = value;
        *self = Held::new(values, self.dtype);
    }
}

/// A layer, its inputs, and what it carries into the call.
#[derive(Clone)]
struct Layer {
    heads: Heads,
    layout: StateLayout,
    tokens: usize,
    qkv: Held,
    /// `[T][2 * HV]`: a, then b.
    ab: Held,
    z: Held,
    conv_weight: Vec<f32>,
    conv_bias: Option<Vec<f32>>,
    dt_bias: Vec<f32>,
    a_coef: Vec<f32>,
    norm_weight: Vec<f32>,
    options: ForwardOptions,
    conv_state: Vec<f32>,
    state: Vec<f32>,
}

/// All that a call leaves, as bits; `out` in three types.
#[derive(Debug, PartialEq)]
struct Bits {
    conv_state: Vec<u32>,
    state: Vec<u32>,
    y: Vec<u32>,
    out: [Vec<u32>; 3],
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What the steps before the recurrence make.
struct Prepared {
    gate: Vec<f32>,
    beta: Vec<f32>,
    conv: Vec<f32>,
    normed: Vec<f32>,
    conv_state: Vec<f32>,
}

fn sum_of_squares(row: &[f32]) -> f32 {
    let groups: Vec<f32> = row
        .chunks_exact(32)
        .map(|group| {
            let mut lanes: Vec<f32> = group.iter().map(|x| x * x).collect();
            for distance in [16, 8, 4, 2, 1] {
                lanes = (0..32).map(|lane| lanes[lane] + lanes[lane ^ distance]).collect();
            }
            lanes[0]
        })
        .collect();
    ((groups[0] + groups[1]) + groups[2]) + groups[3]
}

impl Layer {
    fn new(key: usize, value: usize, tokens: usize, variety: usize) -> Layer {
        let map = [HeadMap::Tiled, HeadMap::Grouped][variety % 2];
        let heads = Heads::new(key, value, map).unwrap();
        let mut random = Random((tokens * 1000 + value * 10 + variety) as u64);
        let dtype = |i: usize| Dtype::ALL[(variety + i) % 3];
        let (channels, width) = (heads.channels(), value * HEAD_DIM);
        Layer {
            heads,
            layout: [StateLayout::HeadMajor, StateLayout::RowMajor][variety / 2 % 2],
            tokens,
            qkv: Held::new(random.vec(tokens * channels, 2.0), dtype(0)),
            ab: Held::new(random.vec(tokens * 2 * value, 6.0), dtype(1)),
            z: Held::new(random.vec(tokens * width, 8.0), dtype(variety / 3)),
            conv_weight: random.vec(channels * 4, 1.0),
            conv_bias: (variety % 3 == 1).then(|| random.vec(channels, 0.5)),
            dt_bias: random.vec(value, 3.0),
            a_coef: random.vec(value, 2.0).iter().map(|a| -a.abs()).collect(),
            norm_weight: random.vec(HEAD_DIM, 1.5),
            options: ForwardOptions {
                act: [NormAct::Silu, NormAct::Sigmoid][variety % 2],
                eps: 1e-6,
                l2_eps: [1e-6, 0.0, 0.5][variety % 3],
            },
            conv_state: random.vec(channels * 3, 2.0),
            state: random.vec(heads.state_len(), 0.3),
        }
    }

    /// Section 3 of the specification, up to the l2 norm.
    fn prepared(&self) -> Prepared {
        let (values, channels) = (self.heads.value(), self.heads.channels());
        let mut made = Prepared {
            gate: vec![],
            beta: vec![],
            conv: vec![],
            normed: vec![],
            conv_state: self.conv_state.clone(),
        };
        for token in self.ab.wide.chunks_exact(2 * values) {
            for h in 0..values {
                let v = token[h] + self.dt_bias[h];
                let softplus = if v > 20.0 { v } else { log1p(exp(v)) };
                made.gate.push(canonical(softplus * self.a_coef[h]));
                made.beta.push(canonical(1.0 / (1.0 + exp(-token[values + h]))));
            }
        }
        let x = |t: isize, c: usize| match t {
            0.. => self.qkv.wide[t as usize * channels + c],
            _ => self.conv_state[c * 3 + (t + 3) as usize],
        };
        for t in 0..self.tokens as isize {
            for c in 0..channels {
                let w = &self.conv_weight[c * 4..][..4];
                let first = match &self.conv_bias {
                    None => x(t - 3, c) * w[0],
                    Some(bias) => fma(x(t - 3, c), w[0], bias[c]),
                };
                let s = fma(x(t, c), w[3], fma(x(t - 1, c), w[2], fma(x(t - 2, c), w[1], first)));
                made.conv.push(canonical(s / (1.0 + exp(-s))));
            }
        }
        for (index, row) in made.conv.chunks_exact(HEAD_DIM).enumerate() {
            let value_row = index % (channels / HEAD_DIM) >= 2 * self.heads.key();
            let scale = 1.0 / (sum_of_squares(row) + self.options.l2_eps).sqrt();
            made.normed.extend(row.iter().map(|&x| if value_row { x } else { canonical(x * scale) }));
        }
        for c in 0..channels {
            for i in 0..3 {
                made.conv_state[c * 3 + i] = x(self.tokens as isize - 3 + i as isize, c);
            }
        }
        made
    }

    fn cell(&self, head: usize, row: usize, column: usize) -> usize {
        match self.layout {
            StateLayout::HeadMajor => (head * HEAD_DIM + row) * HEAD_DIM + column,
            StateLayout::RowMajor => (row * self.heads.value() + head) * HEAD_DIM + column,
        }
    }

    /// All of section 3.
    fn reference(&self) -> Bits {
        let (heads, values) = (self.heads, self.heads.value());
        let made = self.prepared();
        let (mut state, mut y) = (self.state.clone(), vec![0.0f32; self.tokens * values * HEAD_DIM]);
        for h in 0..values {
            for t in 0..self.tokens {
                let token = &made.normed[t * heads.channels()..];
                let [q, k, v] = heads.qkv_offsets();
                let (q, k) =
                    (&token[q + heads.key_of(h) * HEAD_DIM..], &token[k + heads.key_of(h) * HEAD_DIM..]);
                let v = &token[v + h * HEAD_DIM..];
                let (g, beta) = (exp(made.gate[t * values + h]), made.beta[t * values + h]);
                for c in 0..HEAD_DIM {
                    let sum4 = |p: [f32; 4]| ((p[0] + p[1]) + p[2]) + p[3];
                    let (mut kv, mut o) = ([0.0f32; 4], [0.0f32; 4]);
                    for r in 0..HEAD_DIM {
                        kv[r / 32] = fma(state[self.cell(h, r, c)], k[r], kv[r / 32]);
                    }
                    let delta = fma(-g, sum4(kv), v[c]) * beta;
                    for r in 0..HEAD_DIM {
                        let cell = &mut state[self.cell(h, r, c)];
                        *cell = fma(g, *cell, k[r] * delta);
                        o[r / 32] = fma(*cell, q[r], o[r / 32]);
                    }
                    y[(t * values + h) * HEAD_DIM + c] = canonical(sum4(o) * f32::from_bits(0x3DB5_04F3));
                }
            }
        }
        state.iter_mut().for_each(|x| *x = canonical(*x));
        if self.tokens == 0 {
            state.clone_from(&self.state);
        }
        let out = self.normed_output(&y);
        let gaps = |convert: &dyn Fn(f32) -> u32, sentinel: u32| {
            let spread =
                |row: &[f32]| [row.iter().map(|&x| convert(x)).collect(), vec![sentinel; GAP]].concat();
            out.chunks_exact(values * HEAD_DIM).flat_map(spread).collect::<Vec<u32>>()
        };
        let half = |x: f32, bits: u16| if x.is_nan() { 0x7FFF } else { u32::from(bits) };
        Bits {
            conv_state: bits(&made.conv_state),
            state: bits(&state),
            y: bits(&y),
            out: [
                gaps(&f32::to_bits, f32::from(SENTINEL).to_bits()),
                gaps(&|x| half(x, f16::from_f32(x).to_bits()), SENTINEL.into()),
                gaps(&|x| half(x, bf16::from_f32(x).to_bits()), SENTINEL.into()),
            ],
        }
    }

    fn normed_output(&self, y: &[f32]) -> Vec<f32> {
        let rows = y.chunks_exact(HEAD_DIM).zip(self.z.wide.chunks_exact(HEAD_DIM));
        let norm = |(y, z): (&[f32], &[f32])| {
            let scale = 1.0 / (sum_of_squares(y) / 128.0 + self.options.eps).sqrt();
            let act = |z: f32| match self.options.act {
                NormAct::Sigmoid => 1.0 / (1.0 + exp(-z)),
                NormAct::Silu => z / (1.0 + exp(-z)),
            };
            (0..HEAD_DIM)
                .map(|c| canonical(((y[c] * scale) * self.norm_weight[c]) * act(z[c])))
                .collect::<Vec<_>>()
        };
        rows.flat_map(norm).collect()
    }

    fn gates(&self, packed: bool) -> (PerHead<'_>, PerHead<'_>) {
        let values = self.heads.value();
        match packed {
            true => PerHead::pair(self.ab.floats(), values),
            false => {
                let b = self.ab.floats().slice(values.min(self.ab.wide.len())..self.ab.wide.len());
                (PerHead::strided(self.ab.floats(), 2 * values), PerHead::strided(b, 2 * values))
            }
        }
    }

    /// Runs the call in chunks of these sizes.
    fn run(&self, isa: Isa, workspace: &mut Workspace, chunks: &[usize]) -> Bits {
        let (values, stride) = (self.heads.value(), self.heads.value() * HEAD_DIM + GAP);
        let mut halves = [vec![SENTINEL; self.tokens * stride], vec![SENTINEL; self.tokens * stride]];
        let mut f32s = vec![f32::from(SENTINEL); self.tokens * stride];
        let mut last = None;
        for dtype in Dtype::ALL {
            let (mut conv_state, mut state) = (self.conv_state.clone(), self.state.clone());
            let mut y = vec![0.0; self.tokens * values * HEAD_DIM];
            let [f16s, bf16s] = &mut halves;
            let out = match dtype {
                Dtype::F32 => NormOut::F32(&mut f32s),
                Dtype::F16 => NormOut::F16(bytemuck::cast_slice_mut(f16s)),
                Dtype::Bf16 => NormOut::Bf16(bytemuck::cast_slice_mut(bf16s)),
            };
            let (a, b) = self.gates(dtype == Dtype::F16);
            let mut call = Forward::new(
                self.heads,
                self.tokens,
                ForwardInputs { qkv: self.qkv.floats(), a, b, z: self.z.floats() },
                Weights {
                    conv_weight: &self.conv_weight,
                    conv_bias: self.conv_bias.as_deref(),
                    dt_bias: &self.dt_bias,
                    a_coef: &self.a_coef,
                    norm_weight: &self.norm_weight,
                },
                self.options,
                Carried { conv_state: &mut conv_state, state: &mut state, layout: self.layout },
                ForwardOutputs { y: &mut y, out, out_stride: stride },
            )
            .unwrap();
            let mut from = 0;
            for tokens in chunks {
                let chunk = call.chunk(from..from + tokens).unwrap();
                cpu::forward_with(isa, chunk, workspace).unwrap();
                from += tokens;
            }
            assert_eq!(from, self.tokens);
            let found = (bits(&conv_state), bits(&state), bits(&y));
            assert!(
                last.as_ref().is_none_or(|last| *last == found),
                "{isa}: the output's type changes the rest"
            );
            last = Some(found);
        }
        let (conv_state, state, y) = last.unwrap();
        let words = |half: &[u16]| half.iter().map(|&word| word.into()).collect();
        Bits { conv_state, state, y, out: [bits(&f32s), words(&halves[0]), words(&halves[1])] }
    }

    /// Every instruction set, in one call and in chunks, with a workspace that has been used before.
    #[track_caller]
    fn check(&self, what: &str, chunks: &[usize]) {
        let expected = self.reference();
        let mut workspace = Workspace::new();
        for isa in Isa::available() {
            for chunks in [&[self.tokens], chunks] {
                let found = self.run(isa, &mut workspace, chunks);
                let same = [
                    found.conv_state == expected.conv_state,
                    found.state == expected.state,
                    found.y == expected.y,
                    found.out == expected.out,
                ];
                assert!(same == [true; 4], "{what}, {isa}, {chunks:?}: conv state, state, y, out: {same:?}");
            }
        }
        self.check_steps(what);
    }

    /// The steps before the recurrence one by one.
    #[track_caller]
    fn check_steps(&self, what: &str) {
        let (values, channels, tokens) = (self.heads.value(), self.heads.channels(), self.tokens);
        let expected = self.prepared();
        for isa in Isa::available() {
            let (mut gate, mut beta) = (vec![0.0; tokens * values], vec![0.0; tokens * values]);
            let (a, b) = self.gates(false);
            let call = Gates::new(values, tokens, a, b, &self.dt_bias, &self.a_coef, &mut gate, &mut beta);
            cpu::gates_with(isa, call.unwrap()).unwrap();
            assert!(bits(&gate) == bits(&expected.gate), "{what}, {isa}: gate");
            assert!(bits(&beta) == bits(&expected.beta), "{what}, {isa}: beta");

            let (mut state, mut h) = (self.conv_state.clone(), vec![0.0; tokens * channels]);
            let (qkv, bias) = (self.qkv.floats(), self.conv_bias.as_deref());
            let call = Conv::new(self.heads, tokens, qkv, &self.conv_weight, bias, &mut state, &mut h);
            cpu::conv_with(isa, call.unwrap()).unwrap();
            assert!(bits(&h) == bits(&expected.conv), "{what}, {isa}: conv");
            assert!(bits(&state) == bits(&expected.conv_state), "{what}, {isa}: conv state");

            let rows = 2 * self.heads.key();
            let call = L2Norm::new(rows, tokens, &mut h, channels, self.options.l2_eps);
            cpu::l2norm_with(isa, call.unwrap()).unwrap();
            assert!(bits(&h) == bits(&expected.normed), "{what}, {isa}: l2 norm");
        }
    }
}

#[test]
fn every_number_of_tokens() {
    for (variety, tokens) in [0, 1, 2, 3, 4, 5, 7, 8, 9, 17, 33].into_iter().enumerate() {
        let chunks = vec![1; tokens];
        Layer::new(1, 2, tokens, variety).check(&format!("{tokens} tokens"), &chunks);
    }
}

#[test]
fn every_element_type() {
    for variety in 0..12 {
        Layer::new(2, 4, 6, variety).check(&format!("variety {variety}"), &[4, 2]);
    }
}

#[test]
fn chunks() {
    for (variety, chunks) in [[1, 1], [2, 1], [3, 5], [8, 9], [0, 4], [5, 0]].into_iter().enumerate() {
        Layer::new(2, 2, chunks.iter().sum(), variety).check(&format!("{chunks:?}"), &chunks);
    }
}

/// The CPU's own chunks and pieces end at 64 and 128 tokens.
#[test]
fn long_prompts() {
    for (variety, tokens) in [63, 64, 65, 127, 128, 129, 259].into_iter().enumerate() {
        Layer::new(1, 1, tokens, variety).check(&format!("{tokens} tokens"), &[62, 1, tokens - 63]);
    }
}

#[test]
fn every_number_of_heads() {
    let shapes = [(16, 16), (16, 32), (16, 48), (16, 64), (8, 24), (4, 16), (2, 8), (1, 5), (64, 64)];
    for (variety, (key, value)) in shapes.into_iter().enumerate() {
        Layer::new(key, value, 2, variety).check(&format!("{key}/{value} heads"), &[1, 1]);
    }
}

#[test]
fn edges() {
    let special =
        [f32::INFINITY, -f32::INFINITY, f32::NAN, ODD_NAN, -0.0, 1e-40, 3e38, -3e38, 65504.0, -104.0];
    for (index, &value) in special.iter().enumerate() {
        for variety in 0..3 {
            let clean = Layer::new(2, 4, 5, variety);
            let edits: [&dyn Fn(&mut Layer); 7] = [
                &|l| l.qkv.edit(3 * l.heads.channels() + 2 * 2 * HEAD_DIM + 7, value),
                &|l| l.qkv.edit(4 * l.heads.channels() + 9, value),
                &|l| l.ab.edit(2 * 8 + 1, value),
                &|l| l.ab.edit(2 * 8 + 6, value),
                &|l| l.z.edit(700, value),
                &|l| l.conv_state[5 * HEAD_DIM * 3 + 2] = value,
                &|l| l.state[clean.cell(1, 3, 9)] = value,
            ];
            for (place, edit) in edits.iter().enumerate() {
                let mut layer = clean.clone();
                edit(&mut layer);
                layer.check(&format!("special {index} at {place}, variety {variety}"), &[3, 2]);
            }
        }
    }
}

#[test]
fn extreme_rows() {
    for scale in [0.0, 1e-42, 1e-30, 1e4, 1e19, 1e38] {
        let mut layer = Layer::new(1, 2, 4, 0);
        layer.qkv.wide.iter_mut().for_each(|x| *x *= scale);
        layer.conv_state.iter_mut().for_each(|x| *x *= scale);
        layer.qkv = Held::new(layer.qkv.wide.clone(), Dtype::F32);
        layer.check(&format!("qkv * {scale:e}"), &[2, 2]);
    }
    let mut layer = Layer::new(1, 4, 4, 0);
    layer.dt_bias = vec![500.0, -500.0, 20.0, f32::NAN];
    layer.a_coef = vec![-100.0, -1e-4, -0.0, f32::NEG_INFINITY];
    layer.check("gates", &[2, 2]);
    layer.conv_weight[..HEAD_DIM * 4].fill(0.0);
    layer.conv_state[7] = -1.0;
    layer.check("zero weights, whose products have signs", &[1, 3]);
}

/// A value head's NaN stays with it; a key head's reaches the heads that read it.
#[test]
fn nans_stay_where_they_are_read() {
    let clean = Layer::new(2, 4, 5, 1);
    let [q, k, v] = clean.heads.qkv_offsets();
    let of_key = |key: usize| (0..4).filter(|&h| clean.heads.key_of(h) == key).collect::<Vec<_>>();
    let cases = [(q + HEAD_DIM + 5, of_key(1)), (k + 5, of_key(0)), (v + 2 * HEAD_DIM + 100, vec![2])];
    let isa = Isa::detect();
    let expected = clean.run(isa, &mut Workspace::new(), &[5]);
    for (channel, reached) in cases {
        let mut layer = clean.clone();
        layer.qkv.edit(2 * clean.heads.channels() + channel, f32::NAN);
        let found = layer.run(isa, &mut Workspace::new(), &[5]);
        for (row, (found, expected)) in found.y.chunks(HEAD_DIM).zip(expected.y.chunks(HEAD_DIM)).enumerate()
        {
            let touched = found.contains(&CANONICAL);
            let (t, head) = (row / 4, row % 4);
            assert_eq!(
                touched,
                t >= 2 && reached.contains(&head),
                "channel {channel}, token {t}, head {head}"
            );
            assert!(touched || found == expected);
        }
    }
}

/// The same call by the functions that choose the instruction set.
#[test]
fn without_naming_an_instruction_set() {
    let layer = Layer::new(1, 2, 3, 0);
    let expected = layer.prepared();
    let (a, b) = layer.gates(true);
    let (mut gate, mut beta) = (vec![0.0; 6], vec![0.0; 6]);
    cpu::gates(Gates::new(2, 3, a, b, &layer.dt_bias, &layer.a_coef, &mut gate, &mut beta).unwrap());
    assert_eq!((bits(&gate), bits(&beta)), (bits(&expected.gate), bits(&expected.beta)));
    let (mut state, mut h) = (layer.conv_state.clone(), vec![0.0; 3 * layer.heads.channels()]);
    let (qkv, bias) = (layer.qkv.floats(), layer.conv_bias.as_deref());
    cpu::conv(Conv::new(layer.heads, 3, qkv, &layer.conv_weight, bias, &mut state, &mut h).unwrap());
    assert_eq!(bits(&state), bits(&expected.conv_state));
    cpu::l2norm(L2Norm::new(2, 3, &mut h, layer.heads.channels(), layer.options.l2_eps).unwrap());
    assert!(bits(&h) == bits(&expected.normed));
}
