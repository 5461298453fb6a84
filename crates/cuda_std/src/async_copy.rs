//! `cp.async`: copies from global to shared memory that run beside the thread (sm_80 and newer).
//!
//! The bytes may be read by the issuing thread after a wait that covers their group, and by the block after a barrier
//! behind that wait.

use crate::global::Global;
use crate::shared::Shared;

/// Starts copying `BYTES` (4, 8 or 16) bytes from `source` to `target`; both are aligned to `BYTES`. 16-byte copies bypass L1.
///
/// # Safety
/// `source` is live until the wait; nobody touches `target` before the wait.
#[inline(always)]
#[track_caller]
pub unsafe fn copy<const BYTES: u32>(target: SharedAddress, source: Global<f32>) {
    const { assert!(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes") };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    unsafe {
        if BYTES == 16 {
            core::arch::asm!("cp.async.cg.shared.global [{}], [{}], 16;", in(reg32) target.0, in(reg64) source.address(), options(nostack));
        } else {
            core::arch::asm!("cp.async.ca.shared.global [{}], [{}], {};", in(reg32) target.0, in(reg64) source.address(), const BYTES, options(nostack));
        }
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::async_copy(target.0, source.address() as *const u8, BYTES);
}

/// A 32-bit address in the shared window.
#[derive(Clone, Copy, Debug)]
pub struct SharedAddress(u32);

impl SharedAddress {
    /// Where `array` starts.
    #[inline(always)]
    pub fn of<T: bytemuck::Pod>(array: Shared<T>) -> Self {
        Self(array.address())
    }

    /// The address `words` 4-byte words further on.
    #[inline(always)]
    pub fn add_words(self, words: usize) -> Self {
        Self(self.0 + 4 * words as u32)
    }
}

/// Closes the group of the copies started since the last commit; an empty group counts as one.
#[inline(always)]
pub fn commit_group() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: no precondition.
    unsafe {
        core::arch::asm!("cp.async.commit_group;", options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::async_commit()
}

/// Waits until at most the `PENDING` newest groups of this thread are still on their way.
#[inline(always)]
#[track_caller]
pub fn wait_group<const PENDING: u32>() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: no precondition.
    unsafe {
        core::arch::asm!("cp.async.wait_group {};", const PENDING, options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::async_wait(PENDING)
}
