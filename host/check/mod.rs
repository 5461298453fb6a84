//! `keyhead check`: every kernel that can run here against the CPU backend, bit for bit.
//!
//! On a CUDA device each kernel runs there, on buffers with guard words behind them. Without one each kernel's source runs on
//! the SIMT executor, under several thread orders, on small shapes, and every instruction set of the CPU.

mod data;
mod device;
pub(crate) mod device_layer;
mod host;
mod host_layer;
mod layer;
pub mod simt;
pub mod topk;
mod topk_device;
mod topk_extremes;
mod topk_host;

pub use data::{Data, Output, Shape};
pub use layer::{LayerData, LayerOutput, LayerShape, Numbers, Prepared};

use crate::backend::Backend;
use std::fmt::LowerExp;

/// How a check ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub passed: usize,
    pub failed: usize,
}

/// Collects the outcomes of the cases.
struct Report<'a> {
    summary: Summary,
    only: &'a str,
    progress: &'a mut dyn FnMut(&str, Result<(), String>),
}

impl Report<'_> {
    /// Runs a case, if it is wanted.
    fn case(&mut self, name: &str, run: impl FnOnce() -> Result<(), String>) {
        if !name.contains(self.only) {
            return;
        }
        let outcome = run();
        match outcome {
            Ok(()) => self.summary.passed += 1,
            Err(_) => self.summary.failed += 1,
        }
        (self.progress)(name, outcome);
    }
}

/// Runs the cases whose names contain `only`; `progress` is told each one's name and outcome.
pub fn run(backend: &Backend, only: &str, progress: &mut dyn FnMut(&str, Result<(), String>)) -> Summary {
    let mut report = Report { summary: Summary::default(), only, progress };
    match backend.gdn() {
        Some(gdn) => {
            device::run(gdn, backend, &mut report);
            topk_device::run(gdn.kernels(), &mut report);
        }
        None => {
            host::run(&mut report);
            host_layer::run(&mut report);
            topk_host::cpu_cases(&mut report);
            topk_host::simt_cases(&mut report);
        }
    }
    topk_host::backend_cases(backend, &mut report);
    report.summary
}

/// Where two runs differ first, if they do. NaNs count as equal only with equal bits.
pub fn same_bits<T: bytemuck::Pod + LowerExp>(what: &str, found: &[T], expected: &[T]) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{what}: {} elements, expected {}", found.len(), expected.len()));
    }
    let differs = |(found, expected): (&T, &T)| bytemuck::bytes_of(found) != bytemuck::bytes_of(expected);
    let Some(index) = found.iter().zip(expected).position(differs) else { return Ok(()) };
    let count = found.iter().zip(expected).filter(|&pair| differs(pair)).count();
    let show = |word: &T| format!("{word:e} ({:02x?})", bytemuck::bytes_of(word));
    Err(format!(
        "{what}[{index}] is {}, expected {}; {count} of {} elements differ",
        show(&found[index]),
        show(&expected[index]),
        found.len()
    ))
}
