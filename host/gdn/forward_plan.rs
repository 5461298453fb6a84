//! The launches of the whole path on a device, and why they are these.

use super::plan::{Plan, Variant};
use super::shape::Heads;
use std::fmt;

/// A kernel launch, by the name of its PTX entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub kernel: String,
    pub reason: String,
}

/// What a call of the whole path launches, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardPlan {
    /// The recurrence variant.
    pub variant: Variant,
    pub launches: Vec<Launch>,
}

impl ForwardPlan {
    /// The path around a planned recurrence.
    pub fn new(heads: Heads, recurrence: Plan) -> ForwardPlan {
        let Plan { variant, reason } = recurrence;
        let launch = |kernel: &str, reason: &str| Launch { kernel: kernel.into(), reason: reason.into() };
        let prepare = launch("prepare", "gates, conv and l2norm in one launch");
        let launches = match variant {
            Variant::Heads => {
                vec![prepare, launch("heads_norm", &format!("{reason}; the out norm in the recurrence"))]
            }
            _ => vec![
                prepare,
                launch(&variant.entry(heads), &reason),
                launch("out_norm", "the only kernel of this step"),
            ],
        };
        ForwardPlan { variant, launches }
    }
}

impl fmt::Display for ForwardPlan {
    /// `prepare (why), scan (why), out_norm (why)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Launch { kernel, reason }) in self.launches.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{kernel} ({reason})")?;
        }
        Ok(())
    }
}
