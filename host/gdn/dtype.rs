//! The element types that an engine may hold a layer's activations in, and slices of them.

use half::{bf16, f16};
use kernels_gpu::params::dtype;
use std::ops::Range;

/// An element type of activations: of the inputs that a layer's projections make, and of the normed output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    pub const ALL: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }

    /// The number that stands for it in the kernels' argument records.
    pub(crate) fn code(self) -> u32 {
        match self {
            Dtype::F32 => dtype::F32,
            Dtype::F16 => dtype::F16,
            Dtype::Bf16 => dtype::BF16,
        }
    }
}

/// Activations in the type that the engine holds them in. A step that reads 16-bit elements widens them as it reads, without
/// loss; an f16 NaN becomes the one that GPU arithmetic makes (0x7fff_ffff), a bf16 NaN keeps its bits.
#[derive(Clone, Copy, Debug)]
pub enum Floats<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

impl<'a> Floats<'a> {
    /// In elements.
    pub fn len(self) -> usize {
        match self {
            Floats::F32(data) => data.len(),
            Floats::F16(data) => data.len(),
            Floats::Bf16(data) => data.len(),
        }
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    pub fn dtype(self) -> Dtype {
        match self {
            Floats::F32(_) => Dtype::F32,
            Floats::F16(_) => Dtype::F16,
            Floats::Bf16(_) => Dtype::Bf16,
        }
    }

    /// As they lie in memory.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Floats::F32(data) => bytemuck::cast_slice(data),
            Floats::F16(data) => bytemuck::cast_slice(data),
            Floats::Bf16(data) => bytemuck::cast_slice(data),
        }
    }

    /// The elements of `range`.
    ///
    /// # Panics
    /// As slicing does: when they are not all there.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Floats<'a> {
        match self {
            Floats::F32(data) => Floats::F32(&data[range]),
            Floats::F16(data) => Floats::F16(&data[range]),
            Floats::Bf16(data) => Floats::Bf16(&data[range]),
        }
    }
}

impl<'a> From<&'a [f32]> for Floats<'a> {
    fn from(data: &'a [f32]) -> Self {
        Floats::F32(data)
    }
}

impl<'a> From<&'a [f16]> for Floats<'a> {
    fn from(data: &'a [f16]) -> Self {
        Floats::F16(data)
    }
}

impl<'a> From<&'a [bf16]> for Floats<'a> {
    fn from(data: &'a [bf16]) -> Self {
        Floats::Bf16(data)
    }
}
