//! Clusters: blocks that run together, wait for each other, and write each other's shared memory.

use std::cell::{Cell, RefCell};

use bytemuck::NoUninit;

use crate::context::{Context, Wait};
use crate::fault::{FaultKind, Problem, Site};
use crate::shared::access_align;

/// What the blocks of a running cluster share.
pub(crate) struct Cluster {
    /// All of its threads.
    threads: usize,
    arrived: Cell<usize>,
    /// Cluster barriers that all threads have come to, over the launch.
    phase: Cell<u32>,
    /// The blocks by rank. They stay in place while the cluster runs.
    blocks: RefCell<Vec<*const Context<'static>>>,
}

impl Cluster {
    pub fn new(threads: usize) -> Self {
        // Words that no other block wrote are of phase 0.
        Cluster { threads, arrived: Cell::new(0), phase: Cell::new(1), blocks: RefCell::new(Vec::new()) }
    }

    /// # Safety
    /// The contexts stay where they are while a block of the cluster runs.
    pub unsafe fn set_blocks(&self, contexts: &[Context<'_>]) {
        *self.blocks.borrow_mut() =
            contexts.iter().map(|context| std::ptr::from_ref(context).cast()).collect();
    }

    pub fn begin(&self) {
        self.arrived.set(0);
        self.phase.set(self.phase.get() + 1);
    }
}

impl Context<'_> {
    /// Lets the threads go on that wait in a cluster barrier which is complete.
    pub fn pass_cluster_barrier(&self) {
        let Some((cluster, _)) = &self.cluster else { return };
        if !self.shared.borrow_mut().enter_phase(cluster.phase.get()) {
            return;
        }
        self.barrier.next_epoch();
        for (index, thread) in
            self.threads.iter().enumerate().filter(|(_, thread)| thread.wait.get() == Wait::Cluster)
        {
            thread.wait.set(Wait::No);
            let runnable = &self.warps[index / 32].runnable;
            runnable.set(runnable.get() | 1 << (index % 32));
        }
    }
}

/// The whole barrier for the running thread.
#[inline(always)]
pub(crate) fn wait(context: &Context<'_>, site: Site) {
    if arrive(context, site) {
        context.suspend();
    }
}

#[inline(never)]
fn arrive(context: &Context<'_>, site: Site) -> bool {
    if context.unwinding() {
        return false;
    }
    let Some((cluster, _)) = &context.cluster else {
        let problem = Problem::new(FaultKind::Launch, "a cluster barrier in a launch without clusters");
        return context.fail(problem.by(context.me(), site, "came to it"), || false);
    };
    context.park(Wait::Cluster, site);
    cluster.arrived.set(cluster.arrived.get() + 1);
    if cluster.arrived.get() == cluster.threads {
        cluster.begin();
    }
    true
}

/// A write of the running thread to the shared memory of block `rank`.
pub(crate) fn store<T: NoUninit>(context: &Context<'_>, rank: u32, addr: u32, value: T, site: Site) {
    let fault = |what: String| {
        let problem = Problem::new(FaultKind::SharedBounds, what).by(context.me(), site, "writes to it");
        context.fail(problem, || ());
    };
    let Some((cluster, own)) = &context.cluster else {
        return fault(format!("block {rank} of the cluster, in a launch without clusters"));
    };
    let Some(&block) = cluster.blocks.borrow().get(rank as usize) else {
        return fault(format!("block {rank} of a cluster that has none of this rank"));
    };
    // SAFETY: `set_blocks` was promised that the contexts stay.
    let block = unsafe { &*block };
    if block.exited.get() == block.threads.len() {
        return fault(format!("the shared memory of block {rank} of the cluster, which returned"));
    }
    // A block's own memory is no foreign one.
    let phase = if rank == *own { 0 } else { cluster.phase.get() };
    let written = block.shared.borrow_mut().write_from_outside(
        addr,
        access_align::<T>(),
        bytemuck::bytes_of(&value),
        phase,
    );
    if let Err(what) = written {
        fault(format!("{what} in block {rank} of the cluster"));
    }
}
