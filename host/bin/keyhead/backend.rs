//! `--backend`.

use keyhead::{Backend, Result};
use std::str::FromStr;

/// Where to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Auto,
    Cpu,
    Cuda(usize),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ordinal = match text {
            "auto" => return Ok(Choice::Auto),
            "cpu" => return Ok(Choice::Cpu),
            "cuda" => Some(0),
            _ => text.strip_prefix("cuda:").and_then(|digits| {
                match digits.bytes().all(|b| b.is_ascii_digit()) {
                    true => digits.parse().ok(),
                    false => None,
                }
            }),
        };
        ordinal
            .map(Choice::Cuda)
            .ok_or_else(|| "accepted: auto, cpu, cuda, or cuda:N with N counted from 0".into())
    }
}

impl Choice {
    /// The backend, and a line that says which it is, and why.
    pub fn open(self) -> Result<(Backend, String)> {
        let backend = match self {
            Choice::Auto => return Backend::auto(),
            Choice::Cpu => Backend::cpu()?,
            Choice::Cuda(ordinal) => Backend::cuda(ordinal)?,
        };
        let line = format!("{}, as asked", backend.describe());
        Ok((backend, line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!("auto".parse(), Ok(Choice::Auto));
        assert_eq!("cpu".parse(), Ok(Choice::Cpu));
        assert_eq!("cuda".parse(), Ok(Choice::Cuda(0)));
        assert_eq!("cuda:12".parse(), Ok(Choice::Cuda(12)));
        for bad in [
            "",
            "gpu",
            "CPU",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cuda:+1",
            "cuda:1 ",
            "cuda:99999999999999999999",
        ] {
            assert!(bad.parse::<Choice>().is_err(), "{bad}");
        }
    }
}
