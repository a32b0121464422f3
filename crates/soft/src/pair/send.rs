//! The send queue: what goes out, and what completes.

use std::time::{Duration, Instant};

use fulmen_memory::Exposed;
use fulmen_reach::ring::{Producer, Reservation, RingError};
use fulmen_verbs::{
    Access, AckTimeout, CompletionOpcode, CompletionStatus, Piece, Pieces, QueuePairState, SendOp, SendRequest,
};
use smallvec::SmallVec;

use super::link::Link;
use super::message::{HEADER, Header, Kind, PLACE, SentPlace};
use super::{Inner, Pair};
use crate::layout::{EAGER, PART, PULLED};
use crate::registrations::Place;
use crate::vm::Runs;

/// The longest time that a peer may ask for before a RECV is looked for again.
const LONGEST_NOT_READY: Duration = Duration::from_secs(1);

/// A request of the send queue.
pub(super) struct Send {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) pieces: Pieces,
    pub(super) inline: bool,
    /// The bytes of an inline request that could not go out at once.
    pub(super) kept: Option<Vec<u8>>,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) bytes: u32,
    /// Bytes that the peer has answered.
    pub(super) answered: u32,
    depth: u64,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    /// So many bytes of it are in the ring, and what is left follows there.
    InParts(u32),
    /// It is in the ring, as the message of this number.
    Sent(u64),
    /// It is done, and brought so many bytes.
    Done(u32),
    Failed(CompletionStatus),
}

impl Send {
    pub(super) fn new(request: &SendRequest, depth: u64, signal_all: bool) -> Send {
        Send {
            wr_id: request.wr_id,
            op: request.op,
            pieces: request.pieces.clone(),
            inline: request.inline,
            kept: None,
            signaled: request.signaled || signal_all,
            solicited: request.solicited,
            // Longer ones were refused.
            bytes: request.bytes() as u32,
            answered: 0,
            depth,
            stage: Stage::Waiting,
        }
    }

    /// Whether it brings something from the peer.
    pub(super) fn brings(&self) -> bool {
        matches!(self.op, SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. })
    }

    /// Whether the peer is asked for something that has not come whole.
    pub(super) fn is_asked(&self) -> bool {
        self.brings() && matches!(self.stage, Stage::Sent(_)) && self.answered < self.bytes
    }

    pub(super) fn opcode(&self) -> CompletionOpcode {
        opcode(&self.op)
    }

    /// Copies inline bytes, which the caller may change from now on.
    pub(super) fn keep_inline(&mut self) {
        if self.inline && self.kept.is_none() {
            let mut bytes = vec![0; self.bytes as usize];
            let mut at = 0;
            for piece in self.pieces.drain(..) {
                let len = piece.memory.len();
                piece.memory.read(0, &mut bytes[at..at + len]);
                at += len;
            }
            self.kept = Some(bytes);
        }
    }

    pub(super) fn header(&self, kind: Kind, offset: u32) -> Header {
        let imm = match self.op {
            SendOp::Send { imm } | SendOp::SendTo { imm, .. } | SendOp::Write { imm, .. } => imm,
            SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => None,
        };
        Header { kind, solicited: self.solicited, imm, total: self.bytes, offset }
    }
}

pub(super) fn opcode(op: &SendOp) -> CompletionOpcode {
    match op {
        SendOp::Send { .. } | SendOp::SendTo { .. } => CompletionOpcode::Send,
        SendOp::Write { .. } => CompletionOpcode::Write,
        SendOp::Read { .. } => CompletionOpcode::Read,
        SendOp::FetchAdd { .. } => CompletionOpcode::FetchAdd,
        SendOp::CompareSwap { .. } => CompletionOpcode::CompareSwap,
    }
}

/// How long a peer may be silent.
#[derive(Default)]
pub(super) struct Timers {
    /// How long a peer may be in the wrong state; `None` for ever.
    lost_after: Option<Duration>,
    lost_since: Option<Instant>,
    /// How often a RECV is waited for; `None` for ever.
    not_ready: Option<u32>,
    /// The message that found no RECV, and when that was seen.
    stalled: Option<(u64, Instant)>,
}

impl Timers {
    /// Whether a message that finds no RECV waits for one.
    pub(super) fn waits_for_recv(&self) -> bool {
        self.not_ready != Some(0)
    }

    pub(super) fn set(&mut self, timeout: AckTimeout, retries: u8, rnr_retries: u8) {
        self.lost_after = timeout.duration().map(|once| once * (u32::from(retries) + 1));
        self.not_ready = (rnr_retries < 7).then_some(rnr_retries.into());
    }
}

/// How far a request came.
pub(super) enum Begun {
    /// It is in the ring or done.
    As(Stage),
    /// It cannot go on now.
    Blocked,
}

impl Pair {
    /// Sends what can be sent and completes what is done: whether there was anything.
    pub(super) fn advance(&self, inner: &mut Inner) -> bool {
        let mut worked = false;
        loop {
            worked |= self.retire(inner);
            if inner.link.is_none() || !self.begin(inner) {
                return worked;
            }
            worked = true;
        }
    }

    /// Completes requests from the front.
    fn retire(&self, inner: &mut Inner) -> bool {
        let Some(link) = &inner.link else { return false };
        let answers = link.answers(inner.wire.incarnation);
        let acked = if answers { link.acked() } else { 0 };
        if acked > inner.sent {
            // No correct peer acknowledges what was not sent.
            self.fail(inner, CompletionStatus::RemoteOperation);
            return true;
        }
        let refused = if answers { link.refused() } else { None };
        // What was asked for came before the acknowledgement.
        if inner.asked > 0 && answers && self.take_answers(inner).is_err() {
            self.fail(inner, CompletionStatus::RemoteOperation);
            return true;
        }
        let mut worked = false;
        while let Some(send) = inner.sends.front() {
            let byte_len = match send.stage {
                Stage::Sent(number) if number < acked && !send.is_asked() => send.bytes,
                Stage::Sent(number) if number < acked => {
                    // No correct peer acknowledges what it did not answer.
                    self.fail(inner, CompletionStatus::RemoteOperation);
                    return true;
                }
                Stage::Sent(number) => {
                    if let Some((_, status)) = refused.filter(|(which, _)| *which == number && self.is_reliable()) {
                        self.fail(inner, status);
                        return true;
                    }
                    break;
                }
                Stage::Done(byte_len) => byte_len,
                Stage::Failed(status) => {
                    self.fail(inner, status);
                    return true;
                }
                Stage::InParts(_) => {
                    // It has no number yet, which is the next one. The peer may refuse it by its first part.
                    if let Some((_, status)) = refused.filter(|(which, _)| *which == inner.sent && self.is_reliable()) {
                        self.fail(inner, status);
                        return true;
                    }
                    break;
                }
                Stage::Waiting => break,
            };
            let (wr_id, opcode, signaled) = (send.wr_id, send.opcode(), send.signaled);
            inner.send_used -= send.depth;
            inner.begun -= 1;
            inner.draining = inner.draining.saturating_sub(1);
            // Its memory is let go before another thread can see that it is done.
            inner.sends.pop_front();
            if signaled {
                self.complete_send(wr_id, CompletionStatus::Success, opcode, byte_len);
            }
            inner.timers.lost_since = None;
            worked = true;
        }
        worked
    }

    /// Fails the front request and, with it, the queue pair.
    pub(super) fn fail(&self, inner: &mut Inner, status: CompletionStatus) {
        if let Some(send) = inner.sends.front() {
            let (wr_id, opcode) = (send.wr_id, send.opcode());
            // The peer is told first: what was posted is void from here on, and its memory may be used otherwise.
            self.void(inner);
            inner.sends.pop_front();
            self.complete_send(wr_id, status, opcode, 0);
        }
        self.break_off(inner);
    }

    fn begin(&self, inner: &mut Inner) -> bool {
        let limit = match inner.state {
            QueuePairState::ReadyToSend => inner.sends.len(),
            QueuePairState::SendDrain => inner.draining,
            _ => 0,
        };
        let (mut worked, mut in_parts) = (false, false);
        let sent = inner.sent;
        while inner.begun < limit && !inner.broken {
            let before = inner.sends[inner.begun].stage;
            let stage = match self.begin_one(inner) {
                Begun::As(stage) => stage,
                Begun::Blocked => {
                    // The parts that are in the ring already are for the peer to take, which makes room for the rest.
                    in_parts = inner.sends[inner.begun].stage != before;
                    break;
                }
            };
            inner.broken = matches!(stage, Stage::Failed(_));
            inner.sends[inner.begun].stage = stage;
            inner.begun += 1;
            worked = true;
        }
        // What was done on the peer's memory is none of its business.
        if let Some(link) = inner.link.as_ref().filter(|_| in_parts || inner.sent != sent) {
            link.wake();
        }
        let flushed = self.flush(inner);
        worked || in_parts || flushed
    }

    fn begin_one(&self, inner: &mut Inner) -> Begun {
        let Some(link) = &inner.link else { return Begun::Blocked };
        let send = &inner.sends[inner.begun];
        let takes = || link.takes(inner.wire.incarnation) && link.is_alive();
        // What UC sends to a peer that does not listen is lost.
        if !self.is_reliable() && !self.holds() && send.stage == Stage::Waiting && !takes() && !link.is_awaited() {
            return Begun::As(Stage::Done(send.bytes));
        }
        // What the peer was asked for is there before anything else goes out, which may be made of it.
        if inner.asked > 0 && !send.brings() {
            return Begun::Blocked;
        }
        let Link::Near(near) = link else { return self.begin_far(inner) };
        if let SendOp::Send { .. } = send.op {
            // What is in parts was let go before, and the peer needs all of it.
            if self.holds() && send.stage == Stage::Waiting && !(takes() && inner.sent < near.wire.granted()) {
                return Begun::Blocked;
            }
            return self.send_message(inner);
        }
        if let Stage::InParts(_) = send.stage {
            return self.ask(inner);
        }
        if !takes() {
            return Begun::Blocked;
        }
        let acked = near.wire.acked();
        let settled = match self.is_reliable() {
            // What came before must have had its effect: the peer may still take it, or refuse it.
            true => inner.asked == 0 && acked == inner.sent,
            // What was written before is there before what is written now, whoever writes it.
            false => acked >= inner.written_by,
        };
        self.reach_across(inner, settled)
    }

    /// Where the pieces of a request lie; `None` if a key does not allow it.
    pub(super) fn places(&self, pieces: &[Piece], needed: Access) -> Option<SmallVec<[Place; 2]>> {
        let registrations = &self.domain.device.registrations;
        pieces
            .iter()
            .filter(|piece| !piece.memory.is_empty())
            .map(|piece| registrations.place(piece, self.domain.number, needed))
            .collect()
    }

    fn send_message(&self, inner: &mut Inner) -> Begun {
        let Inner { link: Some(Link::Near(link)), sends, begun, wire: own, .. } = inner else { return Begun::Blocked };
        let send = &mut sends[*begun];
        let mut places = SmallVec::new();
        if !send.inline {
            // Each time, so that no part is read out of memory that was given back since the one before it.
            match self.places(&send.pieces, Access::empty()) {
                Some(found) => places = found,
                None => return Begun::As(Stage::Failed(CompletionStatus::LocalProtection)),
            }
        }
        let small = send.inline || send.bytes as usize <= EAGER;
        let named = || {
            let mapped = places.iter().all(|place: &Place| place.share.is_some());
            let pulls = || link.wire.takes(own.incarnation) && link.wire.pulls();
            mapped || send.bytes as usize > PULLED && pulls()
        };
        let ring = &mut own.ring;
        let room = if small {
            push_bytes(ring, send, 0, send.bytes as usize)
        } else if send.stage == Stage::Waiting && !self.holds() && named() {
            push_places(ring, send, &places)
        } else {
            let mut at = if let Stage::InParts(at) = send.stage { at as usize } else { 0 };
            loop {
                let len = PART.min(send.bytes as usize - at);
                match push_bytes(ring, send, at, len) {
                    Ok(true) => at += len,
                    other => break other,
                }
                if at == send.bytes as usize {
                    break Ok(true);
                }
                send.stage = Stage::InParts(at as u32);
            }
        };
        match room {
            Ok(true) => {
                inner.sent += 1;
                // Nobody acknowledges what is held first: it is done as soon as it went out.
                let stage = if self.holds() { Stage::Done(send.bytes) } else { Stage::Sent(inner.sent - 1) };
                Begun::As(stage)
            }
            Ok(false) => Begun::Blocked,
            // The peer broke the ring.
            Err(_) => Begun::As(Stage::Failed(CompletionStatus::RemoteOperation)),
        }
    }

    /// Tells the peer that a WRITE with immediate data is in place. There is room for it.
    pub(super) fn send_written(&self, inner: &mut Inner) -> Begun {
        let send = &inner.sends[inner.begun];
        match inner.wire.ring.try_push(&[&send.header(Kind::Written, 0).to_bytes()]) {
            Ok(true) => {
                inner.sent += 1;
                Begun::As(Stage::Sent(inner.sent - 1))
            }
            Ok(false) => Begun::Blocked,
            Err(_) => Begun::As(Stage::Failed(CompletionStatus::RemoteOperation)),
        }
    }

    /// Looks at what depends on time: when to look again.
    pub(super) fn look_at_clock(&self, inner: &mut Inner) -> Option<Instant> {
        let link = inner.link.as_ref()?;
        let now = Instant::now();
        let alive = link.is_alive();
        if !alive || !link.takes(inner.wire.incarnation) {
            if self.holds() {
                return None;
            }
            if let Some(far) = link.far().filter(|far| far.is_awaited()) {
                return Some(far.awaited_until());
            }
            if !self.is_reliable() {
                if let Some(Link::Far(far)) = &mut inner.link {
                    far.break_off_tail();
                }
                for send in inner.sends.iter_mut().filter(|send| !matches!(send.stage, Stage::Failed(_))) {
                    send.stage = Stage::Done(send.bytes);
                }
                inner.begun = inner.sends.len();
                self.retire(inner);
                return None;
            }
            if !alive {
                // It may have acknowledged after the last look at that, and before its end.
                self.retire(inner);
                if !inner.sends.is_empty() {
                    self.fail(inner, CompletionStatus::RetryExceeded);
                }
                return None;
            }
            let since = *inner.timers.lost_since.get_or_insert(now);
            let until = since + inner.timers.lost_after?;
            if now >= until {
                self.fail(inner, CompletionStatus::RetryExceeded);
                return None;
            }
            return Some(until);
        }
        inner.timers.lost_since = None;
        let front = match inner.sends.front()?.stage {
            Stage::Sent(number) => number,
            // Over a connection, it stays here until there is a RECV.
            Stage::Waiting => inner.sent,
            _ => return None,
        };
        if !self.is_reliable() || link.stalled(inner.sent) != Some(front) {
            inner.timers.stalled = None;
            return None;
        }
        let retries = inner.timers.not_ready?;
        let since = match inner.timers.stalled {
            Some((number, since)) if number == front => since,
            _ => now,
        };
        inner.timers.stalled = Some((front, since));
        let until = since + Duration::from_nanos(link.not_ready_ns()).min(LONGEST_NOT_READY) * retries;
        if now >= until {
            self.fail(inner, CompletionStatus::RnrRetryExceeded);
            return None;
        }
        Some(until)
    }
}

/// Pushes `len` bytes of a message, from `at` on; false if there is no room.
fn push_bytes(ring: &mut Producer, send: &Send, at: usize, len: usize) -> Result<bool, RingError> {
    let Some(mut frame) = ring.reserve(HEADER + len)? else { return Ok(false) };
    frame.write(&send.header(Kind::Bytes, at as u32).to_bytes());
    write_bytes(&mut frame, send, at, len);
    frame.publish();
    Ok(true)
}

/// Appends `len` bytes of a request, from `at` on, to a frame.
pub(super) fn write_bytes(frame: &mut Reservation<'_>, send: &Send, at: usize, len: usize) {
    if let Some(kept) = &send.kept {
        frame.write(&kept[at..at + len]);
        return;
    }
    each_piece(&send.pieces, at, len, |memory, start, len, _| {
        if start == 0 && len == memory.len() {
            frame.copy_from(memory);
        } else {
            frame.copy_from(&memory.slice(start..start + len));
        }
    });
}

fn push_places(ring: &mut Producer, send: &Send, places: &[Place]) -> Result<bool, RingError> {
    let Some(mut frame) = ring.reserve(HEADER + places.len() * PLACE)? else { return Ok(false) };
    frame.write(&send.header(Kind::Places, 0).to_bytes());
    for place in places {
        frame.write(&SentPlace::of(place).to_bytes());
    }
    frame.publish();
    Ok(true)
}

/// Calls back for each run of bytes that `at..at + len` of a request's bytes lie in: the piece's memory, where the run
/// starts in it, its length, and where it starts in `at..at + len`.
pub(crate) fn each_piece<'a>(
    pieces: &'a [Piece],
    at: usize,
    len: usize,
    mut each: impl FnMut(&'a Exposed, usize, usize, usize),
) {
    let (mut skip, mut done) = (at, 0);
    for piece in pieces {
        let here = piece.memory.len();
        if skip >= here {
            skip -= here;
            continue;
        }
        let run = (here - skip).min(len - done);
        if run == 0 {
            return;
        }
        each(&piece.memory, skip, run, done);
        done += run;
        skip = 0;
    }
}

/// The same runs for the system, which copies them.
pub(super) fn runs(pieces: &[Piece], at: usize, len: usize) -> Runs<'_> {
    let mut runs = Runs::new();
    each_piece(pieces, at, len, |memory, start, len, _| runs.push(memory, start, len));
    runs
}
