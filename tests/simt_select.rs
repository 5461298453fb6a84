//! The selection kernels `sieve` and `cluster` on the SIMT executor, against a plain sort.

use ::simt::{Launch, Order};
use kernels_gpu::mutation::{self, Mutation};
use kernels_gpu::params::{Global, GlobalMut, TopkArgs};
use kernels_gpu::topk::rule::{Step, key};
use kernels_gpu::topk::{cluster, sieve};

const WIDTH: u32 = 2051;
/// What ids hold that no kernel writes.
const BLANK: i32 = -0x5a5a_5a5b;
const ORDERS: [Order; 5] =
    [Order::Ascending, Order::Descending, Order::WarpReversed, Order::Seeded(5), Order::Seeded(77)];

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// In [0, 1).
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }
}

/// What a row holds.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Normal,
    AllEqual,
    AllNan,
    MostlyZero,
    Levels,
    /// All in [1.0, 1.001].
    Close,
    /// 15 % NaN of any sign and payload, infinities, zeros of both signs.
    Mixed,
    Denormal,
    Ascending,
    Descending,
    /// The winners are one block in every chunk.
    OneAChunk,
    /// The winners are one run.
    OneRun,
    /// Any bits at all.
    Bits,
}

const PATTERNS: [Pattern; 13] = [
    Pattern::Normal,
    Pattern::AllEqual,
    Pattern::AllNan,
    Pattern::MostlyZero,
    Pattern::Levels,
    Pattern::Close,
    Pattern::Mixed,
    Pattern::Denormal,
    Pattern::Ascending,
    Pattern::Descending,
    Pattern::OneAChunk,
    Pattern::OneRun,
    Pattern::Bits,
];

impl Pattern {
    fn row(self, blocks: usize, random: &mut Random) -> Vec<f32> {
        let run = random.below(blocks as u64) as usize;
        let score = |block: usize| match self {
            Pattern::Normal => random.normal(),
            Pattern::AllEqual => 0.25,
            Pattern::AllNan => f32::from_bits(random.next() as u32 | 0x7fc0_0000),
            Pattern::MostlyZero => {
                if random.below(5) == 0 {
                    random.uniform()
                } else {
                    0.0
                }
            }
            Pattern::Levels => (random.normal() * 8.0).floor() / 8.0,
            Pattern::Close => 1.0 + random.uniform() * 0.001,
            Pattern::Mixed => match random.below(20) {
                0..=2 => f32::from_bits(random.next() as u32 | 0x7f80_0001),
                3 => f32::INFINITY,
                4 => f32::NEG_INFINITY,
                5..=9 => 0.0,
                10..=14 => -0.0,
                _ => random.normal(),
            },
            Pattern::Denormal => f32::from_bits(random.next() as u32 & 0x8000_ffff),
            Pattern::Ascending => block as f32,
            Pattern::Descending => -(block as f32),
            Pattern::OneAChunk => {
                if block % 8 == run % 8 {
                    2.0 + random.uniform()
                } else {
                    random.uniform()
                }
            }
            Pattern::OneRun => {
                if (run..run + 700).contains(&block) {
                    3.0
                } else {
                    random.uniform()
                }
            }
            Pattern::Bits => f32::from_bits(random.next() as u32),
        };
        (0..blocks).map(score).collect()
    }
}

/// The rule, by sorting.
fn expected(scores: &[f32], step: Step) -> Vec<i32> {
    if step.is_identity() {
        return (0..step.width as i32).collect();
    }
    let mut blocks: Vec<u32> = (0..step.candidates()).collect();
    blocks.sort_by_key(|&block| (std::cmp::Reverse(key(scores[block as usize].to_bits())), block));
    let cells = blocks
        .into_iter()
        .flat_map(|block| (0..step.cells(block)).map(move |cell| (4 * block + cell) as i32));
    let mut ids: Vec<i32> = cells.take(step.width as usize).collect();
    ids.sort_unstable();
    ids
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    Rows,
    /// By so many blocks a query.
    Split(u32),
    Maxima,
    Cluster,
}

const ENTRIES: [Entry; 4] = [Entry::Rows, Entry::Split(5), Entry::Maxima, Entry::Cluster];
/// What scratch holds where a kernel may find anything: the largest key.
const GARBAGE: u32 = 0xff80_0000;

/// The queries of a launch: the scores behind a row's candidates would win.
struct Queries {
    steps: Vec<Step>,
    stride: usize,
    /// Words from a 32-byte boundary to the first score.
    offset: usize,
    scores: Vec<f32>,
}

impl Queries {
    fn new(steps: &[Step], offset: usize, row: impl Fn(usize, usize, &mut Random) -> Vec<f32>) -> Self {
        let most = steps.iter().map(|step| step.candidates()).max().unwrap() as usize;
        let stride = most + 1;
        let mut random = Random(offset as u64 + stride as u64);
        let mut scores = Vec::new();
        for (query, step) in steps.iter().enumerate() {
            let candidates = step.candidates() as usize;
            scores.extend(row(query, candidates, &mut random));
            scores.resize((query + 1) * stride, f32::INFINITY);
        }
        // The last row ends where the buffer does.
        let last = steps.last().unwrap().candidates() as usize;
        scores.truncate((steps.len() - 1) * stride + last);
        Self { steps: steps.to_vec(), stride, offset, scores }
    }

    fn run(&self, entry: Entry, order: Order) -> Result<Vec<i32>, String> {
        let queries = self.steps.len();
        let cap = WIDTH as usize + 3;
        let mut room = vec![0f32; self.scores.len() + 16];
        let misplaced = room.as_ptr() as usize / 4 % 8;
        let start = (8 + self.offset - misplaced) % 8;
        room[start..][..self.scores.len()].copy_from_slice(&self.scores);
        let scores = &room[start..][..self.scores.len()];
        let steps: Vec<i32> = self.steps.iter().flat_map(|step| step.words()).collect();
        let mut ids = vec![BLANK; queries * cap];
        let reach = self.stride as u32 - 1;
        let mut scratch = self.scratch(entry, reach);
        let args = TopkArgs {
            scores: Global::from_address(scores.as_ptr() as u64),
            steps: Global::from_address(steps.as_ptr() as u64),
            ids: GlobalMut::from_address(ids.as_mut_ptr() as u64),
            scratch: GlobalMut::from_address(scratch.as_mut_ptr() as u64),
            stride: self.stride as u64,
            cap: cap as u64,
            queries: queries as u32,
            reach,
        };
        let rows = queries as u32;
        let (grid, kernel): ((u32, u32), unsafe fn(TopkArgs)) = match entry {
            Entry::Rows => ((rows, 1), sieve::sieve_rows),
            Entry::Split(parts) => ((parts, rows), sieve::sieve_split),
            Entry::Maxima => ((rows, 1), sieve::sieve_maxima),
            Entry::Cluster => ((rows * cluster::BLOCKS, 1), cluster::cluster),
        };
        let (threads, size) = match entry {
            Entry::Cluster => (cluster::THREADS, cluster::BLOCKS),
            _ => (sieve::THREADS, 1),
        };
        Launch::new((grid.0, grid.1, 1), threads as u32)
            .cluster(size)
            .order(order)
            .shared_limit(48 << 10)
            .input("scores", scores)
            .input("steps", &steps)
            .output("ids", &mut ids)
            .output("scratch", &mut scratch)
            // SAFETY: the record describes the buffers, whose bounds the executor checks.
            .run(|| unsafe { kernel(args) })
            .map_err(|fault| fault.to_string())?;
        let words: &[u32] = bytemuck::cast_slice(&scratch);
        match entry {
            Entry::Split(_) if words[..queries] != vec![0; queries] => Err("the counters are not 0".into()),
            _ => Ok(ids),
        }
    }

    /// What each entry wants of it, and nothing more; aligned to 16 bytes.
    fn scratch(&self, entry: Entry, reach: u32) -> Vec<u128> {
        let queries = self.steps.len();
        let mut words = match entry {
            Entry::Rows | Entry::Cluster => vec![GARBAGE; 4],
            Entry::Split(_) => vec![GARBAGE; sieve::split_scratch(queries)],
            Entry::Maxima => vec![GARBAGE; queries * sieve::maxima_stride(reach)],
        };
        if let Entry::Split(_) = entry {
            words[..queries].fill(0);
        }
        if entry == Entry::Maxima && !words.is_empty() {
            let chunk = 1 << sieve::chunk_shift(reach);
            let rows = words.chunks_mut(sieve::maxima_stride(reach)).zip(self.scores.chunks(self.stride));
            for ((row, scores), step) in rows.zip(&self.steps) {
                let keys = scores[..step.candidates() as usize].iter().map(|score| key(score.to_bits()));
                let keys: Vec<u32> = keys.collect();
                row.iter_mut()
                    .zip(keys.chunks(chunk))
                    .for_each(|(word, keys)| *word = *keys.iter().max().unwrap());
            }
        }
        words.chunks(4).map(|quad| bytemuck::pod_read_unaligned(bytemuck::cast_slice(quad))).collect()
    }

    /// The first row whose `cap` words are not the expected ids and blanks.
    fn difference(&self, ids: &[i32]) -> Option<String> {
        let cap = ids.len() / self.steps.len();
        self.steps.iter().zip(ids.chunks(cap)).enumerate().find_map(|(query, (&step, found))| {
            let mut row = expected(&self.scores[query * self.stride..], step);
            row.resize(cap, BLANK);
            let place = (0..cap).find(|&place| row[place] != found[place])?;
            Some(format!(
                "query {query}, {step:?}: ids[{place}] is {}, expected {}",
                found[place], row[place]
            ))
        })
    }

    #[track_caller]
    fn check(&self, entry: Entry, order: Order) {
        let ids = self.run(entry, order).unwrap_or_else(|fault| panic!("{entry:?}: {fault}"));
        if let Some(difference) = self.difference(&ids) {
            panic!("{entry:?}, {order}: {difference}");
        }
    }
}

/// Rows of `cells` cells, one for each pattern.
fn every_pattern(cells: u32) {
    for entry in ENTRIES {
        for (index, pattern) in PATTERNS.into_iter().enumerate() {
            let step = Step::new(cells + index as u32 % 4, WIDTH);
            let queries = Queries::new(&[step], index % 8, |_, blocks, random| pattern.row(blocks, random));
            println!("{pattern:?}");
            queries.check(entry, ORDERS[index % ORDERS.len()]);
        }
    }
}

#[test]
fn every_pattern_in_a_row_on_chip() {
    every_pattern(12_000);
}

#[test]
fn every_pattern_in_chunks_of_8() {
    every_pattern(45_000);
}

#[test]
fn every_pattern_in_a_row_of_262144_cells() {
    every_pattern(262_144);
}

#[test]
fn longer_rows_have_larger_chunks() {
    for (index, cells) in [300_001, 524_288, 1_048_576, 2_000_003].into_iter().enumerate() {
        for entry in ENTRIES {
            if entry == Entry::Cluster && cells as usize / 4 >= cluster::REACH {
                continue;
            }
            for pattern in [Pattern::Normal, Pattern::AllEqual, Pattern::OneAChunk, Pattern::Mixed] {
                let queries = Queries::new(&[Step::new(cells, WIDTH)], 2 * index + 1, |_, blocks, random| {
                    pattern.row(blocks, random)
                });
                queries.check(entry, ORDERS[index]);
            }
        }
    }
}

#[test]
fn every_alignment() {
    let steps: Vec<Step> = [40_001, 38_000, 9_001, 2_061].map(|cells| Step::new(cells, WIDTH)).to_vec();
    for entry in ENTRIES.into_iter().chain([Entry::Split(1), Entry::Split(64)]) {
        for offset in 0..8 {
            let queries = Queries::new(&steps, offset, |query, blocks, random| {
                PATTERNS[(3 * query + offset) % PATTERNS.len()].row(blocks, random)
            });
            queries.check(entry, ORDERS[offset % ORDERS.len()]);
        }
    }
}

#[test]
fn rows_about_the_width() {
    let steps: Vec<Step> = (2_049..2_058).chain([1, 7]).map(|cells| Step::new(cells, WIDTH)).collect();
    for entry in ENTRIES {
        for pattern in PATTERNS {
            Queries::new(&steps, 3, |_, blocks, random| pattern.row(blocks, random)).check(entry, ORDERS[0]);
        }
    }
}

#[test]
fn every_small_width() {
    for entry in ENTRIES {
        for (index, widths) in [(1..20), (510..530), (2_040..2_052)].into_iter().enumerate() {
            let steps: Vec<Step> = widths.map(|width| Step::new(37_000 + width, width)).collect();
            for pattern in [Pattern::Normal, Pattern::AllEqual, Pattern::MostlyZero] {
                let queries = Queries::new(&steps, index, |_, blocks, random| pattern.row(blocks, random));
                queries.check(entry, ORDERS[index]);
            }
        }
    }
}

#[test]
fn the_border_between_chip_and_chunks() {
    let blocks = sieve::KEYS as u32 - 8;
    assert_eq!((sieve::chunk_shift(blocks), sieve::chunk_shift(blocks + 1)), (0, 3));
    let steps: Vec<Step> = (4 * blocks - 3..4 * blocks + 6).map(|cells| Step::new(cells, WIDTH)).collect();
    for entry in ENTRIES {
        for (offset, pattern) in [(7, Pattern::Normal), (7, Pattern::AllEqual), (0, Pattern::Ascending)] {
            let queries = Queries::new(&steps, offset, |_, blocks, random| pattern.row(blocks, random));
            queries.check(entry, ORDERS[1]);
        }
    }
}

/// A tail that is worth less than a block, at the threshold, above it and below it.
#[test]
fn tails() {
    for entry in ENTRIES {
        for cells in 45_001..45_004 {
            for tail in [f32::INFINITY, 1.0, 0.5, 0.0, f32::NAN] {
                for width in [1, 2, 5, 2_050, 2_051] {
                    let queries = Queries::new(&[Step::new(cells, width)], 1, |_, blocks, random| {
                        let mut row: Vec<f32> = (0..blocks).map(|_| random.below(40) as f32 / 40.0).collect();
                        row[blocks - 1] = tail;
                        if width % 2 == 0 {
                            row.iter_mut().for_each(|score| *score = tail);
                        }
                        row
                    });
                    queries.check(entry, ORDERS[0]);
                }
            }
        }
    }
}

/// A kernel with a fault must not pass.
#[test]
fn mutated_kernels_are_caught() {
    let rows = |pattern: Pattern, cells: u32| {
        Queries::new(&[Step::new(cells, WIDTH)], 5, move |_, blocks, random| pattern.row(blocks, random))
    };
    let one = |cells: u32, score: fn(usize, usize) -> f32| {
        Queries::new(&[Step::new(cells, WIDTH)], 5, move |_, blocks, _| {
            (0..blocks).map(|block| score(block, blocks)).collect()
        })
    };
    // The tail's cell and 513 other blocks are selected, each in a chunk of its own.
    let one_a_chunk = || {
        one(45_001, |block, blocks| match block {
            _ if block + 1 == blocks => 2.0,
            _ if block % 8 == 3 => 1.0,
            _ => 0.0,
        })
    };
    // The first 513 blocks win, and the first one is the least of them.
    let close =
        || one(45_000, |block, _| if block < 513 { f32::from_bits(0x3fc0_0000 + block as u32) } else { 0.0 });
    let faults = [
        (Mutation::SieveKeepsOneChunkLess, Entry::Rows, one_a_chunk()),
        (Mutation::SieveKeepsHighTies, Entry::Rows, rows(Pattern::AllEqual, 45_000)),
        (Mutation::SieveCutsEarly, Entry::Rows, close()),
        (Mutation::SieveTakesTailForWhole, Entry::Rows, rows(Pattern::Ascending, 45_001)),
        (Mutation::SieveDropsListBarrier, Entry::Rows, rows(Pattern::Normal, 45_000)),
        (Mutation::SieveDropsListBarrier, Entry::Maxima, rows(Pattern::Normal, 45_000)),
        (Mutation::SieveSplitTakesFirst, Entry::Split(5), rows(Pattern::Normal, 45_000)),
        (Mutation::SieveSplitLeavesCounter, Entry::Split(5), rows(Pattern::Normal, 45_000)),
        (Mutation::ClusterDropsSlotBarrier, Entry::Cluster, rows(Pattern::Normal, 45_000)),
        (Mutation::ClusterForgetsOtherBlocks, Entry::Cluster, rows(Pattern::Normal, 45_000)),
        (Mutation::ClusterDoesNotCut, Entry::Cluster, rows(Pattern::AllEqual, 45_000)),
        (Mutation::SieveMaximaLoseLast, Entry::Maxima, rows(Pattern::Ascending, 45_000)),
    ];
    for (mutation, entry, queries) in faults {
        queries.check(entry, ORDERS[0]);
        for order in ORDERS {
            let result = mutation::with(mutation, || queries.run(entry, order));
            let caught = result.map_or(true, |ids| queries.difference(&ids).is_some());
            assert!(caught, "{mutation:?} {order}");
        }
    }
}
