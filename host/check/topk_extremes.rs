//! The block top-k on a CUDA device where it could go wrong and rarely does: rows around every border between paths, a card whose
//! multiprocessors are taken, offsets beyond 32 bits.

use super::topk::{Pattern, Selection};
use super::topk_device::selections;
use super::{Report, same_bits};
use crate::bench::Holder;
use crate::cpu;
use crate::cuda::{DeviceBuffer, DeviceTopk, Kernels, Stream, Topk};
use crate::error::Result;
use crate::topk::{Kernel, TopkShape};
use kernels_gpu::topk::{cluster, register, sieve, split};

const WIDTH: usize = 2051;
/// More queries than a card shares out to several blocks each, so that `sieve_rows` runs.
const MANY: usize = 144;
/// Blocks around which something else begins - a selection of all, the threads of a block, what fits on `sieve`'s chip, a kernel's reach
/// - and the most queries that are worth their memory there.
const BORDERS: [(usize, usize); 9] = [
    (513, MANY),
    (4096, MANY),
    (4104, MANY),
    (8192, MANY),
    (sieve::KEYS - 8, MANY),
    (sieve::KEYS, MANY),
    (register::REACH as usize, 3),
    (split::REACH as usize, 3),
    (cluster::REACH, 3),
];
/// Multiprocessors that stay free beside the holding kernel.
const FREE: u32 = 16;
const REPEATS: usize = 100;
/// Rows and blocks of 8.6 GB of scores, and how many of the rows differ.
const HUGE: (usize, usize) = (8200, 262_146);
const DISTINCT: usize = 41;

pub(super) fn run(kernels: &Kernels, topk: &Topk, stream: &Stream, report: &mut Report<'_>) {
    for pattern in [Pattern::Normal, Pattern::Equal] {
        for (border, most) in BORDERS {
            for blocks in border - 1..=border + 2 {
                for queries in [3, MANY].into_iter().filter(|&queries| queries <= most) {
                    // Rows without a tail, with one, and short ones; no longer than their blocks, since the stride is what kernels refuse.
                    let n_kv = [4 * blocks as i32, 4 * blocks as i32 - 3, 9];
                    let n_kv: Vec<i32> = n_kv.into_iter().cycle().take(queries).collect();
                    let data = || Selection::with_stride(pattern, &n_kv, WIDTH, blocks, blocks as u64);
                    let name = format!("{pattern} {queries} x {blocks} blocks");
                    selections(topk, stream, report, &name, data, None);
                }
            }
        }
    }
    report.case("topk calls of several sizes on one workspace", || {
        one_workspace(topk, stream).unwrap_or_else(|error| Err(error.to_string()))
    });
    // Not `cluster`: the hardware starts a cluster when eight multiprocessors of one neighbourhood are free, which these need not be.
    for queries in [4, 64, MANY] {
        report.case(&format!("topk sieve {queries} queries, {REPEATS} times on {FREE} SMs"), || {
            contended(kernels, topk, stream, queries).unwrap_or_else(|error| Err(error.to_string()))
        });
    }
    for kernel in [Kernel::Sieve, Kernel::Wide] {
        let (rows, blocks) = HUGE;
        let needed = 4 * rows * (blocks + 2 * WIDTH);
        if topk.device().memory_info().is_ok_and(|(free, _)| free < needed + needed / 4) {
            continue; // It does not fit on this card: no case.
        }
        report.case(&format!("topk {kernel} {rows} rows of {blocks} blocks"), || {
            huge(topk, stream, kernel).unwrap_or_else(|error| Err(error.to_string()))
        });
    }
}

/// The same call again and again while a holding kernel sits on most multiprocessors: no block may wait for one that is not there.
fn contended(kernels: &Kernels, topk: &Topk, stream: &Stream, queries: usize) -> Result<Result<(), String>> {
    let data = Selection::with_stride(Pattern::Normal, &vec![200_001; queries], WIDTH, 50_003, 3);
    let mut expected = data.blank();
    cpu::topk(data.call(&mut expected))?;
    let scores = DeviceBuffer::from_slice(stream, "scores", &data.scores)?;
    let steps = DeviceBuffer::from_slice(stream, "steps", &data.records())?;
    let ids = DeviceBuffer::from_slice(stream, "ids", &data.blank().repeat(REPEATS))?;
    let workspace = topk.workspace(data.shape)?;
    let call = |repeat: usize| -> Result<DeviceTopk> {
        Ok(DeviceTopk {
            shape: data.shape,
            scores: scores.as_ptr(),
            steps: steps.as_ptr(),
            ids: ids.at(repeat * expected.len())?,
            active: None,
            maxima: None,
        })
    };
    // The kernel is loaded, and everything allocated, before something is held.
    // SAFETY: the buffers are of these sizes, on this device, and live until the stream is done.
    let select = |repeat: usize| unsafe {
        topk.select(stream, &call(repeat)?, &workspace, Some(Kernel::Sieve)).map(drop)
    };
    select(0)?;
    let holder = Holder::new(kernels)?;
    let blocks = topk.device().facts().sms.saturating_sub(FREE);
    let (_, gave_up) = holder.with_held(stream, blocks, || (0..REPEATS).try_for_each(select))?;
    if gave_up > 0 {
        return Ok(Err(format!("{gave_up} holding blocks gave up: nothing was shown")));
    }
    let mut found = vec![0; ids.len()];
    ids.download(stream, &mut found)?;
    Ok(found.chunks(expected.len()).try_for_each(|ids| same_bits("ids", ids, &expected)))
}

/// Calls of more and of fewer queries on one workspace, which each leave it as they found it.
fn one_workspace(topk: &Topk, stream: &Stream) -> Result<Result<(), String>> {
    let most = Selection::with_stride(Pattern::Normal, &[70_001; 66], WIDTH, 17_504, 1);
    let workspace = topk.workspace(most.shape)?;
    for (seed, queries) in [66, 4, 33, 1, 66, 16].into_iter().enumerate() {
        let data =
            Selection::with_stride(Pattern::Normal, &vec![70_001; queries], WIDTH, 17_504, seed as u64);
        let scores = DeviceBuffer::from_slice(stream, "scores", &data.scores)?;
        let steps = DeviceBuffer::from_slice(stream, "steps", &data.records())?;
        let ids = DeviceBuffer::from_slice(stream, "ids", &data.blank())?;
        let call = DeviceTopk {
            shape: data.shape,
            scores: scores.as_ptr(),
            steps: steps.as_ptr(),
            ids: ids.as_ptr(),
            active: None,
            maxima: None,
        };
        for kernel in [Kernel::Sieve, Kernel::Split] {
            // SAFETY: the buffers are of these sizes, on this device, and live until the download.
            unsafe { topk.select(stream, &call, &workspace, Some(kernel))? };
            let (mut found, mut expected) = (data.blank(), data.blank());
            ids.download(stream, &mut found)?;
            cpu::topk(data.call(&mut expected))?;
            if let Err(difference) = same_bits("ids", &found, &expected) {
                return Ok(Err(format!("{kernel}, {queries} queries: {difference}")));
            }
        }
    }
    Ok(Ok(()))
}

/// Rows whose offsets do not fit in 32 bits; row r is row `r % DISTINCT`.
fn huge(topk: &Topk, stream: &Stream, kernel: Kernel) -> Result<Result<(), String>> {
    let (rows, blocks) = HUGE;
    let n_kv: Vec<i32> = (0..DISTINCT).map(|row| (4 * blocks - 5 - row) as i32).collect();
    let data = Selection::with_stride(Pattern::Normal, &n_kv, WIDTH, blocks, 9);
    let mut expected = data.blank();
    cpu::topk(data.call(&mut expected))?;

    let mut scores = DeviceBuffer::alloc(topk.device(), "scores", rows * blocks)?;
    scores.upload_at(stream, 0, &data.scores)?;
    scores.repeat_first(stream, data.scores.len())?;
    let steps = DeviceBuffer::from_slice(stream, "steps", &data.records().repeat(rows / DISTINCT))?;
    let cap = data.shape.cap();
    let ids = DeviceBuffer::from_slice(stream, "ids", &vec![Selection::BLANK; rows * cap])?;
    let shape = TopkShape::new(rows, blocks, WIDTH, cap)?;
    let workspace = topk.workspace(shape)?;
    let call = DeviceTopk {
        shape,
        scores: scores.as_ptr(),
        steps: steps.as_ptr(),
        ids: ids.as_ptr(),
        active: None,
        maxima: None,
    };
    // SAFETY: the buffers are of these sizes, on this device, and live until the download.
    unsafe { topk.select(stream, &call, &workspace, Some(kernel))? };
    let mut found = vec![0; rows * cap];
    ids.download(stream, &mut found)?;
    Ok(found.chunks(expected.len()).try_for_each(|ids| same_bits("ids", ids, &expected)))
}

const _: () = assert!(HUGE.0.is_multiple_of(DISTINCT) && HUGE.0 * HUGE.1 > i32::MAX as usize);
