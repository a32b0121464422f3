//! The world without a network: connection numbers are the ranks, plus 100 for those that come in another's place.

use proptest::prelude::*;

use super::super::message::{Formed, NotFormed};
use super::*;

/// The messages for each connection since the last call.
fn sent(world: &mut World) -> BTreeMap<u64, Vec<(ToRank, Vec<u8>)>> {
    let mut inboxes: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    for Output { to, message, body } in world.outbox.drain(..) {
        for id in to.iter() {
            inboxes.entry(*id).or_default().push((message.clone(), body.to_vec()));
        }
    }
    inboxes
}

/// What one connection was told, without bodies.
fn told(world: &mut World, id: u64) -> Vec<ToRank> {
    sent(world).remove(&id).unwrap_or_default().into_iter().map(|(message, _)| message).collect()
}

fn full(size: u32) -> World {
    let mut world = World::new(size, [7; 32]);
    for rank in 0..size {
        world.join(u64::from(rank), rank, size, 100 + rank, 1000).unwrap();
    }
    sent(&mut world);
    world
}

fn contribute(world: &mut World, id: u64, number: u64, round: Round, body: &[u8]) -> Result<(), Violation> {
    let generation = world.generation();
    world.hear(id, ToCoordinator::Contribute { generation, number, round }, body.to_vec())
}

fn give_up(world: &mut World, id: u64, number: Option<u64>) -> Result<(), Violation> {
    let generation = world.generation();
    world.hear(id, ToCoordinator::GiveUp { generation, number }, Vec::new())
}

fn cut(world: &mut World, id: u64, rank: u32) -> Result<(), Violation> {
    let generation = world.generation();
    world.hear(id, ToCoordinator::Cut { generation, rank }, Vec::new())
}

fn ask(world: &mut World, id: u64, attempt: u64, how: Regroup) {
    world.hear(id, ToCoordinator::Regroup { attempt, how }, Vec::new()).unwrap();
}

fn goodbye(world: &mut World, id: u64) {
    world.hear(id, ToCoordinator::Goodbye, Vec::new()).unwrap();
}

/// A rank's process is killed.
fn kill(world: &mut World, id: u64) {
    assert!(!world.lose(id, LossCause::Closed));
    world.fate(id, true);
}

/// A rank's process is stopped for too long.
fn stop(world: &mut World, id: u64) {
    assert!(world.lose(id, LossCause::Silent(1)));
    world.fate(id, false);
}

fn formed(messages: &[ToRank]) -> Option<&Formed> {
    messages.iter().find_map(|message| if let ToRank::Formed(formed) = message { Some(formed) } else { None })
}

fn refused(messages: &[ToRank]) -> Option<&NotFormed> {
    messages.iter().find_map(|message| if let ToRank::NotFormed { why, .. } = message { Some(why) } else { None })
}

#[test]
fn a_rank_that_leaves_after_its_part_does_not_spoil_the_round() {
    let mut world = full(2);
    contribute(&mut world, 0, 0, Round::AllGather, b"zero").unwrap();
    goodbye(&mut world, 0);
    contribute(&mut world, 1, 0, Round::AllGather, b"one").unwrap();
    let got = &sent(&mut world)[&1];
    assert_eq!(got.len(), 2);
    assert_eq!(got[0], (ToRank::Blob { number: 0, rank: 0 }, b"zero".to_vec()));
    // The next round needs rank 0 again.
    contribute(&mut world, 1, 1, Round::Barrier, &[]).unwrap();
    assert_eq!(sent(&mut world)[&1][0].0, ToRank::Failed(Failure::Left { rank: 0 }));
}

#[test]
fn a_deadline_that_crosses_the_end_of_the_round_is_ignored() {
    let mut world = full(2);
    contribute(&mut world, 0, 0, Round::Barrier, &[]).unwrap();
    contribute(&mut world, 1, 0, Round::Barrier, &[]).unwrap();
    give_up(&mut world, 0, Some(0)).unwrap();
    give_up(&mut world, 1, None).unwrap();
    assert!(world.failure.is_none());
    assert_eq!(sent(&mut world)[&0], [(ToRank::Released { number: 0 }, Vec::new())]);
}

#[test]
fn a_cut_is_told_to_the_other_end_alone_and_fails_nothing() {
    let mut world = full(3);
    cut(&mut world, 0, 2).unwrap();
    let told = sent(&mut world);
    assert_eq!(told[&2], [(ToRank::Cut { rank: 0 }, Vec::new())]);
    assert!(told.len() == 1 && world.failure.is_none());
    goodbye(&mut world, 2);
    cut(&mut world, 0, 2).unwrap();
    assert!(sent(&mut world).is_empty());
    assert!(cut(&mut world, 0, 0).is_err() && cut(&mut world, 0, 3).is_err());
}

#[test]
fn what_a_rank_may_not_do_is_a_violation() {
    let mut early = World::new(2, [7; 32]);
    early.join(0, 0, 2, 1, 1000).unwrap();
    assert!(contribute(&mut early, 0, 0, Round::Barrier, &[]).is_err(), "before all have joined");
    let mut world = full(2);
    assert!(contribute(&mut world, 0, 1, Round::Barrier, &[]).is_err(), "a round that is not open");
    assert!(contribute(&mut world, 0, 0, Round::Barrier, &[1]).is_err(), "a blob in a barrier");
    assert!(give_up(&mut world, 0, Some(0)).is_err(), "a round that it did not begin");
    contribute(&mut world, 0, 0, Round::Barrier, &[]).unwrap();
    assert!(contribute(&mut world, 0, 0, Round::Barrier, &[]).is_err(), "twice");
}

#[test]
fn survivors_of_a_killed_rank_go_on_renumbered() {
    let mut world = full(3);
    let first = world.generation();
    kill(&mut world, 1);
    ask(&mut world, 0, 1, Regroup::Survivors);
    assert!(formed(&told(&mut world, 0)).is_none(), "rank 2 has not asked");
    ask(&mut world, 2, 1, Regroup::Survivors);
    let inboxes = sent(&mut world);
    let of = |id: u64| inboxes[&id].iter().map(|(message, _)| message.clone()).collect::<Vec<_>>();
    let new = formed(&of(0)).unwrap().clone();
    assert_eq!(formed(&of(2)), Some(&new));
    let lost = LostRank { rank: 1, pid: 101, cause: LossCause::Closed };
    assert_eq!((new.members, new.failed, new.may_live), (vec![0, 2], vec![lost], vec![]));
    assert!(new.generation != first && new.generation == world.generation());
    // Rounds begin anew; what is left of the old generation is nobody's concern.
    contribute(&mut world, 0, 0, Round::Barrier, &[]).unwrap();
    let stale = ToCoordinator::Contribute { generation: first, number: 5, round: Round::AllGather };
    world.hear(2, stale, b"old".to_vec()).unwrap();
    contribute(&mut world, 2, 0, Round::Barrier, &[]).unwrap();
    assert_eq!(told(&mut world, 2), [ToRank::Released { number: 0 }]);
}
