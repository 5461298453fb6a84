//! A buffer that pieces of work write at once.

/// A buffer's address, for pieces of work that touch elements of their own.
#[derive(Clone, Copy)]
pub(super) struct Shared(*mut f32);

// SAFETY: the pieces of work that share the pointer access disjoint elements.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(super) fn new(buffer: &mut [f32]) -> Self {
        Self(buffer.as_mut_ptr())
    }

    /// The element at `index`. A method, so that closures capture the wrapper and not the pointer in it.
    ///
    /// # Safety
    /// It is in the buffer, which lives.
    #[inline(always)]
    pub(super) unsafe fn at(self, index: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(index) }
    }
}
