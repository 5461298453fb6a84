//! The recurrence variants and the out norm, on random inputs of any length.

use super::{Call, Calls, runnable};
use crate::check::{Data, Shape};
use crate::cuda::{DeviceBuffer, DeviceOutNorm, DeviceRecurrence, DeviceRows, Gdn, Stream};
use crate::error::Result;
use crate::gdn::{Dtype, HEAD_DIM, Heads, NormAct, StateLayout};

/// Tokens that are made at random; longer inputs repeat them.
const RANDOM_TOKENS: usize = 1024;

/// One layer's inputs and outputs on the device, in the packed layout.
pub(super) struct Layer {
    data: Data,
    pub(super) stream: Stream,
    qkv: DeviceBuffer<f32>,
    gate: DeviceBuffer<f32>,
    beta: DeviceBuffer<f32>,
    state: DeviceBuffer<f32>,
    y: DeviceBuffer<f32>,
    z: DeviceBuffer<f32>,
    weight: DeviceBuffer<f32>,
    out: DeviceBuffer<u16>,
    pub(super) tokens: usize,
}

impl Layer {
    pub(super) fn new(gdn: &Gdn, heads: Heads, tokens: usize) -> Result<Layer> {
        let shape =
            Shape { heads, layout: StateLayout::RowMajor, tokens: RANDOM_TOKENS.min(tokens), packed: true };
        let data = Data::random(shape, 0xb3);
        let (device, stream) = (gdn.device(), Stream::new(gdn.device())?);
        let repeated = |what: &str, words: &[f32]| -> Result<DeviceBuffer<f32>> {
            let per_token = words.len() / shape.tokens.max(1);
            let mut buffer = DeviceBuffer::alloc(device, what, tokens * per_token)?;
            for start in (0..tokens).step_by(shape.tokens.max(1)) {
                let count = shape.tokens.min(tokens - start);
                buffer.upload_at(&stream, start * per_token, &words[..count * per_token])?;
            }
            Ok(buffer)
        };
        let y_len = tokens * heads.value() * HEAD_DIM;
        Ok(Layer {
            qkv: repeated("qkv", &data.qkv)?,
            gate: repeated("gate", &data.gate)?,
            beta: repeated("beta", &data.beta)?,
            z: repeated("z", &data.z)?,
            state: DeviceBuffer::from_slice(&stream, "state", &data.state)?,
            weight: DeviceBuffer::from_slice(&stream, "norm_weight", &data.weight)?,
            y: DeviceBuffer::alloc(device, "y", y_len)?,
            out: DeviceBuffer::alloc(device, "out", y_len)?,
            data,
            stream,
            tokens,
        })
    }

    pub(super) fn heads(&self) -> Heads {
        self.data.shape.heads
    }

    /// The bytes that the recurrence must move: inputs and state read once, y and state written once.
    pub(super) fn recurrence_bytes(&self) -> usize {
        let heads = self.heads();
        let words = 2 * heads.key() * HEAD_DIM + 2 * heads.value() * HEAD_DIM + 2 * heads.value();
        4 * (self.tokens * words + 2 * heads.state_len())
    }

    pub(super) fn recurrence(&self) -> DeviceRecurrence {
        let Shape { heads, layout, .. } = self.data.shape;
        let [q, k, v] = self
            .data
            .places()
            .map(|(offset, stride)| DeviceRows { address: self.qkv.as_ptr() + 4 * offset as u64, stride });
        DeviceRecurrence {
            heads,
            tokens: self.tokens,
            q,
            k,
            v,
            gate: self.gate.as_ptr(),
            beta: self.beta.as_ptr(),
            state: self.state.as_ptr(),
            layout,
            y: self.y.as_ptr(),
        }
    }

    fn out_norm(&self) -> DeviceOutNorm {
        let value_heads = self.data.shape.heads.value();
        DeviceOutNorm {
            value_heads,
            tokens: self.tokens,
            y: self.y.as_ptr(),
            z: self.z.as_ptr(),
            z_dtype: Dtype::F32,
            weight: self.weight.as_ptr(),
            act: NormAct::Silu,
            eps: 1e-6,
            out: self.out.as_ptr(),
            out_stride: value_heads * HEAD_DIM,
            out_dtype: Dtype::F16,
        }
    }
}

/// The recurrence variants that can run here. The state goes on from call to call, as in a model.
///
/// Errors: `DeviceMemory`, or the driver's own.
pub fn recurrence<R>(
    gdn: &Gdn,
    heads: Heads,
    tokens: usize,
    time: impl FnOnce(Calls<'_>) -> Result<R>,
) -> Result<R> {
    let layer = Layer::new(gdn, heads, tokens)?;
    let mut calls = Vec::new();
    for variant in runnable(gdn, heads)? {
        let (call, stream) = (layer.recurrence(), &layer.stream);
        calls.push(Call {
            name: format!("recurrence/{variant}/{}x{}/{tokens}", heads.key(), heads.value()),
            bytes: layer.recurrence_bytes(),
            // SAFETY: the layer's buffers are of these sizes and outlive the timing, which ends with a synchronisation.
            run: Box::new(move || unsafe { gdn.recurrence(stream, &call, Some(variant)) }.map(drop)),
        });
    }
    time(Calls::new(&layer.stream, tokens, calls)?)
}

/// `out_norm` and the variant before it; f16 out.
///
/// Errors: `DeviceMemory`, or the driver's own.
pub fn norm<R>(
    gdn: &Gdn,
    heads: Heads,
    tokens: usize,
    time: impl FnOnce(Calls<'_>) -> Result<R>,
) -> Result<R> {
    let layer = Layer::new(gdn, heads, tokens)?;
    let (call, stream) = (layer.out_norm(), &layer.stream);
    // y as the recurrence leaves it; the variant before overwrites it with normed values.
    // SAFETY: as below.
    unsafe { gdn.recurrence(stream, &layer.recurrence(), None)? };
    let name = |entry: &str| format!("{entry}/{}x{}/{tokens}", heads.key(), heads.value());
    let bytes = tokens * heads.value() * HEAD_DIM * (4 + 4 + 2);
    let calls = vec![
        Call {
            name: name("out_norm"),
            bytes,
            // SAFETY: the layer's buffers are of these sizes and outlive the timing, which ends with a synchronisation.
            run: Box::new(move || unsafe { gdn.out_norm(stream, &call) }),
        },
        Call {
            name: name("out_norm_before"),
            bytes,
            // SAFETY: as above.
            run: Box::new(move || unsafe { gdn.out_norm_before(stream, &call) }),
        },
    ];
    time(Calls::new(stream, tokens, calls)?)
}
