//! Running the command on files made for the test.

#![allow(dead_code)]

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub const HEAD: usize = 128;

pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

pub fn keyhead(args: &[&str], environment: &[(&str, &str)]) -> Ran {
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
    pub fn succeeds(&self) -> &Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self
    }

    /// One line that names everything in `parts`, and no panic.
    #[track_caller]
    pub fn fails(&self, code: i32, parts: &[&str]) {
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
pub struct Made {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

impl Made {
    /// Multiples of 1/256 in -1/2..1/2, different for each `seed`.
    pub fn new(shape: &[usize], seed: u32) -> Made {
        let count = shape.iter().product::<usize>();
        let mut word = seed.wrapping_mul(2_654_435_761) | 1;
        let mut next = || {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((word >> 24) as f32 - 128.0) / 256.0
        };
        Made { dtype: Dtype::F32, shape: shape.to_vec(), values: (0..count).map(|_| next()).collect() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let values = self.values.iter();
        match self.dtype {
            Dtype::F32 => values.flat_map(|x| x.to_le_bytes()).collect(),
            Dtype::F16 => values.flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            Dtype::BF16 => values.flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            Dtype::F64 => values.flat_map(|&x| f64::from(x).to_le_bytes()).collect(),
            Dtype::I8 => values.map(|&x| x as i8 as u8).collect(),
            Dtype::I32 => values.flat_map(|&x| (x as i32).to_le_bytes()).collect(),
            other => panic!("{other:?}"),
        }
    }
}

/// An input file to be.
#[derive(Clone)]
pub struct Layer(pub BTreeMap<String, Made>);

impl Layer {
    pub fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Made)) -> &mut Layer {
        edit(self.0.get_mut(name).expect("the tensor is there"));
        self
    }

    pub fn set(&mut self, name: &str, made: Made) -> &mut Layer {
        self.0.insert(name.into(), made);
        self
    }

    pub fn without(&mut self, names: &[&str]) -> &mut Layer {
        names.iter().for_each(|&name| assert!(self.0.remove(name).is_some(), "{name}"));
        self
    }

    pub fn write(&self, path: &Path) {
        let bytes: Vec<_> = self.0.iter().map(|(name, made)| (name, made, made.bytes())).collect();
        let view = |made: &Made, bytes| TensorView::new(made.dtype, made.shape.clone(), bytes).unwrap();
        let views: Vec<_> = bytes.iter().map(|(name, made, bytes)| (name, view(made, bytes))).collect();
        fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    }
}

/// A folder with an input, and the output beside it.
pub struct Folder {
    pub folder: TempDir,
    pub input: PathBuf,
    pub output: PathBuf,
}

pub const SILU: &[&str] = &["--head-map", "grouped", "--norm-act", "silu"];

impl Folder {
    pub fn new(layer: &Layer) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let (input, output) = (folder.path().join("in.safetensors"), folder.path().join("out.safetensors"));
        layer.write(&input);
        Folder { folder, input, output }
    }

    pub fn gdn(&self, options: &[&str]) -> Ran {
        self.gdn_with(options, &[])
    }

    pub fn gdn_with(&self, options: &[&str], environment: &[(&str, &str)]) -> Ran {
        self.run("gdn", options, environment)
    }

    /// A command that takes an input and an output; on the CPU, if the options do not say otherwise.
    pub fn run(&self, command: &str, options: &[&str], environment: &[(&str, &str)]) -> Ran {
        let files = [command, self.input.to_str().unwrap(), "-o", self.output.to_str().unwrap()];
        let place: &[&str] = if options.contains(&"--backend") { &[] } else { &["--backend", "cpu"] };
        keyhead(&[&files, options, place].concat(), environment)
    }

    pub fn bytes(&self) -> Vec<u8> {
        fs::read(&self.output).unwrap()
    }

    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// The output of a run that must succeed.
#[track_caller]
pub fn output_of(layer: &Layer, options: &[&str]) -> Vec<u8> {
    let folder = Folder::new(layer);
    folder.gdn(options).succeeds();
    folder.bytes()
}

pub fn shape(file: &[u8], tensor: &str) -> Vec<usize> {
    SafeTensors::deserialize(file).unwrap().tensor(tensor).unwrap().shape().to_vec()
}

pub fn f32s(file: &[u8], tensor: &str) -> Vec<f32> {
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
