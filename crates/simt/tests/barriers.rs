//! Faults of barriers, warp operations, panics and launches.

#![allow(clippy::if_same_then_else, reason = "the same call at two lines is what is tested")]

mod common;

use std::cell::Cell;

use common::{FULL, ORDERS, expect, fault, names};
use simt::{Dim3, FaultKind, Launch};

const FILE: &str = "barriers.rs";

fn at(x: u32) -> Dim3 {
    Dim3 { x, y: 0, z: 0 }
}

#[test]
fn threads_at_different_barriers() {
    for order in ORDERS {
        let fault = fault(64, order, FaultKind::BarrierDivergence, || {
            if simt::thread_idx().x == 40 {
                simt::barrier();
            } else {
                simt::barrier();
            }
        });
        names(&fault, FILE, &[line!() - 5, line!() - 3]);
        assert!(fault.threads().contains(&at(40)), "{fault}");
    }
}

#[test]
fn a_barrier_and_a_counting_barrier() {
    for order in ORDERS {
        let fault = fault(64, order, FaultKind::BarrierDivergence, || {
            if simt::thread_idx().x < 32 {
                simt::barrier();
            } else {
                simt::barrier_count(true);
            }
        });
        names(&fault, FILE, &[line!() - 5, line!() - 3]);
    }
}

#[test]
fn a_thread_returned_before_a_barrier() {
    for order in ORDERS {
        let fault = fault(64, order, FaultKind::BarrierDivergence, || {
            simt::barrier();
            if simt::thread_idx().x != 7 {
                simt::barrier();
            }
        });
        names(&fault, FILE, &[line!() - 3, line!() - 5]);
        assert!(fault.threads().contains(&at(7)), "{fault}");
    }
}

#[test]
fn a_lane_outside_its_mask() {
    for order in ORDERS {
        let fault = fault(32, order, FaultKind::WarpMask, || simt::warp_barrier(0xffff));
        names(&fault, FILE, &[line!() - 1]);
    }
}

#[test]
fn a_mask_beyond_the_block() {
    for order in ORDERS {
        fault(48, order, FaultKind::WarpMask, || simt::warp_barrier(FULL));
    }
}

#[test]
fn masks_that_differ() {
    for order in ORDERS {
        let fault = fault(32, order, FaultKind::WarpMask, || {
            if simt::lane_id().is_multiple_of(2) {
                simt::warp_exchange("ballot", FULL, 0);
            } else {
                simt::warp_exchange("ballot", FULL ^ 1, 0);
            }
        });
        names(&fault, FILE, &[line!() - 5, line!() - 3]);
    }
}

#[test]
fn lanes_in_different_operations() {
    for order in ORDERS {
        let fault = fault(32, order, FaultKind::WarpDivergence, || {
            if simt::lane_id().is_multiple_of(2) {
                simt::warp_exchange("shfl", FULL, 1);
            } else {
                simt::warp_exchange("shfl", FULL, 2);
            }
        });
        names(&fault, FILE, &[line!() - 5, line!() - 3]);
    }
}

#[test]
fn different_operations_at_one_site() {
    for order in ORDERS {
        let fault = fault(32, order, FaultKind::WarpDivergence, || {
            let op = if simt::lane_id() < 16 { "any" } else { "all" };
            simt::warp_exchange(op, FULL, 0);
        });
        assert!(fault.to_string().contains("any") && fault.to_string().contains("all"), "{fault}");
    }
}

#[test]
fn a_lane_that_returned() {
    for order in ORDERS {
        let fault = fault(64, order, FaultKind::WarpDivergence, || {
            simt::barrier();
            if simt::lane_id() != 5 {
                simt::warp_barrier(FULL);
            }
        });
        names(&fault, FILE, &[line!() - 3, line!() - 5]);
    }
}

#[test]
fn lanes_that_wait_in_a_circle() {
    for order in ORDERS {
        let fault = fault(3, order, FaultKind::WarpMask, || match simt::lane_id() {
            0 => simt::warp_barrier(0b011),
            1 => simt::warp_barrier(0b110),
            _ => simt::warp_barrier(0b101),
        });
        assert_eq!(fault.threads().len(), 2);
    }
}

#[test]
fn a_block_barrier_and_a_warp_operation() {
    for order in ORDERS {
        let fault = fault(64, order, FaultKind::Deadlock, || {
            if simt::thread_idx().x != 33 {
                simt::warp_barrier(FULL);
            }
            simt::barrier();
        });
        names(&fault, FILE, &[line!() - 4, line!() - 2]);
    }
}

#[test]
fn spinning_on_another_block() {
    let mut flag = [0u32];
    let ptr = flag.as_mut_ptr();
    let launch = Launch::new(2, 1).output("flag", &mut flag);
    let fault = expect(&launch, FaultKind::Deadlock, || while simt::global_load(ptr) == 0 {});
    names(&fault, FILE, &[line!() - 1]);
}

#[test]
fn a_panic_is_a_fault_and_the_rest_is_unwound() {
    struct Counted<'a>(&'a Cell<i32>);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
            // Must neither wait nor fault while the kernel is taken down.
            simt::barrier();
            simt::shared_load::<u32>(0);
            simt::shared_atomic(0, |value: u32| value);
            simt::warp_exchange("any", 0, 0);
        }
    }
    for order in ORDERS {
        let alive = Cell::new(0);
        let fault = fault(96, order, FaultKind::Panic, || {
            alive.set(alive.get() + 1);
            let _counted = Counted(&alive);
            simt::warp_barrier(FULL);
            if simt::block_idx().x == 1 && simt::thread_idx().x == 50 {
                panic!("thread {} gives up", 50);
            }
            simt::barrier();
            std::mem::forget(_counted);
            alive.set(alive.get() - 1);
        });
        assert_eq!(alive.get(), 0, "{order}");
        assert_eq!((fault.block(), fault.threads()), (at(1), &[at(50)][..]));
        assert!(fault.to_string().contains("thread 50 gives up"), "{fault}");
        names(&fault, FILE, &[line!() - 9]);
    }
    // The stacks can be used again.
    Launch::new(3, 96).run(simt::barrier).unwrap();
}

#[test]
fn launches_that_no_device_accepts() {
    expect(&Launch::new(1, 1025), FaultKind::Launch, || ());
    expect(&Launch::new(0, 32), FaultKind::Launch, || ());
    expect(&Launch::new((1, 65536), 32), FaultKind::Launch, || ());
    expect(&Launch::new(1, 32).dynamic_shared(100 * 1024), FaultKind::SharedLimit, || ());
    Launch::new(1, 1024).shared_limit(227 * 1024).dynamic_shared(227 * 1024).run(|| ()).unwrap();
}

#[test]
#[should_panic(expected = "outside of a launch")]
fn outside_of_a_launch() {
    simt::barrier();
}

#[test]
fn a_launch_in_a_kernel() {
    let fault = fault(1, ORDERS[0], FaultKind::Panic, || {
        let _ = Launch::new(1, 1).run(|| ());
    });
    assert!(fault.to_string().contains("was called inside a kernel"), "{fault}");
}

#[test]
fn panics_elsewhere_keep_their_hook() {
    fault(1, ORDERS[0], FaultKind::Panic, || panic!("in a kernel"));
    let result = std::panic::catch_unwind(|| panic!("outside"));
    assert_eq!(result.unwrap_err().downcast_ref(), Some(&"outside"));
    Launch::new(1, 1).run(|| ()).unwrap();
}
