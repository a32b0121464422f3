//! What is chosen, and what it takes.

use super::*;

fn wanted(bytes: usize, free: bool) -> Wanted {
    Wanted { goal: Goal::AllReduce, bytes, element: 4, partial: 4, free, mixed: false }
}

fn question(ranks: usize, bytes: usize, order: Order) -> Question {
    let (operation, dtype, op) = (Operation::AllReduce, DType::F32, ReduceOp::Sum);
    Question { operation, ranks, bytes, dtype, op, order }
}

/// Where measurements on this library's usual links told algorithms apart clearly.
#[test]
fn usual_links_have_what_was_measured_to_be_the_fastest() {
    for (kind, processors, ranks, choices) in [
        (LinkKind::Tcp, 2, 2, vec![(8, "whole"), (64 << 10, "whole"), (16 << 20, "shares")]),
        (LinkKind::Tcp, 2, 8, vec![(8, "rounds"), (64 << 10, "passed-shares"), (16 << 20, "shares")]),
        (LinkKind::Tcp, 16, 4, vec![(64 << 10, "passed-shares"), (4 << 20, "shares")]),
        (LinkKind::Tcp, 16, 16, vec![(8 << 10, "passed-shares"), (64 << 10, "passed-shares"), (4 << 20, "shares")]),
        (LinkKind::Device, 16, 2, vec![(8, "whole"), (1 << 20, "shares")]),
        (LinkKind::Device, 2, 16, vec![(8, "rounds"), (1024, "rounds")]),
        (LinkKind::Device, 16, 8, vec![(8 << 10, "passed-shares"), (4 << 20, "shares")]),
    ] {
        let planner = Planner::over(Links::usual(kind, processors, false), &vec![0; ranks], false);
        for (bytes, name) in choices {
            let choice = planner.choose(&wanted(bytes, false));
            assert_eq!(choice.name(), name, "{kind}, {processors} processors, {ranks} ranks, {bytes} bytes");
        }
    }
}

#[test]
fn a_choice_may_be_used_and_is_the_same_for_all_of_its_class() {
    for (kind, between) in [(LinkKind::Tcp, true), (LinkKind::Device, true), (LinkKind::SharedMemory, false)] {
        for ranks in [2, 3, 6, 9] {
            let hosts: Vec<u32> = (0..ranks).map(|rank| if between { rank / 2 } else { 0 }).collect();
            let planner = Planner::over(Links::usual(kind, 4, between), &hosts, between);
            for bytes in (0..24).map(|shift| 1_usize << shift) {
                for free in [false, true] {
                    let wanted = wanted(bytes.next_multiple_of(4), free);
                    let choice = planner.choose(&wanted);
                    assert!(wanted.allows(choice, &planner.sites), "{choice} for {wanted:?}");
                    assert!(free || choice.is_in_rank_order());
                    let less = Wanted { bytes: wanted.bytes - wanted.bytes / 4 / 4 * 4, ..wanted };
                    let other = planner.choose(&less);
                    assert!(other == choice || !less.allows(choice, &planner.sites) || less.bytes * 2 <= wanted.bytes);
                }
            }
        }
    }
}

/// Two ranks that send each other all: the sum of what happens one after the other.
#[test]
fn times_are_those_of_what_happens() {
    let links = Links {
        latency_us: 10.0,
        message_us: 1.0,
        bandwidth: Some(2.0),
        copy_ns: 0.1,
        reduce_ns: 0.25,
        ..Links::usual(LinkKind::Device, 1, true)
    };
    let links = Links { shape: Shape::Mesh, offered_from: None, byte_ns: 0.0, ..links };
    let bytes = 100_000;
    let all = predict(&question(2, bytes, Order::Ranks), &links);
    let whole = all.iter().find(|one| one.algorithm == Algorithm::Whole).unwrap();
    // Copied, under way with its header, received and combined.
    let must = 10.0 + (10.0 + 100_024.0 / 2000.0) + (1.0 + 25.0);
    assert!((whole.time_us - must).abs() < 0.01, "{} and not {must}", whole.time_us);
    // An offer and a grant before it.
    let offered = Links { offered_from: Some(1000), ..links };
    let all = predict(&question(2, bytes, Order::Ranks), &offered);
    let whole = all.iter().find(|one| one.algorithm == Algorithm::Whole).unwrap();
    assert!((whole.time_us - must - 22.0).abs() < 0.01, "{} and not {must} and 22", whole.time_us);
}

/// What a rank does, with processors for more than that, by figures that count one thing each.
#[test]
fn a_rank_does_one_thing_after_the_other() {
    let nothing = Links {
        latency_us: 0.0,
        message_us: 0.0,
        byte_ns: 0.0,
        offered_from: None,
        wake_us: 0.0,
        copy_ns: 0.0,
        reduce_ns: 0.0,
        ..Links::usual(LinkKind::Device, 64, false)
    };
    let takes = |operation: Operation, ranks: usize, links: &Links| {
        let all = predict(&Question { operation, ..question(ranks, 10_000, Order::Ranks) }, links);
        all.iter().find(|one| one.algorithm == Algorithm::Whole).unwrap().time_us
    };
    let bytes = Links { byte_ns: 1.0, ..nothing.clone() };
    let copies = Links { copy_ns: 1.0, ..nothing.clone() };
    for (operation, ranks, links, must) in [
        // The root of five ranks takes four vectors, one after the other; of two, one that is being sent.
        (Operation::Reduce, 5, &bytes, 40.0),
        (Operation::Reduce, 2, &bytes, 10.0),
        // Copied at both ends; longer where it is sent.
        (Operation::Broadcast, 2, &copies, 20.0),
        (Operation::Broadcast, 2, &Links { staging: 3.0, ..copies.clone() }, 40.0),
        // The first rank also copies its own vector, which it has just read.
        (Operation::Scan, 2, &copies, 15.0),
        // One vector and one result are touched.
        (Operation::Broadcast, 2, &Links { uncached_ns: vec![(20_000, 0.5), (40_000, 1.0)], ..nothing.clone() }, 10.0),
        (Operation::AllReduce, 2, &Links { uncached_ns: vec![(20_000, 0.5), (40_000, 1.0)], ..nothing.clone() }, 20.0),
    ] {
        let time = takes(operation, ranks, links);
        // Headers are some bytes more.
        assert!((must..must + 0.3).contains(&time), "{} of {ranks}: {time} and not {must}", operation.name());
    }
}

#[test]
fn cables_that_join_neighbours_alone_are_for_chains() {
    let ring = Links::load("thunderbolt5-ring").unwrap();
    let best = fastest(&question(8, 64 << 20, Order::Ranks), &ring);
    assert_eq!(best.algorithm, Algorithm::Chain);
    // Each cable carries the vector once each way; a chain cannot be faster than that. What is copied takes longer.
    let floor = (64 << 20) as f64 / 9000.0;
    assert!(best.time_us > floor && best.time_us < 2.5 * floor, "{} us, {floor} at least", best.time_us);
    let any = fastest(&question(8, 64 << 20, Order::Any), &ring);
    assert!(any.time_us <= best.time_us && any.time_us > floor * 0.8, "{any:?}");
}

#[test]
fn what_is_left_out_is_not_the_fastest() {
    for name in Links::known() {
        let links = Links::load(name).unwrap();
        for ranks in [2, 4, 8, 20].into_iter().filter(|ranks| links.most_ranks().is_none_or(|most| *ranks <= most)) {
            for bytes in [64, 4096, 64 << 10, 1 << 20, 16 << 20] {
                for order in [Order::Ranks, Order::Any] {
                    let question = question(ranks, bytes, order);
                    let (all, fastest) = (predict(&question, &links), fastest(&question, &links));
                    assert!(
                        (all[0].time_us - fastest.time_us).abs() < 1e-9,
                        "{name}, {question:?}: {all:?}, {fastest:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn hosts_with_several_ranks_send_less_over_their_cables() {
    let links = Links { ranks_per_host: 4, bandwidth: Some(0.125), ..Links::usual(LinkKind::Tcp, 8, true) };
    let all = predict(&question(16, 4 << 20, Order::Any), &links);
    let time = |algorithm| all.iter().find(|one| one.algorithm == algorithm).unwrap().time_us;
    assert!(time(Algorithm::Hosts) < time(Algorithm::Halving), "{all:?}");
    assert!(time(Algorithm::Hosts) < time(Algorithm::Shares), "{all:?}");
}

/// Whatever a link file says that is accepted, each algorithm's time is a number, and the fastest is found without running all.
#[test]
fn times_are_numbers_over_any_links_that_are_accepted() {
    let mut random = 1_u64;
    let mut below = |count: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % count
    };
    for _ in 0..300 {
        // Nothing, the most that is accepted, or anything between.
        let mut figure = || match below(6) {
            0 => 0.0,
            1 => 1e9,
            _ => 10_f64.powi(below(15) as i32 - 6),
        };
        let links = Links {
            latency_us: figure(),
            message_us: figure(),
            byte_ns: figure(),
            offered_byte_ns: figure(),
            hop_us: figure(),
            wake_us: figure(),
            copy_ns: figure(),
            staging: figure(),
            reduce_ns: figure(),
            uncached_ns: vec![(1 << 10, figure()), (1 << 20, figure())],
            bandwidth: Some(figure().max(1e-6)),
            inside: Some(Inside { latency_us: figure(), message_us: figure(), byte_ns: figure() }),
            ..Links::usual(LinkKind::Device, 1, true)
        };
        let shapes =
            [Shape::Mesh, Shape::Ring, Shape::Switch, Shape::FatTree { rack: 2, uplinks: 1 + below(3) as usize }];
        let links = Links {
            shape: shapes[below(4) as usize],
            ranks_per_host: 1 + below(3) as usize,
            processors: [1, 2, 1 << 16][below(3) as usize],
            offered_from: Some(below(1 << 20) as usize),
            ..links
        };
        let text = serde_json::to_string(&links).unwrap();
        assert_eq!(Links::parse("a file", &text).unwrap(), links);
        let question = question(2 + below(8) as usize, 4 * (1 + below(1 << 18) as usize), Order::Ranks);
        let all = predict(&question, &links);
        assert!(all.iter().all(|one| one.time_us.is_finite() && one.time_us >= 0.0), "{links:?}: {all:?}");
        let (fastest, first) = (fastest(&question, &links), all[0]);
        assert!(fastest.time_us <= first.time_us * 1.000001, "{links:?}: {question:?}: {fastest:?} of {all:?}");
    }
}

/// So many hosts, of which each two are joined by so many cables as this says; paths are the short way around.
fn ring_of(hosts: u32, of: &[u32]) -> Links {
    let between = move |from: u32, to: u32| -> Vec<u32> {
        let up = (to + hosts - from) % hosts;
        let (steps, step) = if up <= hosts - up { (up, 1) } else { (hosts - up, hosts - 1) };
        (1..steps).map(|hop| (from + hop * step) % hosts).collect()
    };
    Links::usual(LinkKind::Device, 8, true).over(Ways::new(of, hosts as usize, between, |_, _| 1))
}

/// Two cables of each host, or one to each other.
#[test]
fn what_cables_there_are_decides() {
    let gather = |bytes| Wanted { goal: Goal::AllGather, ..wanted(bytes, true) };
    for ranks in [4, 8] {
        let all: Vec<u32> = (0..ranks).collect();
        let cabled = Planner::over(ring_of(ranks, &all), &all, false);
        let mesh = Ways::new(&all, ranks as usize, |_, _| Vec::new(), |_, _| 1);
        let mesh = Planner::over(Links::usual(LinkKind::Device, 8, true).over(mesh), &all, false);
        assert_eq!(cabled.choose(&gather(8 << 20)), Algorithm::Ring, "{ranks} ranks");
        assert_eq!(mesh.choose(&gather(8 << 20)), Algorithm::Whole, "{ranks} ranks");
        assert_eq!(cabled.choose(&wanted(64 << 20, false)), Algorithm::Chain, "{ranks} ranks");
        // As the link file of such a ring has it.
        let known = Links { message_us: 1.2, ..Links::load("thunderbolt5-ring").unwrap() };
        assert_eq!(Planner::over(known, &all, false).choose(&gather(8 << 20)), Algorithm::Ring);
    }
    // Some of them, which talk over the others.
    let links = ring_of(6, &[5, 1, 3]);
    assert_eq!(links.way(0, 1, 3).as_slice(), [(30, 1), (1, 1)]);
    assert_eq!(links.way(2, 0, 3).as_slice(), [(22, 1), (29, 1)]);
    assert!(links.way(1, 1, 3).is_empty() && links.cables(3) == 36);
}
