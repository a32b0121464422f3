//! Ranks that no cable joins talk over others.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Instant;

use fulmen_fabric::{
    Coordinator, Fabric, FabricError, FabricOptions, Flow, JoinConfig, Providers, Secret, Session, StartError,
};
use fulmen_soft::Profile;

use crate::world::{self, LONG, joined, options};

type Edges = &'static [(u32, u32)];

const CHAIN: Edges = &[(0, 1), (1, 2), (2, 3)];
const RING: Edges = &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)];
const STAR: Edges = &[(0, 1), (0, 2), (0, 3), (0, 4)];
const TRIANGLES: Edges = &[(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 3)];

fn start<T: Send>(
    profile: Profile,
    size: u32,
    edges: &[(u32, u32)],
    options: impl Fn() -> FabricOptions + Sync,
    body: impl Fn(u32, Result<Fabric, StartError>) -> T + Sync,
) -> Vec<T> {
    let given = |rank| {
        let providers: Providers = joined(profile, (rank, size), edges);
        (providers, FabricOptions { windows: false, ..options() })
    };
    world::start_with(size, given, body)
}

fn run<T: Send>(profile: Profile, size: u32, edges: &[(u32, u32)], body: impl Fn(&Fabric) -> T + Sync) -> Vec<T> {
    start(profile, size, edges, options, |_, fabric| body(&fabric.unwrap()))
}

fn fill(from: u32, to: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32 * 7 + from * 31 + to * 101) as u8).collect()
}

/// Each rank sends messages of these lengths to each other one at the same time, and gets theirs.
fn all_to_all(fabric: &Fabric, lens: &[usize]) {
    let (rank, peers) = (fabric.rank(), (0..fabric.size()).filter(|peer| *peer != fabric.rank()));
    let mut running = Vec::new();
    let mut landed = Vec::new();
    for peer in peers {
        for (tag, len) in (0..).zip(lens) {
            let (send, recv) = (fabric.alloc(len.max(&1).to_owned()).unwrap(), fabric.alloc((*len).max(1)).unwrap());
            let (send, recv) = (send.into_exposed().slice(0..*len), recv.into_exposed().slice(0..*len));
            send.write(0, &fill(rank, peer, *len));
            running.push(fabric.start_recv(peer, tag, &recv).unwrap());
            running.push(fabric.start_send(peer, tag, &send).unwrap());
            landed.push((peer, recv));
        }
    }
    for operation in running {
        operation.wait(LONG).unwrap();
    }
    for (peer, memory) in landed {
        let mut bytes = vec![0; memory.len()];
        memory.read(0, &mut bytes);
        assert_eq!(bytes, fill(peer, rank, bytes.len()), "from {peer} to {rank}");
    }
    assert!(fabric.relayed().most_held <= fabric.relayed().bound);
}

#[test]
fn every_two_ranks_talk_whatever_the_graph() {
    for (size, edges) in [(4, CHAIN), (5, RING), (5, STAR), (6, TRIANGLES)] {
        for profile in [Profile::Infiniband, Profile::Thunderbolt] {
            println!("{edges:?} over {profile}");
            run(profile, size, edges, |fabric| all_to_all(fabric, &[0, 1, 5000, 300_000]));
        }
    }
}

#[test]
fn paths_and_what_goes_over_them_are_told() {
    let paths = run(Profile::Infiniband, 4, CHAIN, |fabric| {
        // Before others leave, to which there is no path then.
        let joined = (0..4).filter(|peer| fabric.rail(*peer).is_some()).collect::<Vec<_>>();
        let paths = (0..4).map(|peer| fabric.path(peer)).collect::<Vec<_>>();
        all_to_all(fabric, &[100]);
        // Four flows lead over each of the ranks between, which may have all of their own before those of others.
        let end = Instant::now() + LONG;
        while joined.len() > 1 && fabric.relayed().frames < 4 && Instant::now() < end {
            fabric.progress();
        }
        (paths, joined, fabric.relayed())
    });
    assert_eq!(paths[0].0, [vec![], vec![], vec![1], vec![1, 2]]);
    assert_eq!(paths[3].0, [vec![2, 1], vec![2], vec![], vec![]]);
    assert_eq!((&*paths[0].1, &*paths[1].1), (&[1][..], &[0, 2][..]));
    assert_eq!(paths[0].2.frames, 0, "nothing leads over the end of a chain");
    assert!(paths[1].2.frames >= 4 && paths[1].2.bytes >= 400, "{:?}", paths[1].2);
    let complete = run(Profile::Infiniband, 2, &[(0, 1)], |fabric| (fabric.path(1), fabric.relayed()));
    assert_eq!(complete[0], (vec![], Default::default()));
}

#[test]
fn one_sided_operations_lead_over_others() {
    run(Profile::Infiniband, 3, &[(0, 1), (1, 2)], |fabric| {
        let memory = fabric.alloc(100_000).unwrap().into_exposed();
        if fabric.rank() == 2 {
            memory.fill(0..memory.len(), 3);
            let shared = fabric.share(&memory, fulmen_fabric::Rights::all()).unwrap();
            fabric.send_bytes(0, 1, &shared.key().to_bytes(), LONG).unwrap();
            fabric.recv_bytes(0, 2, &mut [0], LONG).unwrap();
            let mut bytes = vec![0; memory.len()];
            memory.read(0, &mut bytes);
            assert_eq!(bytes[..8], 10_u64.to_le_bytes());
            assert!(bytes[8..50_000].iter().all(|byte| *byte == 5) && bytes[50_000..].iter().all(|byte| *byte == 3));
        } else if fabric.rank() == 0 {
            let mut key = vec![0; 4096];
            let len = fabric.recv_bytes(2, 1, &mut key, LONG).unwrap();
            let remote = fabric.remote(2, &fulmen_fabric::RemoteKey::from_bytes(&key[..len]).unwrap()).unwrap();
            remote.get(0, &memory, LONG).unwrap();
            let mut bytes = vec![0; memory.len()];
            memory.read(0, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 3));
            memory.fill(0..memory.len(), 5);
            memory.write(0, &0_u64.to_le_bytes());
            remote.put(0, &memory.slice(0..50_000), LONG).unwrap();
            for before in 0..10 {
                assert_eq!(remote.fetch_add(0, 1, LONG).unwrap(), before);
            }
            fabric.send_bytes(2, 2, &[0], LONG).unwrap();
        }
    });
}

#[test]
fn random_graphs_connect_all() {
    let mut seed = 7_u64;
    let mut below = |bound: u32| {
        // SplitMix64.
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33) as u32 % bound
    };
    for round in 0..fulmen_testbed::by_tier(4, 10, 20) {
        let size = 3 + below(6);
        // A tree, and some more.
        let mut edges: Vec<_> = (1..size).map(|rank| (below(rank), rank)).collect();
        for _ in 0..below(size) {
            let (one, other) = (below(size), below(size));
            let edge = (one.min(other), one.max(other));
            if one != other && !edges.contains(&edge) {
                edges.push(edge);
            }
        }
        println!("{edges:?}");
        let profile = Profile::ALL[round % Profile::ALL.len()];
        run(profile, size, &edges, |fabric| all_to_all(fabric, &[3, 20_000]));
    }
}

#[test]
fn a_chain_of_sixteen_ranks() {
    let edges: Vec<_> = (1..16).map(|rank| (rank - 1, rank)).collect();
    let small = || FabricOptions { pool: 4 << 20, ..options() };
    start(Profile::Infiniband, 16, &edges, small, |_, fabric| {
        let fabric = fabric.unwrap();
        all_to_all(&fabric, &[9000]);
    });
}

#[test]
fn a_slow_reader_holds_up_nobody_else_and_memory_stays_bounded() {
    // Ranks 0 and 1 flood rank 4 over 2, which does not read; meanwhile all others talk over the same cables.
    let edges = [(0, 2), (1, 2), (2, 3), (3, 4)];
    let flow = Flow { unexpected: 64 << 10, ..Flow::default() };
    let read = Barrier::new(5);
    let many = 1000;
    start(
        Profile::Thunderbolt,
        5,
        &edges,
        || FabricOptions { flow, ..options() },
        |rank, fabric| {
            let fabric = fabric.unwrap();
            let memory = fabric.alloc(4000).unwrap().into_exposed();
            let mut flood = Vec::new();
            if rank < 2 {
                flood.extend((0..many).map(|_| fabric.start_send(4, 9, &memory).unwrap()));
            }
            let talk = |one: u32, other: u32| {
                let mut bytes = [0; 200];
                for turn in 0..50_u8 {
                    if rank == one {
                        fabric.send_bytes(other, 1, &[turn; 200], LONG).unwrap();
                        fabric.recv_bytes(other, 1, &mut bytes, LONG).unwrap();
                    } else if rank == other {
                        fabric.recv_bytes(one, 1, &mut bytes, LONG).unwrap();
                        fabric.send_bytes(one, 1, &bytes, LONG).unwrap();
                    }
                    assert!(![one, other].contains(&rank) || bytes == [turn; 200]);
                }
            };
            talk(0, 3);
            talk(1, 3);
            talk(0, 1);
            talk(2, 4);
            let relayed = fabric.relayed();
            assert!(relayed.most_held <= relayed.bound, "{relayed:?}");
            read.wait();
            if rank == 4 {
                for _ in 0..many {
                    for from in 0..2 {
                        assert_eq!(fabric.recv(from, 9, &memory, LONG).unwrap(), 4000);
                    }
                }
            }
            for operation in flood {
                operation.wait(LONG).unwrap();
            }
            let relayed = fabric.relayed();
            assert!(relayed.most_held <= relayed.bound, "{relayed:?}");
            read.wait();
        },
    );
}

#[test]
fn a_message_that_is_on_its_way_comes_although_the_rank_between_leaves() {
    let left = AtomicBool::new(false);
    run(Profile::Infiniband, 3, &[(0, 1), (1, 2)], |fabric| match fabric.rank() {
        0 => {
            for turn in 0..100_u8 {
                fabric.send_bytes(2, 1, &[turn; 2000], LONG).unwrap();
            }
            left.store(true, Ordering::SeqCst);
        }
        1 => {}
        _ => {
            while !left.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let mut bytes = [0; 2000];
            for turn in 0..100_u8 {
                fabric.recv_bytes(0, 1, &mut bytes, LONG).unwrap();
                assert_eq!(bytes, [turn; 2000]);
            }
        }
    });
}

const WORLD: &str = "FULMEN_TEST_RELAY";
/// Two ways lead from 0 to 1: over 3, by two cables each, and over 2.
const SQUARE: Edges = &[(0, 3), (0, 3), (3, 1), (3, 1), (1, 2), (2, 0)];
/// All lead over 3.
const MIDDLE: Edges = &[(0, 3), (1, 3), (2, 3)];

/// Rank 3, in a process of its own. As a test of its own it does nothing.
#[test]
fn victim() {
    let Ok(world) = std::env::var(WORLD) else { return };
    thread::spawn(|| {
        // Nobody is left to end this process.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(3);
    });
    let [address, secret, edges] = world.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let _fabric = join(
        3,
        address.parse().unwrap(),
        Secret::from_hex(secret).unwrap(),
        if edges == "square" { SQUARE } else { MIDDLE },
    );
    loop {
        thread::park();
    }
}

fn join(rank: u32, coordinator: SocketAddr, secret: Secret, edges: Edges) -> Fabric {
    let session = Session::join(&JoinConfig { coordinator, rank, size: 4, secret, deadline: LONG }).unwrap();
    let options = FabricOptions { windows: false, ..options() };
    Fabric::start(session, options, joined(Profile::Infiniband, (rank, 4), edges)).unwrap()
}

/// Runs `body` on ranks 0 to 2, which it gives what kills rank 3.
fn with_victim(name: &str, edges: Edges, body: impl Fn(&Fabric, &dyn Fn()) + Sync) {
    let secret = Secret::generate().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let coordinator = Coordinator::bind(address, 4, secret.clone(), world::patient(world::SILENCE)).unwrap();
    let coordinator = coordinator.serve().unwrap();
    let address = coordinator.local_addr();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "relay::victim", "--test-threads=1"])
        .env(WORLD, format!("{address} {} {name}", secret.to_hex()))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let child = Mutex::new(child);
    let kill = || {
        let mut child = child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    };
    thread::scope(|scope| {
        for rank in 0..3 {
            let (secret, body, kill) = (secret.clone(), &body, &kill);
            scope.spawn(move || body(&join(rank, address, secret, edges), kill));
        }
    });
}

#[test]
fn the_other_way_is_taken_when_a_rank_between_is_killed() {
    let (after, all) = (AtomicBool::new(false), Barrier::new(3));
    with_victim("square", SQUARE, |fabric, kill| {
        let mut bytes = [0; 3000];
        match fabric.rank() {
            0 => {
                assert_eq!(fabric.path(1), [3]);
                // More than is under way at once: some of it is lost with rank 3.
                for turn in 0..400_u32 {
                    if turn == 200 {
                        kill();
                        after.store(true, Ordering::SeqCst);
                    }
                    fabric.send_bytes(1, 1, &[turn as u8; 3000], LONG).unwrap();
                }
                fabric.recv_bytes(1, 2, &mut bytes, LONG).unwrap();
                assert_eq!(fabric.path(1), [2]);
                assert!(fabric.loss(3).is_some() && fabric.loss(1).is_none());
            }
            1 => {
                for turn in 0..400_u32 {
                    fabric.recv_bytes(0, 1, &mut bytes, LONG).unwrap();
                    assert_eq!(bytes, [turn as u8; 3000]);
                }
                assert!(after.load(Ordering::SeqCst));
                fabric.send_bytes(0, 2, &bytes, LONG).unwrap();
                fabric.send_bytes(2, 3, &[], LONG).unwrap();
            }
            // It computes: nobody waits here.
            _ => {
                while !after.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                fabric.recv_bytes(1, 3, &mut bytes, LONG).unwrap();
                assert!(fabric.relayed().frames > 0);
            }
        }
        all.wait();
    });
}

#[test]
fn where_no_path_is_left_the_cause_names_the_rank_between() {
    let all = Barrier::new(3);
    with_victim("middle", MIDDLE, |fabric, kill| {
        let rank = fabric.rank();
        for peer in (0..3).filter(|peer| *peer != rank) {
            fabric.send_bytes(peer, 1, &[1; 10], LONG).unwrap();
        }
        for peer in (0..3).filter(|peer| *peer != rank) {
            assert_eq!(fabric.path(peer), [3]);
            fabric.recv_bytes(peer, 1, &mut [0; 10], LONG).unwrap();
        }
        all.wait();
        if rank == 0 {
            kill();
        }
        let error = fabric.recv_bytes((rank + 1) % 3, 2, &mut [0; 8], LONG).unwrap_err();
        let said = error.to_string();
        println!("{said}");
        assert!(matches!(error, FabricError::PeerLost { .. }), "{said}");
        // Whoever hears it first tells the other end.
        assert!(said.contains("no path") && said.contains("rank 3") || said.contains("rank 3 was lost"), "{said}");
        assert!(fabric.path((rank + 1) % 3).is_empty());
    });
}

#[test]
fn graphs_that_do_not_connect_are_refused_by_name() {
    start(Profile::Infiniband, 4, &[(0, 2), (1, 3)], options, |_, fabric| {
        let said = fabric.unwrap_err().to_string();
        assert!(said.contains("from ranks 0, 2 to ranks 1, 3"), "{said}");
    });
    let given = |rank| {
        let mut providers = joined(Profile::Infiniband, (rank, 3), &[(0, 1), (1, 2), (1, 2)]);
        if rank == 2 {
            providers.cables.as_mut().unwrap().0[1].pop();
        }
        (providers, FabricOptions { windows: false, ..options() })
    };
    world::start_with(3, given, |_, fabric| {
        let said = fabric.unwrap_err().to_string();
        assert!(
            said.contains("rank 1 has 2 cables to rank 2") && said.contains("rank 2 has 1 cable to rank 1"),
            "{said}"
        );
    });
}
