//! The GDN kernels' own source on the SIMT executor, against the CPU backend, bit for bit.

use ::simt::{Fault, Order};
use kernels_gpu::math::canonical;
use keyhead::check::{Data, Output, Shape, same_bits, simt};
use keyhead::gdn::{Floats, HEAD_DIM, HeadMap, Heads, NormAct, NormOut, OutNorm, StateLayout, Variant};
use keyhead::{check, cpu};

const ORDERS: [Order; 4] = [Order::Ascending, Order::Descending, Order::WarpReversed, Order::Seeded(7)];
/// The token counts of the bit tests that fit in a test's time.
const TOKENS: [usize; 13] = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33];

fn shape(vpk: usize, tokens: usize, map: HeadMap, layout: StateLayout, packed: bool) -> Shape {
    Shape { heads: Heads::new(2, 2 * vpk, map).unwrap(), layout, tokens, packed }
}

fn run(data: &Data, variant: Variant, order: Order) -> Output {
    let mut output = data.blank();
    simt::recurrence(variant, order, data.call(&mut output)).unwrap_or_else(|fault| panic!("{fault}"));
    output
}

/// The arithmetic of the executor is the CPU's, whose NaNs differ from a GPU's in sign and payload.
fn canonical_nans(mut output: Output) -> Output {
    output.y.iter_mut().chain(&mut output.state).for_each(|x| *x = canonical(*x));
    output
}

#[track_caller]
fn assert_same(what: &str, found: &Output, expected: &Output) {
    same_bits("y", &found.y, &expected.y)
        .and_then(|()| same_bits("state", &found.state, &expected.state))
        .unwrap_or_else(|difference| panic!("{what}: {difference}"));
}

fn every_token_count(vpk: usize) {
    for (index, &tokens) in TOKENS.iter().enumerate() {
        let map = if index % 2 == 0 { HeadMap::Tiled } else { HeadMap::Grouped };
        let layout = if index / 2 % 2 == 0 { StateLayout::HeadMajor } else { StateLayout::RowMajor };
        let data = Data::random(shape(vpk, tokens, map, layout, index % 3 == 0), 11 + index as u64);
        let expected = data.expected();
        for variant in Variant::ALL {
            let order = ORDERS[(index + vpk) % ORDERS.len()];
            let what = format!("{variant} {} {order}", data.shape);
            assert_same(&what, &run(&data, variant, order), &expected);
        }
    }
}

#[test]
fn one_value_head_a_key_head() {
    every_token_count(1);
}

#[test]
fn two_value_heads_a_key_head() {
    every_token_count(2);
}

#[test]
fn three_value_heads_a_key_head() {
    every_token_count(3);
}

#[test]
fn four_value_heads_a_key_head() {
    every_token_count(4);
}

#[test]
fn all_but_keyhead_take_any_number_of_value_heads() {
    for vpk in [5, 7] {
        let data = Data::random(shape(vpk, 3, HeadMap::Grouped, StateLayout::HeadMajor, false), 3);
        for variant in Variant::ALL.into_iter().filter(|variant| *variant != Variant::Keyhead) {
            assert_same(variant.name(), &run(&data, variant, Order::Ascending), &data.expected());
        }
    }
}

#[test]
fn every_order_map_and_layout_gives_the_same_bits() {
    for map in [HeadMap::Tiled, HeadMap::Grouped] {
        for layout in [StateLayout::HeadMajor, StateLayout::RowMajor] {
            for packed in [false, true] {
                let data = Data::random(shape(3, 10, map, layout, packed), 21);
                let expected = data.expected();
                for variant in Variant::ALL {
                    for order in ORDERS.into_iter().chain((100..103).map(Order::Seeded)) {
                        let what = format!("{variant} {} {order}", data.shape);
                        assert_same(&what, &run(&data, variant, order), &expected);
                    }
                }
            }
        }
    }
}

/// The tokens `from..to` of a call, as a call of its own that goes on from `state`.
fn part(data: &Data, from: usize, to: usize, state: Vec<f32>) -> Data {
    let heads = data.shape.heads;
    let [q, k, v] = data.places();
    let rows = |(offset, stride): (usize, usize), heads: usize| {
        (from..to).flat_map(move |t| data.qkv[offset + t * stride..][..heads * HEAD_DIM].to_vec())
    };
    let per_token = |values: &[f32]| values[from * heads.value()..to * heads.value()].to_vec();
    Data {
        shape: Shape { tokens: to - from, packed: false, ..data.shape },
        qkv: rows(q, heads.key()).chain(rows(k, heads.key())).chain(rows(v, heads.value())).collect(),
        gate: per_token(&data.gate),
        beta: per_token(&data.beta),
        state,
        ..data.clone()
    }
}

#[test]
fn a_split_call_gives_the_same_bits() {
    for (first, rest) in [(1, 1), (2, 1), (3, 5), (8, 9)] {
        let tokens = first + rest;
        let data = Data::random(shape(3, tokens, HeadMap::Tiled, StateLayout::RowMajor, true), 31);
        let expected = data.expected();
        for variant in Variant::ALL {
            let one = run(&part(&data, 0, first, data.state.clone()), variant, Order::Ascending);
            let two = run(&part(&data, first, tokens, one.state.clone()), variant, Order::Descending);
            let joined = Output { y: [one.y, two.y].concat(), state: two.state };
            assert_same(&format!("{variant} {first}+{rest}"), &joined, &expected);
        }
    }
}

#[test]
fn no_tokens_leave_everything() {
    let data = Data::random(shape(3, 0, HeadMap::Tiled, StateLayout::HeadMajor, false), 1);
    for variant in Variant::ALL {
        assert_same("T = 0", &run(&data, variant, Order::Ascending), &data.blank());
    }
}

#[test]
fn extreme_inputs_give_the_same_bits() {
    let base = Data::random(shape(3, 11, HeadMap::Grouped, StateLayout::HeadMajor, false), 41);
    let [_, (k, _), (v, _)] = base.places();
    let check = |what: &str, change: &dyn Fn(&mut Data)| {
        let mut data = base.clone();
        change(&mut data);
        for variant in Variant::ALL {
            let found = canonical_nans(run(&data, variant, Order::Ascending));
            assert_same(&format!("{variant} {what}"), &found, &data.expected());
        }
        data.expected()
    };
    for gate in [0.0, -30.0, -100.0, f32::NEG_INFINITY] {
        check("gate", &|data| data.gate.fill(gate));
    }
    for beta in [0.0, 1.0] {
        check("beta", &|data| data.beta.fill(beta));
    }
    check("k = 0", &|data| data.qkv[k..v].fill(0.0));
    for scale in [1e4, 1e-30] {
        check("v", &|data| data.qkv[v..].iter_mut().for_each(|x| *x *= scale));
    }

    let head = 3;
    let output = check("NaN", &|data| data.qkv[v + head * HEAD_DIM + 5] = f32::NAN);
    let state = &output.state;
    assert!(state[head * HEAD_DIM * HEAD_DIM..][..HEAD_DIM * HEAD_DIM].iter().any(|x| x.is_nan()));
    for (index, x) in state.iter().enumerate() {
        assert!(!x.is_nan() || index / (HEAD_DIM * HEAD_DIM) == head, "the NaN left its head");
    }
}

#[test]
fn out_norm_gives_the_same_bits() {
    for (index, tokens) in [1, 2, 5].into_iter().enumerate() {
        let data = Data::random(shape(3, tokens, HeadMap::Tiled, StateLayout::HeadMajor, false), 51);
        let y = data.expected().y;
        for act in [NormAct::Sigmoid, NormAct::Silu] {
            let order = ORDERS[index % ORDERS.len()];
            let (mut found, mut expected) = (vec![0.0; y.len()], vec![1.0; y.len()]);
            simt::out_norm(order, data.norm_call(&y, act, NormOut::F32(&mut found))).unwrap();
            cpu::out_norm(data.norm_call(&y, act, NormOut::F32(&mut expected)));
            same_bits("out f32", &found, &expected).unwrap();

            let mut found = vec![half::f16::ZERO; y.len()];
            let mut expected = vec![half::f16::ONE; y.len()];
            simt::out_norm(order, data.norm_call(&y, act, NormOut::F16(&mut found))).unwrap();
            cpu::out_norm(data.norm_call(&y, act, NormOut::F16(&mut expected)));
            same_bits("out f16", &found, &expected).unwrap();

            let mut found = vec![half::bf16::ZERO; y.len()];
            let mut expected = vec![half::bf16::ONE; y.len()];
            simt::out_norm(order, data.norm_call(&y, act, NormOut::Bf16(&mut found))).unwrap();
            cpu::out_norm(data.norm_call(&y, act, NormOut::Bf16(&mut expected)));
            same_bits("out bf16", &found, &expected).unwrap();
        }
    }
}

/// An element of a normed output.
trait OutWord: bytemuck::Pod + std::fmt::LowerExp {
    fn out(words: &mut [Self]) -> NormOut<'_>;
}
impl OutWord for half::f16 {
    fn out(words: &mut [Self]) -> NormOut<'_> {
        NormOut::F16(words)
    }
}
impl OutWord for half::bf16 {
    fn out(words: &mut [Self]) -> NormOut<'_> {
        NormOut::Bf16(words)
    }
}
impl OutWord for f32 {
    fn out(words: &mut [Self]) -> NormOut<'_> {
        NormOut::F32(words)
    }
}

/// What a call of `heads_norm` leaves beside y and the state: `out`, and `out` before it is rounded.
struct Fused<T> {
    output: Output,
    out: Vec<T>,
    normed: Vec<f32>,
}

fn heads_norm<T: OutWord>(data: &Data, order: Order, act: NormAct) -> Result<Fused<T>, Fault> {
    let mut output = data.blank();
    let unread = vec![f32::NAN; output.y.len()];
    let (mut out, mut normed) = (vec![T::zeroed(); unread.len()], vec![0.0; unread.len()]);
    let norm = data.norm_call(&unread, act, T::out(&mut out));
    simt::heads_norm(order, data.call(&mut output), norm, Some(&mut normed))?;
    Ok(Fused { output, out, normed })
}

/// `heads_norm` against the recurrence and `out_norm`, for one type of output.
fn assert_heads_norm<T: OutWord>(data: &Data, order: Order, act: NormAct) {
    let what = format!("heads_norm {act:?} {} bytes {} {order}", size_of::<T>(), data.shape);
    let expected = data.expected();
    let (mut out, mut normed) = (vec![T::zeroed(); expected.y.len()], vec![0.0; expected.y.len()]);
    simt::out_norm(order, data.norm_call(&expected.y, act, T::out(&mut out))).unwrap();
    simt::out_norm(order, data.norm_call(&expected.y, act, NormOut::F32(&mut normed))).unwrap();

    let found = heads_norm::<T>(data, order, act).unwrap_or_else(|fault| panic!("{what}: {fault}"));
    assert_same(&what, &found.output, &expected);
    same_bits("out", &found.out, &out)
        .and_then(|()| same_bits("normed", &found.normed, &normed))
        .unwrap_or_else(|difference| panic!("{what}: {difference}"));
}

#[test]
fn heads_norm_is_the_recurrence_and_out_norm() {
    for (index, tokens) in [1, 2, 9].into_iter().enumerate() {
        let data = Data::random(shape(3, tokens, HeadMap::Tiled, StateLayout::RowMajor, true), 55);
        for act in [NormAct::Sigmoid, NormAct::Silu] {
            let order = ORDERS[(index + act as usize) % ORDERS.len()];
            assert_heads_norm::<half::f16>(&data, order, act);
            assert_heads_norm::<half::bf16>(&data, order, act);
            assert_heads_norm::<f32>(&data, order, act);
        }
    }
}

#[test]
fn heads_norm_reads_16_bit_gates() {
    let data = Data::random(shape(2, 3, HeadMap::Tiled, StateLayout::HeadMajor, false), 58);
    let expected = data.expected();
    let f16s: Vec<_> = data.z.iter().map(|z| half::f16::from_f32(*z)).collect();
    let bf16s: Vec<_> = data.z.iter().map(|z| half::bf16::from_f32(*z)).collect();
    for z in [Floats::from(&f16s[..]), Floats::from(&bf16s[..])] {
        let norm = |y, out| {
            let heads = data.shape.heads.value();
            OutNorm::new(heads, 3, y, z, &data.weight, NormAct::Silu, 1e-6, out, heads * HEAD_DIM).unwrap()
        };
        let (mut found, mut out) = (vec![0.0; data.z.len()], vec![1.0; data.z.len()]);
        cpu::out_norm(norm(&expected.y, NormOut::F32(&mut out)));
        let mut output = data.blank();
        let unread = output.y.clone();
        let call = norm(&unread, NormOut::F32(&mut found));
        simt::heads_norm(Order::Descending, data.call(&mut output), call, None).unwrap();
        same_bits(&format!("out, z {:?}", z.dtype()), &found, &out).unwrap();
    }
}

#[test]
fn heads_norm_needs_no_f32_output_and_leaves_the_gaps_between_rows() {
    let (tokens, heads, stride) = (3, 2, 2 * HEAD_DIM + 3);
    let data = Data::random(shape(1, tokens, HeadMap::Grouped, StateLayout::HeadMajor, false), 62);
    let expected = data.expected();
    let norm = |y, out| {
        OutNorm::new(heads, tokens, y, &data.z[..], &data.weight, NormAct::Silu, 1e-6, out, stride).unwrap()
    };
    let sentinel = half::bf16::from_bits(0x1234);
    let (mut found, mut expected_out) = (vec![sentinel; tokens * stride], vec![sentinel; tokens * stride]);
    cpu::out_norm(norm(&expected.y, NormOut::Bf16(&mut expected_out)));
    let mut output = data.blank();
    let unread = output.y.clone();
    let call = norm(&unread, NormOut::Bf16(&mut found));
    simt::heads_norm(Order::Ascending, data.call(&mut output), call, None).unwrap();
    assert_same("heads_norm", &output, &expected);
    same_bits("out", &found, &expected_out).unwrap();
}

#[test]
fn out_norm_leaves_the_gaps_between_rows() {
    let data = Data::random(shape(1, 3, HeadMap::Tiled, StateLayout::HeadMajor, false), 61);
    let (y, heads, row) = (data.expected().y, 2, 2 * HEAD_DIM);
    // 258 and 259: rows whose 16-bit outputs are not aligned for 8-byte stores.
    for stride in [row, row + 2, row + 3, row + 8] {
        let call = |out| {
            OutNorm::new(heads, 3, &y, &data.z[..], &data.weight, NormAct::Silu, 1e-6, out, stride).unwrap()
        };
        let sentinel = half::f16::from_bits(0x1234);
        let (mut found, mut expected) = (vec![sentinel; 3 * stride], vec![sentinel; 3 * stride]);
        simt::out_norm(Order::Ascending, call(NormOut::F16(&mut found))).unwrap();
        cpu::out_norm(call(NormOut::F16(&mut expected)));
        same_bits(&format!("out, stride {stride}"), &found, &expected).unwrap();
        assert!(found.chunks(stride).all(|row_of| row_of[row..].iter().all(|x| *x == sentinel)));
    }
}

#[test]
fn the_check_passes_without_a_gpu() {
    let backend = keyhead::Backend::cpu().unwrap();
    let mut failures = Vec::new();
    let summary = check::run(&backend, "", &mut |name, outcome| {
        failures.extend(outcome.err().map(|why| format!("{name}: {why}")));
    });
    assert_eq!(failures, [""; 0]);
    assert!(summary.passed > 100 && summary.failed == 0, "{summary:?}");
}
