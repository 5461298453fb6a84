//! The whole path on a CUDA device against the CPU backend, and a layer's buffers there.

use super::device::{guarded, unguarded};
use super::{LayerData, LayerOutput, LayerShape, Numbers, Prepared, Report, same_bits};
use crate::cuda::{
    DeviceBuffer, DeviceFloats, DeviceForward, DevicePrepare, DeviceWeights, Gdn, Graph, PrepareStep, Stream,
    Workspace,
};
use crate::error::{Error, Result};
use crate::gdn::{Dtype, HEAD_DIM, HeadMap, Heads, NormAct, Request, StateLayout, Variant};
use std::cell::LazyCell;
use std::ops::Range;

/// A layer's inputs and outputs on the device; the outputs with guard words behind them.
pub(crate) struct DeviceLayer {
    shape: LayerShape,
    qkv: DeviceBuffer<u8>,
    ab: DeviceBuffer<u8>,
    z: DeviceBuffer<u8>,
    conv_weight: DeviceBuffer<f32>,
    conv_bias: Option<DeviceBuffer<f32>>,
    dt_bias: DeviceBuffer<f32>,
    a_coef: DeviceBuffer<f32>,
    norm_weight: DeviceBuffer<f32>,
    conv_state: DeviceBuffer<f32>,
    state: DeviceBuffer<f32>,
    y: DeviceBuffer<f32>,
    out: DeviceBuffer<u8>,
}

impl DeviceLayer {
    /// `tokens` tokens: those of `data`, again and again.
    pub(crate) fn new(stream: &Stream, data: &LayerData, tokens: usize) -> Result<DeviceLayer> {
        let device = stream.device();
        let repeated = |what: &str, numbers: &Numbers| -> Result<DeviceBuffer<u8>> {
            let bytes = numbers.floats().bytes();
            let row = bytes.len() / data.shape.tokens.max(1);
            let mut buffer = DeviceBuffer::alloc(device, what, tokens * row)?;
            for start in (0..tokens * row).step_by(bytes.len().max(1)) {
                buffer.upload_at(stream, start, &bytes[..bytes.len().min(tokens * row - start)])?;
            }
            Ok(buffer)
        };
        let words = |what: &str, words: &[f32]| DeviceBuffer::from_slice(stream, what, words);
        let blank = LayerData { shape: LayerShape { tokens, ..data.shape }, ..data.clone() }.blank();
        Ok(DeviceLayer {
            shape: LayerShape { tokens, ..data.shape },
            qkv: repeated("qkv", &data.qkv)?,
            ab: repeated("a and b", &data.ab)?,
            z: repeated("z", &data.z)?,
            conv_weight: words("conv_weight", &data.conv_weight)?,
            conv_bias: data.conv_bias.as_deref().map(|bias| words("conv_bias", bias)).transpose()?,
            dt_bias: words("dt_bias", &data.dt_bias)?,
            a_coef: words("a_coef", &data.a_coef)?,
            norm_weight: words("norm_weight", &data.norm_weight)?,
            conv_state: words("conv_state", &guarded(&data.conv_state))?,
            state: words("state", &guarded(&data.state))?,
            y: words("y", &guarded(&blank.y))?,
            out: DeviceBuffer::from_slice(stream, "out", &guarded(blank.out.floats().bytes()))?,
        })
    }

    /// The call for some of the tokens.
    pub(crate) fn call(&self, data: &LayerData, tokens: Range<usize>) -> DeviceForward {
        let LayerShape { heads, layout, dtype, out_dtype, .. } = self.shape;
        let (value, first) = (heads.value(), tokens.start);
        let at = |buffer: &DeviceBuffer<u8>, elements: usize, dtype: Dtype| {
            buffer.as_ptr() + (elements * dtype.size()) as u64
        };
        let floats = |buffer: &DeviceBuffer<u8>, offset: usize, stride: usize| DeviceFloats {
            address: at(buffer, offset + first * stride, dtype),
            dtype,
            stride,
        };
        let row = value * HEAD_DIM;
        DeviceForward {
            heads,
            tokens: tokens.len(),
            qkv: floats(&self.qkv, 0, heads.channels()),
            a: floats(&self.ab, 0, 2 * value),
            b: floats(&self.ab, value, 2 * value),
            z: at(&self.z, first * row, dtype),
            z_dtype: dtype,
            weights: DeviceWeights {
                conv_weight: self.conv_weight.as_ptr(),
                conv_bias: self.conv_bias.as_ref().map(DeviceBuffer::as_ptr),
                dt_bias: self.dt_bias.as_ptr(),
                a_coef: self.a_coef.as_ptr(),
                norm_weight: self.norm_weight.as_ptr(),
            },
            options: data.options(),
            conv_state: self.conv_state.as_ptr(),
            state: self.state.as_ptr(),
            layout,
            y: self.y.as_ptr() + (first * row * size_of::<f32>()) as u64,
            out: at(&self.out, first * row, out_dtype),
            out_stride: row,
            out_dtype,
        }
    }

    /// What the calls have left.
    fn output(&self, stream: &Stream) -> Result<LayerOutput> {
        let out = unguarded(stream, "out", &self.out)?;
        Ok(LayerOutput {
            y: unguarded(stream, "y", &self.y)?,
            out: Numbers::from_bytes(self.shape.out_dtype, &out),
            conv_state: unguarded(stream, "conv_state", &self.conv_state)?,
            state: unguarded(stream, "state", &self.state)?,
        })
    }
}

pub(super) fn run(gdn: &Gdn, stream: &Stream, report: &mut Report<'_>) {
    let shape = |(key, value), tokens, index: usize| LayerShape {
        heads: Heads::new(key, value, [HeadMap::Tiled, HeadMap::Grouped][index % 2]).expect("a valid pair"),
        layout: [StateLayout::HeadMajor, StateLayout::RowMajor][index / 2 % 2],
        tokens,
        dtype: Dtype::ALL[index % 3],
        out_dtype: [Dtype::F16, Dtype::Bf16, Dtype::F32][index / 3 % 3],
        act: [NormAct::Silu, NormAct::Sigmoid][index % 2],
        bias: index % 5 == 1,
    };
    let mut index = 0;
    let mut next = |heads, tokens| {
        index += 1;
        LayerData::random(shape(heads, tokens, index), index as u64)
    };
    for tokens in [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 257] {
        for heads in [(2, 2), (2, 6), (4, 16)] {
            let data = next(heads, tokens);
            steps(gdn, stream, report, &data);
            variants(gdn, stream, report, &data);
        }
    }
    for heads in [(16, 16), (16, 32), (16, 48), (16, 64), (8, 24), (4, 16), (2, 8), (3, 15)] {
        let data = next(heads, 67);
        steps(gdn, stream, report, &data);
        variants(gdn, stream, report, &data);
    }
    for tokens in [512, 1000, 1024, 2048, 4099] {
        whole(gdn, stream, report, &next((16, 48), tokens), None, &[tokens]);
    }
    for tokens in [65_536, 70_000] {
        whole(gdn, stream, report, &next((2, 6), tokens), None, &[tokens]);
    }
    for (first, rest) in [(1, 1), (2, 1), (3, 5), (8, 9), (1000, 24)] {
        whole(gdn, stream, report, &next((16, 48), first + rest), None, &[first, rest]);
    }
    replayed(gdn, stream, report, &next((16, 48), 40));
    silu_of_every_size(gdn, stream, report);
}

/// The division in `conv` starts from the card's own approximation of a reciprocal, which the executor cannot show: 16 million
/// numbers over all finite f32, each through a convolution that leaves it as it is.
fn silu_of_every_size(gdn: &Gdn, stream: &Stream, report: &mut Report<'_>) {
    let heads = Heads::new(2, 6, HeadMap::Grouped).expect("a valid pair");
    let shape = LayerShape {
        heads,
        layout: StateLayout::HeadMajor,
        tokens: 1,
        dtype: Dtype::F32,
        out_dtype: Dtype::F16,
        act: NormAct::Silu,
        bias: false,
    };
    let mut data = LayerData::random(shape, 1);
    data.shape.tokens = (1 << 24) / heads.channels();
    let finite = |i: usize| f32::from_bits(((i as u64 * 0x7f80_0000) >> 23) as u32 | (i as u32) << 31);
    data.qkv = Numbers::F32((0..data.shape.tokens * heads.channels()).map(finite).collect());
    data.ab = Numbers::F32(vec![0.0; data.shape.tokens * 2 * heads.value()]);
    data.conv_weight.chunks_exact_mut(4).for_each(|taps| taps.copy_from_slice(&[0.0, 0.0, 0.0, 1.0]));
    report.case("conv: silu of 16,776,960 numbers of every size", || {
        let found = prepare(gdn, stream, &data, &[PrepareStep::Conv]).map_err(|error| error.to_string())?;
        same_bits("h", &found.h, &data.prepared(false).h)
    });
}

/// `prepare` and its steps one by one.
fn steps(gdn: &Gdn, stream: &Stream, report: &mut Report<'_>, data: &LayerData) {
    use PrepareStep::{All, Conv, Gates, L2Norm};
    for (name, steps) in [("prepare", &[All][..]), ("gates, conv, l2norm", &[Gates, Conv, L2Norm])] {
        report.case(&format!("{name} {}", data.shape), || {
            let found = prepare(gdn, stream, data, steps).map_err(|error| error.to_string())?;
            found.same_bits(&data.prepared(true))
        });
    }
}

fn prepare(gdn: &Gdn, stream: &Stream, data: &LayerData, steps: &[PrepareStep]) -> Result<Prepared> {
    let layer = DeviceLayer::new(stream, data, data.shape.tokens)?;
    let Prepared { h, gate, beta, .. } = data.unprepared();
    let upload = |what: &str, words: &[f32]| DeviceBuffer::from_slice(stream, what, &guarded(words));
    let (h, gate, beta) = (upload("h", &h)?, upload("gate", &gate)?, upload("beta", &beta)?);
    let call: DevicePrepare =
        layer.call(data, 0..data.shape.tokens).prepare(h.as_ptr(), gate.as_ptr(), beta.as_ptr());
    for &step in steps {
        // SAFETY: the buffers are of these sizes, on this device, and live until the downloads below.
        unsafe { gdn.prepare_step(stream, &call, step)? };
    }
    Ok(Prepared {
        h: unguarded(stream, "h", &h)?,
        gate: unguarded(stream, "gate", &gate)?,
        beta: unguarded(stream, "beta", &beta)?,
        conv_state: unguarded(stream, "conv_state", &layer.conv_state)?,
    })
}

/// The whole path by every variant that can run it.
fn variants(gdn: &Gdn, stream: &Stream, report: &mut Report<'_>, data: &LayerData) {
    for variant in Variant::ALL {
        let request = Request { heads: data.shape.heads, variant: Some(variant), aligned: true };
        if !matches!(gdn.plan(&request), Err(Error::Variant { .. })) {
            whole(gdn, stream, report, data, Some(variant), &[data.shape.tokens]);
        }
    }
}

/// The whole path in chunks.
fn whole(
    gdn: &Gdn,
    stream: &Stream,
    report: &mut Report<'_>,
    data: &LayerData,
    variant: Option<Variant>,
    chunks: &[usize],
) {
    let name = variant.map_or("auto", Variant::name);
    let expected = LazyCell::new(|| data.expected());
    report.case(&format!("forward {name} {} in {chunks:?}", data.shape), || {
        let run = || -> Result<LayerOutput> {
            let layer = DeviceLayer::new(stream, data, data.shape.tokens)?;
            let most = chunks.iter().copied().max().unwrap_or(0);
            let workspace = Workspace::new(gdn.device(), data.shape.heads, most)?;
            let mut first = 0;
            for &tokens in chunks {
                let call = layer.call(data, first..first + tokens);
                // SAFETY: the buffers are of these sizes, on this device, and live until the downloads below.
                unsafe { gdn.forward(stream, &call, &workspace, variant)? };
                first += tokens;
            }
            layer.output(stream)
        };
        run().map_err(|error| error.to_string())?.same_bits(&expected)
    });
}

/// A captured call of half the tokens, replayed twice from where the tokens before it led: each time the bits of a call of its own.
fn replayed(gdn: &Gdn, stream: &Stream, report: &mut Report<'_>, data: &LayerData) {
    report.case(&format!("forward in a graph {}", data.shape), || {
        let run = || -> Result<(LayerOutput, LayerOutput)> {
            let (direct, graphed) = (
                DeviceLayer::new(stream, data, data.shape.tokens)?,
                DeviceLayer::new(stream, data, data.shape.tokens)?,
            );
            let workspace = Workspace::new(gdn.device(), data.shape.heads, data.shape.tokens)?;
            let half = data.shape.tokens / 2;
            for _ in 0..2 {
                // SAFETY: the buffers are of these sizes, on this device, and live until the downloads below.
                unsafe { gdn.forward(stream, &direct.call(data, half..2 * half), &workspace, None)? };
            }
            let call = graphed.call(data, half..2 * half);
            // SAFETY: as above; the graph is gone before them.
            let mut graph = unsafe {
                Graph::capture(stream, |stream| gdn.forward(stream, &call, &workspace, None).map(drop))?
            };
            graph.launch(stream)?;
            graph.launch(stream)?;
            Ok((graphed.output(stream)?, direct.output(stream)?))
        };
        let (found, expected) = run().map_err(|error| error.to_string())?;
        if expected.state == data.state {
            return Err("nothing ran".into());
        }
        found.same_bits(&expected)
    });
}
