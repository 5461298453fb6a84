//! The recurrence: a block of columns of one value head, through all tokens, is a piece of work.
//!
//! A block's part of the state, 128 rows of two vectors, stays in the first-level cache. A token needs its `k . S` before
//! it can change S, which would be two passes over the state; instead the pass that changes a row for token t also adds
//! that row's share of token t + 1's `k . S`. Per row, token and vector that is one multiplication and three fmas, and one
//! load and one store of the state.

use super::isa::{Isa, Work};
use super::lanes::Lanes;
use super::shared::Shared;
use crate::gdn::{HEAD_DIM, Recurrence, Rows};
use kernels_gpu::gdn::recurrence::{ROW_GROUPS, ROWS};
use kernels_gpu::math::{RSQRT_128, exp};
use rayon::prelude::*;

/// Vectors side by side in a block. Two share each broadcast of k and q, and with a pair of row groups they make eight
/// chains of fmas, which cover the latency and still leave registers in a file of sixteen.
const VECTORS: usize = 2;
/// Row groups that are walked at once.
const AT_ONCE: usize = 2;
/// How many tokens ahead rows of q, k and v are asked for: a stride between tokens is longer than a page, which the
/// hardware's own prefetching does not cross.
const PREFETCH: usize = 2;

/// Rows of one head, a stride apart.
#[derive(Clone, Copy)]
struct HeadRows {
    first: *const f32,
    stride: usize,
}

impl HeadRows {
    /// The rows that start `offset` elements into a token.
    fn new(rows: Rows<'_>, offset: usize) -> Self {
        // SAFETY: the call has a token, so this is in the buffer.
        let first = unsafe { rows.data.as_ptr().add(offset) };
        Self { first, stride: rows.stride }
    }

    /// # Safety
    /// `token` is one of the call's.
    #[inline(always)]
    unsafe fn at(self, token: usize) -> *const f32 {
        // SAFETY: the rows of all tokens of the call are in the buffer.
        unsafe { self.first.add(token * self.stride) }
    }

    /// Asks for the first `len` elements of a token's row; there need not be such a token.
    #[inline(always)]
    unsafe fn prefetch<L: Lanes>(self, token: usize, len: usize) {
        let row = self.first.wrapping_add(token.wrapping_mul(self.stride));
        for line in 0..len.div_ceil(16) {
            // SAFETY: L's instruction set is there; a prefetch of any address is fine.
            unsafe { L::prefetch(row.wrapping_add(line * 16)) };
        }
    }
}

/// A piece of work: some neighbouring columns of one value head.
struct Block<'a> {
    tokens: usize,
    value_heads: usize,
    q: HeadRows,
    k: HeadRows,
    /// Of the block's first column, as `state` and `y`.
    v: HeadRows,
    /// From this head's on; the next token's is `value_heads` further.
    gate: &'a [f32],
    beta: &'a [f32],
    state: *mut f32,
    state_row: usize,
    y: *mut f32,
}

/// Runs the recurrence with `isa`, which this CPU has.
pub(super) fn run(isa: Isa, call: Recurrence<'_>) {
    if call.tokens == 0 {
        return;
    }
    let Recurrence { heads, layout, tokens, inputs, state, y } = call;
    let value_heads = heads.value();
    let (state_row, state_head) = layout.strides(heads);
    let (head_per_key, head_per_slot) = heads.strides();
    let (state, y) = (Shared::new(state), Shared::new(y));
    let columns = VECTORS * isa.lanes();
    let blocks = HEAD_DIM / columns;

    // The blocks of a key head follow each other, so that a thread finds its q and k rows in the cache.
    (0..value_heads * blocks).into_par_iter().with_max_len(1).for_each(|index| {
        let (unit, block) = (index / blocks, index % blocks);
        let (key_head, slot) = (unit / heads.per_key(), unit % heads.per_key());
        let head = key_head * head_per_key + slot * head_per_slot;
        let column = block * columns;
        isa.run(Block {
            tokens,
            value_heads,
            q: HeadRows::new(inputs.q, key_head * HEAD_DIM),
            k: HeadRows::new(inputs.k, key_head * HEAD_DIM),
            v: HeadRows::new(inputs.v, head * HEAD_DIM + column),
            gate: &inputs.gate[head..],
            beta: &inputs.beta[head..],
            // SAFETY: head and column are within both buffers. Blocks differ in head or columns, so they are disjoint.
            state: unsafe { state.at(head * state_head + column) },
            state_row,
            // SAFETY: as above.
            y: unsafe { y.at(head * HEAD_DIM + column) },
        });
    });
}

impl Work for Block<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller's promise; blocks are disjoint.
        unsafe { walk::<L>(&self) }
    }
}

/// A block's part of the state, `[HEAD_DIM][VECTORS]`, in the first-level cache.
#[repr(C, align(64))]
struct Scratch<L>([[L; VECTORS]; HEAD_DIM]);

/// One partial sum for each vector and row group.
type Partials<L> = [[L; VECTORS]; ROW_GROUPS];

/// Takes a block through all tokens.
///
/// # Safety
/// The CPU has L's instruction set, the caller is compiled for it, and no one else accesses the block's state and y.
#[inline(always)]
unsafe fn walk<L: Lanes>(block: &Block<'_>) {
    // SAFETY: the caller's promise; tokens and rows are within the buffers.
    unsafe {
        let zero = L::splat(0.0);
        let mut state = Scratch([[zero; VECTORS]; HEAD_DIM]);

        let mut kv = [[zero; VECTORS]; ROW_GROUPS];
        let key = block.k.at(0);
        for rg in 0..ROW_GROUPS {
            for row in rg * ROWS..(rg + 1) * ROWS {
                let k = L::splat(*key.add(row));
                for i in 0..VECTORS {
                    let s = L::load(block.state.add(row * block.state_row + i * L::LANES));
                    state.0[row][i] = s;
                    kv[rg][i] = s.fma(k, kv[rg][i]);
                }
            }
        }

        // Reading q and k where they are is as fast as staging them beside the state.
        let last = block.tokens - 1;
        for t in 0..last {
            block.k.prefetch::<L>(t + PREFETCH, HEAD_DIM);
            block.q.prefetch::<L>(t + PREFETCH, HEAD_DIM);
            block.v.prefetch::<L>(t + PREFETCH, VECTORS * L::LANES);
            kv = token::<L, false>(block, t, &mut state, kv);
        }
        token::<L, true>(block, last, &mut state, kv);
    }
}

/// Takes the state through token `t`, whose partial sums of `k . S` are `kv`, and writes its y. Returns those of the next
/// token; the last one instead writes the state back.
///
/// # Safety
/// As [`walk`]; `LAST` tells whether there is no next token.
#[inline(always)]
unsafe fn token<L: Lanes, const LAST: bool>(
    block: &Block<'_>,
    t: usize,
    state: &mut Scratch<L>,
    kv: Partials<L>,
) -> Partials<L> {
    // SAFETY: the caller's promise; the token and the rows are within the buffers.
    unsafe {
        let zero = L::splat(0.0);
        let decay = exp(*block.gate.get_unchecked(t * block.value_heads));
        let g = L::splat(decay);
        let minus_g = L::splat(-decay);
        let beta = L::splat(*block.beta.get_unchecked(t * block.value_heads));
        let mut delta = [zero; VECTORS];
        for i in 0..VECTORS {
            let v = L::load(block.v.at(t).add(i * L::LANES));
            delta[i] = minus_g.fma(sum(&kv, i), v).mul(beta);
        }

        let (key, query) = (block.k.at(t), block.q.at(t));
        let next_key = if LAST { key } else { block.k.at(t + 1) };
        let mut o = [[zero; VECTORS]; ROW_GROUPS];
        let mut next = [[zero; VECTORS]; ROW_GROUPS];
        for first in (0..ROW_GROUPS).step_by(AT_ONCE) {
            for r in 0..ROWS {
                for rg in first..first + AT_ONCE {
                    let row = rg * ROWS + r;
                    let k = L::splat(*key.add(row));
                    let q = L::splat(*query.add(row));
                    let n = L::splat(*next_key.add(row));
                    for i in 0..VECTORS {
                        let s = g.fma(state.0[row][i], k.mul(delta[i]));
                        o[rg][i] = s.fma(q, o[rg][i]);
                        if LAST {
                            s.canonical().store(block.state.add(row * block.state_row + i * L::LANES));
                        } else {
                            state.0[row][i] = s;
                            next[rg][i] = s.fma(n, next[rg][i]);
                        }
                    }
                }
            }
        }

        let scale = L::splat(RSQRT_128);
        for i in 0..VECTORS {
            let y = sum(&o, i).mul(scale).canonical();
            y.store(block.y.add(t * block.value_heads * HEAD_DIM + i * L::LANES));
        }
        next
    }
}

/// `Sum4` of vector `i` over the row groups.
///
/// # Safety
/// As [`walk`].
#[inline(always)]
unsafe fn sum<L: Lanes>(partials: &Partials<L>, i: usize) -> L {
    let [a, b, c, d] = *partials;
    // SAFETY: the caller's promise.
    unsafe { a[i].add(b[i]).add(c[i]).add(d[i]) }
}
