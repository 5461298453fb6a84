//! One digit of a threshold: from a histogram to the digit at which the cells from the top reach the goal. By one warp.

use cuda_std::prelude::*;
use warp::FULL;

pub const DIGIT_BITS: u32 = 8;
pub const DIGITS: usize = 1 << DIGIT_BITS;
/// Digits that a lane looks through.
const LANE_DIGITS: usize = DIGITS / 32;

// What is found: the digit, the cells above it, the keys that have it.
pub const DIGIT: usize = 0;
pub const ABOVE: usize = 1;
pub const HELD: usize = 2;
/// Words of it.
pub const FOUND: usize = 3;

/// A key that has less cells than the others.
#[derive(Clone, Copy)]
pub struct Tail {
    /// Its digit, or more than any digit.
    pub digit: u32,
    /// Cells that it lacks.
    pub lacking: u32,
}

/// Looks for the digit at which the cells from the top digit on, `1 << unit` a key, reach `need`. A full warp calls it, and one of its lanes
/// writes what is [`FOUND`].
///
/// # Safety
/// The counts are there; nobody else touches `found` before a barrier.
#[inline(always)]
pub unsafe fn find(counts: Shared<u32>, found: Shared<u32>, unit: u32, need: u32, tail: Tail) {
    // The first lane has the top digits.
    let lowest = LANE_DIGITS * (31 - warp::lane_id() as usize);
    let mut held = [0; LANE_DIGITS];
    for half in 0..LANE_DIGITS / 4 {
        // SAFETY: the caller's promise.
        let U32x4(four) = unsafe { counts.at(lowest + 4 * half).read_as(0) };
        for i in 0..4 {
            held[4 * half + i] = four[i];
        }
    }
    let mut cells = [0; LANE_DIGITS];
    let mut sum = 0;
    for i in 0..LANE_DIGITS {
        cells[i] = held[i] << unit;
        if tail.digit == (lowest + i) as u32 {
            cells[i] -= tail.lacking;
        }
        sum += cells[i];
    }
    let mut above = inclusive_sum(sum) - sum;
    for i in (0..LANE_DIGITS).rev() {
        let through = above + cells[i];
        // Of all digits one takes the sum from below to the goal.
        if above < need && need <= through {
            // SAFETY: the caller's promise; one lane is here.
            unsafe {
                found.at(DIGIT).write(0, (lowest + i) as u32);
                found.at(ABOVE).write(0, above);
                found.at(HELD).write(0, held[i]);
            }
        }
        above = through;
    }
}

/// Of a word that is not 0.
#[inline(always)]
pub fn highest_bit(word: u32) -> u32 {
    1 << (31 - word.leading_zeros())
}

/// The sum of the words of the lanes up to the caller's.
#[inline(always)]
pub fn inclusive_sum(word: u32) -> u32 {
    let mut sum = word;
    for level in 0..5 {
        let distance = 1 << level;
        let below = warp::warp_shuffle_up(FULL, sum, distance);
        if warp::lane_id() >= distance {
            sum += below;
        }
    }
    sum
}
