//! Which recurrence kernel runs, and why: a pure function of the device's facts, the shape and the request.

use super::shape::{HEAD_DIM, Heads};
use crate::error::{Error, Result};
use kernels_gpu::gdn::recurrence::{COLUMN_BLOCKS, COLUMNS, ROW_GROUPS, scan};
use std::fmt;
use std::str::FromStr;

/// The most value heads a key head that `keyhead` is built for.
pub(crate) const MAX_KEYHEAD_VPK: usize = kernels_gpu::gdn::recurrence::keyhead::MAX_VPK;

/// A recurrence kernel. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// A value head a block; every card. Only if it is asked for.
    Heads,
    /// 32 columns of a value head a block; every card. Only if it is asked for.
    Cols,
    /// `Cols`, with the next token's inputs on their way; every card.
    Pipe,
    /// All value heads of a key head in one block; compute capability 8.0, all blocks resident at once.
    Keyhead,
    /// Warps of 16 columns of a value head, no block barrier a token; compute capability 8.0.
    Scan,
}

impl Variant {
    pub const ALL: [Variant; 5] =
        [Variant::Heads, Variant::Cols, Variant::Pipe, Variant::Keyhead, Variant::Scan];

    pub fn name(self) -> &'static str {
        match self {
            Variant::Heads => "heads",
            Variant::Cols => "cols",
            Variant::Pipe => "pipe",
            Variant::Keyhead => "keyhead",
            Variant::Scan => "scan",
        }
    }

    /// The PTX entry that runs this variant for `heads`.
    pub(crate) fn entry(self, heads: Heads) -> String {
        match self {
            Variant::Keyhead => format!("keyhead_vpk{}", heads.per_key()),
            _ => self.name().into(),
        }
    }

    /// Blocks of a launch.
    pub(crate) fn blocks(self, heads: Heads) -> usize {
        match self {
            Variant::Heads => heads.value(),
            Variant::Cols | Variant::Pipe => heads.value() * COLUMN_BLOCKS,
            Variant::Keyhead => heads.key() * COLUMN_BLOCKS,
            Variant::Scan => heads.value() * scan::BLOCKS_PER_HEAD,
        }
    }

    /// Threads of a block.
    pub(crate) fn block(self) -> [u32; 3] {
        match self {
            Variant::Heads => [HEAD_DIM as u32, ROW_GROUPS as u32, 1],
            Variant::Cols | Variant::Pipe | Variant::Keyhead => [COLUMNS as u32, ROW_GROUPS as u32, 1],
            Variant::Scan => [scan::THREADS as u32, 1, 1],
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Variant {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Variant::ALL.into_iter().find(|variant| variant.name() == name).ok_or_else(|| {
            let names = Variant::ALL.map(Variant::name).join(", ");
            Error::argument("variant", format!("`{name}`"), format!("auto, {names}"))
        })
    }
}

/// The facts of a device that the choice rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
    pub sms: u32,
    /// Blocks of `keyhead` for this shape that fit on an SM at once, as the driver counts them; 0 where it cannot run.
    pub keyhead_blocks_per_sm: u32,
}

/// The switches in the environment, read once a process. The reference engine's keep their meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// `KEYHEAD_GDN`: the variant to run, or `auto`.
    pub variant: Option<String>,
    /// `STRATA_GDN_REC_HEADS`, present with any value.
    pub rec_heads: bool,
    /// `STRATA_GDN_PIPELINE=0`.
    pub no_pipeline: bool,
    /// `STRATA_GDN_KEYHEAD=0`.
    pub no_keyhead: bool,
}

impl Switches {
    pub fn from_env() -> Self {
        let text = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let zero = |name| text(name).is_some_and(|value| value.trim() == "0");
        Self {
            variant: text("KEYHEAD_GDN"),
            rec_heads: text("STRATA_GDN_REC_HEADS").is_some(),
            no_pipeline: zero("STRATA_GDN_PIPELINE"),
            no_keyhead: zero("STRATA_GDN_KEYHEAD"),
        }
    }

    /// The variant that a switch forces, with the switch's name.
    pub(crate) fn forced(&self) -> Result<Option<(Variant, &'static str)>> {
        if let Some(name) = self.variant.as_deref().filter(|name| *name != "auto") {
            return match name.parse() {
                Ok(variant) => Ok(Some((variant, "KEYHEAD_GDN"))),
                Err(_) => Err(Error::argument(
                    "KEYHEAD_GDN",
                    format!("`{name}`"),
                    format!("auto, {}", Variant::ALL.map(Variant::name).join(", ")),
                )),
            };
        }
        if self.rec_heads {
            return Ok(Some((Variant::Heads, "STRATA_GDN_REC_HEADS")));
        }
        if self.no_pipeline {
            return Ok(Some((Variant::Cols, "STRATA_GDN_PIPELINE=0")));
        }
        Ok(None)
    }
}

/// What a caller asks of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub heads: Heads,
    /// The variant to run, whatever the switches say; `None` lets the plan choose.
    pub variant: Option<Variant>,
    /// Whether q, k and v start at multiples of 16 bytes and their token strides are multiples of 4 elements.
    pub aligned: bool,
}

/// The answer, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub variant: Variant,
    pub reason: String,
}

impl Plan {
    /// A variant that is asked for and cannot run is an error, never replaced.
    pub fn new(device: &Device, request: &Request, switches: &Switches) -> Result<Plan> {
        let forced = match request.variant {
            Some(variant) => Some((variant, "the caller")),
            None => switches.forced()?,
        };
        if let Some((variant, who)) = forced {
            return match can_run(variant, device, request) {
                Ok(()) => Ok(Plan { variant, reason: format!("asked for by {who}") }),
                Err(reason) => Err(Error::Variant { variant: variant.to_string(), reason }),
            };
        }
        let by_speed = by_measured_speed(device, request.heads);
        let mut passed_over = Vec::new();
        for variant in by_speed {
            let refused = match variant {
                Variant::Keyhead if switches.no_keyhead => Err("STRATA_GDN_KEYHEAD=0".into()),
                _ => can_run(variant, device, request),
            };
            match refused {
                Err(why) => passed_over.push(format!("not {variant}: {why}")),
                Ok(()) => {
                    let blocks = format!("{} blocks on {} SMs", variant.blocks(request.heads), device.sms);
                    passed_over.insert(0, format!("the fastest that can run, {blocks}"));
                    return Ok(Plan { variant, reason: passed_over.join("; ") });
                }
            }
        }
        unreachable!("pipe runs on every device")
    }
}

/// The variants that are chosen from, the fastest first, as measured on 24 to 132 SMs (docs/performance.md).
fn by_measured_speed(device: &Device, heads: Heads) -> [Variant; 3] {
    // An SM holds two blocks of `scan`: a third on the busiest one waits, and runs alone. `keyhead` was faster then with up to 3 value
    // heads a key head; with 4 nobody measured it.
    let busiest = Variant::Scan.blocks(heads).div_ceil(device.sms.max(1) as usize);
    if busiest == 3 && heads.per_key() <= 3 {
        [Variant::Keyhead, Variant::Scan, Variant::Pipe]
    } else {
        [Variant::Scan, Variant::Keyhead, Variant::Pipe]
    }
}

/// Whether `variant` can run, or why not.
fn can_run(variant: Variant, device: &Device, request: &Request) -> Result<(), String> {
    if !matches!(variant, Variant::Keyhead | Variant::Scan) {
        return Ok(());
    }
    let per_key = request.heads.per_key();
    if variant == Variant::Keyhead && per_key > MAX_KEYHEAD_VPK {
        return Err(format!(
            "it is built for at most {MAX_KEYHEAD_VPK} value heads a key head, this shape has {per_key}"
        ));
    }
    if device.major < 8 {
        return Err(format!(
            "it needs compute capability 8.0, this device has {}.{}",
            device.major, device.minor
        ));
    }
    if !request.aligned {
        return Err(
            "it copies 16 bytes at a time: q, k and v must start at multiples of 16 bytes, with token \
                    strides that are multiples of 4 elements"
                .into(),
        );
    }
    let blocks = variant.blocks(request.heads);
    let resident = device.keyhead_blocks_per_sm as usize * device.sms as usize;
    if variant == Variant::Keyhead && resident < blocks {
        return Err(format!(
            "its {blocks} blocks must be resident at once, and {} SMs x {} hold {resident}",
            device.sms, device.keyhead_blocks_per_sm
        ));
    }
    Ok(())
}
