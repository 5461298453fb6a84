//! The block top-k kernels of one device, on raw device addresses: the block scores, and the selection.

mod host;

use std::sync::Arc;

use kernels_gpu::params::{Global, GlobalMut, ScoresArgs, TopkArgs};
use kernels_gpu::topk::{cluster, histogram, original, scores, sieve, split};

use super::gdn::check_address;
use super::memo::Memo;
use super::{Device, DeviceBuffer, Kernels, Stream};
use crate::error::{Error, Result};
use crate::topk::{self, INDEX_DIM, Kernel, Plan, Request, Switches, TopkShape};

/// A selection on device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTopk {
    pub shape: TopkShape,
    /// `[queries][stride]` f32, read only.
    pub scores: u64,
    /// `[queries][4]` i32: pos, n_kv, n_bid, width, as [`Step`](crate::topk::Step) has them; `n_bid < stride`, and `width` is at most the
    /// shape's. Read when the kernel runs.
    pub steps: u64,
    /// `[queries][cap]` i32; of each row the first `width` are written.
    pub ids: u64,
    /// The largest `n_bid + 1` of the call, where the caller knows it; `None` for a call that becomes part of a graph.
    pub active: Option<usize>,
    /// The maxima that [`Topk::scores`] left of these scores, which spare `sieve` most of its reading; other kernels ignore them.
    pub maxima: Option<DeviceMaxima>,
}

/// The largest key of each chunk of a row of scores.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMaxima {
    /// `[queries][`[`len`](Self::len)`]` u32, 16-byte aligned.
    pub address: u64,
    /// The largest `n_bid + 1` that a query can have, when they are written and when they are read: it fixes the size of the chunks.
    pub reach: usize,
}

impl DeviceMaxima {
    /// Words a query, 0 where rows are so short that `sieve` wants no maxima. `None` for rows that are too long for them.
    pub fn len(reach: usize) -> Option<usize> {
        let reach = u32::try_from(reach).ok()?;
        (sieve::chunk_shift(reach) <= scores::LARGEST_CHUNK).then(|| sieve::maxima_stride(reach))
    }

    /// Errors: `Argument`, `Alignment`.
    fn check(&self, stride: usize) -> Result<()> {
        let len = Self::len(self.reach).filter(|_| self.reach <= stride).ok_or_else(|| {
            let accepted = format!("at most the stride, {stride}, and the 589760 blocks that maxima are for");
            Error::argument("maxima.reach", self.reach, accepted)
        })?;
        if len == 0 { Ok(()) } else { check_address("maxima", self.address, 16) }
    }
}

/// Block scores on device memory. All addresses but that of `scores` and `steps` are multiples of 16.
#[derive(Clone, Copy, Debug)]
pub struct DeviceScores {
    pub queries: usize,
    /// `[blocks][128]` f32, with the complete blocks of every query.
    pub pooled: u64,
    /// `[128]` f32, or `[queries][128]`.
    pub tail: u64,
    /// Whether each query has a tail key of its own.
    pub tail_per_query: bool,
    /// `[queries][4][128]` f32.
    pub q_idx: u64,
    /// `[queries][4]` i32: pos, n_kv, n_bid, width; `n_bid < reach`.
    pub steps: u64,
    /// `[queries][stride]` f32; of each row the blocks `0..=n_bid` are written.
    pub scores: u64,
    /// In elements.
    pub stride: usize,
    /// The largest `n_bid + 1` that a query can have; at most `stride`.
    pub reach: usize,
    /// Where to write the largest key of each chunk, for [`DeviceTopk::maxima`] with the same reach; 0 where nobody wants them.
    pub maxima: u64,
}

/// One launch of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub entry: &'static str,
    pub grid: [u32; 3],
    pub threads: u32,
}

impl DeviceTopk {
    /// What the plan is asked for.
    pub fn request(&self, kernel: Option<Kernel>) -> Request {
        Request { active: self.active, kernel, ..Request::new(self.shape) }
    }

    /// The record that every selection kernel takes.
    pub(crate) fn args(&self, reach: usize, scratch: u64) -> TopkArgs {
        TopkArgs {
            scores: Global::from_address(self.scores),
            steps: Global::from_address(self.steps),
            ids: GlobalMut::from_address(self.ids),
            scratch: GlobalMut::from_address(scratch),
            stride: self.shape.stride() as u64,
            cap: self.shape.cap() as u64,
            queries: self.shape.queries() as u32,
            reach: reach as u32,
        }
    }
}

/// The launches of a selection, in their order. `sms` are the device's multiprocessors.
pub(crate) fn launches(kernel: Kernel, queries: usize, reach: usize, sms: usize) -> Vec<Launch> {
    let launch = |entry, blocks: usize, threads: usize| Launch {
        entry,
        grid: [blocks as u32, 1, 1],
        threads: threads as u32,
    };
    match kernel {
        Kernel::Original => vec![launch("original", queries, original::THREADS)],
        Kernel::Register => vec![launch("register", queries, histogram::THREADS)],
        Kernel::Wide => vec![launch("wide", queries, histogram::THREADS)],
        Kernel::Split => vec![
            launch("split_halves", 2 * queries, histogram::THREADS),
            launch("split_merge", queries, histogram::THREADS),
        ],
        Kernel::Sieve => match sieve::split_parts(queries.max(1), reach, sms) {
            1 => vec![launch("sieve_rows", queries, sieve::THREADS)],
            parts => {
                let grid = [parts as u32, queries as u32, 1];
                vec![Launch { entry: "sieve_split", grid, threads: sieve::THREADS as u32 }]
            }
        },
        Kernel::Cluster => vec![launch("cluster", queries * cluster::BLOCKS as usize, cluster::THREADS)],
    }
}

/// The launch of `sieve` with the maxima at hand, which are its scratch.
pub(crate) fn maxima_launch(queries: usize) -> Launch {
    Launch { entry: "sieve_maxima", grid: [queries as u32, 1, 1], threads: sieve::THREADS as u32 }
}

/// Words of scratch of a launch. The first `queries` of `sieve_split` are 0 whenever it does not run, the others may be anything.
pub(crate) fn scratch_len(launch: &Launch, shape: TopkShape) -> usize {
    match launch.entry {
        "sieve_split" => sieve::split_scratch(shape.queries()),
        "split_halves" | "split_merge" => shape.queries().saturating_mul(split::scratch_len(shape.cap())),
        _ => 0,
    }
}

impl DeviceScores {
    /// The record that `scores` takes.
    pub(crate) fn args(&self) -> ScoresArgs {
        ScoresArgs {
            pooled: Global::from_address(self.pooled),
            tail: Global::from_address(self.tail),
            q_idx: Global::from_address(self.q_idx),
            steps: Global::from_address(self.steps),
            scores: GlobalMut::from_address(self.scores),
            maxima: GlobalMut::from_address(self.maxima),
            stride: self.stride as u64,
            maxima_stride: DeviceMaxima::len(self.reach).unwrap_or(0) as u64,
            tail_stride: if self.tail_per_query { INDEX_DIM as u64 } else { 0 },
            queries: self.queries as u32,
            reach: self.reach as u32,
        }
    }

    /// The blocks of a launch.
    pub(crate) fn blocks(&self) -> usize {
        self.queries.div_ceil(scores::QUERIES).saturating_mul(self.reach.div_ceil(scores::BLOCKS))
    }
}

/// Device memory that a selection works in, kept by the caller from call to call. Calls that may run at the same time need one each.
///
/// Made by [`Topk::workspace`].
pub struct TopkWorkspace {
    /// What `sieve_split` needs, then what `split` does.
    words: DeviceBuffer<u32>,
    /// Queries that `sieve_split` has room for.
    sieve_queries: usize,
    /// Where the scratch of `split` begins.
    split: usize,
}

impl TopkWorkspace {
    /// The address of the scratch of a launch.
    fn scratch(&self, launch: &Launch, shape: TopkShape) -> Result<u64> {
        let len = scratch_len(launch, shape);
        let (start, room) = match launch.entry {
            _ if len == 0 => return Ok(0),
            // Maxima begin at the same word whatever the number of queries, so that they never lie where another call's counters are.
            "sieve_split" if shape.queries() <= self.sieve_queries => {
                (self.sieve_queries.next_multiple_of(32) - shape.queries().next_multiple_of(32), len)
            }
            "sieve_split" => (0, 0),
            _ => (self.split, self.words.len() - self.split),
        };
        if room < len {
            let found = format!("one with {room} words for `{}`", launch.entry);
            let accepted =
                format!("one made for at least {} queries and a cap of {}", shape.queries(), shape.cap());
            return Err(Error::argument("workspace", found, accepted));
        }
        self.words.at(start)
    }

    /// Queues the setting of every byte that no selection depends on.
    pub(crate) fn fill(&mut self, stream: &Stream, byte: u8) -> Result<()> {
        self.words.memset_u8_from(stream, self.sieve_queries.next_multiple_of(32), byte)
    }
}

/// The block top-k kernels, loaded on one device. Clones share them; use from any thread.
#[derive(Clone, Debug)]
pub struct Topk {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kernels: Kernels,
    switches: Switches,
    plans: Memo<Request, Plan>,
}

impl Topk {
    /// The kernels in `kernels`. Reads the switches in the environment, once.
    pub fn new(kernels: &Kernels) -> Topk {
        let inner =
            Inner { kernels: kernels.clone(), switches: Switches::from_env(), plans: Memo::default() };
        Topk { inner: Arc::new(inner) }
    }

    pub fn device(&self) -> &Device {
        self.inner.kernels.device()
    }

    /// Which kernel runs, and why; asked once per request, then remembered.
    ///
    /// Errors: `Variant` or `Argument` for one that is asked for, by the request or a switch, and cannot run.
    pub fn plan(&self, request: &Request) -> Result<Plan> {
        self.inner.plans.get(request, || {
            let facts = self.device().facts();
            let device = topk::Device { major: facts.major, minor: facts.minor };
            Plan::new(&device, request, &self.inner.switches)
        })
    }

    /// What calls of this shape, and of shapes with no more queries and no larger `cap`, need to work in, whatever kernel runs. Waits for the
    /// device.
    ///
    /// Errors: `DeviceMemory`, or the driver's own.
    pub fn workspace(&self, shape: TopkShape) -> Result<TopkWorkspace> {
        // More than half as many queries as multiprocessors leave no two for one.
        let sieve_queries = shape.queries().min(self.sms() / 2);
        let split = sieve::split_scratch(sieve_queries);
        let len = split.saturating_add(shape.queries().saturating_mul(split::scratch_len(shape.cap())));
        let mut words = DeviceBuffer::alloc(self.device(), "the top-k workspace", len)?;
        let stream = Stream::new(self.device())?;
        words.memset_u8(&stream, 0)?;
        stream.synchronize()?;
        Ok(TopkWorkspace { words, sieve_queries, split })
    }

    fn sms(&self) -> usize {
        self.device().facts().sms as usize
    }

    /// Queues the selection on the stream, by the plan's kernel or the one asked for, and returns the plan. No queries: no launch.
    /// Nothing is allocated, so the call may be captured into a graph, whose replays read the steps anew; the workspace must then live as long
    /// as the graph.
    ///
    /// Errors: `Alignment`, `Variant`, `Argument` (active, maxima, workspace), or the driver's own. A fault while the kernel runs is reported by
    /// a later call on the stream.
    ///
    /// # Safety
    /// The addresses are of live device memory of the sizes that [`DeviceTopk`] states, on this device; the steps keep within the shape and
    /// `active`; ids overlap nothing, and nobody else touches them or the workspace until the kernel has run.
    pub unsafe fn select(
        &self,
        stream: &Stream,
        call: &DeviceTopk,
        workspace: &TopkWorkspace,
        kernel: Option<Kernel>,
    ) -> Result<Plan> {
        let shape = call.shape;
        self.device().check_own("workspace", workspace.words.device())?;
        if let Some(active) = call.active.filter(|&active| active > shape.stride()) {
            return Err(Error::argument("active", active, format!("at most the stride, {}", shape.stride())));
        }
        let plan = self.plan(&call.request(kernel))?;
        let launches = launches(plan.kernel, shape.queries(), plan.reach, self.sms());
        if shape.queries() == 0 {
            return Ok(plan);
        }
        for (tensor, address) in [("scores", call.scores), ("steps", call.steps), ("ids", call.ids)] {
            check_address(tensor, address, 4)?;
        }
        if let (Kernel::Sieve, Some(maxima)) = (plan.kernel, call.maxima) {
            maxima.check(shape.stride())?;
            let args = call.args(maxima.reach, maxima.address);
            // SAFETY: the record is the entry's; the caller's promise about the memory.
            unsafe { self.launch(stream, &maxima_launch(shape.queries()), &args)? };
            return Ok(plan);
        }
        for launch in launches {
            let args = call.args(plan.reach, workspace.scratch(&launch, shape)?);
            // SAFETY: the record is the entry's; the caller's promise about the memory.
            unsafe { self.launch(stream, &launch, &args)? };
        }
        Ok(plan)
    }

    /// # Safety
    /// `args` describes memory that is there until the kernel has run.
    unsafe fn launch(&self, stream: &Stream, launch: &Launch, args: &TopkArgs) -> Result<()> {
        let kernel = self.inner.kernels.get(launch.entry)?;
        // SAFETY: the record is that of every selection kernel; the caller's promise about the memory.
        unsafe { kernel.launch_with(stream, launch.grid, [launch.threads, 1, 1], 0, args) }
    }

    /// Queues the block scores on the stream. No queries: no launch.
    ///
    /// Errors: `Argument` (reach, maxima, queries), `Alignment`, or the driver's own.
    ///
    /// # Safety
    /// The addresses are of live device memory of the sizes that [`DeviceScores`] states, on this device; the steps keep within `reach`;
    /// scores overlap nothing, and nobody else touches them until the kernel has run.
    pub unsafe fn scores(&self, stream: &Stream, call: &DeviceScores) -> Result<()> {
        if call.reach > call.stride {
            return Err(Error::argument("reach", call.reach, format!("at most the stride, {}", call.stride)));
        }
        let blocks = call.blocks();
        if blocks > i32::MAX as usize {
            let accepted = "at most 2147483647 pieces of 8 queries x 64 blocks";
            return Err(Error::argument("queries", format!("{} x {}", call.queries, call.reach), accepted));
        }
        if blocks == 0 {
            return Ok(());
        }
        for (tensor, address) in [("pooled", call.pooled), ("tail", call.tail), ("q_idx", call.q_idx)] {
            check_address(tensor, address, 16)?;
        }
        for (tensor, address) in [("steps", call.steps), ("scores", call.scores)] {
            check_address(tensor, address, 4)?;
        }
        if call.maxima != 0 {
            DeviceMaxima { address: call.maxima, reach: call.reach }.check(call.stride)?;
        }
        let kernel = self.inner.kernels.get("scores")?;
        let args = call.args();
        // SAFETY: the record is the entry's; the caller's promise about the memory.
        unsafe { kernel.launch_with(stream, [blocks as u32, 1, 1], [scores::THREADS as u32, 1, 1], 0, &args) }
    }
}
