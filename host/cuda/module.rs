//! PTX text, compiled by the driver for the device at hand.

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex};

use cuda_shim::ffi::{self, Handle};

use super::device::Device;
use super::driver;
use super::kernel::Kernel;
use crate::error::{Error, Result};

/// A loaded PTX module. Clones share it; it is unloaded when the last clone and its last kernel are gone.
#[derive(Clone)]
pub struct Module {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    raw: Handle,
    name: String,
    log: String,
    pub(super) device: Device,
    /// Held while a kernel's limit of dynamic shared memory is raised.
    pub(super) raising: Mutex<()>,
}

// SAFETY: a module handle may be used and unloaded by any thread whose current context is the module's.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({})", self.name())
    }
}

impl Module {
    /// Compiles `ptx` for the device and loads it; `name` is for messages. The driver keeps a cache of what
    /// it compiled.
    ///
    /// Errors: `DriverTooOld` when the driver does not know the PTX version, `Jit` with the compiler's log,
    /// `Argument` when the text holds a zero byte, or the driver's own.
    pub fn load(device: &Device, name: &str, ptx: &str) -> Result<Module> {
        let text = CString::new(ptx).map_err(|error| {
            let found = format!("PTX with a zero byte at {}", error.nul_position());
            Error::argument(name, found, "PTX text")
        })?;
        let _current = device.make_current()?;
        let mut errors = Log::new();
        let mut infos = Log::new();
        // CU_JIT_INFO_LOG_BUFFER, its size, CU_JIT_ERROR_LOG_BUFFER, its size. Sizes are passed in the
        // pointers' place.
        let mut options: [c_int; 4] = [3, 4, 5, 6];
        let mut values = [infos.buffer(), infos.size(), errors.buffer(), errors.size()];
        let mut raw = ptr::null_mut();
        // SAFETY: the text ends with a zero; options and values are of one length, each value of its option's
        // kind; the two buffers outlive the call and are as long as said.
        let answer = unsafe {
            ffi::cuModuleLoadDataEx(
                &mut raw,
                text.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if answer != 0 {
            return Err(load_failure(device, name, ptx, errors.text(), answer));
        }
        let (device, raising) = (device.clone(), Mutex::new(()));
        Ok(Module {
            inner: Arc::new(Inner { raw, name: name.to_owned(), log: infos.text(), device, raising }),
        })
    }

    /// The name that the module was loaded by.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What the driver's compiler had to say; mostly nothing.
    pub fn log(&self) -> &str {
        &self.inner.log
    }

    /// The kernel of this name. The driver's own error 500 when the module has none.
    pub fn kernel(&self, entry: &str) -> Result<Kernel> {
        let symbol = CString::new(entry)
            .map_err(|_| Error::argument("entry", format!("{entry:?}"), "a name without zero bytes"))?;
        let _current = self.inner.device.make_current()?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded in the current context, and the name ends with a zero.
        let answer = unsafe { ffi::cuModuleGetFunction(&mut function, self.inner.raw, symbol.as_ptr()) };
        driver::check(format_args!("cuModuleGetFunction of `{entry}` in module `{}`", self.name()), answer)?;
        // SAFETY: the handle is of this module, which the kernel keeps loaded.
        unsafe { Kernel::new(self, entry, function) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.make_current() {
            // SAFETY: the module is loaded in the current context, and its kernels are gone: each holds this
            // record.
            unsafe { ffi::cuModuleUnload(self.raw) };
        }
    }
}

/// A buffer for one of the compiler's logs.
struct Log(Vec<u8>);

impl Log {
    const BYTES: usize = 16 << 10;

    fn new() -> Log {
        Log(vec![0; Log::BYTES])
    }

    fn buffer(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    fn size(&self) -> *mut c_void {
        ptr::without_provenance_mut(self.0.len())
    }

    fn text(&self) -> String {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).trim().to_owned()
    }
}

fn load_failure(device: &Device, module: &str, ptx: &str, log: String, answer: c_int) -> Error {
    let failure = driver::failure(format_args!("cuModuleLoadDataEx of module `{module}`"), answer);
    let Error::Driver { code, ref name, ref text, .. } = failure else { return failure };
    // 222: unsupported PTX version. Drivers before CUDA 11.1 give another code, and say so in the log.
    if code == 222 || log.contains("Unsupported .version") {
        let (ptx_version, target) = (directive(ptx, ".version"), directive(ptx, ".target"));
        let needs = cuda_for_ptx(ptx_version);
        return Error::DriverTooOld {
            driver: device.facts().driver,
            ptx_version: ptx_version.to_owned(),
            target: target.to_owned(),
            needs,
        };
    }
    // 200 image, 209 no binary for this GPU, 218 PTX, 221 no compiler, 223 compiling disabled, 300 source
    if matches!(code, 200 | 209 | 218 | 221 | 223 | 300) {
        let log = if log.is_empty() { text.clone() } else { log };
        return Error::Jit { module: module.to_owned(), name: name.clone(), log };
    }
    failure
}

/// The word after a directive at the head of a module: `8.0` for `.version 8.0`, `sm_90` for `.target sm_90,
/// debug`.
fn directive<'a>(ptx: &'a str, name: &str) -> &'a str {
    ptx.lines()
        .find_map(|line| {
            line.trim_start().strip_prefix(name)?.split([' ', '\t', ',', '/']).find(|w| !w.is_empty())
        })
        .map_or("unknown", str::trim_end)
}

/// The first CUDA version whose driver knows a PTX version, by the PTX manual's list of releases.
fn cuda_for_ptx(version: &str) -> String {
    let numbers =
        version.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor): (u32, u32) = match numbers {
        Some((6, minor @ 0..=2)) => (9, minor),
        Some((6, minor)) => (10, minor - 3),
        Some((8, minor @ 6..)) => (12, minor + 1), // CUDA 12.6 brought no new PTX
        Some((major @ 7.., minor)) => (major + 4, minor),
        _ => return format!("a version that knows PTX {version}"),
    };
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::{cuda_for_ptx, directive};

    #[test]
    fn directives_are_read_from_the_head() {
        let ptx = "//\n// Generated\n\n.version 7.0\n.target\tsm_80, debug // why\n.address_size 64\n";
        assert_eq!((directive(ptx, ".version"), directive(ptx, ".target")), ("7.0", "sm_80"));
        assert_eq!(directive("", ".version"), "unknown");
    }

    #[test]
    fn ptx_versions_name_their_cuda_release() {
        let releases = [
            ("6.0", "9.0"),
            ("6.2", "9.2"),
            ("6.3", "10.0"),
            ("6.5", "10.2"),
            ("7.0", "11.0"),
            ("7.8", "11.8"),
            ("8.0", "12.0"),
            ("8.5", "12.5"),
            ("8.6", "12.7"),
            ("8.8", "12.9"),
            ("9.0", "13.0"),
        ];
        for (ptx, cuda) in releases {
            assert_eq!(cuda_for_ptx(ptx), cuda, "PTX {ptx}");
        }
        assert_eq!(cuda_for_ptx("unknown"), "a version that knows PTX unknown");
    }
}
