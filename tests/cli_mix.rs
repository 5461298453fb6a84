//! `keyhead gdn` on the whole path, from outside: what it writes, and what it says when it cannot.

#[path = "common/cli.rs"]
mod cli;
mod common;

use cli::{Folder, HEAD, Layer, Made, SILU, f32s, keyhead, output_of, shape};
use common::{assert_close, files};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/layer.safetensors");
/// The f32 noise of a layer, relative to the largest value.
const NOISE: f64 = 2e-6;

/// What the whole path reads.
fn mix(tokens: usize, key: usize, value: usize) -> Layer {
    let channels = (2 * key + value) * HEAD;
    let shapes: [(&str, &[usize]); 12] = [
        ("qkv", &[tokens, channels]),
        ("a", &[tokens, value]),
        ("b", &[tokens, value]),
        ("z", &[tokens, value, HEAD]),
        ("conv_weight", &[channels, 4]),
        ("conv_bias", &[channels]),
        ("conv_state_in", &[channels, 3]),
        ("A_log", &[value]),
        ("dt_bias", &[value]),
        ("norm_weight", &[HEAD]),
        ("initial_state", &[value, HEAD, HEAD]),
        ("g", &[1]), // Another program's output: ignored.
    ];
    let mut layer = Layer(BTreeMap::new());
    for (seed, (name, shape)) in shapes.into_iter().enumerate() {
        layer.0.insert(name.into(), Made::new(shape, seed as u32 + 1));
    }
    layer
}

#[test]
fn the_example_gives_what_transformers_computes() {
    let mut goldens = files("gdn_mix_hk2_hv4_t17");
    let golden = goldens.pop().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.safetensors");
    for (act, dtype, tolerance) in
        [("silu", "f32", NOISE), ("sigmoid", "f32", NOISE), ("silu", "f16", 5e-4), ("silu", "bf16", 4e-3)]
    {
        let options = ["--head-map", "grouped", "--norm-act", act, "--out-dtype", dtype];
        let files = ["gdn", EXAMPLE, "-o", output.to_str().unwrap()];
        keyhead(&[&files[..], &options].concat(), &[]).succeeds();
        let file = fs::read(&output).unwrap();
        assert_close("y", &f32s(&file, "y"), &golden.f32("y"), NOISE);
        assert_close(act, &f32s(&file, "out"), &golden.f32(&format!("out_{act}")), tolerance);
        assert_eq!(f32s(&file, "conv_state_out"), golden.f32("conv_state_out"));
        golden.assert_state(&f32s(&file, "final_state"), NOISE);
    }
}

/// The golden files themselves, with `A_log` and `ssm_a` that agree, are input too.
#[test]
fn golden_files_are_input() {
    for golden in files("gdn_mix_") {
        let folder = tempfile::tempdir().unwrap();
        let (input, output) = (folder.path().join("in.safetensors"), folder.path().join("out.safetensors"));
        fs::write(&input, golden.bytes()).unwrap();
        let files = ["gdn", input.to_str().unwrap(), "-o", output.to_str().unwrap()];
        keyhead(&[&files[..], SILU, &["--out-dtype", "f32", "--backend", "cpu"]].concat(), &[]).succeeds();
        let file = fs::read(&output).unwrap();
        assert_close(&golden.name, &f32s(&file, "out"), &golden.f32("out_silu"), NOISE);
        assert_eq!(f32s(&file, "conv_state_out"), golden.f32("conv_state_out"), "{}", golden.name);
    }
}

#[test]
fn the_output_holds_what_the_help_says() {
    let folder = Folder::new(&mix(3, 2, 4));
    let ran = folder.gdn(SILU);
    let line = ran.succeeds().stderr.clone();
    for part in ["3 tokens", "2 key and 4 value heads", "whole path by cpu/", "silu", "tokens/s"] {
        assert!(line.contains(part), "no `{part}` in: {line}");
    }
    let file = folder.bytes();
    assert_eq!(shape(&file, "y"), [3, 4, HEAD]);
    assert_eq!(shape(&file, "final_state"), [4, HEAD, HEAD]);
    assert_eq!(shape(&file, "conv_state_out"), [1024, 3]);
    assert_eq!(shape(&file, "out"), [3, 4, HEAD]);
    let tensors = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(tensors.len(), 4);
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    let metadata = header.metadata().clone().unwrap();
    assert_eq!((&*metadata["eps"], &*metadata["l2_eps"]), ("0.000001", "0.000001"));
    for isa in ["portable", "avx2"] {
        let ran = folder.gdn_with(SILU, &[("KEYHEAD_CPU", isa)]);
        assert!(ran.code == 0 && folder.bytes() == file || ran.stderr.contains("this CPU lacks it"), "{isa}");
    }
    folder.gdn(&[SILU, &["--l2-eps", "0.5"]].concat()).succeeds();
    assert!(folder.bytes() != file);
}

#[test]
fn chunks_change_nothing() {
    let layer = mix(7, 1, 2);
    let whole = output_of(&layer, SILU);
    for tokens in ["1", "2", "3", "6", "7", "8", "18446744073709551615"] {
        assert!(output_of(&layer, &[SILU, &["--chunk", tokens]].concat()) == whole, "{tokens}");
    }
    for tokens in ["0", "-1", "1.5", "x", ""] {
        let options = [SILU, &["--chunk", tokens]].concat();
        Folder::new(&layer).gdn(&options).fails(2, &["--chunk", "1 or more"]);
    }
}

#[test]
fn a_file_behind_another_goes_on_where_it_ended() {
    let whole_layer = mix(5, 1, 2);
    let whole = output_of(&whole_layer, SILU);
    let part = |tokens: std::ops::Range<usize>| {
        let mut layer = whole_layer.clone();
        for name in ["qkv", "a", "b", "z"] {
            layer.edit(name, |made| {
                let row = made.values.len() / 5;
                made.values = made.values[tokens.start * row..tokens.end * row].to_vec();
                made.shape[0] = tokens.len();
            });
        }
        layer
    };
    let first = output_of(&part(0..2), SILU);
    let mut rest = part(2..5);
    rest.edit("conv_state_in", |made| made.values = f32s(&first, "conv_state_out"));
    rest.edit("initial_state", |made| made.values = f32s(&first, "final_state"));
    let rest = output_of(&rest, SILU);
    for name in ["y", "out"] {
        assert_eq!([f32s(&first, name), f32s(&rest, name)].concat(), f32s(&whole, name), "{name}");
    }
    for name in ["conv_state_out", "final_state"] {
        assert_eq!(f32s(&rest, name), f32s(&whole, name), "{name}");
    }
}

#[test]
fn dtypes_may_mix() {
    let layer = mix(2, 1, 2);
    let expected = output_of(&layer, SILU);
    for shift in 0..3 {
        let mut mixed = layer.clone();
        for (index, made) in mixed.0.values_mut().enumerate() {
            made.dtype = [Dtype::BF16, Dtype::F32, Dtype::F16][(index + shift) % 3];
        }
        assert!(output_of(&mixed, SILU) == expected, "{shift}");
    }
}

#[test]
fn other_forms_of_the_same() {
    let layer = mix(3, 1, 2);
    let expected = output_of(&layer, SILU);
    let changed = |change: &dyn Fn(&mut Layer)| {
        let mut layer = layer.clone();
        change(&mut layer);
        output_of(&layer, SILU)
    };
    let same: [&dyn Fn(&mut Layer); 3] = [
        &|l| {
            l.edit("conv_weight", |w| w.shape = vec![512, 1, 4]);
        },
        &|l| {
            for name in ["qkv", "a", "b", "z", "conv_state_in", "initial_state"] {
                l.edit(name, |made| made.shape.insert(0, 1));
            }
        },
        &|l| {
            let ssm_a = l.0["A_log"].values.iter().map(|&a| -kernels_gpu::math::exp(a)).collect();
            l.without(&["A_log"]).set("ssm_a", Made { values: ssm_a, ..Made::new(&[2], 1) });
        },
    ];
    for (index, change) in same.into_iter().enumerate() {
        assert!(changed(change) == expected, "{index}");
    }
    // Both, and the exponential overflows.
    let infinite = |names: &[&str]| {
        changed(&|l| {
            l.edit("A_log", |a| a.values.fill(200.0));
            l.set("ssm_a", Made { values: vec![f32::NEG_INFINITY; 2], ..Made::new(&[2], 1) }).without(names);
        })
    };
    assert!(infinite(&[]) == infinite(&["A_log"]));
    // What may be left out is zero.
    for name in ["conv_bias", "conv_state_in", "initial_state"] {
        let without = changed(&|l| {
            l.without(&[name]);
        });
        assert!(without != expected, "{name}");
        let zeros = changed(&|l| {
            l.edit(name, |made| made.values.fill(0.0));
        });
        assert_eq!(f32s(&without, "y"), f32s(&zeros, "y"), "{name}");
    }
}

#[test]
fn no_tokens_leave_what_is_carried_as_it_is() {
    let layer = mix(0, 2, 4);
    let file = output_of(&layer, SILU);
    assert_eq!(shape(&file, "out"), [0, 4, HEAD]);
    assert_eq!(f32s(&file, "final_state"), layer.0["initial_state"].values);
    assert_eq!(f32s(&file, "conv_state_out"), layer.0["conv_state_in"].values);
}

#[test]
fn wrong_tensors_are_named() {
    type Edit = fn(&mut Layer) -> &mut Layer;
    // `mix(3, 2, 4)`, wrong in one way; and what the message must name.
    let cases: &[(Edit, &[&str])] = &[
        (
            |l| l.set("q", Made::new(&[3, 2, 128], 1)),
            &["`qkv` and `q` contradict", "`qkv`, or `q`, `k` and `v`"],
        ),
        (|l| l.set("v", Made::new(&[3, 4, 128], 1)), &["`qkv` and `v` contradict"]),
        (|l| l.set("ssm_a", Made::new(&[4], 1)), &["`A_log` and `ssm_a` contradict", "-exp(A_log)"]),
        (
            |l| l.set("initial_state_i8", Made::new(&[1, 128, 128], 1)),
            &["`initial_state` and `initial_state_i8` contradict", "one of them"],
        ),
        (|l| l.without(&["qkv"]), &["`q` is missing", "or `qkv`", "holds `A_log`"]),
        (|l| l.without(&["z"]), &["`z` is missing", "`[T, HV, 128]`", "T = 3"]),
        (|l| l.without(&["a"]), &["`a` is missing", "T = 3, HV = 4"]),
        (|l| l.without(&["b"]), &["`b` is missing"]),
        (|l| l.without(&["conv_weight"]), &["`conv_weight` is missing", "C = 1024"]),
        (|l| l.without(&["A_log"]), &["`A_log` is missing", "or `ssm_a`"]),
        (|l| l.without(&["dt_bias"]), &["`dt_bias` is missing"]),
        (|l| l.without(&["norm_weight"]), &["`norm_weight` is missing"]),
        (
            |l| l.set("qkv", Made::new(&[3, 1000], 1)),
            &["`qkv` has shape [3, 1000]", "(2 * HK + HV) * 128", "HV = 4"],
        ),
        (|l| l.set("qkv", Made::new(&[3, 1152], 1)), &["`qkv` has shape [3, 1152]", "HV = 4"]),
        (|l| l.set("qkv", Made::new(&[3, 128], 1)), &["`qkv` has shape [3, 128]", "HV = 4"]),
        (|l| l.set("qkv", Made::new(&[3, 512], 1)), &["0 key heads and 4 value heads", "1 to 64"]),
        (|l| l.set("qkv", Made::new(&[3, 1280], 1)), &["3 key heads and 4 value heads", "multiple"]),
        (|l| l.set("qkv", Made::new(&[3, 2, 512], 1)), &["`qkv`", "batch of 3", "`[T, C]`"]),
        (|l| l.set("z", Made::new(&[2, 4, 128], 1)), &["`z` has shape [2, 4, 128]", "T = 3"]),
        (|l| l.set("a", Made::new(&[3, 2], 1)), &["`a` has shape [3, 2]", "HV = 4"]),
        (
            |l| l.set("conv_weight", Made::new(&[1024, 3], 1)),
            &["`conv_weight` has shape [1024, 3]", "`[C, 4]`", "or `[C, 1, 4]`"],
        ),
        (|l| l.set("conv_weight", Made::new(&[1024, 2, 4], 1)), &["`conv_weight` has shape [1024, 2, 4]"]),
        (|l| l.set("conv_bias", Made::new(&[4], 1)), &["`conv_bias` has shape [4]", "C = 1024"]),
        (
            |l| l.set("conv_state_in", Made::new(&[3, 1024], 1)),
            &["`conv_state_in` has shape [3, 1024]", "`[C, 3]`"],
        ),
        (|l| l.set("dt_bias", Made::new(&[2], 1)), &["`dt_bias` has shape [2]"]),
        (|l| l.set("A_log", Made::new(&[2], 1)), &["`A_log` has shape [2]"]),
        (
            |l| {
                let positive = Made { values: vec![-1.0, 0.0, 2.5, -1.0], ..Made::new(&[4], 1) };
                l.without(&["A_log"]).set("ssm_a", positive)
            },
            &["`a_coef` is 2.5 at index 2", "not positive", "`ssm_a`"],
        ),
        (|l| l.edit("qkv", |v| v.dtype = Dtype::F64), &["`qkv` has dtype F64", "F32, F16, BF16"]),
        (|l| l.edit("b", |v| v.dtype = Dtype::I8), &["`b` has dtype I8", "F32, F16, BF16"]),
        (
            |l| l.edit("norm_weight", |w| w.values[7] = f32::NAN),
            &["`norm_weight`", "NaN at index 7", "finite"],
        ),
    ];
    for (edit, parts) in cases {
        let mut layer = mix(3, 2, 4);
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
    let folder = Folder::new(&mix(1, 1, 1));
    folder.gdn(&["--head-map", "grouped"]).fails(2, &["`--norm-act` is not given", "sigmoid, silu"]);
    for eps in ["-1", "nan", "x"] {
        folder.gdn(&[SILU, &["--l2-eps", eps]].concat()).fails(2, &["--l2-eps", "finite number"]);
    }
    folder.gdn(&[SILU, &["--variant", "pipe"]].concat()).fails(2, &["`pipe` cannot run here", "CPU"]);
}
