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
//! * Block b+1 is waited for by each thread before B(b), so behind B(b) all of it is there; its first reads are the lookahead of
//!   block b's last token and v of its first, which is fetched a token ahead. The copies of blocks 0 and 1 start at once, and
//!   block 0 has a barrier of its own.
//! * Block b+2 is copied behind B(b) into the buffer of block b-1, whose last reads lie before B(b).
//! * `scalars` of a warp is written and read by that warp only, with a warp barrier behind the write; the next write of a
//!   slot is two such barriers later.
//! * Slots of tokens that do not exist are neither copied nor read.
//!
//! State and y cells belong to one lane each.

use super::{ROW_GROUPS, ROWS, delta};
use crate::gdn::HEAD_DIM;
use crate::math::{RSQRT_128, exp, fma, sum4};
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
const BLOCK: u32 = TOKENS as u32;
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

/// What a thread copies of each staged block. q and k are 64 pieces of 16 bytes a token: half the block copies q, half k, of two
/// tokens at a time; v is 16 pieces a token; 16 threads copy a gate or a beta.
struct Stager<'a> {
    args: &'a RecurrenceArgs,
    head: usize,
    tokens: u32,
    thread: u32,
    /// The thread's pieces of the next block to stage.
    rows: Global<f32>,
    v: Global<f32>,
}

impl<'a> Stager<'a> {
    #[inline(always)]
    fn new(
        args: &'a RecurrenceArgs,
        key_head: usize,
        head: usize,
        first_column: usize,
        thread: usize,
    ) -> Self {
        let (piece, parity) = (thread % 32, thread / 64);
        let (rows, stride) = Self::rows(args, thread);
        let (v_token, v_piece) = (thread / 16, thread % 16);
        let v_at = v_token * args.v_stride as usize + head * HEAD_DIM + first_column + 4 * v_piece;
        Self {
            args,
            head,
            tokens: args.tokens as u32,
            thread: thread as u32,
            rows: rows.at(parity * stride + key_head * HEAD_DIM + 4 * piece),
            v: args.v.at(v_at),
        }
    }

    /// q or k, whichever the thread copies, and its token stride.
    #[inline(always)]
    fn rows(args: &RecurrenceArgs, thread: usize) -> (Global<f32>, usize) {
        let is_key = thread / 32 % 2 == 1;
        if is_key { (args.k, args.k_stride as usize) } else { (args.q, args.q_stride as usize) }
    }

    /// Tokens of the staged block whose first token is `first`.
    #[inline(always)]
    fn tokens_from(&self, first: u32) -> usize {
        self.tokens.saturating_sub(first).min(BLOCK) as usize
    }

    /// Starts the copies of the next block, whose first token is `first`.
    #[inline(always)]
    unsafe fn stage(&mut self, first: u32, buffer: Shared<f32>) {
        let tokens = self.tokens_from(first);
        let target = SharedAddress::of(buffer);
        // Where the pieces go is worked out anew each time: kept, it would take registers that the state needs.
        let thread = hint::opaque(self.thread) as usize;

        let (piece, is_key, parity) = (thread % 32, thread / 32 % 2, thread / 64);
        let to = target.add_words(parity * TOKEN + is_key * (K - Q) + piece / 8 * GROUP + 4 * (piece % 8));
        let (_, stride) = Self::rows(self.args, thread);
        for pair in 0..TOKENS / 2 {
            if 2 * pair + parity < tokens {
                // SAFETY: the token exists; the race argument above.
                unsafe { async_copy::copy::<16>(to.add_words(2 * pair * TOKEN), self.rows) };
            }
            self.rows = self.rows.at(2 * stride);
        }
        let (token, piece) = (thread / 16, thread % 16);
        if token < tokens {
            // SAFETY: as above.
            unsafe { async_copy::copy::<16>(target.add_words(token * TOKEN + V + 4 * piece), self.v) };
        }
        self.v = self.v.at(TOKENS * self.args.v_stride as usize);

        let (token, is_beta) = (thread / 2, thread % 2);
        if token < tokens {
            let scalars = if is_beta == 1 { self.args.beta } else { self.args.gate };
            let from = scalars.at((first as usize + token) * self.args.value_heads as usize + self.head);
            // SAFETY: as above.
            unsafe { async_copy::copy::<4>(target.add_words(token * TOKEN + SCALARS + is_beta), from) };
        }
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
    pair: u32,
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
        for n in 0..2 {
            let parts = [0, 1, 2, 3].map(|group| {
                warp::warp_shuffle_idx(warp::FULL, self.kv[n], group * PAIRS as u32 + self.pair, 32)
            });
            d[n] = delta(g, sum4(parts), v[n], beta);
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
#[kernel(threads = 128, min_blocks = 3, barriers = 2)]
pub unsafe fn scan(args: RecurrenceArgs) {
    let staged = shared_array![f32; BUFFERS * BUFFER];
    let scalars = shared_array![f32; 2 * WARPS * TOKENS * 2];
    let block = thread::block_idx_x() as usize;
    let (index, part) = (block / BLOCKS_PER_HEAD, block % BLOCKS_PER_HEAD);
    let (key_head, slot) = (index % args.key_heads as usize, index / args.key_heads as usize);
    let head = key_head * args.head_per_key as usize + slot * args.head_per_slot as usize;
    // A call has fewer than 2^31 tokens.
    let tokens = args.tokens as u32;
    if tokens == 0 {
        return;
    }
    // Kept in a register: read anew, it would be waited for.
    let thread = hint::opaque(thread::thread_idx_x()) as usize;
    let (warp, lane_id) = (thread / 32, thread % 32);
    let (row_group, pair) = (lane_id / PAIRS, lane_id % PAIRS);
    let block_column = warp * WARP_COLUMNS + 2 * pair;
    let column = part * BLOCK_COLUMNS + block_column;
    // The first state cell of a thread.
    let state_of = |thread: usize| {
        let row_group = thread % 32 / PAIRS;
        let column = part * BLOCK_COLUMNS + thread / 32 * WARP_COLUMNS + 2 * (thread % PAIRS);
        args.state.at(row_group * ROWS * args.state_row as usize + head * args.state_head as usize + column)
    };
    let mut stager = Stager::new(&args, key_head, head, part * BLOCK_COLUMNS, thread);

    // SAFETY: the caller's promise about the buffers; the race argument above for the shared arrays.
    unsafe {
        stager.stage(0, staged);
        stager.stage(BLOCK, staged.at(BUFFER));

        let first = state_of(thread);
        let mut state = [[0.0; 2]; ROWS];
        for r in 0..ROWS {
            for n in 0..2 {
                state[r][n] = first.read(r * args.state_row as usize + n);
            }
        }

        let slots = scalars.at(warp * TOKENS * 2);
        let scalars_of = |block: u32| slots.at((block % 2) as usize * WARPS * TOKENS * 2);
        // Makes the decays and betas of a block with one token or more.
        let publish = |block: u32, buffer: Shared<f32>| {
            let token = (lane_id % TOKENS).min(tokens.saturating_sub(block * BLOCK).min(BLOCK) as usize - 1);
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
        let mut lane = Lane { row_group, pair: pair as u32, state, key, kv, o: [0.0; 2], scalars: at_start };

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
        while (block + 1) * BLOCK < tokens {
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
                    lane.update(d, token, Some(next));
                    lane.scalars = fetch(scalars, next);
                    token = next;
                }
                pairs -= 1;
            }
            let d = lane.delta();
            store(lane.y());
            let last = token.at(TOKEN);
            lane.update(d, token, Some(last));
            lane.scalars = fetch(scalars.at(2), last);

            async_copy::wait_group::<0>();
            thread::sync_threads();
            stager.stage((block + 2) * BLOCK, spare);
            let d = lane.delta();
            store(lane.y());
            publish(block + 1, next_buffer);
            lane.update(d, last, Some(next_buffer));
            warp::sync_warp(warp::FULL);
            lane.scalars = fetch(scalars_of(block + 1), next_buffer);

            (buffer, next_buffer, spare) = (next_buffer, spare, buffer);
            block += 1;
        }
        // The rest lies in one staged block.
        let mut token = buffer;
        let mut scalars = scalars_of(block);
        let mut t = block * BLOCK;
        while t + 1 < tokens {
            let d = lane.delta();
            store(lane.y());
            let next = token.at(TOKEN);
            scalars = scalars.at(2);
            lane.update(d, token, Some(next));
            lane.scalars = fetch(scalars, next);
            token = next;
            t += 1;
        }
        let d = lane.delta();
        store(lane.y());
        lane.update(d, token, None);
        store(lane.y());

        // Not kept through the token loop.
        let first = state_of(hint::opaque(thread as u32) as usize);
        let row = hint::opaque(args.state_row) as usize;
        for r in 0..ROWS {
            for n in 0..2 {
                first.write(r * row + n, lane.state[r][n]);
            }
        }
    }
}

const _: () = assert!(THREADS == 16 * TOKENS && BLOCK_COLUMNS == 64, "16 threads stage the rest of a token");
