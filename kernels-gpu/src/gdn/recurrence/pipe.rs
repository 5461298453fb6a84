//! `pipe`: the recurrence for every card, any number of value heads a key head. A block is 32 columns of one value head, a
//! thread one column of one row group; the next token's inputs are on their way in registers while a token is computed.
//!
//! Race argument. Two barriers a token, A before its kv sums and B behind them.
//! * `rows[t & 1]` is written between B(t-1) and A(t), and read between A(t) and A(t+1); its next write is behind B(t+1).
//! * `kv` is written between A(t) and B(t) and read between B(t) and A(t+1).
//! * `o` of token t-1 is written between B(t-1) and A(t) and read between A(t) and B(t).
//!
//! So every write of a cell is parted by a barrier from the reads before and behind it. State and y cells belong to one
//! thread each.

use super::{
    COLUMN_BLOCKS, COLUMNS, Place, ROW_GROUPS, ROWS, THREADS, delta, heads_of, partial_kv, sum_row_groups,
    update,
};
use crate::gdn::HEAD_DIM;
use crate::math::{RSQRT_128, exp};
use crate::mutation::{self, Mutation};
use crate::params::RecurrenceArgs;
use cuda_std::prelude::*;

/// Grid: value heads * 4. Block: (32, 4).
///
/// # Safety
/// `args` describes live buffers that do not overlap, and the grid and block are as said.
#[kernel(threads = 128, barriers = 3)]
pub unsafe fn pipe(args: RecurrenceArgs) {
    let rows = shared_array![f32; 2 * 2 * HEAD_DIM];
    let kv_partials = shared_array![f32; ROW_GROUPS * COLUMNS];
    let o_partials = shared_array![f32; ROW_GROUPS * COLUMNS];

    let block = thread::block_idx_x() as usize;
    let (unit, column_block) = (block / COLUMN_BLOCKS, block % COLUMN_BLOCKS);
    let (key_head, head) = heads_of(&args, unit);
    let place = Place::new(column_block);
    let own = place.row_group * COLUMNS + place.lane;
    let own_row = key_head * HEAD_DIM + own;
    let own_column = head * HEAD_DIM + place.column;
    let value_heads = args.value_heads as usize;
    let tokens = args.tokens as usize;
    if tokens == 0 {
        return;
    }

    // SAFETY: the caller's promise about the buffers; the race argument above for the shared arrays.
    unsafe {
        let load = |t: usize| {
            [
                args.q.read(t * args.q_stride as usize + own_row),
                args.k.read(t * args.k_stride as usize + own_row),
                args.v.read(t * args.v_stride as usize + own_column),
                args.gate.read(t * value_heads + head),
                args.beta.read(t * value_heads + head),
            ]
        };
        let own_y = args.y.at(own_column);
        let store_y = |t: usize| {
            if place.row_group == 0 {
                let y = sum_row_groups::<COLUMNS>(o_partials, place.lane) * RSQRT_128;
                own_y.write(t * value_heads * HEAD_DIM, y);
            }
        };

        let mut state = place.load_state(&args, head);
        let mut next = load(0);
        let mut t = 0;
        while t < tokens {
            let [q, k, v, gate, beta] = next;
            let buffer = if mutation::is(Mutation::PipeReusesRows) { 0 } else { t & 1 };
            let row = rows.at(buffer * 2 * HEAD_DIM);
            row.write(own, q);
            row.write(HEAD_DIM + own, k);
            if t + 1 < tokens || mutation::is(Mutation::PipeLoadsPastTheEnd) {
                next = load(t + 1);
            }
            let g = exp(gate);
            thread::sync_threads(); // A
            if t > 0 {
                store_y(t - 1);
            }

            let (kv, key) = partial_kv(&state, row.at(HEAD_DIM + place.row_group * ROWS));
            kv_partials.write(own, kv);
            if !mutation::is(Mutation::PipeDropsKvBarrier) {
                thread::sync_threads(); // B
            }

            let delta = delta(g, sum_row_groups::<COLUMNS>(kv_partials, place.lane), v, beta);
            let o = update(&mut state, g, &key, delta, row.at(place.row_group * ROWS));
            o_partials.write(own, o);
            t += 1;
        }
        thread::sync_threads();
        store_y(tokens - 1);
        place.store_state(&args, head, &state);
    }
}

const _: () = assert!(THREADS == HEAD_DIM, "a thread stages one q and one k word a token");
