//! Ranks that are ahead of others: whoever only gives waits for nobody, and may be gone when others take what it gave.

use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_collectives::{CollectiveError, Group};
use fulmen_fabric::{Fabric, FabricError};
use fulmen_kernels::ReduceOp;

use crate::world::{Comes, run, run_busy, run_group};

/// Elements: as many as are in an announcement, in a slot, and on a stage.
const COUNTS: [usize; 3] = [7, 300, 20_000];

/// Calls of about one length after which none is measured for long: those that are wait for all.
const MEASURED: usize = 8;

/// As many as fill all slots.
const AHEAD: usize = 3;

/// Long enough, and short enough for a rank that waits in vain to be told of.
const DEADLINE: Duration = Duration::from_secs(10);

fn element(rank: usize, turn: usize, at: usize) -> u32 {
    (at as u32).wrapping_mul(0x85eb_ca6b).wrapping_add((rank * 523 + turn * 77) as u32)
}

fn vector(rank: usize, turn: usize, count: usize) -> Vec<u32> {
    (0..count).map(|at| element(rank, turn, at)).collect()
}

fn broadcast(group: &Group, turn: usize, count: usize) {
    let mut data = vector(group.rank() as usize, turn, count);
    group.broadcast(&mut data, 0).unwrap();
    assert_eq!(data, vector(0, turn, count), "broadcast {turn} of {count}");
}

fn gather(group: &Group, turn: usize, count: usize, root: u32) {
    let (rank, size) = (group.rank() as usize, group.size() as usize);
    let mut all = vec![0; if group.rank() == root { count * size } else { 0 }];
    group.gather(&vector(rank, turn, count), &mut all, root).unwrap();
    let given = (0..all.len()).all(|at| all[at] == element(at / count, turn, at % count));
    assert!(given, "gather {turn} of {count}");
}

/// Rank 1 comes when rank 0 is done, and finds all that it gave.
#[test]
fn who_only_gives_is_done_before_the_others_come() {
    for count in COUNTS {
        let done = Barrier::new(2);
        let body = |group: &Group| {
            let group = &group.with_deadline(DEADLINE);
            let mut comes = Some(Comes(&done));
            for turn in 0..MEASURED {
                broadcast(group, turn, count);
                gather(group, turn, count, 1);
            }
            // From the last call that all have made, one that gives is ahead by its own calls alone.
            group.barrier().unwrap();
            if group.rank() == 1 {
                comes = None;
            }
            for turn in 0..AHEAD {
                if turn % 2 == 0 { broadcast(group, turn, count) } else { gather(group, turn, count, 1) }
            }
            drop(comes);
        };
        run_group(2, body);
        run_busy(2, body);
    }
}

#[test]
fn who_gave_may_leave_before_the_others_come() {
    for count in COUNTS {
        let gone = Barrier::new(3);
        run(3, |fabric| {
            // Dropped after the group.
            let comes = Comes(&gone);
            let group = Group::new(fabric).unwrap().with_deadline(DEADLINE);
            for turn in 0..MEASURED {
                broadcast(&group, turn, count);
            }
            group.barrier().unwrap();
            if group.rank() == 0 {
                return (0..AHEAD).for_each(|turn| broadcast(&group, turn, count));
            }
            drop(comes);
            for turn in 0..AHEAD {
                broadcast(&group, turn, count);
            }
            // What depends on it fails.
            let error = group.barrier().unwrap_err();
            let lost = matches!(&error, CollectiveError::Fabric(FabricError::PeerLost { rank: 0, .. }));
            assert!(lost || matches!(error, CollectiveError::Poisoned { .. }), "{error}");
        });
    }
}

/// Rank 2 waits for rank 1, which comes only when rank 2 has heard that rank 0 has left.
#[test]
fn who_has_left_does_not_disturb_those_that_wait_for_others() {
    for count in COUNTS {
        let waits = OnceLock::new();
        run(3, |fabric| {
            let group = Group::new(fabric.clone()).unwrap().with_deadline(DEADLINE);
            let scan = || {
                let mut data = vec![1_u32; count];
                group.scan(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(data, vec![group.rank() + 1; count]);
            };
            (0..MEASURED).for_each(|_| scan());
            group.barrier().unwrap();
            match group.rank() {
                1 => {
                    let began = Instant::now();
                    let heard = || waits.get().is_some_and(|other: &Fabric| other.loss(0).is_some());
                    while !heard() && began.elapsed() < DEADLINE {
                        thread::yield_now();
                    }
                }
                2 => _ = waits.set(fabric.clone()),
                _ => {}
            }
            scan();
        });
    }
}

/// Numbers that look as if they were drawn, the same on all ranks (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as usize % end
    }
}

/// Calls of all kinds and lengths one after the other, in which now one rank is ahead and now another.
#[test]
fn nothing_is_lost_whoever_is_ahead() {
    const LENGTHS: [usize; 8] = [1, 8, 9, 200, 2_000, 3_000, 9_000, 90_000];
    for size in [2, 3, 5] {
        let body = |group: &Group| {
            let (rank, mut calls) = (group.rank() as usize, Draw(42));
            let mut own = Draw(7 + rank as u64);
            for turn in 0..400 {
                let (kind, root, count) = (calls.below(8), calls.below(size), LENGTHS[calls.below(LENGTHS.len())]);
                // Each is held up now and then.
                for _ in 0..[0, 0, 0, 5, 50][own.below(5)] {
                    thread::yield_now();
                }
                let sum = |ranks: usize, at| (0..ranks).map(|rank| element(rank, turn, at)).fold(0, u32::wrapping_add);
                let mut data = vector(rank, turn, count);
                match kind {
                    0 | 1 => {
                        group.broadcast(&mut data, root as u32).unwrap();
                        assert_eq!(data, vector(root, turn, count), "broadcast {turn}");
                    }
                    2 => {
                        group.reduce(&mut data, ReduceOp::Sum, root as u32).unwrap();
                        assert!(rank != root || (0..count).all(|at| data[at] == sum(size, at)), "reduce {turn}");
                    }
                    3 => gather(group, turn, count, root as u32),
                    4 => {
                        let from = if rank == root { vector(root, turn, count * size) } else { vec![] };
                        group.scatter(&from, &mut data, root as u32).unwrap();
                        let given = |at| element(root, turn, rank * count + at);
                        assert!((0..count).all(|at| data[at] == given(at)), "scatter {turn}");
                    }
                    5 => {
                        group.scan(&mut data, ReduceOp::Sum).unwrap();
                        assert!((0..count).all(|at| data[at] == sum(rank + 1, at)), "scan {turn}");
                    }
                    6 => {
                        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                        assert!((0..count).all(|at| data[at] == sum(size, at)), "all_reduce {turn}");
                    }
                    _ => {
                        let mut all = vec![0; count * size];
                        group.all_gather(&data, &mut all).unwrap();
                        let given = |at: usize| element(at / count, turn, at % count);
                        assert!((0..all.len()).all(|at| all[at] == given(at)), "all_gather {turn}");
                    }
                }
            }
        };
        run_group(size as u32, body);
        run_busy(size as u32, body);
    }
}
