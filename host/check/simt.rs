//! The kernels' source on the SIMT executor, launched as on a device: by the same argument records and grids.

mod topk;

pub use topk::{scores, scores_and_maxima, topk, topk_by_maxima};

use super::{LayerData, Prepared};
use crate::cuda::{DeviceFloats, DeviceOutNorm, DevicePrepare, DeviceRecurrence, DeviceRows, PrepareStep};
use crate::gdn::{Floats, Heads, NormOut, OutNorm, Recurrence, Rows, Variant};
use kernels_gpu::gdn::recurrence::{cols, heads, keyhead, pipe, scan};
use kernels_gpu::gdn::{conv, gates, l2norm, out_norm as norm};
use kernels_gpu::params::{GlobalMut, HeadsNormArgs, PrepareArgs, RecurrenceArgs};
use simt::{Fault, Launch, Order, Stats};

/// Runs a recurrence kernel.
///
/// # Panics
/// When the variant has no kernel for the shape's number of value heads a key head.
pub fn recurrence(variant: Variant, order: Order, mut call: Recurrence<'_>) -> Result<Stats, Fault> {
    let heads = call.heads;
    let args = device_recurrence(&mut call).args();
    let kernel = entry(variant, heads);
    let launch = Launch::new(variant.blocks(heads) as u32, variant.block()).order(order);
    // SAFETY: the record describes the buffers, whose bounds the executor checks.
    with_recurrence(launch, call).run(|| unsafe { kernel(args) })
}

fn entry(variant: Variant, heads: Heads) -> unsafe fn(RecurrenceArgs) {
    match (variant, heads.per_key()) {
        (Variant::Heads, _) => heads::heads,
        (Variant::Cols, _) => cols::cols,
        (Variant::Pipe, _) => pipe::pipe,
        (Variant::Scan, _) => scan::scan,
        (Variant::Keyhead, 1) => keyhead::keyhead_vpk1,
        (Variant::Keyhead, 2) => keyhead::keyhead_vpk2,
        (Variant::Keyhead, 3) => keyhead::keyhead_vpk3,
        (Variant::Keyhead, 4) => keyhead::keyhead_vpk4,
        (variant, vpk) => panic!("{variant} has no kernel for {vpk} value heads a key head"),
    }
}

/// Runs `prepare` or one of its steps on the layer's inputs, as built for sm_80 and newer.
pub fn prepare(
    step: PrepareStep,
    order: Order,
    data: &LayerData,
    prepared: &mut Prepared,
) -> Result<Stats, Fault> {
    let kernel = match step {
        PrepareStep::All => conv::prepare,
        PrepareStep::Conv => conv::conv,
        PrepareStep::L2Norm => l2norm::l2norm,
        PrepareStep::Gates => gates::gates,
    };
    run_prepare(step, kernel, order, data, prepared)
}

/// Runs `prepare` as built for sm_70.
pub fn prepare_sm_70(order: Order, data: &LayerData, prepared: &mut Prepared) -> Result<Stats, Fault> {
    run_prepare(PrepareStep::All, conv::prepare_without_async_copies, order, data, prepared)
}

fn run_prepare(
    step: PrepareStep,
    kernel: unsafe fn(PrepareArgs),
    order: Order,
    data: &LayerData,
    prepared: &mut Prepared,
) -> Result<Stats, Fault> {
    let (inputs, weights) = (data.inputs(), data.weights());
    let heads = data.shape.heads;
    let address = |data: &[f32]| data.as_ptr() as u64;
    let floats = |data: Floats<'_>, stride: usize| DeviceFloats {
        address: data.bytes().as_ptr() as u64,
        dtype: data.dtype(),
        stride,
    };
    let call = DevicePrepare {
        heads,
        tokens: data.shape.tokens,
        qkv: floats(inputs.qkv, heads.channels()),
        conv_weight: address(weights.conv_weight),
        conv_bias: weights.conv_bias.map(address),
        conv_state: prepared.conv_state.as_mut_ptr() as u64,
        a: floats(inputs.a.data, inputs.a.stride),
        b: floats(inputs.b.data, inputs.b.stride),
        dt_bias: address(weights.dt_bias),
        a_coef: address(weights.a_coef),
        l2_eps: data.options().l2_eps,
        h: prepared.h.as_mut_ptr() as u64,
        gate: prepared.gate.as_mut_ptr() as u64,
        beta: prepared.beta.as_mut_ptr() as u64,
    };
    let args = call.args();
    Launch::new(call.grid(step), conv::THREADS as u32)
        .order(order)
        .input("qkv", inputs.qkv.bytes())
        .input("a and b", data.ab.floats().bytes())
        .input("conv_weight", weights.conv_weight)
        .input("conv_bias", weights.conv_bias.unwrap_or_default())
        .input("dt_bias", weights.dt_bias)
        .input("a_coef", weights.a_coef)
        .output("conv_state", &mut prepared.conv_state)
        .output("h", &mut prepared.h)
        .output("gate", &mut prepared.gate)
        .output("beta", &mut prepared.beta)
        // SAFETY: the record describes the buffers, whose bounds the executor checks.
        .run(|| unsafe { kernel(args) })
}

/// Runs `out_norm`.
pub fn out_norm(order: Order, mut call: OutNorm<'_>) -> Result<Stats, Fault> {
    let device_call = device_norm(&mut call);
    let launch = Launch::new(device_call.grid(), norm::THREADS as u32).order(order);
    let launch = with_norm(launch.input("y", call.y), call);
    let args = device_call.args();
    // SAFETY: the record describes the buffers, whose bounds the executor checks.
    launch.run(|| unsafe { norm::out_norm(args) })
}

/// Runs `heads_norm`: the recurrence, and the out norm of its y instead of `norm`'s own; `normed` gets what `norm.out` is rounded
/// from.
pub fn heads_norm(
    order: Order,
    mut call: Recurrence<'_>,
    mut norm: OutNorm<'_>,
    normed: Option<&mut [f32]>,
) -> Result<Stats, Fault> {
    let recurrence = device_recurrence(&mut call).args();
    let (variant, heads) = (Variant::Heads, call.heads);
    let norm_args = device_norm(&mut norm).args();
    let launch = Launch::new(variant.blocks(heads) as u32, variant.block()).order(order);
    let mut launch = with_norm(with_recurrence(launch, call), norm);
    let mut normed_address = 0;
    if let Some(normed) = normed {
        normed_address = normed.as_mut_ptr() as u64;
        launch = launch.output("normed", normed);
    }
    let normed = GlobalMut::from_address(normed_address);
    let args = HeadsNormArgs::new(recurrence, norm_args, normed);
    // SAFETY: the record describes the buffers, whose bounds the executor checks.
    launch.run(|| unsafe { heads::heads_norm(args) })
}

fn device_recurrence(call: &mut Recurrence<'_>) -> DeviceRecurrence {
    let rows = |rows: Rows<'_>| DeviceRows { address: rows.data.as_ptr() as u64, stride: rows.stride };
    DeviceRecurrence {
        heads: call.heads,
        tokens: call.tokens,
        q: rows(call.inputs.q),
        k: rows(call.inputs.k),
        v: rows(call.inputs.v),
        gate: call.inputs.gate.as_ptr() as u64,
        beta: call.inputs.beta.as_ptr() as u64,
        state: call.state.as_mut_ptr() as u64,
        layout: call.layout,
        y: call.y.as_mut_ptr() as u64,
    }
}

fn with_recurrence<'a>(launch: Launch<'a>, call: Recurrence<'a>) -> Launch<'a> {
    launch
        .input("q", call.inputs.q.data)
        .input("k", call.inputs.k.data)
        .input("v", call.inputs.v.data)
        .input("gate", call.inputs.gate)
        .input("beta", call.inputs.beta)
        .output("state", call.state)
        .output("y", call.y)
}

fn device_norm(call: &mut OutNorm<'_>) -> DeviceOutNorm {
    let out = match &mut call.out {
        NormOut::F16(out) => out.as_mut_ptr() as u64,
        NormOut::Bf16(out) => out.as_mut_ptr() as u64,
        NormOut::F32(out) => out.as_mut_ptr() as u64,
    };
    DeviceOutNorm {
        value_heads: call.value_heads,
        tokens: call.tokens,
        y: call.y.as_ptr() as u64,
        z: call.z.bytes().as_ptr() as u64,
        z_dtype: call.z.dtype(),
        weight: call.weight.as_ptr() as u64,
        act: call.act,
        eps: call.eps,
        out,
        out_stride: call.out_stride,
        out_dtype: call.out.dtype(),
    }
}

fn with_norm<'a>(launch: Launch<'a>, call: OutNorm<'a>) -> Launch<'a> {
    let launch = launch.input("z", call.z.bytes()).input("norm_weight", call.weight);
    match call.out {
        NormOut::F16(out) => launch.output("out", out),
        NormOut::Bf16(out) => launch.output("out", out),
        NormOut::F32(out) => launch.output("out", out),
    }
}
