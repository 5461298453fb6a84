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

#[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod keyhead;
pub mod pipe;
#[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
pub mod scan;

use super::HEAD_DIM;
use crate::math::{fma, sum4};
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
/// Threads of a block of `pipe` and `keyhead`: x is the column, y the row group.
pub const THREADS: usize = COLUMNS * ROW_GROUPS;

/// What a thread of `pipe` or `keyhead` owns of a head: one column of one row group.
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

/// `Sum4` over the row groups of a `[ROW_GROUPS][COLUMNS]` array of partial sums.
///
/// # Safety
/// The partial sums were written and a barrier lies between.
#[inline(always)]
#[track_caller]
unsafe fn sum_row_groups(partials: Shared<f32>, lane: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        sum4([
            partials.read(lane),
            partials.read(COLUMNS + lane),
            partials.read(2 * COLUMNS + lane),
            partials.read(3 * COLUMNS + lane),
        ])
    }
}

/// The correction that a token writes along its key.
#[inline(always)]
fn delta(g: f32, kv: f32, v: f32, beta: f32) -> f32 {
    fma(-g, kv, v) * beta
}
