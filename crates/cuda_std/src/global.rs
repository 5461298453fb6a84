//! Pointers to global memory inside by-value kernel records.
//!
//! A raw pointer that arrives in a record is generic to LLVM; these mark it as global where it is used, so that the PTX has
//! `ld.global`/`st.global`. On the executor every access is checked against the buffers that the launch names.

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.isspacep.global"]
    fn is_global(pointer: *const u8) -> bool;
}

/// Device memory that a kernel reads.
#[repr(transparent)]
pub struct Global<T>(*mut T);

/// Device memory that a kernel reads and writes.
#[repr(transparent)]
pub struct GlobalMut<T>(*mut T);

macro_rules! common {
    ($name:ident) => {
        impl<T> Clone for $name<T> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $name<T> {}
        impl<T> core::fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:p}", self.0)
            }
        }
        // SAFETY: an address can be sent; whoever dereferences it argues about races.
        unsafe impl<T> Send for $name<T> {}
        // SAFETY: as above.
        unsafe impl<T> Sync for $name<T> {}

        impl<T: bytemuck::Pod> $name<T> {
            /// A device address, in bytes.
            pub fn from_address(address: u64) -> Self {
                Self(address as usize as *mut T)
            }

            /// The address in bytes.
            #[inline(always)]
            pub fn address(self) -> u64 {
                self.0 as u64
            }

            /// The same memory as elements of another type.
            #[inline(always)]
            pub fn cast<U>(self) -> $name<U> {
                $name(self.0 as *mut U)
            }

            /// The pointer `elements` further on.
            #[inline(always)]
            pub fn at(self, elements: usize) -> Self {
                Self(self.marked().wrapping_add(elements))
            }

            /// The pointer, known to LLVM as global. A mark reaches the accesses at an offset from the marked pointer, not
            /// those exactly at it, so every step of the way marks.
            #[inline(always)]
            fn marked(self) -> *mut T {
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the host puts global addresses into records, nothing else.
                unsafe {
                    core::hint::assert_unchecked(is_global(self.0 as *const u8));
                }
                self.0
            }

            /// Element `index`.
            ///
            /// # Safety
            /// The element lies in a live buffer and no other thread writes it meanwhile.
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
                let pointer = self.marked().wrapping_add(index) as *const U;
                #[cfg(target_arch = "nvptx64")]
                // SAFETY: the caller's promise.
                unsafe {
                    *pointer
                }
                #[cfg(not(target_arch = "nvptx64"))]
                simt::global_load(pointer)
            }
        }
    };
}

common!(Global);
common!(GlobalMut);

impl<T: bytemuck::Pod> GlobalMut<T> {
    /// Writes element `index`.
    ///
    /// # Safety
    /// The element lies in a live buffer and no other thread reads or writes it meanwhile.
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
        let pointer = self.marked().wrapping_add(index) as *mut U;
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's promise.
        unsafe {
            *pointer = value;
        }
        #[cfg(not(target_arch = "nvptx64"))]
        simt::global_store(pointer, value)
    }

    /// Element `index`, read anew each time: another block may write it.
    ///
    /// # Safety
    /// The element lies in a live buffer.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn read_volatile(self, index: usize) -> T {
        let pointer = self.marked().wrapping_add(index);
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's promise.
        unsafe {
            pointer.read_volatile()
        }
        #[cfg(not(target_arch = "nvptx64"))]
        simt::global_load(pointer)
    }
}
