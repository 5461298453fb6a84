//! The calls on host slices: copies in, runs, copies back.

use super::{
    DeviceFloats, DeviceForward, DeviceOutNorm, DeviceRecurrence, DeviceRows, DeviceWeights, Gdn, Workspace,
};
use crate::cuda::{DeviceBuffer, Stream};
use crate::error::{Error, Result};
use crate::gdn::{self, Floats, ForwardPlan, HEAD_DIM, Plan, Request, Rows, Variant};

impl Gdn {
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
        let device_y = DeviceBuffer::<f32>::alloc(self.device(), "y", y.len())?;
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
        let gdn::OutNorm { value_heads, tokens, y, z, weight, act, eps, mut out, out_stride } = call;
        if tokens == 0 {
            return Ok(());
        }
        let z_dtype = z.dtype();
        let y = DeviceBuffer::from_slice(stream, "y", y)?;
        let z = DeviceBuffer::from_slice(stream, "z", z.bytes())?;
        let weight = DeviceBuffer::from_slice(stream, "norm_weight", weight)?;
        // The gaps between rows are the caller's: they travel to the device and back.
        let device_out = DeviceBuffer::from_slice(stream, "out", out.bytes_mut())?;
        let call = DeviceOutNorm {
            value_heads,
            tokens,
            y: y.as_ptr(),
            z: z.as_ptr(),
            z_dtype,
            weight: weight.as_ptr(),
            act,
            eps,
            out: device_out.as_ptr(),
            out_stride,
            out_dtype: out.dtype(),
        };
        // SAFETY: the buffers are of these sizes and live until the copy back is done.
        unsafe { self.out_norm(stream, &call)? };
        device_out.download(stream, out.bytes_mut())
    }

    /// The whole path on host slices: copies in, runs, copies back. On an error what the call carries is what it was.
    pub(crate) fn forward_host(
        &self,
        stream: &Stream,
        call: gdn::Forward<'_>,
        variant: Option<Variant>,
    ) -> Result<ForwardPlan> {
        let gdn::Forward { heads, tokens, inputs, weights, options, carried, mut outputs } = call;
        let device = self.device();
        if tokens == 0 {
            let plan = self.plan(&Request { heads, variant, aligned: true })?;
            return Ok(ForwardPlan::new(heads, plan));
        }
        let upload = |what: &str, data: &[f32]| DeviceBuffer::from_slice(stream, what, data);
        let floats = |what: &str, data: Floats<'_>, stride: usize| -> Result<_> {
            let buffer = DeviceBuffer::from_slice(stream, what, data.bytes())?;
            let floats = DeviceFloats { address: buffer.as_ptr(), dtype: data.dtype(), stride };
            Ok((buffer, floats))
        };
        let (_qkv, qkv) = floats("qkv", inputs.qkv, heads.channels())?;
        let (_a, a) = floats("a", inputs.a.data, inputs.a.stride)?;
        let (_b, b) = floats("b", inputs.b.data, inputs.b.stride)?;
        let (_z, z) = floats("z", inputs.z, heads.value() * HEAD_DIM)?;
        let conv_weight = upload("conv_weight", weights.conv_weight)?;
        let conv_bias = weights.conv_bias.map(|bias| upload("conv_bias", bias)).transpose()?;
        let dt_bias = upload("dt_bias", weights.dt_bias)?;
        let a_coef = upload("a_coef", weights.a_coef)?;
        let norm_weight = upload("norm_weight", weights.norm_weight)?;
        let conv_state = upload("conv_state", carried.conv_state)?;
        let state = upload("state", carried.state)?;
        let y = DeviceBuffer::<f32>::alloc(device, "y", outputs.y.len())?;
        let out = DeviceBuffer::from_slice(stream, "out", outputs.out.bytes_mut())?;
        let workspace = Workspace::new(device, heads, tokens)?;
        let mut new_conv_state = host_vec(carried.conv_state.len(), "the new conv state")?;
        let mut new_state = host_vec(carried.state.len(), "the new state")?;

        let device_call = DeviceForward {
            heads,
            tokens,
            qkv,
            a,
            b,
            z: z.address,
            z_dtype: z.dtype,
            weights: DeviceWeights {
                conv_weight: conv_weight.as_ptr(),
                conv_bias: conv_bias.as_ref().map(DeviceBuffer::as_ptr),
                dt_bias: dt_bias.as_ptr(),
                a_coef: a_coef.as_ptr(),
                norm_weight: norm_weight.as_ptr(),
            },
            options,
            conv_state: conv_state.as_ptr(),
            state: state.as_ptr(),
            layout: carried.layout,
            y: y.as_ptr(),
            out: out.as_ptr(),
            out_stride: outputs.out_stride,
            out_dtype: outputs.out.dtype(),
        };
        // SAFETY: the buffers are of these sizes and live until the copies back are done.
        let plan = unsafe { self.forward(stream, &device_call, &workspace, variant)? };
        y.download(stream, outputs.y)?;
        out.download(stream, outputs.out.bytes_mut())?;
        conv_state.download(stream, &mut new_conv_state)?;
        state.download(stream, &mut new_state)?;
        carried.conv_state.copy_from_slice(&new_conv_state);
        carried.state.copy_from_slice(&new_state);
        Ok(plan)
    }
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
