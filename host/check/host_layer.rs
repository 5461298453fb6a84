//! The checks of the whole path without a GPU: every instruction set of the CPU backend, in one call and in chunks, and the kernels
//! before the recurrence on the SIMT executor.

use super::host::ORDERS;
use super::{LayerData, LayerOutput, LayerShape, Prepared, Report, simt};
use crate::cpu::{self, Isa};
use crate::cuda::PrepareStep;
use crate::error::Result as Outcome;
use crate::gdn::{Dtype, HeadMap, Heads, NormAct, StateLayout};
use ::simt::{Fault, Order};
use std::cell::LazyCell;

/// Around the three tokens of the history and the 16 of a tile.
const TOKENS: [usize; 9] = [1, 2, 3, 4, 7, 15, 16, 17, 33];
/// More than go through the CPU backend at once, in chunks that end elsewhere than its own.
const CHUNKS: [&[usize]; 3] = [&[1, 1, 2, 254, 3], &[128, 128, 5], &[200, 61]];

pub(super) fn run(report: &mut Report<'_>) {
    let shape = |(key, value), tokens, index: usize| LayerShape {
        heads: Heads::new(key, value, [HeadMap::Tiled, HeadMap::Grouped][index % 2]).expect("a valid pair"),
        layout: [StateLayout::HeadMajor, StateLayout::RowMajor][index / 2 % 2],
        tokens,
        dtype: Dtype::ALL[index % 3],
        out_dtype: Dtype::ALL[(index + index / 3) % 3],
        act: [NormAct::Silu, NormAct::Sigmoid][index % 2],
        bias: index % 5 == 1,
    };
    for (index, tokens) in TOKENS.iter().flat_map(|&tokens| [tokens; 3]).enumerate() {
        let data = LayerData::random(shape((2, [2, 6, 8][index % 3]), tokens, index), index as u64);
        instruction_sets(report, &data, &[tokens]);
        prepare(report, &data, ORDERS[index % ORDERS.len()]);
    }
    for (index, chunks) in CHUNKS.into_iter().enumerate() {
        let data = LayerData::random(shape((1, 3), chunks.iter().sum(), index), index as u64);
        instruction_sets(report, &data, chunks);
    }
}

/// The whole path in chunks, against one call of the portable code.
fn instruction_sets(report: &mut Report<'_>, data: &LayerData, chunks: &[usize]) {
    let expected = LazyCell::new(|| forward(Isa::Portable, data, &[data.shape.tokens]));
    for isa in Isa::available() {
        report.case(&format!("cpu/{isa} forward {} in {chunks:?}", data.shape), || {
            let (found, expected) = (forward(isa, data, chunks), expected.as_ref());
            found.map_err(|error| error.to_string())?.same_bits(expected.map_err(|error| error.to_string())?)
        });
    }
}

fn forward(isa: Isa, data: &LayerData, chunks: &[usize]) -> Outcome<LayerOutput> {
    let (mut output, mut workspace) = (data.blank(), cpu::Workspace::new());
    let mut call = data.call(&mut output);
    let mut first = 0;
    for tokens in chunks {
        cpu::forward_with(isa, call.chunk(first..first + tokens)?, &mut workspace)?;
        first += tokens;
    }
    Ok(output)
}

/// What stands before the recurrence: in one launch, as on each kind of card, and step by step.
fn prepare(report: &mut Report<'_>, data: &LayerData, order: Order) {
    let mut case = |name: &str, l2norm: bool, run: &dyn Fn(&mut Prepared) -> Result<(), Fault>| {
        report.case(&format!("simt {name} {} {order}", data.shape), || {
            let mut found = data.unprepared();
            run(&mut found).map_err(|fault| fault.to_string())?;
            found.same_bits(&data.prepared(l2norm))
        });
    };
    let step = |step, prepared: &mut Prepared| simt::prepare(step, order, data, prepared).map(drop);
    case("prepare", true, &|prepared| step(PrepareStep::All, prepared));
    case("prepare for sm_70", true, &|prepared| simt::prepare_sm_70(order, data, prepared).map(drop));
    case("gates, conv", false, &|prepared| {
        step(PrepareStep::Gates, prepared)?;
        step(PrepareStep::Conv, prepared)
    });
    case("conv, gates, l2norm", true, &|prepared| {
        step(PrepareStep::Conv, prepared)?;
        step(PrepareStep::Gates, prepared)?;
        step(PrepareStep::L2Norm, prepared)
    });
}
