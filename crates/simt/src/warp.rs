//! Warp operations: lanes of a warp meet, leave a value each, and take everybody's.

use std::cell::{Cell, RefCell};

use crate::context::{Context, Wait};
use crate::fault::{Checked, FaultKind, Problem, Site, same_op, same_site};

/// What every lane of a warp operation gave.
#[derive(Clone, Copy, Debug)]
pub struct WarpValues {
    mask: u32,
    values: [u64; 32],
}

impl WarpValues {
    /// The lanes that took part.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// The value of a lane, or `None` if it didn't take part.
    pub fn get(&self, lane: u32) -> Option<u64> {
        (lane < 32 && self.mask >> lane & 1 == 1).then(|| self.values[lane as usize])
    }

    /// The lanes that took part with their values, by rising lane.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        lanes_of(self.mask).map(|lane| (lane as u32, self.values[lane]))
    }
}

/// The value of a lane that took part; panics for any other.
impl std::ops::Index<u32> for WarpValues {
    type Output = u64;

    fn index(&self, lane: u32) -> &u64 {
        assert!(self.get(lane).is_some(), "lane {lane} isn't in the mask {:#010x}", self.mask);
        &self.values[lane as usize]
    }
}

/// The state of one warp of the running block.
pub(crate) struct Warp {
    /// The lanes it has: fewer than 32 in the last warp of some blocks.
    pub lanes: u32,
    pub runnable: Cell<u32>,
    pub exited: Cell<u32>,
    groups: RefCell<Vec<Group>>,
    /// Completed operations.
    tick: Cell<u32>,
    /// The tick of the last operation of all lanes.
    full: Cell<u32>,
    /// For each mask of fewer lanes used since then, the tick of its last operation.
    partial: RefCell<Vec<(u32, u32)>>,
}

/// Lanes that meet. Open while lanes arrive; then its values stay until each lane has read them, because a
/// lane that reads early may be in its next operation before a late one reads.
struct Group {
    op: &'static str,
    site: Site,
    mask: u32,
    arrived: u32,
    unread: u32,
    values: [u64; 32],
}

impl Warp {
    /// A warp of a block that has `rest` threads from this warp on.
    pub fn new(rest: usize) -> Self {
        Warp {
            lanes: if rest >= 32 { u32::MAX } else { (1 << rest) - 1 },
            runnable: Cell::new(0),
            exited: Cell::new(0),
            groups: RefCell::new(Vec::new()),
            tick: Cell::new(0),
            full: Cell::new(0),
            partial: RefCell::new(Vec::new()),
        }
    }

    pub fn reset(&self) {
        self.runnable.set(self.lanes);
        self.exited.set(0);
        self.groups.borrow_mut().clear();
        self.full.set(self.tick.get());
        self.partial.borrow_mut().clear();
    }

    pub fn tick(&self) -> u32 {
        self.tick.get()
    }

    /// An operation that both lanes took part in came after `tick`. Chains over a third lane don't count; a
    /// kernel that orders accesses that way is told of a race.
    pub fn ordered_since(&self, tick: u32, lanes: u32) -> bool {
        self.full.get() > tick
            || self.partial.borrow().iter().any(|&(mask, last)| last > tick && mask & lanes == lanes)
    }

    /// Brings the running thread to a warp operation and returns its group. It then waits with
    /// [`Context::suspend`].
    fn arrive(
        &self,
        context: &Context<'_>,
        op: &'static str,
        mask: u32,
        value: u64,
        site: Site,
    ) -> Checked<usize> {
        let me = context.me();
        let (lane, bit) = (me % 32, 1 << (me % 32));
        if mask & bit == 0 {
            let what = format!("lane {lane} isn't in its own mask {mask:#010x}");
            return Err(Box::new(Problem::new(FaultKind::WarpMask, what).by(
                me,
                site,
                format!("came to {op}"),
            )));
        }
        if mask & !self.lanes != 0 {
            let what = format!("the mask {mask:#010x} names lanes beyond the block's {:#010x}", self.lanes);
            return Err(Box::new(Problem::new(FaultKind::WarpMask, what).by(
                me,
                site,
                format!("came to {op}"),
            )));
        }
        let gone = mask & self.exited.get();
        if gone != 0 {
            let gone = me - lane + gone.trailing_zeros() as usize;
            return Err(exit_problem(op, mask)
                .by(me, site, format!("came to {op}"))
                .by_exited(context, gone));
        }

        let mut groups = self.groups.borrow_mut();
        let mut join = None;
        for (place, group) in groups.iter().enumerate().filter(|(_, group)| group.arrived != 0) {
            if group.mask == mask && same_op(group.op, op) && same_site(group.site, site) {
                join = Some(place);
                break;
            }
            // Waiting for each other in different operations. If only one waits for the other, the other may
            // still come when its own operation is done.
            if group.mask & bit != 0 && group.arrived & mask != 0 {
                let other = me - lane + (group.arrived & mask).trailing_zeros() as usize;
                return Err(Box::new(mismatch(
                    me,
                    (op, mask, site),
                    other,
                    (group.op, group.mask, group.site),
                )));
            }
        }
        let place = join.unwrap_or_else(|| {
            let fresh = Group { op, site, mask, arrived: 0, unread: 0, values: [0; 32] };
            match groups.iter().position(|group| group.arrived == 0 && group.unread == 0) {
                Some(place) => {
                    groups[place] = fresh;
                    place
                }
                None => {
                    groups.push(fresh);
                    groups.len() - 1
                }
            }
        });
        let group = &mut groups[place];
        group.arrived |= bit;
        group.values[lane] = value;
        context.park(Wait::Warp, site);
        if group.arrived == mask {
            group.arrived = 0;
            group.unread = mask;
            self.complete(mask);
            self.runnable.set(self.runnable.get() | mask);
            for lane in lanes_of(mask) {
                context.threads[(me & !31) + lane].wait.set(Wait::No);
            }
            context.warp_ops.set(context.warp_ops.get() + 1);
        }
        Ok(place)
    }

    fn complete(&self, mask: u32) {
        let tick = self.tick.get() + 1;
        self.tick.set(tick);
        let mut partial = self.partial.borrow_mut();
        if mask == self.lanes {
            self.full.set(tick);
            partial.clear();
        } else if let Some(entry) = partial.iter_mut().find(|entry| entry.0 == mask) {
            entry.1 = tick;
        } else {
            partial.push((mask, tick));
        }
    }

    /// Gives a lane the values of its group, once.
    fn collect(&self, place: usize, bit: u32) -> WarpValues {
        let group = &mut self.groups.borrow_mut()[place];
        group.unread &= !bit;
        WarpValues { mask: group.mask, values: group.values }
    }

    /// Takes note that a lane went on without looking at the values.
    fn leave(&self, place: usize, bit: u32) {
        self.groups.borrow_mut()[place].unread &= !bit;
    }

    /// A thread returned: no lane may be waiting for it.
    pub fn on_exit(&self, context: &Context<'_>, gone: usize) -> Checked<()> {
        let groups = self.groups.borrow();
        match groups.iter().find(|group| group.arrived != 0 && group.mask >> (gone % 32) & 1 == 1) {
            None => Ok(()),
            Some(group) => {
                let waiter = (gone & !31) + group.arrived.trailing_zeros() as usize;
                let did = format!("waits in {}", group.op);
                Err(exit_problem(group.op, group.mask).by(waiter, group.site, did).by_exited(context, gone))
            }
        }
    }

    /// Why the lanes of this warp, the first of which is thread `base`, can't go on, if one waits in an
    /// operation.
    pub fn stall(&self, context: &Context<'_>, base: usize) -> Option<Problem> {
        let groups = self.groups.borrow();
        let open = || groups.iter().filter(|group| group.arrived != 0);
        for group in open() {
            let waiter = base + group.arrived.trailing_zeros() as usize;
            for missing in lanes_of(group.mask & !group.arrived) {
                let other = base + missing;
                if context.threads[other].wait.get() == Wait::Barrier {
                    let what = format!(
                        "a warp operation waits for lane {missing}, which waits at a block barrier for the rest"
                    );
                    return Some(
                        Problem::new(FaultKind::Deadlock, what)
                            .by(waiter, group.site, format!("waits in {}", group.op))
                            .by(other, context.threads[other].site.get(), "waits at the block barrier"),
                    );
                }
            }
        }
        let group = open().next()?;
        let waiter = base + group.arrived.trailing_zeros() as usize;
        let missing = group.mask & !group.arrived;
        let other = open().find(|other| other.arrived & missing != 0)?;
        let absent = base + (other.arrived & missing).trailing_zeros() as usize;
        Some(mismatch(waiter, (group.op, group.mask, group.site), absent, (other.op, other.mask, other.site)))
    }
}

type Meeting = (&'static str, u32, Site);

fn mismatch(me: usize, mine: Meeting, other: usize, theirs: Meeting) -> Problem {
    let (kind, what) = if mine.1 != theirs.1 {
        (FaultKind::WarpMask, "lanes that should meet in a warp operation give different masks")
    } else {
        (FaultKind::WarpDivergence, "lanes that should meet in a warp operation are in different ones")
    };
    Problem::new(kind, what).by(me, mine.2, format!("came to {} with mask {:#010x}", mine.0, mine.1)).by(
        other,
        theirs.2,
        format!("waits in {} with mask {:#010x}", theirs.0, theirs.1),
    )
}

fn exit_problem(op: &str, mask: u32) -> Problem {
    let what = format!("{op} with mask {mask:#010x} waits for a lane that never comes to it");
    Problem::new(FaultKind::WarpDivergence, what)
}

/// The lanes of a mask, rising.
pub(crate) fn lanes_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}

/// The whole exchange for the running thread.
#[inline(always)]
pub(crate) fn exchange(
    context: &Context<'_>,
    op: &'static str,
    mask: u32,
    value: u64,
    site: Site,
) -> WarpValues {
    match arrive(context, op, mask, value, site) {
        Some(place) => {
            context.suspend();
            context.warp().collect(place, 1 << (context.me() % 32))
        }
        None => WarpValues { mask, values: [0; 32] },
    }
}

/// An exchange of nothing.
#[inline(always)]
pub(crate) fn barrier(context: &Context<'_>, mask: u32, site: Site) {
    if let Some(place) = arrive(context, "warp_barrier", mask, 0, site) {
        context.suspend();
        context.warp().leave(place, 1 << (context.me() % 32));
    }
}

/// `None` if the thread unwinds, and must not wait.
#[inline(never)]
fn arrive(context: &Context<'_>, op: &'static str, mask: u32, value: u64, site: Site) -> Option<usize> {
    if context.unwinding() {
        return None;
    }
    match context.warp().arrive(context, op, mask, value, site) {
        Ok(place) => Some(place),
        Err(problem) => context.fail(*problem, || None),
    }
}
