//! Which selection kernel runs, and why: a pure function of the device's facts, the shape and the request.

use super::TopkShape;
use crate::error::{Error, Result};
use kernels_gpu::topk::{cluster, register, sieve, split};
use std::fmt;
use std::str::FromStr;

/// With more queries the card is full without clusters.
const CLUSTER_QUERIES: usize = 16;

/// A selection kernel. All give the same ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// The reference engine's first: 256 threads a query, one shared histogram.
    Original,
    /// Keys in registers, read once.
    Register,
    /// Keys from memory; any number of blocks.
    Wide,
    /// Two halves through `register`, then a merge.
    Split,
    /// Eight CTAs a query, histograms through distributed shared memory; compute capability 9.0.
    Cluster,
    /// One read of the scores for the maxima of chunks, then the chunks that can matter.
    Sieve,
}

impl Kernel {
    pub const ALL: [Kernel; 6] =
        [Kernel::Original, Kernel::Register, Kernel::Wide, Kernel::Split, Kernel::Cluster, Kernel::Sieve];

    pub fn name(self) -> &'static str {
        match self {
            Kernel::Original => "original",
            Kernel::Register => "register",
            Kernel::Wide => "wide",
            Kernel::Split => "split",
            Kernel::Cluster => "cluster",
            Kernel::Sieve => "sieve",
        }
    }

    /// "auto, original, ...": what a choice may be.
    fn choices() -> String {
        format!("auto, {}", Kernel::ALL.map(Kernel::name).join(", "))
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Kernel::ALL
            .into_iter()
            .find(|kernel| kernel.name() == name)
            .ok_or_else(|| Error::argument("kernel", format!("`{name}`"), Kernel::choices()))
    }
}

/// The facts of a device that the choice rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

/// The switches in the environment. The reference engine's keep their meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// `KEYHEAD_TOPK`: the kernel to run, or `auto`.
    pub kernel: Option<String>,
    /// `STRATA_TOPK_OLD`, present with any value: `original`.
    pub old: bool,
    /// `STRATA_TOPK_ACTIVE_ANY=1`: an active count bounds the reach on every card, not only on sm_75.
    pub active_any: bool,
}

impl Switches {
    pub fn from_env() -> Self {
        let text = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self {
            kernel: text("KEYHEAD_TOPK"),
            old: text("STRATA_TOPK_OLD").is_some(),
            active_any: text("STRATA_TOPK_ACTIVE_ANY").is_some_and(|value| value.trim() == "1"),
        }
    }

    /// The kernel that a switch forces, with the switch's name.
    pub(crate) fn forced(&self) -> Result<Option<(Kernel, &'static str)>> {
        match self.kernel.as_deref().filter(|name| *name != "auto") {
            Some(name) => match name.parse() {
                Ok(kernel) => Ok(Some((kernel, "KEYHEAD_TOPK"))),
                Err(_) => Err(Error::argument("KEYHEAD_TOPK", format!("`{name}`"), Kernel::choices())),
            },
            None if self.old => Ok(Some((Kernel::Original, "STRATA_TOPK_OLD"))),
            None => Ok(None),
        }
    }
}

/// What a caller asks of the choice. Nothing of it depends on the scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub queries: usize,
    /// The most cells that a query selects.
    pub width: usize,
    /// Blocks of a row of scores: the engine's maximum context.
    pub stride: usize,
    /// The largest `n_bid + 1` of the call. A call that becomes part of a graph gives none: the context of a replay is not known.
    pub active: Option<usize>,
    /// The kernel to run, whatever the switches say; `None` lets the plan choose.
    pub kernel: Option<Kernel>,
}

impl Request {
    /// For a call of `shape`, of any context, by the plan's choice.
    pub fn new(shape: TopkShape) -> Self {
        let (queries, width, stride) = (shape.queries(), shape.width(), shape.stride());
        Self { queries, width, stride, active: None, kernel: None }
    }

    /// Blocks that a row can have.
    fn reach(&self, device: &Device, switches: &Switches) -> usize {
        let counted = switches.active_any || (device.major, device.minor) == (7, 5);
        match self.active {
            Some(active) if counted && active > 0 => active.min(self.stride),
            _ => self.stride,
        }
    }
}

/// The answer, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub kernel: Kernel,
    /// Blocks that the launch must be ready for.
    pub reach: usize,
    pub reason: String,
}

impl Plan {
    /// A kernel that is asked for and cannot run is an error, never replaced.
    pub fn new(device: &Device, request: &Request, switches: &Switches) -> Result<Plan> {
        let reach = request.reach(device, switches);
        let forced = match request.kernel {
            Some(kernel) => Some((kernel, "the caller")),
            None => switches.forced()?,
        };
        if let Some((kernel, who)) = forced {
            return match can_run(kernel, device, request.width, reach) {
                Ok(()) => Ok(Plan { kernel, reach, reason: format!("asked for by {who}") }),
                Err(reason) => Err(Error::Variant { variant: kernel.to_string(), reason }),
            };
        }
        let mut passed_over = Vec::new();
        for kernel in BY_SPEED {
            let refused = match kernel {
                Kernel::Cluster if request.queries > CLUSTER_QUERIES => {
                    Err(format!("{} queries fill the card without it", request.queries))
                }
                _ => can_run(kernel, device, request.width, reach),
            };
            match refused {
                Err(why) => passed_over.push(format!("not {kernel}: {why}")),
                Ok(()) => {
                    passed_over.insert(0, format!("the fastest that can run, {reach} blocks a row"));
                    return Ok(Plan { kernel, reach, reason: passed_over.join("; ") });
                }
            }
        }
        unreachable!("wide runs on every device")
    }
}

/// The kernels that are worth choosing, the fastest first, as measured on an H200 from 4,096 to 524,288 cells (docs/performance.md): `sieve` is
/// ahead of all others, but for `cluster` at two sizes and few queries, by up to 4 %; `wide` of `register` and `original` throughout,
/// and of `split` but where `cluster` is ahead of both.
const BY_SPEED: [Kernel; 3] = [Kernel::Sieve, Kernel::Cluster, Kernel::Wide];

/// Whether `kernel` can run, or why not.
fn can_run(kernel: Kernel, device: &Device, width: usize, reach: usize) -> Result<(), String> {
    let most = match kernel {
        Kernel::Original | Kernel::Wide => usize::MAX,
        Kernel::Register => register::REACH as usize,
        Kernel::Split => split::REACH as usize,
        Kernel::Cluster => cluster::REACH,
        Kernel::Sieve => sieve::REACH,
    };
    if kernel == Kernel::Cluster && device.major < 9 {
        return Err(format!(
            "it needs compute capability 9.0, this device has {}.{}",
            device.major, device.minor
        ));
    }
    if kernel == Kernel::Sieve && width > sieve::WIDTH as usize {
        return Err(format!("it selects at most {} cells, and {width} are asked for", sieve::WIDTH));
    }
    if reach > most {
        return Err(format!("it reaches {most} blocks, and a row can have {reach}"));
    }
    Ok(())
}
