//! A kernel's panic becomes a fault instead of output on stderr.

use std::any::Any;
use std::cell::RefCell;
use std::panic;
use std::sync::Once;

use crate::context;

thread_local! {
    /// Where the last panic inside a kernel on this OS thread happened.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Puts a panic hook before the one that is there: it notes the place of a kernel's panic, and leaves every
/// other panic, of this or any other OS thread, to the hook that was there. Put in once and left in, because
/// taking it out again would race with other tests.
pub(crate) fn install_hook() {
    static ONCE: Once = Once::new();
    // A hook can't be set by a thread that unwinds; the panic then merely shows on stderr.
    if std::thread::panicking() {
        return;
    }
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if context::in_kernel() {
                PLACE.set(info.location().map(ToString::to_string));
            } else {
                previous(info);
            }
        }));
    });
}

/// What a caught panic said, and where.
pub(crate) fn describe(payload: &(dyn Any + Send)) -> String {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text.as_str(),
        (None, None) => "a value that isn't text",
    };
    match PLACE.take() {
        Some(place) => format!("the kernel panicked at {place}: {text}"),
        None => format!("the kernel panicked: {text}"),
    }
}
