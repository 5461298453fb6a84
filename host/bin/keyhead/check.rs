//! `keyhead check`.

use crate::{backend, print, say};
use indicatif::ProgressBar;
use keyhead::Result;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

/// Compare every kernel that can run here with the CPU backend, bit for bit
///
/// Without a GPU, the kernels' own source runs on an executor that checks barriers, races and bounds.
///
/// Prints each case that fails, and `N passed, M failed` as the last line. Exit code 1 when any failed.
#[derive(clap::Args)]
pub struct Args {
    /// Where to run: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    backend: backend::Choice,
    /// Print the cases that pass, too
    #[arg(short, long)]
    verbose: bool,
    /// Run only the cases whose names contain TEXT, as --verbose prints them: `T=17`, `scan`
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let (backend, why) = args.backend.open()?;
    say(format_args!("check: {why}"));
    let bar = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let (mut cases, mut written) = (0u64, Ok(()));
    let summary = keyhead::check::run(&backend, &args.only, &mut |name, outcome| {
        cases += 1;
        bar.set_message(format!("case {cases}: {name}"));
        bar.tick();
        let line = match outcome {
            Ok(()) if args.verbose => format!("ok     {name}\n"),
            Ok(()) => return,
            Err(why) => format!("FAILED {name}: {why}\n"),
        };
        if written.is_ok() {
            written = bar.suspend(|| print(&line));
        }
    });
    bar.finish_and_clear();
    written?;
    print(&format!("{} passed, {} failed\n", summary.passed, summary.failed))?;
    Ok(if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
