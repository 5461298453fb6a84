//! Which selection kernel a card gets, and which calls are calls: without a GPU.

use Kernel::{Cluster, Original, Register, Sieve, Split, Wide};
use keyhead::Error;
use keyhead::topk::{Device, Kernel, Plan, Request, Scores, Step, Switches, Topk, TopkShape};

struct Card {
    name: &'static str,
    device: Device,
    /// Whether it has clusters.
    clusters: bool,
    /// Whether an active count bounds the reach without a switch.
    counts: bool,
}

const fn card(name: &'static str, (major, minor): (u32, u32), clusters: bool, counts: bool) -> Card {
    Card { name, device: Device { major, minor }, clusters, counts }
}

const CARDS: [Card; 10] = [
    card("V100", (7, 0), false, false),
    card("T4", (7, 5), false, true),
    card("RTX 2080 Ti", (7, 5), false, true),
    card("A100", (8, 0), false, false),
    card("RTX 3060", (8, 6), false, false),
    card("RTX 4090", (8, 9), false, false),
    card("H100", (9, 0), true, false),
    card("H200", (9, 0), true, false),
    card("B200", (10, 0), true, false),
    card("RTX 5090", (12, 0), true, false),
];

/// Scores from row to row at a capacity of so many cells, as the reference engine lays them.
const fn stride(capacity: usize) -> usize {
    capacity / 4 + 2
}

/// Of 256 queries at the reference engine's width.
fn request(stride: usize) -> Request {
    let shape = TopkShape::new(256, stride, 2051, 2051).unwrap();
    Request::new(shape)
}

fn forced(kernel: Kernel, stride: usize) -> Request {
    Request { kernel: Some(kernel), ..request(stride) }
}

fn plan(card: &Card, request: Request) -> Result<Plan, Error> {
    Plan::new(&card.device, &request, &Switches::default())
}

fn chosen(card: &Card, request: Request) -> Kernel {
    plan(card, request).unwrap().kernel
}

#[test]
fn every_card_takes_sieve_where_it_can_run() {
    for card in &CARDS {
        for queries in [1, 8, 16, 17, 256] {
            for capacity in [4, 9000, 135_160, 262_144, 524_288] {
                let request = Request { queries, ..request(stride(capacity)) };
                let plan = plan(card, request).unwrap();
                assert_eq!(plan.kernel, Sieve, "{}: {}", card.name, plan.reason);
                assert_eq!(plan.reach, stride(capacity));
            }
        }
    }
}

#[test]
fn wider_selections_go_by_reach_and_queries() {
    for card in &CARDS {
        let wider = |queries, stride| Request { queries, width: 2302, ..request(stride) };
        assert_eq!(chosen(card, wider(17, 33_792)), Wide, "{}", card.name);
        let plan = plan(card, wider(17, 33_793)).unwrap();
        assert_eq!(plan.kernel, Wide, "{}: {}", card.name, plan.reason);
        for part in ["33793 blocks a row", "not sieve", "2302", "not cluster"] {
            assert!(plan.reason.contains(part), "no `{part}` in: {}", plan.reason);
        }
        let few = |card: &Card| if card.clusters { Cluster } else { Wide };
        assert_eq!(chosen(card, wider(16, 1000)), few(card), "{}", card.name);
        assert_eq!(chosen(card, wider(16, 1_000_000)), Wide, "{}", card.name);
    }
}

#[test]
fn an_active_count_bounds_the_reach_on_sm_75_only() {
    let (none, any) = (Switches::default(), Switches { active_any: true, ..Switches::default() });
    for card in &CARDS {
        let counted = |active| Request { active: Some(active), ..request(65_538) };
        let plan = |request, switches| Plan::new(&card.device, &request, switches).unwrap();
        assert_eq!(plan(counted(2000), &none).reach, if card.counts { 2000 } else { 65_538 });
        assert_eq!(plan(counted(2000), &any).reach, 2000, "{}", card.name);
        // No count, and one that bounds nothing.
        assert_eq!(plan(request(65_538), &any).reach, 65_538);
        assert_eq!(plan(counted(0), &any).reach, 65_538);
        assert_eq!(plan(counted(70_000), &any).reach, 65_538);
        // The bound is one for the limits of a kernel, too.
        let register = Request { kernel: Some(Register), ..counted(2000) };
        let by_itself = Plan::new(&card.device, &register, &none);
        assert_eq!(by_itself.is_ok(), card.counts, "{}", card.name);
        assert_eq!(plan(register, &any).kernel, Register);
    }
}

#[test]
fn a_kernel_that_is_asked_for_runs_or_is_an_error() {
    for card in &CARDS {
        for (kernel, most) in [
            (Original, usize::MAX),
            (Wide, usize::MAX),
            (Register, 33_792),
            (Split, 67_584),
            (Sieve, 1_179_520),
        ] {
            let plan = |stride| plan(card, forced(kernel, stride));
            let most = most.min(i32::MAX as usize);
            let reason = plan(most).unwrap().reason;
            assert!(reason.contains("asked for by the caller"), "{reason}");
            if most < i32::MAX as usize {
                let error = plan(most + 1).unwrap_err();
                assert!(matches!(error, Error::Variant { .. }), "{error}");
                assert_eq!(error.exit_code(), 2);
                let text = error.to_string();
                assert!(text.contains(kernel.name()) && text.contains(&most.to_string()), "{text}");
            }
        }
        // Asked for, a cluster may have any number of queries.
        assert!(plan(card, forced(Cluster, 139_265)).is_err());
        assert_eq!(plan(card, forced(Cluster, 139_264)).is_ok(), card.clusters, "{}", card.name);
        assert_eq!(plan(card, forced(Cluster, 65_538)).is_ok(), card.clusters, "{}", card.name);
        let width = |width| plan(card, Request { width, ..forced(Sieve, 1000) });
        assert!(width(2301).is_ok() && matches!(width(2302), Err(Error::Variant { .. })));
    }
    let error = plan(&CARDS[5], forced(Cluster, 1000)).unwrap_err().to_string();
    assert!(error.contains("9.0") && error.contains("8.9"), "{error}");
}

#[test]
fn switches_force_and_the_caller_goes_first() {
    let h200 = &CARDS[7].device;
    let by = |kernel: &str| Switches { kernel: Some(kernel.into()), ..Switches::default() };
    let kernel = |request: Request, switches: &Switches| Plan::new(h200, &request, switches).unwrap().kernel;
    for forced in Kernel::ALL {
        assert_eq!(kernel(request(1000), &by(forced.name())), forced);
        assert_eq!(forced.name().parse::<Kernel>().unwrap(), forced);
    }
    assert_eq!(kernel(request(1000), &by("auto")), Sieve);
    assert_eq!(kernel(forced(Wide, 1000), &by("register")), Wide);
    let old = Switches { old: true, ..Switches::default() };
    assert_eq!(kernel(request(1000), &old), Original);
    assert_eq!(kernel(request(1000), &Switches { old: true, ..by("wide") }), Wide);
    assert_eq!(kernel(forced(Wide, 1000), &old), Wide);
    // The kernel cannot, and the switch is not a wish.
    let error = Plan::new(h200, &request(33_793), &by("register")).unwrap_err();
    assert!(matches!(error, Error::Variant { .. }), "{error}");
    let error = Plan::new(h200, &request(1000), &by("fast")).unwrap_err().to_string();
    assert!(error.contains("KEYHEAD_TOPK") && error.contains("auto, original, register"), "{error}");
    assert!("Sieve".parse::<Kernel>().is_err());
}

#[test]
fn shapes_are_checked() {
    let most = i32::MAX as usize;
    assert!(TopkShape::new(most, most, most, most).is_ok());
    assert!(TopkShape::new(0, 0, 1, 1).is_ok());
    for (queries, stride, width, cap, argument) in [
        (most + 1, 1, 1, 1, "queries"),
        (1, most + 1, 1, 1, "stride"),
        (1, 1, 0, 1, "width"),
        (1, 1, most + 1, most + 1, "width"),
        (1, 1, 8, 7, "cap"),
    ] {
        let error = TopkShape::new(queries, stride, width, cap).unwrap_err();
        assert!(matches!(&error, Error::Argument { argument: name, .. } if name == argument), "{error}");
    }
}

/// The error of a selection over two rows of three blocks.
#[track_caller]
fn topk_error(scores: usize, n_kv: &[i32], ids: usize) -> String {
    let shape = TopkShape::new(2, 3, 4, 5).unwrap();
    let (scores, mut ids) = (vec![0.0; scores], vec![0; ids]);
    let error = Topk::new(shape, &scores, n_kv, &mut ids).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    error.to_string()
}

#[test]
fn selections_are_checked() {
    let shape = TopkShape::new(2, 3, 4, 5).unwrap();
    let (scores, mut ids) = (vec![0.0; 6], vec![0; 10]);
    assert_eq!(Topk::new(shape, &scores, &[0, 12], &mut ids).unwrap().reach(), 3);
    assert_eq!(Topk::new(shape, &scores, &[1, 5], &mut ids).unwrap().reach(), 2);
    for (error, parts) in [
        (topk_error(5, &[1, 2], 10), ["`scores` holds 5", "2 * 3"]),
        (topk_error(6, &[1, 2], 9), ["`ids` holds 9", "2 * 5"]),
        (topk_error(6, &[1], 10), ["`n_kv` holds 1", "2 elements"]),
        (topk_error(6, &[1, -2], 10), ["`n_kv` is -2 for query 1", "0 or more"]),
        (topk_error(6, &[13, 1], 10), ["`n_kv` is 13 for query 0, which takes 4 blocks", "stride, 3"]),
    ] {
        parts.iter().for_each(|part| assert!(error.contains(part), "no `{part}` in: {error}"));
    }
}

#[test]
fn records_are_checked() {
    let shape = TopkShape::new(1, 3, 4, 4).unwrap();
    let check = |record: [i32; 4]| {
        let (scores, mut ids) = ([0.0; 3], [0; 4]);
        Topk::from_records(shape, &scores, &record, &mut ids).map(|call| call.reach())
    };
    assert_eq!(check([8, 9, 2, 4]).unwrap(), 3);
    assert_eq!(check([8, 9, 2, 1]).unwrap(), 3);
    assert_eq!(check([-1, 0, 0, 0]).unwrap(), 0);
    for record in [
        [9, 9, 2, 4],
        [8, 9, 3, 4],
        [8, 9, 2, 5],
        [8, 9, 2, -1],
        [8, 9, 2, 0],
        [1, 2, 0, 3],
        [-2, -1, 0, 0],
        [i32::MAX, i32::MIN, 0, 0],
    ] {
        let error = check(record).unwrap_err().to_string();
        assert!(error.contains("`steps`") && error.contains("query 0"), "{error}");
    }
    assert!(check([12, 13, 3, 4]).unwrap_err().to_string().contains("n_kv"));
    assert_eq!(Step::new(9, 4).words(), [8, 9, 2, 4]);
}

#[test]
fn score_calls_are_checked() {
    let check = |stride: usize, pooled: usize, q_idx: usize, tail: usize, n_kv: &[i32], scores: usize| {
        let (pooled, q_idx, tail) = (vec![0.0; pooled], vec![0.0; q_idx], vec![0.0; tail]);
        let mut scores = vec![0.0; scores];
        Scores::new(stride, &pooled, &q_idx, &tail, n_kv, &mut scores)
            .map(|call| call.reach())
            .map_err(|error| error.to_string())
    };
    // Two queries of two complete blocks and a tail, one of them empty.
    assert_eq!(check(3, 256, 1024, 128, &[8, 9], 6), Ok(3));
    assert_eq!(check(3, 256, 1024, 256, &[8, 9], 6), Ok(3));
    assert_eq!(check(1, 0, 1024, 256, &[0, 3], 2), Ok(1));
    for (result, part) in [
        (check(3, 128, 1024, 128, &[8, 9], 6), "`pooled` holds 128"),
        (check(3, 300, 1024, 128, &[8, 9], 6), "`pooled` holds 300"),
        (check(3, 256, 1023, 128, &[8, 9], 6), "`q_idx` holds 1023"),
        (check(3, 256, 1024, 127, &[8, 9], 6), "`tail` holds 127"),
        (check(3, 256, 1024, 128, &[8, 9], 5), "`scores` holds 5"),
        (check(2, 256, 1024, 128, &[7, 8], 4), "8 for query 1, which takes 3 blocks"),
        (check(3, 256, 1024, 128, &[8, -9], 6), "-9 for query 1"),
    ] {
        let error = result.unwrap_err();
        assert!(error.contains(part), "no `{part}` in: {error}");
    }
}
