//! The Gated DeltaNet layer in the shape of Qwen3-Next's: 16 key heads, 48 value heads, 1024 tokens.
//!
//! On the CPU, on the threads that `RAYON_NUM_THREADS` allows: `gdn/forward/cpu-<isa>/16x48/1024` (the whole path, from the projections'
//! output), `gdn/recurrence/cpu-<isa>/16x48/1024` and `gdn/out_norm/cpu-<isa>/48/1024`. On CUDA device 0, if there is one, between
//! events: `gdn/recurrence/cuda/<variant>/16x48/1024` and `gdn/forward/cuda/f32/16x48/1024`.

mod device;

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use half::f16;
use keyhead::bench;
use keyhead::cpu::{self, Isa, Workspace};
use keyhead::cuda::Gdn;
use keyhead::gdn::{
    Carried, Dtype, Forward, ForwardInputs, ForwardOptions, ForwardOutputs, HEAD_DIM, HeadMap, Heads,
    NormAct, NormOut, OutNorm, PerHead, Recurrence, RecurrenceInputs, Rows, StateLayout, Weights,
};
use std::hint::black_box;
use std::time::Duration;

const KEY_HEADS: usize = 16;
const VALUE_HEADS: usize = 48;
const TOKENS: usize = 1024;

/// Reproducible numbers in -1..1, times `scale`.
fn random(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next() * scale).collect()
}

/// [`random`] rows of length 1.
fn unit_rows(seed: u64, rows: usize) -> Vec<f32> {
    let mut all = random(seed, rows * HEAD_DIM, 1.0);
    for row in all.chunks_exact_mut(HEAD_DIM) {
        let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter_mut().for_each(|x| *x /= length);
    }
    all
}

/// The instruction sets worth timing: plain code is slow where there is no fused multiply-add to compile it to.
fn isas() -> impl Iterator<Item = Isa> {
    Isa::available().into_iter().filter(|&isa| isa != Isa::Portable || cfg!(not(target_arch = "x86_64")))
}

fn forward(criterion: &mut Criterion) {
    let heads = Heads::new(KEY_HEADS, VALUE_HEADS, HeadMap::Grouped).expect("a valid shape");
    let (channels, width) = (heads.channels(), VALUE_HEADS * HEAD_DIM);
    let (qkv, z) = (random(1, TOKENS * channels, 1.0), random(2, TOKENS * width, 4.0));
    let ab = random(3, TOKENS * 2 * VALUE_HEADS, 2.0);
    let (a, b) = PerHead::pair(&ab[..], VALUE_HEADS);
    let conv_weight = random(4, channels * 4, 0.5);
    let dt_bias = random(5, VALUE_HEADS, 1.0);
    let a_coef: Vec<f32> = random(6, VALUE_HEADS, 8.0).iter().map(|a| -a.abs()).collect();
    let norm_weight = random(7, HEAD_DIM, 2.0);
    let weights = Weights {
        conv_weight: &conv_weight,
        conv_bias: None,
        dt_bias: &dt_bias,
        a_coef: &a_coef,
        norm_weight: &norm_weight,
    };
    let options = ForwardOptions { act: NormAct::Silu, eps: 1e-6, l2_eps: 1e-6 };
    let (mut conv_state, mut state) = (random(8, channels * 3, 1.0), random(9, heads.state_len(), 0.5));
    let (mut y, mut out) = (vec![0.0; TOKENS * width], vec![f16::ZERO; TOKENS * width]);
    let mut workspace = Workspace::new();

    let mut group = criterion.benchmark_group("gdn/forward");
    group.sample_size(20).sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(TOKENS as u64));
    for isa in isas() {
        group.bench_function(format!("cpu-{isa}/{KEY_HEADS}x{VALUE_HEADS}/{TOKENS}"), |bencher| {
            bencher.iter(|| {
                let inputs = ForwardInputs { qkv: black_box(&qkv[..]).into(), a, b, z: z[..].into() };
                let layout = StateLayout::HeadMajor;
                let carried = Carried { conv_state: &mut conv_state, state: &mut state, layout };
                let outputs = ForwardOutputs { y: &mut y, out: NormOut::F16(&mut out), out_stride: width };
                let call = Forward::new(heads, TOKENS, inputs, weights, options, carried, outputs);
                let done = cpu::forward_with(isa, call.expect("a valid call"), &mut workspace);
                done.expect("an available instruction set");
            });
        });
    }
}

fn recurrence(criterion: &mut Criterion) {
    let heads = Heads::new(KEY_HEADS, VALUE_HEADS, HeadMap::Grouped).expect("a valid shape");
    let (q, k) = (unit_rows(1, TOKENS * KEY_HEADS), unit_rows(2, TOKENS * KEY_HEADS));
    let v = random(3, TOKENS * VALUE_HEADS * HEAD_DIM, 1.0);
    let gate: Vec<f32> = random(4, TOKENS * VALUE_HEADS, 0.1).iter().map(|x| -x.abs()).collect();
    let beta: Vec<f32> = random(5, TOKENS * VALUE_HEADS, 1.0).iter().map(|x| x.abs()).collect();
    let inputs = RecurrenceInputs {
        q: Rows::packed(&q, KEY_HEADS),
        k: Rows::packed(&k, KEY_HEADS),
        v: Rows::packed(&v, VALUE_HEADS),
        gate: &gate,
        beta: &beta,
    };
    let mut state = random(6, heads.state_len(), 0.5);
    let mut y = vec![0.0; TOKENS * VALUE_HEADS * HEAD_DIM];

    let mut group = criterion.benchmark_group("gdn/recurrence");
    group.sample_size(20).sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(TOKENS as u64));
    for isa in isas() {
        group.bench_function(format!("cpu-{isa}/{KEY_HEADS}x{VALUE_HEADS}/{TOKENS}"), |bencher| {
            // The state of one call is the next one's: the decay keeps it bounded.
            bencher.iter(|| {
                let layout = StateLayout::HeadMajor;
                let call = Recurrence::new(heads, layout, TOKENS, black_box(inputs), &mut state, &mut y);
                cpu::recurrence_with(isa, call.expect("a valid call")).expect("an available instruction set");
            });
        });
    }
}

fn out_norm(criterion: &mut Criterion) {
    let width = VALUE_HEADS * HEAD_DIM;
    let (y, z) = (random(7, TOKENS * width, 1.0), random(8, TOKENS * width, 4.0));
    let weight = random(9, HEAD_DIM, 2.0);
    let mut out = vec![f16::ZERO; TOKENS * width];

    let mut group = criterion.benchmark_group("gdn/out_norm");
    group.throughput(Throughput::Elements(TOKENS as u64));
    for isa in isas() {
        group.bench_function(format!("cpu-{isa}/{VALUE_HEADS}/{TOKENS}"), |bencher| {
            bencher.iter(|| {
                let to = NormOut::F16(&mut out);
                let (y, z) = (black_box(&y), black_box(&z[..]));
                let call = OutNorm::new(VALUE_HEADS, TOKENS, y, z, &weight, NormAct::Silu, 1e-6, to, width);
                cpu::out_norm_with(isa, call.expect("a valid call")).expect("an available instruction set");
            });
        });
    }
}

fn on_device(criterion: &mut Criterion) {
    let Some(kernels) = device::kernels() else { return };
    let (gdn, heads) = (Gdn::with(&kernels), Heads::new(KEY_HEADS, VALUE_HEADS, HeadMap::Grouped));
    let heads = heads.expect("a valid shape");
    let variants = bench::recurrence(&gdn, heads, TOKENS, |calls| {
        device::time(criterion, ("gdn/recurrence", "recurrence"), TOKENS, calls)
    });
    variants.expect("the device works");
    let path = bench::layer(&gdn, heads, TOKENS, Dtype::F32, |calls| {
        device::time(criterion, ("gdn/forward", "forward"), TOKENS, calls)
    });
    path.expect("the device works");
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = forward, recurrence, out_norm, on_device
}
criterion_main!(benches);
