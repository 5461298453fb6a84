//! `keyhead ptx`.

use crate::{print, say};
use keyhead::ptx::{MODULES, Module, file_name, manifest};
use keyhead::{Error, Result, io};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Export the PTX modules and their launch manifest, for engines that load them by themselves
///
/// With -o, writes `keyhead_sm_70.ptx`, `keyhead_sm_80.ptx`, ... and `manifest.json`, which says how each entry is launched:
/// its argument record, block, grid, shared memory and registers. Without -o, prints one module.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  keyhead ptx -o ptx          all modules and the manifest\n  \
                        keyhead ptx --arch sm_80    the PTX for sm_80 on stdout")]
pub struct Args {
    /// The architecture, or `all`. A module runs on cards of at least its compute capability
    #[arg(long, default_value = "all")]
    arch: String,
    /// The folder to write to; it is made if it is not there
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let modules: Vec<&Module> = match args.arch.as_str() {
        "all" => MODULES.iter().collect(),
        arch => vec![MODULES.iter().find(|module| module.name == arch).ok_or_else(|| unknown(arch, true))?],
    };
    let Some(folder) = &args.output else {
        return match modules.as_slice() {
            [module] => print(module.text).map(|()| ExitCode::SUCCESS),
            _ => Err(unknown("all", false)),
        };
    };
    let failed = |source| Error::File { action: "cannot create the folder", path: folder.clone(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    for module in &modules {
        io::replace(folder.join(file_name(module)), |out| out.write_all(module.text.as_bytes()))?;
    }
    // Last: who finds the manifest finds what it names. It covers all architectures, and is one text for all of them.
    let manifest = manifest()?;
    io::replace(folder.join("manifest.json"), |out| out.write_all(manifest.as_bytes()))?;
    say(format_args!("{} modules and manifest.json in {}", modules.len(), folder.display()));
    Ok(ExitCode::SUCCESS)
}

fn unknown(arch: &str, all: bool) -> Error {
    let names: Vec<_> = MODULES.iter().map(|module| module.name).collect();
    let accepted = names.join(", ") + if all { ", all" } else { "; or all, with -o DIR" };
    Error::Argument { argument: "--arch".into(), found: format!("`{arch}`"), accepted }
}
