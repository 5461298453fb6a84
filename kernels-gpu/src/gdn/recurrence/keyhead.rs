//! `keyhead`: one block walks all value heads that share a key head, 32 columns of each. A thread holds one column of one
//! row group of every head, so one k load and one q load feed them all; tokens are staged in blocks of 8 by `cp.async`, double
//! buffered. While a row is updated for token t it is also multiplied by k of token t+1, so the partial kv sums of t+1 and the
//! partial o sums of t meet in one exchange: one barrier a token. The last token has no such lookahead.
//!
//! Race argument, with B(t) the token barrier.
//! * `partials[t & 1]` (kv of token t, o of token t-1) is written between B(t-1) and B(t) and read between B(t) and B(t+1);
//!   its next write is behind B(t+1).
//! * Staged block b lies in buffer b & 1. Its copies start behind B(8b-8), when every thread has done its last read of
//!   block b-2 (token 8b-9, whose update lies before B(8b-8)). Each thread waits for its own copies before B(8b-1), so behind
//!   B(8b-1) all of the block is there: its first reads are the lookahead k(8b) of token 8b-1 and the inputs of token 8b.
//!   Block 0 has a barrier of its own.
//! * Slots of tokens that do not exist are neither copied nor read.
//!
//! State and y cells belong to one thread each.

use super::{COLUMN_BLOCKS, COLUMNS, Place, ROW_GROUPS, ROWS, delta, head_in, sum_row_groups};
use crate::gdn::HEAD_DIM;
use crate::math::{RSQRT_128, exp, fma};
use crate::mutation::{self, Mutation};
use crate::params::RecurrenceArgs;
use async_copy::SharedAddress;
use cuda_std::prelude::*;

/// Tokens of a staged block.
const TOKENS: usize = 8;
/// Largest number of value heads a key head: one warp's lanes hold the decays of a staged block.
pub const MAX_VPK: usize = 4;

/// Where a staged token's inputs lie, in f32 words: q, k, 32 columns of v for each head, gates, betas.
const Q: usize = 0;
const K: usize = HEAD_DIM;
const V: usize = 2 * HEAD_DIM;
const fn gate_at(vpk: usize) -> usize {
    V + vpk * COLUMNS
}
const fn beta_at(vpk: usize) -> usize {
    gate_at(vpk) + vpk
}
const fn token_words(vpk: usize) -> usize {
    (beta_at(vpk) + vpk).next_multiple_of(4)
}

const PARTIALS: usize = ROW_GROUPS * COLUMNS;

/// A block's work: `VPK` value heads of one key head, 32 columns of each.
struct Unit<'a, const VPK: usize> {
    args: &'a RecurrenceArgs,
    place: Place,
    key_head: usize,
    column_block: usize,
    tokens: usize,
    staged: Shared<f32>,
    /// The y cell of token 0 that this thread writes.
    y: GlobalMut<f32>,
}

impl<const VPK: usize> Unit<'_, VPK> {
    #[inline(always)]
    fn head(&self, slot: usize) -> usize {
        head_in(self.args, self.key_head, slot)
    }

    /// The staged inputs of token `t`.
    #[inline(always)]
    fn token(&self, t: usize) -> Shared<f32> {
        let slots = if mutation::is(Mutation::KeyheadOneBuffer) { TOKENS } else { 2 * TOKENS };
        self.staged.at(t % slots * token_words(VPK))
    }

    /// Starts the copies of the staged block whose first token is `first`.
    #[inline(always)]
    unsafe fn stage(&self, first: usize) {
        let args = self.args;
        let thread = self.place.row_group * COLUMNS + self.place.lane;
        let target = SharedAddress::of(self.token(first));

        // q and k, 64 pieces of 16 bytes a token: half the block copies q, half k, of two tokens at a time.
        let (piece, is_key, parity) = (thread % 32, thread / 32 % 2 == 1, thread / 64);
        let (rows, stride) = if is_key { (args.k, args.k_stride) } else { (args.q, args.q_stride) };
        let words = if is_key { K } else { Q } + 4 * piece;
        for pair in 0..TOKENS / 2 {
            let token = 2 * pair + parity;
            if first + token < self.tokens {
                let source =
                    rows.at((first + token) * stride as usize + self.key_head * HEAD_DIM + 4 * piece);
                // SAFETY: the token exists; the race argument above.
                unsafe { async_copy::copy::<16>(target.add_words(token * token_words(VPK) + words), source) };
            }
        }

        // 16 threads a token for the rest: v, 8 pieces of 16 bytes a head, then one word each of gates and betas.
        let (token, piece) = (thread / 16, thread % 16);
        let t = first + token;
        if t >= self.tokens + usize::from(mutation::is(Mutation::KeyheadStagesPastTheEnd)) {
            return;
        }
        let target = target.add_words(token * token_words(VPK));
        for half in 0..VPK.div_ceil(2) {
            let piece = 16 * half + piece;
            if piece < 8 * VPK {
                let column = self.head(piece / 8) * HEAD_DIM + self.column_block * COLUMNS + 4 * (piece % 8);
                // SAFETY: as above.
                unsafe {
                    async_copy::copy::<16>(
                        target.add_words(V + 4 * piece),
                        args.v.at(t * args.v_stride as usize + column),
                    )
                };
            }
        }
        if piece < 2 * VPK {
            let (source, slot) = if piece < VPK { (args.gate, piece) } else { (args.beta, piece - VPK) };
            // SAFETY: as above.
            unsafe {
                async_copy::copy::<4>(
                    target.add_words(gate_at(VPK) + piece),
                    source.at(t * args.value_heads as usize + self.head(slot)),
                )
            };
        }
    }

    /// This lane's decay of the staged block whose first token is `first`: lane `token * VPK + slot`.
    #[inline(always)]
    unsafe fn decay(&self, first: usize) -> f32 {
        let (token, slot) = (self.place.lane / VPK, self.place.lane % VPK);
        if token < TOKENS && first + token < self.tokens {
            // SAFETY: the token is staged.
            exp(unsafe { self.token(first + token).read(gate_at(VPK) + slot) })
        } else {
            0.0
        }
    }

    /// Writes y of token `t` from its partial sums; row group `i` does head `i`.
    #[inline(always)]
    unsafe fn store_y(&self, t: usize, o_partials: Shared<f32>) {
        let slot = self.place.row_group;
        if slot < VPK {
            // SAFETY: the sums are behind a barrier; the cell is this thread's.
            unsafe {
                let y =
                    sum_row_groups::<COLUMNS>(o_partials.at(slot * PARTIALS), self.place.lane) * RSQRT_128;
                self.y.write(t * self.args.value_heads as usize * HEAD_DIM, y);
            }
        }
    }
}

#[inline(always)]
unsafe fn keyhead<const VPK: usize>(args: RecurrenceArgs, staged: Shared<f32>, partials: Shared<f32>) {
    let block = thread::block_idx_x() as usize;
    let (key_head, column_block) = (block / COLUMN_BLOCKS, block % COLUMN_BLOCKS);
    let place = Place::new(column_block);
    let tokens = args.tokens as usize;
    if tokens == 0 {
        return;
    }
    let y =
        args.y.at((key_head * args.head_per_key as usize + place.row_group * args.head_per_slot as usize)
            * HEAD_DIM
            + place.column);
    let unit = Unit::<VPK> { args: &args, place, key_head, column_block, tokens, staged, y };
    let own = place.row_group * COLUMNS + place.lane;

    // SAFETY: the caller's promise about the buffers; the race argument above for the shared arrays.
    unsafe {
        unit.stage(0);
        async_copy::commit_group();
        let mut state = [[0.0; ROWS]; VPK];
        for i in 0..VPK {
            state[i] = place.load_state(&args, unit.head(i));
        }
        async_copy::wait_group::<0>();
        thread::sync_threads();

        let mut kv = [0.0; VPK];
        let mut o = [0.0; VPK];
        for r4 in 0..ROWS / 4 {
            let F32x4(k4) = unit.token(0).read_as(K + place.row_group * ROWS + 4 * r4);
            for u in 0..4 {
                for i in 0..VPK {
                    kv[i] = fma(state[i][4 * r4 + u], k4[u], kv[i]);
                }
            }
        }

        let mut decays = 0.0;
        let mut t = 0;
        loop {
            let token = unit.token(t);
            let in_block = t % TOKENS;
            if in_block == 0 {
                decays = unit.decay(t);
            }
            let mut g = [0.0; VPK];
            let mut v = [0.0; VPK];
            let mut beta = [0.0; VPK];
            for i in 0..VPK {
                let lane = in_block * VPK + i + usize::from(mutation::is(Mutation::KeyheadTakesTheNextDecay));
                g[i] = warp::warp_shuffle_idx(warp::FULL, decays, lane as u32, 32);
                v[i] = token.read(V + i * COLUMNS + place.lane);
                beta[i] = token.read(beta_at(VPK) + i);
            }

            let exchange = partials.at((t & 1) * 2 * VPK * PARTIALS);
            let (kv_partials, o_partials) = (exchange, exchange.at(VPK * PARTIALS));
            for i in 0..VPK {
                kv_partials.write(i * PARTIALS + own, kv[i]);
                o_partials.write(i * PARTIALS + own, o[i]);
            }
            if in_block == TOKENS - 1 && !mutation::is(Mutation::KeyheadSkipsStageWait) {
                async_copy::wait_group::<0>();
            }
            if !mutation::is(Mutation::KeyheadDropsTokenBarrier) {
                thread::sync_threads(); // B(t)
            }
            if in_block == 0 {
                unit.stage(t + TOKENS);
                async_copy::commit_group();
            }

            let mut d = [0.0; VPK];
            for i in 0..VPK {
                d[i] = delta(
                    g[i],
                    sum_row_groups::<COLUMNS>(kv_partials.at(i * PARTIALS), place.lane),
                    v[i],
                    beta[i],
                );
                kv[i] = 0.0;
                o[i] = 0.0;
            }
            if t > 0 {
                unit.store_y(t - 1, o_partials);
            }

            let query = token.at(Q + place.row_group * ROWS);
            let key = token.at(K + place.row_group * ROWS);
            if t + 1 == tokens {
                for r4 in 0..ROWS / 4 {
                    let F32x4(q4) = query.read_as(4 * r4);
                    let F32x4(k4) = key.read_as(4 * r4);
                    for u in 0..4 {
                        let r = 4 * r4 + u;
                        for i in 0..VPK {
                            state[i][r] = fma(g[i], state[i][r], k4[u] * d[i]);
                            o[i] = fma(state[i][r], q4[u], o[i]);
                        }
                    }
                }
                break;
            }
            let next_key = unit.token(t + 1).at(K + place.row_group * ROWS);
            for r4 in 0..ROWS / 4 {
                let F32x4(q4) = query.read_as(4 * r4);
                let F32x4(k4) = key.read_as(4 * r4);
                let F32x4(n4) = next_key.read_as(4 * r4);
                for u in 0..4 {
                    let r = 4 * r4 + u;
                    for i in 0..VPK {
                        state[i][r] = fma(g[i], state[i][r], k4[u] * d[i]);
                        o[i] = fma(state[i][r], q4[u], o[i]);
                        kv[i] = fma(state[i][r], n4[u], kv[i]);
                    }
                }
            }
            t += 1;
        }

        let o_partials = partials.at((tokens & 1) * 2 * VPK * PARTIALS + VPK * PARTIALS);
        for i in 0..VPK {
            o_partials.write(i * PARTIALS + own, o[i]);
        }
        thread::sync_threads();
        unit.store_y(tokens - 1, o_partials);
        for i in 0..VPK {
            place.store_state(&args, unit.head(i), &state[i]);
        }
    }
}

macro_rules! entry {
    ($name:ident, $vpk:literal) => {
        #[doc = concat!("`keyhead` for ", $vpk, " value heads a key head. Grid: key heads * 4. Block: (32, 4).")]
        ///
        /// # Safety
        /// `args` describes live buffers that do not overlap, the bases of q, k and v and their strides are multiples of
        /// 16 bytes, and the grid and block are as said.
        #[kernel(threads = 128, min_blocks = 2, barriers = 3)]
        pub unsafe fn $name(args: RecurrenceArgs) {
            let staged = shared_array![f32; 2 * TOKENS * token_words($vpk)];
            let partials = shared_array![f32; 2 * 2 * $vpk * PARTIALS];
            // SAFETY: the caller's promise.
            unsafe { keyhead::<$vpk>(args, staged, partials) }
        }
    };
}

entry!(keyhead_vpk1, 1);
entry!(keyhead_vpk2, 2);
entry!(keyhead_vpk3, 3);
entry!(keyhead_vpk4, 4);

const _: () = assert!(TOKENS * MAX_VPK <= 32, "a warp holds one decay a lane");
