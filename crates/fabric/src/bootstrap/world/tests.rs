//! The world without a network: connection numbers are the ranks, plus 100 for those that come in another's place.

use super::super::message::{Formed, NotFormed};
use super::*;

/// The messages for each connection since the last call.
pub(super) fn sent(world: &mut World) -> BTreeMap<u64, Vec<(ToRank, Vec<u8>)>> {
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

pub(super) fn ask(world: &mut World, id: u64, attempt: u64, how: Regroup) {
    world.hear(id, ToCoordinator::Regroup { attempt, how }, Vec::new()).unwrap();
}

/// It asks, and answers when it is asked whether it lives.
fn ask_alive(world: &mut World, id: u64, attempt: u64) {
    ask(world, id, attempt, Regroup::Everybody);
    assert_eq!(told(world, id), [ToRank::Ping]);
    world.hear(id, ToCoordinator::Pong, Vec::new()).unwrap();
}

pub(super) fn goodbye(world: &mut World, id: u64) {
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
    assert_eq!(got.len(), 3);
    assert_eq!(got[0], (ToRank::Left { rank: 0 }, Vec::new()));
    assert_eq!(got[1], (ToRank::Blob { number: 0, rank: 0 }, b"zero".to_vec()));
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
    let told = sent(&mut world);
    let left = [(ToRank::Left { rank: 2 }, Vec::new())];
    assert!(told.len() == 2 && told[&0] == left && told[&1] == left);
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

#[test]
fn ranks_that_may_live_count_against_a_minority() {
    let mut world = full(3);
    stop(&mut world, 1);
    stop(&mut world, 2);
    ask(&mut world, 0, 1, Regroup::Survivors);
    let why = NotFormed::Partitioned { with: vec![0], without: vec![1, 2] };
    assert_eq!(refused(&told(&mut world, 0)), Some(&why));
    // Once they are known to have ended, rank 0 may go on.
    world.fate(1, true);
    assert!(sent(&mut world).is_empty(), "nobody asks");
    ask(&mut world, 0, 2, Regroup::Survivors);
    let new = formed(&told(&mut world, 0)).unwrap().clone();
    assert_eq!((new.members, new.may_live), (vec![0], vec![2]), "half, and the lowest rank");
}

#[test]
fn a_decision_waits_for_the_fate_of_a_process_that_may_be_ending() {
    let mut world = full(2);
    world.lose(0, LossCause::Closed);
    ask(&mut world, 1, 1, Regroup::Survivors);
    assert!(world.wants_fate(0) && formed(&told(&mut world, 1)).is_none());
    world.hear(1, ToCoordinator::GiveUpRegroup { attempt: 1 }, Vec::new()).unwrap();
    assert!(sent(&mut world).is_empty(), "there is nobody to wait for but the fate");
    world.fate(0, true);
    assert_eq!(formed(&told(&mut world, 1)).unwrap().members, [1]);
    // Had it lived, it would have won the tie.
    let mut world = full(2);
    world.lose(0, LossCause::Closed);
    ask(&mut world, 1, 1, Regroup::Survivors);
    world.fate(0, false);
    let why = NotFormed::Partitioned { with: vec![1], without: vec![0] };
    assert_eq!(refused(&told(&mut world, 1)), Some(&why));
}

#[test]
fn ranks_that_are_cut_off_are_told_which_side_goes_on() {
    let mut world = full(5);
    for (one, two) in [(0, 2), (0, 3), (4, 0), (1, 2), (3, 1), (1, 4)] {
        cut(&mut world, one, two).unwrap();
    }
    for id in 0..5 {
        ask(&mut world, id, 1, Regroup::Survivors);
    }
    let mut inboxes = sent(&mut world);
    let mut of = |id: u64| inboxes.remove(&id).unwrap().into_iter().map(|(m, _)| m).collect::<Vec<_>>();
    for id in [0, 1] {
        let why = NotFormed::Partitioned { with: vec![0, 1], without: vec![2, 3, 4] };
        assert_eq!(refused(&of(id)), Some(&why));
    }
    for id in [2, 3, 4] {
        let new = formed(&of(id)).unwrap().clone();
        assert_eq!((new.members, new.may_live), (vec![2, 3, 4], vec![0, 1]));
        assert!(new.failed.iter().all(|lost| lost.cause == LossCause::CutOff) && new.failed.len() == 2);
    }
    // They stay outside, disturb nobody, and come back when all ask for everybody.
    ask(&mut world, 0, 2, Regroup::Survivors);
    let why = NotFormed::Partitioned { with: vec![0], without: vec![2, 3, 4] };
    assert_eq!(refused(&told(&mut world, 0)), Some(&why));
    for id in 2..5 {
        ask(&mut world, id, 2, Regroup::Everybody);
    }
    ask_alive(&mut world, 0, 3);
    ask_alive(&mut world, 1, 2);
    let new = formed(&told(&mut world, 1)).unwrap().clone();
    assert_eq!((new.members, new.failed, new.may_live), (vec![0, 1, 2, 3, 4], vec![], vec![]));
}

#[test]
fn a_process_in_the_place_of_a_lost_one_waits_until_everybody_is_asked_for() {
    let mut world = full(3);
    kill(&mut world, 1);
    for id in [0, 2] {
        ask(&mut world, id, 1, Regroup::Survivors);
    }
    sent(&mut world);
    world.join(101, 1, 3, 55, 1000).unwrap();
    assert_eq!(told(&mut world, 101), [ToRank::Waits { silence_ms: 1000 }]);
    let refusal = world.join(201, 1, 3, 66, 1000).unwrap_err();
    assert_eq!(refusal, Refusal::DuplicateRank { rank: 1, holder: 55, pid: 66 });
    // The survivors' own matters go on.
    contribute(&mut world, 0, 0, Round::Barrier, &[]).unwrap();
    contribute(&mut world, 2, 0, Round::Barrier, &[]).unwrap();
    assert_eq!(sent(&mut world).len(), 2);
    ask(&mut world, 0, 2, Regroup::Everybody);
    ask(&mut world, 2, 2, Regroup::Everybody);
    let new = formed(&told(&mut world, 101)).unwrap().clone();
    assert_eq!((new.members, new.failed), (vec![0, 1, 2], vec![]));
}

#[test]
fn deadlines_name_who_is_missing_and_end_the_attempt_of_all_members() {
    let mut world = full(4);
    kill(&mut world, 3);
    world.join(103, 3, 4, 55, 1000).unwrap();
    kill(&mut world, 1);
    ask(&mut world, 0, 1, Regroup::Everybody);
    ask(&mut world, 2, 1, Regroup::Everybody);
    sent(&mut world);
    // Its own matter.
    world.hear(103, ToCoordinator::GiveUpRegroup { attempt: 0 }, Vec::new()).unwrap();
    let inboxes = sent(&mut world);
    let timed_out = |by, missing: &[u32]| NotFormed::TimedOut { by, missing: missing.to_vec() };
    let answer = |attempt, why| [(ToRank::NotFormed { attempt, why }, Vec::new())];
    assert_eq!((inboxes.len(), &inboxes[&103][..]), (1, &answer(0, timed_out(3, &[1]))[..]));
    world.hear(2, ToCoordinator::GiveUpRegroup { attempt: 1 }, Vec::new()).unwrap();
    let inboxes = sent(&mut world);
    for id in [0, 2] {
        assert_eq!(inboxes[&id], answer(1, timed_out(2, &[1, 3])));
    }
    // A deadline that crosses the answer ends no later attempt, and they may ask again for something else.
    ask(&mut world, 0, 2, Regroup::Survivors);
    world.hear(0, ToCoordinator::GiveUpRegroup { attempt: 1 }, Vec::new()).unwrap();
    ask(&mut world, 2, 2, Regroup::Survivors);
    assert_eq!(formed(&told(&mut world, 2)).unwrap().members, [0, 2]);
}

#[test]
fn a_rank_that_asks_for_something_else_is_named() {
    let mut world = full(2);
    ask(&mut world, 0, 1, Regroup::Survivors);
    assert_eq!(told(&mut world, 1), [ToRank::Regrouping { rank: 0 }]);
    ask(&mut world, 1, 1, Regroup::Everybody);
    let why = NotFormed::Mismatch { rank: 1, called: Regroup::Everybody, others: Regroup::Survivors };
    let inboxes = sent(&mut world);
    assert!(
        inboxes.len() == 2
            && inboxes.values().all(|inbox| {
                matches!(&inbox[..], [(ToRank::NotFormed { attempt: 1, why: told }, _)] if *told == why)
            })
    );
    assert!(world.hear(0, ToCoordinator::Regroup { attempt: 2, how: Regroup::Everybody }, Vec::new()).is_ok());
    assert!(world.hear(0, ToCoordinator::Regroup { attempt: 3, how: Regroup::Everybody }, Vec::new()).is_err());
}

#[test]
fn a_stopped_process_finds_itself_lost_and_may_come_back_unless_it_was_replaced() {
    let mut world = full(3);
    stop(&mut world, 2);
    assert!(matches!(&told(&mut world, 2)[..], [ToRank::Lost(LostRank { rank: 2, .. })]));
    for id in [0, 1] {
        ask(&mut world, id, 1, Regroup::Survivors);
    }
    sent(&mut world);
    contribute(&mut world, 2, 0, Round::Barrier, &[]).unwrap();
    assert!(sent(&mut world).is_empty(), "it is no member");
    ask_alive(&mut world, 2, 1);
    // While it waits for its seat, nobody else gets it.
    assert!(matches!(world.join(102, 2, 3, 55, 1000), Err(Refusal::DuplicateRank { holder: 102, .. })));
    world.hear(2, ToCoordinator::GiveUpRegroup { attempt: 1 }, Vec::new()).unwrap();
    world.join(102, 2, 3, 55, 1000).unwrap();
    sent(&mut world);
    ask(&mut world, 2, 2, Regroup::Everybody);
    assert_eq!(refused(&told(&mut world, 2)), Some(&NotFormed::Replaced { holder: 55 }));
    goodbye(&mut world, 102);
    ask_alive(&mut world, 2, 3);
    for id in [0, 1] {
        ask(&mut world, id, 2, Regroup::Everybody);
    }
    assert_eq!(formed(&told(&mut world, 2)).unwrap().members, [0, 1, 2]);
}

#[test]
fn what_a_lost_process_said_before_it_ended_takes_no_seat() {
    let mut world = full(3);
    stop(&mut world, 2);
    for id in [0, 1] {
        ask(&mut world, id, 1, Regroup::Everybody);
    }
    // A network that was broken brings all that it said, although it has ended long since.
    ask(&mut world, 2, 1, Regroup::Everybody);
    assert!(formed(&told(&mut world, 0)).is_none(), "nobody knows whether it lives");
    goodbye(&mut world, 2);
    world.join(102, 2, 3, 55, 1000).unwrap();
    let new = formed(&told(&mut world, 102)).unwrap().clone();
    let failed: Vec<u32> = new.failed.iter().map(|lost| lost.rank).collect();
    assert_eq!((new.members, failed), (vec![0, 1, 2], vec![2]));
    // One that lives, but comes after its successor.
    let mut world = full(3);
    stop(&mut world, 2);
    ask(&mut world, 2, 1, Regroup::Everybody);
    world.join(102, 2, 3, 55, 1000).unwrap();
    sent(&mut world);
    world.hear(2, ToCoordinator::Pong, Vec::new()).unwrap();
    assert_eq!(refused(&told(&mut world, 2)), Some(&NotFormed::Replaced { holder: 55 }));
}

#[test]
fn a_world_that_ends_with_a_rank_takes_nobody_back_who_has_left() {
    let mut world = full(3);
    goodbye(&mut world, 2);
    world.join(102, 2, 3, 55, 1000).unwrap();
    assert!(matches!(told(&mut world, 102)[..], [ToRank::Waits { .. }]));

    let mut world = full(3).ending_with(Some(0));
    goodbye(&mut world, 2);
    assert_eq!(world.join(102, 2, 3, 55, 1000), Err(Refusal::RankLeft { rank: 2 }));
    kill(&mut world, 1);
    world.join(101, 1, 3, 56, 1000).unwrap();
    world.lose(101, LossCause::Closed);
    goodbye(&mut world, 0);
    for rank in 0..3 {
        let refused = world.join(200 + u64::from(rank), rank, 3, 57, 1000);
        assert_eq!(refused, Err(Refusal::RankLeft { rank: 0 }));
    }
}

#[test]
fn processes_in_the_place_of_all_begin_anew() {
    let mut world = full(2);
    world.join(100, 0, 2, 9, 1000).unwrap_err();
    for id in [0, 1] {
        kill(&mut world, id);
    }
    for rank in [0, 1] {
        world.join(100 + u64::from(rank), rank, 2, 200 + rank, 1000).unwrap();
    }
    let new = formed(&told(&mut world, 100)).unwrap().clone();
    assert_eq!((new.members, new.failed.len()), (vec![0, 1], 2));
}
