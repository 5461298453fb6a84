//! The checks of the block top-k on a CUDA device: every kernel that can run there against the CPU backend, whole rows of ids and scores.

use super::data::Random;
use super::topk::{Pattern, Selection};
use super::{Report, same_bits};
use crate::cpu;
use crate::cuda::{
    DeviceBuffer, DeviceMaxima, DeviceScores, DeviceTopk, Graph, Kernels, Stream, Topk, TopkWorkspace,
};
use crate::error::{Error, Result};
use crate::topk::{INDEX_DIM, INDEX_HEADS, Kernel, Scores, Step, TopkShape};

/// Cells that a query selects.
const WIDTH: usize = 2051;
/// Words behind every output that no kernel may touch.
const GUARD: usize = 64;
/// Context and the engine's maximum context, in cells.
const SIZES: [(usize, usize); 9] = [
    (9000, 9000),
    (135_160, 135_160),
    (135_176, 135_176),
    (2100, 262_144),
    (9000, 262_144),
    (32_768, 262_144),
    (262_144, 262_144),
    (300_001, 524_288),
    (524_288, 524_288),
];
/// Contexts for every pattern.
const CONTEXTS: [usize; 15] = [
    7, 2050, 2051, 2052, 2053, 2054, 2055, 3001, 65_538, 135_168, 135_169, 135_170, 135_171, 262_143, 262_144,
];
/// Contexts of a graph's replays, growing and shrinking.
const REPLAYS: [usize; 7] = [900, 5000, 131_000, 131_344, 2060, 2051, 70_001];

pub(super) fn run(kernels: &Kernels, report: &mut Report<'_>) {
    let topk = Topk::new(kernels);
    let stream = match Stream::new(kernels.device()) {
        Ok(stream) => stream,
        Err(error) => return report.case("topk: a stream", || Err(error.to_string())),
    };
    for (index, (context, capacity)) in SIZES.into_iter().enumerate() {
        for (queries, counted) in [(8, false), (64, true)] {
            for pattern in [Pattern::Normal, Pattern::Levels, Pattern::Equal] {
                let data = || ending_at(pattern, queries, context, capacity, index as u64);
                let name = format!("{pattern} {queries} x {context} of {capacity} cells");
                selections(&topk, &stream, report, &name, data, counted.then_some(context / 4 + 1));
            }
        }
    }
    for (index, context) in CONTEXTS.into_iter().enumerate() {
        for pattern in Pattern::ALL {
            let data = || ending_at(pattern, 5, context, context + 272, 100 + index as u64);
            let name = format!("{pattern} 5 x {context} cells");
            selections(&topk, &stream, report, &name, data, None);
        }
    }
    for width in [1, 2, 3, 5, 64, 2048, 2300] {
        let data =
            || Selection::with_stride(Pattern::Levels, &[40_000, 9, 39_997, 2301, 0, 1], width, 10_001, 7);
        selections(&topk, &stream, report, &format!("width {width}"), data, None);
    }
    for kernel in Kernel::ALL {
        let wanted = || -> Result<bool> { runs(&topk, kernel, &graph_data(REPLAYS[0])?, None) };
        match wanted() {
            Ok(false) => (),
            _ => report.case(&format!("topk {kernel} in a graph"), || {
                graph(&topk, &stream, kernel).unwrap_or_else(|error| Err(error.to_string()))
            }),
        }
    }
    for (queries, context, own_tails) in [
        (1, 7, false),
        (1, 9000, true),
        (5, 2053, false),
        (8, 65_538, true),
        (9, 3000, true),
        (64, 9001, false),
    ] {
        report.case(&format!("topk scores {queries} x {context} cells"), || {
            scores(&topk, &stream, queries, context, own_tails).unwrap_or_else(|error| Err(error.to_string()))
        });
    }
    super::topk_extremes::run(kernels, &topk, &stream, report);
}

/// Neighbouring positions, the last of which sees `context` cells.
fn positions(queries: usize, context: usize) -> Vec<i32> {
    (0..queries).map(|query| (context + query + 1).saturating_sub(queries) as i32).collect()
}

fn ending_at(pattern: Pattern, queries: usize, context: usize, capacity: usize, seed: u64) -> Selection {
    Selection::with_stride(pattern, &positions(queries, context), WIDTH, capacity / 4 + 2, seed)
}

/// Whether a kernel can run here.
fn runs(topk: &Topk, kernel: Kernel, data: &Selection, active: Option<usize>) -> Result<bool> {
    let call = DeviceTopk { shape: data.shape, scores: 0, steps: 0, ids: 0, active, maxima: None };
    match topk.plan(&call.request(Some(kernel))) {
        Ok(_) => Ok(true),
        Err(Error::Variant { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Every kernel on the same inputs, which are made if one is wanted.
pub(super) fn selections(
    topk: &Topk,
    stream: &Stream,
    report: &mut Report<'_>,
    name: &str,
    data: impl FnOnce() -> Selection,
    active: Option<usize>,
) {
    let names = Kernel::ALL.map(|kernel| (kernel, format!("topk {kernel} {name}")));
    if !names.iter().any(|(_, name)| name.contains(report.only)) {
        return;
    }
    let data = data();
    let mut expected = data.blank();
    if let Err(error) = cpu::topk(data.call(&mut expected)) {
        return report.case(&format!("topk {name}"), || Err(error.to_string()));
    }
    for (index, (kernel, name)) in names.into_iter().enumerate() {
        if let Ok(false) = runs(topk, kernel, &data, active) {
            continue;
        }
        report.case(&name, || {
            let ids = || -> Result<Vec<i32>> {
                // Scores need no more than their own alignment; the strides vary, so each kernel sees each.
                let mut buffers = Buffers::new(topk, stream, &data, (index + data.shape.stride()) % 4)?;
                buffers.upload(stream, &data)?;
                let call = DeviceTopk { active, ..buffers.call(&data)? };
                // SAFETY: the buffers are of these sizes, on this device, and live until the download.
                unsafe { topk.select(stream, &call, &buffers.workspace, Some(kernel))? };
                buffers.ids(stream)
            };
            same_bits("ids", &ids().map_err(|error| error.to_string())?, &expected)
        });
    }
}

/// Device memory for a selection: the scores from `offset` on, the ids with a guard, the workspace full of garbage.
struct Buffers {
    offset: usize,
    scores: DeviceBuffer<f32>,
    steps: DeviceBuffer<i32>,
    ids: DeviceBuffer<i32>,
    workspace: TopkWorkspace,
}

impl Buffers {
    fn new(topk: &Topk, stream: &Stream, data: &Selection, offset: usize) -> Result<Buffers> {
        let device = topk.device();
        let mut workspace = topk.workspace(data.shape)?;
        workspace.fill(stream, 0xa5)?;
        Ok(Buffers {
            offset,
            scores: DeviceBuffer::alloc(device, "scores", offset + data.scores.len())?,
            steps: DeviceBuffer::alloc(device, "steps", data.n_kv.len() * Step::WORDS)?,
            ids: DeviceBuffer::alloc(device, "ids", data.blank().len() + GUARD)?,
            workspace,
        })
    }

    /// The inputs, and ids that no kernel writes.
    fn upload(&mut self, stream: &Stream, data: &Selection) -> Result<()> {
        self.scores.upload_at(stream, self.offset, &data.scores)?;
        self.steps.upload(stream, &data.records())?;
        self.ids.upload(stream, &[data.blank(), vec![Selection::BLANK; GUARD]].concat())
    }

    fn call(&self, data: &Selection) -> Result<DeviceTopk> {
        Ok(DeviceTopk {
            shape: data.shape,
            scores: self.scores.at(self.offset)?,
            steps: self.steps.as_ptr(),
            ids: self.ids.as_ptr(),
            active: None,
            maxima: None,
        })
    }

    /// The rows of ids; the guard behind them must be whole.
    fn ids(&self, stream: &Stream) -> Result<Vec<i32>> {
        let mut ids = vec![0; self.ids.len()];
        self.ids.download(stream, &mut ids)?;
        let guard = ids.split_off(ids.len() - GUARD);
        match guard.iter().all(|&word| word == Selection::BLANK) {
            true => Ok(ids),
            false => Err(Error::argument("ids", "written past the last row", "writes inside it only")),
        }
    }
}

fn graph_data(context: usize) -> Result<Selection> {
    Ok(ending_at(Pattern::Normal, 5, context, 131_344, context as u64))
}

/// A captured call, replayed on other contexts and scores.
fn graph(topk: &Topk, stream: &Stream, kernel: Kernel) -> Result<Result<(), String>> {
    let first = graph_data(REPLAYS[0])?;
    let mut buffers = Buffers::new(topk, stream, &first, 0)?;
    let call = buffers.call(&first)?;
    // Whatever is looked up once is looked up before the capture.
    buffers.upload(stream, &first)?;
    // SAFETY: the buffers are of these sizes, on this device, and live until the last replay is done.
    unsafe { topk.select(stream, &call, &buffers.workspace, Some(kernel))? };
    stream.synchronize()?;
    // SAFETY: as above.
    let mut graph = unsafe {
        Graph::capture(stream, |stream| {
            topk.select(stream, &call, &buffers.workspace, Some(kernel)).map(drop)
        })?
    };
    for context in REPLAYS {
        let data = graph_data(context)?;
        buffers.upload(stream, &data)?;
        graph.launch(stream)?;
        let found = buffers.ids(stream)?;
        let mut expected = data.blank();
        cpu::topk(data.call(&mut expected))?;
        if let Err(difference) = same_bits("ids", &found, &expected) {
            return Ok(Err(format!("replay of {context} cells: {difference}")));
        }
    }
    Ok(Ok(()))
}

/// The block scores of neighbouring positions, their maxima, and the selection by those.
fn scores(
    topk: &Topk,
    stream: &Stream,
    queries: usize,
    context: usize,
    own_tails: bool,
) -> Result<Result<(), String>> {
    let (n_kv, complete) = (positions(queries, context), context / 4);
    let stride = complete + 3;
    let mut random = Random(context as u64);
    let mut floats = |len: usize| -> Vec<f32> { (0..len).map(|_| random.normal()).collect() };
    let pooled = floats(complete * INDEX_DIM);
    let q_idx = floats(queries * INDEX_HEADS * INDEX_DIM);
    let tail = floats(if own_tails { queries * INDEX_DIM } else { INDEX_DIM });
    let blank = f32::from_bits(Selection::BLANK as u32);
    let reach = complete + 1;
    let mut expected = vec![blank; queries * stride];
    cpu::scores(Scores::new(stride, &pooled, &q_idx, &tail, &n_kv, &mut expected)?);
    let shape = TopkShape::new(queries, stride, WIDTH, WIDTH)?;
    let selection = Selection { shape, scores: expected.clone(), n_kv };
    expected.extend([blank; GUARD]);
    let expected_maxima = [selection.maxima(reach), vec![u32::MAX; GUARD]].concat();

    let upload = |what: &str, words: &[f32]| DeviceBuffer::from_slice(stream, what, words);
    // Nothing lies where the key of a block that is not complete would be.
    let (pooled, q_idx, tail) =
        (upload("pooled", &pooled)?, upload("q_idx", &q_idx)?, upload("tail", &tail)?);
    let steps = DeviceBuffer::from_slice(stream, "steps", &selection.records())?;
    let maxima = DeviceBuffer::from_slice(stream, "maxima", &vec![u32::MAX; expected_maxima.len()])?;
    let out = upload("scores", &vec![blank; expected.len()])?;
    let call = DeviceScores {
        queries,
        pooled: pooled.as_ptr(),
        tail: tail.as_ptr(),
        tail_per_query: own_tails,
        q_idx: q_idx.as_ptr(),
        steps: steps.as_ptr(),
        scores: out.as_ptr(),
        stride,
        reach,
        maxima: maxima.as_ptr(),
    };
    let ids = DeviceBuffer::from_slice(stream, "ids", &selection.blank())?;
    let selecting = DeviceTopk {
        shape,
        scores: call.scores,
        steps: call.steps,
        ids: ids.as_ptr(),
        active: None,
        maxima: Some(DeviceMaxima { address: call.maxima, reach }),
    };
    let workspace = topk.workspace(shape)?;
    // SAFETY: the buffers are of these sizes, on this device, and live until the downloads.
    unsafe {
        topk.scores(stream, &call)?;
        topk.select(stream, &selecting, &workspace, Some(Kernel::Sieve))?;
    }
    let (mut found, mut found_maxima) = (vec![0.0; expected.len()], vec![0; expected_maxima.len()]);
    let mut found_ids = selection.blank();
    out.download(stream, &mut found)?;
    maxima.download(stream, &mut found_maxima)?;
    ids.download(stream, &mut found_ids)?;
    let mut expected_ids = selection.blank();
    cpu::topk(selection.call(&mut expected_ids))?;
    Ok(same_bits("scores", &found, &expected)
        .and_then(|()| same_bits("maxima", &found_maxima, &expected_maxima))
        .and_then(|()| same_bits("ids by the maxima", &found_ids, &expected_ids)))
}
