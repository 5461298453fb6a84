//! Asynchronous copies from global to shared memory: `cp.async` and its groups.
//!
//! A copy moves its bytes at the wait that covers its group, the latest moment it can have on a device. Until
//! then its destination can be neither read nor written.

use std::collections::VecDeque;

use crate::context::Context;
use crate::fault::{Checked, FaultKind, Problem, Site};
use crate::global;
use crate::shadow::Mode;

/// The copies of one thread that are in flight.
#[derive(Default)]
pub(crate) struct Queue {
    copies: VecDeque<Transfer>,
    /// Groups committed so far: the number of the group that copies go to now.
    committed: u32,
}

struct Transfer {
    group: u32,
    shared: u32,
    global: *const u8,
    bytes: usize,
    site: Site,
}

impl Queue {
    pub fn clear(&mut self) {
        self.copies.clear();
        self.committed = 0;
    }

    pub fn commit(&mut self) {
        self.committed += 1;
    }

    /// Takes the oldest copy, if all but the newest `pending` committed groups include it.
    fn take_covered(&mut self, pending: u32) -> Option<Transfer> {
        let end = self.committed.saturating_sub(pending);
        if self.copies.front()?.group < end { self.copies.pop_front() } else { None }
    }
}

/// Starts a copy of the running thread.
pub(crate) fn issue(
    context: &Context<'_>,
    shared_addr: u32,
    global: *const u8,
    bytes: u32,
    site: Site,
) -> Checked<()> {
    let me = context.me();
    if !matches!(bytes, 4 | 8 | 16) {
        let what = format!("an asynchronous copy of {bytes} bytes; it can have 4, 8 or 16");
        return Err(Box::new(Problem::new(FaultKind::Launch, what).by(me, site, "issues it")));
    }
    let bytes = bytes as usize;
    global::check(context, global.addr(), bytes, bytes, false, site)?;
    let mut shared = context.shared.borrow_mut();
    let range = shared.access(&context.who(site), shared_addr, bytes, bytes, Mode::Issue)?;
    shared.set_pending(&range);
    let mut queue = context.threads[me].copies.borrow_mut();
    let group = queue.committed;
    queue.copies.push_back(Transfer { group, shared: shared_addr, global, bytes, site });
    Ok(())
}

/// Ends the copies of the running thread that a wait for all but `pending` groups covers.
pub(crate) fn wait(context: &Context<'_>, pending: u32) -> Checked<()> {
    let mut queue = context.threads[context.me()].copies.borrow_mut();
    let mut shared = context.shared.borrow_mut();
    while let Some(copy) = queue.take_covered(pending) {
        // A race with the bytes that arrive is one with the copy, so its place is the one to name.
        let who = context.who(copy.site);
        let range = shared.access(&who, copy.shared, copy.bytes, copy.bytes, Mode::Land)?;
        shared.set_landed(&range);
        let mut source = [0; 16];
        let source = &mut source[..copy.bytes];
        // SAFETY: the bytes were found to lie in registered memory when the copy was issued, and
        // `Launch::input` and `Launch::output` require that to stay for the whole run.
        unsafe { copy.global.copy_to_nonoverlapping(source.as_mut_ptr(), copy.bytes) };
        shared.bytes(range).copy_from_slice(source);
    }
    Ok(())
}

impl Context<'_> {
    /// Adds to a problem with bytes in flight the copy that they wait for.
    #[cold]
    pub fn name_copy(&self, problem: Problem, addr: u32, size: usize) -> Problem {
        if problem.kind() != FaultKind::AsyncPending {
            return problem;
        }
        let (start, end) = (addr as usize, addr as usize + size);
        for (thread, state) in self.threads.iter().enumerate() {
            let queue = state.copies.borrow();
            let hit =
                |copy: &&Transfer| (copy.shared as usize) < end && start < copy.shared as usize + copy.bytes;
            if let Some(copy) = queue.copies.iter().find(hit) {
                let did = if copy.group < queue.committed {
                    "issued the copy, committed it and didn't wait for it yet,"
                } else {
                    "issued the copy and didn't commit it yet,"
                };
                return problem.by(thread, copy.site, did);
            }
        }
        problem
    }
}
