//! Hints to the compiler.

/// `value`, of unknown origin. Addresses that are computed at the start of a kernel and again at its end would be kept in
/// registers all the way between; hiding where they come from makes the compiler compute them anew.
#[inline(always)]
pub fn opaque(value: u64) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    {
        let mut value = value;
        // SAFETY: an empty instruction. Not `pure`: two of them must not become one.
        unsafe {
            core::arch::asm!("// {0}", inout(reg64) value, options(nomem, nostack, preserves_flags));
        }
        value
    }
    #[cfg(not(target_arch = "nvptx64"))]
    value
}

/// `value`, of unknown origin: it is computed where this stands, and not moved into a branch that uses it.
#[inline(always)]
pub fn opaque_f32(value: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let mut value = value;
        // SAFETY: an empty instruction.
        unsafe {
            core::arch::asm!("// {0}", inout(reg32) value, options(nomem, nostack, preserves_flags));
        }
        value
    }
    #[cfg(not(target_arch = "nvptx64"))]
    value
}
