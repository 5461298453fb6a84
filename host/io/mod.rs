//! Tensors in and out of safetensors files.
//!
//! A file is checked as a whole when it is opened: whatever its header says, what is handed out afterwards lies inside the file
//! and is as long as its shape and dtype ask. Output appears under its name only when it is complete, and its bytes depend on
//! nothing but what is written.

mod file;
mod header;
mod write;

pub use file::{Dim, FLOATS, File, Stored, Tensor};
pub use safetensors::Dtype;
pub use write::{Data, Output, check_target, replace, write};

#[cfg(target_endian = "big")]
compile_error!("safetensors files are little-endian, and tensors are written as they lie in memory");
