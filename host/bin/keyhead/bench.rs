//! `keyhead bench`.

use crate::info::version;
use crate::print;
use keyhead::bench::{self, Row, SmsRow, TopkCall};
use keyhead::check::topk::Pattern;
use keyhead::cuda::{Device, DeviceFacts, Gdn, Topk};
use keyhead::gdn::{Dtype, HeadMap, Heads};
use keyhead::{Error, Result, io, ptx};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure the kernels of a CUDA device against each other and against its limits
///
/// Variants alternate in one run; a time is the median of the rounds, between CUDA events. `gdn` and `norm` show each kernel's
/// share of the device's copy bandwidth, `topk` and `scores` too, with a cold cache; `sms` runs the recurrence on fewer and fewer multiprocessors, a holding kernel on the others.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure
    #[arg(value_enum)]
    mode: Mode,
    /// The CUDA device, counted from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: usize,
    /// Key heads
    #[arg(long, value_name = "HK", default_value_t = 16)]
    key_heads: usize,
    /// Value heads
    #[arg(long, value_name = "HV", default_value_t = 48)]
    value_heads: usize,
    /// Tokens of a call, several separated by commas; default 2048,8192,32768, for sms 8192
    #[arg(long, value_name = "T", value_delimiter = ',')]
    tokens: Vec<usize>,
    /// For topk and scores: cells that a query sees, several separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [4096, 16384, 65536, 131072, 262144, 524288])]
    cells: Vec<usize>,
    /// For topk and scores: queries of a call, several separated by commas
    #[arg(long, value_name = "Q", value_delimiter = ',', default_values_t = [4, 256])]
    queries: Vec<usize>,
    /// For topk: the engine's maximum context in cells; default: the cells
    #[arg(long, value_name = "N")]
    capacity: Option<usize>,
    /// For topk: what the scores are like: random, levels, equal, zeros, narrow, nan, one-per-chunk, one-run, ...
    #[arg(long, value_name = "NAME", default_value_t = Pattern::Normal)]
    contents: Pattern,
    /// The type of the activations, for layer
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Floats,
    /// Write the rows to a file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// The recurrence variants
    Gdn,
    /// The out norm, and the variant before it
    Norm,
    /// The whole path, each of its launches, and the steps before the recurrence one by one
    Layer,
    /// The recurrence variants on fewer multiprocessors
    Sms,
    /// The selection kernels of the block top-k
    Topk,
    /// The block scores
    Scores,
}

impl Mode {
    fn is_of_topk(self) -> bool {
        matches!(self, Mode::Topk | Mode::Scores)
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Floats {
    F32,
    F16,
    Bf16,
}

impl From<Floats> for Dtype {
    fn from(floats: Floats) -> Dtype {
        match floats {
            Floats::F32 => Dtype::F32,
            Floats::F16 => Dtype::F16,
            Floats::Bf16 => Dtype::Bf16,
        }
    }
}

#[derive(serde::Serialize)]
struct Report {
    device: DeviceFacts,
    ptx: String,
    copy_terabytes_per_second: f64,
    rows: Vec<Row>,
    sms: Vec<SmsRow>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let heads = Heads::new(args.key_heads, args.value_heads, HeadMap::Tiled)?;
    let tokens = match (args.tokens.as_slice(), args.mode) {
        ([], Mode::Sms) => &[8192][..],
        ([], _) => &[2048, 8192, 32768],
        (tokens, _) => tokens,
    };
    for (argument, numbers) in [("tokens", tokens), ("cells", &args.cells), ("queries", &args.queries)] {
        if numbers.contains(&0) {
            let (found, accepted) = ("0".into(), "positive numbers".into());
            return Err(Error::Argument { argument: argument.into(), found, accepted });
        }
    }
    let gdn = &Gdn::new(&Device::open(args.device)?)?;
    let facts = gdn.device().facts().clone();
    let copy = bench::copy(gdn.device())?.terabytes_per_second();
    print(&format!(
        "{}, {} SMs, driver {}, SM clock up to {} MHz; copy {copy:.3} TB/s; PTX {}\n",
        facts.name,
        facts.sms,
        version(facts.driver),
        facts.clock_khz / 1000,
        ptx::source()
    ))?;

    let mut report = Report {
        device: facts,
        ptx: ptx::source(),
        copy_terabytes_per_second: copy,
        rows: vec![],
        sms: vec![],
    };
    if args.mode == Mode::Sms {
        print(
            "  SMs  kernel                               us/token     min     max  blocks on the busiest SM\n",
        )?;
    } else {
        let unit = if args.mode.is_of_topk() { " us/call" } else { "us/token" };
        print(&format!(
            "kernel                                    {unit}     min     max    TB/s  of copy\n"
        ))?;
    }
    if args.mode.is_of_topk() {
        topk(args, gdn, &mut report)?;
    }
    for &tokens in tokens.iter().filter(|_| !args.mode.is_of_topk()) {
        if args.mode == Mode::Sms {
            let mut written = Ok(());
            report.sms.extend(bench::sms(gdn, heads, tokens, &mut |row| {
                if written.is_ok() {
                    written = print(&sms_line(row));
                }
            })?);
            written?;
            continue;
        }
        let rows = match args.mode {
            Mode::Norm => bench::norm(gdn, heads, tokens, |calls| calls.rows())?,
            Mode::Layer => bench::layer(gdn, heads, tokens, args.dtype.into(), |calls| calls.rows())?,
            _ => bench::recurrence(gdn, heads, tokens, |calls| calls.rows())?,
        };
        for row in rows {
            print(&line(&row, copy))?;
            report.rows.push(row);
        }
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| Error::Argument {
            argument: "json".into(),
            found: error.to_string(),
            accepted: "numbers that JSON can hold".into(),
        })?;
        io::replace(path, |out| writeln!(out, "{text}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The rows of the block top-k.
fn topk(args: &Args, gdn: &Gdn, report: &mut Report) -> Result<()> {
    let topk = Topk::new(gdn.kernels());
    for &cells in &args.cells {
        for &queries in &args.queries {
            let capacity = args.capacity.unwrap_or(cells);
            let call = TopkCall { queries, cells, capacity, contents: args.contents };
            let rows = match args.mode {
                Mode::Scores => bench::scores(&topk, call, |calls| calls.rows())?,
                _ => bench::topk(&topk, call, |calls| calls.rows())?,
            };
            for row in rows {
                print(&line(&row, report.copy_terabytes_per_second))?;
                report.rows.push(row);
            }
        }
    }
    Ok(())
}

fn times(row: &Row) -> String {
    let us = |ms: f64| ms * 1e3 / row.tokens as f64;
    format!("{:8.4} {:7.4} {:7.4}", us(row.median_ms), us(row.min_ms), us(row.max_ms))
}

fn line(row: &Row, copy: f64) -> String {
    let bandwidth = row.terabytes_per_second();
    format!("{:41} {} {bandwidth:7.3} {:7.1}%\n", row.name, times(row), 100.0 * bandwidth / copy)
}

fn sms_line(SmsRow { sms, row, busiest, invalid }: &SmsRow) -> String {
    let note = invalid.as_ref().map(|why| format!("  does not count: {why}")).unwrap_or_default();
    format!("{sms:5}  {:36} {} {busiest:3}{note}\n", row.name, times(row))
}
