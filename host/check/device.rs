//! The checks on a CUDA device: every kernel on buffers with guard words, against the CPU backend.

use super::{Data, Output, Report, Shape, same_bits};
use crate::backend::Backend;
use crate::cpu;
use crate::cuda::{DeviceBuffer, DeviceOutNorm, DeviceRecurrence, DeviceRows, Gdn, Stream};
use crate::error::{Error, Result};
use crate::gdn::{Dtype, HEAD_DIM, HeadMap, Heads, NormAct, NormOut, Request, StateLayout, Variant};
use std::cell::LazyCell;

/// The token counts of the bit tests: around the 8 tokens of a staged block, and long ones.
const TOKENS: [usize; 16] = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 257, 1000, 4099];
/// Words behind every output that no kernel may touch.
const GUARD: usize = 64;
const GUARD_WORD: f32 = f32::from_bits(0x7fde_adbe);

pub(super) fn run(gdn: &Gdn, backend: &Backend, report: &mut Report<'_>) {
    let stream = match Stream::new(gdn.device()) {
        Ok(stream) => stream,
        Err(error) => return report.case("a stream", || Err(error.to_string())),
    };
    for (index, &tokens) in TOKENS.iter().enumerate() {
        for vpk in 1..=5 {
            for map in [HeadMap::Tiled, HeadMap::Grouped] {
                for (layout, packed) in [(StateLayout::HeadMajor, false), (StateLayout::RowMajor, true)] {
                    let heads = Heads::new(2, 2 * vpk, map).expect("a valid pair");
                    let shape = Shape { heads, layout, tokens, packed };
                    recurrence_cases(gdn, &stream, report, &Data::random(shape, 11 + index as u64), "");
                }
            }
        }
    }
    for tokens in [64, 512, 1024, 2048] {
        let heads = Heads::new(16, 48, HeadMap::Grouped).expect("a valid pair");
        let shape = Shape { heads, layout: StateLayout::HeadMajor, tokens, packed: true };
        let data = Data::random(shape, tokens as u64);
        recurrence_cases(gdn, &stream, report, &data, "");
        norm_cases(gdn, &stream, report, &data);
    }
    edge_cases(gdn, &stream, report);
    host_cases(backend, report);
    super::device_layer::run(gdn, &stream, report);
}

/// Extreme gates, betas, keys and values, and a NaN that must stay in its head.
fn edge_cases(gdn: &Gdn, stream: &Stream, report: &mut Report<'_>) {
    let heads = Heads::new(2, 6, HeadMap::Grouped).expect("a valid pair");
    let shape = Shape { heads, layout: StateLayout::HeadMajor, tokens: 19, packed: false };
    let base = Data::random(shape, 99);
    let [_, (k, _), (v, _)] = base.places();
    let mut case = |name: &str, change: &dyn Fn(&mut Data)| {
        let mut data = base.clone();
        change(&mut data);
        recurrence_cases(gdn, stream, report, &data, name);
    };
    for gate in [0.0, -30.0, -100.0, f32::NEG_INFINITY] {
        case(&format!("gate={gate} "), &|data| data.gate.fill(gate));
    }
    for beta in [0.0, 1.0] {
        case(&format!("beta={beta} "), &|data| data.beta.fill(beta));
    }
    case("k=0 ", &|data| data.qkv[k..v].fill(0.0));
    for scale in [1e4, 1e-30] {
        case(&format!("v*{scale:e} "), &|data| data.qkv[v..].iter_mut().for_each(|x| *x *= scale));
    }
    case("NaN in head 3 ", &|data| data.qkv[v + 3 * HEAD_DIM + 5] = f32::NAN);
    case("inf in head 2 ", &|data| data.qkv[v + 2 * HEAD_DIM + 7] = f32::INFINITY);
}

fn recurrence_cases(gdn: &Gdn, stream: &Stream, report: &mut Report<'_>, data: &Data, note: &str) {
    let Shape { heads, tokens, .. } = data.shape;
    let expected = LazyCell::new(|| data.expected());
    for variant in Variant::ALL {
        let request = Request { heads, variant: Some(variant), aligned: true };
        if matches!(gdn.plan(&request), Err(Error::Variant { .. })) {
            continue; // It cannot run this shape here: no case.
        }
        for (first, split) in [(tokens, String::new()), (tokens / 2, format!(" split at {}", tokens / 2))] {
            report.case(&format!("{variant} {note}{}{split}", data.shape), || {
                let output = run_recurrence(gdn, stream, data, variant, first).map_err(|e| e.to_string())?;
                same_bits("y", &output.y, &expected.y)?;
                same_bits("state", &output.state, &expected.state)
            });
        }
    }
}

/// Runs the first `first` tokens in one launch and the rest in another.
fn run_recurrence(gdn: &Gdn, stream: &Stream, data: &Data, variant: Variant, first: usize) -> Result<Output> {
    let Shape { heads, layout, tokens, .. } = data.shape;
    let upload = |what: &str, words: &[f32]| DeviceBuffer::from_slice(stream, what, words);
    let (qkv, gate, beta) =
        (upload("qkv", &data.qkv)?, upload("gate", &data.gate)?, upload("beta", &data.beta)?);
    let blank = data.blank();
    let (state, y) = (upload("state", &guarded(&blank.state))?, upload("y", &guarded(&blank.y))?);

    for (start, count) in [(0, first), (first, tokens - first)] {
        let [q, k, v] = data.places().map(|(offset, stride)| DeviceRows {
            address: qkv.as_ptr() + 4 * (offset + start * stride) as u64,
            stride,
        });
        let at = |buffer: &DeviceBuffer<f32>, elements: usize| buffer.as_ptr() + 4 * elements as u64;
        let call = DeviceRecurrence {
            heads,
            tokens: count,
            q,
            k,
            v,
            gate: at(&gate, start * heads.value()),
            beta: at(&beta, start * heads.value()),
            state: state.as_ptr(),
            layout,
            y: at(&y, start * heads.value() * HEAD_DIM),
        };
        // SAFETY: the buffers are of these sizes, on this device, and live until the downloads below.
        unsafe { gdn.recurrence(stream, &call, Some(variant))? };
    }
    Ok(Output { y: unguarded(stream, "y", &y)?, state: unguarded(stream, "state", &state)? })
}

/// The words, and behind them the guard.
pub(super) fn guarded<T: bytemuck::Pod>(words: &[T]) -> Vec<T> {
    let guard = bytemuck::allocation::pod_collect_to_vec(&[GUARD_WORD; GUARD]);
    [words, &guard].concat()
}

/// The buffer's words without the guard, which must be whole.
pub(super) fn unguarded<T: bytemuck::Pod>(
    stream: &Stream,
    what: &str,
    buffer: &DeviceBuffer<T>,
) -> Result<Vec<T>> {
    let mut words = vec![T::zeroed(); buffer.len()];
    buffer.download(stream, &mut words)?;
    let guard = words.split_off(words.len() - GUARD * size_of::<f32>() / size_of::<T>());
    let bytes: &[u8] = bytemuck::cast_slice(&guard);
    let whole = GUARD_WORD.to_bits().to_ne_bytes();
    if !bytes.chunks(4).all(|word| word == whole) {
        return Err(Error::argument(what, "written past its end", "writes inside it only"));
    }
    Ok(words)
}

fn norm_cases(gdn: &Gdn, stream: &Stream, report: &mut Report<'_>, data: &Data) {
    let y = LazyCell::new(|| data.expected().y);
    for act in [NormAct::Sigmoid, NormAct::Silu] {
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
            for before in [false, true] {
                let entry = if before { "out_norm_before" } else { "out_norm" };
                report.case(&format!("{entry} {act:?} {dtype:?} {}", data.shape), || {
                    let outcome = norm_case(gdn, stream, data, &y, act, dtype, before);
                    outcome.unwrap_or_else(|error| Err(error.to_string()))
                });
            }
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn norm_case(
    gdn: &Gdn,
    stream: &Stream,
    data: &Data,
    y: &[f32],
    act: NormAct,
    dtype: Dtype,
    before: bool,
) -> Result<Result<(), String>> {
    let (value_heads, tokens) = (data.shape.heads.value(), data.shape.tokens);
    let row = value_heads * HEAD_DIM;
    let device_y = DeviceBuffer::from_slice(stream, "y", y)?;
    let z = DeviceBuffer::from_slice(stream, "z", &data.z)?;
    let weight = DeviceBuffer::from_slice(stream, "norm_weight", &data.weight)?;
    let words = match dtype {
        Dtype::F32 => tokens * row,
        Dtype::F16 | Dtype::Bf16 => tokens * row / 2,
    };
    let blank = [vec![0.0; words], vec![GUARD_WORD; GUARD]].concat();
    let out = DeviceBuffer::from_slice(stream, "out", &blank)?;
    let call = DeviceOutNorm {
        value_heads,
        tokens,
        y: device_y.as_ptr(),
        z: z.as_ptr(),
        z_dtype: Dtype::F32,
        weight: weight.as_ptr(),
        act,
        eps: 1e-6,
        out: out.as_ptr(),
        out_stride: row,
        out_dtype: dtype,
    };
    // SAFETY: the buffers are of these sizes, on this device, and live until the downloads below.
    unsafe {
        match before {
            false => gdn.out_norm(stream, &call)?,
            true => gdn.out_norm_before(stream, &call)?,
        }
    }
    let found = unguarded(stream, "out", &out)?;
    let mut f32_out = vec![0.0; tokens * row];
    cpu::out_norm(data.norm_call(y, act, NormOut::F32(&mut f32_out)));
    let mut expected = vec![0.0f32; words];
    match dtype {
        Dtype::F32 => expected.copy_from_slice(&f32_out),
        Dtype::F16 => {
            cpu::out_norm(data.norm_call(y, act, NormOut::F16(bytemuck::cast_slice_mut(&mut expected))));
        }
        Dtype::Bf16 => {
            cpu::out_norm(data.norm_call(y, act, NormOut::Bf16(bytemuck::cast_slice_mut(&mut expected))));
        }
    }
    let mut left = vec![0.0; y.len()];
    device_y.download(stream, &mut left)?;
    let y_after = if before { &f32_out } else { y };
    Ok(same_bits("out", &found, &expected).and_then(|()| same_bits("y after the call", &left, y_after)))
}

/// The calls on host memory: strided rows, with and without tokens.
fn host_cases(backend: &Backend, report: &mut Report<'_>) {
    let heads = Heads::new(4, 8, HeadMap::Tiled).expect("a valid pair");
    for tokens in [0, 1, 70] {
        let shape = Shape { heads, layout: StateLayout::RowMajor, tokens, packed: true };
        let data = Data::random(shape, 5);
        report.case(&format!("host buffers {shape}"), || {
            let mut output = data.blank();
            backend.recurrence(data.call(&mut output), None).map_err(|error| error.to_string())?;
            let expected = data.expected();
            same_bits("y", &output.y, &expected.y)?;
            same_bits("state", &output.state, &expected.state)
        });
    }
}
