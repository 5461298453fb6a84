//! The GDN kernels of one device: raw-pointer entry points for engines, and the same on host slices.

mod forward;
mod host;
mod out_norm;
mod prepare;
mod recurrence;
#[cfg(test)]
mod tests;

pub use forward::{DeviceForward, DeviceWeights, Workspace};
pub use out_norm::DeviceOutNorm;
pub use prepare::{DeviceFloats, DevicePrepare, PrepareStep};
pub use recurrence::{DeviceRecurrence, DeviceRows};

use std::sync::Arc;

use super::memo::Memo;
use super::{Device, Kernel, Kernels};
use crate::error::{Error, Result};
use crate::gdn::{self, Plan, Request, Switches, Variant};

/// The GDN kernels, loaded on one device. Clones share them; use from any thread.
#[derive(Clone, Debug)]
pub struct Gdn {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kernels: Kernels,
    switches: Switches,
    plans: Memo<Request, Plan>,
}

impl Gdn {
    /// Loads the module for the device's compute capability. Reads the switches in the environment, once.
    ///
    /// Errors: those of [`Kernels::load`].
    pub fn new(device: &Device) -> Result<Gdn> {
        Ok(Gdn::with(&Kernels::load(device)?))
    }

    /// The same of a module that is loaded already.
    pub fn with(kernels: &Kernels) -> Gdn {
        let inner =
            Inner { kernels: kernels.clone(), switches: Switches::from_env(), plans: Memo::default() };
        Gdn { inner: Arc::new(inner) }
    }

    pub fn device(&self) -> &Device {
        self.inner.kernels.device()
    }

    /// All kernels of the device, for [`Topk`](crate::cuda::Topk).
    pub fn kernels(&self) -> &Kernels {
        &self.inner.kernels
    }

    /// The kernel of an entry.
    pub(crate) fn kernel(&self, entry: &str) -> Result<Kernel> {
        self.inner.kernels.get(entry)
    }

    /// Which variant runs, and why; asked once per device and request, then remembered.
    ///
    /// Errors: `Variant` or `Argument` for one that is asked for, by the request or a switch, and cannot run; or the driver's own.
    pub fn plan(&self, request: &Request) -> Result<Plan> {
        self.inner.plans.get(request, || self.new_plan(request))
    }

    fn new_plan(&self, request: &Request) -> Result<Plan> {
        let facts = self.device().facts();
        let has_entry = request.heads.per_key() <= gdn::MAX_KEYHEAD_VPK && facts.major >= 8;
        let keyhead_blocks_per_sm = if has_entry {
            let threads = Variant::Keyhead.block().iter().product();
            self.kernel(&Variant::Keyhead.entry(request.heads))?.occupancy(threads, 0)?
        } else {
            0
        };
        let device =
            gdn::Device { major: facts.major, minor: facts.minor, sms: facts.sms, keyhead_blocks_per_sm };
        Plan::new(&device, request, &self.inner.switches)
    }
}

pub(super) fn check_address(tensor: &str, address: u64, bytes: usize) -> Result<()> {
    if address != 0 && address.is_multiple_of(bytes as u64) {
        return Ok(());
    }
    Err(Error::Alignment {
        tensor: tensor.into(),
        found: address as usize,
        accepted: format!("a device address that is a multiple of {bytes} bytes, and not null"),
    })
}
