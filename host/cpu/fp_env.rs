//! The floating-point environment of the threads that compute.
//!
//! A program may have set its threads to flush denormals or to round otherwise, and threads inherit that. The bits that this
//! library promises are those of the IEEE defaults, so each piece of work sets them and puts back what was there.

/// While this lives, its thread rounds to nearest even and keeps denormals.
pub(super) struct IeeeDefaults {
    #[cfg(target_arch = "x86_64")]
    before: u32,
}

#[cfg(target_arch = "x86_64")]
#[allow(deprecated)] // The replacement is assembly; these two are exactly ldmxcsr and stmxcsr.
impl IeeeDefaults {
    /// Round to nearest, denormals kept, exceptions masked.
    const MXCSR: u32 = 0x1f80;

    pub(super) fn set() -> Self {
        use std::arch::x86_64::{_mm_getcsr, _mm_setcsr};
        // SAFETY: SSE is part of x86-64. The register is put back before the thread runs other code.
        unsafe {
            let before = _mm_getcsr();
            _mm_setcsr(Self::MXCSR);
            IeeeDefaults { before }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(deprecated)]
impl Drop for IeeeDefaults {
    fn drop(&mut self) {
        // SAFETY: as in `set`.
        unsafe { std::arch::x86_64::_mm_setcsr(self.before) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl IeeeDefaults {
    pub(super) fn set() -> Self {
        IeeeDefaults {}
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
#[allow(deprecated)]
mod tests {
    use super::*;
    use std::arch::x86_64::{_mm_getcsr, _mm_setcsr};
    use std::hint::black_box;

    #[test]
    fn denormals_are_kept_inside_and_the_setting_comes_back() {
        // SAFETY: this thread is the test's, and the register is put back.
        let before = unsafe { _mm_getcsr() };
        unsafe { _mm_setcsr(before | 0x8040) };
        let flushed = black_box(f32::MIN_POSITIVE) * black_box(0.5);
        let kept = {
            let _ieee = IeeeDefaults::set();
            black_box(f32::MIN_POSITIVE) * black_box(0.5)
        };
        let after = unsafe { _mm_getcsr() };
        unsafe { _mm_setcsr(before) };
        assert_eq!((flushed, kept), (0.0, f32::from_bits(0x0040_0000)));
        assert_eq!(after & 0x8040, 0x8040);
    }
}
