//! What the peer asks this process to do on its registered memory.

use std::sync::atomic::{Ordering, fence};

use fulmen_memory::Exposed;
use fulmen_verbs::{Access, CompletionStatus};
use smallvec::SmallVec;

use super::super::link::Link;
use super::super::serve::{Desk, atomically};
use super::super::{Inner, Pair};
use super::far::{Coming, Request, Sink, Source, Tail};
use super::frames::{CHUNK, HEAD, Head, Kind, MOST_ASKED, Words};
use super::send::{Outs, SHORT};
use crate::network::{Ended, Out, Stream};
use crate::pair::message::Atomic;
use crate::vm::LAST;

/// A frame of the last bytes of an answer.
pub(super) type LastFrame = [u8; HEAD + LAST];

impl Pair {
    /// Where requests of this kind are served.
    pub(super) fn desk(&self, access: Access, kind: Kind) -> Desk<'_> {
        let needed = match kind {
            Kind::Write => Access::REMOTE_WRITE,
            Kind::FetchAdd | Kind::CompareSwap => Access::REMOTE_ATOMIC,
            _ => Access::REMOTE_READ,
        };
        Desk { pair: self, allowed: access.contains(needed), needed }
    }

    /// Notes a request; false if the peer asks for more at a time than it may.
    pub(super) fn note_request(&self, inner: &mut Inner, head: Head, operands: [u64; 2]) -> bool {
        let number = inner.taken;
        let Some(Link::Far(far)) = &mut inner.link else { return true };
        if far.requests.len() >= MOST_ASKED {
            return false;
        }
        let number = number + far.requests.len() as u64;
        far.requests.push_back(Request { head, number, operands, answered: 0 });
        true
    }

    /// Answers what the peer asks for, as far as there is room: whether there was anything.
    pub(super) fn answer(&self, inner: &mut Inner) -> bool {
        let mut worked = false;
        loop {
            if !self.answer_one(inner) {
                return worked;
            }
            worked = true;
            // Short answers go out together.
            let waits = inner.link.as_ref().and_then(Link::far).is_some_and(|far| !far.requests.is_empty());
            if !waits {
                self.flush(inner);
                return worked;
            }
        }
    }

    /// Puts the next answer, or a part of it, behind what goes out.
    pub(super) fn answer_one(&self, inner: &mut Inner) -> bool {
        let words = Pair::words(inner);
        let access = inner.access;
        let Some(Link::Far(far)) = &mut inner.link else { return false };
        let Some(request) = far.requests.front() else { return false };
        let Head { kind, total, addr, rkey, .. } = request.head;
        let (number, answered, operands) = (request.number, request.answered, request.operands);
        let left = (total - answered) as usize;
        let len = match left.min(CHUNK) {
            // The registration may end while these bytes go out, and then others fill their frame. So they are never the
            // last ones, which are copied: a request that is answered whole cannot be refused any more.
            len if len == left && len > SHORT => len - LAST,
            len => len,
        };
        if far.stream.is_none() || !far.out.has_room(HEAD + len.min(SHORT)) {
            // What is in the way may go now.
            return !far.out.is_empty() && self.flush(inner);
        }
        let desk = self.desk(access, kind);
        let head = Head { len: len as u32, total, offset: answered, ..Head::bare(Kind::Answer, number, words) };
        let done = match kind {
            Kind::Read => {
                // All of it is looked at before any of it goes.
                let at = addr.checked_add(answered.into());
                at.and_then(|addr| {
                    desk.reach(rkey, addr, left, |memory, at| {
                        far.push(head);
                        if len > SHORT {
                            let tail = Tail { of: Source::Answer, start: answered, len: len as u32, done: 0 };
                            far.out.tail = Some(tail);
                        } else {
                            memory.read(at, far.out.extend(len));
                        }
                    })
                })
            }
            _ if !addr.is_multiple_of(8) => {
                self.deny(inner, CompletionStatus::RemoteInvalidRequest);
                return true;
            }
            _ => {
                let atomic = match kind {
                    Kind::FetchAdd => Atomic::Add(operands[0]),
                    _ => Atomic::Swap { compare: operands[0], swap: operands[1] },
                };
                desk.reach(rkey, addr, 8, |memory, at| {
                    let old = atomically(memory, at, atomic);
                    far.push(head);
                    far.out.extend(8).copy_from_slice(&old.to_ne_bytes());
                })
            }
        };
        if done.is_none() {
            self.deny(inner, CompletionStatus::RemoteAccess);
        } else if far.out.tail.is_none() {
            self.answered(inner, answered + len as u32);
        } else {
            self.flush(inner);
        }
        true
    }

    /// So many bytes of the answer to the first request have gone out, or will by themselves.
    pub(super) fn answered(&self, inner: &mut Inner, bytes: u32) {
        let Some(Link::Far(far)) = &mut inner.link else { return };
        let Some(request) = far.requests.front_mut() else { return };
        request.answered = bytes;
        if bytes == request.head.total {
            far.requests.pop_front();
            inner.taken += 1;
            // Its answer tells the peer as much.
            far.told.words.acked = inner.taken;
        }
    }

    /// The last frame of the answer to the first request has gone out, but for its `rest`, which follows.
    pub(super) fn last_is_out(&self, inner: &mut Inner, rest: &[u8]) {
        let Some(Link::Far(far)) = &mut inner.link else { return };
        far.out.extend(rest.len()).copy_from_slice(rest);
        let Some(total) = far.requests.front().map(|request| request.head.total) else { return };
        self.answered(inner, total);
    }

    /// The peer may not have what it asks for: it is told, and nothing else that it sends has an effect.
    pub(super) fn deny(&self, inner: &mut Inner, status: CompletionStatus) {
        inner.denied = true;
        let Some(Link::Far(far)) = &mut inner.link else { return };
        far.told.refusal = Some((inner.taken, status));
        far.requests.clear();
        if let Coming::Body(body) = &mut far.input.coming {
            body.sink = Sink::Nowhere;
        }
    }
}

impl Request {
    /// The frame of the last bytes of the answer, which are still to be read, if they are all that follows the first `bytes`.
    pub(super) fn last_frame(&self, bytes: u32, words: Words) -> Option<LastFrame> {
        let Head { total, .. } = self.head;
        (total - bytes == LAST as u32).then(|| {
            let head = Head { len: LAST as u32, total, offset: bytes, ..Head::bare(Kind::Answer, self.number, words) };
            let mut frame = [0; HEAD + LAST];
            frame[..HEAD].copy_from_slice(&head.to_bytes());
            frame
        })
    }
}

impl Desk<'_> {
    /// Sends `len` bytes of the answer to a request out of its memory, from `at` on, behind those of the frames before, and
    /// behind them the `last` frame, if it follows; `None` if the registration has ended.
    pub(super) fn send_answer(
        &self,
        stream: &mut Stream,
        before: &[u8],
        request: &Request,
        (at, len): (u32, usize),
        mut last: Option<&mut LastFrame>,
    ) -> Result<Option<usize>, Ended> {
        let Head { addr, rkey, .. } = request.head;
        let Some(addr) = addr.checked_add(at.into()) else { return Ok(None) };
        let follow = if last.is_some() { LAST } else { 0 };
        let sent = self.reach(rkey, addr, len + follow, |memory, at| {
            let mut outs: Outs<'_> = SmallVec::new();
            if !before.is_empty() {
                outs.push(Out::Bytes(before));
            }
            outs.push(Out::Memory { memory, at, len });
            if let Some(last) = &mut last {
                memory.read(at + len, &mut last[HEAD..]);
                outs.push(Out::Bytes(&**last));
            }
            stream.send(&outs)
        });
        sent.transpose()
    }
}

/// Puts bytes of a WRITE in place. `last`: none come after them, and programs wait for the last ones to change.
pub(super) fn put(bytes: &[u8], memory: &Exposed, at: usize, last: bool) {
    let late = if last { bytes.len().min(LAST) } else { 0 };
    let (first, rest) = bytes.split_at(bytes.len() - late);
    memory.write(at, first);
    if !rest.is_empty() {
        fence(Ordering::Release);
        memory.write(at + first.len(), rest);
    }
}
