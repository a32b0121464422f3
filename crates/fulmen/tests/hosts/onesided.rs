//! One-sided operations and locks between hosts, and every sort of rail that TCP has.

use std::time::Duration;

use fulmen::parts::fabric::{RemoteKey, Rights};
use fulmen::prelude::*;
use fulmen::sync::Lock;
use fulmen_testbed::Link;

use crate::program::{pattern, say};
use crate::world::{LONG, Plan, Rank, What, World};

const KEY: u64 = 21;
/// How often a rank adds to a word of each other one in a round, and takes the lock.
const TURNS: u64 = 8;
/// Before the bytes of a share: a word that counts under a lock, one that all add to, one for puts, and one for who wins.
const WORDS: usize = 32;

/// Each rank writes into a place of its own in the memory of all others, reads it back, and counts there.
pub fn ranks(group: &Group, rounds: u64, scale: usize) {
    let (fabric, rank, size) = (group.fabric(), group.rank(), group.size());
    let others = || (0..size).filter(|other| *other != rank);
    let memory = fabric.alloc(WORDS + scale * size as usize).unwrap().into_exposed();
    memory.fill(0..memory.len(), 0);
    let shared = fabric.share(&memory, Rights::all()).unwrap();
    let lock = Lock::new(group, 0, LONG).unwrap();
    others().for_each(|other| fabric.send_bytes(other, KEY, &shared.key().to_bytes(), LONG).unwrap());
    let remotes: Vec<_> = others()
        .map(|other| {
            let mut bytes = [0; 512];
            let len = fabric.recv_bytes(other, KEY, &mut bytes, LONG).unwrap();
            fabric.remote(other, &RemoteKey::from_bytes(&bytes[..len]).unwrap()).unwrap()
        })
        .collect();
    let place = |of: u32| (WORDS + scale * of as usize) as u64;
    let lent = fabric.alloc(scale).unwrap().into_exposed();
    for round in 0..rounds {
        let mine = pattern(rank, round, scale);
        for remote in &remotes {
            remote.put_bytes(place(rank), &mine, LONG).unwrap();
            let mut back = vec![0; scale];
            remote.get_bytes(place(rank), &mut back, LONG).unwrap();
            assert!(back == mine, "round {round}: what rank {} has of rank {rank}", remote.rank());
            // Out of registered memory, and counted there once it has landed.
            lent.write(0, &mine);
            remote.put_counted(place(rank), &lent, (remote, 16, 1), LONG).unwrap();
            for _ in 0..TURNS {
                remote.fetch_add(8, 1, LONG).unwrap();
            }
            // Whoever is first in this round.
            remote.compare_swap(24, round, round + 1, LONG).unwrap();
        }
        let all = u64::from(size - 1) * (round + 1);
        assert_eq!(shared.wait_counter(16, all, LONG).unwrap(), all);
        group.barrier().unwrap();
        for other in others() {
            let mut come = vec![0; scale];
            memory.read(place(other) as usize, &mut come);
            assert!(come == pattern(other, round, scale), "round {round}: what rank {other} put here");
        }
        assert_eq!(word(&memory, 8), all * TURNS, "round {round}");
        assert_eq!(word(&memory, 24), round + 1, "round {round}");
        group.barrier().unwrap();
    }
    // A word that is read and written in two operations is right because of the lock alone.
    let counter = (rank != 0).then(|| &remotes[0]);
    for _ in 0..TURNS {
        let guard = lock.acquire(LONG).unwrap();
        match counter {
            Some(counter) => {
                let mut old = [0; 8];
                counter.get_bytes(0, &mut old, LONG).unwrap();
                counter.put_bytes(0, &(u64::from_le_bytes(old) + 1).to_le_bytes(), LONG).unwrap();
            }
            None => memory.write(0, &(word(&memory, 0) + 1).to_le_bytes()),
        }
        guard.release().unwrap();
    }
    group.barrier().unwrap();
    if rank == 0 {
        assert_eq!(word(&memory, 0), TURNS * u64::from(size));
    }
    drop(remotes);
    shared.close(LONG).unwrap();
    group.barrier().unwrap();
    say(&format!("done {}", fabric.rail((rank + 1) % size).unwrap()));
}

fn word(memory: &fulmen::parts::memory::Exposed, at: usize) -> u64 {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// A sort of rail: variables, addresses, and what is said of its carrier.
struct Sort {
    name: &'static str,
    env: &'static [(&'static str, &'static str)],
    is_v6: bool,
    carrier: &'static str,
}

const THUNDERBOLT: (&str, &str) = ("FULMEN_PROFILE", "thunderbolt");
const TRUSTED: (&str, &str) = ("FULMEN_TRUSTED_RAIL", "1");

const SORTS: [Sort; 6] = [
    Sort { name: "sealed", env: &[], is_v6: false, carrier: "sealed TCP" },
    Sort { name: "trusted", env: &[TRUSTED], is_v6: false, carrier: "plain TCP" },
    Sort { name: "sealed, IPv6", env: &[], is_v6: true, carrier: "sealed TCP" },
    Sort { name: "trusted, IPv6", env: &[TRUSTED], is_v6: true, carrier: "plain TCP" },
    Sort { name: "thunderbolt", env: &[THUNDERBOLT], is_v6: false, carrier: "sealed TCP" },
    Sort { name: "thunderbolt, trusted, IPv6", env: &[THUNDERBOLT, TRUSTED], is_v6: true, carrier: "plain TCP" },
];

const NETWORKS: [(&str, Link, u64); 3] = [
    ("nothing in the way", Link::new(), 3),
    ("20 ms", Link::new().delay(Duration::from_millis(20)), 1),
    ("2 % lost", Link::new().loss(0.02).seed(11), 2),
];

fn run(sort: &Sort, network: &(&str, Link, u64), what: What, hosts: usize) {
    let (name, link, rounds) = network;
    let plan = Plan {
        link: *link,
        rounds: Some(*rounds),
        scale: 3000,
        env: sort.env,
        is_v6: sort.is_v6,
        ..Plan::new(what, hosts)
    };
    let Some(world) = World::new(&format!("{what} on {hosts} hosts: {}, {name}", sort.name), plan) else { return };
    let mut ranks = world.start_all();
    for rank in &mut ranks {
        let rail = rank.hear("done");
        if what == What::OneSided {
            assert!(rail.contains(sort.carrier), "{}: {rail}", sort.name);
        }
    }
    ranks.into_iter().for_each(Rank::ends);
}

/// Of how many hosts networks are, where every rail is tried.
fn sizes() -> &'static [usize] {
    fulmen_testbed::by_tier(&[2], &[2], &[2, 4])
}

#[test]
fn one_sided_operations_and_locks_over_every_rail() {
    if fulmen_testbed::is_full() {
        for (sort, network) in SORTS.iter().flat_map(|sort| NETWORKS.iter().map(move |network| (sort, network))) {
            sizes().iter().for_each(|hosts| run(sort, network, What::OneSided, *hosts));
        }
    } else {
        run(&SORTS[0], &NETWORKS[0], What::OneSided, 2);
        run(&SORTS[5], &NETWORKS[0], What::OneSided, 2);
    }
}

#[test]
fn groups_work_over_every_rail() {
    if fulmen_testbed::is_full() {
        for (sort, network) in SORTS.iter().flat_map(|sort| NETWORKS.iter().map(move |network| (sort, network))) {
            sizes().iter().for_each(|hosts| run(sort, network, What::Work, *hosts));
        }
    } else {
        run(&SORTS[5], &NETWORKS[0], What::Work, 3);
    }
}
