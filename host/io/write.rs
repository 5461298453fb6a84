//! Files that appear complete or not at all.

use crate::error::{Error, Result};
use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use std::fs::{self, Permissions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The elements of a tensor to write.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
    I32(&'a [i32]),
}

impl Data<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            Data::F32(_) => Dtype::F32,
            Data::F16(_) => Dtype::F16,
            Data::Bf16(_) => Dtype::BF16,
            Data::I32(_) => Dtype::I32,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Data::F32(data) => bytemuck::cast_slice(data),
            Data::F16(data) => bytemuck::cast_slice(data),
            Data::Bf16(data) => bytemuck::cast_slice(data),
            Data::I32(data) => bytemuck::cast_slice(data),
        }
    }
}

/// A tensor to write. Names must differ, and the data must be as long as the shape says.
#[derive(Clone, Debug)]
pub struct Output<'a> {
    pub name: &'a str,
    pub shape: Vec<usize>,
    pub data: Data<'a>,
}

/// Writes a safetensors file, beside its place and then under its name. Equal arguments give equal bytes.
///
/// Errors: `Length` when a tensor's data is not as long as its shape says, `Argument` for a name that is there twice, `File`.
pub fn write(path: impl AsRef<Path>, tensors: &[Output<'_>], metadata: &[(&str, &str)]) -> Result<()> {
    // Larger words first, so that each tensor is aligned to its element.
    let mut order: Vec<_> = tensors.iter().collect();
    order.sort_by_key(|tensor| std::cmp::Reverse(tensor.data.dtype().bitsize()));
    let header = header(&order, metadata)?;
    replace(path, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        order.iter().try_for_each(|tensor| out.write_all(tensor.data.bytes()))
    })
}

/// The JSON with sorted keys, padded so that the data starts at a multiple of 8 bytes. (The safetensors crate's own writer
/// orders the metadata at random.)
fn header(tensors: &[&Output<'_>], metadata: &[(&str, &str)]) -> Result<Vec<u8>> {
    let texts: Map<_, _> = metadata.iter().map(|&(key, text)| (key.to_owned(), Value::from(text))).collect();
    let mut entries = Map::new();
    if !texts.is_empty() {
        entries.insert("__metadata__".into(), Value::Object(texts));
    }
    let mut begin = 0;
    for Output { name, shape, data } in tensors {
        let bytes = data.bytes().len();
        let elements = bytes * 8 / data.dtype().bitsize();
        if shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n)) != Some(elements) {
            let accepted = format!("as many as its shape {shape:?} says");
            return Err(Error::Length { tensor: (*name).into(), found: elements, accepted });
        }
        let end = begin + bytes;
        let entry =
            json!({ "dtype": data.dtype().to_string(), "shape": shape, "data_offsets": [begin, end] });
        if entries.insert((*name).to_owned(), entry).is_some() {
            return Err(Error::argument("tensors", format!("`{name}` twice"), "names that differ"));
        }
        begin = end;
    }
    let mut header = Value::Object(entries).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

/// Writes a file by `fill`, beside its place, flushed to the disk, and then renamed: whatever fails, what was there before
/// stays. A link is followed; a file that is replaced passes its permissions on.
pub fn replace(path: impl AsRef<Path>, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let path = path.as_ref();
    let failed = |source| Error::File { action: "cannot write", path: path.into(), source };
    let place = Place::find(path)?;
    let file = place.create().map_err(failed)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    fill(&mut out).map_err(failed)?;
    let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(&place.target).map_err(|error| failed(error.error))?;
    // The rename itself reaches the disk with the folder. Some file systems cannot flush one, and the file is whole anyway.
    let _ = fs::File::open(&place.folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Whether [`replace`] could write there, asked before a long computation: the folder exists and takes a new file, and what
/// has that name now is a file. Nothing stays behind.
pub fn check_target(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let created = Place::find(path)?.create();
    created.map(drop).map_err(|source| Error::File { action: "cannot write", path: path.into(), source })
}

/// Where a file goes.
struct Place {
    folder: PathBuf,
    target: PathBuf,
    /// Those of the file that is there.
    permissions: Option<Permissions>,
}

impl Place {
    fn find(path: &Path) -> Result<Place> {
        let failed = |source| Error::File { action: "cannot write", path: path.into(), source };
        let (target, permissions) = match fs::metadata(path) {
            // Renaming over a device would replace it by a file.
            Ok(there) if there.is_dir() => return Err(failed(ErrorKind::IsADirectory.into())),
            Ok(there) if !there.is_file() => {
                let problem = "it is a pipe or a device; accepted: the name of a file, or a new name";
                return Err(failed(io::Error::other(problem)));
            }
            Ok(there) => (fs::canonicalize(path).map_err(failed)?, Some(there.permissions())),
            Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(path).is_ok() => {
                return Err(failed(io::Error::new(ErrorKind::NotFound, "it is a link that leads nowhere")));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => (path.to_owned(), None),
            Err(error) => return Err(failed(error)),
        };
        let named = target.file_name().is_some() && !path.as_os_str().as_encoded_bytes().ends_with(b"/");
        if !named {
            return Err(failed(io::Error::other(
                "it names no file; accepted: a folder that exists, and a name in it",
            )));
        }
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        match fs::metadata(&folder) {
            Ok(there) if there.is_dir() => Ok(Place { folder, target, permissions }),
            Ok(_) => Err(failed(ErrorKind::NotADirectory.into())),
            Err(error) => {
                let problem = format!("its folder {}: {error}", folder.display());
                Err(failed(io::Error::new(error.kind(), problem)))
            }
        }
    }

    /// A file beside the target that vanishes when it is dropped.
    fn create(&self) -> io::Result<NamedTempFile> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".keyhead-").suffix(".tmp");
        // What any new file gets: the system takes the umask off. tempfile's own choice lets nobody else read.
        builder.permissions(Permissions::from_mode(0o666));
        let file = builder.tempfile_in(&self.folder)?;
        if let Some(permissions) = &self.permissions {
            file.as_file().set_permissions(permissions.clone())?;
        }
        Ok(file)
    }
}
