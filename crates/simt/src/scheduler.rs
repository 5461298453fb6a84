//! Runs the threads of a block, each as a coroutine, until all have returned or one found a fault.

use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::context::{Context, Entered, Wait};
use crate::fault::{FaultKind, Problem};
use crate::order::{Order, Random};
use crate::stack;

type Fiber = Coroutine<(), (), (), DefaultStack>;

/// Picks the thread that runs next.
pub(crate) struct Scheduler {
    order: Order,
    random: Random,
    /// How many warps, in order, have had their turn.
    turn: usize,
    /// For each warp, the lanes that run before its lanes are looked at again. All of them are runnable.
    batches: Vec<u32>,
    pub switches: u64,
}

impl Scheduler {
    pub fn new(order: Order) -> Self {
        let seed = if let Order::Seeded(seed) = order { seed } else { 0 };
        Scheduler {
            order,
            random: Random::new(seed ^ 0x7761_7270),
            turn: 0,
            batches: Vec::new(),
            switches: 0,
        }
    }

    /// Runs one block. A fault it found is in the context.
    pub fn run_block(&mut self, context: &Context<'_>, index: u64, kernel: &impl Fn()) {
        let mut fibers = self.begin(context, index, kernel);
        self.advance(context, &mut fibers);
        if !context.is_dead() && context.exited.get() < fibers.len() {
            context.note(stall(context));
        }
        end(context, fibers);
    }

    /// Runs a cluster: each block until none of its threads can go on, in turn. A fault that was found is in one of the contexts.
    pub fn run_cluster(
        schedulers: &mut [Scheduler],
        contexts: &[Context<'_>],
        index: u64,
        kernel: &impl Fn(),
    ) {
        let first = index * contexts.len() as u64;
        let mut fibers = Vec::new();
        for (rank, context) in contexts.iter().enumerate() {
            fibers.push(schedulers[rank].begin(context, first + rank as u64, kernel));
        }
        let mut goes_on = true;
        while goes_on && !contexts.iter().any(Context::is_dead) {
            goes_on = false;
            let (start, step) = schedulers[0].round(contexts.len());
            for turn in 0..contexts.len() {
                let rank = (start + turn * step) % contexts.len();
                let (scheduler, context) = (&mut schedulers[rank], &contexts[rank]);
                // SAFETY: the contexts stay in place for the whole run; the value is dropped before the next one is made.
                let _entered = unsafe { Entered::new(context) };
                context.pass_cluster_barrier();
                let switches = scheduler.switches;
                scheduler.advance(context, &mut fibers[rank]);
                goes_on |= scheduler.switches > switches;
                if context.is_dead() {
                    break;
                }
            }
        }
        let stuck = |context: &&Context<'_>| context.exited.get() < context.threads.len();
        if !contexts.iter().any(Context::is_dead)
            && let Some(context) = contexts.iter().find(stuck)
        {
            context.note(stall(context));
        }
        if contexts.iter().any(Context::is_dead) {
            contexts.iter().for_each(Context::kill);
        }
        for (context, fibers) in contexts.iter().zip(fibers) {
            // SAFETY: as above.
            let _entered = unsafe { Entered::new(context) };
            end(context, fibers);
        }
    }

    /// The block of a cluster that runs first, and how far it is from each to the next.
    fn round(&mut self, blocks: usize) -> (usize, usize) {
        match self.order {
            Order::Ascending | Order::WarpReversed => (0, 1),
            Order::Descending => (blocks - 1, blocks - 1),
            Order::Seeded(_) => (self.random.below(blocks as u64) as usize, 1),
        }
    }

    fn begin(&mut self, context: &Context<'_>, index: u64, kernel: &impl Fn()) -> Vec<Fiber> {
        context.begin_block(index);
        self.turn = 0;
        self.batches.clear();
        self.batches.resize(context.warps.len(), 0);
        (0..context.threads.len()).map(|thread| fiber(context, thread, kernel)).collect()
    }

    /// Runs threads until none can go on.
    fn advance(&mut self, context: &Context<'_>, fibers: &mut [Fiber]) {
        while !context.is_dead() {
            let Some(thread) = self.pick(context) else { break };
            self.switches += 1;
            let result = context.on_behalf(thread, || fibers[thread].resume(()));
            debug_assert!(match result {
                CoroutineResult::Yield(()) => !fibers[thread].done(),
                CoroutineResult::Return(()) => fibers[thread].done(),
            });
        }
    }

    #[inline]
    fn pick(&mut self, context: &Context<'_>) -> Option<usize> {
        match self.order {
            Order::Seeded(_) => self.pick_any(context),
            Order::Ascending => self.pick_next(context, false, false),
            Order::Descending => self.pick_next(context, true, true),
            Order::WarpReversed => self.pick_next(context, true, false),
        }
    }

    #[inline]
    fn pick_next(&mut self, context: &Context<'_>, warps_fall: bool, lanes_fall: bool) -> Option<usize> {
        let count = context.warps.len();
        if context.interrupted.take() {
            // The rest of the warp comes when the others have had their turn, or two spinning lanes of
            // different warps would keep everybody else from running.
            self.turn += 1;
        }
        for _ in 0..=count {
            if self.turn >= count {
                self.turn = 0;
            }
            let warp = if warps_fall { count - 1 - self.turn } else { self.turn };
            let batch = &mut self.batches[warp];
            if *batch == 0 {
                *batch = context.warps[warp].runnable.get();
            }
            if *batch != 0 {
                let lane = if lanes_fall { 31 - batch.leading_zeros() } else { batch.trailing_zeros() };
                *batch &= !(1 << lane);
                return Some(warp * 32 + lane as usize);
            }
            self.turn += 1;
        }
        None
    }

    fn pick_any(&mut self, context: &Context<'_>) -> Option<usize> {
        let count = context.warps.len();
        let random = self.random.next();
        let start = (((random >> 32) * count as u64) >> 32) as usize;
        let warp = (start..count).chain(0..start).find(|&warp| context.warps[warp].runnable.get() != 0)?;
        let turn = random as u32 % 32;
        let lane = (context.warps[warp].runnable.get().rotate_right(turn).trailing_zeros() + turn) % 32;
        Some(warp * 32 + lane as usize)
    }
}

fn end(context: &Context<'_>, fibers: Vec<Fiber>) {
    for (thread, mut fiber) in fibers.into_iter().enumerate() {
        // Runs the destructors of a thread that a fault stopped half-way.
        context.on_behalf(thread, || fiber.force_unwind());
        stack::give_back(fiber.into_stack());
    }
}

/// The coroutine of a thread, not started yet.
fn fiber(context: &Context<'_>, thread: usize, kernel: &impl Fn()) -> Fiber {
    let body = move |yielder: &Yielder<(), ()>, ()| {
        context.start(yielder);
        debug_assert_eq!(context.me(), thread);
        context.finish(catch_unwind(AssertUnwindSafe(kernel)));
    };
    // SAFETY: `run_block` drives the coroutine to its end or unwinds it before it returns, and nothing leaks
    // it, so that the context and the kernel outlive it.
    unsafe { Fiber::with_stack_unchecked(stack::take(), body) }
}

/// Why no thread can run although some haven't returned.
fn stall(context: &Context<'_>) -> Problem {
    let stalled = |warp: usize| context.warps[warp].stall(context, warp * 32);
    if let Some(problem) = (0..context.warps.len()).find_map(stalled) {
        return problem;
    }
    let mut problem = Problem::new(FaultKind::Deadlock, "no thread of the block can go on");
    for (thread, state) in context.threads.iter().enumerate().filter(|(_, t)| t.wait.get() != Wait::Exited) {
        problem = problem.by(thread, state.site.get(), "waits");
    }
    problem
}
