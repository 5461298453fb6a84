//! The Gated DeltaNet layer of Qwen3-Next, Qwen3.5 and Qwen4-Exp, whole: the projections are plain matrix products, all between
//! them is one call of keyhead.

use keyhead::cpu::Workspace;
use keyhead::gdn::{
    CONV_HISTORY, CONV_TAPS, Carried, Forward, ForwardInputs, ForwardOptions, ForwardOutputs, HEAD_DIM,
    HeadMap, Heads, NormAct, NormOut, PerHead, StateLayout, Weights, a_coef,
};
use keyhead::io::{Dim, FLOATS, File};
use keyhead::{Backend, Error, Result};

/// A matrix `[rows][columns]` that maps `columns` numbers to `rows`, as `torch.nn.Linear` holds it.
struct Linear {
    weight: Vec<f32>,
    rows: usize,
    columns: usize,
}

impl Linear {
    fn read(file: &File, name: &str, rows: Dim, columns: Dim) -> Result<Linear> {
        let tensor = file.tensor(&format!("weight.{name}.weight"), [rows, columns], FLOATS)?;
        let [rows, columns] = tensor.shape();
        Ok(Linear { weight: tensor.f32()?, rows, columns })
    }

    /// The rows of these ranges, one range behind the other.
    fn select(&self, ranges: impl IntoIterator<Item = std::ops::Range<usize>>) -> Linear {
        let row = |row: usize| &self.weight[row * self.columns..][..self.columns];
        let weight: Vec<f32> = ranges.into_iter().flatten().flat_map(row).copied().collect();
        Linear { rows: weight.len() / self.columns.max(1), columns: self.columns, weight }
    }

    /// `[tokens][columns]` to `[tokens][rows]`.
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let Linear { weight, rows, columns } = self;
        let tokens = x.len() / (*columns).max(1);
        let mut y = vec![0.0; tokens * rows];
        let (row, column) = (*rows as isize, *columns as isize);
        // SAFETY: x is [tokens][columns], the weight [rows][columns], read transposed, and y [tokens][rows].
        unsafe {
            let (x, weight, y) = (x.as_ptr(), weight.as_ptr(), y.as_mut_ptr());
            matrixmultiply::sgemm(
                tokens, *columns, *rows, 1.0, x, column, 1, weight, 1, column, 0.0, y, row, 1,
            );
        }
        y
    }
}

/// A layer's parameters.
pub struct Layer {
    pub heads: Heads,
    qkv: Linear,
    z: Linear,
    a: Linear,
    b: Linear,
    out: Linear,
    conv_weight: Vec<f32>,
    dt_bias: Vec<f32>,
    a_coef: Vec<f32>,
    norm_weight: Vec<f32>,
    options: ForwardOptions,
}

/// What a sequence carries from call to call.
pub struct Sequence {
    pub conv_state: Vec<f32>,
    pub state: Vec<f32>,
    workspace: Workspace,
}

impl Layer {
    /// Reads `weight.*`, the parameters by the names that transformers gives them, and `gate` and `eps` of the metadata.
    pub fn read(file: &File) -> Result<Layer> {
        let (any, head) = (Dim::Any("C"), Dim::Just(HEAD_DIM));
        let conv = file.tensor("weight.conv1d.weight", [any, Dim::Just(1), Dim::Just(CONV_TAPS)], FLOATS)?;
        let a_log = file.tensor("weight.A_log", [Dim::Any("HV")], FLOATS)?;
        let ([channels, ..], [value]) = (conv.shape(), a_log.shape());
        // Hugging Face's order: neighbouring value heads share a key head.
        let key = (channels / HEAD_DIM).saturating_sub(value) / 2;
        let heads = Heads::new(key, value, HeadMap::Grouped)?;

        let hv = Dim::Is("HV", value);
        let out = Linear::read(file, "out_proj", Dim::Any("H"), Dim::Just(value * HEAD_DIM))?;
        let hidden = Dim::Is("H", out.rows);
        let [qkv, z, a, b] = if file.has("weight.in_proj_qkvz.weight") {
            qwen3_next(file, heads, hidden)?
        } else {
            let read = |name, rows| Linear::read(file, name, Dim::Just(rows), hidden);
            [
                read("in_proj_qkv", heads.channels())?,
                read("in_proj_z", value * HEAD_DIM)?,
                read("in_proj_a", value)?,
                read("in_proj_b", value)?,
            ]
        };
        let text = |key: &str| file.metadata().get(key).map(String::as_str).unwrap_or_default();
        let wrong = |argument: &str, accepted: &str| Error::Argument {
            argument: format!("{argument} of the file's metadata"),
            found: text(argument).into(),
            accepted: accepted.into(),
        };
        let act = match text("gate") {
            "silu" => NormAct::Silu,
            "sigmoid" => NormAct::Sigmoid,
            _ => return Err(wrong("gate", "silu, sigmoid")),
        };
        let eps = text("eps").parse().map_err(|_| wrong("eps", "a number"))?;
        Ok(Layer {
            heads,
            qkv,
            z,
            a,
            b,
            out,
            conv_weight: conv.f32()?,
            dt_bias: file.tensor("weight.dt_bias", [hv], FLOATS)?.f32()?,
            a_coef: a_log.f32()?.into_iter().map(a_coef).collect(),
            norm_weight: file.tensor("weight.norm.weight", [head], FLOATS)?.f32()?,
            options: ForwardOptions { act, eps, l2_eps: 1e-6 },
        })
    }

    /// A sequence before its first token.
    pub fn sequence(&self) -> Sequence {
        Sequence {
            conv_state: vec![0.0; self.heads.channels() * CONV_HISTORY],
            state: vec![0.0; self.heads.state_len()],
            workspace: Workspace::new(),
        }
    }

    /// The next tokens of a sequence, `[tokens][hidden]`, be they a prompt or one at a time: the layer's output for each.
    pub fn forward(&self, backend: &Backend, sequence: &mut Sequence, hidden: &[f32]) -> Result<Vec<f32>> {
        let (value, width) = (self.heads.value(), self.heads.value() * HEAD_DIM);
        let [qkv, z, a, b] = [&self.qkv, &self.z, &self.a, &self.b].map(|linear| linear.apply(hidden));
        let tokens = qkv.len() / self.heads.channels();
        let (mut y, mut normed) = (vec![0.0; tokens * width], vec![0.0; tokens * width]);
        let inputs = ForwardInputs {
            qkv: qkv[..].into(),
            a: PerHead::packed(&a[..], value),
            b: PerHead::packed(&b[..], value),
            z: z[..].into(),
        };
        let weights = Weights {
            conv_weight: &self.conv_weight,
            conv_bias: None,
            dt_bias: &self.dt_bias,
            a_coef: &self.a_coef,
            norm_weight: &self.norm_weight,
        };
        let carried = Carried {
            conv_state: &mut sequence.conv_state,
            state: &mut sequence.state,
            layout: StateLayout::HeadMajor,
        };
        let outputs = ForwardOutputs { y: &mut y, out: NormOut::F32(&mut normed), out_stride: width };
        let call = Forward::new(self.heads, tokens, inputs, weights, self.options, carried, outputs)?;
        backend.forward(call, &mut sequence.workspace, None)?;
        Ok(self.out.apply(&normed))
    }
}

/// Qwen3-Next has two projections, whose rows are grouped by key head: `[q | k | v of its value heads | z of them]` and
/// `[b | a]`.
fn qwen3_next(file: &File, heads: Heads, hidden: Dim) -> Result<[Linear; 4]> {
    let (key, value, per_key) = (heads.key(), heads.value(), heads.per_key());
    let values = per_key * HEAD_DIM;
    let group = 2 * HEAD_DIM + 2 * values;
    let qkvz = Linear::read(file, "in_proj_qkvz", Dim::Just(key * group), hidden)?;
    let ba = Linear::read(file, "in_proj_ba", Dim::Just(2 * value), hidden)?;
    let part = |start: usize, len: usize| (0..key).map(move |j| j * group + start..j * group + start + len);
    let (q, k) = (part(0, HEAD_DIM), part(HEAD_DIM, HEAD_DIM));
    let (v, z) = (part(2 * HEAD_DIM, values), part(2 * HEAD_DIM + values, values));
    let half =
        |start: usize| (0..key).map(move |j| 2 * j * per_key + start..2 * j * per_key + start + per_key);
    Ok([qkvz.select(q.chain(k).chain(v)), qkvz.select(z), ba.select(half(per_key)), ba.select(half(0))])
}

/// How far a layer's results are from a file's, each relative to the largest value.
#[derive(Debug)]
pub struct Errors {
    pub prompt: f64,
    pub decode: f64,
    pub state: f64,
    pub conv_state: f64,
}

/// Runs a file's `hidden_states` as a prompt, then its `decode_hidden_states` one at a time.
pub fn run(file: &File, backend: &Backend) -> Result<Errors> {
    let layer = Layer::read(file)?;
    let mut sequence = layer.sequence();
    let tensor = |name: &str| -> Result<Vec<f32>> {
        file.tensor(name, [Dim::Any("T"), Dim::Is("H", layer.out.rows)], FLOATS)?.f32()
    };
    let output = layer.forward(backend, &mut sequence, &tensor("hidden_states")?)?;
    let prompt = error(&output, &tensor("output")?);

    let (channels, value) = (layer.heads.channels(), layer.heads.value());
    let dims = [Dim::Is("C", channels), Dim::Just(CONV_HISTORY)];
    let conv_state = error(&sequence.conv_state, &file.tensor("conv_state", dims, FLOATS)?.f32()?);
    // The file holds some of the heads, and sums over the rows of all.
    let sums =
        file.tensor("final_state_sum_k", [Dim::Is("HV", value), Dim::Just(HEAD_DIM)], FLOATS)?.f32()?;
    let summed = sequence.state.chunks_exact(HEAD_DIM * HEAD_DIM).flat_map(|head| {
        (0..HEAD_DIM)
            .map(|c| head.iter().skip(c).step_by(HEAD_DIM).map(|&x| f64::from(x)).sum::<f64>() as f32)
    });
    let state = error(&summed.collect::<Vec<_>>(), &sums);

    let mut decoded = Vec::new();
    for hidden in tensor("decode_hidden_states")?.chunks_exact(layer.out.rows) {
        decoded.extend(layer.forward(backend, &mut sequence, hidden)?);
    }
    let decode = error(&decoded, &tensor("decode_output")?);
    Ok(Errors { prompt, decode, state, conv_state })
}

/// The largest difference, relative to the largest expected value; NaN where there is one, or the lengths differ.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::NAN;
    }
    let most = |most: f64, x: f64| if x.is_nan() { x } else { most.max(x) };
    let pairs = found.iter().zip(expected);
    let difference = pairs.map(|(&a, &b)| f64::from(a) - f64::from(b)).map(f64::abs).fold(0.0, most);
    difference / expected.iter().map(|&x| f64::from(x.abs())).fold(0.0, most)
}
