//! All-reduces of middle length among many ranks by TCP: what ranks contribute to each other's shares is passed on.
//!
//! Everybody has something for everybody. A rank keeps it by how far back in the circle the one is that it is for. In the
//! round of each power of two it sends all that has that power in its distance on to the rank that is as many before it, in
//! one message, and gets as much from the one that is as many after it; so all arrives after as many rounds as it takes to
//! double one up to the number of ranks ([Bruck and others 1997](https://doi.org/10.1109/71.642949)). Each rank then reduces
//! its share, in rank order as ever, and the results are passed on as short contributions are. Half of the data travels in
//! each of the first rounds, so that this pays while a message costs more than its bytes.

use std::ops::Range;

use fulmen_kernels::{Source, Stores};

use super::exchange::Exchange;
use super::rounds::{block, missing, rounds};
use super::{DATA_TAG, HEADER, HEADER_TAG, Half, LEAD, Messages, SHORT, header, segment, share};
use crate::CollectiveError;
use crate::request::Request;
use crate::windows::Ongoing;

/// What is sent, and where it is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Bytes of the longest share.
    each: usize,
    /// Bytes of what one rank has for another, with its header.
    slot: usize,
    /// Room for what a rank gets in a round.
    room: usize,
    /// Where the results are, behind the rooms of all rounds.
    results: usize,
}

/// The layout for so many bytes, unless they are too many, or such messages would not be taken for what they are by a rank
/// that calls something else.
fn layout(bytes: usize, ranks: usize, segment: usize) -> Option<Layout> {
    let each = share(&(0..bytes), ranks, 0).len();
    let slot = HEADER + each;
    let most = steps(ranks).map(|step| slots(ranks, step).count()).max()?;
    // Of a call that does not match, more may come.
    let room = (ranks.div_ceil(2) * block(SHORT)).max(HEADER + segment).next_multiple_of(64);
    let results = steps(ranks).count() * room;
    let fits = most * slot <= HEADER + segment && results + ranks * each <= 2 * ranks * (LEAD + segment);
    fits.then_some(Layout { each, slot, room, results })
}

/// Whether so many ranks can pass on their shares of so many bytes.
pub(crate) fn has_passed_shares(bytes: usize, ranks: usize) -> bool {
    layout(bytes, ranks, segment(ranks)).is_some()
}

/// How many ranks' shares go that far at once.
pub(crate) fn share_slots(ranks: usize, step: usize) -> usize {
    slots(ranks, step).count()
}

/// How far things go in each round.
fn steps(ranks: usize) -> impl Iterator<Item = usize> {
    rounds(ranks).map(|(step, _)| step)
}

/// What goes that far: by how far it has to go in all.
fn slots(ranks: usize, step: usize) -> impl Iterator<Item = usize> {
    (0..ranks).filter(move |slot| slot & step != 0)
}

impl Messages {
    /// Runs an all-reduce whose shares are passed on. They [can be](has_passed_shares).
    pub(super) fn pass_on_shares(
        &self,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let layout = layout(request.vector(), self.size, self.segment).expect("the planner has looked");
        let at = self.exchange_shares(layout, request, ongoing)?;
        let mine = share(&(0..request.vector()), self.size, self.rank);
        request.complete(mine, Stores::Cached, |peer, _| {
            Source::Exposed(&self.incoming, at[(peer as usize + self.size - self.rank) % self.size] + HEADER)
        });
        self.exchange_results(layout, request, ongoing)
    }

    /// Gets what the others have for this rank: where each one's is, by how far it is after this one.
    fn exchange_shares(
        &self,
        Layout { slot: len, room, .. }: Layout,
        request: &Request<'_>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<Vec<usize>, CollectiveError> {
        let size = self.size;
        let whole = 0..request.vector();
        let header = header(&request.call, ongoing);
        let mut exchange = Exchange::new(self, HEADER_TAG, Half(0));
        // Of each slot, where it came; what has not come yet is this rank's own.
        let mut at: Vec<Option<usize>> = vec![None; size];
        let mut end = 0;
        for (round, (step, sources)) in rounds(size).enumerate() {
            let (from, to) = ((self.rank + step) % size, (self.rank + size - step) % size);
            let begin = round * room;
            exchange.recv_into(from, &self.incoming.slice(begin..begin + room))?;
            let start = end;
            for slot in slots(size, step) {
                if let Some(at) = at[slot] {
                    self.incoming.copy_to(at, &self.outgoing, end, len);
                } else {
                    let theirs = share(&whole, size, (self.rank + size - slot) % size);
                    self.outgoing.write(end, &header);
                    self.outgoing.write(end + HEADER, &request.contribution()[theirs]);
                }
                end += len;
            }
            exchange.send_from(to, &self.outgoing.slice(start..end))?;
            // It has gone that far, or that and less.
            let source = |slot: usize| (self.rank + step + (slot & (step - 1))) % size;
            let came = exchange
                .receive(from, ongoing)
                .map_err(|error| missing(error, (0..sources).map(|slot| self.team.in_fabric(source(slot)))))?;
            let last = slots(size, step).count() - 1;
            for (place, slot) in slots(size, step).enumerate() {
                let left = came.saturating_sub(place * len);
                let part = if place == last { left } else { left.min(len) };
                self.check_header(begin + place * len, (source(slot), part), len, request, ongoing)?;
                at[slot] = Some(begin + place * len);
            }
        }
        exchange.finish(ongoing)?;
        // Its own it has where it was.
        Ok(at.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Passes on the results of all ranks' shares.
    fn exchange_results(
        &self,
        Layout { each, results, .. }: Layout,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let size = self.size;
        let whole = 0..request.vector();
        // By how far their ranks are after this one.
        let of = |steps: Range<usize>| self.incoming.slice(results + steps.start * each..results + steps.end * each);
        self.incoming.write(results, &request.output.bytes()[share(&whole, size, self.rank)]);
        let mut exchange = Exchange::new(self, DATA_TAG, Half(0));
        for (step, count) in rounds(size) {
            let (from, to) = ((self.rank + step) % size, (self.rank + size - step) % size);
            exchange.recv_into(from, &of(step..step + count))?;
            exchange.send_from(to, &of(0..count))?;
            exchange.receive_all_exact(ongoing)?;
        }
        exchange.finish(ongoing)?;
        let mut output = request.output.values();
        for step in 1..size {
            let mut theirs = output.part(share(&whole, size, (self.rank + step) % size));
            theirs.copy_out(&self.incoming, results + step * each, Stores::Cached);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everybody's for everybody, as `(from, to)`.
    #[test]
    fn everybody_gets_what_everybody_has_for_it() {
        for size in 1..=100 {
            let mut have: Vec<Vec<_>> =
                (0..size).map(|rank| (0..size).map(|slot| (rank, (rank + size - slot) % size)).collect()).collect();
            for step in steps(size) {
                let before = have.clone();
                for (rank, have) in have.iter_mut().enumerate() {
                    for slot in slots(size, step) {
                        have[slot] = before[(rank + step) % size][slot];
                        assert_eq!(
                            have[slot].0,
                            (rank + step + (slot & (step - 1))) % size,
                            "the rank that it is from"
                        );
                    }
                }
            }
            for (rank, have) in have.iter().enumerate() {
                assert!(
                    have.iter().enumerate().all(|(slot, has)| *has == ((rank + slot) % size, rank)),
                    "{size} ranks"
                );
            }
        }
    }

    #[test]
    fn what_is_passed_on_has_room_wherever_it_comes() {
        for ranks in 2..=1024 {
            let segment = segment(ranks);
            let memory = 2 * ranks * (LEAD + segment);
            for bytes in [1, SHORT + 1, 8 << 10, 60_000, 64 << 10, 1 << 20] {
                let Some(layout) = layout(bytes, ranks, segment) else { continue };
                assert_eq!(layout.each, share(&(0..bytes), ranks, 0).len());
                let sent: usize = steps(ranks).map(|step| slots(ranks, step).count() * layout.slot).sum();
                assert!(sent <= memory && layout.results + ranks * layout.each <= memory);
                for (step, count) in rounds(ranks) {
                    let ours = slots(ranks, step).count() * layout.slot;
                    // Those that wait for shares, for short contributions and for first pieces.
                    assert!(ours <= layout.room.min((count * block(SHORT)).max(HEADER + segment)));
                    assert!((count * block(SHORT)).max(HEADER + segment) <= layout.room);
                }
            }
            if ranks <= 64 {
                assert!(layout(64 << 10, ranks, segment).is_some(), "{ranks} ranks");
            }
        }
        assert_eq!(layout(16 << 20, 8, segment(8)), None);
    }
}
