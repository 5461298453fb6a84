//! Turns kernels-gpu into PTX: built from source where a compiler for nvptx64 is found, else the modules checked in under ptx/.
//! A compiler that fails on the very sources that those were built from is no error, but a warning. `KEYHEAD_PTX=prebuilt` takes the checked-in ones in any case, `KEYHEAD_PTX=build` insists on building.

use cuda_builder::ptx::Module;
use cuda_builder::{Compiler, CudaBuilder, NvvmArch};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    for path in ["kernels-gpu", "crates/cuda_std", "crates/cuda_std_macros", "ptx", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={path}");
    }
    for variable in ["KEYHEAD_PTX", "CUDA_BUILDER_RUSTC"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }

    let wish = env::var("KEYHEAD_PTX").unwrap_or_default();
    let compiler = match wish.as_str() {
        "prebuilt" => Err("KEYHEAD_PTX=prebuilt".to_owned()),
        "" | "build" => Compiler::find(),
        other => return Err(format!("KEYHEAD_PTX is `{other}`; accepted: build, prebuilt, or unset").into()),
    };
    let prebuilt = |why: &str| -> Result<_, Box<dyn Error>> {
        println!("cargo:warning=the GPU kernels are taken from ptx/, not built: {why}");
        Ok((false, checked_in("compiler")?, checked_in_modules()?))
    };
    let sources = hash_of_sources()?;
    let (built, compiler, modules) = match compiler {
        Ok(compiler) => match build(&compiler) {
            Ok(modules) => (true, compiler.version().to_owned(), modules),
            // The same sources were built and tested by another compiler: what this one cannot do is no reason to stop.
            Err(error) if wish.is_empty() && checked_in("sources")? == sources => {
                let first = error.to_string();
                prebuilt(&format!("{}: {}", compiler.version(), first.lines().next().unwrap_or_default()))?
            }
            Err(error) => return Err(error),
        },
        Err(why) if wish == "build" => return Err(format!("no compiler for nvptx64: {why}").into()),
        Err(why) => prebuilt(&why)?,
    };
    write_modules(built, &compiler, &sources, &modules)
}

fn build(compiler: &Compiler) -> Result<Vec<Module>, Box<dyn Error>> {
    let out = env::var("OUT_DIR")?;
    // target/<profile>/build/<package>/out: all profiles share the modules and the `core` under them.
    let shared = Path::new(&out).ancestors().nth(4).unwrap_or(Path::new(&out)).join("nvptx");
    let build = |arch: NvvmArch| {
        let builder = CudaBuilder::new("kernels-gpu").arch(arch).target_dir(&shared);
        let builder = match arch {
            NvvmArch::Compute70 => builder,
            _ => builder.build_args(&["--features", arch.name()]),
        };
        builder.build(compiler)
    };
    NvvmArch::ALL.into_iter().map(build).collect::<Result<_, _>>().map_err(Into::into)
}

fn checked_in_modules() -> Result<Vec<Module>, Box<dyn Error>> {
    let read = |arch: NvvmArch| -> Result<Module, Box<dyn Error>> {
        Ok(Module::parse(&fs::read_to_string(format!("ptx/keyhead_{}.ptx", arch.name()))?)?)
    };
    NvvmArch::ALL.into_iter().map(read).collect()
}

/// A string of the checked-in manifest.
fn checked_in(key: &str) -> Result<String, Box<dyn Error>> {
    let manifest = fs::read_to_string("ptx/manifest.json")?;
    let start = format!("\"{key}\": \"");
    let line = manifest.lines().find_map(|line| line.trim().strip_prefix(start.as_str()));
    let value = line.and_then(|rest| rest.split('"').next());
    Ok(value.ok_or_else(|| format!("ptx/manifest.json has no {key}"))?.to_owned())
}

/// FNV-1a over everything that becomes PTX, to know whether the checked-in modules are of these sources.
fn hash_of_sources() -> Result<String, Box<dyn Error>> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["kernels-gpu/src", "crates/cuda_std/src", "crates/cuda_std_macros/src"].map(PathBuf::from).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for file in files {
        for byte in fs::read(file)? {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(format!("{hash:016x}"))
}

/// Leaves the modules and a table of them for host/ptx.rs.
fn write_modules(
    built: bool,
    compiler: &str,
    sources: &str,
    modules: &[Module],
) -> Result<(), Box<dyn Error>> {
    let out = env::var("OUT_DIR")?;
    let checked_in = checked_in("compiler")?;
    let mut table = format!(
        "/// Whether this build made the modules; else they are those checked in under ptx/.
         pub const BUILT_HERE: bool = {built};
         const COMPILER: &str = {compiler:?};
         const CHECKED_IN_COMPILER: &str = {checked_in:?};
         const SOURCES: &str = {sources:?};
         /// The modules, by rising feature level.
         pub const MODULES: &[Module] = &[\n"
    );
    for module in modules {
        let file = Path::new(&out).join(format!("{}.ptx", module.target()));
        fs::write(&file, module.text())?;
        writeln!(
            table,
            "Module {{ name: {:?}, ptx_version: {:?}, text: include_str!({file:?}), entries: &[",
            module.target(),
            module.version()
        )?;
        for entry in module.entries() {
            writeln!(table, "{entry:?},")?;
        }
        table += "] },\n";
    }
    table += "];\n";
    // `Entry` prints its name as a literal, which is a `&str` in the table.
    fs::write(Path::new(&out).join("modules.rs"), table)?;
    Ok(())
}
