//! The checks of the block top-k.

use super::{Pattern, Random, Selection};
use crate::backend::Backend;
use crate::check::{Report, same_bits, simt};
use crate::cpu::{self, Isa};
use crate::cuda;
use crate::error::Error;
use crate::topk::{INDEX_DIM, INDEX_HEADS, Kernel, Scores, WIDTH};
use ::simt::Order;

/// Contexts around the width, with every kind of tail.
const CONTEXTS: [i32; 13] = [0, 1, 3, 4, 7, 2050, 2051, 2052, 2053, 2055, 2056, 9001, 40_000];
const ORDERS: [Order; 4] = [Order::Ascending, Order::Descending, Order::WarpReversed, Order::Seeded(3)];

/// Every instruction set of the CPU backend against a sort.
pub fn cpu_cases(report: &mut Report<'_>) {
    for pattern in Pattern::ALL {
        for width in [1, 6, 64, WIDTH, 4100] {
            let selection = Selection::new(pattern, &CONTEXTS, width, 3, width as u64);
            for isa in Isa::available() {
                report.case(&format!("cpu/{isa} topk {pattern} width={width}"), || {
                    let mut ids = selection.blank();
                    cpu::topk_with(isa, selection.call(&mut ids)).map_err(|error| error.to_string())?;
                    same_bits("ids", &ids, &selection.expected())
                });
            }
        }
    }
}

/// The kernels on the SIMT executor against a sort, and the scores against the CPU backend.
pub fn simt_cases(report: &mut Report<'_>) {
    for (index, pattern) in Pattern::ALL.into_iter().enumerate() {
        let order = ORDERS[index % ORDERS.len()];
        let selection = Selection::new(pattern, &[9, 0, 65, 401, 2053], 64, 3, index as u64);
        for kernel in Kernel::ALL.into_iter().filter(|&kernel| cuda::launches(kernel, 1).is_ok()) {
            report.case(&format!("simt {kernel} {pattern} {order}"), || {
                let mut ids = selection.blank();
                simt::topk(kernel, order, selection.call(&mut ids)).map_err(|fault| fault.to_string())?;
                same_bits("ids", &ids, &selection.expected())
            });
        }
    }
    for order in ORDERS {
        let keys = Keys::new(&[0, 3, 4, 257, 258, 300], 5);
        report.case(&format!("simt scores {order}"), || {
            keys.compare(|call| simt::scores(order, call).map(drop).map_err(|fault| fault.to_string()))
        });
    }
}

/// Every kernel that can run on the device, and the one that the plan chooses, against the CPU backend.
pub fn device_cases(backend: &Backend, report: &mut Report<'_>) {
    for pattern in Pattern::ALL {
        for width in [1, 6, 64, WIDTH, 2301, 4100] {
            selection_cases(backend, report, pattern, &CONTEXTS, width, 3);
        }
        const LONG: [i32; 9] = [3001, 65_538, 135_168, 135_169, 135_170, 135_171, 262_142, 262_143, 262_144];
        selection_cases(backend, report, pattern, &LONG, WIDTH, 2);
    }
    // What an engine asks for: the largest context of the call, and the capacity of its rows.
    const CALLS: [(i32, usize); 9] = [
        (9000, 9000),
        (135_160, 135_160),
        (135_176, 135_176),
        (2100, 262_144),
        (9000, 262_144),
        (32_768, 262_144),
        (262_144, 262_144),
        (300_001, 524_288),
        (524_288, 524_288),
    ];
    for (context, capacity) in CALLS {
        for queries in [8, 64] {
            let contexts: Vec<i32> = (0..queries).map(|query| context - query).rev().collect();
            let spare = capacity / 4 + 2 - (context as usize).div_ceil(4);
            for pattern in [Pattern::Normal, Pattern::Levels, Pattern::Equal] {
                selection_cases(backend, report, pattern, &contexts, WIDTH, spare);
            }
        }
    }
    for (contexts, seed) in [(&[0][..], 1), (&[7], 2), (&CONTEXTS, 3), (&[4096; 40], 4)] {
        report.case(&format!("scores {} queries, n_kv {}", contexts.len(), contexts[0]), || {
            Keys::new(contexts, seed).compare(|call| backend.scores(call).map_err(|error| error.to_string()))
        });
    }
}

fn selection_cases(
    backend: &Backend,
    report: &mut Report<'_>,
    pattern: Pattern,
    contexts: &[i32],
    width: usize,
    spare: usize,
) {
    let longest = contexts.iter().max().copied().unwrap_or(0);
    let call = format!(
        "{} queries to n_kv {longest}, {spare} blocks spare, width={width} {pattern}",
        contexts.len()
    );
    let mut made = None;
    for kernel in Kernel::ALL.into_iter().map(Some).chain([None]) {
        let name = format!("topk {} {call}", kernel.map_or("auto", Kernel::name));
        if !report.wants(&name) {
            continue;
        }
        let (selection, expected) = made.get_or_insert_with(|| {
            let selection = Selection::new(pattern, contexts, width, spare, longest as u64);
            let mut ids = selection.blank();
            let outcome = cpu::topk(selection.call(&mut ids)).map(|()| ids);
            (selection, outcome)
        });
        let mut ids = selection.blank();
        let ran = backend.topk(selection.call(&mut ids), kernel);
        // It cannot run on this device, or with rows of this length: the plan's tests are about that.
        if kernel.is_some() && matches!(ran, Err(Error::Variant { .. })) {
            continue;
        }
        report.case(&name, || {
            ran.map_err(|error| error.to_string())?;
            same_bits("ids", &ids, expected.as_ref().map_err(Error::to_string)?)
        });
    }
}

/// Keys to score.
struct Keys {
    n_kv: Vec<i32>,
    stride: usize,
    pooled: Vec<f32>,
    q_idx: Vec<f32>,
    tail: Vec<f32>,
}

impl Keys {
    /// A tail for each query if `seed` is odd, else one for all.
    fn new(n_kv: &[i32], seed: u64) -> Keys {
        let mut random = Random(seed);
        let mut rows = |rows: usize| (0..rows * INDEX_DIM).map(|_| random.normal()).collect::<Vec<_>>();
        let blocks = n_kv.iter().map(|&n_kv| n_kv as usize / 4).max().unwrap_or(0);
        let tails = if seed % 2 == 1 { n_kv.len() } else { 1 };
        let (pooled, q_idx, tail) = (rows(blocks), rows(n_kv.len() * INDEX_HEADS), rows(tails));
        Keys { n_kv: n_kv.to_vec(), stride: blocks + 3, pooled, q_idx, tail }
    }

    /// Whether `run` gives the bits of the CPU backend, and writes no more.
    fn compare(&self, run: impl FnOnce(Scores<'_>) -> Result<(), String>) -> Result<(), String> {
        const BLANK: f32 = -7.5;
        let mut found = vec![BLANK; self.n_kv.len() * self.stride];
        let mut expected = found.clone();
        let Keys { n_kv, stride, pooled, q_idx, tail } = self;
        let call = |scores| {
            Scores::new(*stride, pooled, q_idx, tail, n_kv, scores).map_err(|error| error.to_string())
        };
        run(call(&mut found)?)?;
        cpu::scores(call(&mut expected)?);
        same_bits("scores", &found, &expected)
    }
}
