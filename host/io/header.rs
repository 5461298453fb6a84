//! The header of a safetensors file: eight bytes of length, then JSON. Nothing in it is believed before it is checked.

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Bytes of the header's length.
const LENGTH: usize = 8;
/// The longest header that the format allows.
const MAX_HEADER: usize = 100_000_000;
/// The key that holds text about the file instead of a tensor.
const METADATA: &str = "__metadata__";

#[derive(Debug)]
pub(super) struct Header {
    pub tensors: BTreeMap<String, Info>,
    pub metadata: BTreeMap<String, String>,
}

/// A tensor whose `bytes` lie in the file and are as many as shape and dtype ask.
#[derive(Debug)]
pub(super) struct Info {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Range<usize>,
}

/// Tensor names come from the file and go to a terminal: no control characters, no novels.
pub(super) fn printable(name: &str) -> String {
    const LONGEST: usize = 80;
    let escaped = name.escape_debug().to_string();
    match escaped.char_indices().nth(LONGEST) {
        None => escaped,
        Some((end, _)) => format!("{}...", &escaped[..end]),
    }
}

/// An error's text, which quotes what is in the file, and escaped names with it: no control characters, no novels.
fn printable_text(text: &str) -> String {
    const LONGEST: usize = 400;
    let mut printable = String::new();
    for (index, char) in text.chars().enumerate() {
        match char {
            _ if index == LONGEST => {
                printable.push_str("...");
                break;
            }
            '\\' | '"' | '\'' => printable.push(char),
            char => printable.extend(char.escape_debug()),
        }
    }
    printable
}

impl Header {
    /// Parses the header of `file`, the whole file. The error is the problem, in words.
    pub fn parse(file: &[u8]) -> Result<Header, String> {
        let Some((length, rest)) = file.split_first_chunk::<LENGTH>() else {
            return Err(match file.len() {
                0 => "it is empty".into(),
                n => {
                    format!("it ends after {n} bytes, inside the header's length; accepted: 8 bytes or more")
                }
            });
        };
        let length = u64::from_le_bytes(*length);
        let length = match usize::try_from(length) {
            Ok(length) if length <= MAX_HEADER => length,
            _ => return Err(format!("its header is {length} bytes long; accepted: at most {MAX_HEADER}")),
        };
        let Some((json, data)) = rest.split_at_checked(length) else {
            return Err(format!(
                "its header is {length} bytes long, and {} bytes follow; accepted: a header inside the file \
                 (is it cut off?)",
                rest.len()
            ));
        };
        let raw: RawHeader = serde_json::from_slice(json).map_err(|error| {
            format!("its header is not as it should be: {}", printable_text(&error.to_string()))
        })?;
        let tensors = check(raw.tensors, LENGTH + length, data.len())?;
        Ok(Header { tensors, metadata: raw.metadata })
    }
}

/// Puts each tensor at its place in the file, whose `available` bytes of data start at `start`.
fn check(
    raw: BTreeMap<String, TensorInfo>,
    start: usize,
    available: usize,
) -> Result<BTreeMap<String, Info>, String> {
    let mut order: Vec<_> = raw.into_iter().collect();
    order.sort_by_key(|(_, info)| info.data_offsets);
    // The format wants the tensors to cover the data, one behind the other.
    let mut covered = 0;
    let mut before = String::new();
    let mut tensors = BTreeMap::new();
    for (name, TensorInfo { dtype, shape, data_offsets: (begin, end) }) in order {
        let tensor = format!("tensor `{}`", printable(&name));
        if end < begin {
            return Err(format!("{tensor} ends at byte {end}, before its start at {begin}"));
        }
        if end > available {
            return Err(format!(
                "{tensor} ends at byte {end} of the data, which has {available} (is it cut off?)"
            ));
        }
        let elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let Some(bits) = elements.and_then(|n| n.checked_mul(dtype.bitsize())) else {
            return Err(format!("{tensor} of shape {shape:?} has more elements than fit in memory"));
        };
        let held = end - begin;
        if bits % 8 != 0 || bits / 8 != held {
            return Err(format!(
                "{tensor} of shape {shape:?} and dtype {dtype} takes {} bytes, and has {held}",
                bits.div_ceil(8)
            ));
        }
        if begin < covered {
            return Err(format!("{tensor} overlaps tensor `{}`", printable(&before)));
        }
        if begin > covered {
            return Err(format!("the {} bytes before {tensor} belong to no tensor", begin - covered));
        }
        covered = end;
        before.clone_from(&name);
        tensors.insert(name, Info { dtype, shape, bytes: start + begin..start + end });
    }
    if covered != available {
        return Err(format!("the last {} bytes belong to no tensor", available - covered));
    }
    Ok(tensors)
}

/// The JSON, with no name twice.
struct RawHeader {
    tensors: BTreeMap<String, TensorInfo>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;

        impl<'de> Visitor<'de> for Map {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader { tensors: BTreeMap::new(), metadata: BTreeMap::new() };
                let mut has_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    let twice = if name == METADATA {
                        let texts: Option<_> = map.next_value().map_err(|error| within(&name, error))?;
                        header.metadata = texts.unwrap_or_default();
                        std::mem::replace(&mut has_metadata, true)
                    } else {
                        let info = map.next_value().map_err(|error| within(&name, error))?;
                        header.tensors.insert(name.clone(), info).is_some()
                    };
                    if twice {
                        return Err(A::Error::custom(format!("`{}` is there twice", printable(&name))));
                    }
                }
                Ok(header)
            }
        }

        deserializer.deserialize_map(Map)
    }
}

/// Says which entry an error is in.
fn within<E: Error>(name: &str, error: E) -> E {
    E::custom(format!("`{}`: {error}", printable(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data, 0);
        file
    }

    #[test]
    fn a_valid_header() {
        let header = r#"{"__metadata__":{"a":"b"},"y":{"dtype":"F16","shape":[2,1],"data_offsets":[4,8]},
                         "x":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
                         "none":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]}}   "#;
        let parsed = Header::parse(&file(header, 8)).unwrap();
        let start = LENGTH + header.len();
        assert_eq!(parsed.metadata["a"], "b");
        assert_eq!(parsed.tensors["x"].bytes, start..start + 4);
        assert_eq!(parsed.tensors["none"].bytes, start + 4..start + 4);
        assert_eq!(parsed.tensors["y"].bytes, start + 4..start + 8);
        assert_eq!(parsed.tensors["y"].shape, [2, 1]);
        assert_eq!(Header::parse(&file("{}", 0)).unwrap().tensors.len(), 0);
        assert_eq!(Header::parse(&file(r#"{"__metadata__":null}"#, 0)).unwrap().metadata.len(), 0);
    }

    #[test]
    fn a_hostile_dtype_is_escaped() {
        let long = "\u{1b}[2J\u{202e}".to_owned() + &"x".repeat(5000);
        for dtype in ["\u{1b}[2J\u{7}\u{202e}", &long] {
            let json = serde_json::json!({"a\n": {"dtype": dtype, "shape": [], "data_offsets": [0, 0]}});
            let problem = Header::parse(&file(&json.to_string(), 0)).unwrap_err();
            assert!(problem.contains("\\u{1b}[2J") && problem.contains("`a\\n`"), "{problem}");
            assert!(problem.chars().all(|c| !c.is_control() && c != '\u{202e}'), "{problem:?}");
            assert!(problem.len() < 1000, "{problem}");
        }
    }

    #[test]
    fn names_for_a_terminal() {
        assert_eq!(printable("q"), "q");
        assert_eq!(printable("\u{1b}[2J\n"), "\\u{1b}[2J\\n");
        assert_eq!(printable(&"é".repeat(100)), "é".repeat(80) + "...");
    }
}
