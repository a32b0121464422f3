//! What must come of messages: each is received once, in the order of its tag, as it was sent.
//!
//! On the lower tags nothing is given up, so that the n-th receive gets the n-th message, exactly. On the higher ones
//! either side may give up, so that a message says its own number, and what is checked is that the numbers grow.

use std::collections::VecDeque;

use fulmen_fabric::engine::OpError;

use crate::random::{mix, pattern};
use crate::report::Broken;

/// Tags of a link, each with an order of its own.
pub(crate) const TAGS: u64 = 4;
/// From this tag on, operations may be given up.
pub(crate) const CANCELLING: u64 = 2;
/// What lies in memory that must not be written.
pub(crate) const CANARY: u8 = 0xee;

/// A broken promise, to be completed with its place and time.
pub(crate) type Wrong = (Broken, String);

#[derive(Debug)]
struct Sent {
    len: u64,
    /// Its end means that it was delivered.
    answered: bool,
    cancelled: bool,
    /// Some receive has got it.
    received: bool,
    /// Some receive, probably, was too short for it.
    refused: bool,
    outcome: Option<Result<u64, OpError>>,
}

#[derive(Debug)]
struct Received {
    room: u64,
    cancelled: bool,
    outcome: Option<Result<u64, OpError>>,
    /// Which message it got, if that is known.
    message: Option<u64>,
}

/// The messages of one tag in one direction of one link.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Tells its messages from those of all other lanes.
    salt: u64,
    cancelling: bool,
    sends: VecDeque<Sent>,
    recvs: VecDeque<Received>,
    /// Numbers of the first ones that are still in the books.
    first_send: u64,
    first_recv: u64,
    /// No receive may get a message before this one any more.
    floor: u64,
    /// Something was given up by the sender, the receiver.
    gave_up: [bool; 2],
    /// Some receive was too short.
    refused: bool,
}

impl Lane {
    pub(crate) fn new(salt: u64, tag: u64) -> Lane {
        Lane { salt, cancelling: tag >= CANCELLING, ..Lane::default() }
    }

    /// How many messages were sent beyond those that were asked for; below zero, the receives that wait. Exact where
    /// nothing is given up.
    pub(crate) fn ahead(&self) -> i64 {
        if !self.cancelling {
            return self.sends.len() as i64 - self.recvs.len() as i64;
        }
        let messages = self.sends.iter().filter(|send| !send.cancelled && !send.received && !send.refused).count();
        let recvs = self.recvs.iter().filter(|recv| !recv.cancelled && recv.outcome.is_none()).count();
        messages as i64 - recvs as i64
    }

    /// Whether a message has not ended.
    pub(crate) fn is_sending(&self) -> bool {
        self.sends.iter().any(|send| send.outcome.is_none())
    }

    /// How many receives are missing for all messages to be received. `stuck`: some message does not end, perhaps for a
    /// message of this lane of which nobody knows that it is still there.
    pub(crate) fn missing(&self, stuck: bool) -> usize {
        self.ahead().max(i64::from(stuck && self.cancelling)).max(0) as usize
    }

    /// Adds a message: its number and bytes.
    /// `answered`: its end means that it was delivered.
    pub(crate) fn send(&mut self, len: usize, answered: impl FnOnce(u64) -> bool) -> (u64, Vec<u8>) {
        let number = self.first_send + self.sends.len() as u64;
        let answered = answered(number);
        let len = if self.cancelling { len.max(8) } else { len };
        self.sends.push_back(Sent {
            len: len as u64,
            answered,
            cancelled: false,
            received: false,
            refused: false,
            outcome: None,
        });
        (number, self.bytes(number, len))
    }

    pub(crate) fn recv(&mut self, room: usize) -> u64 {
        let number = self.first_recv + self.recvs.len() as u64;
        self.recvs.push_back(Received { room: room as u64, cancelled: false, outcome: None, message: None });
        number
    }

    fn bytes(&self, number: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        pattern(mix(self.salt, number), &mut bytes);
        if self.cancelling {
            bytes[..8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// A send was given up. `gone`: it has no outcome.
    pub(crate) fn cancelled_send(&mut self, number: u64, gone: bool) -> Result<(), Wrong> {
        self.gave_up[0] = true;
        let send = &mut self.sends[(number - self.first_send) as usize];
        send.cancelled = true;
        if gone {
            send.outcome = Some(Err(OpError::Cancelled));
        }
        self.prune()
    }

    pub(crate) fn cancelled_recv(&mut self, number: u64, gone: bool) -> Result<(), Wrong> {
        self.gave_up[1] = true;
        let recv = &mut self.recvs[(number - self.first_recv) as usize];
        recv.cancelled = true;
        if gone {
            recv.outcome = Some(Err(OpError::Cancelled));
        }
        self.prune()
    }

    /// A send has ended.
    pub(crate) fn sent(&mut self, number: u64, outcome: Result<u64, OpError>, over: bool) -> Result<(), Wrong> {
        let send = &mut self.sends[(number - self.first_send) as usize];
        let explained = match outcome {
            Ok(len) => len == send.len,
            Err(OpError::Severed | OpError::Left) => over,
            Err(OpError::Cancelled) => send.cancelled || self.gave_up[1],
            Err(OpError::Refused { len }) => self.refused && len == send.len,
            Err(_) => false,
        };
        if !explained {
            return Err((Broken::Outcome, format!("message {number} of {} bytes ended with {outcome:?}", send.len)));
        }
        send.outcome = Some(outcome);
        self.prune()
    }

    /// A receive has ended, with `memory` in its buffer.
    pub(crate) fn received(
        &mut self,
        number: u64,
        outcome: Result<u64, OpError>,
        memory: &[u8],
        over: bool,
    ) -> Result<(), Wrong> {
        let index = (number - self.first_recv) as usize;
        let recv = &self.recvs[index];
        let room = recv.room;
        let wrong = |broken, what: String| Err((broken, format!("receive {number} with room for {room} {what}")));
        let message = match outcome {
            Ok(len) => {
                let message = if self.cancelling && len >= 8 {
                    u64::from_le_bytes(memory[..8].try_into().expect("eight bytes"))
                } else {
                    number
                };
                let Some(send) = message.checked_sub(self.first_send).and_then(|at| self.sends.get(at as usize)) else {
                    return wrong(Broken::Message, format!("got message {message}, which was not sent, or long ago"));
                };
                if send.len != len || len > room {
                    let expected = send.len;
                    return wrong(Broken::Message, format!("got {len} bytes of message {message} of {expected} bytes"));
                }
                if send.received {
                    return wrong(Broken::Message, format!("got message {message}, which was received before"));
                }
                let bytes = self.bytes(message, len as usize);
                if let Some(at) = (0..bytes.len()).find(|at| bytes[*at] != memory[*at]) {
                    return wrong(
                        Broken::Message,
                        format!("got message {message} of {len} bytes, wrong from byte {at} on"),
                    );
                }
                if let Some(neighbor) = self.out_of_order(index, message) {
                    return wrong(Broken::Message, format!("got message {message} though a neighbor got {neighbor}"));
                }
                if memory[len as usize..].iter().any(|byte| *byte != CANARY) {
                    return wrong(Broken::Message, format!("was written beyond message {message} of {len} bytes"));
                }
                self.sends[(message - self.first_send) as usize].received = true;
                Some(message)
            }
            Err(error) => {
                let explained = match error {
                    OpError::Severed | OpError::Left => over,
                    OpError::Cancelled => recv.cancelled || self.gave_up[0],
                    OpError::Truncated { len, room: told } => {
                        self.refused = true;
                        let taken =
                            |send: &&mut Sent| send.len == len && !(send.received || send.refused || send.cancelled);
                        if let Some(send) = self.sends.iter_mut().find(taken) {
                            send.refused = true;
                        }
                        let exact = || {
                            let send = number.checked_sub(self.first_send).and_then(|at| self.sends.get(at as usize));
                            send.is_some_and(|send| send.len == len)
                        };
                        told == room && len > room && (self.cancelling || exact())
                    }
                    _ => false,
                };
                if !explained {
                    return wrong(Broken::Outcome, format!("ended with {error:?}"));
                }
                if matches!(error, OpError::Truncated { .. }) && memory.iter().any(|byte| *byte != CANARY) {
                    return wrong(Broken::Message, "was written though it refused its message".into());
                }
                None
            }
        };
        let recv = &mut self.recvs[index];
        (recv.outcome, recv.message) = (Some(outcome), message);
        self.prune()
    }

    /// The message of an earlier receive that is later, or the other way round.
    fn out_of_order(&self, index: usize, message: u64) -> Option<u64> {
        let before = self.recvs.iter().take(index).rev().find_map(|recv| recv.message);
        let after = self.recvs.iter().skip(index + 1).find_map(|recv| recv.message);
        if message < self.floor {
            return Some(self.floor - 1);
        }
        before.filter(|before| *before >= message).or(after.filter(|after| *after <= message))
    }

    /// Closes the books of what can have no more influence.
    fn prune(&mut self) -> Result<(), Wrong> {
        if !self.cancelling {
            while let (Some(send), Some(recv)) = (self.sends.front(), self.recvs.front())
                && let (Some(_), Some(_)) = (send.outcome, recv.outcome)
            {
                self.delivered(self.first_send, send)?;
                self.sends.pop_front();
                self.recvs.pop_front();
                self.first_send += 1;
                self.first_recv += 1;
            }
            return Ok(());
        }
        while let Some(recv) = self.recvs.front()
            && recv.outcome.is_some()
        {
            self.floor = recv.message.map_or(self.floor, |message| message + 1);
            self.recvs.pop_front();
            self.first_recv += 1;
        }
        while self.first_send < self.floor
            && let Some(send) = self.sends.front()
            && send.outcome.is_some()
        {
            self.sends.pop_front();
            self.first_send += 1;
        }
        Ok(())
    }

    /// A message that its receiver answers for is sent when it is received.
    fn delivered(&self, number: u64, send: &Sent) -> Result<(), Wrong> {
        if send.answered && send.len > 0 && matches!(send.outcome, Some(Ok(_))) && !send.received {
            let what = format!("message {number} of {} bytes was reported as delivered, and was not", send.len);
            return Err((Broken::Message, what));
        }
        Ok(())
    }

    /// What must hold when the link is over. `receiver`: that end has lived until then, so that it has told all it got.
    pub(crate) fn over(&self, receiver: bool) -> Result<(), Wrong> {
        if !receiver {
            return Ok(());
        }
        (self.first_send..).zip(&self.sends).try_for_each(|(number, send)| self.delivered(number, send))
    }

    /// What must hold when the link has come to rest with nobody in the way.
    pub(crate) fn at_rest(&self) -> Result<(), Wrong> {
        self.over(true)?;
        if let Some((number, send)) = (self.first_send..).zip(&self.sends).find(|(_, send)| send.outcome.is_none()) {
            return Err((Broken::Hang, format!("message {number} of {} bytes does not end", send.len)));
        }
        let open = |recv: &Received| recv.outcome.is_none();
        if let Some((number, _)) = (self.first_recv..).zip(&self.recvs).find(|(_, recv)| open(recv)) {
            return Err((Broken::Hang, format!("receive {number} does not end")));
        }
        Ok(())
    }
}
