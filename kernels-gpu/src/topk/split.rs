//! `split`: the selection in two launches, for rows of up to 67,584 blocks; kept as a comparison. `split_halves` lists the best blocks
//! of each half of a row, with the keys in registers; `split_merge` selects among the listed ones.
//!
//! A block that the row's selection touches has fewer than `width` cells in front of it, so also within its half: a half need only list the
//! blocks that a selection of `width` cells, or of all it has, touches there. The lists ascend, the second half's behind the
//! first's, so equal keys keep their order.
//!
//! Scratch, in words: for each query its two halves, for each half `2 * list + 1`: the ids of the blocks it lists, their keys, how many they
//! are, where `list` is [`list_len`]. It need not be initialised.
//!
//! Race argument: that of `select`. A half of a row, and its list, belong to one block of `split_halves`; a row to one of `split_merge`.

use super::histogram::THREADS;
use super::register::{self, Held};
use super::rule::{BLOCK_CELLS, Step, key};
use super::select::{self, Last, Reread, Share, Threshold};
use crate::mutation::{self, Mutation};
use crate::params::TopkArgs;
use cuda_std::prelude::*;

/// The most blocks of a row.
pub const REACH: u32 = 2 * register::REACH;

/// The most blocks that a selection of `cap` cells touches: all have four cells, but the tail and the last one.
#[inline(always)]
pub const fn list_len(cap: usize) -> usize {
    cap / BLOCK_CELLS as usize + 2
}

/// Words of scratch that a query takes.
#[inline(always)]
pub const fn scratch_len(cap: usize) -> usize {
    2 * half_len(cap)
}

#[inline(always)]
const fn half_len(cap: usize) -> usize {
    2 * list_len(cap) + 1
}

/// Grid: 2 * queries. Block: 1024.
///
/// # Safety
/// As [`wide`](super::wide::wide); `args.reach` is at most [`REACH`], and `args.scratch` has [`scratch_len`]`(cap)` words a query.
#[kernel(threads = 1024, barriers = 4)]
pub unsafe fn split_halves(args: TopkArgs) {
    let index = thread::block_idx_x();
    let list_len = list_len(args.cap as usize);
    let list = |index: u32| args.scratch.at(index as usize * half_len(args.cap as usize));
    // SAFETY: the caller's promise; positions in the list do not overlap.
    unsafe {
        let (query, half) = (index as usize / 2, index % 2);
        let step = Step::read(args.steps, query);
        if step.is_identity() || step.width == 0 {
            return;
        }
        let of_half = step.candidates().div_ceil(2);
        let start = half * of_half;
        let candidates = of_half.min(step.candidates() - start);
        if candidates == 0 {
            if thread::thread_idx_x() == 0 {
                list(index).write(2 * list_len, 0);
            }
            return;
        }
        let scores = args.scores.at(query * args.stride as usize + start as usize);
        let share = Share::of(candidates);
        let held = Held::load(scores, share);
        let last_key = key(scores.read(candidates as usize - 1).to_bits());
        let last = Last { key: last_key, cells: step.cells(start + candidates - 1) };
        let width = step.width.min(BLOCK_CELLS * (candidates - 1) + last.cells);
        let Threshold { key, above } = select::threshold(held, share, last, width);

        let mut ties = (width - above).div_ceil(BLOCK_CELLS);
        if mutation::is(Mutation::SplitRoundsTiesDown) {
            ties = (width - above) / BLOCK_CELLS;
        }
        // Hidden: the search has no registers left for the address.
        let list = list(hint::opaque(index));
        if thread::thread_idx_x() == 0 {
            list.write(2 * list_len, above.div_ceil(BLOCK_CELLS) + ties);
        }
        let start = if mutation::is(Mutation::SplitForgetsHalf) { 0 } else { start };
        select::emit(held, share, key, 1, ties, |at, candidate, key, _| {
            list.write(at as usize, start + candidate);
            list.write(list_len + at as usize, key);
        });
    }
}

/// Grid: queries. Block: 1024. Behind `split_halves` of the same arguments.
///
/// # Safety
/// As [`split_halves`].
#[kernel(threads = 1024, min_blocks = 2, barriers = 4)]
pub unsafe fn split_merge(args: TopkArgs) {
    let query = thread::block_idx_x() as usize;
    // SAFETY: the caller's promise; positions in the row do not overlap.
    unsafe {
        let Some((step, ids)) = select::begin(&args, query, THREADS) else { return };
        let (list, half) = (list_len(args.cap as usize), half_len(args.cap as usize));
        let scratch = args.scratch.at(query * 2 * half);
        let of_first = scratch.read(2 * list);
        let listed = of_first + scratch.read(half + 2 * list);
        let place = |index: u32| match index.checked_sub(of_first) {
            None => index as usize,
            Some(index) => half + index as usize,
        };
        let key = |index: u32| scratch.read(list + place(index));
        let block = |index: u32| scratch.read(place(index));
        let share = Share::of(listed);
        let last = Last { key: key(listed - 1), cells: step.cells(block(listed - 1)) };
        let Threshold { key: threshold, above } = select::threshold(Reread(key), share, last, step.width);
        let ties = step.width - above;
        select::emit(Reread(key), share, threshold, BLOCK_CELLS, ties, |at, index, _, most| {
            select::write_block(step, ids, at, block(index), most)
        });
    }
}
