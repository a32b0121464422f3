//! The receive queue: messages out of the peer's ring.

use fulmen_memory::Exposed;
use fulmen_reach::ring::Frame;
use fulmen_verbs::{Access, Completion, CompletionOpcode, CompletionStatus, RecvRequest};
use smallvec::SmallVec;

use super::message::{HEADER, Header, Kind, PLACE, SentPlace};
use super::send::each_piece;
use super::{Inner, Link, Pair};
use crate::layout::EAGER;
use crate::remote::{Lookup, Remote};

/// Messages taken before others have their turn.
const MESSAGES_A_TURN: usize = 64;

/// What a look at the peer's ring brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Idle,
    Worked,
    /// There may be more, after the others' turn.
    Full,
}

/// What became of the next frame.
enum Outcome {
    /// There is none, or it waits for a mapping or a RECV.
    Nothing,
    /// No RECV is posted for it, and the sender is to know.
    Stalled,
    /// It is out of the ring.
    Taken { large: bool },
    /// It ends the connection: what the front RECV says, if there is one for it, and what the sender is told.
    Refused { recv: Option<CompletionStatus>, sender: CompletionStatus },
}

const CORRUPT: Outcome = Outcome::Refused { recv: None, sender: CompletionStatus::RemoteOperation };

/// Why the bytes of a message cannot be had.
enum Missing {
    /// A region is being mapped.
    Later,
    /// The sender names memory that it does not share.
    Wrong,
}

impl Pair {
    /// Takes what has arrived.
    pub(super) fn receive(&self, inner: &mut Inner) -> Turn {
        let mut worked = false;
        let mut full = true;
        for _ in 0..MESSAGES_A_TURN {
            match self.receive_one(inner) {
                Outcome::Nothing => {
                    full = false;
                    break;
                }
                Outcome::Stalled => {
                    full = false;
                    if inner.stalled != Some(inner.taken) {
                        inner.stalled = Some(inner.taken);
                        inner.wire.stall(inner.taken);
                        // The sender starts its clock.
                        worked = true;
                    }
                    break;
                }
                Outcome::Taken { large } => {
                    worked = true;
                    if large {
                        inner.wire.acknowledge(inner.taken);
                    }
                }
                Outcome::Refused { recv, sender } => {
                    self.refuse(inner, recv, sender);
                    return Turn::Worked;
                }
            }
        }
        if let Some(link) = inner.link.as_ref().filter(|_| worked) {
            inner.wire.acknowledge(inner.taken);
            link.remote.wake();
        }
        match (full, worked) {
            (true, _) => Turn::Full,
            (false, true) => Turn::Worked,
            (false, false) => Turn::Idle,
        }
    }

    fn refuse(&self, inner: &mut Inner, recv: Option<CompletionStatus>, sender: CompletionStatus) {
        if let Some(status) = recv
            && let Some(recv) = inner.recvs.pop_front()
        {
            self.complete_recv(recv.request.wr_id, status);
        }
        if self.is_reliable() {
            inner.wire.acknowledge(inner.taken);
            inner.wire.refuse(inner.taken, sender);
        } else {
            // Nobody is told, but the memory of the sender is no longer needed.
            inner.wire.acknowledge(inner.taken + 1);
        }
        self.break_off(inner);
    }

    fn receive_one(&self, inner: &mut Inner) -> Outcome {
        let Inner { link: Some(link), wire: own, recvs, recv_used, taken, filled, dropping, stalled, .. } = inner
        else {
            return Outcome::Nothing;
        };
        let Link { remote, wire, ring } = link;
        if !wire.answers(own.incarnation) {
            // What is in its ring is for the queue pair that it is connected to, now or before this one was reset.
            return Outcome::Nothing;
        }
        if wire.is_void() {
            // The sender was told that what is left here failed.
            return Outcome::Nothing;
        }
        let frame = match ring.peek() {
            Ok(Some(frame)) => frame,
            Ok(None) => return Outcome::Nothing,
            Err(_) => return CORRUPT,
        };
        let Some(header) = header_of(&frame) else { return CORRUPT };
        let begun = *filled > 0;
        if begun && (header.kind != Kind::Bytes || header.offset != *filled) || !begun && header.offset != 0 {
            return CORRUPT;
        }
        let body = frame.len() - HEADER;
        let whole = header.kind != Kind::Bytes || header.offset as usize + body == header.total as usize;
        let Some(recv) = recvs.front().map(|recv| &recv.request).filter(|_| !*dropping) else {
            if *dropping || !self.is_reliable() && !self.holds() {
                // UC does not wait for a RECV, and a message of which a part was lost is lost.
                frame.release();
                *dropping = !whole;
                *filled = if whole { 0 } else { header.offset + body as u32 };
                *taken += u64::from(whole);
                return Outcome::Taken { large: false };
            }
            return if self.is_reliable() { Outcome::Stalled } else { Outcome::Nothing };
        };
        if stalled.take().is_some() {
            // Mapping and copying take as long as they do, which the sender's clock does not count.
            own.unstall();
            remote.wake();
        }
        if header.kind != Kind::Written
            && let Err(refused) = self.check_room(&header, recv)
        {
            return refused;
        }
        match header.kind {
            Kind::Written => {}
            Kind::Bytes => {
                each_piece(&recv.pieces, header.offset as usize, body, |memory, start, len, done| {
                    frame.copy_to(HEADER + done, memory, start, len);
                });
            }
            Kind::Places => match self.sources(&frame, &header, remote) {
                Ok(sources) => {
                    copy(&sources, recv);
                    if wire.is_void() {
                        // The sender gave up meanwhile and uses its memory otherwise: the bytes may be anything.
                        return Outcome::Nothing;
                    }
                }
                Err(Missing::Later) => return Outcome::Nothing,
                Err(Missing::Wrong) if !remote.is_alive() || wire.is_void() => return Outcome::Nothing,
                Err(Missing::Wrong) => {
                    let recv = Some(CompletionStatus::LocalQueuePair);
                    return Outcome::Refused { recv, sender: CompletionStatus::RemoteOperation };
                }
            },
        }
        frame.release();
        if !whole {
            *filled = header.offset + body as u32;
            return Outcome::Taken { large: false };
        }
        *filled = 0;
        *taken += 1;
        let Some(recv) = recvs.pop_front() else { return CORRUPT };
        *recv_used -= recv.depth;
        let opcode = match header.kind {
            Kind::Written => CompletionOpcode::RecvWriteWithImm,
            Kind::Bytes | Kind::Places => CompletionOpcode::Recv,
        };
        let completion = Completion {
            wr_id: recv.request.wr_id,
            status: CompletionStatus::Success,
            opcode,
            byte_len: header.total,
            imm: header.imm,
            qp_num: self.number,
        };
        // Its memory is let go before another thread can see that it is done.
        drop(recv);
        self.recv_queue.push(completion, header.solicited);
        Outcome::Taken { large: header.total as usize > EAGER }
    }

    /// Whether a message may go into a RECV.
    fn check_room(&self, header: &Header, recv: &RecvRequest) -> Result<(), Outcome> {
        let limits = &self.domain.device.info.limits;
        let room = recv.bytes();
        let total = u64::from(header.total);
        let unequal = limits.frame.is_some() && limits.depth_of(total) != limits.depth_of(room);
        if total > room || unequal {
            let recv = Some(CompletionStatus::LocalLength);
            return Err(Outcome::Refused { recv, sender: CompletionStatus::RemoteInvalidRequest });
        }
        // One check for all parts: the keys were right when the first one was placed.
        if header.offset == 0 && self.places(&recv.pieces, Access::LOCAL_WRITE).is_none() {
            let recv = Some(CompletionStatus::LocalProtection);
            return Err(Outcome::Refused { recv, sender: CompletionStatus::RemoteOperation });
        }
        Ok(())
    }

    /// The sender's memory that the frame names.
    fn sources(&self, frame: &Frame<'_>, header: &Header, remote: &Remote) -> Result<Sources, Missing> {
        let mut sources = Sources::new();
        let mut total = 0_u64;
        for at in (HEADER..frame.len()).step_by(PLACE) {
            let mut bytes = [0; PLACE];
            frame.read(at, &mut bytes);
            let place = SentPlace::from_bytes(bytes);
            let memory = match remote.region(place.share, &self.domain.device.progress) {
                Lookup::Mapped(memory) => memory,
                Lookup::Later => return Err(Missing::Later),
                Lookup::Refused => return Err(Missing::Wrong),
            };
            let end = place.offset.checked_add(place.len).ok_or(Missing::Wrong)?;
            if end > memory.len() as u64 {
                return Err(Missing::Wrong);
            }
            total += place.len;
            // Both lie in the mapping, so that they are sizes.
            sources.push((memory, place.offset as usize, place.len as usize));
        }
        if total == u64::from(header.total) { Ok(sources) } else { Err(Missing::Wrong) }
    }
}

/// Memory of the sender: the mapped region, where the bytes start, and how many.
type Sources = SmallVec<[(Exposed, usize, usize); 2]>;

fn header_of(frame: &Frame<'_>) -> Option<Header> {
    let mut bytes = [0; HEADER];
    if frame.len() < HEADER {
        return None;
    }
    frame.read(0, &mut bytes);
    Header::from_bytes(bytes, frame.len())
}

/// The one copy of a long message. The RECV has room.
fn copy(sources: &Sources, recv: &RecvRequest) {
    let mut at = 0;
    for (source, offset, len) in sources {
        each_piece(&recv.pieces, at, *len, |memory, start, run, done| {
            source.copy_to(offset + done, memory, start, run);
        });
        at += len;
    }
}
