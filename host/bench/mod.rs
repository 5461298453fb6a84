//! `keyhead bench`: the kernels of a CUDA device against each other and against the card's limits, in one run.
//!
//! Variants alternate, and the first one rotates, so that a change of clocks hits all of them alike; a time is the median of
//! the rounds behind the warm-up, between CUDA events.

mod gdn;
mod hold;
mod layer;
mod sms;
mod topk;

pub use gdn::{norm, recurrence};
pub(crate) use hold::Holder;
pub use layer::layer;
pub use sms::{SmsRow, sms};
pub use topk::{TopkCall, scores, topk};

use crate::cuda::{Device, DeviceBuffer, Event, Gdn, Stream};
use crate::error::{Error, Result};
use crate::gdn::{Heads, Request, Variant};
use std::time::Duration;

/// Rounds that are not counted.
const WARM_UP: usize = 3;

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
struct Call<'a> {
    name: String,
    /// See [`Row::bytes`].
    bytes: usize,
    run: Box<dyn FnMut() -> Result<()> + 'a>,
}

/// Calls to time against each other, on one stream.
pub struct Calls<'a> {
    stream: &'a Stream,
    start: Event,
    end: Event,
    calls: Vec<Call<'a>>,
    /// Queues what stands in front of each call, outside of its time.
    before: Box<dyn FnMut() -> Result<()> + 'a>,
    tokens: usize,
    rounds: usize,
}

impl<'a> Calls<'a> {
    fn new(stream: &'a Stream, tokens: usize, calls: Vec<Call<'a>>) -> Result<Calls<'a>> {
        let event = || Event::new(stream.device());
        let before = Box::new(|| Ok(()));
        let rounds = if tokens >= 16_384 { 10 } else { 20 };
        Ok(Calls { stream, start: event()?, end: event()?, calls, before, tokens, rounds })
    }

    /// What the calls are, in their order: `recurrence/keyhead/16x48/8192`.
    pub fn names(&self) -> Vec<String> {
        self.calls.iter().map(|call| call.name.clone()).collect()
    }

    /// The device's time for call `index`, `count` times over. Errors: the driver's own.
    ///
    /// # Panics
    /// When there is no such call.
    pub fn time(&mut self, index: usize, count: u64) -> Result<Duration> {
        (0..count).map(|_| Ok(Duration::from_secs_f64(f64::from(self.once(index)?) / 1e3))).sum()
    }

    /// The milliseconds of call `index`.
    fn once(&mut self, index: usize) -> Result<f32> {
        (self.before)()?;
        self.start.record(self.stream)?;
        (self.calls[index].run)()?;
        self.end.record(self.stream)?;
        self.end.elapsed_ms(&self.start)
    }

    /// Times the calls round by round, each round starting with the next one. Errors: the driver's own.
    pub fn rows(mut self) -> Result<Vec<Row>> {
        let count = self.calls.len();
        let mut times = vec![Vec::with_capacity(self.rounds); count];
        for round in 0..WARM_UP + self.rounds {
            for turn in 0..count {
                let index = (round + turn) % count;
                let elapsed = self.once(index)?;
                if round >= WARM_UP {
                    times[index].push(elapsed);
                }
            }
        }
        self.stream.synchronize()?;
        let rows = self.calls.into_iter().zip(times);
        Ok(rows.map(|(call, times)| Row::new(call.name, times, self.tokens, call.bytes)).collect())
    }
}

/// The time of a device-to-device copy of 1 GiB: the card's bandwidth limit, in the same terms as the rows.
pub fn copy(device: &Device) -> Result<Row> {
    const BYTES: usize = 1 << 30;
    let stream = Stream::new(device)?;
    let mut source = DeviceBuffer::<f32>::alloc(device, "the copy's source", BYTES / 4)?;
    let mut target = DeviceBuffer::<f32>::alloc(device, "the copy's target", BYTES / 4)?;
    source.memset_u8(&stream, 0x3c)?;
    let run = Box::new(|| target.copy_from(&stream, &source));
    let call = Call { name: "copy/1GiB".into(), bytes: 2 * BYTES, run };
    Ok(Calls::new(&stream, 1, vec![call])?.rows()?.remove(0))
}
