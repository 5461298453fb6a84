//! `cols`: `pipe` without its look-ahead: a token's inputs are loaded when it begins, into one pair of q and k rows. Never chosen
//! by itself; it is what `pipe` is measured against.
//!
//! Race argument. Three barriers a token: A behind the rows, B behind the kv sums, C behind the o sums.
//! * `rows` is written between C(t-1) and A(t) and read between A(t) and C(t).
//! * `kv` is written between A(t) and B(t) and read between B(t) and C(t); its next write is behind A(t+1).
//! * `o` is written between B(t) and C(t) and read between C(t) and A(t+1); its next write is behind B(t+1).
//!
//! State and y cells belong to one thread each.

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
pub unsafe fn cols(args: RecurrenceArgs) {
    let rows = shared_array![f32; 2 * HEAD_DIM];
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
        let own_y = args.y.at(own_column);
        let mut state = place.load_state(&args, head);
        let mut t = 0;
        while t < tokens {
            rows.write(own, args.q.read(t * args.q_stride as usize + own_row));
            rows.write(HEAD_DIM + own, args.k.read(t * args.k_stride as usize + own_row));
            let v = args.v.read(t * args.v_stride as usize + own_column);
            let g = exp(args.gate.read(t * value_heads + head));
            let beta = args.beta.read(t * value_heads + head);
            if !mutation::is(Mutation::ColsDropsRowBarrier) {
                thread::sync_threads(); // A
            }

            let (kv, key) = partial_kv(&state, rows.at(HEAD_DIM + place.row_group * ROWS));
            kv_partials.write(own, kv);
            thread::sync_threads(); // B

            let delta = delta(g, sum_row_groups::<COLUMNS>(kv_partials, place.lane), v, beta);
            let o = update(&mut state, g, &key, delta, rows.at(place.row_group * ROWS));
            o_partials.write(own, o);
            if !mutation::is(Mutation::ColsDropsOBarrier) {
                thread::sync_threads(); // C
            }

            if place.row_group == 0 {
                let y = sum_row_groups::<COLUMNS>(o_partials, place.lane) * RSQRT_128;
                own_y.write(t * value_heads * HEAD_DIM, y);
            }
            t += 1;
        }
        place.store_state(&args, head, &state);
    }
}

const _: () = assert!(THREADS == HEAD_DIM, "a thread stages one q and one k word a token");
