//! Two processes send each other many messages of random lengths, and look at every byte.

use fulmen_soft::Profile;
use fulmen_testbed::Parent;
use fulmen_verbs::{Carrier, CompletionOpcode, CompletionStatus, SendRequest};

use super::endpoint::{Endpoint, Kept, Name};
use super::{Random, until};

const MESSAGES: u64 = 100_000;
/// Between hosts, where each costs calls of the system.
const FEWER: u64 = 20_000;
/// Messages in flight in each direction.
const WINDOW: u64 = 24;
const LONGEST: usize = 64 << 10;
const BYTES: usize = 2 * WINDOW as usize * LONGEST;

/// What is sent: everybody has the same random bytes, and the messages of a side start at random places in them.
pub struct Script {
    bytes: Vec<u8>,
    random: Random,
}

impl Script {
    pub fn new(seed: u64) -> Script {
        let mut random = Random(7);
        let bytes = (0..(LONGEST + 4096) / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        Script { bytes, random: Random(seed) }
    }

    pub fn next(&mut self) -> &[u8] {
        let most = match self.random.below(20) {
            0 => LONGEST as u64,
            1..4 => 8192,
            _ => 256,
        };
        let (start, len) = (self.random.below(4096) as usize, self.random.below(most + 1) as usize);
        &self.bytes[start..start + len]
    }
}

fn exchange(side: &Endpoint, messages: u64, ours: u64, theirs: u64) {
    let (mut out, mut expected, mut posted) = (Script::new(ours), Script::new(theirs), Script::new(theirs));
    let slot = |number: u64| (number % WINDOW) as usize * LONGEST;
    let recv = |number: u64, len: usize| side.recv(number, BYTES / 2 + slot(number), len);
    for number in 0..WINDOW {
        recv(number, posted.next().len());
    }
    let (mut sent, mut done, mut received) = (0, 0, 0);
    let mut seen = vec![0; LONGEST];
    while done < messages || received < messages {
        while sent < messages && sent < done + WINDOW {
            let message = out.next();
            side.memory.write(slot(sent), message);
            let request = SendRequest::send(sent, [side.piece(slot(sent), message.len())]);
            side.qp.post_send(&[request]).expect("the queue is deep enough");
            sent += 1;
        }
        let completion = until("a message or its end", || side.poll());
        assert_eq!(completion.status, CompletionStatus::Success, "after {done} sent and {received} received");
        if completion.opcode == CompletionOpcode::Send {
            assert_eq!(completion.wr_id, done, "sends complete in order");
            done += 1;
            continue;
        }
        assert_eq!(completion.wr_id, received, "messages arrive in order");
        let message = expected.next();
        assert_eq!(completion.byte_len as usize, message.len(), "the length of message {received}");
        let seen = &mut seen[..message.len()];
        side.memory.read(BYTES / 2 + slot(received), seen);
        assert!(seen == message, "the bytes of message {received}");
        received += 1;
        let next = received + WINDOW - 1;
        if next < messages {
            recv(next, posted.next().len());
        }
    }
}

fn count(kept: Kept) -> u64 {
    if kept == Kept::Afar { FEWER } else { MESSAGES }
}

fn between_processes(profile: Profile, kept: Kept) {
    let mut child = kept.start_child(&format!("exchange {profile}"));
    let side = Endpoint::keeping(profile, kept, BYTES);
    let peer = Name::from_line(&child.hear());
    child.tell(&side.name().to_line());
    side.connect(&peer);
    assert_eq!(kept == Kept::Afar, matches!(side.qp.carrier(), Carrier::Tcp { .. }));
    assert_eq!(child.hear(), "ready");
    child.tell("go");
    exchange(&side, count(kept), 1, 2);
    assert_eq!(child.hear(), "done");
    child.tell("end");
    child.finish();
}

pub fn child(words: &[&str]) {
    let kept = Kept::from_word(words[2]);
    let side = Endpoint::keeping(words[1].parse().expect("a profile"), kept, BYTES);
    Parent.tell(&side.name().to_line());
    side.connect(&Name::from_line(&Parent.hear()));
    Parent.tell("ready");
    assert_eq!(Parent.hear(), "go");
    exchange(&side, count(kept), 2, 1);
    Parent.tell("done");
    assert_eq!(Parent.hear(), "end");
}

#[test]
fn many_messages_over_infiniband() {
    between_processes(Profile::Infiniband, Kept::Mapped);
}

#[test]
fn many_messages_over_thunderbolt() {
    between_processes(Profile::Thunderbolt, Kept::Mapped);
}

#[test]
fn many_messages_between_hosts() {
    for profile in Profile::ALL {
        between_processes(profile, Kept::Afar);
    }
}
