//! The kernels' source on the SIMT executor, launched as on a device.

use crate::gdn::{Heads, NormAct, NormOut, OutNorm, Recurrence, Variant};
use kernels_gpu::gdn::out_norm as norm;
use kernels_gpu::gdn::recurrence::{keyhead, pipe, scan};
use kernels_gpu::params::{Global, GlobalMut, OutNormArgs, RecurrenceArgs};
use simt::{Fault, Launch, Order, Stats};

/// Runs a recurrence kernel.
///
/// # Panics
/// When the variant has no kernel for the shape's number of value heads a key head.
pub fn recurrence(variant: Variant, order: Order, call: Recurrence<'_>) -> Result<Stats, Fault> {
    let Recurrence { heads, layout, tokens, inputs, state, y } = call;
    let (head_per_key, head_per_slot) = heads.strides();
    let (state_row, state_head) = layout.strides(heads);
    let args = RecurrenceArgs {
        q: address(inputs.q.data),
        k: address(inputs.k.data),
        v: address(inputs.v.data),
        gate: address(inputs.gate),
        beta: address(inputs.beta),
        state: address_mut(state),
        y: address_mut(y),
        tokens: tokens as u64,
        q_stride: inputs.q.stride as u64,
        k_stride: inputs.k.stride as u64,
        v_stride: inputs.v.stride as u64,
        state_row: state_row as u64,
        state_head: state_head as u64,
        key_heads: heads.key() as u32,
        value_heads: heads.value() as u32,
        head_per_key: head_per_key as u32,
        head_per_slot: head_per_slot as u32,
    };
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
pub fn out_norm(order: Order, call: OutNorm<'_>) -> Result<Stats, Fault> {
    let OutNorm { value_heads, tokens, y, z, weight, act, eps, out, out_stride } = call;
    let (out_address, out_dtype) = match &out {
        NormOut::F16(out) => (out.as_ptr() as u64, OutNormArgs::F16),
        NormOut::Bf16(out) => (out.as_ptr() as u64, OutNormArgs::BF16),
        NormOut::F32(out) => (out.as_ptr() as u64, OutNormArgs::F32),
    };
    let args = OutNormArgs {
        y: GlobalMut::from_address(y.as_ptr() as u64),
        z: address(z),
        weight: address(weight),
        out: GlobalMut::from_address(out_address),
        tokens: tokens as u64,
        out_stride: out_stride as u64,
        value_heads: value_heads as u32,
        eps,
        act: match act {
            NormAct::Sigmoid => OutNormArgs::SIGMOID,
            NormAct::Silu => OutNormArgs::SILU,
        },
        out_dtype,
    };
    let grid = (tokens as u32, value_heads.div_ceil(norm::HEADS_PER_BLOCK) as u32);
    let launch = Launch::new(grid, norm::THREADS as u32).order(order);
    let launch = launch.input("y", y).input("z", z).input("norm_weight", weight);
    let launch = match out {
        NormOut::F16(out) => launch.output("out", out),
        NormOut::Bf16(out) => launch.output("out", out),
        NormOut::F32(out) => launch.output("out", out),
    };
    // SAFETY: the record describes the buffers, whose bounds the executor checks.
    launch.run(|| unsafe { norm::out_norm(args) })
}

fn address(data: &[f32]) -> Global<f32> {
    Global::from_address(data.as_ptr() as u64)
}

fn address_mut(data: &mut [f32]) -> GlobalMut<f32> {
    GlobalMut::from_address(data.as_mut_ptr() as u64)
}
