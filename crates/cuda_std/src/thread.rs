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
