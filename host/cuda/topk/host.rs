//! The calls on host slices: copies in, runs, copies back.

use super::{DeviceScores, DeviceTopk, Topk};
use crate::cuda::{DeviceBuffer, Stream};
use crate::error::{Error, Result};
use crate::topk::{self, INDEX_DIM, Kernel, Plan, Request, Step};

impl Topk {
    /// The selection on host slices. On an error the ids are what they were.
    pub(crate) fn topk_host(
        &self,
        stream: &Stream,
        call: topk::Topk<'_>,
        kernel: Option<Kernel>,
    ) -> Result<Plan> {
        let reach = call.reach();
        let topk::Topk { shape, scores, steps, ids } = call;
        if reach == 0 {
            // No query, or none that sees a cell.
            return self.plan(&Request { kernel, ..Request::new(shape) });
        }
        let workspace = self.workspace(shape)?;
        let scores = DeviceBuffer::from_slice(stream, "scores", scores)?;
        let steps = upload_steps(stream, &steps)?;
        // The gaps between rows are the caller's: they travel to the device and back.
        let device_ids = DeviceBuffer::from_slice(stream, "ids", ids)?;
        let device_call = DeviceTopk {
            shape,
            scores: scores.as_ptr(),
            steps: steps.as_ptr(),
            ids: device_ids.as_ptr(),
            active: Some(reach),
            maxima: None,
        };
        // SAFETY: the buffers are of these sizes and live until the copy back is done.
        let plan = unsafe { self.select(stream, &device_call, &workspace, kernel)? };
        device_ids.download(stream, ids)?;
        Ok(plan)
    }

    /// The block scores on host slices. On an error the scores are what they were.
    pub(crate) fn scores_host(&self, stream: &Stream, call: topk::Scores<'_>) -> Result<()> {
        let (reach, tail_stride) = (call.reach(), call.tail_stride());
        let topk::Scores { stride, pooled, q_idx, tail, steps, scores } = call;
        if reach == 0 {
            // No query.
            return Ok(());
        }
        // The keys that are read; and at least one, so that there is an address.
        const NO_KEY: &[f32] = &[0.0; INDEX_DIM];
        let pooled = match reach - 1 {
            0 => NO_KEY,
            complete => &pooled[..complete * INDEX_DIM],
        };
        let pooled = DeviceBuffer::from_slice(stream, "pooled", pooled)?;
        let q_idx = DeviceBuffer::from_slice(stream, "q_idx", q_idx)?;
        let tail = DeviceBuffer::from_slice(stream, "tail", tail)?;
        // What is not written is the caller's, as above.
        let device_scores = DeviceBuffer::from_slice(stream, "scores", scores)?;
        let queries = steps.len();
        let steps = upload_steps(stream, &steps)?;
        let device_call = DeviceScores {
            queries,
            pooled: pooled.as_ptr(),
            tail: tail.as_ptr(),
            tail_per_query: tail_stride > 0,
            q_idx: q_idx.as_ptr(),
            steps: steps.as_ptr(),
            scores: device_scores.as_ptr(),
            stride,
            reach,
            maxima: 0,
        };
        // SAFETY: the buffers are of these sizes and live until the copy back is done.
        unsafe { self.scores(stream, &device_call)? };
        device_scores.download(stream, scores)
    }
}

fn upload_steps(stream: &Stream, steps: &[Step]) -> Result<DeviceBuffer<i32>> {
    let mut words = Vec::new();
    let len = steps.len() * Step::WORDS;
    words.try_reserve_exact(len).map_err(|_| Error::HostMemory {
        what: "the steps".into(),
        bytes: len.saturating_mul(size_of::<i32>()),
    })?;
    words.extend(steps.iter().flat_map(|step| step.words()));
    DeviceBuffer::from_slice(stream, "steps", &words)
}
