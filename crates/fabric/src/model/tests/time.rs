use proptest::prelude::*;

use super::*;
use crate::model::wire::tests::narrow;

const CABLE: Cable = Cable { latency: 4.0, bandwidth: 10_000.0 };
const FREE: Host = Host { send: 0.0, byte: 0.0 };

#[test]
fn a_frame_takes_the_latency_and_its_bytes() {
    let cost = narrow().time(Operation::Message, 64, &CABLE, &FREE, 1);
    assert!((cost.delivered - 4.0096).abs() < 1e-9 && cost.delivered == cost.done, "{cost:?}");
}

#[test]
fn a_large_message_is_agreed_on_first() {
    let wire = narrow();
    let cost = wire.time(Operation::Message, 1 << 20, &CABLE, &FREE, 1);
    // An offer, a grant and the bytes; then the word that they have come.
    assert!((12.0 + 104.8..12.1 + 104.9).contains(&cost.delivered), "{cost:?}");
    assert!((cost.done - cost.delivered - 4.0) < 0.01, "{cost:?}");
    // Two chunks, one over each cable.
    let two = wire.time(Operation::Message, 1 << 20, &CABLE, &FREE, 2);
    assert!((12.0 + 52.4..12.1 + 52.5).contains(&two.delivered), "{two:?}");
    assert_eq!(
        wire.time(Operation::Message, 64, &CABLE, &FREE, 2),
        wire.time(Operation::Message, 64, &CABLE, &FREE, 1)
    );
}

#[test]
fn streams_are_as_fast_as_the_cable_or_the_credits() {
    let wire = narrow();
    let long = wire.stream(1 << 20, &CABLE, &FREE, 1);
    assert!((9_990.0..10_000.0).contains(&long), "{long}");
    let two = wire.stream(4 << 20, &CABLE, &FREE, 2);
    assert!((19_900.0..20_000.0).contains(&two), "{two}");
    // Thirty frames a round trip of 8 µs, about: credits come back for half of all.
    let short = wire.stream(64, &CABLE, &FREE, 1);
    assert!((230.0..240.0).contains(&short), "{short}");
}

fn cables() -> impl Strategy<Value = Cable> {
    (0.1f64..100.0, 100.0f64..100_000.0).prop_map(|(latency, bandwidth)| Cable { latency, bandwidth })
}

fn hosts() -> impl Strategy<Value = Host> {
    (0.0f64..5.0, 0.0f64..0.01).prop_map(|(send, byte)| Host { send, byte })
}

proptest! {
    #[test]
    fn nothing_is_faster_than_the_cables(
        cable in cables(), host in hosts(), cables in 1u64..6, bytes in prop_oneof![1u64..20_000, 1u64..1 << 26],
    ) {
        let wire = narrow();
        let most = cable.bandwidth * cables as f64;
        for operation in [Operation::Message, Operation::Put, Operation::Get] {
            let cost = wire.time(operation, bytes, &cable, &host, cables);
            prop_assert!(cost.delivered <= cost.done);
            prop_assert!(cost.delivered >= cable.latency + bytes as f64 / most);
        }
        prop_assert!(wire.stream(bytes, &cable, &host, cables) <= most * 1.000_001);
    }

    #[test]
    fn worse_figures_and_fewer_cables_make_nothing_faster(
        cable in cables(), host in hosts(), worse in 1.0f64..3.0, cables in 1u64..6, bytes in 0u64..1 << 24,
    ) {
        let wire = narrow();
        let slow = Cable { latency: cable.latency * worse, bandwidth: cable.bandwidth / worse };
        let busy = Host { send: host.send * worse, byte: host.byte * worse };
        for operation in Operation::ALL {
            let time = |cable, host, cables| wire.time(operation, bytes, cable, host, cables).done;
            let best = time(&cable, &host, cables);
            let others = [time(&slow, &host, cables), time(&cable, &busy, cables), time(&cable, &host, 1)];
            prop_assert!(others.iter().all(|other| *other >= best * 0.999_999), "{best} {others:?}");
        }
        let best = wire.stream(bytes, &cable, &host, cables);
        for other in [wire.stream(bytes, &slow, &host, cables), wire.stream(bytes, &cable, &busy, cables)] {
            prop_assert!(other <= best * 1.000_001, "{best} {other}");
        }
    }

    #[test]
    fn longer_takes_longer_on_the_same_way(
        cable in cables(), host in hosts(), cables in 1u64..6, bytes in 0u64..1 << 24, more in 1u64..1 << 20,
    ) {
        let wire = narrow();
        for operation in Operation::ALL {
            let legs = |bytes| wire.steps(operation, bytes).legs.len();
            if legs(bytes) != legs(bytes + more) {
                continue;
            }
            let time = |bytes| wire.time(operation, bytes, &cable, &host, cables);
            prop_assert!(time(bytes).done <= time(bytes + more).done * 1.000_001);
        }
    }

    #[test]
    fn an_operation_takes_what_its_legs_take(cable in cables(), host in hosts(), bytes in 0u64..1 << 24) {
        let wire = narrow();
        for operation in Operation::ALL {
            let cost = wire.time(operation, bytes, &cable, &host, 1);
            let steps = wire.steps(operation, bytes);
            let legs: Vec<f64> = steps.legs.iter().map(|leg| leg.time(&cable, &host, 1)).collect();
            prop_assert!((cost.done - legs.iter().sum::<f64>()).abs() <= 1e-9 * cost.done);
            prop_assert!((cost.delivered - legs[..steps.delivered].iter().sum::<f64>()).abs() <= 1e-9 * cost.done);
        }
    }
}
