//! Short calls: each host tells each other one what its ranks have, and each rank takes what it needs.

use std::ops::Range;

use fulmen_kernels::{Source, Stores};
use fulmen_memory::Exposed;
use smallvec::SmallVec;

use super::Nearby;
use crate::CollectiveError;
use crate::messages::exchange::Exchange;
use crate::messages::{HEADER, HEADER_TAG, Half, Messages, header};
use crate::request::Request;
use crate::windows::{Counter, FEW, Ongoing, Progress};

impl Messages {
    /// Runs a short call.
    pub(super) fn tell_hosts(
        &self,
        nearby: &Nearby,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        let Nearby { windows, placement, host } = nearby;
        let sequence = ongoing.sequence;
        nearby.told(windows.bring(request, ongoing, progress))?;
        windows.settle(ongoing);
        if placement.told_by(self.rank).next().is_some() {
            self.tell(nearby, request, ongoing)?;
        }
        let here = placement.ranks(*host);
        // By rank, where what it contributes lies; and how far each board of this host is filled.
        let mut places: SmallVec<[(&Exposed, usize); FEW]> = SmallVec::new();
        let mut boards: SmallVec<[(&Exposed, usize); FEW]> =
            (0..here.len()).map(|local| windows.board(local, sequence)).collect();
        let mut tell: SmallVec<[bool; FEW]> = SmallVec::from_elem(false, here.len());
        for other in 0..placement.hosts() {
            if other == *host {
                places.extend((0..here.len()).map(|local| windows.brought(local, request, sequence)));
                continue;
            }
            let local = placement.teller(*host, other) - here.start;
            tell[local] = true;
            let (board, at) = &mut boards[local];
            for rank in placement.ranks(other) {
                places.push((*board, *at));
                *at += block(request, rank..rank + 1);
            }
        }
        windows
            .await_counter(ongoing, Counter::Told, sequence, |local| tell[local])
            .map_err(|error| self.unheard(nearby, error, |other| other != *host))?;
        request.complete(0..request.span(), Stores::Cached, |peer, range| {
            let (memory, at) = places[peer as usize];
            Source::Exposed(memory, at + range.start)
        });
        windows.settle(ongoing);
        windows.check_poison(sequence)
    }

    /// Tells other hosts what the ranks of this one have, hears the same of them, and puts it on this rank's board.
    fn tell(&self, nearby: &Nearby, request: &Request<'_>, ongoing: &mut Ongoing<'_>) -> Result<(), CollectiveError> {
        let Nearby { windows, placement, host } = nearby;
        let sequence = ongoing.sequence;
        let mut exchange = Exchange::new(self, HEADER_TAG, Half(0));
        // By host, where what it tells comes.
        let mut heard: SmallVec<[(usize, usize, usize); 4]> = SmallVec::new();
        let mut at = 0;
        for other in placement.told_by(self.rank) {
            let peer = placement.teller(other, *host);
            // Of a call that does not match, more may come.
            let room = HEADER + block(request, placement.ranks(other)).max(self.segment);
            exchange.recv_into(peer, &self.incoming.slice(at..at + room))?;
            heard.push((other, peer, at));
            at = (at + room).next_multiple_of(64);
        }
        self.outgoing.write(0, &header(&request.call, ongoing));
        let mut end = HEADER;
        for (local, rank) in placement.ranks(*host).enumerate() {
            let len = request.contributed(rank as u32);
            if rank == self.rank {
                self.outgoing.write(end, request.contribution());
            } else {
                let (slot, at) = windows.brought(local, request, sequence);
                slot.copy_to(at, &self.outgoing, end, len);
            }
            end += len.next_multiple_of(8);
        }
        for (_, peer, _) in &heard {
            exchange.send_from(*peer, &self.outgoing.slice(0..end))?;
        }
        let unheard = |error| self.unheard(nearby, error, |other| heard.iter().any(|(heard, ..)| *heard == other));
        let lens = exchange.receive_all(ongoing).map_err(unheard)?.to_vec();
        let (board, mut to) = windows.board(self.rank - placement.ranks(*host).start, sequence);
        for (other, peer, at) in &heard {
            let len = block(request, placement.ranks(*other));
            self.check_header(*at, (*peer, lens[*peer]), HEADER + len, request, ongoing)?;
            self.incoming.copy_to(at + HEADER, board, to, len);
            to += len;
        }
        windows.show_board(ongoing);
        exchange.finish(ongoing)
    }
}

/// Bytes that these ranks contribute, each from a word of its own on.
fn block(request: &Request<'_>, ranks: Range<usize>) -> usize {
    ranks.map(|rank| request.contributed(rank as u32).next_multiple_of(8)).sum()
}
