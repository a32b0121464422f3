//! Any sequence of acts of ranks, and what must hold after each.

use proptest::prelude::*;

use super::super::message::{Formed, NotFormed};
use super::tests::{ask, goodbye, sent};
use super::*;

const SIZE: u32 = 5;

#[derive(Debug, Clone)]
enum Act {
    Join(u32),
    Contribute(usize, bool),
    GiveUp(usize),
    Leave(usize),
    Kill(usize),
    Stop(usize),
    /// It answers a ping.
    Pong(usize),
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
        3 => who().prop_map(Act::Pong),
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
    pinged: bool,
    /// It was given up on, and has not been heard since.
    silent: bool,
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
            | Act::Pong(who)
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
                let kept = world.lose(who as u64, LossCause::Silent(1));
                (processes[who].hung_up, processes[who].silent) = (!kept, kept);
                world.fate(who as u64, false);
            }
            Act::Pong(who) => {
                if std::mem::take(&mut processes[who].pinged) {
                    processes[who].silent = false;
                    world.hear(who as u64, ToCoordinator::Pong, Vec::new()).unwrap();
                }
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
                    ToRank::Left { rank } => {
                        let launched = before.1.get(*rank as usize).copied();
                        prop_assert!(
                            launched.is_some_and(|launched| launched != process.rank),
                            "{rank} is no other member"
                        );
                    }
                    ToRank::Formed(formed) => {
                        prop_assert!(process.asking.take().is_some(), "{id} did not ask");
                        prop_assert!(!process.silent, "{id} may be gone");
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
                    ToRank::Ping => process.pinged = true,
                    ToRank::Refused(_) | ToRank::EndsWith { .. } => prop_assert!(false, "{message:?}"),
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
    #![proptest_config(ProptestConfig::with_cases(fulmen_testbed::by_tier(1000, 2000, 5000)))]

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
