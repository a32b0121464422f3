//! The coordinator's knowledge of its world, without any input or output: calls in, frames and events out.

use std::sync::Arc;

use super::coordinator::Event;
use super::message::{Failure, LossCause, LostRank, Refusal, Round, ToRank};
use super::wire::{Shared, head};

pub(super) struct World {
    generation: u64,
    seats: Vec<Seat>,
    /// All seats were taken once.
    complete: bool,
    /// The round that is open or comes next. Everybody's part of a round must be in before anybody hears of its end, so
    /// parts of only one round can be here.
    number: u64,
    round: Option<Round>,
    parts: Vec<Option<Shared>>,
    failure: Option<Failure>,
    /// What is to be sent to which rank, in order.
    pub outbox: Vec<(u32, Shared)>,
    pub events: Vec<Event>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seat {
    Empty,
    Taken { pid: u32 },
    Left,
    Lost,
}

/// What a rank did that the protocol does not allow.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Violation(pub &'static str);

impl World {
    pub fn new(size: u32, generation: u64) -> World {
        World {
            generation,
            seats: vec![Seat::Empty; size as usize],
            complete: false,
            number: 0,
            round: None,
            parts: vec![None; size as usize],
            failure: None,
            outbox: Vec::new(),
            events: Vec::new(),
        }
    }

    pub fn size(&self) -> u32 {
        self.seats.len() as u32
    }

    /// Gives a seat to a rank. After `Ok`, `rank` is below the size.
    pub fn join(&mut self, rank: u32, size: u32, pid: u32, silence_ms: u64) -> Result<(), Refusal> {
        let seat = self.seats.get(rank as usize).ok_or(Refusal::RankOutside { rank, size: self.size() })?;
        if size != self.size() {
            return Err(Refusal::WrongSize { rank, theirs: size, size: self.size() });
        }
        match *seat {
            Seat::Taken { pid: holder } => return Err(Refusal::DuplicateRank { rank, holder, pid }),
            Seat::Left => return Err(Refusal::RankLeft { rank }),
            Seat::Empty | Seat::Lost => {}
        }
        if let Some(failure) = &self.failure {
            return Err(Refusal::WorldFailed(failure.clone()));
        }
        self.seats[rank as usize] = Seat::Taken { pid };
        self.events.push(Event::Joined { rank, pid });
        self.send(rank, &ToRank::Welcome { generation: self.generation, silence_ms });
        if self.seats.iter().all(|seat| matches!(seat, Seat::Taken { .. })) {
            self.complete = true;
            self.events.push(Event::Complete);
            self.broadcast(&ToRank::Ready);
        }
        Ok(())
    }

    /// Takes a rank's part of a round; the last part ends it.
    pub fn contribute(&mut self, rank: u32, number: u64, round: Round, body: Vec<u8>) -> Result<(), Violation> {
        if self.failure.is_some() {
            // The rank was told, or is being told while its part is on the way.
            return Ok(());
        }
        if !self.complete || number != self.number || self.parts[rank as usize].is_some() {
            return Err(Violation("a part of a round that is not open"));
        }
        if round == Round::Barrier && !body.is_empty() {
            return Err(Violation("a blob in a barrier"));
        }
        if let Some(others) = self.round
            && others != round
        {
            self.fail(Failure::Mismatch { rank, called: round, others });
            return Ok(());
        }
        self.round = Some(round);
        self.parts[rank as usize] = Some(Arc::new(body));
        if let Some(gone) =
            self.seats.iter().zip(&self.parts).position(|(seat, part)| *seat == Seat::Left && part.is_none())
        {
            self.fail(Failure::Left { rank: gone as u32 });
        } else if self.parts.iter().all(Option::is_some) {
            self.finish(round);
        }
        Ok(())
    }

    /// A rank's deadline passed while it waited for the others to join (`None`) or for a round.
    pub fn give_up(&mut self, rank: u32, number: Option<u64>) -> Result<(), Violation> {
        if self.failure.is_some() {
            return Ok(());
        }
        let absent = |there: &dyn Fn(usize) -> bool| (0..self.size()).filter(|&rank| !there(rank as usize)).collect();
        match number {
            // The end is on its way to the rank, which waits for an answer and takes that one.
            None if self.complete => Ok(()),
            Some(number) if number < self.number => Ok(()),
            None => {
                let missing = absent(&|rank| self.seats[rank] != Seat::Empty);
                self.fail(Failure::GaveUp { by: rank, round: None, missing });
                Ok(())
            }
            Some(number) if number == self.number && self.parts[rank as usize].is_some() => {
                let missing = absent(&|rank| self.parts[rank].is_some());
                self.fail(Failure::GaveUp { by: rank, round: self.round, missing });
                Ok(())
            }
            Some(_) => Err(Violation("gave up in a round that it did not begin")),
        }
    }

    /// What connects two ranks is broken, says one of them. The other one is told, if it is still there.
    pub fn cut(&mut self, by: u32, rank: u32) -> Result<(), Violation> {
        if by == rank {
            return Err(Violation("a broken connection with itself"));
        }
        match self.seats.get(rank as usize) {
            None => Err(Violation("a broken connection with no rank")),
            Some(Seat::Taken { .. }) => {
                self.send(rank, &ToRank::Cut { rank: by });
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    /// A rank said goodbye.
    pub fn leave(&mut self, rank: u32) {
        self.seats[rank as usize] = Seat::Left;
        self.events.push(Event::Left { rank });
        let needed = !self.complete || (self.round.is_some() && self.parts[rank as usize].is_none());
        if needed && self.failure.is_none() {
            self.fail(Failure::Left { rank });
        }
    }

    /// A rank's connection ended without a goodbye.
    pub fn lose(&mut self, rank: u32, cause: LossCause) {
        let Seat::Taken { pid } = self.seats[rank as usize] else { return };
        self.seats[rank as usize] = Seat::Lost;
        let lost = LostRank { rank, pid, cause };
        self.broadcast(&ToRank::Lost(lost.clone()));
        self.events.push(Event::Lost(lost.clone()));
        if self.failure.is_none() {
            self.settle(Failure::Lost(lost));
        }
    }

    fn finish(&mut self, round: Round) {
        let number = self.number;
        match round {
            Round::Barrier => self.broadcast(&ToRank::Released { number }),
            Round::AllGather => {
                for rank in 0..self.size() {
                    let Some(body) = self.parts[rank as usize].take() else { continue };
                    let head = Arc::new(head(&ToRank::Blob { number, rank }, body.len()));
                    for to in self.taken() {
                        self.outbox.push((to, head.clone()));
                        if !body.is_empty() {
                            self.outbox.push((to, body.clone()));
                        }
                    }
                }
            }
        }
        self.number += 1;
        self.close_round();
    }

    fn fail(&mut self, failure: Failure) {
        self.broadcast(&ToRank::Failed(failure.clone()));
        self.events.push(Event::Failed(failure.clone()));
        self.settle(failure);
    }

    fn settle(&mut self, failure: Failure) {
        self.failure = Some(failure);
        self.close_round();
    }

    fn close_round(&mut self) {
        self.round = None;
        self.parts.fill(None);
    }

    fn taken(&self) -> Vec<u32> {
        (0..self.size()).filter(|&rank| matches!(self.seats[rank as usize], Seat::Taken { .. })).collect()
    }

    fn send(&mut self, rank: u32, message: &ToRank) {
        self.outbox.push((rank, Arc::new(head(message, 0))));
    }

    fn broadcast(&mut self, message: &ToRank) {
        let bytes = Arc::new(head(message, 0));
        for rank in self.taken() {
            self.outbox.push((rank, bytes.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::FROM_COORDINATOR;
    use super::super::wire::Decoder;
    use super::*;
    use proptest::prelude::*;

    /// What was sent to `rank` since the last call, and nothing else stays in the outbox of any rank.
    fn sent(world: &mut World, size: u32) -> Vec<Vec<(ToRank, Vec<u8>)>> {
        let mut decoders: Vec<_> = (0..size).map(|_| Decoder::new(FROM_COORDINATOR)).collect();
        for (to, bytes) in world.outbox.drain(..) {
            decoders[to as usize].push(&bytes);
        }
        let all = decoders.iter_mut().map(|decoder| {
            std::iter::from_fn(|| decoder.next().unwrap()).map(|frame| (frame.message().unwrap(), frame.body)).collect()
        });
        all.collect()
    }

    fn full(size: u32) -> World {
        let mut world = World::new(size, 9);
        for rank in 0..size {
            world.join(rank, size, 100 + rank, 1000).unwrap();
        }
        sent(&mut world, size);
        world
    }

    #[test]
    fn a_rank_that_leaves_after_its_part_does_not_spoil_the_round() {
        let mut world = full(2);
        world.contribute(0, 0, Round::AllGather, b"zero".to_vec()).unwrap();
        world.leave(0);
        world.contribute(1, 0, Round::AllGather, b"one".to_vec()).unwrap();
        let got = &sent(&mut world, 2)[1];
        assert_eq!(got.len(), 2);
        assert_eq!(got[0], (ToRank::Blob { number: 0, rank: 0 }, b"zero".to_vec()));
        // The next round needs rank 0 again.
        world.contribute(1, 1, Round::Barrier, Vec::new()).unwrap();
        assert_eq!(sent(&mut world, 2)[1][0].0, ToRank::Failed(Failure::Left { rank: 0 }));
    }

    #[test]
    fn a_deadline_that_crosses_the_end_of_the_round_is_ignored() {
        let mut world = full(2);
        world.contribute(0, 0, Round::Barrier, Vec::new()).unwrap();
        world.contribute(1, 0, Round::Barrier, Vec::new()).unwrap();
        world.give_up(0, Some(0)).unwrap();
        world.give_up(1, None).unwrap();
        assert!(world.failure.is_none());
        assert_eq!(sent(&mut world, 2)[0], [(ToRank::Released { number: 0 }, Vec::new())]);
    }

    #[test]
    fn a_cut_is_told_to_the_other_end_alone_and_fails_nothing() {
        let mut world = full(3);
        world.cut(0, 2).unwrap();
        let told = sent(&mut world, 3);
        assert_eq!(told[2], [(ToRank::Cut { rank: 0 }, Vec::new())]);
        assert!(told[0].is_empty() && told[1].is_empty() && world.failure.is_none());
        world.leave(2);
        world.cut(0, 2).unwrap();
        assert!(sent(&mut world, 3).iter().all(Vec::is_empty));
        assert!(world.cut(0, 0).is_err() && world.cut(0, 3).is_err());
    }

    #[test]
    fn what_a_rank_may_not_do_is_a_violation() {
        let mut early = World::new(2, 9);
        early.join(0, 2, 1, 1000).unwrap();
        assert!(early.contribute(0, 0, Round::Barrier, Vec::new()).is_err(), "before all have joined");
        let mut world = full(2);
        assert!(world.contribute(0, 1, Round::Barrier, Vec::new()).is_err(), "a round that is not open");
        assert!(world.contribute(0, 0, Round::Barrier, vec![1]).is_err(), "a blob in a barrier");
        assert!(world.give_up(0, Some(0)).is_err(), "a round that it did not begin");
        world.contribute(0, 0, Round::Barrier, Vec::new()).unwrap();
        assert!(world.contribute(0, 0, Round::Barrier, Vec::new()).is_err(), "twice");
    }

    #[derive(Debug, Clone)]
    enum Act {
        Join(u32),
        Contribute(u32, u64, bool),
        GiveUp(u32, Option<u64>),
        Leave(u32),
        Lose(u32),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            6 => (0..3u32).prop_map(Act::Join),
            12 => (0..3u32, 0..4u64, prop::bool::weighted(0.9)).prop_map(|(r, n, g)| Act::Contribute(r, n, g)),
            1 => (0..3u32, prop::option::of(0..3u64)).prop_map(|(r, n)| Act::GiveUp(r, n)),
            1 => (0..3u32).prop_map(Act::Leave),
            1 => (0..3u32).prop_map(Act::Lose),
        ];
        prop::collection::vec(act, 0..60)
    }

    proptest! {
        /// Whatever ranks do: a blob is never mixed between rounds, a round ends for all that are seated or for none, and after a
        /// failure no round ends.
        #[test]
        fn any_sequence_keeps_the_rounds_whole(acts in acts()) {
            let mut world = World::new(3, 9);
            let seated = |world: &World, rank: u32| matches!(world.seats[rank as usize], Seat::Taken { .. });
            for act in acts {
                let failed = world.failure.is_some();
                match act {
                    Act::Join(rank) => drop(world.join(rank, 3, rank, 1000)),
                    Act::Contribute(rank, number, gather) if seated(&world, rank) => {
                        let round = if gather { Round::AllGather } else { Round::Barrier };
                        let body = if gather { vec![rank as u8, number as u8] } else { Vec::new() };
                        drop(world.contribute(rank, number, round, body));
                    }
                    Act::GiveUp(rank, number) if seated(&world, rank) => drop(world.give_up(rank, number)),
                    Act::Leave(rank) if seated(&world, rank) => world.leave(rank),
                    Act::Lose(rank) => world.lose(rank, LossCause::Closed),
                    _ => {}
                }
                let taken = world.taken();
                let inboxes = sent(&mut world, 3);
                let ends: Vec<Vec<_>> = inboxes.iter().map(|inbox| {
                    let end = |m: &&(ToRank, Vec<u8>)| matches!(m.0, ToRank::Blob { .. } | ToRank::Released { .. });
                    inbox.iter().filter(end).collect()
                }).collect();
                for rank in taken {
                    prop_assert_eq!(&ends[rank as usize], ends.iter().max_by_key(|end| end.len()).unwrap());
                }
                for (message, body) in ends.iter().flatten() {
                    prop_assert!(!failed);
                    if let ToRank::Blob { number, rank } = message {
                        prop_assert_eq!(body, &vec![*rank as u8, *number as u8]);
                    }
                }
            }
        }
    }
}
