//! The CPU backend: the whole path and each of its steps, parallel with rayon, vectorised across columns.
//!
//! Every instruction set gives the same bits, which are those of the kernels: the sums of a column are chains of their
//! own, so the width of a vector changes nothing. GPU arithmetic yields one NaN; here it is put in place of any other
//! as results are stored.

// Loops over several fixed arrays at once: by index they read as the formulas do, and unroll.
#![allow(clippy::needless_range_loop)]

mod conv;
mod element;
mod forward;
mod fp_env;
mod gates;
mod isa;
mod keys;
mod l2norm;
mod lanes;
mod out_norm;
mod recurrence;
mod scores;
mod shared;
mod topk;

pub use forward::Workspace;
pub use isa::Isa;

use crate::error::Result;
use crate::gdn;
use crate::topk::{Scores, Topk};

/// Runs the whole path with [`Isa::chosen`], or the best there is where that cannot be had. Errors: `HostMemory`, before anything is
/// written.
pub fn forward(call: gdn::Forward<'_>, workspace: &mut Workspace) -> Result<()> {
    forward::run(Isa::chosen().unwrap_or(Isa::detect()), call, workspace)
}

/// Runs the whole path with `isa`; an error, before anything is written, if this CPU lacks it. Errors: `Variant`, `HostMemory`.
pub fn forward_with(isa: Isa, call: gdn::Forward<'_>, workspace: &mut Workspace) -> Result<()> {
    forward::run(isa.checked()?, call, workspace)
}

/// Runs the gates with [`Isa::chosen`], or the best there is where that cannot be had.
pub fn gates(call: gdn::Gates<'_>) {
    gates::run(Isa::chosen().unwrap_or(Isa::detect()), call);
}

/// Runs the gates with `isa`; an error, before anything is written, if this CPU lacks it.
pub fn gates_with(isa: Isa, call: gdn::Gates<'_>) -> Result<()> {
    gates::run(isa.checked()?, call);
    Ok(())
}

/// Runs the convolution with [`Isa::chosen`], or the best there is where that cannot be had.
pub fn conv(call: gdn::Conv<'_>) {
    conv::run(Isa::chosen().unwrap_or(Isa::detect()), call, conv::Normed::NONE);
}

/// Runs the convolution with `isa`; an error, before anything is written, if this CPU lacks it.
pub fn conv_with(isa: Isa, call: gdn::Conv<'_>) -> Result<()> {
    conv::run(isa.checked()?, call, conv::Normed::NONE);
    Ok(())
}

/// Runs the l2 norm with [`Isa::chosen`], or the best there is where that cannot be had.
pub fn l2norm(call: gdn::L2Norm<'_>) {
    l2norm::run(Isa::chosen().unwrap_or(Isa::detect()), call);
}

/// Runs the l2 norm with `isa`; an error, before anything is written, if this CPU lacks it.
pub fn l2norm_with(isa: Isa, call: gdn::L2Norm<'_>) -> Result<()> {
    l2norm::run(isa.checked()?, call);
    Ok(())
}

/// Runs the recurrence with [`Isa::chosen`], or the best there is where that cannot be had.
pub fn recurrence(call: gdn::Recurrence<'_>) {
    recurrence::run(Isa::chosen().unwrap_or(Isa::detect()), call);
}

/// Runs the recurrence with `isa`; an error, before anything is written, if this CPU lacks it.
pub fn recurrence_with(isa: Isa, call: gdn::Recurrence<'_>) -> Result<()> {
    recurrence::run(isa.checked()?, call);
    Ok(())
}

/// Runs the out norm with [`Isa::chosen`], or the best there is where that cannot be had.
pub fn out_norm(call: gdn::OutNorm<'_>) {
    out_norm::run(Isa::chosen().unwrap_or(Isa::detect()), call);
}

/// Runs the out norm with `isa`; an error, before anything is written, if this CPU lacks it.
pub fn out_norm_with(isa: Isa, call: gdn::OutNorm<'_>) -> Result<()> {
    out_norm::run(isa.checked()?, call);
    Ok(())
}

/// Selects with [`Isa::chosen`], or the best there is where that cannot be had. Errors: `HostMemory`; some rows may be written then.
pub fn topk(call: Topk<'_>) -> Result<()> {
    topk::run(Isa::chosen().unwrap_or(Isa::detect()), call)
}

/// Selects with `isa`; an error, before anything is written, if this CPU lacks it. Errors otherwise: those of [`topk()`].
pub fn topk_with(isa: Isa, call: Topk<'_>) -> Result<()> {
    topk::run(isa.checked()?, call)
}

/// Computes block scores with [`Isa::chosen`], or the best there is where that cannot be had.
pub fn scores(call: Scores<'_>) {
    scores::run(Isa::chosen().unwrap_or(Isa::detect()), call);
}

/// Computes block scores with `isa`; an error, before anything is written, if this CPU lacks it.
pub fn scores_with(isa: Isa, call: Scores<'_>) -> Result<()> {
    scores::run(isa.checked()?, call);
    Ok(())
}
