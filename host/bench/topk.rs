//! The selection kernels and the block scores, on scores of any content. The second-level cache is flushed before each call.

use super::{Call, Calls};
use crate::check::topk::{Pattern, Selection};
use crate::cuda::{DeviceBuffer, DeviceMaxima, DeviceScores, DeviceTopk, Stream, Topk};
use crate::error::{Error, Result};
use crate::topk::{BLOCK_CELLS, INDEX_DIM, INDEX_HEADS, Kernel, Step};

/// Cells that a query selects.
const WIDTH: usize = 2051;
/// More than any second-level cache holds.
const FLUSH_BYTES: usize = 256 << 20;

/// A call to measure: `queries` at neighbouring positions, the last of which sees `cells`.
#[derive(Clone, Copy, Debug)]
pub struct TopkCall {
    pub queries: usize,
    pub cells: usize,
    /// The engine's maximum context, in cells; it fixes where rows begin, and which kernels can run.
    pub capacity: usize,
    pub contents: Pattern,
}

/// Scores of the largest call.
const MOST_SCORES: usize = 1 << 28;

impl TopkCall {
    /// Errors: `Argument`.
    fn check(&self) -> Result<()> {
        if self.cells > self.capacity {
            let accepted = format!("at least the {} cells", self.cells);
            return Err(Error::argument("capacity", self.capacity, accepted));
        }
        if self.queries.saturating_mul(self.stride()) > MOST_SCORES {
            let found = format!("{} of {} cells", self.queries, self.capacity);
            return Err(Error::argument("queries", found, format!("at most {MOST_SCORES} scores in all")));
        }
        Ok(())
    }

    fn stride(&self) -> usize {
        self.capacity / BLOCK_CELLS as usize + 2
    }

    fn n_kv(&self) -> Vec<i32> {
        (0..self.queries).map(|query| (self.cells + query + 1).saturating_sub(self.queries) as i32).collect()
    }
}

/// The selection kernels that can run here.
///
/// Errors: `Argument`, `DeviceMemory`, or the driver's own.
pub fn topk<R>(topk: &Topk, call: TopkCall, time: impl FnOnce(Calls<'_>) -> Result<R>) -> Result<R> {
    call.check()?;
    let data = Selection::with_stride(call.contents, &call.n_kv(), WIDTH, call.stride(), 0xb3);
    let stream = &Stream::new(topk.device())?;
    let scores = DeviceBuffer::from_slice(stream, "scores", &data.scores)?;
    let steps = DeviceBuffer::from_slice(stream, "steps", &data.records())?;
    let ids = DeviceBuffer::<i32>::alloc(topk.device(), "ids", data.blank().len())?;
    let workspace = &topk.workspace(data.shape)?;
    let device_call = DeviceTopk {
        shape: data.shape,
        scores: scores.as_ptr(),
        steps: steps.as_ptr(),
        ids: ids.as_ptr(),
        active: None,
        maxima: None,
    };
    let blocks: usize = call.n_kv().iter().map(|&cells| cells as usize / BLOCK_CELLS as usize + 1).sum();
    let bytes = 4 * (blocks + call.queries * WIDTH.min(call.cells));
    let mut calls = Vec::new();
    for kernel in Kernel::ALL {
        match topk.plan(&device_call.request(Some(kernel))) {
            Ok(_) => (),
            Err(Error::Variant { .. }) => continue,
            Err(error) => return Err(error),
        }
        calls.push(Call {
            name: format!("topk/{kernel}/{}x{}/{}", call.queries, call.cells, call.contents),
            bytes,
            run: Box::new(move || {
                // SAFETY: the buffers are of these sizes and outlive the timing, which ends with a synchronisation.
                unsafe { topk.select(stream, &device_call, workspace, Some(kernel)) }.map(drop)
            }),
        });
    }
    let reach = call.stride() - 1;
    let maxima_words;
    if DeviceMaxima::len(reach).is_some_and(|len| len > 0) {
        maxima_words = DeviceBuffer::from_slice(stream, "maxima", &data.maxima(reach))?;
        let maxima = Some(DeviceMaxima { address: maxima_words.as_ptr(), reach });
        let device_call = DeviceTopk { maxima, ..device_call };
        calls.push(Call {
            name: format!("topk/sieve, maxima given/{}x{}/{}", call.queries, call.cells, call.contents),
            bytes,
            run: Box::new(move || {
                // SAFETY: as above.
                unsafe { topk.select(stream, &device_call, workspace, Some(Kernel::Sieve)) }.map(drop)
            }),
        });
    }
    with_cold_cache(stream, calls, time)
}

/// The block scores.
///
/// Errors: `Argument`, `DeviceMemory`, or the driver's own.
pub fn scores<R>(topk: &Topk, call: TopkCall, time: impl FnOnce(Calls<'_>) -> Result<R>) -> Result<R> {
    call.check()?;
    let (queries, blocks) = (call.queries, call.cells / BLOCK_CELLS as usize + 1);
    let stream = &Stream::new(topk.device())?;
    // The time does not depend on the numbers: any will do that are no denormals.
    let filled = |what: &str, len: usize| -> Result<DeviceBuffer<f32>> {
        let mut buffer = DeviceBuffer::alloc(topk.device(), what, len)?;
        buffer.memset_u8(stream, 0x3c)?;
        Ok(buffer)
    };
    let pooled = filled("pooled", blocks * INDEX_DIM)?;
    let tail = filled("tail", INDEX_DIM)?;
    let q_idx = filled("q_idx", queries * INDEX_HEADS * INDEX_DIM)?;
    let scores = filled("scores", queries * call.stride())?;
    let records: Vec<i32> = call.n_kv().iter().flat_map(|&n_kv| Step::new(n_kv as u32, 1).words()).collect();
    let steps = DeviceBuffer::from_slice(stream, "steps", &records)?;
    let device_call = DeviceScores {
        queries,
        pooled: pooled.as_ptr(),
        tail: tail.as_ptr(),
        tail_per_query: false,
        q_idx: q_idx.as_ptr(),
        steps: steps.as_ptr(),
        scores: scores.as_ptr(),
        stride: call.stride(),
        reach: blocks,
        maxima: 0,
    };
    let maxima_len = DeviceMaxima::len(blocks).unwrap_or(0);
    let maxima = DeviceBuffer::<u32>::alloc(topk.device(), "maxima", queries * maxima_len)?;
    let bytes = 4 * (blocks * INDEX_DIM + queries * (blocks + INDEX_HEADS * INDEX_DIM));
    let kinds = [
        ("scores", device_call),
        ("scores and maxima", DeviceScores { maxima: maxima.as_ptr(), ..device_call }),
    ];
    let calls = kinds.into_iter().take(if maxima_len > 0 { 2 } else { 1 }).map(|(name, device_call)| Call {
        name: format!("{name}/{queries}x{}", call.cells),
        bytes,
        // SAFETY: the buffers are of these sizes and outlive the timing, which ends with a synchronisation.
        run: Box::new(move || unsafe { topk.scores(stream, &device_call) }),
    });
    with_cold_cache(stream, calls.collect(), time)
}

fn with_cold_cache<R>(
    stream: &Stream,
    calls: Vec<Call<'_>>,
    time: impl FnOnce(Calls<'_>) -> Result<R>,
) -> Result<R> {
    let mut flush = DeviceBuffer::<u8>::alloc(stream.device(), "the flushed cache", FLUSH_BYTES)?;
    let before = Box::new(|| flush.memset_u8(stream, 0));
    time(Calls { before, ..Calls::new(stream, 1, calls)? })
}
