//! Which recurrence kernel a card gets: the rule against a table of real cards, without a GPU.

use Variant::{Keyhead, Pipe};
use keyhead::Error;
use keyhead::gdn::{Device, HeadMap, Heads, Plan, Request, Switches, Variant};

/// Name, SMs, compute capability, the variant for 16 key heads and for 2 (48 and 6 value heads).
const CARDS: [(&str, u32, (u32, u32), Variant, Variant); 14] = [
    ("RTX 3060", 28, (8, 6), Pipe, Keyhead),
    ("RTX 4060", 24, (8, 9), Pipe, Keyhead),
    ("RTX 4060 Ti", 34, (8, 9), Keyhead, Keyhead),
    ("RTX 3070", 46, (8, 6), Keyhead, Keyhead),
    ("RTX 4070", 46, (8, 9), Keyhead, Keyhead),
    ("RTX 4070 SUPER", 56, (8, 9), Keyhead, Keyhead),
    ("RTX 3080", 68, (8, 6), Keyhead, Keyhead),
    ("RTX 4080 SUPER", 80, (8, 9), Keyhead, Keyhead),
    ("RTX 3090", 82, (8, 6), Keyhead, Keyhead),
    ("RTX 4090", 128, (8, 9), Keyhead, Keyhead),
    ("RTX 5090", 170, (12, 0), Keyhead, Keyhead),
    ("H200", 132, (9, 0), Keyhead, Keyhead),
    ("T4", 40, (7, 5), Pipe, Pipe),
    ("V100", 80, (7, 0), Pipe, Pipe),
];

/// What the driver counts for `keyhead` on every card of the table that can run it: see the registers in
/// docs/performance.md, 65,536 of them and 128 threads a block.
const BLOCKS_PER_SM: u32 = 2;

fn device(sms: u32, (major, minor): (u32, u32)) -> Device {
    Device { major, minor, sms, keyhead_blocks_per_sm: if major >= 8 { BLOCKS_PER_SM } else { 0 } }
}

fn request(key: usize, value: usize) -> Request {
    Request { heads: Heads::new(key, value, HeadMap::Tiled).unwrap(), variant: None, aligned: true }
}

fn plan(device: &Device, request: &Request, switches: &Switches) -> Result<Plan, Error> {
    Plan::new(device, request, switches)
}

#[test]
fn every_card_gets_its_variant() {
    for (name, sms, capability, sixteen, two) in CARDS {
        for (request, expected) in [(request(16, 48), sixteen), (request(2, 6), two)] {
            let plan = plan(&device(sms, capability), &request, &Switches::default()).unwrap();
            assert_eq!(plan.variant, expected, "{name}: {}", plan.reason);
            assert!(!plan.reason.is_empty());
        }
    }
}

#[test]
fn thirty_two_sms_are_the_border_for_sixteen_key_heads() {
    for (sms, expected) in [(31, Pipe), (32, Keyhead)] {
        let plan = plan(&device(sms, (8, 9)), &request(16, 48), &Switches::default()).unwrap();
        assert_eq!(plan.variant, expected);
    }
    let plan = plan(&device(28, (8, 6)), &request(16, 48), &Switches::default()).unwrap();
    assert!(
        plan.reason.contains("64 blocks") && plan.reason.contains("28 SMs x 2 hold 56"),
        "{}",
        plan.reason
    );
}

#[test]
fn more_than_four_value_heads_a_key_head_go_through_pipe() {
    let plan = plan(&device(132, (9, 0)), &request(8, 40), &Switches::default()).unwrap();
    assert_eq!(plan.variant, Pipe);
    assert!(plan.reason.contains("5"), "{}", plan.reason);
}

#[test]
fn unaligned_inputs_go_through_pipe() {
    let request = Request { aligned: false, ..request(16, 48) };
    let plan = plan(&device(132, (9, 0)), &request, &Switches::default()).unwrap();
    assert_eq!(plan.variant, Pipe);
    assert!(plan.reason.contains("16 bytes"), "{}", plan.reason);
}

#[test]
fn a_forced_variant_is_never_replaced() {
    let forced = |variant| Request { variant: Some(variant), ..request(16, 48) };
    let h200 = device(132, (9, 0));
    assert_eq!(plan(&h200, &forced(Pipe), &Switches::default()).unwrap().variant, Pipe);
    for card in [device(28, (8, 6)), device(40, (7, 5))] {
        let error = plan(&card, &forced(Keyhead), &Switches::default()).unwrap_err();
        assert!(matches!(error, Error::Variant { .. }), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
    let unaligned = Request { aligned: false, ..forced(Keyhead) };
    assert!(plan(&h200, &unaligned, &Switches::default()).is_err());
}

#[test]
fn switches_force_and_the_caller_goes_first() {
    let h200 = device(132, (9, 0));
    let by = |variant: &str| Switches { variant: Some(variant.into()), ..Switches::default() };
    assert_eq!(plan(&h200, &request(16, 48), &by("pipe")).unwrap().variant, Pipe);
    assert_eq!(plan(&h200, &request(16, 48), &by("keyhead")).unwrap().variant, Keyhead);
    assert_eq!(plan(&h200, &request(16, 48), &by("auto")).unwrap().variant, Keyhead);
    let caller = Request { variant: Some(Keyhead), ..request(16, 48) };
    assert_eq!(plan(&h200, &caller, &by("pipe")).unwrap().variant, Keyhead);
    // The card cannot, and the switch is not a wish.
    assert!(matches!(
        plan(&device(40, (7, 5)), &request(16, 48), &by("keyhead")),
        Err(Error::Variant { .. })
    ));
    let error = plan(&h200, &request(16, 48), &by("warp")).unwrap_err();
    assert!(
        error.to_string().contains("KEYHEAD_GDN") && error.to_string().contains("pipe, keyhead"),
        "{error}"
    );
}

#[test]
fn the_reference_engines_switches_keep_their_meaning() {
    let h200 = device(132, (9, 0));
    let no_keyhead = Switches { no_keyhead: true, ..Switches::default() };
    assert_eq!(plan(&h200, &request(16, 48), &no_keyhead).unwrap().variant, Pipe);
    for switches in [
        Switches { rec_heads: true, ..Switches::default() },
        Switches { no_pipeline: true, ..Switches::default() },
    ] {
        // They ask for kernels that this version does not have: an error, not another kernel.
        assert!(matches!(plan(&h200, &request(16, 48), &switches), Err(Error::Variant { .. })));
    }
}

#[test]
fn head_ratios_are_checked() {
    for (key, value) in [(0, 0), (65, 65), (2, 3), (4, 0), (64, 2048)] {
        let error = Heads::new(key, value, HeadMap::Tiled).unwrap_err();
        assert!(matches!(error, Error::Heads { .. }), "{error}");
    }
    let heads = |map| Heads::new(2, 6, map).unwrap();
    let keys = |map| (0..6).map(|h| heads(map).key_of(h)).collect::<Vec<_>>();
    assert_eq!(keys(HeadMap::Tiled), [0, 1, 0, 1, 0, 1]);
    assert_eq!(keys(HeadMap::Grouped), [0, 0, 0, 1, 1, 1]);
}
