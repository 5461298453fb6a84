//! The Gated DeltaNet layer: shapes checked once, the plan (which kernel, and why), and the run on a backend.

mod plan;
mod shape;

pub(crate) use plan::MAX_KEYHEAD_VPK;
pub use plan::{Device, Plan, Request, Switches, Variant};
pub use shape::{
    HEAD_DIM, HeadMap, Heads, NormAct, NormOut, OutNorm, Recurrence, RecurrenceInputs, Rows, StateLayout,
};
pub(crate) use shape::{check_eps, check_stride, check_tokens};
