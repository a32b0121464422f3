//! What goes out: requests of this side, in order, and whatever the kernel has not taken yet.

use fulmen_verbs::{Access, CompletionStatus, SendOp};
use smallvec::SmallVec;

use super::super::link::Link;
use super::super::send::{Begun, Send, Stage, each_piece};
use super::super::{Inner, Pair};
use super::far::{Far, Source, Tail};
use super::frames::{CHUNK, HEAD, Head, Kind, MOST_ASKED, OPERANDS, Words};
use crate::network::{Ended, Out, Stream};

/// Up to so many bytes are copied behind their head; longer ones go out of the memory where they are.
pub(super) const SHORT: usize = 8192;

static ZEROS: [u8; 4096] = [0; 4096];

pub(super) type Outs<'a> = SmallVec<[Out<'a>; 18]>;

impl Send {
    /// Whether it takes a RECV of the peer.
    fn takes_recv(&self) -> bool {
        match self.op {
            SendOp::Send { .. } | SendOp::SendTo { .. } => true,
            SendOp::Write { imm, .. } => imm.is_some(),
            SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => false,
        }
    }

    /// The head of the frame that brings `len` bytes from `offset` on, or asks for all of them.
    fn head(&self, offset: usize, len: usize, words: Words) -> Head {
        let (kind, remote, imm) = match self.op {
            SendOp::Send { imm } | SendOp::SendTo { imm, .. } => (Kind::Send, None, imm),
            SendOp::Write { remote, imm } => (Kind::Write, Some(remote), imm),
            SendOp::Read { remote } => (Kind::Read, Some(remote), None),
            SendOp::FetchAdd { remote, .. } => (Kind::FetchAdd, Some(remote), None),
            SendOp::CompareSwap { remote, .. } => (Kind::CompareSwap, Some(remote), None),
        };
        let (addr, rkey) = remote.map_or((0, 0), |remote| (remote.addr, remote.rkey));
        let solicited = self.solicited && !self.brings();
        let ack_req = self.signaled && !self.brings();
        Head {
            kind,
            solicited,
            ack_req,
            imm,
            len: len as u32,
            total: self.bytes,
            offset: offset as u32,
            rkey,
            addr,
            words,
        }
    }

    /// Copies bytes from `at` on, as many as there is room for.
    fn copy_out(&self, at: usize, into: &mut [u8]) {
        if let Some(kept) = &self.kept {
            into.copy_from_slice(&kept[at..at + into.len()]);
            return;
        }
        each_piece(&self.pieces, at, into.len(), |memory, start, len, done| {
            memory.read(start, &mut into[done..done + len]);
        });
    }
}

impl Pair {
    /// Puts the next request behind what goes out, or as much of it as there is room for.
    pub(in crate::pair) fn begin_far(&self, inner: &mut Inner) -> Begun {
        loop {
            self.answer_before(inner);
            let words = Pair::words(inner);
            let Inner { link: Some(Link::Far(far)), sends, begun, sent, asked, timers, .. } = inner else {
                return Begun::Blocked;
            };
            let waiting = sends.len() - *begun;
            let send = &mut sends[*begun];
            let at = match send.stage {
                Stage::Waiting => {
                    if !far.takes() {
                        self.open_far(far);
                        return Begun::Blocked;
                    }
                    if let Some(stage) = self.check_far(send) {
                        return Begun::As(stage);
                    }
                    if send.takes_recv() && !far.has_credit() {
                        far.want(waiting, !far.reliable || timers.waits_for_recv());
                        return Begun::Blocked;
                    }
                    if send.brings() && *asked as usize >= MOST_ASKED {
                        return Begun::Blocked;
                    }
                    0
                }
                Stage::InParts(at) if at == send.bytes => {
                    *sent += 1;
                    return Begun::As(Stage::Sent(*sent - 1));
                }
                Stage::InParts(at) => at as usize,
                stage => return Begun::As(stage),
            };
            let left = if send.brings() { 0 } else { (send.bytes as usize - at).min(CHUNK) };
            let short = send.inline || left <= SHORT;
            let body = if short { left.max(OPERANDS) } else { 0 };
            if !far.out.has_room(HEAD + body) {
                if !self.flush(inner) {
                    return Begun::Blocked;
                }
                continue;
            }
            if !short && self.places(&send.pieces, Access::empty()).is_none() {
                return Begun::As(Stage::Failed(CompletionStatus::LocalProtection));
            }
            if send.stage == Stage::Waiting {
                far.consumed += u64::from(send.takes_recv());
            }
            let operands = match send.op {
                SendOp::FetchAdd { add, .. } => Some([add, 0]),
                SendOp::CompareSwap { compare, swap, .. } => Some([compare, swap]),
                _ => None,
            };
            far.push(send.head(at, operands.map_or(left, |_| OPERANDS), words));
            if let Some(operands) = operands {
                for (place, operand) in far.out.extend(OPERANDS).chunks_exact_mut(8).zip(operands) {
                    place.copy_from_slice(&operand.to_le_bytes());
                }
            } else if short {
                send.copy_out(at, far.out.extend(left));
            } else {
                far.out.tail = Some(Tail { of: Source::Send, start: at as u32, len: left as u32, done: 0 });
                send.stage = Stage::InParts(at as u32);
                self.flush(inner);
                continue;
            }
            if send.brings() || at + left == send.bytes as usize {
                *asked += u32::from(send.brings());
                *sent += 1;
                return Begun::As(Stage::Sent(*sent - 1));
            }
            send.stage = Stage::InParts((at + left) as u32);
        }
    }

    /// Whether a request ends before anything of it goes out.
    fn check_far(&self, send: &Send) -> Option<Stage> {
        let needed = if send.brings() { Access::LOCAL_WRITE } else { Access::empty() };
        if !send.inline && self.places(&send.pieces, needed).is_none() {
            return Some(Stage::Failed(CompletionStatus::LocalProtection));
        }
        match send.op {
            SendOp::FetchAdd { remote, .. } | SendOp::CompareSwap { remote, .. } if !remote.addr.is_multiple_of(8) => {
                Some(Stage::Failed(CompletionStatus::RemoteInvalidRequest))
            }
            // Of nothing, there is nothing to be asked.
            SendOp::Read { .. } | SendOp::Write { imm: None, .. } if send.bytes == 0 => Some(Stage::Done(0)),
            _ => None,
        }
    }

    /// What the peer waits for gets in between the parts of a long message.
    fn answer_before(&self, inner: &mut Inner) {
        let words = Pair::words(inner);
        let Some(Link::Far(far)) = &mut inner.link else { return };
        if far.is_urgent() && far.out.has_room(Far::URGENT) {
            far.push_urgent(words);
        }
        if !far.requests.is_empty() {
            self.answer_one(inner);
        }
    }

    /// Gives the kernel what it takes: whether it took anything.
    pub(in crate::pair) fn flush(&self, inner: &mut Inner) -> bool {
        let mut worked = false;
        loop {
            let Some(Link::Far(far)) = &mut inner.link else { return worked };
            let far = &mut **far;
            if far.out.cut {
                return worked;
            }
            let Some(stream) = &mut far.stream else { return worked };
            if far.out.is_empty() {
                if far.out.pushing {
                    match stream.flush() {
                        Ok(done) => far.out.pushing = !done,
                        Err(_) => far.out.cut = true,
                    }
                }
                if !far.out.pushing {
                    far.flushed = inner.sent;
                }
                return worked;
            }
            let (own, mut last) = (far.out.left(), None);
            let taken = match far.out.tail.as_ref().map(|tail| (tail.of, tail.start + tail.done, tail.len - tail.done))
            {
                None => stream.send(&[Out::Bytes(far.out.rest())]).map(Some),
                Some((Source::Send, at, len)) => {
                    let send = &inner.sends[inner.begun];
                    self.send_tail(stream, far.out.rest(), send, at as usize, len as usize)
                }
                Some((Source::Answer, at, len)) => match far.requests.front() {
                    Some(request) => {
                        let desk = self.desk(inner.access, Kind::Read);
                        last = request.last_frame(at + len, far.told.words);
                        desk.send_answer(stream, far.out.rest(), request, (at, len as usize), last.as_mut())
                    }
                    None => Ok(None),
                },
                Some((Source::Nothing, _, len)) => {
                    let zeros = &ZEROS[..ZEROS.len().min(len as usize)];
                    stream.send(&[Out::Bytes(far.out.rest()), Out::Bytes(zeros)]).map(Some)
                }
            };
            match taken {
                Ok(Some(0)) => return worked,
                Ok(Some(taken)) => {
                    worked = true;
                    far.out.pushing = true;
                    if far.out.advance(taken.min(own)) {
                        self.tail_is_out(inner);
                    }
                    if let Some(last) = last.filter(|_| taken > own) {
                        self.last_is_out(inner, &last[taken - own..]);
                    }
                }
                Ok(None) => self.tail_is_lost(inner),
                // What the peer sent before may still lie in the kernel.
                Err(Ended(why)) => {
                    tracing::debug!(own = self.number, why, "nothing more goes out");
                    far.out.cut = true;
                    return worked;
                }
            }
        }
    }

    /// Sends bytes `at..at + len` of a request behind those of the frames before; `None` if its memory was given back.
    fn send_tail(
        &self,
        stream: &mut Stream,
        before: &[u8],
        send: &Send,
        at: usize,
        len: usize,
    ) -> Result<Option<usize>, Ended> {
        let mut outs: Outs<'_> = SmallVec::new();
        if !before.is_empty() {
            outs.push(Out::Bytes(before));
        }
        // Each time, so that nothing is read out of memory that was given back meanwhile.
        if self.places(&send.pieces, Access::empty()).is_none() {
            return Ok(None);
        }
        let push = |memory, at, len, _| outs.push(Out::Memory { memory, at, len });
        each_piece::<'_>(&send.pieces, at, len, push);
        stream.send(&outs).map(Some)
    }

    /// The last bytes of the frame have gone out.
    fn tail_is_out(&self, inner: &mut Inner) {
        let Some(Link::Far(far)) = &mut inner.link else { return };
        let Some(tail) = far.out.tail.take() else { return };
        match tail.of {
            Source::Send => inner.sends[inner.begun].stage = Stage::InParts(tail.start + tail.len),
            Source::Answer => self.answered(inner, tail.start + tail.len),
            Source::Nothing => self.deny(inner, CompletionStatus::RemoteAccess),
        }
    }

    /// The memory that the frame's last bytes are in was given back.
    fn tail_is_lost(&self, inner: &mut Inner) {
        let Some(Link::Far(far)) = &mut inner.link else { return };
        let Some(tail) = &mut far.out.tail else { return };
        if tail.of == Source::Answer {
            // The frame is as long as its head says, and then the request is refused.
            tail.of = Source::Nothing;
            return;
        }
        far.out.cut = true;
        inner.sends[inner.begun].stage = Stage::Failed(CompletionStatus::LocalProtection);
        inner.begun += 1;
        inner.broken = true;
    }
}
