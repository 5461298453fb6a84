//! The selection rule, once for every kernel and for the CPU.
//!
//! A query at position `pos` sees `n_kv = pos + 1` cells, in blocks of four; block `n_bid = n_kv / 4` is the tail, with the
//! 0 to 3 cells that do not fill a block. `width` cells are selected:
//! * `n_kv <= width`: all cells; scores are not read.
//! * Else blocks in the order of their keys, largest first, equal keys lowest block first, each with all its cells; the last one
//!   may give only its first cells. A tail of no cells is no candidate: its score may be anything.
//!
//! In other words: the threshold is the largest key at which the cells of the blocks with that key or a larger one reach `width`. Selected
//! are all blocks above it, and of those at it, from the lowest on, as many cells as are left. Cell ids ascend.
//!
//! # The score of a block
//! A score has one set of bits, so its order of operations is fixed. For block `b` with key `k`, and head `h` of a query, `q_h`:
//! * lane `l` of 32 takes the dimensions `4l` to `4l + 3`: `p_l = ((q_h[4l] * k[4l] + q_h[4l+1] * k[4l+1]) + q_h[4l+2] * k[4l+2]) +
//!   q_h[4l+3] * k[4l+3]`, each product and each sum rounded, nothing contracted to an fma;
//! * `dot_h = Tree32(p)`, the butterfly: lane `l` adds lane `l ^ 16`, then those at distances 8, 4, 2 and 1;
//! * `score = relu(dot_0) + relu(dot_1) + relu(dot_2) + relu(dot_3)`, from `+0` on in that order, with `relu(d) = d > 0 ? d : 0`, which
//!   makes a NaN 0;
//! * the tail, `b = n_bid`, has a key of its own in place of the pooled one, which is not read, and a tail with cells gets
//!   [`TAIL_BONUS`] on top.
//!
//! Blocks `0..=n_bid` of a row are written, and no others: the empty tail too.

use cuda_std::prelude::*;

/// Cells of a block.
pub const BLOCK_CELLS: u32 = 4;
/// Dimensions of an indexer key and query.
pub const INDEX_DIM: usize = 128;
/// Indexer heads of a query.
pub const INDEX_HEADS: usize = 4;
/// The score that a tail with cells gets on top of its own.
pub const TAIL_BONUS: f32 = 1e9;

/// A query's step record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Cells that the query sees.
    pub n_kv: u32,
    /// Complete blocks of them; the index of the tail block.
    pub n_bid: u32,
    /// Cells to select, at most `n_kv`.
    pub width: u32,
}

impl Step {
    /// Words of a record in memory: pos, n_kv, n_bid, width.
    pub const WORDS: usize = 4;

    /// The record of a query that sees `n_kv` cells and may select `limit`.
    pub fn new(n_kv: u32, limit: u32) -> Self {
        Self { n_kv, n_bid: n_kv / BLOCK_CELLS, width: n_kv.min(limit) }
    }

    /// As it lies in memory.
    pub fn words(self) -> [i32; Self::WORDS] {
        [self.n_kv.wrapping_sub(1), self.n_kv, self.n_bid, self.width].map(|word| word as i32)
    }

    /// The record of query `query`.
    ///
    /// # Safety
    /// `steps` holds one.
    #[inline(always)]
    pub unsafe fn read(steps: Global<i32>, query: usize) -> Self {
        let word = |index: usize| {
            // SAFETY: the caller's promise.
            unsafe { steps.read(query * Self::WORDS + index) as u32 }
        };
        Self { n_kv: word(1), n_bid: word(2), width: word(3) }
    }

    /// Whether every cell is selected.
    #[inline(always)]
    pub fn is_identity(self) -> bool {
        self.n_kv <= self.width
    }

    /// Cells of the tail block.
    #[inline(always)]
    pub fn tail_cells(self) -> u32 {
        self.n_kv - BLOCK_CELLS * self.n_bid
    }

    /// Blocks with cells: `0..candidates()`.
    #[inline(always)]
    pub fn candidates(self) -> u32 {
        self.n_bid + u32::from(self.tail_cells() > 0)
    }

    /// Cells of candidate `block`.
    #[inline(always)]
    pub fn cells(self, block: u32) -> u32 {
        if block == self.n_bid { self.tail_cells() } else { BLOCK_CELLS }
    }
}

/// The key of a score, by which blocks are ordered: NaN of any sign and payload is 0, then -inf up to +inf; -0.0 is +0.0, denormals are
/// distinct. Keys, not floats, decide.
#[inline(always)]
pub fn key(score_bits: u32) -> u32 {
    let magnitude = score_bits & 0x7fff_ffff;
    let ordered = if magnitude == 0 {
        0x8000_0000
    } else if score_bits >> 31 == 1 {
        !score_bits
    } else {
        score_bits | 0x8000_0000
    };
    if magnitude > 0x7f80_0000 { 0 } else { ordered }
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_the_rule_says() {
        let ascending = [
            f32::NEG_INFINITY,
            f32::MIN,
            -1.0,
            -f32::MIN_POSITIVE,
            -f32::from_bits(2),
            -f32::from_bits(1),
            0.0,
            f32::from_bits(1),
            f32::from_bits(2),
            f32::MIN_POSITIVE,
            1.0,
            f32::from_bits(0x3f80_0001),
            f32::MAX,
            f32::INFINITY,
        ];
        for pair in ascending.windows(2) {
            assert!(key(pair[0].to_bits()) < key(pair[1].to_bits()), "{pair:?}");
        }
        assert_eq!(key((-0.0f32).to_bits()), key(0));
        for nan in [0x7f80_0001, 0x7fc0_0000, 0x7fff_ffff, 0xff80_0001, 0xffc0_0000, u32::MAX] {
            assert_eq!(key(nan), 0, "{nan:#x}");
        }
        assert!(key(f32::NEG_INFINITY.to_bits()) > 0);
    }

    #[test]
    fn tails() {
        let step = Step::new(2053, 2051);
        assert_eq!((step.n_bid, step.tail_cells(), step.candidates(), step.width), (513, 1, 514, 2051));
        assert_eq!((step.cells(512), step.cells(513)), (4, 1));
        assert_eq!(Step::new(2052, 2051).candidates(), 513);
        assert!(Step::new(2051, 2051).is_identity() && !Step::new(2052, 2051).is_identity());
    }
}
