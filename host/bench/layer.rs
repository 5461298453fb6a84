//! The whole path and each of its launches, on random inputs of any length.

use super::{Contender, Row, alternate, rounds};
use crate::check::device_layer::DeviceLayer;
use crate::check::{LayerData, LayerShape};
use crate::cuda::{DeviceBuffer, Gdn, PrepareStep, Stream, Workspace};
use crate::error::Result;
use crate::gdn::{Dtype, HEAD_DIM, Heads, NormAct, StateLayout};

/// Tokens that are made at random; longer inputs repeat them.
const RANDOM_TOKENS: usize = 512;

/// Every launch of the path, its steps as kernels of their own, and the whole, alternating; activations of `dtype`, f16 out.
pub fn layer(gdn: &Gdn, heads: Heads, tokens: usize, dtype: Dtype) -> Result<Vec<Row>> {
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
    let call = on_device.call(&data, 0..tokens);
    let workspace = &Workspace::new(gdn.device(), heads, tokens)?;
    let buffer = |what: &str, row: usize| DeviceBuffer::<f32>::alloc(gdn.device(), what, tokens * row);
    let (h, gate, beta) =
        (buffer("h", heads.channels())?, buffer("gate", heads.value())?, buffer("beta", heads.value())?);
    let (h, gate, beta) = (h.as_ptr(), gate.as_ptr(), beta.as_ptr());
    let (prepare, recurrence, norm) =
        (call.prepare(h, gate, beta), call.recurrence(h, gate, beta), call.out_norm());

    let name = |step: &str| format!("{step}/{}/{}x{}/{tokens}", dtype.name(), heads.key(), heads.value());
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
    let rows: Vec<(usize, Contender<'_>)> = vec![
        (tokens * (conv + gates), Contender { name: name("prepare"), run: step(PrepareStep::All) }),
        (tokens * conv, Contender { name: name("conv"), run: step(PrepareStep::Conv) }),
        (
            tokens * 2 * heads.key() * HEAD_DIM * 8,
            Contender { name: name("l2norm"), run: step(PrepareStep::L2Norm) },
        ),
        (tokens * gates, Contender { name: name("gates"), run: step(PrepareStep::Gates) }),
        (
            tokens * recurrence_row + state,
            Contender {
                name: name("recurrence"),
                // SAFETY: as above.
                run: Box::new(move || unsafe { gdn.recurrence(stream, &recurrence, None) }.map(drop)),
            },
        ),
        (
            tokens * norm_row,
            Contender {
                name: name("out_norm"),
                // SAFETY: as above.
                run: Box::new(move || unsafe { gdn.out_norm(stream, &norm) }),
            },
        ),
        (
            tokens * all_row + state,
            Contender {
                name: name("forward"),
                // SAFETY: as above.
                run: Box::new(move || unsafe { gdn.forward(stream, &call, workspace, None) }.map(drop)),
            },
        ),
    ];
    let (bytes, mut contenders): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    let times = alternate(gdn.device(), stream, rounds(tokens), &mut contenders)?;
    let rows = contenders.into_iter().zip(times).zip(bytes);
    Ok(rows.map(|((contender, times), bytes)| Row::new(contender.name, times, tokens, bytes)).collect())
}
