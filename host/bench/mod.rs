//! `keyhead bench`: the kernels of a CUDA device against each other and against the card's limits, in one run.
//!
//! Variants alternate, and the first one rotates, so that a change of clocks hits all of them alike; a time is the median of
//! the rounds behind the warm-up, between CUDA events.

mod gdn;
mod layer;
mod sms;
mod topk;

pub use gdn::{norm, recurrence};
pub use layer::layer;
pub use sms::{SmsRow, sms};
pub use topk::{TopkCall, scores, topk};

use crate::cuda::{Device, DeviceBuffer, Event, Gdn, Stream};
use crate::error::{Error, Result};
use crate::gdn::{Heads, Request, Variant};

/// Rounds that are not counted.
const WARM_UP: usize = 3;

/// Timed rounds for a call of `tokens`.
fn rounds(tokens: usize) -> usize {
    if tokens >= 16_384 { 10 } else { 20 }
}

/// A measured row.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// What ran: `recurrence/keyhead/16x48/8192`.
    pub name: String,
    /// Milliseconds of a call.
    pub median_ms: f64,
    pub min_ms: f64,
    pub max_ms: f64,
    /// Rounds behind the warm-up.
    pub rounds: usize,
    /// Tokens of a call; 1 for the block top-k.
    pub tokens: usize,
    /// Bytes that a call must move through device memory: each input read once, each output written once.
    pub bytes: usize,
}

impl Row {
    fn new(name: String, mut times: Vec<f32>, tokens: usize, bytes: usize) -> Row {
        times.sort_by(f32::total_cmp);
        let at = |index: usize| f64::from(times.get(index).copied().unwrap_or(f32::NAN));
        let rounds = times.len();
        Row {
            name,
            median_ms: at(rounds / 2),
            min_ms: at(0),
            max_ms: at(rounds.saturating_sub(1)),
            rounds,
            tokens,
            bytes,
        }
    }

    /// The bandwidth that the bytes amount to, in TB/s.
    pub fn terabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.median_ms / 1e9
    }
}

/// The recurrence variants that can run `heads` on this device.
fn runnable(gdn: &Gdn, heads: Heads) -> Result<Vec<Variant>> {
    let mut variants = Vec::new();
    for variant in Variant::ALL {
        match gdn.plan(&Request { heads, variant: Some(variant), aligned: true }) {
            Ok(_) => variants.push(variant),
            Err(Error::Variant { .. }) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(variants)
}

/// A call to time: queues its work on the stream.
struct Contender<'a> {
    name: String,
    run: Box<dyn FnMut() -> Result<()> + 'a>,
}

/// Times the contenders round by round, each round starting with the next one.
fn alternate(
    device: &Device,
    stream: &Stream,
    rounds: usize,
    contenders: &mut [Contender<'_>],
) -> Result<Vec<Vec<f32>>> {
    alternate_behind(device, stream, rounds, contenders, || Ok(()))
}

/// [`alternate`], with what `before` queues in front of each call, outside of its time.
fn alternate_behind(
    device: &Device,
    stream: &Stream,
    rounds: usize,
    contenders: &mut [Contender<'_>],
    mut before: impl FnMut() -> Result<()>,
) -> Result<Vec<Vec<f32>>> {
    let (start, end) = (Event::new(device)?, Event::new(device)?);
    let count = contenders.len();
    let mut times = vec![Vec::with_capacity(rounds); count];
    for round in 0..WARM_UP + rounds {
        for turn in 0..count {
            let index = (round + turn) % count;
            let contender = &mut contenders[index];
            before()?;
            start.record(stream)?;
            (contender.run)()?;
            end.record(stream)?;
            let elapsed = end.elapsed_ms(&start)?;
            if round >= WARM_UP {
                times[index].push(elapsed);
            }
        }
    }
    stream.synchronize()?;
    Ok(times)
}

/// The time of a device-to-device copy of 1 GiB: the card's bandwidth limit, in the same terms as the rows.
pub fn copy(device: &Device) -> Result<Row> {
    const BYTES: usize = 1 << 30;
    let stream = Stream::new(device)?;
    let mut source = DeviceBuffer::<f32>::alloc(device, "the copy's source", BYTES / 4)?;
    let mut target = DeviceBuffer::<f32>::alloc(device, "the copy's target", BYTES / 4)?;
    source.memset_u8(&stream, 0x3c)?;
    let mut contenders =
        [Contender { name: "copy".into(), run: Box::new(|| target.copy_from(&stream, &source)) }];
    let mut times = alternate(device, &stream, 20, &mut contenders)?;
    Ok(Row::new("copy/1GiB".into(), times.remove(0), 1, 2 * BYTES))
}
