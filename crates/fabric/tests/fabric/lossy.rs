//! Devices that promise nothing, and break what others promise: frames and messages arrive whole all the same.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fulmen_fabric::{Fabric, FabricError, FabricOptions, Flow, Loss, Providers, RemoteKey, Rights};
use fulmen_soft::Profile;
use fulmen_verbs::{Device, FaultPlan, Faulty, Odds};

use crate::devices::{Dice, check, fill, traffic};
use crate::world::{self, LONG, modest, options};

/// Devices without RC: the one holds a SEND until it is received, the other loses it.
const UNRELIABLE: [Profile; 2] = [Profile::Thunderbolt, Profile::Infiniband];

fn unreliable(profile: Profile) -> Arc<dyn Device> {
    modest(profile, |can| can.rc = false)
}

type Fault = fn(&mut FaultPlan);

/// What goes wrong, and how it is called.
const FAULTS: [(&str, Fault); 5] = [
    ("drop", |plan| plan.drop = Odds::one_in(15)),
    ("duplicate", |plan| plan.duplicate = Odds::one_in(15)),
    ("corrupt", |plan| plan.corrupt = Odds::one_in(15)),
    ("delay", |plan| plan.delay = Odds::one_in(5)),
    ("everything", |plan| {
        let odds = Odds::one_in(25);
        (plan.drop, plan.duplicate, plan.corrupt, plan.delay) = (odds, odds, odds, odds);
    }),
];

/// The faults to try with a device like this: all in the full tier, and else each with one of them, and all at once with both.
fn faults(profile: Profile) -> Vec<(&'static str, Fault)> {
    let first = usize::from(profile == UNRELIABLE[0]);
    let tried = |(at, _): &(usize, _)| fulmen_testbed::is_full() || at % 2 == first || at + 1 == FAULTS.len();
    FAULTS.into_iter().enumerate().filter(tried).map(|(_, fault)| fault).collect()
}

/// A number of rounds, at most and at least.
fn rounds(most: u64, least: u64) -> u64 {
    fulmen_testbed::by_tier(least, most.midpoint(least), most)
}

/// Starts ranks over faulty devices, and says how many faults there were.
fn over_faults(
    size: u32,
    profile: Profile,
    fault: Fault,
    options: &FabricOptions,
    body: impl Fn(u32, Fabric) + Sync,
) -> u64 {
    let devices: Vec<_> = (0..size)
        .map(|rank| {
            let mut plan = FaultPlan::quiet(u64::from(rank) + 7);
            fault(&mut plan);
            Faulty::new(unreliable(profile), plan)
        })
        .collect();
    let given = |rank: u32| {
        let providers =
            Providers { devices: vec![devices[rank as usize].clone() as Arc<dyn Device>], ..Providers::default() };
        (providers, FabricOptions { windows: false, ..options.clone() })
    };
    world::start_with(size, given, |rank, fabric| body(rank, fabric.unwrap()));
    let faults = devices.iter().map(|device| device.injected());
    faults.map(|all| all.dropped + all.duplicated + all.corrupted + all.delayed).sum()
}

#[test]
fn frames_come_once_and_in_order_whatever_the_device_does_to_them() {
    // No message goes another way.
    let flow = Flow { rendezvous: u64::MAX, ..Flow::default() };
    let options = FabricOptions { flow, pool: 64 << 20, ..options() };
    for profile in UNRELIABLE {
        for (name, fault) in faults(profile) {
            println!("{profile}, {name}");
            let faults = over_faults(3, profile, fault, &options, |_, fabric| traffic(&fabric, 2));
            assert!(faults > 0, "nothing went wrong");
        }
    }
}

#[test]
fn messages_that_go_in_chunks_arrive_whole_whatever_the_device_does_to_them() {
    let options = FabricOptions { verify_data: true, pool: 64 << 20, ..options() };
    for profile in UNRELIABLE {
        for (name, fault) in faults(profile) {
            println!("{profile}, {name}");
            let faults = over_faults(2, profile, fault, &options, |_, fabric| traffic(&fabric, rounds(3, 2)));
            assert!(faults > 0, "nothing went wrong");
        }
    }
}

#[test]
fn a_rank_leaves_when_all_that_it_sent_has_come_however_often_that_goes() {
    let options = FabricOptions { pool: 64 << 20, ..options() };
    // When half of the frames are lost, so many take longer than a goodbye may.
    let count = rounds(40, 10);
    for profile in UNRELIABLE {
        let faults = over_faults(
            2,
            profile,
            |plan| plan.drop = Odds::one_in(2),
            &options,
            |rank, fabric| {
                if rank == 0 {
                    (0..count).for_each(|value| fabric.send_bytes(1, 1, &value.to_le_bytes(), LONG).unwrap());
                    return;
                }
                for value in 0..count {
                    let mut bytes = [0; 8];
                    fabric.recv_bytes(0, 1, &mut bytes, LONG).unwrap();
                    assert_eq!(u64::from_le_bytes(bytes), value);
                }
            },
        );
        assert!(faults > 0, "nothing went wrong");
    }
}

/// Messages of many chunks in both directions at once, between registered memory.
fn long_messages(fabric: &Fabric, rounds: u64) {
    let (rank, other) = (fabric.rank(), 1 - fabric.rank());
    for round in 0..rounds {
        let lens = [2_600_000, 20_000, 1_048_576, 5_000_001];
        let sends: Vec<_> = (0..)
            .zip(lens)
            .map(|(at, len)| {
                let data = fabric.alloc(len).unwrap().into_exposed();
                fill(&data, round << 8 | at << 1 | u64::from(rank));
                let into = fabric.alloc(len).unwrap().into_exposed();
                let receive = fabric.start_recv(other, at, &into).unwrap();
                (at, fabric.start_send(other, at, &data).unwrap(), data, receive, into)
            })
            .collect();
        for (at, send, data, receive, into) in sends {
            assert_eq!(receive.wait(LONG).unwrap(), into.len() as u64);
            check(&into, round << 8 | at << 1 | u64::from(other), "a long message");
            send.wait(LONG).unwrap();
            assert!(data.into_block().is_ok() && into.into_block().is_ok(), "the memory is still in use");
        }
    }
}

#[test]
fn what_a_device_does_to_chunks_is_found_out_and_put_right() {
    let options = FabricOptions { verify_data: true, pool: 64 << 20, ..options() };
    let faults: [Fault; 4] = [
        |plan| plan.drop = Odds::one_in(20),
        |plan| plan.duplicate = Odds::one_in(20),
        |plan| plan.corrupt = Odds::one_in(20),
        |plan| plan.fail_completion = Odds::NEVER,
    ];
    for profile in UNRELIABLE {
        for fault in faults {
            over_faults(2, profile, fault, &options, |_, fabric| long_messages(&fabric, rounds(2, 1)));
        }
    }
}

/// The checksum is not needed where chunks have numbers, or the time of what is missing tells.
#[test]
fn lost_chunks_are_found_out_without_checksums() {
    let options = FabricOptions { pool: 64 << 20, ..options() };
    over_faults(
        2,
        Profile::Infiniband,
        |plan| plan.drop = Odds::one_in(20),
        &options,
        |_, fabric| {
            long_messages(&fabric, rounds(2, 1));
        },
    );
}

#[test]
fn a_device_that_drops_everything_breaks_the_link_with_its_cause() {
    for profile in UNRELIABLE {
        let options = FabricOptions { silence: Duration::from_millis(700), ..options() };
        let given = |rank| {
            let plan = FaultPlan { drop: Odds::ALWAYS, ..FaultPlan::quiet(1) };
            let device = if rank == 0 { Faulty::new(unreliable(profile), plan) } else { unreliable(profile) };
            (
                Providers { devices: vec![device], ..Providers::default() },
                FabricOptions { windows: false, ..options.clone() },
            )
        };
        world::start_with(2, given, |rank, fabric| {
            let fabric = fabric.unwrap();
            // It is said to be gone at once, and goes again and again without anybody who waits for it.
            if rank == 0 {
                fabric.send_bytes(1, 1, &[1], LONG).unwrap();
            }
            let error = fabric.recv_bytes(1 - rank, 1, &mut [0], LONG).unwrap_err();
            match (rank, &error) {
                (0, FabricError::PeerLost { rank: 1, cause: Loss::Broken(cause), .. }) => {
                    assert!(cause.contains("no acknowledgement for 700ms") && cause.contains("soft0"), "{cause}");
                }
                (1, FabricError::PeerLost { rank: 0, cause: Loss::GaveUp, .. }) => {}
                _ => panic!("{error}"),
            }
        });
    }
}

#[test]
fn a_rank_that_computes_for_long_acknowledges_all_the_same() {
    for profile in UNRELIABLE {
        let patience = Duration::from_secs(3);
        let given = |_| {
            let options = FabricOptions { windows: false, silence: patience, ..options() };
            (Providers { devices: vec![unreliable(profile)], ..Providers::default() }, options)
        };
        world::start_with(2, given, |rank, fabric| {
            let fabric = fabric.unwrap();
            if rank == 0 {
                fabric.send_bytes(1, 1, &[7], LONG).unwrap();
            } else {
                std::thread::sleep(2 * patience);
            }
            let mut byte = [0];
            if rank == 1 {
                fabric.recv_bytes(0, 1, &mut byte, LONG).unwrap();
                fabric.send_bytes(0, 2, &byte, LONG).unwrap();
            } else {
                fabric.recv_bytes(1, 2, &mut byte, LONG).unwrap();
            }
            assert_eq!(byte, [7]);
        });
    }
}

#[test]
fn verified_data_arrive_over_each_carrier() {
    let verified = |_| FabricOptions { verify_data: true, pool: 64 << 20, ..options() };
    world::start_over_each(3, verified, |_, fabric| traffic(&fabric.unwrap(), 2));
}

/// Each rank works on half of the other's memory, and both on one word.
fn one_sided(fabric: &Fabric, operations: u64) {
    const HALF: usize = 300_000;
    let (rank, other) = (fabric.rank(), 1 - fabric.rank());
    let memory = fabric.alloc(HALF + 8).unwrap().into_exposed();
    memory.fill(0..HALF + 8, 0);
    let shared = fabric.share(&memory, Rights::all()).unwrap();
    fabric.send_bytes(other, 1, &shared.key().to_bytes(), LONG).unwrap();
    let mut key = [0; 256];
    let len = fabric.recv_bytes(other, 1, &mut key, LONG).unwrap();
    let remote = fabric.remote(other, &RemoteKey::from_bytes(&key[..len]).unwrap()).unwrap();
    let mut shadow = vec![0; HALF];
    for at in 0..operations {
        let mut dice = Dice((at << 1) | u64::from(rank));
        let longest = [8, 3000, 40_000, HALF as u64][dice.next() as usize % 4];
        let len = 1 + (dice.next() % longest) as usize;
        let from = dice.next() as usize % (HALF - len + 1);
        if at % 2 == 0 {
            let data = fabric.alloc(len).unwrap().into_exposed();
            fill(&data, at);
            data.read(0, &mut shadow[from..from + len]);
            remote.put(8 + from as u64, &data, LONG).unwrap();
        } else {
            let mut bytes = vec![0; len];
            remote.get_bytes(8 + from as u64, &mut bytes, LONG).unwrap();
            assert!(bytes == shadow[from..from + len], "{len} bytes from {from} on are wrong");
        }
        assert_eq!(remote.fetch_add(0, 1, LONG).unwrap(), at, "done twice, or not at all");
    }
    // Nobody leaves before the other has finished.
    fabric.send_bytes(other, 2, &[], LONG).unwrap();
    fabric.recv_bytes(other, 2, &mut [], LONG).unwrap();
    assert_eq!(memory.atomic_u64(0).load(Ordering::SeqCst), operations);
}

#[test]
fn one_sided_operations_are_done_once_whatever_the_device_does_to_them() {
    for verify_data in [true, false] {
        // Without checksums, chunks may come damaged: all bytes go in frames.
        let rendezvous = if verify_data { 16 << 10 } else { u64::MAX };
        let flow = Flow { rendezvous, ..Flow::default() };
        let options = FabricOptions { verify_data, flow, pool: 64 << 20, ..options() };
        for profile in UNRELIABLE {
            for (name, fault) in faults(profile) {
                println!("{profile}, {name}, verified: {verify_data}");
                over_faults(2, profile, fault, &options, |_, fabric| one_sided(&fabric, rounds(24, 10)));
            }
        }
    }
}
