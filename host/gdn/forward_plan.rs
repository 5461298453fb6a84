//! The launches of the whole path on a device, and why they are these.

use super::plan::{Plan, Variant};
use super::shape::Heads;
use crate::error::Result;
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

    /// For people: a line for each of the plans, named by their heads, and behind them one for each reason that several of them have.
    pub fn lines(plans: &[(Heads, Result<ForwardPlan>)]) -> Vec<String> {
        let launches = || plans.iter().flat_map(|(_, plan)| plan).flat_map(|plan| &plan.launches);
        let is_shared = |launch: &Launch| launches().filter(|other| *other == launch).count() > 1;
        let named = |launch: &Launch| match is_shared(launch) {
            true => launch.kernel.clone(),
            false => launch.to_string(),
        };
        let line = |(heads, plan): &(Heads, Result<ForwardPlan>)| {
            let launched = match plan {
                Ok(plan) => plan.launches.iter().map(named).collect::<Vec<_>>().join(", "),
                Err(error) => error.to_string(),
            };
            format!("forward {}/{} heads: {launched}", heads.key(), heads.value())
        };
        let mut lines: Vec<String> = plans.iter().map(line).collect();
        for launch in launches().filter(|launch| is_shared(launch)) {
            let shared = format!("{}: {}", launch.kernel, launch.reason);
            if !lines.contains(&shared) {
                lines.push(shared);
            }
        }
        lines
    }
}

impl fmt::Display for Launch {
    /// `scan (why)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kernel, self.reason)
    }
}

impl fmt::Display for ForwardPlan {
    /// `prepare (why), scan (why), out_norm (why)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, launch) in self.launches.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{launch}")?;
        }
        Ok(())
    }
}
