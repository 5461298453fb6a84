//! Order on the device: streams, events, and graphs captured from a stream.

use std::ffi::c_int;
use std::fmt::{self, Display};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_shim::CUresult;
use cuda_shim::ffi::{self, Handle};

use super::device::Device;
use super::driver;
use crate::error::Result;

/// CU_STREAM_NON_BLOCKING.
const NON_BLOCKING: u32 = 1;
/// CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads do meanwhile does not disturb the capture.
const CAPTURE_THREAD_LOCAL: c_int = 1;
/// How many of the kernels launched last an error names.
const NAMED: usize = 4;

/// A queue of work on a device: what is put on it runs in order.
pub struct Stream {
    raw: Handle,
    owned: bool,
    device: Device,
    /// The kernels launched since the last successful synchronisation, the latest last, repeats left out.
    launched: Mutex<Vec<Arc<str>>>,
}

// SAFETY: a stream handle may be used and destroyed by any thread, and by several at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:p} of {:?})", self.raw, self.device)
    }
}

impl Stream {
    /// A new stream, which neither waits for the legacy default stream nor makes it wait.
    pub fn new(device: &Device) -> Result<Stream> {
        let _current = device.make_current()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a stream handle that the driver sets, in the current context.
        driver::check("cuStreamCreate", unsafe { ffi::cuStreamCreate(&mut raw, NON_BLOCKING) })?;
        Ok(Stream { raw, owned: true, device: device.clone(), launched: Mutex::default() })
    }

    /// An engine's own `CUstream`, null for the legacy default stream. It is not destroyed when this is
    /// dropped.
    ///
    /// # Safety
    /// `raw` must be a stream of the device's primary context, and live as long as this.
    pub unsafe fn borrow_raw(device: &Device, raw: Handle) -> Stream {
        Stream { raw, owned: false, device: device.clone(), launched: Mutex::default() }
    }

    /// The `CUstream` itself, for other libraries.
    pub fn as_raw(&self) -> Handle {
        self.raw
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until everything on the stream has run. A fault of a kernel is reported here (or by an earlier
    /// call that comes to know of it), with the names of the last kernels launched through this `Stream`.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.device.make_current()?;
        // SAFETY: the stream lives.
        let answer = unsafe { ffi::cuStreamSynchronize(self.raw) };
        self.check("cuStreamSynchronize", answer)?;
        self.launched().clear();
        Ok(())
    }

    /// Makes what is put on this stream from now on wait for what the event stands for.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _current = self.device.make_current()?;
        // SAFETY: stream and event live.
        let answer = unsafe { ffi::cuStreamWaitEvent(self.raw, event.raw, 0) };
        self.check("cuStreamWaitEvent", answer)
    }

    /// Like [`driver::check`], for a call on this stream: the error may be that of a kernel launched before.
    pub(super) fn check(&self, call: impl Display, answer: CUresult) -> Result<()> {
        if answer == 0 {
            return Ok(());
        }
        let launched = self.launched().join(", ");
        Err(match launched.as_str() {
            "" => driver::failure(call, answer),
            _ => driver::failure(format_args!("{call}, after the launch of {launched},"), answer),
        })
    }

    /// Remembers a kernel that was launched.
    pub(super) fn note(&self, kernel: &Arc<str>) {
        let mut launched = self.launched();
        if let Some(place) = launched.iter().position(|name| name == kernel) {
            launched[place..].rotate_left(1);
            return;
        }
        if launched.len() == NAMED {
            launched.remove(0);
        }
        launched.push(kernel.clone());
    }

    fn launched(&self) -> MutexGuard<'_, Vec<Arc<str>>> {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned
            && let Ok(_current) = self.device.make_current()
        {
            // SAFETY: the stream is ours and lives; the driver finishes the work on it.
            unsafe { ffi::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// A point in a stream's work, with the time at which the device passed it.
pub struct Event {
    raw: Handle,
    device: Device,
}

// SAFETY: an event handle may be used and destroyed by any thread, and by several at once.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub fn new(device: &Device) -> Result<Event> {
        let _current = device.make_current()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is an event handle that the driver sets, in the current context.
        driver::check("cuEventCreate", unsafe { ffi::cuEventCreate(&mut raw, 0) })?;
        Ok(Event { raw, device: device.clone() })
    }

    /// Puts the event on the stream, behind the work that is there now.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let _current = self.device.make_current()?;
        // SAFETY: event and stream live.
        let answer = unsafe { ffi::cuEventRecord(self.raw, stream.raw) };
        stream.check("cuEventRecord", answer)
    }

    /// Waits until the device has passed the event.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.device.make_current()?;
        // SAFETY: the event lives.
        driver::check("cuEventSynchronize", unsafe { ffi::cuEventSynchronize(self.raw) })
    }

    /// The time from `start` to this event, in milliseconds, after waiting for this one. Both must have been
    /// recorded; the resolution is about half a microsecond.
    pub fn elapsed_ms(&self, start: &Event) -> Result<f32> {
        self.synchronize()?;
        let _current = self.device.make_current()?;
        let mut milliseconds = 0.0;
        // SAFETY: `milliseconds` is a C float, and both events live.
        let answer = unsafe { ffi::cuEventElapsedTime(&mut milliseconds, start.raw, self.raw) };
        driver::check("cuEventElapsedTime", answer)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.make_current() {
            // SAFETY: the event is ours and lives.
            unsafe { ffi::cuEventDestroy_v2(self.raw) };
        }
    }
}

/// Launches captured from a stream, which can be queued again and again as one. Needs a driver of CUDA 11.4
/// or newer.
pub struct Graph {
    exec: Handle,
    name: Arc<str>,
    device: Device,
}

// SAFETY: an instantiated graph may be used and destroyed by any thread; it is launched through `&mut self`
// only, as two threads may not launch one at the same time.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Graph {
    /// Runs `record`, and makes a graph of what it puts on the stream instead of running that. `record` must
    /// not allocate, free, synchronise or copy to or from the host. Dynamic shared memory is opted in to
    /// meanwhile as usual.
    ///
    /// Errors: those of `record`, or the driver's own.
    ///
    /// # Safety
    /// What the launches' arguments point at must be there at each [`launch`](Graph::launch) of the graph,
    /// too, and the kernels' modules must stay loaded.
    pub unsafe fn capture(stream: &Stream, record: impl FnOnce(&Stream) -> Result<()>) -> Result<Graph> {
        let _current = stream.device.make_current()?;
        // SAFETY: the stream lives.
        let answer = unsafe { ffi::cuStreamBeginCapture_v2(stream.raw, CAPTURE_THREAD_LOCAL) };
        driver::check("cuStreamBeginCapture", answer)?;
        let before = std::mem::take(&mut *stream.launched());
        let capture = Capture { stream };
        let recorded = record(stream);
        let captured = std::mem::replace(&mut *stream.launched(), before);
        recorded?; // drops `capture`
        let graph = capture.end()?;

        let mut exec = ptr::null_mut();
        // SAFETY: the graph was just captured.
        let answer = unsafe { ffi::cuGraphInstantiateWithFlags(&mut exec, graph, 0) };
        let instantiated = driver::check("cuGraphInstantiate", answer);
        // SAFETY: the graph is ours; what was instantiated from it stands alone.
        unsafe { ffi::cuGraphDestroy(graph) };
        instantiated?;
        let name = format!("graph of {}", captured.join(", ")).into();
        Ok(Graph { exec, name, device: stream.device.clone() })
    }

    /// Queues the captured work on a stream.
    pub fn launch(&mut self, stream: &Stream) -> Result<()> {
        let _current = self.device.make_current()?;
        // SAFETY: graph and stream live; what the graph points at is there, as `capture` was promised.
        let answer = unsafe { ffi::cuGraphLaunch(self.exec, stream.raw) };
        stream.check("cuGraphLaunch", answer)?;
        stream.note(&self.name);
        Ok(())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.make_current() {
            // SAFETY: the graph is ours and lives; the driver lets a running launch finish.
            unsafe { ffi::cuGraphExecDestroy(self.exec) };
        }
    }
}

/// A capture under way: ended by `end`, or thrown away when dropped.
struct Capture<'a> {
    stream: &'a Stream,
}

impl Capture<'_> {
    fn end(self) -> Result<Handle> {
        let stream = self.stream;
        std::mem::forget(self);
        let mut graph = ptr::null_mut();
        // SAFETY: the stream lives, and is being captured.
        let answer = unsafe { ffi::cuStreamEndCapture(stream.raw, &mut graph) };
        driver::check("cuStreamEndCapture", answer)?;
        Ok(graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if let Ok(graph) = (Capture { stream: self.stream }).end() {
            // SAFETY: the graph is ours, and of no use.
            unsafe { ffi::cuGraphDestroy(graph) };
        }
    }
}
