//! The recurrence on device memory.

use kernels_gpu::params::{Global, GlobalMut, RecurrenceArgs};

use super::{Gdn, check_address};
use crate::cuda::Stream;
use crate::error::Result;
use crate::gdn::{self, Heads, Plan, Request, StateLayout, Variant};

/// Rows `[tokens][heads][128]` of f32 in device memory, tokens `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRows {
    /// Device address of the first head of token 0.
    pub address: u64,
    /// In elements; at least `heads * 128`.
    pub stride: usize,
}

/// A recurrence on device memory. The addresses are device addresses of f32.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRecurrence {
    pub heads: Heads,
    pub tokens: usize,
    /// `[T][HK][128]`, l2-normalised, not scaled.
    pub q: DeviceRows,
    /// `[T][HK][128]`, l2-normalised.
    pub k: DeviceRows,
    /// `[T][HV][128]`.
    pub v: DeviceRows,
    /// `[T][HV]`: the log of the decay.
    pub gate: u64,
    /// `[T][HV]`.
    pub beta: u64,
    /// `HV * 128 * 128` elements, read and written in place.
    pub state: u64,
    pub layout: StateLayout,
    /// `[T][HV][128]`, written.
    pub y: u64,
}

impl DeviceRecurrence {
    fn rows(&self) -> [(&'static str, DeviceRows, usize); 3] {
        let (key, value) = (self.heads.key(), self.heads.value());
        [("q", self.q, key), ("k", self.k, key), ("v", self.v, value)]
    }

    /// Errors: `Argument` (tokens), `Stride`, `Alignment`.
    pub(super) fn check(&self) -> Result<()> {
        gdn::check_tokens(self.tokens)?;
        for (tensor, rows, count) in self.rows() {
            gdn::check_stride(tensor, rows.stride, count)?;
        }
        if self.tokens == 0 {
            return Ok(());
        }
        let rows = self.rows().map(|(tensor, rows, _)| (tensor, rows.address));
        let others = [("gate", self.gate), ("beta", self.beta), ("state", self.state), ("y", self.y)];
        rows.into_iter().chain(others).try_for_each(|(tensor, address)| check_address(tensor, address, 4))
    }

    /// What the plan must know of it.
    pub(super) fn request(&self, variant: Option<Variant>) -> Request {
        let aligned = |rows: DeviceRows| rows.address.is_multiple_of(16) && rows.stride.is_multiple_of(4);
        Request { heads: self.heads, variant, aligned: self.rows().iter().all(|&(_, rows, _)| aligned(rows)) }
    }

    /// The record that every recurrence kernel takes.
    pub(crate) fn args(&self) -> RecurrenceArgs {
        let (head_per_key, head_per_slot) = self.heads.strides();
        let (state_row, state_head) = self.layout.strides(self.heads);
        RecurrenceArgs {
            q: Global::from_address(self.q.address),
            k: Global::from_address(self.k.address),
            v: Global::from_address(self.v.address),
            gate: Global::from_address(self.gate),
            beta: Global::from_address(self.beta),
            state: GlobalMut::from_address(self.state),
            y: GlobalMut::from_address(self.y),
            tokens: self.tokens as u64,
            q_stride: self.q.stride as u64,
            k_stride: self.k.stride as u64,
            v_stride: self.v.stride as u64,
            state_row: state_row as u64,
            state_head: state_head as u64,
            key_heads: self.heads.key() as u32,
            value_heads: self.heads.value() as u32,
            head_per_key: head_per_key as u32,
            head_per_slot: head_per_slot as u32,
        }
    }
}

impl Gdn {
    /// Queues the recurrence on the stream, by the plan's variant or the one asked for, and returns the plan. No tokens: no
    /// launch, the state stays. Nothing is allocated, so the call may be captured into a graph once its plan is known.
    ///
    /// Errors: `Stride`, `Alignment`, `Variant`, or the driver's own. A fault while the kernel runs is reported by a later call
    /// on the stream.
    ///
    /// # Safety
    /// The addresses are of live device memory of the sizes that [`DeviceRecurrence`] states, on this device; state and y
    /// overlap nothing; and nobody else touches state and y until the kernel has run.
    pub unsafe fn recurrence(
        &self,
        stream: &Stream,
        call: &DeviceRecurrence,
        variant: Option<Variant>,
    ) -> Result<Plan> {
        call.check()?;
        let plan = self.plan(&call.request(variant))?;
        if call.tokens > 0 {
            // SAFETY: the caller's promise.
            unsafe { self.launch_recurrence(stream, call, plan.variant)? };
        }
        Ok(plan)
    }

    /// # Safety
    /// As [`recurrence`](Self::recurrence); the call is checked and has tokens, and the variant can run it.
    pub(super) unsafe fn launch_recurrence(
        &self,
        stream: &Stream,
        call: &DeviceRecurrence,
        variant: Variant,
    ) -> Result<()> {
        let grid = [variant.blocks(call.heads) as u32, 1, 1];
        let kernel = self.kernel(&variant.entry(call.heads))?;
        // SAFETY: the record is the entry's; the caller's promise about the memory.
        unsafe { kernel.launch_with(stream, grid, variant.block(), 0, &call.args()) }
    }
}
