//! The shared memory of a block: its arrays, its bytes, and for each byte whether it may be read.

use std::collections::HashMap;
use std::ops::Range;

use bytemuck::{AnyBitPattern, NoUninit, Pod};

use crate::context::{Context, Who};
use crate::fault::{Checked, FaultKind, Problem, Site, same_site};
use crate::launch::Launch;
use crate::order::Random;
use crate::shadow::{Mode, Race, Shadow};

/// Where the first array begins. Small addresses, such as zero, are in no array.
const BASE: u32 = 1024;

/// Bytes between arrays that belong to none of them.
const RED_ZONE: u32 = 512;

/// The alignment of the dynamic part; more isn't promised on a device.
const DYNAMIC_ALIGN: u32 = 16;

// The state of a word: four bits, one per byte, for each property.
const ALLOCATED: u16 = 0x000f;
const WRITTEN: u16 = 0x00f0;
const PENDING: u16 = 0x0f00;
/// The word's accesses are remembered byte by byte.
const SPLIT: u16 = 0x1000;

pub(crate) struct Shared {
    data: Vec<u8>,
    /// Per word. One look tells whether an access to it needs a closer one.
    state: Vec<u16>,
    /// Per word.
    words: Vec<Shadow>,
    /// Per byte of the words that had an access to a part of them; shorter than that where there was none.
    word_bytes: Vec<[Shadow; 4]>,
    arrays: Vec<Array>,
    /// The end of the last array.
    end: u32,
    /// Bytes the arrays take on a device, where they have no red zones.
    used: usize,
    largest: usize,
    dynamic_bytes: usize,
    limit: usize,
    /// Reads of bytes that nobody wrote give the poison.
    poison_readable: bool,
    poison: Random,
    /// For the words that another block of the cluster wrote, in which phase.
    foreign: HashMap<usize, u32>,
    /// Counts the cluster barriers that the block passed.
    phase: u32,
}

struct Array {
    /// Where it is declared; the dynamic part has no such place.
    site: Option<Site>,
    addr: u32,
    bytes: u32,
    align: u32,
}

impl Shared {
    pub fn new(launch: &Launch) -> Self {
        Shared {
            data: Vec::new(),
            state: Vec::new(),
            words: Vec::new(),
            word_bytes: Vec::new(),
            arrays: Vec::new(),
            end: BASE,
            used: 0,
            largest: 0,
            dynamic_bytes: launch.dynamic_bytes(),
            limit: launch.limit(),
            poison_readable: launch.is_poison_readable(),
            poison: Random::new(0),
            foreign: HashMap::new(),
            phase: 0,
        }
    }

    /// False if the block is in that phase of its cluster.
    pub fn enter_phase(&mut self, phase: u32) -> bool {
        std::mem::replace(&mut self.phase, phase) != phase
    }

    /// Writes for another block of the cluster. Says what is wrong with the place otherwise.
    pub fn write_from_outside(
        &mut self,
        addr: u32,
        align: usize,
        bytes: &[u8],
        phase: u32,
    ) -> Result<(), String> {
        let range = addr as usize..addr as usize + bytes.len();
        if !range.start.is_multiple_of(align) || !(range.start | bytes.len()).is_multiple_of(4) {
            return Err(format!("{}, which are not aligned,", bytes_text(&range)));
        }
        let words = range.start / 4..range.end / 4;
        if !words.clone().all(|word| self.state.get(word).is_some_and(|state| state & ALLOCATED == ALLOCATED))
        {
            return Err(format!("{}, which are outside of all arrays declared so far,", bytes_text(&range)));
        }
        for word in words {
            self.state[word] |= WRITTEN;
            if phase > 0 {
                self.foreign.insert(word, phase);
            }
        }
        self.data[range].copy_from_slice(bytes);
        Ok(())
    }

    /// Forgets the arrays of the block before. What the shadow remembers is of an earlier epoch and may stay.
    pub fn begin_block(&mut self, salt: u64, block: u64) {
        self.poison = Random::new(salt.rotate_left(32) ^ block);
        self.state.fill(0);
        self.foreign.clear();
        self.arrays.clear();
        self.end = BASE - RED_ZONE;
        self.used = 0;
        // The launch checked it against the limit.
        self.allocate(None, self.dynamic_bytes as u32, DYNAMIC_ALIGN);
    }

    /// The most bytes that a block used.
    pub fn largest(&self) -> usize {
        self.largest
    }

    pub fn dynamic(&self) -> u32 {
        self.arrays[0].addr
    }

    /// The array declared at a place; it is made when the first thread comes there. A place in generic code
    /// can declare arrays of several sizes.
    pub fn declare(&mut self, who: &Who<'_>, bytes: u32, align: u32) -> Checked<u32> {
        let known = self.arrays.iter().find(|array| {
            array.bytes == bytes
                && array.align == align
                && array.site.is_some_and(|site| same_site(site, who.site))
        });
        if let Some(array) = known {
            return Ok(array.addr);
        }
        assert!(align.is_power_of_two(), "the alignment {align} of a shared array isn't a power of two");
        let used = self.used.next_multiple_of(align as usize) + bytes as usize;
        if used > self.limit {
            let what = format!(
                "the block's arrays need {used} bytes of shared memory; the launch may have {}",
                self.limit
            );
            let did = format!("declares an array of {bytes} bytes");
            return Err(Box::new(Problem::new(FaultKind::SharedLimit, what).by(
                who.thread.into(),
                who.site,
                did,
            )));
        }
        Ok(self.allocate(Some(who.site), bytes, align))
    }

    fn allocate(&mut self, site: Option<Site>, bytes: u32, align: u32) -> u32 {
        let mut addr = (self.end + RED_ZONE).next_multiple_of(align);
        // Not aligned by accident to more than was asked for.
        if (addr / align).is_multiple_of(2) {
            addr += align;
        }
        self.end = addr + bytes;
        self.used = self.used.next_multiple_of(align as usize) + bytes as usize;
        self.largest = self.largest.max(self.used);
        self.arrays.push(Array { site, addr, bytes, align });

        let words = self.end.div_ceil(4) as usize;
        if words > self.state.len() {
            self.state.resize(words, 0);
            self.words.resize(words, Shadow::NEW);
            self.data.resize(words * 4, 0);
        }
        for byte in addr..self.end {
            self.state[byte as usize / 4] |= 1 << (byte % 4);
        }
        for half in self.data[addr as usize..self.end as usize].chunks_mut(2) {
            // Not a number as f16, as bf16, and as the upper half of f32 and f64.
            let random = self.poison.next() as u16;
            let poison = 0x7ff0 | random & 0x8000 | (random % 15 + 1);
            half.copy_from_slice(&poison.to_le_bytes()[..half.len()]);
        }
        addr
    }

    /// Checks an access, remembers it, and returns the place of its bytes in [`Shared::bytes`].
    #[inline]
    pub fn access(
        &mut self,
        who: &Who<'_>,
        addr: u32,
        size: usize,
        align: usize,
        mode: Mode,
    ) -> Checked<Range<usize>> {
        let range = addr as usize..addr as usize + size;
        // `align` is a power of two; a remainder would take longer than the rest of a check.
        if range.start & (align - 1) != 0 {
            return Err(self.misaligned(who, addr, size, align, mode));
        }
        if !self.foreign.is_empty()
            && (range.start / 4..range.end.div_ceil(4))
                .any(|word| self.foreign.get(&word) == Some(&self.phase))
        {
            let what = format!("no cluster barrier orders another block's write to {}", bytes_text(&range));
            let problem = Problem::new(FaultKind::SharedRace, what);
            return Err(Box::new(problem.by(who.thread.into(), who.site, mode_text(mode))));
        }
        let (care, expect) = match mode {
            Mode::Read | Mode::Atomic => (ALLOCATED | WRITTEN | PENDING | SPLIT, ALLOCATED | WRITTEN),
            Mode::Write | Mode::Issue => (ALLOCATED | PENDING | SPLIT, ALLOCATED),
            Mode::Land => (SPLIT, 0),
        };
        if (range.start | size).is_multiple_of(4) {
            for word in range.start / 4..range.end / 4 {
                match self.state.get_mut(word) {
                    Some(state) if *state & care == expect => {
                        if let Err(race) = self.words[word].touch(who, mode) {
                            return Err(race_problem(who, &range, mode, &race));
                        }
                        if mode == Mode::Write {
                            *state |= WRITTEN;
                        }
                    }
                    _ => self.access_part(who, word, 0xf, &range, mode)?,
                }
            }
        } else {
            for word in range.start / 4..range.end.div_ceil(4) {
                let first = range.start.saturating_sub(word * 4);
                let end = (range.end - word * 4).min(4);
                self.access_part(who, word, (1 << end) - (1 << first), &range, mode)?;
            }
        }
        Ok(range)
    }

    /// The same for the bytes `part`, a bit each, of one word, when they need a closer look.
    fn access_part(
        &mut self,
        who: &Who<'_>,
        word: usize,
        part: u16,
        range: &Range<usize>,
        mode: Mode,
    ) -> Checked<()> {
        let state = self.state.get(word).copied().unwrap_or(0);
        if state & part != part {
            return Err(self.out_of_bounds(who, range, mode));
        }
        if mode != Mode::Land && state & part << 8 != 0 {
            let what = format!("{} while an asynchronous copy to them is in flight", bytes_text(range));
            return Err(Box::new(Problem::new(FaultKind::AsyncPending, what).by(
                who.thread.into(),
                who.site,
                mode_text(mode),
            )));
        }
        if matches!(mode, Mode::Read | Mode::Atomic)
            && !self.poison_readable
            && state & part << 4 != part << 4
        {
            let what = format!("{} have a part that no thread wrote in this block", bytes_text(range));
            return Err(Box::new(Problem::new(FaultKind::SharedUninitialised, what).by(
                who.thread.into(),
                who.site,
                mode_text(mode),
            )));
        }
        if state & SPLIT == 0 && part == 0xf {
            self.words[word].touch(who, mode).map_err(|race| race_problem(who, range, mode, &race))?;
        } else {
            if self.word_bytes.len() <= word {
                self.word_bytes.resize(word + 1, [Shadow::NEW; 4]);
            }
            let bytes = &mut self.word_bytes[word];
            if state & SPLIT == 0 {
                *bytes = [self.words[word]; 4];
                self.state[word] |= SPLIT;
            }
            for (byte, shadow) in bytes.iter_mut().enumerate() {
                if part >> byte & 1 == 1 {
                    shadow.touch(who, mode).map_err(|race| race_problem(who, range, mode, &race))?;
                }
            }
        }
        match mode {
            Mode::Write | Mode::Atomic => self.state[word] |= part << 4,
            Mode::Read | Mode::Issue | Mode::Land => {}
        }
        Ok(())
    }

    /// Marks the bytes of an asynchronous copy as in flight. They are words.
    pub fn set_pending(&mut self, range: &Range<usize>) {
        for state in &mut self.state[range.start / 4..range.end / 4] {
            *state |= PENDING;
        }
    }

    /// Marks the bytes of an asynchronous copy as arrived.
    pub fn set_landed(&mut self, range: &Range<usize>) {
        for state in &mut self.state[range.start / 4..range.end / 4] {
            *state = *state & !PENDING | WRITTEN;
        }
    }

    /// The bytes of an access that was checked.
    #[inline]
    pub fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.data[range]
    }

    #[cold]
    fn misaligned(&self, who: &Who<'_>, addr: u32, size: usize, align: usize, mode: Mode) -> Box<Problem> {
        let what =
            format!("an access of {size} bytes to shared {addr:#x}, which isn't a multiple of {align}");
        Box::new(Problem::new(FaultKind::Alignment, what).by(who.thread.into(), who.site, mode_text(mode)))
    }

    #[cold]
    fn out_of_bounds(&self, who: &Who<'_>, range: &Range<usize>, mode: Mode) -> Box<Problem> {
        let distance = |array: &&Array| {
            let (start, end) = (array.addr as usize, (array.addr + array.bytes) as usize);
            start.saturating_sub(range.start).max(range.end.saturating_sub(end))
        };
        let what = match self.arrays.iter().filter(|array| array.bytes > 0).min_by_key(distance) {
            None => format!("{} in a block without shared arrays", bytes_text(range)),
            Some(array) => {
                let offset = range.start as i64 - i64::from(array.addr);
                let name = match array.site {
                    Some(site) => format!("the array declared at {site}"),
                    None => "the dynamic part".to_string(),
                };
                format!("{} are at byte {offset} of {name}, which has {}", bytes_text(range), array.bytes)
            }
        };
        Box::new(Problem::new(FaultKind::SharedBounds, what).by(who.thread.into(), who.site, mode_text(mode)))
    }
}

#[cold]
fn race_problem(who: &Who<'_>, range: &Range<usize>, mode: Mode, race: &Race) -> Box<Problem> {
    let what = format!("nothing orders two threads' accesses to {}", bytes_text(range));
    Box::new(Problem::new(FaultKind::SharedRace, what).by(who.thread.into(), who.site, mode_text(mode)).by(
        race.thread,
        race.site,
        race.did,
    ))
}

fn bytes_text(range: &Range<usize>) -> String {
    format!("shared bytes {:#x}..{:#x}", range.start, range.end)
}

fn mode_text(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "reads them",
        Mode::Write => "writes them",
        Mode::Atomic => "changes them atomically",
        Mode::Issue => "issues an asynchronous copy to them",
        Mode::Land => "waits for an asynchronous copy to them",
    }
}

/// The alignment that an access needs: a vector access as much as its size, a larger value as much as its
/// type.
pub(crate) const fn access_align<T>() -> usize {
    let size = size_of::<T>();
    if size.is_power_of_two() && size <= 16 { size } else { align_of::<T>() }
}

/// Checks an access of the running thread and hands its bytes to `f`. `None` if it faults while the thread
/// unwinds already, so that it must not happen.
#[inline]
fn with_bytes<T, R>(
    context: &Context<'_>,
    addr: u32,
    mode: Mode,
    site: Site,
    f: impl FnOnce(&mut [u8]) -> R,
) -> Option<R> {
    let mut shared = context.shared.borrow_mut();
    match shared.access(&context.who(site), addr, size_of::<T>(), access_align::<T>(), mode) {
        Ok(range) => Some(f(shared.bytes(range))),
        Err(problem) => {
            drop(shared);
            let problem = context.name_copy(*problem, addr, size_of::<T>());
            context.fail(problem, || None)
        }
    }
}

#[inline]
pub(crate) fn load<T: AnyBitPattern>(context: &Context<'_>, addr: u32, site: Site) -> T {
    with_bytes::<T, T>(context, addr, Mode::Read, site, |bytes| bytemuck::pod_read_unaligned(bytes))
        .unwrap_or_else(T::zeroed)
}

#[inline]
pub(crate) fn store<T: NoUninit>(context: &Context<'_>, addr: u32, value: T, site: Site) {
    let write = |bytes: &mut [u8]| bytes.copy_from_slice(bytemuck::bytes_of(&value));
    with_bytes::<T, ()>(context, addr, Mode::Write, site, write);
}

#[inline]
pub(crate) fn update<T: Pod>(context: &Context<'_>, addr: u32, f: impl FnOnce(T) -> T, site: Site) -> T {
    let read = |bytes: &mut [u8]| bytemuck::pod_read_unaligned(bytes);
    let Some(old) = with_bytes::<T, T>(context, addr, Mode::Atomic, site, read) else { return T::zeroed() };
    // Not under the borrow of the memory: `f` is the kernel's and may panic or access memory.
    let new = f(old);
    let range = addr as usize..addr as usize + size_of::<T>();
    context.shared.borrow_mut().bytes(range).copy_from_slice(bytemuck::bytes_of(&new));
    old
}
