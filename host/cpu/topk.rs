//! The exact block top-k. Queries are parallel; a row is sieved, so that all but one read of it is about few of its blocks.
//!
//! Let `f_i` be the `i`-th largest key of the row's `N` complete blocks, `f_0` infinite and `f_i` nothing for `i > N`, and let the tail have `w`
//! cells and the key `f`. With `a = ceil((width - w) / 4)` and `b = ceil(width / 4)` blocks, with and without the tail's help, the rule's
//! threshold is `max(f_b, min(f_a, f))`.
//!
//! The row is cut into chunks, and `floor` is the `b`-th largest of their largest keys: at least `b` blocks have it or a larger
//! one, so `f_a` and `f_b` are `floor` or larger. Those that are larger lie in fewer than `b` chunks, whatever the scores are.

use super::isa::{Isa, Work};
use super::keys::{CHUNK, Chunk};
use super::lanes::Lanes;
use crate::error::{Error, Result};
use crate::topk::{BLOCK_CELLS, Step, Topk};
use kernels_gpu::topk::rule::key;
use rayon::prelude::*;

/// Selects with `isa`, which this CPU has.
pub(super) fn run(isa: Isa, call: Topk<'_>) -> Result<()> {
    let Topk { shape, scores, steps, ids } = call;
    if shape.stride() == 0 {
        // No query sees a cell.
        return Ok(());
    }
    let scores: &[u32] = bytemuck::cast_slice(scores);
    ids.par_chunks_mut(shape.cap()).zip(scores.par_chunks(shape.stride())).zip(&steps).try_for_each_init(
        Scratch::default,
        |scratch, ((ids, scores), &step)| {
            let ids = &mut ids[..step.width as usize];
            if step.is_identity() {
                (0..).zip(ids).for_each(|(cell, id)| *id = cell);
                return Ok(());
            }
            scratch.prepare(step)?;
            isa.run(Row { step, scores, ids, scratch });
            Ok(())
        },
    )
}

/// A row's working memory, kept for the thread's next row.
#[derive(Default)]
struct Scratch {
    /// The largest key of each chunk.
    maxima: Vec<u32>,
    /// The same, to be put in another order.
    ranked: Vec<u32>,
    /// The chunks that have a block at the floor or above it, ascending.
    kept: Vec<u32>,
    /// The keys above the floor.
    above: Vec<u32>,
}

impl Scratch {
    /// Makes room for a row.
    fn prepare(&mut self, step: Step) -> Result<()> {
        let chunks = (step.n_bid as usize).div_ceil(CHUNK);
        let above = chunks.min(step.width.div_ceil(BLOCK_CELLS) as usize) * CHUNK;
        for (vec, len) in [
            (&mut self.maxima, chunks),
            (&mut self.ranked, chunks),
            (&mut self.kept, chunks),
            (&mut self.above, above),
        ] {
            vec.clear();
            vec.try_reserve(len).map_err(|_| Error::HostMemory {
                what: format!("a selection among {} blocks", step.n_bid),
                bytes: len.saturating_mul(size_of::<u32>()),
            })?;
            vec.resize(len, 0);
        }
        Ok(())
    }
}

/// A query that does not select all its cells.
struct Row<'a> {
    step: Step,
    /// The bits of a block's score each.
    scores: &'a [u32],
    ids: &'a mut [i32],
    scratch: &'a mut Scratch,
}

impl Work for Row<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Row { step, scores, ids, scratch: Scratch { maxima, ranked, kept, above } } = self;
        let (full, tail) = scores.split_at(step.n_bid as usize);
        // A tail of no cells is no candidate.
        let (tail_cells, tail_key) = match tail.first() {
            Some(&score) if step.tail_cells() > 0 => (step.tail_cells(), key(score)),
            _ => (0, 0),
        };

        let (chunks, rest) = full.as_chunks::<CHUNK>();
        for (largest, chunk) in maxima.iter_mut().zip(chunks) {
            // SAFETY: the caller's promise, here and below.
            *largest = unsafe { L::max_key(chunk) };
        }
        if let (Some(largest), false) = (maxima.last_mut(), rest.is_empty()) {
            *largest = rest.iter().fold(0, |largest, &score| largest.max(key(score)));
        }

        let with_tail = step.width.saturating_sub(tail_cells).div_ceil(BLOCK_CELLS) as usize;
        let alone = step.width.div_ceil(BLOCK_CELLS) as usize;
        ranked.copy_from_slice(maxima);
        // With fewer chunks than that, the floor is the lowest key of all.
        let floor = nth_largest(ranked, alone).unwrap_or(0);

        let mut kept_count = 0;
        for (index, &largest) in (0..).zip(&*maxima) {
            kept[kept_count] = index;
            kept_count += usize::from(largest >= floor);
        }
        let kept = &kept[..kept_count];

        let mut count = 0;
        for &index in kept {
            if maxima[index as usize] == floor {
                continue;
            }
            let (chunk, valid) = chunk(full, index as usize);
            let (higher, _) = unsafe { L::compare(&chunk, floor) };
            let mut higher = higher & valid;
            while higher != 0 {
                above[count] = key(chunk[higher.trailing_zeros() as usize]);
                count += 1;
                higher &= higher - 1;
            }
        }
        let above = &mut above[..count];
        let largest = |above: &mut [u32], nth| {
            if nth == 0 { u32::MAX } else { nth_largest(above, nth).unwrap_or(floor) }
        };
        let threshold = largest(above, alone).max(largest(above, with_tail).min(tail_key));

        // What blocks at the threshold have left, and how many ids there are without those of a tail above it.
        let higher = above.iter().filter(|&&key| key > threshold).count() as u32 * BLOCK_CELLS;
        let higher_tail = if tail_key > threshold { tail_cells } else { 0 };
        let mut budget = step.width - higher - higher_tail;
        let end = (step.width - higher_tail) as usize;
        let mut ids = Ids { ids, written: 0 };
        for &index in kept {
            if ids.written == end {
                break;
            }
            if maxima[index as usize] < threshold {
                continue;
            }
            let (chunk, valid) = chunk(full, index as usize);
            let (higher, equal) = unsafe { L::compare(&chunk, threshold) };
            let mut selected = (higher | equal) & valid;
            while selected != 0 {
                let bit = selected.trailing_zeros();
                let block = index * CHUNK as u32 + bit;
                if higher >> bit & 1 == 1 {
                    ids.block(block);
                } else {
                    let cells = budget.min(BLOCK_CELLS);
                    ids.cells(block, cells);
                    budget -= cells;
                }
                selected &= selected - 1;
            }
        }
        let lower_tail = if tail_key == threshold { tail_cells.min(budget) } else { 0 };
        ids.cells(step.n_bid, higher_tail + lower_tail);
    }
}

/// The ids of a row, as they are written.
struct Ids<'a> {
    ids: &'a mut [i32],
    written: usize,
}

impl Ids<'_> {
    /// All cells of a block.
    #[inline(always)]
    fn block(&mut self, block: u32) {
        let first = (block * BLOCK_CELLS) as i32;
        let to = self.written..self.written + BLOCK_CELLS as usize;
        self.ids[to].copy_from_slice(&[first, first + 1, first + 2, first + 3]);
        self.written += BLOCK_CELLS as usize;
    }

    /// The first `cells` of a block.
    #[inline(always)]
    fn cells(&mut self, block: u32, cells: u32) {
        for cell in 0..cells {
            self.ids[self.written] = (block * BLOCK_CELLS + cell) as i32;
            self.written += 1;
        }
    }
}

/// The `nth` largest of `words`, counted from 1, whose order changes; linear in the worst case, too.
fn nth_largest(words: &mut [u32], nth: usize) -> Option<u32> {
    if nth > words.len() {
        return None;
    }
    Some(*words.select_nth_unstable_by(nth - 1, |a, b| b.cmp(a)).1)
}

/// Chunk `index`, and a bit for each block that it has: the last chunk may be short.
#[inline(always)]
fn chunk(scores: &[u32], index: usize) -> (Chunk, u32) {
    let scores = &scores[index * CHUNK..];
    match scores.first_chunk() {
        Some(chunk) => (*chunk, (1 << CHUNK) - 1),
        None => {
            let mut chunk = [0; CHUNK];
            chunk[..scores.len()].copy_from_slice(scores);
            (chunk, (1 << scores.len()) - 1)
        }
    }
}
