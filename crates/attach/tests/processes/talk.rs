//! Programs that send each other many messages of many lengths, and look at every byte.

use std::path::Path;

use fulmen_attach::LONGEST_MESSAGE;
use fulmen_testbed::{Child, Parent};
use fulmen_verbs::{CompletionOpcode, Device, QueuePairInit, QueuePairKind, QueuePairLimits};

use super::side::{Name, Side};
use super::support::{House, strict};
use super::{Random, until};

/// Messages in flight in each direction: more than go out at a time.
const WINDOW: u64 = 24;
const MESSAGES: u64 = 10_000;
/// Around what fits in the frames of each of a trunk's queue pairs, and the ends.
const EDGES: [usize; 9] = [0, 1, 4031, 4032, 4033, 12_223, 12_224, 12_225, LONGEST_MESSAGE];

/// What is sent: everybody has the same random bytes, and the messages of a side start at random places in them.
pub struct Script {
    bytes: Vec<u8>,
    random: Random,
}

impl Script {
    pub fn new(seed: u64) -> Script {
        let mut random = Random(7);
        let bytes = (0..(LONGEST_MESSAGE + 4096) / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        Script { bytes, random: Random(seed) }
    }

    pub fn next(&mut self) -> &[u8] {
        let start = self.random.below(4096) as usize;
        let len = match self.random.below(20) {
            0..4 => EDGES[self.random.below(EDGES.len() as u64) as usize],
            4 => self.random.below(LONGEST_MESSAGE as u64 + 1) as usize,
            5..8 => self.random.below(16_384) as usize,
            _ => self.random.below(256) as usize,
        };
        &self.bytes[start..start + len]
    }
}

/// Sends and takes so many messages over the first queue pair.
pub fn exchange(side: &Side, messages: u64, ours: u64, theirs: u64) {
    let (mut out, mut expected) = (Script::new(ours), Script::new(theirs));
    let place = |number: u64| (number % WINDOW) as usize;
    let recv = |number: u64| side.recv(0, number, WINDOW as usize + place(number));
    (0..WINDOW.min(messages)).for_each(recv);
    let (mut sent, mut done, mut received) = (0, 0, 0);
    let mut seen = vec![0; LONGEST_MESSAGE];
    while done < messages || received < messages {
        while sent < messages && sent < done + WINDOW {
            let message = out.next();
            side.piece(place(sent), message.len()).memory.write(0, message);
            side.send(0, sent, place(sent), message.len());
            sent += 1;
        }
        let completion = side.next();
        if completion.opcode == CompletionOpcode::Send {
            assert_eq!(completion.wr_id, done, "sends complete in order");
            done += 1;
            continue;
        }
        assert_eq!(completion.wr_id, received, "messages arrive in order");
        let message = expected.next();
        assert_eq!(completion.byte_len as usize, message.len(), "the length of message {received}");
        let seen = &mut seen[..message.len()];
        side.piece(WINDOW as usize + place(received), message.len()).memory.read(0, seen);
        assert!(seen == message, "the bytes of message {received}");
        received += 1;
        if received + WINDOW <= messages {
            recv(received + WINDOW - 1);
        }
    }
}

pub fn child(words: &[&str]) {
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    let side = Side::with(Path::new(words[1]), 1, 2 * WINDOW as usize);
    Parent.tell(&side.name().to_line());
    side.connect(&Name::from_line(&Parent.hear())).expect("connected");
    exchange(&side, number(4), number(2), number(3));
    Parent.tell("done");
    assert_eq!(Parent.hear(), "end");
}

/// Two programs that talk.
pub struct Talk([Child; 2]);

impl Talk {
    /// Which end once each has taken so many messages, and said so.
    pub fn start(sockets: [&Path; 2], seed: u64, messages: u64) -> Talk {
        let child = |end: u64| {
            let socket = sockets[end as usize].display();
            Child::start(&format!("talk {socket} {} {} {messages}", seed + end, seed + 1 - end))
        };
        let mut children = [child(0), child(1)];
        introduce(&mut children);
        Talk(children)
    }

    /// Waits until all is said, and `look`s before they leave.
    pub fn finish(mut self, look: impl FnOnce()) {
        self.0.iter_mut().for_each(|child| assert_eq!(child.hear(), "done"));
        look();
        for mut child in self.0 {
            child.tell("end");
            child.finish();
        }
    }
}

/// Tells each of two programs the other's name.
pub fn introduce(children: &mut [Child; 2]) {
    let names = [children[0].hear(), children[1].hear()];
    children[0].tell(&names[1]);
    children[1].tell(&names[0]);
}

/// Queue pairs that the device still gives.
pub fn left(device: &dyn Device) -> usize {
    let pd = device.alloc_pd().expect("a domain");
    let cq = device.create_cq(64, None).expect("a completion queue");
    let limits = QueuePairLimits { send_depth: 1, recv_depth: 1, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    let (kind, send_cq, recv_cq) = (QueuePairKind::Uc, cq.clone(), cq);
    let init = QueuePairInit { kind, send_cq, recv_cq, limits, signal_all: false, srq: None };
    let pairs: Vec<_> = std::iter::from_fn(|| pd.create_qp(&init).ok()).collect();
    pairs.len()
}

#[test]
fn two_programs_of_each_owner_share_a_device() {
    let houses = House::street([strict(), strict()]);
    houses.iter().for_each(|house| assert_eq!(left(&*house.device), 3));
    let sockets = [&*houses[0].socket, &*houses[1].socket];
    let talks = [1, 11].map(|seed| Talk::start(sockets, seed, MESSAGES));
    let mut talks = talks.into_iter();
    let (one, other) = (talks.next().expect("two"), talks.next().expect("two"));
    one.finish(|| {
        for house in &houses {
            let status = &house.owner.as_ref().expect("open").status()[0];
            assert_eq!((status.pairs, status.trunks), (2, 1));
            assert_eq!(left(&*house.device), 0, "a trunk has all queue pairs of this device");
        }
    });
    other.finish(|| {});
    nothing_is_left(&houses);
}

#[test]
fn two_programs_of_one_owner_need_no_trunk() {
    let [house] = House::street([strict()]);
    Talk::start([&house.socket; 2], 5, MESSAGES).finish(|| assert_eq!(left(&*house.device), 3));
    nothing_is_left(&[house]);
}

/// No program has anything any more, and there is one trunk at most.
pub fn nothing_is_left(houses: &[House]) {
    for house in houses {
        let owner = house.owner.as_ref().expect("open");
        until("no queue pairs of programs", || (owner.status()[0].pairs == 0).then_some(()));
        assert!(owner.status()[0].trunks <= 1);
    }
}
