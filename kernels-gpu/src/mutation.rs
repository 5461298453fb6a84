//! Deliberate faults in the kernels, so that the tests can show that they would catch one. They exist only on the host with
//! the feature `mutations`, which nothing but this workspace's tests enables.

/// A fault; each is one line in the kernel that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Every recurrence: the other map from key heads to value heads.
    SwapsHeadMap,
    /// Every recurrence: the parts of the row groups are summed from the last.
    ReversesRowGroups,
    /// `heads` passes the barrier behind the o partial sums, before the next rows, without waiting.
    HeadsDropsOBarrier,
    /// `heads` stages q but not k.
    HeadsStagesNoKey,
    /// `heads_norm` passes the barrier behind the sums of squares without waiting.
    HeadsNormDropsNormBarrier,
    /// `heads_norm` sums the squares of a group of columns twice instead of another's.
    HeadsNormRepeatsGroup,
    /// `heads_norm` sums neighbouring lanes first.
    HeadsNormRisingDistances,
    /// `cols` passes the barrier behind the rows without waiting.
    ColsDropsRowBarrier,
    /// `cols` passes the barrier behind the o partial sums, before the next rows, without waiting.
    ColsDropsOBarrier,
    /// `pipe` passes the barrier behind the kv partial sums without waiting.
    PipeDropsKvBarrier,
    /// `pipe` stages every token in the same rows.
    PipeReusesRows,
    /// `pipe` loads the inputs behind the last token.
    PipeLoadsPastTheEnd,
    /// `keyhead` passes its token barrier without waiting.
    KeyheadDropsTokenBarrier,
    /// `keyhead` reads a staged block without waiting for its copies.
    KeyheadSkipsStageWait,
    /// `keyhead` stages every block in the same buffer.
    KeyheadOneBuffer,
    /// `keyhead` copies the values and scalars of one token too many.
    KeyheadStagesPastTheEnd,
    /// `keyhead` takes a decay from the lane next to the right one.
    KeyheadTakesTheNextDecay,
    /// `scan` reads a staged block without waiting for its copies.
    ScanSkipsStageWait,
    /// `scan` reads a block's decays without waiting for the lanes that write them.
    ScanDropsWarpBarrier,
    /// `scan` stages a block over the one that is read next.
    ScanStagesOverTheNextBlock,
    /// `scan` copies the values of one token too many.
    ScanStagesPastTheEnd,
    /// `scan` takes the kv sums of the columns next to its own.
    ScanTakesTheNextPair,
    /// A row's warp sums neighbouring lanes first.
    RowRisingDistances,
    /// A row's groups are summed from the last.
    RowReversesGroups,
    /// `out_norm` does a head that does not exist.
    OutNormOneHeadMore,
    /// `out_norm` stores four values at once where they are not aligned for it.
    OutNormStoresUnaligned,
    /// `conv` multiplies the oldest token by the current one's tap.
    ConvReversesTaps,
    /// `conv` stores rows of tokens that do not exist.
    ConvStoresPastTheEnd,
    /// `conv` of two tokens leaves the history's entries where they were.
    ConvKeepsHistoryInPlace,
    /// `conv` takes the history for what comes before any tile.
    ConvTakesHistoryInEveryTile,
    /// `conv` starts the chain of a channel from its neighbour's bias.
    ConvTakesTheNextBias,
    /// What reads ahead through shared memory reads a row without waiting for its copy.
    RingSkipsWait,
    /// What reads ahead through shared memory reads the slot behind the right one.
    RingReadsTheNextSlot,
    /// What reads ahead through shared memory copies to the slot behind the right one.
    RingCopiesToTheNextSlot,
    /// What reads ahead through shared memory copies the row of a token that does not exist.
    RingCopiesPastTheEnd,
    /// What reads ahead in registers reads the row of a token that does not exist.
    RegistersReadPastTheEnd,
    /// What reads ahead in registers reads a tile's second row again and again.
    RegistersStandStill,
    /// `prepare` normalises the v rows, too.
    PrepareNormalisesValues,
    /// `l2norm`, and what does the same in `prepare`, takes the mean of the squares for their sum.
    L2NormTakesTheMean,
    /// `l2norm` does the first v head, too.
    L2NormOneHeadMore,
    /// `gates` does a token that does not exist.
    GatesOneTokenMore,
    /// `gates` stops when each of a block's threads has done a value.
    GatesStopAfterABlock,
    /// `gates` takes b for a.
    GatesTakeBForA,
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
    /// The first block of `sieve_split` selects, not the last one.
    SieveSplitTakesFirst,
    /// `sieve_split` does not put its counter back.
    SieveSplitLeavesCounter,
    /// `sieve_maxima` does not read the last chunk's maximum.
    SieveMaximaLoseLast,
    /// The block top-k reads the folded histogram without waiting for it.
    HistogramDropsFoldBarrier,
    /// The block top-k counts the tail as a whole block.
    SelectCountsTailWhole,
    /// The block top-k places its output without waiting for the other warps' totals.
    SelectDropsTotalsBarrier,
    /// The block top-k gives all tied blocks of a row of 32 the first one's place.
    SelectLosesTies,
    /// `original` counts the tail as a whole block.
    OriginalCountsTailWhole,
    /// `original` reads the search's result without waiting for thread 0.
    OriginalDropsSearchBarrier,
    /// `split` leaves out the block of a half that is cut.
    SplitRoundsTiesDown,
    /// `split` counts the second half's blocks from the first half's start.
    SplitForgetsHalf,
    /// `scores` reads the staged keys without waiting for them.
    ScoresDropsTileBarrier,
    /// `scores` takes a tail of no cells for one with cells.
    ScoresTakesEmptyTail,
    /// A block of `cluster` reads the counts of the others without waiting for them.
    ClusterDropsSlotBarrier,
    /// A block of `cluster` takes itself for the first.
    ClusterForgetsOtherBlocks,
    /// `cluster` writes all cells of every tie.
    ClusterDoesNotCut,
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
