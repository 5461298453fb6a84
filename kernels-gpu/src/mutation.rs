//! Deliberate faults in the kernels, so that the tests can show that they would catch one. They exist only on the host with
//! the feature `mutations`, which nothing but this workspace's tests enables.

/// A fault; each is one line in the kernel that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// `keyhead` passes its token barrier without waiting.
    KeyheadDropsTokenBarrier,
    /// `keyhead` reads a staged block without waiting for its copies.
    KeyheadSkipsStageWait,
    /// `scan` reads a staged block without waiting for its copies.
    ScanSkipsStageWait,
    /// `scan` reads a block's decays without waiting for the lanes that write them.
    ScanDropsWarpBarrier,
    /// `pipe` passes the barrier behind the kv partial sums without waiting.
    PipeDropsKvBarrier,
    /// `sieve` takes a chunk less than a selection may touch.
    SieveKeepsOneChunkLess,
    /// `sieve` keeps the highest ties.
    SieveKeepsHighTies,
    /// `sieve` takes keys for ties that differ in their lower digits, and cuts one of them.
    SieveCutsEarly,
    /// `sieve` counts a tail with few cells as a whole block.
    SieveTakesTailForWhole,
    /// `sieve` reads its list without waiting for it.
    SieveDropsListBarrier,
    /// `cols` passes the barrier behind the o partial sums, before the next rows, without waiting.
    ColsDropsOBarrier,
    /// `heads` passes the barrier behind the o partial sums, before the next rows, without waiting.
    HeadsDropsOBarrier,
    /// `heads_norm` passes the barrier behind the sums of squares without waiting.
    HeadsNormDropsNormBarrier,
    /// `heads_norm` sums the squares of a group of columns twice instead of another's.
    HeadsNormRepeatsGroup,
    /// `conv` multiplies the oldest token by the current one's tap.
    ConvReversesTaps,
    /// `conv` stores rows of tokens that do not exist.
    ConvStoresPastTheEnd,
    /// `conv` of two tokens leaves the history's entries where they were.
    ConvKeepsHistoryInPlace,
}

#[cfg(all(feature = "mutations", not(target_arch = "nvptx64")))]
mod switch {
    use super::Mutation;
    use std::cell::Cell;

    thread_local! {
        static ACTIVE: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    pub fn is(mutation: Mutation) -> bool {
        ACTIVE.get() == Some(mutation)
    }

    /// Runs `body` with `mutation` in force on this thread.
    pub fn with<R>(mutation: Mutation, body: impl FnOnce() -> R) -> R {
        ACTIVE.set(Some(mutation));
        let result = body();
        ACTIVE.set(None);
        result
    }
}

#[cfg(all(feature = "mutations", not(target_arch = "nvptx64")))]
pub use switch::with;

/// Whether `mutation` is in force; a constant `false` in every build that ships.
#[inline(always)]
pub(crate) fn is(mutation: Mutation) -> bool {
    #[cfg(all(feature = "mutations", not(target_arch = "nvptx64")))]
    {
        switch::is(mutation)
    }
    #[cfg(not(all(feature = "mutations", not(target_arch = "nvptx64"))))]
    {
        let _ = mutation;
        false
    }
}
