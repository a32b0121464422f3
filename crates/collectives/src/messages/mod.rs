//! Collectives by messages, where ranks do not map one another's memory.
//!
//! A call begins with a message from everybody to everybody: a header, which says what is called, and what the other rank
//! needs first. What is short is all there. Longer ones follow in segments, so that the memory under way is bounded whatever
//! the length: of an all-reduce, each rank reduces its share of a segment, in rank order, and sends the result to all. The next
//! segment's data is on its way meanwhile, so that no way is waited for alone. Short calls of many ranks go in [`rounds`]
//! instead, and all-reduces that are a little longer by TCP pass on their [`shares`].
//!
//! Data passes through memory of the group, not the caller's: whatever happens, no message touches the caller's memory
//! once a call has returned. A rank that fails tells all others, which look for that whenever they wait.

mod choice;
mod exchange;
mod hosts;
mod passing;
mod rounds;
mod shares;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fulmen_fabric::{FabricError, Operation};
use fulmen_kernels::{Source, Stores};
use fulmen_memory::Exposed;

use self::exchange::Exchange;
use crate::CollectiveError;
use crate::call::Call;
use crate::plan::{Algorithm, Planner};
use crate::request::Request;
use crate::team::Team;
use crate::windows::{Ongoing, Progress};

pub(crate) use self::hosts::{Nearby, column_share};
pub(crate) use self::rounds::{block, rounds};
pub(crate) use self::shares::{has_passed_shares, share_slots};

/// The tags of groups have this bit, the group's number above these two, and what the message is; programs' tags are
/// below 2^48.
const TAG: u64 = 1 << 63;
const HEADER_TAG: u64 = 0;
const DATA_TAG: u64 = 1;
const POISON_TAG: u64 = 2;
const FORWARD_TAG: u64 = 3;
const GROUP: u32 = 2;
/// So much of a group's number is in its tags, below their labels.
const GROUPS: u64 = 1 << 46;

/// Bytes of a header: the call, and which one it is.
pub(crate) const HEADER: usize = 24;
/// Before each segment there is room for one, and segments stay aligned.
pub(crate) const LEAD: usize = 64;

/// The longest contribution that is passed on whole: rooms for it are there whatever is called.
pub(crate) const SHORT: usize = 4 << 10;

/// Bytes of all ranks' segments together, of which a group has four times as many. However many ranks there are, they take
/// no more.
const SEGMENTS: usize = 4 << 20;
/// The longest segment, before the room for a header,
const LONGEST: usize = 256 << 10;
/// and the shortest, in which a short contribution has room.
const SHORTEST: usize = 8 << 10;

/// The longest message: what may be under way to one of so many ranks at a time.
pub(crate) fn segment(ranks: usize) -> usize {
    (SEGMENTS / ranks.max(1)).clamp(SHORTEST, LONGEST) / 64 * 64
}

/// Bytes for a piece that is passed on: half of what is left of the group's memory if everybody greets.
pub(crate) fn lane(ranks: usize) -> usize {
    (ranks + 1) * (LEAD + segment(ranks)) / 2 / 64 * 64 - LEAD
}

/// The longest text that tells why a rank failed.
const TEXT: usize = 504;
/// Before it is the sequence of the call in which it did.
const SEQUENCE: usize = 8;
const POISON: usize = SEQUENCE + TEXT;

/// The pieces of an all-reduce of which ranks reduce shares, one after the other.
pub(crate) fn pieces(len: usize, ranks: usize) -> impl Iterator<Item = Range<usize>> {
    let step = ranks * segment(ranks);
    (0..len).step_by(step).map(move |start| start..(start + step).min(len))
}

/// The part of such a piece that a rank reduces.
pub(crate) fn share(piece: &Range<usize>, ranks: usize, rank: usize) -> Range<usize> {
    let each = piece.len().div_ceil(ranks).next_multiple_of(64);
    let start = (piece.start + rank * each).min(piece.end);
    start..(start + each).min(piece.end)
}

/// The header of a call.
fn header(call: &Call, ongoing: &Ongoing<'_>) -> [u8; HEADER] {
    let words = call.encode(0);
    let mut header = [0; HEADER];
    for (to, word) in header.chunks_exact_mut(8).zip([ongoing.sequence, words[0], words[1]]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    header
}

/// Half of the group's memory: two pieces are under way at a time.
#[derive(Clone, Copy)]
struct Half(usize);

fn halves() -> impl Iterator<Item = Half> {
    [Half(0), Half(1)].into_iter().cycle()
}

pub(crate) struct Messages {
    team: Team,
    rank: usize,
    size: usize,
    /// Bytes of a segment.
    segment: usize,
    /// Of the group, in all of its tags.
    tag: u64,
    /// A segment for each rank, twice.
    outgoing: Exposed,
    /// A segment from each rank, twice.
    incoming: Exposed,
    /// Of each rank, in which call it failed, and why.
    poison: Exposed,
    /// By rank, what is known of its failure.
    failures: Mutex<Vec<Failure>>,
    planner: Box<Planner>,
    /// Where ranks of one host map one another's memory.
    nearby: Option<Box<Nearby>>,
}

/// A piece of an all-reduce of which everybody's share is on its way.
struct Shares<'a> {
    exchange: Exchange<'a>,
    piece: Range<usize>,
    /// With the headers of the call.
    first: bool,
}

enum Failure {
    /// It is told if it fails.
    Awaited(Operation),
    /// It has told that it failed in this call, in so many bytes.
    Told { sequence: u64, text: usize },
    /// It tells nothing, or nothing more.
    Silent,
}

impl Messages {
    /// `number` tells the group's messages between two ranks from those of all other groups. `nearby` is there on all ranks or on none.
    pub(crate) fn new(team: Team, number: u64, nearby: Option<Nearby>) -> Result<Messages, CollectiveError> {
        let (fabric, rank, size) = (&team.fabric, team.rank(), team.size());
        let segment = segment(size);
        let planner = Planner::new(fabric, team.ranks(), nearby.is_some())
            .map_err(|problem| CollectiveError::invalid("group", problem.to_string()))?;
        let tag = TAG | (number % GROUPS) << GROUP;
        let memory = |each: usize| Ok::<_, FabricError>(fabric.alloc(size * each)?.into_exposed());
        let poison = memory(POISON)?;
        let mut failures = Vec::new();
        for peer in 0..size {
            let text = poison.slice(peer * POISON..(peer + 1) * POISON);
            failures.push(match peer == rank {
                true => Failure::Silent,
                false => Failure::Awaited(fabric.start_recv(team.in_fabric(peer), tag | POISON_TAG, &text)?),
            });
        }
        let (outgoing, incoming) = (memory(2 * (LEAD + segment))?, memory(2 * (LEAD + segment))?);
        let failures = Mutex::new(failures);
        Ok(Messages {
            team,
            rank,
            size,
            segment,
            tag,
            outgoing,
            incoming,
            poison,
            failures,
            planner: planner.into(),
            nearby: nearby.map(Box::new),
        })
    }

    /// Runs one call to its end.
    pub(crate) fn run(
        &self,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        let sequence = ongoing.sequence;
        let failed = || {
            self.team.fabric.progress();
            self.check_poison(sequence)
        };
        // A peer may have failed in this call, whose header has come all the same.
        failed()?;
        self.attempt(request, ongoing, progress).map_err(|error| match error {
            // Why a peer went says more than that it did.
            CollectiveError::Fabric(_) => failed().err().unwrap_or(error),
            other => other,
        })
    }

    fn attempt(
        &self,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        let algorithm = request.call.algorithm.unwrap_or(Algorithm::Whole);
        if let (Algorithm::Hosts, Some(nearby)) = (algorithm, &self.nearby) {
            return self.by_hosts(nearby, request, ongoing, progress);
        }
        self.note(request, ongoing, progress)?;
        match algorithm {
            Algorithm::Rounds => return self.pass_on(request, ongoing),
            Algorithm::PassedShares => return self.pass_on_shares(request, ongoing),
            Algorithm::Whole | Algorithm::Shares => {}
            _ => {
                let passing = self.wanted(request).passing(algorithm, self.size);
                return self.run_passing(&passing.expect("it passes on"), request, ongoing);
            }
        }
        // The first piece travels with the headers.
        let mut first = true;
        if algorithm == Algorithm::Shares {
            // While ranks wait for the shares of a piece, or for its results, the next one's shares are on their way.
            let (mut shares, mut results) = (None, None);
            for (half, piece) in halves().zip(pieces(request.vector(), self.size)) {
                if let Some(results) = results.take() {
                    self.end_results(results, request, ongoing)?;
                }
                let next = self.start_shares(request, ongoing, half, piece, first)?;
                if let Some(shares) = shares.replace(next) {
                    results = Some(self.reduce(shares, request, ongoing)?);
                }
                first = false;
            }
            let last = shares.map(|shares| self.reduce(shares, request, ongoing)).transpose()?;
            return results.into_iter().chain(last).try_for_each(|results| self.end_results(results, request, ongoing));
        }
        let mut before = None;
        // What has no bytes is called, too.
        let span = request.span();
        let segments = (0..span.max(1)).step_by(self.segment);
        let segments = segments.map(|start| start..(start + self.segment).min(span));
        for (half, piece) in halves().zip(segments) {
            let exchange = self.start_piece(request, ongoing, half, piece.clone(), first)?;
            if let Some((exchange, piece, first)) = before.replace((exchange, piece, first)) {
                self.end_piece(exchange, piece, request, ongoing, first)?;
            }
            first = false;
        }
        before.map_or(Ok(()), |(exchange, piece, first)| self.end_piece(exchange, piece, request, ongoing, first))
    }

    /// Tells all other ranks that this one has failed in this call.
    pub(crate) fn poison(&self, sequence: u64, why: &str) {
        if let Some(nearby) = &self.nearby {
            nearby.poison(sequence, why);
        }
        let text = &why[..why.floor_char_boundary(TEXT)];
        let start = self.rank * POISON;
        self.poison.write(start, &sequence.to_le_bytes());
        self.poison.write(start + SEQUENCE, text.as_bytes());
        let text = self.poison.slice(start..start + SEQUENCE + text.len());
        for peer in self.peers() {
            // It goes on by itself. A peer that is not there any more needs not be told.
            drop(self.team.fabric.start_send(self.team.in_fabric(peer), self.tag | POISON_TAG, &text));
        }
    }

    /// Takes what came with the headers of all ranks, of which each is to have brought so many bytes, and compares their calls.
    fn compare(
        &self,
        first: &mut Exchange<'_>,
        expected: impl Fn(usize) -> usize,
        request: &Request<'_>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let half = first.half;
        let lens = first.receive_all(ongoing)?;
        for peer in self.peers() {
            let at = self.at(half, peer) - HEADER;
            self.check_header(at, (peer, lens[peer]), HEADER + expected(peer), request, ongoing)?;
        }
        Ok(())
    }

    /// Checks that a rank has called the same: its header came `at` this place, and with it `came` bytes in all, which must be
    /// as many as expected.
    fn check_header(
        &self,
        at: usize,
        (rank, came): (usize, usize),
        expected: usize,
        request: &Request<'_>,
        ongoing: &Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let mut header = [0; HEADER];
        self.incoming.read(at, &mut header);
        let word = |at: usize| u64::from_le_bytes(header[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        let theirs = [word(1), word(2)];
        if came == expected && word(0) == ongoing.sequence && Call::is_same(request.call.encode(0), theirs) {
            return Ok(());
        }
        Err(CollectiveError::Mismatch {
            operation: ongoing.operation,
            sequence: ongoing.sequence,
            mine: request.call.to_string(),
            theirs: if came < HEADER { "something unknown".into() } else { Call::describe(theirs) },
            rank: rank as u32,
        })
    }

    /// Begins one piece of what needs one exchange: everybody sends everybody what that rank needs.
    fn start_piece(
        &self,
        request: &Request<'_>,
        ongoing: &Ongoing<'_>,
        half: Half,
        piece: Range<usize>,
        first: bool,
    ) -> Result<Exchange<'_>, CollectiveError> {
        let call = request.call;
        let mut exchange = Exchange::new(self, if first { HEADER_TAG } else { DATA_TAG }, half);
        for peer in self.peers() {
            if first {
                exchange.recv_first(peer)?;
            } else if let len @ 1.. = self.comes(request, &piece, peer) {
                exchange.recv(peer, len)?;
            }
        }
        let mut written = false;
        for peer in self.peers() {
            let range = request.needed_in(&piece, self.rank as u32, peer as u32);
            let len = range.len();
            // All ranks that need something need the same, but for parts.
            let segment = if call.kind.is_by_parts() { peer } else { self.rank };
            if len > 0 && (segment == peer || !written) {
                self.outgoing.write(self.at(half, segment), &request.contribution()[range]);
                written = true;
            }
            if first {
                exchange.send_first(peer, segment, len, header(&call, ongoing))?;
            } else if len > 0 {
                exchange.send(peer, segment, len)?;
            }
        }
        Ok(exchange)
    }

    /// Bytes of a piece that come from a rank.
    fn comes(&self, request: &Request<'_>, piece: &Range<usize>, peer: usize) -> usize {
        request.needed_in(piece, peer as u32, self.rank as u32).len()
    }

    /// Ends such a piece.
    fn end_piece(
        &self,
        mut exchange: Exchange<'_>,
        piece: Range<usize>,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        first: bool,
    ) -> Result<(), CollectiveError> {
        let half = exchange.half;
        if first {
            self.compare(&mut exchange, |peer| self.comes(request, &piece, peer), request, ongoing)?;
        } else {
            exchange.receive_all_exact(ongoing)?;
        }
        request
            .complete(piece, Stores::Cached, |peer, _| Source::Exposed(&self.incoming, self.at(half, peer as usize)));
        exchange.finish(ongoing)
    }

    /// Begins one piece of an all-reduce: each rank gets its share of everybody's data.
    fn start_shares(
        &self,
        request: &Request<'_>,
        ongoing: &Ongoing<'_>,
        half: Half,
        piece: Range<usize>,
        first: bool,
    ) -> Result<Shares<'_>, CollectiveError> {
        let of = |rank| share(&piece, self.size, rank);
        let mine = of(self.rank);
        let mut exchange = Exchange::new(self, if first { HEADER_TAG } else { DATA_TAG }, half);
        for peer in self.peers() {
            if first {
                exchange.recv_first(peer)?;
            } else if !mine.is_empty() {
                exchange.recv(peer, mine.len())?;
            }
        }
        for peer in self.peers().filter(|peer| first || !of(*peer).is_empty()) {
            let theirs = of(peer);
            self.outgoing.write(self.at(half, peer), &request.contribution()[theirs.clone()]);
            if first {
                exchange.send_first(peer, peer, theirs.len(), header(&request.call, ongoing))?;
            } else {
                exchange.send(peer, peer, theirs.len())?;
            }
        }
        Ok(Shares { exchange, piece, first })
    }

    /// Each rank reduces its share, and begins to send the result to all.
    fn reduce(
        &self,
        Shares { exchange: mut shares, piece, first }: Shares<'_>,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(Exchange<'_>, Range<usize>), CollectiveError> {
        let half = shares.half;
        let of = |rank| share(&piece, self.size, rank);
        let mine = of(self.rank);
        if first {
            self.compare(&mut shares, |_| mine.len(), request, ongoing)?;
        } else {
            shares.receive_all_exact(ongoing)?;
        }
        request.complete(mine.clone(), Stores::Cached, |peer, _| {
            Source::Exposed(&self.incoming, self.at(half, peer as usize))
        });

        let mut exchange = Exchange::new(self, DATA_TAG, half);
        for peer in self.peers().filter(|peer| !of(*peer).is_empty()) {
            exchange.recv(peer, of(peer).len())?;
        }
        if !mine.is_empty() {
            self.outgoing.write(self.at(half, self.rank), &request.output.bytes()[mine.clone()]);
            for peer in self.peers() {
                exchange.send(peer, self.rank, mine.len())?;
            }
        }
        // Of the shares that go, the ends are not waited for alone.
        exchange.adopt(shares);
        Ok((exchange, piece))
    }

    /// Takes the results of the others.
    fn end_results(
        &self,
        (mut results, piece): (Exchange<'_>, Range<usize>),
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let half = results.half;
        results.receive_all_exact(ongoing)?;
        let mut output = request.output.values();
        for peer in self.peers() {
            let mut theirs = output.part(share(&piece, self.size, peer));
            theirs.copy_out(&self.incoming, self.at(half, peer), Stores::Cached);
        }
        results.finish(ongoing)
    }

    /// Where a rank's segment begins in a half of the group's memory.
    fn at(&self, half: Half, rank: usize) -> usize {
        (half.0 * self.size + rank) * (LEAD + self.segment) + LEAD
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.size).filter(move |peer| *peer != rank)
    }

    fn failures(&self) -> MutexGuard<'_, Vec<Failure>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if a peer is known to have failed in this call or before. One that failed in a later call has done its part in
    /// this one. Peers that are merely gone are found by whoever waits for them.
    fn check_poison(&self, sequence: u64) -> Result<(), CollectiveError> {
        for (peer, failure) in self.failures().iter_mut().enumerate() {
            let start = peer * POISON;
            if let Failure::Awaited(operation) = failure {
                let outcome = if operation.has_ended() { operation.test() } else { None };
                let Some(outcome) = outcome else { continue };
                *failure = Failure::Silent;
                if let Some(text) = outcome.ok().and_then(|len| (len as usize).checked_sub(SEQUENCE)) {
                    let mut sequence = [0; SEQUENCE];
                    self.poison.read(start, &mut sequence);
                    *failure = Failure::Told { sequence: u64::from_le_bytes(sequence), text };
                }
            }
            match *failure {
                Failure::Told { sequence: failed, text } if failed <= sequence => {
                    let mut bytes = vec![0; text.min(TEXT)];
                    self.poison.read(start + SEQUENCE, &mut bytes);
                    let cause = String::from_utf8_lossy(&bytes);
                    return Err(CollectiveError::Poisoned { cause: cause.into() });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        // Nobody waits for these any more: given up, they give their memory back.
        for failure in std::mem::take(&mut *self.failures()) {
            if let Failure::Awaited(operation) = failure {
                let _ = operation.wait(Duration::ZERO);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_hold_what_is_sent_and_do_not_grow_with_the_ranks() {
        for ranks in 1..=1024 {
            let segment = segment(ranks);
            assert!(segment >= HEADER + SHORT && segment.is_multiple_of(64));
            assert!(ranks * segment <= SEGMENTS.max(ranks * SHORTEST), "{ranks} ranks");
            for len in [SHORT + 1, 100_000, 3 << 20] {
                let longest =
                    pieces(len, ranks).flat_map(|piece| (0..ranks).map(move |rank| share(&piece, ranks, rank).len()));
                assert!(longest.max() <= Some(segment), "{len} bytes of {ranks} ranks");
            }
        }
    }
}
