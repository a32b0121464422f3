//! Links that have several rails: what goes over which, what a rail that fails costs, and its return.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_fabric::{Cables, Fabric, FabricError, FabricOptions, Providers, RailState, RailStatus};
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_verbs::{CablePull, Device, FaultPlan, Faulty, Kill, KillMode, Odds};

use crate::devices::{check, fill, traffic};
use crate::world::{self, LONG, options};

/// Starts two ranks with rails over pairs of devices, which `change` may make worse: given the rank and the rail.
fn start_rails<T: Send>(
    (profile, rails): (Profile, usize),
    silence: Duration,
    change: impl Fn(u32, usize, Arc<dyn Device>) -> Arc<dyn Device> + Sync,
    body: impl Fn(&Fabric) -> T + Sync,
) -> Vec<T> {
    let given = |rank| {
        let node = Node::open().unwrap();
        let open = |rail| change(rank, rail, SoftDevice::open(&node, profile).unwrap());
        let devices: Vec<_> = (0..rails).map(open).collect();
        let names: Vec<_> = devices.iter().map(|device| device.info().name.clone()).collect();
        let cables = Some(Cables(vec![names; 2]));
        let options = FabricOptions { windows: false, pool: 128 << 20, silence, ..options() };
        (Providers { devices, cables, ..Providers::default() }, options)
    };
    world::start_with(2, given, |_, fabric| body(&fabric.unwrap()))
}

fn unchanged(_: u32, _: usize, device: Arc<dyn Device>) -> Arc<dyn Device> {
    device
}

fn rails(fabric: &Fabric) -> Vec<RailStatus> {
    fabric.rails(1 - fabric.rank())
}

/// Waits until the rails are so.
fn until(fabric: &Fabric, what: &str, are: impl Fn(&[RailStatus]) -> bool) -> Vec<RailStatus> {
    let end = Instant::now() + LONG;
    loop {
        let rails = rails(fabric);
        if are(&rails) {
            return rails;
        }
        assert!(Instant::now() < end, "{what}: {rails:#?}");
        std::thread::yield_now();
    }
}

fn all_up(rails: &[RailStatus]) -> bool {
    rails.iter().all(|rail| rail.state == RailState::Up)
}

fn meet(fabric: &Fabric) {
    let other = 1 - fabric.rank();
    fabric.send_bytes(other, 1 << 40, &[], LONG).unwrap();
    fabric.recv_bytes(other, 1 << 40, &mut [], LONG).unwrap();
}

/// Large messages both ways at once.
fn exchange(fabric: &Fabric, count: u64, len: usize) {
    let other = 1 - fabric.rank();
    for round in 0..count {
        let (data, into) = (fabric.alloc(len).unwrap().into_exposed(), fabric.alloc(len).unwrap().into_exposed());
        fill(&data, round ^ u64::from(fabric.rank()) << 32);
        let receive = fabric.start_recv(other, round, &into).unwrap();
        let send = fabric.start_send(other, round, &data).unwrap();
        let received = receive.wait(LONG).unwrap_or_else(|error| panic!("{error}: {:#?}", rails(fabric)));
        assert_eq!(received, len as u64);
        check(&into, round ^ u64::from(other) << 32, "exchange");
        send.wait(LONG).unwrap();
    }
}

/// Exchanges large messages, so many of that length at a time, until the rails are so at both ends.
fn until_both(fabric: &Fabric, (count, len): (u64, usize), are: impl Fn(&[RailStatus]) -> bool) {
    let other = 1 - fabric.rank();
    let end = Instant::now() + LONG;
    loop {
        exchange(fabric, count, len);
        let rails = rails(fabric);
        let (own, mut theirs) = ([u8::from(are(&rails))], [0]);
        fabric.send_bytes(other, 1 << 41, &own, LONG).unwrap();
        fabric.recv_bytes(other, 1 << 41, &mut theirs, LONG).unwrap();
        if (own, theirs) == ([1], [1]) {
            return;
        }
        assert!(Instant::now() < end, "{rails:#?}");
    }
}

#[test]
fn large_messages_go_over_all_rails() {
    for (profile, count) in [(Profile::Infiniband, 2), (Profile::Thunderbolt, 3)] {
        start_rails((profile, count), LONG, unchanged, |fabric| {
            until(fabric, "the rails come up", all_up);
            let used = |rail: &RailStatus| rail.received_bytes > 1 << 20 && rail.sent_bytes > 1 << 20;
            until_both(fabric, (4, 16 << 20), |rails| rails.iter().all(used));
            traffic(fabric, 5);
            let rails = rails(fabric);
            assert_eq!(rails.len(), count);
            for rail in &rails {
                assert!(rail.latency.is_some() && rail.bytes_per_second.is_some() && rail.failures == 0, "{rails:#?}");
            }
            let first = fabric.rail(1 - fabric.rank()).unwrap();
            assert_eq!((&rails[0].info.here, rails[0].info.one_sided), (&first.here, false));
        });
    }
}

#[test]
fn a_link_of_one_rail_says_what_went_over_it() {
    start_rails((Profile::Infiniband, 1), LONG, unchanged, |fabric| {
        exchange(fabric, 1, 1 << 20);
        let rails = rails(fabric);
        meet(fabric);
        assert_eq!(rails.len(), 1);
        assert!(rails[0].info.one_sided && rails[0].state == RailState::Up);
        assert!(rails[0].received_bytes > 1 << 20 && rails[0].sent_bytes > 1 << 20, "{rails:#?}");
    });
}

#[test]
fn each_rail_is_measured_alone() {
    for count in [1, 2] {
        start_rails((Profile::Infiniband, count), LONG, unchanged, |fabric| {
            until(fabric, "the rails come up", all_up);
            let other = 1 - fabric.rank();
            for index in 0..count {
                // Both are done with the rail before.
                meet(fabric);
                let before = rails(fabric);
                let probe = fabric.probe_rail(other, index, 8 << 20, LONG).unwrap();
                assert!(probe.latency > Duration::ZERO && probe.bytes_per_second > 0.0);
                let after = rails(fabric);
                for (rail, (before, after)) in before.iter().zip(&after).enumerate() {
                    let received = after.received_bytes - before.received_bytes;
                    assert_eq!(received >= 24 << 20, rail == index, "rail {rail} got {received} bytes");
                }
            }
            let error = fabric.probe_rail(other, count, 1, LONG).unwrap_err();
            assert!(matches!(error, FabricError::NoSuchRail { rail, rails, .. } if rail == count && rails == count));
        });
    }
}

/// Rank 1's device of one rail does this.
fn plan(rail: usize, plan: FaultPlan) -> impl Fn(u32, usize, Arc<dyn Device>) -> Arc<dyn Device> {
    move |rank, at, device| if (rank, at) == (1, rail) { Faulty::new(device, plan.clone()) } else { device }
}

#[test]
fn a_device_that_dies_takes_no_message_with_it() {
    for profile in Profile::ALL {
        for (rail, mode) in [(0, KillMode::FailsEverything), (1, KillMode::FailsEverything), (0, KillMode::Silent)] {
            if mode == KillMode::Silent && !fulmen_testbed::is_full() {
                continue;
            }
            let kill = Some(Kill { when: Odds::at(100), mode });
            let plan = plan(rail, FaultPlan { kill, ..FaultPlan::quiet(1) });
            start_rails((profile, 2), LONG, plan, |fabric| {
                exchange(fabric, 12, 8 << 20);
                traffic(fabric, 40);
                exchange(fabric, 2, 8 << 20);
                let rails = until(fabric, "the failure is seen", |rails| rails[rail].failures > 0);
                assert!(rails[1 - rail].state == RailState::Up && rails[1 - rail].failures == 0, "{rails:#?}");
                // Nobody leaves before the other has seen it.
                meet(fabric);
            });
        }
    }
}

/// Which cables are pulled, and whether also where the tests are to be short.
const PULLS: [(Profile, usize, bool); 4] = [
    (Profile::Infiniband, 0, true),
    (Profile::Thunderbolt, 1, true),
    (Profile::Infiniband, 1, false),
    (Profile::Thunderbolt, 0, false),
];

#[test]
fn a_cable_that_is_back_is_used_again() {
    for (profile, rail, always) in PULLS {
        if always || fulmen_testbed::is_full() {
            let cable = Some(CablePull { when: Odds::at(300), lasts: Some(Duration::from_secs(3)) });
            let plan = plan(rail, FaultPlan { cable, ..FaultPlan::quiet(1) });
            start_rails((profile, 2), LONG, plan, |fabric| {
                exchange(fabric, 12, 8 << 20);
                traffic(fabric, 20);
                until_both(fabric, (1, 1 << 20), |rails| rails[rail].failures > 0 && all_up(rails));
                // It may look slow for a moment.
                let before = rails(fabric)[rail].received_bytes;
                until_both(fabric, (4, 16 << 20), |rails| rails[rail].received_bytes > before + (1 << 20));
            });
        }
    }
}

#[test]
fn requests_that_fail_now_and_then_cost_a_rail_and_no_message() {
    for profile in Profile::ALL {
        let change = |rank, rail, device| {
            let plan = FaultPlan { fail_completion: Odds::one_in(2000), ..FaultPlan::quiet(u64::from(rank)) };
            if rail == 1 { Faulty::new(device, plan) } else { device }
        };
        let failures = start_rails((profile, 2), LONG, change, |fabric| {
            for _ in 0..4 {
                exchange(fabric, 6, 8 << 20);
                traffic(fabric, 10);
            }
            rails(fabric).iter().map(|rail| rail.failures).sum::<u64>()
        });
        println!("{profile}: {failures:?} failures");
    }
}

#[test]
fn a_link_without_any_rail_left_is_lost_with_the_first_cause() {
    let silence = Duration::from_secs(2);
    let kill = Some(Kill { when: Odds::at(300), mode: KillMode::FailsEverything });
    let change = |rank, _, device| {
        let plan = FaultPlan { kill, ..FaultPlan::quiet(1) };
        if rank == 1 { Faulty::new(device, plan) } else { device }
    };
    start_rails((Profile::Infiniband, 2), silence, change, |fabric| {
        let other = 1 - fabric.rank();
        let start = Instant::now();
        let error = loop {
            let data = fabric.alloc(1 << 20).unwrap().into_exposed();
            let sent = fabric.start_send(other, 1, &data).unwrap();
            let into = fabric.alloc(1 << 20).unwrap().into_exposed();
            let received = fabric.recv(other, 1, &into, LONG);
            if let Err(error) = received.and(sent.wait(LONG).map(|_| 0)) {
                break error;
            }
            assert!(start.elapsed() < LONG, "the devices do not die");
        };
        assert!(matches!(error, FabricError::PeerLost { .. }), "{error}");
    });
}
