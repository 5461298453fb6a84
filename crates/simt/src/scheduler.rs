//! Runs the threads of a block, each as a coroutine, until all have returned or one found a fault.

use std::panic::{AssertUnwindSafe, catch_unwind};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::context::{Context, Wait};
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
        context.begin_block(index);
        self.turn = 0;
        self.batches.clear();
        self.batches.resize(context.warps.len(), 0);
        let mut fibers: Vec<Fiber> =
            (0..context.threads.len()).map(|thread| fiber(context, thread, kernel)).collect();

        while !context.is_dead() {
            let Some(thread) = self.pick(context) else {
                if context.exited.get() < fibers.len() {
                    context.note(stall(context));
                }
                break;
            };
            self.switches += 1;
            let result = context.on_behalf(thread, || fibers[thread].resume(()));
            debug_assert!(match result {
                CoroutineResult::Yield(()) => !fibers[thread].done(),
                CoroutineResult::Return(()) => fibers[thread].done(),
            });
        }

        for (thread, mut fiber) in fibers.into_iter().enumerate() {
            // Runs the destructors of a thread that a fault stopped half-way.
            context.on_behalf(thread, || fiber.force_unwind());
            stack::give_back(fiber.into_stack());
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
