//! Finding a compiler that can build for nvptx64.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A rustc with its cargo and the sources of the `core` that belongs to it.
#[derive(Clone, Debug)]
pub struct Compiler {
    rustc: PathBuf,
    cargo: PathBuf,
    version: String,
}

/// Names the rustc to use; its cargo is the one beside it.
const RUSTC_VARIABLE: &str = "CUDA_BUILDER_RUSTC";

impl Compiler {
    /// Looks at the rustc that `CUDA_BUILDER_RUSTC` names and nowhere else if it is set; then at the rustc of the build that
    /// runs this (a rustup toolchain with the component `rust-src`); then at `/usr/bin/rustc` (Debian: rustc-web, cargo-web and
    /// rust-web-src). The error says why each was not taken.
    pub fn find() -> Result<Compiler, String> {
        if let Some(rustc) = env::var_os(RUSTC_VARIABLE) {
            return Compiler::at(Path::new(&rustc)).map_err(|why| format!("{RUSTC_VARIABLE}: {why}"));
        }
        let own = env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
        let mut reasons = Vec::new();
        for candidate in [own, PathBuf::from("/usr/bin/rustc")] {
            match Compiler::at(&candidate) {
                Ok(compiler) => return Ok(compiler),
                Err(why) => reasons.push(why),
            }
        }
        Err(reasons.join("; "))
    }

    fn at(rustc: &Path) -> Result<Compiler, String> {
        let ask = |argument: &[&str]| {
            let output = Command::new(rustc).args(argument).output();
            let output = output.map_err(|error| format!("{}: {error}", rustc.display()))?;
            if !output.status.success() {
                return Err(format!("{} {}: {}", rustc.display(), argument.join(" "), output.status));
            }
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        // A rustup proxy is answered by the toolchain it stands for; that toolchain is then called directly.
        let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?);
        let source = sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml");
        if !source.is_file() {
            return Err(format!("{} has no rust-src ({} is missing)", rustc.display(), source.display()));
        }
        if !ask(&["--print", "target-list"])?.lines().any(|target| target == crate::builder::TARGET) {
            return Err(format!("{} does not know {}", rustc.display(), crate::builder::TARGET));
        }
        let in_bin = |name: &str| {
            let path = sysroot.join("bin").join(name).with_extension(env::consts::EXE_EXTENSION);
            if path.is_file() { Ok(path) } else { Err(format!("{} is missing", path.display())) }
        };
        Ok(Compiler { rustc: in_bin("rustc")?, cargo: in_bin("cargo")?, version: ask(&["--version"])? })
    }

    /// As `rustc --version` prints it.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A call of this compiler's cargo that the surrounding build's settings do not reach.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(&self.cargo);
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            let ours = text.starts_with("CARGO") || text.starts_with("RUSTC") || text.starts_with("RUSTUP");
            let network = ["CARGO_HOME", "CARGO_NET", "CARGO_HTTP", "CARGO_REGISTR", "CARGO_SOURCE"];
            if (ours || text == "RUSTFLAGS") && !network.iter().any(|kept| text.starts_with(kept)) {
                command.env_remove(name);
            }
        }
        command.env("RUSTC", &self.rustc);
        command
    }
}
