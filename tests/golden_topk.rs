//! The block top-k against vectors that plain numpy and public software made.

mod common;

use common::{Golden, files};
use keyhead::Backend;
use keyhead::cpu::{self, Isa};
use keyhead::topk::{Topk, TopkShape};

struct Rows {
    shape: TopkShape,
    scores: Vec<f32>,
    n_kv: Vec<i32>,
    ids: Vec<i32>,
}

impl Rows {
    fn new(golden: &Golden) -> Rows {
        let (width, shape) = (golden.i32("width")[0] as usize, golden.shape("scores"));
        let ids = golden.i32("ids");
        Rows {
            // Rows of ids as wide as the file's, which are padded with -1.
            shape: TopkShape::new(shape[0], shape[1], width, ids.len() / shape[0]).unwrap(),
            scores: golden.f32("scores"),
            n_kv: golden.i32("n_kv"),
            ids,
        }
    }

    /// What `run` selects, on ids that are -1.
    fn run(&self, run: impl FnOnce(Topk<'_>)) -> Vec<i32> {
        let mut ids = vec![-1; self.ids.len()];
        run(Topk::new(self.shape, &self.scores, &self.n_kv, &mut ids).unwrap());
        ids
    }
}

/// With the row's name in the message.
#[track_caller]
fn assert_ids(golden: &Golden, rows: &Rows, ids: &[i32]) {
    let names: Vec<String> = serde_json::from_str(&golden.metadata()["rows"]).unwrap();
    let cap = rows.shape.cap();
    for (row, (found, expected)) in ids.chunks(cap).zip(rows.ids.chunks(cap)).enumerate() {
        let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "{}: row {row}, {}, n_kv {}", golden.name, names[row], rows.n_kv[row]);
    }
}

#[test]
fn the_cpu_selects_the_same_ids() {
    let backend = Backend::cpu().unwrap();
    for golden in files("topk_") {
        let rows = Rows::new(&golden);
        let ids = rows.run(|call| drop(backend.topk(call, None).unwrap()));
        assert_ids(&golden, &rows, &ids);
        for isa in Isa::available() {
            let ids = rows.run(|call| cpu::topk_with(isa, call).unwrap());
            assert_ids(&golden, &rows, &ids);
        }
    }
}

/// Behind the last cell the files hold infinities, NaNs and other large numbers.
#[test]
fn other_scores_behind_the_last_cell_change_nothing() {
    let mut changed = 0;
    for golden in files("topk_") {
        let mut rows = Rows::new(&golden);
        for (row, &n_kv) in rows.scores.chunks_mut(rows.shape.stride()).zip(&rows.n_kv) {
            let behind = &mut row[n_kv.unsigned_abs().div_ceil(4) as usize..];
            behind.iter_mut().for_each(|score| *score = -0.5);
            changed += behind.len();
        }
        let ids = rows.run(|call| cpu::topk(call).unwrap());
        assert_ids(&golden, &rows, &ids);
    }
    assert!(changed > 100, "{changed}");
}

/// The indexer of Qwen4-Exp takes whole blocks and the tail: some of our cells, and all where the width leaves no part of a block.
#[test]
fn the_library_takes_the_same_blocks() {
    let mut compared = 0;
    for golden in files("topk_hf_indexer_") {
        let rows = Rows::new(&golden);
        let ids = rows.run(|call| cpu::topk(call).unwrap());
        let cap = rows.shape.cap();
        let theirs = golden.i32("hf_ids");
        for (row, tie) in golden.i32("hf_tie_at_cut").into_iter().enumerate() {
            // Equal scores at the cut: the library's choice is open.
            if tie != 0 {
                continue;
            }
            let [ours, theirs] =
                [&ids, &theirs].map(|ids| ids[row * cap..][..cap].iter().filter(|&&id| id >= 0));
            let (ours, theirs): (Vec<_>, Vec<_>) = (ours.collect(), theirs.collect());
            let n_kv = rows.n_kv[row];
            if n_kv % 4 == 3 || n_kv as usize <= rows.shape.width() {
                assert_eq!(ours, theirs, "{} row {row}", golden.name);
            }
            assert!(theirs.iter().all(|id| ours.binary_search(id).is_ok()), "{} row {row}", golden.name);
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared}");
}
