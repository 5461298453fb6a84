//! What a card with fewer multiprocessors would do: the recurrence on N of this card's, while a holding kernel sits on the others.
//!
//! A holding block takes all the shared memory that a block may have, so nothing with shared memory of its own fits beside it; a
//! probe with the same grid and block as the timed kernel shows where the blocks land. A row counts only if no block landed on a
//! held multiprocessor, the held ones are distinct, and nothing gave up waiting.

use std::collections::{BTreeMap, BTreeSet};

use kernels_gpu::bench::{FLAGS, LATE};
use kernels_gpu::params::{GlobalMut, HoldArgs};

use super::gdn::Layer;
use super::hold::{Holder, LIMIT_NS};
use super::{Row, WARM_UP, runnable};
use crate::cuda::{DeviceBuffer, Event, Gdn, Kernel};
use crate::error::Result;
use crate::gdn::{Heads, Variant};

/// The numbers of multiprocessors to try, beside all of them.
const COUNTS: [u32; 31] = [
    128, 112, 108, 96, 95, 84, 82, 80, 76, 72, 70, 66, 64, 63, 60, 56, 52, 48, 47, 46, 44, 40, 39, 38, 36,
    34, 32, 30, 28, 26, 24,
];
const ROUNDS: usize = 7;

/// The recurrence on some of the card's multiprocessors.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SmsRow {
    pub sms: u32,
    pub row: Row,
    /// Blocks on the busiest multiprocessor.
    pub busiest: usize,
    /// Why the row does not count, if it does not.
    pub invalid: Option<String>,
}

/// All variants that fit, on every count of multiprocessors; `progress` is told each row.
pub fn sms(gdn: &Gdn, heads: Heads, tokens: usize, progress: &mut dyn FnMut(&SmsRow)) -> Result<Vec<SmsRow>> {
    let facts = gdn.device().facts();
    let bench = Bench::new(gdn, heads, tokens)?;
    let mut rows = Vec::new();
    for sms in std::iter::once(facts.sms).chain(COUNTS.into_iter().filter(|&sms| sms < facts.sms)) {
        for row in bench.rows(sms)? {
            progress(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

struct Bench<'a> {
    gdn: &'a Gdn,
    layer: Layer,
    variants: Vec<Variant>,
    holder: Holder,
    probe: Kernel,
    landed: DeviceBuffer<u32>,
}

impl<'a> Bench<'a> {
    fn new(gdn: &'a Gdn, heads: Heads, tokens: usize) -> Result<Self> {
        let device = gdn.device();
        let variants = runnable(gdn, heads)?;
        let most = variants.iter().map(|variant| variant.blocks(heads)).max().unwrap_or(1);
        let bench = Bench {
            gdn,
            layer: Layer::new(gdn, heads, tokens)?,
            variants,
            holder: Holder::new(gdn.kernels())?,
            probe: gdn.kernel("probe")?,
            landed: DeviceBuffer::alloc(device, "landed", most)?,
        };
        // As the holder's kernels: loaded before something is held.
        for &variant in &bench.variants {
            bench.run(variant)?;
            bench.run_probe(variant, &bench.new_flags()?)?;
            bench.layer.stream.synchronize()?;
        }
        Ok(bench)
    }

    /// Flag words for the probe, made before anything is held: an allocation may wait for a running kernel.
    fn new_flags(&self) -> Result<DeviceBuffer<u32>> {
        DeviceBuffer::from_slice(&self.layer.stream, "flags", &[0; FLAGS])
    }

    fn run(&self, variant: Variant) -> Result<()> {
        // SAFETY: the layer's buffers are of these sizes, and each use ends with a synchronisation.
        unsafe { self.gdn.recurrence(&self.layer.stream, &self.layer.recurrence(), Some(variant)) }.map(drop)
    }

    /// Queues the probe with the grid, block and shared memory of `variant`.
    fn run_probe(&self, variant: Variant, flags: &DeviceBuffer<u32>) -> Result<()> {
        let blocks = variant.blocks(self.layer.heads()) as u32;
        let stream = &self.layer.stream;
        let args = HoldArgs {
            flags: GlobalMut::from_address(flags.as_ptr()),
            sm_ids: GlobalMut::from_address(self.landed.as_ptr()),
            limit_ns: LIMIT_NS / 4,
            generation: 0,
            blocks,
        };
        let shared = self.gdn.kernel(&variant.entry(self.layer.heads()))?.static_shared();
        // SAFETY: the buffers live until the synchronisation of whoever called.
        unsafe { self.probe.launch_with(stream, [blocks, 1, 1], variant.block(), shared, &args) }
    }

    fn rows(&self, sms: u32) -> Result<Vec<SmsRow>> {
        let device = self.gdn.device();
        let blocks = device.facts().sms - sms;
        let (start, end) = (Event::new(device)?, Event::new(device)?);
        let count = self.variants.len();
        let mut times = vec![Vec::new(); count];
        let mut late = vec![0; count];
        for round in 0..WARM_UP + ROUNDS {
            for turn in 0..count {
                let index = (round + turn) % count;
                let stream = &self.layer.stream;
                let (_, gave_up) = self.holder.with_held(stream, blocks, || {
                    start.record(stream)?;
                    self.run(self.variants[index])?;
                    end.record(stream)
                })?;
                late[index] += gave_up;
                if round >= WARM_UP {
                    times[index].push(end.elapsed_ms(&start)?);
                }
            }
        }
        let mut rows = Vec::new();
        for (index, times) in times.into_iter().enumerate() {
            let variant = self.variants[index];
            let heads = self.layer.heads();
            let name =
                format!("recurrence/{variant}/{}x{}/{}", heads.key(), heads.value(), self.layer.tokens);
            let row = Row::new(name, times, self.layer.tokens, self.layer.recurrence_bytes());
            let (busiest, invalid) = self.placement(variant, blocks, late[index])?;
            rows.push(SmsRow { sms, row, busiest, invalid });
        }
        Ok(rows)
    }

    /// Blocks on the busiest multiprocessor, and what is wrong with where they landed.
    fn placement(&self, variant: Variant, held_blocks: u32, late: u32) -> Result<(usize, Option<String>)> {
        let flags = self.new_flags()?;
        let (held, gave_up) =
            self.holder.with_held(&self.layer.stream, held_blocks, || self.run_probe(variant, &flags))?;
        let mut words = [0; FLAGS];
        flags.download(&self.layer.stream, &mut words)?;
        let gave_up = gave_up + words[LATE];
        let blocks = variant.blocks(self.layer.heads());
        let mut landed = vec![0; self.landed.len()];
        self.landed.download(&self.layer.stream, &mut landed)?;
        landed.truncate(blocks);
        let distinct: BTreeSet<_> = held.iter().copied().collect();
        let mut counts = BTreeMap::new();
        landed.iter().for_each(|sm| *counts.entry(*sm).or_insert(0) += 1);
        let invalid = if late + gave_up > 0 {
            Some(format!("{} blocks gave up waiting", late + gave_up))
        } else if distinct.len() != held.len() {
            Some("two holding blocks share a multiprocessor".into())
        } else if landed.iter().any(|sm| distinct.contains(sm)) {
            Some("a block landed on a held multiprocessor".into())
        } else {
            None
        };
        Ok((counts.into_values().max().unwrap_or(0), invalid))
    }
}
