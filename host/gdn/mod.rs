//! The Gated DeltaNet layer: shapes checked once, the plan (which kernel, and why), and the run on a backend.

mod dtype;
mod forward;
mod forward_plan;
mod plan;
mod shape;
mod steps;

pub use dtype::{Dtype, Floats};
pub use forward::{Carried, Forward, ForwardInputs, ForwardOptions, ForwardOutputs, Weights};
pub use forward_plan::{ForwardPlan, Launch};
pub(crate) use plan::MAX_KEYHEAD_VPK;
pub use plan::{Device, Plan, Request, Switches, Variant};
pub use shape::{
    HEAD_DIM, HeadMap, Heads, NormAct, NormOut, OutNorm, Recurrence, RecurrenceInputs, Rows, StateLayout,
};
pub(crate) use shape::{check_eps, check_stride, check_tokens, check_value_heads};
pub use steps::{CONV_HISTORY, CONV_TAPS, Conv, Gates, L2Norm, PerHead, a_coef};
