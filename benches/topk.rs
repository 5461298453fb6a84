//! The block top-k: 256 queries that each select 2051 cells of 65,538 blocks; and the scores of 16,384 blocks.
//!
//! On the CPU, on the threads that `RAYON_NUM_THREADS` allows: `topk/select/cpu-<isa>/<scores>/256x65538` and
//! `topk/scores/cpu-<isa>/256x16384`. On CUDA device 0, if there is one, between events and with a cold cache:
//! `topk/select/cuda/<kernel>/256x262152/random` and `topk/scores/cuda/256x65536`, by their cells.

mod device;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use keyhead::bench::{self, TopkCall};
use keyhead::check::topk::Pattern;
use keyhead::cpu::{self, Isa};
use keyhead::cuda;
use keyhead::topk::{BLOCK_CELLS, INDEX_DIM, INDEX_HEADS, Scores, Topk, TopkShape};
use std::hint::black_box;
use std::time::Duration;

const QUERIES: usize = 256;
const BLOCKS: usize = 65_538;
const WIDTH: usize = 2051;
const SCORED_BLOCKS: usize = 16_384;

/// Reproducible numbers in -1..1.
fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The instruction sets worth timing: plain code is for machines that have none of the others.
fn isas() -> impl Iterator<Item = Isa> {
    Isa::available().into_iter().filter(|&isa| isa != Isa::Portable || cfg!(not(target_arch = "x86_64")))
}

/// Scores, and what they are called.
fn inputs() -> [(&'static str, Vec<f32>); 7] {
    let random = random(1, QUERIES * BLOCKS);
    let map = |f: fn(f32) -> f32| random.iter().map(|&x| f(x)).collect::<Vec<_>>();
    let by_block = |f: fn(usize) -> f32| (0..QUERIES * BLOCKS).map(|i| f(i % BLOCKS)).collect::<Vec<_>>();
    [
        ("zeros", map(|x| if x < 0.6 { 0.0 } else { x })),
        ("narrow", map(|x| 1.0005 + x * 0.0005)),
        ("equal", vec![1.0; QUERIES * BLOCKS]),
        ("nan", vec![f32::NAN; QUERIES * BLOCKS]),
        ("ascending", by_block(|block| block as f32)),
        ("descending", by_block(|block| -(block as f32))),
        ("random", random),
    ]
}

fn select(criterion: &mut Criterion) {
    let shape = TopkShape::new(QUERIES, BLOCKS, WIDTH, WIDTH).expect("a valid shape");
    let n_kv = vec![(BLOCKS * BLOCK_CELLS as usize) as i32 - 1; QUERIES];
    let mut ids = vec![0; QUERIES * WIDTH];
    let inputs = inputs();

    let mut group = criterion.benchmark_group("topk/select");
    group.sample_size(20).throughput(Throughput::Elements((QUERIES * BLOCKS) as u64));
    for isa in isas() {
        for (name, scores) in &inputs {
            group.bench_function(format!("cpu-{isa}/{name}/{QUERIES}x{BLOCKS}"), |bencher| {
                bencher.iter(|| {
                    let call = Topk::new(shape, black_box(scores), &n_kv, &mut ids).expect("a valid call");
                    cpu::topk_with(isa, call).expect("an available instruction set");
                });
            });
        }
    }
}

fn scores(criterion: &mut Criterion) {
    let pooled = random(2, SCORED_BLOCKS * INDEX_DIM);
    let (q_idx, tail) = (random(3, QUERIES * INDEX_HEADS * INDEX_DIM), random(4, INDEX_DIM));
    let n_kv = vec![(SCORED_BLOCKS * BLOCK_CELLS as usize) as i32; QUERIES];
    let stride = SCORED_BLOCKS + 2;
    let mut scores = vec![0.0; QUERIES * stride];

    let mut group = criterion.benchmark_group("topk/scores");
    group.sample_size(20).throughput(Throughput::Elements((QUERIES * SCORED_BLOCKS) as u64));
    for isa in isas() {
        group.bench_function(format!("cpu-{isa}/{QUERIES}x{SCORED_BLOCKS}"), |bencher| {
            bencher.iter(|| {
                let pooled = black_box(&pooled);
                let call =
                    Scores::new(stride, pooled, &q_idx, &tail, &n_kv, &mut scores).expect("a valid call");
                cpu::scores_with(isa, call).expect("an available instruction set");
            });
        });
    }
}

fn on_device(criterion: &mut Criterion) {
    let Some(kernels) = device::kernels() else { return };
    let topk = cuda::Topk::new(&kernels);
    let call = |blocks: usize| {
        let cells = blocks * BLOCK_CELLS as usize;
        TopkCall { queries: QUERIES, cells, capacity: cells, contents: Pattern::Normal }
    };
    let selections = bench::topk(&topk, call(BLOCKS), |calls| {
        device::time(criterion, ("topk/select", "topk"), QUERIES * BLOCKS, calls)
    });
    selections.expect("the device works");
    let scores = bench::scores(&topk, call(SCORED_BLOCKS), |calls| {
        device::time(criterion, ("topk/scores", "scores"), QUERIES * SCORED_BLOCKS, calls)
    });
    scores.expect("the device works");
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(2));
    targets = select, scores, on_device
}
criterion_main!(benches);
