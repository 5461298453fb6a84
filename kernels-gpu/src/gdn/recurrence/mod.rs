//! The gated delta rule, token by token. For value head h with key head j, state `S[row][column]`:
//!
//! ```text
//! g     = exp(gate)                                  decay
//! kv    = Sum4 over row groups of the fma chains S[r] * k[r]
//! delta = fma(-g, kv, v) * beta
//! S[r]  = fma(g, S[r], k[r] * delta)
//! y     = Sum4 over row groups of the fma chains S[r] * q[r], times 1/sqrt(128)
//! ```
//!
//! A row group is 32 rows, its chain starts at +0 and goes up. Every variant does this arithmetic in this order, so all give
//! the same bits; they differ in which thread holds what.

pub mod cols;
pub mod heads;
#[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod keyhead;
pub mod pipe;
#[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod scan;

use super::HEAD_DIM;
use crate::math::{fma, sum4};
use crate::mutation::{self, Mutation};
use crate::params::RecurrenceArgs;
use cuda_std::prelude::*;

/// Row groups of a state.
pub const ROW_GROUPS: usize = 4;
/// Rows of a row group.
pub const ROWS: usize = HEAD_DIM / ROW_GROUPS;
/// Columns of a column block: the lanes of a warp.
pub const COLUMNS: usize = 32;
/// Column blocks of a state.
pub const COLUMN_BLOCKS: usize = HEAD_DIM / COLUMNS;
/// Threads of a block of `cols`, `pipe` and `keyhead`: x is the column, y the row group.
pub const THREADS: usize = COLUMNS * ROW_GROUPS;

/// The key head and the value head that are unit `unit`: first slot 0 of every key head, then slot 1.
#[inline(always)]
fn heads_of(args: &RecurrenceArgs, unit: usize) -> (usize, usize) {
    let (key_head, slot) = (unit % args.key_heads as usize, unit / args.key_heads as usize);
    (key_head, head_in(args, key_head, slot))
}

/// The value head in a slot of a key head.
#[inline(always)]
fn head_in(args: &RecurrenceArgs, key_head: usize, slot: usize) -> usize {
    let (per_key, per_slot) = (args.head_per_key as usize, args.head_per_slot as usize);
    if mutation::is(Mutation::SwapsHeadMap) {
        return key_head * per_slot + slot * per_key;
    }
    key_head * per_key + slot * per_slot
}

/// What a thread owns of a head in the variants with a thread a column of a row group.
#[derive(Clone, Copy)]
struct Place {
    row_group: usize,
    lane: usize,
    column: usize,
}

impl Place {
    #[inline(always)]
    fn new(column_block: usize) -> Self {
        let lane = thread::thread_idx_x() as usize;
        Self { row_group: thread::thread_idx_y() as usize, lane, column: column_block * COLUMNS + lane }
    }

    #[inline(always)]
    fn state_index(self, args: &RecurrenceArgs, head: usize) -> usize {
        self.row_group * ROWS * args.state_row as usize + head * args.state_head as usize + self.column
    }

    /// # Safety
    /// `args` describes live buffers and `head` is one of its value heads.
    #[inline(always)]
    unsafe fn load_state(self, args: &RecurrenceArgs, head: usize) -> [f32; ROWS] {
        let first = args.state.at(self.state_index(args, head));
        let mut state = [0.0; ROWS];
        for r in 0..ROWS {
            // SAFETY: the caller's promise; no other thread touches this column of this row group.
            state[r] = unsafe { first.read(r * args.state_row as usize) };
        }
        state
    }

    /// # Safety
    /// As [`load_state`](Self::load_state).
    #[inline(always)]
    unsafe fn store_state(self, args: &RecurrenceArgs, head: usize, state: &[f32; ROWS]) {
        let first = args.state.at(self.state_index(args, head));
        // Otherwise the addresses of `load_state` would stay in 64 registers a head through the token loop.
        let row = hint::opaque(args.state_row) as usize;
        for r in 0..ROWS {
            // SAFETY: as in `load_state`.
            unsafe { first.write(r * row, state[r]) };
        }
    }
}

/// The partial kv sum of a row group, and its k.
///
/// # Safety
/// `key_row` is the row group's part of k, behind a barrier.
#[inline(always)]
#[track_caller]
unsafe fn partial_kv(state: &[f32; ROWS], key_row: Shared<f32>) -> (f32, [f32; ROWS]) {
    let mut key = [0.0; ROWS];
    let mut kv = 0.0;
    for r4 in 0..ROWS / 4 {
        // SAFETY: the caller's promise.
        let F32x4(k4) = unsafe { key_row.read_as(4 * r4) };
        for u in 0..4 {
            key[4 * r4 + u] = k4[u];
            kv = fma(state[4 * r4 + u], k4[u], kv);
        }
    }
    (kv, key)
}

/// Updates a row group by a token; its partial o sum.
///
/// # Safety
/// `query_row` is the row group's part of q, behind a barrier.
#[inline(always)]
#[track_caller]
unsafe fn update(
    state: &mut [f32; ROWS],
    g: f32,
    key: &[f32; ROWS],
    delta: f32,
    query_row: Shared<f32>,
) -> f32 {
    let mut o = 0.0;
    for r4 in 0..ROWS / 4 {
        // SAFETY: the caller's promise.
        let F32x4(q4) = unsafe { query_row.read_as(4 * r4) };
        for u in 0..4 {
            let r = 4 * r4 + u;
            state[r] = fma(g, state[r], key[r] * delta);
            o = fma(state[r], q4[u], o);
        }
    }
    o
}

/// `Sum4` over the row groups of a `[ROW_GROUPS][WIDTH]` array of partial sums.
///
/// # Safety
/// The partial sums were written and a barrier lies between.
#[inline(always)]
#[track_caller]
unsafe fn sum_row_groups<const WIDTH: usize>(partials: Shared<f32>, column: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        sum_in_order([
            partials.read(column),
            partials.read(WIDTH + column),
            partials.read(2 * WIDTH + column),
            partials.read(3 * WIDTH + column),
        ])
    }
}

/// `Sum4` of the parts of the row groups.
#[inline(always)]
fn sum_in_order(parts: [f32; ROW_GROUPS]) -> f32 {
    if mutation::is(Mutation::ReversesRowGroups) {
        return sum4([parts[3], parts[2], parts[1], parts[0]]);
    }
    sum4(parts)
}

/// The correction that a token writes along its key.
#[inline(always)]
fn delta(g: f32, kv: f32, v: f32, beta: f32) -> f32 {
    fma(-g, kv, v) * beta
}
