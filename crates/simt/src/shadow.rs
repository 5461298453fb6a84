//! What is remembered of the accesses to a piece of shared memory, to find races.
//!
//! Two accesses of different threads are ordered when a block barrier came between them, or when both threads
//! are lanes of one warp and a warp operation with both in its mask came between them. Unordered accesses
//! race when one of them writes and they aren't both atomic.

use crate::context::Who;
use crate::fault::Site;
use crate::warp::lanes_of;

/// How an access touches its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
    Atomic,
    /// An asynchronous copy to the bytes is issued: whatever races with a write now, races with it.
    Issue,
    /// The bytes of an asynchronous copy arrive.
    Land,
}

/// The accesses of one kind since the last event that ordered them all.
#[derive(Clone, Copy)]
struct Accesses {
    /// Where `last` made its access.
    last_site: Option<Site>,
    /// Where `other` made its access.
    other_site: Option<Site>,
    /// The barrier epoch they happened in; of another epoch, they are ordered before everything to come.
    epoch: u32,
    /// The tick of their warp at the latest of them.
    tick: u32,
    /// Their lanes, all of the warp of `last` unless `many_warps`.
    lanes: u32,
    /// The thread of the latest.
    last: u16,
    /// The latest thread before that.
    other: u16,
    many_warps: bool,
    atomic: bool,
    landed: bool,
}

impl Accesses {
    const NONE: Accesses = Accesses {
        last_site: None,
        other_site: None,
        epoch: 0,
        tick: 0,
        lanes: 0,
        last: 0,
        other: 0,
        many_warps: false,
        atomic: false,
        landed: false,
    };

    #[inline]
    fn one(who: &Who<'_>) -> Self {
        Accesses {
            last_site: Some(who.site),
            epoch: who.epoch,
            tick: who.warp.tick(),
            lanes: who.bit,
            last: who.thread,
            ..Accesses::NONE
        }
    }

    /// An access of another thread is among them, and nothing orders it before an access of `who` now.
    #[inline]
    fn unordered(&self, who: &Who<'_>) -> bool {
        if self.epoch != who.epoch || (self.last == who.thread && self.lanes == who.bit && !self.many_warps) {
            return false;
        }
        self.unordered_within_epoch(who)
    }

    fn unordered_within_epoch(&self, who: &Who<'_>) -> bool {
        self.many_warps
            || self.last / 32 != who.thread / 32
            || lanes_of(self.lanes & !who.bit)
                .any(|lane| !who.warp.ordered_since(self.tick, who.bit | 1 << lane))
    }

    /// Adds an access that can stand beside those there.
    #[inline]
    fn add(&mut self, who: &Who<'_>) {
        if self.epoch == who.epoch && self.last == who.thread && self.lanes == who.bit && !self.many_warps {
            self.last_site = Some(who.site);
            self.tick = who.warp.tick();
        } else if self.unordered(who) {
            self.add_other(who);
        } else {
            *self = Accesses { atomic: self.atomic, ..Accesses::one(who) };
        }
    }

    fn add_other(&mut self, who: &Who<'_>) {
        if self.last != who.thread {
            self.other = self.last;
            self.other_site = self.last_site;
        }
        self.many_warps |= self.last / 32 != who.thread / 32;
        self.lanes |= who.bit;
        self.last = who.thread;
        self.last_site = Some(who.site);
        self.tick = who.warp.tick();
    }

    /// The latest access by another thread.
    fn latest_but(&self, who: &Who<'_>) -> (u16, Option<Site>) {
        if self.last == who.thread { (self.other, self.other_site) } else { (self.last, self.last_site) }
    }
}

/// The accesses to one piece of memory.
#[derive(Clone, Copy)]
pub(crate) struct Shadow {
    writes: Accesses,
    reads: Accesses,
}

/// An earlier access that races with the one that was tried.
pub(crate) struct Race {
    pub thread: usize,
    pub site: Option<Site>,
    pub did: &'static str,
}

impl Shadow {
    pub const NEW: Shadow = Shadow { writes: Accesses::NONE, reads: Accesses::NONE };

    /// Checks an access against those before, and remembers it.
    #[inline]
    pub fn touch(&mut self, who: &Who<'_>, mode: Mode) -> Result<(), Race> {
        match mode {
            Mode::Read => {
                if self.writes.unordered(who) {
                    return Err(self.race(who));
                }
                self.reads.add(who);
            }
            Mode::Write | Mode::Issue => {
                if self.writes.unordered(who) || self.reads.unordered(who) {
                    return Err(self.race(who));
                }
                if mode == Mode::Write {
                    self.writes = Accesses::one(who);
                    // They are ordered before this write, so who is ordered after it is ordered after them.
                    self.reads.epoch = 0;
                }
            }
            Mode::Atomic => {
                if (!self.writes.atomic && self.writes.unordered(who)) || self.reads.unordered(who) {
                    return Err(self.race(who));
                }
                // A plain write just before by this thread still races with the atomics of others.
                let after_own_write = !self.writes.atomic
                    && self.writes.epoch == who.epoch
                    && self.writes.tick == who.warp.tick();
                self.writes.add(who);
                self.writes.atomic = !after_own_write;
            }
            Mode::Land => {
                self.writes = Accesses { landed: true, ..Accesses::one(who) };
                self.reads.epoch = 0;
            }
        }
        Ok(())
    }

    #[cold]
    fn race(&self, who: &Who<'_>) -> Race {
        let (accesses, did) = if !self.writes.unordered(who) {
            (&self.reads, "read them")
        } else if self.writes.atomic {
            (&self.writes, "changed them atomically")
        } else if self.writes.landed {
            (&self.writes, "wrote them by an asynchronous copy")
        } else {
            (&self.writes, "wrote them")
        };
        let (thread, site) = accesses.latest_but(who);
        Race { thread: thread.into(), site, did }
    }
}
