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
    for id in 0..5 {
        ask(&mut world, id, 3, Regroup::Everybody);
    }
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
    ask(&mut world, 2, 1, Regroup::Everybody);
    // While it waits for its seat, nobody else gets it.
    assert!(matches!(world.join(102, 2, 3, 55, 1000), Err(Refusal::DuplicateRank { holder: 102, .. })));
    world.hear(2, ToCoordinator::GiveUpRegroup { attempt: 1 }, Vec::new()).unwrap();
    world.join(102, 2, 3, 55, 1000).unwrap();
    sent(&mut world);
    ask(&mut world, 2, 2, Regroup::Everybody);
    assert_eq!(refused(&told(&mut world, 2)), Some(&NotFormed::Replaced { holder: 55 }));
    goodbye(&mut world, 102);
    ask(&mut world, 2, 3, Regroup::Everybody);
    for id in [0, 1] {
        ask(&mut world, id, 2, Regroup::Everybody);
    }
    assert_eq!(formed(&told(&mut world, 2)).unwrap().members, [0, 1, 2]);
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

const SIZE: u32 = 5;

#[derive(Debug, Clone)]
enum Act {
    Join(u32),
    Contribute(usize, bool),
    GiveUp(usize),
    Leave(usize),
    Kill(usize),
    Stop(usize),
    Fate(usize),
    Cut(usize, u32),
    Ask(usize, Regroup),
    AllAsk(Regroup),
    GiveUpRegroup(usize),
    /// Something that a process sent before it heard of the new generation.
    Stale(usize, u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let who = || 0..12usize;
    let how = || prop_oneof![4 => Just(Regroup::Survivors), 1 => Just(Regroup::Everybody)];
    let act = prop_oneof![
        4 => (0..SIZE).prop_map(Act::Join),
        12 => (who(), prop::bool::weighted(0.9)).prop_map(|(who, gather)| Act::Contribute(who, gather)),
        1 => who().prop_map(Act::GiveUp),
        1 => who().prop_map(Act::Leave),
        2 => who().prop_map(Act::Kill),
        2 => who().prop_map(Act::Stop),
        3 => who().prop_map(Act::Fate),
        3 => (who(), 0..SIZE).prop_map(|(who, other)| Act::Cut(who, other)),
        6 => (who(), how()).prop_map(|(who, how)| Act::Ask(who, how)),
        5 => how().prop_map(Act::AllAsk),
        2 => who().prop_map(Act::GiveUpRegroup),
        2 => (who(), 0..4u64).prop_map(|(who, number)| Act::Stale(who, number)),
    ];
    prop::collection::vec(act, 0..80)
}

/// A process as its own side sees it.
#[derive(Debug, Clone, Default)]
struct Process {
    rank: u32,
    /// The generation that it believes in, and its place there.
    generation: Option<(u64, u32)>,
    /// Generations that it was in before.
    past: Vec<u64>,
    round: u64,
    in_round: bool,
    failed: bool,
    attempts: u64,
    asking: Option<u64>,
    /// Its connection is gone, but the world has not heard whether it ended.
    dying: bool,
    /// It was hung up on, and may live.
    hung_up: bool,
    /// It was killed, or left.
    over: bool,
}

/// The world and all processes that ever were in it, by connection.
struct Model {
    world: World,
    processes: Vec<Process>,
}

impl Model {
    fn connected(&self, who: usize) -> bool {
        self.processes.get(who).is_some_and(|process| !process.over && !process.dying && !process.hung_up)
    }

    fn ask(&mut self, who: usize, how: Regroup) {
        let process = &mut self.processes[who];
        if process.generation.is_some() && process.asking.is_none() {
            process.attempts += 1;
            process.asking = Some(process.attempts);
            process.failed = true;
            ask(&mut self.world, who as u64, self.processes[who].attempts, how);
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Contribute(who, _)
            | Act::GiveUp(who)
            | Act::Leave(who)
            | Act::Kill(who)
            | Act::Stop(who)
            | Act::Cut(who, _)
            | Act::Ask(who, _)
            | Act::GiveUpRegroup(who)
            | Act::Stale(who, _)
                if !self.connected(who) =>
            {
                return;
            }
            _ => {}
        }
        let Model { world, processes } = self;
        match act {
            Act::Join(rank) => {
                let id = processes.len() as u64;
                if world.join(id, rank, SIZE, 1000 + id as u32, 1000).is_ok() {
                    processes.push(Process { rank, ..Process::default() });
                }
            }
            Act::AllAsk(how) => (0..self.processes.len())
                .filter(|&who| self.connected(who))
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|who| self.ask(who, how)),
            Act::Fate(who) => {
                if processes.get(who).is_some_and(|process| process.dying) {
                    (processes[who].dying, processes[who].over) = (false, true);
                    world.fate(who as u64, true);
                }
            }
            Act::Ask(who, how) => self.ask(who, how),
            Act::Contribute(who, gather) => {
                let process = &mut processes[who];
                let Some((generation, _)) = process.generation.filter(|_| !process.failed && !process.in_round) else {
                    return;
                };
                process.in_round = true;
                let (round, body) = if gather {
                    (
                        Round::AllGather,
                        [&generation.to_le_bytes()[..], &[process.rank as u8, process.round as u8]].concat(),
                    )
                } else {
                    (Round::Barrier, Vec::new())
                };
                let message = ToCoordinator::Contribute { generation, number: process.round, round };
                world.hear(who as u64, message, body).unwrap();
            }
            Act::GiveUp(who) => {
                let process = &processes[who];
                if let Some((generation, _)) = process.generation.filter(|_| process.in_round) {
                    let message = ToCoordinator::GiveUp { generation, number: Some(process.round) };
                    world.hear(who as u64, message, Vec::new()).unwrap();
                }
            }
            Act::Leave(who) => {
                goodbye(world, who as u64);
                processes[who].over = true;
            }
            Act::Kill(who) => {
                processes[who].dying = true;
                assert!(!world.lose(who as u64, LossCause::Closed));
            }
            Act::Stop(who) => {
                // One that waits for a seat is hung up on.
                if !world.lose(who as u64, LossCause::Silent(1)) {
                    processes[who].hung_up = true;
                }
                world.fate(who as u64, false);
            }
            Act::Cut(who, other) => {
                if let Some((generation, rank)) = processes[who].generation
                    && rank != other
                    && (other as usize) < world.members().len()
                {
                    world.hear(who as u64, ToCoordinator::Cut { generation, rank: other }, Vec::new()).ok();
                }
            }
            Act::Stale(who, number) => {
                if let Some(&generation) = processes[who].past.last() {
                    let round = Round::AllGather;
                    let stale = [
                        ToCoordinator::Contribute { generation, number, round },
                        ToCoordinator::GiveUp { generation, number: Some(number) },
                        ToCoordinator::Cut { generation, rank: number as u32 },
                    ];
                    for message in stale {
                        world.hear(who as u64, message, Vec::new()).unwrap();
                    }
                    assert!(world.outbox.is_empty(), "nobody is told");
                }
            }
            Act::GiveUpRegroup(who) => {
                if let Some(attempt) = processes[who].asking {
                    world.hear(who as u64, ToCoordinator::GiveUpRegroup { attempt }, Vec::new()).unwrap();
                }
            }
        }
    }

    /// Hands out what the world said, and checks what must hold in every step.
    fn step(&mut self, act: Act) -> Result<(), TestCaseError> {
        let before = (self.world.generation(), self.world.members().to_vec());
        let cuts = self.world.cuts.clone();
        let lived: Vec<u32> = self
            .world
            .members()
            .iter()
            .copied()
            .filter(|&rank| matches!(self.world.seats[rank as usize].place, Place::Taken(_)))
            .collect();
        let survivors = matches!(act, Act::Ask(_, Regroup::Survivors) | Act::AllAsk(Regroup::Survivors));
        self.act(act.clone());
        let inboxes = sent(&mut self.world);
        let mut new: Vec<Formed> = Vec::new();
        let mut members = Vec::new();
        let mut partitioned = false;
        let mut ends: BTreeMap<u64, Vec<(ToRank, Vec<u8>)>> = BTreeMap::new();
        for (&id, inbox) in &inboxes {
            let process = &mut self.processes[id as usize];
            prop_assert!(!process.over && !process.dying && !process.hung_up, "{id} is gone");
            for (message, body) in inbox {
                match message {
                    ToRank::Welcome { generation, .. } => process.generation = Some((*generation, process.rank)),
                    ToRank::Waits { .. } => process.asking = Some(0),
                    ToRank::Blob { number, rank } => {
                        let (generation, _) = process.generation.unwrap();
                        prop_assert!(process.in_round && !process.failed && *number == process.round);
                        let launched = before.1[*rank as usize];
                        prop_assert_eq!(
                            body,
                            &[&generation.to_le_bytes()[..], &[launched as u8, *number as u8]].concat()
                        );
                        if *rank as usize + 1 == before.1.len() {
                            (process.in_round, process.round) = (false, process.round + 1);
                        }
                        ends.entry(id).or_default().push((message.clone(), body.clone()));
                    }
                    ToRank::Released { .. } => {
                        prop_assert!(process.in_round && !process.failed);
                        (process.in_round, process.round) = (false, process.round + 1);
                        ends.entry(id).or_default().push((message.clone(), body.clone()));
                    }
                    ToRank::Lost(_) | ToRank::Failed(_) | ToRank::Regrouping { .. } => {
                        (process.failed, process.in_round) = (true, false);
                    }
                    ToRank::Formed(formed) => {
                        prop_assert!(process.asking.take().is_some(), "{id} did not ask");
                        let rank = formed.members.binary_search(&process.rank).expect("a member") as u32;
                        process.past.extend(process.generation.map(|(generation, _)| generation));
                        process.generation = Some((formed.generation, rank));
                        (process.failed, process.in_round, process.round) = (false, false, 0);
                        members.push(process.rank);
                        new.push(formed.clone());
                    }
                    ToRank::NotFormed { attempt, why } => {
                        prop_assert_eq!(process.asking.take(), Some(*attempt));
                        let member = lived.contains(&process.rank)
                            && process.generation.is_some_and(|(generation, _)| generation == before.0);
                        partitioned |= member && matches!(why, NotFormed::Partitioned { .. });
                    }
                    ToRank::Ready | ToRank::Cut { .. } => {}
                    ToRank::Refused(_) | ToRank::Ping => prop_assert!(false, "{message:?}"),
                }
            }
        }
        // A round ends alike for all that are there.
        prop_assert!(ends.values().all(|end| end == ends.values().next().unwrap()));
        // Those that may live, as far as the world can know: all that were neither seen to end nor left.
        let gone = |rank: &u32| {
            let mut last = self.processes.iter().filter(|process| {
                process.rank == *rank && process.generation.is_some_and(|(generation, _)| generation == before.0)
            });
            last.all(|process| process.over)
        };
        if let Some(first) = new.first() {
            prop_assert!(new.iter().all(|formed| formed == first), "all members are told the same");
            members.sort_unstable();
            prop_assert_eq!(&members, &first.members, "each member is told once");
            prop_assert_ne!(first.generation, before.0);
            if first.members.len() < SIZE as usize {
                let old: Vec<u32> = before
                    .1
                    .iter()
                    .copied()
                    .filter(|rank| {
                        !first.members.contains(rank)
                            && !self.processes.iter().any(|process| {
                                process.rank == *rank
                                    && process.over
                                    && process.generation.is_some_and(|(generation, _)| generation == before.0)
                            })
                    })
                    .collect();
                prop_assert!(quorum::may_go_on(&first.members, &old), "{first:?} against {old:?}");
                prop_assert_eq!(&first.may_live, &old);
            }
        } else {
            prop_assert_eq!(self.world.generation(), before.0);
            if partitioned && survivors {
                let live: Vec<u32> = lived.iter().copied().filter(|rank| !gone(rank)).collect();
                for bits in 0u32..1 << live.len() {
                    let side: Vec<u32> = (0..live.len()).filter(|at| bits >> at & 1 == 1).map(|at| live[at]).collect();
                    let whole = side.iter().all(|a| side.iter().all(|b| !cuts.contains(&(*a, *b))));
                    let rest: Vec<u32> =
                        before.1.iter().copied().filter(|rank| !side.contains(rank) && !gone(rank)).collect();
                    prop_assert!(!whole || !quorum::may_go_on(&side, &rest), "{side:?} could have gone on");
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var("FULMEN_TEST_TIER").is_ok_and(|tier| tier == "full") { 20_000 } else { 1000 }))]

    /// Whatever ranks do: blobs never mix between rounds or generations, a round ends for all that are there or for none, all
    /// members of a generation are told the same, only majorities form one, and nobody waits for an answer for ever.
    #[test]
    fn any_sequence_of_acts_keeps_generations_whole(acts in acts()) {
        let mut model = Model { world: World::new(SIZE, [3; 32]), processes: Vec::new() };
        for rank in 0..SIZE {
            model.step(Act::Join(rank))?;
        }
        for act in acts {
            model.step(act)?;
        }
        for who in 0..model.processes.len() {
            model.step(Act::Fate(who))?;
        }
        for who in 0..model.processes.len() {
            model.step(Act::GiveUpRegroup(who))?;
            prop_assert!(!model.connected(who) || model.processes[who].asking.is_none(), "{who} waits");
        }
    }
}
