//! Files that are not what they should be: each gets its message, and none a panic.

use keyhead::Error;
use keyhead::io::{Data, Dim, Dtype, FLOATS, File, Output, Stored, write};
use proptest::prelude::*;
use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn file(header: &str, data: usize) -> Vec<u8> {
    file_of_length(header.len() as u64, header, data)
}

fn file_of_length(length: u64, header: &str, data: usize) -> Vec<u8> {
    let mut file = length.to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 1);
    file
}

/// A small input of `keyhead gdn` that is valid.
fn valid(folder: &Path) -> PathBuf {
    let path = folder.join("valid.safetensors");
    let rows = vec![0.25f32; 128];
    let shape = vec![1, 1, 128];
    let tensor = |name, shape: &[usize], data| Output { name, shape: shape.to_vec(), data: Data::F32(data) };
    let tensors = [
        tensor("q", &shape, &rows),
        tensor("k", &shape, &rows),
        tensor("v", &shape, &rows),
        tensor("g", &[1, 1], &rows[..1]),
        tensor("beta", &[1, 1], &rows[..1]),
    ];
    write(&path, &tensors, &[("a", "b")]).unwrap();
    path
}

/// Opens a file and reads all that `keyhead gdn` would.
fn read(path: &Path) -> Result<usize, Error> {
    let file = File::open(path)?;
    let mut elements = 0;
    for name in ["q", "k", "v"] {
        let dims = [Dim::Any("T"), Dim::Any("H"), Dim::Just(128)];
        elements += file.tensor(name, dims, FLOATS)?.f32()?.len();
    }
    for name in ["g", "beta"] {
        elements += file.tensor(name, [Dim::Any("T"), Dim::Any("H")], FLOATS)?.f32()?.len();
    }
    Ok(elements)
}

fn exit_code(path: &Path) -> Option<i32> {
    let output = path.with_extension("out");
    let ran = Command::new(env!("CARGO_BIN_EXE_keyhead"))
        .args(["gdn", path.to_str().unwrap(), "-o", output.to_str().unwrap()])
        .args(["--head-map", "tiled", "--backend", "cpu"])
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&ran.stderr).contains("panicked"));
    assert_eq!(ran.status.code() == Some(0), output.exists());
    let _ = fs::remove_file(output);
    ran.status.code()
}

#[test]
fn each_defect_has_its_message() {
    let x = r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    let after_x = |more: &str, data| file(&format!("{x},{more}}}"), data);
    let one = |entry: &str, data| file(&format!(r#"{{"x":{entry}}}"#), data);
    let deep = format!(r#"{{"x":{}"#, "[".repeat(100_000));
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (vec![], &["it is empty"]),
        (vec![0; 5], &["ends after 5 bytes"]),
        (file_of_length(1 << 20, "{}", 0), &["header is 1048576 bytes", "2 bytes follow"]),
        (file_of_length(100_000_001, "{}", 0), &["header is 100000001 bytes", "at most 100000000"]),
        (file_of_length(u64::MAX, "{}", 0), &["header is 18446744073709551615 bytes"]),
        (file("", 0), &["header"]),
        (file("[]", 0), &["an object of tensors"]),
        (file("nonsense", 0), &["header"]),
        (file(r#"{"x":"#, 0), &["header", "EOF"]),
        (file("{} {}", 0), &["header", "trailing"]),
        (file(&deep, 0), &["header"]),
        (file_of_length(4, "{\"\u{fc}\":{}}", 0), &["header"]),
        (one("3", 0), &["`x`", "integer `3`"]),
        (one(r#"{"dtype":"F32","shape":[2]}"#, 8), &["`x`", "data_offsets"]),
        (one(r#"{"dtype":"F31","shape":[2],"data_offsets":[0,8]}"#, 8), &["`x`", "`F31`", "`BF16`"]),
        (one(r#"{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}"#, 8), &["`x`", "-2"]),
        (one(r#"{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}"#, 8), &["`x`", "2.5"]),
        (one(r#"{"dtype":"F32","shape":[2],"data_offsets":[0]}"#, 8), &["`x`", "length 1"]),
        (one(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,99999999999999999999]}"#, 8), &["`x`"]),
        (
            one(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#, 8),
            &["`x` ends at byte 0", "start at 8"],
        ),
        (one(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,16]}"#, 8), &["`x` ends at byte 16", "has 8"]),
        (
            one(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#, 8),
            &["`x`", "[3]", "takes 12 bytes, and has 8"],
        ),
        (
            one(r#"{"dtype":"F16","shape":[2],"data_offsets":[0,8]}"#, 8),
            &["`x`", "F16", "takes 4 bytes, and has 8"],
        ),
        (one(r#"{"dtype":"F4","shape":[3],"data_offsets":[0,1]}"#, 1), &["`x`", "takes 2 bytes, and has 1"]),
        (
            one(r#"{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}"#, 8),
            &["`x`", "more elements than fit"],
        ),
        (
            one(r#"{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,8]}"#, 8),
            &["`x`", "more elements than fit"],
        ),
        (one(r#"{"dtype":"F32","shape":[2],"data_offsets":[4,12]}"#, 12), &["4 bytes before tensor `x`"]),
        (
            one(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#, 11),
            &["last 3 bytes belong to no tensor"],
        ),
        (
            after_x(r#""y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}"#, 12),
            &["`y` overlaps tensor `x`"],
        ),
        (after_x(r#""y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#, 8), &["overlaps"]),
        (
            after_x(r#""y":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}"#, 20),
            &["4 bytes before tensor `y`"],
        ),
        (after_x(r#""x":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}"#, 16), &["`x` is there twice"]),
        (after_x(r#""__metadata__":{"a":1}"#, 8), &["`__metadata__`", "integer `1`"]),
        (after_x(r#""__metadata__":{},"__metadata__":{}"#, 8), &["`__metadata__` is there twice"]),
        (file("{\"\\u001b[2J\":3}", 0), &["`\\u{1b}[2J`"]),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.safetensors");
    for (bytes, parts) in cases {
        fs::write(&path, &bytes).unwrap();
        let error = File::open(&path).expect_err("a hostile file");
        let text = error.to_string();
        assert!(matches!(error, Error::Format { .. }), "{text}");
        assert_eq!(error.exit_code(), 2);
        assert!(text.contains("hostile.safetensors is not a usable safetensors file"), "{text}");
        assert!(!text.contains('\u{1b}'));
        for part in parts {
            assert!(text.contains(part), "no `{part}` in: {text}");
        }
        assert_eq!(exit_code(&path), Some(2), "{text}");
    }
}

#[test]
fn a_missing_tensor_in_a_file_of_many() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.safetensors");
    let entry = |n: usize| {
        format!(r#""t{n:03}{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#, "x".repeat(n * 3))
    };
    fs::write(&path, file(&format!("{{{}}}", (0..100).map(entry).collect::<Vec<_>>().join(",")), 0)).unwrap();
    let text = File::open(&path).unwrap().tensor("q", [Dim::Just(1)], FLOATS).unwrap_err().to_string();
    assert!(text.contains("`q` is missing") && text.contains("`t000`") && text.contains("60 more"), "{text}");
    assert!(text.len() < 5000);
    fs::write(&path, file("{}", 0)).unwrap();
    let text = File::open(&path).unwrap().tensor("q", [Dim::Just(1)], FLOATS).unwrap_err().to_string();
    assert!(text.contains("holds no tensor"), "{text}");
}

#[test]
fn a_file_cut_off_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(valid(folder.path())).unwrap();
    let path = folder.path().join("cut.safetensors");
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let error = read(&path).expect_err("a file cut off");
        assert!(matches!(error, Error::Format { .. }), "{length}: {error}");
        if length % 97 == 0 {
            assert_eq!(exit_code(&path), Some(2), "{length}");
        }
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(read(&path).unwrap(), 3 * 128 + 2);
    assert_eq!(exit_code(&path), Some(0));
}

#[test]
fn tensors_at_odd_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.safetensors");
    let header = r#"{"b":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}}"#;
    let mut in_place = 0;
    for padding in ["", " ", "  ", "   "] {
        let mut bytes = file(&format!("{header}{padding}"), 1);
        bytes.extend([1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()));
        fs::write(&path, bytes).unwrap();
        let file = File::open(&path).unwrap();
        let tensor = file.tensor("x", [Dim::Any("N")], FLOATS).unwrap();
        assert_eq!(tensor.f32().unwrap(), [1.5, -2.0]);
        let Stored::F32(words) = tensor.stored().unwrap() else { panic!("f32 in the file") };
        assert_eq!(*words, [1.5, -2.0]);
        in_place += usize::from(matches!(words, Cow::Borrowed(_)));
        let byte = file.tensor("b", [Dim::Any("N")], &[Dtype::I8]).unwrap();
        assert!(matches!(byte.stored(), Err(Error::Dtype { .. })));
    }
    assert_eq!(in_place, 1, "one of four addresses is aligned");
}

#[test]
fn what_is_written_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.safetensors");
    let (wide, half) = ([1.0f32, f32::NAN, -0.0], [half::f16::from_f32(0.5)]);
    let tensors = [
        Output { name: "half", shape: vec![1], data: Data::F16(&half) },
        Output { name: "wide", shape: vec![3, 1], data: Data::F32(&wide) },
        Output { name: "none", shape: vec![0, 5], data: Data::Bf16(&[]) },
    ];
    write(&path, &tensors, &[("k", "v"), ("a", "\"\n")]).unwrap();
    let first = fs::read(&path).unwrap();
    for _ in 0..8 {
        write(&path, &tensors, &[("a", "\"\n"), ("k", "v")]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), first, "the bytes depend on more than what is written");
    }
    let file = File::open(&path).unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["half", "none", "wide"]);
    assert_eq!(file.metadata()["a"], "\"\n");
    let back = file.tensor("wide", [Dim::Any("N"), Dim::Just(1)], FLOATS).unwrap().f32().unwrap();
    assert_eq!(back.map_bits(), wide.map_bits());
    // The crate that everyone reads them with agrees.
    let view = safetensors::SafeTensors::deserialize(&first).unwrap();
    assert_eq!(view.tensor("half").unwrap().data(), [0x00, 0x38]);

    let wrong = [Output { name: "wide", shape: vec![4], data: Data::F32(&wide) }];
    assert!(matches!(write(&path, &wrong, &[]), Err(Error::Length { .. })));
    let twice = [tensors[0].clone(), tensors[0].clone()];
    assert!(matches!(write(&path, &twice, &[]), Err(Error::Argument { .. })));
    assert_eq!(fs::read(&path).unwrap(), first);
}

trait Bits {
    fn map_bits(&self) -> Vec<u32>;
}

impl<T: AsRef<[f32]>> Bits for T {
    fn map_bits(&self) -> Vec<u32> {
        self.as_ref().iter().map(|x| x.to_bits()).collect()
    }
}

#[test]
fn a_write_that_fails_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "as it was").unwrap();
    let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
    let error = keyhead::io::replace(&path, |out| out.write_all(b"half").and(Err(full()))).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("no storage space"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"as it was");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    keyhead::io::check_target(&path).unwrap();
    keyhead::io::check_target(folder.path().join("new")).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A change to a file.
#[derive(Clone, Debug)]
enum Mutation {
    Set(prop::sample::Index, u8),
    Flip(prop::sample::Index, u8),
    Remove(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    /// A digit of the header becomes another: the JSON stays JSON, and the numbers lie.
    Digit(prop::sample::Index, u8),
    Cut(prop::sample::Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        1 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        1 => (at(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        1 => (at(), 1..40usize).prop_map(|(at, count)| Mutation::Remove(at, count)),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        8 => (at(), b'0'..=b'9').prop_map(|(at, digit)| Mutation::Digit(at, digit)),
        1 => at().prop_map(Mutation::Cut),
    ]
}

/// Changes the first `within` bytes, where the header is.
fn mutate(bytes: &mut Vec<u8>, within: usize, mutation: &Mutation) {
    let within = within.min(bytes.len());
    if within == 0 {
        return;
    }
    match mutation {
        Mutation::Set(at, byte) => bytes[at.index(within)] = *byte,
        Mutation::Flip(at, bit) => bytes[at.index(within)] ^= 1 << bit,
        Mutation::Remove(at, count) => {
            let at = at.index(within);
            bytes.drain(at..bytes.len().min(at + count));
        }
        Mutation::Insert(at, new) => {
            let at = at.index(within);
            bytes.splice(at..at, new.iter().copied());
        }
        Mutation::Digit(at, digit) => {
            let digits: Vec<_> = (8..within).filter(|&i| bytes[i].is_ascii_digit()).collect();
            if !digits.is_empty() {
                bytes[digits[at.index(digits.len())]] = *digit;
            }
        }
        Mutation::Cut(at) => bytes.truncate(at.index(bytes.len())),
    }
}

struct Fixture {
    _folder: TempDir,
    path: PathBuf,
    whole: Vec<u8>,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(valid(folder.path())).unwrap();
    Fixture { path: folder.path().join("mutant.safetensors"), _folder: folder, whole }
}

fn header_length(whole: &[u8]) -> usize {
    8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize
}

#[test]
fn mutants_never_panic() {
    let Fixture { _folder, path, whole } = fixture();
    let header = header_length(&whole);
    proptest!(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() },
    |(mutations in prop::collection::vec(mutation(), 1..4))| {
        let mut bytes = whole.clone();
        mutations.iter().for_each(|one| mutate(&mut bytes, header, one));
        fs::write(&path, &bytes).unwrap();
        if let Err(error) = read(&path) {
            prop_assert_eq!(error.exit_code(), 2);
            prop_assert!(!error.to_string().chars().any(char::is_control), "{error:?}");
        }
    });
}

#[test]
fn mutants_never_panic_the_command() {
    let Fixture { _folder, path, whole } = fixture();
    let header = header_length(&whole);
    proptest!(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() },
    |(mutations in prop::collection::vec(mutation(), 1..3))| {
        let mut bytes = whole.clone();
        mutations.iter().for_each(|one| mutate(&mut bytes, header, one));
        fs::write(&path, &bytes).unwrap();
        prop_assert!(matches!(exit_code(&path), Some(0 | 2)));
    });
}
