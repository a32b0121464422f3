//! Links over devices: their borders, their limits, and devices that go wrong.

use std::sync::Arc;
use std::time::Instant;

use crate::world::{self, LONG, device, modest, options, start_devices};
use fulmen_fabric::{DeviceError, Fabric, FabricError, FabricOptions, Flow, Loss, StartError};
use fulmen_memory::{Exposed, Region};
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_verbs::{CompletionStatus, Device, FaultPlan, Faulty, Kill, KillMode, Odds};

/// Numbers that a seed repeats.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    }
}

/// Bytes that tell where they come from.
pub fn words(len: usize, salt: u64) -> Vec<u8> {
    let mut dice = Dice(salt << 20 | len as u64);
    let mut bytes = vec![0; len];
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&dice.next().to_le_bytes()[..word.len()]);
    }
    bytes
}

pub fn fill(memory: &Exposed, salt: u64) {
    memory.write(0, &words(memory.len(), salt));
}

pub fn check(memory: &Exposed, salt: u64, what: &str) {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    assert!(bytes == words(memory.len(), salt), "{what}: {} bytes arrived wrong", memory.len());
}

pub fn private(len: usize) -> Exposed {
    Region::alloc(len.max(1)).unwrap().expose().unwrap().slice(0..len)
}

/// Around every border: frames of 4 KiB and 8 KiB less their header, the rendezvous, chunks of 512 KiB, 8 of them at a time.
const BORDERS: [usize; 8] = [1, 4096 - 16, 4096, 8192 - 16, 16 << 10, 512 << 10, 4 << 20, 8 << 20];

#[test]
fn messages_around_every_border_arrive_whole() {
    for profile in Profile::ALL {
        let given = |_| {
            let providers =
                fulmen_fabric::Providers { devices: vec![device(profile)], ..fulmen_fabric::Providers::default() };
            (providers, FabricOptions { windows: false, pool: 64 << 20, ..options() })
        };
        world::start_with(2, given, |rank, fabric| {
            let fabric = fabric.unwrap();
            for (tag, border) in (0..).zip(BORDERS) {
                for len in [border - 1, border, border + 1] {
                    let pooled = || fabric.alloc(len).unwrap().into_exposed();
                    // Straight from block to block, and the one or the other end in plain memory.
                    for (salt, (registered, direct)) in (0..).zip([(true, true), (true, false), (false, true)]) {
                        // Plain memory goes in frames, whatever the length.
                        if border > 4 << 20 && !(registered && direct) {
                            continue;
                        }
                        let memory = if if rank == 0 { registered } else { direct } { pooled() } else { private(len) };
                        if rank == 0 {
                            fill(&memory, salt);
                            fabric.send(1, tag, &memory, LONG).unwrap();
                        } else {
                            assert_eq!(fabric.recv(0, tag, &memory, LONG).unwrap(), len);
                            check(&memory, salt, &format!("{profile}"));
                        }
                        if if rank == 0 { registered } else { direct } {
                            assert!(memory.into_block().is_ok(), "{profile}: {len} bytes are still in use");
                        }
                    }
                }
            }
        });
    }
}

/// What a rank sends another in a round, known to both.
fn message(from: u32, to: u32, round: u64) -> (usize, u64) {
    let salt = (u64::from(from) << 8 | u64::from(to)) << 16 | round;
    let mut dice = Dice(salt);
    let longest = [64, 5_000, 70_000, 1_500_000][dice.next() as usize % 4];
    (dice.next() as usize % longest, salt)
}

/// All send to all, several messages at a time, out of and into memory of every kind.
pub fn traffic(fabric: &Fabric, rounds: u64) {
    let rank = fabric.rank();
    let mut dice = Dice(u64::from(rank));
    let mut memory = |len: usize| match dice.next() % 3 {
        0 => private(len),
        _ => fabric.alloc(len).unwrap().into_exposed(),
    };
    for round in 0..rounds {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for other in (0..fabric.size()).filter(|other| *other != rank) {
            for step in [2 * round, 2 * round + 1] {
                let (len, salt) = message(rank, other, step);
                let data = memory(len);
                fill(&data, salt);
                sends.push(fabric.start_send(other, step, &data).unwrap());
                let (len, salt) = message(other, rank, step);
                let into = memory(len);
                receives.push((salt, into.clone(), fabric.start_recv(other, step, &into).unwrap()));
            }
        }
        for (salt, into, operation) in receives {
            assert_eq!(operation.wait(LONG).unwrap(), into.len() as u64);
            check(&into, salt, "traffic");
        }
        for operation in sends {
            operation.wait(LONG).unwrap();
        }
    }
}

#[test]
fn random_traffic_between_all_ranks_arrives_whole() {
    let rounds = fulmen_testbed::by_tier(4, 30, 100);
    for profile in Profile::ALL {
        for size in [2, 3, 5] {
            let given = |_| {
                let providers =
                    fulmen_fabric::Providers { devices: vec![device(profile)], ..fulmen_fabric::Providers::default() };
                (providers, FabricOptions { windows: false, pool: 64 << 20, ..options() })
            };
            world::start_with(size, given, |_, fabric| traffic(&fabric.unwrap(), rounds));
        }
    }
}

#[test]
fn as_many_ranks_as_the_device_connects_and_no_more() {
    let sums = start_devices(
        6,
        |_| device(Profile::Thunderbolt),
        |rank, fabric| {
            let fabric = fabric.unwrap();
            let others = || (0..6).filter(|other| *other != rank);
            others().for_each(|other| fabric.send_bytes(other, 1, &rank.to_le_bytes(), LONG).unwrap());
            let mut word = [0; 4];
            let mut receive = |other| {
                fabric.recv_bytes(other, 1, &mut word, LONG).unwrap();
                u32::from_le_bytes(word)
            };
            rank + others().map(&mut receive).sum::<u32>()
        },
    );
    assert_eq!(sums, [15; 6]);

    start_devices(
        7,
        |_| device(Profile::Thunderbolt),
        |_, fabric| {
            let error = fabric.unwrap_err();
            let text = error.to_string();
            let StartError::Device(cause) = error else { panic!("{text}") };
            let expected = matches!(*cause, DeviceError::TooManyRanks { limit: 10, needed: 12, ranks: 7, .. });
            assert!(expected, "{text}");
            assert!(text.contains("at most 6 ranks") && text.contains("10 queue pairs"), "{text}");
        },
    );
}

/// A device of the infiniband profile with other limits.
fn limited(change: impl Fn(&mut fulmen_verbs::DeviceLimits)) -> Arc<dyn Device> {
    let mut limits = Profile::Infiniband.limits();
    change(&mut limits);
    SoftDevice::open_with(&Node::open().unwrap(), Profile::Infiniband, limits).unwrap()
}

#[test]
fn one_rank_that_cannot_connect_is_named_to_all() {
    type Change = fn(&mut fulmen_verbs::DeviceLimits);
    let cases: [(Change, &str); 4] = [
        (|limits| limits.queue_pairs = 3, "queue pairs"),
        (|limits| limits.queue_depth = 20, "room for 20"),
        (|limits| limits.completion_entries = 100, "entries in a completion queue"),
        (|limits| limits.memory_regions = 1, "registrations"),
    ];
    for (change, word) in cases {
        let limits = move |rank| if rank == 1 { limited(change) } else { limited(|_| ()) };
        start_devices(3, limits, |rank, fabric| {
            let error = fabric.unwrap_err();
            let text = error.to_string();
            // Of a short queue both ends of a link know, of the rest its owner alone.
            let own = rank == 1 || word == "room for 20";
            assert_eq!(matches!(error, StartError::Device(_)), own, "{text}");
            assert!(text.contains(word), "{text}");
            assert!(own || text.contains("rank 1"), "{text}");
        });
    }
}

#[test]
fn devices_of_two_kinds_do_not_connect() {
    let devices = |rank| match rank {
        0 => modest(Profile::Infiniband, |can| can.uc = false),
        _ => device(Profile::Thunderbolt),
    };
    start_devices(2, devices, |rank, fabric| {
        let text = fabric.unwrap_err().to_string();
        assert!(
            text.contains("no kind of queue pair in common") && text.contains(&format!("rank {}", 1 - rank)),
            "{text}"
        );
    });
}

#[test]
fn without_windows_and_devices_there_is_no_link() {
    let given = |_| {
        let providers = fulmen_fabric::Providers::default();
        (providers, FabricOptions { windows: false, ..options() })
    };
    world::start_with(2, given, |rank, fabric| {
        let error = fabric.unwrap().send_bytes(1 - rank, 1, &[1], LONG).unwrap_err();
        assert!(matches!(error, FabricError::NoLink { .. }), "{error}");
    });
}

/// In frames, and by device.
const SHORT: [usize; 2] = [3_000, 40_000];
/// More chunks than are posted at a time.
const LONG_MOVES: [usize; 2] = [4, 6_000_000];

/// Both ranks play ping-pong with content checks, until the faults of rank 0's device end it: the error that ended each.
/// Nobody has their memory then.
fn play(profile: Profile, plan: &FaultPlan, lengths: [usize; 2]) -> [FabricError; 2] {
    let devices = |rank| match rank {
        0 => Faulty::new(device(profile), plan.clone()) as Arc<dyn Device>,
        _ => device(profile),
    };
    let errors = start_devices(2, devices, |rank, fabric| {
        let fabric = fabric.unwrap();
        let other = 1 - rank;
        for round in 0..20_000_u64 {
            let turn = round as usize % 2;
            let data = fabric.alloc(lengths[turn]).unwrap().into_exposed();
            let into = fabric.alloc(lengths[turn]).unwrap().into_exposed();
            fill(&data, round << 1 | u64::from(rank));
            let step = || {
                let send = fabric.start_send(other, round, &data)?;
                let len = fabric.recv(other, round, &into, LONG)?;
                assert_eq!(len, into.len());
                check(&into, round << 1 | u64::from(other), "a faulty device");
                send.wait(LONG)
            };
            if let Err(error) = step() {
                assert!(
                    data.into_block().is_ok() && into.into_block().is_ok(),
                    "{error}, and the memory is still in use"
                );
                return error;
            }
        }
        panic!("no fault was met");
    });
    errors.try_into().unwrap()
}

fn assert_broken(error: &FabricError, words: &[&str]) {
    let text = error.to_string();
    let FabricError::PeerLost { rank: 1, cause: Loss::Broken(_), .. } = error else { panic!("{text}") };
    for word in words {
        assert!(text.contains(word), "{text} does not say {word}");
    }
}

fn assert_lost(error: &FabricError) {
    assert!(matches!(error, FabricError::PeerLost { rank: 0, .. }), "{error}");
}

#[test]
fn a_failed_completion_breaks_the_link_with_its_cause() {
    let status = CompletionStatus::RemoteAccess;
    for profile in Profile::ALL {
        for (seed, lengths) in [(0, SHORT), (1, SHORT), (2, LONG_MOVES), (3, LONG_MOVES)] {
            let plan = FaultPlan { fail_completion: Odds::one_in(20), fail_status: status, ..FaultPlan::quiet(seed) };
            let [broken, lost] = play(profile, &plan, lengths);
            assert_broken(&broken, &["soft0", "rank 1", "the SEND of", &status.to_string()]);
            assert_lost(&lost);
        }
    }
}

#[test]
fn a_refused_post_breaks_the_link() {
    for profile in Profile::ALL {
        let plan = FaultPlan { fail_post: Odds::one_in(20), ..FaultPlan::quiet(3) };
        let [broken, lost] = play(profile, &plan, SHORT);
        assert_broken(&broken, &["soft0", "rank 1", "injected"]);
        assert_lost(&lost);
    }
}

#[test]
fn a_dropped_request_of_a_reliable_link_is_no_answer() {
    let plan = FaultPlan { drop: Odds::one_in(20), ..FaultPlan::quiet(5) };
    let [broken, lost] = play(Profile::Infiniband, &plan, LONG_MOVES);
    assert_broken(&broken, &["no answer from the peer"]);
    assert_lost(&lost);
}

#[test]
fn a_device_that_fails_everything_breaks_the_link() {
    for profile in Profile::ALL {
        let kill = Some(Kill { when: Odds::at(301), mode: KillMode::FailsEverything });
        let [broken, lost] = play(profile, &FaultPlan { kill, ..FaultPlan::quiet(1) }, SHORT);
        assert_broken(&broken, &["soft0", "rank 1"]);
        assert_lost(&lost);
    }
}

#[test]
fn completions_that_come_late_change_nothing() {
    for profile in Profile::ALL {
        let devices = |rank: u32| {
            let plan = FaultPlan { delay: Odds::one_in(3), ..FaultPlan::quiet(rank.into()) };
            Faulty::new(device(profile), plan) as Arc<dyn Device>
        };
        let given = |rank| {
            let providers =
                fulmen_fabric::Providers { devices: vec![devices(rank)], ..fulmen_fabric::Providers::default() };
            (providers, FabricOptions { windows: false, pool: 64 << 20, ..options() })
        };
        world::start_with(2, given, |_, fabric| traffic(&fabric.unwrap(), 4));
    }
}

#[test]
fn short_frames_and_few_credits_do_over_devices() {
    for profile in Profile::ALL {
        let given = |_| {
            let providers =
                fulmen_fabric::Providers { devices: vec![device(profile)], ..fulmen_fabric::Providers::default() };
            let flow = Flow { frame: 256, credits: 16, rendezvous: 1, rendezvous_tcp: 1, unexpected: 1000 };
            (providers, FabricOptions { windows: false, flow, pool: 64 << 20, ..options() })
        };
        world::start_with(3, given, |_, fabric| traffic(&fabric.unwrap(), 3));
    }
}

/// Most frames complete invisibly, so that nobody hears of them: who leaves asks for that.
#[test]
fn who_leaves_does_not_wait_for_frames_that_nobody_awaits() {
    for profile in Profile::ALL {
        for messages in [1, 5, 20, 100] {
            let start = Instant::now();
            start_devices(
                2,
                |_| device(profile),
                |rank, fabric| {
                    let fabric = fabric.unwrap();
                    // Both ways: of two, the first to leave has the other one go.
                    for number in 0..messages {
                        let mut bytes = [0; 8];
                        fabric.send_bytes(1 - rank, 7, &[number; 8], LONG).unwrap();
                        assert_eq!(fabric.recv_bytes(1 - rank, 7, &mut bytes, LONG).unwrap(), 8);
                        assert_eq!(bytes, [number; 8]);
                    }
                },
            );
            assert!(start.elapsed() < LONG, "{messages} messages over {profile:?} were waited for in vain");
        }
    }
}

#[test]
fn memory_that_is_registered_in_pieces_does_as_well() {
    let in_pieces = |limits: &mut fulmen_verbs::DeviceLimits| limits.registration.boundary = Some(2 << 20);
    let given = |_| {
        let providers =
            fulmen_fabric::Providers { devices: vec![limited(in_pieces)], ..fulmen_fabric::Providers::default() };
        (providers, FabricOptions { windows: false, pool: 64 << 20, ..options() })
    };
    world::start_with(3, given, |_, fabric| {
        let fabric = fabric.unwrap();
        let block = fabric.alloc((2 << 20) + 1);
        assert!(block.is_err(), "no block lies in two registrations");
        traffic(&fabric, 4);
    });
}
