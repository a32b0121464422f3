//! The coordinator's knowledge of its world, without any input or output: calls in, messages and events out.
//!
//! Whoever drives it numbers the connections, hands it what ranks say and how connections end, and tells of each lost rank
//! whether its process has ended ([`World::fate`]). It knows no clock: ranks themselves say when they give up.

mod quorum;
mod regroup;
#[cfg(test)]
mod sequences;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::coordinator::Event;
use super::message::{Failure, LossCause, LostRank, Refusal, Regroup, Round, ToCoordinator, ToRank};

/// The seats of a world, and the generation that they form.
#[derive(Debug)]
pub struct World {
    seed: [u8; 32],
    /// How many generations there were.
    formed: u64,
    generation: u64,
    /// By rank of the launch.
    seats: Vec<Seat>,
    /// The processes that have asked for a seat and are connected.
    clients: BTreeMap<u64, Client>,
    /// The ranks of the launch that the current generation consists of, in order.
    members: Vec<u32>,
    /// All seats were taken once.
    complete: bool,
    /// The rank with whose process the world ends.
    ends_with: Option<u32>,
    /// The round that is open or comes next. Everybody's part of a round must be in before anybody hears of its end, so
    /// parts of only one round can be here.
    number: u64,
    round: Option<Round>,
    parts: Vec<Option<Arc<Vec<u8>>>>,
    failure: Option<Failure>,
    /// Live members that do not reach each other, by rank of the launch, the lower one first.
    cuts: BTreeSet<(u32, u32)>,
    /// What is to be sent, in order.
    pub outbox: Vec<Output>,
    /// What has happened, in order.
    pub events: Vec<Event>,
}

/// A message for some connections.
#[derive(Debug, Clone)]
pub struct Output {
    /// Their numbers.
    pub to: Arc<[u64]>,
    /// The message.
    pub message: ToRank,
    /// What follows it, often nothing.
    pub body: Arc<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Seat {
    place: Place,
    /// Who has the seat in the next generation of everybody.
    candidate: Option<u64>,
}

/// Who has a seat in the current generation.
#[derive(Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Empty,
    Taken(u64),
    Left,
    Lost {
        id: u64,
        pid: u32,
        cause: LossCause,
        fate: Fate,
    },
}

/// What became of a lost rank's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Its connection has just ended; most often its process is about to.
    Unknown,
    MayLive,
    Ended,
}

#[derive(Debug)]
struct Client {
    rank: u32,
    pid: u32,
    ask: Option<Ask>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ask {
    attempt: u64,
    how: Regroup,
}

/// What a rank did that the protocol does not allow.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

impl World {
    /// An empty world. Generations get their numbers from `seed`, which must be as random as they are to be.
    pub fn new(size: u32, seed: [u8; 32]) -> World {
        let seats = (0..size).map(|_| Seat::default()).collect();
        let mut world = World {
            seed,
            formed: 0,
            generation: 0,
            seats,
            clients: BTreeMap::new(),
            members: (0..size).collect(),
            complete: false,
            ends_with: None,
            number: 0,
            round: None,
            parts: vec![None; size as usize],
            failure: None,
            cuts: BTreeSet::new(),
            outbox: Vec::new(),
            events: Vec::new(),
        };
        world.generation = world.next_generation();
        world
    }

    /// The world ends with the process of this rank. Nobody comes back to it who has left, since whoever comes under the same
    /// rank later is of the next program with the same launcher's variables; and nobody comes at all once that rank has left.
    pub fn ending_with(self, rank: Option<u32>) -> World {
        World { ends_with: rank, ..self }
    }

    /// How many ranks were launched.
    pub fn size(&self) -> u32 {
        self.seats.len() as u32
    }

    /// The number of the current generation.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The ranks of the launch that the current generation consists of.
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// A process asks for a seat on connection `id`, which is new. After `Ok` the connection is one of the world's.
    pub fn join(&mut self, id: u64, rank: u32, size: u32, pid: u32, silence_ms: u64) -> Result<(), Refusal> {
        let seat = self.seats.get(rank as usize).ok_or(Refusal::RankOutside { rank, size: self.size() })?;
        if size != self.size() {
            return Err(Refusal::WrongSize { rank, theirs: size, size: self.size() });
        }
        let has_left = |rank: u32| self.seats.get(rank as usize).is_some_and(|seat| seat.place == Place::Left);
        if let Some(rank) = self.ends_with.filter(|&rank| self.complete && has_left(rank)) {
            return Err(Refusal::RankLeft { rank });
        }
        let holder = match seat.place {
            Place::Taken(holder) => Some(holder),
            Place::Left if !self.complete || self.ends_with.is_some() => return Err(Refusal::RankLeft { rank }),
            _ => seat.candidate,
        };
        if let Some(holder) = holder.and_then(|holder| self.clients.get(&holder)) {
            return Err(Refusal::DuplicateRank { rank, holder: holder.pid, pid });
        }
        if self.complete {
            self.wait_for_seat(id, rank, pid, silence_ms);
            return Ok(());
        }
        if let Some(failure) = &self.failure {
            return Err(Refusal::WorldFailed(failure.clone()));
        }
        self.clients.insert(id, Client { rank, pid, ask: None });
        self.seats[rank as usize].place = Place::Taken(id);
        self.events.push(Event::Joined { rank, pid });
        self.send(id, ToRank::Welcome { generation: self.generation, silence_ms });
        if self.seats.iter().all(|seat| matches!(seat.place, Place::Taken(_))) {
            self.complete = true;
            self.events.push(Event::Complete);
            self.broadcast(ToRank::Ready);
        }
        Ok(())
    }

    /// Takes a message of a connection of this world other than the one that asks for its seat. After a goodbye, and after
    /// a violation once [`World::lose`] was told of it, the world has forgotten the connection.
    pub fn hear(&mut self, id: u64, message: ToCoordinator, body: Vec<u8>) -> Result<(), Violation> {
        match message {
            ToCoordinator::Join { .. } => return Err(Violation("asked for a second seat")),
            ToCoordinator::Pong => self.shows_life(id),
            ToCoordinator::Goodbye => self.leave(id),
            ToCoordinator::Regroup { attempt, how } => return self.ask(id, attempt, how),
            ToCoordinator::GiveUpRegroup { attempt } => self.give_up_regroup(id, attempt),
            ToCoordinator::Contribute { generation, number, round } => {
                if let Some(rank) = self.member(id, generation) {
                    return self.contribute(rank, number, round, body);
                }
            }
            ToCoordinator::GiveUp { generation, number } => {
                if let Some(rank) = self.member(id, generation) {
                    return self.give_up(rank, number);
                }
            }
            ToCoordinator::Cut { generation, rank: other } => {
                if let Some(rank) = self.member(id, generation) {
                    return self.cut(rank, other);
                }
            }
        }
        Ok(())
    }

    /// Takes a rank's part of a round; the last part ends it.
    fn contribute(&mut self, rank: u32, number: u64, round: Round, body: Vec<u8>) -> Result<(), Violation> {
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
        let gone = |rank: u32| *self.place(rank) == Place::Left && self.parts[rank as usize].is_none();
        if let Some(gone) = self.ranks().find(|&rank| gone(rank)) {
            self.fail(Failure::Left { rank: gone });
        } else if self.parts.iter().all(Option::is_some) {
            self.finish(round);
        }
        Ok(())
    }

    /// A rank's deadline passed while it waited for the others to join (`None`) or for a round.
    fn give_up(&mut self, rank: u32, number: Option<u64>) -> Result<(), Violation> {
        if self.failure.is_some() {
            return Ok(());
        }
        match number {
            // The end is on its way to the rank, which waits for an answer and takes that one.
            None if self.complete => Ok(()),
            Some(number) if number < self.number => Ok(()),
            None => {
                let missing = self.ranks().filter(|&rank| *self.place(rank) == Place::Empty).collect();
                self.fail(Failure::GaveUp { by: rank, round: None, missing });
                Ok(())
            }
            Some(number) if number == self.number && self.parts[rank as usize].is_some() => {
                let missing = self.ranks().filter(|&rank| self.parts[rank as usize].is_none()).collect();
                self.fail(Failure::GaveUp { by: rank, round: self.round, missing });
                Ok(())
            }
            Some(_) => Err(Violation("gave up in a round that it did not begin")),
        }
    }

    /// What connects two ranks is broken, says one of them. The other one is told, if it is still there.
    fn cut(&mut self, by: u32, rank: u32) -> Result<(), Violation> {
        if by == rank {
            return Err(Violation("a broken connection with itself"));
        }
        if rank as usize >= self.members.len() {
            return Err(Violation("a broken connection with no rank"));
        }
        if let Place::Taken(other) = *self.place(rank) {
            let (one, two) = (self.members[by as usize], self.members[rank as usize]);
            self.cuts.insert((one.min(two), one.max(two)));
            self.send(other, ToRank::Cut { rank: by });
        }
        Ok(())
    }

    /// A rank said goodbye.
    fn leave(&mut self, id: u64) {
        let Some(Client { rank: seat, .. }) = self.clients.remove(&id) else { return };
        let at = &mut self.seats[seat as usize];
        at.candidate.take_if(|candidate| *candidate == id);
        if at.place == Place::Taken(id) {
            at.place = Place::Left;
            if let Ok(rank) = self.members.binary_search(&seat) {
                let rank = rank as u32;
                self.events.push(Event::Left { rank: seat });
                if self.complete {
                    self.broadcast(ToRank::Left { rank });
                }
                let needed = !self.complete || (self.round.is_some() && self.parts[rank as usize].is_none());
                if needed && self.failure.is_none() {
                    self.fail(Failure::Left { rank });
                }
            }
        } else if let Place::Lost { id: lost, fate, .. } = &mut at.place
            && *lost == id
        {
            // It was taken for dead, and ended in order.
            *fate = Fate::Ended;
        }
        self.look();
    }

    /// A connection ended without a goodbye, or has been silent for too long. `true` if it is to be kept: a silent process may
    /// only have been stopped, and learns on it that it was lost.
    pub fn lose(&mut self, id: u64, cause: LossCause) -> bool {
        let Some(&Client { rank: seat, pid, .. }) = self.clients.get(&id) else { return false };
        let silent = matches!(cause, LossCause::Silent(_));
        let at = &mut self.seats[seat as usize];
        let keep = if at.candidate == Some(id) {
            at.candidate = None;
            false
        } else if at.place == Place::Taken(id) {
            at.place = Place::Lost { id, pid, cause: cause.clone(), fate: Fate::Unknown };
            let rank = self.members.binary_search(&seat).map_or(seat, |rank| rank as u32);
            let lost = LostRank { rank, pid, cause };
            self.broadcast(ToRank::Lost(lost.clone()));
            self.events.push(Event::Lost(LostRank { rank: seat, ..lost.clone() }));
            if silent {
                self.send(id, ToRank::Lost(lost.clone()));
            }
            if self.failure.is_none() {
                self.settle(Failure::Lost(lost));
            }
            silent
        } else {
            silent
        };
        match self.clients.get_mut(&id).filter(|_| keep) {
            Some(client) => {
                let ask = client.ask.take();
                self.left_behind(id, ask);
            }
            None => drop(self.clients.remove(&id)),
        }
        self.look();
        keep
    }

    /// Whether the process behind a lost connection has ended. Until it is known, or given up to find out (`false`), there is no
    /// new generation. What is said later than that still counts for the next attempt.
    pub fn fate(&mut self, id: u64, ended: bool) {
        let known = self.seats.iter_mut().find_map(|seat| match &mut seat.place {
            Place::Lost { id: lost, fate, .. } if *lost == id && *fate != Fate::Ended => Some(fate),
            _ => None,
        });
        if let Some(fate) = known {
            *fate = if ended { Fate::Ended } else { Fate::MayLive };
            self.look();
        }
    }

    /// Whether [`World::fate`] of this connection is still of interest.
    pub fn wants_fate(&self, id: u64) -> bool {
        let wanted =
            |place: &Place| matches!(place, Place::Lost { id: lost, fate, .. } if *lost == id && *fate != Fate::Ended);
        self.seats.iter().any(|seat| wanted(&seat.place))
    }

    fn finish(&mut self, round: Round) {
        let number = self.number;
        let to = self.taken();
        match round {
            Round::Barrier => self.broadcast(ToRank::Released { number }),
            Round::AllGather => {
                for rank in self.ranks() {
                    let Some(body) = self.parts[rank as usize].take() else { continue };
                    self.outbox.push(Output { to: to.clone(), message: ToRank::Blob { number, rank }, body });
                }
            }
        }
        self.number += 1;
        self.close_round();
    }

    fn fail(&mut self, failure: Failure) {
        self.broadcast(ToRank::Failed(failure.clone()));
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

    /// The rank of a live member in the current generation, if that is the one that is meant.
    fn member(&self, id: u64, generation: u64) -> Option<u32> {
        let seat = self.clients.get(&id)?.rank;
        let taken = self.generation == generation && self.seats[seat as usize].place == Place::Taken(id);
        taken.then(|| self.members.binary_search(&seat).ok()).flatten().map(|rank| rank as u32)
    }

    /// The ranks of this generation.
    fn ranks(&self) -> std::ops::Range<u32> {
        0..self.members.len() as u32
    }

    fn place(&self, rank: u32) -> &Place {
        &self.seats[self.members[rank as usize] as usize].place
    }

    /// The connections of the live members.
    fn taken(&self) -> Arc<[u64]> {
        self.seats.iter().filter_map(|seat| if let Place::Taken(id) = seat.place { Some(id) } else { None }).collect()
    }

    fn send(&mut self, id: u64, message: ToRank) {
        self.outbox.push(Output { to: Arc::new([id]), message, body: Arc::default() });
    }

    fn broadcast(&mut self, message: ToRank) {
        self.outbox.push(Output { to: self.taken(), message, body: Arc::default() });
    }
}
