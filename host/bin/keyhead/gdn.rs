//! `keyhead gdn`.

use crate::{backend, say};
use clap::ValueEnum;
use half::{bf16, f16};
use indicatif::{ProgressBar, ProgressStyle};
use keyhead::gdn::{
    HEAD_DIM, HeadMap, Heads, NormAct, NormOut, OutNorm, Recurrence, RecurrenceInputs, Rows, StateLayout,
    Variant,
};
use keyhead::io::{self, Data, Dim, Dtype, FLOATS, File, Output, Tensor};
use keyhead::{Backend, Error, Result};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

const TENSORS: &str = "\
Tensors of IN (f32, f16 or bf16; a leading batch dimension of 1 is accepted; others are ignored):
  q, k            [T, HK, 128]     l2-normalised already, not scaled
  v               [T, HV, 128]     HV is a multiple of HK
  g               [T, HV]          the log of the decay, at most 0
  beta            [T, HV]
  initial_state   [HV, 128, 128]   optional: rows are the key dim, columns the value dim; else zeros. Or as
                                   initial_state_i8 [N, 128, 128] (i8) and initial_state_scale [1]:
                                   head h starts from initial_state_i8[h % N] * initial_state_scale
  z               [T, HV, 128]     optional, with norm_weight: the gate of the out norm
  norm_weight     [128]            optional, with z; finite

Tensors of OUT:
  y               [T, HV, 128]     f32, the output of the recurrence
  final_state     [HV, 128, 128]   f32
  out             [T, HV, 128]     where z and norm_weight are there: y normed, weighted and gated, in --out-dtype

The bytes of OUT do not depend on the backend or the variant. OUT may be IN.

Example:
  keyhead gdn examples/layer.safetensors -o out.safetensors --head-map grouped --norm-act silu";

/// Run the recurrence, and the gated out norm, on the tensors of a safetensors file
///
/// Two conventions exist for the head map and for the norm's activation, and the wrong one gives plausible wrong numbers:
/// --head-map and --norm-act have no default.
#[derive(clap::Args)]
#[command(after_help = TENSORS)]
pub struct Args {
    /// The safetensors file to read
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The safetensors file to write; it appears only complete
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Which key head a value head reads
    #[arg(long, value_enum)]
    head_map: HeadMapArg,
    /// What the out norm does to z; needed where z and norm_weight are there
    #[arg(long, value_enum)]
    norm_act: Option<NormActArg>,
    /// Where to run: auto (CUDA device 0 where it can be used, else the CPU), cpu, cuda or cuda:N
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    backend: backend::Choice,
    /// The GPU kernel of the recurrence: auto, heads, cols, pipe, keyhead or scan; all give the same bits
    #[arg(long, default_value = "auto")]
    variant: VariantArg,
    /// The number that the out norm adds to the mean of the squares
    #[arg(long, default_value = "1e-6", value_parser = eps, allow_hyphen_values = true)]
    eps: f32,
    /// The dtype of `out`
    #[arg(long, value_enum, default_value = "f16")]
    out_dtype: OutDtype,
}

#[derive(Clone, Copy, ValueEnum)]
enum HeadMapArg {
    /// value head h reads key head h % HK (llama.cpp)
    Tiled,
    /// value head h reads key head h / (HV / HK) (Hugging Face, vLLM, FLA)
    Grouped,
}

#[derive(Clone, Copy, ValueEnum)]
enum NormActArg {
    /// sigmoid(z)
    Sigmoid,
    /// z * sigmoid(z) (Hugging Face's Qwen3-Next and Qwen3.5)
    Silu,
}

#[derive(Clone, Copy, ValueEnum)]
enum OutDtype {
    F16,
    Bf16,
    F32,
}

/// `None` lets the plan choose.
#[derive(Clone, Copy)]
struct VariantArg(Option<Variant>);

impl FromStr for VariantArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(VariantArg(None)),
            name => name.parse().map(|variant| VariantArg(Some(variant))).map_err(|_| {
                let names = Variant::ALL.map(Variant::name).join(", ");
                format!("accepted: auto, {names}")
            }),
        }
    }
}

fn eps(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(eps) if eps.is_finite() && eps >= 0.0 => Ok(eps),
        _ => Err("accepted: a finite number that is not negative".into()),
    }
}

/// The name of a value as it is given on the command line.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

pub fn run(args: &Args) -> Result<ExitCode> {
    // All that can be wrong with the arguments and the file comes out before the work begins.
    let layer = Layer::read(args)?;
    io::check_target(&args.output)?;
    let (backend, why) = args.backend.open()?;
    let done = layer.run(&backend, args)?;

    let (tokens, heads) = (done.tokens, done.heads);
    let rows = vec![tokens, heads.value(), HEAD_DIM];
    let state = vec![heads.value(), HEAD_DIM, HEAD_DIM];
    let mut outputs = vec![
        Output { name: "y", shape: rows.clone(), data: Data::F32(&done.y) },
        Output { name: "final_state", shape: state, data: Data::F32(&done.state) },
    ];
    let (head_map, eps) = (name(args.head_map), args.eps.to_string());
    let act = args.norm_act.map(name).unwrap_or_default();
    // Nothing that differs between backends: the same input gives the same bytes everywhere.
    let mut metadata =
        vec![("tool", concat!("keyhead ", env!("CARGO_PKG_VERSION"))), ("head_map", &*head_map)];
    if let Some(out) = &done.out {
        outputs.push(Output { name: "out", shape: rows, data: out.data() });
        metadata.extend([("norm_act", &*act), ("eps", &*eps)]);
    }
    io::write(&args.output, &outputs, &metadata)?;

    say(format_args!(
        "{tokens} tokens, {} key and {} value heads on {why}; recurrence {}{}; {:.1} ms, {:.0} tokens/s",
        heads.key(),
        heads.value(),
        done.ran,
        if done.out.is_some() { format!("; out norm with {act}") } else { String::new() },
        done.seconds * 1e3,
        tokens as f64 / done.seconds.max(1e-9),
    ));
    Ok(ExitCode::SUCCESS)
}

/// The input, checked and widened.
struct Layer {
    heads: Heads,
    tokens: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
    norm: Option<Norm>,
}

/// What the out norm takes.
struct Norm {
    z: Vec<f32>,
    weight: Vec<f32>,
    act: NormAct,
}

/// What a run gave.
struct Done {
    heads: Heads,
    tokens: usize,
    y: Vec<f32>,
    state: Vec<f32>,
    out: Option<Out>,
    /// What ran the recurrence, and why.
    ran: String,
    seconds: f64,
}

enum Out {
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    F32(Vec<f32>),
}

impl Out {
    fn zeroed(dtype: OutDtype, len: usize) -> Result<Out> {
        Ok(match dtype {
            OutDtype::F16 => Out::F16(zeroed("out", len, f16::ZERO)?),
            OutDtype::Bf16 => Out::Bf16(zeroed("out", len, bf16::ZERO)?),
            OutDtype::F32 => Out::F32(zeroed("out", len, 0.0)?),
        })
    }

    fn target(&mut self) -> NormOut<'_> {
        match self {
            Out::F16(out) => NormOut::F16(out),
            Out::Bf16(out) => NormOut::Bf16(out),
            Out::F32(out) => NormOut::F32(out),
        }
    }

    fn data(&self) -> Data<'_> {
        match self {
            Out::F16(out) => Data::F16(out),
            Out::Bf16(out) => Data::Bf16(out),
            Out::F32(out) => Data::F32(out),
        }
    }
}

fn zeroed<T: Clone>(what: &str, len: usize, zero: T) -> Result<Vec<T>> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len).map_err(|_| Error::HostMemory {
        what: format!("`{what}`"),
        bytes: len.saturating_mul(size_of::<T>()),
    })?;
    vec.resize(len, zero);
    Ok(vec)
}

impl Layer {
    fn read(args: &Args) -> Result<Layer> {
        let file = File::open(&args.input)?;
        let head = Dim::Just(HEAD_DIM);

        // Shapes and dtypes of all tensors first, then their data.
        let q = file.tensor("q", [Dim::Any("T"), Dim::Any("HK"), head], FLOATS)?;
        let [tokens, key_heads, _] = q.shape();
        let t = Dim::Is("T", tokens);
        let k = file.tensor("k", [t, Dim::Is("HK", key_heads), head], FLOATS)?;
        let v = file.tensor("v", [t, Dim::Any("HV"), head], FLOATS)?;
        let [_, value_heads, _] = v.shape();
        let hv = Dim::Is("HV", value_heads);
        let gate = file.tensor("g", [t, hv], FLOATS)?;
        let beta = file.tensor("beta", [t, hv], FLOATS)?;
        let map = match args.head_map {
            HeadMapArg::Tiled => HeadMap::Tiled,
            HeadMapArg::Grouped => HeadMap::Grouped,
        };
        let heads = Heads::new(key_heads, value_heads, map)?;
        let state = State::find(&file, hv)?;
        let norm = find_norm(&file, t, hv, args.norm_act)?;

        let norm = norm.map(|(z, weight, act)| Norm::read(&z, &weight, act)).transpose()?;
        Ok(Layer {
            heads,
            tokens,
            q: q.f32()?,
            k: k.f32()?,
            v: v.f32()?,
            gate: gate.f32()?,
            beta: beta.f32()?,
            state: state.read(heads)?,
            norm,
        })
    }
}

/// Where the state before the first token is.
enum State<'file> {
    Zeros,
    Stored(Tensor<'file, 3>),
    /// Heads that repeat, and their scale.
    Scaled(Tensor<'file, 3>, Tensor<'file, 1>),
}

impl<'file> State<'file> {
    fn find(file: &'file File, hv: Dim) -> Result<State<'file>> {
        let head = Dim::Just(HEAD_DIM);
        if file.has("initial_state") {
            return Ok(State::Stored(file.tensor("initial_state", [hv, head, head], FLOATS)?));
        }
        if !file.has("initial_state_i8") {
            return Ok(State::Zeros);
        }
        let blocks = file.tensor("initial_state_i8", [Dim::Any("N"), head, head], &[Dtype::I8])?;
        let [count, _, _] = blocks.shape();
        if count == 0 {
            let accepted = "`[N, 128, 128]`, with N at least 1".into();
            let (tensor, found) = ("initial_state_i8".into(), blocks.shape().to_vec());
            return Err(Error::Shape { tensor, found, accepted });
        }
        Ok(State::Scaled(blocks, file.tensor("initial_state_scale", [Dim::Just(1)], FLOATS)?))
    }

    fn read(&self, heads: Heads) -> Result<Vec<f32>> {
        const CELLS: usize = HEAD_DIM * HEAD_DIM;
        match self {
            State::Zeros => zeroed("final_state", heads.state_len(), 0.0),
            State::Stored(state) => state.f32(),
            State::Scaled(blocks, scale) => {
                // `find` asked for one element.
                let (blocks, scale) = (blocks.f32()?, scale.f32()?[0]);
                let mut state = zeroed("final_state", heads.state_len(), 0.0)?;
                let source = blocks.chunks_exact(CELLS).cycle();
                for (head, block) in state.chunks_exact_mut(CELLS).zip(source) {
                    head.iter_mut().zip(block).for_each(|(cell, &stored)| *cell = stored * scale);
                }
                Ok(state)
            }
        }
    }
}

type NormTensors<'file> = (Tensor<'file, 3>, Tensor<'file, 1>, NormAct);

/// The tensors of the out norm: both, with an activation, or neither and none.
fn find_norm<'file>(
    file: &'file File,
    t: Dim,
    hv: Dim,
    act: Option<NormActArg>,
) -> Result<Option<NormTensors<'file>>> {
    let missing = |name, why| Err(file.missing(name, why));
    match (file.has("z"), file.has("norm_weight"), act) {
        (false, false, None) => Ok(None),
        (false, false, Some(_)) => {
            missing("z", "`z` and `norm_weight`, which --norm-act is about, or no --norm-act")
        }
        (true, false, _) => missing("norm_weight", "both `z` and `norm_weight`, or neither"),
        (false, true, _) => missing("z", "both `z` and `norm_weight`, or neither"),
        (true, true, None) => Err(Error::Argument {
            argument: "--norm-act".into(),
            found: "not given, and the file holds `z` and `norm_weight`".into(),
            accepted: "sigmoid, silu (what Hugging Face's Qwen3-Next and Qwen3.5 do)".into(),
        }),
        (true, true, Some(act)) => {
            let head = Dim::Just(HEAD_DIM);
            let act = match act {
                NormActArg::Sigmoid => NormAct::Sigmoid,
                NormActArg::Silu => NormAct::Silu,
            };
            let z = file.tensor("z", [t, hv, head], FLOATS)?;
            Ok(Some((z, file.tensor("norm_weight", [head], FLOATS)?, act)))
        }
    }
}

impl Norm {
    fn read(z: &Tensor<'_, 3>, weight: &Tensor<'_, 1>, act: NormAct) -> Result<Norm> {
        let weight = weight.f32()?;
        // The library checks this too, behind the recurrence: too late for someone who waits.
        if let Some(index) = weight.iter().position(|w| !w.is_finite()) {
            return Err(Error::NonFinite { tensor: "norm_weight".into(), index, found: weight[index] });
        }
        Ok(Norm { z: z.f32()?, weight, act })
    }
}

impl Layer {
    fn run(self, backend: &Backend, args: &Args) -> Result<Done> {
        let Layer { heads, tokens, q, k, v, gate, beta, mut state, norm } = self;
        let mut y = zeroed("y", v.len(), 0.0)?;
        let mut out = norm.is_some().then(|| Out::zeroed(args.out_dtype, v.len())).transpose()?;

        let start = Instant::now();
        let progress = Progress::new(tokens);
        let (key_row, value_row) = (heads.key() * HEAD_DIM, heads.value() * HEAD_DIM);
        let mut from = 0;
        // At least one call, so that no tokens get an answer about the variant, too. Chunks give the bits of one call.
        let ran = loop {
            let to = tokens.min(from + progress.chunk);
            let inputs = RecurrenceInputs {
                q: Rows::packed(&q[from * key_row..to * key_row], heads.key()),
                k: Rows::packed(&k[from * key_row..to * key_row], heads.key()),
                v: Rows::packed(&v[from * value_row..to * value_row], heads.value()),
                gate: &gate[from * heads.value()..to * heads.value()],
                beta: &beta[from * heads.value()..to * heads.value()],
            };
            let y = &mut y[from * value_row..to * value_row];
            let call = Recurrence::new(heads, StateLayout::HeadMajor, to - from, inputs, &mut state, y)?;
            let ran = backend.recurrence(call, args.variant.0)?;
            progress.bar.set_position(to as u64);
            from = to;
            if from >= tokens {
                break ran;
            }
        };
        if let (Some(out), Some(Norm { z, weight, act })) = (&mut out, &norm) {
            let (target, stride) = (out.target(), value_row);
            let call =
                OutNorm::new(heads.value(), tokens, &y, &z[..], weight, *act, args.eps, target, stride)?;
            backend.out_norm(call)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        progress.bar.finish_and_clear();
        Ok(Done { heads, tokens, y, state, out, ran, seconds })
    }
}

/// How far the recurrence is, for someone who watches.
struct Progress {
    bar: ProgressBar,
    /// Tokens of a call.
    chunk: usize,
}

impl Progress {
    fn new(tokens: usize) -> Progress {
        /// Fewer are done at once, or nearly.
        const LONG: usize = 8192;
        if tokens < LONG || !std::io::stderr().is_terminal() {
            return Progress { bar: ProgressBar::hidden(), chunk: tokens };
        }
        let style = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} tokens, {eta} left");
        let bar = ProgressBar::new(tokens as u64)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, chunk: (tokens / 100).max(1024) }
    }
}
