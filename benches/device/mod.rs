//! The calls of `keyhead bench` under criterion, between CUDA events.

use criterion::{Criterion, Throughput};
use keyhead::Result;
use keyhead::bench::Calls;
use keyhead::cuda::{Device, Kernels};

/// The kernels of CUDA device 0, or none and a line that says why.
pub fn kernels() -> Option<Kernels> {
    let kernels = Device::open(0).and_then(|device| Kernels::load(&device));
    kernels.inspect_err(|why| eprintln!("no device is timed: {why}")).ok()
}

/// Times the calls whose names start with `step`, as `group/cuda` and the rest of the name.
pub fn time(
    criterion: &mut Criterion,
    (group, step): (&str, &str),
    elements: usize,
    mut calls: Calls<'_>,
) -> Result<()> {
    let mut group = criterion.benchmark_group(group);
    group.throughput(Throughput::Elements(elements as u64));
    for (index, name) in calls.names().iter().enumerate() {
        let Some(rest) = name.strip_prefix(step) else { continue };
        group.bench_function(format!("cuda{rest}"), |bencher| {
            bencher.iter_custom(|count| calls.time(index, count).expect("the device works"));
        });
    }
    Ok(())
}
