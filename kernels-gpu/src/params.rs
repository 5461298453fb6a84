//! The argument records of the kernels: the ABI between host and device. Every entry takes one record by value. Strides
//! are in elements.

pub use cuda_std::global::{Global, GlobalMut};

/// The types of a buffer whose record names one.
pub mod dtype {
    pub const F16: u32 = 0;
    pub const BF16: u32 = 1;
    pub const F32: u32 = 2;
}

/// A field of a record, as a program in another language fills it.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Field {
    pub name: &'static str,
    /// `Global` and `GlobalMut` are 64-bit device addresses.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// In bytes from the start of the record.
    pub offset: usize,
}

/// The fields of a record whose head is another one.
#[cfg(not(target_arch = "nvptx64"))]
const fn joined<const N: usize>(head: &[Field], rest: &[Field]) -> [Field; N] {
    let mut all = [head[0]; N];
    let mut i = 1;
    while i < N {
        all[i] = if i < head.len() { head[i] } else { rest[i - head.len()] };
        i += 1;
    }
    all
}

/// A `repr(C)` record whose fields can be listed. One that starts with `..name: Record` has that record's fields first, and lists
/// them as its own.
macro_rules! record {
    (
        $(#[$doc:meta])*
        $name:ident { ..$head:ident: $head_kind:ty, $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* }
    ) => {
        record!(@declare $(#[$doc])* $name { $head: $head_kind, $($(#[$field_doc])* $field: $kind,)* });

        #[cfg(not(target_arch = "nvptx64"))]
        impl $name {
            const REST: &[Field] = &[$(record!(@field $name $field $kind),)*];
            pub const FIELDS: &[Field] =
                &joined::<{ <$head_kind>::FIELDS.len() + Self::REST.len() }>(<$head_kind>::FIELDS, Self::REST);
        }
    };
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* }) => {
        record!(@declare $(#[$doc])* $name { $($(#[$field_doc])* $field: $kind,)* });

        #[cfg(not(target_arch = "nvptx64"))]
        impl $name {
            pub const FIELDS: &[Field] = &[$(record!(@field $name $field $kind),)*];
        }
    };
    (@declare $(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)*
        }
    };
    (@field $name:ident $field:ident $kind:ty) => {
        Field {
            name: stringify!($field),
            kind: stringify!($kind),
            offset: core::mem::offset_of!($name, $field),
        }
    };
}

record! {
    /// The arguments of every recurrence kernel.
    ///
    /// Value head `i` of key head `j` is `j * head_per_key + i * head_per_slot`: `(1, HK)` for the tiled map, `(VPK, 1)` for
    /// the grouped one.
    RecurrenceArgs {
        /// `[tokens][key heads][128]`, token stride `q_stride`.
        q: Global<f32>,
        /// `[tokens][key heads][128]`, token stride `k_stride`.
        k: Global<f32>,
        /// `[tokens][value heads][128]`, token stride `v_stride`.
        v: Global<f32>,
        /// `[tokens][value heads]`, the log of the decay.
        gate: Global<f32>,
        /// `[tokens][value heads]`.
        beta: Global<f32>,
        /// Read at the start, written at the end; row `r`, column `c` of head `h` is at `r * state_row + h * state_head + c`.
        state: GlobalMut<f32>,
        /// `[tokens][value heads][128]`.
        y: GlobalMut<f32>,
        tokens: u64,
        q_stride: u64,
        k_stride: u64,
        v_stride: u64,
        state_row: u64,
        state_head: u64,
        key_heads: u32,
        value_heads: u32,
        head_per_key: u32,
        head_per_slot: u32,
    }
}

record! {
    /// The arguments of `out_norm` and `out_norm_before`.
    OutNormArgs {
        /// `[tokens * value heads][128]`, 16-byte aligned; only `out_norm_before` writes it.
        y: GlobalMut<f32>,
        /// `[tokens * value heads][128]` of `z_dtype`, aligned to four of its values.
        z: Global<u16>,
        /// `[128]`, 16-byte aligned.
        weight: Global<f32>,
        /// `[tokens][out_stride]` of `out_dtype`.
        out: GlobalMut<u16>,
        tokens: u64,
        out_stride: u64,
        value_heads: u32,
        eps: f32,
        /// 0: `sigmoid(z)`; 1: `silu(z)`.
        act: u32,
        /// One of [`dtype`].
        out_dtype: u32,
        /// One of [`dtype`].
        z_dtype: u32,
    }
}

impl OutNormArgs {
    pub const SIGMOID: u32 = 0;
    pub const SILU: u32 = 1;
}

record! {
    /// The arguments of `prepare` and of its steps `conv`, `l2norm` and `gates`; a step reads what it needs.
    PrepareArgs {
        /// `[tokens][channels]` of `qkv_dtype`, token stride `qkv_stride`: all q heads, all k heads, all v heads.
        qkv: Global<u16>,
        /// `[channels][4]`; tap 3 multiplies the current token.
        conv_weight: Global<f32>,
        /// `[channels]`, or null.
        conv_bias: Global<f32>,
        /// `[channels][3]`, oldest first; read and written.
        conv_state: GlobalMut<f32>,
        /// `[tokens][channels]`, written.
        h: GlobalMut<f32>,
        /// `[tokens][value heads]` of `a_dtype`, token stride `a_stride`.
        a: Global<u16>,
        /// As `a`.
        b: Global<u16>,
        /// `[value heads]`.
        dt_bias: Global<f32>,
        /// `[value heads]`, negative.
        a_coef: Global<f32>,
        /// `[tokens][value heads]`, written.
        gate: GlobalMut<f32>,
        /// `[tokens][value heads]`, written.
        beta: GlobalMut<f32>,
        tokens: u64,
        qkv_stride: u64,
        a_stride: u64,
        b_stride: u64,
        key_heads: u32,
        value_heads: u32,
        l2_eps: f32,
        /// One of [`dtype`], as the two below.
        qkv_dtype: u32,
        a_dtype: u32,
        b_dtype: u32,
    }
}

record! {
    /// The arguments of `heads_norm`: a recurrence, and the out norm of its y.
    HeadsNormArgs {
        ..recurrence: RecurrenceArgs,
        /// `[tokens][value heads][128]` of `z_dtype`.
        z: Global<u16>,
        /// `[128]`.
        weight: Global<f32>,
        /// `[tokens][out_stride]` of `out_dtype`.
        out: GlobalMut<u16>,
        /// `[tokens][value heads][128]`: `out` before it is rounded; null for none.
        normed: GlobalMut<f32>,
        out_stride: u64,
        eps: f32,
        /// 0: `sigmoid(z)`; 1: `silu(z)`.
        act: u32,
        /// One of [`dtype`].
        z_dtype: u32,
        /// One of [`dtype`].
        out_dtype: u32,
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl HeadsNormArgs {
    /// The two calls in one; `y`, the tokens and the value heads are the recurrence's.
    pub fn new(recurrence: RecurrenceArgs, norm: OutNormArgs, normed: GlobalMut<f32>) -> Self {
        let OutNormArgs { z, weight, out, out_stride, eps, act, out_dtype, z_dtype, .. } = norm;
        Self { recurrence, z, weight, out, normed, out_stride, eps, act, z_dtype, out_dtype }
    }
}

record! {
    /// The arguments of every selection kernel of `topk`.
    TopkArgs {
        /// `[queries][stride]`: the score of each block.
        scores: Global<f32>,
        /// `[queries][4]`: pos, n_kv, n_bid, width.
        steps: Global<i32>,
        /// `[queries][cap]`: each row's first `width` words are written.
        ids: GlobalMut<i32>,
        /// What a kernel keeps in it, its file says; null for a kernel that needs none.
        scratch: GlobalMut<u32>,
        stride: u64,
        cap: u64,
        queries: u32,
        /// No query has more blocks, its tail included.
        reach: u32,
    }
}

record! {
    /// The arguments of `scores`.
    ScoresArgs {
        /// `[blocks][128]`: the key of each complete block.
        pooled: Global<f32>,
        /// `[128]`, or `[queries][128]` with `tail_stride` 128: the key of the tail block.
        tail: Global<f32>,
        /// `[queries][4][128]`.
        q_idx: Global<f32>,
        /// `[queries][4]`: pos, n_kv, n_bid, width.
        steps: Global<i32>,
        /// `[queries][stride]`: blocks `0..=n_bid` of each row are written.
        scores: GlobalMut<f32>,
        /// `[queries][maxima_stride]`: the largest key of each chunk, where `sieve` wants them; else null.
        maxima: GlobalMut<u32>,
        stride: u64,
        maxima_stride: u64,
        tail_stride: u64,
        queries: u32,
        /// No query has more blocks, its tail included.
        reach: u32,
    }
}

record! {
    /// The arguments of the kernels of `bench`.
    HoldArgs {
        /// The words that `bench` names.
        flags: GlobalMut<u32>,
        /// The multiprocessor of each block.
        sm_ids: GlobalMut<u32>,
        limit_ns: u64,
        generation: u32,
        blocks: u32,
    }
}
