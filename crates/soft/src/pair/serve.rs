//! What a peer asks this process to do on its registered memory: WRITE, READ and atomics, checked against the private table.

use std::sync::atomic::{Ordering, fence};

use fulmen_memory::Exposed;
use fulmen_reach::ring::{Frame, Producer};
use fulmen_verbs::{Access, CompletionStatus};

use super::link::Link;
use super::message::{ANSWER, ATOMIC, Answer, Atomic, HEADER, Header, Kind, TARGET, Target};
use super::receive::{CORRUPT, Outcome};
use super::{Inner, Pair};
use crate::layout::{EAGER, PART};
use crate::vm::LAST;

/// Bytes before those of a WRITE, and before an atomic.
const BODY: usize = HEADER + TARGET;

impl Pair {
    /// Does what the next frame, whose header this is, asks for.
    pub(super) fn serve(&self, inner: &mut Inner, header: Header) -> Outcome {
        let Inner { link: Some(Link::Near(link)), wire, taken, written, answered, dropping, access, .. } = inner else {
            return Outcome::Nothing;
        };
        // It was there a moment ago, and its length is checked again: the memory is the peer's.
        let Ok(Some(frame)) = link.ring.peek() else { return CORRUPT };
        let Some((target, body)) = target_of(&frame, &header) else { return CORRUPT };
        let needed = match header.kind {
            Kind::Write => Access::REMOTE_WRITE,
            Kind::Read => Access::REMOTE_READ,
            _ => Access::REMOTE_ATOMIC,
        };
        let desk = Desk { pair: self, allowed: access.contains(needed), needed };
        let number = *taken;
        let served = match header.kind {
            Kind::Write => {
                let end = header.offset + body as u32;
                let at = target.addr.checked_add(header.offset.into());
                let done =
                    at.and_then(|addr| desk.reach(target.rkey, addr, body, |memory, at| put(&frame, body, memory, at)));
                frame.release();
                if done.is_none() {
                    if self.is_reliable() {
                        return Outcome::Denied(CompletionStatus::RemoteAccess);
                    }
                    // A part of an unreliable message is lost, and the message with it.
                    *dropping = true;
                }
                // With immediate data, a last frame says that all is in place.
                if end < header.total || header.imm.is_some() {
                    *written = end;
                    return Outcome::Taken { large: false };
                }
                (*written, *dropping) = (0, false);
                Served::Done
            }
            Kind::Read => {
                let done = desk.answer_read(&mut wire.answers, number, target, header.total, answered);
                if done == Served::Done {
                    *answered = 0;
                    frame.release();
                }
                done
            }
            _ => {
                let mut bytes = [0; ATOMIC];
                frame.read(BODY, &mut bytes);
                let Some(atomic) = Atomic::from_bytes(bytes) else { return CORRUPT };
                let done = desk.answer_atomic(&mut wire.answers, number, target, atomic);
                if done == Served::Done {
                    frame.release();
                }
                done
            }
        };
        match served {
            Served::Done => {
                *taken += 1;
                Outcome::Taken { large: header.total as usize > EAGER }
            }
            Served::InPart => Outcome::InPart,
            Served::NoRoom => Outcome::Nothing,
            Served::Denied(status) => Outcome::Denied(status),
            Served::Corrupt => CORRUPT,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    Done,
    /// Some of it is answered, and there is no room for more.
    InPart,
    NoRoom,
    Denied(CompletionStatus),
    /// The peer broke the ring of the answers.
    Corrupt,
}

/// Where a request is served.
pub(super) struct Desk<'a> {
    pub(super) pair: &'a Pair,
    /// The queue pair has the right.
    pub(super) allowed: bool,
    pub(super) needed: Access,
}

impl Desk<'_> {
    /// Works on `len` bytes at `addr` of this process, if the peer may.
    pub(super) fn reach<R>(
        &self,
        rkey: u32,
        addr: u64,
        len: usize,
        work: impl FnOnce(&Exposed, usize) -> R,
    ) -> Option<R> {
        let domain = &self.pair.domain;
        if !self.allowed {
            return None;
        }
        domain.device.registrations.serve(rkey, domain.number, self.needed, addr, len, work)
    }

    /// Answers a READ of `total` bytes as far as there is room.
    fn answer_read(&self, ring: &mut Producer, number: u64, target: Target, total: u32, answered: &mut u32) -> Served {
        let before = *answered;
        while *answered < total {
            let len = PART.min((total - *answered) as usize);
            let mut frame = match ring.reserve(ANSWER + len) {
                Ok(Some(frame)) => frame,
                Ok(None) if *answered == before => return Served::NoRoom,
                Ok(None) => return Served::InPart,
                Err(_) => return Served::Corrupt,
            };
            frame.write(&Answer { number, offset: *answered }.to_bytes());
            let addr = target.addr.checked_add((*answered).into());
            let done = addr.and_then(|addr| {
                self.reach(target.rkey, addr, len, |memory, at| frame.copy_from(&memory.slice(at..at + len)))
            });
            if done.is_none() {
                return Served::Denied(CompletionStatus::RemoteAccess);
            }
            frame.publish();
            *answered += len as u32;
        }
        Served::Done
    }

    /// Does an atomic once there is room for its answer.
    fn answer_atomic(&self, ring: &mut Producer, number: u64, target: Target, atomic: Atomic) -> Served {
        if !target.addr.is_multiple_of(8) {
            return Served::Denied(CompletionStatus::RemoteInvalidRequest);
        }
        let mut frame = match ring.reserve(ANSWER + 8) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Served::NoRoom,
            Err(_) => return Served::Corrupt,
        };
        let old = self.reach(target.rkey, target.addr, 8, |memory, at| atomically(memory, at, atomic));
        let Some(old) = old else { return Served::Denied(CompletionStatus::RemoteAccess) };
        frame.write(&Answer { number, offset: 0 }.to_bytes());
        frame.write(&old.to_ne_bytes());
        frame.publish();
        Served::Done
    }
}

/// Does an atomic: the old value.
pub(super) fn atomically(memory: &Exposed, at: usize, atomic: Atomic) -> u64 {
    let word = memory.atomic_u64(at);
    match atomic {
        Atomic::Add(add) => word.fetch_add(add, Ordering::SeqCst),
        Atomic::Swap { compare, swap } => {
            let swapped = word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
            swapped.unwrap_or_else(|found| found)
        }
    }
}

/// The target of a request, and the bytes that follow it; `None` if the frame is no longer what its header said.
fn target_of(frame: &Frame<'_>, header: &Header) -> Option<(Target, usize)> {
    let body = frame.len().checked_sub(BODY)?;
    let whole = match header.kind {
        Kind::Write => body > 0 && header.offset as usize + body <= header.total as usize,
        Kind::Read => body == 0,
        _ => body == ATOMIC,
    };
    let mut bytes = [0; TARGET];
    frame.read(HEADER, &mut bytes);
    whole.then(|| (Target::from_bytes(bytes), body))
}

/// Puts bytes of a WRITE in place, the last ones last.
fn put(frame: &Frame<'_>, len: usize, memory: &Exposed, at: usize) {
    let last = len.min(LAST);
    frame.copy_to(BODY, memory, at, len - last);
    fence(Ordering::Release);
    frame.copy_to(BODY + len - last, memory, at + len - last, last);
}
