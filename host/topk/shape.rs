//! The shape of a top-k call, checked once: what is made here cannot be wrong further in.

use super::{BLOCK_CELLS, INDEX_DIM, INDEX_HEADS, Step};
use crate::error::{Error, Result};

/// Kernels count queries, blocks and cells in i32.
const MOST: usize = i32::MAX as usize;

/// How many queries select, how many cells each, and where their rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopkShape {
    queries: usize,
    stride: usize,
    width: usize,
    cap: usize,
}

impl TopkShape {
    /// Rows of `stride` scores, one for each block of four cells; `width` cells at most are selected by a query, into rows of
    /// `cap` ids. `width` is at least 1, `cap` at least `width`; none but `cap` is more than 2147483647.
    ///
    /// Errors: `Argument`.
    pub fn new(queries: usize, stride: usize, width: usize, cap: usize) -> Result<Self> {
        check_most("queries", queries)?;
        check_most("stride", stride)?;
        if !(1..=MOST).contains(&width) {
            return Err(Error::argument("width", width, format!("1 to {MOST}")));
        }
        if cap < width {
            return Err(Error::argument("cap", cap, format!("at least the width, {width}")));
        }
        Ok(Self { queries, stride, width, cap })
    }

    pub fn queries(self) -> usize {
        self.queries
    }

    /// Scores from one row to the next.
    pub fn stride(self) -> usize {
        self.stride
    }

    /// The most cells that a query selects.
    pub fn width(self) -> usize {
        self.width
    }

    /// Ids from one row to the next.
    pub fn cap(self) -> usize {
        self.cap
    }
}

/// A selection whose buffers fit its shape.
#[derive(Debug)]
pub struct Topk<'a> {
    pub(crate) shape: TopkShape,
    pub(crate) scores: &'a [f32],
    pub(crate) steps: Vec<Step>,
    pub(crate) ids: &'a mut [i32],
}

impl<'a> Topk<'a> {
    /// `scores` `[queries][stride]`; `n_kv` `[queries]`: the cells that each query sees, in no more blocks than a row has; `ids`
    /// `[queries][cap]`: the first `min(n_kv, width)` of each row are written, the others stay as they are.
    ///
    /// Errors: `Length`, `Argument`, `HostMemory`.
    pub fn new(shape: TopkShape, scores: &'a [f32], n_kv: &[i32], ids: &'a mut [i32]) -> Result<Self> {
        let steps = steps(n_kv, shape.queries, shape.width as u32)?;
        Self::with(shape, scores, steps, ids)
    }

    /// As [`new`](Self::new), by the records that the kernels read: `records` is `[queries][4]`, pos, n_kv, n_bid and width, of
    /// which each must follow from the others, and width may be less than the shape's.
    ///
    /// Errors: `Length`, `Argument`, `HostMemory`.
    pub fn from_records(
        shape: TopkShape,
        scores: &'a [f32],
        records: &[i32],
        ids: &'a mut [i32],
    ) -> Result<Self> {
        check_len("steps", records.len(), &[shape.queries, Step::WORDS])?;
        let records = records.as_chunks().0;
        let steps = collect(
            records.len(),
            records.iter().enumerate().map(|(query, record)| {
                record_step(record, shape.width).ok_or_else(|| {
                    let accepted = format!(
                        "pos, n_kv = pos + 1, n_bid = n_kv / 4 and a width up to n_kv and {}, 0 only where n_kv is 0",
                        shape.width
                    );
                    Error::argument("steps", format!("{record:?} for query {query}"), accepted)
                })
            }),
        )?;
        Self::with(shape, scores, steps, ids)
    }

    fn with(shape: TopkShape, scores: &'a [f32], steps: Vec<Step>, ids: &'a mut [i32]) -> Result<Self> {
        check_len("scores", scores.len(), &[shape.queries, shape.stride])?;
        check_len("ids", ids.len(), &[shape.queries, shape.cap])?;
        check_blocks(&steps, shape.stride, Step::candidates)?;
        Ok(Self { shape, scores, steps, ids })
    }

    /// Blocks with cells of the query that has the most of them.
    pub fn reach(&self) -> usize {
        most_blocks(&self.steps, Step::candidates)
    }
}

/// The block scores that a selection takes, with buffers that fit.
#[derive(Debug)]
pub struct Scores<'a> {
    pub(crate) stride: usize,
    pub(crate) pooled: &'a [f32],
    pub(crate) q_idx: &'a [f32],
    pub(crate) tail: &'a [f32],
    pub(crate) steps: Vec<Step>,
    pub(crate) scores: &'a mut [f32],
}

impl<'a> Scores<'a> {
    /// `pooled` `[blocks][128]`: the key of each complete block, with as many as a query sees, or more; `q_idx`
    /// `[queries][4][128]`; `tail` `[128]` or `[queries][128]`: the key of the cells that do not fill a block; `n_kv` `[queries]`.
    /// `scores` `[queries][stride]`: blocks `0..=n_kv / 4` of each row are written, which is one more than are complete.
    ///
    /// Errors: `Length`, `Argument`, `HostMemory`.
    pub fn new(
        stride: usize,
        pooled: &'a [f32],
        q_idx: &'a [f32],
        tail: &'a [f32],
        n_kv: &[i32],
        scores: &'a mut [f32],
    ) -> Result<Self> {
        let queries = n_kv.len();
        check_most("queries", queries)?;
        check_most("stride", stride)?;
        let steps = steps(n_kv, queries, MOST as u32)?;
        check_len("q_idx", q_idx.len(), &[queries, INDEX_HEADS, INDEX_DIM])?;
        if tail.len() != INDEX_DIM {
            check_len("tail", tail.len(), &[queries, INDEX_DIM])?;
        }
        check_len("scores", scores.len(), &[queries, stride])?;
        check_blocks(&steps, stride, |step| step.n_bid + 1)?;
        let complete = most_blocks(&steps, |step| step.n_bid);
        if !pooled.len().is_multiple_of(INDEX_DIM) || pooled.len() / INDEX_DIM < complete {
            let accepted = format!("a multiple of 128, and 128 for each of {complete} complete blocks");
            return Err(Error::Length { tensor: "pooled".into(), found: pooled.len(), accepted });
        }
        Ok(Self { stride, pooled, q_idx, tail, steps, scores })
    }

    /// Blocks that are written, of the query that has the most of them.
    pub fn reach(&self) -> usize {
        most_blocks(&self.steps, |step| step.n_bid + 1)
    }

    /// From one query's tail key to the next: 0 where they share one.
    pub(crate) fn tail_stride(&self) -> usize {
        if self.tail.len() == INDEX_DIM { 0 } else { INDEX_DIM }
    }
}

/// The step of a record whose words agree.
fn record_step(&[pos, n_kv, n_bid, width]: &[i32; Step::WORDS], limit: usize) -> Option<Step> {
    let step = Step {
        n_kv: u32::try_from(n_kv).ok()?,
        n_bid: u32::try_from(n_bid).ok()?,
        width: u32::try_from(width).ok()?,
    };
    let agree = pos == n_kv - 1
        && step.n_bid == step.n_kv / BLOCK_CELLS
        && step.width <= step.n_kv
        && (step.width > 0) == (step.n_kv > 0)
        && step.width as usize <= limit;
    agree.then_some(step)
}

/// The step of each query.
fn steps(n_kv: &[i32], queries: usize, limit: u32) -> Result<Vec<Step>> {
    check_len("n_kv", n_kv.len(), &[queries])?;
    collect(
        n_kv.len(),
        n_kv.iter().enumerate().map(|(query, &n_kv)| match u32::try_from(n_kv) {
            Ok(n_kv) => Ok(Step::new(n_kv, limit)),
            Err(_) => Err(Error::argument("n_kv", format!("{n_kv} for query {query}"), "0 or more")),
        }),
    )
}

/// As many steps as there are queries.
fn collect(queries: usize, steps: impl Iterator<Item = Result<Step>>) -> Result<Vec<Step>> {
    let mut all = Vec::new();
    all.try_reserve_exact(queries).map_err(|_| Error::HostMemory {
        what: format!("the steps of {queries} queries"),
        bytes: queries.saturating_mul(size_of::<Step>()),
    })?;
    for step in steps {
        all.push(step?);
    }
    Ok(all)
}

/// Every row must have room for the blocks of its query.
fn check_blocks(steps: &[Step], stride: usize, blocks: impl Fn(Step) -> u32) -> Result<()> {
    match steps.iter().position(|&step| blocks(step) as usize > stride) {
        None => Ok(()),
        Some(query) => {
            let Step { n_kv, .. } = steps[query];
            let found = format!("{n_kv} for query {query}, which takes {} blocks", blocks(steps[query]));
            Err(Error::argument("n_kv", found, format!("as many blocks as the stride, {stride}, or fewer")))
        }
    }
}

fn most_blocks(steps: &[Step], blocks: impl Fn(Step) -> u32) -> usize {
    steps.iter().map(|&step| blocks(step) as usize).max().unwrap_or(0)
}

fn check_most(argument: &str, found: usize) -> Result<()> {
    if found <= MOST {
        return Ok(());
    }
    Err(Error::argument(argument, found, format!("at most {MOST}")))
}

fn check_len(tensor: &str, found: usize, shape: &[usize]) -> Result<()> {
    let needed = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    if needed == Some(found) {
        return Ok(());
    }
    let product = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" * ");
    Err(Error::Length { tensor: tensor.into(), found, accepted: format!("exactly {product} elements") })
}
