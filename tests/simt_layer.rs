//! What stands before the recurrence, by the kernels' source on the SIMT executor: the CPU backend's bits.

use ::simt::Order;
use keyhead::check::{LayerData, LayerShape, Prepared, same_bits, simt};
use keyhead::cuda::PrepareStep;
use keyhead::gdn::{Dtype, HeadMap, Heads, NormAct, StateLayout};

const ORDERS: [Order; 4] = [Order::Ascending, Order::Descending, Order::WarpReversed, Order::Seeded(7)];

fn data(key: usize, value: usize, tokens: usize, dtype: Dtype, seed: u64) -> LayerData {
    let shape = LayerShape {
        heads: Heads::new(key, value, HeadMap::Grouped).unwrap(),
        layout: StateLayout::HeadMajor,
        tokens,
        dtype,
        out_dtype: Dtype::F16,
        act: NormAct::Silu,
        bias: seed % 2 == 1,
    };
    LayerData::random(shape, seed)
}

fn run(data: &LayerData, steps: &[PrepareStep], order: Order) -> Prepared {
    let mut prepared = data.unprepared();
    for &step in steps {
        simt::prepare(step, order, data, &mut prepared).unwrap_or_else(|fault| panic!("{step:?}: {fault}"));
    }
    prepared
}

fn assert_same(what: &str, found: &Prepared, expected: &Prepared) {
    found.same_bits(expected).unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn one_launch_and_its_steps_give_the_same_bits() {
    use PrepareStep::{All, Conv, Gates, L2Norm};
    for (index, tokens) in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33].into_iter().enumerate() {
        let (dtype, order) = (Dtype::ALL[index % 3], ORDERS[index % 4]);
        let data = data(2, [2, 6, 8][index % 3], tokens, dtype, index as u64);
        let what = format!("{} {order}", data.shape);
        assert_same(&what, &run(&data, &[Gates, Conv], order), &data.prepared(false));
        let expected = data.prepared(true);
        assert_same(&what, &run(&data, &[Conv, Gates, L2Norm], order), &expected);
        assert_same(&what, &run(&data, &[All], order), &expected);
        let mut prepared = data.unprepared();
        simt::prepare_sm_70(order, &data, &mut prepared).unwrap();
        assert_same(&format!("{what} for sm_70"), &prepared, &expected);
    }
}

#[test]
fn every_head_count_of_the_family() {
    for (key, value) in [(16, 16), (16, 32), (16, 48), (16, 64), (8, 24), (4, 16), (2, 8), (1, 3), (3, 3)] {
        let data = data(key, value, 2, Dtype::Bf16, 5);
        assert_same(
            &data.shape.to_string(),
            &run(&data, &[PrepareStep::All], Order::Ascending),
            &data.prepared(true),
        );
    }
}

/// The gates of a tile are more than a block has threads, which take turns.
#[test]
fn more_gates_than_threads() {
    for tokens in [16, 20] {
        let data = data(16, 48, tokens, Dtype::F16, 4);
        assert_same(
            &data.shape.to_string(),
            &run(&data, &[PrepareStep::All], Order::WarpReversed),
            &data.prepared(true),
        );
    }
}

#[test]
fn chunks_give_the_bits_of_the_whole() {
    for (first, rest) in [(1, 1), (2, 1), (3, 5), (8, 9), (1, 17), (16, 4)] {
        let whole = data(2, 6, first + rest, Dtype::F32, 3);
        let expected = whole.prepared(true);
        let row = whole.shape.heads.channels();
        let mut conv_state = whole.conv_state.clone();
        let mut h = Vec::new();
        for (from, to) in [(0, first), (first, first + rest)] {
            let part = part(&whole, from, to, conv_state);
            let prepared = run(&part, &[PrepareStep::All], Order::Seeded(first as u64));
            h.extend(prepared.h);
            conv_state = prepared.conv_state;
        }
        same_bits("h", &h, &expected.h).unwrap();
        same_bits("conv_state", &conv_state, &expected.conv_state).unwrap();
        assert_eq!(h.len(), (first + rest) * row);
    }
}

/// The tokens `from..to`, as a call that goes on from `conv_state`.
fn part(whole: &LayerData, from: usize, to: usize, conv_state: Vec<f32>) -> LayerData {
    use keyhead::check::Numbers::F32;
    let cut = |numbers: &keyhead::check::Numbers, row: usize| match numbers {
        F32(all) => F32(all[from * row..to * row].to_vec()),
        other => panic!("{other:?}"),
    };
    let heads = whole.shape.heads;
    LayerData {
        shape: LayerShape { tokens: to - from, ..whole.shape },
        qkv: cut(&whole.qkv, heads.channels()),
        ab: cut(&whole.ab, 2 * heads.value()),
        conv_state,
        ..whole.clone()
    }
}

#[test]
fn extreme_inputs_give_the_same_bits() {
    use keyhead::check::Numbers::F32;
    let base = data(2, 6, 6, Dtype::F32, 11);
    for extreme in [0.0, -0.0, 1e30, -1e30, 1e-40, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 500.0, -90.0] {
        let mut data = base.clone();
        let (F32(qkv), F32(ab)) = (&mut data.qkv, &mut data.ab) else { unreachable!() };
        qkv.iter_mut().step_by(37).for_each(|x| *x = extreme);
        ab.iter_mut().step_by(3).for_each(|x| *x = extreme);
        let mut found = run(&data, &[PrepareStep::All], Order::Ascending);
        // The executor computes on the CPU, whose NaNs differ; a GPU makes one NaN of all, as the CPU backend does.
        for buffer in [&mut found.h, &mut found.gate, &mut found.beta] {
            buffer.iter_mut().for_each(|x| *x = kernels_gpu::math::canonical(*x));
        }
        assert_same(&format!("{extreme:e}"), &found, &data.prepared(true));
    }
}
