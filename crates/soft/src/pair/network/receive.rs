//! What comes in: frames out of the connection, each consumed with what is at hand.

use fulmen_verbs::{Access, CompletionOpcode, CompletionStatus};
use smallvec::SmallVec;

use super::super::link::Link;
use super::super::receive::{Outcome, Turn};
use super::super::send::{Send, Stage, each_piece};
use super::super::{Inner, Pair, Recv};
use super::far::{Body, Coming, Far, Sink};
use super::frames::{HEAD, Head, Kind, MOST_ASKED, OPERANDS};
use super::serve::put;
use crate::network::{Ended, Room};
use crate::vm::LAST;

/// Calls of the kernel before others have their turn.
const READS_A_TURN: usize = 16;
/// As many bytes of a frame are received where they belong; fewer are copied there.
const IN_PLACE: usize = 8 << 10;
/// After frames of messages of so many bytes, others of that kind are expected: of such a one no more than this is read with its head,
/// since it has to be copied. There is room for several short ones in it.
const LONG: u32 = 32 << 10;
const AHEAD: usize = 512;

/// How far the bytes went that had come.
enum Digested {
    /// There are no more.
    All,
    /// The next message waits.
    Held,
    /// The queue pair is in error.
    Over,
}

/// What the next step did.
enum Step {
    On,
    /// There are not enough bytes.
    Hungry,
    Held,
    Over,
}

/// What the kernel had.
enum Filled {
    Nothing,
    /// Something. `more`: there may be more.
    Some {
        more: bool,
    },
    /// The registration that the bytes go to has ended.
    Lost,
    Ended(Ended),
}

type Rooms<'a> = SmallVec<[Room<'a>; 18]>;

/// The request of this side that the peer answers.
fn asked(sends: &mut std::collections::VecDeque<Send>, begun: usize, number: u64) -> Option<&mut Send> {
    sends.iter_mut().take(begun).find(|send| send.stage == Stage::Sent(number))
}

impl Pair {
    /// Takes what has come over the connection.
    pub(in crate::pair) fn receive_far(&self, inner: &mut Inner) -> Turn {
        let mut worked = self.attend(inner);
        if !self.still_fits(inner) {
            return Turn::Worked;
        }
        let taken = inner.taken;
        let mut last = false;
        let mut reads = 0;
        let turn = loop {
            match self.digest(inner) {
                Digested::All => {}
                Digested::Held => break if worked { Turn::Worked } else { Turn::Idle },
                Digested::Over => return Turn::Worked,
            }
            if last {
                break if worked { Turn::Worked } else { Turn::Idle };
            }
            if reads == READS_A_TURN {
                break Turn::Full;
            }
            reads += 1;
            match self.fill(inner) {
                Filled::Nothing => last = true,
                Filled::Some { more } => (worked, last) = (true, !more),
                Filled::Lost => self.lose_write(inner),
                Filled::Ended(Ended(why)) => {
                    self.gone(inner, &why);
                    return Turn::Worked;
                }
            }
        };
        if inner.taken != taken {
            self.note_first(inner);
        }
        if worked {
            self.attend(inner);
        }
        turn
    }

    /// Has RECVs for the peer that asks for them, or has it told that there are none: whether there was anything new.
    pub(in crate::pair) fn attend(&self, inner: &mut Inner) -> bool {
        let Inner { link: Some(Link::Far(far)), recvs, posted, hungry, .. } = inner else { return false };
        if !far.credited || far.heard.wants <= *posted || far.heard.over {
            return false;
        }
        let before = *posted;
        if let Some(shared) = &self.shared {
            while far.heard.wants > *posted && recvs.len() < MOST_ASKED {
                let Some(request) = shared.take(&self.this, hungry) else { break };
                recvs.push_back(Recv { request, depth: 0 });
                *posted += 1;
            }
        }
        if far.reliable && recvs.is_empty() && far.told.stalled != Some(far.received) {
            far.told.stalled = Some(far.received);
            far.told.stall_owed = true;
            return true;
        }
        *posted != before
    }

    /// Looks whether the memory into which bytes are coming may still be written. What is registered at the moment stays
    /// as it is as long as this queue pair's lock is held, but for what peers reach. False: the queue pair is in error.
    fn still_fits(&self, inner: &mut Inner) -> bool {
        let Inner { link: Some(Link::Far(far)), recvs, .. } = inner else { return true };
        let Coming::Body(Body { sink, head, .. }) = far.input.coming else { return true };
        match sink {
            Sink::Recv => {
                let recv = recvs.front();
                if recv.is_some_and(|recv| self.places(&recv.request.pieces, Access::LOCAL_WRITE).is_none()) {
                    self.refuse(inner, Some(CompletionStatus::LocalProtection), CompletionStatus::RemoteOperation);
                    return false;
                }
            }
            Sink::Request if !self.answer_fits(inner, head.addr) => self.divert(inner),
            Sink::Request | Sink::Memory | Sink::Nowhere => {}
        }
        true
    }

    /// Whether the memory of a request may still be written, which fails otherwise.
    fn answer_fits(&self, inner: &mut Inner, number: u64) -> bool {
        let Some(send) = asked(&mut inner.sends, inner.begun, number) else { return false };
        if self.places(&send.pieces, Access::LOCAL_WRITE).is_some() {
            return true;
        }
        // It was given back meanwhile.
        send.stage = Stage::Failed(CompletionStatus::LocalProtection);
        (inner.broken, inner.asked) = (true, 0);
        false
    }

    /// Nothing becomes of the bytes that are coming.
    fn divert(&self, inner: &mut Inner) {
        if let Some(Link::Far(far)) = &mut inner.link
            && let Coming::Body(body) = &mut far.input.coming
        {
            body.sink = Sink::Nowhere;
        }
    }

    /// Consumes the bytes that have come.
    fn digest(&self, inner: &mut Inner) -> Digested {
        loop {
            let Some(Link::Far(far)) = &mut inner.link else { return Digested::Over };
            let step = match far.input.coming {
                Coming::Head => self.next_head(inner),
                Coming::Held(head) => self.arrive(inner, head),
                Coming::Body(body) => self.next_bytes(inner, body),
            };
            match step {
                Step::On => {}
                Step::Hungry => return Digested::All,
                Step::Held => return Digested::Held,
                Step::Over => return Digested::Over,
            }
        }
    }

    fn next_head(&self, inner: &mut Inner) -> Step {
        let Some(Link::Far(far)) = &mut inner.link else { return Step::Over };
        let waiting = far.input.waiting();
        let Some(bytes) = waiting.first_chunk::<HEAD>() else { return Step::Hungry };
        let Some(head) = Head::from_bytes(bytes) else { return self.corrupt(inner) };
        let operands = matches!(head.kind, Kind::FetchAdd | Kind::CompareSwap);
        if operands && waiting.len() < HEAD + OPERANDS {
            return Step::Hungry;
        }
        far.input.start += HEAD;
        far.hear(head.words);
        let first = !std::mem::replace(&mut far.heard.ready, true);
        if first != (head.kind == Kind::Ready) && head.kind != Kind::Bye {
            return self.corrupt(inner);
        }
        let heard = &mut far.heard;
        match head.kind {
            Kind::Ready => heard.not_ready_ns = head.addr,
            Kind::Words => {}
            Kind::Want => {
                let waits = head.rkey != 0;
                heard.wants = heard.wants.max(head.addr);
                self.attend(inner);
                if let Some(Link::Far(far)) = &mut inner.link
                    && !waits
                {
                    // It fails on the word that there is none. A RECV that came later would be taken from others in vain.
                    far.heard.wants = far.heard.wants.min(inner.posted);
                }
            }
            Kind::Stalled => heard.stalled = Some(head.addr),
            Kind::Refused => heard.refused = Some((head.addr, head.status())),
            Kind::Bye => heard.over = true,
            Kind::Send | Kind::Write => return self.arrive(inner, head),
            Kind::Read | Kind::FetchAdd | Kind::CompareSwap => return self.arrive_request(inner, head),
            Kind::Answer => return self.arrive_answer(inner, head),
        }
        Step::On
    }

    /// The peer breaks the rules.
    fn corrupt(&self, inner: &mut Inner) -> Step {
        self.refuse(inner, None, CompletionStatus::RemoteOperation);
        Step::Over
    }

    /// Goes on with the bytes behind a head.
    fn expect(inner: &mut Inner, head: Head, sink: Sink) -> Step {
        if let Some(Link::Far(far)) = &mut inner.link {
            far.input.coming = Coming::Body(Body { head, sink, done: 0 });
        }
        Step::On
    }

    /// A part of a SEND or of a WRITE, or one that was held.
    fn arrive(&self, inner: &mut Inner, head: Head) -> Step {
        if inner.denied || inner.closed {
            return Pair::expect(inner, head, Sink::Nowhere);
        }
        let Some(Link::Far(far)) = &inner.link else { return Step::Over };
        let held = matches!(far.input.coming, Coming::Held(_));
        // The parts of a message follow each other, and nothing comes before what was asked for is answered.
        let (before, other) = match head.kind {
            Kind::Send => (inner.filled, inner.written),
            _ => (inner.written, inner.filled),
        };
        let follows = other == 0 && (held || head.offset == before) && far.requests.is_empty();
        if !follows {
            return self.corrupt(inner);
        }
        match head.kind {
            Kind::Send => self.arrive_send(inner, head),
            // Its bytes were in place before it was held.
            _ if held => self.announce(inner, head),
            _ => self.arrive_write(inner, head),
        }
    }

    /// Looks for a RECV for the message: `Ok(false)` if it is lost.
    fn find_recv(&self, inner: &mut Inner, head: Head) -> Result<bool, Step> {
        let Inner { link: Some(Link::Far(far)), recvs, hungry, dropping, patience, .. } = inner else {
            return Err(Step::Over);
        };
        if *dropping {
            return Ok(false);
        }
        if let Some(shared) = self.shared.as_ref().filter(|_| recvs.is_empty() && !far.credited) {
            recvs.extend(shared.take(&self.this, hungry).map(|request| Recv { request, depth: 0 }));
        }
        if !recvs.is_empty() {
            patience.renew();
            return Ok(true);
        }
        if far.credited {
            // It was told how many there are.
            return Err(self.corrupt(inner));
        }
        if patience.is_over() {
            return Ok(false);
        }
        far.input.coming = Coming::Held(head);
        Err(Step::Held)
    }

    fn arrive_send(&self, inner: &mut Inner, head: Head) -> Step {
        match self.find_recv(inner, head) {
            Ok(true) => {}
            Ok(false) => {
                inner.dropping = true;
                return Pair::expect(inner, head, Sink::Nowhere);
            }
            Err(step) => return step,
        }
        let recv = &inner.recvs.front().expect("found above").request;
        if let Err(Outcome::Refused { recv, sender }) = self.check_room(head.total, recv) {
            self.refuse(inner, recv, sender);
            return Step::Over;
        }
        Pair::expect(inner, head, Sink::Recv)
    }

    fn arrive_write(&self, inner: &mut Inner, head: Head) -> Step {
        // All of it is looked at before any of it is written, and each part once more.
        let left = (head.total - head.offset) as usize;
        let desk = self.desk(inner.access, Kind::Write);
        let at = head.addr.checked_add(head.offset.into());
        let allowed = left == 0 || at.is_some_and(|addr| desk.reach(head.rkey, addr, left, |_, _| ()).is_some());
        if !allowed {
            if self.is_reliable() {
                self.deny(inner, CompletionStatus::RemoteAccess);
            } else {
                inner.dropping = true;
            }
        }
        let lost = inner.dropping || inner.denied;
        Pair::expect(inner, head, if lost { Sink::Nowhere } else { Sink::Memory })
    }

    fn arrive_request(&self, inner: &mut Inner, head: Head) -> Step {
        let Some(Link::Far(far)) = &mut inner.link else { return Step::Over };
        let mut operands = [0; 2];
        if head.len > 0 {
            // They were waited for.
            let bytes = &far.input.waiting()[..OPERANDS];
            operands = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")));
            far.input.start += OPERANDS;
        }
        if inner.denied || inner.closed {
            return Step::On;
        }
        if inner.filled != 0 || inner.written != 0 || !self.is_reliable() || !self.note_request(inner, head, operands) {
            return self.corrupt(inner);
        }
        Step::On
    }

    fn arrive_answer(&self, inner: &mut Inner, head: Head) -> Step {
        if inner.asked == 0 {
            // Its request has failed.
            return if inner.broken { Pair::expect(inner, head, Sink::Nowhere) } else { self.nonsense(inner) };
        }
        let first = inner.sends.iter().take(inner.begun).find(|send| send.is_asked());
        let fits = first.is_some_and(|send| {
            send.stage == Stage::Sent(head.addr)
                && send.answered == head.offset
                && head.offset + head.len <= send.bytes
                && head.total == send.bytes
        });
        if !fits {
            return self.nonsense(inner);
        }
        let sink = if self.answer_fits(inner, head.addr) { Sink::Request } else { Sink::Nowhere };
        Pair::expect(inner, head, sink)
    }

    /// The peer answers what was not asked.
    fn nonsense(&self, inner: &mut Inner) -> Step {
        self.fail(inner, CompletionStatus::RemoteOperation);
        Step::Over
    }

    /// Puts bytes behind a head where they belong.
    fn next_bytes(&self, inner: &mut Inner, body: Body) -> Step {
        let left = body.left();
        if left == 0 {
            return self.finish(inner, body);
        }
        let Inner { link: Some(Link::Far(far)), sends, begun, recvs, access, .. } = inner else { return Step::Over };
        let waiting = far.input.waiting();
        let len = left.min(waiting.len());
        if len == 0 {
            return Step::Hungry;
        }
        let bytes = &waiting[..len];
        let mut lost = false;
        match body.sink {
            Sink::Nowhere => {}
            Sink::Recv => {
                let Some(recv) = recvs.front() else { return Step::Over };
                each_piece(&recv.request.pieces, body.at(), len, |memory, start, run, done| {
                    memory.write(start, &bytes[done..done + run]);
                });
            }
            Sink::Request => {
                let Some(send) = asked(sends, *begun, body.head.addr) else { return Step::Over };
                each_piece(&send.pieces, body.at(), len, |memory, start, run, done| {
                    memory.write(start, &bytes[done..done + run]);
                });
            }
            Sink::Memory => {
                let last = len == left && body.head.is_last();
                let addr = body.head.addr + body.at() as u64;
                let desk = self.desk(*access, Kind::Write);
                lost = desk.reach(body.head.rkey, addr, len, |memory, at| put(bytes, memory, at, last)).is_none();
            }
        }
        far.input.start += len;
        far.input.coming = Coming::Body(Body { done: body.done + len as u32, ..body });
        if lost {
            self.lose_write(inner);
        }
        Step::On
    }

    /// The registration that a WRITE goes to has ended in the middle of it.
    fn lose_write(&self, inner: &mut Inner) {
        if self.is_reliable() {
            self.deny(inner, CompletionStatus::RemoteAccess);
        } else {
            inner.dropping = true;
        }
        self.divert(inner);
    }

    /// All bytes behind a head are in place.
    fn finish(&self, inner: &mut Inner, body: Body) -> Step {
        let head = body.head;
        let last = head.is_last();
        let Some(Link::Far(far)) = &mut inner.link else { return Step::Over };
        far.input.coming = Coming::Head;
        far.input.long = head.total >= LONG;
        // Whoever sends much waits for its memory, and one frame more costs little beside it.
        far.prompt |= last && head.ack_req && head.total as usize > IN_PLACE;
        far.awaited |= last && head.ack_req;
        if inner.denied || inner.closed {
            return Step::On;
        }
        match head.kind {
            Kind::Answer => {
                if let Some(send) =
                    asked(&mut inner.sends, inner.begun, head.addr).filter(|_| body.sink == Sink::Request)
                {
                    send.answered += head.len;
                    if send.answered == send.bytes {
                        inner.asked -= 1;
                        // Whatever came before it is done as well.
                        far.heard.words.acked = far.heard.words.acked.max(head.addr + 1);
                    }
                }
            }
            Kind::Send if !last => inner.filled = head.offset + head.len,
            Kind::Send => {
                inner.filled = 0;
                if std::mem::take(&mut inner.dropping) {
                    inner.taken += 1;
                } else {
                    self.received(inner, head, CompletionOpcode::Recv);
                }
            }
            _ if !last => inner.written = head.offset + head.len,
            _ => {
                inner.written = 0;
                if head.imm.is_some() {
                    return self.announce(inner, head);
                }
                inner.dropping = false;
                inner.taken += 1;
                far.prompt |= head.ack_req;
            }
        }
        Step::On
    }

    /// A WRITE with immediate data is in place.
    fn announce(&self, inner: &mut Inner, head: Head) -> Step {
        match self.find_recv(inner, head) {
            Ok(true) => self.received(inner, head, CompletionOpcode::RecvWriteWithImm),
            Ok(false) => {
                inner.dropping = false;
                inner.taken += 1;
            }
            Err(step) => return step,
        }
        if let Some(Link::Far(far)) = &mut inner.link {
            far.input.coming = Coming::Head;
        }
        Step::On
    }

    /// The front RECV is done.
    fn received(&self, inner: &mut Inner, head: Head, opcode: CompletionOpcode) {
        inner.taken += 1;
        if let Some(Link::Far(far)) = &mut inner.link {
            far.received += 1;
        }
        if let Some(recv) = inner.recvs.pop_front() {
            inner.recv_used -= recv.depth;
            self.complete_message(recv, opcode, head.total, head.imm, head.solicited);
        }
    }

    /// Takes more out of the kernel: straight to where it belongs, if that is much.
    fn fill(&self, inner: &mut Inner) -> Filled {
        let Inner { link: Some(Link::Far(far)), sends, begun, recvs, access, .. } = inner else {
            return Filled::Nothing;
        };
        let Far { stream, input, .. } = &mut **far;
        let Some(stream) = stream.as_mut().filter(|stream| stream.is_readable()) else { return Filled::Nothing };
        input.make_room();
        let alone = input.long && matches!(input.coming, Coming::Head);
        // Never less than the longest head needs, with what belongs to it.
        let end = if alone { AHEAD.max(HEAD + OPERANDS) } else { input.bytes.len() };
        let room = end - input.end;
        let ahead = Room::Bytes(&mut input.bytes[input.end..end]);
        let mut rooms: Rooms<'_> = SmallVec::new();
        let mut direct = 0;
        let result = match &input.coming {
            Coming::Body(body) if body.left() >= IN_PLACE && input.end == 0 => {
                let (at, left) = (body.at(), body.left());
                let pieces = match body.sink {
                    Sink::Recv => recvs.front().map(|recv| &recv.request.pieces),
                    Sink::Request => asked(sends, *begun, body.head.addr).map(|send| &send.pieces),
                    Sink::Memory | Sink::Nowhere => None,
                };
                if let Some(pieces) = pieces {
                    direct = left;
                    each_piece(pieces, at, left, |memory, at, len, _| rooms.push(Room::Memory { memory, at, len }));
                }
                if body.sink == Sink::Memory {
                    // The last bytes of a message are put in place last.
                    direct = left - LAST;
                    let addr = body.head.addr + at as u64;
                    let desk = self.desk(*access, Kind::Write);
                    let received = desk.reach(body.head.rkey, addr, direct, |memory, at| {
                        stream.receive(&mut [Room::Memory { memory, at, len: direct }, ahead])
                    });
                    match received {
                        Some(received) => received,
                        None => return Filled::Lost,
                    }
                } else {
                    rooms.push(ahead);
                    stream.receive(&mut rooms)
                }
            }
            _ => stream.receive(&mut [ahead]),
        };
        drop(rooms);
        match result {
            Ok(0) => Filled::Nothing,
            Ok(received) => {
                let placed = received.min(direct);
                if let Coming::Body(body) = &mut input.coming {
                    body.done += placed as u32;
                }
                input.end += received - placed;
                Filled::Some { more: received == direct + room }
            }
            Err(ended) => Filled::Ended(ended),
        }
    }
}
