//! The block top-k kernels' own source on the SIMT executor, against a plain sort, and plain sums in this file.

use ::simt::{FaultKind, Order};
use kernels_gpu::mutation::{self, Mutation};
use keyhead::check::simt;
use keyhead::check::topk::{Pattern, Selection};
use keyhead::cuda::DeviceMaxima;
use keyhead::topk::{Kernel, Scores, TopkShape};

const ORDERS: [Order; 4] = [Order::Ascending, Order::Descending, Order::WarpReversed, Order::Seeded(7)];
const KERNELS: [Kernel; 6] = Kernel::ALL;

fn check(data: &Selection, kernel: Kernel, order: Order) -> Result<(), String> {
    let what = format!("{kernel} {:?} of {:?} {order}", data.shape, data.n_kv);
    let mut ids = data.blank();
    simt::topk(kernel, order, data.call(&mut ids)).map_err(|fault| format!("{what}: {fault}"))?;
    let expected = data.expected();
    match ids.iter().zip(&expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{what}: row {} word {} is {}, expected {}",
            at / data.shape.cap(),
            at % data.shape.cap(),
            ids[at],
            expected[at]
        )),
    }
}

#[track_caller]
fn assert_selects(data: &Selection, kernel: Kernel, order: Order) {
    check(data, kernel, order).unwrap_or_else(|problem| panic!("{problem}"));
}

/// Rows of very different lengths in one call: identities, none or few cells, ragged ends.
fn every_content(kernel: Kernel) {
    for (index, pattern) in Pattern::ALL.into_iter().enumerate() {
        let n_kv = [2053, 0, 5000, 7, 4098, 2051, 4223];
        let data = Selection::with_stride(pattern, &n_kv, 2051, 1263, 11 + index as u64);
        assert_selects(&data, kernel, ORDERS[index % ORDERS.len()]);
        let data = Selection::with_stride(
            pattern,
            &[1190, 1, 9, 257],
            [1, 2, 3, 5, 130][index % 5],
            300,
            50 + index as u64,
        );
        assert_selects(&data, kernel, ORDERS[(index + 1) % ORDERS.len()]);
    }
}

#[test]
fn original_selects_from_every_content() {
    every_content(Kernel::Original);
}

#[test]
fn register_selects_from_every_content() {
    every_content(Kernel::Register);
}

#[test]
fn wide_selects_from_every_content() {
    every_content(Kernel::Wide);
}

#[test]
fn split_selects_from_every_content() {
    every_content(Kernel::Split);
}

#[test]
fn sieve_selects_from_every_content() {
    every_content(Kernel::Sieve);
}

#[test]
fn cluster_selects_from_every_content() {
    every_content(Kernel::Cluster);
}

#[test]
fn around_the_width() {
    for pattern in [Pattern::Normal, Pattern::Equal, Pattern::Descending] {
        let data = Selection::with_stride(pattern, &[2050, 2051, 2052, 2053, 2054, 2055, 2056], 2051, 515, 3);
        for kernel in KERNELS {
            assert_selects(&data, kernel, Order::Ascending);
        }
    }
}

#[test]
fn equal_scores_lose_the_last_cells() {
    let data = Selection::with_stride(Pattern::Equal, &[2052, 2053], 2051, 514, 1);
    let rows = data.expected();
    let cap = data.shape.cap();
    assert!(rows[..2051].iter().copied().eq(0..2051), "2052: cell 2051 is missing");
    assert!(
        rows[cap..cap + 2051].iter().copied().eq(0..2051),
        "2053: the tail has the same key, and comes last"
    );
}

#[test]
fn every_width() {
    for width in (1..=24).chain([100, 2047, 2048, 2049, 2050]) {
        let data = Selection::with_stride(Pattern::Levels, &[2077, 31], width, 520, width as u64);
        for (index, kernel) in KERNELS.into_iter().enumerate() {
            assert_selects(&data, kernel, ORDERS[(width + index) % ORDERS.len()]);
        }
    }
}

/// The last row ends with its last candidate: nothing lies where an empty tail would be.
#[test]
fn an_empty_tail_is_not_read() {
    for kernel in KERNELS {
        for pattern in [Pattern::Normal, Pattern::Nan] {
            assert_selects(
                &Selection::with_stride(pattern, &[2399, 2400], 2051, 600, 5),
                kernel,
                Order::Ascending,
            );
            assert_selects(&Selection::with_stride(pattern, &[4], 1, 1, 5), kernel, Order::Descending);
        }
    }
}

#[test]
fn a_record_may_want_fewer_cells_than_the_rest() {
    let data = Selection::with_stride(Pattern::Normal, &[400, 400, 400], 64, 100, 9);
    let records = [[399, 400, 100, 64], [399, 400, 100, 1], [399, 400, 100, 9]].concat();
    for kernel in KERNELS {
        let mut ids = data.blank();
        let call = keyhead::topk::Topk::from_records(data.shape, &data.scores, &records, &mut ids).unwrap();
        simt::topk(kernel, Order::Ascending, call).unwrap();
        let cap = data.shape.cap();
        assert_eq!(ids[..cap], data.expected()[..cap], "{kernel}");
        for (query, width) in [(1, 1), (2, 9)] {
            let narrow = Selection { shape: TopkShape::new(3, 100, width, cap).unwrap(), ..data.clone() };
            let row = query * cap..(query + 1) * cap;
            assert_eq!(ids[row.clone()], narrow.expected()[row], "{kernel}");
        }
    }
}

#[test]
fn every_order_gives_the_same_ids() {
    let data = Selection::with_stride(Pattern::SomeNan, &[3999, 1203], 300, 1000, 21);
    for kernel in KERNELS {
        for order in ORDERS.into_iter().chain((100..103).map(Order::Seeded)) {
            assert_selects(&data, kernel, order);
        }
    }
}

/// As many blocks as `register` and `split` reach.
#[test]
fn the_longest_rows() {
    for (kernel, blocks) in
        [(Kernel::Register, 33_792), (Kernel::Split, 67_584), (Kernel::Wide, 33_793), (Kernel::Sieve, 70_001)]
    {
        let data = Selection::with_stride(Pattern::Levels, &[4 * blocks as i32 - 1], 2051, blocks, 31);
        assert_selects(&data, kernel, Order::Ascending);
    }
}

/// A kernel with a fault must not pass: either the executor names it, or the ids are wrong.
#[test]
fn mutated_selections_are_caught() {
    let ties = Selection::with_stride(Pattern::Levels, &[3001, 2999], 701, 900, 41);
    let cut = Selection::with_stride(Pattern::Descending, &[397], 43, 100, 41);
    let wrong = [
        (Mutation::SelectLosesTies, Kernel::Register, &ties),
        (Mutation::SelectLosesTies, Kernel::Wide, &ties),
        (Mutation::SelectCountsTailWhole, Kernel::Wide, &tail_decides()),
        (Mutation::SelectCountsTailWhole, Kernel::Register, &tail_decides()),
        (Mutation::OriginalCountsTailWhole, Kernel::Original, &tail_decides()),
        (Mutation::SplitRoundsTiesDown, Kernel::Split, &cut),
        (Mutation::SplitForgetsHalf, Kernel::Split, &ties),
    ];
    for (mutation, kernel, data) in wrong {
        for order in ORDERS {
            let outcome = mutation::with(mutation, || check(data, kernel, order));
            assert!(outcome.is_err(), "{mutation:?} in {kernel} passed under {order}");
            check(data, kernel, order).unwrap();
        }
    }
}

/// The tail of one cell is in front of all: with four cells it would stand for a block that is selected.
fn tail_decides() -> Selection {
    let mut data = Selection::with_stride(Pattern::Descending, &[397], 41, 100, 1);
    data.scores[99] = 1e9;
    data
}

#[test]
fn dropped_barriers_are_caught() {
    let data = Selection::with_stride(Pattern::Normal, &[3001, 2999], 701, 900, 41);
    let dropped = [
        (Mutation::HistogramDropsFoldBarrier, Kernel::Register),
        (Mutation::HistogramDropsFoldBarrier, Kernel::Wide),
        (Mutation::SelectDropsTotalsBarrier, Kernel::Register),
        (Mutation::SelectDropsTotalsBarrier, Kernel::Wide),
        (Mutation::SelectDropsTotalsBarrier, Kernel::Split),
        (Mutation::OriginalDropsSearchBarrier, Kernel::Original),
    ];
    for (mutation, kernel) in dropped {
        for order in ORDERS {
            let mut ids = data.blank();
            let outcome = mutation::with(mutation, || simt::topk(kernel, order, data.call(&mut ids)));
            let fault = outcome.expect_err("a mutated kernel passed");
            let kinds = [FaultKind::SharedRace, FaultKind::SharedUninitialised];
            assert!(kinds.contains(&fault.kind()), "{mutation:?} {kernel} {order}: {fault}");
        }
    }
}

/// The inputs of block scores.
struct ScoresData {
    stride: usize,
    pooled: Vec<f32>,
    q_idx: Vec<f32>,
    tail: Vec<f32>,
    n_kv: Vec<i32>,
}

impl ScoresData {
    const BLANK: f32 = f32::from_bits(0x7fa5_a5a5);

    fn new(n_kv: &[i32], own_tails: bool) -> ScoresData {
        let mut state = 1u64;
        let mut floats = |len: usize| -> Vec<f32> {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1 << 23) as f32 - 1.0
            };
            (0..len).map(|_| next()).collect()
        };
        let most = *n_kv.iter().max().unwrap() as usize / 4;
        ScoresData {
            stride: most + 3,
            pooled: floats(most * 128),
            q_idx: floats(n_kv.len() * 512),
            tail: floats(if own_tails { n_kv.len() * 128 } else { 128 }),
            n_kv: n_kv.to_vec(),
        }
    }

    fn run(&self, order: Order) -> Result<Vec<f32>, String> {
        self.run_with(order, self.stride, &mut [])
    }

    fn run_with(&self, order: Order, reach: usize, maxima: &mut [u32]) -> Result<Vec<f32>, String> {
        let mut scores = vec![Self::BLANK; self.n_kv.len() * self.stride];
        let call =
            Scores::new(self.stride, &self.pooled, &self.q_idx, &self.tail, &self.n_kv, &mut scores).unwrap();
        simt::scores_and_maxima(order, call, reach, maxima).map_err(|fault| fault.to_string())?;
        Ok(scores)
    }

    /// What a selection from these scores starts from.
    fn selection(&self, scores: Vec<f32>) -> Selection {
        let shape = TopkShape::new(self.n_kv.len(), self.stride, 2051, 2056).unwrap();
        Selection { shape, scores, n_kv: self.n_kv.clone() }
    }

    /// The sums in the rule's order, one block after the other.
    fn expected(&self) -> Vec<f32> {
        let mut scores = vec![Self::BLANK; self.n_kv.len() * self.stride];
        for (query, &n_kv) in self.n_kv.iter().enumerate() {
            let tail_at = if self.tail.len() == 128 { 0 } else { 128 * query };
            let n_bid = n_kv as usize / 4;
            for block in 0..=n_bid {
                let key = match block == n_bid {
                    true => &self.tail[tail_at..][..128],
                    false => &self.pooled[128 * block..][..128],
                };
                let mut score = 0.0;
                for head in 0..4 {
                    let q = &self.q_idx[512 * query + 128 * head..][..128];
                    let mut lanes: [f32; 32] = std::array::from_fn(|lane| {
                        let d = 4 * lane;
                        ((q[d] * key[d] + q[d + 1] * key[d + 1]) + q[d + 2] * key[d + 2])
                            + q[d + 3] * key[d + 3]
                    });
                    for distance in [16, 8, 4, 2, 1] {
                        let before = lanes;
                        lanes = std::array::from_fn(|lane| before[lane] + before[lane ^ distance]);
                    }
                    score += if lanes[0] > 0.0 { lanes[0] } else { 0.0 };
                }
                if block == n_bid && n_kv % 4 != 0 {
                    score += 1e9;
                }
                scores[query * self.stride + block] = score;
            }
        }
        scores
    }

    fn check(&self, order: Order) -> Result<(), String> {
        keyhead::check::same_bits(&format!("scores {order}"), &self.run(order)?, &self.expected())
    }
}

#[test]
fn scores_have_the_rules_bits() {
    for (index, n_kv) in [
        &[0, 1, 3, 4][..],
        &[255, 256, 257, 258, 259, 260],
        &[516; 8],
        &[700, 0, 31, 699, 256, 2, 254, 260, 701],
    ]
    .into_iter()
    .enumerate()
    {
        for own_tails in [false, true] {
            ScoresData::new(n_kv, own_tails).check(ORDERS[index % ORDERS.len()]).unwrap();
        }
    }
}

#[test]
fn a_score_that_is_no_number_is_zero() {
    let mut data = ScoresData::new(&[13, 12], false);
    data.pooled[5] = f32::NAN;
    data.pooled[128 + 7] = f32::INFINITY;
    data.pooled[256..].fill(-0.0);
    let scores = data.run(Order::Ascending).unwrap();
    assert_eq!(scores[0].to_bits(), 0, "NaN in every head");
    assert_eq!(scores[2].to_bits(), 0, "-0 counts as +0");
    assert!(scores[1] == f32::INFINITY || scores[1] == 0.0);
    data.check(Order::Descending).unwrap();
}

#[test]
fn mutated_scores_are_caught() {
    let data = ScoresData::new(&[300, 256], true);
    for order in ORDERS {
        let problem = mutation::with(Mutation::ScoresDropsTileBarrier, || data.check(order)).unwrap_err();
        assert!(problem.contains("Shared"), "{problem}");
        let problem = mutation::with(Mutation::ScoresTakesEmptyTail, || data.check(order)).unwrap_err();
        assert!(problem.contains("differ"), "{problem}");
    }
}

/// In chunks of 8, 16, 32 and 64 blocks; no word of a chunk without a cell is written.
#[test]
fn scores_leave_the_maxima() {
    let data = ScoresData::new(&[700, 0, 1, 255, 256, 257, 260, 32, 699], true);
    for (index, reach) in [9300, 100_000, 200_000, 500_000].into_iter().enumerate() {
        let len = DeviceMaxima::len(reach).unwrap();
        let mut maxima = vec![u32::MAX; data.n_kv.len() * len];
        let scores = data.run_with(ORDERS[index], reach, &mut maxima).unwrap();
        keyhead::check::same_bits("scores", &scores, &data.expected()).unwrap();
        assert!(maxima == data.selection(scores).maxima(reach), "reach {reach}");
    }
    assert_eq!(DeviceMaxima::len(9000), Some(0), "such rows fit on chip");
    assert_eq!(DeviceMaxima::len(600_000), None, "chunks that no tile holds");
}

#[test]
fn a_selection_by_the_maxima_is_the_same() {
    let data = ScoresData::new(&[37_205, 9001, 37_204], false);
    let mut maxima = vec![u32::MAX; 3 * DeviceMaxima::len(data.stride).unwrap()];
    let selection = data.selection(data.run_with(Order::Ascending, data.stride, &mut maxima).unwrap());
    let mut ids = selection.blank();
    simt::topk_by_maxima(Order::Descending, selection.call(&mut ids), data.stride, &mut maxima).unwrap();
    keyhead::check::same_bits("ids", &ids, &selection.expected()).unwrap();
}
