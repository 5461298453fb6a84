//! The driver itself: started once, asked for its version, its answers turned into errors.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Display;
use std::ptr;
use std::sync::OnceLock;

use cuda_shim::{CUresult, ffi};
use cust::CudaFlags;
use cust::error::CudaResult;

use crate::error::{Error, Result};

pub(super) const NO_DEVICE: u32 = 100;
pub(super) const OUT_OF_MEMORY: u32 = 2;
const UNKNOWN: u32 = 999;

/// Starts the driver, once in a process. [`Error::NoDevice`] when it runs but sees no GPU.
pub(super) fn init() -> Result<()> {
    static STARTED: OnceLock<()> = OnceLock::new();
    if STARTED.get().is_some() {
        return Ok(());
    }
    library()?;
    match cust::init(CudaFlags::empty()).during("cuInit") {
        Ok(()) => {
            STARTED.get_or_init(|| ());
            Ok(())
        }
        Err(Error::Driver { code: NO_DEVICE, .. }) => Err(no_device(0, 0)),
        Err(error) => Err(Error::NoDriver { reason: error.to_string() }),
    }
}

fn library() -> Result<()> {
    cuda_shim::library().map(drop).map_err(|reason| Error::NoDriver { reason: reason.to_owned() })
}

pub(super) fn no_device(requested: usize, found: usize) -> Error {
    let accepted = match found {
        0 => "a GPU that the driver can see (CUDA_VISIBLE_DEVICES may hide it), or the CPU backend".into(),
        1 => "0".into(),
        _ => format!("0 to {}", found - 1),
    };
    Error::NoDevice { requested, found, accepted }
}

/// The newest CUDA version that the installed driver knows, as 1000 * major + 10 * minor: 13000 is CUDA 13.0.
///
/// [`Error::NoDriver`] where no driver is installed.
pub fn version() -> Result<i32> {
    library()?;
    let mut version = 0;
    // SAFETY: `version` is a C int; this function may be called before cuInit.
    check("cuDriverGetVersion", unsafe { ffi::cuDriverGetVersion(&mut version) })?;
    Ok(version)
}

/// The answer of the driver function that this thread just called, as a result.
pub(super) fn check(call: impl Display, answer: CUresult) -> Result<()> {
    if answer == 0 { Ok(()) } else { Err(failure(call, answer)) }
}

/// The error of the driver function that this thread just called and that answered `answer`, which is not 0.
pub(super) fn failure(call: impl Display, answer: CUresult) -> Error {
    let code = raw_code(answer as u32);
    let (name, text) = describe(code);
    Error::Driver { call: call.to_string(), code, name, text }
}

/// The same for calls through `cust`, whose errors keep neither the function's name nor every code.
pub(super) trait During<T> {
    fn during(self, call: &str) -> Result<T>;
}

impl<T> During<T> for CudaResult<T> {
    fn during(self, call: &str) -> Result<T> {
        self.map_err(|error| failure(call, error as CUresult))
    }
}

/// The code as the driver gave it: the shim and `cust` turn codes that they do not know into [`UNKNOWN`].
fn raw_code(code: u32) -> u32 {
    match cuda_shim::last_error() {
        Some(last) if code == UNKNOWN => last.code,
        _ => code,
    }
}

/// The driver's name and text for a code, such as CUDA_ERROR_INVALID_VALUE and "invalid argument".
fn describe(code: u32) -> (String, String) {
    let ask = |lookup: unsafe extern "C" fn(c_int, *mut *const c_char) -> CUresult| {
        let mut text = ptr::null();
        // SAFETY: `text` is a pointer that the driver sets to a string of its own, which lives as long as the
        // driver.
        let found = unsafe { lookup(code as c_int, &mut text) } == 0 && !text.is_null();
        // SAFETY: as above, and the string ends with a zero.
        found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    (
        ask(ffi::cuGetErrorName).unwrap_or_else(|| "unnamed".into()),
        ask(ffi::cuGetErrorString).unwrap_or_else(|| "this driver has no text for the code".into()),
    )
}
