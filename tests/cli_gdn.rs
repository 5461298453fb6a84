//! `keyhead gdn` from outside: what it writes, and what it says when it cannot.

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const HEAD: usize = 128;
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/layer.safetensors");
/// The f32 noise of a layer, relative to the largest value.
const NOISE: f64 = 2e-6;

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn keyhead(args: &[&str], environment: &[(&str, &str)]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_keyhead"))
        .args(args)
        .envs(environment.iter().copied())
        .output()
        .expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran {
        code: output.status.code().expect("it exits by itself"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

impl Ran {
    #[track_caller]
    fn succeeds(&self) -> &Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self
    }

    /// One line that names everything in `parts`, and no panic.
    #[track_caller]
    fn fails(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "{}", self.stderr);
        assert_eq!(self.stdout, "");
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "no `{part}` in: {}", self.stderr);
        }
    }
}

/// A tensor to be, whose values any dtype here holds exactly.
#[derive(Clone)]
struct Made {
    dtype: Dtype,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Made {
    /// Multiples of 1/256 in -1/2..1/2, different for each `seed`.
    fn new(shape: &[usize], seed: u32) -> Made {
        let count = shape.iter().product::<usize>();
        let mut word = seed.wrapping_mul(2_654_435_761) | 1;
        let mut next = || {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((word >> 24) as f32 - 128.0) / 256.0
        };
        Made { dtype: Dtype::F32, shape: shape.to_vec(), values: (0..count).map(|_| next()).collect() }
    }

    fn bytes(&self) -> Vec<u8> {
        let values = self.values.iter();
        match self.dtype {
            Dtype::F32 => values.flat_map(|x| x.to_le_bytes()).collect(),
            Dtype::F16 => values.flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            Dtype::BF16 => values.flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            Dtype::F64 => values.flat_map(|&x| f64::from(x).to_le_bytes()).collect(),
            Dtype::I8 => values.map(|&x| x as i8 as u8).collect(),
            other => panic!("{other:?}"),
        }
    }
}

/// An input file to be.
#[derive(Clone)]
struct Layer(BTreeMap<String, Made>);

impl Layer {
    fn new(tokens: usize, key: usize, value: usize) -> Layer {
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

    fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Made)) -> &mut Layer {
        edit(self.0.get_mut(name).expect("the tensor is there"));
        self
    }

    fn set(&mut self, name: &str, made: Made) -> &mut Layer {
        self.0.insert(name.into(), made);
        self
    }

    fn without(&mut self, names: &[&str]) -> &mut Layer {
        names.iter().for_each(|&name| assert!(self.0.remove(name).is_some(), "{name}"));
        self
    }

    fn write(&self, path: &Path) {
        let bytes: Vec<_> = self.0.iter().map(|(name, made)| (name, made, made.bytes())).collect();
        let view = |made: &Made, bytes| TensorView::new(made.dtype, made.shape.clone(), bytes).unwrap();
        let views: Vec<_> = bytes.iter().map(|(name, made, bytes)| (name, view(made, bytes))).collect();
        fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    }
}

/// A folder with an input, and the output beside it.
struct Folder {
    folder: TempDir,
    input: PathBuf,
    output: PathBuf,
}

const SILU: &[&str] = &["--head-map", "grouped", "--norm-act", "silu"];

impl Folder {
    fn new(layer: &Layer) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let (input, output) = (folder.path().join("in.safetensors"), folder.path().join("out.safetensors"));
        layer.write(&input);
        Folder { folder, input, output }
    }

    fn gdn(&self, options: &[&str]) -> Ran {
        self.gdn_with(options, &[])
    }

    fn gdn_with(&self, options: &[&str], environment: &[(&str, &str)]) -> Ran {
        let files = ["gdn", self.input.to_str().unwrap(), "-o", self.output.to_str().unwrap()];
        let place: &[&str] = if options.contains(&"--backend") { &[] } else { &["--backend", "cpu"] };
        keyhead(&[&files, options, place].concat(), environment)
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.output).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// The output of a run that must succeed.
#[track_caller]
fn output_of(layer: &Layer, options: &[&str]) -> Vec<u8> {
    let folder = Folder::new(layer);
    folder.gdn(options).succeeds();
    folder.bytes()
}

fn shape(file: &[u8], tensor: &str) -> Vec<usize> {
    SafeTensors::deserialize(file).unwrap().tensor(tensor).unwrap().shape().to_vec()
}

fn f32s(file: &[u8], tensor: &str) -> Vec<f32> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let view = tensors.tensor(tensor).unwrap();
    let words = |bytes| view.data().chunks_exact(bytes);
    match view.dtype() {
        Dtype::F32 => words(4).map(|w| f32::from_le_bytes(w.try_into().unwrap())).collect(),
        Dtype::F16 => words(2).map(|w| f16::from_le_bytes(w.try_into().unwrap()).to_f32()).collect(),
        Dtype::BF16 => words(2).map(|w| bf16::from_le_bytes(w.try_into().unwrap()).to_f32()).collect(),
        Dtype::I32 => words(4).map(|w| i32::from_le_bytes(w.try_into().unwrap()) as f32).collect(),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - f64::from(expected)).abs();
        assert!(error <= tolerance * largest, "{what}[{index}]: {found:e} and {expected:e}");
    }
}

#[test]
fn the_example_gives_what_transformers_computes() {
    let input = fs::read(EXAMPLE).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.safetensors");
    for (act, dtype, tolerance) in
        [("silu", "f32", NOISE), ("sigmoid", "f32", NOISE), ("silu", "f16", 5e-4), ("silu", "bf16", 4e-3)]
    {
        let options = ["--head-map", "grouped", "--norm-act", act, "--out-dtype", dtype];
        let files = ["gdn", EXAMPLE, "-o", output.to_str().unwrap()];
        keyhead(&[&files[..], &options].concat(), &[]).succeeds();
        let file = fs::read(&output).unwrap();
        assert_close("y", &f32s(&file, "y"), &f32s(&input, "expected_y"), NOISE);
        assert_close(act, &f32s(&file, "out"), &f32s(&input, &format!("expected_out_{act}")), tolerance);
        let state = f32s(&file, "final_state");
        let stored: Vec<_> = f32s(&input, "expected_state_heads")
            .iter()
            .flat_map(|&head| state[head as usize * HEAD * HEAD..][..HEAD * HEAD].to_vec())
            .collect();
        assert_close("final_state", &stored, &f32s(&input, "expected_final_state"), NOISE);
    }
}

#[test]
fn the_output_holds_what_the_help_says_and_nothing_that_depends_on_the_machine() {
    let folder = Folder::new(&Layer::new(3, 2, 4));
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
fn the_head_maps_differ_as_they_should() {
    let layer = Layer::new(3, 2, 4);
    let grouped = output_of(&layer, SILU);
    let tiled = output_of(&layer, &["--head-map", "tiled", "--norm-act", "silu"]);
    let head = |file: &[u8], head: usize| f32s(file, "y")[head * HEAD..][..HEAD].to_vec();
    // Head 0 reads key head 0 either way; head 1 reads 0 or 1.
    assert_eq!(head(&grouped, 0), head(&tiled, 0));
    assert_ne!(head(&grouped, 1), head(&tiled, 1));
}

#[test]
fn dtypes_may_mix() {
    let layer = Layer::new(2, 1, 2);
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
    let layer = Layer::new(3, 1, 2);
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
    let layer = Layer::new(0, 2, 4);
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
    let layer = Layer::new(3, 1, 2);
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
    let mut layer = Layer::new(3, 1, 2);
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
    // Layer::new(3, 2, 4), wrong in one way; and what the message must name.
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
        let mut layer = Layer::new(3, 2, 4);
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
    let folder = Folder::new(&Layer::new(1, 1, 1));
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
    let layer = Layer::new(3, 1, 2);
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
    let layer = Layer::new(1, 1, 1);
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
    let mut folder = Folder::new(&Layer::new(1, 1, 1));
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
