//! Correct kernels give the same result under every schedule, and a schedule can be had again.

mod common;

use std::cell::RefCell;

use common::{FULL, ORDERS};
use simt::{Dim3, FaultKind, Launch, Order};

/// Inclusive sum over a warp by shuffles up.
fn warp_scan(mut sum: u32) -> u32 {
    let lane = simt::lane_id();
    for distance in [1, 2, 4, 8, 16] {
        let values = simt::warp_exchange("shfl_up", FULL, sum.into());
        if lane >= distance {
            sum += values[lane - distance] as u32;
        }
    }
    sum
}

/// Sum over a block of 128: a scan per warp, the warps' sums in shared memory.
fn block_sum(value: u32) -> u32 {
    let sums = simt::shared_static(4 * 4, 4);
    let warp = simt::thread_idx().x / 32;
    let sum = warp_scan(value);
    if simt::lane_id() == 31 {
        simt::shared_store(sums + 4 * warp, sum);
    }
    simt::barrier();
    let total = (0..4).map(|warp| simt::shared_load::<u32>(sums + 4 * warp)).sum();
    simt::barrier();
    total
}

#[test]
fn a_block_reduction_and_a_warp_scan() {
    const BLOCKS: usize = 5;
    let input: Vec<u32> = (0..BLOCKS as u32 * 128).map(|i| i * i % 1009).collect();
    for order in ORDERS {
        let mut sums = vec![0u32; BLOCKS];
        let mut scans = vec![0u32; input.len()];
        let (from, sums_to, scans_to) = (input.as_ptr(), sums.as_mut_ptr(), scans.as_mut_ptr());
        let stats = Launch::new(BLOCKS as u32, 128)
            .order(order)
            .input("input", &input)
            .output("sums", &mut sums)
            .output("scans", &mut scans)
            .run(|| {
                let block = simt::block_idx().x as usize;
                let thread = simt::thread_idx().x as usize;
                let value = simt::global_load(from.wrapping_add(block * 128 + thread));
                simt::global_store(scans_to.wrapping_add(block * 128 + thread), warp_scan(value));
                let sum = block_sum(value);
                if thread == 0 {
                    simt::global_store(sums_to.wrapping_add(block), sum);
                }
            })
            .unwrap();
        let expected_sums: Vec<u32> = input.chunks(128).map(|block| block.iter().sum()).collect();
        assert_eq!(sums, expected_sums, "{order}");
        for (scan, values) in scans.chunks(32).zip(input.chunks(32)) {
            let expected = values.iter().scan(0, |sum, value| {
                *sum += value;
                Some(*sum)
            });
            assert!(scan.iter().copied().eq(expected), "{order}");
        }
        assert_eq!(stats.blocks, BLOCKS as u64);
        assert_eq!(stats.barriers, 2 * BLOCKS as u64);
        assert_eq!(stats.warp_ops, 2 * 5 * 4 * BLOCKS as u64);
        assert_eq!(stats.shared_bytes, 16);
    }
}

/// The order in which threads come out of an access, over all blocks.
fn trace(order: Order) -> Vec<(u32, u32)> {
    let trace = RefCell::new(Vec::new());
    Launch::new(3, 64)
        .order(order)
        .dynamic_shared(64 * 4)
        .run(|| {
            let thread = simt::thread_idx().x;
            let own = simt::shared_dynamic() + 4 * thread;
            for round in 0..4u32 {
                simt::shared_store(own, round);
                trace.borrow_mut().push((simt::block_idx().x, thread));
            }
            simt::warp_barrier(FULL);
            trace.borrow_mut().push((simt::block_idx().x, thread));
        })
        .unwrap();
    trace.into_inner()
}

#[test]
fn a_replay_is_the_same() {
    for order in ORDERS {
        assert_eq!(trace(order), trace(order), "{order}");
    }
}

#[test]
fn orders_differ() {
    let traces = ORDERS.map(trace);
    for (place, trace) in traces.iter().enumerate() {
        assert!(!traces[..place].contains(trace), "{}", ORDERS[place]);
    }
    assert_eq!(traces[0][0], (0, 0));
    assert_eq!(traces[1][0], (2, 63));
    assert_eq!(traces[2][0], (0, 32));
}

#[test]
fn indices_and_sizes() {
    let seen = RefCell::new(Vec::new());
    let (grid, block) = (Dim3::from((3, 2, 2)), Dim3::from((5, 3, 2)));
    Launch::new(grid, block)
        .run(|| {
            assert_eq!((simt::grid_dim(), simt::block_dim()), (grid, block));
            let (b, t) = (simt::block_idx(), simt::thread_idx());
            assert_eq!(simt::lane_id(), (t.x + 5 * (t.y + 3 * t.z)) % 32);
            seen.borrow_mut().push(((b.z, b.y, b.x), (t.z, t.y, t.x)));
        })
        .unwrap();
    let seen = seen.into_inner();
    assert_eq!(seen.len(), 12 * 30);
    assert!(seen.is_sorted());
    assert_eq!(seen.last(), Some(&((1, 1, 2), (1, 2, 4))));
}

#[test]
fn votes_are_counted() {
    for order in ORDERS {
        Launch::new(3, 96)
            .order(order)
            .run(|| {
                let thread = simt::thread_idx().x;
                for bound in [0, 1, 50, 96] {
                    assert_eq!(simt::barrier_count(thread < bound), bound);
                }
            })
            .unwrap();
    }
}

#[test]
fn parts_of_a_warp_meet_on_their_own() {
    for order in ORDERS {
        Launch::new(3, 64)
            .order(order)
            .run(|| {
                let lane = simt::lane_id();
                let mask = 0xff << (lane & !7);
                for round in 0..(lane / 8 + 1) {
                    let values = simt::warp_exchange("all", mask, u64::from(lane * 100 + round));
                    assert_eq!(values.mask(), mask);
                    assert_eq!(values.get((lane + 8) % 32), None);
                    let expected = (0..8).map(|i| (lane & !7) + i).map(|l| (l, u64::from(l * 100 + round)));
                    assert!(values.iter().eq(expected));
                }
            })
            .unwrap();
    }
}

/// Lane 1 waits for lane 0, which first meets lane 2.
#[test]
fn a_lane_may_come_late() {
    for order in ORDERS {
        let stats = Launch::new(3, 3)
            .order(order)
            .run(|| {
                let lane = simt::lane_id();
                if lane != 1 {
                    simt::warp_barrier(0b101);
                }
                if lane != 2 {
                    simt::warp_barrier(0b011);
                }
            })
            .unwrap();
        assert_eq!(stats.warp_ops, 6);
    }
}

#[test]
fn a_thread_may_spin_on_another_of_its_block() {
    for order in ORDERS {
        Launch::new(3, 64)
            .order(order)
            .run(|| {
                let flag = simt::shared_static(4, 4);
                let thread = simt::thread_idx().x;
                if thread == 0 {
                    simt::shared_store(flag, 0u32);
                }
                simt::barrier();
                // One after another, the last first.
                while simt::shared_atomic(flag, |v: u32| v) != 63 - thread {}
                simt::shared_atomic(flag, |v: u32| v + 1);
            })
            .unwrap();
    }
}

#[test]
fn threads_return_at_different_times() {
    for order in ORDERS {
        Launch::new(3, 96)
            .order(order)
            .run(|| {
                let thread = simt::thread_idx().x;
                simt::barrier();
                if thread >= 64 {
                    return;
                }
                simt::warp_barrier(FULL);
            })
            .unwrap();
    }
}

#[test]
fn launches_run_side_by_side() {
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || assert_eq!(trace(Order::Seeded(seed)), trace(Order::Seeded(seed))));
        }
    });
}

/// Takes part in the run of a test below, in a process of its own, because it reads the environment.
#[test]
fn the_seed_comes_from_the_environment() {
    const CHILD: &str = "SIMT_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let fault = Launch::new(1, 1).run(|| panic!("on purpose")).unwrap_err();
        assert_eq!(fault.order(), Order::Seeded(77));
        let fault = Launch::new(1, 1).order(Order::Descending).run(|| panic!("on purpose")).unwrap_err();
        assert_eq!(fault.order(), Order::Descending);
        return;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_seed_comes_from_the_environment"])
        .env(CHILD, "1")
        .env("SIMT_SEED", "77")
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn the_largest_grid_costs_no_memory() {
    for order in [Order::Ascending, Order::Descending, Order::WarpReversed, Order::Seeded(9)] {
        let largest = Launch::new((i32::MAX as u32, 65_535, 65_535), 1).order(order);
        let fault = largest.run(|| panic!("the first block")).unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Panic, "{fault}");
    }
}
