//! Turns kernels-gpu into PTX: built from source where a compiler for nvptx64 is found, else the modules checked in under ptx/.
//! `KEYHEAD_PTX=prebuilt` takes the checked-in ones in any case, `KEYHEAD_PTX=build` insists on building.

use cuda_builder::ptx::Module;
use cuda_builder::{Compiler, CudaBuilder, NvvmArch};
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
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
    let (built, compiler, modules) = match compiler {
        Ok(compiler) => (true, compiler.version().to_owned(), build(&compiler)?),
        Err(why) if wish == "build" => return Err(format!("no compiler for nvptx64: {why}").into()),
        Err(why) => {
            println!("cargo:warning=the GPU kernels are taken from ptx/, not built: {why}");
            (false, checked_in_compiler()?, checked_in()?)
        }
    };
    write_modules(built, &compiler, &modules)
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

fn checked_in() -> Result<Vec<Module>, Box<dyn Error>> {
    let read = |arch: NvvmArch| -> Result<Module, Box<dyn Error>> {
        Ok(Module::parse(&fs::read_to_string(format!("ptx/keyhead_{}.ptx", arch.name()))?)?)
    };
    NvvmArch::ALL.into_iter().map(read).collect()
}

/// The compiler that the checked-in manifest names.
fn checked_in_compiler() -> Result<String, Box<dyn Error>> {
    let manifest = fs::read_to_string("ptx/manifest.json")?;
    let line = manifest.lines().find_map(|line| line.trim().strip_prefix("\"compiler\": \""));
    let name = line.and_then(|rest| rest.split('"').next()).ok_or("ptx/manifest.json names no compiler")?;
    Ok(name.to_owned())
}

/// Leaves the modules and a table of them for host/ptx.rs.
fn write_modules(built: bool, compiler: &str, modules: &[Module]) -> Result<(), Box<dyn Error>> {
    let out = env::var("OUT_DIR")?;
    let checked_in = checked_in_compiler()?;
    let mut table = format!(
        "/// Whether this build made the modules; else they are those checked in under ptx/.
         pub const BUILT_HERE: bool = {built};
         const COMPILER: &str = {compiler:?};
         const CHECKED_IN_COMPILER: &str = {checked_in:?};
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
