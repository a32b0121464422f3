//! Long messages out of memory that nobody can map, which the receiver pulls or the ring carries in parts. One side is
//! killed at any moment of them.

use fulmen_soft::Profile;
use fulmen_testbed::Parent;
use fulmen_verbs::{Completion, CompletionOpcode, CompletionStatus, QueuePairState, SendRequest};

use super::endpoint::{Endpoint, Kept, Name};
use super::{Random, rounds, until};

const MESSAGE: usize = 5 << 19;
/// Messages in flight in each direction.
const WINDOW: u64 = 2;
const BYTES: usize = 2 * WINDOW as usize * MESSAGE;

/// A side that sends and receives, and looks at what it gets.
struct Side {
    endpoint: Endpoint,
    sent: u64,
    done: u64,
    received: u64,
}

fn slot(number: u64) -> usize {
    (number % WINDOW) as usize * MESSAGE
}

impl Side {
    fn new(endpoint: Endpoint, peer: &Name) -> Side {
        endpoint.connect(peer);
        let side = Side { endpoint, sent: 0, done: 0, received: 0 };
        (0..WINDOW).for_each(|number| side.recv(number));
        side
    }

    fn recv(&self, number: u64) {
        self.endpoint.recv(number, BYTES / 2 + slot(number), MESSAGE);
    }

    /// One step: what failed, if something did.
    fn step(&mut self) -> Option<Completion> {
        while self.sent < self.done + WINDOW {
            let at = slot(self.sent);
            self.endpoint.memory.fill(at..at + MESSAGE, self.sent as u8);
            let request = SendRequest::send(self.sent, [self.endpoint.piece(at, MESSAGE)]);
            self.endpoint.qp.post_send(&[request]).expect("the queue is deep enough");
            self.sent += 1;
        }
        let completion = self.endpoint.poll()?;
        if completion.status != CompletionStatus::Success {
            return Some(completion);
        }
        if completion.opcode == CompletionOpcode::Send {
            assert_eq!(completion.wr_id, self.done, "messages leave in order");
            self.done += 1;
            return None;
        }
        assert_eq!((completion.wr_id, completion.byte_len), (self.received, MESSAGE as u32));
        let mut seen = vec![0; MESSAGE];
        self.endpoint.memory.read(BYTES / 2 + slot(self.received), &mut seen);
        assert!(seen.iter().all(|byte| *byte == self.received as u8), "the bytes of message {}", self.received);
        self.received += 1;
        self.recv(self.received + WINDOW - 1);
        None
    }
}

pub fn child(words: &[&str]) {
    let endpoint = Endpoint::keeping(Profile::Infiniband, Kept::from_word(words[1]), BYTES);
    Parent.tell(&endpoint.name().to_line());
    let mut side = Side::new(endpoint, &Name::from_line(&Parent.hear()));
    Parent.tell("ready");
    let failed = until("the death of the peer, or of this one", || side.step());
    assert_eq!(failed.status, CompletionStatus::RetryExceeded);
}

fn survives(kept: Kept) {
    let mut random = Random(41);
    for _ in 0..rounds(3, 40) {
        let mut child = kept.start_child("long");
        let endpoint = Endpoint::keeping(Profile::Infiniband, kept, BYTES);
        let peer = Name::from_line(&child.hear());
        child.tell(&endpoint.name().to_line());
        let mut side = Side::new(endpoint, &peer);
        assert_eq!(child.hear(), "ready");
        let messages = 4 + random.below(6);
        until("messages between two living processes", || {
            assert_eq!(side.step(), None, "nothing fails while both live");
            (side.done + side.received >= messages).then_some(())
        });
        for _ in 0..random.below(100_000) {
            std::hint::spin_loop();
        }
        child.kill();
        let first = until("the error that a dead peer causes", || side.step());
        assert_eq!((first.wr_id, first.status), (side.done, CompletionStatus::RetryExceeded));
        assert_eq!(side.endpoint.qp.state(), QueuePairState::Error);
        let left = (side.sent - side.done - 1) + WINDOW;
        for _ in 0..left {
            let completion = until("a flushed request", || side.endpoint.poll());
            assert_eq!(completion.status, CompletionStatus::Flushed);
        }
    }
}

#[test]
fn killed_while_long_messages_are_pulled() {
    survives(Kept::Copied);
}

#[test]
fn killed_while_long_messages_come_in_parts() {
    survives(Kept::InRings);
}
