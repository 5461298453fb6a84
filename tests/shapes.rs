//! Calls whose buffers do not fit: each is refused when it is made, and the message names the buffer and what is accepted.

use half::{bf16, f16};
use keyhead::cpu::Workspace;
use keyhead::gdn::{
    Carried, Conv, Dtype, Floats, Forward, ForwardInputs, ForwardOptions, ForwardOutputs, Gates, HEAD_DIM,
    HeadMap, Heads, L2Norm, NormAct, NormOut, OutNorm, PerHead, StateLayout, Variant, Weights,
};
use keyhead::{Backend, Result};

const TOKENS: usize = 3;
const KEY: usize = 1;
const VALUE: usize = 2;
const CHANNELS: usize = (2 * KEY + VALUE) * HEAD_DIM;
const WIDTH: usize = VALUE * HEAD_DIM;
const STRIDE: usize = WIDTH + 5;

/// The buffers of a valid call. A case makes one of them wrong.
struct Buffers {
    tokens: usize,
    qkv: Vec<f16>,
    a: Vec<f32>,
    a_stride: usize,
    b: Vec<f32>,
    z: Vec<bf16>,
    conv_weight: Vec<f32>,
    conv_bias: Option<Vec<f32>>,
    dt_bias: Vec<f32>,
    a_coef: Vec<f32>,
    norm_weight: Vec<f32>,
    eps: f32,
    l2_eps: f32,
    conv_state: Vec<f32>,
    state: Vec<f32>,
    y: Vec<f32>,
    out: Vec<f32>,
    out_stride: usize,
}

impl Buffers {
    fn new() -> Buffers {
        Buffers {
            tokens: TOKENS,
            qkv: vec![f16::ONE; TOKENS * CHANNELS],
            // Behind the last token's heads there need be nothing.
            a: vec![0.5; (TOKENS - 1) * 7 + VALUE],
            a_stride: 7,
            b: vec![0.5; TOKENS * VALUE],
            z: vec![bf16::ONE; TOKENS * WIDTH],
            conv_weight: vec![0.5; CHANNELS * 4],
            conv_bias: Some(vec![0.5; CHANNELS]),
            dt_bias: vec![0.5; VALUE],
            a_coef: vec![-0.5; VALUE],
            norm_weight: vec![0.5; HEAD_DIM],
            eps: 1e-6,
            l2_eps: 1e-6,
            conv_state: vec![0.5; CHANNELS * 3],
            state: vec![0.5; VALUE * HEAD_DIM * HEAD_DIM],
            y: vec![0.0; TOKENS * WIDTH],
            out: vec![0.0; TOKENS * STRIDE],
            out_stride: STRIDE,
        }
    }

    fn call(&mut self) -> Result<Forward<'_>> {
        Forward::new(
            Heads::new(KEY, VALUE, HeadMap::Grouped)?,
            self.tokens,
            ForwardInputs {
                qkv: self.qkv[..].into(),
                a: PerHead::strided(&self.a[..], self.a_stride),
                b: PerHead::packed(&self.b[..], VALUE),
                z: self.z[..].into(),
            },
            Weights {
                conv_weight: &self.conv_weight,
                conv_bias: self.conv_bias.as_deref(),
                dt_bias: &self.dt_bias,
                a_coef: &self.a_coef,
                norm_weight: &self.norm_weight,
            },
            ForwardOptions { act: NormAct::Silu, eps: self.eps, l2_eps: self.l2_eps },
            Carried {
                conv_state: &mut self.conv_state,
                state: &mut self.state,
                layout: StateLayout::HeadMajor,
            },
            ForwardOutputs { y: &mut self.y, out: NormOut::F32(&mut self.out), out_stride: self.out_stride },
        )
    }
}

fn shorten<T>(vec: &mut Vec<T>) {
    vec.pop();
}

#[track_caller]
fn refused<T: std::fmt::Debug>(call: Result<T>, message: &str) {
    let error = call.unwrap_err();
    assert_eq!(error.to_string(), message);
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn forward() {
    assert!(Buffers::new().call().is_ok());
    type Edit = fn(&mut Buffers);
    let cases: [(Edit, &str); 20] = [
        (|c| shorten(&mut c.qkv), "`qkv` holds 1535 elements; accepted: exactly 3 * 512 elements"),
        (
            |c| shorten(&mut c.a),
            "`a` holds 15 elements; accepted: 16 or more (3 tokens, 7 elements apart, 2 heads)",
        ),
        (|c| c.a_stride = 1, "`a` has a token stride of 1 elements; accepted: at least 2 (2 heads)"),
        (
            |c| c.a_stride = usize::MAX,
            "`a` holds 16 elements; accepted: more than fit in memory (3 tokens, 18446744073709551615 \
             elements apart, 2 heads)",
        ),
        (
            |c| shorten(&mut c.b),
            "`b` holds 5 elements; accepted: 6 or more (3 tokens, 2 elements apart, 2 heads)",
        ),
        (|c| c.z.push(bf16::ONE), "`z` holds 769 elements; accepted: exactly 3 * 2 * 128 elements"),
        (
            |c| shorten(&mut c.conv_weight),
            "`conv_weight` holds 2047 elements; accepted: exactly 512 * 4 elements",
        ),
        (|c| c.conv_bias = Some(vec![]), "`conv_bias` holds 0 elements; accepted: exactly 512 elements"),
        (|c| c.dt_bias.push(0.0), "`dt_bias` holds 3 elements; accepted: exactly 2 elements"),
        (|c| shorten(&mut c.a_coef), "`a_coef` holds 1 elements; accepted: exactly 2 elements"),
        (
            |c| c.a_coef[1] = 0.25,
            "argument `a_coef` is 0.25 at index 1; accepted: numbers that are not positive: -exp(A_log), in some \
             files `ssm_a`",
        ),
        (
            |c| c.norm_weight[3] = f32::NAN,
            "`norm_weight` holds NaN at index 3; accepted: finite numbers only",
        ),
        (|c| c.eps = -1.0, "argument `eps` is -1; accepted: a finite number that is not negative"),
        (
            |c| c.l2_eps = f32::INFINITY,
            "argument `l2_eps` is inf; accepted: a finite number that is not negative",
        ),
        (|c| c.conv_state.push(0.0), "`conv_state` holds 1537 elements; accepted: exactly 512 * 3 elements"),
        (|c| shorten(&mut c.state), "`state` holds 32767 elements; accepted: exactly 2 * 128 * 128 elements"),
        (|c| shorten(&mut c.y), "`y` holds 767 elements; accepted: exactly 3 * 2 * 128 elements"),
        (
            |c| c.out_stride = WIDTH - 1,
            "`out` has a token stride of 255 elements; accepted: at least 256 (2 heads of 128)",
        ),
        (|c| shorten(&mut c.out), "`out` holds 782 elements; accepted: exactly 3 * 261 elements"),
        (|c| c.tokens = 1 << 31, "argument `tokens` is 2147483648; accepted: at most 2147483647 in a call"),
    ];
    for (edit, message) in cases {
        let mut buffers = Buffers::new();
        edit(&mut buffers);
        refused(buffers.call(), message);
    }
}

#[test]
fn chunks() {
    let mut buffers = Buffers::new();
    let mut call = buffers.call().unwrap();
    assert_eq!((call.tokens(), call.heads().value()), (TOKENS, VALUE));
    for (from, to) in [(0, 0), (0, 3), (2, 3), (3, 3)] {
        assert_eq!(call.chunk(from..to).unwrap().tokens(), to - from);
    }
    refused(call.chunk(1..4), "argument `tokens` is 1..4; accepted: a part of 0..3");
    #[allow(clippy::reversed_empty_ranges)] // That is the point.
    let reversed = 2..1;
    refused(call.chunk(reversed), "argument `tokens` is 2..1; accepted: a part of 0..3");
}

#[test]
fn a_refused_run_leaves_everything_as_it_was() {
    let mut buffers = Buffers::new();
    let backend = Backend::cpu().unwrap();
    let ran = backend.forward(buffers.call().unwrap(), &mut Workspace::new(), Some(Variant::Pipe));
    refused(
        ran,
        "variant `pipe` cannot run here: the CPU backend has no variants; leave it out, or say `auto`",
    );
    let before = Buffers::new();
    assert!(buffers.state == before.state && buffers.conv_state == before.conv_state);
    assert!(buffers.y == before.y && buffers.out == before.out);
}

#[test]
fn steps() {
    let (mut gate, mut beta) = (vec![0.0; 6], vec![0.0; 6]);
    let ab = [0.0; 12];
    let (a, b) = PerHead::pair(&ab[..], 2);
    assert!(Gates::new(2, 3, a, b, &[0.0; 2], &[-1.0; 2], &mut gate, &mut beta).is_ok());
    let (a, b) = PerHead::pair(&ab[..11], 2);
    refused(
        Gates::new(2, 3, a, b, &[0.0; 2], &[-1.0; 2], &mut gate, &mut beta),
        "`b` holds 9 elements; accepted: 10 or more (3 tokens, 4 elements apart, 2 heads)",
    );
    // Fewer elements than heads: no panic while the pair is made.
    let (a, b) = PerHead::pair(&ab[..1], 2);
    refused(
        Gates::new(2, 3, a, b, &[0.0; 2], &[-1.0; 2], &mut gate, &mut beta),
        "`a` holds 1 elements; accepted: 10 or more (3 tokens, 4 elements apart, 2 heads)",
    );
    let (a, b) = PerHead::pair(&ab[..], 2);
    refused(
        Gates::new(2, 3, a, b, &[0.0; 2], &[-1.0; 2], &mut gate[..5], &mut beta),
        "`gate` holds 5 elements; accepted: exactly 3 * 2 elements",
    );
    // One token, and a stride that leads nowhere.
    for stride in [1 << 54, usize::MAX] {
        let (a, b) = (PerHead::strided(&ab[..], stride), PerHead::strided(&ab[..2], stride));
        let call = Gates::new(2, 1, a, b, &[0.0; 2], &[-1.0; 2], &mut gate[..2], &mut beta[..2]).unwrap();
        keyhead::cpu::gates(call);
        assert_eq!(beta[..2], [0.5; 2], "{stride}");
        beta.fill(0.0);
    }
    refused(
        Gates::new(0, 3, a, b, &[], &[], &mut [], &mut []),
        "argument `value_heads` is 0; accepted: 1 to 1024",
    );

    let heads = Heads::new(KEY, VALUE, HeadMap::Tiled).unwrap();
    let (qkv, weight) = (vec![0.0; CHANNELS], vec![0.0; CHANNELS * 4]);
    let (mut state, mut h) = (vec![0.0; CHANNELS * 3], vec![0.0; CHANNELS]);
    assert!(Conv::new(heads, 1, &qkv[..], &weight, None, &mut state, &mut h).is_ok());
    refused(
        Conv::new(heads, 1, &qkv[..], &weight, None, &mut state, &mut h[1..]),
        "`h` holds 511 elements; accepted: exactly 1 * 512 elements",
    );

    assert!(L2Norm::new(4, 1, &mut h, CHANNELS, 0.0).is_ok());
    assert!(L2Norm::new(0, 9, &mut [], 0, 0.0).is_ok());
    refused(
        L2Norm::new(5, 1, &mut h, CHANNELS, 0.0),
        "`h` has a token stride of 512 elements; accepted: at least 640 (5 rows of 128)",
    );
    refused(
        L2Norm::new(4, 2, &mut h, CHANNELS, 0.0),
        "`h` holds 512 elements; accepted: 1024 or more (2 tokens, 512 elements apart, 4 rows of 128)",
    );

    let (z, mut out) = ([f16::ONE; 100], [0.0; HEAD_DIM]);
    let norm = OutNorm::new(
        1,
        1,
        &[0.0; HEAD_DIM],
        &z[..],
        &[1.0; HEAD_DIM],
        NormAct::Silu,
        0.0,
        NormOut::F32(&mut out),
        HEAD_DIM,
    );
    refused(norm, "`z` holds 100 elements; accepted: exactly 1 * 1 * 128 elements");
}

#[test]
fn floats() {
    let (f32s, f16s, bf16s) = ([1.0f32, 2.0, 3.0], [f16::ONE; 3], [bf16::ONE; 3]);
    let all: [(Floats<'_>, Dtype, &str); 3] = [
        (f32s[..].into(), Dtype::F32, "f32"),
        (f16s[..].into(), Dtype::F16, "f16"),
        (bf16s[..].into(), Dtype::Bf16, "bf16"),
    ];
    for (floats, dtype, name) in all {
        assert_eq!((floats.dtype(), floats.dtype().name()), (dtype, name));
        assert_eq!((floats.len(), floats.bytes().len()), (3, 3 * dtype.size()));
        let part = floats.slice(1..3);
        assert_eq!((part.len(), part.bytes()), (2, &floats.bytes()[dtype.size()..]));
        assert!(part.slice(2..2).is_empty());
    }
}
