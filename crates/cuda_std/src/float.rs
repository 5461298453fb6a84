//! f32 to 16 bits and back. To 16 bits: round to nearest even, no saturation (overflow becomes infinity); a NaN becomes 0x7fff, the
//! NaN that the conversion instructions give, whatever its sign and payload. From f16 the conversion instruction likewise gives
//! one NaN, 0x7fff_ffff; from bf16 it is a shift, which keeps the payload.

/// The f16 bits of `x`.
#[inline(always)]
pub fn f32_to_f16_bits(x: f32) -> u16 {
    #[cfg(target_arch = "nvptx64")]
    {
        let bits: u16;
        // SAFETY: a pure conversion.
        unsafe {
            core::arch::asm!("cvt.rn.f16.f32 {}, {};", out(reg16) bits, in(reg32) x, options(pure, nomem, nostack, preserves_flags));
        }
        bits
    }
    #[cfg(not(target_arch = "nvptx64"))]
    if x.is_nan() { 0x7fff } else { half::f16::from_f32(x).to_bits() }
}

/// The bf16 bits of `x`. Integer operations: sm_70 and sm_75 have no instruction for it.
#[inline(always)]
pub fn f32_to_bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    if x.is_nan() { 0x7fff } else { rounded }
}

/// The f32 that the f16 with these bits is.
#[inline(always)]
pub fn f16_bits_to_f32(bits: u16) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let x: f32;
        // SAFETY: a pure conversion.
        unsafe {
            core::arch::asm!("cvt.f32.f16 {}, {};", out(reg32) x, in(reg16) bits, options(pure, nomem, nostack, preserves_flags));
        }
        x
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let x = half::f16::from_bits(bits).to_f32();
        if x.is_nan() { f32::from_bits(0x7fff_ffff) } else { x }
    }
}

/// The f32 that the bf16 with these bits is.
#[inline(always)]
pub fn bf16_bits_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// About `1 / x`, within 1 ulp for normal `x` whose reciprocal is normal; not the same bits on every machine.
#[inline(always)]
pub fn reciprocal_approx(x: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let y: f32;
        // SAFETY: a pure operation.
        unsafe {
            core::arch::asm!("rcp.approx.ftz.f32 {}, {};", out(reg32) y, in(reg32) x, options(pure, nomem, nostack, preserves_flags));
        }
        y
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        1.0 / x
    }
}
