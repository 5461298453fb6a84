//! Runs a GPU kernel's Rust source on the CPU, so that it can be tested without a GPU.
//!
//! Every CUDA thread is a coroutine with a stack of its own. The blocks of a grid run one after another on
//! the OS thread that calls [`Launch::run`]; in a block, threads switch where they wait for each other.
//! Barriers, warp operations, shared memory, global memory and asynchronous copies are checked, and what a
//! device answers with a hang or a wrong number is a [`Fault`] that names the threads and the lines.
//!
//! ```
//! use simt::{Launch, Order};
//!
//! let input: Vec<u32> = (0..64).collect();
//! let mut output = vec![0u32; 64];
//! let (from, to) = (input.as_ptr(), output.as_mut_ptr());
//! Launch::new(1, 64)
//!     .order(Order::Descending)
//!     .input("input", &input)
//!     .output("output", &mut output)
//!     .run(|| {
//!         let thread = simt::thread_idx().x;
//!         let tile = simt::shared_static(64 * 4, 4);
//!         let value = simt::global_load(from.wrapping_add(thread as usize));
//!         simt::shared_store(tile + 4 * thread, value);
//!         simt::barrier();
//!         let mirrored: u32 = simt::shared_load(tile + 4 * (63 - thread));
//!         simt::global_store(to.wrapping_add(thread as usize), mirrored);
//!     })
//!     .unwrap();
//! assert!(output.iter().eq(input.iter().rev()));
//! ```
//!
//! With [`Launch::cluster`] the blocks of a cluster run together and may write each other's shared memory. Such a write is checked for
//! bounds, and an access of the block to bytes that another one wrote is a race until both have passed a cluster barrier. The reverse, a
//! write from outside to bytes that the block itself accessed since that barrier, is not looked for.
//!
//! The functions of this module are for kernels: they panic outside of a launch. Each counts the place it is
//! called from as its site, so a wrapper has to be `#[track_caller]`.

mod async_copy;
mod barrier;
mod cluster;
mod context;
mod dim;
mod fault;
mod global;
mod launch;
mod order;
mod panics;
mod scheduler;
mod shadow;
mod shared;
mod stack;
mod warp;

use std::panic::Location;

use bytemuck::{AnyBitPattern, NoUninit, Pod};

pub use dim::Dim3;
pub use fault::{Fault, FaultKind};
pub use launch::{Launch, Stats};
pub use order::Order;
pub use warp::WarpValues;

use context::current;

/// The thread's index in its block.
#[track_caller]
#[inline]
pub fn thread_idx() -> Dim3 {
    current(|context| context.thread_index[context.me()])
}

/// The block's index in the grid.
#[track_caller]
#[inline]
pub fn block_idx() -> Dim3 {
    current(|context| context.block.get())
}

/// The threads of a block.
#[track_caller]
#[inline]
pub fn block_dim() -> Dim3 {
    current(|context| context.launch.block_dim())
}

/// The blocks of the grid.
#[track_caller]
#[inline]
pub fn grid_dim() -> Dim3 {
    current(|context| context.launch.grid_dim())
}

/// The thread's place in its warp.
#[track_caller]
#[inline]
pub fn lane_id() -> u32 {
    current(|context| context.me() as u32 % 32)
}

/// Waits until all threads of the block have come to this place: `__syncthreads`.
#[track_caller]
#[inline]
pub fn barrier() {
    let site = Location::caller();
    current(|context| barrier::wait(context, "barrier", false, site));
}

/// The same, and counts the threads that gave `true`: `__syncthreads_count`.
#[track_caller]
#[inline]
pub fn barrier_count(pred: bool) -> u32 {
    let site = Location::caller();
    current(|context| barrier::wait(context, "barrier_count", pred, site))
}

/// Waits until all lanes of `mask` have come to this place: `__syncwarp`.
#[track_caller]
#[inline]
pub fn warp_barrier(mask: u32) {
    let site = Location::caller();
    current(|context| warp::barrier(context, mask, site));
}

/// Waits until all lanes of `mask` have come to this place with the same mask and the same `op`, then gives
/// each the values of all. Shuffles, votes, matches and reductions are made of it; `op` is what faults call
/// it.
#[track_caller]
#[inline]
pub fn warp_exchange(op: &'static str, mask: u32, value: u64) -> WarpValues {
    let site = Location::caller();
    current(|context| warp::exchange(context, op, mask, value, site))
}

/// Waits until all threads of the cluster have come here: `barrier.cluster.arrive` and `.wait`.
#[track_caller]
#[inline]
pub fn cluster_barrier() {
    let site = Location::caller();
    current(|context| cluster::wait(context, site));
}

/// The block's rank in its cluster; 0 in a launch without clusters.
#[track_caller]
pub fn cluster_rank() -> u32 {
    current(|context| context.cluster.as_ref().map_or(0, |(_, rank)| *rank))
}

/// Writes a value to the shared memory of the cluster's block `rank`, at the place that `addr` is in this block's.
#[track_caller]
#[inline]
pub fn cluster_store<T: NoUninit>(rank: u32, addr: u32, value: T) {
    let site = Location::caller();
    current(|context| {
        context.step(site);
        cluster::store(context, rank, addr, value, site);
    });
}

/// The address of a shared array of the block. All threads that come to one place, with one size and
/// alignment, get the same array.
#[track_caller]
pub fn shared_static(bytes: u32, align: u32) -> u32 {
    let site = Location::caller();
    current(|context| {
        let declared = context.shared.borrow_mut().declare(&context.who(site), bytes, align);
        declared.unwrap_or_else(|problem| context.fail(*problem, || 0))
    })
}

/// The address of the dynamic part of the shared memory. It is a multiple of 16, and of no more.
#[track_caller]
pub fn shared_dynamic() -> u32 {
    current(|context| context.shared.borrow().dynamic())
}

/// Reads a value from shared memory.
#[track_caller]
#[inline]
pub fn shared_load<T: AnyBitPattern>(addr: u32) -> T {
    let site = Location::caller();
    current(|context| {
        context.step(site);
        shared::load(context, addr, site)
    })
}

/// Writes a value to shared memory.
#[track_caller]
#[inline]
pub fn shared_store<T: NoUninit>(addr: u32, value: T) {
    let site = Location::caller();
    current(|context| {
        context.step(site);
        shared::store(context, addr, value, site);
    });
}

/// Puts `f` of a value in shared memory in its place, with no other thread in between, and returns the old
/// value.
#[track_caller]
#[inline]
pub fn shared_atomic<T: Pod>(addr: u32, f: impl FnOnce(T) -> T) -> T {
    let site = Location::caller();
    current(|context| {
        context.step(site);
        shared::update(context, addr, f, site)
    })
}

/// Reads a value from global memory.
#[track_caller]
#[inline]
pub fn global_load<T: AnyBitPattern>(ptr: *const T) -> T {
    let site = Location::caller();
    current(|context| {
        context.step(site);
        global::load(context, ptr, site)
    })
}

/// Writes a value to global memory.
#[track_caller]
#[inline]
pub fn global_store<T: NoUninit>(ptr: *mut T, value: T) {
    let site = Location::caller();
    current(|context| {
        context.step(site);
        global::store(context, ptr, value, site);
    });
}

/// Puts `f` of a value in global memory in its place, with no other thread in between, and returns the old
/// value.
#[track_caller]
#[inline]
pub fn global_atomic<T: Pod>(ptr: *mut T, f: impl FnOnce(T) -> T) -> T {
    let site = Location::caller();
    current(|context| {
        context.step(site);
        global::update(context, ptr, f, site)
    })
}

/// Starts a copy of 4, 8 or 16 bytes from global to shared memory, both at a multiple of that: `cp.async`.
/// The bytes arrive when the thread waits for the copy's group; other threads see them after a barrier that
/// follows.
#[track_caller]
pub fn async_copy(shared: u32, global: *const u8, bytes: u32) {
    let site = Location::caller();
    current(|context| {
        context.step(site);
        if let Err(problem) = async_copy::issue(context, shared, global, bytes, site) {
            let problem = context.name_copy(*problem, shared, bytes as usize);
            context.fail(problem, || ());
        }
    });
}

/// Makes a group of the thread's copies since the last one: `cp.async.commit_group`.
#[track_caller]
pub fn async_commit() {
    current(|context| context.threads[context.me()].copies.borrow_mut().commit());
}

/// Waits until at most the `pending_groups` newest groups of the thread are in flight: `cp.async.wait_group`.
#[track_caller]
pub fn async_wait(pending_groups: u32) {
    current(|context| {
        if let Err(problem) = async_copy::wait(context, pending_groups) {
            context.fail(*problem, || ());
        }
    });
}
