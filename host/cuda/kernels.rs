//! The module for a device, and its kernels by name.

use std::sync::Arc;

use super::memo::Memo;
use super::{Device, Kernel, Module};
use crate::error::{Error, Result};
use crate::ptx;

/// The kernels of one device. Clones share them; use from any thread.
#[derive(Clone, Debug)]
pub struct Kernels {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Device,
    module: Module,
    kernels: Memo<String, Kernel>,
}

impl Kernels {
    /// Loads the module for the device's compute capability.
    ///
    /// Errors: `ComputeCapability`, `DriverTooOld`, `Jit`, or the driver's own.
    pub fn load(device: &Device) -> Result<Kernels> {
        let facts = device.facts();
        let ptx = ptx::Module::for_compute_capability(facts.major, facts.minor).ok_or_else(|| {
            Error::ComputeCapability { device: facts.name.clone(), major: facts.major, minor: facts.minor }
        })?;
        let module = Module::load(device, ptx.name, ptx.text)?;
        let inner = Inner { device: device.clone(), module, kernels: Memo::default() };
        Ok(Kernels { inner: Arc::new(inner) })
    }

    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The kernel of an entry, looked up once.
    pub(crate) fn get(&self, entry: &str) -> Result<Kernel> {
        self.inner.kernels.get(entry, || self.inner.module.kernel(entry))
    }
}
