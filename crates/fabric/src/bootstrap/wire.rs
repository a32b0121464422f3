//! Frames: a message in postcard and a body of raw bytes, both limited before they are stored.

use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

/// Bytes that may wait for several connections at once.
pub(super) type Shared = Arc<Vec<u8>>;

/// Length of the message (u32) and of the body (u32).
const HEADER: usize = 8;

/// The longest frame that a connection's state allows, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub message: usize,
    pub body: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a message of {len} bytes where at most {limit} are allowed")]
    MessageTooLong { len: usize, limit: usize },
    #[error("a body of {len} bytes where at most {limit} are allowed")]
    BodyTooLong { len: usize, limit: usize },
    #[error("a message that cannot be read")]
    Malformed,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    message: Vec<u8>,
    pub body: Vec<u8>,
}

impl Frame {
    /// Reads the message; bytes left over are an error.
    pub fn message<M: DeserializeOwned>(&self) -> Result<M, FrameError> {
        match postcard::take_from_bytes(&self.message) {
            Ok((message, [])) => Ok(message),
            _ => Err(FrameError::Malformed),
        }
    }
}

/// The bytes of a frame up to its body of `body` bytes, which the caller sends after them.
pub(super) fn head<M: Serialize>(message: &M, body: usize) -> Vec<u8> {
    let bytes = postcard::to_extend(message, vec![0; HEADER]);
    let mut bytes = bytes.expect("the messages of this protocol are plain data that postcard can always write");
    let len = (bytes.len() - HEADER) as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes[4..HEADER].copy_from_slice(&(body as u32).to_le_bytes());
    bytes
}

/// Turns a stream of bytes, cut anywhere, into frames. Holds at most one frame and what was pushed last.
pub(super) struct Decoder {
    limits: Limits,
    buffer: Vec<u8>,
}

impl Decoder {
    pub fn new(limits: Limits) -> Decoder {
        Decoder { limits, buffer: Vec::new() }
    }

    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` until more bytes are pushed. After an error the stream cannot be read on.
    pub fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((header, _)) = self.buffer.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [a, b, c, d, e, f, g, h] = *header;
        let (message, body) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize);
        if message > self.limits.message {
            return Err(FrameError::MessageTooLong { len: message, limit: self.limits.message });
        }
        if body > self.limits.body {
            return Err(FrameError::BodyTooLong { len: body, limit: self.limits.body });
        }
        let end = HEADER + message + body;
        if self.buffer.len() < end {
            return Ok(None);
        }
        let rest = self.buffer.split_off(end);
        let mut front = std::mem::replace(&mut self.buffer, rest);
        let body = front.split_off(HEADER + message);
        front.drain(..HEADER);
        Ok(Some(Frame { message: front, body }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{LossCause, LostRank, ToCoordinator, ToRank};
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { message: 64, body: 256 };

    fn decode_all(decoder: &mut Decoder, bytes: &[u8], cut: usize) -> Result<Vec<Frame>, FrameError> {
        let mut frames = Vec::new();
        for piece in bytes.chunks(cut) {
            decoder.push(piece);
            while let Some(frame) = decoder.next()? {
                frames.push(frame);
            }
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn frames_round_trip_however_the_stream_is_cut(
            sent in prop::collection::vec((any::<u32>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..=256)), 0..8),
            cut in 1usize..300,
        ) {
            let mut bytes = Vec::new();
            for (rank, pid, body) in &sent {
                bytes.extend(head(&ToCoordinator::Join { rank: *rank, size: 7, pid: *pid, pids: None }, body.len()));
                bytes.extend(body);
            }
            let mut decoder = Decoder::new(LIMITS);
            let frames = decode_all(&mut decoder, &bytes, cut).unwrap();
            prop_assert_eq!(frames.len(), sent.len());
            for (frame, (rank, pid, body)) in frames.iter().zip(&sent) {
                let message: ToCoordinator = frame.message().unwrap();
                prop_assert_eq!(message, ToCoordinator::Join { rank: *rank, size: 7, pid: *pid, pids: None });
                prop_assert_eq!(&frame.body, body);
            }
            prop_assert!(decoder.buffer.is_empty());
        }

        #[test]
        fn random_bytes_never_panic_and_never_pile_up(
            bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..4096),
            cut in 1usize..512,
        ) {
            let mut decoder = Decoder::new(LIMITS);
            if let Ok(frames) = decode_all(&mut decoder, &bytes, cut) {
                for frame in frames {
                    let _ = frame.message::<ToCoordinator>();
                    let _ = frame.message::<ToRank>();
                }
                prop_assert!(decoder.buffer.len() < HEADER + LIMITS.message + LIMITS.body + cut);
            }
        }

        #[test]
        fn lengths_beyond_the_limit_are_refused_by_the_header_alone(message in any::<u32>(), body in any::<u32>()) {
            let mut decoder = Decoder::new(LIMITS);
            decoder.push(&message.to_le_bytes());
            decoder.push(&body.to_le_bytes());
            let fits = message as usize <= LIMITS.message && body as usize <= LIMITS.body;
            prop_assert_eq!(decoder.next().is_ok(), fits);
        }
    }

    #[test]
    fn bytes_after_the_message_are_malformed() {
        let lost = LostRank { rank: 1, pid: 2, cause: LossCause::Closed };
        let mut bytes = head(&ToRank::Lost(lost), 0);
        let len = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) + 1;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes.push(0);
        let mut decoder = Decoder::new(LIMITS);
        decoder.push(&bytes);
        let frame = decoder.next().unwrap().unwrap();
        assert_eq!(frame.message::<ToRank>().unwrap_err(), FrameError::Malformed);
    }
}
