//! Inputs for checks, tests and benchmarks: random, from a seed, the same on every machine that has the same libm.

use crate::cpu;
use crate::gdn::{
    HEAD_DIM, Heads, NormAct, NormOut, OutNorm, Recurrence, RecurrenceInputs, Rows, StateLayout,
};

/// A shape to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub heads: Heads,
    pub layout: StateLayout,
    pub tokens: usize,
    /// q, k and v in one `[T][2 * HK * 128 + HV * 128]` buffer, as behind the conv; else a buffer each.
    pub packed: bool,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shape { heads, layout, tokens, packed } = self;
        let qkv = if *packed { "packed" } else { "separate" };
        write!(f, "{}x{} {:?} {layout:?} {qkv} T={tokens}", heads.key(), heads.value(), heads.map())
    }
}

/// The inputs of a DeltaNet call of one shape. Change what a test needs changed.
#[derive(Clone, Debug)]
pub struct Data {
    pub shape: Shape,
    /// One packed buffer, or q, k and v behind each other.
    pub qkv: Vec<f32>,
    pub gate: Vec<f32>,
    pub beta: Vec<f32>,
    pub state: Vec<f32>,
    pub z: Vec<f32>,
    pub weight: Vec<f32>,
}

/// What a DeltaNet call leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub y: Vec<f32>,
    pub state: Vec<f32>,
}

impl Data {
    /// q and k rows of length 1, gates between -0.82 and -0.02, betas between 0 and 1, a state that is not zero.
    pub fn random(shape: Shape, seed: u64) -> Data {
        let (key, value, tokens) = (shape.heads.key(), shape.heads.value(), shape.tokens);
        let mut random = Random(seed);
        let mut rows = |heads: usize, unit: bool| {
            let mut rows: Vec<f32> = (0..tokens * heads * HEAD_DIM).map(|_| random.normal()).collect();
            if unit {
                rows.chunks_exact_mut(HEAD_DIM).for_each(normalise);
            }
            rows
        };
        let (q, k, v) = (rows(key, true), rows(key, true), rows(value, false));
        let qkv = match shape.packed {
            false => [q, k, v].concat(),
            true => (0..tokens)
                .flat_map(|t| [(&q, key), (&k, key), (&v, value)].map(|(rows, heads)| (rows, heads, t)))
                .flat_map(|(rows, heads, t)| &rows[t * heads * HEAD_DIM..][..heads * HEAD_DIM])
                .copied()
                .collect(),
        };
        let per_token = tokens * value;
        Data {
            shape,
            qkv,
            gate: (0..per_token).map(|_| -0.02 - 0.8 * random.uniform().powi(3)).collect(),
            beta: (0..per_token).map(|_| 1.0 / (1.0 + (-random.normal()).exp())).collect(),
            state: (0..shape.heads.state_len()).map(|_| 0.05 * random.normal()).collect(),
            z: (0..per_token * HEAD_DIM).map(|_| random.normal()).collect(),
            weight: (0..HEAD_DIM).map(|_| 1.0 + 0.1 * random.normal()).collect(),
        }
    }

    /// Offsets of q, k and v in `qkv` and the token strides, in elements.
    pub fn places(&self) -> [(usize, usize); 3] {
        let Shape { heads, tokens, packed, .. } = self.shape;
        let (key, value) = (heads.key() * HEAD_DIM, heads.value() * HEAD_DIM);
        match packed {
            true => [0, key, 2 * key].map(|offset| (offset, 2 * key + value)),
            false => [(0, key), (tokens * key, key), (2 * tokens * key, value)],
        }
    }

    pub fn inputs(&self) -> RecurrenceInputs<'_> {
        let [q, k, v] = self
            .places()
            .map(|(offset, stride)| Rows::strided(self.qkv.get(offset..).unwrap_or_default(), stride));
        RecurrenceInputs { q, k, v, gate: &self.gate, beta: &self.beta }
    }

    /// The initial state, and a y full of a value that no kernel writes.
    pub fn blank(&self) -> Output {
        let y = vec![f32::from_bits(0x7fa5_a5a5); self.shape.tokens * self.shape.heads.value() * HEAD_DIM];
        Output { y, state: self.state.clone() }
    }

    /// The call on `output`'s buffers.
    pub fn call<'a>(&'a self, output: &'a mut Output) -> Recurrence<'a> {
        let Shape { heads, layout, tokens, .. } = self.shape;
        Recurrence::new(heads, layout, tokens, self.inputs(), &mut output.state, &mut output.y)
            .expect("the buffers fit the shape they were made for")
    }

    /// The out norm of `y` into `out`, rows without gaps.
    pub fn norm_call<'a>(&'a self, y: &'a [f32], act: NormAct, out: NormOut<'a>) -> OutNorm<'a> {
        let (heads, tokens) = (self.shape.heads.value(), self.shape.tokens);
        OutNorm::new(heads, tokens, y, &self.z[..], &self.weight, act, 1e-6, out, heads * HEAD_DIM)
            .expect("the buffers fit the shape they were made for")
    }

    /// What the CPU backend computes.
    pub fn expected(&self) -> Output {
        let mut output = self.blank();
        cpu::recurrence(self.call(&mut output));
        output
    }
}

fn normalise(row: &mut [f32]) {
    let length = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    row.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
}

/// splitmix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1).
    pub(super) fn uniform(&mut self) -> f32 {
        ((self.next() >> 41) as f32 + 0.5) / (1u32 << 23) as f32
    }

    /// Box-Muller.
    pub(super) fn normal(&mut self) -> f32 {
        let (radius, turn) = (self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f32::consts::TAU * turn).cos()
    }
}
