//! Reading the rows of a tile token by token, some tokens ahead of their use.
//!
//! Race argument for [`Ring`]: a lane copies and reads its own 16 bytes of each slot only, and waits for its own copies. The copy of
//! token t + 3 goes to the slot of token t - 1, whose read is behind a whole token's arithmetic.

use super::conv::THREADS;
use super::row::{Floats, Loaded, WIDTH};
use crate::mutation::{self, Mutation};
use cuda_std::prelude::*;

/// Rows of one head, read in order.
pub trait Ahead {
    /// The `count` rows from value `at` on, `stride` values apart.
    ///
    /// # Safety
    /// They lie in a live buffer that nobody writes.
    unsafe fn new(floats: Floats, at: usize, stride: usize, count: usize) -> Self;

    /// The lane's channels of the next row.
    ///
    /// # Safety
    /// As [`new`](Self::new); there is one.
    unsafe fn next(&mut self) -> [f32; WIDTH];
}

/// One row ahead, in registers: every card.
pub struct Registers {
    floats: Floats,
    row: Loaded,
    at: usize,
    stride: usize,
    left: u32,
}

impl Ahead for Registers {
    #[inline(always)]
    unsafe fn new(floats: Floats, at: usize, stride: usize, count: usize) -> Self {
        // SAFETY: the caller's promise; a tile has a row.
        let row = unsafe { floats.load(at) };
        Self { floats, row, at: at + stride, stride, left: count as u32 }
    }

    #[inline(always)]
    unsafe fn next(&mut self) -> [f32; WIDTH] {
        let row = self.floats.widen(self.row);
        self.left -= 1;
        if self.left > 0 || mutation::is(Mutation::RegistersReadPastTheEnd) {
            // SAFETY: the row is there.
            self.row = unsafe { self.floats.load(self.at) };
        }
        if !mutation::is(Mutation::RegistersStandStill) {
            self.at += self.stride;
        }
        row
    }
}

/// Three rows ahead, in shared memory: what is on its way takes no registers.
#[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
pub struct Ring {
    floats: Floats,
    /// The lane's place in the first slot.
    slots: Shared<f32>,
    /// The slot of the next row.
    slot: u32,
    at: usize,
    stride: usize,
    /// Rows to copy.
    left: u32,
}

#[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
impl Ring {
    const SLOTS: u32 = 4;
    /// Words from slot to slot: each has a place for every thread of the block.
    const SLOT: usize = THREADS * WIDTH;

    /// Starts the copy of the row that comes [`SLOTS`](Self::SLOTS) - 1 rows behind the one in `slot`, if there is one.
    #[inline(always)]
    unsafe fn copy(&mut self, slot: u32) {
        if self.left > 0 {
            // SAFETY: the row is there; the race argument above.
            unsafe { self.floats.copy(self.at, self.slots.at(slot as usize * Self::SLOT)) };
            self.left -= 1;
        }
        self.at += self.stride;
        async_copy::commit_group();
    }
}

#[cfg(any(feature = "sm_80", not(target_arch = "nvptx64")))]
impl Ahead for Ring {
    #[inline(always)]
    unsafe fn new(floats: Floats, at: usize, stride: usize, count: usize) -> Self {
        let slots = shared_array![f32; Ring::SLOTS as usize * Ring::SLOT];
        let slots = slots.at(thread::thread_idx_x() as usize * WIDTH);
        let left = count as u32 + u32::from(mutation::is(Mutation::RingCopiesPastTheEnd));
        let mut ring = Self { floats, slots, slot: 0, at, stride, left };
        for slot in 0..Self::SLOTS - 1 {
            // SAFETY: the caller's promise.
            unsafe { ring.copy(slot) };
        }
        ring
    }

    #[inline(always)]
    unsafe fn next(&mut self) -> [f32; WIDTH] {
        if !mutation::is(Mutation::RingSkipsWait) {
            async_copy::wait_group::<{ Ring::SLOTS - 2 }>();
        }
        let next = (self.slot + 1) % Self::SLOTS;
        let read = if mutation::is(Mutation::RingReadsTheNextSlot) { next } else { self.slot };
        let behind = if mutation::is(Mutation::RingCopiesToTheNextSlot) { 0 } else { 1 };
        // SAFETY: the caller's promise; the row has been waited for.
        unsafe {
            let row = self.floats.widen(self.floats.copied(self.slots.at(read as usize * Self::SLOT)));
            self.copy((self.slot + Self::SLOTS - behind) % Self::SLOTS);
            self.slot = next;
            row
        }
    }
}
