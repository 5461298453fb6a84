//! Memory fences. rustc drops the acquire and release of device atomics before LLVM 23 (rust-lang/rust#136480), so a
//! protocol between blocks puts one of these around its flag.

/// Orders this thread's memory accesses for all threads of the device (`__threadfence`).
#[inline(always)]
pub fn device_fence() {
    #[cfg(target_arch = "nvptx64")]
    {
        unsafe extern "C" {
            #[link_name = "llvm.nvvm.membar.gl"]
            fn membar_gl();
        }
        // SAFETY: no precondition.
        unsafe { membar_gl() }
    }
}

/// Orders this thread's memory accesses for the threads of its block (`__threadfence_block`).
#[inline(always)]
pub fn block_fence() {
    #[cfg(target_arch = "nvptx64")]
    {
        unsafe extern "C" {
            #[link_name = "llvm.nvvm.membar.cta"]
            fn membar_cta();
        }
        // SAFETY: no precondition.
        unsafe { membar_cta() }
    }
}

/// Orders this thread's memory accesses, and those that it has synchronised with, for all threads of the device, as a release before a
/// flag is set and as an acquire behind one that is found set. Cheaper than [`device_fence`], which also puts all fences of the
/// device in one order.
#[inline(always)]
pub fn device_acquire_release() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: no precondition.
    unsafe {
        core::arch::asm!("fence.acq_rel.gpu;", options(nostack, preserves_flags))
    }
}
