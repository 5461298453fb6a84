//! Stacks for the coroutines, kept per OS thread: making one costs more than a thousand switches.

use std::cell::RefCell;

use corosensei::stack::DefaultStack;

/// Room for a kernel's registers in a debug build, where fixed arrays are copied around. Only touched pages
/// count.
const STACK_BYTES: usize = 256 * 1024;

thread_local! {
    static POOL: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Takes a stack from the pool, or makes one.
pub(crate) fn take() -> DefaultStack {
    POOL.with_borrow_mut(Vec::pop).unwrap_or_else(|| {
        DefaultStack::new(STACK_BYTES)
            .unwrap_or_else(|error| panic!("no stack of {STACK_BYTES} bytes for a kernel's thread: {error}"))
    })
}

/// Puts a stack back.
pub(crate) fn give_back(stack: DefaultStack) {
    POOL.with_borrow_mut(|pool| pool.push(stack));
}
