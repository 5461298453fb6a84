//! The block top-k's kernels on the executor.

use crate::cuda::{self, DeviceScores, DeviceTopk};
use crate::topk::{Kernel, Scores, Step, Topk};
use kernels_gpu::params::TopkArgs;
use kernels_gpu::topk::{cluster, original, register, sieve, split, wide};
use simt::{Fault, Launch, Order, Stats};

/// What the scratch holds before a launch.
const GARBAGE: u32 = 0xa5a5_a5a5;
/// Blocks of `sieve_split` that the device has room for.
const RESIDENT: usize = 12;

/// Runs a selection kernel, on scratch that is full of garbage.
///
/// # Panics
/// When the kernel has no source here.
pub fn topk(kernel: Kernel, order: Order, call: Topk<'_>) -> Result<(), Fault> {
    let (reach, shape) = (call.reach(), call.shape);
    let launches = cuda::launches(kernel, shape.queries(), reach, RESIDENT);
    let len = launches.iter().map(|launch| cuda::scratch_len(launch, shape)).max().unwrap_or(0);
    let mut scratch = vec![GARBAGE; len];
    if kernel == Kernel::Sieve {
        scratch.iter_mut().take(shape.queries()).for_each(|counter| *counter = 0);
    }
    run(&launches, order, call, reach, &mut scratch)
}

/// Runs `sieve` with the maxima that [`scores_and_maxima`] left for `reach`.
pub fn topk_by_maxima(order: Order, call: Topk<'_>, reach: usize, maxima: &mut [u32]) -> Result<(), Fault> {
    let launch = cuda::maxima_launch(call.shape.queries());
    run(&[launch], order, call, reach, maxima)
}

fn run(
    launches: &[cuda::Launch],
    order: Order,
    call: Topk<'_>,
    reach: usize,
    scratch: &mut [u32],
) -> Result<(), Fault> {
    let Topk { shape, scores, steps, ids } = call;
    let steps: Vec<i32> = steps.into_iter().flat_map(Step::words).collect();
    let device_call = DeviceTopk {
        shape,
        scores: scores.as_ptr() as u64,
        steps: steps.as_ptr() as u64,
        ids: ids.as_mut_ptr() as u64,
        active: None,
        maxima: None,
    };
    let args = device_call.args(reach, scratch.as_mut_ptr() as u64);
    for &cuda::Launch { entry, grid, threads } in launches {
        let kernel = selection(entry);
        let cluster = if entry == "cluster" { cluster::BLOCKS } else { 1 };
        Launch::new(grid, threads)
            .cluster(cluster)
            .order(order)
            .input("scores", scores)
            .input("steps", &steps)
            .output("ids", ids)
            .output("scratch", scratch)
            // SAFETY: the record describes the buffers, whose bounds the executor checks.
            .run(|| unsafe { kernel(args) })?;
    }
    Ok(())
}

fn selection(entry: &str) -> unsafe fn(TopkArgs) {
    match entry {
        "cluster" => cluster::cluster,
        "original" => original::original,
        "register" => register::register,
        "wide" => wide::wide,
        "sieve_maxima" => sieve::sieve_maxima,
        "sieve_rows" => sieve::sieve_rows,
        "sieve_split" => sieve::sieve_split,
        "split_halves" => split::split_halves,
        "split_merge" => split::split_merge,
        _ => panic!("`{entry}` has no source here"),
    }
}

/// Runs `scores`.
pub fn scores(order: Order, call: Scores<'_>) -> Result<Stats, Fault> {
    let reach = call.reach();
    scores_and_maxima(order, call, reach, &mut [])
}

/// Runs `scores` for rows of up to `reach` blocks, with the maxima that [`DeviceMaxima`](crate::cuda::DeviceMaxima) describes, or none of
/// them.
pub fn scores_and_maxima(
    order: Order,
    call: Scores<'_>,
    reach: usize,
    maxima: &mut [u32],
) -> Result<Stats, Fault> {
    let tail_per_query = call.tail_stride() > 0;
    let Scores { stride, pooled, q_idx, tail, steps, scores } = call;
    let queries = steps.len();
    let steps: Vec<i32> = steps.into_iter().flat_map(Step::words).collect();
    let device_call = DeviceScores {
        queries,
        pooled: pooled.as_ptr() as u64,
        tail: tail.as_ptr() as u64,
        tail_per_query,
        q_idx: q_idx.as_ptr() as u64,
        steps: steps.as_ptr() as u64,
        scores: scores.as_mut_ptr() as u64,
        stride,
        reach,
        maxima: if maxima.is_empty() { 0 } else { maxima.as_mut_ptr() as u64 },
    };
    let args = device_call.args();
    Launch::new(device_call.blocks() as u32, kernels_gpu::topk::scores::THREADS as u32)
        .order(order)
        .input("pooled", pooled)
        .input("q_idx", q_idx)
        .input("tail", tail)
        .input("steps", &steps)
        .output("scores", scores)
        .output("maxima", maxima)
        // SAFETY: the record describes the buffers, whose bounds the executor checks.
        .run(|| unsafe { kernels_gpu::topk::scores::scores(args) })
}
