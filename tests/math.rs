//! `kernels_gpu::math` against f64, and its exact bits.

use kernels_gpu::math::*;

/// The f64 functions that stand for the true values.
fn sigmoid64(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
fn softplus64(x: f64) -> f64 {
    if x > 40.0 { x } else { x.exp().ln_1p() }
}

/// `sigmoid` and `silu` meet their bounds from here up; below, exp(-x) overflows, as their formulas have it.
const SIGMOID_LOW: f32 = -88.72283;

/// Error bounds in ulp. Measured over every f32 (see the `#[ignore]`d test), rounded up;
/// exp and log1p must not exceed 1.
const EXP_ULP: f64 = 0.892;
const LOG1P_ULP: f64 = 0.923;
const SIGMOID_ULP: f64 = 2.481;
const SILU_ULP: f64 = 2.394;
const SOFTPLUS_ULP: f64 = 1.568;

/// |got - want| in units of the last place of `want` as an f32.
fn error(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if want.is_nan() || got.is_nan() {
        return if want.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if got.is_infinite() || rounded.is_infinite() {
        return if got == rounded { 0.0 } else { f64::INFINITY };
    }
    let exponent = (rounded.to_bits() >> 23 & 255).max(1) as u64;
    // 2^(exponent - 150), from its bits: this runs for every f32.
    (got as f64 - want).abs() / f64::from_bits((exponent + 873) << 52)
}

/// The largest error of each function, and where it is.
#[derive(Clone, Copy, Default, Debug)]
struct Worst([(f64, f32); 5]);

impl Worst {
    #[inline(always)]
    fn note(&mut self, function: usize, x: f32, got: f32, want: f64) {
        let error = error(got, want);
        if error > self.0[function].0 {
            self.0[function] = (error, x);
        }
    }

    // Inlined, so that it gets the target features of its caller.
    #[inline(always)]
    fn check(&mut self, x: f32) {
        let wide = x as f64;
        let (e, l) = (exp(x), log1p(x));
        self.note(0, x, e, wide.exp());
        self.note(1, x, l, wide.ln_1p());
        let (sg, sl, sp) = (sigmoid(x), silu(x), softplus(x));
        if x < SIGMOID_LOW {
            let zero = sl == 0.0 || x == f32::NEG_INFINITY;
            assert!(sg == 0.0 && zero, "sigmoid, silu of {x:e}: {sg:e}, {sl:e}");
        } else {
            self.note(2, x, sg, sigmoid64(wide));
            self.note(3, x, sl, wide * sigmoid64(wide));
        }
        self.note(4, x, sp, softplus64(wide));
        // The formulas, bit for bit: these functions take shortcuts.
        let denominator = 1.0 + exp(-x);
        same(sg, 1.0 / denominator, x);
        same(sl, x / denominator, x);
        same(sp, if x > 20.0 { x } else { log1p(exp(x)) }, x);
    }

    fn merge(&mut self, other: Worst) {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            if b.0 > a.0 {
                *a = b;
            }
        }
    }

    fn assert(&self) {
        let bounds = [EXP_ULP, LOG1P_ULP, SIGMOID_ULP, SILU_ULP, SOFTPLUS_ULP];
        for ((name, bound), (error, x)) in NAMES.iter().zip(bounds).zip(self.0) {
            println!("{name}: {error:.5} ulp at {x:e} ({:#010X})", x.to_bits());
            assert!(error <= bound, "{name}: {error} ulp at {x:e} ({:#010X}), not {bound}", x.to_bits());
        }
    }
}

const NAMES: [&str; 5] = ["exp", "log1p", "sigmoid", "silu", "softplus"];

fn same(a: f32, b: f32, x: f32) {
    assert!(canonical(a).to_bits() == canonical(b).to_bits(), "at {x:e}: {a:e} != {b:e}");
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }
}

#[test]
fn error_in_every_binade() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut worst = Worst::default();
    // Field 0 is the denormals, 255 infinity and NaN.
    for exponent in 0..=255u32 {
        for sign in [0, 1 << 31] {
            let ends = [0, 1, 2, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x7F_FFFE, 0x7F_FFFF];
            let drawn: Vec<u32> = (0..88).map(|_| random.next() & 0x7F_FFFF).collect();
            for mantissa in ends.iter().chain(&drawn) {
                worst.check(f32::from_bits(sign | exponent << 23 | mantissa));
            }
        }
    }
    // Where the results are neither constant nor the argument.
    for _ in 0..200_000 {
        let unit = random.next() as f32 / 4_294_967_296.0;
        for (low, high) in [(-104.0, 89.0), (-1.0, 1.0), (-20.0, 21.0)] {
            worst.check(low + (high - low) * unit);
        }
    }
    worst.assert();
}

#[test]
#[ignore = "every f32: minutes, in release"]
fn error_of_every_f32() {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let next = std::sync::atomic::AtomicU64::new(0);
    let mut worst = Worst::default();
    std::thread::scope(|scope| {
        let work = || {
            let mut worst = Worst::default();
            loop {
                let block = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if block >= 1 << 12 {
                    return worst;
                }
                check_block((block << 20) as u32, &mut worst);
            }
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in running {
            worst.merge(thread.join().unwrap());
        }
    });
    worst.assert();
}

fn check_block(first: u32, worst: &mut Worst) {
    #[cfg(target_arch = "x86_64")]
    {
        // One fma instruction rather than a call.
        #[target_feature(enable = "avx2,fma")]
        fn with_fma(first: u32, worst: &mut Worst) {
            for i in 0..1 << 20 {
                worst.check(f32::from_bits(first + i));
            }
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return unsafe { with_fma(first, worst) };
        }
    }
    for i in 0..1 << 20 {
        worst.check(f32::from_bits(first + i));
    }
}

fn bits(got: f32, want: u32, what: &str) {
    assert!(got.to_bits() == want, "{what}: {:#010X} ({got:e}), not {want:#010X}", got.to_bits());
}

const INF: u32 = 0x7F80_0000;
const NEG_ZERO: u32 = 0x8000_0000;
const ONE: u32 = 0x3F80_0000;
/// Quiet and signalling, both signs, and the one that GPUs make.
const NANS: [u32; 6] = [0x7FC0_0000, 0xFFC0_0000, 0x7F80_0001, 0xFF80_0001, 0x7FFF_FFFF, 0xFFFF_FFFF];

#[test]
fn special_values() {
    for nan in NANS {
        let x = f32::from_bits(nan);
        for (name, y) in NAMES.iter().zip([exp(x), log1p(x), sigmoid(x), silu(x), softplus(x)]) {
            assert!(y.is_nan(), "{name} of the NaN {nan:#010X} is {y:e}");
            bits(canonical(y), 0x7FFF_FFFF, name);
        }
        bits(canonical(x), 0x7FFF_FFFF, "canonical");
    }
    for x in [0, NEG_ZERO, 1, ONE, INF, INF | NEG_ZERO, 0x7F7F_FFFF] {
        bits(canonical(f32::from_bits(x)), x, "canonical");
    }
    let (inf, tiny, huge) = (f32::INFINITY, f32::from_bits(1), f32::MAX);

    for x in [0.0, -0.0, tiny, -tiny, 1e-8, -1e-9] {
        bits(exp(x), ONE, "exp near 0");
    }
    bits(exp(inf), INF, "exp(inf)");
    bits(exp(huge), INF, "exp(max)");
    bits(exp(-inf), 0, "exp(-inf)");
    bits(exp(-huge), 0, "exp(-max)");

    for x in [0.0, -0.0, tiny, -tiny, f32::MIN_POSITIVE, -f32::MIN_POSITIVE, 1e-20, -1e-20, 2e-8, -2e-8] {
        bits(log1p(x), x.to_bits(), "log1p of a tiny number");
    }
    bits(log1p(inf), INF, "log1p(inf)");
    bits(log1p(-1.0), INF | NEG_ZERO, "log1p(-1)");
    for x in [-2.0, -huge, -inf] {
        bits(log1p(x), 0x7FFF_FFFF, "log1p below -1");
    }
    bits(log1p((-1.0f32).next_down()), 0x7FFF_FFFF, "log1p just below -1");
    assert!(log1p((-1.0f32).next_up()).is_finite() && log1p(huge).is_finite());

    for (x, y) in [
        (0.0, 0x3F00_0000),
        (-0.0, 0x3F00_0000),
        (inf, ONE),
        (huge, ONE),
        (-inf, 0),
        (-huge, 0),
        (tiny, 0x3F00_0000),
    ] {
        bits(sigmoid(x), y, "sigmoid");
    }
    for (x, y) in
        [(0.0, 0), (-0.0, NEG_ZERO), (inf, INF), (huge, 0x7F7F_FFFF), (-huge, NEG_ZERO), (30.0, 0x41F0_0000)]
    {
        bits(silu(x), y, "silu");
    }
    // inf / inf, as the formula has it.
    assert!(silu(-inf).is_nan());
    for (x, y) in [(-inf, 0), (-huge, 0), (-104.0, 0), (inf, INF), (huge, 0x7F7F_FFFF)] {
        bits(softplus(x), y, "softplus");
    }

    bits(sqrt(2.0), 0x3FB5_04F3, "sqrt");
    bits(sqrt(-0.0), NEG_ZERO, "sqrt");
    bits(sqrt(tiny), 0x1A35_04F3, "sqrt of a denormal");
    assert!(sqrt(-1.0).is_nan());
    bits(1.0 / sqrt(128.0), RSQRT_128.to_bits(), "1 / sqrt(128)");
    // 2^-24 below 1: lost if the product is rounded first.
    let almost = 1.0 - f32::EPSILON / 2.0;
    bits(fma(almost, 1.0 + f32::EPSILON, -1.0), 0x337F_FFFE, "fma");
    bits(sum4([1.0, f32::EPSILON / 2.0, f32::EPSILON / 2.0, -1.0]), 0, "sum4");
    bits(sum4([f32::EPSILON / 2.0, f32::EPSILON / 2.0, 1.0, -1.0]), f32::EPSILON.to_bits(), "sum4");
}

#[test]
fn overflow_and_underflow_borders() {
    // The last finite result, and infinity from the next f32 up.
    let last = f32::from_bits(0x42B1_7217);
    assert!(exp(last).is_finite());
    bits(exp(last.next_up()), INF, "exp just above 88.72283");
    // The first argument with a denormal result.
    let first = f32::from_bits(0xC2AE_AC50);
    assert!(exp(first.next_up()) >= f32::MIN_POSITIVE && exp(first) < f32::MIN_POSITIVE && exp(first) > 0.0);
    // The last argument with a result above 0: half the least denormal is exp(-103.97208).
    let zero = f32::from_bits(0xC2CF_F1B5);
    bits(exp(zero.next_up()), 1, "exp just above -103.97208");
    bits(exp(zero), 0, "exp(-103.97208)");
    // Each within 2000 f32 of its border, against f64.
    let mut worst = Worst::default();
    for border in [last, first, zero, -104.0, 89.0, 80.0, -80.0, SIGMOID_LOW, -0.5, 0.5, -0.25, 2.0, 20.0] {
        for i in 0..4000 {
            worst.check(f32::from_bits(border.to_bits() - 2000 + i));
        }
    }
    worst.assert();
    // sigmoid and silu: the last argument before exp(-x) overflows.
    assert!(sigmoid(-last) > 0.0 && silu(-last) < 0.0);
    bits(sigmoid(-last.next_up()), 0, "sigmoid just below -88.72283");
    bits(silu(-last.next_up()), NEG_ZERO, "silu just below -88.72283");
}

#[test]
fn softplus_at_its_border() {
    let x = 20.0f32;
    bits(softplus(x), x.to_bits(), "softplus(20)");
    bits(softplus(x), log1p(exp(x)).to_bits(), "softplus(20)");
    bits(softplus(x.next_up()), x.next_up().to_bits(), "softplus just above 20");
    bits(softplus(x.next_down()), log1p(exp(x.next_down())).to_bits(), "softplus just below 20");
}

/// 300 f32 on either side of every change of j in exp, and of the exponent in log1p.
#[test]
fn monotonic_across_reductions() {
    let walk = |centre: f32, f: fn(f32) -> f32, what: &str| {
        let mut x = centre;
        for _ in 0..300 {
            x = x.next_down();
        }
        for _ in 0..600 {
            let up = x.next_up();
            assert!(f(up) >= f(x), "{what} falls from {x:e} to {up:e}");
            x = up;
        }
    };
    for j in -150..=128 {
        let border = ((j as f64 + 0.5) * std::f64::consts::LN_2) as f32;
        walk(border, exp, "exp");
        walk(border, sigmoid, "sigmoid");
        walk(border, softplus, "softplus");
        walk((j as f64 * std::f64::consts::LN_2) as f32, exp, "exp");
    }
    for e in -23..=127 {
        for border in [0.75, 1.0, 1.5] {
            let x = (border * 2f64.powi(e) - 1.0) as f32;
            if x > -0.99 {
                walk(x, log1p, "log1p");
            }
        }
    }
}

/// Any port of these functions must give these bits.
#[test]
fn pinned_bits() {
    for (x, want) in PINNED {
        let x = f32::from_bits(x);
        for (i, y) in [exp(x), log1p(x), sigmoid(x), silu(x), softplus(x)].into_iter().enumerate() {
            bits(canonical(y), want[i], &format!("{} of {x:e}", NAMES[i]));
        }
    }
}

/// The argument, then exp, log1p, sigmoid, silu and softplus of it.
#[rustfmt::skip]
const PINNED: [(u32, [u32; 5]); 37] = [
    (0x0000_0000, [0x3F80_0000, 0x0000_0000, 0x3F00_0000, 0x0000_0000, 0x3F31_7218]), // 0
    (0x3F80_0000, [0x402D_F854, 0x3F31_7218, 0x3F3B_26A8, 0x3F3B_26A8, 0x3FA8_18F5]), // 1
    (0xBF80_0000, [0x3EBC_5AB2, 0xFF80_0000, 0x3E89_B2B1, 0xBE89_B2B1, 0x3EA0_63D6]), // -1
    (0x3F00_0000, [0x3FD3_094C, 0x3ECF_991F, 0x3F1F_597F, 0x3E9F_597F, 0x3F79_5D1C]), // 0.5
    (0xBF00_0000, [0x3F1B_4598, 0xBF31_7218, 0x3EC1_4D03, 0xBE41_4D03, 0x3EF2_BA38]), // -0.5
    (0x3EFF_FFFF, [0x3FD3_094C, 0x3ECF_991F, 0x3F1F_597F, 0x3E9F_597E, 0x3F79_5D1C]), // 0.49999997
    (0xBE80_0000, [0x3F47_5F7D, 0xBE93_4B11, 0x3EE0_2A67, 0xBDE0_2A67, 0x3F13_70C4]), // -0.25
    (0x3DCC_CCCD, [0x3F8D_763E, 0x3DC3_31FC, 0x3F06_6509, 0x3D57_080F, 0x3F3E_90C8]), // 0.1
    (0xBDCC_CCCD, [0x3F67_A36D, 0xBDD7_C741, 0x3EF3_35ED, 0xBD42_918B, 0x3F24_F72E]), // -0.1
    (0xBCFD_F3B6, [0x3F78_2F8D, 0xBD00_FC5B, 0x3EFC_0846, 0xBC7A_041C, 0x3F2D_8228]), // -0.031
    (0x4000_0000, [0x40EC_7326, 0x3F8C_9F54, 0x3F61_7BEA, 0x3FE1_7BEA, 0x4008_1F97]), // 2
    (0xC020_0000, [0x3DA8_1C2E, 0x7FFF_FFFF, 0x3D9B_5B88, 0xBE42_326B, 0x3DA1_90F1]), // -2.5
    (0x3EB1_7218, [0x3FB5_04F3, 0x3E98_5A37, 0x3F15_F619, 0x3E4F_E3FA, 0x3F61_A1B3]), // 0.3465736
    (0x40A6_73D3, [0x4335_91CE, 0x3FE9_937E, 0x3F7E_9908, 0x40A5_8A6C, 0x40A6_A0D2]), // 5.2016387
    (0xC0A6_A57A, [0x3BB3_6159, 0x7FFF_FFFF, 0x3BB2_6755, 0xBCE8_44A5, 0x3BB2_E41D]), // -5.2077
    (0x4120_0000, [0x46AC_14EF, 0x4019_771E, 0x3F7F_FD06, 0x411F_FE24, 0x4120_0030]), // 10
    (0xC120_0000, [0x383E_6BCE, 0x7FFF_FFFF, 0x383E_6997, 0xB9EE_03FC, 0x383E_6AB3]), // -10
    (0xC185_15EC, [0x337F_F4BF, 0x7FFF_FFFF, 0x337F_F4BC, 0xB585_1011, 0x337F_F4BF]), // -16.635704
    (0x41A0_0000, [0x4DE7_5844, 0x4042_D975, 0x3F80_0000, 0x41A0_0000, 0x41A0_0000]), // 20
    (0x419A_6666, [0x4D65_C3C2, 0x4040_AE03, 0x3F80_0000, 0x419A_6666, 0x419A_6666]), // 19.3
    (0xC19A_6666, [0x318E_9D90, 0x7FFF_FFFF, 0x318E_9D90, 0xB3AC_07A9, 0x318E_9D90]), // -19.3
    (0x4248_0000, [0x638C_881F, 0x407B_A308, 0x3F80_0000, 0x4248_0000, 0x4248_0000]), // 50
    (0xC270_0000, [0x142D_70C9, 0x7FFF_FFFF, 0x142D_70C9, 0x9722_99BC, 0x142D_70C9]), // -60
    (0x42B0_0000, [0x7EF8_82B7, 0x408F_A2E9, 0x3F80_0000, 0x42B0_0000, 0x42B0_0000]), // 88
    (0xC2B0_0000, [0x0041_EDC4, 0x7FFF_FFFF, 0x0041_EDC4, 0x8335_4DDC, 0x0041_EDC4]), // -88
    (0xC2AF_0000, [0x006C_B2BC, 0x7FFF_FFFF, 0x006C_B2BC, 0x8394_9C5D, 0x006C_B2BC]), // -87.5
    (0xC2BE_0000, [0x0000_0F64, 0x7FFF_FFFF, 0x0000_0000, 0x8000_0000, 0x0000_0F64]), // -95
    (0xC2CF_0000, [0x0000_0001, 0x7FFF_FFFF, 0x0000_0000, 0x8000_0000, 0x0000_0001]), // -103.5
    (0x3A83_126F, [0x3F80_20C9, 0x3A83_01AB, 0x3F00_1062, 0x3A03_2336, 0x3F31_92DF]), // 0.001
    (0xBA83_126F, [0x3F7F_BE7F, 0xBA83_2339, 0x3EFF_DF3C, 0xBA03_01A8, 0x3F31_5155]), // -0.001
    (0x3586_37BD, [0x3F80_0008, 0x3586_37B9, 0x3F00_0004, 0x3506_37C1, 0x3F31_7220]), // 1e-6
    (0x5015_02F9, [0x7F80_0000, 0x41B8_34F1, 0x3F80_0000, 0x5015_02F9, 0x5015_02F9]), // 1e10
    (0x7F61_B1E6, [0x7F80_0000, 0x42B1_3196, 0x3F80_0000, 0x7F61_B1E6, 0x7F61_B1E6]), // 3e38
    (0xBF7F_F972, [0x3EBC_5F84, 0xC113_5CE0, 0x3E89_B545, 0xBE89_B1BE, 0x3EA0_675C]), // -0.9999
    (0x7FFF_FFFF, [0x7FFF_FFFF, 0x7FFF_FFFF, 0x7FFF_FFFF, 0x7FFF_FFFF, 0x7FFF_FFFF]), // NaN
    (0x7F80_0000, [0x7F80_0000, 0x7F80_0000, 0x3F80_0000, 0x7F80_0000, 0x7F80_0000]), // inf
    (0xFF80_0000, [0x0000_0000, 0x7FFF_FFFF, 0x0000_0000, 0x7FFF_FFFF, 0x0000_0000]), // -inf
];

/// The special-case-free division of [`gated4`] from any reciprocal within 1 ulp, for one x.
fn check_gated(x: f32) {
    for numerator in [x, 1.0] {
        let expected = numerator / (1.0 + exp(-x));
        for off in [-1i32, 0, 1] {
            let approximate = |denominator: f32| {
                // Of all-ones mantissas the right reciprocal is needed: see `quotient`.
                let all_ones = denominator.to_bits() & 0x7f_ffff == 0x7f_ffff;
                let exact = 1.0 / denominator;
                f32::from_bits(exact.to_bits().wrapping_add_signed(if all_ones { 0 } else { off }))
            };
            let [found, ..] = gated4([numerator; 4], [x; 4], approximate);
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "{numerator} / (1 + exp(-{x:e})) from {off}: {found:e}, not {expected:e}");
        }
    }
}

#[test]
fn gated4_is_the_rounded_quotient_from_any_near_reciprocal() {
    for bits in (0..=u32::MAX).step_by(4093) {
        check_gated(f32::from_bits(bits));
    }
    for x in [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 64.0, -64.0, 8.673_617e-19, 1e-40] {
        check_gated(x);
        // One that is not tame sends all four the other way.
        let four = gated4([x, 1.0, -2.0, 3.0], [x, 1.0, -2.0, 3.0], |d| 1.0 / d);
        for (found, x) in four.into_iter().zip([x, 1.0, -2.0, 3.0]) {
            assert!(found.to_bits() == silu(x).to_bits() || found.is_nan() && silu(x).is_nan());
        }
    }
}

#[test]
#[ignore = "every f32: minutes, in release"]
fn gated4_for_every_f32() {
    use rayon::prelude::*;
    (0..=u32::MAX).into_par_iter().for_each(|bits| check_gated(f32::from_bits(bits)));
}
