//! The recurrent state before the first token, in the forms that a file may hold it.

use super::contradiction;
use crate::zeroed;
use keyhead::gdn::{HEAD_DIM, Heads};
use keyhead::io::{Dim, Dtype, FLOATS, File, Tensor};
use keyhead::{Error, Result};

/// Where the state before the first token is.
pub(super) enum State<'file> {
    Zeros,
    Stored(Tensor<'file, 3>),
    /// Heads that repeat, and their scale.
    Scaled(Tensor<'file, 3>, Tensor<'file, 1>),
}

impl<'file> State<'file> {
    pub(super) fn find(file: &'file File, hv: Dim) -> Result<State<'file>> {
        let head = Dim::Just(HEAD_DIM);
        match (file.has("initial_state"), file.has("initial_state_i8")) {
            (false, false) => return Ok(State::Zeros),
            (true, false) => {
                return Ok(State::Stored(file.tensor("initial_state", [hv, head, head], FLOATS)?));
            }
            (true, true) => {
                let accepted = "one of them, or neither, which is a state of zeros";
                return Err(contradiction("initial_state", "initial_state_i8", accepted));
            }
            (false, true) => {}
        }
        let blocks = file.tensor("initial_state_i8", [Dim::Any("N"), head, head], &[Dtype::I8])?;
        let [count, _, _] = blocks.shape();
        if count == 0 {
            let accepted = "`[N, 128, 128]`, with N at least 1".into();
            let (tensor, found) = ("initial_state_i8".into(), blocks.shape().to_vec());
            return Err(Error::Shape { tensor, found, accepted });
        }
        Ok(State::Scaled(blocks, file.tensor("initial_state_scale", [Dim::Just(1)], FLOATS)?))
    }

    pub(super) fn read(&self, heads: Heads) -> Result<Vec<f32>> {
        const CELLS: usize = HEAD_DIM * HEAD_DIM;
        match self {
            State::Zeros => zeroed("final_state", heads.state_len(), 0.0),
            State::Stored(state) => state.f32(),
            State::Scaled(blocks, scale) => {
                // `find` asked for one element.
                let (blocks, scale) = (blocks.f32()?, scale.f32()?[0]);
                let mut state = zeroed("final_state", heads.state_len(), 0.0)?;
                let source = blocks.chunks_exact(CELLS).cycle();
                for (head, block) in state.chunks_exact_mut(CELLS).zip(source) {
                    head.iter_mut().zip(block).for_each(|(cell, &stored)| *cell = stored * scale);
                }
                Ok(state)
            }
        }
    }
}
