//! Scalar f32 arithmetic that gives one set of bits on every target.
//!
//! The same source is compiled for the CPU (any vector width) and, without a math library, for NVIDIA GPUs. Nothing
//! here depends on the target: IEEE f32, round to nearest even, denormals kept, integer operations, comparisons,
//! and the explicit [`fma`]. There is no table, no result that depends on an approximate hardware instruction, and (but for
//! [`gated4`], which is for GPUs) no branch: every special case is a select, so that a loop over these functions vectorises. Clamps are written as comparisons because
//! `f32::min` / `f32::max` drop a NaN, and because targets differ in which zero or NaN they return.
//!
//! An error in ulp is `|result - true value| / ulp`, with the ulp of the correctly rounded result; the ulp of a
//! denormal is 2^-149. The figures were measured over every f32 against f64; the ignored tests repeat that.

// `mul_add` and `sqrt` live in std; the GPU build has only core.
#[cfg(not(target_arch = "nvptx64"))]
extern crate std;

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        core::intrinsics::fmaf32(a, b, c)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        a.mul_add(b, c)
    }
}

/// The square root of `x`, correctly rounded; `sqrt(-0.0) = -0.0`, NaN below zero.
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        core::intrinsics::sqrtf32(x)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        x.sqrt()
    }
}

/// `1 / sqrt(128)`, rounded: the scale of an output row of 128 key channels.
pub const RSQRT_128: f32 = f32::from_bits(0x3DB5_04F3);

/// The NaN that GPU arithmetic yields, whatever NaN went in.
pub const CANONICAL_NAN: f32 = f32::from_bits(0x7FFF_FFFF);

/// `x`, with any NaN replaced by [`CANONICAL_NAN`].
///
/// CPUs keep a NaN's payload and sign, GPUs do not; a CPU that applies this to what it stores has the GPU's bits.
#[inline(always)]
pub fn canonical(x: f32) -> f32 {
    if x.is_nan() { CANONICAL_NAN } else { x }
}

/// `((a[0] + a[1]) + a[2]) + a[3]`.
#[inline(always)]
pub fn sum4(a: [f32; 4]) -> f32 {
    ((a[0] + a[1]) + a[2]) + a[3]
}

const LOG2_E: f32 = f32::from_bits(0x3FB8_AA3B);
/// ln 2 in two parts: rounded to f32, and the rest.
const LN_2: f32 = f32::from_bits(0x3F31_7218);
const LN_2_LOW: f32 = f32::from_bits(0xB102_E308);

/// 1.5 * 2^23: adding it rounds a small number to an integer, which is then in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// `(p, z)` with `exp(x) = p * 2^j`, where `j` is the integer nearest `x / ln 2`, at most 128, and `bias + j` is in the
/// low bits of `z`. `bias` is even and lets the caller shift an exponent field out of `z` without another addition.
///
/// `x >= -104`, or NaN, which makes `p` NaN. Up to about 89, `p` is in 0.70..1.42; above, `j` stays at 128 and `p`
/// grows, up to infinity.
#[inline(always)]
fn exp_reduced(x: f32, bias: f32) -> (f32, u32) {
    // The units are the last bits of the sum, so this rounds x / ln 2 to an integer; an even bias leaves it the same
    // integer. The upper clamp is on the bits, as signed integers: one instruction, and it needs no care for NaN,
    // which x brings into p below.
    let sum = fma(x, LOG2_E, ROUND + bias).to_bits() as i32;
    let limit = (ROUND + bias + 128.0).to_bits() as i32;
    let z = if sum < limit { sum } else { limit };
    let j = f32::from_bits(z as u32) - (ROUND + bias);
    // The first step is exact: a multiple of 2^-25 (or x itself), below 0.35.
    let f = fma(j, -LN_2_LOW, fma(j, -LN_2, x));
    // exp(f) = 1 + f (1 + f q(f)). Every coefficient is positive, so p only grows above the clamp, and inf stays inf.
    let q = fma(f, EXP_C[4], EXP_C[3]);
    let q = fma(f, q, EXP_C[2]);
    let q = fma(f, q, EXP_C[1]);
    let q = fma(f, q, EXP_C[0]);
    (fma(f, fma(f, q, 1.0), 1.0), z as u32)
}

/// Coefficients of f^2..f^6 in exp(f): a minimax fit in ulp of the result on |f| <= 0.3467, then a search over the
/// neighbouring f32 for the least error of the whole evaluation.
const EXP_C: [f32; 5] = [
    f32::from_bits(0x3EFF_FFFD),
    f32::from_bits(0x3E2A_AA41),
    f32::from_bits(0x3D2A_ACCA),
    f32::from_bits(0x3C09_20CE),
    f32::from_bits(0x3AB4_FA9B),
];

/// [`exp`] for `x >= -104` or NaN; below, the result means nothing.
#[inline(always)]
fn exp_above(x: f32) -> f32 {
    // z holds j + 254, that is the sum of the exponent fields of two powers of two with the product 2^j. Two, because
    // j goes from -150 to 128; both are normal and the first product is exact, so only the second one rounds
    // (denormal results) or overflows. As products, unlike additions to the exponent, they keep NaN.
    let (p, z) = exp_reduced(x, 254.0);
    let half = z >> 1;
    let scale = f32::from_bits(half << 23);
    let rest = f32::from_bits(z.wrapping_sub(half) << 23);
    (p * scale) * rest
}

/// `x`, but `low` where `x < low`; NaN stays NaN.
#[inline(always)]
fn at_least(x: f32, low: f32) -> f32 {
    if x < low { low } else { x }
}

/// e^x. Error at most 0.892 ulp (0.858 where the result is denormal).
///
/// `exp(-inf) = 0`, `exp(inf) = inf`, NaN stays NaN. Overflows to inf from 88.722839 (0x42B1_7218) up, is denormal
/// below -87.33654 and 0 from -103.97208 (0xC2CF_F1B5) down. `exp(+-0) = 1` exactly. Never falls by more than the last
/// bit: 2897 pairs of neighbouring negative arguments (the first at -0.031) are that far out of order, no others.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // exp(-103.98) is below half the least denormal, so everything from there down is zero.
    exp_above(at_least(x, -104.0))
}

/// `1 + exp(x)` for `x >= -80` or NaN: the same bits as that sum with [`exp`], from fewer instructions.
#[inline(always)]
fn one_plus_exp_above(x: f32) -> f32 {
    // No denormals to make, so one power of two is enough: 2^(j - 1), which is finite for j = 128 too. The other
    // factor 2 goes into the addition: p 2^(j - 1) is exact, so the fma rounds the very sum that `1 + exp(x)` rounds.
    let (p, z) = exp_reduced(x, 126.0);
    fma(p * f32::from_bits(z << 23), 2.0, 1.0)
}

/// `1 / (1 + exp(-x))`. Error at most 2.481 ulp for `x >= -88.72283`.
///
/// Below that `exp(-x)` overflows and the result is 0 (the true value is less than 2^-127). `sigmoid(-inf) = 0`,
/// `sigmoid(inf) = 1`, NaN stays NaN.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    // From exp(-80) down the sum is 1.
    1.0 / one_plus_exp_above(at_least(-x, -80.0))
}

/// `x / (1 + exp(-x))`. Error at most 2.394 ulp for `x >= -88.72283`.
///
/// Below that `exp(-x)` overflows and the result is -0 (the true value is above -2^-120). `silu(-inf) = NaN` (inf/inf),
/// `silu(inf) = inf`, `silu(+-0) = +-0`, NaN stays NaN.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    // The numerator brings NaN in, so the clamp need not keep it and can be one integer minimum: among the bits as
    // signed integers, only positive numbers (and NaN) are above those of 80.
    let bits = x.to_bits() as i32;
    let limit = 80.0f32.to_bits() as i32;
    let y = f32::from_bits(if bits < limit { bits } else { limit } as u32);
    x / one_plus_exp_above(-y)
}

/// Within these magnitudes of x no step of [`quotient`] of x or 1 by `1 + exp(-x)` overflows, underflows or loses a sign.
const TAME: core::ops::RangeInclusive<f32> = 8.673_617_4e-19..=64.0;

/// `numerator / denominator`, correctly rounded, from a reciprocal that is off by 1 ulp at most: the steps of a GPU's own division,
/// without its test for special cases, which costs a branch for each quotient and keeps neighbours from overlapping.
///
/// The refined reciprocal is the correctly rounded one, whichever neighbour it was made from, unless the denominator's
/// mantissa is all ones; there a GPU's is the right one already, or its own division would be wrong. From that one correction of the
/// quotient suffices (Markstein 1990); tests/math.rs goes through the arguments.
#[inline(always)]
pub fn quotient(numerator: f32, denominator: f32, reciprocal: f32) -> f32 {
    let r = fma(fma(-denominator, reciprocal, 1.0), reciprocal, reciprocal);
    let q = numerator * r;
    fma(fma(-denominator, q, numerator), r, q)
}

#[inline(always)]
fn all_tame(x: [f32; 4]) -> bool {
    let (low, high) = (TAME.start().to_bits(), TAME.end().to_bits());
    let tame = |x: f32| (x.to_bits() & 0x7fff_ffff).wrapping_sub(low) <= high - low;
    // Not `&&`: one branch for all.
    tame(x[0]) & tame(x[1]) & tame(x[2]) & tame(x[3])
}

/// `numerator / (1 + exp(-x))` of four, where a numerator is its x or 1: the bits of [`silu`] and [`sigmoid`], with one branch for the
/// special cases of all four. `reciprocal` is a GPU's approximation or better: see [`quotient`].
#[inline(always)]
pub fn gated4(numerator: [f32; 4], x: [f32; 4], reciprocal: impl Fn(f32) -> f32) -> [f32; 4] {
    let mut out = [0.0; 4];
    if all_tame(x) {
        for i in 0..4 {
            let denominator = one_plus_exp_above(-x[i]);
            out[i] = quotient(numerator[i], denominator, reciprocal(denominator));
        }
    } else {
        for i in 0..4 {
            out[i] = numerator[i] / (1.0 + exp(-x[i]));
        }
    }
    out
}

/// [`log1p`] for finite `x > -1`; elsewhere the result means nothing.
#[inline(always)]
fn log1p_finite(x: f32) -> f32 {
    // 1 + x = 2^e (1 + m), 1 + m in about 0.75..1.5. Adding `down` to an exponent field divides by 2^e.
    let u = 1.0 + x;
    let down = 0x3FBF_FFFF_u32.wrapping_sub(u.to_bits()) & 0xFF80_0000;
    // m = x 2^-e + (2^-e - 1), exact (1 + x itself is not) until 2^-e is too small to matter; but for the f32 just below
    // 0.5, where 1 + x rounds up to 1.5, which has the next e. That m is rounded, and LOG_C makes up for it. 4 * 2^-e
    // is a normal number for every e. Subtracting 1 - 2^-e keeps the sign of x = -0.0.
    let four = f32::from_bits(0x4080_0000_u32.wrapping_add(down));
    let m = f32::from_bits(x.to_bits().wrapping_add(down)) - fma(four, -0.25, 1.0);
    // log(1 + m) = m + m^2 (c2 + m (odd(m^2) + m even(m^2))); the two halves of the tail run side by side.
    let m2 = m * m;
    let even = fma(m2, LOG_C[8], LOG_C[6]);
    let odd = fma(m2, LOG_C[7], LOG_C[5]);
    let even = fma(m2, even, LOG_C[4]);
    let odd = fma(m2, odd, LOG_C[3]);
    let even = fma(m2, even, LOG_C[2]);
    let odd = fma(m2, odd, LOG_C[1]);
    let tail = fma(m, even, odd);
    let log = fma(fma(m, tail, LOG_C[0]), m2, m);
    // `down` is -e * 2^23; with the negative constant, e = 0 adds -0.0, which changes nothing.
    fma(down as i32 as f32, -LN_2 / 8_388_608.0, log)
}

/// Coefficients of m^2..m^10 in log(1 + m): minimax in relative error on -0.25..=0.5, then searched as [`EXP_C`]
/// (with the f32 below 0.5 among the arguments: most neighbours of these are 1.3 ulp off there).
const LOG_C: [f32; 9] = [
    f32::from_bits(0xBF00_0001),
    f32::from_bits(0x3EAA_AAD9),
    f32::from_bits(0xBE80_0005),
    f32::from_bits(0x3E4C_B453),
    f32::from_bits(0xBE2A_77A2),
    f32::from_bits(0x3E14_402C),
    f32::from_bits(0xBE06_CDC6),
    f32::from_bits(0x3DD6_9456),
    f32::from_bits(0xBD39_18F8),
];

/// log(1 + x). Error at most 0.923 ulp.
///
/// `log1p(+-0) = +-0`, `log1p(-1) = -inf`, NaN below -1, `log1p(inf) = inf`, NaN stays NaN; x itself where that is the
/// nearest f32.
#[inline(always)]
pub fn log1p(x: f32) -> f32 {
    let y = log1p_finite(x);
    let y = if x == f32::INFINITY { x } else { y };
    // False for NaN too. A constant, because a select, unlike arithmetic, would pass a NaN's payload on the GPU.
    let y = if x > -1.0 { y } else { CANONICAL_NAN };
    if x == -1.0 { f32::NEG_INFINITY } else { y }
}

/// `v` if `v > 20`, else `log1p(exp(v))`. Error at most 1.568 ulp (0.858 where the result is denormal).
///
/// `softplus(-inf) = 0`, `softplus(inf) = inf`, NaN stays NaN.
#[inline(always)]
pub fn softplus(v: f32) -> f32 {
    // Where the select takes y, exp(v) is within 0..=4.9e8, so log1p needs none of its special cases. NaN compares
    // false and comes through as v.
    let y = log1p_finite(exp_above(at_least(v, -104.0)));
    if v <= 20.0 { y } else { v }
}
