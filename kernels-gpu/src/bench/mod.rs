//! Kernels that measurements need: they hold multiprocessors, and find out where blocks land. Every wait has a limit.

pub mod hold;
pub mod probe;

use cuda_std::prelude::*;

/// Words of `HoldArgs::flags`: blocks that are there; the generation released; blocks that gave up waiting. Word 0 is spare: LLVM
/// would access it by a generic address.
pub const SEATED: usize = 1;
pub const RELEASED: usize = 2;
pub const LATE: usize = 3;
pub const FLAGS: usize = 4;

/// Nanoseconds between two looks at a flag.
const POLL_NS: u32 = 1_000;

/// Whether word `index` of `flags` becomes `wanted` before `limit_ns` have passed.
///
/// # Safety
/// The word lies in a live buffer.
#[inline(always)]
unsafe fn wait_for(flags: GlobalMut<u32>, index: usize, wanted: u32, limit_ns: u64) -> bool {
    let start = thread::global_timer_ns();
    // SAFETY: the caller's promise.
    while unsafe { flags.read_volatile(index) } != wanted {
        if thread::global_timer_ns() - start > limit_ns {
            return false;
        }
        thread::nanosleep(POLL_NS);
    }
    true
}
