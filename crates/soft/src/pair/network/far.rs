//! What one side knows of a peer on another host, what it has told it, and what is on its way in either direction.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fulmen_verbs::CompletionStatus;

use super::frames::{HEAD, Head, Kind, MOST_ASKED, Words};
use crate::network::{End, PeerEnd, Stream};

/// How long a peer that was met may take to say that it takes messages before it counts as silent. Its word may have to
/// be sent more than once.
const AWAITED: Duration = Duration::from_secs(3);
/// The same from the moment on in which its connection began to be opened, for which it is looked for first.
pub(super) const AWAITED_OPENING: Duration = Duration::from_secs(10);
/// The incarnation of a peer that was not met yet: nobody's.
const UNMET: u64 = u64::MAX;
/// Bytes that are read ahead of what they are for.
const AHEAD: usize = 64 << 10;
/// Bytes of frames that wait to go out together.
const TOGETHER: usize = 64 << 10;
/// What is owed is told alone once there is so much of it,
const MUCH: u64 = 32;
/// or when the program has looked for completions so often since and has sent nothing that it could go with. A reply
/// follows the message sooner, and a frame alone costs each side as much as one with a message.
const LOOKS: u32 = 8;
/// When what nobody waits for is told alone.
const LATE: Duration = Duration::from_millis(20);

pub(crate) struct Far {
    pub(super) own: End,
    pub(super) peer: End,
    /// The transport acknowledges messages.
    pub(super) reliable: bool,
    /// Each message that takes a RECV waits until there is one.
    pub(super) credited: bool,
    /// The larger end waits for the smaller one to open it.
    pub(super) stream: Option<Stream>,
    /// Connections that had arrived at the device when this one was last looked for.
    pub(super) arrivals: u64,
    since: Instant,
    /// How long after that a peer that has said nothing yet counts as silent.
    patience: Duration,
    /// After that time it was looked for what it said, and there was nothing. That this side did not look is not the peer's silence.
    silent: bool,
    /// Nobody has wanted a connection yet.
    dormant: bool,
    alive: bool,
    pub(super) not_ready_ns: u64,
    pub(super) heard: Heard,
    pub(super) told: Told,
    /// The peer's RECVs that messages of this side took.
    pub(super) consumed: u64,
    /// RECVs of this side that messages of the peer took.
    pub(super) received: u64,
    /// Messages of this side that are with the kernel whole.
    pub(super) flushed: u64,
    pub(super) out: Outgoing,
    pub(super) input: Incoming,
    /// What the peer asks for, oldest first.
    pub(super) requests: VecDeque<Request>,
    /// Since the peer was told last, something was taken on which no reply follows soon, or for which the peer waits: a
    /// WRITE, of which the program does not know, or many bytes.
    pub(super) prompt: bool,
    /// Since then, something was taken for which the peer awaits the acknowledgement.
    pub(super) awaited: bool,
    /// When the others are to be acknowledged, once the device's thread has seen that there are any.
    late: Option<Instant>,
    /// How often in a row the program looked and nothing was to be done.
    looks: u32,
}

/// What the peer has said.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) ready: bool,
    pub(super) over: bool,
    pub(super) words: Words,
    pub(super) not_ready_ns: u64,
    /// RECVs that it needs, in all.
    pub(super) wants: u64,
    pub(super) stalled: Option<u64>,
    pub(super) refused: Option<(u64, CompletionStatus)>,
}

/// What the peer was told, and what it is still to be told.
#[derive(Default)]
pub(super) struct Told {
    pub(super) words: Words,
    /// RECVs that this side needs, in all.
    pub(super) wants: u64,
    pub(super) want_owed: bool,
    pub(super) want_waits: bool,
    pub(super) stalled: Option<u64>,
    pub(super) stall_owed: bool,
    pub(super) refusal: Option<(u64, CompletionStatus)>,
}

/// A READ or an atomic of the peer.
pub(super) struct Request {
    pub(super) head: Head,
    /// Which of the peer's messages it is.
    pub(super) number: u64,
    pub(super) operands: [u64; 2],
    /// Bytes that were answered.
    pub(super) answered: u32,
}

/// Frames that go out: whole ones, and then the bytes of the last one, which stay where they are until the kernel takes
/// them.
#[derive(Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// How many of them the kernel has.
    at: usize,
    pub(super) tail: Option<Tail>,
    /// A sealed stream has not handed on all that it took.
    pub(super) pushing: bool,
    /// Nothing more can go out: the connection has ended, or a frame was broken off.
    pub(super) cut: bool,
}

/// Bytes of a frame that are in somebody's memory.
pub(super) struct Tail {
    pub(super) of: Source,
    /// Where in the message or answer they start.
    pub(super) start: u32,
    pub(super) len: u32,
    /// How many of them the kernel has.
    pub(super) done: u32,
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// That of the first request of this side which was not begun.
    Send,
    /// What the first request of the peer asks for.
    Answer,
    /// Nobody's: the registration of an answer has ended in the middle of it.
    Nothing,
}

impl Outgoing {
    /// Whether `len` bytes can be put behind what waits.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.tail.is_none() && self.at == 0 && self.bytes.len() + len <= TOGETHER && !self.cut
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tail.is_none() && self.bytes.is_empty()
    }

    /// What the kernel has not taken, but for the tail.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// How many bytes the kernel has not taken.
    pub(super) fn left(&self) -> usize {
        self.rest().len() + self.tail.as_ref().map_or(0, |tail| (tail.len - tail.done) as usize)
    }

    pub(super) fn push(&mut self, head: Head) {
        self.bytes.extend_from_slice(&head.to_bytes());
    }

    /// Room for `len` bytes behind the last head.
    pub(super) fn extend(&mut self, len: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + len, 0);
        &mut self.bytes[start..]
    }

    /// The kernel took so many bytes: whether it has everything.
    pub(super) fn advance(&mut self, taken: usize) -> bool {
        let whole = taken.min(self.bytes.len() - self.at);
        self.at += whole;
        if let Some(tail) = &mut self.tail {
            tail.done += (taken - whole) as u32;
        }
        if self.at < self.bytes.len() {
            return false;
        }
        self.bytes.clear();
        self.at = 0;
        self.tail.as_ref().is_none_or(|tail| tail.done == tail.len)
    }
}

/// Bytes that have come, and what becomes of them.
pub(super) struct Incoming {
    pub(super) bytes: Box<[u8]>,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) coming: Coming,
    /// The last frame was of a long message, and so may be the next: its head is read alone, so that the system puts all that
    /// follows where it belongs.
    pub(super) long: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Coming {
    /// A head.
    Head,
    /// The bytes behind one.
    Body(Body),
    /// A message that finds no RECV, and is kept for a while.
    Held(Head),
}

/// Bytes behind a head.
#[derive(Clone, Copy)]
pub(super) struct Body {
    pub(super) head: Head,
    pub(super) sink: Sink,
    /// How many of them are in place.
    pub(super) done: u32,
}

impl Body {
    pub(super) fn left(&self) -> usize {
        (self.head.len - self.done) as usize
    }

    /// Where in the message the next byte belongs.
    pub(super) fn at(&self) -> usize {
        (self.head.offset + self.done) as usize
    }
}

/// Where bytes belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sink {
    /// The front RECV.
    Recv,
    /// Registered memory that the head names.
    Memory,
    /// The request of this side that the head names.
    Request,
    Nowhere,
}

impl Incoming {
    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Makes room behind what waits.
    pub(super) fn make_room(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
    }
}

impl Far {
    pub(crate) fn new(own: End, peer: End, stream: Option<Stream>, reliable: bool, credited: bool) -> Far {
        Far {
            own,
            peer,
            reliable,
            credited,
            stream,
            arrivals: 0,
            since: Instant::now(),
            patience: AWAITED,
            silent: false,
            dormant: false,
            alive: true,
            not_ready_ns: 0,
            heard: Heard::default(),
            told: Told::default(),
            consumed: 0,
            received: 0,
            flushed: 0,
            out: Outgoing { bytes: Vec::with_capacity(TOGETHER), ..Outgoing::default() },
            input: Incoming { bytes: vec![0; AHEAD].into(), start: 0, end: 0, coming: Coming::Head, long: false },
            requests: VecDeque::with_capacity(MOST_ASKED),
            prompt: false,
            awaited: false,
            late: None,
            looks: 0,
        }
    }

    /// One whose connection is opened when either side has something to send.
    pub(crate) fn dormant(own: End, peer: PeerEnd, reliable: bool, credited: bool) -> Far {
        let peer = End { device: peer.device, number: peer.number, incarnation: UNMET, kind: own.kind };
        Far { dormant: true, patience: AWAITED_OPENING, ..Far::new(own, peer, None, reliable, credited) }
    }

    #[inline]
    pub(in crate::pair) fn is_dormant(&self) -> bool {
        self.dormant
    }

    /// The connection begins to be opened.
    pub(super) fn wake_up(&mut self) {
        (self.dormant, self.since, self.silent) = (false, Instant::now(), false);
    }

    /// Whether this is the peer, as far as it is known.
    pub(super) fn is_peer(&self, end: &End) -> bool {
        let met = End { incarnation: end.incarnation, ..self.peer };
        *end == if self.peer.incarnation == UNMET { met } else { self.peer }
    }

    #[inline]
    pub(in crate::pair) fn is_alive(&self) -> bool {
        self.alive
    }

    #[inline]
    pub(in crate::pair) fn takes(&self) -> bool {
        self.heard.ready && !self.heard.over && self.alive
    }

    pub(in crate::pair) fn is_awaited(&self) -> bool {
        !self.heard.ready && !self.heard.over && self.alive && !self.silent
    }

    /// Whether the peer has had its time to say something: then all that has come is looked at once more.
    pub(super) fn falls_due(&self) -> bool {
        let due = self.is_awaited() && !self.dormant && self.since.elapsed() >= self.patience;
        if due {
            self.suspect();
        }
        due
    }

    /// That was done: if it has not spoken, it is silent.
    pub(super) fn note_silence(&mut self) {
        self.silent = true;
    }

    /// When a peer that has said nothing yet counts as silent.
    pub(in crate::pair) fn awaited_until(&self) -> Instant {
        self.since + self.patience
    }

    pub(in crate::pair) fn is_over(&self) -> bool {
        self.heard.over
    }

    #[inline]
    pub(in crate::pair) fn acked(&self) -> u64 {
        if self.reliable { self.heard.words.acked } else { self.flushed }
    }

    #[inline]
    pub(in crate::pair) fn refused(&self) -> Option<(u64, CompletionStatus)> {
        self.heard.refused
    }

    /// Whether the next message that takes a RECV finds none, as the peer says.
    pub(in crate::pair) fn is_stalled(&self) -> bool {
        self.heard.stalled == Some(self.consumed) && !self.has_credit()
    }

    pub(in crate::pair) fn not_ready_ns(&self) -> u64 {
        self.heard.not_ready_ns
    }

    /// Whether there is a RECV for one more message, as far as the peer has said.
    pub(super) fn has_credit(&self) -> bool {
        !self.credited || self.consumed < self.heard.words.granted
    }

    /// Asks for RECVs for so many messages; if they do not wait for any, for one that is there now.
    pub(super) fn want(&mut self, messages: usize, wait: bool) {
        let messages = if wait { messages.min(MOST_ASKED) } else { 1 };
        self.told.want_waits = wait;
        let wants = self.consumed + messages as u64;
        if wants > self.told.wants {
            (self.told.wants, self.told.want_owed) = (wants, true);
        }
    }

    pub(super) fn hear(&mut self, words: Words) {
        let heard = &mut self.heard.words;
        heard.acked = heard.acked.max(words.acked);
        heard.granted = heard.granted.max(words.granted);
    }

    /// Puts a head behind what goes out. It tells `words`, too.
    pub(super) fn push(&mut self, head: Head) {
        self.told.words = head.words;
        (self.prompt, self.awaited, self.late) = (false, false, None);
        self.out.push(head);
    }

    /// The program has looked, and there was something to be done or not: whether what is owed goes alone now.
    pub(in crate::pair) fn is_quiet(&mut self, worked: bool) -> bool {
        self.looks = if worked { 0 } else { self.looks.saturating_add(1) };
        self.prompt || self.looks >= LOOKS
    }

    /// Whether the peer has to be told something alone. `idle`: there is nothing else to be done. RECVs are told of then when
    /// it knows of no more than that, and at once when it knows of none: it may be about to send.
    pub(super) fn owes(&self, now: Words, idle: bool) -> bool {
        let told = &self.told;
        let acks = self.unacknowledged(now);
        let grants = if self.credited { now.granted.saturating_sub(told.words.granted) } else { 0 };
        let waits = grants > 0 && self.heard.wants > told.words.granted;
        let left = told.words.granted.saturating_sub(self.received);
        let none = grants > 0 && left == 0;
        waits || none || acks.max(grants) >= MUCH || idle && (acks > 0 && self.awaited || grants > 0 && left <= grants)
    }

    /// Whether the peer will be told what it does not wait for.
    pub(in crate::pair) fn owes_acknowledgement(&self, now: Words) -> bool {
        self.unacknowledged(now) > 0
    }

    fn unacknowledged(&self, now: Words) -> u64 {
        if self.reliable { now.acked.saturating_sub(self.told.words.acked) } else { 0 }
    }

    /// When the peer is to be told although it waits for nothing.
    pub(super) fn late(&mut self, now: Words) -> Option<Instant> {
        (self.unacknowledged(now) > 0).then(|| *self.late.get_or_insert_with(|| Instant::now() + LATE))
    }

    /// Something may have come.
    pub(in crate::pair) fn suspect(&self) {
        self.stream.iter().for_each(Stream::suspect);
    }

    #[inline]
    pub(in crate::pair) fn is_readable(&self) -> bool {
        self.stream.as_ref().is_none_or(Stream::is_readable)
    }

    /// Whether nothing is under way or owed that somebody waits for, and nothing has come.
    pub(super) fn is_settled(&self, now: Words) -> bool {
        if self.dormant {
            return true;
        }
        let comes = self.holds_message() || !self.requests.is_empty() || self.is_readable();
        let goes = !self.out.is_empty() || self.out.pushing || self.is_urgent() || self.owes(now, true);
        let waits = self.heard.wants > now.granted || self.is_stalled();
        self.takes() && !self.out.cut && !(comes || goes || waits)
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.told.refusal.is_some() || self.told.want_owed || self.told.stall_owed
    }

    /// Puts behind what goes out whatever the peer has to be told at once.
    pub(super) fn push_urgent(&mut self, words: Words) {
        if let Some((number, status)) = self.told.refusal.take() {
            self.push(Head { rkey: status as u32, ..Head::bare(Kind::Refused, number, words) });
        }
        if std::mem::take(&mut self.told.want_owed) {
            self.push(Head { rkey: self.told.want_waits.into(), ..Head::bare(Kind::Want, self.told.wants, words) });
        }
        if std::mem::take(&mut self.told.stall_owed) {
            self.push(Head::bare(Kind::Stalled, self.received, words));
        }
    }

    /// The bytes of all that [`Far::push_urgent`] may put behind what goes out.
    pub(super) const URGENT: usize = 3 * HEAD;

    /// The requests of this side end as they are: nothing more goes out if one of them is on its way in part.
    pub(in crate::pair) fn break_off_tail(&mut self) {
        if self.out.tail.as_ref().is_some_and(|tail| tail.of == Source::Send) {
            self.out = Outgoing { cut: true, ..Outgoing::default() };
        }
    }

    /// The connection has ended.
    pub(super) fn gone(&mut self) {
        self.stream = None;
        self.out.cut = true;
        // A peer that said goodbye is one in error, and not one that is dead.
        self.alive = self.heard.over;
    }

    /// As if the peer had been waited for so much longer.
    #[cfg(test)]
    pub(in crate::pair) fn age(&mut self, by: Duration) {
        self.since -= by;
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::pair) fn steal(&mut self) -> Option<Stream> {
        self.stream.take()
    }

    /// Whether some bytes of an answer are with the kernel, and others not.
    #[cfg(test)]
    pub(in crate::pair) fn is_amid_answer(&self) -> bool {
        self.out.tail.as_ref().is_some_and(|tail| tail.of == Source::Answer && tail.done > 0)
    }

    /// As if the peer had said goodbye, if some bytes of a request of this side are with the kernel, and others not: whether that is so.
    #[cfg(test)]
    pub(in crate::pair) fn is_over_amid_send(&mut self) -> bool {
        self.heard.over |= self.out.tail.as_ref().is_some_and(|tail| tail.of == Source::Send && tail.done > 0);
        self.heard.over
    }

    /// Whether there is a connection.
    #[cfg(test)]
    pub(in crate::pair) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Has the peer told why nothing more is taken of it.
    pub(in crate::pair) fn refuse(&mut self, number: u64, status: CompletionStatus) {
        self.told.refusal = Some((number, status));
    }

    pub(in crate::pair) fn incarnation(&self) -> u64 {
        self.peer.incarnation
    }

    /// Whether a message of the peer waits for a RECV.
    pub(in crate::pair) fn holds_message(&self) -> bool {
        matches!(self.input.coming, Coming::Held(_))
    }

    /// The connection has come, and with it who the peer is.
    pub(super) fn attach(&mut self, peer: End, stream: Stream) {
        (self.peer, self.stream, self.dormant) = (peer, Some(stream), false);
        self.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use fulmen_verbs::QueuePairKind;

    use super::*;

    fn far() -> Far {
        let device = SocketAddr::from((Ipv4Addr::LOCALHOST, 7));
        let end = |number| End { device, number, incarnation: 1, kind: QueuePairKind::Rc };
        Far::new(end(1), end(2), None, true, true)
    }

    #[test]
    fn receives_are_told_of_before_the_peer_runs_out_of_them() {
        let mut far = far();
        let granted = |granted| Words { acked: 0, granted };
        assert!(!far.owes(granted(0), true));
        assert!(far.owes(granted(1), false), "it knows of none");
        far.push(Head::bare(Kind::Words, 0, granted(10)));
        assert!(!far.owes(granted(19), true), "it knows of 10, and there are 9 more");
        assert!(far.owes(granted(20), true) && !far.owes(granted(20), false));
        far.received = 10;
        assert!(!far.owes(granted(10), true), "there is nothing to be told");
        assert!(far.owes(granted(11), false));
        (far.received, far.heard.wants) = (0, 11);
        assert!(far.owes(granted(11), false), "it waits");
    }

    #[test]
    fn acknowledgements_wait_for_a_reply_that_may_be_on_its_way() {
        let mut far = far();
        let acked = |acked| Words { acked, granted: 0 };
        assert!(!far.owes(acked(MUCH - 1), false) && far.owes(acked(MUCH), false));
        assert!(!far.owes(acked(1), true), "nobody awaits it");
        assert!(far.late(acked(0)).is_none());
        let late = far.late(acked(1)).unwrap();
        assert!(late > Instant::now() && far.late(acked(2)) == Some(late));
        far.push(Head::bare(Kind::Words, 0, acked(0)));
        assert!(far.late(acked(1)) > Some(late), "what was told is told");
        far.awaited = true;
        assert!(far.owes(acked(1), true));
        let quiet_after = |far: &mut Far| (1..).find(|_| far.is_quiet(false)).unwrap();
        assert_eq!(quiet_after(&mut far), LOOKS);
        assert!(!far.is_quiet(true), "something came");
        assert_eq!(quiet_after(&mut far), LOOKS);
        // The program hears nothing of a WRITE, and has nothing to reply.
        far.is_quiet(true);
        far.prompt = true;
        assert_eq!(quiet_after(&mut far), 1);
        far.push(Head::bare(Kind::Words, 0, acked(1)));
        far.is_quiet(true);
        assert_eq!(quiet_after(&mut far), LOOKS);
    }
}
