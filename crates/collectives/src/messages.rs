//! Collectives by messages, where ranks do not map one another's memory.
//!
//! A call begins with a header from everybody to everybody: what is called, and all of the contribution if it is short.
//! Longer ones follow in segments, so that the memory under way is bounded whatever the length: each rank reduces its
//! share of a segment, in rank order, and sends the result to all. The next segment's data is on its way meanwhile, and the
//! first one's while calls are compared, so that no way is waited for alone.
//!
//! Data passes through memory of the group, not the caller's: whatever happens, no message touches the caller's memory
//! once a call has returned. A rank that fails tells all others, which look for that whenever they wait.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use fulmen_fabric::{Fabric, FabricError, Operation};
use fulmen_kernels::{Source, Stores};
use fulmen_memory::Exposed;

use crate::CollectiveError;
use crate::call::{Call, Kind};
use crate::request::Request;
use crate::windows::Ongoing;

/// The tags of groups have this bit, the group's number above these two, and what the message is; programs' tags are
/// below 2^48.
const TAG: u64 = 1 << 63;
const HEADER_TAG: u64 = 0;
const DATA_TAG: u64 = 1;
const POISON_TAG: u64 = 2;
const GROUP: u32 = 2;
/// Numbers are used again after so many groups, below the tags' labels.
const GROUPS: u64 = 1 << 46;

/// Bytes of a header: the call, and which one it is.
pub(crate) const HEADER: usize = 24;

/// The longest contribution that travels in the header's message.
pub(crate) const SHORT: usize = 4 << 10;

/// Bytes of all ranks' segments together, of which a group has four times as many. However many ranks there are, they take
/// no more.
const SEGMENTS: usize = 4 << 20;
/// The longest segment,
const LONGEST: usize = 256 << 10;
/// and the shortest, in which a short contribution has room.
const SHORTEST: usize = 8 << 10;

/// The longest message: what may be under way to one of so many ranks at a time.
fn segment(ranks: usize) -> usize {
    (SEGMENTS / ranks.max(1)).clamp(SHORTEST, LONGEST) / 64 * 64
}

/// The longest text that tells why a rank failed.
const POISON: usize = 256;

/// The pieces of an all-reduce by messages, one after the other.
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

/// Half of the group's memory: two pieces are under way at a time.
#[derive(Clone, Copy)]
struct Half(usize);

impl Half {
    /// That of headers.
    const FIRST: Half = Half(0);
}

/// The halves in turn. The first piece has the other one than the headers, with which it travels.
fn halves() -> impl Iterator<Item = Half> {
    [Half(1), Half(0)].into_iter().cycle()
}

pub(crate) struct Messages {
    fabric: Fabric,
    rank: usize,
    size: usize,
    /// Bytes of a segment.
    segment: usize,
    /// In all of its tags.
    tag: u64,
    /// A segment for each rank, twice.
    outgoing: Exposed,
    /// A segment from each rank, twice.
    incoming: Exposed,
    /// A text from each rank.
    poison: Exposed,
    /// By rank, what waits for its failure.
    failures: Mutex<Vec<Option<Operation>>>,
}

impl Messages {
    pub(crate) fn new(fabric: &Fabric) -> Result<Messages, CollectiveError> {
        let (rank, size) = (fabric.rank() as usize, fabric.size() as usize);
        let segment = segment(size);
        let tag = TAG | (fabric.number_group() % GROUPS) << GROUP;
        let memory = |each: usize| Ok::<_, FabricError>(fabric.alloc(size * each)?.into_exposed());
        let poison = memory(POISON)?;
        let mut failures = Vec::new();
        for peer in 0..size {
            let text = poison.slice(peer * POISON..(peer + 1) * POISON);
            let failure = (peer != rank).then(|| fabric.start_recv(peer as u32, tag | POISON_TAG, &text));
            failures.push(failure.transpose()?);
        }
        let (outgoing, incoming) = (memory(2 * segment)?, memory(2 * segment)?);
        let failures = Mutex::new(failures);
        Ok(Messages { fabric: fabric.clone(), rank, size, segment, tag, outgoing, incoming, poison, failures })
    }

    /// Runs one call to its end.
    pub(crate) fn run(&self, request: &mut Request<'_>, ongoing: &mut Ongoing<'_>) -> Result<(), CollectiveError> {
        self.check_poison()?;
        self.attempt(request, ongoing).map_err(|error| match error {
            // Why a peer went says more than that it did.
            CollectiveError::Fabric(_) => self.check_poison().err().unwrap_or(error),
            other => other,
        })
    }

    fn attempt(&self, request: &mut Request<'_>, ongoing: &mut Ongoing<'_>) -> Result<(), CollectiveError> {
        let call = request.call;
        let short = call.longest(self.size as u32) <= SHORT;
        let headers = self.tell(request, ongoing, short)?;
        if short {
            self.compare(headers, request, ongoing, short)?;
            let part = |peer: u32, range: Range<usize>| {
                Source::Exposed(&self.incoming, peer as usize * self.segment + HEADER + range.start)
            };
            request.complete(0..call.bytes(), Stores::Cached, part);
            return Ok(());
        }
        let mut headers = Some(headers);
        let mut agree = |request: &Request<'_>, ongoing: &mut Ongoing<'_>| match headers.take() {
            Some(headers) => self.compare(headers, request, ongoing, short),
            None => Ok(()),
        };
        if call.kind == Kind::AllReduce {
            let mut results = None;
            for (half, piece) in halves().zip(pieces(call.bytes(), self.size)) {
                let shares = self.start_shares(request, half, &piece)?;
                agree(request, ongoing)?;
                if let Some(results) = results.take() {
                    self.end_results(results, request, ongoing)?;
                }
                results = Some(self.reduce(shares, request, ongoing, half, piece)?);
            }
            return results.map_or(Ok(()), |results| self.end_results(results, request, ongoing));
        }
        let mut before = None;
        let segments =
            (0..call.bytes()).step_by(self.segment).map(|start| start..(start + self.segment).min(call.bytes()));
        for (half, piece) in halves().zip(segments) {
            let exchange = self.start_piece(request, half, piece.clone())?;
            agree(request, ongoing)?;
            if let Some(before) = before.replace((exchange, piece)) {
                self.end_piece(before, request, ongoing)?;
            }
        }
        before.map_or(Ok(()), |last| self.end_piece(last, request, ongoing))
    }

    /// Tells all other ranks that this one has failed.
    pub(crate) fn poison(&self, why: &str) {
        let mut end = why.len().min(POISON);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        let text = self.poison.slice(self.rank * POISON..self.rank * POISON + end);
        text.write(0, &why.as_bytes()[..end]);
        for peer in self.peers() {
            // It goes on by itself. A peer that is not there any more needs not be told.
            drop(self.fabric.start_send(peer as u32, self.tag | POISON_TAG, &text));
        }
    }

    /// Begins to exchange headers, and short contributions with them.
    fn tell(&self, request: &Request<'_>, ongoing: &Ongoing<'_>, short: bool) -> Result<Exchange<'_>, CollectiveError> {
        let call = request.call.encode(0);
        let data = if short { request.contribution() } else { &[] };
        let len = HEADER + data.len();
        let mut header = [0; HEADER];
        for (to, word) in header.chunks_exact_mut(8).zip([ongoing.sequence, call[0], call[1]]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        // All get the same; it is written once.
        let own = self.rank * self.segment;
        self.outgoing.write(own, &header);
        self.outgoing.write(own + HEADER, data);
        let mut exchange = Exchange::new(self, HEADER_TAG, Half::FIRST);
        for peer in self.peers() {
            exchange.recv(peer, HEADER + SHORT)?;
        }
        for peer in self.peers() {
            exchange.send(peer, own..own + len)?;
        }
        Ok(exchange)
    }

    /// Compares the calls of all ranks when their headers have come.
    fn compare(
        &self,
        headers: Exchange<'_>,
        request: &Request<'_>,
        ongoing: &mut Ongoing<'_>,
        short: bool,
    ) -> Result<(), CollectiveError> {
        let lens = headers.finish(ongoing)?;
        for peer in self.peers() {
            let mut header = [0; HEADER];
            self.incoming.read(peer * self.segment, &mut header);
            let word = |at: usize| u64::from_le_bytes(header[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
            let theirs = [word(1), word(2)];
            let expected = if short { request.call.contribution(peer as u32, self.size as u32) } else { 0 };
            let fits = word(0) == ongoing.sequence && lens[peer] == HEADER + expected;
            if request.call.matches(theirs).is_none() || !fits {
                return Err(CollectiveError::Mismatch {
                    operation: ongoing.operation,
                    sequence: ongoing.sequence,
                    mine: request.call.to_string(),
                    theirs: if lens[peer] < HEADER { "something unknown".into() } else { Call::describe(theirs) },
                    rank: peer as u32,
                });
            }
        }
        Ok(())
    }

    /// Begins one piece of what needs one exchange: everybody sends everybody what that rank needs.
    fn start_piece(
        &self,
        request: &Request<'_>,
        half: Half,
        piece: Range<usize>,
    ) -> Result<Exchange<'_>, CollectiveError> {
        let call = request.call;
        let mut exchange = Exchange::new(self, DATA_TAG, half);
        let contributes = |rank: usize| call.contribution(rank as u32, self.size as u32) > 0;
        for peer in self.peers().filter(|peer| contributes(*peer)) {
            exchange.recv(peer, piece.len())?;
        }
        if contributes(self.rank) {
            let data = request.contribution();
            for peer in self.peers() {
                // In reduce_scatter, each rank needs another part; else all need the same.
                let (from, to) = match call.kind {
                    Kind::ReduceScatter => (peer * call.bytes(), peer * self.segment),
                    _ => (0, self.rank * self.segment),
                };
                if call.kind == Kind::ReduceScatter || exchange.sends == 0 {
                    self.outgoing.write(self.at(half) + to, &data[from + piece.start..from + piece.end]);
                }
                exchange.send(peer, to..to + piece.len())?;
            }
        }
        Ok(exchange)
    }

    /// Ends such a piece.
    fn end_piece(
        &self,
        (exchange, piece): (Exchange<'_>, Range<usize>),
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let from = self.at(exchange.half);
        exchange.finish_exact(ongoing)?;
        request.complete(piece, Stores::Cached, |peer, _| {
            Source::Exposed(&self.incoming, from + peer as usize * self.segment)
        });
        Ok(())
    }

    /// Begins one piece of an all-reduce: each rank gets its share of everybody's data.
    fn start_shares(
        &self,
        request: &Request<'_>,
        half: Half,
        piece: &Range<usize>,
    ) -> Result<Exchange<'_>, CollectiveError> {
        let of = |rank| share(piece, self.size, rank);
        let mine = of(self.rank);
        let mut exchange = Exchange::new(self, DATA_TAG, half);
        for peer in self.peers().filter(|_| !mine.is_empty()) {
            exchange.recv(peer, mine.len())?;
        }
        for peer in self.peers().filter(|peer| !of(*peer).is_empty()) {
            let theirs = of(peer);
            let at = peer * self.segment;
            self.outgoing.write(self.at(half) + at, &request.contribution()[theirs.clone()]);
            exchange.send(peer, at..at + theirs.len())?;
        }
        Ok(exchange)
    }

    /// Each rank reduces its share, and begins to send the result to all.
    fn reduce(
        &self,
        shares: Exchange<'_>,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        half: Half,
        piece: Range<usize>,
    ) -> Result<(Exchange<'_>, Range<usize>), CollectiveError> {
        let of = |rank| share(&piece, self.size, rank);
        let mine = of(self.rank);
        shares.finish_exact(ongoing)?;
        let from = self.at(half);
        request.complete(mine.clone(), Stores::Cached, |peer, _| {
            Source::Exposed(&self.incoming, from + peer as usize * self.segment)
        });

        let mut exchange = Exchange::new(self, DATA_TAG, half);
        for peer in self.peers().filter(|peer| !of(*peer).is_empty()) {
            exchange.recv(peer, of(peer).len())?;
        }
        if !mine.is_empty() {
            let at = self.rank * self.segment;
            self.outgoing.write(from + at, &request.output.bytes()[mine.clone()]);
            for peer in self.peers() {
                exchange.send(peer, at..at + mine.len())?;
            }
        }
        Ok((exchange, piece))
    }

    /// Takes the results of the others.
    fn end_results(
        &self,
        (results, piece): (Exchange<'_>, Range<usize>),
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let from = self.at(results.half);
        results.finish_exact(ongoing)?;
        let mut output = request.output.values();
        for peer in self.peers() {
            let mut theirs = output.part(share(&piece, self.size, peer));
            theirs.copy_out(&self.incoming, from + peer * self.segment, Stores::Cached);
        }
        Ok(())
    }

    /// Where a half of the group's memory begins.
    fn at(&self, half: Half) -> usize {
        half.0 * self.size * self.segment
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.size).filter(move |peer| *peer != rank)
    }

    fn failures(&self) -> MutexGuard<'_, Vec<Option<Operation>>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if a peer has told that it failed. Peers that are merely gone are found by whoever waits for them.
    fn check_poison(&self) -> Result<(), CollectiveError> {
        for (peer, failure) in self.failures().iter_mut().enumerate() {
            let Some(outcome) = failure.as_mut().and_then(Operation::test) else { continue };
            *failure = None;
            if let Ok(len) = outcome {
                let mut text = vec![0; (len as usize).min(POISON)];
                self.poison.read(peer * POISON, &mut text);
                let cause = format!("rank {peer}: {}", String::from_utf8_lossy(&text));
                return Err(CollectiveError::Poisoned { cause: cause.into() });
            }
        }
        Ok(())
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        // Nobody waits for these any more: given up, they give their memory back.
        for failure in std::mem::take(&mut *self.failures()).into_iter().flatten() {
            let _ = failure.wait(Duration::ZERO);
        }
    }
}

/// Messages under way to and from the peers.
struct Exchange<'a> {
    messages: &'a Messages,
    half: Half,
    tag: u64,
    pending: Vec<Pending>,
    sends: usize,
    /// By rank, bytes that came.
    lens: Vec<usize>,
}

struct Pending {
    operation: Operation,
    peer: usize,
    /// Of a receive, the bytes that are to come.
    expected: Option<usize>,
}

impl<'a> Exchange<'a> {
    fn new(messages: &'a Messages, tag: u64, half: Half) -> Exchange<'a> {
        let lens = vec![0; messages.size];
        Exchange {
            messages,
            half,
            tag: messages.tag | tag,
            pending: Vec::with_capacity(2 * messages.size),
            sends: 0,
            lens,
        }
    }

    /// Receives into the peer's segment. Before any send, so that no two ranks wait for one another.
    fn recv(&mut self, peer: usize, len: usize) -> Result<(), FabricError> {
        let at = self.messages.at(self.half) + peer * self.messages.segment;
        let into = self.messages.incoming.slice(at..at + len);
        let operation = self.messages.fabric.start_recv(peer as u32, self.tag, &into)?;
        self.pending.push(Pending { operation, peer, expected: Some(len) });
        Ok(())
    }

    /// Sends these bytes of the exchange's half.
    fn send(&mut self, peer: usize, range: Range<usize>) -> Result<(), FabricError> {
        let at = self.messages.at(self.half);
        let data = self.messages.outgoing.slice(at + range.start..at + range.end);
        let operation = self.messages.fabric.start_send(peer as u32, self.tag, &data)?;
        self.pending.push(Pending { operation, peer, expected: None });
        self.sends += 1;
        Ok(())
    }

    /// Waits until everything has come, of the lengths that were expected, and gone.
    fn finish_exact(self, ongoing: &mut Ongoing<'_>) -> Result<(), CollectiveError> {
        let expected: Vec<_> =
            self.pending.iter().filter_map(|pending| Some((pending.peer, pending.expected?))).collect();
        let lens = self.finish(ongoing)?;
        for (peer, expected) in expected {
            if lens[peer] != expected {
                let problem = format!("it sent {} bytes where {expected} were agreed on", lens[peer]);
                return Err(FabricError::PeerFailed { op: ongoing.operation, rank: peer as u32, problem }.into());
            }
        }
        Ok(())
    }

    /// Waits until everything has come and gone. Returns the lengths of what came, by rank.
    fn finish(mut self, ongoing: &mut Ongoing<'_>) -> Result<Vec<usize>, CollectiveError> {
        while !self.pending.is_empty() {
            // A peer that has done its part may leave while others are waited for.
            let mut ranks: Vec<u32> = self.pending.iter().map(|pending| pending.peer as u32).collect();
            ranks.dedup();
            let fabric = self.messages.fabric.clone();
            let moved = fabric.wait(ongoing.operation, ranks.as_slice(), ongoing.deadline.left(), || {
                match self.look() {
                    Ok(false) => {}
                    Ok(true) => return Poll::Ready(Ok(())),
                    Err(error) => return Poll::Ready(Err(error)),
                }
                self.messages.check_poison().map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
            });
            match moved {
                Ok(Ok(())) => {}
                Err(FabricError::PeerLost { .. }) if self.forget_sends() => {}
                Err(lost) => return Err(lost.into()),
                Ok(Err(failed)) => return Err(failed),
            }
        }
        Ok(self.lens)
    }

    /// Gives up what is being sent to ranks that were lost and from which nothing is to come; false if there is nothing to
    /// give up.
    ///
    /// A rank leaves when it has received all that it waits for, which its peers may hear of later than of its leaving. If
    /// it died instead, that changes nothing in what the others receive, and the next call fails.
    fn forget_sends(&mut self) -> bool {
        let before = self.pending.len();
        let needed: Vec<usize> =
            self.pending.iter().filter(|pending| pending.expected.is_some()).map(|pending| pending.peer).collect();
        let fabric = &self.messages.fabric;
        self.pending.retain(|pending| needed.contains(&pending.peer) || fabric.loss(pending.peer as u32).is_none());
        self.pending.len() < before
    }

    /// Moves everything on; whether something has ended.
    fn look(&mut self) -> Result<bool, CollectiveError> {
        let before = self.pending.len();
        let mut at = 0;
        while at < self.pending.len() {
            let Pending { operation, peer, expected } = &mut self.pending[at];
            match operation.test() {
                None => at += 1,
                Some(outcome) => {
                    match outcome {
                        Ok(len) if expected.is_some() => self.lens[*peer] = len as usize,
                        Ok(_) => {}
                        // As in `forget_sends`.
                        Err(FabricError::PeerLost { .. }) if expected.is_none() => {}
                        Err(error) => return Err(error.into()),
                    }
                    self.pending.swap_remove(at);
                }
            }
        }
        Ok(self.pending.len() < before)
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
