//! The GDN kernels of one device: raw-pointer entry points for engines, and the same on host slices.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kernels_gpu::gdn::out_norm;
use kernels_gpu::params::{Global, GlobalMut, OutNormArgs, RecurrenceArgs};

use super::{Device, DeviceBuffer, Kernel, Module, Stream};
use crate::error::{Error, Result};
use crate::gdn::{
    self, Dtype, HEAD_DIM, Heads, NormAct, NormOut, Plan, Request, Rows, StateLayout, Switches, Variant,
};
use crate::ptx;

/// Rows `[tokens][heads][128]` of f32 in device memory, tokens `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRows {
    /// Device address of the first head of token 0.
    pub address: u64,
    /// In elements; at least `heads * 128`.
    pub stride: usize,
}

/// A recurrence on device memory. The addresses are device addresses of f32.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRecurrence {
    pub heads: Heads,
    pub tokens: usize,
    /// `[T][HK][128]`, l2-normalised, not scaled.
    pub q: DeviceRows,
    /// `[T][HK][128]`, l2-normalised.
    pub k: DeviceRows,
    /// `[T][HV][128]`.
    pub v: DeviceRows,
    /// `[T][HV]`: the log of the decay.
    pub gate: u64,
    /// `[T][HV]`.
    pub beta: u64,
    /// `HV * 128 * 128` elements, read and written in place.
    pub state: u64,
    pub layout: StateLayout,
    /// `[T][HV][128]`, written.
    pub y: u64,
}

/// An out norm on device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOutNorm {
    pub value_heads: usize,
    pub tokens: usize,
    /// `[T][HV][128]` f32, 16-byte aligned, read only.
    pub y: u64,
    /// `[T][HV][128]` of `z_dtype`, aligned to 4 elements.
    pub z: u64,
    pub z_dtype: Dtype,
    /// `[128]` f32, 16-byte aligned.
    pub weight: u64,
    pub act: NormAct,
    /// Added to the mean of the squares; finite and not negative.
    pub eps: f32,
    /// `[T][out_stride]` of `out_dtype`, aligned to its elements; the `HV * 128` elements of a row are written.
    pub out: u64,
    /// In elements; at least `HV * 128`.
    pub out_stride: usize,
    pub out_dtype: Dtype,
}

impl DeviceRecurrence {
    /// The record that every recurrence kernel takes.
    pub(crate) fn args(&self) -> RecurrenceArgs {
        let (head_per_key, head_per_slot) = self.heads.strides();
        let (state_row, state_head) = self.layout.strides(self.heads);
        RecurrenceArgs {
            q: Global::from_address(self.q.address),
            k: Global::from_address(self.k.address),
            v: Global::from_address(self.v.address),
            gate: Global::from_address(self.gate),
            beta: Global::from_address(self.beta),
            state: GlobalMut::from_address(self.state),
            y: GlobalMut::from_address(self.y),
            tokens: self.tokens as u64,
            q_stride: self.q.stride as u64,
            k_stride: self.k.stride as u64,
            v_stride: self.v.stride as u64,
            state_row: state_row as u64,
            state_head: state_head as u64,
            key_heads: self.heads.key() as u32,
            value_heads: self.heads.value() as u32,
            head_per_key: head_per_key as u32,
            head_per_slot: head_per_slot as u32,
        }
    }
}

impl DeviceOutNorm {
    /// The record that `out_norm` takes.
    pub(crate) fn args(&self) -> OutNormArgs {
        OutNormArgs {
            y: GlobalMut::from_address(self.y),
            z: Global::from_address(self.z),
            weight: Global::from_address(self.weight),
            out: GlobalMut::from_address(self.out),
            tokens: self.tokens as u64,
            out_stride: self.out_stride as u64,
            value_heads: self.value_heads as u32,
            eps: self.eps,
            act: match self.act {
                NormAct::Sigmoid => OutNormArgs::SIGMOID,
                NormAct::Silu => OutNormArgs::SILU,
            },
            out_dtype: self.out_dtype.code(),
            z_dtype: self.z_dtype.code(),
        }
    }

    /// The blocks of a launch.
    pub(crate) fn grid(&self) -> [u32; 3] {
        [self.tokens as u32, self.value_heads.div_ceil(out_norm::HEADS_PER_BLOCK) as u32, 1]
    }
}

/// The GDN kernels, loaded on one device. Clones share them; use from any thread.
#[derive(Clone, Debug)]
pub struct Gdn {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Device,
    module: Module,
    switches: Switches,
    kernels: Mutex<HashMap<String, Kernel>>,
    plans: Mutex<HashMap<Request, Plan>>,
}

impl Gdn {
    /// Loads the module for the device's compute capability. Reads the switches in the environment, once.
    ///
    /// Errors: `DriverTooOld`, `Jit`, or the driver's own.
    pub fn new(device: &Device) -> Result<Gdn> {
        let facts = device.facts();
        let ptx = ptx::Module::for_compute_capability(facts.major, facts.minor).ok_or_else(|| {
            Error::ComputeCapability { device: facts.name.clone(), major: facts.major, minor: facts.minor }
        })?;
        let module = Module::load(device, ptx.name, ptx.text)?;
        let switches = Switches::from_env();
        let inner = Inner {
            device: device.clone(),
            module,
            switches,
            kernels: Mutex::default(),
            plans: Mutex::default(),
        };
        Ok(Gdn { inner: Arc::new(inner) })
    }

    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The kernel of an entry, looked up once.
    pub(crate) fn kernel(&self, entry: &str) -> Result<Kernel> {
        let mut kernels = self.inner.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(entry) {
            return Ok(kernel.clone());
        }
        let kernel = self.inner.module.kernel(entry)?;
        kernels.insert(entry.into(), kernel.clone());
        Ok(kernel)
    }

    /// Which variant runs, and why; asked once per device and request, then remembered.
    ///
    /// Errors: `Variant` or `Argument` for one that is asked for, by the request or a switch, and cannot run; or the driver's own.
    pub fn plan(&self, request: &Request) -> Result<Plan> {
        if let Some(plan) = self.inner.plans.lock().unwrap_or_else(PoisonError::into_inner).get(request) {
            return Ok(plan.clone());
        }
        let facts = self.inner.device.facts();
        let has_entry = request.heads.per_key() <= gdn::MAX_KEYHEAD_VPK && facts.major >= 8;
        let keyhead_blocks_per_sm = if has_entry {
            let threads = Variant::Keyhead.block().iter().product();
            self.kernel(&Variant::Keyhead.entry(request.heads))?.occupancy(threads, 0)?
        } else {
            0
        };
        let device =
            gdn::Device { major: facts.major, minor: facts.minor, sms: facts.sms, keyhead_blocks_per_sm };
        let plan = Plan::new(&device, request, &self.inner.switches)?;
        let mut plans = self.inner.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.insert(*request, plan.clone());
        Ok(plan)
    }

    /// Queues the recurrence on the stream, by the plan's variant or the one asked for, and returns the plan. No tokens: no
    /// launch, the state stays. Nothing is allocated, so the call may be captured into a graph once its plan is known.
    ///
    /// Errors: `Stride`, `Alignment`, `Variant`, or the driver's own. A fault while the kernel runs is reported by a later call
    /// on the stream.
    ///
    /// # Safety
    /// The addresses are of live device memory of the sizes that [`DeviceRecurrence`] states, on this device; state and y
    /// overlap nothing; and nobody else touches state and y until the kernel has run.
    pub unsafe fn recurrence(
        &self,
        stream: &Stream,
        call: &DeviceRecurrence,
        variant: Option<Variant>,
    ) -> Result<Plan> {
        let heads = call.heads;
        gdn::check_tokens(call.tokens)?;
        let rows = [("q", call.q, heads.key()), ("k", call.k, heads.key()), ("v", call.v, heads.value())];
        for (tensor, rows, count) in rows {
            gdn::check_stride(tensor, rows.stride, count)?;
        }
        let aligned = rows.iter().all(|(_, rows, _)| rows.address % 16 == 0 && rows.stride % 4 == 0);
        let plan = self.plan(&Request { heads, variant, aligned })?;
        if call.tokens == 0 {
            return Ok(plan);
        }
        let addresses = rows.map(|(tensor, rows, _)| (tensor, rows.address)).into_iter().chain([
            ("gate", call.gate),
            ("beta", call.beta),
            ("state", call.state),
            ("y", call.y),
        ]);
        for (tensor, address) in addresses {
            check_address(tensor, address, 4)?;
        }

        let args = call.args();
        let grid = [plan.variant.blocks(heads) as u32, 1, 1];
        let kernel = self.kernel(&plan.variant.entry(heads))?;
        // SAFETY: the record is the entry's; the caller's promise about the memory.
        unsafe { kernel.launch_with(stream, grid, plan.variant.block(), 0, &args)? };
        Ok(plan)
    }

    /// Queues the out norm on the stream. No tokens: no launch.
    ///
    /// Errors: `Stride`, `Alignment`, `Argument` (eps), or the driver's own.
    ///
    /// # Safety
    /// The addresses are of live device memory of the sizes that [`DeviceOutNorm`] states, on this device; `out` overlaps
    /// nothing, and nobody else touches it until the kernel has run.
    pub unsafe fn out_norm(&self, stream: &Stream, call: &DeviceOutNorm) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.out_norm_entry(stream, call, "out_norm") }
    }

    /// The variant before, which also stores the f32 result over y; kept for A/B.
    ///
    /// # Safety
    /// As [`out_norm`](Self::out_norm), and y is written too.
    pub unsafe fn out_norm_before(&self, stream: &Stream, call: &DeviceOutNorm) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.out_norm_entry(stream, call, "out_norm_before") }
    }

    unsafe fn out_norm_entry(&self, stream: &Stream, call: &DeviceOutNorm, entry: &str) -> Result<()> {
        gdn::check_eps("eps", call.eps)?;
        gdn::check_stride("out", call.out_stride, call.value_heads)?;
        gdn::check_tokens(call.tokens)?;
        if call.tokens == 0 || call.value_heads == 0 {
            return Ok(());
        }
        check_address("y", call.y, 16)?;
        check_address("z", call.z, 4 * call.z_dtype.size())?;
        check_address("norm_weight", call.weight, 16)?;
        check_address("out", call.out, call.out_dtype.size())?;

        let (args, grid) = (call.args(), call.grid());
        let kernel = self.kernel(entry)?;
        // SAFETY: the record is the entry's; the caller's promise about the memory.
        unsafe { kernel.launch_with(stream, grid, [out_norm::THREADS as u32, 1, 1], 0, &args) }
    }

    /// The recurrence on host slices: copies in, runs, copies back. On an error the state is what it was.
    pub(crate) fn recurrence_host(
        &self,
        stream: &Stream,
        call: gdn::Recurrence<'_>,
        variant: Option<Variant>,
    ) -> Result<Plan> {
        let gdn::Recurrence { heads, layout, tokens, inputs, state, y } = call;
        if tokens == 0 {
            return self.plan(&Request { heads, variant, aligned: true });
        }
        let upload = |what: &str, data: &[f32]| DeviceBuffer::from_slice(stream, what, data);
        let q = upload_rows(stream, "q", inputs.q, tokens, heads.key())?;
        let k = upload_rows(stream, "k", inputs.k, tokens, heads.key())?;
        let v = upload_rows(stream, "v", inputs.v, tokens, heads.value())?;
        let gate = upload("gate", inputs.gate)?;
        let beta = upload("beta", inputs.beta)?;
        let device_state = upload("state", state)?;
        let device_y = DeviceBuffer::<f32>::alloc(&self.inner.device, "y", y.len())?;
        let mut new_state = host_vec(state.len(), "the new state")?;

        let packed = |buffer: &DeviceBuffer<f32>, heads: usize| DeviceRows {
            address: buffer.as_ptr(),
            stride: heads * HEAD_DIM,
        };
        let device_call = DeviceRecurrence {
            heads,
            tokens,
            q: packed(&q, heads.key()),
            k: packed(&k, heads.key()),
            v: packed(&v, heads.value()),
            gate: gate.as_ptr(),
            beta: beta.as_ptr(),
            state: device_state.as_ptr(),
            layout,
            y: device_y.as_ptr(),
        };
        // SAFETY: the buffers are of these sizes and live until the copies back are done.
        let plan = unsafe { self.recurrence(stream, &device_call, variant)? };
        device_y.download(stream, y)?;
        device_state.download(stream, &mut new_state)?;
        state.copy_from_slice(&new_state);
        Ok(plan)
    }

    /// The out norm on host slices: copies in, runs, copies back.
    pub(crate) fn out_norm_host(&self, stream: &Stream, call: gdn::OutNorm<'_>) -> Result<()> {
        let gdn::OutNorm { value_heads, tokens, y, z, weight, act, eps, out, out_stride } = call;
        if tokens == 0 {
            return Ok(());
        }
        let y = DeviceBuffer::from_slice(stream, "y", y)?;
        let z_dtype = z.dtype();
        let z = DeviceBuffer::from_slice(stream, "z", z.bytes())?;
        let weight = DeviceBuffer::from_slice(stream, "norm_weight", weight)?;
        let run = |address: u64, out_dtype: Dtype| {
            let call = DeviceOutNorm {
                value_heads,
                tokens,
                y: y.as_ptr(),
                z: z.as_ptr(),
                z_dtype,
                weight: weight.as_ptr(),
                act,
                eps,
                out: address,
                out_stride,
                out_dtype,
            };
            // SAFETY: the buffers are of these sizes and live until the copy back is done.
            unsafe { self.out_norm(stream, &call) }
        };
        // The gaps between rows are the caller's: they travel to the device and back.
        match out {
            NormOut::F16(out) => {
                let buffer = DeviceBuffer::from_slice(stream, "out", half_bits(out))?;
                run(buffer.as_ptr(), Dtype::F16)?;
                buffer.download(stream, half_bits_mut(out))
            }
            NormOut::Bf16(out) => {
                let buffer = DeviceBuffer::from_slice(stream, "out", half_bits(out))?;
                run(buffer.as_ptr(), Dtype::Bf16)?;
                buffer.download(stream, half_bits_mut(out))
            }
            NormOut::F32(out) => {
                let buffer = DeviceBuffer::from_slice(stream, "out", &*out)?;
                run(buffer.as_ptr(), Dtype::F32)?;
                buffer.download(stream, out)
            }
        }
    }
}

fn half_bits<T: bytemuck::Pod>(words: &[T]) -> &[u16] {
    bytemuck::cast_slice(words)
}

fn half_bits_mut<T: bytemuck::Pod>(words: &mut [T]) -> &mut [u16] {
    bytemuck::cast_slice_mut(words)
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

fn host_vec(len: usize, what: &str) -> Result<Vec<f32>> {
    let mut vec = Vec::new();
    let bytes = len * size_of::<f32>();
    vec.try_reserve_exact(len).map_err(|_| Error::HostMemory { what: what.into(), bytes })?;
    vec.resize(len, 0.0);
    Ok(vec)
}

/// Rows on the device without gaps: only what the kernel reads travels, not all of a packed buffer three times.
fn upload_rows(
    stream: &Stream,
    tensor: &str,
    rows: Rows<'_>,
    tokens: usize,
    heads: usize,
) -> Result<DeviceBuffer<f32>> {
    let row = heads * HEAD_DIM;
    if rows.stride == row {
        return DeviceBuffer::from_slice(stream, tensor, &rows.data[..tokens * row]);
    }
    let mut packed = host_vec(tokens * row, tensor)?;
    for (t, target) in packed.chunks_exact_mut(row).enumerate() {
        target.copy_from_slice(&rows.data[t * rows.stride..][..row]);
    }
    DeviceBuffer::from_slice(stream, tensor, &packed)
}
