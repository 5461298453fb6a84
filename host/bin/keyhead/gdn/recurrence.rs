//! The recurrence, and the out norm, from `q`, `k`, `v`, `g` and `beta`.

use super::output::{Done, Out};
use super::state::State;
use super::{Args, Progress};
use crate::zeroed;
use keyhead::gdn::{HEAD_DIM, Heads, NormAct, OutNorm, Recurrence, RecurrenceInputs, Rows, StateLayout};
use keyhead::io::{Dim, FLOATS, File, Stored, Tensor};
use keyhead::{Backend, Error, Result};
use std::time::Instant;

/// The input, checked; what the recurrence reads is widened.
pub(super) struct Layer<'file> {
    heads: Heads,
    tokens: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
    norm: Option<Norm<'file>>,
}

/// What the out norm takes.
struct Norm<'file> {
    z: Stored<'file>,
    weight: Vec<f32>,
    act: NormAct,
}

impl<'file> Layer<'file> {
    pub(super) fn read(file: &'file File, args: &Args) -> Result<Layer<'file>> {
        let head = Dim::Just(HEAD_DIM);
        if !file.has("q") {
            return Err(file.missing("q", "`[T, HK, 128]` or `[1, T, HK, 128]`, or `qkv` for the whole path"));
        }
        if args.l2_eps.is_some() {
            let found = "given, and the file holds no `qkv`".into();
            let accepted = "no --l2-eps: `q` and `k` are l2-normalised already".into();
            return Err(Error::Argument { argument: "--l2-eps".into(), found, accepted });
        }

        // Shapes and dtypes of all tensors first, then their data.
        let q = file.tensor("q", [Dim::Any("T"), Dim::Any("HK"), head], FLOATS)?;
        let [tokens, key_heads, _] = q.shape();
        let t = Dim::Is("T", tokens);
        let k = file.tensor("k", [t, Dim::Is("HK", key_heads), head], FLOATS)?;
        let v = file.tensor("v", [t, Dim::Any("HV"), head], FLOATS)?;
        let [_, value_heads, _] = v.shape();
        let hv = Dim::Is("HV", value_heads);
        let gate = file.tensor("g", [t, hv], FLOATS)?;
        let beta = file.tensor("beta", [t, hv], FLOATS)?;
        let heads = Heads::new(key_heads, value_heads, args.head_map.into())?;
        let state = State::find(file, hv)?;
        let norm = find_norm(file, t, hv, args)?;

        let norm = norm.map(|(z, weight, act)| Norm::read(&z, &weight, act)).transpose()?;
        Ok(Layer {
            heads,
            tokens,
            q: q.f32()?,
            k: k.f32()?,
            v: v.f32()?,
            gate: gate.f32()?,
            beta: beta.f32()?,
            state: state.read(heads)?,
            norm,
        })
    }

    pub(super) fn run(self, backend: &Backend, args: &Args) -> Result<Done> {
        let Layer { heads, tokens, q, k, v, gate, beta, mut state, norm } = self;
        let mut y = zeroed("y", v.len(), 0.0)?;
        let mut out = norm.is_some().then(|| Out::zeroed(args.out_dtype, v.len())).transpose()?;

        let start = Instant::now();
        let progress = Progress::new(tokens, args.chunk);
        let (key_row, value_row) = (heads.key() * HEAD_DIM, heads.value() * HEAD_DIM);
        let ran = progress.chunks(tokens, |from, to| {
            let inputs = RecurrenceInputs {
                q: Rows::packed(&q[from * key_row..to * key_row], heads.key()),
                k: Rows::packed(&k[from * key_row..to * key_row], heads.key()),
                v: Rows::packed(&v[from * value_row..to * value_row], heads.value()),
                gate: &gate[from * heads.value()..to * heads.value()],
                beta: &beta[from * heads.value()..to * heads.value()],
            };
            let y = &mut y[from * value_row..to * value_row];
            let call = Recurrence::new(heads, StateLayout::HeadMajor, to - from, inputs, &mut state, y)?;
            backend.recurrence(call, args.variant.0)
        })?;
        if let (Some(out), Some(Norm { z, weight, act })) = (&mut out, &norm) {
            let (target, z) = (out.target(), z.floats());
            let call = OutNorm::new(heads.value(), tokens, &y, z, weight, *act, args.eps, target, value_row)?;
            backend.out_norm(call)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        progress.bar.finish_and_clear();
        Ok(Done { heads, tokens, y, state, conv_state: None, out, l2_eps: None, ran, seconds })
    }
}

type NormTensors<'file> = (Tensor<'file, 3>, Tensor<'file, 1>, NormAct);

/// The tensors of the out norm: both, with an activation, or neither and none.
fn find_norm<'file>(file: &'file File, t: Dim, hv: Dim, args: &Args) -> Result<Option<NormTensors<'file>>> {
    let missing = |name, why| Err(file.missing(name, why));
    match (file.has("z"), file.has("norm_weight"), args.norm_act) {
        (false, false, None) => Ok(None),
        (false, false, Some(_)) => {
            missing("z", "`z` and `norm_weight`, which --norm-act is about, or no --norm-act")
        }
        (true, false, _) => missing("norm_weight", "both `z` and `norm_weight`, or neither"),
        (false, true, _) => missing("z", "both `z` and `norm_weight`, or neither"),
        (true, true, _) => {
            let (head, act) = (Dim::Just(HEAD_DIM), args.act()?);
            let z = file.tensor("z", [t, hv, head], FLOATS)?;
            Ok(Some((z, file.tensor("norm_weight", [head], FLOATS)?, act)))
        }
    }
}

impl<'file> Norm<'file> {
    fn read(z: &Tensor<'file, 3>, weight: &Tensor<'file, 1>, act: NormAct) -> Result<Norm<'file>> {
        let weight = weight.f32()?;
        // The library checks this too, behind the recurrence: too late for someone who waits.
        if let Some(index) = weight.iter().position(|w| !w.is_finite()) {
            return Err(Error::NonFinite { tensor: "norm_weight".into(), index, found: weight[index] });
        }
        Ok(Norm { z: z.stored()?, weight, act })
    }
}
