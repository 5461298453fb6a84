//! `original`: the selection as the first kernel of its kind did it, kept for A/B. A thread owns a stretch of neighbouring blocks and reads
//! their scores six times; one histogram takes everybody's atomics; thread 0 finds the digits and sums up the positions.
//!
//! Race argument. A row belongs to one block, and a barrier stands between any two of these.
//! * `histogram`: set to zero, a bin a thread; counted in with atomics; read by thread 0.
//! * `search`: written by thread 0 behind the histogram's counting, read by all before the next pass's counting.
//! * `counts`: a thread's own two words; all of them by thread 0; the own two again.

use super::histogram::BINS;
use super::rule::{BLOCK_CELLS, key};
use super::select::{begin, write_block};
use crate::mutation::{self, Mutation};
use crate::params::TopkArgs;
use cuda_std::prelude::*;

/// Threads of a block, one a bin.
pub const THREADS: usize = BINS;

/// Grid: queries. Block: 256.
///
/// # Safety
/// As [`wide`](super::wide::wide).
#[kernel(threads = 256, barriers = 5)]
pub unsafe fn original(args: TopkArgs) {
    let histogram = shared_array![u32; BINS];
    // The threshold's bits so far, and the cells above them.
    let search = shared_array![u32; 2];
    // Of each thread, the cells above the threshold and at it; then those before it.
    let counts = shared_array![u32; 2 * THREADS];

    let query = thread::block_idx_x() as usize;
    let thread = thread::thread_idx_x() as usize;
    // SAFETY: the caller's promise about the buffers; the race argument above.
    unsafe {
        let Some((step, ids)) = begin(&args, query, THREADS) else { return };
        let scores = args.scores.at(query * args.stride as usize);
        let stretch = step.candidates().div_ceil(THREADS as u32);
        let start = thread as u32 * stretch;
        let end = step.candidates().min(start + stretch);
        let key_of = |block: u32| key(scores.read(block as usize).to_bits());

        let (mut bits, mut above, mut shift) = (0, 0, hint::opaque(24u32));
        loop {
            histogram.write(thread, 0);
            thread::sync_threads();
            let mut block = start;
            while block < end {
                let key = key_of(block);
                // Two shifts: one by 32 is none.
                if key & (u32::MAX << shift << 8) == bits {
                    let cells = if mutation::is(Mutation::OriginalCountsTailWhole) {
                        BLOCK_CELLS
                    } else {
                        step.cells(block)
                    };
                    atomic::shared_fetch_add(histogram, (key >> shift & 255) as usize, cells);
                }
                block += 1;
            }
            thread::sync_threads();
            if thread == 0 {
                let mut digit = BINS - 1;
                while digit > 0 && above + histogram.read(digit) < step.width {
                    above += histogram.read(digit);
                    digit -= 1;
                }
                search.write(0, bits | (digit as u32) << shift);
                search.write(1, above);
            }
            if !mutation::is(Mutation::OriginalDropsSearchBarrier) {
                thread::sync_threads();
            }
            (bits, above) = (search.read(0), search.read(1));
            if shift == 0 {
                break;
            }
            shift -= 8;
        }

        let (mut own_above, mut own_equal) = (0, 0);
        let mut block = start;
        while block < end {
            let key = key_of(block);
            own_above += if key > bits { step.cells(block) } else { 0 };
            own_equal += if key == bits { step.cells(block) } else { 0 };
            block += 1;
        }
        counts.write(thread, own_above);
        counts.write(THREADS + thread, own_equal);
        thread::sync_threads();
        if thread == 0 {
            let (mut before_above, mut before_equal) = (0, 0);
            let mut of = 0;
            while of < THREADS {
                let (of_above, of_equal) = (counts.read(of), counts.read(THREADS + of));
                counts.write(of, before_above);
                counts.write(THREADS + of, before_equal);
                before_above += of_above;
                before_equal += of_equal;
                of += 1;
            }
        }
        thread::sync_threads();

        let ties = step.width - above;
        let before_equal = counts.read(THREADS + thread).min(ties);
        let mut at = counts.read(thread) + before_equal;
        let mut left = ties - before_equal;
        let mut block = start;
        while block < end {
            let key = key_of(block);
            if key >= bits {
                let most = if key > bits { BLOCK_CELLS } else { left };
                write_block(step, ids, at, block, most);
                let taken = step.cells(block).min(most);
                at += taken;
                left -= if key == bits { taken } else { 0 };
            }
            block += 1;
        }
    }
}
