//! The CPU backend, bit for bit, against a scalar reference written from the specification's formulas: every instruction
//! set of this machine, every layout, and the edges of the arithmetic.

use half::{bf16, f16};
use kernels_gpu::math;
use keyhead::cpu::{self, Isa};
use keyhead::gdn::{
    HEAD_DIM, HeadMap, Heads, NormAct, NormOut, OutNorm, Recurrence, RecurrenceInputs, Rows, StateLayout,
};

const MAPS: [HeadMap; 2] = [HeadMap::Tiled, HeadMap::Grouped];
const LAYOUTS: [StateLayout; 2] = [StateLayout::HeadMajor, StateLayout::RowMajor];

/// A NaN that no arithmetic makes.
const ODD_NAN: f32 = f32::from_bits(0xFFC1_2345);

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

/// Inputs and a state to start from; q, k and v in one packed buffer or each in its own.
#[derive(Clone)]
struct Data {
    heads: Heads,
    layout: StateLayout,
    tokens: usize,
    /// q, k and v: where each starts, and its token stride.
    buffer: Vec<f32>,
    rows: [(usize, usize); 3],
    gate: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
}

/// The state and y behind a call, as bits.
#[derive(Debug, PartialEq)]
struct Bits {
    state: Vec<u32>,
    y: Vec<u32>,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

impl Data {
    fn new(heads: Heads, layout: StateLayout, tokens: usize, packed: bool) -> Self {
        let mut random = Random(tokens as u64 * 1000 + heads.value() as u64);
        let (key, value) = (heads.key() * HEAD_DIM, heads.value() * HEAD_DIM);
        let rows = if packed {
            let stride = 2 * key + value;
            [(0, stride), (key, stride), (2 * key, stride)]
        } else {
            [(0, key), (tokens * key, key), (2 * tokens * key, value)]
        };
        let mut data = Self {
            heads,
            layout,
            tokens,
            buffer: random.vec(tokens * (2 * key + value), 1.0),
            rows,
            gate: random.vec(tokens * heads.value(), 0.5).iter().map(|gate| -gate.abs()).collect(),
            beta: random.vec(tokens * heads.value(), 1.0).iter().map(|beta| beta.abs()).collect(),
            state: random.vec(heads.state_len(), 0.5),
        };
        for t in 0..tokens {
            for (start, stride) in [data.rows[0], data.rows[1]] {
                for row in data.buffer[start + t * stride..][..key].chunks_exact_mut(HEAD_DIM) {
                    let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
                    row.iter_mut().for_each(|x| *x /= length);
                }
            }
        }
        data
    }

    fn small(tokens: usize) -> Self {
        Data::new(Heads::new(1, 2, HeadMap::Tiled).unwrap(), StateLayout::HeadMajor, tokens, false)
    }

    /// Element `i` of a head's row of q (0), k (1) or v (2).
    fn at(&self, tensor: usize, t: usize, head: usize, i: usize) -> usize {
        let (start, stride) = self.rows[tensor];
        start + t * stride + head * HEAD_DIM + i
    }

    fn cell(&self, head: usize, row: usize, column: usize) -> usize {
        match self.layout {
            StateLayout::HeadMajor => (head * HEAD_DIM + row) * HEAD_DIM + column,
            StateLayout::RowMajor => (row * self.heads.value() + head) * HEAD_DIM + column,
        }
    }

    fn inputs(&self, first: usize, tokens: usize) -> RecurrenceInputs<'_> {
        let rows = |i: usize| {
            let (start, stride) = self.rows[i];
            // Behind the last token the packed buffer has ended.
            Rows::strided(self.buffer.get(start + first * stride..).unwrap_or_default(), stride)
        };
        let values = self.heads.value();
        RecurrenceInputs {
            q: rows(0),
            k: rows(1),
            v: rows(2),
            gate: &self.gate[first * values..(first + tokens) * values],
            beta: &self.beta[first * values..(first + tokens) * values],
        }
    }

    /// Runs the backend, in calls of as many tokens as `calls` says.
    fn run(&self, isa: Isa, calls: &[usize]) -> Bits {
        let width = self.heads.value() * HEAD_DIM;
        let (mut state, mut y) = (self.state.clone(), vec![0.0; self.tokens * width]);
        let mut first = 0;
        for &tokens in calls {
            let y = &mut y[first * width..(first + tokens) * width];
            let inputs = self.inputs(first, tokens);
            let call = Recurrence::new(self.heads, self.layout, tokens, inputs, &mut state, y).unwrap();
            cpu::recurrence_with(isa, call).unwrap();
            first += tokens;
        }
        assert_eq!(first, self.tokens);
        Bits { state: bits(&state), y: bits(&y) }
    }

    /// The recurrence, a column at a time.
    fn reference(&self) -> Bits {
        let values = self.heads.value();
        let (mut state, mut y) = (self.state.clone(), vec![0.0; self.tokens * values * HEAD_DIM]);
        for head in 0..values {
            let key_head = match self.heads.map() {
                HeadMap::Tiled => head % self.heads.key(),
                HeadMap::Grouped => head / (values / self.heads.key()),
            };
            for column in 0..HEAD_DIM {
                let mut s: [f32; HEAD_DIM] = std::array::from_fn(|row| state[self.cell(head, row, column)]);
                for t in 0..self.tokens {
                    let q = &self.buffer[self.at(0, t, key_head, 0)..][..HEAD_DIM];
                    let k = &self.buffer[self.at(1, t, key_head, 0)..][..HEAD_DIM];
                    let v = self.buffer[self.at(2, t, head, column)];
                    let g = math::exp(self.gate[t * values + head]);
                    let beta = self.beta[t * values + head];

                    let mut p = [0.0f32; 4];
                    for r in 0..HEAD_DIM {
                        p[r / 32] = s[r].mul_add(k[r], p[r / 32]);
                    }
                    let kv = ((p[0] + p[1]) + p[2]) + p[3];
                    let delta = (-g).mul_add(kv, v) * beta;
                    let mut o = [0.0f32; 4];
                    for r in 0..HEAD_DIM {
                        let change = k[r] * delta;
                        s[r] = g.mul_add(s[r], change);
                        o[r / 32] = s[r].mul_add(q[r], o[r / 32]);
                    }
                    let sum = ((o[0] + o[1]) + o[2]) + o[3];
                    y[(t * values + head) * HEAD_DIM + column] = canonical(sum * f32::from_bits(0x3DB5_04F3));
                }
                if self.tokens > 0 {
                    for (row, &s) in s.iter().enumerate() {
                        state[self.cell(head, row, column)] = canonical(s);
                    }
                }
            }
        }
        Bits { state: bits(&state), y: bits(&y) }
    }

    fn check(&self, what: &str) {
        let expected = self.reference();
        for isa in Isa::available() {
            assert!(self.run(isa, &[self.tokens]) == expected, "{isa}, {what}");
        }
    }
}

fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(0x7FFF_FFFF) } else { x }
}

#[test]
fn every_number_of_tokens() {
    for (i, tokens) in [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 257, 1000].into_iter().enumerate() {
        let heads = Heads::new(1, 1 + i % 2, MAPS[i % 2]).unwrap();
        Data::new(heads, LAYOUTS[i / 2 % 2], tokens, i / 4 % 2 == 0).check(&format!("{tokens} tokens"));
    }
    let heads = Heads::new(1, 1, HeadMap::Tiled).unwrap();
    Data::new(heads, StateLayout::HeadMajor, 4099, false).check("4099 tokens");
}

#[test]
fn every_shape_and_layout() {
    for per_key in 1..=5 {
        for map in MAPS {
            for layout in LAYOUTS {
                for packed in [false, true] {
                    let heads = Heads::new(3, 3 * per_key, map).unwrap();
                    let what = format!("{heads:?}, {layout:?}, packed {packed}");
                    Data::new(heads, layout, 3, packed).check(&what);
                }
            }
        }
    }
    Data::new(Heads::new(16, 48, HeadMap::Grouped).unwrap(), StateLayout::RowMajor, 5, true).check("16 x 48");
    Data::new(Heads::new(64, 64, HeadMap::Tiled).unwrap(), StateLayout::HeadMajor, 2, false).check("64 x 64");
}

#[test]
fn two_calls_are_one() {
    let tokens = 33;
    for packed in [false, true] {
        let heads = Heads::new(2, 4, HeadMap::Grouped).unwrap();
        let data = Data::new(heads, StateLayout::RowMajor, tokens, packed);
        for isa in Isa::available() {
            let once = data.run(isa, &[tokens]);
            for first in [0, 1, 2, 16, 31, 32, 33] {
                assert!(data.run(isa, &[first, tokens - first]) == once, "{isa}: {first} first");
            }
        }
    }
}

#[test]
fn nothing_beside_the_outputs_is_written() {
    const SENTINEL: f32 = -77.25;
    let data = Data::new(Heads::new(1, 3, HeadMap::Tiled).unwrap(), StateLayout::RowMajor, 4, true);
    let expected = data.reference();
    // An odd offset also takes the vectors off their alignment.
    for offset in [1, 3, 16] {
        for isa in Isa::available() {
            let guard = vec![SENTINEL; offset];
            let mut state = [&guard[..], &data.state, &guard].concat();
            let mut y = vec![SENTINEL; expected.y.len() + 2 * offset];
            let (inner_state, inner_y) =
                (offset..offset + expected.state.len(), offset..offset + expected.y.len());
            let call = Recurrence::new(
                data.heads,
                data.layout,
                data.tokens,
                data.inputs(0, data.tokens),
                &mut state[inner_state.clone()],
                &mut y[inner_y.clone()],
            );
            cpu::recurrence_with(isa, call.unwrap()).unwrap();
            assert!(
                bits(&state[inner_state.clone()]) == expected.state
                    && bits(&y[inner_y.clone()]) == expected.y
            );
            for (buffer, inner) in [(&state, inner_state), (&y, inner_y)] {
                assert_eq!(buffer[..inner.start], guard);
                assert_eq!(buffer[inner.end..], guard);
            }
        }
    }
}

#[test]
fn no_tokens_touch_nothing() {
    let mut data = Data::small(0);
    data.state[5] = ODD_NAN;
    let before = bits(&data.state);
    for isa in Isa::available() {
        assert_eq!(data.run(isa, &[0]).state, before);
    }
}

#[test]
fn edges() {
    for gate in [0.0, -30.0, -100.0, f32::NEG_INFINITY] {
        let mut data = Data::small(9);
        data.gate.fill(gate);
        data.check(&format!("gate {gate}"));
    }
    for beta in [0.0, 1.0] {
        let mut data = Data::small(9);
        data.beta.fill(beta);
        data.check(&format!("beta {beta}"));
    }
    let mut data = Data::small(9);
    for t in [0, 4, 5, 8] {
        let row = data.at(1, t, 0, 0);
        data.buffer[row..row + HEAD_DIM].fill(0.0);
    }
    data.check("zero k");
    // 1e-42 is denormal, and 1e-30 times a k is soon; 1e38 overflows.
    for scale in [1e4, 1e-30, 1e-42, 1e38] {
        let mut data = Data::small(9);
        let (start, _) = data.rows[2];
        data.buffer[start..].iter_mut().for_each(|v| *v *= scale);
        data.state.iter_mut().for_each(|s| *s *= scale);
        data.check(&format!("v {scale}"));
    }
}

#[test]
fn denormals_are_kept() {
    let mut data = Data::small(2);
    data.state.fill(1e-42);
    data.buffer[data.rows[2].0..].fill(0.0);
    for isa in Isa::available() {
        let bits = data.run(isa, &[2]);
        assert!(bits.state.iter().any(|&s| s != 0 && s & 0x7F80_0000 == 0), "{isa}");
    }
}

#[test]
fn a_nan_stays_in_its_head_and_becomes_the_canonical_one() {
    let clean = Data::new(Heads::new(2, 6, HeadMap::Grouped).unwrap(), StateLayout::RowMajor, 7, true);
    let head = 2;
    let gate = 3 * 6 + head;
    let v = clean.at(2, 3, head, 40);
    let state = clean.cell(head, 9, 9);
    let poisons: [fn(&mut Data, [usize; 3]); 4] = [
        |data, [gate, ..]| data.gate[gate] = ODD_NAN,
        |data, [gate, ..]| data.beta[gate] = ODD_NAN,
        |data, [_, v, _]| data.buffer[v] = ODD_NAN,
        |data, [.., state]| data.state[state] = ODD_NAN,
    ];
    for (i, poison) in poisons.into_iter().enumerate() {
        let mut data = clean.clone();
        poison(&mut data, [gate, v, state]);
        data.check(&format!("poison {i}"));
        for isa in Isa::available() {
            let (bits, clean) = (data.run(isa, &[7]), clean.run(isa, &[7]));
            let nan = |bits: &u32| f32::from_bits(*bits).is_nan();
            assert!(bits.state.iter().any(nan) && bits.y.iter().any(nan));
            for all in [&bits.state, &bits.y] {
                assert!(all.iter().filter(|bits| nan(bits)).all(|&bits| bits == 0x7FFF_FFFF));
            }
            // Both buffers have the heads side by side.
            for (bits, clean) in [(&bits.state, &clean.state), (&bits.y, &clean.y)] {
                for (row, (bits, clean)) in bits.chunks(HEAD_DIM).zip(clean.chunks(HEAD_DIM)).enumerate() {
                    assert!(row % 6 == head || bits == clean, "{isa}: poison {i} reached head {}", row % 6);
                }
            }
        }
    }
}

/// Root mean square of the difference, relative to that of the values.
fn distance(bits: &[u32], exact: &[f64]) -> f64 {
    let square = |sum: f64, x: f64| sum + x * x;
    let difference = bits.iter().zip(exact).map(|(&b, x)| f64::from(f32::from_bits(b)) - x).fold(0.0, square);
    (difference / exact.iter().copied().fold(0.0, square)).sqrt()
}

/// Measured: 6e-8 for the state, 1.4e-7 for y after 1000 tokens.
#[test]
fn within_the_f32_noise_of_f64() {
    let tokens = 1000;
    let data = Data::new(Heads::new(1, 1, HeadMap::Tiled).unwrap(), StateLayout::HeadMajor, tokens, false);
    let mut state: Vec<f64> = data.state.iter().map(|&s| s.into()).collect();
    let mut y = vec![0.0f64; tokens * HEAD_DIM];
    for t in 0..tokens {
        let row = |tensor| data.buffer[data.at(tensor, t, 0, 0)..][..HEAD_DIM].iter().map(|&x| f64::from(x));
        let (g, beta) = (f64::from(data.gate[t]).exp(), f64::from(data.beta[t]));
        let mut delta: Vec<f64> = row(2).collect();
        for (k, s) in row(1).zip(state.chunks_exact_mut(HEAD_DIM)) {
            for (delta, s) in delta.iter_mut().zip(s) {
                *s *= g;
                *delta -= k * *s;
            }
        }
        for ((q, k), s) in row(0).zip(row(1)).zip(state.chunks_exact_mut(HEAD_DIM)) {
            for ((s, delta), y) in s.iter_mut().zip(&delta).zip(&mut y[t * HEAD_DIM..]) {
                *s += k * delta * beta;
                *y += q * *s / 128f64.sqrt();
            }
        }
    }
    let bits = data.run(Isa::detect(), &[tokens]);
    let (state, y) = (distance(&bits.state, &state), distance(&bits.y, &y));
    println!("relative to f64: state {state:.2e}, y {y:.2e}");
    assert!(state < 5e-7 && y < 5e-7, "state {state:.2e}, y {y:.2e}");
}

/// The out norm in f32, straight from the formulas.
fn norm_reference(values: usize, y: &[f32], z: &[f32], weight: &[f32], act: NormAct, eps: f32) -> Vec<f32> {
    assert_eq!(y.len() % (values * HEAD_DIM), 0);
    let mut out = Vec::with_capacity(y.len());
    for (y, z) in y.chunks_exact(HEAD_DIM).zip(z.chunks_exact(HEAD_DIM)) {
        let groups: Vec<f32> = y
            .chunks_exact(32)
            .map(|group| {
                let mut lanes: Vec<f32> = group.iter().map(|y| y * y).collect();
                for distance in [16, 8, 4, 2, 1] {
                    lanes = (0..32).map(|lane| lanes[lane] + lanes[lane ^ distance]).collect();
                }
                lanes[0]
            })
            .collect();
        let ss = ((groups[0] + groups[1]) + groups[2]) + groups[3];
        let scale = 1.0 / (ss / 128.0 + eps).sqrt();
        for c in 0..HEAD_DIM {
            let below = 1.0 + math::exp(-z[c]);
            let act = match act {
                NormAct::Sigmoid => 1.0 / below,
                NormAct::Silu => z[c] / below,
            };
            out.push(canonical(((y[c] * scale) * weight[c]) * act));
        }
    }
    out
}

/// Runs the out norm into every type over a buffer of sentinels, and compares all of it.
fn check_norm(values: usize, y: &[f32], z: &[f32], weight: &[f32], eps: f32, gap: usize) {
    let width = values * HEAD_DIM;
    let (tokens, stride) = (y.len() / width, width + gap);
    for act in [NormAct::Sigmoid, NormAct::Silu] {
        let expected = norm_reference(values, y, z, weight, act, eps);
        let spread = |sentinel: u32, convert: &dyn Fn(f32) -> u32| {
            let mut all = vec![sentinel; tokens * stride];
            for (to, from) in all.chunks_exact_mut(stride).zip(expected.chunks_exact(width)) {
                to.iter_mut().zip(from).for_each(|(to, &from)| *to = convert(from));
            }
            all
        };
        let nan_or = |x: f32, bits: u16| if x.is_nan() { 0x7FFF } else { u32::from(bits) };
        for isa in Isa::available() {
            let run = |out: NormOut<'_>| {
                let call = OutNorm::new(values, tokens, y, z, weight, act, eps, out, stride).unwrap();
                cpu::out_norm_with(isa, call).unwrap();
            };
            let what = format!("{isa}, {act:?}, {values} heads, {tokens} tokens");

            let mut out = vec![f32::from_bits(7); tokens * stride];
            run(NormOut::F32(&mut out));
            assert!(bits(&out) == spread(7, &|x| x.to_bits()), "f32, {what}");

            let mut out = vec![f16::from_bits(7); tokens * stride];
            run(NormOut::F16(&mut out));
            let out: Vec<u32> = out.iter().map(|x| x.to_bits().into()).collect();
            assert!(out == spread(7, &|x| nan_or(x, f16::from_f32(x).to_bits())), "f16, {what}");

            let mut out = vec![bf16::from_bits(7); tokens * stride];
            run(NormOut::Bf16(&mut out));
            let out: Vec<u32> = out.iter().map(|x| x.to_bits().into()).collect();
            assert!(out == spread(7, &|x| nan_or(x, bf16::from_f32(x).to_bits())), "bf16, {what}");
        }
    }
}

#[test]
fn out_norm_of_every_shape() {
    let mut random = Random(3);
    let weight = random.vec(HEAD_DIM, 2.0);
    for (values, tokens, gap) in [(1, 1, 0), (1, 0, 5), (1, 300, 1), (3, 7, 8), (48, 5, 0), (64, 3, 3)] {
        let y = random.vec(values * tokens * HEAD_DIM, 1.5);
        let z = random.vec(values * tokens * HEAD_DIM, 12.0);
        check_norm(values, &y, &z, &weight, 1e-6, gap);
    }
}

#[test]
fn out_norm_at_the_edges() {
    let mut random = Random(4);
    // The weights spread the results over all magnitudes: overflow, denormals and zero of f16 and bf16.
    let weight: Vec<f32> = (0..HEAD_DIM).map(|c| random.next() * 2f32.powi(2 * c as i32 - 127)).collect();
    let edges = [
        0.0,
        -0.0,
        1e-45,
        -1e-40,
        1e-20,
        1e18,
        1e30,
        -88.8,
        88.8,
        -104.0,
        104.0,
        f32::INFINITY,
        -f32::INFINITY,
    ];
    for scale in [0.0, 1e-42, 1e-20, 1.0, 1e19, 1e30] {
        let y = random.vec(8 * HEAD_DIM, scale);
        let mut z = random.vec(8 * HEAD_DIM, 100.0);
        for (i, z) in z.iter_mut().enumerate().step_by(3) {
            *z = edges[i / 3 % edges.len()];
        }
        for eps in [0.0, 1e-6] {
            check_norm(2, &y, &z, &weight, eps, 0);
        }
    }
    // A NaN in y is all of its row's, one in z its own element's.
    let mut y = random.vec(4 * HEAD_DIM, 1.0);
    let mut z = random.vec(4 * HEAD_DIM, 1.0);
    y[HEAD_DIM + 77] = ODD_NAN;
    z[2 * HEAD_DIM + 3] = ODD_NAN;
    z[3 * HEAD_DIM + 3] = f32::NAN;
    check_norm(2, &y, &z, &weight, 1e-6, 2);
}

#[test]
fn without_naming_an_instruction_set() {
    let data = Data::small(3);
    let mut state = data.state.clone();
    let mut y = vec![0.0; 3 * 2 * HEAD_DIM];
    let call = Recurrence::new(data.heads, data.layout, 3, data.inputs(0, 3), &mut state, &mut y);
    cpu::recurrence(call.unwrap());
    assert!(Bits { state: bits(&state), y: bits(&y) } == data.reference());

    let weight = vec![1.0; HEAD_DIM];
    let mut out = vec![0.0; y.len()];
    let to = NormOut::F32(&mut out);
    let call = OutNorm::new(2, 3, &y, &y[..], &weight, NormAct::Silu, 1e-6, to, 2 * HEAD_DIM);
    cpu::out_norm(call.unwrap());
    assert_eq!(bits(&out), bits(&norm_reference(2, &y, &y, &weight, NormAct::Silu, 1e-6)));
}
