//! Clusters: blocks that run at the same time, wait for each other and write each other's shared memory (sm_90 and newer).
//!
//! Another block's shared memory may be touched once that block is known to run, so behind a cluster barrier, and not when it may have
//! returned.

use crate::shared::Shared;

#[cfg(target_arch = "nvptx64")]
mod intrinsics {
    unsafe extern "C" {
        #[link_name = "llvm.nvvm.barrier.cluster.arrive.aligned"]
        pub fn arrive();
        #[link_name = "llvm.nvvm.barrier.cluster.wait.aligned"]
        pub fn wait();
        #[link_name = "llvm.nvvm.read.ptx.sreg.cluster.ctarank"]
        pub fn block_rank() -> u32;
    }
}

/// The block's rank in its cluster.
#[inline(always)]
pub fn block_rank() -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: reads a special register.
    unsafe {
        intrinsics::block_rank()
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::cluster_rank()
}

/// The cluster barrier: all threads of all its blocks come here, and see each other's earlier writes to shared and global memory afterwards.
#[inline(always)]
#[track_caller]
pub fn sync_cluster() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's cluster is uniform here; a kernel's head comment argues it and the SIMT executor checks it.
    unsafe {
        intrinsics::arrive();
        intrinsics::wait();
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::cluster_barrier()
}

/// Writes element `index` of the array in block `rank` of the cluster.
///
/// # Safety
/// That block runs, and no other thread reads or writes the element without a cluster barrier between.
#[inline(always)]
#[track_caller]
pub unsafe fn write(array: Shared<u32>, rank: u32, index: usize, value: u32) {
    let address = array.at(index).address();
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!(
            "{{ .reg .b32 %there; mapa.shared::cluster.u32 %there, {address}, {rank}; \
             st.shared::cluster.u32 [%there], {value}; }}",
            address = in(reg32) address,
            rank = in(reg32) rank,
            value = in(reg32) value,
            options(nostack)
        );
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::cluster_store(rank, address, value)
}
