//! The command line. Exit codes: 0 done, 1 a check failed, 2 bad input or arguments, 3 the device failed.

mod auto;
mod backend;
mod bench;
mod check;
mod gdn;
mod info;
mod ptx;
mod topk;

use clap::{Parser, Subcommand};
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Gated DeltaNet and block top-k on NVIDIA GPUs and on the CPU, with one set of bits.
#[derive(Parser)]
#[command(name = "keyhead", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Info(info::Args),
    Gdn(Box<gdn::Args>),
    Topk(topk::Args),
    Check(check::Args),
    Bench(bench::Args),
    Ptx(ptx::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Info(args) => info::run(&args),
        Command::Gdn(args) => gdn::run(&args),
        Command::Topk(args) => topk::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Ptx(args) => ptx::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            say(chain(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

/// A line on stderr. One that cannot be written has no other place to go.
fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "keyhead: {line}");
}

/// The message, and behind it the causes that it does not name already.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

/// Writes to stdout. A reader that has seen enough closes the pipe, which is no error.
fn print(text: &str) -> keyhead::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(source) if source.kind() != ErrorKind::BrokenPipe => {
            Err(keyhead::Error::File { action: "cannot write to", path: "stdout".into(), source })
        }
        _ => Ok(()),
    }
}

/// `len` times `zero`, for tensor `what`.
fn zeroed<T: Clone>(what: &str, len: usize, zero: T) -> keyhead::Result<Vec<T>> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len).map_err(|_| keyhead::Error::HostMemory {
        what: format!("`{what}`"),
        bytes: len.saturating_mul(size_of::<T>()),
    })?;
    vec.resize(len, zero);
    Ok(vec)
}
