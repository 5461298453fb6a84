//! `scan`: no block barrier a token. A warp owns 16 columns of one value head; a lane holds 32 rows of two neighbouring columns (lane =
//! row group * 8 + column pair), so that one load of q and k feeds both, and the sums over row groups cross lanes by shuffles.
//! While a row is updated for token t it is also multiplied by k of token t+1: the kv sums of t+1 and the o sums of t are
//! exchanged together. The last token has no such lookahead.
//!
//! Tokens are staged in blocks of 8 by `cp.async`, in three buffers. k of the current token stays in registers. With one warp a
//! scheduler nothing hides a latency but the warp's own other work, so what happens once a staged block (the barrier, the next
//! copies, the exponentials of the next decays) stands in the straight line of its last token.
//!
//! Race argument. One barrier a staged block: B(b), in block b before its last token.
//! * Block b+1 is waited for by each thread before B(b), so behind B(b) all of it is there; its first reads are its gates and betas,
//!   the lookahead of block b's last token, and v of its first, which is fetched a token ahead. The copies of blocks 0 and 1 start at once, and
//!   block 0 has a barrier of its own.
//! * Block b+2 is copied behind B(b) into the buffer of block b-1, whose last reads lie before B(b).
//! * `scalars` of a warp is written and read by that warp only. Behind the write of block b's slot stands a warp barrier; its
//!   reads end before the barrier behind the write of block b+1's, and the slot is written next behind that one.
//! * Slots of tokens that do not exist are neither copied nor read.
//!
//! State and y cells belong to one lane each.

use super::{ROW_GROUPS, ROWS, delta, heads_of, sum_in_order};
use crate::gdn::HEAD_DIM;
use crate::math::{RSQRT_128, exp, fma};
use crate::mutation::{self, Mutation};
use crate::params::RecurrenceArgs;
use async_copy::SharedAddress;
use cuda_std::prelude::*;

/// Warps of a block.
pub const WARPS: usize = 4;
/// Column pairs of a warp.
const PAIRS: usize = 32 / ROW_GROUPS;
/// Columns of a warp.
const WARP_COLUMNS: usize = 2 * PAIRS;
/// Columns of a block.
const BLOCK_COLUMNS: usize = WARPS * WARP_COLUMNS;
/// Blocks of a value head.
pub const BLOCKS_PER_HEAD: usize = HEAD_DIM / BLOCK_COLUMNS;
/// Threads of a block.
pub const THREADS: usize = 32 * WARPS;

/// Tokens of a staged block.
const TOKENS: usize = 8;
/// Staged blocks in flight.
const BUFFERS: usize = 3;

/// Where a staged token's inputs lie, in f32 words. A row group of q or k is padded by 4 words, so that the four row groups of a
/// warp read different banks.
const GROUP: usize = ROWS + 4;
const Q: usize = 0;
const K: usize = ROW_GROUPS * GROUP;
const V: usize = 2 * ROW_GROUPS * GROUP;
/// Gate and beta.
const SCALARS: usize = V + BLOCK_COLUMNS;
const TOKEN: usize = (SCALARS + 2).next_multiple_of(4);
const BUFFER: usize = TOKENS * TOKEN;

/// What a thread copies of each staged block: q or k of every other token, v of one, and for 16 threads gate or beta of one.
struct Stager {
    /// The thread's piece of q or k in the next block to stage; elements from token pair to token pair.
    rows: Global<f32>,
    pair_step: usize,
    /// Which token of a pair.
    parity: usize,
    rows_to: usize,
    v: Global<f32>,
    v_step: usize,
    v_token: usize,
    v_to: usize,
    scalar: Global<f32>,
    scalar_step: usize,
    /// `TOKENS`, which no block has, for threads that copy no scalar.
    scalar_token: usize,
    scalar_to: usize,
}

impl Stager {
    #[inline(always)]
    fn new(args: &RecurrenceArgs, key_head: usize, head: usize, first_column: usize) -> Self {
        let thread = thread::thread_idx_x() as usize;
        // q and k are 64 pieces of 16 bytes a token: half the block copies q, half k, of two tokens at a time.
        let (piece, is_key, parity) = (thread % 32, thread / 32 % 2 == 1, thread / 64);
        let (rows, stride) = if is_key { (args.k, args.k_stride) } else { (args.q, args.q_stride) };
        let stride = stride as usize;
        // v is 16 pieces of 16 bytes a token: 16 threads a token.
        let (v_token, v_piece) = (thread / 16, thread % 16);
        let v_stride = args.v_stride as usize;
        let scalars = if thread.is_multiple_of(2) { args.gate } else { args.beta };
        let value_heads = args.value_heads as usize;
        Self {
            rows: rows.at(parity * stride + key_head * HEAD_DIM + 4 * piece),
            pair_step: 2 * stride,
            parity,
            rows_to: parity * TOKEN + if is_key { K } else { Q } + piece / 8 * GROUP + 4 * (piece % 8),
            v: args.v.at(v_token * v_stride + head * HEAD_DIM + first_column + 4 * v_piece),
            v_step: TOKENS * v_stride,
            v_token,
            v_to: v_token * TOKEN + V + 4 * v_piece,
            scalar: scalars.at(thread / 2 * value_heads + head),
            scalar_step: TOKENS * value_heads,
            scalar_token: (thread / 2).min(TOKENS),
            scalar_to: thread / 2 * TOKEN + SCALARS + thread % 2,
        }
    }

    /// Starts the copies of the next block, of which `tokens` exist.
    #[inline(always)]
    unsafe fn stage(&mut self, tokens: usize, buffer: Shared<f32>) {
        let target = SharedAddress::of(buffer);
        let rows_to = target.add_words(self.rows_to);
        for pair in 0..TOKENS / 2 {
            if 2 * pair + self.parity < tokens {
                // SAFETY: the token exists; the race argument above.
                unsafe { async_copy::copy::<16>(rows_to.add_words(2 * pair * TOKEN), self.rows) };
            }
            self.rows = self.rows.at(self.pair_step);
        }
        if self.v_token < tokens + usize::from(mutation::is(Mutation::ScanStagesPastTheEnd)) {
            // SAFETY: as above.
            unsafe { async_copy::copy::<16>(target.add_words(self.v_to), self.v) };
        }
        self.v = self.v.at(self.v_step);
        if self.scalar_token < tokens {
            // SAFETY: as above.
            unsafe { async_copy::copy::<4>(target.add_words(self.scalar_to), self.scalar) };
        }
        self.scalar = self.scalar.at(self.scalar_step);
        async_copy::commit_group();
    }
}

/// A pair of columns.
type Pair = [f32; 2];

/// What a token's update needs beside q and k: the decay, beta, and v of the lane's columns.
#[derive(Clone, Copy)]
struct Scalars {
    g: f32,
    beta: f32,
    v: Pair,
}

/// A lane's share, and what it carries from token to token.
struct Lane {
    row_group: usize,
    pair: usize,
    state: [Pair; ROWS],
    /// k of the current token.
    key: [f32; ROWS],
    /// Partial kv sums of the current token, partial o sums of the one before.
    kv: Pair,
    o: Pair,
    scalars: Scalars,
}

impl Lane {
    /// The corrections of the current token.
    #[inline(always)]
    fn delta(&self) -> Pair {
        let Scalars { g, beta, v } = self.scalars;
        let mut d = [0.0; 2];
        let pair = self.pair ^ usize::from(mutation::is(Mutation::ScanTakesTheNextPair));
        for n in 0..2 {
            let from = |group: usize| {
                warp::warp_shuffle_idx(warp::FULL, self.kv[n], (group * PAIRS + pair) as u32, 32)
            };
            d[n] = delta(g, sum_in_order([from(0), from(1), from(2), from(3)]), v[n], beta);
        }
        d
    }

    /// y of the token before: of the first column in row group 0, of the second in row group 1. Neighbouring row groups swap a
    /// column, then row groups 2 and 3 send both of their parts.
    #[inline(always)]
    fn y(&self) -> f32 {
        let odd = self.row_group % 2 == 1;
        let (own, other) = if odd { (self.o[1], self.o[0]) } else { (self.o[0], self.o[1]) };
        let swapped = warp::warp_shuffle_xor(warp::FULL, other, PAIRS as u32);
        // Of row groups 2 and 3, in this order, whichever of the two sends.
        let (two, three) = if odd { (swapped, own) } else { (own, swapped) };
        let two = warp::warp_shuffle_down(warp::FULL, two, 2 * PAIRS as u32);
        let three = warp::warp_shuffle_down(warp::FULL, three, 2 * PAIRS as u32);
        ((own + swapped) + two + three) * RSQRT_128
    }

    /// Updates the state by the current token and sums what it needs, and what the next token needs if there is one.
    #[inline(always)]
    unsafe fn update(&mut self, d: Pair, token: Shared<f32>, next: Option<Shared<f32>>) {
        let query = token.at(Q + self.row_group * GROUP);
        let g = self.scalars.g;
        self.kv = [0.0; 2];
        self.o = [0.0; 2];
        for r4 in 0..ROWS / 4 {
            // SAFETY: the token is staged.
            let F32x4(q4) = unsafe { query.read_as(4 * r4) };
            let k4 = match next {
                // SAFETY: so is the next one.
                Some(next) => unsafe { next.read_as::<F32x4>(K + self.row_group * GROUP + 4 * r4).0 },
                None => [0.0; 4],
            };
            for u in 0..4 {
                let r = 4 * r4 + u;
                for n in 0..2 {
                    self.state[r][n] = fma(g, self.state[r][n], self.key[r] * d[n]);
                    self.o[n] = fma(self.state[r][n], q4[u], self.o[n]);
                    if next.is_some() {
                        self.kv[n] = fma(self.state[r][n], k4[u], self.kv[n]);
                    }
                }
                self.key[r] = k4[u];
            }
        }
    }
}

/// Grid: value heads * 2. Block: 128.
///
/// # Safety
/// `args` describes live buffers that do not overlap, the bases of q, k and v and their strides are multiples of 16 bytes, and the
/// grid and block are as said.
#[kernel(threads = 128, barriers = 2)]
pub unsafe fn scan(args: RecurrenceArgs) {
    let staged = shared_array![f32; BUFFERS * BUFFER];
    let scalars = shared_array![f32; 2 * WARPS * TOKENS * 2];
    let block = thread::block_idx_x() as usize;
    let (unit, part) = (block / BLOCKS_PER_HEAD, block % BLOCKS_PER_HEAD);
    let (key_head, head) = heads_of(&args, unit);
    let tokens = args.tokens as usize;
    if tokens == 0 {
        return;
    }
    let thread = thread::thread_idx_x() as usize;
    let (warp, lane_id) = (thread / 32, thread % 32);
    let (row_group, pair) = (lane_id / PAIRS, lane_id % PAIRS);
    let block_column = warp * WARP_COLUMNS + 2 * pair;
    let column = part * BLOCK_COLUMNS + block_column;
    let state_at = row_group * ROWS * args.state_row as usize + head * args.state_head as usize + column;
    let mut stager = Stager::new(&args, key_head, head, part * BLOCK_COLUMNS);
    let existing = |first: usize| tokens.saturating_sub(first).min(TOKENS);

    // SAFETY: the caller's promise about the buffers; the race argument above for the shared arrays.
    unsafe {
        stager.stage(existing(0), staged);
        stager.stage(existing(TOKENS), staged.at(BUFFER));

        let first = args.state.at(state_at);
        let mut state = [[0.0; 2]; ROWS];
        for r in 0..ROWS {
            for n in 0..2 {
                state[r][n] = first.read(r * args.state_row as usize + n);
            }
        }

        let slots = scalars.at(warp * TOKENS * 2);
        let scalars_of = |block: usize| slots.at(block % 2 * WARPS * TOKENS * 2);
        // Makes the decays and betas of a block with one token or more.
        let publish = |block: usize, buffer: Shared<f32>| {
            let token = (lane_id % TOKENS).min(existing(block * TOKENS) - 1);
            let F32x2([gate, beta]) = buffer.read_as(token * TOKEN + SCALARS);
            let scalars = F32x2([exp(gate), beta]);
            if lane_id < TOKENS {
                scalars_of(block).write_as(2 * lane_id, scalars);
            }
        };
        let fetch = |scalars: Shared<f32>, token: Shared<f32>| {
            let F32x2([g, beta]) = scalars.read_as(0);
            let F32x2(v) = token.read_as(V + block_column);
            Scalars { g, beta, v }
        };
        async_copy::wait_group::<1>();
        thread::sync_threads();
        publish(0, staged);
        warp::sync_warp(warp::FULL);
        let mut key = [0.0; ROWS];
        let mut kv = [0.0; 2];
        for r4 in 0..ROWS / 4 {
            let F32x4(k4) = staged.read_as(K + row_group * GROUP + 4 * r4);
            for u in 0..4 {
                let r = 4 * r4 + u;
                key[r] = k4[u];
                for n in 0..2 {
                    kv[n] = fma(state[r][n], k4[u], kv[n]);
                }
            }
        }
        let at_start = fetch(scalars_of(0), staged);
        let mut lane = Lane { row_group, pair, state, key, kv, o: [0.0; 2], scalars: at_start };

        // y of token t-1 is there at token t; row groups 0 and 1 store a column each.
        let y_row = args.value_heads as usize * HEAD_DIM;
        let mut y_at = args.y.at((head * HEAD_DIM + column + row_group % 2).wrapping_sub(y_row));
        let mut stores = false;
        let mut store = |y: f32| {
            // Computed by all lanes, so that the store is a predicate and not a branch that the warp must come back from.
            let y = hint::opaque(y);
            if stores {
                y_at.write(0, y);
            }
            stores = row_group < 2;
            y_at = y_at.at(y_row);
        };

        let (mut buffer, mut next_buffer, mut spare) = (staged, staged.at(BUFFER), staged.at(2 * BUFFER));
        let mut block = 0;
        // Blocks whose tokens all have a next one.
        while (block + 1) * TOKENS < tokens {
            let mut token = buffer;
            let mut scalars = scalars_of(block);
            // Two tokens at a time: more no longer fit the instruction cache.
            let mut pairs = hint::opaque(TOKENS as u32 / 2 - 1);
            while pairs > 0 {
                for _ in 0..2 {
                    let d = lane.delta();
                    store(lane.y());
                    let next = token.at(TOKEN);
                    scalars = scalars.at(2);
                    let fetched = fetch(scalars, next);
                    lane.update(d, token, Some(next));
                    lane.scalars = fetched;
                    token = next;
                }
                pairs -= 1;
            }
            let d = lane.delta();
            store(lane.y());
            let last = token.at(TOKEN);
            let fetched = fetch(scalars.at(2), last);
            lane.update(d, token, Some(last));
            lane.scalars = fetched;

            if !mutation::is(Mutation::ScanSkipsStageWait) {
                async_copy::wait_group::<0>();
            }
            thread::sync_threads();
            let free = if mutation::is(Mutation::ScanStagesOverTheNextBlock) { next_buffer } else { spare };
            stager.stage(existing((block + 2) * TOKENS), free);
            let d = lane.delta();
            store(lane.y());
            publish(block + 1, next_buffer);
            lane.update(d, last, Some(next_buffer));
            if !mutation::is(Mutation::ScanDropsWarpBarrier) {
                warp::sync_warp(warp::FULL);
            }
            lane.scalars = fetch(scalars_of(block + 1), next_buffer);

            (buffer, next_buffer, spare) = (next_buffer, spare, buffer);
            block += 1;
        }
        // The rest lies in one staged block.
        let mut token = buffer;
        let mut scalars = scalars_of(block);
        let mut t = block * TOKENS;
        while t + 1 < tokens {
            let d = lane.delta();
            store(lane.y());
            let next = token.at(TOKEN);
            scalars = scalars.at(2);
            let fetched = fetch(scalars, next);
            lane.update(d, token, Some(next));
            lane.scalars = fetched;
            token = next;
            t += 1;
        }
        let d = lane.delta();
        store(lane.y());
        lane.update(d, token, None);
        store(lane.y());

        let row = hint::opaque(args.state_row) as usize;
        for r in 0..ROWS {
            for n in 0..2 {
                first.write(r * row + n, lane.state[r][n]);
            }
        }
    }
}

const _: () = assert!(
    THREADS == 16 * TOKENS && BLOCK_COLUMNS == 64,
    "16 threads stage v of a token, and a block has 8"
);
