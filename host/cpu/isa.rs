//! The instruction sets that the backend is compiled for, and which of them runs.

use super::fp_env::IeeeDefaults;
use super::lanes::Lanes;
use crate::error::{Error, Result};
use std::fmt;
use std::sync::OnceLock;

/// The environment variable that forces an instruction set.
const SWITCH: &str = "KEYHEAD_CPU";

/// An instruction set. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Whatever the compiler targets; fast where that has a fused multiply-add (aarch64), slow on x86-64.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, VL, BW and DQ.
    Avx512,
}

impl Isa {
    /// From the slowest to the fastest.
    pub const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// f32 of a vector.
    pub(super) fn lanes(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => <std::arch::x86_64::__m512 as Lanes>::LANES,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => <std::arch::x86_64::__m256 as Lanes>::LANES,
            _ => Plain::LANES,
        }
    }

    /// Whether this CPU, and the operating system, can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => false,
        }
    }

    /// Those that can run here, from the slowest to the fastest.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// The fastest that can run here.
    pub fn detect() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
        })
    }

    /// The one that `KEYHEAD_CPU` names, else the fastest. An unknown name, or one that cannot run here, is an error.
    pub fn chosen() -> Result<Isa> {
        // Read once: a call should not search the environment, and one process should not change its mind.
        static SETTING: OnceLock<Option<String>> = OnceLock::new();
        let setting = SETTING
            .get_or_init(|| std::env::var_os(SWITCH).map(|value| value.to_string_lossy().into_owned()));
        match setting {
            None => Ok(Isa::detect()),
            Some(name) => Isa::parse(name),
        }
    }

    fn parse(name: &str) -> Result<Isa> {
        match Isa::ALL.into_iter().find(|isa| isa.name() == name) {
            Some(isa) => isa.checked(),
            None => {
                let names = Isa::ALL.map(Isa::name).join(", ");
                Err(Error::argument(SWITCH, format!("`{name}`"), names))
            }
        }
    }

    /// Does `work` with this instruction set, which this CPU has, in the IEEE environment.
    pub(super) fn run(self, work: impl Work) {
        let _ieee = IeeeDefaults::set();
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this CPU has the instruction set.
            Isa::Avx512 => unsafe { x86::avx512(work) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this CPU has the instruction set.
            Isa::Avx2 => unsafe { x86::avx2(work) },
            // SAFETY: plain arrays need no instruction set.
            _ => unsafe { work.run::<Plain>() },
        }
    }

    /// Itself, if it can run here.
    pub(super) fn checked(self) -> Result<Isa> {
        if self.is_available() {
            return Ok(self);
        }
        let names = Isa::available().iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
        Err(Error::Variant {
            variant: self.name().into(),
            reason: format!("this CPU lacks it; accepted: {names}"),
        })
    }
}

/// A vector where no instruction set is named.
type Plain = [f32; 8];

/// A piece of work that is compiled for each instruction set.
pub(super) trait Work {
    /// Mark it `#[inline(always)]`, and what it calls: only then is it compiled for the instruction set of the caller.
    ///
    /// # Safety
    /// As [`Lanes`].
    unsafe fn run<L: Lanes>(self);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Work;
    use std::arch::x86_64::{__m256, __m512};

    /// # Safety
    /// The CPU has the instruction set.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")]
    pub unsafe fn avx512(work: impl Work) {
        // SAFETY: the caller's promise.
        unsafe { work.run::<__m512>() }
    }

    /// # Safety
    /// The CPU has the instruction set.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn avx2(work: impl Work) {
        // SAFETY: the caller's promise.
        unsafe { work.run::<__m256>() }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for isa in Isa::available() {
            assert_eq!(Isa::parse(isa.name()).unwrap(), isa);
        }
        assert!(Isa::detect().is_available());
    }

    #[test]
    fn unknown_names_are_refused() {
        let error = Isa::parse("sse9").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert_eq!(error.to_string(), "argument `KEYHEAD_CPU` is `sse9`; accepted: portable, avx2, avx512");
    }
}
