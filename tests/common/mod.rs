//! Reading the golden vectors. `KEYHEAD_GOLDEN` names a folder with the whole set; the choice in tests/golden otherwise.

#![allow(dead_code)]

use half::{bf16, f16};
use keyhead::gdn::HEAD_DIM;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A golden file in memory.
pub struct Golden {
    pub name: String,
    bytes: Vec<u8>,
}

/// The golden files whose names start with `prefix`; at least one, or the test that asks would prove nothing.
pub fn files(prefix: &str) -> Vec<Golden> {
    let folder = std::env::var_os("KEYHEAD_GOLDEN")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"), PathBuf::from);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with(prefix) && name.ends_with(".safetensors")
        })
        .map(|path| Golden {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            bytes: std::fs::read(&path).unwrap(),
        })
        .collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!files.is_empty(), "no {prefix}* in {}", folder.display());
    files
}

impl Golden {
    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    pub fn metadata(&self) -> HashMap<String, String> {
        let (_, metadata) = SafeTensors::read_metadata(&self.bytes).unwrap();
        metadata.metadata().clone().unwrap_or_default()
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn has(&self, tensor: &str) -> bool {
        self.tensors().names().contains(&tensor)
    }

    pub fn shape(&self, tensor: &str) -> Vec<usize> {
        self.tensors()
            .tensor(tensor)
            .unwrap_or_else(|_| panic!("{}: no {tensor}", self.name))
            .shape()
            .to_vec()
    }

    /// A tensor of any dtype of the set, widened.
    pub fn f32(&self, tensor: &str) -> Vec<f32> {
        let tensors = self.tensors();
        let view = tensors.tensor(tensor).unwrap_or_else(|_| panic!("{}: no {tensor}", self.name));
        let data = view.data();
        let words = |bytes: usize| data.chunks_exact(bytes);
        match view.dtype() {
            Dtype::F32 => words(4).map(|w| f32::from_le_bytes(w.try_into().unwrap())).collect(),
            Dtype::I32 => words(4).map(|w| i32::from_le_bytes(w.try_into().unwrap()) as f32).collect(),
            Dtype::F16 => words(2).map(|w| f16::from_le_bytes(w.try_into().unwrap()).to_f32()).collect(),
            Dtype::BF16 => words(2).map(|w| bf16::from_le_bytes(w.try_into().unwrap()).to_f32()).collect(),
            Dtype::I8 => data.iter().map(|&byte| f32::from(byte as i8)).collect(),
            other => panic!("{}: {tensor} is {other:?}", self.name),
        }
    }

    pub fn i32(&self, tensor: &str) -> Vec<i32> {
        let tensors = self.tensors();
        let view = tensors.tensor(tensor).unwrap_or_else(|_| panic!("{}: no {tensor}", self.name));
        assert_eq!(view.dtype(), Dtype::I32, "{}: {tensor}", self.name);
        view.data().chunks_exact(4).map(|w| i32::from_le_bytes(w.try_into().unwrap())).collect()
    }

    pub fn dtype(&self, tensor: &str) -> Dtype {
        self.tensors().tensor(tensor).unwrap_or_else(|_| panic!("{}: no {tensor}", self.name)).dtype()
    }

    pub fn indices(&self, tensor: &str) -> Vec<usize> {
        self.f32(tensor).into_iter().map(|index| index as usize).collect()
    }

    /// `(tokens, key heads, value heads)`, from the tensors.
    pub fn sizes(&self, q: &str) -> (usize, usize, usize) {
        let (q, y) = (self.shape(q), self.shape("y"));
        (q[0], q[1], y[1])
    }

    /// The state before the first token, `[HV][128][128]`.
    pub fn initial_state(&self, value_heads: usize) -> Vec<f32> {
        const STATE: usize = HEAD_DIM * HEAD_DIM;
        if self.has("initial_state") {
            self.f32("initial_state")
        } else if self.has("initial_state_i8") {
            let (blocks, scale) = (self.f32("initial_state_i8"), self.f32("initial_state_scale")[0]);
            let count = blocks.len() / STATE;
            let head = |h: usize| &blocks[h % count * STATE..][..STATE];
            (0..value_heads).flat_map(head).map(|x| x * scale).collect()
        } else {
            vec![0.0; value_heads * STATE]
        }
    }

    /// Compares a state `[HV][128][128]` with the heads that are stored of it.
    pub fn assert_heads(&self, tensor: &str, state: &[f32], tolerance: f64) {
        const STATE: usize = HEAD_DIM * HEAD_DIM;
        let expected = self.f32(tensor);
        let heads = if self.has("state_heads") {
            self.indices("state_heads")
        } else {
            (0..expected.len() / STATE).collect()
        };
        for (stored, &head) in heads.iter().enumerate() {
            let (found, expected) = (&state[head * STATE..][..STATE], &expected[stored * STATE..][..STATE]);
            assert_close(&format!("{} {tensor} of head {head}", self.name), found, expected, tolerance);
        }
    }

    /// Compares a final state `[HV][128][128]` with what is stored of it.
    pub fn assert_state(&self, state: &[f32], tolerance: f64) {
        const STATE: usize = HEAD_DIM * HEAD_DIM;
        self.assert_heads("final_state", state, tolerance);
        if !self.has("final_state_sum_k") {
            return;
        }
        let value_heads = state.len() / STATE;
        let (over_rows, over_columns) = (self.f32("final_state_sum_k"), self.f32("final_state_sum_v"));
        let largest = state.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
        for head in 0..value_heads {
            let cell = |r: usize, c: usize| f64::from(state[head * STATE + r * HEAD_DIM + c]);
            for i in 0..HEAD_DIM {
                let sums = [
                    ((0..HEAD_DIM).map(|r| cell(r, i)).sum::<f64>(), over_rows[head * HEAD_DIM + i]),
                    ((0..HEAD_DIM).map(|c| cell(i, c)).sum::<f64>(), over_columns[head * HEAD_DIM + i]),
                ];
                for (found, expected) in sums {
                    let error = (found - f64::from(expected)).abs();
                    assert!(
                        error <= tolerance * largest * (HEAD_DIM as f64).sqrt(),
                        "{}: a sum over the state of head {head} is {found}, expected {expected}",
                        self.name
                    );
                }
            }
        }
    }
}

/// Every element within `tolerance` of the largest expected magnitude.
#[track_caller]
pub fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - f64::from(expected)).abs();
        assert!(
            error <= tolerance * largest,
            "{what}[{index}] is {found:e}, expected {expected:e}: off by {:e} of the largest, {largest:e}",
            error / largest
        );
    }
}

/// f16 as [`assert_halves`] wants it.
#[track_caller]
pub fn assert_f16(what: &str, found: &[f16], expected: &[f32], exact: &[f32], noise: f64) {
    let found: Vec<f32> = found.iter().map(|x| x.to_f32()).collect();
    assert_halves(what, &found, expected, exact, noise, |x| f16::from_f32(x).to_f32());
}

/// bf16 as [`assert_halves`] wants it.
#[track_caller]
pub fn assert_bf16(what: &str, found: &[bf16], expected: &[f32], exact: &[f32], noise: f64) {
    let found: Vec<f32> = found.iter().map(|x| x.to_f32()).collect();
    assert_halves(what, &found, expected, exact, noise, |x| bf16::from_f32(x).to_f32());
}

/// 16-bit elements, widened: equal to `expected`, except where the `exact` value is within `noise` of the largest of its row of a
/// rounding boundary, when they may be the neighbour.
#[track_caller]
fn assert_halves(
    what: &str,
    found: &[f32],
    expected: &[f32],
    exact: &[f32],
    noise: f64,
    round: impl Fn(f32) -> f32,
) {
    assert!(found.len() == expected.len() && found.len() == exact.len(), "{what}");
    for (row, exact) in exact.chunks(HEAD_DIM).enumerate() {
        let noise = noise as f32 * exact.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        for (i, &exact) in exact.iter().enumerate() {
            let (found, expected) = (found[row * HEAD_DIM + i], expected[row * HEAD_DIM + i]);
            let near = found >= round(exact - noise) && found <= round(exact + noise);
            assert!(found == expected || near, "{what} row {row}, {i}: {found}, expected {expected}");
        }
    }
}

/// Re-orders the blocks of `block` elements on the value-head axis: block `p` of every token becomes stored block `perm[p]`.
pub fn reorder(data: &[f32], perm: &[usize], block: usize) -> Vec<f32> {
    data.chunks_exact(perm.len() * block)
        .flat_map(|token| perm.iter().flat_map(|&p| token[p * block..][..block].to_vec()))
        .collect()
}
