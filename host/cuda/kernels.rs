//! The module for a device, and its kernels by name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

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
    kernels: Mutex<HashMap<String, Kernel>>,
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
        let inner = Inner { device: device.clone(), module, kernels: Mutex::default() };
        Ok(Kernels { inner: Arc::new(inner) })
    }

    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The kernel of an entry, looked up once.
    pub(crate) fn get(&self, entry: &str) -> Result<Kernel> {
        let mut kernels = self.inner.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(entry) {
            return Ok(kernel.clone());
        }
        let kernel = self.inner.module.kernel(entry)?;
        kernels.insert(entry.into(), kernel.clone());
        Ok(kernel)
    }
}
