//! Relaxed atomics on 32-bit words of shared and global memory. For order between blocks see [`crate::fence`].

use crate::global::GlobalMut;
use crate::shared::Shared;
#[cfg(target_arch = "nvptx64")]
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Adds `value` to element `index` and returns what was there.
///
/// # Safety
/// The element was written before; other threads touch it with atomics only until the next barrier.
#[inline(always)]
#[track_caller]
pub unsafe fn shared_fetch_add(array: Shared<u32>, index: usize, value: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise; the array is aligned.
    unsafe {
        AtomicU32::from_ptr(array.pointer(index)).fetch_add(value, Relaxed)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::shared_atomic(array.place(index), |old: u32| old.wrapping_add(value))
}

/// Adds `value` to element `index` and returns what was there.
///
/// # Safety
/// The element lies in a live buffer; other threads touch it with atomics only.
#[inline(always)]
#[track_caller]
pub unsafe fn global_fetch_add(array: GlobalMut<u32>, index: usize, value: u32) -> u32 {
    let pointer = array.at(index).address() as *mut u32;
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise; the array is aligned.
    unsafe {
        AtomicU32::from_ptr(pointer).fetch_add(value, Relaxed)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::global_atomic(pointer, |old: u32| old.wrapping_add(value))
}
