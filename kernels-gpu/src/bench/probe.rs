//! `probe`: launched with the grid, block and shared memory of another kernel, records which multiprocessor each of its blocks
//! lands on. The blocks wait for each other, so that all are there at once, as those of the other kernel are.
//!
//! Race argument: as `hold`.

use super::{LATE, SEATED, wait_for};
use crate::params::HoldArgs;
use cuda_std::prelude::*;

/// Grid and block: those of the other kernel; `args.blocks` is the grid.
///
/// # Safety
/// `args` describes live buffers.
#[kernel(threads = 512, barriers = 0)]
pub unsafe fn probe(args: HoldArgs) {
    if thread::thread_idx_x() != 0 || thread::thread_idx_y() != 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        args.sm_ids.write(thread::block_idx_x() as usize, thread::sm_id());
        atomic::global_fetch_add(args.flags, SEATED, 1);
        if !wait_for(args.flags, SEATED, args.blocks, args.limit_ns) {
            atomic::global_fetch_add(args.flags, LATE, 1);
        }
    }
}
