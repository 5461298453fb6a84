//! The block top-k on a CUDA device where it could go wrong and rarely does: rows around every border between paths, a card whose
//! multiprocessors are taken, offsets beyond 32 bits.

use super::topk::{Pattern, Selection};
use super::topk_device::selections;
use super::{Report, same_bits};
use crate::cpu;
use crate::cuda::{DeviceBuffer, DeviceTopk, Kernels, Stream, Topk};
use crate::error::Result;
use crate::topk::{Kernel, TopkShape};
use kernels_gpu::bench::{FLAGS, LATE};
use kernels_gpu::params::{GlobalMut, HoldArgs};
use kernels_gpu::topk::{register, sieve};

const WIDTH: usize = 2051;
/// Blocks around which something else begins: a selection of all, the threads of a block, what fits on `sieve`'s chip, the reach of
/// `register`.
const BORDERS: [usize; 7] = [513, 4096, 4104, 8192, sieve::KEYS - 8, sieve::KEYS, register::REACH as usize];
/// Multiprocessors that stay free beside the holding kernel.
const FREE: u32 = 16;
const REPEATS: usize = 100;
const LIMIT_NS: u64 = 500_000_000;
/// Rows and blocks of 8.6 GB of scores, and how many of the rows differ.
const HUGE: (usize, usize) = (8200, 262_146);
const DISTINCT: usize = 41;

pub(super) fn run(kernels: &Kernels, topk: &Topk, stream: &Stream, report: &mut Report<'_>) {
    for pattern in [Pattern::Normal, Pattern::Equal] {
        for border in BORDERS {
            // Without a tail and with one, and a short row among them.
            let blocks = [border - 1, border, 3, border + 1, border + 2];
            let n_kv: Vec<i32> = blocks.into_iter().flat_map(|b| [4 * b as i32, 4 * b as i32 - 3]).collect();
            let data = || Selection::with_stride(pattern, &n_kv, WIDTH, border + 3, border as u64);
            selections(topk, stream, report, &format!("{pattern} about {border} blocks"), data, None);
        }
    }
    // Not `cluster`: the hardware starts a cluster when eight multiprocessors of one neighbourhood are free, which these need not be.
    for queries in [4, 64] {
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
    let device = topk.device();
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
    // Everything is loaded and allocated before something is held.
    let (hold, seated, release) =
        (kernels.get("hold")?, kernels.get("await_seated")?, kernels.get("release")?);
    let holding = Stream::new(device)?;
    let facts = device.facts();
    let blocks = facts.sms.saturating_sub(FREE);
    let flags = DeviceBuffer::from_slice(stream, "flags", &[0; FLAGS])?;
    let sm_ids = DeviceBuffer::<u32>::alloc(device, "held", facts.sms as usize)?;
    let args = HoldArgs {
        flags: GlobalMut::from_address(flags.as_ptr()),
        sm_ids: GlobalMut::from_address(sm_ids.as_ptr()),
        limit_ns: LIMIT_NS,
        generation: 1,
        blocks,
    };
    // SAFETY: the buffers are of these sizes, on this device, and live until both streams are done.
    let outcome = unsafe {
        topk.select(stream, &call(0)?, &workspace, Some(Kernel::Sieve))?;
        stream.synchronize()?;
        hold.launch_with(&holding, [blocks, 1, 1], [1, 1, 1], facts.shared_per_block_optin, &args)?;
        seated.launch_with(stream, [1, 1, 1], [1, 1, 1], 0, &args)?;
        let outcome = (0..REPEATS).try_for_each(|repeat| {
            topk.select(stream, &call(repeat)?, &workspace, Some(Kernel::Sieve)).map(drop)
        });
        release.launch_with(stream, [1, 1, 1], [1, 1, 1], 0, &args)?;
        outcome
    };
    stream.synchronize()?;
    holding.synchronize()?;
    outcome?;
    let mut words = [0; FLAGS];
    flags.download(stream, &mut words)?;
    let mut found = vec![0; ids.len()];
    ids.download(stream, &mut found)?;
    if words[LATE] > 0 {
        return Ok(Err(format!("{} holding blocks gave up: nothing was shown", words[LATE])));
    }
    Ok(found.chunks(expected.len()).try_for_each(|ids| same_bits("ids", ids, &expected)))
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
