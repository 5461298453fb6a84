//! The library's one error type. Every message names the argument, what was found and what is accepted.

use std::path::PathBuf;

/// What fallible calls of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Sizes are in bytes where the field says so, else in elements.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("tensor `{tensor}` is missing; accepted: {accepted}")]
    MissingTensor { tensor: String, accepted: String },
    #[error("tensors `{one}` and `{other}` contradict each other; accepted: {accepted}")]
    Contradiction { one: String, other: String, accepted: String },
    #[error("tensor `{tensor}` has shape {found:?}; accepted: {accepted}")]
    Shape { tensor: String, found: Vec<usize>, accepted: String },
    #[error("tensor `{tensor}` is a batch of {found} sequences; accepted: one sequence a file, {accepted}")]
    Batch { tensor: String, found: usize, accepted: String },
    #[error("tensor `{tensor}` has dtype {found}; accepted: {accepted}")]
    Dtype { tensor: String, found: String, accepted: String },
    #[error("`{tensor}` holds {found} elements; accepted: {accepted}")]
    Length { tensor: String, found: usize, accepted: String },
    #[error("`{tensor}` has a token stride of {found} elements; accepted: {accepted}")]
    Stride { tensor: String, found: usize, accepted: String },
    #[error("`{tensor}` starts at address {found:#x}; accepted: {accepted}")]
    Alignment { tensor: String, found: usize, accepted: String },
    #[error("`{tensor}` holds {found} at index {index}; accepted: finite numbers only")]
    NonFinite { tensor: String, index: usize, found: f32 },
    #[error("{key} key heads and {value} value heads do not go together; accepted: {accepted}")]
    Heads { key: usize, value: usize, accepted: String },
    #[error("argument `{argument}` is {found}; accepted: {accepted}")]
    Argument { argument: String, found: String, accepted: String },
    #[error("variant `{variant}` cannot run here: {reason}")]
    Variant { variant: String, reason: String },
    #[error("{action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} is not a usable safetensors file: {problem}", path.display())]
    Format { path: PathBuf, problem: String },
    #[error("the CPU backend's threads could not be started: {source}; RAYON_NUM_THREADS asks for fewer")]
    Threads { source: rayon::ThreadPoolBuildError },
    #[error("host memory: {bytes} bytes for {what} could not be allocated")]
    HostMemory { what: String, bytes: usize },

    #[error(
        "no CUDA driver: {reason}; accepted: a machine with NVIDIA's driver (libcuda.so.1), or the CPU backend"
    )]
    NoDriver { reason: String },
    #[error("CUDA device {requested} does not exist: this machine has {found}; accepted: {accepted}")]
    NoDevice { requested: usize, found: usize, accepted: String },
    #[error(
        "compute capability {major}.{minor} of `{device}` is too low; accepted: 7.0 or newer (PTX is built for sm_70, sm_80 and sm_90)"
    )]
    ComputeCapability { device: String, major: u32, minor: u32 },
    #[error(
        "the driver (CUDA {}.{}) is too old for this PTX (version {ptx_version}, target {target}); accepted: a driver of CUDA {needs} or newer",
        driver / 1000, driver % 1000 / 10
    )]
    DriverTooOld { driver: i32, ptx_version: String, target: String, needs: String },
    #[error("the driver could not compile PTX module `{module}` ({name}): {log}")]
    Jit { module: String, name: String, log: String },
    #[error(
        "device memory: {bytes} bytes for {what} could not be allocated; {free} of {total} bytes are free"
    )]
    DeviceMemory { what: String, bytes: usize, free: usize, total: usize },
    #[error("{call} failed with CUDA error {code} ({name}): {text}")]
    Driver { call: String, code: u32, name: String, text: String },
}

impl Error {
    /// The command's exit code: 3 when the device failed, 2 when the input or the arguments were bad.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NoDriver { .. }
            | Error::NoDevice { .. }
            | Error::ComputeCapability { .. }
            | Error::DriverTooOld { .. }
            | Error::Jit { .. }
            | Error::DeviceMemory { .. }
            | Error::Driver { .. } => 3,
            _ => 2,
        }
    }

    pub(crate) fn argument(
        argument: impl Into<String>,
        found: impl ToString,
        accepted: impl Into<String>,
    ) -> Self {
        Error::Argument { argument: argument.into(), found: found.to_string(), accepted: accepted.into() }
    }
}
