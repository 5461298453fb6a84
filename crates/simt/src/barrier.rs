//! The block barrier: all threads of a block come to the same place, then all go on.

use std::cell::Cell;

use crate::context::{Context, Wait};
use crate::fault::{Checked, FaultKind, Problem, Site, same_op, same_site};

pub(crate) struct Barrier {
    /// Barriers passed, and blocks begun, in the launch. Counting on from block to block makes everything
    /// that the shadow of the shared memory remembers of earlier blocks old.
    epoch: Cell<u32>,
    passed: Cell<u64>,
    arrived: Cell<usize>,
    /// The first thread that waits, and in which operation.
    first: Cell<(usize, &'static str)>,
    votes: Cell<u32>,
    /// The votes of the barrier passed last. It stays until every thread has come to the next one.
    result: Cell<u32>,
}

impl Barrier {
    pub fn new() -> Self {
        Barrier {
            epoch: Cell::new(0),
            passed: Cell::new(0),
            arrived: Cell::new(0),
            first: Cell::new((0, "")),
            votes: Cell::new(0),
            result: Cell::new(0),
        }
    }

    pub fn begin_block(&self) {
        self.epoch.set(self.epoch.get() + 1);
        self.arrived.set(0);
        self.votes.set(0);
    }

    pub fn epoch(&self) -> u32 {
        self.epoch.get()
    }

    /// What came before is ordered before what comes now, by another barrier.
    pub fn next_epoch(&self) {
        self.epoch.set(self.epoch.get() + 1);
    }

    pub fn passed(&self) -> u64 {
        self.passed.get()
    }

    /// Brings the running thread to the barrier. It then waits with [`Context::suspend`].
    fn arrive(&self, context: &Context<'_>, op: &'static str, vote: bool, site: Site) -> Checked<()> {
        let me = context.me();
        if context.exited.get() > 0 {
            let gone =
                context.threads.iter().position(|thread| thread.wait.get() == Wait::Exited).unwrap_or(0);
            return Err(exit_problem().by(me, site, format!("waits in {op}")).by_exited(context, gone));
        }
        let arrived = self.arrived.get();
        if arrived == 0 {
            self.first.set((me, op));
        } else {
            let (first, first_op) = self.first.get();
            let first_site = context.threads[first].site.get();
            if !same_op(first_op, op) || !first_site.is_some_and(|first_site| same_site(first_site, site)) {
                let what = "threads of a block wait at different barriers";
                return Err(Box::new(
                    Problem::new(FaultKind::BarrierDivergence, what)
                        .by(me, site, format!("came to {op}"))
                        .by(first, first_site, format!("waits in {first_op}")),
                ));
            }
        }
        self.arrived.set(arrived + 1);
        self.votes.set(self.votes.get() + u32::from(vote));
        context.park(Wait::Barrier, site);
        if arrived + 1 == context.threads.len() {
            self.release(context);
        }
        Ok(())
    }

    fn release(&self, context: &Context<'_>) {
        self.epoch.set(self.epoch.get() + 1);
        self.passed.set(self.passed.get() + 1);
        self.result.set(self.votes.replace(0));
        self.arrived.set(0);
        context.threads.iter().for_each(|thread| thread.wait.set(Wait::No));
        context.warps.iter().for_each(|warp| warp.runnable.set(warp.lanes));
    }

    /// A thread returned: nobody may be waiting for it.
    pub fn on_exit(&self, context: &Context<'_>, gone: usize) -> Checked<()> {
        if self.arrived.get() == 0 {
            return Ok(());
        }
        let (first, op) = self.first.get();
        let site = context.threads[first].site.get();
        Err(exit_problem().by(first, site, format!("waits in {op}")).by_exited(context, gone))
    }
}

fn exit_problem() -> Problem {
    let what = "a thread waits at a block barrier that another thread of the block never comes to";
    Problem::new(FaultKind::BarrierDivergence, what)
}

impl Problem {
    /// Adds a thread that returned, with the last place it is known to have been at.
    pub fn by_exited(self, context: &Context<'_>, thread: usize) -> Box<Self> {
        let site = context.threads[thread].site.get();
        let did = if site.is_some() { "returned; it last waited" } else { "returned and never waited" };
        Box::new(self.by(thread, site, did))
    }
}

/// The whole barrier for the running thread: the number of votes.
#[inline(always)]
pub(crate) fn wait(context: &Context<'_>, op: &'static str, vote: bool, site: Site) -> u32 {
    if !arrive(context, op, vote, site) {
        return 0;
    }
    context.suspend();
    context.barrier.result.get()
}

/// False if the thread unwinds, and must not wait.
#[inline(never)]
fn arrive(context: &Context<'_>, op: &'static str, vote: bool, site: Site) -> bool {
    if context.unwinding() {
        return false;
    }
    match context.barrier.arrive(context, op, vote, site) {
        Ok(()) => true,
        Err(problem) => context.fail(*problem, || false),
    }
}
