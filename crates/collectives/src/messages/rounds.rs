//! Short calls of many ranks: what ranks contribute is passed on.
//!
//! In each round, a rank sends the oldest of what it has to the rank that is as many before it, in a circle, as it has
//! contributions, and gets as many from the one that is as many after it. So each has everybody's after as many rounds as it
//! takes to double one up to their number ([Bruck and others 1997](https://doi.org/10.1109/71.642949)), and all reduce
//! them in the same order as ever. Where each message costs both sides much, that is sooner than when everybody sends to
//! everybody. Calls are compared as contributions come: each has its rank's header.

use std::ops::Range;

use fulmen_fabric::FabricError;
use fulmen_kernels::{Source, Stores};

use super::exchange::Exchange;
use super::{HEADER, HEADER_TAG, Half, Messages, SHORT, header};
use crate::CollectiveError;
use crate::request::Request;
use crate::windows::Ongoing;

/// The rounds: how many ranks a rank goes on to, and how many contributions it gets there. It has as many as it goes on.
pub(crate) fn rounds(ranks: usize) -> impl Iterator<Item = (usize, usize)> {
    let steps = std::iter::successors(Some(1), |step| Some(2 * step));
    steps.take_while(move |step| *step < ranks).map(move |step| (step, step.min(ranks - step)))
}

/// Bytes of a contribution that is passed on, with its header.
pub(crate) fn block(contribution: usize) -> usize {
    HEADER + contribution.next_multiple_of(8)
}

impl Messages {
    /// Runs a short call.
    pub(super) fn pass_on(&self, request: &mut Request<'_>, ongoing: &mut Ongoing<'_>) -> Result<(), CollectiveError> {
        let size = self.size;
        let rank = |step: usize| (self.rank + step) % size;
        let call = request.call;
        // Where the contributions of the ranks from this one on are, and the end of the last.
        let mut at = vec![0];
        for step in 0..size {
            at.push(at[step] + block(request.contributed(rank(step) as u32)));
        }
        self.incoming.write(0, &header(&call, ongoing));
        self.incoming.write(HEADER, request.contribution());
        let mut exchange = Exchange::new(self, HEADER_TAG, Half(0));
        for (step, count) in rounds(size) {
            let (from, to) = (rank(step), rank(size - step));
            // Of a call that does not match, more may come.
            let room = (count * block(SHORT)).max(HEADER + self.segment);
            exchange.recv_into(from, &self.incoming.slice(at[step]..at[step] + room))?;
            exchange.send_from(to, &self.incoming.slice(0..at[count]))?;
            let end = exchange
                .receive(from, ongoing)
                .map_err(|error| missing(error, (step..step + count).map(|step| self.team.in_fabric(rank(step)))))?;
            let end = at[step] + end;
            for next in step..step + count {
                let last = next + 1 == step + count;
                let came = if last { end } else { end.min(at[next + 1]) }.saturating_sub(at[next]);
                self.check_header(at[next], (rank(next), came), at[next + 1] - at[next], request, ongoing)?;
            }
        }
        exchange.finish(ongoing)?;
        request.complete(0..request.span(), Stores::Cached, |peer, range: Range<usize>| {
            let step = (peer as usize + size - self.rank) % size;
            Source::Exposed(&self.incoming, at[step] + HEADER + range.start)
        });
        Ok(())
    }
}

/// Names all ranks whose contributions were to come: one of them did not call. The one that should have sent them may be
/// waiting, too.
pub(super) fn missing(mut error: CollectiveError, ranks: impl Iterator<Item = u32>) -> CollectiveError {
    if let CollectiveError::Fabric(FabricError::TimedOut { missing, .. }) = &mut error {
        *missing = ranks.collect();
        missing.sort_unstable();
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_everybodys_contribution_once() {
        for size in 1..=200 {
            let mut have: Vec<Vec<usize>> = (0..size).map(|rank| vec![rank]).collect();
            for (step, count) in rounds(size) {
                let before = have.clone();
                for (rank, have) in have.iter_mut().enumerate() {
                    assert!(count <= step && have.len() == step);
                    // What the one that is as many after this one sends: it goes as many back to this one.
                    have.extend(&before[(rank + step) % size][..count]);
                }
            }
            for (rank, have) in have.iter().enumerate() {
                assert!((0..size).map(|step| (rank + step) % size).eq(have.iter().copied()), "{size} ranks");
            }
            assert_eq!(rounds(size).count() as u32, usize::BITS - (size - 1).leading_zeros());
        }
    }

    #[test]
    fn what_is_received_has_room_in_the_memory_of_a_group() {
        for ranks in 2..=1024 {
            let segment = super::super::segment(ranks);
            let room = 2 * ranks * (super::super::LEAD + segment);
            assert!(ranks * block(SHORT) + HEADER + segment <= room);
        }
    }
}
