//! From one generation to the next: who asks, who counts, who is a member.

use super::super::coordinator::Event;
use super::super::message::{Failure, Formed, LossCause, LostRank, NotFormed, Regroup, ToRank};
use super::quorum::{largest, may_go_on};
use super::{Ask, Client, Fate, Place, Violation, World};

impl World {
    /// A process has come for a seat whose last holder is gone: it waits until the others ask for everybody.
    pub(super) fn wait_for_seat(&mut self, id: u64, rank: u32, pid: u32, silence_ms: u64) {
        let ask = Some(Ask { attempt: 0, how: Regroup::Everybody });
        self.clients.insert(id, Client { rank, pid, ask });
        self.seats[rank as usize].candidate = Some(id);
        self.events.push(Event::Waits { rank, pid });
        self.send(id, ToRank::Waits { silence_ms });
        self.look();
    }

    /// A rank asks for a new generation.
    pub(super) fn ask(&mut self, id: u64, attempt: u64, how: Regroup) -> Result<(), Violation> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if !self.complete || client.ask.is_some() {
            return Err(Violation("asked for a new generation out of turn"));
        }
        let seat = client.rank;
        if let Some(rank) = self.member(id, self.generation) {
            let askers = self.askers();
            if let Some(others) = askers.iter().find_map(|(_, ask)| Some(ask.how).filter(|&others| others != how)) {
                let why = NotFormed::Mismatch { rank: seat, called: how, others };
                self.answer(id, attempt, why.clone());
                self.answer_all(why);
                return Ok(());
            }
            self.set_ask(id, Some(Ask { attempt, how }));
            if askers.is_empty() {
                self.broadcast(ToRank::Regrouping { rank });
                if self.failure.is_none() {
                    self.settle(Failure::Regrouping { rank });
                }
            }
        } else if how == Regroup::Survivors {
            self.left_behind(id, Some(Ask { attempt, how }));
        } else if let Some(holder) = self.holder(seat) {
            self.answer(id, attempt, NotFormed::Replaced { holder });
        } else {
            // It was given up on, and this may be the last that it said, which the network kept until now.
            self.set_ask(id, Some(Ask { attempt, how }));
            self.send(id, ToRank::Ping);
        }
        self.look();
        Ok(())
    }

    /// A rank has shown that it lives: if it was left behind and asks for its seat, it waits for it from now on.
    pub(super) fn shows_life(&mut self, id: u64) {
        let Some(&Client { rank, ask: Some(Ask { attempt, .. }), .. }) = self.clients.get(&id) else { return };
        let seat = &self.seats[rank as usize];
        if seat.place == Place::Taken(id) || seat.candidate == Some(id) {
            return;
        }
        if let Some(holder) = self.holder(rank) {
            self.set_ask(id, None);
            self.answer(id, attempt, NotFormed::Replaced { holder });
        } else {
            self.seats[rank as usize].candidate = Some(id);
            self.look();
        }
    }

    /// Answers a rank that is no member, or none any more: the others go on without it.
    pub(super) fn left_behind(&mut self, id: u64, ask: Option<Ask>) {
        if let Some((Ask { attempt, .. }, client)) = ask.zip(self.clients.get(&id)) {
            let (with, without) = (vec![client.rank], self.live());
            self.answer(id, attempt, NotFormed::Partitioned { with, without });
        }
    }

    /// A rank's deadline passed while it waited for a new generation. A member's deadline ends the attempt for all members that
    /// have asked; one of a rank outside is its own matter.
    pub(super) fn give_up_regroup(&mut self, id: u64, attempt: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        // What was answered already is on its way.
        let Some(Ask { how, .. }) = client.ask.filter(|ask| ask.attempt == attempt) else { return };
        let (by, live) = (client.rank, self.live());
        let asked = |seat: u32| self.asked(seat).is_some();
        let mut missing: Vec<u32> = live.iter().copied().filter(|&seat| !asked(seat)).collect();
        if how == Regroup::Everybody {
            missing.extend((0..self.size()).filter(|&seat| self.holder(seat).is_none()));
            missing.sort_unstable();
        }
        if missing.is_empty() && self.failing_fate() {
            // All are there, and the word on a process that has just ended comes in a moment.
            return;
        }
        let why = NotFormed::TimedOut { by, missing };
        if self.seats[by as usize].place == Place::Taken(id) {
            self.answer_all(why);
        } else {
            self.seats[by as usize].candidate.take_if(|candidate| *candidate == id);
            self.set_ask(id, None);
            self.answer(id, attempt, why);
        }
    }

    /// Forms the next generation if everything for it is there.
    pub(super) fn look(&mut self) {
        let live = self.live();
        let asks: Option<Vec<Regroup>> = live.iter().map(|&seat| self.asked(seat)).collect();
        let Some(asks) = asks.filter(|_| self.complete && !self.failing_fate()) else { return };
        // Where no member lives, nobody can object to those who wait.
        match asks.first().copied().unwrap_or(Regroup::Everybody) {
            Regroup::Everybody => {
                if (0..self.size()).all(|seat| self.holder(seat).is_some()) {
                    let gone: Vec<u32> = self.members.clone();
                    self.form((0..self.size()).collect(), &gone);
                }
            }
            Regroup::Survivors => {
                let members = largest(&live, &self.cuts);
                let apart = |seat: &u32| members.binary_search(seat).is_err();
                let gone: Vec<u32> = self.members.iter().copied().filter(apart).collect();
                let elsewhere: Vec<u32> = gone.iter().copied().filter(|&seat| self.may_live(seat)).collect();
                let goes_on = may_go_on(&members, &elsewhere);
                for &seat in &live {
                    if goes_on && !apart(&seat) {
                        continue;
                    }
                    let cut = |other: u32| self.cuts.contains(&(seat.min(other), seat.max(other)));
                    let same = |&other: &u32| apart(&other) == apart(&seat) && !cut(other);
                    let with: Vec<u32> = live.iter().copied().filter(same).collect();
                    let all = members.iter().chain(&elsewhere).copied();
                    let mut without: Vec<u32> = all.filter(|other| !with.contains(other)).collect();
                    without.sort_unstable();
                    self.answer_seat(seat, NotFormed::Partitioned { with, without });
                }
                if goes_on {
                    self.form(members, &gone);
                }
            }
        }
    }

    /// Makes `members` the next generation, of whoever holds their seats; `gone` are members of the last one that may have been
    /// lost.
    fn form(&mut self, members: Vec<u32>, gone: &[u32]) {
        let (mut failed, mut may_live) = (Vec::new(), Vec::new());
        for &rank in gone {
            match &self.seats[rank as usize].place {
                Place::Lost { id, pid, cause, fate } => {
                    failed.push(LostRank { rank, pid: *pid, cause: cause.clone() });
                    let back = self.seats[rank as usize].candidate == Some(*id) && members.contains(&rank);
                    if *fate != Fate::Ended && !back {
                        may_live.push(rank);
                    }
                }
                Place::Taken(id) if !members.contains(&rank) => {
                    let pid = self.clients.get(id).map_or(0, |client| client.pid);
                    failed.push(LostRank { rank, pid, cause: LossCause::CutOff });
                    may_live.push(rank);
                }
                _ => {}
            }
        }
        for rank in 0..self.size() {
            let seat = &mut self.seats[rank as usize];
            seat.place = match seat.place {
                _ if members.binary_search(&rank).is_err() => Place::Empty,
                Place::Taken(id) => Place::Taken(id),
                _ => seat.candidate.take().map_or(Place::Empty, Place::Taken),
            };
            if let Place::Taken(id) = seat.place {
                self.set_ask(id, None);
            }
        }
        self.generation = self.next_generation();
        self.members = members.clone();
        self.number = 0;
        self.round = None;
        self.parts = vec![None; members.len()];
        self.failure = None;
        self.cuts.clear();
        let formed = Formed { generation: self.generation, members, failed, may_live };
        self.events.push(Event::Formed(formed.clone()));
        self.broadcast(ToRank::Formed(formed));
    }

    pub(super) fn next_generation(&mut self) -> u64 {
        self.formed += 1;
        let hash = blake3::keyed_hash(&self.seed, &self.formed.to_le_bytes());
        let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// The members of this generation that live, by rank of the launch.
    fn live(&self) -> Vec<u32> {
        (0..self.size()).filter(|&seat| matches!(self.seats[seat as usize].place, Place::Taken(_))).collect()
    }

    /// What a live member has asked for.
    fn asked(&self, seat: u32) -> Option<Regroup> {
        let Place::Taken(id) = self.seats[seat as usize].place else { return None };
        self.clients.get(&id)?.ask.map(|ask| ask.how)
    }

    /// The process that has a seat now or in the next generation of everybody.
    fn holder(&self, seat: u32) -> Option<u32> {
        let seat = &self.seats[seat as usize];
        let id = if let Place::Taken(id) = seat.place { Some(id) } else { seat.candidate };
        Some(self.clients.get(&id?)?.pid)
    }

    /// Whether it is still to be heard what became of a process.
    fn failing_fate(&self) -> bool {
        self.seats.iter().any(|seat| matches!(seat.place, Place::Lost { fate: Fate::Unknown, .. }))
    }

    fn may_live(&self, seat: u32) -> bool {
        match &self.seats[seat as usize].place {
            Place::Taken(_) => true,
            Place::Lost { fate, .. } => *fate != Fate::Ended,
            Place::Empty | Place::Left => false,
        }
    }

    /// The members that have asked: their connections, and for what.
    fn askers(&self) -> Vec<(u64, Ask)> {
        self.taken().iter().filter_map(|id| Some((*id, self.clients.get(id)?.ask?))).collect()
    }

    fn set_ask(&mut self, id: u64, ask: Option<Ask>) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.ask = ask;
        }
    }

    fn answer(&mut self, id: u64, attempt: u64, why: NotFormed) {
        self.send(id, ToRank::NotFormed { attempt, why });
    }

    /// Ends what a live member has asked for.
    fn answer_seat(&mut self, seat: u32, why: NotFormed) {
        if let Place::Taken(id) = self.seats[seat as usize].place
            && let Some(ask) = self.clients.get_mut(&id).and_then(|client| client.ask.take())
        {
            self.answer(id, ask.attempt, why);
        }
    }

    /// Ends what the members have asked for.
    fn answer_all(&mut self, why: NotFormed) {
        for (id, ask) in self.askers() {
            self.set_ask(id, None);
            self.answer(id, ask.attempt, why.clone());
        }
    }
}
