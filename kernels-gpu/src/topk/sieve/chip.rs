//! A block's shared memory, and how keys come into it. The race argument is that of [`narrow`](super::narrow).

use super::threshold::first_digit;
use super::{KEPT, KEYS, THREADS};
use crate::mutation::{self, Mutation};
use crate::topk::digits::{self, DIGITS};
use crate::topk::rule::Step;
use cuda_std::prelude::*;

const WARPS: usize = THREADS / 32;

// The words of `found` behind those of [`digits`].
/// The position in the list of the last node that is kept at the threshold.
pub(super) const CUT: usize = digits::FOUND;
/// The step record: n_kv, n_bid, width. In 16 bytes without what is written later: they are read at once.
const STEP: usize = digits::FOUND + 1;
/// The rank of the tail where it has less than a block's cells, or 0.
pub(super) const TAIL: usize = digits::FOUND + 5;

/// A block's shared memory.
#[derive(Clone, Copy)]
pub(super) struct Chip {
    pub(super) keys: Shared<u32>,
    pub(super) list: Shared<u32>,
    digits: Shared<u32>,
    pub(super) slots: Shared<u32>,
    pub(super) found: Shared<u32>,
}

impl Chip {
    /// Declares the arrays and gives them their first values, for which a barrier must follow.
    #[inline(always)]
    pub(super) unsafe fn new(step: Step) -> Self {
        let chip = Self {
            keys: shared_array![u32; KEYS],
            list: shared_array![u32; 2 * KEPT],
            digits: shared_array![u32; 2 * (DIGITS + 32)],
            slots: shared_array![u32; WARPS],
            found: shared_array![u32; TAIL + 1],
        };
        let thread = thread::thread_idx_x() as usize;
        // SAFETY: no other thread touches these before the barrier.
        unsafe {
            // The first histogram, and the words aside of the second.
            if thread < DIGITS + 32 {
                chip.histogram(0).at(thread).write(0, 0);
            }
            if thread < 32 {
                chip.histogram(1).at(DIGITS + thread).write(0, 0);
            }
            if thread == 0 {
                chip.list.write(0, 0);
                chip.found.write(TAIL, 0);
                chip.found.write(STEP, step.n_kv);
                chip.found.write(STEP + 1, step.n_bid);
                chip.found.write(STEP + 2, step.width);
            }
        }
        chip
    }

    /// Histogram 0 or 1: a word for each digit, then one for each lane.
    #[inline(always)]
    pub(super) fn histogram(self, index: usize) -> Shared<u32> {
        self.digits.at(index * (DIGITS + 32))
    }

    /// The step record, which takes no registers here.
    #[inline(always)]
    pub(super) unsafe fn step(self) -> Step {
        // SAFETY: written before the first barrier, and never again.
        unsafe {
            let word = |index: usize| self.found.at(STEP).read(index);
            Step { n_kv: word(0), n_bid: word(1), width: word(2) }
        }
    }

    /// Makes `rank` the rank of element `index`, and counts its first digit in histogram `digits`.
    #[inline(always)]
    #[track_caller]
    pub(super) unsafe fn put(self, digits: usize, index: u32, rank: u32) {
        // SAFETY: the race argument; an index of its own for each thread.
        unsafe {
            self.keys.at(index as usize).write(0, rank);
            let aside = DIGITS as u32 + thread::thread_idx_x() % 32;
            self.count(digits, if rank > 0 { first_digit(rank) } else { aside });
        }
    }

    #[inline(always)]
    #[track_caller]
    pub(super) unsafe fn count(self, digits: usize, digit: u32) {
        // SAFETY: the race argument.
        unsafe { atomic::shared_fetch_add(self.histogram(digits).at(digit as usize), 0, 1) };
    }

    /// Puts the keys of `chunks` chunks from memory.
    #[inline(always)]
    pub(super) unsafe fn put_maxima(self, maxima: GlobalMut<u32>, chunks: u32) {
        const LOADS: usize = KEYS.div_ceil(4 * THREADS);
        let first = 4 * thread::thread_idx_x();
        let mut loaded = [U32x4([0; 4]); LOADS];
        let chunks = chunks - u32::from(mutation::is(Mutation::SieveMaximaLoseLast));
        // SAFETY: the caller's promise about the maxima; the race argument above.
        unsafe {
            for i in 0..LOADS {
                let chunk = first + (4 * i * THREADS) as u32;
                if chunk < chunks {
                    loaded[i] = maxima.at(chunk as usize).read_as(0);
                }
            }
            for i in 0..LOADS {
                for j in 0..4 {
                    let chunk = first + (4 * i * THREADS + j) as u32;
                    if chunk < chunks {
                        self.put(0, chunk, loaded[i].0[j] + 1);
                    }
                }
            }
        }
    }

    /// Whether this is the last block of `parts` that comes here. What they wrote before can be read then.
    #[inline(always)]
    pub(super) unsafe fn is_last(self, counter: GlobalMut<u32>, parts: u32) -> bool {
        // SAFETY: the argument in the module's head; nobody else uses the slots before the threshold's barriers.
        unsafe {
            thread::sync_threads();
            if thread::thread_idx_x() == 0 {
                fence::device_acquire_release();
                let counted = atomic::global_fetch_add(counter, 0, 1);
                let mut is_last = counted + 1 == parts;
                fence::device_acquire_release();
                if is_last && !mutation::is(Mutation::SieveSplitLeavesCounter) {
                    counter.at(0).write(0, 0);
                }
                if mutation::is(Mutation::SieveSplitTakesFirst) {
                    is_last = counted == 0;
                }
                self.slots.write(0, u32::from(is_last));
            }
            thread::sync_threads();
            self.slots.at(0).read(0) == 1
        }
    }
}

const _: () = assert!(STEP.is_multiple_of(4) && TAIL.is_multiple_of(4));
