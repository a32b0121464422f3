//! WRITE, READ and atomics that the owner of the memory is asked to do: requests in this side's ring, and the answers.

use fulmen_reach::ring::{Producer, RingError};
use fulmen_verbs::{Access, CompletionStatus, SendOp};

use super::link::{Link, Near};
use super::message::{ANSWER, ATOMIC, Answer, Atomic, HEADER, Kind, TARGET, Target};
use super::send::{Begun, Send, Stage, each_piece, write_bytes};
use super::{Inner, Pair};
use crate::layout::PART;

/// The peer answered what was not asked, or broke its ring.
#[derive(Debug)]
pub(super) struct Nonsense;

impl Pair {
    /// Asks the peer to do the next request, or goes on asking.
    pub(super) fn ask(&self, inner: &mut Inner) -> Begun {
        let send = &inner.sends[inner.begun];
        let needed = if send.brings() { Access::LOCAL_WRITE } else { Access::empty() };
        if !send.inline && self.places(&send.pieces, needed).is_none() {
            return Begun::As(Stage::Failed(CompletionStatus::LocalProtection));
        }
        if let SendOp::FetchAdd { remote, .. } | SendOp::CompareSwap { remote, .. } = send.op
            && !remote.addr.is_multiple_of(8)
        {
            return Begun::As(Stage::Failed(CompletionStatus::RemoteInvalidRequest));
        }
        let send = &mut inner.sends[inner.begun];
        match push(&mut inner.wire.ring, send) {
            Ok(true) => {
                inner.asked += u32::from(send.brings());
                inner.sent += 1;
                if let SendOp::Write { .. } = send.op {
                    inner.written_by = inner.sent;
                }
                Begun::As(Stage::Sent(inner.sent - 1))
            }
            Ok(false) => Begun::Blocked,
            // The peer broke the ring.
            Err(_) => Begun::As(Stage::Failed(CompletionStatus::RemoteOperation)),
        }
    }

    /// Takes what the peer brings.
    pub(super) fn take_answers(&self, inner: &mut Inner) -> Result<(), Nonsense> {
        let Inner { link: Some(Link::Near(near)), sends, asked, begun, broken, .. } = inner else { return Ok(()) };
        let Near { answers, remote, .. } = &mut **near;
        let mut taken = false;
        while *asked > 0
            && let Some(frame) = answers.peek().map_err(|_| Nonsense)?
        {
            let mut head = [0; ANSWER];
            let len = frame.len().checked_sub(ANSWER).filter(|len| *len > 0).ok_or(Nonsense)?;
            frame.read(0, &mut head);
            let answer = Answer::from_bytes(head);
            let send = sends.iter_mut().take(*begun).find(|send| send.is_asked()).ok_or(Nonsense)?;
            let fits = send.stage == Stage::Sent(answer.number)
                && send.answered == answer.offset
                && answer.offset as usize + len <= send.bytes as usize;
            if !fits {
                return Err(Nonsense);
            }
            if self.places(&send.pieces, Access::LOCAL_WRITE).is_some() {
                each_piece(&send.pieces, answer.offset as usize, len, |piece, start, len, done| {
                    frame.copy_to(ANSWER + done, piece, start, len);
                });
                send.answered += len as u32;
                *asked -= u32::from(send.answered == send.bytes);
            } else {
                // Its memory was given back meanwhile.
                send.stage = Stage::Failed(CompletionStatus::LocalProtection);
                (*broken, *asked) = (true, 0);
            }
            frame.release();
            taken = true;
        }
        if taken {
            // It may have waited for room.
            remote.wake();
        }
        Ok(())
    }
}

/// Pushes what is left of a request; false if there is no room for all of it.
fn push(ring: &mut Producer, send: &mut Send) -> Result<bool, RingError> {
    let (remote, atomic) = match send.op {
        SendOp::Write { remote, imm } => return push_write(ring, send, remote.into(), imm.is_some()),
        SendOp::Read { remote } => (remote, None),
        SendOp::FetchAdd { remote, add } => (remote, Some(Atomic::Add(add))),
        SendOp::CompareSwap { remote, compare, swap } => (remote, Some(Atomic::Swap { compare, swap })),
        SendOp::Send { .. } | SendOp::SendTo { .. } => unreachable!("a SEND reaches nowhere"),
    };
    let target = Target::from(remote).to_bytes();
    match atomic {
        None => ring.try_push(&[&send.header(Kind::Read, 0).to_bytes(), &target]),
        Some(atomic) => {
            let atomic: [u8; ATOMIC] = atomic.to_bytes();
            ring.try_push(&[&send.header(Kind::Atomic, 0).to_bytes(), &target, &atomic])
        }
    }
}

fn push_write(ring: &mut Producer, send: &mut Send, target: Target, announced: bool) -> Result<bool, RingError> {
    let mut at = if let Stage::InParts(at) = send.stage { at as usize } else { 0 };
    while at < send.bytes as usize {
        let len = PART.min(send.bytes as usize - at);
        let Some(mut frame) = ring.reserve(HEADER + TARGET + len)? else { return Ok(false) };
        frame.write(&send.header(Kind::Write, at as u32).to_bytes());
        frame.write(&target.to_bytes());
        write_bytes(&mut frame, send, at, len);
        frame.publish();
        at += len;
        send.stage = Stage::InParts(at as u32);
    }
    if announced { ring.try_push(&[&send.header(Kind::Written, 0).to_bytes()]) } else { Ok(true) }
}
