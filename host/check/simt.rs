//! The kernels' source on the SIMT executor, launched as on a device: by the same argument records and grids.

use crate::cuda::{DeviceOutNorm, DeviceRecurrence, DeviceRows};
use crate::gdn::{Floats, Heads, NormOut, OutNorm, Recurrence, Rows, Variant};
use kernels_gpu::gdn::out_norm as norm;
use kernels_gpu::gdn::recurrence::{keyhead, pipe, scan};
use kernels_gpu::params::RecurrenceArgs;
use simt::{Fault, Launch, Order, Stats};

/// Runs a recurrence kernel.
///
/// # Panics
/// When the variant has no kernel for the shape's number of value heads a key head.
pub fn recurrence(variant: Variant, order: Order, call: Recurrence<'_>) -> Result<Stats, Fault> {
    let Recurrence { heads, layout, tokens, inputs, state, y } = call;
    let rows = |rows: Rows<'_>| DeviceRows { address: rows.data.as_ptr() as u64, stride: rows.stride };
    let device_call = DeviceRecurrence {
        heads,
        tokens,
        q: rows(inputs.q),
        k: rows(inputs.k),
        v: rows(inputs.v),
        gate: inputs.gate.as_ptr() as u64,
        beta: inputs.beta.as_ptr() as u64,
        state: state.as_mut_ptr() as u64,
        layout,
        y: y.as_mut_ptr() as u64,
    };
    let args = device_call.args();
    let kernel = entry(variant, heads);
    let block: (u32, u32, u32) = variant.block().into();
    Launch::new(variant.blocks(heads) as u32, block)
        .order(order)
        .input("q", inputs.q.data)
        .input("k", inputs.k.data)
        .input("v", inputs.v.data)
        .input("gate", inputs.gate)
        .input("beta", inputs.beta)
        .output("state", state)
        .output("y", y)
        // SAFETY: the record describes the buffers, whose bounds the executor checks.
        .run(|| unsafe { kernel(args) })
}

fn entry(variant: Variant, heads: Heads) -> unsafe fn(RecurrenceArgs) {
    match (variant, heads.per_key()) {
        (Variant::Pipe, _) => pipe::pipe,
        (Variant::Scan, _) => scan::scan,
        (Variant::Keyhead, 1) => keyhead::keyhead_vpk1,
        (Variant::Keyhead, 2) => keyhead::keyhead_vpk2,
        (Variant::Keyhead, 3) => keyhead::keyhead_vpk3,
        (Variant::Keyhead, 4) => keyhead::keyhead_vpk4,
        (variant, vpk) => panic!("{variant} has no kernel for {vpk} value heads a key head"),
    }
}

/// Runs `out_norm`.
///
/// # Panics
/// When z is not f32.
pub fn out_norm(order: Order, call: OutNorm<'_>) -> Result<Stats, Fault> {
    let OutNorm { value_heads, tokens, y, z, weight, act, eps, mut out, out_stride } = call;
    let Floats::F32(z) = z else { panic!("`out_norm` reads f32, and z is {}", z.dtype().name()) };
    let out_dtype = out.dtype();
    let out_address = match &mut out {
        NormOut::F16(out) => out.as_mut_ptr() as u64,
        NormOut::Bf16(out) => out.as_mut_ptr() as u64,
        NormOut::F32(out) => out.as_mut_ptr() as u64,
    };
    let device_call = DeviceOutNorm {
        value_heads,
        tokens,
        y: y.as_ptr() as u64,
        z: z.as_ptr() as u64,
        weight: weight.as_ptr() as u64,
        act,
        eps,
        out: out_address,
        out_stride,
        out_dtype,
    };
    let grid: (u32, u32, u32) = device_call.grid().into();
    let launch = Launch::new(grid, norm::THREADS as u32).order(order);
    let launch = launch.input("y", y).input("z", z).input("norm_weight", weight);
    let launch = match out {
        NormOut::F16(out) => launch.output("out", out),
        NormOut::Bf16(out) => launch.output("out", out),
        NormOut::F32(out) => launch.output("out", out),
    };
    let args = device_call.args();
    // SAFETY: the record describes the buffers, whose bounds the executor checks.
    launch.run(|| unsafe { norm::out_norm(args) })
}
