//! The device library on the SIMT executor: what the collectives, atomics and conversions give.

use cuda_std::prelude::*;
use half::{bf16, f16};
use simt::Launch;
use warp::{FULL, WarpReductionOp};

/// Runs one warp; lane i's result.
fn warp_of(kernel: impl Fn(u32) -> u32) -> Vec<u32> {
    let mut out = vec![0u32; 32];
    let target = GlobalMut::<u32>::from_address(out.as_mut_ptr() as u64);
    Launch::new(1, 32)
        .output("out", &mut out)
        .run(|| {
            let lane = warp::lane_id();
            // SAFETY: a word of its own for each lane.
            unsafe { target.write(lane as usize, kernel(lane)) };
        })
        .unwrap();
    out
}

fn expect(found: Vec<u32>, expected: impl Fn(u32) -> u32) {
    assert_eq!(found, (0..32).map(expected).collect::<Vec<_>>());
}

#[test]
fn shuffles() {
    let value = |lane: u32| 100 + lane;
    expect(warp_of(|lane| warp::warp_shuffle_idx(FULL, value(lane), 5, 32)), |_| value(5));
    expect(warp_of(|lane| warp::warp_shuffle_idx(FULL, value(lane), 5, 8)), |lane| value(lane / 8 * 8 + 5));
    expect(warp_of(|lane| warp::warp_shuffle_xor(FULL, value(lane), 12)), |lane| value(lane ^ 12));
    expect(warp_of(|lane| warp::warp_shuffle_up(FULL, value(lane), 3)), |lane| {
        value(if lane < 3 { lane } else { lane - 3 })
    });
    expect(warp_of(|lane| warp::warp_shuffle_down(FULL, value(lane), 3)), |lane| {
        value(if lane > 28 { lane } else { lane + 3 })
    });
    let negative = warp_of(|lane| warp::warp_shuffle_xor(FULL, -(lane as f32), 1).to_bits());
    expect(negative, |lane| (-((lane ^ 1) as f32)).to_bits());
}

#[test]
fn votes_matches_and_reductions() {
    expect(warp_of(|lane| warp::warp_vote_ballot(FULL, lane % 3 == 0)), |_| 0x4924_9249);
    expect(warp_of(|lane| warp::warp_vote_all(FULL, lane < 32) as u32), |_| 1);
    expect(warp_of(|lane| warp::warp_vote_all(FULL, lane < 31) as u32), |_| 0);
    expect(warp_of(|lane| warp::warp_vote_any(FULL, lane == 31) as u32), |_| 1);
    expect(warp_of(|lane| warp::warp_match_any(FULL, lane % 4)), |lane| 0x1111_1111 << (lane % 4));
    expect(warp_of(|lane| warp::warp_reduce(FULL, lane, WarpReductionOp::Add)), |_| 31 * 16);
    expect(warp_of(|lane| warp::warp_reduce(FULL, lane ^ 9, WarpReductionOp::Min)), |_| 0);
    expect(warp_of(|lane| warp::warp_reduce(FULL, lane, WarpReductionOp::Max)), |_| 31);
    // Half a warp, with a mask of its own.
    let half = warp_of(|lane| {
        let mask = if lane < 16 { 0xffff } else { 0xffff_0000 };
        warp::warp_reduce(mask, lane, WarpReductionOp::Add)
    });
    expect(half, |lane| if lane < 16 { 120 } else { 376 });
}

#[test]
fn atomics_count_every_thread() {
    let mut total = vec![0u32; 2];
    let target = GlobalMut::<u32>::from_address(total.as_mut_ptr() as u64);
    Launch::new(3, 96)
        .output("total", &mut total)
        .run(|| {
            let counter = shared_array![u32; 1];
            // SAFETY: one thread writes before the barrier, all add behind it, all read behind the next.
            unsafe {
                if thread::thread_idx_x() == 0 {
                    counter.write(0, 0);
                }
                thread::sync_threads();
                atomic::shared_fetch_add(counter, 0, 2);
                thread::sync_threads();
                atomic::global_fetch_add(target, 0, counter.read(0));
                atomic::global_fetch_add(target, 1, 1);
            }
        })
        .unwrap();
    assert_eq!(total, [3 * 96 * 192, 3 * 96]);
}

#[test]
fn sixteen_bit_conversions() {
    // All f32 with these 16 bits on top: ties, denormals, overflow and NaN of either type are among them.
    for high in 0..=u16::MAX {
        for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x = f32::from_bits((high as u32) << 16 | low);
            if x.is_nan() {
                assert_eq!((float::f32_to_f16_bits(x), float::f32_to_bf16_bits(x)), (0x7fff, 0x7fff));
            } else {
                assert_eq!(float::f32_to_f16_bits(x), f16::from_f32(x).to_bits(), "{x:e}");
                assert_eq!(float::f32_to_bf16_bits(x), bf16::from_f32(x).to_bits(), "{x:e}");
            }
        }
    }
}
