//! Clusters: blocks that run together and write each other's shared memory.

mod common;

use common::ORDERS;
use simt::{Fault, FaultKind, Launch, Order, Stats};

const BLOCKS: u32 = 4;
const THREADS: u32 = 64;

/// Two clusters of four blocks.
fn run(order: Order, out: &mut [u32], kernel: impl Fn(*mut u32)) -> Result<Stats, Fault> {
    let target = out.as_mut_ptr();
    Launch::new(2 * BLOCKS, THREADS).cluster(BLOCKS).order(order).output("out", out).run(|| kernel(target))
}

/// Every block writes a word for each of its threads into every block, and reads its own.
fn exchange(first: bool, second: bool, out: *mut u32) {
    let (rank, thread) = (simt::cluster_rank(), simt::thread_idx().x);
    let words = simt::shared_static(4 * BLOCKS * THREADS, 4);
    if first {
        simt::cluster_barrier();
    }
    for to in 0..BLOCKS {
        simt::cluster_store(to, words + 4 * (rank * THREADS + thread), 100 * rank + thread);
    }
    if second {
        simt::cluster_barrier();
    } else {
        simt::barrier();
    }
    let sum =
        (0..BLOCKS).map(|from| simt::shared_load::<u32>(words + 4 * (from * THREADS + thread))).sum::<u32>();
    simt::global_store(out.wrapping_add((simt::block_idx().x * THREADS + thread) as usize), sum);
}

#[test]
fn blocks_see_what_others_wrote_before_the_barrier() {
    for order in ORDERS {
        let mut out = vec![0; (2 * BLOCKS * THREADS) as usize];
        let stats = run(order, &mut out, |out| exchange(true, true, out)).unwrap();
        assert_eq!(stats.blocks, 8);
        let expected = |index: usize| 600 + 4 * (index as u32 % THREADS);
        assert!(out.iter().enumerate().all(|(index, &sum)| sum == expected(index)), "{order}");
    }
}

#[test]
fn reading_without_the_cluster_barrier_is_a_race() {
    for order in ORDERS {
        let mut out = vec![0; (2 * BLOCKS * THREADS) as usize];
        let fault = run(order, &mut out, |out| exchange(true, false, out)).unwrap_err();
        assert!(
            matches!(fault.kind(), FaultKind::SharedRace | FaultKind::SharedUninitialised),
            "{order}: {fault}"
        );
    }
}

#[test]
fn writing_to_a_block_that_has_not_begun_is_caught() {
    for order in ORDERS {
        let mut out = vec![0; (2 * BLOCKS * THREADS) as usize];
        let fault = run(order, &mut out, |out| exchange(false, true, out)).unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedBounds, "{order}: {fault}");
    }
}

#[test]
fn writing_past_the_array_is_caught() {
    let fault = run(Order::Ascending, &mut [], |_| {
        let words = simt::shared_static(16, 4);
        simt::cluster_barrier();
        simt::cluster_store(1, words + 16, 0u32);
    })
    .unwrap_err();
    assert_eq!(fault.kind(), FaultKind::SharedBounds, "{fault}");
}

#[test]
fn writing_to_a_block_that_returned_is_caught() {
    let fault = run(Order::Ascending, &mut [], |_| {
        let words = simt::shared_static(16, 4);
        simt::cluster_barrier();
        if simt::cluster_rank() == 3 {
            simt::cluster_store(0, words, simt::thread_idx().x);
        }
    })
    .unwrap_err();
    assert_eq!(fault.kind(), FaultKind::SharedBounds, "{fault}");
}

#[test]
fn a_thread_that_never_comes_to_the_barrier_is_a_deadlock() {
    for order in ORDERS {
        let fault = run(order, &mut [], |_| {
            if simt::cluster_rank() != 2 || simt::thread_idx().x != 5 {
                simt::cluster_barrier();
            }
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Deadlock, "{order}: {fault}");
    }
}

#[test]
fn a_grid_that_is_no_multiple_of_the_cluster_is_refused() {
    for (grid, cluster) in [(6, 4), (6, 3), (16, 16)] {
        let fault = Launch::new(grid, 32).cluster(cluster).run(|| ()).unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Launch, "{fault}");
    }
    let fault = Launch::new(4, 32).run(simt::cluster_barrier).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Launch, "{fault}");
}
