//! One call of cargo, one PTX module.

use crate::compiler::Compiler;
use crate::ptx::{Module, PtxError};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

pub(crate) const TARGET: &str = "nvptx64-nvidia-cuda";

/// What the kernels are compiled with, beside the architecture.
const FLAGS: [&str; 6] = [
    // Pointers that are known to lie in shared or global memory get the loads and stores of that memory.
    "-Cpasses=infer-address-spaces",
    // On rustc before 1.97 this pass clones barriers into both arms of a condition (rust-lang/rust#137086).
    "-Zmir-enable-passes=-JumpThreading",
    // Nested constant loops over per-thread arrays must unroll whole, or the arrays go to local memory.
    "-Cllvm-args=-unroll-threshold=100000",
    // A loop's first pass is not worth a copy of the loop, with barriers of its own.
    "-Cllvm-args=-unroll-peel-max-count=0",
    "-Zunstable-options",
    // A failed bounds check is a trap, not a call.
    "-Cpanic=immediate-abort",
];

/// A virtual architecture. The module runs on every card of at least this compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NvvmArch {
    Compute70,
    Compute80,
    Compute90,
}

impl NvvmArch {
    pub const ALL: [NvvmArch; 3] = [NvvmArch::Compute70, NvvmArch::Compute80, NvvmArch::Compute90];

    /// The name as rustc and ptxas have it: `sm_80`.
    pub fn name(self) -> &'static str {
        match self {
            NvvmArch::Compute70 => "sm_70",
            NvvmArch::Compute80 => "sm_80",
            NvvmArch::Compute90 => "sm_90",
        }
    }
}

/// Builds the kernel crate at a path into one PTX module.
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    path: PathBuf,
    arch: NvvmArch,
    build_args: Vec<String>,
    target_dir: Option<PathBuf>,
}

/// Why there is no module.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum CudaBuilderError {
    #[error("the kernel crate {0} does not exist")]
    CratePathDoesntExist(PathBuf),
    #[error("{0}: {1}")]
    Io(PathBuf, std::io::Error),
    #[error("cargo could not build the kernels for {arch}:\n{log}")]
    BuildFailed { arch: &'static str, log: String },
    #[error("the PTX for {arch} is not fit to ship: {error}")]
    Ptx { arch: &'static str, error: PtxError },
}

impl CudaBuilder {
    /// A builder for the crate in the folder `path`, for `sm_70`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), arch: NvvmArch::Compute70, build_args: Vec::new(), target_dir: None }
    }

    /// The architecture to build for.
    pub fn arch(mut self, arch: NvvmArch) -> Self {
        self.arch = arch;
        self
    }

    /// More arguments for cargo, `["--features", "sm_80"]` for example.
    pub fn build_args(mut self, arguments: &[&str]) -> Self {
        self.build_args.extend(arguments.iter().map(|argument| argument.to_string()));
        self
    }

    /// Where cargo keeps what it builds; default: `target/nvptx` in the crate. Builds that share it share `core`.
    pub fn target_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.target_dir = Some(path.into());
        self
    }

    /// Builds, moves launch bounds into the entries' headers and checks the result.
    pub fn build(&self, compiler: &Compiler) -> Result<Module, CudaBuilderError> {
        let arch = self.arch.name();
        if !self.path.join("Cargo.toml").is_file() {
            return Err(CudaBuilderError::CratePathDoesntExist(self.path.clone()));
        }
        let target_dir = self.target_dir.clone().unwrap_or_else(|| self.path.join("target/nvptx"));
        fs::create_dir_all(&target_dir).map_err(|error| CudaBuilderError::Io(target_dir.clone(), error))?;
        let assembly = target_dir.join(format!("{arch}.s"));

        self.run_cargo(compiler, &target_dir, &assembly)?;
        let text =
            fs::read_to_string(&assembly).map_err(|error| CudaBuilderError::Io(assembly.clone(), error))?;
        Module::from_compiler(&text).map_err(|error| CudaBuilderError::Ptx { arch, error })
    }

    fn run_cargo(
        &self,
        compiler: &Compiler,
        target_dir: &Path,
        assembly: &Path,
    ) -> Result<(), CudaBuilderError> {
        let arch = self.arch.name();
        if !assembly.is_file() {
            // Cargo does not know of this file: a build that it finds fresh would not write it again.
            let _ = fs::remove_dir_all(target_dir.join(TARGET).join("release/.fingerprint"));
        }
        let mut command = compiler.cargo();
        command
            .current_dir(&self.path)
            .args(["rustc", "--lib", "--release", "--locked", "--crate-type=staticlib", "-Zbuild-std=core"])
            .arg(format!("--target={TARGET}"))
            .args(&self.build_args)
            .args(["--", &format!("--emit=asm={}", assembly.display()), &format!("-Ctarget-cpu={arch}")])
            // The unstable flags, for this compilation only.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"))
            .env("CARGO_TARGET_DIR", target_dir)
            .env("CARGO_PROFILE_RELEASE_LTO", "fat")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
            .stdin(Stdio::null());
        let output = command.output().map_err(|error| CudaBuilderError::Io(self.path.clone(), error))?;
        if output.status.success() {
            return Ok(());
        }
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(CudaBuilderError::BuildFailed { arch, log })
    }
}
