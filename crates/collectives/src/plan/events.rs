//! How long a call takes: its rounds, event by event, on processors and cables that do one thing after the other.
//!
//! A rank does what the implementation does: it copies what it sends, sends it, waits for what it is to get, and combines that; of a
//! call in several pieces, two are under way at a time. Each of these takes a processor of its host, and a rank does one at a time.
//! A message keeps each cable on its way busy for as long as its bytes take there, and processors at both ends. What passes it on
//! adds time alone.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::links::{Inside, Links};
use super::schedule::Schedule;
use super::traffic::{Rounds, Traffic};

/// When something happens, in microseconds; what happens at the same time happens in the order in which it was decided.
struct Event {
    at: f64,
    number: u64,
    what: What,
}

enum What {
    /// A rank's thread goes on.
    Run(usize),
    /// The first byte of a message comes to a rank's host; the last one comes at this time.
    Head { rank: usize, step: usize, bytes: usize, last: f64, inside: bool },
    /// It is there.
    Come { rank: usize, step: usize },
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    fn cmp(&self, other: &Event) -> Ordering {
        self.at.total_cmp(&other.at).then(self.number.cmp(&other.number))
    }
}

/// One step of a rank's thread.
#[derive(Clone, Copy)]
enum Op {
    Start(usize),
    End(usize),
}

/// A round of a piece.
struct Step {
    piece: usize,
    round: usize,
}

#[derive(Clone, Default)]
struct Rank {
    /// The op that comes next.
    next: usize,
    /// Of a start, how many messages have gone; none, if nothing was copied yet.
    sent: Option<usize>,
    /// It waits for messages.
    waits: bool,
    /// When it has done what it has begun: its thread and what comes for it do one thing after the other.
    free: f64,
    traffic: Option<Traffic>,
    ended: f64,
}

/// A run on so many pieces.
struct World<'a> {
    links: &'a Links,
    rounds: &'a Rounds,
    steps: Vec<Step>,
    schedules: Vec<Option<Schedule>>,
    ops: Vec<Op>,
    ranks: Vec<Rank>,
    /// By rank and step, messages that have come.
    came: Vec<Vec<u32>>,
    hosts: Vec<u32>,
    /// By host, when each of its processors is free that has worked, and whether it has more ranks than processors.
    processors: Vec<Vec<f64>>,
    crowded: Vec<bool>,
    /// By cable, when it is free.
    cables: Vec<f64>,
    /// Nanoseconds for a byte that is copied or combined, more than in the caches.
    uncached_ns: f64,
    events: BinaryHeap<Reverse<Event>>,
    number: u64,
}

/// Pieces that are run before the time of the others is told from theirs.
const PIECES: usize = 4;

/// How long a call takes, in microseconds, from when all ranks have called it until all have returned.
pub(crate) fn time(links: &Links, rounds: &Rounds) -> f64 {
    if rounds.ranks() < 2 {
        return 0.0;
    }
    let pieces = rounds.pieces();
    if pieces <= PIECES + 2 {
        return World::new(links, rounds, pieces).run();
    }
    // All pieces but the last are as long, and two of them are under way at a time.
    let (few, more) = (World::new(links, rounds, PIECES - 2).run(), World::new(links, rounds, PIECES).run());
    few + (pieces - (PIECES - 2)) as f64 / 2.0 * (more - few)
}

/// Less than a call takes, in microseconds: what one rank's processor does for its messages, and what cables do if all of them carry as
/// much; or rather half of it, since ranks at ends and roots do not send what one in the middle does.
pub(crate) fn least(links: &Links, rounds: &Rounds) -> f64 {
    let ranks = rounds.ranks();
    if ranks < 2 {
        return 0.0;
    }
    let hosts = rounds.hosts();
    let count = hosts.iter().max().map_or(0, |most| *most as usize + 1);
    let rank = ranks / 2;
    let (mut work, mut carried) = (0.0, 0.0);
    for piece in 0..rounds.pieces().min(PIECES) {
        let schedule = rounds.schedule(piece);
        for round in 0..rounds.rounds(piece) {
            let traffic = rounds.traffic(schedule.as_ref(), piece, rank, round);
            // Those that it receives may come from anywhere.
            work += traffic.receives as f64 * f64::min(message_us(links, false), message_us(links, true));
            for (to, bytes) in traffic.sends {
                work += message_us(links, hosts[to] == hosts[rank]);
                let way = links.way(hosts[rank] as usize, hosts[to] as usize, count);
                carried += way.iter().map(|(_, many)| bytes as f64 / *many as f64).sum::<f64>();
            }
        }
    }
    let cables = links.cables(count).max(1) as f64 / ranks as f64;
    let wire = links.bandwidth.map_or(0.0, |rate| carried / (rate * 1000.0) / cables);
    let factor = rounds.pieces() as f64 / rounds.pieces().min(PIECES) as f64;
    factor / 2.0 * f64::max(work, wire)
}

/// What a processor does for a message, whatever its bytes, within a host or between two.
fn message_us(links: &Links, inside: bool) -> f64 {
    links.inside.filter(|_| inside).map_or(links.message_us, |inside| inside.message_us)
}

impl<'a> World<'a> {
    fn new(links: &'a Links, rounds: &'a Rounds, pieces: usize) -> World<'a> {
        let (mut steps, mut ops) = (Vec::new(), Vec::new());
        // Two lanes take turns; each takes every other piece, and starts a round when it has ended the one before.
        let mut lanes = [(0, 0, None), (1, 0, None)];
        let mut live = true;
        while live {
            live = false;
            for (piece, round, started) in &mut lanes {
                ops.extend(started.take().map(Op::End));
                if *piece >= pieces {
                    continue;
                }
                live = true;
                *started = Some(steps.len());
                ops.push(Op::Start(steps.len()));
                steps.push(Step { piece: *piece, round: *round });
                *round += 1;
                if *round >= rounds.rounds(*piece) {
                    (*piece, *round) = (*piece + 2, 0);
                }
            }
        }
        let hosts = rounds.hosts().to_vec();
        let count = hosts.iter().max().map_or(0, |most| *most as usize + 1);
        World {
            links,
            rounds,
            schedules: (0..pieces).map(|piece| rounds.schedule(piece)).collect(),
            ranks: vec![Rank::default(); rounds.ranks()],
            came: vec![vec![0; steps.len()]; rounds.ranks()],
            steps,
            ops,
            processors: vec![Vec::new(); count],
            crowded: (0..count as u32)
                .map(|host| hosts.iter().filter(|other| **other == host).count() > links.processors)
                .collect(),
            cables: vec![0.0; links.cables(count)],
            uncached_ns: links.uncached(rounds.touched() / count.max(1)),
            hosts,
            events: BinaryHeap::new(),
            number: 0,
        }
    }

    fn run(mut self) -> f64 {
        for rank in 0..self.ranks.len() {
            self.at(0.0, What::Run(rank));
        }
        while let Some(Reverse(Event { at, what, .. })) = self.events.pop() {
            match what {
                What::Run(rank) => self.go_on(rank, at),
                What::Head { rank, step, bytes, last, inside } => {
                    let wake = if self.crowded[self.hosts[rank] as usize] { self.links.wake_us } else { 0.0 };
                    let done = self.work(rank, at, wake + self.bytes_us(bytes, inside));
                    // As long again until it has its turn among those that wait beside it.
                    self.at(done.max(last) + wake, What::Come { rank, step });
                }
                What::Come { rank, step } => {
                    self.came[rank][step] += 1;
                    if std::mem::take(&mut self.ranks[rank].waits) {
                        self.at(at, What::Run(rank));
                    }
                }
            }
        }
        self.ranks.iter().map(|rank| rank.ended).fold(0.0, f64::max)
    }

    fn at(&mut self, at: f64, what: What) {
        self.number += 1;
        self.events.push(Reverse(Event { at, number: self.number, what }));
    }

    /// Has a rank work for so long, from this time on or when it and a processor of its host are free. Returns when it is done.
    fn work(&mut self, rank: usize, from: f64, work: f64) -> f64 {
        if work == 0.0 {
            return from;
        }
        let from = from.max(self.ranks[rank].free);
        let processors = &mut self.processors[self.hosts[rank] as usize];
        let all_worked = processors.len() == self.links.processors;
        let done = match processors.iter_mut().min_by(|one, other| one.total_cmp(other)) {
            Some(free) if *free <= from || all_worked => {
                *free = free.max(from) + work;
                *free
            }
            _ => {
                processors.push(from + work);
                from + work
            }
        };
        self.ranks[rank].free = done;
        done
    }

    /// What a processor does for the bytes of a message.
    fn bytes_us(&self, bytes: usize, inside: bool) -> f64 {
        let each = match self.inside(inside) {
            Some(inside) => inside.byte_ns,
            None if self.is_offered(bytes) => self.links.offered_byte_ns,
            None => self.links.byte_ns,
        };
        each / 1000.0 * bytes as f64
    }

    fn is_offered(&self, bytes: usize) -> bool {
        self.links.offered_from.is_some_and(|from| bytes >= from)
    }

    fn inside(&self, inside: bool) -> Option<Inside> {
        self.links.inside.filter(|_| inside)
    }

    /// A rank's thread does one thing.
    fn go_on(&mut self, rank: usize, now: f64) {
        let Some(op) = self.ops.get(self.ranks[rank].next).copied() else {
            self.ranks[rank].ended = now;
            return;
        };
        let (Op::Start(number) | Op::End(number)) = op;
        let Step { piece, round } = self.steps[number];
        let traffic = self.ranks[rank].traffic.take();
        let traffic =
            traffic.unwrap_or_else(|| self.rounds.traffic(self.schedules[piece].as_ref(), piece, rank, round));
        let mut then = now;
        match op {
            Op::Start(_) => match self.ranks[rank].sent {
                None => {
                    let each = self.links.copy_ns * self.links.staging + self.uncached_ns;
                    then = self.work(rank, now, each / 1000.0 * traffic.staged as f64);
                    self.ranks[rank].sent = Some(0);
                }
                Some(sent) if sent < traffic.sends.len() => {
                    let (to, bytes) = traffic.sends[sent];
                    then = self.send(rank, to, bytes, number, now);
                    self.ranks[rank].sent = Some(sent + 1);
                }
                Some(_) => {
                    self.ranks[rank].sent = None;
                    self.ranks[rank].next += 1;
                    self.at(then, What::Run(rank));
                    return;
                }
            },
            Op::End(_) => {
                if (self.came[rank][number] as usize) < traffic.receives {
                    self.ranks[rank].waits = true;
                    self.ranks[rank].traffic = Some(traffic);
                    return;
                }
                let inside = self.links.inside.is_some() && self.hosts.iter().all(|other| *other == self.hosts[rank]);
                let work = traffic.receives as f64 * message_us(self.links, inside)
                    + (self.links.copy_ns + self.uncached_ns) / 1000.0 * traffic.copied as f64
                    + (self.links.reduce_ns + self.uncached_ns) / 1000.0 * traffic.combined as f64;
                then = self.work(rank, now, work);
                self.ranks[rank].next += 1;
                self.at(then, What::Run(rank));
                return;
            }
        }
        self.ranks[rank].traffic = Some(traffic);
        self.at(then, What::Run(rank));
    }

    /// Sends a message; returns when the sender's thread is done with it.
    fn send(&mut self, from: usize, to: usize, bytes: usize, step: usize, now: f64) -> f64 {
        let (host, other, hosts) = (self.hosts[from] as usize, self.hosts[to] as usize, self.processors.len());
        let inside = host == other;
        let (message, byte) = (message_us(self.links, inside), self.bytes_us(bytes, inside));
        let done = self.work(from, now, message + byte);
        let latency = self.inside(inside).map_or(self.links.latency_us, |inside| inside.latency_us);
        // What a sender does for a message besides, it does while that is on its way.
        let mut head = done - byte - message;
        if !(inside && self.links.inside.is_some()) && self.is_offered(bytes) {
            // An offer there and a grant back.
            head += 2.0 * (latency + message);
        }
        let (mut last, mut first) = (head + byte, true);
        for (cable, many) in self.links.way(host, other, hosts) {
            if !std::mem::take(&mut first) {
                head += self.links.hop_us;
                last += self.links.hop_us;
            }
            let wire = self.links.bandwidth.map_or(0.0, |rate| bytes as f64 / (rate * 1000.0 * many as f64));
            head = head.max(self.cables[cable]);
            self.cables[cable] = head + wire;
            last = last.max(head + wire);
        }
        let (head, last) = (head + latency, last.max(head) + latency);
        self.at(head, What::Head { rank: to, step, bytes, last, inside });
        done
    }
}
