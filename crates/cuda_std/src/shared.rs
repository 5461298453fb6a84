//! Static shared memory.
//!
//! On the device a handle is a generic pointer that LLVM is told lies in shared memory, which with the pass
//! `infer-address-spaces` becomes `ld.shared`/`st.shared`. A missed inference is slow, never wrong. On the executor it is a
//! 32-bit shared address, and every access is checked for bounds, initialisation and races.

use core::marker::PhantomData;

#[cfg(target_arch = "nvptx64")]
type Base = *mut u8;
#[cfg(not(target_arch = "nvptx64"))]
type Base = u32;

/// An array of `T` in the block's shared memory. Made by [`shared_array!`](crate::shared_array).
pub struct Shared<T> {
    base: Base,
    element: PhantomData<*mut T>,
}

impl<T> Clone for Shared<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}

/// `shared_array![T; N]`: a static shared array of `N` elements, 16-byte aligned, uninitialised. One array per textual
/// use; put it at the top of the kernel.
#[macro_export]
macro_rules! shared_array {
    ($t:ty; $n:expr) => {{
        #[cfg(target_arch = "nvptx64")]
        let base: *mut u8 = {
            let base: *mut u8;
            // SAFETY: declares the array and takes its address. `pure` asm blocks of the same text are merged, hence the
            // place in the text. The first 16 bytes stay unused: an access at offset 0 would miss the inference.
            unsafe {
                core::arch::asm!(
                    concat!("// ", file!(), ":", line!(), ":", column!()),
                    ".shared .align 16 .b8 {base}_shared[{bytes}];",
                    "cvta.shared.u64 {base}, {base}_shared;",
                    base = out(reg64) base,
                    bytes = const { 16 + $n * size_of::<$t>() },
                    options(pure, nomem, nostack, preserves_flags)
                );
                base
            }
        };
        #[cfg(not(target_arch = "nvptx64"))]
        let base = $crate::shared::allocate(($n * size_of::<$t>()) as u32);
        // SAFETY: `base` is the array just declared.
        unsafe { $crate::shared::Shared::<$t>::from_base(base) }
    }};
}

/// The executor's side of [`shared_array!`](crate::shared_array).
#[cfg(not(target_arch = "nvptx64"))]
#[track_caller]
#[doc(hidden)]
pub fn allocate(bytes: u32) -> u32 {
    simt::shared_static(bytes, 16)
}

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.isspacep.shared"]
    fn is_shared(pointer: *const u8) -> bool;
}

impl<T: bytemuck::Pod> Shared<T> {
    /// # Safety
    /// `base` was made by `shared_array!`.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn from_base(base: Base) -> Self {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's promise; 16 bytes lie before the first element.
        let base = unsafe {
            core::hint::assert_unchecked(is_shared(base));
            base.add(16)
        };
        Self { base, element: PhantomData }
    }

    /// The array from element `index` on.
    #[inline(always)]
    pub fn at(self, index: usize) -> Self {
        #[cfg(target_arch = "nvptx64")]
        let base = self.base.wrapping_add(index * size_of::<T>());
        #[cfg(not(target_arch = "nvptx64"))]
        let base = self.base.wrapping_add((index * size_of::<T>()) as u32);
        Self { base, element: PhantomData }
    }

    /// Element `index`.
    ///
    /// # Safety
    /// The element was written before, and no other thread writes it without a barrier between.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn read(self, index: usize) -> T {
        // SAFETY: the caller's promise.
        unsafe { self.read_as::<T>(index) }
    }

    /// A `U` that starts at element `index`, in one access; it must be aligned for `U`.
    ///
    /// # Safety
    /// As [`read`](Self::read), for all bytes of the `U`.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn read_as<U: bytemuck::Pod>(self, index: usize) -> U {
        let place = self.at(index).base;
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's promise.
        unsafe {
            *(place as *const U)
        }
        #[cfg(not(target_arch = "nvptx64"))]
        simt::shared_load(place)
    }

    /// Writes element `index`.
    ///
    /// # Safety
    /// No other thread reads or writes the element without a barrier between.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn write(self, index: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { self.write_as(index, value) }
    }

    /// Writes a `U` that starts at element `index` in one access; it must be aligned for `U`.
    ///
    /// # Safety
    /// As [`write`](Self::write), for all bytes of the `U`.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn write_as<U: bytemuck::Pod>(self, index: usize, value: U) {
        let place = self.at(index).base;
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's promise.
        unsafe {
            *(place as *mut U) = value;
        }
        #[cfg(not(target_arch = "nvptx64"))]
        simt::shared_store(place, value)
    }

    /// The address of the first element in the shared window, as `cp.async` and `mbarrier` take it.
    #[inline(always)]
    pub fn address(self) -> u32 {
        #[cfg(target_arch = "nvptx64")]
        {
            let address: u32;
            // SAFETY: converts a generic address of shared memory.
            unsafe {
                core::arch::asm!(
                    "{{ .reg .u64 %window; cvta.to.shared.u64 %window, {generic}; cvt.u32.u64 {address}, %window; }}",
                    generic = in(reg64) self.base,
                    address = out(reg32) address,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            address
        }
        #[cfg(not(target_arch = "nvptx64"))]
        self.base
    }

    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub(crate) fn pointer(self, index: usize) -> *mut T {
        self.at(index).base as *mut T
    }

    #[cfg(not(target_arch = "nvptx64"))]
    pub(crate) fn place(self, index: usize) -> u32 {
        self.at(index).base
    }
}
