//! `register`: the selection with the keys in registers, 33 a thread: scores are read once, and a row has at most 33,792 blocks.
//!
//! Race argument: that of `select`. A row belongs to one block.

use super::histogram::THREADS;
use super::rule::key;
use super::select::{self, Keys, Share};
use crate::params::TopkArgs;
use cuda_std::prelude::*;

/// Keys of a thread.
pub const ROWS: usize = 33;
/// The most blocks of a row.
pub const REACH: u32 = (ROWS * THREADS) as u32;

/// The keys of the thread's candidates.
#[derive(Clone, Copy)]
pub struct Held([u32; ROWS]);

impl Held {
    /// The scores from `scores` on, of the candidates of `share`.
    ///
    /// # Safety
    /// They are there, and no more than [`REACH`].
    #[inline(always)]
    pub unsafe fn load(scores: Global<f32>, share: Share) -> Self {
        let mut keys = [0; ROWS];
        for row in 0..ROWS as u32 {
            if row < share.rows {
                // SAFETY: the caller's promise; a lane without a candidate reads the warp's last.
                let score = unsafe { scores.read(share.within(share.first + 32 * row) as usize) };
                keys[row as usize] = key(score.to_bits());
            }
        }
        Self(keys)
    }
}

impl Keys for Held {
    #[inline(always)]
    unsafe fn each(self, share: Share, mut visit: impl FnMut(u32, u32)) {
        // Hidden: 33 candidates in registers beside the keys, from pass to pass, would be too many.
        let (first, rows) = (hint::opaque(share.first), hint::opaque(share.rows));
        for row in 0..ROWS as u32 {
            if row < rows {
                visit(first + 32 * row, self.0[row as usize]);
            }
        }
    }
}

/// Grid: queries. Block: 1024.
///
/// # Safety
/// As [`wide`](super::wide::wide), and `args.reach` is at most [`REACH`].
#[kernel(threads = 1024, barriers = 4)]
pub unsafe fn register(args: TopkArgs) {
    let query = thread::block_idx_x() as usize;
    // SAFETY: the caller's promise.
    unsafe {
        let Some((step, ids)) = select::begin(&args, query, THREADS) else { return };
        let scores = args.scores.at(query * args.stride as usize);
        let held = Held::load(scores, Share::of(step.candidates()));
        let last_key = key(scores.read(step.candidates() as usize - 1).to_bits());
        select::write_ids(held, step, last_key, ids);
    }
}
