//! Processes that are killed at random points of many operations. The survivor sees an error, or the profile's silence;
//! never a hang, and never a byte that was not meant for it.

use std::time::Instant;

use fulmen_soft::Profile;
use fulmen_testbed::{Child, Parent};
use fulmen_verbs::{Completion, CompletionOpcode, CompletionStatus, QueuePairState, RemoteAddr, SendOp, SendRequest};
use rustix::process::Signal;

use super::endpoint::{Endpoint, Kept, Name};
use super::exchange::Script;
use super::{LONG, Random, rounds, until};

const WINDOW: u64 = 16;
const SLOT: usize = 64 << 10;
/// Outgoing messages, then incoming ones, then bytes that stay as they are for the peer to READ, then bytes that are
/// brought by READs, then bytes for the peer to WRITE.
const OUT: usize = 0;
const IN: usize = OUT + WINDOW as usize * SLOT;
const STAY: usize = IN + WINDOW as usize * SLOT;
const BROUGHT: usize = STAY + SLOT;
const TARGET: usize = BROUGHT + WINDOW as usize * SLOT;
const BYTES: usize = TARGET + SLOT;
const STAYS: u8 = 0xc3;

/// A side that sends and receives for as long as it lives.
struct Side {
    endpoint: Endpoint,
    peer: Name,
    profile: Profile,
    random: Random,
    out: Script,
    expected: Script,
    posted: Script,
    sent: u64,
    done: u64,
    received: u64,
}

impl Side {
    fn new(endpoint: Endpoint, peer: Name, profile: Profile, ours: u64, theirs: u64) -> Side {
        endpoint.memory.fill(STAY..STAY + SLOT, STAYS);
        endpoint.connect(&peer);
        let mut side = Side {
            endpoint,
            peer,
            profile,
            random: Random(ours ^ 0xabcd),
            out: Script::new(ours),
            expected: Script::new(theirs),
            posted: Script::new(theirs),
            sent: 0,
            done: 0,
            received: 0,
        };
        (0..WINDOW).for_each(|number| side.recv(number));
        side
    }

    fn recv(&mut self, number: u64) {
        let len = self.posted.next().len();
        self.endpoint.recv(number, IN + (number % WINDOW) as usize * SLOT, len);
    }

    /// Posts one random operation.
    fn post(&mut self) {
        let slot = (self.sent % WINDOW) as usize * SLOT;
        let remote = |at: usize| RemoteAddr { addr: self.peer.memory.addr + at as u64, ..self.peer.memory };
        let choice = if self.profile == Profile::Infiniband { self.random.below(8) } else { 7 };
        let len = self.random.below(9000) as usize + 1;
        let (op, at, len) = match choice {
            0 => (SendOp::Write { remote: remote(TARGET), imm: None }, OUT + slot, len),
            1 => (SendOp::Read { remote: remote(STAY) }, BROUGHT + slot, len),
            2 => (SendOp::FetchAdd { remote: remote(TARGET), add: 1 }, BROUGHT + slot, 8),
            _ => {
                let message = self.out.next();
                self.endpoint.memory.write(OUT + slot, message);
                (SendOp::Send { imm: None }, OUT + slot, message.len())
            }
        };
        let request = SendRequest::new(self.sent, op, [self.endpoint.piece(at, len)]);
        self.endpoint.qp.post_send(&[request]).expect("the queue is deep enough");
        self.sent += 1;
    }

    /// Checks what a completion promises; false if it is a failure.
    fn check(&mut self, completion: &Completion) -> bool {
        if completion.status != CompletionStatus::Success {
            return false;
        }
        if completion.opcode != CompletionOpcode::Recv {
            assert_eq!(completion.wr_id, self.done, "requests complete in order");
            self.done += 1;
            if completion.opcode == CompletionOpcode::Read {
                let mut seen = vec![0; completion.byte_len as usize];
                self.endpoint.memory.read(BROUGHT + (completion.wr_id % WINDOW) as usize * SLOT, &mut seen);
                assert!(seen.iter().all(|byte| *byte == STAYS), "a READ brings what is there");
            }
            return true;
        }
        assert_eq!(completion.wr_id, self.received, "messages arrive in order");
        let message = self.expected.next();
        assert_eq!(completion.byte_len as usize, message.len(), "the length of message {}", self.received);
        let mut seen = vec![0; message.len()];
        self.endpoint.memory.read(IN + (self.received % WINDOW) as usize * SLOT, &mut seen);
        assert!(seen == message, "the bytes of message {}", self.received);
        self.received += 1;
        self.recv(self.received + WINDOW - 1);
        true
    }

    /// One step; false once something failed.
    fn step(&mut self) -> bool {
        while self.sent < self.done + WINDOW {
            self.post();
        }
        match self.endpoint.poll() {
            Some(completion) => self.check(&completion),
            None => true,
        }
    }
}

pub fn child(words: &[&str]) {
    let profile = words[1].parse().expect("a profile");
    let seed: u64 = words[2].parse().expect("a seed");
    let endpoint = Endpoint::keeping(profile, Kept::from_word(words[3]), BYTES);
    Parent.tell(&endpoint.name().to_line());
    let peer = Name::from_line(&Parent.hear());
    let mut side = Side::new(endpoint, peer, profile, seed + 1, seed);
    Parent.tell("ready");
    let start = Instant::now();
    let mut steps = 0_u32;
    while side.step() {
        steps += 1;
        if steps.is_multiple_of(256) {
            assert!(start.elapsed() < LONG, "nobody killed this process");
            std::thread::yield_now();
        }
    }
    panic!("an operation failed before the peer was killed");
}

fn start(profile: Profile, kept: Kept, seed: u64) -> (Child, Side) {
    let mut child = kept.start_child(&format!("victim {profile} {seed}"));
    let endpoint = Endpoint::keeping(profile, kept, BYTES);
    let peer = Name::from_line(&child.hear());
    child.tell(&endpoint.name().to_line());
    let side = Side::new(endpoint, peer, profile, seed, seed + 1);
    assert_eq!(child.hear(), "ready");
    (child, side)
}

fn run_for(side: &mut Side, operations: u64) {
    until("operations between two living processes", || {
        assert!(side.step(), "nothing fails while both live");
        (side.done + side.received >= operations).then_some(())
    });
}

fn kill_rounds(profile: Profile, kept: Kept, count: u32) {
    let mut random = Random(u64::from(count) + 99);
    let mut operations = 0;
    for round in 0..u64::from(count) {
        let (child, mut side) = start(profile, kept, round * 2 + 1);
        run_for(&mut side, random.below(4000));
        for _ in 0..random.below(20_000) {
            std::hint::spin_loop();
        }
        child.kill();
        match profile {
            Profile::Infiniband => dies_loudly(&mut side),
            Profile::Thunderbolt => dies_silently(&mut side),
        }
        operations += side.done + side.received;
    }
    println!("{profile}, {kept:?}: {operations} operations in {count} rounds");
}

/// Every request ends: some well, one with the reason, the others flushed.
fn dies_loudly(side: &mut Side) {
    let first = until("the error that a dead peer causes", || {
        while side.sent < side.done + WINDOW {
            side.post();
        }
        let completion = side.endpoint.poll()?;
        (!side.check(&completion)).then_some(completion)
    });
    assert_eq!((first.wr_id, first.status), (side.done, CompletionStatus::RetryExceeded));
    assert_eq!(side.endpoint.qp.state(), QueuePairState::Error);
    let left = (side.sent - side.done - 1) + WINDOW;
    for _ in 0..left {
        let completion = until("a flushed request", || side.endpoint.poll());
        assert_eq!(completion.status, CompletionStatus::Flushed);
    }
    assert_eq!(side.endpoint.poll(), None, "each request ends once");
}

/// What had arrived is whole, and then there is nothing.
fn dies_silently(side: &mut Side) {
    let mut quiet = 0;
    while quiet < 2000 {
        while side.sent < side.done + WINDOW {
            side.post();
        }
        match side.endpoint.poll() {
            Some(completion) => {
                assert!(side.check(&completion), "a dead peer is not told of: {completion:?}");
                quiet = 0;
            }
            None => quiet += 1,
        }
    }
    assert_eq!(side.endpoint.qp.state(), QueuePairState::ReadyToSend);
}

#[test]
fn killed_over_infiniband() {
    kill_rounds(Profile::Infiniband, Kept::Mapped, rounds(12, 300));
}

#[test]
fn killed_while_the_system_copies() {
    kill_rounds(Profile::Infiniband, Kept::Copied, rounds(12, 300));
}

#[test]
fn killed_while_it_is_asked() {
    kill_rounds(Profile::Infiniband, Kept::InRings, rounds(12, 300));
}

#[test]
fn killed_over_thunderbolt() {
    kill_rounds(Profile::Thunderbolt, Kept::Mapped, rounds(12, 300));
}

#[test]
fn killed_on_another_host() {
    for profile in Profile::ALL {
        kill_rounds(profile, Kept::Afar, rounds(6, 150));
    }
}

/// A stopped process is not dead: everything waits for it, and goes on with it.
#[test]
fn a_stopped_peer_is_waited_for() {
    let plain = [Kept::Copied, Kept::InRings].map(|kept| (Profile::Infiniband, kept));
    for (profile, kept) in Profile::ALL.map(|profile| (profile, Kept::Mapped)).into_iter().chain(plain) {
        is_waited_for(profile, kept);
    }
}

#[test]
fn a_stopped_peer_on_another_host_is_waited_for() {
    for profile in Profile::ALL {
        is_waited_for(profile, Kept::Afar);
    }
}

fn is_waited_for(profile: Profile, kept: Kept) {
    let (child, mut side) = start(profile, kept, 5);
    run_for(&mut side, 500);
    child.signal(Signal::STOP);
    // Fills what can be filled.
    for _ in 0..20_000 {
        assert!(side.step(), "a stopped peer is no error");
    }
    let before = side.done + side.received;
    child.signal(Signal::CONT);
    run_for(&mut side, before + 500);
    child.kill();
}
