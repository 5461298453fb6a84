//! `keyhead gdn`: the whole prompt path from `qkv`, or the recurrence from `q`, `k` and `v`.

mod mix;
mod output;
mod recurrence;
mod state;

use crate::auto::Auto;
use crate::{backend, say};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use keyhead::gdn::{HeadMap, NormAct, Variant};
use keyhead::io::{self, File};
use keyhead::{Backend, Error, Result};
use output::Done;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

const TENSORS: &str = "\
Tensors of IN (f32, f16 or bf16; a leading batch dimension of 1 is accepted; others are ignored).
From what a layer's projections make, with C = (2 * HK + HV) * 128:
  qkv             [T, C]           before the conv: all q heads, all k heads, all v heads
  a, b            [T, HV]          the decay before softplus, beta before sigmoid
  z               [T, HV, 128]     the output's gate; HV is a multiple of HK
  conv_weight     [C, 4]           or [C, 1, 4]; the last of four belongs to the current token
  conv_bias       [C]              optional
  conv_state_in   [C, 3]           optional: the three tokens before, oldest first; else zeros
  A_log           [HV]             or ssm_a [HV], which is -exp(A_log)
  dt_bias         [HV]
  norm_weight     [128]            finite
  initial_state   [HV, 128, 128]   optional: rows are the key dim, columns the value dim; else zeros. Or as
                                   initial_state_i8 [N, 128, 128] (i8) and initial_state_scale [1]:
                                   head h starts from initial_state_i8[h % N] * initial_state_scale
Or, for the recurrence alone, instead of qkv:
  q, k            [T, HK, 128]     l2-normalised already, not scaled
  v               [T, HV, 128]
  g               [T, HV]          the log of the decay, at most 0
  beta            [T, HV]
  initial_state                    as above
  z, norm_weight                   as above, both or neither

Tensors of OUT:
  y               [T, HV, 128]     f32, the output of the recurrence
  final_state     [HV, 128, 128]   f32
  conv_state_out  [C, 3]           f32, from qkv only: its last three tokens
  out             [T, HV, 128]     where z is there: y normed, weighted and gated, in --out-dtype

The bytes of OUT do not depend on the backend, the variant or --chunk. OUT may be IN.

Example:
  keyhead gdn examples/layer.safetensors -o out.safetensors --head-map grouped --norm-act silu";

/// Run a Gated DeltaNet layer's prompt path, or its recurrence, on the tensors of a safetensors file
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
    /// What the out norm does to z; needed where z is there
    #[arg(long, value_enum)]
    norm_act: Option<NormActArg>,
    /// Where to run: auto (CUDA device 0 where it can be used, else the CPU), cpu, cuda or cuda:N
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    backend: backend::Choice,
    /// The GPU kernel of the recurrence: auto, heads, cols, pipe, keyhead or scan; all give the same bits
    #[arg(long, default_value = "auto")]
    variant: Auto<Variant>,
    /// The number that the out norm adds to the mean of the squares
    #[arg(long, default_value = "1e-6", value_parser = eps, allow_hyphen_values = true)]
    eps: f32,
    /// The number that the l2 norm of q and k adds to the sum of the squares, 1e-6 by default; with qkv only
    #[arg(long, value_parser = eps, allow_hyphen_values = true)]
    l2_eps: Option<f32>,
    /// Run in calls of so many tokens, as an engine does with a long prompt; by default in one
    #[arg(long, value_name = "TOKENS", value_parser = chunk, allow_hyphen_values = true)]
    chunk: Option<usize>,
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

impl From<HeadMapArg> for HeadMap {
    fn from(map: HeadMapArg) -> HeadMap {
        match map {
            HeadMapArg::Tiled => HeadMap::Tiled,
            HeadMapArg::Grouped => HeadMap::Grouped,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum NormActArg {
    /// sigmoid(z)
    Sigmoid,
    /// z * sigmoid(z) (Hugging Face's Qwen3-Next and Qwen3.5)
    Silu,
}

impl Args {
    /// What the out norm does to z, which is in the file.
    fn act(&self) -> Result<NormAct> {
        match self.norm_act {
            Some(NormActArg::Sigmoid) => Ok(NormAct::Sigmoid),
            Some(NormActArg::Silu) => Ok(NormAct::Silu),
            None => Err(Error::Argument {
                argument: "--norm-act".into(),
                found: "not given, and the file holds `z` and `norm_weight`".into(),
                accepted: "sigmoid, silu (what Hugging Face's Qwen3-Next and Qwen3.5 do)".into(),
            }),
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum OutDtype {
    F16,
    Bf16,
    F32,
}

fn eps(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(eps) if eps.is_finite() && eps >= 0.0 => Ok(eps),
        _ => Err("accepted: a finite number that is not negative".into()),
    }
}

fn chunk(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(tokens) if tokens > 0 => Ok(tokens),
        _ => Err("accepted: a number of tokens, 1 or more".into()),
    }
}

/// The name of a value as it is given on the command line.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

pub fn run(args: &Args) -> Result<ExitCode> {
    // All that can be wrong with the arguments and the file comes out before the work begins.
    let file = File::open(&args.input)?;
    let layer = Layer::read(&file, args)?;
    io::check_target(&args.output)?;
    let (backend, why) = args.backend.open()?;
    let done = layer.run(&backend, args)?;
    done.write(args)?;

    let (tokens, heads) = (done.tokens, done.heads);
    let act = args.norm_act.map(name).unwrap_or_default();
    say(format_args!(
        "{tokens} tokens, {} key and {} value heads on {why}; {} {}{}; {:.1} ms, {:.0} tokens/s",
        heads.key(),
        heads.value(),
        if done.conv_state.is_some() { "whole path by" } else { "recurrence by" },
        done.ran,
        if done.out.is_some() { format!("; out norm with {act}") } else { String::new() },
        done.seconds * 1e3,
        tokens as f64 / done.seconds.max(1e-9),
    ));
    Ok(ExitCode::SUCCESS)
}

/// The input, checked.
enum Layer<'file> {
    /// From `qkv`.
    Mix(Box<mix::Layer<'file>>),
    /// From `q`, `k` and `v`.
    Recurrence(Box<recurrence::Layer<'file>>),
}

impl<'file> Layer<'file> {
    fn read(file: &'file File, args: &Args) -> Result<Layer<'file>> {
        if !file.has("qkv") {
            return Ok(Layer::Recurrence(Box::new(recurrence::Layer::read(file, args)?)));
        }
        for name in ["q", "k", "v"] {
            if file.has(name) {
                let accepted = "`qkv`, or `q`, `k` and `v`";
                return Err(contradiction("qkv", name, accepted));
            }
        }
        Ok(Layer::Mix(Box::new(mix::Layer::read(file, args)?)))
    }

    fn run(self, backend: &Backend, args: &Args) -> Result<Done> {
        match self {
            Layer::Mix(layer) => layer.run(backend, args),
            Layer::Recurrence(layer) => layer.run(backend, args),
        }
    }
}

fn contradiction(one: &str, other: &str, accepted: &str) -> Error {
    Error::Contradiction { one: one.into(), other: other.into(), accepted: accepted.into() }
}

/// How far the run is, for someone who watches.
struct Progress {
    bar: ProgressBar,
    /// Tokens of a call.
    chunk: usize,
}

impl Progress {
    fn new(tokens: usize, chunk: Option<usize>) -> Progress {
        /// Fewer are done at once, or nearly.
        const LONG: usize = 8192;
        if tokens < LONG || !std::io::stderr().is_terminal() {
            return Progress { bar: ProgressBar::hidden(), chunk: chunk.unwrap_or(tokens) };
        }
        let style = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} tokens, {eta} left");
        let bar = ProgressBar::new(tokens as u64)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, chunk: chunk.unwrap_or((tokens / 100).max(1024)) }
    }

    /// Calls `run` for one chunk `from..to` behind the other, and returns what the last call did. At least once, so that no tokens
    /// get an answer about the variant, too. Chunks give the bits of one call.
    fn chunks(&self, tokens: usize, mut run: impl FnMut(usize, usize) -> Result<String>) -> Result<String> {
        let mut from = 0usize;
        loop {
            let to = tokens.min(from.saturating_add(self.chunk));
            let ran = run(from, to)?;
            self.bar.set_position(to as u64);
            from = to;
            if from >= tokens {
                return Ok(ran);
            }
        }
    }
}
