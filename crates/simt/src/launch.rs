//! A launch: its shape, its memory, its order.

use std::marker::PhantomData;
use std::mem::size_of_val;
use std::rc::Rc;

use crate::cluster::Cluster;
use crate::context::{Context, Entered, is_entered};
use crate::fault::{Fault, FaultKind, Problem};
use crate::global::Region;
use crate::scheduler::Scheduler;
use crate::{Dim3, Order, panics};

/// Shared memory that a block of a consumer card may have.
const SHARED_LIMIT: usize = 99 * 1024;

/// The shape of a kernel launch, the global memory it may access, and the order its threads run in.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    grid: Dim3,
    block: Dim3,
    /// `None`: what the environment says, or ascending.
    order: Option<Order>,
    dynamic_shared: usize,
    shared_limit: usize,
    poison_readable: bool,
    cluster: u32,
    regions: Vec<Region>,
    /// The registered buffers stay borrowed, the outputs exclusively.
    buffers: PhantomData<&'a mut ()>,
}

/// What a launch did.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Blocks that ran.
    pub blocks: u64,
    /// Block barriers passed, summed over the blocks.
    pub barriers: u64,
    /// Warp operations done, one for all lanes that took part.
    pub warp_ops: u64,
    /// The most shared memory a block used, laid out as on a device.
    pub shared_bytes: usize,
    /// How often a thread got to run.
    pub switches: u64,
}

impl<'a> Launch<'a> {
    /// A launch of `grid` blocks of `block` threads. Its order is [`Order::Ascending`], or the seeded one of
    /// the environment variable `SIMT_SEED`.
    pub fn new(grid: impl Into<Dim3>, block: impl Into<Dim3>) -> Self {
        Launch {
            grid: grid.into(),
            block: block.into(),
            order: None,
            dynamic_shared: 0,
            shared_limit: SHARED_LIMIT,
            poison_readable: false,
            cluster: 1,
            regions: Vec::new(),
            buffers: PhantomData,
        }
    }

    /// Sets the order of threads and blocks, whatever `SIMT_SEED` says.
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// Makes clusters of so many blocks along x.
    pub fn cluster(mut self, blocks: u32) -> Self {
        self.cluster = blocks;
        self
    }

    /// Sets the size of the dynamic part of the shared memory.
    pub fn dynamic_shared(mut self, bytes: usize) -> Self {
        self.dynamic_shared = bytes;
        self
    }

    /// Sets how much shared memory a block may have in all; 99 KiB if not set.
    pub fn shared_limit(mut self, bytes: usize) -> Self {
        self.shared_limit = bytes;
        self
    }

    /// Lets a kernel read shared bytes that it never wrote. They hold not-a-numbers that differ from block to
    /// block and from order to order, so a result that depends on them shows. For kernels that move padding
    /// around.
    pub fn readable_poison(mut self) -> Self {
        self.poison_readable = true;
        self
    }

    /// Registers memory that the kernel may read. Only its place is kept: it has to stay where it is, and not
    /// change, until the runs of this launch are over.
    pub fn input<T: bytemuck::NoUninit>(mut self, name: &'static str, data: &'a [T]) -> Self {
        let start = data.as_ptr().addr();
        self.regions.push(Region { name, start, bytes: size_of_val(data), writable: false });
        self
    }

    /// Registers memory that the kernel may read and write. Only its place is kept: it has to stay where it
    /// is, and nothing but the kernel may access it, until the runs of this launch are over.
    pub fn output<T: bytemuck::Pod>(mut self, name: &'static str, data: &'a mut [T]) -> Self {
        let start = data.as_ptr().addr();
        self.regions.push(Region { name, start, bytes: size_of_val(data), writable: true });
        self
    }

    /// Runs every thread of every block; `kernel` is called once for each. Returns the first fault, after
    /// running the destructors of the threads it stopped.
    ///
    /// # Panics
    /// When called inside a kernel.
    pub fn run(&self, kernel: impl Fn()) -> Result<Stats, Fault> {
        assert!(!is_entered(), "`Launch::run` was called inside a kernel");
        self.check()?;
        panics::install_hook();
        if self.cluster > 1 {
            return self.run_clusters(&kernel);
        }
        let context = Context::new(self, None);
        // SAFETY: `context` stays in place until the end of this function, where `_entered` is dropped before
        // it.
        let _entered = unsafe { Entered::new(&context) };
        let mut scheduler = Scheduler::new(self.schedule());
        let mut blocks = 0;
        for index in self.schedule().blocks(self.grid.count()) {
            scheduler.run_block(&context, index, &kernel);
            if let Some(fault) = context.take_fault() {
                return Err(fault);
            }
            blocks += 1;
        }
        Ok(Stats {
            blocks,
            barriers: context.barrier.passed(),
            warp_ops: context.warp_ops.get(),
            shared_bytes: context.shared.borrow().largest(),
            switches: scheduler.switches,
        })
    }

    fn run_clusters(&self, kernel: &impl Fn()) -> Result<Stats, Fault> {
        let size = self.cluster as usize;
        let cluster = Rc::new(Cluster::new(size * self.block.count() as usize));
        let context = |rank| Context::new(self, Some((cluster.clone(), rank)));
        let contexts: Vec<Context<'_>> = (0..self.cluster).map(context).collect();
        // SAFETY: `contexts` does not change until the end of this function.
        unsafe { cluster.set_blocks(&contexts) };
        let mut schedulers: Vec<Scheduler> = (0..size).map(|_| Scheduler::new(self.schedule())).collect();
        let mut stats = Stats::default();
        for index in self.schedule().blocks(self.grid.count() / u64::from(self.cluster)) {
            cluster.begin();
            Scheduler::run_cluster(&mut schedulers, &contexts, index, kernel);
            if let Some(fault) = contexts.iter().find_map(Context::take_fault) {
                return Err(fault);
            }
            stats.blocks += u64::from(self.cluster);
        }
        for (context, scheduler) in contexts.iter().zip(&schedulers) {
            stats.barriers += context.barrier.passed();
            stats.warp_ops += context.warp_ops.get();
            stats.shared_bytes = stats.shared_bytes.max(context.shared.borrow().largest());
            stats.switches += scheduler.switches;
        }
        Ok(stats)
    }

    /// The limits of every current device.
    fn check(&self) -> Result<(), Fault> {
        let Launch { grid, block, .. } = self;
        let what = if grid.count() == 0 || grid.x > i32::MAX as u32 || grid.y > 65535 || grid.z > 65535 {
            format!("a grid of {grid} blocks")
        } else if block.count() == 0 || block.count() > 1024 || block.z > 64 {
            format!("a block of {block} threads")
        } else if !matches!(self.cluster, 1 | 2 | 4 | 8) || !grid.x.is_multiple_of(self.cluster) {
            format!("clusters of {} blocks in a grid of {grid}", self.cluster)
        } else if self.dynamic_shared > self.shared_limit {
            let what =
                format!("{} bytes of dynamic shared memory of {}", self.dynamic_shared, self.shared_limit);
            return Err(self.refuse(FaultKind::SharedLimit, what));
        } else {
            return Ok(());
        };
        Err(self.refuse(FaultKind::Launch, what))
    }

    fn refuse(&self, kind: FaultKind, what: String) -> Fault {
        Fault::new(Problem::new(kind, what), Dim3 { x: 0, y: 0, z: 0 }, self.block, self.schedule())
    }

    pub(crate) fn grid_dim(&self) -> Dim3 {
        self.grid
    }

    pub(crate) fn block_dim(&self) -> Dim3 {
        self.block
    }

    pub(crate) fn schedule(&self) -> Order {
        self.order.unwrap_or_else(Order::from_env)
    }

    pub(crate) fn dynamic_bytes(&self) -> usize {
        self.dynamic_shared
    }

    pub(crate) fn limit(&self) -> usize {
        self.shared_limit
    }

    pub(crate) fn is_poison_readable(&self) -> bool {
        self.poison_readable
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }
}
