//! A row of scores, and its first pass.

use super::{KEYS, LARGEST, SECTOR, THREADS, chunk_shift, rank};
use cuda_std::prelude::*;

/// 16-byte loads that a thread has on their way.
const AHEAD: usize = 4;

/// One query's scores.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// Block 0's.
    scores: Global<f32>,
    /// The place of block 0.
    pub head: u32,
    /// The place behind the last candidate.
    pub end: u32,
}

impl Row {
    #[inline(always)]
    pub fn new(scores: Global<f32>, candidates: u32) -> Self {
        let head = scores.address() as u32 / 4 % (1 << SECTOR);
        Self { scores, head, end: head + candidates }
    }

    /// With chunks that begin at block 0, which aligned loads cannot read.
    #[inline(always)]
    pub fn from_block_0(scores: Global<f32>, candidates: u32) -> Self {
        Self { scores, head: 0, end: candidates }
    }

    #[inline(always)]
    pub fn chunk_shift(self) -> u32 {
        chunk_shift(self.end - self.head)
    }

    /// 16-byte words that the row touches.
    #[inline(always)]
    pub fn quads(self) -> u32 {
        self.end.div_ceil(4)
    }

    /// Chunks of `1 << shift` blocks that the row touches.
    #[inline(always)]
    pub fn chunks(self, shift: u32) -> u32 {
        ((self.end - 1) >> shift) + 1
    }

    /// Whether there is a block at `place`.
    #[inline(always)]
    pub fn has(self, place: u32) -> bool {
        self.head <= place && place < self.end
    }

    /// The score at a place; where there is no block, NaN, which no maximum takes.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn score(self, place: u32) -> f32 {
        if self.has(place) {
            // SAFETY: a candidate's score.
            unsafe { self.scores.at((place - self.head) as usize).read(0) }
        } else {
            f32::NAN
        }
    }

    /// The scores at places `4 * quad ..`.
    #[inline(always)]
    #[track_caller]
    unsafe fn quad(self, quad: u32) -> [f32; 4] {
        let place = 4 * quad;
        // SAFETY: candidates only; a multiple of four places is a multiple of 16 bytes.
        unsafe {
            if self.head <= place && place + 4 <= self.end {
                let F32x4(scores) = self.scores.at((place - self.head) as usize).read_as(0);
                scores
            } else {
                [self.score(place), self.score(place + 1), self.score(place + 2), self.score(place + 3)]
            }
        }
    }

    /// Reads the 16-byte words `first..last` and calls `sink(chunk, its largest key)` for every chunk that begins there. `first` is a
    /// multiple of the largest chunk; so is `last`, or it is the row's end. All threads of the block call it.
    #[inline(always)]
    pub unsafe fn maxima(self, shift: u32, first: u32, last: u32, sink: impl Fn(u32, u32)) {
        let lanes = 1 << (shift - 2);
        let load = |quad: u32| {
            // SAFETY: the caller's promise about the row.
            if quad < last { unsafe { self.quad(quad) } } else { [f32::NAN; 4] }
        };
        // The first steps only load, the last ones have nothing left to load.
        let mut base = first as i32 - (AHEAD * THREADS) as i32;
        let mut ahead = [[0.0; 4]; AHEAD];
        while base < last as i32 {
            for i in 0..AHEAD {
                let [a, b, c, d] = ahead[i];
                let quad = (base + thread::thread_idx_x() as i32) as u32;
                ahead[i] = load(quad.wrapping_add((AHEAD * THREADS) as u32));
                if (first as i32..last as i32).contains(&base) {
                    // A maximum of floats takes a number before a NaN, so its key is the largest key.
                    let mut top = a.max(b).max(c.max(d));
                    let mut distance = 1;
                    while distance < lanes {
                        top = top.max(warp::warp_shuffle_xor(warp::FULL, top, distance));
                        distance *= 2;
                    }
                    if quad & (lanes - 1) == 0 && quad < last {
                        sink(quad / lanes, rank(top) - 1);
                    }
                }
                base += THREADS as i32;
            }
        }
    }
}

const _: () = assert!(1 << (LARGEST - 2) == 32 && KEYS.is_multiple_of(4));
