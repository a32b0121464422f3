//! A queue pair whose peer is on another host: its messages go over one TCP connection of the two.
//!
//! States, queues, completions, flushing and clocks are those of every queue pair. What shared memory holds for a peer on
//! this host goes in [frames]: messages, requests and answers with their bytes, and the words that a side tells the other
//! one (what it has taken, how many RECVs it has posted), which ride on every frame and go alone only when there has been
//! nothing else to be done for a few looks, or when the peer may have to wait for them. Of requests that do not complete
//! visibly nobody awaits the acknowledgement (`ack_req` says which do): it goes with something else, or late.
//!
//! - *One executor.* The owner of memory does what its peers ask for, WRITEs, READs and atomics alike, under the same
//!   look at its table of registrations as for plain memory on one host. Nothing is written once a registration has ended:
//!   bytes are received under the table's lock, or under the queue pair's, which the end of a registration takes.
//! - *RECVs are granted.* Where messages are not lost (RC, and all of Thunderbolt), one that takes a RECV goes out when the
//!   peer has said that there is one. Who has none asks (`Want`), and hears of the next one, or that there is none, which
//!   starts the clock of RNR. RECVs of a shared queue are taken when they are asked for, which costs a journey. UC that
//!   may lose messages needs no grants: the receiver decides when a message comes.
//! - *Bytes are moved once by each side.* What is short is put together, goes out by one call and comes in by one. Longer
//!   bytes go to the kernel out of registered memory, and come from it into the RECV, in frames of 1 MiB at most, so that
//!   others get in between.
//! - *No deadlock, whatever both sides send.* A side that is driven always reads, and what it reads never waits for what it
//!   sends: messages have their RECV, or are lost; WRITEs and answers go to memory; of requests there is room for as
//!   many as the other side may ask for at a time; and words replace each other. (A message that UC keeps for
//!   [`recv_patience`](crate::SoftOptions::recv_patience) holds up those behind it for so long, of which nobody waits for
//!   an answer.) So each side's bytes are taken out of the kernel as long as the other one is driven, and each side can
//!   send some time.
//! - *An end is told.* A queue pair in error says goodbye, after whatever it refused; then it is as a peer on this host that
//!   is in error. A connection that ends without that is a process or a host that is gone. A connection that lives is never
//!   taken for silent, however slow.

mod door;
mod far;
pub(crate) mod frames;
mod receive;
mod send;
mod serve;

use std::time::Instant;

use fulmen_verbs::QueuePairState;

pub(super) use far::Far;

use self::frames::{Head, Kind, Words};
use super::link::Link;
use super::receive::Turn;
use super::{Inner, Pair};

impl Pair {
    /// The words that are true now.
    pub(super) fn words(inner: &Inner) -> Words {
        Words { acked: inner.taken, granted: inner.posted }
    }

    /// Looks for the connection that the peer opens, if it has not come yet.
    fn collect(&self, inner: &mut Inner) -> bool {
        let Some(network) = &self.domain.device.network else { return false };
        let Some(Link::Far(far)) = &mut inner.link else { return false };
        if far.stream.is_some() || !far.is_alive() {
            return false;
        }
        let arrivals = network.arrivals();
        if arrivals == far.arrivals {
            return false;
        }
        far.arrivals = arrivals;
        match network.collect(&far.own, &far.peer.named()) {
            Some(Ok((end, stream))) if far.is_peer(&end) => {
                far.attach(end, stream);
                self.greet(inner);
                true
            }
            Some(Err(why)) => {
                self.gone(inner, &why);
                true
            }
            _ => false,
        }
    }

    /// Whether something has come for this queue pair since it was driven last.
    pub(super) fn is_told(&self, far: &Far) -> bool {
        match &far.stream {
            Some(_) => far.is_readable(),
            None => self.domain.device.network.as_ref().is_none_or(|network| network.arrivals() != far.arrivals),
        }
    }

    /// Says that messages of the peer are taken from now on.
    fn greet(&self, inner: &mut Inner) {
        let words = Pair::words(inner);
        if let Some(Link::Far(far)) = &mut inner.link
            && let Some(stream) = &far.stream
        {
            let (peer, number, sealed) = (stream.peer(), far.peer.number, stream.is_sealed());
            tracing::debug!(own = self.number, %peer, number, sealed, "a queue pair has its connection to another host");
            stream.end_rest(&self.rest);
            far.push(Head::bare(Kind::Ready, far.not_ready_ns, words));
        }
        self.flush(inner);
    }

    /// Begins with a peer that was met.
    pub(super) fn start_far(&self, inner: &mut Inner, not_ready_ns: u64) {
        if let Some(Link::Far(far)) = &mut inner.link {
            far.not_ready_ns = not_ready_ns;
        }
        self.greet(inner);
        self.collect(inner);
        self.answer_call(inner);
    }

    /// Does what can be done with a peer on another host but for what this side sends: whether there was anything, and whether
    /// something `came`.
    pub(super) fn drive_far(&self, inner: &mut Inner, came: &mut bool) -> bool {
        let mut worked = self.collect(inner);
        let overdue = inner.link.as_ref().and_then(Link::far).is_some_and(Far::falls_due);
        *came = self.receive_far(inner) != Turn::Idle;
        if let Some(Link::Far(far)) = &mut inner.link
            && overdue
        {
            far.note_silence();
        }
        worked |= *came;
        worked |= self.flush(inner);
        worked |= self.answer(inner);
        worked
    }

    /// Tells the peer what it is owed. `idle`: there is nothing else to be done.
    pub(super) fn tell(&self, inner: &mut Inner, idle: bool) {
        let words = Pair::words(inner);
        let Some(Link::Far(far)) = &mut inner.link else { return };
        if far.stream.is_none() || !far.out.has_room(Far::URGENT + frames::HEAD) {
            return;
        }
        far.push_urgent(words);
        if far.out.is_empty() && far.owes(words, idle) {
            far.push(Head::bare(Kind::Words, 0, words));
        }
        if !far.out.is_empty() {
            self.flush(inner);
        }
    }

    /// Tells what nobody waits for when that is late: when to look again, if there is something.
    pub(super) fn tell_late(&self, inner: &mut Inner) -> Option<Instant> {
        let words = Pair::words(inner);
        let Some(Link::Far(far)) = &mut inner.link else { return None };
        let until = far.late(words)?;
        if far.stream.is_none() || !far.out.is_empty() {
            // What is in the way goes when the connection tells of room, and it is looked at then.
            return None;
        }
        if Instant::now() < until {
            return Some(until);
        }
        far.push(Head::bare(Kind::Words, 0, words));
        self.flush(inner);
        None
    }

    /// Whether there is nothing to be done until the program does something or the connection tells of something. (What is
    /// told late is for the device's thread.)
    pub(super) fn is_settled(&self, inner: &Inner, far: &Far) -> bool {
        let sends = inner.begun == inner.sends.len() && !inner.broken;
        let waits = inner.hungry || inner.lingering.is_some() || inner.patience.until().is_some();
        sends && !waits && far.is_settled(Pair::words(inner))
    }

    /// The connection has ended.
    fn gone(&self, inner: &mut Inner, why: &str) {
        let Some(Link::Far(far)) = &mut inner.link else { return };
        let (own, peer) = (self.number, far.peer);
        if far.heard.over || inner.state == QueuePairState::Error {
            tracing::debug!(own, peer = %peer.device, number = peer.number, why, "a connection that is over has ended");
        } else {
            tracing::info!(own, peer = %peer.device, number = peer.number, why, "the connection of a queue pair has ended");
        }
        far.gone();
        self.close(inner);
    }

    /// Says goodbye, after what the peer was to be told, and lets go of the connection.
    pub(super) fn part_far(&self, far: Far, words: Words) {
        let Some(network) = &self.domain.device.network else { return };
        network.part(self.number);
        let Far { stream, mut out, told, .. } = far;
        let Some(mut stream) = stream else { return };
        // Bytes of a frame that was broken off are the caller's again: the connection just ends.
        if out.cut || out.tail.is_some() {
            return;
        }
        if let Some((number, status)) = told.refusal {
            out.push(Head { rkey: status as u32, ..Head::bare(Kind::Refused, number, words) });
        }
        out.push(Head::bare(Kind::Bye, 0, words));
        while let Ok(taken) = stream.send(&[crate::network::Out::Bytes(out.rest())]) {
            if taken == 0 || out.advance(taken) {
                break;
            }
        }
        network.let_go(stream, out.rest());
    }
}
