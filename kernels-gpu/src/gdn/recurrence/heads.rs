//! `heads`: a block is a whole value head, a thread one column of one row group. `heads_norm` is the same kernel with the out norm
//! of `out_norm` behind each token, where a head's y is still in one block. Neither is chosen by itself: with as many blocks as
//! value heads most of a card idles.
//!
//! Race argument. Three barriers a token: A behind the rows, B behind the kv sums, C behind the o sums.
//! * `rows` is written between C(t-1) and A(t) and read between A(t) and C(t).
//! * `kv` is written between A(t) and B(t) and read between B(t) and C(t); its next write is behind A(t+1).
//! * `o` is written between B(t) and C(t) and read between C(t) and A(t+1); its next write is behind B(t+1).
//! * `squares`, in `heads_norm` only, is written between C(t) and a fourth barrier D(t) and read between D(t) and A(t+1); its next
//!   write is behind C(t+1).
//!
//! State, y and output cells belong to one thread each.

use super::{
    COLUMN_BLOCKS, COLUMNS, Place, ROW_GROUPS, ROWS, delta, heads_of, partial_kv, sum_row_groups, update,
};
use crate::gdn::row::Floats;
use crate::gdn::{HEAD_DIM, out_norm};
use crate::math::{RSQRT_128, exp, sum4};
use crate::mutation::{self, Mutation};
use crate::params::{HeadsNormArgs, RecurrenceArgs, dtype};
use cuda_std::prelude::*;
use float::{f32_to_bf16_bits, f32_to_f16_bits};

/// The thread's column among the `value heads * 128` of a token's y.
#[inline(always)]
fn own_column(args: &RecurrenceArgs, place: Place) -> usize {
    heads_of(args, thread::block_idx_x() as usize).1 * HEAD_DIM + place.column
}

/// The recurrence of one head. Every thread of the block calls `finish(t, y)` for every token; `y` is the token's output in the
/// thread's column in row group 0, and nothing elsewhere.
///
/// # Safety
/// `args` describes live buffers that do not overlap, and the grid and block are as said at [`heads`].
#[inline(always)]
unsafe fn recurrence(args: &RecurrenceArgs, place: Place, finish: impl Fn(usize, f32)) {
    let rows = shared_array![f32; 2 * HEAD_DIM];
    let kv_partials = shared_array![f32; ROW_GROUPS * HEAD_DIM];
    let o_partials = shared_array![f32; ROW_GROUPS * HEAD_DIM];

    let (key_head, head) = heads_of(args, thread::block_idx_x() as usize);
    let own = place.row_group * HEAD_DIM + place.column;
    let own_column = own_column(args, place);
    let value_heads = args.value_heads as usize;
    let tokens = args.tokens as usize;
    if tokens == 0 {
        return;
    }

    // SAFETY: the caller's promise about the buffers; the race argument above for the shared arrays.
    unsafe {
        // Row group 0 stages q, row group 1 k.
        let staged_rows = if mutation::is(Mutation::HeadsStagesNoKey) { 1 } else { 2 };
        let (staged, stride) =
            if place.row_group == 0 { (args.q, args.q_stride) } else { (args.k, args.k_stride) };
        let staged = staged.at(key_head * HEAD_DIM + place.column);
        let own_y = args.y.at(own_column);
        let mut state = place.load_state(args, head);
        let mut t = 0;
        while t < tokens {
            if place.row_group < staged_rows {
                rows.write(own, staged.read(t * stride as usize));
            }
            let v = args.v.read(t * args.v_stride as usize + own_column);
            let g = exp(args.gate.read(t * value_heads + head));
            let beta = args.beta.read(t * value_heads + head);
            thread::sync_threads(); // A

            let (kv, key) = partial_kv(&state, rows.at(HEAD_DIM + place.row_group * ROWS));
            kv_partials.write(own, kv);
            thread::sync_threads(); // B

            let delta = delta(g, sum_row_groups::<HEAD_DIM>(kv_partials, place.column), v, beta);
            let o = update(&mut state, g, &key, delta, rows.at(place.row_group * ROWS));
            o_partials.write(own, o);
            if !mutation::is(Mutation::HeadsDropsOBarrier) {
                thread::sync_threads(); // C
            }

            let mut y = 0.0;
            if place.row_group == 0 {
                y = sum_row_groups::<HEAD_DIM>(o_partials, place.column) * RSQRT_128;
                own_y.write(t * value_heads * HEAD_DIM, y);
            }
            finish(t, y);
            t += 1;
        }
        place.store_state(args, head, &state);
    }
}

/// Grid: value heads. Block: (128, 4).
///
/// # Safety
/// `args` describes live buffers that do not overlap, and the grid and block are as said.
#[kernel(threads = 512, barriers = 3)]
pub unsafe fn heads(args: RecurrenceArgs) {
    // SAFETY: the caller's promise.
    unsafe { recurrence(&args, Place::new(0), |_, _| ()) }
}

/// `heads`, and `out_norm` of its y.
///
/// # Safety
/// As [`heads`].
#[kernel(threads = 512, barriers = 4)]
pub unsafe fn heads_norm(args: HeadsNormArgs) {
    let squares = shared_array![f32; COLUMN_BLOCKS];
    let place = Place::new(0);
    let row = args.recurrence.value_heads as usize * HEAD_DIM;
    let column = own_column(&args.recurrence, place);
    let (out_16, out_32) = (args.out.at(column), args.out.cast::<f32>().at(column));
    let normed = args.normed.at(column);
    // SAFETY: the caller's promise about the buffers.
    let weight = unsafe { args.weight.read(place.column) };

    let finish = |t: usize, y: f32| {
        // SAFETY: as above; the race argument for `squares`.
        unsafe {
            let mut z = 0.0;
            // Whole warps: a warp is 32 columns of a row group.
            if place.row_group == 0 {
                z = Floats::new(args.z, args.z_dtype).read(t * row + column);
                // `Tree32` of a group of 32 columns, the lanes of this warp.
                let mut sum = y * y;
                for level in 0..5 {
                    let rising = mutation::is(Mutation::HeadsNormRisingDistances);
                    let distance = if rising { 1 << level } else { 16 >> level };
                    sum += warp::warp_shuffle_xor(warp::FULL, sum, distance);
                }
                if place.column.is_multiple_of(COLUMNS) {
                    squares.write(place.column / COLUMNS, sum);
                }
            }
            if !mutation::is(Mutation::HeadsNormDropsNormBarrier) {
                thread::sync_threads(); // D
            }
            if place.row_group == 0 {
                let last = if mutation::is(Mutation::HeadsNormRepeatsGroup) { 2 } else { 3 };
                let sum = sum4([squares.read(0), squares.read(1), squares.read(2), squares.read(last)]);
                let gate = out_norm::numerator(z, args.act) / (1.0 + exp(-z));
                let out = y * out_norm::scale(sum, args.eps) * weight * gate;
                let out_row = t * args.out_stride as usize;
                match args.out_dtype {
                    dtype::F32 => out_32.write(out_row, out),
                    dtype::BF16 => out_16.write(out_row, f32_to_bf16_bits(out)),
                    _ => out_16.write(out_row, f32_to_f16_bits(out)),
                }
                if args.normed.address() != 0 {
                    normed.write(t * row, out);
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { recurrence(&args.recurrence, place, finish) }
}
