//! Deliberate faults in the GDN kernels: each must be caught, under every order, by the check that is meant to.

use ::simt::FaultKind::{Alignment, AsyncPending, GlobalBounds, SharedRace, SharedUninitialised};
use ::simt::{Fault, FaultKind, Order, Stats};
use Kernel::{HeadsNorm, OutNormed, Prepare, PrepareSm70, Recurred};
use Mutation::*;
use PrepareStep::{All, Conv, Gates, L2Norm};
use Variant::{Cols, Heads, Keyhead, Pipe, Scan};
use half::f16;
use kernels_gpu::mutation::{self, Mutation};
use keyhead::check::{Data, LayerData, LayerShape, Output, Prepared, Shape, simt};
use keyhead::cpu;
use keyhead::cuda::PrepareStep;
use keyhead::gdn::{self, Dtype, HEAD_DIM, HeadMap, NormAct, NormOut, OutNorm, StateLayout, Variant};

const ORDERS: [Order; 4] = [Order::Ascending, Order::Descending, Order::WarpReversed, Order::Seeded(7)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Prepare(PrepareStep),
    PrepareSm70,
    Recurred(Variant),
    HeadsNorm,
    OutNormed,
}

/// What catches a fault: one of these checks of the executor.
type Checks = &'static [FaultKind];
/// No check: the kernel runs to its end, and its bits are not the CPU backend's.
const BITS: Checks = &[];
/// Under some orders a thread that does not wait is early enough to find nothing written yet.
const RACE: Checks = &[SharedRace, SharedUninitialised];

const FAULTS: [(Kernel, Mutation, Checks); 59] = [
    (Prepare(Conv), ConvReversesTaps, BITS),
    (Prepare(Conv), ConvKeepsHistoryInPlace, BITS),
    (Prepare(Conv), ConvStoresPastTheEnd, &[GlobalBounds]),
    (Prepare(Conv), ConvTakesHistoryInEveryTile, BITS),
    (Prepare(Conv), ConvTakesTheNextBias, BITS),
    (Prepare(Conv), RingSkipsWait, &[AsyncPending]),
    (Prepare(Conv), RingReadsTheNextSlot, &[AsyncPending]),
    (Prepare(Conv), RingCopiesToTheNextSlot, &[SharedUninitialised]),
    (Prepare(Conv), RingCopiesPastTheEnd, &[GlobalBounds]),
    (Prepare(L2Norm), RowRisingDistances, BITS),
    (Prepare(L2Norm), RowReversesGroups, BITS),
    (Prepare(L2Norm), L2NormTakesTheMean, BITS),
    (Prepare(L2Norm), L2NormOneHeadMore, BITS),
    (Prepare(Gates), GatesOneTokenMore, &[GlobalBounds]),
    (Prepare(Gates), GatesStopAfterABlock, BITS),
    (Prepare(Gates), GatesTakeBForA, BITS),
    (Prepare(All), PrepareNormalisesValues, BITS),
    (Prepare(All), L2NormTakesTheMean, BITS),
    (Prepare(All), RingSkipsWait, &[AsyncPending]),
    (Prepare(All), RingCopiesPastTheEnd, &[GlobalBounds]),
    (Prepare(All), GatesOneTokenMore, &[GlobalBounds]),
    (PrepareSm70, RegistersReadPastTheEnd, &[GlobalBounds]),
    (PrepareSm70, RegistersStandStill, BITS),
    (PrepareSm70, ConvTakesHistoryInEveryTile, BITS),
    (PrepareSm70, PrepareNormalisesValues, BITS),
    (Recurred(Heads), SwapsHeadMap, BITS),
    (Recurred(Heads), ReversesRowGroups, BITS),
    (Recurred(Heads), HeadsDropsOBarrier, RACE),
    (Recurred(Heads), HeadsStagesNoKey, &[SharedUninitialised]),
    (HeadsNorm, HeadsNormDropsNormBarrier, RACE),
    (HeadsNorm, HeadsNormRepeatsGroup, BITS),
    (HeadsNorm, HeadsNormRisingDistances, BITS),
    (Recurred(Cols), SwapsHeadMap, BITS),
    (Recurred(Cols), ReversesRowGroups, BITS),
    (Recurred(Cols), ColsDropsRowBarrier, RACE),
    (Recurred(Cols), ColsDropsOBarrier, RACE),
    (Recurred(Pipe), SwapsHeadMap, BITS),
    (Recurred(Pipe), ReversesRowGroups, BITS),
    (Recurred(Pipe), PipeDropsKvBarrier, RACE),
    (Recurred(Pipe), PipeReusesRows, &[SharedRace]),
    (Recurred(Pipe), PipeLoadsPastTheEnd, &[GlobalBounds]),
    (Recurred(Keyhead), SwapsHeadMap, BITS),
    (Recurred(Keyhead), ReversesRowGroups, BITS),
    (Recurred(Keyhead), KeyheadDropsTokenBarrier, RACE),
    (Recurred(Keyhead), KeyheadSkipsStageWait, &[AsyncPending]),
    (Recurred(Keyhead), KeyheadOneBuffer, &[SharedRace, AsyncPending]),
    (Recurred(Keyhead), KeyheadStagesPastTheEnd, &[GlobalBounds]),
    (Recurred(Keyhead), KeyheadTakesTheNextDecay, BITS),
    (Recurred(Scan), SwapsHeadMap, BITS),
    (Recurred(Scan), ReversesRowGroups, BITS),
    (Recurred(Scan), ScanSkipsStageWait, &[AsyncPending]),
    (Recurred(Scan), ScanDropsWarpBarrier, RACE),
    (Recurred(Scan), ScanStagesOverTheNextBlock, &[SharedRace, AsyncPending]),
    (Recurred(Scan), ScanStagesPastTheEnd, &[GlobalBounds]),
    (Recurred(Scan), ScanTakesTheNextPair, BITS),
    (OutNormed, RowRisingDistances, BITS),
    (OutNormed, RowReversesGroups, BITS),
    (OutNormed, OutNormOneHeadMore, &[GlobalBounds]),
    (OutNormed, OutNormStoresUnaligned, &[Alignment]),
];

/// 6 value heads of 2 key heads, 20 tokens: three staged blocks, the last one half empty.
fn data() -> Data {
    let heads = gdn::Heads::new(2, 6, HeadMap::Tiled).unwrap();
    let shape = Shape { heads, layout: StateLayout::HeadMajor, tokens: 20, packed: false };
    Data::random(shape, 71)
}

/// Two calls of 17 value heads: their gates of a tile are more than a block has threads; 20 tokens end in a second tile, and 2 are fewer
/// than the history.
fn layers() -> [LayerData; 2] {
    [20, 2].map(|tokens| {
        let shape = LayerShape {
            heads: gdn::Heads::new(1, 17, HeadMap::Tiled).unwrap(),
            layout: StateLayout::HeadMajor,
            tokens,
            dtype: Dtype::F32,
            out_dtype: Dtype::F16,
            act: NormAct::Silu,
            bias: true,
        };
        LayerData::random(shape, 72)
    })
}

/// What the kernels before it leave for a step.
fn before(step: PrepareStep, data: &LayerData) -> Prepared {
    let blank = data.unprepared();
    match step {
        All => blank,
        Conv => Prepared { h: blank.h, conv_state: blank.conv_state, ..data.prepared(false) },
        L2Norm => data.prepared(false),
        Gates => Prepared { gate: blank.gate, beta: blank.beta, ..data.prepared(true) },
    }
}

fn prepared_bits(Prepared { h, gate, beta, conv_state }: &Prepared) -> impl Iterator<Item = u32> {
    [h, gate, beta, conv_state].into_iter().flatten().map(|x| x.to_bits())
}

/// What a run leaves. The normed output twice: f16 in rows that are not aligned for wide stores, and f32, since rounding to f16 hides
/// what the order of a sum changes.
struct Run {
    y: Vec<f32>,
    state: Vec<f32>,
    out: Vec<f16>,
    normed: Vec<f32>,
}

impl Run {
    fn blank(data: &Data) -> Run {
        let Output { y, state } = data.blank();
        let out = vec![f16::ZERO; data.shape.tokens * stride(data)];
        Run { out, normed: vec![0.0; y.len()], y, state }
    }

    fn bits(&self) -> Vec<u32> {
        let f32s = self.y.iter().chain(&self.state).chain(&self.normed).map(|x| x.to_bits());
        f32s.chain(self.out.iter().map(|x| u32::from(x.to_bits()))).collect()
    }
}

/// What the kernels work on: the first ones on `layers`, the others on `data`, and the out norms on what the CPU backend makes of it.
struct Inputs {
    data: Data,
    recurred: Output,
    layers: [LayerData; 2],
}

fn stride(data: &Data) -> usize {
    data.shape.heads.value() * HEAD_DIM + 3
}

fn norm_f16<'a>(data: &'a Data, y: &'a [f32], out: &'a mut [f16]) -> OutNorm<'a> {
    let (heads, tokens) = (data.shape.heads.value(), data.shape.tokens);
    let (out, act) = (NormOut::F16(out), NormAct::Silu);
    OutNorm::new(heads, tokens, y, &data.z[..], &data.weight, act, 1e-6, out, stride(data)).unwrap()
}

fn norm_f32<'a>(data: &'a Data, y: &'a [f32], out: &'a mut [f32]) -> OutNorm<'a> {
    data.norm_call(y, NormAct::Silu, NormOut::F32(out))
}

/// What is left by a kernel before the recurrence.
fn run_prepare(
    layers: &[LayerData],
    step: PrepareStep,
    run: impl Fn(&LayerData, &mut Prepared) -> Result<Stats, Fault>,
) -> Result<Vec<u32>, Fault> {
    let mut bits = Vec::new();
    for data in layers {
        let mut prepared = before(step, data);
        run(data, &mut prepared)?;
        bits.extend(prepared_bits(&prepared));
    }
    Ok(bits)
}

fn run(kernel: Kernel, order: Order, inputs: &Inputs) -> Result<Vec<u32>, Fault> {
    let Inputs { data, recurred, layers } = inputs;
    let y = &recurred.y;
    let mut run = Run::blank(data);
    let mut output = data.blank();
    match kernel {
        Prepare(step) => {
            return run_prepare(layers, step, |data, prepared| simt::prepare(step, order, data, prepared));
        }
        PrepareSm70 => {
            return run_prepare(layers, All, |data, prepared| simt::prepare_sm_70(order, data, prepared));
        }
        Recurred(variant) => {
            simt::recurrence(variant, order, data.call(&mut output))?;
        }
        HeadsNorm => {
            let norm = norm_f16(data, y, &mut run.out);
            simt::heads_norm(order, data.call(&mut output), norm, Some(&mut run.normed))?;
        }
        OutNormed => {
            simt::out_norm(order, norm_f16(data, y, &mut run.out))?;
            simt::out_norm(order, norm_f32(data, y, &mut run.normed))?;
        }
    }
    Ok(Run { y: output.y, state: output.state, ..run }.bits())
}

/// The same from the CPU backend.
fn expected(kernel: Kernel, Inputs { data, recurred, layers }: &Inputs) -> Vec<u32> {
    if matches!(kernel, Prepare(_) | PrepareSm70) {
        let prepared = layers.iter().map(|data| data.prepared(kernel != Prepare(Conv)));
        return prepared.flat_map(|prepared| prepared_bits(&prepared).collect::<Vec<_>>()).collect();
    }
    let mut run = Run::blank(data);
    if !matches!(kernel, Recurred(_)) {
        cpu::out_norm(norm_f16(data, &recurred.y, &mut run.out));
        cpu::out_norm(norm_f32(data, &recurred.y, &mut run.normed));
    }
    if kernel != OutNormed {
        (run.y, run.state) = (recurred.y.clone(), recurred.state.clone());
    }
    run.bits()
}

#[test]
fn every_fault_is_caught_by_its_check() {
    let data = data();
    let inputs = Inputs { recurred: data.expected(), data, layers: layers() };
    let mut kernels: Vec<Kernel> = FAULTS.iter().map(|fault| fault.0).collect();
    kernels.dedup();
    for kernel in kernels {
        let expected = expected(kernel, &inputs);
        // What the faults are measured against.
        assert!(run(kernel, Order::Ascending, &inputs).unwrap() == expected, "{kernel:?} without a fault");
        let faults: Vec<_> = FAULTS.iter().filter(|fault| fault.0 == kernel).collect();
        assert!(faults.len() >= 3, "{kernel:?}");
        for &&(_, mutation, checks) in &faults {
            for order in ORDERS {
                match mutation::with(mutation, || run(kernel, order, &inputs)) {
                    Err(fault) => assert!(checks.contains(&fault.kind()), "{mutation:?}: {fault}"),
                    Ok(found) => {
                        assert!(checks == BITS, "{kernel:?} {mutation:?} {order}: no fault");
                        assert!(found != expected, "{kernel:?} {mutation:?} {order}: the right bits");
                    }
                }
            }
        }
        println!("{kernel:?}: {} faults, all caught", faults.len());
    }
    println!("{} faults caught under each of {} orders", FAULTS.len(), ORDERS.len());
}
