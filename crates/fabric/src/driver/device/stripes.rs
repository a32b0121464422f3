//! Large messages over several rails.
//!
//! The receiver decides: it posts the RECV of the next chunk on a rail that has room, and grants it there. Each rail has a few
//! chunks under way, so that a faster one takes more. What is left of a message goes to a rail only if no other one would be done
//! with all of it before, by what was measured of both: a slow rail is not waited for in the end, and a short message goes over
//! the fastest rail alone. What a rail that failed has not brought is granted again.
//!
//! A rail whose device promises nothing is guarded as [a link over it alone](super::moves) is; what is found out there is a
//! failure of the rail, after which its chunks come over others.

use std::collections::VecDeque;
use std::time::Instant;

use fulmen_memory::Exposed;
use fulmen_verbs::{Completion, RecvRequest, SendOp, SendRequest};

use super::hub::Work;
use super::moves::{MoveError, piece};
use super::track::{Going, Landing, Track};
use crate::engine::{Link, OpId, Part, Posting};

/// A message that comes.
struct Coming {
    op: OpId,
    memory: Exposed,
    /// Ranges that are not granted, by offset and length.
    missing: VecDeque<(u64, u64)>,
    /// Bytes that have not come.
    left: u64,
}

/// The messages that come over a link's rails, oldest first.
#[derive(Default)]
pub(super) struct Stripes {
    coming: Vec<Coming>,
    /// The only rail that chunks may come over.
    pub only: Option<usize>,
}

/// The rail that failed, and why.
pub(super) type Failed = (usize, String);

impl Stripes {
    /// Lets go of all memory: no queue pair is left.
    pub(super) fn clear(&mut self) {
        self.coming.clear();
    }

    /// Takes what the link has to move.
    pub(super) fn take(&mut self, tracks: &mut [Track], link: &mut Link) {
        while let Some(posting) = link.next_posting() {
            match posting {
                Posting::Receive { op, memory } => {
                    let left = memory.len() as u64;
                    self.coming.push(Coming { op, memory, missing: VecDeque::from([(0, left)]), left });
                }
                Posting::Part { op, memory, part } => {
                    let same = |track: &&mut Track| {
                        u32::from(track.berth.rail) == part.rail && track.incarnation == part.incarnation
                    };
                    match tracks.iter_mut().find(same).filter(|track| track.is_live()) {
                        Some(track) => track.going.push_back(Going { op, memory }),
                        // It has failed since, of which the peer hears.
                        None => link.parted(op, part.len),
                    }
                }
                Posting::Send { .. } => unreachable!("the parts of striped links are granted one by one"),
            }
        }
    }

    /// The rail over which the next chunk is to come, if it is to come now. `full` are rails whose queue has no room, as bits.
    fn choose(&self, tracks: &[Track], full: u64, remaining: u64, now: Instant) -> Option<usize> {
        let prospect = |at: usize| {
            let track = &tracks[at];
            let allowed = self.only.is_none_or(|only| only == at || !tracks[only].is_up());
            let (outstanding, rate, chunk) = (track.outstanding(), track.rate.known(now), track.maker.plan.chunk);
            // One of which nothing is known is tried by one chunk: it may be slow.
            let chunks = if rate.is_some() { track.maker.plan.chunks as usize } else { 1 };
            let room = full & 1 << at == 0 && track.landing.len() < chunks;
            (allowed && track.is_up()).then_some(Prospect { room, outstanding, rate, chunk })
        };
        choose(tracks.len(), prospect, remaining)
    }

    /// Grants what there is room for: whether there was anything.
    pub(super) fn grant(&mut self, tracks: &mut [Track], link: &mut Link, now: Instant) -> Result<bool, Failed> {
        let mut any = false;
        // Rails whose queue had no room, as bits.
        let mut full = 0;
        let mut remaining: u64 = self.coming.iter().flat_map(|coming| &coming.missing).map(|(_, len)| len).sum();
        while remaining > 0 {
            let Some(at) = self.choose(tracks, full, remaining, now) else { break };
            let next = self.coming.iter_mut().find(|coming| !coming.missing.is_empty());
            let Some(coming) = next else { break };
            let Some((offset, len)) = coming.missing.pop_front() else { break };
            let track = &mut tracks[at];
            let now_len = len.min(track.maker.plan.chunk);
            let posted = post_receive(track, &coming.memory, offset, now_len).map_err(|cause| (at, cause.to_string()));
            if !matches!(posted, Ok(true)) {
                coming.missing.push_front((offset, len));
                posted?;
                full |= 1 << at;
                continue;
            }
            if now_len < len {
                coming.missing.push_front((offset + now_len, len - now_len));
            }
            if track.landing.is_empty() {
                track.progress = now;
                track.rate.begin(now);
            }
            track.landing.push_back(Landing { op: coming.op, offset, len: now_len });
            let (rail, incarnation) = (track.berth.rail.into(), track.incarnation);
            link.grant(coming.op, Part { offset, len: now_len, rail, incarnation });
            remaining -= now_len;
            any = true;
        }
        Ok(any)
    }

    /// A RECV has completed on a rail.
    pub(super) fn landed(
        &mut self,
        track: &mut Track,
        index: u32,
        completion: &Completion,
        (link, now): (&mut Link, Instant),
    ) -> Result<(), MoveError> {
        let first = (track.posted - track.landing.len() as u64) as u32;
        let imm = track.maker.plan.immediate.then_some(first);
        let due = track.landing.front().copied();
        let fits = |due: &Landing| u64::from(completion.byte_len) == due.len && completion.imm == imm && index == first;
        let Some(Landing { op, len, .. }) = due.filter(fits) else { return Err(MoveError::Order) };
        track.landing.pop_front();
        track.progress = now;
        track.received_bytes += len;
        track.rate.count(len, track.landing.is_empty(), now);
        let Some(at) = self.coming.iter().position(|coming| coming.op == op) else { return Ok(()) };
        let coming = &mut self.coming[at];
        coming.left -= len;
        if coming.left == 0 {
            self.coming.remove(at);
            if !link.landed(op) {
                return Err(MoveError::Corrupted);
            }
        }
        Ok(())
    }

    /// A rail has failed, and its queue pairs are gone: what has not come over it is to come over others.
    pub(super) fn withdraw(&mut self, track: &mut Track, link: &mut Link) {
        for Landing { op, offset, len } in track.landing.drain(..).rev() {
            if let Some(coming) = self.coming.iter_mut().find(|coming| coming.op == op) {
                coming.missing.push_front((offset, len));
            }
        }
        for Going { op, memory } in track.going.drain(..) {
            link.parted(op, memory.len() as u64);
        }
        for (op, len) in track.flying.drain(..) {
            link.parted(op, len);
        }
    }
}

/// What is known of a rail over which chunks can come.
#[derive(Clone, Copy)]
struct Prospect {
    /// Whether there is room for a chunk.
    room: bool,
    /// Bytes that are to come.
    outstanding: u64,
    /// Bytes a second.
    rate: Option<f64>,
    chunk: u64,
}

/// Which of so many rails is to have the next chunk now, of messages of which so many bytes are left: the one that would be done
/// with it first, if no other one would be done with all of them before.
fn choose(count: usize, prospect: impl Fn(usize) -> Option<Prospect>, remaining: u64) -> Option<usize> {
    let all = || (0..count).filter_map(|at| Some((at, prospect(at)?)));
    // One of which nothing is known yet is taken for as fast as the others, and so is tried.
    let known = all().filter_map(|(_, one)| one.rate);
    let (known, sum) = known.fold((0, 0.0), |(known, sum), rate| (known + 1, sum + rate));
    let mean = if known == 0 { 1.0 } else { sum / f64::from(known) };
    let time = |one: &Prospect, bytes: u64| (one.outstanding + bytes) as f64 / one.rate.unwrap_or(mean).max(1.0);
    let next = |one: &Prospect| time(one, remaining.min(one.chunk));
    let room = all().filter(|(_, one)| one.room);
    let (best, chosen) = room.min_by(|(_, one), (_, other)| next(one).total_cmp(&next(other)))?;
    let sooner = |(at, one): (usize, Prospect)| at != best && time(&one, remaining) < next(&chosen);
    (!all().any(sooner)).then_some(best)
}

/// Posts the RECV of a chunk: false if the queue has no room for it now.
fn post_receive(track: &mut Track, memory: &Exposed, offset: u64, len: u64) -> Result<bool, MoveError> {
    let Some(pair) = track.pairs.as_ref().and_then(|pairs| pairs.moves.as_ref()) else { return Ok(false) };
    let piece = piece(&track.registered, memory, offset, offset + len)?;
    let number = Work::ChunkIn.number(track.berth, track.posted as u32);
    if let Err(refused) = pair.post_recv(&[RecvRequest::new(number, [piece])]) {
        if !track.fullness.passes(&refused, track.landing.len() as u64, track.berth.peer) {
            return Err(refused.into());
        }
        return Ok(false);
    }
    track.posted += 1;
    Ok(true)
}

/// Posts the SENDs of granted chunks: whether there were any.
pub(super) fn post_sends(track: &mut Track) -> Result<bool, MoveError> {
    let Some(pair) = track.pairs.as_ref().and_then(|pairs| pairs.moves.as_ref()) else { return Ok(false) };
    let before = track.sent;
    while track.flying.len() < track.maker.plan.chunks as usize {
        let Some(Going { op, memory }) = track.going.front() else { break };
        let (op, len) = (*op, memory.len() as u64);
        let piece = piece(&track.registered, memory, 0, len)?;
        let imm = track.maker.plan.immediate.then_some(track.sent as u32);
        let number = Work::ChunkOut.number(track.berth, track.sent as u32);
        if let Err(refused) = pair.post_send(&[SendRequest::new(number, SendOp::Send { imm }, [piece])]) {
            if !track.fullness.passes(&refused, track.flying.len() as u64, track.berth.peer) {
                return Err(refused.into());
            }
            break;
        }
        track.going.pop_front();
        track.flying.push_back((op, len));
        track.sent += 1;
        track.sent_bytes += len;
    }
    Ok(track.sent > before)
}

/// A SEND has completed.
pub(super) fn sent(track: &mut Track, index: u32, link: &mut Link) -> Result<(), MoveError> {
    let first = (track.sent - track.flying.len() as u64) as u32;
    match track.flying.pop_front() {
        Some((op, len)) if index == first => {
            link.parted(op, len);
            Ok(())
        }
        Some(back) => {
            track.flying.push_front(back);
            Err(MoveError::Order)
        }
        None => Err(MoveError::Order),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 4;

    fn rail(outstanding: u64, rate: impl Into<Option<f64>>) -> Option<Prospect> {
        Some(Prospect { room: outstanding < 8 * 100, outstanding, rate: rate.into(), chunk: 100 })
    }

    #[test]
    fn a_slow_rail_gets_no_chunk_for_which_the_others_would_wait() {
        let rails = |first, second| move |at| [rail(first, 1000.0), rail(second, 100.0)][at];
        // 0.1 s here or 1 s there.
        assert_eq!(choose(2, rails(0, 0), 10_000), Some(0));
        // The fast one is full, the slow one is to help.
        assert_eq!(choose(2, rails(800, 0), 10_000), Some(1));
        // It would take 1 s, in which the fast one is done with all.
        assert_eq!(choose(2, rails(800, 0), 100), None);
        assert_eq!(choose(2, rails(100, 0), 150), Some(0));
    }

    #[test]
    fn a_rail_that_was_never_used_is_tried_and_one_that_is_not_up_is_not() {
        assert_eq!(choose(2, |at| [rail(300, 1000.0), rail(0, None)][at], 10_000), Some(1));
        assert_eq!(choose(2, |at| [None, rail(0, 5.0)][at], 10_000), Some(1));
        assert_eq!(choose(2, |_| None, 10_000), None);
        assert_eq!(choose(2, |at| [rail(0, None), rail(0, None)][at], 10_000), Some(0));
    }

    /// A rail that is served by itself, as fast as it is.
    fn finish(rates: &[f64], len: u64, chunks: usize) -> (f64, Vec<u64>) {
        let mut queues: Vec<Vec<u64>> = vec![Vec::new(); rates.len()];
        let (mut left, mut brought) = (len, vec![0; rates.len()]);
        // When each is done with its oldest chunk.
        let mut ends = vec![f64::INFINITY; rates.len()];
        let mut now = 0.0;
        loop {
            let prospect = |at: usize| {
                let queue: &Vec<u64> = &queues[at];
                let room = queue.len() < chunks;
                Some(Prospect { room, outstanding: queue.iter().sum(), rate: Some(rates[at]), chunk: 100 })
            };
            if let Some(at) = (left > 0).then(|| choose(rates.len(), prospect, left)).flatten() {
                let chunk = left.min(100);
                left -= chunk;
                queues[at].push(chunk);
                if queues[at].len() == 1 {
                    ends[at] = now + chunk as f64 / rates[at];
                }
                continue;
            }
            let (at, end) = ends.iter().copied().enumerate().min_by(|one, other| one.1.total_cmp(&other.1)).unwrap();
            if end.is_infinite() {
                assert_eq!(left, 0, "chunks are left and nothing is under way");
                return (now, brought);
            }
            now = end;
            brought[at] += queues[at].remove(0);
            ends[at] = queues[at].first().map_or(f64::INFINITY, |next| now + *next as f64 / rates[at]);
        }
    }

    proptest! {
        #[test]
        fn no_rail_is_waited_for_by_a_faster_one(
            rates in prop::collection::vec(10.0f64..10_000.0, 1..=MOST),
            len in 1u64..200_000,
        ) {
            let (time, brought) = finish(&rates, len, 8);
            prop_assert_eq!(brought.iter().sum::<u64>(), len);
            let fastest = rates.iter().copied().fold(0.0, f64::max);
            // Never later than the fastest one alone but for a chunk.
            prop_assert!(time <= (len + 200) as f64 / fastest + 1e-6, "{} s", time);
        }
    }
}
