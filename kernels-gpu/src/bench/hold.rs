//! `hold`: sits on a multiprocessor until it is released, so that what runs meanwhile has fewer of them. `await_seated` holds a
//! stream back until all are seated; `release` lets them go.
//!
//! Race argument: flags are words that only atomics and the releasing kernel write, each read is volatile, and nothing else is
//! shared.

use super::{LATE, RELEASED, SEATED, wait_for};
use crate::params::HoldArgs;
use cuda_std::prelude::*;

/// Grid: a block for each multiprocessor to hold, with all the dynamic shared memory that a block may have. Block: 1.
///
/// # Safety
/// `args` describes live buffers.
#[kernel(threads = 1, barriers = 0)]
pub unsafe fn hold(args: HoldArgs) {
    // SAFETY: the caller's promise.
    unsafe {
        args.sm_ids.write(thread::block_idx_x() as usize, thread::sm_id());
        atomic::global_fetch_add(args.flags, SEATED, 1);
        if !wait_for(args.flags, RELEASED, args.generation, args.limit_ns) {
            atomic::global_fetch_add(args.flags, LATE, 1);
        }
    }
}

/// Grid: 1. Block: 1. Returns when `args.blocks` blocks of `hold` are seated, or late.
///
/// # Safety
/// As [`hold`].
#[kernel(threads = 1, barriers = 0)]
pub unsafe fn await_seated(args: HoldArgs) {
    // SAFETY: the caller's promise.
    unsafe {
        if !wait_for(args.flags, SEATED, args.blocks, args.limit_ns) {
            atomic::global_fetch_add(args.flags, LATE, 1);
        }
    }
}

/// Grid: 1. Block: 1.
///
/// # Safety
/// As [`hold`].
#[kernel(threads = 1, barriers = 0)]
pub unsafe fn release(args: HoldArgs) {
    // SAFETY: the caller's promise; a word of its own.
    unsafe { args.flags.write(RELEASED, args.generation) };
}
