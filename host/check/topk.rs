//! Selections to check: scores that are hard in some way, and what the rule's words make of them.

use super::data::Random;
use crate::cuda::DeviceMaxima;
use crate::error::{Error, Result};
use crate::topk::{BLOCK_CELLS, Step, Topk, TopkShape};
use kernels_gpu::topk::rule::{TAIL_BONUS, key};
use kernels_gpu::topk::sieve;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// What the scores are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    Normal,
    /// 64 values, so that many are equal.
    Levels,
    Equal,
    /// Four of five are 0, of either sign.
    Zeros,
    /// All between 1 and 1.001.
    Narrow,
    /// 15 of 100 are NaN, of either sign.
    SomeNan,
    /// A third is infinite, of either sign.
    Infinities,
    /// Denormals of either sign, and zeros.
    Denormals,
    /// NaNs, infinities, zeros, denormals and numbers.
    Mix,
    /// Any 32 bits.
    Bits,
    Nan,
    Ascending,
    Descending,
    /// 600 of the first 4800 blocks have the largest scores, one in each stretch of 8.
    OnePerChunk,
    /// 600 blocks side by side have the largest scores.
    OneRun,
}

impl Pattern {
    pub const ALL: [Pattern; 15] = [
        Pattern::Normal,
        Pattern::Levels,
        Pattern::Equal,
        Pattern::Zeros,
        Pattern::Narrow,
        Pattern::SomeNan,
        Pattern::Infinities,
        Pattern::Denormals,
        Pattern::Mix,
        Pattern::Bits,
        Pattern::Nan,
        Pattern::Ascending,
        Pattern::Descending,
        Pattern::OnePerChunk,
        Pattern::OneRun,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Pattern::Normal => "random",
            Pattern::Levels => "levels",
            Pattern::Equal => "equal",
            Pattern::Zeros => "zeros",
            Pattern::Narrow => "narrow",
            Pattern::SomeNan => "some-nan",
            Pattern::Infinities => "infinities",
            Pattern::Denormals => "denormals",
            Pattern::Mix => "mix",
            Pattern::Bits => "bits",
            Pattern::Nan => "nan",
            Pattern::Ascending => "ascending",
            Pattern::Descending => "descending",
            Pattern::OnePerChunk => "one-per-chunk",
            Pattern::OneRun => "one-run",
        }
    }

    fn score(self, random: &mut Random, block: usize) -> f32 {
        let sign = |random: &mut Random, x: f32| if random.next() & 1 == 1 { -x } else { x };
        match self {
            Pattern::Normal => random.normal(),
            Pattern::Levels => (random.next() % 64) as f32 / 8.0 - 4.0,
            Pattern::Equal => 0.5,
            Pattern::Zeros if random.next() % 5 < 4 => sign(random, 0.0),
            Pattern::Zeros => random.normal(),
            Pattern::Narrow => 1.0 + 0.001 * random.uniform(),
            Pattern::SomeNan if random.next() % 100 < 15 => {
                f32::from_bits(0x7f80_0001 | random.next() as u32)
            }
            Pattern::Infinities if random.next().is_multiple_of(3) => sign(random, f32::INFINITY),
            Pattern::SomeNan | Pattern::Infinities => random.normal(),
            Pattern::Denormals => f32::from_bits(random.next() as u32 & 0x8000_1fff),
            Pattern::Mix => match random.next() % 100 {
                0..15 => f32::from_bits(0x7f80_0001 | random.next() as u32),
                15..25 => sign(random, f32::INFINITY),
                25..40 => sign(random, 0.0),
                40..60 => f32::from_bits(random.next() as u32 & 0x807f_ffff),
                _ => random.normal(),
            },
            Pattern::Bits => f32::from_bits(random.next() as u32),
            Pattern::Nan => f32::from_bits(0x7f80_0001 | random.next() as u32),
            Pattern::Ascending => block as f32,
            Pattern::Descending => -(block as f32),
            Pattern::OnePerChunk if block < 4800 && block % 8 == 3 => random.normal() + 100.0,
            Pattern::OneRun if (777..1377).contains(&block) => random.normal() + 100.0,
            Pattern::OnePerChunk | Pattern::OneRun => random.normal(),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Pattern::ALL.into_iter().find(|pattern| pattern.name() == name).ok_or_else(|| {
            let names = Pattern::ALL.map(Pattern::name).join(", ");
            Error::argument("contents", format!("`{name}`"), names)
        })
    }
}

/// Queries with scores to select from. Change what a test needs changed.
#[derive(Clone, Debug)]
pub struct Selection {
    pub shape: TopkShape,
    pub scores: Vec<f32>,
    pub n_kv: Vec<i32>,
}

impl Selection {
    /// What an id is before it is written.
    pub const BLANK: i32 = 0x5a5a_5a5a;

    /// Rows that each have room for `spare` blocks and ids more than their contexts and `width` ask for; what lies behind a
    /// query's last cell is larger than any score.
    ///
    /// # Panics
    /// For a shape that [`TopkShape::new`] refuses.
    pub fn new(pattern: Pattern, n_kv: &[i32], width: usize, spare: usize, seed: u64) -> Selection {
        let most = n_kv.iter().map(|&n_kv| Step::new(n_kv as u32, width as u32).candidates()).max();
        let mut selection = Self::with_stride(pattern, n_kv, width, most.unwrap_or(0) as usize + spare, seed);
        selection.shape = TopkShape::new(n_kv.len(), selection.shape.stride(), width, width + spare)
            .expect("a valid shape");
        selection
    }

    /// Rows of `stride` scores and `width + 5` ids. A tail of a `Normal` or `Levels` row is above all others, as the block scores
    /// have it.
    ///
    /// # Panics
    /// As [`new`](Self::new), and when a row is too short for its query's cells.
    pub fn with_stride(pattern: Pattern, n_kv: &[i32], width: usize, stride: usize, seed: u64) -> Selection {
        let shape = TopkShape::new(n_kv.len(), stride, width, width + 5).expect("a valid shape");
        let mut random = Random(seed);
        let mut scores = vec![f32::INFINITY; n_kv.len() * stride];
        for (query, &n_kv) in n_kv.iter().enumerate() {
            let step = Step::new(n_kv as u32, width as u32);
            let row = &mut scores[query * stride..][..step.candidates() as usize];
            for (block, score) in row.iter_mut().enumerate() {
                *score = pattern.score(&mut random, block);
            }
            if matches!(pattern, Pattern::Normal | Pattern::Levels) && step.tail_cells() > 0 {
                row[step.n_bid as usize] += TAIL_BONUS;
            }
        }
        Selection { shape, scores, n_kv: n_kv.to_vec() }
    }

    /// The step records, as the kernels read them.
    pub fn records(&self) -> Vec<i32> {
        let words = |&n_kv: &i32| Step::new(n_kv as u32, self.shape.width() as u32).words();
        self.n_kv.iter().flat_map(words).collect()
    }

    /// The largest key of each chunk, as the block scores' kernel leaves it for rows of up to `reach` blocks; what it does not write is the
    /// largest key.
    ///
    /// # Panics
    /// For rows that are too long for maxima.
    pub fn maxima(&self, reach: usize) -> Vec<u32> {
        let len = DeviceMaxima::len(reach).expect("rows that have maxima");
        let mut maxima = vec![u32::MAX; self.n_kv.len() * len];
        if len == 0 {
            return maxima;
        }
        let chunk = 1 << sieve::chunk_shift(reach as u32);
        for (query, &n_kv) in self.n_kv.iter().enumerate() {
            let candidates = Step::new(n_kv as u32, 1).candidates() as usize;
            let row = &self.scores[query * self.shape.stride()..][..candidates];
            let largest =
                row.chunks(chunk).map(|scores| scores.iter().map(|score| key(score.to_bits())).max());
            let words = &mut maxima[query * len..][..len];
            words.iter_mut().zip(largest).for_each(|(word, largest)| *word = largest.unwrap_or(0));
        }
        maxima
    }

    /// Ids that nobody has written.
    pub fn blank(&self) -> Vec<i32> {
        vec![Self::BLANK; self.shape.queries() * self.shape.cap()]
    }

    /// The call on `ids`.
    ///
    /// # Panics
    /// When the fields, or `ids`, do not fit each other any more.
    pub fn call<'a>(&'a self, ids: &'a mut [i32]) -> Topk<'a> {
        Topk::new(self.shape, &self.scores, &self.n_kv, ids)
            .expect("the buffers fit the shape they were made for")
    }

    /// All of the ids, as a selection must leave them: by a sort of all blocks.
    pub fn expected(&self) -> Vec<i32> {
        let mut ids = self.blank();
        for (query, &n_kv) in self.n_kv.iter().enumerate() {
            let step = Step::new(n_kv as u32, self.shape.width() as u32);
            let row = by_sort(&self.scores[query * self.shape.stride()..], step);
            ids[query * self.shape.cap()..][..row.len()].copy_from_slice(&row);
        }
        ids
    }
}

/// The cells that the rule selects from a row: its words, and no more.
fn by_sort(scores: &[f32], step: Step) -> Vec<i32> {
    let mut blocks: Vec<u32> = (0..step.candidates()).collect();
    // Equal ones stay in their order.
    blocks.sort_by(|&a, &b| order(scores[b as usize], scores[a as usize]));
    let cells = |block| (0..step.cells(block)).map(move |cell| (block * BLOCK_CELLS + cell) as i32);
    let mut ids: Vec<i32> = blocks.into_iter().flat_map(cells).take(step.width as usize).collect();
    ids.sort_unstable();
    ids
}

/// A NaN is lower than any number.
fn order(a: f32, b: f32) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}
