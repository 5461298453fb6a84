//! What a run gave, and the file that it becomes.

use super::{Args, OutDtype, name};
use crate::zeroed;
use half::{bf16, f16};
use keyhead::Result;
use keyhead::gdn::{CONV_HISTORY, HEAD_DIM, Heads, NormOut};
use keyhead::io::{self, Data, Output};

/// What a run gave.
pub(super) struct Done {
    pub heads: Heads,
    pub tokens: usize,
    pub y: Vec<f32>,
    pub state: Vec<f32>,
    pub conv_state: Option<Vec<f32>>,
    pub out: Option<Out>,
    /// Of the l2 norm, where there was one.
    pub l2_eps: Option<f32>,
    /// What ran the recurrence, and why.
    pub ran: String,
    pub seconds: f64,
}

impl Done {
    pub(super) fn write(&self, args: &Args) -> Result<()> {
        let value = self.heads.value();
        let rows = vec![self.tokens, value, HEAD_DIM];
        let state = vec![value, HEAD_DIM, HEAD_DIM];
        let mut outputs = vec![
            Output { name: "y", shape: rows.clone(), data: Data::F32(&self.y) },
            Output { name: "final_state", shape: state, data: Data::F32(&self.state) },
        ];
        if let Some(conv_state) = &self.conv_state {
            let shape = vec![self.heads.channels(), CONV_HISTORY];
            outputs.push(Output { name: "conv_state_out", shape, data: Data::F32(conv_state) });
        }
        // Nothing that differs between backends: the same input gives the same bytes everywhere.
        let mut metadata = vec![
            ("tool", concat!("keyhead ", env!("CARGO_PKG_VERSION")).to_owned()),
            ("head_map", name(args.head_map)),
        ];
        if let Some(out) = &self.out {
            outputs.push(Output { name: "out", shape: rows, data: out.data() });
            metadata.push(("norm_act", args.norm_act.map(name).unwrap_or_default()));
            metadata.push(("eps", args.eps.to_string()));
        }
        metadata.extend(self.l2_eps.map(|eps| ("l2_eps", eps.to_string())));
        let metadata: Vec<_> = metadata.iter().map(|(key, text)| (*key, &**text)).collect();
        io::write(&args.output, &outputs, &metadata)
    }
}

/// The normed output.
pub(super) enum Out {
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    F32(Vec<f32>),
}

impl Out {
    pub(super) fn zeroed(dtype: OutDtype, len: usize) -> Result<Out> {
        Ok(match dtype {
            OutDtype::F16 => Out::F16(zeroed("out", len, f16::ZERO)?),
            OutDtype::Bf16 => Out::Bf16(zeroed("out", len, bf16::ZERO)?),
            OutDtype::F32 => Out::F32(zeroed("out", len, 0.0)?),
        })
    }

    pub(super) fn target(&mut self) -> NormOut<'_> {
        match self {
            Out::F16(out) => NormOut::F16(out),
            Out::Bf16(out) => NormOut::Bf16(out),
            Out::F32(out) => NormOut::F32(out),
        }
    }

    fn data(&self) -> Data<'_> {
        match self {
            Out::F16(out) => Data::F16(out),
            Out::Bf16(out) => Data::Bf16(out),
            Out::F32(out) => Data::F32(out),
        }
    }
}
