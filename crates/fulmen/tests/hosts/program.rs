//! What the ranks do.

use std::env;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use fulmen::parts::fabric::bootstrap::{JoinConfig, RegroupError};
use fulmen::parts::fabric::{RailState, RailStatus, Regroup, Secret, Session};
use fulmen::prelude::*;

use crate::world::{LONG, What};

/// What a rank does ([`What`]).
pub const WHAT: &str = "FULMEN_TEST_WHAT";
/// When something fails: `shrink`, `rejoin`, or nothing, which ends it.
pub const THEN: &str = "FULMEN_TEST_THEN";
/// How many rounds it does in the first generation; without, it goes on until something fails.
pub const ROUNDS: &str = "FULMEN_TEST_ROUNDS";
/// Elements, or bytes, of a round.
pub const SCALE: &str = "FULMEN_TEST_SCALE";

/// After how many rounds a rank says how far it is.
pub const STRIDE: u64 = 5;

/// The ranks themselves. Nothing when it runs as a test.
#[test]
fn a_rank() {
    let Ok(what) = env::var(WHAT) else { return };
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (rounds, scale) = (number(ROUNDS), number(SCALE).unwrap() as usize);
    let then = env::var(THEN).unwrap_or_default();
    let mut seat = match what.parse().unwrap() {
        What::Control => Seat::Control(join()),
        What::Work => Seat::Work(start()),
        What::SlowReader => return slow_reader(&start(), scale),
        What::Paths => return paths(&start(), scale),
        What::Stripes => return stripes(&start(), scale),
        What::Sum => return sum(&start(), scale),
        What::Receivers => return receiver(&start()),
        What::OneSided => return crate::onesided::ranks(&start(), rounds.unwrap_or(1), scale),
    };
    say(&format!("joined {seat}"));
    let mut round = 0;
    loop {
        let done = seat.round(round, scale);
        round += 1;
        let next = match done {
            Ok(()) if Some(round) == rounds => return say("done"),
            // Enough to know that all of them go on.
            Ok(()) => {
                if round == 3 {
                    say(&format!("works {seat}"));
                }
                if round.is_multiple_of(STRIDE) {
                    say(&format!("at {round}"));
                }
                continue;
            }
            Err(error) => {
                say(&format!("failed {error}"));
                match then.as_str() {
                    "" => return,
                    "shrink" => seat.regroup(Regroup::Survivors),
                    "rejoin" => seat.regroup(Regroup::Everybody),
                    other => panic!("{other}"),
                }
            }
        };
        match next {
            Ok(next) => seat = next,
            Err(out) => return say(&out),
        }
        round = 0;
        say(&format!("regrouped {seat}"));
    }
}

pub fn say(word: &str) {
    // The harness may have begun a line.
    println!("\n@{word}");
    std::io::stdout().flush().unwrap();
}

fn start() -> Group {
    fulmen::init().unwrap_or_else(|error| {
        say(&format!("told {error}"));
        std::process::exit(1);
    })
}

/// Without a fabric on top.
fn join() -> Session {
    let variable = |name: &str| env::var(name).unwrap();
    let mut hex = String::new();
    std::io::stdin().read_to_string(&mut hex).unwrap();
    let config = JoinConfig {
        coordinator: variable("FULMEN_COORDINATOR").parse().unwrap(),
        rank: variable("FULMEN_RANK").parse().unwrap(),
        size: variable("FULMEN_SIZE").parse().unwrap(),
        secret: Secret::from_hex(hex.trim()).unwrap(),
        deadline: LONG,
    };
    Session::join(&config).unwrap_or_else(|error| {
        say(&format!("told {error}"));
        std::process::exit(1);
    })
}

/// A rank's place in a generation.
enum Seat {
    Control(Session),
    Work(Group),
}

impl Seat {
    fn round(&mut self, round: u64, scale: usize) -> Result<(), String> {
        match self {
            Seat::Control(session) => control_round(session, round, scale).map_err(|error| error.to_string()),
            Seat::Work(group) => work_round(group, round, scale).map_err(|error| error.to_string()),
        }
    }

    /// The place in the next generation, or what became of this rank.
    fn regroup(&self, how: Regroup) -> Result<Seat, String> {
        match self {
            Seat::Control(session) => session.regroup(how, LONG).map(Seat::Control).map_err(|error| match error {
                RegroupError::Partitioned { with, without } => format!("out {with:?} {without:?}"),
                other => format!("alone {other}"),
            }),
            Seat::Work(group) => {
                let next = if how == Regroup::Survivors { group.shrink() } else { group.rejoin() };
                next.map(Seat::Work).map_err(|error| match error {
                    CollectiveError::Partitioned { with, without } => format!("out {with:?} {without:?}"),
                    other => format!("alone {other}"),
                })
            }
        }
    }
}

impl std::fmt::Display for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (members, failed) = match self {
            Seat::Control(session) => (session.members(), session.failed()),
            Seat::Work(group) => (group.members(), group.failed()),
        };
        let failed: Vec<u32> = failed.iter().map(|lost| lost.rank).collect();
        write!(f, "{members:?} {failed:?}")
    }
}

/// Bytes that tell whose they are, of which round, and their place.
pub fn pattern(member: u32, round: u64, len: usize) -> Vec<u8> {
    let seed = (u64::from(member) << 32 | round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len as u64).map(|at| (seed.wrapping_add(at.wrapping_mul(0x0100_0193)) >> 24) as u8).collect()
}

fn control_round(
    session: &Session,
    round: u64,
    scale: usize,
) -> Result<(), fulmen::parts::fabric::bootstrap::SessionError> {
    let me = session.members()[session.rank() as usize];
    let all = session.all_gather(&pattern(me, round, scale), LONG)?;
    assert_eq!(all.len(), session.members().len());
    for (member, blob) in session.members().iter().zip(all) {
        assert!(blob == pattern(*member, round, scale), "round {round}: what rank {member} said");
    }
    session.barrier(LONG)
}

/// Each collective and a ring of messages; every element that comes is looked at.
fn work_round(group: &Group, round: u64, scale: usize) -> Result<(), CollectiveError> {
    let (rank, size, members) = (group.rank() as usize, group.size() as usize, group.members());
    let me = members[rank];

    // Sums are the same bits on every rank: in the order of ranks.
    let value = |member: u32, at: usize| 0.1 + member as f32 * 1.7 + (at as u64 + round) as f32 / 7.0;
    let mut sums = group.alloc::<f32>(scale)?;
    sums.iter_mut().enumerate().for_each(|(at, element)| *element = value(me, at));
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let (first, others) = members.split_first().unwrap();
    for (at, sum) in sums.iter().enumerate() {
        let expected = others.iter().fold(value(*first, at), |sum, member| sum + value(*member, at));
        assert_eq!(sum.to_bits(), expected.to_bits(), "round {round}: element {at} of a sum");
    }

    let mut all = vec![0u8; size * scale];
    group.all_gather(&pattern(me, round, scale)[..], &mut all[..])?;
    for (member, part) in members.iter().zip(all.chunks(scale)) {
        assert!(part == pattern(*member, round, scale), "round {round}: what rank {member} gave to all");
    }

    let mut one = pattern(me, round, scale);
    let root = round as usize % size;
    group.broadcast(&mut one[..], root as u32)?;
    assert!(one == pattern(members[root], round, scale), "round {round}: what the root sent");

    let piece = |member: u32, to: usize, at: usize| i64::from(member + 1) * (to * scale + at) as i64 + round as i64;
    let from: Vec<i64> = (0..size).flat_map(|to| (0..scale).map(move |at| piece(me, to, at))).collect();
    let mut mine = vec![0i64; scale];
    group.reduce_scatter(&from[..], &mut mine[..], ReduceOp::Sum)?;
    for (at, sum) in mine.iter().enumerate() {
        let expected: i64 = members.iter().map(|member| piece(*member, rank, at)).sum();
        assert_eq!(*sum, expected, "round {round}: element {at} of this rank's sums");
    }

    if size > 1 {
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let send = |len: usize| -> Result<(), CollectiveError> {
            group.send(&pattern(me, round, len)[..], next as u32, round)?;
            let mut lent = group.alloc::<u8>(len)?;
            lent.copy_from_slice(&pattern(me, round + 1, len));
            group.send(&mut lent, next as u32, round)
        };
        let receive = |len: usize| -> Result<(), CollectiveError> {
            for later in 0..2 {
                let mut come = group.alloc::<u8>(len)?;
                assert_eq!(group.recv(&mut come, previous as u32, round)?, len);
                assert!(come.to_vec() == pattern(members[previous], round + later, len), "round {round}: a message");
            }
            Ok(())
        };
        for len in [1, scale, 4 * scale] {
            // One of two neighbours receives first, so that no ring of senders waits for itself.
            if rank.is_multiple_of(2) {
                send(len)?;
                receive(len)?;
            } else {
                receive(len)?;
                send(len)?;
            }
        }
    }
    group.barrier()
}

/// It sends nothing, so that nothing that it sends can fail.
fn receiver(group: &Group) {
    say("works");
    let mut word = [0u8; 8];
    let failed = group.recv(&mut word[..], 1 - group.rank(), 9).expect_err("nobody sends");
    say(&format!("failed {failed}"));
}

/// Rank 1 has rank 0 wait with all that it sends, and works with rank 2 meanwhile.
fn slow_reader(group: &Group, scale: usize) {
    const MESSAGES: u64 = 64;
    const TURNS: u64 = 50;
    let mut come = vec![0u8; scale];
    match group.rank() {
        0 => (0..MESSAGES).for_each(|at| group.send(&pattern(0, at, scale)[..], 1, 7).unwrap()),
        1 => {
            for turn in 0..TURNS {
                group.send(&pattern(1, turn, 100)[..], 2, 8).unwrap();
                assert_eq!(group.recv(&mut come[..], 2, 8).unwrap(), 100);
                assert!(come[..100] == pattern(2, turn, 100), "turn {turn}");
            }
            say("worked");
            for at in 0..MESSAGES {
                assert_eq!(group.recv(&mut come[..], 0, 7).unwrap(), scale);
                assert!(come == pattern(0, at, scale), "message {at}");
            }
        }
        _ => {
            for turn in 0..TURNS {
                assert_eq!(group.recv(&mut come[..], 1, 8).unwrap(), 100);
                assert!(come[..100] == pattern(1, turn, 100), "turn {turn}");
                group.send(&pattern(2, turn, 100)[..], 1, 8).unwrap();
            }
        }
    }
    group.barrier().unwrap();
    say("done");
}

/// Rank 0 sends long messages, all of which rank 1 looks at, until rank 1 has seen every rail do what the test asks for: both bring
/// bytes, then one is down, then it brings bytes again.
fn stripes(group: &Group, scale: usize) {
    let (own, peer) = (group.rank(), 1 - group.rank());
    let is_up = |rail: &RailStatus| rail.state == RailState::Up;
    let brought = || group.fabric().rails(peer).iter().map(|rail| rail.received_bytes).collect::<Vec<_>>();
    let mut round = 0;
    let mut until = |seen: &dyn Fn(&[RailStatus]) -> bool| {
        loop {
            let mut buffer = group.alloc::<u8>(scale).unwrap();
            let mut over = [0u8];
            if own == 0 {
                buffer.copy_from_slice(&pattern(0, round, scale));
                group.send(&mut buffer, peer, 9).unwrap();
                group.recv(&mut over[..], peer, 10).unwrap();
            } else {
                assert_eq!(group.recv(&mut buffer, peer, 9).unwrap(), scale);
                assert!(buffer[..] == pattern(0, round, scale)[..], "round {round}");
                over[0] = u8::from(seen(&group.fabric().rails(peer)));
                group.send(&over[..], peer, 10).unwrap();
            }
            round += 1;
            if over[0] == 1 {
                return;
            }
        }
    };
    until(&|rails| rails.len() == 2 && rails.iter().all(|rail| is_up(rail) && rail.received_bytes > 0));
    say("both");
    until(&|rails| rails.iter().filter(|rail| is_up(rail)).count() == 1);
    say("one");
    let then = brought();
    until(&|rails| rails.iter().zip(&then).all(|(rail, then)| is_up(rail) && rail.received_bytes > *then));
    group.barrier().unwrap();
    say("done");
}

/// Rank 0 sends long messages over two rails, of which rank 1 looks at every byte; it says how many bytes a second the fastest
/// of them had, and how many came over each rail.
fn sum(group: &Group, scale: usize) {
    const ROUNDS: usize = 3;
    let (own, peer, fabric) = (group.rank(), 1 - group.rank(), group.fabric());
    let is_up = |rail: &RailStatus| rail.state == RailState::Up;
    loop {
        let rails = fabric.rails(peer);
        let mut up = [u64::from(rails.len() == 2 && rails.iter().all(is_up))];
        group.all_reduce(&mut up[..], ReduceOp::Min).unwrap();
        if up[0] == 1 {
            break;
        }
    }
    let mut fastest = Duration::MAX;
    let mut buffer = group.alloc::<u8>(scale).unwrap();
    let bytes = pattern(0, 0, scale);
    for round in 0..ROUNDS {
        if own == 0 {
            buffer.copy_from_slice(&bytes);
        } else {
            buffer.fill(0);
        }
        group.barrier().unwrap();
        let start = Instant::now();
        if own == 0 {
            group.send(&mut buffer, peer, 9).unwrap();
        } else {
            assert_eq!(group.recv(&mut buffer, peer, 9).unwrap(), scale);
            fastest = fastest.min(start.elapsed());
            assert!(buffer[..] == bytes[..], "round {round}");
        }
    }
    if own == 1 {
        let [one, other] = [0, 1].map(|rail: usize| fabric.rails(peer)[rail].received_bytes);
        say(&format!("sum {} {one} {other}", scale as f64 / fastest.as_secs_f64()));
    }
    group.barrier().unwrap();
    say("done");
}

/// Both send a long message each way, out of registered memory, and look at every byte.
fn paths(group: &Group, scale: usize) {
    let (own, peer) = (group.rank(), 1 - group.rank());
    let rail = group.fabric().rail(peer).expect("TCP has rails");
    say(&format!("over {} {}", rail.here.device, rail.there.device));
    for round in 0..2 {
        let mut buffer = group.alloc::<u8>(scale).unwrap();
        if u64::from(own) == round {
            buffer.copy_from_slice(&pattern(own, round, scale));
            group.send(&mut buffer, peer, 9).unwrap();
        } else {
            assert_eq!(group.recv(&mut buffer, peer, 9).unwrap(), scale);
            assert!(buffer[..] == pattern(peer, round, scale)[..], "round {round}");
        }
    }
    group.barrier().unwrap();
    say("done");
}
