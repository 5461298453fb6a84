//! A device and its primary context.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;
use std::{fmt, ptr};

use cuda_shim::ffi;
use cust::context::Context;

use super::driver::{self, During};
use super::facts::DeviceFacts;
use crate::error::{Error, Result};

/// An open GPU. Clones share it; it is closed when the last clone and everything made on it is gone.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    /// The device's primary context, retained: shared with the CUDA runtime and every engine in the process.
    context: Context,
    facts: DeviceFacts,
}

// SAFETY: a CUDA context may be used and released by any thread, and by several at once.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Device {
    /// The number of GPUs that the driver shows: 0 where it runs but sees none.
    ///
    /// Errors: `NoDriver`, or the driver's own.
    pub fn count() -> Result<usize> {
        match driver::init() {
            Err(Error::NoDevice { .. }) => return Ok(0),
            started => started?,
        }
        Ok(cust::device::Device::num_devices().during("cuDeviceGetCount")? as usize)
    }

    /// The driver's handle of device `ordinal`, if there is one.
    pub(super) fn find(ordinal: usize) -> Result<cust::device::Device> {
        let found = Device::count()?;
        match u32::try_from(ordinal) {
            Ok(number) if ordinal < found => cust::device::Device::get_device(number).during("cuDeviceGet"),
            _ => Err(driver::no_device(ordinal, found)),
        }
    }

    /// Opens device `ordinal`, counted from 0.
    ///
    /// Errors: `NoDriver`, `NoDevice`, `ComputeCapability` below 7.0, or the driver's own.
    pub fn open(ordinal: usize) -> Result<Device> {
        let facts = DeviceFacts::query(ordinal)?;
        if facts.major < 7 {
            return Err(Error::ComputeCapability {
                device: facts.name,
                major: facts.major,
                minor: facts.minor,
            });
        }
        let previous = current()?;
        let context = Context::new(Device::find(ordinal)?).during("cuDevicePrimaryCtxRetain")?;
        set_current(previous)?; // Context::new has left its own current
        Ok(Device { inner: Arc::new(Inner { context, facts }) })
    }

    pub fn facts(&self) -> &DeviceFacts {
        &self.inner.facts
    }

    /// Free and total device memory in bytes.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let _current = self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are C size_t, and a context is current.
        driver::check("cuMemGetInfo", unsafe { ffi::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// `Argument` when `what` was made on another device.
    pub(super) fn check_own(&self, what: &str, made_on: &Device) -> Result<()> {
        let (own, other) = (self.facts().ordinal, made_on.facts().ordinal);
        if own == other {
            return Ok(());
        }
        Err(Error::argument(what, format!("of CUDA device {other}"), format!("one of CUDA device {own}")))
    }

    /// Makes this device's context the calling thread's current one until the guard is dropped; then the
    /// context that was current before is put back. The other entry points do this by themselves.
    pub fn make_current(&self) -> Result<Current<'_>> {
        let context = self.inner.context.as_raw().cast::<c_void>();
        let previous = current()?;
        if previous == context {
            return Ok(Current { previous: None, device: PhantomData });
        }
        set_current(context)?;
        Ok(Current { previous: Some(previous), device: PhantomData })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {})", self.inner.facts.ordinal, self.inner.facts.name)
    }
}

/// Keeps a device's context current on this thread: see [`Device::make_current`].
#[must_use = "the context is current only while this lives"]
pub struct Current<'device> {
    /// The context to put back, null for none; `None` when nothing was changed. A pointer also keeps this on
    /// its thread.
    previous: Option<ffi::Handle>,
    device: PhantomData<&'device Device>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            let _ = set_current(previous);
        }
    }
}

pub(super) fn current() -> Result<ffi::Handle> {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is a context handle that the driver sets.
    driver::check("cuCtxGetCurrent", unsafe { ffi::cuCtxGetCurrent(&mut context) })?;
    Ok(context)
}

fn set_current(context: ffi::Handle) -> Result<()> {
    // SAFETY: `context` is null, a retained primary context, or what the driver said was current on this
    // thread.
    driver::check("cuCtxSetCurrent", unsafe { ffi::cuCtxSetCurrent(context) })
}
