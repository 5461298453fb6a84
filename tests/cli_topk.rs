//! `keyhead topk` from outside: what it writes, and what it says when it cannot.

#[path = "common/cli.rs"]
mod cli;

use cli::{Folder, Layer, Made, f32s, keyhead, shape};
use keyhead::check::topk::{Pattern, Selection};
use keyhead::cpu;
use keyhead::topk::Scores;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

fn i32s(values: &[i32]) -> Made {
    let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
    Made { dtype: Dtype::I32, shape: vec![values.len()], values }
}

fn floats(shape: &[usize], values: Vec<f32>) -> Made {
    Made { dtype: Dtype::F32, shape: shape.to_vec(), values }
}

/// Scores that any dtype holds, for contexts of 9, 24 and 2 cells in rows of 7 blocks.
fn scores() -> Layer {
    let tensors = [("scores", Made::new(&[3, 7], 5)), ("n_kv", i32s(&[9, 24, 2]))];
    Layer(BTreeMap::from(tensors.map(|(name, made)| (name.to_owned(), made))))
}

/// The same contexts, and the keys of six blocks and the tail.
fn keys() -> Layer {
    let mut layer = scores();
    layer
        .without(&["scores"])
        .set("pooled", Made::new(&[6, 128], 1))
        .set("q_idx", Made::new(&[3, 4, 128], 2))
        .set("tail", Made::new(&[128], 3));
    layer
}

#[track_caller]
fn output_of(layer: &Layer, options: &[&str]) -> Vec<u8> {
    let folder = Folder::new(layer);
    folder.run("topk", options, &[]).succeeds();
    folder.bytes()
}

fn ids(file: &[u8]) -> Vec<i32> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let view = tensors.tensor("ids").unwrap();
    assert_eq!(view.dtype(), Dtype::I32);
    view.data().chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The ids of a row by a sort, then -1.
fn expected(layer: &Layer, row: usize, width: usize) -> Vec<i32> {
    let n_kv = layer.0["n_kv"].values[row] as i32;
    let stride = layer.0["scores"].shape[1];
    let mut selection = Selection::new(Pattern::Normal, &[n_kv], width, stride, 0);
    selection.scores[..stride].copy_from_slice(&layer.0["scores"].values[row * stride..][..stride]);
    let unwritten = |id: i32| if id == Selection::BLANK { -1 } else { id };
    selection.expected().into_iter().take(width).map(unwritten).collect()
}

#[test]
fn golden_files_give_their_ids() {
    let mut seen = 0;
    for entry in fs::read_dir(GOLDEN).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_str().unwrap().starts_with("topk_") {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out.safetensors");
        let files = ["topk", path.to_str().unwrap(), "-o", output.to_str().unwrap(), "--backend", "cpu"];
        keyhead(&files, &[]).succeeds();
        let (input, output) = (fs::read(&path).unwrap(), fs::read(&output).unwrap());
        assert_eq!(ids(&output), ids(&input), "{}", path.display());
        assert_eq!(shape(&output, "ids"), shape(&input, "ids"));
        assert_eq!(SafeTensors::deserialize(&output).unwrap().len(), 1);
        seen += 1;
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn the_output_depends_on_nothing_but_the_input() {
    let layer = scores();
    let folder = Folder::new(&layer);
    let ran = folder.run("topk", &["--width", "6"], &[]);
    let line = ran.succeeds().stderr.clone();
    for part in ["3 queries of 7 blocks", "6 cells", "cpu", "ms"] {
        assert!(line.contains(part), "no `{part}` in: {line}");
    }
    let file = folder.bytes();
    assert_eq!(shape(&file, "ids"), [3, 6]);
    let all: Vec<i32> = (0..3).flat_map(|row| expected(&layer, row, 6)).collect();
    assert_eq!(ids(&file), all);
    assert_eq!(ids(&file)[12..], [0, 1, -1, -1, -1, -1]);
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    let metadata = header.metadata().clone().unwrap();
    assert_eq!(metadata.len(), 1);
    assert_eq!(metadata["tool"], format!("keyhead {}", env!("CARGO_PKG_VERSION")));
    for environment in [("KEYHEAD_CPU", "portable"), ("RAYON_NUM_THREADS", "1"), ("KEYHEAD_TOPK", "auto")] {
        folder.run("topk", &["--width", "6"], &[environment]).succeeds();
        assert!(folder.bytes() == file, "{environment:?}");
    }
    assert_eq!(folder.names(), ["in.safetensors", "out.safetensors"]);
}

#[test]
fn dtypes_and_batches() {
    let layer = scores();
    let expected = output_of(&layer, &["--width", "6"]);
    for dtype in [Dtype::F16, Dtype::BF16] {
        let mut other = layer.clone();
        other.edit("scores", |made| made.dtype = dtype);
        assert!(output_of(&other, &["--width", "6"]) == expected, "{dtype:?}");
    }
    let mut batch = layer.clone();
    for name in ["scores", "n_kv"] {
        batch.edit(name, |made| made.shape.insert(0, 1));
    }
    assert!(output_of(&batch, &["--width", "6"]) == expected);
}

/// A signalling NaN is as low as any, and does not become another number on the way.
#[test]
fn words_are_kept() {
    let nans = [0x7f80_0001, 0xff80_0001, 0x7fc0_0000, 0xffff_ffff].map(f32::from_bits);
    let mut values = nans.to_vec();
    values.extend([-0.0, f32::NEG_INFINITY, f32::from_bits(1), 0.0]);
    let mut layer = scores();
    layer.set("scores", floats(&[1, 8], values)).set("n_kv", i32s(&[32]));
    for (width, blocks) in [("4", &[6][..]), ("8", &[4, 6]), ("12", &[4, 6, 7]), ("20", &[0, 4, 5, 6, 7])] {
        let cells: Vec<i32> =
            blocks.iter().flat_map(|block| (0..4).map(move |cell| 4 * block + cell)).collect();
        assert_eq!(ids(&output_of(&layer, &["--width", width])), cells, "width {width}");
    }
}

#[test]
fn the_width_is_the_files_or_the_arguments() {
    let mut layer = scores();
    let six = output_of(&layer, &["--width", "6"]);
    assert_eq!(shape(&output_of(&layer, &[]), "ids"), [3, 2051]);
    layer.set("width", i32s(&[6]));
    assert!(output_of(&layer, &[]) == six);
    assert!(output_of(&layer, &["--width", "6"]) == six);
    let fails = |layer: &Layer, options: &[&str], parts: &[&str]| {
        let folder = Folder::new(layer);
        folder.run("topk", options, &[]).fails(2, parts);
        assert_eq!(folder.names(), ["in.safetensors"]);
    };
    fails(&layer, &["--width", "7"], &["`--width` is 7", "in the file is 6"]);
    for bad in ["0", "-1", "2147483648", "x", "", "1.5"] {
        fails(&scores(), &["--width", bad], &["--width", "1 to 2147483647"]);
    }
    fails(layer.set("width", i32s(&[0])), &[], &["`width` is 0 in the file", "1 or more"]);
    fails(layer.set("width", i32s(&[-6])), &["--width", "6"], &["`width` is -6 in the file"]);
    fails(layer.set("width", i32s(&[6, 6])), &[], &["`width` has shape [2]", "`[1]`"]);
    fails(layer.set("width", floats(&[1], vec![6.0])), &[], &["`width` has dtype F32", "I32"]);
}

#[test]
fn scores_are_computed_where_there_are_keys() {
    let layer = keys();
    let file = output_of(&layer, &["--width", "6"]);
    assert_eq!(shape(&file, "scores"), [3, 7]);
    let tensor = |name: &str| layer.0[name].values.clone();
    let (pooled, q_idx, tail, mut all) = (tensor("pooled"), tensor("q_idx"), tensor("tail"), vec![0.0; 21]);
    cpu::scores(Scores::new(7, &pooled, &q_idx, &tail, &[9, 24, 2], &mut all).unwrap());
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&f32s(&file, "scores")), bits(&all));
    assert_eq!(all[3..7], [0.0; 4]);
    assert!(all[2] >= 1e9 && all[14] >= 1e9 && all[7..13].iter().any(|&x| x > 0.0));
    // And they are what is selected from.
    let mut given = scores();
    given.set("scores", floats(&[3, 7], all));
    assert_eq!(ids(&file), ids(&output_of(&given, &["--width", "6"])));

    // A tail for each query.
    let mut each = layer.clone();
    each.edit("tail", |made| {
        made.shape = vec![3, 128];
        made.values = made.values.repeat(3);
    });
    assert!(output_of(&each, &["--width", "6"]) == file);
    each.edit("tail", |made| made.values[256..].fill(0.0));
    assert_eq!(f32s(&output_of(&each, &["--width", "6"]), "scores")[14], 1e9);
}

#[test]
fn no_queries() {
    let mut layer = scores();
    layer.set("scores", floats(&[0, 7], vec![])).set("n_kv", i32s(&[]));
    assert_eq!(shape(&output_of(&layer, &["--width", "6"]), "ids"), [0, 6]);
}

#[test]
fn wrong_tensors_are_named() {
    type Case = (fn() -> Layer, fn(&mut Layer) -> &mut Layer, &'static [&'static str]);
    let cases: &[Case] = &[
        (scores, |l| l.without(&["n_kv"]), &["`n_kv` is missing", "`[Q]`", "holds `scores`"]),
        (scores, |l| l.without(&["scores"]), &["`scores` is missing", "`pooled`, `q_idx` and `tail`"]),
        (scores, |l| l.set("scores", Made::new(&[2, 7], 1)), &["`scores` has shape [2, 7]", "Q = 3"]),
        (scores, |l| l.set("scores", Made::new(&[21], 1)), &["`scores` has shape [21]", "`[Q, NB]`"]),
        (scores, |l| l.edit("scores", |s| s.dtype = Dtype::F64), &["`scores` has dtype F64", "F32, F16"]),
        (scores, |l| l.edit("n_kv", |n| n.dtype = Dtype::F32), &["`n_kv` has dtype F32", "I32"]),
        (scores, |l| l.set("n_kv", i32s(&[9, -2, 2])), &["`n_kv` is -2 for query 1", "0 or more"]),
        (scores, |l| l.set("n_kv", i32s(&[9, 24, 29])), &["29 for query 2", "8 blocks", "stride, 7"]),
        (scores, |l| l.set("tail", Made::new(&[128], 1)), &["`scores` and `tail` contradict"]),
        (keys, |l| l.set("scores", Made::new(&[3, 7], 1)), &["`scores` and `pooled` contradict"]),
        (keys, |l| l.without(&["pooled"]), &["`pooled` is missing", "`[NB, 128]`"]),
        (keys, |l| l.without(&["q_idx"]), &["`q_idx` is missing", "`[Q, 4, 128]`", "Q = 3"]),
        (keys, |l| l.without(&["tail"]), &["`tail` is missing", "`[128]` or `[Q, 128]`"]),
        (keys, |l| l.set("pooled", Made::new(&[5, 128], 1)), &["`pooled` holds 640", "6 complete blocks"]),
        (keys, |l| l.set("pooled", Made::new(&[6, 64], 1)), &["`pooled` has shape [6, 64]"]),
        (keys, |l| l.set("q_idx", Made::new(&[3, 3, 128], 1)), &["`q_idx` has shape [3, 3, 128]"]),
        (keys, |l| l.set("q_idx", Made::new(&[2, 4, 128], 1)), &["`q_idx` has shape [2, 4, 128]", "Q = 3"]),
        (keys, |l| l.set("tail", Made::new(&[2, 128], 1)), &["`tail` has shape [2, 128]", "Q = 3"]),
        (keys, |l| l.set("tail", Made::new(&[64], 1)), &["`tail` has shape [64]", "`[128]`"]),
        (keys, |l| l.set("n_kv", i32s(&[9, 24, -1])), &["`n_kv` is -1 for query 2"]),
        (keys, |l| l.set("n_kv", i32s(&[9, 24, 28])), &["`pooled` holds 768", "7 complete blocks"]),
    ];
    for (layer, edit, parts) in cases {
        let mut layer = layer();
        edit(&mut layer);
        let folder = Folder::new(&layer);
        fs::write(&folder.output, "as it was").unwrap();
        folder.run("topk", &[], &[]).fails(2, parts);
        assert_eq!(folder.bytes(), b"as it was", "{parts:?}");
        assert_eq!(folder.names(), ["in.safetensors", "out.safetensors"], "{parts:?}");
    }
}

/// What would not fit into any memory is an error, and not an abort.
#[test]
fn too_much_is_an_error() {
    let mut layer = scores();
    let queries = 1 << 20;
    layer.set("scores", floats(&[queries, 1], vec![0.0; queries])).set("n_kv", i32s(&vec![1; queries]));
    let folder = Folder::new(&layer);
    folder.run("topk", &["--width", "2147483647"], &[]).fails(2, &["host memory", "`ids`"]);
}

#[test]
fn wrong_arguments_are_named() {
    let folder = Folder::new(&scores());
    let run = |options: &[&str], environment: &[(&str, &str)]| folder.run("topk", options, environment);
    run(&["--kernel", "fast"], &[])
        .fails(2, &["--kernel", "auto, original, register, wide, split, cluster, sieve"]);
    for kernel in ["original", "sieve"] {
        run(&["--kernel", kernel], &[]).fails(2, &[kernel, "cannot run here", "CPU"]);
        run(&[], &[("KEYHEAD_TOPK", kernel)]).fails(2, &[kernel, "KEYHEAD_TOPK", "CPU"]);
    }
    run(&[], &[("KEYHEAD_TOPK", "fast")]).fails(2, &["`KEYHEAD_TOPK` is `fast`", "auto, original"]);
    run(&[], &[("STRATA_TOPK_OLD", "")]).fails(2, &["original", "STRATA_TOPK_OLD"]);
    run(&["--backend", "gpu"], &[]).fails(2, &["--backend", "cuda:N"]);
    // A machine without a driver, or with fewer devices than that.
    run(&["--backend", "cuda:99"], &[]).fails(3, &["accepted"]);
    assert_eq!(folder.names(), ["in.safetensors"]);
    run(&["--kernel", "auto"], &[]).succeeds();
}

#[test]
fn the_output_may_be_the_input() {
    let layer = scores();
    let expected = output_of(&layer, &[]);
    let mut folder = Folder::new(&layer);
    folder.output.clone_from(&folder.input);
    folder.run("topk", &[], &[]).succeeds();
    assert!(folder.bytes() == expected);
}

#[test]
fn files_that_cannot_be() {
    let mut folder = Folder::new(&scores());
    folder.output = Path::new("/no/such/folder/out.safetensors").into();
    folder.run("topk", &[], &[]).fails(2, &["cannot write", "No such file"]);
    folder.input = folder.folder.path().join("nothing");
    folder.run("topk", &[], &[]).fails(2, &["cannot read", "nothing"]);
}
