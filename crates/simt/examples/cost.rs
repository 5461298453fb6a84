//! Measures what the executor costs: `cargo run --release -p simt --example cost`.

use std::time::Instant;

use simt::{Launch, Order};

const BLOCKS: u32 = 200;
const ROUNDS: u32 = 100;

fn main() {
    for order in [Order::Ascending, Order::Seeded(1)] {
        for threads in [32, 256, 1024] {
            cost("empty kernel, per thread", order, threads, 1, |_| ());
            cost("block barrier, per thread", order, threads, ROUNDS, |_| {
                for _ in 0..ROUNDS {
                    simt::barrier();
                }
            });
            cost("warp barrier, per thread", order, threads, ROUNDS, |_| {
                for _ in 0..ROUNDS {
                    simt::warp_barrier(u32::MAX);
                }
            });
            cost("warp exchange, per thread", order, threads, ROUNDS, |_| {
                for _ in 0..ROUNDS {
                    std::hint::black_box(simt::warp_exchange("any", u32::MAX, 0));
                }
            });
            cost("shared store and load, each", order, threads, 2 * ROUNDS, |own| {
                for round in 0..ROUNDS {
                    simt::shared_store(own, round);
                    std::hint::black_box(simt::shared_load::<u32>(own));
                }
            });
            cost("shared store and load of 16 bytes, each", order, threads, 2 * ROUNDS, |own| {
                for round in 0..ROUNDS {
                    simt::shared_store(own, [round; 4]);
                    std::hint::black_box(simt::shared_load::<[u32; 4]>(own));
                }
            });
            cost("shared load that all share", order, threads, ROUNDS, |own| {
                let first = simt::shared_dynamic();
                if own == first {
                    simt::shared_store(first, 0u32);
                }
                simt::barrier();
                for _ in 0..ROUNDS {
                    std::hint::black_box(simt::shared_load::<u32>(first));
                }
            });
        }
    }
}

/// Prints the time of one operation of a kernel that does `operations` in each thread. The kernel gets the
/// address of 16 shared bytes of its own.
fn cost(name: &str, order: Order, threads: u32, operations: u32, kernel: impl Fn(u32)) {
    let launch = Launch::new(BLOCKS, threads).order(order).dynamic_shared(16 * threads as usize);
    let kernel = || kernel(simt::shared_dynamic() + 16 * simt::thread_idx().x);
    launch.run(kernel).unwrap();
    let start = Instant::now();
    let stats = launch.run(kernel).unwrap();
    let nanoseconds = start.elapsed().as_nanos() as f64;
    let count = f64::from(BLOCKS) * f64::from(threads) * f64::from(operations);
    let (each, switch) = (nanoseconds / count, nanoseconds / stats.switches as f64);
    println!("{order:<12} {threads:>5} threads  {name:<42} {each:>7.1} ns  ({switch:.1} ns per switch)");
}
