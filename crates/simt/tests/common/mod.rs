//! What the tests share.

#![allow(dead_code)]

use simt::{Fault, FaultKind, Launch, Order};

/// The fixed schedules and a few seeds.
pub const ORDERS: [Order; 8] = [
    Order::Ascending,
    Order::Descending,
    Order::WarpReversed,
    Order::Seeded(0),
    Order::Seeded(1),
    Order::Seeded(2),
    Order::Seeded(0xdead_beef),
    Order::Seeded(u64::MAX),
];

/// All lanes of a warp.
pub const FULL: u32 = u32::MAX;

/// Runs a kernel on `threads` threads in each of three blocks and expects a fault of `kind`.
#[track_caller]
pub fn fault(threads: u32, order: Order, kind: FaultKind, kernel: impl Fn()) -> Fault {
    expect(&Launch::new(3, threads).order(order), kind, kernel)
}

/// Runs a launch and expects a fault of `kind`.
#[track_caller]
pub fn expect(launch: &Launch, kind: FaultKind, kernel: impl Fn()) -> Fault {
    match launch.run(kernel) {
        Ok(stats) => panic!("expected {kind:?}, the kernel ran: {stats:?}"),
        Err(fault) => {
            assert_eq!(fault.kind(), kind, "{fault}");
            assert!(fault.to_string().contains(&format!("{kind:?}")), "{fault}");
            fault
        }
    }
}

/// The fault's text names these lines of `file`, and how to see it again.
#[track_caller]
pub fn names(fault: &Fault, file: &str, lines: &[u32]) {
    let text = fault.to_string();
    for line in lines {
        assert!(text.contains(&format!("{file}:{line}:")), "line {line} isn't named:\n{text}");
    }
    match fault.order() {
        Order::Seeded(seed) => assert!(text.contains(&format!("SIMT_SEED={seed}")), "{text}"),
        order => assert!(text.contains(&format!("{order:?}")), "{text}"),
    }
}
