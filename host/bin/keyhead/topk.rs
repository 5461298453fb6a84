//! `keyhead topk`.

use crate::auto::Auto;
use crate::{backend, say, zeroed};
use keyhead::io::{self, Data, Dim, Dtype, FLOATS, File, Output};
use keyhead::topk::{INDEX_DIM, INDEX_HEADS, Kernel, Scores, Topk, TopkShape, WIDTH};
use keyhead::{Backend, Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// What ids hold behind a query's last one.
const NONE: i32 = -1;

const TENSORS: &str = "\
Tensors of IN (a leading batch dimension of 1 is accepted; others are ignored):
  n_kv     [Q] i32           the cells that each query sees; block b holds cells 4b to 4b + 3, the last one may be short
  width    [1] i32           optional: the most cells that a query selects; else --width
  scores   [Q, NB]           f32, f16 or bf16: the score of each block
Or, in place of scores, f32, f16 or bf16:
  pooled   [NB, 128]         the key of each complete block
  q_idx    [Q, 4, 128]       the keys of each query's indexer heads
  tail     [128]             the key of the cells that fill no block; or one for each query, [Q, 128]

Tensors of OUT:
  ids      [Q, width] i32    the cells that each query selects, ascending; then -1
  scores   [Q, NB + 1] f32   where they were computed, for as many blocks as the longest query has; 0 behind a query's last

The bytes of OUT do not depend on the backend or the kernel. OUT may be IN.

Example:
  keyhead topk scores.safetensors -o ids.safetensors --width 2051";

/// Select the cells of each query's best blocks, exactly, on the tensors of a safetensors file
///
/// Blocks of four cells in the order of their scores, the largest first, equal ones lowest block first; NaN is lower than any number. The
/// last block taken may give only its first cells. A query that sees no more cells than the width selects all.
#[derive(clap::Args)]
#[command(after_help = TENSORS)]
pub struct Args {
    /// The safetensors file to read
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The safetensors file to write; it appears only complete
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// The most cells that a query selects: 2051, if neither this nor `width` in the file says otherwise
    #[arg(long, value_name = "CELLS", value_parser = width, allow_hyphen_values = true)]
    width: Option<usize>,
    /// Where to run: auto (CUDA device 0 where it can be used, else the CPU), cpu, cuda or cuda:N
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    backend: backend::Choice,
    /// The GPU kernel: auto, original, register, wide, split, cluster or sieve; all give the same ids
    #[arg(long, default_value = "auto")]
    kernel: Auto<Kernel>,
}

fn width(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(width @ 1..=i32::MAX) => Ok(width as usize),
        _ => Err(format!("accepted: 1 to {}", i32::MAX)),
    }
}

pub fn run(args: &Args) -> Result<ExitCode> {
    // All that can be wrong with the arguments and the file comes out before the work begins.
    let mut rows = Rows::read(args)?;
    rows.check()?;
    io::check_target(&args.output)?;
    let (backend, why) = args.backend.open()?;
    let start = Instant::now();
    let ran = rows.run(&backend, args.kernel.0)?;
    let seconds = start.elapsed().as_secs_f64();

    let (queries, stride, width) = (rows.shape.queries(), rows.shape.stride(), rows.shape.width());
    let mut outputs = vec![Output { name: "ids", shape: vec![queries, width], data: Data::I32(&rows.ids) }];
    if rows.keys.is_some() {
        let shape = vec![queries, stride];
        outputs.push(Output { name: "scores", shape, data: Data::F32(&rows.scores) });
    }
    // Nothing that differs between backends: the same input gives the same bytes everywhere.
    io::write(&args.output, &outputs, &[("tool", concat!("keyhead ", env!("CARGO_PKG_VERSION")))])?;

    say(format_args!(
        "{queries} queries of {stride} blocks, {width} cells each, on {why}; top-k {ran}; {:.1} ms",
        seconds * 1e3
    ));
    Ok(ExitCode::SUCCESS)
}

/// The input, checked and widened, and what comes of it.
struct Rows {
    shape: TopkShape,
    n_kv: Vec<i32>,
    /// Where the scores are to be computed from, if they were not given.
    keys: Option<Keys>,
    scores: Vec<f32>,
    ids: Vec<i32>,
}

struct Keys {
    pooled: Vec<f32>,
    q_idx: Vec<f32>,
    tail: Vec<f32>,
}

impl Rows {
    fn read(args: &Args) -> Result<Rows> {
        let file = File::open(&args.input)?;
        let n_kv = file.tensor("n_kv", [Dim::Any("Q")], &[Dtype::I32])?;
        let [queries] = n_kv.shape();
        let width = chosen_width(&file, args.width)?;
        let n_kv = n_kv.i32()?;
        let (stride, keys, scores) = match Keys::NAMES.iter().find(|name| file.has(name)) {
            None => {
                let accepted = "a tensor of shape `[Q, NB]`, or `pooled`, `q_idx` and `tail` in its place";
                if !file.has("scores") {
                    return Err(file.missing("scores", accepted));
                }
                let scores = file.tensor("scores", [Dim::Is("Q", queries), Dim::Any("NB")], FLOATS)?;
                let [_, stride] = scores.shape();
                (stride, None, scores.f32()?)
            }
            Some(name) if file.has("scores") => {
                return Err(Error::Contradiction {
                    one: "scores".into(),
                    other: (*name).into(),
                    accepted: "`scores`, or `pooled`, `q_idx` and `tail` in its place".into(),
                });
            }
            Some(_) => {
                let keys = Keys::read(&file, queries)?;
                // One block behind the complete ones. A query that sees less than no cells is an error later.
                let stride = n_kv.iter().map(|&n_kv| n_kv.max(0) as usize / 4 + 1).max().unwrap_or(0);
                let scores = zeroed("scores", queries.saturating_mul(stride), 0.0)?;
                (stride, Some(keys), scores)
            }
        };
        let shape = TopkShape::new(queries, stride, width, width)?;
        let ids = zeroed("ids", queries.saturating_mul(width), NONE)?;
        Ok(Rows { shape, n_kv, keys, scores, ids })
    }

    fn score_call(&mut self) -> Result<Option<Scores<'_>>> {
        let Rows { shape, n_kv, keys, scores, .. } = self;
        let Some(Keys { pooled, q_idx, tail }) = keys else { return Ok(None) };
        Scores::new(shape.stride(), pooled, q_idx, tail, n_kv, scores).map(Some)
    }

    fn call(&mut self) -> Result<Topk<'_>> {
        Topk::new(self.shape, &self.scores, &self.n_kv, &mut self.ids)
    }

    fn check(&mut self) -> Result<()> {
        self.score_call()?;
        self.call().map(drop)
    }

    /// What ran the selection, and why.
    fn run(&mut self, backend: &Backend, kernel: Option<Kernel>) -> Result<String> {
        if let Some(call) = self.score_call()? {
            backend.scores(call)?;
        }
        backend.topk(self.call()?, kernel)
    }
}

impl Keys {
    const NAMES: [&str; 3] = ["pooled", "q_idx", "tail"];

    fn read(file: &File, queries: usize) -> Result<Keys> {
        let (q, dim) = (Dim::Is("Q", queries), Dim::Just(INDEX_DIM));
        let pooled = file.tensor("pooled", [Dim::Any("NB"), dim], FLOATS)?;
        let q_idx = file.tensor("q_idx", [q, Dim::Just(INDEX_HEADS), dim], FLOATS)?;
        let tail = match file.shape("tail") {
            None => return Err(file.missing("tail", "a tensor of shape `[128]` or `[Q, 128]`")),
            Some([_] | [1, _]) => file.tensor("tail", [dim], FLOATS)?.f32()?,
            Some(_) => file.tensor("tail", [q, dim], FLOATS)?.f32()?,
        };
        Ok(Keys { pooled: pooled.f32()?, q_idx: q_idx.f32()?, tail })
    }
}

/// The file's width, the argument's, which must not differ, or the reference engine's.
fn chosen_width(file: &File, argument: Option<usize>) -> Result<usize> {
    if !file.has("width") {
        return Ok(argument.unwrap_or(WIDTH));
    }
    // The shape asks for one element.
    let stored = file.tensor("width", [Dim::Just(1)], &[Dtype::I32])?.i32()?[0];
    let wrong = |argument: &str, found: String, accepted: &str| {
        Err(Error::Argument { argument: argument.into(), found, accepted: accepted.into() })
    };
    match (usize::try_from(stored), argument) {
        (Err(_) | Ok(0), _) => wrong("width", format!("{stored} in the file"), "1 or more"),
        (Ok(stored), Some(asked)) if asked != stored => {
            let found = format!("{asked}, and `width` in the file is {stored}");
            wrong("--width", found, "the same, or only one of them")
        }
        (Ok(stored), _) => Ok(stored),
    }
}
