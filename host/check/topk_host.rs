//! The checks of the block top-k without a device, and of the calls on host memory with and without one.

use super::data::Random;
use super::topk::{Pattern, Selection};
use super::{Report, same_bits, simt};
use crate::backend::Backend;
use crate::cpu::{self, Isa};
use crate::topk::{INDEX_DIM, INDEX_HEADS, Kernel, Scores, WIDTH};
use ::simt::Order;

/// Contexts around the width, with every kind of tail.
const CONTEXTS: [i32; 13] = [0, 1, 3, 4, 7, 2050, 2051, 2052, 2053, 2055, 2056, 9001, 40_000];
const ORDERS: [Order; 4] = [Order::Ascending, Order::Descending, Order::WarpReversed, Order::Seeded(3)];

/// Every instruction set of the CPU backend against a sort.
pub(super) fn cpu_cases(report: &mut Report<'_>) {
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
pub(super) fn simt_cases(report: &mut Report<'_>) {
    for (index, pattern) in Pattern::ALL.into_iter().enumerate() {
        let order = ORDERS[index % ORDERS.len()];
        // Behind the last block of the last row, whose tail is empty, there is nothing.
        let selection = Selection::new(pattern, &[9, 0, 65, 401, 2053, 2056], 64, 0, index as u64);
        for kernel in Kernel::ALL {
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

/// The calls on host memory of a backend, by the plan's choice, against the CPU backend.
pub(super) fn backend_cases(backend: &Backend, report: &mut Report<'_>) {
    for (contexts, width) in [(&CONTEXTS[..], WIDTH), (&[], 4), (&[0, 0], 4), (&[1], 1), (&[8, 6], 2400)] {
        let selection = Selection::new(Pattern::Mix, contexts, width, 0, 9);
        report.case(&format!("topk host buffers {} queries, width={width}", contexts.len()), || {
            let mut ids = selection.blank();
            backend.topk(selection.call(&mut ids), None).map_err(|error| error.to_string())?;
            same_bits("ids", &ids, &selection.expected())
        });
    }
    for (contexts, seed) in [(&CONTEXTS[..], 1), (&[], 2), (&[0], 3), (&[7, 3], 4)] {
        report.case(&format!("scores host buffers {} queries", contexts.len()), || {
            Keys::new(contexts, seed).compare(|call| backend.scores(call).map_err(|error| error.to_string()))
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
