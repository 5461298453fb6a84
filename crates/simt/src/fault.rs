//! What a launch says when a kernel breaks a rule.

use std::fmt;
use std::panic::Location;

use crate::{Dim3, Order};

/// A place in a kernel's source.
pub(crate) type Site = &'static Location<'static>;

/// Two sites are the same place. One place can have two `Location` objects, one per codegen unit.
pub(crate) fn same_site(a: Site, b: Site) -> bool {
    std::ptr::eq(a, b) || a == b
}

/// Two operations are the same one. Most are the same text in memory, which saves comparing it.
pub(crate) fn same_op(a: &'static str, b: &'static str) -> bool {
    std::ptr::eq(a, b) || a == b
}

/// Which rule a kernel broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// Threads of a block wait at different block barriers, or one returned while another waits.
    BarrierDivergence,
    /// The mask of a warp operation lacks its caller, names lanes that the block doesn't have, or differs
    /// between the lanes that should meet.
    WarpMask,
    /// Lanes that should meet in a warp operation returned or wait in another one.
    WarpDivergence,
    /// A shared access outside all arrays of the block.
    SharedBounds,
    /// A read of shared bytes that nobody wrote in this block.
    SharedUninitialised,
    /// Two threads access the same shared bytes, one of them writing, with nothing that orders them.
    SharedRace,
    /// The block's arrays need more shared memory than the launch may have.
    SharedLimit,
    /// A global access outside all registered memory, or a write to memory registered as input.
    GlobalBounds,
    /// Shared bytes accessed while an asynchronous copy to them is in flight.
    AsyncPending,
    /// An address that isn't a multiple of the access's size.
    Alignment,
    /// The kernel panicked.
    Panic,
    /// Every thread waits, and none can go on; or threads spin on something that doesn't come.
    Deadlock,
    /// A launch that no device accepts: an empty or too large grid or block, a copy of a size that doesn't
    /// exist.
    Launch,
}

/// A broken rule: which, where, by whom, and how to see it again.
pub struct Fault(Box<Report>);

struct Report {
    problem: Problem,
    block: Dim3,
    /// `problem.parties` with their indices in the block.
    threads: Vec<Dim3>,
    order: Order,
}

impl Fault {
    pub(crate) fn new(problem: Problem, block: Dim3, block_dim: Dim3, order: Order) -> Self {
        let threads = problem.parties.iter().map(|party| block_dim.index(party.thread as u64)).collect();
        Fault(Box::new(Report { problem, block, threads, order }))
    }

    /// Which rule was broken.
    pub fn kind(&self) -> FaultKind {
        self.0.problem.kind
    }

    /// The block it happened in.
    pub fn block(&self) -> Dim3 {
        self.0.block
    }

    /// The threads that took part, the one that was stopped first.
    pub fn threads(&self) -> &[Dim3] {
        &self.0.threads
    }

    /// The schedule it happened under.
    pub fn order(&self) -> Order {
        self.0.order
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { problem, block, threads, order } = &*self.0;
        writeln!(f, "{:?}: {}", problem.kind, problem.what)?;
        writeln!(f, "  block  {block}")?;
        for (thread, party) in threads.iter().zip(&problem.parties) {
            match party.site {
                Some(site) => writeln!(f, "  thread {thread} {} at {site}", party.did)?,
                None => writeln!(f, "  thread {thread} {}", party.did)?,
            }
        }
        write!(f, "  order  {order}; replay with {}", order.replay())
    }
}

/// The `Display` text, which is what a test that unwraps shows.
impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Fault {}

/// A broken rule as the code that finds it knows it, without block and order.
pub(crate) struct Problem {
    kind: FaultKind,
    what: String,
    parties: Vec<Party>,
}

struct Party {
    thread: usize,
    did: String,
    site: Option<Site>,
}

impl Problem {
    #[cold]
    pub fn new(kind: FaultKind, what: impl Into<String>) -> Self {
        Problem { kind, what: what.into(), parties: Vec::new() }
    }

    pub fn kind(&self) -> FaultKind {
        self.kind
    }

    /// Adds a thread and what it did; the one that is stopped comes first.
    pub fn by(mut self, thread: usize, site: impl Into<Option<Site>>, did: impl Into<String>) -> Self {
        self.parties.push(Party { thread, did: did.into(), site: site.into() });
        self
    }
}

/// Boxed, so that the results on the fast paths stay small.
pub(crate) type Checked<T> = Result<T, Box<Problem>>;
