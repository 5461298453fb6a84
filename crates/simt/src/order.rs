//! The schedules, and the generator behind the seeded one.

use std::fmt;

/// In which order the threads of a block, and the blocks of a grid, run.
///
/// A correct kernel gives the same result under all of them; a test runs a kernel under several. With every
/// order but [`Order::Seeded`] a thread runs until it waits. A warp runs until all its lanes wait for other
/// warps, then the next warp has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Threads and blocks by rising index.
    Ascending,
    /// Threads and blocks by falling index.
    Descending,
    /// The last warp first, its lanes by rising index; blocks by rising index.
    WarpReversed,
    /// Any runnable thread, chosen by a generator with this seed, which also interrupts threads at shared and
    /// global accesses, and shuffles the blocks.
    Seeded(u64),
}

impl Order {
    /// The order of a launch that names none.
    pub(crate) fn from_env() -> Order {
        let Ok(text) = std::env::var("SIMT_SEED") else { return Order::Ascending };
        let seed = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        match seed {
            Ok(seed) => Order::Seeded(seed),
            Err(_) => panic!("SIMT_SEED={text}: not a number from 0 to 2^64 - 1"),
        }
    }

    /// The blocks of a grid in the order they run.
    pub(crate) fn blocks(self, count: u64) -> Vec<u64> {
        let mut blocks: Vec<u64> = (0..count).collect();
        match self {
            Order::Ascending | Order::WarpReversed => {}
            Order::Descending => blocks.reverse(),
            Order::Seeded(seed) => {
                let mut random = Random::new(seed ^ 0x626c_6f63_6b73);
                for last in (1..blocks.len()).rev() {
                    blocks.swap(last, random.below(last as u64 + 1) as usize);
                }
            }
        }
        blocks
    }

    /// A number that differs between orders, to derive patterns from.
    pub(crate) fn salt(self) -> u64 {
        match self {
            Order::Ascending => 1,
            Order::Descending => 2,
            Order::WarpReversed => 3,
            Order::Seeded(seed) => Random::new(seed).next(),
        }
    }

    /// How to get this order again.
    pub(crate) fn replay(self) -> String {
        match self {
            Order::Seeded(seed) => format!("SIMT_SEED={seed} or .order(Order::Seeded({seed}))"),
            fixed => format!(".order(Order::{fixed:?})"),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Ascending => f.write_str("ascending"),
            Order::Descending => f.write_str("descending"),
            Order::WarpReversed => f.write_str("warp-reversed"),
            Order::Seeded(seed) => write!(f, "seeded {seed}"),
        }
    }
}

/// SplitMix64: small, fast, and any seed is a good one.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, by multiplication instead of a division.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
