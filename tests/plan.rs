//! Which kernels a card gets: the rule for the recurrence against a table of real cards, and what is launched around it, without a
//! GPU.

use Variant::{Cols, Heads as HeadsVariant, Keyhead, Pipe, Scan};
use keyhead::Error;
use keyhead::gdn::{Device, ForwardPlan, HeadMap, Heads, Plan, Request, Switches, Variant};

struct Card {
    name: &'static str,
    sms: u32,
    capability: (u32, u32),
    /// What it must get for 16 key heads and for 2 (48 and 6 value heads).
    sixteen: Variant,
    two: Variant,
    /// The same if `scan` could not run.
    without_scan: (Variant, Variant),
}

const fn card(
    name: &'static str,
    sms: u32,
    capability: (u32, u32),
    (sixteen, two): (Variant, Variant),
    without_scan: (Variant, Variant),
) -> Card {
    Card { name, sms, capability, sixteen, two, without_scan }
}

const CARDS: [Card; 14] = [
    card("RTX 3060", 28, (8, 6), (Scan, Scan), (Pipe, Keyhead)),
    card("RTX 4060", 24, (8, 9), (Scan, Scan), (Pipe, Keyhead)),
    card("RTX 4060 Ti", 34, (8, 9), (Keyhead, Scan), (Keyhead, Keyhead)),
    card("RTX 3070", 46, (8, 6), (Keyhead, Scan), (Keyhead, Keyhead)),
    card("RTX 4070", 46, (8, 9), (Keyhead, Scan), (Keyhead, Keyhead)),
    card("RTX 4070 SUPER", 56, (8, 9), (Scan, Scan), (Keyhead, Keyhead)),
    card("RTX 3080", 68, (8, 6), (Scan, Scan), (Keyhead, Keyhead)),
    card("RTX 4080 SUPER", 80, (8, 9), (Scan, Scan), (Keyhead, Keyhead)),
    card("RTX 3090", 82, (8, 6), (Scan, Scan), (Keyhead, Keyhead)),
    card("RTX 4090", 128, (8, 9), (Scan, Scan), (Keyhead, Keyhead)),
    card("RTX 5090", 170, (12, 0), (Scan, Scan), (Keyhead, Keyhead)),
    card("H200", 132, (9, 0), (Scan, Scan), (Keyhead, Keyhead)),
    card("T4", 40, (7, 5), (Pipe, Pipe), (Pipe, Pipe)),
    card("V100", 80, (7, 0), (Pipe, Pipe), (Pipe, Pipe)),
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
    for card in &CARDS {
        for (request, expected) in [(request(16, 48), card.sixteen), (request(2, 6), card.two)] {
            let plan = plan(&device(card.sms, card.capability), &request, &Switches::default()).unwrap();
            assert_eq!(plan.variant, expected, "{}: {}", card.name, plan.reason);
            assert!(plan.reason.contains(&format!("on {} SMs", card.sms)), "{}", plan.reason);
        }
    }
}

#[test]
fn every_card_can_be_asked_for_keyhead_where_it_fits() {
    for card in &CARDS {
        let (sixteen, two) = card.without_scan;
        for (request, expected) in [(request(16, 48), sixteen), (request(2, 6), two)] {
            let forced = Request { variant: Some(Keyhead), ..request };
            let fits = plan(&device(card.sms, card.capability), &forced, &Switches::default());
            assert_eq!(fits.is_ok(), expected == Keyhead, "{}: {fits:?}", card.name);
        }
    }
}

/// The bands that were measured for 96 blocks of `scan` and 64 of `keyhead`.
#[test]
fn scan_wins_but_where_a_third_block_waits() {
    let variant = |sms| plan(&device(sms, (9, 0)), &request(16, 48), &Switches::default()).unwrap().variant;
    for sms in (24..32).chain(48..=132) {
        assert_eq!(variant(sms), Scan, "{sms} SMs");
    }
    for sms in 32..48 {
        assert_eq!(variant(sms), Keyhead, "{sms} SMs");
    }
}

#[test]
fn thirty_two_sms_are_the_border_of_keyhead_for_sixteen_key_heads() {
    let forced = Request { variant: Some(Keyhead), ..request(16, 48) };
    assert!(plan(&device(32, (8, 9)), &forced, &Switches::default()).is_ok());
    let error = plan(&device(28, (8, 6)), &forced, &Switches::default()).unwrap_err().to_string();
    assert!(error.contains("64 blocks") && error.contains("28 SMs x 2 hold 56"), "{error}");
    assert!(plan(&device(31, (8, 9)), &forced, &Switches::default()).is_err());
}

#[test]
fn more_than_four_value_heads_a_key_head_are_not_for_keyhead() {
    let forced = Request { variant: Some(Keyhead), ..request(8, 40) };
    let error = plan(&device(132, (9, 0)), &forced, &Switches::default()).unwrap_err().to_string();
    assert!(error.contains("at most 4") && error.contains("has 5"), "{error}");
    assert_eq!(plan(&device(132, (9, 0)), &request(8, 40), &Switches::default()).unwrap().variant, Scan);
    assert_eq!(plan(&device(40, (7, 5)), &request(8, 40), &Switches::default()).unwrap().variant, Pipe);
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
    assert_eq!(plan(&h200, &request(16, 48), &by("scan")).unwrap().variant, Scan);
    assert_eq!(plan(&h200, &request(16, 48), &by("auto")).unwrap().variant, Scan);
    let caller = Request { variant: Some(Keyhead), ..request(16, 48) };
    assert_eq!(plan(&h200, &caller, &by("pipe")).unwrap().variant, Keyhead);
    // The card cannot, and the switch is not a wish.
    assert!(matches!(
        plan(&device(40, (7, 5)), &request(16, 48), &by("keyhead")),
        Err(Error::Variant { .. })
    ));
    let error = plan(&h200, &request(16, 48), &by("warp")).unwrap_err();
    assert!(
        error.to_string().contains("KEYHEAD_GDN")
            && error.to_string().contains("heads, cols, pipe, keyhead, scan"),
        "{error}"
    );
}

#[test]
fn the_reference_engines_switches_keep_their_meaning() {
    let h200 = device(132, (9, 0));
    let no_keyhead = Switches { no_keyhead: true, ..Switches::default() };
    assert_eq!(plan(&h200, &request(16, 48), &no_keyhead).unwrap().variant, Scan);
    let forced = Request { variant: Some(Keyhead), ..request(16, 48) };
    assert_eq!(plan(&h200, &forced, &no_keyhead).unwrap().variant, Keyhead, "the caller goes first");

    // In their order, on every card, aligned or not.
    let rec_heads = Switches { rec_heads: true, no_pipeline: true, ..no_keyhead.clone() };
    let no_pipeline = Switches { no_pipeline: true, ..no_keyhead };
    for card in &CARDS {
        let device = device(card.sms, card.capability);
        for aligned in [true, false] {
            let request = Request { aligned, ..request(16, 80) };
            for (switches, expected) in [(&rec_heads, HeadsVariant), (&no_pipeline, Cols)] {
                let plan = plan(&device, &request, switches).unwrap();
                assert_eq!(plan.variant, expected, "{}: {}", card.name, plan.reason);
                assert!(plan.reason.contains("STRATA_GDN_"), "{}", plan.reason);
            }
        }
    }
    // This project's own switch goes before them, unless it leaves the choice.
    let own = |name: &str| Switches { variant: Some(name.into()), ..rec_heads.clone() };
    assert_eq!(plan(&h200, &request(16, 48), &own("pipe")).unwrap().variant, Pipe);
    assert_eq!(plan(&h200, &request(16, 48), &own("auto")).unwrap().variant, HeadsVariant);
}

#[test]
fn heads_and_cols_are_never_chosen() {
    for card in &CARDS {
        for value in [16, 48, 80] {
            for aligned in [true, false] {
                let request = Request { aligned, ..request(16, value) };
                let plan = plan(&device(card.sms, card.capability), &request, &Switches::default()).unwrap();
                assert!(!matches!(plan.variant, HeadsVariant | Cols), "{}: {}", card.name, plan.reason);
            }
        }
    }
}

fn forward_plan(device: &Device, request: &Request) -> Result<ForwardPlan, Error> {
    Ok(ForwardPlan::new(request.heads, plan(device, request, &Switches::default())?))
}

#[test]
fn the_whole_path_is_three_launches_or_two() {
    let h200 = device(132, (9, 0));
    for variant in Variant::ALL {
        let request = Request { variant: Some(variant), ..request(16, 48) };
        let plan = forward_plan(&h200, &request).unwrap();
        assert_eq!(plan.variant, variant);
        let kernels: Vec<&str> = plan.launches.iter().map(|launch| launch.kernel.as_str()).collect();
        let expected = match variant {
            HeadsVariant => vec!["prepare", "heads_norm"],
            Cols => vec!["prepare", "cols", "out_norm"],
            Pipe => vec!["prepare", "pipe", "out_norm"],
            Keyhead => vec!["prepare", "keyhead_vpk3", "out_norm"],
            Scan => vec!["prepare", "scan", "out_norm"],
        };
        assert_eq!(kernels, expected);
        // Every launch is a kernel of the module that the card takes.
        let module = keyhead::ptx::Module::for_compute_capability(9, 0).unwrap();
        for kernel in kernels {
            assert!(module.entries.iter().any(|entry| entry.name == kernel), "{kernel}");
        }
        assert!(plan.launches[1].reason.starts_with("asked for by the caller"), "{plan}");
    }
}

#[test]
fn a_plan_says_why() {
    let plan = forward_plan(&device(40, (7, 5)), &request(16, 48)).unwrap();
    let shown = plan.to_string();
    assert!(
        shown.starts_with("prepare (gates, conv and l2norm in one launch), pipe (the fastest"),
        "{shown}"
    );
    assert!(shown.contains("not scan: it needs compute capability 8.0"), "{shown}");
    assert!(shown.ends_with(", out_norm (the only kernel of this step)"), "{shown}");
}

#[test]
fn a_reason_of_several_plans_is_told_once() {
    let h200 = device(132, (9, 0));
    let plans = [request(16, 48), request(8, 24), Request { variant: Some(Keyhead), ..request(8, 40) }]
        .map(|request| (request.heads, forward_plan(&h200, &request)));
    let lines = ForwardPlan::lines(&plans);
    assert_eq!(
        lines,
        [
            "forward 16/48 heads: prepare, scan (the fastest that can run, 96 blocks on 132 SMs), out_norm",
            "forward 8/24 heads: prepare, scan (the fastest that can run, 48 blocks on 132 SMs), out_norm",
            &format!("forward 8/40 heads: {}", plans[2].1.as_ref().unwrap_err()),
            "prepare: gates, conv and l2norm in one launch",
            "out_norm: the only kernel of this step",
        ]
    );
    let alone = ForwardPlan::lines(&plans[..1]);
    assert_eq!(alone, [format!("forward 16/48 heads: {}", plans[0].1.as_ref().unwrap())]);
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
