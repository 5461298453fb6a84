//! What the calls on device memory refuse before a driver hears of them.

use super::{DeviceFloats, DeviceForward, DeviceWeights};
use crate::error::Result;
use crate::gdn::{Dtype, ForwardOptions, HEAD_DIM, HeadMap, Heads, NormAct, StateLayout};

const VALUE: usize = 2;
const CHANNELS: usize = (2 + VALUE) * HEAD_DIM;

/// A valid call on addresses where nothing is.
fn call() -> DeviceForward {
    DeviceForward {
        heads: Heads::new(1, VALUE, HeadMap::Grouped).unwrap(),
        tokens: 3,
        qkv: DeviceFloats { address: 0x1008, dtype: Dtype::F16, stride: CHANNELS + 4 },
        a: DeviceFloats { address: 0x2002, dtype: Dtype::Bf16, stride: VALUE },
        b: DeviceFloats { address: 0x3004, dtype: Dtype::F32, stride: VALUE + 1 },
        z: 0x4008,
        z_dtype: Dtype::Bf16,
        weights: DeviceWeights {
            conv_weight: 0x5010,
            conv_bias: Some(0x6010),
            dt_bias: 0x7004,
            a_coef: 0x8004,
            norm_weight: 0x9010,
        },
        options: ForwardOptions { act: NormAct::Silu, eps: 1e-6, l2_eps: 1e-6 },
        conv_state: 0xa010,
        state: 0xb004,
        layout: StateLayout::HeadMajor,
        y: 0xc010,
        out: 0xd002,
        out_stride: VALUE * HEAD_DIM + 1,
        out_dtype: Dtype::F16,
    }
}

/// As [`Gdn::forward`](super::Gdn::forward) checks it.
fn check(call: &DeviceForward) -> Result<()> {
    let [h, gate, beta] = [0x1_0000, 0x2_0004, 0x3_0004];
    call.prepare(h, gate, beta).check()?;
    call.recurrence(h, gate, beta).check()?;
    call.out_norm().check()
}

#[test]
fn what_is_wrong_is_named() {
    check(&call()).unwrap();
    type Edit = fn(&mut DeviceForward);
    let cases: &[(Edit, &str)] = &[
        (|c| c.tokens = 1 << 31, "argument `tokens` is 2147483648; accepted: at most 2147483647 in a call"),
        (
            |c| c.options.eps = f32::NAN,
            "argument `eps` is NaN; accepted: a finite number that is not negative",
        ),
        (
            |c| c.options.l2_eps = -1.0,
            "argument `l2_eps` is -1; accepted: a finite number that is not negative",
        ),
        (
            |c| c.qkv.stride = CHANNELS - 4,
            "`qkv` has a token stride of 508 elements; accepted: at least 512 (4 heads of 128)",
        ),
        (|c| c.qkv.stride += 2, "`qkv` has a token stride of 518 elements; accepted: a multiple of 4"),
        (
            |c| c.a.stride = 1,
            "`a` has a token stride of 1 elements; accepted: 2 or more, a token's value heads",
        ),
        (
            |c| c.b.stride = 0,
            "`b` has a token stride of 0 elements; accepted: 2 or more, a token's value heads",
        ),
        (
            |c| c.out_stride = 255,
            "`out` has a token stride of 255 elements; accepted: at least 256 (2 heads of 128)",
        ),
    ];
    for (edit, message) in cases {
        let mut call = call();
        edit(&mut call);
        assert_eq!(check(&call).unwrap_err().to_string(), *message);
    }
}

/// Each address, with what it must be a multiple of.
#[test]
fn addresses_are_aligned_and_not_null() {
    type Address = fn(&mut DeviceForward) -> &mut u64;
    let addresses: &[(&str, u64, Address)] = &[
        ("qkv", 8, |c| &mut c.qkv.address),
        ("a", 2, |c| &mut c.a.address),
        ("b", 4, |c| &mut c.b.address),
        ("z", 8, |c| &mut c.z),
        ("conv_weight", 16, |c| &mut c.weights.conv_weight),
        ("conv_bias", 16, |c| c.weights.conv_bias.as_mut().unwrap()),
        ("dt_bias", 4, |c| &mut c.weights.dt_bias),
        ("a_coef", 4, |c| &mut c.weights.a_coef),
        ("norm_weight", 16, |c| &mut c.weights.norm_weight),
        ("conv_state", 16, |c| &mut c.conv_state),
        ("state", 4, |c| &mut c.state),
        ("y", 16, |c| &mut c.y),
        ("out", 2, |c| &mut c.out),
    ];
    for &(tensor, bytes, address) in addresses {
        let mut call = call();
        let valid = *address(&mut call);
        for wrong in [0, valid + bytes / 2] {
            *address(&mut call) = wrong;
            let message = check(&call).unwrap_err().to_string();
            assert!(message.starts_with(&format!("`{tensor}` starts at address {wrong:#x}; ")), "{message}");
            // No tokens: nothing is read.
            call.tokens = 0;
            check(&call).unwrap();
            call.tokens = 3;
        }
    }
}

/// A number that the kernel's 32 bits would cut to a valid one.
#[test]
fn value_heads_of_the_out_norm() {
    for value_heads in [0, 1025, (1 << 32) + 1] {
        let mut norm = call().out_norm();
        (norm.value_heads, norm.out_stride) = (value_heads, usize::MAX);
        let expected = format!("argument `value_heads` is {value_heads}; accepted: 1 to 1024");
        assert_eq!(norm.check().unwrap_err().to_string(), expected);
    }
}
