//! Running kernels on an NVIDIA GPU: devices, modules of PTX, launches, maxima_launch, streams, device memory.
//!
//! The driver library is opened when it is first needed, so this module is there on every machine; without a
//! driver its entry points answer [`Error::NoDriver`](crate::error::Error::NoDriver). `cust` and the driver's
//! own functions are used in this module only.
//!
//! | the driver's notion | here |
//! |---|---|
//! | device and its primary context (the one PyTorch and other engines use) | [`Device`] |
//! | what a device is capable of | [`DeviceFacts`] |
//! | module, function | [`Module`], [`Kernel`] |
//! | stream, event, graph | [`Stream`], [`Event`], [`Graph`] |
//! | device memory | [`DeviceBuffer`] |
//! | keyhead's module, loaded once for all of its kernels | [`Kernels`] |
//! | keyhead's GDN kernels, on raw device addresses | [`Gdn`] |
//! | keyhead's block top-k kernels, on raw device addresses | [`Topk`] |
//!
//! Conventions:
//! * Sizes are in bytes unless the name says elements, times in milliseconds, clocks in kHz.
//! * Every type keeps its device open, may be moved to and used from any thread, and frees itself when
//!   dropped.
//! * The driver's current context belongs to the thread. Each entry point sets it and puts the caller's back,
//!   so an engine with a context of its own is not disturbed; [`Device::make_current`] saves the switch over
//!   many calls.
//! * Work goes to a stream that the caller names. Owned streams are non-blocking: they do not wait for the
//!   legacy default stream, and it does not wait for them.
//! * Faults of a running kernel surface at a later call on its stream; that error names the kernels launched
//!   there.
//!
//! ```no_run
//! # fn main() -> keyhead::error::Result<()> {
//! # let ptx = "";
//! use keyhead::cuda::{Device, DeviceBuffer, Module, Stream};
//!
//! let device = Device::open(0)?;
//! let kernel = Module::load(&device, "example", ptx)?.kernel("double_all")?;
//! let stream = Stream::new(&device)?;
//! let numbers = DeviceBuffer::from_slice(&stream, "numbers", &[1.0f32, 2.0, 3.0])?;
//!
//! #[repr(C)]
//! #[derive(Clone, Copy)]
//! struct Params {
//!     numbers: u64,
//!     len: u32,
//! }
//! let params = Params { numbers: numbers.as_ptr(), len: 3 };
//! // SAFETY: `double_all` takes this record, and touches only the `len` numbers that it points at.
//! unsafe { kernel.launch_with(&stream, [1, 1, 1], [32, 1, 1], 0, &params)? };
//! let mut doubled = [0.0; 3];
//! numbers.download(&stream, &mut doubled)?;
//! # Ok(())
//! # }
//! ```

mod buffer;
mod device;
mod driver;
mod facts;
mod gdn;
mod kernel;
mod kernels;
mod memo;
mod module;
mod stream;
#[cfg(test)]
mod tests;
mod topk;

pub use buffer::DeviceBuffer;
pub use device::{Current, Device};
pub use driver::version as driver_version;
pub use facts::DeviceFacts;
pub use gdn::{
    DeviceFloats, DeviceForward, DeviceOutNorm, DevicePrepare, DeviceRecurrence, DeviceRows, DeviceWeights,
    Gdn, PrepareStep, Workspace,
};
pub use kernel::Kernel;
pub use kernels::Kernels;
pub use module::Module;
pub use stream::{Event, Graph, Stream};
pub use topk::{DeviceMaxima, DeviceScores, DeviceTopk, Topk, TopkWorkspace};
pub(crate) use topk::{Launch, launches, maxima_launch, scratch_len};
