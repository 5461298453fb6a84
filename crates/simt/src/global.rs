//! Global memory: the host's own, where the launch registered it.

use bytemuck::{AnyBitPattern, NoUninit, Pod};

use crate::context::Context;
use crate::fault::{Checked, FaultKind, Problem, Site};
use crate::shared::access_align;

/// Memory that a kernel may access.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub name: &'static str,
    pub start: usize,
    pub bytes: usize,
    pub writable: bool,
}

impl Region {
    fn holds(&self, addr: usize, size: usize) -> bool {
        addr >= self.start && addr - self.start <= self.bytes && size <= self.bytes - (addr - self.start)
    }

    fn distance(&self, addr: usize, size: usize) -> usize {
        self.start.saturating_sub(addr).max((addr + size).saturating_sub(self.start + self.bytes))
    }
}

/// Checks a global access of the running thread.
#[inline]
pub(crate) fn check(
    context: &Context<'_>,
    addr: usize,
    size: usize,
    align: usize,
    write: bool,
    site: Site,
) -> Checked<()> {
    if addr & (align - 1) != 0 {
        let what =
            format!("an access of {size} bytes to global {addr:#x}, which isn't a multiple of {align}");
        return Err(Box::new(Problem::new(FaultKind::Alignment, what).by(context.me(), site, verb(write))));
    }
    // Accesses come in runs to the same region.
    let regions = context.launch.regions();
    let fits = |region: &Region| region.holds(addr, size) && (region.writable || !write);
    if regions.get(context.last_region.get()).is_some_and(fits) {
        return Ok(());
    }
    match regions.iter().position(fits) {
        Some(place) => {
            context.last_region.set(place);
            Ok(())
        }
        None => Err(outside(context, addr, size, write, site)),
    }
}

#[cold]
fn outside(context: &Context<'_>, addr: usize, size: usize, write: bool, site: Site) -> Box<Problem> {
    let regions = context.launch.regions();
    let what = match regions.iter().min_by_key(|region| region.distance(addr, size)) {
        None => "a launch without global memory".to_string(),
        Some(region) if region.holds(addr, size) => {
            let offset = addr - region.start;
            format!("{size} bytes at byte {offset} of `{}`, which is registered as an input", region.name)
        }
        Some(region) => {
            let offset = addr as i128 - region.start as i128;
            let Region { name, bytes, .. } = region;
            format!(
                "{size} bytes outside of all registered memory; the nearest is `{name}`, which has {bytes} bytes, \
                 at byte {offset}"
            )
        }
    };
    Box::new(Problem::new(FaultKind::GlobalBounds, what).by(context.me(), site, verb(write)))
}

fn verb(write: bool) -> &'static str {
    if write { "writes them" } else { "reads them" }
}

/// Checks an access to a `T`. False if it faults while the thread unwinds already, so that it must not
/// happen.
#[inline]
fn allows<T>(context: &Context<'_>, addr: usize, write: bool, site: Site) -> bool {
    match check(context, addr, size_of::<T>(), access_align::<T>(), write, site) {
        Ok(()) => true,
        Err(problem) => context.fail(*problem, || false),
    }
}

#[inline]
pub(crate) fn load<T: AnyBitPattern>(context: &Context<'_>, ptr: *const T, site: Site) -> T {
    if !allows::<T>(context, ptr.addr(), false, site) {
        return T::zeroed();
    }
    // SAFETY: the value lies in registered memory, which `Launch::input` and `Launch::output` require to stay
    // for the whole run, and any bits are a `T`.
    unsafe { ptr.read_unaligned() }
}

#[inline]
pub(crate) fn store<T: NoUninit>(context: &Context<'_>, ptr: *mut T, value: T, site: Site) {
    if allows::<T>(context, ptr.addr(), true, site) {
        // SAFETY: the value lies in memory registered as output, which `Launch::output` requires to stay and
        // to be the kernel's alone for the whole run.
        unsafe { ptr.write_unaligned(value) }
    }
}

#[inline]
pub(crate) fn update<T: Pod>(context: &Context<'_>, ptr: *mut T, f: impl FnOnce(T) -> T, site: Site) -> T {
    if !allows::<T>(context, ptr.addr(), true, site) {
        return T::zeroed();
    }
    // SAFETY: as in `load` and `store`.
    let old = unsafe { ptr.read_unaligned() };
    let new = f(old);
    // SAFETY: the same.
    unsafe { ptr.write_unaligned(new) };
    old
}
