//! Warp collectives. Every lane named in `mask` calls the same collective at the same place with the same mask; the
//! SIMT executor checks that, hardware does not.

/// All 32 lanes.
pub const FULL: u32 = u32::MAX;

#[cfg(target_arch = "nvptx64")]
mod intrinsics {
    unsafe extern "C" {
        #[link_name = "llvm.nvvm.read.ptx.sreg.laneid"]
        pub fn lane_id() -> u32;
        #[link_name = "llvm.nvvm.bar.warp.sync"]
        pub fn bar_warp_sync(mask: u32);
        #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
        pub fn shfl_idx(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
        #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
        pub fn shfl_xor(mask: u32, value: u32, lane_mask: u32, clamp: u32) -> u32;
        #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
        pub fn shfl_up(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
        #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
        pub fn shfl_down(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
        #[link_name = "llvm.nvvm.vote.ballot.sync"]
        pub fn ballot(mask: u32, predicate: bool) -> u32;
        #[link_name = "llvm.nvvm.vote.all.sync"]
        pub fn all(mask: u32, predicate: bool) -> bool;
        #[link_name = "llvm.nvvm.vote.any.sync"]
        pub fn any(mask: u32, predicate: bool) -> bool;
        #[link_name = "llvm.nvvm.match.any.sync.i32"]
        pub fn match_any(mask: u32, value: u32) -> u32;
        #[cfg(feature = "sm_80")]
        #[link_name = "llvm.nvvm.redux.sync.add"]
        pub fn redux_add(value: u32, mask: u32) -> u32;
        #[cfg(feature = "sm_80")]
        #[link_name = "llvm.nvvm.redux.sync.umin"]
        pub fn redux_min(value: u32, mask: u32) -> u32;
        #[cfg(feature = "sm_80")]
        #[link_name = "llvm.nvvm.redux.sync.umax"]
        pub fn redux_max(value: u32, mask: u32) -> u32;
    }
}

/// A 32-bit value that lanes exchange.
pub trait Shuffle: Copy {
    fn to_word(self) -> u32;
    fn from_word(word: u32) -> Self;
}

impl Shuffle for u32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self
    }
    #[inline(always)]
    fn from_word(word: u32) -> Self {
        word
    }
}

impl Shuffle for i32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self as u32
    }
    #[inline(always)]
    fn from_word(word: u32) -> Self {
        word as i32
    }
}

impl Shuffle for f32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self.to_bits()
    }
    #[inline(always)]
    fn from_word(word: u32) -> Self {
        f32::from_bits(word)
    }
}

/// The calling thread's lane, 0..32.
#[inline(always)]
pub fn lane_id() -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: reads a special register; a warp has 32 lanes.
    unsafe {
        let lane = intrinsics::lane_id();
        core::hint::assert_unchecked(lane < 32);
        lane
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::lane_id()
}

/// Waits for the lanes of `mask`, which see each other's earlier memory writes afterwards (`__syncwarp`).
#[inline(always)]
#[track_caller]
pub fn sync_warp(mask: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: see the module's head: the lanes of `mask` are all here.
    unsafe {
        intrinsics::bar_warp_sync(mask)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::warp_barrier(mask)
}

/// On the executor: the word deposited by `lane`, or `own` when that lane is not one of the mask (hardware leaves the
/// value undefined then; a kernel must not depend on it).
#[cfg(not(target_arch = "nvptx64"))]
#[track_caller]
fn exchange(op: &'static str, mask: u32, own: u32, source: impl FnOnce(u32) -> Option<u32>) -> u32 {
    let values = simt::warp_exchange(op, mask, own as u64);
    source(simt::lane_id()).and_then(|lane| values.get(lane)).map_or(own, |word| word as u32)
}

/// The value of lane `lane` of the caller's group of `width` lanes, a power of two up to 32 (`__shfl_sync`).
#[inline(always)]
#[track_caller]
pub fn warp_shuffle_idx<T: Shuffle>(mask: u32, value: T, lane: u32, width: u32) -> T {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: see the module's head.
    let word = unsafe { intrinsics::shfl_idx(mask, value.to_word(), lane, (32 - width) << 8 | 31) };
    #[cfg(not(target_arch = "nvptx64"))]
    let word =
        exchange("shfl.idx", mask, value.to_word(), |own| Some(own & !(width - 1) | lane & (width - 1)));
    T::from_word(word)
}

/// The value of lane `own ^ lane_mask` (`__shfl_xor_sync`).
#[inline(always)]
#[track_caller]
pub fn warp_shuffle_xor<T: Shuffle>(mask: u32, value: T, lane_mask: u32) -> T {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: see the module's head.
    let word = unsafe { intrinsics::shfl_xor(mask, value.to_word(), lane_mask, 31) };
    #[cfg(not(target_arch = "nvptx64"))]
    let word = exchange("shfl.bfly", mask, value.to_word(), |own| Some(own ^ (lane_mask & 31)));
    T::from_word(word)
}

/// The value of lane `own - delta`, or the own value where there is none (`__shfl_up_sync`).
#[inline(always)]
#[track_caller]
pub fn warp_shuffle_up<T: Shuffle>(mask: u32, value: T, delta: u32) -> T {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: see the module's head.
    let word = unsafe { intrinsics::shfl_up(mask, value.to_word(), delta, 0) };
    #[cfg(not(target_arch = "nvptx64"))]
    let word = exchange("shfl.up", mask, value.to_word(), |own| own.checked_sub(delta));
    T::from_word(word)
}

/// The value of lane `own + delta`, or the own value where there is none (`__shfl_down_sync`).
#[inline(always)]
#[track_caller]
pub fn warp_shuffle_down<T: Shuffle>(mask: u32, value: T, delta: u32) -> T {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: see the module's head.
    let word = unsafe { intrinsics::shfl_down(mask, value.to_word(), delta, 31) };
    #[cfg(not(target_arch = "nvptx64"))]
    let word =
        exchange("shfl.down", mask, value.to_word(), |own| own.checked_add(delta).filter(|&lane| lane < 32));
    T::from_word(word)
}

/// A bit for every lane of `mask` whose predicate holds (`__ballot_sync`).
#[inline(always)]
#[track_caller]
pub fn warp_vote_ballot(mask: u32, predicate: bool) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: see the module's head.
    unsafe {
        intrinsics::ballot(mask, predicate)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let values = simt::warp_exchange("vote", mask, predicate as u64);
        (0..32).filter(|&lane| values.get(lane) == Some(1)).fold(0, |bits, lane| bits | 1 << lane)
    }
}

/// Whether the predicate holds on every lane of `mask` (`__all_sync`).
#[inline(always)]
#[track_caller]
pub fn warp_vote_all(mask: u32, predicate: bool) -> bool {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: see the module's head.
    unsafe {
        intrinsics::all(mask, predicate)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        warp_vote_ballot(mask, predicate) == mask
    }
}

/// Whether the predicate holds on any lane of `mask` (`__any_sync`).
#[inline(always)]
#[track_caller]
pub fn warp_vote_any(mask: u32, predicate: bool) -> bool {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: see the module's head.
    unsafe {
        intrinsics::any(mask, predicate)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        warp_vote_ballot(mask, predicate) != 0
    }
}

/// The lanes of `mask` that hold the same word (`__match_any_sync`).
#[inline(always)]
#[track_caller]
pub fn warp_match_any<T: Shuffle>(mask: u32, value: T) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: see the module's head.
    unsafe {
        intrinsics::match_any(mask, value.to_word())
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let own = value.to_word() as u64;
        let values = simt::warp_exchange("match.any", mask, own);
        (0..32).filter(|&lane| values.get(lane) == Some(own)).fold(0, |bits, lane| bits | 1 << lane)
    }
}

/// What [`warp_reduce`] does with the lanes' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarpReductionOp {
    Add,
    Min,
    Max,
}

/// Reduces the unsigned words of the lanes of `mask`, all of which get the result: `redux.sync` from sm_80, a butterfly
/// on sm_70, where `mask` must be [`FULL`].
#[inline(always)]
#[track_caller]
pub fn warp_reduce(mask: u32, value: u32, op: WarpReductionOp) -> u32 {
    #[cfg(all(target_arch = "nvptx64", feature = "sm_80"))]
    // SAFETY: see the module's head.
    unsafe {
        match op {
            WarpReductionOp::Add => intrinsics::redux_add(value, mask),
            WarpReductionOp::Min => intrinsics::redux_min(value, mask),
            WarpReductionOp::Max => intrinsics::redux_max(value, mask),
        }
    }
    #[cfg(all(target_arch = "nvptx64", not(feature = "sm_80")))]
    {
        [16, 8, 4, 2, 1]
            .into_iter()
            .fold(value, |own, distance| combine(op, own, warp_shuffle_xor(mask, own, distance)))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let values = simt::warp_exchange("redux", mask, value as u64);
        (0..32)
            .filter_map(|lane| values.get(lane))
            .map(|word| word as u32)
            .reduce(|a, b| combine(op, a, b))
            .unwrap_or(value)
    }
}

#[cfg(not(all(target_arch = "nvptx64", feature = "sm_80")))]
#[inline(always)]
fn combine(op: WarpReductionOp, a: u32, b: u32) -> u32 {
    match op {
        WarpReductionOp::Add => a.wrapping_add(b),
        WarpReductionOp::Min => a.min(b),
        WarpReductionOp::Max => a.max(b),
    }
}
