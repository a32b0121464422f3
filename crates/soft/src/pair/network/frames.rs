//! Frames of the connection between two queue pairs: a head of fixed length, and bytes that follow some of them.

use std::ops::RangeInclusive;

use fulmen_verbs::CompletionStatus;

/// Bytes of a head.
pub(crate) const HEAD: usize = 48;
/// Bytes of a message, an answer or a WRITE in one frame, so that others get in between.
pub(super) const CHUNK: usize = 1 << 20;
/// Bytes that follow the head of an atomic: its two operands.
pub(super) const OPERANDS: usize = 16;
/// READs and atomics that a queue pair has asked for at a time. The other side has room for so many.
pub(super) const MOST_ASKED: usize = 16;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first frame: this side takes messages from now on. `addr`: how long to wait for a RECV, in nanoseconds.
    Ready,
    /// Nothing but the words.
    Words,
    /// Bytes of a SEND.
    Send,
    /// Bytes of a WRITE, to `addr` in `rkey` and as far behind it as `offset` says.
    Write,
    /// A READ of `total` bytes at `addr` in `rkey`.
    Read,
    /// To `addr` in `rkey`, the first operand is added.
    FetchAdd,
    /// At `addr` in `rkey`, the first operand is compared and the second one put in its place.
    CompareSwap,
    /// Bytes that request `addr` asked for.
    Answer,
    /// Messages need RECVs, `addr` of them in all; they wait for them, unless `rkey` is 0.
    Want,
    /// The message behind the first `addr` that took a RECV has none.
    Stalled,
    /// Message `addr` is refused, with the status that `rkey` is the code of.
    Refused,
    /// The queue pair is in error, reset or destroyed.
    Bye,
}

/// All of them.
pub(crate) const KINDS: [Kind; 12] = [
    Kind::Ready,
    Kind::Words,
    Kind::Send,
    Kind::Write,
    Kind::Read,
    Kind::FetchAdd,
    Kind::CompareSwap,
    Kind::Answer,
    Kind::Want,
    Kind::Stalled,
    Kind::Refused,
    Kind::Bye,
];

/// What each frame tells beside what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words {
    /// Messages and requests that were taken.
    pub(crate) acked: u64,
    /// RECVs that were posted.
    pub(crate) granted: u64,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) solicited: bool,
    /// The sender waits for the acknowledgement (InfiniBand's AckReq).
    pub(crate) ack_req: bool,
    pub(crate) imm: Option<u32>,
    /// Bytes that follow.
    pub(crate) len: u32,
    /// Bytes of the whole message, request or answer.
    pub(crate) total: u32,
    /// Where in it the bytes belong.
    pub(crate) offset: u32,
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) words: Words,
}

const IMM: u8 = 1;
const SOLICITED: u8 = 2;
const ACK_REQ: u8 = 4;

impl Head {
    /// A head with nothing behind it.
    pub(crate) fn bare(kind: Kind, addr: u64, words: Words) -> Head {
        Head { kind, solicited: false, ack_req: false, imm: None, len: 0, total: 0, offset: 0, rkey: 0, addr, words }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[0] = self.kind as u8 + 1;
        let flags = [(self.imm.is_some(), IMM), (self.solicited, SOLICITED), (self.ack_req, ACK_REQ)];
        bytes[1] = flags.into_iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag);
        let words = [self.imm.unwrap_or(0), self.len, self.total, self.offset, self.rkey];
        for (place, word) in bytes[4..24].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (place, word) in bytes[24..].chunks_exact_mut(8).zip([self.addr, self.words.acked, self.words.granted]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The head that these bytes are, if they can be one: what follows suits the kind.
    pub(crate) fn from_bytes(bytes: &[u8; HEAD]) -> Option<Head> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let kind = *KINDS.get(usize::from(bytes[0]).checked_sub(1)?)?;
        let (flags, len, total, offset) = (bytes[1], word(8), word(12), word(16));
        let part = || len as usize <= CHUNK && offset.checked_add(len).is_some_and(|end| end <= total);
        let announced = flags & IMM != 0;
        let exactly = |lens: RangeInclusive<u32>, totals: RangeInclusive<u32>| {
            lens.contains(&len) && totals.contains(&total) && offset == 0
        };
        let fits = match kind {
            Kind::Send => part() && (len > 0 || total == 0),
            Kind::Write => part() && (len > 0 || total == 0 && announced),
            Kind::Answer => part() && len > 0,
            Kind::Read => exactly(0..=0, 1..=u32::MAX),
            Kind::FetchAdd | Kind::CompareSwap => exactly(OPERANDS as u32..=OPERANDS as u32, 8..=8),
            Kind::Ready | Kind::Words | Kind::Want | Kind::Stalled | Kind::Refused | Kind::Bye => exactly(0..=0, 0..=0),
        };
        let flagged = flags & !(IMM | SOLICITED | ACK_REQ) == 0
            && (flags == 0 || matches!(kind, Kind::Send | Kind::Write))
            && (announced || word(4) == 0)
            && bytes[2..4] == [0, 0];
        (fits && flagged).then(|| Head {
            kind,
            solicited: flags & SOLICITED != 0,
            ack_req: flags & ACK_REQ != 0,
            imm: announced.then(|| word(4)),
            len,
            total,
            offset,
            rkey: word(20),
            addr: long(24),
            words: Words { acked: long(32), granted: long(40) },
        })
    }

    /// Whether nothing of the message comes after this frame.
    pub(super) fn is_last(&self) -> bool {
        self.offset + self.len == self.total
    }

    /// What a refusal says.
    pub(super) fn status(&self) -> CompletionStatus {
        match self.rkey {
            code if code == CompletionStatus::RemoteInvalidRequest as u32 => CompletionStatus::RemoteInvalidRequest,
            code if code == CompletionStatus::RemoteAccess as u32 => CompletionStatus::RemoteAccess,
            _ => CompletionStatus::RemoteOperation,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn heads() -> impl Strategy<Value = Head> {
        let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>());
        let shape = (0..KINDS.len(), any::<[bool; 2]>(), any::<Option<u32>>(), any::<[u32; 3]>());
        (shape, numbers).prop_map(
            |((kind, [solicited, ack_req], imm, [total, offset, len]), (rkey, addr, acked, granted))| {
                let kind = KINDS[kind];
                let offset = offset.checked_rem(total).unwrap_or(0);
                let len = if total == 0 { 0 } else { 1 + len % (total - offset).min(CHUNK as u32) };
                let (total, offset, len) = match kind {
                    Kind::Send => (total, offset, len),
                    Kind::Write if total > 0 || imm.is_some() => (total, offset, len),
                    Kind::Write | Kind::Answer => (total.max(1), 0, 1),
                    Kind::Read => (total.max(1), 0, 0),
                    Kind::FetchAdd | Kind::CompareSwap => (8, 0, OPERANDS as u32),
                    _ => (0, 0, 0),
                };
                let flagged = matches!(kind, Kind::Send | Kind::Write);
                let (solicited, ack_req, imm) = (solicited && flagged, ack_req && flagged, imm.filter(|_| flagged));
                Head { kind, solicited, ack_req, imm, len, total, offset, rkey, addr, words: Words { acked, granted } }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(head in heads()) {
            prop_assert_eq!(Head::from_bytes(&head.to_bytes()), Some(head));
        }

        #[test]
        fn what_is_read_is_one_head_only(bytes in any::<[u8; 24]>(), rest in any::<[u8; 24]>(), kind in 0..16_u8) {
            let mut all = [0; HEAD];
            all[..24].copy_from_slice(&bytes);
            all[24..].copy_from_slice(&rest);
            // Most bytes are no head, so that some are made to look like one.
            (all[0], all[1], all[2], all[3]) = (kind, all[1] & 7, 0, 0);
            all[8..20].fill(0);
            if let Some(head) = Head::from_bytes(&all) {
                prop_assert_eq!(head.to_bytes(), all);
                prop_assert!(head.len as usize <= CHUNK && u64::from(head.offset) + u64::from(head.len) <= u64::from(head.total).max(16));
            }
        }

        /// A damaged bit of what decides how many bytes follow is found, or gives a head that fits all the same.
        #[test]
        fn lengths_stay_within_their_message(head in heads(), bit in 0..HEAD * 8) {
            let mut bytes = head.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Some(other) = Head::from_bytes(&bytes) {
                prop_assert!(other.len as usize <= CHUNK);
                let operands = matches!(other.kind, Kind::FetchAdd | Kind::CompareSwap);
                prop_assert!(operands || u64::from(other.offset) + u64::from(other.len) <= u64::from(other.total));
                prop_assert_eq!(other.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn statuses_that_nobody_tells_are_one() {
        let told = |code| Head { rkey: code, ..Head::bare(Kind::Refused, 0, Words::default()) }.status();
        for status in [CompletionStatus::RemoteAccess, CompletionStatus::RemoteInvalidRequest] {
            assert_eq!(told(status as u32), status);
        }
        assert_eq!(told(CompletionStatus::Success as u32), CompletionStatus::RemoteOperation);
    }
}
