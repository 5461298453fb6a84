//! Holds multiprocessors while something else runs on the others. A holding block takes all the shared memory that a block may have, so
//! nothing with shared memory of its own fits beside it. Every wait has a limit.

use kernels_gpu::bench::{FLAGS, LATE};
use kernels_gpu::params::{GlobalMut, HoldArgs};

use crate::cuda::{DeviceBuffer, Kernel, Kernels, Stream};
use crate::error::Result;

/// Longer than a timed call takes, shorter than a watchdog.
pub(super) const LIMIT_NS: u64 = 500_000_000;

pub(crate) struct Holder {
    stream: Stream,
    hold: Kernel,
    await_seated: Kernel,
    release: Kernel,
    held: DeviceBuffer<u32>,
    all_shared: u32,
}

impl Holder {
    pub(crate) fn new(kernels: &Kernels) -> Result<Holder> {
        let device = kernels.device();
        let holder = Holder {
            stream: Stream::new(device)?,
            hold: kernels.get("hold")?,
            await_seated: kernels.get("await_seated")?,
            release: kernels.get("release")?,
            held: DeviceBuffer::alloc(device, "held", device.facts().sms as usize)?,
            all_shared: device.facts().shared_per_block_optin,
        };
        // Everything is loaded before something is held: a module that loads lazily would wait for the holding kernel.
        holder.with_held(&Stream::new(device)?, 1, || Ok(()))?;
        Ok(holder)
    }

    /// Holds `blocks` multiprocessors while `body` queues work on `stream`, and waits for that. Returns the held ones and how many
    /// blocks gave up waiting. `body` must not allocate: an allocation may wait for a running kernel.
    pub(crate) fn with_held(
        &self,
        stream: &Stream,
        blocks: u32,
        body: impl FnOnce() -> Result<()>,
    ) -> Result<(Vec<u32>, u32)> {
        let flags = DeviceBuffer::from_slice(&self.stream, "flags", &[0; FLAGS])?;
        let args = HoldArgs {
            flags: GlobalMut::from_address(flags.as_ptr()),
            sm_ids: GlobalMut::from_address(self.held.as_ptr()),
            limit_ns: LIMIT_NS,
            generation: 1,
            blocks,
        };
        if blocks > 0 {
            // SAFETY: the buffers live, and the synchronisations below end before they are used again.
            unsafe {
                self.hold.launch_with(&self.stream, [blocks, 1, 1], [1, 1, 1], self.all_shared, &args)?;
                self.await_seated.launch_with(stream, [1, 1, 1], [1, 1, 1], 0, &args)?;
            }
        }
        let outcome = body();
        if blocks > 0 {
            // SAFETY: as above.
            unsafe { self.release.launch_with(stream, [1, 1, 1], [1, 1, 1], 0, &args)? };
        }
        stream.synchronize()?;
        self.stream.synchronize()?;
        outcome?;
        let mut words = [0; FLAGS];
        flags.download(stream, &mut words)?;
        let mut held = vec![0; self.held.len()];
        self.held.download(stream, &mut held)?;
        held.truncate(blocks as usize);
        Ok((held, words[LATE]))
    }
}
