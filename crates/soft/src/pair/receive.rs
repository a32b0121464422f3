//! The receive queue: messages out of the peer's ring.

use fulmen_memory::Exposed;
use fulmen_reach::ring::Frame;
use fulmen_verbs::{Access, AsyncEvent, Completion, CompletionOpcode, CompletionStatus, QueuePairState, RecvRequest};
use smallvec::SmallVec;

use super::link::{Link, Near};
use super::message::{HEADER, Header, Kind, PLACE, SentPlace};
use super::send::{each_piece, runs};
use super::{Inner, Pair, Recv};
use crate::layout::EAGER;
use crate::remote::{Lookup, Remote};
use crate::vm::Fault;

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
pub(super) enum Outcome {
    /// There is none, or it waits for a mapping or a RECV.
    Nothing,
    /// No RECV is posted for it, and the sender is to know.
    Stalled,
    /// It is out of the ring.
    Taken { large: bool },
    /// It ends the connection: what the front RECV says, if there is one for it, and what the sender is told.
    Refused { recv: Option<CompletionStatus>, sender: CompletionStatus },
    /// The peer may not have what it asks for: it is told, and nothing else happens here.
    Denied(CompletionStatus),
    /// It was answered in part.
    InPart,
}

pub(super) const CORRUPT: Outcome = Outcome::Refused { recv: None, sender: CompletionStatus::RemoteOperation };

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
        if let Some(Link::Far(_)) = inner.link {
            let turn = self.receive_far(inner);
            self.tell(inner, false);
            return turn;
        }
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
                    self.note_first(inner);
                    if large {
                        inner.wire.acknowledge(inner.taken);
                    }
                }
                Outcome::InPart => {
                    (full, worked) = (false, true);
                    break;
                }
                Outcome::Denied(status) => {
                    inner.denied = true;
                    inner.wire.refuse(inner.taken, status);
                    (full, worked) = (false, true);
                    break;
                }
                Outcome::Refused { recv, sender } => {
                    self.refuse(inner, recv, sender);
                    return Turn::Worked;
                }
            }
        }
        if let Some(link) = inner.link.as_ref().filter(|_| worked) {
            inner.wire.acknowledge(inner.taken);
            link.wake();
        }
        match (full, worked) {
            (true, _) => Turn::Full,
            (false, true) => Turn::Worked,
            (false, false) => Turn::Idle,
        }
    }

    /// A message was taken.
    pub(super) fn note_first(&self, inner: &mut Inner) {
        if inner.state == QueuePairState::ReadyToReceive && !inner.established {
            inner.established = true;
            self.domain.device.tell(AsyncEvent::Established { qp_num: self.number });
        }
    }

    /// Ends the connection: what the front RECV says, if there is one for it, and what the sender is told.
    pub(super) fn refuse(&self, inner: &mut Inner, recv: Option<CompletionStatus>, sender: CompletionStatus) {
        let failed = recv.and_then(|status| Some((inner.recvs.pop_front()?, status)));
        let told = failed.is_some();
        if let Some((recv, status)) = failed {
            self.complete_recv(recv.request.wr_id, status);
        }
        if self.is_reliable() {
            inner.wire.acknowledge(inner.taken);
            inner.wire.refuse(inner.taken, sender);
            if let Some(Link::Far(far)) = &mut inner.link {
                far.refuse(inner.taken, sender);
            }
        } else {
            // Nobody is told, but the memory of the sender is no longer needed.
            inner.wire.acknowledge(inner.taken + 1);
        }
        self.break_off(inner);
        if !told {
            // No completion says why the queue pair is in error.
            self.domain.device.tell(AsyncEvent::QueuePairFatal { qp_num: self.number });
        }
    }

    fn receive_one(&self, inner: &mut Inner) -> Outcome {
        if inner.closed {
            return Outcome::Nothing;
        }
        let Inner {
            link: Some(Link::Near(link)),
            wire: own,
            recvs,
            recv_used,
            taken,
            filled,
            written,
            dropping,
            stalled,
            denied,
            ..
        } = inner
        else {
            return Outcome::Nothing;
        };
        let Near { remote, wire, ring, .. } = &mut **link;
        if !wire.answers(own.incarnation) {
            // What is in its ring is for the queue pair that it is connected to, now or before this one was reset.
            return Outcome::Nothing;
        }
        if *denied || wire.is_void() {
            // The sender was told that what is left here failed.
            return self.close(inner);
        }
        let frame = match ring.peek() {
            Ok(Some(frame)) => frame,
            Ok(None) if self.shared.is_none() || recvs.is_empty() || remote.is_alive() => return Outcome::Nothing,
            Ok(None) => return self.close(inner),
            Err(_) => return CORRUPT,
        };
        let Some(header) = header_of(&frame) else { return CORRUPT };
        // The parts of a message follow each other, and the last word of a WRITE its parts.
        let follows = match header.kind {
            Kind::Bytes => *written == 0 && header.offset == *filled,
            Kind::Write => *filled == 0 && header.offset == *written,
            Kind::Written => *filled == 0 && (*written == 0 || *written == header.total),
            Kind::Places | Kind::Read | Kind::Atomic => *filled == 0 && *written == 0,
        };
        if !follows {
            return CORRUPT;
        }
        if header.kind.is_asked() {
            return self.serve(inner, header);
        }
        let body = frame.len() - HEADER;
        let whole = header.kind != Kind::Bytes || header.offset as usize + body == header.total as usize;
        if let Some(shared) = self.shared.as_ref().filter(|_| recvs.is_empty() && !*dropping) {
            recvs.extend(shared.take(&self.this, &mut inner.hungry).map(|request| Recv { request, depth: 0 }));
        }
        let Some(recv) = recvs.front().map(|recv| &recv.request).filter(|_| !*dropping) else {
            if *dropping || !self.is_reliable() && !self.holds() && inner.patience.is_over() {
                // UC does not wait for a RECV, and a message of which a part was lost is lost.
                frame.release();
                *dropping = !whole;
                *filled = if whole { 0 } else { header.offset + body as u32 };
                *written = 0;
                *taken += u64::from(whole);
                return Outcome::Taken { large: false };
            }
            return if self.is_reliable() { Outcome::Stalled } else { Outcome::Nothing };
        };
        inner.patience.renew();
        if stalled.take().is_some() {
            // Mapping and copying take as long as they do, which the sender's clock does not count.
            own.unstall();
            remote.wake();
        }
        if header.kind != Kind::Written
            && let Err(refused) = self.check_room(header.total, recv)
        {
            return refused;
        }
        match header.kind {
            Kind::Written | Kind::Write | Kind::Read | Kind::Atomic => {}
            Kind::Bytes => {
                each_piece(&recv.pieces, header.offset as usize, body, |memory, start, len, done| {
                    frame.copy_to(HEADER + done, memory, start, len);
                });
            }
            Kind::Places => match self.sources(&frame, &header, remote) {
                Ok(sources) => {
                    let copied = copy(&sources, recv, remote);
                    if wire.is_void() || copied == Err(Fault::Gone) || copied.is_err() && !remote.is_alive() {
                        // The sender gave up meanwhile and uses its memory otherwise: the bytes may be anything. Or it
                        // is gone, which this process may hear of a little later.
                        return self.close(inner);
                    }
                    if copied.is_err() {
                        return UNREADABLE;
                    }
                }
                Err(Missing::Later) => return Outcome::Nothing,
                Err(Missing::Wrong) if !remote.is_alive() || wire.is_void() => return self.close(inner),
                Err(Missing::Wrong) => return UNREADABLE,
            },
        }
        frame.release();
        if !whole {
            *filled = header.offset + body as u32;
            return Outcome::Taken { large: false };
        }
        (*filled, *written) = (0, 0);
        *taken += 1;
        let Some(recv) = recvs.pop_front() else { return CORRUPT };
        *recv_used -= recv.depth;
        let opcode = match header.kind {
            Kind::Written => CompletionOpcode::RecvWriteWithImm,
            _ => CompletionOpcode::Recv,
        };
        self.complete_message(recv, opcode, header.total, header.imm, header.solicited);
        Outcome::Taken { large: header.total as usize > EAGER }
    }

    /// A RECV has its message.
    pub(super) fn complete_message(
        &self,
        recv: Recv,
        opcode: CompletionOpcode,
        byte_len: u32,
        imm: Option<u32>,
        solicited: bool,
    ) {
        let wr_id = recv.request.wr_id;
        let (status, qp_num) = (CompletionStatus::Success, self.number);
        // Its memory is let go before another thread can see that it is done.
        drop(recv);
        self.recv_queue.push(Completion { wr_id, status, opcode, byte_len, imm, qp_num, origin: None }, solicited);
    }

    /// The peer is gone, and what it had begun to send will never be whole. A RECV that was taken for it is for others.
    pub(super) fn close(&self, inner: &mut Inner) -> Outcome {
        // What waited for a RECV waits no more.
        inner.patience.renew();
        if let Some(shared) = &self.shared {
            inner.closed = true;
            for recv in inner.recvs.drain(..).rev() {
                shared.give_back(recv.request);
            }
        }
        Outcome::Nothing
    }

    /// Whether a message may go into a RECV.
    pub(super) fn check_room(&self, total: u32, recv: &RecvRequest) -> Result<(), Outcome> {
        let limits = &self.domain.device.info.limits;
        let room = recv.bytes();
        let total = u64::from(total);
        let unequal = limits.frame.is_some() && limits.depth_of(total) != limits.depth_of(room);
        if total > room || unequal {
            let recv = Some(CompletionStatus::LocalLength);
            return Err(Outcome::Refused { recv, sender: CompletionStatus::RemoteInvalidRequest });
        }
        // Each part is checked: the memory may have been given back since the one before it.
        if self.places(&recv.pieces, Access::LOCAL_WRITE).is_none() {
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
            let Some(share) = place.share else {
                let len = usize::try_from(place.len).map_err(|_| Missing::Wrong)?;
                total = total.checked_add(place.len).ok_or(Missing::Wrong)?;
                sources.push(Source::Plain(place.offset, len));
                continue;
            };
            let memory = match remote.region(share, &self.domain.device.progress) {
                Lookup::Mapped(memory) => memory,
                Lookup::Later => return Err(Missing::Later),
                Lookup::Refused => return Err(Missing::Wrong),
            };
            let end = place.offset.checked_add(place.len).ok_or(Missing::Wrong)?;
            if end > memory.len() as u64 {
                return Err(Missing::Wrong);
            }
            total = total.checked_add(place.len).ok_or(Missing::Wrong)?;
            // Both lie in the mapping, so that they are sizes.
            sources.push(Source::Mapped(memory, place.offset as usize, place.len as usize));
        }
        if total == u64::from(header.total) { Ok(sources) } else { Err(Missing::Wrong) }
    }
}

const UNREADABLE: Outcome =
    Outcome::Refused { recv: Some(CompletionStatus::LocalQueuePair), sender: CompletionStatus::RemoteOperation };

/// Memory of the sender: where the bytes start, and how many.
enum Source {
    /// In a region that is mapped here.
    Mapped(Exposed, usize, usize),
    /// In its process.
    Plain(u64, usize),
}

type Sources = SmallVec<[Source; 2]>;

fn header_of(frame: &Frame<'_>) -> Option<Header> {
    let mut bytes = [0; HEADER];
    if frame.len() < HEADER {
        return None;
    }
    frame.read(0, &mut bytes);
    Header::from_bytes(bytes, frame.len())
}

/// The one copy of a long message. The RECV has room.
fn copy(sources: &Sources, recv: &RecvRequest, remote: &Remote) -> Result<(), Fault> {
    let mut at = 0;
    for source in sources {
        let len = match source {
            Source::Mapped(memory, offset, len) => {
                each_piece(&recv.pieces, at, *len, |piece, start, run, done| {
                    memory.copy_to(offset + done, piece, start, run);
                });
                *len
            }
            Source::Plain(addr, len) => {
                remote.process().ok_or_else(|| remote.fault())?.read(*addr, runs(&recv.pieces, at, *len))?;
                *len
            }
        };
        at += len;
    }
    Ok(())
}
