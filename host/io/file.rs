//! A safetensors file, and its tensors, as they are stored or widened to f32.

use super::header::{Header, Info, printable};
use crate::error::{Error, Result};
use crate::gdn::Floats;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::Dtype;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The dtypes that [`Tensor::f32`] widens without loss, for [`File::tensor`].
pub const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16];

/// A dimension of the shape that a tensor must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Any size: this tensor decides what the letter stands for.
    Any(&'static str),
    /// The size that an earlier tensor decided.
    Is(&'static str, usize),
    /// A number.
    Just(usize),
}

impl Dim {
    fn accepts(self, size: usize) -> bool {
        match self {
            Dim::Any(_) => true,
            Dim::Is(_, expected) | Dim::Just(expected) => size == expected,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Any(name) | Dim::Is(name, _) => f.write_str(name),
            Dim::Just(size) => size.fmt(f),
        }
    }
}

/// "`[T, HV, 128]` or `[1, T, HV, 128]`, with T = 17, HV = 4"
fn accepted(dims: &[Dim]) -> String {
    let names = dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ");
    let known: Vec<_> = dims
        .iter()
        .filter_map(|dim| match dim {
            Dim::Is(name, size) => Some(format!("{name} = {size}")),
            _ => None,
        })
        .collect();
    let with = if known.is_empty() { String::new() } else { format!(", with {}", known.join(", ")) };
    format!("`[{names}]` or `[1, {names}]`{with}")
}

/// An open file, mapped into memory and checked as a whole. Its bytes must not change while it is open; a file that is
/// replaced by renaming another over it stays as it was here.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    map: Mmap,
    header: Header,
}

impl File {
    /// Errors: `File` when it cannot be opened, `Format` when it is not a safetensors file without gaps and overlaps.
    pub fn open(path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        let failed = |source| Error::File { action: "cannot read", path: path.into(), source };
        // Asked before opening: opening a pipe would wait for its writer.
        let kind = fs::metadata(path).map_err(failed)?.file_type();
        if kind.is_dir() {
            return Err(failed(ErrorKind::IsADirectory.into()));
        }
        let format = |problem: String| Error::Format { path: path.into(), problem };
        if !kind.is_file() {
            return Err(format("it is a pipe or a device; accepted: a file on disk".into()));
        }
        let file = fs::File::open(path).map_err(failed)?;
        // SAFETY: the map is read-only, and whoever changes the file meanwhile is told not to, above.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        let header = Header::parse(&map).map_err(format)?;
        Ok(File { path: path.into(), map, header })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors' names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.header.tensors.contains_key(name)
    }

    /// The shape of the tensor of that name, as it is stored.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.header.tensors.get(name).map(|info| info.shape.as_slice())
    }

    /// The text that the file holds beside its tensors.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    /// The tensor `name`, of shape `dims` behind an optional leading batch dimension of 1, and of one of `dtypes`.
    ///
    /// Errors: `MissingTensor`, `Dtype`, `Batch`, `Shape`.
    pub fn tensor<const N: usize>(
        &self,
        name: &str,
        dims: [Dim; N],
        dtypes: &[Dtype],
    ) -> Result<Tensor<'_, N>> {
        let Some(Info { dtype, shape, bytes }) = self.header.tensors.get(name) else {
            return Err(self.missing(name, &format!("a tensor of shape {}", accepted(&dims))));
        };
        if !dtypes.contains(dtype) {
            return Err(Error::Dtype {
                tensor: name.into(),
                found: dtype.to_string(),
                accepted: dtypes.iter().map(Dtype::to_string).collect::<Vec<_>>().join(", "),
            });
        }
        let (batch, own) = match shape.split_first() {
            Some((&batch, own)) if own.len() == N => (batch, own),
            _ => (1, shape.as_slice()),
        };
        let fits = |own: &[usize; N]| own.iter().zip(dims).all(|(&size, dim)| dim.accepts(size));
        match <[usize; N]>::try_from(own) {
            Ok(own) if batch == 1 && fits(&own) => Ok(Tensor {
                name: name.into(),
                dtype: *dtype,
                shape: own,
                // The header's check put the range into the file.
                bytes: self.map.get(bytes.clone()).unwrap_or_default(),
            }),
            Ok(own) if batch != 1 && fits(&own) => {
                Err(Error::Batch { tensor: name.into(), found: batch, accepted: accepted(&dims) })
            }
            _ => Err(Error::Shape { tensor: name.into(), found: shape.clone(), accepted: accepted(&dims) }),
        }
    }

    /// The error for a tensor that is not there: what is accepted, and what is there instead.
    pub fn missing(&self, name: &str, accepted: &str) -> Error {
        const MOST: usize = 40;
        let mut there: Vec<_> =
            self.names().take(MOST).map(|name| format!("`{}`", printable(name))).collect();
        match self.header.tensors.len() {
            0 => there.push("no tensor".into()),
            count if count > MOST => there.push(format!("{} more", count - MOST)),
            _ => {}
        }
        let accepted = format!("{accepted}; the file holds {}", there.join(", "));
        Error::MissingTensor { tensor: name.into(), accepted }
    }
}

/// A tensor of a file, whose shape was checked. `shape` is without the batch dimension.
#[derive(Clone, Debug)]
pub struct Tensor<'file, const N: usize> {
    name: String,
    dtype: Dtype,
    shape: [usize; N],
    bytes: &'file [u8],
}

/// A tensor's elements in the type that they are stored in: in the file where they are aligned for it, else copied.
#[derive(Clone, Debug)]
pub enum Stored<'file> {
    F32(Cow<'file, [f32]>),
    F16(Cow<'file, [f16]>),
    Bf16(Cow<'file, [bf16]>),
}

impl Stored<'_> {
    pub fn floats(&self) -> Floats<'_> {
        match self {
            Stored::F32(data) => Floats::F32(data),
            Stored::F16(data) => Floats::F16(data),
            Stored::Bf16(data) => Floats::Bf16(data),
        }
    }
}

impl<'file, const N: usize> Tensor<'file, N> {
    pub fn shape(&self) -> [usize; N] {
        self.shape
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its elements as they are.
    ///
    /// Errors: `HostMemory`, or `Dtype` for one that is not a float of at most 32 bits.
    pub fn stored(&self) -> Result<Stored<'file>> {
        match self.dtype {
            Dtype::F32 => Ok(Stored::F32(self.words()?)),
            Dtype::F16 => Ok(Stored::F16(self.words()?)),
            Dtype::BF16 => Ok(Stored::Bf16(self.words()?)),
            other => Err(self.dtype_error(other, "F32, F16, BF16")),
        }
    }

    fn words<T: bytemuck::Pod>(&self) -> Result<Cow<'file, [T]>> {
        if let Ok(words) = bytemuck::try_cast_slice(self.bytes) {
            return Ok(Cow::Borrowed(words));
        }
        let len = self.bytes.len() / size_of::<T>();
        let mut words = self.reserved(len)?;
        words.resize(len, T::zeroed());
        bytemuck::cast_slice_mut(&mut words).copy_from_slice(self.bytes);
        Ok(Cow::Owned(words))
    }

    /// Its elements, widened without loss. The bytes may lie at any address.
    ///
    /// Errors: `HostMemory`, or `Dtype` for one that does not fit into f32.
    pub fn f32(&self) -> Result<Vec<f32>> {
        match self.dtype {
            Dtype::F32 => self.widen(f32::from_le_bytes),
            Dtype::F16 => self.widen(|word| f16::from_le_bytes(word).to_f32()),
            Dtype::BF16 => self.widen(|word| bf16::from_le_bytes(word).to_f32()),
            Dtype::I8 => self.widen(|[byte]| f32::from(byte as i8)),
            other => Err(self.dtype_error(other, "F32, F16, BF16, I8")),
        }
    }

    /// Its elements, which must be i32. The bytes may lie at any address.
    ///
    /// Errors: `HostMemory`, `Dtype`.
    pub fn i32(&self) -> Result<Vec<i32>> {
        match self.dtype {
            Dtype::I32 => self.widen(i32::from_le_bytes),
            other => Err(self.dtype_error(other, "I32")),
        }
    }

    fn dtype_error(&self, found: Dtype, accepted: &str) -> Error {
        Error::Dtype { tensor: self.name.clone(), found: found.to_string(), accepted: accepted.into() }
    }

    fn widen<T, const BYTES: usize>(&self, one: impl Fn([u8; BYTES]) -> T) -> Result<Vec<T>> {
        let (words, _) = self.bytes.as_chunks::<BYTES>();
        let mut wide = self.reserved(words.len())?;
        wide.extend(words.iter().map(|&word| one(word)));
        Ok(wide)
    }

    /// An empty vector with room for `len` elements.
    fn reserved<T>(&self, len: usize) -> Result<Vec<T>> {
        let mut vec = Vec::new();
        vec.try_reserve_exact(len).map_err(|_| Error::HostMemory {
            what: format!("tensor `{}`", self.name),
            bytes: len.saturating_mul(size_of::<T>()),
        })?;
        Ok(vec)
    }
}
