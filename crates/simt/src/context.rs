//! The state of the block that runs on this OS thread, and how the functions a kernel calls find it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic;
use std::ptr;
use std::rc::Rc;

use corosensei::Yielder;

use crate::async_copy::Queue;
use crate::barrier::Barrier;
use crate::cluster::Cluster;
use crate::fault::{Fault, FaultKind, Problem, Site};
use crate::launch::Launch;
use crate::order::{Order, Random};
use crate::shared::Shared;
use crate::warp::Warp;
use crate::{Dim3, panics};

thread_local! {
    static CURRENT: Cell<*const Context<'static>> = const { Cell::new(ptr::null()) };
}

/// No thread: the scheduler itself runs.
const NOBODY: usize = usize::MAX;

/// How many accesses a thread makes under a fixed order before the others get a turn. Only a thread that
/// spins on what another one writes comes this far without waiting.
const QUANTUM: u32 = 1 << 12;

/// How many accesses a block makes with no thread waiting or returning before it counts as stuck.
const SPIN_LIMIT: u64 = 1 << 27;

/// Everything about a launch and its running block. One per [`Launch::run`], reused from block to block.
pub(crate) struct Context<'a> {
    pub launch: &'a Launch<'a>,
    pub block: Cell<Dim3>,
    /// The index of each thread in its block, so that asking for it costs no division.
    pub thread_index: Vec<Dim3>,
    pub threads: Vec<Thread>,
    pub warps: Vec<Warp>,
    pub barrier: Barrier,
    pub shared: RefCell<Shared>,
    /// The cluster that the block runs in, and its rank there.
    pub cluster: Option<(Rc<Cluster>, u32)>,
    /// The place in the launch's list of the region that was hit last.
    pub last_region: Cell<usize>,
    pub warp_ops: Cell<u64>,
    /// Threads of the block that returned.
    pub exited: Cell<usize>,
    /// Set by a thread that was interrupted: its warp has had its turn.
    pub interrupted: Cell<bool>,
    running: Cell<usize>,
    /// Accesses left until the running thread is interrupted.
    credit: Cell<u32>,
    /// Accesses since a thread last waited or returned.
    idle: Cell<u64>,
    /// Draws the distances between interruptions; `None` under fixed orders.
    interrupts: Option<RefCell<Interrupts>>,
    fault: RefCell<Option<Fault>>,
    /// A fault was found: what still runs only unwinds.
    dead: Cell<bool>,
}

/// What the scheduler and the collectives know of one thread.
pub(crate) struct Thread {
    pub wait: Cell<Wait>,
    /// Where it waits, or where it last waited.
    pub site: Cell<Option<Site>>,
    pub copies: RefCell<Queue>,
    yielder: Cell<*const Yielder<(), ()>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It can run.
    No,
    /// In a block barrier.
    Barrier,
    /// In a warp operation.
    Warp,
    /// In a cluster barrier.
    Cluster,
    /// It returned.
    Exited,
}

struct Interrupts {
    random: Random,
    period: u64,
}

/// Unwinds a thread whose fault is noted in the context already.
struct Raised;

/// The running thread as the shadow of the shared memory sees it.
pub(crate) struct Who<'a> {
    pub thread: u16,
    /// The bit of its lane.
    pub bit: u32,
    /// Which block barrier it passed last, counted over the launch.
    pub epoch: u32,
    pub warp: &'a Warp,
    pub site: Site,
}

impl<'a> Context<'a> {
    pub fn new(launch: &'a Launch<'a>, cluster: Option<(Rc<Cluster>, u32)>) -> Self {
        let block_dim = launch.block_dim();
        let count = block_dim.count() as usize;
        let interrupts = match launch.schedule() {
            Order::Seeded(seed) => {
                let mut random = Random::new(seed ^ 0x7468_7265_6164);
                // Some seeds interrupt all the time, others let threads run far ahead of each other.
                let period = 4 << (2 * random.below(4));
                Some(RefCell::new(Interrupts { random, period }))
            }
            _ => None,
        };
        let context = Context {
            launch,
            block: Cell::new(Dim3 { x: 0, y: 0, z: 0 }),
            thread_index: (0..count).map(|thread| block_dim.index(thread as u64)).collect(),
            threads: (0..count).map(|_| Thread::new()).collect(),
            warps: (0..count.div_ceil(32)).map(|warp| Warp::new(count - warp * 32)).collect(),
            barrier: Barrier::new(),
            shared: RefCell::new(Shared::new(launch)),
            cluster,
            last_region: Cell::new(0),
            warp_ops: Cell::new(0),
            exited: Cell::new(0),
            interrupted: Cell::new(false),
            running: Cell::new(NOBODY),
            credit: Cell::new(QUANTUM),
            idle: Cell::new(0),
            interrupts,
            fault: RefCell::new(None),
            dead: Cell::new(false),
        };
        context.refill_credit();
        context
    }

    /// Makes the state that of a block whose threads all have yet to start.
    pub fn begin_block(&self, index: u64) {
        self.block.set(self.launch.grid_dim().index(index));
        self.threads.iter().for_each(Thread::reset);
        self.warps.iter().for_each(Warp::reset);
        self.barrier.begin_block();
        self.shared.borrow_mut().begin_block(self.launch.schedule().salt(), index);
        self.exited.set(0);
        self.interrupted.set(false);
        self.idle.set(0);
    }

    /// Lets `f` run on behalf of a thread.
    pub fn on_behalf<R>(&self, thread: usize, f: impl FnOnce() -> R) -> R {
        self.running.set(thread);
        let result = f();
        self.running.set(NOBODY);
        result
    }

    /// The running thread's place in its block.
    pub fn me(&self) -> usize {
        self.running.get()
    }

    /// The running thread's warp.
    pub fn warp(&self) -> &Warp {
        &self.warps[self.me() / 32]
    }

    pub fn who(&self, site: Site) -> Who<'_> {
        let thread = self.me();
        let epoch = self.barrier.epoch();
        Who { thread: thread as u16, bit: 1 << (thread % 32), epoch, warp: &self.warps[thread / 32], site }
    }

    /// The kernel is being taken down, so an operation that waits would wait for ever. A destructor in the
    /// kernel gets here.
    pub fn unwinding(&self) -> bool {
        self.dead.get() || std::thread::panicking()
    }

    /// Notes that the running thread starts, with the handle that suspends it.
    pub fn start(&self, yielder: &Yielder<(), ()>) {
        self.threads[self.me()].yielder.set(yielder);
    }

    /// Gives control to the scheduler until it picks the running thread again.
    ///
    /// Inlined, with all callers, into the kernel: the processor mispredicts every return that follows a
    /// switch.
    #[inline(always)]
    pub fn suspend(&self) {
        let thread = &self.threads[self.me()];
        // SAFETY: the running thread's coroutine stored its yielder at its start. The yielder lives as long
        // as the coroutine, and we are on the coroutine's stack.
        unsafe { (*thread.yielder.get()).suspend(()) }
    }

    /// Takes the running thread off the runnable ones, at `site`. It goes on to wait with
    /// [`Context::suspend`].
    pub fn park(&self, wait: Wait, site: Site) {
        let me = self.me();
        self.threads[me].wait.set(wait);
        self.threads[me].site.set(Some(site));
        let runnable = &self.warps[me / 32].runnable;
        runnable.set(runnable.get() & !(1 << (me % 32)));
        self.idle.set(0);
    }

    /// Counts an access of the running thread, and interrupts it when its time has come.
    #[inline]
    pub fn step(&self, site: Site) {
        let left = self.credit.get() - 1;
        self.credit.set(left);
        if left == 0 {
            self.interrupt(site);
        }
    }

    #[cold]
    fn interrupt(&self, site: Site) {
        let spent = self.refill_credit();
        if self.unwinding() {
            return;
        }
        self.idle.set(self.idle.get() + u64::from(spent));
        if self.idle.get() > SPIN_LIMIT {
            let what = format!(
                "no thread of the block waited or returned for {SPIN_LIMIT} accesses; a value that another block \
                 writes can't be waited for"
            );
            self.fail(Problem::new(FaultKind::Deadlock, what).by(self.me(), site, "spins"), || ());
            return;
        }
        self.interrupted.set(true);
        self.suspend();
    }

    /// Returns how many accesses the running thread may make now.
    fn refill_credit(&self) -> u32 {
        let credit = match &self.interrupts {
            None => QUANTUM,
            Some(interrupts) => {
                let Interrupts { random, period } = &mut *interrupts.borrow_mut();
                1 + random.below(*period) as u32
            }
        };
        self.credit.set(credit);
        credit
    }

    /// Notes that the running thread returned, or how it ended.
    pub fn finish(&self, result: Result<(), Box<dyn Any + Send>>) {
        if self.dead.get() {
            return;
        }
        let me = self.me();
        if let Err(payload) = result {
            let problem =
                Problem::new(FaultKind::Panic, panics::describe(&*payload)).by(me, None, "panicked");
            return self.note(problem);
        }
        let (warp, bit) = (self.warp(), 1 << (me % 32));
        self.threads[me].wait.set(Wait::Exited);
        warp.runnable.set(warp.runnable.get() & !bit);
        warp.exited.set(warp.exited.get() | bit);
        self.exited.set(self.exited.get() + 1);
        self.idle.set(0);
        if let Err(problem) = self.barrier.on_exit(self, me).and_then(|()| warp.on_exit(self, me)) {
            self.note(*problem);
        }
    }

    /// Notes a fault; the first one counts.
    pub fn note(&self, problem: Problem) {
        let fault = Fault::new(problem, self.block.get(), self.launch.block_dim(), self.launch.schedule());
        self.fault.borrow_mut().get_or_insert(fault);
        self.dead.set(true);
    }

    /// Ends the running thread with a fault. A thread that unwinds already can't do that again: what it
    /// unwinds for is the fault to tell of, and it goes on with what `instead` gives.
    #[cold]
    pub fn fail<R>(&self, problem: Problem, instead: impl FnOnce() -> R) -> R {
        if self.unwinding() {
            return instead();
        }
        self.note(problem);
        panic::resume_unwind(Box::new(Raised))
    }

    /// A fault was found in another block of the cluster.
    pub fn kill(&self) {
        self.dead.set(true);
    }

    /// A fault was found.
    pub fn is_dead(&self) -> bool {
        self.dead.get()
    }

    pub fn take_fault(&self) -> Option<Fault> {
        self.fault.take()
    }
}

impl Thread {
    fn new() -> Self {
        Thread {
            wait: Cell::new(Wait::No),
            site: Cell::new(None),
            copies: RefCell::new(Queue::default()),
            yielder: Cell::new(ptr::null()),
        }
    }

    fn reset(&self) {
        self.wait.set(Wait::No);
        self.site.set(None);
        self.copies.borrow_mut().clear();
        self.yielder.set(ptr::null());
    }
}

/// Makes a context the current one of this OS thread until dropped.
pub(crate) struct Entered;

impl Entered {
    /// # Safety
    /// The context must stay where it is until the value is dropped.
    pub unsafe fn new(context: &Context<'_>) -> Self {
        CURRENT.set(ptr::from_ref(context).cast());
        Entered
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(ptr::null());
    }
}

/// A launch runs on this OS thread.
pub(crate) fn is_entered() -> bool {
    !CURRENT.get().is_null()
}

/// A kernel, and not the scheduler, runs on this OS thread.
pub(crate) fn in_kernel() -> bool {
    is_entered() && current(|context| context.me() != NOBODY)
}

/// Calls `f` with the context of the running kernel.
#[track_caller]
#[inline(always)]
pub(crate) fn current<R>(f: impl FnOnce(&Context<'_>) -> R) -> R {
    let context = CURRENT.get();
    assert!(!context.is_null(), "a function of `simt` for kernels was called outside of a launch");
    // SAFETY: not null, so `Entered` put it there, and it stays in place until `Entered` clears the pointer.
    // The shortened lifetime of the parameter is covariant.
    f(unsafe { &*context })
}
