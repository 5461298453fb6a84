//! The whole path and each of its launches, on random inputs of any length.

use super::{Call, Calls};
use crate::check::device_layer::DeviceLayer;
use crate::check::{LayerData, LayerShape};
use crate::cuda::{DeviceBuffer, Gdn, PrepareStep, Stream, Workspace};
use crate::error::Result;
use crate::gdn::{Dtype, HEAD_DIM, Heads, NormAct, StateLayout};

/// Tokens that are made at random; longer inputs repeat them.
const RANDOM_TOKENS: usize = 512;

/// Every launch of the path, its steps as kernels of their own, and the whole; activations of `dtype`, f16 out.
///
/// Errors: `DeviceMemory`, or the driver's own.
pub fn layer<R>(
    gdn: &Gdn,
    heads: Heads,
    tokens: usize,
    dtype: Dtype,
    time: impl FnOnce(Calls<'_>) -> Result<R>,
) -> Result<R> {
    let shape = LayerShape {
        heads,
        layout: StateLayout::RowMajor,
        tokens: RANDOM_TOKENS.min(tokens),
        dtype,
        out_dtype: Dtype::F16,
        act: NormAct::Silu,
        bias: false,
    };
    let data = LayerData::random(shape, 0xb3);
    let stream = &Stream::new(gdn.device())?;
    let on_device = DeviceLayer::new(stream, &data, tokens)?;
    let whole = on_device.call(&data, 0..tokens);
    let workspace = &Workspace::new(gdn.device(), heads, tokens)?;
    let buffer = |what: &str, row: usize| DeviceBuffer::<f32>::alloc(gdn.device(), what, tokens * row);
    let (h, gate, beta) =
        (buffer("h", heads.channels())?, buffer("gate", heads.value())?, buffer("beta", heads.value())?);
    let (h, gate, beta) = (h.as_ptr(), gate.as_ptr(), beta.as_ptr());
    let (prepare, recurrence, norm) =
        (whole.prepare(h, gate, beta), whole.recurrence(h, gate, beta), whole.out_norm());

    let row = heads.channels();
    let gates = 2 * heads.value() * (dtype.size() + 4);
    let conv = row * (dtype.size() + 4);
    let state = 2 * 4 * heads.state_len();
    let values = heads.value() * HEAD_DIM;
    let recurrence_row = 4 * (row + 2 * heads.value() + values);
    let norm_row = values * (4 + dtype.size() + 2);
    let all_row = row * dtype.size() + 2 * heads.value() * dtype.size() + values * (dtype.size() + 4 + 2);
    let step = |step: PrepareStep| -> Box<dyn FnMut() -> Result<()> + '_> {
        // SAFETY: the buffers are of these sizes and outlive the timing, which ends with a synchronisation.
        Box::new(move || unsafe { gdn.prepare_step(stream, &prepare, step) })
    };
    let call = |name: &str, bytes: usize, run| Call {
        name: format!("{name}/{}/{}x{}/{tokens}", dtype.name(), heads.key(), heads.value()),
        bytes,
        run,
    };
    let calls = vec![
        call("prepare", tokens * (conv + gates), step(PrepareStep::All)),
        call("conv", tokens * conv, step(PrepareStep::Conv)),
        call("l2norm", tokens * 2 * heads.key() * HEAD_DIM * 8, step(PrepareStep::L2Norm)),
        call("gates", tokens * gates, step(PrepareStep::Gates)),
        call(
            "recurrence",
            tokens * recurrence_row + state,
            // SAFETY: as above.
            Box::new(move || unsafe { gdn.recurrence(stream, &recurrence, None) }.map(drop)),
        ),
        // SAFETY: as above.
        call("out_norm", tokens * norm_row, Box::new(move || unsafe { gdn.out_norm(stream, &norm) })),
        call(
            "forward",
            tokens * all_row + state,
            // SAFETY: as above.
            Box::new(move || unsafe { gdn.forward(stream, &whole, workspace, None) }.map(drop)),
        ),
    ];
    time(Calls::new(stream, tokens, calls)?)
}
