//! `keyhead gdn` on the recurrence alone, from outside: what it writes, and what it says when it cannot.

#[path = "common/cli.rs"]
mod cli;

use cli::{Folder, HEAD, Layer, Made, SILU, f32s, output_of, shape};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs;

/// What the recurrence alone reads, and the out norm.
fn plain(tokens: usize, key: usize, value: usize) -> Layer {
    let shapes: [(&str, &[usize]); 8] = [
        ("q", &[tokens, key, HEAD]),
        ("k", &[tokens, key, HEAD]),
        ("v", &[tokens, value, HEAD]),
        ("g", &[tokens, value]),
        ("beta", &[tokens, value]),
        ("initial_state", &[value, HEAD, HEAD]),
        ("z", &[tokens, value, HEAD]),
        ("norm_weight", &[HEAD]),
    ];
    let mut layer = Layer(BTreeMap::new());
    for (seed, (name, shape)) in shapes.into_iter().enumerate() {
        layer.0.insert(name.into(), Made::new(shape, seed as u32 + 1));
    }
    layer.edit("g", |g| g.values.iter_mut().for_each(|x| *x = -x.abs()));
    layer
}

#[test]
fn the_output_holds_what_the_help_says_and_nothing_that_depends_on_the_machine() {
    let folder = Folder::new(&plain(3, 2, 4));
    let ran = folder.gdn(SILU);
    let line = ran.succeeds().stderr.clone();
    for part in ["3 tokens", "2 key and 4 value heads", "cpu", "silu", "tokens/s"] {
        assert!(line.contains(part), "no `{part}` in: {line}");
    }
    let file = folder.bytes();
    assert_eq!(shape(&file, "y"), [3, 4, HEAD]);
    assert_eq!(shape(&file, "final_state"), [4, HEAD, HEAD]);
    assert_eq!(shape(&file, "out"), [3, 4, HEAD]);
    assert_eq!(SafeTensors::deserialize(&file).unwrap().tensor("out").unwrap().dtype(), Dtype::F16);
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    let mut keys: Vec<_> = header.metadata().clone().unwrap().into_iter().collect();
    keys.sort();
    let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let tool = format!("keyhead {}", env!("CARGO_PKG_VERSION"));
    let expected =
        [text("eps", "0.000001"), text("head_map", "grouped"), text("norm_act", "silu"), text("tool", &tool)];
    assert_eq!(keys, expected);
    for isa in ["portable", "portable", ""] {
        let environment = [("KEYHEAD_CPU", isa)];
        folder.gdn_with(SILU, &environment[..usize::from(!isa.is_empty())]).succeeds();
        assert!(folder.bytes() == file, "other bytes with `{isa}`");
    }
    assert_eq!(folder.names(), ["in.safetensors", "out.safetensors"]);
}

#[test]
fn chunks_change_nothing() {
    let layer = plain(7, 1, 2);
    let whole = output_of(&layer, SILU);
    for tokens in ["1", "2", "3", "6", "7", "8"] {
        assert!(output_of(&layer, &[SILU, &["--chunk", tokens]].concat()) == whole, "{tokens}");
    }
}

#[test]
fn the_head_maps_differ_as_they_should() {
    let layer = plain(3, 2, 4);
    let grouped = output_of(&layer, SILU);
    let tiled = output_of(&layer, &["--head-map", "tiled", "--norm-act", "silu"]);
    let head = |file: &[u8], head: usize| f32s(file, "y")[head * HEAD..][..HEAD].to_vec();
    // Head 0 reads key head 0 either way; head 1 reads 0 or 1.
    assert_eq!(head(&grouped, 0), head(&tiled, 0));
    assert_ne!(head(&grouped, 1), head(&tiled, 1));
}

#[test]
fn dtypes_may_mix() {
    let layer = plain(2, 1, 2);
    let expected = output_of(&layer, SILU);
    for (shift, dtypes) in [Dtype::F16, Dtype::BF16, Dtype::F32].into_iter().enumerate() {
        let all = [Dtype::BF16, dtypes, Dtype::F16];
        let mut mixed = layer.clone();
        for (index, made) in mixed.0.values_mut().enumerate() {
            made.dtype = all[(index + shift) % 3];
        }
        assert!(output_of(&mixed, SILU) == expected, "{all:?}");
    }
}

#[test]
fn a_batch_of_one_is_accepted_and_no_other() {
    let layer = plain(3, 1, 2);
    let expected = output_of(&layer, SILU);
    let mut batch = layer.clone();
    for name in ["q", "k", "v", "g", "beta", "initial_state", "z"] {
        batch.edit(name, |made| made.shape.insert(0, 1));
    }
    assert!(output_of(&batch, SILU) == expected);
    let mut two = layer.clone();
    two.set("q", Made::new(&[2, 3, 1, HEAD], 1));
    let parts = ["`q`", "batch of 2", "`[T, HK, 128]` or `[1, T, HK, 128]`"];
    Folder::new(&two).gdn(SILU).fails(2, &parts);
    let mut two = layer.clone();
    two.set("beta", Made::new(&[2, 3, 2], 1));
    Folder::new(&two).gdn(SILU).fails(2, &["`beta`", "batch of 2", "`[1, T, HV]`, with T = 3, HV = 2"]);
}

#[test]
fn no_tokens_leave_the_state_as_it_is() {
    let layer = plain(0, 2, 4);
    let file = output_of(&layer, SILU);
    assert_eq!(shape(&file, "y"), [0, 4, HEAD]);
    assert_eq!(shape(&file, "out"), [0, 4, HEAD]);
    assert_eq!(f32s(&file, "final_state"), layer.0["initial_state"].values);
    let mut fresh = layer.clone();
    let file = output_of(fresh.without(&["initial_state"]), SILU);
    assert!(f32s(&file, "final_state").iter().all(|x| x.to_bits() == 0));
}

#[test]
fn optional_tensors() {
    let layer = plain(3, 1, 2);
    let full = output_of(&layer, SILU);
    let mut bare = layer.clone();
    let file = output_of(bare.without(&["z", "norm_weight"]), &["--head-map", "grouped"]);
    assert_eq!(f32s(&file, "y"), f32s(&full, "y"));
    assert!(SafeTensors::deserialize(&file).unwrap().tensor("out").is_err());

    let mut zeros = layer.clone();
    zeros.set("initial_state", Made::new(&[2, HEAD, HEAD], 1)).edit("initial_state", |s| s.values.fill(0.0));
    let mut none = layer.clone();
    assert!(output_of(none.without(&["initial_state"]), SILU) == output_of(&zeros, SILU));

    // The golden files' short form: head h starts from slice h % N.
    let mut short = layer.clone();
    let mut slices = Made::new(&[1, HEAD, HEAD], 9);
    slices.values.iter_mut().for_each(|x| *x = (*x * 254.0).round());
    let scaled: Vec<_> = slices.values.iter().map(|x| x * 0.03).collect();
    slices.dtype = Dtype::I8;
    short.without(&["initial_state"]).set("initial_state_i8", slices.clone());
    Folder::new(&short).gdn(SILU).fails(2, &["`initial_state_scale` is missing"]);
    short.set("initial_state_scale", Made { dtype: Dtype::F32, shape: vec![1], values: vec![0.03] });
    let mut long = layer.clone();
    long.edit("initial_state", |state| state.values = scaled.repeat(2));
    assert!(output_of(&short, SILU) == output_of(&long, SILU));
    short.set("initial_state_i8", Made { shape: vec![0, HEAD, HEAD], values: vec![], ..slices });
    Folder::new(&short).gdn(SILU).fails(2, &["`initial_state_i8` has shape [0, 128, 128]", "N at least 1"]);
}

#[test]
fn nans_stay_in_their_head() {
    let mut layer = plain(3, 1, 2);
    let clean = output_of(&layer, SILU);
    layer.edit("v", |v| v.values[0] = f32::NAN).edit("g", |g| g.values[0] = f32::NEG_INFINITY);
    let file = output_of(&layer, SILU);
    for tensor in ["y", "out"] {
        let (clean, found) = (f32s(&clean, tensor), f32s(&file, tensor));
        assert!(found[0].is_nan(), "{tensor}");
        for token in 0..3 {
            let head = (token * 2 + 1) * HEAD..(token * 2 + 2) * HEAD;
            assert_eq!(found[head.clone()], clean[head], "{tensor}");
        }
    }
}

#[test]
fn wrong_tensors_are_named() {
    type Edit = fn(&mut Layer) -> &mut Layer;
    // `plain(3, 2, 4)`, wrong in one way; and what the message must name.
    let cases: &[(Edit, &[&str])] = &[
        (
            |l| l.without(&["q"]),
            &["`q` is missing", "`[T, HK, 128]` or `[1, T, HK, 128]`", "holds `beta`, `g`"],
        ),
        (|l| l.without(&["k"]), &["`k` is missing", "T = 3, HK = 2"]),
        (|l| l.without(&["v"]), &["`v` is missing", "`[T, HV, 128]`"]),
        (|l| l.without(&["g"]), &["`g` is missing", "`[T, HV]`"]),
        (|l| l.without(&["beta"]), &["`beta` is missing"]),
        (|l| l.without(&["z"]), &["`z` is missing", "both `z` and `norm_weight`, or neither"]),
        (|l| l.without(&["norm_weight"]), &["`norm_weight` is missing", "both `z` and `norm_weight`"]),
        (|l| l.without(&["z", "norm_weight"]), &["`z` is missing", "no --norm-act"]),
        (|l| l.set("q", Made::new(&[3, 2, 64], 1)), &["`q` has shape [3, 2, 64]", "`[T, HK, 128]`"]),
        (|l| l.set("q", Made::new(&[3, 256], 1)), &["`q` has shape [3, 256]", "`[T, HK, 128]`"]),
        (|l| l.set("q", Made::new(&[], 1)), &["`q` has shape []"]),
        (|l| l.set("q", Made::new(&[1, 1, 3, 2, 128], 1)), &["`q` has shape [1, 1, 3, 2, 128]"]),
        (|l| l.set("k", Made::new(&[4, 2, 128], 1)), &["`k` has shape [4, 2, 128]", "T = 3, HK = 2"]),
        (|l| l.set("k", Made::new(&[3, 1, 128], 1)), &["`k` has shape [3, 1, 128]", "HK = 2"]),
        (|l| l.set("v", Made::new(&[2, 4, 128], 1)), &["`v` has shape [2, 4, 128]", "T = 3"]),
        (
            |l| {
                l.set("v", Made::new(&[3, 5, 128], 1))
                    .set("g", Made::new(&[3, 5], 1))
                    .set("beta", Made::new(&[3, 5], 1))
            },
            &["2 key heads and 5 value heads", "multiple"],
        ),
        (
            |l| l.set("q", Made::new(&[3, 0, 128], 1)).set("k", Made::new(&[3, 0, 128], 1)),
            &["0 key heads", "1 to 64"],
        ),
        (|l| l.set("g", Made::new(&[3, 3], 1)), &["`g` has shape [3, 3]", "`[T, HV]`", "T = 3, HV = 4"]),
        (|l| l.set("beta", Made::new(&[12], 1)), &["`beta` has shape [12]", "T = 3, HV = 4"]),
        (
            |l| l.set("initial_state", Made::new(&[128, 4, 128], 1)),
            &["`initial_state` has shape [128, 4, 128]", "`[HV, 128, 128]`", "HV = 4"],
        ),
        (
            |l| l.set("initial_state_i8", Made::new(&[1, 128, 128], 1)),
            &["`initial_state` and `initial_state_i8` contradict", "one of them"],
        ),
        (|l| l.set("z", Made::new(&[3, 2, 128], 1)), &["`z` has shape [3, 2, 128]", "HV = 4"]),
        (|l| l.set("norm_weight", Made::new(&[127], 1)), &["`norm_weight` has shape [127]", "`[128]`"]),
        (|l| l.edit("v", |v| v.dtype = Dtype::F64), &["`v` has dtype F64", "F32, F16, BF16"]),
        (
            |l| l.edit("initial_state", |s| s.dtype = Dtype::I8),
            &["`initial_state` has dtype I8", "F32, F16, BF16"],
        ),
        (
            |l| l.edit("norm_weight", |w| w.values[7] = f32::NAN),
            &["`norm_weight`", "NaN at index 7", "finite"],
        ),
        (|l| l.edit("norm_weight", |w| w.values[9] = f32::INFINITY), &["`norm_weight`", "inf at index 9"]),
    ];
    for (edit, parts) in cases {
        let mut layer = plain(3, 2, 4);
        edit(&mut layer);
        let folder = Folder::new(&layer);
        fs::write(&folder.output, "as it was").unwrap();
        folder.gdn(SILU).fails(2, parts);
        assert_eq!(folder.bytes(), b"as it was", "{parts:?}");
        assert_eq!(folder.names(), ["in.safetensors", "out.safetensors"], "{parts:?}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    let folder = Folder::new(&plain(1, 1, 1));
    let grouped = |options: &[&'static str]| [&["--head-map", "grouped"], options].concat();
    folder.gdn(&[]).fails(2, &["--head-map"]);
    folder.gdn(&["--head-map", "both"]).fails(2, &["both", "tiled, grouped"]);
    folder
        .gdn(&grouped(&[]))
        .fails(2, &["`--norm-act` is not given", "`z` and `norm_weight`", "sigmoid, silu"]);
    folder.gdn(&grouped(&["--norm-act", "gelu"])).fails(2, &["gelu", "sigmoid, silu"]);
    folder.gdn(&grouped(&["--out-dtype", "f64"])).fails(2, &["f64", "f16, bf16, f32"]);
    folder
        .gdn(&grouped(&["--variant", "fast"]))
        .fails(2, &["fast", "auto, heads, cols, pipe, keyhead, scan"]);
    for eps in ["-1", "-1e-9", "nan", "inf", "1e99", "x", ""] {
        folder.gdn(&grouped(&["--norm-act", "silu", "--eps", eps])).fails(2, &["--eps", "finite number"]);
    }
    folder.gdn(&grouped(&["--l2-eps", "1e-6"])).fails(2, &["`--l2-eps` is given", "normalised already"]);
    for place in ["cuda:x", "cuda:", "cuda:-1", "gpu", ""] {
        folder.gdn(&grouped(&["--norm-act", "silu", "--backend", place])).fails(2, &["--backend", "cuda:N"]);
    }
    folder.gdn(&[SILU, &["--variant", "pipe"]].concat()).fails(2, &["`pipe` cannot run here", "CPU"]);
    let environment = [("KEYHEAD_CPU", "mmx")];
    folder.gdn_with(SILU, &environment).fails(2, &["KEYHEAD_CPU", "mmx"]);
    // A machine without a driver, or with fewer devices than that.
    folder.gdn(&[SILU, &["--backend", "cuda:99"]].concat()).fails(3, &["accepted"]);
    assert_eq!(folder.names(), ["in.safetensors"]);
    folder.gdn(&[SILU, &["--eps", "0"]].concat()).succeeds();
}

#[test]
fn the_output_may_be_the_input() {
    let layer = plain(3, 1, 2);
    let expected = output_of(&layer, SILU);
    let mut folder = Folder::new(&layer);
    folder.output.clone_from(&folder.input);
    folder.gdn(SILU).succeeds();
    assert!(folder.bytes() == expected);
    assert_eq!(folder.names(), ["in.safetensors"]);
}

#[cfg(unix)]
#[test]
fn the_output_follows_a_link_and_keeps_permissions() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let layer = plain(1, 1, 1);
    let mut folder = Folder::new(&layer);
    let target = folder.folder.path().join("target");
    fs::write(&target, "old").unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
    folder.output = folder.folder.path().join("link");
    symlink("target", &folder.output).unwrap();
    folder.gdn(SILU).succeeds();
    assert!(fs::symlink_metadata(&folder.output).unwrap().is_symlink());
    assert!(fs::read(&target).unwrap() == output_of(&layer, SILU));
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn files_that_cannot_be() {
    let mut folder = Folder::new(&plain(1, 1, 1));
    let place = |name: &str| folder.folder.path().join(name);
    let (missing, inside, slash) = (place("no/out.safetensors"), place("in.safetensors/out"), place("new/"));
    let there = folder.folder.path().to_owned();
    folder.output = missing;
    folder.gdn(SILU).fails(2, &["cannot write", "its folder", "No such file"]);
    folder.output = inside;
    folder.gdn(SILU).fails(2, &["cannot write", "ot a directory"]);
    folder.output = slash;
    folder.gdn(SILU).fails(2, &["cannot write", "names no file"]);
    folder.output = there.clone();
    folder.gdn(SILU).fails(2, &["cannot write", "is a directory"]);
    folder.output = "/dev/null".into();
    folder.gdn(SILU).fails(2, &["cannot write /dev/null", "device"]);

    folder.output = there.join("out.safetensors");
    folder.input = there.clone();
    folder.gdn(SILU).fails(2, &["cannot read", "is a directory"]);
    folder.input = there.join("nothing");
    folder.gdn(SILU).fails(2, &["cannot read", "nothing", "No such file"]);
    folder.input = "/dev/zero".into();
    folder.gdn(SILU).fails(2, &["/dev/zero", "accepted: a file on disk"]);
    assert_eq!(folder.names(), ["in.safetensors"]);
}
