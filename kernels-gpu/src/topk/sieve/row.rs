//! A row of scores, and its first pass.

use super::{KEYS, LARGEST, SECTOR, THREADS, chunk_shift, rank};
use cuda_std::prelude::*;

/// One query's scores.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// Block 0's.
    scores: Global<f32>,
    /// The place of block 0.
    pub head: u32,
    /// The place behind the last candidate.
    pub end: u32,
    /// Whether four places from a multiple of four on can be read at once.
    is_aligned: bool,
}

impl Row {
    #[inline(always)]
    pub fn new(scores: Global<f32>, candidates: u32) -> Self {
        let head = scores.address() as u32 / 4 % (1 << SECTOR);
        Self { scores, head, end: head + candidates, is_aligned: true }
    }

    /// With chunks that begin at block 0, which aligned loads may not be able to read.
    #[inline(always)]
    pub fn from_block_0(scores: Global<f32>, candidates: u32) -> Self {
        Self { scores, head: 0, end: candidates, is_aligned: scores.address().is_multiple_of(16) }
    }

    #[inline(always)]
    pub fn chunk_shift(self) -> u32 {
        chunk_shift(self.end - self.head)
    }

    /// Sectors of 8 places that the row touches.
    #[inline(always)]
    pub fn sectors(self) -> u32 {
        self.end.div_ceil(1 << SECTOR)
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

    /// The scores at four neighbouring places, of which the first is a multiple of four.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn quad(self, place: u32) -> [f32; 4] {
        // SAFETY: candidates only, and an aligned address.
        unsafe {
            if self.is_aligned && self.head <= place && place + 4 <= self.end {
                let F32x4(scores) = self.scores.at((place - self.head) as usize).read_as(0);
                scores
            } else {
                [self.score(place), self.score(place + 1), self.score(place + 2), self.score(place + 3)]
            }
        }
    }

    /// The scores of a sector, or of a partial one their maximum.
    #[inline(always)]
    #[track_caller]
    unsafe fn sector(self, sector: u32) -> [f32; 8] {
        let place = sector << SECTOR;
        let mut scores = [f32::NAN; 8];
        // SAFETY: candidates only; a multiple of four places is a multiple of 16 bytes.
        unsafe {
            if self.head <= place && place + 8 <= self.end {
                let from = self.scores.at((place - self.head) as usize);
                let (F32x4(low), F32x4(high)) = (from.read_as(0), from.read_as(4));
                for i in 0..4 {
                    (scores[i], scores[4 + i]) = (low[i], high[i]);
                }
            } else {
                let mut place = place.max(self.head);
                while place < self.end.min((sector + 1) << SECTOR) {
                    scores[0] = scores[0].max(self.score(place));
                    place += 1;
                }
            }
        }
        scores
    }

    /// Reads every `parts`-th step of the row, from step `part` on, and calls `sink(chunk, its largest key)` for every chunk there; a
    /// step is a sector a thread, and a thread has `AHEAD` of them on their way. All threads of the block call it.
    #[inline(always)]
    pub unsafe fn maxima<const AHEAD: usize>(
        self,
        shift: u32,
        part: u32,
        parts: u32,
        sink: impl Fn(u32, u32),
    ) {
        let lanes = 1 << (shift - SECTOR);
        let last = self.sectors();
        let load = |sector: u32| {
            // SAFETY: the caller's promise about the row.
            if sector < last { unsafe { self.sector(sector) } } else { [f32::NAN; 8] }
        };
        let first = (part * THREADS as u32) as i32;
        let step = (parts * THREADS as u32) as i32;
        // The first steps only load, the last ones have nothing left to load.
        let mut base = first - AHEAD as i32 * step;
        let mut ahead = [[0.0; 8]; AHEAD];
        while base < last as i32 {
            for i in 0..AHEAD {
                let [a, b, c, d, e, f, g, h] = ahead[i];
                let sector = (base + thread::thread_idx_x() as i32) as u32;
                ahead[i] = load(sector.wrapping_add(AHEAD as u32 * step as u32));
                if (first..last as i32).contains(&base) {
                    // A maximum of floats takes a number before a NaN, so its key is the largest key.
                    let mut top = a.max(b).max(c.max(d)).max(e.max(f).max(g.max(h)));
                    let mut distance = 1;
                    while distance < lanes {
                        top = top.max(warp::warp_shuffle_xor(warp::FULL, top, distance));
                        distance *= 2;
                    }
                    if sector & (lanes - 1) == 0 && sector < last {
                        sink(sector / lanes, rank(top) - 1);
                    }
                }
                base += step;
            }
        }
    }
}

const _: () = assert!(THREADS.is_multiple_of(1 << (LARGEST - SECTOR)), "a step has whole chunks");
const _: () = assert!(1 << SECTOR == 8 && LARGEST - SECTOR <= 5 && KEYS.is_multiple_of(4));
