//! Thread and block indices, and the block barrier.

#[cfg(target_arch = "nvptx64")]
use core::arch::nvptx as arch;

macro_rules! special_register {
    ($($name:ident = $intrinsic:ident, $host:ident . $axis:ident, below $limit:literal, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[inline(always)]
        pub fn $name() -> u32 {
            #[cfg(target_arch = "nvptx64")]
            {
                // SAFETY: reads a special register; the hardware keeps it under the limit.
                unsafe {
                    let value = arch::$intrinsic() as u32;
                    core::hint::assert_unchecked(value < $limit);
                    value
                }
            }
            #[cfg(not(target_arch = "nvptx64"))]
            simt::$host().$axis
        }
    )*};
}

special_register! {
    thread_idx_x = _thread_idx_x, thread_idx.x, below 1024, "The thread's x index in its block.";
    thread_idx_y = _thread_idx_y, thread_idx.y, below 1024, "The thread's y index in its block.";
    thread_idx_z = _thread_idx_z, thread_idx.z, below 64, "The thread's z index in its block.";
    block_idx_x = _block_idx_x, block_idx.x, below 0x7fff_ffff, "The block's x index in the grid.";
    block_idx_y = _block_idx_y, block_idx.y, below 65_535, "The block's y index in the grid.";
    block_idx_z = _block_idx_z, block_idx.z, below 65_535, "The block's z index in the grid.";
    block_dim_x = _block_dim_x, block_dim.x, below 1025, "Threads of a block along x.";
    block_dim_y = _block_dim_y, block_dim.y, below 1025, "Threads of a block along y.";
    block_dim_z = _block_dim_z, block_dim.z, below 65, "Threads of a block along z.";
    grid_dim_x = _grid_dim_x, grid_dim.x, below 0x8000_0000, "Blocks of the grid along x.";
    grid_dim_y = _grid_dim_y, grid_dim.y, below 65_536, "Blocks of the grid along y.";
    grid_dim_z = _grid_dim_z, grid_dim.z, below 65_536, "Blocks of the grid along z.";
}

/// The block barrier (`__syncthreads`): all threads of the block come here, and see each other's earlier writes to
/// shared and global memory afterwards.
#[inline(always)]
#[track_caller]
pub fn sync_threads() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's block is uniform here; a kernel's head comment argues it and the SIMT executor checks it.
    unsafe {
        arch::_syncthreads()
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::barrier()
}

/// The multiprocessor that the thread runs on. The executor has one.
#[inline(always)]
pub fn sm_id() -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let id: u32;
        // SAFETY: reads a special register.
        unsafe {
            core::arch::asm!("mov.u32 {}, %smid;", out(reg32) id, options(nomem, nostack, preserves_flags))
        };
        id
    }
    #[cfg(not(target_arch = "nvptx64"))]
    0
}

/// The device's clock in nanoseconds; it ticks coarsely.
#[inline(always)]
pub fn global_timer_ns() -> u64 {
    #[cfg(target_arch = "nvptx64")]
    {
        let time: u64;
        // SAFETY: reads a special register; not `pure`, it changes.
        unsafe {
            core::arch::asm!("mov.u64 {}, %globaltimer;", out(reg64) time, options(nomem, nostack, preserves_flags))
        };
        time
    }
    #[cfg(not(target_arch = "nvptx64"))]
    std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64)
}

/// Suspends the thread for about `ns` nanoseconds; returns at once on sm_70, whose modules keep to a PTX version that has no
/// `nanosleep`.
#[inline(always)]
pub fn nanosleep(ns: u32) {
    #[cfg(all(target_arch = "nvptx64", feature = "sm_80"))]
    // SAFETY: no precondition.
    unsafe {
        core::arch::asm!("nanosleep.u32 {};", in(reg32) ns, options(nomem, nostack, preserves_flags))
    };
    #[cfg(not(all(target_arch = "nvptx64", feature = "sm_80")))]
    let _ = ns;
}
