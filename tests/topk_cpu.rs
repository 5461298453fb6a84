//! The block top-k on the CPU, on every instruction set: ids against a sort, scores against the order of sums that the rule fixes.

use keyhead::Backend;
use keyhead::check::topk::{Pattern, Selection};
use keyhead::cpu::{self, Isa};
use keyhead::topk::{INDEX_DIM, INDEX_HEADS, Kernel, Scores, Topk, TopkShape};
use proptest::prelude::*;

/// The ids of all instruction sets, which must be the sort's.
#[track_caller]
fn check(selection: &Selection, what: &str) {
    let expected = selection.expected();
    for isa in Isa::available() {
        let mut ids = selection.blank();
        cpu::topk_with(isa, selection.call(&mut ids)).unwrap();
        let differs = ids.iter().zip(&expected).position(|(found, expected)| found != expected);
        if let Some(at) = differs {
            let (row, column) = (at / selection.shape.cap(), at % selection.shape.cap());
            let n_kv = selection.n_kv[row];
            panic!("{isa} {what}: n_kv {n_kv}: ids[{column}] is {}, expected {}", ids[at], expected[at]);
        }
    }
}

#[test]
fn contexts_around_every_edge() {
    let contexts: Vec<i32> = (0..=19).chain(2044..=2070).collect();
    for pattern in Pattern::ALL {
        for width in [1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 2048, 2049, 2050, 2051, 2052] {
            let selection = Selection::new(pattern, &contexts, width, 2, width as u64);
            check(&selection, &format!("{pattern:?} width {width}"));
        }
    }
}

/// Fewer chunks than blocks to select, as many, and more; whole last chunks and short ones.
#[test]
fn long_contexts() {
    for pattern in Pattern::ALL {
        let contexts = [8191, 8192, 32_768, 32_835, 33_003, 65_538, 135_171, 262_144];
        check(&Selection::new(pattern, &contexts, 2051, 1, 5), &format!("{pattern:?} long"));
        check(&Selection::new(pattern, &contexts, 9000, 0, 6), &format!("{pattern:?} long and wide"));
    }
}

#[test]
fn random_selections() {
    let pattern = prop::sample::select(Pattern::ALL.to_vec());
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() };
    proptest!(config, |(
        pattern in pattern,
        n_kv in prop::collection::vec(0..6000i32, 1..4),
        width in 1..2100usize,
        spare in 0..9usize,
        seed: u64,
    )| {
        check(&Selection::new(pattern, &n_kv, width, spare, seed), &format!("{pattern:?} width {width} seed {seed}"));
    });
}

/// The tail decides when it is above, at and below the threshold, and gives what it has.
#[test]
fn tails_of_every_size_and_rank() {
    for (tail, first) in [(9.0, 0), (0.5, 0), (-9.0, 0), (f32::NAN, 0), (1e9, 100)] {
        for cells in 1..=3 {
            for width in [1, 2, 3, 4, 5, 6, 39, 40, 41, 42] {
                let n_kv = [40 + cells];
                let mut selection = Selection::new(Pattern::Equal, &n_kv, width, 0, 1);
                selection.scores[10] = tail;
                selection.scores[first % 10] = 0.75;
                check(&selection, &format!("tail {tail} of {cells}, width {width}"));
            }
        }
    }
}

#[test]
fn an_empty_tail_and_what_lies_behind_are_not_read() {
    for n_kv in [2052, 2056, 9000] {
        for poison in [f32::INFINITY, f32::NAN, 3e38, 1e9] {
            let mut selection = Selection::new(Pattern::Normal, &[n_kv], 2051, 5, 3);
            let expected = selection.expected();
            selection.scores[n_kv as usize / 4..].fill(poison);
            assert_eq!(selection.expected(), expected);
            check(&selection, &format!("n_kv {n_kv} before {poison}"));
        }
    }
}

/// Records may ask for fewer cells than the shape.
#[test]
fn widths_of_records() {
    let whole = Selection::new(Pattern::Levels, &[400; 4], 64, 1, 9);
    let widths = [1, 17, 63, 64];
    let records: Vec<i32> = widths.iter().flat_map(|&width| [399, 400, 100, width]).collect();
    let mut ids = whole.blank();
    cpu::topk(Topk::from_records(whole.shape, &whole.scores, &records, &mut ids).unwrap()).unwrap();
    for (query, &width) in widths.iter().enumerate() {
        let shape = TopkShape::new(1, whole.shape.stride(), width as usize, whole.shape.cap()).unwrap();
        let scores = whole.scores[query * shape.stride()..][..shape.stride()].to_vec();
        let row = Selection { shape, scores, n_kv: vec![400] };
        assert_eq!(ids[query * shape.cap()..][..shape.cap()], row.expected(), "width {width}");
    }
}

/// Rows start at any multiple of four bytes.
#[test]
fn any_alignment() {
    let selection = Selection::new(Pattern::Mix, &[5003, 4999, 3001], 2051, 0, 4);
    assert_eq!(selection.shape.stride() % 2, 1);
    let expected = selection.expected();
    for offset in 0..4 {
        let scores = [vec![0.0; offset], selection.scores.clone()].concat();
        let mut ids = vec![Selection::BLANK; offset + expected.len()];
        for isa in Isa::available() {
            ids.fill(Selection::BLANK);
            let call = Topk::new(selection.shape, &scores[offset..], &selection.n_kv, &mut ids[offset..]);
            cpu::topk_with(isa, call.unwrap()).unwrap();
            assert_eq!(ids[offset..], expected);
            assert!(ids[..offset].iter().all(|&id| id == Selection::BLANK));
        }
    }
}

#[test]
fn threads_change_nothing() {
    let selection = Selection::new(Pattern::Levels, &[9001; 64], 2051, 0, 8);
    let expected = selection.expected();
    for threads in [1, 2, 5] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut ids = selection.blank();
        pool.install(|| cpu::topk(selection.call(&mut ids))).unwrap();
        assert_eq!(ids, expected, "{threads} threads");
    }
}

#[test]
fn no_queries_and_no_cells() {
    let backend = Backend::cpu().unwrap();
    for n_kv in [&[][..], &[0, 0]] {
        let selection = Selection::new(Pattern::Normal, n_kv, 7, 0, 1);
        let mut ids = selection.blank();
        backend.topk(selection.call(&mut ids), None).unwrap();
        assert_eq!(ids, selection.blank());
    }
}

#[test]
fn the_cpu_has_no_kernels() {
    let backend = Backend::cpu().unwrap();
    let selection = Selection::new(Pattern::Normal, &[100], 7, 0, 1);
    for kernel in Kernel::ALL {
        let mut ids = selection.blank();
        let error = backend.topk(selection.call(&mut ids), Some(kernel)).unwrap_err().to_string();
        assert!(error.contains(kernel.name()) && error.contains("CPU"), "{error}");
        assert_eq!(ids, selection.blank());
    }
}

/// A dot product as the rule orders it.
fn dot(q: &[f32], k: &[f32]) -> f32 {
    let product = |dim: usize| q[dim] * k[dim];
    let lane = |l: usize| ((product(4 * l) + product(4 * l + 1)) + product(4 * l + 2)) + product(4 * l + 3);
    let mut lanes: [f32; 32] = std::array::from_fn(lane);
    for distance in [16, 8, 4, 2, 1] {
        lanes = std::array::from_fn(|l| lanes[l] + lanes[l ^ distance]);
    }
    assert!(lanes.iter().all(|x| x.to_bits() == lanes[0].to_bits() || x.is_nan()), "{lanes:?}");
    lanes[0]
}

fn score(heads: &[f32], k: &[f32]) -> f32 {
    let relu = |d: f32| if d > 0.0 { d } else { 0.0 };
    heads.chunks_exact(INDEX_DIM).fold(0.0, |sum, q| sum + relu(dot(q, k)))
}

/// Numbers of many magnitudes, and now and then something that is none.
fn random(seed: &mut u64, len: usize, odd: bool) -> Vec<f32> {
    let mut next = || {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 40) as u32
    };
    let number =
        |word: u32| (word as f32 / (1 << 23) as f32 - 1.0) * [1.0, 8.0, 1e-3, 1e-20][word as usize % 4];
    (0..len)
        .map(|_| match next() % 2000 {
            0 if odd => f32::NAN,
            1 if odd => f32::INFINITY,
            2..8 if odd => 1e-39,
            _ => number(next()),
        })
        .collect()
}

#[test]
fn scores_have_the_bits_of_the_rule() {
    let mut seed = 1;
    let (contexts, stride) = ([0, 1, 3, 4, 63, 64, 65, 68, 133, 260], 70);
    let queries = contexts.len();
    for (odd, tails) in [(false, 1), (true, queries)] {
        let pooled = random(&mut seed, 65 * INDEX_DIM, odd);
        let q_idx = random(&mut seed, queries * INDEX_HEADS * INDEX_DIM, odd);
        let tail = random(&mut seed, tails * INDEX_DIM, odd);
        const BLANK: f32 = -3.5;
        let mut expected = vec![BLANK; queries * stride];
        for (query, &n_kv) in contexts.iter().enumerate() {
            let (n_bid, row) = (n_kv as usize / 4, &mut expected[query * stride..][..stride]);
            let heads = &q_idx[query * INDEX_HEADS * INDEX_DIM..][..INDEX_HEADS * INDEX_DIM];
            for (block, k) in pooled.chunks_exact(INDEX_DIM).take(n_bid).enumerate() {
                row[block] = score(heads, k);
            }
            row[n_bid] = score(heads, &tail[query % tails * INDEX_DIM..][..INDEX_DIM]);
            if n_kv % 4 > 0 {
                row[n_bid] += 1e9;
            }
        }
        for isa in Isa::available() {
            let mut scores = vec![BLANK; queries * stride];
            let call = Scores::new(stride, &pooled, &q_idx, &tail, &contexts, &mut scores).unwrap();
            cpu::scores_with(isa, call).unwrap();
            for (at, (found, expected)) in scores.iter().zip(&expected).enumerate() {
                let (query, block) = (at / stride, at % stride);
                assert_eq!(found.to_bits(), expected.to_bits(), "{isa}: query {query}, block {block}");
            }
        }
    }
}

/// A prompt chunk's pooled keys may hold a block that a later query completes: this query's tail is not it.
#[test]
fn the_tail_does_not_read_the_pooled_key() {
    let mut pooled = vec![1.0; 3 * INDEX_DIM];
    pooled[2 * INDEX_DIM..].fill(f32::INFINITY);
    let (q_idx, tail) = (vec![1.0; INDEX_HEADS * INDEX_DIM], vec![-1.0; INDEX_DIM]);
    let mut scores = [7.0; 4];
    cpu::scores(Scores::new(4, &pooled, &q_idx, &tail, &[8], &mut scores).unwrap());
    assert_eq!(scores, [512.0, 512.0, 0.0, 7.0]);
    cpu::scores(Scores::new(4, &pooled, &q_idx, &tail, &[9], &mut scores).unwrap());
    assert_eq!(scores, [512.0, 512.0, 1e9, 7.0]);
}
