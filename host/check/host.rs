//! The checks of recurrence and out norm without a GPU: the kernels on the SIMT executor, and every instruction set of the CPU backend
//! against the chosen one.

use super::{Data, Report, Shape, same_bits, simt};
use crate::cpu;
use crate::gdn::{HEAD_DIM, HeadMap, Heads, NormAct, NormOut, StateLayout, Variant};
use ::simt::Order;
use half::f16;

pub(super) const ORDERS: [Order; 4] =
    [Order::Ascending, Order::Descending, Order::WarpReversed, Order::Seeded(1)];
const TOKENS: [usize; 6] = [1, 2, 7, 8, 9, 17];

pub(super) fn run(report: &mut Report<'_>) {
    for (index, &tokens) in TOKENS.iter().enumerate() {
        for vpk in 1..=4 {
            let map = if (index + vpk) % 2 == 0 { HeadMap::Tiled } else { HeadMap::Grouped };
            let layout = if index % 2 == 0 { StateLayout::HeadMajor } else { StateLayout::RowMajor };
            let heads = Heads::new(2, 2 * vpk, map).expect("a valid pair");
            let shape = Shape { heads, layout, tokens, packed: index % 2 == 1 };
            let data = Data::random(shape, 11 + index as u64);
            instruction_sets(report, &data);
            let order = ORDERS[(index + vpk) % ORDERS.len()];
            for variant in Variant::ALL {
                report.case(&format!("simt {variant} {shape} {order}"), || recurrence(&data, variant, order));
            }
            report.case(&format!("simt heads_norm {shape} {order}"), || heads_norm(&data, order));
            report.case(&format!("simt out_norm {shape} {order}"), || out_norm(&data, order));
        }
    }
}

fn instruction_sets(report: &mut Report<'_>, data: &Data) {
    let expected = data.expected();
    for isa in cpu::Isa::available() {
        report.case(&format!("cpu/{isa} recurrence {}", data.shape), || {
            let mut output = data.blank();
            cpu::recurrence_with(isa, data.call(&mut output)).map_err(|error| error.to_string())?;
            same_bits("y", &output.y, &expected.y)?;
            same_bits("state", &output.state, &expected.state)
        });
    }
}

fn recurrence(data: &Data, variant: Variant, order: Order) -> Result<(), String> {
    let mut output = data.blank();
    simt::recurrence(variant, order, data.call(&mut output)).map_err(|fault| fault.to_string())?;
    let expected = data.expected();
    same_bits("y", &output.y, &expected.y)?;
    same_bits("state", &output.state, &expected.state)
}

fn heads_norm(data: &Data, order: Order) -> Result<(), String> {
    let (mut output, expected) = (data.blank(), data.expected());
    let (mut found, mut norm) = (blank_out(data), blank_out(data));
    let call = data.norm_call(&expected.y, NormAct::Sigmoid, NormOut::F16(&mut found));
    simt::heads_norm(order, data.call(&mut output), call, None).map_err(|fault| fault.to_string())?;
    cpu::out_norm(data.norm_call(&expected.y, NormAct::Sigmoid, NormOut::F16(&mut norm)));
    same_bits("y", &output.y, &expected.y)?;
    same_bits("state", &output.state, &expected.state)?;
    same_bits("out", &found, &norm)
}

fn out_norm(data: &Data, order: Order) -> Result<(), String> {
    let y = data.expected().y;
    let (mut found, mut expected) = (blank_out(data), blank_out(data));
    simt::out_norm(order, data.norm_call(&y, NormAct::Silu, NormOut::F16(&mut found)))
        .map_err(|fault| fault.to_string())?;
    cpu::out_norm(data.norm_call(&y, NormAct::Silu, NormOut::F16(&mut expected)));
    same_bits("out", &found, &expected)
}

/// An out norm's output, full of a value that no kernel writes.
fn blank_out(data: &Data) -> Vec<f16> {
    vec![f16::from_bits(0x5a5a); data.shape.tokens * data.shape.heads.value() * HEAD_DIM]
}
