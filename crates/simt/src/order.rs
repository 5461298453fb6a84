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

    /// The blocks of a grid in the order they run. A grid can have more of them than memory has bytes.
    pub(crate) fn blocks(self, count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |place| match self {
            Order::Ascending | Order::WarpReversed => place,
            Order::Descending => count - 1 - place,
            Order::Seeded(seed) => shuffled(seed ^ 0x626c_6f63_6b73, count, place),
        })
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

/// What lies at `place` in a shuffled `0..count`: a Feistel network, which permutes the numbers of as many bits as the count needs;
/// one that comes out too large goes through again.
fn shuffled(seed: u64, count: u64, place: u64) -> u64 {
    const ROUNDS: usize = 8;
    let half_bits = (u64::BITS - (count - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1 << half_bits) - 1;
    let mut number = place;
    loop {
        let mut keys = Random::new(seed);
        let (mut left, mut right) = (number >> half_bits, number & mask);
        for _ in 0..ROUNDS {
            let noise = Random::new(keys.next() ^ right).next();
            (left, right) = (right, left ^ noise & mask);
        }
        number = left << half_bits | right;
        if number < count {
            return number;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_has_each_block_once() {
        for count in (1..70).chain([1000, 4096, 4097]) {
            let seeded = (0..8).map(Order::Seeded);
            for order in [Order::Ascending, Order::Descending, Order::WarpReversed].into_iter().chain(seeded)
            {
                let mut blocks: Vec<_> = order.blocks(count).collect();
                blocks.sort_unstable();
                assert_eq!(blocks, (0..count).collect::<Vec<_>>(), "{order}");
            }
        }
    }

    #[test]
    fn seeds_shuffle_even_a_few_blocks() {
        for count in 2..=4u64 {
            let permutations: std::collections::HashSet<Vec<_>> =
                (0..1000).map(|seed| Order::Seeded(seed).blocks(count).collect()).collect();
            assert_eq!(permutations.len() as u64, (2..=count).product(), "of {count} blocks");
        }
    }
}
