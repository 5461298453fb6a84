//! The CPU backend: the recurrence and the out norm, parallel with rayon, vectorised across columns.
//!
//! Every instruction set gives the same bits, which are those of the kernels: the sums of a column are chains of their
//! own, so the width of a vector changes nothing. GPU arithmetic yields one NaN; here it is put in place of any other
//! as results are stored.

// Loops over several fixed arrays at once: by index they read as the formulas do, and unroll.
#![allow(clippy::needless_range_loop)]

mod element;
mod fp_env;
mod isa;
mod lanes;
mod out_norm;
mod recurrence;

pub use isa::Isa;

use crate::error::Result;
use crate::gdn;

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
