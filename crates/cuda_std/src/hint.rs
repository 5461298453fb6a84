//! Hints to the compiler.

/// A value that fits a register.
pub trait Register: Copy {
    #[doc(hidden)]
    fn opaque(self) -> Self;
}

macro_rules! register {
    ($($t:ty: $class:ident),*) => {$(
        impl Register for $t {
            #[inline(always)]
            fn opaque(self) -> Self {
                #[cfg(target_arch = "nvptx64")]
                {
                    let mut value = self;
                    // SAFETY: an empty instruction. Not `pure`: two of them must not become one.
                    unsafe {
                        core::arch::asm!("// {0}", inout($class) value, options(nomem, nostack, preserves_flags));
                    }
                    value
                }
                #[cfg(not(target_arch = "nvptx64"))]
                self
            }
        }
    )*};
}

register!(u32: reg32, u64: reg64, f32: reg32);

/// `value`, of unknown origin. What depends on it is computed behind this place: not kept in registers since an earlier use of
/// the same expression, not moved into a branch that is the only one to use it.
#[inline(always)]
pub fn opaque<T: Register>(value: T) -> T {
    value.opaque()
}
