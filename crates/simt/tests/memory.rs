//! Shared memory, global memory and asynchronous copies: what is right passes, what is wrong is found.

mod common;

use std::cell::RefCell;

use common::{FULL, ORDERS, expect, fault, names};
use simt::{Dim3, Fault, FaultKind, Launch, Order, Stats};

const FILE: &str = "memory.rs";

fn at(x: u32) -> Dim3 {
    Dim3 { x, y: 0, z: 0 }
}

/// Runs a kernel on 64 threads in each of three blocks, with 1 KiB of dynamic shared memory.
fn run(order: Order, kernel: impl Fn()) -> Result<Stats, Fault> {
    Launch::new(3, 64).order(order).dynamic_shared(1024).run(kernel)
}

/// Lets every thread set its word of the dynamic part to its index, and waits for all.
fn fill() -> (u32, u32) {
    let (base, thread) = (simt::shared_dynamic(), simt::thread_idx().x);
    simt::shared_store(base + 4 * thread, thread);
    simt::barrier();
    (base, thread)
}

#[test]
fn a_race_between_two_threads() {
    for order in ORDERS {
        let fault = run(order, || {
            let (base, thread) = fill();
            if thread == 3 {
                simt::shared_store(base, 1u32);
            } else if thread == 60 {
                simt::shared_load::<u32>(base);
            }
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedRace, "{fault}");
        names(&fault, FILE, &[line!() - 7, line!() - 5]);
        assert_eq!(fault.threads().len(), 2);
        assert!(fault.threads().contains(&at(3)) && fault.threads().contains(&at(60)));
    }
}

#[test]
fn a_race_of_two_writes() {
    for order in ORDERS {
        let fault = run(order, || {
            let (base, thread) = fill();
            if thread % 32 == 3 {
                simt::shared_store(base, thread);
            }
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedRace, "{fault}");
        names(&fault, FILE, &[line!() - 5]);
    }
}

#[test]
fn a_missing_second_barrier() {
    for order in ORDERS {
        let fault = run(order, || {
            let (base, thread) = fill();
            for _ in 0..3 {
                let next: u32 = simt::shared_load(base + 4 * ((thread + 1) % 64));
                simt::shared_store(base + 4 * thread, next);
                simt::barrier();
            }
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedRace, "{fault}");
        names(&fault, FILE, &[line!() - 7, line!() - 6]);
    }
}

#[test]
fn a_double_buffer() {
    for order in ORDERS {
        let seen = RefCell::new(vec![]);
        run(order, || {
            let (base, thread) = fill();
            for round in 0..8 {
                let (from, to) = (base + 256 * (round % 2), base + 256 * ((round + 1) % 2));
                let next: u32 = simt::shared_load(from + 4 * ((thread + 1) % 64));
                simt::shared_store(to + 4 * thread, next);
                simt::barrier();
            }
            let own: u32 = simt::shared_load(base + 4 * thread);
            seen.borrow_mut().push((thread, own));
        })
        .unwrap();
        assert_eq!(seen.borrow().len(), 3 * 64);
        assert!(seen.borrow().iter().all(|&(thread, value)| value == (thread + 8) % 64), "{order}");
    }
}

#[test]
fn a_warp_operation_orders_its_lanes() {
    for order in ORDERS {
        run(order, || {
            let (base, thread) = fill();
            let (first, lane) = (base + 4 * (thread & !31), simt::lane_id());
            for round in 1..5 {
                // All read what one lane then writes: the reads before the barrier are done with.
                assert_eq!(simt::shared_load::<u32>(first), (thread & !31) + round - 1);
                simt::warp_barrier(FULL);
                if lane == round {
                    let old: u32 = simt::shared_load(first);
                    simt::shared_store(first, old + 1);
                }
                simt::warp_exchange("any", FULL, 0);
            }
            // A part of the warp orders that part.
            let mask = 0xffff << (lane & 16);
            let half = base + 4 * (thread & !15);
            if lane % 16 == 2 {
                simt::shared_store(half, 0u32);
            }
            simt::warp_barrier(mask);
            assert_eq!(simt::shared_load::<u32>(half), 0);
        })
        .unwrap();
    }
}

#[test]
fn a_warp_operation_orders_no_other_lanes() {
    for order in ORDERS {
        let fault = run(order, || {
            let (base, thread) = fill();
            let lane = simt::lane_id();
            if lane == 2 {
                simt::shared_store(base + 4 * thread, 0u32);
            }
            simt::warp_barrier(0xffff << (lane & 16));
            if lane == 20 {
                simt::shared_load::<u32>(base + 4 * (thread - 18));
            }
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedRace, "{fault}");
        names(&fault, FILE, &[line!() - 9, line!() - 5]);

        // And none of another warp.
        let fault = run(order, || {
            let (base, thread) = fill();
            if thread == 2 {
                simt::shared_store(base, 0u32);
            }
            simt::warp_barrier(FULL);
            if thread == 63 {
                simt::shared_load::<u32>(base);
            }
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedRace, "{fault}");
    }
}

#[test]
fn atomics() {
    for order in ORDERS {
        let fault = run(order, || {
            let (base, _) = fill();
            simt::shared_atomic(base + 256, |value: u32| value + 1);
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedUninitialised, "{fault}");
        run(order, || {
            let (base, thread) = fill();
            simt::shared_atomic(base, |value: u32| value + thread);
            simt::barrier();
            assert_eq!(simt::shared_load::<u32>(base), 63 * 64 / 2);
        })
        .unwrap();
        for plain_write in [false, true] {
            let fault = run(order, || {
                let (base, thread) = fill();
                if thread != 17 {
                    simt::shared_atomic(base, |value: u32| value + 1);
                } else if plain_write {
                    simt::shared_store(base, 0u32);
                } else {
                    simt::shared_load::<u32>(base);
                }
            })
            .unwrap_err();
            assert_eq!(fault.kind(), FaultKind::SharedRace, "{fault}");
            names(&fault, FILE, &[line!() - 9]);
        }
        // A thread's plain write and the atomics of others.
        let fault = run(order, || {
            let (base, thread) = fill();
            if thread == 0 {
                simt::shared_store(base, 0u32);
            }
            simt::shared_atomic(base, |value: u32| value + 1);
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedRace, "{fault}");
    }
}

#[test]
fn halves_and_bytes_of_a_word() {
    for order in ORDERS {
        run(order, || {
            let (base, thread) = (simt::shared_dynamic(), simt::thread_idx().x);
            simt::shared_store(base + 2 * thread, thread as u16);
            simt::shared_store(base + 512 + thread, thread as u8);
            simt::barrier();
            let other = thread ^ 1;
            assert_eq!(simt::shared_load::<u16>(base + 2 * other), other as u16);
            assert_eq!(simt::shared_load::<u8>(base + 512 + other), other as u8);
            let pair: u32 = simt::shared_load(base + 4 * (thread / 2));
            assert_eq!(pair, (thread & !1) | (thread | 1) << 16);
        })
        .unwrap();
        let fault = run(order, || {
            let (base, thread) = (simt::shared_dynamic(), simt::thread_idx().x);
            simt::shared_store(base + 2 * (thread / 2), 0u16);
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedRace, "{fault}");
        // A whole word that overlaps another thread's half.
        let fault = run(order, || {
            let (base, thread) = fill();
            if thread == 1 {
                simt::shared_store(base + 2, 0u16);
            } else if thread == 2 {
                simt::shared_load::<u64>(base & !7);
            }
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedRace, "{fault}");
        // Half of the word isn't written.
        let fault = run(order, || {
            simt::shared_store(simt::shared_dynamic() + 16 * simt::thread_idx().x, 0u16);
            simt::shared_load::<u32>(simt::shared_dynamic() + 16 * simt::thread_idx().x);
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedUninitialised, "{fault}");
    }
}

#[test]
fn reads_of_what_nobody_wrote() {
    for order in ORDERS {
        let fault = run(order, || {
            // The first block run writes it, and no other: what a block before left isn't there.
            let (base, thread) = (simt::shared_dynamic(), simt::thread_idx().x);
            if simt::block_idx().x == 1 {
                simt::shared_store(base + 4 * thread, thread);
            }
            simt::shared_load::<u32>(base + 4 * thread);
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedUninitialised, "{fault}");
        names(&fault, FILE, &[line!() - 4]);
        assert_ne!(fault.block(), at(1));
    }
}

#[test]
fn poison_differs_and_is_no_number() {
    let mut patterns = vec![];
    for order in ORDERS {
        let seen = RefCell::new(vec![]);
        Launch::new(3, 1)
            .order(order)
            .dynamic_shared(64)
            .readable_poison()
            .run(|| {
                let words: [u32; 16] = simt::shared_load(simt::shared_dynamic());
                assert!(words.iter().all(|&word| f32::from_bits(word).is_nan()));
                seen.borrow_mut().push(words);
            })
            .unwrap();
        patterns.append(&mut seen.into_inner());
    }
    let count = patterns.len();
    patterns.sort_unstable();
    patterns.dedup();
    assert_eq!(patterns.len(), count);
}

#[test]
fn arrays_and_their_bounds() {
    let stats = run(Order::Ascending, || {
        let declare = |bytes| simt::shared_static(bytes, 8);
        let (small, large, other) = (declare(24), declare(32), simt::shared_static(10, 2));
        assert!(small != large && large != other && small == declare(24));
        simt::shared_store(large + 8 * (simt::thread_idx().x % 4), 0u64);
        simt::barrier();
    });
    // Sixteen threads store to one place.
    assert_eq!(stats.unwrap_err().kind(), FaultKind::SharedRace);

    let stats = run(Order::Ascending, || {
        simt::shared_static(10, 2);
        simt::shared_static(16, 16);
    });
    assert_eq!(stats.unwrap().shared_bytes, 1024 + 32);

    for order in ORDERS {
        for (offset, fits) in [(0, true), (36, true), (40, false), (-4, false), (200, false)] {
            let result = run(order, || {
                let array = simt::shared_static(40, 4);
                simt::shared_static(40, 8);
                if simt::thread_idx().x == 0 {
                    simt::shared_store(array.wrapping_add_signed(offset), 1u32);
                }
            });
            match result {
                Ok(_) => assert!(fits),
                Err(fault) => {
                    assert!(!fits);
                    assert_eq!(fault.kind(), FaultKind::SharedBounds);
                    assert!(fault.to_string().contains("which has 40"), "{fault}");
                    names(&fault, FILE, &[line!() - 12, line!() - 9]);
                }
            }
        }
        // The end of an array that ends within a word.
        let fault = run(order, || {
            let array = simt::shared_static(6, 4);
            simt::shared_store(array + 4, 1u32);
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::SharedBounds);
        for addr in [0, 0xffff_fff0] {
            fault_at(order, addr);
        }
    }
}

fn fault_at(order: Order, addr: u32) {
    fault(1, order, FaultKind::SharedBounds, || simt::shared_store(addr, [0u32; 4]));
    fault(1, order, FaultKind::SharedBounds, || _ = simt::shared_load::<u32>(addr));
}

#[test]
fn too_many_arrays() {
    let launch = Launch::new(3, 32).dynamic_shared(1024).shared_limit(2047);
    let fault = expect(&launch, FaultKind::SharedLimit, || _ = simt::shared_static(1024, 4));
    names(&fault, FILE, &[line!() - 1]);
}

#[test]
fn misaligned_accesses() {
    let fault = fault(1, Order::Ascending, FaultKind::Alignment, || {
        // Asked for four, so it isn't eight by accident.
        let array = simt::shared_static(64, 4);
        simt::shared_store(array, 0u64);
    });
    names(&fault, FILE, &[line!() - 2]);

    let words = [0u32; 8];
    let ptr = words.as_ptr();
    let odd = usize::from(ptr.addr().is_multiple_of(16));
    let launch = Launch::new(1, 1).input("words", &words);
    expect(&launch, FaultKind::Alignment, || _ = simt::global_load(ptr.wrapping_add(odd).cast::<[u32; 4]>()));
}

#[test]
fn global_bounds() {
    for order in ORDERS {
        let input = [1u32; 16];
        let mut output = [0u32; 16];
        let (from, to) = (input.as_ptr(), output.as_mut_ptr());
        let launch = Launch::new(3, 16).order(order).input("input", &input).output("output", &mut output);
        launch
            .run(|| {
                let thread = simt::thread_idx().x as usize;
                let value = simt::global_load(from.wrapping_add(thread));
                simt::global_atomic(to.wrapping_add(thread), |old| old + value);
            })
            .unwrap();
        // SAFETY: `to` is `output`, which the launch keeps borrowed.
        assert_eq!(unsafe { *to.cast::<[u32; 16]>() }, [3; 16]);

        let fault = expect(&launch, FaultKind::GlobalBounds, || {
            let value = simt::global_load(from.wrapping_add(simt::thread_idx().x as usize));
            simt::global_store(from.cast_mut(), value);
        });
        assert!(fault.to_string().contains("`input`"), "{fault}");
        names(&fault, FILE, &[line!() - 3]);

        let elsewhere = Box::new([0u32; 4]);
        let ptr = elsewhere.as_ptr();
        let fault = expect(&launch, FaultKind::GlobalBounds, || _ = simt::global_load(ptr));
        assert!(fault.to_string().contains("put`"), "{fault}");
    }
    let input = vec![0u8; 40];
    let end = input.as_ptr().wrapping_add(40);
    let launch = Launch::new(3, 16).input("input", &input);
    let fault = expect(&launch, FaultKind::GlobalBounds, || _ = simt::global_load(end));
    assert!(fault.to_string().contains("has 40 bytes, at byte 40"), "{fault}");
}

/// Starts to copy the thread's own 16 bytes.
#[track_caller]
fn copy(from: *const [u32; 4]) -> u32 {
    let thread = simt::thread_idx().x;
    let own = simt::shared_dynamic() + 16 * thread;
    simt::async_copy(own, from.wrapping_add(thread as usize).cast(), 16);
    own
}

fn run_copies(order: Order, kernel: impl Fn(*const [u32; 4])) -> Result<Stats, Fault> {
    let input: Vec<[u32; 4]> = (0..64).map(|thread| [thread; 4]).collect();
    let from = input.as_ptr();
    Launch::new(3, 64).order(order).dynamic_shared(1024).input("input", &input).run(|| kernel(from))
}

#[test]
fn copies_arrive() {
    for order in ORDERS {
        run_copies(order, |from| {
            let own = copy(from);
            simt::async_commit();
            simt::async_wait(0);
            let thread = simt::thread_idx().x;
            assert_eq!(simt::shared_load::<[u32; 4]>(own), [thread; 4]);
            simt::barrier();
            assert_eq!(simt::shared_load::<u32>(simt::shared_dynamic() + 16 * (63 - thread)), 63 - thread);
        })
        .unwrap();
    }
}

#[test]
fn groups_arrive_in_order() {
    let input: Vec<u32> = (0..6).collect();
    let from = input.as_ptr();
    let launch = Launch::new(3, 1).dynamic_shared(64).input("input", &input);
    let base = |slot: u32| simt::shared_dynamic() + 4 * slot;
    launch
        .run(|| {
            for group in 0..3 {
                simt::async_copy(base(2 * group), from.wrapping_add(2 * group as usize).cast(), 4);
                simt::async_copy(base(2 * group + 1), from.wrapping_add(2 * group as usize + 1).cast(), 4);
                simt::async_commit();
            }
            for pending in (0..3).rev() {
                simt::async_wait(pending);
                let group = 2 - pending;
                assert_eq!(simt::shared_load::<u32>(base(2 * group)), 2 * group);
                assert_eq!(simt::shared_load::<u32>(base(2 * group + 1)), 2 * group + 1);
            }
        })
        .unwrap();
    let fault = expect(&launch, FaultKind::AsyncPending, || {
        for group in 0..2 {
            simt::async_copy(base(group), from.cast(), 4);
            simt::async_commit();
        }
        simt::async_wait(1);
        simt::shared_load::<u32>(base(0));
        simt::shared_load::<u32>(base(1));
    });
    names(&fault, FILE, &[line!() - 2, line!() - 7]);
}

#[test]
fn copies_that_were_not_waited_for() {
    for order in ORDERS {
        let fault = run_copies(order, |from| {
            let own = copy(from);
            simt::async_commit();
            simt::shared_load::<u32>(own);
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::AsyncPending, "{fault}");
        assert!(fault.to_string().contains("didn't wait"), "{fault}");
        names(&fault, FILE, &[line!() - 5]);

        let fault = run_copies(order, |from| {
            let own = copy(from);
            simt::async_wait(0);
            simt::shared_store(own, 0u8);
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::AsyncPending, "{fault}");
        assert!(fault.to_string().contains("didn't commit"), "{fault}");

        let fault = run_copies(order, |from| {
            copy(from);
            copy(from);
        })
        .unwrap_err();
        assert_eq!(fault.kind(), FaultKind::AsyncPending, "{fault}");
    }
}

#[test]
fn copies_of_another_thread_need_a_barrier() {
    for order in ORDERS {
        let fault = run_copies(order, |from| {
            let thread = simt::thread_idx().x;
            let own = simt::shared_dynamic() + 16 * thread;
            simt::shared_store(own, [0u32; 4]);
            simt::barrier();
            if thread == 1 {
                copy(from);
                simt::async_commit();
                simt::async_wait(0);
            } else if thread == 40 {
                simt::shared_load::<u32>(simt::shared_dynamic() + 16);
            }
        })
        .unwrap_err();
        // Under some seeds the read meets the copy in flight.
        assert!(matches!(fault.kind(), FaultKind::SharedRace | FaultKind::AsyncPending), "{fault}");
        names(&fault, FILE, &[line!() - 6, line!() - 10]);
        assert!(fault.threads().contains(&at(1)) && fault.threads().contains(&at(40)));
    }
}

#[test]
fn copies_of_bad_shape() {
    let input = [0u32; 64];
    let from: *const u8 = input.as_ptr().cast();
    let launch = Launch::new(3, 1).dynamic_shared(64).input("input", &input);
    let copy = |to: u32, from: *const u8, bytes| simt::async_copy(simt::shared_dynamic() + to, from, bytes);
    expect(&launch, FaultKind::Launch, || copy(0, from, 2));
    expect(&launch, FaultKind::Alignment, || copy(4, from, 8));
    expect(&launch, FaultKind::Alignment, || copy(0, from.wrapping_add(2), 4));
    expect(&launch, FaultKind::SharedBounds, || copy(64, from, 4));
    expect(&launch, FaultKind::GlobalBounds, || copy(0, from.wrapping_add(256), 4));
}
