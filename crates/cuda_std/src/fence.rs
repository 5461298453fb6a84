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
