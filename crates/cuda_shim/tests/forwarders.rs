//! The forwarders against no driver, a fake one, and `cust`.

use std::env;
use std::ffi::c_int;
use std::path::Path;
use std::process::Command;

use cuda_shim::{FUNCTIONS, RawError, ffi, last_error};
use cust::error::CudaError;

/// Runs `body` in a process of its own, whose driver is the file `library`: a process opens one driver only.
fn with_driver(test: &str, library: &Path, body: impl FnOnce()) {
    if env::var_os("KEYHEAD_LIBCUDA").is_some_and(|name| name == library) {
        return body();
    }
    let mut child = Command::new(env::current_exe().unwrap());
    let output =
        child.args([test, "--exact", "--nocapture"]).env("KEYHEAD_LIBCUDA", library).output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn fake_driver() -> std::path::PathBuf {
    static BUILD: std::sync::Once = std::sync::Once::new();
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libfakecuda.so");
    BUILD.call_once(|| {
        if env::var_os("KEYHEAD_LIBCUDA").is_some_and(|name| name == library) {
            return;
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/driver.rs");
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()));
        rustc.args(["--crate-type", "cdylib", "--edition", "2024", "-o"]).arg(&library).arg(source);
        assert!(rustc.status().unwrap().success());
    });
    library
}

#[test]
fn every_function_that_cust_calls_is_forwarded() {
    // The functions named in the sources of cust 0.3.2.
    for name in include_str!("cust_functions.txt").lines() {
        assert!(FUNCTIONS.contains(&name), "{name}");
    }
}

#[test]
fn without_a_driver_every_call_says_no_device() {
    with_driver("without_a_driver_every_call_says_no_device", Path::new("/no/such/libcuda.so.1"), || {
        let reason = cuda_shim::library().unwrap_err();
        assert!(reason.contains("/no/such/libcuda.so.1"), "{reason}");
        assert_eq!(last_error(), None);
        assert_eq!(cust::quick_init().unwrap_err(), CudaError::NoDevice);
        assert_eq!(last_error(), Some(RawError { call: "cuInit", code: 100 }));
        assert_eq!(cust::device::Device::num_devices(), Err(CudaError::NoDevice));
        assert_eq!(last_error(), Some(RawError { call: "cuDeviceGetCount", code: 100 }));
        cuda_shim::clear_error();
        assert_eq!(last_error(), None);
    });
}

#[test]
fn answers_come_from_the_driver() {
    let library = fake_driver();
    with_driver("answers_come_from_the_driver", &library, || {
        assert_eq!(cuda_shim::library(), Ok(library.to_str().unwrap()));
        cust::init(cust::CudaFlags::empty()).unwrap();
        let version = cust::CudaApiVersion::get().unwrap();
        assert_eq!((version.major(), version.minor()), (13, 0));
        let device = cust::device::Device::get_device(0).unwrap();
        assert_eq!(device.name().unwrap(), "Fake GPU");
        assert_eq!(last_error(), None);
    });
}

#[test]
fn a_code_that_cuda_11_4_lacks_is_kept_aside() {
    with_driver("a_code_that_cuda_11_4_lacks_is_kept_aside", &fake_driver(), || {
        assert_eq!(cust::context::CurrentContext::synchronize(), Err(CudaError::UnknownError));
        let raw = RawError { call: "cuCtxSynchronize", code: 912 };
        assert_eq!(last_error(), Some(raw));
        // A success does not clear it, and another thread has its own.
        cust::init(cust::CudaFlags::empty()).unwrap();
        assert_eq!(last_error(), Some(raw));
        assert_eq!(std::thread::spawn(last_error).join().unwrap(), None);
    });
}

#[test]
fn a_function_that_the_driver_lacks_is_not_found() {
    with_driver("a_function_that_the_driver_lacks_is_not_found", &fake_driver(), || {
        let mut uuid = [0u8; 16];
        // SAFETY: the fake driver has no such function, and a real one would fill these 16 bytes.
        let answer: c_int = unsafe { ffi::cuDeviceGetUuid(uuid.as_mut_ptr().cast(), 0) };
        assert_eq!(answer, 500);
        assert_eq!(last_error(), Some(RawError { call: "cuDeviceGetUuid", code: 500 }));
    });
}
